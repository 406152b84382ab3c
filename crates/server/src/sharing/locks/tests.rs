//! Tests of the lock table, by example and against a simple model that records the holders of each byte.

use std::{collections::BTreeSet, time::Duration};

use proptest::prelude::*;

use super::{LockKind::*, *};

fn owner(client: u64, name: u8) -> Owner {
    Owner { client: LockClient::V4(client), opaque: SmallVec::from_slice(&[name]) }
}

fn range(first: u64, length: u64) -> Range {
    Range::new(first, length).unwrap()
}

fn ask(range: Range, kind: LockKind) -> Request {
    Request { range, kind, wait: false, reclaim: false }
}

fn wait(range: Range, kind: LockKind) -> Request {
    Request { wait: true, ..ask(range, kind) }
}

struct Rig {
    table: LockTable<u8>,
    now: Instant,
}

impl Rig {
    fn new() -> Self {
        Self::with(Limits::default())
    }

    fn with(limits: Limits) -> Self {
        Self { table: LockTable::new(limits), now: Instant::now() }
    }

    fn lock(&mut self, who: &Owner, request: Request) -> Result<Locked, LockError> {
        self.table.lock(&0, who, &request)
    }

    fn waits(&mut self, who: &Owner, request: Request) -> WaiterId {
        match self.lock(who, request) {
            Ok(Locked::Waiting(id)) => id,
            other => panic!("{other:?}"),
        }
    }

    fn grants(&mut self) -> Vec<WaiterId> {
        std::iter::from_fn(|| self.table.poll_grant()).map(|grant| grant.id).collect()
    }
}

#[test]
fn denied_owner_is_notified_once_when_nothing_conflicts() {
    let limits = Limits { client_waiters_max: 3, ..Limits::default() };
    let mut rig = Rig::with(limits);
    let (a, b, c, d) = (owner(1, 1), owner(2, 2), owner(2, 3), owner(3, 4));
    let told = |rig: &mut Rig| -> Vec<Owner> {
        std::iter::from_fn(|| rig.table.poll_notice()).map(|notice| (*notice.owner).clone()).collect()
    };
    let (all, now) = (Range::to_end(0), rig.now);
    rig.lock(&a, ask(range(0, 10), Exclusive)).unwrap();
    for _ in 0..2 {
        assert!(rig.table.watch(&0, &b, range(0, 5), Exclusive, now), "a repeated request must not be added twice");
    }
    assert!(rig.table.watch(&0, &c, range(0, 20), Shared, now));
    let waiter = rig.waits(&d, wait(range(8, 1), Exclusive));
    assert_eq!(
        rig.lock(&b, ask(range(20, 1), Shared)),
        Ok(Locked::Granted),
        "new requests must not yield to denied ones"
    );
    rig.table.unlock(&0, &a, range(0, 5)).unwrap();
    assert_eq!(told(&mut rig), std::slice::from_ref(&b));
    rig.table.unlock(&0, &a, all).unwrap();
    assert_eq!(
        (rig.grants(), told(&mut rig)),
        (vec![waiter], vec![]),
        "the waiting request comes first, and conflicts with the denied one"
    );
    rig.table.release_owner(&d);
    assert_eq!(told(&mut rig), std::slice::from_ref(&c));
    assert_eq!(rig.lock(&c, ask(range(0, 20), Shared)), Ok(Locked::Granted));

    // An owner that got the lock in another way, whose request expired, or that was released is not notified.
    let later = now + Duration::from_secs(90);
    for (first, since) in [(0, now), (1, now), (2, later)] {
        assert!(rig.table.watch(&0, &b, range(first, 1), Exclusive, since));
    }
    assert!(!rig.table.watch(&0, &b, range(3, 1), Exclusive, later), "too many requests");
    rig.table.forget_watches(later);
    assert!(rig.table.watch(&0, &d, range(0, 1), Exclusive, later));
    rig.table.release_client(LockClient::V4(3));
    rig.table.unlock(&0, &c, all).unwrap();
    assert_eq!(told(&mut rig), std::slice::from_ref(&b));
    rig.table.release_client(LockClient::V4(2));
    assert!(rig.table.owners.of_client(LockClient::V4(2)).is_empty() && rig.table.files.is_empty());
    rig.lock(&a, ask(all, Exclusive)).unwrap();
    assert!(rig.table.watch(&0, &a, all, Shared, later), "even if the owner's own lock is there");
    rig.table.release_owner(&a);
    assert!(told(&mut rig).is_empty() && rig.table.files.is_empty());
}

