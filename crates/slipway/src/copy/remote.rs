//! The remote end of a copy: an object of a server, identified by its handle.

use bytes::Bytes;
use client::{CreateHow, Device, Dir, File, Handle, Mount, SetAttr, SetTime, Special, StableHow, Status, V4};

use super::{
    Error, Result,
    meta::{Kind, Meta, Time},
};

/// An object of a server.
#[derive(Clone, Debug)]
pub struct Remote {
    mount: Mount,
    handle: Handle,
    /// The path on the server, for messages.
    path: Bytes,
}

impl Remote {
    /// Creates the object with this handle; `path` is for messages.
    pub fn new(mount: Mount, handle: Handle, path: impl Into<Bytes>) -> Self {
        Self { mount, handle, path: path.into() }
    }

    /// Returns the mount of the object.
    pub fn mount(&self) -> &Mount {
        &self.mount
    }

    /// Returns the file handle.
    pub fn handle(&self) -> &Handle {
        &self.handle
    }

    /// Returns the path on the server.
    pub fn path(&self) -> &Bytes {
        &self.path
    }

    /// Returns the object as a file to read and write.
    pub fn file(&self) -> File {
        File::new(self.mount.clone(), self.handle.clone(), self.path.clone())
    }

    /// Returns the path of a name in this directory.
    pub fn path_of(&self, name: &[u8]) -> Bytes {
        let slash: &[u8] = if self.path.ends_with(b"/") { b"" } else { b"/" };
        [&self.path[..], slash, name].concat().into()
    }

    fn below(&self, name: &[u8], handle: Handle) -> Self {
        Self::new(self.mount.clone(), handle, self.path_of(name))
    }

    /// Returns the attributes.
    ///
    /// # Errors
    /// GETATTR failed.
    pub async fn meta(&self) -> Result<Meta> {
        Ok(Meta::from(&self.file().stat().await?))
    }

    /// Returns the object with this name, without following a link; `None` if there is none.
    ///
    /// # Errors
    /// LOOKUP failed for another reason.
    pub async fn child(&self, name: &[u8]) -> Result<Option<(Self, Meta)>> {
        match self.mount.lookup(&self.handle, name).await {
            Ok(found) => {
                let child = Self::new(found.mount, found.handle, self.path_of(name));
                Ok(Some((child, Meta::from(&found.attr))))
            }
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(Error::remote(&self.path_of(name), &error)),
        }
    }

    /// Returns all entries, in the order of their names. Omits entries that are removed meanwhile.
    ///
    /// # Errors
    /// READDIRPLUS failed, or a LOOKUP for attributes that it did not return.
    pub async fn list(&self) -> Result<Vec<(Bytes, Self, Meta)>> {
        let mut dir = Dir::new(self.mount.clone(), self.handle.clone(), self.path.clone());
        let mut entries = Vec::new();
        while let Some(entry) = dir.next().await? {
            match (entry.handle, entry.attr) {
                (Some(handle), Some(attr)) => {
                    entries.push((entry.name.clone(), self.below(&entry.name, handle), Meta::from(&attr)));
                }
                _ => {
                    if let Some((child, meta)) = self.child(&entry.name).await? {
                        entries.push((entry.name, child, meta));
                    }
                }
            }
        }
        entries.sort_by(|a, b| a.0.cmp(&b.0));
        Ok(entries)
    }

    /// Returns the target of a symbolic link.
    ///
    /// # Errors
    /// READLINK failed.
    pub async fn read_link(&self) -> Result<Bytes> {
        self.mount.protocol().readlink(&self.handle).await.map_err(|error| Error::remote(&self.path, &error))
    }

    /// Makes a directory that its owner can write to, unless it exists.
    ///
    /// # Errors
    /// MKDIR failed, or another object has the name.
    pub async fn make_dir(&self, name: &[u8], mode: u32) -> Result<Self> {
        let set = SetAttr { mode: Some(mode | 0o700), ..SetAttr::default() };
        match self.mount.protocol().mkdir(&self.handle, name, set).await {
            Ok(made) => Ok(self.below(name, made.handle)),
            Err(error) => match self.child(name).await? {
                Some((child, meta)) if meta.kind == Kind::Dir => Ok(child),
                _ => Err(Error::remote(&self.path_of(name), &error)),
            },
        }
    }

