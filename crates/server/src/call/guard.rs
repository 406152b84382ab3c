//! The checks for conflicting delegations, which every protocol makes before it uses an object.
//!
//! `by` is the client that uses the object: its own delegations do not conflict. Where a file is not delegated, no lock is
//! taken to find that.

use vfs::{Name, VfsError};

use super::{context::Context, core::ServiceState, object::Object};
use crate::{
    handle::FileId,
    sharing::{
        conflict::{Access, Conflict},
        locks::LockClient,
        marks::Changing,
    },
};

impl<S: ServiceState> Context<'_, S> {
    /// Before an object's data or attributes are read.
    ///
    /// # Errors
    /// [`Conflict`].
    pub(crate) fn before_read(&self, object: &Object<'_>, by: Option<LockClient>) -> Result<(), Conflict> {
        self.before(object, by, Access::Read)
    }

    /// Before an object is changed. The change lasts until the returned value is dropped.
    ///
    /// # Errors
    /// [`Conflict`].
    pub(crate) fn before_change(
        &self,
        object: &Object<'_>,
        by: Option<LockClient>,
    ) -> Result<Option<Changing>, Conflict> {
        // The order is that of `sharing/marks.rs`.
        let file = (&object.export.id(), &object.handle);
        let changing = self.core.conflicts.begin_change(&file);
        if let Some(journal) = object.journal() {
            // The change goes on while its operation is pending.
            journal.hold(("changing", file), self.core.conflicts.begin_change(&file));
        }
        self.before(object, by, Access::Write)?;
        Ok(changing)
    }

    /// Ends a change that [`before_change`](Self::before_change) began, before the end of its procedure or operation.
    pub(crate) fn end_change(&self, object: &Object<'_>, changing: Option<Changing>) {
        drop(changing);
        if let Some(journal) = object.journal() {
            journal.release(("changing", (&object.export.id(), &object.handle)));
        }
    }

    /// Before a name is removed from an object, or given to another one.
    ///
    /// # Errors
    /// [`Conflict`].
    pub(crate) fn before_change_of(
        &self,
        dir: &Object<'_>,
        name: &Name,
        by: Option<LockClient>,
    ) -> Result<(), Conflict> {
        if !dir.once("any delegations", || Ok::<_, Conflict>(self.core.conflicts.any()))? {
            return Ok(());
        }
        match dir.vfs().lookup(&dir.caller(), &dir.handle, name) {
            Ok((handle, _)) => self.before(&self.object_of(dir.export, handle), by, Access::Write),
            Err(VfsError::WouldBlock) => Err(Conflict::WouldBlock),
            // The operation itself fails with any other error.
            Err(_) => Ok(()),
        }
    }

    /// Before a file is locked by a protocol without delegations: the holder of one locks locally what it covers. None is
    /// granted until the returned value is dropped.
    ///
    /// # Errors
    /// [`Conflict`].
    pub(crate) fn before_lock(&self, file: &FileId, exclusive: bool) -> Result<Option<Changing>, Conflict> {
        let changing = self.core.conflicts.begin_change(file);
        if self.core.conflicts.may_be_delegated(file) {
            self.core.conflicts.recall(file, None, if exclusive { Access::Write } else { Access::Read })?;
        }
        Ok(changing)
    }

    fn before(&self, object: &Object<'_>, by: Option<LockClient>, access: Access) -> Result<(), Conflict> {
        object.once("before", || {
            let id = object.export.id();
            if !self.core.conflicts.may_be_delegated(&(&id, &object.handle)) {
                return Ok(());
            }
            self.core.conflicts.recall(&(id, object.handle.clone()), by, access)
        })
    }
}