#[test]
fn denied_request_names_the_first_conflicting_lock() {
    let mut rig = Rig::new();
    let (a, b, c) = (owner(1, 1), owner(1, 2), owner(2, 1));
    rig.lock(&a, ask(range(50, 10), Shared)).unwrap();
    rig.lock(&b, ask(range(10, 10), Exclusive)).unwrap();
    let holder = Holder { owner: Arc::new(b.clone()), range: range(10, 10), kind: Exclusive };
    assert_eq!(rig.lock(&c, ask(Range::to_end(0), Exclusive)), Err(LockError::Denied(holder.clone())));
    assert_eq!(rig.table.test(&0, &c, Range::to_end(0), Shared), Some(holder));
    assert_eq!(rig.table.test(&0, &c, Range::to_end(20), Shared), None);
    assert_eq!(rig.table.test(&1, &c, Range::to_end(0), Exclusive), None, "another file");
    assert_eq!(rig.table.test(&0, &b, range(10, 1), Exclusive), None, "the owner's own lock does not conflict");
}

#[test]
fn waiters_are_granted_in_order_and_shared_ones_together() {
    let mut rig = Rig::new();
    let owners: Vec<Owner> = (0..5).map(|name| owner(1, name)).collect();
    rig.lock(&owners[0], ask(Range::to_end(0), Exclusive)).unwrap();
    let first = rig.waits(&owners[1], wait(Range::to_end(0), Shared));
    let second = rig.waits(&owners[2], wait(Range::to_end(0), Shared));
    let writer = rig.waits(&owners[3], wait(Range::to_end(0), Exclusive));
    let late = rig.waits(&owners[4], wait(Range::to_end(0), Shared));
    assert_eq!(rig.waits(&owners[1], wait(Range::to_end(0), Shared)), first, "a repeated request must not wait twice");
    rig.table.unlock(&0, &owners[0], Range::to_end(0)).unwrap();
    assert_eq!(rig.grants(), [first, second], "the late reader must not overtake the writer");
    rig.table.unlock(&0, &owners[1], Range::to_end(0)).unwrap();
    assert_eq!(rig.grants(), []);
    rig.table.release_owner(&owners[2]);
    assert_eq!(rig.grants(), [writer]);
    rig.table.release_client(LockClient::V4(1));
    assert_eq!(rig.grants(), [], "a released request must not be granted");
    let _ = late;
    assert_eq!((rig.table.units(), rig.table.files.len(), rig.table.has_client(LockClient::V4(1))), (0, 0, false));
}

#[test]
fn downgrade_or_cancel_grants_waiting_requests() {
    let mut rig = Rig::new();
    let (a, b, c, d) = (owner(1, 1), owner(1, 2), owner(1, 3), owner(1, 4));
    rig.lock(&a, ask(range(0, 10), Exclusive)).unwrap();
    let reader = rig.waits(&b, wait(range(5, 1), Shared));
    rig.lock(&a, ask(range(5, 5), Shared)).unwrap();
    assert_eq!(rig.grants(), [reader]);
    let writer = rig.waits(&c, wait(range(5, 1), Exclusive));
    let behind = rig.waits(&d, wait(range(5, 1), Shared));
    assert_eq!(rig.table.cancel(&0, &c, range(5, 1), Shared), None, "another kind of lock");
    assert_eq!(rig.table.cancel(&0, &c, range(5, 1), Exclusive), Some(writer));
    assert_eq!(rig.table.cancel(&0, &c, range(5, 1), Exclusive), None);
    assert_eq!(rig.grants(), [behind]);
}

