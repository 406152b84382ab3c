//! A device as connections use it: what it can do, its protection domain, what is registered with it for good. What it has
//! to say by itself is in `faults`.
//!
//! One protection domain for each device and process: a slab is registered once however many connections there are.
//! A [`Device`] lives as long as a connection on it, or some [`Devices`](super::Devices) that keep it; an identifier of
//! either keeps librdmacm from closing the context beneath it.

#![expect(unsafe_code, reason = "calls of C")]

use std::{
    collections::BTreeMap,
    ffi::{CStr, c_int, c_uint},
    io,
    os::fd::{BorrowedFd, RawFd},
    ptr::NonNull,
    sync::{Arc, Weak},
};

use buf::{Buffer, Pool, Slab};
use parking_lot::{Mutex, RwLock};
use rustix::fs::OFlags;

use super::{
    faults::Faults,
    ffi::*,
    library::{Library, check, last_error},
    memory::{SlabCache, SlabMr},
    receives::{SHARED_DEPTH, SharedQueue},
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

/// What a device can do, as far as it matters.
#[derive(Clone, Debug)]
pub(super) struct DeviceCaps {
    pub(super) name: String,
    /// It speaks iWARP: an RDMA Read's sink needs the right of remote write, and the accepting side waits for the first message.
    pub(super) iwarp: bool,
    /// Type-2 memory windows: exposed and invalidated by work requests, bound to one queue pair.
    pub(super) windows: bool,
    /// A window opens no more of the registration beneath it than its own bytes.
    pub(super) windows_confine: bool,
    pub(super) send_invalidate: bool,
    pub(super) queue_max: u32,
    pub(super) cq_max: u32,
    pub(super) pieces_max: u32,
    /// RDMA Reads that a queue pair can have outstanding, as initiator and as responder.
    pub(super) reads: (u16, u16),
    pub(super) region_max: usize,
    /// Receives that a shared queue can hold; 0 if there is none, or none to be relied on.
    pub(super) shared_receives: usize,
    pub(super) ports: u8,
    /// How a completion says that the message invalidated a region.
    pub(super) invalidated_flag: c_uint,
}

/// A protection domain.
pub(super) struct Pd {
    pub(super) library: &'static Library,
    ptr: NonNull<ibv_pd>,
    context: NonNull<ibv_context>,
}

// SAFETY: libibverbs locks its objects; the pointers are valid until `Drop`.
unsafe impl Send for Pd {}
// SAFETY: as above.
unsafe impl Sync for Pd {}

impl Device {
    /// The device of a context, opened by librdmacm for an identifier that outlives the result.
    ///
    /// # Errors
    /// The device does not answer.
    ///
    /// # Safety
    /// `context` is a context of librdmacm, and an identifier bound to it exists until the last clone is dropped.
    pub(super) unsafe fn of(library: &'static Library, context: NonNull<ibv_context>) -> io::Result<Arc<Self>> {
        let mut devices = library.devices.lock();
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
        // SAFETY: as above; the result is checked.
        let ptr = unsafe { (library.functions.ibv_alloc_pd)(context.as_ptr()) };
        let ptr = NonNull::new(ptr).ok_or_else(|| last_error("allocating a protection domain"))?;
        let pd = Arc::new(Pd { library, ptr, context });
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
        let queried = unsafe { (self.pd.library.functions.ibv_query_port)(self.pd.context.as_ptr(), port, &mut attr) };
        // Every device carries this much.
        if queried == 0 && attr.max_msg_sz > 0 { attr.max_msg_sz as usize } else { 1 << 20 }
    }
}

impl DeviceCaps {
    /// # Safety
    /// `context` is an open context.
    pub(super) unsafe fn query(library: &'static Library, context: NonNull<ibv_context>) -> io::Result<Self> {
        // SAFETY: all fields are numbers.
        let mut attr: ibv_device_attr = unsafe { std::mem::zeroed() };
        // SAFETY: an open context, and a structure of the library's layout.
        check(unsafe { (library.functions.ibv_query_device)(context.as_ptr(), &mut attr) }, "asking a device")?;
        // SAFETY: an open context has a device, whose name is a C string within its array.
        let (iwarp, name) = unsafe {
            let device = (*context.as_ptr()).device;
            let name = CStr::from_ptr((&raw const (*device).name).cast()).to_string_lossy().into_owned();
            ((*device).transport_type == IBV_TRANSPORT_IWARP, name)
        };
        // SAFETY: an open context.
        let ops = unsafe { &(*context.as_ptr()).ops };
        let flags = attr.device_cap_flags;
        let type_2 = flags & (IBV_DEVICE_MEM_WINDOW_TYPE_2A | IBV_DEVICE_MEM_WINDOW_TYPE_2B) != 0;
        // An empty one lets peers wait, but on iWARP it ends their connections.
        let shares = !iwarp && attr.max_srq > 0 && ops.post_srq_recv.is_some();
        // A completion queue must have room for all that one peer can fill before its completions are read.
        let shared_max = attr.max_srq_wr.min(attr.max_cqe / 2).max(0) as usize;
        let reads = |max: c_int| u16::try_from(max.clamp(0, READS_MAX)).expect("in range");
        Ok(Self {
            name,
            iwarp,
            windows: type_2 && attr.max_mw > 0 && ops.alloc_mw.is_some() && ops.dealloc_mw.is_some(),
            // Linux's rxe compares with the bounds of the registration instead (6.1, `check_rkey`).
            windows_confine: attr.vendor_id != RXE,
            send_invalidate: flags & IBV_DEVICE_MEM_MGT_EXTENSIONS != 0,
            queue_max: attr.max_qp_wr.max(1) as u32,
            cq_max: attr.max_cqe.max(1) as u32,
            pieces_max: attr.max_sge.max(1) as u32,
            reads: (reads(attr.max_qp_init_rd_atom), reads(attr.max_qp_rd_atom)),
            region_max: usize::try_from(attr.max_mr_size).unwrap_or(usize::MAX).min(u32::MAX as usize),
            shared_receives: if shares { shared_max.min(SHARED_DEPTH) } else { 0 },
            ports: attr.phys_port_cnt,
            // Linux's rxe shows the kernel's own bit for it, which libibverbs does not translate.
            invalidated_flag: IBV_WC_WITH_INV | if attr.vendor_id == RXE { IBV_WC_IP_CSUM_OK } else { 0 },
        })
    }
}

impl Pd {
    pub(super) fn as_ptr(&self) -> *mut ibv_pd {
        self.ptr.as_ptr()
    }

    pub(super) fn context(&self) -> NonNull<ibv_context> {
        self.context
    }

    pub(super) fn ops(&self) -> &ibv_context_ops {
        // SAFETY: the context is open, and its table does not change.
        unsafe { &(*self.context.as_ptr()).ops }
    }

    /// The descriptor by which asynchronous events come.
    pub(super) fn async_fd(&self) -> RawFd {
        // SAFETY: the context is open.
        unsafe { (*self.context.as_ptr()).async_fd }
    }
}

impl std::fmt::Debug for Pd {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pd").finish_non_exhaustive()
    }
}

impl Drop for Pd {
    fn drop(&mut self) {
        // SAFETY: allocated by `open`; all that was made in it holds an `Arc` of it and is gone.
        let dealloc = unsafe { (self.library.functions.ibv_dealloc_pd)(self.ptr.as_ptr()) };
        if let Err(error) = check(dealloc, "giving up a protection domain") {
            tracing::debug!(%error);
        }
    }
}

/// Makes calls that read from a descriptor return instead of waiting.
pub(super) fn unblock(fd: BorrowedFd<'_>) -> io::Result<()> {
    let flags = rustix::fs::fcntl_getfl(fd)?;
    Ok(rustix::fs::fcntl_setfl(fd, flags | OFlags::NONBLOCK)?)
}

/// What eight bits can say, less the value that asks for the most there is.
const READS_MAX: c_int = 254;
/// The vendor that rxe says it is of.
const RXE: u32 = 0x00ff_ffff;
