//! Receive buffers: a queue pair's own buffers, or those of a [`ReceiveSource`] that many queue pairs share.
//!
//! A queue pair with its own buffers holds one for every Send that could arrive; this is most of the memory of an idle
//! connection. A source has a budget for all its queue pairs, and a queue pair takes a buffer only when a Send begins
//! to arrive. So the memory follows the load. Verbs call this a shared receive queue, and the provider of an adapter
//! can fill one with [`ReceiveSource::take`].
//!
//! When the budget is used up, a queue pair that already holds its guaranteed number of buffers leaves the next Send
//! unread in the network until buffers are returned, so that no memory is promised twice (RFC 5041 §7.1 permits a
//! receiver to recover from the lack of a buffer by means of the lower layer). A queue pair that waits for an RDMA Read
//! takes a buffer anyway: the response is behind the Send, and other queue pairs can wait for the memory that the
//! response frees.
//!
//! A buffer is charged to its queue pair until its last byte is dropped, wherever it has moved meanwhile.

use std::{
    collections::VecDeque,
    sync::{
        Arc,
        atomic::{AtomicIsize, AtomicU64, AtomicUsize, Ordering::Relaxed, Ordering::SeqCst},
    },
    task::{Context, Poll, Waker},
};

use buf::{Account, Buffer, Pool};
use parking_lot::Mutex;

use crate::{Completion, CompletionKind, Status, WorkId};

/// The options of a [`ReceiveSource`].
#[derive(Clone, Debug)]
pub struct ReceiveSourceOptions {
    /// The size in bytes of each buffer: the maximum length of a Send.
    pub buffer_bytes: usize,
    /// Maximum number of buffers in use.
    pub budget: usize,
    /// The number of buffers that each queue pair can always use, even beyond the budget; at least one.
    pub guaranteed: usize,
}

/// A source of buffers for incoming Sends that queue pairs share. Clones share the same budget.
///
/// ```
/// use rdma::{ReceiveSource, ReceiveSourceOptions};
///
/// let options = ReceiveSourceOptions { buffer_bytes: 4096, budget: 2, guaranteed: 1 };
/// let source = ReceiveSource::new(options, buf::Pool::default());
/// let (first, second) = (source.take().unwrap(), source.take().unwrap());
/// assert!(source.take().is_none());
/// drop((first, second));
/// assert_eq!(source.stats().out, 0);
/// ```
#[derive(Clone)]
pub struct ReceiveSource(Arc<Source>);

/// The statistics of a [`ReceiveSource`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReceiveStats {
    /// Maximum number of buffers in use.
    pub budget: usize,
    /// The number of buffers in use. It exceeds the budget if queue pairs use their guarantees.
    pub out: usize,
    /// The number of queue pairs that use buffers.
    pub active: usize,
}

struct Source {
    options: ReceiveSourceOptions,
    pool: Pool,
    out: AtomicUsize,
    /// Can be negative for an instant, because another thread can count a return before this thread counts the buffer.
    active: AtomicIsize,
    next: AtomicU64,
    waiting: Mutex<VecDeque<(u64, Waker)>>,
    /// The length of `waiting`, readable without the lock.
    waiters: AtomicUsize,
}

/// The part of a [`ReceiveSource`] that one queue pair uses.
pub struct ReceiveAccount {
    ledger: Arc<Ledger>,
    /// `true` if it registered a waker and has taken nothing since.
    waits: bool,
}

/// The number of buffers that a queue pair uses. The buffers can outlive the queue pair.
struct Ledger {
    source: Arc<Source>,
    /// The number that distinguishes it among waiting queue pairs.
    number: u64,
    held: AtomicUsize,
}

impl ReceiveSource {
    /// Creates a source with buffers from `pool`.
    pub fn new(options: ReceiveSourceOptions, pool: Pool) -> Self {
        let options = ReceiveSourceOptions { guaranteed: options.guaranteed.max(1), ..options };
        Self(Arc::new(Source {
            options,
            pool,
            out: AtomicUsize::new(0),
            active: AtomicIsize::new(0),
            next: AtomicU64::new(0),
            waiting: Mutex::default(),
            waiters: AtomicUsize::new(0),
        }))
    }

