//! [`Ledger`]: how much of the process peers may take up by the memory that they share, each user and all together.
//!
//! Three things are scarce. *Mappings*: beyond `vm.max_map_count` nothing can be mapped and no thread started.
//! *Descriptors*: beyond `RLIMIT_NOFILE` no connection can be accepted. *Memory*: the kernel charges a page of a memfd to the
//! cgroup of the process that touches it first, so an access of ours to a hole of a peer's memfd allocates a page at our
//! cost, and it remains ours until the memfd is gone, not until we unmap it. A memfd is therefore charged with its whole size
//! from when it is first accepted to when the kernel frees it, however many connections it is passed over. That is what
//! inotify(7) tells us: a watch of the inode does not keep it, and ends with it.
//!
//! Of each of the three a user has a fair part: see [`Shares`]. The user is the one the kernel names for the socket. Control
//! memory is essential, slabs are optional: whoever has passed as many slabs as it may can still connect.
//!
//! On error nothing is charged, and the caller does without the memory.

use std::{
    collections::{HashMap, HashSet},
    fs, io,
    mem::MaybeUninit,
    os::fd::{AsRawFd, BorrowedFd, OwnedFd},
    sync::{
        Arc, LazyLock,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};

use parking_lot::Mutex;
use rustix::{
    fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags},
    io::Errno,
    process::{Resource, getrlimit},
};

use crate::shares::{Need, Share, Shares};

/// What peers may take up in all. One user alone may take up half of each, a third by its slabs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Mappings: of control memory and of slabs.
    pub mappings: u64,
    /// Descriptors that are kept open, of slabs that are not mapped as a whole.
    pub descriptors: u64,
    /// Memfds that peers have shared and that still exist.
    pub memfds: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// What peers of one process take up. Clones are the same ledger.
#[derive(Clone, Debug)]
pub struct Ledger(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    mappings: Arc<Shares<u32>>,
    descriptors: Arc<Shares<u32>>,
    memfds: Arc<Shares<u32>>,
    bytes: Arc<Shares<u32>>,
    living: Mutex<Living>,
    /// The first refusal is worth a warning.
    warned: AtomicBool,
}

/// The memfds that still exist, by their watches.
#[derive(Debug, Default)]
struct Living {
    /// Made with the first memfd.
    inotify: Option<OwnedFd>,
    memfds: HashMap<i32, Memfd>,
}

#[derive(Debug)]
struct Memfd {
    bytes: u64,
    /// Of the memfd, and of its bytes. More if it was found larger when it was passed again.
    shares: Vec<Share<u32>>,
}

/// The ledger as one user's connection sees it.
#[derive(Clone, Debug)]
pub(crate) struct Account {
    ledger: Ledger,
    user: u32,
}

