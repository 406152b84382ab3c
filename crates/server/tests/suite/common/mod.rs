//! A server that is called directly, without a connection.
//!
//! The attribute `simnet::test` makes a test run in a simulation: `remote` has a server over a simulated network, `machine`
//! one that is restarted. A test that needs threads, a directory or a socket of the system has the attribute `test`, and its file
//! says why.
#![allow(dead_code)] // Each test file uses its part.

pub mod back;
pub mod machine;
pub mod remote;
pub mod toy;
pub mod v4;

use std::{
    future::Future,
    net::SocketAddr,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    task::{Context, Poll, Wake, Waker},
};

use nfs::{
    mount::{MountOk, MountRes},
    v3::*,
};
use rpc::{AcceptError, AuthSys, Identity, Service, TcpKind};
use server::{
    BlockingOptions, CallbackTransports, Export, ExportId, ExportOptions, Exports, HandleKey, Mount3, Nfs3, NfsServer,
    config::Settings, recovery::Recovery,
};
pub use testkit::paper::results;
use testkit::{
    deferred::{Deferred, Pace},
    paper::Paper,
};
use vfs::{
    Vfs,
    memory::{Memory, MemoryOptions},
};
use xdr::{Decode, Encode, Message};

/// A caller: its address, its identity, and the server that it calls.
#[derive(Clone)]
pub struct Rig {
    pub nfs: Arc<Nfs3>,
    pub mount: Arc<Mount3>,
    pub paper: Arc<Paper>,
    pub peer: SocketAddr,
    pub caller: Identity,
}

impl Rig {
    /// Creates a server with one memory export `/m` that everybody may use. It is called by root, who is not squashed.
    pub fn new() -> Self {
        Self::with(ExportOptions { squash: server::Squash::None, ..Default::default() })
    }

    pub fn with(options: ExportOptions) -> Self {
        Self::serving(Export::new("/m", ExportId::unique(), memory(), options).unwrap())
    }

    pub fn serving(exports: impl Into<Exports>) -> Self {
        Self::calling(&server_of(exports))
    }

    pub fn calling(server: &NfsServer) -> Self {
        Self {
            nfs: Arc::new(server.nfs3()),
            mount: Arc::new(server.mount3()),
            paper: Arc::new(Paper::new("tcp", 4 << 20)),
            peer: "192.0.2.1:700".parse().unwrap(),
            caller: user(0, 0),
        }
    }

    /// Returns a caller of the same server with another user.
    pub fn as_user(&self, uid: u32, gid: u32) -> Self {
        Self { caller: user(uid, gid), ..self.clone() }
    }

    /// Returns a caller of the same server from another address.
    pub fn from(&self, peer: &str) -> Self {
        Self { peer: peer.parse().unwrap(), ..self.clone() }
    }

    /// Returns a caller of the same server over another transport.
    pub fn over(&self, name: &'static str, message_max: usize) -> Self {
        Self { paper: Arc::new(Paper::new(name, message_max)), ..self.clone() }
    }

    /// Calls a procedure with encoded arguments. Returns the message of the results with the header.
    pub fn raw(&self, service: &dyn Service, procedure: u32, message: &Message) -> Result<Message, AcceptError> {
        finish(self.paper.call(service, procedure, (self.peer, &self.caller), message))
    }

    /// Calls an NFS procedure.
    pub fn call<P: Procedure3>(&self, args: P::Args) -> P::Res {
        let reply = self.raw(&*self.nfs, P::NUMBER as u32, &Message::encode(&args)).expect("call must be accepted");
        results(&reply)
    }

    /// Calls a MOUNT procedure.
    pub fn mount<R: Decode>(&self, procedure: nfs::mount::MountProc3, args: impl Encode) -> R {
        results(&self.raw(&*self.mount, procedure as u32, &Message::encode(&args)).expect("call must be accepted"))
    }

    /// Returns the root of `/m`.
    pub fn root(&self) -> NfsFh3 {
        self.root_of("/m")
    }

    /// Returns the root of an export.
    pub fn root_of(&self, name: &str) -> NfsFh3 {
        match self.mount(nfs::mount::MountProc3::Mnt, nfs::mount::Dirpath::from(name)) {
            MountRes::Ok(MountOk { fhandle, .. }) => fhandle,
            MountRes::Fail(status) => panic!("{status:?}"),
        }
    }

