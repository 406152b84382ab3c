//! [`V3`]: the procedures of NFSv3, with one function for each (RFC 1813 §3.3).
//!
//! Arguments and results are those of the RFC. If the server answers JUKEBOX, the call is retried without a limit. On
//! error, the attributes in the reply are dropped.

mod acl;
pub(crate) mod locks;
mod operations;

use std::{
    sync::{Arc, atomic::AtomicBool},
    time::Duration,
};

use buf::{Region, Rope};
use bytes::Bytes;
use nfs::v3::*;
use rpc::{ReplyHeader, ReplyPlan};
use xdr::{Decode, Located, Message};

pub use self::acl::PosixAcls;
use self::locks::{LockDialer, Locking};
pub(crate) use self::operations::handle;
use crate::{
    call::{Backoff, Program, payload},
    model::{Caller, Error, ErrorKind, ReadInfo, Result, Status},
};

/// NFSv3 on one server, with operations by file handle. It is cheap to clone and can be used from any task.
///
/// A call fails when the server has been silent until the deadline. Dropping the future cancels the call.
#[derive(Clone, Debug)]
pub struct V3 {
    program: Program,
    /// The user as whom operations are executed; `None` for the user of the mount.
    caller: Option<Caller>,
    /// The locks of the mount; `None` if the server does not hold them.
    locking: Option<Locking>,
    /// Set when the server has answered that it does not support READDIRPLUS.
    no_readdirplus: Arc<AtomicBool>,
    /// Set with the option `noacl`, and when the server has answered that it does not have the program NFS_ACL.
    no_acls: Arc<AtomicBool>,
}

impl V3 {
    pub(crate) fn new(program: Program) -> Self {
        let (caller, locking, no_readdirplus, no_acls) = Default::default();
        Self { program, caller, locking, no_readdirplus, no_acls }
    }

    /// Returns the same protocol with locks at the lock manager to which `dialer` connects.
    pub(crate) fn with_locks(self, dialer: Box<dyn LockDialer>) -> Self {
        Self { locking: Some(Locking::new(dialer)), ..self }
    }

    /// Returns the same protocol without ACLs.
    pub(crate) fn without_acls(self) -> Self {
        Self { no_acls: Arc::new(AtomicBool::new(true)), ..self }
    }

    /// Returns the same protocol with another deadline: the time that the server may be silent during a call.
    pub fn with_deadline(&self, deadline: Duration) -> Self {
        Self { program: self.program.with_deadline(deadline), ..self.clone() }
    }

    /// Returns the same protocol for a caller, or for the user of the mount.
    pub fn with_caller(&self, caller: Option<&Caller>) -> Self {
        Self { program: self.program.with_caller(caller), caller: caller.cloned(), ..self.clone() }
    }

    /// Returns the RPC program that sends the calls.
    pub(crate) fn program(&self) -> &Program {
        &self.program
    }

    /// NULL: checks that the server answers.
    ///
    /// # Errors
    /// The server does not answer.
    pub async fn null(&self) -> Result<()> {
        let plan = ReplyPlan { inline_max: RESULT_MAX, ..ReplyPlan::default() };
        self.program.call(Proc3::Null as u32, Proc3::Null.name(), &(), plan, &self.program.deadline()).await.0
    }

    /// GETATTR: returns the attributes of an object.
    ///
    /// # Errors
    /// `StaleHandle`, and the errors of any call.
    pub async fn getattr(&self, object: &NfsFh3) -> Result<Fattr3> {
        self.call::<GetAttr, _, _>(&GetAttrArgs { object: object.clone() }, 0, 0).await
    }

    /// SETATTR: sets attributes. With `guard`, it does so only if the object's ctime is equal to `guard`.
    ///
    /// # Errors
    /// `NotSynchronized` if the ctime differs from the guard, `NotPermitted`, …
    pub async fn setattr(&self, object: &NfsFh3, set: Sattr3, guard: Option<Nfstime3>) -> Result<WccData> {
        let args = SetAttrArgs { object: object.clone(), new_attributes: set, guard };
        self.call::<SetAttr, _, _>(&args, 0, 0).await
    }

    /// LOOKUP: returns the object with the given name.
    ///
    /// # Errors
    /// `NotFound`, `NotADirectory`, …
    pub async fn lookup(&self, dir: &NfsFh3, name: &[u8]) -> Result<LookupOk> {
        self.call::<Lookup, _, _>(&LookupArgs { what: dirop(dir, name)? }, 0, 0).await
    }

