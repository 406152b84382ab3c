//! [`ReadAhead`]: which parts of a file to ask for next, and the answers in order. No I/O.
//!
//! The file is asked for in blocks, up to a window ahead of what has been taken. The window begins at one block
//! and doubles with every block taken, so that a small file costs one READ and a large one fills the pipe. What a short
//! read leaves of a block is asked for again. An error waits its turn: what lies before it is handed out first.

use std::collections::VecDeque;

use bytes::Bytes;

use crate::call::payload::Pieces;

/// A part of the file to be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Request {
    pub offset: u64,
    pub len: usize,
}

/// What came of a [`Request`].
#[derive(Debug)]
pub(crate) struct Answer {
    pub data: Pieces,
    pub eof: bool,
    /// The file's size, if the server said it.
    pub size: Option<u64>,
}

#[derive(Debug)]
pub(crate) struct ReadAhead<E> {
    block: usize,
    window: usize,
    window_max: usize,
    /// Contiguous, from the next byte to be taken up to `asked`.
    slots: VecDeque<Slot<E>>,
    /// Everything below has a slot, or has been taken.
    asked: u64,
    /// Nothing is wanted from here on: the caller's limit, or the end of the file once it is seen.
    end: u64,
    /// The file's size as last heard. It is a hint: only an eof is the end.
    size: u64,
}

#[derive(Debug)]
struct Slot<E> {
    /// Where the bytes not yet answered begin.
    offset: u64,
    /// How many those are.
    missing: usize,
    /// They have been asked for.
    asked: bool,
    /// Answered and not taken.
    ready: VecDeque<Bytes>,
    error: Option<E>,
}

impl<E: Clone> ReadAhead<E> {
    /// Reads `start .. end` in requests of at most `block` bytes, with up to `window` bytes asked for ahead in the end.
    pub fn new(start: u64, end: u64, block: usize, window: usize) -> Self {
        assert!(block > 0, "a block has bytes");
        let slots = VecDeque::new();
        Self { block, window: block, window_max: window.max(block), slots, asked: start, end, size: u64::MAX }
    }

    /// Asks for the whole window at once: for a caller who is known to want all of it.
    pub fn make_eager(&mut self) {
        self.window = self.window_max;
    }

    /// The next request to send, if one is due.
    pub fn next_request(&mut self) -> Option<Request> {
        if let Some(slot) = self.slots.iter_mut().find(|slot| slot.missing > 0 && !slot.asked) {
            slot.asked = true;
            return Some(Request { offset: slot.offset, len: slot.missing });
        }
        if self.asked >= self.end || self.ahead() >= self.window {
            return None;
        }
        // Behind the size there should be nothing; that is asked only when all else has been taken.
        let room = match self.size.saturating_sub(self.asked) {
            0 if self.slots.is_empty() => u64::MAX,
            0 => return None,
            room => room,
        };
        let len = room.min(self.end - self.asked).min(self.block as u64) as usize;
        let request = Request { offset: self.asked, len };
        let ready = VecDeque::new();
        self.slots.push_back(Slot { offset: self.asked, missing: len, asked: true, ready, error: None });
        self.asked += len as u64;
        Some(request)
    }

