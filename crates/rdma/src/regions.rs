//! The table of registered regions, against which the software providers check every access.
//!
//! RFC 5041 §7.1 and RFC 5040 §7.2 define the checks: the STag is valid, the bytes lie inside the region (without
//! overflow), and the peer has the right. An STag is the index of a slot and a key that changes with each registration,
//! so a stale STag is not found.

use std::collections::VecDeque;

use buf::{Piece, Region};
use bytes::Bytes;

#[cfg(test)]
use crate::Access;
use crate::{Memory, Registered, Stag};

/// The reason why an access by the peer was rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AccessFault {
    /// No region has this STag now.
    Stag,
    /// Some of the bytes lie outside the region.
    Bounds,
    /// The peer does not have the right for this access.
    Rights,
    /// The sum of offset and length overflows.
    Wrap,
}

impl AccessFault {
    /// Returns a description.
    pub(crate) fn text(self) -> &'static str {
        match self {
            AccessFault::Stag => "invalid STag",
            AccessFault::Bounds => "access outside the bounds of a region",
            AccessFault::Rights => "access without the necessary right",
            AccessFault::Wrap => "tagged offset wraps",
        }
    }
}

/// The registered regions by STag.
#[derive(Debug)]
pub(crate) struct Regions {
    slots: Vec<Slot>,
    /// The free slots, longest free first, so that a stale STag stays stale for long.
    free: VecDeque<u32>,
    max: usize,
}

#[derive(Debug)]
struct Slot {
    key: u8,
    entry: Option<Entry>,
}

#[derive(Debug)]
struct Entry {
    memory: Memory,
    base: u64,
    /// The end of the data that the peer has written: the tagged offset from which on it has written nothing.
    touched: u64,
}

impl Regions {
    /// Creates a table of at most `max` regions.
    pub(crate) fn new(max: usize) -> Self {
        Self { slots: Vec::new(), free: VecDeque::new(), max: max.min(INDEX_MAX) }
    }

    /// Adds `memory`, whose first byte gets the tagged offset `base`. Returns the memory if the table is full.
    pub(crate) fn register(&mut self, memory: Memory, base: u64) -> Result<Registered, Memory> {
        let Ok(len) = u32::try_from(memory.len()) else { return Err(memory) };
        if base.checked_add(u64::from(len)).is_none() {
            return Err(memory);
        }
        // The table grows before slots are reused, so that there are several free slots to choose from.
        let index = if self.slots.len() < self.max && self.free.len() < FREE_MIN {
            self.slots.push(Slot { key: 0, entry: None });
            self.slots.len() as u32 - 1
        } else if let Some(index) = self.free.pop_front() {
            index
        } else {
            return Err(memory);
        };
        let slot = &mut self.slots[index as usize];
        slot.key = slot.key.wrapping_add(1);
        slot.entry = Some(Entry { memory, base, touched: base });
        Ok(Registered { stag: tag(index, slot.key), offset: base, len })
    }

    /// Removes a region and returns its memory.
    pub(crate) fn remove(&mut self, stag: Stag) -> Option<Memory> {
        let index = self.index(stag)?;
        //= rfc5041-8.3-1 rfc5041-8.3-2 rfc5041-8.3.1-5 rfc5041-8.3.1-7 rfc5040-8.1.1-5 rfc5040-8.1.1-7
        let entry = self.slots[index].entry.take()?;
        self.free.push_back(index as u32);
        Some(entry.memory)
    }

    /// Returns the STags of all regions.
    pub(crate) fn stags(&self) -> Vec<Stag> {
        let entries = self.slots.iter().enumerate().filter(|(_, slot)| slot.entry.is_some());
        entries.map(|(index, slot)| tag(index as u32, slot.key)).collect()
    }

    /// Returns `true` if there is such a region.
    #[cfg(test)]
    pub(crate) fn contains(&self, stag: Stag) -> bool {
        self.entry(stag).is_ok()
    }

    /// Returns the memory for an RDMA Write of the peer, and the offset of the first byte in it.
    pub(crate) fn target(&mut self, stag: Stag, offset: u64, len: usize) -> Result<(&mut Region, usize), AccessFault> {
        let entry = self.entry_mut(stag)?;
        let Memory::Write(region) = &mut entry.memory else { return Err(AccessFault::Rights) };
        //= rfc5041-8.3.1-4 rfc5041-8.3.1-6 rfc5040-8.1.1-4 rfc5040-8.1.1-6
        let start = start(entry.base, region.len(), offset, len)?;
        Ok((region, start))
    }

    /// Returns the bytes for an RDMA Write of the peer, in host memory.
    pub(crate) fn for_write(&mut self, stag: Stag, offset: u64, len: usize) -> Result<&mut [u8], AccessFault> {
        let (region, start) = self.target(stag, offset, len)?;
        let buffer = region.as_host_mut().ok_or(AccessFault::Rights)?;
        Ok(&mut buffer[start..start + len])
    }

    /// Records that the peer writes up to the tagged offset `end`.
    pub(crate) fn touch(&mut self, stag: Stag, end: u64) {
        if let Ok(entry) = self.entry_mut(stag) {
            entry.touched = entry.touched.max(end);
        }
    }

    /// Returns the number of bytes from `offset` to the end of a region, or zero if the peer has written some of them.
    pub(crate) fn untouched(&self, stag: Stag, offset: u64) -> usize {
        match self.entry(stag) {
            Ok(entry) if entry.touched <= offset => {
                (entry.base + entry.memory.len() as u64).saturating_sub(offset) as usize
            }
            _ => 0,
        }
    }

