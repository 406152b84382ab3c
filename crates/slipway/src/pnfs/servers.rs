//! [`NfsServers`]: the data servers of an export, used by NFSv3. Clients can use another version ([`ClientVersion`]).
//!
//! An object is a file in the directory of the URL, with its identifier as its name. RFC 8435 §2.2: only the metadata server
//! needs access to that directory. A data server of kind `slipway` ([`pnfs::objects`]) has the same files, and accepts handles that are
//! computed here.

use std::{
    collections::{BTreeMap, HashMap, btree_map::Entry},
    future::{Future, ready},
    sync::Arc,
};

use buf::Rope;
use bytes::Bytes;
use client::{CreateHow, Error, Handle, Mount, NfsUrl, SetAttr, StableHow, Status};
use parking_lot::{Mutex, RwLock};
use pnfs::{
    ClientAccess, DataServers, ObjectAttr, Presence, ServerError, ServerFuture, ServerId, WriteVerifier,
    objects::{
        self, Objects,
        handle::{ClusterKey, ObjectHandle, Right},
    },
    record::{Epochs, Object, Owners},
};
use rpc::Switch;
use server::{AdoptedHandle, DataHandle, HandleKey, config::DataVersionConfig};
use sha2::{Digest, Sha256};
use tokio::runtime;
use vfs::{
    Stability, Time,
    layout::{DataAddress, DataTransport, DataVersion, LayoutDevice, LayoutDeviceId, LayoutMode},
};

use super::versions::{self, ClientVersion};

pub use pnfs::objects::name;

/// The data servers.
pub struct NfsServers {
    runtime: runtime::Handle,
    switch: Switch,
    servers: RwLock<BTreeMap<ServerId, Arc<DataServer>>>,
    /// The devices of files layouts: the addresses of the data server of each stripe.
    striped: Mutex<HashMap<LayoutDeviceId, Vec<Vec<DataAddress>>>>,
}

/// The addresses of a data server.
pub struct Endpoint {
    /// The name for administrators.
    pub name: Option<String>,
    /// The directory of the objects, for this server.
    pub url: NfsUrl,
    /// The addresses for clients. There is none if clients cannot use the data server.
    pub addresses: Vec<DataAddress>,
    /// The version by which clients use it, if it offers that.
    pub version: DataVersionConfig,
    /// The key of the cluster, if the data server is of kind `slipway`.
    pub key: Option<ClusterKey>,
}

/// A data server.
struct DataServer {
    endpoint: Endpoint,
    version: ClientVersion,
    /// The device for clients that prefer a transport and use a version, unless they cannot use the data server.
    devices: Vec<(DataTransport, DataVersionConfig, LayoutDeviceId)>,
    switch: Switch,
    /// The mount, made when it is first needed. The client makes lost connections again.
    mount: tokio::sync::Mutex<Option<Mount>>,
    /// The handles of objects. They are permanent (RFC 1813 §2.6).
    handles: Mutex<HashMap<u128, Handle>>,
}

impl NfsServers {
    /// Creates the interface to these data servers. All work runs on `runtime`.
    pub fn new(runtime: runtime::Handle, switch: Switch, servers: Vec<(ServerId, Endpoint)>) -> Self {
        let this = Self { runtime, switch, servers: RwLock::default(), striped: Mutex::default() };
        for (id, endpoint) in servers {
            this.add(id, endpoint);
        }
        this
    }

    /// Adds a data server. Returns `false` if there is one with this number, which stays as it is.
    pub fn add(&self, id: ServerId, endpoint: Endpoint) -> bool {
        match self.servers.write().entry(id) {
            Entry::Occupied(_) => false,
            Entry::Vacant(free) => {
                free.insert(Arc::new(DataServer::new(id, endpoint, self.switch.clone())));
                true
            }
        }
    }

    /// Returns the URL of a data server.
    pub fn url(&self, id: ServerId) -> Option<String> {
        self.get(id).map(|server| server.endpoint.url.to_string())
    }

    /// Returns the name of a data server.
    pub fn name(&self, id: ServerId) -> Option<String> {
        self.get(id).and_then(|server| server.endpoint.name.clone())
    }

    fn get(&self, id: ServerId) -> Option<Arc<DataServer>> {
        self.servers.read().get(&id).cloned()
    }

