//! [`Trunk`]: the connections of a session, which can be of different transports.
//!
//! A call uses one connection. If that is lost, the same request is sent in the same slot over another connection, and
//! the session makes sure that the server executes it only once (RFC 8881 §2.10.6.2).

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
use rpc::{Answer, CallFailed, ReplyPlan};
use tokio::time::timeout_at;

use super::compound::{Outcome, Request};
use crate::{
    call::{Deadline, Program},
    model::{Caller, Error, ErrorKind, Result},
};

/// The connections of a session. Clones share them.
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

    /// Returns all connections.
    pub fn all(&self) -> Vec<Arc<Program>> {
        self.all.read().clone()
    }

    /// Returns the connection that was made first. Its pool is the pool of the mount.
    pub fn first(&self) -> &Program {
        &self.first
    }

    pub fn pool(&self) -> &Pool {
        self.first.pool()
    }

    /// Returns the bytes of the longest message that all connections can carry.
    pub fn message_max(&self) -> usize {
        self.all.read().iter().map(|program| program.message_max()).min().expect("a trunk must have a connection")
    }

    /// Sends a compound over one connection until the server answers. When that connection is lost, it is made again,
    /// and the request is sent again with the same XID (RFC 7530 §3.1.1). Returns the sink of `plan`, unless the
    /// transport still holds it at the deadline.
    pub async fn call_until_answered(
        &self,
        (request, caller): (&Request<'_>, Option<&Caller>),
        plan: ReplyPlan,
        name: &'static str,
        deadline: &Deadline,
    ) -> (Result<CompoundRes>, Option<SharedRegion>) {
        match self.pick(deadline).await {
            Some(program) => match caller {
                None => program.call(PROC_COMPOUND, name, request, plan, deadline).await,
                Some(_) => program.with_caller(caller).call(PROC_COMPOUND, name, request, plan, deadline).await,
            },
            None => (Err(self.first.timeout_error(name)), plan.sink.map(SharedRegion::from)),
        }
    }

    /// Returns a connection that is established now, or else the first that becomes established; `None` at the deadline, or if the
    /// server refuses all connections for longer than calls wait.
    pub async fn pick(&self, deadline: &Deadline) -> Option<Arc<Program>> {
        match self.ready(deadline) {
            Some(ready) => Some(ready),
            // Boxed, so that this rare case does not enlarge the future of every request.
            None => Box::pin(self.first_connected(deadline)).await,
        }
    }

    /// Returns the first connection that becomes established: see [`pick`](Self::pick).
    async fn first_connected(&self, deadline: &Deadline) -> Option<Arc<Program>> {
        let all = self.all();
        let mut coming: FuturesUnordered<_> = all.iter().map(|program| program.connected()).collect();
        let first = async {
            while let Some(is_connected) = coming.next().await {
                if is_connected {
                    return true;
                }
            }
            false
        };
        match timeout_at(deadline.at(), first).await {
            Ok(true) => all.iter().find(|program| program.is_connected()).or(all.first()).cloned(),
            Ok(false) | Err(_) => None,
        }
    }

    /// Returns the next established connection in round-robin order. Starts to reconnect one that is not established,
    /// for later calls.
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

/// Returns the outcome of a compound that was sent over one connection, once, and the sink of its plan.
pub(crate) fn outcome(
    program: &Program,
    result: std::result::Result<Answer<CompoundRes>, CallFailed>,
    name: &'static str,
) -> (Outcome, Option<SharedRegion>) {
    let (result, sink) = program.returned(result, name);
    match result {
        Ok(res) => (Outcome::Answered(res), sink),
        Err(error) if is_lost(&error) => (Outcome::Disconnected(error), sink),
        Err(error) => (Outcome::Failed(error), sink),
    }
}

fn is_lost(error: &Error) -> bool {
    use rpc::{ClientError, TransportError as Transport};
    matches!(
        error.kind(),
        ErrorKind::Rpc(ClientError::Transport(Transport::Connect(_) | Transport::Lost(_) | Transport::Protocol(_)))
    )
}

/// The timeout of a call in the background, for which no caller waits.
pub(crate) const BACKGROUND: Duration = Duration::from_secs(60);
