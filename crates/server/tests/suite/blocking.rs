//! A file system that has to wait for storage is served by threads that may block, and each operation is executed once.
//!
//! The tests do not run in simulations, because they are about threads.

use std::{
    ops::ControlFlow,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll, Waker},
    time::Duration,
};

use crate::common::*;
use buf::{Pool, Rope};
use nfs::v3::*;
use parking_lot::{Condvar, Mutex};
use rpc::AcceptError;
use server::{
    BlockingOptions, Export, ExportId, ExportOptions, HandleKey, NfsServer, Squash, config::Settings,
    recovery::Recovery,
};
use vfs::{
    Attr, Caller, Change, CreateMode, Created, Cred, DirEntry, FsCaps, Handle, Name, NodeKind, ReadInto, Report,
    Result, Rights, SetAttr, Stability, StatFs, Time, Vfs, VfsError, Written,
};
use xdr::Message;

/// A file system whose operations succeed only on threads that may block; if it is broken, they never succeed. They
/// hang between [`hang`](Self::hang) and [`release`](Self::release).
pub struct Slow {
    pub tree: Arc<dyn Vfs>,
    caps: FsCaps,
    refused: AtomicUsize,
    broken: bool,
    gate: Mutex<Gate>,
    changed: Condvar,
}

#[derive(Default)]
struct Gate {
    closed: bool,
    /// The number of operations that hang.
    hanging: usize,
    /// The users whose operations have continued, in order.
    passed: Vec<u32>,
}

impl Slow {
    pub fn new(broken: bool) -> Arc<Self> {
        let tree = plain_memory();
        let caps = FsCaps { blocks: true, ..tree.caps().clone() };
        let (gate, changed) = Default::default();
        Arc::new(Self { tree, caps, refused: AtomicUsize::new(0), broken, gate, changed })
    }

    /// Makes operations hang from now on.
    pub fn hang(&self) {
        *self.gate.lock() = Gate { closed: true, ..Gate::default() };
    }

    /// Lets operations continue.
    pub fn release(&self) {
        self.gate.lock().closed = false;
        self.changed.notify_all();
    }

    /// Waits until this number of operations hang.
    pub fn await_hanging(&self, operations: usize) {
        let mut gate = self.gate.lock();
        while gate.hanging < operations {
            let waited = self.changed.wait_for(&mut gate, TIMEOUT);
            assert!(!waited.timed_out(), "{} operations hang instead of {operations}", gate.hanging);
        }
    }

    /// Returns the number of operations that hang.
    pub fn hanging(&self) -> usize {
        self.gate.lock().hanging
    }

    /// Returns the users whose operations have continued since [`hang`](Self::hang), in order.
    pub fn passed(&self) -> Vec<u32> {
        self.gate.lock().passed.clone()
    }

    fn wait(&self, caller: &Caller<'_>) -> Result<&dyn Vfs> {
        if caller.may_block && !self.broken {
            let mut gate = self.gate.lock();
            gate.hanging += 1;
            self.changed.notify_all();
            while gate.closed {
                self.changed.wait(&mut gate);
            }
            gate.hanging -= 1;
            gate.passed.push(caller.cred.uid);
            return Ok(&*self.tree);
        }
        self.refused.fetch_add(1, Ordering::Relaxed);
        Err(VfsError::WouldBlock)
    }
}

macro_rules! forward {
    ($(fn $name:ident($($arg:ident: $type:ty),*) -> $result:ty;)*) => {$(
        fn $name(&self, caller: &Caller<'_>, $($arg: $type),*) -> $result {
            self.wait(caller)?.$name(caller, $($arg),*)
        }
    )*};
}

impl Vfs for Slow {
    fn caps(&self) -> &FsCaps {
        &self.caps
    }
    fn root(&self) -> Handle {
        self.tree.root()
    }
    fn write_verifier(&self) -> [u8; 8] {
        self.tree.write_verifier()
    }
    forward! {
        fn lookup(dir: &Handle, name: &Name) -> Result<(Handle, Attr)>;
        fn getattr(object: &Handle) -> Result<Attr>;
        fn setattr(object: &Handle, set: &SetAttr, guard: Option<Time>) -> Result<Change>;
        fn access(object: &Handle, wanted: Rights) -> Result<(Rights, Attr)>;
        fn readlink(link: &Handle) -> Result<(bytes::Bytes, Attr)>;
        fn read_into(file: &Handle, offset: u64, into: &mut [u8]) -> Result<ReadInto>;
        fn read(file: &Handle, offset: u64, len: usize, pool: &Pool, ranges: bool) -> Result<vfs::Read>;
        fn write(file: &Handle, offset: u64, data: &Rope, stability: Stability, report: Report) -> Result<Written>;
        fn commit(file: &Handle, offset: u64, len: u64) -> Result<Change>;
        fn create(dir: &Handle, name: &Name, mode: &CreateMode) -> Result<Created>;
        fn mkdir(dir: &Handle, name: &Name, set: &SetAttr) -> Result<Created>;
        fn symlink(dir: &Handle, name: &Name, target: &[u8], set: &SetAttr) -> Result<Created>;
        fn mknod(dir: &Handle, name: &Name, node: NodeKind, set: &SetAttr) -> Result<Created>;
        fn remove(dir: &Handle, name: &Name) -> Result<Change>;
        fn rmdir(dir: &Handle, name: &Name) -> Result<Change>;
        fn rename(from_dir: &Handle, from: &Name, to_dir: &Handle, to: &Name) -> Result<(Change, Change)>;
        fn link(object: &Handle, dir: &Handle, name: &Name) -> Result<(Change, Attr)>;
        fn statfs(object: &Handle) -> Result<StatFs>;
    }
    fn readdir(
        &self,
        caller: &Caller<'_>,
        dir: &Handle,
        cookie: u64,
        verifier: [u8; 8],
        attrs: bool,
        each: &mut dyn FnMut(DirEntry<'_>) -> ControlFlow<()>,
    ) -> Result<vfs::ReadDir> {
        if self.wait(caller).is_err() {
            // As when some entries are cached and some are not.
            let may = Caller { may_block: true, ..*caller };
            let mut first = true;
            let mut some = |entry: DirEntry<'_>| {
                if std::mem::take(&mut first) { each(entry) } else { ControlFlow::Break(()) }
            };
            self.tree.readdir(&may, dir, cookie, verifier, attrs, &mut some)?;
        }
        self.wait(caller)?.readdir(caller, dir, cookie, verifier, attrs, each)
    }
}

