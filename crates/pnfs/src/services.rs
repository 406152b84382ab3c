//! [`Services`]: the data servers with the decisions of an administrator about them: which are drained, and which are lost.
//!
//! Requests of an earlier process of the metadata server can still be on their way when this one starts, for example in the queue of a
//! slow data server, and nothing there tells them from new ones. If that process has left work, changes wait: a late
//! CREATE would leave an object of no file, and a late WRITE to one copy would make the copies differ.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc,
        atomic::{
            AtomicBool,
            Ordering::{Acquire, Release},
        },
    },
    time::Duration,
};

use buf::Rope;
use bytes::Bytes;
use entropy::HashMap;
use parking_lot::Mutex;
use tokio::{
    sync::Notify,
    time::{Instant, sleep_until},
};
use vfs::{
    Result, Stability,
    layout::{DataTransport, LayoutDevice, LayoutDeviceId},
};

use crate::{
    index::Index,
    record::{Epochs, Object, Owners, ServerId},
    servers::{ClientAccess, DataServers, ObjectAttr, Presence, ServerError, ServerFuture, WriteVerifier},
};

/// The administrator's decision about a data server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Service {
    /// It has objects, and gets new ones.
    Active,
    /// It gets no new objects, and those that it has are moved to other data servers.
    Draining,
    /// It is gone for ever with its objects, and is never contacted.
    Lost,
}

/// The data servers of a tree. Those that are lost are unreachable, and those that are drained get no new objects.
pub struct Services {
    inner: Arc<dyn DataServers>,
    /// The data servers that are not active.
    out: Mutex<BTreeMap<ServerId, Service>>,
    /// The data servers whose state in the index may be another one, because a change of it has failed. Locked after `out`.
    unsure: Mutex<BTreeSet<ServerId>>,
    verifiers: Arc<Verifiers>,
    /// The number of data servers that a new file needs.
    needed: usize,
    /// The time from which no request of an earlier process can reach a data server.
    alone_from: Instant,
    alone: Arc<Alone>,
}

/// The last write verifier of each data server, and the time from which on it was known. Another one shows that the data server may have lost
/// writes that were not durable (RFC 1813 §3.3.7).
type Verifiers = Mutex<HashMap<ServerId, (WriteVerifier, Instant)>>;

/// The end of the time in which requests of an earlier process can reach data servers.
#[derive(Default)]
struct Alone {
    /// Set when it has ended.
    ended: AtomicBool,
    notify: Notify,
}

impl Alone {
    fn has_ended(&self) -> bool {
        self.ended.load(Acquire)
    }

    fn end(&self) {
        self.ended.store(true, Release);
        self.notify.notify_waiters();
    }

    async fn wait(&self) {
        loop {
            let mut notified = std::pin::pin!(self.notify.notified());
            notified.as_mut().enable();
            if self.has_ended() {
                return;
            }
            notified.await;
        }
    }
}

impl Services {
    /// Creates the data servers with the states in the index. Requests of an earlier process may be on their way for this time.
    ///
    /// # Errors
    /// Returns `Io`.
    pub fn open(inner: Arc<dyn DataServers>, index: &Index, needed: usize, earlier: Duration) -> Result<Self> {
        let out = index.states()?.into_iter().map(|(server, state)| (server, decode(state))).collect();
        let (out, alone) = (Mutex::new(out), Arc::<Alone>::default());
        if earlier.is_zero() {
            alone.end();
        }
        let (unsure, verifiers) = Default::default();
        Ok(Self { inner, out, unsure, verifiers, needed, alone_from: Instant::now() + earlier, alone })
    }

    /// Waits until no request of an earlier process can reach a data server any more, and then lets changes go on. This needs a runtime
    /// of tokio.
    pub async fn await_earlier(&self) {
        if !self.alone.has_ended() {
            sleep_until(self.alone_from).await;
            self.alone.end();
        }
    }

    /// Returns the state of a data server.
    pub fn of(&self, server: ServerId) -> Service {
        self.out.lock().get(&server).copied().unwrap_or(Service::Active)
    }

    /// Reports whether a data server has this state, and has it after a restart, too.
    pub fn is_set(&self, server: ServerId, service: Service) -> bool {
        self.of(server) == service && !self.unsure.lock().contains(&server)
    }

    /// Sets the state of a data server, durably. If this fails, the next process can find either state.
    ///
    /// # Errors
    /// Returns `Io`.
    pub fn set(&self, index: &Index, server: ServerId, service: Service) -> Result<()> {
        // Held meanwhile, so that the index and the memory agree.
        let mut out = self.out.lock();
        let mut unsure = self.unsure.lock();
        unsure.insert(server);
        index.set_state(server, encode(service))?;
        unsure.remove(&server);
        match service {
            Service::Active => out.remove(&server),
            service => out.insert(server, service),
        };
        Ok(())
    }

    /// Reports whether a data server that has just executed a COMMIT has lost no writes since this time. That is known only if its write
    /// verifier was known before.
    pub fn has_kept_writes(&self, server: ServerId, since: Instant) -> bool {
        self.verifiers.lock().get(&server).is_some_and(|(_, known_from)| *known_from < since)
    }

    /// Returns the data servers that are not active.
    pub fn out_of_service(&self) -> Vec<(ServerId, Service)> {
        self.out.lock().iter().map(|(server, service)| (*server, *service)).collect()
    }

    /// Returns all data servers of the configuration.
    pub fn configured(&self) -> Vec<ServerId> {
        self.inner.servers()
    }

