//! The operations, with one file for each family.
//!
//! An operation is a function of the call's [`Context`], the [`Cursor`] of its compound, and its arguments. If it
//! returns [`Fault4::WouldBlock`], it has changed nothing or an operation of the file system is pending, and it runs
//! again from its beginning. Therefore a change of the state that precedes an operation of the file system goes through
//! [`Object::once`](crate::call::context::Object::once), and the cursor is changed last.

mod attributes;
mod data;
mod filehandle;
mod layout;
mod legacy;
mod lock;
mod namespace;
mod open;
mod ranges;
mod readdir;
pub(super) mod session;
mod xattr;

use nfs::v4::{
    Argop4, BadOperation, Bitmap4, GetDirDelegationNonFatal, Nfsstat4, OpResult, OpenClaim4, Openflag4, Opnum4, Resop4,
};
use xdr::{Encode, Encoder};

use super::cursor::Cursor;
use crate::{
    call::error::{Fault, WouldBlock},
    v4::{service::Context, status::Fault4},
};

/// The maximum bytes of the result of an operation that changes something.
pub(super) const CHANGE_LEN_MAX: usize = 160;

/// §18.39.3: directory delegations are not supported, and the client is not notified later.
const NO_DIR_DELEGATION: GetDirDelegationNonFatal =
    GetDirDelegationNonFatal::Unavail { will_signal_deleg_avail: false };

/// Returns `true` if an operation changes something. Such an operation must not fail after it was executed.
pub(super) fn changes(opnum: Opnum4) -> bool {
    use Opnum4::*;
    !matches!(
        opnum,
        Access
            | GetAttr
            | GetFh
            | LockT
            | Lookup
            | LookupP
            | NVerify
            | PutFh
            | PutPubFh
            | PutRootFh
            | Read
            | ReadDir
            | ReadLink
            | RestoreFh
            | SaveFh
            | Secinfo
            | SecinfoNoName
            | Verify
            | TestStateid
            | ReadPlus
            | Seek
            | GetXattr
            | ListXattrs
            | OffloadStatus
            | GetDeviceInfo
            | Sequence
    )
}

/// Returns `false` for an operation that the server executes whatever the security flavour of the current file handle is, and that
/// keeps the handle: an operation after it decides about the flavour.
pub(super) fn decides_flavor(operation: &Result<Argop4, BadOperation<Opnum4>>) -> bool {
    match operation {
        //= rfc8881-2.6.3.1.1.1-1
        Ok(Argop4::SaveFh) => false,
        Ok(Argop4::GetAttr(args)) => !attributes::is_of_server(&args.attr_request),
        _ => true,
    }
}

/// Returns `true` if `next` may be the next operation that [decides](decides_flavor) after the current file handle was set to one
/// whose export does not allow the security flavour of the call: it decides itself about the flavour of the object that it finds,
/// or does not use the file handle (RFC 8881 §2.6.3.1.1).
pub(super) fn may_follow_wrong_sec(next: Option<&Result<Argop4, BadOperation<Opnum4>>>) -> bool {
    use Argop4::*;
    //= rfc8881-2.6.3.1.1.6-1
    let Some(Ok(next)) = next else { return true };
    match next {
        //= rfc8881-2.6.3.1.1.3-1
        Open(args) => {
            let by_name = matches!(args.claim, OpenClaim4::Null(_) | OpenClaim4::DelegateCur { .. });
            by_name && args.openhow == Openflag4::NoCreate
        }
        //= rfc8881-18.29.4-5 rfc8881-2.6.3.1.1.2-1 rfc8881-2.6.3.1.1.4-1 rfc8881-2.6.3.1.1.4-2 rfc8881-2.6.3.1.1.5-1
        next => matches!(
            next,
            PutFh(_) | PutRootFh | PutPubFh | RestoreFh | Lookup(_) | LookupP | Secinfo(_) | SecinfoNoName(_)
        ),
    }
}

/// Returns `true` if `operations` do nothing but release state, by operations of `allowed`. LAYOUTRETURN and GETATTR may be among
/// them: clients send them in the same compound as the operation that releases state.
pub(super) fn only_release(
    operations: impl Iterator<Item = Result<Argop4, BadOperation<Opnum4>>>,
    allowed: &Bitmap4,
) -> bool {
    let mut releases = false;
    for operation in operations {
        let Ok(opnum) = operation.map(|operation| operation.opnum()) else { return false };
        let is_allowed = allowed.contains(opnum as u32);
        if !is_allowed && !matches!(opnum, Opnum4::PutFh | Opnum4::GetAttr | Opnum4::LayoutReturn) {
            return false;
        }
        releases |= is_allowed;
    }
    releases
}

/// Returns `true` if an operation is executed although the current file handle belongs to a file system on another
/// server: the operation asks for its location, or does not use the file handle (RFC 8881 §11.3.2, RFC 7530 §8.2).
fn is_allowed_on_absent(opnum: Opnum4) -> bool {
    use Opnum4::*;
    let asks = matches!(opnum, GetAttr | Verify | NVerify);
    let leaves = matches!(opnum, PutFh | PutPubFh | PutRootFh | RestoreFh);
    let of_state = matches!(
        opnum,
        FreeStateid | ReclaimComplete | ReleaseLockOwner | Renew | SetClientId | SetClientIdConfirm | TestStateid
    );
    asks || leaves || of_state || is_of_sessions(opnum)
}

