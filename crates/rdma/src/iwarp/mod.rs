//! iWARP in user space: MPA, DDP and RDMAP over an ordinary TCP socket.
//!
//! On the wire it is what Linux `siw` and hardware iWARP adapters speak. Read RFC 5044 (MPA), RFC
//! 5041 (DDP), RFC 5040 (RDMAP) and RFC 6581 (connection set-up), in this order, or their codecs
//! here, which are pure: [`mpa`], [`ddp`], [`rdmap`]. `receiver` and `sender` are the two halves of
//! an established stream, without I/O; `qp` drives them over a socket; `connect` makes connections.
//!
//! Payload is received straight into its destination and sent from where it lies. Buffers belong to
//! the queue pair while posted or registered, and come home on every error.

mod connect;
pub mod ddp;
#[doc(hidden)]
pub mod harness;
pub mod mpa;
mod pcap;
mod qp;
pub mod rdmap;
mod receiver;
mod sender;

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use buf::Buffer;

pub use self::pcap::Pcap;
use crate::{BoxFuture, Connected, Listener, Provider, ProviderCaps, QpOptions, WorkId};

/// How the [`Iwarp`] provider behaves.
#[derive(Clone, Debug)]
pub struct IwarpOptions {
    /// Ask for CRC32C on every FPDU. A peer that asks for it gets it in any case. With CRCs, files
    /// are read into memory to be sent.
    pub crc: bool,
    /// Longest FPDU to send, in bytes: 128 to 65541. The length field allows as much
    /// (RFC 5044 §4.1), and receivers here take it.
    pub fpdu_max: usize,
    /// The MPA revision to connect with: 2 negotiates the numbers of reads, 1 does not.
    pub revision: u8,
    /// Ask for peer-to-peer mode, so that the accepting side may be the first to send (RFC 6581 §9.2).
    /// It needs revision 2.
    pub peer_to_peer: bool,
    /// How long each step of the handshake may take.
    pub handshake_timeout: Duration,
    /// How long a connection that is being ended may take to hand over what was posted.
    pub linger: Duration,
    /// Regions that one queue pair can have.
    pub regions_max: usize,
    /// TCP congestion control by its name in the system, such as `cubic`; the system's default if unset.
    pub congestion: Option<String>,
    /// Size of the socket's send buffer, in bytes; the system's own choice if unset.
    pub send_buffer: Option<usize>,
    /// Size of the socket's receive buffer, likewise.
    pub recv_buffer: Option<usize>,
    /// How long a connection may be silent before TCP asks whether the peer is still there.
    pub keepalive: Duration,
    /// Connections that may wait to be accepted.
    pub backlog: u32,
    /// Records all traffic.
    pub pcap: Option<Pcap>,
}

impl Default for IwarpOptions {
    fn default() -> Self {
        Self {
            crc: false,
            fpdu_max: sender::FPDU_MAX,
            revision: 2,
            peer_to_peer: true,
            handshake_timeout: Duration::from_secs(10),
            linger: Duration::from_secs(2),
            regions_max: 1 << 16,
            congestion: None,
            send_buffer: None,
            recv_buffer: None,
            keepalive: Duration::from_secs(60),
            backlog: 1024,
            pcap: None,
        }
    }
}

/// The provider. Its futures run on a tokio runtime with I/O and time enabled.
///
/// ```no_run
/// use rdma::{Provider, QpOptions, iwarp::{Iwarp, IwarpOptions}};
///
/// # async fn example() -> std::io::Result<()> {
/// let iwarp = Iwarp::new(IwarpOptions::default());
/// let connected = iwarp.connect("192.0.2.1:20049".parse().unwrap(), &QpOptions::default(), b"", Vec::new()).await?;
/// println!("connected to {}", connected.qp.peer());
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Iwarp {
    options: Arc<IwarpOptions>,
}

impl Iwarp {
    /// A provider.
    pub fn new(options: IwarpOptions) -> Self {
        Self { options: Arc::new(options) }
    }
}

impl Provider for Iwarp {
    fn caps(&self) -> ProviderCaps {
        ProviderCaps {
            name: "iwarp",
            private_data_max: connect::PRIVATE_DATA_MAX,
            shared_receives: true,
            remote_invalidation: true,
            keeps_credentials: false,
        }
    }

    fn listen(&self, local: SocketAddr) -> io::Result<Box<dyn Listener>> {
        Ok(Box::new(connect::IwarpListener::bind(&self.options, local)?))
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
