//! Delegations: grant, recall, return, revocation; and the slots of recalls.

use super::*;
use crate::{
    sharing::{
        conflict::Access,
        locks::{LockClient, LockKind, Owner, Range},
    },
    v4::state::{
        back_slots::BackOutcome,
        ids::ReferringCall,
        recallable::Held,
        transitions::{
            back::{CallbackSubject, NoPath},
            delegation::DelegationRequest,
        },
    },
};

const READ: u32 = OPEN4_SHARE_ACCESS_READ;
const WRITE: u32 = OPEN4_SHARE_ACCESS_WRITE;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Got {
    Read(Stateid4),
    Write(Stateid4),
    None,
    Why(OpenNoneDelegation4),
}

const CONTENTION: Got = Got::Why(OpenNoneDelegation4::Contention { server_will_push_deleg: false });
const RESOURCE: Got = Got::Why(OpenNoneDelegation4::Resource { server_will_signal_avail: false });

/// Returns a write delegation of a client that has opened the file to write.
pub(super) fn delegate_to_write(world: &mut World, client: Clientid4) -> Stateid4 {
    let Got::Write(stateid) = world.delegation(client, WRITE) else { panic!("a write delegation must be granted") };
    stateid
}

impl World {
    /// Returns the delegation that comes with an OPEN with this access.
    fn delegation(&mut self, client: Clientid4, share_access: u32) -> Got {
        let request = DelegationRequest { client, file: &'f', share_access, change: 7, reclaim: None, call: None };
        self.delegate(&request)
    }

    fn delegate(&mut self, request: &DelegationRequest<'_, char>) -> Got {
        match self.state.delegate(&self.locks, request, self.now) {
            OpenDelegation4::Read(read) => Got::Read(read.stateid),
            OpenDelegation4::Write(write) => Got::Write(write.stateid),
            OpenDelegation4::None => Got::None,
            OpenDelegation4::NoneExt(why) => Got::Why(why),
        }
    }

    fn open_and_delegate(&mut self, client: Clientid4, access: u32) -> Got {
        self.open(client, "o", access, OPEN4_SHARE_DENY_NONE).unwrap();
        self.delegation(client, access)
    }

    fn by_others(&mut self, access: Access) -> Result<(), Nfsstat4> {
        self.state.recall(&mut self.locks, &'f', (None, access), self.now)
    }

    fn recalls(&mut self) -> Vec<Held<char>> {
        std::iter::from_fn(|| self.state.poll_recall()).collect()
    }

    fn flags(&mut self, session: Sessionid4, sequence: u32) -> u32 {
        self.call(session, sequence, 1).status_flags
    }
}

#[test]
fn read_delegations_coexist_and_conflict_with_a_writer() {
    let mut world = World::new();
    let ((a, _), (b, _)) = (world.ready("a"), world.ready("b"));
    assert!(matches!(world.open_and_delegate(a, READ), Got::Read(_)));
    assert!(matches!(world.open_and_delegate(b, READ), Got::Read(_)));
    assert_eq!(world.by_others(Access::Read), Ok(()), "read delegations permit reads of others");
    assert_eq!(world.recalls(), []);
    assert_eq!(world.open(a, "w", WRITE, 0), Err(Nfsstat4::Delay));
    let recalls = world.recalls();
    assert_eq!(
        recalls.iter().map(|recall| recall.client).collect::<Vec<_>>(),
        [b],
        "the client's own delegation does not conflict"
    );
    assert_eq!(world.open(a, "w", WRITE, 0), Err(Nfsstat4::Delay));
    assert_eq!(world.recalls(), [], "the recall is sent once");
    world.state.delegreturn(b, &'f', &recalls[0].stateid).unwrap();
    assert!(!world.state.is_recalling(&recalls[0]));
    world.open(a, "w", WRITE, 0).unwrap();
}

