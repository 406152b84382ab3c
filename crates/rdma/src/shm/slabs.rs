//! The connecting side's memory, as each side knows it.
//!
//! The connecting side ([`Shared`]) passes each slab once, when a region in it is first registered, and keeps the table of
//! exposures. The accepting side ([`Mapped`]) maps the slabs, and carries out its RDMA operations on what the table
//! says. What it cannot carry out, for whatever reason, it leaves to the ring, where the connecting side judges it.

use std::{
    io,
    os::fd::{AsFd, OwnedFd},
    sync::Arc,
};

use buf::{Buffer, PeerBytes, Rope, Slab};

use super::{
    memory::{Control, PeerSlab, SharedWords},
    packet::Packet,
    socket::{Bell, Received, Socket},
    table::{Place, Table},
};
use crate::{Access, Memory, Region, RemoteSegment, Stag, regions::Regions};

/// Which side this is, and what it knows.
pub(crate) enum Side {
    /// Whose memory is shared.
    Connecting(Shared),
    /// Who reaches for it.
    Accepting(Mapped),
}

/// Our memory, shared with the accepting side.
pub(crate) struct Shared {
    table: Table<SharedWords>,
    bell: Bell,
    /// What the peer has been passed, by address. The slab stays mapped while it is here.
    slabs: Vec<(Arc<Slab>, u32)>,
    bytes: u64,
    bytes_max: u64,
}

/// The connecting side's memory, mapped here.
pub(crate) struct Mapped {
    table: Table<SharedWords>,
    bell: Bell,
    slabs: Vec<Arc<PeerSlab>>,
    bytes: u64,
    bytes_max: u64,
}

/// How far an attempt to reach the peer's memory came.
#[derive(Debug)]
pub(crate) enum Direct {
    /// Done.
    Done,
    /// It cannot be reached from here: the peer has to be asked.
    Ask,
    /// A file to be written there cannot be read.
    Failed(io::Error),
    /// The peer breaks the rules.
    Broken(String),
}

impl Shared {
    pub(crate) fn new(control: &Arc<Control>, bell: Bell, bytes_max: u64) -> Self {
        Self { table: control.table(), bell, slabs: Vec::new(), bytes: 0, bytes_max }
    }

    /// Lets the peer at a region that was registered. If there is no entry to be had, it has to ask.
    pub(crate) fn expose(&mut self, region: Region, access: Access, (slab, offset): (u32, u64)) {
        self.table.expose(region.stag, access, Place { slab, offset, len: region.len });
    }

    /// Whether a region is out of the peer's reach; if not, to be asked again when the doorbell has rung.
    pub(crate) fn revoke(&self, stag: Stag) -> bool {
        self.table.revoke(stag)
    }

    /// The slab of `bytes` by its number, and where in it they begin; `None` if they are in none that can be shared, and
    /// so have to be asked for.
    pub(crate) fn locate(&mut self, bytes: &[u8], socket: &Socket) -> Option<(u32, u64)> {
        if bytes.is_empty() {
            return None;
        }
        let start = bytes.as_ptr() as usize;
        let after = self.slabs.partition_point(|(slab, _)| slab.base() as usize <= start);
        if let Some((slab, number)) = after.checked_sub(1).map(|at| &self.slabs[at])
            && let Some(offset) = slab.offset_of(bytes)
        {
            return Some((*number, offset as u64));
        }
        let (slab, offset) = Slab::of(bytes)?;
        let fd = slab.fd()?;
        let number = self.slabs.len() as u32;
        let total = self.bytes + slab.len() as u64;
        if self.slabs.len() >= SLABS_MAX || total > self.bytes_max {
            return None;
        }
        // The peer finds it in the socket when it needs it: a region is told of only after this.
        socket.send(&Packet::Slab { number, bytes: slab.len() as u64 }, Some(fd)).ok()?;
        tracing::debug!(number, bytes = slab.len(), "sharing a slab");
        self.bytes = total;
        self.slabs.insert(after, (slab, number));
        Some((number, offset as u64))
    }

    /// Takes the memory of a region back when the connection has ended. If the peer is at it just now, its owner gets other
    /// memory, and what the peer is at is kept aside.
    pub(crate) fn take_back(
        &self,
        regions: &mut Regions,
        stag: Stag,
        kept: &mut Vec<(Stag, Memory)>,
    ) -> Option<Memory> {
        let memory = regions.remove(stag)?;
        if self.table.revoke(stag) {
            return Some(memory);
        }
        let (other, held) = match memory {
            Memory::Write(buffer) => (Memory::Write(Buffer::zeroed(buffer.len())), Memory::Write(buffer)),
            // Bytes do not change while somebody has them.
            Memory::Read(bytes) => (Memory::Read(bytes.clone()), Memory::Read(bytes)),
        };
        kept.push((stag, held));
        Some(other)
    }

    /// Keeps memory until the peer has let go of it, or is gone.
    pub(crate) fn keep(&self, kept: Vec<(Stag, Memory)>) {
        if kept.is_empty() {
            return;
        }
        let (table, bell) = (self.table.clone(), self.bell.clone());
        let slabs: Vec<_> = self.slabs.iter().map(|(slab, _)| slab.clone()).collect();
        let waiting = async move {
            while !bell.is_abandoned() && !kept.iter().all(|(stag, _)| table.revoke(*stag)) {
                tokio::time::sleep(KEEP_POLL).await;
            }
            drop((kept, slabs));
        };
        match tokio::runtime::Handle::try_current() {
            Ok(runtime) => drop(runtime.spawn(waiting)),
            // Nothing runs here any more that could wait: the memory stays where it is.
            Err(_) => std::mem::forget(waiting),
        }
    }
}

