//! [`Ledger`]: limits the resources that peers use by sharing memory, for each user and in total.
//!
//! Three resources are scarce. *Mappings*: beyond `vm.max_map_count` no memory can be mapped and no thread started.
//! *Descriptors*: beyond `RLIMIT_NOFILE` no connection can be accepted. *Memory*: the kernel charges a page of a memfd
//! to the cgroup of the process that accesses it first. So an access to a hole of a peer's memfd allocates a page at
//! the cost of this process, until the memfd is freed, even if it is unmapped before. Therefore the full size of a
//! memfd is charged from its first acceptance until the kernel frees it, over however many connections it is passed.
//! inotify(7) reports that: a watch of the inode does not keep it alive, and ends with it.
//!
//! Each user has a fair share of each resource: see [`Shares`]. The user is the one that the kernel reports for the
//! socket. Control memory is essential and slabs are optional: a user that has passed its maximum of slabs can still
//! connect.
//!
//! On error nothing is charged, and the caller proceeds without the memory.

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

/// The limits of the resources of all peers. One user can use half of each resource, and a third by its slabs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Maximum number of mappings of control memory and of slabs.
    pub mappings: u64,
    /// Maximum number of descriptors kept open, for slabs that are not mapped as a whole.
    pub descriptors: u64,
    /// Maximum number of existing memfds that peers have shared.
    pub memfds: u64,
    /// Maximum total bytes of these memfds.
    pub bytes: u64,
}

/// The resources that the peers of one process use. Clones share the same ledger.
#[derive(Clone, Debug)]
pub struct Ledger(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    mappings: Arc<Shares<u32>>,
    descriptors: Arc<Shares<u32>>,
    memfds: Arc<Shares<u32>>,
    bytes: Arc<Shares<u32>>,
    live: Mutex<LiveMemfds>,
    /// `true` after the first refusal, which is logged as a warning.
    warned: AtomicBool,
}

/// The existing memfds by their watches.
#[derive(Debug, Default)]
struct LiveMemfds {
    /// Created with the first memfd.
    inotify: Option<OwnedFd>,
    memfds: HashMap<i32, Memfd>,
}

#[derive(Debug)]
struct Memfd {
    bytes: u64,
    /// The shares for the memfd and for its bytes. There are more if it had grown when it was passed again.
    shares: Vec<Share<u32>>,
}

/// The ledger for the connections of one user.
#[derive(Clone, Debug)]
pub(crate) struct Account {
    ledger: Ledger,
    user: u32,
}

/// A mapping or a descriptor. Dropping it releases the charge.
#[derive(Debug)]
pub(crate) struct Charge(#[expect(dead_code, reason = "its drop releases the charge")] Share<u32>);

impl Bounds {
    /// Returns the limits of this process: half of the mappings that it can have, a quarter of its descriptors, and a
    /// third of the memory of the machine, or of its cgroup if that has less. The limit of memfds is half of the
    /// watches that inotify permits a user.
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
    /// Creates an empty ledger.
    pub fn new(bounds: Bounds) -> Self {
        Self(Arc::new(Inner {
            mappings: Shares::new(bounds.mappings),
            descriptors: Shares::new(bounds.descriptors),
            memfds: Shares::new(bounds.memfds),
            bytes: Shares::new(bounds.bytes),
            live: Mutex::default(),
            warned: AtomicBool::new(false),
        }))
    }

    /// Returns the ledger of this process. Its limits are determined at the first call.
    pub fn of_process() -> Self {
        static LEDGER: LazyLock<Ledger> = LazyLock::new(|| {
            let bounds = Bounds::of_process();
            tracing::debug!(?bounds, "memory that peers can share");
            Ledger::new(bounds)
        });
        LEDGER.clone()
    }

    /// Opens the account of a user.
    pub(crate) fn account(&self, user: u32) -> Account {
        Account { ledger: self.clone(), user }
    }
}

impl Account {
    /// Charges one more mapping.
    ///
    /// # Errors
    /// The user has reached its limit.
    pub(crate) fn mapping(&self, need: Need) -> io::Result<Charge> {
        self.take(&self.ledger.0.mappings, 1, need, "mappings").map(Charge)
    }

    /// Charges one more descriptor.
    ///
    /// # Errors
    /// The user has reached its limit.
    pub(crate) fn descriptor(&self) -> io::Result<Charge> {
        self.take(&self.ledger.0.descriptors, 1, Need::Optional, "descriptors").map(Charge)
    }

    /// Charges a memfd of `bytes` bytes until it is freed, unless it is charged already.
    ///
    /// # Errors
    /// The user has reached its limit, or the memfd cannot be watched.
    pub(crate) fn memfd(&self, fd: BorrowedFd<'_>, bytes: u64, need: Need) -> io::Result<()> {
        let mut live = self.ledger.0.live.lock();
        live.release_freed()?;
        let watch = live.watch(fd)?;
        let known = live.memfds.get(&watch).map_or(0, |memfd| memfd.bytes);
        if bytes <= known {
            return Ok(());
        }
        let shares = self.shares(bytes - known, known == 0, need).inspect_err(|_| {
            if known == 0 {
                live.unwatch(watch);
            }
        })?;
        let memfd = live.memfds.entry(watch).or_insert_with(|| Memfd { bytes, shares: Vec::new() });
        memfd.bytes = bytes;
        memfd.shares.extend(shares);
        Ok(())
    }

    /// Takes shares for the bytes of a memfd, and for the memfd itself if it `is_new`.
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
            let error = format!("user {} has reached its limit of {what}", self.user);
            if !self.ledger.0.warned.swap(true, Relaxed) {
                tracing::warn!("shm: {error}; its data go through the ring, or its connection is rejected");
            }
            io::Error::new(io::ErrorKind::QuotaExceeded, error)
        })
    }
}

