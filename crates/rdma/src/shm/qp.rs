//! A queue pair in shared memory: drives the receiver and the sender.
//!
//! All progress happens in [`QueuePair::poll_completions`]: it takes in what the ring holds, carries out what was
//! posted, and when there is nothing to do it looks again for a while, giving other tasks of the thread their turn in
//! between, and then sleeps until the doorbell.
//!
//! On a fault of the peer it is told so in the ring, and everything posted comes home flushed.

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
    sender::{Around, Failure, Progress, Sender},
    slabs::Side,
    socket::{Received, Socket},
};
use crate::{
    Completion, CompletionKind, Memory, PeerUser, PostError, QpCaps, QpError, QpOptions, QueuePair, Registered,
    RemoteSegment, Stag, WorkId, WorkRequest, provider::polled, receives::ReceiveQueue,
};

/// What the handshake has brought.
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
    /// What completed while [`QueuePair::start`] was at work.
    early: Vec<Completion>,
    /// Polls without anything since there was something.
    empty_polls: u32,
    /// The peer has said that it ends the connection, and need not be told.
    ended_by_peer: bool,
    /// The doorbell has been asked for.
    dozing: bool,
    phase: Phase,
    linger: std::time::Duration,
}

enum Phase {
    Open,
    /// What is posted still goes out.
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
            dozing: false,
            phase: Phase::Open,
            linger: shm.linger,
        }
    }

    fn is_ended(&self) -> bool {
        self.error().is_some()
    }

    /// Why the connection has ended, if it has.
    fn error(&self) -> Option<&QpError> {
        match &self.phase {
            Phase::Ended(error) => Some(error),
            _ => None,
        }
    }

    /// One round of receiving and sending; whether there may be more to do at once.
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

    /// One round of sending; whether there is more to do at once.
    fn send(&mut self, completions: &mut Vec<Completion>) -> bool {
        let mut around = Around { receiver: &mut self.receiver, side: &mut self.side, socket: &self.socket };
        let sent = self.sender.round(&mut around, completions);
        self.sender.publish(&self.socket);
        match sent {
            Ok(progress) => return progress == Progress::More,
            Err(Failure::Peer(what)) => self.refuse(what, 0),
            Err(Failure::Io(error)) => self.end(QpError::Io(error.kind())),
        }
        false
    }

    /// Takes in at most as much as a ring can hold; whether that was anything.
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

    /// Watches the ring for less than a microsecond; whether something has come.
    fn look_again(&mut self) -> bool {
        (0..LOOKS).any(|_| {
            std::hint::spin_loop();
            // What is wrong with the ring is found out by whoever takes from it.
            self.ring.available() != Ok(0)
        })
    }

    /// Whether a Send waits for a receive, and all behind it. Registers the task for when there may be one; if there is one
    /// now, it has been taken.
    fn is_starved(&mut self, cx: &mut Context<'_>) -> bool {
        self.receiver.recvs.is_starved()
            && self.receiver.reads.is_empty()
            && self.receiver.recvs.poll_prepared(cx).is_pending()
    }

    /// Whether the ring has something, or something was seen in the socket. Registers the task for the doorbell otherwise.
    fn sleep(&mut self, cx: &mut Context<'_>, completions: &mut Vec<Completion>) -> bool {
        // With the next Send waiting for a receive, what else the ring holds waits, too.
        let starved = self.is_starved(cx);
        match self.ring.doze() {
            Ok(true) => self.dozing = true,
            Ok(false) if starved => {}
            Ok(false) => return true,
            Err(_) => {
                self.refuse("the ring's indices make no sense".to_owned(), 0);
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
            Poll::Ready(Ok(Received::Garbage)) => self.refuse("a packet that makes no sense".to_owned(), 0),
            Poll::Ready(Ok(Received::End)) => {
                // What the peer sent before it went away still counts.
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

    /// Ends the connection because of what the peer did, and tells it.
    fn refuse(&mut self, what: String, refused: u64) {
        if self.is_ended() {
            return;
        }
        // A peer whose ring is full does not listen.
        let _ = self.sender.put_last(Record::Terminate { refused }, &what);
        self.sender.publish(&self.socket);
        self.end(QpError::Protocol(what));
    }

    /// Goes on with closing: when what was posted is in the ring, the end of it follows.
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

    /// Takes back everything posted.
    fn flush(&mut self, completions: &mut Vec<Completion>) {
        let mut kept = Vec::new();
        let side = &self.side;
        self.sender.flush(&mut self.receiver, completions, |receiver, stag| match side {
            Side::Connecting(shared) => shared.take_back(&mut receiver.regions, stag, &mut kept),
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
                shared.give_up(place);
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
        if std::mem::take(&mut self.dozing) {
            self.ring.rouse();
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
            if self.spin.again(Instant::now) {
                // Who has been woken by what was there has something to do first.
                let first = self.empty_polls == 0;
                self.empty_polls = self.empty_polls.saturating_add(1);
                if !first && self.look_again() {
                    continue;
                }
                break;
            }
            if !self.sleep(cx, completions) {
                self.empty_polls = 0;
                return Poll::Pending;
            }
            self.dozing = false;
            self.ring.rouse();
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

    fn reclaim(&mut self, stag: Stag) -> Option<Memory> {
        if !self.is_ended() {
            return None;
        }
        let mut kept = Vec::new();
        let Side::Connecting(shared) = &self.side else { return self.receiver.regions.remove(stag) };
        let memory = shared.take_back(&mut self.receiver.regions, stag, &mut kept);
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
                shared.take_back(&mut self.receiver.regions, stag, &mut kept);
            }
            shared.keep(kept);
        }
    }
}

/// What may come by the socket once the connection stands.
fn take_packet(side: &mut Side, packet: Packet, fd: Option<OwnedFd>) -> Result<(), String> {
    match (side, packet) {
        (Side::Accepting(mapped), Packet::Slab { number, bytes }) => mapped.slabs().add(number, bytes, fd),
        (Side::Accepting(mapped), Packet::Forget { number }) if fd.is_none() => mapped.slabs().forget(number),
        (_, Packet::Bell) if fd.is_none() => Ok(()),
        _ => Err("a packet that makes no sense".to_owned()),
    }
}

/// Completions beyond which nothing more is received before they are looked at.
const EVENTS_MAX: usize = 256;
/// More records than a ring can hold.
const RECORDS_PER_TURN: usize = 1 << 13;
/// Looks at the ring before other tasks of the thread have their turn.
const LOOKS: usize = 32;
/// Turns before other tasks of the thread have theirs.
const TURNS_MAX: usize = 8;
