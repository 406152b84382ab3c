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
    marks::{Changing, Marks},
};
use crate::handle::FileId;

/// The use of a file, as far as it conflicts with delegations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Reading the file's data or attributes.
    Read,
    /// Changing the file's data, attributes or names, or denying reads to others.
    Write,
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

    /// Recalls the delegations that conflict with the use of a file.
    ///
    /// # Errors
    /// Returns [`Conflict::Recalled`] if there were such delegations.
    pub(crate) fn recall(&self, file: &FileId, by: Option<LockClient>, access: Access) -> Result<(), Conflict> {
        match self.granted.get().and_then(|granted| granted.by.upgrade()) {
            Some(protocol) => protocol.recall(file, by, access),
            None => Ok(()),
        }
    }
}
