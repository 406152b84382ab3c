//! [`Mount`]: a mounted tree, and operations on its paths.
//!
//! A path consists of bytes with slashes between names. It starts at the directory that the URL names, with or without
//! a leading slash. The client follows symbolic links, not the server. They cannot lead out of the mount: `..` stays at
//! its root, and an absolute link starts there. A caller that has handles uses [`Mount::protocol`] and avoids the
//! lookups.
//!
//! In NFSv4, a referral on a path can lead to another server. The objects there belong to a mount of their own, which
//! is made when it is first needed. An [`Object`], [`File`] or [`Dir`] contains its mount. A handle is valid only in
//! its own mount.

mod connect;
mod dir;
mod file;
mod lock_manager;
mod mountd;
mod passthrough;
mod protocol;
mod read_ahead;
mod reader;
mod referral;
mod walk;
mod write_behind;
mod writer;

use std::{os::fd::OwnedFd, sync::Arc, time::Duration};

use buf::Pool;
use bytes::Bytes;
use futures_util::future;

pub use self::{
    dir::{Dir, DirEntry},
    file::File,
    mountd::MountClient,
    passthrough::NotPassed,
    protocol::Protocol,
    reader::Reader,
    writer::Writer,
};
use self::{
    mountd::Mountd,
    referral::Referred,
    walk::{End, Step, Walk, plain_names, split_last},
};
use crate::{
    call::payload::{self, Pieces},
    model::{
        Attr, Caller, CreateHow, Error, ErrorKind, FsStat, Handle, MountOptions, NfsUrl, Node, PathConf, ReadData,
        Result, SetAttr, SetTime, Special, Status,
    },
    v3::V3,
    v4::V4,
};

/// A mounted tree. It is cheap to clone and can be used from any task of any runtime.
///
/// ```no_run
/// # async fn example(switch: rpc::Switch) -> client::Result<()> {
/// let mount = client::Mount::connect(&"nfs://server/export".parse()?, &switch).await?;
/// mount.mkdir("notes", 0o755).await?;
/// mount.write("notes/today", &b"it works"[..]).await?;
/// assert_eq!(mount.stat("notes/today").await?.size, 8);
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct Mount {
    protocol: Protocol,
    inner: Arc<Inner>,
}

#[derive(Debug)]
pub(crate) struct Inner {
    pub number: u64,
    pub url: NfsUrl,
    /// The path that was mounted: the URL's path, or the part of it that the server mounts.
    pub mounted: Bytes,
    /// The rest of the URL's path, at which paths start.
    pub start: Bytes,
    pub root: Handle,
    pub read_size: usize,
    pub write_size: usize,
    pub page_size: u32,
    /// The MOUNT service, to which UMNT is sent.
    pub mountd: Option<Mountd>,
    /// The mounts of other servers to which this one has referred.
    pub referred: Referred,
}

/// An object to which a path leads.
#[derive(Clone, Debug)]
pub struct Object {
    /// The mount of the object. It differs from the mount that was called if a referral was on the path.
    pub mount: Mount,
    /// The handle.
    pub handle: Handle,
    /// The attributes.
    pub attr: Attr,
}

/// The options for opening a file.
#[derive(Clone, Copy, Debug, Default)]
pub struct OpenOptions {
    /// Creates the file with this mode if it does not exist.
    pub create: Option<u32>,
    /// With `create`: an existing file is an error. The server creates the file exactly once.
    pub exclusive: bool,
    /// Truncates an existing file to zero bytes.
    pub truncate: bool,
}

impl Mount {
    pub(crate) fn new(protocol: Protocol, inner: Inner) -> Self {
        Self { protocol, inner: Arc::new(inner) }
    }

    /// Returns the same mount with another deadline: the time that the server may be silent during a call.
    pub fn with_deadline(&self, deadline: Duration) -> Self {
        Self { protocol: self.protocol.with_deadline(deadline), inner: self.inner.clone() }
    }

    /// Returns the same mount for a caller: its operations have the caller's credential, and the server decides what
    /// the caller may do. With `None`, operations have the credential of the mount's user.
    ///
    /// With Kerberos, the credential is the ticket of the caller's user ID, in `/tmp/krb5cc_UID`.
    pub fn with_caller(&self, caller: Option<&Caller>) -> Self {
        Self { protocol: self.protocol.with_caller(caller), inner: self.inner.clone() }
    }

