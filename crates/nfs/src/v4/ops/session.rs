//! Clients and sessions: EXCHANGE_ID, CREATE_SESSION, SEQUENCE and the rest of RFC 8881 §18.33–18.51 that is not about
//! files; and SETCLIENTID and RENEW of RFC 7530.

use xdr::{Array, Decode, Encode, Opaque};

use super::namespace::RpcGssSvc;
use crate::v4::{bitmap::Bitmap4, status::*, types::*};

/// A client, by its own name (RFC 7530 §9.1.1, `nfs_client_id4`).
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct NfsClientId4 {
    /// Its incarnation.
    pub verifier: Verifier4,
    /// Its name.
    pub id: Opaque<OPAQUE_LIMIT>,
}

/// Where the callback program of a 4.0 client is.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct CbClient4 {
    /// Its number.
    pub cb_program: u32,
    /// Its address.
    pub cb_location: Netaddr4,
}

/// SETCLIENTID arguments (RFC 7530 §16.33).
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct SetClientIdArgs {
    /// Who.
    pub client: NfsClientId4,
    /// Where its callbacks go.
    pub callback: CbClient4,
    /// And with which number.
    pub callback_ident: u32,
}

/// A successful SETCLIENTID.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct SetClientIdOk {
    /// Its name here.
    pub clientid: Clientid4,
    /// To be confirmed with this.
    pub setclientid_confirm: Verifier4,
}

/// SETCLIENTID results.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
#[xdr(tag = Nfsstat4)]
pub enum SetClientIdRes {
    /// To be confirmed.
    #[xdr(Nfsstat4::Ok)]
    Ok(SetClientIdOk),
    /// Somebody at this address has the name.
    #[xdr(Nfsstat4::ClidInuse)]
    ClidInuse(Netaddr4),
    /// Any other status.
    #[xdr(default)]
    Fail(Nfsstat4),
}
op_result!(SetClientIdRes { Ok => Ok, ClidInuse => ClidInuse });

/// SETCLIENTID_CONFIRM arguments (RFC 7530 §16.34).
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct SetClientIdConfirmArgs {
    /// The client.
    pub clientid: Clientid4,
    /// What SETCLIENTID returned.
    pub setclientid_confirm: Verifier4,
}

/// RENEW, DELEGPURGE and DESTROY_CLIENTID arguments.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct ClientIdArgs {
    /// The client.
    pub clientid: Clientid4,
}

/// The contexts of RPCSEC_GSS for callbacks (`gss_cb_handles4`).
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct GssCbHandles4 {
    /// What is protected.
    pub service: RpcGssSvc,
    /// The server's handle.
    pub handle_from_server: GssHandle4,
    /// The client's.
    pub handle_from_client: GssHandle4,
}

/// A handle of an RPCSEC_GSS context (`gsshandle4_t`).
pub type GssHandle4 = Opaque<OPAQUE_LIMIT>;

/// How callbacks may be authenticated (`callback_sec_parms4`).
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub enum CallbackSecParms4 {
    /// Not at all.
    #[xdr(0)]
    None,
    /// As this user.
    #[xdr(1)]
    Sys(AuthsysParms),
    /// By these contexts.
    #[xdr(6)]
    RpcsecGss(GssCbHandles4),
}

/// Ways to authenticate callbacks, the best first.
pub type CallbackSec4 = Array<CallbackSecParms4, 16>;

/// BACKCHANNEL_CTL arguments (§18.33).
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct BackchannelCtlArgs {
    /// The number of the callback program.
    pub cb_program: u32,
    /// How callbacks may be authenticated.
    pub sec_parms: CallbackSec4,
}

/// For which channel a connection is to be used (§18.34).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
#[repr(u32)]
pub enum ChannelDirFromClient4 {
    /// Calls.
    Fore = 1,
    /// Callbacks.
    Back = 2,
    /// Calls, and callbacks if possible.
    ForeOrBoth = 3,
    /// Callbacks, and calls if possible.
    BackOrBoth = 7,
}

