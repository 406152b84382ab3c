//! [`Queue`]: the order in which a server negotiates contexts.
//!
//! Accepting a context costs some decryption and file I/O. It runs on a few threads. A host can use only a part of them
//! at the same time, and only a bounded number of its calls wait. So one host cannot use all threads. Several hosts can.

use std::sync::Arc;

use entropy::HashMap;
use parking_lot::Mutex;
use rpc::Host;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::server::GssLimits;

pub(crate) struct Queue {
    threads: Arc<Semaphore>,
    hosts: Arc<Mutex<Lanes>>,
    limits: GssLimits,
}

type Lanes = HashMap<Host, Lane>;

/// The calls of one host that wait or are executed.
struct Lane {
    calls: usize,
    permits: Arc<Semaphore>,
}

/// The right to use a thread. The work on the thread owns it: the caller can stop waiting before the work ends.
pub(crate) struct Turn {
    _threads: OwnedSemaphorePermit,
    _host: OwnedSemaphorePermit,
    _counted: Counted,
}

/// A call that is counted for its host.
struct Counted {
    hosts: Arc<Mutex<Lanes>>,
    host: Host,
}

impl Queue {
    pub fn new(limits: GssLimits) -> Self {
        Self { threads: Arc::new(Semaphore::new(limits.threads)), hosts: Arc::default(), limits }
    }

    /// Waits for a thread. Returns `None` if too many calls of this host wait already.
    pub async fn turn(&self, host: Host) -> Option<Turn> {
        let (counted, permits) = self.count(host)?;
        let of_host = permits.acquire_owned().await.expect("the semaphore must be open");
        let threads = self.threads.clone().acquire_owned().await.expect("the semaphore must be open");
        Some(Turn { _threads: threads, _host: of_host, _counted: counted })
    }

    fn count(&self, host: Host) -> Option<(Counted, Arc<Semaphore>)> {
        let mut hosts = self.hosts.lock();
        let lane = hosts
            .entry(host)
            .or_insert_with(|| Lane { calls: 0, permits: Arc::new(Semaphore::new(self.limits.threads_per_host)) });
        if lane.calls == self.limits.waiting_per_host {
            return None;
        }
        lane.calls += 1;
        Some((Counted { hosts: self.hosts.clone(), host }, lane.permits.clone()))
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        let mut hosts = self.hosts.lock();
        let lane = hosts.get_mut(&self.host).expect("a counted call must have a lane");
        lane.calls -= 1;
        if lane.calls == 0 {
            hosts.remove(&self.host);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use futures_util::FutureExt;

    use super::*;

    #[test]
    fn a_host_has_a_bounded_part_of_threads_and_queue() {
        let limits = GssLimits { threads: 3, threads_per_host: 2, waiting_per_host: 4, ..GssLimits::default() };
        let queue = Queue::new(limits);
        let (flood, good) = (Host::of([10, 0, 0, 1].into()), Host::of([10, 0, 0, 2].into()));
        let first = queue.turn(flood).now_or_never().flatten().expect("there is a thread");
        let second = queue.turn(flood).now_or_never().flatten().expect("there is a second thread");
        let (mut third, mut fourth) = (Box::pin(queue.turn(flood)), Box::pin(queue.turn(flood)));
        assert!((&mut third).now_or_never().is_none() && (&mut fourth).now_or_never().is_none(), "they must wait");
        assert!(matches!(queue.turn(flood).now_or_never(), Some(None)), "the fifth must be dropped");
        let other = queue.turn(good).now_or_never().flatten().expect("another host must have a thread");
        let mut waiting = pin!(queue.turn(good));
        assert!((&mut waiting).now_or_never().is_none(), "all threads are used");
        drop(first);
        assert!(waiting.now_or_never().flatten().is_some());
        drop((second, third, fourth, other));
        assert!(queue.hosts.lock().is_empty(), "nothing may be kept of a host without calls");
    }
}
