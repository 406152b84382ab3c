//! Hostile clients: they cannot reach the state of others, get a bounded number of slots and sessions, and do not
//! affect others.

use crate::common::v4::*;
use crate::common::*;
use nfs::v4::*;
use rpc::{ConnectionId, Identity, security::Principal};
use server::{Export, ExportId, ExportOptions, NfsServer, Squash};
use testkit::paper::Paper;

/// A server with a good client, which has a file open, locked and filled, and a bad client on its own connection.
struct Neighbours {
    server: NfsServer,
    good: Client4,
    file: NfsFh4,
    open: Stateid4,
    locked: Stateid4,
    bad: Client4,
}

impl Neighbours {
    fn new() -> Self {
        let options = ExportOptions { squash: Squash::None, ..Default::default() };
        let server = server_of(Export::new("/m", ExportId::unique(), memory(), options).unwrap());
        let mut good = Client4::new(&server, "good", 1);
        let (open, file) = good.open("m", "f", Open::default()).unwrap();
        let results = good.ok([putfh(&file), write(open, 0, CONTENT), lock(open)]);
        let Some(Resop4::Lock(LockRes::Ok(locked))) = results.last() else { panic!("{results:?}") };
        let locked = *locked;
        let mut bad = Client4::stranger(&server, 1);
        bad.paper = Paper::new("tcp", 4 << 20).connection(ConnectionId(666));
        bad.introduce("bad", channel());
        Self { server, good, file, open, locked, bad }
    }

    /// Checks that the good client's state is unchanged.
    fn check(mut self) {
        let unlock = Argop4::LockU(LockUArgs {
            locktype: NfsLockType4::Write,
            seqid: Seqid4(0),
            lock_stateid: self.locked,
            offset: 0,
            length: 10,
        });
        let results = self.good.ok([putfh(&self.file), read(self.locked, 0, 100), unlock, close(self.open)]);
        let Resop4::Read(Res4::Ok(ReadOk { data, .. })) = &results[1] else { panic!("{results:?}") };
        assert_eq!(data.0.to_bytes().unwrap(), CONTENT);
    }
}

const CONTENT: &[u8] = b"what was written";

fn lock(open_stateid: Stateid4) -> Argop4 {
    let owner = StateOwner4 { clientid: Clientid4(0), owner: "locker".into() };
    let (open_seqid, lock_seqid) = (Seqid4(0), Seqid4(0));
    let locker = Locker4::New { open_seqid, open_stateid, lock_seqid, lock_owner: owner };
    Argop4::Lock(LockArgs { locktype: NfsLockType4::Write, reclaim: false, offset: 0, length: 10, locker })
}

/// Returns all operations that use a stateid.
fn uses(stateid: Stateid4) -> [Argop4; 7] {
    let (seqid, share_access) = (Seqid4(0), OPEN4_SHARE_ACCESS_READ);
    [
        read(stateid, 0, 10),
        write(stateid, 0, b"forged"),
        close(stateid),
        lock(stateid),
        Argop4::LockU(LockUArgs { locktype: NfsLockType4::Write, seqid, lock_stateid: stateid, offset: 0, length: 10 }),
        Argop4::OpenDowngrade(OpenDowngradeArgs { open_stateid: stateid, seqid, share_access, share_deny: 0 }),
        Argop4::FreeStateid(FreeStateidArgs { stateid }),
    ]
}

#[simnet::test]
async fn stateids_of_other_clients_are_rejected() {
    let mut all = Neighbours::new();
    let (own, _) = all.bad.open("m", "own", Open::default()).unwrap();
    // The stateids of the good client, and many similar ones.
    let near = [1, 2, 3, 7, 128, 255].into_iter().flat_map(|step: u8| (0..12).map(move |at| (at, step)));
    let near = near.map(|(at, step)| {
        let mut guess = own;
        guess.other[at] = guess.other[at].wrapping_add(step);
        guess
    });
    let guesses = [all.open, all.locked].into_iter().chain(near);
    for guess in guesses.flat_map(|guess| [guess, Stateid4 { seqid: 0, ..guess }]).collect::<Vec<_>>() {
        for operation in uses(guess) {
            let status = all.bad.status([putfh(&all.file), operation.clone()]);
            let refused = matches!(status, Nfsstat4::BadStateid | Nfsstat4::StaleStateid | Nfsstat4::OldStateid);
            assert!(refused, "{}: {}", operation.opnum().name(), status.name());
        }
    }
    all.check();
}

