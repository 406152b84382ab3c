//! [`Mount`]: a mounted tree, and operations on its paths.
//!
//! A path is bytes with slashes between names. It starts at what the URL names, whether it begins with a slash or not.
//! Symbolic links are followed here, not by the server, and lead nowhere but into the mount: `..` stays at its root and an
//! absolute link starts there. A caller that has handles uses [`Mount::protocol`] and saves the lookups.
//!
//! A path may lead to other servers, by referrals of version 4. What is there is of a mount of its own, which is made on the way;
//! an [`Object`], [`File`] or [`Dir`] says of which mount it is, and a handle means nothing to any other.

mod connect;
mod dir;
mod file;
mod mountd;
mod protocol;
mod read_ahead;
mod reader;
mod referral;
mod walk;
mod write_behind;
mod writer;

use std::{sync::Arc, time::Duration};

use buf::Pool;
use bytes::Bytes;
use futures_util::future;

pub use self::{
    dir::{Dir, DirEntry},
    file::File,
    mountd::MountClient,
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
        Attr, CreateHow, Error, ErrorKind, FsStat, Handle, MountOptions, NfsUrl, Node, PathConf, ReadData, Result,
        SetAttr, SetTime, Special, Status,
    },
    v3::V3,
    v4::V4,
};

/// A mounted tree. Cheap to clone; usable from any task of any runtime.
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
    /// The path that was mounted: the URL's, or what of it the server would mount.
    pub mounted: Bytes,
    /// The rest of the URL's path: where paths start.
    pub start: Bytes,
    pub root: Handle,
    pub read_size: usize,
    pub write_size: usize,
    pub page_size: u32,
    /// Where MOUNT is spoken, to take leave there.
    pub mountd: Option<Mountd>,
    /// Other servers that this one has referred to.
    pub referred: Referred,
}

/// An object that a path leads to.
#[derive(Clone, Debug)]
pub struct Object {
    /// The mount that it is of: another than was asked if a referral was on the way.
    pub mount: Mount,
    /// Its handle.
    pub handle: Handle,
    /// Its attributes.
    pub attr: Attr,
}

/// How to open a file.
#[derive(Clone, Copy, Debug, Default)]
pub struct OpenOptions {
    /// Make the file if there is none, with this mode.
    pub create: Option<u32>,
    /// With `create`: a file that is there already is an error. It is decided by the server, exactly once.
    pub exclusive: bool,
    /// Cut a file that is there to nothing.
    pub truncate: bool,
}

impl Mount {
    pub(crate) fn new(protocol: Protocol, inner: Inner) -> Self {
        Self { protocol, inner: Arc::new(inner) }
    }

    /// The same mount, but each call ends when the server has been silent for so long.
    pub fn with_deadline(&self, deadline: Duration) -> Self {
        Self { protocol: self.protocol.with_deadline(deadline), inner: self.inner.clone() }
    }

    /// Tells the server that the mount is over: version 3 may list it, version 4 keeps state for it. The connection ends
    /// with the last clone; of version 4, no clone is of any more use.
    ///
    /// # Errors
    /// The server cannot be told. It does not matter to anything but its list; state it forgets by itself.
    pub async fn unmount(self) -> Result<()> {
        // One that does not answer keeps no other from hearing of it.
        let referred = future::join_all(self.inner.referred.take().into_iter().map(|referred| async {
            if let Err(error) = Box::pin(referred.unmount()).await {
                tracing::debug!(%error, "a server that was referred to cannot be told");
            }
        }));
        future::join(referred, self.take_leave()).await.1
    }

    async fn take_leave(&self) -> Result<()> {
        match (&self.protocol, &self.inner.mountd) {
            (Protocol::V4(v4), _) => v4.leave().await,
            (_, Some(mountd)) => mountd.client().await?.umnt(&self.inner.mounted).await,
            (_, None) => Ok(()),
        }
    }

    /// The operations, by handles.
    pub fn protocol(&self) -> &Protocol {
        &self.protocol
    }

    /// The procedures of version 3, if that is what is spoken.
    pub fn v3(&self) -> Option<&V3> {
        if let Protocol::V3(v3) = &self.protocol { Some(v3) } else { None }
    }

    /// What only version 4 can do, if that is what is spoken.
    pub fn v4(&self) -> Option<&V4> {
        if let Protocol::V4(v4) = &self.protocol { Some(v4) } else { None }
    }

    /// A number that no other mount of this process has; clones are one mount.
    pub fn number(&self) -> u64 {
        self.inner.number
    }

    /// The handle of the directory that was mounted; nothing leads above it.
    pub fn root(&self) -> &Handle {
        &self.inner.root
    }

    /// The URL.
    pub fn url(&self) -> &NfsUrl {
        &self.inner.url
    }