#[test]
fn open_without_its_own_write_delegation_recalls_it() {
    let mut world = World::new();
    let (a, _) = world.ready("a");
    let Got::Write(stateid) = world.open_and_delegate(a, WRITE) else { panic!() };
    let owner = Bytes::from_static(b"again");
    let request = opening(a, owner);
    world.open_by(OpenRequest { claim: Claim::Delegated(stateid), ..request.clone() }).unwrap();
    assert_eq!(world.open_by(request.clone()), Err(Nfsstat4::Delay));
    assert_eq!(world.recalls().len(), 1);
    world.state.delegreturn(a, &'f', &stateid).unwrap();
    let by_delegation = OpenRequest { claim: Claim::Delegated(stateid), ..request.clone() };
    assert_eq!(world.open_by(by_delegation), Err(Nfsstat4::BadStateid), "it no longer holds the delegation");
    world.open_by(request).unwrap();
}

/// OPEN grants the delegation in the same call as the open.
#[test]
fn open_grants_a_delegation_if_wanted_and_recallable() {
    let mut world = World::new();
    let ((a, _), (b, _)) = (world.ready("a"), world.ready("b"));
    let wanted = |client, want, can_recall| OpenRequest { want, can_recall, ..opening(client, Bytes::new()) };
    let mut open = |request| world.open_by(request).unwrap().delegation;
    let none = |why| OpenDelegation4::NoneExt(OpenNoneDelegation4::Other(why));
    assert_eq!(open(wanted(a, 0, false)), OpenDelegation4::None);
    let Got::Why(resource) = RESOURCE else { panic!() };
    assert_eq!(open(wanted(a, OPEN4_SHARE_ACCESS_WANT_ANY_DELEG, false)), OpenDelegation4::NoneExt(resource));
    //= rfc8881-18.16.3-14
    assert_eq!(open(wanted(a, OPEN4_SHARE_ACCESS_WANT_NO_DELEG, true)), none(WhyNoDelegation4::NotWanted));
    assert!(matches!(open(wanted(a, 0, true)), OpenDelegation4::Read(_)));
    for (want, expected) in [
        (0, true),
        (OPEN4_SHARE_ACCESS_WANT_ANY_DELEG, true),
        (OPEN4_SHARE_ACCESS_WANT_READ_DELEG, true),
        (OPEN4_SHARE_ACCESS_WANT_NO_DELEG, false),
    ] {
        let plan = world.state.plan_open(&world.locks, wanted(b, want, true), world.now).unwrap();
        assert_eq!(plan.is_delegable(), expected, "{want:#x}");
    }
    // If the file is truncated after the commit, the delegation is granted after that.
    let plan = world.state.plan_open(&world.locks, wanted(b, 0, true), world.now).unwrap();
    assert!(plan.is_delegable());
    let target = OpenTarget { file: &'f', change: None, truncates: true };
    let opened = world.state.commit_open(&mut world.locks, &plan, target, world.now).unwrap();
    assert_eq!(opened.delegation, OpenDelegation4::None);
    let delegation = world.state.delegate_open(&world.locks, &plan, (&'f', Some(8)), world.now);
    assert!(matches!(delegation, OpenDelegation4::Read(_)));
}

#[test]
fn write_delegation_conflicts_with_all_others() {
    let mut world = World::new();
    let ((a, _), (b, _)) = (world.ready("a"), world.ready("b"));
    let Got::Write(stateid) = world.open_and_delegate(a, OPEN4_SHARE_ACCESS_BOTH) else {
        panic!("a write delegation must be granted")
    };
    for access in [Access::Read, Access::Write] {
        assert_eq!(world.by_others(access), Err(Nfsstat4::Delay));
    }
    assert_eq!(world.recalls(), [Held { client: a, file: 'f', stateid }]);
    assert_eq!(
        world.state.recall(&mut world.locks, &'f', (Some(a), Access::Write), world.now),
        Ok(()),
        "its own access"
    );
    assert_eq!(world.state.recall(&mut world.locks, &'g', (None, Access::Write), world.now), Ok(()), "another file");
    assert_eq!(world.open(b, "o", READ, 0), Err(Nfsstat4::Delay));
    // During the recall the holder may still open, write, and use CLAIM_DELEGATE_CUR.
    let by = |client, stateid| OpenRequest {
        access: WRITE,
        claim: Claim::Delegated(stateid),
        ..opening(client, Bytes::from_static(b"o"))
    };
    assert_eq!(world.open_by(by(b, stateid)), Err(Nfsstat4::BadStateid));
    let io = |world: &mut World, client, write| {
        world.state.check_io(&mut world.locks, client, &'f', &stateid, write, world.now)
    };
    assert_eq!(io(&mut world, a, true), Ok(()));
    assert_eq!(io(&mut world, b, false), Err(Nfsstat4::BadStateid));
    let open = world.open_by(by(a, stateid)).unwrap().stateid;
    assert_eq!(world.open_by(by(a, open)), Err(Nfsstat4::BadStateid), "an open stateid is not a delegation");
    assert_eq!(world.state.delegreturn(a, &'f', &open), Err(Nfsstat4::BadStateid));
    world.state.delegreturn(a, &'f', &stateid).unwrap();
    assert_eq!(world.state.delegreturn(a, &'f', &stateid), Err(Nfsstat4::BadStateid));
    world.open(b, "o", READ, 0).unwrap();
}

