//! The slabs that the connecting side has passed, and how the accepting side maps them.
//!
//! Mapping is the cost of registration here, so the methods of registration ([`Registration`]) are methods of mapping:
//!
//! | method | the connecting side passes a slab's descriptor | the accepting side maps |
//! |---|---|---|
//! | `per-io` | for each region, and takes it back with the region | the pages of one access, for that access |
//! | `fast` | once | the pages of one access, for that access |
//! | `cache` | once | the slab at its first use, until it is evicted for others |
//! | `pool` | once | the slab when it is passed, until the end |
//!
//! A slab is charged to its user before it is mapped ([`Account`]). If it exceeds the user's limit, it is neither
//! mapped nor kept open, and data for it go through the ring.
//!
//! Each side chooses its own method. With every method, the accepting side's operations can access only what the table
//! of exposures permits at that moment.

use std::{
    collections::VecDeque,
    io,
    os::fd::{AsFd, OwnedFd},
    sync::Arc,
};

use super::{
    ledger::{Account, Charge},
    memory::PeerSlab,
};
use crate::{
    registration::{Cache, Registration, RegistrationOptions},
    shares::Need,
};

/// The slabs of the connecting side, as the accepting side manages them.
pub(crate) struct Passed {
    way: Registration,
    account: Account,
    /// The slabs by number, from `first` on. `None` if the peer has taken a slab back. Numbers are never reused.
    slabs: VecDeque<Option<Slab>>,
    first: u32,
    cache: Cache<u32, PeerSlab>,
    bytes: u64,
    bytes_max: u64,
}

struct Slab {
    bytes: u64,
    backing: Backing,
}

enum Backing {
    Mapped(Arc<PeerSlab>),
    /// The descriptor of memory that has been checked.
    Descriptor(OwnedFd, #[expect(dead_code, reason = "its drop releases the charge")] Charge),
    /// No access: the slab exceeds the user's limit.
    Refused,
}

impl Passed {
    pub(crate) fn new(options: &RegistrationOptions, bytes_max: u64, account: Account) -> Self {
        let way = options.way.unwrap_or(DEFAULT);
        let (slabs, cache) = (VecDeque::new(), Cache::new(options.cache));
        Self { way, account, slabs, first: 0, cache, bytes: 0, bytes_max }
    }

    /// Returns `true` if this slab has been passed, even if it was taken back since.
    pub(crate) fn knows(&self, number: u32) -> bool {
        u64::from(number) < self.next()
    }

    /// Adds a slab.
    ///
    /// # Errors
    /// The slab differs from the peer's description, or exceeds the limit of one connection.
    pub(crate) fn add(&mut self, number: u32, bytes: u64, fd: Option<OwnedFd>) -> Result<(), String> {
        let Some(fd) = fd else { return Err("a slab was sent without its descriptor".to_owned()) };
        let total = self.bytes.checked_add(bytes).filter(|&total| total <= self.bytes_max);
        let Some(total) = total.filter(|_| u64::from(number) == self.next() && self.slabs.len() < SLABS_MAX) else {
            return Err(format!("slab {number} of {bytes} bytes has the wrong number, or exceeds the limit"));
        };
        PeerSlab::check(fd.as_fd(), bytes as usize).map_err(|error| error.to_string())?;
        let backing = self.backing(fd, bytes).unwrap_or_else(|error| {
            tracing::debug!(number, bytes, %error, "a peer's slab is accessed through the ring");
            Backing::Refused
        });
        self.slabs.push_back(Some(Slab { bytes, backing }));
        self.bytes = total;
        Ok(())
    }

    /// Returns the resource by which a checked slab is accessed.
    fn backing(&self, fd: OwnedFd, bytes: u64) -> io::Result<Backing> {
        self.account.memfd(fd.as_fd(), bytes, Need::Optional)?;
        // Descriptors are scarcer than mappings.
        if self.way != Registration::Pool
            && let Ok(charge) = self.account.descriptor()
        {
            return Ok(Backing::Descriptor(fd, charge));
        }
        PeerSlab::map(fd.as_fd(), bytes as usize, &self.account).map(|slab| Backing::Mapped(Arc::new(slab)))
    }

    /// Removes a slab that the peer takes back. A mapping for an access stays until the access is complete.
    ///
    /// # Errors
    /// There is no slab with this number.
    pub(crate) fn forget(&mut self, number: u32) -> Result<(), String> {
        let slab = self.index(number).and_then(|index| self.slabs[index].take());
        let slab = slab.ok_or_else(|| format!("slab {number} is taken back, but does not exist"))?;
        self.bytes -= slab.bytes;
        self.cache.remove(&number);
        while let Some(None) = self.slabs.front() {
            self.slabs.pop_front();
            self.first += 1;
        }
        Ok(())
    }

