//! A ring for one producer and one consumer, in memory to which a hostile peer can write at any time.
//!
//! The memory is accessed as 64-bit words, each of which is an atomic, so no access is a data race. Two indices count
//! words and never wrap: the producer's `TAIL` and the consumer's `HEAD`. Each side keeps a private copy of its own
//! index and only *publishes* it. It validates the other side's index before use. So a peer that publishes a wrong
//! index is detected, and can affect only its own words.
//!
//! Sleeping uses two flags. A consumer that finds nothing sets `ASLEEP`, checks once more, and then waits for its
//! doorbell. A producer that has published checks `ASLEEP` and rings the doorbell. On each side a sequentially
//! consistent fence is between the two steps (publish and check the flag; set the flag and check for words), so at
//! least one side sees the other's step. `BLOCKED` does the same for a producer that waits for room. Both sides write
//! the flags, so all writes to them are swaps: each swap then follows the one before it, for the processor as well as
//! for the model below.

use std::sync::atomic::Ordering::{self, Acquire, Relaxed, Release};

/// The memory of a ring. All accesses are atomic.
pub(crate) trait Words {
    /// Returns the number of words: a power of two, plus [`DATA`].
    fn count(&self) -> usize;
    /// Loads word `index`.
    fn load(&self, index: usize, order: Ordering) -> u64;
    /// Stores word `index`.
    fn store(&self, index: usize, value: u64, order: Ordering);
    /// Replaces word `index`, and returns its old value.
    fn swap(&self, index: usize, value: u64, order: Ordering) -> u64;
    /// Executes a sequentially consistent fence.
    #[inline]
    fn fence(&self) {
        std::sync::atomic::fence(Ordering::SeqCst);
    }
    /// Replaces word `index` if it is `old`, with acquire and release ordering. Otherwise returns its value as an
    /// error.
    fn compare_exchange(&self, index: usize, old: u64, new: u64) -> Result<u64, u64>;
}

/// The error that the other side has written an invalid value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Corrupt;

/// The writing end.
pub(crate) struct Producer<W> {
    words: W,
    /// The index behind the words written, which can be unpublished.
    tail: u64,
    published: u64,
    /// The consumer's index at the last check.
    head: u64,
}

/// The reading end.
pub(crate) struct Consumer<W> {
    words: W,
    head: u64,
    released: u64,
    /// The producer's index at the last check.
    tail: u64,
}

impl<W: Words> Producer<W> {
    /// Creates the writing end of a ring that is all zeros.
    pub(crate) fn new(words: W) -> Self {
        Self { words, tail: 0, published: 0, head: 0 }
    }

    /// Returns `true` if there is room for `len` words.
    #[inline]
    pub(crate) fn has_room(&mut self, len: usize) -> Result<bool, Corrupt> {
        if self.capacity() - (self.tail - self.head) >= len as u64 {
            return Ok(true);
        }
        let head = self.words.load(HEAD, Acquire);
        if head < self.head || head > self.published {
            return Err(Corrupt);
        }
        self.head = head;
        Ok(self.capacity() - (self.tail - self.head) >= len as u64)
    }

    /// Appends a word. The caller has checked that there is room.
    #[inline]
    pub(crate) fn push(&mut self, word: u64) {
        self.words.store(self.place(self.tail), word, Relaxed);
        self.tail += 1;
    }

    /// Appends bytes, padded to a whole word with zeros. The caller has checked that there is room.
    pub(crate) fn push_bytes(&mut self, bytes: &[u8]) {
        let (whole, rest) = bytes.as_chunks::<8>();
        for chunk in whole {
            self.push(u64::from_le_bytes(*chunk));
        }
        if !rest.is_empty() {
            let mut last = [0; 8];
            last[..rest.len()].copy_from_slice(rest);
            self.push(u64::from_le_bytes(last));
        }
    }

    /// Publishes the appended words. Returns `true` if the consumer's doorbell must be rung.
    #[inline]
    pub(crate) fn publish(&mut self) -> bool {
        if self.published == self.tail {
            return false;
        }
        self.published = self.tail;
        self.words.store(TAIL, self.tail, Release);
        self.words.fence();
        self.words.load(ASLEEP, Relaxed) != 0 && self.words.swap(ASLEEP, 0, Relaxed) != 0
    }