    /// ACCESS: returns which of the `wanted` rights (`ACCESS3_…`) the caller has.
    ///
    /// # Errors
    /// `StaleHandle`, …
    pub async fn access(&self, object: &NfsFh3, wanted: u32) -> Result<AccessOk> {
        self.call::<Access, _, _>(&AccessArgs { object: object.clone(), access: wanted }, 0, 0).await
    }

    /// READLINK: returns the text of a symbolic link.
    ///
    /// # Errors
    /// `InvalidArgument` if the object is not a symbolic link.
    pub async fn readlink(&self, symlink: &NfsFh3) -> Result<Bytes> {
        let args = ReadLinkArgs { symlink: symlink.clone() };
        let ok = self.call::<ReadLink, _, _>(&args, 0, NAME_BOUND).await?;
        ok.data.0.to_bytes().map_err(|_| payload::unreadable("READLINK"))
    }

    /// READ: returns up to `count` bytes, in the memory into which the transport received them.
    ///
    /// # Errors
    /// `IsADirectory`, `AccessDenied`, …
    pub async fn read(&self, file: &NfsFh3, offset: u64, count: u32) -> Result<ReadOk> {
        let args = ReadArgs { file: file.clone(), offset, count };
        let ok = self.call::<Read, _, _>(&args, 0, count as usize).await?;
        check_read(&ok, count as usize).map(|()| ok)
    }

    /// READ: reads into all visible bytes of `region`, which the transport fills itself if it can. Returns a region of
    /// the same visible length in every case. It is the caller's region, unless the transport still holds that at the
    /// deadline; then it is host memory.
    ///
    /// # Errors
    /// The errors of [`read`](Self::read). The content of the region is then unspecified.
    pub async fn read_into(&self, file: &NfsFh3, offset: u64, region: Region) -> (Result<ReadInfo>, Region) {
        let wanted = region.len();
        let Ok(count) = u32::try_from(wanted) else {
            return (Err(Error::new(ErrorKind::Invalid("a READ of 4 GiB or more"), "READ")), region);
        };
        let args = ReadArgs { file: file.clone(), offset, count };
        let deadline = &self.program.deadline();
        let (mut region, mut backoff) = (region, Backoff::new());
        loop {
            let plan = ReplyPlan { sink: Some(region), ..plan::<Read>(0, wanted) };
            let (result, sink) =
                self.program.call::<_, ReadRes>(Proc3::Read as u32, "READ", &args, plan, deadline).await;
            // At the deadline, the transport may still hold the region. It then releases it later.
            let sink = sink.unwrap_or_else(|| Region::from(self.program.pool().take(wanted)).into());
            let result = result.and_then(|res| self.status::<Read, _, _>(res));
            let result = result.and_then(|ok| check_read(&ok, wanted).map(|()| ok));
            match result {
                Ok(ok) => {
                    let info = ReadInfo { len: ok.data.0.len(), eof: ok.eof };
                    let (settled, region) = payload::place_in_sink(ok.data.0, sink, wanted);
                    return (settled.map(|()| info), region);
                }
                Err(error) => {
                    region = payload::into_region(sink, wanted);
                    if !backoff.pause_if_delayed(&self.program, &error, deadline).await {
                        return (Err(error), region);
                    }
                }
            }
        }
    }

    /// WRITE: writes `data` at `offset`. The server may write less.
    ///
    /// # Errors
    /// `NoSpace`, `FileTooLarge`, `AccessDenied`, …
    pub async fn write(&self, file: &NfsFh3, offset: u64, data: impl Into<Rope>, stable: StableHow) -> Result<WriteOk> {
        let data = data.into();
        if data.len() > DATA_BOUND {
            return Err(Error::new(ErrorKind::Invalid("a WRITE of more than 4 MiB"), "WRITE"));
        }
        let args = WriteArgs { file: file.clone(), offset, count: data.len() as u32, stable, data: data.into() };
        self.call::<Write, _, _>(&args, 0, 0).await
    }

