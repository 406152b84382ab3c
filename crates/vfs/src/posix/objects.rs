//! [`Objects`]: the cache of objects, as open descriptors.
//!
//! An object is cached as a path descriptor. It is used to read attributes and to open other objects, but not for data.
//! A file that is read or written also has descriptors for data, one for each caller and direction, because the rights
//! of an open file are those of the caller that opened it. Both kinds are bounded in number and age. Descriptors for
//! data live briefly, so that the file is not busy for long, and changes of its permissions by other processes take
//! effect soon.
//!
//! A file that this server has created is cached with the descriptor that created it, which saves opening another one.
//! That descriptor is open for data, so the object is evicted when its descriptors for data are closed, as soon as
//! nothing uses it. A client that has written a file commits it at the latest when a program closes it, so a commit closes
//! the descriptors for writing: the program that was written can be executed on this machine at once.
//!
//! A held file keeps no descriptor while it has a name, because it can be opened again. [`holds`] keeps the descriptor of a
//! held file that has lost its last name.

mod holds;

use std::{
    fs::File,
    hash::BuildHasher,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use entropy::{FastState, HashMap};
use parking_lot::{Condvar, Mutex, MutexGuard};
use smallvec::SmallVec;

use super::history::History;
use crate::{Cred, Handle, Kind};

/// A cached object.
#[derive(Debug)]
pub(super) struct Object {
    pub(super) handle: Handle,
    pub(super) kind: Kind,
    pub(super) fileid: u64,
    fd: Descriptor,
    /// The history of the object. It is locked during a change, so that the attributes before and after it are
    /// consistent.
    pub(super) changing: Mutex<History>,
    opens: Mutex<SmallVec<[Open; 2]>>,
    /// `true` if any descriptor is open for data, including the one with which the object is cached.
    has_data: AtomicBool,
    used: AtomicU64,
}

/// The descriptor with which an object is cached.
#[derive(Debug)]
pub(super) enum Descriptor {
    /// A path descriptor.
    Path(OwnedFd),
    /// The descriptor that created the file. It is open for data.
    Data(Arc<File>),
}

/// A descriptor for data.
#[derive(Debug)]
struct Open {
    cred: Cred,
    write: bool,
    file: Arc<File>,
    born: u64,
    used: u64,
}

impl Object {
    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    fn is_held_by_data(&self) -> bool {
        matches!(self.fd, Descriptor::Data(_))
    }

    pub(super) fn is_dir(&self) -> bool {
        self.kind == Kind::Dir
    }

    fn close(&self) {
        let closed = std::mem::take(&mut *self.opens.lock());
        self.has_data.store(self.is_held_by_data(), Ordering::Relaxed);
        // Close them outside the lock, because closing a file can take long.
        drop(closed);
    }
}

impl AsFd for Descriptor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Path(fd) => fd.as_fd(),
            Self::Data(file) => file.as_fd(),
        }
    }
}

impl From<OwnedFd> for Descriptor {
    fn from(fd: OwnedFd) -> Self {
        Self::Path(fd)
    }
}

/// The cache of objects.
#[derive(Debug)]
pub(super) struct Objects(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    shards: Box<[Mutex<Shard>]>,
    /// Hashes handles to shards. It needs no random keys, because the kernel chooses the handles.
    hasher: FastState,
    /// Maximum number of objects in one shard.
    shard_max: usize,
    /// Approximate maximum number of descriptors for data.
    opens_max: usize,
    opens: AtomicUsize,
    /// The number of cached and pinned objects.
    count: AtomicUsize,
    /// The number of pinned objects.
    pins: AtomicUsize,
    /// Approximate maximum number of pinned objects.
    pins_max: usize,
    /// Objects that are no longer pinned, for the thread that closes them.
    unpinned: Mutex<Vec<Arc<Object>>>,
    /// A counter of seconds. It advances while there are objects.
    tick: AtomicU64,
    /// `true` if the thread that closes objects does not run.
    stopped: Mutex<bool>,
    wake: Condvar,
}

#[derive(Debug, Default)]
struct Shard {
    index: HashMap<Handle, usize, FastState>,
    slots: Vec<Arc<Object>>,
    /// The position of the clock hand, at which the search for an object to evict continues.
    hand: usize,
    /// The number of holds of each held file.
    held: HashMap<Handle, u32, FastState>,
    /// The held files without a name. They are not in `slots`.
    pinned: HashMap<Handle, Arc<Object>, FastState>,
}

