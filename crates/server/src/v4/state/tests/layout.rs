//! Layouts: stateids, grants, returns, recalls and fences.

use vfs::layout::{LayoutKind, LayoutMode, LayoutModes};

use super::*;
use crate::{
    sharing::conflict::Access,
    v4::state::{
        layout::{BulkRecall, LayoutEnd},
        transitions::layout::{LayoutPlan, LayoutWanted, LayoutsReturned},
    },
};

const BOTH: u32 = OPEN4_SHARE_ACCESS_BOTH;
const FLEX: LayoutKind = LayoutKind::Flexible;

impl World {
    /// Adds a client that has the file open.
    fn user(&mut self, name: &str) -> (Clientid4, Stateid4) {
        let (client, _) = self.ready(name);
        (client, self.open(client, "o", BOTH, OPEN4_SHARE_DENY_NONE).unwrap())
    }

    fn plan(&mut self, client: Clientid4, stateid: &Stateid4, mode: LayoutMode) -> Result<LayoutPlan<char>, Nfsstat4> {
        self.plan_kind(client, stateid, (FLEX, mode))
    }

    fn plan_kind(
        &mut self,
        client: Clientid4,
        stateid: &Stateid4,
        (kind, mode): (LayoutKind, LayoutMode),
    ) -> Result<LayoutPlan<char>, Nfsstat4> {
        self.state.plan_layout(&wanted(client, stateid, (kind, mode)), self.now)
    }

    fn layout(&mut self, client: Clientid4, stateid: &Stateid4, mode: LayoutMode) -> Result<Stateid4, Nfsstat4> {
        let plan = self.plan(client, stateid, mode)?;
        self.state.commit_layout(&plan, false)
    }

    /// Opens a file and gets a layout of it.
    pub(super) fn hold_layout(&mut self, client: Clientid4, file: char, kind: LayoutKind) -> Result<(), Nfsstat4> {
        let plan = self.state.plan_open(&self.locks, opening(client, Bytes::from_static(b"o")), self.now)?;
        let target = OpenTarget { file: &file, change: Some(7), truncates: false };
        let open = self.state.commit_open(&mut self.locks, &plan, target, self.now)?.stateid;
        let wanted = LayoutWanted { file: &file, ..wanted(client, &open, (kind, LayoutMode::Read)) };
        let plan = self.state.plan_layout(&wanted, self.now)?;
        self.state.commit_layout(&plan, false).map(drop)
    }

    fn returning(
        &mut self,
        client: Clientid4,
        stateid: &Stateid4,
        (modes, offset, length): (LayoutModes, u64, u64),
    ) -> Result<(Option<Stateid4>, usize), Nfsstat4> {
        let returned = LayoutsReturned { kind: FLEX, modes, offset, length };
        self.state.return_layout(client, &'f', stateid, &returned).map(|(left, ended)| (left, ended.len()))
    }

    fn truncation(&mut self, by: Option<Clientid4>) -> Result<(), Nfsstat4> {
        self.state.recall(&mut self.locks, &'f', (by, Access::Truncate), self.now)
    }

    fn recalled(&mut self) -> Vec<(Clientid4, u32)> {
        std::iter::from_fn(|| self.state.poll_recall()).map(|held| (held.client, held.stateid.seqid)).collect()
    }

    fn ends(&mut self) -> Vec<LayoutEnd<char>> {
        std::iter::from_fn(|| self.state.poll_layout_end()).collect()
    }

    fn bulk_recalled(&mut self) -> Vec<BulkRecall<char>> {
        std::iter::from_fn(|| self.state.poll_bulk_recall()).collect()
    }

    /// Advances the time, and keeps the lease of a client.
    fn pass(&mut self, time: Duration, session: Sessionid4, sequence: u32) {
        self.now += time;
        self.call(session, sequence, 1);
    }
}

fn wanted(client: Clientid4, stateid: &Stateid4, (kind, mode): (LayoutKind, LayoutMode)) -> LayoutWanted<'_, char> {
    let (with_open, recalled_by_truncation) = (false, true);
    LayoutWanted { client, file: &'f', fsid: 1, stateid, kind, mode, with_open, recalled_by_truncation, call: None }
}

