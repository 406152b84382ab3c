//! [`Sinks`]: memory for what calls have RDMA Read, shared by all connections of a listener.
//!
//! A peer that offers read chunks makes us take memory for them, and one that then does not answer the RDMA Reads makes us
//! keep it until the deadline. So all connections together have a budget. A call has its bytes from when its first RDMA Read
//! is posted until it is answered; a call that finds none waits, and the calls of its connection behind it.
//!
//! A *payer*, which is a host or a user of this host, may hold as much as it leaves free: one alone
//! gets half of the budget, and however many others take what they can, the next one finds something. When bytes come back,
//! one connection of each payer that can go on is woken, in the order in which they began to wait.

use std::{
    collections::{HashMap, VecDeque},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    task::{Context, Poll, Waker},
};

use parking_lot::Mutex;
use rpc::Host;

/// The budget of a listener. Clones are the same.
#[derive(Clone)]
pub(crate) struct Sinks(Arc<Inner>);

/// Whose connection it is: a host, and the user where the kernel tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Payer {
    pub(crate) host: Host,
    pub(crate) user: Option<u32>,
}

struct Inner {
    budget: usize,
    next: AtomicU64,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    used: usize,
    payers: HashMap<Payer, Part>,
}

#[derive(Default)]
struct Part {
    held: usize,
    waiting: VecDeque<Waiting>,
}

struct Waiting {
    account: u64,
    bytes: usize,
    waker: Waker,
}

/// One connection's part. What it holds is given back on drop.
pub(crate) struct SinkAccount {
    sinks: Arc<Inner>,
    payer: Payer,
    number: u64,
    held: usize,
    /// What it could not take.
    wants: Option<usize>,
}

impl Sinks {
    /// A budget of `bytes`, of which the longest call, of `call_max`, is at most a quarter.
    pub(crate) fn new(bytes: usize, call_max: usize) -> Self {
        let budget = bytes.max(4 * call_max);
        Self(Arc::new(Inner { budget, next: AtomicU64::new(0), state: Mutex::default() }))
    }

    /// The part of a new connection.
    pub(crate) fn account(&self, payer: Payer) -> SinkAccount {
        let number = self.0.next.fetch_add(1, Relaxed);
        SinkAccount { sinks: self.0.clone(), payer, number, held: 0, wants: None }
    }
}

impl SinkAccount {
    /// Takes `bytes` for a call, if its payer may have them now.
    pub(crate) fn take(&mut self, bytes: usize) -> bool {
        let mut state = self.sinks.state.lock();
        if !state.admits(self.payer, bytes, self.sinks.budget) {
            self.wants = Some(bytes);
            return false;
        }
        state.used += bytes;
        state.payers.entry(self.payer).or_default().held += bytes;
        // There may be enough for whoever waits behind this one, too.
        let woken = if self.wants.take().is_some() { state.take_woken(self.sinks.budget) } else { Vec::new() };
        drop(state);
        self.held += bytes;
        woken.into_iter().for_each(Waker::wake);
        true
    }

    /// Gives back what a call took.
    pub(crate) fn give_back(&mut self, bytes: usize) {
        self.held -= bytes;
        let mut state = self.sinks.state.lock();
        state.give_back(self.payer, bytes);
        let woken = state.take_woken(self.sinks.budget);
        drop(state);
        woken.into_iter().for_each(Waker::wake);
    }

    /// Ready if it is worth trying again to take what could not be taken. Otherwise the task is woken for that; `None` if
    /// nothing is wanted.
    pub(crate) fn poll_wanted(&mut self, cx: &Context<'_>) -> Option<Poll<()>> {
        let bytes = self.wants?;
        let mut state = self.sinks.state.lock();
        state.wait_no_more(self.payer, self.number);
        if state.admits(self.payer, bytes, self.sinks.budget) {
            return Some(Poll::Ready(()));
        }
        let waiting = Waiting { account: self.number, bytes, waker: cx.waker().clone() };
        state.payers.entry(self.payer).or_default().waiting.push_back(waiting);
        Some(Poll::Pending)
    }
}

