//! The procedures of NLM: they translate arguments to calls of [`Lockd`](super::lockd::Lockd), and its answers to
//! results.
//!
//! A caller that may read a file may lock it, and so may its owner. A caller that may only write it may lock it
//! exclusively. Unlocking requires only the file handle.

use std::marker::PhantomData;

use nfs::nlm::{
    self, CancelArgs, LockArgs, Nlm4Stats, NlmProc4, Res, ShareAccess, ShareMode, TestArgs, TestReply, TestRes,
    UnlockArgs,
};
use vfs::{Kind, Rights, VfsError};
use xdr::{Decode, Encode, Encoder, Message};

use super::lockd::{CallOrigin, LockRequest, Lockd, svid_and_oh};
use crate::{
    call::{context, error::WouldBlock, exec::Answer},
    export::policy::Purpose,
    handle::FileId,
    sharing::{
        conflict::Conflict,
        locks::{LockKind, Range, Share as ShareReservation},
    },
};

type Context<'a> = context::Context<'a, Lockd>;

/// Implements [`Answer`] for a procedure and, if it has one, for its `_MSG` procedure, whose result is a call of the
/// server.
macro_rules! answers {
    ($($name:ident, $text:literal: $args:ty => $function:ident $(, $msg:ident, $msg_text:literal by $response:ident)?;)*) => {$(
        pub(super) struct $name;

        impl Answer for $name {
            type Shared = Lockd;
            type Args = $args;
            type Status = Nlm4Stats;
            const NAME: &'static str = $text;

            fn answer(cx: &Context<'_>, args: &$args, out: &mut Encoder) -> Result<Nlm4Stats, WouldBlock> {
                let (status, results) = $function(cx, args)?;
                results.encode(out);
                Ok(status)
            }
        }

        $(pub(super) struct $msg;

        impl Answer for $msg {
            type Shared = Lockd;
            type Args = $args;
            type Status = Nlm4Stats;
            const NAME: &'static str = $msg_text;

            fn answer(cx: &Context<'_>, args: &$args, _: &mut Encoder) -> Result<Nlm4Stats, WouldBlock> {
                let (status, results) = $function(cx, args)?;
                let results = Message::encode(&results).stream;
                cx.shared.respond(from(cx, b""), NlmProc4::$response, results);
                Ok(status)
            }
        })?
    )*};
}

answers! {
    Test, "TEST": TestArgs => test, TestMsg, "TEST_MSG" by TestRes;
    Lock, "LOCK": LockArgs => lock, LockMsg, "LOCK_MSG" by LockRes;
    NmLock, "NM_LOCK": LockArgs => nm_lock;
    Cancel, "CANCEL": CancelArgs => cancel, CancelMsg, "CANCEL_MSG" by CancelRes;
    Unlock, "UNLOCK": UnlockArgs => unlock, UnlockMsg, "UNLOCK_MSG" by UnlockRes;
    Granted, "GRANTED": TestArgs => granted, GrantedMsg, "GRANTED_MSG" by GrantedRes;
    Share, "SHARE": nlm::ShareArgs => share;
    Unshare, "UNSHARE": nlm::ShareArgs => unshare;
}

/// A result for which the server has no call outstanding. It is ignored.
pub(super) struct Unexpected<A>(PhantomData<A>);

impl<A: Decode + Send + 'static> Answer for Unexpected<A> {
    type Shared = Lockd;
    type Args = A;
    type Status = ();
    const NAME: &'static str = "a result";

    fn answer(_: &Context<'_>, _: &A, _: &mut Encoder) -> Result<(), WouldBlock> {
        Ok(())
    }
}

pub(super) struct FreeAll;

impl Answer for FreeAll {
    type Shared = Lockd;
    type Args = nlm::FreeAllArgs;
    type Status = ();
    const NAME: &'static str = "FREE_ALL";

    fn answer(cx: &Context<'_>, args: &nlm::FreeAllArgs, _: &mut Encoder) -> Result<(), WouldBlock> {
        cx.shared.free_all(from(cx, &args.name));
        Ok(())
    }
}

type Results<R> = Result<(Nlm4Stats, R), WouldBlock>;

