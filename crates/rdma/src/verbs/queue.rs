//! The adapter's queues of one connection: the queue pair, its completion queue, and its completion channel.
//!
//! The module contains no policy. It builds chains of work requests, rings the doorbell once per chain, and reads
//! completions and notifications. Posted requests refer to memory by address and key. The caller keeps that memory and
//! its registrations until the completion has been read or [`Queues`] has been dropped. The adapter does not access the
//! memory after that.

#![expect(unsafe_code, reason = "calls of C")]

use std::{
    ffi::{c_int, c_uint},
    io,
    ptr::{NonNull, null_mut},
    sync::Arc,
    task::{Context, Poll, Waker},
};

use smallvec::SmallVec;
use tokio::io::unix::AsyncFd;

use super::{
    cm::{CmId, Descriptor},
    device::Device,
    faults::Fault,
    ffi::*,
    library::{check, last_error},
    receives::SharedQueue,
};
use crate::{QpError, ReceiveSource};

/// The queues of a connection. They are destroyed together with the connection's identifier, which they own.
pub(super) struct Queues {
    ready: Option<AsyncFd<Descriptor>>,
    qp: NonNull<ibv_qp>,
    cq: NonNull<ibv_cq>,
    channel: NonNull<ibv_comp_channel>,
    pub(super) limits: Limits,
    /// The number of notifications that were read and are not yet acknowledged.
    unacknowledged: c_uint,
    chain: Chain,
    /// The source of the queue pair's receives, if it has none of its own.
    shared: Option<Arc<SharedQueue>>,
    pub(super) device: Arc<Device>,
    // Dropped last: the identifier keeps the device open.
    pub(super) id: CmId,
}

// SAFETY: libibverbs locks its objects, and the pointers in the chain are dereferenced only while it is posted.
unsafe impl Send for Queues {}

/// Capacities of the queues.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    pub(super) sends: usize,
    pub(super) recvs: usize,
    pub(super) pieces: usize,
    /// The maximum number of bytes that a work request can contain inline, without a key.
    pub(super) inline: usize,
    /// The maximum number of bytes of one message.
    pub(super) message: usize,
}

/// Work requests that are posted together.
#[derive(Default)]
struct Chain {
    sends: Vec<ibv_send_wr>,
    pieces: Vec<ibv_sge>,
}

/// A list of the pieces of one work request.
pub(super) type Pieces = SmallVec<[ibv_sge; 4]>;

/// The operation of a work request.
pub(super) enum Operation {
    Send { invalidate: Option<u32>, solicited: bool, inline: bool },
    Write { rkey: u32, remote: u64 },
    Read { rkey: u32, remote: u64 },
    Bind(ibv_bind_mw),
    Invalidate { rkey: u32 },
}

impl Queues {
    /// Creates the queues of a connection that is about to be established, in the current runtime.
    ///
    /// # Errors
    /// Returns an error if the device rejects the request.
    pub(super) fn create(id: CmId, sends: usize, recvs: usize, source: Option<&ReceiveSource>) -> io::Result<Self> {
        let device = id.device()?;
        let caps = &device.caps;
        let shared = source.map(|source| device.shared_queue(source)).transpose()?;
        let recvs = shared.as_ref().map_or(recvs, |shared| shared.depth());
        let at_most = |wanted: usize, max: u32| wanted.clamp(1, max as usize);
        let (mut sends, mut recvs) = (at_most(sends, caps.queue_max), at_most(recvs, caps.queue_max));
        if sends + recvs > caps.cq_max as usize {
            (sends, recvs) = (sends.min(caps.cq_max as usize / 2).max(1), recvs.min(caps.cq_max as usize / 2).max(1));
        }
        let message = device.message_max(id.port());
        let pieces = at_most(PIECES, caps.pieces_max);
        let limits = Limits { sends, recvs, pieces, inline: 0, message };
        let functions = &id.library().functions;
        let context = device.pd.context().as_ptr();
        // SAFETY: an open context; the result is checked.
        let channel = unsafe { (functions.ibv_create_comp_channel)(context) };
        let channel = NonNull::new(channel).ok_or_else(|| last_error("creating a completion channel"))?;
        let entries = c_int::try_from(sends + recvs).unwrap_or(c_int::MAX);
        // SAFETY: as above; the channel was just created.
        let cq = unsafe { (functions.ibv_create_cq)(context, entries, null_mut(), channel.as_ptr(), 0) };
        let Some(cq) = NonNull::new(cq) else {
            let error = last_error("creating a completion queue");
            // SAFETY: nothing uses the channel.
            unsafe { (functions.ibv_destroy_comp_channel)(channel.as_ptr()) };
            return Err(error);
        };
        let srq = shared.as_ref().map_or(null_mut(), |shared| shared.as_ptr());
        let mut queues = match create_qp(&id, &device, cq, srq, limits) {
            Ok((qp, limits)) => {
                let chain = Chain::default();
                Self { ready: None, qp, cq, channel, limits, unacknowledged: 0, chain, shared, device, id }
            }
            Err(error) => {
                // SAFETY: nothing uses the completion queue, and after it the channel.
                unsafe {
                    (functions.ibv_destroy_cq)(cq.as_ptr());
                    (functions.ibv_destroy_comp_channel)(channel.as_ptr());
                }
                return Err(error);
            }
        };
        queues.device.faults.add(queues.qp, queues.cq, srq);
        queues.watch()?;
        tracing::debug!(device = queues.device.caps.name, limits = ?queues.limits, "queue pair created");
        Ok(queues)
    }

