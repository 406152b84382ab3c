//! The connecting side's memory, as each side knows it.
//!
//! The connecting side ([`Shared`]) passes each slab once, when a region in it is first registered (or for each region, see
//! `passed.rs`), and keeps the table of exposures. The accepting side ([`Mapped`]) maps the slabs, and carries out its RDMA
//! operations on what the table says. What it cannot carry out, for whatever reason, it leaves to the ring, where the
//! connecting side judges it.

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
    way: Registration,
    /// What the peer has been passed for good, by address. The slab stays mapped while it is here.
    slabs: Vec<(Arc<Slab>, u32)>,
    /// What it has been passed for one region.
    single: HashMap<Stag, Single>,
    /// Numbers of all that it has, and the next.
    passed: BTreeSet<u32>,
    next: u32,
    /// What it may give up and could not yet be told of.
    released: Vec<u32>,
    bytes: u64,
    bytes_max: u64,
}

/// Where memory is that is to be registered.
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

/// The connecting side's memory, mapped here.
pub(crate) struct Mapped {
    table: Table<SharedWords>,
    bell: Bell,
    slabs: Passed,
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

    /// Lets the peer at a region that was registered. If there is no entry to be had, it has to ask.
    pub(crate) fn expose(&mut self, region: Registered, access: Access, located: Located) {
        let Located { slab, offset, single } = located;
        if let Some(single) = single {
            self.single.insert(region.stag, single);
        }
        self.table.expose(region.stag, access, Place { slab, offset, len: region.len });
    }

    /// Whether a region is out of the peer's reach; if not, to be asked again when the doorbell has rung.
    pub(crate) fn revoke(&mut self, stag: Stag) -> bool {
        let is_out = self.table.revoke(stag);
        if is_out && let Some(single) = self.single.remove(&stag) {
            self.take_slab_back(single.number, single.bytes);
        }
        is_out
    }

    /// The slab of `bytes` by its number, and where in it they begin; `None` if they are in none that can be shared, and
    /// so have to be asked for.
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

    /// Memory that was located is not registered after all.
    pub(crate) fn give_up(&mut self, located: Located) {
        if let Some(Single { number, bytes }) = located.single {
            self.take_slab_back(number, bytes);
        }
    }

    /// Passes a slab; its number, unless it cannot be shared.
    fn pass(&mut self, slab: &Slab, socket: &Socket) -> Option<u32> {
        let fd = slab.fd()?;
        self.tell_released();
        let number = self.next;
        let oldest = self.passed.first().copied().unwrap_or(number);
        let total = self.bytes + slab.len() as u64;
        // The peer keeps all numbers from the oldest on.
        if (number - oldest) as usize >= SLABS_MAX || !self.released.is_empty() || total > self.bytes_max {
            return None;
        }
        self.next = number.checked_add(1)?;
        // The peer finds it in the socket when it needs it: a region is told of only after this.
        if socket.send(&Packet::Slab { number, bytes: slab.len() as u64 }, Some(fd)).is_err() {
            self.next = number;
            return None;
        }
        self.passed.insert(number);
        self.bytes = total;
        Some(number)
    }

    fn take_slab_back(&mut self, number: u32, bytes: u64) {
        self.bytes -= bytes;
        self.released.push(number);
        self.tell_released();
    }

    /// Tells the peer what it may give up, as far as the socket has room.
    fn tell_released(&mut self) {
        while let Some(&number) = self.released.last() {
            if !self.bell.tell(&Packet::Forget { number }) {
                return;
            }
            self.released.pop();
            self.passed.remove(&number);
        }
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
            Memory::Write(region) => (Memory::Write(Buffer::zeroed(region.len()).into()), Memory::Write(region)),
            // Bytes do not change while somebody has them.
            Memory::Read(piece) => (Memory::Read(piece.clone()), Memory::Read(piece)),
        };
        kept.push((stag, held));
        Some(other)
    }

    /// Keeps memory until the peer has let go of it, or is gone. A peer that never does could have it all: what is beyond
    /// [`KEPT_MAX`] is not kept. Such a peer can write to all slabs that it has been passed anyway.
    pub(crate) fn keep(&self, kept: Vec<(Stag, Memory)>) {
        if kept.is_empty() {
            return;
        }
        let bytes = kept.iter().map(|(_, memory)| memory.len()).sum();
        let Some(charge) = Kept::take(bytes) else {
            return tracing::warn!(bytes, "shm: a server does not let go of memory; it is used again");
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
            // Nothing runs here any more that could wait: the memory stays where it is.
            Err(_) => std::mem::forget(waiting),
        }
    }
}