fn test(cx: &Context<'_>, args: &TestArgs) -> Results<TestRes> {
    let reply = (|| {
        let (file, range) = (lockable(cx, &args.lock.fh, args.exclusive)?, range(&args.lock)?);
        if cx.core.locks.in_grace() {
            return Err(Refused::Status(Nlm4Stats::DeniedGracePeriod));
        }
        let from = from(cx, &args.lock.caller_name);
        let Some(holder) = cx.shared.test(from, &args.lock, &file, range, kind(args.exclusive)) else {
            return Ok(TestReply::Granted);
        };
        let (svid, oh) = svid_and_oh(&holder.owner);
        let (offset, len) = (holder.range.first(), holder.range.length().unwrap_or(0));
        Ok(TestReply::Denied(nlm::Holder { exclusive: holder.kind == LockKind::Exclusive, svid, oh, offset, len }))
    })();
    let reply = match reply {
        Ok(reply) => reply,
        Err(Refused::WouldBlock) => return Err(WouldBlock),
        Err(Refused::Status(status)) => TestReply::without_holder(status),
    };
    Ok((reply.status(), TestRes { cookie: args.cookie.clone(), reply }))
}

fn lock(cx: &Context<'_>, args: &LockArgs) -> Results<Res> {
    result(&args.cookie, lock_monitored(cx, args, Some(args.state)))
}

/// Executes NM_LOCK, from a host that cannot be monitored. Its locks are lost when this server restarts.
fn nm_lock(cx: &Context<'_>, args: &LockArgs) -> Results<Res> {
    result(&args.cookie, lock_monitored(cx, args, None))
}

fn lock_monitored(cx: &Context<'_>, args: &LockArgs, monitor: Option<i32>) -> Result<Nlm4Stats, Refused> {
    let file = lockable(cx, &args.lock.fh, args.exclusive)?;
    let _undelegated = cx.before_lock(&file, args.exclusive)?;
    let ask = LockRequest {
        file,
        range: range(&args.lock)?,
        lock: &args.lock,
        kind: kind(args.exclusive),
        wait: args.block,
        reclaim: args.reclaim,
        monitor,
        may_block: cx.may_block,
    };
    cx.shared.lock(from(cx, &args.lock.caller_name), &ask).map_err(|WouldBlock| Refused::WouldBlock)
}

fn cancel(cx: &Context<'_>, args: &CancelArgs) -> Results<Res> {
    let status = (|| {
        let (file, range) = (file(cx, &args.lock.fh)?, range(&args.lock)?);
        let from = from(cx, &args.lock.caller_name);
        let cancelled = cx.shared.cancel(from, &args.lock, &file, range, kind(args.exclusive));
        Ok(if cancelled { Nlm4Stats::Granted } else { Nlm4Stats::Denied })
    })();
    result(&args.cookie, status)
}

fn unlock(cx: &Context<'_>, args: &UnlockArgs) -> Results<Res> {
    let status = (|| {
        let (file, range) = (file(cx, &args.lock.fh)?, range(&args.lock)?);
        Ok(cx.shared.unlock(from(cx, &args.lock.caller_name), &args.lock, &file, range))
    })();
    result(&args.cookie, status)
}

/// Executes GRANTED. It fails, because the server itself waits for no lock.
fn granted(_: &Context<'_>, args: &TestArgs) -> Results<Res> {
    result(&args.cookie, Ok(Nlm4Stats::Denied))
}

fn share(cx: &Context<'_>, args: &nlm::ShareArgs) -> Results<nlm::ShareRes> {
    let share = &args.share;
    let status = (|| {
        let file = lockable(cx, &share.fh, matches!(share.access, ShareAccess::Write))?;
        let from = from(cx, &share.caller_name);
        let _undelegated = cx.before_lock(&file, true)?;
        Ok(cx.shared.share(from, &share.oh, &file, reservation(share.mode, share.access), args.reclaim))
    })();
    share_result(args, status)
}

fn unshare(cx: &Context<'_>, args: &nlm::ShareArgs) -> Results<nlm::ShareRes> {
    let status = file(cx, &args.share.fh).map(|file| {
        cx.shared.unshare(from(cx, &args.share.caller_name), &args.share.oh, &file);
        Nlm4Stats::Granted
    });
    share_result(args, status)
}

