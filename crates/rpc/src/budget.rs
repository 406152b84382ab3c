//! [`Budget`]: a memory limit that the accepted connections of a listener share.
//!
//! Each connection has an [`Account`]. The first [`GUARANTEED`] bytes of an account are reserved for it, so that small
//! calls proceed whatever other connections do. An account takes further bytes from the shared part in steps of
//! [`STEP`] bytes, so that it accesses the shared counters once for many calls.
//!
//! Shares are the dynamic thresholds of shared-memory switches (Choudhury and Hahne, 1998): a host can take more while
//! it holds less than what is free. A single host gets half, *n* hosts get one part in *n* + 1 each, and some memory is
//! always left for the next host.
//!
//! If there is no room, a connection waits: its calls are not read. While a connection waits, all connections are
//! checked once in each [`SWEEP`] period. A connection stalls if it holds an incomplete record or replies that its peer
//! does not read, and transferred less than an eighth of these bytes in each of [`STALL_SWEEPS`] periods. Stalled
//! connections are closed, the one that holds the most first.
//!
//! Replies are charged even if there is no room, because their calls have been executed. If they exceed the budget by a
//! quarter, the connection that holds the most is closed at once. So all accounts together hold at most one and a
//! quarter of the budget, the guaranteed bytes, and the memory that the threads use at that moment.
//!
//! This module does no I/O. An account belongs to one connection and needs `&mut`; only [`Entry`] is shared.

use std::{
    collections::VecDeque,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed, Ordering::SeqCst},
    },
    task::Waker,
    time::Duration,
};

use entropy::HashMap;
use futures_util::task::AtomicWaker;
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::Host;

/// A memory limit that connections share. Clones share the same budget.
#[derive(Clone)]
pub(crate) struct Budget(Arc<Inner>);

struct Inner {
    limit: usize,
    /// Bytes that accounts have taken beyond their guarantee.
    used: AtomicUsize,
    /// The number of accounts that wait for memory.
    waiting: AtomicUsize,
    accounts: Mutex<Accounts>,
}

#[derive(Default)]
struct Accounts {
    hosts: HashMap<Host, (Arc<AtomicUsize>, usize)>,
    entries: HashMap<u64, Arc<Entry>>,
    next: u64,
    waiters: VecDeque<Arc<Entry>>,
    swept: Option<Instant>,
}

/// The part of an account that other connections access.
#[derive(Default)]
struct Entry {
    /// Bytes in an incomplete record and in replies that the peer has not read. The peer can keep these bytes occupied
    /// by stalling.
    stallable: AtomicUsize,
    /// Total bytes received and sent, wrapping.
    moved: AtomicUsize,
    evicted: AtomicBool,
    waits: AtomicBool,
    /// The waker of the connection's driver.
    waker: AtomicWaker,
    /// The value of `moved` at the last sweep. Changed only while the table is locked.
    seen: AtomicUsize,
    sweeps: AtomicUsize,
}

/// The memory account of one connection.
pub(crate) struct Account {
    budget: Budget,
    host: Host,
    host_used: Arc<AtomicUsize>,
    id: u64,
    entry: Arc<Entry>,
    /// Bytes charged now. Negative while bytes were released that are charged later.
    held: isize,
    /// Bytes taken from the shared part.
    taken: usize,
}

impl Budget {
    /// Creates a budget of `limit` bytes.
    pub fn new(limit: usize) -> Self {
        Self(Arc::new(Inner {
            limit,
            used: AtomicUsize::new(0),
            waiting: AtomicUsize::new(0),
            accounts: Mutex::default(),
        }))
    }

    /// Opens an account for a connection of `host`.
    pub fn account(&self, host: Host) -> Account {
        let entry = Arc::<Entry>::default();
        let mut accounts = self.0.accounts.lock();
        let accounts = &mut *accounts;
        let id = accounts.next;
        accounts.next += 1;
        accounts.entries.insert(id, entry.clone());
        let (used, connections) = accounts.hosts.entry(host).or_default();
        *connections += 1;
        let host_used = used.clone();
        Account { budget: self.clone(), host, host_used, id, entry, held: 0, taken: 0 }
    }

    /// Returns the bytes taken from the shared part.
    #[cfg(test)]
    pub fn used(&self) -> usize {
        self.0.used.load(SeqCst)
    }