    /// Returns the data server of a device, and the transport that its clients prefer.
    fn find(&self, device: LayoutDeviceId) -> Option<(ServerId, Arc<DataServer>, DataTransport)> {
        self.servers.read().iter().find_map(|(id, server)| {
            // A client can still use the device of the time before the version has changed.
            let (transport, ..) = server.devices.iter().find(|(.., of)| *of == device)?;
            Some((*id, server.clone(), *transport))
        })
    }

    /// Runs an operation on a data server.
    fn run<T: Send + 'static, F: Future<Output = Result<T, Failed>> + Send + 'static>(
        &self,
        server: ServerId,
        operation: impl FnOnce(Arc<DataServer>) -> F,
    ) -> ServerFuture<T> {
        // A file can name a data server that was removed from the configuration.
        let Some(server) = self.get(server) else { return Box::pin(async { Err(ServerError::Unreachable) }) };
        let running = self.runtime.spawn(operation(server.clone()));
        Box::pin(async move {
            let result = running.await.map_err(|_| ServerError::Io)?;
            result.map_err(|error| {
                tracing::debug!(server = %server.endpoint.url, ?error, "an operation on a data server failed");
                error.into()
            })
        })
    }

    /// Runs an operation on an object, which may be created if it may be new.
    fn on<T: Send + 'static, F: Future<Output = Result<T, Failed>> + Send>(
        &self,
        object: Object,
        presence: Presence,
        operation: impl FnOnce(Mount, Handle) -> F + Send + 'static,
    ) -> ServerFuture<T> {
        self.run(object.server, move |server| async move {
            let (mount, handle) = match &server.endpoint.key {
                Some(key) => {
                    server.computed(key, &ObjectHandle::control(object.id, presence == Presence::MayBeNew)).await?
                }
                None => server.handle(object.id).await?,
            };
            let result = operation(mount.clone(), handle).await;
            if let Err(Failed::Missing) = result {
                server.handles.lock().remove(&object.id);
                server.check_store(&mount).await;
            }
            result
        })
    }
}

impl Endpoint {
    /// Returns the addresses for a client that prefers this transport, if there is one of this transport.
    fn addresses(&self, preferred: DataTransport) -> Option<Vec<DataAddress>> {
        let mut addresses = self.addresses.clone();
        // A client of shared memory is on this host. So it can also use the other transports.
        addresses.retain(|address| match preferred {
            // Linux's client tries the addresses in their order. One without an RDMA device must not try RDMA.
            DataTransport::Tcp => address.transport == DataTransport::Tcp,
            DataTransport::Rdma => address.transport != DataTransport::Shm,
            DataTransport::Shm => true,
        });
        addresses.sort_by_key(|address| address.transport != preferred);
        addresses.first().is_some_and(|first| first.transport == preferred).then_some(addresses)
    }

    /// Returns the device for clients that prefer this transport. It changes with the addresses and the version, because clients
    /// cache devices, and differs between data servers of all exports.
    fn device_id(&self, id: ServerId, transport: DataTransport, version: DataVersionConfig) -> Option<LayoutDeviceId> {
        let addresses = self.addresses(transport)?;
        let text = format!("{} {} {} {addresses:?}", id.0, self.url, versions::name(version));
        Some(hashed(&text))
    }
}

impl DataServer {
    fn new(id: ServerId, endpoint: Endpoint, switch: Switch) -> Self {
        let version = ClientVersion::new(endpoint.version);
        let of = |transport| {
            let device = |version| Some((transport, version, endpoint.device_id(id, transport, version)?));
            version.possible().into_iter().filter_map(device).collect::<Vec<_>>()
        };
        let devices = TRANSPORTS.into_iter().flat_map(of).collect();
        Self { endpoint, version, devices, switch, mount: Default::default(), handles: Default::default() }
    }

    /// Returns the device for clients that prefer this transport, if they can use the data server.
    fn device_id(&self, transport: DataTransport) -> Option<LayoutDeviceId> {
        let version = self.version.now();
        let found = self.devices.iter().find(|(by, as_of, _)| (*by, *as_of) == (transport, version));
        found.map(|(.., device)| *device)
    }

    async fn mount(&self) -> client::Result<Mount> {
        let mut mount = self.mount.lock().await;
        match &*mount {
            Some(mount) => Ok(mount.clone()),
            None => Ok(mount.insert(Mount::connect(&self.endpoint.url, &self.switch).await?).clone()),
        }
    }

