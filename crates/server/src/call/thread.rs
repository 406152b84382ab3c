//! [`Thread`]: the thread that executes a call, and the storage for which it may wait.

use std::{
    cell::{Cell, OnceCell},
    sync::Arc,
};

use vfs::VfsError;

use super::journal::Journal;
use crate::{blocking::Source, handle::ExportId};

/// The thread that executes one run of a call.
///
/// A thread waits for the storage of at most one export, so a call never occupies a thread of one export while another
/// export hangs. An operation that needs the storage of another export fails with
/// [`WouldBlock`](crate::call::error::WouldBlock), and continues on a thread of the export that [`needed`](Self::needed)
/// names.
///
/// A call that can be run again has a [`Journal`] as soon as it uses an export whose operations complete later. In one that cannot
/// be run again, such operations block.
#[derive(Debug)]
pub(crate) struct Thread {
    kind: ThreadKind,
    needed: Cell<Option<ExportId>>,
    journal: OnceCell<Arc<Journal>>,
    runs_again: bool,
}

/// The event for which a call waits that could not go on in a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Needed {
    /// The completion of the operation that is pending.
    Completion,
    /// A thread that may wait for the storage of this export, or for what belongs to no export.
    Thread(Option<ExportId>),
}

#[derive(Debug, PartialEq, Eq)]
enum ThreadKind {
    Worker,
    /// A thread of an export's pool, or of the common pool.
    Pool(Option<ExportId>),
    Refused,
}

impl Thread {
    /// A worker, which serves connections and must not wait. The call can be run again.
    pub(crate) fn worker() -> Self {
        Self { runs_again: true, ..Self::new(ThreadKind::Worker) }
    }

    /// A thread of an export's pool, or of the pool for work that belongs to no export.
    pub(crate) fn of_pool(export: Option<ExportId>) -> Self {
        Self::new(ThreadKind::Pool(export))
    }

    /// The thread on which a call is answered that no pool has room for. It gets no object of any export.
    pub(crate) fn refused() -> Self {
        Self::new(ThreadKind::Refused)
    }

    /// A thread for another run of a call: on the worker, or on a thread of a pool.
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

    /// Whether an operation is pending: the run is void, and the call is run again.
    pub(crate) fn is_pending(&self) -> bool {
        self.journal().is_some_and(|journal| journal.is_pending())
    }

    /// The journal of the call, if it has one.
    pub(crate) fn journal(&self) -> Option<&Arc<Journal>> {
        self.journal.get()
    }

    /// The event that a call waits for that could not go on.
    pub(crate) fn needs(&self) -> Needed {
        if self.is_pending() { Needed::Completion } else { Needed::Thread(self.needed()) }
    }

    /// # Errors
    /// `Delay` on a thread that is [`refused`](Self::refused).
    pub(crate) fn admit(&self) -> Result<(), VfsError> {
        if self.kind == ThreadKind::Refused { Err(VfsError::Delay) } else { Ok(()) }
    }

    /// The export whose storage was needed last and could not be waited for; `None` if the storage belongs to no export.
    pub(crate) fn needed(&self) -> Option<ExportId> {
        self.needed.get()
    }

    /// Clears [`needed`](Self::needed).
    pub(crate) fn reset(&self) {
        self.needed.set(None);
    }

    /// The journal of the call, which is made if it has none, unless the call cannot be run again.
    pub(super) fn journal_for(&self, source: impl FnOnce() -> Source) -> Option<&Arc<Journal>> {
        self.runs_again.then(|| self.journal.get_or_init(|| Arc::new(Journal::new(source()))))
    }

    /// Whether it is a thread of a pool.
    pub(super) fn is_of_pool(&self) -> bool {
        matches!(self.kind, ThreadKind::Pool(_))
    }

    /// Whether it may wait for an export's storage. If not, the export is [`needed`](Self::needed).
    pub(super) fn may_wait_for(&self, export: ExportId) -> bool {
        let may = self.kind == ThreadKind::Pool(Some(export));
        if !may {
            self.needed.set(Some(export));
        }
        may
    }
}
