//! Opens and the use of stateids: the cases of RFC 8881 §9, §18.2, §18.16, §18.18, §18.38 and §18.48.

use super::{
    lock::{denied, owner},
    *,
};

const READ: u32 = OPEN4_SHARE_ACCESS_READ;
const WRITE: u32 = OPEN4_SHARE_ACCESS_WRITE;
const BOTH: u32 = OPEN4_SHARE_ACCESS_BOTH;

impl World {
    fn downgrade(&mut self, client: Clientid4, open: Stateid4, access: u32, deny: u32) -> Result<Stateid4, Nfsstat4> {
        let args = OpenDowngradeArgs { open_stateid: open, seqid: Seqid4(0), share_access: access, share_deny: deny };
        self.state.open_downgrade(&mut self.locks, client, &'f', &args)
    }

    fn close(&mut self, client: Clientid4, open: Stateid4) -> Result<Stateid4, Nfsstat4> {
        self.state.close(&mut self.locks, client, &'f', &open)
    }

    pub(super) fn io(&mut self, client: Clientid4, stateid: Stateid4, write: bool) -> Result<(), Nfsstat4> {
        self.io_of(client, 'f', &stateid, write)
    }

    pub(super) fn test(&self, client: Clientid4, stateids: &[Stateid4]) -> Vec<Nfsstat4> {
        self.state.test_stateid(client, &TestStateidArgs { stateids: stateids.to_vec() })
    }

    fn free(&mut self, client: Clientid4, stateid: Stateid4) -> Result<(), Nfsstat4> {
        self.state.free_stateid(&self.locks, client, &stateid)
    }
}

#[test]
fn owner_has_one_open_of_a_file() {
    let mut world = World::new();
    let (client, _) = world.ready("a");
    let first = world.open(client, "o", READ, 0).unwrap();
    let second = world.open(client, "o", WRITE, OPEN4_SHARE_DENY_WRITE).unwrap();
    assert_eq!((second.other, second.seqid), (first.other, 2));
    assert_eq!(world.io(client, first, false), Err(Nfsstat4::OldStateid));
    assert_eq!(world.io(client, second, true), Ok(()));
    assert_eq!(world.open(client, "p", WRITE, 0), Err(Nfsstat4::ShareDenied), "a different owner conflicts");
    assert_eq!(world.open(client, "o", WRITE, 0), Err(Nfsstat4::ShareDenied), "the deny applies to the same owner");
    let other = world.open(client, "p", READ, 0).unwrap();
    assert_ne!(other.other, first.other);
    assert_eq!(world.close(client, second), Ok(Stateid4::INVALID));
    assert_eq!(world.io(client, second, false), Err(Nfsstat4::BadStateid));
    assert!(world.open(client, "p", WRITE, 0).is_ok());
}

#[test]
fn conflicting_open_fails_and_changes_nothing() {
    let mut world = World::new();
    let ((a, _), (b, _)) = (world.ready("a"), world.ready("b"));
    let held = world.open(a, "o", READ, OPEN4_SHARE_DENY_WRITE).unwrap();
    assert_eq!(world.open(b, "o", WRITE, 0), Err(Nfsstat4::ShareDenied));
    assert_eq!(world.open(b, "o", READ, OPEN4_SHARE_DENY_READ), Err(Nfsstat4::ShareDenied));
    let reader = world.open(b, "o", READ, 0).unwrap();
    assert_eq!(world.open(b, "o", WRITE, 0), Err(Nfsstat4::ShareDenied), "an upgrade conflicts too");
    assert_eq!(world.io(b, reader, true), Err(Nfsstat4::OpenMode));
    assert_eq!(world.io(b, reader, false), Ok(()));
    world.close(a, held).unwrap();
    assert_eq!(world.open(b, "o", WRITE, 0).unwrap().seqid, 2);
    for (access, deny) in [(0, 0), (4, 0), (READ, 4)] {
        //= rfc8881-18.16.4-5 rfc8881-18.16.4-6 rfc8881-18.16.4-7 rfc8881-18.16.4-8
        assert_eq!(world.open(b, "o", access, deny), Err(Nfsstat4::Inval), "{access} {deny}");
    }
}

