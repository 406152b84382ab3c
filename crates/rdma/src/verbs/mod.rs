//! Real adapters (InfiniBand, RoCE, iWARP, and Linux's software rxe and siw) through librdmacm and libibverbs.
//!
//! The libraries are opened at run time: building needs no headers, and a machine without them has all the rest. Read
//! rdma_cm(7) and the manual pages of libibverbs. From the bottom: `ffi` is the C interface, `library` finds it; `domain`,
//! `device`, `faults` and `memory` are what connections on one adapter share, and `kept` keeps it for the next connection; `cm` and
//! `connect` make connections; `queue` is the adapter's side of one, `prepare` and `qp` are ours.
//!
//! Buffers belong to the queue pair while posted or registered. A region is exposed by a memory window where the device has
//! them, else by a registration of exactly its bytes. On every error the adapter is stopped before anything comes home.

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

/// How the [`Verbs`] provider behaves.
#[derive(Clone, Debug)]
pub struct VerbsOptions {
    /// How long each step of making a connection may take.
    pub handshake_timeout: Duration,
    /// How long a connection that is being ended may take to hand over what was posted.
    pub linger: Duration,
    /// Regions that one queue pair can have.
    pub regions_max: usize,
    /// How long after its last completion a queue pair is polled before its task sleeps.
    pub spin: Duration,
    /// Connections that may wait to be accepted.
    pub backlog: u32,
    /// After so long without a completion the peer's adapter is asked for a sign of life, and after as long again the
    /// connection ends; never if zero.
    pub keepalive: Duration,
    /// The devices that it has used, for providers to share.
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

/// The provider. Its futures run on a tokio runtime with I/O and time enabled.
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
    /// Every device there was had memory windows.
    windows: bool,
}

impl Verbs {
    /// A provider, if this machine has adapters. One that comes later is found, too.
    ///
    /// # Errors
    /// The libraries are missing, or there is no device now.
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
        // A peer may invalidate a window, but not an ordinary registration; and by which device a connection goes is not
        // known when it is told to the peer.
        let (private_data_max, remote_invalidation) = (PRIVATE_DATA_MAX, self.windows);
        ProviderCaps {
            name: "verbs",
            private_data_max,
            shared_receives: false,
            remote_invalidation,
            // The kernel's `ib_safe_file_access`.
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

/// What InfiniBand leaves of a connection request when the connection manager's header is in it.
const PRIVATE_DATA_MAX: usize = 56;
