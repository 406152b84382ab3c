//! The table of the operations that every version of NFS has, by file handle.
//!
//! [`operations!`] hands the table to another macro. The trait [`Operations`] is made of it here, for the versions to implement; the
//! methods of [`Protocol`](crate::Protocol), which dispatch to a version, are made of it in `mount`.

use std::future::Future;

use buf::{Region, Rope};
use bytes::Bytes;

use super::{
    Attr, CreateHow, FsStat, Handle, Node, Page, PathConf, ReadData, ReadInfo, Result, SetAttr, Special, StableHow,
    Verifier, Written,
};

/// Calls a macro with the table of operations.
macro_rules! operations {
    ($define:ident) => {
        $define! {
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

                /// Reads into all visible bytes of `region`, which the transport fills itself where it can. A region of that
                /// visible length comes back whatever happens; it is the same, unless the transport still had it at the deadline:
                /// then it is host memory.
                ///
                /// # Errors
                /// As [`read`](Self::read); what the region holds is then unspecified.
                read_into(file: &Handle, offset: u64, region: Region) -> (Result<ReadInfo>, Region);

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
    };
}
pub(crate) use operations;

macro_rules! define_trait {
    ($($(#[$doc:meta])* $name:ident($($argument:ident: $type:ty),*) -> $result:ty;)*) => {
        /// The operations of every version; [`Protocol`](crate::Protocol) documents each.
        pub(crate) trait Operations {
            $(fn $name(&self, $($argument: $type),*) -> impl Future<Output = $result> + Send;)*
        }
    };
}

operations!(define_trait);