#[test]
fn downgrade_needs_a_matching_earlier_open() {
    let mut world = World::new();
    let ((a, _), (b, _)) = (world.ready("a"), world.ready("b"));
    let whole = world.open(a, "o", BOTH, OPEN4_SHARE_DENY_WRITE).unwrap();
    assert_eq!(
        world.downgrade(a, whole, READ, OPEN4_SHARE_DENY_WRITE),
        Err(Nfsstat4::Inval),
        "there was a single open"
    );
    let whole = world.open(a, "o", READ, 0).unwrap();
    assert_eq!(world.open(b, "o", WRITE, 0), Err(Nfsstat4::ShareDenied));
    let less = world.downgrade(a, whole, READ, 0).unwrap();
    assert_eq!(less.seqid, 3);
    assert_eq!(world.io(a, less, true), Err(Nfsstat4::OpenMode));
    assert!(world.open(b, "o", WRITE, 0).is_ok());
    assert_eq!(world.downgrade(a, less, BOTH, 0), Err(Nfsstat4::Inval), "a downgrade does not restore access");
    let want = OPEN4_SHARE_ACCESS_WANT_NO_DELEG;
    assert!(world.downgrade(a, less, READ | want, 0).is_ok());
    //= rfc8881-18.18.3-1 rfc8881-18.18.3-2
    assert_eq!(world.downgrade(a, less, 0, 0), Err(Nfsstat4::Inval));
}

#[test]
fn two_opens_form_a_union() {
    let mut world = World::new();
    let (a, _) = world.ready("a");
    world.open(a, "o", READ, 0).unwrap();
    let both = world.open(a, "o", WRITE, 0).unwrap();
    let same = world.downgrade(a, both, BOTH, 0).unwrap();
    let less = world.downgrade(a, same, WRITE, 0).unwrap();
    assert_eq!(world.downgrade(a, less, READ, 0), Err(Nfsstat4::Inval));
    world.open(a, "p", READ, 0).unwrap();
    world.open(a, "p", WRITE, 0).unwrap();
    let both = world.open(a, "p", BOTH, 0).unwrap();
    assert!(world.downgrade(a, both, BOTH, 0).is_ok(), "there were more opens than the union needs");
}

#[test]
fn downgrade_keeps_or_ends_a_deny() {
    let mut world = World::new();
    let ((a, _), (b, _)) = (world.ready("a"), world.ready("b"));
    world.open(a, "o", BOTH, OPEN4_SHARE_DENY_WRITE).unwrap();
    let whole = world.open(a, "o", READ, 0).unwrap();
    let kept = world.downgrade(a, whole, READ, OPEN4_SHARE_DENY_WRITE).unwrap();
    assert_eq!(world.open(b, "o", WRITE, 0), Err(Nfsstat4::ShareDenied));
    let ended = world.downgrade(a, kept, READ, 0).unwrap();
    assert_eq!(
        world.downgrade(a, ended, READ, OPEN4_SHARE_DENY_WRITE),
        Err(Nfsstat4::Inval),
        "a downgrade does not restore a deny"
    );
    assert!(world.open(b, "o", WRITE, 0).is_ok());
}

