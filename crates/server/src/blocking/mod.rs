//! Pools of threads that may block: one for the storage of each export, and one for work that belongs to no export.
//!
//! A [`Pool`] starts threads when there is work, and they end when they are idle. The number of threads is bounded, and
//! so are the number and the bytes of the calls that wait for one. So a file system that hangs occupies only the
//! threads and the queue of its own export. A call for which the queue has no room is returned to its caller, which
//! answers NFS4ERR_DELAY or NFS3ERR_JUKEBOX.
//!
//! The queue serves hosts in turn ([`queue`]).
//!
//! On error: a panic in a call ends that call only. A call whose future has been dropped still runs to its end.

mod in_flight;
mod queue;

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, mpsc},
    thread,
    time::{Duration, Instant},
};

use entropy::HashMap;
use parking_lot::{Condvar, Mutex};
use rpc::{Host, PeerUser};
use tokio::sync::oneshot;

pub(crate) use self::in_flight::{InFlight, Permit};
use self::queue::{Bounds, FairQueue};
use crate::{export::Exports, handle::ExportId};

/// Bounds of the threads that may block, of the calls that wait for a thread, and of the calls that wait without one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockingOptions {
    /// Maximum number of threads for each export, and for work that belongs to no export. One host occupies at most
    /// three quarters of them. With zero there are no threads: blocking work runs on the calling thread, as a
    /// simulation needs it.
    pub threads: usize,
    /// Maximum number of calls of each export that wait for a thread.
    pub queue: usize,
    /// Maximum number of calls in progress of each export whose operations complete later
    /// ([`completes_later`](vfs::FsCaps::completes_later)). One host holds at most half of them.
    pub pending: usize,
}

impl Default for BlockingOptions {
    fn default() -> Self {
        Self { threads: 32, queue: 4096, pending: 32 << 10 }
    }
}

/// The pools of a server.
pub(crate) struct Pools {
    exports: HashMap<ExportId, Pool>,
    common: Pool,
    /// The permits of the exports whose operations complete later.
    in_flight: HashMap<ExportId, Arc<InFlight>>,
}

impl Pools {
    /// Creates one pool for each export and one for other work. Starts no thread.
    pub(crate) fn new(exports: &Exports, options: BlockingOptions) -> Self {
        let pools =
            exports.iter().enumerate().map(|(at, export)| (export.id(), Pool::new(format!("export-{at}"), options)));
        let later = exports.iter().filter(|export| export.vfs().caps().completes_later);
        let in_flight = later.map(|export| (export.id(), Arc::new(InFlight::new(options.pending)))).collect();
        Self { exports: pools.collect(), common: Pool::new("blocking".to_owned(), options), in_flight }
    }

    /// Returns the permits for calls of an export whose operations complete later.
    pub(crate) fn in_flight(&self, export: ExportId) -> &Arc<InFlight> {
        &self.in_flight[&export]
    }

    /// Returns the pool of an export; for `None`, the pool for work that belongs to no export.
    pub(crate) fn of(&self, export: Option<ExportId>) -> &Pool {
        export.and_then(|id| self.exports.get(&id)).unwrap_or(&self.common)
    }
}

/// The party on whose behalf a call runs. Threads are shared out fairly among sources.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Source {
    /// A host.
    Host(Host),
    /// A user of this host. The transport has verified the user.
    User(u32),
    /// The server itself.
    Server,
}

impl Source {
    /// Returns the source of a call from `peer`.
    pub(crate) fn of(peer: std::net::SocketAddr, user: Option<&PeerUser>) -> Self {
        user.map_or_else(|| Self::Host(Host::of(peer.ip())), |user| Self::User(user.uid))
    }
}

/// The outcome of a call that was submitted to a [`Pool`].
pub(crate) enum Outcome<S> {
    /// The call has run.
    Done(S),
    /// The queue had no room. The call has not run.
    Refused(S),
    /// The call has panicked.
    Panicked,
}

/// A pool of threads that may block.
pub(crate) struct Pool(Arc<Inner>);

struct Inner {
    name: String,
    threads_max: usize,
    state: Mutex<State>,
    wake: Condvar,
}

struct State {
    queue: FairQueue<Source, Box<dyn Job>>,
    threads: usize,
    /// Threads that wait for work and have not been woken.
    idle: usize,
    /// Threads that have been woken and have not yet checked the queue.
    woken: usize,
    closed: bool,
}

/// A queued call.
trait Job: Send {
    fn run(self: Box<Self>);
    fn refuse(self: Box<Self>);
}

struct Task<S, F, T> {
    state: S,
    work: F,
    tell: T,
}

impl<S, F, T> Job for Task<S, F, T>
where
    S: Send,
    F: FnOnce(&mut S) + Send,
    T: FnOnce(Outcome<S>) + Send,
{
    fn run(self: Box<Self>) {
        let Self { mut state, work, tell } = *self;
        // This is unwind safe: the state is dropped after a panic.
        let ran = catch_unwind(AssertUnwindSafe(move || {
            work(&mut state);
            state
        }));
        tell(ran.map_or(Outcome::Panicked, Outcome::Done));
    }

    fn refuse(self: Box<Self>) {
        (self.tell)(Outcome::Refused(self.state));
    }
}

