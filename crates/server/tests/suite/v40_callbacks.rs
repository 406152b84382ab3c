//! Callbacks and delegations of NFSv4.0, over connections that the server makes to the client's callback address.

use crate::common::v4;
use std::{net::SocketAddr, sync::Arc, time::Duration};

use crate::common::auth_sys;
use crate::common::back::{Back, CB_PROGRAM};
use crate::common::remote::Served;
use crate::common::v4::*;
use nfs::v4::{
    callback::{CbArgop4, CbOpnum4, CbRecallArgs},
    compound::{CompoundArgs, CompoundRes},
    *,
};
use rpc::{Client, ClientOptions, ConnectionTls, ReplyPlan, rpcbind};
use testkit::{paper::Paper, process};
use tokio::task::JoinSet;

/// A client of 4.0 with a callback listener and one open-owner.
struct Client40 {
    rpc: Client,
    back: Arc<Back>,
    listening: JoinSet<()>,
    id: Clientid4,
    seqid: u32,
}

const IDENT: u32 = 77;

impl Client40 {
    /// Creates a client whose callback address is a port of `host`. It calls from 127.0.0.1.
    async fn new(served: &Served, name: &str, host: &str) -> Self {
        let back = Arc::new(Back::default());
        let any = SocketAddr::new(host.parse().unwrap(), 0);
        let (announced, listening) = process::process(&*served.kind, any, vec![back.clone()]);
        let options = ClientOptions {
            credential: rpc::Credential::Sys(auth_sys(0, 0)),
            ..ClientOptions::new(nfs::NFS_PROGRAM, VERSION)
        };
        let rpc = Client::connect(served.kind.clone(), served.address, options).await.unwrap();
        let mut client = Self { rpc, back, listening, id: Clientid4(0), seqid: 0 };
        let introduce = Argop4::SetClientId(Box::new(SetClientIdArgs {
            client: NfsClientId4 { verifier: [1; 8], id: name.into() },
            callback: CbClient4 {
                cb_program: CB_PROGRAM,
                cb_location: Netaddr4 { netid: "tcp".into(), addr: rpcbind::to_universal(announced).as_str().into() },
            },
            callback_ident: IDENT,
        }));
        let Resop4::SetClientId(SetClientIdRes::Ok(ok)) = client.ok([introduce]).await else { panic!("SETCLIENTID") };
        let SetClientIdOk { clientid, setclientid_confirm } = ok;
        client.ok([Argop4::SetClientIdConfirm(SetClientIdConfirmArgs { clientid, setclientid_confirm })]).await;
        client.id = clientid;
        client
    }

    async fn call(&self, operations: impl IntoIterator<Item = Argop4>) -> (Nfsstat4, Vec<Resop4>) {
        let argarray = operations.into_iter().collect();
        let args = CompoundArgs { tag: "".into(), minorversion: 0, argarray };
        let plan = ReplyPlan { inline_max: 64 << 10, ..ReplyPlan::default() };
        let answer = self.rpc.call::<CompoundRes>(PROC_COMPOUND, &args, plan, Default::default()).await.unwrap();
        (answer.results.status, answer.results.resarray)
    }

    async fn ok(&self, operations: impl IntoIterator<Item = Argop4>) -> Resop4 {
        let (status, mut results) = self.call(operations).await;
        assert_eq!(status, Nfsstat4::Ok, "{results:?}");
        results.pop().unwrap()
    }

    fn next(&mut self) -> Seqid4 {
        self.seqid += 1;
        Seqid4(self.seqid)
    }

    fn open_op(&mut self, name: &str, access: u32, claim: Option<OpenClaim4>) -> Argop4 {
        let Argop4::Open(args) = v4::open(name, Open { access, create: claim.is_none(), ..Open::default() }) else {
            unreachable!()
        };
        let owner = StateOwner4 { clientid: self.id, ..args.owner.clone() };
        let claim = claim.unwrap_or(args.claim.clone());
        Argop4::Open(Box::new(OpenArgs { seqid: self.next(), owner, claim, ..*args }))
    }

    async fn open(&mut self, name: &str, access: u32, claim: Option<OpenClaim4>) -> (OpenOk, NfsFh4) {
        let open = self.open_op(name, access, claim);
        let (status, mut results) = self.call(at("/m").into_iter().chain([open, Argop4::GetFh])).await;
        assert_eq!(status, Nfsstat4::Ok, "{results:?}");
        let Some(Resop4::GetFh(Res4::Ok(handle))) = results.pop() else { panic!("GETFH") };
        let Some(Resop4::Open(Res4::Ok(opened))) = results.pop() else { panic!("OPEN") };
        (*opened, handle)
    }

    async fn close(&mut self, handle: &NfsFh4, open_stateid: Stateid4) {
        let seqid = self.next();
        self.ok([putfh(handle), Argop4::Close(CloseArgs { seqid, open_stateid })]).await;
    }

    /// Opens a file for the first time and confirms the owner.
    async fn introduce_owner(&mut self) {
        let (opened, handle) = self.open("first", OPEN4_SHARE_ACCESS_READ, None).await;
        assert_ne!(opened.rflags & OPEN4_RESULT_CONFIRM, 0);
        assert_eq!(opened.delegation, OpenDelegation4::None, "an unconfirmed open must not come with a delegation");
        let args = OpenConfirmArgs { open_stateid: opened.stateid, seqid: self.next() };
        let Resop4::OpenConfirm(Res4::Ok(open)) = self.ok([putfh(&handle), Argop4::OpenConfirm(args)]).await else {
            panic!("OPEN_CONFIRM")
        };
        self.close(&handle, open).await;
    }

