//! Byte-range locks: the cases of RFC 8881 §9.4–9.6 and §18.10–18.12.

use super::{reduce::reachable, *};
use crate::{
    sharing::locks::{LockClient, Owner},
    v4::state::transitions::lock::{lock_owner, name_of_lock_owner},
};

const READ: u32 = OPEN4_SHARE_ACCESS_READ;
const BOTH: u32 = OPEN4_SHARE_ACCESS_BOTH;

pub(super) fn owner(clientid: Clientid4, name: &'static str) -> StateOwner4 {
    StateOwner4 { clientid, owner: name.into() }
}

/// Returns a lock-owner that gets its first lock under an open.
fn new_owner(client: Clientid4, open_stateid: Stateid4, name: &'static str) -> Locker4 {
    let (open_seqid, lock_seqid) = (Seqid4(0), Seqid4(0));
    Locker4::New { open_seqid, open_stateid, lock_seqid, lock_owner: owner(client, name) }
}

impl World {
    pub(super) fn lock_by(
        &mut self,
        client: Clientid4,
        locker: Locker4,
        locktype: NfsLockType4,
        (offset, length): (u64, u64),
    ) -> Result<Stateid4, LockFailure> {
        let args = LockArgs { locktype, reclaim: false, offset, length, locker };
        self.state.lock(&mut self.locks, client, &'f', &args, self.now)
    }

    /// Locks a range, by a new lock-owner of an open.
    pub(super) fn lock(
        &mut self,
        client: Clientid4,
        open: Stateid4,
        name: &'static str,
        bytes: (u64, u64),
    ) -> Result<Stateid4, LockFailure> {
        self.lock_by(client, new_owner(client, open, name), NfsLockType4::Write, bytes)
    }

    /// Locks a further range, by a lock stateid.
    pub(super) fn relock(
        &mut self,
        client: Clientid4,
        lock: Stateid4,
        bytes: (u64, u64),
    ) -> Result<Stateid4, LockFailure> {
        let locker = Locker4::Exist { lock_stateid: lock, lock_seqid: Seqid4(0) };
        self.lock_by(client, locker, NfsLockType4::Write, bytes)
    }

    pub(super) fn unlock(
        &mut self,
        client: Clientid4,
        lock: Stateid4,
        (offset, length): (u64, u64),
    ) -> Result<Stateid4, Nfsstat4> {
        let args = LockUArgs { locktype: NfsLockType4::Write, seqid: Seqid4(0), lock_stateid: lock, offset, length };
        self.state.locku(&mut self.locks, client, &'f', &args)
    }
}

pub(super) fn denied(failure: LockFailure) -> LockDenied4 {
    match failure {
        LockFailure::Denied(denied) => denied,
        LockFailure::Status(status) => panic!("{status:?}"),
    }
}

#[test]
fn locks_have_their_own_stateid_and_conflict() {
    let mut world = World::new();
    let ((a, _), (b, _)) = (world.ready("a"), world.ready("b"));
    let open_a = world.open(a, "o", BOTH, 0).unwrap();
    let open_b = world.open(b, "o", BOTH, 0).unwrap();
    let lock = world.lock(a, open_a, "l", (10, 10)).unwrap();
    assert_eq!(lock.seqid, 1);
    let again = world.relock(a, lock, (30, LENGTH_TO_EOF)).unwrap();
    //= rfc8881-9.4-1
    assert_eq!((again.other, again.seqid), (lock.other, 2));
    assert_eq!(
        world.lock(a, open_a, "l", (50, 1)).unwrap(),
        Stateid4 { seqid: 3, ..lock },
        "by the open stateid again"
    );
    let refused = denied(world.lock(b, open_b, "l", (15, 10)).unwrap_err());
    let expected =
        LockDenied4 { offset: 10, length: 10, locktype: NfsLockType4::Write, owner: owner(Clientid4(0), "l") };
    assert_eq!(refused, expected, "the client ID of another client must not be disclosed");
    let refused = denied(world.lock(b, open_b, "l", (40, 1)).unwrap_err());
    assert_eq!((refused.offset, refused.length), (30, LENGTH_TO_EOF));
    let args = LockTArgs { locktype: NfsLockType4::Read, offset: 12, length: 1, owner: owner(b, "l") };
    assert!(world.state.lockt(&world.locks, b, &'f', &args).is_err());
    assert_eq!(world.state.lockt(&world.locks, a, &'f', &args), Ok(()), "the client's own lock does not conflict");
    let lock = Stateid4 { seqid: 0, ..lock };
    assert_eq!(world.unlock(a, lock, (10, 10)).unwrap().seqid, 4);
    world.lock(b, open_b, "l", (15, 10)).unwrap();
    assert_eq!(world.io(a, lock, true), Ok(()), "a lock stateid permits what its open permits");
    assert_eq!(world.io(a, Stateid4 { seqid: 4, ..lock }, true), Ok(()));
    world.unlock(a, lock, (15, 1)).unwrap();
    assert_eq!(
        world.io(a, Stateid4 { seqid: 4, ..lock }, true),
        Err(Nfsstat4::OldStateid),
        "an earlier use does not keep it valid"
    );
    // A lock stateid permits no more than its open.
    let args = OpenDowngradeArgs { open_stateid: open_a, seqid: Seqid4(0), share_access: READ, share_deny: 0 };
    assert_eq!(world.io(a, lock, true), Ok(()));
    world.open(a, "o", READ, 0).unwrap();
    world
        .state
        .open_downgrade(
            &mut world.locks,
            a,
            &'f',
            &OpenDowngradeArgs { open_stateid: Stateid4 { seqid: 0, ..open_a }, ..args },
        )
        .unwrap();
    assert_eq!(world.io(a, lock, true), Err(Nfsstat4::OpenMode));
}

