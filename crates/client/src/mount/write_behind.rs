//! [`WriteBehind`]: decides which data to write, commit and write again, with bounded memory. No I/O.
//!
//! Data are sent UNSTABLE and kept until a COMMIT has made them durable (RFC 1813 §3.3.21). A COMMIT covers the blocks
//! that were written before it was sent. A block is durable if its write verifier is the one that COMMIT returned. The
//! other covered blocks may be lost, because the server has restarted. They are written again, synchronously, so that a
//! second restart cannot lose them. Blocks never overlap, so their order does not matter.

use std::collections::VecDeque;

use buf::Rope;

use crate::model::{StableHow, Verifier, Written};

/// A part of the file to write.
#[derive(Clone, Debug)]
pub(crate) struct Block {
    pub offset: u64,
    pub data: Rope,
    pub stable: StableHow,
}

/// The next action.
#[derive(Debug)]
pub(crate) enum Action {
    Write(Block),
    Commit,
}

#[derive(Debug)]
pub(crate) struct WriteBehind {
    /// Maximum bytes held.
    limit: usize,
    /// The offset of the next byte.
    at: u64,
    queued: VecDeque<Block>,
    /// The number of bytes in blocks that are being written.
    in_flight: usize,
    /// Blocks that were written and not yet committed, with the verifiers of their writes.
    uncommitted: Vec<(Block, Verifier)>,
    uncommitted_bytes: usize,
    /// The number of blocks, from the first of `uncommitted`, that the outstanding COMMIT covers.
    committing: Option<usize>,
    /// The number of bytes that are queued, being written or uncommitted.
    held: usize,
}

impl WriteBehind {
    /// Writes from `start` on and holds at most `limit` bytes, or one block.
    pub fn new(start: u64, limit: usize) -> Self {
        Self {
            limit,
            at: start,
            queued: VecDeque::new(),
            in_flight: 0,
            uncommitted: Vec::new(),
            uncommitted_bytes: 0,
            committing: None,
            held: 0,
        }
    }

    /// Returns the offset of the next byte.
    pub fn position(&self) -> u64 {
        self.at
    }

    /// Returns `true` if `len` more bytes may be pushed.
    pub fn has_room(&self, len: usize) -> bool {
        self.held == 0 || self.held + len <= self.limit
    }

    /// Returns `true` if more bytes are held than the limit allows, because holes have made small blocks.
    pub fn is_overfull(&self) -> bool {
        self.held > self.limit
    }

    /// Appends a block.
    pub fn push(&mut self, data: Rope) {
        if !data.is_empty() {
            let len = data.len();
            self.queued.push_back(Block { offset: self.at, data, stable: StableHow::Unstable });
            self.held += len;
            self.at += len as u64;
        }
    }

    /// Leaves a hole.
    pub fn skip(&mut self, len: u64) {
        self.at += len;
    }

    /// Returns the next action, if one is due. With `flush`, the caller pushes nothing more before all data are
    /// durable.
    pub fn next_action(&mut self, flush: bool) -> Option<Action> {
        // Half of the memory is for blocks being written, the other half for blocks that wait for COMMIT.
        let may_send = self.in_flight == 0 || self.in_flight < self.limit / 2;
        if may_send && let Some(mut block) = self.queued.pop_front() {
            if flush && self.held == block.data.len() {
                // All data fit in one WRITE: one synchronous WRITE costs less than a WRITE and a COMMIT.
                block.stable = StableHow::FileSync;
            }
            self.in_flight += block.data.len();
            return Some(Action::Write(block));
        }
        let written = self.queued.is_empty() && self.in_flight == 0;
        let due = (flush && written) || self.uncommitted_bytes >= self.limit / 2;
        if due && self.committing.is_none() && !self.uncommitted.is_empty() {
            self.committing = Some(self.uncommitted.len());
            return Some(Action::Commit);
        }
        None
    }

