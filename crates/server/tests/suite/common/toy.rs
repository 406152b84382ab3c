//! A back end in memory that offers layouts, and records what the server tells it.
#![allow(dead_code)] // Each test file uses its part.

use std::{
    collections::{BTreeMap, VecDeque},
    ops::ControlFlow,
    sync::{Arc, Mutex, MutexGuard},
};

use buf::{Pool, Rope};
use bytes::Bytes;
use vfs::{
    Attr, Caller, Change, CreateMode, Created, Cred, DirEntry, FsCaps, Handle, Layouts, Name, NodeKind, Read, ReadDir,
    ReadInto, Report, Result, Rights, SetAttr, SetTime, Stability, StatFs, Time, Vfs, VfsError, Written, layout::*,
};

/// A device of flexible layouts.
pub const FLEXIBLE: LayoutDeviceId = LayoutDeviceId([7; 16]);
/// A device of files layouts.
pub const FILES: LayoutDeviceId = LayoutDeviceId([8; 16]);

/// A call of the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BackEndCall {
    Grant(LayoutRequest),
    Commit(Option<LayoutHolder>, LayoutCommit),
    Report(Option<LayoutHolder>, Vec<DataFailure>),
    Count(LayoutHolder, DataUsage),
    Release(LayoutHolder, LayoutModes),
    Fence(LayoutHolder, LayoutModes),
}

/// The back end. The files are real files in memory.
pub struct Toy {
    inner: Arc<dyn Vfs>,
    caps: LayoutCaps,
    state: Mutex<State>,
}

#[derive(Default)]
pub struct State {
    pub calls: VecDeque<BackEndCall>,
    /// The modes of each holder that were granted and not removed.
    pub holders: BTreeMap<LayoutHolder, LayoutModes>,
    /// The answers to the next grants; a layout if there is none.
    pub refuse: VecDeque<VfsError>,
    /// The number of fences that fail.
    pub failing_fences: usize,
    pub return_on_close: bool,
    /// Set when unstable writes were lost, so that the write verifier is another one.
    pub lost: bool,
    /// The number of times that attributes were read.
    pub getattrs: usize,
    events: Option<Arc<dyn LayoutEvents>>,
}

impl Toy {
    pub fn new(inner: Arc<dyn Vfs>) -> Arc<Self> {
        let threshold = LayoutThreshold { read_size: Some(4096), write_io: Some(512), ..LayoutThreshold::default() };
        let caps = LayoutCaps {
            kinds: vec![LayoutKind::Flexible, LayoutKind::Files],
            block_size: 1 << 16,
            alignment: 4096,
            threshold: Some(threshold),
            recalled_by_truncation: true,
        };
        Arc::new(Self { inner, caps, state: Mutex::default() })
    }

    pub fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    /// Returns the calls since the last time.
    pub fn calls(&self) -> Vec<BackEndCall> {
        self.state().calls.drain(..).collect()
    }

    /// Sends an event to the server.
    pub fn notify(&self, event: LayoutEvent) {
        let events = self.state().events.clone().expect("the server must subscribe");
        events.notify(event);
    }

    pub fn file(&self, name: &str) -> Handle {
        let (cred, root) = (Cred::root(), self.inner.root());
        self.inner.lookup(&Caller::blocking(&cred), &root, Name::new(name.as_bytes()).unwrap()).unwrap().0
    }

    fn remove(&self, holder: LayoutHolder, modes: LayoutModes) {
        let mut state = self.state();
        if let Some(held) = state.holders.get_mut(&holder) {
            *held = held.without(modes);
            if held.is_empty() {
                state.holders.remove(&holder);
            }
        }
    }
}

impl Layouts for Toy {
    fn caps(&self) -> &LayoutCaps {
        &self.caps
    }

    fn subscribe(&self, events: Arc<dyn LayoutEvents>) {
        self.state().events = Some(events);
    }

    fn grant(&self, _: &Caller<'_>, file: &Handle, request: &LayoutRequest) -> Result<Layout> {
        let mut state = self.state();
        state.calls.push_back(BackEndCall::Grant(request.clone()));
        if let Some(error) = state.refuse.pop_front() {
            return Err(error);
        }
        let held = state.holders.entry(request.holder).or_default();
        match request.mode {
            LayoutMode::Read => held.read = true,
            LayoutMode::Write => held.write = true,
        }
        let return_on_close = state.return_on_close;
        let handle = Bytes::copy_from_slice(file.as_bytes());
        Ok(match request.kind {
            LayoutKind::Flexible => {
                let data_file = DataFile { device: FLEXIBLE, efficiency: 1, handle, uid: 17, gid: 18, stateid: None };
                Layout::Flexible(FlexibleLayout {
                    mirrors: vec![Mirror { data_files: vec![data_file] }; 2],
                    stripe_unit: 0,
                    no_commit: false,
                    no_io_through_server: true,
                    no_read: false,
                    stats_interval_s: 60,
                    return_on_close,
                })
            }
            LayoutKind::Files => Layout::Files(FilesLayout {
                device: FILES,
                stripe_unit: 1 << 16,
                dense: true,
                first_stripe: 1,
                pattern_offset: 0,
                commit_through_server: false,
                handles: vec![handle.clone(), handle],
                return_on_close,
            }),
        })
    }

