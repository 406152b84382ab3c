//! A queue pair in shared memory, which drives the receiver and the sender.
//!
//! [`QueuePair::poll_completions`] makes all progress. It processes the records in the ring and executes posted
//! requests. When there is nothing to do, it polls for a while, with other tasks of the thread running in between, and
//! then sleeps until the doorbell rings.
//!
//! After a fault of the peer, it sends the reason through the ring, and all posted requests complete as flushed.

use std::{
    future::Future,
    io,
    net::SocketAddr,
    os::fd::OwnedFd,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Instant,
};

use buf::{Buffer, PeerBytes, Spin};
use tokio::time::{Sleep, sleep_until};

use super::{
    ShmOptions,
    memory::{Control, SharedWords},
    packet::Packet,
    receiver::{Event, Fault, Receiver},
    record::Record,
    ring::Consumer,
    sender::{Failure, Parts, Progress, Sender},
    slabs::Side,
    socket::{Received, Socket},
};
use crate::{
    Completion, CompletionKind, Descriptors, Memory, PeerUser, PostError, QpCaps, QpError, QpOptions, QueuePair,
    Registered, RemoteSegment, Stag, WorkId, WorkRequest, provider::polled, receives::ReceiveQueue,
};

/// The result of the handshake.
pub(super) struct Start {
    pub(super) peer: SocketAddr,
    pub(super) user: Option<PeerUser>,
    pub(super) inbound_reads: u16,
    pub(super) outbound_reads: u16,
    pub(super) side: Side,
    pub(super) socket: Socket,
    pub(super) control: Arc<Control>,
}

pub(super) struct ShmQp {
    peer: SocketAddr,
    user: Option<PeerUser>,
    caps: QpCaps,
    socket: Socket,
    ring: Consumer<SharedWords>,
    receiver: Receiver,
    sender: Sender,
    side: Side,
    spin: Spin,
    /// Completions that [`QueuePair::start`] found.
    early: Vec<Completion>,
    /// The number of consecutive polls that found nothing.
    empty_polls: u32,
    /// `true` if the peer ended the connection, so that it needs no message about the end.
    ended_by_peer: bool,
    /// `true` while the doorbell is requested.
    is_asleep: bool,
    phase: Phase,
    linger: std::time::Duration,
}

enum Phase {
    Open,
    /// Posted requests are still executed.
    Closing(Pin<Box<Sleep>>),
    Ended(QpError),
}

impl ShmQp {
    pub(super) fn new(start: Start, shm: &ShmOptions, options: &QpOptions, recvs: Vec<(WorkId, Buffer)>) -> Self {
        let Start { peer, user, inbound_reads, outbound_reads, side, socket, control } = start;
        let accepting = matches!(side, Side::Accepting(_));
        let recvs = ReceiveQueue::new(options.receive_source.as_ref(), recvs);
        Self {
            peer,
            user,
            caps: QpCaps { outbound_reads, region_max: u32::MAX as usize, send_invalidate: true, file_ranges: true },
            socket,
            ring: control.rx(accepting),
            receiver: Receiver::new(inbound_reads, shm.regions_max, recvs),
            sender: Sender::new(control.tx(accepting), options.send_queue, outbound_reads),
            side,
            spin: Spin::new(shm.spin),
            early: Vec::new(),
            empty_polls: 0,
            ended_by_peer: false,
            is_asleep: false,
            phase: Phase::Open,
            linger: shm.linger,
        }
    }

    fn is_ended(&self) -> bool {
        self.error().is_some()
    }

    /// Returns the reason why the connection has ended, if it has.
    fn error(&self) -> Option<&QpError> {
        match &self.phase {
            Phase::Ended(error) => Some(error),
            _ => None,
        }
    }

    /// Receives and sends one round. Returns `true` if there can be more to do.
    fn turn(&mut self, cx: &mut Context<'_>, completions: &mut Vec<Completion>) -> bool {
        let received = self.receive(completions);
        if self.is_ended() {
            return false;
        }
        let more = self.send(completions);
        if self.is_ended() {
            return false;
        }
        self.poll_close(cx);
        received || more
    }

