//! Data servers of kind `slipway`: [`Objects`] over memory, which are called without a network.

use std::{
    ops::ControlFlow,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use buf::{Pool, Rope};
use bytes::Bytes;
use pnfs::{
    ClientAccess, DataServers, ObjectAttr, Presence, ServerError, ServerFuture, ServerId, WriteVerifier,
    objects::{
        Objects, create_until,
        fences::Fences,
        handle::{ClusterKey, ObjectHandle, Right, StoreId},
        name, object_of,
    },
    record::{Epochs, Object, Owners},
};
use redb::backends::InMemoryBackend;
use vfs::{
    Attr, Caller, Cred, Handle, Name, Report, Result, SetAttr, Stability, Vfs, VfsError,
    layout::{DataTransport, LayoutDevice, LayoutDeviceId, LayoutMode},
    memory::{Memory, MemoryOptions},
};

/// The data servers. Clones are the same ones.
#[derive(Clone)]
pub struct Computed(Arc<Shared>);

struct Shared {
    stores: Vec<Objects>,
    calls: AtomicU64,
}

/// The key of the cluster.
pub fn key() -> ClusterKey {
    ClusterKey::new(&[7; 32])
}

/// Returns the store of a tree.
pub fn store_of(objects: &Objects) -> StoreId {
    Objects::store_of(objects.root().as_bytes()).unwrap()
}

/// Returns the handle in the tree of a handle that was computed with the key of the cluster.
pub fn adopted(objects: &Objects, handle: &ObjectHandle) -> Handle {
    objects.adopt(&key().seal(store_of(objects), handle)).unwrap()
}

pub fn empty_store() -> Objects {
    let memory = Memory::new(MemoryOptions { capacity: 1 << 30, ..Default::default() });
    Objects::open(Arc::new(memory), Fences::with_backend(InMemoryBackend::new()).unwrap(), key()).unwrap()
}

impl Computed {
    pub fn new(count: u32) -> Self {
        Self(Arc::new(Shared { stores: (0..count).map(|_| empty_store()).collect(), calls: AtomicU64::new(0) }))
    }

    /// Returns the number of operations that were sent to data servers.
    pub fn calls(&self) -> u64 {
        self.0.calls.load(Relaxed)
    }

    pub fn store(&self, server: ServerId) -> &Objects {
        &self.0.stores[server.0 as usize - 1]
    }

    fn call<T: Send + 'static>(
        &self,
        server: ServerId,
        handle: ObjectHandle,
        run: impl FnOnce(&Objects, &Caller<'_>, &Handle) -> Result<T> + Send + 'static,
    ) -> ServerFuture<T> {
        let this = self.clone();
        Box::pin(async move {
            this.0.calls.fetch_add(1, Relaxed);
            let (store, root) = (this.store(server), Cred::root());
            run(store, &Caller::blocking(&root), &adopted(store, &handle)).map_err(|error| match error {
                VfsError::Stale => ServerError::Missing,
                VfsError::NoSpace => ServerError::NoSpace,
                VfsError::FileTooBig => ServerError::FileTooBig,
                _ => ServerError::Io,
            })
        })
    }

    fn on<T: Send + 'static>(
        &self,
        object: Object,
        presence: Presence,
        run: impl FnOnce(&Objects, &Caller<'_>, &Handle) -> Result<T> + Send + 'static,
    ) -> ServerFuture<T> {
        self.call(object.server, ObjectHandle::control(object.id, presence == Presence::MayBeNew), run)
    }
}

impl DataServers for Computed {
    fn servers(&self) -> Vec<ServerId> {
        (1..=self.0.stores.len() as u32).map(ServerId).collect()
    }

    fn creates_on_write(&self, _: ServerId) -> bool {
        true
    }

    fn create(&self, object: Object, _: Epochs) -> ServerFuture<()> {
        let written = self.write(object, 0, Rope::new(), Stability::FileSync, Presence::MayBeNew);
        Box::pin(async move { written.await.map(drop) })
    }

    fn fence(&self, object: Object, epochs: Epochs) -> ServerFuture<()> {
        let set = SetAttr { uid: Some(epochs.writers), gid: Some(epochs.readers), ..SetAttr::default() };
        self.on(object, Presence::MayBeNew, move |store, caller, file| {
            store.setattr(caller, file, &set, None).map(drop)
        })
    }

    fn remove(&self, object: Object) -> ServerFuture<()> {
        self.call(object.server, ObjectHandle::store(), move |store, caller, dir| {
            store.remove(caller, dir, Name::new(name(object.id).as_bytes())?).map(drop)
        })
    }

    fn read(&self, object: Object, offset: u64, len: usize) -> ServerFuture<Bytes> {
        self.on(object, Presence::Exists, move |store, caller, file| {
            let read = store.read(caller, file, offset, len, &Pool::default(), false)?;
            read.data.to_bytes().map_err(|_| VfsError::Io)
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
        self.on(object, presence, move |store, caller, file| {
            store.write(caller, file, offset, &data, stability, Report::Nothing)?;
            Ok(WriteVerifier(store.write_verifier()))
        })
    }

    fn commit(&self, object: Object) -> ServerFuture<WriteVerifier> {
        self.on(object, Presence::Exists, |store, caller, file| {
            store.commit(caller, file, 0, 0)?;
            Ok(WriteVerifier(store.write_verifier()))
        })
    }

    fn set_size(&self, object: Object, size: u64, presence: Presence) -> ServerFuture<()> {
        let set = SetAttr { size: Some(size), ..SetAttr::default() };
        self.on(object, presence, move |store, caller, file| store.setattr(caller, file, &set, None).map(drop))
    }

    fn objects(&self, server: ServerId) -> ServerFuture<Vec<u128>> {
        self.call(server, ObjectHandle::store(), |store, caller, dir| {
            let mut objects = Vec::new();
            let read = store.readdir(caller, dir, 0, [0; 8], false, &mut |entry| {
                objects.push(object_of(entry.name).expect("only objects are listed"));
                ControlFlow::Continue(())
            });
            assert!(read?.eof);
            Ok(objects)
        })
    }

    fn getattr(&self, object: Object) -> ServerFuture<ObjectAttr> {
        self.on(object, Presence::Exists, |store, caller, file| {
            let Attr { size, mtime, .. } = store.getattr(caller, file)?;
            Ok(ObjectAttr { size, mtime })
        })
    }

    fn handle(&self, object: Object, client: ClientAccess) -> ServerFuture<Bytes> {
        let (right, epoch) = match client.mode {
            LayoutMode::Read => (Right::Read, client.epochs.readers),
            LayoutMode::Write => (Right::Write, client.epochs.writers),
        };
        let create_until = (client.presence == Presence::MayBeNew).then(create_until).flatten();
        let handle = ObjectHandle { right, create_until, epoch, object: object.id };
        let bytes = Bytes::copy_from_slice(&key().seal(store_of(self.store(object.server)), &handle));
        Box::pin(async { Ok(bytes) })
    }

    fn data_handle(&self, _: Object, _: ClientAccess, _: Owners) -> ServerFuture<Option<Bytes>> {
        Box::pin(async { Ok(None) })
    }

    fn striped_device_id(&self, _: &[ServerId], _: DataTransport) -> Option<LayoutDeviceId> {
        None
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

    fn probe(&self, _: ServerId) -> ServerFuture<()> {
        self.0.calls.fetch_add(1, Relaxed);
        Box::pin(async { Ok(()) })
    }
}
