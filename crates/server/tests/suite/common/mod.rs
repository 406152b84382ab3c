//! A server that is called directly, without a connection.
#![allow(dead_code)] // Each test file uses its part.

pub mod back;
pub mod remote;
pub mod v4;

use std::{net::SocketAddr, path::Path, sync::Arc, time::Duration};

use nfs::{
    mount::{MountOk, MountRes},
    v3::*,
};
use rpc::{AcceptError, AuthSys, Identity, Service};
use server::{
    Config, Export, ExportId, ExportOptions, Exports, HandleKey, Mount3, Nfs3, NfsServer, Squash,
    config::{ExportConfig, Settings},
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
        Self::calling(&NfsServer::new(exports, HandleKey::random()))
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
        let future = self.paper.call(service, procedure, (self.peer, &self.caller), message);
        tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(future)
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

/// Starts a server of a directory. Its state directory is a new one below `state`, so that it has the right mode: this
/// process has no umask.
pub fn serve(dir: &Path, state: &Path, grace: Duration) -> NfsServer {
    let options = ExportOptions { squash: Squash::None, ..Default::default() };
    let export = ExportConfig::directory(dir, options).unwrap();
    let config = Config { export: vec![export], ..Config::default() };
    let settings = Settings { grace, ..Settings::default() };
    NfsServer::open_with(&config, &state.join("state"), &buf::Pool::default(), settings).unwrap()
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
