//! FSSTAT, FSINFO and PATHCONF: RFC 1813 §3.3.18–3.3.20.

use nfs::v3::{
    FSF3_CANSETTIME, FSF3_HOMOGENEOUS, FSF3_LINK, FSF3_SYMLINK, FsInfoArgs, FsInfoOk, FsStatArgs, FsStatOk, Nfsstat3,
    Nfstime3, PathConfArgs, PathConfOk,
};
use xdr::Encoder;

use super::{
    answers,
    object::{post_op, with},
};
use crate::{
    call::{
        context::Context,
        error::WouldBlock,
        transfer::{OFFSET_MAX, directory_max, transfer_max},
    },
    v3::status::encode_result,
};

answers! {
    FsStat => fsstat;
    FsInfo => fsinfo;
    PathConf => pathconf;
}

fn fsstat(cx: &Context<'_>, args: &FsStatArgs, out: &mut Encoder) -> Result<Nfsstat3, WouldBlock> {
    let object = cx.object(&args.fsroot);
    let result = with(&object, |object| {
        let stat = object.vfs().statfs(&object.caller(), &object.handle)?;
        Ok(FsStatOk {
            obj_attributes: Some(object.fattr(&stat.attr)),
            tbytes: stat.bytes_total,
            fbytes: stat.bytes_free,
            abytes: stat.bytes_available,
            tfiles: stat.files_total,
            ffiles: stat.files_free,
            afiles: stat.files_available,
            invarsec: 0,
        })
    });
    encode_result(out, result, || post_op(&object))
}

fn fsinfo(cx: &Context<'_>, args: &FsInfoArgs, out: &mut Encoder) -> Result<Nfsstat3, WouldBlock> {
    let object = cx.object(&args.fsroot);
    let result = with(&object, |object| {
        let caps = object.vfs().caps();
        let max = transfer_max(&cx.transport);
        let preferred = 1 << max.ilog2();
        let resolution = caps.time_resolution_ns;
        let flag = |has, flag| if has { flag } else { 0 };
        Ok(FsInfoOk {
            obj_attributes: Some(object.fattr(&object.getattr()?)),
            rtmax: max,
            rtpref: preferred,
            rtmult: PAGE,
            wtmax: max,
            wtpref: preferred,
            wtmult: PAGE,
            dtpref: directory_max(&cx.transport).min(DIRECTORY_PREFERRED),
            maxfilesize: caps.file_size_max.min(OFFSET_MAX),
            time_delta: Nfstime3 { seconds: resolution / 1_000_000_000, nseconds: resolution % 1_000_000_000 },
            properties: flag(caps.links, FSF3_LINK)
                | flag(caps.symlinks, FSF3_SYMLINK)
                | FSF3_HOMOGENEOUS
                | FSF3_CANSETTIME,
        })
    });
    encode_result(out, result, || post_op(&object))
}

fn pathconf(cx: &Context<'_>, args: &PathConfArgs, out: &mut Encoder) -> Result<Nfsstat3, WouldBlock> {
    let object = cx.object(&args.object);
    let result = with(&object, |object| {
        let caps = object.vfs().caps();
        Ok(PathConfOk {
            obj_attributes: Some(object.fattr(&object.getattr()?)),
            linkmax: caps.link_max,
            name_max: caps.name_max,
            no_trunc: true,
            chown_restricted: caps.chown_restricted,
            case_insensitive: false,
            case_preserving: true,
        })
    });
    encode_result(out, result, || post_op(&object))
}

const DIRECTORY_PREFERRED: u32 = 64 << 10;
/// The preferred multiple of transfer sizes.
const PAGE: u32 = 4096;
