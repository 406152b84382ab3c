//! The client owner and the operations outside of sessions: EXCHANGE_ID, CREATE_SESSION, BIND_CONN_TO_SESSION,
//! DESTROY_SESSION and DESTROY_CLIENTID (RFC 8881 §18.34–18.37, §18.50), and SETCLIENTID and SETCLIENTID_CONFIRM of
//! NFSv4.0 (RFC 7530 §16.33, §16.34). Each is the only operation of its compound, and is sent over one given
//! connection.

use bytes::Bytes;
use nfs::v4::{compound::*, *};
use rpc::ReplyPlan;
use xdr::{Array, Opaque};

use super::{
    backchannel::{BACK_SLOTS, CALLBACK_PROGRAM},
    compound::{Results, failure, value},
    slots::SLOTS_MAX,
};
use crate::{
    call::{Backoff, Deadline, Program},
    model::{Error, ErrorKind, Result},
};

/// Returns a client owner that no other mount of this process or another has. State belongs to one mount and ends with
/// it. A client that used the same owner after a crash could reclaim nothing, because it would not know its former
/// state.
pub(crate) fn client_owner() -> ClientOwner4 {
    let unique: [u8; 16] = entropy::random();
    let unique: String = unique.iter().map(|byte| format!("{byte:02x}")).collect();
    let machine = rpc::AuthSys::of_process().machine;
    let ownerid = [b"slipway/", &machine[..], b"/", unique.as_bytes()].concat();
    ClientOwner4 { verifier: entropy::random(), ownerid: Opaque(ownerid.into()) }
}

/// Sends EXCHANGE_ID.
///
/// # Errors
/// The server does not support the minor version, or refuses the client.
pub(crate) async fn exchange_id(
    program: &Program,
    minor: u32,
    owner: &ClientOwner4,
    deadline: &Deadline,
) -> Result<ExchangeIdOk> {
    let implementation = NfsImplId4 {
        domain: Opaque(Bytes::from_static(b"slipway.example")),
        name: Opaque(Bytes::from_static(concat!("slipway ", env!("CARGO_PKG_VERSION")).as_bytes())),
        date: Nfstime4::default(),
    };
    let args = ExchangeIdArgs {
        clientowner: owner.clone(),
        // §13.1: the client can use a server in each role. It decides later whether it asks for layouts.
        flags: EXCHGID4_FLAG_MASK_PNFS,
        state_protect: StateProtect4A::None,
        client_impl_id: Some(implementation),
    };
    let mut results = call_alone(program, minor, Argop4::ExchangeId(Box::new(args)), "EXCHANGE_ID", deadline).await?;
    value!(results, ExchangeId).map(|ok| *ok)
}

/// Sends SETCLIENTID and SETCLIENTID_CONFIRM, with an invalid callback address.
///
/// # Errors
/// The server does not support NFSv4.0, or refuses the client.
pub(crate) async fn set_clientid(program: &Program, owner: &ClientOwner4, deadline: &Deadline) -> Result<Clientid4> {
    let no_address = Netaddr4 { netid: "tcp".into(), addr: "0.0.0.0.0.0".into() };
    let args = Box::new(SetClientIdArgs {
        client: NfsClientId4 { verifier: owner.verifier, id: owner.ownerid.clone() },
        callback: CbClient4 { cb_program: 0, cb_location: no_address },
        callback_ident: 0,
    });
    let mut backoff = Backoff::new();
    loop {
        let mut results = call_alone(program, 0, Argop4::SetClientId(args.clone()), "SETCLIENTID", deadline).await?;
        let Resop4::SetClientId(SetClientIdRes::Ok(SetClientIdOk { clientid, setclientid_confirm })) =
            results.next()?
        else {
            return Err(results.protocol_error("SETCLIENTID succeeded without a client ID"));
        };
        let confirm = Argop4::SetClientIdConfirm(SetClientIdConfirmArgs { clientid, setclientid_confirm });
        match call_alone(program, 0, confirm, "SETCLIENTID_CONFIRM", deadline).await {
            Ok(_) => return Ok(clientid),
            // RFC 7530 §16.34: the server has restarted between the two operations.
            Err(error) if error.status4() == Some(Nfsstat4::StaleClientid) && backoff.pause_before(deadline).await => {}
            Err(error) => return Err(error),
        }
    }
}

/// Checks that the server answers over a connection that is to carry NFSv4.0.
///
/// # Errors
/// The server does not answer.
pub(crate) async fn probe(program: &Program, deadline: &Deadline) -> Result<()> {
    call_alone(program, 0, Argop4::PutRootFh, "PUTROOTFH", deadline).await.map(drop)
}

