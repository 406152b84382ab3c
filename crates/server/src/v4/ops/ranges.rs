//! What version 4.2 does with ranges of files: ALLOCATE, DEALLOCATE, SEEK, READ_PLUS, COPY, CLONE and IO_ADVISE: RFC 7862
//! §15.1, §15.2, §15.4, §15.5, §15.10, §15.11, §15.13.
//!
//! A copy is made within this server. One of many bytes goes on behind its reply where the client allows that (`offload`
//! has it), with OFFLOAD_STATUS and OFFLOAD_CANCEL (§15.8, §15.9); else it is cut short, as §15.2.3 allows, so that no thread is busy with
//! it for long, and the client goes on with the rest.

use nfs::v4::{
    AllocateArgs, Bitmap4, CloneArgs, CopyArgs, CopyOk, CopyRequirements4, DataContent4, IoAdviseArgs, Nfsstat4,
    OffloadArgs, OffloadStatusOk, ReadArgs, ReadPlusContent, ReadPlusOk, SeekArgs, SeekOk, StableHow4, Stateid4,
    WriteResponse4,
};
use vfs::{SeekFor, VfsError};

use super::data::{may_use, of_kind, wrong_type};
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
        // §15.11.3: there is none; behind the last byte, all is a hole.
        None => Ok(SeekOk { eof: true, offset: file.getattr()?.size }),
    }
}

pub(super) fn read_plus(cx: &Context<'_>, at: &Cursor, args: &ReadArgs) -> Result<ReadPlusOk, Fault4> {
    let file = readable(cx, at, args.stateid)?;
    let size = file.getattr()?.size;
    // Holes take no room in the reply, so both the range and what is told of it have a bound.
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
            // It has become shorter meanwhile.
            break;
        }
        offset = next;
        contents.push(segment);
    }
    Ok(ReadPlusOk { eof: offset >= size, contents })
}

/// The data, at most `data_max` bytes, or the hole, at a place in a file.
fn segment(
    cx: &Context<'_>,
    file: &Object<'_>,
    (offset, end): (u64, u64),
    data_max: u64,
) -> Result<ReadPlusContent, Fault4> {
    let (vfs, caller) = (file.vfs(), file.caller());
    let data_end = match vfs.seek(&caller, &file.handle, offset, SeekFor::Data) {
        // Where holes are not known, all is data; it may also have become shorter.
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
        // From another server, of which we know none.
        return Err(Nfsstat4::NotSupp.into());
    }
    let (source, target) = both(cx, at, args.src_stateid, args.dst_stateid)?;
    let size = source.getattr()?.size;
    // §15.2.3: the source must have all that is asked for; zero means to its end.
    let len = if args.count == 0 { size.checked_sub(args.src_offset) } else { Some(args.count) };
    let len = len.filter(|&len| args.src_offset.checked_add(len).is_some_and(|end| end <= size));
    let len = len.ok_or(Nfsstat4::Inval)?;
    let vfs = target.vfs();
    let writeverf = vfs.write_verifier();
    let changing = cx.before_change(&target, Some(at.lock_client()))?;
    let apart = args.src_offset.abs_diff(args.dst_offset) >= len;
    let _changing = if args.synchronous || !(apart || source.handle != target.handle) {
        changing
    } else {
        let (from, to) = ((source.handle.clone(), args.src_offset), (target.handle.clone(), args.dst_offset));
        match cx.begin_copy(at.client(), Ranges { export: target.export.id(), from, to, len }, writeverf, changing) {
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
    let (source, target) = both(cx, at, args.src_stateid, args.dst_stateid)?;
    let (from, to) = ((&source.handle, args.src_offset), (&target.handle, args.dst_offset));
    let _changing = cx.before_change(&target, Some(at.lock_client()))?;
    let vfs = target.vfs();
    let cloned = vfs.clone_range(&target.caller(), from, to, args.count);
    cloned.map_err(|error| wrong_type(&target, error))?;
    // There is no verifier in the result by which a client could tell that it is lost.
    vfs.commit(&target.caller(), &target.handle, 0, 0)?;
    Ok(())
}

/// No hint changes what a file system below does anyhow: none is taken (§15.5.3).
pub(super) fn io_advise(cx: &Context<'_>, at: &Cursor, args: &IoAdviseArgs) -> Result<Bitmap4, Fault4> {
    readable(cx, at, args.stateid)?;
    Ok(Bitmap4::new())
}

/// The file of which a range is to be changed.
fn range_of<'a>(cx: &Context<'a>, at: &Cursor, args: &AllocateArgs) -> Result<Object<'a>, Fault4> {
    let file = cx.object4(at.current()?)?;
    may_use(cx, at, &file, at.stateid(args.stateid)?, true)?;
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
    may_use(cx, at, &file, at.stateid(stateid)?, false)?;
    of_kind(file.getattr()?.kind)?;
    Ok(file)
}

/// The saved file, which is read, and the current one, which is written; both of one export.
fn both<'a>(
    cx: &Context<'a>,
    at: &Cursor,
    source: Stateid4,
    target: Stateid4,
) -> Result<(Object<'a>, Object<'a>), Fault4> {
    let (from, to) = (cx.object4(at.saved()?)?, cx.object4(at.current()?)?);
    // First: a thread can wait for one export alone.
    if from.export.id() != to.export.id() {
        return Err(Nfsstat4::XDev.into());
    }
    may_use(cx, at, &from, at.saved_stateid(source)?, false)?;
    may_use(cx, at, &to, at.stateid(target)?, true)?;
    to.writable()?;
    for object in [&from, &to] {
        of_kind(object.getattr()?.kind)?;
    }
    Ok((from, to))
}

/// Number, status, `eof` and the count of segments, and what rounding may add.
const READ_PLUS_HEAD: usize = 20;
/// Type, offset and length of a segment, and padding.
const SEGMENT_HEAD: u64 = 4 + 8 + 8 + 4;
const SEGMENTS_MAX: usize = 256;
