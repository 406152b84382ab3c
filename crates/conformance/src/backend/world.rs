//! What a case runs on, and short names for what it does.

use std::{ops::ControlFlow, sync::Arc};

use buf::{Pool, Rope};
use bytes::Bytes;
use smallvec::SmallVec;
use vfs::{
    Attr, Caller, Change, CreateMode, Created, Cred, Handle, Name, Result, SetAttr, Stability, Vfs,
    memory::{Memory, MemoryOptions},
    posix::{Handles, Posix, PosixOptions},
};

/// A file system under test.
pub struct World {
    pub fs: Arc<dyn Vfs>,
    pub pool: Pool,
    /// Who the cases act as, unless they say otherwise.
    pub cred: Cred,
    /// Whether the backend tells users apart.
    pub identities: bool,
    /// Whether times move in steps of the kernel's clock.
    pub coarse_times: bool,
    /// Kept for its `Drop`.
    _dir: Option<tempfile::TempDir>,
}

/// Why a case cannot be run here.
pub struct Skipped(pub &'static str);

/// What a case comes to.
pub type Outcome = std::result::Result<(), Skipped>;

/// Runs one case on a fresh file system.
pub fn run(name: &str, world: fn() -> std::result::Result<World, Skipped>, case: fn(&World) -> Outcome) {
    if let Err(Skipped(why)) = world().and_then(|world| case(&world)) {
        eprintln!("SKIPPED {name}: {why}");
    }
}

pub fn memory() -> std::result::Result<World, Skipped> {
    let options = MemoryOptions { capacity: 1 << 30, mode: 0o777, ..Default::default() };
    let fs = Arc::new(Memory::new(options));
    Ok(World { fs, pool: Pool::default(), cred: Cred::root(), identities: true, coarse_times: false, _dir: None })
}

/// A directory of the usual file system, objects opened by the kernel's handles.
pub fn posix_kernel() -> std::result::Result<World, Skipped> {
    posix(tempfile::tempdir().unwrap(), Handles::Kernel)
}

/// As an ordinary user has it, found by a database.
pub fn posix_database() -> std::result::Result<World, Skipped> {
    posix(tempfile::tempdir().unwrap(), Handles::Database)
}

/// A directory of a file system that never waits.
pub fn posix_tmpfs() -> std::result::Result<World, Skipped> {
    let dir = tempfile::tempdir_in("/dev/shm").map_err(|_| Skipped("needs a writable /dev/shm"))?;
    posix(dir, Handles::Auto)
}

fn posix(dir: tempfile::TempDir, handles: Handles) -> std::result::Result<World, Skipped> {
    let (export, state) = (dir.path().join("export"), dir.path().join("state"));
    for path in [&export, &state] {
        std::fs::create_dir(path).unwrap();
    }
    std::fs::set_permissions(&export, std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
    let options = PosixOptions { state_dir: Some(state), handles, ..PosixOptions::default() };
    let fs = match Posix::open(&export, options) {
        Ok(fs) => fs,
        Err(error) if handles == Handles::Kernel && error.kind() == std::io::ErrorKind::PermissionDenied => {
            return Err(Skipped("needs root: opening by handle"));
        }
        Err(error) => panic!("cannot serve {}: {error}", export.display()),
    };
    let identities = fs.tells_callers_apart();
    let me = cred(rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw(), &[]);
    let pool = Pool::default();
    Ok(World { fs: Arc::new(fs), pool, cred: me, identities, coarse_times: true, _dir: Some(dir) })
}

pub fn cred(uid: u32, gid: u32, groups: &[u32]) -> Cred {
    Cred { uid, gid, groups: SmallVec::from_slice(groups) }
}

pub fn name(bytes: &str) -> &Name {
    Name::new(bytes.as_bytes()).unwrap()
}

pub fn rope(bytes: &[u8]) -> Rope {
    Rope::from(Bytes::copy_from_slice(bytes))
}

pub fn mode(mode: u32) -> SetAttr {
    SetAttr { mode: Some(mode), ..SetAttr::default() }
}

pub fn size(size: u64) -> SetAttr {
    SetAttr { size: Some(size), ..SetAttr::default() }
}

/// Waits until what is done next has another time than what has been done, by the clock that the kernel has for files. How coarse
/// that is depends on the kernel, and on what else the machine does.
pub fn clock_moves() {
    let now = || rustix::time::clock_gettime(rustix::time::ClockId::RealtimeCoarse);
    let before = now();
    while now() == before {
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
}

pub fn caller(cred: &Cred) -> Caller<'_> {
    Caller { cred, may_block: true }
}

impl World {
    /// # Errors
    /// The case is skipped if the backend does not tell users apart.
    pub fn need_identities(&self) -> Outcome {
        if self.identities { Ok(()) } else { Err(Skipped("needs root: all callers are one user here")) }
    }

    pub fn me(&self) -> Caller<'_> {
        caller(&self.cred)
    }

    pub fn root(&self) -> Handle {
        self.fs.root()
    }

    pub fn file(&self, dir: &Handle, at: &str) -> Handle {
        self.create(&self.cred, dir, at, &mode(0o644)).unwrap().handle
    }

    pub fn dir(&self, dir: &Handle, at: &str) -> Handle {
        self.fs.mkdir(&self.me(), dir, name(at), &mode(0o755)).unwrap().handle
    }

    pub fn create(&self, cred: &Cred, dir: &Handle, at: &str, set: &SetAttr) -> Result<Created> {
        self.fs.create(&caller(cred), dir, name(at), &CreateMode::Guarded(set.clone()))
    }

    pub fn write(&self, file: &Handle, offset: u64, data: &[u8]) -> Result<Attr> {
        self.write_as(&self.cred, file, offset, data)
    }

    pub fn write_as(&self, cred: &Cred, file: &Handle, offset: u64, data: &[u8]) -> Result<Attr> {
        let written = self.fs.write(&caller(cred), file, offset, &rope(data), Stability::Unstable)?;
        Ok(written.change.after)
    }

    pub fn read(&self, file: &Handle, offset: u64, len: usize) -> Result<Bytes> {
        self.read_as(&self.cred, file, offset, len)
    }

    pub fn read_as(&self, cred: &Cred, file: &Handle, offset: u64, len: usize) -> Result<Bytes> {
        let read = self.fs.read(&caller(cred), file, offset, len, &self.pool, false)?;
        Ok(read.data.to_bytes().unwrap())
    }

    pub fn attr(&self, object: &Handle) -> Attr {
        self.fs.getattr(&self.me(), object).unwrap()
    }

    pub fn set(&self, object: &Handle, set: &SetAttr) -> Result<Change> {
        self.set_as(&self.cred, object, set)
    }

    pub fn set_as(&self, cred: &Cred, object: &Handle, set: &SetAttr) -> Result<Change> {
        self.fs.setattr(&caller(cred), object, set, None)
    }

    pub fn lookup(&self, dir: &Handle, at: &str) -> Result<Handle> {
        self.fs.lookup(&self.me(), dir, name(at)).map(|found| found.0)
    }

    pub fn rename(&self, from_dir: &Handle, from: &str, to_dir: &Handle, to: &str) -> Result<(Change, Change)> {
        self.fs.rename(&self.me(), from_dir, name(from), to_dir, name(to))
    }

    /// All entries' names, `batch` at a time, `.` and `..` left out.
    pub fn list(&self, dir: &Handle, batch: usize) -> Vec<Vec<u8>> {
        let (mut all, mut at) = (Vec::new(), (0, [0; 8]));
        while let Some(next) = self.list_some(dir, at, batch, &mut all) {
            at = next;
        }
        all.retain(|name| name != b"." && name != b"..");
        all
    }

    /// Appends up to `batch` names after `(cookie, verifier)`; returns where to go on, unless that was all.
    pub fn list_some(
        &self,
        dir: &Handle,
        (mut cookie, verifier): (u64, [u8; 8]),
        batch: usize,
        all: &mut Vec<Vec<u8>>,
    ) -> Option<(u64, [u8; 8])> {
        let mut left = batch;
        let from = cookie;
        let mut each = |entry: vfs::DirEntry<'_>| {
            if left == 0 {
                return ControlFlow::Break(());
            }
            left -= 1;
            cookie = entry.cookie;
            all.push(entry.name.to_vec());
            ControlFlow::Continue(())
        };
        let read = self.fs.readdir(&self.me(), dir, from, verifier, false, &mut each).unwrap();
        (!read.eof).then_some((cookie, read.verifier))
    }
}
