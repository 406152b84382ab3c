//! A request in a slot of a client's session: it is executed once, and the reply is cached (RFC 8881 §2.10.6). Requests and replies
//! get lost, or arrive after the client has sent the request again.

use std::{future::Future, pin::Pin, sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::{
    sync::{Mutex as AsyncMutex, oneshot},
    time::sleep,
};

use crate::{
    Broken, chance,
    faults::{Fault, Faults},
    mds::Mds,
};

/// The effect of a second execution, after the first one has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Repetition {
    /// It has the same effect, so the server need not cache the reply.
    Harmless,
    /// It would have another effect, or another result.
    Harmful,
}

/// A future that executes the operation.
type Execution<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// A slot with one request.
pub struct Slot<T> {
    mds: Arc<Mds>,
    operation: Box<dyn Fn(Arc<Mds>) -> Execution<T> + Send + Sync>,
    /// Locked while the request is executed.
    cached: AsyncMutex<Cached<T>>,
    /// The number of the request, and the latest one that may be executed.
    number: Mutex<u64>,
}

/// The cached reply, until the client has it.
struct Cached<T> {
    /// The number of the last request that was executed.
    executed: Option<u64>,
    reply: Option<T>,
}

/// The fate of one transmission of a request.
pub struct Delivery {
    /// The time after which the request arrives, if it does.
    pub delay: Option<Duration>,
    /// The time after which the client sends it again, if it does not wait for the reply.
    pub repeated_after: Option<Duration>,
}

impl Delivery {
    pub fn draw(faults: &Faults) -> Self {
        let delay = Duration::from_micros(entropy::random_range(100..2000));
        let pause = || Some(Duration::from_millis(entropy::random_range(1..4000)));
        if faults.occurs(Fault::RequestLost, SHARE) {
            return Self { delay: None, repeated_after: pause() };
        }
        if faults.occurs(Fault::RequestLate, SHARE) {
            let late = Duration::from_millis(entropy::random_range(1..8000));
            return Self { delay: Some(late), repeated_after: Some(late.mul_f64(entropy::random_range(0.0..1.0))) };
        }
        let lost = faults.occurs(Fault::ReplyLost, SHARE);
        Self { delay: Some(delay), repeated_after: if lost { pause() } else { None } }
    }
}

impl<T: Send + 'static> Slot<T> {
    pub fn new<F>(mds: Arc<Mds>, operation: impl Fn(Arc<Mds>) -> F + Send + Sync + 'static) -> Arc<Self>
    where
        F: Future<Output = T> + Send + 'static,
    {
        let operation = Box::new(move |mds| Box::pin(operation(mds)) as Execution<T>);
        let cached = AsyncMutex::new(Cached { executed: None, reply: None });
        Arc::new(Self { mds, operation, cached, number: Mutex::default() })
    }

    /// Executes a transmission of the request that arrives after this time, unless an earlier one was, and sends the reply. A transmission
    /// of a former request in the slot has no effect.
    pub fn execute(
        self: Arc<Self>,
        delay: Option<Duration>,
        broken: Broken,
        reply: oneshot::Sender<T>,
    ) -> impl Future<Output = ()> + Send + 'static {
        let number = *self.number.lock();
        async move {
            let Some(delay) = delay else { return };
            sleep(delay).await;
            let mut cached = self.cached.lock().await;
            let is_former = number < *self.number.lock();
            let is_new = cached.executed.is_none_or(|executed| executed < number) && !is_former;
            if is_new || broken == Broken::RepliesNotCached {
                cached.reply = Some((self.operation)(self.mds.clone()).await);
                cached.executed = Some(number);
            }
            if let Some(cached) = cached.reply.take_if(|_| !reply.is_closed()) {
                let _ = reply.send(cached);
            }
        }
    }

    /// Decides that the server has not cached the reply to a request that was executed (RFC 8881 §2.10.6.1.3): the client
    /// makes a new request of it.
    pub fn forget(&self, faults: &Faults) -> bool {
        let Ok(mut cached) = self.cached.try_lock() else { return false };
        let mut number = self.number.lock();
        let forgotten = cached.executed == Some(*number) && chance(0.5);
        if forgotten {
            faults.count(Fault::ReplyNotCached);
            cached.reply = None;
            *number += 1;
        }
        forgotten
    }
}

/// The probability of each fault of a transmission.
const SHARE: f64 = 0.01;
