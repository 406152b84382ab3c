//! [`Pull`]: the chunks of a message while RDMA Reads fetch them.

use buf::Piece;
use bytes::Bytes;

use crate::chunk::ReadList;

/// The read chunks of one message while they are being read.
#[derive(Debug)]
pub(crate) struct Pull {
    /// The stream, if it was inline.
    inline: Option<Bytes>,
    /// What has been read, one for each segment that holds bytes, in order of position.
    parts: Vec<Option<Piece>>,
    /// Segments that have not been read.
    missing: usize,
    /// Bytes of memory that it takes.
    bytes: usize,
}

impl Pull {
    pub(crate) fn new(inline: Option<Bytes>, reads: &ReadList) -> Self {
        let segments = || reads.chunks().iter().flat_map(|read| read.chunk.parts());
        let missing = segments().count();
        let bytes = segments().map(|(_, segment)| buffer_bytes(segment.length)).sum();
        Self { inline, parts: (0..missing).map(|_| None).collect(), missing, bytes }
    }

    /// RDMA Read number `part` has completed.
    pub(crate) fn arrived(&mut self, part: usize, bytes: Piece) {
        let slot = self.parts[part].replace(bytes);
        assert!(slot.is_none(), "one completion for each RDMA Read");
        self.missing -= 1;
    }

    /// Whether segment number `part` has yet to be read.
    pub(crate) fn lacks(&self, part: usize) -> bool {
        self.parts[part].is_none()
    }

    /// Whether all segments have been read.
    pub(crate) fn is_complete(&self) -> bool {
        self.missing == 0
    }

    /// Bytes of memory that it takes.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// The inline stream, and the parts in order.
    pub(crate) fn into_parts(self) -> (Option<Bytes>, impl Iterator<Item = Piece>) {
        assert_eq!(self.missing, 0);
        (self.inline, self.parts.into_iter().flatten())
    }
}

/// Bytes of memory that a segment takes.
pub(crate) fn buffer_bytes(len: u32) -> usize {
    (len as usize).max(BUFFER_MIN)
}

/// The smallest buffer of a pool.
const BUFFER_MIN: usize = 4096;
