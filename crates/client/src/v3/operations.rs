//! The operations of a [`Protocol`](crate::Protocol) as procedures of NFSv3, and the conversions of types.

use std::sync::atomic::Ordering::Relaxed;

use buf::{Region, Rope};
use bytes::Bytes;
use nfs::v3::{
    CreateHow3, Entry3, EntryPlus3, Fattr3, Ftype3, MkNodData3, NewObjectOk, NfsFh3, Nfstime3, Sattr3, Specdata3,
};
use xdr::Opaque;

use super::V3;
use crate::model::{
    Attr, CreateHow, Device, Entry, Error, ErrorKind, FileKind, FsStat, Handle, Node, Operations, Page, PathConf,
    ReadData, ReadInfo, Result, SetAttr, SetTime, Special, StableHow, Status, Time, Verifier, Written,
};

impl Operations for V3 {
    async fn null(&self) -> Result<()> {
        V3::null(self).await
    }

    async fn getattr(&self, object: &Handle) -> Result<Attr> {
        V3::getattr(self, &fh(object)?).await.map(Attr::from)
    }

    async fn setattr(&self, object: &Handle, set: SetAttr) -> Result<Option<Attr>> {
        Ok(V3::setattr(self, &fh(object)?, set.into(), None).await?.after.map(Attr::from))
    }

    async fn lookup(&self, dir: &Handle, name: &[u8]) -> Result<Node> {
        let ok = V3::lookup(self, &fh(dir)?, name).await?;
        Ok(Node { handle: handle(ok.object), attr: ok.obj_attributes.map(Attr::from) })
    }

    async fn access(&self, object: &Handle, wanted: u32) -> Result<u32> {
        Ok(V3::access(self, &fh(object)?, wanted).await?.access)
    }

    async fn readlink(&self, link: &Handle) -> Result<Bytes> {
        V3::readlink(self, &fh(link)?).await
    }

    async fn read(&self, file: &Handle, offset: u64, count: u32) -> Result<ReadData> {
        let ok = V3::read(self, &fh(file)?, offset, count).await?;
        Ok(ReadData { data: ok.data.0, eof: ok.eof, size: ok.file_attributes.map(|attr| attr.size) })
    }

    async fn read_into(&self, file: &Handle, offset: u64, region: Region) -> (Result<ReadInfo>, Region) {
        match fh(file) {
            Ok(file) => V3::read_into(self, &file, offset, region).await,
            Err(error) => (Err(error), region),
        }
    }

    async fn write(&self, file: &Handle, offset: u64, data: Rope, stable: StableHow) -> Result<Written> {
        let ok = V3::write(self, &fh(file)?, offset, data, stable).await?;
        Ok(Written { count: ok.count, committed: ok.committed, verf: ok.verf })
    }

    async fn commit(&self, file: &Handle) -> Result<Verifier> {
        Ok(V3::commit(self, &fh(file)?, 0, 0).await?.verf)
    }

    async fn create(&self, dir: &Handle, name: &[u8], how: CreateHow) -> Result<Node> {
        let fh_dir = fh(dir)?;
        let how = match how {
            CreateHow::Unchecked(set) => CreateHow3::Unchecked(set.into()),
            CreateHow::Guarded(set) => CreateHow3::Guarded(set.into()),
            CreateHow::Exclusive(verifier, set) => return self.create_exclusive(dir, name, verifier, set).await,
        };
        let made = V3::create(self, &fh_dir, name, how).await?;
        self.made(dir, name, made).await
    }

    async fn mkdir(&self, dir: &Handle, name: &[u8], set: SetAttr) -> Result<Node> {
        let made = V3::mkdir(self, &fh(dir)?, name, set.into()).await?;
        self.made(dir, name, made).await
    }

    async fn symlink(&self, dir: &Handle, name: &[u8], text: Bytes, set: SetAttr) -> Result<Node> {
        let made = V3::symlink(self, &fh(dir)?, name, text, set.into()).await?;
        self.made(dir, name, made).await
    }

