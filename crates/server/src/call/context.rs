//! What a procedure knows of its call, and the objects that the call names.

use std::{
    cell::{Cell, OnceCell},
    net::SocketAddr,
    sync::Arc,
};

use buf::Pool;
use nfs::v3::{Fattr3, NfsFh3, Nfsstat3, PostOpAttr, WccData};
use parking_lot::Mutex;
use rpc::{Call, Identity, Transport};
use vfs::{Attr, Caller, Change, Cred, Handle, Name, Vfs, VfsError, interpose::Interposed};

use crate::{
    blocking::{Pools, Source},
    call::{
        error::{Fault, WouldBlock},
        journal::{Journal, Journaled},
    },
    export::{Access, Export, Exports},
    handle::{ExportId, HandleKey},
    mount::MountTable,
    nlm::lockd::Lockd,
    recovery::state_dir::StateDir,
    v3::attr,
    v4::Shared4,
};

/// What all services of a server share.
pub(crate) struct Shared {
    pub(crate) exports: Exports,
    pub(crate) pools: Pools,
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
    pub(crate) identity: &'a Identity,
    pub(crate) peer: SocketAddr,
    pub(crate) carrier: Carrier,
    origin: Origin<'a>,
    /// Where buffers for payloads come from.
    pub(crate) pool: &'a Pool,
    /// Whether the thread may wait at all.
    pub(crate) may_block: bool,
    pub(crate) thread: &'a Thread,
}

/// Tells the source of a call.
#[derive(Clone, Copy)]
enum Origin<'a> {
    Transport(&'a Arc<dyn Transport>),
    Source(Source),
}

/// The thread that runs a call, as far as waiting is concerned: one run of it.
///
/// A thread waits for the storage of one export at most, so that a call never holds a thread of one export while another
/// export hangs. An operation that needs the storage of another ends with [`WouldBlock`], and goes on where
/// [`needed`](Self::needed) says.
///
/// A call that can be run again has a [`Journal`] as soon as it uses an export whose operations complete later. In one that cannot
/// be run again, such operations block.
#[derive(Debug)]
pub(crate) struct Thread {
    kind: ThreadKind,
    needed: Cell<Option<ExportId>>,
    journal: OnceCell<Arc<Journal>>,
    runs_again: bool,
}

/// What a call waits for that could not go on in a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Needed {
    /// The completion of the operation that is pending.
    Completion,
    /// A thread that may wait for the storage of this export, or for what belongs to no export.
    Thread(Option<ExportId>),
}

#[derive(Debug, PartialEq, Eq)]
enum ThreadKind {
    Worker,
    /// Of the pool of an export, or of the common one.
    Pool(Option<ExportId>),
    Refused,
}

impl Thread {
    /// One that serves connections, and must not wait. The call can be run again.
    pub(crate) fn worker() -> Self {
        Self { runs_again: true, ..Self::new(ThreadKind::Worker) }
    }

    /// One of the pool of an export, or of that for what belongs to no export.
    pub(crate) fn of_pool(export: Option<ExportId>) -> Self {
        Self::new(ThreadKind::Pool(export))
    }

    /// One on which a call that no pool has room for is answered: it gets no object of any export.
    pub(crate) fn refused() -> Self {
        Self::new(ThreadKind::Refused)
    }

    /// A thread for another run of a call: on the worker, or on a thread of a pool.
    pub(crate) fn again(pool: Option<Option<ExportId>>, journal: Option<&Arc<Journal>>) -> Self {
        let thread = Self { runs_again: true, ..pool.map_or_else(Self::worker, Self::of_pool) };
        if let Some(journal) = journal {
            journal.rewind();
            let _ = thread.journal.set(journal.clone());
        }
        thread
    }

    fn new(kind: ThreadKind) -> Self {
        Self { kind, needed: Cell::new(None), journal: OnceCell::new(), runs_again: false }
    }

    /// Whether an operation is pending: the run is void, and the call is run again.
    pub(crate) fn is_pending(&self) -> bool {
        self.journal().is_some_and(|journal| journal.is_pending())
    }

    /// The journal of the call, if it has one.
    pub(crate) fn journal(&self) -> Option<&Arc<Journal>> {
        self.journal.get()
    }

    /// What a call needs that could not go on.
    pub(crate) fn needs(&self) -> Needed {
        if self.is_pending() { Needed::Completion } else { Needed::Thread(self.needed()) }
    }

    /// # Errors
    /// JUKEBOX on a thread that is [`refused`](Self::refused).
    pub(crate) fn admit(&self) -> Result<(), Nfsstat3> {
        if self.kind == ThreadKind::Refused { Err(Nfsstat3::Jukebox) } else { Ok(()) }
    }

    /// The export whose storage was asked for last and could not be waited for; none if that was of no export.
    pub(crate) fn needed(&self) -> Option<ExportId> {
        self.needed.get()
    }

    /// Forgets what was [`needed`](Self::needed).
    pub(crate) fn reset(&self) {
        self.needed.set(None);
    }

    fn may_wait_for(&self, export: ExportId) -> bool {
        let may = self.kind == ThreadKind::Pool(Some(export));
        if !may {
            self.needed.set(Some(export));
        }
        may
    }
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
    identity: Identity,
    peer: SocketAddr,
    carrier: Carrier,
    source: Source,
    pool: Pool,
}

