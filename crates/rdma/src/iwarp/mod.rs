//! iWARP in user space: MPA, DDP and RDMAP over an ordinary TCP socket.
//!
//! The wire format is that of Linux `siw` and of hardware iWARP adapters. Read RFC 5044 (MPA), RFC 5041 (DDP), RFC 5040
//! (RDMAP) and RFC 6581 (connection setup), in this order, or their codecs in [`mpa`], [`ddp`] and [`rdmap`], which do
//! no I/O. `receiver` and `sender` are the two halves of an established stream, without I/O. `qp` drives them over a
//! socket; `connect` opens connections.
//!
//! Payload is received directly into its destination and sent without a copy. Buffers belong to the queue pair while
//! they are posted or registered, and are returned on every error.

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

/// The options of the [`Iwarp`] provider.
#[derive(Clone, Debug)]
pub struct IwarpOptions {
    /// Requests a CRC32C for every FPDU. It is also used if the peer requests it. With CRCs, file ranges are read into
    /// memory before they are sent.
    pub crc: bool,
    /// Maximum bytes of an FPDU that is sent: 128 to 65541. The length field allows as much (RFC 5044 §4.1), and this
    /// receiver accepts it.
    pub fpdu_max: usize,
    /// The MPA revision of connection requests: 2 negotiates the numbers of reads, 1 does not.
    pub revision: u8,
    /// Requests peer-to-peer mode, in which the accepting side can send first (RFC 6581 §9.2). This requires revision
    /// 2.
    pub peer_to_peer: bool,
    /// The timeout of each step of the handshake.
    pub handshake_timeout: Duration,
    /// Maximum time for sending posted requests while a connection is closed.
    pub linger: Duration,
    /// Maximum number of regions of one queue pair.
    pub regions_max: usize,
    /// TCP congestion control by its name in the system, such as `cubic`; the system's default if `None`.
    pub congestion: Option<String>,
    /// Size of the socket's send buffer in bytes; chosen by the system if `None`.
    pub send_buffer: Option<usize>,
    /// Size of the socket's receive buffer in bytes; chosen by the system if `None`.
    pub recv_buffer: Option<usize>,
    /// The idle time after which TCP sends keepalive probes.
    pub keepalive: Duration,
    /// Maximum number of connections that wait to be accepted.
    pub backlog: u32,
    /// The capture file for all traffic.
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

/// The iWARP provider. Its futures run on a tokio runtime with I/O and time enabled.
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
    /// Creates a provider.
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
