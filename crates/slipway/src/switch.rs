//! The transports of this program. Nothing else names a provider of RDMA.
//!
//! "rdma" runs on real adapters (`provider=verbs`), on iWARP in software (`provider=iwarp`), or on both, which is
//! the default (`provider=auto`): then a server listens by both, and a client connects by an adapter if one leads to the
//! server and the server answers there, else in software. Its other options are those of RPC-over-RDMA and, in
//! the same place, those of iWARP in software: `crc`, `congestion`, `sndbuf`, `rcvbuf`, `mpa`, `pcap`.

//! "shm" is the same protocol in shared memory, and "auto" chooses.

mod auto;
mod shm;

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use auto::Auto;
use buf::{Pool, PoolOptions};
use rdma::{
    iwarp::{Iwarp, IwarpOptions, Pcap},
    verbs::{Devices, Verbs, VerbsOptions},
};
use rpc::{
    BoxFuture, Incoming, Listener, OptionError, OptionReader, RawOptions, Switch, TcpKind, Transport, TransportError,
    TransportKind, UdpKind,
};
use rpcrdma::RdmaKind;

/// All transports, to connect with: with buffers from a pool of their own, and for shm from one whose memory a server on
/// this host can be let at.
pub fn all() -> Switch {
    let shared = PoolOptions { shared: true, huge_pages: true, ..PoolOptions::default() };
    with_pools(&Pool::default(), &Pool::new(shared))
}

/// All transports, to serve with: with buffers from `pool`, which no client ever sees.
pub fn with_pool(pool: &Pool) -> Switch {
    with_pools(pool, pool)
}

fn with_pools(pool: &Pool, of_shm: &Pool) -> Switch {
    let mut switch = Switch::new();
    switch.register(Arc::new(TcpKind::new(Default::default(), pool.clone())));
    switch.register(Arc::new(UdpKind::new(Default::default(), pool.clone())));
    switch.register(Arc::new(Rdma::new(Choice::Auto, IwarpOptions::default(), pool)));
    switch.register(Arc::new(shm::SharedMemory::new(Default::default(), of_shm)));
    switch.register(Arc::new(Auto::new(&switch)));
    switch
}

/// What adapters need on this machine, in Debian's names.
pub const VERBS_PACKAGES: &str = "libibverbs1 librdmacm1 ibverbs-providers rdma-core";

/// RPC-over-RDMA on the providers chosen.
struct Rdma {
    pool: Pool,
    choice: Choice,
    iwarp: RdmaKind,
    rpc: rpcrdma::Options,
    /// Adapters, with what is registered with them: it outlasts every connection.
    devices: Devices,
}

/// The option `provider`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Choice {
    Auto,
    Iwarp,
    Verbs,
}

/// Connections by both providers.
struct Both {
    iwarp: Box<dyn Listener>,
    /// Until it fails.
    verbs: Option<Box<dyn Listener>>,
}

impl Rdma {
    fn new(choice: Choice, iwarp: IwarpOptions, pool: &Pool) -> Self {
        let rpc = rpcrdma::Options::default();
        let iwarp = RdmaKind::new(Arc::new(Iwarp::new(iwarp)), rpc.clone()).with_pool(pool.clone());
        Self { pool: pool.clone(), choice, iwarp, rpc, devices: Devices::default() }
    }

    /// Over adapters, if there are any now.
    fn verbs(&self) -> io::Result<RdmaKind> {
        let options = VerbsOptions { devices: self.devices.clone(), ..VerbsOptions::default() };
        let verbs = Verbs::open(options).map_err(|why| {
            io::Error::new(io::ErrorKind::Unsupported, format!("{why} (apt install {VERBS_PACKAGES})"))
        })?;
        Ok(RdmaKind::new(Arc::new(verbs), self.rpc.clone()).with_pool(self.pool.clone()))
    }

