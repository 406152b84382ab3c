//! [`Services`]: the data servers with the decisions of an administrator about them: which are drained, and which are lost.

use std::collections::BTreeMap;

use buf::Rope;
use bytes::Bytes;
use parking_lot::Mutex;
use vfs::{
    Result, Stability,
    layout::{DataTransport, LayoutDevice, LayoutDeviceId},
};

use crate::{
    index::Index,
    record::{Epochs, Object, Owners, ServerId},
    servers::{ClientAccess, DataServers, Presence, ServerError, ServerFuture, WriteVerifier},
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
    inner: std::sync::Arc<dyn DataServers>,
    /// The data servers that are not active.
    out: Mutex<BTreeMap<ServerId, Service>>,
    /// The number of data servers that a new file needs.
    needed: usize,
}

impl Services {
    /// Creates the data servers with the states in the index.
    ///
    /// # Errors
    /// Returns `Io`.
    pub fn open(inner: std::sync::Arc<dyn DataServers>, index: &Index, needed: usize) -> Result<Self> {
        let out = index.states()?.into_iter().map(|(server, state)| (server, decode(state))).collect();
        Ok(Self { inner, out: Mutex::new(out), needed })
    }

    /// Returns the state of a data server.
    pub fn of(&self, server: ServerId) -> Service {
        self.out.lock().get(&server).copied().unwrap_or(Service::Active)
    }

    /// Sets the state of a data server, durably.
    ///
    /// # Errors
    /// Returns `Io`.
    pub fn set(&self, index: &Index, server: ServerId, service: Service) -> Result<()> {
        // Held meanwhile, so that the index and the memory agree.
        let mut out = self.out.lock();
        index.set_state(server, encode(service))?;
        match service {
            Service::Active => out.remove(&server),
            service => out.insert(server, service),
        };
        Ok(())
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
        self.on(object.server, |inner| inner.create(object, epochs))
    }

    fn fence(&self, object: Object, epochs: Epochs) -> ServerFuture<()> {
        self.on(object.server, |inner| inner.fence(object, epochs))
    }

    fn remove(&self, object: Object) -> ServerFuture<()> {
        self.on(object.server, |inner| inner.remove(object))
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
        self.on(object.server, |inner| inner.write(object, offset, data, stability, presence))
    }

    fn commit(&self, object: Object) -> ServerFuture<WriteVerifier> {
        self.on(object.server, |inner| inner.commit(object))
    }

    fn set_size(&self, object: Object, size: u64, presence: Presence) -> ServerFuture<()> {
        self.on(object.server, |inner| inner.set_size(object, size, presence))
    }

    fn objects(&self, server: ServerId) -> ServerFuture<Vec<u128>> {
        self.on(server, |inner| inner.objects(server))
    }

    fn size(&self, object: Object) -> ServerFuture<u64> {
        self.on(object.server, |inner| inner.size(object))
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
