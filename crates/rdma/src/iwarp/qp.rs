//! A queue pair on a TCP socket, which drives the receiver and the sender.
//!
//! [`QueuePair::poll_completions`] does all I/O. It reads until the socket is empty or its budget is used up, then
//! writes until the socket is full or nothing is left to send.
//!
//! After a fault of the peer, the Terminate is sent as far as the peer receives it within [`IwarpOptions::linger`].
//! Then all posted requests complete as flushed.

use std::{
    future::Future,
    io::{self, IoSliceMut},
    net::SocketAddr,
    pin::Pin,
    task::{Context, Poll},
    time::{Duration, Instant as StdInstant},
};

use buf::{Buffer, Received, RecvStage, SPIN_MAX, SendQueue, Spin, read_vectored};
use socket2::SockRef;
use tokio::{
    io::Interest,
    net::TcpStream,
    time::{Instant, Sleep, sleep_until},
};

use super::{
    IwarpOptions,
    pcap::Tap,
    rdmap::Terminate,
    receiver::{Event, Fault, Forecast, Receiver, STAGE_LEN},
    sender::{Sender, SenderOptions, payload_max},
};
use crate::{
    Completion, Memory, PostError, QpCaps, QpError, QpOptions, QueuePair, Registered, Stag, WorkId, WorkRequest,
    provider::polled, receives::ReceiveQueue,
};

/// The parameters that the handshake has negotiated.
pub(super) struct Negotiated {
    pub(super) crc: bool,
    pub(super) inbound_reads: u16,
    pub(super) outbound_reads: u16,
    /// Send nothing before the first FPDU of the peer.
    pub(super) hold: bool,
}

pub(super) struct IwarpQp {
    stream: Option<TcpStream>,
    peer: SocketAddr,
    caps: QpCaps,
    receiver: Receiver,
    stage: RecvStage,
    events: Vec<Event>,
    sender: Sender,
    queue: SendQueue,
    hold: bool,
    ready: Option<Ready>,
    phase: Phase,
    linger: Duration,
    tap: Option<Tap>,
    spin: Spin,
    /// `true` if the last poll found nothing and polls again.
    spinning: bool,
}

enum Phase {
    Open,
    /// Queued data are still sent; then this side closes its direction, then the peer.
    Closing {
        error: QpError,
        /// `true` if posted requests are still sent and arriving data are still processed.
        orderly: bool,
        shut: bool,
        timer: Pin<Box<Sleep>>,
    },
    Ended(QpError),
}

/// The state for repeating the ready-to-receive indication until the peer sends data.
///
/// Linux's siw does not notice data that arrive after it has sent its reply and before it has taken over the socket:
/// the data stay there until more arrive. If this side closed such a connection, the kernel would stop at a BUG(),
/// because the connection was never established.
struct Ready {
    timer: Pin<Box<Sleep>>,
    pause: Duration,
}

/// The progress of one round of I/O.
#[derive(PartialEq, Eq)]
enum Progress {
    /// The socket has no more data, or accepts no more; its readiness wakes the task.
    Blocked,
    /// There is more work.
    More,
}

impl IwarpQp {
    #[expect(clippy::too_many_arguments, reason = "there is one caller on each side of the handshake")]
    pub(super) fn new(
        stream: TcpStream,
        peer: SocketAddr,
        iwarp: &IwarpOptions,
        options: &QpOptions,
        negotiated: Negotiated,
        queue: SendQueue,
        tap: Option<Tap>,
        recvs: Vec<(WorkId, Buffer)>,
    ) -> Self {
        let Negotiated { crc, inbound_reads, outbound_reads, hold } = negotiated;
        let file_ranges = !crc && tap.is_none();
        let recvs = ReceiveQueue::new(options.receive_source.as_ref(), recvs);
        let sender = SenderOptions {
            crc,
            send_queue: options.send_queue,
            outbound_reads,
            payload_max: payload_max(iwarp.fpdu_max),
            tap: tap.clone(),
        };
        Self {
            stream: Some(stream),
            peer,
            caps: QpCaps { outbound_reads, region_max: u32::MAX as usize, send_invalidate: true, file_ranges },
            receiver: Receiver::new(crc, inbound_reads, iwarp.regions_max, recvs),
            stage: RecvStage::new(STAGE_LEN),
            events: Vec::new(),
            sender: Sender::new(sender),
            queue,
            hold,
            ready: None,
            phase: Phase::Open,
            linger: iwarp.linger,
            tap,
            spin: Spin::new(SPIN_MAX),
            spinning: false,
        }
    }