#[simnet::test]
async fn slots_and_sessions_are_bounded() {
    let all = Neighbours::new();
    for slot in 0..200 {
        for sequence in [0, 5, u32::MAX] {
            let results = all.bad.compound(vec![all.bad.sequence_op(slot, sequence), Argop4::PutRootFh]);
            let expected = if slot < channel().maxrequests { Nfsstat4::SeqMisordered } else { Nfsstat4::BadSlot };
            assert_eq!(results.status, expected, "slot {slot}, sequence {sequence}");
        }
    }
    let made = (1..200).take_while(|number| {
        let create = create_session(all.bad.client, Sequenceid4(1 + number), channel());
        all.bad.alone(create).status() == Nfsstat4::Ok
    });
    assert_eq!(made.count(), 63, "64 sessions including the first");
    all.check();
}

/// The maximum is 16,384 clients. Clients that are not confirmed, or have sent no request, are evicted first.
#[simnet::test]
async fn idle_clients_do_not_keep_others_out() {
    let all = Neighbours::new();
    for number in 0..17_000 {
        let Resop4::ExchangeId(Res4::Ok(made)) = all.bad.alone(exchange_id(&format!("half {number}"))) else {
            panic!("EXCHANGE_ID {number}")
        };
        if number % 2 == 0 {
            let create = create_session(made.clientid, made.sequenceid, channel());
            assert_eq!(all.bad.alone(create).status(), Nfsstat4::Ok, "CREATE_SESSION {number}");
        }
    }
    let mut late = Client4::new(&all.server, "late", 1);
    late.open("m", "late", Open::default()).unwrap();
    all.check();
}

#[simnet::test]
async fn other_principal_cannot_take_a_client() {
    let all = Neighbours::new();
    let mut thief = Client4::stranger(&all.server, 1);
    (thief.caller, thief.paper) = (user(666, 666), all.bad.paper.connection(ConnectionId(667)));
    assert_eq!(thief.alone(exchange_id("good")).status(), Nfsstat4::ClidInuse);
    // Another principal that knows the client ID can create sessions with the next sequence IDs, but gets no callbacks.
    for (sequence, expected) in [(0, Nfsstat4::SeqMisordered), (1, Nfsstat4::Ok), (3, Nfsstat4::SeqMisordered)] {
        let create = create_session(all.good.client, Sequenceid4(sequence), channel());
        assert_eq!(thief.alone(create).status(), expected, "{sequence}");
    }
    for sequence in 2..34 {
        let create = create_session(all.good.client, Sequenceid4(sequence), channel());
        let Resop4::CreateSession(Res4::Ok(made)) = thief.alone(create) else { panic!("CREATE_SESSION {sequence}") };
        assert_eq!(made.flags & CREATE_SESSION4_FLAG_CONN_BACK_CHAN, 0);
        assert_ne!(made.sessionid, all.good.session);
    }
    let create = |sequence| create_session(all.good.client, Sequenceid4(sequence), channel());
    assert_eq!(thief.alone(create(34)).status(), Nfsstat4::NoSpc, "half of the sessions are reserved for the owner");
    assert_eq!(all.good.alone(create(35)).status(), Nfsstat4::Ok);
    let destroy = Argop4::DestroySession(DestroySessionArgs { sessionid: all.good.session });
    assert_eq!(thief.alone(destroy).status(), Nfsstat4::ConnNotBoundToSession);
    let destroy = Argop4::DestroyClientId(ClientIdArgs { clientid: all.good.client });
    assert_eq!(thief.alone(destroy).status(), Nfsstat4::WrongCred);
    all.check();
}

