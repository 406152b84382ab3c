//! The queue pair: the requests posted, the order of completion, and the end of a connection.
//!
//! See [`crate::QueuePair`] for the contract, and `queue` for the interface to the adapter. Requests wait here until
//! the send queue has room for them, and each then becomes one or more work requests (`prepare`). Work requests are
//! numbered from 1. Because they complete in order, the completion of number *n* also covers all smaller numbers, so
//! only some of them are signalled.
//!
//! A posted request keeps its buffer, and the registration or copy that was made for it. At the end of the connection
//! the adapter is stopped first (windows are destroyed, then queues); only then are the buffers returned.

mod end;

use std::{
    collections::{HashMap, VecDeque},
    future::Future,
    io,
    net::SocketAddr,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use buf::Buffer;
use end::Phase;
use smallvec::SmallVec;
use tokio::time::{Instant, Sleep, sleep_until};

use super::{
    VerbsOptions,
    cm::Events,
    faults::Fault,
    ffi::*,
    memory::{Exposure, Keys, Window},
    prepare::{Holds, Plan, Request},
    queue::{Operation, Queues},
    receives::{RECEIVES, Receives},
};
use crate::{
    Completion, CompletionKind, Memory, PostError, QpCaps, QpError, QpOptions, QueuePair, Registered, Stag, Status,
    WorkId, WorkRequest,
};

/// A connection through an adapter.
pub(super) struct VerbsQp {
    // Dropped in this order: windows before the queue pair that they are bound to, posted requests after it.
    spare: Vec<Window>,
    regions: HashMap<Stag, Exposed>,
    queues: Option<Queues>,
    events: Option<Events>,
    keys: Keys,
    peer: SocketAddr,
    caps: QpCaps,
    phase: Phase,

    queued: VecDeque<Request>,
    /// The work requests of the first queued request that remain to be posted.
    begun: Option<Plan>,
    posted: VecDeque<Posted>,
    /// The number of the next work request.
    next: u64,
    /// All work requests with smaller numbers have completed.
    done: u64,
    /// The number of requests that have not been returned, and its maximum.
    outstanding: usize,
    outstanding_max: usize,
    regions_max: usize,

    recvs: Receives,

    /// Nothing is sent before the first message has arrived.
    hold: bool,
    /// The queue pair has failed, and holds no receive of a shared queue.
    drained: bool,
    /// A notification has been requested.
    armed: bool,
    /// The time of the last completion.
    active: Instant,
    spin: Duration,
    linger: Duration,
    alive: Alive,
}

/// The state of the probes of the peer.
struct Alive {
    /// The time without a completion after which a probe is sent; zero disables probes.
    after: Duration,
    timer: Option<Pin<Box<Sleep>>>,
    /// A probe has been sent and not been answered.
    probed: bool,
}

/// A request that has been posted to the adapter.
struct Posted {
    /// The number of the request's last work request, or of the last one before it if it requires none.
    last: u64,
    /// The request is complete only with a completion of its own.
    awaited: bool,
    request: Request,
    status: Status,
    _holds: Holds,
}

/// A region, and the object that exposes it until it is invalidated.
struct Exposed {
    exposure: Option<Exposure>,
    memory: Memory,
    /// The invalidation of the region has been posted.
    ending: bool,
}

impl VerbsQp {
    /// Creates a queue pair on queues that were just created, before the connection is established.
    pub(super) fn new(
        queues: Queues,
        events: Events,
        peer: SocketAddr,
        verbs: &VerbsOptions,
        options: &QpOptions,
    ) -> Self {
        let device = &queues.device;
        let caps = QpCaps {
            outbound_reads: 0,
            region_max: device.caps.region_max,
            send_invalidate: device.caps.send_invalidate,
            file_ranges: false,
        };
        Self {
            spare: Vec::new(),
            regions: HashMap::new(),
            keys: Keys::new(device, &options.registration),
            queues: Some(queues),
            events: Some(events),
            peer,
            caps,
            phase: Phase::Open,
            queued: VecDeque::new(),
            begun: None,
            posted: VecDeque::new(),
            next: 1,
            done: 1,
            outstanding: 0,
            outstanding_max: options.send_queue,
            regions_max: verbs.regions_max,
            recvs: Receives::new(options),
            hold: false,
            drained: false,
            armed: false,
            active: Instant::now(),
            spin: verbs.spin,
            linger: verbs.linger,
            alive: Alive { after: verbs.keepalive, timer: None, probed: false },
        }
    }

    /// Posts the first receives, so that they are present before the peer can send.
    ///
    /// # Errors
    /// Returns an error if the adapter rejects them.
    pub(super) fn post_first_recvs(&mut self, recvs: Vec<(WorkId, Buffer)>) -> io::Result<()> {
        recvs.into_iter().for_each(|(id, buffer)| self.recvs.push(id, buffer));
        self.pump_recvs()
    }

    /// Records that the connection has been established, with the maximum number of outstanding RDMA Reads.
    pub(super) fn established(&mut self, outbound_reads: u16, accepted: bool) {
        self.caps.outbound_reads = outbound_reads;
        // RFC 5044 §7.1.2: the responder sends nothing until the first FPDU has arrived.
        self.hold = accepted && self.queues().device.caps.iwarp;
    }

    pub(super) fn queues(&self) -> &Queues {
        self.queues.as_ref().expect("the connection is being established")
    }

    pub(super) fn events(&self) -> &Events {
        self.events.as_ref().expect("the connection is being established")
    }

    fn pump_recvs(&mut self) -> io::Result<()> {
        let Some(queues) = &mut self.queues else { return Ok(()) };
        self.recvs.pump(queues, &mut self.keys)
    }

    /// Posts as many queued requests as there is room for, and rings the doorbell once.
    fn pump_sends(&mut self) -> io::Result<()> {
        if self.hold || !matches!(self.phase, Phase::Open | Phase::Closing { disconnected: false, .. }) {
            return Ok(());
        }
        let mut bound = SmallVec::<[Stag; 8]>::new();
        while !self.queued.is_empty() {
            let (mut plan, status) = self.begin()?;
            let Some(queues) = &mut self.queues else { return Ok(()) };
            let room = queues.limits.sends - (self.next - self.done) as usize;
            let count = plan.wrs.len();
            let mut awaited = false;
            for (index, (operation, pieces)) in plan.wrs.drain(..count.min(room)).enumerate() {
                // The end of these operations is required; that of the others is known from later completions. (siw
                // also completes a Send before the RDMA Reads that were posted before it.)
                awaited = matches!(operation, Operation::Read { .. } | Operation::Invalidate { .. });
                queues.push(self.next, awaited && index + 1 == count, &operation, &pieces);
                self.next += 1;
            }
            if !plan.wrs.is_empty() {
                self.begun = Some(plan);
                break;
            }
            let request = self.queued.pop_front().expect("not empty");
            if let Request::Bind(stag, _) = request {
                bound.push(stag);
            }
            self.posted.push_back(Posted { last: self.next - 1, awaited, request, status, _holds: plan.holds });
        }
        let Some(queues) = &mut self.queues else { return Ok(()) };
        queues.post()?;
        for stag in bound {
            if let Some(exposure) = self.regions.get_mut(&stag).and_then(|region| region.exposure.as_mut()) {
                exposure.bound();
            }
        }
        Ok(())
    }

    /// Returns the work requests of the first queued request, and its status if they succeed.
    fn begin(&mut self) -> io::Result<(Plan, Status)> {
        if let Some(plan) = self.begun.take() {
            return Ok((plan, Status::Ok));
        }
        let (Some(queues), Some(request)) = (&self.queues, self.queued.front()) else {
            return Ok((Plan::default(), Status::Flushed));
        };
        match request {
            Request::Probe => Ok((Plan::probe(queues, &mut self.keys, self.caps.outbound_reads > 0)?, Status::Ok)),
            Request::Bind(_, bind) => Ok((Plan::single(Operation::Bind(*bind)), Status::Ok)),
            Request::User(WorkRequest::Invalidate { stag, .. }) => Ok(match self.regions.get_mut(stag) {
                Some(region) if !region.ending => {
                    region.ending = true;
                    let window = matches!(region.exposure, Some(Exposure::Window(..)));
                    if !window {
                        region.exposure = None; // deregistered immediately
                        return Ok((Plan::default(), Status::Ok));
                    }
                    (Plan::single(Operation::Invalidate { rkey: stag.0 }), Status::Ok)
                }
                _ => (Plan::default(), Status::LocalAccess),
            }),
            Request::User(WorkRequest::Read { .. }) if self.caps.outbound_reads == 0 => {
                Ok((Plan::default(), Status::LocalAccess))
            }
            Request::User(request) => Ok((Plan::transfer(request, queues, &mut self.keys)?, Status::Ok)),
        }
    }

    /// Processes completions, up to a limit that leaves time for other tasks.
    fn reap(&mut self, completions: &mut Vec<Completion>) -> io::Result<()> {
        let mut batch = [ibv_wc::default(); BATCH];
        for _ in 0..BATCHES {
            let Some(queues) = &mut self.queues else { return Ok(()) };
            let got = queues.poll(&mut batch)?;
            if got > 0 {
                self.active = Instant::now();
            }
            for wc in &batch[..got] {
                match wc.wr_id {
                    RECEIVES.. => self.received(wc, completions),
                    number => self.sent(number, wc, completions),
                }
            }
            if got < batch.len() {
                break;
            }
        }
        self.complete(completions);
        Ok(())
    }

    fn received(&mut self, wc: &ibv_wc, completions: &mut Vec<Completion>) {
        let Some(queues) = &self.queues else { return };
        let Some((id, mut buffer)) = self.recvs.completed(wc.wr_id, queues) else { return };
        if wc.status != IBV_WC_SUCCESS {
            if queues.shares() {
                // Messages arrive one at a time: the queue pair uses no other receive of the shared queue.
                self.drained = true;
                return self.failed(wc, true);
            }
            let kind = CompletionKind::Receive { buffer, invalidated: None, solicited: false };
            completions.push(Completion { id, status: Status::Flushed, kind });
            return self.failed(wc, true);
        }
        self.hold = false;
        buffer.set_len(wc.byte_len as usize);
        let stag = Stag(wc.invalidated_rkey);
        let flag = self.queues().device.caps.invalidated_flag;
        let invalidated = if wc.wc_flags & flag != 0 { self.take_region(stag) } else { None };
        let invalidated = invalidated.map(|memory| (stag, memory));
        // The adapter does not report whether the peer solicited an event.
        let kind = CompletionKind::Receive { buffer, invalidated, solicited: false };
        completions.push(Completion { id, status: Status::Ok, kind });
    }

    fn sent(&mut self, number: u64, wc: &ibv_wc, completions: &mut Vec<Completion>) {
        // Requests without work requests follow the request whose number they share.
        let at = self.posted.partition_point(|posted| posted.last < number);
        let posted = self.posted.get_mut(at);
        if wc.status == IBV_WC_SUCCESS {
            self.done = self.done.max(number + 1);
            if let Some(posted) = posted {
                posted.awaited &= posted.last != number;
            }
            return;
        }
        self.done = self.done.max(number);
        if let Some(posted) = posted {
            posted.status = match wc.status {
                IBV_WC_REM_ACCESS_ERR => Status::RemoteAccess,
                _ => Status::Flushed,
            };
        }
        self.complete(completions);
        self.failed(wc, false);
    }

    /// Returns completed requests in the order in which they were posted.
    fn complete(&mut self, completions: &mut Vec<Completion>) {
        while let Some(posted) = self.posted.front()
            && posted.last < self.done
            && !posted.awaited
        {
            let Posted { request, status, .. } = self.posted.pop_front().expect("just seen");
            self.return_request(request, status, completions);
        }
    }

    fn return_request(&mut self, request: Request, status: Status, completions: &mut Vec<Completion>) {
        let request = match request {
            Request::User(request) => request,
            Request::Bind(..) => return,
            Request::Probe => return self.alive.probed = false,
        };
        self.outstanding -= 1;
        let mut completion =
            request.flushed(|stag| if status == Status::LocalAccess { None } else { self.take_region(stag) });
        completion.status = status;
        completions.push(completion);
    }

    /// Removes a region that the peer can no longer access.
    fn take_region(&mut self, stag: Stag) -> Option<Memory> {
        let Exposed { exposure, memory, .. } = self.regions.remove(&stag)?;
        if let Some(Exposure::Window(window, _)) = exposure
            && self.spare.len() < SPARE_MAX
        {
            self.spare.push(window);
        }
        Some(memory)
    }

    /// Processes the events of the connection manager.
    fn poll_events(&mut self, cx: &mut Context<'_>) {
        while let Some(events) = &self.events
            && let Poll::Ready(event) = events.poll_next(cx)
        {
            let fault = || self.queues.as_ref().and_then(Queues::take_fault);
            match event {
                Err(error) => return self.fail(&error),
                Ok(event) => match event.kind {
                    RDMA_CM_EVENT_DISCONNECTED => {
                        // After a local disconnect, an error of the adapter about requests in progress has no meaning.
                        let fault = if matches!(self.phase, Phase::Closing { .. }) { None } else { fault() };
                        return self.end(fault.map_or(QpError::Disconnected, QpError::from));
                    }
                    RDMA_CM_EVENT_DEVICE_REMOVAL => {
                        tracing::warn!(peer = %self.peer, "the adapter is being removed");
                        return self.end(QpError::Io(io::ErrorKind::NetworkDown));
                    }
                    _ => {}
                },
            }
        }
    }

    /// Processes the faults that the device reports, and sends probes after a time without completions.
    fn poll_health(&mut self, cx: &mut Context<'_>) {
        let Some(queues) = &self.queues else { return };
        if let Poll::Ready(fault) = queues.poll_fault(cx) {
            // After a local disconnect, an error about requests in progress has no meaning.
            if matches!((&self.phase, fault), (Phase::Open, _) | (_, Fault::Device(_))) {
                return self.end(fault.into());
            }
        }
        if self.alive.after.is_zero() || self.hold || !matches!(self.phase, Phase::Open) {
            return;
        }
        let Alive { after, timer, probed } = &mut self.alive;
        let timer = timer.get_or_insert_with(|| Box::pin(sleep_until(self.active + *after)));
        while timer.as_mut().poll(cx).is_ready() {
            let silent = self.active.elapsed();
            if silent < *after {
                timer.as_mut().reset(self.active + *after);
            } else if *probed {
                return self.end(QpError::Io(io::ErrorKind::TimedOut));
            } else {
                *probed = true;
                self.queued.push_back(Request::Probe);
                timer.as_mut().reset(Instant::now() + *after);
                cx.waker().wake_by_ref();
            }
        }
    }

    /// Returns ready when a shared receive queue that lacks receives can be refilled.
    fn poll_short(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        match &self.queues {
            Some(queues) => self.recvs.poll_short(queues, cx),
            None => Poll::Pending,
        }
    }

    /// Returns `true` if the task can sleep until the adapter notifies it, and `false` if it must poll again.
    fn poll_idle(&mut self, cx: &mut Context<'_>) -> io::Result<bool> {
        if self.active.elapsed() < self.spin {
            return Ok(false);
        }
        let Some(queues) = &mut self.queues else { return Ok(true) };
        if !self.armed {
            // Completions before this request are not reported, so the queue is polled once more.
            queues.request_notification()?;
            self.armed = true;
            return Ok(false);
        }
        match queues.poll_notification(cx) {
            Poll::Pending => Ok(true),
            Poll::Ready(notified) => {
                self.armed = false;
                notified.map(|()| false)
            }
        }
    }
}

impl QueuePair for VerbsQp {
    fn caps(&self) -> &QpCaps {
        &self.caps
    }

    fn peer(&self) -> SocketAddr {
        self.peer
    }

    fn register(&mut self, memory: Memory) -> Result<Registered, Memory> {
        let Some(queues) = &self.queues else { return Err(memory) };
        let Ok(len) = u32::try_from(memory.len()) else { return Err(memory) };
        if self.regions.len() >= self.regions_max || memory.len() > self.caps.region_max {
            return Err(memory);
        }
        // Device memory would be registered through its DMA buffer.
        let Some(bytes) = memory.as_host() else { return Err(memory) };
        let offset = bytes.as_ptr() as u64;
        match Exposure::new(&queues.device, &mut self.keys, &mut self.spare, (bytes, memory.access())) {
            Ok((exposure, bind)) => {
                let stag = Stag(exposure.rkey());
                self.queued.extend(bind.map(|bind| Request::Bind(stag, bind)));
                self.regions.insert(stag, Exposed { exposure: Some(exposure), memory, ending: false });
                Ok(Registered { stag, offset, len })
            }
            Err(error) => {
                tracing::error!(peer = %self.peer, %error, "failed to expose memory");
                Err(memory)
            }
        }
    }

    fn post_recv(&mut self, id: WorkId, buffer: Buffer) {
        self.recvs.push(id, buffer);
        // Immediately: the peer's next Send may require this receive.
        if let Err(error) = self.pump_recvs() {
            self.fail(&error);
        }
    }

    fn post(&mut self, request: WorkRequest) -> Result<(), PostError> {
        if self.outstanding >= self.outstanding_max {
            return Err(PostError::QueueFull(request));
        }
        self.outstanding += 1;
        self.queued.push_back(Request::User(request));
        Ok(())
    }

    fn poll_completions(
        &mut self,
        cx: &mut Context<'_>,
        completions: &mut Vec<Completion>,
    ) -> Poll<Result<(), QpError>> {
        let before = completions.len();
        loop {
            let worked = self.pump_recvs().and_then(|()| self.pump_sends()).and_then(|()| self.reap(completions));
            if let Err(error) = worked {
                self.fail(&error);
            }
            self.poll_events(cx);
            self.poll_end(cx);
            if let Phase::Ended(error) = &self.phase {
                let error = error.clone();
                self.stop(completions);
                return Poll::Ready(if completions.len() > before { Ok(()) } else { Err(error) });
            }
            if completions.len() > before {
                return Poll::Ready(Ok(()));
            }
            match self.poll_idle(cx) {
                Ok(true) => {
                    self.poll_health(cx);
                    if !matches!(self.phase, Phase::Ended(_)) && self.poll_short(cx).is_pending() {
                        return Poll::Pending;
                    }
                }
                Ok(false) if !self.armed => {
                    cx.waker().wake_by_ref();
                    return Poll::Pending;
                }
                Ok(false) => {}
                Err(error) => self.fail(&error),
            }
        }
    }

    fn reclaim(&mut self, stag: Stag) -> Option<Memory> {
        if self.queues.is_some() {
            return None;
        }
        self.regions.remove(&stag).map(|region| region.memory)
    }

    fn disconnect(&mut self) {
        if matches!(self.phase, Phase::Open) {
            let timer = Box::pin(sleep_until(Instant::now() + self.linger));
            self.phase = Phase::Closing { disconnected: false, timer };
        }
    }

    fn abort(&mut self) {
        // Requests that were not posted to the adapter are lost.
        self.end(QpError::Io(io::ErrorKind::ConnectionReset));
    }
}

const BATCH: usize = 32;
/// The maximum number of batches processed before other tasks run.
const BATCHES: usize = 8;
/// The maximum number of windows kept for later regions.
const SPARE_MAX: usize = 256;
