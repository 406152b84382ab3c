//! The table of the operations by file handle that every version of NFS has.
//!
//! [`operations!`] passes the table to another macro. This module makes the trait [`Operations`] from it, which each
//! version implements. The module `mount` makes the methods of [`Protocol`](crate::Protocol) from it, which call the
//! version in use.

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
                /// Checks that the server answers.
                ///
                /// # Errors
                /// The server does not answer.
                null() -> Result<()>;

                /// Returns the attributes of an object.
                ///
                /// # Errors
                /// `StaleHandle`, and the errors of any call.
                getattr(object: &Handle) -> Result<Attr>;

                /// Sets attributes. Returns the attributes after the change, if the server sends them.
                ///
                /// # Errors
                /// `NotPermitted`, `AccessDenied`, …
                setattr(object: &Handle, set: SetAttr) -> Result<Option<Attr>>;

                /// Returns the object with the given name.
                ///
                /// # Errors
                /// `NotFound`, `NotADirectory`, …
                lookup(dir: &Handle, name: &[u8]) -> Result<Node>;

                /// Returns which of the `wanted` rights (`ACCESS3_…`) the caller has.
                ///
                /// # Errors
                /// `StaleHandle`, …
                access(object: &Handle, wanted: u32) -> Result<u32>;

                /// Returns the text of a symbolic link.
                ///
                /// # Errors
                /// `InvalidArgument` if the object is not a symbolic link.
                readlink(link: &Handle) -> Result<Bytes>;

                /// Reads up to `count` bytes of a file. Returns them in the memory into which the transport received
                /// them.
                ///
                /// # Errors
                /// `IsADirectory`, `AccessDenied`, …
                read(file: &Handle, offset: u64, count: u32) -> Result<ReadData>;

                /// Reads into all visible bytes of `region`, which the transport fills itself if it can. Returns a
                /// region of the same visible length in every case. It is the caller's region, unless the transport
                /// still holds that at the deadline; then it is host memory.
                ///
                /// # Errors
                /// The errors of [`read`](Self::read). The content of the region is then unspecified.
                read_into(file: &Handle, offset: u64, region: Region) -> (Result<ReadInfo>, Region);

                /// Writes `data` at `offset`. The server may write less.
                ///
                /// # Errors
                /// `NoSpace`, `FileTooLarge`, `AccessDenied`, …
                write(file: &Handle, offset: u64, data: Rope, stable: StableHow) -> Result<Written>;

                /// Makes unstable writes durable. The data of a WRITE are durable if this returns the verifier that the
                /// WRITE returned.
                ///
                /// # Errors
                /// `Io`, …
                commit(file: &Handle) -> Result<Verifier>;

                /// Creates a regular file, or opens an existing one if `how` allows it.
                ///
                /// # Errors
                /// `AlreadyExists`, `AccessDenied`, …
                create(dir: &Handle, name: &[u8], how: CreateHow) -> Result<Node>;

                /// Creates a directory.
                ///
                /// # Errors
                /// `AlreadyExists`, `AccessDenied`, …
                mkdir(dir: &Handle, name: &[u8], set: SetAttr) -> Result<Node>;

                /// Creates a symbolic link.
                ///
                /// # Errors
                /// `AlreadyExists`, `AccessDenied`, …
                symlink(dir: &Handle, name: &[u8], text: Bytes, set: SetAttr) -> Result<Node>;

                /// Creates a device, socket or pipe.
                ///
                /// # Errors
                /// `NotPermitted`, `NotSupported`, …
                mknod(dir: &Handle, name: &[u8], what: Special, set: SetAttr) -> Result<Node>;

                /// Removes the name of an object that is not a directory.
                ///
                /// # Errors
                /// `NotFound`, `IsADirectory`, `AccessDenied`, …
                remove(dir: &Handle, name: &[u8]) -> Result<()>;

                /// Removes an empty directory.
                ///
                /// # Errors
                /// `NotEmpty`, `NotFound`, …
                rmdir(dir: &Handle, name: &[u8]) -> Result<()>;

                /// Renames an object. Replaces an object with the new name if the file system allows it.
                ///
                /// # Errors
                /// `NotFound`, `CrossDevice`, `NotEmpty`, …
                rename(from_dir: &Handle, from: &[u8], to_dir: &Handle, to: &[u8]) -> Result<()>;

                /// Creates a hard link. Returns the attributes of the object after the change, if the server sends
                /// them.
                ///
                /// # Errors
                /// `AlreadyExists`, `TooManyLinks`, …
                link(object: &Handle, dir: &Handle, name: &[u8]) -> Result<Option<Attr>>;

                /// Returns the entries after `cookie` in up to `count` bytes. With `plus`, they have attributes and
                /// handles if the server sends these.
                ///
                /// # Errors
                /// `BadCookie`, `TooSmall`, …
                readdir(dir: &Handle, cookie: u64, verifier: Verifier, count: u32, plus: bool) -> Result<Page>;

                /// Returns the total and free space and number of objects of the file system.
                ///
                /// # Errors
                /// `StaleHandle`, …
                fsstat(object: &Handle) -> Result<FsStat>;

                /// Returns the limits of the file system.
                ///
                /// # Errors
                /// `StaleHandle`, …
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
