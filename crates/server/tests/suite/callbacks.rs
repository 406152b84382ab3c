//! Calls of a server to its clients, over TCP connections that these have made.

use std::{
    ops::RangeInclusive,
    sync::{Arc, Mutex as StdMutex, atomic::Ordering::SeqCst},
    time::{Duration, Instant},
};

use crate::common::back::{Back, CB_PROGRAM, Heard};

use nfs::v4::{
    callback::{CbArgop4, CbRecallArgs, CbResop4},
    *,
};
use parking_lot::Mutex;
use rpc::{
    Answering, AuthSys, Call, Client, ConnectionId, Credential, Identity, Procedure, Reverse, Server, Service, TcpKind,
    TransportKind, WorkerOptions, Workers,
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
use xdr::Array;

/// The server's side: it knows its connections, and has no procedures but NULL.
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
    _workers: Workers,
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
    /// A client with `connections` connections, all bound to the backchannel of its session.
    async fn new(connections: usize) -> Self {
        let (host, back) = (Arc::new(Host::default()), Arc::new(Back::default()));
        let kind: Arc<dyn TransportKind> = Arc::new(TcpKind::default());
        let workers = Workers::new(WorkerOptions { threads: 1, ..WorkerOptions::default() }).unwrap();
        let listener = kind.listen("127.0.0.1:0".parse().unwrap()).unwrap();
        let address = listener.local_addr();
        workers.listen(Server::builder().shared(host.clone()).build(), listener);
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
            slots_max: 64,
        };
        let mut state = State::new(options, 1, [7; 32]);
        let exchange = ExchangeIdArgs {
            clientowner: ClientOwner4 { verifier: [1; 8], ownerid: "client".into() },
            flags: 0,
            state_protect: StateProtect4A::None,
            client_impl_id: None,
        };
        let now = Instant::now();
        let peer = std::net::Ipv4Addr::LOCALHOST.into();
        let origin = Origin { principal: &Principal::None, peer, admitted: true };
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
        let bound = |id| Connection { id, duplex: true };
        let session = state.create_session(now, &create, &Principal::None, bound(ids[0])).unwrap().sessionid;
        for id in &ids[1..] {
            let dir = ChannelDirFromClient4::ForeOrBoth;
            let args = BindConnToSessionArgs { sessid: session, dir, use_conn_in_rdma_mode: false };
            state.bind_conn_to_session(&args, &Principal::None, bound(*id)).unwrap();
        }
        Self { host, back, state: Mutex::new(state), client: clientid, session, _workers: workers, _clients: clients }
    }

    async fn recall(&self) -> Result<CbResop4, CallbackError> {
        self.host.callbacks.call(&self.state, self.client, &recall()).await
    }

    fn heard(&self) -> Vec<(u32, u32)> {
        let heard = self.back.heard.lock().unwrap();
        let sequences = heard.iter().filter_map(|Heard { sequence, .. }| sequence.as_ref());
        sequences.map(|sequence| (sequence.slotid.0, sequence.sequenceid.0)).collect()
    }
}

fn recall() -> CbArgop4 {
    CbArgop4::Recall(CbRecallArgs { stateid: Stateid4 { seqid: 1, other: [3; 12] }, truncate: false, fh: "fh".into() })
}

#[tokio::test]
async fn a_client_is_called_by_its_session_and_as_it_has_asked_to_be() {
    let world = World::new(1).await;
    for _ in 0..3 {
        assert_eq!(world.recall().await.unwrap(), CbResop4::Recall(Res4::Ok(())));
    }
    assert_eq!(world.heard(), [(0, 1), (0, 2), (0, 3)]);
    let Heard { sequence, operation, minor, caller, .. } = world.back.heard.lock().unwrap()[0].clone();
    assert_eq!((sequence.unwrap().sessionid, operation, minor), (world.session, recall(), 2));
    let Identity::Sys(AuthSys { stamp: 5, uid: 1001, gid: 1002, .. }) = caller else { panic!("{caller:?}") };
    let (one, other) = tokio::join!(world.recall(), world.recall());
    assert!(one.is_ok() && other.is_ok());
    let mut both = world.heard()[3..].to_vec();
    both.sort();
    assert_eq!(both, [(0, 4), (1, 1)], "two at a time take two slots");
}

#[tokio::test]
async fn what_a_connection_takes_with_it_is_sent_again_by_another_as_it_was() {
    let world = World::new(2).await;
    world.back.drop_next.store(true, SeqCst);
    assert_eq!(world.recall().await.unwrap(), CbResop4::Recall(Res4::Ok(())));
    assert_eq!(world.heard(), [(0, 1), (0, 1)], "the client can tell that it is the same");
    assert!(world.state.lock().can_be_called(world.client));
    assert!(world.recall().await.is_ok());
    assert_eq!(world.heard()[2], (0, 2));
}

#[tokio::test]
async fn without_another_connection_the_slot_is_lost_and_the_client_is_one_that_cannot_be_called() {
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

#[tokio::test]
async fn a_refused_sequence_is_used_again_unless_the_client_counts_otherwise() {
    let world = World::new(1).await;
    *world.back.refuse.lock().unwrap() = Some(Nfsstat4::Delay);
    assert!(world.recall().await.is_ok(), "it comes again");
    assert_eq!(world.heard(), [(0, 1), (0, 1)]);
    *world.back.refuse.lock().unwrap() = Some(Nfsstat4::SeqMisordered);
    let error = world.recall().await.unwrap_err();
    assert!(matches!(error, CallbackError::Sequence(Nfsstat4::SeqMisordered)), "{error}");
    assert!(world.recall().await.is_ok());
    assert_eq!(world.heard()[2..], [(0, 2), (1, 1)], "that slot is not used any more");
}
