//! What a hostile peer can reach, without a socket, for fuzzing: the words of its ring, the table, packets.

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

/// One end, whose peer writes what it likes.
pub struct RingHarness {
    receiver: Receiver,
    ring: Consumer<SharedWords>,
    theirs: SharedWords,
    completions: Vec<Completion>,
    posted: usize,
}

impl RingHarness {
    /// An end with `recvs` receives of 4096 bytes, and reads outstanding of these lengths.
    ///
    /// # Panics
    /// If the system has no memory.
    pub fn new(recvs: usize, reads: &[usize]) -> Self {
        let (control, _fd) = Control::with_fd(&account()).expect("there is memory");
        let posted = (0..recvs).map(|id| (WorkId(id as u64), Buffer::zeroed(4096))).collect();
        let mut receiver = Receiver::new(3, 64, ReceiveQueue::new(None, posted));
        let pending = reads.iter().zip(1..).map(|(&len, number)| PendingRead::new(number, Buffer::zeroed(len)));
        receiver.reads.extend(pending);
        let theirs = control.words_of_ring(false);
        Self { receiver, ring: control.rx(true), theirs, completions: Vec::new(), posted: recvs }
    }

    /// Exposes memory.
    pub fn register(&mut self, memory: Memory) -> Option<Registered> {
        self.receiver.regions.register(memory, 0).ok()
    }

    /// Writes `words` behind those written before, says that there are so many in all, and takes in what there is.
    /// Returns how many records that was.
    ///
    /// # Errors
    /// What the peer would be told, or has told.
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
                    assert!(data.len() <= 1000, "no more than is exposed");
                    self.receiver.reads_owed -= 1;
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
    /// If not every receive comes home, once.
    pub fn end(mut self) {
        self.receiver.flush(&mut self.completions);
        let receive = |done: &&Completion| matches!(done.kind, CompletionKind::Receive { .. });
        assert_eq!(self.completions.iter().filter(receive).count(), self.posted);
    }
}

/// Reaches for a region as the accepting side does, through a table that the peer has filled with `words`.
///
/// # Panics
/// If the system has no memory.
pub fn reach(words: &[u64], stag: u32, offset: u64, into: &mut [u8]) -> bool {
    let (control, _fd) = Control::with_fd(&account()).expect("there is memory");
    let table: Table<SharedWords> = control.table();
    for (at, &word) in words.iter().enumerate().take(table.0.count()) {
        table.0.store(at, word, std::sync::atomic::Ordering::Relaxed);
    }
    let pool = Pool::new(PoolOptions { shared: true, slab_bytes: 64 << 10, ..PoolOptions::default() });
    let (slab, _) = Slab::of(&pool.take(1)).expect("a buffer of a pool has a slab");
    let fd = slab.fd().expect("it is shared");
    PeerSlab::check(fd, slab.len()).expect("it is sealed");
    let mapped = PeerSlab::map(fd, slab.len(), &account()).expect("there is memory");
    let Some(place) = table.pin(Stag(stag), Access::RemoteRead) else { return false };
    let copied = place.offset.checked_add(offset).is_some_and(|start| mapped.copy_to(start, into));
    table.unpin(Stag(stag));
    table.revoke(Stag(stag));
    copied
}

fn account() -> Account {
    Ledger::of_process().account(0)
}

/// Understands a packet and writes it again.
///
/// # Panics
/// If the two differ.
pub fn packet(bytes: &[u8]) -> bool {
    let Some(packet) = Packet::parse(bytes) else { return false };
    assert_eq!(packet.encode(), bytes, "the encoding is canonical");
    true
}
