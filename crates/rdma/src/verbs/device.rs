//! A device as connections use it: its capabilities, its protection domain, and its permanent registrations. The events
//! that it reports are in `faults`.
//!
//! Each device has one protection domain per process, so a slab is registered once for any number of connections. A
//! [`Device`] lives as long as a connection on it, or a [`Devices`](super::Devices) that keeps it. An identifier owned
//! by either prevents librdmacm from closing the context.

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

/// A device that is open.
pub(super) struct Device {
    pub(super) caps: DeviceCaps,
    pub(super) pd: Arc<Pd>,
    /// The pool into which bytes that belong to no pool are copied if they are too few to be registered.
    pub(super) staging: Pool,
    /// A buffer that replaces empty buffers, which have no address.
    pub(super) nothing: Buffer,
    /// The permanent registrations, by the address of the slab's first byte.
    slabs: RwLock<BTreeMap<usize, Arc<SlabMr>>>,
    /// One cache for each set of bounds that connections on the device request.
    caches: Mutex<Vec<(CacheBounds, SlabCache)>>,
    /// One queue for each source that connections on the device take their receives from.
    shared: Mutex<Vec<Weak<SharedQueue>>>,
    pub(super) faults: Faults,
}

impl Device {
    /// Returns the device of a context that librdmacm opened for an identifier which outlives the result.
    ///
    /// # Errors
    /// Returns an error if the device does not answer.
    ///
    /// # Safety
    /// `context` is a context of librdmacm, and an identifier that is bound to it exists until the last clone is
    /// dropped.
    pub(super) unsafe fn of(library: &'static Library, context: NonNull<ibv_context>) -> io::Result<Arc<Self>> {
        let mut devices = DEVICES.lock();
        let key = context.as_ptr() as usize;
        if let Some(device) = devices.get(&key).and_then(Weak::upgrade) {
            device.evict_unused();
            return Ok(device);
        }
        // SAFETY: guaranteed by the caller.
        let device = Arc::new(unsafe { Self::open(library, context)? });
        devices.insert(key, Arc::downgrade(&device));
        tracing::debug!(caps = ?device.caps, "device opened");
        Ok(device)
    }

    /// # Safety
    /// Same as for [`of`](Self::of).
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

    /// Returns the registrations that connections with these bounds share.
    pub(super) fn cache(&self, bounds: CacheBounds) -> SlabCache {
        let mut caches = self.caches.lock();
        if let Some((_, cache)) = caches.iter().find(|(of, _)| *of == bounds) {
            return cache.clone();
        }
        let cache = SlabCache::new(Mutex::new(Cache::new(bounds)));
        caches.push((bounds, cache.clone()));
        cache
    }

    /// Returns the number of slabs that are registered with the device.
    pub(super) fn registered(&self) -> usize {
        let cached: usize = self.caches.lock().iter().map(|(_, cache)| cache.lock().stats().entries).sum();
        self.slabs.read().len() + cached
    }

    /// Drops the registrations of pools that no longer exist: no one else holds their slabs or their registrations.
    fn evict_unused(&self) {
        self.slabs.write().retain(|_, slab| Arc::strong_count(slab) > 1 || slab.in_use());
        for (_, cache) in &*self.caches.lock() {
            cache.lock().forget(|_, slab| !slab.in_use());
        }
    }

    /// Returns the registration of the slab that contains `bytes`, and creates it if necessary. Returns `None` if the
    /// bytes belong to no pool.
    ///
    /// # Errors
    /// Returns an error if the slab cannot be registered.
    pub(super) fn slab_of(&self, bytes: &[u8]) -> io::Result<Option<Arc<SlabMr>>> {
        let start = bytes.as_ptr() as usize;
        let known = |slabs: &BTreeMap<usize, Arc<SlabMr>>| {
            slabs.range(..=start).next_back().map(|(_, slab)| slab.clone()).filter(|slab| slab.holds(bytes))
        };
        if let Some(slab) = known(&self.slabs.read()) {
            return Ok(Some(slab));
        }
        let Some((slab, _)) = Slab::of(bytes) else { return Ok(None) };
        self.evict_unused();
        let mut slabs = self.slabs.write();
        if let Some(slab) = known(&slabs) {
            return Ok(Some(slab));
        }
        let registered = Arc::new(SlabMr::register(&self.pd, &self.caps, slab)?);
        slabs.insert(registered.base(), registered.clone());
        Ok(Some(registered))
    }

    /// Returns the shared receive queue that takes its buffers from `source`, and creates it if necessary.
    ///
    /// # Errors
    /// Returns an error if the device does not support shared receive queues, or rejects the request.
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

    /// Returns the length of the longest message on a port, in bytes.
    pub(super) fn message_max(&self, port: u8) -> usize {
        let mut attr = ibv_port_attr::default();
        // SAFETY: an open context; `attr` has room for more than this function fills in.
        let queried =
            unsafe { (self.pd.library.functions.ibv_query_port)(self.pd.context().as_ptr(), port, &mut attr) };
        // Every device supports this length.
        if queried == 0 && attr.max_msg_sz > 0 { attr.max_msg_sz as usize } else { 1 << 20 }
    }
}

/// The devices in use, by the address of their context: librdmacm opens each device once per process.
static DEVICES: Mutex<BTreeMap<usize, Weak<Device>>> = Mutex::new(BTreeMap::new());
