//! [`FairQueue`]: the queue of calls that wait for a thread. It serves hosts in turn.
//!
//! This is a pure data structure: it has no lock, thread or clock. Each host has a first-in, first-out queue of its
//! own. The next call is that of the waiting host with the fewest running calls. Hosts with equally many running calls
//! take turns. One host never runs more than [`Bounds::host_running`] calls at once, so the first call of another host
//! finds a free thread.
//!
//! The queue is bounded in calls and in bytes. When a bound is exceeded, the newest call of the host that holds the
//! most is refused. So a host that fills the queue displaces only its own calls.

use std::{
    collections::{VecDeque, hash_map::Entry},
    hash::Hash,
};

use entropy::{FastState, HashMap};
use smallvec::SmallVec;

/// Bounds of a [`FairQueue`].
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    /// Maximum number of calls that wait.
    pub(super) calls: usize,
    /// Maximum bytes of the calls that wait.
    pub(super) bytes: usize,
    /// Maximum number of calls of one host that run at once.
    pub(super) host_running: usize,
}

/// Calls of hosts `K` that wait for a thread.
#[derive(Debug)]
pub(super) struct FairQueue<K, T> {
    bounds: Bounds,
    hosts: HashMap<K, Host<T>, FastState>,
    /// The hosts that have waiting calls, in the order of their turns.
    turns: VecDeque<K>,
    held: Held,
}

#[derive(Debug)]
struct Host<T> {
    waiting: VecDeque<(T, usize)>,
    held: Held,
    running: usize,
}

/// The number and the bytes of waiting calls.
#[derive(Clone, Copy, Debug, Default)]
struct Held {
    calls: usize,
    bytes: usize,
}

impl Held {
    fn add(&mut self, bytes: usize) {
        self.calls += 1;
        self.bytes += bytes;
    }

    fn remove(&mut self, bytes: usize) {
        self.calls -= 1;
        self.bytes -= bytes;
    }
}

impl<K: Copy + Eq + Hash, T> FairQueue<K, T> {
    /// Creates an empty queue.
    pub(super) fn new(bounds: Bounds) -> Self {
        Self { bounds, hosts: HashMap::default(), turns: VecDeque::new(), held: Held::default() }
    }

    /// Adds a call of `host` that holds `bytes` of memory. Returns the calls for which there is no room, newest first.
    /// The added call can be among them.
    pub(super) fn push(&mut self, host: K, bytes: usize, call: T) -> SmallVec<[T; 1]> {
        let entry = self.hosts.entry(host).or_insert_with(Host::new);
        if entry.waiting.is_empty() {
            self.turns.push_back(host);
        }
        entry.waiting.push_back((call, bytes));
        entry.held.add(bytes);
        self.held.add(bytes);
        let mut refused = SmallVec::new();
        while self.held.calls > self.bounds.calls || self.held.bytes > self.bounds.bytes {
            refused.push(self.refuse_newest());
        }
        refused
    }

    /// Removes and returns the newest call of the host that holds the most of the exceeded resource: calls or bytes.
    fn refuse_newest(&mut self) -> T {
        let by_calls = self.held.calls > self.bounds.calls;
        let weight = |host: &K| {
            let held = self.hosts[host].held;
            if by_calls { held.calls } else { held.bytes }
        };
        // Among equals, `max_by_key` returns the last one: the host that came or was served last.
        let heaviest = *self
            .turns
            .iter()
            .max_by_key(|host| weight(host))
            .expect("queue above its bounds must have a waiting call");
        let host = self.hosts.get_mut(&heaviest).expect("host in `turns` must be in `hosts`");
        let (call, bytes) = host.waiting.pop_back().expect("host in `turns` must have a waiting call");
        host.held.remove(bytes);
        self.held.remove(bytes);
        if host.waiting.is_empty() {
            self.turns.retain(|host| *host != heaviest);
            self.forget_if_idle(heaviest);
        }
        call
    }