impl Objects {
    /// Creates a cache with about `max` descriptors, and starts the thread that evicts old objects.
    pub(super) fn new(max: usize) -> Self {
        let shared = Arc::new(Shared {
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            hasher: FastState::default(),
            shard_max: (max / 2 / SHARDS).max(4),
            opens_max: (max / 2).max(16),
            opens: AtomicUsize::new(0),
            count: AtomicUsize::new(0),
            pins: AtomicUsize::new(0),
            pins_max: (max / 2).max(16),
            unpinned: Mutex::default(),
            tick: AtomicU64::new(1),
            stopped: Mutex::new(false),
            wake: Condvar::new(),
        });
        let thread = shared.clone();
        let spawned = std::thread::Builder::new().name("slipway-fds".into()).spawn(move || thread.run());
        if let Err(error) = spawned {
            tracing::warn!(%error, "cannot start the thread that closes unused files: they stay open longer");
            *shared.stopped.lock() = true;
        }
        Self(shared)
    }

    /// Returns an object if it is cached.
    pub(super) fn find(&self, handle: &Handle) -> Option<Arc<Object>> {
        let shard = self.0.shard(handle).lock();
        let object = shard.find(handle)?.clone();
        object.used.store(self.0.tick.load(Ordering::Relaxed), Ordering::Relaxed);
        Some(object)
    }

    /// Adds an object. Returns the cached one if there is one.
    pub(super) fn insert(&self, handle: Handle, (kind, fileid): (Kind, u64), fd: Descriptor) -> Arc<Object> {
        let tick = self.0.tick.load(Ordering::Relaxed);
        let mut shard = self.0.shard(&handle).lock();
        if let Some(object) = shard.find(&handle) {
            return object.clone();
        }
        let object = Arc::new(Object {
            handle: handle.clone(),
            kind,
            fileid,
            has_data: AtomicBool::new(matches!(fd, Descriptor::Data(_))),
            fd,
            changing: Mutex::default(),
            opens: Mutex::default(),
            used: AtomicU64::new(tick),
        });
        let evicted = (shard.slots.len() >= self.0.shard_max).then(|| shard.evict(tick));
        let index = shard.slots.len();
        shard.slots.push(object.clone());
        shard.index.insert(handle, index);
        drop(shard);
        // Drop `evicted` at the end, outside the lock, because that closes its descriptor.
        if evicted.is_none() && self.0.count.fetch_add(1, Ordering::Relaxed) == 0 {
            self.0.notify();
        }
        object
    }

    /// Evicts an object of which a name was removed, unless the object is held. Returns it if it is held.
    pub(super) fn forget(&self, handle: &Handle) -> Option<Arc<Object>> {
        let mut shard = self.0.shard(handle).lock();
        if shard.held.contains_key(handle) {
            return shard.find(handle).cloned();
        }
        let removed = shard.take(handle);
        drop(shard);
        if let Some(object) = removed {
            self.0.count.fetch_sub(1, Ordering::Relaxed);
            object.close();
        }
        None
    }

    /// Closes an object's descriptors for data, because the permissions to open them may have changed.
    pub(super) fn close(&self, object: &Arc<Object>) {
        object.close();
        if object.is_held_by_data() {
            self.0.evict_unused(object);
        }
    }

    /// Closes an object's descriptors for writing, because no process can execute a file while it is open for writing.
    pub(super) fn close_writers(&self, object: &Arc<Object>) {
        let mut opens = object.opens.lock();
        let (writers, readers): (SmallVec<_>, SmallVec<_>) = opens.drain(..).partition(|open| open.write);
        *opens = readers;
        let is_closed = opens.is_empty();
        object.has_data.store(!is_closed || object.is_held_by_data(), Ordering::Relaxed);
        drop(opens);
        // Close them outside the lock, because closing a file can take long.
        drop::<SmallVec<[Open; 2]>>(writers);
        if object.is_held_by_data() {
            self.0.evict_unused(object);
        }
    }

    /// Returns a descriptor for data that was opened for `cred`.
    pub(super) fn opened(&self, object: &Object, cred: &Cred, write: bool) -> Option<Arc<File>> {
        let mut opens = object.opens.lock();
        let open = opens.iter_mut().find(|open| open.write == write && open.cred == *cred)?;
        open.used = self.0.tick.load(Ordering::Relaxed);
        Some(open.file.clone())
    }

    /// Adds a descriptor for data.
    pub(super) fn keep_open(&self, object: &Object, cred: &Cred, write: bool, file: Arc<File>) {
        let tick = self.0.tick.load(Ordering::Relaxed);
        let mut opens = object.opens.lock();
        let closed = (opens.len() >= OPENS_PER_OBJECT).then(|| opens.remove(0));
        opens.push(Open { cred: cred.clone(), write, file, born: tick, used: tick });
        object.has_data.store(true, Ordering::Relaxed);
        drop(opens);
        drop(closed);
        if self.0.opens.fetch_add(1, Ordering::Relaxed) >= self.0.opens_max {
            self.0.close_old(tick, 0);
        }
    }