    /// Ends the mount at the server: NFSv3 servers can list it and hold its locks, NFSv4 servers keep state for it. The connection
    /// closes with the last clone. In NFSv4, clones cannot be used any more.
    ///
    /// # Errors
    /// The server does not answer. This is harmless: a server of NFSv3 keeps an entry in its list, a server of NFSv4
    /// removes the state when the lease expires.
    pub async fn unmount(self) -> Result<()> {
        // All servers are called at the same time, so that one that does not answer does not delay the others.
        let referred = future::join_all(self.inner.referred.take().into_iter().map(|referred| async {
            if let Err(error) = Box::pin(referred.unmount()).await {
                tracing::debug!(%error, "unmounting a server that was referred to failed");
            }
        }));
        future::join(referred, self.unmount_one()).await.1
    }

    async fn unmount_one(&self) -> Result<()> {
        match (&self.protocol, &self.inner.mountd) {
            (Protocol::V4(v4), _) => v4.disconnect().await,
            (Protocol::V3(v3), mountd) => {
                v3.release_all_locks().await;
                match mountd {
                    Some(mountd) => mountd.client().await?.umnt(&self.inner.mounted).await,
                    None => Ok(()),
                }
            }
        }
    }

    /// Returns the operations by file handle.
    pub fn protocol(&self) -> &Protocol {
        &self.protocol
    }

    /// Returns the procedures of NFSv3, if the mount uses it.
    pub fn v3(&self) -> Option<&V3> {
        if let Protocol::V3(v3) = &self.protocol { Some(v3) } else { None }
    }

    /// Returns the operations that only NFSv4 has, if the mount uses it.
    pub fn v4(&self) -> Option<&V4> {
        if let Protocol::V4(v4) = &self.protocol { Some(v4) } else { None }
    }

    /// Returns a number that no other mount of this process has. Clones have the same number.
    pub fn number(&self) -> u64 {
        self.inner.number
    }

    /// Returns the handle of the mounted directory. No path leads above it.
    pub fn root(&self) -> &Handle {
        &self.inner.root
    }

    /// Returns the URL.
    pub fn url(&self) -> &NfsUrl {
        &self.inner.url
    }

    /// Returns the options of the URL.
    pub fn options(&self) -> &MountOptions {
        &self.inner.url.options
    }

    /// Returns the maximum bytes of a READ.
    pub fn read_size(&self) -> usize {
        self.inner.read_size
    }

    /// Returns the maximum bytes of a WRITE.
    pub fn write_size(&self) -> usize {
        self.inner.write_size
    }

    /// Returns the pool from which buffers for reading and writing should be taken: its memory is registered with the
    /// transport.
    pub fn pool(&self) -> &Pool {
        self.protocol.pool()
    }

    /// Asks the server for a descriptor of a regular file, open for reading. The server must be on this host, with transport shm, and
    /// both it and this process must be root. Reading through the descriptor needs no call and sees every write at once; the server
    /// cannot take the descriptor back.
    ///
    /// # Errors
    /// The reason why there is no descriptor. Read the file by calls then.
    pub async fn pass_file(&self, file: &Handle) -> std::result::Result<OwnedFd, NotPassed> {
        let program = self.protocol.program_at(file).ok_or(NotPassed::Moved)?;
        passthrough::pass_file(&program, file).await
    }

    pub(crate) fn page_size(&self) -> u32 {
        self.inner.page_size
    }

    /// Returns the object to which `path` leads. Follows a symbolic link at the end of the path.
    ///
    /// # Errors
    /// `NotFound`, `NotADirectory`, `AccessDenied`, …, or too many symbolic links.
    pub async fn resolve(&self, path: impl AsRef<[u8]>) -> Result<Object> {
        self.object(path.as_ref(), true).await
    }

    /// Returns the object that `path` names. Does not follow a symbolic link at the end of the path.
    ///
    /// # Errors
    /// The errors of [`resolve`](Self::resolve).
    pub async fn resolve_link(&self, path: impl AsRef<[u8]>) -> Result<Object> {
        self.object(path.as_ref(), false).await
    }

    /// Returns the attributes of the object to which `path` leads.
    ///
    /// # Errors
    /// The errors of [`resolve`](Self::resolve).
    pub async fn stat(&self, path: impl AsRef<[u8]>) -> Result<Attr> {
        self.resolve(path).await.map(|object| object.attr)
    }