impl Pool {
    fn new(name: String, options: BlockingOptions) -> Self {
        let threads_max = options.threads;
        // One host leaves some threads to other hosts, so that their first call need not wait for one of its calls.
        let host_running = (threads_max - threads_max / 4).max(1);
        let bounds = Bounds { calls: options.queue, bytes: QUEUE_BYTES_MAX, host_running };
        let queue = FairQueue::new(bounds);
        let state = Mutex::new(State { queue, threads: 0, idle: 0, woken: 0, closed: false });
        Self(Arc::new(Inner { name, threads_max, state, wake: Condvar::new() }))
    }

    /// Runs `work` on `state` on a thread of the pool. `bytes` is the memory that the call holds until it has run.
    pub(crate) async fn run<S: Send + 'static>(
        &self,
        source: Source,
        bytes: usize,
        mut state: S,
        work: impl FnOnce(&mut S) + Send + 'static,
    ) -> Outcome<S> {
        if self.0.threads_max == 0 {
            work(&mut state);
            return Outcome::Done(state);
        }
        let (sender, outcome) = oneshot::channel();
        // The receiver is gone if the caller's future has been dropped.
        let tell = move |outcome| drop(sender.send(outcome));
        self.submit(source, bytes, Box::new(Task { state, work, tell }));
        outcome.await.expect("job must report its outcome")
    }

    /// Runs `work` like [`run`](Self::run), but blocks the calling thread until the result is there. Returns `None`
    /// after `timeout`.
    pub(crate) fn run_with_timeout<R: Send + 'static>(
        &self,
        timeout: Duration,
        work: impl FnOnce() -> R + Send + 'static,
    ) -> Option<R> {
        if self.0.threads_max == 0 {
            return Some(work());
        }
        let (sender, outcome) = mpsc::sync_channel(1);
        let work = |answer: &mut Option<R>| *answer = Some(work());
        let tell = move |outcome| drop(sender.send(outcome));
        self.submit(Source::Server, 0, Box::new(Task { state: None, work, tell }));
        match outcome.recv_timeout(timeout) {
            Ok(Outcome::Done(answer)) => answer,
            _ => None,
        }
    }

    fn submit(&self, source: Source, bytes: usize, job: Box<dyn Job>) {
        let mut state = self.0.state.lock();
        let refused = state.queue.push(source, bytes, job);
        let mut starts = false;
        if state.idle > 0 {
            state.idle -= 1;
            state.woken += 1;
            self.0.wake.notify_one();
        } else if state.threads < self.0.threads_max {
            state.threads += 1;
            starts = true;
        }
        drop(state);
        refused.into_iter().for_each(|job| job.refuse());
        if starts {
            self.start();
        }
    }

    /// Starts a thread. The caller has counted it in `State::threads`.
    fn start(&self) {
        let inner = self.0.clone();
        let started = thread::Builder::new().name(self.0.name.clone()).spawn(move || inner.serve());
        let Err(error) = started else { return };
        tracing::warn!(%error, pool = self.0.name, "cannot start a thread");
        let mut state = self.0.state.lock();
        state.threads -= 1;
        if state.threads > 0 {
            return;
        }
        // No thread is left to run the queued calls, so they are refused.
        let jobs: Vec<_> = std::iter::from_fn(|| {
            let (source, job) = state.queue.pop()?;
            state.queue.done(source);
            Some(job)
        })
        .collect();
        drop(state);
        jobs.into_iter().for_each(|job| job.refuse());
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.0.state.lock().closed = true;
        self.0.wake.notify_all();
    }
}

impl Inner {
    /// Runs queued calls, and returns after [`IDLE_MAX`] without one.
    fn serve(&self) {
        let mut state = self.state.lock();
        loop {
            if let Some((source, job)) = state.queue.pop() {
                drop(state);
                job.run();
                state = self.state.lock();
                state.queue.done(source);
                continue;
            }
            if state.closed {
                break;
            }
            state.idle += 1;
            let until = Instant::now() + IDLE_MAX;
            while state.woken == 0 && !state.closed {
                if self.wake.wait_until(&mut state, until).timed_out() {
                    break;
                }
            }
            if state.woken > 0 {
                state.woken -= 1;
            } else {
                state.idle -= 1;
                if !state.closed {
                    break;
                }
            }
        }
        state.threads -= 1;
    }
}

/// Maximum bytes of the calls that wait for a thread of one pool.
const QUEUE_BYTES_MAX: usize = 256 << 20;
/// Time after which an idle thread ends.
const IDLE_MAX: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use super::*;

    fn run<S: Send + 'static>(pool: &Pool, state: S, work: impl FnOnce(&mut S) + Send + 'static) -> Outcome<S> {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(pool.run(Source::Server, 0, state, work))
    }

    #[test]
    fn panic_ends_only_its_own_call() {
        let pool = Pool::new("test".to_owned(), BlockingOptions { threads: 1, queue: 1, pending: 1 });
        assert!(matches!(run(&pool, 1, |_| panic!("expected by this test")), Outcome::Panicked));
        assert!(matches!(run(&pool, 1, |number| *number += 1), Outcome::Done(2)));
        assert_eq!(pool.run_with_timeout(Duration::from_secs(600), || 3), Some(3));
    }

    #[test]
    fn call_whose_future_is_dropped_still_runs() {
        let pool = Pool::new("test".to_owned(), BlockingOptions { threads: 1, queue: 1, pending: 1 });
        let (sender, ran) = mpsc::channel();
        let mut future = Box::pin(pool.run(Source::Server, 0, (), move |()| sender.send(()).unwrap()));
        let polled = future.as_mut().poll(&mut std::task::Context::from_waker(std::task::Waker::noop()));
        drop((polled, future));
        ran.recv_timeout(Duration::from_secs(600)).expect("call must run");
    }
}
