//! Memory that the adapter can access: only for the local side (local keys), or for the peer as well (regions).
//!
//! This module makes two decisions. *The key by which the adapter accesses local bytes.* Bytes of a pool have the
//! registration of their slab, which is made once per device. Other bytes are copied if they are few, and otherwise
//! registered for the one request. *The way exactly these bytes are exposed to the peer.* If the device supports type-2
//! memory windows, by a window, which a work request binds to the queue pair and to the bytes, and another work request
//! or the peer's Send with Invalidate invalidates. Otherwise by a registration of exactly these bytes with exactly the
//! access right required, which is undone afterwards.
//!
//! This applies to [`Registration::Fast`] and, because there is nothing further to prepare, to [`Registration::Pool`].
//! With [`Registration::Cache`] the queue pairs on a device keep a bounded set of slab registrations. With
//! [`Registration::PerIo`] regions, and the local buffers of RDMA Reads and Writes, are registered individually every
//! time.
//!
//! A registration outlives the requests that were posted with it, and memory is returned only when the adapter can no
//! longer access it: the code that drops an [`Mr`] or a [`Window`] must ensure this.

#![expect(unsafe_code, reason = "calls of C")]

use std::{ffi::c_int, io, ptr::NonNull, sync::Arc};

use buf::Slab;
use parking_lot::Mutex;

use super::{
    device::Device,
    domain::{DeviceCaps, Pd},
    ffi::*,
    library::last_error,
};
use crate::{
    Access,
    registration::{Cache, Registration, RegistrationOptions},
};

/// A memory region, which is deregistered on drop.
#[derive(Debug)]
pub(super) struct Mr {
    pd: Arc<Pd>,
    ptr: NonNull<ibv_mr>,
}

// SAFETY: libibverbs locks its objects; the pointer is valid until `Drop`.
unsafe impl Send for Mr {}
// SAFETY: as above.
unsafe impl Sync for Mr {}

/// The registration of one slab.
#[derive(Debug)]
pub(super) struct SlabMr {
    // Dropped in this order: the slab can be unmapped once its registration is gone.
    mr: Mr,
    slab: Arc<Slab>,
}

/// Registrations of slabs by [`Slab::id`].
pub(super) type SlabCache = Arc<Mutex<Cache<u64, SlabMr>>>;

/// A type-2 memory window, which is deallocated on drop, even if it is bound.
#[derive(Debug)]
pub(super) struct Window {
    pd: Arc<Pd>,
    ptr: NonNull<ibv_mw>,
    rkey: u32,
}

// SAFETY: as for `Mr`.
unsafe impl Send for Window {}

// SAFETY: addresses of a window and of the registration that it is bound to, which are dereferenced only while the
// queue pair that owns both posts the request.
unsafe impl Send for ibv_bind_mw {}

/// The object that gives the peer access to a region.
#[derive(Debug)]
pub(super) enum Exposure {
    /// A window and the registration it is bound to, which must outlive the binding.
    Window(Window, #[expect(dead_code, reason = "held for its drop")] BindTarget),
    /// A registration with the access right of the peer.
    Region(Mr),
}

/// The registration that a window is bound to.
#[derive(Debug)]
pub(super) enum BindTarget {
    Slab(Arc<SlabMr>),
    Mr(Mr),
}

/// The keys by which one queue pair accesses local memory.
pub(super) struct Keys {
    way: Registration,
    /// The slabs that the queue pair has used, ordered by address: finding one of them takes no lock.
    slabs: Vec<Arc<SlabMr>>,
    /// The device's cache, used in place of `slabs` if registrations are not permanent.
    cache: Option<SlabCache>,
}

/// A key and the registration that must be held while it is used.
pub(super) struct Local {
    pub(super) lkey: u32,
    pub(super) hold: Option<Arc<SlabMr>>,
}

impl Mr {
    /// Registers exactly `len` bytes starting at `start`.
    ///
    /// # Errors
    /// Returns an error if the system rejects the registration; if the limit of locked memory is the reason, the error
    /// says so and how to raise it.
    pub(super) fn register(pd: &Arc<Pd>, start: *const u8, len: usize, access: c_int) -> io::Result<Self> {
        // SAFETY: the kernel checks the range and pins its pages; the adapter can use them, with the access given, only
        // as long as this value exists, and its owners keep the memory until then.
        let ptr = unsafe { (pd.library.functions.ibv_reg_mr)(pd.as_ptr(), start.cast_mut().cast(), len, access) };
        match NonNull::new(ptr) {
            Some(ptr) => Ok(Self { pd: pd.clone(), ptr }),
            None => Err(last_error(&format!("registering {len} bytes with the adapter"))),
        }
    }

