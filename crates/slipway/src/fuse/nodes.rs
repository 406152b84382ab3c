//! [`Nodes`]: the objects that the kernel knows, by number, and by mount and file handle. Referrals lead to other
//! servers, whose objects belong to other mounts, and a handle is valid only at its server.
//!
//! A number is the fileid of the object, so it is the same at each lookup. If another object has that number (a stale
//! handle, another file system or server), the object gets a number that no server uses. The kernel counts how often it
//! has received a number, and reports when it has forgotten it.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use client::{Attr, File, FileKind, Handle, Mount, Object};
use parking_lot::Mutex;

use super::{
    absent::Absent,
    cache::{Cached, Change},
    locks::Owners,
    new_file::NewFile,
    passthrough::Passed,
    staged::{Room, Staged},
    unstable::Unstable,
    view::Rights,
    writeback::Owned,
};

/// An object.
pub struct Node {
    /// The kernel's number of the object.
    pub ino: u64,
    /// The inode number that programs see.
    pub shown_ino: u64,
    /// Its mount and its handle there, with the read and write operations.
    pub file: File,
    /// `true` for a directory.
    pub is_dir: bool,
    /// Written data and set attributes that are not sent yet.
    pub staged: Staged,
    /// Sent data that may not be on stable storage.
    pub unstable: Unstable,
    /// The attributes of a file that this mount has just made.
    pub new: NewFile,
    /// For a directory, names that it lacks.
    pub absent: Absent,
    /// The number of times that it is open.
    pub opens: AtomicU64,
    /// The owners that have locked it.
    pub lockers: Owners,
    /// For a directory, its parent at the last lookup, or itself.
    pub parent: AtomicU64,
    /// The change of the attributes that the kernel received last.
    pub last_change: Mutex<Option<Change>>,
    /// The state of the kernel's page cache.
    pub cached: tokio::sync::Mutex<Cached>,
    /// The mount of the user that removed it, and the directory and name to remove at the last close, if the object was removed while it was open.
    pub remove_on_close: Mutex<Option<(Mount, Handle, Vec<u8>)>>,
    /// The rights of callers.
    pub rights: Rights,
    /// The attributes that the kernel owns, with write-back caching.
    pub owned: Owned,
    /// The file that the server has passed.
    pub passed: Passed,
}

/// All objects that the kernel knows.
pub struct Nodes {
    known: HashMap<u64, (Arc<Node>, u64)>,
    /// The numbers, by mount number and handle.
    numbers: HashMap<(u64, Handle), u64>,
    /// The next number for objects without a usable fileid.
    odd: u64,
    /// The room for staged data.
    pub room: Arc<Room>,
    /// The kernel owns sizes and times of files.
    writeback: bool,
}

impl Node {
    /// Returns the mount.
    pub fn mount(&self) -> &Mount {
        self.file.mount()
    }

    /// Returns the file handle.
    pub fn handle(&self) -> &Handle {
        self.file.handle()
    }

    /// Returns `true` if the object is open.
    pub fn is_open(&self) -> bool {
        self.opens.load(Relaxed) > 0
    }
}

impl Nodes {
    /// Creates a table with the root, which the kernel knows and never forgets.
    pub fn new(mount: Mount, root: Handle, writeback: bool) -> Self {
        let (known, numbers) = (HashMap::new(), HashMap::new());
        let mut nodes = Self { known, numbers, odd: 0, room: Arc::default(), writeback };
        nodes.insert((ROOT, ROOT), mount, root, true);
        nodes
    }

    /// Returns all objects.
    pub fn all(&self) -> Vec<Arc<Node>> {
        self.known.values().map(|(node, _)| node.clone()).collect()
    }

    /// Returns the object with this number, if the kernel can know it and it has no other number.
    pub fn find(&self, ino: u64) -> Option<Arc<Node>> {
        self.find_replaced(ino).filter(|node| !node.owned.is_replaced())
    }

