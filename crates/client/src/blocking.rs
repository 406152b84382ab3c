//! The client for programs without an asynchronous runtime.
//!
//! A [`Runtime`] is a thread that drives the connections of its mounts. The methods of [`Mount`] and [`File`] wait for that
//! thread; they can be called from any thread and from several at once, also from a thread of another tokio runtime (which
//! does nothing else meanwhile), and in the destructors of a thread that ends. All types here can be dropped there, too. Operations that have no method here run by [`Mount::run`].
//!
//! Buffers: [`File::read_at`], [`Reader`] and [`Writer`] copy the data once. [`File::read_buffer`] and [`File::write_at`] copy
//! nothing: a buffer moves into the operation and returns with its result.
//!
//! On error the operation's [`Error`](crate::Error) is returned. A panic in an operation is raised again in its caller.
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

/// A thread that drives connections. It ends when the last clone, [`Mount`] and [`File`] is dropped.
#[derive(Clone)]
pub struct Runtime(Arc<Driver>);

struct Driver {
    handle: runtime::Handle,
    /// Ends the thread when it is dropped.
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
    id: ThreadId,
}

/// A value that belongs to a runtime, and is dropped on its thread.
#[derive(Clone)]
struct Owned<T: Send + 'static> {
    /// Taken only by `Drop`, and while an operation has it.
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
    /// Data that has been read and not handed out.
    chunk: Bytes,
}

/// Writes a file in order, with write-behind. Small writes are best made through a [`std::io::BufWriter`]. Data is on stable
/// storage after [`flush`](io::Write::flush); what is not flushed may be lost.
pub struct Writer(Owned<mount::Writer>);

impl Runtime {
    /// Starts the thread.
    ///
    /// # Errors
    /// The system gives no thread or no descriptors.
    pub fn start() -> io::Result<Self> {
        let runtime = runtime::Builder::new_current_thread().enable_all().build()?;
        let handle = runtime.handle().clone();
        let (stop, stopped) = oneshot::channel::<()>();
        let thread = thread::Builder::new().name("slipway-client".to_owned()).spawn(move || {
            // It ends by an error, as nothing is ever sent.
            let _ = runtime.block_on(stopped);
        })?;
        let id = thread.thread().id();
        Ok(Self(Arc::new(Driver { handle, stop: Some(stop), thread: Some(thread), id })))
    }

    /// Mounts what `url` names; see [`Mount::connect`](crate::Mount::connect).
    ///
    /// # Errors
    /// The host or transport is not known, no server answers, or it does not export the path to this client.
    pub fn connect(&self, url: &NfsUrl, switch: &Switch) -> Result<Mount> {
        let (url, switch) = (url.clone(), switch.clone());
        let mount = self.run(async move { mount::Mount::connect(&url, &switch).await })?;
        Ok(Mount(Owned { value: Some(mount), runtime: self.clone() }))
    }

    /// Runs a future on the thread and waits for its result.
    ///
    /// # Panics
    /// If the future panics, or if the caller is itself a future on that thread, which would wait for ever.
    pub fn run<T: Send + 'static>(&self, future: impl Future<Output = T> + Send + 'static) -> T {
        assert!(
            thread::current().id() != self.0.id,
            "a blocking call on the thread that drives the client's connections"
        );
        // A channel rather than the runtime: a runtime refuses to block threads of another one.
        let (done, result) = mpsc::sync_channel::<std::result::Result<T, Box<dyn Any + Send>>>(1);
        self.0.handle.spawn(async move {
            let _ = done.send(AssertUnwindSafe(future).catch_unwind().await);
        });
        let result = result.recv().expect("the thread runs as long as it is referred to");
        result.unwrap_or_else(|panic| resume_unwind(panic))
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        drop(self.stop.take());
        // The last reference can be in a future on that very thread, which then ends by itself.
        if thread::current().id() != self.id
            && let Some(thread) = self.thread.take()
        {
            let _ = thread.join();
        }
    }
}

impl<T: Send + 'static> Owned<T> {
    fn get(&self) -> &T {
        self.value.as_ref().expect("only Drop takes the value, and operations return it")
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
    /// Runs an operation on the value itself, which returns with the result.
    fn lend<R, F>(&mut self, operation: impl FnOnce(T) -> F) -> R
    where
        R: Send + 'static,
        F: Future<Output = (T, R)> + Send + 'static,
    {
        let value = self.value.take().expect("only Drop takes the value, and operations return it");
        let (value, result) = self.runtime.run(operation(value));
        self.value = Some(value);
        result
    }
}