    /// Closes stalled connections, if the last sweep was at least [`SWEEP`] ago.
    pub fn sweep(&self, now: Instant) {
        let mut accounts = self.0.accounts.lock();
        if accounts.swept.is_some_and(|swept| now.duration_since(swept) < SWEEP) {
            return;
        }
        accounts.swept = Some(now);
        let mut stalled: Vec<_> = accounts.entries.values().filter(|entry| entry.is_stalled()).collect();
        stalled.sort_by_key(|entry| std::cmp::Reverse(entry.stallable.load(Relaxed)));
        let mut freed = 0;
        for entry in stalled {
            if freed >= self.0.limit / 4 {
                break;
            }
            freed += entry.stallable.load(Relaxed);
            entry.evict();
        }
    }

    /// Closes the connection that holds the most stallable bytes.
    fn evict_heaviest(&self) {
        let accounts = self.0.accounts.lock();
        let candidates = accounts.entries.values().filter(|entry| !entry.evicted.load(Relaxed));
        let heaviest = candidates.max_by_key(|entry| entry.stallable.load(Relaxed));
        if let Some(entry) = heaviest.filter(|entry| entry.stallable.load(Relaxed) > GUARANTEED) {
            entry.evict();
        }
    }

    /// Returns `true` if a host that has taken `host_used` bytes can take `bytes` more.
    fn has_room(&self, host_used: usize, bytes: usize) -> bool {
        let free = self.0.limit.saturating_sub(self.0.used.load(Relaxed));
        host_used + 2 * bytes <= free
    }

    fn wake(&self, count: usize) {
        if self.0.waiting.load(SeqCst) == 0 {
            return;
        }
        let mut accounts = self.0.accounts.lock();
        for _ in 0..count {
            let Some(entry) = accounts.waiters.pop_front() else { break };
            self.0.waiting.fetch_sub(1, SeqCst);
            entry.waits.store(false, SeqCst);
            entry.waker.wake();
        }
    }
}

impl Entry {
    /// Records one more sweep. Returns `true` if the connection has stalled for [`STALL_SWEEPS`] sweeps.
    fn is_stalled(&self) -> bool {
        let (stallable, moved) = (self.stallable.load(Relaxed), self.moved.load(Relaxed));
        let progress = moved.wrapping_sub(self.seen.load(Relaxed));
        if stallable <= GUARANTEED || progress >= stallable / 8 || self.evicted.load(Relaxed) {
            self.seen.store(moved, Relaxed);
            self.sweeps.store(0, Relaxed);
            return false;
        }
        self.sweeps.fetch_add(1, Relaxed) >= STALL_SWEEPS
    }

    fn evict(&self) {
        self.evicted.store(true, SeqCst);
        self.waker.wake();
    }
}

impl Account {
    /// Charges `bytes`, or releases them if negative. Always succeeds, and exceeds the budget if necessary.
    pub fn adjust(&mut self, bytes: isize) {
        self.held += bytes;
        let beyond = self.beyond(0);
        if beyond > self.taken {
            self.take(beyond.next_multiple_of(STEP) - self.taken);
        } else if self.taken >= beyond + 2 * STEP {
            self.shrink_to(beyond.next_multiple_of(STEP) + STEP);
        }
    }

    /// Charges `bytes` if there is room. Returns `true` if it charged them.
    pub fn try_charge(&mut self, bytes: usize) -> bool {
        let has_room = self.has_room(bytes);
        if has_room {
            self.adjust(bytes as isize);
        }
        has_room
    }

    /// Returns `true` if `bytes` more fit in the budget and in the host's share.
    pub fn has_room(&self, bytes: usize) -> bool {
        let beyond = self.beyond(bytes);
        beyond <= self.taken
            || self.budget.has_room(self.host_used.load(Relaxed), beyond.next_multiple_of(STEP) - self.taken)
    }

    /// Returns the bytes taken in advance to the shared part, and reports progress: the peer could free `stallable` of
    /// the bytes held, and `moved` bytes have been received and sent in total. Wakes `driver` when the connection must
    /// be closed.
    pub fn report_progress(&mut self, stallable: usize, moved: usize, driver: &Waker) {
        let beyond = self.beyond(0).next_multiple_of(STEP);
        if self.taken > beyond {
            self.shrink_to(beyond);
        }
        self.entry.moved.store(moved, Relaxed);
        self.entry.stallable.store(stallable, Relaxed);
        if stallable > GUARANTEED {
            self.entry.waker.register(driver);
        }
    }

