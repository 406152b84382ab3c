//! What is remembered of clients over a restart, and when it is not.

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

/// Stored later: nobody waits for it.
fn retire(owner: &'static str) -> RecordChange {
    RecordChange::Retire(Bytes::from_static(owner.as_bytes()))
}

impl World {
    pub(super) fn begin_grace(&mut self, reclaiming: &[&'static str], forfeited: &[&'static str]) {
        let owners = |names: &[&'static str]| names.iter().map(|name| Bytes::from_static(name.as_bytes())).collect();
        self.state.begin_grace(V4Clients { reclaiming: owners(reclaiming), forfeited: owners(forfeited) });
        self.locks.begin_grace(self.now + LEASE);
    }

    pub(super) fn end_grace(&mut self) -> usize {
        self.locks.end_grace();
        self.state.end_grace()
    }

    fn records(&mut self) -> Vec<RecordChange> {
        std::iter::from_fn(|| self.state.poll_record()).collect()
    }

    fn remember(&mut self, client: Clientid4) -> Option<Bytes> {
        let owner = self.state.unstored_owner(client, self.now)?;
        self.state.client_stored(client, &owner, true);
        Some(owner)
    }

    /// A client that has lost what it had, and what that was.
    fn deprived(&mut self) -> (Clientid4, Stateid4) {
        let ((a, _), (b, _)) = (self.ready("a"), self.ready("b"));
        self.remember(a);
        let lost = self.open(a, "o", OPEN4_SHARE_ACCESS_WRITE, OPEN4_SHARE_DENY_BOTH).unwrap();
        self.now += 2 * LEASE;
        self.open(b, "o", OPEN4_SHARE_ACCESS_WRITE, 0).unwrap();
        assert_eq!(self.records(), [forfeit("a")], "before b is answered");
        assert_eq!(self.remember(a), None, "it may believe that it still has all");
        (a, lost)
    }
}

#[test]
fn a_client_is_remembered_once_and_forgotten_when_it_is_gone() {
    let mut world = World::new();
    let (a, session) = world.ready("a");
    assert_eq!(world.remember(a), Some(Bytes::from_static(b"a")));
    assert_eq!(world.remember(a), None, "it is remembered already");
    world.state.destroy_session(session, false, &OWNER, TCP.id).unwrap();
    world.state.destroy_clientid(world.now, a, None, &OWNER).unwrap();
    assert_eq!(world.records(), [retire("a")]);
    // One that never held anything was never remembered.
    let (b, session) = world.ready("b");
    world.state.destroy_session(session, false, &OWNER, TCP.id).unwrap();
    world.state.destroy_clientid(world.now, b, None, &OWNER).unwrap();
    assert_eq!(world.records(), []);
}

#[test]
fn a_client_that_restarts_is_the_same_to_be_remembered() {
    let mut world = World::new();
    let (old, _) = world.ready("a");
    world.remember(old);
    let (new, session) = world.client("a", 2);
    assert_eq!(world.records(), []);
    assert_eq!(world.remember(new), None);
    world.state.destroy_session(session, false, &OWNER, TCP.id).unwrap();
    world.state.destroy_clientid(world.now, new, None, &OWNER).unwrap();
    assert_eq!(world.records(), [retire("a")]);
}

/// What it held others may get now, and it may not know.
#[test]
fn the_record_of_a_client_that_held_something_is_removed_before_others_get_it() {
    let mut world = World::new();
    let (a, _) = world.ready("a");
    world.remember(a);
    world.open(a, "o", OPEN4_SHARE_ACCESS_READ, 0).unwrap();
    world.state.evict(a);
    assert_eq!(world.records(), [remove("a")]);

    world.begin_grace(&["b"], &[]);
    let (b, session) = world.client("b", 1);
    world.state.destroy_session(session, false, &OWNER, TCP.id).unwrap();
    world.state.destroy_clientid(world.now, b, None, &OWNER).unwrap();
    assert_eq!(world.records(), [remove("b")], "what it has not reclaimed");
}

#[test]
fn what_a_client_loses_it_cannot_reclaim_before_it_takes_note() {
    let mut world = World::new();
    let (a, lost) = world.deprived();
    world.state.free_stateid(&world.locks, a, &lost).unwrap();
    assert_eq!(world.records(), [remove("a")], "it has nothing that it could reclaim");
    let name = world.state.unstored_owner(a, world.now).unwrap();
    assert_eq!(name, "a");
    // It loses all once more while it is being written.
    world.state.revoke_all(&mut world.locks, a, Nfsstat4::AdminRevoked);
    assert_eq!(world.records(), [forfeit("a")]);
    world.state.client_stored(a, &name, true);
    assert_eq!(world.records(), [forfeit("a")], "it may have been written only after it was crossed out");
}

#[test]
fn who_could_not_be_remembered_is_to_be_with_its_next_open() {
    let mut world = World::new();
    let (a, _) = world.ready("a");
    let name = world.state.unstored_owner(a, world.now).unwrap();
    world.state.client_stored(a, &name, false);
    assert!(world.state.unstored_owner(a, world.now).is_some());
}

#[test]
fn who_is_deprived_of_a_delegation_reclaims_nothing_before_it_takes_note_and_then_what_it_has_kept() {
    let mut world = World::new();
    let (a, _) = world.ready("a");
    world.remember(a);
    world.open(a, "o", OPEN4_SHARE_ACCESS_WRITE, OPEN4_SHARE_DENY_NONE).unwrap();
    let lost = delegate_to_write(&mut world, a);
    assert_eq!(world.state.recall(&mut world.locks, &'f', (None, Access::Read), world.now), Err(Nfsstat4::Delay));
    world.now += LEASE;
    world.state.expire(world.now);
    assert_eq!(world.records(), [forfeit("a")], "others read now what it believes nobody else does");
    assert_eq!(world.remember(a), None);
    world.state.free_stateid(&world.locks, a, &lost).unwrap();
    assert_eq!(world.records(), [add("a")], "it still has its open");
    assert_eq!(world.remember(a), None, "and need not be written again");
}

#[test]
fn what_a_client_gets_before_it_has_taken_note_is_not_given_to_others_after_a_restart_at_once() {
    let mut world = World::new();
    let (a, lost) = world.deprived();
    world.open(a, "p", OPEN4_SHARE_ACCESS_WRITE, 0).unwrap();
    assert_eq!(world.records(), [], "it stands");
    world.state.free_stateid(&world.locks, a, &lost).unwrap();
    assert_eq!(world.records(), [add("a")]);
}

#[test]
fn who_has_lost_something_and_restarts_is_not_remembered() {
    let mut world = World::new();
    let (a, _) = world.ready("a");
    world.remember(a);
    world.state.revoke_all(&mut world.locks, a, Nfsstat4::AdminRevoked);
    assert_eq!(world.records(), [forfeit("a")]);
    let (a, _) = world.client("a", 2);
    assert_eq!(world.records(), [remove("a")], "it has nothing");
    assert_eq!(world.remember(a).as_deref(), Some(&b"a"[..]));
}

#[test]
fn who_has_lost_something_in_grace_is_not_remembered_when_it_ends() {
    let mut world = World::new();
    world.begin_grace(&["a"], &[]);
    let (a, _) = world.client("a", 1);
    world.state.revoke_all(&mut world.locks, a, Nfsstat4::AdminRevoked);
    assert_eq!(world.records(), [forfeit("a")]);
    assert_eq!(world.end_grace(), 0, "it is forgotten already");
    assert_eq!((world.records(), world.remember(a)), (vec![], None));
}

#[test]
fn who_has_not_reclaimed_all_when_grace_ends_is_forgotten() {
    let mut world = World::new();
    world.begin_grace(&["a", "b", "c"], &[]);
    let (a, _) = world.ready("a");
    assert_eq!(world.remember(a), None, "it is, from before the restart");
    let (b, _) = world.client("b", 1);
    let (_d, _) = world.ready("d");
    assert!(world.state.in_grace() && !world.state.may_end_grace());
    assert_eq!(world.end_grace(), 2, "b has come back, but others get now what it has not reclaimed");
    let changes = world.records();
    assert!(changes.len() == 2 && changes.contains(&remove("b")) && changes.contains(&remove("c")), "{changes:?}");
    assert!(!world.state.in_grace());
    assert_eq!(world.remember(b).as_deref(), Some(&b"b"[..]), "what it gets from now on is remembered");
}

#[test]
fn what_was_reclaimed_by_who_was_late_is_not_given_to_others_after_another_restart_at_once() {
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
    assert_eq!((world.records(), world.remember(a)), (vec![add("a")], None), "it knows what it has");

    let (mut world, a, _, stateid) = reclaiming();
    world.state.close(&mut world.locks, a, &'f', &stateid).unwrap();
    assert_eq!(world.records(), [], "it may ask for more");
    world.state.reclaim_complete(a, &complete).unwrap();
    assert_eq!(world.records(), [remove("a")]);

    let (mut world, a, _, stateid) = reclaiming();
    world.state.revoke_all(&mut world.locks, a, Nfsstat4::AdminRevoked);
    world.state.free_stateid(&world.locks, a, &stateid).unwrap();
    assert_eq!(world.records(), [], "it knows of that, but not of what it has not reclaimed");
    world.state.reclaim_complete(a, &complete).unwrap();
    assert_eq!(world.records(), [remove("a")]);

    let (mut world, a, session, _) = reclaiming();
    world.state.revoke_all(&mut world.locks, a, Nfsstat4::AdminRevoked);
    world.state.destroy_session(session, false, &OWNER, TCP.id).unwrap();
    world.now += 2 * LEASE;
    let _ = world.client("a", 2);
    assert_eq!(world.records(), [remove("a")], "it has begun anew");
}

#[test]
fn grace_lasts_for_who_may_not_reclaim_until_it_has_heard_of_the_restart() {
    let mut world = World::new();
    world.begin_grace(&["a"], &["b", "c"]);
    let _ = world.ready("a");
    assert!(!world.state.may_end_grace(), "b and c may believe that they have something");
    let (b, _) = world.client("b", 1);
    assert!(!world.state.may_reclaim(b) && !world.state.may_end_grace());
    world.state.reclaim_complete(b, &ReclaimCompleteArgs { one_fs: false }).unwrap();
    assert_eq!(world.records(), [remove("b")]);
    assert!(!world.state.may_end_grace(), "c has not been heard of");
    assert_eq!((world.end_grace(), world.records()), (1, vec![remove("c")]), "its lease is over");
}

/// What is stored after so many lives, each of which a client of `minor` version spends its lease in: it has a file open all the time.
fn lives(minor: u32) -> Vec<Vec<RecordChange>> {
    let mut stored = Vec::new();
    for life in 0..4 {
        let mut world = World::new();
        if life > 0 {
            world.begin_grace(&["a"], &[]);
        }
        let a = if minor == 0 { v40::introduce(&mut world, "a") } else { world.client("a", 1).0 };
        if life > 0 {
            assert_eq!(world.remember(a), None, "it is, from before the restart");
            world.reclaim(a, "o").unwrap_or_else(|status| panic!("life {life}: {}", status.name()));
        }
        if minor > 0 {
            world.state.reclaim_complete(a, &ReclaimCompleteArgs { one_fs: false }).unwrap();
        }
        if life > 0 {
            world.end_grace();
        } else {
            assert_eq!(world.remember(a).as_deref(), Some(&b"a"[..]));
            world.open(a, "o", OPEN4_SHARE_ACCESS_WRITE, 0).unwrap();
        }
        world.state.expire(world.now);
        world.state.drop_unused_records(world.now);
        stored.push(world.records());
    }
    stored
}

#[test]
fn a_client_of_any_version_reclaims_after_each_of_three_restarts() {
    for minor in [0, 1] {
        assert_eq!(lives(minor), vec![vec![]; 4], "4.{minor}");
    }
}

#[test]
fn a_client_has_the_minor_version_that_it_has_introduced_itself_by() {
    let mut world = World::new();
    let old = v40::introduce(&mut world, "old");
    let (new, _) = world.client("new", 1);
    let minor = |id| world.state.clients().find(id).unwrap().minorversion;
    assert_eq!((minor(old), minor(new)), (0, 1));
}

impl World {
    /// Looks after what has had its time.
    fn look(&mut self, later: Duration) -> Vec<RecordChange> {
        self.now += later;
        self.state.expire(self.now);
        self.state.drop_unused_records(self.now);
        let records = self.records();
        self.state.records_stored(&records, true);
        records
    }
}

#[test]
fn a_client_that_holds_nothing_for_a_while_is_not_remembered() {
    let mut world = World::new();
    let (a, session) = world.ready("a");
    world.remember(a);
    let opened = world.open(a, "o", OPEN4_SHARE_ACCESS_WRITE, 0).unwrap();
    assert_eq!(world.look(LEASE / 2), []);
    world.call(session, 1, 1);
    world.state.close(&mut world.locks, a, &'f', &opened).unwrap();
    // It opens one file after the other: nothing is written.
    for _ in 0..8 {
        assert_eq!(world.remember(a), None);
        let opened = world.open(a, "o", OPEN4_SHARE_ACCESS_WRITE, 0).unwrap();
        world.state.close(&mut world.locks, a, &'f', &opened).unwrap();
        assert_eq!(world.look(LEASE / 16), []);
    }
    // An OPEN that is being executed is about to give it something.
    let Begun::Execute(ticket) = world.sequence(session, 2, 1).unwrap().begun else { panic!("new") };
    assert_eq!(world.look(LEASE / 2), []);
    world.state.finish(world.now, session, ticket, "reply", false);
    assert_eq!(world.look(LEASE / 16), [retire("a")]);
    assert_eq!(world.look(LEASE / 16), []);
    assert_eq!(world.remember(a).as_deref(), Some(&b"a"[..]), "before its next open");
}

#[test]
fn grace_ends_at_once_where_those_that_may_reclaim_hold_nothing_or_were_silent() {
    let mut world = World::new();
    for name in ["idle", "dead", "dead40"] {
        let id = if name == "dead40" { v40::introduce(&mut world, name) } else { world.ready(name).0 };
        world.remember(id);
    }
    let clients = ["dead", "dead40"].map(|name| world.state.clients().confirmed(&Bytes::from(name)).unwrap());
    for id in clients {
        world.open(id, "o", OPEN4_SHARE_ACCESS_READ, 0).unwrap();
    }
    let mut changes = world.look(LEASE / 2);
    assert_eq!(changes, [retire("idle")]);
    changes = world.look(LEASE);
    changes.sort_by_key(|change| format!("{change:?}"));
    assert_eq!(changes, [remove("dead"), remove("dead40")]);
    // What they hold is still theirs, until somebody else wants it. They have no claim that others would have to hear of.
    world.state.revoke_all(&mut world.locks, clients[0], Nfsstat4::Expired);
    assert_eq!(world.records(), []);
}

#[test]
fn a_client_that_is_back_after_its_lease_is_remembered_before_it_is_answered() {
    let mut world = World::new();
    let (a, session) = world.ready("a");
    world.remember(a);
    world.open(a, "o", OPEN4_SHARE_ACCESS_WRITE, 0).unwrap();
    assert_eq!(world.look(LEASE + Duration::from_secs(1)), [remove("a")]);
    assert_eq!(world.sequence(session, 1, 1).unwrap_err(), Nfsstat4::Delay);
    assert_eq!(world.records(), [add("a")]);
    assert_eq!(world.sequence(session, 1, 1).unwrap_err(), Nfsstat4::Delay, "it is being stored");
    assert_eq!(world.records(), []);
    world.state.records_stored(&[add("a")], false);
    assert_eq!(world.sequence(session, 1, 1).unwrap_err(), Nfsstat4::Delay, "it could not be");
    assert_eq!(world.records(), [remove("a"), add("a")]);
    world.state.records_stored(&[add("a")], true);
    assert_eq!(world.call(session, 1, 1).status_flags, 0);
    assert_eq!(world.look(LEASE / 2), [], "it has a lease again");

    let old = v40::introduce(&mut world, "old");
    world.remember(old);
    world.open(old, "p", OPEN4_SHARE_ACCESS_READ, 0).unwrap();
    world.call(session, 2, 1);
    assert_eq!(world.look(LEASE / 2), []);
    world.call(session, 3, 1);
    assert_eq!(world.look(LEASE / 2 + Duration::from_secs(1)), [remove("old")]);
    assert_eq!(v40::renew(&mut world, old), Err(Nfsstat4::Delay));
    assert_eq!(world.records(), [add("old")]);
    world.state.records_stored(&[add("old")], true);
    assert_eq!(v40::renew(&mut world, old), Ok(()));
}

#[test]
fn a_client_that_is_evicted_in_grace_reclaims_nothing_by_its_name() {
    let mut world = World::new();
    world.begin_grace(&["a"], &[]);
    let (a, _) = world.client("a", 1);
    world.state.evict(a);
    assert_eq!(world.records(), [remove("a")]);
    let (a, _) = world.client("a", 2);
    assert!(!world.state.may_reclaim(a) && world.state.may_end_grace());
}

#[test]
fn records_are_not_given_up_while_nothing_can_be_stored() {
    let mut world = World::new();
    let (a, _) = world.ready("a");
    world.remember(a);
    world.state.set_storage_works(false);
    world.now += LEASE / 2;
    world.state.expire(world.now);
    world.state.drop_unused_records(world.now);
    assert_eq!(world.records(), [], "it would keep everybody from new opens");
    world.state.set_storage_works(true);
    world.now += LEASE / 4;
    world.state.expire(world.now);
    world.state.drop_unused_records(world.now);
    assert_eq!(world.records(), [retire("a")]);
}

#[test]
fn a_client_that_is_back_and_cannot_be_stored_again_is_crossed_out() {
    let mut world = World::new();
    let (a, _) = world.ready("a");
    world.remember(a);
    world.open(a, "o", OPEN4_SHARE_ACCESS_WRITE, OPEN4_SHARE_DENY_NONE).unwrap();
    world.now += 2 * LEASE;
    world.state.expire(world.now);
    world.state.drop_unused_records(world.now);
    assert_eq!(world.records(), [remove("a")], "its lease is over");
    for stored in [false, true] {
        assert_eq!(world.state.check_stored(a), Err(Nfsstat4::Delay));
        world.state.records_stored(&[add("a")], stored);
        let expected = if stored { vec![add("a")] } else { vec![add("a"), remove("a")] };
        assert_eq!(world.records(), expected);
    }
    assert_eq!(world.state.check_stored(a), Ok(()));
}
