//! [`Wrapped`]: a service whose calls a test sees, changes or delays before another service has them.

use std::{ops::RangeInclusive, sync::Arc};

use rpc::{Answering, Call, ConnectionId, Procedure, Reverse, Service};
use xdr::Decoder;

/// Treats the calls of a service on behalf of a test.
pub trait Wrap: Send + Sync + 'static {
    /// Answers a call, usually by that of `inner`.
    fn call<'a>(&'a self, inner: &'a dyn Service, call: Call<'a>) -> Answering<'a>;
}

/// A service whose calls `wrap` has first.
struct Wrapped<W> {
    inner: Arc<dyn Service>,
    wrap: W,
}

/// Returns a service whose calls `wrap` has first.
pub fn wrapped(inner: Arc<dyn Service>, wrap: impl Wrap) -> Arc<dyn Service> {
    Arc::new(Wrapped { inner, wrap })
}

impl<W: Wrap> Service for Wrapped<W> {
    fn program(&self) -> u32 {
        self.inner.program()
    }

    fn versions(&self) -> RangeInclusive<u32> {
        self.inner.versions()
    }

    fn needs_reliability(&self) -> bool {
        self.inner.needs_reliability()
    }

    fn procedure(&self, version: u32, procedure: u32) -> Option<Procedure> {
        self.inner.procedure(version, procedure)
    }

    fn is_idempotent(&self, procedure: &Procedure, arguments: &Decoder<'_>) -> bool {
        self.inner.is_idempotent(procedure, arguments)
    }

    fn connected(&self, peer: &Reverse) {
        self.inner.connected(peer);
    }

    fn disconnected(&self, connection: ConnectionId) {
        self.inner.disconnected(connection);
    }

    fn call<'a>(&'a self, call: Call<'a>) -> Answering<'a> {
        self.wrap.call(&*self.inner, call)
    }
}
