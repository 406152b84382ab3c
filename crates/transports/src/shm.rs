//! "shm": RPC-over-RDMA in memory that is shared with a server on this host.

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use buf::Pool;
use rdma::shm::{Shm, ShmOptions};
use rpc::{BoxFuture, Listener, OptionError, OptionReader, RawOptions, Transport, TransportError, TransportKind};
use rpcrdma::RdmaKind;

/// RPC-over-RDMA on the provider `shm`.
pub(crate) struct SharedMemory {
    pool: Pool,
    kind: RdmaKind,
}

impl SharedMemory {
    pub(crate) fn new(options: ShmOptions, pool: &Pool) -> Self {
        let kind = RdmaKind::new(Arc::new(Shm::new(options)), Default::default()).with_pool(pool.clone()).named(NAME);
        Self { pool: pool.clone(), kind }
    }
}

impl TransportKind for SharedMemory {
    fn name(&self) -> &'static str {
        self.kind.name()
    }

    fn with_options(&self, options: &RawOptions) -> Result<Arc<dyn TransportKind>, OptionError> {
        let (of_provider, of_rpc): (RawOptions, RawOptions) =
            options.clone().into_iter().partition(|(name, _)| PROVIDER_OPTIONS.contains(&name.as_str()));
        let kind = Self::new(provider_options(&of_provider)?, &self.pool).kind;
        kind.with_options(&of_rpc).map_err(|error| OptionError {
            problem: format!("{} (and of the provider: {})", error.problem, PROVIDER_OPTIONS.join(", ")),
            ..error
        })
    }

    fn connect(&self, remote: SocketAddr) -> BoxFuture<'_, Result<Arc<dyn Transport>, TransportError>> {
        self.kind.connect(remote)
    }

    fn listen(&self, local: SocketAddr) -> io::Result<Box<dyn Listener>> {
        self.kind.listen(local)
    }
}

fn provider_options(raw: &RawOptions) -> Result<ShmOptions, OptionError> {
    let mut reader = OptionReader::new(NAME, raw);
    let socket = reader.text("socket").map(Into::into);
    let mut options = ShmOptions { socket, ..ShmOptions::default() };
    if let Some(us) = reader.number("spin", 0..=10_000)? {
        options.spin = Duration::from_micros(us);
    }
    reader.finish()?;
    Ok(options)
}

const NAME: &str = "shm";
const PROVIDER_OPTIONS: [&str; 2] = ["socket", "spin"];
