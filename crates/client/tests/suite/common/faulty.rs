//! A file system that keeps unstable writes in memory, can lose them as in a restart, and can return "delay". Its reads can be short, fail or wait.

use std::{
    ops::ControlFlow,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use buf::Rope;
use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::Semaphore;
use vfs::{memory::Memory, *};

/// The behaviour of reads.
#[derive(Clone, Default)]
pub enum Reads {
    /// They succeed.
    #[default]
    Whole,
    /// They return at most this many bytes.
    Short(usize),
    /// They fail.
    Fail,
    /// Each waits for a permit.
    Wait(Arc<Semaphore>),
}

pub struct Faulty {
    pub disk: Memory,
    cached: Mutex<Vec<(Handle, u64, Rope)>>,
    boots: AtomicU64,
    writes: AtomicU64,
    /// The numbers of the writes, counted from zero, before which the file system restarts.
    restart_at: Vec<u64>,
    pub commits: AtomicU64,
    /// The number of GETATTRs that will return "delay".
    pub delays: AtomicU64,
    pub reads: Mutex<Reads>,
    /// The number of reads that have begun.
    pub begun: AtomicU64,
    caps: FsCaps,
}

impl Faulty {
    pub fn new(disk: Memory, restart_at: Vec<u64>) -> Arc<Self> {
        let (boots, writes, commits, delays, begun) = Default::default();
        let caps = FsCaps { completes_later: true, ..disk.caps().clone() };
        let (cached, reads) = Default::default();
        Arc::new(Self { disk, cached, boots, writes, restart_at, commits, delays, reads, begun, caps })
    }

    pub fn restart(&self) {
        self.cached.lock().clear();
        self.boots.fetch_add(1, Ordering::SeqCst);
    }

    pub fn writes(&self) -> u64 {
        self.writes.load(Ordering::SeqCst)
    }

    pub fn boots(&self) -> u64 {
        self.boots.load(Ordering::SeqCst)
    }

    fn to_disk(&self, caller: &Caller<'_>, file: &Handle) -> Result<()> {
        let mut cached = self.cached.lock();
        for (_, offset, data) in cached.iter().filter(|(handle, ..)| handle == file) {
            self.disk.write(caller, file, *offset, data, Stability::FileSync, Report::Nothing)?;
        }
        cached.retain(|(handle, ..)| handle != file);
        Ok(())
    }
}

impl Vfs for Faulty {
    fn write_verifier(&self) -> [u8; 8] {
        self.boots().to_be_bytes()
    }

    fn write(
        &self,
        caller: &Caller<'_>,
        file: &Handle,
        offset: u64,
        data: &Rope,
        how: Stability,
        report: Report,
    ) -> Result<Written> {
        let number = self.writes.fetch_add(1, Ordering::SeqCst);
        if self.restart_at.contains(&number) {
            self.restart();
        }
        // The data are copied, because the transport owns their memory.
        let copy = Bytes::copy_from_slice(&data.to_bytes().map_err(|_| VfsError::Io)?);
        self.cached.lock().push((file.clone(), offset, Rope::from(copy)));
        if how != Stability::Unstable {
            self.to_disk(caller, file)?;
        }
        let attr = self.disk.getattr(caller, file)?;
        let (before, after) = match report {
            Report::Nothing => (None, None),
            Report::Attributes(_) => (Some(PreAttr::from(&attr)), Some(attr)),
        };
        Ok(Written { stability: how, before, after })
    }

    fn commit(&self, caller: &Caller<'_>, file: &Handle, offset: u64, len: u64) -> Result<Change> {
        self.commits.fetch_add(1, Ordering::SeqCst);
        self.to_disk(caller, file)?;
        self.disk.commit(caller, file, offset, len)
    }

    fn caps(&self) -> &FsCaps {
        &self.caps
    }
    fn root(&self) -> Handle {
        self.disk.root()
    }
    fn lookup(&self, caller: &Caller<'_>, dir: &Handle, name: &Name) -> Result<(Handle, Attr)> {
        self.disk.lookup(caller, dir, name)
    }
    fn getattr(&self, caller: &Caller<'_>, object: &Handle) -> Result<Attr> {
        if self.delays.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1)).is_ok() {
            return Err(VfsError::Delay);
        }
        self.disk.getattr(caller, object)
    }
    fn setattr(&self, caller: &Caller<'_>, object: &Handle, set: &SetAttr, guard: Option<Time>) -> Result<Change> {
        self.disk.setattr(caller, object, set, guard)
    }
    fn access(&self, caller: &Caller<'_>, object: &Handle, wanted: Rights) -> Result<(Rights, Attr)> {
        self.disk.access(caller, object, wanted)
    }
    fn readlink(&self, caller: &Caller<'_>, link: &Handle) -> Result<(Bytes, Attr)> {
        self.disk.readlink(caller, link)
    }
    fn read_into(&self, caller: &Caller<'_>, file: &Handle, offset: u64, into: &mut [u8]) -> Result<ReadInto> {
        let reads = self.reads.lock().clone();
        let into = match &reads {
            Reads::Short(most) => {
                let most = into.len().min(*most);
                &mut into[..most]
            }
            _ => into,
        };
        match reads {
            Reads::Fail => return Err(VfsError::Io),
            Reads::Wait(permits) => caller.complete(|| {
                self.begun.fetch_add(1, Ordering::SeqCst);
                async move {
                    permits.acquire().await.map_err(|_| VfsError::Io)?.forget();
                    Ok(())
                }
            })?,
            Reads::Whole | Reads::Short(_) => {}
        }
        self.disk.read_into(caller, file, offset, into)
    }
    fn create(&self, caller: &Caller<'_>, dir: &Handle, name: &Name, mode: &CreateMode) -> Result<Created> {
        self.disk.create(caller, dir, name, mode)
    }
    fn mkdir(&self, caller: &Caller<'_>, dir: &Handle, name: &Name, set: &SetAttr) -> Result<Created> {
        self.disk.mkdir(caller, dir, name, set)
    }
    fn symlink(&self, caller: &Caller<'_>, dir: &Handle, name: &Name, text: &[u8], set: &SetAttr) -> Result<Created> {
        self.disk.symlink(caller, dir, name, text, set)
    }
    fn mknod(&self, caller: &Caller<'_>, dir: &Handle, name: &Name, node: NodeKind, set: &SetAttr) -> Result<Created> {
        self.disk.mknod(caller, dir, name, node, set)
    }
    fn remove(&self, caller: &Caller<'_>, dir: &Handle, name: &Name) -> Result<Change> {
        self.disk.remove(caller, dir, name)
    }
    fn rmdir(&self, caller: &Caller<'_>, dir: &Handle, name: &Name) -> Result<Change> {
        self.disk.rmdir(caller, dir, name)
    }
    fn rename(
        &self,
        caller: &Caller<'_>,
        from_dir: &Handle,
        from: &Name,
        to_dir: &Handle,
        to: &Name,
    ) -> Result<(Change, Change)> {
        self.disk.rename(caller, from_dir, from, to_dir, to)
    }
    fn link(&self, caller: &Caller<'_>, object: &Handle, dir: &Handle, name: &Name) -> Result<(Change, Attr)> {
        self.disk.link(caller, object, dir, name)
    }
    fn readdir(
        &self,
        caller: &Caller<'_>,
        dir: &Handle,
        cookie: u64,
        verifier: [u8; 8],
        attrs: bool,
        each: &mut dyn FnMut(DirEntry<'_>) -> ControlFlow<()>,
    ) -> Result<ReadDir> {
        self.disk.readdir(caller, dir, cookie, verifier, attrs, each)
    }
    fn statfs(&self, caller: &Caller<'_>, object: &Handle) -> Result<StatFs> {
        self.disk.statfs(caller, object)
    }
}