/// A granted request can be a downgrade that frees a range for a request before it.
#[test]
fn granted_downgrade_grants_earlier_requests() {
    let mut rig = Rig::new();
    let (a, b, c) = (owner(1, 1), owner(1, 2), owner(2, 3));
    rig.lock(&a, ask(range(5, 3), Exclusive)).unwrap();
    let before = rig.waits(&b, wait(range(6, 1), Shared));
    rig.lock(&c, ask(range(10, 1), Exclusive)).unwrap();
    let downgrade = rig.waits(&a, wait(Range::to_end(0), Shared));
    rig.table.unlock(&0, &c, range(10, 1)).unwrap();
    assert_eq!(rig.grants(), [downgrade, before]);
}

#[test]
fn deadlock_is_refused() {
    let mut rig = Rig::new();
    let (a, b, c) = (owner(1, 1), owner(1, 2), owner(2, 3));
    for (who, at) in [(&a, 0), (&b, 1), (&c, 2)] {
        rig.lock(who, ask(range(at, 1), Exclusive)).unwrap();
    }
    rig.waits(&a, wait(range(1, 1), Exclusive));
    rig.waits(&b, wait(range(2, 1), Exclusive));
    assert_eq!(rig.lock(&c, wait(range(0, 1), Shared)), Err(LockError::Deadlock));
    // Two readers both want to upgrade.
    rig.lock(&a, ask(range(9, 1), Shared)).unwrap();
    rig.lock(&c, ask(range(9, 1), Shared)).unwrap();
    rig.table.release_owner(&b);
    rig.waits(&a, wait(range(9, 1), Exclusive));
    assert_eq!(rig.lock(&c, wait(range(9, 1), Exclusive)), Err(LockError::Deadlock));
}

#[test]
fn yielding_causes_no_deadlock() {
    let mut rig = Rig::new();
    let (a, b, c) = (owner(1, 1), owner(1, 2), owner(1, 3));
    rig.lock(&c, ask(range(0, 1), Shared)).unwrap();
    rig.waits(&b, wait(range(0, 1), Exclusive));
    let yielding = rig.waits(&a, wait(range(0, 1), Shared));
    // The owner now holds a lock, so another owner could wait for it.
    assert_eq!(rig.lock(&a, ask(range(7, 1), Exclusive)), Ok(Locked::Granted));
    assert_eq!(rig.grants(), [yielding]);
    // An owner that holds a lock does not yield.
    rig.lock(&a, ask(range(0, 1), Shared)).unwrap();
    rig.table.unlock(&0, &a, range(0, 1)).unwrap();
    assert_eq!(rig.lock(&a, wait(range(0, 1), Shared)), Ok(Locked::Granted));
}

#[test]
fn only_reclaims_pass_in_grace_and_none_after_it() {
    let mut rig = Rig::new();
    let share = Share { read: true, write: false, deny_read: false, deny_write: false };
    let reclaim = Request { reclaim: true, ..ask(range(0, 1), Exclusive) };
    rig.table.begin_grace(rig.now + Duration::from_secs(90));
    let (a, b) = (owner(1, 1), owner(2, 1));
    assert_eq!(rig.lock(&a, ask(range(0, 1), Shared)), Err(LockError::Grace));
    assert_eq!(rig.table.share(&0, &a, share, false), Err(LockError::Grace));
    assert_eq!(rig.lock(&a, reclaim), Ok(Locked::Granted));
    assert!(matches!(rig.lock(&b, reclaim), Err(LockError::Denied(_))));
    assert_eq!(rig.table.share(&0, &a, share, true), Ok(()));
    assert!(!rig.table.is_grace_over(rig.now));
    rig.now += Duration::from_secs(90);
    assert!(rig.table.is_grace_over(rig.now));
    assert_eq!(rig.lock(&b, ask(range(1, 1), Shared)), Err(LockError::Grace), "the grace period lasts until end_grace");
    rig.table.end_grace();
    assert!(!rig.table.is_grace_over(rig.now));
    assert_eq!(rig.lock(&a, reclaim), Err(LockError::NoGrace));
    assert_eq!(rig.lock(&b, ask(range(1, 1), Shared)), Ok(Locked::Granted));
}

