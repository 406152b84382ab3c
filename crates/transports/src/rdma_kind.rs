//! "rdma": RPC-over-RDMA on an adapter, on iWARP in software, or on both.

#[cfg(feature = "verbs")]
mod adapters;
mod both;
#[cfg(feature = "iwarp")]
mod software;

use std::{io, net::SocketAddr, sync::Arc};

use buf::Pool;
use rpc::{BoxFuture, Listener, OptionError, OptionReader, RawOptions, Transport, TransportError, TransportKind};
use rpcrdma::RdmaKind;

use crate::ADAPTER_LIMIT;

/// RPC-over-RDMA on the selected providers.
pub(super) struct Rdma {
    pool: Pool,
    choice: Choice,
    /// iWARP in software; `None` if this program is built without it.
    software: Option<RdmaKind>,
    rpc: rpcrdma::Options,
    /// The adapters, and the memory that is registered with them. All connections share them.
    adapters: adapters::Adapters,
}

/// The option `provider`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Choice {
    Auto,
    Software,
    Adapters,
}

impl Rdma {
    pub(super) fn new(pool: &Pool) -> Self {
        let rpc = rpcrdma::Options::default();
        let software = software::kind(&RawOptions::new(), &rpc, pool).expect("the default options must be valid");
        Self { pool: pool.clone(), choice: Choice::Auto, software, rpc, adapters: Default::default() }
    }

    /// Returns RPC-over-RDMA on the adapters that the machine has now.
    fn by_adapter(&self) -> io::Result<RdmaKind> {
        self.adapters.kind(&self.rpc, &self.pool)
    }

    fn in_software(&self) -> io::Result<&RdmaKind> {
        let missing = || io::Error::new(io::ErrorKind::Unsupported, "this program is built without iWARP in software");
        self.software.as_ref().ok_or_else(missing)
    }

    async fn connect_in_software(&self, remote: SocketAddr) -> Result<Arc<dyn Transport>, TransportError> {
        self.in_software().map_err(failed)?.connect(remote).await
    }

    async fn connect_by_adapter(&self, remote: SocketAddr) -> Result<Arc<dyn Transport>, TransportError> {
        self.by_adapter().map_err(failed)?.connect(remote).await
    }

    async fn connect_by_either(&self, remote: SocketAddr) -> Result<Arc<dyn Transport>, TransportError> {
        if self.software.is_none() {
            return self.connect_by_adapter(remote).await;
        }
        let Ok(adapter) = self.by_adapter() else { return self.connect_in_software(remote).await };
        let why = match tokio::time::timeout(ADAPTER_LIMIT, adapter.connect(remote)).await {
            Ok(Ok(transport)) => return Ok(transport),
            Ok(Err(error)) => error.to_string(),
            Err(_) => format!("no answer within {} s", ADAPTER_LIMIT.as_secs()),
        };
        tracing::info!(%remote, why, "connecting over an RDMA adapter failed; trying iWARP in software");
        self.connect_in_software(remote).await
    }

    fn listen_on_both(&self, local: SocketAddr) -> io::Result<Box<dyn Listener>> {
        if self.software.is_none() {
            return self.by_adapter()?.listen(local);
        }
        let software = self.in_software()?.listen(local)?;
        let Ok(adapter) = self.by_adapter() else { return Ok(software) };
        // If the caller asks for any free port, both listen on the same one.
        let local = SocketAddr::new(local.ip(), software.local_addr().port());
        match adapter.listen(local) {
            Ok(adapter) => Ok(Box::new(both::Both::new(software, adapter))),
            Err(error) => {
                // Linux's siw uses the same TCP ports as iWARP in software, so only one of the two can listen.
                tracing::warn!(%local, %error, "listening on RDMA adapters failed; provider=verbs listens only on them");
                Ok(software)
            }
        }
    }
}

