//! READ, WRITE and COMMIT: RFC 1813 §3.3.6, §3.3.7 and §3.3.21.
//!
//! File data is not copied here. READ sends the memory that the file system lends or fills, and WRITE passes the
//! payload of the call to the file system.

use std::net::IpAddr;

use nfs::v3::{CommitArgs, CommitOk, Nfsstat3, ReadArgs, StableHow, WccData, WriteArgs, WriteOk};
use vfs::{Report, Stability, Writer};
use xdr::{Encode, Encoder};

use super::{
    answers, attr,
    object::{post_op, post_wcc, with},
};
use crate::{
    call::{
        context::Context,
        error::WouldBlock,
        transfer::{commit_range, read_range, write_part},
    },
    v3::status::encode_result,
};

answers! {
    Read => read, ReadData of |args| ((&args.file, None), None);
    Write => write, WriteData of |args| ((&args.file, None), None);
    Commit => commit;
}

fn read(cx: &Context<'_>, args: &ReadArgs, out: &mut Encoder) -> Result<Nfsstat3, WouldBlock> {
    let file = cx.object(&args.file);
    let result = with(&file, |file| {
        let (offset, len) = read_range(&cx.transport, args.offset, args.count);
        cx.before_read(file, None)?;
        Ok(file.vfs().read(&file.caller(), &file.handle, offset, len, cx.pool, cx.transport.file_ranges)?)
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
        (result, file) => encode_result(out, result.map(|_| ()), || post_op(file)),
    }
}

fn write(cx: &Context<'_>, args: &WriteArgs, out: &mut Encoder) -> Result<Nfsstat3, WouldBlock> {
    let file = cx.object(&args.file);
    let result = with(&file, |file| {
        let data = &args.data.0;
        if data.len() != args.count as usize {
            return Err(Nfsstat3::Inval.into());
        }
        let data = write_part(&cx.transport, file, args.offset, data).ok_or(Nfsstat3::FBig)?;
        let stability = match args.stable {
            StableHow::Unstable => Stability::Unstable,
            StableHow::DataSync => Stability::DataSync,
            StableHow::FileSync => Stability::FileSync,
        };
        let vfs = file.writable()?.vfs();
        let _changing = cx.before_change(file, None)?;
        let verf = file.write_verifier();
        let report = Report::Attributes(writer(cx.peer.ip()));
        let written = vfs.write(&file.caller(), &file.handle, args.offset, &data, stability, report)?;
        let committed = match written.stability {
            Stability::Unstable => StableHow::Unstable,
            Stability::DataSync => StableHow::DataSync,
            Stability::FileSync => StableHow::FileSync,
        };
        Ok(WriteOk {
            file_wcc: WccData {
                before: written.before.as_ref().map(attr::wcc_attr),
                after: written.after.as_ref().map(|after| file.fattr(after)),
            },
            count: data.len() as u32,
            committed,
            verf,
        })
    });
    encode_result(out, result, || post_wcc(&file))
}

/// Returns the writer for the calls of a host, which receives the replies to all of them.
fn writer(host: IpAddr) -> Writer {
    Writer(match host {
        IpAddr::V4(ip) => ip.to_ipv6_mapped().into(),
        IpAddr::V6(ip) => ip.into(),
    })
}

fn commit(cx: &Context<'_>, args: &CommitArgs, out: &mut Encoder) -> Result<Nfsstat3, WouldBlock> {
    let file = cx.object(&args.file);
    let result = with(&file, |file| {
        let (offset, len) = commit_range(args.offset, args.count);
        let vfs = file.vfs();
        let change = vfs.commit(&file.caller(), &file.handle, offset, len)?;
        // The verifier is read after the commit: if the commit had lost writes, the verifier has changed.
        Ok(CommitOk { file_wcc: file.wcc(&change), verf: vfs.write_verifier() })
    });
    encode_result(out, result, || post_wcc(&file))
}
