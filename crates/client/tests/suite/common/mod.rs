//! Servers in the same process, over the loopback interface.
#![allow(dead_code, unused_imports, unused_macros)] // Each test file uses its part.

pub mod cluster;
#[path = "../../../../testkit/src/device.rs"]
pub mod device;
pub mod faulty;
pub mod gated;
pub mod meeting;
pub mod moving;
pub mod net;
#[path = "../../../../testkit/src/port.rs"]
pub mod port;
#[path = "../../../../testkit/src/process.rs"]
pub mod process;
pub mod proxy;
pub mod recorder;
pub mod scripted;
pub mod sim;
pub mod work;
pub mod wrapped;

use std::{net::SocketAddr, path::Path, sync::Arc};

use buf::{Pool, PoolOptions};
use bytes::Bytes;
use client::{Mount, NfsUrl};
pub use process::process;
use rdma::{
    hook::{Hook, Hooked, Tracer},
    iwarp::{Iwarp, IwarpOptions},
    shm::{Shm, ShmOptions},
};
use rpc::{RawOptions, Service, Switch, TcpKind, TcpOptions, TransportKind, UdpKind, UdpOptions};
use rpcrdma::RdmaKind;
use server::{
    Export, ExportId, ExportOptions, HandleKey, NfsServer, Squash,
    recovery::{
        Recovery,
        state_dir::{OnLoss, StateDir},
    },
};
use tokio::task::JoinSet;
use vfs::{
    Vfs,
    memory::{Memory, MemoryOptions},
};

/// Makes tests from functions with one parameter: a module for each argument, with a test for each function.
macro_rules! for_each {
    ($names:tt $($module:ident = $argument:expr)*) => { $($crate::common::for_each!(@ $names $module $argument);)* };
    (@ [$($name:ident)*] $module:ident $argument:expr) => {
        mod $module {
            $(#[tokio::test]
            async fn $name() {
                super::$name($argument).await;
            })*
        }
    };
}
pub(crate) use for_each;

/// Makes tests for each version: its query is the argument.
macro_rules! for_each_version {
    ($($name:ident)*) => {
        $crate::common::for_each! {
            [$($name)*] v3 = "vers=3" v4_0 = "vers=4.0" v4_1 = "vers=4.1" v4_2 = "vers=4.2"
        }
    };
}
pub(crate) use for_each_version;

/// A server, and the transports by which clients reach it.
pub struct Server {
    pub address: SocketAddr,
    pub switch: Switch,
}

impl Server {
    pub async fn memory() -> Self {
        Self::start(Arc::new(memory())).await
    }

    /// Starts a server of a memory file system over the transport with this name.
    pub async fn over(proto: &str) -> Self {
        Self::serving(&*switch().find(proto).unwrap(), nfs_server(Arc::new(memory())).services()).await
    }

    pub async fn start(vfs: Arc<dyn Vfs>) -> Self {
        Self::serving(&*tcp(), nfs_server(vfs).services()).await
    }

    /// Starts a server of these programs over this transport.
    pub async fn serving(kind: &dyn TransportKind, services: Vec<Arc<dyn Service>>) -> Self {
        let (address, mut process) = process(kind, "127.0.0.1:0".parse().unwrap(), services);
        process.detach_all();
        Self { address, switch: switch() }
    }

    /// Mounts the export, as root unless the query names a user.
    pub async fn mount(&self, query: &str) -> Mount {
        self.mount_path("", query).await.unwrap_or_else(|error| panic!("mounting: {error}"))
    }

    pub async fn mount_path(&self, path: &str, query: &str) -> client::Result<Mount> {
        let user = if query.contains("uid=") { "" } else { "&uid=0&gid=0" };
        let query = format!("{query}{user}");
        let url: NfsUrl = format!("nfs://{}/m{path}?{}", self.address, query.trim_start_matches('&')).parse()?;
        Mount::connect(&url, &self.switch).await
    }
}

/// Makes a server with one export, `/m`.
pub fn nfs_server(vfs: Arc<dyn Vfs>) -> NfsServer {
    let options = ExportOptions { squash: Squash::None, ..Default::default() };
    let export = Export::new("/m", ExportId::unique(), vfs, options).unwrap();
    NfsServer::new(export, HandleKey::random())
}

/// Opens the recovery database in this directory. Creates it if there is none.
pub fn recovery(dir: &Path) -> Recovery {
    Recovery::open(&StateDir::open(dir).unwrap(), false, OnLoss::Refuse).unwrap()
}

pub fn switch() -> Switch {
    let mut switch = Switch::new();
    switch.register(tcp());
    switch.register(udp());
    switch.register(iwarp(Arc::new(Tracer)));
    switch.register(shm(Arc::new(Tracer)));
    switch
}

/// Returns iWARP in user space. `hook` observes its connections.
pub fn iwarp(hook: Arc<dyn Hook>) -> Arc<dyn TransportKind> {
    let provider = Hooked::new(Iwarp::new(IwarpOptions::default()), hook);
    Arc::new(RdmaKind::new(Arc::new(provider), Default::default()))
}

/// Returns shared memory with its sockets in a directory of this process. `hook` observes its connections.
pub fn shm(hook: Arc<dyn Hook>) -> Arc<dyn TransportKind> {
    let directory = std::env::temp_dir().join(format!("slipway-client-{}", std::process::id()));
    let provider = Hooked::new(Shm::new(ShmOptions { directory: Some(directory), ..ShmOptions::default() }), hook);
    let pool = Pool::new(PoolOptions { shared: true, ..PoolOptions::default() });
    Arc::new(RdmaKind::new(Arc::new(provider), Default::default()).with_pool(pool).named("shm"))
}

/// Returns the same transport with this way of registering memory.
pub fn registering(kind: &dyn TransportKind, way: &str) -> Arc<dyn TransportKind> {
    kind.with_options(&RawOptions::from([("registration".to_owned(), way.to_owned())])).unwrap()
}

pub fn memory() -> Memory {
    Memory::new(MemoryOptions::default())
}

/// Returns bytes that differ at every offset.
pub fn pattern(len: usize) -> Bytes {
    let word = |i: usize| (i as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes();
    (0..len.div_ceil(8)).flat_map(word).take(len).collect()
}

pub fn tcp() -> Arc<dyn TransportKind> {
    Arc::new(TcpKind::new(TcpOptions::default(), Pool::default()))
}

pub fn udp() -> Arc<dyn TransportKind> {
    Arc::new(UdpKind::new(UdpOptions::default(), Pool::default()))
}
