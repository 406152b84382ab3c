//! A ring for one producer and one consumer, in memory that a hostile peer can write at any time.
//!
//! Memory is seen as 64-bit words, each of them an atomic, so that no access is a data race whoever writes there. Two
//! indices count words and never wrap: the producer's `TAIL`, the consumer's `HEAD`. Each side keeps its own index to
//! itself and only *tells* the other; what it reads of the other's is checked before it is used, so that a peer that lies
//! about it is found out and reaches nothing but its own words.
//!
//! Sleeping is by two flags. A consumer that finds nothing sets `ASLEEP`, looks once more, and then waits for its
//! doorbell; a producer that has published looks at `ASLEEP` and rings. Between "I have published" and "are you asleep?"
//! on one side, and "I fall asleep" and "is there something?" on the other, stands a sequentially consistent fence: at
//! least one of the two sees the other. `BLOCKED` is the same for a producer that waits for room. Both sides write the
//! flags, so all writes to them are swaps: each then follows the one before it, for the processor as for the model below.

use std::sync::atomic::Ordering::{self, Acquire, Relaxed, Release};

/// The memory of a ring. All accesses are atomic.
pub(crate) trait Words {
    /// How many there are, a power of two more than [`DATA`].
    fn count(&self) -> usize;
    /// Loads word `index`.
    fn load(&self, index: usize, order: Ordering) -> u64;
    /// Stores word `index`.
    fn store(&self, index: usize, value: u64, order: Ordering);
    /// Replaces word `index`; returns what it was.
    fn swap(&self, index: usize, value: u64, order: Ordering) -> u64;
    /// A sequentially consistent fence.
    #[inline]
    fn fence(&self) {
        std::sync::atomic::fence(Ordering::SeqCst);
    }
    /// Replaces word `index` if it is `old`, with acquire and release; else returns what it is.
    fn compare_exchange(&self, index: usize, old: u64, new: u64) -> Result<u64, u64>;
}

/// The other side has written what cannot be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Corrupt;

/// The writing end.
pub(crate) struct Producer<W> {
    words: W,
    /// Written, perhaps not yet published.
    tail: u64,
    published: u64,
    /// How far the consumer was when last looked at.
    head: u64,
}

/// The reading end.
pub(crate) struct Consumer<W> {
    words: W,
    head: u64,
    released: u64,
    /// How far the producer was when last looked at.
    tail: u64,
}

impl<W: Words> Producer<W> {
    /// The writing end of a ring that is all zeros.
    pub(crate) fn new(words: W) -> Self {
        Self { words, tail: 0, published: 0, head: 0 }
    }

    /// Whether there is room for `len` words.
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

    /// Appends a word; room for it has been found.
    #[inline]
    pub(crate) fn push(&mut self, word: u64) {
        self.words.store(self.place(self.tail), word, Relaxed);
        self.tail += 1;
    }

    /// Appends bytes, filled up to a whole word with zeros; room has been found.
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

    /// Shows the consumer what was appended. True if its doorbell must be rung.
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

    /// Asks for the doorbell when there is room for `len` words. False if there is by now.
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
    /// The reading end of a ring that is all zeros.
    pub(crate) fn new(words: W) -> Self {
        Self { words, head: 0, released: 0, tail: 0 }
    }

    /// Words that can be read.
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

    /// The word `ahead` of the next. It may differ each time: what is checked is what was loaded once.
    #[inline]
    pub(crate) fn word(&self, ahead: usize) -> u64 {
        self.words.load(place(&self.words, self.head + ahead as u64), Relaxed)
    }

    /// Copies bytes that begin `ahead` words from the next.
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

    /// Is done with `len` words, that were available.
    #[inline]
    pub(crate) fn advance(&mut self, len: usize) {
        self.head += len as u64;
        assert!(self.head <= self.tail, "no more is taken than was available");
    }

    /// Whether much has been read that the producer cannot use again yet.
    pub(crate) fn should_release(&self) -> bool {
        self.head - self.released >= self.capacity() / 2
    }

    /// Gives what was read back to the producer. True if its doorbell must be rung.
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

