//! [`CallMemory`]: memory of calls in progress, shared by all connections of a listener.
//!
//! A peer that offers read chunks makes us take memory for them, and one that offers write chunks makes us take memory for its
//! reply. A peer that then answers no RDMA Read, or takes no reply, makes us keep it. So all connections together have a
//! budget. A call takes the bytes of its read chunks that are to be read, and the room that it offers for its reply, before it
//! is read or handed up; it gives back the first when it is answered, and the second when the reply has been sent. A call that
//! finds none waits. Calls without chunks have what is in their receive, and take nothing here.
//!
//! A *payer*, which is a host or a user of this host, may hold as much as it leaves free: one alone gets half of the budget,
//! and however many others take what they can, the next one finds something. When bytes come back, one connection of each
//! payer that can go on is woken, in the order in which they began to wait.
//!
//! While nobody waits no lock is taken. The sum never exceeds the budget. Two connections of one payer that ask at once may
//! both be told to wait though one could go on; then one of them is woken again.

use std::{
    collections::VecDeque,
    sync::{
        Arc,
        atomic::{
            AtomicU64, AtomicUsize,
            Ordering::{Relaxed, SeqCst},
        },
    },
    task::{Context, Poll, Waker},
};

use entropy::HashMap;
use parking_lot::Mutex;
use rpc::Host;

/// The budget of a listener. Clones are the same.
#[derive(Clone)]
pub(crate) struct CallMemory(Arc<Inner>);

/// Whose connection it is: a host, and the user where the kernel tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Payer {
    pub(crate) host: Host,
    pub(crate) user: Option<u32>,
}

struct Inner {
    budget: usize,
    used: AtomicUsize,
    /// Connections that wait, to be seen without the lock.
    waiting: AtomicUsize,
    next: AtomicU64,
    payers: Mutex<HashMap<Payer, Part>>,
}

/// A payer that has connections.
#[derive(Default)]
struct Part {
    accounts: usize,
    held: Arc<AtomicUsize>,
    waiting: VecDeque<Waiting>,
}

struct Waiting {
    account: u64,
    bytes: usize,
    waker: Waker,
}

/// One connection's part. What it holds is given back on drop.
pub(crate) struct MemoryAccount {
    memory: Arc<Inner>,
    payer: Payer,
    number: u64,
    held_by_payer: Arc<AtomicUsize>,
    held: usize,
    /// What it could not take.
    wants: Option<usize>,
}

impl CallMemory {
    /// A budget of `bytes`, of which the longest call, of `call_max`, is at most a quarter.
    pub(crate) fn new(bytes: usize, call_max: usize) -> Self {
        Self(Arc::new(Inner {
            budget: bytes.max(4 * call_max),
            used: AtomicUsize::new(0),
            waiting: AtomicUsize::new(0),
            next: AtomicU64::new(0),
            payers: Mutex::default(),
        }))
    }

    /// The part of a new connection.
    pub(crate) fn account(&self, payer: Payer) -> MemoryAccount {
        let number = self.0.next.fetch_add(1, Relaxed);
        let mut payers = self.0.payers.lock();
        let part = payers.entry(payer).or_default();
        part.accounts += 1;
        let held_by_payer = part.held.clone();
        MemoryAccount { memory: self.0.clone(), payer, number, held_by_payer, held: 0, wants: None }
    }
}

impl MemoryAccount {
    /// Takes `bytes` for a call, if its payer may have them now.
    pub(crate) fn take(&mut self, bytes: usize) -> bool {
        let held = self.held_by_payer.fetch_add(bytes, SeqCst).saturating_add(bytes);
        let budget = self.memory.budget;
        let take = |used| (held <= free(budget, used, bytes)?).then_some(used + bytes);
        if self.memory.used.fetch_update(SeqCst, SeqCst, take).is_err() {
            self.held_by_payer.fetch_sub(bytes, SeqCst);
            self.wants = Some(bytes);
            // Another may have been refused for what was counted here.
            self.memory.wake();
            return false;
        }
        self.held += bytes;
        if self.wants.take().is_some() {
            // There may be enough for who waits behind this one, too.
            self.memory.wake();
        }
        true
    }

    /// Gives back what a call took.
    pub(crate) fn give_back(&mut self, bytes: usize) {
        self.held -= bytes;
        self.held_by_payer.fetch_sub(bytes, SeqCst);
        self.memory.used.fetch_sub(bytes, SeqCst);
        self.memory.wake();
    }

    /// Ready if it is worth trying again to take what could not be taken. Otherwise the task is woken for that; `None` if
    /// nothing is wanted.
    pub(crate) fn poll_wanted(&mut self, cx: &Context<'_>) -> Option<Poll<()>> {
        let bytes = self.wants?;
        let mut payers = self.memory.payers.lock();
        let part = payers.get_mut(&self.payer).expect("it has this account");
        self.memory.wait_no_more(part, self.number);
        // Counted first: what is given back from now on wakes it, and what was before is seen.
        self.memory.waiting.fetch_add(1, SeqCst);
        part.waiting.push_back(Waiting { account: self.number, bytes, waker: cx.waker().clone() });
        if self.memory.admits(part, bytes) {
            self.memory.wait_no_more(part, self.number);
            return Some(Poll::Ready(()));
        }
        Some(Poll::Pending)
    }
}

impl Drop for MemoryAccount {
    fn drop(&mut self) {
        self.give_back(self.held);
        let mut payers = self.memory.payers.lock();
        let part = payers.get_mut(&self.payer).expect("it has this account");
        let waited = self.memory.wait_no_more(part, self.number);
        part.accounts -= 1;
        if part.accounts == 0 {
            payers.remove(&self.payer);
        }
        drop(payers);
        if self.wants.is_some() && !waited {
            // It has been woken for bytes that it will not take now.
            self.memory.wake();
        }
    }
}

