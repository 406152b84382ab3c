//! A connection of a [`Sim`]: its two ends, and the messages in transit between them.
//!
//! An end makes progress only when its owner polls it: it starts posted requests and processes arrived messages. So a
//! caller that does not poll after posting hangs here as with any provider.

use std::{
    collections::VecDeque,
    future::Future,
    io,
    net::SocketAddr,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Waker},
};

use buf::{Buffer, Rope};
use bytes::Bytes;
use parking_lot::{Mutex, MutexGuard};
use simnet::Connection;
use tokio::time::{Instant, Sleep, sleep_until};

use super::{Cut, Sim};
use crate::{
    Completion, CompletionKind, Memory, PostError, QpCaps, QpError, QpOptions, QueuePair, Registered, RemoteSegment,
    Stag, Status, WorkId, WorkRequest,
    provider::polled,
    receives::ReceiveQueue,
    regions::{AccessFault, Regions},
};

struct Link {
    ends: [End; 2],
}

pub(super) struct SharedLink {
    addresses: [SocketAddr; 2],
    link: Mutex<Link>,
}

pub(super) struct End {
    local: SocketAddr,
    caps: QpCaps,
    send_queue: usize,
    regions: Regions,
    recvs: ReceiveQueue,
    /// Requests that were posted and not started.
    posted: VecDeque<WorkRequest>,
    /// Requests that were started and not completed, in the order in which they were posted.
    started: VecDeque<Started>,
    reads_outstanding: u16,
    inbox: VecDeque<Packet>,
    waker: Option<Waker>,
    closing: bool,
    ended: Option<QpError>,
}

struct Started {
    id: WorkId,
    status: Status,
    state: State,
}

enum State {
    /// A Send or Write, which completes when its data have been handed to the network.
    Sending {
        kind: CompletionKind,
        until: Instant,
    },
    /// An RDMA Read that waits for its response.
    Reading(Buffer),
    Done(CompletionKind),
}

struct Packet {
    due: Instant,
    body: Body,
}

enum Body {
    Send {
        data: Bytes,
        invalidate: Option<Stag>,
        solicited: bool,
    },
    Write {
        data: Bytes,
        to: RemoteSegment,
    },
    ReadRequest {
        from: RemoteSegment,
        len: usize,
    },
    ReadResponse(Bytes),
    /// The peer's end has ended. `error` is the reason that this end returns.
    Ended {
        error: QpError,
        read_refused: bool,
    },
}

/// The index of an end; the client is 0.
type Side = usize;

pub(super) struct SimQp {
    sim: Sim,
    link: Arc<SharedLink>,
    side: Side,
    caps: QpCaps,
    peer: SocketAddr,
    timer: Option<Pin<Box<Sleep>>>,
}

impl End {
    pub(super) fn new(
        local: SocketAddr,
        options: &QpOptions,
        outbound_reads: u16,
        regions_max: usize,
        recvs: Vec<(WorkId, Buffer)>,
    ) -> Self {
        Self {
            local,
            caps: QpCaps { outbound_reads, region_max: u32::MAX as usize, send_invalidate: true, file_ranges: false },
            send_queue: options.send_queue,
            regions: Regions::new(regions_max),
            recvs: ReceiveQueue::new(options.receive_source.as_ref(), recvs),
            posted: VecDeque::new(),
            started: VecDeque::new(),
            reads_outstanding: 0,
            inbox: VecDeque::new(),
            waker: None,
            closing: false,
            ended: None,
        }
    }

    fn end(&mut self, error: QpError) {
        self.ended.get_or_insert(error);
        self.inbox.clear();
        self.wake();
    }

    fn wake(&mut self) {
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }

