//! The connecting side's memory, as each side manages it.
//!
//! The connecting side ([`Shared`]) passes each slab once, when a region in it is first registered (or for each region,
//! see `passed.rs`), and maintains the table of exposures. The accepting side ([`Mapped`]) maps the slabs, and executes
//! its RDMA operations on the regions in the table. If it cannot execute an operation for any reason, it sends the
//! operation through the ring, and the connecting side validates it.

use std::{
    collections::{BTreeSet, HashMap},
    io,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
};

use buf::{Buffer, PeerBytes, Rope, Slab};

use super::{
    memory::{Control, PeerSlab, SharedWords},
    packet::Packet,
    passed::{DEFAULT, Passed, SLABS_MAX},
    socket::{Bell, Received, Socket},
    table::{Place, Table},
};
use crate::{
    Access, Memory, Registered, RemoteSegment, Stag,
    regions::Regions,
    registration::{Registration, RegistrationOptions},
};

/// The side of this queue pair, with its state.
pub(crate) enum Side {
    /// The side whose memory is shared.
    Connecting(Shared),
    /// The side that accesses the memory.
    Accepting(Mapped),
}

/// The memory of this side, shared with the accepting side.
pub(crate) struct Shared {
    table: Table<SharedWords>,
    bell: Bell,
    way: Registration,
    /// The slabs that have been passed permanently, ordered by address. Each slab stays mapped while it is here.
    slabs: Vec<(Arc<Slab>, u32)>,
    /// The slabs that have been passed for one region.
    single: HashMap<Stag, Single>,
    /// The numbers of all slabs that the peer has. `next` is the next number.
    passed: BTreeSet<u32>,
    next: u32,
    /// The numbers of released slabs that could not be reported to the peer yet.
    released: Vec<u32>,
    bytes: u64,
    bytes_max: u64,
}

/// The location of memory to be registered.
pub(crate) struct Located {
    slab: u32,
    offset: u64,
    single: Option<Single>,
}

/// A slab that was passed for one region, by [`Registration::PerIo`].
struct Single {
    number: u32,
    bytes: u64,
}

/// The connecting side's memory, mapped on the accepting side.
pub(crate) struct Mapped {
    table: Table<SharedWords>,
    bell: Bell,
    slabs: Passed,
}

/// The outcome of an attempt to access the peer's memory directly.
#[derive(Debug)]
pub(crate) enum Direct {
    /// The access is complete.
    Done,
    /// The memory cannot be accessed directly. The operation must go through the ring.
    UseRing,
    /// A file range that should be written cannot be read.
    Failed(io::Error),
    /// The peer violated the protocol.
    Violation(String),
}

impl Shared {
    pub(crate) fn new(control: &Arc<Control>, bell: Bell, options: &RegistrationOptions, bytes_max: u64) -> Self {
        Self {
            table: control.table(),
            bell,
            way: options.way.unwrap_or(DEFAULT),
            slabs: Vec::new(),
            single: HashMap::new(),
            passed: BTreeSet::new(),
            next: 0,
            released: Vec::new(),
            bytes: 0,
            bytes_max,
        }
    }

    /// Exposes a registered region to the peer. If no entry is available, the peer has to use the ring.
    pub(crate) fn expose(&mut self, region: Registered, access: Access, located: Located) {
        let Located { slab, offset, single } = located;
        if let Some(single) = single {
            self.single.insert(region.stag, single);
        }
        self.table.expose(region.stag, access, Place { slab, offset, len: region.len });
    }

    /// Returns `true` if the peer can no longer access a region. Otherwise the caller must call this again after the
    /// doorbell has rung.
    pub(crate) fn revoke(&mut self, stag: Stag) -> bool {
        let is_out = self.table.revoke(stag);
        if is_out && let Some(single) = self.single.remove(&stag) {
            self.release_slab(single.number, single.bytes);
        }
        is_out
    }

    /// Returns the slab of `bytes` and their offset in it. Returns `None` if they are in no slab that can be shared, so
    /// that the peer has to use the ring.
    pub(crate) fn locate(&mut self, bytes: &[u8], socket: &Socket) -> Option<Located> {
        if bytes.is_empty() {
            return None;
        }
        if self.way == Registration::PerIo {
            let (slab, offset) = Slab::of(bytes)?;
            let number = self.pass(&slab, socket)?;
            let single = Some(Single { number, bytes: slab.len() as u64 });
            return Some(Located { slab: number, offset: offset as u64, single });
        }
        let start = bytes.as_ptr() as usize;
        let after = self.slabs.partition_point(|(slab, _)| slab.base() as usize <= start);
        if let Some((slab, number)) = after.checked_sub(1).map(|at| &self.slabs[at])
            && let Some(offset) = slab.offset_of(bytes)
        {
            return Some(Located { slab: *number, offset: offset as u64, single: None });
        }
        let (slab, offset) = Slab::of(bytes)?;
        let number = self.pass(&slab, socket)?;
        tracing::debug!(number, bytes = slab.len(), "sharing a slab");
        self.slabs.insert(after, (slab, number));
        Some(Located { slab: number, offset: offset as u64, single: None })
    }