#[test]
fn invalid_ranges_modes_and_stateids_are_rejected() {
    let mut world = World::new();
    let ((a, _), (b, _)) = (world.ready("a"), world.ready("b"));
    let open = world.open(a, "o", READ, 0).unwrap();
    let status = |result: Result<Stateid4, LockFailure>| match result {
        Err(LockFailure::Status(status)) => status,
        other => panic!("{other:?}"),
    };
    for range in [(0, 0), (2, u64::MAX - 1), (u64::MAX, 2)] {
        //= rfc8881-18.10.3-1
        assert_eq!(status(world.lock(a, open, "l", range)), Nfsstat4::Inval, "{range:?}");
    }
    assert_eq!(status(world.lock(a, open, "l", (0, 1))), Nfsstat4::OpenMode, "an exclusive lock needs write access");
    //= rfc8881-18.46.4-1
    assert_eq!(status(world.lock(b, open, "l", (0, 1))), Nfsstat4::BadStateid, "the open belongs to another client");
    assert_eq!(status(world.relock(a, open, (0, 1))), Nfsstat4::BadStateid, "an open stateid is not a lock stateid");
    assert_eq!(world.unlock(a, open, (0, 1)), Err(Nfsstat4::BadStateid));
    let writer = world.open(a, "o", WRITE, 0).unwrap();
    let lock = world.lock(a, writer, "l", (0, 1)).unwrap();
    assert_eq!(status(world.lock(a, lock, "l", (0, 1))), Nfsstat4::BadStateid, "a lock stateid is not an open stateid");
    assert_eq!(world.close(a, lock), Err(Nfsstat4::BadStateid));
    assert_eq!(status(world.lock(a, Stateid4::ANONYMOUS, "l", (0, 1))), Nfsstat4::BadStateid);
}

#[test]
fn close_releases_only_the_locks_under_the_open() {
    let mut world = World::new();
    let ((a, _), (b, _)) = (world.ready("a"), world.ready("b"));
    let one = world.open(a, "o", BOTH, 0).unwrap();
    let two = world.open(a, "p", BOTH, 0).unwrap();
    let open_b = world.open(b, "o", BOTH, 0).unwrap();
    let alone = world.lock(a, one, "alone", (0, 10)).unwrap();
    let shared = world.lock(a, one, "shared", (20, 10)).unwrap();
    world.lock(a, two, "shared", (40, 10)).unwrap();
    world.close(a, one).unwrap();
    //= rfc8881-18.2.3-1 rfc8881-9.8-2
    assert_eq!(world.test(a, &[alone, shared]), [Nfsstat4::BadStateid; 2]);
    world.lock(b, open_b, "l", (0, 10)).unwrap();
    denied(world.lock(b, open_b, "l", (20, 1)).unwrap_err());
    world.close(a, two).unwrap();
    world.lock(b, open_b, "l", (20, 30)).unwrap();
}

#[test]
fn lock_stateid_without_locks_can_be_freed() {
    let mut world = World::new();
    let ((a, _), (b, _)) = (world.ready("a"), world.ready("b"));
    let open = world.open(a, "o", BOTH, 0).unwrap();
    let lock = world.lock(a, open, "l", (0, 10)).unwrap();
    assert_eq!(world.free(a, open), Err(Nfsstat4::LocksHeld));
    assert_eq!(world.free(a, lock), Err(Nfsstat4::LocksHeld));
    let lock = world.unlock(a, lock, (0, 10)).unwrap();
    assert_eq!(world.free(b, lock), Err(Nfsstat4::BadStateid));
    let old = Stateid4 { seqid: 1, ..lock };
    assert_eq!(world.test(a, &[lock, old, open]), [Nfsstat4::Ok, Nfsstat4::OldStateid, Nfsstat4::Ok]);
    assert_eq!(world.free(a, lock), Ok(()));
    assert_eq!(world.test(a, &[lock, Stateid4::ANONYMOUS]), [Nfsstat4::BadStateid; 2]);
    assert_eq!(world.free(a, Stateid4::CURRENT), Err(Nfsstat4::BadStateid));
    assert_eq!(world.lock(a, open, "l", (0, 10)).unwrap().seqid, 1, "a new stateid");
}

#[test]
fn special_stateid_permits_io_unless_a_share_denies_it() {
    let mut world = World::new();
    let (a, _) = world.ready("a");
    for special in [Stateid4::ANONYMOUS, Stateid4::READ_BYPASS] {
        assert_eq!((world.io(a, special, false), world.io(a, special, true)), (Ok(()), Ok(())));
    }
    world.open(a, "o", READ, OPEN4_SHARE_DENY_WRITE).unwrap();
    for special in [Stateid4::ANONYMOUS, Stateid4::READ_BYPASS] {
        //= rfc8881-18.32.3-6 rfc8881-9.1.2-4
        assert_eq!((world.io(a, special, false), world.io(a, special, true)), (Ok(()), Err(Nfsstat4::Locked)));
    }
    //= rfc8881-8.2.3-5
    assert_eq!(world.io(a, Stateid4::INVALID, false), Err(Nfsstat4::BadStateid));
    assert_eq!(world.io(a, Stateid4::CURRENT, false), Err(Nfsstat4::BadStateid), "the caller must replace it");
}

