//! Clients and sessions: EXCHANGE_ID, CREATE_SESSION, BIND_CONN_TO_SESSION, BACKCHANNEL_CTL, DESTROY_SESSION,
//! DESTROY_CLIENTID and RECLAIM_COMPLETE: RFC 8881 §18.33–18.37, §18.50, §18.51. The state machine decides. This file
//! adds what depends on the compound.

use nfs::v4::{
    BackchannelCtlArgs, BindConnToSessionArgs, BindConnToSessionOk, ClientIdArgs, CreateSessionArgs, CreateSessionOk,
    DestroySessionArgs, ExchangeIdArgs, ExchangeIdOk, Nfsstat4, ReclaimCompleteArgs, StateProtect4A,
};

use rpc::Identity;

use crate::{
    clock,
    v4::{
        cursor::Cursor,
        service::Context,
        state::{client::Origin, ids::client_of},
        status::Fault4,
    },
};

pub(super) fn exchange_id(cx: &Context<'_>, at: &Cursor, args: &ExchangeIdArgs) -> Result<ExchangeIdOk, Fault4> {
    let (now, origin) = (clock::now(), origin(cx, at));
    if !matches!(args.state_protect, StateProtect4A::None) && !has_integrity(cx.identity) {
        return Err(Nfsstat4::Inval.into());
    }
    cx.shared.with_state(|state| {
        state.expire(now);
        Ok(state.exchange_id(now, at.minor, args, origin)?)
    })
}

/// Reports whether a call was authenticated with integrity or privacy. RFC 8881 §18.35.3 requires this of a client that
/// wants state protection, and §2.10.8.3 of each call that changes such a client. Kerberos without integrity (`krb5`) authenticates only the header.
pub(in crate::v4) fn has_integrity(caller: &Identity) -> bool {
    matches!(caller, Identity::Principal(principal) if principal.pseudo_flavor != KRB5)
}

/// Returns the principal and the address of the caller that introduces a client.
pub(super) fn origin<'a>(cx: &Context<'_>, at: &'a Cursor) -> Origin<'a> {
    let peer = cx.peer.ip();
    let (admitted, tls) = (cx.core.exports.admit(peer), at.connection.tls);
    let callback_flavor = match cx.identity {
        // Only NFSv4.0 needs to know: later versions are called over the client's connections.
        Identity::Principal(principal) if at.minor == 0 && cx.shared.callbacks.outgoing.can_call(principal) => {
            Some(principal.pseudo_flavor)
        }
        _ => None,
    };
    let has_integrity = has_integrity(cx.identity);
    Origin { principal: &at.principal, has_integrity, callback_flavor, peer, admitted, tls }
}

pub(super) fn create_session(
    cx: &Context<'_>,
    at: &Cursor,
    args: &CreateSessionArgs,
) -> Result<CreateSessionOk, Fault4> {
    let mut args = args.clone();
    // A message cannot be longer than the transport carries.
    let most = u32::try_from(cx.transport.message_max).unwrap_or(u32::MAX);
    let fore = &mut args.fore_chan_attrs;
    (fore.maxrequestsize, fore.maxresponsesize) = (fore.maxrequestsize.min(most), fore.maxresponsesize.min(most));
    let now = clock::now();
    cx.shared.with_state(|state| {
        // Remove client records that were not confirmed within a lease time.
        state.expire(now);
        state.check_integrity(args.clientid, has_integrity(cx.identity))?;
        Ok(state.create_session(now, &args, &at.principal, at.connection)?)
    })
}

pub(super) fn bind_conn_to_session(
    cx: &Context<'_>,
    at: &Cursor,
    args: &BindConnToSessionArgs,
) -> Result<BindConnToSessionOk, Fault4> {
    if at.session.is_some() {
        // §18.34.3: it is the only operation of its compound.
        //= rfc8881-18.34.3-2
        return Err(Nfsstat4::NotOnlyOp.into());
    }
    Ok(cx.shared.with_state(|state| {
        state.check_integrity(client_of(&args.sessid), has_integrity(cx.identity))?;
        state.bind_conn_to_session(args, &at.principal, at.connection)
    })?)
}

/// Executes BACKCHANNEL_CTL (§18.33): sets program and credentials of the session's callbacks.
pub(super) fn backchannel_ctl(cx: &Context<'_>, at: &Cursor, args: &BackchannelCtlArgs) -> Result<(), Fault4> {
    let id = at.session.as_ref().expect("the operation must come after SEQUENCE").id;
    Ok(cx.shared.with_state(|state| state.backchannel_ctl(id, args))?)
}

pub(super) fn destroy_session(cx: &Context<'_>, at: &Cursor, args: &DestroySessionArgs) -> Result<(), Fault4> {
    let own = at.session.as_ref().is_some_and(|session| session.id == args.sessionid);
    //= rfc8881-18.37.3-4
    if own && at.operations_left > 0 {
        // §18.37.3: the operations that follow would have no session.
        return Err(Nfsstat4::NotOnlyOp.into());
    }
    //= rfc8881-18.37.3-1
    let connection = at.connection.id;
    Ok(cx.shared.with_state(|state| {
        state.check_integrity(client_of(&args.sessionid), has_integrity(cx.identity))?;
        state.destroy_session(args.sessionid, own, &at.principal, connection)
    })?)
}

pub(super) fn destroy_clientid(cx: &Context<'_>, at: &Cursor, args: &ClientIdArgs) -> Result<(), Fault4> {
    //= rfc8881-18.50.3-1 rfc8881-18.50.3-2
    let own = at.session.as_ref().map(|session| session.client);
    let now = clock::now();
    Ok(cx.shared.with_state(|state| {
        state.check_integrity(args.clientid, has_integrity(cx.identity))?;
        state.destroy_clientid(now, args.clientid, own, &at.principal)
    })?)
}

pub(super) fn reclaim_complete(cx: &Context<'_>, at: &Cursor, args: &ReclaimCompleteArgs) -> Result<(), Fault4> {
    if args.one_fs {
        at.current()?;
    }
    Ok(cx.shared.grant(|state, _| state.reclaim_complete(at.client(), args))?)
}

/// The pseudo flavour of Kerberos 5 without integrity (RFC 7530 §3.2.1.1).
const KRB5: u32 = 390_003;

#[cfg(test)]
mod tests {
    use rpc::{AuthSys, security::Principal};

    use super::*;

    #[test]
    fn state_protection_needs_integrity() {
        let by = |pseudo_flavor| Identity::Principal(Principal { name: "host@REALM".into(), pseudo_flavor });
        assert!(has_integrity(&by(390_004)) && has_integrity(&by(390_005)));
        assert!(!has_integrity(&by(390_003)));
        assert!(!has_integrity(&Identity::None) && !has_integrity(&Identity::Sys(AuthSys::of_process())));
    }
}
