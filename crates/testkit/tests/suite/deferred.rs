//! Tests of a back end that completes operations later: the conformance suite, and that a lost connection leaks
//! nothing.

use std::{future::poll_fn, net::SocketAddr, sync::Arc};

use buf::Pool;
use conformance::backend::{Skipped, World};
use nfs::{
    mount::{Dirpath, MountProc3, MountRes},
    v3::{Create, CreateArgs, CreateHow3, Diropargs3, NfsFh3, Nfsstat3, Proc3, Procedure3, Sattr3},
};
use rpc::{CallHeader, Drain, Hosts, OpaqueAuth, ReplyPlan, TcpKind, Transport, TransportError, TransportKind, Xid};
use server::{
    BlockingOptions, Export, ExportId, ExportOptions, HandleKey, NfsServer, Sec, Squash, config::Settings,
    recovery::Recovery,
};
use testkit::deferred::{Deferred, DeferredFs, Pace};
use tokio::task::JoinHandle;
use vfs::memory::{Memory, MemoryOptions};
use xdr::{Decode, Decoder, Encode, Encoder};

conformance::backend_suite! {
    deferred = deferred;
    sometimes_deferred = sometimes_deferred;
}

fn tree() -> Arc<Memory> {
    Arc::new(Memory::new(MemoryOptions { capacity: 1 << 30, mode: 0o777, ..Default::default() }))
}

/// A back end where two thirds of the operations complete later.
fn sometimes_deferred() -> Result<World, Skipped> {
    Ok(World::new(Deferred::new(tree(), Pace::Soon(7))))
}

/// A back end where all operations complete later.
fn deferred() -> Result<World, Skipped> {
    Ok(World::new(Deferred::new(tree(), Pace::Always)))
}

/// A server over TCP, on the runtime of the test.
struct Served {
    fs: Arc<DeferredFs>,
    address: SocketAddr,
    /// One task for each accepted connection, which ends with the connection and its calls.
    connections: tokio::sync::mpsc::UnboundedReceiver<JoinHandle<TransportError>>,
    _accepting: JoinHandle<()>,
}

fn serve() -> Served {
    let fs = Deferred::new(tree(), Pace::Manual);
    fs.0.hold(false);
    let options = ExportOptions { squash: Squash::None, sec: Sec::None.into(), ..Default::default() };
    let export = Export::new("/m", ExportId::unique(), fs.clone(), options).unwrap();
    // With this bound, one host can have one call in flight.
    let blocking = BlockingOptions { pending: 2, ..Default::default() };
    let settings = Settings { blocking, ..Settings::default() };
    let nfs = NfsServer::recovering(export, HandleKey::random(), Recovery::in_memory(), settings).unwrap();
    let server = nfs.services().into_iter().fold(rpc::Server::builder(), rpc::ServerBuilder::shared).build();
    let mut listener = tcp().listen("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = listener.local_addr();
    let (tell, connections) = tokio::sync::mpsc::unbounded_channel();
    let accepting = tokio::spawn(async move {
        while let Ok(incoming) = listener.accept().await {
            let server = server.clone();
            let serving = tokio::spawn(async move {
                let transport = incoming.set_up(Hosts::all()).await.expect("connection must be set up");
                server.serve(transport, Drain::never()).await
            });
            if tell.send(serving).is_err() {
                break;
            }
        }
    });
    Served { fs, address, connections, _accepting: accepting }
}

fn tcp() -> TcpKind {
    TcpKind::new(Default::default(), Pool::default())
}

/// A client without credentials.
struct Caller {
    transport: Arc<dyn Transport>,
    driver: JoinHandle<()>,
}

impl Caller {
    async fn connect(address: SocketAddr) -> Self {
        let transport = tcp().connect(address).await.unwrap();
        let driven = transport.clone();
        let driver = tokio::spawn(async move { drop(poll_fn(|cx| driven.poll_recv(cx)).await) });
        Self { transport, driver }
    }

    async fn call<R: Decode>(&self, xid: u32, (program, procedure): (u32, u32), args: impl Encode) -> Option<R> {
        let (credential, verifier) = (OpaqueAuth::NONE, OpaqueAuth::NONE);
        let mut call = Encoder::default();
        CallHeader { xid: Xid(xid), program, version: 3, procedure, credential, verifier }.encode(&mut call);
        args.encode(&mut call);
        let plan = ReplyPlan { inline_max: 4096, payload_max: 0, sink: None, locate: None };
        let reply = self.transport.clone().call(call.finish(), plan).await.ok()?;
        let mut decoder = Decoder::new(&reply.message);
        let header: [u32; 6] = std::array::from_fn(|_| decoder.u32().unwrap());
        assert_eq!(header, [xid, 1, 0, 0, 0, 0]);
        Some(R::decode(&mut decoder).unwrap())
    }

    async fn root(&self) -> NfsFh3 {
        let mount = (nfs::MOUNT_PROGRAM, MountProc3::Mnt as u32);
        match self.call(1, mount, Dirpath::from("/m")).await.expect("call must have a reply") {
            MountRes::Ok(mount) => mount.fhandle,
            MountRes::Fail(status) => panic!("{status:?}"),
        }
    }

    async fn create(&self, xid: u32, dir: &NfsFh3, name: &str) -> Option<<Create as Procedure3>::Res> {
        let how = CreateHow3::Guarded(Sattr3 { mode: Some(0o644), ..Default::default() });
        let args = CreateArgs { what: Diropargs3 { dir: dir.clone(), name: name.into() }, how };
        self.call(xid, (nfs::NFS_PROGRAM, Proc3::Create as u32), args).await
    }

    async fn close(self) {
        self.transport.close();
        self.driver.await.unwrap();
    }
}

#[tokio::test]
async fn a_call_outlives_its_connection_and_releases_everything_when_it_completes() {
    let mut served = serve();
    let fs = served.fs.clone();
    let first = Arc::new(Caller::connect(served.address).await);
    let serving = served.connections.recv().await.unwrap();
    let root = first.root().await;
    fs.0.hold(true);
    let calling = {
        let (first, root) = (first.clone(), root.clone());
        tokio::spawn(async move { first.create(7, &root, "f").await.is_some() })
    };
    fs.0.await_held(1).await;
    calling.abort();
    let _ = calling.await;
    Arc::into_inner(first).expect("client must have one owner").close().await;

    // The call is in flight and holds its permit.
    let second = Caller::connect(served.address).await;
    let (status, _) = second.create(8, &root, "g").await.unwrap().into_result().unwrap_err();
    assert_eq!((status, fs.0.executed("create")), (Nfsstat3::Jukebox, 1));
    assert_eq!(fs.0.in_flight(), 1);

    // When it completes, the connection ends and releases everything.
    fs.0.complete(1);
    serving.await.expect("connection must end");
    assert_eq!(fs.0.in_flight(), 0);
    fs.0.hold(false);
    second.create(9, &root, "g").await.unwrap().into_result().expect("permit must be free");
    // A client that retransmits gets the reply of the call whose connection was lost.
    second.create(7, &root, "f").await.unwrap().into_result().expect("call must be executed once");
    assert_eq!(fs.0.executed("create"), 2);
    second.close().await;
}