#[test]
fn shares_are_replaced_refused_and_closed() {
    let mut rig = Rig::new();
    let (a, b) = (owner(1, 1), owner(2, 1));
    let reads = Share { read: true, write: false, deny_read: false, deny_write: false };
    let alone = Share { read: true, write: true, deny_read: true, deny_write: true };
    rig.table.share(&0, &a, reads, false).unwrap();
    rig.table.share(&0, &b, reads, false).unwrap();
    let Err(LockError::Denied(holder)) = rig.table.share(&0, &a, alone, false) else {
        panic!("the share must be denied")
    };
    assert_eq!(*holder.owner, b);
    assert_eq!(rig.table.share_of(&0, &a), Some(reads), "a refused upgrade must change nothing");
    assert!(rig.table.unshare(&0, &b) && !rig.table.unshare(&0, &b));
    rig.table.share(&0, &a, alone, false).unwrap();
    assert_eq!((rig.table.units(), rig.table.share_of(&0, &a)), (1, Some(alone)));
    rig.table.release_client(a.client);
    assert_eq!((rig.table.units(), rig.table.files.len()), (0, 0));
}

#[test]
fn every_bound_is_enforced_and_nothing_leaks() {
    let limits = Limits {
        client_max: 3,
        total_max: 5,
        owner_file_max: 2,
        client_waiters_max: 1,
        file_waiters_max: 2,
        total_waiters_max: 2,
    };
    let mut rig = Rig::with(limits);
    let (a, b, c, d) = (owner(1, 1), owner(1, 2), owner(2, 1), owner(3, 1));
    rig.lock(&a, ask(range(0, 5), Shared)).unwrap();
    rig.lock(&a, ask(range(10, 5), Shared)).unwrap();
    assert_eq!(rig.lock(&a, ask(range(20, 1), Shared)), Err(LockError::Full), "the bound of one file");
    assert_eq!(rig.table.unlock(&0, &a, range(2, 1)), Err(LockError::Full), "a hole makes one more range");
    assert_eq!(rig.table.unlock(&0, &a, range(4, 1)), Ok(()));
    rig.lock(&b, ask(range(20, 1), Shared)).unwrap();
    assert_eq!(rig.lock(&b, ask(range(30, 1), Shared)), Err(LockError::Full), "the bound of one client");
    rig.lock(&c, ask(range(40, 1), Shared)).unwrap();
    rig.lock(&c, ask(range(50, 1), Shared)).unwrap();
    assert_eq!(rig.lock(&d, ask(range(60, 1), Shared)), Err(LockError::Full), "the bound of the table");
    assert_eq!(rig.table.owners.of_client(d.client).len(), 0);
    rig.waits(&b, wait(range(0, 1), Exclusive));
    assert_eq!(rig.lock(&a, wait(range(20, 1), Exclusive)), Err(LockError::Deadlock));
    assert_eq!(rig.lock(&a, wait(range(40, 1), Exclusive)), Err(LockError::Full), "the second waiter of a client");
    rig.waits(&c, wait(range(0, 1), Exclusive));
    assert_eq!(rig.lock(&d, wait(range(0, 1), Exclusive)), Err(LockError::Full), "the third waiter");
    let long = Owner { client: LockClient::V4(9), opaque: SmallVec::from_elem(0, 1024) };
    assert_eq!(rig.lock(&long, ask(range(90, 1), Shared)), Err(LockError::Full), "a long name must count");
    for client in 1..=3 {
        rig.table.release_client(LockClient::V4(client));
    }
    assert_eq!((rig.table.units(), rig.table.files.len(), rig.table.ids.len()), (0, 0, 0));
}

/// Number of bytes in the model. The last one stands for all bytes that follow.
const BYTES: usize = 12;
const FILES: u8 = 2;
const OWNERS: u8 = 4;

#[derive(Clone, Debug)]
enum Step {
    Lock { file: u8, who: u8, first: u8, length: u8, exclusive: bool, wait: bool },
    Unlock { file: u8, who: u8, first: u8, length: u8 },
    Cancel { at: u8 },
    ReleaseOwner { who: u8 },
    ReleaseClient { client: u8 },
}

