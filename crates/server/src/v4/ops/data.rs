//! READ, WRITE and COMMIT: RFC 8881 §18.3, §18.22, §18.32.
//!
//! These operations do not copy data: READ passes on what the file system lends or fills, and WRITE passes on the
//! payload of the call. A compound can have several of them. Each uses the next chunk of an RDMA call (RFC 8267 §6.4).

use nfs::v4::{CommitArgs, Nfsstat4, ReadArgs, ReadOk, StableHow4, Stateid4, Verifier4, WriteArgs, WriteOk};
use vfs::{Kind, Report, Stability, VfsError};

use crate::{
    call::{
        object::Object,
        transfer::{commit_range, read_range, write_part},
    },
    clock,
    v4::{cursor::Cursor, service::Context, status::Fault4},
};

pub(super) fn read(cx: &Context<'_>, at: &Cursor, args: &ReadArgs) -> Result<ReadOk, Fault4> {
    let file = cx.data_object(at)?;
    check_stateid(cx, at, &file, at.stateid(args.stateid)?, false)?;
    let (offset, len) = read_range(&cx.transport, args.offset, args.count);
    //= rfc8881-18.16.4-10
    let read = file.vfs().read_data(&file.caller(), &file.handle, offset, len, cx.pool, cx.transport.file_ranges);
    let (data, eof) = read.map_err(|error| data_fault(at, &file, error))?;
    if data.len().next_multiple_of(4) + READ_HEAD > at.room {
        return Err(at.too_big.into());
    }
    Ok(ReadOk { eof, data: data.into() })
}

pub(super) fn write(cx: &Context<'_>, at: &Cursor, args: &WriteArgs) -> Result<WriteOk, Fault4> {
    let file = cx.data_object(at)?;
    check_stateid(cx, at, &file, at.stateid(args.stateid)?, true)?;
    let data = write_part(&cx.transport, &file, args.offset, &args.data.0).ok_or(Nfsstat4::FBig)?;
    let stability = match args.stable {
        StableHow4::Unstable => Stability::Unstable,
        StableHow4::DataSync => Stability::DataSync,
        StableHow4::FileSync => Stability::FileSync,
    };
    let vfs = file.writable()?.vfs();
    //= rfc8881-18.32.4-3 rfc8881-10.2-2
    let _changing = cx.before_change(&file, Some(at.lock_client()))?;
    //= rfc8881-18.32.3-4
    let writeverf = file.write_verifier();
    //= rfc8881-18.16.4-10
    let written = vfs.write(&file.caller(), &file.handle, args.offset, &data, stability, Report::Nothing);
    let written = written.map_err(|error| data_fault(at, &file, error))?;
    let committed = match at.data_user() {
        None => written.stability,
        // The metadata server does not know the new size and times: FILE_SYNC4 would make LAYOUTCOMMIT needless for the client.
        Some(_) => written.stability.min(Stability::DataSync),
    };
    Ok(WriteOk { count: data.len() as u32, committed: stable_how(committed), writeverf })
}

pub(super) fn commit(cx: &Context<'_>, at: &Cursor, args: &CommitArgs) -> Result<Verifier4, Fault4> {
    let file = cx.data_object(at)?;
    let (offset, len) = commit_range(args.offset, args.count);
    let committed = file.vfs().commit(&file.caller(), &file.handle, offset, len);
    committed.map_err(|error| data_fault(at, &file, error))?;
    // Read the verifier after the commit: it has changed if writes were lost.
    Ok(file.vfs().write_verifier())
}

/// Checks that a stateid permits the client to read or write a file.
pub(super) fn check_stateid(
    cx: &Context<'_>,
    at: &Cursor,
    file: &Object<'_>,
    stateid: Stateid4,
    write: bool,
) -> Result<(), Fault4> {
    if at.data_user().is_some() {
        return Ok(check_foreign_stateid(stateid)?);
    }
    let name = (file.export.id(), file.handle.clone());
    let shard = at.session.as_ref().and_then(|session| session.shard.as_ref());
    let check = || {
        //= rfc8881-8.2.6-1 rfc8881-9.1.2-1 rfc8881-9.1.2-2 rfc8881-9.1.2-4
        if shard.is_some_and(|shard| shard.permits_io(&name, &stateid, write)) {
            return Ok(());
        }
        //= rfc8881-18.46.4-1
        let (client, now) = (at.client(), clock::now());
        //= rfc8881-18.32.3-6 rfc8881-8.2.3-5
        cx.shared.with_locks(|state, locks| state.check_io(locks, client, &name, &stateid, write, now))
    };
    Ok(file.once(if write { "may write" } else { "may read" }, check)?)
}

/// Checks a stateid of the metadata server. This server does not know which ones are valid: the users of the object decide which
/// clients can use it, and the metadata server changes them when it revokes a layout.
///
/// # Errors
/// BAD_STATEID for a special stateid.
fn check_foreign_stateid(stateid: Stateid4) -> Result<(), Nfsstat4> {
    // RFC 8881 §13.9.1: a client must not use special stateids, and a data server must refuse them.
    //= rfc8881-8.2.3-1 rfc8881-8.2.3-2
    match stateid.other == Stateid4::ANONYMOUS.other || stateid.other == Stateid4::READ_BYPASS.other {
        true => Err(Nfsstat4::BadStateid),
        false => Ok(()),
    }
}

/// Converts an error of an operation on data. A client with a [`DataHandle`](crate::DataHandle) that may not use the object has
/// no layout of this time, or one for another mode (RFC 8881 §13.6).
fn data_fault(at: &Cursor, file: &Object<'_>, error: VfsError) -> Fault4 {
    match error {
        VfsError::Access | VfsError::Perm if at.data_user().is_some() => Nfsstat4::PnfsNoLayout.into(),
        error => wrong_type(file, error),
    }
}

/// Converts an error of an operation on an object that may not be a regular file (§18.22.3).
pub(super) fn wrong_type(object: &Object<'_>, error: VfsError) -> Fault4 {
    if error != VfsError::Invalid {
        return error.into();
    }
    match object.getattr().map(|attr| attr.kind) {
        Err(VfsError::WouldBlock) => Fault4::WouldBlock,
        Ok(kind) => check_regular_file(kind).err().unwrap_or(Nfsstat4::Inval).into(),
        Err(error) => error.into(),
    }
}

/// Checks that an object is a regular file.
///
/// # Errors
/// ISDIR, SYMLINK or WRONG_TYPE.
pub(super) fn check_regular_file(kind: Kind) -> Result<(), Nfsstat4> {
    match kind {
        Kind::File => Ok(()),
        Kind::Dir => Err(Nfsstat4::IsDir),
        Kind::Symlink => Err(Nfsstat4::Symlink),
        _ => Err(Nfsstat4::WrongType),
    }
}

pub(super) fn stable_how(stability: Stability) -> StableHow4 {
    //= rfc8881-18.32.3-3
    match stability {
        Stability::Unstable => StableHow4::Unstable,
        Stability::DataSync => StableHow4::DataSync,
        Stability::FileSync => StableHow4::FileSync,
    }
}

/// The operation number, status, `eof` and the length of the data.
const READ_HEAD: usize = 16;
