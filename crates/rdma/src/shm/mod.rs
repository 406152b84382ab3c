//! Client and server on one host: registered memory is shared, and an RDMA operation is a copy.
//!
//! Two processes are connected by a Unix socket, which identifies the peer and passes descriptors, and by *control
//! memory* that both map: a ring in each direction, and a table of exposures. The connecting side registers memory in
//! slabs (sealed memfds, [`buf::Slab`]), which the accepting side maps once. The accepting side never exposes its
//! memory. So the accepting side executes its RDMA Writes and Reads by itself, directly to and from the final location
//! of the data. All other data (Sends, and memory that is not in a shared slab) go through the rings in pieces.
//!
//! | file | |
//! |---|---|
//! | `place` | the sockets of listeners in the file system |
//! | `packet`, `socket`, `connect` | the socket: handshake, descriptors, doorbells |
//! | `memory` | mapping the peer's memory |
//! | `ring`, `record` | messages in shared memory |
//! | `table` | the memory that the accepting side can access |
//! | `ledger` | the resources that peers use, for each user and in total |
//! | `passed` | the slabs that the accepting side has received, and the methods of mapping them |
//! | `slabs` | the connecting side's memory, as each side manages it |
//! | `qp`, `sender`, `receiver` | the queue pair |
//!
//! Buffers belong to the queue pair while they are posted or registered. Registered memory is returned to its owner
//! only when no access by the other process is in progress. If the connection ends during an access, the owner gets
//! other memory of the same size, and the old memory is kept until the peer has released it.
//!
//! On error: a peer that violates a rule loses its connection. `docs/providers/shm.md` lists what a peer cannot do.

mod connect;
#[doc(hidden)]
pub mod harness;
mod ledger;
mod memory;
mod packet;
mod passage;
mod passed;
mod place;
mod qp;
mod receiver;
mod record;
mod ring;
mod sender;
mod slabs;
mod socket;
mod table;

use std::{io, net::SocketAddr, path::PathBuf, sync::Arc, time::Duration};

use buf::Buffer;
pub use ledger::{Bounds, Ledger};

use crate::{BoxFuture, Connected, Listener, Provider, ProviderCaps, QpOptions, WorkId, registration::Registration};

/// The options of the [`Shm`] provider.
#[derive(Clone, Debug)]
pub struct ShmOptions {
    /// The socket to listen at or to connect to, for any port. This is for containers that share a directory. The
    /// connecting side then trusts whatever process listens there.
    pub socket: Option<PathBuf>,
    /// The directory of the sockets; the runtime directory if `None`.
    pub directory: Option<PathBuf>,
    /// The time for which an idle side polls before it sleeps. Use zero on a machine with few processors.
    pub spin: Duration,
    /// The timeout of each step of the handshake.
    pub handshake_timeout: Duration,
    /// Maximum time for sending posted requests while a connection is closed.
    pub linger: Duration,
    /// Maximum number of regions of one queue pair.
    pub regions_max: usize,
    /// Maximum bytes of a peer's memory that one connection maps. Other memory is accessed through the ring.
    pub mapped_max: u64,
    /// The ledger that accounts for accepted connections; the ledger of the process if `None`.
    pub ledger: Option<Ledger>,
    /// Maximum number of connections that wait to be accepted.
    pub backlog: u32,
}

impl Default for ShmOptions {
    fn default() -> Self {
        Self {
            socket: None,
            directory: None,
            spin: buf::SPIN_MAX,
            handshake_timeout: Duration::from_secs(10),
            linger: Duration::from_secs(2),
            regions_max: 1 << 16,
            mapped_max: 64 << 30,
            ledger: None,
            backlog: 1024,
        }
    }
}

/// The shared-memory provider. Its futures run on a tokio runtime with I/O and time enabled.
///
/// It uses only the port of an address: see [`ShmOptions::directory`].
///
/// ```no_run
/// use rdma::{Provider, QpOptions, shm::{Shm, ShmOptions}};
///
/// # async fn example() -> std::io::Result<()> {
/// let shm = Shm::new(ShmOptions::default());
/// let connected = shm.connect("127.0.0.1:20049".parse().unwrap(), &QpOptions::default(), b"", Vec::new()).await?;
/// println!("connected to {}", connected.qp.peer());
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Shm {
    options: Arc<ShmOptions>,
}

impl Shm {
    /// Creates a provider.
    pub fn new(options: ShmOptions) -> Self {
        Self { options: Arc::new(options) }
    }
}

impl Provider for Shm {
    fn caps(&self) -> ProviderCaps {
        let private_data_max = packet::PRIVATE_DATA_MAX;
        ProviderCaps {
            name: "shm",
            private_data_max,
            shared_receives: true,
            remote_invalidation: true,
            keeps_credentials: false,
        }
    }

    fn registrations(&self) -> &'static [Registration] {
        &Registration::ALL
    }

    fn listen(&self, local: SocketAddr) -> io::Result<Box<dyn Listener>> {
        Ok(Box::new(connect::ShmListener::bind(&self.options, local)?))
    }

    fn connect<'a>(
        &'a self,
        remote: SocketAddr,
        options: &'a QpOptions,
        private_data: &'a [u8],
        recvs: Vec<(WorkId, Buffer)>,
    ) -> BoxFuture<'a, io::Result<Connected>> {
        Box::pin(connect::connect(&self.options, remote, options, private_data, recvs))
    }
}
