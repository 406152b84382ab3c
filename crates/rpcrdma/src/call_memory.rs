//! [`CallMemory`]: a memory limit for calls in progress, shared by all connections of a listener.
//!
//! A peer that offers read chunks makes the server allocate memory for them, and a peer that offers write chunks makes
//! it allocate memory for the reply. If the peer then does not answer RDMA Reads, or does not receive the reply, the
//! server must keep that memory. Therefore all connections together have a budget. A call takes the bytes of its read
//! chunks that must be read and the size that it offers for its reply, before it is read or delivered. It releases the
//! former when it is answered, and the latter when the reply has been sent. A call for which there is no memory waits.
//! A call without chunks uses only its receive buffer and takes nothing from the budget.
//!
//! An *owner* is a host, or a user of this host. It can hold as much memory as it leaves free: a single owner gets half
//! of the budget and, however much others take, some is left for the next owner. When bytes are released, one
//! connection of each owner that can proceed is woken, in the order in which they began to wait.
//!
//! No lock is taken while no connection waits. The sum never exceeds the budget. If two connections of one owner ask at
//! the same time, both can be told to wait although one could proceed; one of them is then woken again.

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

/// The memory budget of a listener. Clones share the same budget.
#[derive(Clone)]
pub(crate) struct CallMemory(Arc<Inner>);

/// The owner of a connection's memory: its host, and its user if the kernel reports one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct MemoryOwner {
    pub(crate) host: Host,
    pub(crate) user: Option<u32>,
}

struct Inner {
    budget: usize,
    used: AtomicUsize,
    /// The number of connections that wait, readable without the lock.
    waiting: AtomicUsize,
    next: AtomicU64,
    owners: Mutex<HashMap<MemoryOwner, OwnerState>>,
}

/// The state of an owner that has connections.
#[derive(Default)]
struct OwnerState {
    accounts: usize,
    held: Arc<AtomicUsize>,
    waiting: VecDeque<Waiting>,
}

struct Waiting {
    account: u64,
    bytes: usize,
    waker: Waker,
}

/// The memory account of one connection. Dropping it releases all bytes that it holds.
pub(crate) struct MemoryAccount {
    memory: Arc<Inner>,
    owner: MemoryOwner,
    number: u64,
    held_by_owner: Arc<AtomicUsize>,
    held: usize,
    /// The bytes of the request that did not succeed, if any.
    wanted: Option<usize>,
}

impl CallMemory {
    /// Creates a budget of `bytes`, and at least four times the memory of the largest call, `call_max`.
    pub(crate) fn new(bytes: usize, call_max: usize) -> Self {
        Self(Arc::new(Inner {
            budget: bytes.max(4 * call_max),
            used: AtomicUsize::new(0),
            waiting: AtomicUsize::new(0),
            next: AtomicU64::new(0),
            owners: Mutex::default(),
        }))
    }

    /// Returns the bytes that calls hold.
    #[cfg(test)]
    pub(crate) fn used(&self) -> usize {
        self.0.used.load(SeqCst)
    }

    /// Opens the account of a new connection.
    pub(crate) fn account(&self, owner: MemoryOwner) -> MemoryAccount {
        let number = self.0.next.fetch_add(1, Relaxed);
        let mut owners = self.0.owners.lock();
        let state = owners.entry(owner).or_default();
        state.accounts += 1;
        let held_by_owner = state.held.clone();
        MemoryAccount { memory: self.0.clone(), owner, number, held_by_owner, held: 0, wanted: None }
    }
}

impl MemoryAccount {
    /// Takes `bytes` for a call. Returns `false` if its owner cannot have them now.
    pub(crate) fn take(&mut self, bytes: usize) -> bool {
        let held = self.held_by_owner.fetch_add(bytes, SeqCst).saturating_add(bytes);
        let budget = self.memory.budget;
        let take = |used| (held <= free(budget, used, bytes)?).then_some(used + bytes);
        if self.memory.used.fetch_update(SeqCst, SeqCst, take).is_err() {
            self.held_by_owner.fetch_sub(bytes, SeqCst);
            self.wanted = Some(bytes);
            // Another account can have been refused because of the bytes that were counted here.
            self.memory.wake();
            return false;
        }
        self.held += bytes;
        if self.wanted.take().is_some() {
            // There can be enough memory for the next waiting account, too.
            self.memory.wake();
        }
        true
    }

    /// Releases bytes that a call took.
    pub(crate) fn release(&mut self, bytes: usize) {
        self.held -= bytes;
        self.held_by_owner.fetch_sub(bytes, SeqCst);
        self.memory.used.fetch_sub(bytes, SeqCst);
        self.memory.wake();
    }

    /// Returns `Ready` if the request that did not succeed can be retried. Otherwise wakes the task when it can be.
    /// Returns `None` if there is no such request.
    pub(crate) fn poll_wanted(&mut self, cx: &Context<'_>) -> Option<Poll<()>> {
        let bytes = self.wanted?;
        let mut owners = self.memory.owners.lock();
        let state = owners.get_mut(&self.owner).expect("the owner of an account must have an entry");
        self.memory.dequeue(state, self.number);
        // The wait is counted before the check: a later release wakes this account, and the check sees an earlier one.
        self.memory.waiting.fetch_add(1, SeqCst);
        state.waiting.push_back(Waiting { account: self.number, bytes, waker: cx.waker().clone() });
        if self.memory.has_room(state, bytes) {
            self.memory.dequeue(state, self.number);
            return Some(Poll::Ready(()));
        }
        Some(Poll::Pending)
    }
}

