//! [`Conflicts`]: the check that every protocol makes before it uses a file of which a client may hold a delegation.
//!
//! Read RFC 8881 §10.4.2 for the list of conflicts. The protocol that grants delegations implements [`Recall`]; the others
//! do not know it. [`Marks`] answer for files that are not delegated, so for these no lock is taken and nothing is called.

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
    /// Its data or attributes are read.
    Read,
    /// Its data, attributes or names are changed, or others are kept from reading it.
    Write,
}

/// The reason why a file cannot be used now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Conflict {
    /// The call has to wait to find the file.
    WouldBlock,
    /// Delegations conflict, and have been recalled. The caller shall try again later.
    Recalled,
}

/// A protocol that grants delegations.
pub(crate) trait Recall: Send + Sync {
    /// Recalls the delegations of a file that conflict with its use by a client; `None` is a client without an identity.
    ///
    /// # Errors
    /// [`Conflict::Recalled`]: there were some.
    fn recall(&self, file: &FileId, by: Option<LockClient>, access: Access) -> Result<(), Conflict>;
}

/// The delegations of all files, as far as other protocols need to know them.
#[derive(Default)]
pub(crate) struct Conflicts {
    granted: OnceLock<Granted>,
}

struct Granted {
    marks: Marks,
    by: Weak<dyn Recall>,
}

impl Conflicts {
    /// Sets the protocol that grants delegations, and the marks that it keeps. Only the first call has an effect.
    pub(crate) fn attach(&self, marks: Marks, by: Weak<dyn Recall>) {
        let _ = self.granted.set(Granted { marks, by });
    }

    /// Whether there is any delegation.
    pub(crate) fn any(&self) -> bool {
        self.granted.get().is_some_and(|granted| granted.marks.any())
    }

    /// Whether there may be a delegation of a file. `file` hashes as a [`FileId`].
    pub(crate) fn may_be_delegated(&self, file: &impl Hash) -> bool {
        self.granted.get().is_some_and(|granted| granted.marks.may_be_delegated(file))
    }

    /// Begins a change of a file, during which no delegation of it is granted. `file` hashes as a [`FileId`].
    pub(crate) fn begin_change(&self, file: &impl Hash) -> Option<Changing> {
        self.granted.get().map(|granted| granted.marks.begin_change(file))
    }

    /// Recalls the delegations that conflict with the use of a file.
    ///
    /// # Errors
    /// [`Conflict::Recalled`]: there were some.
    pub(crate) fn recall(&self, file: &FileId, by: Option<LockClient>, access: Access) -> Result<(), Conflict> {
        match self.granted.get().and_then(|granted| granted.by.upgrade()) {
            Some(protocol) => protocol.recall(file, by, access),
            None => Ok(()),
        }
    }
}
