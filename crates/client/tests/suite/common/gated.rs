//! A server of NFSv4 that delays its replies on command.

use std::{
    ops::RangeInclusive,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
};

use nfs::v4::{compound::*, *};
use rpc::{AcceptError, Answering, Call, ConnectionId, Procedure, Reverse, Service};
use tokio::sync::watch;
use xdr::{Decode, Decoder, Message};

/// A service that does not answer registrations of clients before the gate is open, and counts them.
pub struct Gated {
    pub inner: Arc<dyn Service>,
    pub introduced: Arc<AtomicUsize>,
    pub open: watch::Receiver<bool>,
}

impl Service for Gated {
    fn program(&self) -> u32 {
        self.inner.program()
    }

    fn versions(&self) -> RangeInclusive<u32> {
        self.inner.versions()
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
        Answering::Pending(Box::pin(async move {
            let args = CompoundArgs::decode(&mut call.arguments.clone());
            let introduces = |op: &Argop4| matches!(op, Argop4::ExchangeId(_) | Argop4::SetClientId(_));
            if args.is_ok_and(|args| args.argarray.iter().any(introduces)) {
                self.introduced.fetch_add(1, SeqCst);
                let _ = self.open.clone().wait_for(|open| *open).await;
            }
            self.inner.call(call).await
        }))
    }
}