impl Drop for MemoryAccount {
    fn drop(&mut self) {
        let mut owners = self.memory.owners.lock();
        let state = owners.get_mut(&self.owner).expect("the owner of an account must have an entry");
        self.memory.dequeue(state, self.number);
        state.accounts -= 1;
        if state.accounts == 0 {
            owners.remove(&self.owner);
        }
        drop(owners);
        // This also wakes the next account if this one was woken for bytes that it will not take.
        self.release(self.held);
    }
}

impl Inner {
    fn has_room(&self, state: &OwnerState, bytes: usize) -> bool {
        let held = state.held.load(SeqCst).saturating_add(bytes);
        free(self.budget, self.used.load(SeqCst), bytes).is_some_and(|free| held <= free)
    }

    /// Removes an account from the queue, if it is there.
    fn dequeue(&self, state: &mut OwnerState, account: u64) {
        let before = state.waiting.len();
        state.waiting.retain(|waiting| waiting.account != account);
        self.waiting.fetch_sub(before - state.waiting.len(), SeqCst);
    }

    /// Wakes the first waiting account of each owner that can proceed.
    fn wake(&self) {
        if self.waiting.load(SeqCst) == 0 {
            return;
        }
        let mut woken = Vec::new();
        for state in self.owners.lock().values_mut() {
            if state.waiting.front().is_some_and(|first| self.has_room(state, first.bytes)) {
                woken.extend(state.waiting.pop_front().map(|first| first.waker));
                self.waiting.fetch_sub(1, SeqCst);
            }
        }
        woken.into_iter().for_each(Waker::wake);
    }
}

/// Returns the bytes that remain free of a budget if `bytes` more are used.
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

    fn owner(host: u8) -> MemoryOwner {
        MemoryOwner { host: Host::of([10, 0, 0, host].into()), user: None }
    }

    /// Makes an account wait. Returns the counter of its wakes.
    fn wait(account: &mut MemoryAccount) -> Arc<Wakes> {
        let wakes = Arc::new(Wakes::default());
        let polled = account.poll_wanted(&Context::from_waker(&wakes.clone().into()));
        assert_eq!(polled, Some(Poll::Pending));
        wakes
    }

    #[test]
    fn one_host_gets_at_most_half_and_others_still_get_some() {
        let memory = CallMemory::new(1200, 100);
        let mut connections: Vec<_> = (0..100).map(|_| memory.account(owner(1))).collect();
        let taken: usize = connections.iter_mut().map(|account| 50 * usize::from(account.take(50))).sum();
        assert_eq!(taken, 600);
        let mut other = memory.account(owner(2));
        assert!((0..6).all(|_| other.take(50)) && !other.take(50));
        drop(connections);
        assert!(other.take(50));
        drop(other);
        assert_eq!((memory.0.used.load(SeqCst), memory.0.owners.lock().len()), (0, 0));
    }

    #[test]
    fn waiting_connection_is_woken_when_there_is_room_and_wakes_the_next() {
        let memory = CallMemory::new(400, 100);
        let [mut holder, mut first, mut second] = [1, 1, 1].map(|host| memory.account(owner(host)));
        assert!(holder.take(200) && !first.take(50) && !second.take(50));
        let (one, two) = (wait(&mut first), wait(&mut second));
        holder.release(20);
        assert_eq!((one.0.load(SeqCst), two.0.load(SeqCst)), (0, 0), "there must not be enough memory yet");
        holder.release(180);
        assert_eq!((one.0.load(SeqCst), two.0.load(SeqCst)), (1, 0), "accounts must be woken in order");
        assert!(first.take(50));
        assert_eq!(two.0.load(SeqCst), 1, "there must be enough memory for both");
        assert!(second.take(50) && second.poll_wanted(&Context::from_waker(Waker::noop())).is_none());
    }

    #[test]
    fn closed_connection_releases_its_bytes_and_its_place_in_the_queue() {
        let memory = CallMemory::new(400, 100);
        let [mut holder, mut first, mut second] = [1, 1, 1].map(|host| memory.account(owner(host)));
        assert!(holder.take(200) && !first.take(50) && !second.take(50));
        let (one, two) = (wait(&mut first), wait(&mut second));
        drop(holder);
        assert_eq!((one.0.load(SeqCst), two.0.load(SeqCst)), (1, 0));
        drop(first);
        assert_eq!(two.0.load(SeqCst), 1, "the first account was woken but took nothing, so the second must be woken");
    }

    #[test]
    fn closed_connection_that_waits_wakes_the_next_for_its_bytes() {
        let memory = CallMemory::new(400, 100);
        let [mut first, mut second] = [1, 1].map(|host| memory.account(owner(host)));
        assert!(first.take(200) && !first.take(50) && !second.take(50));
        let (one, two) = (wait(&mut first), wait(&mut second));
        drop(first);
        assert_eq!((one.0.load(SeqCst), two.0.load(SeqCst)), (0, 1), "a closed connection must not take the place");
        assert!(second.take(50));
        drop(second);
        let inner = &memory.0;
        assert_eq!((inner.used.load(SeqCst), inner.waiting.load(SeqCst), inner.owners.lock().len()), (0, 0, 0));
    }

    #[test]
    fn largest_call_fits_in_any_budget() {
        let memory = CallMemory::new(1, 1000);
        assert!(memory.account(owner(1)).take(1000));
    }

    /// Threads that take and release memory concurrently, and wait as a driver does, all complete.
    #[test]
    fn no_account_waits_forever() {
        let memory = CallMemory::new(400, 100);
        std::thread::scope(|scope| {
            for host in [1, 1, 1, 2, 2, 3] {
                let mut account = memory.account(owner(host));
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
                        account.release(bytes);
                    }
                });
            }
        });
        assert_eq!((memory.0.used.load(SeqCst), memory.0.waiting.load(SeqCst)), (0, 0));
    }
}
