//! Data servers over a network that loses, delays and repeats messages.
//!
//! Some are of kind `slipway`: their objects come into being with the first write, and clients use them by handles that the metadata
//! server computes ([`ObjectHandle`]). The others create objects when they are told to, and know the users of each.
//!
//! A data server executes the messages that have arrived in their order, also if their senders do not wait any more. A sender
//! waits for [`TIMEOUT`]. A message is at most [`DELAY_MAX`] on its way, which is less than the time in which a process restarts.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use buf::Rope;
use bytes::Bytes;
use parking_lot::Mutex;
use pnfs::{
    ClientAccess, DataServers, ObjectAttr, Presence, ServerError, ServerFuture, ServerId, WriteVerifier,
    objects::{
        create_until,
        handle::{ClusterKey, HANDLE_LEN, ObjectHandle, Right, StoreId},
    },
    record::{Epochs, Object, Owners},
};
use tokio::{
    sync::{Notify, oneshot},
    time::{Instant, sleep, sleep_until},
};
use vfs::{
    Stability, Time,
    layout::{DataTransport, LayoutDevice, LayoutDeviceId, LayoutMode},
};

use crate::{
    Broken, chance,
    faults::{Delivery, Fault, Faults, Operation},
    kinds::Kinds,
};

/// The data servers. Clones are the same ones.
#[derive(Clone)]
pub struct Stores(Arc<Shared>);

struct Shared {
    broken: Broken,
    faults: Faults,
    state: Mutex<State>,
    queues: Vec<tokio::sync::Mutex<()>>,
    changed: Notify,
    /// Called when data are lost that were not durable.
    lost: OnceLock<Box<dyn Fn() + Send + Sync>>,
}

struct State {
    stores: Vec<Store>,
    /// The number of the newest process of each metadata server.
    processes: [u64; 2],
    violation: Option<String>,
}

/// A data server.
#[derive(Default)]
pub struct Store {
    /// `true` if it is of kind `slipway`.
    computed: bool,
    /// The epochs of objects of that kind, and those that were removed.
    epochs: BTreeMap<u128, Epochs>,
    removed: BTreeSet<u128>,
    objects: BTreeMap<u128, Data>,
    starts: u64,
    /// The number of times that a COMMIT has lost data.
    losses: u64,
    pub down: bool,
    pub hung: bool,
    pub slow: bool,
    pub full: bool,
    /// `true` if its storage fails often.
    pub sick: bool,
    /// Those whose messages do not arrive.
    pub cut: BTreeSet<Party>,
    /// Objects, and those who must not be able to change them any more.
    fenced: BTreeSet<(u128, Pass)>,
    violation: Option<String>,
}

#[derive(Clone, Default)]
struct Data {
    now: Vec<u8>,
    durable: Vec<u8>,
    owners: Option<Owners>,
    mtime: Time,
}

/// The status of a data server.
struct Status {
    verifier: WriteVerifier,
    full: bool,
}

/// That by which a data server knows a client with a layout: the user as whom it acts, or the handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Pass {
    User(u32),
    Handle([u8; HANDLE_LEN]),
}

/// A sender of messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Party {
    Mds,
    Client(usize),
}

/// The number of data servers.
pub const STORES: u32 = 4;

impl Data {
    fn write(bytes: &mut Vec<u8>, offset: usize, data: &[u8]) {
        bytes.resize(bytes.len().max(offset + data.len()), 0);
        bytes[offset..offset + data.len()].copy_from_slice(data);
    }
}

impl Store {
    /// Returns the verifier of writes. It changes when data that were not durable may have been lost (RFC 1813 §3.3.7).
    fn verifier(&self) -> u64 {
        self.starts << 32 | self.losses
    }

