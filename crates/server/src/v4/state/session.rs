//! [`Session`]: its channels and the connections that carry them (RFC 8881 §2.10.3, §2.10.4, §18.34, §18.36).

use nfs::v4::*;
pub use rpc::ConnectionId;

use super::back_slots::BackSlots;

/// What a connection can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Connection {
    /// Its name.
    pub id: ConnectionId,
    /// Whether calls can go both ways.
    pub duplex: bool,
}

/// The limits of channels that a server sets. Sizes are in bytes.
#[derive(Clone, Copy, Debug)]
pub struct ChannelLimits {
    /// Largest request.
    pub request_max: u32,
    /// Largest reply.
    pub response_max: u32,
    /// Largest reply that is cached.
    pub response_cached_max: u32,
    /// Most operations of a compound.
    pub operations_max: u32,
    /// Most slots.
    pub slots_max: u32,
}

/// A session. Its slots are in its client's [`Shard`](super::shard::Shard).
#[derive(Debug)]
pub struct Session {
    /// Its name, which begins with its client's.
    pub id: Sessionid4,
    /// Bytes of the reply cache that it was granted, but for those that every session is.
    pub(super) granted: usize,
    /// Another principal than the client's has created it.
    pub(super) is_foreign: bool,
    /// The limits of calls.
    pub fore: ChannelAttrs4,
    /// The limits of callbacks.
    pub back: ChannelAttrs4,
    /// The number of the callback program.
    pub cb_program: u32,
    /// How callbacks are authenticated.
    pub cb_sec: CallbackSecParms4,
    /// The slots of callbacks.
    pub back_slots: BackSlots,
    bound: Vec<Bound>,
    /// Whether the client has ever asked for callbacks by this session.
    wants_back: bool,
}

/// What became of the connections of a session.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BoundChange {
    /// Whether the connection was not one of them.
    pub is_new: bool,
    /// The one that it is not bound to any more.
    pub displaced: Option<ConnectionId>,
}

/// What BIND_CONN_TO_SESSION has bound.
#[derive(Clone, Copy, Debug)]
pub struct Binding {
    /// For which channels.
    pub dir: ChannelDirFromServer4,
    /// And what has changed by that.
    pub change: BoundChange,
}

/// A connection that carries a channel of a session, or both.
#[derive(Clone, Copy, Debug)]
struct Bound {
    id: ConnectionId,
    fore: bool,
    back: bool,
    /// By SEQUENCE alone, which asks for nothing but the fore channel and so is no answer to what the client wants.
    implied: bool,
}

impl Session {
    /// A session as CREATE_SESSION asks for it. The connection carries its calls. It also carries its callbacks if the client wants that,
    /// the connection can, and the client's own principal creates the session: callbacks must not go to somebody else.
    ///
    /// # Errors
    /// - INVAL: no slots or operations.
    /// - TOOSMALL: not even SEQUENCE would fit.
    pub(super) fn new(
        id: Sessionid4,
        args: &CreateSessionArgs,
        (limits, granted): (&ChannelLimits, usize),
        (connection, is_owner): (Connection, bool),
    ) -> Result<Self, Nfsstat4> {
        let fore = negotiate(&args.fore_chan_attrs, limits)?;
        let wants_back = is_owner && wants_back(args);
        // A connection may be bound to the backchannel later, unless the client has left it out altogether.
        if wants_back || args.back_chan_attrs != NO_CHANNEL {
            check_back(&args.back_chan_attrs)?;
        }
        let mut session = Self {
            id,
            granted,
            is_foreign: !is_owner,
            fore,
            back: ChannelAttrs4 { headerpadsize: 0, rdma_ird: None, ..args.back_chan_attrs },
            cb_program: args.cb_program,
            cb_sec: authentication(&args.sec_parms),
            back_slots: BackSlots::new(args.back_chan_attrs.maxrequests),
            bound: Vec::new(),
            wants_back,
        };
        let back = wants_back && connection.duplex;
        session.bound.push(Bound { id: connection.id, fore: true, back, implied: false });
        Ok(session)
    }