impl TransportKind for Rdma {
    fn name(&self) -> &'static str {
        rpcrdma::NAME
    }

    fn with_options(&self, options: &RawOptions) -> Result<Arc<dyn TransportKind>, OptionError> {
        let (of_provider, of_rpc): (RawOptions, RawOptions) =
            options.clone().into_iter().partition(|(name, _)| is_provider_option(name));
        let rpc = self.rpc.with(&of_rpc).map_err(|error| OptionError {
            problem: format!("{} (and of the provider: {})", error.problem, provider_options().join(", ")),
            ..error
        })?;
        let (choice, of_software) = choice(&of_provider)?;
        let software = software::kind(&of_software, &rpc, &self.pool)?;
        let (pool, adapters) = (self.pool.clone(), self.adapters.clone());
        Ok(Arc::new(Self { pool, choice, software, rpc, adapters }))
    }

    fn connect(&self, remote: SocketAddr) -> BoxFuture<'_, Result<Arc<dyn Transport>, TransportError>> {
        match self.choice {
            Choice::Auto => Box::pin(self.connect_by_either(remote)),
            Choice::Software => Box::pin(self.connect_in_software(remote)),
            Choice::Adapters => Box::pin(self.connect_by_adapter(remote)),
        }
    }

    fn listen(&self, local: SocketAddr) -> io::Result<Box<dyn Listener>> {
        match self.choice {
            Choice::Auto => self.listen_on_both(local),
            Choice::Software => self.in_software()?.listen(local),
            Choice::Adapters => self.by_adapter()?.listen(local),
        }
    }
}

fn failed(error: io::Error) -> TransportError {
    TransportError::Connect(error.to_string())
}

/// Returns the selected provider, and the options that remain for iWARP in software.
fn choice(raw: &RawOptions) -> Result<(Choice, RawOptions), OptionError> {
    let reader = OptionReader::new(rpcrdma::NAME, raw);
    let mut of_software = raw.clone();
    let choice = match of_software.remove(PROVIDER).as_deref() {
        None | Some("auto") => Choice::Auto,
        Some("iwarp") if cfg!(feature = "iwarp") => Choice::Software,
        Some("verbs") if cfg!(feature = "verbs") => Choice::Adapters,
        Some(other) => {
            let problem = format!("there is no '{other}'; there are {}", providers().join(", "));
            return Err(reader.error(PROVIDER, problem));
        }
    };
    if choice == Choice::Adapters
        && let Some(name) = of_software.keys().next()
    {
        return Err(reader.error(name, "this is an option of iWARP in software, not of adapters".to_owned()));
    }
    Ok((choice, of_software))
}

fn providers() -> Vec<&'static str> {
    let built = [("auto", true), ("iwarp", cfg!(feature = "iwarp")), ("verbs", cfg!(feature = "verbs"))];
    built.into_iter().filter(|(_, built)| *built).map(|(name, _)| name).collect()
}

fn provider_options() -> Vec<&'static str> {
    let mut names = [software::OPTIONS, &[PROVIDER]].concat();
    names.sort_unstable();
    names
}

fn is_provider_option(name: &str) -> bool {
    name == PROVIDER || software::OPTIONS.contains(&name)
}

const PROVIDER: &str = "provider";

/// The provider of a program without iWARP in software.
#[cfg(not(feature = "iwarp"))]
mod software {
    use super::{OptionError, Pool, RawOptions, RdmaKind};

    pub(super) const OPTIONS: &[&str] = &[];

    pub(super) fn kind(_: &RawOptions, _: &rpcrdma::Options, _: &Pool) -> Result<Option<RdmaKind>, OptionError> {
        Ok(None)
    }
}

/// The provider of a program without RDMA adapters.
#[cfg(not(feature = "verbs"))]
mod adapters {
    use super::{Pool, RdmaKind, io};

    #[derive(Clone, Default)]
    pub(super) struct Adapters;

    impl Adapters {
        pub(super) fn kind(&self, _: &rpcrdma::Options, _: &Pool) -> io::Result<RdmaKind> {
            Err(io::Error::new(io::ErrorKind::Unsupported, "this program is built without RDMA adapters"))
        }
    }
}