/// CREATE_SESSION guarantees a minimum to each session, and a host gets a bounded share of the rest.
#[simnet::test]
async fn reply_cache_of_one_host_is_bounded() {
    let all = Neighbours::new();
    let mut granted = 0;
    for number in 0..2000 {
        let Resop4::ExchangeId(Res4::Ok(made)) = all.bad.alone(exchange_id(&format!("bad {number}"))) else {
            panic!("EXCHANGE_ID {number}")
        };
        let wanted = ChannelAttrs4 { maxrequests: 64, maxresponsesize_cached: 1 << 20, ..channel() };
        let create = create_session(made.clientid, made.sequenceid, wanted);
        let Resop4::CreateSession(Res4::Ok(made)) = all.bad.alone(create) else { panic!("CREATE_SESSION {number}") };
        let ChannelAttrs4 { maxrequests, maxresponsesize_cached, .. } = made.fore_chan_attrs;
        assert!(maxrequests >= 1 && maxresponsesize_cached >= 2 << 10, "{number}: {maxrequests}");
        granted += (maxrequests * maxresponsesize_cached) as usize;
    }
    assert!(granted <= (32 << 20) + 2001 * (2 << 10), "{granted} bytes");
    let mut late = Client4::stranger(&all.server, 1);
    late.peer = "192.0.2.99:700".parse().unwrap();
    late.introduce("late", channel());
    late.open("m", "late", Open::default()).unwrap();
    all.check();
}

#[simnet::test]
async fn hosts_not_admitted_get_a_small_share() {
    let options = ExportOptions { clients: vec!["192.0.2.0/24".parse().unwrap()], ..Default::default() };
    let server = server_of(Export::new("/m", ExportId::unique(), memory(), options).unwrap());
    let mut stranger = Client4::stranger(&server, 1);
    let mut sessions = Vec::new();
    for number in 0..1000u32 {
        stranger.peer = format!("198.51.{}.{}:700", number / 250, number % 250).parse().unwrap();
        let Resop4::ExchangeId(Res4::Ok(made)) = stranger.alone(exchange_id(&format!("stranger {number}"))) else {
            panic!("EXCHANGE_ID {number}")
        };
        let create = |sequence| create_session(made.clientid, Sequenceid4(sequence), channel());
        let Resop4::CreateSession(Res4::Ok(created)) = stranger.alone(create(made.sequenceid.0)) else {
            panic!("CREATE_SESSION {number}")
        };
        let fore = created.fore_chan_attrs;
        assert!(fore.maxrequests * fore.maxresponsesize_cached.max(512) <= 2 << 10, "{fore:?}");
        assert_eq!(
            stranger.alone(create(made.sequenceid.0 + 1)).status(),
            Nfsstat4::NoSpc,
            "a second session must be refused"
        );
        sessions.push(created.sessionid);
    }
    // 256 of these clients exist at a time.
    let destroy = |sessionid| Argop4::DestroySession(DestroySessionArgs { sessionid });
    let remaining = sessions.iter().filter(|id| stranger.alone(destroy(**id)).status() == Nfsstat4::Ok).count();
    assert_eq!(remaining, 256);
    let honest = Client4::new(&server, "honest", 1);
    assert_eq!(honest.compound(vec![honest.sequence_op(63, 1)]).status, Nfsstat4::BadSlot);
    assert_eq!(honest.compound(vec![honest.sequence_op(channel().maxrequests - 1, 1)]).status, Nfsstat4::Ok);
}

#[simnet::test]
async fn state_belongs_to_its_principal() {
    let server = server_of(Export::new("/m", ExportId::unique(), memory(), Default::default()).unwrap());
    let name = |name: &'static str, pseudo_flavor| Identity::Principal(Principal { name: name.into(), pseudo_flavor });
    let mut alice = Client4::stranger(&server, 1);
    alice.caller = name("alice@REALM", 390_004);
    alice.introduce("alice's", channel());
    for (caller, status) in [
        (name("mallory@REALM", 390_004), Nfsstat4::WrongCred),
        (user(0, 0), Nfsstat4::WrongCred),
        (Identity::None, Nfsstat4::WrongCred),
        // This is the owner. The client ID is busy because it has a session.
        (name("alice@REALM", 390_003), Nfsstat4::ClientidBusy),
    ] {
        let other = Client4 { caller, ..Client4::stranger(&server, 1) };
        let destroy = Argop4::DestroyClientId(ClientIdArgs { clientid: alice.client });
        assert_eq!(other.alone(destroy).status(), status, "{:?}", other.caller);
    }
}
