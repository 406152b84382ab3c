//! [`Protocol`]: the seam between a mount and the versions of NFS.
//!
//! Above it, paths, files, read-ahead, write-behind and the recovery of uncommitted writes are the same code for every
//! version. Below it each version does the same operations, by handles, in its own way: here is the one table of them.

use std::{future::Future, time::Duration};

use buf::{Buffer, Pool, Rope};
use bytes::Bytes;

use crate::{
    Attr, CreateHow, FsStat, Handle, Node, Page, PathConf, ReadData, ReadInfo, Result, SetAttr, Special, StableHow, V3,
    V4, Verifier, Written, program::Program, v4::anywhere::Anywhere,
};

/// A version of NFS on one server, by file handles. Cheap to clone; usable from any task.
///
/// Every call ends when the server has been silent until the deadline, and dropping its future gives it up.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Protocol {
    /// Version 3.
    V3(V3),
    /// Version 4.0, 4.1 or 4.2.
    V4(V4),
}

macro_rules! operations {
    ($($(#[$doc:meta])* $name:ident($($argument:ident: $type:ty),*) -> $result:ty;)*) => {
        /// What every version does; [`Protocol`] says what each means.
        pub(crate) trait Operations {
            $(fn $name(&self, $($argument: $type),*) -> impl Future<Output = $result> + Send;)*
        }

        impl Protocol {
            $($(#[$doc])* pub async fn $name(&self, $($argument: $type),*) -> $result {
                match self {
                    Protocol::V3(v3) => Operations::$name(v3, $($argument),*).await,
                    Protocol::V4(v4) => Operations::$name(&Anywhere(v4), $($argument),*).await,
                }
            })*
        }
    };
}

operations! {
    /// Asks whether the server answers.
    ///
    /// # Errors
    /// It does not.
    null() -> Result<()>;

    /// The attributes of an object.
    ///
    /// # Errors
    /// `Stale`, and what can fail with any call.
    getattr(object: &Handle) -> Result<Attr>;

    /// Sets attributes; returns those that the object has then, if the server says them.
    ///
    /// # Errors
    /// `Perm`, `Acces`, …
    setattr(object: &Handle, set: SetAttr) -> Result<Option<Attr>>;

    /// The object of a name.
    ///
    /// # Errors
    /// `NoEnt`, `NotDir`, …
    lookup(dir: &Handle, name: &[u8]) -> Result<Node>;

    /// Which of the wanted rights (`ACCESS3_…`) the caller has.
    ///
    /// # Errors
    /// `Stale`, …
    access(object: &Handle, wanted: u32) -> Result<u32>;

    /// The text of a symbolic link.
    ///
    /// # Errors
    /// `Inval` if it is none.
    readlink(link: &Handle) -> Result<Bytes>;

    /// Up to `count` bytes of a file, in the memory that the transport received them into.
    ///
    /// # Errors
    /// `IsDir`, `Acces`, …
    read(file: &Handle, offset: u64, count: u32) -> Result<ReadData>;

    /// Reads into all visible bytes of `buffer`, which the transport fills itself where it can. A buffer of that
    /// visible length comes back whatever happens; it is the same, unless the transport still had it at the deadline.
    ///
    /// # Errors
    /// As [`read`](Self::read); what the buffer holds is then unspecified.
    read_into(file: &Handle, offset: u64, buffer: Buffer) -> (Result<ReadInfo>, Buffer);

    /// Writes `data` at `offset`; the server may write less.
    ///
    /// # Errors
    /// `NoSpc`, `FBig`, `Acces`, …
    write(file: &Handle, offset: u64, data: Rope, stable: StableHow) -> Result<Written>;

    /// Makes unstable writes durable. What a WRITE wrote is safe if this is the verifier that it returned.
    ///
    /// # Errors
    /// `Io`, …
    commit(file: &Handle) -> Result<Verifier>;

    /// Makes a regular file, or finds one as `how` allows.
    ///
    /// # Errors
    /// `Exist`, `Acces`, …
    create(dir: &Handle, name: &[u8], how: CreateHow) -> Result<Node>;

    /// Makes a directory.
    ///
    /// # Errors
    /// `Exist`, `Acces`, …
    mkdir(dir: &Handle, name: &[u8], set: SetAttr) -> Result<Node>;

    /// Makes a symbolic link.
    ///
    /// # Errors
    /// `Exist`, `Acces`, …
    symlink(dir: &Handle, name: &[u8], text: Bytes, set: SetAttr) -> Result<Node>;

    /// Makes a device, socket or pipe.
    ///
    /// # Errors
    /// `Perm`, `NotSupp`, …
    mknod(dir: &Handle, name: &[u8], what: Special, set: SetAttr) -> Result<Node>;

    /// Removes a name that is not a directory's.
    ///
    /// # Errors
    /// `NoEnt`, `IsDir`, `Acces`, …
    remove(dir: &Handle, name: &[u8]) -> Result<()>;

    /// Removes an empty directory.
    ///
    /// # Errors
    /// `NotEmpty`, `NoEnt`, …
    rmdir(dir: &Handle, name: &[u8]) -> Result<()>;

    /// Moves a name, replacing what is at the target if it can be.
    ///
    /// # Errors
    /// `NoEnt`, `XDev`, `NotEmpty`, …
    rename(from_dir: &Handle, from: &[u8], to_dir: &Handle, to: &[u8]) -> Result<()>;

    /// Gives an object a further name; returns the attributes that it has then, if the server says them.
    ///
    /// # Errors
    /// `Exist`, `MLink`, …
    link(object: &Handle, dir: &Handle, name: &[u8]) -> Result<Option<Attr>>;

    /// Entries behind `cookie`, in up to `count` bytes; with attributes and handles if wanted and the server can.
    ///
    /// # Errors
    /// `BadCookie`, `TooSmall`, …
    readdir(dir: &Handle, cookie: u64, verifier: Verifier, count: u32, plus: bool) -> Result<Page>;

    /// Space and objects of the file system, total and free.
    ///
    /// # Errors
    /// `Stale`, …
    fsstat(object: &Handle) -> Result<FsStat>;

    /// The file system's limits.
    ///
    /// # Errors
    /// `Stale`, …
    pathconf(object: &Handle) -> Result<PathConf>;
}

impl Protocol {
    /// The same, but each call ends when the server has been silent for so long.
    pub fn with_deadline(&self, deadline: Duration) -> Self {
        match self {
            Protocol::V3(v3) => Protocol::V3(v3.with_deadline(deadline)),
            Protocol::V4(v4) => Protocol::V4(v4.with_deadline(deadline)),
        }
    }

    /// The version, as a URL says it.
    pub fn version(&self) -> &'static str {
        match self {
            Protocol::V3(_) => "3",
            Protocol::V4(v4) => match v4.minor_version() {
                0 => "4.0",
                1 => "4.1",
                _ => "4.2",
            },
        }
    }

    /// Reads a file from its first byte that is known to be small: up to `count` bytes, in one call where the version
    /// knows opens too.
    pub(crate) async fn read_small(&self, file: &Handle, count: u32) -> Result<ReadData> {
        match self {
            Protocol::V3(v3) => Operations::read(v3, file, 0, count).await,
            Protocol::V4(v4) => v4.read_small(file, count).await,
        }
    }

    /// Reads up to `count` bytes of the file that `names` lead to from a directory, in one call; `None` where the version
    /// cannot, or where the way is not that plain.
    ///
    /// # Errors
    /// The server was not reached.
    pub(crate) async fn read_path(
        &self,
        dir: &Handle,
        names: &[&[u8]],
        count: u32,
    ) -> Result<Option<(Handle, ReadData)>> {
        let Protocol::V4(v4) = self else { return Ok(None) };
        match v4.read_path(dir, names, count).await {
            Ok(read) => Ok(Some(read)),
            // Walking finds out what is wrong and where, or that it is a link, or has moved.
            Err(error) if error.status().is_some() || error.status4().is_some() || error.is_unreadable() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// A number of the server where an object is, as far as that is known: a file system can move.
    pub fn server_of(&self, object: &Handle) -> u64 {
        match self {
            Protocol::V3(_) => 0,
            Protocol::V4(v4) => v4.place_now(object).number(),
        }
    }

    /// Whoever used a file is done with it for now.
    pub(crate) fn done(&self, file: &Handle) {
        match self {
            Protocol::V3(_) => {}
            Protocol::V4(v4) => v4.done(file),
        }
    }

    /// How calls are made; what is below NFS.
    pub(crate) fn program(&self) -> &Program {
        match self {
            Protocol::V3(v3) => v3.program(),
            Protocol::V4(v4) => v4.program(),
        }
    }

    /// Where buffers should come from.
    pub(crate) fn pool(&self) -> &Pool {
        self.program().pool()
    }
}
