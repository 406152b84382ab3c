//! How long opens and delegations keep a file.

use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use vfs::Hold;

use super::*;

/// A hold of a file. `true` in the first value means that the file has lost its last name, and in the second that the hold has ended.
struct TestHold(Arc<(AtomicBool, AtomicBool)>);

impl Hold for TestHold {
    fn is_removed(&self) -> bool {
        self.0.0.load(SeqCst)
    }
}

impl Drop for TestHold {
    fn drop(&mut self) {
        self.0.1.store(true, SeqCst);
    }
}

impl World {
    /// Keeps the file, as the service does after an OPEN.
    fn hold(&mut self) -> Arc<(AtomicBool, AtomicBool)> {
        let ended = Arc::default();
        drop(self.state.hold(&'f', Held::new(TestHold(Arc::clone(&ended)))));
        ended
    }

    /// Reports whether a hold has ended, after the holds of the state that have ended are dropped.
    fn has_ended(&mut self, hold: &(AtomicBool, AtomicBool)) -> bool {
        drop(self.state.ended_holds());
        hold.1.load(SeqCst)
    }

    fn open_read(&mut self, client: Clientid4, owner: &'static str) -> Stateid4 {
        self.open(client, owner, OPEN4_SHARE_ACCESS_READ, OPEN4_SHARE_DENY_NONE).unwrap()
    }
}

#[test]
fn file_is_kept_until_the_last_open_is_closed() {
    let mut world = World::new();
    let ((a, _), (b, _)) = (world.ready("a"), world.ready("b"));
    let unused = world.hold();
    assert!(world.has_ended(&unused), "nobody has the file open");
    let first = world.open_read(a, "o");
    let hold = world.hold();
    let (second, third) = (world.open_read(a, "p"), world.open_read(b, "o"));
    let unneeded = world.hold();
    assert!(world.has_ended(&unneeded), "one hold is enough");
    for (client, stateid) in [(a, first), (b, third)] {
        world.state.close(&mut world.locks, client, &'f', &stateid).unwrap();
        assert!(!world.has_ended(&hold));
    }
    world.state.close(&mut world.locks, a, &'f', &second).unwrap();
    assert!(world.has_ended(&hold));
}

#[test]
fn file_is_kept_until_its_delegation_is_returned() {
    let mut world = World::new();
    let (a, _) = world.ready("a");
    let request = OpenRequest { can_recall: true, ..opening(a, Bytes::from_static(b"o")) };
    let opened = world.open_by(request).unwrap();
    let OpenDelegation4::Read(delegation) = opened.delegation else { panic!("{:?}", opened.delegation) };
    let hold = world.hold();
    world.state.close(&mut world.locks, a, &'f', &opened.stateid).unwrap();
    assert!(!world.has_ended(&hold));
    world.state.delegreturn(a, &'f', &delegation.stateid).unwrap();
    assert!(world.has_ended(&hold));
}

#[test]
fn file_is_kept_until_its_state_is_revoked() {
    let mut world = World::new();
    let (a, _) = world.ready("a");
    let stateid = world.open_read(a, "o");
    let hold = world.hold();
    world.state.revoke_all(&mut world.locks, a, Nfsstat4::AdminRevoked);
    assert!(world.has_ended(&hold));
    assert_eq!(world.io_of(a, 'f', &stateid, false), Err(Nfsstat4::AdminRevoked));
}

#[test]
fn only_expired_clients_with_removed_files_lose_their_state() {
    let mut world = World::new();
    let (a, _) = world.ready("a");
    let stateid = world.open_read(a, "o");
    let hold = world.hold();
    let ends_at = |world: &mut World, lease: u32| {
        let then = world.now + LEASE * lease;
        world.state.expire(then);
        world.state.expire_removed(&mut world.locks, then);
        world.has_ended(&hold)
    };
    assert!(!ends_at(&mut world, 2), "the file has a name");
    hold.0.store(true, SeqCst);
    world.state.expire_removed(&mut world.locks, world.now + LEASE * 2);
    assert!(!world.has_ended(&hold), "the next check is later");
    assert!(ends_at(&mut world, 3));
    assert_eq!(world.io_of(a, 'f', &stateid, false), Err(Nfsstat4::Expired));
}

#[test]
fn client_with_a_valid_lease_keeps_a_removed_file() {
    let mut world = World::new();
    let (a, _) = world.ready("a");
    world.open_read(a, "o");
    let hold = world.hold();
    hold.0.store(true, SeqCst);
    world.state.expire_removed(&mut world.locks, world.now + LEASE / 2);
    assert!(!world.has_ended(&hold));
}
