//! The NFS client library: NFSv3 and NFSv4 in user space, over any transport of [`rpc`]'s switch.
//!
//! - [`Mount`] is made from a URL and has the operations of a file system, by path.
//! - [`File`] reads and writes at offsets; its [`Reader`] and [`Writer`] do so in order, with read-ahead and
//!   write-behind. [`Dir`] lists a directory.
//! - [`Protocol`] has the operations by file handle, [`V3`] the procedures of NFSv3, [`V4`] what only NFSv4 has, and
//!   [`MountClient`] the MOUNT protocol.
//!
//! All of these are `Send`. They can be used from any task of any tokio runtime, as long as the runtime runs on which
//! the mount was made.
//!
//! Programs without an asynchronous runtime use [`blocking`].
//!
//! - **Memory.** File data are not copied: they are received into the caller's [`Buffer`](buf::Buffer) or into memory
//!   of the transport's pool, and sent from the caller's [`Rope`](buf::Rope).
//! - **Time.** A call fails when the server has been silent until the deadline (`timeo` in the URL,
//!   [`Mount::with_deadline`]). If the server asks to retry later (JUKEBOX, DELAY, GRACE), the client retries without a
//!   limit. A lost connection is made again; callers notice it only if the deadline passes. Dropping a future cancels
//!   its call.
//! - **Errors** name the failure, the procedure, the server and the path; see [`ErrorKind`].
//!
//! Read RFC 1813 first. The read-ahead of [`Reader`], the write-behind of [`Writer`] and the walk along a path are
//! decided in modules without I/O.
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
pub use mount::{Dir, DirEntry, File, Mount, MountClient, NotPassed, Object, OpenOptions, Protocol, Reader, Writer};
pub use v3::{PosixAcls, V3};
pub use v4::{DataCount, DataVersion, DataWays, Held, SetXattr, V4, Watcher, map_owner_names};