/// A mapping or a descriptor, given back on drop.
#[derive(Debug)]
pub(crate) struct Charge(#[expect(dead_code, reason = "held for its drop")] Share<u32>);

impl Bounds {
    /// Of this process: half of the mappings it may have, a quarter of its descriptors, and a third of the memory of the
    /// machine, or of its cgroup if that has less. Of memfds, half of what inotify lets a user watch.
    pub fn of_process() -> Self {
        let number = |path: &str| fs::read_to_string(path).ok()?.trim().parse::<u64>().ok();
        Self {
            mappings: number("/proc/sys/vm/max_map_count").unwrap_or(65_530) / 2,
            descriptors: getrlimit(Resource::Nofile).current.unwrap_or(1 << 20) / 4,
            memfds: number("/proc/sys/fs/inotify/max_user_watches").unwrap_or(8192) / 2,
            bytes: memory_of_process() / 3,
        }
    }
}

impl Ledger {
    /// An empty ledger.
    pub fn new(bounds: Bounds) -> Self {
        Self(Arc::new(Inner {
            mappings: Shares::new(bounds.mappings),
            descriptors: Shares::new(bounds.descriptors),
            memfds: Shares::new(bounds.memfds),
            bytes: Shares::new(bounds.bytes),
            living: Mutex::default(),
            warned: AtomicBool::new(false),
        }))
    }

    /// The one of this process, with the bounds that hold when it is first asked for.
    pub fn of_process() -> Self {
        static LEDGER: LazyLock<Ledger> = LazyLock::new(|| {
            let bounds = Bounds::of_process();
            tracing::debug!(?bounds, "memory that peers can share");
            Ledger::new(bounds)
        });
        LEDGER.clone()
    }

    /// The part of a user.
    pub(crate) fn account(&self, user: u32) -> Account {
        Account { ledger: self.clone(), user }
    }
}

impl Account {
    /// Charges one more mapping.
    ///
    /// # Errors
    /// The user has as many as it may.
    pub(crate) fn mapping(&self, need: Need) -> io::Result<Charge> {
        self.take(&self.ledger.0.mappings, 1, need, "mappings").map(Charge)
    }

    /// Charges one more descriptor.
    ///
    /// # Errors
    /// The user has as many as it may.
    pub(crate) fn descriptor(&self) -> io::Result<Charge> {
        self.take(&self.ledger.0.descriptors, 1, Need::Optional, "descriptors").map(Charge)
    }

    /// Charges a memfd of `bytes`, if it is not charged already, until it exists no more.
    ///
    /// # Errors
    /// The user has as much as it may, or the memfd cannot be watched.
    pub(crate) fn memfd(&self, fd: BorrowedFd<'_>, bytes: u64, need: Need) -> io::Result<()> {
        let mut living = self.ledger.0.living.lock();
        living.forget_gone()?;
        let watch = living.watch(fd)?;
        let known = living.memfds.get(&watch).map_or(0, |memfd| memfd.bytes);
        if bytes <= known {
            return Ok(());
        }
        let shares = self.shares(bytes - known, known == 0, need).inspect_err(|_| {
            if known == 0 {
                living.unwatch(watch);
            }
        })?;
        let memfd = living.memfds.entry(watch).or_insert_with(|| Memfd { bytes, shares: Vec::new() });
        memfd.bytes = bytes;
        memfd.shares.extend(shares);
        Ok(())
    }

    /// Shares of the bytes of a memfd, and of its being one if it `is_new`.
    fn shares(&self, bytes: u64, is_new: bool, need: Need) -> io::Result<Vec<Share<u32>>> {
        let Inner { memfds, bytes: of_bytes, .. } = &*self.ledger.0;
        let mut shares = vec![self.take(of_bytes, bytes, need, "bytes of shared memory")?];
        if is_new {
            shares.push(self.take(memfds, 1, need, "memfds")?);
        }
        Ok(shares)
    }

    fn take(&self, shares: &Arc<Shares<u32>>, units: u64, need: Need, what: &str) -> io::Result<Share<u32>> {
        shares.take(self.user, units, need).ok_or_else(|| {
            let error = format!("user {} has as many {what} as it may", self.user);
            if !self.ledger.0.warned.swap(true, Relaxed) {
                tracing::warn!("shm: {error}; its data go through the ring, or it cannot connect");
            }
            io::Error::new(io::ErrorKind::QuotaExceeded, error)
        })
    }
}

impl Living {
    /// Watches a memfd; the same one is the same watch.
    fn watch(&mut self, fd: BorrowedFd<'_>) -> io::Result<i32> {
        let inotify = match &self.inotify {
            Some(inotify) => inotify,
            None => self.inotify.insert(inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?),
        };
        let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
        inotify::add_watch(inotify, path, WatchFlags::DELETE_SELF).map_err(|errno| {
            io::Error::new(errno.kind(), format!("a peer's memory cannot be watched by inotify: {errno}"))
        })
    }

    fn unwatch(&mut self, watch: i32) {
        if let Some(inotify) = &self.inotify {
            // It fails if the memfd is gone already.
            let _ = inotify::remove_watch(inotify, watch);
        }
    }

    /// Gives back what memfds were charged that exist no more.
    fn forget_gone(&mut self) -> io::Result<()> {
        let Some(inotify) = &self.inotify else { return Ok(()) };
        let mut lost = false;
        let mut space = [MaybeUninit::uninit(); 4096];
        let mut events = inotify::Reader::new(inotify, &mut space);
        loop {
            match events.next() {
                Ok(event) if event.events().contains(ReadFlags::IGNORED) => drop(self.memfds.remove(&event.wd())),
                Ok(event) => lost |= event.events().contains(ReadFlags::QUEUE_OVERFLOW),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => break,
                Err(errno) => return Err(errno.into()),
            }
        }
        if lost { self.forget_unwatched() } else { Ok(()) }
    }

    /// The same without events: more went at once than the kernel keeps of them.
    fn forget_unwatched(&mut self) -> io::Result<()> {
        let Some(inotify) = &self.inotify else { return Ok(()) };
        let living = fs::read_to_string(format!("/proc/self/fdinfo/{}", inotify.as_raw_fd()))?;
        let living: HashSet<i32> = living.lines().filter_map(watch_of).collect();
        self.memfds.retain(|watch, _| living.contains(watch));
        Ok(())
    }
}

/// The watch in a line of `/proc/PID/fdinfo/FD`, such as `inotify wd:1 ino:2f sdev:1 mask:400 …` (proc_pid_fdinfo(5)).
fn watch_of(line: &str) -> Option<i32> {
    let number = line.strip_prefix("inotify wd:")?.split(' ').next()?;
    i32::from_str_radix(number, 16).ok()
}

/// Bytes of memory that this process can use: the machine's, or its cgroup's if that is less.
fn memory_of_process() -> u64 {
    let info = rustix::system::sysinfo();
    let machine = (info.totalram as u64).saturating_mul(info.mem_unit.into());
    let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    limits_of(&groups).filter_map(|path| fs::read_to_string(path).ok()?.trim().parse().ok()).fold(machine, u64::min)
}

/// Where limits of memory are found, given `/proc/self/cgroup`: those of its cgroup and of all above it.
fn limits_of(groups: &str) -> impl Iterator<Item = String> {
    groups.lines().flat_map(|line| {
        // cgroups(7): `0::/path` for version 2, `N:controllers:/path` for version 1.
        let (root, file, path) = match line.splitn(3, ':').collect::<Vec<_>>()[..] {
            ["0", "", path] => ("/sys/fs/cgroup", "memory.max", path),
            [_, controllers, path] if controllers.split(',').any(|name| name == "memory") => {
                ("/sys/fs/cgroup/memory", "memory.limit_in_bytes", path)
            }
            _ => return Vec::new(),
        };
        let above = std::path::Path::new(path).ancestors();
        above.map(|path| format!("{root}{}/{file}", path.display().to_string().trim_end_matches('/'))).collect()
    })
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use rustix::fs::MemfdFlags;

    use super::*;

    const BOUNDS: Bounds = Bounds { mappings: 8, descriptors: 4, memfds: 100, bytes: 1 << 20 };

    fn memfd(bytes: u64) -> OwnedFd {
        let fd = rustix::fs::memfd_create("test", MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&fd, bytes).unwrap();
        fd
    }

    #[test]
    fn a_memfd_is_charged_once_and_until_it_is_gone() {
        let ledger = Ledger::new(BOUNDS);
        let (one, two) = (ledger.account(1000), ledger.account(2000));
        let held: Vec<_> = (0..2).map(|_| memfd(256 << 10)).collect();
        for _ in 0..3 {
            held.iter().for_each(|fd| one.memfd(fd.as_fd(), 256 << 10, Need::Essential).unwrap());
        }
        assert_eq!(ledger.0.bytes.sum(), 512 << 10);
        let more = memfd(4096);
        let error = one.memfd(more.as_fd(), 4096, Need::Essential).unwrap_err().to_string();
        assert!(error.contains("user 1000") && error.contains("bytes"), "{error}");
        two.memfd(more.as_fd(), 4096, Need::Essential).unwrap();
        // Closed here, but open elsewhere: it exists, with all pages that were allocated.
        let elsewhere = held[0].try_clone().unwrap();
        drop(held);
        let next = memfd(128 << 10);
        one.memfd(next.as_fd(), 128 << 10, Need::Essential).unwrap();
        assert_eq!(ledger.0.bytes.sum(), (384 << 10) + 4096, "one has gone, and one has come");
        assert!(one.memfd(memfd(256 << 10).as_fd(), 256 << 10, Need::Essential).is_err());
        drop((elsewhere, next, more));
        two.memfd(memfd(4096).as_fd(), 4096, Need::Essential).unwrap();
        two.memfd(memfd(8192).as_fd(), 8192, Need::Essential).unwrap();
        assert_eq!((ledger.0.bytes.sum(), ledger.0.memfds.sum()), (8192, 1));
    }

    #[test]
    fn what_still_exists_is_found_without_events() {
        let ledger = Ledger::new(BOUNDS);
        let account = ledger.account(7);
        let mut held: Vec<_> = (0..40).map(|_| memfd(4096)).collect();
        held.iter().for_each(|fd| account.memfd(fd.as_fd(), 4096, Need::Essential).unwrap());
        held.truncate(30);
        ledger.0.living.lock().forget_unwatched().unwrap();
        assert_eq!((ledger.0.memfds.sum(), ledger.0.bytes.sum()), (30, 30 * 4096));
        held.clear();
        ledger.0.living.lock().forget_unwatched().unwrap();
        assert_eq!(ledger.0.memfds.sum(), 0);
    }

    #[test]
    fn a_memfd_that_has_grown_is_charged_for_that() {
        let ledger = Ledger::new(BOUNDS);
        let account = ledger.account(1000);
        let fd = memfd(4096);
        account.memfd(fd.as_fd(), 4096, Need::Essential).unwrap();
        assert!(account.memfd(fd.as_fd(), 1 << 20, Need::Essential).is_err());
        account.memfd(fd.as_fd(), 512 << 10, Need::Essential).unwrap();
        assert_eq!((ledger.0.bytes.sum(), ledger.0.memfds.sum()), (512 << 10, 1));
    }

    #[test]
    fn mappings_and_descriptors_are_charged_until_dropped() {
        let ledger = Ledger::new(BOUNDS);
        let (one, two) = (ledger.account(0), ledger.account(1));
        let mappings: Vec<_> = std::iter::from_fn(|| one.mapping(Need::Essential).ok()).collect();
        let descriptors: Vec<_> = std::iter::from_fn(|| one.descriptor().ok()).collect();
        assert_eq!((mappings.len(), descriptors.len()), (4, 1));
        assert!(two.mapping(Need::Essential).is_ok() && two.descriptor().is_ok());
        drop((mappings, descriptors));
        assert_eq!((ledger.0.mappings.sum(), ledger.0.descriptors.sum()), (0, 0));
    }

    #[test]
    fn limits_are_looked_for_in_all_cgroups_above() {
        let paths = |groups| limits_of(groups).collect::<Vec<_>>();
        assert_eq!(paths("0::/\n"), ["/sys/fs/cgroup/memory.max"]);
        let nested = ["/sys/fs/cgroup/a/b/memory.max", "/sys/fs/cgroup/a/memory.max", "/sys/fs/cgroup/memory.max"];
        assert_eq!(paths("0::/a/b\n"), nested);
        let old = ["/sys/fs/cgroup/memory/x/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.limit_in_bytes"];
        assert_eq!(paths("3:cpu:/y\n5:memory,hugetlb:/x\nnonsense\n"), old);
        let bounds = Bounds::of_process();
        assert!(bounds.mappings > 0 && bounds.descriptors > 0 && bounds.memfds > 0 && bounds.bytes > 0, "{bounds:?}");
    }
}
