//! A device as libibverbs represents it: its capabilities ([`DeviceCaps`]) and its protection domain ([`Pd`]).

#![expect(unsafe_code, reason = "calls of C")]

use std::{
    ffi::{CStr, c_int, c_uint},
    io,
    os::fd::{BorrowedFd, RawFd},
    ptr::NonNull,
};

use rustix::fs::OFlags;

use super::{
    ffi::*,
    library::{Library, check, last_error},
};

/// Capabilities of a device that connections use.
#[derive(Clone, Debug)]
pub(super) struct DeviceCaps {
    pub(super) name: String,
    /// The device is an iWARP adapter: the sink of an RDMA Read requires the remote write right, and the accepting side
    /// must wait for the first message.
    pub(super) iwarp: bool,
    /// The device supports type-2 memory windows: they are bound and invalidated by work requests, and belong to one
    /// queue pair.
    pub(super) windows: bool,
    /// A window gives access to its own bytes only, not to the whole registration that it is bound to.
    pub(super) windows_confine: bool,
    pub(super) send_invalidate: bool,
    pub(super) queue_max: u32,
    pub(super) cq_max: u32,
    pub(super) pieces_max: u32,
    /// The numbers of RDMA Reads that a queue pair can have outstanding, as initiator and as responder.
    pub(super) reads: (u16, u16),
    pub(super) region_max: usize,
    /// The number of receives that a shared queue can hold; 0 if there are no shared queues, or they cannot be used.
    pub(super) shared_receives: usize,
    pub(super) ports: u8,
    /// The flag of a completion whose message invalidated a region.
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

impl DeviceCaps {
    /// # Safety
    /// `context` is an open context.
    pub(super) unsafe fn query(library: &'static Library, context: NonNull<ibv_context>) -> io::Result<Self> {
        // SAFETY: all fields are numbers, for which zero is valid.
        let mut attr: ibv_device_attr = unsafe { std::mem::zeroed() };
        // SAFETY: an open context, and a structure of the library's layout.
        check(unsafe { (library.functions.ibv_query_device)(context.as_ptr(), &mut attr) }, "querying a device")?;
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
        // A peer that finds the shared queue empty waits on InfiniBand and RoCE, but on iWARP its connection ends.
        let shares = !iwarp && attr.max_srq > 0 && ops.post_srq_recv.is_some();
        // A completion queue must have room for all receives that one peer can use before the completions are read.
        let shared_max = attr.max_srq_wr.min(attr.max_cqe / 2).max(0) as usize;
        let reads = |max: c_int| u16::try_from(max.clamp(0, READS_MAX)).expect("in range");
        Ok(Self {
            name,
            iwarp,
            windows: type_2 && attr.max_mw > 0 && ops.alloc_mw.is_some() && ops.dealloc_mw.is_some(),
            // rxe of Linux checks accesses against the bounds of the registration instead (6.1, `check_rkey`).
            windows_confine: attr.vendor_id != RXE,
            send_invalidate: flags & IBV_DEVICE_MEM_MGT_EXTENSIONS != 0,
            queue_max: attr.max_qp_wr.max(1) as u32,
            cq_max: attr.max_cqe.max(1) as u32,
            pieces_max: attr.max_sge.max(1) as u32,
            reads: (reads(attr.max_qp_init_rd_atom), reads(attr.max_qp_rd_atom)),
            region_max: usize::try_from(attr.max_mr_size).unwrap_or(usize::MAX).min(u32::MAX as usize),
            shared_receives: if shares { shared_max.min(SHARED_DEPTH) } else { 0 },
            ports: attr.phys_port_cnt,
            // rxe of Linux reports the kernel's own bit, which libibverbs does not translate.
            invalidated_flag: IBV_WC_WITH_INV | if attr.vendor_id == RXE { IBV_WC_IP_CSUM_OK } else { 0 },
        })
    }
}

impl Pd {
    /// Allocates a protection domain of an open device.
    ///
    /// # Errors
    /// Returns an error if the device has no more protection domains.
    ///
    /// # Safety
    /// `context` is an open context, and stays open until the domain is dropped.
    pub(super) unsafe fn allocate(library: &'static Library, context: NonNull<ibv_context>) -> io::Result<Self> {
        // SAFETY: guaranteed by the caller; the result is checked.
        let ptr = unsafe { (library.functions.ibv_alloc_pd)(context.as_ptr()) };
        let ptr = NonNull::new(ptr).ok_or_else(|| last_error("allocating a protection domain"))?;
        Ok(Self { library, ptr, context })
    }

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

    /// Returns the descriptor on which asynchronous events arrive.
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
        // SAFETY: allocated by `allocate`; all objects that were created in it held an `Arc` of it and no longer exist.
        let dealloc = unsafe { (self.library.functions.ibv_dealloc_pd)(self.ptr.as_ptr()) };
        if let Err(error) = check(dealloc, "deallocating a protection domain") {
            tracing::debug!(%error);
        }
    }
}

/// Makes a descriptor nonblocking.
pub(super) fn unblock(fd: BorrowedFd<'_>) -> io::Result<()> {
    let flags = rustix::fs::fcntl_getfl(fd)?;
    Ok(rustix::fs::fcntl_setfl(fd, flags | OFlags::NONBLOCK)?)
}

/// The maximum of eight bits, without the value that requests the maximum of the device.
const READS_MAX: c_int = 254;
/// The vendor id that rxe reports.
const RXE: u32 = 0x00ff_ffff;
/// The depth of a shared receive queue. Each receive is replaced when its completion is read, so the queue only has to
/// cover the messages that arrive until then.
pub(super) const SHARED_DEPTH: usize = 256;
