//! FUSE_PASSTHROUGH: the kernel reads a file itself, through a descriptor that a server on this host has passed.
//!
//! Read `Documentation/filesystems/fuse-passthrough.rst` of Linux first, and `fs/fuse/iomode.c`: the kernel does not mix opens that use
//! its page cache and opens of a passed file. So the first open of a file decides the way of all, until the last one is closed:
//!
//! | | first open: cached | first open: passed |
//! |---|---|---|
//! | later opens for reading | cached | passed |
//! | later opens for writing | cached | passed, and each read and write is a request |
//!
//! Only an open for reading of a file that needs several READs asks the server for a descriptor: one call in place of these.
//!
//! **Writes never bypass the server**, which has to recall delegations, to clear set-user-ID bits as the caller, and to record changes.
//! With FOPEN_DIRECT_IO the kernel sends them as requests although the file is passed, and each is sent to the server at once, because
//! readers see only what the server has. But memory maps are those of the passed file, so programs that share one see the same pages. A
//! program can write to its map after it has closed the file, and the kernel tells nobody. So after an open for writing, the file stays
//! open for writing at the server until the kernel forgets it, which it cannot do while there is a map: until then, the server
//! delegates the file to nobody else.
//!
//! **The kernel's page cache of the mount stays empty** while a file is passed: nothing would drop a page there when a program writes to a
//! map. The kernel fills it nevertheless: for sendfile(2) and splice(2) from an open with FOPEN_DIRECT_IO (`fuse_splice_read` of Linux
//! 6.18), and for readahead(2). Such a READ fails with EINVAL, which sendfile(2) describes, so that programs use read(2). Later kernels
//! answer these calls by READs for the program. For an open that reads the passed file, sendfile(2) uses that file.

use std::{
    fmt,
    os::fd::AsFd,
    sync::{
        Weak,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};

use client::{Held, NotPassed};
use nfs::passthrough::PassStat;
use rustix::{
    fs::{FileType, OFlags},
    io::Errno,
};
use tokio::sync::Mutex;

use super::{
    cache::Cached,
    device::Device,
    opens::writes,
    tree::{Answer, Tree},
    view::{Target, View},
    wire::{READ_LOCKOWNER, READ_MAX, open},
};

/// The way in which the kernel reads and writes an open file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// By requests, usually through its page cache.
    Cached,
    /// It reads the passed file with this number itself.
    Reads(i32),
    /// The file with this number is passed to readers. Reads and writes are requests, and only memory maps are of that file.
    Requests(i32),
}

impl Way {
    /// Returns `true` if the file is passed.
    pub fn is_passed(self) -> bool {
        self != Way::Cached
    }

    /// Returns the number of the passed file, or 0.
    pub fn backing(self) -> i32 {
        match self {
            Way::Cached => 0,
            Way::Reads(number) | Way::Requests(number) => number,
        }
    }

    /// Returns the flags of an open of a passed file.
    pub fn flags(self) -> u32 {
        match self {
            Way::Cached => 0,
            Way::Reads(_) => open::PASSTHROUGH,
            Way::Requests(_) => open::PASSTHROUGH | open::DIRECT_IO,
        }
    }
}

/// The files of a mount that the server passes.
#[derive(Debug)]
pub struct Passing {
    is_enabled: AtomicBool,
    device: Weak<Device>,
}

impl Passing {
    /// Creates it for the mount of a device.
    pub fn new(is_enabled: bool, device: Weak<Device>) -> Self {
        Self { is_enabled: AtomicBool::new(is_enabled), device }
    }

    /// Asks for no more files.
    pub fn disable(&self, why: &dyn fmt::Display) {
        if self.is_enabled.swap(false, Relaxed) {
            tracing::warn!("--passthrough has no effect: {why}");
        }
    }
}

/// The state of one file.
#[derive(Debug, Default)]
pub struct Passed {
    ways: Mutex<Ways>,
    /// Set when the file was open for writing while it was passed.
    has_writers: AtomicBool,
}

#[derive(Debug, Default)]
struct Ways {
    /// The number of opens by requests.
    cached: u64,
    /// The number of opens while the file is passed.
    passed: u64,
    /// The passed file. It is registered while `passed` is not 0.
    backing: Option<Backing>,
    /// The opens at the server that end when the kernel forgets the file.
    kept: Vec<Held>,
}

impl Passed {
    /// Returns `true` if programs can change the file at the server through a memory map, without a request.
    pub fn may_change_unseen(&self) -> bool {
        self.has_writers.load(Relaxed)
    }
}

/// A file that is registered with the kernel. Dropping this ends the registration; opens keep the file.
#[derive(Debug)]
struct Backing {
    device: Weak<Device>,
    number: i32,
}

impl Drop for Backing {
    fn drop(&mut self) {
        if let Some(device) = self.device.upgrade()
            && let Err(error) = vfs::passthrough::unregister(device.as_fd(), self.number)
        {
            tracing::debug!(%error, number = self.number, "a passed file cannot be closed");
        }
    }
}

impl Tree {
    /// Returns `true` if the file that is open with this number is passed.
    pub fn is_passed(&self, number: u64) -> bool {
        self.opened.lock().get(&number).is_some_and(|opened| opened.way.is_passed())
    }