    /// Runs an operation on the directory of the objects. If the data server does not know its handle any more, because it came back
    /// with another file system, the directory is mounted again, once.
    async fn in_directory<T, F: Future<Output = client::Result<T>>>(
        &self,
        operation: impl Fn(Mount) -> F,
    ) -> client::Result<(T, Mount)> {
        let mount = self.mount().await?;
        match operation(mount.clone()).await {
            Err(error) if matches!(error.status(), Some(Status::StaleHandle | Status::BadHandle)) => {
                self.forget(&mount).await;
                let mount = self.mount().await?;
                operation(mount.clone()).await.map(|done| (done, mount))
            }
            done => done.map(|done| (done, mount)),
        }
    }

    /// Forgets a mount, unless another task has replaced it.
    async fn forget(&self, former: &Mount) {
        let mut mount = self.mount.lock().await;
        if mount.as_ref().is_some_and(|mount| mount.number() == former.number()) {
            tracing::warn!(server = %self.endpoint.url, "a data server has another file system than before");
            *mount = None;
            self.handles.lock().clear();
        }
    }

    /// Forgets the mount of a data server of kind `slipway` if its store is another one than before: handles are computed for one store.
    async fn check_store(&self, mount: &Mount) {
        if self.endpoint.key.is_none() {
            return;
        }
        if let Err(error) = mount.protocol().getattr(mount.root()).await
            && matches!(error.status(), Some(Status::StaleHandle | Status::BadHandle))
        {
            self.forget(mount).await;
        }
    }

    /// Returns a handle that is computed. This makes no call, except for the first one that mounts the data server.
    async fn computed(&self, key: &ClusterKey, handle: &ObjectHandle) -> Result<(Mount, Handle), Failed> {
        let mount = self.mount().await?;
        let handle = seal(mount.root(), key, handle).inspect_err(|_| {
            let server = self.endpoint.url.to_string();
            tracing::warn!(server, "kind = \"slipway\" needs an export with backend = \"objects\" there");
        })?;
        Ok((mount, handle))
    }

    async fn handle(&self, id: u128) -> client::Result<(Mount, Handle)> {
        let known = self.handles.lock().get(&id).cloned();
        if let Some(handle) = known {
            return Ok((self.mount().await?, handle));
        }
        let lookup = |mount: Mount| async move { mount.lookup(mount.root(), name(id).as_bytes()).await };
        let (node, mount) = self.in_directory(lookup).await?;
        self.remember(id, node.handle.clone());
        Ok((mount, node.handle))
    }

    /// Returns the directory for operations on names.
    fn directory(&self, mount: &Mount) -> Handle {
        let key = self.endpoint.key.as_ref();
        let store = key.and_then(|key| seal(mount.root(), key, &ObjectHandle::store()).ok());
        store.unwrap_or_else(|| mount.root().clone())
    }

    /// Returns all objects. Other files in the directory are left out.
    async fn objects(&self) -> Result<Vec<u128>, Failed> {
        let list = |mount: Mount| async move {
            let directory = self.directory(&mount);
            let (mut cookie, mut verifier, mut objects) = (0, [0; 8], Vec::new());
            loop {
                let page = mount.protocol().readdir(&directory, cookie, verifier, LIST_BYTES, false).await?;
                objects.extend(page.entries.iter().filter_map(|entry| objects::object_of(&entry.name)));
                let last = page.entries.last().map(|entry| entry.cookie);
                if page.eof {
                    return Ok(Some(objects));
                }
                // Another page would be the same one.
                let Some(last) = last.filter(|last| *last != cookie) else { return Ok(None) };
                (cookie, verifier) = (last, page.verifier);
            }
        };
        let (objects, _) = self.in_directory(list).await?;
        objects.ok_or(Failed::Protocol("a page of the directory has no new entries"))
    }

    /// Returns the handle of an object for a client.
    async fn client_handle(&self, object: Object, client: ClientAccess) -> Result<Bytes, Failed> {
        let Some(key) = &self.endpoint.key else {
            let (_, handle) = self.handle(object.id).await?;
            return Ok(Bytes::copy_from_slice(&handle));
        };
        let (_, handle) = self.computed(key, &of_client(object, client)).await?;
        Ok(Bytes::copy_from_slice(&handle))
    }

    /// Returns the handle of an object for a client, if it is computed and the data server is mounted.
    fn client_handle_now(&self, object: Object, client: ClientAccess) -> Option<Bytes> {
        let (key, mount) = (self.endpoint.key.as_ref()?, self.mount.try_lock().ok()?);
        let handle = seal(mount.as_ref()?.root(), key, &of_client(object, client)).ok()?;
        Some(Bytes::copy_from_slice(&handle))
    }

