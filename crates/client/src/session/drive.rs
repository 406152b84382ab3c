//! [`drive`]: the one loop that executes an operation of version 4. It owns the deadline and the caller's buffer.
//!
//! Read RFC 8881 §2.10.6 (slots) and §8.4 (recovery) first. An operation is one request whose result a caller waits for. It goes through
//! these states; each arrow on the right leads to the next attempt:
//!
//! ```text
//!            ┌────────────────────────────────────────────────────────────────────────┐
//!            ▼                                                                        │
//!        PREPARE   find the server that has the object, open the file,                │
//!            │     make the request                                                   │
//!            ▼                                                                        │
//!   ┌─▶  ATTEMPT   take a slot, send the request by one connection, wait              │
//!   │        │                                                                        │
//!   │        ▼                                                                        │
//!   │    CLASSIFY                                                                     │
//!   │        ├─ executed, status OK or final ─────────▶ END: results and buffer       │
//!   │        ├─ no connection or slot until the                                       │
//!   │        │  deadline, undecodable answer ─────────▶ END: error and buffer         │
//!   ├────────┼─ connection lost: same slot, another connection                        │
//!   ├────────┼─ SEQUENCE delayed: pause, same slot                                    │
//!   ├────────┼─ connection not bound to the session: bind, pause, same slot           │
//!            ├─ reply not kept for the slot: next sequence ──────────────────────────▶┤
//!            ├─ DELAY, GRACE: pause; the deadline starts again ──────────────────────▶┤
//!            ├─ session or client forgotten, bad slot: new session, reclaim ─────────▶┤
//!            ├─ some file system has moved (4.0): look which, pause ─────────────────▶┤
//!            └─ the operation recovers: stale stateid (open again),                   │
//!               object moved to another server (find it there) ──────────────────────▶┘
//! ```
//!
//! - **A request that keeps its slot is sent again unchanged**: the server may be executing it. Every other attempt is prepared anew.
//! - **The buffer** moves into each attempt and returns with its outcome. If a transport still holds it, the next attempt gets one
//!   of the same length from the pool.
//! - **The deadline** bounds the silence of the server. An answer that asks to wait starts it again, unless it is strict; time that
//!   another request needs to recover does not count.
//! - **Errors** of sessions and connections end here. The caller gets the compound's results, whatever their status.
//!
//! A file is opened by an operation of its own, which the same loop drives during PREPARE.

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

/// An operation, as [`drive`] sees it.
pub(crate) trait Operation: Send + Sync {
    /// Prepares the next attempt.
    ///
    /// # Errors
    /// The operation cannot be attempted; this ends it.
    fn prepare(&mut self, deadline: &Deadline) -> impl Future<Output = Result<Next>> + Send;

    /// The client that sends the request. It is called after [`prepare`](Self::prepare).
    fn client(&self) -> &Arc<Client4>;

    /// The request. It is called after [`prepare`](Self::prepare).
    fn compound(&self) -> &Compound;

    /// Errors from which the operation is to recover.
    fn persistence(&self) -> Persistence {
        Persistence::Full
    }

    /// Whether DELAY and GRACE are waited for. If not, they are answers.
    fn waits(&self) -> bool {
        true
    }

    /// Recovers from an answer that only this operation understands.
    ///
    /// # Errors
    /// It cannot; this ends the operation.
    fn recover(&mut self, _: &CompoundRes, _: &Deadline) -> impl Future<Output = Result<Retry>> + Send {
        async { Ok(Retry::No) }
    }

    /// Releases what other operations may wait for, before a pause.
    fn before_pause(&mut self) {}
}

/// The result of preparing an attempt.
pub(crate) enum Next {
    /// The request is to be sent.
    Send,
    /// The operation needs no request any more.
    Done,
    /// The attempt must be prepared again.
    Again,
}

/// The result of recovering.
pub(crate) enum Retry {
    /// The answer is final.
    No,
    /// The next attempt follows at once.
    Now,
    /// The next attempt follows after a pause.
    AfterPause,
}

