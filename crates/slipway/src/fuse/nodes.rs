//! [`Nodes`]: the objects that the kernel knows, by the numbers it calls them and by their file handles.
//!
//! A number is the object's fileid, so that it is the same whenever it is looked up; only where another object has that
//! already (a handle that has gone stale, another file system of the server) it is one that no server gives. The kernel
//! counts how often it was told a number, and says when it has forgotten it.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use client::{Attr, File, FileKind, Handle, Mount};
use parking_lot::Mutex;

use super::{cache::Cached, locks::Owners, unstable::Unstable};

/// An object.
pub struct Node {
    /// The kernel's number of it.
    pub ino: u64,
    /// Its handle, and how to read it.
    pub file: File,
    /// Whether it is a directory.
    pub is_dir: bool,
    /// What has been written and is not known to be on stable storage.
    pub unstable: Unstable,
    /// How often it is open.
    pub opens: AtomicU64,
    /// Who has locked in it.
    pub lockers: Owners,
    /// What the kernel may have of its data.
    pub cached: tokio::sync::Mutex<Cached>,
    /// The directory and name to remove when it is closed: it was removed while it was open.
    pub doomed: Mutex<Option<(Handle, Vec<u8>)>>,
}

/// All objects that the kernel knows.
pub struct Nodes {
    mount: Mount,
    known: HashMap<u64, (Arc<Node>, u64)>,
    numbers: HashMap<Handle, u64>,
    /// Numbers that were given where the fileid was taken.
    odd: u64,
}

impl Node {
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
        let mut nodes = Self { mount, known: HashMap::new(), numbers: HashMap::new(), odd: 0 };
        nodes.insert(ROOT, root, true);
        nodes
    }

    /// The object of a number, if the kernel can know it.
    pub fn find(&self, ino: u64) -> Option<Arc<Node>> {
        self.known.get(&ino).map(|(node, _)| node.clone())
    }

    /// The object of a handle, if the kernel knows it.
    pub fn of_handle(&self, handle: &Handle) -> Option<Arc<Node>> {
        self.find(*self.numbers.get(handle)?)
    }

    /// The kernel is told of an object once more.
    pub fn tell(&mut self, handle: &Handle, attr: &Attr) -> Arc<Node> {
        let number = match self.numbers.get(handle) {
            Some(&number) => number,
            None => {
                let free = attr.fileid > ROOT && attr.fileid < ODD && !self.known.contains_key(&attr.fileid);
                let number = if free { attr.fileid } else { ODD + self.odd };
                self.odd += u64::from(!free);
                self.insert(number, handle.clone(), attr.kind == FileKind::Dir)
            }
        };
        let (node, told) = self.known.get_mut(&number).expect("a number that is given is known");
        *told += 1;
        node.clone()
    }

    /// The kernel has forgotten a number so many of the times that it was told.
    pub fn forget(&mut self, ino: u64, times: u64) {
        let Some((node, told)) = self.known.get_mut(&ino) else { return };
        *told = told.saturating_sub(times);
        if *told == 0 && ino != ROOT {
            self.numbers.remove(node.handle());
            self.known.remove(&ino);
        }
    }

    fn insert(&mut self, ino: u64, handle: Handle, is_dir: bool) -> u64 {
        let node = Node {
            ino,
            file: File::new(self.mount.clone(), handle.clone(), format!("inode {ino}")),
            is_dir,
            unstable: Unstable::default(),
            opens: AtomicU64::new(0),
            lockers: Owners::default(),
            cached: tokio::sync::Mutex::default(),
            doomed: Mutex::default(),
        };
        self.known.insert(ino, (Arc::new(node), 0));
        self.numbers.insert(handle, ino);
        ino
    }
}

/// FUSE's number of the root.
const ROOT: u64 = 1;
/// From here on numbers are not fileids.
const ODD: u64 = 1 << 63;