    /// Takes the next call to run. The caller must call [`done`](Self::done) when it has run.
    pub(super) fn pop(&mut self) -> Option<(K, T)> {
        let running = |host: &K| self.hosts[host].running;
        let may_run = |host: &(usize, &K)| running(host.1) < self.bounds.host_running;
        // Select the first host in turn among those with the fewest running calls. Usually that is the front.
        let turn = match self.turns.front() {
            Some(first) if running(first) == 0 => 0,
            _ => self.turns.iter().enumerate().filter(may_run).min_by_key(|(at, host)| (running(host), *at))?.0,
        };
        let key = self.turns.remove(turn)?;
        let host = self.hosts.get_mut(&key).expect("host in `turns` must be in `hosts`");
        let (call, bytes) = host.waiting.pop_front().expect("host in `turns` must have a waiting call");
        host.held.remove(bytes);
        host.running += 1;
        self.held.remove(bytes);
        if !host.waiting.is_empty() {
            self.turns.push_back(key);
        }
        Some((key, call))
    }

    /// Records that a call of `host`, taken by [`pop`](Self::pop), has run.
    pub(super) fn done(&mut self, host: K) {
        self.hosts.get_mut(&host).expect("host with a running call must be in `hosts`").running -= 1;
        self.forget_if_idle(host);
    }

    fn forget_if_idle(&mut self, host: K) {
        if let Entry::Occupied(entry) = self.hosts.entry(host)
            && entry.get().running == 0
            && entry.get().waiting.is_empty()
        {
            entry.remove();
        }
    }
}

impl<T> Host<T> {
    fn new() -> Self {
        Self { waiting: VecDeque::new(), held: Held::default(), running: 0 }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    fn queue(calls: usize, bytes: usize, host_running: usize) -> FairQueue<char, u32> {
        FairQueue::new(Bounds { calls, bytes, host_running })
    }

    #[test]
    fn single_call_of_a_host_does_not_wait_for_another_hosts_queue() {
        let mut queue = queue(2000, usize::MAX, 8);
        (0..1000).for_each(|number| assert!(queue.push('a', 1, number).is_empty()));
        assert_eq!(queue.pop(), Some(('a', 0)));
        assert_eq!(queue.pop(), Some(('a', 1)));
        assert!(queue.push('b', 1, 7).is_empty());
        assert_eq!(queue.pop(), Some(('b', 7)), "b runs none, a runs two");
        assert_eq!(queue.pop(), Some(('a', 2)));
    }

    #[test]
    fn host_runs_at_most_its_bound() {
        let mut queue = queue(100, usize::MAX, 3);
        (0..10).for_each(|number| assert!(queue.push('a', 1, number).is_empty()));
        (0..3).for_each(|number| assert_eq!(queue.pop(), Some(('a', number))));
        assert_eq!(queue.pop(), None);
        queue.push('b', 1, 0);
        assert_eq!(queue.pop(), Some(('b', 0)));
        queue.done('a');
        assert_eq!(queue.pop(), Some(('a', 3)));
    }

    #[test]
    fn newest_call_of_the_heaviest_host_is_refused() {
        let mut by_calls = queue(3, usize::MAX, 1);
        (0..3).for_each(|number| assert!(by_calls.push('a', 1, number).is_empty()));
        assert_eq!(by_calls.push('a', 1, 3)[..], [3], "the host's own call");
        assert_eq!(by_calls.push('b', 1, 9)[..], [2], "a call of the host that fills the queue");
        assert_eq!(by_calls.pop(), Some(('a', 0)));
        assert_eq!(by_calls.pop(), Some(('b', 9)));

        let mut by_bytes = queue(100, 100, 1);
        (0..10).for_each(|number| assert!(by_bytes.push('a', 1, number).is_empty()));
        assert!(by_bytes.push('b', 80, 0).is_empty());
        assert_eq!(by_bytes.push('a', 11, 10)[..], [0], "b has fewer calls but more bytes");
        assert_eq!(by_bytes.push('a', 101, 11)[..], [11], "the call is larger than the queue");
    }

    #[derive(Clone, Copy, Debug)]
    enum Step {
        Push(u8, usize),
        Pop,
        Done(usize),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            3 => (0..6u8, 0..40usize).prop_map(|(host, bytes)| Step::Push(host, bytes)),
            2 => Just(Step::Pop),
            2 => any::<usize>().prop_map(Step::Done),
        ]
    }