    /// Requests the doorbell for when there is room for `len` words. Returns `false` if there is room now.
    pub(crate) fn block(&mut self, len: usize) -> Result<bool, Corrupt> {
        self.words.swap(BLOCKED, 1, Relaxed);
        self.words.fence();
        let has_room = self.has_room(len)?;
        if has_room {
            self.words.swap(BLOCKED, 0, Relaxed);
        }
        Ok(!has_room)
    }

    #[inline]
    fn capacity(&self) -> u64 {
        (self.words.count() - DATA) as u64
    }

    #[inline]
    fn place(&self, index: u64) -> usize {
        place(&self.words, index)
    }
}

impl<W: Words> Consumer<W> {
    /// Creates the reading end of a ring that is all zeros.
    pub(crate) fn new(words: W) -> Self {
        Self { words, head: 0, released: 0, tail: 0 }
    }

    /// Returns the number of words that can be read.
    #[inline]
    pub(crate) fn available(&mut self) -> Result<usize, Corrupt> {
        if self.tail == self.head {
            let tail = self.words.load(TAIL, Acquire);
            if tail < self.tail || tail - self.released > self.capacity() {
                return Err(Corrupt);
            }
            self.tail = tail;
        }
        Ok((self.tail - self.head) as usize)
    }

    /// Returns the word `ahead` words behind the next one. Its value can differ at each load, so a caller must validate
    /// the loaded value.
    #[inline]
    pub(crate) fn word(&self, ahead: usize) -> u64 {
        self.words.load(place(&self.words, self.head + ahead as u64), Relaxed)
    }

    /// Copies bytes that begin `ahead` words behind the next word.
    pub(crate) fn copy_to(&self, ahead: usize, into: &mut [u8]) {
        let (whole, rest) = into.as_chunks_mut::<8>();
        for (at, chunk) in whole.iter_mut().enumerate() {
            *chunk = self.word(ahead + at).to_le_bytes();
        }
        if !rest.is_empty() {
            let last = self.word(ahead + whole.len()).to_le_bytes();
            rest.copy_from_slice(&last[..rest.len()]);
        }
    }

    /// Consumes `len` available words.
    #[inline]
    pub(crate) fn advance(&mut self, len: usize) {
        self.head += len as u64;
        assert!(self.head <= self.tail, "consumed words must have been available");
    }

    /// Returns `true` if at least half of the ring has been read and not released to the producer.
    pub(crate) fn should_release(&self) -> bool {
        self.head - self.released >= self.capacity() / 2
    }

    /// Releases the words read to the producer. Returns `true` if its doorbell must be rung.
    #[inline]
    pub(crate) fn release(&mut self) -> bool {
        if self.released == self.head {
            return false;
        }
        self.released = self.head;
        self.words.store(HEAD, self.head, Release);
        self.words.fence();
        self.words.load(BLOCKED, Relaxed) != 0 && self.words.swap(BLOCKED, 0, Relaxed) != 0
    }

    /// Requests the doorbell. Returns `false` if there are words to read now.
    pub(crate) fn prepare_sleep(&mut self) -> Result<bool, Corrupt> {
        self.words.swap(ASLEEP, 1, Relaxed);
        self.words.fence();
        let is_asleep = self.available()? == 0;
        if !is_asleep {
            self.cancel_sleep();
        }
        Ok(is_asleep)
    }

    /// Cancels the request for the doorbell.
    pub(crate) fn cancel_sleep(&mut self) {
        self.words.swap(ASLEEP, 0, Relaxed);
    }

    #[inline]
    fn capacity(&self) -> u64 {
        (self.words.count() - DATA) as u64
    }
}

#[inline]
fn place(words: &impl Words, index: u64) -> usize {
    let capacity = words.count() - DATA;
    // The capacity is a power of two, so no index that a peer could cause lies outside.
    DATA + (index as usize & (capacity - 1))
}

// Each index and flag has its own pair of cache lines (processors fetch pairs).
const TAIL: usize = 0;
const HEAD: usize = 16;
const ASLEEP: usize = 32;
const BLOCKED: usize = 48;
/// The number of words before the data.
pub(crate) const DATA: usize = 64;

#[cfg(test)]
mod tests {
    use std::sync::{Arc, atomic::AtomicU64};

    use super::*;

    struct Plain(Arc<Vec<AtomicU64>>);

