//! Servers that hold their replies back until several of them have a request.

use std::{collections::BTreeSet, sync::Arc};

use nfs::v4::{Opnum4, compound::*};
use rpc::{Answering, Call, Service};
use tokio::sync::watch;
use xdr::Decode;

use super::wrapped::{Wrap, wrapped};

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
        let wrap = |inner| wrapped(inner, Guest { server, meeting: self.clone() });
        services.into_iter().map(wrap).collect()
    }
}

struct Guest {
    server: usize,
    meeting: Meeting,
}

impl Guest {
    /// Reports whether a call has the operation, by NFSv3 or NFSv4.
    fn is_expected(&self, inner: &dyn Service, call: &Call<'_>) -> bool {
        let Some(operation) = self.meeting.0.borrow().operation else { return false };
        if call.version == 4 {
            let args = CompoundArgs::decode(&mut call.arguments.clone());
            return args.is_ok_and(|args| args.argarray.iter().any(|op| op.opnum() == operation));
        }
        inner.procedure(call.version, call.procedure).is_some_and(|procedure| procedure.name == operation.name())
    }
}

impl Wrap for Guest {
    fn call<'a>(&'a self, inner: &'a dyn Service, call: Call<'a>) -> Answering<'a> {
        if !self.is_expected(inner, &call) {
            return inner.call(call);
        }
        Answering::Pending(Box::pin(async move {
            let mut changes = self.meeting.0.subscribe();
            self.meeting.0.send_modify(|state| {
                state.arrived.insert(self.server);
            });
            let _ = changes.wait_for(|state| state.arrived.len() >= state.expected).await;
            inner.call(call).await
        }))
    }
}