/// The errors from which an operation recovers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Persistence {
    /// Only what concerns slots and connections.
    Once,
    /// DELAY and GRACE too, but not the loss of the session: an operation that is itself a part of recovery.
    Delays,
    /// Everything.
    Full,
}

/// The end of an operation: the answer, or none if there was [nothing to send](Next::Done); and the caller's buffer, unless a transport
/// still held it at the deadline.
pub(crate) type Driven = (Result<Option<CompoundRes>>, Option<SharedRegion>);

/// Drives an operation to its end.
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
        // Boxed: what is rare is not to make the future of every operation larger.
        if let ControlFlow::Break(result) = Box::pin(driver.next(operation, outcome, deadline)).await {
            return (result, buffer.map(SharedRegion::from));
        }
    }
}

/// What one attempt leaves to the next.
struct Driver {
    /// The session, or the client of version 4.0, of the last attempt.
    state: Option<ClientState>,
    /// The slot of a request that is to be sent again unchanged.
    slot: Option<TakenSlot>,
    backoff: Backoff,
    /// The server has forgotten the client before.
    lost_before: bool,
    /// Why the last connection was lost.
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
        match self.state.as_ref().expect("it was prepared") {
            ClientState::Session(session) => session.attempt(link, compound, &mut self.slot, buffer, deadline).await,
            ClientState::V40(client) => client.attempt(link, compound, buffer, deadline).await,
        }
    }

    /// Recovers from the outcome of an attempt, or ends the operation.
    async fn next<O: Operation>(&mut self, operation: &mut O, outcome: Outcome, deadline: &Deadline) -> Step {
        let late = |operation: &O| Err(operation.client().link.trunk.first().late(operation.compound().name));
        match outcome {
            Outcome::Answered(res) => return self.answered(operation, res, deadline).await,
            Outcome::Failed(error) => return Step::Break(Err(error)),
            Outcome::Disconnected(error) => {
                tracing::debug!(%error, "the request goes by another connection");
                self.disconnected = Some(error);
                // The task that drives the connection is to notice the loss too: until then the connection seems to exist.
                tokio::task::yield_now().await;
            }
            Outcome::NoConnection => {
                return Step::Break(self.disconnected.take().map_or_else(|| late(operation), Err));
            }
            Outcome::NoSlot => return Step::Break(late(operation)),
            Outcome::SlotBusy => {
                operation.before_pause();
                let (first, name) = (operation.client().link.trunk.first(), operation.compound().name);
                if !self.backoff.put_off(first, name, false, deadline).await {
                    return Step::Break(late(operation));
                }
            }
            Outcome::Unbound => {
                if let Some(ClientState::Session(session)) = &self.state {
                    session.bind_all(&operation.client().link, deadline).await;
                }
                if !self.backoff.waits(deadline).await {
                    return Step::Break(late(operation));
                }
            }
            Outcome::Uncached => {}
            Outcome::Lost | Outcome::Outdated(_) => return self.lost(operation, outcome, deadline).await,
        }
        Step::Continue(())
    }

    /// The server has forgotten the client or its session.
    async fn lost<O: Operation>(&mut self, operation: &mut O, outcome: Outcome, deadline: &Deadline) -> Step {
        let persists = operation.persistence() == Persistence::Full;
        let (client, name) = (operation.client(), operation.compound().name);
        if persists {
            let state = self.state.as_ref().expect("it was attempted");
            if let Err(error) = client.recover(state, deadline).await {
                return Step::Break(Err(error));
            }
        }
        match outcome {
            Outcome::Outdated(res) if persists => return self.answered(operation, res, deadline).await,
            Outcome::Outdated(res) => return Step::Break(Ok(Some(res))),
            _ if !persists => return Step::Break(Err(failure(Nfsstat4::StaleClientid, name))),
            _ => {}
        }
        if self.lost_before && !self.backoff.waits(deadline).await {
            return Step::Break(Err(client.link.trunk.first().late(name)));
        }
        self.lost_before = true;
        Step::Continue(())
    }

    /// The request was executed, and has failed.
    async fn answered<O: Operation>(&mut self, operation: &mut O, res: CompoundRes, deadline: &Deadline) -> Step {
        let persistence = operation.persistence();
        let client = operation.client().clone();
        let first = client.link.trunk.first();
        match res.status {
            _ if persistence == Persistence::Once => {}
            Nfsstat4::Delay | Nfsstat4::Grace if !operation.waits() => {}
            Nfsstat4::Delay | Nfsstat4::Grace => {
                operation.before_pause();
                let is_grace = res.status == Nfsstat4::Grace;
                let name = failed_operation(operation.compound(), &res);
                if self.backoff.put_off(first, name, is_grace, deadline).await {
                    return Step::Continue(());
                }
            }
            _ if persistence != Persistence::Full => {}
            // RFC 7530 §13.1.5: whatever the request is, the server answers this until it has been asked where that is.
            Nfsstat4::LeaseMoved => {
                if let Some(holder) = client.link.holder() {
                    client.link.runtime.spawn(holder.find_moved());
                }
                if !self.backoff.waits(deadline).await {
                    return Step::Break(Err(first.late(operation.compound().name)));
                }
                return Step::Continue(());
            }
            _ => match operation.recover(&res, deadline).await {
                Err(error) => return Step::Break(Err(error)),
                Ok(Retry::No) => {}
                Ok(Retry::Now) => return Step::Continue(()),
                Ok(Retry::AfterPause) => {
                    operation.before_pause();
                    if self.backoff.waits(deadline).await {
                        return Step::Continue(());
                    }
                }
            },
        }
        Step::Break(Ok(Some(res)))
    }
}

