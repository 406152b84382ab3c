//! Callbacks of NFSv4.0 with RPCSEC_GSS (RFC 7530 §3.3.3): the server initiates a context for the principal of the client.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use bytes::Bytes;
use gss::{GssClient, GssLimits, GssServer, Service, pseudo_flavor};
use nfs::{
    NFS_PROGRAM,
    v4::{
        callback::{CbArgop4, CbOpnum4},
        compound::{CompoundArgs, CompoundRes},
        *,
    },
};
use rpc::{
    Client, ClientOptions, Credential, Identity, ReplyPlan, Server, TcpKind, TcpOptions, TransportKind, rpcbind,
    security::Principal,
};
use testkit::{
    process::serve,
    toy::{ToyAcceptor, ToyInitiator},
    world::{PRINCIPAL, SECRET, SERVER, SERVER_PRINCIPAL, World},
};
use tokio::task::JoinSet;

use super::{
    KERBEROS,
    back::{Back, CB_PROGRAM},
    setup,
};

const PROTECTIONS: [Service; 3] = [Service::None, Service::Integrity, Service::Privacy];
/// The principal of a client's host.
const HOST: &str = "host/client@TOY";

/// A client of 4.0 that listens for callbacks by RPCSEC_GSS alone, with one owner of opens.
struct Client40 {
    rpc: Client,
    back: Arc<Back>,
    id: Clientid4,
    seqid: u32,
    _listening: JoinSet<()>,
}

fn credential(user: &'static str, protection: Service) -> Credential {
    Credential::Flavor(GssClient::new(Arc::new(ToyInitiator::new(user, SECRET)), protection))
}

impl Client40 {
    async fn new(world: &World, number: u8, user: &'static str, protection: Service) -> Self {
        let kind: Arc<dyn TransportKind> =
            Arc::new(TcpKind::simulated(world.host(number), TcpOptions::default(), buf::Pool::default()));
        let back = Arc::new(Back::default());
        let acceptor = ToyAcceptor { secret: SECRET, lifetime: None, faults: Arc::default() };
        let flavor = GssServer::new(acceptor, GssLimits::default());
        let callbacks = Server::builder().shared(back.clone()).flavor(flavor).build();
        let listener = kind.listen(SocketAddr::new([127, 0, 1, number].into(), 0)).unwrap();
        let location = rpcbind::to_universal(listener.local_addr());
        let mut listening = JoinSet::new();
        listening.spawn(serve(listener, callbacks));
        let options =
            ClientOptions { credential: credential(user, protection), ..ClientOptions::new(NFS_PROGRAM, VERSION) };
        let rpc = Client::connect(kind, SERVER, options).await.unwrap();
        let mut client = Self { rpc, back, id: Clientid4(0), seqid: 0, _listening: listening };
        let introduce = Argop4::SetClientId(Box::new(SetClientIdArgs {
            client: NfsClientId4 { verifier: [number; 8], id: format!("client {number}").as_str().into() },
            callback: CbClient4 {
                cb_program: CB_PROGRAM,
                cb_location: Netaddr4 { netid: "tcp".into(), addr: location.as_str().into() },
            },
            callback_ident: 7,
        }));
        let Some(Resop4::SetClientId(SetClientIdRes::Ok(ok))) = client.ok([introduce]).await.pop() else {
            panic!("SETCLIENTID")
        };
        let SetClientIdOk { clientid, setclientid_confirm } = ok;
        client.ok([Argop4::SetClientIdConfirm(SetClientIdConfirmArgs { clientid, setclientid_confirm })]).await;
        client.id = clientid;
        // The first open of an owner is confirmed, and comes without a delegation.
        let (opened, fh) = client.open("first").await;
        let confirm = OpenConfirmArgs { open_stateid: opened.stateid, seqid: client.next() };
        let confirmed = client.ok([put(&fh), Argop4::OpenConfirm(confirm)]).await.pop();
        let Some(Resop4::OpenConfirm(Res4::Ok(open_stateid))) = confirmed else { panic!("{confirmed:?}") };
        client.close(&fh, open_stateid).await;
        client
    }

    async fn ok(&self, operations: impl IntoIterator<Item = Argop4>) -> Vec<Resop4> {
        self.ok_by(&self.rpc, operations).await
    }

    async fn ok_by(&self, rpc: &Client, operations: impl IntoIterator<Item = Argop4>) -> Vec<Resop4> {
        let argarray = operations.into_iter().collect();
        let args = CompoundArgs { tag: "".into(), minorversion: 0, argarray };
        let plan = ReplyPlan { inline_max: 64 << 10, ..ReplyPlan::default() };
        let answer = rpc.call::<CompoundRes>(PROC_COMPOUND, &args, plan, Default::default()).await.unwrap();
        assert_eq!(answer.results.status, Nfsstat4::Ok, "{:?}", answer.results);
        answer.results.resarray
    }

    fn next(&mut self) -> Seqid4 {
        self.seqid += 1;
        Seqid4(self.seqid)
    }