#[test]
fn read_delegation_does_not_permit_writing() {
    let mut world = World::new();
    let (a, _) = world.ready("a");
    let Got::Read(stateid) = world.open_and_delegate(a, READ) else { panic!("a read delegation must be granted") };
    let now = world.now;
    assert_eq!(world.state.check_io(&mut world.locks, a, &'f', &stateid, false, now), Ok(()));
    assert_eq!(world.state.check_io(&mut world.locks, a, &'f', &stateid, true, now), Err(Nfsstat4::OpenMode));
    // I/O with a special stateid conflicts like that of other protocols.
    let anonymous = Stateid4::ANONYMOUS;
    let (b, _) = world.ready("b");
    assert_eq!(world.state.check_io(&mut world.locks, b, &'f', &anonymous, false, now), Ok(()));
    assert_eq!(world.state.check_io(&mut world.locks, b, &'f', &anonymous, true, now), Err(Nfsstat4::Delay));
}

#[test]
fn delegation_wants_are_honoured_and_refusals_have_a_reason() {
    let mut world = World::new();
    let ((a, _), (b, _)) = (world.ready("a"), world.ready("b"));
    world.open(a, "o", READ, 0).unwrap();
    let why = |why| Got::Why(OpenNoneDelegation4::Other(why));
    assert_eq!(world.delegation(a, READ | OPEN4_SHARE_ACCESS_WANT_NO_DELEG), why(WhyNoDelegation4::NotWanted));
    assert_eq!(world.delegation(a, READ | OPEN4_SHARE_ACCESS_WANT_CANCEL), why(WhyNoDelegation4::Cancelled));
    let impossible = world.delegation(a, READ | OPEN4_SHARE_ACCESS_WANT_WRITE_DELEG);
    assert_eq!(impossible, why(WhyNoDelegation4::NotSuppUpgrade), "the client opened it only to read");
    assert!(matches!(world.delegation(a, READ | OPEN4_SHARE_ACCESS_WANT_ANY_DELEG), Got::Read(_)));
    assert_eq!(world.delegation(a, READ), Got::None, "it has a delegation and stated no preference");
    let again = world.delegation(a, OPEN4_SHARE_ACCESS_BOTH | OPEN4_SHARE_ACCESS_WANT_ANY_DELEG);
    assert_eq!(again, why(WhyNoDelegation4::NotSuppUpgrade));
    world.open(b, "o", READ, 0).unwrap();
    assert_eq!(world.delegation(b, OPEN4_SHARE_ACCESS_BOTH | OPEN4_SHARE_ACCESS_WANT_WRITE_DELEG), CONTENTION);
}