    /// Makes a new directory.
    ///
    /// # Errors
    /// MKDIR failed: `Exist`, `Acces`, …
    pub async fn make_new_dir(&self, name: &[u8], mode: u32) -> client::Result<()> {
        let set = SetAttr { mode: Some(mode), ..SetAttr::default() };
        self.mount.protocol().mkdir(&self.handle, name, set).await.map(drop)
    }

    /// Makes a regular file, or truncates an existing one; a new one gets `mode`.
    ///
    /// # Errors
    /// CREATE failed.
    pub async fn create(&self, name: &[u8], mode: u32) -> Result<Self> {
        let how = CreateHow::Unchecked(SetAttr { mode: Some(mode), size: Some(0), ..SetAttr::default() });
        let made = self
            .mount
            .protocol()
            .create(&self.handle, name, how)
            .await
            .map_err(|error| Error::remote(&self.path_of(name), &error))?;
        Ok(self.below(name, made.handle))
    }

    /// Lets the server copy this file's data into the empty file `made`, if both are on one server that can. The server
    /// shares the data (CLONE) or copies them (COPY). Returns `false` if it cannot; `made` is then empty.
    ///
    /// # Errors
    /// `made` could not be truncated, or committed.
    pub async fn copy_within(&self, meta: &Meta, made: &Self) -> Result<bool> {
        let place = |remote: &Self| (remote.mount.url().authority(), remote.mount.options().proto.clone());
        let Some(v4) = made.mount.v4().filter(|v4| v4.minor_version() >= 2) else { return Ok(false) };
        if place(self) != place(made) || self.mount.v4().is_none() || meta.size == 0 {
            return Ok(false);
        }
        if v4.clone_range((&self.handle, 0), (&made.handle, 0), 0).await.is_ok() {
            return Ok(true);
        }
        let copied = self.copy_ranges(v4, meta, made).await?;
        if !copied {
            made.file().set_len(0).await?;
        }
        Ok(copied)
    }

    async fn copy_ranges(&self, v4: &V4, meta: &Meta, made: &Self) -> Result<bool> {
        let (from, to) = (&self.handle, &made.handle);
        let mut done = 0;
        let mut verifiers = Vec::new();
        while done < meta.size {
            match v4.copy((from, done), (to, done), meta.size - done).await {
                Ok((count, written)) if count > 0 => {
                    done += count.min(meta.size - done);
                    if written.committed != StableHow::FileSync {
                        verifiers.push(written.verf);
                    }
                }
                Ok(_) => break,
                Err(error) => {
                    tracing::debug!(%error, "the server cannot copy the file");
                    return Ok(false);
                }
            }
        }
        if !verifiers.is_empty() {
            let now = made.mount.protocol().commit(to).await.map_err(|error| Error::remote(&made.path, &error))?;
            if verifiers.iter().any(|verifier| *verifier != now) {
                // The server has restarted, and may have lost copied data.
                return Ok(false);
            }
        }
        // If the source has become shorter or longer, read it again.
        Ok(done == meta.size)
    }

    /// Makes a symbolic link. Replaces an object that is not a directory.
    ///
    /// # Errors
    /// SYMLINK failed.
    pub async fn symlink(&self, name: &[u8], text: Bytes) -> Result<Self> {
        let make = || self.mount.protocol().symlink(&self.handle, name, text.clone(), SetAttr::default());
        let made = match make().await {
            Err(error) if error.status() == Some(Status::AlreadyExists) => {
                self.remove(name).await?;
                make().await
            }
            done => done,
        };
        let made = made.map_err(|error| Error::remote(&self.path_of(name), &error))?;
        Ok(self.below(name, made.handle))
    }

    /// Makes a device, socket or pipe with the attributes of `meta`. Replaces an object that is not a directory.
    ///
    /// # Errors
    /// MKNOD failed.
    pub async fn make_node(&self, name: &[u8], meta: &Meta) -> Result<Self> {
        let set = SetAttr { mode: Some(meta.mode), ..SetAttr::default() };
        let device = Device { major: meta.device.0, minor: meta.device.1 };
        let special = match meta.kind {
            Kind::Block => Special::Blk(device),
            Kind::Char => Special::Chr(device),
            Kind::Socket => Special::Sock,
            Kind::Fifo => Special::Fifo,
            Kind::File | Kind::Dir | Kind::Symlink => unreachable!("these types must not be created by MKNOD"),
        };
        let make = || self.mount.protocol().mknod(&self.handle, name, special, set.clone());
        let made = match make().await {
            Err(error) if error.status() == Some(Status::AlreadyExists) => {
                self.remove(name).await?;
                make().await
            }
            done => done,
        };
        let made = made.map_err(|error| Error::remote(&self.path_of(name), &error))?;
        Ok(self.below(name, made.handle))
    }