    /// Returns the attributes of the object that `path` names, which can be a symbolic link.
    ///
    /// # Errors
    /// The errors of [`resolve`](Self::resolve).
    pub async fn stat_link(&self, path: impl AsRef<[u8]>) -> Result<Attr> {
        self.resolve_link(path).await.map(|object| object.attr)
    }

    /// Sets attributes of the object to which `path` leads.
    ///
    /// # Errors
    /// `NotPermitted`, …, and the errors of [`resolve`](Self::resolve).
    pub async fn set_attr(&self, path: impl AsRef<[u8]>, set: SetAttr) -> Result<()> {
        let path = path.as_ref();
        let Object { mount, handle, .. } = self.object(path, true).await?;
        mount.protocol.setattr(&handle, set).await.map(drop).map_err(mount.at(path))
    }

    /// Sets the permission bits.
    ///
    /// # Errors
    /// The errors of [`set_attr`](Self::set_attr).
    pub async fn chmod(&self, path: impl AsRef<[u8]>, mode: u32) -> Result<()> {
        self.set_attr(path, SetAttr { mode: Some(mode), ..SetAttr::default() }).await
    }

    /// Sets the owner, the group, or both.
    ///
    /// # Errors
    /// The errors of [`set_attr`](Self::set_attr).
    pub async fn chown(&self, path: impl AsRef<[u8]>, uid: Option<u32>, gid: Option<u32>) -> Result<()> {
        self.set_attr(path, SetAttr { uid, gid, ..SetAttr::default() }).await
    }

    /// Truncates a file to `size` bytes, or extends it by a hole.
    ///
    /// # Errors
    /// The errors of [`set_attr`](Self::set_attr).
    pub async fn truncate(&self, path: impl AsRef<[u8]>, size: u64) -> Result<()> {
        self.set_attr(path, SetAttr { size: Some(size), ..SetAttr::default() }).await
    }

    /// Sets the times of the last access and of the last change of the data.
    ///
    /// # Errors
    /// The errors of [`set_attr`](Self::set_attr).
    pub async fn set_times(&self, path: impl AsRef<[u8]>, atime: SetTime, mtime: SetTime) -> Result<()> {
        self.set_attr(path, SetAttr { atime, mtime, ..SetAttr::default() }).await
    }

    /// Returns which of the `wanted` rights (`ACCESS3_…`) the caller has.
    ///
    /// # Errors
    /// The errors of [`resolve`](Self::resolve).
    pub async fn access(&self, path: impl AsRef<[u8]>, wanted: u32) -> Result<u32> {
        let path = path.as_ref();
        let Object { mount, handle, .. } = self.object(path, true).await?;
        mount.protocol.access(&handle, wanted).await.map_err(mount.at(path))
    }

    /// Returns the text of the symbolic link at `path`.
    ///
    /// # Errors
    /// `InvalidArgument` if the object is not a symbolic link, and the errors of [`resolve`](Self::resolve).
    pub async fn readlink(&self, path: impl AsRef<[u8]>) -> Result<Bytes> {
        let path = path.as_ref();
        let Object { mount, handle, .. } = self.object(path, false).await?;
        mount.protocol.readlink(&handle).await.map_err(mount.at(path))
    }

    /// Opens an existing file.
    ///
    /// # Errors
    /// The errors of [`resolve`](Self::resolve).
    pub async fn open(&self, path: impl AsRef<[u8]>) -> Result<File> {
        self.open_with(path, OpenOptions::default()).await
    }

    /// Creates a file with this mode, or truncates an existing one to zero bytes.
    ///
    /// # Errors
    /// `AccessDenied`, `NoSpace`, …, and the errors of [`resolve`](Self::resolve).
    pub async fn create(&self, path: impl AsRef<[u8]>, mode: u32) -> Result<File> {
        self.open_with(path, OpenOptions { create: Some(mode), exclusive: false, truncate: true }).await
    }

