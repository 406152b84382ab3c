//! Registered memory: who may touch which bytes.

use buf::Buffer;
use bytes::Bytes;

/// A steering tag: names a registered region of memory to the peer (RFC 5040 §2.3).
///
/// The lowest byte is the key that changes with each registration of the same index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[doc(alias = "rkey")]
pub struct Stag(pub u32);

/// Memory that is being registered, with the one right that the peer gets.
#[derive(Debug)]
pub enum Memory {
    /// The peer may write into it (RDMA Write); it is what `buffer` shows.
    Write(Buffer),
    /// The peer may read from it (RDMA Read).
    Read(Bytes),
}

/// The right that a peer has to a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// RDMA Write.
    RemoteWrite,
    /// RDMA Read.
    RemoteRead,
}

/// A registered region as it is advertised to the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Region {
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

    /// What is registered.
    pub fn bytes(&self) -> &[u8] {
        match self {
            Memory::Write(buffer) => buffer,
            Memory::Read(bytes) => bytes,
        }
    }

    /// Bytes.
    pub fn len(&self) -> usize {
        self.bytes().len()
    }

    /// Whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Where the first byte is.
    pub(crate) fn address(&self) -> u64 {
        match self {
            Memory::Write(buffer) => buffer.as_ptr() as u64,
            Memory::Read(bytes) => bytes.as_ptr() as u64,
        }
    }
}