    async fn mknod(&self, dir: &Handle, name: &[u8], what: Special, set: SetAttr) -> Result<Node> {
        let set = set.into();
        let data = match what {
            Special::Blk(device) => MkNodData3::Blk(set, device.into()),
            Special::Chr(device) => MkNodData3::Chr(set, device.into()),
            Special::Sock => MkNodData3::Sock(set),
            Special::Fifo => MkNodData3::Fifo(set),
        };
        let made = V3::mknod(self, &fh(dir)?, name, data).await?;
        self.made(dir, name, made).await
    }

    async fn remove(&self, dir: &Handle, name: &[u8]) -> Result<()> {
        V3::remove(self, &fh(dir)?, name).await.map(drop)
    }

    async fn rmdir(&self, dir: &Handle, name: &[u8]) -> Result<()> {
        V3::rmdir(self, &fh(dir)?, name).await.map(drop)
    }

    async fn rename(&self, from_dir: &Handle, from: &[u8], to_dir: &Handle, to: &[u8]) -> Result<()> {
        V3::rename(self, &fh(from_dir)?, from, &fh(to_dir)?, to).await.map(drop)
    }

    async fn link(&self, object: &Handle, dir: &Handle, name: &[u8]) -> Result<Option<Attr>> {
        Ok(V3::link(self, &fh(object)?, &fh(dir)?, name).await?.file_attributes.map(Attr::from))
    }

    async fn readdir(&self, dir: &Handle, cookie: u64, verifier: Verifier, count: u32, plus: bool) -> Result<Page> {
        let dir = fh(dir)?;
        if plus && !self.no_readdirplus.load(Relaxed) {
            match V3::readdirplus(self, &dir, cookie, verifier, count, count).await {
                Err(error) if error.status() == Some(Status::NotSupported) => self.no_readdirplus.store(true, Relaxed),
                result => {
                    let ok = result?;
                    let entries = ok.reply.entries.into_iter().map(Entry::from).collect();
                    return Ok(Page { verifier: ok.cookieverf, entries, eof: ok.reply.eof });
                }
            }
        }
        let ok = V3::readdir(self, &dir, cookie, verifier, count).await?;
        let entries = ok.reply.entries.into_iter().map(Entry::from).collect();
        Ok(Page { verifier: ok.cookieverf, entries, eof: ok.reply.eof })
    }

    async fn fsstat(&self, object: &Handle) -> Result<FsStat> {
        let ok = V3::fsstat(self, &fh(object)?).await?;
        Ok(FsStat {
            tbytes: ok.tbytes,
            fbytes: ok.fbytes,
            abytes: ok.abytes,
            tfiles: ok.tfiles,
            ffiles: ok.ffiles,
            afiles: ok.afiles,
        })
    }

    async fn pathconf(&self, object: &Handle) -> Result<PathConf> {
        let ok = V3::pathconf(self, &fh(object)?).await?;
        Ok(PathConf {
            linkmax: ok.linkmax,
            name_max: ok.name_max,
            no_trunc: ok.no_trunc,
            chown_restricted: ok.chown_restricted,
            case_insensitive: ok.case_insensitive,
            case_preserving: ok.case_preserving,
        })
    }
}

impl V3 {
    /// Returns the new object of a reply. Looks up its handle if the server has not sent it (RFC 1813 §3.3.8).
    async fn made(&self, dir: &Handle, name: &[u8], made: NewObjectOk) -> Result<Node> {
        match made.obj {
            Some(object) => Ok(Node { handle: handle(object), attr: made.obj_attributes.map(Attr::from) }),
            None => Operations::lookup(self, dir, name).await,
        }
    }

