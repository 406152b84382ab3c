//! [`Context`]: the call that a procedure executes.

use std::{
    cell::{Cell, OnceCell},
    net::SocketAddr,
    sync::{Arc, Weak},
};

use buf::Pool;
use rpc::{Call, ConnectionTls, Identity, Transport, Xprtsec};
use vfs::{Cred, Handle, VfsError, interpose::Interposed};

use super::{
    core::{Core, ServiceState},
    journal::Journaled,
    object::Object,
    thread::Thread,
};
use crate::{
    blocking::Source,
    clock,
    export::{
        Export,
        policy::{Purpose, Refusal, Requester},
        sec::Sec,
    },
    handle::ExportId,
    identity::users::Resolved,
};

/// A call, with the state `S` of the service that executes it.
pub(crate) struct Context<'a, S = Core> {
    pub(crate) core: &'a Core,
    pub(crate) shared: &'a Arc<S>,
    pub(crate) identity: &'a Identity,
    pub(crate) peer: SocketAddr,
    pub(crate) transport: TransportLimits,
    origin: Origin<'a>,
    /// The buffer pool for payloads.
    pub(crate) pool: &'a Pool,
    /// `true` if the thread may block.
    pub(crate) may_block: bool,
    pub(crate) thread: &'a Thread,
    /// The user as which the caller acts, once it is looked up. It stays the same until the call runs again, so that no
    /// operation fails with `WouldBlock` after another one has made a change.
    resolved: OnceCell<Resolved>,
    /// The export that has admitted the caller for its files last. The decision depends only on the export and on values of
    /// the call that do not change.
    admitted: Cell<Option<ExportId>>,
    /// The purpose for which the call uses files: [`Purpose::Files`] or [`Purpose::Release`].
    purpose: Cell<Purpose>,
}

/// The source of a call.
#[derive(Clone, Copy)]
enum Origin<'a> {
    Transport(&'a Arc<dyn Transport>),
    Detached { source: Source, descriptors: &'a Option<Weak<dyn Transport>>, tls: &'a ConnectionTls },
}

/// The properties of the transport that delivered a call.
#[derive(Clone, Copy)]
pub(crate) struct TransportLimits {
    /// The name of the transport, for the `transports` of exports and for logs.
    pub(crate) name: &'static str,
    /// Maximum length of a message, in bytes.
    pub(crate) message_max: usize,
    /// `true` if the transport sends ranges of files without copying them.
    pub(crate) file_ranges: bool,
    /// `true` if the transport can lose a message without losing the connection.
    pub(crate) lossy: bool,
    /// The protection of the connection by TLS.
    pub(crate) tls: Xprtsec,
}

/// The parts of a call that are needed to continue it on another thread.
pub(crate) struct Detached<S = Core> {
    shared: Arc<S>,
    identity: Identity,
    peer: SocketAddr,
    transport: TransportLimits,
    source: Source,
    /// The transport, if it carries descriptors. Weak, because a call outlives its connection.
    descriptors: Option<Weak<dyn Transport>>,
    tls: ConnectionTls,
    pool: Pool,
    purpose: Purpose,
}

impl<'a, S: ServiceState> Context<'a, S> {
    /// Creates the context of a call on the thread that received it.
    pub(crate) fn of_call(shared: &'a Arc<S>, call: &Call<'a>, thread: &'a Thread) -> Self {
        let caps = call.transport.caps();
        let transport = TransportLimits {
            name: caps.name,
            message_max: caps.message_max,
            file_ranges: call.takes_file_ranges(),
            lossy: caps.lossy,
            tls: call.transport.tls().level(),
        };
        let (identity, peer, pool) = (call.caller, call.peer, call.transport.pool());
        let (core, origin) = (shared.core(), Origin::Transport(call.transport));
        Self {
            core,
            shared,
            identity,
            peer,
            transport,
            origin,
            pool,
            may_block: false,
            thread,
            resolved: OnceCell::new(),
            admitted: Cell::new(None),
            purpose: Cell::new(Purpose::Files),
        }
    }

