//! A compound that cannot continue on its thread: it waits, and runs again from the operation that must wait.

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

/// A compound that could not continue where it ran last.
pub(super) struct Waiting {
    detached: Detached,
    compound: Compound,
    /// The remaining operations. The first of them must wait.
    rest: VecDeque<Operation>,
    /// The executor on which the first of them runs next.
    executor: Executor,
    /// The journal of the call, if its file system has pending operations.
    journal: Option<Arc<Journal>>,
    /// The number of times that the first of the remaining operations has moved to another thread.
    moves: usize,
}

/// The kind of thread on which a compound runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Executor {
    /// The worker that owns the connection.
    Worker,
    /// A thread that may block: one of an export, or of the pool without an export.
    Pool(Option<ExportId>),
}

/// Runs a compound to its end. It waits for a callback or a pending operation and then resumes on the worker. For
/// storage it resumes on a thread of the export that the next operation needs. If that export has no free thread and no
/// room in its queue, the operation fails with DELAY, and the compound ends.
pub(super) async fn wait(mut waiting: Waiting, bytes: usize) -> Result<Message, AcceptError> {
    let (shared, source) = (waiting.detached.shared().clone(), waiting.detached.source());
    while !waiting.rest.is_empty() {
        if let Some(pending) = waiting.compound.cursor.cb_getattr.take() {
            waiting.compound.cursor.cb_getattr_result = Some(pending.result().await);
        }
        if let Some(journal) = &waiting.journal {
            journal.complete().await;
        }
        let Executor::Pool(export) = waiting.executor else {
            waiting.resume();
            continue;
        };
        waiting = match shared.core.pools.of(export).run(source, bytes, waiting, Waiting::resume).await {
            Outcome::Done(waiting) => waiting,
            Outcome::Refused(mut waiting) => {
                if let Some(operation) = waiting.rest.pop_front() {
                    waiting.compound.fail_unexecuted(&operation, Nfsstat4::Delay);
                }
                waiting.rest.clear();
                waiting
            }
            Outcome::Panicked => {
                tracing::error!("a compound panicked");
                return Err(AcceptError::SystemErr);
            }
        };
    }
    Ok(waiting.compound.finish())
}

impl Waiting {
    /// Creates the value from a run in which the first operation of `rest` could not continue. `thread` says why.
    pub(super) fn new(compound: Compound, rest: VecDeque<Operation>, detached: Detached, thread: &Thread) -> Self {
        let executor = match thread.needs() {
            Needed::Completion => Executor::Worker,
            Needed::Thread(export) => Executor::Pool(export),
        };
        Self { detached, compound, rest, executor, journal: thread.journal().cloned(), moves: 0 }
    }

    /// Executes the remaining operations, up to one that waits for a callback, for a pending operation, or for the
    /// storage of another export. That operation is then the first of `rest`.
    fn resume(&mut self) {
        let pool = match self.executor {
            Executor::Worker => None,
            Executor::Pool(export) => Some(export),
        };
        let thread = Thread::again(pool, self.journal.as_ref());
        let (cx, compound) = (self.detached.context(&thread), &mut self.compound);
        while let Some(operation) = self.rest.pop_front() {
            compound.cursor.operations_left = self.rest.len() as u32;
            thread.reset();
            if compound.step(&cx, &operation, || self.rest.iter().cloned()).is_err() {
                self.journal = thread.journal().cloned();
                if compound.cursor.cb_getattr.is_some() || thread.is_pending() {
                    return self.rest.push_front(operation);
                }
                let next = Executor::Pool(thread.needed());
                let moves = next != self.executor && (pool.is_none() || thread.needed().is_some());
                if moves && self.moves < MOVES_MAX {
                    self.executor = next;
                    // The first move, from the worker to a blocking thread, does not count.
                    self.moves += usize::from(pool.is_some());
                    return self.rest.push_front(operation);
                }
                tracing::error!("the file system returned WouldBlock on a thread that may block");
                compound.fail_unexecuted(&operation, Nfsstat4::ServerFault);
            }
            self.moves = 0;
            if compound.status != Nfsstat4::Ok {
                return self.rest.clear();
            }
        }
    }
}

/// The maximum number of moves between threads for one operation: it refers to at most two exports and waits for one at
/// a time.
const MOVES_MAX: usize = 2;