const ALL: (LayoutModes, u64, u64) = (LayoutModes::ALL, 0, LENGTH_TO_EOF);

#[test]
fn client_with_layouts_gets_no_other_one_with_an_open() {
    let mut world = World::new();
    let (a, open) = world.user("a");
    let with_open = |world: &mut World, stateid: &Stateid4, mode| {
        let wanted = LayoutWanted { with_open: true, ..wanted(a, stateid, (FLEX, mode)) };
        let plan = world.state.plan_layout(&wanted, world.now)?;
        world.state.commit_layout(&plan, false)
    };
    let first = with_open(&mut world, &open, LayoutMode::Read).unwrap();
    assert_eq!(with_open(&mut world, &open, LayoutMode::Write), Err(Nfsstat4::LayoutTryLater));
    // The sequence ID is that which the client knows.
    assert_eq!(world.layout(a, &open, LayoutMode::Write).unwrap(), Stateid4 { seqid: 2, ..first });
    // This is no open: the request got the stateid from an operation on layouts.
    assert_eq!(with_open(&mut world, &first, LayoutMode::Read).unwrap().seqid, 3);
}

#[test]
fn seqid_counts_grants_and_returns() {
    let mut world = World::new();
    let (a, open) = world.user("a");
    let first = world.layout(a, &open, LayoutMode::Read).unwrap();
    assert_eq!(first.seqid, 1);
    let second = world.layout(a, &first, LayoutMode::Write).unwrap();
    assert_eq!(second, Stateid4 { seqid: 2, ..first });
    // Requests in progress at the same time have the same seqid.
    assert_eq!(world.layout(a, &first, LayoutMode::Write).unwrap().seqid, 3);
    let (left, ended) = world.returning(a, &second, (LayoutModes::READ, 0, LENGTH_TO_EOF)).unwrap();
    assert_eq!((left, ended), (Some(Stateid4 { seqid: 4, ..first }), 1));
    assert_eq!(world.returning(a, &first, ALL), Ok((None, 1)));
    assert_eq!(world.returning(a, &first, ALL), Err(Nfsstat4::BadStateid), "nothing is left");
    let again = world.layout(a, &open, LayoutMode::Read).unwrap();
    assert!(again.seqid == 1 && again.other != first.other);
    assert_eq!(world.ends(), [], "the operations have seen the back end");
}

#[test]
fn forged_foreign_and_old_stateids_are_refused() {
    let mut world = World::new();
    let ((a, open), (b, theirs)) = (world.user("a"), world.user("b"));
    let stateid = world.layout(a, &open, LayoutMode::Write).unwrap();
    let forged = Stateid4 { other: [9; 12], ..stateid };
    let future = Stateid4 { seqid: stateid.seqid + 1, ..stateid };
    let zero = Stateid4 { seqid: 0, ..stateid };
    for bad in [forged, future, zero, Stateid4::ANONYMOUS, Stateid4::READ_BYPASS, Stateid4::INVALID] {
        assert_eq!(world.layout(a, &bad, LayoutMode::Read), Err(Nfsstat4::BadStateid), "{bad:?}");
        //= rfc8881-18.44.3-2 rfc8881-18.44.3-5
        assert_eq!(world.returning(a, &bad, ALL), Err(Nfsstat4::BadStateid), "{bad:?}");
        assert_eq!(world.state.find_layout(a, &'f', &bad).err(), Some(Nfsstat4::BadStateid), "{bad:?}");
    }
    for foreign in [stateid, open] {
        assert_eq!(world.layout(b, &foreign, LayoutMode::Read), Err(Nfsstat4::BadStateid));
    }
    assert_eq!(world.returning(b, &stateid, ALL), Err(Nfsstat4::BadStateid));
    assert_eq!(world.state.find_layout(a, &'g', &stateid).err(), Some(Nfsstat4::BadStateid), "another file");
    assert_eq!(world.returning(a, &open, ALL), Err(Nfsstat4::BadStateid), "a stateid of an open");
    assert_eq!(world.plan_kind(a, &stateid, (LayoutKind::Files, LayoutMode::Read)), Err(Nfsstat4::BadStateid));
    assert_eq!(world.io_of(a, 'f', &stateid, true), Err(Nfsstat4::BadStateid), "it is valid at data servers only");
    assert_eq!(world.io_of(b, 'f', &theirs, true), Ok(()));
    let behind = |distance: u32| Stateid4 { seqid: stateid.seqid.wrapping_sub(distance), ..stateid };
    assert_eq!(world.layout(a, &behind((1 << 31) - 1), LayoutMode::Read), Err(Nfsstat4::OldStateid));
    assert_eq!(world.layout(a, &behind(1 << 31), LayoutMode::Read), Err(Nfsstat4::BadStateid), "it is of the future");
    // A stateid is old when no request in progress can have it.
    let mut last = stateid;
    for _ in 0..64 * 64 {
        last = world.layout(a, &last, LayoutMode::Write).unwrap();
    }
    assert!(world.layout(a, &stateid, LayoutMode::Write).is_ok(), "the oldest one that is valid");
    assert_eq!(world.layout(a, &stateid, LayoutMode::Write), Err(Nfsstat4::OldStateid));
    assert_eq!(world.returning(a, &stateid, ALL), Err(Nfsstat4::OldStateid));
    assert_eq!(world.state.find_layout(a, &'f', &stateid).err(), Some(Nfsstat4::OldStateid));
}