#[test]
fn open_for_writing_permits_reading() {
    let mut world = World::new();
    let (a, _) = world.ready("a");
    let open = world.open(a, "o", WRITE, 0).unwrap();
    assert_eq!((world.io(a, open, false), world.io(a, open, true)), (Ok(()), Ok(())));
}

#[test]
fn open_for_writing_permits_no_reading_that_another_open_denies() {
    let mut world = World::new();
    let ((a, _), (b, _)) = (world.ready("a"), world.ready("b"));
    let open = world.open(a, "o", WRITE, OPEN4_SHARE_DENY_READ).unwrap();
    let lock = world.lock(a, open, "l", (0, 10)).unwrap();
    assert_eq!(
        (world.io(a, open, false), world.io(a, lock, false)),
        (Ok(()), Ok(())),
        "its own open denies it to others"
    );
    let denying = world.open(b, "o", WRITE, OPEN4_SHARE_DENY_READ).unwrap();
    //= rfc8881-9.1.2-3
    assert_eq!((world.io(a, open, false), world.io(a, lock, false)), (Err(Nfsstat4::Locked), Err(Nfsstat4::Locked)));
    assert_eq!((world.io(a, open, true), world.io(a, lock, true)), (Ok(()), Ok(())));
    world.close(b, denying).unwrap();
    assert_eq!(world.io(a, open, false), Ok(()));
}

#[test]
fn open_for_writing_permits_writing_while_another_open_denies_reading() {
    let mut world = World::new();
    let ((a, _), (b, _)) = (world.ready("a"), world.ready("b"));
    let open = world.open(a, "o", WRITE, 0).unwrap();
    world.open(b, "o", WRITE, OPEN4_SHARE_DENY_READ).unwrap();
    assert_eq!(world.io(a, open, true), Ok(()));
    assert_eq!(world.io(a, open, false), Err(Nfsstat4::Locked));
}

#[test]
fn stateid_of_another_type_is_rejected() {
    let mut world = World::new();
    let (a, _) = world.ready("a");
    let open = world.open(a, "o", BOTH, 0).unwrap();
    let lock = world.lock(a, open, "l", (0, 10)).unwrap();
    let bad = Nfsstat4::BadStateid;
    //= rfc8881-8.2.4-1
    assert_eq!(world.relock(a, open, (20, 10)), Err(LockFailure::Status(bad)));
    assert_eq!(world.lock(a, lock, "other", (20, 10)), Err(LockFailure::Status(bad)));
    assert_eq!((world.unlock(a, open, (0, 10)), world.close(a, lock)), (Err(bad), Err(bad)));
    assert_eq!((world.downgrade(a, lock, READ, 0), world.state.delegreturn(a, &'f', &open)), (Err(bad), Err(bad)));
    assert_eq!(world.test(a, &[open, lock]), [Nfsstat4::Ok; 2], "they are valid for other operations");
}

#[test]
fn reclaim_that_conflicts_with_a_reclaimed_open_is_denied() {
    let mut world = World::new();
    world.begin_grace(&["a", "b"], &[]);
    let ((a, _), (b, _)) = (world.client("a", 1), world.client("b", 1));
    let reclaim = |world: &mut World, client, owner, how| world.open_how(client, owner, how, true);
    let open = reclaim(&mut world, a, "o", (BOTH, OPEN4_SHARE_DENY_WRITE)).unwrap();
    for how in [(WRITE, OPEN4_SHARE_DENY_NONE), (READ, OPEN4_SHARE_DENY_READ)] {
        //= rfc8881-8.4.2.1.1-1
        assert_eq!(reclaim(&mut world, b, "o", how), Err(Nfsstat4::ShareDenied));
        assert_eq!(reclaim(&mut world, a, "p", how), Err(Nfsstat4::ShareDenied), "another owner of the same client");
        assert!(matches!(how, (WRITE, _)) || reclaim(&mut world, a, "o", how) == Err(Nfsstat4::ShareDenied));
    }
    let again = reclaim(&mut world, a, "o", (WRITE, OPEN4_SHARE_DENY_WRITE)).unwrap();
    assert_eq!(again.other, open.other, "a repeated reclaim");
    reclaim(&mut world, b, "o", (READ, OPEN4_SHARE_DENY_NONE)).unwrap();
}