    /// Sends one round. Returns `true` if there is more to do.
    fn send(&mut self, completions: &mut Vec<Completion>) -> bool {
        let mut parts = Parts { receiver: &mut self.receiver, side: &mut self.side, socket: &self.socket };
        let sent = self.sender.round(&mut parts, completions);
        self.sender.publish(&self.socket);
        match sent {
            Ok(progress) => return progress == Progress::More,
            Err(Failure::Peer(what)) => self.refuse(what, 0),
            Err(Failure::Io(error)) => self.end(QpError::Io(error.kind())),
        }
        false
    }

    /// Processes at most as many records as a ring can hold. Returns `true` if there were any.
    fn receive(&mut self, completions: &mut Vec<Completion>) -> bool {
        let mut any = false;
        let mut closed = false;
        for _ in 0..RECORDS_PER_TURN {
            if completions.len() >= EVENTS_MAX {
                break;
            }
            match self.receiver.take(&mut self.ring) {
                Ok(None) => break,
                Ok(Some(Event::Closed)) => {
                    closed = true;
                    break;
                }
                Ok(Some(event)) => {
                    if let Event::Received(Completion {
                        kind: CompletionKind::Receive { invalidated: Some((stag, _)), .. },
                        ..
                    }) = &event
                        && let Side::Connecting(shared) = &mut self.side
                    {
                        // The peer itself has ended this exposure.
                        shared.revoke(*stag);
                    }
                    completions.extend(self.sender.take(event));
                    any = true;
                }
                Err(fault) => {
                    self.fault(fault);
                    return false;
                }
            }
            if self.ring.should_release() && self.ring.release() {
                self.socket.bell().ring();
            }
        }
        if self.ring.release() {
            self.socket.bell().ring();
        }
        if closed {
            self.ended_by_peer = true;
            self.end(QpError::Disconnected);
        }
        any
    }

    /// Polls the ring for less than a microsecond. Returns `true` if a record has arrived.
    fn poll_ring(&mut self) -> bool {
        (0..RING_POLLS).any(|_| {
            std::hint::spin_loop();
            // The receiver detects errors in the ring when it takes the record.
            self.ring.available() != Ok(0)
        })
    }

    /// Returns `true` if a Send, and all records behind it, wait for a receive. Registers the task to be woken when
    /// there can be one. If there is one now, takes it.
    fn is_starved(&mut self, cx: &mut Context<'_>) -> bool {
        self.receiver.recvs.is_starved()
            && self.receiver.reads.is_empty()
            && self.receiver.recvs.poll_prepared(cx).is_pending()
    }

    /// Returns `true` if the ring has records, or if the socket had a packet. Otherwise registers the task for the
    /// doorbell.
    fn sleep(&mut self, cx: &mut Context<'_>, completions: &mut Vec<Completion>) -> bool {
        // While the next Send waits for a receive, the other records in the ring wait, too.
        let starved = self.is_starved(cx);
        match self.ring.prepare_sleep() {
            Ok(true) => self.is_asleep = true,
            Ok(false) if starved => {}
            Ok(false) => return true,
            Err(_) => {
                self.refuse("the indices of the ring are invalid".to_owned(), 0);
                return true;
            }
        }
        match self.socket.poll_receive(cx) {
            Poll::Pending => return false,
            Poll::Ready(Ok(Received::Packet(packet, fd))) => {
                if let Err(what) = take_packet(&mut self.side, packet, fd) {
                    self.refuse(what, 0);
                }
            }
            Poll::Ready(Ok(Received::Nothing)) => {}
            Poll::Ready(Ok(Received::Garbage)) => self.refuse("the peer sent an invalid packet".to_owned(), 0),
            Poll::Ready(Ok(Received::End)) => {
                // Messages that the peer sent before it closed the connection are still processed.
                self.receive(completions);
                self.ended_by_peer = true;
                self.end(QpError::Io(io::ErrorKind::ConnectionReset));
            }
            Poll::Ready(Err(error)) => self.end(QpError::Io(error.kind())),
        }
        true
    }