    /// Opens a file to read until a delegation is granted. The server first has to probe the callback address.
    async fn delegated(&mut self, name: &str) -> (Stateid4, NfsFh4) {
        loop {
            let (opened, handle) = self.open(name, OPEN4_SHARE_ACCESS_READ, None).await;
            self.close(&handle, opened.stateid).await;
            if let OpenDelegation4::Read(read) = opened.delegation {
                return (read.stateid, handle);
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    async fn renew(&self) -> Nfsstat4 {
        self.call([Argop4::Renew(ClientIdArgs { clientid: self.id })]).await.0
    }
}

async fn serve() -> Served {
    let served = Served::with_background_work().await;
    served.nfs.call_back_by(served.kind.clone());
    served
}

#[simnet::test]
async fn delegation_is_recalled_at_the_callback_address() {
    let served = serve().await;
    let (mut a, mut b) = (Client40::new(&served, "a", "127.0.0.1").await, served.client("b").await);
    a.introduce_owner().await;
    let (stateid, handle) = a.delegated("f").await;
    assert_eq!(b.open("f", OPEN4_SHARE_ACCESS_BOTH).await.unwrap_err(), Nfsstat4::Delay);
    let recall = CbArgop4::Recall(CbRecallArgs { stateid, truncate: false, fh: handle.clone() });
    let received = a.back.receive(CbOpnum4::Recall).await;
    assert_eq!((received.operation, received.minor, received.ident), (recall, 0, IDENT));
    assert!(received.sequence.is_none() && received.caller != rpc::Identity::None, "Linux clients require AUTH_SYS");
    assert!(received.from.port() >= 1024, "the source port must be unprivileged: {}", received.from);
    // The holder can open by its delegation, also during the recall.
    let claim = OpenClaim4::DelegateCur { delegate_stateid: stateid, file: "f".into() };
    let (opened, _) = a.open("f", OPEN4_SHARE_ACCESS_READ, Some(claim)).await;
    assert_eq!(opened.delegation, OpenDelegation4::None);
    a.ok([putfh(&handle), read(stateid, 0, 10)]).await;
    a.close(&handle, opened.stateid).await;
    a.ok([putfh(&handle), Argop4::DelegReturn(DelegReturnArgs { deleg_stateid: stateid })]).await;
    b.open("f", OPEN4_SHARE_ACCESS_BOTH).await.unwrap();
    assert_eq!(a.renew().await, Nfsstat4::Ok);
    // Write delegations are not granted in 4.0, and DELEGPURGE is not supported.
    let (opened, _) = a.open("g", OPEN4_SHARE_ACCESS_BOTH, None).await;
    assert_eq!(opened.delegation, OpenDelegation4::None);
    assert_eq!(a.call([Argop4::DelegPurge(ClientIdArgs { clientid: a.id })]).await.0, Nfsstat4::NotSupp);
}

#[simnet::test]
async fn renew_reports_a_lost_callback_path() {
    let served = serve().await;
    let (mut a, mut b) = (Client40::new(&served, "a", "127.0.0.1").await, served.client("b").await);
    a.introduce_owner().await;
    a.delegated("f").await;
    a.listening.shutdown().await;
    assert_eq!(a.renew().await, Nfsstat4::Ok, "no callback was tried yet");
    assert_eq!(b.open("f", OPEN4_SHARE_ACCESS_BOTH).await.unwrap_err(), Nfsstat4::Delay);
    while a.renew().await != Nfsstat4::CbPathDown {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let (opened, _) = a.open("g", OPEN4_SHARE_ACCESS_READ, None).await;
    assert_eq!(opened.delegation, OpenDelegation4::None);
}

#[simnet::test]
async fn callback_address_of_another_host_is_not_used() {
    let served = serve().await;
    let mut a = Client40::new(&served, "a", "127.0.0.2").await;
    a.introduce_owner().await;
    let mut b = Client40::new(&served, "b", "127.0.0.1").await;
    b.introduce_owner().await;
    b.delegated("f").await;
    for _ in 0..3 {
        let (opened, handle) = a.open("f", OPEN4_SHARE_ACCESS_READ, None).await;
        assert_eq!(opened.delegation, OpenDelegation4::None, "b was probed, and a must not be probed");
        a.close(&handle, opened.stateid).await;
        tokio::time::sleep(Duration::from_secs(10)).await;
    }
}

#[simnet::test]
async fn caller_over_tls_gets_no_delegation_that_would_be_recalled_in_clear() {
    let served = serve().await;
    let mut a = Client40::new(&served, "a", "127.0.0.1").await;
    a.introduce_owner().await;
    a.delegated("f").await;
    let mut by = |tls, name| {
        let mut caller = Client4::stranger(&served.nfs, 0);
        caller.paper = Paper::with_tls("tcp", 4 << 20, tls);
        let open = a.open_op(name, OPEN4_SHARE_ACCESS_READ, None);
        let results = caller.compound(at("/m").into_iter().chain([open]).collect());
        match results.resarray.into_iter().last() {
            Some(Resop4::Open(Res4::Ok(opened))) => opened.delegation,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(by(ConnectionTls::Tls, "g"), OpenDelegation4::None);
    assert!(matches!(by(ConnectionTls::None, "h"), OpenDelegation4::Read(_)));
}