    impl Words for Plain {
        fn count(&self) -> usize {
            self.0.len()
        }
        fn load(&self, index: usize, order: Ordering) -> u64 {
            self.0[index].load(order)
        }
        fn store(&self, index: usize, value: u64, order: Ordering) {
            self.0[index].store(value, order);
        }
        fn swap(&self, index: usize, value: u64, order: Ordering) -> u64 {
            self.0[index].swap(value, order)
        }
        fn compare_exchange(&self, index: usize, old: u64, new: u64) -> Result<u64, u64> {
            self.0[index].compare_exchange(old, new, Ordering::AcqRel, Acquire)
        }
    }

    fn ring(capacity: usize) -> (Producer<Plain>, Consumer<Plain>, Arc<Vec<AtomicU64>>) {
        let words: Arc<Vec<AtomicU64>> = Arc::new((0..DATA + capacity).map(|_| AtomicU64::new(0)).collect());
        (Producer::new(Plain(words.clone())), Consumer::new(Plain(words.clone())), words)
    }

    #[test]
    fn bytes_of_every_length_pass_through_the_ring() {
        let (mut tx, mut rx, _) = ring(64);
        for round in 0..50 {
            for len in 0..100usize {
                let bytes: Vec<u8> = (0..len).map(|at| (at + round) as u8).collect();
                assert!(tx.has_room(len.div_ceil(8)).unwrap());
                tx.push_bytes(&bytes);
                tx.publish();
                let mut got = vec![0; len];
                assert_eq!(rx.available().unwrap(), len.div_ceil(8));
                rx.copy_to(0, &mut got);
                rx.advance(len.div_ceil(8));
                rx.release();
                assert_eq!(got, bytes);
            }
        }
    }

    #[test]
    fn full_ring_has_no_room_until_words_are_released() {
        let (mut tx, mut rx, _) = ring(4);
        (0..4).for_each(|word| tx.push(word));
        assert!(!tx.has_room(1).unwrap());
        tx.publish();
        assert!(tx.block(1).unwrap());
        assert_eq!(rx.available(), Ok(4));
        assert_eq!([0, 1, 2, 3].map(|at| rx.word(at)), [0, 1, 2, 3]);
        rx.advance(3);
        assert!(!tx.has_room(1).unwrap(), "words that were read must still occupy the ring");
        assert!(rx.release(), "the waiting producer must be woken");
        assert!(tx.has_room(3).unwrap() && !tx.has_room(4).unwrap());
        assert!(!tx.block(3).unwrap());
    }

    #[test]
    fn doorbell_is_rung_only_for_sleeping_side() {
        let (mut tx, mut rx, _) = ring(8);
        tx.push(1);
        assert!(!tx.publish(), "no side sleeps");
        assert!(!rx.prepare_sleep().unwrap(), "there is a word to read");
        rx.advance(1);
        assert!(rx.prepare_sleep().unwrap());
        tx.push(2);
        assert!(tx.publish());
        tx.push(3);
        assert!(!tx.publish(), "the doorbell has been rung already");
    }

    #[test]
    fn invalid_indices_are_detected() {
        for tail in [9, u64::MAX, 1 << 63] {
            let (_, mut rx, words) = ring(8);
            words[TAIL].store(tail, Relaxed);
            assert_eq!(rx.available(), Err(Corrupt), "tail {tail}");
        }
        let (mut tx, mut rx, words) = ring(8);
        (0..8).for_each(|word| tx.push(word));
        tx.publish();
        rx.available().unwrap();
        rx.advance(8);
        words[TAIL].store(7, Relaxed);
        assert_eq!(rx.available(), Err(Corrupt), "a decreasing index must be detected");
        for head in [9, u64::MAX] {
            words[HEAD].store(head, Relaxed);
            assert_eq!(tx.has_room(1), Err(Corrupt), "head {head}");
        }
    }

    #[test]
    fn two_threads_exchange_a_million_words_in_order() {
        let (mut tx, mut rx, _) = ring(256);
        const COUNT: u64 = 1_000_000;
        let producer = std::thread::spawn(move || {
            for word in 0..COUNT {
                while !tx.has_room(1).unwrap() {
                    std::thread::yield_now();
                }
                tx.push(word);
                tx.publish();
            }
        });
        let mut expected = 0;
        while expected < COUNT {
            let available = rx.available().unwrap();
            if available == 0 {
                std::thread::yield_now();
            }
            for ahead in 0..available {
                assert_eq!(rx.word(ahead), expected);
                expected += 1;
            }
            rx.advance(available);
            rx.release();
        }
        producer.join().unwrap();
    }
}

