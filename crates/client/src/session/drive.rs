//! [`drive`]: the loop that executes every operation of NFSv4. It owns the deadline and the caller's buffer.
//!
//! Read RFC 8881 §2.10.6 (slots) and §8.4 (recovery) first. An operation is one request whose result a caller waits
//! for. It goes through these states; each arrow on the right leads to the next attempt:
//!
//! ```text
//!            ┌────────────────────────────────────────────────────────────────────────┐
//!            ▼                                                                        │
//!        PREPARE   find the server that has the object, open the file,                │
//!            │     build the request                                                  │
//!            ▼                                                                        │
//!   ┌─▶  ATTEMPT   take a slot, send the request over one connection, wait            │
//!   │        │                                                                        │
//!   │        ▼                                                                        │
//!   │    CLASSIFY                                                                     │
//!   │        ├─ executed, status OK or final ─────────▶ END: results and buffer       │
//!   │        ├─ no connection or slot until the                                       │
//!   │        │  deadline, undecodable reply ──────────▶ END: error and buffer         │
//!   ├────────┼─ connection lost: same slot, another connection                        │
//!   ├────────┼─ SEQUENCE delayed: pause, same slot                                    │
//!   ├────────┼─ connection not bound to the session: bind, pause, same slot           │
//!            ├─ reply not cached in the slot: next sequence ─────────────────────────▶┤
//!            ├─ DELAY, GRACE: pause; the timeout restarts ───────────────────────────▶┤
//!            ├─ session or client lost, bad slot: new session, reclaim ──────────────▶┤
//!            ├─ a file system has moved (4.0): find out which, pause ────────────────▶┤
//!            └─ the operation recovers: stale stateid (open again),                   │
//!               object moved to another server (find it there) ──────────────────────▶┘
//! ```
//!
//! - **A request that keeps its slot is sent again unchanged**, because the server may be executing it. Every other
//!   attempt is prepared again.
//! - **The buffer** moves into each attempt and returns with its outcome. If a transport still holds it, the next
//!   attempt uses one of the same length from the pool.
//! - **The deadline** bounds the time that the server is silent. A reply that asks to retry later restarts the timeout,
//!   unless the deadline is strict. The time that another request needs to recover does not count.
//! - **Errors** of sessions and connections are handled here. The caller gets the results of the compound with any
//!   status.
//!
//! A file is opened by an operation of its own, which the same loop executes during PREPARE.

use std::{future::Future, ops::ControlFlow, sync::Arc};

use buf::{Region, SharedRegion};
use nfs::v4::{compound::*, *};

use super::{
    client::{Client4, ClientState},
    compound::{Compound, Outcome, Results, failure},
    requests::TakenSlot,
};
use crate::{
    call::{Backoff, Deadline},
    model::{Error, Result},
};

/// An operation that [`drive`] executes.
pub(crate) trait Operation: Send + Sync {
    /// Prepares the next attempt.
    ///
    /// # Errors
    /// The operation cannot be attempted. It ends with this error.
    fn prepare(&mut self, deadline: &Deadline) -> impl Future<Output = Result<Next>> + Send;

    /// Returns the client that sends the request. It is called after [`prepare`](Self::prepare).
    fn client(&self) -> &Arc<Client4>;

    /// Returns the request. It is called after [`prepare`](Self::prepare).
    fn compound(&self) -> &Compound;

    /// Returns the errors from which the operation is to recover.
    fn persistence(&self) -> Persistence {
        Persistence::Full
    }

    /// Returns `true` if the operation is retried after DELAY and GRACE, `false` if these are final.
    fn retries_delay(&self) -> bool {
        true
    }

    /// Recovers from a reply that only this operation can handle.
    ///
    /// # Errors
    /// Recovery failed. The operation ends with this error.
    fn recover(&mut self, _: &CompoundRes, _: &Deadline) -> impl Future<Output = Result<Retry>> + Send {
        async { Ok(Retry::No) }
    }