#[test]
fn first_layout_needs_an_open_for_its_mode() {
    let mut world = World::new();
    let (a, _) = world.ready("a");
    let read = world.open(a, "r", OPEN4_SHARE_ACCESS_READ, 0).unwrap();
    assert_eq!(world.layout(a, &read, LayoutMode::Write), Err(Nfsstat4::OpenMode));
    let write = world.open(a, "w", OPEN4_SHARE_ACCESS_WRITE, 0).unwrap();
    assert_eq!(world.layout(a, &write, LayoutMode::Read), Err(Nfsstat4::OpenMode));
    assert!(world.layout(a, &read, LayoutMode::Read).is_ok());
    assert!(world.layout(a, &write, LayoutMode::Write).is_ok());
}

#[test]
fn layout_is_returned_when_its_last_range_is() {
    let mut world = World::new();
    let (a, open) = world.user("a");
    let stateid = world.layout(a, &open, LayoutMode::Write).unwrap();
    let (left, ended) = world.returning(a, &stateid, (LayoutModes::ALL, 100, 50)).unwrap();
    assert_eq!((left.unwrap().seqid, ended), (2, 0));
    let hold = world.state.find_layout(a, &'f', &stateid).unwrap().write.clone().unwrap();
    assert!(hold.ranges.contains(99) && !hold.ranges.contains(100));
    world.returning(a, &stateid, (LayoutModes::ALL, 0, 100)).unwrap();
    assert_eq!(world.returning(a, &stateid, (LayoutModes::READ, 0, LENGTH_TO_EOF)).unwrap().1, 0, "another mode");
    assert_eq!(world.returning(a, &stateid, (LayoutModes::WRITE, 150, LENGTH_TO_EOF)), Ok((None, 1)));
}

#[test]
fn truncation_recalls_layouts_to_write_of_others() {
    let mut world = World::new();
    let ((a, open), (b, _)) = (world.user("a"), world.user("b"));
    let read = world.layout(a, &open, LayoutMode::Read).unwrap();
    assert_eq!(world.truncation(Some(b)), Ok(()), "layouts to read do not conflict");
    let write = world.layout(a, &read, LayoutMode::Write).unwrap();
    assert_eq!(world.truncation(Some(a)), Ok(()), "the client's own layout does not conflict");
    for access in [Access::Read, Access::Write] {
        assert_eq!(world.state.recall(&mut world.locks, &'f', (None, access), world.now), Ok(()));
    }
    assert_eq!(world.truncation(Some(b)), Err(Nfsstat4::Delay));
    assert_eq!(world.recalled(), [(a, write.seqid + 1)], "the recall changes the stateid");
    assert_eq!(world.truncation(None), Err(Nfsstat4::Delay));
    assert_eq!(world.recalled(), [], "one recall is enough");
    assert_eq!(world.layout(a, &write, LayoutMode::Write), Err(Nfsstat4::RecallConflict));
    assert!(world.layout(a, &write, LayoutMode::Read).is_ok(), "only the layout to write is recalled");
    world.returning(a, &write, (LayoutModes::WRITE, 0, LENGTH_TO_EOF)).unwrap();
    assert_eq!(world.layout(a, &write, LayoutMode::Write), Err(Nfsstat4::LayoutTryLater), "b must come first");
    assert_eq!(world.truncation(Some(b)), Ok(()));
    assert!(world.layout(a, &write, LayoutMode::Write).is_ok());
}