    /// CREATE: creates a regular file, or opens an existing one if `how` allows it.
    ///
    /// # Errors
    /// `AlreadyExists`, `AccessDenied`, …
    pub async fn create(&self, dir: &NfsFh3, name: &[u8], how: CreateHow3) -> Result<NewObjectOk> {
        self.call::<Create, _, _>(&CreateArgs { what: dirop(dir, name)?, how }, 0, 0).await
    }

    /// MKDIR: creates a directory.
    ///
    /// # Errors
    /// `AlreadyExists`, `AccessDenied`, …
    pub async fn mkdir(&self, dir: &NfsFh3, name: &[u8], attributes: Sattr3) -> Result<NewObjectOk> {
        self.call::<MkDir, _, _>(&MkDirArgs { what: dirop(dir, name)?, attributes }, 0, 0).await
    }

    /// SYMLINK: creates a symbolic link.
    ///
    /// # Errors
    /// `AlreadyExists`, `AccessDenied`, …
    pub async fn symlink(&self, dir: &NfsFh3, name: &[u8], text: Bytes, set: Sattr3) -> Result<NewObjectOk> {
        if text.len() > NAME_BOUND {
            return Err(Error::refused(Status::NameTooLong, "SYMLINK"));
        }
        let args = SymLinkArgs { what: dirop(dir, name)?, symlink_attributes: set, symlink_data: text.into() };
        self.call::<SymLink, _, _>(&args, 0, 0).await
    }

    /// MKNOD: creates a device, socket or pipe.
    ///
    /// # Errors
    /// `NotPermitted`, `NotSupported`, …
    pub async fn mknod(&self, dir: &NfsFh3, name: &[u8], data: MkNodData3) -> Result<NewObjectOk> {
        self.call::<MkNod, _, _>(&MkNodArgs { what: dirop(dir, name)?, data }, 0, 0).await
    }

    /// REMOVE: removes the name of an object that is not a directory.
    ///
    /// # Errors
    /// `NotFound`, `AccessDenied`, …
    pub async fn remove(&self, dir: &NfsFh3, name: &[u8]) -> Result<WccData> {
        self.call::<Remove, _, _>(&RemoveArgs { object: dirop(dir, name)? }, 0, 0).await
    }

    /// RMDIR: removes an empty directory.
    ///
    /// # Errors
    /// `NotEmpty`, `NotFound`, …
    pub async fn rmdir(&self, dir: &NfsFh3, name: &[u8]) -> Result<WccData> {
        self.call::<RmDir, _, _>(&RemoveArgs { object: dirop(dir, name)? }, 0, 0).await
    }

    /// RENAME: renames an object. Replaces an object with the new name if the file system allows it.
    ///
    /// # Errors
    /// `NotFound`, `CrossDevice`, `NotEmpty`, …
    pub async fn rename(&self, from_dir: &NfsFh3, from: &[u8], to_dir: &NfsFh3, to: &[u8]) -> Result<RenameWcc> {
        self.call::<Rename, _, _>(&RenameArgs { from: dirop(from_dir, from)?, to: dirop(to_dir, to)? }, 0, 0).await
    }

    /// LINK: creates a hard link.
    ///
    /// # Errors
    /// `AlreadyExists`, `TooManyLinks`, …
    pub async fn link(&self, file: &NfsFh3, dir: &NfsFh3, name: &[u8]) -> Result<LinkWcc> {
        self.call::<Link, _, _>(&LinkArgs { file: file.clone(), link: dirop(dir, name)? }, 0, 0).await
    }

    /// READDIR: returns the entries after `cookie`, in up to `count` bytes.
    ///
    /// # Errors
    /// `BadCookie`, `TooSmall`, …
    pub async fn readdir(
        &self,
        dir: &NfsFh3,
        cookie: u64,
        cookieverf: Cookieverf3,
        count: u32,
    ) -> Result<ReadDirOk<Entry3>> {
        let args = ReadDirArgs { dir: dir.clone(), cookie, cookieverf, count };
        self.call::<ReadDir, _, _>(&args, count as usize, 0).await
    }

    /// READDIRPLUS: returns the entries after `cookie` with attributes and handles, in up to `maxcount` bytes.
    ///
    /// # Errors
    /// `BadCookie`, `TooSmall`, `NotSupported`, …
    pub async fn readdirplus(
        &self,
        dir: &NfsFh3,
        cookie: u64,
        cookieverf: Cookieverf3,
        dircount: u32,
        maxcount: u32,
    ) -> Result<ReadDirOk<EntryPlus3>> {
        let args = ReadDirPlusArgs { dir: dir.clone(), cookie, cookieverf, dircount, maxcount };
        self.call::<ReadDirPlus, _, _>(&args, maxcount as usize, 0).await
    }