    /// Returns the options.
    pub fn options(&self) -> &ReceiveSourceOptions {
        &self.0.options
    }

    /// Takes a buffer within the budget that is not charged to a queue pair yet, for example to post it to an adapter's
    /// shared receive queue. See [`ReceiveAccount::charge`].
    pub fn take(&self) -> Option<Buffer> {
        self.0.count_out(false).then(|| {
            let mut buffer = self.0.pool.take(self.0.options.buffer_bytes);
            buffer.charge(self.0.clone());
            buffer
        })
    }

    /// Opens the account of a new queue pair.
    pub fn account(&self) -> ReceiveAccount {
        let number = self.0.next.fetch_add(1, Relaxed);
        let ledger = Ledger { source: self.0.clone(), number, held: AtomicUsize::new(0) };
        ReceiveAccount { ledger: Arc::new(ledger), waits: false }
    }

    /// Returns the statistics.
    pub fn stats(&self) -> ReceiveStats {
        let active = usize::try_from(self.0.active.load(Relaxed)).unwrap_or(0);
        ReceiveStats { budget: self.0.options.budget, out: self.0.out.load(Relaxed), active }
    }

    /// Returns the number of buffers that a queue pair that uses `held` of them can plan with. While buffers are free
    /// for all active queue pairs, it is `held` plus an equal part of the free ones; otherwise an equal part of the
    /// budget, if `held` exceeds that. It is never less than the guarantee.
    pub fn allowance(&self, held: usize) -> usize {
        let ReceiveStats { budget, out, active } = self.stats();
        let active = active.max(1);
        let allowance = match budget.saturating_sub(out) / active {
            0 => held.min(budget / active),
            each => held.saturating_add(each),
        };
        allowance.max(self.0.options.guaranteed)
    }
}

/// Compares the identity of the sources.
impl PartialEq for ReceiveSource {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl std::fmt::Debug for ReceiveSource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.stats().fmt(f)
    }
}

impl Source {
    /// Counts one more buffer in use, if the budget allows it or if `beyond` is set. Returns `true` if it was counted.
    fn count_out(&self, beyond: bool) -> bool {
        let budget = self.options.budget;
        self.out.fetch_update(SeqCst, SeqCst, |out| (beyond || out < budget).then_some(out + 1)).is_ok()
    }

    fn count_in(&self) {
        self.out.fetch_sub(1, SeqCst);
        self.wake_next();
    }

    fn wake_next(&self) {
        if self.waiters.load(SeqCst) > 0 && self.out.load(SeqCst) < self.options.budget {
            let next = self.change_waiting(VecDeque::pop_front);
            next.into_iter().for_each(|(_, waker)| waker.wake());
        }
    }

    fn wake(&self, number: u64) {
        if self.waiters.load(SeqCst) > 0 {
            let found = self.change_waiting(|waiting| {
                let at = waiting.iter().position(|(waiter, _)| *waiter == number)?;
                waiting.remove(at)
            });
            found.into_iter().for_each(|(_, waker)| waker.wake());
        }
    }

    fn change_waiting<T>(&self, change: impl FnOnce(&mut VecDeque<(u64, Waker)>) -> T) -> T {
        let mut waiting = self.waiting.lock();
        let changed = change(&mut waiting);
        self.waiters.store(waiting.len(), SeqCst);
        changed
    }
}

impl ReceiveAccount {
    /// Takes a buffer. Returns `None` if the budget is used up and this queue pair holds its guaranteed number. With
    /// `beyond`, always takes one.
    pub fn take(&mut self, beyond: bool) -> Option<Buffer> {
        let source = &self.ledger.source;
        let beyond = beyond || self.held() < source.options.guaranteed;
        if !source.count_out(beyond) {
            return None;
        }
        self.waits = false;
        let mut buffer = source.pool.take(source.options.buffer_bytes);
        self.ledger.add();
        buffer.charge(self.ledger.clone());
        Some(buffer)
    }

    /// Charges a buffer of [`ReceiveSource::take`] to this queue pair, whose Send has filled it.
    pub fn charge(&self, buffer: &mut Buffer) {
        // In this order, the source never appears to have more free buffers than it has.
        self.ledger.source.out.fetch_add(1, SeqCst);
        self.ledger.add();
        buffer.charge(self.ledger.clone());
    }