impl LiveMemfds {
    /// Watches a memfd. The same memfd has the same watch.
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
            // Removal fails if the memfd has been freed already.
            let _ = inotify::remove_watch(inotify, watch);
        }
    }

    /// Releases the charges of memfds that have been freed.
    fn release_freed(&mut self) -> io::Result<()> {
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
        if lost { self.release_unwatched() } else { Ok(()) }
    }

    /// Does the same without events, after more memfds were freed at once than the kernel has events for.
    fn release_unwatched(&mut self) -> io::Result<()> {
        let Some(inotify) = &self.inotify else { return Ok(()) };
        let live = fs::read_to_string(format!("/proc/self/fdinfo/{}", inotify.as_raw_fd()))?;
        let live: HashSet<i32> = live.lines().filter_map(watch_of).collect();
        self.memfds.retain(|watch, _| live.contains(watch));
        Ok(())
    }
}

/// Parses the watch in a line of `/proc/PID/fdinfo/FD`, such as `inotify wd:1 ino:2f sdev:1 mask:400 …`
/// (proc_pid_fdinfo(5)).
fn watch_of(line: &str) -> Option<i32> {
    let number = line.strip_prefix("inotify wd:")?.split(' ').next()?;
    i32::from_str_radix(number, 16).ok()
}

/// Returns the bytes of memory that this process can use: those of the machine, or of its cgroup if that has less.
fn memory_of_process() -> u64 {
    let info = rustix::system::sysinfo();
    let machine = (info.totalram as u64).saturating_mul(info.mem_unit.into());
    let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    limits_of(&groups).filter_map(|path| fs::read_to_string(path).ok()?.trim().parse().ok()).fold(machine, u64::min)
}

/// Returns the paths of memory limits for the content of `/proc/self/cgroup`: those of its cgroup and of all parents.
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
    fn memfd_is_charged_once_until_it_is_freed() {
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
        // It is closed here but open elsewhere, so it exists with all allocated pages.
        let elsewhere = held[0].try_clone().unwrap();
        drop(held);
        let next = memfd(128 << 10);
        one.memfd(next.as_fd(), 128 << 10, Need::Essential).unwrap();
        assert_eq!(ledger.0.bytes.sum(), (384 << 10) + 4096, "one memfd was freed and one was added");
        assert!(one.memfd(memfd(256 << 10).as_fd(), 256 << 10, Need::Essential).is_err());
        drop((elsewhere, next, more));
        two.memfd(memfd(4096).as_fd(), 4096, Need::Essential).unwrap();
        two.memfd(memfd(8192).as_fd(), 8192, Need::Essential).unwrap();
        assert_eq!((ledger.0.bytes.sum(), ledger.0.memfds.sum()), (8192, 1));
    }

    #[test]
    fn existing_memfds_are_found_without_events() {
        let ledger = Ledger::new(BOUNDS);
        let account = ledger.account(7);
        let mut held: Vec<_> = (0..40).map(|_| memfd(4096)).collect();
        held.iter().for_each(|fd| account.memfd(fd.as_fd(), 4096, Need::Essential).unwrap());
        held.truncate(30);
        ledger.0.live.lock().release_unwatched().unwrap();
        assert_eq!((ledger.0.memfds.sum(), ledger.0.bytes.sum()), (30, 30 * 4096));
        held.clear();
        ledger.0.live.lock().release_unwatched().unwrap();
        assert_eq!(ledger.0.memfds.sum(), 0);
    }

    #[test]
    fn grown_memfd_is_charged_for_its_growth() {
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
    fn limits_of_all_parent_cgroups_are_found() {
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