    /// Registers the completion channel with the current runtime.
    fn watch(&mut self) -> io::Result<()> {
        // SAFETY: valid as long as `self`.
        let fd = unsafe { self.channel.as_ref().fd };
        // SAFETY: open as long as the channel.
        super::domain::unblock(unsafe { std::os::fd::BorrowedFd::borrow_raw(fd) })?;
        // SAFETY: `ready` is dropped before the channel.
        self.ready = Some(unsafe { Descriptor::new(fd).register()? });
        Ok(())
    }

    /// Adds a work request to the chain. A signalled request produces a completion, which also covers all requests
    /// before it.
    pub(super) fn push(&mut self, wr_id: u64, signalled: bool, operation: &Operation, pieces: &[ibv_sge]) {
        // SAFETY: plain numbers and null pointers.
        let mut wr: ibv_send_wr = unsafe { std::mem::zeroed() };
        wr.wr_id = wr_id;
        wr.num_sge = pieces.len() as c_int;
        wr.send_flags = if signalled { IBV_SEND_SIGNALED } else { 0 };
        match *operation {
            Operation::Send { invalidate, solicited, inline } => {
                wr.opcode = if invalidate.is_some() { IBV_WR_SEND_WITH_INV } else { IBV_WR_SEND };
                wr.invalidate_rkey = invalidate.unwrap_or(0);
                // libsiw reads the key from this field.
                wr.rkey = wr.invalidate_rkey;
                wr.send_flags |= if solicited { IBV_SEND_SOLICITED } else { 0 };
                wr.send_flags |= if inline { IBV_SEND_INLINE } else { 0 };
            }
            Operation::Write { rkey, remote } | Operation::Read { rkey, remote } => {
                let write = matches!(operation, Operation::Write { .. });
                wr.opcode = if write { IBV_WR_RDMA_WRITE } else { IBV_WR_RDMA_READ };
                (wr.rkey, wr.remote_addr) = (rkey, remote);
            }
            Operation::Bind(bind) => {
                wr.opcode = IBV_WR_BIND_MW;
                wr.bind_mw = bind;
            }
            Operation::Invalidate { rkey } => {
                wr.opcode = IBV_WR_LOCAL_INV;
                wr.invalidate_rkey = rkey;
            }
        }
        self.chain.sends.push(wr);
        self.chain.pieces.extend_from_slice(pieces);
    }

    /// Posts the chain. Its last request is always signalled.
    ///
    /// # Errors
    /// Returns an error if the queue pair can no longer be used.
    pub(super) fn post(&mut self) -> io::Result<()> {
        let Chain { sends, pieces } = &mut self.chain;
        let Some(last) = sends.last_mut() else { return Ok(()) };
        last.send_flags |= IBV_SEND_SIGNALED;
        // The lists no longer move, so they can be linked.
        let mut at = pieces.as_mut_ptr();
        let mut next = null_mut();
        for wr in sends.iter_mut() {
            wr.sg_list = at;
            // SAFETY: the pieces of all requests are contiguous.
            at = unsafe { at.add(wr.num_sge as usize) };
        }
        for wr in sends.iter_mut().rev() {
            wr.next = next;
            next = wr;
        }
        let post = self.device.pd.ops().post_send.expect("every provider has it");
        let mut bad = null_mut();
        // SAFETY: a linked list of work requests in the library's layout, which is only read during the call.
        let posted = unsafe { post(self.qp.as_ptr(), next, &mut bad) };
        sends.clear();
        pieces.clear();
        check(posted, "posting to the send queue")
    }

