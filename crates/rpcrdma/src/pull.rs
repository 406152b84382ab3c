//! [`Pull`]: the chunks of a message while RDMA Reads fetch them.

use buf::Piece;
use bytes::Bytes;

use crate::chunk::ReadList;

/// The read chunks of one message while they are being read.
#[derive(Debug)]
pub(crate) struct Pull {
    /// The stream, if it was inline.
    inline: Option<Bytes>,
    /// The data of each segment that is not empty, ordered by position; `None` until it has been read.
    parts: Vec<Option<Piece>>,
    /// The number of segments that have not been read.
    missing: usize,
    /// Bytes of memory that the segments take.
    bytes: usize,
}

impl Pull {
    pub(crate) fn new(inline: Option<Bytes>, reads: &ReadList) -> Self {
        let segments = || reads.chunks().iter().flat_map(|read| read.chunk.parts());
        let missing = segments().count();
        let bytes = segments().map(|(_, segment)| buffer_bytes(segment.length)).sum();
        Self { inline, parts: (0..missing).map(|_| None).collect(), missing, bytes }
    }

    /// Records that RDMA Read number `part` has completed.
    pub(crate) fn arrived(&mut self, part: usize, bytes: Piece) {
        let slot = self.parts[part].replace(bytes);
        assert!(slot.is_none(), "an RDMA Read must complete once");
        self.missing -= 1;
    }

    /// Returns `true` if segment number `part` has not been read.
    pub(crate) fn lacks(&self, part: usize) -> bool {
        self.parts[part].is_none()
    }

    /// Returns `true` if all segments have been read.
    pub(crate) fn is_complete(&self) -> bool {
        self.missing == 0
    }

    /// Returns the bytes of memory that the segments take.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns the inline stream, and the parts in order.
    pub(crate) fn into_parts(self) -> (Option<Bytes>, impl Iterator<Item = Piece>) {
        assert_eq!(self.missing, 0);
        (self.inline, self.parts.into_iter().flatten())
    }
}

/// Returns the bytes of memory that a segment takes.
pub(crate) fn buffer_bytes(len: u32) -> usize {
    (len as usize).max(BUFFER_MIN)
}

/// The smallest buffer of a pool, in bytes.
const BUFFER_MIN: usize = 4096;
