//! The NFS client library: NFS version 3 over any transport of [`rpc`]'s switch, in user space.
//!
//! A [`Mount`] is made from a URL and has the operations of a file system, by path; a [`File`] reads and writes, and its
//! [`Reader`] and [`Writer`] do so in order, with read-ahead and write-behind; a [`Dir`] lists. [`V3`] are the procedures
//! themselves, by file handle; [`MountClient`] is the MOUNT protocol. All are `Send`, and work from any task of any
//! tokio runtime as long as the one on which the mount was made runs.
//!
//! Programs without an asynchronous runtime use [`blocking`].
//!
//! - **Memory.** File data is not copied: it is received into the caller's [`Buffer`](buf::Buffer) or into memory of the
//!   transport's pool, and sent from the [`Rope`](buf::Rope) that the caller gave.
//! - **Time.** Every call ends when the server has been silent until the deadline (`timeo` in the URL,
//!   [`Mount::with_deadline`]). A server that says "later" (JUKEBOX, DELAY, GRACE) is asked again, for as long as it says so.
//!   A lost connection is made again below, and only a deadline that passes shows it. Dropping a future gives its call up.
//! - **Errors** say what happened in which procedure, on which server and for which path; see [`ErrorKind`].
//!
//! Read RFC 1813 first; the parts that decide ([`Writer`]'s and [`Reader`]'s plans, the walk along a path) do no I/O.
//!
//! ```no_run
//! # async fn example(switch: rpc::Switch) -> client::Result<()> {
//! let url = "nfs://server/export?proto=tcp&timeo=300".parse()?;
//! let mount = client::Mount::connect(&url, &switch).await?;
//!
//! let mut writer = mount.create("greeting", 0o644).await?.writer();
//! writer.write(bytes::Bytes::from_static(b"hello")).await?;
//! writer.close().await?; // on stable storage
//!
//! let file = mount.open("greeting").await?;
//! let (read, buffer) = file.read_at(0, mount.pool().take(4096)).await;
//! assert_eq!(&buffer[..read?], b"hello");
//! # Ok(()) }
//! ```

pub mod blocking;
mod call;
pub mod harness;
mod model;
mod mount;
mod session;
mod v3;
mod v4;

pub use model::*;
pub use mount::{Dir, DirEntry, File, Mount, MountClient, Object, OpenOptions, Protocol, Reader, Writer};
pub use v3::V3;
pub use v4::{DataVersion, Held, LockRange, SetXattr, V4, Watcher};