#[test]
fn no_delegation_of_files_in_use_or_recently_recalled() {
    let mut world = World::new();
    let ((a, _), (b, _)) = (world.ready("a"), world.ready("b"));
    let any = |access| access | OPEN4_SHARE_ACCESS_WANT_ANY_DELEG;
    let open = world.open(b, "o", READ, 0).unwrap();
    assert_eq!(world.delegation(a, any(WRITE)), CONTENTION);
    world.state.close(&mut world.locks, b, &'f', &open).unwrap();
    // A lock by another protocol, without an open.
    let host = Owner { client: LockClient::Nlm(1), opaque: Default::default() };
    let request = crate::sharing::locks::Request {
        range: Range::to_end(0),
        kind: LockKind::Exclusive,
        wait: false,
        reclaim: false,
    };
    world.locks.lock(&'f', &host, &request).unwrap();
    assert_eq!(world.delegation(a, any(READ)), CONTENTION);
    world.locks.release_client(LockClient::Nlm(1));
    // The file is being changed.
    let changing = world.state.marks().begin_change(&'f');
    assert_eq!(world.delegation(a, any(READ)), CONTENTION);
    assert_eq!(world.by_others(Access::Write), Ok(()), "the refused delegation must leave no state");
    drop(changing);
    let Got::Read(stateid) = world.delegation(a, any(READ)) else { panic!("nothing conflicts") };
    assert_eq!(world.by_others(Access::Write), Err(Nfsstat4::Delay));
    world.state.delegreturn(a, &'f', &stateid).unwrap();
    assert_eq!(world.by_others(Access::Write), Ok(()));
    assert_eq!(world.delegation(a, any(READ)), CONTENTION, "no grant soon after a recall");
    world.now += LEASE / 2;
    assert!(matches!(world.delegation(a, any(READ)), Got::Read(_)));
}

#[test]
fn client_without_a_callback_path_gets_no_delegation() {
    let mut world = World::new();
    let (a, session) = world.ready("a");
    let any = READ | OPEN4_SHARE_ACCESS_WANT_ANY_DELEG;
    world.open(a, "o", READ, 0).unwrap();
    world.state.disconnect(TCP.id);
    assert_eq!(world.delegation(a, any), RESOURCE);
    assert_eq!(world.state.begin_callback(a, &CallbackSubject::default()).unwrap_err(), NoPath::Down);
    let again = Connection { id: ConnectionId(2), duplex: true, tls: Xprtsec::None };
    let args = bind(session, ChannelDirFromClient4::ForeOrBoth);
    world.state.bind_conn_to_session(&args, &OWNER, again).unwrap();
    world.state.note_callback(a, true);
    assert_eq!(world.delegation(a, any), RESOURCE);
    assert_ne!(world.flags(session, 1) & SEQ4_STATUS_CB_PATH_DOWN, 0);
    world.state.note_callback(a, false);
    assert_eq!(world.flags(session, 2) & SEQ4_STATUS_CB_PATH_DOWN, 0);
    assert!(matches!(world.delegation(a, any), Got::Read(_)));
    let call = world.state.begin_callback(a, &CallbackSubject::default()).unwrap();
    assert_eq!((call.session, call.connections), (session, vec![ConnectionId(2)]));
    assert_eq!(
        world.state.begin_callback(a, &CallbackSubject::default()).unwrap_err(),
        NoPath::Busy,
        "the client has one backchannel slot"
    );
    world.state.end_callback(session, &call.ticket, BackOutcome::Unknown);
    assert_eq!(world.state.begin_callback(a, &CallbackSubject::default()).unwrap_err(), NoPath::Down);
    assert_ne!(world.flags(session, 3) & SEQ4_STATUS_BACKCHANNEL_FAULT, 0, "the sequence ID of the slot is unknown");
}

#[test]
fn unreturned_delegation_is_revoked_after_a_lease_time() {
    let mut world = World::new();
    let (a, session) = world.ready("a");
    let Got::Write(stateid) = world.open_and_delegate(a, WRITE) else { panic!("a write delegation must be granted") };
    assert_eq!(world.by_others(Access::Read), Err(Nfsstat4::Delay));
    world.now += LEASE;
    // The client renews its lease, and the delegation is revoked all the same.
    assert_eq!(world.flags(session, 1), 0);
    world.state.expire(world.now);
    assert_eq!(world.by_others(Access::Read), Ok(()));
    assert_eq!(world.flags(session, 2), SEQ4_STATUS_RECALLABLE_STATE_REVOKED);
    assert_eq!(world.state.delegreturn(a, &'f', &stateid), Err(Nfsstat4::DelegRevoked));
    let test = TestStateidArgs { stateids: vec![stateid] };
    assert_eq!(world.state.test_stateid(a, &test), [Nfsstat4::DelegRevoked]);
    world.state.free_stateid(&world.locks, a, &stateid).unwrap();
    assert_eq!(world.flags(session, 3), 0);
    world.open(a, "o", READ, 0).unwrap();
}