/// Returns `true` if an operation is executed while the current file handle is for data ([`Cursor::is_for_data`]): it is one of those
/// that a client sends to a data server (RFC 8881 §13.6).
fn is_allowed_on_data(opnum: Opnum4) -> bool {
    use Opnum4::*;
    matches!(opnum, Commit | PutFh | Read | Write) || is_of_sessions(opnum)
}

/// Returns `true` for the operations of clients and sessions that every server of NFSv4.1 has.
fn is_of_sessions(opnum: Opnum4) -> bool {
    use Opnum4::*;
    matches!(
        opnum,
        BackchannelCtl
            | BindConnToSession
            | CreateSession
            | DestroyClientId
            | DestroySession
            | ExchangeId
            | Sequence
            | SetSsv
    )
}

/// Executes an operation and appends its result.
pub(super) fn execute(
    cx: &Context<'_>,
    at: &mut Cursor,
    operation: &Argop4,
    out: &mut Encoder,
) -> Result<Nfsstat4, WouldBlock> {
    // Long: one arm for each operation.
    use Argop4::*;
    let mut out = Output { out, opnum: operation.opnum() };
    if at.current().is_ok_and(|place| cx.is_absent(place)) && !is_allowed_on_absent(operation.opnum()) {
        return out.fail(Nfsstat4::Moved);
    }
    if at.is_for_data() && !is_allowed_on_data(operation.opnum()) {
        return out.fail(Nfsstat4::NotSupp);
    }
    if !matches!(operation, GetFh | GetAttr(_) | Verify(_) | NVerify(_)) {
        at.forget_known();
    }
    match operation {
        Access(args) => out.put(attributes::access(cx, at, args)),
        GetAttr(args) => out.write(|out| attributes::getattr(cx, at, args, out)),
        SetAttr(args) => out.put_as(attributes::setattr(cx, at, args), Resop4::SetAttr),
        Verify(args) => out.put(attributes::verify(cx, at, args, true)),
        NVerify(args) => out.put(attributes::verify(cx, at, args, false)),

        GetFh => out.put(filehandle::getfh(cx, at)),
        PutFh(args) => out.put(filehandle::putfh(cx, at, args)),
        PutPubFh | PutRootFh => out.put(filehandle::putrootfh(cx, at)),
        RestoreFh => out.put(filehandle::restorefh(cx, at)),
        SaveFh => out.put(filehandle::savefh(at)),
        Lookup(args) => out.put(filehandle::lookup(cx, at, args)),
        LookupP => out.put(filehandle::lookupp(cx, at)),
        Secinfo(args) => out.put(filehandle::secinfo(cx, at, args)),
        SecinfoNoName(style) => out.put(filehandle::secinfo_no_name(cx, at, *style)),

        //= rfc8881-18.29.4-1
        Create(args) => out.put(namespace::create(cx, at, args)),
        Link(args) => out.put(namespace::link(cx, at, args)),
        ReadLink => out.put(namespace::readlink(cx, at)),
        Remove(args) => out.put(namespace::remove(cx, at, args)),
        Rename(args) => out.put(namespace::rename(cx, at, args)),
        ReadDir(args) => out.put(readdir::readdir(cx, at, args)),

        Commit(args) => out.put(data::commit(cx, at, args)),
        Read(args) => out.put(data::read(cx, at, args)),
        Write(args) => out.put(data::write(cx, at, args)),

        Close(args) => out.put(open::close(cx, at, args)),
        Open(args) => out.put(open::open(cx, at, args)),
        OpenDowngrade(args) => out.put(open::open_downgrade(cx, at, args)),
        FreeStateid(args) => out.put(lock::free_stateid(cx, at, args)),
        TestStateid(args) => out.put(lock::test_stateid(cx, at, args)),
        Lock(args) => out.put_as(lock::lock(cx, at, args).map(|res| (res.status(), res)), Resop4::Lock),
        LockT(args) => out.put_as(lock::lockt(cx, at, args).map(|res| (res.status(), res)), Resop4::LockT),
        LockU(args) => out.put(lock::locku(cx, at, args)),

        Allocate(args) => out.put(ranges::allocate(cx, at, args)),
        Clone(args) => out.put(ranges::clone(cx, at, args)),
        Copy(args) => out.put(ranges::copy(cx, at, args)),
        OffloadCancel(args) => out.put(ranges::offload_cancel(cx, at, args)),
        OffloadStatus(args) => out.put(ranges::offload_status(cx, at, args)),
        Deallocate(args) => out.put(ranges::deallocate(cx, at, args)),
        IoAdvise(args) => out.put(ranges::io_advise(cx, at, args)),
        ReadPlus(args) => out.put(ranges::read_plus(cx, at, args)),
        Seek(args) => out.put(ranges::seek(cx, at, args)),
        GetXattr(args) => out.put(xattr::getxattr(cx, at, args)),
        SetXattr(args) => out.put(xattr::setxattr(cx, at, args)),
        ListXattrs(args) => out.put(xattr::listxattrs(cx, at, args)),
        RemoveXattr(args) => out.put(xattr::removexattr(cx, at, args)),

        BackchannelCtl(args) => out.put(session::backchannel_ctl(cx, at, args)),
        // §18.47.3: no client uses state protection by a secret (SSV).
        SetSsv(_) => out.fail(Nfsstat4::Inval),
        BindConnToSession(args) => out.put(session::bind_conn_to_session(cx, at, args)),
        CreateSession(args) => out.put(session::create_session(cx, at, args)),
        DestroyClientId(args) => out.put(session::destroy_clientid(cx, at, args)),
        DestroySession(args) => out.put(session::destroy_session(cx, at, args)),
        ExchangeId(args) => out.put(session::exchange_id(cx, at, args)),
        ReclaimComplete(args) => out.put(session::reclaim_complete(cx, at, args)),
        //= rfc8881-18.46.3-1 rfc8881-2.10.2.1-1
        Sequence(_) => out.fail(Nfsstat4::SequencePos),

        GetDirDelegation(_) => out.put(at.current().map_err(Fault::from).map(|_| NO_DIR_DELEGATION)),
        DelegReturn(args) => out.put(open::delegreturn(cx, at, args)),
        GetDeviceInfo(args) => {
            out.put_as(layout::getdeviceinfo(cx, at, args).map(|res| (res.status(), res)), Resop4::GetDeviceInfo)
        }
        LayoutCommit(args) => out.put(layout::layoutcommit(cx, at, args)),
        LayoutError(args) => out.put(layout::layouterror(cx, at, args)),
        LayoutGet(args) => {
            out.put_as(layout::layoutget(cx, at, args).map(|res| (res.status(), res)), Resop4::LayoutGet)
        }
        LayoutReturn(args) => out.put(layout::layoutreturn(cx, at, args)),
        LayoutStats(args) => out.put(layout::layoutstats(cx, at, args)),
        // Not supported: named attributes, lists of all devices, copies between servers, WRITE_SAME, and delegations that
        // survive a restart of the client.
        CopyNotify(_) | DelegPurge(_) | GetDeviceList(_) | OpenAttr(_) | WantDelegation(_) | WriteSame(_) => {
            out.fail(Nfsstat4::NotSupp)
        }
        // In 4.0 only: in later versions the decoder rejects these operations.
        OpenConfirm(args) => out.put(legacy::open_confirm(cx, at, args)),
        ReleaseLockOwner(args) => out.put(legacy::release_lockowner(cx, at, args)),
        Renew(_) => out.put(legacy::renew(cx, at)),
        SetClientId(args) => {
            let result = legacy::set_clientid(cx, at, args);
            out.put_as(Ok((result.status(), result)), Resop4::SetClientId)
        }
        SetClientIdConfirm(args) => out.put(legacy::set_clientid_confirm(cx, at, args)),
    }
}