    /// Takes the answer to a request.
    ///
    /// # Errors
    /// What is wrong with it: more than was asked for, or nothing without an end.
    pub fn answer(&mut self, request: Request, answer: Answer) -> Result<(), &'static str> {
        let Some(slot) = self.slots.iter_mut().find(|slot| slot.asked && slot.offset == request.offset) else {
            return Ok(()); // It lay behind the end of the file.
        };
        let len = answer.data.iter().map(Bytes::len).sum::<usize>();
        if len > request.len {
            return Err("more data than was asked for");
        }
        if len == 0 && !answer.eof {
            return Err("no data, and not the end of the file");
        }
        slot.offset += len as u64;
        slot.missing -= len;
        slot.asked = false;
        slot.ready.extend(answer.data.into_iter().filter(|data| !data.is_empty()));
        if answer.eof {
            let end = slot.offset;
            slot.missing = 0;
            self.finish_at(end);
        }
        if let Some(size) = answer.size {
            self.size = size;
        }
        Ok(())
    }

    /// A request has failed for good.
    pub fn fail(&mut self, request: Request, error: E) {
        if let Some(slot) = self.slots.iter_mut().find(|slot| slot.asked && slot.offset == request.offset) {
            slot.error = Some(error);
        }
    }

    /// The next bytes in order, or the error that stands in their place; `None` while they are not there.
    pub fn take(&mut self) -> Option<Result<Bytes, E>> {
        loop {
            let slot = self.slots.front_mut()?;
            if let Some(data) = slot.ready.pop_front() {
                return Some(Ok(data));
            }
            if slot.missing > 0 {
                return slot.error.clone().map(Err);
            }
            self.slots.pop_front();
            self.window = (self.window * 2).min(self.window_max);
        }
    }

    /// Whether all has been taken.
    pub fn is_done(&self) -> bool {
        self.slots.is_empty() && self.asked >= self.end
    }

    /// Bytes asked for and not taken.
    fn ahead(&self) -> usize {
        self.slots.iter().map(|slot| slot.missing + slot.ready.iter().map(Bytes::len).sum::<usize>()).sum()
    }

    fn finish_at(&mut self, end: u64) {
        self.end = self.end.min(end);
        self.asked = self.asked.min(self.end);
        // What was answered in a block behind the end belongs to a file that has since shrunk.
        while self.slots.back().is_some_and(|slot| slot.offset > end || (slot.missing > 0 && slot.offset >= end)) {
            self.slots.pop_back();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use super::*;

    fn answer(data: &[u8], eof: bool) -> Answer {
        Answer { data: [Bytes::copy_from_slice(data)].into_iter().collect(), eof, size: None }
    }

    fn request(offset: u64, len: usize) -> Option<Request> {
        Some(Request { offset, len })
    }

    #[test]
    fn the_window_begins_at_one_block_and_doubles() {
        let mut ahead = ReadAhead::<()>::new(0, u64::MAX, 4, 16);
        for round in [1, 2, 4, 4] {
            let mut requests = Vec::new();
            while let Some(request) = ahead.next_request() {
                requests.push(request);
            }
            assert_eq!(requests.len(), round, "requests when all before has been taken");
            for request in requests.drain(..) {
                ahead.answer(request, answer(&[0; 4], false)).unwrap();
            }
            while let Some(data) = ahead.take() {
                assert_eq!(data.unwrap().len(), 4);
            }
        }
    }

    #[test]
    fn a_file_known_to_be_small_is_not_asked_for_beyond_its_size() {
        let mut ahead = ReadAhead::<()>::new(0, u64::MAX, 4, 100);
        let first = ahead.next_request().unwrap();
        ahead.answer(first, Answer { size: Some(6), ..answer(b"abcd", false) }).unwrap();
        assert_eq!(ahead.take(), Some(Ok(Bytes::from_static(b"abcd"))));
        assert_eq!(ahead.take(), None);
        assert_eq!(ahead.next_request(), request(4, 2));
        assert_eq!(ahead.next_request(), None);
        ahead.answer(request(4, 2).unwrap(), answer(b"ef", false)).unwrap();
        assert_eq!(ahead.take(), Some(Ok(Bytes::from_static(b"ef"))));
        assert_eq!(ahead.take(), None);
        // No eof was seen: the file may have grown.
        assert!(!ahead.is_done());
        assert_eq!(ahead.next_request(), request(6, 4));
        ahead.answer(request(6, 4).unwrap(), answer(b"", true)).unwrap();
        assert_eq!((ahead.take(), ahead.is_done()), (None, true));
    }

    #[test]
    fn what_lies_before_an_error_comes_first() {
        let mut ahead = ReadAhead::new(0, 8, 4, 100);
        ahead.make_eager();
        let (first, second) = (ahead.next_request().unwrap(), ahead.next_request().unwrap());
        ahead.fail(second, "bad sector");
        assert_eq!(ahead.take(), None);
        ahead.answer(first, answer(b"abcd", false)).unwrap();
        assert_eq!(ahead.take(), Some(Ok(Bytes::from_static(b"abcd"))));
        assert_eq!(ahead.take(), Some(Err("bad sector")));
        assert_eq!(ahead.take(), Some(Err("bad sector")), "and stays");
    }

    #[test]
    fn a_server_that_makes_no_sense_is_found_out() {
        let mut ahead = ReadAhead::<()>::new(0, 8, 4, 100);
        let first = ahead.next_request().unwrap();
        assert!(ahead.answer(first, answer(b"abcde", false)).is_err());
        assert!(ahead.answer(first, answer(b"", false)).is_err());
    }

    proptest! {
        /// Whatever order and shape the answers have, the bytes are those of the file.
        #[test]
        fn the_bytes_are_those_of_the_file(
            size in 0usize..500,
            start in 0usize..520,
            limit in prop_oneof![Just(u64::MAX), 0u64..520],
            block in 1usize..64,
            window in 1usize..300,
            choices in prop::collection::vec(any::<u16>(), 1..64),
        ) {
            let file: Vec<u8> = (0..size).map(|i| (i * 7 % 251) as u8).collect();
            let mut ahead = ReadAhead::<()>::new(start as u64, limit, block, window);
            let mut choices = choices.into_iter().cycle();
            let mut choose = |n: usize| choices.next().unwrap() as usize % n;
            let mut pending = VecDeque::new();
            let mut got = Vec::new();
            while !ahead.is_done() {
                while let Some(request) = ahead.next_request() {
                    prop_assert!(request.len > 0 && request.len <= block);
                    prop_assert!(request.offset + request.len as u64 <= limit);
                    pending.push_back(request);
                }
                prop_assert!(ahead.ahead() <= window.max(block) + block);
                if let Some(request) = pending.remove(choose(pending.len().max(1))) {
                    let from = size.min(request.offset as usize);
                    let most = request.len.min(size - from);
                    let len = if most > 1 { 1 + choose(most) } else { most };
                    let eof = from + len == size && (len < request.len || choose(2) == 0);
                    let told = (choose(2) == 0).then_some(size as u64);
                    ahead.answer(request, Answer { size: told, ..answer(&file[from..from + len], eof) }).unwrap();
                }
                while let Some(data) = ahead.take() {
                    got.extend_from_slice(&data.unwrap());
                }
            }
            let end = size.min(usize::try_from(limit).unwrap_or(size)).max(start.min(size));
            prop_assert_eq!(&got[..], &file[start.min(size)..end]);
        }
    }
}