impl Mapped {
    pub(crate) fn new(control: &Arc<Control>, bell: Bell, bytes_max: u64) -> Self {
        Self { table: control.table(), bell, slabs: Vec::new(), bytes: 0, bytes_max }
    }

    /// Maps a slab that the peer has passed.
    ///
    /// # Errors
    /// It is not what the peer says it is, or more than one connection may have.
    pub(crate) fn add(&mut self, number: u32, bytes: u64, fd: Option<OwnedFd>) -> Result<(), String> {
        let Some(fd) = fd else { return Err("a slab without its descriptor".to_owned()) };
        let total = self.bytes.checked_add(bytes).filter(|&total| total <= self.bytes_max);
        let Some(total) = total.filter(|_| number as usize == self.slabs.len() && self.slabs.len() < SLABS_MAX) else {
            return Err(format!("slab {number} of {bytes} bytes is out of turn, or too much"));
        };
        let slab = PeerSlab::open(fd.as_fd(), bytes as usize).map_err(|error| error.to_string())?;
        self.slabs.push(Arc::new(slab));
        self.bytes = total;
        Ok(())
    }

    /// Carries out an RDMA Write.
    pub(crate) fn write(&mut self, data: &Rope, to: RemoteSegment, socket: &Socket) -> Direct {
        let (slab, offset) = match self.pin(to, data.len(), Access::RemoteWrite, socket) {
            Ok(pinned) => pinned,
            Err(direct) => return direct,
        };
        let filled = self.slabs[slab].fill(offset, data);
        self.unpin(to.stag);
        match filled {
            Ok(true) => Direct::Done,
            Ok(false) => Direct::Ask,
            Err(error) => Direct::Failed(error),
        }
    }

    /// Carries out an RDMA Read.
    pub(crate) fn read(&mut self, into: &mut [u8], from: RemoteSegment, socket: &Socket) -> Direct {
        let (slab, offset) = match self.pin(from, into.len(), Access::RemoteRead, socket) {
            Ok(pinned) => pinned,
            Err(direct) => return direct,
        };
        let copied = self.slabs[slab].copy_to(offset, into);
        self.unpin(from.stag);
        if copied { Direct::Done } else { Direct::Ask }
    }

    /// The bytes of a region themselves, which stays exposed while they are held.
    pub(crate) fn view(&mut self, from: RemoteSegment, len: usize, socket: &Socket) -> Option<PeerBytes> {
        if len == 0 {
            return None;
        }
        let (slab, offset) = self.pin(from, len, Access::RemoteRead, socket).ok()?;
        let pin =
            Pin { table: self.table.clone(), bell: self.bell.clone(), stag: from.stag, slab: self.slabs[slab].clone() };
        let start = pin.slab.range(offset, len)?;
        // SAFETY: the range lies inside the slab's mapping, which the pin keeps; this process has no references to it.
        #[expect(unsafe_code)]
        Some(unsafe { PeerBytes::new(Arc::new(pin), start, len) })
    }

    /// Where `len` bytes at `segment` lie: the index of a slab and an offset, still to be checked against the slab's size.
    /// The region stays as it is until unpinned.
    fn pin(
        &mut self,
        segment: RemoteSegment,
        len: usize,
        access: Access,
        socket: &Socket,
    ) -> Result<(usize, u64), Direct> {
        let RemoteSegment { stag, offset } = segment;
        let place = self.table.pin(stag, access).ok_or(Direct::Ask)?;
        let slab = place.slab as usize;
        let learnt = if slab < self.slabs.len() { Ok(()) } else { self.learn(slab, socket) };
        let within = offset.checked_add(len as u64).is_some_and(|end| end <= u64::from(place.len));
        match (learnt, place.offset.checked_add(offset)) {
            (Ok(()), Some(offset)) if within => Ok((slab, offset)),
            (learnt, _) => {
                self.unpin(stag);
                Err(learnt.err().map_or(Direct::Ask, Direct::Broken))
            }
        }
    }

    /// Takes in slabs until this one is there: the peer has sent it before it told of a region in it.
    fn learn(&mut self, slab: usize, socket: &Socket) -> Result<(), String> {
        for _ in 0..PACKETS_MAX {
            match socket.receive() {
                Ok(Received::Packet(Packet::Slab { number, bytes }, fd)) => self.add(number, bytes, fd)?,
                Ok(Received::Packet(Packet::Bell, None)) => {}
                Ok(Received::End | Received::Nothing) | Err(_) => break,
                Ok(Received::Packet(..) | Received::Garbage) => return Err("a packet that makes no sense".to_owned()),
            }
            if slab < self.slabs.len() {
                return Ok(());
            }
        }
        Err(format!("a region in slab {slab}, which there is not"))
    }

    fn unpin(&self, stag: Stag) {
        if self.table.unpin(stag) {
            self.bell.ring();
        }
    }
}

/// Keeps a region exposed, and its slab mapped.
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

/// Slabs of one connection.
const SLABS_MAX: usize = 4096;
/// Packets that are looked at to find a slab. More than doorbells can have come between.
const PACKETS_MAX: usize = 4096;
const KEEP_POLL: std::time::Duration = std::time::Duration::from_millis(20);