/// Longer than any operation that does not hang.
const TIMEOUT: Duration = Duration::from_secs(600);

fn rig(slow: &Arc<Slow>) -> Rig {
    let options = ExportOptions { squash: Squash::None, ..Default::default() };
    Rig::serving(Export::new("/m", ExportId::unique(), slow.clone(), options).unwrap())
}

#[test]
fn every_procedure_is_executed_once_on_a_pool_thread() {
    let slow = Slow::new(false);
    let rig = rig(&slow);
    let root = rig.root();
    let dir = rig.dir(&root, "d");
    let file = rig.file(&dir, "f", b"hello");
    let read = rig.call::<Read>(ReadArgs { file: file.clone(), offset: 1, count: 3 }).into_result().unwrap();
    assert_eq!(read.data.0.to_bytes().unwrap(), "ell");
    let list = ReadDirArgs { dir: dir.clone(), cookie: 0, cookieverf: [0; 8], count: 4096 };
    let names: Vec<_> = rig.call::<ReadDir>(list).into_result().unwrap().reply.entries.0;
    assert_eq!(names.iter().map(|entry| &entry.name[..]).collect::<Vec<_>>(), [&b"."[..], b"..", b"f"]);
    let link = LinkArgs { file, link: name_in(&dir, "g") };
    assert_eq!(rig.call::<Link>(link).into_result().unwrap().file_attributes.unwrap().nlink, 2);
    let rename = RenameArgs { from: name_in(&dir, "g"), to: name_in(&root, "h") };
    rig.call::<Rename>(rename).into_result().unwrap();
    rig.call::<Remove>(RemoveArgs { object: name_in(&root, "h") }).into_result().unwrap();
    let again = rig.call::<Remove>(RemoveArgs { object: name_in(&root, "h") }).into_result().unwrap_err();
    assert_eq!(again, (Nfsstat3::NoEnt, WccData { before: None, after: Some(rig.attr(&root)) }));
    assert!(slow.refused.load(Ordering::Relaxed) > 10, "operations must be tried in place first");
}

#[test]
fn without_pool_threads_the_call_blocks_in_place() {
    let slow = Slow::new(false);
    let options = ExportOptions { squash: Squash::None, ..Default::default() };
    let export = Export::new("/m", ExportId::unique(), slow.clone(), options).unwrap();
    let blocking = BlockingOptions { threads: 0, ..Default::default() };
    let settings = Settings { blocking, ..Default::default() };
    let server = NfsServer::recovering(export, HandleKey::random(), Recovery::in_memory(), settings);
    let rig = Rig::calling(&server.unwrap());
    let made = slow.tree.create(
        &Caller::blocking(&Cred::root()),
        &slow.root(),
        Name::new(b"f").unwrap(),
        &CreateMode::Guarded(SetAttr { mode: Some(0o640), ..Default::default() }),
    );
    made.unwrap();
    let args = Message::encode(&LookupArgs { what: name_in(&rig.root(), "f") });
    let caller = (rig.peer, &rig.caller);
    let future = pin!(rig.paper.call(&*rig.nfs, Proc3::Lookup as u32, caller, &args));
    let Poll::Ready(reply) = { future }.as_mut().poll(&mut Context::from_waker(Waker::noop())) else {
        panic!("the call must not wait for another thread");
    };
    let found: LookupRes = results(&reply.unwrap());
    assert_eq!(found.into_result().unwrap().obj_attributes.unwrap().mode, 0o640);
}

#[test]
fn would_block_on_a_thread_that_may_block_is_an_error() {
    let rig = rig(&Slow::new(true));
    let args = Message::encode(&GetAttrArgs { object: rig.root() });
    assert_eq!(rig.raw(&*rig.nfs, Proc3::GetAttr as u32, &args).unwrap_err(), AcceptError::SystemErr);
}