    /// Closes descriptors when the process has run out of them.
    pub(super) fn shrink(&self) {
        let tick = self.0.tick.load(Ordering::Relaxed);
        self.0.close_old(tick, 0);
        for shard in &self.0.shards {
            let mut shard = shard.lock();
            let evicted: Vec<_> = (0..shard.slots.len().div_ceil(2)).map(|_| shard.evict(tick)).collect();
            drop(shard);
            self.0.count.fetch_sub(evicted.len(), Ordering::Relaxed);
        }
    }
}

impl Drop for Objects {
    fn drop(&mut self) {
        *self.0.stopped.lock() = true;
        self.0.wake.notify_one();
    }
}

impl Shared {
    fn shard(&self, handle: &Handle) -> &Mutex<Shard> {
        &self.shards[self.hasher.hash_one(handle) as usize % SHARDS]
    }

    /// Notifies the thread of a change for which it waits.
    fn notify(&self) {
        // Notify under the lock, so that the thread either has not yet read what has changed or already waits.
        let _stopped = self.stopped.lock();
        self.wake.notify_one();
    }

    /// Evicts old objects and closes old descriptors once a second, until it is stopped. Waits while there are no
    /// objects. Closes objects that are no longer pinned at once.
    fn run(&self) {
        let mut stopped = self.stopped.lock();
        while !*stopped {
            let unpinned = std::mem::take(&mut *self.unpinned.lock());
            if !unpinned.is_empty() {
                MutexGuard::unlocked(&mut stopped, || drop(unpinned));
                continue;
            }
            if self.count.load(Ordering::Relaxed) == 0 {
                self.wake.wait(&mut stopped);
            } else {
                self.wake.wait_for(&mut stopped, Duration::from_secs(1));
            }
            // No other thread waits for this one if the file system hangs.
            MutexGuard::unlocked(&mut stopped, || {
                let tick = self.tick.fetch_add(1, Ordering::Relaxed) + 1;
                self.close_old(tick, OPEN_IDLE);
                self.evict_old(tick);
            });
        }
    }

    /// Closes descriptors for data that have not been used for `idle` seconds, or are too old.
    fn close_old(&self, tick: u64, idle: u64) {
        let mut left = 0;
        for shard in &self.shards {
            let objects: Vec<_> = {
                let shard = shard.lock();
                let all = shard.slots.iter().chain(shard.pinned.values());
                all.filter(|at| at.has_data.load(Ordering::Relaxed)).cloned().collect()
            };
            for object in objects {
                let is_old = |open: &Open| open.used + idle <= tick || open.born + OPEN_LIFE <= tick;
                let mut opens = object.opens.lock();
                let (old, young): (SmallVec<_>, SmallVec<_>) = opens.drain(..).partition(is_old);
                *opens = young;
                let is_closed = opens.is_empty();
                object.has_data.store(!is_closed || object.is_held_by_data(), Ordering::Relaxed);
                left += opens.len();
                drop(opens);
                drop::<SmallVec<[Open; 2]>>(old);
                if is_closed && object.is_held_by_data() {
                    self.evict_unused(&object);
                }
            }
        }
        self.opens.store(left, Ordering::Relaxed);
    }

    /// Evicts an object unless another thread uses it. All users of an object must share it, because of its locks.
    fn evict_unused(&self, object: &Arc<Object>) {
        let mut shard = self.shard(&object.handle).lock();
        let index = shard.index.get(&object.handle).copied();
        let index = index.filter(|index| Arc::ptr_eq(&shard.slots[*index], object));
        // Two references are the cache's and the caller's. Others get theirs only while they hold the lock.
        let removed = index.filter(|_| Arc::strong_count(object) == 2).map(|index| shard.remove(index));
        drop(shard);
        if removed.is_some() {
            self.count.fetch_sub(1, Ordering::Relaxed);
        }
    }

    fn evict_old(&self, tick: u64) {
        for shard in &self.shards {
            let (mut shard, mut old) = (shard.lock(), Vec::new());
            let mut index = 0;
            while index < shard.slots.len() {
                if shard.slots[index].used.load(Ordering::Relaxed) + OBJECT_IDLE > tick {
                    index += 1;
                    continue;
                }
                old.push(shard.remove(index));
                self.count.fetch_sub(1, Ordering::Relaxed);
            }
            drop(shard);
            drop(old);
        }
    }
}

impl Shard {
    /// Returns an object that is cached or pinned.
    fn find(&self, handle: &Handle) -> Option<&Arc<Object>> {
        self.index.get(handle).map(|index| &self.slots[*index]).or_else(|| self.pinned.get(handle))
    }

    /// Removes an object that is cached.
    fn take(&mut self, handle: &Handle) -> Option<Arc<Object>> {
        self.index.get(handle).copied().map(|index| self.remove(index))
    }