    /// FSSTAT: returns the total and free space and number of objects of the file system.
    ///
    /// # Errors
    /// `StaleHandle`, …
    pub async fn fsstat(&self, fsroot: &NfsFh3) -> Result<FsStatOk> {
        self.call::<FsStat, _, _>(&FsStatArgs { fsroot: fsroot.clone() }, 0, 0).await
    }

    /// FSINFO: returns the limits of the server.
    ///
    /// # Errors
    /// `StaleHandle`, …
    pub async fn fsinfo(&self, fsroot: &NfsFh3) -> Result<FsInfoOk> {
        self.call::<FsInfo, _, _>(&FsInfoArgs { fsroot: fsroot.clone() }, 0, 0).await
    }

    /// PATHCONF: returns the limits of the file system.
    ///
    /// # Errors
    /// `StaleHandle`, …
    pub async fn pathconf(&self, object: &NfsFh3) -> Result<PathConfOk> {
        self.call::<PathConf, _, _>(&PathConfArgs { object: object.clone() }, 0, 0).await
    }

    /// COMMIT: makes unstable writes to the range durable. A `count` of 0 means up to the end of the file. The data of
    /// a WRITE are durable if the verifier is the one that the WRITE returned.
    ///
    /// # Errors
    /// `Io`, …
    pub async fn commit(&self, file: &NfsFh3, offset: u64, count: u32) -> Result<CommitOk> {
        self.call::<Commit, _, _>(&CommitArgs { file: file.clone(), offset, count }, 0, 0).await
    }

    /// Calls a procedure, and retries while the server answers JUKEBOX.
    async fn call<P, T, F>(&self, args: &P::Args, listing_max: usize, payload_max: usize) -> Result<T>
    where
        P: Procedure3<Res = Res3<T, F>>,
        T: Decode,
        F: Decode,
    {
        let deadline = &self.program.deadline();
        let mut backoff = Backoff::new();
        loop {
            let plan = plan::<P>(listing_max, payload_max);
            let (result, _) =
                self.program.call::<_, P::Res>(P::NUMBER as u32, P::NUMBER.name(), args, plan, deadline).await;
            match result.and_then(|res| self.status::<P, _, _>(res)) {
                Err(error) if backoff.pause_if_delayed(&self.program, &error, deadline).await => {}
                result => return result,
            }
        }
    }

    fn status<P: Procedure3, T, F>(&self, res: Res3<T, F>) -> Result<T> {
        res.into_result().map_err(|(status, _)| Error::of_status(status, P::NUMBER.name()).on(self.program.server()))
    }
}

fn plan<P: Procedure3>(listing_max: usize, payload_max: usize) -> ReplyPlan {
    // RFC 8166 §3.4.2: only a reply with a DDP-eligible item has a payload.
    let locate = (payload_max > 0).then_some(locate::<P::Res> as fn(&Bytes) -> Option<Located>);
    ReplyPlan { inline_max: RESULT_MAX + listing_max, payload_max, sink: None, locate }
}

fn locate<R: Decode>(prefix: &Bytes) -> Option<Located> {
    Message::locate::<R>(prefix, |decoder| ReplyHeader::decode(decoder).map(drop))
}

fn dirop(dir: &NfsFh3, name: &[u8]) -> Result<Diropargs3> {
    if name.len() > NAME_BOUND {
        return Err(Error::refused(Status::NameTooLong, "name"));
    }
    Ok(Diropargs3 { dir: dir.clone(), name: Bytes::copy_from_slice(name).into() })
}

fn check_read(ok: &ReadOk, wanted: usize) -> Result<()> {
    let len = ok.data.0.len();
    let problem = if len > wanted {
        "more data than requested"
    } else if len != ok.count as usize {
        "the count differs from the length of the data"
    } else {
        return Ok(());
    };
    Err(Error::new(ErrorKind::Protocol(problem.to_owned()), "READ"))
}

/// Maximum bytes of a reply without payload and directory entries: the header of RFC 5531 §9 with a verifier, and the
/// results of RENAME, CREATE or LOOKUP.
const RESULT_MAX: usize = 512;