    /// Releases, before a pause, locks for which other operations may wait.
    fn before_pause(&mut self) {}
}

/// The result of preparing an attempt.
pub(crate) enum Next {
    /// Send the request.
    Send,
    /// The operation ends without a request.
    Done,
    /// Prepare the attempt again.
    Again,
}

/// The result of recovering.
pub(crate) enum Retry {
    /// The reply is final.
    No,
    /// Attempt again at once.
    Now,
    /// Attempt again after a pause.
    AfterPause,
}

/// The errors from which an operation recovers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Persistence {
    /// Only errors of slots and connections.
    Once,
    /// Also DELAY, GRACE and LEASE_MOVED, but not the loss of the session: for an operation that is itself a part of
    /// recovery.
    Delays,
    /// All errors.
    Full,
}

/// The result of [`drive`]: the reply, or `None` if there was [nothing to send](Next::Done); and the caller's buffer,
/// unless a transport still held it at the deadline.
pub(crate) type Driven = (Result<Option<CompoundRes>>, Option<SharedRegion>);

/// Executes an operation until it ends.
pub(crate) async fn drive<O: Operation>(operation: &mut O, mut buffer: Option<Region>, deadline: &Deadline) -> Driven {
    let wanted = buffer.as_ref().map(|buffer| buffer.len());
    let mut driver =
        Driver { state: None, slot: None, backoff: Backoff::new(), lost_before: false, disconnected: None };
    loop {
        if driver.slot.is_none() {
            match operation.prepare(deadline).await {
                Ok(Next::Send) => driver.state = Some(operation.client().state()),
                Ok(Next::Done) => return (Ok(None), buffer.map(SharedRegion::from)),
                Ok(Next::Again) => continue,
                Err(error) => return (Err(error), buffer.map(SharedRegion::from)),
            }
        }
        let (outcome, back) = driver.attempt(operation, buffer.take(), deadline).await;
        match outcome {
            Outcome::Answered(res) if res.status == Nfsstat4::Ok => return (Ok(Some(res)), back),
            Outcome::Failed(error) => return (Err(error), back),
            _ => {}
        }
        buffer = match (back.map(SharedRegion::into_region), wanted) {
            (Some(Ok(buffer)), _) => Some(buffer),
            (_, Some(len)) => Some(operation.client().link.trunk.pool().take(len).into()),
            (_, None) => None,
        };
        // Boxed, so that rare cases do not enlarge the future of every operation.
        if let ControlFlow::Break(result) = Box::pin(driver.next(operation, outcome, deadline)).await {
            return (result, buffer.map(SharedRegion::from));
        }
    }
}

/// The state that one attempt passes to the next.
struct Driver {
    /// The session, or the client of NFSv4.0, of the last attempt.
    state: Option<ClientState>,
    /// The slot of a request that must be sent again unchanged.
    slot: Option<TakenSlot>,
    backoff: Backoff,
    /// Set when the server has lost the client during this operation.
    lost_before: bool,
    /// The reason for which the last connection was lost.
    disconnected: Option<Error>,
}

type Step = ControlFlow<Result<Option<CompoundRes>>>;

impl Driver {
    async fn attempt<O: Operation>(
        &mut self,
        operation: &O,
        buffer: Option<Region>,
        deadline: &Deadline,
    ) -> (Outcome, Option<SharedRegion>) {
        let (link, compound) = (&operation.client().link, operation.compound());
        match self.state.as_ref().expect("the operation must be prepared before an attempt") {
            ClientState::Session(session) => session.attempt(link, compound, &mut self.slot, buffer, deadline).await,
            ClientState::V40(client) => client.attempt(link, compound, buffer, deadline).await,
        }
    }

