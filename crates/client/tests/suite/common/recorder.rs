//! A service that records the requests of NFSv4 before it passes them on.

use std::sync::Arc;

use nfs::v4::{compound::*, *};
use parking_lot::Mutex;
use rpc::{Answering, Call, ConnectionId, Service};
use tokio::time::Instant;
use xdr::Decode;

use super::wrapped::{Wrap, wrapped};

/// A request that has arrived at a server.
#[derive(Clone, Debug)]
pub struct Recorded {
    pub at: Instant,
    pub connection: ConnectionId,
    pub args: CompoundArgs,
}

impl Recorded {
    pub fn has(&self, opnum: Opnum4) -> bool {
        self.args.argarray.iter().any(|op| op.opnum() == opnum)
    }

    pub fn opnums(&self) -> Vec<Opnum4> {
        self.args.argarray.iter().map(Argop4::opnum).collect()
    }

    /// Returns the arguments of SEQUENCE, if the request begins with it.
    pub fn sequence(&self) -> Option<&SequenceArgs> {
        match self.args.argarray.first() {
            Some(Argop4::Sequence(sequence)) => Some(sequence),
            _ => None,
        }
    }

    /// Returns `true` if the request reclaims an open or a lock.
    pub fn reclaims(&self) -> bool {
        self.args.argarray.iter().any(|op| match op {
            Argop4::Open(open) => matches!(open.claim, OpenClaim4::Previous(_)),
            Argop4::Lock(lock) => lock.reclaim,
            _ => false,
        })
    }
}

/// The requests that have arrived at a server, in order.
#[derive(Clone, Default)]
pub struct Record(Arc<Mutex<Vec<Recorded>>>);

impl Record {
    pub fn all(&self) -> Vec<Recorded> {
        self.0.lock().clone()
    }

    /// Returns the requests with this operation.
    pub fn with(&self, opnum: Opnum4) -> Vec<Recorded> {
        self.0.lock().iter().filter(|one| one.has(opnum)).cloned().collect()
    }

    /// Returns the position of the first request for which `is` returns `true`.
    pub fn position(&self, is: impl Fn(&Recorded) -> bool) -> Option<usize> {
        self.0.lock().iter().position(is)
    }

    pub fn len(&self) -> usize {
        self.0.lock().len()
    }

    /// Makes services that record their requests here.
    pub fn wrap(&self, services: Vec<Arc<dyn Service>>) -> Vec<Arc<dyn Service>> {
        services.into_iter().map(|inner| wrapped(inner, self.clone())).collect()
    }
}

impl Wrap for Record {
    fn call<'a>(&'a self, inner: &'a dyn Service, call: Call<'a>) -> Answering<'a> {
        if call.version == 4
            && call.procedure == PROC_COMPOUND
            && let Ok(args) = CompoundArgs::decode(&mut call.arguments.clone())
        {
            self.0.lock().push(Recorded { at: Instant::now(), connection: call.connection, args });
        }
        inner.call(call)
    }
}
