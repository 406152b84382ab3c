//! Client and server on one host: registered memory is shared, and an RDMA operation is a copy.
//!
//! Two processes are connected by a Unix socket, which tells who the peer is and passes descriptors, and by *control
//! memory* that both map: a ring each way, and a table of exposures. What the connecting side registers lies in slabs
//! (sealed memfds, [`buf::Slab`]) that the accepting side maps once; the accepting side never shows its memory. So the
//! accepting side carries out its RDMA Writes and Reads by itself, straight to and from the place where the data is wanted;
//! everything else (Sends, and memory that is in no shared slab) goes through the rings in pieces.
//!
//! | file | |
//! |---|---|
//! | `place` | where listeners are found |
//! | `packet`, `socket`, `connect` | the socket: handshake, descriptors, doorbells |
//! | `memory` | mapping what the peer has made |
//! | `ring`, `record` | messages in shared memory |
//! | `table` | what the accepting side may touch |
//! | `ledger` | what peers may take up of the process, each user and all together |
//! | `passed` | the slabs that the accepting side has been passed, and the ways of mapping them |
//! | `slabs` | the connecting side's memory, as each of the two sides knows it |
//! | `qp`, `sender`, `receiver` | the queue pair |
//!
//! Buffers belong to the queue pair while posted or registered. What is registered goes back to its owner only when no
//! access to it is under way in the other process; if the connection ends in the middle of one, its owner gets other
//! memory of the same size, and the old is kept until the peer has let go of it.
//!
//! On error: a peer that breaks a rule loses its connection; see `docs/providers/shm.md` for what it cannot do.

mod connect;
#[doc(hidden)]
pub mod harness;
mod ledger;
mod memory;
mod packet;
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

/// How the [`Shm`] provider behaves.
#[derive(Clone, Debug)]
pub struct ShmOptions {
    /// The socket to listen at or to connect to, whatever the port; for containers that share a directory. Who connects
    /// then trusts whoever listens there.
    pub socket: Option<PathBuf>,
    /// The directory of the sockets, in place of the runtime directory.
    pub directory: Option<PathBuf>,
    /// How long a side with nothing to do looks again before it sleeps. Zero for a machine that is short of processors.
    pub spin: Duration,
    /// How long each step of the handshake may take.
    pub handshake_timeout: Duration,
    /// How long a connection that is being ended may take to hand over what was posted.
    pub linger: Duration,
    /// Regions that one queue pair can have.
    pub regions_max: usize,
    /// Bytes of a peer's memory that are mapped for one connection. Beyond, its memory is reached through the ring.
    pub mapped_max: u64,
    /// What accepted connections take up is entered here; the ledger of the process if absent.
    pub ledger: Option<Ledger>,
    /// Connections that may wait to be accepted.
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

/// The provider. Its futures run on a tokio runtime with I/O and time enabled.
///
/// Of an address it uses the port: see [`ShmOptions::directory`].
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
    /// A provider.
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