    fn remember(&self, id: u128, handle: Handle) {
        let mut handles = self.handles.lock();
        if handles.len() >= HANDLES_MAX {
            handles.clear();
        }
        handles.insert(id, handle);
    }
}

impl DataServers for NfsServers {
    fn servers(&self) -> Vec<ServerId> {
        self.servers.read().keys().copied().collect()
    }

    fn creates_on_write(&self, server: ServerId) -> bool {
        self.get(server).is_some_and(|server| server.endpoint.key.is_some())
    }

    fn create(&self, object: Object, epochs: Epochs) -> ServerFuture<()> {
        if self.creates_on_write(object.server) {
            return self.on(object, Presence::MayBeNew, |mount, handle| async move {
                // Unlike a size of 0, this cannot remove data when it arrives late.
                mount.protocol().write(&handle, 0, Rope::new(), StableHow::FileSync).await?;
                Ok(())
            });
        }
        let owners = epochs.owners(object);
        self.run(object.server, move |server| async move {
            let (uid, gid) = (owners.map(|owners| owners.owner), owners.map(|owners| owners.group));
            let how = CreateHow::Unchecked(SetAttr { mode: Some(OBJECT_MODE), uid, gid, ..SetAttr::default() });
            let create = |mount: Mount| {
                let how = how.clone();
                async move { mount.protocol().create(mount.root(), name(object.id).as_bytes(), how).await }
            };
            let (node, _) = server.in_directory(create).await.inspect_err(|error| {
                if let Some(Status::NotPermitted | Status::AccessDenied) = error.status() {
                    let server = server.endpoint.url.to_string();
                    tracing::warn!(server, %error, "a data server must let root of this host create and own files (no_root_squash)");
                }
            })?;
            server.remember(object.id, node.handle);
            Ok(())
        })
    }

    fn remove(&self, object: Object) -> ServerFuture<()> {
        self.run(object.server, move |server| async move {
            server.handles.lock().remove(&object.id);
            let of = server.clone();
            let remove = |mount: Mount| {
                let directory = of.directory(&mount);
                async move { mount.protocol().remove(&directory, name(object.id).as_bytes()).await }
            };
            match server.in_directory(remove).await {
                Err(error) if !error.is_not_found() => Err(error.into()),
                _ => Ok(()),
            }
        })
    }

    fn read(&self, object: Object, offset: u64, len: usize) -> ServerFuture<Bytes> {
        self.on(object, Presence::Exists, move |mount, handle| async move {
            let mut data = Rope::new();
            while data.len() < len {
                let count = (len - data.len()).min(mount.read_size()) as u32;
                let read = mount.protocol().read(&handle, offset + data.len() as u64, count).await?;
                let ended = read.eof || read.data.is_empty();
                data.append(read.data);
                if ended {
                    break;
                }
            }
            data.to_bytes().map_err(|_| Failed::Protocol("the data cannot be read from memory"))
        })
    }

    fn write(
        &self,
        object: Object,
        offset: u64,
        data: Rope,
        stability: Stability,
        presence: Presence,
    ) -> ServerFuture<WriteVerifier> {
        let stable = match stability {
            Stability::Unstable => StableHow::Unstable,
            Stability::DataSync => StableHow::DataSync,
            Stability::FileSync => StableHow::FileSync,
        };
        self.on(object, presence, move |mount, handle| async move {
            let (mut at, mut verifier) = (0, None);
            while at < data.len() {
                let piece = data.slice(at, (data.len() - at).min(mount.write_size()));
                let len = piece.len();
                let written = mount.protocol().write(&handle, offset + at as u64, piece, stable).await?;
                let count = written.count as usize;
                if count == 0 || count > len || written.committed < stable {
                    return Err(Failed::Protocol("the data server has written less than it must"));
                }
                if verifier.is_some_and(|verifier| verifier != written.verf) {
                    return Err(Failed::Protocol("the data server was restarted during a write"));
                }
                verifier = Some(written.verf);
                at += count;
            }
            Ok(WriteVerifier(verifier.unwrap_or_default()))
        })
    }

    fn commit(&self, object: Object) -> ServerFuture<WriteVerifier> {
        self.on(object, Presence::Exists, |mount, handle| async move {
            Ok(WriteVerifier(mount.protocol().commit(&handle).await?))
        })
    }

    fn set_size(&self, object: Object, size: u64, presence: Presence) -> ServerFuture<()> {
        self.on(object, presence, move |mount, handle| async move {
            // RFC 1813 §3.3.2: the new size is on stable storage when the server answers.
            let set = SetAttr { size: Some(size), ..SetAttr::default() };
            mount.protocol().setattr(&handle, set).await?;
            Ok(())
        })
    }