#[test]
fn recall_of_the_back_end_has_an_end() {
    let mut world = World::new();
    let (a, session) = world.ready("a");
    let open = world.open(a, "o", BOTH, 0).unwrap();
    let stateid = world.layout(a, &open, LayoutMode::Read).unwrap();
    world.layout(a, &stateid, LayoutMode::Write).unwrap();
    world.state.recall_layouts(&'f', LayoutModes::WRITE, true, world.now);
    let held = world.state.poll_recall().unwrap();
    let recall = world.state.layout_recall(&held).unwrap();
    assert_eq!((recall.kind, recall.modes, recall.changed), (FLEX, LayoutModes::WRITE, true));
    world.returning(a, &stateid, (LayoutModes::WRITE, 0, LENGTH_TO_EOF)).unwrap();
    assert_eq!(world.state.layout_recall(&held), None);
    // The deadline of the recall does not concern the other layout.
    world.pass(LEASE / 2, session, 1);
    world.pass(LEASE / 2, session, 2);
    world.state.expire(world.now);
    assert_eq!(world.ends(), []);
    assert!(world.state.find_layout(a, &'f', &stateid).is_ok());
}

#[test]
fn layout_that_is_not_returned_is_fenced_after_a_lease() {
    let mut world = World::new();
    let ((a, session), (b, theirs)) = (world.ready("a"), world.user("b"));
    let open = world.open(a, "o", BOTH, 0).unwrap();
    let stateid = world.layout(a, &open, LayoutMode::Write).unwrap();
    assert_eq!(world.truncation(Some(b)), Err(Nfsstat4::Delay));
    world.pass(LEASE - Duration::from_secs(1), session, 1);
    world.state.expire(world.now);
    assert_eq!(world.ends(), [], "the client has a lease time");
    world.pass(Duration::from_secs(1), session, 2);
    world.state.expire(world.now);
    let ends = world.ends();
    assert!(matches!(ends[..], [LayoutEnd { file: 'f', mode: LayoutMode::Write, fence: true, .. }]), "{ends:?}");
    assert_eq!(world.returning(a, &stateid, ALL), Err(Nfsstat4::BadStateid));
    // The client can use the layout until the fence is complete.
    assert_eq!(world.truncation(Some(b)), Err(Nfsstat4::Delay));
    assert!(world.state.marks().may_be_delegated(&'f'));
    world.now += Duration::from_secs(3);
    assert_eq!(world.layout(b, &theirs, LayoutMode::Write), Err(Nfsstat4::LayoutTryLater));
    world.state.fenced(&'f');
    assert_eq!(world.truncation(Some(b)), Ok(()));
    assert!(!world.state.marks().may_be_delegated(&'f'));
    assert!(world.layout(b, &theirs, LayoutMode::Write).is_ok());
    assert_eq!(world.call(session, 3, 1).status_flags & SEQ4_STATUS_RECALLABLE_STATE_REVOKED, 0);
}

#[test]
fn forgotten_layout_is_released_and_not_fenced() {
    let mut world = World::new();
    let (a, open) = world.user("a");
    let stateid = world.layout(a, &open, LayoutMode::Write).unwrap();
    world.state.recall_layouts(&'f', LayoutModes::ALL, false, world.now);
    let held = world.state.poll_recall().unwrap();
    world.state.layout_forgotten(&held);
    assert!(matches!(world.ends()[..], [LayoutEnd { fence: false, .. }]));
    assert_eq!(world.state.find_layout(a, &'f', &stateid).err(), Some(Nfsstat4::BadStateid));
    assert!(world.layout(a, &open, LayoutMode::Write).is_ok());
}

