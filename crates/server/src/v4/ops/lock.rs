//! LOCK, LOCKT, LOCKU, FREE_STATEID and TEST_STATEID: RFC 8881 §18.10–18.12, §18.38, §18.48.
//!
//! The state machine and the lock table decide. A client that waits for a lock (READW_LT, WRITEW_LT) polls until it
//! gets the lock. From 4.1 on, CB_NOTIFY_LOCK tells it when to retry (§9.6, §20.11).

use nfs::v4::{
    FreeStateidArgs, LockArgs, LockRes, LockTArgs, LockTRes, LockUArgs, Locker4, Nfsstat4, Stateid4, TestStateidArgs,
};

use super::data::check_regular_file;
use crate::{
    clock,
    handle::FileId,
    v4::{cursor::Cursor, place::Place, service::Context, state::transitions::lock::LockFailure, status::Fault4},
};

pub(super) fn lock(cx: &Context<'_>, at: &mut Cursor, args: &LockArgs) -> Result<LockRes, Fault4> {
    let file = file(cx, at)?;
    let mut args = args.clone();
    match &mut args.locker {
        // From 4.1 on, the session identifies the client.
        //= rfc8881-18.10.3-3 rfc8881-18.10.3-4 rfc8881-18.10.3-5
        Locker4::New { lock_owner, .. } if at.minor == 0 && lock_owner.clientid != at.client() => {
            return Err(Nfsstat4::BadStateid.into());
        }
        Locker4::New { open_stateid, .. } => *open_stateid = at.stateid(*open_stateid)?,
        Locker4::Exist { lock_stateid, .. } => *lock_stateid = at.stateid(*lock_stateid)?,
    }
    let (client, now) = (at.client(), clock::now());
    match cx.shared.grant(|state, locks| state.lock(locks, client, &file, &args, now)) {
        Ok(stateid) => {
            at.set_stateid(stateid);
            Ok(LockRes::Ok(stateid))
        }
        Err(LockFailure::Denied(denied)) if denied.owner.owner.len() + DENIED_LEN > at.room => Err(at.too_big.into()),
        Err(LockFailure::Denied(denied)) => Ok(LockRes::Denied(denied)),
        Err(LockFailure::Status(status)) => Err(status.into()),
    }
}

pub(super) fn lockt(cx: &Context<'_>, at: &Cursor, args: &LockTArgs) -> Result<LockTRes, Fault4> {
    let file = file(cx, at)?;
    let client = at.client();
    match cx.shared.with_locks(|state, locks| state.lockt(locks, client, &file, args)) {
        Ok(()) => Ok(LockTRes::Fail(Nfsstat4::Ok)),
        Err(LockFailure::Denied(denied)) => Ok(LockTRes::Denied(denied)),
        Err(LockFailure::Status(status)) => Err(status.into()),
    }
}

pub(super) fn locku(cx: &Context<'_>, at: &mut Cursor, args: &LockUArgs) -> Result<Stateid4, Fault4> {
    let Place::Object(..) = at.current()? else { return Err(Nfsstat4::IsDir.into()) };
    let name = cx.file_id(at.current()?)?;
    let args = LockUArgs { lock_stateid: at.stateid(args.lock_stateid)?, ..args.clone() };
    let client = at.client();
    let unlocked = cx.shared.with_locks(|state, locks| state.locku(locks, client, &name, &args));
    let stateid = match unlocked {
        Ok(stateid) => stateid,
        Err(status) => {
            // No lock is released. The status for an object that is not a regular file takes precedence.
            file(cx, at)?;
            return Err(status.into());
        }
    };
    at.set_stateid(stateid);
    Ok(stateid)
}

pub(super) fn free_stateid(cx: &Context<'_>, at: &Cursor, args: &FreeStateidArgs) -> Result<(), Fault4> {
    let (client, stateid) = (at.client(), at.stateid(args.stateid)?);
    Ok(cx.shared.with_locks(|state, locks| state.free_stateid(locks, client, &stateid))?)
}

pub(super) fn test_stateid(cx: &Context<'_>, at: &Cursor, args: &TestStateidArgs) -> Result<Vec<Nfsstat4>, Fault4> {
    let client = at.client();
    Ok(cx.shared.with_state(|state| state.test_stateid(client, args)))
}

/// Returns the regular file to be locked.
fn file(cx: &Context<'_>, at: &Cursor) -> Result<FileId, Fault4> {
    let Place::Object(..) = at.current()? else { return Err(Nfsstat4::IsDir.into()) };
    let object = cx.object4(at.current()?)?;
    check_regular_file(object.getattr()?.kind)?;
    Ok((object.export.id(), object.handle))
}

/// The bytes of DENIED without those of the owner.
const DENIED_LEN: usize = 8 + 8 + 8 + 4 + 8 + 4 + 3;