    pub(super) fn lkey(&self) -> u32 {
        // SAFETY: valid until drop.
        unsafe { self.ptr.as_ref().lkey }
    }

    pub(super) fn rkey(&self) -> u32 {
        // SAFETY: as above.
        unsafe { self.ptr.as_ref().rkey }
    }

    pub(super) fn as_ptr(&self) -> *mut ibv_mr {
        self.ptr.as_ptr()
    }
}

impl Drop for Mr {
    fn drop(&mut self) {
        // SAFETY: made by `register`; no one else has it.
        let failed = unsafe { (self.pd.library.functions.ibv_dereg_mr)(self.ptr.as_ptr()) };
        if failed != 0 {
            // A device that has been removed has released the memory. Otherwise the memory would still be accessible
            // after it has been reused.
            let error = io::Error::from_raw_os_error(failed.abs());
            let gone = matches!(error.raw_os_error(), Some(libc_eio) if libc_eio == rustix::io::Errno::IO.raw_os_error())
                || error.raw_os_error() == Some(rustix::io::Errno::NODEV.raw_os_error());
            assert!(gone, "the adapter does not release memory: {error}");
        }
    }
}

impl SlabMr {
    pub(super) fn register(pd: &Arc<Pd>, caps: &DeviceCaps, slab: Arc<Slab>) -> io::Result<Self> {
        let bind = if caps.windows { IBV_ACCESS_MW_BIND } else { 0 };
        let mr = Mr::register(pd, slab.base(), slab.len(), IBV_ACCESS_LOCAL_WRITE | bind)?;
        tracing::debug!(device = caps.name, bytes = slab.len(), "slab registered");
        Ok(Self { mr, slab })
    }

    pub(super) fn base(&self) -> usize {
        self.slab.base() as usize
    }

    pub(super) fn holds(&self, bytes: &[u8]) -> bool {
        self.slab.offset_of(bytes).is_some()
    }

    /// Returns whether the pool still holds the slab.
    pub(super) fn in_use(&self) -> bool {
        Arc::strong_count(&self.slab) > 1
    }
}

impl Window {
    pub(super) fn allocate(pd: &Arc<Pd>) -> io::Result<Self> {
        let alloc = pd.ops().alloc_mw.expect("called only for devices that support windows");
        // SAFETY: a protection domain of the device that this function belongs to.
        let ptr = unsafe { alloc(pd.as_ptr(), IBV_MW_TYPE_2) };
        let ptr = NonNull::new(ptr).ok_or_else(|| last_error("allocating a memory window"))?;
        // SAFETY: just allocated.
        let rkey = unsafe { ptr.as_ref().rkey };
        Ok(Self { pd: pd.clone(), ptr, rkey })
    }

    /// Returns the key of the next binding. It differs each time, so that a stale key gives no access.
    fn next_key(&mut self) -> u32 {
        // The same computation as `ibv_inc_rkey`.
        self.rkey = (self.rkey & !0xff) | (self.rkey.wrapping_add(1) & 0xff);
        self.rkey
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        let dealloc = self.pd.ops().dealloc_mw.expect("it was allocated");
        // SAFETY: made by `allocate`; no one else has it.
        let failed = unsafe { dealloc(self.ptr.as_ptr()) };
        if failed != 0 {
            tracing::debug!(error = failed, "deallocating a memory window");
        }
    }
}

impl Exposure {
    /// Prepares the exposure of `bytes`. Returns it with the work request that a window requires.
    ///
    /// # Errors
    /// Returns an error if the bytes cannot be registered.
    pub(super) fn new(
        device: &Device,
        keys: &mut Keys,
        spare: &mut Vec<Window>,
        (bytes, access): (&[u8], Access),
    ) -> io::Result<(Self, Option<ibv_bind_mw>)> {
        let right = match access {
            Access::RemoteWrite => IBV_ACCESS_REMOTE_WRITE,
            Access::RemoteRead => IBV_ACCESS_REMOTE_READ,
        };
        let local = if right == IBV_ACCESS_REMOTE_WRITE { IBV_ACCESS_LOCAL_WRITE } else { 0 };
        if bytes.is_empty() {
            // A key that gives no access: without rights, and to one unused byte.
            return Ok((Self::Region(Mr::register(&device.pd, device.nothing.as_ptr(), 1, 0)?), None));
        }
        if !device.caps.windows || keys.registers_each() {
            return Ok((Self::Region(Mr::register(&device.pd, bytes.as_ptr(), bytes.len(), local | right)?), None));
        }
        let slab = if device.caps.windows_confine { keys.slab_of(device, bytes)? } else { None };
        let target = match slab {
            Some(slab) => BindTarget::Slab(slab),
            None => BindTarget::Mr(Mr::register(&device.pd, bytes.as_ptr(), bytes.len(), local | IBV_ACCESS_MW_BIND)?),
        };
        let mut window = match spare.pop() {
            Some(window) => window,
            None => Window::allocate(&device.pd)?,
        };
        let rkey = window.next_key();
        let (addr, length) = (bytes.as_ptr() as u64, bytes.len() as u64);
        let bind_info = ibv_mw_bind_info { mr: target.mr().as_ptr(), addr, length, mw_access_flags: right as u32 };
        let bind = ibv_bind_mw { mw: window.ptr.as_ptr(), rkey, bind_info };
        Ok((Self::Window(window, target), Some(bind)))
    }