#[test]
fn client_that_ends_or_expires_is_fenced() {
    let mut world = World::new();
    let ((a, open), (b, theirs)) = (world.user("a"), world.user("b"));
    world.layout(a, &open, LayoutMode::Write).unwrap();
    world.layout(b, &theirs, LayoutMode::Write).unwrap();
    world.state.evict(a);
    assert!(matches!(world.ends()[..], [LayoutEnd { fence: true, .. }]));
    world.state.fenced(&'f');
    // A recall does not wait for a client whose lease has expired.
    world.now += LEASE * 2;
    assert_eq!(world.truncation(None), Err(Nfsstat4::Delay), "a fence is in progress");
    assert!(matches!(world.ends()[..], [LayoutEnd { fence: true, .. }]));
    assert_eq!(world.recalled(), []);
    assert_eq!(world.truncation(None), Err(Nfsstat4::Delay));
    world.state.fenced(&'f');
    assert_eq!(world.truncation(None), Ok(()));
}

#[test]
fn layout_to_write_ends_with_the_lease() {
    let mut world = World::new();
    let ((a, session), (b, theirs)) = (world.ready("a"), world.user("b"));
    let open = world.open(a, "o", BOTH, 0).unwrap();
    let stateid = world.layout(a, &open, LayoutMode::Write).unwrap();
    let reading = world.layout(b, &theirs, LayoutMode::Read).unwrap();
    world.pass(LEASE, session, 1);
    world.state.expire(world.now);
    assert_eq!(world.ends(), [], "the lease of a writer is valid, and a reader changes nothing");
    world.now += LEASE;
    world.state.expire(world.now);
    assert_eq!(world.ends(), [], "the lease ends now");
    world.now += LEASE / EXPIRY_CHECKS;
    world.state.expire(world.now);
    let ends = world.ends();
    assert!(matches!(ends[..], [LayoutEnd { file: 'f', mode: LayoutMode::Write, fence: true, .. }]), "{ends:?}");
    assert_eq!(world.state.find_layout(a, &'f', &stateid).err(), Some(Nfsstat4::BadStateid));
    assert!(world.state.find_layout(b, &'f', &reading).is_ok());
    // The client is fenced once, and keeps its other state.
    world.now += LEASE;
    world.state.expire(world.now);
    assert_eq!(world.ends(), []);
    world.pass(Duration::ZERO, session, 2);
    assert_eq!(world.layout(a, &open, LayoutMode::Write), Err(Nfsstat4::LayoutTryLater), "the fence is not complete");
    world.state.fenced(&'f');
    assert!(world.layout(a, &open, LayoutMode::Write).is_ok());
}

#[test]
fn recall_during_layoutget_makes_it_fail() {
    let mut world = World::new();
    let (a, open) = world.user("a");
    let plan = world.plan(a, &open, LayoutMode::Write).unwrap();
    world.state.recall_layouts(&'f', LayoutModes::ALL, true, world.now);
    assert_eq!(world.recalled(), [], "the client does not know the layout");
    assert_eq!(world.state.commit_layout(&plan, false), Err(Nfsstat4::RecallConflict));
    let ends = world.ends();
    assert!(ends.len() == 1 && ends[0].holder == plan.holder && !ends[0].fence, "{ends:?}");
    assert!(world.layout(a, &open, LayoutMode::Write).is_ok(), "the recall has ended");
}

#[test]
fn return_during_layoutget_ends_the_holder_again() {
    let mut world = World::new();
    let (a, open) = world.user("a");
    let stateid = world.layout(a, &open, LayoutMode::Write).unwrap();
    let plan = world.plan(a, &stateid, LayoutMode::Write).unwrap();
    assert_eq!(world.returning(a, &stateid, ALL), Ok((None, 1)));
    // The back end may have granted the layout after the release.
    assert_eq!(world.state.commit_layout(&plan, false), Err(Nfsstat4::RecallConflict));
    assert_eq!(world.ends().len(), 1);
    let again = world.plan(a, &open, LayoutMode::Write).unwrap();
    assert_ne!(again.holder, plan.holder, "a number is not used again");
    world.state.cancel_layout(&again);
    assert_eq!(world.ends().len(), 1);
}