    async fn create_exclusive(&self, dir: &Handle, name: &[u8], verifier: Verifier, set: SetAttr) -> Result<Node> {
        let made = match V3::create(self, &fh(dir)?, name, CreateHow3::Exclusive(verifier)).await {
            Err(error) if error.status() == Some(Status::NotSupported) => {
                let made = V3::create(self, &fh(dir)?, name, CreateHow3::Guarded(set.into())).await?;
                return self.made(dir, name, made).await;
            }
            result => self.made(dir, name, result?).await?,
        };
        // RFC 1813 §3.3.8: the server has set no attributes, and may have stored the verifier in the times.
        let attr = Operations::setattr(self, &made.handle, set.with_times()).await?;
        Ok(Node { handle: made.handle, attr })
    }
}

/// Converts a handle to one of NFSv3. A handle that is too long for NFSv3 cannot be from this server.
pub(super) fn fh(handle: &Handle) -> Result<NfsFh3> {
    if handle.len() > nfs::v3::FHSIZE3 {
        return Err(Error::new(ErrorKind::Invalid("the file handle is of another version of NFS"), "handle"));
    }
    Ok(Opaque(handle.0.clone()))
}

pub(crate) fn handle(fh: NfsFh3) -> Handle {
    Opaque(fh.0)
}

impl From<Ftype3> for FileKind {
    fn from(ftype: Ftype3) -> Self {
        match ftype {
            Ftype3::Reg => FileKind::Reg,
            Ftype3::Dir => FileKind::Dir,
            Ftype3::Blk => FileKind::Blk,
            Ftype3::Chr => FileKind::Chr,
            Ftype3::Lnk => FileKind::Lnk,
            Ftype3::Sock => FileKind::Sock,
            Ftype3::Fifo => FileKind::Fifo,
        }
    }
}

impl From<Nfstime3> for Time {
    fn from(time: Nfstime3) -> Self {
        Self { seconds: time.seconds.into(), nseconds: time.nseconds }
    }
}

impl From<Time> for Nfstime3 {
    fn from(time: Time) -> Self {
        match u32::try_from(time.seconds) {
            Ok(seconds) => Self { seconds, nseconds: time.nseconds },
            Err(_) if time.seconds < 0 => Self::default(),
            Err(_) => Self { seconds: u32::MAX, nseconds: 0 },
        }
    }
}

impl From<Device> for Specdata3 {
    fn from(device: Device) -> Self {
        Self { specdata1: device.major, specdata2: device.minor }
    }
}

impl From<Fattr3> for Attr {
    fn from(attr: Fattr3) -> Self {
        Self {
            kind: attr.ftype.into(),
            mode: attr.mode,
            nlink: attr.nlink,
            uid: attr.uid,
            gid: attr.gid,
            size: attr.size,
            used: attr.used,
            rdev: Device { major: attr.rdev.specdata1, minor: attr.rdev.specdata2 },
            fsid: attr.fsid,
            fileid: attr.fileid,
            atime: attr.atime.into(),
            mtime: attr.mtime.into(),
            ctime: attr.ctime.into(),
        }
    }
}

impl From<SetAttr> for Sattr3 {
    fn from(set: SetAttr) -> Self {
        let time = |time| match time {
            SetTime::DontChange => nfs::v3::SetTime::DontChange,
            SetTime::ToServerTime => nfs::v3::SetTime::ToServerTime,
            SetTime::ToClientTime(time) => nfs::v3::SetTime::ToClientTime(time.into()),
        };
        let (atime, mtime) = (time(set.atime), time(set.mtime));
        Self { mode: set.mode, uid: set.uid, gid: set.gid, size: set.size, atime, mtime }
    }
}

impl From<EntryPlus3> for Entry {
    fn from(entry: EntryPlus3) -> Self {
        let (attr, handle) = (entry.name_attributes.map(Attr::from), entry.name_handle.map(handle));
        Self { fileid: entry.fileid, name: entry.name.0, cookie: entry.cookie, attr, handle }
    }
}

impl From<Entry3> for Entry {
    fn from(entry: Entry3) -> Self {
        Self { fileid: entry.fileid, name: entry.name.0, cookie: entry.cookie, attr: None, handle: None }
    }
}
