//! The client for programs without an asynchronous runtime.
//!
//! A [`Runtime`] is a thread that drives the connections of its mounts. The methods of [`Mount`] and [`File`] wait for
//! that thread. They can be called from any number of threads at the same time. These can be threads of another tokio
//! runtime, which are blocked meanwhile, or threads that run their destructors. All types here can be dropped there,
//! too. Operations without a method here run through [`Mount::run`].
//!
//! Buffers: [`File::read_at`], [`Reader`] and [`Writer`] copy the data once. [`File::read_buffer`] and
//! [`File::write_at`] do not copy: a buffer moves into the operation and returns with its result.
//!
//! An operation that fails returns its [`Error`](crate::Error). A panic in an operation is raised again in its caller.
//!
//! ```no_run
//! # fn example(switch: rpc::Switch) -> Result<(), Box<dyn std::error::Error>> {
//! let runtime = client::blocking::Runtime::start()?;
//! let mount = runtime.connect(&"nfs://server/export".parse()?, &switch)?;
//! mount.write("greeting", "hello")?;
//! let mut buffer = [0; 5];
//! let len = mount.open("greeting")?.read_at(&mut buffer, 0)?;
//! assert_eq!(&buffer[..len], b"hello");
//! # Ok(()) }
//! ```

use std::{
    any::Any,
    future::Future,
    io,
    panic::{AssertUnwindSafe, resume_unwind},
    sync::{Arc, mpsc},
    thread::{self, JoinHandle, ThreadId},
};

use buf::{Region, Rope};
use bytes::Bytes;
use futures_util::FutureExt;
use rpc::Switch;
use tokio::{runtime, sync::oneshot};

use crate::{
    model::{Attr, NfsUrl, Result},
    mount::{self, DirEntry, OpenOptions},
};

/// A thread that drives connections. It ends when the last clone and the last [`Mount`] and [`File`] of it are dropped.
#[derive(Clone)]
pub struct Runtime(Arc<Driver>);

struct Driver {
    handle: runtime::Handle,
    /// Ends the thread when it is dropped.
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
    id: ThreadId,
}

/// A value that belongs to a runtime and is dropped on its thread.
#[derive(Clone)]
struct Owned<T: Send + 'static> {
    /// `None` only while an operation uses the value, and in `Drop`.
    value: Option<T>,
    runtime: Runtime,
}

/// A [`Mount`](crate::Mount) whose operations block the caller. Clones share its connections.
#[derive(Clone)]
pub struct Mount(Owned<mount::Mount>);

/// A [`File`](crate::File) whose operations block the caller.
#[derive(Clone)]
pub struct File(Owned<mount::File>);

/// Reads a file in order, with read-ahead.
pub struct Reader {
    reader: Owned<mount::Reader>,
    /// Data that were received and not yet returned to the caller.
    chunk: Bytes,
}

/// Writes a file in order, with write-behind. A [`std::io::BufWriter`] around it makes small writes cheaper. Data are
/// on stable storage after [`flush`](io::Write::flush). Data that are not flushed may be lost.
pub struct Writer(Owned<mount::Writer>);

impl Runtime {
    /// Starts the thread.
    ///
    /// # Errors
    /// The system has no resources for a thread or for descriptors.
    pub fn start() -> io::Result<Self> {
        let runtime = runtime::Builder::new_current_thread().enable_all().build()?;
        let handle = runtime.handle().clone();
        let (stop, stopped) = oneshot::channel::<()>();
        let thread = thread::Builder::new().name("slipway-client".to_owned()).spawn(move || {
            // Nothing is ever sent: `block_on` returns an error when the sender is dropped.
            let _ = runtime.block_on(stopped);
        })?;
        let id = thread.thread().id();
        Ok(Self(Arc::new(Driver { handle, stop: Some(stop), thread: Some(thread), id })))
    }

    /// Mounts the tree that `url` names; see [`Mount::connect`](crate::Mount::connect).
    ///
    /// # Errors
    /// The host or transport is unknown, no server answers, or the server does not export the path to this client.
    pub fn connect(&self, url: &NfsUrl, switch: &Switch) -> Result<Mount> {
        let (url, switch) = (url.clone(), switch.clone());
        let mount = self.run(async move { mount::Mount::connect(&url, &switch).await })?;
        Ok(Mount(Owned { value: Some(mount), runtime: self.clone() }))
    }