    /// Returns the key that the peer uses.
    pub(super) fn rkey(&self) -> u32 {
        match self {
            Self::Window(window, _) => window.rkey,
            Self::Region(mr) => mr.rkey(),
        }
    }

    /// Records in the library's structure that a window has its new key, as the library's own functions do.
    pub(super) fn bound(&mut self) {
        if let Self::Window(window, _) = self {
            // SAFETY: no one else has this window; provider libraries read its key when it is bound again.
            unsafe { (*window.ptr.as_ptr()).rkey = window.rkey };
        }
    }
}

impl BindTarget {
    fn mr(&self) -> &Mr {
        match self {
            Self::Slab(slab) => &slab.mr,
            Self::Mr(mr) => mr,
        }
    }
}

impl Keys {
    pub(super) fn new(device: &Device, options: &RegistrationOptions) -> Self {
        let way = options.way.unwrap_or(Registration::Fast);
        let cache = (way == Registration::Cache).then(|| device.cache(options.cache));
        Self { way, slabs: Vec::new(), cache }
    }

    /// Returns whether every buffer is registered individually.
    pub(super) fn registers_each(&self) -> bool {
        self.way == Registration::PerIo
    }

    /// Returns the local key of `bytes`, if they belong to a pool.
    ///
    /// # Errors
    /// Returns an error if their slab is new and cannot be registered.
    pub(super) fn local(&mut self, device: &Device, bytes: &[u8]) -> io::Result<Option<Local>> {
        if let Some(cache) = &self.cache {
            let slab = cached(cache, device, bytes)?;
            return Ok(slab.map(|slab| Local { lkey: slab.mr.lkey(), hold: Some(slab) }));
        }
        // Permanent registrations need not be held.
        Ok(self.find(device, bytes)?.map(|index| Local { lkey: self.slabs[index].mr.lkey(), hold: None }))
    }

    fn slab_of(&mut self, device: &Device, bytes: &[u8]) -> io::Result<Option<Arc<SlabMr>>> {
        if let Some(cache) = &self.cache {
            return cached(cache, device, bytes);
        }
        Ok(self.find(device, bytes)?.map(|index| self.slabs[index].clone()))
    }

    fn find(&mut self, device: &Device, bytes: &[u8]) -> io::Result<Option<usize>> {
        let start = bytes.as_ptr() as usize;
        let after = self.slabs.partition_point(|slab| slab.base() <= start);
        if after > 0 && self.slabs[after - 1].holds(bytes) {
            return Ok(Some(after - 1));
        }
        let Some(slab) = device.slab_of(bytes)? else { return Ok(None) };
        self.slabs.insert(after, slab);
        Ok(Some(after))
    }
}

fn cached(cache: &SlabCache, device: &Device, bytes: &[u8]) -> io::Result<Option<Arc<SlabMr>>> {
    let Some((slab, _)) = Slab::of(bytes) else { return Ok(None) };
    let (id, len) = (slab.id(), slab.len() as u64);
    let mut cache = cache.lock();
    if let Some(known) = cache.get(&id) {
        return Ok(Some(known.clone()));
    }
    cache.forget(|_, registered| !registered.in_use());
    let registered = Arc::new(SlabMr::register(&device.pd, &device.caps, slab)?);
    cache.insert(id, len, registered.clone());
    Ok(Some(registered))
}