/// For which channel a connection is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
#[repr(u32)]
pub enum ChannelDirFromServer4 {
    /// Calls.
    Fore = 1,
    /// Callbacks.
    Back = 2,
    /// Both.
    Both = 3,
}

/// BIND_CONN_TO_SESSION arguments.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct BindConnToSessionArgs {
    /// The session.
    pub sessid: Sessionid4,
    /// For which channel.
    pub dir: ChannelDirFromClient4,
    /// Whether to step up to RDMA.
    pub use_conn_in_rdma_mode: bool,
}

/// A successful BIND_CONN_TO_SESSION.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct BindConnToSessionOk {
    /// The session.
    pub sessid: Sessionid4,
    /// For which channel.
    pub dir: ChannelDirFromServer4,
    /// Whether it steps up to RDMA.
    pub use_conn_in_rdma_mode: bool,
}

/// BIND_CONN_TO_SESSION results.
pub type BindConnToSessionRes = Res4<BindConnToSessionOk>;

/// A client, by its own name (`client_owner4`).
#[derive(Clone, Debug, PartialEq, Eq, Hash, Encode, Decode)]
pub struct ClientOwner4 {
    /// Its incarnation.
    pub verifier: Verifier4,
    /// Its name.
    pub ownerid: Opaque<OPAQUE_LIMIT>,
}

/// A server, by its own name (`server_owner4`).
#[derive(Clone, Debug, PartialEq, Eq, Hash, Encode, Decode)]
pub struct ServerOwner4 {
    /// Which part of it; the same means that sessions can be trunked.
    pub minor_id: u64,
    /// Its name; the same means that client IDs can be trunked.
    pub major_id: Opaque<OPAQUE_LIMIT>,
}

/// EXCHANGE_ID: referrals are understood.
pub const EXCHGID4_FLAG_SUPP_MOVED_REFER: u32 = 0x0000_0001;
/// Migration is understood.
pub const EXCHGID4_FLAG_SUPP_MOVED_MIGR: u32 = 0x0000_0002;
/// File systems may be fenced (RFC 7862 §15.14).
pub const EXCHGID4_FLAG_SUPP_FENCE_OPS: u32 = 0x0000_0004;
/// State belongs to the principal that made it.
pub const EXCHGID4_FLAG_BIND_PRINC_STATEID: u32 = 0x0000_0100;
/// The server has no layouts.
pub const EXCHGID4_FLAG_USE_NON_PNFS: u32 = 0x0001_0000;
/// It is a metadata server.
pub const EXCHGID4_FLAG_USE_PNFS_MDS: u32 = 0x0002_0000;
/// It is a data server.
pub const EXCHGID4_FLAG_USE_PNFS_DS: u32 = 0x0004_0000;
/// The three before.
pub const EXCHGID4_FLAG_MASK_PNFS: u32 = 0x0007_0000;
/// The client updates a record that is confirmed; in arguments.
pub const EXCHGID4_FLAG_UPD_CONFIRMED_REC_A: u32 = 0x4000_0000;
/// The record is confirmed; in results.
pub const EXCHGID4_FLAG_CONFIRMED_R: u32 = 0x8000_0000;

/// Operations that need the machine's credential, and those that may have it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Encode, Decode)]
pub struct StateProtectOps4 {
    /// They need it.
    pub must_enforce: Bitmap4,
    /// They may have it.
    pub must_allow: Bitmap4,
}

/// What protection by a shared secret is asked for (`ssv_sp_parms4`).
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct SsvSpParms4 {
    /// Operations.
    pub ops: StateProtectOps4,
    /// Hash algorithms, the best first.
    pub hash_algs: Array<SecOid4, 64>,
    /// Encryption algorithms, the best first.
    pub encr_algs: Array<SecOid4, 64>,
    /// How many secrets to remember.
    pub window: u32,
    /// How many contexts to make.
    pub num_gss_handles: u32,
}

