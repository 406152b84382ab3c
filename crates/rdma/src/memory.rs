//! Registered memory: who may touch which bytes.

use buf::{Piece, Region};

/// A steering tag: names a registered region of memory to the peer (RFC 5040 §2.3).
///
/// The lowest byte is the key that changes with each registration of the same index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[doc(alias = "rkey")]
pub struct Stag(pub u32);

/// Memory that is being registered, with the one right that the peer gets.
#[derive(Debug)]
pub enum Memory {
    /// The peer may write into it (RDMA Write); it is what the region shows.
    Write(Region),
    /// The peer may read from it (RDMA Read): bytes of the host or of a device.
    Read(Piece),
}

/// The right that a peer has to a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// RDMA Write.
    RemoteWrite,
    /// RDMA Read.
    RemoteRead,
}

/// Memory that is registered, as it is advertised to the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Registered {
    /// Its name.
    pub stag: Stag,
    /// Tagged offset of its first byte.
    pub offset: u64,
    /// Bytes.
    pub len: u32,
}

/// A place in the peer's memory, as the peer advertised it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemoteSegment {
    /// The peer's region.
    pub stag: Stag,
    /// Tagged offset of the first byte.
    pub offset: u64,
}

impl Memory {
    /// The right it gives.
    pub fn access(&self) -> Access {
        match self {
            Memory::Write(_) => Access::RemoteWrite,
            Memory::Read(_) => Access::RemoteRead,
        }
    }

    /// The bytes, if they are in host memory.
    pub fn as_host(&self) -> Option<&[u8]> {
        match self {
            Memory::Write(region) => region.as_host().map(|buffer| &buffer[..]),
            Memory::Read(Piece::Memory(bytes)) => Some(bytes),
            Memory::Read(_) => None,
        }
    }

    /// Bytes.
    pub fn len(&self) -> usize {
        match self {
            Memory::Write(region) => region.len(),
            Memory::Read(piece) => piece.len(),
        }
    }

    /// Whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}
