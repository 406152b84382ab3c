//! A compound that could not go on where it ran last: it waits, and runs again from the operation that has to wait.

use std::{collections::VecDeque, sync::Arc};

use nfs::v4::Nfsstat4;
use rpc::AcceptError;
use xdr::Message;

use super::{Compound, Operation};
use crate::{
    blocking::Outcome,
    call::{
        journal::Journal,
        thread::{Needed, Thread},
    },
    handle::ExportId,
    v4::service::Detached,
};

/// A compound that could not go on where it ran last.
pub(super) struct Waiting {
    detached: Detached,
    compound: Compound,
    /// The operations that are left; the first is the one that has to wait.
    rest: VecDeque<Operation>,
    /// Where the first of them runs next.
    place: Runs,
    /// What it has done so far, if its file system completes operations later.
    journal: Option<Arc<Journal>>,
    /// How often the first of the operations that are left has moved.
    moves: usize,
}

/// Where a compound runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Runs {
    /// On the worker that owns the connection.
    InPlace,
    /// On a thread that may wait for an export, or for what belongs to none.
    InPool(Option<ExportId>),
}

/// Goes on where that is possible: for a callback, and for an operation that is pending, when the answer is
/// here; for storage on a thread of the export that the next operation needs. An operation for which that export has no room is
/// answered with DELAY, and ends the compound.
pub(super) async fn wait(mut waiting: Waiting, bytes: usize) -> Result<Message, AcceptError> {
    let (shared, source) = (waiting.detached.shared().clone(), waiting.detached.source());
    while !waiting.rest.is_empty() {
        if let Some(pending) = waiting.compound.cursor.cb_getattr.take() {
            waiting.compound.cursor.cb_getattr_result = Some(pending.result().await);
        }
        if let Some(journal) = &waiting.journal {
            journal.complete().await;
        }
        let Runs::InPool(export) = waiting.place else {
            waiting.go_on();
            continue;
        };
        waiting = match shared.core.pools.of(export).run(source, bytes, waiting, Waiting::go_on).await {
            Outcome::Done(waiting) => waiting,
            Outcome::Refused(mut waiting) => {
                if let Some(operation) = waiting.rest.pop_front() {
                    waiting.compound.give_up(&operation, Nfsstat4::Delay);
                }
                waiting.rest.clear();
                waiting
            }
            Outcome::Panicked => {
                tracing::error!("a compound has panicked");
                return Err(AcceptError::SystemErr);
            }
        };
    }
    Ok(waiting.compound.finish())
}

impl Waiting {
    /// What `thread` tells about the run in which the first operation of `rest` could not go on.
    pub(super) fn new(compound: Compound, rest: VecDeque<Operation>, detached: Detached, thread: &Thread) -> Self {
        let place = match thread.needs() {
            Needed::Completion => Runs::InPlace,
            Needed::Thread(export) => Runs::InPool(export),
        };
        Self { detached, compound, rest, place, journal: thread.journal().cloned(), moves: 0 }
    }

    /// Executes the operations that are left, up to one that waits for a client, for a completion, or for the storage of another
    /// export. That one is the first of what is left then.
    fn go_on(&mut self) {
        let pool = match self.place {
            Runs::InPlace => None,
            Runs::InPool(export) => Some(export),
        };
        let thread = Thread::again(pool, self.journal.as_ref());
        let (cx, compound) = (self.detached.context(&thread), &mut self.compound);
        while let Some(operation) = self.rest.pop_front() {
            compound.cursor.behind = self.rest.len() as u32;
            thread.reset();
            if compound.step(&cx, &operation).is_err() {
                self.journal = thread.journal().cloned();
                if compound.cursor.cb_getattr.is_some() || thread.is_pending() {
                    return self.rest.push_front(operation);
                }
                let next = Runs::InPool(thread.needed());
                let moves = next != self.place && (pool.is_none() || thread.needed().is_some());
                if moves && self.moves < MOVES_MAX {
                    self.place = next;
                    // From the worker to a thread that may wait it moves once.
                    self.moves += usize::from(pool.is_some());
                    return self.rest.push_front(operation);
                }
                tracing::error!("the file system would not wait although it may");
                compound.give_up(&operation, Nfsstat4::ServerFault);
            }
            self.moves = 0;
            if compound.status != Nfsstat4::Ok {
                return self.rest.clear();
            }
        }
    }
}

/// Threads to which one operation can move, one after the other: it names two exports at most, and waits for one at a time.
const MOVES_MAX: usize = 2;