    /// Registers `driver` to be woken when there is room. The caller must check once more after this call, because the
    /// room can have appeared before it.
    pub fn wait(&self, driver: &Waker) {
        self.entry.waker.register(driver);
        if !self.entry.waits.swap(true, SeqCst) {
            let mut accounts = self.budget.0.accounts.lock();
            accounts.waiters.push_back(self.entry.clone());
            self.budget.0.waiting.fetch_add(1, SeqCst);
        }
    }

    /// Returns the bytes charged now. Negative while bytes were released that are charged later.
    pub fn held(&self) -> isize {
        self.held
    }

    /// Returns `true` if the connection must be closed.
    pub fn is_evicted(&self) -> bool {
        self.entry.evicted.load(SeqCst)
    }

    pub fn budget(&self) -> &Budget {
        &self.budget
    }

    /// Returns the bytes beyond the guarantee that the account would hold with `more` additional bytes.
    fn beyond(&self, more: usize) -> usize {
        usize::try_from(self.held + more as isize - GUARANTEED as isize).unwrap_or(0)
    }

    fn take(&mut self, bytes: usize) {
        self.taken += bytes;
        self.host_used.fetch_add(bytes, Relaxed);
        let used = self.budget.0.used.fetch_add(bytes, SeqCst) + bytes;
        if used > self.budget.0.limit / 4 * 5 {
            // This account's own bytes count, too.
            self.entry.stallable.fetch_add(bytes, Relaxed);
            self.budget.evict_heaviest();
        }
    }

    fn shrink_to(&mut self, keep: usize) {
        let bytes = self.taken - keep;
        self.taken = keep;
        self.host_used.fetch_sub(bytes, Relaxed);
        self.budget.0.used.fetch_sub(bytes, SeqCst);
        self.budget.wake(bytes.div_ceil(STEP));
    }
}

impl Drop for Account {
    fn drop(&mut self) {
        self.shrink_to(0);
        let mut accounts = self.budget.0.accounts.lock();
        let accounts = &mut *accounts;
        let (_, connections) = accounts.hosts.get_mut(&self.host).expect("the host of an account must have an entry");
        *connections -= 1;
        if *connections == 0 {
            accounts.hosts.remove(&self.host);
        }
        accounts.entries.remove(&self.id);
        let before = accounts.waiters.len();
        if self.entry.waits.load(SeqCst) {
            accounts.waiters.retain(|entry| !Arc::ptr_eq(entry, &self.entry));
        }
        self.budget.0.waiting.fetch_sub(before - accounts.waiters.len(), SeqCst);
    }
}

/// Bytes that each connection can hold regardless of the others.
pub(crate) const GUARANTEED: usize = 8 << 10;
/// Bytes taken from the shared part at a time.
pub(crate) const STEP: usize = 64 << 10;
/// The interval between two checks for stalled connections while others wait.
pub(crate) const SWEEP: Duration = Duration::from_secs(1);
const STALL_SWEEPS: usize = 5;

#[cfg(test)]
mod tests {
    use std::{net::IpAddr, task::Waker};

    use proptest::prelude::*;

    use super::*;

    const LIMIT: usize = 64 * STEP;

    fn host(last: u8) -> Host {
        Host::of(IpAddr::from([10, 0, 0, last]))
    }

    /// Takes as much memory as it can.
    fn fill(account: &mut Account) -> usize {
        let mut taken = 0;
        while account.try_charge(STEP) {
            taken += STEP;
        }
        taken
    }

    #[test]
    fn hosts_get_equal_shares_and_next_host_always_gets_some() {
        let budget = Budget::new(LIMIT);
        let mut first: Vec<_> = (0..4).map(|_| budget.account(host(1))).collect();
        let taken: usize = first.iter_mut().map(fill).sum();
        assert!((LIMIT / 2 - 5 * STEP..=LIMIT / 2 + STEP).contains(&taken), "one host must get half: {taken}");
        let mut second = budget.account(host(2));
        let taken = fill(&mut second);
        assert!(
            (LIMIT / 4 - 2 * STEP..=LIMIT / 4 + STEP).contains(&taken),
            "the second host must get half of the rest: {taken}"
        );
        assert!(!first[0].has_room(3 * STEP));
        assert!(budget.account(host(3)).try_charge(STEP));
    }

