//! The checks for conflicting delegations, which every protocol makes before it uses an object.
//!
//! `by` is the client that uses the object; its own delegations do not conflict. For a file that is not delegated, the
//! check takes no lock.

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
    /// Recalls the delegations that conflict with reading an object's data or attributes.
    ///
    /// # Errors
    /// Returns [`Conflict`] if a delegation conflicts, or if the check would block.
    pub(crate) fn before_read(&self, object: &Object<'_>, by: Option<LockClient>) -> Result<(), Conflict> {
        self.before(object, by, Access::Read)
    }

    /// Recalls the delegations that conflict with a change of an object. No delegation is granted until the returned
    /// value is dropped.
    ///
    /// # Errors
    /// Returns [`Conflict`] if a delegation conflicts, or if the check would block.
    pub(crate) fn before_change(
        &self,
        object: &Object<'_>,
        by: Option<LockClient>,
    ) -> Result<Option<Changing>, Conflict> {
        // `sharing/marks.rs` explains this order.
        let file = (&object.export.id(), &object.handle);
        let changing = self.core.conflicts.begin_change(&file);
        if let Some(journal) = object.journal() {
            // The change lasts while its operation is pending.
            journal.hold(("changing", file), self.core.conflicts.begin_change(&file));
        }
        self.before(object, by, Access::Write)?;
        Ok(changing)
    }

    /// Recalls the delegations and layouts that conflict with setting the size of a file, like
    /// [`before_change`](Self::before_change). No layout to write is granted until the returned value is dropped.
    ///
    /// # Errors
    /// Returns [`Conflict`] if something conflicts, or if the check would block.
    pub(crate) fn before_truncation(
        &self,
        object: &Object<'_>,
        by: Option<LockClient>,
    ) -> Result<Option<Changing>, Conflict> {
        if object.vfs().layouts().is_none() {
            return self.before_change(object, by);
        }
        let file = (object.export.id(), object.handle.clone());
        let changing = self.core.conflicts.begin_truncation(&file);
        if let Some(journal) = object.journal() {
            journal.hold(("changing", (&file.0, &file.1)), self.core.conflicts.begin_truncation(&file));
        }
        self.before(object, by, Access::Truncate)?;
        Ok(changing)
    }

    /// Ends a change begun by [`before_change`](Self::before_change) before its procedure or operation ends.
    pub(crate) fn end_change(&self, object: &Object<'_>, changing: Option<Changing>) {
        drop(changing);
        if let Some(journal) = object.journal() {
            journal.release(("changing", (&object.export.id(), &object.handle)));
        }
    }

    /// Recalls what conflicts with setting the size of the file `name`, if it exists.
    ///
    /// # Errors
    /// Returns [`Conflict`] if something conflicts, or if the lookup would block.
    pub(crate) fn before_truncation_of(
        &self,
        dir: &Object<'_>,
        name: &Name,
        by: Option<LockClient>,
    ) -> Result<(), Conflict> {
        self.before_use_of(dir, name, by, Access::Truncate)
    }

    /// Recalls the delegations of the object `name` before the name is removed or given to another object.
    ///
    /// # Errors
    /// Returns [`Conflict`] if a delegation conflicts, or if the lookup would block.
    pub(crate) fn before_change_of(
        &self,
        dir: &Object<'_>,
        name: &Name,
        by: Option<LockClient>,
    ) -> Result<(), Conflict> {
        self.before_use_of(dir, name, by, Access::Write)
    }

    fn before_use_of(
        &self,
        dir: &Object<'_>,
        name: &Name,
        by: Option<LockClient>,
        access: Access,
    ) -> Result<(), Conflict> {
        if !dir.once("any delegations", || Ok::<_, Conflict>(self.core.conflicts.any()))? {
            return Ok(());
        }
        match dir.vfs().find(&dir.caller(), &dir.handle, name) {
            Ok((handle, _)) => match self.object_of(dir.export, handle) {
                Ok(object) => self.before(&object, by, access),
                Err(_) => Err(Conflict::WouldBlock),
            },
            Err(VfsError::WouldBlock) => Err(Conflict::WouldBlock),
            // On any other error, the operation itself fails.
            Err(_) => Ok(()),
        }
    }

    /// Recalls the delegations that conflict with a lock of a protocol without delegations, because the holder of a
    /// delegation locks locally. No delegation is granted until the returned value is dropped.
    ///
    /// # Errors
    /// Returns [`Conflict`] if a delegation conflicts, or if the check would block.
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