    fn fault(&mut self, fault: Fault) {
        match fault {
            Fault::Peer { what, refused } => self.refuse(what, refused),
            Fault::Terminated { what, refused } => {
                if let Some(index) = self.receiver.reads.iter().position(|read| read.number == refused) {
                    self.sender.read_refused(index);
                }
                self.ended_by_peer = true;
                self.end(QpError::Terminated(what));
            }
        }
    }

    /// Ends the connection because of a violation by the peer, and sends it the reason.
    fn refuse(&mut self, what: String, refused: u64) {
        if self.is_ended() {
            return;
        }
        // A peer whose ring is full does not get the reason.
        let _ = self.sender.put_last(Record::Terminate { refused }, &what);
        self.sender.publish(&self.socket);
        self.end(QpError::Protocol(what));
    }

    /// Continues closing. When all posted requests are in the ring, the Close record follows.
    fn poll_close(&mut self, cx: &mut Context<'_>) {
        let Phase::Closing(timer) = &mut self.phase else { return };
        let over = timer.as_mut().poll(cx).is_ready();
        let closed = self.sender.is_idle() && self.sender.put_last(Record::Close, "") != Ok(false);
        if closed {
            self.sender.publish(&self.socket);
        }
        if closed || over {
            self.end(QpError::Disconnected);
        }
    }

    fn end(&mut self, error: QpError) {
        if !self.is_ended() {
            tracing::debug!(peer = %self.peer, %error, "connection ended");
            self.phase = Phase::Ended(error);
            if !self.ended_by_peer {
                self.socket.shutdown();
            }
        }
    }

    /// Flushes all posted requests.
    fn flush(&mut self, completions: &mut Vec<Completion>) {
        let mut kept = Vec::new();
        let side = &self.side;
        self.sender.flush(&mut self.receiver, completions, |receiver, stag| match side {
            Side::Connecting(shared) => shared.reclaim(&mut receiver.regions, stag, &mut kept),
            Side::Accepting(_) => receiver.regions.remove(stag),
        });
        self.receiver.flush(completions);
        if let Side::Connecting(shared) = side {
            shared.keep(kept);
        }
    }
}

impl QueuePair for ShmQp {
    fn caps(&self) -> &QpCaps {
        &self.caps
    }

    fn peer(&self) -> SocketAddr {
        self.peer
    }

    fn peer_user(&self) -> Option<&PeerUser> {
        self.user.as_ref()
    }

    fn register(&mut self, memory: Memory) -> Result<Registered, Memory> {
        let Some(bytes) = memory.as_host() else { return Err(memory) };
        if self.is_ended() {
            return self.receiver.regions.register(memory, 0);
        }
        let Side::Connecting(shared) = &mut self.side else { return self.receiver.regions.register(memory, 0) };
        let place = shared.locate(bytes, &self.socket);
        let access = memory.access();
        match (self.receiver.regions.register(memory, 0), place) {
            (Ok(region), Some(place)) => {
                shared.expose(region, access, place);
                Ok(region)
            }
            (Err(memory), Some(place)) => {
                shared.release(place);
                Err(memory)
            }
            (registered, None) => registered,
        }
    }

    fn post_recv(&mut self, id: WorkId, buffer: Buffer) {
        self.receiver.recvs.post(id, buffer);
    }

    fn post(&mut self, request: WorkRequest) -> Result<(), PostError> {
        if self.sender.is_full() {
            return Err(PostError::QueueFull(request));
        }
        self.sender.post(request);
        Ok(())
    }

