//! [`Deferred`]: a back end whose operations complete later, when the test asks for it.
//!
//! Each operation has its effect in the wrapped tree when it is called, and its result is held back. So an operation
//! that is called twice has its effect twice, and a test sees that.

use std::{
    collections::{HashMap, VecDeque},
    future::poll_fn,
    sync::Arc,
    task::Poll,
};

use parking_lot::Mutex;
use rand::{Rng, SeedableRng, rngs::SmallRng};
use tokio::sync::{oneshot, watch};
use vfs::{
    Caller, Completion, FsCaps, Result, Vfs, VfsError,
    interpose::{Interpose, Interposed, Operation},
};

/// A tree whose operations complete later.
pub type DeferredFs = Interposed<Deferred>;

/// The layer that holds results back.
pub struct Deferred {
    inner: Arc<dyn Vfs>,
    caps: FsCaps,
    pace: Pace,
    state: Mutex<State>,
    waiting: watch::Sender<usize>,
}

/// The time at which operations complete.
#[derive(Clone, Copy, Debug)]
pub enum Pace {
    /// Operations complete when [`complete`](Deferred::complete) is called.
    Manual,
    /// Some operations complete at once. Two thirds complete when their future is polled for the second time. The seed
    /// decides which.
    Soon(u64),
    /// All operations complete when their future is polled for the second time.
    Always,
}

struct State {
    random: SmallRng,
    executed: HashMap<&'static str, usize>,
    waiting: VecDeque<oneshot::Sender<()>>,
    held: bool,
}

impl Deferred {
    /// Holds back the results of operations on `inner`, which must not return `Pending` itself.
    pub fn new(inner: Arc<dyn Vfs>, pace: Pace) -> Arc<DeferredFs> {
        let caps = FsCaps { completes_later: true, ..inner.caps().clone() };
        let seed = if let Pace::Soon(seed) = pace { seed } else { 0 };
        let state = State {
            random: SmallRng::seed_from_u64(seed),
            executed: HashMap::new(),
            waiting: VecDeque::new(),
            held: true,
        };
        Arc::new(Interposed(Self { inner, caps, pace, state: Mutex::new(state), waiting: watch::Sender::new(0) }))
    }

    /// Returns the wrapped tree, for checking effects.
    pub fn tree(&self) -> &Arc<dyn Vfs> {
        &self.inner
    }

    /// Returns the number of times that an operation has been executed.
    pub fn executed(&self, operation: &str) -> usize {
        self.state.lock().executed.get(operation).copied().unwrap_or(0)
    }

    /// Returns the number of operations that are held back and whose futures have not been dropped.
    pub fn in_flight(&self) -> usize {
        self.state.lock().waiting.iter().filter(|sender| !sender.is_closed()).count()
    }

    /// Waits until `operations` operations are held back.
    pub async fn await_held(&self, operations: usize) {
        let held = self.waiting.subscribe().wait_for(|waiting| *waiting >= operations).await.map(|_| ());
        held.expect("sender must exist");
    }

    /// Completes the oldest operations, at most `operations`. Returns their number.
    pub fn complete(&self, operations: usize) -> usize {
        let mut state = self.state.lock();
        let count = operations.min(state.waiting.len());
        let oldest: Vec<_> = state.waiting.drain(..count).collect();
        self.waiting.send_replace(state.waiting.len());
        drop(state);
        for sender in oldest {
            // The future may have been dropped.
            let _ = sender.send(());
        }
        count
    }

    /// Sets whether operations are held back from now on, or complete at once.
    pub fn hold(&self, held: bool) {
        self.state.lock().held = held;
    }

    /// Counts an operation, and returns `true` if it is held back.
    fn begin(&self, operation: Operation) -> bool {
        let mut state = self.state.lock();
        *state.executed.entry(operation.name).or_default() += 1;
        match self.pace {
            Pace::Manual => state.held,
            Pace::Soon(_) => state.random.random_ratio(2, 3),
            Pace::Always => true,
        }
    }

    fn enqueue(&self) -> oneshot::Receiver<()> {
        let (sender, completed) = oneshot::channel();
        let mut state = self.state.lock();
        state.waiting.push_back(sender);
        self.waiting.send_replace(state.waiting.len());
        completed
    }
}

impl Interpose for Deferred {
    fn inner(&self) -> &dyn Vfs {
        &*self.inner
    }

    fn caps(&self) -> &FsCaps {
        &self.caps
    }

    fn operation<T: Clone + Send + 'static>(
        &self,
        caller: &Caller<'_>,
        operation: Operation,
        run: &mut dyn FnMut(&Caller<'_>) -> Result<T>,
    ) -> Result<T> {
        if let Some(result) = caller.completion.and_then(|slot| slot.take::<Result<T>>()) {
            return result;
        }
        if caller.completion.is_none() && !caller.may_block {
            return Err(VfsError::WouldBlock);
        }
        let later = self.begin(operation);
        let result = run(&Caller::blocking(caller.cred));
        let Some(slot) = caller.completion.filter(|_| later) else { return result };
        let completed = matches!(self.pace, Pace::Manual).then(|| self.enqueue());
        slot.leave(Box::pin(async move {
            match completed {
                Some(completed) => drop(completed.await),
                None => yield_once().await,
            }
            Box::new(result) as Completion
        }));
        Err(VfsError::Pending)
    }
}

async fn yield_once() {
    let mut polled = false;
    poll_fn(|cx| {
        if std::mem::replace(&mut polled, true) {
            return Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}