    fn remove(&mut self, index: usize) -> Arc<Object> {
        let object = self.slots.swap_remove(index);
        self.index.remove(&object.handle);
        if let Some(moved) = self.slots.get(index) {
            self.index.insert(moved.handle.clone(), index);
        }
        object
    }

    /// Removes an object that was not used in this second or, if there is none, any object. It uses the clock
    /// algorithm.
    fn evict(&mut self, tick: u64) -> Arc<Object> {
        for _ in 0..EVICT_LOOKS.min(self.slots.len()) {
            self.hand = (self.hand + 1) % self.slots.len();
            if self.slots[self.hand].used.load(Ordering::Relaxed) < tick {
                break;
            }
        }
        let hand = self.hand % self.slots.len();
        self.remove(hand)
    }
}

const SHARDS: usize = 16;
const OPENS_PER_OBJECT: usize = 8;
/// Maximum number of objects that a search for an object to evict inspects.
const EVICT_LOOKS: usize = 16;
/// Seconds without use after which a descriptor for data is closed.
const OPEN_IDLE: u64 = 2;
/// Seconds after which a descriptor for data is closed even if it is used.
const OPEN_LIFE: u64 = 10;
/// Seconds without use after which an object is evicted.
const OBJECT_IDLE: u64 = 60;

#[cfg(test)]
mod tests {
    use std::{
        io::{ErrorKind, Write},
        net::{TcpListener, TcpStream},
        sync::mpsc,
        time::Instant,
    };

    use super::*;

    /// Returns a descriptor that takes an hour to close unless its peer, which is also returned, is closed first. It is
    /// a socket that lingers because nobody reads its data.
    fn slow_to_close() -> (File, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut socket = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (peer, _) = listener.accept().unwrap();
        socket.set_nonblocking(true).unwrap();
        let full = loop {
            if let Err(error) = socket.write(&[0; 4096]) {
                break error;
            }
        };
        assert_eq!(full.kind(), ErrorKind::WouldBlock);
        // A nonblocking socket does not linger.
        socket.set_nonblocking(false).unwrap();
        rustix::net::sockopt::set_socket_linger(&socket, Some(Duration::from_secs(3600))).unwrap();
        (File::from(OwnedFd::from(socket)), peer)
    }

    #[test]
    fn no_thread_waits_for_a_file_that_is_slow_to_close() {
        let objects = Objects::new(64);
        let object = objects.insert(
            Handle::new(b"1"),
            (Kind::File, 1),
            Descriptor::Path(File::open("/dev/null").unwrap().into()),
        );
        let (file, peer) = slow_to_close();
        objects.keep_open(&object, &Cred::root(), false, Arc::new(file));
        let deadline = Instant::now() + Duration::from_secs(600);
        while object.has_data.load(Ordering::Relaxed) {
            assert!(Instant::now() < deadline, "an unused file must be evicted");
            std::thread::sleep(Duration::from_millis(10));
        }
        let (told, ended) = mpsc::channel();
        std::thread::spawn(move || {
            assert!(objects.opened(&object, &Cred::root(), false).is_none());
            assert!(objects.find(&object.handle).is_some());
            drop(objects);
            told.send(())
        });
        let ended = ended.recv_timeout(Duration::from_secs(600));
        drop(peer);
        ended.expect("neither `find` nor `drop` may wait for the thread that closes the file");
    }
    #[test]
    fn object_held_by_data_descriptor_is_evicted_when_that_is_closed_and_unused() {
        let objects = Objects::new(64);
        let file = Arc::new(File::open("/dev/null").unwrap());
        let handle = Handle::new(b"1");
        let object = objects.insert(handle.clone(), (Kind::File, 1), Descriptor::Data(file.clone()));
        objects.keep_open(&object, &Cred::root(), true, file.clone());
        let other = objects.find(&handle).unwrap();
        objects.close(&object);
        assert!(objects.opened(&object, &Cred::root(), true).is_none());
        assert!(Arc::ptr_eq(&objects.find(&handle).unwrap(), &object), "the object is in use");
        drop(other);
        objects.close(&object);
        assert!(objects.find(&handle).is_none());
        drop(object);
        assert_eq!(Arc::strong_count(&file), 1, "the file must be closed");
    }

    #[test]
    fn object_held_by_data_descriptor_is_evicted_when_idle() {
        let objects = Objects::new(64);
        let file = Arc::new(File::open("/dev/null").unwrap());
        objects.insert(Handle::new(b"1"), (Kind::File, 1), Descriptor::Data(file.clone()));
        let deadline = Instant::now() + Duration::from_secs(600);
        while Arc::strong_count(&file) > 1 {
            assert!(Instant::now() < deadline, "the file must be closed soon");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}