    fn poll_completions(
        &mut self,
        cx: &mut Context<'_>,
        completions: &mut Vec<Completion>,
    ) -> Poll<Result<(), QpError>> {
        let before = completions.len();
        completions.append(&mut self.early);
        if std::mem::take(&mut self.is_asleep) {
            self.ring.cancel_sleep();
        }
        for _ in 0..TURNS_MAX {
            let more = !self.is_ended() && self.turn(cx, completions);
            if self.is_ended() {
                self.flush(completions);
            }
            if let Some(polled) = polled(completions.len() > before, self.error()) {
                self.spin.worked(Instant::now);
                self.empty_polls = 0;
                return polled;
            }
            if more {
                self.spin.worked(Instant::now);
                continue;
            }
            if self.spin.should_poll(Instant::now) {
                // Tasks that were woken by the last completions run first.
                let first = self.empty_polls == 0;
                self.empty_polls = self.empty_polls.saturating_add(1);
                if !first && self.poll_ring() {
                    continue;
                }
                // The thread can have other work than this ring: sockets, or requests of the kernel.
                Spin::yield_to_sockets(cx);
                return Poll::Pending;
            }
            if !self.sleep(cx, completions) {
                self.empty_polls = 0;
                return Poll::Pending;
            }
            self.is_asleep = false;
            self.ring.cancel_sleep();
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    fn start(&mut self) {
        if !matches!(self.phase, Phase::Open) {
            return;
        }
        let mut early = std::mem::take(&mut self.early);
        self.send(&mut early);
        self.early = early;
    }

    fn is_spinning(&self) -> bool {
        self.empty_polls > 0
    }

    fn view(&mut self, from: RemoteSegment, len: usize) -> Option<PeerBytes> {
        match &mut self.side {
            Side::Accepting(mapped) if !matches!(self.phase, Phase::Ended(_)) => mapped.view(from, len, &self.socket),
            _ => None,
        }
    }

    fn descriptors(&self) -> Option<Arc<dyn Descriptors>> {
        Some(self.socket.passage().clone())
    }

    fn reclaim(&mut self, stag: Stag) -> Option<Memory> {
        if !self.is_ended() {
            return None;
        }
        let mut kept = Vec::new();
        let Side::Connecting(shared) = &self.side else { return self.receiver.regions.remove(stag) };
        let memory = shared.reclaim(&mut self.receiver.regions, stag, &mut kept);
        shared.keep(kept);
        memory
    }

    fn disconnect(&mut self) {
        if matches!(self.phase, Phase::Open) {
            let timer = sleep_until(tokio::time::Instant::now() + self.linger);
            self.phase = Phase::Closing(Box::pin(timer));
        }
    }

    fn abort(&mut self) {
        self.end(QpError::Io(io::ErrorKind::ConnectionReset));
    }
}

impl Drop for ShmQp {
    fn drop(&mut self) {
        self.end(QpError::Disconnected);
        let mut kept = Vec::new();
        if let Side::Connecting(shared) = &self.side {
            for stag in self.receiver.regions.stags() {
                shared.reclaim(&mut self.receiver.regions, stag, &mut kept);
            }
            shared.keep(kept);
        }
    }
}

/// Handles a packet on the socket of an established connection.
fn take_packet(side: &mut Side, packet: Packet, fd: Option<OwnedFd>) -> Result<(), String> {
    match (side, packet) {
        (Side::Accepting(mapped), Packet::Slab { number, bytes }) => mapped.slabs().add(number, bytes, fd),
        (Side::Accepting(mapped), Packet::Forget { number }) if fd.is_none() => mapped.slabs().forget(number),
        (_, Packet::Bell) if fd.is_none() => Ok(()),
        _ => Err("the peer sent an unexpected packet".to_owned()),
    }
}

/// Maximum number of completions before the caller processes them.
const EVENTS_MAX: usize = 256;
/// Maximum number of records in a round, which is more than a ring can hold.
const RECORDS_PER_TURN: usize = 1 << 13;
/// The number of polls of the ring before other tasks of the thread run.
const RING_POLLS: usize = 32;
/// Maximum number of rounds before other tasks of the thread run.
const TURNS_MAX: usize = 8;
