//! Servers that hold their replies back until several of them have a request.

use std::{collections::BTreeSet, ops::RangeInclusive, sync::Arc};

use nfs::v4::{Opnum4, compound::*};
use rpc::{Answering, Call, ConnectionId, Procedure, Reverse, Service};
use tokio::sync::watch;
use xdr::{Decode, Decoder};

/// The servers that have a request, and those that are waited for. At first, none is waited for.
#[derive(Clone, Default)]
pub struct Meeting(watch::Sender<State>);

#[derive(Default)]
struct State {
    operation: Option<Opnum4>,
    /// The number of servers that must have a request before one replies.
    expected: usize,
    arrived: BTreeSet<usize>,
}

impl Meeting {
    /// From now on, READ, WRITE or COMMIT is executed when so many servers have a request with it.
    pub fn expect(&self, operation: Opnum4, servers: usize) {
        self.0.send_replace(State { operation: Some(operation), expected: servers, arrived: BTreeSet::new() });
    }

    /// Returns the servers that have had a request.
    pub fn arrived(&self) -> BTreeSet<usize> {
        self.0.borrow().arrived.clone()
    }

    /// Makes services of the server with this number that wait here.
    pub fn wrap(&self, server: usize, services: Vec<Arc<dyn Service>>) -> Vec<Arc<dyn Service>> {
        let wrap = |inner| -> Arc<dyn Service> { Arc::new(Guest { inner, server, meeting: self.clone() }) };
        services.into_iter().map(wrap).collect()
    }
}

struct Guest {
    inner: Arc<dyn Service>,
    server: usize,
    meeting: Meeting,
}

impl Guest {
    /// Reports whether a call has the operation, by NFSv3 or NFSv4.
    fn is_expected(&self, call: &Call<'_>) -> bool {
        let Some(operation) = self.meeting.0.borrow().operation else { return false };
        if call.version == 4 {
            let args = CompoundArgs::decode(&mut call.arguments.clone());
            return args.is_ok_and(|args| args.argarray.iter().any(|op| op.opnum() == operation));
        }
        self.procedure(call.version, call.procedure).is_some_and(|procedure| procedure.name == operation.name())
    }
}

impl Service for Guest {
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
        if !self.is_expected(&call) {
            return self.inner.call(call);
        }
        Answering::Pending(Box::pin(async move {
            let mut changes = self.meeting.0.subscribe();
            self.meeting.0.send_modify(|state| {
                state.arrived.insert(self.server);
            });
            let _ = changes.wait_for(|state| state.arrived.len() >= state.expected).await;
            self.inner.call(call).await
        }))
    }
}
