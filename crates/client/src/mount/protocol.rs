//! [`Protocol`]: the seam between a mount and the versions of NFS.
//!
//! Above it, paths, files, read-ahead, write-behind and the recovery of uncommitted writes are the same code for every
//! version. Below it each version does the same operations, by handles, in its own way: here is the one table of them.

use std::time::Duration;

use buf::{Pool, Region, Rope};
use bytes::Bytes;

use crate::{
    call::Program,
    model::{
        Attr, CreateHow, FsStat, Handle, Node, Operations, Page, PathConf, ReadData, ReadInfo, Result, SetAttr,
        Special, StableHow, Verifier, Written, operations,
    },
    v3::V3,
    v4::V4,
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
            Err(error) if error.status().is_some() || error.is_unreadable() => Ok(None),
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

    /// A user of a file has finished.
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