impl Drop for SinkAccount {
    fn drop(&mut self) {
        let mut state = self.sinks.state.lock();
        state.wait_no_more(self.payer, self.number);
        state.give_back(self.payer, self.held);
        // It may have been woken for bytes that it will not take now.
        let woken = state.take_woken(self.sinks.budget);
        drop(state);
        woken.into_iter().for_each(Waker::wake);
    }
}

impl State {
    fn admits(&self, payer: Payer, bytes: usize, budget: usize) -> bool {
        let held = self.payers.get(&payer).map_or(0, |part| part.held);
        (budget - self.used).checked_sub(bytes).is_some_and(|free| held + bytes <= free)
    }

    fn give_back(&mut self, payer: Payer, bytes: usize) {
        let Some(part) = self.payers.get_mut(&payer) else { return };
        part.held -= bytes;
        self.used -= bytes;
        self.forget_idle(payer);
    }

    fn wait_no_more(&mut self, payer: Payer, account: u64) {
        if let Some(part) = self.payers.get_mut(&payer) {
            part.waiting.retain(|waiting| waiting.account != account);
            self.forget_idle(payer);
        }
    }

    fn forget_idle(&mut self, payer: Payer) {
        if self.payers.get(&payer).is_some_and(|part| part.held == 0 && part.waiting.is_empty()) {
            self.payers.remove(&payer);
        }
    }

    /// Takes out the first that waits of each payer that could go on.
    fn take_woken(&mut self, budget: usize) -> Vec<Waker> {
        let waits = |(payer, part): (&Payer, &Part)| part.waiting.front().map(|first| (*payer, first.bytes));
        let first: Vec<_> = self.payers.iter().filter_map(waits).collect();
        let mut woken = Vec::new();
        for (payer, bytes) in first {
            if self.admits(payer, bytes, budget)
                && let Some(part) = self.payers.get_mut(&payer)
            {
                woken.extend(part.waiting.pop_front().map(|first| first.waker));
                self.forget_idle(payer);
            }
        }
        woken
    }
}

#[cfg(test)]
mod tests {
    use std::{
        sync::atomic::{AtomicUsize, Ordering::SeqCst},
        task::Wake,
    };

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
    fn wait(account: &mut SinkAccount) -> Arc<Wakes> {
        let wakes = Arc::new(Wakes::default());
        let polled = account.poll_wanted(&Context::from_waker(&wakes.clone().into()));
        assert_eq!(polled, Some(Poll::Pending));
        wakes
    }

    #[test]
    fn a_host_has_half_at_most_whatever_its_connections_and_others_find_something() {
        let sinks = Sinks::new(1200, 100);
        let mut connections: Vec<_> = (0..100).map(|_| sinks.account(payer(1))).collect();
        let taken: usize = connections.iter_mut().map(|account| 50 * usize::from(account.take(50))).sum();
        assert_eq!(taken, 600);
        let mut other = sinks.account(payer(2));
        assert!((0..6).all(|_| other.take(50)) && !other.take(50));
        drop(connections);
        assert!(other.take(50));
        drop(other);
        let state = sinks.0.state.lock();
        assert_eq!((state.used, state.payers.len()), (0, 0));
    }

    #[test]
    fn who_waits_is_woken_when_there_is_room_and_wakes_the_next() {
        let sinks = Sinks::new(400, 100);
        let [mut holder, mut first, mut second] = [1, 1, 1].map(|host| sinks.account(payer(host)));
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
        let sinks = Sinks::new(400, 100);
        let [mut holder, mut first, mut second] = [1, 1, 1].map(|host| sinks.account(payer(host)));
        assert!(holder.take(200) && !first.take(50) && !second.take(50));
        let (one, two) = (wait(&mut first), wait(&mut second));
        drop(holder);
        assert_eq!((one.0.load(SeqCst), two.0.load(SeqCst)), (1, 0));
        drop(first);
        assert_eq!(two.0.load(SeqCst), 1, "the first was woken, and did not take");
    }

    #[test]
    fn the_longest_call_fits_in_any_budget() {
        let sinks = Sinks::new(1, 1000);
        assert!(sinks.account(payer(1)).take(1000));
    }
}