    /// Opens or creates a file.
    ///
    /// # Errors
    /// `AlreadyExists`, `AccessDenied`, `NoSpace`, …, and the errors of [`resolve`](Self::resolve).
    pub async fn open_with(&self, path: impl AsRef<[u8]>, options: OpenOptions) -> Result<File> {
        let path = path.as_ref();
        let file = |mount, handle| File::new(mount, handle, Bytes::copy_from_slice(path));
        let Some(mode) = options.create else {
            let Object { mount, handle, .. } = self.object(path, true).await?;
            return self.opened(file(mount, handle), options).await;
        };
        let (mount, made) = if options.exclusive {
            let (mount, dir, name) = self.parent(path).await?;
            let set = SetAttr { mode: Some(mode), ..SetAttr::default() };
            let made = mount.protocol.create(&dir, &name, CreateHow::Exclusive(entropy::random(), set)).await;
            (mount, made)
        } else {
            match self.walk(path, true).await? {
                End::Missing { site: mount, dir, name } => {
                    let size = options.truncate.then_some(0);
                    let set = SetAttr { mode: Some(mode), size, ..SetAttr::default() };
                    let made = mount.protocol.create(&dir, &name, CreateHow::Unchecked(set)).await;
                    (mount, made)
                }
                End::Object(mount, node) => return self.opened(file(mount, node.handle), options).await,
            }
        };
        let node = made.map_err(mount.at(path))?;
        Ok(file(mount, node.handle))
    }

    async fn opened(&self, file: File, options: OpenOptions) -> Result<File> {
        if options.truncate {
            file.set_len(0).await?;
        }
        Ok(file)
    }

    /// Returns the content of a file. In NFSv4, reading a small file costs one call.
    ///
    /// # Errors
    /// The errors of [`open`](Self::open), or a READ failed.
    pub async fn read(&self, path: impl AsRef<[u8]>) -> Result<Bytes> {
        let path = path.as_ref();
        let file = |mount, handle| File::new(mount, handle, Bytes::copy_from_slice(path));
        let begun = self.read_small(path).await.map_err(self.at(path))?;
        let (mut pieces, mut reader) = match begun {
            Some((_, data)) if data.eof => return Ok(join(payload::pieces(data.data)?)),
            Some((handle, data)) => {
                let start = data.data.len() as u64;
                (payload::pieces(data.data)?, file(self.clone(), handle).reader_range(start, u64::MAX))
            }
            None => {
                let object = self.object(path, true).await?;
                (Pieces::new(), file(object.mount, object.handle).reader().expecting(object.attr.size))
            }
        };
        while let Some(piece) = reader.next().await? {
            pieces.push(piece);
        }
        Ok(join(pieces))
    }

    /// Returns the handle and first bytes of a file, read in one call; these are all bytes of a small file. Returns
    /// `None` if one call cannot do that.
    async fn read_small(&self, path: &[u8]) -> Result<Option<(Handle, ReadData)>> {
        let full = self.full(path);
        let Some(names) = plain_names(&full) else { return Ok(None) };
        self.protocol.read_path(&self.inner.root, &names, SMALL_FILE_MAX.min(self.read_size() as u32)).await
    }

    /// Replaces the content of a file. A new file has mode 0644. The data are on stable storage when this returns.
    ///
    /// # Errors
    /// The errors of [`create`](Self::create), or a WRITE failed.
    pub async fn write(&self, path: impl AsRef<[u8]>, data: impl Into<Bytes>) -> Result<()> {
        self.create(path, 0o644).await?.write_at(0, data.into()).await
    }

    /// Creates a directory.
    ///
    /// # Errors
    /// `AlreadyExists`, `AccessDenied`, …
    pub async fn mkdir(&self, path: impl AsRef<[u8]>, mode: u32) -> Result<()> {
        let path = path.as_ref();
        let (mount, dir, name) = self.parent(path).await?;
        let set = SetAttr { mode: Some(mode), ..SetAttr::default() };
        mount.protocol.mkdir(&dir, &name, set).await.map(drop).map_err(mount.at(path))
    }

    /// Creates a device, socket or pipe.
    ///
    /// # Errors
    /// `NotPermitted`, `NotSupported`, …
    pub async fn mknod(&self, path: impl AsRef<[u8]>, special: Special, set: SetAttr) -> Result<()> {
        let path = path.as_ref();
        let (mount, dir, name) = self.parent(path).await?;
        mount.protocol.mknod(&dir, &name, special, set).await.map(drop).map_err(mount.at(path))
    }

