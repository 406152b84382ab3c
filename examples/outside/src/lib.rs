//! A back end and a server outside of Slipway's workspace: [`Audited`], a tree in memory that counts the changes of its
//! names.
//!
//! It uses only public crates of Slipway, and Slipway does not depend on it. `tests/conformance.rs` runs the
//! conformance suite on the back end; `tests/serve.rs` serves it.

use std::{
    io,
    net::SocketAddr,
    ops::ControlFlow,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use buf::{Pool, Rope};
use bytes::Bytes;
use rpc::{ServerBuilder, WorkerOptions, Workers};
use server::{
    Config, NfsServer,
    config::{BackendSettings, Backends, Opening, Settings, Tree},
};
use vfs::{
    Attr, Caller, Change, CreateMode, Created, DirEntry, FsCaps, Handle, Held, Name, NodeKind, Read, ReadDir, ReadInto,
    Report, Result, Rights, SetAttr, Stability, StatFs, Time, Vfs, Written,
    memory::{Memory, MemoryOptions},
};

/// A tree in memory that counts the changes of its names. It has no ACLs, extended attributes or clones.
pub struct Audited {
    tree: Memory,
    caps: FsCaps,
    changes: Arc<AtomicU64>,
}

impl Audited {
    /// Makes an empty tree that adds the number of its changes to `changes`.
    pub fn new(options: MemoryOptions, changes: Arc<AtomicU64>) -> Self {
        let tree = Memory::new(options);
        let caps = FsCaps { acls: false, xattrs: false, clone_block: 0, ..tree.caps().clone() };
        Self { tree, caps, changes }
    }

    fn counted<T>(&self, result: Result<T>) -> Result<T> {
        if result.is_ok() {
            self.changes.fetch_add(1, Relaxed);
        }
        result
    }
}

/// Defines methods that call those of the tree. Methods marked `counted` also count the change.
macro_rules! delegate {
    ($($(#[$counted:ident])? fn $method:ident($($argument:ident: $kind:ty),*) -> $result:ty;)*) => {
        $(fn $method(&self, $($argument: $kind),*) -> $result {
            delegate!(@ $($counted)? self self.tree.$method($($argument),*))
        })*
    };
    (@ counted $self:ident $call:expr) => { $self.counted($call) };
    (@ $self:ident $call:expr) => { $call };
}

impl Vfs for Audited {
    fn caps(&self) -> &FsCaps {
        &self.caps
    }

    delegate! {
        fn root() -> Handle;
        fn write_verifier() -> [u8; 8];
        fn lookup(caller: &Caller<'_>, dir: &Handle, name: &Name) -> Result<(Handle, Attr)>;
        fn hold(caller: &Caller<'_>, file: &Handle) -> Result<Held>;
        fn getattr(caller: &Caller<'_>, object: &Handle) -> Result<Attr>;
        fn setattr(caller: &Caller<'_>, object: &Handle, set: &SetAttr, guard: Option<Time>) -> Result<Change>;
        fn access(caller: &Caller<'_>, object: &Handle, wanted: Rights) -> Result<(Rights, Attr)>;
        fn readlink(caller: &Caller<'_>, link: &Handle) -> Result<(Bytes, Attr)>;
        fn read_into(caller: &Caller<'_>, file: &Handle, offset: u64, into: &mut [u8]) -> Result<ReadInto>;
        fn read(caller: &Caller<'_>, file: &Handle, offset: u64, len: usize, pool: &Pool, ranges: bool) -> Result<Read>;
        fn write(
            caller: &Caller<'_>, file: &Handle, offset: u64, data: &Rope, stability: Stability, report: Report
        ) -> Result<Written>;
        fn commit(caller: &Caller<'_>, file: &Handle, offset: u64, len: u64) -> Result<Change>;
        #[counted] fn create(caller: &Caller<'_>, dir: &Handle, name: &Name, mode: &CreateMode) -> Result<Created>;
        #[counted] fn mkdir(caller: &Caller<'_>, dir: &Handle, name: &Name, set: &SetAttr) -> Result<Created>;
        #[counted] fn symlink(
            caller: &Caller<'_>, dir: &Handle, name: &Name, target: &[u8], set: &SetAttr
        ) -> Result<Created>;
        #[counted] fn mknod(
            caller: &Caller<'_>, dir: &Handle, name: &Name, node: NodeKind, set: &SetAttr
        ) -> Result<Created>;
        #[counted] fn remove(caller: &Caller<'_>, dir: &Handle, name: &Name) -> Result<Change>;
        #[counted] fn rmdir(caller: &Caller<'_>, dir: &Handle, name: &Name) -> Result<Change>;
        #[counted] fn rename(
            caller: &Caller<'_>, from_dir: &Handle, from: &Name, to_dir: &Handle, to: &Name
        ) -> Result<(Change, Change)>;
        #[counted] fn link(caller: &Caller<'_>, object: &Handle, dir: &Handle, name: &Name) -> Result<(Change, Attr)>;
        fn readdir(
            caller: &Caller<'_>, dir: &Handle, cookie: u64, verifier: [u8; 8], attrs: bool,
            each: &mut dyn FnMut(DirEntry<'_>) -> ControlFlow<()>
        ) -> Result<ReadDir>;
        fn statfs(caller: &Caller<'_>, object: &Handle) -> Result<StatFs>;
    }
}

/// Serves the exports of `config` over TCP on a free port while the [`Workers`] exist. Back ends `audited` in the
/// configuration add the number of their changes to `changes`.
pub async fn serve(config: &str, changes: Arc<AtomicU64>) -> io::Result<(SocketAddr, Workers)> {
    let mut backends = Backends::standard();
    backends.register("audited", move |settings: &BackendSettings, opening: &Opening<'_>| {
        let capacity = settings.size.unwrap_or(1 << 20);
        let options = MemoryOptions { capacity, pool: opening.pool().clone(), mode: 0o1777, ..Default::default() };
        Ok(Tree::volatile(Arc::new(Audited::new(options, changes.clone()))))
    });
    let config = Config::parse_with(config, &backends).map_err(io::Error::other)?;
    let pool = Pool::default();
    let nfs = NfsServer::open_with(&config, "unused: nothing survives".as_ref(), &pool, Settings::default())?;
    let server = nfs.services().into_iter().fold(rpc::Server::builder(), ServerBuilder::shared).build();
    let workers = Workers::new(WorkerOptions { threads: 1, ..Default::default() })?;
    let tcp = transports::for_server(&pool).find("tcp").expect("tcp must be available");
    let listener = tcp.listen("127.0.0.1:0".parse().expect("the address must be valid"))?;
    let address = listener.local_addr();
    workers.listen(server, listener);
    tokio::spawn(nfs.upkeep());
    Ok((address, workers))
}