    /// Returns the memory for an RDMA Read of the peer, and the offset of the first byte in it.
    pub(crate) fn source(&self, stag: Stag, offset: u64, len: usize) -> Result<(&Piece, usize), AccessFault> {
        let entry = self.entry(stag)?;
        let Memory::Read(piece) = &entry.memory else { return Err(AccessFault::Rights) };
        let start = start(entry.base, piece.len(), offset, len)?;
        Ok((piece, start))
    }

    /// Returns the bytes for an RDMA Read of the peer, in host memory.
    pub(crate) fn for_read(&self, stag: Stag, offset: u64, len: usize) -> Result<Bytes, AccessFault> {
        match self.source(stag, offset, len)? {
            (Piece::Memory(bytes), start) => Ok(bytes.slice(start..start + len)),
            _ => Err(AccessFault::Rights),
        }
    }

    /// Returns the right of the peer to a region.
    #[cfg(test)]
    pub(crate) fn access(&self, stag: Stag) -> Option<Access> {
        self.entry(stag).ok().map(|entry| entry.memory.access())
    }

    fn index(&self, stag: Stag) -> Option<usize> {
        let index = (stag.0 >> 8).checked_sub(1)? as usize;
        let slot = self.slots.get(index)?;
        (slot.key == stag.0 as u8 && slot.entry.is_some()).then_some(index)
    }

    fn entry(&self, stag: Stag) -> Result<&Entry, AccessFault> {
        let index = self.index(stag).ok_or(AccessFault::Stag)?;
        self.slots[index].entry.as_ref().ok_or(AccessFault::Stag)
    }

    fn entry_mut(&mut self, stag: Stag) -> Result<&mut Entry, AccessFault> {
        let index = self.index(stag).ok_or(AccessFault::Stag)?;
        self.slots[index].entry.as_mut().ok_or(AccessFault::Stag)
    }
}

/// STag 0 is never used: index 0 is 1 in the upper bits.
fn tag(index: u32, key: u8) -> Stag {
    Stag((index + 1) << 8 | u32::from(key))
}

fn start(base: u64, size: usize, offset: u64, len: usize) -> Result<usize, AccessFault> {
    offset.checked_add(len as u64).ok_or(AccessFault::Wrap)?;
    let start = offset.checked_sub(base).ok_or(AccessFault::Bounds)?;
    let end = start.checked_add(len as u64).ok_or(AccessFault::Wrap)?;
    if end > size as u64 {
        return Err(AccessFault::Bounds);
    }
    Ok(start as usize)
}

/// Maximum index: the upper 24 bits of an STag hold the index plus one.
const INDEX_MAX: usize = (1 << 24) - 1;
const FREE_MIN: usize = 64;

#[cfg(test)]
mod tests {
    use buf::Buffer;

    use super::*;

    #[test]
    fn access_outside_a_region_is_rejected_with_its_reason() {
        let mut regions = Regions::new(10);
        let base = u64::MAX - 100;
        let write = regions.register(Memory::Write(Buffer::zeroed(100).into()), base).unwrap();
        let read = regions.register(Memory::Read(Bytes::from(vec![7; 100]).into()), 0).unwrap();
        assert_eq!(regions.for_write(write.stag, base, 100).map(|bytes| bytes.len()), Ok(100));
        assert_eq!(regions.for_write(write.stag, base + 100, 0).map(|bytes| bytes.len()), Ok(0));
        assert_eq!(regions.for_write(write.stag, base + 1, 100), Err(AccessFault::Wrap));
        assert_eq!(regions.for_write(write.stag, base - 1, 1), Err(AccessFault::Bounds));
        assert_eq!(regions.for_read(read.stag, 1, 100), Err(AccessFault::Bounds));
        assert_eq!(regions.for_read(read.stag, u64::MAX, 2), Err(AccessFault::Wrap));
        assert_eq!(regions.for_write(read.stag, 0, 1), Err(AccessFault::Rights));
        assert_eq!(regions.for_read(write.stag, base, 1), Err(AccessFault::Rights));
        assert_eq!(regions.for_read(Stag(0), 0, 0), Err(AccessFault::Stag));
        assert_eq!(regions.for_read(Stag(u32::MAX), 0, 0), Err(AccessFault::Stag));
        assert_eq!(regions.access(read.stag), Some(Access::RemoteRead));
    }

    #[test]
    fn untouched_bytes_follow_all_written_bytes() {
        let mut regions = Regions::new(10);
        let region = regions.register(Memory::Write(Buffer::zeroed(100).into()), 1000).unwrap();
        assert_eq!(regions.untouched(region.stag, 1000), 100);
        regions.touch(region.stag, 1060);
        regions.touch(region.stag, 1020);
        assert_eq!(regions.untouched(region.stag, 1059), 0);
        assert_eq!(regions.untouched(region.stag, 1060), 40);
        assert_eq!(regions.untouched(region.stag, 1101), 0);
        assert_eq!(regions.untouched(Stag(0), 1060), 0);
    }

    #[test]
    fn stale_stag_is_not_found_and_full_table_returns_the_memory() {
        let mut regions = Regions::new(1);
        let old = regions.register(Memory::Read(Bytes::from_static(b"x").into()), 0).unwrap();
        assert_eq!(regions.register(Memory::Read(Bytes::from_static(b"yy").into()), 0).unwrap_err().len(), 2);
        assert!(regions.remove(old.stag).is_some());
        assert!(regions.remove(old.stag).is_none());
        let new = regions.register(Memory::Read(Bytes::from_static(b"z").into()), 0).unwrap();
        assert_eq!(old.stag.0 >> 8, new.stag.0 >> 8, "the slot must be reused");
        assert!(!regions.contains(old.stag) && regions.contains(new.stag));
    }
}