    /// The options of the URL.
    pub fn options(&self) -> &MountOptions {
        &self.inner.url.options
    }

    /// Bytes of the largest READ.
    pub fn read_size(&self) -> usize {
        self.inner.read_size
    }

    /// Bytes of the largest WRITE.
    pub fn write_size(&self) -> usize {
        self.inner.write_size
    }

    /// Where buffers for reading and writing should come from: memory that the transport knows.
    pub fn pool(&self) -> &Pool {
        self.protocol.pool()
    }

    pub(crate) fn page_size(&self) -> u32 {
        self.inner.page_size
    }

    /// The object that `path` leads to, through a symbolic link at its end too.
    ///
    /// # Errors
    /// `NoEnt`, `NotDir`, `Acces`, …; or too many symbolic links.
    pub async fn resolve(&self, path: impl AsRef<[u8]>) -> Result<Object> {
        self.object(path.as_ref(), true).await
    }

    /// The object that `path` names, which can be a symbolic link.
    ///
    /// # Errors
    /// As [`resolve`](Self::resolve).
    pub async fn resolve_link(&self, path: impl AsRef<[u8]>) -> Result<Object> {
        self.object(path.as_ref(), false).await
    }

    /// The attributes of what `path` leads to.
    ///
    /// # Errors
    /// As [`resolve`](Self::resolve).
    pub async fn stat(&self, path: impl AsRef<[u8]>) -> Result<Attr> {
        self.resolve(path).await.map(|object| object.attr)
    }

    /// The attributes of what `path` names, which can be a symbolic link.
    ///
    /// # Errors
    /// As [`resolve`](Self::resolve).
    pub async fn stat_link(&self, path: impl AsRef<[u8]>) -> Result<Attr> {
        self.resolve_link(path).await.map(|object| object.attr)
    }

    /// Sets attributes of what `path` leads to.
    ///
    /// # Errors
    /// `Perm`, …, and as [`resolve`](Self::resolve).
    pub async fn set_attr(&self, path: impl AsRef<[u8]>, set: SetAttr) -> Result<()> {
        let path = path.as_ref();
        let Object { mount, handle, .. } = self.object(path, true).await?;
        mount.protocol.setattr(&handle, set).await.map(drop).map_err(mount.at(path))
    }

    /// Sets the permission bits.
    ///
    /// # Errors
    /// As [`set_attr`](Self::set_attr).
    pub async fn chmod(&self, path: impl AsRef<[u8]>, mode: u32) -> Result<()> {
        self.set_attr(path, SetAttr { mode: Some(mode), ..SetAttr::default() }).await
    }

    /// Sets the owner, the group, or both.
    ///
    /// # Errors
    /// As [`set_attr`](Self::set_attr).
    pub async fn chown(&self, path: impl AsRef<[u8]>, uid: Option<u32>, gid: Option<u32>) -> Result<()> {
        self.set_attr(path, SetAttr { uid, gid, ..SetAttr::default() }).await
    }

    /// Cuts a file to `size` bytes, or extends it by a hole.
    ///
    /// # Errors
    /// As [`set_attr`](Self::set_attr).
    pub async fn truncate(&self, path: impl AsRef<[u8]>, size: u64) -> Result<()> {
        self.set_attr(path, SetAttr { size: Some(size), ..SetAttr::default() }).await
    }

    /// Sets the times of last access and last change of the data.
    ///
    /// # Errors
    /// As [`set_attr`](Self::set_attr).
    pub async fn set_times(&self, path: impl AsRef<[u8]>, atime: SetTime, mtime: SetTime) -> Result<()> {
        self.set_attr(path, SetAttr { atime, mtime, ..SetAttr::default() }).await
    }

    /// Which of the `wanted` rights (`ACCESS3_…`) the caller has.
    ///
    /// # Errors
    /// As [`resolve`](Self::resolve).
    pub async fn access(&self, path: impl AsRef<[u8]>, wanted: u32) -> Result<u32> {
        let path = path.as_ref();
        let Object { mount, handle, .. } = self.object(path, true).await?;
        mount.protocol.access(&handle, wanted).await.map_err(mount.at(path))
    }

    /// The text of the symbolic link at `path`.
    ///
    /// # Errors
    /// `Inval` if it is none, and as [`resolve`](Self::resolve).
    pub async fn readlink(&self, path: impl AsRef<[u8]>) -> Result<Bytes> {
        let path = path.as_ref();
        let Object { mount, handle, .. } = self.object(path, false).await?;
        mount.protocol.readlink(&handle).await.map_err(mount.at(path))
    }

