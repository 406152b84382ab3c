//! Data servers in memory that can fail, and that lose unstable writes when they are restarted.

use std::{
    collections::{BTreeMap, HashMap},
    future::{Future, poll_fn},
    io,
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering::Relaxed},
    },
    task::Poll,
};

use buf::Rope;
use bytes::Bytes;
use parking_lot::Mutex;
use pnfs::{
    ClientAccess, DataServers, ObjectAttr, Presence, ServerError, ServerFuture, ServerId, WriteVerifier,
    record::{Epochs, Object, Owners},
};
use redb::{StorageBackend, backends::InMemoryBackend};
use vfs::{
    Stability, Time,
    layout::{DataTransport, LayoutDevice, LayoutDeviceId},
};

/// The data servers. Clones are the same ones.
#[derive(Clone)]
pub struct Servers(Arc<Mutex<State>>);

struct State {
    servers: BTreeMap<u32, Server>,
}

#[derive(Default)]
struct Server {
    objects: HashMap<u128, Data>,
    starts: u64,
    down: bool,
    full: bool,
    /// The number of writes and changes of users that may still begin, if it is limited.
    permits: Option<u64>,
    /// `true` if changes of sizes wait.
    holds_answers: bool,
    holds_sizes: bool,
    contacts: u64,
    /// The version by which clients use it.
    version: u8,
}

#[derive(Clone, Default)]
struct Data {
    now: Content,
    durable: Content,
    owners: Option<Owners>,
    mtime: Time,
}

/// Bytes, most of which can be holes.
#[derive(Clone, Default)]
struct Content {
    len: u64,
    pages: BTreeMap<u64, Vec<u8>>,
}

impl Content {
    fn read(&self, offset: u64, len: usize) -> Vec<u8> {
        let end = self.len.min(offset + len as u64);
        let mut bytes = vec![0; end.saturating_sub(offset) as usize];
        for (page, at) in pages(offset, bytes.len()) {
            if let Some(page) = self.pages.get(&page) {
                let start = ((offset + at.start as u64) % PAGE) as usize;
                bytes[at.clone()].copy_from_slice(&page[start..start + at.len()]);
            }
        }
        bytes
    }

    fn write(&mut self, offset: u64, bytes: &[u8]) {
        for (page, at) in pages(offset, bytes.len()) {
            let page = self.pages.entry(page).or_insert_with(|| vec![0; PAGE as usize]);
            let start = ((offset + at.start as u64) % PAGE) as usize;
            page[start..start + at.len()].copy_from_slice(&bytes[at]);
        }
        self.len = self.len.max(offset + bytes.len() as u64);
    }

    fn resize(&mut self, len: u64) {
        self.pages.retain(|page, _| page * PAGE < len);
        if let Some(page) = self.pages.get_mut(&(len / PAGE)) {
            page[(len % PAGE) as usize..].fill(0);
        }
        self.len = len;
    }
}

/// Returns the pages of a range, each with its part of the range's bytes.
fn pages(offset: u64, len: usize) -> impl Iterator<Item = (u64, Range<usize>)> {
    let end = offset + len as u64;
    (offset / PAGE..end.div_ceil(PAGE)).map(move |page| {
        let (from, to) = ((page * PAGE).max(offset), ((page + 1) * PAGE).min(end));
        (page, (from - offset) as usize..(to - offset) as usize)
    })
}

const PAGE: u64 = 4096;

impl Servers {
    pub fn new(count: u32) -> Self {
        let servers = (1..=count).map(|id| (id, Server::default())).collect();
        Self(Arc::new(Mutex::new(State { servers })))
    }

    /// Adds a data server.
    pub fn add(&self, server: u32) {
        self.0.lock().servers.insert(server, Server::default());
    }

    /// Returns the numbers of all data servers.
    pub fn ids(&self) -> impl Iterator<Item = u32> + use<> {
        self.0.lock().servers.keys().copied().collect::<Vec<_>>().into_iter()
    }

