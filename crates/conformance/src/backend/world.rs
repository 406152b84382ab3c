//! The file system on which a case runs, with short methods for its operations.

use std::{any::Any, ops::ControlFlow, sync::Arc};

use buf::{Pool, Rope};
use bytes::Bytes;
use smallvec::SmallVec;
use vfs::{
    Attr, Caller, Change, CreateMode, Created, Cred, Handle, Name, Report, Result, SetAttr, Stability, Vfs, Writer,
    pending::Driven,
};

/// A file system under test, and the properties of it that the cases need.
pub struct World {
    /// The tree: new and empty, with a root directory of mode 0777. None of its operations is pending, because the
    /// world awaits them.
    pub fs: Arc<dyn Vfs>,
    /// The back end itself, whose operations can be pending.
    pub back_end: Arc<dyn Vfs>,
    /// The pool of buffers for reads.
    pub pool: Pool,
    /// The identity with which the cases act by default.
    pub cred: Cred,
    /// `true` if the back end runs each operation with the rights of its caller. Otherwise the cases about permissions
    /// are skipped.
    pub identities: bool,
    /// `true` if the kernel's clock determines times, so that two changes can have the same time.
    pub coarse_times: bool,
    /// `true` if each file takes at least as much space as it is long, because it is not known where its holes are.
    pub full_space: bool,
    /// A value that is dropped after the file system.
    _keep: Option<Box<dyn Any + Send + Sync>>,
}