    async fn connect_by_either(&self, remote: SocketAddr) -> Result<Arc<dyn Transport>, TransportError> {
        let Ok(verbs) = self.verbs() else { return self.iwarp.connect(remote).await };
        let by_adapter = tokio::time::timeout(ADAPTER_LIMIT, verbs.connect(remote)).await;
        let why = match by_adapter {
            Ok(Ok(transport)) => return Ok(transport),
            Ok(Err(error)) => error.to_string(),
            Err(_) => format!("no answer within {} s", ADAPTER_LIMIT.as_secs()),
        };
        tracing::info!(%remote, why, "not reached by an RDMA adapter; trying iWARP in software");
        self.iwarp.connect(remote).await
    }

    fn listen_by_both(&self, local: SocketAddr) -> io::Result<Box<dyn Listener>> {
        let iwarp = self.iwarp.listen(local)?;
        let Ok(verbs) = self.verbs() else { return Ok(iwarp) };
        // Where a free port was asked for, both take the same.
        let local = SocketAddr::new(local.ip(), iwarp.local_addr().port());
        match verbs.listen(local) {
            Ok(verbs) => Ok(Box::new(Both { iwarp, verbs: Some(verbs) })),
            Err(error) => {
                // Linux's siw shares the TCP ports with iWARP in software, so that one of the two has to do.
                tracing::warn!(%local, %error, "RDMA adapters are not listened on; provider=verbs listens on them alone");
                Ok(iwarp)
            }
        }
    }
}

impl TransportKind for Rdma {
    fn name(&self) -> &'static str {
        rpcrdma::NAME
    }

    fn with_options(&self, options: &RawOptions) -> Result<Arc<dyn TransportKind>, OptionError> {
        let provider = |name: &str| PROVIDER_OPTIONS.contains(&name);
        let (of_provider, of_rpc): (RawOptions, RawOptions) =
            options.clone().into_iter().partition(|(name, _)| provider(name));
        let rpc = self.rpc.with(&of_rpc).map_err(|error| OptionError {
            problem: format!("{} (and of the provider: {})", error.problem, PROVIDER_OPTIONS.join(", ")),
            ..error
        })?;
        let (choice, iwarp) = provider_options(&of_provider)?;
        let iwarp = RdmaKind::new(Arc::new(Iwarp::new(iwarp)), rpc.clone()).with_pool(self.pool.clone());
        let (pool, devices) = (self.pool.clone(), self.devices.clone());
        Ok(Arc::new(Self { pool, choice, iwarp, rpc, devices }))
    }

    fn connect(&self, remote: SocketAddr) -> BoxFuture<'_, Result<Arc<dyn Transport>, TransportError>> {
        match self.choice {
            Choice::Iwarp => self.iwarp.connect(remote),
            Choice::Auto => Box::pin(self.connect_by_either(remote)),
            Choice::Verbs => Box::pin(async move {
                let verbs = self.verbs().map_err(|error| TransportError::Connect(error.to_string()))?;
                verbs.connect(remote).await
            }),
        }
    }

    fn listen(&self, local: SocketAddr) -> io::Result<Box<dyn Listener>> {
        match self.choice {
            Choice::Iwarp => self.iwarp.listen(local),
            Choice::Auto => self.listen_by_both(local),
            Choice::Verbs => self.verbs()?.listen(local),
        }
    }
}

impl Listener for Both {
    fn local_addr(&self) -> SocketAddr {
        self.iwarp.local_addr()
    }

    fn keeps_credentials(&self) -> bool {
        self.verbs.as_ref().is_some_and(|verbs| verbs.keeps_credentials())
    }

    fn keeping_part(&mut self) -> Option<Box<dyn Listener>> {
        self.verbs.take()
    }

    fn accept(&mut self) -> BoxFuture<'_, io::Result<Incoming>> {
        Box::pin(async {
            if let Some(verbs) = &mut self.verbs {
                tokio::select! {
                    incoming = self.iwarp.accept() => return incoming,
                    incoming = verbs.accept() => match incoming {
                        Ok(incoming) => return Ok(incoming),
                        Err(error) => tracing::error!(%error, "RDMA adapters are no longer listened on"),
                    }
                }
                self.verbs = None;
            }
            self.iwarp.accept().await
        })
    }
}