/// Sends CREATE_SESSION, which binds the connection for callbacks too.
///
/// # Errors
/// `STALE_CLIENTID` if the server does not know the client.
pub(crate) async fn create_session(
    program: &Program,
    minor: u32,
    clientid: Clientid4,
    sequence: Sequenceid4,
    deadline: &Deadline,
) -> Result<CreateSessionOk> {
    let fore = ChannelAttrs4 {
        headerpadsize: 0,
        maxrequestsize: MESSAGE_MAX,
        maxresponsesize: MESSAGE_MAX,
        maxresponsesize_cached: CACHED_MAX,
        maxoperations: OPERATIONS_MAX,
        maxrequests: SLOTS_WANTED.min(SLOTS_MAX),
        rdma_ird: None,
    };
    let back = ChannelAttrs4 {
        headerpadsize: 0,
        maxrequestsize: BACK_MESSAGE_MAX,
        maxresponsesize: BACK_MESSAGE_MAX,
        maxresponsesize_cached: BACK_MESSAGE_MAX,
        maxoperations: 8,
        maxrequests: BACK_SLOTS,
        rdma_ird: None,
    };
    let args = CreateSessionArgs {
        clientid,
        sequence,
        flags: CREATE_SESSION4_FLAG_CONN_BACK_CHAN,
        fore_chan_attrs: fore,
        back_chan_attrs: back,
        cb_program: CALLBACK_PROGRAM,
        sec_parms: Array(vec![CallbackSecParms4::None]),
    };
    let args = Argop4::CreateSession(Box::new(args));
    let mut results = call_alone(program, minor, args, "CREATE_SESSION", deadline).await?;
    let ok = *value!(results, CreateSession)?;
    if ok.fore_chan_attrs.maxrequests == 0 || ok.fore_chan_attrs.maxoperations < OPERATIONS_LEAST {
        let problem = format!(
            "a session of {} slots of {} operations",
            ok.fore_chan_attrs.maxrequests, ok.fore_chan_attrs.maxoperations
        );
        return Err(Error::new(ErrorKind::Protocol(problem), "CREATE_SESSION"));
    }
    Ok(ok)
}

/// Sends BIND_CONN_TO_SESSION, for calls and, if the server supports it, callbacks.
///
/// # Errors
/// `BADSESSION` if the server does not know the session.
pub(crate) async fn bind(program: &Program, minor: u32, sessid: Sessionid4, deadline: &Deadline) -> Result<()> {
    let args = BindConnToSessionArgs { sessid, dir: ChannelDirFromClient4::ForeOrBoth, use_conn_in_rdma_mode: false };
    call_alone(program, minor, Argop4::BindConnToSession(args), "BIND_CONN_TO_SESSION", deadline).await.map(drop)
}

/// Sends DESTROY_SESSION.
///
/// # Errors
/// `BADSESSION` if the server does not know the session.
pub(crate) async fn destroy_session(program: &Program, minor: u32, id: Sessionid4, deadline: &Deadline) -> Result<()> {
    let args = DestroySessionArgs { sessionid: id };
    call_alone(program, minor, Argop4::DestroySession(args), "DESTROY_SESSION", deadline).await.map(drop)
}

/// Sends DESTROY_CLIENTID.
///
/// # Errors
/// `CLIENTID_BUSY` if the client still has state.
pub(crate) async fn destroy_clientid(program: &Program, minor: u32, id: Clientid4, deadline: &Deadline) -> Result<()> {
    let args = ClientIdArgs { clientid: id };
    call_alone(program, minor, Argop4::DestroyClientId(args), "DESTROY_CLIENTID", deadline).await.map(drop)
}

/// Sends an operation as the only one of its compound (RFC 8881 §18.35.3, §18.36.3, …).
async fn call_alone(
    program: &Program,
    minor: u32,
    op: Argop4,
    name: &'static str,
    deadline: &Deadline,
) -> Result<Results> {
    let args = CompoundArgs { tag: Tag::default(), minorversion: minor, argarray: vec![op] };
    let mut backoff = Backoff::new();
    loop {
        let plan = ReplyPlan { inline_max: REPLY_MAX, ..ReplyPlan::default() };
        let res = program.call::<_, CompoundRes>(PROC_COMPOUND, name, &args, plan, deadline).await.0?;
        if res.status == Nfsstat4::Ok {
            return Ok(Results::new(res.resarray.into_iter(), name));
        }
        let error = failure(res.status, name).on(program.server());
        if !(backoff.pause_if_delayed(program, &error, deadline).await) {
            return Err(error);
        }
    }
}

/// Maximum bytes of a request or reply that the client asks for: 1 MiB of data and the operations around it. The chunks
/// of RPC-over-RDMA do not count.
const MESSAGE_MAX: u32 = (1 << 20) + (16 << 10);
/// Maximum bytes of a reply that the server is to cache: that of OPEN with a delegation, GETFH and GETATTR.
const CACHED_MAX: u32 = 4 << 10;
/// SEQUENCE, and PUTFH, DELEGRETURN and CLOSE for each of 16 files.
const OPERATIONS_MAX: u32 = 49;
/// Minimum number of operations in a compound that the client needs: SEQUENCE, PUTFH, SAVEFH, LOOKUP, NVERIFY,
/// RESTOREFH, REMOVE.
const OPERATIONS_LEAST: u32 = 8;
/// The number of slots that the client asks for.
const SLOTS_WANTED: u32 = 128;
const BACK_MESSAGE_MAX: u32 = 4 << 10;
/// Maximum bytes of the replies to these operations.
const REPLY_MAX: usize = 2 << 10;