    /// Flushes all posted requests.
    fn flush(&mut self, completions: &mut Vec<Completion>) {
        let flushed = |id, kind| Completion { id, status: Status::Flushed, kind };
        for Started { id, status, state } in std::mem::take(&mut self.started) {
            completions.push(match state {
                State::Done(kind) => Completion { id, status, kind },
                State::Sending { kind, .. } => flushed(id, kind),
                State::Reading(into) if status == Status::Ok => flushed(id, CompletionKind::Read(into)),
                State::Reading(into) => Completion { id, status, kind: CompletionKind::Read(into) },
            });
        }
        for request in std::mem::take(&mut self.posted) {
            completions.push(request.flushed(|stag| self.regions.remove(stag)));
        }
        self.recvs.flush(completions);
        self.reads_outstanding = 0;
    }

    /// Returns completions in the order of posting.
    fn complete(&mut self, now: Instant, completions: &mut Vec<Completion>) {
        while let Some(front) = self.started.front() {
            match &front.state {
                State::Sending { until, .. } if *until > now => return,
                State::Reading(_) => return,
                State::Sending { .. } | State::Done(_) => {}
            }
            let Some(Started { id, status, state: State::Sending { kind, .. } | State::Done(kind) }) =
                self.started.pop_front()
            else {
                unreachable!("the front was just checked")
            };
            completions.push(Completion { id, status, kind });
        }
    }

    /// Returns the time of the next event after `now`, if no caller does anything.
    fn next_event(&self, now: Instant) -> Option<Instant> {
        let arrival = self.inbox.front().map(|packet| packet.due).filter(|_| !self.recvs.is_starved());
        self.sending_until().filter(|until| *until > now).chain(arrival).min()
    }

    fn sending_until(&self) -> impl Iterator<Item = Instant> {
        self.started.iter().filter_map(|started| match &started.state {
            State::Sending { until, .. } => Some(*until),
            _ => None,
        })
    }

    /// Returns `true` if all posted requests have been handed to the network, which an orderly close requires.
    fn is_closed(&self, now: Instant) -> bool {
        self.closing && self.sending_until().all(|until| until <= now)
    }
}

impl SharedLink {
    pub(super) fn new(ends: [End; 2]) -> Arc<Self> {
        let addresses = [ends[0].local, ends[1].local];
        Arc::new(Self { addresses, link: Mutex::new(Link { ends }) })
    }

    fn lock(&self) -> MutexGuard<'_, Link> {
        self.link.lock()
    }
}

impl Connection for SharedLink {
    fn has_end_at(&self, local: SocketAddr) -> bool {
        self.addresses.contains(&local)
    }

    fn is_open(&self) -> bool {
        self.lock().ends.iter().all(|end| end.ended.is_none())
    }

    fn cut(&self) {
        self.lock().cut(QpError::Io(io::ErrorKind::ConnectionReset));
    }
}

impl Link {
    /// Ends both ends at once. Messages in transit are lost.
    fn cut(&mut self, error: QpError) {
        self.ends.iter_mut().for_each(|end| end.end(error.clone()));
    }

    fn send(&mut self, sim: &Sim, from: Side, body: Body) {
        let inbox = &mut self.ends[1 - from].inbox;
        let due = sim.network.arrival(inbox.back().map(|packet| packet.due));
        inbox.push_back(Packet { due, body });
        self.ends[1 - from].wake();
    }

    /// Ends the end at `side` because of `error`. The peer gets `peer_error`.
    fn fail(&mut self, sim: &Sim, side: Side, error: QpError, peer_error: QpError, read_refused: bool) {
        if self.ends[side].ended.is_none() {
            self.ends[side].end(error);
            if self.ends[1 - side].ended.is_none() {
                self.send(sim, side, Body::Ended { error: peer_error, read_refused });
            }
        }
    }

    /// Ends the connection because the peer of `side` violated the protocol.
    fn protocol_fault(&mut self, sim: &Sim, side: Side, what: &str, read_refused: bool) {
        self.fail(sim, side, QpError::Protocol(what.into()), QpError::Terminated(what.into()), read_refused);
    }