/// The same process can open a file by two open-owners, and lock it through both opens.
#[test]
fn lock_owner_under_two_opens_has_one_set_of_locks() {
    let mut world = World::new();
    let (a, _) = world.ready("a");
    let (one, two) = (world.open(a, "o", BOTH, 0).unwrap(), world.open(a, "p", BOTH, 0).unwrap());
    let first = world.lock(a, one, "l", (0, 30)).unwrap();
    let test = |world: &World, offset| {
        let (locktype, owner) = (NfsLockType4::Read, owner(a, "other"));
        world.state.lockt(&world.locks, a, &'f', &LockTArgs { locktype, offset, length: 1, owner }).map_err(denied)
    };
    // The lock-owner makes a part of its lock a shared one, through the other open.
    let second = world.lock_by(a, new_owner(a, two, "l"), NfsLockType4::Read, (10, 10)).unwrap();
    assert_ne!(second.other, first.other);
    //= rfc8881-9.5-1
    assert_eq!((test(&world, 5).unwrap_err().length, test(&world, 15), test(&world, 25).is_err()), (10, Ok(()), true));
    //= rfc8881-9.5-3
    assert_eq!(world.test(a, &[first]), [Nfsstat4::Ok], "the locks through the first open changed by the second");
    let again = world.relock(a, first, (10, 10)).unwrap();
    let moved = world.relock(a, second, (10, 10)).unwrap();
    //= rfc8881-9.5-2
    assert_eq!((again.seqid, moved.seqid), (first.seqid + 1, second.seqid + 1), "the same lock through another open");
    let freed = world.unlock(a, moved, (0, 30)).unwrap();
    //= rfc8881-9.5-1
    assert_eq!([5, 15, 25].map(|offset| test(&world, offset)), [Ok(()), Ok(()), Ok(())]);
    //= rfc8881-9.5-2 rfc8881-9.5-3
    assert_eq!((freed.seqid, world.test(a, &[again])), (moved.seqid + 1, vec![Nfsstat4::Ok]));
}

#[test]
fn client_that_waits_for_a_denied_lock_is_notified_if_it_can_be_called() {
    use NfsLockType4::{Read, ReadW, Write, WriteW};
    for (locktype, fails, expected) in [
        (ReadW, false, true),
        (WriteW, false, true),
        (Read, false, false),
        (Write, false, false),
        (WriteW, true, false),
    ] {
        let mut world = World::new();
        let ((a, _), (b, _)) = (world.ready("a"), world.ready("b"));
        world.state.note_callback(b, fails);
        let (open, theirs) = (world.open(a, "o", BOTH, 0).unwrap(), world.open(b, "o", BOTH, 0).unwrap());
        let lock = world.lock(a, open, "l", (0, 10)).unwrap();
        denied(world.lock_by(b, new_owner(b, theirs, "waits"), locktype, (5, 1)).unwrap_err());
        world.unlock(a, lock, (0, 10)).unwrap();
        let told = world.locks.poll_notice().and_then(|notice| name_of_lock_owner(&notice.owner));
        assert_eq!(told, expected.then(|| owner(b, "waits")), "{locktype:?}, callbacks fail: {fails}");
    }
}

/// Version 4.0 has no CB_NOTIFY_LOCK.
#[test]
fn v40_client_that_waits_for_a_denied_lock_is_not_notified() {
    let mut world = World::new();
    let ((a, _), old) = (world.ready("a"), reachable(&mut world));
    assert!(world.state.can_be_called(old));
    let (open, theirs) = (world.open(a, "o", BOTH, 0).unwrap(), world.open(old, "o", BOTH, 0).unwrap());
    let lock = world.lock(a, open, "l", (0, 10)).unwrap();
    denied(world.lock_by(old, new_owner(old, theirs, "waits"), NfsLockType4::WriteW, (5, 1)).unwrap_err());
    world.unlock(a, lock, (0, 10)).unwrap();
    assert_eq!(world.locks.poll_notice(), None);
}

#[test]
fn denied_client_learns_its_own_client_id() {
    let mut world = World::new();
    let (a, _) = world.ready("a");
    let open = world.open(a, "o", BOTH, 0).unwrap();
    world.lock(a, open, "l", (0, 10)).unwrap();
    //= rfc8881-18.10.3-6
    assert_eq!(denied(world.lock(a, open, "m", (5, 1)).unwrap_err()).owner, owner(a, "l"));
}

#[test]
fn only_lock_owners_of_nfsv4_have_a_name() {
    let lock = lock_owner(Clientid4(1), b"l");
    assert_eq!(name_of_lock_owner(&lock), Some(owner(Clientid4(1), "l")));
    assert_eq!(name_of_lock_owner(&Owner { client: LockClient::Nlm(1), ..lock.clone() }), None);
    assert_eq!(name_of_lock_owner(&Owner { opaque: smallvec::SmallVec::from_slice(b"ol"), ..lock }), None);
}
