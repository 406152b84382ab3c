//! Clients and sessions: EXCHANGE_ID, CREATE_SESSION, SEQUENCE and the other operations of RFC 8881 §18.33–18.51 that
//! do not operate on files, and SETCLIENTID and RENEW of RFC 7530.

use xdr::{Array, Decode, Encode, Opaque};

use super::namespace::RpcGssSvc;
use crate::v4::{bitmap::Bitmap4, status::*, types::*};

/// The identity of a 4.0 client (RFC 7530 §9.1.1, `nfs_client_id4`).
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct NfsClientId4 {
    /// The verifier of this incarnation of the client.
    pub verifier: Verifier4,
    /// The name of the client.
    pub id: Opaque<OPAQUE_LIMIT>,
}

/// The callback program of a 4.0 client.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct CbClient4 {
    /// The program number.
    pub cb_program: u32,
    /// The address.
    pub cb_location: Netaddr4,
}

/// SETCLIENTID arguments (RFC 7530 §16.33).
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct SetClientIdArgs {
    /// The client.
    pub client: NfsClientId4,
    /// The client's callback program.
    pub callback: CbClient4,
    /// The number that callbacks contain.
    pub callback_ident: u32,
}

/// A successful SETCLIENTID.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct SetClientIdOk {
    /// The client ID.
    pub clientid: Clientid4,
    /// The verifier with which the client confirms the client ID.
    pub setclientid_confirm: Verifier4,
}

/// SETCLIENTID results.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
#[xdr(tag = Nfsstat4)]
pub enum SetClientIdRes {
    /// The client must confirm the client ID.
    #[xdr(Nfsstat4::Ok)]
    Ok(SetClientIdOk),
    /// A client at this address uses the name.
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
    /// The verifier from SETCLIENTID.
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
    /// The protection.
    pub service: RpcGssSvc,
    /// The server's handle.
    pub handle_from_server: GssHandle4,
    /// The client's handle.
    pub handle_from_client: GssHandle4,
}

/// A handle of an RPCSEC_GSS context (`gsshandle4_t`).
pub type GssHandle4 = Opaque<OPAQUE_LIMIT>;

/// A way to authenticate callbacks (`callback_sec_parms4`).
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub enum CallbackSecParms4 {
    /// No authentication.
    #[xdr(0)]
    None,
    /// AUTH_SYS with this credential.
    #[xdr(1)]
    Sys(AuthsysParms),
    /// RPCSEC_GSS with these contexts.
    #[xdr(6)]
    RpcsecGss(GssCbHandles4),
}

/// Ways to authenticate callbacks, in order of preference.
pub type CallbackSec4 = Array<CallbackSecParms4, 16>;

/// BACKCHANNEL_CTL arguments (§18.33).
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct BackchannelCtlArgs {
    /// The number of the callback program.
    pub cb_program: u32,
    /// The ways to authenticate callbacks.
    pub sec_parms: CallbackSec4,
}

/// The channels for which the client wants to use a connection (§18.34).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
#[repr(u32)]
pub enum ChannelDirFromClient4 {
    /// The fore channel.
    Fore = 1,
    /// The backchannel.
    Back = 2,
    /// The fore channel, and the backchannel if possible.
    ForeOrBoth = 3,
    /// The backchannel, and the fore channel if possible.
    BackOrBoth = 7,
}

/// The channels for which a connection is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
#[repr(u32)]
pub enum ChannelDirFromServer4 {
    /// The fore channel.
    Fore = 1,
    /// The backchannel.
    Back = 2,
    /// Both channels.
    Both = 3,
}

/// BIND_CONN_TO_SESSION arguments.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct BindConnToSessionArgs {
    /// The session.
    pub sessid: Sessionid4,
    /// The channels.
    pub dir: ChannelDirFromClient4,
    /// `true` to step up to RDMA.
    pub use_conn_in_rdma_mode: bool,
}

/// A successful BIND_CONN_TO_SESSION.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct BindConnToSessionOk {
    /// The session.
    pub sessid: Sessionid4,
    /// The channels.
    pub dir: ChannelDirFromServer4,
    /// `true` if the connection steps up to RDMA.
    pub use_conn_in_rdma_mode: bool,
}

