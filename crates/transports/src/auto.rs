//! "auto": selects the best transport that reaches a server.
//!
//! Each connection uses the first of these transports that succeeds: shared memory with a server on this host; RDMA
//! over an adapter; TCP. Failed attempts and the selected transport are logged. A lost connection is made again in the
//! same way: for example, a mount continues over TCP if its server restarts without shared memory.
//!
//! A port other than 2049 is used for every transport. Port 2049 is replaced by 20049 for RDMA (RFC 8267 §4.4).

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use nfs::{NFS_PORT, NFS_RDMA_PORT};
use rpc::{BoxFuture, Listener, OptionError, RawOptions, Switch, Transport, TransportError, TransportKind};

/// A kind of transport that selects another kind for each connection.
pub(crate) struct Auto {
    /// The transports in the order of preference.
    candidates: Vec<Candidate>,
}

/// A transport that may reach the server.
#[derive(Clone)]
struct Candidate {
    /// The name in a URL.
    proto: &'static str,
    kind: Arc<dyn TransportKind>,
    /// The timeout of an attempt; `None` for the caller's timeout.
    limit: Option<Duration>,
}

impl Auto {
    pub(crate) fn new(switch: &Switch) -> Self {
        let candidate = |(proto, limit): &(&'static str, Option<Duration>)| {
            // iWARP in software is slower than TCP, so RDMA is selected only over an adapter.
            let options = match *proto {
                ADAPTER => RawOptions::from([("provider".to_owned(), "verbs".to_owned())]),
                _ => RawOptions::new(),
            };
            let kind = switch.find(proto)?.with_options(&options).ok()?;
            Some(Candidate { proto, kind, limit: *limit })
        };
        Self { candidates: PREFERENCE.iter().filter_map(candidate).collect() }
    }

    async fn first(&self, remote: SocketAddr) -> Result<Arc<dyn Transport>, TransportError> {
        let mut last = TransportError::Connect(format!("{remote}: there is no transport"));
        for candidate in &self.candidates {
            let transport = candidate.proto;
            match candidate.connect(remote).await {
                Ok(connected) => {
                    tracing::info!(%remote, transport, "proto=auto: connected");
                    return Ok(connected);
                }
                Err(error) => {
                    tracing::info!(%remote, transport, %error, "proto=auto: falling back");
                    last = error;
                }
            }
        }
        Err(last)
    }
}

impl Candidate {
    async fn connect(&self, mut remote: SocketAddr) -> Result<Arc<dyn Transport>, TransportError> {
        if self.proto == ADAPTER && remote.port() == NFS_PORT {
            remote.set_port(NFS_RDMA_PORT);
        }
        let connecting = self.kind.connect(remote);
        let Some(limit) = self.limit else { return connecting.await };
        let late = |_| Err(TransportError::Connect(format!("no answer within {} s", limit.as_secs())));
        tokio::time::timeout(limit, connecting).await.unwrap_or_else(late)
    }
}

impl TransportKind for Auto {
    fn name(&self) -> &'static str {
        "auto"
    }

    fn with_options(&self, options: &RawOptions) -> Result<Arc<dyn TransportKind>, OptionError> {
        match options.keys().next() {
            None => Ok(Arc::new(Self { candidates: self.candidates.clone() })),
            Some(option) => Err(OptionError {
                transport: self.name(),
                option: option.clone(),
                problem: format!(
                    "options are for one transport; choose it with proto={}",
                    PREFERENCE.map(|(proto, _)| proto).join(" or ")
                ),
            }),
        }
    }

    fn connect(&self, remote: SocketAddr) -> BoxFuture<'_, Result<Arc<dyn Transport>, TransportError>> {
        Box::pin(self.first(remote))
    }

    fn listen(&self, _: SocketAddr) -> io::Result<Box<dyn Listener>> {
        Err(io::Error::new(io::ErrorKind::Unsupported, "auto is for clients; a server listens on each transport"))
    }
}

const ADAPTER: &str = rpcrdma::NAME;
/// The names and timeouts of the transports, in the order of preference.
const PREFERENCE: [(&str, Option<Duration>); 3] = [("shm", None), (ADAPTER, Some(crate::ADAPTER_LIMIT)), ("tcp", None)];

#[cfg(test)]
mod tests {
    use parking_lot::Mutex;

    use super::*;

    /// Records its name and the port, and fails to connect.
    struct Refusing(&'static str, Arc<Mutex<Vec<(&'static str, u16)>>>);

    impl TransportKind for Refusing {
        fn name(&self) -> &'static str {
            self.0
        }
        fn with_options(&self, options: &RawOptions) -> Result<Arc<dyn TransportKind>, OptionError> {
            assert_eq!(options.get("provider").map(String::as_str), (self.0 == ADAPTER).then_some("verbs"));
            Ok(Arc::new(Self(self.0, self.1.clone())))
        }
        fn connect(&self, remote: SocketAddr) -> BoxFuture<'_, Result<Arc<dyn Transport>, TransportError>> {
            self.1.lock().push((self.0, remote.port()));
            Box::pin(async {
                match self.0 {
                    ADAPTER => std::future::pending().await,
                    name => Err(TransportError::Connect(name.to_owned())),
                }
            })
        }
        fn listen(&self, _: SocketAddr) -> io::Result<Box<dyn Listener>> {
            unreachable!("auto does not listen")
        }
    }

    #[tokio::test]
    async fn transports_are_tried_in_order_at_their_ports() {
        let asked = Arc::default();
        let mut switch = Switch::new();
        for name in ["tcp", ADAPTER, "shm"] {
            switch.register(Arc::new(Refusing(name, Arc::clone(&asked))));
        }
        let mut auto = Auto::new(&switch);
        // An attempt over an adapter that does not answer must time out.
        auto.candidates.iter_mut().for_each(|candidate| candidate.limit = candidate.limit.map(|_| Duration::ZERO));
        let error = auto.connect("127.0.0.1:2049".parse().unwrap()).await.err().unwrap();
        assert!(error.to_string().contains("tcp"), "{error}");
        assert_eq!(*asked.lock(), [("shm", 2049), (ADAPTER, 20049), ("tcp", 2049)]);
        asked.lock().clear();
        assert!(auto.connect("127.0.0.1:999".parse().unwrap()).await.is_err());
        assert_eq!(*asked.lock(), [("shm", 999), (ADAPTER, 999), ("tcp", 999)]);
    }
}
