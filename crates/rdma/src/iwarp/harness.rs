//! An established stream without a socket, for fuzzing and for comparison with captures.

use std::io::Read;

use buf::{Buffer, RecvStage, SendQueue};

use super::{
    receiver::{Event, Fault, Receiver, STAGE_LEN},
    sender::{Sender, SenderOptions, payload_max},
};
use crate::{Completion, CompletionKind, Memory, Registered, Status, WorkId, WorkRequest, receives::ReceiveQueue};

/// Both halves of a stream. The caller feeds it the peer's bytes; the bytes that it sends are counted and discarded.
pub struct StreamHarness {
    receiver: Receiver,
    stage: RecvStage,
    sender: Sender,
    events: Vec<Event>,
    completions: Vec<Completion>,
    posted: usize,
    sent: u64,
}

impl StreamHarness {
    /// Creates a stream with `recvs` receives of 4096 bytes.
    pub fn new(crc: bool, inbound_reads: u16, recvs: usize) -> Self {
        let posted = (0..recvs).map(|id| (WorkId(id as u64), Buffer::zeroed(4096))).collect();
        let options =
            SenderOptions { crc, send_queue: 1024, outbound_reads: 2, payload_max: payload_max(0), tap: None };
        let mut receiver = Receiver::new(crc, inbound_reads, 64, ReceiveQueue::new(None, posted));
        // A low minimum makes forecasts reachable for short streams.
        receiver.forecast_min = 8;
        Self {
            receiver,
            stage: RecvStage::new(STAGE_LEN),
            sender: Sender::new(options),
            events: Vec::new(),
            completions: Vec::new(),
            posted: recvs,
            sent: 0,
        }
    }

    /// Registers memory.
    pub fn register(&mut self, memory: Memory) -> Option<Registered> {
        self.receiver.regions.register(memory, 0).ok()
    }

    /// Posts a request to the send queue.
    pub fn post(&mut self, request: WorkRequest) {
        self.posted += 1;
        self.sender.post(request);
        self.send();
    }

    /// Feeds all of `bytes`, `step` bytes at a time, through the stage or directly into their destination, as a socket
    /// would.
    ///
    /// # Errors
    /// The error that would be sent to the peer, or that the peer sent.
    pub fn feed(&mut self, bytes: &[u8], step: usize, direct: bool) -> Result<(), String> {
        self.feed_all(bytes, step, direct).map_err(|fault| match fault {
            Fault::Peer(terminate) => {
                self.sender.form_terminate(&terminate, &mut SendQueue::new());
                terminate.error.to_string()
            }
            Fault::Terminated(terminate) => format!("terminated by the peer: {}", terminate.error),
        })
    }

    fn feed_all(&mut self, mut bytes: &[u8], step: usize, direct: bool) -> Result<(), Fault> {
        while !bytes.is_empty() {
            let mut chunk = &bytes[..step.clamp(1, bytes.len())];
            bytes = &bytes[chunk.len()..];
            let mut fed = Ok(());
            while fed.is_ok() && !chunk.is_empty() {
                fed = if direct && self.stage.bytes().is_empty() {
                    self.receive(&mut chunk)
                } else {
                    let now = chunk.len().min(STAGE_LEN - self.stage.bytes().len());
                    self.stage.put(&chunk[..now]);
                    chunk = &chunk[now..];
                    self.receiver.feed(self.stage.bytes(), &mut self.events).map(|taken| self.stage.consume(taken))
                };
            }
            self.completions.extend(self.events.drain(..).filter_map(|event| self.sender.take(event)));
            self.send();
            fed?;
            assert!(self.stage.bytes().len() < 64, "only an incomplete header or trailer can remain");
        }
        Ok(())
    }

    /// Receives from `chunk` like a queue pair from its socket.
    fn receive(&mut self, chunk: &mut &[u8]) -> Result<(), Fault> {
        let ahead = self.receiver.look_ahead();
        let forecast = self.receiver.forecast(true)?;
        let place = self.receiver.place_of(&forecast);
        let got = self.stage.receive_spread(place, forecast.spread, ahead, |slices| chunk.read_vectored(slices));
        self.receiver.take(&forecast, got.expect("reading memory must succeed"), &mut self.stage, &mut self.events)
    }

    /// Sends everything that can be sent.
    fn send(&mut self) {
        while !self.sender.is_idle() {
            let mut queue = SendQueue::new();
            self.sender.form(&mut queue, &mut self.receiver).expect("no file range is sent");
            self.sent += queue.len() as u64;
        }
        self.sender.complete(0, &mut self.completions);
    }

    /// Returns the number of completed receives.
    pub fn received(&self) -> usize {
        let done = |completion: &&Completion| matches!(completion.kind, CompletionKind::Receive { .. });
        self.completions.iter().filter(done).count()
    }

    /// Returns the number of bytes sent.
    pub fn sent(&self) -> u64 {
        self.sent
    }

    /// Ends the stream.
    ///
    /// # Panics
    /// If the number of completions differs from the number of posted requests.
    pub fn end(mut self) -> Vec<Completion> {
        self.sender.flush(&mut self.receiver, &mut self.completions);
        self.receiver.flush(&mut self.completions);
        assert_eq!(self.completions.len(), self.posted, "each posted request must complete once");
        assert!(self.completions.iter().all(|done| done.status != Status::LocalAccess));
        self.completions
    }
}
