//! [`Protocol`]: the interface between a mount and the versions of NFS.
//!
//! Paths, files, read-ahead, write-behind and the recovery of uncommitted writes are above this interface, and the same
//! for every version. Below it, each version implements the same table of operations by file handle.

use std::{future::Future, time::Duration};

use buf::{Pool, Region, Rope};
use bytes::Bytes;

use crate::{
    call::Program,
    model::{
        Attr, Caller, CreateHow, FsStat, Handle, LockRange, Node, Operations, Page, PathConf, ReadData, ReadInfo,
        Result, SetAttr, Special, StableHow, Verifier, Written, operations,
    },
    v3::V3,
    v4::V4,
};

/// A version of NFS on one server, with operations by file handle. It is cheap to clone and can be used from any task.
///
/// A call fails when the server has been silent until the deadline. Dropping the future cancels the call.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Protocol {
    /// NFSv3.
    V3(V3),
    /// NFSv4.0, NFSv4.1 or NFSv4.2.
    V4(V4),
}

macro_rules! define_dispatch {
    ($($(#[$doc:meta])* $name:ident($($argument:ident: $type:ty),*) -> $result:ty;)*) => {
        impl Protocol {
            $($(#[$doc])* pub async fn $name(&self, $($argument: $type),*) -> $result {
                match self {
                    Protocol::V3(v3) => Operations::$name(v3, $($argument),*).await,
                    Protocol::V4(v4) => Operations::$name(v4, $($argument),*).await,
                }
            })*
        }
    };
}

operations!(define_dispatch);

/// Byte-range locks, which an owner holds: a name that the caller chooses. With `nolock`, a mount of NFSv3 has none.
impl Protocol {
    /// Reports whether the server holds locks for this mount.
    pub fn has_locks(&self) -> bool {
        match self {
            Protocol::V3(v3) => v3.has_locks(),
            Protocol::V4(_) => true,
        }
    }

    /// Checks that the server has a lock manager that the client can use. In NFSv4, locks are a part of the protocol.
    ///
    /// # Errors
    /// `LockManager`, or the server does not answer.
    pub async fn find_lock_manager(&self) -> Result<()> {
        match self {
            Protocol::V3(v3) => v3.find_lock_manager().await,
            Protocol::V4(_) => Ok(()),
        }
    }

    /// Locks bytes for `owner`. Returns `None` if the lock was granted, otherwise a conflicting lock of another owner.
    ///
    /// # Errors
    /// `InvalidArgument`, `InvalidRange`, …, or the locks of this owner have been lost.
    pub async fn lock(&self, file: &Handle, owner: &[u8], range: LockRange) -> Result<Option<LockRange>> {
        match self {
            Protocol::V3(v3) => v3.lock(file, owner, range).await,
            Protocol::V4(v4) => v4.lock(file, owner, range).await,
        }
    }

    /// Locks bytes like [`lock`](Self::lock). If there is a conflicting lock, waits until the lock is granted, or until
    /// the deadline has passed since the server last asked to retry later.
    ///
    /// # Errors
    /// `LockDenied` at the deadline, and the errors of [`lock`](Self::lock).
    pub async fn lock_wait(&self, file: &Handle, owner: &[u8], range: LockRange) -> Result<()> {
        match self {
            Protocol::V3(v3) => v3.lock_wait(file, owner, range).await,
            Protocol::V4(v4) => v4.lock_wait(file, owner, range).await,
        }
    }

    /// Locks bytes like [`lock_wait`](Self::lock_wait), but waits until `given_up` completes. An outstanding request is
    /// first completed: if it is granted, the lock is held.
    ///
    /// # Errors
    /// `LockDenied` if `given_up` has completed, and the errors of [`lock`](Self::lock).
    pub async fn lock_until(
        &self,
        file: &Handle,
        owner: &[u8],
        range: LockRange,
        given_up: impl Future<Output = ()> + Send,
    ) -> Result<()> {
        match self {
            Protocol::V3(v3) => v3.lock_until(file, owner, range, given_up).await,
            Protocol::V4(v4) => v4.lock_until(file, owner, range, given_up).await,
        }
    }

    /// Unlocks those of the bytes that `owner` has locked.
    ///
    /// # Errors
    /// The locks of this owner have been lost, and the errors of any call.
    pub async fn unlock(&self, file: &Handle, owner: &[u8], offset: u64, length: u64) -> Result<()> {
        match self {
            Protocol::V3(v3) => v3.unlock(file, owner, offset, length).await,
            Protocol::V4(v4) => v4.unlock(file, owner, offset, length).await,
        }
    }

    /// Releases all locks of an owner in a file. If some have been lost, the owner can lock again after this.
    ///
    /// # Errors
    /// The server does not answer, or refuses.
    pub async fn release_locks(&self, file: &Handle, owner: &[u8]) -> Result<()> {
        match self {
            Protocol::V3(v3) => v3.release_locks(file, owner).await,
            Protocol::V4(v4) => v4.release_locks(file, owner).await,
        }
    }

    /// Returns a lock of another owner that conflicts with this one; `None` if there is none.
    ///
    /// # Errors
    /// `InvalidArgument`, …
    pub async fn test_lock(&self, file: &Handle, owner: &[u8], range: LockRange) -> Result<Option<LockRange>> {
        match self {
            Protocol::V3(v3) => v3.test_lock(file, owner, range).await,
            Protocol::V4(v4) => v4.test_lock(file, owner, range).await,
        }
    }
}

impl Protocol {
    /// Returns the same protocol with another deadline: the time that the server may be silent during a call.
    pub fn with_deadline(&self, deadline: Duration) -> Self {
        match self {
            Protocol::V3(v3) => Protocol::V3(v3.with_deadline(deadline)),
            Protocol::V4(v4) => Protocol::V4(v4.with_deadline(deadline)),
        }
    }

    /// Returns the same protocol for a caller, or for the user of the mount.
    pub fn with_caller(&self, caller: Option<&Caller>) -> Self {
        match self {
            Protocol::V3(v3) => Protocol::V3(v3.with_caller(caller)),
            Protocol::V4(v4) => Protocol::V4(v4.with_caller(caller)),
        }
    }

    /// Returns the version as a URL spells it.
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

    /// Reads up to `count` bytes from the start of a file that is known to be small. In NFSv4, one call opens, reads
    /// and closes the file.
    pub(crate) async fn read_small(&self, file: &Handle, count: u32) -> Result<ReadData> {
        match self {
            Protocol::V3(v3) => Operations::read(v3, file, 0, count).await,
            Protocol::V4(v4) => v4.read_small(file, count).await,
        }
    }

    /// Reads up to `count` bytes of the file to which `names` lead from a directory, in one call. Returns `None` if the
    /// version cannot do that, or if the path has symbolic links or leads to another server.
    ///
    /// # Errors
    /// The server did not answer.
    pub(crate) async fn read_path(
        &self,
        dir: &Handle,
        names: &[&[u8]],
        count: u32,
    ) -> Result<Option<(Handle, ReadData)>> {
        let Protocol::V4(v4) = self else { return Ok(None) };
        match v4.read_path(dir, names, count).await {
            Ok(read) => Ok(Some(read)),
            // The step-by-step walk finds the failing name, or the symbolic link or moved file system.
            Err(error) if error.status().is_some() || error.is_unreadable() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Returns the number of the server that has an object, as far as the client knows: its file system can have moved.
    pub fn server_of(&self, object: &Handle) -> u64 {
        match self {
            Protocol::V3(_) => 0,
            Protocol::V4(v4) => v4.place_now(object).number(),
        }
    }

    /// Tells the protocol that a user of a file has finished, so that the file can be closed.
    pub(crate) fn close_if_idle(&self, file: &Handle) {
        match self {
            Protocol::V3(_) => {}
            Protocol::V4(v4) => v4.close_if_idle(file),
        }
    }

    /// Returns the RPC program that sends the calls.
    pub(crate) fn program(&self) -> &Program {
        match self {
            Protocol::V3(v3) => v3.program(),
            Protocol::V4(v4) => v4.program(),
        }
    }

    /// Returns the program that sends calls about a file, as the caller. `None` if the file has moved to another server.
    pub(crate) fn program_at(&self, file: &Handle) -> Option<Program> {
        match self {
            Protocol::V3(v3) => Some(v3.program().clone()),
            Protocol::V4(v4) => v4.program_at(file),
        }
    }

    /// Returns the pool from which buffers should be taken.
    pub(crate) fn pool(&self) -> &Pool {
        self.program().pool()
    }
}
