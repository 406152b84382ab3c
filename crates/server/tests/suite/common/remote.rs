//! A server over TCP in a simulation, and clients of version 4 that it can call back.
#![allow(dead_code)] // Each test file uses its part.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use nfs::v4::{
    callback::{CbArgop4, CbOpnum4},
    compound::{CompoundArgs, CompoundRes},
    *,
};
use rpc::{Client, ReplyPlan, TcpKind, TcpOptions, TransportKind};
use server::{Export, ExportId, ExportOptions, NfsServer, Squash, config::Settings};
use simnet::{Network, NetworkOptions};
use testkit::process;
use tokio::task::JoinSet;
use vfs::Vfs;
use xdr::Array;

use super::{
    auth_sys,
    back::{Back, CB_PROGRAM},
    memory, server_with,
    v4::*,
};

/// A server of one memory export `/m`. Its tasks end when it is dropped.
pub struct Served {
    pub nfs: NfsServer,
    pub network: Network,
    pub kind: Arc<dyn TransportKind>,
    pub address: SocketAddr,
    tasks: JoinSet<()>,
}

impl Served {
    pub fn new() -> Self {
        Self::with(Settings::default())
    }

    /// Creates a server with a long lease time, so that callbacks do not time out.
    pub async fn with_long_lease() -> Self {
        Self::with(Settings { lease: Duration::from_secs(3600), ..Settings::default() }).run_background_work().await
    }

    /// Creates a server that is a data server of pNFS.
    pub fn data_server() -> Self {
        Self::with(Settings { data_server: true, ..Settings::default() })
    }

    fn with(settings: Settings) -> Self {
        Self::of(memory(), settings)
    }

    /// Creates a server of this tree that runs its background work.
    pub async fn serving(fs: Arc<dyn Vfs>) -> Self {
        Self::of(fs, Settings::default()).run_background_work().await
    }

    fn of(fs: Arc<dyn Vfs>, settings: Settings) -> Self {
        let options = ExportOptions { squash: Squash::None, ..Default::default() };
        let export = Export::new("/m", ExportId::unique(), fs, options).unwrap();
        Self::around(server_with(export, settings))
    }

    /// Creates the network of a server.
    pub fn around(nfs: NfsServer) -> Self {
        let network = network();
        let kind = TcpKind::simulated(network.clone(), TcpOptions::default(), buf::Pool::default());
        let (address, tasks) = process::process(&kind, "127.0.0.1:0".parse().unwrap(), nfs.services());
        Self { nfs, network, kind: Arc::new(kind), address, tasks }
    }

    /// Creates a server that runs its background work.
    pub async fn with_background_work() -> Self {
        Self::new().run_background_work().await
    }

    pub async fn run_background_work(mut self) -> Self {
        self.tasks.spawn(self.nfs.upkeep());
        // The task must run once before it accepts background tasks.
        tokio::task::yield_now().await;
        self
    }

    pub async fn client(&self, name: &str) -> Remote {
        Remote::new(self, name, 1).await
    }
}

/// Creates the network of a test.
pub fn network() -> Network {
    Network::new(NetworkOptions { seed: simnet::seeds(1).start, ..NetworkOptions::default() })
}

/// A client with a connection.
pub struct Remote {
    pub rpc: Client,
    pub back: Arc<Back>,
    pub minor: u32,
    pub client: Clientid4,
    pub session: Sessionid4,
    pub sequence: u32,
}

impl Remote {
    pub async fn new(served: &Served, name: &str, minor: u32) -> Self {
        let back = Arc::new(Back::default());
        let rpc = back.connect(&served.kind, served.address, rpc::Credential::Sys(auth_sys(0, 0))).await;
        let (client, session) = (Clientid4(0), Sessionid4::default());
        let mut remote = Self { rpc, back, minor, client, session, sequence: 0 };
        let (_, exchanged) = remote.compound(vec![exchange_id(name)]).await;
        let [Resop4::ExchangeId(Res4::Ok(exchanged))] = &exchanged[..] else { panic!("{exchanged:?}") };
        remote.client = exchanged.clientid;
        let Argop4::CreateSession(create) = create_session(exchanged.clientid, exchanged.sequenceid, channel()) else {
            unreachable!()
        };
        let create = CreateSessionArgs {
            flags: CREATE_SESSION4_FLAG_CONN_BACK_CHAN,
            cb_program: CB_PROGRAM,
            sec_parms: Array(vec![CallbackSecParms4::None]),
            ..*create
        };
        let (_, created) = remote.compound(vec![Argop4::CreateSession(Box::new(create))]).await;
        let [Resop4::CreateSession(Res4::Ok(created))] = &created[..] else { panic!("{created:?}") };
        remote.session = created.sessionid;
        remote.call([Argop4::ReclaimComplete(ReclaimCompleteArgs { one_fs: false })]).await;
        remote
    }