    /// Binds a connection that SEQUENCE came by, as it may where state is not protected (§18.34.3).
    pub fn imply(&mut self, connection: ConnectionId) -> BoundChange {
        if self.is_bound(connection) {
            return BoundChange::default();
        }
        self.add(Bound { id: connection, fore: true, back: false, implied: true })
    }

    fn add(&mut self, bound: Bound) -> BoundChange {
        // The oldest has most probably been lost without notice.
        let displaced = (self.bound.len() >= CONNECTIONS_MAX).then(|| self.bound.remove(0).id);
        self.bound.push(bound);
        BoundChange { is_new: true, displaced }
    }

    /// Binds a connection as BIND_CONN_TO_SESSION asks.
    ///
    /// # Errors
    /// INVAL: it is bound otherwise already, or callbacks cannot go by it.
    pub fn bind(&mut self, connection: Connection, wanted: ChannelDirFromClient4) -> Result<Binding, Nfsstat4> {
        use ChannelDirFromClient4::{Back, BackOrBoth, Fore, ForeOrBoth};
        let (fore, back) = match wanted {
            Fore => (true, false),
            Back if connection.duplex => (false, true),
            BackOrBoth if connection.duplex => (true, true),
            Back | BackOrBoth => return Err(Nfsstat4::Inval),
            //= rfc8881-18.34.3-5 rfc8881-18.34.3-6 rfc8881-18.34.3-7 rfc8881-18.34.3-8
            ForeOrBoth => (true, connection.duplex),
        };
        if let Some(bound) = self.bound.iter().find(|bound| bound.id == connection.id && !bound.implied) {
            // What is bound may stay if the client has not demanded anything else (§18.34.3).
            let satisfied = match wanted {
                Fore | Back => (bound.fore, bound.back) == (fore, back),
                ForeOrBoth => bound.fore,
                BackOrBoth => bound.back,
            };
            let binding = Binding { dir: direction(bound.fore, bound.back), change: BoundChange::default() };
            //= rfc8881-18.34.3-9 rfc8881-18.34.3-10
            return if satisfied { Ok(binding) } else { Err(Nfsstat4::Inval) };
        }
        let was_bound = self.is_bound(connection.id);
        self.unbind(connection.id);
        let change = self.add(Bound { id: connection.id, fore, back, implied: false });
        self.wants_back |= back;
        Ok(Binding { dir: direction(fore, back), change: BoundChange { is_new: !was_bound, ..change } })
    }

    /// Forgets a connection.
    pub fn unbind(&mut self, connection: ConnectionId) {
        self.bound.retain(|bound| bound.id != connection);
    }

    /// The connections that carry any channel of it.
    pub fn connections(&self) -> impl Iterator<Item = ConnectionId> + '_ {
        self.bound.iter().map(|bound| bound.id)
    }

    /// Whether a connection carries any channel of it.
    pub fn is_bound(&self, connection: ConnectionId) -> bool {
        self.bound.iter().any(|bound| bound.id == connection)
    }

    /// The connections that callbacks can go by.
    pub fn backchannel(&self) -> impl Iterator<Item = ConnectionId> + '_ {
        self.bound.iter().filter(|bound| bound.back).map(|bound| bound.id)
    }

    /// Whether callbacks should go by it, and cannot.
    pub fn lacks_back(&self) -> bool {
        self.wants_back && self.backchannel().next().is_none()
    }

    /// The `CREATE_SESSION4_FLAG_` bits of its result.
    pub fn flags(&self) -> u32 {
        if self.backchannel().next().is_some() { CREATE_SESSION4_FLAG_CONN_BACK_CHAN } else { 0 }
    }

    /// Whether callbacks go by it.
    pub(super) fn has_path(&self) -> bool {
        self.backchannel().next().is_some() && !self.back_slots.is_lost()
    }
}

/// The first way to authenticate callbacks, of those that the client offers, which is one of ours; without the
/// message that said it.
pub(super) fn authentication(offered: &CallbackSec4) -> CallbackSecParms4 {
    let known = offered.iter().find_map(|way| match way {
        CallbackSecParms4::None => Some(CallbackSecParms4::None),
        CallbackSecParms4::Sys(parms) => {
            let machinename = parms.machinename.detached();
            Some(CallbackSecParms4::Sys(AuthsysParms { machinename, ..parms.clone() }))
        }
        CallbackSecParms4::RpcsecGss(_) => None,
    });
    known.unwrap_or(CallbackSecParms4::None)
}

