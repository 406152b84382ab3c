//! The server behind a TCP connection.

use std::{future::poll_fn, sync::Arc};

use crate::common::remote::network;
use crate::common::*;
use buf::{Buffer, Pool};
use nfs::{
    mount::{Dirpath, MountProc3, MountRes},
    v3::*,
};
use rpc::{CallHeader, OpaqueAuth, ReplyPlan, TcpKind, TcpOptions, Transport, TransportKind, Xid};
use server::{Export, ExportId, ExportOptions, Sec};
use testkit::process;
use tokio::task::JoinSet;
use xdr::{Decode, Decoder, Encode, Encoder};

/// A caller without credentials.
struct Caller {
    transport: Arc<dyn Transport>,
    xid: u32,
}

impl Caller {
    async fn call<R: Decode>(&mut self, program: u32, procedure: u32, args: impl Encode, sink: Option<Buffer>) -> R {
        self.xid += 1;
        let xid = Xid(self.xid);
        let (credential, verifier) = (OpaqueAuth::NONE, OpaqueAuth::NONE);
        let mut call = Encoder::default();
        CallHeader { xid, program, version: 3, procedure, credential, verifier }.encode(&mut call);
        args.encode(&mut call);
        let payload_max = sink.as_ref().map_or(0, |sink| sink.len());
        let plan = ReplyPlan { inline_max: 4096, payload_max, sink: sink.map(Into::into), locate: None };
        let reply = self.transport.clone().call(call.finish(), plan).await.expect("connection must stay open");
        let mut decoder = Decoder::new(&reply.message);
        let header: [u32; 6] = std::array::from_fn(|_| decoder.u32().unwrap());
        assert_eq!(header, [xid.0, 1, 0, 0, 0, 0]);
        R::decode(&mut decoder).unwrap()
    }

    async fn nfs<P: Procedure3>(&mut self, args: P::Args) -> P::Res {
        self.call(nfs::NFS_PROGRAM, P::NUMBER as u32, args, None).await
    }
}

#[simnet::test]
async fn one_megabyte_is_written_and_read_back() {
    let options = ExportOptions { sec: Sec::None.into(), ..Default::default() };
    let export = Export::new("/m", ExportId::unique(), memory(), options).unwrap();
    let cred = vfs::Cred::root();
    let root = vfs::Caller::blocking(&cred);
    let mode = vfs::SetAttr { mode: Some(0o777), ..Default::default() };
    export.vfs().setattr(&root, export.root(), &mode, None).unwrap();
    let nfs = server_of(export);
    let server = nfs.services().into_iter().fold(rpc::Server::builder(), rpc::ServerBuilder::shared).build();
    let kind: &dyn TransportKind = &TcpKind::simulated(network(), TcpOptions::default(), Pool::default());
    let listener = kind.listen("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = listener.local_addr();
    let mut tasks = JoinSet::new();
    tasks.spawn(process::serve(listener, server.clone()));

    let transport = kind.connect(address).await.unwrap();
    let driven = transport.clone();
    let driver = tokio::spawn(async move { poll_fn(|cx| driven.poll_recv(cx)).await.unwrap_err() });
    let mut caller = Caller { transport, xid: 0 };
    let mount = caller.call(nfs::MOUNT_PROGRAM, MountProc3::Mnt as u32, Dirpath::from("/m"), None).await;
    let MountRes::Ok(mount) = mount else { panic!("{mount:?}") };
    let root = mount.fhandle;
    let how = CreateHow3::Exclusive(*b"verifier");
    let made = caller.nfs::<Create>(CreateArgs { what: name_in(&root, "f"), how }).await.into_result().unwrap();
    let file = made.obj.unwrap();
    let content: Vec<u8> = (0..1 << 20).map(|i: u32| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let written = caller.nfs::<Write>(write_args(&file, 3, &content)).await.into_result().unwrap();
    assert_eq!(written.count, 1 << 20);
    let read = caller.nfs::<Read>(ReadArgs { file, offset: 3, count: 1 << 20 }).await.into_result().unwrap();
    assert_eq!(read.count, 1 << 20);
    assert!(read.data.0.to_bytes().unwrap() == content);

    caller.transport.close();
    driver.await.unwrap();

    let counted = server
        .stats()
        .iter()
        .map(|stats| (stats.name, stats.calls))
        .filter(|(_, calls)| *calls > 0)
        .collect::<Vec<_>>();
    assert_eq!(counted, [("READ", 1), ("WRITE", 1), ("CREATE", 1), ("MNT", 1)]);
}