    /// Runs a future on the thread and waits for its result.
    ///
    /// # Panics
    /// If the future panics, or if the caller is itself a future on that thread, which would wait forever.
    pub fn run<T: Send + 'static>(&self, future: impl Future<Output = T> + Send + 'static) -> T {
        assert!(
            thread::current().id() != self.0.id,
            "a blocking call must not run on the thread that drives the client's connections"
        );
        // This uses a channel instead of the runtime's `block_on`, which panics on threads of another runtime.
        let (done, result) = mpsc::sync_channel::<std::result::Result<T, Box<dyn Any + Send>>>(1);
        self.0.handle.spawn(async move {
            let _ = done.send(AssertUnwindSafe(future).catch_unwind().await);
        });
        let result = result.recv().expect("the thread must run as long as references to it exist");
        result.unwrap_or_else(|panic| resume_unwind(panic))
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        drop(self.stop.take());
        // If a future on this thread drops the last reference, the thread ends without a join.
        if thread::current().id() != self.id
            && let Some(thread) = self.thread.take()
        {
            let _ = thread.join();
        }
    }
}

impl<T: Send + 'static> Owned<T> {
    fn get(&self) -> &T {
        self.value.as_ref().expect("operations must return the value")
    }

    fn with<U: Send + 'static>(&self, value: U) -> Owned<U> {
        Owned { value: Some(value), runtime: self.runtime.clone() }
    }
}

impl<T: Clone + Send + 'static> Owned<T> {
    /// Runs an operation on a clone.
    fn run<R, F>(&self, operation: impl FnOnce(T) -> F) -> R
    where
        R: Send + 'static,
        F: Future<Output = R> + Send + 'static,
    {
        self.runtime.run(operation(self.get().clone()))
    }
}

impl<T: Send + 'static> Owned<T> {
    /// Runs an operation on the value itself. The operation returns it with the result.
    fn lend<R, F>(&mut self, operation: impl FnOnce(T) -> F) -> R
    where
        R: Send + 'static,
        F: Future<Output = (T, R)> + Send + 'static,
    {
        let value = self.value.take().expect("operations must return the value");
        let (value, result) = self.runtime.run(operation(value));
        self.value = Some(value);
        result
    }
}

impl<T: Send + 'static> Drop for Owned<T> {
    /// Drops the value in a task on the runtime's thread, because a thread that runs its destructors may have no tokio
    /// context.
    fn drop(&mut self) {
        if let Some(value) = self.value.take() {
            self.runtime.0.handle.spawn(async move { drop(value) });
        }
    }
}

impl Mount {
    /// Runs operations of the asynchronous [`Mount`](crate::Mount) and waits for their result.
    pub fn run<T, F>(&self, operations: impl FnOnce(mount::Mount) -> F) -> T
    where
        T: Send + 'static,
        F: Future<Output = T> + Send + 'static,
    {
        self.0.run(operations)
    }

    /// Returns the asynchronous mount.
    pub fn as_async(&self) -> &mount::Mount {
        self.0.get()
    }

    /// Returns the attributes of an object. Follows symbolic links.
    ///
    /// # Errors
    /// The path does not lead to an object, or the server refuses.
    pub fn stat(&self, path: impl AsRef<[u8]>) -> Result<Attr> {
        let path = owned(path);
        self.run(|mount| async move { mount.stat(path).await })
    }

    /// Reads a whole file.
    ///
    /// # Errors
    /// The file cannot be opened or read.
    pub fn read(&self, path: impl AsRef<[u8]>) -> Result<Bytes> {
        let path = owned(path);
        self.run(|mount| async move { mount.read(path).await })
    }

    /// Replaces the content of a file, which is created if it does not exist. The data are on stable storage when this
    /// returns.
    ///
    /// # Errors
    /// The file cannot be created or written.
    pub fn write(&self, path: impl AsRef<[u8]>, data: impl Into<Bytes>) -> Result<()> {
        let (path, data) = (owned(path), data.into());
        self.run(|mount| async move { mount.write(path, data).await })
    }

    /// Opens a file.
    ///
    /// # Errors
    /// The path does not lead to a file.
    pub fn open(&self, path: impl AsRef<[u8]>) -> Result<File> {
        let path = owned(path);
        self.file(self.run(|mount| async move { mount.open(path).await }))
    }

    /// Opens or creates a file.
    ///
    /// # Errors
    /// The file does not exist and `create` is not set, or it exists and `exclusive` is set, or the server refuses.
    pub fn open_with(&self, path: impl AsRef<[u8]>, options: OpenOptions) -> Result<File> {
        let path = owned(path);
        self.file(self.run(|mount| async move { mount.open_with(path, options).await }))
    }

    /// Creates a file, or truncates an existing one.
    ///
    /// # Errors
    /// The server refuses.
    pub fn create(&self, path: impl AsRef<[u8]>, mode: u32) -> Result<File> {
        let path = owned(path);
        self.file(self.run(|mount| async move { mount.create(path, mode).await }))
    }

    /// Creates a directory.
    ///
    /// # Errors
    /// The server refuses.
    pub fn mkdir(&self, path: impl AsRef<[u8]>, mode: u32) -> Result<()> {
        let path = owned(path);
        self.run(|mount| async move { mount.mkdir(path, mode).await })
    }