    pub async fn compound(&self, argarray: Vec<Argop4>) -> (Nfsstat4, Vec<Resop4>) {
        let args = CompoundArgs { tag: "".into(), minorversion: self.minor, argarray };
        let plan = ReplyPlan { inline_max: 64 << 10, ..ReplyPlan::default() };
        let answer = self.rpc.call::<CompoundRes>(PROC_COMPOUND, &args, plan, Default::default()).await.unwrap();
        (answer.results.status, answer.results.resarray)
    }

    /// Returns the status, and the results after that of SEQUENCE.
    pub async fn call(&mut self, operations: impl IntoIterator<Item = Argop4>) -> (Nfsstat4, Vec<Resop4>) {
        self.sequence += 1;
        let sequence = Argop4::Sequence(SequenceArgs {
            sessionid: self.session,
            sequenceid: Sequenceid4(self.sequence),
            slotid: Slotid4(0),
            highest_slotid: Slotid4(0),
            cachethis: false,
        });
        let (status, mut results) = self.compound(std::iter::once(sequence).chain(operations).collect()).await;
        results.remove(0);
        (status, results)
    }

    /// Returns the last result. All results must be OK.
    pub async fn ok(&mut self, operations: impl IntoIterator<Item = Argop4>) -> Resop4 {
        let (status, mut results) = self.call(operations).await;
        assert_eq!(status, Nfsstat4::Ok, "{results:?}");
        results.pop().expect("there must be a result")
    }

    /// Opens a file of `/m`, and creates it if it does not exist. Returns the result of OPEN and the file handle.
    pub async fn open_as(&mut self, name: &str, how: Open) -> Result<(OpenOk, NfsFh4), Nfsstat4> {
        let (status, mut results) = self.call(at("/m").into_iter().chain([open(name, how), Argop4::GetFh])).await;
        if status != Nfsstat4::Ok {
            return Err(status);
        }
        let Some(Resop4::GetFh(Res4::Ok(handle))) = results.pop() else { panic!("GETFH") };
        let Some(Resop4::Open(Res4::Ok(opened))) = results.pop() else { panic!("OPEN") };
        Ok((*opened, handle))
    }

    /// Like [`open_as`](Self::open_as), with a fixed owner. Returns the open, the delegation and the file handle.
    pub async fn open(&mut self, name: &str, access: u32) -> Result<(Stateid4, OpenDelegation4, NfsFh4), Nfsstat4> {
        let (opened, handle) = self.open_as(name, Open { access, ..Open::default() }).await?;
        Ok((opened.stateid, opened.delegation, handle))
    }

    /// Opens a file to read and write, and gets a write delegation. Returns the open, the delegation and the file
    /// handle.
    pub async fn delegated(&mut self, name: &str) -> (Stateid4, Stateid4, NfsFh4) {
        let (open, delegation, handle) = self.open(name, OPEN4_SHARE_ACCESS_BOTH).await.unwrap();
        let OpenDelegation4::Write(OpenWriteDelegation4 { stateid, .. }) = delegation else { panic!("{delegation:?}") };
        (open, stateid, handle)
    }

    pub async fn return_delegation(&mut self, handle: &NfsFh4, deleg_stateid: Stateid4) -> Nfsstat4 {
        self.call([putfh(handle), Argop4::DelegReturn(DelegReturnArgs { deleg_stateid })]).await.0
    }

    /// Waits for CB_RECALL. Returns the delegation and the file handle.
    pub async fn recalled(&self) -> (Stateid4, NfsFh4) {
        let CbArgop4::Recall(recall) = self.back.receive_operation(CbOpnum4::Recall).await else {
            unreachable!("the operation must be CB_RECALL")
        };
        (recall.stateid, recall.fh)
    }
}