    /// Reports whether a client may use an object.
    fn permits(&self, object: Object, pass: Pass, writes: bool) -> Result<bool, ServerError> {
        match pass {
            Pass::User(user) => {
                let owners = self.objects.get(&object.id).ok_or(ServerError::Missing)?.owners;
                Ok(owners.is_some_and(|owners| owners.owner == user || !writes && owners.group == user))
            }
            Pass::Handle(bytes) => {
                let handle = key().open(store_id(object.server), &bytes).map_err(|_| ServerError::Missing)?;
                let least = self.epochs.get(&handle.object).copied().unwrap_or_default();
                Ok(match handle.right {
                    Right::Read => !writes && handle.epoch >= least.readers,
                    Right::Write => handle.epoch >= least.writers,
                    Right::Control | Right::Store => false,
                })
            }
        }
    }

    /// Returns an object for a client, which a write can create.
    fn data(&mut self, object: Object, pass: Pass, writes: bool) -> Result<Option<&mut Data>, ServerError> {
        let may_be_new = match pass {
            Pass::User(_) => None,
            Pass::Handle(bytes) => {
                key().open(store_id(object.server), &bytes).ok().and_then(|handle| handle.create_until)
            }
        };
        match may_be_new {
            Some(until) if !self.objects.contains_key(&object.id) => {
                if writes {
                    // The time of the end is that of the whole hour.
                    let in_time = create_until().is_some_and(|now| until.get() + 2 * 3600 >= now.get());
                    if !in_time {
                        return Err(ServerError::Io);
                    }
                    return self.create(object.id).map(Some);
                }
                if self.removed.contains(&object.id) { Err(ServerError::Missing) } else { Ok(None) }
            }
            _ => self.objects.get_mut(&object.id).map(Some).ok_or(ServerError::Missing),
        }
    }

    fn create(&mut self, id: u128) -> Result<&mut Data, ServerError> {
        if self.removed.contains(&id) {
            return Err(ServerError::Missing);
        }
        if self.full && !self.objects.contains_key(&id) {
            return Err(ServerError::NoSpace);
        }
        Ok(self.objects.entry(id).or_default())
    }
}

/// The key of the cluster.
fn key() -> ClusterKey {
    ClusterKey::new(&[7; 32])
}

/// Returns the object of a computed handle.
pub fn object_of(handle: &[u8; HANDLE_LEN]) -> u128 {
    ObjectHandle::of_body(handle.first_chunk().expect("a handle must have a body")).expect("it must be valid").object
}

fn store_id(server: ServerId) -> StoreId {
    StoreId([server.0 as u8; 16])
}

impl Stores {
    pub fn new(broken: Broken, kinds: Kinds, faults: &Faults) -> Self {
        let store = |number| Store { computed: kinds.is_slipway(number), ..Store::default() };
        let stores = (1..=STORES).map(store).collect();
        let state = State { stores, processes: [0; 2], violation: None };
        let queues = (0..STORES).map(|_| tokio::sync::Mutex::default()).collect();
        let faults = faults.clone();
        Self(Arc::new(Shared {
            broken,
            faults,
            state: Mutex::new(state),
            queues,
            changed: Notify::new(),
            lost: OnceLock::new(),
        }))
    }

    /// Sets the function that is called when a COMMIT loses data.
    pub fn on_loss(&self, lost: impl Fn() + Send + Sync + 'static) {
        assert!(self.0.lost.set(Box::new(lost)).is_ok(), "the function must be set once");
    }

    /// Changes a data server.
    pub fn change(&self, server: u32, change: impl FnOnce(&mut Store)) {
        change(&mut self.0.state.lock().stores[server as usize - 1]);
        self.0.changed.notify_waiters();
    }

    /// Restarts a data server: it loses what is not durable, and the messages that it has not executed.
    pub fn restart(&self, server: u32) {
        self.change(server, |store| {
            store.starts += 1;
            store.objects.values_mut().for_each(|data| data.now.clone_from(&data.durable));
        });
    }

    /// Ends the faults that last.
    pub fn heal(&self) {
        for server in 1..=STORES {
            self.change(server, |store| {
                (store.down, store.hung, store.slow) = (false, false, false);
                (store.full, store.sick) = (false, false);
                store.cut.clear();
            });
        }
    }

    /// Notes that this client of an object is locked out.
    pub fn fence(&self, object: Object, pass: Pass) {
        self.change(object.server.0, |store| _ = store.fenced.insert((object.id, pass)));
    }