#[test]
fn cancelled_layoutget_leaves_a_held_layout() {
    let mut world = World::new();
    let (a, open) = world.user("a");
    let stateid = world.layout(a, &open, LayoutMode::Write).unwrap();
    let plan = world.plan(a, &stateid, LayoutMode::Write).unwrap();
    world.state.cancel_layout(&plan);
    assert_eq!(world.ends(), []);
    assert!(world.state.find_layout(a, &'f', &stateid).is_ok());
}

#[test]
fn layouts_are_bounded() {
    let mut world = World::with(|options| options.layouts_max = 1);
    let ((a, open), (b, theirs)) = (world.user("a"), world.user("b"));
    let stateid = world.layout(a, &open, LayoutMode::Read).unwrap();
    assert_eq!(world.layout(b, &theirs, LayoutMode::Read), Err(Nfsstat4::LayoutTryLater));
    assert!(world.layout(a, &stateid, LayoutMode::Write).is_ok(), "another mode of the same file");
    world.returning(a, &stateid, ALL).unwrap();
    assert!(world.layout(b, &theirs, LayoutMode::Read).is_ok());
}

#[test]
fn client_that_cannot_be_called_gets_no_layout() {
    let mut world = World::new();
    let (a, open) = world.user("a");
    world.state.note_callback(a, true);
    assert_eq!(world.layout(a, &open, LayoutMode::Read), Err(Nfsstat4::LayoutTryLater));
}

#[test]
fn recall_of_a_tree_is_one_callback_for_each_client() {
    let mut world = World::new();
    let ((a, open), (b, theirs)) = (world.user("a"), world.user("b"));
    let stateid = world.layout(a, &open, LayoutMode::Read).unwrap();
    world.layout(b, &theirs, LayoutMode::Write).unwrap();
    world.state.recall_all_layouts(|file| *file == 'g', true, world.now);
    assert!(world.state.poll_bulk_recall().is_none(), "another tree");
    world.state.recall_all_layouts(|_| true, true, world.now);
    let bulk = world.bulk_recalled();
    assert_eq!(bulk.len(), 2);
    assert_eq!(world.recalled(), []);
    let of_a = bulk.iter().find(|bulk| bulk.client == a).unwrap();
    assert!(of_a.changed && world.state.is_recalling_all(of_a, |_| true));
    assert_eq!(world.layout(a, &stateid, LayoutMode::Read), Err(Nfsstat4::RecallConflict));
    world.state.all_forgotten(of_a, |_| true);
    assert!(!world.state.is_recalling_all(of_a, |_| true));
    assert!(matches!(world.ends()[..], [LayoutEnd { fence: false, .. }]));
    world.state.return_layouts(b, (FLEX, LayoutModes::ALL), |_, _| true);
    assert!(matches!(world.ends()[..], [LayoutEnd { fence: false, .. }]));
    world.now += LEASE;
    world.state.expire(world.now);
    assert_eq!(world.ends(), [], "all recalls have ended");
}

#[test]
fn layout_to_be_returned_on_close_is_recalled_after_the_last_close() {
    let mut world = World::new();
    let (a, open) = world.user("a");
    let plan = world.plan(a, &open, LayoutMode::Read).unwrap();
    world.state.commit_layout(&plan, true).unwrap();
    let other = world.open(a, "p", BOTH, 0).unwrap();
    for (stateid, recalls) in [(open, 0), (other, 1)] {
        world.state.close(&mut world.locks, a, &'f', &stateid).unwrap();
        world.state.recall_closed_layouts(a, &'f', world.now);
        assert_eq!(world.recalled().len(), recalls);
    }
}

#[test]
fn no_layout_is_granted_in_the_grace_period() {
    let mut world = World::new();
    let (a, open) = world.user("a");
    world.begin_grace(&["b"], &[]);
    //= rfc8881-18.43.3-1
    assert_eq!(world.layout(a, &open, LayoutMode::Read), Err(Nfsstat4::Grace));
    world.end_grace();
    assert!(world.layout(a, &open, LayoutMode::Read).is_ok());
}

