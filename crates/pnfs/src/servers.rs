//! [`DataServers`]: the interface to the data servers.

use std::{fmt, future::Future, pin::Pin};

use buf::Rope;
use bytes::Bytes;
use entropy::HashMap;
use tokio::time::Instant;
use vfs::{
    Stability, Time, VfsError,
    layout::{DataTransport, LayoutDevice, LayoutDeviceId, LayoutMode},
};

use crate::record::{Epochs, Object, Owners, ServerId};

/// The future of an operation on a data server.
pub type ServerFuture<T> = Pin<Box<dyn Future<Output = Result<T, ServerError>> + Send>>;

/// The data servers of a tree: each stores objects, which are sequences of bytes.
///
/// The futures need no runtime where they are polled. Each completes eventually: an implementation limits the time for
/// which it waits for a data server, and then returns [`ServerError::Unreachable`]. An operation that failed may have had
/// its effect.
pub trait DataServers: Send + Sync + 'static {
    /// Returns the data servers on which new objects are created.
    fn servers(&self) -> Vec<ServerId>;

    /// Reports whether a write or a change of the size creates an object of this data server, so that objects of new files need no
    /// [`create`](Self::create).
    fn creates_on_write(&self, server: ServerId) -> bool;

    /// Creates an object of size 0 for clients of these epochs. An object that exists is no error.
    fn create(&self, object: Object, epochs: Epochs) -> ServerFuture<()>;

    /// Locks out the clients of an object that have handles or users of earlier epochs. An object that does not exist is an error only
    /// if writes do not create it.
    fn fence(&self, object: Object, epochs: Epochs) -> ServerFuture<()>;

    /// Removes an object. An object that does not exist is no error. Clients cannot create it again.
    fn remove(&self, object: Object) -> ServerFuture<()>;

    /// Reads up to `len` bytes at `offset`. Returns fewer only at the end of the object.
    fn read(&self, object: Object, offset: u64, len: usize) -> ServerFuture<Bytes>;

    /// Writes all of `data` at `offset`, with at least this stability.
    fn write(
        &self,
        object: Object,
        offset: u64,
        data: Rope,
        stability: Stability,
        presence: Presence,
    ) -> ServerFuture<WriteVerifier>;

    /// Makes all writes to an object durable that returned the same verifier as this operation.
    fn commit(&self, object: Object) -> ServerFuture<WriteVerifier>;

    /// Sets the size of an object durably.
    fn set_size(&self, object: Object, size: u64, presence: Presence) -> ServerFuture<()>;

    /// Returns the identifiers of all objects of a data server. One that is created or removed meanwhile can be missing.
    fn objects(&self, server: ServerId) -> ServerFuture<Vec<u128>>;

    /// Returns the attributes of an object.
    fn getattr(&self, object: Object) -> ServerFuture<ObjectAttr>;

    /// Returns the file handle with which clients access an object.
    fn handle(&self, object: Object, client: ClientAccess) -> ServerFuture<Bytes>;

    /// Returns the file handle with which clients of a files layout access an object as this user and this group, or `None` if the
    /// data server has no such handles.
    fn data_handle(&self, object: Object, client: ClientAccess, users: Owners) -> ServerFuture<Option<Bytes>>;

    /// Returns the device of a data server for clients that prefer this transport, or `None` if clients cannot use the data
    /// server.
    fn device_id(&self, server: ServerId, transport: DataTransport) -> Option<LayoutDeviceId>;

    /// Returns the device of a file whose stripes are on these data servers, in this order, for clients of a files layout that prefer
    /// this transport. Returns `None` if clients cannot use one of them.
    fn striped_device_id(&self, servers: &[ServerId], transport: DataTransport) -> Option<LayoutDeviceId>;

    /// Returns the data server of a device. That of a files layout has several, and this returns `None`.
    fn server_of(&self, device: LayoutDeviceId) -> Option<ServerId>;

    /// Returns a device. [`ServerError::Missing`] means that there is no such device.
    fn device(&self, device: LayoutDeviceId) -> ServerFuture<LayoutDevice>;

    /// Checks that a data server answers.
    fn probe(&self, server: ServerId) -> ServerFuture<()>;
}

/// The attributes of an object.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ObjectAttr {
    /// The size in bytes.
    pub size: u64,
    /// The time of the last write or change of the size, by the clock of the data server.
    pub mtime: Time,
}

/// The existence of an object, as far as the metadata server knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Presence {
    /// The object exists, because the file has data in its stripe. If it does not, it has been lost.
    Exists,
    /// The file has no data in the stripe of the object. If [writes create it](DataServers::creates_on_write), the operation does so
    /// unless the object exists.
    MayBeNew,
}

/// The access of clients with a layout to an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientAccess {
    /// The mode of the layout.
    pub mode: LayoutMode,
    /// The epochs of the file.
    pub epochs: Epochs,
    /// The existence of the object.
    pub presence: Presence,
}

/// The data servers whose last operation failed, each since when.
#[derive(Default)]
pub(crate) struct Failing(HashMap<ServerId, Instant>);

impl Failing {
    /// Reports whether a data server has failed.
    pub fn contains(&self, server: &ServerId) -> bool {
        self.0.contains_key(server)
    }

    /// Returns the time since which a data server has failed.
    pub fn since(&self, server: ServerId) -> Option<Instant> {
        self.0.get(&server).copied()
    }

    /// Returns all data servers that have failed.
    pub fn all(&self) -> Vec<ServerId> {
        self.0.keys().copied().collect()
    }

    /// Adds a data server. Returns `false` if it had failed before.
    pub fn insert(&mut self, server: ServerId) -> bool {
        let known = self.contains(&server);
        self.0.entry(server).or_insert_with(Instant::now);
        !known
    }

    /// Removes a data server. Returns `false` if it had not failed.
    pub fn remove(&mut self, server: ServerId) -> bool {
        self.0.remove(&server).is_some()
    }
}

/// A value that changes whenever a data server may have lost unstable writes (RFC 1813 §3.3.7).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WriteVerifier(pub [u8; 8]);

/// The reason why an operation on a data server failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServerError {
    /// The data server did not answer, or the configuration has no such data server.
    Unreachable,
    /// The object does not exist.
    Missing,
    /// The data server has no space.
    NoSpace,
    /// The object would be too large.
    FileTooBig,
    /// Another error.
    Io,
}

impl From<ServerError> for VfsError {
    fn from(error: ServerError) -> Self {
        match error {
            ServerError::NoSpace => VfsError::NoSpace,
            ServerError::FileTooBig => VfsError::FileTooBig,
            ServerError::Unreachable | ServerError::Missing | ServerError::Io => VfsError::Io,
        }
    }
}

impl fmt::Display for ServerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ServerError::Unreachable => "the data server does not answer",
            ServerError::Missing => "the object does not exist",
            ServerError::NoSpace => "the data server has no space left",
            ServerError::FileTooBig => "the object would be too large",
            ServerError::Io => "the data server failed",
        })
    }
}

impl std::error::Error for ServerError {}