    /// Queues the ready-to-receive indication, and repeats it while the peer sends nothing.
    pub(super) fn send_ready(&mut self) {
        self.sender.form_ready(&mut self.queue);
        self.ready = Some(Ready { timer: Box::pin(sleep_until(Instant::now() + READY_PAUSE)), pause: READY_PAUSE });
    }

    /// Repeats the indication when it is due. Other data that are being sent serve the same purpose.
    fn poll_ready(&mut self, cx: &mut Context<'_>) {
        while let Some(ready) = &mut self.ready {
            if self.receiver.fpdus() > 0 || ready.pause > READY_PAUSE_MAX || !matches!(self.phase, Phase::Open) {
                self.ready = None;
            } else if ready.timer.as_mut().poll(cx).is_ready() {
                ready.pause *= 2;
                ready.timer.as_mut().reset(Instant::now() + ready.pause);
                if self.queue.is_empty() && self.sender.is_idle() {
                    self.sender.form_ready(&mut self.queue);
                }
            } else {
                return;
            }
        }
    }

    /// Tells the peer that the connection is rejected.
    pub(super) fn refuse(&mut self, terminate: Terminate) {
        self.sender.form_terminate(&terminate, &mut self.queue);
        if let Some(stream) = &self.stream {
            // A new socket accepts a few bytes. If it does not, the peer sees the connection close.
            let _ = stream.try_io(Interest::WRITABLE, || self.queue.write_to(stream));
        }
    }