    /// Makes `name` in this directory a hard link to `existing`. Replaces an object that is not a directory.
    ///
    /// # Errors
    /// LINK failed.
    pub async fn link(&self, name: &[u8], existing: &Self) -> Result<()> {
        let make = || self.mount.protocol().link(&existing.handle, &self.handle, name);
        let done = match make().await {
            Err(error) if error.status() == Some(Status::AlreadyExists) => {
                self.remove(name).await?;
                make().await
            }
            done => done,
        };
        done.map(drop).map_err(|error| Error::remote(&self.path_of(name), &error))
    }

    /// Renames `file` within this directory.
    ///
    /// # Errors
    /// RENAME failed.
    pub async fn rename(&self, from: &[u8], to: &[u8], file: &Self) -> Result<()> {
        let Err(error) = self.mount.protocol().rename(&self.handle, from, &self.handle, to).await else {
            return Ok(());
        };
        // The rename may have been executed, and its reply lost together with the server's duplicate request cache.
        if error.is_not_found()
            && let Some((there, _)) = self.child(to).await?
            && there.handle == file.handle
        {
            return Ok(());
        }
        Err(Error::remote(&self.path_of(to), &error))
    }

    /// Removes a name of an object that is not a directory.
    ///
    /// # Errors
    /// REMOVE failed.
    pub async fn remove(&self, name: &[u8]) -> Result<()> {
        let done = self.mount.protocol().remove(&self.handle, name).await;
        done.map(drop).map_err(|error| Error::remote(&self.path_of(name), &error))
    }

    /// Removes an empty directory.
    ///
    /// # Errors
    /// RMDIR failed.
    pub async fn remove_dir(&self, name: &[u8]) -> Result<()> {
        let done = self.mount.protocol().rmdir(&self.handle, name).await;
        done.map(drop).map_err(|error| Error::remote(&self.path_of(name), &error))
    }

    /// Sets the permission bits.
    ///
    /// # Errors
    /// SETATTR failed.
    pub async fn set_mode(&self, mode: u32) -> Result<()> {
        Ok(self.file().set_attr(SetAttr { mode: Some(mode), ..SetAttr::default() }).await?)
    }

    /// Sets the owner, mode and times of `meta`. If the owner cannot be set, leaves it, as `cp -p` does, and omits the
    /// set-user-ID and set-group-ID bits.
    ///
    /// # Errors
    /// SETATTR failed.
    pub async fn preserve(&self, meta: &Meta) -> Result<()> {
        let link = meta.kind == Kind::Symlink;
        let set = SetAttr {
            mode: (!link).then_some(meta.mode),
            atime: SetTime::ToClientTime(time(meta.atime)),
            mtime: SetTime::ToClientTime(time(meta.mtime)),
            ..SetAttr::default()
        };
        self.set_owned(set, meta).await
    }

    /// Sets the owner and mode of `meta`, as [`preserve`](Self::preserve) does.
    ///
    /// # Errors
    /// SETATTR failed.
    pub async fn set_owner_and_mode(&self, meta: &Meta) -> Result<()> {
        self.set_owned(SetAttr { mode: Some(meta.mode), ..SetAttr::default() }, meta).await
    }

    async fn set_owned(&self, set: SetAttr, meta: &Meta) -> Result<()> {
        // Most servers let only root change the owner. Skip the attempt if the owner is already right.
        let owned = SetAttr { uid: Some(meta.uid), gid: Some(meta.gid), ..set.clone() };
        match self.file().set_attr(owned).await {
            Err(error)
                if matches!(
                    error.status(),
                    Some(Status::NotPermitted | Status::AccessDenied | Status::InvalidArgument)
                ) =>
            {
                let mode = set.mode.map(|mode| mode & !0o6000);
                Ok(self.file().set_attr(SetAttr { mode, ..set }).await?)
            }
            done => Ok(done?),
        }
    }
}

fn time(time: Time) -> client::Time {
    client::Time { seconds: time.seconds, nseconds: time.nanoseconds }
}