/// How a client's state is to be protected (`state_protect4_a`).
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub enum StateProtect4A {
    /// Not at all.
    #[xdr(0)]
    None,
    /// By the machine's credential.
    #[xdr(1)]
    MachCred(StateProtectOps4),
    /// By a shared secret.
    #[xdr(2)]
    Ssv(SsvSpParms4),
}

/// EXCHANGE_ID arguments (§18.35).
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct ExchangeIdArgs {
    /// Who.
    pub clientowner: ClientOwner4,
    /// The `EXCHGID4_FLAG_` bits.
    pub flags: u32,
    /// How state is to be protected.
    pub state_protect: StateProtect4A,
    /// What software it is.
    pub client_impl_id: Option<NfsImplId4>,
}

/// What protection by a shared secret there is (`ssv_prot_info4`).
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct SsvProtInfo4 {
    /// Operations.
    pub ops: StateProtectOps4,
    /// Index of the hash algorithm.
    pub hash_alg: u32,
    /// Index of the encryption algorithm.
    pub encr_alg: u32,
    /// Length of the secret.
    pub ssv_len: u32,
    /// How many secrets are remembered.
    pub window: u32,
    /// Contexts.
    pub handles: Array<GssHandle4, 64>,
}

/// How a client's state is protected (`state_protect4_r`).
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub enum StateProtect4R {
    /// Not at all.
    #[xdr(0)]
    None,
    /// By the machine's credential.
    #[xdr(1)]
    MachCred(StateProtectOps4),
    /// By a shared secret.
    #[xdr(2)]
    Ssv(SsvProtInfo4),
}

/// A successful EXCHANGE_ID.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct ExchangeIdOk {
    /// The client's name here.
    pub clientid: Clientid4,
    /// For its next CREATE_SESSION.
    pub sequenceid: Sequenceid4,
    /// The `EXCHGID4_FLAG_` bits.
    pub flags: u32,
    /// How state is protected.
    pub state_protect: StateProtect4R,
    /// Who answers.
    pub server_owner: ServerOwner4,
    /// Servers of the same scope may have the same client IDs and file handles.
    pub server_scope: Opaque<OPAQUE_LIMIT>,
    /// What software it is.
    pub server_impl_id: Option<NfsImplId4>,
}

/// EXCHANGE_ID results.
pub type ExchangeIdRes = Res4<Box<ExchangeIdOk>>;

/// The limits of a channel (§18.36). Sizes are in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub struct ChannelAttrs4 {
    /// Padding of headers.
    pub headerpadsize: u32,
    /// Largest request.
    pub maxrequestsize: u32,
    /// Largest reply.
    pub maxresponsesize: u32,
    /// Largest reply that is cached.
    pub maxresponsesize_cached: u32,
    /// Most operations of a compound.
    pub maxoperations: u32,
    /// Slots.
    pub maxrequests: u32,
    /// RDMA Reads at a time, over iWARP that steps up.
    pub rdma_ird: Option<u32>,
}

/// CREATE_SESSION: the reply cache survives restarts.
pub const CREATE_SESSION4_FLAG_PERSIST: u32 = 0x1;
/// Callbacks use this connection.
pub const CREATE_SESSION4_FLAG_CONN_BACK_CHAN: u32 = 0x2;
/// This connection steps up to RDMA.
pub const CREATE_SESSION4_FLAG_CONN_RDMA: u32 = 0x4;

/// CREATE_SESSION arguments (§18.36).
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct CreateSessionArgs {
    /// The client.
    pub clientid: Clientid4,
    /// Its sequence.
    pub sequence: Sequenceid4,
    /// The `CREATE_SESSION4_FLAG_` bits.
    pub flags: u32,
    /// The limits of calls.
    pub fore_chan_attrs: ChannelAttrs4,
    /// The limits of callbacks.
    pub back_chan_attrs: ChannelAttrs4,
    /// The number of the callback program.
    pub cb_program: u32,
    /// How callbacks may be authenticated.
    pub sec_parms: CallbackSec4,
}