#[test]
fn open_before_reclaim_complete_fails() {
    let mut world = World::new();
    let (a, _) = world.client("a", 1);
    assert_eq!(world.open(a, "o", READ, 0), Err(Nfsstat4::Grace));
    world.state.reclaim_complete(a, &ReclaimCompleteArgs { one_fs: false }).unwrap();
    assert!(world.open(a, "o", READ, 0).is_ok());
}

#[test]
fn clients_with_earlier_state_reclaim_it_in_the_grace_period() {
    let mut world = World::new();
    world.begin_grace(&["a"], &[]);
    let ((a, _), (b, _)) = (world.client("a", 1), world.client("b", 1));
    let reclaim = |world: &mut World, client, reclaim| world.open_how(client, "o", (BOTH, 0), reclaim);
    let open = reclaim(&mut world, a, true).unwrap();
    //= rfc8881-8.4.3-2
    assert_eq!(reclaim(&mut world, b, true), Err(Nfsstat4::ReclaimBad), "it held no state before the restart");
    let locker =
        Locker4::New { open_seqid: Seqid4(0), open_stateid: open, lock_seqid: Seqid4(0), lock_owner: owner(a, "l") };
    let mut args = LockArgs { locktype: NfsLockType4::Write, reclaim: true, offset: 0, length: 1, locker };
    world.state.lock(&mut world.locks, a, &'f', &args, world.now).unwrap();
    assert_eq!(world.io(a, Stateid4::ANONYMOUS, false), Err(Nfsstat4::Grace));
    for client in [a, b] {
        world.state.reclaim_complete(client, &ReclaimCompleteArgs { one_fs: false }).unwrap();
    }
    assert_eq!(reclaim(&mut world, a, true), Err(Nfsstat4::NoGrace), "it has sent RECLAIM_COMPLETE");
    args.offset = 5;
    let late = world.state.lock(&mut world.locks, a, &'f', &args, world.now);
    assert_eq!(late, Err(LockFailure::Status(Nfsstat4::NoGrace)));
    assert_eq!(reclaim(&mut world, b, false), Err(Nfsstat4::Grace));
    assert!(world.state.may_end_grace());
    world.end_grace();
    assert!(reclaim(&mut world, b, false).is_ok());
    assert_eq!(reclaim(&mut world, b, true), Err(Nfsstat4::NoGrace));
}

#[test]
fn state_of_an_expired_client_is_revoked_on_conflict() {
    let mut world = World::new();
    let ((a, session), (b, lively)) = (world.ready("a"), world.ready("b"));
    let open = world.open(a, "o", BOTH, OPEN4_SHARE_DENY_WRITE).unwrap();
    let lock = world.lock(a, open, "l", (0, 1)).unwrap();
    world.events();
    world.now += LEASE;
    assert_eq!(world.open(b, "o", WRITE, 0), Err(Nfsstat4::ShareDenied), "the lease is still valid");
    world.call(lively, 1, 2);
    world.now += Duration::from_secs(1);
    world.state.expire(world.now);
    assert_eq!(world.test(a, &[open, lock]), [Nfsstat4::Ok; 2], "nothing is revoked without a conflict");
    assert!(world.open(b, "o", WRITE, 0).is_ok());
    //= rfc8881-8.4.3-1
    assert_eq!(world.test(a, &[open, lock]), [Nfsstat4::Expired; 2]);
    assert_eq!(world.io(a, open, true), Err(Nfsstat4::Expired));
    assert!(world.events().contains(&Event::Revoked(a)));
    // §18.46.3: SEQUENCE reports the loss, and the lease is not renewed, until the client has freed all revoked
    // stateids.
    assert_eq!(world.call(session, 1, 1).status_flags, SEQ4_STATUS_EXPIRED_SOME_STATE_REVOKED);
    assert!(world.state.clients().is_expired(a, world.now));
    assert_eq!(world.free(a, open), Ok(()));
    assert_eq!(world.call(session, 2, 1).status_flags, SEQ4_STATUS_EXPIRED_SOME_STATE_REVOKED);
    assert_eq!(world.free(a, lock), Ok(()));
    assert_eq!(world.call(session, 3, 1).status_flags, 0);
    assert!(!world.state.clients().is_expired(a, world.now));
    assert_eq!(world.open(a, "o", READ, 0).unwrap().seqid, 1);
}

