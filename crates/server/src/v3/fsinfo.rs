//! FSSTAT, FSINFO and PATHCONF: RFC 1813 §3.3.18–3.3.20.

use nfs::v3::{
    FSF3_CANSETTIME, FSF3_HOMOGENEOUS, FSF3_LINK, FSF3_SYMLINK, FsInfoArgs, FsInfoOk, FsStatArgs, FsStatOk, Nfsstat3,
    Nfstime3, PathConfArgs, PathConfOk,
};
use xdr::Encoder;

use super::{
    answers,
    attr::OFFSET_MAX,
    object::{post_op, with},
};
use crate::{
    context::{Carrier, Context},
    error::WouldBlock,
    exec::conclude,
};

answers! {
    FsStat => fsstat,
    FsInfo => fsinfo,
    PathConf => pathconf,
}

/// Most bytes of data in one READ or WRITE: 1 MiB, or what fits a message of the transport beside its headers.
pub(crate) fn transfer_max(carrier: &Carrier) -> u32 {
    let room = carrier.message_max.saturating_sub(HEADERS_MAX).min(TRANSFER_MAX);
    (if room >= PAGE { room / PAGE * PAGE } else { room.max(MINIMUM) }) as u32
}

/// Most bytes of a directory in one reply.
pub(crate) fn directory_max(carrier: &Carrier) -> u32 {
    transfer_max(carrier).min(DIRECTORY_MAX)
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
    conclude(out, result, || post_op(&object))
}

fn fsinfo(cx: &Context<'_>, args: &FsInfoArgs, out: &mut Encoder) -> Result<Nfsstat3, WouldBlock> {
    let object = cx.object(&args.fsroot);
    let result = with(&object, |object| {
        let caps = object.vfs().caps();
        let max = transfer_max(&cx.carrier);
        let preferred = 1 << max.ilog2();
        let resolution = caps.time_resolution_ns;
        let flag = |has, flag| if has { flag } else { 0 };
        Ok(FsInfoOk {
            obj_attributes: Some(object.fattr(&object.getattr()?)),
            rtmax: max,
            rtpref: preferred,
            rtmult: PAGE as u32,
            wtmax: max,
            wtpref: preferred,
            wtmult: PAGE as u32,
            dtpref: directory_max(&cx.carrier).min(DIRECTORY_PREFERRED),
            maxfilesize: caps.file_size_max.min(OFFSET_MAX),
            time_delta: Nfstime3 { seconds: resolution / 1_000_000_000, nseconds: resolution % 1_000_000_000 },
            properties: flag(caps.links, FSF3_LINK)
                | flag(caps.symlinks, FSF3_SYMLINK)
                | FSF3_HOMOGENEOUS
                | FSF3_CANSETTIME,
        })
    });
    conclude(out, result, || post_op(&object))
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
    conclude(out, result, || post_op(&object))
}

const TRANSFER_MAX: usize = 1 << 20;
const DIRECTORY_MAX: u32 = 256 << 10;
const DIRECTORY_PREFERRED: u32 = 64 << 10;
/// More than the RPC header with the longest credentials and what else is in a WRITE call or READ reply.
const HEADERS_MAX: usize = 1024;
const PAGE: usize = 4096;
const MINIMUM: usize = 512;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transfers_fit_their_transport() {
        let max = |message_max| transfer_max(&Carrier { name: "any", message_max, file_ranges: false });
        assert_eq!(max(usize::MAX), 1 << 20);
        assert_eq!(max((1 << 20) + 4096), 1 << 20);
        assert_eq!(max(1 << 20), (1 << 20) - 4096);
        assert_eq!(max(65507), 15 * 4096);
        assert_eq!(max(4096), 3072);
        assert_eq!(max(0), 512);
    }
}