    /// Returns a mapping of `len` bytes from `offset` of a slab, and the offset at which they begin in it. Returns
    /// `None` if there is no such memory, or it cannot be mapped.
    pub(crate) fn reach(&mut self, number: u32, offset: u64, len: usize) -> Option<(Arc<PeerSlab>, u64)> {
        let index = self.index(number)?;
        let Slab { bytes, backing } = self.slabs[index].as_ref()?;
        let end = offset.checked_add(len as u64).filter(|end| end <= bytes)?;
        let fd = match backing {
            Backing::Mapped(slab) => return Some((slab.clone(), offset)),
            Backing::Descriptor(fd, _) => fd.as_fd(),
            Backing::Refused => return None,
        };
        let mapped = if self.way == Registration::Cache {
            match self.cache.get(&number) {
                Some(slab) => return Some((slab.clone(), offset)),
                None => PeerSlab::map(fd, *bytes as usize, &self.account).map(|slab| {
                    let slab = Arc::new(slab);
                    self.cache.insert(number, *bytes, slab.clone());
                    (slab, offset)
                }),
            }
        } else {
            let start = offset - offset % PAGE;
            let window = (end.next_multiple_of(PAGE).min(*bytes) - start) as usize;
            PeerSlab::window(fd, start, window, &self.account).map(|slab| (Arc::new(slab), offset - start))
        };
        mapped.inspect_err(|error| tracing::debug!(number, %error, "a peer's slab cannot be mapped")).ok()
    }

    fn index(&self, number: u32) -> Option<usize> {
        let index = number.checked_sub(self.first)? as usize;
        (index < self.slabs.len()).then_some(index)
    }

    fn next(&self) -> u64 {
        u64::from(self.first) + self.slabs.len() as u64
    }
}

/// The default method.
pub(crate) const DEFAULT: Registration = Registration::Pool;
/// Maximum number of slabs that one connection can have.
pub(crate) const SLABS_MAX: usize = 4096;
const PAGE: u64 = 4096;

#[cfg(test)]
mod tests {
    use buf::{Pool, PoolOptions, Rope};
    use bytes::Bytes;

    use super::*;
    use crate::{registration::CacheBounds, shm::ledger::Ledger};

    fn passed(way: Registration) -> Passed {
        let cache = CacheBounds { entries: 1, ..CacheBounds::default() };
        let account = Ledger::of_process().account(0);
        Passed::new(&RegistrationOptions { way: Some(way), cache }, 1 << 30, account)
    }

    fn pass(passed: &mut Passed, number: u32) -> Result<buf::Buffer, String> {
        let pool = Pool::new(PoolOptions { shared: true, slab_bytes: 64 << 10, ..PoolOptions::default() });
        let buffer = pool.take(12_000);
        let (slab, offset) = buf::Slab::of(&buffer).unwrap();
        assert_eq!(offset, 0);
        let fd = slab.fd().unwrap().try_clone_to_owned().unwrap();
        passed.add(number, slab.len() as u64, Some(fd)).map(|()| buffer)
    }

    fn write(passed: &mut Passed, number: u32, offset: u64, data: &[u8]) -> bool {
        let Some((slab, at)) = passed.reach(number, offset, data.len()) else { return false };
        slab.fill(at, &Rope::from(Bytes::copy_from_slice(data))).unwrap()
    }

    #[test]
    fn every_method_accesses_the_same_bytes_and_none_beyond_a_slab() {
        for way in Registration::ALL {
            let mut passed = passed(way);
            let buffers: Vec<_> = (0..3).map(|number| pass(&mut passed, number).unwrap()).collect();
            for (number, buffer) in (0..).zip(&buffers) {
                assert!(write(&mut passed, number, 5000, b"hello") && write(&mut passed, number, 4090, &[7; 9]));
                assert_eq!((&buffer[5000..5005], &buffer[4090..4099]), (&b"hello"[..], &[7; 9][..]), "{way}");
                for (offset, len) in [(65_536, 1), (65_530, 7), (u64::MAX, 1), (u64::MAX - 8, 9), (0, 65_537)] {
                    assert!(passed.reach(number, offset, len).is_none(), "{way} {offset}");
                }
            }
            assert!(passed.reach(3, 0, 1).is_none() && !passed.knows(3));
            assert_eq!(
                passed.cache.stats().entries,
                usize::from(way == Registration::Cache),
                "the cache must hold at most one slab"
            );
        }
    }

    #[test]
    fn slab_that_was_taken_back_is_inaccessible_and_its_number_is_not_reused() {
        for way in Registration::ALL {
            let mut passed = passed(way);
            let _buffers: Vec<_> = (0..3).map(|number| pass(&mut passed, number).unwrap()).collect();
            assert!(write(&mut passed, 1, 0, b"x"));
            passed.forget(1).unwrap();
            assert!(!write(&mut passed, 1, 0, b"x") && passed.knows(1));
            assert!(passed.forget(1).is_err() && passed.forget(7).is_err());
            assert!(pass(&mut passed, 1).is_err(), "a number must not be reused");
            passed.forget(0).unwrap();
            assert!(write(&mut passed, 2, 0, b"x") && !write(&mut passed, 0, 0, b"x"));
            let _fourth = pass(&mut passed, 3).unwrap();
            assert_eq!((passed.slabs.len(), passed.bytes), (2, 2 * 65_536));
        }
    }

    #[test]
    fn window_in_use_outlives_its_slab() {
        let mut passed = passed(Registration::PerIo);
        let buffer = pass(&mut passed, 0).unwrap();
        let (window, at) = passed.reach(0, 4100, 100).unwrap();
        passed.forget(0).unwrap();
        assert!(window.fill(at, &Rope::from(Bytes::from_static(&[9; 100]))).unwrap());
        assert_eq!(buffer[4100..4200], [9; 100]);
        assert!(window.range(at, 4096).is_none(), "only the requested pages must be mapped");
    }
}
