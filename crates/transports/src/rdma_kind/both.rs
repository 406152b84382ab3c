//! [`Both`]: a listener on two providers.

use std::{io, net::SocketAddr};

use rpc::{BoxFuture, Incoming, Listener};

/// Accepts connections on iWARP in software and on adapters.
pub(super) struct Both {
    software: Box<dyn Listener>,
    /// The listener on adapters; `None` after it has failed or was taken.
    adapter: Option<Box<dyn Listener>>,
}

impl Both {
    pub(super) fn new(software: Box<dyn Listener>, adapter: Box<dyn Listener>) -> Self {
        Self { software, adapter: Some(adapter) }
    }
}

impl Listener for Both {
    fn local_addr(&self) -> SocketAddr {
        self.software.local_addr()
    }

    fn keeps_credentials(&self) -> bool {
        self.adapter.as_ref().is_some_and(|adapter| adapter.keeps_credentials())
    }

    fn take_fixed_credentials_part(&mut self) -> Option<Box<dyn Listener>> {
        self.adapter.take()
    }

    fn accept(&mut self) -> BoxFuture<'_, io::Result<Incoming>> {
        Box::pin(async {
            if let Some(adapter) = &mut self.adapter {
                tokio::select! {
                    incoming = self.software.accept() => return incoming,
                    incoming = adapter.accept() => match incoming {
                        Ok(incoming) => return Ok(incoming),
                        Err(error) => tracing::error!(%error, "listening on RDMA adapters failed; continuing without them"),
                    }
                }
                self.adapter = None;
            }
            self.software.accept().await
        })
    }
}