    /// Sets whether a data server answers.
    pub fn set_down(&self, server: u32, down: bool) {
        self.server(server, |server| server.down = down);
    }

    pub fn set_full(&self, server: u32, full: bool) {
        self.server(server, |server| server.full = full);
    }

    /// Sets the version by which clients use a data server. Another version has another device.
    pub fn set_version(&self, server: u32, version: u8) {
        self.server(server, |server| server.version = version);
    }

    /// Restarts a data server: it loses what is not durable.
    pub fn restart(&self, server: u32) {
        self.server(server, |server| {
            server.starts += 1;
            server.objects.values_mut().for_each(|data| data.now.clone_from(&data.durable));
        });
    }

    /// Removes all objects of a data server.
    pub fn wipe(&self, server: u32) {
        self.server(server, |server| server.objects.clear());
    }

    /// Limits the number of writes and changes of users: further ones wait. `None` removes the limit.
    pub fn set_permits(&self, server: u32, permits: Option<u64>) {
        self.server(server, |server| server.permits = permits);
    }

    /// Lets one more of them begin.
    pub fn add_permit(&self, server: u32) {
        self.server(server, |server| server.permits = server.permits.map(|permits| permits + 1));
    }

    /// Sets whether changes of sizes wait.
    pub fn hold_sizes(&self, server: u32, holds_sizes: bool) {
        self.server(server, |server| server.holds_sizes = holds_sizes);
    }

    /// Sets whether answers about sizes wait.
    pub fn hold_answers(&self, server: u32, holds_answers: bool) {
        self.server(server, |server| server.holds_answers = holds_answers);
    }

    /// Returns the number of operations that were sent to a data server.
    pub fn contacts(&self, server: u32) -> u64 {
        self.server(server, |server| server.contacts)
    }

    /// Returns the number of objects of a data server.
    pub fn objects_on(&self, server: u32) -> usize {
        self.server(server, |server| server.objects.len())
    }

    /// Waits until a write or a change of users may begin.
    fn permit(&self, server: ServerId) -> impl Future<Output = ()> + use<> {
        let servers = self.clone();
        poll_fn(move |_| {
            servers.server(server.0, |server| match &mut server.permits {
                Some(0) => Poll::Pending,
                Some(permits) => {
                    *permits -= 1;
                    Poll::Ready(())
                }
                None => Poll::Ready(()),
            })
        })
    }

    /// Returns the number of all objects.
    pub fn objects(&self) -> usize {
        self.0.lock().servers.values().map(|server| server.objects.len()).sum()
    }

    /// Returns the bytes that the objects use.
    pub fn memory(&self) -> u64 {
        let state = self.0.lock();
        let objects = state.servers.values().flat_map(|server| server.objects.values());
        objects.map(|data| data.now.pages.len() as u64 * PAGE).sum()
    }

    /// Writes durably, as a client with a layout that acts as `user`.
    pub fn client_write(&self, object: Object, user: u32, offset: u64, bytes: &[u8]) -> Result<(), ServerError> {
        self.client_write_with((object, user), offset, bytes, Stability::FileSync)
    }

    /// Writes as a client with a layout to this object that acts as this user.
    pub fn client_write_with(
        &self,
        (object, user): (Object, u32),
        offset: u64,
        bytes: &[u8],
        stability: Stability,
    ) -> Result<(), ServerError> {
        self.server(object.server.0, |server| {
            let data = server.objects.get_mut(&object.id).ok_or(ServerError::Missing)?;
            if server.down || data.owners.is_none_or(|owners| owners.owner != user) {
                return Err(ServerError::Io);
            }
            data.now.write(offset, bytes);
            if stability > Stability::Unstable {
                data.durable.write(offset, bytes);
            }
            data.mtime = Time::now();
            Ok(())
        })
    }

    /// Sets the time of the last write to an object.
    pub fn set_mtime(&self, object: Object, mtime: Time) {
        self.server(object.server.0, |server| {
            server.objects.get_mut(&object.id).expect("the object must exist").mtime = mtime;
        });
    }

