//! Requests that the shard answers without the state, and the closing of shards while the state decides.

use super::{
    super::{
        shard::{Shard, USES_MAX, check_request},
        transitions::evict::Evicted,
    },
    *,
};

const WRITE: u32 = OPEN4_SHARE_ACCESS_WRITE;

impl World {
    fn shard(&self, client: Clientid4) -> Arc<Shard<&'static str, char>> {
        self.state.shards().of_client(client).unwrap()
    }

    fn is_open(&self, client: Clientid4) -> bool {
        self.shard(client).opened().is_some()
    }

    /// Executes SEQUENCE by the shard alone.
    fn begin(&self, session: Sessionid4, sequence: u32, connection: u64) -> Option<Ticket> {
        let shard = self.state.shards().of_session(&session)?;
        let args = SequenceArgs {
            sessionid: session,
            sequenceid: Sequenceid4(sequence),
            slotid: Slotid4(0),
            highest_slotid: Slotid4(0),
            cachethis: true,
        };
        let fingerprint = Fingerprint { principal: OWNER, checksum: u64::from(sequence) };
        let request = Request { args: &args, fingerprint, len: 1000, operations: 3 };
        match shard.sequence(self.now, &request, ConnectionId(connection))?.begun {
            Begun::Execute(ticket) => Some(ticket),
            _ => None,
        }
    }
}

#[test]
fn shard_answers_after_the_first_request() {
    let mut world = World::new();
    let (a, session) = world.ready("a");
    assert!(world.begin(session, 1, 1).is_none(), "the first request needs the state");
    world.call(session, 1, 1);
    let ticket = world.begin(session, 2, 1).unwrap();
    assert_eq!(world.shard(a).finish(world.now, session, (ticket, "reply", false)), Ok(()));
    assert!(world.begin(session, 3, 2).is_none(), "the state must bind the new connection");
    world.call(session, 3, 2);
    let ticket = world.begin(session, 4, 2).unwrap();
    world.finish(session, ticket);
    world.state.disconnect(ConnectionId(2));
    assert!(world.begin(session, 5, 2).is_none());
    world.call(session, 5, 1);
    world.open(a, "o", WRITE, 0).unwrap();
    assert!(world.is_open(a), "an OPEN does not affect the result of SEQUENCE");
    world.state.note_callback(a, true);
    assert!(world.begin(session, 6, 1).is_none(), "the status flags changed");
    assert_ne!(world.call(session, 6, 1).status_flags & SEQ4_STATUS_CB_PATH_DOWN, 0);
    assert!(world.is_open(a));
    assert_ne!(world.call(session, 7, 1).status_flags & SEQ4_STATUS_CB_PATH_DOWN, 0, "the shard reports the flags too");
}

#[test]
fn lease_renewed_by_the_shard_is_valid() {
    let mut world = World::new();
    let ((a, session), (b, _)) = (world.ready("a"), world.ready("b"));
    world.call(session, 1, 1);
    world.open(a, "o", WRITE, OPEN4_SHARE_DENY_BOTH).unwrap();
    world.now += LEASE - Duration::from_secs(1);
    let ticket = world.begin(session, 2, 1).unwrap();
    world.finish(session, ticket);
    world.now += LEASE - Duration::from_secs(1);
    assert_eq!(world.open(b, "o", WRITE, 0), Err(Nfsstat4::ShareDenied));
    assert!(!world.is_open(a), "checking the lease must close the shard");
}

#[test]
fn state_is_not_revoked_while_a_request_of_the_shard_executes() {
    let mut world = World::new();
    let ((a, session), (b, _)) = (world.ready("a"), world.ready("b"));
    world.call(session, 1, 1);
    let held = world.open(a, "o", WRITE, OPEN4_SHARE_DENY_BOTH).unwrap();
    let ticket = world.begin(session, 2, 1).unwrap();
    world.now += 2 * LEASE;
    assert_eq!(world.open(b, "o", WRITE, 0), Err(Nfsstat4::ShareDenied), "the client is busy");
    assert_eq!(world.state.evict(b), Evicted::Gone);
    assert_eq!(world.state.destroy_session(session, false, &OWNER, TCP.id), Err(Nfsstat4::Delay));
    assert_eq!(world.io_of(a, 'f', &held, true), Ok(()));
    world.finish(session, ticket);
    world.now += 2 * LEASE;
    let (b, _) = world.ready("b");
    world.open(b, "o", WRITE, 0).unwrap();
    assert!(world.begin(session, 3, 1).is_none(), "the state must report the loss");
    assert_eq!(world.io_of(a, 'f', &held, true), Err(Nfsstat4::Expired));
    assert_ne!(world.call(session, 3, 1).status_flags & SEQ4_STATUS_EXPIRED_SOME_STATE_REVOKED, 0);
    assert!(!world.is_open(a));
    world.state.free_stateid(&world.locks, a, &held).unwrap();
    assert_eq!(world.call(session, 4, 1).status_flags, 0);
    assert!(world.is_open(a));
}