    /// Waits until [`take`](Self::take) can succeed. A caller that was woken and does not try again must drop the
    /// account or call [`cancel_wait`](Self::cancel_wait).
    pub fn poll_free(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.wait(self.ledger.source.options.guaranteed, cx)
    }

    /// Waits until [`ReceiveSource::take`] can succeed.
    pub fn poll_source_free(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.wait(0, cx)
    }

    /// Cancels a wait, and wakes the next waiting queue pair in its place.
    pub fn cancel_wait(&mut self) {
        if std::mem::take(&mut self.waits) {
            let Ledger { source, number, .. } = &*self.ledger;
            source.change_waiting(|waiting| waiting.retain(|(waiter, _)| waiter != number));
            source.wake_next();
        }
    }

    fn wait(&mut self, guaranteed: usize, cx: &mut Context<'_>) -> Poll<()> {
        let Ledger { source, number, .. } = &*self.ledger;
        self.waits = true;
        source.change_waiting(|waiting| match waiting.iter_mut().find(|(waiter, _)| waiter == number) {
            Some((_, waker)) => waker.clone_from(cx.waker()),
            None => waiting.push_back((*number, cx.waker().clone())),
        });
        // A buffer that was returned before this entry was added would not wake it.
        let free = source.out.load(SeqCst) < source.options.budget || self.held() < guaranteed;
        if !free {
            return Poll::Pending;
        }
        source.change_waiting(|waiting| waiting.retain(|(waiter, _)| waiter != number));
        Poll::Ready(())
    }

    /// Returns the number of buffers of this queue pair in use.
    pub fn held(&self) -> usize {
        self.ledger.held.load(SeqCst)
    }

    /// Returns the size in bytes of each buffer.
    pub fn buffer_bytes(&self) -> usize {
        self.ledger.source.options.buffer_bytes
    }

    /// Returns `true` if at least three quarters of the budget are used up.
    pub fn is_scarce(&self) -> bool {
        let Source { out, options, .. } = &*self.ledger.source;
        out.load(Relaxed) >= options.budget - options.budget / 4
    }
}

impl Drop for ReceiveAccount {
    fn drop(&mut self) {
        // The account can have been woken for a buffer that it will not take.
        self.cancel_wait();
    }
}

impl Ledger {
    fn add(&self) {
        if self.held.fetch_add(1, SeqCst) == 0 {
            self.source.active.fetch_add(1, Relaxed);
        }
    }
}

impl Account for Ledger {
    fn returned(&self) {
        let held = self.held.fetch_sub(1, SeqCst);
        if held == 1 {
            self.source.active.fetch_sub(1, Relaxed);
        }
        if held <= self.source.options.guaranteed {
            self.source.wake(self.number);
        }
        self.source.count_in();
    }
}

/// Accounts for buffers that are not charged to a queue pair yet.
impl Account for Source {
    fn returned(&self) {
        self.count_in();
    }
}

/// The receive queue of a software queue pair.
pub(crate) enum ReceiveQueue {
    /// Buffers that the owner posts.
    Own(VecDeque<(WorkId, Buffer)>),
    /// Buffers from a source; `current` is the one being filled.
    Shared { id: WorkId, account: ReceiveAccount, current: Option<Buffer>, starved: bool },
}

impl ReceiveQueue {
    /// Creates a queue with the receives `own`, which must be empty if there is a source.
    pub(crate) fn new(source: Option<&(ReceiveSource, WorkId)>, own: Vec<(WorkId, Buffer)>) -> Self {
        match source {
            None => ReceiveQueue::Own(own.into()),
            Some((source, id)) => {
                assert!(own.is_empty(), "a queue pair with a receive source must not have its own receives");
                ReceiveQueue::Shared { id: *id, account: source.account(), current: None, starved: false }
            }
        }
    }

    pub(crate) fn post(&mut self, id: WorkId, buffer: Buffer) {
        match self {
            ReceiveQueue::Own(posted) => posted.push_back((id, buffer)),
            ReceiveQueue::Shared { .. } => panic!("a queue pair with a receive source must not have its own receives"),
        }
    }

