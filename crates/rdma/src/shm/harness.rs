//! The interfaces that a hostile peer can reach, without a socket, for fuzzing: the words of its ring, the table, and
//! packets.

use buf::{Buffer, Pool, PoolOptions, Slab};

use super::{
    ledger::{Account, Ledger},
    memory::{Control, PeerSlab, SharedWords},
    packet::Packet,
    receiver::{Event, Fault, PendingRead, Receiver},
    ring::{Consumer, DATA, Words},
    table::Table,
};
use crate::{Access, Completion, CompletionKind, Memory, Registered, Stag, WorkId, receives::ReceiveQueue};

/// One end, whose peer can write arbitrary words.
pub struct RingHarness {
    receiver: Receiver,
    ring: Consumer<SharedWords>,
    theirs: SharedWords,
    completions: Vec<Completion>,
    posted: usize,
}

impl RingHarness {
    /// Creates an end with `recvs` receives of 4096 bytes, and outstanding reads of these lengths.
    ///
    /// # Panics
    /// If the system is out of memory.
    pub fn new(recvs: usize, reads: &[usize]) -> Self {
        let (control, _fd) = Control::with_fd(&account()).expect("control memory must be available");
        let posted = (0..recvs).map(|id| (WorkId(id as u64), Buffer::zeroed(4096))).collect();
        let mut receiver = Receiver::new(3, 64, ReceiveQueue::new(None, posted));
        let pending = reads.iter().zip(1..).map(|(&len, number)| PendingRead::new(number, Buffer::zeroed(len)));
        receiver.reads.extend(pending);
        let theirs = control.words_of_ring(false);
        Self { receiver, ring: control.rx(true), theirs, completions: Vec::new(), posted: recvs }
    }

    /// Registers memory.
    pub fn register(&mut self, memory: Memory) -> Option<Registered> {
        self.receiver.regions.register(memory, 0).ok()
    }

    /// Writes `words` behind those written before, sets the number of published words to `tail`, and processes them.
    /// Returns the number of records.
    ///
    /// # Errors
    /// The error that would be sent to the peer, or that the peer sent.
    pub fn feed(&mut self, at: usize, words: &[u64], tail: u64) -> Result<usize, String> {
        use std::sync::atomic::Ordering::{Relaxed, Release};
        let capacity = self.theirs.count() - DATA;
        for (ahead, &word) in words.iter().enumerate() {
            self.theirs.store(DATA + (at + ahead) % capacity, word, Relaxed);
        }
        self.theirs.store(0, tail, Release);
        let mut records = 0;
        loop {
            match self.receiver.take(&mut self.ring) {
                Ok(None) => return Ok(records),
                Ok(Some(Event::Received(completion))) => self.completions.push(completion),
                Ok(Some(Event::ReadRequested(data))) => {
                    assert!(data.len() <= 1000, "a read must not exceed the exposed memory");
                    self.receiver.reads_unanswered -= 1;
                }
                Ok(Some(_)) => {}
                Err(Fault::Peer { what, .. } | Fault::Terminated { what, .. }) => return Err(what),
            }
            records += 1;
            self.ring.release();
        }
    }

    /// Ends the connection.
    ///
    /// # Panics
    /// If a receive does not complete exactly once.
    pub fn end(mut self) {
        self.receiver.flush(&mut self.completions);
        let receive = |done: &&Completion| matches!(done.kind, CompletionKind::Receive { .. });
        assert_eq!(self.completions.iter().filter(receive).count(), self.posted);
    }
}

/// Accesses a region as the accepting side does, through a table that the peer has filled with `words`. Returns `true`
/// if the access was possible.
///
/// # Panics
/// If the system is out of memory.
pub fn reach(words: &[u64], stag: u32, offset: u64, into: &mut [u8]) -> bool {
    let (control, _fd) = Control::with_fd(&account()).expect("control memory must be available");
    let table: Table<SharedWords> = control.table();
    for (at, &word) in words.iter().enumerate().take(table.0.count()) {
        table.0.store(at, word, std::sync::atomic::Ordering::Relaxed);
    }
    let pool = Pool::new(PoolOptions { shared: true, slab_bytes: 64 << 10, ..PoolOptions::default() });
    let (slab, _) = Slab::of(&pool.take(1)).expect("a buffer of a pool must have a slab");
    let fd = slab.fd().expect("the slab must be shared");
    PeerSlab::check(fd, slab.len()).expect("the slab must be sealed");
    let mapped = PeerSlab::map(fd, slab.len(), &account()).expect("mapping the slab must succeed");
    let Some(place) = table.pin(Stag(stag), Access::RemoteRead) else { return false };
    let copied = place.offset.checked_add(offset).is_some_and(|start| mapped.copy_to(start, into));
    table.unpin(Stag(stag));
    table.revoke(Stag(stag));
    copied
}

fn account() -> Account {
    Ledger::of_process().account(0)
}

/// Parses a packet and encodes it again. Returns `false` if it is invalid.
///
/// # Panics
/// If the two differ.
pub fn packet(bytes: &[u8]) -> bool {
    let Some(packet) = Packet::parse(bytes) else { return false };
    assert_eq!(packet.encode(), bytes, "the encoding must be canonical");
    true
}