    /// Starts the posted requests at `side`, as far as the limit of reads permits.
    fn start(&mut self, sim: &Sim, side: Side) {
        while self.ends[side].ended.is_none() {
            let end = &mut self.ends[side];
            let Some(next) = end.posted.front() else { return };
            let reads_max = end.caps.outbound_reads;
            if matches!(next, WorkRequest::Read { .. }) && reads_max > 0 && end.reads_outstanding >= reads_max {
                return;
            }
            let request = end.posted.pop_front().expect("the queue was just checked");
            self.start_one(sim, side, request);
        }
    }

    fn start_one(&mut self, sim: &Sim, side: Side, request: WorkRequest) {
        let id = request.id();
        let (body, state, status) = match request {
            WorkRequest::Send { data, invalidate, solicited, .. } => match data.to_bytes() {
                Ok(data) => {
                    (Some(Body::Send { data, invalidate, solicited }), sending(sim, CompletionKind::Send), Status::Ok)
                }
                Err(error) => return self.unreadable(sim, side, id, CompletionKind::Send, &error),
            },
            WorkRequest::Write { data, to, .. } => match data.to_bytes() {
                Ok(data) => (Some(Body::Write { data, to }), sending(sim, CompletionKind::Write), Status::Ok),
                Err(error) => return self.unreadable(sim, side, id, CompletionKind::Write, &error),
            },
            // If no reads were negotiated, the read would wait forever.
            WorkRequest::Read { into, .. } if self.ends[side].caps.outbound_reads == 0 => {
                (None, State::Done(CompletionKind::Read(into)), Status::LocalAccess)
            }
            WorkRequest::Read { into, from, .. } => {
                self.ends[side].reads_outstanding += 1;
                (Some(Body::ReadRequest { from, len: into.len() }), State::Reading(into), Status::Ok)
            }
            WorkRequest::Invalidate { stag, .. } => {
                let memory = self.ends[side].regions.remove(stag);
                let status = if memory.is_some() { Status::Ok } else { Status::LocalAccess };
                (None, State::Done(CompletionKind::Invalidate(memory)), status)
            }
        };
        self.ends[side].started.push_back(Started { id, status, state });
        if let Some(body) = body {
            self.send(sim, side, body);
        }
    }

    /// Handles a file range that cannot be read. The request and the connection fail, because the peer waits for the
    /// data.
    fn unreadable(&mut self, sim: &Sim, side: Side, id: WorkId, kind: CompletionKind, error: &io::Error) {
        self.ends[side].started.push_back(Started { id, status: Status::LocalAccess, state: State::Done(kind) });
        self.fail(sim, side, QpError::Io(error.kind()), QpError::Io(io::ErrorKind::ConnectionReset), false);
    }

    /// Processes the messages that have arrived at `side` by `now`.
    fn deliver(&mut self, sim: &Sim, side: Side, now: Instant, completions: &mut Vec<Completion>) {
        while self.ends[side].ended.is_none() && self.ends[side].inbox.front().is_some_and(|packet| packet.due <= now) {
            if !self.ends[side].is_prepared() {
                return;
            }
            let body = self.ends[side].inbox.pop_front().expect("the inbox was just checked").body;
            let way = (self.ends[1 - side].local, self.ends[side].local);
            let cut = body.deliver(sim, way);
            if cut != Some(Cut::Before) {
                self.deliver_one(sim, side, body, completions);
            }
            if cut.is_some() {
                self.cut(QpError::Io(io::ErrorKind::ConnectionReset));
            }
        }
    }

