//! Registered memory, and the peer's right to access it.

use buf::{Piece, Region};

/// A steering tag: the handle by which the peer accesses a registered region (RFC 5040 §2.3).
///
/// The lowest byte is a key that changes with each registration of the same index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[doc(alias = "rkey")]
pub struct Stag(pub u32);

/// Memory to be registered, with the one right that the peer gets.
#[derive(Debug)]
pub enum Memory {
    /// The peer can write to the visible bytes of the region (RDMA Write).
    Write(Region),
    /// The peer can read from the bytes (RDMA Read), in host or device memory.
    Read(Piece),
}

/// The right of a peer to a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// RDMA Write.
    RemoteWrite,
    /// RDMA Read.
    RemoteRead,
}

/// A registered region, as it is advertised to the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Registered {
    /// The STag.
    pub stag: Stag,
    /// The tagged offset of the first byte.
    pub offset: u64,
    /// The length in bytes.
    pub len: u32,
}

/// A position in the peer's memory, as the peer advertised it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemoteSegment {
    /// The STag of the peer's region.
    pub stag: Stag,
    /// The tagged offset of the first byte.
    pub offset: u64,
}

impl Memory {
    /// Returns the right that the peer gets.
    pub fn access(&self) -> Access {
        match self {
            Memory::Write(_) => Access::RemoteWrite,
            Memory::Read(_) => Access::RemoteRead,
        }
    }

    /// Returns the bytes if they are in host memory.
    pub fn as_host(&self) -> Option<&[u8]> {
        match self {
            Memory::Write(region) => region.as_host().map(|buffer| &buffer[..]),
            Memory::Read(Piece::Memory(bytes)) => Some(bytes),
            Memory::Read(_) => None,
        }
    }

    /// Returns the length in bytes.
    pub fn len(&self) -> usize {
        match self {
            Memory::Write(region) => region.len(),
            Memory::Read(piece) => piece.len(),
        }
    }

    /// Returns `true` if the memory is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}
