//! [`Thread`]: the thread that executes a call, and the storage for which it may wait.

use std::cell::Cell;

use vfs::VfsError;

use crate::handle::ExportId;

/// The thread that executes a call.
///
/// A thread waits for the storage of at most one export, so a call never occupies a thread of one export while another
/// export hangs. An operation that needs the storage of another export fails with
/// [`WouldBlock`](crate::call::error::WouldBlock), and continues on a thread of the export that [`needed`](Self::needed)
/// names.
#[derive(Debug)]
pub(crate) struct Thread {
    kind: ThreadKind,
    needed: Cell<Option<ExportId>>,
}

#[derive(Debug, PartialEq, Eq)]
enum ThreadKind {
    Worker,
    /// A thread of an export's pool, or of the common pool.
    Pool(Option<ExportId>),
    Refused,
}

impl Thread {
    /// A worker, which serves connections and must not wait.
    pub(crate) fn worker() -> Self {
        Self { kind: ThreadKind::Worker, needed: Cell::new(None) }
    }

    /// A thread of an export's pool, or of the pool for work that belongs to no export.
    pub(crate) fn of_pool(export: Option<ExportId>) -> Self {
        Self { kind: ThreadKind::Pool(export), needed: Cell::new(None) }
    }

    /// The thread on which a call is answered that no pool has room for. It gets no object of any export.
    pub(crate) fn refused() -> Self {
        Self { kind: ThreadKind::Refused, needed: Cell::new(None) }
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
