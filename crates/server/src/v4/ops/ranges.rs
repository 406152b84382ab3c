//! The operations of version 4.2 on ranges of files: ALLOCATE, DEALLOCATE, SEEK, READ_PLUS, COPY, CLONE and IO_ADVISE:
//! RFC 7862 §15.1, §15.2, §15.4, §15.5, §15.10, §15.11, §15.13.
//!
//! Copies stay within this server. A large copy is asynchronous if the client permits that (see `offload`), with
//! OFFLOAD_STATUS and OFFLOAD_CANCEL (§15.8, §15.9). Otherwise a large copy is short, as §15.2.3 permits, so that it
//! does not occupy a thread for long, and the client copies the rest.

use nfs::v4::{
    AllocateArgs, Bitmap4, CloneArgs, CopyArgs, CopyOk, CopyRequirements4, DataContent4, IoAdviseArgs, Nfsstat4,
    OffloadArgs, OffloadStatusOk, ReadArgs, ReadPlusContent, ReadPlusOk, SeekArgs, SeekOk, StableHow4, Stateid4,
    WriteResponse4,
};
use vfs::{SeekFor, VfsError};

use super::data::{check_regular_file, check_stateid, wrong_type};
use crate::{
    call::{
        object::Object,
        transfer::{OFFSET_MAX, transfer_max},
    },
    v4::{cursor::Cursor, offload::copy::Ranges, service::Context, status::Fault4},
};

pub(super) fn allocate(cx: &Context<'_>, at: &Cursor, args: &AllocateArgs) -> Result<(), Fault4> {
    let file = range_of(cx, at, args)?;
    let _changing = cx.before_change(&file, Some(at.lock_client()))?;
    let done = file.vfs().allocate(&file.caller(), &file.handle, args.offset, args.length);
    done.map_err(|error| wrong_type(&file, error))?;
    Ok(())
}

pub(super) fn deallocate(cx: &Context<'_>, at: &Cursor, args: &AllocateArgs) -> Result<(), Fault4> {
    let file = range_of(cx, at, args)?;
    let _changing = cx.before_change(&file, Some(at.lock_client()))?;
    let done = file.vfs().deallocate(&file.caller(), &file.handle, args.offset, args.length);
    done.map_err(|error| wrong_type(&file, error))?;
    Ok(())
}

pub(super) fn seek(cx: &Context<'_>, at: &Cursor, args: &SeekArgs) -> Result<SeekOk, Fault4> {
    let file = readable(cx, at, args.stateid)?;
    let what = match args.what {
        DataContent4::Data => SeekFor::Data,
        DataContent4::Hole => SeekFor::Hole,
    };
    let found = file.vfs().seek(&file.caller(), &file.handle, args.offset, what);
    match found.map_err(|error| wrong_type(&file, error))? {
        Some(offset) => Ok(SeekOk { eof: false, offset }),
        // §15.11.3: not found. Everything after the last byte is a hole.
        None => Ok(SeekOk { eof: true, offset: file.getattr()?.size }),
    }
}

pub(super) fn read_plus(cx: &Context<'_>, at: &Cursor, args: &ReadArgs) -> Result<ReadPlusOk, Fault4> {
    let file = readable(cx, at, args.stateid)?;
    let size = file.getattr()?.size;
    // Holes take no space in the reply, so both the range and the number of segments are bounded.
    let end = args.offset.saturating_add(args.count.into()).min(size);
    let mut room = (transfer_max(&cx.transport) as usize).min(at.room.saturating_sub(READ_PLUS_HEAD)) as u64;
    let (mut offset, mut contents) = (args.offset, Vec::new());
    while offset < end && room > SEGMENT_HEAD && contents.len() < SEGMENTS_MAX {
        let segment = segment(cx, &file, (offset, end), room - SEGMENT_HEAD)?;
        let next = match &segment {
            ReadPlusContent::Data { data, .. } => {
                room -= SEGMENT_HEAD + data.len() as u64;
                offset + data.len() as u64
            }
            ReadPlusContent::Hole { length, .. } => {
                room -= SEGMENT_HEAD;
                offset + length
            }
        };
        if next == offset {
            // The file was truncated in the meantime.
            break;
        }
        offset = next;
        contents.push(segment);
    }
    Ok(ReadPlusOk { eof: offset >= size, contents })
}

/// Returns the segment that begins at `offset`: data of at most `data_max` bytes, or a hole.
fn segment(
    cx: &Context<'_>,
    file: &Object<'_>,
    (offset, end): (u64, u64),
    data_max: u64,
) -> Result<ReadPlusContent, Fault4> {
    let (vfs, caller) = (file.vfs(), file.caller());
    let data_end = match vfs.seek(&caller, &file.handle, offset, SeekFor::Data) {
        // If the file system does not report holes, everything is data. The file may also have been truncated.
        Err(VfsError::NotSupported | VfsError::NoDevice) => end,
        Ok(Some(data)) if data <= offset => {
            let hole = vfs.seek(&caller, &file.handle, offset, SeekFor::Hole);
            hole.ok().flatten().map_or(end, |hole| hole.min(end))
        }
        Ok(found) => {
            let length = found.map_or(end, |data| data.min(end)) - offset;
            return Ok(ReadPlusContent::Hole { offset, length });
        }
        Err(error) => return Err(error.into()),
    };
    let len = (data_end - offset).min(data_max) as usize;
    let read = vfs.read(&caller, &file.handle, offset, len, cx.pool, false)?;
    let data = read.data.to_bytes().map_err(|_| Nfsstat4::Io)?;
    Ok(ReadPlusContent::Data { offset, data: data.into() })
}