    /// Posts a receive of the queue pair.
    ///
    /// # Errors
    /// Returns an error if the queue pair can no longer be used.
    pub(super) fn post_recv(&mut self, wr_id: u64, piece: &mut ibv_sge) -> io::Result<()> {
        let post = self.device.pd.ops().post_recv.expect("every provider has it");
        let mut wr = ibv_recv_wr { wr_id, next: null_mut(), sg_list: piece, num_sge: 1 };
        let mut bad = null_mut();
        // SAFETY: a work request in the library's layout, which is only read during the call.
        check(unsafe { post(self.qp.as_ptr(), &mut wr, &mut bad) }, "posting to the receive queue")
    }

    /// Returns the shared queue that the receives come from.
    pub(super) fn shared(&self) -> &SharedQueue {
        self.shared.as_ref().expect("created with a source")
    }

    /// : Returns whether the receives come from a shared queue.
    pub(super) fn shares(&self) -> bool {
        self.shared.is_some()
    }

    /// Sets the time after which a peer that found the shared queue empty retries: soon, instead of the 655 ms that
    /// Linux's connection manager sets.
    ///
    /// # Errors
    /// Returns an error if the device rejects the value.
    pub(super) fn retry_soon(&self) -> io::Result<()> {
        let mut attr = ibv_qp_attr { _before: [0; 128], min_rnr_timer: RETRY_SOON, _behind: [0; 15] };
        let functions = &self.device.pd.library.functions;
        // SAFETY: a connected queue pair, and a structure of the library's layout, of which only one field is read.
        let set = unsafe { (functions.ibv_modify_qp)(self.qp.as_ptr(), &mut attr, IBV_QP_MIN_RNR_TIMER) };
        check(set, "setting the retry time of the peer")
    }

    /// Returns whether the queue pair, after it has failed, no longer holds any receive of the shared queue.
    pub(super) fn is_drained(&self, waker: Option<&Waker>) -> bool {
        self.device.faults.is_drained(self.qp, waker)
    }

    /// Reads completions into `into` and returns their number.
    ///
    /// # Errors
    /// Returns an error if the completion queue has failed.
    pub(super) fn poll(&mut self, into: &mut [ibv_wc]) -> io::Result<usize> {
        let poll = self.device.pd.ops().poll_cq.expect("every provider has it");
        // SAFETY: `into` has room for as many as are requested.
        let got = unsafe { poll(self.cq.as_ptr(), into.len() as c_int, into.as_mut_ptr()) };
        usize::try_from(got).map_err(|_| io::Error::other("the completion queue cannot be polled"))
    }

    /// Requests a notification of the next completion. Completions that arrived before this call are not reported, so
    /// the queue must be polled once more after it.
    ///
    /// # Errors
    /// Returns an error if the device has been removed.
    pub(super) fn request_notification(&mut self) -> io::Result<()> {
        let notify = self.device.pd.ops().req_notify_cq.expect("every provider has it");
        // SAFETY: a valid completion queue.
        check(unsafe { notify(self.cq.as_ptr(), 0) }, "requesting a completion notification")
    }

    /// Returns ready when a notification that was requested has arrived.
    pub(super) fn poll_notification(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            let mut ready = match self.ready.as_ref().expect("registered since it was created").poll_read_ready(cx) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(ready) => ready?,
            };
            let (mut cq, mut tag) = (null_mut(), null_mut());
            let functions = &self.device.pd.library.functions;
            // SAFETY: a valid channel, which is nonblocking.
            if unsafe { (functions.ibv_get_cq_event)(self.channel.as_ptr(), &mut cq, &mut tag) } != 0 {
                let error = last_error("reading a completion notification");
                if error.kind() != io::ErrorKind::WouldBlock {
                    return Poll::Ready(Err(error));
                }
                ready.clear_ready();
                continue;
            }
            self.unacknowledged += 1;
            if self.unacknowledged >= ACKNOWLEDGE_AT {
                self.acknowledge();
            }
            return Poll::Ready(Ok(()));
        }
    }

    /// Takes the fault that the device has reported for the queue pair until now.
    pub(super) fn take_fault(&self) -> Option<Fault> {
        self.device.faults.take(self.qp, None)
    }

    /// Returns ready with the fault that the device reports for the queue pair.
    pub(super) fn poll_fault(&self, cx: &Context<'_>) -> Poll<Fault> {
        self.device.faults.take(self.qp, Some(cx.waker())).map_or(Poll::Pending, Poll::Ready)
    }

    fn acknowledge(&mut self) {
        // SAFETY: as many notifications as were read from the channel, which belongs to this completion queue only.
        unsafe { (self.device.pd.library.functions.ibv_ack_cq_events)(self.cq.as_ptr(), self.unacknowledged) };
        self.unacknowledged = 0;
    }
}

