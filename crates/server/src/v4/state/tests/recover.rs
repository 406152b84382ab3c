//! The recovery records of clients: when they are stored, and when they are removed.

use super::{delegation::delegate_to_write, *};
use crate::sharing::conflict::Access;

fn add(owner: &'static str) -> RecordChange {
    RecordChange::Add(Bytes::from_static(owner.as_bytes()))
}

fn forfeit(owner: &'static str) -> RecordChange {
    RecordChange::Forfeit(Bytes::from_static(owner.as_bytes()))
}

fn remove(owner: &'static str) -> RecordChange {
    RecordChange::Remove(Bytes::from_static(owner.as_bytes()))
}

/// A removal that is stored later. No reply waits for it.
fn retire(owner: &'static str) -> RecordChange {
    RecordChange::Retire(Bytes::from_static(owner.as_bytes()))
}

impl World {
    pub(super) fn begin_grace(&mut self, reclaiming: &[&'static str], forfeited: &[&'static str]) {
        let owners = |names: &[&'static str]| names.iter().map(|name| Bytes::from_static(name.as_bytes())).collect();
        self.state.begin_grace(V4Clients { reclaiming: owners(reclaiming), forfeited: owners(forfeited) }, false);
        self.locks.begin_grace(self.now + LEASE);
    }

    pub(super) fn end_grace(&mut self) -> usize {
        self.locks.end_grace();
        self.state.end_grace()
    }

    fn records(&mut self) -> Vec<RecordChange> {
        std::iter::from_fn(|| self.state.poll_record()).collect()
    }

    fn store(&mut self, client: Clientid4) -> Option<Bytes> {
        let owner = self.state.unstored_owner(client, self.now)?;
        self.state.client_stored(client, &owner, true);
        Some(owner)
    }

    /// Returns a client whose only open was revoked, with the stateid of that open.
    fn with_revoked_open(&mut self) -> (Clientid4, Stateid4) {
        let ((a, _), (b, _)) = (self.ready("a"), self.ready("b"));
        self.store(a);
        let lost = self.open(a, "o", OPEN4_SHARE_ACCESS_WRITE, OPEN4_SHARE_DENY_BOTH).unwrap();
        self.now += 2 * LEASE;
        self.open(b, "o", OPEN4_SHARE_ACCESS_WRITE, 0).unwrap();
        assert_eq!(self.records(), [forfeit("a")], "the record must be forfeited before b gets its reply");
        assert_eq!(self.store(a), None, "it has not acknowledged the loss");
        (a, lost)
    }
}

#[test]
fn client_is_stored_once_and_its_record_is_removed_with_it() {
    let mut world = World::new();
    let (a, session) = world.ready("a");
    assert!(!world.state.clients().find(a).unwrap().is_stored());
    assert_eq!(world.store(a), Some(Bytes::from_static(b"a")));
    assert!(world.state.clients().find(a).unwrap().is_stored());
    assert_eq!(world.store(a), None, "it is already stored");
    world.state.destroy_session(session, false, &OWNER, TCP.id).unwrap();
    world.state.destroy_clientid(world.now, a, None, &OWNER).unwrap();
    assert_eq!(world.records(), [retire("a")]);
    // A client that never held state was never stored.
    let (b, session) = world.ready("b");
    world.state.destroy_session(session, false, &OWNER, TCP.id).unwrap();
    world.state.destroy_clientid(world.now, b, None, &OWNER).unwrap();
    assert_eq!(world.records(), []);
}

#[test]
fn restarted_client_keeps_its_record() {
    let mut world = World::new();
    let (old, _) = world.ready("a");
    world.store(old);
    let (new, session) = world.client("a", 2);
    assert_eq!(world.records(), []);
    assert_eq!(world.store(new), None);
    world.state.destroy_session(session, false, &OWNER, TCP.id).unwrap();
    world.state.destroy_clientid(world.now, new, None, &OWNER).unwrap();
    assert_eq!(world.records(), [retire("a")]);
}

/// Others may now get the state that it held, and it may not know that.
#[test]
fn record_of_an_evicted_client_is_removed_before_others_get_its_state() {
    let mut world = World::new();
    let (a, _) = world.ready("a");
    world.store(a);
    world.open(a, "o", OPEN4_SHARE_ACCESS_READ, 0).unwrap();
    world.state.evict(a);
    assert_eq!(world.records(), [remove("a")]);

    world.begin_grace(&["b"], &[]);
    let (b, session) = world.client("b", 1);
    world.state.destroy_session(session, false, &OWNER, TCP.id).unwrap();
    world.state.destroy_clientid(world.now, b, None, &OWNER).unwrap();
    assert_eq!(world.records(), [remove("b")], "others may get what it has not reclaimed");
}

#[test]
fn client_cannot_reclaim_before_it_acknowledges_a_loss() {
    let mut world = World::new();
    let (a, lost) = world.with_revoked_open();
    world.state.free_stateid(&world.locks, a, &lost).unwrap();
    assert_eq!(world.records(), [remove("a")], "it holds no state to reclaim");
    let name = world.state.unstored_owner(a, world.now).unwrap();
    assert_eq!(name, "a");
    // Its state is revoked again while its record is being written.
    world.state.revoke_all(&mut world.locks, a, Nfsstat4::AdminRevoked);
    assert_eq!(world.records(), [forfeit("a")]);
    world.state.client_stored(a, &name, true);
    assert_eq!(world.records(), [forfeit("a")], "the record may have been written after it was forfeited");
}

/// NO_GRACE means that others may have been granted what the client held.
#[test]
fn client_whose_claims_cannot_be_verified_gets_no_grace() {
    let mut world = World::new();
    world.begin_grace(&["a"], &["b"]);
    let ids = ["a", "b", "c"].map(|name| world.client(name, 1).0);
    let reclaims = |world: &mut World| ids.map(|client| world.reclaim(client, "o").err());
    assert_eq!(reclaims(&mut world), [None, Some(Nfsstat4::NoGrace), Some(Nfsstat4::ReclaimBad)]);
    world.state.begin_grace(V4Clients::default(), true);
    //= rfc8881-8.4.3-3
    assert_eq!(reclaims(&mut world), [Some(Nfsstat4::NoGrace); 3]);
}

#[test]
fn failed_write_of_a_record_is_retried_at_the_next_open() {
    let mut world = World::new();
    let (a, _) = world.ready("a");
    let name = world.state.unstored_owner(a, world.now).unwrap();
    world.state.client_stored(a, &name, false);
    assert!(world.state.unstored_owner(a, world.now).is_some());
}

#[test]
fn revoked_delegation_forfeits_the_record_until_acknowledged() {
    let mut world = World::new();
    let (a, _) = world.ready("a");
    world.store(a);
    world.open(a, "o", OPEN4_SHARE_ACCESS_WRITE, OPEN4_SHARE_DENY_NONE).unwrap();
    let lost = delegate_to_write(&mut world, a);
    assert_eq!(world.state.recall(&mut world.locks, &'f', (None, Access::Read), world.now), Err(Nfsstat4::Delay));
    world.now += LEASE;
    world.state.expire(world.now);
    assert_eq!(world.records(), [forfeit("a")], "another client now uses the delegated file");
    assert_eq!(world.store(a), None);
    world.state.free_stateid(&world.locks, a, &lost).unwrap();
    assert_eq!(world.records(), [add("a")], "it still holds its open");
    assert_eq!(world.store(a), None, "it is already stored");
}

#[test]
fn state_granted_before_acknowledgement_is_protected_by_the_forfeited_record() {
    let mut world = World::new();
    let (a, lost) = world.with_revoked_open();
    world.open(a, "p", OPEN4_SHARE_ACCESS_WRITE, 0).unwrap();
    assert_eq!(world.records(), [], "the record stays forfeited");
    world.state.free_stateid(&world.locks, a, &lost).unwrap();
    assert_eq!(world.records(), [add("a")]);
}

#[test]
fn restarted_client_with_a_loss_is_not_stored() {
    let mut world = World::new();
    let (a, _) = world.ready("a");
    world.store(a);
    world.state.revoke_all(&mut world.locks, a, Nfsstat4::AdminRevoked);
    assert_eq!(world.records(), [forfeit("a")]);
    let (a, _) = world.client("a", 2);
    assert_eq!(world.records(), [remove("a")], "it holds no state");
    assert_eq!(world.store(a).as_deref(), Some(&b"a"[..]));
}

#[test]
fn loss_in_the_grace_period_forfeits_the_record() {
    let mut world = World::new();
    world.begin_grace(&["a"], &[]);
    let (a, _) = world.client("a", 1);
    world.state.revoke_all(&mut world.locks, a, Nfsstat4::AdminRevoked);
    assert_eq!(world.records(), [forfeit("a")]);
    assert_eq!(world.end_grace(), 0, "the record was forfeited before");
    assert_eq!((world.records(), world.store(a)), (vec![], None));
}

#[test]
fn client_without_reclaim_complete_is_removed_at_the_end_of_grace() {
    let mut world = World::new();
    world.begin_grace(&["a", "b", "c"], &[]);
    let (a, _) = world.ready("a");
    assert_eq!(world.store(a), None, "it is stored since before the restart");
    let (b, _) = world.client("b", 1);
    let (_d, _) = world.ready("d");
    assert!(world.state.in_grace() && !world.state.may_end_grace());
    assert_eq!(world.end_grace(), 2, "b has returned, but others may now get what it has not reclaimed");
    let changes = world.records();
    assert!(changes.len() == 2 && changes.contains(&remove("b")) && changes.contains(&remove("c")), "{changes:?}");
    assert!(!world.state.in_grace());
    assert_eq!(world.store(b).as_deref(), Some(&b"b"[..]), "it is stored before it gets new state");
}

#[test]
fn late_client_is_stored_after_reclaim_complete_if_it_holds_state() {
    let complete = ReclaimCompleteArgs { one_fs: false };
    let reclaiming = || {
        let mut world = World::new();
        world.begin_grace(&["a"], &[]);
        let (a, session) = world.client("a", 1);
        let stateid = world.reclaim(a, "o").unwrap();
        assert_eq!((world.end_grace(), world.records()), (1, vec![forfeit("a")]));
        (world, a, session, stateid)
    };
    let (mut world, a, ..) = reclaiming();
    world.state.reclaim_complete(a, &complete).unwrap();
    assert_eq!((world.records(), world.store(a)), (vec![add("a")], None), "it knows what it holds");

    let (mut world, a, _, stateid) = reclaiming();
    world.state.close(&mut world.locks, a, &'f', &stateid).unwrap();
    assert_eq!(world.records(), [], "it may still try to reclaim");
    world.state.reclaim_complete(a, &complete).unwrap();
    assert_eq!(world.records(), [remove("a")]);

    let (mut world, a, _, stateid) = reclaiming();
    world.state.revoke_all(&mut world.locks, a, Nfsstat4::AdminRevoked);
    world.state.free_stateid(&world.locks, a, &stateid).unwrap();
    assert_eq!(world.records(), [], "it has acknowledged the revocation but not completed its reclaims");
    world.state.reclaim_complete(a, &complete).unwrap();
    assert_eq!(world.records(), [remove("a")]);

    let (mut world, a, session, _) = reclaiming();
    world.state.revoke_all(&mut world.locks, a, Nfsstat4::AdminRevoked);
    world.state.destroy_session(session, false, &OWNER, TCP.id).unwrap();
    world.now += 2 * LEASE;
    let _ = world.client("a", 2);
    assert_eq!(world.records(), [remove("a")], "it has restarted");
}

#[test]
fn grace_period_waits_for_forfeited_clients() {
    let mut world = World::new();
    world.begin_grace(&["a"], &["b", "c"]);
    let _ = world.ready("a");
    assert!(!world.state.may_end_grace(), "b and c may assume that they still hold state");
    let (b, _) = world.client("b", 1);
    assert!(!world.state.may_reclaim(b) && !world.state.may_end_grace());
    world.state.reclaim_complete(b, &ReclaimCompleteArgs { one_fs: false }).unwrap();
    assert_eq!(world.records(), [remove("b")]);
    assert!(!world.state.may_end_grace(), "c has not returned");
    assert_eq!((world.end_grace(), world.records()), (1, vec![remove("c")]), "the grace period is over");
}

/// Returns the records that a client of `minor` version causes over four server starts. It keeps one file open all the
/// time.
fn records_over_restarts(minor: u32) -> Vec<Vec<RecordChange>> {
    let mut stored = Vec::new();
    for start in 0..4 {
        let mut world = World::new();
        if start > 0 {
            world.begin_grace(&["a"], &[]);
        }
        let a = if minor == 0 { v40::introduce(&mut world, "a") } else { world.client("a", 1).0 };
        if start > 0 {
            assert_eq!(world.store(a), None, "it is stored since before the restart");
            world.reclaim(a, "o").unwrap_or_else(|status| panic!("start {start}: {}", status.name()));
        }
        if minor > 0 {
            world.state.reclaim_complete(a, &ReclaimCompleteArgs { one_fs: false }).unwrap();
        }
        if start > 0 {
            world.end_grace();
        } else {
            assert_eq!(world.store(a).as_deref(), Some(&b"a"[..]));
            world.open(a, "o", OPEN4_SHARE_ACCESS_WRITE, 0).unwrap();
        }
        world.state.expire(world.now);
        world.state.drop_unused_records(world.now);
        stored.push(world.records());
    }
    stored
}

#[test]
fn client_of_any_version_reclaims_after_each_restart() {
    for minor in [0, 1] {
        assert_eq!(records_over_restarts(minor), vec![vec![]; 4], "4.{minor}");
    }
}

#[test]
fn client_has_the_minor_version_of_its_introduction() {
    let mut world = World::new();
    let old = v40::introduce(&mut world, "old");
    let (new, _) = world.client("new", 1);
    let minor = |id| world.state.clients().find(id).unwrap().minorversion;
    assert_eq!((minor(old), minor(new)), (0, 1));
}

impl World {
    /// Runs the periodic checks after a delay, and stores the records.
    fn run_periodic(&mut self, later: Duration) -> Vec<RecordChange> {
        self.now += later;
        self.state.expire(self.now);
        self.state.drop_unused_records(self.now);
        let records = self.records();
        self.state.records_stored(&records, true);
        records
    }
}

#[test]
fn record_of_a_client_without_state_is_removed() {
    let mut world = World::new();
    let (a, session) = world.ready("a");
    world.store(a);
    let opened = world.open(a, "o", OPEN4_SHARE_ACCESS_WRITE, 0).unwrap();
    assert_eq!(world.run_periodic(LEASE / 2), []);
    world.call(session, 1, 1);
    world.state.close(&mut world.locks, a, &'f', &opened).unwrap();
    // It opens and closes one file after the other: no record changes.
    for _ in 0..8 {
        assert_eq!(world.store(a), None);
        let opened = world.open(a, "o", OPEN4_SHARE_ACCESS_WRITE, 0).unwrap();
        world.state.close(&mut world.locks, a, &'f', &opened).unwrap();
        assert_eq!(world.run_periodic(LEASE / 16), []);
    }
    // While an OPEN is in progress, the record stays.
    let Begun::Execute(ticket) = world.sequence(session, 2, 1).unwrap().begun else { panic!("the request is new") };
    assert_eq!(world.run_periodic(LEASE / 2), []);
    world.state.finish(world.now, session, ticket, "reply", false);
    assert_eq!(world.run_periodic(LEASE / 16), [retire("a")]);
    assert_eq!(world.run_periodic(LEASE / 16), []);
    assert_eq!(world.store(a).as_deref(), Some(&b"a"[..]), "it is stored again before its next open");
}

#[test]
fn records_of_idle_and_expired_clients_are_removed() {
    let mut world = World::new();
    for name in ["idle", "dead", "dead40"] {
        let id = if name == "dead40" { v40::introduce(&mut world, name) } else { world.ready(name).0 };
        world.store(id);
    }
    let clients = ["dead", "dead40"].map(|name| world.state.clients().confirmed(&Bytes::from(name)).unwrap());
    for id in clients {
        world.open(id, "o", OPEN4_SHARE_ACCESS_READ, 0).unwrap();
    }
    let mut changes = world.run_periodic(LEASE / 2);
    assert_eq!(changes, [retire("idle")]);
    changes = world.run_periodic(LEASE);
    changes.sort_by_key(|change| format!("{change:?}"));
    assert_eq!(changes, [remove("dead"), remove("dead40")]);
    // They keep their state until another client wants it. Their records are gone, so revoking it changes no record.
    world.state.revoke_all(&mut world.locks, clients[0], Nfsstat4::Expired);
    assert_eq!(world.records(), []);
}

#[test]
fn client_back_after_its_lease_is_stored_before_its_reply() {
    let mut world = World::new();
    let (a, session) = world.ready("a");
    world.store(a);
    world.open(a, "o", OPEN4_SHARE_ACCESS_WRITE, 0).unwrap();
    assert_eq!(world.run_periodic(LEASE + Duration::from_secs(1)), [remove("a")]);
    assert_eq!(world.sequence(session, 1, 1).unwrap_err(), Nfsstat4::Delay);
    assert_eq!(world.records(), [add("a")]);
    assert_eq!(world.sequence(session, 1, 1).unwrap_err(), Nfsstat4::Delay, "the record is being stored");
    assert_eq!(world.records(), []);
    world.state.records_stored(&[add("a")], false);
    assert_eq!(world.sequence(session, 1, 1).unwrap_err(), Nfsstat4::Delay, "the record could not be stored");
    assert_eq!(world.records(), [remove("a"), add("a")]);
    world.state.records_stored(&[add("a")], true);
    assert_eq!(world.call(session, 1, 1).status_flags, 0);
    assert_eq!(world.run_periodic(LEASE / 2), [], "its lease is valid again");

    let old = v40::introduce(&mut world, "old");
    world.store(old);
    world.open(old, "p", OPEN4_SHARE_ACCESS_READ, 0).unwrap();
    world.call(session, 2, 1);
    assert_eq!(world.run_periodic(LEASE / 2), []);
    world.call(session, 3, 1);
    assert_eq!(world.run_periodic(LEASE / 2 + Duration::from_secs(1)), [remove("old")]);
    assert_eq!(v40::renew(&mut world, old), Err(Nfsstat4::Delay));
    assert_eq!(world.records(), [add("old")]);
    world.state.records_stored(&[add("old")], true);
    assert_eq!(v40::renew(&mut world, old), Ok(()));
}

#[test]
fn client_evicted_in_grace_cannot_reclaim_after_restarting() {
    let mut world = World::new();
    world.begin_grace(&["a"], &[]);
    let (a, _) = world.client("a", 1);
    world.state.evict(a);
    assert_eq!(world.records(), [remove("a")]);
    let (a, _) = world.client("a", 2);
    assert!(!world.state.may_reclaim(a) && world.state.may_end_grace());
}

#[test]
fn records_are_kept_while_storage_fails() {
    let mut world = World::new();
    let (a, _) = world.ready("a");
    world.store(a);
    world.state.set_storage_works(false);
    world.now += LEASE / 2;
    world.state.expire(world.now);
    world.state.drop_unused_records(world.now);
    assert_eq!(world.records(), [], "a queued change would block all new opens");
    world.state.set_storage_works(true);
    world.now += LEASE / 4;
    world.state.expire(world.now);
    world.state.drop_unused_records(world.now);
    assert_eq!(world.records(), [retire("a")]);
}

#[test]
fn record_of_a_returning_client_is_removed_if_storing_fails() {
    let mut world = World::new();
    let (a, _) = world.ready("a");
    world.store(a);
    world.open(a, "o", OPEN4_SHARE_ACCESS_WRITE, OPEN4_SHARE_DENY_NONE).unwrap();
    world.now += 2 * LEASE;
    world.state.expire(world.now);
    world.state.drop_unused_records(world.now);
    assert_eq!(world.records(), [remove("a")], "its lease has expired");
    for stored in [false, true] {
        assert_eq!(world.state.check_stored(a), Err(Nfsstat4::Delay));
        world.state.records_stored(&[add("a")], stored);
        let expected = if stored { vec![add("a")] } else { vec![add("a"), remove("a")] };
        assert_eq!(world.records(), expected);
    }
    assert_eq!(world.state.check_stored(a), Ok(()));
}

#[test]
fn unneeded_records_are_looked_for_at_intervals() {
    let mut world = World::new();
    let (a, _) = world.ready("a");
    world.store(a);
    assert_eq!(world.run_periodic(LEASE / 4), [], "it has held no state for just a quarter of a lease time");
    assert_eq!(world.run_periodic(Duration::from_millis(1)), [], "the next check is later");
    assert_eq!(world.run_periodic(LEASE / 16), [retire("a")]);
}

#[test]
fn record_of_a_client_stays_for_a_lease_time_after_its_last_request() {
    for (later, expected) in [(LEASE, vec![]), (LEASE + Duration::from_nanos(1), vec![remove("a")])] {
        let mut world = World::new();
        let (a, _) = world.ready("a");
        world.store(a);
        world.open(a, "o", OPEN4_SHARE_ACCESS_READ, 0).unwrap();
        assert_eq!(world.run_periodic(later), expected);
    }
}