    fn device(&self, _: &Caller<'_>, id: LayoutDeviceId, kind: LayoutKind) -> Result<LayoutDevice> {
        let at = |transport, address: &str| DataAddress { transport, address: address.parse().unwrap() };
        match (id, kind) {
            (FLEXIBLE, LayoutKind::Flexible) => Ok(LayoutDevice::Flexible {
                addresses: vec![at(DataTransport::Rdma, "192.0.2.9:20049"), at(DataTransport::Tcp, "192.0.2.9:2049")],
                versions: vec![DataVersion { version: 3, minor: 0, read_max: 1, write_max: 2, tightly_coupled: false }],
            }),
            (FILES, LayoutKind::Files) => Ok(LayoutDevice::Files {
                stripes: vec![0, 1],
                servers: vec![vec![at(DataTransport::Tcp, "192.0.2.8:2049")], vec![at(DataTransport::Tcp, "[::1]:1")]],
            }),
            _ => Err(VfsError::NotFound),
        }
    }

    fn commit(
        &self,
        caller: &Caller<'_>,
        file: &Handle,
        holder: Option<LayoutHolder>,
        commit: &LayoutCommit,
    ) -> Result<Change> {
        self.state().calls.push_back(BackEndCall::Commit(holder, *commit));
        let known = self.inner.getattr(caller, file)?.size;
        let mtime = commit.mtime.map_or(SetTime::Now, SetTime::To);
        let size = commit.size.filter(|size| *size > known);
        self.inner.setattr(caller, file, &SetAttr { size, mtime: Some(mtime), ..SetAttr::default() }, None)
    }

    fn report(&self, _: &Caller<'_>, _: &Handle, holder: Option<LayoutHolder>, failures: &[DataFailure]) -> Result<()> {
        self.state().calls.push_back(BackEndCall::Report(holder, failures.to_vec()));
        Ok(())
    }

    fn count(&self, _: &Handle, holder: LayoutHolder, usage: &DataUsage) {
        self.state().calls.push_back(BackEndCall::Count(holder, *usage));
    }

    fn release(&self, _: &Caller<'_>, _: &Handle, holder: LayoutHolder, modes: LayoutModes) -> Result<()> {
        self.remove(holder, modes);
        self.state().calls.push_back(BackEndCall::Release(holder, modes));
        Ok(())
    }

    fn fence(&self, _: &Caller<'_>, _: &Handle, holder: LayoutHolder, modes: LayoutModes) -> Result<()> {
        self.state().calls.push_back(BackEndCall::Fence(holder, modes));
        if self.state().failing_fences > 0 {
            self.state().failing_fences -= 1;
            return Err(VfsError::Io);
        }
        self.remove(holder, modes);
        Ok(())
    }
}

macro_rules! delegate {
    ($(fn $name:ident($($arg:ident: $type:ty),*) -> $result:ty;)*) => {$(
        fn $name(&self, caller: &Caller<'_>, $($arg: $type),*) -> Result<$result> {
            self.inner.$name(caller, $($arg),*)
        }
    )*};
}

impl Vfs for Toy {
    fn caps(&self) -> &FsCaps {
        self.inner.caps()
    }

    fn root(&self) -> Handle {
        self.inner.root()
    }

    fn write_verifier(&self) -> [u8; 8] {
        self.inner.write_verifier().map(|byte| byte ^ u8::from(self.state().lost))
    }

    fn layouts(&self) -> Option<&dyn Layouts> {
        Some(self)
    }

    fn getattr(&self, caller: &Caller<'_>, object: &Handle) -> Result<Attr> {
        self.state().getattrs += 1;
        self.inner.getattr(caller, object)
    }

    delegate! {
        fn lookup(dir: &Handle, name: &Name) -> (Handle, Attr);
        fn setattr(object: &Handle, set: &SetAttr, guard: Option<Time>) -> Change;
        fn access(object: &Handle, wanted: Rights) -> (Rights, Attr);
        fn readlink(link: &Handle) -> (Bytes, Attr);
        fn read_into(file: &Handle, offset: u64, into: &mut [u8]) -> ReadInto;
        fn read(file: &Handle, offset: u64, len: usize, pool: &Pool, ranges: bool) -> Read;
        fn write(file: &Handle, offset: u64, data: &Rope, stability: Stability, report: Report) -> Written;
        fn commit(file: &Handle, offset: u64, len: u64) -> Change;
        fn create(dir: &Handle, name: &Name, mode: &CreateMode) -> Created;
        fn mkdir(dir: &Handle, name: &Name, set: &SetAttr) -> Created;
        fn symlink(dir: &Handle, name: &Name, target: &[u8], set: &SetAttr) -> Created;
        fn mknod(dir: &Handle, name: &Name, node: NodeKind, set: &SetAttr) -> Created;
        fn remove(dir: &Handle, name: &Name) -> Change;
        fn rmdir(dir: &Handle, name: &Name) -> Change;
        fn rename(from_dir: &Handle, from: &Name, to_dir: &Handle, to: &Name) -> (Change, Change);
        fn link(object: &Handle, dir: &Handle, name: &Name) -> (Change, Attr);
        fn readdir(dir: &Handle, cookie: u64, verifier: [u8; 8], attrs: bool, each: &mut dyn FnMut(DirEntry<'_>) -> ControlFlow<()>) -> ReadDir;
        fn statfs(object: &Handle) -> StatFs;
    }
}