#[test]
fn software_that_accepts_striped_copies() {
    let mut world = World::new();
    let mut accepts = |name: &str| {
        let client_impl_id = Some(NfsImplId4 { domain: "d".into(), name: name.into(), date: Nfstime4::default() });
        let exchange = ExchangeIdArgs { client_impl_id, ..exchange(name, 1, 0) };
        let client = world.exchange(&exchange, &OWNER).unwrap().clientid;
        world.state.accepts_striped_copies(client)
    };
    assert!(accepts("Linux 6.18.0-1 #1 SMP x86_64") && accepts("Linux 7.0") && accepts("slipway 0.1.0"));
    assert!(!accepts("Linux 6.12.9-amd64 #1") && !accepts("Linux") && !accepts("FreeBSD 15"));
    let (a, _) = world.ready("a");
    assert!(!world.state.accepts_striped_copies(a));
}

#[test]
fn layoutgets_in_progress_are_counted() {
    let mut world = World::new();
    let (a, open) = world.user("a");
    let stateid = world.layout(a, &open, LayoutMode::Write).unwrap();
    let in_progress = |world: &World| {
        let layout = world.state.find_layout(a, &'f', &stateid).unwrap();
        layout.write.as_ref().unwrap().granting
    };
    assert_eq!(in_progress(&world), 0);
    let plans = [(); 2].map(|()| world.plan(a, &stateid, LayoutMode::Write).unwrap());
    assert_eq!(in_progress(&world), 2);
    world.state.commit_layout(&plans[0], false).unwrap();
    assert_eq!(in_progress(&world), 1);
    world.state.cancel_layout(&plans[1]);
    assert_eq!(in_progress(&world), 0);
}

#[test]
fn layoutget_does_not_grant_the_layout_of_a_later_one() {
    let mut world = World::new();
    let (a, open) = world.user("a");
    let stateid = world.layout(a, &open, LayoutMode::Read).unwrap();
    let early = world.plan(a, &stateid, LayoutMode::Write).unwrap();
    let write = (LayoutModes::WRITE, 0, LENGTH_TO_EOF);
    assert_eq!(world.returning(a, &stateid, write).unwrap().1, 1, "its layout to write has ended");
    let late = world.plan(a, &stateid, LayoutMode::Write).unwrap();
    assert_eq!(world.state.commit_layout(&early, false), Err(Nfsstat4::RecallConflict));
    let holders: Vec<_> = world.ends().iter().map(|end| end.holder).collect();
    assert_eq!(holders, [early.holder]);
    assert!(world.state.commit_layout(&late, false).is_ok());
}

#[test]
fn layouts_of_another_kind_or_tree_are_not_returned() {
    let mut world = World::new();
    let (a, open) = world.user("a");
    world.layout(a, &open, LayoutMode::Read).unwrap();
    world.state.return_layouts(a, (LayoutKind::Files, LayoutModes::ALL), |_, _| true);
    world.state.return_layouts(a, (FLEX, LayoutModes::ALL), |file, _| *file == 'g');
    assert_eq!(world.ends(), []);
    world.state.return_layouts(a, (FLEX, LayoutModes::ALL), |file, _| *file == 'f');
    assert_eq!(world.ends().len(), 1);
}

#[test]
fn layout_of_a_recalled_tree_is_fenced_after_a_lease() {
    let mut world = World::new();
    let (a, session) = world.ready("a");
    let open = world.open(a, "o", BOTH, 0).unwrap();
    world.layout(a, &open, LayoutMode::Read).unwrap();
    world.state.recall_all_layouts(|_| true, false, world.now);
    assert_eq!(world.bulk_recalled().len(), 1);
    world.pass(LEASE - Duration::from_secs(1), session, 1);
    world.state.recall_all_layouts(|_| true, false, world.now);
    assert_eq!(world.bulk_recalled(), [], "one recall is enough");
    world.state.expire(world.now);
    assert_eq!(world.ends(), [], "the client has a lease time");
    world.pass(Duration::from_secs(1), session, 2);
    world.state.expire(world.now);
    assert!(matches!(world.ends()[..], [LayoutEnd { fence: true, .. }]), "the second recall gives no more time");
    world.state.fenced(&'f');
}

#[test]
fn recall_of_a_tree_during_layoutget_makes_it_fail() {
    let mut world = World::new();
    let (a, open) = world.user("a");
    let plan = world.plan(a, &open, LayoutMode::Write).unwrap();
    world.state.recall_all_layouts(|_| true, false, world.now);
    assert_eq!(world.bulk_recalled(), [], "the client does not know the layout");
    assert_eq!(world.state.commit_layout(&plan, false), Err(Nfsstat4::RecallConflict));
}

