//! [`Context`]: the call that a procedure executes.

use std::{net::SocketAddr, sync::Arc};

use buf::Pool;
use rpc::{Call, Identity, Transport};
use vfs::{Handle, VfsError, interpose::Interposed};

use super::{
    core::{Core, ServiceState},
    journal::Journaled,
    object::Object,
    thread::Thread,
};
use crate::{
    blocking::Source,
    export::{
        Export,
        policy::{Purpose, Requester},
    },
    handle::ExportId,
};

/// One call, with the state `S` of the service that executes it.
pub(crate) struct Context<'a, S = Core> {
    pub(crate) core: &'a Core,
    pub(crate) shared: &'a Arc<S>,
    pub(crate) identity: &'a Identity,
    pub(crate) peer: SocketAddr,
    pub(crate) transport: TransportLimits,
    origin: Origin<'a>,
    /// The source of buffers for payloads.
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

/// The properties of the transport that delivered a call.
#[derive(Clone, Copy)]
pub(crate) struct TransportLimits {
    /// Its name, for exports' `transports` and for logs.
    pub(crate) name: &'static str,
    /// Longest message, in bytes.
    pub(crate) message_max: usize,
    /// Whether it sends ranges of files without copying them.
    pub(crate) file_ranges: bool,
    /// Whether it can lose a message without losing a connection.
    pub(crate) lossy: bool,
}

/// The parts of a call that it needs on another thread.
pub(crate) struct Detached<S = Core> {
    shared: Arc<S>,
    identity: Identity,
    peer: SocketAddr,
    transport: TransportLimits,
    source: Source,
    pool: Pool,
}

impl<'a, S: ServiceState> Context<'a, S> {
    /// The context of a call on the thread that has received it.
    pub(crate) fn of_call(shared: &'a Arc<S>, call: &Call<'a>, thread: &'a Thread) -> Self {
        let caps = call.transport.caps();
        let transport = TransportLimits {
            name: caps.name,
            message_max: caps.message_max,
            file_ranges: call.takes_file_ranges(),
            lossy: caps.lossy,
        };
        let (identity, peer, pool) = (call.caller, call.peer, call.transport.pool());
        let (core, origin) = (shared.core(), Origin::Transport(call.transport));
        Self { core, shared, identity, peer, transport, origin, pool, may_block: false, thread }
    }

    /// The source of the call, for which the blocking pools keep a turn.
    pub(crate) fn source(&self) -> Source {
        match self.origin {
            Origin::Transport(transport) => Source::of(self.peer, transport.peer_user()),
            Origin::Source(source) => source,
        }
    }

    /// Copies what another thread needs of it.
    pub(crate) fn detach(&self) -> Detached<S> {
        Detached {
            shared: self.shared.clone(),
            identity: self.identity.clone(),
            peer: self.peer,
            transport: self.transport,
            source: self.source(),
            pool: self.pool.clone(),
        }
    }

    /// The export with an ID, if the caller may use it.
    ///
    /// # Errors
    /// `Stale`: there is none. `Access`: it does not admit the caller.
    pub(crate) fn export(&self, id: ExportId, purpose: Purpose) -> Result<&'a Export, VfsError> {
        let export = self.core.exports.find(id).ok_or(VfsError::Stale)?;
        export.decide(&self.requester(), purpose)?;
        Ok(export)
    }

    /// The caller, as an export's policy sees it.
    pub(crate) fn requester(&self) -> Requester {
        Requester { peer: self.peer, transport: self.transport.name }
    }

    /// The object of a file handle, if the caller may use its export.
    ///
    /// # Errors
    /// As [`export`](Self::export); `BadHandle` or `Stale` if this server did not make the handle; `Delay` on a thread that
    /// is refused.
    pub(crate) fn object(&self, handle: &[u8]) -> Result<Object<'a>, VfsError> {
        self.object_for(handle, Purpose::Files)
    }

    /// As [`object`](Self::object), for a given purpose.
    ///
    /// # Errors
    /// As [`object`](Self::object).
    pub(crate) fn object_for(&self, handle: &[u8], purpose: Purpose) -> Result<Object<'a>, VfsError> {
        self.thread.admit()?;
        let (id, handle) = self.core.key.open(handle)?;
        Ok(self.object_of(self.export(id, purpose)?, handle))
    }

    /// An object of an export that has admitted the caller.
    pub(crate) fn object_of(&self, export: &'a Export, handle: Handle) -> Object<'a> {
        let caps = export.vfs().caps();
        let may_wait = self.thread.may_wait_for(export.id());
        let may_block = may_wait || !(caps.blocks || caps.completes_later);
        let identity = export.identity(self.identity);
        let foreign = self.may_block && !may_wait;
        let journaled = if caps.completes_later { self.journaled(export) } else { None };
        Object { export, handle, identity, may_block, foreign, journaled, key: &self.core.key }
    }

    /// As [`object_of`](Self::object_of), for a procedure that does not wait for the object: operations that have to wait fail
    /// with `WouldBlock`.
    pub(crate) fn object_at_once(&self, export: &'a Export, handle: Handle) -> Object<'a> {
        Object { journaled: None, ..self.object_of(export, handle) }
    }

    /// The back end with the call's journal, if the call can be run again.
    fn journaled(&self, export: &Export) -> Option<Box<Interposed<Journaled>>> {
        let journal = self.thread.journal_for(|| self.source())?.clone();
        let (vfs, limit) = (export.vfs().clone(), self.core.pools.in_flight(export.id()).clone());
        Some(Box::new(Interposed(Journaled { vfs, export: export.id(), limit, journal })))
    }
}

impl<S: ServiceState> Detached<S> {
    /// The service's state.
    pub(crate) fn shared(&self) -> &Arc<S> {
        &self.shared
    }

    /// The source of the call.
    pub(crate) fn source(&self) -> Source {
        self.source
    }

    /// The source of the call, if it came from a host.
    pub(crate) fn host(&self) -> Source {
        Source::of(self.peer, None)
    }

    /// The context again, on another thread.
    pub(crate) fn context<'a>(&'a self, thread: &'a Thread) -> Context<'a, S> {
        Context {
            core: self.shared.core(),
            shared: &self.shared,
            identity: &self.identity,
            peer: self.peer,
            transport: self.transport,
            origin: Origin::Source(self.source),
            pool: &self.pool,
            may_block: thread.is_of_pool(),
            thread,
        }
    }
}
