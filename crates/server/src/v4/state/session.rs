//! [`Session`]: its channels and the connections that are bound to them (RFC 8881 §2.10.3, §2.10.4, §18.34, §18.36).

use nfs::v4::*;
pub use rpc::ConnectionId;
use rpc::Xprtsec;

use super::back_slots::BackSlots;

/// The capabilities of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Connection {
    /// Its ID.
    pub id: ConnectionId,
    /// `true` if calls can go in both directions.
    pub duplex: bool,
    /// Its protection by TLS.
    pub tls: Xprtsec,
}

/// The server's limits of channels. Sizes are in bytes.
#[derive(Clone, Copy, Debug)]
pub struct ChannelLimits {
    /// The maximum size of a request.
    pub request_max: u32,
    /// The maximum size of a reply.
    pub response_max: u32,
    /// The maximum size of a cached reply.
    pub response_cached_max: u32,
    /// The maximum number of operations of a compound.
    pub operations_max: u32,
    /// The maximum number of slots.
    pub slots_max: u32,
}

/// A session. Its slots are in its client's [`Shard`](super::shard::Shard).
#[derive(Debug)]
pub struct Session {
    /// Its ID, which begins with the client ID.
    pub id: Sessionid4,
    /// The bytes of the reply cache that were granted to it, beyond those that every session gets.
    pub(super) granted: usize,
    /// `true` if another principal than the client's created it.
    pub(super) is_foreign: bool,
    /// The limits of the fore channel.
    pub fore: ChannelAttrs4,
    /// The limits of the backchannel.
    pub back: ChannelAttrs4,
    /// The number of the callback program.
    pub cb_program: u32,
    /// The credentials of callbacks; `None` if the server supports none that the client offers.
    pub cb_sec: Option<CallbackSecParms4>,
    /// The slots of the backchannel.
    pub back_slots: BackSlots,
    bound: Vec<Bound>,
    /// The strongest protection of a connection that was ever bound. Callbacks use no connection with a weaker one.
    tls: Xprtsec,
    /// `true` if the client has asked for callbacks over this session.
    wants_backchannel: bool,
}

/// A change of the connections of a session.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BoundChange {
    /// `true` if the connection was not bound before.
    pub is_new: bool,
    /// The connection that was unbound to make room.
    pub displaced: Option<ConnectionId>,
}

/// The result of BIND_CONN_TO_SESSION.
#[derive(Clone, Copy, Debug)]
pub struct Binding {
    /// The channels to which the connection is bound.
    pub dir: ChannelDirFromServer4,
    /// The change of the session's connections.
    pub change: BoundChange,
}

/// A connection that is bound to one or both channels of a session.
#[derive(Clone, Copy, Debug)]
struct Bound {
    id: ConnectionId,
    fore: bool,
    back: bool,
    tls: Xprtsec,
    /// `true` if only SEQUENCE bound the connection, and only to the fore channel. A later BIND_CONN_TO_SESSION may
    /// change that.
    implied: bool,
}