impl Inner {
    fn admits(&self, part: &Part, bytes: usize) -> bool {
        let held = part.held.load(SeqCst).saturating_add(bytes);
        free(self.budget, self.used.load(SeqCst), bytes).is_some_and(|free| held <= free)
    }

    /// Takes an account off the queue; whether it was in it.
    fn wait_no_more(&self, part: &mut Part, account: u64) -> bool {
        let before = part.waiting.len();
        part.waiting.retain(|waiting| waiting.account != account);
        let removed = before - part.waiting.len();
        self.waiting.fetch_sub(removed, SeqCst);
        removed > 0
    }

    /// Wakes the first that waits of each payer that could go on.
    fn wake(&self) {
        if self.waiting.load(SeqCst) == 0 {
            return;
        }
        let mut woken = Vec::new();
        for part in self.payers.lock().values_mut() {
            if part.waiting.front().is_some_and(|first| self.admits(part, first.bytes)) {
                woken.extend(part.waiting.pop_front().map(|first| first.waker));
                self.waiting.fetch_sub(1, SeqCst);
            }
        }
        woken.into_iter().for_each(Waker::wake);
    }
}

/// What is left free of a budget when `bytes` more are used.
fn free(budget: usize, used: usize, bytes: usize) -> Option<usize> {
    budget.checked_sub(used)?.checked_sub(bytes)
}

#[cfg(test)]
mod tests {
    use std::task::Wake;

    use super::*;

    #[derive(Default)]
    struct Wakes(AtomicUsize);

    impl Wake for Wakes {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, SeqCst);
        }
    }

    fn payer(host: u8) -> Payer {
        Payer { host: Host::of([10, 0, 0, host].into()), user: None }
    }

    /// Has an account wait; how often it has been woken.
    fn wait(account: &mut MemoryAccount) -> Arc<Wakes> {
        let wakes = Arc::new(Wakes::default());
        let polled = account.poll_wanted(&Context::from_waker(&wakes.clone().into()));
        assert_eq!(polled, Some(Poll::Pending));
        wakes
    }

    #[test]
    fn a_host_has_half_at_most_whatever_its_connections_and_others_find_something() {
        let memory = CallMemory::new(1200, 100);
        let mut connections: Vec<_> = (0..100).map(|_| memory.account(payer(1))).collect();
        let taken: usize = connections.iter_mut().map(|account| 50 * usize::from(account.take(50))).sum();
        assert_eq!(taken, 600);
        let mut other = memory.account(payer(2));
        assert!((0..6).all(|_| other.take(50)) && !other.take(50));
        drop(connections);
        assert!(other.take(50));
        drop(other);
        assert_eq!((memory.0.used.load(SeqCst), memory.0.payers.lock().len()), (0, 0));
    }

    #[test]
    fn who_waits_is_woken_when_there_is_room_and_wakes_the_next() {
        let memory = CallMemory::new(400, 100);
        let [mut holder, mut first, mut second] = [1, 1, 1].map(|host| memory.account(payer(host)));
        assert!(holder.take(200) && !first.take(50) && !second.take(50));
        let (one, two) = (wait(&mut first), wait(&mut second));
        holder.give_back(20);
        assert_eq!((one.0.load(SeqCst), two.0.load(SeqCst)), (0, 0), "not enough");
        holder.give_back(180);
        assert_eq!((one.0.load(SeqCst), two.0.load(SeqCst)), (1, 0), "in order");
        assert!(first.take(50));
        assert_eq!(two.0.load(SeqCst), 1, "there is enough for both");
        assert!(second.take(50) && second.poll_wanted(&Context::from_waker(Waker::noop())).is_none());
    }

    #[test]
    fn a_connection_that_ends_gives_back_its_bytes_and_its_turn() {
        let memory = CallMemory::new(400, 100);
        let [mut holder, mut first, mut second] = [1, 1, 1].map(|host| memory.account(payer(host)));
        assert!(holder.take(200) && !first.take(50) && !second.take(50));
        let (one, two) = (wait(&mut first), wait(&mut second));
        drop(holder);
        assert_eq!((one.0.load(SeqCst), two.0.load(SeqCst)), (1, 0));
        drop(first);
        assert_eq!(two.0.load(SeqCst), 1, "the first was woken, and did not take");
    }

    #[test]
    fn the_longest_call_fits_in_any_budget() {
        let memory = CallMemory::new(1, 1000);
        assert!(memory.account(payer(1)).take(1000));
    }

    /// Threads that take and give back at once, and wait as a driver does, all come to an end.
    #[test]
    fn nobody_waits_for_ever() {
        let memory = CallMemory::new(400, 100);
        std::thread::scope(|scope| {
            for host in [1, 1, 1, 2, 2, 3] {
                let mut account = memory.account(payer(host));
                scope.spawn(move || {
                    struct Unpark(std::thread::Thread);
                    impl Wake for Unpark {
                        fn wake(self: Arc<Self>) {
                            self.0.unpark();
                        }
                    }
                    let waker = Arc::new(Unpark(std::thread::current())).into();
                    for round in 0..20_000 {
                        let bytes = 50 + round % 51;
                        while !account.take(bytes) {
                            if account.poll_wanted(&Context::from_waker(&waker)) == Some(Poll::Pending) {
                                std::thread::park();
                            }
                        }
                        assert!(account.memory.used.load(SeqCst) <= 400);
                        account.give_back(bytes);
                    }
                });
            }
        });
        assert_eq!((memory.0.used.load(SeqCst), memory.0.waiting.load(SeqCst)), (0, 0));
    }
}