#[test]
fn returned_delegation_and_a_later_one_are_not_revoked() {
    let mut world = World::new();
    let (a, session) = world.ready("a");
    let Got::Write(stateid) = world.open_and_delegate(a, WRITE) else { panic!("a write delegation must be granted") };
    assert_eq!(world.by_others(Access::Read), Err(Nfsstat4::Delay));
    world.state.delegreturn(a, &'f', &stateid).unwrap();
    world.now += LEASE / 2;
    assert!(matches!(world.delegation(a, WRITE), Got::Write(_)));
    world.now += LEASE / 2;
    assert_eq!(world.flags(session, 1), 0);
    world.state.expire(world.now);
    assert_eq!(world.by_others(Access::Read), Err(Nfsstat4::Delay), "it still holds the second delegation");
}

#[test]
fn expired_client_keeps_its_delegation_until_a_conflict() {
    let mut world = World::new();
    let (a, session) = world.ready("a");
    assert!(matches!(world.open_and_delegate(a, WRITE), Got::Write(_)));
    world.now += 10 * LEASE;
    world.state.expire(world.now);
    assert_eq!(world.state.clients().len(), 1);
    assert_eq!(world.by_others(Access::Read), Ok(()), "the state of an expired client is revoked at once");
    assert_eq!(world.recalls(), []);
    assert_ne!(world.flags(session, 1) & SEQ4_STATUS_EXPIRED_SOME_STATE_REVOKED, 0);
}

#[test]
fn delegation_is_reclaimed_after_a_restart() {
    let mut world = World::new();
    world.begin_grace(&["a"], &[]);
    let (a, _) = world.client("a", 1);
    world.reclaim(a, "o").unwrap();
    assert_eq!(
        world.delegation(a, WRITE | OPEN4_SHARE_ACCESS_WANT_ANY_DELEG),
        RESOURCE,
        "nothing new is granted in the grace period"
    );
    let reclaim = Some(OpenDelegationType4::Write);
    let request = DelegationRequest { client: a, file: &'f', share_access: WRITE, change: 7, reclaim, call: None };
    assert!(matches!(world.delegate(&request), Got::Write(_)));
    let nothing = Some(OpenDelegationType4::None);
    let request =
        DelegationRequest { client: a, file: &'f', share_access: WRITE, change: 7, reclaim: nothing, call: None };
    assert_eq!(world.delegate(&request), Got::None);
}

/// The client has opened the file for another owner while it held the delegation, without a request to the server.
#[test]
fn file_is_opened_by_a_reclaimed_delegation_in_the_grace_period() {
    let mut world = World::new();
    world.begin_grace(&["a"], &[]);
    let (a, _) = world.client("a", 1);
    let open = |owner: &'static str, claim| {
        let owner = Bytes::from_static(owner.as_bytes());
        OpenRequest { claim, can_recall: true, ..opening(a, owner) }
    };
    let reclaimed = world.open_by(open("o", Claim::Reclaim(OpenDelegationType4::Write))).unwrap();
    let OpenDelegation4::Write(OpenWriteDelegation4 { stateid, .. }) = reclaimed.delegation else {
        panic!("the delegation must be reclaimed: {reclaimed:?}")
    };
    //= rfc8881-10.2.1-4
    assert!(world.open_by(open("p", Claim::Delegated(stateid))).is_ok());
    assert_eq!(world.open_by(open("q", Claim::New)).unwrap_err(), Nfsstat4::Grace);
    let other = Claim::Delegated(Stateid4 { other: [7; 12], ..stateid });
    assert_eq!(world.open_by(open("q", other)).unwrap_err(), Nfsstat4::Grace);
}

#[test]
fn delegations_of_a_removed_client_do_not_conflict() {
    let mut world = World::new();
    let (a, _) = world.ready("a");
    assert!(matches!(world.open_and_delegate(a, WRITE), Got::Write(_)));
    // The client has restarted.
    world.client("a", 2);
    assert_eq!(world.by_others(Access::Write), Ok(()));
    let (b, _) = world.ready("b");
    world.locks.release_client(LockClient::V4(a.0));
    assert!(matches!(world.open_and_delegate(b, WRITE), Got::Write(_)));
}