    /// Returns the object that has or had this number, if the kernel can know it.
    pub fn find_replaced(&self, ino: u64) -> Option<Arc<Node>> {
        self.known.get(&ino).map(|(node, _)| node.clone())
    }

    /// Returns the object with this handle at this mount, if the kernel knows it.
    pub fn of_handle(&self, mount: u64, handle: &Handle) -> Option<Arc<Node>> {
        self.find(*self.numbers.get(&(mount, handle.clone()))?)
    }

    /// Counts that the kernel receives an object once more, whose attributes were requested at `since`. `dir` is the directory where it
    /// was found. With write-back caching, a file that another client has changed gets another number.
    pub fn register(&mut self, dir: Option<u64>, object: &Object, since: u64) -> Arc<Node> {
        let Object { mount, handle, attr } = object;
        let before = self.numbers.get(&(mount.number(), handle.clone())).copied();
        let number = match before.filter(|number| !self.replaces(*number, attr, since)) {
            Some(number) => number,
            None => {
                let free = attr.fileid > ROOT && attr.fileid < ODD && !self.known.contains_key(&attr.fileid);
                let number = if free { attr.fileid } else { self.unused_number() };
                let same =
                    |(node, _): &&(Arc<Node>, u64)| node.mount().number() == mount.number() && node.handle() == handle;
                let earlier = self.known.get(&before.unwrap_or(attr.fileid)).filter(same);
                let shown = earlier.map_or(number, |(node, _)| node.shown_ino);
                self.insert((number, shown), mount.clone(), handle.clone(), attr.kind == FileKind::Dir);
                if self.writeback && attr.kind == FileKind::Reg {
                    self.known[&number].0.owned.start(attr);
                }
                number
            }
        };
        let (node, lookups) = self.known.get_mut(&number).expect("a used number must be known");
        *lookups += 1;
        *node.last_change.lock() = Some(attr.into());
        if let Some(dir) = dir.filter(|_| node.is_dir) {
            node.parent.store(dir, Relaxed);
        }
        node.clone()
    }

    /// Counts that the kernel has forgotten a number `times` times.
    pub fn forget(&mut self, ino: u64, times: u64) {
        let Some((node, lookups)) = self.known.get_mut(&ino) else { return };
        *lookups = lookups.saturating_sub(times);
        if *lookups == 0 && ino != ROOT {
            let key = (node.mount().number(), node.handle().clone());
            if self.numbers.get(&key) == Some(&ino) {
                self.numbers.remove(&key);
            }
            self.known.remove(&ino);
        }
    }

    /// Returns a number that no object has, had, or will have.
    pub fn unused_number(&mut self) -> u64 {
        self.odd += 1;
        ODD + self.odd
    }

    /// Returns `true` if the file with this number now needs another one.
    fn replaces(&self, number: u64, attr: &Attr, since: u64) -> bool {
        let node = &self.known[&number].0;
        self.writeback && node.staged.is_settled(since) && node.owned.replace_if_outdated(attr)
    }

    fn insert(&mut self, (ino, shown_ino): (u64, u64), mount: Mount, handle: Handle, is_dir: bool) {
        self.numbers.insert((mount.number(), handle.clone()), ino);
        let node = Node {
            ino,
            shown_ino,
            file: File::new(mount, handle, format!("inode {ino}")),
            is_dir,
            staged: Staged::new(self.room.clone()),
            unstable: Unstable::default(),
            new: NewFile::default(),
            absent: Absent::default(),
            opens: AtomicU64::new(0),
            lockers: Owners::default(),
            parent: AtomicU64::new(ino),
            last_change: Mutex::default(),
            cached: tokio::sync::Mutex::default(),
            remove_on_close: Mutex::default(),
            rights: Rights::default(),
            owned: Owned::default(),
            passed: Passed::default(),
        };
        self.known.insert(ino, (Arc::new(node), 0));
    }
}

/// FUSE's number of the root.
const ROOT: u64 = 1;
/// Numbers from here on are not fileids.
const ODD: u64 = 1 << 63;