    /// Recovers from the outcome of an attempt, or ends the operation.
    async fn next<O: Operation>(&mut self, operation: &mut O, outcome: Outcome, deadline: &Deadline) -> Step {
        let timed_out =
            |operation: &O| Err(operation.client().link.trunk.first().timeout_error(operation.compound().name));
        match outcome {
            Outcome::Answered(res) => return self.answered(operation, res, deadline).await,
            Outcome::Failed(error) => return Step::Break(Err(error)),
            Outcome::Disconnected(error) => {
                tracing::debug!(%error, "connection lost, the request is sent over another one");
                self.disconnected = Some(error);
                // Let the task that drives the connection notice the loss. Until then the connection seems to be
                // established.
                tokio::task::yield_now().await;
            }
            Outcome::NoConnection => {
                return Step::Break(self.disconnected.take().map_or_else(|| timed_out(operation), Err));
            }
            Outcome::NoSlot => return Step::Break(timed_out(operation)),
            Outcome::SlotBusy => {
                operation.before_pause();
                let (first, name) = (operation.client().link.trunk.first(), operation.compound().name);
                if !self.backoff.pause_for_delay(first, name, false, deadline).await {
                    return Step::Break(timed_out(operation));
                }
            }
            Outcome::Unbound => {
                if let Some(ClientState::Session(session)) = &self.state {
                    session.bind_all(&operation.client().link, deadline).await;
                }
                if !self.backoff.pause_before(deadline).await {
                    return Step::Break(timed_out(operation));
                }
            }
            Outcome::Uncached => {}
            Outcome::Lost | Outcome::Outdated(_) => return self.lost(operation, outcome, deadline).await,
        }
        Step::Continue(())
    }

    /// Recovers after the server has lost the client or its session.
    async fn lost<O: Operation>(&mut self, operation: &mut O, outcome: Outcome, deadline: &Deadline) -> Step {
        let persists = operation.persistence() == Persistence::Full;
        let (client, name) = (operation.client(), operation.compound().name);
        if persists {
            let state = self.state.as_ref().expect("the operation must have been attempted");
            if let Err(error) = client.recover(state, deadline).await {
                return Step::Break(Err(error));
            }
        }
        match outcome {
            Outcome::Outdated(res) => return self.answered(operation, res, deadline).await,
            _ if !persists => return Step::Break(Err(failure(Nfsstat4::StaleClientid, name))),
            _ => {}
        }
        if self.lost_before && !self.backoff.pause_before(deadline).await {
            return Step::Break(Err(client.link.trunk.first().timeout_error(name)));
        }
        self.lost_before = true;
        Step::Continue(())
    }

    /// Handles a reply with an error status.
    async fn answered<O: Operation>(&mut self, operation: &mut O, res: CompoundRes, deadline: &Deadline) -> Step {
        let persistence = operation.persistence();
        let client = operation.client().clone();
        let first = client.link.trunk.first();
        match res.status {
            _ if persistence == Persistence::Once => {}
            Nfsstat4::Delay | Nfsstat4::Grace if !operation.retries_delay() => {}
            Nfsstat4::Delay | Nfsstat4::Grace => {
                operation.before_pause();
                let is_grace = res.status == Nfsstat4::Grace;
                let name = failed_operation(operation.compound(), &res);
                if self.backoff.pause_for_delay(first, name, is_grace, deadline).await {
                    return Step::Continue(());
                }
            }
            // RFC 7530 §13.1.5: the server returns this for any request until the client has accessed the file system
            // that has moved. Reclaims are among these requests.
            Nfsstat4::LeaseMoved => {
                if let Some(holder) = client.link.holder() {
                    client.link.runtime.spawn(holder.find_moved());
                }
                if !self.backoff.pause_before(deadline).await {
                    return Step::Break(Err(first.timeout_error(operation.compound().name)));
                }
                return Step::Continue(());
            }
            _ => match operation.recover(&res, deadline).await {
                Err(error) => return Step::Break(Err(error)),
                Ok(Retry::No) => {}
                Ok(Retry::Now) => return Step::Continue(()),
                Ok(Retry::AfterPause) => {
                    operation.before_pause();
                    if self.backoff.pause_before(deadline).await {
                        return Step::Continue(());
                    }
                }
            },
        }
        Step::Break(Ok(Some(res)))
    }
}

