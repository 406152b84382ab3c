//! "auto": the best transport that a server can be reached by from here.
//!
//! Each connection is made by the first of these that can make it: shared memory with a server on this host; TCP.
//! What was tried in vain is in the log, and so is what was chosen. A connection that is lost is made again in the same
//! way, so that a mount goes on by TCP while a server comes back without shared memory.

use std::{io, net::SocketAddr, sync::Arc};

use rpc::{BoxFuture, Listener, OptionError, RawOptions, Switch, Transport, TransportError, TransportKind};

pub(super) struct Auto {
    /// In the order of preference. An adapter's provider belongs behind the first.
    kinds: Vec<Arc<dyn TransportKind>>,
}

impl Auto {
    pub(super) fn new(switch: &Switch) -> Self {
        Self { kinds: PREFERENCE.iter().filter_map(|name| switch.find(name)).collect() }
    }

    async fn first(&self, remote: SocketAddr) -> Result<Arc<dyn Transport>, TransportError> {
        let mut last = TransportError::Connect(format!("{remote}: there is no transport"));
        for kind in &self.kinds {
            match kind.connect(remote).await {
                Ok(transport) => {
                    tracing::info!(%remote, transport = kind.name(), "proto=auto: connected");
                    return Ok(transport);
                }
                Err(error) => {
                    tracing::info!(%remote, transport = kind.name(), %error, "proto=auto: falling back");
                    last = error;
                }
            }
        }
        Err(last)
    }
}

impl TransportKind for Auto {
    fn name(&self) -> &'static str {
        "auto"
    }

    fn with_options(&self, options: &RawOptions) -> Result<Arc<dyn TransportKind>, OptionError> {
        match options.keys().next() {
            None => Ok(Arc::new(Self { kinds: self.kinds.clone() })),
            Some(option) => Err(OptionError {
                transport: self.name(),
                option: option.clone(),
                problem: format!("options are for one transport; choose it with proto={}", PREFERENCE.join(" or ")),
            }),
        }
    }

    fn connect(&self, remote: SocketAddr) -> BoxFuture<'_, Result<Arc<dyn Transport>, TransportError>> {
        Box::pin(self.first(remote))
    }

    fn listen(&self, _: SocketAddr) -> io::Result<Box<dyn Listener>> {
        Err(io::Error::new(io::ErrorKind::Unsupported, "auto is for clients; a server listens by each transport"))
    }
}

const PREFERENCE: [&str; 2] = ["shm", "tcp"];
