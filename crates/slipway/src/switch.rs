//! The transports of this program. Nothing else names a provider of RDMA.
//!
//! "rdma" runs on the provider `iwarp`. Its options are those of RPC-over-RDMA and, in the same place, those of the
//! provider: `crc`, `congestion`, `sndbuf`, `rcvbuf`, `mpa`, `pcap`.

use std::{io, net::SocketAddr, sync::Arc};

use buf::Pool;
use rdma::iwarp::{Iwarp, IwarpOptions, Pcap};
use rpc::{
    BoxFuture, Listener, OptionError, OptionReader, RawOptions, Switch, TcpKind, Transport, TransportError,
    TransportKind, UdpKind,
};
use rpcrdma::RdmaKind;

/// All transports, with buffers from one pool of their own.
pub fn all() -> Switch {
    with_pool(&Pool::default())
}

/// All transports, with buffers from `pool`.
pub fn with_pool(pool: &Pool) -> Switch {
    let mut switch = Switch::new();
    switch.register(Arc::new(TcpKind::new(Default::default(), pool.clone())));
    switch.register(Arc::new(UdpKind::new(Default::default(), pool.clone())));
    switch.register(Arc::new(Rdma::new(IwarpOptions::default(), pool)));
    switch
}

/// The providers of RDMA there are.
pub const PROVIDERS: &[&str] = &["iwarp"];

/// RPC-over-RDMA on iWARP, with the options of both.
struct Rdma {
    pool: Pool,
    kind: RdmaKind,
}

impl Rdma {
    fn new(iwarp: IwarpOptions, pool: &Pool) -> Self {
        let kind = RdmaKind::new(Arc::new(Iwarp::new(iwarp)), Default::default()).with_pool(pool.clone());
        Self { pool: pool.clone(), kind }
    }
}

impl TransportKind for Rdma {
    fn name(&self) -> &'static str {
        self.kind.name()
    }

    fn with_options(&self, options: &RawOptions) -> Result<Arc<dyn TransportKind>, OptionError> {
        let provider = |name: &str| PROVIDER_OPTIONS.contains(&name);
        let (of_provider, of_rpc): (RawOptions, RawOptions) =
            options.clone().into_iter().partition(|(name, _)| provider(name));
        let kind = Self::new(iwarp_options(&of_provider)?, &self.pool).kind;
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

fn iwarp_options(raw: &RawOptions) -> Result<IwarpOptions, OptionError> {
    let mut reader = OptionReader::new(rpcrdma::NAME, raw);
    let mut options = IwarpOptions::default();
    if let Some(name) = reader.text("provider").filter(|name| !PROVIDERS.contains(name)) {
        return Err(reader.error("provider", format!("there is no '{name}'; there are {}", PROVIDERS.join(", "))));
    }
    options.crc = reader.switch("crc")?.unwrap_or(options.crc);
    options.congestion = reader.text("congestion").map(str::to_owned);
    options.send_buffer = reader.bytes("sndbuf", BUFFER_MIN..=BUFFER_MAX)?;
    options.recv_buffer = reader.bytes("rcvbuf", BUFFER_MIN..=BUFFER_MAX)?;
    if let Some(revision) = reader.number("mpa", 1..=2)? {
        options.revision = revision as u8;
        options.peer_to_peer &= revision == 2;
    }
    if let Some(path) = reader.text("pcap") {
        let pcap = Pcap::create(path).map_err(|error| reader.error("pcap", format!("{path}: {error}")))?;
        options.pcap = Some(pcap);
    }
    reader.finish()?;
    Ok(options)
}

const PROVIDER_OPTIONS: [&str; 7] = ["congestion", "crc", "mpa", "pcap", "provider", "rcvbuf", "sndbuf"];
const BUFFER_MIN: usize = 4 << 10;
const BUFFER_MAX: usize = 1 << 30;

#[cfg(test)]
mod tests {
    use super::*;

    fn rdma(options: &[(&str, &str)]) -> Result<Arc<dyn TransportKind>, OptionError> {
        let raw = options.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        all().find("rdma").unwrap().with_options(&raw)
    }

    #[test]
    fn all_transports_are_there() {
        assert_eq!(all().names().collect::<Vec<_>>(), ["rdma", "tcp", "udp"]);
    }

    #[test]
    fn rdma_takes_its_own_options_and_the_providers() {
        assert!(rdma(&[("credits", "32"), ("crc", "on"), ("congestion", "cubic"), ("mpa", "1")]).is_ok());
        let error = rdma(&[("colour", "red")]).err().unwrap().to_string();
        assert!(error.contains("credits") && error.contains("crc"), "{error}");
        assert!(rdma(&[("provider", "carrier-pigeon")]).err().unwrap().problem.contains("iwarp"));
        assert!(rdma(&[("crc", "maybe")]).is_err() && rdma(&[("mpa", "3")]).is_err());
    }
}
