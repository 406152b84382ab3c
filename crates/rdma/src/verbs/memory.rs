//! Memory that the adapter may touch: for us alone (local keys), or for the peer too (regions).
//!
//! Two questions are answered here. *By which key does the adapter reach these bytes of ours?* Bytes of a pool by their
//! slab's registration, which is made once for each device; other bytes are copied if they are few, else registered for this
//! one request. *How are exactly these bytes exposed to the peer?* On a device with type-2 memory windows by a window,
//! which is bound to the queue pair and to the bytes by a work request, and invalidated by another or by the peer's Send with
//! Invalidate. On any other by a registration of just these bytes, with just the right needed, undone afterwards.
//!
//! So it is with [`Registration::Fast`] and, there being nothing more to prepare, with [`Registration::Pool`]. With
//! [`Registration::Cache`] the queue pairs on a device keep the registrations of slabs within bounds. With [`Registration::PerIo`]
//! regions, and what RDMA Reads and Writes move on our side, are registered for themselves, each time.
//!
//! A registration outlives what was posted with it, and memory goes home only when the adapter cannot reach it: whoever
//! drops an [`Mr`] or a [`Window`] knows that.

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

/// A memory region, deregistered on drop.
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
    // In this order: the slab may be unmapped when its registration is gone.
    mr: Mr,
    slab: Arc<Slab>,
}

/// Registrations of slabs, by [`Slab::id`].
pub(super) type SlabCache = Arc<Mutex<Cache<u64, SlabMr>>>;

/// A type-2 memory window, deallocated on drop, whatever it is bound to.
#[derive(Debug)]
pub(super) struct Window {
    pd: Arc<Pd>,
    ptr: NonNull<ibv_mw>,
    rkey: u32,
}

// SAFETY: as for `Mr`.
unsafe impl Send for Window {}

// SAFETY: addresses of a window and of the registration beneath it, which are followed only while the queue pair that owns
// both posts the request.
unsafe impl Send for ibv_bind_mw {}

/// What makes a region reachable for the peer.
#[derive(Debug)]
pub(super) enum Exposure {
    /// A window, and what it is bound to, which must outlast the binding.
    Window(Window, #[expect(dead_code, reason = "held for its drop")] Onto),
    /// A registration with the peer's right in it.
    Region(Mr),
}

/// What a window is bound to.
#[derive(Debug)]
pub(super) enum Onto {
    Slab(Arc<SlabMr>),
    Mr(Mr),
}

/// By which keys one queue pair reaches memory of ours.
pub(super) struct Keys {
    way: Registration,
    /// The slabs that it has met, in the order of their addresses: no lock is taken for what is known.
    slabs: Vec<Arc<SlabMr>>,
    /// The device's, in place of them if they are not kept for good.
    cache: Option<SlabCache>,
}

/// A key, and what must be kept as long as it is used.
pub(super) struct Local {
    pub(super) lkey: u32,
    pub(super) hold: Option<Arc<SlabMr>>,
}

impl Mr {
    /// Registers exactly `len` bytes from `start`.
    ///
    /// # Errors
    /// The system refuses; where that is the limit of locked memory, the error says so and what to do.
    pub(super) fn register(pd: &Arc<Pd>, start: *const u8, len: usize, access: c_int) -> io::Result<Self> {
        // SAFETY: the kernel checks the range and pins its pages; they stay the adapter's to use, by the access given,
        // only as long as this value exists, and its owners keep the memory until then.
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
        // SAFETY: made by `register`; nobody else has it.
        let failed = unsafe { (self.pd.library.functions.ibv_dereg_mr)(self.ptr.as_ptr()) };
        if failed != 0 {
            // A device that is gone has let go of the memory by itself. Otherwise it would still be reachable, by whom it
            // must not be.
            let error = io::Error::from_raw_os_error(failed.abs());
            let gone = matches!(error.raw_os_error(), Some(libc_eio) if libc_eio == rustix::io::Errno::IO.raw_os_error())
                || error.raw_os_error() == Some(rustix::io::Errno::NODEV.raw_os_error());
            assert!(gone, "the adapter does not give up memory: {error}");
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

    /// Whether the pool still has it.
    pub(super) fn in_use(&self) -> bool {
        Arc::strong_count(&self.slab) > 1
    }
}

impl Window {
    pub(super) fn allocate(pd: &Arc<Pd>) -> io::Result<Self> {
        let alloc = pd.ops().alloc_mw.expect("only devices that have windows are asked");
        // SAFETY: a protection domain of the device whose call this is.
        let ptr = unsafe { alloc(pd.as_ptr(), IBV_MW_TYPE_2) };
        let ptr = NonNull::new(ptr).ok_or_else(|| last_error("allocating a memory window"))?;
        // SAFETY: allocated just now.
        let rkey = unsafe { ptr.as_ref().rkey };
        Ok(Self { pd: pd.clone(), ptr, rkey })
    }

    /// The key that it has after the next binding: another one each time, so that a stale key opens nothing.
    fn next_key(&mut self) -> u32 {
        // As `ibv_inc_rkey`.
        self.rkey = (self.rkey & !0xff) | (self.rkey.wrapping_add(1) & 0xff);
        self.rkey
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        let dealloc = self.pd.ops().dealloc_mw.expect("it was allocated");
        // SAFETY: made by `allocate`; nobody else has it.
        let failed = unsafe { dealloc(self.ptr.as_ptr()) };
        if failed != 0 {
            tracing::debug!(error = failed, "giving up a memory window");
        }
    }
}

impl Exposure {
    /// Prepares the exposure of `bytes`: their key, and the work request that a window still needs.
    ///
    /// # Errors
    /// It cannot be registered.
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
            // A key that opens nothing: no right, and to one byte of nobody's.
            return Ok((Self::Region(Mr::register(&device.pd, device.nothing.as_ptr(), 1, 0)?), None));
        }
        if !device.caps.windows || keys.each() {
            return Ok((Self::Region(Mr::register(&device.pd, bytes.as_ptr(), bytes.len(), local | right)?), None));
        }
        let slab = if device.caps.windows_confine { keys.slab_of(device, bytes)? } else { None };
        let onto = match slab {
            Some(slab) => Onto::Slab(slab),
            None => Onto::Mr(Mr::register(&device.pd, bytes.as_ptr(), bytes.len(), local | IBV_ACCESS_MW_BIND)?),
        };
        let mut window = match spare.pop() {
            Some(window) => window,
            None => Window::allocate(&device.pd)?,
        };
        let rkey = window.next_key();
        let (addr, length) = (bytes.as_ptr() as u64, bytes.len() as u64);
        let bind_info = ibv_mw_bind_info { mr: onto.mr().as_ptr(), addr, length, mw_access_flags: right as u32 };
        let bind = ibv_bind_mw { mw: window.ptr.as_ptr(), rkey, bind_info };
        Ok((Self::Window(window, onto), Some(bind)))
    }