    proptest! {
        #[test]
        fn bounds_hold_and_hosts_are_served_fairly(steps in prop::collection::vec(step(), 0..400)) {
            let bounds = Bounds { calls: 12, bytes: 200, host_running: 3 };
            let mut queue = FairQueue::new(bounds);
            let mut waiting: HashMap<u8, VecDeque<(usize, usize)>> = HashMap::new();
            let mut running: Vec<u8> = Vec::new();
            for (number, step) in steps.into_iter().enumerate() {
                match step {
                    Step::Push(host, bytes) => {
                        waiting.entry(host).or_default().push_back((number, bytes));
                        for refused in queue.push(host, bytes, number) {
                            // The refused call must be the newest of its host.
                            let of = waiting.values_mut().find(|calls| calls.back().is_some_and(|call| call.0 == refused));
                            prop_assert!(of.is_some(), "{refused} is not the newest call of a host");
                            of.unwrap().pop_back();
                        }
                    }
                    Step::Pop => {
                        let runs = |host: u8| running.iter().filter(|at| **at == host).count();
                        let eligible = waiting.iter().filter(|(host, calls)| !calls.is_empty() && runs(**host) < 3);
                        let fewest = eligible.map(|(host, _)| runs(*host)).min();
                        match queue.pop() {
                            None => prop_assert_eq!(fewest, None),
                            Some((host, call)) => {
                                prop_assert_eq!(Some(runs(host)), fewest, "no waiting host has fewer running calls");
                                let first = waiting.get_mut(&host).and_then(VecDeque::pop_front);
                                prop_assert_eq!(first.map(|first| first.0), Some(call), "the calls of a host run first in, first out");
                                running.push(host);
                            }
                        }
                    }
                    Step::Done(which) if !running.is_empty() => queue.done(running.swap_remove(which % running.len())),
                    Step::Done(_) => {}
                }
                let calls = waiting.values().map(VecDeque::len).sum::<usize>();
                let bytes = waiting.values().flatten().map(|call| call.1).sum::<usize>();
                prop_assert!(calls <= bounds.calls && bytes <= bounds.bytes);
                prop_assert_eq!((queue.held.calls, queue.held.bytes), (calls, bytes));
                prop_assert!(queue.hosts.len() <= calls + running.len(), "idle hosts must be removed");
            }
        }

        #[test]
        fn late_host_waits_for_at_most_one_call_of_each_other_host(
            waiting in prop::collection::vec(1..30usize, 2..8), threads in 1..4usize,
        ) {
            let mut queue = FairQueue::new(Bounds { calls: 1000, bytes: usize::MAX, host_running: threads });
            for (host, calls) in waiting.iter().enumerate() {
                (0..*calls).for_each(|call| assert!(queue.push(host, 0, call).is_empty()));
            }
            // Threads take calls, and finish them in the order in which they began.
            let mut running: VecDeque<usize> = (0..threads).filter_map(|_| queue.pop()).map(|(host, _)| host).collect();
            let late = 100;
            queue.push(late, 0, 0);
            let mut before: HashMap<usize, usize> = HashMap::new();
            loop {
                queue.done(running.pop_front().expect("threads must be busy"));
                let (host, _) = queue.pop().expect("the late host must wait");
                if host == late {
                    break;
                }
                running.push_back(host);
                let served = before.entry(host).or_default();
                *served += 1;
                prop_assert!(*served <= 1, "host {host} was served twice before the late host");
            }
        }
    }
}