    fn deliver_one(&mut self, sim: &Sim, side: Side, body: Body, completions: &mut Vec<Completion>) {
        let end = &mut self.ends[side];
        match body {
            Body::Send { data, invalidate, solicited } => {
                if let Err(what) = end.receive(&data, invalidate, solicited, completions) {
                    self.protocol_fault(sim, side, what, false);
                }
            }
            Body::Write { data, to } => match end.regions.target(to.stag, to.offset, data.len()) {
                Ok((region, start)) => {
                    if let Err(error) = region.copy_in(start, &data) {
                        self.cut(QpError::Io(error.kind()));
                    }
                }
                // RFC 5041 §7.1: only segments with data are checked.
                Err(_) if data.is_empty() => {}
                Err(fault) => self.protocol_fault(sim, side, fault.text(), false),
            },
            Body::ReadRequest { from, len } => {
                let read = match end.regions.source(from.stag, from.offset, len) {
                    Err(_) if len == 0 => Ok(Ok(Bytes::new())),
                    read => read.map(|(piece, start)| Rope::from(piece.clone()).slice(start, len).to_bytes()),
                };
                match read {
                    Ok(Ok(data)) => self.send(sim, side, Body::ReadResponse(data)),
                    Ok(Err(error)) => self.cut(QpError::Io(error.kind())),
                    Err(fault) => self.protocol_fault(sim, side, fault.text(), true),
                }
            }
            Body::ReadResponse(data) => end.finish_read(&data),
            Body::Ended { error, read_refused } => {
                if read_refused && let Some(read) = end.oldest_read() {
                    read.status = Status::RemoteAccess;
                }
                end.end(error);
            }
        }
    }
}

impl End {
    /// Returns `true` if there is a receive for the next message. While this end waits for a read, it exceeds the
    /// budget, so that it does not wait for the memory of another end.
    fn is_prepared(&mut self) -> bool {
        let is_send = matches!(self.inbox.front(), Some(Packet { body: Body::Send { .. }, .. }));
        !is_send || self.recvs.prepare(self.reads_outstanding > 0)
    }

    fn receive(
        &mut self,
        data: &[u8],
        invalidate: Option<Stag>,
        solicited: bool,
        completions: &mut Vec<Completion>,
    ) -> Result<(), &'static str> {
        let (id, mut buffer) = self.recvs.pop().ok_or("there is no receive for a Send")?;
        if data.len() > buffer.len() {
            self.recvs.put_back(id, buffer);
            return Err("a Send is longer than its receive");
        }
        let invalidated = match invalidate {
            None => None,
            Some(stag) => match self.regions.remove(stag) {
                Some(memory) => Some((stag, memory)),
                None => {
                    self.recvs.put_back(id, buffer);
                    return Err(AccessFault::Stag.text());
                }
            },
        };
        buffer.set_len(data.len());
        buffer.copy_from_slice(data);
        let kind = CompletionKind::Receive { buffer, invalidated, solicited };
        completions.push(Completion { id, status: Status::Ok, kind });
        Ok(())
    }

    fn oldest_read(&mut self) -> Option<&mut Started> {
        self.started.iter_mut().find(|started| matches!(started.state, State::Reading(_)))
    }

    /// Completes the oldest read: responses arrive in the order of the requests (RFC 5040 §5.5).
    fn finish_read(&mut self, data: &[u8]) {
        self.reads_outstanding -= 1;
        let read = self.oldest_read().expect("a response must have a request");
        let State::Reading(into) = &mut read.state else { unreachable!("oldest_read must return a read") };
        let mut into = std::mem::replace(into, Buffer::from(Vec::new()));
        into.copy_from_slice(data);
        read.state = State::Done(CompletionKind::Read(into));
    }
}

impl Body {
    /// Records the arrival of the message at the network. The end of a connection is not a message.
    fn deliver(&self, sim: &Sim, way: (SocketAddr, SocketAddr)) -> Option<Cut> {
        let place = |at: &RemoteSegment| [&at.stag.0.to_be_bytes()[..], &at.offset.to_be_bytes()].concat();
        match self {
            Body::Send { data, invalidate, .. } => {
                let stag = invalidate.map_or([0; 4], |stag| stag.0.to_be_bytes());
                sim.network.deliver(way, "Send", &[&stag, data])
            }
            Body::Write { data, to } => sim.network.deliver(way, "Write", &[&place(to), data]),
            Body::ReadRequest { from, len } => {
                sim.network.deliver(way, "Read Request", &[&place(from), &len.to_be_bytes()])
            }
            Body::ReadResponse(data) => sim.network.deliver(way, "Read Response", &[data]),
            Body::Ended { .. } => None,
        }
    }
}