impl Session {
    /// Creates a session for CREATE_SESSION. The connection is bound to the fore channel. It is also bound to the
    /// backchannel if the client wants that, the connection supports it, and the client's own principal creates the
    /// session: callbacks must not go to another principal.
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
        let wants_backchannel = is_owner && wants_backchannel(args);
        // A connection may be bound to the backchannel later, unless the client omitted the backchannel altogether.
        if wants_backchannel || args.back_chan_attrs != NO_CHANNEL {
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
            tls: connection.tls,
            wants_backchannel,
        };
        //= rfc8881-2.10.3-1
        let back = wants_backchannel && connection.duplex;
        session.bound.push(Bound { id: connection.id, fore: true, back, tls: connection.tls, implied: false });
        Ok(session)
    }

    /// Binds a connection on which SEQUENCE arrived. This is permitted if the client's state is not protected
    /// (§18.34.3).
    pub fn bind_implicitly(&mut self, Connection { id, tls, .. }: Connection) -> BoundChange {
        if self.is_bound(id) {
            return BoundChange::default();
        }
        self.add(Bound { id, fore: true, back: false, tls, implied: true })
    }

    fn add(&mut self, bound: Bound) -> BoundChange {
        // The oldest connection was most probably lost without notice.
        let displaced = (self.bound.len() >= CONNECTIONS_MAX).then(|| self.bound.remove(0).id);
        self.bound.push(bound);
        self.tls = self.tls.max(bound.tls);
        BoundChange { is_new: true, displaced }
    }

    /// Binds a connection for BIND_CONN_TO_SESSION. A connection with a weaker protection than another one has had does not
    /// carry callbacks, because they would reveal what the client sends with that protection.
    ///
    /// # Errors
    /// INVAL if it is already bound to other channels, or cannot carry callbacks.
    pub fn bind(&mut self, connection: Connection, wanted: ChannelDirFromClient4) -> Result<Binding, Nfsstat4> {
        use ChannelDirFromClient4::{Back, BackOrBoth, Fore, ForeOrBoth};
        let duplex = connection.duplex && connection.tls >= self.tls;
        let (fore, back) = match wanted {
            Fore => (true, false),
            Back if duplex => (false, true),
            BackOrBoth if duplex => (true, true),
            Back | BackOrBoth => return Err(Nfsstat4::Inval),
            //= rfc8881-18.34.3-5 rfc8881-18.34.3-6 rfc8881-18.34.3-7 rfc8881-18.34.3-8
            //= rfc8881-2.10.3.1-1 rfc8881-2.10.5-1 rfc8881-2.10.5-2 rfc8881-2.10.5-4
            ForeOrBoth => (true, duplex),
        };
        if let Some(bound) = self.bound.iter().find(|bound| bound.id == connection.id && !bound.implied) {
            // An existing binding that satisfies the request stays (§18.34.3).
            let has_back = bound.back && duplex;
            let satisfied = match wanted {
                Fore | Back => (bound.fore, has_back) == (fore, back),
                ForeOrBoth => bound.fore,
                BackOrBoth => has_back,
            };
            let binding = Binding { dir: direction(bound.fore, has_back), change: BoundChange::default() };
            //= rfc8881-18.34.3-9 rfc8881-18.34.3-10
            return if satisfied { Ok(binding) } else { Err(Nfsstat4::Inval) };
        }
        let was_bound = self.is_bound(connection.id);
        self.unbind(connection.id);
        let change = self.add(Bound { id: connection.id, fore, back, tls: connection.tls, implied: false });
        self.wants_backchannel |= back;
        Ok(Binding { dir: direction(fore, back), change: BoundChange { is_new: !was_bound, ..change } })
    }

    /// Unbinds a connection.
    pub fn unbind(&mut self, connection: ConnectionId) {
        self.bound.retain(|bound| bound.id != connection);
    }

    /// Returns the strongest protection that a connection of the session has had.
    pub fn tls(&self) -> Xprtsec {
        self.tls
    }

    /// Returns the connections that are bound to any channel.
    pub fn connections(&self) -> impl Iterator<Item = ConnectionId> + '_ {
        self.bound.iter().map(|bound| bound.id)
    }

    /// Returns `true` if a connection is bound to any channel.
    pub fn is_bound(&self, connection: ConnectionId) -> bool {
        self.bound.iter().any(|bound| bound.id == connection)
    }

    /// Returns the connections that are bound to the backchannel, without those whose protection is too weak by now.
    pub fn backchannel(&self) -> impl Iterator<Item = ConnectionId> + '_ {
        self.bound.iter().filter(|bound| bound.back && bound.tls >= self.tls).map(|bound| bound.id)
    }

    /// Returns `true` if the client wants callbacks and no connection is bound to the backchannel.
    pub fn lacks_backchannel(&self) -> bool {
        self.wants_backchannel && self.backchannel().next().is_none()
    }

    /// Returns the `CREATE_SESSION4_FLAG_` bits of its result.
    pub fn flags(&self) -> u32 {
        if self.backchannel().next().is_some() { CREATE_SESSION4_FLAG_CONN_BACK_CHAN } else { 0 }
    }

    /// Returns `true` if callbacks can be sent over this session.
    pub(super) fn has_callback_path(&self) -> bool {
        self.cb_sec.is_some() && self.backchannel().next().is_some() && !self.back_slots.is_lost()
    }
}

/// Returns the first supported credentials for callbacks that the client offers, or `None` if it offers only others. A
/// client that makes no offer gets callbacks without credentials. The result does not keep the message that it was
/// decoded from.
pub(super) fn authentication(offered: &CallbackSec4) -> Option<CallbackSecParms4> {
    let known = offered.iter().find_map(|way| match way {
        CallbackSecParms4::None => Some(CallbackSecParms4::None),
        CallbackSecParms4::Sys(parms) => {
            let machinename = parms.machinename.detached();
            Some(CallbackSecParms4::Sys(AuthsysParms { machinename, ..parms.clone() }))
        }
        CallbackSecParms4::RpcsecGss(_) => None,
    });
    //= rfc8881-2.10.8.2-1
    known.or_else(|| offered.is_empty().then_some(CallbackSecParms4::None))
}

/// Negotiates the attributes of the fore channel: the server lowers the client's values and never raises them
/// (§18.36.3).
fn negotiate(wanted: &ChannelAttrs4, limits: &ChannelLimits) -> Result<ChannelAttrs4, Nfsstat4> {
    if wanted.maxrequests == 0 || wanted.maxoperations == 0 {
        return Err(Nfsstat4::Inval);
    }
    if wanted.maxrequestsize < REQUEST_LEN_MIN || wanted.maxresponsesize < RESPONSE_LEN_MIN {
        return Err(Nfsstat4::TooSmall);
    }
    let maxresponsesize = wanted.maxresponsesize.min(limits.response_max);
    Ok(ChannelAttrs4 {
        // Padding is not used to align payloads: RDMA places them, and TCP does not need it.
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

/// Checks the attributes of the backchannel. They are the client's and are not changed (§18.36.3), but CB_SEQUENCE and
/// one operation must fit.
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

fn wants_backchannel(args: &CreateSessionArgs) -> bool {
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
/// The maximum number of connections of a session. It bounds the memory that a client can use.
const CONNECTIONS_MAX: usize = 256;
/// A call without credentials (40 bytes), COMPOUND with an empty tag (12), and SEQUENCE (4 + 32).
const REQUEST_LEN_MIN: u32 = 40 + 12 + 36;
/// The header of a reply (24), COMPOUND results with an empty tag (12), and those of SEQUENCE (8 + 36).
pub(super) const RESPONSE_LEN_MIN: u32 = 24 + 12 + 44;
/// A call without credentials (40), CB_COMPOUND (16), CB_SEQUENCE with one referring call (40 + 28), and CB_RECALL of a
/// file handle of the greatest length (4 + 16 + 4 + 4 + 128).
const CB_REQUEST_LEN_MIN: u32 = 40 + 16 + 68 + 156;
/// The header of a reply (24), CB_COMPOUND results (12), those of CB_SEQUENCE (8 + 32) and CB_RECALL (8).
const CB_RESPONSE_LEN_MIN: u32 = 24 + 12 + 40 + 8;