    fn fence(&self, object: Object, epochs: Epochs) -> ServerFuture<()> {
        let users = match self.creates_on_write(object.server) {
            // The owner and the group of an object of kind `slipway` are its epochs.
            true => Some((epochs.writers, epochs.readers)),
            false => epochs.owners(object).map(|owners| (owners.owner, owners.group)),
        };
        self.on(object, Presence::MayBeNew, move |mount, handle| async move {
            let (uid, gid) = (users.map(|users| users.0), users.map(|users| users.1));
            mount.protocol().setattr(&handle, SetAttr { uid, gid, ..SetAttr::default() }).await?;
            Ok(())
        })
    }

    fn objects(&self, server: ServerId) -> ServerFuture<Vec<u128>> {
        self.run(server, |server| async move { server.objects().await })
    }

    fn getattr(&self, object: Object) -> ServerFuture<ObjectAttr> {
        self.on(object, Presence::MayBeNew, |mount, handle| async move {
            let attr = mount.protocol().getattr(&handle).await?;
            // An object of kind `slipway` that does not exist has no name.
            if attr.nlink == 0 {
                return Err(Failed::Absent);
            }
            let mtime = Time { seconds: attr.mtime.seconds, nanoseconds: attr.mtime.nseconds };
            Ok(ObjectAttr { size: attr.size, mtime })
        })
    }

    fn handle(&self, object: Object, client: ClientAccess) -> ServerFuture<Bytes> {
        // A layout has one for each object. A task and its wakeup cost more than the handle.
        let now = self.get(object.server).and_then(|server| server.client_handle_now(object, client));
        if let Some(handle) = now {
            return Box::pin(ready(Ok(handle)));
        }
        self.run(object.server, move |server| async move { server.client_handle(object, client).await })
    }

    fn data_handle(&self, object: Object, client: ClientAccess, users: Owners) -> ServerFuture<Option<Bytes>> {
        // Only a data server of ours that says that it is one has these handles.
        let has_handles = |version| version != DataVersionConfig::V3;
        let of = move |object| DataHandle { uid: users.owner, gid: users.group, object }.encode();
        let now = self.get(object.server).and_then(|server| match has_handles(server.version.known()?) {
            true => server.client_handle_now(object, client).map(|object| Some(of(object))),
            false => Some(None),
        });
        if let Some(handle) = now {
            return Box::pin(ready(Ok(handle)));
        }
        self.run(object.server, move |server| async move {
            server.version.ask_once(&server.endpoint.url, &server.switch).await?;
            if !has_handles(server.version.now()) {
                return Ok(None);
            }
            server.client_handle(object, client).await.map(|object| Some(of(object)))
        })
    }

    fn striped_device_id(&self, servers: &[ServerId], transport: DataTransport) -> Option<LayoutDeviceId> {
        let addresses = |server: &ServerId| {
            let server = self.get(*server)?;
            let by = |transport| server.endpoint.addresses(transport);
            by(transport).or_else(|| FALLBACKS.into_iter().find_map(by))
        };
        let addresses: Vec<_> = servers.iter().map(addresses).collect::<Option<_>>()?;
        let id = hashed(&format!("files {addresses:?}"));
        let mut striped = self.striped.lock();
        if striped.len() >= DEVICES_MAX && !striped.contains_key(&id) {
            // A client that has not asked yet for its device uses this server, until it gets another layout.
            striped.clear();
        }
        striped.entry(id).or_insert(addresses);
        Some(id)
    }

    fn device_id(&self, server: ServerId, transport: DataTransport) -> Option<LayoutDeviceId> {
        let server = self.get(server)?;
        let id = |transport| server.device_id(transport);
        id(transport).or_else(|| FALLBACKS.into_iter().find_map(id))
    }

    fn server_of(&self, device: LayoutDeviceId) -> Option<ServerId> {
        self.find(device).map(|(id, ..)| id)
    }

