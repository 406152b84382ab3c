//! [`ReadAhead`]: decides which parts of a file to request next, and returns the data in order. No I/O.
//!
//! The file is requested in blocks, up to a window beyond the data that were taken. The window starts at one block and
//! doubles with every block that is taken. So a small file costs one READ, and the requests of a large file keep the
//! connection busy. The rest of a block after a short read is requested again. An error is returned only after all data
//! before it.

use std::collections::VecDeque;

use bytes::Bytes;

use crate::call::payload::Pieces;

/// A part of the file to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Request {
    pub offset: u64,
    pub len: usize,
}

/// The reply to a [`Request`].
#[derive(Debug)]
pub(crate) struct Answer {
    pub data: Pieces,
    pub eof: bool,
    /// The file's size, if the server sent it.
    pub size: Option<u64>,
}

#[derive(Debug)]
pub(crate) struct ReadAhead<E> {
    block: usize,
    window: usize,
    window_max: usize,
    /// The blocks from the next byte to take up to `requested`, without gaps.
    slots: VecDeque<Slot<E>>,
    /// The end of the requested part: all bytes below have a slot or were taken.
    requested: u64,
    /// The end of the part to read: the caller's limit, or the end of the file when it is known.
    end: u64,
    /// The last known size of the file. It is a hint; only `eof` marks the end.
    size: u64,
}

#[derive(Debug)]
struct Slot<E> {
    /// The offset of the first byte that was not yet received.
    offset: u64,
    /// The number of bytes that were not yet received.
    missing: usize,
    /// Set if these bytes have been requested.
    requested: bool,
    /// Received data that were not yet taken.
    ready: VecDeque<Bytes>,
    error: Option<E>,
}

impl<E: Clone> ReadAhead<E> {
    /// Reads `start .. end` in requests of at most `block` bytes. The window grows up to `window` bytes.
    pub fn new(start: u64, end: u64, block: usize, window: usize) -> Self {
        assert!(block > 0, "the block size must not be zero");
        let slots = VecDeque::new();
        Self { block, window: block, window_max: window.max(block), slots, requested: start, end, size: u64::MAX }
    }

    /// Opens the whole window at once, for a caller that needs all data.
    pub fn make_eager(&mut self) {
        self.window = self.window_max;
    }

    /// Returns the next request to send, if one is due.
    pub fn next_request(&mut self) -> Option<Request> {
        if let Some(slot) = self.slots.iter_mut().find(|slot| slot.missing > 0 && !slot.requested) {
            slot.requested = true;
            return Some(Request { offset: slot.offset, len: slot.missing });
        }
        if self.requested >= self.end || self.ahead() >= self.window {
            return None;
        }
        // There should be no data beyond the known size. A request there is due only when all other data were taken.
        let room = match self.size.saturating_sub(self.requested) {
            0 if self.slots.is_empty() => u64::MAX,
            0 => return None,
            room => room,
        };
        let len = room.min(self.end - self.requested).min(self.block as u64) as usize;
        let request = Request { offset: self.requested, len };
        let ready = VecDeque::new();
        self.slots.push_back(Slot { offset: self.requested, missing: len, requested: true, ready, error: None });
        self.requested += len as u64;
        Some(request)
    }

    /// Processes the reply to a request.
    ///
    /// # Errors
    /// A description of an invalid reply: more data than requested, or no data and no end of the file.
    pub fn answer(&mut self, request: Request, answer: Answer) -> Result<(), &'static str> {
        let Some(slot) = self.slots.iter_mut().find(|slot| slot.requested && slot.offset == request.offset) else {
            return Ok(()); // The block was beyond the end of the file.
        };
        let len = answer.data.iter().map(Bytes::len).sum::<usize>();
        if len > request.len {
            return Err("more data than requested");
        }
        if len == 0 && !answer.eof {
            return Err("no data, but not the end of the file");
        }
        slot.offset += len as u64;
        slot.missing -= len;
        slot.requested = false;
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

    /// Stores the error of a request that will not be retried.
    pub fn fail(&mut self, request: Request, error: E) {
        if let Some(slot) = self.slots.iter_mut().find(|slot| slot.requested && slot.offset == request.offset) {
            slot.error = Some(error);
        }
    }

    /// Takes the next bytes in order, or the error in their place. Returns `None` if they were not yet received.
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

    /// Returns `true` if all data were taken.
    pub fn is_done(&self) -> bool {
        self.slots.is_empty() && self.requested >= self.end
    }

    /// Returns the number of bytes that were requested and not yet taken.
    fn ahead(&self) -> usize {
        self.slots.iter().map(|slot| slot.missing + slot.ready.iter().map(Bytes::len).sum::<usize>()).sum()
    }

    fn finish_at(&mut self, end: u64) {
        self.end = self.end.min(end);
        self.requested = self.requested.min(self.end);
        // If data beyond the end were received, the file has shrunk since then.
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
    fn window_starts_at_one_block_and_doubles() {
        let mut ahead = ReadAhead::<()>::new(0, u64::MAX, 4, 16);
        for round in [1, 2, 4, 4] {
            let mut requests = Vec::new();
            while let Some(request) = ahead.next_request() {
                requests.push(request);
            }
            assert_eq!(requests.len(), round, "number of requests after all data were taken");
            for request in requests.drain(..) {
                ahead.answer(request, answer(&[0; 4], false)).unwrap();
            }
            while let Some(data) = ahead.take() {
                assert_eq!(data.unwrap().len(), 4);
            }
        }
    }

    #[test]
    fn no_request_beyond_known_size_until_all_data_are_taken() {
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
        // No eof was received, so the file may have grown.
        assert!(!ahead.is_done());
        assert_eq!(ahead.next_request(), request(6, 4));
        ahead.answer(request(6, 4).unwrap(), answer(b"", true)).unwrap();
        assert_eq!((ahead.take(), ahead.is_done()), (None, true));
    }

    #[test]
    fn data_before_an_error_are_returned_first() {
        let mut ahead = ReadAhead::new(0, 8, 4, 100);
        ahead.make_eager();
        let (first, second) = (ahead.next_request().unwrap(), ahead.next_request().unwrap());
        ahead.fail(second, "bad sector");
        assert_eq!(ahead.take(), None);
        ahead.answer(first, answer(b"abcd", false)).unwrap();
        assert_eq!(ahead.take(), Some(Ok(Bytes::from_static(b"abcd"))));
        assert_eq!(ahead.take(), Some(Err("bad sector")));
        assert_eq!(ahead.take(), Some(Err("bad sector")), "the error must be repeated");
    }

    #[test]
    fn invalid_replies_are_rejected() {
        let mut ahead = ReadAhead::<()>::new(0, 8, 4, 100);
        let first = ahead.next_request().unwrap();
        assert!(ahead.answer(first, answer(b"abcde", false)).is_err());
        assert!(ahead.answer(first, answer(b"", false)).is_err());
    }

    proptest! {
        /// For any order and shape of the replies, the data are those of the file.
        #[test]
        fn data_equal_the_file(
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
                    let reported = (choose(2) == 0).then_some(size as u64);
                    ahead.answer(request, Answer { size: reported, ..answer(&file[from..from + len], eof) }).unwrap();
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