    /// Prepares a buffer for a Send that begins to arrive or continues. Returns `false` if it must wait for a buffer.
    /// `beyond` permits exceeding the budget.
    pub(crate) fn prepare(&mut self, beyond: bool) -> bool {
        if let ReceiveQueue::Shared { account, current, starved, .. } = self {
            if current.is_none() {
                *current = account.take(beyond);
            }
            *starved = current.is_none();
            return !*starved;
        }
        true
    }

    /// Waits for a buffer if [`prepare`](Self::prepare) got none.
    pub(crate) fn poll_prepared(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        match self {
            ReceiveQueue::Shared { account, starved: true, .. } => account.poll_free(cx),
            _ => Poll::Ready(()),
        }
    }

    /// Returns `true` if the last [`prepare`](Self::prepare) got no buffer.
    pub(crate) fn is_starved(&self) -> bool {
        matches!(self, ReceiveQueue::Shared { starved: true, .. })
    }

    /// Returns `true` if buffers are so scarce that only few bytes should be read ahead.
    pub(crate) fn is_scarce(&self) -> bool {
        matches!(self, ReceiveQueue::Shared { account, .. } if account.is_scarce())
    }

    /// Returns the buffer for the next Send, if one is prepared.
    pub(crate) fn front(&mut self) -> Option<&mut Buffer> {
        match self {
            ReceiveQueue::Own(posted) => posted.front_mut().map(|(_, buffer)| buffer),
            ReceiveQueue::Shared { current, .. } => current.as_mut(),
        }
    }

    /// Takes that buffer.
    pub(crate) fn pop(&mut self) -> Option<(WorkId, Buffer)> {
        match self {
            ReceiveQueue::Own(posted) => posted.pop_front(),
            ReceiveQueue::Shared { id, current, .. } => current.take().map(|buffer| (*id, buffer)),
        }
    }

    /// Returns the receive that was popped last.
    #[cfg(feature = "sim")]
    pub(crate) fn put_back(&mut self, id: WorkId, buffer: Buffer) {
        match self {
            ReceiveQueue::Own(posted) => posted.push_front((id, buffer)),
            ReceiveQueue::Shared { current, .. } => *current = Some(buffer),
        }
    }