    /// Returns the data servers that get new objects.
    pub fn active(&self) -> Vec<ServerId> {
        let out = self.out.lock();
        self.inner.servers().into_iter().filter(|server| !out.contains_key(server)).collect()
    }

    fn on<T: Send + 'static>(
        &self,
        server: ServerId,
        run: impl FnOnce(&dyn DataServers) -> ServerFuture<T>,
    ) -> ServerFuture<T> {
        match self.of(server) {
            Service::Lost => Box::pin(async { Err(ServerError::Unreachable) }),
            _ => run(&*self.inner),
        }
    }

    /// Executes an operation that changes an object, or whose result must not be changed by a request of an earlier process.
    fn change<T: Send + 'static>(
        &self,
        server: ServerId,
        run: impl FnOnce(&dyn DataServers) -> ServerFuture<T>,
    ) -> ServerFuture<T> {
        let operation = self.on(server, run);
        if self.alone.has_ended() {
            return operation;
        }
        let alone = self.alone.clone();
        Box::pin(async move {
            alone.wait().await;
            operation.await
        })
    }

    /// Takes note of the write verifier that an operation returns.
    fn verified(&self, server: ServerId, operation: ServerFuture<WriteVerifier>) -> ServerFuture<WriteVerifier> {
        let verifiers = self.verifiers.clone();
        Box::pin(async move {
            let verifier = operation.await?;
            let mut verifiers = verifiers.lock();
            if verifiers.get(&server).is_none_or(|(known, _)| *known != verifier) {
                verifiers.insert(server, (verifier, Instant::now()));
            }
            Ok(verifier)
        })
    }
}

impl DataServers for Services {
    /// Returns the active data servers. If they are fewer than a file needs, lost ones are added: each copy on one is
    /// stale from the beginning, and is made when there is a data server for it.
    fn servers(&self) -> Vec<ServerId> {
        let mut servers = self.active();
        let mut others = self.out_of_service();
        others.sort_by_key(|(_, service)| std::cmp::Reverse(*service));
        let missing = self.needed.saturating_sub(servers.len());
        let configured = self.configured();
        let others = others.into_iter().map(|(server, _)| server).filter(|server| configured.contains(server));
        servers.extend(others.take(missing));
        servers
    }

    fn creates_on_write(&self, server: ServerId) -> bool {
        self.inner.creates_on_write(server)
    }

    fn create(&self, object: Object, epochs: Epochs) -> ServerFuture<()> {
        self.change(object.server, |inner| inner.create(object, epochs))
    }

    fn fence(&self, object: Object, epochs: Epochs) -> ServerFuture<()> {
        self.change(object.server, |inner| inner.fence(object, epochs))
    }

    fn remove(&self, object: Object) -> ServerFuture<()> {
        self.change(object.server, |inner| inner.remove(object))
    }

    fn read(&self, object: Object, offset: u64, len: usize) -> ServerFuture<Bytes> {
        self.on(object.server, |inner| inner.read(object, offset, len))
    }

    fn write(
        &self,
        object: Object,
        offset: u64,
        data: Rope,
        stability: Stability,
        presence: Presence,
    ) -> ServerFuture<WriteVerifier> {
        let written = self.change(object.server, |inner| inner.write(object, offset, data, stability, presence));
        self.verified(object.server, written)
    }

    fn commit(&self, object: Object) -> ServerFuture<WriteVerifier> {
        self.verified(object.server, self.change(object.server, |inner| inner.commit(object)))
    }

    fn set_size(&self, object: Object, size: u64, presence: Presence) -> ServerFuture<()> {
        self.change(object.server, |inner| inner.set_size(object, size, presence))
    }

    fn objects(&self, server: ServerId) -> ServerFuture<Vec<u128>> {
        self.change(server, |inner| inner.objects(server))
    }

    fn getattr(&self, object: Object) -> ServerFuture<ObjectAttr> {
        self.change(object.server, |inner| inner.getattr(object))
    }

    fn handle(&self, object: Object, client: ClientAccess) -> ServerFuture<Bytes> {
        self.on(object.server, |inner| inner.handle(object, client))
    }

    fn data_handle(&self, object: Object, client: ClientAccess, users: Owners) -> ServerFuture<Option<Bytes>> {
        self.on(object.server, |inner| inner.data_handle(object, client, users))
    }

    fn striped_device_id(&self, servers: &[ServerId], transport: DataTransport) -> Option<LayoutDeviceId> {
        self.inner.striped_device_id(servers, transport)
    }

    fn device_id(&self, server: ServerId, transport: DataTransport) -> Option<LayoutDeviceId> {
        self.inner.device_id(server, transport)
    }

    fn server_of(&self, device: LayoutDeviceId) -> Option<ServerId> {
        self.inner.server_of(device)
    }

    fn device(&self, device: LayoutDeviceId) -> ServerFuture<LayoutDevice> {
        self.inner.device(device)
    }

    fn probe(&self, server: ServerId) -> ServerFuture<()> {
        self.on(server, |inner| inner.probe(server))
    }
}

fn encode(service: Service) -> Option<u8> {
    match service {
        Service::Active => None,
        Service::Draining => Some(1),
        Service::Lost => Some(2),
    }
}

/// An unknown state, of a later version, is read as the one that does least.
fn decode(state: u8) -> Service {
    if state == 2 { Service::Lost } else { Service::Draining }
}