    /// Releases memory that was located but not registered.
    pub(crate) fn release(&mut self, located: Located) {
        if let Some(Single { number, bytes }) = located.single {
            self.release_slab(number, bytes);
        }
    }

    /// Passes a slab, and returns its number. Returns `None` if it cannot be shared.
    fn pass(&mut self, slab: &Slab, socket: &Socket) -> Option<u32> {
        let fd = slab.fd()?;
        self.send_released();
        let number = self.next;
        let oldest = self.passed.first().copied().unwrap_or(number);
        let total = self.bytes + slab.len() as u64;
        // The peer keeps all numbers from the oldest on.
        if (number - oldest) as usize >= SLABS_MAX || !self.released.is_empty() || total > self.bytes_max {
            return None;
        }
        self.next = number.checked_add(1)?;
        // The peer finds the packet in the socket when it needs it, because a region is announced only after this.
        if socket.send(&Packet::Slab { number, bytes: slab.len() as u64 }, Some(fd)).is_err() {
            self.next = number;
            return None;
        }
        self.passed.insert(number);
        self.bytes = total;
        Some(number)
    }

    fn release_slab(&mut self, number: u32, bytes: u64) {
        self.bytes -= bytes;
        self.released.push(number);
        self.send_released();
    }

    /// Tells the peer about released slabs, as far as the socket has room.
    fn send_released(&mut self) {
        while let Some(&number) = self.released.last() {
            if !self.bell.send(&Packet::Forget { number }) {
                return;
            }
            self.released.pop();
            self.passed.remove(&number);
        }
    }

    /// Takes the memory of a region back after the connection has ended. If the peer is accessing it, its owner gets
    /// other memory, and the accessed memory is moved to `kept`.
    pub(crate) fn reclaim(&self, regions: &mut Regions, stag: Stag, kept: &mut Vec<(Stag, Memory)>) -> Option<Memory> {
        let memory = regions.remove(stag)?;
        if self.table.revoke(stag) {
            return Some(memory);
        }
        let (other, held) = match memory {
            Memory::Write(region) => (Memory::Write(Buffer::zeroed(region.len()).into()), Memory::Write(region)),
            // The bytes are immutable while they are shared.
            Memory::Read(piece) => (Memory::Read(piece.clone()), Memory::Read(piece)),
        };
        kept.push((stag, held));
        Some(other)
    }

    /// Keeps memory until the peer has released it or is gone. A peer that never releases memory could occupy all of
    /// it, so memory beyond [`KEPT_MAX`] is not kept. Such a peer can write to all slabs that it has received anyway.
    pub(crate) fn keep(&self, kept: Vec<(Stag, Memory)>) {
        if kept.is_empty() {
            return;
        }
        let bytes = kept.iter().map(|(_, memory)| memory.len()).sum();
        let Some(charge) = KeptMemory::take(bytes) else {
            return tracing::warn!(bytes, "shm: a server does not release memory; the memory is reused");
        };
        let (table, bell) = (self.table.clone(), self.bell.clone());
        let slabs: Vec<_> = self.slabs.iter().map(|(slab, _)| slab.clone()).collect();
        let waiting = async move {
            while !bell.is_abandoned() && !kept.iter().all(|(stag, _)| table.revoke(*stag)) {
                tokio::time::sleep(KEEP_POLL).await;
            }
            drop((kept, slabs, charge));
        };
        match tokio::runtime::Handle::try_current() {
            Ok(runtime) => drop(runtime.spawn(waiting)),
            // No runtime is left that could wait, so the memory is leaked.
            Err(_) => std::mem::forget(waiting),
        }
    }
}

/// A charge for kept bytes of this process. Dropping it releases the bytes.
struct KeptMemory(usize);

impl KeptMemory {
    fn take(bytes: usize) -> Option<Self> {
        let most = |sum: usize| sum.checked_add(bytes).filter(|&sum| sum <= KEPT_MAX);
        KEPT.fetch_update(Relaxed, Relaxed, most).is_ok().then_some(Self(bytes))
    }
}

impl Drop for KeptMemory {
    fn drop(&mut self) {
        KEPT.fetch_sub(self.0, Relaxed);
    }
}

impl Mapped {
    pub(crate) fn new(control: &Arc<Control>, bell: Bell, slabs: Passed) -> Self {
        Self { table: control.table(), bell, slabs }
    }