pub(super) fn copy(cx: &Context<'_>, at: &Cursor, args: &CopyArgs) -> Result<CopyOk, Fault4> {
    if !args.source_server.is_empty() {
        // A copy from another server.
        return Err(Nfsstat4::NotSupp.into());
    }
    let (source, target) = source_and_target(cx, at, args.src_stateid, args.dst_stateid)?;
    let size = source.getattr()?.size;
    // §15.2.3: the source must have the whole range. A count of zero means up to its end.
    let len = if args.count == 0 { size.checked_sub(args.src_offset) } else { Some(args.count) };
    let len = len.filter(|&len| args.src_offset.checked_add(len).is_some_and(|end| end <= size));
    let len = len.ok_or(Nfsstat4::Inval)?;
    let vfs = target.vfs();
    let writeverf = target.write_verifier();
    let changing = cx.before_change(&target, Some(at.lock_client()))?;
    let disjoint = args.src_offset.abs_diff(args.dst_offset) >= len;
    let _changing = if args.synchronous || !(disjoint || source.handle != target.handle) {
        changing
    } else {
        let (from, to) = ((source.handle.clone(), args.src_offset), (target.handle.clone(), args.dst_offset));
        let by = (at.client(), at.session.as_ref().map(|session| session.call));
        match cx.begin_copy(by, Ranges { export: target.export.id(), from, to, len }, writeverf, changing) {
            Ok(begun) => return Ok(begun),
            Err(changing) => changing,
        }
    };
    let (from, to) = ((&source.handle, args.src_offset), (&target.handle, args.dst_offset));
    let count = vfs.copy(&target.caller(), from, to, len).map_err(|error| wrong_type(&target, error))?;
    let response = WriteResponse4 { callback_id: None, count, committed: StableHow4::Unstable, writeverf };
    Ok(CopyOk { response, requirements: CopyRequirements4 { consecutive: true, synchronous: true } })
}

pub(super) fn offload_status(cx: &Context<'_>, at: &Cursor, args: &OffloadArgs) -> Result<OffloadStatusOk, Fault4> {
    let file = cx.object4(at.current()?)?;
    Ok(cx.shared.offloads.status(at.client(), &(file.export.id(), file.handle), &args.stateid)?)
}

pub(super) fn offload_cancel(cx: &Context<'_>, at: &Cursor, args: &OffloadArgs) -> Result<(), Fault4> {
    let file = cx.object4(at.current()?)?;
    Ok(cx.shared.offloads.cancel(at.client(), &(file.export.id(), file.handle), &args.stateid)?)
}

pub(super) fn clone(cx: &Context<'_>, at: &Cursor, args: &CloneArgs) -> Result<(), Fault4> {
    let (source, target) = source_and_target(cx, at, args.src_stateid, args.dst_stateid)?;
    let (from, to) = ((&source.handle, args.src_offset), (&target.handle, args.dst_offset));
    let _changing = cx.before_change(&target, Some(at.lock_client()))?;
    let vfs = target.vfs();
    let cloned = vfs.clone_range(&target.caller(), from, to, args.count);
    cloned.map_err(|error| wrong_type(&target, error))?;
    // Make the clone durable: the result has no verifier by which a client could detect its loss.
    vfs.commit(&target.caller(), &target.handle, 0, 0)?;
    Ok(())
}

/// Accepts no hints, because none changes what the file system does (§15.5.3).
pub(super) fn io_advise(cx: &Context<'_>, at: &Cursor, args: &IoAdviseArgs) -> Result<Bitmap4, Fault4> {
    readable(cx, at, args.stateid)?;
    Ok(Bitmap4::new())
}

/// Returns the file whose range is to be changed.
fn range_of<'a>(cx: &Context<'a>, at: &Cursor, args: &AllocateArgs) -> Result<Object<'a>, Fault4> {
    let file = cx.object4(at.current()?)?;
    check_stateid(cx, at, &file, at.stateid(args.stateid)?, true)?;
    file.writable()?;
    if args.length == 0 {
        return Err(Nfsstat4::Inval.into());
    }
    if args.offset > OFFSET_MAX {
        return Err(Nfsstat4::FBig.into());
    }
    Ok(file)
}

fn readable<'a>(cx: &Context<'a>, at: &Cursor, stateid: Stateid4) -> Result<Object<'a>, Fault4> {
    let file = cx.object4(at.current()?)?;
    check_stateid(cx, at, &file, at.stateid(stateid)?, false)?;
    check_regular_file(file.getattr()?.kind)?;
    Ok(file)
}

/// Returns the saved file, which is read, and the current file, which is written. Both must be in one export.
fn source_and_target<'a>(
    cx: &Context<'a>,
    at: &Cursor,
    source: Stateid4,
    target: Stateid4,
) -> Result<(Object<'a>, Object<'a>), Fault4> {
    let (from, to) = (cx.object4(at.saved()?)?, cx.object4(at.current()?)?);
    // Check this first: a thread waits for one export only.
    if from.export.id() != to.export.id() {
        return Err(Nfsstat4::XDev.into());
    }
    check_stateid(cx, at, &from, at.saved_stateid(source)?, false)?;
    check_stateid(cx, at, &to, at.stateid(target)?, true)?;
    to.writable()?;
    for object in [&from, &to] {
        check_regular_file(object.getattr()?.kind)?;
    }
    Ok((from, to))
}

/// The operation number, status, `eof`, the number of segments, and the maximum padding.
const READ_PLUS_HEAD: usize = 20;
/// The type, offset and length of a segment, and padding.
const SEGMENT_HEAD: u64 = 4 + 8 + 8 + 4;
const SEGMENTS_MAX: usize = 256;