/// Returns the name of the operation of a compound that failed, which has the last result.
fn failed_operation(compound: &Compound, res: &CompoundRes) -> &'static str {
    res.resarray.last().map_or(compound.name, |last| last.opnum().name())
}

/// A request that is the same in each attempt.
struct Fixed<'a> {
    client: &'a Arc<Client4>,
    compound: &'a Compound,
    persistence: Persistence,
}

impl Operation for Fixed<'_> {
    async fn prepare(&mut self, _: &Deadline) -> Result<Next> {
        Ok(Next::Send)
    }

    fn client(&self) -> &Arc<Client4> {
        self.client
    }

    fn compound(&self) -> &Compound {
        self.compound
    }

    fn persistence(&self) -> Persistence {
        self.persistence
    }
}

impl Client4 {
    /// Executes a request that contains no stateid and no object that can move.
    ///
    /// # Errors
    /// The error of the operation that failed, or an error of the connection or the session.
    pub async fn run(self: &Arc<Self>, compound: &Compound, deadline: &Deadline) -> Result<Results> {
        self.results(compound, self.fixed(compound, Persistence::Full, deadline).await?)
    }

    /// Executes a request that is a part of recovery. The loss of the session is an error.
    ///
    /// # Errors
    /// The errors of [`run`](Self::run), and the loss of the session.
    pub async fn run_in_recovery(self: &Arc<Self>, compound: &Compound, deadline: &Deadline) -> Result<Results> {
        self.results(compound, self.fixed(compound, Persistence::Delays, deadline).await?)
    }

    /// Executes a request without retries after DELAY, GRACE or the loss of the session. Returns the reply with any
    /// status.
    ///
    /// # Errors
    /// The server did not answer, or it has lost this client.
    pub async fn run_once(self: &Arc<Self>, compound: &Compound, deadline: &Deadline) -> Result<CompoundRes> {
        self.fixed(compound, Persistence::Once, deadline).await
    }

    async fn fixed(
        self: &Arc<Self>,
        compound: &Compound,
        persistence: Persistence,
        deadline: &Deadline,
    ) -> Result<CompoundRes> {
        let (result, _) = drive(&mut Fixed { client: self, compound, persistence }, None, deadline).await;
        result.map(|res| res.expect("a fixed request must be sent"))
    }

    /// Returns the results of a request, without that of SEQUENCE.
    ///
    /// # Errors
    /// The error of the operation that failed.
    pub fn results(&self, compound: &Compound, res: CompoundRes) -> Result<Results> {
        match res.status {
            Nfsstat4::Ok => {
                let mut results = res.resarray.into_iter();
                if self.minor() > 0 {
                    // The first result is that of SEQUENCE.
                    results.next();
                }
                Ok(Results::new(results, compound.name))
            }
            status => Err(failure(status, failed_operation(compound, &res)).on(self.link.trunk.first().server())),
        }
    }
}

#[cfg(test)]
mod tests {
    use nfs::v4::compound::Tag;

    use super::*;

    #[test]
    fn last_result_is_that_of_the_failed_operation() {
        let compound = Compound::new("test");
        let failed = |resarray| CompoundRes { status: Nfsstat4::NoEnt, tag: Tag::default(), resarray };
        let results = vec![Resop4::PutRootFh(Res4::Ok(())), Resop4::failure(Opnum4::Lookup, Nfsstat4::NoEnt)];
        assert_eq!(failed_operation(&compound, &failed(results)), "LOOKUP");
        assert_eq!(failed_operation(&compound, &failed(Vec::new())), "test");
    }
}