/// A successful CREATE_SESSION.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct CreateSessionOk {
    /// The session.
    pub sessionid: Sessionid4,
    /// The sequence of the request.
    pub sequence: Sequenceid4,
    /// The `CREATE_SESSION4_FLAG_` bits.
    pub flags: u32,
    /// The limits of calls.
    pub fore_chan_attrs: ChannelAttrs4,
    /// The limits of callbacks.
    pub back_chan_attrs: ChannelAttrs4,
}

/// CREATE_SESSION results.
pub type CreateSessionRes = Res4<Box<CreateSessionOk>>;

/// DESTROY_SESSION arguments (§18.37).
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct DestroySessionArgs {
    /// The session.
    pub sessionid: Sessionid4,
}

/// SEQUENCE arguments (§18.46).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub struct SequenceArgs {
    /// The session.
    pub sessionid: Sessionid4,
    /// The sequence of the slot.
    pub sequenceid: Sequenceid4,
    /// The slot.
    pub slotid: Slotid4,
    /// The highest slot in use.
    pub highest_slotid: Slotid4,
    /// Whether to cache the reply.
    pub cachethis: bool,
}

/// A successful SEQUENCE.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub struct SequenceOk {
    /// The session.
    pub sessionid: Sessionid4,
    /// The sequence of the slot.
    pub sequenceid: Sequenceid4,
    /// The slot.
    pub slotid: Slotid4,
    /// The highest slot that the server takes.
    pub highest_slotid: Slotid4,
    /// The highest that it would like to be used.
    pub target_highest_slotid: Slotid4,
    /// The `SEQ4_STATUS_` bits.
    pub status_flags: u32,
}

/// SEQUENCE results.
pub type SequenceRes = Res4<SequenceOk>;

/// The callback path of the client is down.
pub const SEQ4_STATUS_CB_PATH_DOWN: u32 = 0x0001;
/// Contexts for callbacks will expire.
pub const SEQ4_STATUS_CB_GSS_CONTEXTS_EXPIRING: u32 = 0x0002;
/// Contexts for callbacks have expired.
pub const SEQ4_STATUS_CB_GSS_CONTEXTS_EXPIRED: u32 = 0x0004;
/// The lease has expired, and all state was revoked.
pub const SEQ4_STATUS_EXPIRED_ALL_STATE_REVOKED: u32 = 0x0008;
/// The lease has expired, and some state was revoked.
pub const SEQ4_STATUS_EXPIRED_SOME_STATE_REVOKED: u32 = 0x0010;
/// The administrator has revoked state.
pub const SEQ4_STATUS_ADMIN_STATE_REVOKED: u32 = 0x0020;
/// Recallable state was revoked.
pub const SEQ4_STATUS_RECALLABLE_STATE_REVOKED: u32 = 0x0040;
/// A lease has moved.
pub const SEQ4_STATUS_LEASE_MOVED: u32 = 0x0080;
/// The server has restarted, and state is to be reclaimed.
pub const SEQ4_STATUS_RESTART_RECLAIM_NEEDED: u32 = 0x0100;
/// The callback path of the session is down.
pub const SEQ4_STATUS_CB_PATH_DOWN_SESSION: u32 = 0x0200;
/// The backchannel has a fault.
pub const SEQ4_STATUS_BACKCHANNEL_FAULT: u32 = 0x0400;
/// A device has changed.
pub const SEQ4_STATUS_DEVID_CHANGED: u32 = 0x0800;
/// A device was deleted.
pub const SEQ4_STATUS_DEVID_DELETED: u32 = 0x1000;

/// SET_SSV arguments (§18.47).
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct SetSsvArgs {
    /// What changes the secret.
    pub ssv: Opaque<OPAQUE_LIMIT>,
    /// Proves that the client knows the secret.
    pub digest: Opaque<OPAQUE_LIMIT>,
}

/// SET_SSV results: proves that the server knows the secret.
pub type SetSsvRes = Res4<Opaque<OPAQUE_LIMIT>>;

/// RECLAIM_COMPLETE arguments (§18.51).
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct ReclaimCompleteArgs {
    /// Whether only of the current file handle's file system.
    pub one_fs: bool,
}
