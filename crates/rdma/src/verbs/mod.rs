//! Provider for real adapters (InfiniBand, RoCE, iWARP, and the software adapters rxe and siw of Linux), which uses
//! librdmacm and libibverbs.
//!
//! The libraries are opened at run time: a build requires no headers, and on a machine without the libraries the other
//! providers work. See rdma_cm(7) and the manual pages of libibverbs. From the bottom up: `ffi` declares the C
//! interface and `library` loads it; `domain`, `device`, `faults` and `memory` are shared by the connections on one
//! adapter, and `kept` keeps them for the next connection; `cm` and `connect` establish connections; `queue` is the
//! interface to the adapter's queues of a connection, and `prepare` and `qp` are the part above them.
//!
//! Buffers belong to the queue pair while they are posted or registered. A region is exposed by a memory window if the
//! device supports windows, and otherwise by a registration of exactly its bytes. After every error the adapter is
//! stopped before any buffer is returned.

mod cm;
mod connect;
mod device;
mod domain;
mod faults;
#[doc(hidden)]
pub mod ffi;
mod kept;
mod library;
mod memory;
mod prepare;
mod qp;
mod queue;
mod receives;
mod survey;

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use buf::Buffer;

pub use self::{
    kept::Devices,
    library::Unavailable,
    survey::{DeviceReport, PortReport, survey},
};
use crate::{
    BoxFuture, Connected, Listener, Provider, ProviderCaps, QpOptions, WorkId,
    registration::{Registration, RegistrationOptions},
};

/// Options of the [`Verbs`] provider.
#[derive(Clone, Debug)]
pub struct VerbsOptions {
    /// The time limit of each step of connection establishment.
    pub handshake_timeout: Duration,
    /// The time that a connection has, after `disconnect`, to send the requests that were posted.
    pub linger: Duration,
    /// The maximum number of regions of one queue pair.
    pub regions_max: usize,
    /// The time after its last completion during which a queue pair is polled before its task sleeps.
    pub spin: Duration,
    /// The maximum number of connections that wait to be accepted.
    pub backlog: u32,
    /// The time without a completion after which the queue pair probes the peer's adapter. After the same time without
    /// an answer, the connection ends. Zero disables the probes.
    pub keepalive: Duration,
    /// The devices that have been used, which several providers can share.
    pub devices: Devices,
}

impl Default for VerbsOptions {
    fn default() -> Self {
        Self {
            handshake_timeout: Duration::from_secs(10),
            linger: Duration::from_secs(2),
            regions_max: 1 << 16,
            spin: Duration::from_micros(20),
            backlog: 1024,
            keepalive: Duration::from_secs(60),
            devices: Devices::default(),
        }
    }
}

/// The verbs provider. Its futures run on a tokio runtime with I/O and time enabled.
///
/// ```no_run
/// use rdma::{Provider, QpOptions, verbs::{Verbs, VerbsOptions}};
///
/// # async fn example() -> std::io::Result<()> {
/// let verbs = Verbs::open(VerbsOptions::default())?;
/// let connected = verbs.connect("192.0.2.1:20049".parse().unwrap(), &QpOptions::default(), b"", Vec::new()).await?;
/// println!("connected to {}", connected.qp.peer());
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Verbs {
    options: Arc<VerbsOptions>,
    /// Every device that was found supported memory windows.
    windows: bool,
}

impl Verbs {
    /// Creates a provider, if this machine has adapters. Adapters that are added later are found, too.
    ///
    /// # Errors
    /// Returns an error if the libraries are missing, or there is no device at present.
    pub fn open(options: VerbsOptions) -> Result<Self, Unavailable> {
        let devices = survey()?;
        if devices.is_empty() {
            return Err(Unavailable::NoDevice);
        }
        let windows = devices.iter().all(|device| device.windows);
        Ok(Self { options: Arc::new(options), windows })
    }
}

impl Provider for Verbs {
    fn caps(&self) -> ProviderCaps {
        // A peer can invalidate a window, but not an ordinary registration. When the capability is announced to the
        // peer, the device of the connection is not yet known.
        let (private_data_max, remote_invalidation) = (PRIVATE_DATA_MAX, self.windows);
        ProviderCaps {
            name: "verbs",
            private_data_max,
            shared_receives: false,
            remote_invalidation,
            // Required by the kernel's `ib_safe_file_access`.
            keeps_credentials: true,
        }
    }

    fn registrations(&self) -> &'static [Registration] {
        &Registration::ALL
    }

    fn remote_invalidation(&self, registration: &RegistrationOptions) -> bool {
        self.windows && registration.way != Some(Registration::PerIo)
    }

    fn listen(&self, local: SocketAddr) -> io::Result<Box<dyn Listener>> {
        Ok(Box::new(connect::VerbsListener::bind(&self.options, local)?))
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

/// The space that InfiniBand leaves in a connection request beside the header of the connection manager.
const PRIVATE_DATA_MAX: usize = 56;