    /// Processes the reply to a WRITE of a block, which may have written only its first bytes.
    ///
    /// # Errors
    /// A description of an invalid reply.
    pub fn written(&mut self, block: Block, ok: &Written) -> Result<(), &'static str> {
        let (len, count) = (block.data.len(), ok.count as usize);
        if count > len {
            return Err("more bytes were written than were sent");
        }
        if count == 0 {
            return Err("no bytes were written, but the status is OK");
        }
        // RFC 1813 §3.3.7: the server must commit at least as durably as requested.
        if ok.committed < block.stable {
            return Err("the data are less durable than requested");
        }
        self.in_flight -= len;
        if count < len {
            let offset = block.offset + count as u64;
            self.queued.push_front(Block { offset, data: block.data.slice(count, len - count), ..block });
        }
        if ok.committed == StableHow::Unstable {
            let data = if count < len { block.data.slice(0, count) } else { block.data };
            self.uncommitted.push((Block { data, ..block }, ok.verf));
            self.uncommitted_bytes += count;
        } else {
            self.held -= count;
        }
        Ok(())
    }

    /// Processes a successful COMMIT. Returns the number of bytes that must be written again.
    ///
    /// # Panics
    /// If no COMMIT was outstanding.
    pub fn committed(&mut self, verifier: Verifier) -> usize {
        let covered = self.committing.take().expect("a COMMIT must be outstanding");
        let mut again = 0;
        for (mut block, verf) in self.uncommitted.drain(..covered) {
            let len = block.data.len();
            self.uncommitted_bytes -= len;
            //= rfc8881-18.32.3-5
            if verf == verifier {
                self.held -= len;
            } else {
                again += len;
                block.stable = StableHow::FileSync;
                self.queued.push_front(block);
            }
        }
        again
    }

    /// Returns `true` if all data are durable.
    pub fn is_clean(&self) -> bool {
        self.held == 0
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use proptest::prelude::*;

    use super::*;

    fn ok(count: usize, committed: StableHow, verf: u8) -> Written {
        Written { count: count as u32, committed, verf: [verf; 8] }
    }

    fn rope(bytes: &'static [u8]) -> Rope {
        Rope::from(Bytes::from_static(bytes))
    }

    fn write(action: Option<Action>) -> Block {
        match action {
            Some(Action::Write(block)) => block,
            other => panic!("expected a write, not {other:?}"),
        }
    }

    #[test]
    fn small_file_needs_one_synchronous_write() {
        let mut behind = WriteBehind::new(0, 100);
        behind.push(rope(b"hello"));
        let block = write(behind.next_action(true));
        assert_eq!((block.offset, block.stable), (0, StableHow::FileSync));
        behind.written(block, &ok(5, StableHow::FileSync, 1)).unwrap();
        assert!(behind.is_clean() && behind.next_action(true).is_none());
    }

    #[test]
    fn memory_is_bounded_and_freed_by_commit() {
        let mut behind = WriteBehind::new(0, 8);
        behind.push(rope(b"aaaa"));
        behind.push(rope(b"bbbb"));
        assert!(!behind.has_room(1));
        let (a, none) = (write(behind.next_action(false)), behind.next_action(false));
        assert!(none.is_none(), "half of the memory is for blocks being written");
        behind.written(a, &ok(4, StableHow::Unstable, 1)).unwrap();
        let b = write(behind.next_action(false));
        assert!(matches!(behind.next_action(false), Some(Action::Commit)));
        assert!(behind.next_action(false).is_none(), "one COMMIT at a time");
        behind.written(b, &ok(4, StableHow::Unstable, 1)).unwrap();
        assert!(!behind.has_room(1));
        assert_eq!(behind.committed([1; 8]), 0);
        assert!(behind.has_room(4) && !behind.has_room(5), "the COMMIT does not cover the second block");
    }

    #[test]
    fn changed_verifier_causes_rewrite() {
        let mut behind = WriteBehind::new(10, 100);
        behind.push(rope(b"aaaa"));
        let block = write(behind.next_action(false));
        behind.push(rope(b"bb"));
        behind.written(block, &ok(3, StableHow::Unstable, 1)).unwrap();
        let rest = write(behind.next_action(true));
        assert_eq!((rest.offset, rest.data.len()), (13, 1));
        behind.written(rest, &ok(1, StableHow::Unstable, 2)).unwrap();
        let block = write(behind.next_action(true));
        behind.written(block, &ok(2, StableHow::Unstable, 2)).unwrap();
        assert!(matches!(behind.next_action(true), Some(Action::Commit)));
        //= rfc8881-18.32.3-5
        assert_eq!(behind.committed([2; 8]), 3);
        let again = write(behind.next_action(true));
        assert_eq!((again.offset, again.data.len(), again.stable), (10, 3, StableHow::FileSync));
        behind.written(again, &ok(3, StableHow::FileSync, 2)).unwrap();
        assert!(behind.is_clean());
    }

    #[test]
    fn invalid_replies_are_rejected() {
        let mut behind = WriteBehind::new(0, 100);
        behind.push(rope(b"aaaa"));
        let block = write(behind.next_action(true));
        assert!(behind.written(block.clone(), &ok(5, StableHow::FileSync, 1)).is_err());
        assert!(behind.written(block.clone(), &ok(0, StableHow::FileSync, 1)).is_err());
        assert!(behind.written(block, &ok(4, StableHow::Unstable, 1)).is_err());
    }

    /// A server that loses uncommitted data when it restarts.
    #[derive(Default)]
    struct Server {
        disk: Vec<u8>,
        cached: Vec<(usize, Vec<u8>)>,
        boot: u8,
    }

    impl Server {
        fn write(&mut self, block: &Block, count: usize) -> Written {
            let data = block.data.to_bytes().unwrap()[..count].to_vec();
            self.cached.push((block.offset as usize, data));
            if block.stable != StableHow::Unstable {
                self.commit();
            }
            ok(count, block.stable, self.boot)
        }

        fn commit(&mut self) -> Verifier {
            for (offset, data) in self.cached.drain(..) {
                self.disk.resize(self.disk.len().max(offset + data.len()), 0);
                self.disk[offset..offset + data.len()].copy_from_slice(&data);
            }
            [self.boot; 8]
        }

        fn restart(&mut self) {
            self.cached.clear();
            self.boot = self.boot.wrapping_add(1);
        }
    }

    proptest! {
        /// Short writes, restarts at any time and replies in any order lose no data, and memory stays bounded.
        #[test]
        fn no_data_are_lost(
            blocks in prop::collection::vec((1usize..20, 0u64..5), 1..40),
            limit in 0usize..100,
            choices in prop::collection::vec(any::<u16>(), 1..64),
        ) {
            let mut choices = choices.into_iter().cycle();
            let mut steps = 0;
            let mut choose = |n: usize| choices.next().unwrap() as usize % n;
            let (mut behind, mut server) = (WriteBehind::new(0, limit), Server::default());
            let mut expected = Vec::new();
            let mut blocks = blocks.into_iter().peekable();
            let mut replies: Vec<(Option<Block>, Written)> = Vec::new();
            while blocks.peek().is_some() || !behind.is_clean() {
                if let Some(&(len, hole)) = blocks.peek() && behind.has_room(len) {
                    behind.skip(hole);
                    expected.resize(expected.len() + hole as usize, 0);
                    let data: Vec<u8> = (0..len).map(|i| (expected.len() + i) as u8 | 1).collect();
                    expected.extend_from_slice(&data);
                    behind.push(Rope::from(Bytes::from(data)));
                    blocks.next();
                }
                // Some sequences of choices repeat forever. A server that always restarts would never finish.
                steps += 1;
                if steps < 1000 && choose(7) == 0 {
                    server.restart();
                }
                let stuck = blocks.peek().is_some_and(|&(len, _)| !behind.has_room(len));
                while let Some(action) = behind.next_action(blocks.peek().is_none() || stuck) {
                    replies.push(match action {
                        Action::Write(block) => {
                            let len = block.data.len();
                            let count = if steps < 1000 { 1 + choose(len) } else { len };
                            let reply = server.write(&block, count);
                            (Some(block), reply)
                        }
                        Action::Commit => {
                            let verf = server.commit();
                            (None, Written { verf, ..ok(0, StableHow::FileSync, 0) })
                        }
                    });
                }
                prop_assert!(behind.held <= limit.max(20));
                if !replies.is_empty() {
                    match replies.swap_remove(choose(replies.len())) {
                        (Some(block), reply) => behind.written(block, &reply).unwrap(),
                        (None, reply) => { behind.committed(reply.verf); }
                    }
                }
            }
            prop_assert_eq!(server.disk, expected);
        }
    }
}