    /// Reports whether a client with a layout to read, which acts as `user`, can read an object.
    pub fn client_reads(&self, Object { server, id }: Object, user: u32) -> bool {
        let owners = self.server(server.0, |server| server.objects.get(&id).and_then(|data| data.owners));
        owners.is_some_and(|owners| owners.group == user)
    }

    /// Returns the bytes of one object.
    pub fn content(&self, object: Object) -> Option<Vec<u8>> {
        self.server(object.server.0, |server| {
            server.objects.get(&object.id).map(|data| data.now.read(0, data.now.len as usize))
        })
    }

    fn server<T>(&self, server: u32, run: impl FnOnce(&mut Server) -> T) -> T {
        run(self.0.lock().servers.get_mut(&server).expect("the data server must exist"))
    }

    /// Executes an operation on a data server that answers.
    fn execute<T: Send + 'static>(
        &self,
        server: ServerId,
        run: impl FnOnce(&mut Server) -> Result<T, ServerError> + Send + 'static,
    ) -> ServerFuture<T> {
        let servers = self.clone();
        Box::pin(async move {
            servers.server(server.0, |server| {
                server.contacts += 1;
                match server.down {
                    true => Err(ServerError::Unreachable),
                    false => run(server),
                }
            })
        })
    }

    fn on<T: Send + 'static>(
        &self,
        object: Object,
        run: impl FnOnce(&mut Data, &Flags) -> Result<T, ServerError> + Send + 'static,
    ) -> ServerFuture<T> {
        self.execute(object.server, move |server| {
            let flags = Flags { full: server.full, verifier: WriteVerifier(server.starts.to_be_bytes()) };
            run(server.objects.get_mut(&object.id).ok_or(ServerError::Missing)?, &flags)
        })
    }
}

struct Flags {
    full: bool,
    verifier: WriteVerifier,
}

impl DataServers for Servers {
    fn servers(&self) -> Vec<ServerId> {
        self.0.lock().servers.keys().map(|id| ServerId(*id)).collect()
    }

    fn creates_on_write(&self, _: ServerId) -> bool {
        false
    }

    fn create(&self, object: Object, epochs: Epochs) -> ServerFuture<()> {
        self.execute(object.server, move |server| {
            server.objects.entry(object.id).or_default().owners = epochs.owners(object);
            Ok(())
        })
    }

    fn fence(&self, object: Object, epochs: Epochs) -> ServerFuture<()> {
        let permit = self.permit(object.server);
        let set = self.on(object, move |data, _| {
            data.owners = epochs.owners(object);
            Ok(())
        });
        Box::pin(async move {
            permit.await;
            set.await
        })
    }

    fn objects(&self, server: ServerId) -> ServerFuture<Vec<u128>> {
        self.execute(server, |server| Ok(server.objects.keys().copied().collect()))
    }

    fn getattr(&self, object: Object) -> ServerFuture<ObjectAttr> {
        let attr = |data: &mut Data, _: &Flags| Ok(ObjectAttr { size: data.now.len, mtime: data.mtime });
        let (attr, servers) = (self.on(object, attr), self.clone());
        Box::pin(async move {
            let attr = attr.await;
            let is_held = || servers.server(object.server.0, |server| server.holds_answers);
            poll_fn(|_| if is_held() { Poll::Pending } else { Poll::Ready(()) }).await;
            attr
        })
    }

    fn handle(&self, object: Object, _: ClientAccess) -> ServerFuture<Bytes> {
        self.on(object, move |_, _| Ok(object.id.to_be_bytes().to_vec().into()))
    }

    fn data_handle(&self, object: Object, _: ClientAccess, users: Owners) -> ServerFuture<Option<Bytes>> {
        let handle = [&object.id.to_be_bytes()[..], &users.owner.to_be_bytes()].concat();
        self.on(object, move |_, _| Ok(Some(handle.into())))
    }

    fn striped_device_id(&self, servers: &[ServerId], _: DataTransport) -> Option<LayoutDeviceId> {
        Some(LayoutDeviceId(std::array::from_fn(|at| servers.get(at).map_or(0, |server| server.0 as u8))))
    }