/// The reason why a call ends before it reaches [`Lockd`].
enum Refused {
    WouldBlock,
    Status(Nlm4Stats),
}

impl std::convert::From<VfsError> for Refused {
    fn from(error: VfsError) -> Self {
        Refused::Status(match error {
            VfsError::WouldBlock => return Refused::WouldBlock,
            VfsError::Stale | VfsError::BadHandle | VfsError::NotFound => Nlm4Stats::StaleFh,
            VfsError::ReadOnly => Nlm4Stats::RoFs,
            VfsError::Access | VfsError::Perm => Nlm4Stats::Denied,
            VfsError::Delay => Nlm4Stats::DeniedNoLocks,
            _ => Nlm4Stats::Failed,
        })
    }
}

impl std::convert::From<Conflict> for Refused {
    fn from(conflict: Conflict) -> Self {
        match conflict {
            Conflict::WouldBlock => Refused::WouldBlock,
            // This is the only status on which a client retries by itself after a pause.
            Conflict::Recalled => Refused::Status(Nlm4Stats::DeniedGracePeriod),
        }
    }
}

fn result(cookie: &nlm::Netobj, status: Result<Nlm4Stats, Refused>) -> Results<Res> {
    let status = match status {
        Ok(status) | Err(Refused::Status(status)) => status,
        Err(Refused::WouldBlock) => return Err(WouldBlock),
    };
    Ok((status, Res { cookie: cookie.clone(), status }))
}

fn share_result(args: &nlm::ShareArgs, status: Result<Nlm4Stats, Refused>) -> Results<nlm::ShareRes> {
    let (status, Res { cookie, .. }) = result(&args.cookie, status)?;
    Ok((status, nlm::ShareRes { cookie, status, sequence: 0 }))
}

fn from<'a>(cx: &Context<'_>, name: &'a [u8]) -> CallOrigin<'a> {
    CallOrigin { peer: cx.peer, lossy: cx.transport.lossy, name }
}

fn kind(exclusive: bool) -> LockKind {
    if exclusive { LockKind::Exclusive } else { LockKind::Shared }
}

fn reservation(mode: ShareMode, access: ShareAccess) -> ShareReservation {
    let (access, deny) = (access as u32, mode as u32);
    let has = |bits: u32, bit| bits & bit != 0;
    ShareReservation { read: has(access, 1), write: has(access, 2), deny_read: has(deny, 1), deny_write: has(deny, 2) }
}

/// Returns the range of a lock, or `FBig` if it is beyond the maximum file size.
fn range(lock: &nlm::Lock) -> Result<Range, Refused> {
    let last_max = i64::MAX as u64;
    let fits = lock.offset <= last_max && lock.len.saturating_sub(1) <= last_max - lock.offset;
    match lock.len {
        _ if !fits => Err(Refused::Status(Nlm4Stats::FBig)),
        0 => Ok(Range::to_end(lock.offset)),
        len => Ok(Range::new(lock.offset, len).expect("range must not be empty and must fit")),
    }
}

/// Returns the file of a handle, for a procedure that releases something. It does not look up the caller: a lock must not
/// stay because the name service fails.
fn file(cx: &Context<'_>, fh: &[u8]) -> Result<FileId, Refused> {
    let (id, handle) = cx.core.key.open(fh)?;
    cx.export(id, Purpose::Locks).map_err(VfsError::from)?;
    Ok((id, handle))
}

/// Returns the file of a handle, if the caller may lock it.
fn lockable(cx: &Context<'_>, fh: &[u8], exclusive: bool) -> Result<FileId, Refused> {
    let object = cx.object_for(fh, Purpose::Locks)?;
    let wanted = Rights { read: true, modify: exclusive, ..Rights::default() };
    let (rights, attr) = object.vfs().access(&object.caller(), &object.handle, wanted)?;
    if attr.kind != Kind::File {
        return Err(Refused::Status(Nlm4Stats::Failed));
    }
    if !rights.read && !rights.modify && attr.uid != object.caller().cred.uid {
        return Err(Refused::Status(Nlm4Stats::Denied));
    }
    Ok((object.export.id(), object.handle))
}