impl SimQp {
    pub(super) fn pair(sim: &Sim, link: &Arc<SharedLink>) -> [Self; 2] {
        [0, 1].map(|side| {
            let guard = link.lock();
            let caps = guard.ends[side].caps.clone();
            let peer = guard.ends[1 - side].local;
            Self { sim: sim.clone(), link: link.clone(), side, caps, peer, timer: None }
        })
    }
}

impl QueuePair for SimQp {
    fn caps(&self) -> &QpCaps {
        &self.caps
    }

    fn peer(&self) -> SocketAddr {
        self.peer
    }

    fn register(&mut self, memory: Memory) -> Result<Registered, Memory> {
        let base = self.sim.region_base();
        self.link.lock().ends[self.side].regions.register(memory, base)
    }

    fn post_recv(&mut self, id: WorkId, buffer: Buffer) {
        self.link.lock().ends[self.side].recvs.post(id, buffer);
    }

    fn post(&mut self, request: WorkRequest) -> Result<(), PostError> {
        let end = &mut self.link.lock().ends[self.side];
        if end.posted.len() + end.started.len() >= end.send_queue {
            return Err(PostError::QueueFull(request));
        }
        end.posted.push_back(request);
        Ok(())
    }

    fn poll_completions(
        &mut self,
        cx: &mut Context<'_>,
        completions: &mut Vec<Completion>,
    ) -> Poll<Result<(), QpError>> {
        let before = completions.len();
        let mut link = self.link.lock();
        loop {
            let now = Instant::now();
            link.deliver(&self.sim, self.side, now, completions);
            link.start(&self.sim, self.side);
            link.ends[self.side].complete(now, completions);
            if link.ends[self.side].is_closed(now) {
                link.fail(&self.sim, self.side, QpError::Disconnected, QpError::Disconnected, false);
            }
            let end = &mut link.ends[self.side];
            if end.ended.is_some() {
                end.flush(completions);
            }
            if let Some(polled) = polled(completions.len() > before, end.ended.as_ref()) {
                return polled;
            }
            end.waker = Some(cx.waker().clone());
            if end.recvs.is_starved() && (end.reads_outstanding > 0 || end.recvs.poll_prepared(cx).is_ready()) {
                continue;
            }
            let Some(next) = end.next_event(now) else { return Poll::Pending };
            let timer = self.timer.get_or_insert_with(|| Box::pin(sleep_until(next)));
            if timer.deadline() != next {
                timer.as_mut().reset(next);
            }
            if timer.as_mut().poll(cx).is_pending() {
                return Poll::Pending;
            }
        }
    }

    fn reclaim(&mut self, stag: Stag) -> Option<Memory> {
        let end = &mut self.link.lock().ends[self.side];
        end.ended.as_ref()?;
        end.regions.remove(stag)
    }

    fn disconnect(&mut self) {
        let end = &mut self.link.lock().ends[self.side];
        end.closing = true;
        end.wake();
    }

    fn abort(&mut self) {
        self.link.lock().cut(QpError::Io(io::ErrorKind::ConnectionReset));
    }
}

impl Drop for SimQp {
    fn drop(&mut self) {
        let mut link = self.link.lock();
        link.fail(&self.sim, self.side, QpError::Disconnected, QpError::Disconnected, false);
        // The link continues to exist with the other end. The buffers of this end are returned now.
        let end = &mut link.ends[self.side];
        end.flush(&mut Vec::new());
        end.regions = Regions::new(0);
    }
}

fn sending(sim: &Sim, kind: CompletionKind) -> State {
    State::Sending { kind, until: sim.network.arrival(None) }
}