/// A callback can arrive before the reply that granted the delegation.
#[test]
fn callback_names_the_granting_request_until_the_client_has_its_reply() {
    let mut world = World::new();
    let (a, session) = world.ready("a");
    let call = ReferringCall { session, slot: Slotid4(0), sequence: Sequenceid4(1) };
    let Begun::Execute(ticket) = world.sequence(session, 1, 1).unwrap().begun else { panic!("the request is new") };
    let request = OpenRequest { can_recall: true, call: Some(call), ..opening(a, Bytes::new()) };
    let delegation = world.open_by(request).unwrap().delegation;
    let OpenDelegation4::Read(OpenReadDelegation4 { stateid, .. }) = delegation else { panic!("{delegation:?}") };
    let other = world.create(&create(a, 2)).unwrap().sessionid;
    let about = CallbackSubject { state: Some(stateid), ..CallbackSubject::default() };
    let created = CallbackSubject { created_by: Some(call), ..CallbackSubject::default() };
    let named = |world: &mut World, about: &CallbackSubject| {
        let call = world.state.begin_callback(a, about).unwrap();
        world.state.end_callback(call.session, &call.ticket, BackOutcome::NotBegun);
        call.referring
    };
    assert_eq!(named(&mut world, &about), Some(call), "the request is being executed");
    assert_eq!(named(&mut world, &CallbackSubject::default()), None);
    world.finish(session, ticket);
    assert_eq!(named(&mut world, &about), Some(call), "the reply may still be in transit");
    assert!(matches!(world.sequence(session, 1, 1).unwrap().begun, Begun::Replay(_)));
    world.call(other, 1, 1);
    //= rfc8881-2.10.6.3-1
    assert_eq!(
        named(&mut world, &about),
        Some(call),
        "neither a retry nor another session shows that it has the reply"
    );
    assert_eq!(named(&mut world, &created), Some(call));
    world.call(session, 2, 1);
    assert_eq!((named(&mut world, &about), named(&mut world, &created)), (None, None));
}

#[test]
fn callback_does_not_name_a_request_of_a_destroyed_session() {
    let mut world = World::new();
    let (a, session) = world.ready("a");
    let other = world.create(&create(a, 2)).unwrap().sessionid;
    world.call(session, 1, 1);
    let call = ReferringCall { session, slot: Slotid4(0), sequence: Sequenceid4(1) };
    let about = CallbackSubject { created_by: Some(call), ..CallbackSubject::default() };
    let own = CallbackSubject { session: Some(other), ..about };
    let begun = world.state.begin_callback(a, &own).unwrap();
    assert_eq!(begun.referring, Some(call), "a callback of another session can name the request");
    world.state.end_callback(begun.session, &begun.ticket, BackOutcome::NotBegun);
    world.state.destroy_session(session, false, &OWNER, TCP.id).unwrap();
    assert_eq!(world.state.begin_callback(a, &own).unwrap().referring, None);
}

#[test]
fn holder_of_a_write_delegation_is_found_unless_it_cannot_answer() {
    let holder = |world: &mut World, by| world.state.holder(&mut world.locks, &'f', by, world.now);
    let with_holder = || {
        let mut world = World::new();
        let (a, _) = world.ready("a");
        let Got::Write(stateid) = world.open_and_delegate(a, WRITE) else { panic!() };
        (world, Held { client: a, file: 'f', stateid })
    };
    let (mut world, held) = with_holder();
    let (b, _) = world.ready("b");
    assert_eq!(holder(&mut world, Some(held.client)), Ok(None), "the holder itself");
    for by in [Some(b), None] {
        assert_eq!(holder(&mut world, by), Ok(Some(held.clone())));
    }
    assert_eq!(world.recalls(), [], "it can be asked");
    assert_eq!(world.by_others(Access::Read), Err(Nfsstat4::Delay));
    assert_eq!(holder(&mut world, Some(b)), Err(Nfsstat4::Delay), "the delegation is being recalled");
    let (mut world, _) = with_holder();
    world.state.disconnect(TCP.id);
    assert_eq!(holder(&mut world, None), Err(Nfsstat4::Delay), "the holder cannot be called");
    let (mut world, _) = with_holder();
    world.now += LEASE + Duration::from_secs(1);
    assert_eq!(holder(&mut world, None), Ok(None), "the lease of the holder has expired");
    let mut world = World::new();
    let (a, _) = world.ready("a");
    assert!(matches!(world.open_and_delegate(a, READ), Got::Read(_)));
    assert_eq!(holder(&mut world, None), Ok(None), "a read delegation");
}