    /// Returns the slabs of the peer.
    pub(crate) fn slabs(&mut self) -> &mut Passed {
        &mut self.slabs
    }

    /// Executes an RDMA Write.
    pub(crate) fn write(&mut self, data: &Rope, to: RemoteSegment, socket: &Socket) -> Direct {
        let (slab, offset) = match self.pin(to, data.len(), Access::RemoteWrite, socket) {
            Ok(pinned) => pinned,
            Err(direct) => return direct,
        };
        let filled = slab.fill(offset, data);
        self.unpin(to.stag);
        match filled {
            Ok(true) => Direct::Done,
            Ok(false) => Direct::UseRing,
            Err(error) => Direct::Failed(error),
        }
    }

    /// Executes an RDMA Read.
    pub(crate) fn read(&mut self, into: &mut [u8], from: RemoteSegment, socket: &Socket) -> Direct {
        let (slab, offset) = match self.pin(from, into.len(), Access::RemoteRead, socket) {
            Ok(pinned) => pinned,
            Err(direct) => return direct,
        };
        let copied = slab.copy_to(offset, into);
        self.unpin(from.stag);
        if copied { Direct::Done } else { Direct::UseRing }
    }

    /// Returns the bytes of a region without a copy. The region stays exposed while they are held.
    pub(crate) fn view(&mut self, from: RemoteSegment, len: usize, socket: &Socket) -> Option<PeerBytes> {
        if len == 0 {
            return None;
        }
        let (slab, offset) = self.pin(from, len, Access::RemoteRead, socket).ok()?;
        let pin = Pin { table: self.table.clone(), bell: self.bell.clone(), stag: from.stag, slab };
        let start = pin.slab.range(offset, len)?;
        // SAFETY: the range lies inside the slab's mapping, which the pin keeps; this process has no references to it.
        #[expect(unsafe_code)]
        Some(unsafe { PeerBytes::new(Arc::new(pin), start, len) })
    }

    /// Pins a region. Returns a mapping that contains the `len` bytes at `segment`, and their offset in it. The region
    /// does not change until it is unpinned.
    fn pin(
        &mut self,
        segment: RemoteSegment,
        len: usize,
        access: Access,
        socket: &Socket,
    ) -> Result<(Arc<PeerSlab>, u64), Direct> {
        let RemoteSegment { stag, offset } = segment;
        let place = self.table.pin(stag, access).ok_or(Direct::UseRing)?;
        let received = if self.slabs.knows(place.slab) { Ok(()) } else { self.receive_slab(place.slab, socket) };
        let within = offset.checked_add(len as u64).is_some_and(|end| end <= u64::from(place.len));
        let reached = match (&received, place.offset.checked_add(offset)) {
            (Ok(()), Some(offset)) if within => self.slabs.reach(place.slab, offset, len),
            _ => None,
        };
        reached.ok_or_else(|| {
            self.unpin(stag);
            received.err().map_or(Direct::UseRing, Direct::Violation)
        })
    }

    /// Receives slabs until `slab` is there. The peer has sent it before it announced a region in it.
    fn receive_slab(&mut self, slab: u32, socket: &Socket) -> Result<(), String> {
        for _ in 0..PACKETS_MAX {
            match socket.receive() {
                Ok(Received::Packet(Packet::Slab { number, bytes }, fd)) => self.slabs.add(number, bytes, fd)?,
                Ok(Received::Packet(Packet::Forget { number }, None)) => self.slabs.forget(number)?,
                Ok(Received::Packet(Packet::Bell, None)) => {}
                Ok(Received::End | Received::Nothing) | Err(_) => break,
                Ok(Received::Packet(..) | Received::Garbage) => {
                    return Err("the peer sent an unexpected packet".to_owned());
                }
            }
            if self.slabs.knows(slab) {
                return Ok(());
            }
        }
        Err(format!("a region is in slab {slab}, which does not exist"))
    }

    fn unpin(&self, stag: Stag) {
        if self.table.unpin(stag) {
            self.bell.ring();
        }
    }
}

/// A pin that keeps a region exposed, and its slab mapped.
struct Pin {
    table: Table<SharedWords>,
    bell: Bell,
    stag: Stag,
    slab: Arc<PeerSlab>,
}

impl Drop for Pin {
    fn drop(&mut self) {
        if self.table.unpin(self.stag) {
            self.bell.ring();
        }
    }
}

/// Maximum number of packets that are read to find a slab. Fewer doorbells can precede it.
const PACKETS_MAX: usize = 4096;
static KEPT: AtomicUsize = AtomicUsize::new(0);
/// Maximum bytes that the process keeps for peers of ended connections. This is the exposed memory of very many
/// connections.
const KEPT_MAX: usize = 256 << 20;
const KEEP_POLL: std::time::Duration = std::time::Duration::from_millis(20);