    fn is_computed(&self, server: ServerId) -> bool {
        self.0.state.lock().stores[server.0 as usize - 1].computed
    }

    /// Notes that a process of the metadata server starts. From now on, no other one sends messages; its earlier ones can still arrive.
    pub fn starts(&self, cluster: usize, process: u64) {
        self.0.state.lock().processes[cluster] = process;
    }

    pub fn violation(&self) -> Option<String> {
        let state = self.0.state.lock();
        state.violation.clone().or_else(|| state.stores.iter().find_map(|store| store.violation.clone()))
    }

    pub fn objects(&self) -> BTreeSet<Object> {
        let state = self.0.state.lock();
        let of = |(at, store): (usize, &Store)| {
            let server = ServerId(at as u32 + 1);
            store.objects.keys().map(|id| Object { server, id: *id }).collect::<Vec<_>>()
        };
        state.stores.iter().enumerate().flat_map(of).collect()
    }

    /// Returns the bytes of an object, and the durable ones.
    pub fn content(&self, object: Object) -> Option<(Vec<u8>, Vec<u8>)> {
        let state = self.0.state.lock();
        let data = state.stores[object.server.0 as usize - 1].objects.get(&object.id)?;
        Some((data.now.clone(), data.durable.clone()))
    }

    /// Sends a message, and returns the reply.
    async fn send<T: Send + 'static>(
        &self,
        from: Party,
        (server, target): (ServerId, Target),
        run: impl Fn(&mut Store) -> Result<T, ServerError> + Send + Sync + 'static,
    ) -> Result<T, ServerError> {
        let began = Instant::now();
        let (sender, reply) = oneshot::channel();
        tokio::spawn(self.clone().deliver(from, (server, target), run, sender));
        tokio::select! {
            biased;
            Ok(result) = reply => result,
            () = sleep_until(began + TIMEOUT) => Err(ServerError::Unreachable),
        }
    }

    async fn deliver<T>(
        self,
        from: Party,
        (server, target): (ServerId, Target),
        run: impl Fn(&mut Store) -> Result<T, ServerError>,
        reply: oneshot::Sender<Result<T, ServerError>>,
    ) {
        let at = server.0 as usize - 1;
        let occurs = |fault, share| self.0.faults.occurs(Fault::Message(fault), share);
        let is_late = || occurs(Delivery::Delayed, 0.1);
        let delay = || Duration::from_micros(if is_late() { entropy::random_range(0..DELAY_MAX) } else { 300 });
        let is_cut = || self.0.state.lock().stores[at].cut.contains(&from);
        if is_cut() || occurs(Delivery::Lost, 0.005) {
            return;
        }
        sleep(delay()).await;
        let starts = self.0.state.lock().stores[at].starts;
        let _turn = self.0.queues[at].lock().await;
        loop {
            let mut changed = std::pin::pin!(self.0.changed.notified());
            changed.as_mut().enable();
            if !self.0.state.lock().stores[at].hung {
                break;
            }
            changed.await;
        }
        if self.0.state.lock().stores[at].slow {
            sleep(Duration::from_millis(entropy::random_range(0..2000))).await;
        }
        let execute = || {
            let mut state = self.0.state.lock();
            let store = &mut state.stores[at];
            (!store.down && store.starts == starts).then(|| self.execute(store, target, &run))
        };
        let Some(mut result) = execute() else { return };
        if occurs(Delivery::Repeated, 0.02) {
            sleep(delay()).await;
            let Some(again) = execute() else { return };
            result = again;
        }
        drop(_turn);
        if is_cut() || occurs(Delivery::WithoutReply, 0.005) {
            return;
        }
        sleep(delay()).await;
        let _ = reply.send(result);
    }

    /// Executes an operation. The storage can fail.
    fn execute<T>(
        &self,
        store: &mut Store,
        target: Target,
        run: impl Fn(&mut Store) -> Result<T, ServerError>,
    ) -> Result<T, ServerError> {
        let share = if store.sick { 0.3 } else { 0.001 };
        let Some((operation, object)) = target else { return run(store) };
        if !self.0.faults.occurs(Fault::Server(operation), share) {
            return run(store);
        }
        if operation == Operation::Commit && self.0.faults.occurs(Fault::CommitLost, 0.5) {
            if let Some(data) = store.objects.get_mut(&object) {
                data.now.clone_from(&data.durable);
            }
            store.losses += 1;
            self.0.lost.get().into_iter().for_each(|lost| lost());
        } else if chance(0.5) {
            let _ = run(store);
        }
        Err(ServerError::Io)
    }

    /// Writes as a client. Returns the verifier.
    pub async fn client_write(
        &self,
        from: usize,
        (object, pass): (Object, Pass),
        offset: usize,
        bytes: Vec<u8>,
        stable: bool,
    ) -> Result<u64, Denied> {
        let written = self.send(Party::Client(from), on(Operation::Write, object), move |store| {
            let (verifier, full) = (store.verifier(), store.full);
            if !store.permits(object, pass, true)? {
                return Ok(None);
            }
            if full {
                return Err(ServerError::NoSpace);
            }
            let data = store.data(object, pass, true)?.expect("a write must create the object");
            Data::write(&mut data.now, offset, &bytes);
            data.mtime = Time::now();
            if stable {
                Data::write(&mut data.durable, offset, &bytes);
            }
            if store.fenced.contains(&(object.id, pass)) {
                store.violation.get_or_insert(format!("invariant 3: a fenced client has changed {object:?}"));
            }
            Ok(Some(verifier))
        });
        written.await.map_err(Denied::Failed)?.ok_or(Denied::Access)
    }

    /// Makes the writes of a client durable. Returns the verifier.
    pub async fn client_commit(&self, from: usize, (object, pass): (Object, Pass)) -> Result<u64, Denied> {
        let skip = self.0.broken == Broken::CommitSkipped;
        let before = self.verifier(object.server);
        let committed = self.send(Party::Client(from), on(Operation::Commit, object), move |store| {
            let verifier = store.verifier();
            if !store.permits(object, pass, true)? {
                return Ok(None);
            }
            if let Some(data) = store.data(object, pass, false)?
                && !skip
            {
                data.durable.clone_from(&data.now);
            }
            Ok(Some(verifier))
        });
        self.hide(committed.await, Some(before)).map_err(Denied::Failed)?.ok_or(Denied::Access)
    }

    fn verifier(&self, server: ServerId) -> u64 {
        self.0.state.lock().stores[server.0 as usize - 1].verifier()
    }

    /// Returns the result of a COMMIT, or success if its failures are hidden.
    fn hide<T>(&self, committed: Result<T, ServerError>, success: T) -> Result<T, ServerError> {
        match committed {
            Err(ServerError::Io) if self.0.broken == Broken::CommitErrorHidden => Ok(success),
            done => done,
        }
    }

    /// Reads as a client.
    pub async fn client_read(
        &self,
        from: usize,
        (object, pass): (Object, Pass),
        offset: usize,
        len: usize,
    ) -> Result<Vec<u8>, Denied> {
        let read = self.send(Party::Client(from), on(Operation::Read, object), move |store| {
            if !store.permits(object, pass, false)? {
                return Ok(None);
            }
            let data = store.data(object, pass, false)?;
            Ok(Some(data.map_or(Vec::new(), |data| slice(&data.now, offset, len))))
        });
        read.await.map_err(Denied::Failed)?.ok_or(Denied::Access)
    }
}

