//! A device as connections use it: what it can do, its protection domain, what is registered with it for good. What it has
//! to say by itself is in `faults`.
//!
//! One protection domain for each device and process: a slab is registered once however many connections there are.
//! A [`Device`] lives as long as a connection on it, or some [`Devices`](super::Devices) that keep it; an identifier of
//! either keeps librdmacm from closing the context beneath it.

#![expect(unsafe_code, reason = "calls of C")]

use std::{
    collections::BTreeMap,
    io,
    ptr::NonNull,
    sync::{Arc, Weak},
};

use buf::{Buffer, Pool, Slab};
use parking_lot::{Mutex, RwLock};

use super::{
    domain::{DeviceCaps, Pd},
    faults::Faults,
    ffi::*,
    library::Library,
    memory::{SlabCache, SlabMr},
    receives::SharedQueue,
};
use crate::{
    ReceiveSource,
    registration::{Cache, CacheBounds},
};

/// An opened device.
pub(super) struct Device {
    pub(super) caps: DeviceCaps,
    pub(super) pd: Arc<Pd>,
    /// Where bytes go that are not of any pool and too few to be registered.
    pub(super) staging: Pool,
    /// What stands for an empty buffer, which has no address of its own.
    pub(super) nothing: Buffer,
    /// By the address of their first byte.
    slabs: RwLock<BTreeMap<usize, Arc<SlabMr>>>,
    /// One for each bounds that connections on it want.
    caches: Mutex<Vec<(CacheBounds, SlabCache)>>,
    /// One for each source that connections on it take their receives from.
    shared: Mutex<Vec<Weak<SharedQueue>>>,
    pub(super) faults: Faults,
}

impl Device {
    /// The device of a context, opened by librdmacm for an identifier that outlives the result.
    ///
    /// # Errors
    /// The device does not answer.
    ///
    /// # Safety
    /// `context` is a context of librdmacm, and an identifier bound to it exists until the last clone is dropped.
    pub(super) unsafe fn of(library: &'static Library, context: NonNull<ibv_context>) -> io::Result<Arc<Self>> {
        let mut devices = DEVICES.lock();
        let key = context.as_ptr() as usize;
        if let Some(device) = devices.get(&key).and_then(Weak::upgrade) {
            device.forget();
            return Ok(device);
        }
        // SAFETY: by the caller.
        let device = Arc::new(unsafe { Self::open(library, context)? });
        devices.insert(key, Arc::downgrade(&device));
        tracing::debug!(caps = ?device.caps, "device opened");
        Ok(device)
    }

    /// # Safety
    /// As [`of`](Self::of).
    unsafe fn open(library: &'static Library, context: NonNull<ibv_context>) -> io::Result<Self> {
        // SAFETY: an open context.
        let caps = unsafe { DeviceCaps::query(library, context)? };
        // SAFETY: as above.
        let pd = Arc::new(unsafe { Pd::allocate(library, context)? });
        let faults = Faults::watch(&pd, &caps.name)?;
        let staging = Pool::default();
        Ok(Self {
            caps,
            pd,
            nothing: staging.take(1),
            staging,
            slabs: RwLock::default(),
            caches: Mutex::default(),
            shared: Mutex::default(),
            faults,
        })
    }

    /// The registrations that connections with these bounds share.
    pub(super) fn cache(&self, bounds: CacheBounds) -> SlabCache {
        let mut caches = self.caches.lock();
        if let Some((_, cache)) = caches.iter().find(|(of, _)| *of == bounds) {
            return cache.clone();
        }
        let cache = SlabCache::new(Mutex::new(Cache::new(bounds)));
        caches.push((bounds, cache.clone()));
        cache
    }

    /// How many slabs are registered with it.
    pub(super) fn registered(&self) -> usize {
        let cached: usize = self.caches.lock().iter().map(|(_, cache)| cache.lock().stats().entries).sum();
        self.slabs.read().len() + cached
    }

    /// Gives up the registrations of pools that are gone: nobody else holds their slabs, nor their registrations.
    fn forget(&self) {
        self.slabs.write().retain(|_, slab| Arc::strong_count(slab) > 1 || slab.in_use());
        for (_, cache) in &*self.caches.lock() {
            cache.lock().forget(|_, slab| !slab.in_use());
        }
    }

    /// The registration of the slab that `bytes` lie in, made if it is new; `None` if they are of no pool.
    ///
    /// # Errors
    /// It cannot be registered.
    pub(super) fn slab_of(&self, bytes: &[u8]) -> io::Result<Option<Arc<SlabMr>>> {
        let start = bytes.as_ptr() as usize;
        let known = |slabs: &BTreeMap<usize, Arc<SlabMr>>| {
            slabs.range(..=start).next_back().map(|(_, slab)| slab.clone()).filter(|slab| slab.holds(bytes))
        };
        if let Some(slab) = known(&self.slabs.read()) {
            return Ok(Some(slab));
        }
        let Some((slab, _)) = Slab::of(bytes) else { return Ok(None) };
        self.forget();
        let mut slabs = self.slabs.write();
        if let Some(slab) = known(&slabs) {
            return Ok(Some(slab));
        }
        let registered = Arc::new(SlabMr::register(&self.pd, &self.caps, slab)?);
        slabs.insert(registered.base(), registered.clone());
        Ok(Some(registered))
    }

    /// The shared receive queue that takes from `source`, made if there is none.
    ///
    /// # Errors
    /// The device has no such queues, or refuses.
    pub(super) fn shared_queue(&self, source: &ReceiveSource) -> io::Result<Arc<SharedQueue>> {
        if self.caps.shared_receives == 0 {
            let why = format!("{} has no shared receive queues", self.caps.name);
            return Err(io::Error::new(io::ErrorKind::Unsupported, why));
        }
        let mut shared = self.shared.lock();
        if let Some(queue) = shared.iter().filter_map(Weak::upgrade).find(|queue| queue.source() == source) {
            return Ok(queue);
        }
        shared.retain(|queue| queue.strong_count() > 0);
        let queue = Arc::new(SharedQueue::create(self, source)?);
        shared.push(Arc::downgrade(&queue));
        Ok(queue)
    }

    /// Longest message on a port, in bytes.
    pub(super) fn message_max(&self, port: u8) -> usize {
        let mut attr = ibv_port_attr::default();
        // SAFETY: an open context; `attr` has room for more than this entry point fills in.
        let queried =
            unsafe { (self.pd.library.functions.ibv_query_port)(self.pd.context().as_ptr(), port, &mut attr) };
        // Every device carries this much.
        if queried == 0 && attr.max_msg_sz > 0 { attr.max_msg_sz as usize } else { 1 << 20 }
    }
}

/// The devices in use, by the address of their context: librdmacm opens each once for the process.
static DEVICES: Mutex<BTreeMap<usize, Weak<Device>>> = Mutex::new(BTreeMap::new());