/// BIND_CONN_TO_SESSION results.
pub type BindConnToSessionRes = Res4<BindConnToSessionOk>;

/// A client owner (`client_owner4`).
#[derive(Clone, Debug, PartialEq, Eq, Hash, Encode, Decode)]
pub struct ClientOwner4 {
    /// The verifier of this incarnation of the client.
    pub verifier: Verifier4,
    /// The name of the client.
    pub ownerid: Opaque<OPAQUE_LIMIT>,
}

/// A server owner (`server_owner4`).
#[derive(Clone, Debug, PartialEq, Eq, Hash, Encode, Decode)]
pub struct ServerOwner4 {
    /// The part of the server. Connections with the same major and minor ID can be trunked in one session.
    pub minor_id: u64,
    /// The name of the server. Connections with the same major ID can share a client ID.
    pub major_id: Opaque<OPAQUE_LIMIT>,
}

/// EXCHANGE_ID: the client supports referrals.
pub const EXCHGID4_FLAG_SUPP_MOVED_REFER: u32 = 0x0000_0001;
/// The client supports migration.
pub const EXCHGID4_FLAG_SUPP_MOVED_MIGR: u32 = 0x0000_0002;
/// The client supports fencing (RFC 7862 §15.14).
pub const EXCHGID4_FLAG_SUPP_FENCE_OPS: u32 = 0x0000_0004;
/// State belongs to the principal that created it.
pub const EXCHGID4_FLAG_BIND_PRINC_STATEID: u32 = 0x0000_0100;
/// The server does not support pNFS.
pub const EXCHGID4_FLAG_USE_NON_PNFS: u32 = 0x0001_0000;
/// The server is a metadata server.
pub const EXCHGID4_FLAG_USE_PNFS_MDS: u32 = 0x0002_0000;
/// The server is a data server.
pub const EXCHGID4_FLAG_USE_PNFS_DS: u32 = 0x0004_0000;
/// The mask of the three flags for pNFS.
pub const EXCHGID4_FLAG_MASK_PNFS: u32 = 0x0007_0000;
/// The client updates a confirmed record. Only in arguments.
pub const EXCHGID4_FLAG_UPD_CONFIRMED_REC_A: u32 = 0x4000_0000;
/// The record is confirmed. Only in results.
pub const EXCHGID4_FLAG_CONFIRMED_R: u32 = 0x8000_0000;

/// Operations that must or may use the machine credential.
#[derive(Clone, Debug, Default, PartialEq, Eq, Encode, Decode)]
pub struct StateProtectOps4 {
    /// The operations that must use it.
    pub must_enforce: Bitmap4,
    /// The operations that may use it.
    pub must_allow: Bitmap4,
}

/// The requested protection by a shared secret (`ssv_sp_parms4`).
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct SsvSpParms4 {
    /// The protected operations.
    pub ops: StateProtectOps4,
    /// Hash algorithms, in order of preference.
    pub hash_algs: Array<SecOid4, 64>,
    /// Encryption algorithms, in order of preference.
    pub encr_algs: Array<SecOid4, 64>,
    /// The number of secrets to keep.
    pub window: u32,
    /// The number of contexts to create.
    pub num_gss_handles: u32,
}

/// The requested protection of a client's state (`state_protect4_a`).
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub enum StateProtect4A {
    /// No protection.
    #[xdr(0)]
    None,
    /// Protection by the machine credential.
    #[xdr(1)]
    MachCred(StateProtectOps4),
    /// Protection by a shared secret.
    #[xdr(2)]
    Ssv(SsvSpParms4),
}

/// EXCHANGE_ID arguments (§18.35).
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct ExchangeIdArgs {
    /// The client.
    pub clientowner: ClientOwner4,
    /// The `EXCHGID4_FLAG_` bits.
    pub flags: u32,
    /// The requested protection of state.
    pub state_protect: StateProtect4A,
    /// The implementation.
    pub client_impl_id: Option<NfsImplId4>,
}

/// The granted protection by a shared secret (`ssv_prot_info4`).
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct SsvProtInfo4 {
    /// The protected operations.
    pub ops: StateProtectOps4,
    /// The index of the hash algorithm.
    pub hash_alg: u32,
    /// The index of the encryption algorithm.
    pub encr_alg: u32,
    /// The length of the secret.
    pub ssv_len: u32,
    /// The number of secrets that the server keeps.
    pub window: u32,
    /// The handles of the contexts.
    pub handles: Array<GssHandle4, 64>,
}