/// What the server makes of the client's wishes for the fore channel: it lowers, and never raises (§18.36.3).
fn negotiate(wanted: &ChannelAttrs4, limits: &ChannelLimits) -> Result<ChannelAttrs4, Nfsstat4> {
    if wanted.maxrequests == 0 || wanted.maxoperations == 0 {
        return Err(Nfsstat4::Inval);
    }
    if wanted.maxrequestsize < REQUEST_LEN_MIN || wanted.maxresponsesize < RESPONSE_LEN_MIN {
        return Err(Nfsstat4::TooSmall);
    }
    let maxresponsesize = wanted.maxresponsesize.min(limits.response_max);
    Ok(ChannelAttrs4 {
        // No payload is aligned by padding: RDMA places it, and TCP does not need it.
        headerpadsize: 0,
        //= rfc8881-18.36.3-4 rfc8881-18.36.3-9 rfc8881-18.36.3-10 rfc8881-18.36.3-11 rfc8881-18.36.3-12
        //= rfc8881-18.36.3-16
        maxrequestsize: wanted.maxrequestsize.min(limits.request_max),
        maxresponsesize,
        maxresponsesize_cached: wanted.maxresponsesize_cached.min(limits.response_cached_max).min(maxresponsesize),
        maxoperations: wanted.maxoperations.min(limits.operations_max),
        maxrequests: wanted.maxrequests.min(limits.slots_max),
        rdma_ird: None,
    })
}

/// The limits of callbacks are the client's, and stay (§18.36.3); but CB_SEQUENCE and one operation must fit.
fn check_back(wanted: &ChannelAttrs4) -> Result<(), Nfsstat4> {
    if wanted.maxrequests == 0 {
        return Err(Nfsstat4::Inval);
    }
    //= rfc8881-18.36.3-13 rfc8881-18.36.3-15
    let fits = wanted.maxrequestsize >= CB_REQUEST_LEN_MIN
        && wanted.maxresponsesize >= CB_RESPONSE_LEN_MIN
        && wanted.maxoperations >= 2;
    if fits { Ok(()) } else { Err(Nfsstat4::TooSmall) }
}

fn wants_back(args: &CreateSessionArgs) -> bool {
    args.flags & CREATE_SESSION4_FLAG_CONN_BACK_CHAN != 0
}

fn direction(fore: bool, back: bool) -> ChannelDirFromServer4 {
    match (fore, back) {
        (true, true) => ChannelDirFromServer4::Both,
        (false, true) => ChannelDirFromServer4::Back,
        _ => ChannelDirFromServer4::Fore,
    }
}

const NO_CHANNEL: ChannelAttrs4 = ChannelAttrs4 {
    headerpadsize: 0,
    maxrequestsize: 0,
    maxresponsesize: 0,
    maxresponsesize_cached: 0,
    maxoperations: 0,
    maxrequests: 0,
    rdma_ird: None,
};
/// Most connections of a session: a bound on what a client can make us remember.
const CONNECTIONS_MAX: usize = 256;
/// A call without credentials (40 bytes), COMPOUND with an empty tag (12), and SEQUENCE (4 + 32).
const REQUEST_LEN_MIN: u32 = 40 + 12 + 36;
/// The header of a reply (24), COMPOUND results with an empty tag (12), and those of SEQUENCE (8 + 36).
pub(super) const RESPONSE_LEN_MIN: u32 = 24 + 12 + 44;
/// A call without credentials (40), CB_COMPOUND (16), CB_SEQUENCE without referring calls (40), and CB_RECALL of a file
/// handle of the greatest length (4 + 16 + 4 + 4 + 128).
const CB_REQUEST_LEN_MIN: u32 = 40 + 16 + 40 + 156;
/// The header of a reply (24), CB_COMPOUND results (12), those of CB_SEQUENCE (8 + 32) and CB_RECALL (8).
const CB_RESPONSE_LEN_MIN: u32 = 24 + 12 + 40 + 8;
