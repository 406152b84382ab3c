//! Callbacks from a server to its clients, over TCP connections that the clients have made.

use std::{
    ops::RangeInclusive,
    sync::{Arc, Mutex as StdMutex, atomic::Ordering::SeqCst},
    time::Duration,
};

use crate::common::back::{Back, CB_PROGRAM, Received};
use crate::common::remote::network;

use nfs::v4::{
    callback::{CbArgop4, CbRecallArgs, CbResop4},
    *,
};
use parking_lot::Mutex;
use rpc::{
    Answering, AuthSys, Call, Client, ConnectionId, Credential, Identity, Procedure, Reverse, Service, TcpKind,
    TcpOptions, TransportKind, Xprtsec,
};
use server::v4::{
    callback::{CallbackError, Callbacks},
    state::{
        State, StateOptions,
        client::Origin,
        ids::Principal,
        session::{ChannelLimits, Connection},
        transitions::back::NoPath,
    },
};
use testkit::process;
use tokio::{task::JoinSet, time::Instant};
use xdr::Array;

/// The server side: it registers its connections and only has the NULL procedure.
#[derive(Default)]
struct Host {
    callbacks: Callbacks,
    connections: StdMutex<Vec<ConnectionId>>,
}

impl Service for Host {
    fn program(&self) -> u32 {
        nfs::NFS_PROGRAM
    }
    fn versions(&self) -> RangeInclusive<u32> {
        4..=4
    }
    fn procedure(&self, _: u32, procedure: u32) -> Option<Procedure> {
        (procedure == 0).then_some(Procedure { name: "NULL", idempotent: true })
    }
    fn call<'a>(&'a self, call: Call<'a>) -> Answering<'a> {
        Answering::Pending(Box::pin(async move { Ok(call.reply(&())) }))
    }
    fn connected(&self, peer: &Reverse) {
        self.callbacks.connected(peer);
        self.connections.lock().unwrap().push(peer.connection());
    }
    fn disconnected(&self, connection: ConnectionId) {
        self.callbacks.disconnected(connection);
    }
}

struct World {
    host: Arc<Host>,
    back: Arc<Back>,
    state: Mutex<State<(), u32>>,
    client: Clientid4,
    session: Sessionid4,
    _process: JoinSet<()>,
    _clients: Vec<Client>,
}

fn channel() -> ChannelAttrs4 {
    ChannelAttrs4 {
        headerpadsize: 0,
        maxrequestsize: 4096,
        maxresponsesize: 4096,
        maxresponsesize_cached: 0,
        maxoperations: 2,
        maxrequests: 2,
        rdma_ird: None,
    }
}

impl World {
    /// Creates a client with `connections` connections, all bound to the backchannel of its session.
    async fn new(connections: usize) -> Self {
        let (host, back) = (Arc::new(Host::default()), Arc::new(Back::default()));
        let kind: Arc<dyn TransportKind> =
            Arc::new(TcpKind::simulated(network(), TcpOptions::default(), buf::Pool::default()));
        let any = "127.0.0.1:0".parse().unwrap();
        let (address, process) = process::process(&*kind, any, vec![host.clone()]);
        let mut clients = Vec::new();
        for _ in 0..connections {
            let client = back.connect(&kind, address, Credential::None).await;
            let _: rpc::Answer<()> = client.call(0, &(), Default::default(), Default::default()).await.unwrap();
            clients.push(client);
        }
        let ids = host.connections.lock().unwrap().clone();
        let limits = ChannelLimits {
            request_max: 4096,
            response_max: 4096,
            response_cached_max: 4096,
            operations_max: 8,
            slots_max: 8,
        };
        let options = StateOptions {
            server_owner: ServerOwner4 { minor_id: 0, major_id: "server".into() },
            server_scope: "scope".into(),
            implementation: None,
            flags: EXCHGID4_FLAG_USE_NON_PNFS,
            lease: Duration::from_secs(90),
            channel: limits,
            clients_max: 4,
            client_sessions_max: 4,
            sessions_max: 32,
            replies_max: 4 << 20,
            client_stateids_max: 4,
            stateids_max: 64,
            owners_max: 64,
            delegations_max: 4,
            layouts_max: 8,
            slots_max: 64,
        };
        let mut state = State::new(options, 1, [7; 32]);
        let exchange = ExchangeIdArgs {
            clientowner: ClientOwner4 { verifier: [1; 8], ownerid: "client".into() },
            flags: 0,
            state_protect: StateProtect4A::None,
            client_impl_id: None,
        };
        let now = Instant::now().into_std();
        let peer = std::net::Ipv4Addr::LOCALHOST.into();
        let (principal, tls, callback_flavor) = (&Principal::None, Xprtsec::None, None);
        let origin = Origin { principal, has_integrity: true, callback_flavor, peer, admitted: true, tls };
        let clientid = state.exchange_id(now, 2, &exchange, origin).unwrap().clientid;
        let parms =
            AuthsysParms { stamp: 5, machinename: "venus".into(), uid: 1001, gid: 1002, gids: Default::default() };
        let create = CreateSessionArgs {
            clientid,
            sequence: Sequenceid4(1),
            flags: CREATE_SESSION4_FLAG_CONN_BACK_CHAN,
            fore_chan_attrs: channel(),
            back_chan_attrs: channel(),
            cb_program: CB_PROGRAM,
            sec_parms: Array(vec![CallbackSecParms4::Sys(parms)]),
        };
        let bound = |id| Connection { id, duplex: true, tls: Xprtsec::None };
        let session = state.create_session(now, &create, &Principal::None, bound(ids[0])).unwrap().sessionid;
        for id in &ids[1..] {
            let dir = ChannelDirFromClient4::ForeOrBoth;
            let args = BindConnToSessionArgs { sessid: session, dir, use_conn_in_rdma_mode: false };
            state.bind_conn_to_session(&args, &Principal::None, bound(*id)).unwrap();
        }
        Self { host, back, state: Mutex::new(state), client: clientid, session, _process: process, _clients: clients }
    }

