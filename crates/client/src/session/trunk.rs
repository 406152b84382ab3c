//! [`Trunk`]: the connections of a session. A call goes by one of them and, if that is lost, by another, the same
//! request in the same slot: the session makes it one (RFC 8881 §2.10.6.2). They can be of different transports.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use buf::{Pool, SharedRegion};
use futures_util::{StreamExt, stream::FuturesUnordered};
use nfs::v4::{PROC_COMPOUND, compound::CompoundRes};
use parking_lot::RwLock;
use rpc::ReplyPlan;
use tokio::time::timeout_at;

use super::compound::{Outcome, Request};
use crate::{
    call::{Deadline, Program},
    model::{Error, ErrorKind, Result},
};

/// The connections of a session; clones share them.
#[derive(Clone, Debug)]
pub(crate) struct Trunk {
    first: Arc<Program>,
    all: Arc<RwLock<Vec<Arc<Program>>>>,
    next: Arc<AtomicUsize>,
}

impl Trunk {
    pub fn new(first: Program) -> Self {
        let first = Arc::new(first);
        Self { all: Arc::new(RwLock::new(vec![first.clone()])), first, next: Arc::default() }
    }

    /// Adds a connection to the same server.
    pub fn add(&self, program: Program) {
        self.all.write().push(Arc::new(program));
    }

    /// All connections.
    pub fn all(&self) -> Vec<Arc<Program>> {
        self.all.read().clone()
    }

    /// The connection that was made first; its pool is that of the mount.
    pub fn first(&self) -> &Program {
        &self.first
    }

    pub fn pool(&self) -> &Pool {
        self.first.pool()
    }

    /// Bytes of the longest message that all of them carry.
    pub fn message_max(&self) -> usize {
        self.all.read().iter().map(|program| program.message_max()).min().expect("a trunk has a connection")
    }

    /// Sends a compound by one connection, once. The sink of `plan` comes back with the outcome, unless a transport still holds it at
    /// the deadline.
    pub async fn call_once(
        &self,
        request: &Request<'_>,
        plan: ReplyPlan,
        name: &'static str,
        deadline: &Deadline,
    ) -> (Outcome, Option<SharedRegion>) {
        let Some(program) = self.pick(deadline).await else {
            return (Outcome::NoConnection, plan.sink.map(SharedRegion::from));
        };
        let (result, sink) = program.call_once(PROC_COMPOUND, name, request, plan, deadline).await;
        match result {
            Ok(res) => (Outcome::Answered(res), sink),
            Err(error) if is_lost(&error) => (Outcome::Disconnected(error), sink),
            Err(error) => (Outcome::Failed(error), sink),
        }
    }

    /// Sends a compound until it is answered, by one connection: made again, it sends it again with the same XID (RFC 7530
    /// §3.1.1). The sink of `plan` comes back, unless the transport still has it at the deadline.
    pub async fn call_by_one(
        &self,
        request: &Request<'_>,
        plan: ReplyPlan,
        name: &'static str,
        deadline: &Deadline,
    ) -> (Result<CompoundRes>, Option<SharedRegion>) {
        match self.pick(deadline).await {
            Some(program) => program.call(PROC_COMPOUND, name, request, plan, deadline).await,
            None => (Err(self.first.late(name)), plan.sink.map(SharedRegion::from)),
        }
    }

    /// A connection that is there now, or the first that comes to be there.
    async fn pick(&self, deadline: &Deadline) -> Option<Arc<Program>> {
        if let Some(ready) = self.ready(deadline) {
            return Some(ready);
        }
        let all = self.all();
        let mut coming: FuturesUnordered<_> = all.iter().map(|program| program.connected()).collect();
        match timeout_at(deadline.at(), coming.next()).await {
            Ok(Some(())) => all.iter().find(|program| program.is_connected()).or(all.first()).cloned(),
            Ok(None) | Err(_) => None,
        }
    }

    /// The next in turn of the connections that are there now. Those that are not shall be, for the calls to come.
    fn ready(&self, deadline: &Deadline) -> Option<Arc<Program>> {
        let all = self.all.read();
        let start = self.next.fetch_add(1, Relaxed);
        let mut in_turn = (0..all.len()).map(|at| &all[start.wrapping_add(at) % all.len()]);
        let mut absent = None;
        let ready = in_turn.find(|program| {
            let there = program.is_connected();
            if !there {
                absent.get_or_insert(*program);
            }
            there
        })?;
        absent.into_iter().for_each(|absent| absent.connect_in_background(deadline.at()));
        Some(ready.clone())
    }
}

fn is_lost(error: &Error) -> bool {
    use rpc::{ClientError, TransportError as Transport};
    matches!(
        error.kind(),
        ErrorKind::Rpc(ClientError::Transport(Transport::Connect(_) | Transport::Lost(_) | Transport::Protocol(_)))
    )
}

/// How long a call that nobody waits for may take.
pub(crate) const BACKGROUND: Duration = Duration::from_secs(60);