    /// Fails with EINVAL if a READ with these flags is for the kernel's page cache of a passed file.
    pub fn check_read(&self, number: u64, flags: u32) -> Answer<()> {
        let is_for_cache = flags & READ_LOCKOWNER == 0;
        if is_for_cache && self.is_passed(number) { Err(Errno::INVAL) } else { Ok(()) }
    }
}

impl View {
    /// Decides the way of an open that the server has admitted. Without `flags`, the open does not ask for a descriptor.
    pub async fn way(&self, node: &Target, flags: Option<OFlags>, number: u64) -> Way {
        let mut ways = node.passed.ways.lock().await;
        let is_first = ways.passed == 0 && ways.cached == 0;
        if is_first
            && let Some(flags) = flags
            && self.is_worth_asking(node, flags)
        {
            ways.backing = self.passed_file(node).await;
        }
        let Some(backing) = &ways.backing else {
            ways.cached += 1;
            return Way::Cached;
        };
        let is_writer = self.opened.lock().get(&number).is_some_and(|opened| opened.writes);
        let way = if is_writer { Way::Requests(backing.number) } else { Way::Reads(backing.number) };
        ways.passed += 1;
        if let Some(opened) = self.opened.lock().get_mut(&number) {
            opened.way = way;
        }
        if is_writer {
            node.passed.has_writers.store(true, Relaxed);
        }
        way
    }

    /// Ends an open of the file.
    pub async fn end_way(&self, node: &Target, number: u64) {
        let mut ways = node.passed.ways.lock().await;
        let (way, held) = match self.opened.lock().get_mut(&number) {
            Some(opened) if matches!(opened.way, Way::Requests(_)) => (opened.way, opened.held.take()),
            Some(opened) => (opened.way, None),
            None => return,
        };
        match way {
            Way::Cached => ways.cached -= 1,
            Way::Reads(_) | Way::Requests(_) => ways.passed -= 1,
        }
        if matches!(way, Way::Requests(_)) {
            // One open keeps the file open.
            ways.kept.truncate(0);
            ways.kept.extend(held);
            // The kernel's pages, from before the file was passed, lack what was written to the passed file.
            *node.cached.lock().await = Cached::Unknown;
        }
        if ways.passed == 0 {
            ways.backing = None;
        }
    }

    /// Returns `true` if a descriptor saves calls: the file is read, and has more bytes than one READ returns.
    fn is_worth_asking(&self, node: &Target, flags: OFlags) -> bool {
        let is_large = || node.last_change.lock().is_some_and(|change| change.size() > READ_MAX as u64);
        self.passing.is_enabled.load(Relaxed)
            && !writes(flags)
            && node.mount().number() == self.mount.number()
            && is_large()
    }

    /// Asks the server for a descriptor, and registers it with the kernel.
    async fn passed_file(&self, node: &Target) -> Option<Backing> {
        let file = match node.mount().pass_file(node.handle()).await {
            Ok(file) => file,
            Err(why @ (NotPassed::NoDescriptors | NotPassed::NoProgram | NotPassed::ServerNotRoot)) => {
                // The server was restarted with another configuration, or its transport has changed.
                self.passing.disable(&why);
                return None;
            }
            Err(why) => {
                tracing::debug!(%why, ino = node.ino, "the server does not pass a file");
                return None;
            }
        };
        if let Err(error) = check(&file) {
            tracing::debug!(%error, ino = node.ino, "a descriptor from the server cannot be used");
            return None;
        }
        let device = self.passing.device.upgrade()?;
        match vfs::passthrough::register(device.as_fd(), file.as_fd()) {
            Ok(number) => Some(Backing { device: self.passing.device.clone(), number }),
            Err(Errno::PERM) => {
                self.passing.disable(&"this process lacks CAP_SYS_ADMIN in the initial user namespace");
                None
            }
            Err(Errno::LOOP) => {
                self.passing.disable(&"the server's directory is on a stacked file system, such as overlayfs");
                None
            }
            Err(error) => {
                tracing::debug!(%error, ino = node.ino, "the kernel does not accept a descriptor from the server");
                None
            }
        }
    }
}

/// Checks that a descriptor is a regular file, open for reading, and that its file system has O_DIRECT: the kernel opens the file again
/// with the flags of each program.
fn check(file: &impl AsFd) -> rustix::io::Result<()> {
    let flags = rustix::fs::fcntl_getfl(file)?;
    if flags.contains(OFlags::PATH) || flags & OFlags::RWMODE != OFlags::RDONLY {
        return Err(Errno::BADF);
    }
    if FileType::from_raw_mode(rustix::fs::fstat(file)?.st_mode) != FileType::RegularFile {
        return Err(Errno::INVAL);
    }
    rustix::fs::fcntl_setfl(file, flags | OFlags::DIRECT)
}

/// Returns the reason why the server passes no files of a mount with this root, if that is known.
pub async fn refusal(root: &client::Object) -> Option<NotPassed> {
    match root.mount.pass_file(&root.handle).await {
        // The root is a directory, so everything else is in order.
        Err(NotPassed::Refused(PassStat::NotFile)) | Ok(_) => None,
        // The root is above the exports, or the caller cannot use it.
        Err(NotPassed::Refused(PassStat::Stale | PassStat::Access | PassStat::Delay)) => None,
        Err(why) => Some(why),
    }
}