    /// Opens a file that is there.
    ///
    /// # Errors
    /// As [`resolve`](Self::resolve).
    pub async fn open(&self, path: impl AsRef<[u8]>) -> Result<File> {
        self.open_with(path, OpenOptions::default()).await
    }

    /// Makes a file with this mode, or cuts one that is there to nothing.
    ///
    /// # Errors
    /// `Acces`, `NoSpc`, …, and as [`resolve`](Self::resolve).
    pub async fn create(&self, path: impl AsRef<[u8]>, mode: u32) -> Result<File> {
        self.open_with(path, OpenOptions { create: Some(mode), exclusive: false, truncate: true }).await
    }

    /// Opens or makes a file.
    ///
    /// # Errors
    /// `Exist`, `Acces`, `NoSpc`, …, and as [`resolve`](Self::resolve).
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

    /// The whole content of a file. A small one costs one call where the version of NFS can do that.
    ///
    /// # Errors
    /// As [`open`](Self::open), or a READ failed.
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

    /// The file's handle and first bytes, all of them if it is small, in one call; `None` if that cannot be done.
    async fn read_small(&self, path: &[u8]) -> Result<Option<(Handle, ReadData)>> {
        let full = self.full(path);
        let Some(names) = plain_names(&full) else { return Ok(None) };
        self.protocol.read_path(&self.inner.root, &names, SMALL.min(self.read_size() as u32)).await
    }

    /// Makes a file of this content (mode 0644 where it is new); it is on stable storage when this returns.
    ///
    /// # Errors
    /// As [`create`](Self::create), or a WRITE failed.
    pub async fn write(&self, path: impl AsRef<[u8]>, data: impl Into<Bytes>) -> Result<()> {
        self.create(path, 0o644).await?.write_at(0, data.into()).await
    }

    /// Makes a directory.
    ///
    /// # Errors
    /// `Exist`, `Acces`, …
    pub async fn mkdir(&self, path: impl AsRef<[u8]>, mode: u32) -> Result<()> {
        let path = path.as_ref();
        let (mount, dir, name) = self.parent(path).await?;
        let set = SetAttr { mode: Some(mode), ..SetAttr::default() };
        mount.protocol.mkdir(&dir, &name, set).await.map(drop).map_err(mount.at(path))
    }

    /// Makes a device, socket or pipe.
    ///
    /// # Errors
    /// `Perm`, `NotSupp`, …
    pub async fn mknod(&self, path: impl AsRef<[u8]>, special: Special, set: SetAttr) -> Result<()> {
        let path = path.as_ref();
        let (mount, dir, name) = self.parent(path).await?;
        mount.protocol.mknod(&dir, &name, special, set).await.map(drop).map_err(mount.at(path))
    }

    /// Makes a symbolic link at `path` whose text is `text`.
    ///
    /// # Errors
    /// `Exist`, `Acces`, …
    pub async fn symlink(&self, text: impl AsRef<[u8]>, path: impl AsRef<[u8]>) -> Result<()> {
        let (text, path) = (Bytes::copy_from_slice(text.as_ref()), path.as_ref());
        let (mount, dir, name) = self.parent(path).await?;
        mount.protocol.symlink(&dir, &name, text, SetAttr::default()).await.map(drop).map_err(mount.at(path))
    }

    /// Gives the object at `existing`, itself and not what a link there leads to, the further name `new`.
    ///
    /// # Errors
    /// `Exist`, `IsDir`, `MLink`, …
    pub async fn link(&self, existing: impl AsRef<[u8]>, new: impl AsRef<[u8]>) -> Result<()> {
        let new = new.as_ref();
        let object = self.object(existing.as_ref(), false).await?;
        let (mount, dir, name) = self.parent(new).await?;
        mount.is_that_of(&object.mount, "LINK").map_err(mount.at(new))?;
        mount.protocol.link(&object.handle, &dir, &name).await.map(drop).map_err(mount.at(new))
    }

    /// Removes a name that is not a directory's.
    ///
    /// # Errors
    /// `NoEnt`, `IsDir`, `Acces`, …
    pub async fn remove(&self, path: impl AsRef<[u8]>) -> Result<()> {
        let path = path.as_ref();
        let (mount, dir, name) = self.parent(path).await?;
        mount.protocol.remove(&dir, &name).await.map(drop).map_err(mount.at(path))
    }

    /// Removes an empty directory.
    ///
    /// # Errors
    /// `NotEmpty`, `NotDir`, …
    pub async fn rmdir(&self, path: impl AsRef<[u8]>) -> Result<()> {
        let path = path.as_ref();
        let (mount, dir, name) = self.parent(path).await?;
        mount.protocol.rmdir(&dir, &name).await.map(drop).map_err(mount.at(path))
    }