    #[test]
    fn guarantee_is_available_when_shared_part_is_used_up() {
        let budget = Budget::new(LIMIT);
        let mut heavy = budget.account(host(1));
        heavy.adjust(LIMIT as isize);
        let mut light = budget.account(host(2));
        let used = budget.used();
        assert!(light.try_charge(GUARANTEED) && !light.try_charge(1));
        assert_eq!(budget.used(), used);
        drop((heavy, light));
        assert_eq!(budget.used(), 0);
        assert!(budget.0.accounts.lock().hosts.is_empty());
    }

    #[test]
    fn release_wakes_a_waiting_connection() {
        let budget = Budget::new(LIMIT);
        let mut heavy = budget.account(host(1));
        heavy.adjust(LIMIT as isize);
        let light = budget.account(host(2));
        let (woken, waker) = counting_waker();
        light.wait(&waker);
        light.wait(&waker);
        heavy.adjust(-(LIMIT as isize));
        assert_eq!(woken.load(SeqCst), 1);
        assert!(light.has_room(STEP));
        assert_eq!(budget.0.waiting.load(SeqCst), 0);
    }

    #[test]
    fn stalled_connections_are_closed_heaviest_first() {
        let budget = Budget::new(LIMIT);
        let stalled = [4, 8, 30, 2].map(|steps: usize| {
            let mut account = budget.account(host(steps as u8));
            account.adjust((steps * STEP) as isize);
            account.report_progress(steps * STEP, 0, Waker::noop());
            account
        });
        let mut moving = budget.account(host(100));
        moving.adjust(20 * STEP as isize);
        let mut now = Instant::now();
        for sweep in 0..=STALL_SWEEPS {
            assert!(!stalled.iter().any(Account::is_evicted));
            moving.report_progress(20 * STEP, sweep * 3 * STEP, Waker::noop());
            budget.sweep(now);
            budget.sweep(now);
            now += SWEEP;
        }
        assert_eq!(
            stalled.each_ref().map(Account::is_evicted),
            [false, false, true, false],
            "the heaviest alone frees a quarter of the budget"
        );
        assert!(!moving.is_evicted());
        for _ in 0..=STALL_SWEEPS + 1 {
            moving.report_progress(20 * STEP, 100 * STEP, Waker::noop());
            budget.sweep(now);
            now += SWEEP;
        }
        assert!(stalled.iter().all(Account::is_evicted) && moving.is_evicted());
    }

    #[test]
    fn replies_far_beyond_the_budget_evict_the_heaviest_at_once() {
        let budget = Budget::new(LIMIT);
        let mut heavy = budget.account(host(1));
        heavy.adjust(LIMIT as isize);
        heavy.report_progress(LIMIT, 0, Waker::noop());
        let mut light = budget.account(host(2));
        light.adjust((LIMIT / 8) as isize);
        assert!(!heavy.is_evicted());
        light.adjust((LIMIT / 4) as isize);
        assert!(heavy.is_evicted() && !light.is_evicted());
    }

    fn counting_waker() -> (Arc<AtomicUsize>, Waker) {
        struct Count(Arc<AtomicUsize>);
        impl std::task::Wake for Count {
            fn wake(self: Arc<Self>) {
                self.0.fetch_add(1, SeqCst);
            }
        }
        let count = Arc::<AtomicUsize>::default();
        (count.clone(), Arc::new(Count(count)).into())
    }

    proptest! {
        #[test]
        fn shared_part_equals_bytes_held_beyond_guarantees(
            steps in prop::collection::vec((0usize..4, 0usize..5 * STEP, 0u8..4), 1..200),
        ) {
            let budget = Budget::new(LIMIT);
            let mut accounts: Vec<_> = (0..4).map(|last| (budget.account(host(last)), 0usize)).collect();
            for (which, bytes, what) in steps {
                let (account, held) = &mut accounts[which];
                match what {
                    0 | 1 => {
                        let room = account.has_room(bytes);
                        prop_assert_eq!(account.try_charge(bytes), room);
                        *held += if room { bytes } else { 0 };
                    }
                    2 => {
                        account.adjust(-(bytes.min(*held) as isize));
                        *held -= bytes.min(*held);
                    }
                    _ => account.report_progress(0, 0, Waker::noop()),
                }
                let beyond: usize = accounts.iter().map(|(_, held)| held.saturating_sub(GUARANTEED)).sum();
                prop_assert!(budget.used() <= LIMIT);
                prop_assert!((beyond..beyond + 4 * 3 * STEP).contains(&budget.used()));
            }
            accounts.clear();
            prop_assert_eq!(budget.used(), 0);
        }
    }
}