    /// Flushes all posted receives. A buffer from a source returns there.
    pub(crate) fn flush(&mut self, completions: &mut Vec<Completion>) {
        match self {
            ReceiveQueue::Own(posted) => completions.extend(std::mem::take(posted).into_iter().map(|(id, buffer)| {
                let kind = CompletionKind::Receive { buffer, invalidated: None, solicited: false };
                Completion { id, status: Status::Flushed, kind }
            })),
            ReceiveQueue::Shared { current, starved, .. } => (*current, *starved) = (None, false),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        sync::atomic::AtomicUsize,
        task::{Wake, Waker},
    };

    use super::*;

    #[derive(Default)]
    struct Woken(AtomicUsize);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, SeqCst);
        }
    }

    fn source(budget: usize, guaranteed: usize) -> ReceiveSource {
        ReceiveSource::new(ReceiveSourceOptions { buffer_bytes: 4096, budget, guaranteed }, Pool::default())
    }

    #[test]
    fn only_guaranteed_buffers_are_available_beyond_the_budget() {
        let source = source(3, 2);
        let (mut greedy, mut modest) = (source.account(), source.account());
        let held: Vec<_> = std::iter::from_fn(|| greedy.take(false)).collect();
        assert_eq!((held.len(), greedy.held()), (3, 3));
        let guaranteed: Vec<_> = std::iter::from_fn(|| modest.take(false)).collect();
        assert_eq!(guaranteed.len(), 2);
        assert_eq!(source.stats(), ReceiveStats { budget: 3, out: 5, active: 2 });
        assert!(modest.take(true).is_some(), "`beyond` must always take a buffer");
        drop((held, guaranteed));
        assert_eq!(source.stats(), ReceiveStats { budget: 3, out: 0, active: 0 });
    }

    #[test]
    fn buffer_is_counted_until_its_last_byte_is_dropped() {
        let source = source(1, 1);
        let mut account = source.account();
        let bytes = account.take(false).unwrap().freeze();
        let slice = bytes.slice(10..20);
        drop((bytes, account));
        assert_eq!(source.stats().out, 1);
        drop(slice);
        assert_eq!(source.stats(), ReceiveStats { budget: 1, out: 0, active: 0 });
    }

    #[test]
    fn buffer_of_shared_queue_is_charged_to_the_queue_pair_that_it_was_filled_for() {
        let source = source(2, 1);
        let account = source.account();
        let mut posted = source.take().unwrap();
        assert_eq!((source.stats().out, source.stats().active), (1, 0));
        account.charge(&mut posted);
        assert_eq!((source.stats().out, source.stats().active, account.held()), (1, 1, 1));
        drop(posted);
        assert_eq!((source.stats().out, account.held()), (0, 0));
    }

    /// Waits for a buffer, and returns the counter of wakes.
    fn wait(account: &mut ReceiveAccount) -> Arc<Woken> {
        let woken = Arc::new(Woken::default());
        let waker = Waker::from(woken.clone());
        let mut cx = Context::from_waker(&waker);
        assert!(account.take(false).is_none());
        assert!(account.poll_free(&mut cx).is_pending() && account.poll_free(&mut cx).is_pending());
        woken
    }

    #[test]
    fn waiters_are_woken_in_order_and_a_dropped_one_wakes_the_next() {
        let source = source(4, 1);
        let mut holder = source.account();
        let mut waiting: Vec<_> = (0..3).map(|_| source.account()).collect();
        let _guaranteed: Vec<_> = waiting.iter_mut().map(|account| account.take(false).unwrap()).collect();
        let buffer = holder.take(false).unwrap();
        let woken: Vec<_> = waiting.iter_mut().map(wait).collect();
        let counts = || woken.iter().map(|woken| woken.0.load(SeqCst)).collect::<Vec<_>>();
        drop(buffer);
        assert_eq!(counts(), [1, 0, 0]);
        drop(waiting.remove(0));
        assert_eq!(counts(), [1, 1, 0]);
        drop(waiting[0].take(false).expect("a buffer must be free"));
        assert_eq!(counts(), [1, 1, 1]);
    }

    #[test]
    fn account_below_its_guarantee_is_woken_despite_used_up_budget() {
        let source = source(2, 1);
        let (mut greedy, mut modest) = (source.account(), source.account());
        let _held: Vec<_> = std::iter::from_fn(|| greedy.take(false)).collect();
        let guaranteed = modest.take(false).unwrap();
        let woken = wait(&mut modest);
        drop(guaranteed);
        assert_eq!((source.stats().out, woken.0.load(SeqCst)), (2, 1));
        assert!(modest.take(false).is_some());
    }

    #[test]
    fn wait_for_source_ignores_guarantee_and_cancelling_wakes_the_next() {
        let source = source(1, 1);
        let mut accounts: Vec<_> = (0..2).map(|_| source.account()).collect();
        let held = source.take().unwrap();
        let woken: Vec<_> = (0..2).map(|_| Arc::new(Woken::default())).collect();
        for (account, woken) in accounts.iter_mut().zip(&woken) {
            let waker = Waker::from(woken.clone());
            assert!(
                account.poll_source_free(&mut Context::from_waker(&waker)).is_pending(),
                "the guarantee must not count"
            );
        }
        drop(held);
        accounts[0].cancel_wait();
        assert_eq!(woken.iter().map(|woken| woken.0.load(SeqCst)).collect::<Vec<_>>(), [1, 1]);
        assert!(accounts[1].poll_source_free(&mut Context::from_waker(Waker::noop())).is_ready());
    }

    #[test]
    fn allowance_shrinks_with_free_buffers_to_the_guarantee() {
        let source = source(100, 2);
        assert_eq!(source.allowance(0), 100);
        let (mut one, mut other) = (source.account(), source.account());
        let mut held: Vec<_> = (0..80).map(|_| one.take(false).unwrap()).collect();
        let rest: Vec<_> = (0..10).map(|_| other.take(false).unwrap()).collect();
        assert_eq!((source.allowance(80), source.allowance(10)), (85, 15));
        held.extend((0..10).map(|_| one.take(false).unwrap()));
        assert_eq!(
            (source.allowance(90), source.allowance(10)),
            (50, 10),
            "a queue pair above its equal part must get the equal part"
        );
        assert_eq!(source.allowance(0), 2);
        drop(rest);
        assert_eq!(source.allowance(90), 100);
    }
}