    /// Asks for the doorbell. False if there is something to read by now.
    pub(crate) fn doze(&mut self) -> Result<bool, Corrupt> {
        self.words.swap(ASLEEP, 1, Relaxed);
        self.words.fence();
        let dozing = self.available()? == 0;
        if !dozing {
            self.rouse();
        }
        Ok(dozing)
    }

    /// Wants no doorbell.
    pub(crate) fn rouse(&mut self) {
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
    // A power of two, so that no index that a peer could bring about lies outside.
    DATA + (index as usize & (capacity - 1))
}

// Each in a pair of cache lines of its own (processors fetch pairs).
const TAIL: usize = 0;
const HEAD: usize = 16;
const ASLEEP: usize = 32;
const BLOCKED: usize = 48;
/// Words before the data.
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
    fn bytes_of_every_length_come_through_many_times_around() {
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
    fn a_full_ring_has_no_room_until_words_are_released() {
        let (mut tx, mut rx, _) = ring(4);
        (0..4).for_each(|word| tx.push(word));
        assert!(!tx.has_room(1).unwrap());
        tx.publish();
        assert!(tx.block(1).unwrap());
        assert_eq!(rx.available(), Ok(4));
        assert_eq!([0, 1, 2, 3].map(|at| rx.word(at)), [0, 1, 2, 3]);
        rx.advance(3);
        assert!(!tx.has_room(1).unwrap(), "read, but not released");
        assert!(rx.release(), "the producer waits");
        assert!(tx.has_room(3).unwrap() && !tx.has_room(4).unwrap());
        assert!(!tx.block(3).unwrap());
    }

    #[test]
    fn the_doorbell_is_rung_for_who_sleeps_and_nobody_else() {
        let (mut tx, mut rx, _) = ring(8);
        tx.push(1);
        assert!(!tx.publish(), "nobody sleeps");
        assert!(!rx.doze().unwrap(), "there is something");
        rx.advance(1);
        assert!(rx.doze().unwrap());
        tx.push(2);
        assert!(tx.publish());
        tx.push(3);
        assert!(!tx.publish(), "it has been rung");
    }

    #[test]
    fn indices_that_cannot_be_are_found_out() {
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
        assert_eq!(rx.available(), Err(Corrupt), "it went back");
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

/// All interleavings of a producer and a consumer, with all that the memory model allows, explored by loom.
///
/// Loom (0.7) orders the writes to a word only as far as one happens before another, and lets a plain store come between the
/// two halves of a concurrent swap. With plain stores to the flags it so finds a deadlock that no machine can have: a
/// producer's swap that returned "awake" and yet undoes the "asleep" that was stored after.
#[cfg(test)]
mod model {
    use loom::{
        sync::{Arc, Condvar, Mutex, atomic::AtomicU64},
        thread,
    };

    use super::*;

    struct Modelled(Arc<Vec<AtomicU64>>);

    /// The words that exist in the model: the four of control, and two of data.
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

    /// A doorbell: what is rung stays rung until somebody has waited for it.
    #[derive(Default)]
    struct Bell(Mutex<bool>, Condvar);

    impl Bell {
        fn ring(&self) {
            *self.0.lock().unwrap() = true;
            self.1.notify_one();
        }
        /// Deadlocks, which loom reports, if nobody ever rings.
        fn wait(&self) {
            let mut rung = self.0.lock().unwrap();
            while !*rung {
                rung = self.1.wait(rung).unwrap();
            }
            *rung = false;
        }
    }

    /// Sends `count` words through `capacity`, both sides sleeping whenever they cannot go on.
    fn exchange(capacity: usize, count: u64) {
        let mut model = loom::model::Builder::new();
        // Two to get into a race, and one to spoil the way out of it; without a bound the second test takes minutes.
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
                if available == 0 && rx.doze().unwrap() {
                    bells.1.wait();
                }
                for ahead in 0..available {
                    assert_eq!(rx.word(ahead), expected, "a word was seen before it was written, or twice");
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
    fn no_word_is_lost_and_nobody_sleeps_for_ever() {
        exchange(2, 2);
    }

    #[test]
    fn a_producer_that_waits_for_room_is_woken() {
        exchange(1, 2);
    }
}
