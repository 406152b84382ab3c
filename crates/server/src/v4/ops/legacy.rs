//! The operations that only NFSv4.0 has: SETCLIENTID, SETCLIENTID_CONFIRM, RENEW, OPEN_CONFIRM and RELEASE_LOCKOWNER:
//! RFC 7530 §16.18, §16.28, §16.33, §16.34, §16.37.

use nfs::v4::{
    Netaddr4, Nfsstat4, OpenConfirmArgs, ReleaseLockOwnerArgs, SetClientIdArgs, SetClientIdConfirmArgs, SetClientIdRes,
    Stateid4,
};
use rpc::Xprtsec;

use super::{data::check_regular_file, session::origin};
use crate::{
    clock,
    v4::{cursor::Cursor, service::Context, status::Fault4},
};

pub(super) fn set_clientid(cx: &Context<'_>, at: &Cursor, args: &SetClientIdArgs) -> SetClientIdRes {
    let (now, origin) = (clock::now(), origin(cx, at));
    let mut args = args.clone();
    if cx.transport.tls != Xprtsec::None {
        // The server would call back in clear, and a callback contains file handles. So such a client gets no delegations.
        args.callback.cb_location = Netaddr4::default();
    }
    cx.shared.with_state(|state| {
        state.expire(now);
        match state.set_clientid(now, &args, origin) {
            Ok(introduced) => SetClientIdRes::Ok(introduced),
            Err(Nfsstat4::ClidInuse) => SetClientIdRes::ClidInuse(state.clients().callback_address(&args.client.id.0)),
            Err(status) => SetClientIdRes::Fail(status),
        }
    })
}

pub(super) fn set_clientid_confirm(cx: &Context<'_>, at: &Cursor, args: &SetClientIdConfirmArgs) -> Result<(), Fault4> {
    let (now, by) = (clock::now(), (&at.principal, at.connection.tls));
    Ok(cx.shared.with_state(|state| state.set_clientid_confirm(now, args, by))?)
}

/// Executes RENEW (§16.28). The search for the client has already renewed the lease.
pub(super) fn renew(cx: &Context<'_>, at: &Cursor) -> Result<(), Fault4> {
    Ok(cx.shared.with_state(|state| state.renew40(at.client()))?)
}

pub(super) fn open_confirm(cx: &Context<'_>, at: &mut Cursor, args: &OpenConfirmArgs) -> Result<Stateid4, Fault4> {
    let file = cx.object4(at.current()?)?;
    check_regular_file(file.getattr()?.kind)?;
    let (name, client) = ((file.export.id(), file.handle), at.client());
    Ok(cx.shared.with_state(|state| state.open_confirm(client, &name, &args.open_stateid))?)
}

pub(super) fn release_lockowner(cx: &Context<'_>, at: &Cursor, args: &ReleaseLockOwnerArgs) -> Result<(), Fault4> {
    let client = at.client();
    let released =
        cx.shared.with_locks(|state, locks| state.release_lockowner(locks, client, &args.lock_owner.owner.0));
    released.map_err(|status: Nfsstat4| status.into())
}