impl<T: Send + 'static> Drop for Owned<T> {
    /// The value is dropped by a task: a thread that ends and runs its destructors can have no tokio context any more.
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

    /// The asynchronous mount.
    pub fn as_async(&self) -> &mount::Mount {
        self.0.get()
    }

    /// Attributes of an object; symbolic links are followed.
    ///
    /// # Errors
    /// The path leads to nothing, or the server refuses.
    pub fn stat(&self, path: impl AsRef<[u8]>) -> Result<Attr> {
        let path = owned(path);
        self.run(|mount| async move { mount.stat(path).await })
    }

    /// Reads a whole file.
    ///
    /// # Errors
    /// It cannot be opened or read.
    pub fn read(&self, path: impl AsRef<[u8]>) -> Result<Bytes> {
        let path = owned(path);
        self.run(|mount| async move { mount.read(path).await })
    }

    /// Replaces the content of a file, which is created if it does not exist. The data is on stable storage afterwards.
    ///
    /// # Errors
    /// It cannot be created or written.
    pub fn write(&self, path: impl AsRef<[u8]>, data: impl Into<Bytes>) -> Result<()> {
        let (path, data) = (owned(path), data.into());
        self.run(|mount| async move { mount.write(path, data).await })
    }

    /// Opens a file.
    ///
    /// # Errors
    /// The path leads to no file.
    pub fn open(&self, path: impl AsRef<[u8]>) -> Result<File> {
        let path = owned(path);
        self.file(self.run(|mount| async move { mount.open(path).await }))
    }

    /// Opens or creates a file.
    ///
    /// # Errors
    /// It does not exist and is not to be created, or it exists and is to be new, or the server refuses.
    pub fn open_with(&self, path: impl AsRef<[u8]>, options: OpenOptions) -> Result<File> {
        let path = owned(path);
        self.file(self.run(|mount| async move { mount.open_with(path, options).await }))
    }

    /// Creates a file, or truncates the one that is there.
    ///
    /// # Errors
    /// The server refuses.
    pub fn create(&self, path: impl AsRef<[u8]>, mode: u32) -> Result<File> {
        let path = owned(path);
        self.file(self.run(|mount| async move { mount.create(path, mode).await }))
    }

    /// Makes a directory.
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
    /// The path leads to no directory, or the server refuses.
    pub fn read_dir(&self, path: impl AsRef<[u8]>) -> Result<Vec<DirEntry>> {
        let path = owned(path);
        self.run(|mount| async move { mount.read_dir(path).await?.collect().await })
    }

    /// Ends the mount; see [`Mount::unmount`](crate::Mount::unmount).
    ///
    /// # Errors
    /// The server cannot be told.
    pub fn unmount(self) -> Result<()> {
        self.0.run(|mount| async move { mount.unmount().await })
    }

    fn file(&self, opened: Result<mount::File>) -> Result<File> {
        Ok(File(self.0.with(opened?)))
    }
}

impl File {
    /// The asynchronous file.
    pub fn as_async(&self) -> &mount::File {
        self.0.get()
    }

    /// Its attributes.
    ///
    /// # Errors
    /// The file has been removed, or the server refuses.
    pub fn stat(&self) -> Result<Attr> {
        self.0.run(|file| async move { file.stat().await })
    }

    /// Reads at `offset` into `into` and returns the number of bytes read, which is less than the length of `into` only at the
    /// end of the file. The data is copied once.
    ///
    /// # Errors
    /// A READ failed; the content of `into` is unspecified.
    pub fn read_at(&self, into: &mut [u8], offset: u64) -> Result<usize> {
        let buffer = self.as_async().mount().pool().take(into.len());
        let (read, buffer) = self.read_buffer(offset, buffer);
        let len = read?;
        into[..len].copy_from_slice(&buffer[..len]);
        Ok(len)
    }

    /// Reads at `offset` into a [`Buffer`](buf::Buffer) or a [`Region`], without a copy if it has at most
    /// [`Mount::read_size`](crate::Mount::read_size) bytes. It returns with the result.
    ///
    /// # Errors
    /// A READ failed; the content of the memory is unspecified.
    pub fn read_buffer<R>(&self, offset: u64, into: R) -> (Result<usize>, R)
    where
        R: Into<Region> + TryFrom<Region> + Send + 'static,
    {
        self.0.run(|file| async move { file.read_at(offset, into).await })
    }

    /// Writes at `offset`, without a copy. The data is on stable storage when this returns.
    ///
    /// # Errors
    /// A WRITE or COMMIT failed; some of the data may have been written.
    pub fn write_at(&self, offset: u64, data: impl Into<Rope>) -> Result<()> {
        let data = data.into();
        self.0.run(|file| async move { file.write_at(offset, data).await })
    }

    /// Reads the whole file in order.
    pub fn reader(&self) -> Reader {
        Reader { reader: self.0.with(self.as_async().reader()), chunk: Bytes::new() }
    }

    /// Writes in order from `offset`.
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