    /// Moves a name, replacing what is at the target if it can be.
    ///
    /// # Errors
    /// `NoEnt`, `NotEmpty`, …
    pub async fn rename(&self, from: impl AsRef<[u8]>, to: impl AsRef<[u8]>) -> Result<()> {
        let from = from.as_ref();
        let (mount, from_dir, from_name) = self.parent(from).await?;
        let (to_mount, to_dir, to_name) = self.parent(to.as_ref()).await?;
        mount.is_that_of(&to_mount, "RENAME").map_err(mount.at(from))?;
        let result = mount.protocol.rename(&from_dir, &from_name, &to_dir, &to_name).await;
        result.map(drop).map_err(mount.at(from))
    }

    /// The entries of a directory.
    ///
    /// # Errors
    /// As [`resolve`](Self::resolve).
    pub async fn read_dir(&self, path: impl AsRef<[u8]>) -> Result<Dir> {
        let path = path.as_ref();
        let Object { mount, handle, .. } = self.object(path, true).await?;
        Ok(Dir::new(mount, handle, Bytes::copy_from_slice(path)))
    }

    /// Space and objects of the file system at `path`, total and free.
    ///
    /// # Errors
    /// As [`resolve`](Self::resolve).
    pub async fn statfs(&self, path: impl AsRef<[u8]>) -> Result<FsStat> {
        let path = path.as_ref();
        let Object { mount, handle, .. } = self.object(path, true).await?;
        mount.protocol.fsstat(&handle).await.map_err(mount.at(path))
    }

    /// The limits of the file system at `path`.
    ///
    /// # Errors
    /// As [`resolve`](Self::resolve).
    pub async fn pathconf(&self, path: impl AsRef<[u8]>) -> Result<PathConf> {
        let path = path.as_ref();
        let Object { mount, handle, .. } = self.object(path, true).await?;
        mount.protocol.pathconf(&handle).await.map_err(mount.at(path))
    }

    /// The directory that holds the last name of `path`, with the mount that it is of, and that name.
    ///
    /// # Errors
    /// The path does not end in a name, and as [`resolve`](Self::resolve).
    pub async fn parent(&self, path: &[u8]) -> Result<(Mount, Handle, Bytes)> {
        let full = self.full(path);
        let bad = |problem| Error::new(ErrorKind::Path(problem), "walk");
        let (parent, name) = split_last(&full).map_err(bad).map_err(self.at(path))?;
        let (mount, node) = self.walk_full(parent, true).await.and_then(existing).map_err(self.at(path))?;
        Ok((mount, node.handle, Bytes::copy_from_slice(name)))
    }

    /// The object of a name in a directory of this mount, without following a link; where the name stands for a file system of
    /// another server, the root of that, with the mount that it is of.
    ///
    /// # Errors
    /// `NoEnt`, `NotDir`, …; or none of the servers that this one refers to can be reached.
    pub async fn lookup(&self, dir: &Handle, name: &[u8]) -> Result<Object> {
        let node = match self.protocol.lookup(dir, name).await {
            Err(error) if error.status() == Some(Status::Absent) => return self.follow(dir, name).await,
            result => result?,
        };
        self.looked_at(node).await
    }

    /// An object of this mount with its attributes.
    async fn looked_at(&self, node: Node) -> Result<Object> {
        let attr = match node.attr {
            Some(attr) => attr,
            None => self.protocol.getattr(&node.handle).await?,
        };
        Ok(Object { mount: self.clone(), handle: node.handle, attr })
    }

    /// # Errors
    /// XDEV: it is another server.
    fn is_that_of(&self, other: &Mount, operation: &'static str) -> Result<()> {
        match self.number() == other.number() {
            true => Ok(()),
            false => Err(Error::refused(Status::CrossDevice, operation)),
        }
    }

    /// The rest of the URL's path, which was not mounted.
    pub(crate) fn start(&self) -> &Bytes {
        &self.inner.start
    }

    pub(crate) fn referred(&self) -> &Referred {
        &self.inner.referred
    }

    async fn object(&self, path: &[u8], follow: bool) -> Result<Object> {
        let (mount, node) = self.walk(path, follow).await.and_then(existing).map_err(self.at(path))?;
        mount.looked_at(node).await.map_err(mount.at(path))
    }

    async fn walk(&self, path: &[u8], follow: bool) -> Result<End<Mount>> {
        self.walk_full(&self.full(path), follow).await.map_err(self.at(path))
    }

    /// Says in an error where it happened.
    fn at(&self, path: &[u8]) -> impl Fn(Error) -> Error {
        move |error| error.on(self.protocol.program().server()).at(path)
    }

    /// `path` behind the URL's.
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

/// One piece is taken as it is.
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

/// Bytes of a file that may come with the first call.
const SMALL: u32 = 64 << 10;