#[test]
fn lock_of_an_expired_client_is_revoked_on_conflict() {
    let mut world = World::new();
    let ((a, _), (b, _)) = (world.ready("a"), world.ready("b"));
    let open_a = world.open(a, "o", BOTH, 0).unwrap();
    world.lock(a, open_a, "l", (0, 1)).unwrap();
    world.now += LEASE + Duration::from_secs(1);
    let open_b = world.open(b, "o", BOTH, 0).unwrap();
    assert_eq!(world.test(a, &[open_a]), [Nfsstat4::Ok], "the opens did not conflict");
    world.lock(b, open_b, "l", (0, 1)).unwrap();
    assert_eq!(world.test(a, &[open_a]), [Nfsstat4::Expired]);
}

#[test]
fn client_does_not_expire_while_a_request_executes() {
    let mut world = World::new();
    let ((a, session), (b, _)) = (world.ready("a"), world.ready("b"));
    world.open(a, "o", READ, OPEN4_SHARE_DENY_WRITE).unwrap();
    let Begun::Execute(ticket) = world.sequence(session, 1, 1).unwrap().begun else { panic!("the request is new") };
    world.now += LEASE * 2;
    assert_eq!(world.open(b, "o", WRITE, 0), Err(Nfsstat4::ShareDenied));
    world.state.finish(world.now, session, ticket, "reply", false);
    world.now += LEASE;
    //= rfc8881-8.3-3 rfc8881-8.3-4
    assert_eq!(world.open(b, "o", WRITE, 0), Err(Nfsstat4::ShareDenied), "the lease begins at the end of the request");
    world.now += Duration::from_secs(1);
    assert!(world.open(b, "o", WRITE, 0).is_ok());
}

#[test]
fn administrator_revokes_state() {
    let mut world = World::new();
    let (a, session) = world.ready("a");
    let open = world.open(a, "o", READ, 0).unwrap();
    world.state.revoke_all(&mut world.locks, a, Nfsstat4::AdminRevoked);
    assert_eq!(world.io(a, open, false), Err(Nfsstat4::AdminRevoked));
    assert_eq!(world.call(session, 1, 1).status_flags, SEQ4_STATUS_ADMIN_STATE_REVOKED);
    let new = world.open(a, "o", READ, 0).unwrap();
    assert_ne!(new.other, open.other);
    assert_eq!(world.free(a, open), Ok(()));
    assert_eq!(world.call(session, 2, 1).status_flags, 0);
}

#[test]
fn removed_client_holds_no_state() {
    let mut world = World::new();
    let (old, _) = world.ready("a");
    let open = world.open(old, "o", BOTH, 0).unwrap();
    let lock = world.lock(old, open, "l", (0, 1)).unwrap();
    let new = world.exchange(&exchange("a", 2, 0), &OWNER).unwrap().clientid;
    assert_eq!(world.test(old, &[open, lock]), [Nfsstat4::Ok; 2]);
    world.create(&create(new, 1)).unwrap();
    assert_eq!(world.test(old, &[open, lock]), [Nfsstat4::BadStateid; 2]);
    assert!(world.events().contains(&Event::Removed(old)));
}