fn provider_options(raw: &RawOptions) -> Result<(Choice, IwarpOptions), OptionError> {
    let mut reader = OptionReader::new(rpcrdma::NAME, raw);
    let mut options = IwarpOptions::default();
    let choice = match reader.text("provider") {
        None | Some("auto") => Choice::Auto,
        Some("iwarp") => Choice::Iwarp,
        Some("verbs") => Choice::Verbs,
        Some(other) => {
            return Err(reader.error("provider", format!("there is no '{other}'; there are auto, iwarp, verbs")));
        }
    };
    if choice == Choice::Verbs
        && let Some(name) = raw.keys().find(|name| *name != "provider")
    {
        return Err(reader.error(name, "belongs to iWARP in software; an adapter has its own".to_owned()));
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
    Ok((choice, options))
}

const PROVIDER_OPTIONS: [&str; 7] = ["congestion", "crc", "mpa", "pcap", "provider", "rcvbuf", "sndbuf"];
/// How long an adapter may take to reach a server that may not listen on one.
const ADAPTER_LIMIT: Duration = Duration::from_secs(3);
const BUFFER_MIN: usize = 4 << 10;
const BUFFER_MAX: usize = 1 << 30;

#[cfg(test)]
mod tests {
    use rpc::Hosts;

    use super::*;

    fn rdma(options: &[(&str, &str)]) -> Result<Arc<dyn TransportKind>, OptionError> {
        let raw = options.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        all().find("rdma").unwrap().with_options(&raw)
    }

    #[test]
    fn all_transports_are_there() {
        assert_eq!(all().names().collect::<Vec<_>>(), ["auto", "rdma", "shm", "tcp", "udp"]);
    }

    #[test]
    fn rdma_takes_its_own_options_and_the_providers() {
        assert!(rdma(&[("credits", "32"), ("crc", "on"), ("congestion", "cubic"), ("mpa", "1")]).is_ok());
        let error = rdma(&[("colour", "red")]).err().unwrap().to_string();
        assert!(error.contains("credits") && error.contains("crc"), "{error}");
        assert!(rdma(&[("provider", "carrier-pigeon")]).err().unwrap().problem.contains("iwarp"));
        assert!(rdma(&[("crc", "maybe")]).is_err() && rdma(&[("mpa", "3")]).is_err());
    }

    #[test]
    fn shm_takes_its_own_options_and_those_of_the_protocol() {
        let shm = |name: &str, value: &str| {
            let raw = RawOptions::from([(name.to_owned(), value.to_owned())]);
            all().find("shm").unwrap().with_options(&raw)
        };
        assert!(shm("socket", "/run/x.sock").is_ok() && shm("spin", "0").is_ok() && shm("credits", "4").is_ok());
        let error = shm("crc", "on").err().unwrap();
        assert_eq!(error.transport, "shm");
        assert!(error.problem.contains("credits") && error.problem.contains("socket"), "{error}");
    }

    #[test]
    fn an_option_of_iwarp_is_none_of_an_adapter() {
        assert!(["auto", "iwarp", "verbs"].into_iter().all(|name| rdma(&[("provider", name)]).is_ok()));
        let error = rdma(&[("provider", "verbs"), ("crc", "on")]).err().unwrap();
        assert_eq!(error.option, "crc");
    }

    #[tokio::test]
    async fn without_adapters_the_default_is_iwarp_and_verbs_says_what_is_missing() {
        if Verbs::open(VerbsOptions::default()).is_ok() {
            println!("SKIPPED switch: behaviour without adapters: this machine has one");
            return;
        }
        let local = "127.0.0.1:0".parse().unwrap();
        let mut listener = rdma(&[]).unwrap().listen(local).unwrap();
        let at = listener.local_addr();
        let kind = rdma(&[]).unwrap();
        let (connected, accepted) =
            tokio::join!(kind.connect(at), async { listener.accept().await.unwrap().set_up(Hosts::all()).await });
        assert!(connected.is_ok() && accepted.is_ok());
        let verbs = rdma(&[("provider", "verbs")]).unwrap();
        let error = verbs.listen(local).err().unwrap();
        assert!(error.to_string().contains("apt install libibverbs1"), "{error}");
        assert!(verbs.connect(at).await.is_err());
    }
}
