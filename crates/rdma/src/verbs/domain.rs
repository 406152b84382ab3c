//! A device as the kernel's library has it: its capabilities ([`DeviceCaps`]) and its protection domain ([`Pd`]).

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

/// Capabilities of a device, as far as connections use them.
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
    /// Allocates a protection domain of an open device.
    ///
    /// # Errors
    /// The device gives no more.
    ///
    /// # Safety
    /// `context` is an open context, and stays open until the domain is dropped.
    pub(super) unsafe fn allocate(library: &'static Library, context: NonNull<ibv_context>) -> io::Result<Self> {
        // SAFETY: by the caller; the result is checked.
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
        // SAFETY: allocated by `allocate`; all that was made in it holds an `Arc` of it and is gone.
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
/// Receives in a shared queue. Each is replaced as its completion is read, so they are for what arrives meanwhile.
pub(super) const SHARED_DEPTH: usize = 256;