/// The protection of a client's state (`state_protect4_r`).
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub enum StateProtect4R {
    /// No protection.
    #[xdr(0)]
    None,
    /// Protection by the machine credential.
    #[xdr(1)]
    MachCred(StateProtectOps4),
    /// Protection by a shared secret.
    #[xdr(2)]
    Ssv(SsvProtInfo4),
}

/// A successful EXCHANGE_ID.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct ExchangeIdOk {
    /// The client ID.
    pub clientid: Clientid4,
    /// The sequence number of the client's next CREATE_SESSION.
    pub sequenceid: Sequenceid4,
    /// The `EXCHGID4_FLAG_` bits.
    pub flags: u32,
    /// The protection of state.
    pub state_protect: StateProtect4R,
    /// The server owner.
    pub server_owner: ServerOwner4,
    /// The server scope. Servers with the same scope may have the same client IDs and file handles.
    pub server_scope: Opaque<OPAQUE_LIMIT>,
    /// The implementation.
    pub server_impl_id: Option<NfsImplId4>,
}

/// EXCHANGE_ID results.
pub type ExchangeIdRes = Res4<Box<ExchangeIdOk>>;

/// The limits of a channel (§18.36). Sizes are in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub struct ChannelAttrs4 {
    /// The padding of headers.
    pub headerpadsize: u32,
    /// Maximum size of a request.
    pub maxrequestsize: u32,
    /// Maximum size of a reply.
    pub maxresponsesize: u32,
    /// Maximum size of a cached reply.
    pub maxresponsesize_cached: u32,
    /// Maximum number of operations in a compound.
    pub maxoperations: u32,
    /// The number of slots.
    pub maxrequests: u32,
    /// Maximum number of concurrent RDMA Reads, for iWARP with step-up.
    pub rdma_ird: Option<u32>,
}

/// CREATE_SESSION: the reply cache survives restarts of the server.
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
    /// The sequence number.
    pub sequence: Sequenceid4,
    /// The `CREATE_SESSION4_FLAG_` bits.
    pub flags: u32,
    /// The limits of the fore channel.
    pub fore_chan_attrs: ChannelAttrs4,
    /// The limits of the backchannel.
    pub back_chan_attrs: ChannelAttrs4,
    /// The number of the callback program.
    pub cb_program: u32,
    /// The ways to authenticate callbacks.
    pub sec_parms: CallbackSec4,
}

/// A successful CREATE_SESSION.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct CreateSessionOk {
    /// The session.
    pub sessionid: Sessionid4,
    /// The sequence number of the request.
    pub sequence: Sequenceid4,
    /// The `CREATE_SESSION4_FLAG_` bits.
    pub flags: u32,
    /// The limits of the fore channel.
    pub fore_chan_attrs: ChannelAttrs4,
    /// The limits of the backchannel.
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
    /// The sequence number of the slot.
    pub sequenceid: Sequenceid4,
    /// The slot.
    pub slotid: Slotid4,
    /// The highest slot in use.
    pub highest_slotid: Slotid4,
    /// `true` to cache the reply.
    pub cachethis: bool,
}

/// A successful SEQUENCE.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub struct SequenceOk {
    /// The session.
    pub sessionid: Sessionid4,
    /// The sequence number of the slot.
    pub sequenceid: Sequenceid4,
    /// The slot.
    pub slotid: Slotid4,
    /// The highest slot that the server accepts.
    pub highest_slotid: Slotid4,
    /// The highest slot that should be used.
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
    /// The value that is combined with the secret.
    pub ssv: Opaque<OPAQUE_LIMIT>,
    /// The proof that the client knows the secret.
    pub digest: Opaque<OPAQUE_LIMIT>,
}

/// SET_SSV results: the proof that the server knows the secret.
pub type SetSsvRes = Res4<Opaque<OPAQUE_LIMIT>>;

/// RECLAIM_COMPLETE arguments (§18.51).
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct ReclaimCompleteArgs {
    /// `true` if this applies only to the file system of the current file handle.
    pub one_fs: bool,
}