    /// Creates a symbolic link at `path` with this text.
    ///
    /// # Errors
    /// `AlreadyExists`, `AccessDenied`, …
    pub async fn symlink(&self, text: impl AsRef<[u8]>, path: impl AsRef<[u8]>) -> Result<()> {
        let (text, path) = (Bytes::copy_from_slice(text.as_ref()), path.as_ref());
        let (mount, dir, name) = self.parent(path).await?;
        mount.protocol.symlink(&dir, &name, text, SetAttr::default()).await.map(drop).map_err(mount.at(path))
    }

    /// Creates the hard link `new` to the object at `existing`. A symbolic link at `existing` is not followed.
    ///
    /// # Errors
    /// `AlreadyExists`, `IsADirectory`, `TooManyLinks`, …
    pub async fn link(&self, existing: impl AsRef<[u8]>, new: impl AsRef<[u8]>) -> Result<()> {
        let new = new.as_ref();
        let object = self.object(existing.as_ref(), false).await?;
        let (mount, dir, name) = self.parent(new).await?;
        mount.check_same_mount(&object.mount, "LINK").map_err(mount.at(new))?;
        mount.protocol.link(&object.handle, &dir, &name).await.map(drop).map_err(mount.at(new))
    }

    /// Removes the name of an object that is not a directory.
    ///
    /// # Errors
    /// `NotFound`, `IsADirectory`, `AccessDenied`, …
    pub async fn remove(&self, path: impl AsRef<[u8]>) -> Result<()> {
        let path = path.as_ref();
        let (mount, dir, name) = self.parent(path).await?;
        mount.protocol.remove(&dir, &name).await.map(drop).map_err(mount.at(path))
    }

    /// Removes an empty directory.
    ///
    /// # Errors
    /// `NotEmpty`, `NotADirectory`, …
    pub async fn rmdir(&self, path: impl AsRef<[u8]>) -> Result<()> {
        let path = path.as_ref();
        let (mount, dir, name) = self.parent(path).await?;
        mount.protocol.rmdir(&dir, &name).await.map(drop).map_err(mount.at(path))
    }

    /// Renames an object. Replaces an object with the new name if the file system allows it.
    ///
    /// # Errors
    /// `NotFound`, `NotEmpty`, …
    pub async fn rename(&self, from: impl AsRef<[u8]>, to: impl AsRef<[u8]>) -> Result<()> {
        let from = from.as_ref();
        let (mount, from_dir, from_name) = self.parent(from).await?;
        let (to_mount, to_dir, to_name) = self.parent(to.as_ref()).await?;
        mount.check_same_mount(&to_mount, "RENAME").map_err(mount.at(from))?;
        let result = mount.protocol.rename(&from_dir, &from_name, &to_dir, &to_name).await;
        result.map(drop).map_err(mount.at(from))
    }

    /// Opens a directory for reading its entries.
    ///
    /// # Errors
    /// The errors of [`resolve`](Self::resolve).
    pub async fn read_dir(&self, path: impl AsRef<[u8]>) -> Result<Dir> {
        let path = path.as_ref();
        let Object { mount, handle, .. } = self.object(path, true).await?;
        Ok(Dir::new(mount, handle, Bytes::copy_from_slice(path)))
    }

    /// Returns the total and free space and number of objects of the file system at `path`.
    ///
    /// # Errors
    /// The errors of [`resolve`](Self::resolve).
    pub async fn statfs(&self, path: impl AsRef<[u8]>) -> Result<FsStat> {
        let path = path.as_ref();
        let Object { mount, handle, .. } = self.object(path, true).await?;
        mount.protocol.fsstat(&handle).await.map_err(mount.at(path))
    }

    /// Returns the limits of the file system at `path`.
    ///
    /// # Errors
    /// The errors of [`resolve`](Self::resolve).
    pub async fn pathconf(&self, path: impl AsRef<[u8]>) -> Result<PathConf> {
        let path = path.as_ref();
        let Object { mount, handle, .. } = self.object(path, true).await?;
        mount.protocol.pathconf(&handle).await.map_err(mount.at(path))
    }

