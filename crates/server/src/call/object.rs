//! [`Object`]: an object of an export that a call uses, with the identity of the caller.

use std::convert::Infallible;

use smallvec::SmallVec;
use vfs::{Attr, Caller, Cred, Handle, Vfs, VfsError, interpose::Interposed};

use super::journal::{Journal, Journaled};

use crate::{
    export::{Access, Export},
    handle::{HandleKey, SEALED_MAX},
};

/// An object that a call uses, and the identity with which the caller uses it.
pub(crate) struct Object<'a> {
    pub(crate) export: &'a Export,
    pub(crate) handle: Handle,
    pub(super) identity: Cred,
    pub(super) may_block: bool,
    /// `true` if the thread belongs to another export.
    pub(super) foreign: bool,
    /// The back end behind the call's journal, if the export's operations complete later.
    pub(super) journaled: Option<Box<Interposed<Journaled>>>,
    pub(super) key: &'a HandleKey,
}

impl Object<'_> {
    pub(crate) fn vfs(&self) -> &dyn Vfs {
        match &self.journaled {
            None => &**self.export.vfs(),
            Some(journaled) => &**journaled,
        }
    }

    /// Returns the journal of the call, if operations on this object complete later.
    pub(crate) fn journal(&self) -> Option<&Journal> {
        self.journaled.as_ref().map(|journaled| &*journaled.0.journal)
    }

    /// Returns `true` if an operation of the call is pending.
    pub(crate) fn is_pending(&self) -> bool {
        self.journal().is_some_and(Journal::is_pending)
    }

    /// Executes, once in all runs of the call, a check or an effect outside of the file system that precedes an
    /// operation on this object.
    pub(crate) fn once<T: Clone + Send + 'static, E>(
        &self,
        name: &'static str,
        run: impl FnOnce() -> Result<T, E>,
    ) -> Result<T, E> {
        match self.journal() {
            None => run(),
            Some(journal) => journal.once((name, self.export.id(), &self.handle), run),
        }
    }

    /// Returns the write verifier of the time when this call began. A write that was pending may have been lost since then, and its
    /// client must see that the verifier has changed.
    pub(crate) fn write_verifier(&self) -> [u8; 8] {
        let Ok(verifier) = self.once("write verifier", || Ok::<_, Infallible>(self.vfs().write_verifier()));
        verifier
    }

    pub(crate) fn caller(&self) -> Caller<'_> {
        self.caller_as(&self.identity)
    }

    /// Returns a caller with another identity.
    pub(crate) fn caller_as<'c>(&self, cred: &'c Cred) -> Caller<'c> {
        Caller { cred, may_block: self.may_block, completion: None }
    }

    /// Returns `self` if the export can be changed.
    ///
    /// # Errors
    /// Returns `ReadOnly` if the export is read-only.
    pub(crate) fn writable(&self) -> Result<&Self, VfsError> {
        match self.export.options().access {
            Access::ReadWrite => Ok(self),
            Access::ReadOnly => Err(VfsError::ReadOnly),
        }
    }

    pub(crate) fn getattr(&self) -> Result<Attr, VfsError> {
        self.vfs().getattr(&self.caller(), &self.handle)
    }

    /// Returns `true` if the thread belongs to another export, so that operations on this object do not block.
    pub(crate) fn is_foreign(&self) -> bool {
        self.foreign
    }

    /// Returns the file handle of another object of the same export.
    pub(crate) fn seal(&self, handle: &Handle) -> SmallVec<[u8; SEALED_MAX]> {
        self.key.seal(self.export.id(), handle)
    }
}