/// The reason why an operation of a client failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Denied {
    Access,
    Failed(ServerError),
}

/// The operation of a message, and its object, unless its storage does not fail.
type Target = Option<(Operation, u128)>;

/// Returns an operation on an object, with its data server.
fn on(operation: Operation, object: Object) -> (ServerId, Target) {
    (object.server, Some((operation, object.id)))
}

fn slice(data: &[u8], offset: usize, len: usize) -> Vec<u8> {
    data[offset.min(data.len())..(offset + len).min(data.len())].to_vec()
}

/// The data servers as one process of the metadata server uses them.
pub struct Link {
    pub stores: Stores,
    /// The number of the metadata server, and that of its process.
    pub process: (usize, u64),
    /// Set when the process has ended.
    pub dead: Arc<AtomicBool>,
}

impl Link {
    fn send<T: Send + 'static>(
        &self,
        to: (ServerId, Target),
        run: impl Fn(&mut Store) -> Result<T, ServerError> + Send + Sync + 'static,
    ) -> ServerFuture<T> {
        let (stores, dead, (cluster, process)) = (self.stores.clone(), self.dead.clone(), self.process);
        Box::pin(async move {
            if dead.load(Relaxed) {
                std::future::pending::<()>().await;
            }
            {
                let mut state = stores.0.state.lock();
                let newest = state.processes[cluster];
                if newest > process {
                    let problem = format!("invariant 7: process {process} changes objects beside process {newest}");
                    state.violation.get_or_insert(problem);
                }
            }
            stores.send(Party::Mds, to, run).await
        })
    }

    fn on<T: Send + 'static>(
        &self,
        operation: Operation,
        object: Object,
        run: impl Fn(&mut Data, Status) -> Result<T, ServerError> + Send + Sync + 'static,
    ) -> ServerFuture<T> {
        self.send(on(operation, object), move |store| {
            let status = Status { verifier: WriteVerifier(store.verifier().to_be_bytes()), full: store.full };
            run(store.objects.get_mut(&object.id).ok_or(ServerError::Missing)?, status)
        })
    }

    /// Sends an operation that may create its object.
    fn on_new<T: Send + 'static>(
        &self,
        operation: Operation,
        (object, presence): (Object, Presence),
        run: impl Fn(&mut Data, Status) -> Result<T, ServerError> + Send + Sync + 'static,
    ) -> ServerFuture<T> {
        self.send(on(operation, object), move |store| {
            let status = Status { verifier: WriteVerifier(store.verifier().to_be_bytes()), full: store.full };
            let data = match presence {
                Presence::MayBeNew if store.computed => store.create(object.id)?,
                _ => store.objects.get_mut(&object.id).ok_or(ServerError::Missing)?,
            };
            run(data, status)
        })
    }
}