/// RFC 8881 §10.4.3: the file is modified if the holder reports another change attribute or size, and remains so.
#[test]
fn report_of_a_holder_shows_whether_it_has_modified_the_file() {
    for (change, size_differs, expected) in [
        (None, false, false),
        (Some(7), false, false),
        (Some(8), false, true),
        (None, true, true),
        (Some(7), true, true),
    ] {
        let mut world = World::new();
        let (a, _) = world.ready("a");
        let Got::Write(stateid) = world.open_and_delegate(a, WRITE) else { panic!() };
        let held = Held { client: a, file: 'f', stateid };
        assert_eq!(world.state.is_modified(&held, change, size_differs), expected, "{change:?} {size_differs}");
        assert_eq!(world.state.is_modified(&held, Some(7), false), expected, "the next report");
        world.state.delegreturn(a, &'f', &stateid).unwrap();
        assert!(!world.state.is_modified(&held, Some(8), true), "the delegation is returned");
    }
}

#[test]
fn open_by_a_delegation_gets_no_reason_for_no_other_delegation() {
    let mut world = World::new();
    let (a, _) = world.ready("a");
    let Got::Write(stateid) = world.open_and_delegate(a, WRITE) else { panic!() };
    let want = OPEN4_SHARE_ACCESS_WANT_ANY_DELEG;
    let mut open = |can_recall| {
        let claim = Claim::Delegated(stateid);
        let request = OpenRequest { claim, want, can_recall, ..opening(a, Bytes::from_static(b"again")) };
        world.open_by(request).unwrap().delegation
    };
    assert_eq!(open(true), OpenDelegation4::None);
    let Got::Why(resource) = RESOURCE else { panic!() };
    assert_eq!(open(false), OpenDelegation4::NoneExt(resource), "this server grants none");
}

#[test]
fn writer_can_ask_for_a_read_delegation() {
    let mut world = World::new();
    let (a, _) = world.ready("a");
    assert!(matches!(world.delegation(a, OPEN4_SHARE_ACCESS_BOTH | OPEN4_SHARE_ACCESS_WANT_READ_DELEG), Got::Read(_)));
}

#[test]
fn recallable_state_of_a_client_is_listed_in_pages() {
    let mut world = World::new();
    let (a, _) = world.ready("a");
    let (b, _) = world.ready("b");
    assert!(matches!(world.open_and_delegate(a, READ), Got::Read(_)));
    assert!(matches!(world.open_and_delegate(b, READ), Got::Read(_)));
    let (all, next) = world.state.recallables_of(a, None, 10);
    assert_eq!((all.len(), all[0].0, next), (1, 'f', None));
    // One of the two stateids of the client is its open.
    let (mut found, mut after) = (0, None);
    for _ in 0..2 {
        let (page, next) = world.state.recallables_of(a, after, 1);
        found += page.len();
        after = next;
        assert!(after.is_some(), "there can be more");
    }
    assert_eq!((found, world.state.recallables_of(a, after, 1)), (1, (Vec::new(), None)));
}

#[test]
fn client_with_a_delegation_gets_no_second_one_of_the_file() {
    let why = |why| Got::Why(OpenNoneDelegation4::Other(why));
    let any = OPEN4_SHARE_ACCESS_WANT_ANY_DELEG;
    for (held, wanted, expected) in [
        (READ, READ, WhyNoDelegation4::NotSuppDowngrade),
        (READ, WRITE, WhyNoDelegation4::NotSuppUpgrade),
        (WRITE, READ, WhyNoDelegation4::NotSuppDowngrade),
        (WRITE, WRITE, WhyNoDelegation4::NotSuppDowngrade),
    ] {
        let mut world = World::new();
        let (a, _) = world.ready("a");
        assert!(matches!(world.open_and_delegate(a, held), Got::Read(_) | Got::Write(_)));
        assert_eq!(world.delegation(a, wanted | any), why(expected), "{held} {wanted}");
    }
}