    /// Opens a file of the export to read.
    async fn open(&mut self, name: &str) -> (OpenOk, NfsFh4) {
        self.open_by(&self.rpc.clone(), name).await
    }

    async fn open_by(&mut self, rpc: &Client, name: &str) -> (OpenOk, NfsFh4) {
        let open = Argop4::Open(Box::new(OpenArgs {
            seqid: self.next(),
            share_access: OPEN4_SHARE_ACCESS_READ,
            share_deny: OPEN4_SHARE_DENY_NONE,
            owner: StateOwner4 { clientid: self.id, owner: "owner".into() },
            openhow: Openflag4::NoCreate,
            claim: OpenClaim4::Null(name.into()),
        }));
        let export = Argop4::Lookup(LookupArgs { objname: "world".into() });
        let mut results = self.ok_by(rpc, [Argop4::PutRootFh, export, open, Argop4::GetFh]).await;
        let Some(Resop4::GetFh(Res4::Ok(fh))) = results.pop() else { panic!("GETFH") };
        let Some(Resop4::Open(Res4::Ok(opened))) = results.pop() else { panic!("OPEN") };
        (*opened, fh)
    }

    async fn close(&mut self, fh: &NfsFh4, open_stateid: Stateid4) {
        let seqid = self.next();
        self.ok([put(fh), Argop4::Close(CloseArgs { seqid, open_stateid })]).await;
    }

    /// Opens and closes a file some times, longer than the server needs for a probe. Returns the delegation if one is granted.
    async fn delegated(&mut self, rpc: &Client, name: &str) -> Option<(Stateid4, NfsFh4)> {
        for _ in 0..50 {
            let (opened, fh) = self.open_by(rpc, name).await;
            self.close(&fh, opened.stateid).await;
            if let OpenDelegation4::Read(read) = opened.delegation {
                return Some((read.stateid, fh));
            }
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        None
    }
}

fn put(object: &NfsFh4) -> Argop4 {
    Argop4::PutFh(PutFhArgs { object: object.clone() })
}

/// Runs a test in a world whose export has the files `first` and `f`, with a client of 4.1 that can write them.
fn run<F: Future<Output = ()>>(test: impl FnOnce(World, client::Mount) -> F) {
    setup(1, &KERBEROS).run(|world| async move {
        let other = world.client(1, "&sec=krb5i&vers=4.1&proto=tcp&timeo=36000").await;
        for name in ["first", "f"] {
            other.write(format!("/{name}"), &b"old"[..]).await.unwrap();
            other.chmod(format!("/{name}"), 0o644).await.unwrap();
        }
        // The creator has closed the files by then.
        tokio::time::sleep(Duration::from_secs(10)).await;
        test(world, other).await;
    });
}

/// The callbacks have the flavour with which the client has introduced itself, and prove who the server is.
#[test]
fn delegations_of_4_0_are_recalled_with_kerberos() {
    for protection in PROTECTIONS {
        run(|world, other| async move {
            let mut client = Client40::new(&world, 2, HOST, protection).await;
            let rpc = client.rpc.clone();
            let (stateid, fh) =
                client.delegated(&rpc, "f").await.expect("a service that is reached must get a delegation");
            let writing = tokio::spawn(async move { other.write("/f", &b"new"[..]).await });
            let received = client.back.receive(CbOpnum4::Recall).await;
            let CbArgop4::Recall(recall) = &received.operation else { panic!("{received:?}") };
            assert_eq!((recall.stateid, &recall.fh, received.ident), (stateid, &fh, 7));
            let name = Bytes::from_static(SERVER_PRINCIPAL.as_bytes());
            let server = Principal { name, pseudo_flavor: pseudo_flavor(protection) };
            assert_eq!(received.caller, Identity::Principal(server));
            client.ok([put(&fh), Argop4::DelegReturn(DelegReturnArgs { deleg_stateid: stateid })]).await;
            writing.await.unwrap().unwrap();
        });
    }
}

/// A user has no key by which it could accept a context of the server.
#[test]
fn users_get_no_delegations_in_4_0() {
    run(|world, _other| async move {
        let mut client = Client40::new(&world, 2, PRINCIPAL, Service::Integrity).await;
        let rpc = client.rpc.clone();
        assert_eq!(client.delegated(&rpc, "f").await, None);
        assert!(client.back.received.lock().unwrap().is_empty());
    });
}

/// A recall has the file handle, so it must not be less protected than the call that gets the delegation.
#[test]
fn recalls_are_as_protected_as_the_open() {
    for (own, of_open, expected) in [
        (Service::Integrity, Service::Privacy, false),
        (Service::None, Service::Integrity, false),
        (Service::Privacy, Service::Integrity, true),
    ] {
        run(|world, _other| async move {
            let mut client = Client40::new(&world, 2, HOST, own).await;
            let rpc = client.rpc.with_credential(&credential(HOST, of_open));
            assert_eq!(client.delegated(&rpc, "f").await.is_some(), expected, "{own:?}, OPEN with {of_open:?}");
        });
    }
}