/// The reason why a case cannot run here.
pub struct Skipped(pub &'static str);

/// The result of a case. If the back end is wrong, the case panics.
pub type Outcome = std::result::Result<(), Skipped>;

/// Returns an identity.
pub fn cred(uid: u32, gid: u32, groups: &[u32]) -> Cred {
    Cred { uid, gid, groups: SmallVec::from_slice(groups) }
}

/// Returns a valid name.
///
/// # Panics
/// Panics if the name is not valid.
pub fn name(bytes: &str) -> &Name {
    Name::new(bytes.as_bytes()).unwrap()
}

/// Returns data to write.
pub fn rope(bytes: &[u8]) -> Rope {
    Rope::from(Bytes::copy_from_slice(bytes))
}

/// Returns a change of only the mode.
pub fn mode(mode: u32) -> SetAttr {
    SetAttr { mode: Some(mode), ..SetAttr::default() }
}

/// Returns a change of only the size, in bytes.
pub fn size(size: u64) -> SetAttr {
    SetAttr { size: Some(size), ..SetAttr::default() }
}

/// Waits until the kernel's clock for files has passed the current time, so that changes before and after this call have different
/// times. A tick of that clock is not enough: the kernel (since 6.13) takes the time of a change that somebody could miss from the
/// precise clock, which can be ahead of the next tick.
pub fn clock_moves() {
    use rustix::time::{ClockId, clock_gettime};
    let before = clock_gettime(ClockId::Realtime);
    let is_later = |now: rustix::time::Timespec| (now.tv_sec, now.tv_nsec) > (before.tv_sec, before.tv_nsec);
    while !is_later(clock_gettime(ClockId::RealtimeCoarse)) {
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
}

/// Returns a caller with this identity that may block.
pub fn caller(cred: &Cred) -> Caller<'_> {
    Caller::blocking(cred)
}

impl World {
    /// Creates a world for a back end that has its own clock and runs each operation with the rights of its caller. The
    /// cases act as root.
    pub fn new(back_end: Arc<dyn Vfs>) -> Self {
        let (pool, cred) = (Pool::default(), Cred::root());
        let later = back_end.caps().completes_later;
        let fs = if later { Arc::new(Driven::new(back_end.clone())) } else { back_end.clone() };
        Self { fs, back_end, pool, cred, identities: true, coarse_times: false, full_space: false, _keep: None }
    }

    /// Sets the identity with which the cases act. `identities` is `true` if the back end runs each operation with the
    /// rights of its caller.
    pub fn acting_as(self, cred: Cred, identities: bool) -> Self {
        Self { cred, identities, ..self }
    }

    /// Declares that the kernel's clock determines times.
    pub fn with_coarse_times(self) -> Self {
        Self { coarse_times: true, ..self }
    }

    /// Declares that each file takes at least as much space as it is long.
    pub fn with_full_space(self) -> Self {
        Self { full_space: true, ..self }
    }

    /// Keeps a value, such as a temporary directory, that is dropped after the case.
    pub fn keeping(self, keep: impl Any + Send + Sync) -> Self {
        Self { _keep: Some(Box::new(keep)), ..self }
    }

    /// Checks that the back end distinguishes users.
    ///
    /// # Errors
    /// Returns `Skipped` if it does not.
    pub fn need_identities(&self) -> Outcome {
        if self.identities { Ok(()) } else { Err(Skipped("needs root: all callers act as one user here")) }
    }

    /// Returns the caller as which the cases act by default.
    pub fn me(&self) -> Caller<'_> {
        caller(&self.cred)
    }

    /// Returns the root directory.
    pub fn root(&self) -> Handle {
        self.fs.root()
    }

    /// Creates an empty file of mode 0644.
    pub fn file(&self, dir: &Handle, at: &str) -> Handle {
        self.create(&self.cred, dir, at, &mode(0o644)).unwrap().handle
    }

    /// Creates a directory of mode 0755.
    pub fn dir(&self, dir: &Handle, at: &str) -> Handle {
        self.fs.mkdir(&self.me(), dir, name(at), &mode(0o755)).unwrap().handle
    }

    /// Creates a file that must not exist.
    ///
    /// # Errors
    /// Returns the errors of the operation.
    pub fn create(&self, cred: &Cred, dir: &Handle, at: &str, set: &SetAttr) -> Result<Created> {
        self.fs.create(&caller(cred), dir, name(at), &CreateMode::Guarded(set.clone()))
    }

    /// Writes data without a stability requirement. Returns the attributes afterwards.
    ///
    /// # Errors
    /// Returns the errors of the operation.
    pub fn write(&self, file: &Handle, offset: u64, data: &[u8]) -> Result<Attr> {
        self.write_as(&self.cred, file, offset, data)
    }

    /// Writes like [`write`](Self::write), with another identity.
    ///
    /// # Errors
    /// Returns the errors of the operation.
    pub fn write_as(&self, cred: &Cred, file: &Handle, offset: u64, data: &[u8]) -> Result<Attr> {
        let written = self.fs.write(
            &caller(cred),
            file,
            offset,
            &rope(data),
            Stability::Unstable,
            Report::Attributes(Writer(1)),
        )?;
        Ok(written.after.expect("the attributes were requested"))
    }

    /// Reads up to `len` bytes at `offset`.
    ///
    /// # Errors
    /// Returns the errors of the operation.
    pub fn read(&self, file: &Handle, offset: u64, len: usize) -> Result<Bytes> {
        self.read_as(&self.cred, file, offset, len)
    }

    /// Reads like [`read`](Self::read), with another identity.
    ///
    /// # Errors
    /// Returns the errors of the operation.
    pub fn read_as(&self, cred: &Cred, file: &Handle, offset: u64, len: usize) -> Result<Bytes> {
        let read = self.fs.read(&caller(cred), file, offset, len, &self.pool, false)?;
        Ok(read.data.to_bytes().unwrap())
    }

    /// Returns the attributes of an existing object.
    pub fn attr(&self, object: &Handle) -> Attr {
        self.fs.getattr(&self.me(), object).unwrap()
    }

    /// Sets attributes.
    ///
    /// # Errors
    /// Returns the errors of the operation.
    pub fn set(&self, object: &Handle, set: &SetAttr) -> Result<Change> {
        self.set_as(&self.cred, object, set)
    }

    /// Sets attributes like [`set`](Self::set), with another identity.
    ///
    /// # Errors
    /// Returns the errors of the operation.
    pub fn set_as(&self, cred: &Cred, object: &Handle, set: &SetAttr) -> Result<Change> {
        self.fs.setattr(&caller(cred), object, set, None)
    }

    /// Looks up a name.
    ///
    /// # Errors
    /// Returns the errors of the operation.
    pub fn lookup(&self, dir: &Handle, at: &str) -> Result<Handle> {
        self.fs.lookup(&self.me(), dir, name(at)).map(|found| found.0)
    }

    /// Renames an object.
    ///
    /// # Errors
    /// Returns the errors of the operation.
    pub fn rename(&self, from_dir: &Handle, from: &str, to_dir: &Handle, to: &str) -> Result<(Change, Change)> {
        self.fs.rename(&self.me(), from_dir, name(from), to_dir, name(to))
    }

    /// Returns the names in a directory without `.` and `..`, listed in batches of `batch` entries.
    pub fn list(&self, dir: &Handle, batch: usize) -> Vec<Vec<u8>> {
        let (mut all, mut at) = (Vec::new(), (0, [0; 8]));
        while let Some(next) = self.list_some(dir, at, batch, &mut all) {
            at = next;
        }
        all.retain(|name| name != b"." && name != b"..");
        all
    }

    /// Appends up to `batch` names after `(cookie, verifier)`. Returns the next cookie and verifier, or `None` at the
    /// end of the directory.
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
