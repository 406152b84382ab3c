//! The receives that a peer's Sends fill: those of the queue pair itself, or those of a queue that several queue pairs
//! share.
//!
//! A shared receive queue serves all queue pairs on one device that take their receives from one [`ReceiveSource`]. It
//! holds a fixed number of receives, regardless of the queue pair that uses them. A buffer that a Send has filled is
//! charged to its queue pair, and is replaced when the completion is read. While the source has no free buffer, it is
//! not replaced, and peers get "receiver not ready": they retry after the time that the queue pair has set, until a
//! buffer is released. For this reason iWARP does not use shared receive queues: there, a Send that finds no receive
//! ends its connection, so one peer could end the connections of others.
//!
//! A queue pair that ends may have begun to fill a receive. The receive is released when the queue pair is in the error
//! state, so the queue pair remains in this state until the adapter reports that it was the last
//! (`IBV_EVENT_QP_LAST_WQE_REACHED`). If it were destroyed earlier, each connection that ends during a Send would leave
//! the others with one receive less.

#![expect(unsafe_code, reason = "calls of C")]

use std::{
    collections::VecDeque,
    io,
    ptr::{NonNull, null_mut},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    task::{Context, Poll},
};

use buf::Buffer;
use parking_lot::Mutex;

use super::{
    device::Device,
    domain::Pd,
    ffi::*,
    library::{check, last_error},
    memory::Keys,
    prepare::{Holds, sink},
    queue::Queues,
};
use crate::{
    Completion, CompletionKind, QpOptions, ReceiveAccount, ReceiveSource, Status, WorkId,
    registration::RegistrationOptions,
};

/// The receives of one queue pair.
pub(super) enum Receives {
    /// Receives that its owner posted: those waiting for room, and those posted to the adapter.
    Own { queued: VecDeque<(WorkId, Buffer)>, posted: VecDeque<(WorkId, Posted)> },
    /// Receives of [`Queues::shared`].
    Shared { id: WorkId, account: ReceiveAccount },
}

/// A buffer that is posted to the adapter, and the objects that give access to it.
pub(super) struct Posted {
    buffer: Buffer,
    _holds: Holds,
}

/// A shared receive queue.
pub(super) struct SharedQueue {
    srq: NonNull<ibv_srq>,
    pd: Arc<Pd>,
    source: ReceiveSource,
    /// The number of receives that the queue lacks.
    missing: AtomicUsize,
    slots: Mutex<Slots>,
}

// SAFETY: libibverbs locks its objects; the pointer is valid until `Drop`.
unsafe impl Send for SharedQueue {}
// SAFETY: as above.
unsafe impl Sync for SharedQueue {}

/// The buffers posted to a shared queue, by slot number.
struct Slots {
    posted: Vec<Option<Posted>>,
    free: Vec<usize>,
    keys: Keys,
}

impl Receives {
    pub(super) fn new(options: &QpOptions) -> Self {
        match &options.receive_source {
            None => Self::Own { queued: VecDeque::new(), posted: VecDeque::new() },
            Some((source, id)) => Self::Shared { id: *id, account: source.account() },
        }
    }

    /// Adds a receive of the queue pair; [`pump`](Self::pump) posts it.
    pub(super) fn push(&mut self, id: WorkId, buffer: Buffer) {
        match self {
            Self::Own { queued, .. } => queued.push_back((id, buffer)),
            Self::Shared { .. } => panic!("a queue pair with a receive source has no receives of its own"),
        }
    }

    /// Posts as many receives as there is room for.
    ///
    /// # Errors
    /// Returns an error if the adapter rejects a receive, or memory cannot be registered.
    pub(super) fn pump(&mut self, queues: &mut Queues, keys: &mut Keys) -> io::Result<()> {
        match self {
            Self::Own { queued, posted } => {
                while posted.len() < queues.limits.recvs
                    && let Some((id, buffer)) = queued.pop_front()
                {
                    let mut holds = Holds::new();
                    match sink(&queues.device, keys, &buffer, IBV_ACCESS_LOCAL_WRITE, false, &mut holds)
                        .and_then(|mut piece| queues.post_recv(RECEIVES, &mut piece))
                    {
                        Ok(()) => posted.push_back((id, Posted { buffer, _holds: holds })),
                        Err(error) => {
                            queued.push_front((id, buffer));
                            return Err(error);
                        }
                    }
                }
                Ok(())
            }
            Self::Shared { .. } => queues.shared().refill(&queues.device),
        }
    }

    /// Takes the buffer of a receive that has completed. Returns `None` if there is no such receive.
    pub(super) fn completed(&mut self, wr_id: u64, queues: &Queues) -> Option<(WorkId, Buffer)> {
        match self {
            Self::Own { posted, .. } => posted.pop_front().map(|(id, posted)| (id, posted.buffer)),
            Self::Shared { id, account } => {
                let mut buffer = queues.shared().take((wr_id - RECEIVES) as usize)?;
                account.charge(&mut buffer);
                Some((*id, buffer))
            }
        }
    }