    fn device(&self, device: LayoutDeviceId) -> ServerFuture<LayoutDevice> {
        let striped = self.striped.lock().get(&device).cloned();
        if let Some(servers) = striped {
            // A data server with several stripes is there several times: with sparse packing, there is one handle for each entry
            // (RFC 8881 §13.4.4).
            let stripes = (0..servers.len() as u32).collect();
            return Box::pin(async { Ok(LayoutDevice::Files { stripes, servers }) });
        }
        let Some((id, server, transport)) = self.find(device) else {
            return Box::pin(async { Err(ServerError::Missing) });
        };
        let addresses = server.endpoint.addresses(transport).unwrap_or_default();
        self.run(id, move |server| async move {
            let mount = server.mount().await?;
            server.version.ask_once(&server.endpoint.url, &server.switch).await?;
            let (version, minor) = versions::numbers(server.version.now());
            let (read_max, write_max) = (mount.read_size() as u32, mount.write_size() as u32);
            // One version, so that a layout has one handle of each object (RFC 8435 §5.1). Linux's client uses only the first.
            let versions = vec![DataVersion { version, minor, read_max, write_max, tightly_coupled: false }];
            Ok(LayoutDevice::Flexible { addresses, versions })
        })
    }

    fn probe(&self, server: ServerId) -> ServerFuture<()> {
        self.run(server, |server| async move {
            server.mount().await?.protocol().null().await?;
            // It may have been started again with other options.
            Ok(server.version.ask(&server.endpoint.url, &server.switch).await?)
        })
    }
}

/// Returns the device with these properties. A client caches it, so other properties have another device.
fn hashed(properties: &str) -> LayoutDeviceId {
    let digest = Sha256::digest(properties.as_bytes());
    LayoutDeviceId(std::array::from_fn(|at| digest[at]))
}

/// Returns the contents of the handle of an object of kind `slipway` for a client.
fn of_client(object: Object, client: ClientAccess) -> ObjectHandle {
    let ClientAccess { mode, epochs, presence } = client;
    let (right, epoch) = match mode {
        LayoutMode::Read => (Right::Read, epochs.readers),
        LayoutMode::Write => (Right::Write, epochs.writers),
    };
    let create_until = (presence == Presence::MayBeNew).then(objects::create_until).flatten();
    ObjectHandle { right, create_until, epoch, object: object.id }
}

/// Returns the handle of an object of kind `slipway`, on the data server with this root directory.
pub fn seal(root: &Handle, key: &ClusterKey, handle: &ObjectHandle) -> Result<Handle, Failed> {
    let found = HandleKey::parts(root).and_then(|(export, root)| Some((export, Objects::store_of(root)?)));
    let (export, store) = found.ok_or(Failed::Protocol("the export of the data server has no objects"))?;
    Ok(AdoptedHandle { export, object: &key.seal(store, handle) }.encode().into())
}

/// The reason why an operation failed.
#[derive(Debug)]
pub enum Failed {
    /// The object does not exist, or its handle has changed.
    Missing,
    /// The object does not exist.
    Absent,
    /// Another error of the client.
    Client(Error),
    /// The data server has broken the protocol.
    Protocol(&'static str),
}

impl From<Error> for Failed {
    fn from(error: Error) -> Self {
        match error.status() {
            Some(Status::NotFound | Status::StaleHandle | Status::BadHandle) => Self::Missing,
            _ => Self::Client(error),
        }
    }
}

impl From<Failed> for ServerError {
    fn from(failed: Failed) -> Self {
        let error = match failed {
            Failed::Missing | Failed::Absent => return ServerError::Missing,
            Failed::Protocol(_) => return ServerError::Io,
            Failed::Client(error) => error,
        };
        match error.status() {
            None => ServerError::Unreachable,
            Some(Status::NoSpace | Status::QuotaExceeded) => ServerError::NoSpace,
            Some(Status::FileTooLarge) => ServerError::FileTooBig,
            Some(_) => ServerError::Io,
        }
    }
}

/// The permission bits of objects: clients with a layout to write are the owner, and those with a layout to read in the group.
const OBJECT_MODE: u32 = 0o640;
/// The transports of clients.
const TRANSPORTS: [DataTransport; 3] = [DataTransport::Tcp, DataTransport::Rdma, DataTransport::Shm];
/// The transports for a client to whose transport a data server has no address, the preferred one first. Shared memory is only for
/// clients that have it and are on this host, and those have mounted over it.
const FALLBACKS: [DataTransport; 2] = [DataTransport::Tcp, DataTransport::Rdma];
/// The number of devices of files layouts after which all are forgotten. Each is a list of the data servers of a file.
const DEVICES_MAX: usize = 1 << 12;
/// The bytes of a page of a list of objects.
const LIST_BYTES: u32 = 64 << 10;
/// The number of handles after which all are forgotten.
const HANDLES_MAX: usize = 1 << 16;