    /// Creates a file with this content.
    pub fn file(&self, dir: &NfsFh3, name: &str, content: &[u8]) -> NfsFh3 {
        let how = CreateHow3::Unchecked(Sattr3 { mode: Some(0o644), ..Default::default() });
        let made = self.call::<Create>(CreateArgs { what: name_in(dir, name), how }).into_result().unwrap();
        let file = made.obj.unwrap();
        if !content.is_empty() {
            self.call::<Write>(write_args(&file, 0, content)).into_result().unwrap();
        }
        file
    }

    /// Creates a directory.
    pub fn dir(&self, dir: &NfsFh3, name: &str) -> NfsFh3 {
        let attributes = Sattr3 { mode: Some(0o755), ..Default::default() };
        let made = self.call::<MkDir>(MkDirArgs { what: name_in(dir, name), attributes });
        made.into_result().unwrap().obj.unwrap()
    }

    pub fn attr(&self, object: &NfsFh3) -> Fattr3 {
        self.call::<GetAttr>(GetAttrArgs { object: object.clone() }).into_result().unwrap()
    }

    pub fn set_mode(&self, object: &NfsFh3, mode: u32) {
        let new_attributes = Sattr3 { mode: Some(mode), ..Default::default() };
        let args = SetAttrArgs { object: object.clone(), new_attributes, guard: None };
        self.call::<SetAttr>(args).into_result().unwrap();
    }
}

/// Creates a server of these exports without state of an earlier start.
pub fn server_of(exports: impl Into<Exports>) -> NfsServer {
    server_with(exports, Settings::default())
}

/// Like [`server_of`], with settings.
pub fn server_with(exports: impl Into<Exports>, settings: Settings) -> NfsServer {
    NfsServer::recovering(exports, HandleKey::random(), Recovery::in_memory(), on_one_thread(settings)).unwrap()
}

/// Returns these settings. In a simulation, blocking work runs in place, because the threads of a pool are not part of it.
pub fn on_one_thread(settings: Settings) -> Settings {
    match simnet::is_simulated() {
        true => Settings { blocking: BlockingOptions { threads: 0, ..settings.blocking }, ..settings },
        false => settings,
    }
}

/// Runs a call to its end. In a simulation nothing else runs meanwhile, so the call must not wait for another task or for time.
pub fn finish<T>(call: impl Future<Output = T>) -> T {
    struct Woken(AtomicBool);
    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.store(true, SeqCst);
        }
    }
    if !simnet::is_simulated() {
        return tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(call);
    }
    let woken = Arc::new(Woken(AtomicBool::new(true)));
    let waker = Waker::from(woken.clone());
    // The task of the test is not interrupted, so the call must not use up its budget.
    let mut call = pin!(tokio::task::unconstrained(call));
    while woken.0.swap(false, SeqCst) {
        if let Poll::Ready(result) = call.as_mut().poll(&mut Context::from_waker(&waker)) {
            return result;
        }
    }
    panic!("the call waits for another task: it must be made over a connection");
}

/// Creates a tree in memory. If `SLIPWAY_DEFERRED` is set to a seed, two thirds of its operations complete later, and
/// all tests must pass as well.
pub fn memory() -> Arc<dyn Vfs> {
    let memory = plain_memory();
    match std::env::var("SLIPWAY_DEFERRED") {
        Ok(seed) => Deferred::new(memory, Pace::Soon(seed.parse().expect("SLIPWAY_DEFERRED must be a number"))),
        Err(_) => memory,
    }
}

/// Creates a tree in memory none of whose operations complete later.
pub fn plain_memory() -> Arc<dyn Vfs> {
    Arc::new(Memory::new(MemoryOptions { capacity: 64 << 20, ..Default::default() }))
}

pub fn user(uid: u32, gid: u32) -> Identity {
    Identity::Sys(auth_sys(uid, gid))
}

pub fn auth_sys(uid: u32, gid: u32) -> AuthSys {
    AuthSys { stamp: 0, machine: "test".into(), uid, gid, gids: Default::default() }
}

pub fn name_in(dir: &NfsFh3, name: &str) -> Diropargs3 {
    Diropargs3 { dir: dir.clone(), name: name.into() }
}

pub fn write_args(file: &NfsFh3, offset: u64, data: &[u8]) -> WriteArgs {
    let data = bytes::Bytes::copy_from_slice(data);
    let count = data.len() as u32;
    WriteArgs { file: file.clone(), offset, count, stable: StableHow::FileSync, data: data.into() }
}

/// Makes requests for locks wait. Hosts are not called when they get the lock.
pub fn calls_back(server: &NfsServer) {
    let tcp = Arc::new(TcpKind::default());
    drop(server.lock_callbacks(CallbackTransports { tcp: tcp.clone(), udp: tcp }));
}