    async fn recall(&self) -> Result<CbResop4, CallbackError> {
        self.host.callbacks.call(&self.state, self.client, &recall()).await
    }

    fn received(&self) -> Vec<(u32, u32)> {
        let received = self.back.received.lock().unwrap();
        let sequences = received.iter().filter_map(|Received { sequence, .. }| sequence.as_ref());
        sequences.map(|sequence| (sequence.slotid.0, sequence.sequenceid.0)).collect()
    }
}

fn recall() -> CbArgop4 {
    CbArgop4::Recall(CbRecallArgs { stateid: Stateid4 { seqid: 1, other: [3; 12] }, truncate: false, fh: "fh".into() })
}

#[simnet::test]
async fn callback_uses_the_session_and_credentials_of_the_client() {
    let world = World::new(1).await;
    for _ in 0..3 {
        //= rfc8881-2.10.3-1
        assert_eq!(world.recall().await.unwrap(), CbResop4::Recall(Res4::Ok(())));
    }
    //= rfc8881-18.36.4-4 rfc8881-2.10.6.1-1 rfc8881-2.10.6.1-2
    assert_eq!(world.received(), [(0, 1), (0, 2), (0, 3)]);
    let Received { sequence, operation, minor, caller, .. } = world.back.received.lock().unwrap()[0].clone();
    //= rfc8881-18.36.3-17 rfc8881-18.36.3-18
    assert_eq!((sequence.unwrap().sessionid, operation, minor), (world.session, recall(), 2));
    let Identity::Sys(AuthSys { stamp: 5, uid: 1001, gid: 1002, .. }) = caller else { panic!("{caller:?}") };
    let (one, other) = tokio::join!(world.recall(), world.recall());
    assert!(one.is_ok() && other.is_ok());
    let mut both = world.received()[3..].to_vec();
    both.sort();
    assert_eq!(both, [(0, 4), (1, 1)], "concurrent callbacks use two slots");
}

#[simnet::test]
async fn callback_on_a_lost_connection_is_sent_again_on_another() {
    let world = World::new(2).await;
    world.back.drop_next.store(true, SeqCst);
    assert_eq!(world.recall().await.unwrap(), CbResop4::Recall(Res4::Ok(())));
    //= rfc8881-18.46.3-9 rfc8881-2.10.13.2.4-1
    assert_eq!(world.received(), [(0, 1), (0, 1)], "the retry must have the same slot and sequence ID");
    assert!(world.state.lock().can_be_called(world.client));
    assert!(world.recall().await.is_ok());
    assert_eq!(world.received()[2], (0, 2));
}

#[simnet::test]
async fn callback_without_another_connection_loses_its_slot() {
    let world = World::new(1).await;
    world.back.drop_next.store(true, SeqCst);
    let error = world.recall().await.unwrap_err();
    assert!(matches!(error, CallbackError::Failed(_)), "{error}");
    assert!(!world.state.lock().can_be_called(world.client));
    let lost = *world.host.connections.lock().unwrap().first().unwrap();
    world.state.lock().disconnect(lost);
    let error = world.recall().await.unwrap_err();
    assert!(matches!(error, CallbackError::NoPath(NoPath::Down)), "{error}");
}

#[simnet::test]
async fn sequence_id_of_a_rejected_callback_is_reused_unless_misordered() {
    let world = World::new(1).await;
    *world.back.refuse.lock().unwrap() = Some(Nfsstat4::Delay);
    assert!(world.recall().await.is_ok(), "the callback is sent again");
    assert_eq!(world.received(), [(0, 1), (0, 1)]);
    *world.back.refuse.lock().unwrap() = Some(Nfsstat4::SeqMisordered);
    let error = world.recall().await.unwrap_err();
    assert!(matches!(error, CallbackError::Sequence(Nfsstat4::SeqMisordered)), "{error}");
    assert!(world.recall().await.is_ok());
    assert_eq!(world.received()[2..], [(0, 2), (1, 1)], "the misordered slot is lost");
}