#[test]
fn shard_permits_io_by_a_stateid_until_it_changes() {
    let mut world = World::new();
    let (a, session) = world.ready("a");
    world.call(session, 1, 1);
    let shard = world.shard(a);
    let first = world.open(a, "o", WRITE, 0).unwrap();
    assert!(!shard.permits_io(&'f', &first, true), "the stateid was not used yet");
    assert_eq!(world.io_of(a, 'f', &first, true), Ok(()));
    let any = Stateid4 { seqid: 0, ..first };
    let other = Stateid4 { seqid: 2, ..first };
    assert!([first, any].iter().all(|stateid| shard.permits_io(&'f', stateid, true)));
    assert!(!shard.permits_io(&'f', &first, false), "another open can deny a READ by an open for writing");
    assert!(!shard.permits_io(&'g', &first, false) && !shard.permits_io(&'f', &other, false));
    let second = world.open(a, "o", OPEN4_SHARE_ACCESS_READ, 0).unwrap();
    assert!(!shard.permits_io(&'f', &first, true) && !shard.permits_io(&'f', &any, true));
    assert_eq!(world.io_of(a, 'f', &first, true), Err(Nfsstat4::OldStateid));
    assert_eq!(world.io_of(a, 'f', &second, true), Ok(()));
    let args = OpenDowngradeArgs {
        open_stateid: second,
        seqid: Seqid4(0),
        share_access: OPEN4_SHARE_ACCESS_READ,
        share_deny: 0,
    };
    let third = world.state.open_downgrade(&mut world.locks, a, &'f', &args).unwrap();
    assert_eq!(world.io_of(a, 'f', &third, true), Err(Nfsstat4::OpenMode));
    assert_eq!(world.io_of(a, 'f', &third, false), Ok(()));
    assert!(shard.permits_io(&'f', &third, false) && !shard.permits_io(&'f', &third, true));
    world.state.close(&mut world.locks, a, &'f', &third).unwrap();
    assert!(!shard.permits_io(&'f', &third, false) && shard.uses().all().is_empty());
}

#[test]
fn stateids_in_use_are_bounded() {
    let mut world = World::with(|options| {
        (options.client_stateids_max, options.stateids_max, options.owners_max) = (4000, 16_000, 4000);
    });
    let (a, _) = world.ready("a");
    let shard = world.shard(a);
    for opened in 1..=USES_MAX + 1 {
        let owner = Bytes::from(opened.to_string());
        let stateid = world.open_by(OpenRequest { access: WRITE, ..opening(a, owner) }).unwrap().stateid;
        assert_eq!(world.io_of(a, 'f', &stateid, true), Ok(()));
        let kept = if opened > USES_MAX { 1 } else { opened };
        assert_eq!(shard.uses().all().len(), kept);
    }
}

#[test]
fn table_of_shards_is_shared_and_forgets_a_client_that_ends() {
    let mut world = World::new();
    let (a, _) = world.ready("a");
    let shards = world.state.shards().clone();
    assert!(shards.of_client(a).is_some());
    assert_eq!(world.state.evict(a), Evicted::Gone);
    assert!(shards.of_client(a).is_none() && world.state.shards().of_client(a).is_none());
}

#[test]
fn request_can_have_exactly_the_limits_of_its_session() {
    let fore = ChannelAttrs4 { maxrequestsize: 1000, maxoperations: 3, maxresponsesize_cached: 80, ..channel() };
    let args = SequenceArgs {
        sessionid: Sessionid4([0; 16]),
        sequenceid: Sequenceid4(1),
        slotid: Slotid4(0),
        highest_slotid: Slotid4(0),
        cachethis: true,
    };
    let check = |len, operations, cached| {
        let request =
            Request { args: &args, fingerprint: Fingerprint { principal: OWNER, checksum: 0 }, len, operations };
        check_request(&request, &ChannelAttrs4 { maxresponsesize_cached: cached, ..fore })
    };
    assert_eq!(check(1000, 3, 80), Ok(()));
    assert_eq!(check(1001, 3, 80), Err(Nfsstat4::ReqTooBig));
    assert_eq!(check(1000, 4, 80), Err(Nfsstat4::TooManyOps));
    assert_eq!(check(1000, 3, 79), Err(Nfsstat4::RepTooBigToCache));
}
