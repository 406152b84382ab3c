//! [`Object`]: an object of an export that a call names, with the identity of the caller.

use smallvec::SmallVec;
use vfs::{Attr, Caller, Cred, Handle, Vfs, VfsError};

use crate::{
    export::{Access, Export},
    handle::{HandleKey, SEALED_MAX},
};

/// An object that a call names, and the identity with which the caller acts on it.
pub(crate) struct Object<'a> {
    pub(crate) export: &'a Export,
    pub(crate) handle: Handle,
    pub(super) identity: Cred,
    pub(super) may_block: bool,
    /// The thread belongs to another export.
    pub(super) foreign: bool,
    pub(super) key: &'a HandleKey,
}

impl<'a> Object<'a> {
    pub(crate) fn vfs(&self) -> &'a dyn Vfs {
        &**self.export.vfs()
    }

    pub(crate) fn caller(&self) -> Caller<'_> {
        self.caller_as(&self.identity)
    }

    /// A caller with another identity.
    pub(crate) fn caller_as<'c>(&self, cred: &'c Cred) -> Caller<'c> {
        Caller { cred, may_block: self.may_block }
    }

    /// Refuses changes of a read-only export.
    ///
    /// # Errors
    /// `ReadOnly`.
    pub(crate) fn writable(&self) -> Result<&Self, VfsError> {
        match self.export.options().access {
            Access::ReadWrite => Ok(self),
            Access::ReadOnly => Err(VfsError::ReadOnly),
        }
    }

    pub(crate) fn getattr(&self) -> Result<Attr, VfsError> {
        self.vfs().getattr(&self.caller(), &self.handle)
    }

    /// Whether the thread belongs to another export, so that it does not wait for this object.
    pub(crate) fn is_foreign(&self) -> bool {
        self.foreign
    }

    /// The file handle of another object of the same export.
    pub(crate) fn seal(&self, handle: &Handle) -> SmallVec<[u8; SEALED_MAX]> {
        self.key.seal(self.export.id(), handle)
    }
}