/// The name of the operation of a compound that has failed: its last result's.
fn failed_operation(compound: &Compound, res: &CompoundRes) -> &'static str {
    res.resarray.last().map_or(compound.name, |last| last.opnum().name())
}

/// A request that does not change from attempt to attempt.
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
    /// Executes a request that names no stateid and no object that can move.
    ///
    /// # Errors
    /// That of the operation that failed, or what can fail with any call.
    pub async fn run(self: &Arc<Self>, compound: &Compound, deadline: &Deadline) -> Result<Results> {
        self.results(compound, self.fixed(compound, Persistence::Full, deadline).await?)
    }

    /// Executes a request that is a part of recovery.
    ///
    /// # Errors
    /// As of [`run`](Self::run); and what recovery would be needed for.
    pub async fn plain(self: &Arc<Self>, compound: &Compound, deadline: &Deadline) -> Result<Results> {
        self.results(compound, self.fixed(compound, Persistence::Delays, deadline).await?)
    }

    /// Executes a request once, and returns its answer whatever its status is.
    ///
    /// # Errors
    /// It was not answered, or the server has forgotten this client.
    pub async fn ask(self: &Arc<Self>, compound: &Compound, deadline: &Deadline) -> Result<CompoundRes> {
        self.fixed(compound, Persistence::Once, deadline).await
    }

    async fn fixed(
        self: &Arc<Self>,
        compound: &Compound,
        persistence: Persistence,
        deadline: &Deadline,
    ) -> Result<CompoundRes> {
        let (result, _) = drive(&mut Fixed { client: self, compound, persistence }, None, deadline).await;
        result.map(|res| res.expect("it is always sent"))
    }

    /// The results of a request, SEQUENCE's aside.
    ///
    /// # Errors
    /// That of the operation that failed.
    pub fn results(&self, compound: &Compound, res: CompoundRes) -> Result<Results> {
        match res.status {
            Nfsstat4::Ok => {
                let mut results = res.resarray.into_iter();
                if self.minor() > 0 {
                    // That of SEQUENCE.
                    results.next();
                }
                Ok(Results::new(results, compound.name))
            }
            status => Err(failure(status, failed_operation(compound, &res)).on(self.link.trunk.first().server())),
        }
    }
}