    /// What the peer calls it.
    pub(super) fn rkey(&self) -> u32 {
        match self {
            Self::Window(window, _) => window.rkey,
            Self::Region(mr) => mr.rkey(),
        }
    }

    /// Records that a window has its new key, as the library's own calls do.
    pub(super) fn bound(&mut self) {
        if let Self::Window(window, _) = self {
            // SAFETY: nobody else has this window; providers read its key when it is bound again.
            unsafe { (*window.ptr.as_ptr()).rkey = window.rkey };
        }
    }
}

impl Onto {
    fn mr(&self) -> &Mr {
        match self {
            Onto::Slab(slab) => &slab.mr,
            Onto::Mr(mr) => mr,
        }
    }
}

impl Keys {
    pub(super) fn new(device: &Device, options: &RegistrationOptions) -> Self {
        let way = options.way.unwrap_or(Registration::Fast);
        let cache = (way == Registration::Cache).then(|| device.cache(options.cache));
        Self { way, slabs: Vec::new(), cache }
    }

    /// Whether everything that moves is registered for itself.
    pub(super) fn each(&self) -> bool {
        self.way == Registration::PerIo
    }

    /// The local key of `bytes`, if they are of a pool.
    ///
    /// # Errors
    /// Their slab is new and cannot be registered.
    pub(super) fn local(&mut self, device: &Device, bytes: &[u8]) -> io::Result<Option<Local>> {
        if let Some(cache) = &self.cache {
            let slab = cached(cache, device, bytes)?;
            return Ok(slab.map(|slab| Local { lkey: slab.mr.lkey(), hold: Some(slab) }));
        }
        // What is kept for good need not be held.
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
        let behind = self.slabs.partition_point(|slab| slab.base() <= start);
        if behind > 0 && self.slabs[behind - 1].holds(bytes) {
            return Ok(Some(behind - 1));
        }
        let Some(slab) = device.slab_of(bytes)? else { return Ok(None) };
        self.slabs.insert(behind, slab);
        Ok(Some(behind))
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
