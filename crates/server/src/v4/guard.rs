//! What everybody asks before a file is used, whatever protocol he comes by: whether a delegation promises somebody else
//! that it will not be. RFC 8881 §10.4.2 lists what is in conflict; RFC 1813 has JUKEBOX for those who shall come again.
//!
//! Where nobody has a delegation of the file, no lock is taken to say so.

use nfs::{
    v3::Nfsstat3,
    v4::{Clientid4, Nfsstat4},
};
use vfs::{Name, VfsError};

use super::state::{marks::Changing, recallable::Access};
use crate::{
    call::{
        context::{Context, Object},
        error::{Fault, Fault4},
    },
    clock,
    nlm::lockd::LockFile,
};

/// Why a file cannot be used now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Held {
    /// To know which file it is, the call has to wait.
    WouldBlock,
    /// Delegations are in the way, and have been recalled.
    Delegated,
}

impl From<Held> for Fault {
    fn from(held: Held) -> Self {
        match held {
            Held::WouldBlock => Fault::WouldBlock,
            Held::Delegated => Nfsstat3::Jukebox.into(),
        }
    }
}

impl From<Held> for Fault4 {
    fn from(held: Held) -> Self {
        match held {
            Held::WouldBlock => Fault::WouldBlock,
            Held::Delegated => Nfsstat4::Delay.into(),
        }
    }
}

impl Context<'_> {
    /// Before an object's data or attributes are read by a client of version 4, or by anybody else.
    pub(crate) fn before_read(&self, object: &Object<'_>, by: Option<Clientid4>) -> Result<(), Held> {
        self.before(object, by, Access::Read)
    }

    /// Before an object is changed, likewise. The change lasts until what comes back is dropped.
    pub(crate) fn before_change(&self, object: &Object<'_>, by: Option<Clientid4>) -> Result<Changing, Held> {
        // The order is what `marks.rs` says.
        let file = (&object.export.id(), &object.handle);
        let changing = self.shared.v4.marks().begin_change(&file);
        if let Some(journal) = object.journal() {
            // The change goes on while its operation is pending.
            journal.hold(("changing", file), self.shared.v4.marks().begin_change(&file));
        }
        self.before(object, by, Access::Write)?;
        Ok(changing)
    }

    /// A change has been made that [`before_change`](Self::before_change) began, before the end of its procedure or operation.
    pub(crate) fn end_change(&self, object: &Object<'_>, changing: Option<Changing>) {
        drop(changing);
        if let Some(journal) = object.journal() {
            journal.release(("changing", (&object.export.id(), &object.handle)));
        }
    }

    /// Before a name is taken from an object, or given to another one.
    pub(crate) fn before_change_of(&self, dir: &Object<'_>, name: &Name, by: Option<Clientid4>) -> Result<(), Held> {
        if !dir.once("any delegations", || Ok::<_, Held>(self.shared.v4.marks().any()))? {
            return Ok(());
        }
        match dir.vfs().lookup(&dir.caller(), &dir.handle, name) {
            Ok((handle, _)) => self.before(&self.object_of(dir.export, handle), by, Access::Write),
            Err(VfsError::WouldBlock) => Err(Held::WouldBlock),
            // Whatever is wrong, the operation will find it, too.
            Err(_) => Ok(()),
        }
    }

    /// Before a file is locked by another protocol: who has a delegation locks by himself what it covers. None is given
    /// until what comes back is dropped.
    pub(crate) fn before_lock(&self, file: &LockFile, exclusive: bool) -> Result<Changing, Held> {
        let changing = self.shared.v4.marks().begin_change(file);
        if self.shared.v4.marks().may_be_delegated(file) {
            self.recall(file, None, if exclusive { Access::Write } else { Access::Read })?;
        }
        Ok(changing)
    }

    fn before(&self, object: &Object<'_>, by: Option<Clientid4>, access: Access) -> Result<(), Held> {
        object.once("before", || {
            let id = object.export.id();
            if !self.shared.v4.marks().may_be_delegated(&(&id, &object.handle)) {
                return Ok(());
            }
            self.recall(&(id, object.handle.clone()), by, access)
        })
    }

    fn recall(&self, file: &LockFile, by: Option<Clientid4>, access: Access) -> Result<(), Held> {
        let recalled = self.shared.with_locks(|state, locks| state.recall(locks, file, (by, access), clock::now()));
        recalled.map_err(|_| Held::Delegated)
    }
}