impl DataServers for Link {
    fn servers(&self) -> Vec<ServerId> {
        (1..=STORES).map(ServerId).collect()
    }

    fn creates_on_write(&self, server: ServerId) -> bool {
        self.stores.is_computed(server)
    }

    fn create(&self, object: Object, epochs: Epochs) -> ServerFuture<()> {
        self.send(on(Operation::Create, object), move |store| {
            let owners = epochs.owners(object).filter(|_| !store.computed);
            store.create(object.id)?.owners = owners;
            Ok(())
        })
    }

    fn fence(&self, object: Object, epochs: Epochs) -> ServerFuture<()> {
        let ignored = self.stores.0.broken == Broken::FenceIgnored;
        self.send(on(Operation::Fence, object), move |store| {
            if store.computed {
                let least = store.epochs.entry(object.id).or_default();
                if !ignored {
                    least.writers = least.writers.max(epochs.writers);
                    least.readers = least.readers.max(epochs.readers);
                }
                return Ok(());
            }
            let data = store.objects.get_mut(&object.id).ok_or(ServerError::Missing)?;
            if !ignored || data.owners.is_none() {
                data.owners = epochs.owners(object);
            }
            Ok(())
        })
    }

    fn remove(&self, object: Object) -> ServerFuture<()> {
        let forgotten = self.stores.0.broken == Broken::RemovalForgotten;
        self.send(on(Operation::Remove, object), move |store| {
            if store.computed && !forgotten {
                store.removed.insert(object.id);
            }
            store.objects.remove(&object.id);
            Ok(())
        })
    }

    fn objects(&self, server: ServerId) -> ServerFuture<Vec<u128>> {
        self.send((server, None), |store| Ok(store.objects.keys().copied().collect()))
    }