/// The destination of the result of one operation.
struct Output<'o> {
    out: &'o mut Encoder,
    opnum: Opnum4,
}

impl Output<'_> {
    /// Appends a result that has a body only with status OK.
    fn put<T: Encode>(&mut self, result: Result<T, Fault4>) -> Result<Nfsstat4, WouldBlock> {
        match result {
            Ok(body) => {
                self.opnum.encode(self.out);
                Nfsstat4::Ok.encode(self.out);
                body.encode(self.out);
                Ok(Nfsstat4::Ok)
            }
            Err(Fault::WouldBlock) => Err(WouldBlock),
            Err(Fault::Status(status)) => self.fail(status),
        }
    }

    /// Appends a result that has a body only with status OK. The closure writes the body.
    fn write(&mut self, body: impl FnOnce(&mut Encoder) -> Result<(), Fault4>) -> Result<Nfsstat4, WouldBlock> {
        let start = self.out.stream_len();
        self.opnum.encode(self.out);
        Nfsstat4::Ok.encode(self.out);
        let fault = match body(self.out) {
            Ok(()) => return Ok(Nfsstat4::Ok),
            Err(fault) => fault,
        };
        self.out.truncate(start);
        self.put::<()>(Err(fault))
    }

    /// Appends a result that has a body with other statuses too.
    fn put_as<T>(
        &mut self,
        result: Result<(Nfsstat4, T), Fault4>,
        whole: impl FnOnce(T) -> Resop4,
    ) -> Result<Nfsstat4, WouldBlock> {
        match result {
            Ok((status, body)) => {
                whole(body).encode(self.out);
                Ok(status)
            }
            Err(Fault::WouldBlock) => Err(WouldBlock),
            Err(Fault::Status(status)) => self.fail(status),
        }
    }

    fn fail(&mut self, status: Nfsstat4) -> Result<Nfsstat4, WouldBlock> {
        Resop4::failure(self.opnum, status).encode(self.out);
        Ok(status)
    }
}