/// Explores all interleavings of a producer and a consumer that the memory model permits, with loom.
///
/// Loom (0.7) orders the writes to a word only as far as one happens before another, and permits a plain store between
/// the two halves of a concurrent swap. With plain stores to the flags it therefore finds a deadlock that is impossible
/// on any machine: a producer's swap that returned "awake" and yet undoes the "asleep" that was stored later.
#[cfg(test)]
mod model {
    use loom::{
        sync::{Arc, Condvar, Mutex, atomic::AtomicU64},
        thread,
    };

    use super::*;

    struct Modelled(Arc<Vec<AtomicU64>>);

    /// Maps an index to the words of the model: four control words and two data words.
    fn index(index: usize) -> usize {
        match index {
            TAIL => 0,
            HEAD => 1,
            ASLEEP => 2,
            BLOCKED => 3,
            data => 4 + data - DATA,
        }
    }

    impl Words for Modelled {
        fn fence(&self) {
            loom::sync::atomic::fence(Ordering::SeqCst);
        }
        fn count(&self) -> usize {
            DATA + self.0.len() - 4
        }
        fn load(&self, at: usize, order: Ordering) -> u64 {
            self.0[index(at)].load(order)
        }
        fn store(&self, at: usize, value: u64, order: Ordering) {
            self.0[index(at)].store(value, order);
        }
        fn swap(&self, at: usize, value: u64, order: Ordering) -> u64 {
            self.0[index(at)].swap(value, order)
        }
        fn compare_exchange(&self, at: usize, old: u64, new: u64) -> Result<u64, u64> {
            self.0[index(at)].compare_exchange(old, new, Ordering::AcqRel, Acquire)
        }
    }

    fn ring(capacity: usize) -> (Producer<Modelled>, Consumer<Modelled>) {
        let words: Arc<Vec<AtomicU64>> = Arc::new((0..4 + capacity).map(|_| AtomicU64::new(0)).collect());
        (Producer::new(Modelled(words.clone())), Consumer::new(Modelled(words)))
    }

    /// A doorbell. It stays rung until a thread has waited for it.
    #[derive(Default)]
    struct Bell(Mutex<bool>, Condvar);

    impl Bell {
        fn ring(&self) {
            *self.0.lock().unwrap() = true;
            self.1.notify_one();
        }
        /// Waits for the doorbell. If it is never rung, this deadlocks, and loom reports that.
        fn wait(&self) {
            let mut rung = self.0.lock().unwrap();
            while !*rung {
                rung = self.1.wait(rung).unwrap();
            }
            *rung = false;
        }
    }

    /// Sends `count` words through a ring of `capacity` words. Both sides sleep whenever they cannot proceed.
    fn exchange(capacity: usize, count: u64) {
        let mut model = loom::model::Builder::new();
        // Two preemptions lead into a race, and a third prevents the way out of it. Without a bound, the second test
        // takes minutes.
        model.preemption_bound = Some(3);
        model.check(move || {
            let (mut tx, mut rx) = ring(capacity);
            let bells = Arc::new((Bell::default(), Bell::default()));
            let theirs = bells.clone();
            let producer = thread::spawn(move || {
                for word in 0..count {
                    while !tx.has_room(1).unwrap() {
                        if tx.block(1).unwrap() {
                            theirs.0.wait();
                        }
                    }
                    tx.push(word + 1);
                    if tx.publish() {
                        theirs.1.ring();
                    }
                }
            });
            let mut expected = 1;
            while expected <= count {
                let available = rx.available().unwrap();
                if available == 0 && rx.prepare_sleep().unwrap() {
                    bells.1.wait();
                }
                for ahead in 0..available {
                    assert_eq!(rx.word(ahead), expected, "a word must be read once, after it was written");
                    expected += 1;
                }
                rx.advance(available);
                if rx.release() {
                    bells.0.ring();
                }
            }
            producer.join().unwrap();
        });
    }

    #[test]
    fn no_word_is_lost_and_no_side_sleeps_forever() {
        exchange(2, 2);
    }

    #[test]
    fn producer_that_waits_for_room_is_woken() {
        exchange(1, 2);
    }
}