    fn device_id(&self, server: ServerId, _: DataTransport) -> Option<LayoutDeviceId> {
        let version = self.server(server.0, |found| found.version);
        Some(LayoutDeviceId(std::array::from_fn(|at| if at == 15 { version } else { server.0 as u8 })))
    }

    fn server_of(&self, device: LayoutDeviceId) -> Option<ServerId> {
        Some(ServerId(device.0[0].into()))
    }

    /// Returns a device of a files layout.
    fn device(&self, device: LayoutDeviceId) -> ServerFuture<LayoutDevice> {
        let count = device.0.iter().take_while(|server| **server != 0).count();
        Box::pin(async move {
            Ok(LayoutDevice::Files { stripes: (0..count as u32).collect(), servers: vec![Vec::new(); count] })
        })
    }

    fn remove(&self, object: Object) -> ServerFuture<()> {
        self.execute(object.server, move |server| {
            server.objects.remove(&object.id);
            Ok(())
        })
    }

    fn read(&self, object: Object, offset: u64, len: usize) -> ServerFuture<Bytes> {
        self.on(object, move |data, _| Ok(data.now.read(offset, len).into()))
    }

    fn write(
        &self,
        object: Object,
        offset: u64,
        data: Rope,
        stability: Stability,
        _: Presence,
    ) -> ServerFuture<WriteVerifier> {
        let bytes = data.to_bytes().expect("the data must be memory");
        let permit = self.permit(object.server);
        let write = self.on(object, move |data, flags| {
            if flags.full {
                return Err(ServerError::NoSpace);
            }
            data.now.write(offset, &bytes);
            data.mtime = Time::now();
            if stability > Stability::Unstable {
                data.durable.write(offset, &bytes);
            }
            Ok(flags.verifier)
        });
        Box::pin(async move {
            permit.await;
            write.await
        })
    }

    fn commit(&self, object: Object) -> ServerFuture<WriteVerifier> {
        self.on(object, |data, flags| {
            data.durable.clone_from(&data.now);
            Ok(flags.verifier)
        })
    }

    fn set_size(&self, object: Object, size: u64, _: Presence) -> ServerFuture<()> {
        let servers = self.clone();
        let held = poll_fn(move |_| match servers.server(object.server.0, |server| server.holds_sizes) {
            true => Poll::Pending,
            false => Poll::Ready(()),
        });
        let set = self.on(object, move |data, _| {
            data.now.resize(size);
            data.mtime = Time::now();
            data.durable.resize(size);
            Ok(())
        });
        Box::pin(async move {
            held.await;
            set.await
        })
    }

    fn probe(&self, server: ServerId) -> ServerFuture<()> {
        self.execute(server, |_| Ok(()))
    }
}

/// The storage of an index, which survives a crash.
#[derive(Clone, Debug, Default)]
pub struct Storage {
    memory: Arc<InMemoryBackend>,
    /// The number of synchronizations that fail, after they have had their effect.
    pub failing: Arc<AtomicU32>,
}

impl Storage {
    /// Copies the storage, so that the index that was opened on it has no effect on it any more.
    pub fn crash(&mut self) {
        let copy = InMemoryBackend::new();
        let len = self.memory.len().unwrap();
        let mut bytes = vec![0; len as usize];
        self.memory.read(0, &mut bytes).unwrap();
        copy.set_len(len).unwrap();
        copy.write(0, &bytes).unwrap();
        self.memory = Arc::new(copy);
    }
}

impl StorageBackend for Storage {
    fn len(&self) -> io::Result<u64> {
        self.memory.len()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.memory.read(offset, out)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.memory.set_len(len)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.memory.sync_data()?;
        let failing = self.failing.fetch_update(Relaxed, Relaxed, |failing| failing.checked_sub(1));
        if failing.is_ok() { Err(io::ErrorKind::StorageFull.into()) } else { Ok(()) }
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.memory.write(offset, data)
    }
}
