//! The remote end of a copy: an object of a server, by its handle.

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
    /// The object of this handle; `path` is for messages.
    pub fn new(mount: Mount, handle: Handle, path: impl Into<Bytes>) -> Self {
        Self { mount, handle, path: path.into() }
    }

    /// The mount it is reached by.
    pub fn mount(&self) -> &Mount {
        &self.mount
    }

    /// By which the server knows it.
    pub fn handle(&self) -> &Handle {
        &self.handle
    }

    /// Its path on the server.
    pub fn path(&self) -> &Bytes {
        &self.path
    }

    /// As a file to be read and written.
    pub fn file(&self) -> File {
        File::new(self.mount.clone(), self.handle.clone(), self.path.clone())
    }

    /// The path of a name below it.
    pub fn path_of(&self, name: &[u8]) -> Bytes {
        let slash: &[u8] = if self.path.ends_with(b"/") { b"" } else { b"/" };
        [&self.path[..], slash, name].concat().into()
    }

    fn below(&self, name: &[u8], handle: Handle) -> Self {
        Self::new(self.mount.clone(), handle, self.path_of(name))
    }

    /// Its attributes.
    ///
    /// # Errors
    /// GETATTR failed.
    pub async fn meta(&self) -> Result<Meta> {
        Ok(Meta::from(&self.file().stat().await?))
    }

    /// The object of this name, without following a link; `None` if there is none.
    ///
    /// # Errors
    /// LOOKUP failed otherwise.
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

    /// All entries, in the order of their names. What vanishes meanwhile is left out.
    ///
    /// # Errors
    /// READDIRPLUS failed, or a LOOKUP where it did not give all.
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

    /// The text of a symbolic link.
    ///
    /// # Errors
    /// READLINK failed.
    pub async fn read_link(&self) -> Result<Bytes> {
        self.mount.protocol().readlink(&self.handle).await.map_err(|error| Error::remote(&self.path, &error))
    }

    /// Makes a directory that its owner can fill, or finds one.
    ///
    /// # Errors
    /// MKDIR failed, or something else has the name.
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

    /// Makes a directory that is not there yet.
    ///
    /// # Errors
    /// MKDIR failed: `Exist`, `Acces`, …
    pub async fn make_new_dir(&self, name: &[u8], mode: u32) -> client::Result<()> {
        let set = SetAttr { mode: Some(mode), ..SetAttr::default() };
        self.mount.protocol().mkdir(&self.handle, name, set).await.map(drop)
    }

    /// Makes a regular file, or empties one; a new one has `mode`.
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

    /// Copies this file's data into the empty file `made` by the server itself, if both are of one server that can: by
    /// sharing the data, else by copying within the server. False if it cannot; `made` is then empty.
    ///
    /// # Errors
    /// `made` could not be emptied, or committed.
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
                    tracing::debug!(%error, "the server does not copy by itself");
                    return Ok(false);
                }
            }
        }
        if !verifiers.is_empty() {
            let now = made.mount.protocol().commit(to).await.map_err(|error| Error::remote(&made.path, &error))?;
            if verifiers.iter().any(|verifier| *verifier != now) {
                // The server has restarted, and may have lost what it had copied.
                return Ok(false);
            }
        }
        // A source that has become shorter, or longer, is read as it is now.
        Ok(done == meta.size)
    }

    /// Makes a symbolic link, in the place of an object that is not a directory.
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

    /// Makes a device, socket or pipe as `meta` describes it, in the place of an object that is not a directory.
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
            Kind::File | Kind::Dir | Kind::Symlink => unreachable!("what has a procedure of its own"),
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

    /// Gives `existing` a further name here, in the place of an object that is not a directory.
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

    /// Renames `file`, in this directory.
    ///
    /// # Errors
    /// RENAME failed.
    pub async fn rename(&self, from: &[u8], to: &[u8], file: &Self) -> Result<()> {
        let Err(error) = self.mount.protocol().rename(&self.handle, from, &self.handle, to).await else {
            return Ok(());
        };
        // The reply of one that was executed may have been lost with the server's memory of it.
        if error.is_not_found()
            && let Some((there, _)) = self.child(to).await?
            && there.handle == file.handle
        {
            return Ok(());
        }
        Err(Error::remote(&self.path_of(to), &error))
    }

    /// Removes a name that is not a directory's.
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

    /// Gives it the owner, mode and times of `meta`. An owner that may not be given is left, as `cp -p` does;
    /// set-user-id and set-group-id bits are then left out.
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

    /// Gives it the owner and mode of `meta`, as [`preserve`](Self::preserve) does.
    ///
    /// # Errors
    /// SETATTR failed.
    pub async fn set_owner_and_mode(&self, meta: &Meta) -> Result<()> {
        self.set_owned(SetAttr { mode: Some(meta.mode), ..SetAttr::default() }, meta).await
    }

    async fn set_owned(&self, set: SetAttr, meta: &Meta) -> Result<()> {
        // Most servers let only root give files away. Who is not the owner's user need not even ask.
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