    /// Removes a file.
    ///
    /// # Errors
    /// There is no such file, or the server refuses.
    pub fn remove(&self, path: impl AsRef<[u8]>) -> Result<()> {
        let path = owned(path);
        self.run(|mount| async move { mount.remove(path).await })
    }

    /// Removes an empty directory.
    ///
    /// # Errors
    /// There is no such directory, it is not empty, or the server refuses.
    pub fn rmdir(&self, path: impl AsRef<[u8]>) -> Result<()> {
        let path = owned(path);
        self.run(|mount| async move { mount.rmdir(path).await })
    }

    /// Renames an object.
    ///
    /// # Errors
    /// The server refuses.
    pub fn rename(&self, from: impl AsRef<[u8]>, to: impl AsRef<[u8]>) -> Result<()> {
        let (from, to) = (owned(from), owned(to));
        self.run(|mount| async move { mount.rename(from, to).await })
    }

    /// Lists a directory, without `.` and `..`.
    ///
    /// # Errors
    /// The path does not lead to a directory, or the server refuses.
    pub fn read_dir(&self, path: impl AsRef<[u8]>) -> Result<Vec<DirEntry>> {
        let path = owned(path);
        self.run(|mount| async move { mount.read_dir(path).await?.collect().await })
    }

    /// Ends the mount; see [`Mount::unmount`](crate::Mount::unmount).
    ///
    /// # Errors
    /// The server does not answer.
    pub fn unmount(self) -> Result<()> {
        self.0.run(|mount| async move { mount.unmount().await })
    }

    fn file(&self, opened: Result<mount::File>) -> Result<File> {
        Ok(File(self.0.with(opened?)))
    }
}

impl File {
    /// Returns the asynchronous file.
    pub fn as_async(&self) -> &mount::File {
        self.0.get()
    }

    /// Returns the attributes.
    ///
    /// # Errors
    /// The file has been removed, or the server refuses.
    pub fn stat(&self) -> Result<Attr> {
        self.0.run(|file| async move { file.stat().await })
    }

    /// Reads at `offset` into `into`. Returns the number of bytes, which is less than the length of `into` only at the
    /// end of the file. The data are copied once.
    ///
    /// # Errors
    /// A READ failed. The content of `into` is then unspecified.
    pub fn read_at(&self, into: &mut [u8], offset: u64) -> Result<usize> {
        let buffer = self.as_async().mount().pool().take(into.len());
        let (read, buffer) = self.read_buffer(offset, buffer);
        let len = read?;
        into[..len].copy_from_slice(&buffer[..len]);
        Ok(len)
    }

    /// Reads at `offset` into a [`Buffer`](buf::Buffer) or a [`Region`]. Does not copy if the memory has at most
    /// [`Mount::read_size`](crate::Mount::read_size) bytes. Returns the memory with the result.
    ///
    /// # Errors
    /// A READ failed. The content of the memory is then unspecified.
    pub fn read_buffer<R>(&self, offset: u64, into: R) -> (Result<usize>, R)
    where
        R: Into<Region> + TryFrom<Region> + Send + 'static,
    {
        self.0.run(|file| async move { file.read_at(offset, into).await })
    }

    /// Writes at `offset`, without a copy. The data are on stable storage when this returns.
    ///
    /// # Errors
    /// A WRITE or COMMIT failed. Some of the data may have been written.
    pub fn write_at(&self, offset: u64, data: impl Into<Rope>) -> Result<()> {
        let data = data.into();
        self.0.run(|file| async move { file.write_at(offset, data).await })
    }

    /// Returns a reader of the whole file.
    pub fn reader(&self) -> Reader {
        Reader { reader: self.0.with(self.as_async().reader()), chunk: Bytes::new() }
    }

    /// Returns a writer that starts at `offset`.
    pub fn writer_at(&self, offset: u64) -> Writer {
        Writer(self.0.with(self.as_async().writer_at(offset)))
    }
}

impl io::Read for Reader {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if self.chunk.is_empty() && !into.is_empty() {
            let next = self.reader.lend(|mut reader| async move {
                let next = reader.next().await;
                (reader, next)
            });
            self.chunk = next?.unwrap_or_default();
        }
        let len = self.chunk.len().min(into.len());
        into[..len].copy_from_slice(&self.chunk.split_to(len));
        Ok(len)
    }
}

impl io::Write for Writer {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        let data = Bytes::copy_from_slice(data);
        self.0.lend(|mut writer| async move {
            let len = data.len();
            let written = writer.write(data).await;
            (writer, written.map(|()| len).map_err(Into::into))
        })
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.lend(|mut writer| async move {
            let flushed = writer.flush().await;
            (writer, flushed.map_err(Into::into))
        })
    }
}

fn owned(path: impl AsRef<[u8]>) -> Bytes {
    Bytes::copy_from_slice(path.as_ref())
}
