//! [`Deferred`]: a back end whose operations complete later, when a test says so.
//!
//! It has each effect as soon as an operation is called, in the tree that it wraps, and holds the result back. So an operation that
//! is called twice has its effect twice, and a test sees that.

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

/// When operations complete.
#[derive(Clone, Copy, Debug)]
pub enum Pace {
    /// When [`complete`](Deferred::complete) is called.
    Told,
    /// Some at once, two thirds when their future is polled for the second time, as this seed has it.
    Soon(u64),
    /// All when their future is polled for the second time.
    Always,
}

struct State {
    random: SmallRng,
    executed: HashMap<&'static str, usize>,
    waiting: VecDeque<oneshot::Sender<()>>,
    held: bool,
}

impl Deferred {
    /// Holds back the results of operations on `inner`, which must not be pending itself.
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

    /// The tree that it wraps, for looking at effects.
    pub fn tree(&self) -> &Arc<dyn Vfs> {
        &self.inner
    }

    /// How often an operation has been executed.
    pub fn executed(&self, operation: &str) -> usize {
        self.state.lock().executed.get(operation).copied().unwrap_or(0)
    }

    /// Operations that are held back and whose futures somebody has.
    pub fn in_flight(&self) -> usize {
        self.state.lock().waiting.iter().filter(|tell| !tell.is_closed()).count()
    }

    /// Waits until so many operations have been held back and not been completed.
    pub async fn await_held(&self, operations: usize) {
        let held = self.waiting.subscribe().wait_for(|waiting| *waiting >= operations).await.map(|_| ());
        held.expect("it tells until it is dropped");
    }

    /// Completes the oldest operations, at most so many. Returns how many.
    pub fn complete(&self, operations: usize) -> usize {
        let mut state = self.state.lock();
        let count = operations.min(state.waiting.len());
        let oldest: Vec<_> = state.waiting.drain(..count).collect();
        self.waiting.send_replace(state.waiting.len());
        drop(state);
        for tell in oldest {
            // A future that has been dropped is not told.
            let _ = tell.send(());
        }
        count
    }

    /// From now on operations complete at once (`false`), or are held back.
    pub fn hold(&self, held: bool) {
        self.state.lock().held = held;
    }

    /// Whether the next operation is held back.
    fn begin(&self, operation: Operation) -> bool {
        let mut state = self.state.lock();
        *state.executed.entry(operation.name).or_default() += 1;
        match self.pace {
            Pace::Told => state.held,
            Pace::Soon(_) => state.random.random_ratio(2, 3),
            Pace::Always => true,
        }
    }

    fn enqueue(&self) -> oneshot::Receiver<()> {
        let (tell, told) = oneshot::channel();
        let mut state = self.state.lock();
        state.waiting.push_back(tell);
        self.waiting.send_replace(state.waiting.len());
        told
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
        let told = matches!(self.pace, Pace::Told).then(|| self.enqueue());
        slot.leave(Box::pin(async move {
            match told {
                Some(told) => drop(told.await),
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
