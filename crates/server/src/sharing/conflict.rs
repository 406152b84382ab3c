//! [`Conflicts`]: the check that every protocol makes before it uses a file for which a client may hold a delegation.
//!
//! Read RFC 8881 §10.4.2 for the list of conflicts. The protocol that grants delegations implements [`Recall`], and the
//! other protocols do not depend on it. If [`Marks`] show that a file is not delegated, the check takes no lock and
//! calls nothing.

use std::{
    hash::Hash,
    sync::{OnceLock, Weak},
};

use super::{
    locks::LockClient,
    marks::{Changing, Counted, Counts, Marks},
};
use crate::handle::FileId;

/// The use of a file, as far as it conflicts with delegations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Reading the file's data or attributes.
    Read,
    /// Changing the file's data, attributes or names, or denying reads to others.
    Write,
    /// Setting the file's size.
    Truncate,
}

/// The reason why a file cannot be used now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Conflict {
    /// The look-up of the file would block.
    WouldBlock,
    /// Delegations conflict and have been recalled. The caller should retry later.
    Recalled,
}

/// A protocol that grants delegations.
pub(crate) trait Recall: Send + Sync {
    /// Recalls the delegations of a file that conflict with its use by a client. `by` is `None` for a client without an
    /// identity.
    ///
    /// # Errors
    /// Returns [`Conflict::Recalled`] if there were such delegations.
    fn recall(&self, file: &FileId, by: Option<LockClient>, access: Access) -> Result<(), Conflict>;
}

/// The part of the delegations of all files that other protocols need.
#[derive(Default)]
pub(crate) struct Conflicts {
    granted: OnceLock<Granted>,
    /// The truncations in progress of files that can have layouts.
    truncations: Counts,
    /// The LAYOUTCOMMITs in progress.
    commits: Counts,
}

/// A LAYOUTCOMMIT in progress. The file is not truncated until this is dropped.
#[derive(Debug)]
pub(crate) struct Committing {
    marks: Option<Marks>,
    counted: Counted,
}

struct Granted {
    marks: Marks,
    by: Weak<dyn Recall>,
}

impl Conflicts {
    /// Sets the protocol that grants delegations, and its marks. Only the first call has an effect.
    pub(crate) fn attach(&self, marks: Marks, by: Weak<dyn Recall>) {
        let _ = self.granted.set(Granted { marks, by });
    }

    /// Returns `true` if there is any delegation.
    pub(crate) fn any(&self) -> bool {
        self.granted.get().is_some_and(|granted| granted.marks.any())
    }

    /// Returns `true` if there may be a delegation of `file`, which must hash like a [`FileId`].
    pub(crate) fn may_be_delegated(&self, file: &impl Hash) -> bool {
        self.granted.get().is_some_and(|granted| granted.marks.may_be_delegated(file))
    }

    /// Begins a change of a file. No delegation of it is granted until the returned value is dropped. `file` must hash
    /// like a [`FileId`].
    pub(crate) fn begin_change(&self, file: &impl Hash) -> Option<Changing> {
        self.granted.get().map(|granted| granted.marks.begin_change(file))
    }

    /// Begins to set the size of a file that can have layouts. No layout to write is granted until the returned value is
    /// dropped.
    pub(crate) fn begin_truncation(&self, file: &FileId) -> Option<Changing> {
        let mut changing = self.begin_change(file)?;
        changing.truncation = Some(self.truncations.begin(file));
        Some(changing)
    }

    /// Returns `true` while the size of a file is being set.
    pub(crate) fn is_truncating(&self, file: &FileId) -> bool {
        self.truncations.any(file)
    }

    /// Begins a LAYOUTCOMMIT. A truncation has to wait for it: otherwise the file could get its old size again.
    pub(crate) fn begin_commit(&self, file: &FileId) -> Committing {
        let marks = self.granted.get().map(|granted| granted.marks.clone());
        let counted = self.commits.begin(file);
        marks.iter().for_each(|marks| marks.add(file));
        Committing { marks, counted }
    }

    /// Recalls the delegations that conflict with the use of a file.
    ///
    /// # Errors
    /// Returns [`Conflict::Recalled`] if there were such delegations.
    pub(crate) fn recall(&self, file: &FileId, by: Option<LockClient>, access: Access) -> Result<(), Conflict> {
        match self.granted.get().and_then(|granted| granted.by.upgrade()) {
            Some(protocol) => protocol.recall(file, by, access)?,
            None => return Ok(()),
        }
        let waits = access == Access::Truncate && self.commits.any(file);
        if waits { Err(Conflict::Recalled) } else { Ok(()) }
    }
}

impl Drop for Committing {
    fn drop(&mut self) {
        self.marks.iter().for_each(|marks| marks.remove(self.counted.file()));
    }
}