#[test]
fn recalls_of_a_file_add_up() {
    let mut world = World::new();
    let (a, open) = world.user("a");
    let stateid = world.layout(a, &open, LayoutMode::Read).unwrap();
    world.layout(a, &stateid, LayoutMode::Write).unwrap();
    world.state.recall_layouts(&'f', LayoutModes::READ, false, world.now);
    assert_eq!(world.layout(a, &stateid, LayoutMode::Read), Err(Nfsstat4::RecallConflict));
    let held = world.state.poll_recall().unwrap();
    let recall = |world: &World| {
        let recall = world.state.layout_recall(&held).unwrap();
        (recall.modes, recall.changed)
    };
    assert_eq!(recall(&world), (LayoutModes::READ, false));
    world.state.recall_layouts(&'f', LayoutModes::WRITE, true, world.now);
    assert_eq!(recall(&world), (LayoutModes::ALL, true));
    for changed in [false, true] {
        world.state.recall_all_layouts(|_| true, changed, world.now);
        assert_eq!(recall(&world), (LayoutModes::ALL, true), "the client must still not write cached data");
    }
}

#[test]
fn recall_of_the_back_end_does_not_wait_for_an_expired_client() {
    for (of_tree, busy) in [(false, false), (false, true), (true, false), (true, true)] {
        let mut world = World::new();
        let (a, session) = world.ready("a");
        let open = world.open(a, "o", BOTH, 0).unwrap();
        world.layout(a, &open, LayoutMode::Write).unwrap();
        let Begun::Execute(ticket) = world.sequence(session, 1, 1).unwrap().begun else { panic!("it is new") };
        if !busy {
            world.finish(session, ticket);
        }
        world.now += LEASE + Duration::from_secs(1);
        match of_tree {
            true => world.state.recall_all_layouts(|_| true, false, world.now),
            false => world.state.recall_layouts(&'f', LayoutModes::ALL, false, world.now),
        }
        let (recalls, ends) = (world.recalled().len() + world.bulk_recalled().len(), world.ends());
        assert_eq!((recalls, ends.len()), if busy { (1, 0) } else { (0, 1) }, "of a tree: {of_tree}");
        assert!(ends.iter().all(|end| end.fence));
        ends.iter().for_each(|end| world.state.fenced(&end.file));
    }
}

#[test]
fn recall_of_a_tree_is_about_one_kind_and_file_system() {
    let mut world = World::new();
    let (a, open) = world.user("a");
    world.layout(a, &open, LayoutMode::Read).unwrap();
    world.state.recall_all_layouts(|_| true, false, world.now);
    let bulk = world.bulk_recalled().remove(0);
    let others = [BulkRecall { kind: LayoutKind::Files, ..bulk.clone() }, BulkRecall { fsid: 2, ..bulk.clone() }];
    for other in &others {
        assert!(!world.state.is_recalling_all(other, |_| true));
        world.state.all_forgotten(other, |_| true);
    }
    assert!(!world.state.is_recalling_all(&bulk, |file| *file == 'g'), "another tree");
    assert_eq!(world.ends(), []);
    world.state.all_forgotten(&bulk, |_| true);
    assert_eq!(world.ends().len(), 1);
    world.layout(a, &open, LayoutMode::Read).unwrap();
    assert!(!world.state.is_recalling_all(&bulk, |_| true), "a layout that was granted after the recall");
}

#[test]
fn close_recalls_only_the_layouts_that_the_client_must_return() {
    let mut world = World::new();
    let ((a, open), (b, theirs)) = (world.user("a"), world.user("b"));
    let plan = world.plan(a, &open, LayoutMode::Read).unwrap();
    world.state.commit_layout(&plan, true).unwrap();
    world.layout(b, &theirs, LayoutMode::Read).unwrap();
    world.state.close(&mut world.locks, b, &'f', &theirs).unwrap();
    world.state.recall_closed_layouts(b, &'f', world.now);
    assert_eq!(world.recalled(), []);
}