    fn read(&self, object: Object, offset: u64, len: usize) -> ServerFuture<Bytes> {
        self.on(Operation::Read, object, move |data, _| Ok(slice(&data.now, offset as usize, len).into()))
    }

    fn write(
        &self,
        object: Object,
        offset: u64,
        data: Rope,
        stability: Stability,
        presence: Presence,
    ) -> ServerFuture<WriteVerifier> {
        let bytes = data.to_bytes().expect("the data must be memory");
        let written = self.on_new(Operation::Write, (object, presence), move |data, status| {
            if status.full {
                return Err(ServerError::NoSpace);
            }
            Data::write(&mut data.now, offset as usize, &bytes);
            data.mtime = Time::now();
            if stability > Stability::Unstable {
                Data::write(&mut data.durable, offset as usize, &bytes);
            }
            Ok(status.verifier)
        });
        if self.stores.0.broken != Broken::FailureHidden {
            return written;
        }
        Box::pin(async move { Ok(written.await.unwrap_or(WriteVerifier([0; 8]))) })
    }

    fn commit(&self, object: Object) -> ServerFuture<WriteVerifier> {
        let skip = self.stores.0.broken == Broken::CommitSkipped;
        let (stores, before) = (self.stores.clone(), self.stores.verifier(object.server));
        let committed = self.on(Operation::Commit, object, move |data, status| {
            if !skip {
                data.durable.clone_from(&data.now);
            }
            Ok(status.verifier)
        });
        Box::pin(async move { stores.hide(committed.await, WriteVerifier(before.to_be_bytes())) })
    }

    fn set_size(&self, object: Object, size: u64, presence: Presence) -> ServerFuture<()> {
        self.on_new(Operation::SetSize, (object, presence), move |data, _| {
            data.now.resize(size as usize, 0);
            data.durable.resize(size as usize, 0);
            data.mtime = Time::now();
            Ok(())
        })
    }

    fn getattr(&self, object: Object) -> ServerFuture<ObjectAttr> {
        self.on(Operation::Getattr, object, |data, _| Ok(ObjectAttr { size: data.now.len() as u64, mtime: data.mtime }))
    }

    fn handle(&self, object: Object, client: ClientAccess) -> ServerFuture<Bytes> {
        if !self.stores.is_computed(object.server) {
            return self.on(Operation::Read, object, move |_, _| Ok(object.id.to_be_bytes().to_vec().into()));
        }
        let (right, epoch) = match client.mode {
            LayoutMode::Read => (Right::Read, client.epochs.readers),
            LayoutMode::Write => (Right::Write, client.epochs.writers),
        };
        let create_until = (client.presence == Presence::MayBeNew).then(create_until).flatten();
        let handle = ObjectHandle { right, create_until, epoch, object: object.id };
        let bytes = Bytes::copy_from_slice(&key().seal(store_id(object.server), &handle));
        Box::pin(async { Ok(bytes) })
    }

    fn data_handle(&self, _: Object, _: ClientAccess, _: Owners) -> ServerFuture<Option<Bytes>> {
        Box::pin(async { Ok(None) })
    }

    fn striped_device_id(&self, servers: &[ServerId], _: DataTransport) -> Option<LayoutDeviceId> {
        Some(LayoutDeviceId(std::array::from_fn(|at| servers.get(at).map_or(0, |server| server.0 as u8))))
    }

    fn device_id(&self, server: ServerId, _: DataTransport) -> Option<LayoutDeviceId> {
        Some(LayoutDeviceId([server.0 as u8; 16]))
    }

    fn server_of(&self, device: LayoutDeviceId) -> Option<ServerId> {
        Some(ServerId(device.0[0].into()))
    }

    fn device(&self, _: LayoutDeviceId) -> ServerFuture<LayoutDevice> {
        Box::pin(async { Err(ServerError::Missing) })
    }

    fn probe(&self, server: ServerId) -> ServerFuture<()> {
        self.send((server, None), |_| Ok(()))
    }
}

/// The time for which a sender waits for a reply.
pub const TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum time of a message on its way, in microseconds.
const DELAY_MAX: u64 = 200_000;