#[test]
fn each_client_keeps_a_reserved_share_of_stateids() {
    // The first half of 800 stateids is granted on demand, at most a quarter of it to one host. In the other half each
    // of 8 clients has 50.
    let mut world = World::with(|options| options.stateids_max = 800);
    let from = |world: &mut World, host: u8, name: &str| {
        world.peer = Ipv4Addr::new(192, 0, 2, host).into();
        world.ready(name).0
    };
    let (a, b, c) = (from(&mut world, 1, "a"), from(&mut world, 1, "b"), from(&mut world, 2, "c"));
    let owners: Vec<&'static str> = (0..200).map(|n| &*n.to_string().leak()).collect();
    let fill =
        |world: &mut World, client| owners.iter().filter(|owner| world.open(client, owner, READ, 0).is_ok()).count();
    assert_eq!((fill(&mut world, a), fill(&mut world, b), fill(&mut world, c)), (100, 50, 62));
    assert_eq!(world.open(a, "more", READ, 0), Err(Nfsstat4::Delay));
}

#[test]
fn stateids_of_a_client_are_bounded() {
    let mut world = World::with(|options| options.stateids_max = 800);
    let (a, _) = world.ready("a");
    let open = world.open(a, "o", BOTH, 0).unwrap();
    let mut last = None;
    for n in 0..200u32 {
        let locker = Locker4::New {
            open_seqid: Seqid4(0),
            open_stateid: open,
            lock_seqid: Seqid4(0),
            lock_owner: StateOwner4 { clientid: a, owner: n.to_string().as_str().into() },
        };
        match world.lock_by(a, locker, NfsLockType4::Write, (0, 1)) {
            // A lock-owner that has unlocked all its ranges still has its stateid.
            Ok(lock) => last = Some((n, world.unlock(a, lock, (0, 1)).unwrap())),
            Err(failure) => assert_eq!(failure, LockFailure::Status(Nfsstat4::Delay)),
        }
    }
    let (n, lock) = last.unwrap();
    assert_eq!(n, 98);
    assert!(world.relock(a, lock, (0, 1)).is_ok(), "existing stateids stay usable");
    for owner in ["p", "o"] {
        assert_eq!(
            world.open(a, owner, READ, 0),
            Err(Nfsstat4::Delay),
            "the plan cannot know whether the owner has the file open"
        );
    }
}

/// A plan reserves nothing, so the commit repeats the checks.
#[test]
fn plan_reserves_nothing() {
    let mut world = World::new();
    let ((a, _), (b, _)) = (world.ready("a"), world.ready("b"));
    let plan = |world: &mut World, client, owner: &'static [u8]| {
        let request = opening(client, Bytes::from_static(owner));
        world.state.plan_open(&world.locks, request, world.now).unwrap()
    };
    let target = OpenTarget { file: &'f', change: None, truncates: false };
    let (first, second) = (plan(&mut world, a, b"o"), plan(&mut world, a, b"p"));
    drop(plan(&mut world, a, b"dropped"));
    assert_eq!((world.state.stateids.total(), world.locks.units()), (0, 0));
    // In the meantime another client denies reading.
    let denies = world.open(b, "o", BOTH, OPEN4_SHARE_DENY_READ).unwrap();
    let commit = |world: &mut World, plan| {
        world.state.commit_open(&mut world.locks, plan, target, world.now).map(|opened| opened.stateid)
    };
    assert_eq!(commit(&mut world, &first), Err(Nfsstat4::ShareDenied));
    world.state.close(&mut world.locks, b, &'f', &denies).unwrap();
    commit(&mut world, &first).unwrap();
    // In the meantime the client has reached its limit of stateids.
    world.state.options.client_stateids_max = 1;
    assert_eq!(commit(&mut world, &second), Err(Nfsstat4::Delay));
    assert_eq!(commit(&mut world, &first).unwrap().seqid, 2, "an existing open");
    assert_eq!(world.state.stateids.total(), 1);
}