    /// Returns ready when a shared queue that lacks receives can be refilled. Every queue pair that shares it waits on
    /// behalf of all: the next buffer released wakes one of them, which refills the queue.
    pub(super) fn poll_short(&mut self, queues: &Queues, cx: &mut Context<'_>) -> Poll<()> {
        match self {
            Self::Shared { account, .. } if queues.shared().missing.load(Relaxed) > 0 => account.poll_source_free(cx),
            Self::Shared { account, .. } => {
                account.cancel_wait();
                Poll::Pending
            }
            Self::Own { .. } => Poll::Pending,
        }
    }

    /// Returns all receives posted to a queue pair that no longer exists, as flushed. Those in a shared queue remain
    /// there.
    pub(super) fn flush(&mut self, completions: &mut Vec<Completion>) {
        let Self::Own { queued, posted } = self else { return };
        let posted = std::mem::take(posted).into_iter().map(|(id, posted)| (id, posted.buffer));
        for (id, buffer) in posted.chain(std::mem::take(queued)) {
            let kind = CompletionKind::Receive { buffer, invalidated: None, solicited: false };
            completions.push(Completion { id, status: Status::Flushed, kind });
        }
    }
}

impl SharedQueue {
    /// Creates a queue and fills it, as far as the source has buffers.
    ///
    /// # Errors
    /// Returns an error if the device rejects the request.
    pub(super) fn create(device: &Device, source: &ReceiveSource) -> io::Result<Self> {
        // Only a part of a small budget is spent on receives that may never be used.
        let depth = (source.options().budget / BUDGET_PART).clamp(1, device.caps.shared_receives);
        let attr = ibv_srq_attr { max_wr: depth as u32, max_sge: 1, srq_limit: 0 };
        let mut attr = ibv_srq_init_attr { srq_context: null_mut(), attr };
        // SAFETY: a protection domain, and a structure of the library's layout; the result is checked.
        let srq = unsafe { (device.pd.library.functions.ibv_create_srq)(device.pd.as_ptr(), &mut attr) };
        let srq = NonNull::new(srq).ok_or_else(|| last_error("creating a shared receive queue"))?;
        let keys = Keys::new(device, &RegistrationOptions::default());
        let slots = Slots { posted: (0..depth).map(|_| None).collect(), free: (0..depth).rev().collect(), keys };
        let (pd, source, missing) = (device.pd.clone(), source.clone(), AtomicUsize::new(depth));
        let queue = Self { srq, pd, source, missing, slots: Mutex::new(slots) };
        queue.refill(device)?;
        tracing::debug!(device = device.caps.name, depth, "shared receive queue created");
        Ok(queue)
    }

    pub(super) fn as_ptr(&self) -> *mut ibv_srq {
        self.srq.as_ptr()
    }

    pub(super) fn source(&self) -> &ReceiveSource {
        &self.source
    }

    /// Returns the maximum number of receives in the queue.
    pub(super) fn depth(&self) -> usize {
        self.slots.lock().posted.len()
    }

    /// Replaces the receives that were used, as far as the source has free buffers.
    fn refill(&self, device: &Device) -> io::Result<()> {
        if self.missing.load(Relaxed) == 0 {
            return Ok(());
        }
        let mut slots = self.slots.lock();
        let Slots { posted, free, keys } = &mut *slots;
        while let Some(&slot) = free.last()
            && let Some(buffer) = self.source.take()
        {
            let mut holds = Holds::new();
            let mut piece = sink(device, keys, &buffer, IBV_ACCESS_LOCAL_WRITE, false, &mut holds)?;
            self.post(RECEIVES + slot as u64, &mut piece)?;
            posted[slot] = Some(Posted { buffer, _holds: holds });
            free.pop();
        }
        self.missing.store(free.len(), Relaxed);
        Ok(())
    }

    fn post(&self, wr_id: u64, piece: &mut ibv_sge) -> io::Result<()> {
        let post = self.pd.ops().post_srq_recv.expect("called only for devices that support it");
        let mut wr = ibv_recv_wr { wr_id, next: null_mut(), sg_list: piece, num_sge: 1 };
        let mut bad = null_mut();
        // SAFETY: a work request in the library's layout, which is only read during the call.
        check(unsafe { post(self.as_ptr(), &mut wr, &mut bad) }, "posting to a shared receive queue")
    }

    fn take(&self, slot: usize) -> Option<Buffer> {
        let mut slots = self.slots.lock();
        let Posted { buffer, .. } = slots.posted.get_mut(slot)?.take()?;
        slots.free.push(slot);
        self.missing.store(slots.free.len(), Relaxed);
        Some(buffer)
    }
}

impl Drop for SharedQueue {
    fn drop(&mut self) {
        // SAFETY: created by `create`; every queue pair that used it held an `Arc` of it and has been destroyed.
        let failed = unsafe { (self.pd.library.functions.ibv_destroy_srq)(self.as_ptr()) };
        if let Err(error) = check(failed, "destroying a shared receive queue") {
            // The buffers are leaked, because the adapter could still write to them.
            tracing::error!(%error);
            std::mem::forget(std::mem::take(&mut self.slots.get_mut().posted));
        }
    }
}

/// Work requests of receives are numbered from here: in a shared queue by their slots. The queue pair's own receives
/// complete in the order in which they were posted, and require no number.
pub(super) const RECEIVES: u64 = 1 << 63;
/// The part of its source's budget that a shared queue may use, as the denominator of a fraction.
const BUDGET_PART: usize = 4;
