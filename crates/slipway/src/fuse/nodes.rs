//! [`Nodes`]: the objects that the kernel knows, by the numbers it calls them, and by their mounts and file handles: where referrals
//! lead to other servers, what is there is of another mount, and a handle means something else to each.
//!
//! A number is the object's fileid, so that it is the same whenever it is looked up; only where another object has that
//! already (a handle that has gone stale, another file system or server) it is one that no server gives. The kernel
//! counts how often it was told a number, and says when it has forgotten it.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use client::{File, FileKind, Handle, Mount, Object};
use parking_lot::Mutex;

use super::{
    cache::{Cached, Change},
    locks::Owners,
    unstable::Unstable,
};

/// An object.
pub struct Node {
    /// The kernel's number of it.
    pub ino: u64,
    /// Its mount, its handle there, and how to read it.
    pub file: File,
    /// Whether it is a directory.
    pub is_dir: bool,
    /// What has been written and is not known to be on stable storage.
    pub unstable: Unstable,
    /// How often it is open.
    pub opens: AtomicU64,
    /// Who has locked in it.
    pub lockers: Owners,
    /// Of a directory: that in which it was found last, or itself.
    pub parent: AtomicU64,
    /// The change of the attributes that the kernel was told last.
    pub told: Mutex<Option<Change>>,
    /// What the kernel may have of its data.
    pub cached: tokio::sync::Mutex<Cached>,
    /// The directory and name to remove when it is closed: it was removed while it was open.
    pub doomed: Mutex<Option<(Handle, Vec<u8>)>>,
}

/// All objects that the kernel knows.
pub struct Nodes {
    known: HashMap<u64, (Arc<Node>, u64)>,
    /// By the numbers of mounts, and handles there.
    numbers: HashMap<(u64, Handle), u64>,
    /// Numbers that were given where there was no fileid to be had.
    odd: u64,
}

impl Node {
    /// Its mount.
    pub fn mount(&self) -> &Mount {
        self.file.mount()
    }

    /// Its handle.
    pub fn handle(&self) -> &Handle {
        self.file.handle()
    }

    /// Whether it is open.
    pub fn is_open(&self) -> bool {
        self.opens.load(Relaxed) > 0
    }
}

impl Nodes {
    /// The kernel knows the root, and never forgets it.
    pub fn new(mount: Mount, root: Handle) -> Self {
        let mut nodes = Self { known: HashMap::new(), numbers: HashMap::new(), odd: 0 };
        nodes.insert(ROOT, mount, root, true);
        nodes
    }

    /// The object of a number, if the kernel can know it.
    pub fn find(&self, ino: u64) -> Option<Arc<Node>> {
        self.known.get(&ino).map(|(node, _)| node.clone())
    }

    /// The object of a mount's handle, if the kernel knows it.
    pub fn of_handle(&self, mount: u64, handle: &Handle) -> Option<Arc<Node>> {
        self.find(*self.numbers.get(&(mount, handle.clone()))?)
    }

    /// The kernel is told of an object once more, found in a directory.
    pub fn tell(&mut self, dir: Option<u64>, Object { mount, handle, attr }: &Object) -> Arc<Node> {
        let number = match self.numbers.get(&(mount.number(), handle.clone())) {
            Some(&number) => number,
            None => {
                let free = attr.fileid > ROOT && attr.fileid < ODD && !self.known.contains_key(&attr.fileid);
                let number = if free { attr.fileid } else { self.nobody() };
                self.insert(number, mount.clone(), handle.clone(), attr.kind == FileKind::Dir)
            }
        };
        let (node, told) = self.known.get_mut(&number).expect("a number that is given is known");
        *told += 1;
        *node.told.lock() = Some(attr.into());
        if let Some(dir) = dir.filter(|_| node.is_dir) {
            node.parent.store(dir, Relaxed);
        }
        node.clone()
    }

    /// The kernel has forgotten a number so many of the times that it was told.
    pub fn forget(&mut self, ino: u64, times: u64) {
        let Some((node, told)) = self.known.get_mut(&ino) else { return };
        *told = told.saturating_sub(times);
        if *told == 0 && ino != ROOT {
            self.numbers.remove(&(node.mount().number(), node.handle().clone()));
            self.known.remove(&ino);
        }
    }

    /// A number that no object has, had, or will have.
    pub fn nobody(&mut self) -> u64 {
        self.odd += 1;
        ODD + self.odd
    }

    fn insert(&mut self, ino: u64, mount: Mount, handle: Handle, is_dir: bool) -> u64 {
        self.numbers.insert((mount.number(), handle.clone()), ino);
        let node = Node {
            ino,
            file: File::new(mount, handle, format!("inode {ino}")),
            is_dir,
            unstable: Unstable::default(),
            opens: AtomicU64::new(0),
            lockers: Owners::default(),
            parent: AtomicU64::new(ino),
            told: Mutex::default(),
            cached: tokio::sync::Mutex::default(),
            doomed: Mutex::default(),
        };
        self.known.insert(ino, (Arc::new(node), 0));
        ino
    }
}

/// FUSE's number of the root.
const ROOT: u64 = 1;
/// From here on numbers are not fileids.
const ODD: u64 = 1 << 63;