    /// Returns the directory that contains the last name of `path`, with its mount, and that name.
    ///
    /// # Errors
    /// The path does not end in a name, and the errors of [`resolve`](Self::resolve).
    pub async fn parent(&self, path: &[u8]) -> Result<(Mount, Handle, Bytes)> {
        let full = self.full(path);
        let bad = |problem| Error::new(ErrorKind::Path(problem), "walk");
        let (parent, name) = split_last(&full).map_err(bad).map_err(self.at(path))?;
        let (mount, node) = self.walk_full(parent, true).await.and_then(existing).map_err(self.at(path))?;
        Ok((mount, node.handle, Bytes::copy_from_slice(name)))
    }

    /// Returns the object with the given name in a directory of this mount, without following a symbolic link. If the
    /// name is a referral, returns the root of the file system on the other server, with its mount.
    ///
    /// # Errors
    /// `NotFound`, `NotADirectory`, …, or none of the servers of a referral can be reached.
    pub async fn lookup(&self, dir: &Handle, name: &[u8]) -> Result<Object> {
        let node = match self.protocol.lookup(dir, name).await {
            Err(error) if error.status() == Some(Status::Absent) => return self.follow(dir, name).await,
            result => result?,
        };
        self.with_attributes(node).await
    }

    /// Returns an object of this mount with its attributes.
    async fn with_attributes(&self, node: Node) -> Result<Object> {
        let attr = match node.attr {
            Some(attr) => attr,
            None => self.protocol.getattr(&node.handle).await?,
        };
        Ok(Object { mount: self.clone(), handle: node.handle, attr })
    }

    /// Checks that `other` is this mount.
    ///
    /// # Errors
    /// `CrossDevice` if it is another one, because no operation works across servers.
    fn check_same_mount(&self, other: &Mount, operation: &'static str) -> Result<()> {
        match self.number() == other.number() {
            true => Ok(()),
            false => Err(Error::refused(Status::CrossDevice, operation)),
        }
    }

    /// Returns the rest of the URL's path, which was not mounted.
    pub(crate) fn start(&self) -> &Bytes {
        &self.inner.start
    }

    pub(crate) fn referred(&self) -> &Referred {
        &self.inner.referred
    }

    async fn object(&self, path: &[u8], follow: bool) -> Result<Object> {
        let (mount, node) = self.walk(path, follow).await.and_then(existing).map_err(self.at(path))?;
        mount.with_attributes(node).await.map_err(mount.at(path))
    }

    async fn walk(&self, path: &[u8], follow: bool) -> Result<End<Mount>> {
        self.walk_full(&self.full(path), follow).await.map_err(self.at(path))
    }

    /// Returns a function that adds the server and `path` to an error.
    fn at(&self, path: &[u8]) -> impl Fn(Error) -> Error {
        move |error| error.on(self.protocol.program().server()).at(path)
    }

    /// Returns `path` after the rest of the URL's path.
    fn full(&self, path: &[u8]) -> Vec<u8> {
        match (&self.inner.start[..], path) {
            (b"", path) => path.to_vec(),
            (start, b"") => start.to_vec(),
            (start, path) => [start, b"/", path].concat(),
        }
    }

    async fn walk_full(&self, path: &[u8], follow: bool) -> Result<End<Mount>> {
        let mut walk = Walk::new(self.clone(), self.inner.root.clone(), path, follow);
        loop {
            match walk.step().map_err(|problem| Error::new(ErrorKind::Path(problem), "walk"))? {
                Step::Done(end) => return Ok(end),
                Step::ReadLink(mount, link) => walk.link_text(&mount.protocol.readlink(&link).await?),
                Step::Lookup { site: mount, dir, name } => match mount.lookup(&dir, &name).await {
                    Ok(Object { mount, handle, attr }) => walk.found(mount, Node { handle, attr: Some(attr) }),
                    Err(error) if error.is_not_found() => {
                        if !walk.missing() {
                            return Err(error);
                        }
                    }
                    Err(error) => return Err(error),
                },
            }
        }
    }
}

/// Joins the pieces. A single piece is not copied.
fn join(mut pieces: Pieces) -> Bytes {
    match pieces.len() {
        0 | 1 => pieces.pop().unwrap_or_default(),
        _ => pieces.concat().into(),
    }
}

fn existing(end: End<Mount>) -> Result<(Mount, Node)> {
    match end {
        End::Object(mount, node) => Ok((mount, node)),
        End::Missing { .. } => Err(Error::refused(Status::NotFound, "LOOKUP")),
    }
}

/// Maximum bytes of a file that the first call requests.
const SMALL_FILE_MAX: u32 = 64 << 10;
