//! READ, WRITE and COMMIT: RFC 1813 §3.3.6, §3.3.7 and §3.3.21.
//!
//! Data is not copied here: READ passes on what the file system lends or fills, WRITE hands it the call's payload.
//! Offsets are 64 bits wide on the wire and 63 below; what lies between is beyond every file.

use nfs::v3::{CommitArgs, CommitOk, Nfsstat3, ReadArgs, StableHow, WriteArgs, WriteOk};
use vfs::Stability;
use xdr::{Encode, Encoder};

use super::{
    answers,
    attr::OFFSET_MAX,
    fsinfo::transfer_max,
    object::{post_op, post_wcc, with},
};
use crate::{context::Context, error::WouldBlock, exec::conclude};

answers! {
    Read => read,
    Write => write,
    Commit => commit,
}

fn read(cx: &Context<'_>, args: &ReadArgs, out: &mut Encoder) -> Result<Nfsstat3, WouldBlock> {
    let file = cx.object(&args.file);
    let result = with(&file, |file| {
        // §3.3.6: the server may return fewer bytes than were asked for.
        let count = args.count.min(transfer_max(&cx.carrier));
        let offset = args.offset.min(OFFSET_MAX);
        let len = u64::from(count).min(OFFSET_MAX - offset) as usize;
        cx.before_read(file, None)?;
        Ok(file.vfs().read(&file.caller(), &file.handle, offset, len, cx.pool, cx.carrier.file_ranges)?)
    });
    match (result, &file) {
        (Ok(read), Ok(file)) => {
            Nfsstat3::Ok.encode(out);
            Some(file.fattr(&read.attr)).encode(out);
            out.length(read.data.len());
            read.eof.encode(out);
            out.payload(read.data);
            Ok(Nfsstat3::Ok)
        }
        (result, file) => conclude(out, result.map(|_| ()), || post_op(file)),
    }
}

fn write(cx: &Context<'_>, args: &WriteArgs, out: &mut Encoder) -> Result<Nfsstat3, WouldBlock> {
    let file = cx.object(&args.file);
    let result = with(&file, |file| {
        let data = &args.data.0;
        if data.len() != args.count as usize {
            return Err(Nfsstat3::Inval.into());
        }
        // §3.3.7: the server may write fewer bytes, and says so.
        let max = transfer_max(&cx.carrier) as usize;
        let cut = (data.len() > max).then(|| data.slice(0, max));
        let data = cut.as_ref().unwrap_or(data);
        let end = args.offset.checked_add(data.len() as u64);
        let size_max = file.vfs().caps().file_size_max.min(OFFSET_MAX);
        if end.is_none_or(|end| end > size_max) {
            return Err(Nfsstat3::FBig.into());
        }
        let stability = match args.stable {
            StableHow::Unstable => Stability::Unstable,
            StableHow::DataSync => Stability::DataSync,
            StableHow::FileSync => Stability::FileSync,
        };
        let vfs = file.writable()?.vfs();
        let _changing = cx.before_change(file, None)?;
        let verf = vfs.write_verifier();
        let written = vfs.write(&file.caller(), &file.handle, args.offset, data, stability)?;
        let committed = match written.stability {
            Stability::Unstable => StableHow::Unstable,
            Stability::DataSync => StableHow::DataSync,
            Stability::FileSync => StableHow::FileSync,
        };
        Ok(WriteOk { file_wcc: file.wcc(&written.change), count: data.len() as u32, committed, verf })
    });
    conclude(out, result, || post_wcc(&file))
}

fn commit(cx: &Context<'_>, args: &CommitArgs, out: &mut Encoder) -> Result<Nfsstat3, WouldBlock> {
    let file = cx.object(&args.file);
    let result = with(&file, |file| {
        let end = args.offset.checked_add(args.count.into()).filter(|&end| end <= OFFSET_MAX);
        // A range that no file has: all of the file is committed, which is always right.
        let (offset, len) = if end.is_some() { (args.offset, args.count.into()) } else { (0, 0) };
        let vfs = file.vfs();
        let change = vfs.commit(&file.caller(), &file.handle, offset, len)?;
        // Asked for behind the commit: if that had lost writes, the verifier has changed.
        Ok(CommitOk { file_wcc: file.wcc(&change), verf: vfs.write_verifier() })
    });
    conclude(out, result, || post_wcc(&file))
}