    /// Makes [`Purpose::Release`] the purpose for which the call uses files. Its caller has checked that the remaining
    /// operations of the call release state, and that the call has the machine credential.
    pub(crate) fn only_releases(&self) {
        self.purpose.set(Purpose::Release);
    }

    /// Returns the source of the call, by which the blocking pools share out their threads.
    pub(crate) fn source(&self) -> Source {
        match self.origin {
            Origin::Transport(transport) => Source::of(self.peer, transport.peer_user()),
            Origin::Detached { source, .. } => source,
        }
    }

    /// Returns the transport of the call, if descriptors can travel with the reply.
    pub(crate) fn descriptors(&self) -> Option<Arc<dyn Transport>> {
        match self.origin {
            Origin::Transport(transport) => transport.carries_descriptors().then(|| transport.clone()),
            Origin::Detached { descriptors, .. } => descriptors.as_ref()?.upgrade(),
        }
    }

    /// Returns the protection of the connection, with the names of the client's certificate.
    pub(crate) fn tls(&self) -> &'a ConnectionTls {
        match self.origin {
            Origin::Transport(transport) => transport.tls(),
            Origin::Detached { tls, .. } => tls,
        }
    }

    /// Copies the parts of the call that another thread needs.
    pub(crate) fn detach(&self) -> Detached<S> {
        Detached {
            shared: self.shared.clone(),
            identity: self.identity.clone(),
            peer: self.peer,
            transport: self.transport,
            source: self.source(),
            descriptors: self.descriptors().map(|transport| Arc::downgrade(&transport)),
            tls: self.tls().clone(),
            pool: self.pool.clone(),
            purpose: self.purpose.get(),
        }
    }

    /// Returns the export with this ID, if the caller may use it.
    ///
    /// # Errors
    /// Returns `Stale` if there is no such export, and the errors of [`Export::decide`].
    pub(crate) fn export(&self, id: ExportId, purpose: Purpose) -> Result<&'a Export, Refusal> {
        let export = self.core.exports.find(id).ok_or(Refusal::Stale)?;
        if purpose != Purpose::Files {
            export.decide(&self.requester(), purpose)?;
        } else if self.admitted.get() != Some(id) {
            export.decide(&self.requester(), self.purpose.get())?;
            self.admitted.set(Some(id));
        }
        Ok(export)
    }

    /// Returns the caller as the rules of an export see it.
    pub(crate) fn requester(&self) -> Requester {
        let (transport, tls) = (self.transport.name, self.transport.tls);
        Requester { peer: self.peer, transport, tls, sec: Sec::of(self.identity) }
    }

    /// Returns the object of a file handle, if the caller may use its export.
    ///
    /// # Errors
    /// Returns the errors of [`export`](Self::export); `BadHandle` or `Stale` if this server did not make the handle;
    /// and `Delay` if the call was refused by its pool ([`Thread::refused`]).
    pub(crate) fn object(&self, handle: &[u8]) -> Result<Object<'a>, VfsError> {
        self.object_for(handle, Purpose::Files)
    }

    /// Returns the object of a file handle like [`object`](Self::object), for the given purpose.
    ///
    /// # Errors
    /// Returns the errors of [`object`](Self::object).
    pub(crate) fn object_for(&self, handle: &[u8], purpose: Purpose) -> Result<Object<'a>, VfsError> {
        self.thread.admit()?;
        // A handle that another program has computed is for data. A lock would conflict with other clients that have the same handle.
        let opened = if purpose == Purpose::Locks { self.core.key.open(handle) } else { self.core.open(handle) };
        let (id, handle) = opened?;
        self.object_of(self.export(id, purpose)?, handle)
    }

    /// Returns an object of an export that has admitted the caller.
    ///
    /// # Errors
    /// Returns `WouldBlock` if the caller must be looked up on a thread that may block, and `Delay` if that fails. Returns no
    /// error if this run has used an object before.
    #[inline]
    pub(crate) fn object_of(&self, export: &'a Export, handle: Handle) -> Result<Object<'a>, VfsError> {
        let identity = export.identity(self.requester().peer.ip(), self.identity, self.resolve(export)?);
        Ok(self.object_as(export, handle, identity))
    }

    fn object_as(&self, export: &'a Export, handle: Handle, identity: Cred) -> Object<'a> {
        let caps = export.vfs().caps();
        let may_wait = self.thread.may_wait_for(export.id());
        let may_block = may_wait || !(caps.blocks || caps.completes_later);
        let foreign = self.may_block && !may_wait;
        let journaled = if caps.completes_later { self.journaled(export) } else { None };
        Object { export, handle, identity, may_block, foreign, journaled, key: &self.core.key }
    }

    /// Returns an object like [`object_of`](Self::object_of), with the anonymous user as the caller. It is for callers
    /// that the export admits only for a purpose without `sec`, and whose claimed identity must not count.
    pub(crate) fn object_as_anonymous(&self, export: &'a Export, handle: Handle) -> Object<'a> {
        self.object_as(export, handle, export.anonymous())
    }

    /// Returns an object like [`object_of`](Self::object_of), with a user as the caller whom the file handle names.
    pub(crate) fn object_as_user(&self, export: &'a Export, handle: Handle, user: Cred) -> Object<'a> {
        self.object_as(export, handle, user)
    }

    /// Returns an object like [`object_of`](Self::object_of), for a procedure that does not wait for it: an operation
    /// that would have to wait fails with `WouldBlock`, and an operation does not become pending.
    ///
    /// # Errors
    /// Returns the errors of [`object_of`](Self::object_of).
    pub(crate) fn object_at_once(&self, export: &'a Export, handle: Handle) -> Result<Object<'a>, VfsError> {
        Ok(Object { journaled: None, ..self.object_of(export, handle)? })
    }

    /// Checks that the user as which the caller acts can be known in this run, for an operation that uses objects of several
    /// exports.
    ///
    /// # Errors
    /// Returns `WouldBlock` if the caller must be looked up on a thread that may block, and `Delay` if that fails.
    pub(crate) fn check_resolved(&self) -> Result<(), VfsError> {
        self.resolved().map(drop)
    }

    /// Returns the user as which the caller acts in an export. A call that has to look it up moves to a thread of that
    /// export.
    fn resolve(&self, export: &Export) -> Result<&Resolved, VfsError> {
        let resolved = self.resolved();
        if resolved == Err(VfsError::WouldBlock) {
            self.thread.may_wait_for(export.id());
        }
        resolved
    }

    fn resolved(&self) -> Result<&Resolved, VfsError> {
        if let Some(resolved) = self.resolved.get() {
            return Ok(resolved);
        }
        let resolved = self.core.users.resolve(self.identity, clock::now, self.may_block)?;
        Ok(self.resolved.get_or_init(|| resolved))
    }

    /// Returns the back end with the call's journal, if the call can be run again.
    fn journaled(&self, export: &Export) -> Option<Box<Interposed<Journaled>>> {
        let journal = self.thread.journal_for(|| self.source())?.clone();
        let (vfs, limit) = (export.vfs().clone(), self.core.pools.in_flight(export.id()).clone());
        Some(Box::new(Interposed(Journaled { vfs, export: export.id(), limit, journal })))
    }
}

impl<S: ServiceState> Detached<S> {
    /// Returns the state of the service.
    pub(crate) fn shared(&self) -> &Arc<S> {
        &self.shared
    }

    /// Returns the source of the call.
    pub(crate) fn source(&self) -> Source {
        self.source
    }

    /// Returns the source of the call without its user: the peer's host.
    pub(crate) fn host(&self) -> Source {
        Source::of(self.peer, None)
    }

    /// Creates the context of the call on another thread.
    pub(crate) fn context<'a>(&'a self, thread: &'a Thread) -> Context<'a, S> {
        Context {
            core: self.shared.core(),
            shared: &self.shared,
            identity: &self.identity,
            peer: self.peer,
            transport: self.transport,
            origin: Origin::Detached { source: self.source, descriptors: &self.descriptors, tls: &self.tls },
            pool: &self.pool,
            may_block: thread.is_of_pool(),
            thread,
            resolved: OnceCell::new(),
            admitted: Cell::new(None),
            purpose: Cell::new(self.purpose),
        }
    }
}