/// Bytes of this process that are kept, given back on drop.
struct Kept(usize);

impl Kept {
    fn take(bytes: usize) -> Option<Self> {
        let most = |sum: usize| sum.checked_add(bytes).filter(|&sum| sum <= KEPT_MAX);
        KEPT.fetch_update(Relaxed, Relaxed, most).is_ok().then_some(Self(bytes))
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        KEPT.fetch_sub(self.0, Relaxed);
    }
}

impl Mapped {
    pub(crate) fn new(control: &Arc<Control>, bell: Bell, slabs: Passed) -> Self {
        Self { table: control.table(), bell, slabs }
    }

    /// The slabs of the peer.
    pub(crate) fn slabs(&mut self) -> &mut Passed {
        &mut self.slabs
    }

    /// Carries out an RDMA Write.
    pub(crate) fn write(&mut self, data: &Rope, to: RemoteSegment, socket: &Socket) -> Direct {
        let (slab, offset) = match self.pin(to, data.len(), Access::RemoteWrite, socket) {
            Ok(pinned) => pinned,
            Err(direct) => return direct,
        };
        let filled = slab.fill(offset, data);
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
        let copied = slab.copy_to(offset, into);
        self.unpin(from.stag);
        if copied { Direct::Done } else { Direct::Ask }
    }

    /// The bytes of a region themselves, which stays exposed while they are held.
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

    /// A mapping that holds the `len` bytes at `segment`, and where in it they begin. The region stays as it is until
    /// unpinned.
    fn pin(
        &mut self,
        segment: RemoteSegment,
        len: usize,
        access: Access,
        socket: &Socket,
    ) -> Result<(Arc<PeerSlab>, u64), Direct> {
        let RemoteSegment { stag, offset } = segment;
        let place = self.table.pin(stag, access).ok_or(Direct::Ask)?;
        let learnt = if self.slabs.knows(place.slab) { Ok(()) } else { self.learn(place.slab, socket) };
        let within = offset.checked_add(len as u64).is_some_and(|end| end <= u64::from(place.len));
        let reached = match (&learnt, place.offset.checked_add(offset)) {
            (Ok(()), Some(offset)) if within => self.slabs.reach(place.slab, offset, len),
            _ => None,
        };
        reached.ok_or_else(|| {
            self.unpin(stag);
            learnt.err().map_or(Direct::Ask, Direct::Broken)
        })
    }

    /// Takes in slabs until this one is there: the peer has sent it before it told of a region in it.
    fn learn(&mut self, slab: u32, socket: &Socket) -> Result<(), String> {
        for _ in 0..PACKETS_MAX {
            match socket.receive() {
                Ok(Received::Packet(Packet::Slab { number, bytes }, fd)) => self.slabs.add(number, bytes, fd)?,
                Ok(Received::Packet(Packet::Forget { number }, None)) => self.slabs.forget(number)?,
                Ok(Received::Packet(Packet::Bell, None)) => {}
                Ok(Received::End | Received::Nothing) | Err(_) => break,
                Ok(Received::Packet(..) | Received::Garbage) => return Err("a packet that makes no sense".to_owned()),
            }
            if self.slabs.knows(slab) {
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

/// Packets that are looked at to find a slab. More than doorbells can have come between.
const PACKETS_MAX: usize = 4096;
static KEPT: AtomicUsize = AtomicUsize::new(0);
/// Bytes that are kept for peers of ended connections, in the whole process: what is exposed on very many of them.
const KEPT_MAX: usize = 256 << 20;
const KEEP_POLL: std::time::Duration = std::time::Duration::from_millis(20);