fn step() -> impl Strategy<Value = Step> {
    let (file, who, first, length) = (0..FILES, 0..OWNERS, 0..BYTES as u8, 0..6u8);
    let place = (file, who, first, length);
    prop_oneof![
        6 => (place.clone(), any::<bool>(), any::<bool>()).prop_map(|((file, who, first, length), exclusive, wait)| {
            Step::Lock { file, who, first, length, exclusive, wait }
        }),
        4 => place.prop_map(|(file, who, first, length)| Step::Unlock { file, who, first, length }),
        1 => any::<u8>().prop_map(|at| Step::Cancel { at }),
        1 => (0..OWNERS).prop_map(|who| Step::ReleaseOwner { who }),
        1 => (0..2u8).prop_map(|client| Step::ReleaseClient { client }),
    ]
}

/// Returns the range of `length` bytes from `first`. It extends to the end if `length` is 0 or too large.
fn bytes(first: u8, length: u8) -> (Range, std::ops::Range<usize>) {
    let end = usize::from(first) + usize::from(length);
    if length == 0 || end >= BYTES {
        (Range::to_end(first.into()), usize::from(first)..BYTES)
    } else {
        (range(first.into(), length.into()), usize::from(first)..end)
    }
}

#[derive(Clone, Debug, PartialEq)]
struct Waiting {
    id: WaiterId,
    file: u8,
    who: u8,
    range: Range,
    bytes: std::ops::Range<usize>,
    kind: LockKind,
}

/// A model that records the holders of each byte of each file, and the waiting requests.
#[derive(Default)]
struct Model {
    held: [[[Option<LockKind>; BYTES]; OWNERS as usize]; FILES as usize],
    waiting: Vec<Waiting>,
}

impl Model {
    fn blockers(&self, file: u8, who: u8, bytes: &std::ops::Range<usize>, kind: LockKind) -> BTreeSet<u8> {
        let holds = |other: &u8| {
            let held = &self.held[usize::from(file)][usize::from(*other)][bytes.clone()];
            held.iter().any(|held| held.is_some_and(|held| held == Exclusive || kind == Exclusive))
        };
        (0..OWNERS).filter(|other| *other != who).filter(holds).collect()
    }

    fn holds_anything(&self, who: u8) -> bool {
        self.held.iter().any(|file| file[usize::from(who)].iter().any(Option::is_some))
    }

    /// Returns `true` if a request yields to one of the waiting requests before it.
    fn must_yield(
        &self,
        file: u8,
        who: u8,
        bytes: &std::ops::Range<usize>,
        kind: LockKind,
        before: &[Waiting],
    ) -> bool {
        let in_the_way = |other: &Waiting| {
            other.file == file
                && other.who != who
                && other.bytes.clone().any(|byte| bytes.contains(&byte))
                && (other.kind == Exclusive || kind == Exclusive)
        };
        !self.holds_anything(who) && before.iter().any(in_the_way)
    }

    fn reaches(&self, from: u8, to: u8, seen: &mut BTreeSet<u8>) -> bool {
        if from == to {
            return true;
        }
        if !seen.insert(from) {
            return false;
        }
        let waits = self.waiting.iter().filter(|waiting| waiting.who == from);
        let next: Vec<u8> = waits.flat_map(|w| self.blockers(w.file, w.who, &w.bytes, w.kind)).collect();
        next.into_iter().any(|next| self.reaches(next, to, seen))
    }

    fn set(&mut self, file: u8, who: u8, bytes: std::ops::Range<usize>, to: Option<LockKind>) {
        self.held[usize::from(file)][usize::from(who)][bytes].fill(to);
    }

    /// Grants all requests that can be granted, and returns them.
    fn grant(&mut self) -> BTreeSet<WaiterId> {
        let mut granted = BTreeSet::new();
        while let Some(at) = (0..self.waiting.len()).find(|&at| {
            let Waiting { file, who, bytes, kind, .. } = &self.waiting[at];
            self.blockers(*file, *who, bytes, *kind).is_empty()
                && !self.must_yield(*file, *who, bytes, *kind, &self.waiting[..at])
        }) {
            let Waiting { id, file, who, bytes, kind, .. } = self.waiting.remove(at);
            self.set(file, who, bytes, Some(kind));
            granted.insert(id);
        }
        granted
    }
}

