//! Moving data of calls that we answer: RDMA Reads of their chunks, RDMA Writes to those of their replies.
//! (RDMA Reads of replies are in `fetch.rs`.)
//!
//! Read RFC 8166 §3.4.5 and §3.4.6. Each segment is one RDMA operation; the queue pair starts no more RDMA
//! Reads at once than the peer takes. Bytes being read on one connection are bounded: further calls wait in order.
//!
//! On error the queue pair says that the connection is ending; nothing is retried.

use std::time::Instant;

use buf::{Buffer, Piece, Rope};
use bytes::Bytes;
use rdma::WorkRequest;

use crate::{
    Connection, Registry,
    chunk::{Chunk, ReadList},
    connection::{Deadline, Name},
    recv::{Incoming, Stage},
    table::Key,
};

/// The read chunks of one call on their way.
#[derive(Debug)]
pub(crate) struct Pull {
    /// The stream, if it was inline.
    inline: Option<Bytes>,
    /// What has arrived, one for each segment that holds bytes, in order of position.
    parts: Vec<Option<Piece>>,
    /// How many have not.
    missing: usize,
    /// Memory that it takes.
    bytes: usize,
}

impl Pull {
    pub(crate) fn new(inline: Option<Bytes>, reads: &ReadList) -> Self {
        let segments = || reads.chunks().iter().flat_map(|read| read.chunk.parts());
        let missing = segments().count();
        let bytes = segments().map(|(_, segment)| (segment.length as usize).max(BUFFER_MIN)).sum();
        Self { inline, parts: (0..missing).map(|_| None).collect(), missing, bytes }
    }

    /// A segment's bytes are here.
    pub(crate) fn arrived(&mut self, part: usize, bytes: Piece) {
        let slot = self.parts[part].replace(bytes);
        assert!(slot.is_none(), "one completion for each RDMA Read");
        self.missing -= 1;
    }

    /// Whether all of them are.
    pub(crate) fn is_complete(&self) -> bool {
        self.missing == 0
    }

    /// The inline stream, and the parts in order.
    pub(crate) fn into_parts(self) -> (Option<Bytes>, impl Iterator<Item = Piece>) {
        assert_eq!(self.missing, 0);
        (self.inline, self.parts.into_iter().flatten())
    }
}

impl Connection {
    /// Posts the RDMA Reads of the calls that wait, as far as the bound on bytes allows. Data that can be used where they
    /// are need none; a stream is read in any case, since nobody else must be able to change what is parsed.
    pub(crate) fn start_pulls(&mut self, registry: &mut dyn Registry) {
        let now = self.now.expect("a call has arrived with a completion");
        while let Some(&key) = self.to_pull.front() {
            let Some(Incoming { stage: Stage::Pull(pull), lists, .. }) = self.incoming.get_mut(key) else {
                unreachable!("a call that waits to be pulled stands")
            };
            if self.pulling_bytes > 0 && self.pulling_bytes + pull.bytes > self.settings.options.pull_max {
                return;
            }
            self.to_pull.pop_front();
            self.pulling_bytes += pull.bytes;
            let chunks = lists.reads.chunks().iter();
            let segments = chunks.flat_map(|read| read.chunk.parts().map(|(_, segment)| (read.position, segment)));
            for (part, (position, segment)) in segments.enumerate() {
                let (from, len) = (segment.remote(0), segment.length as usize);
                if let Some(view) = if position == 0 { None } else { registry.view(from, len) } {
                    pull.arrived(part, Piece::Peer(view));
                    continue;
                }
                let (id, into) = (Name::Read(key, part).into(), self.pool.take(len));
                self.work.push_back(crate::Work::Post(WorkRequest::Read { id, into, from }));
            }
            if pull.is_complete() {
                self.pulled(key); // its segments are empty, or can be used where they are
            } else {
                self.last_read = Some(now);
                self.add_deadline(Deadline::Pull(key), now);
            }
        }
    }

    /// One RDMA Read is done.
    pub(crate) fn handle_read(&mut self, key: Key, part: usize, buffer: Buffer, now: Instant) {
        let Some(Incoming { stage: Stage::Pull(pull), .. }) = self.incoming.get_mut(key) else {
            unreachable!("a call stands while it is being read")
        };
        pull.arrived(part, Piece::Memory(buffer.freeze()));
        self.last_read = Some(now);
        if pull.is_complete() {
            self.pulled(key);
        }
    }

    /// Posts the RDMA Writes that put `data` at the start of `chunk`.
    ///
    /// # Panics
    /// If the chunk is shorter.
    pub(crate) fn write_chunk(&mut self, chunk: &Chunk, data: Rope) {
        assert!(data.len() <= chunk.len());
        for (at, segment) in chunk.parts().take_while(|(at, _)| *at < data.len()) {
            let len = (segment.length as usize).min(data.len() - at);
            let part = if len == data.len() { data.clone() } else { data.slice(at, len) };
            self.post(WorkRequest::Write { id: Name::Write.into(), data: part, to: segment.remote(0) });
        }
    }

    fn pulled(&mut self, key: Key) {
        if let Some(Incoming { stage: Stage::Pull(pull), .. }) = self.incoming.get(key) {
            self.pulling_bytes -= pull.bytes;
        }
        self.handle_pulled(key);
    }
}

/// The smallest buffer of a pool.
const BUFFER_MIN: usize = 4096;
