//! What a procedure knows of its call, and the objects that the call names.

use std::{net::SocketAddr, sync::Arc};

use buf::Pool;
use nfs::v3::{Fattr3, NfsFh3, Nfsstat3, PostOpAttr, WccData};
use parking_lot::Mutex;
use rpc::Credential;
use vfs::{Attr, Caller, Change, Cred, Handle, Name, Vfs, VfsError};

use crate::{
    error::{Fault, WouldBlock},
    export::{Access, Export, Exports},
    handle::HandleKey,
    mount::MountTable,
    nlm::lockd::Lockd,
    state_dir::StateDir,
    v3::attr,
    v4::Shared4,
};

/// What all services of a server share.
pub(crate) struct Shared {
    pub(crate) exports: Exports,
    pub(crate) key: HandleKey,
    pub(crate) mounts: Mutex<MountTable>,
    pub(crate) lockd: Lockd,
    pub(crate) v4: Shared4,
    /// Locked as long as anything is served.
    pub(crate) state_dir: Option<StateDir>,
}

/// One call, as a procedure sees it.
#[derive(Clone, Copy)]
pub(crate) struct Context<'a> {
    pub(crate) shared: &'a Arc<Shared>,
    pub(crate) credential: &'a Credential,
    pub(crate) peer: SocketAddr,
    pub(crate) carrier: Carrier,
    /// Where buffers for payloads come from.
    pub(crate) pool: &'a Pool,
    /// Whether the thread may wait for storage.
    pub(crate) may_block: bool,
}

/// What matters of the transport that a call came by.
#[derive(Clone, Copy)]
pub(crate) struct Carrier {
    pub(crate) name: &'static str,
    pub(crate) message_max: usize,
    pub(crate) file_ranges: bool,
}

/// What a call needs to run on another thread.
pub(crate) struct Detached {
    shared: Arc<Shared>,
    credential: Credential,
    peer: SocketAddr,
    carrier: Carrier,
    pool: Pool,
}

impl Context<'_> {
    /// Takes it along to another thread. `shared` is what this context refers to.
    pub(crate) fn detach(&self, shared: &Arc<Shared>) -> Detached {
        Detached {
            shared: shared.clone(),
            credential: self.credential.clone(),
            peer: self.peer,
            carrier: self.carrier,
            pool: self.pool.clone(),
        }
    }
}

impl Detached {
    /// The context again, on a thread that may wait.
    pub(crate) fn context(&self) -> Context<'_> {
        Context {
            shared: &self.shared,
            credential: &self.credential,
            peer: self.peer,
            carrier: self.carrier,
            pool: &self.pool,
            may_block: true,
        }
    }
}

impl<'a> Context<'a> {
    /// The object of a file handle, if the caller may use its export at all.
    pub(crate) fn object(&self, handle: &NfsFh3) -> Result<Object<'a>, Nfsstat3> {
        let (id, handle) = self.shared.key.open(handle)?;
        let export = self.shared.exports.find(id).ok_or(Nfsstat3::Stale)?;
        if !export.admits(self.peer, self.carrier.name) {
            return Err(Nfsstat3::Acces);
        }
        Ok(self.object_of(export, handle))
    }

    /// An object of an export that the caller is known to be admitted to.
    pub(crate) fn object_of(&self, export: &'a Export, handle: Handle) -> Object<'a> {
        let may_block = self.may_block || !export.vfs().caps().blocks;
        let identity = export.identity(self.credential);
        Object { export, handle, identity, may_block, key: &self.shared.key }
    }
}

/// An object that a call names, and as whom the caller acts on it.
pub(crate) struct Object<'a> {
    pub(crate) export: &'a Export,
    pub(crate) handle: Handle,
    identity: Cred,
    may_block: bool,
    key: &'a HandleKey,
}

impl<'a> Object<'a> {
    pub(crate) fn vfs(&self) -> &'a dyn Vfs {
        &**self.export.vfs()
    }

    pub(crate) fn caller(&self) -> Caller<'_> {
        Caller { cred: &self.identity, may_block: self.may_block }
    }

    /// Refuses changes of a read-only export.
    pub(crate) fn writable(&self) -> Result<&Self, Nfsstat3> {
        match self.export.options().access {
            Access::ReadWrite => Ok(self),
            Access::ReadOnly => Err(Nfsstat3::RoFs),
        }
    }

    pub(crate) fn getattr(&self) -> Result<Attr, VfsError> {
        self.vfs().getattr(&self.caller(), &self.handle)
    }

    /// Its attributes on the wire.
    pub(crate) fn fattr(&self, attr: &Attr) -> Fattr3 {
        attr::fattr3(attr, self.export)
    }

    /// A change on the wire.
    pub(crate) fn wcc(&self, change: &Change) -> WccData {
        WccData { before: Some(attr::wcc_attr(&change.before)), after: Some(self.fattr(&change.after)) }
    }

    /// The file handle of another object of the same export.
    pub(crate) fn seal(&self, handle: &Handle) -> NfsFh3 {
        self.key.seal(self.export.id(), handle)
    }

    /// As [`seal`](Self::seal), without an allocation.
    pub(crate) fn seal_bytes(&self, handle: &Handle) -> smallvec::SmallVec<[u8; nfs::v3::FHSIZE3]> {
        self.key.seal_bytes(self.export.id(), handle)
    }

    /// Its attributes now, where they are to be had: what a failed procedure reports.
    pub(crate) fn post_op(&self) -> Result<PostOpAttr, WouldBlock> {
        match self.getattr() {
            Ok(attr) => Ok(Some(self.fattr(&attr))),
            Err(VfsError::WouldBlock) => Err(WouldBlock),
            Err(_) => Ok(None),
        }
    }

    /// As [`post_op`](Self::post_op), for a procedure that would have changed the object. What was before is not known
    /// to have been so at the same instant, so it is not claimed (RFC 1813 §2.6, `wcc_data`).
    pub(crate) fn post_wcc(&self) -> Result<WccData, WouldBlock> {
        Ok(WccData { before: None, after: self.post_op()? })
    }
}

/// A component that a client sent.
pub(crate) fn component(name: &[u8]) -> Result<&Name, Fault> {
    Ok(Name::new(name)?)
}
