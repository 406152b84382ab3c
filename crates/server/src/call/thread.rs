//! [`Thread`]: the thread that executes a call, and the storage for which it may block.

use std::{
    cell::{Cell, OnceCell},
    sync::Arc,
};

use vfs::VfsError;

use super::journal::Journal;
use crate::{blocking::Source, handle::ExportId};

/// The thread that executes one run of a call.
///
/// A thread blocks on the storage of at most one export, so a call never occupies a thread of one export while another
/// export hangs. An operation that needs the storage of another export fails with
/// [`WouldBlock`](crate::call::error::WouldBlock), and continues on a thread of the export that
/// [`needed`](Self::needed) returns.
///
/// A call that can be run again gets a [`Journal`] as soon as it uses an export whose operations complete later. In a
/// call that cannot be run again, such operations block.
#[derive(Debug)]
pub(crate) struct Thread {
    kind: ThreadKind,
    needed: Cell<Option<ExportId>>,
    journal: OnceCell<Arc<Journal>>,
    runs_again: bool,
}

/// The event that lets a call continue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Needed {
    /// The completion of the pending operation.
    Completion,
    /// A thread that may block on the storage of this export; for `None`, on work that belongs to no export.
    Thread(Option<ExportId>),
}

#[derive(Debug, PartialEq, Eq)]
enum ThreadKind {
    Worker,
    /// A thread of an export's pool, or of the pool for work that belongs to no export.
    Pool(Option<ExportId>),
    Refused,
}

impl Thread {
    /// Returns a worker, which serves connections and must not block. The call can be run again.
    pub(crate) fn worker() -> Self {
        Self { runs_again: true, ..Self::new(ThreadKind::Worker) }
    }

    /// Returns a thread of an export's pool, or of the pool for work that belongs to no export.
    pub(crate) fn of_pool(export: Option<ExportId>) -> Self {
        Self::new(ThreadKind::Pool(export))
    }

    /// Returns the thread for a call that its pool has refused. The call gets `Delay` for every object.
    pub(crate) fn refused() -> Self {
        Self::new(ThreadKind::Refused)
    }

    /// Returns the thread for another run of a call: the worker, or a thread of a pool.
    pub(crate) fn again(pool: Option<Option<ExportId>>, journal: Option<&Arc<Journal>>) -> Self {
        let thread = Self { runs_again: true, ..pool.map_or_else(Self::worker, Self::of_pool) };
        if let Some(journal) = journal {
            journal.rewind();
            let _ = thread.journal.set(journal.clone());
        }
        thread
    }

    fn new(kind: ThreadKind) -> Self {
        Self { kind, needed: Cell::new(None), journal: OnceCell::new(), runs_again: false }
    }

    /// Returns `true` if an operation is pending. The run is then void, and the call is run again.
    pub(crate) fn is_pending(&self) -> bool {
        self.journal().is_some_and(|journal| journal.is_pending())
    }

    /// Returns the journal of the call, if it has one.
    pub(crate) fn journal(&self) -> Option<&Arc<Journal>> {
        self.journal.get()
    }

    /// Returns the event that lets the call continue.
    pub(crate) fn needs(&self) -> Needed {
        if self.is_pending() { Needed::Completion } else { Needed::Thread(self.needed()) }
    }

    /// Checks that the call may use objects.
    ///
    /// # Errors
    /// Returns `Delay` on a [`refused`](Self::refused) thread.
    pub(crate) fn admit(&self) -> Result<(), VfsError> {
        if self.kind == ThreadKind::Refused { Err(VfsError::Delay) } else { Ok(()) }
    }

    /// Returns the export on whose storage the last operation would have blocked; `None` if it belongs to no export.
    pub(crate) fn needed(&self) -> Option<ExportId> {
        self.needed.get()
    }

    /// Resets [`needed`](Self::needed) to `None`.
    pub(crate) fn reset(&self) {
        self.needed.set(None);
    }

    /// Returns the journal of the call and creates it if there is none. Returns `None` if the call cannot be run again.
    pub(super) fn journal_for(&self, source: impl FnOnce() -> Source) -> Option<&Arc<Journal>> {
        self.runs_again.then(|| self.journal.get_or_init(|| Arc::new(Journal::new(source()))))
    }

    /// Returns `true` if this is a thread of a pool.
    pub(super) fn is_of_pool(&self) -> bool {
        matches!(self.kind, ThreadKind::Pool(_))
    }

    /// Returns `true` if the thread may block on the storage of `export`. Otherwise, [`needed`](Self::needed) returns
    /// `export` from now on.
    pub(super) fn may_wait_for(&self, export: ExportId) -> bool {
        let may = self.kind == ThreadKind::Pool(Some(export));
        if !may {
            self.needed.set(Some(export));
        }
        may
    }
}
