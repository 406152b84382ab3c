//! Encodes and decodes generated arguments and results. A decoded value equals the original, and no prefix of its
//! encoding can be decoded.

use std::fmt::Debug;

use bytes::Bytes;
use nfs::{
    mount::{Dirpath, ExportEntry, MountEntry, MountOk, MountRes, Mountstat3},
    v3::*,
};
use proptest::prelude::*;
use xdr::{Decode, Encode, List, Message, Opaque, Payload};

/// Choices made from bytes. They are zero when the bytes run out, so that values become simpler as proptest shrinks the
/// bytes.
struct Choices<'a>(std::slice::Iter<'a, u8>);

impl Choices<'_> {
    fn byte(&mut self) -> u8 {
        self.0.next().copied().unwrap_or(0)
    }

    fn of<T: Copy>(&mut self, all: &[T]) -> T {
        all[usize::from(self.byte()) % all.len()]
    }

    fn bytes(&mut self, max: usize) -> Bytes {
        let len = usize::from(self.byte()) % (max + 1);
        (0..len).map(|_| self.byte()).collect()
    }
}

/// A value that is generated from choices.
trait Sample: Sized {
    fn sample(choices: &mut Choices<'_>) -> Self;
}

macro_rules! sample {
    ($($type:ty { $($field:ident),* })*) => {$(
        impl Sample for $type {
            fn sample(choices: &mut Choices<'_>) -> Self {
                Self { $($field: Sample::sample(choices)),* }
            }
        }
    )*};
}

macro_rules! sample_by {
    ($($type:ty: |$choices:ident| $value:expr;)*) => {$(
        impl Sample for $type {
            fn sample($choices: &mut Choices<'_>) -> Self { $value }
        }
    )*};
}

sample_by! {
    (): |_c| ();
    bool: |c| c.byte() & 1 == 1;
    u32: |c| u32::from_le_bytes(std::array::from_fn(|_| c.byte()));
    u64: |c| u64::from_le_bytes(std::array::from_fn(|_| c.byte()));
    [u8; 8]: |c| std::array::from_fn(|_| c.byte());
    Ftype3: |c| c.of(&[Ftype3::Reg, Ftype3::Dir, Ftype3::Blk, Ftype3::Chr, Ftype3::Lnk, Ftype3::Sock, Ftype3::Fifo]);
    Nfsstat3: |c| c.of(&[Nfsstat3::Perm, Nfsstat3::NoEnt, Nfsstat3::Stale, Nfsstat3::BadHandle, Nfsstat3::Jukebox]);
    Mountstat3: |c| c.of(&[Mountstat3::Perm, Mountstat3::NoEnt, Mountstat3::ServerFault]);
    StableHow: |c| c.of(&[StableHow::Unstable, StableHow::DataSync, StableHow::FileSync]);
    SetTime: |c| match c.byte() % 3 {
        0 => SetTime::DontChange,
        1 => SetTime::ToServerTime,
        _ => SetTime::ToClientTime(Sample::sample(c)),
    };
    CreateHow3: |c| match c.byte() % 3 {
        0 => CreateHow3::Unchecked(Sample::sample(c)),
        1 => CreateHow3::Guarded(Sample::sample(c)),
        _ => CreateHow3::Exclusive(Sample::sample(c)),
    };
    MkNodData3: |c| match c.byte() % 5 {
        0 => MkNodData3::Chr(Sample::sample(c), Sample::sample(c)),
        1 => MkNodData3::Blk(Sample::sample(c), Sample::sample(c)),
        2 => MkNodData3::Sock(Sample::sample(c)),
        3 => MkNodData3::Fifo(Sample::sample(c)),
        _ => MkNodData3::Other(c.of(&[Ftype3::Reg, Ftype3::Dir, Ftype3::Lnk])),
    };
    MountRes: |c| match c.byte() % 2 {
        0 => MountRes::Ok(Sample::sample(c)),
        _ => MountRes::Fail(Sample::sample(c)),
    };
}

impl<const MAX: usize> Sample for Opaque<MAX> {
    fn sample(choices: &mut Choices<'_>) -> Self {
        choices.bytes(MAX).into()
    }
}

impl<const MAX: usize> Sample for Payload<MAX> {
    fn sample(choices: &mut Choices<'_>) -> Self {
        let pieces = usize::from(choices.byte()) % 4;
        Payload((0..pieces).map(|_| choices.bytes(40)).collect())
    }
}

impl<T: Sample> Sample for Option<T> {
    fn sample(choices: &mut Choices<'_>) -> Self {
        bool::sample(choices).then(|| T::sample(choices))
    }
}

impl<T: Sample> Sample for Vec<T> {
    fn sample(choices: &mut Choices<'_>) -> Self {
        (0..choices.byte() % 5).map(|_| T::sample(choices)).collect()
    }
}

impl<T: Sample> Sample for List<T> {
    fn sample(choices: &mut Choices<'_>) -> Self {
        List(Sample::sample(choices))
    }
}

impl<T: Sample, F: Sample> Sample for Res3<T, F> {
    fn sample(choices: &mut Choices<'_>) -> Self {
        match choices.byte() % 3 {
            0 => Res3::Fail(Sample::sample(choices), Sample::sample(choices)),
            _ => Res3::Ok(Sample::sample(choices)),
        }
    }
}

impl<T: Sample> Sample for Dirlist3<T> {
    fn sample(choices: &mut Choices<'_>) -> Self {
        Self { entries: Sample::sample(choices), eof: Sample::sample(choices) }
    }
}

impl<T: Sample> Sample for ReadDirOk<T> {
    fn sample(c: &mut Choices<'_>) -> Self {
        Self { dir_attributes: Sample::sample(c), cookieverf: Sample::sample(c), reply: Sample::sample(c) }
    }
}

sample! {
    Specdata3 { specdata1, specdata2 }
    Nfstime3 { seconds, nseconds }
    Fattr3 { ftype, mode, nlink, uid, gid, size, used, rdev, fsid, fileid, atime, mtime, ctime }
    WccAttr { size, mtime, ctime }
    WccData { before, after }
    Sattr3 { mode, uid, gid, size, atime, mtime }
    Diropargs3 { dir, name }
    GetAttrArgs { object }
    SetAttrArgs { object, new_attributes, guard }
    LookupArgs { what }
    LookupOk { object, obj_attributes, dir_attributes }
    AccessArgs { object, access }
    AccessOk { obj_attributes, access }
    ReadLinkArgs { symlink }
    ReadLinkOk { symlink_attributes, data }
    ReadArgs { file, offset, count }
    ReadOk { file_attributes, count, eof, data }
    WriteArgs { file, offset, count, stable, data }
    WriteOk { file_wcc, count, committed, verf }
    CreateArgs { what, how }
    NewObjectOk { obj, obj_attributes, dir_wcc }
    MkDirArgs { what, attributes }
    SymLinkArgs { what, symlink_attributes, symlink_data }
    MkNodArgs { what, data }
    RemoveArgs { object }
    RenameArgs { from, to }
    RenameWcc { fromdir_wcc, todir_wcc }
    LinkArgs { file, link }
    LinkWcc { file_attributes, linkdir_wcc }
    ReadDirArgs { dir, cookie, cookieverf, count }
    ReadDirPlusArgs { dir, cookie, cookieverf, dircount, maxcount }
    Entry3 { fileid, name, cookie }
    EntryPlus3 { fileid, name, cookie, name_attributes, name_handle }
    FsStatArgs { fsroot }
    FsStatOk { obj_attributes, tbytes, fbytes, abytes, tfiles, ffiles, afiles, invarsec }
    FsInfoArgs { fsroot }
    FsInfoOk {
        obj_attributes, rtmax, rtpref, rtmult, wtmax, wtpref, wtmult, dtpref, maxfilesize, time_delta, properties
    }
    PathConfArgs { object }
    PathConfOk {
        obj_attributes, linkmax, name_max, no_trunc, chown_restricted, case_insensitive, case_preserving
    }
    CommitArgs { file, offset, count }
    CommitOk { file_wcc, verf }
    MountOk { fhandle, auth_flavors }
    MountEntry { hostname, directory }
    ExportEntry { dir, groups }
}

fn check<T: Sample + Encode + Decode + PartialEq + Debug>(entropy: &[u8]) {
    let value = T::sample(&mut Choices(entropy.iter()));
    let message = Message::encode(&value);
    assert_eq!(message.decode::<T>().as_ref(), Ok(&value), "with payloads beside the stream");
    let flat = message.to_rope().to_bytes().unwrap();
    assert_eq!(flat.len(), message.len());
    assert_eq!(
        Message::from(flat.clone()).decode::<T>().as_ref(),
        Ok(&value),
        "with payloads in the stream, as over TCP"
    );
    for len in 0..flat.len() {
        let part = Message::from(flat.slice(..len));
        assert!(part.decode::<T>().is_err(), "the first {len} of {} bytes of {value:?}", flat.len());
    }
    let longer = Bytes::from([&flat[..], &[0; 4]].concat());
    assert!(Message::from(longer).decode::<T>().is_err(), "trailing bytes after {value:?}");
}

fn procedure<P: Procedure3>(entropy: &[u8])
where
    P::Args: Sample + PartialEq + Debug,
    P::Res: Sample + PartialEq + Debug,
{
    check::<P::Args>(entropy);
    check::<P::Res>(entropy);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn every_procedure(entropy in proptest::collection::vec(any::<u8>(), 0..600)) {
        macro_rules! procedures {
            ($($name:ident)*) => { $(procedure::<$name>(&entropy);)* };
        }
        procedures!(GetAttr SetAttr Lookup Access ReadLink Read Write Create MkDir SymLink MkNod Remove RmDir Rename
            Link ReadDir ReadDirPlus FsStat FsInfo PathConf Commit);
    }

    #[test]
    fn every_mount_procedure(entropy in proptest::collection::vec(any::<u8>(), 0..600)) {
        check::<Dirpath>(&entropy);
        check::<MountRes>(&entropy);
        check::<List<MountEntry>>(&entropy);
        check::<List<ExportEntry>>(&entropy);
    }

    #[test]
    fn random_bytes_are_rejected_or_round_trip(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        fn check<T: Encode + Decode>(bytes: &Bytes) {
            if let Ok(value) = Message::from(bytes.clone()).decode::<T>() {
                assert_eq!(&Message::encode(&value).to_rope().to_bytes().unwrap(), bytes);
            }
        }
        let bytes = Bytes::from(bytes);
        macro_rules! procedures {
            ($($name:ident)*) => {$(
                check::<<$name as Procedure3>::Args>(&bytes);
                check::<<$name as Procedure3>::Res>(&bytes);
            )*};
        }
        procedures!(GetAttr SetAttr Lookup Access ReadLink Read Write Create MkDir SymLink MkNod Remove RmDir Rename
            Link ReadDir ReadDirPlus FsStat FsInfo PathConf Commit);
    }
}