fn who(number: u8) -> Owner {
    owner(u64::from(number / 2), number)
}

fn run(steps: &[Step]) {
    let (mut table, mut model) = (LockTable::<u8>::new(Limits::default()), Model::default());
    for step in steps {
        match *step {
            Step::Lock { file, who: number, first, length, exclusive, wait } => {
                let (range, bytes) = bytes(first, length);
                let kind = if exclusive { Exclusive } else { Shared };
                let request = Request { range, kind, wait, reclaim: false };
                let result = table.lock(&file, &who(number), &request);
                let same = |w: &Waiting| (w.file, w.who, w.range, w.kind) == (file, number, range, kind);
                let queued = model.waiting.iter().position(same);
                let before = &model.waiting[..queued.unwrap_or(model.waiting.len())];
                let blockers = model.blockers(file, number, &bytes, kind);
                let yields = wait && model.must_yield(file, number, &bytes, kind, before);
                if blockers.is_empty() && !yields {
                    assert_eq!(result, Ok(Locked::Granted), "{step:?}");
                    queued.map(|at| model.waiting.remove(at));
                    model.set(file, number, bytes, Some(kind));
                } else if !wait {
                    assert!(matches!(result, Err(LockError::Denied(_))), "{step:?} {result:?}");
                } else if let Some(at) = queued {
                    assert_eq!(result, Ok(Locked::Waiting(model.waiting[at].id)), "{step:?}");
                } else if blockers.iter().any(|&blocker| model.reaches(blocker, number, &mut BTreeSet::new())) {
                    assert_eq!(result, Err(LockError::Deadlock), "{step:?}");
                } else {
                    let Ok(Locked::Waiting(id)) = result else { panic!("{step:?} {result:?}") };
                    model.waiting.push(Waiting { id, file, who: number, range, bytes, kind });
                }
            }
            Step::Unlock { file, who: number, first, length } => {
                let (range, bytes) = bytes(first, length);
                table.unlock(&file, &who(number), range).unwrap();
                model.set(file, number, bytes, None);
            }
            Step::Cancel { at } => {
                if model.waiting.is_empty() {
                    continue;
                }
                let gone = model.waiting.remove(usize::from(at) % model.waiting.len());
                assert_eq!(table.cancel(&gone.file, &who(gone.who), gone.range, gone.kind), Some(gone.id));
            }
            Step::ReleaseOwner { who: number } => {
                table.release_owner(&who(number));
                release(&mut model, number);
            }
            Step::ReleaseClient { client } => {
                table.release_client(LockClient::V4(client.into()));
                [2 * client, 2 * client + 1].into_iter().for_each(|number| release(&mut model, number));
            }
        }
        let granted: BTreeSet<_> = std::iter::from_fn(|| table.poll_grant()).map(|grant| grant.id).collect();
        assert_eq!(granted, model.grant(), "{step:?}");
        check(&table, &model);
    }
}

fn release(model: &mut Model, number: u8) {
    model.waiting.retain(|waiting| waiting.who != number);
    (0..FILES).for_each(|file| model.set(file, number, 0..BYTES, None));
}

/// Checks that the table agrees with the model on each byte, and that it has no superfluous entries.
fn check(table: &LockTable<u8>, model: &Model) {
    let mut ranges = 0;
    for file in 0..FILES {
        for number in 0..OWNERS {
            let own = &model.held[usize::from(file)][usize::from(number)];
            ranges += (0..BYTES).filter(|&at| own[at].is_some() && (at == 0 || own[at - 1] != own[at])).count();
            for byte in 0..BYTES {
                for kind in [Shared, Exclusive] {
                    let free = model.blockers(file, number, &(byte..byte + 1), kind).is_empty();
                    let at = if byte + 1 == BYTES { u64::MAX } else { byte as u64 };
                    assert_eq!(table.test(&file, &who(number), range(at, 1), kind).is_none(), free);
                }
            }
        }
    }
    assert_eq!(table.units(), ranges, "adjacent ranges must be merged");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, ..ProptestConfig::default() })]

    #[test]
    fn table_agrees_with_the_model(steps in prop::collection::vec(step(), 0..60)) {
        run(&steps);
    }
}