    /// Reads one round, at most [`READ_BUDGET`] bytes and about [`EVENTS_MAX`] messages.
    fn read(&mut self, cx: &mut Context<'_>, completions: &mut Vec<Completion>) -> Progress {
        let mut budget = READ_BUDGET;
        while budget > 0 && completions.len() < EVENTS_MAX {
            while self.is_starved() {
                if self.receiver.reads.is_empty() && self.receiver.recvs.poll_prepared(cx).is_pending() {
                    return Progress::Blocked;
                }
                self.take_in(None, completions);
            }
            let Some(stream) = &self.stream else { return Progress::Blocked };
            match stream.poll_read_ready(cx) {
                Poll::Pending => return Progress::Blocked,
                Poll::Ready(Err(error)) => {
                    self.end(QpError::Io(error.kind()));
                    return Progress::Blocked;
                }
                Poll::Ready(Ok(())) => {}
            }
            match self.read_once(completions) {
                Ok(len) => {
                    self.spin.worked(StdInstant::now);
                    budget = budget.saturating_sub(len);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => {
                    self.end(QpError::Io(error.kind()));
                    return Progress::Blocked;
                }
            }
        }
        Progress::More
    }

    /// Returns `true` if an arriving Send, and all data behind it, wait for a receive.
    fn is_starved(&self) -> bool {
        let discard = matches!(self.phase, Phase::Closing { orderly: false, .. });
        !discard && self.receiver.recvs.is_starved()
    }

    /// Reads with one system call, and processes the data.
    fn read_once(&mut self, completions: &mut Vec<Completion>) -> io::Result<usize> {
        let discard = matches!(self.phase, Phase::Closing { orderly: false, .. });
        //= rfc5041-7.1-4
        if discard {
            let staged = self.stage.bytes().len();
            self.stage.consume(staged);
        }
        let stream = self.stream.as_ref().expect("checked by the caller");
        let ahead = self.receiver.look_ahead();
        // A tap needs the bytes in order, so the read is not spread then.
        let forecast = match self.receiver.forecast(self.tap.is_none()) {
            Ok(forecast) => forecast,
            Err(fault) => {
                self.fault(fault);
                return Ok(0);
            }
        };
        let direct = if discard { &mut [] } else { self.receiver.place_of(&forecast) };
        let mut received = None;
        let outcome = stream.try_io(Interest::READABLE, || {
            let readv = |slices: &mut [IoSliceMut<'_>]| read_vectored(stream, slices);
            let got = self.stage.receive_spread(direct, forecast.spread, ahead, readv)?;
            received = Some(got);
            // A short read has emptied the socket. Its readiness is cleared without another read attempt.
            if got.short { Err(io::ErrorKind::WouldBlock.into()) } else { Ok(()) }
        });
        let Some(got) = received else { return outcome.map(|()| 0) };
        if got.direct + got.staged == 0 {
            self.peer_closed();
            return Ok(0);
        }
        if let Some(tap) = &self.tap {
            tap.received(&direct[..got.direct]);
            let staged = self.stage.bytes();
            tap.received(&staged[staged.len() - got.staged..]);
        }
        if !discard {
            self.take_in(Some((&forecast, got)), completions);
        }
        Ok(got.direct + got.staged)
    }

    /// Passes received and staged data to the receiver.
    fn take_in(&mut self, received: Option<(&Forecast, Received)>, completions: &mut Vec<Completion>) {
        let fed = match received {
            Some((forecast, got)) => self.receiver.take(forecast, got, &mut self.stage, &mut self.events),
            None => self.receiver.take_staged(&mut self.stage, &mut self.events),
        };
        completions.extend(self.events.drain(..).filter_map(|event| self.sender.take(event)));
        if let Err(fault) = fed {
            self.fault(fault);
        }
    }

    /// Writes one round.
    fn write(&mut self, cx: &mut Context<'_>, completions: &mut Vec<Completion>) -> Progress {
        //= rfc5044-7.1.2-8
        self.hold &= self.receiver.fpdus() == 0;
        let mut budget = WRITE_BUDGET;
        while budget > 0 {
            //= rfc5040-5.4-8 rfc5040-6.1-1
            let forms = matches!(self.phase, Phase::Open | Phase::Closing { orderly: true, shut: false, .. });
            if forms
                && !self.hold
                && let Err(error) = self.sender.form(&mut self.queue, &mut self.receiver)
            {
                self.end(QpError::Io(error.kind()));
            }
            let Some(stream) = &self.stream else { return Progress::Blocked };
            if self.queue.is_empty() {
                return Progress::Blocked;
            }
            match stream.poll_write_ready(cx) {
                Poll::Pending => return Progress::Blocked,
                Poll::Ready(Err(error)) => {
                    self.end(QpError::Io(error.kind()));
                    return Progress::Blocked;
                }
                Poll::Ready(Ok(())) => {}
            }
            let before = self.queue.len();
            match stream.try_io(Interest::WRITABLE, || self.queue.write_to(stream)) {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => {
                    self.write_failed(&error, completions);
                    return Progress::Blocked;
                }
            }
            budget = budget.saturating_sub(before - self.queue.len());
        }
        Progress::More
    }

    /// Handles a failed write. The peer can have sent a reason, which is more specific than the error.
    fn write_failed(&mut self, error: &io::Error, completions: &mut Vec<Completion>) {
        while !matches!(self.phase, Phase::Ended(_)) && !self.is_starved() {
            if self.read_once(completions).is_err() || matches!(self.phase, Phase::Closing { .. }) {
                break;
            }
        }
        match &self.phase {
            Phase::Closing { error, .. } => self.end(error.clone()),
            Phase::Open => self.end(QpError::Io(error.kind())),
            Phase::Ended(_) => {}
        }
    }

    fn fault(&mut self, fault: Fault) {
        match fault {
            Fault::Peer(terminate) => {
                tracing::debug!(peer = %self.peer, error = %terminate.error, "terminating");
                //= rfc5041-6.2.2-1 rfc5041-7.1-3
                self.sender.form_terminate(&terminate, &mut self.queue);
                //= rfc5044-8-3 rfc5040-7.1-1
                self.close(QpError::Protocol(terminate.error.to_string()), false);
            }
            Fault::Terminated(terminate) => {
                tracing::debug!(peer = %self.peer, error = %terminate.error, "terminated by the peer");
                // RFC 5040 §4.8: a protection error that contains a Read Request is about that read of this side.
                if (terminate.error.layer, terminate.error.kind) == (0, 1)
                    && let Some(request) = terminate.read_request
                    && let Some(index) = self.receiver.reads.iter().position(|read| read.sink == request.sink_stag)
                {
                    self.sender.read_refused(index);
                }
                self.end(QpError::Terminated(terminate.error.to_string()));
            }
        }
    }

    fn peer_closed(&mut self) {
        match &self.phase {
            Phase::Closing { error, .. } => self.end(error.clone()),
            Phase::Open if self.receiver.between_fpdus() && self.stage.bytes().is_empty() => {
                self.end(QpError::Disconnected);
            }
            Phase::Open => self.end(QpError::Io(io::ErrorKind::UnexpectedEof)),
            Phase::Ended(_) => {}
        }
    }

    fn close(&mut self, error: QpError, orderly: bool) {
        if matches!(self.phase, Phase::Open | Phase::Closing { orderly: true, .. }) {
            let timer = Box::pin(sleep_until(Instant::now() + self.linger));
            self.phase = Phase::Closing { error, orderly, shut: false, timer };
        }
    }

    /// Continues closing. After this side has closed its direction, only the peer's close is missing.
    fn poll_close(&mut self, cx: &mut Context<'_>) {
        let Phase::Closing { error, orderly, shut, timer } = &mut self.phase else { return };
        if timer.as_mut().poll(cx).is_ready() {
            let error = error.clone();
            return self.end(error);
        }
        //= rfc5041-6.2.1-1 rfc5041-6.2.1-3
        let all_sent = self.queue.is_empty() && (!*orderly || self.sender.is_idle());
        if all_sent && !*shut {
            *shut = true;
            if let Some(stream) = &self.stream {
                // If the socket cannot be shut down, it is already closed, and the next read returns the error.
                let _ = SockRef::from(stream).shutdown(std::net::Shutdown::Write);
            }
        }
    }

    /// Frees memory for a wait, which can be long.
    fn shrink_idle(&mut self) {
        self.stage.shrink_idle();
        self.sender.shrink_idle();
        self.queue.shrink_idle();
        if self.events.capacity() > IDLE_EVENTS {
            self.events = Vec::new();
        }
    }

    /// Returns the reason why the connection has ended, if it has.
    fn error(&self) -> Option<&QpError> {
        match &self.phase {
            Phase::Ended(error) => Some(error),
            _ => None,
        }
    }

    fn end(&mut self, error: QpError) {
        if !matches!(self.phase, Phase::Ended(_)) {
            tracing::debug!(peer = %self.peer, %error, "connection ended");
            self.phase = Phase::Ended(error);
            self.stream = None;
            if let Some(tap) = self.tap.take() {
                tap.closed();
            }
        }
    }

    /// Flushes all posted requests.
    fn flush(&mut self, completions: &mut Vec<Completion>) {
        self.queue = SendQueue::new();
        self.sender.flush(&mut self.receiver, completions);
        self.receiver.flush(completions);
    }
}

impl QueuePair for IwarpQp {
    fn caps(&self) -> &QpCaps {
        &self.caps
    }

    fn peer(&self) -> SocketAddr {
        self.peer
    }

    fn register(&mut self, memory: Memory) -> Result<Registered, Memory> {
        if memory.as_host().is_none() {
            return Err(memory);
        }
        self.receiver.regions.register(memory, 0)
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
        let mut read = self.read(cx, completions);
        self.poll_ready(cx);
        let written = self.write(cx, completions);
        if self.is_starved() && !self.receiver.reads.is_empty() {
            read = self.read(cx, completions); // A read was started meanwhile. It must not wait.
        }
        self.poll_close(cx);
        self.sender.complete(self.queue.len(), completions);
        if let Phase::Ended(_) = self.phase {
            self.flush(completions);
        }
        if let Some(polled) = polled(completions.len() > before, self.error()) {
            return polled;
        }
        let more = read == Progress::More || written == Progress::More;
        if more {
            cx.waker().wake_by_ref();
        }
        self.spinning = more || matches!(self.phase, Phase::Open) && self.spin.poll_again(cx);
        if !self.spinning {
            self.shrink_idle();
        }
        Poll::Pending
    }

    fn is_spinning(&self) -> bool {
        self.spinning
    }

    fn reclaim(&mut self, stag: Stag) -> Option<Memory> {
        match self.phase {
            Phase::Ended(_) => self.receiver.remove(stag),
            _ => None,
        }
    }

    fn disconnect(&mut self) {
        if matches!(self.phase, Phase::Open) {
            self.close(QpError::Disconnected, true);
        }
    }

    fn abort(&mut self) {
        if let Some(stream) = &self.stream {
            // The peer must see a reset, even if data are still in transit. A socket that rejects the option is already
            // closed.
            let _ = SockRef::from(stream).set_linger(Some(Duration::ZERO));
        }
        self.end(QpError::Io(io::ErrorKind::ConnectionReset));
    }
}

/// Maximum bytes read before other tasks run.
const READ_BUDGET: usize = 2 << 20;
/// Maximum number of completions before the caller processes them. A peer that sends without credits uses at most these
/// receives, and those for the data that were read with the last of them.
const EVENTS_MAX: usize = 256;
/// The pause before the ready-to-receive indication is repeated, at first and at last.
const READY_PAUSE: Duration = Duration::from_millis(100);
const READY_PAUSE_MAX: Duration = Duration::from_secs(4);
/// Maximum number of events for which memory is kept.
const IDLE_EVENTS: usize = 4;
/// Maximum bytes written before other tasks run.
const WRITE_BUDGET: usize = 4 << 20;