impl<'a> Context<'a> {
    /// The context of a call on the thread that has received it.
    pub(crate) fn of_call(shared: &'a Arc<Shared>, call: &Call<'a>, thread: &'a Thread) -> Self {
        let caps = call.transport.caps();
        let carrier = Carrier { name: caps.name, message_max: caps.message_max, file_ranges: call.takes_file_ranges() };
        let (identity, peer, pool) = (call.caller, call.peer, call.transport.pool());
        let origin = Origin::Transport(call.transport);
        Self { shared, identity, peer, carrier, origin, pool, may_block: false, thread }
    }

    /// On whose behalf the call runs.
    pub(crate) fn source(&self) -> Source {
        match self.origin {
            Origin::Transport(transport) => Source::of(self.peer, transport.peer_user()),
            Origin::Source(source) => source,
        }
    }

    /// Takes it along to another thread. `shared` is what this context refers to.
    pub(crate) fn detach(&self, shared: &Arc<Shared>) -> Detached {
        Detached {
            shared: shared.clone(),
            identity: self.identity.clone(),
            peer: self.peer,
            carrier: self.carrier,
            source: self.source(),
            pool: self.pool.clone(),
        }
    }
}

impl Detached {
    /// The server's state.
    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// On whose behalf the call runs.
    pub(crate) fn source(&self) -> Source {
        self.source
    }

    /// The source of the call, if it came from a host.
    pub(crate) fn host(&self) -> Source {
        Source::of(self.peer, None)
    }

    /// The context again, on another thread.
    pub(crate) fn context<'a>(&'a self, thread: &'a Thread) -> Context<'a> {
        Context {
            shared: &self.shared,
            identity: &self.identity,
            peer: self.peer,
            carrier: self.carrier,
            origin: Origin::Source(self.source),
            pool: &self.pool,
            may_block: matches!(thread.kind, ThreadKind::Pool(_)),
            thread,
        }
    }
}

impl<'a> Context<'a> {
    /// The object of a file handle, if the caller may use its export at all.
    pub(crate) fn object(&self, handle: &NfsFh3) -> Result<Object<'a>, Nfsstat3> {
        self.thread.admit()?;
        let (id, handle) = self.shared.key.open(handle)?;
        let export = self.shared.exports.find(id).ok_or(Nfsstat3::Stale)?;
        if !export.admits(self.peer, self.carrier.name) {
            return Err(Nfsstat3::Acces);
        }
        Ok(self.object_of(export, handle))
    }

    /// An object of an export that the caller is known to be admitted to.
    pub(crate) fn object_of(&self, export: &'a Export, handle: Handle) -> Object<'a> {
        let caps = export.vfs().caps();
        let may_wait = self.thread.may_wait_for(export.id());
        let may_block = may_wait || !(caps.blocks || caps.completes_later);
        let identity = export.identity(self.identity);
        let foreign = self.may_block && !may_wait;
        let journaled = if caps.completes_later { self.journaled(export) } else { None };
        Object { export, handle, identity, may_block, foreign, journaled, key: &self.shared.key }
    }

    /// As [`object_of`](Self::object_of), for a procedure that does not wait for it at all: where it has to, its operations end with
    /// `WouldBlock`.
    pub(crate) fn object_at_once(&self, export: &'a Export, handle: Handle) -> Object<'a> {
        Object { journaled: None, ..self.object_of(export, handle) }
    }

    /// The back end by way of the call's journal, if the call can be run again.
    fn journaled(&self, export: &Export) -> Option<Box<Interposed<Journaled>>> {
        let thread = self.thread;
        let journal =
            thread.runs_again.then(|| thread.journal.get_or_init(|| Arc::new(Journal::new(self.source()))))?;
        let (vfs, journal, limit) =
            (export.vfs().clone(), journal.clone(), self.shared.pools.in_flight(export.id()).clone());
        Some(Box::new(Interposed(Journaled { vfs, export: export.id(), limit, journal })))
    }
}

/// An object that a call names, and as whom the caller acts on it.
pub(crate) struct Object<'a> {
    pub(crate) export: &'a Export,
    pub(crate) handle: Handle,
    identity: Cred,
    may_block: bool,
    /// The thread belongs to another export.
    foreign: bool,
    /// Of an export whose operations complete later.
    journaled: Option<Box<Interposed<Journaled>>>,
    key: &'a HandleKey,
}

impl<'a> Object<'a> {
    pub(crate) fn vfs(&self) -> &dyn Vfs {
        match &self.journaled {
            None => &**self.export.vfs(),
            Some(journaled) => &**journaled,
        }
    }

    /// The journal of the call, if operations on this object complete later.
    pub(crate) fn journal(&self) -> Option<&Journal> {
        self.journaled.as_ref().map(|journaled| &*journaled.0.journal)
    }

    fn is_pending(&self) -> bool {
        self.journal().is_some_and(Journal::is_pending)
    }

    /// Has an effect outside of the file system, or passes a check, that comes before an operation on this object: once, however
    /// often the call is run.
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

    pub(crate) fn caller(&self) -> Caller<'_> {
        self.caller_as(&self.identity)
    }

    /// Somebody else who acts on it.
    pub(crate) fn caller_as<'c>(&self, cred: &'c Cred) -> Caller<'c> {
        Caller { cred, may_block: self.may_block, completion: None }
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

    /// Its attributes now, where they are to be had: what a failed procedure reports. A thread of another export does not
    /// wait for them: a procedure that names two exports would need both at once.
    pub(crate) fn post_op(&self) -> Result<PostOpAttr, WouldBlock> {
        match self.getattr() {
            Ok(attr) => Ok(Some(self.fattr(&attr))),
            Err(VfsError::WouldBlock) if self.foreign && !self.is_pending() => Ok(None),
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