impl Drop for Queues {
    fn drop(&mut self) {
        self.ready = None;
        if self.unacknowledged > 0 {
            self.acknowledge();
        }
        let functions = &self.id.library().functions;
        // SAFETY: all of them were created by `create` and are used by no one else; this is the order that the library
        // requires. After the queue pair is destroyed, the adapter no longer uses memory for it.
        unsafe {
            (functions.rdma_destroy_qp)(self.id.as_ptr());
            (functions.ibv_destroy_cq)(self.cq.as_ptr());
            (functions.ibv_destroy_comp_channel)(self.channel.as_ptr());
        }
        self.device.faults.remove(self.qp);
    }
}

/// Creates a queue pair for the identifier, with as much inline data as the device grants.
fn create_qp(
    id: &CmId,
    device: &Device,
    cq: NonNull<ibv_cq>,
    srq: *mut ibv_srq,
    limits: Limits,
) -> io::Result<(NonNull<ibv_qp>, Limits)> {
    let mut error = None;
    for inline in INLINE_TRIES {
        let cap = ibv_qp_cap {
            max_send_wr: limits.sends as u32,
            max_recv_wr: limits.recvs as u32,
            max_send_sge: limits.pieces as u32,
            max_recv_sge: 1,
            max_inline_data: inline,
        };
        let qp_context = null_mut();
        let (send_cq, recv_cq) = (cq.as_ptr(), cq.as_ptr());
        let mut attr = ibv_qp_init_attr { qp_context, send_cq, recv_cq, srq, cap, qp_type: IBV_QPT_RC, sq_sig_all: 0 };
        let functions = &id.library().functions;
        // SAFETY: an identifier with a device, and a domain and a completion queue of the same device.
        let created = unsafe { (functions.rdma_create_qp)(id.as_ptr(), device.pd.as_ptr(), &mut attr) };
        match check(created, "creating a queue pair") {
            Ok(()) => {
                // SAFETY: the call succeeded.
                let qp = NonNull::new(unsafe { (*id.as_ptr()).qp }).expect("created");
                // Some provider libraries do not report the value that they granted, which is then the value requested.
                let inline = attr.cap.max_inline_data.min(inline) as usize;
                return Ok((qp, Limits { inline, ..limits }));
            }
            Err(refused) => error = Some(refused),
        }
    }
    Err(error.expect("tried at least once"))
}

/// Returns the reason for the end of a connection, if the status of its first failed work request indicates one.
pub(super) fn meaning(status: c_uint, receive: bool, text: String) -> Option<QpError> {
    match status {
        IBV_WC_WR_FLUSH_ERR => None,
        IBV_WC_REM_INV_REQ_ERR | IBV_WC_REM_ACCESS_ERR | IBV_WC_REM_OP_ERR if !receive => {
            Some(QpError::Terminated(text))
        }
        IBV_WC_RNR_RETRY_EXC_ERR => Some(QpError::Terminated("the peer has no receive for a Send".into())),
        IBV_WC_RETRY_EXC_ERR => Some(QpError::Io(io::ErrorKind::TimedOut)),
        _ if receive => Some(QpError::Protocol(text)),
        _ => {
            tracing::error!(status = text, "the adapter rejected a work request");
            Some(QpError::Io(io::ErrorKind::Other))
        }
    }
}

/// The maximum number of pieces of one message; more are copied into one buffer, or sent as further RDMA Writes.
const PIECES: usize = 8;
/// The amounts of inline data that are requested in turn until the device grants one.
const INLINE_TRIES: [u32; 3] = [256, 64, 0];
/// 0.64 ms in the encoding of InfiniBand.
const RETRY_SOON: u8 = 12;
const ACKNOWLEDGE_AT: c_uint = 64;
