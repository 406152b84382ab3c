//! [`Ranges`]: locks on ranges of one file, in the order in which they were requested.

use std::{ops::Range, sync::Arc};

use parking_lot::Mutex;
use tokio::sync::Notify;

/// The locks of a file.
#[derive(Default)]
pub struct Ranges {
    requests: Mutex<Requests>,
    changed: Notify,
}

#[derive(Default)]
struct Requests {
    next: u64,
    /// Requests in their order, held or waiting.
    queue: Vec<Request>,
}

struct Request {
    id: u64,
    range: Range<u64>,
    exclusive: bool,
}

/// A lock, or a request that waits for it. It ends when this is dropped.
pub struct RangeGuard {
    ranges: Arc<Ranges>,
    id: u64,
}

/// The whole file.
pub const WHOLE: Range<u64> = 0..u64::MAX;

impl Requests {
    /// Reports whether no request before number `id` conflicts with this one.
    fn is_free(&self, id: u64, range: &Range<u64>, exclusive: bool) -> bool {
        let earlier = self.queue.iter().take_while(|request| request.id < id);
        !earlier.into_iter().any(|request| {
            (request.exclusive || exclusive) && request.range.start < range.end && range.start < request.range.end
        })
    }

    fn add(&mut self, range: Range<u64>, exclusive: bool) -> u64 {
        let id = self.next;
        self.next += 1;
        self.queue.push(Request { id, range, exclusive });
        id
    }
}

impl Ranges {
    /// Locks a range if nobody holds or awaits a lock that conflicts.
    pub fn try_lock(self: &Arc<Self>, range: Range<u64>, exclusive: bool) -> Option<RangeGuard> {
        let mut requests = self.requests.lock();
        let free = requests.is_free(u64::MAX, &range, exclusive);
        free.then(|| RangeGuard { ranges: self.clone(), id: requests.add(range, exclusive) })
    }

    /// Locks a range.
    pub async fn lock(self: &Arc<Self>, range: Range<u64>, exclusive: bool) -> RangeGuard {
        let id = self.requests.lock().add(range.clone(), exclusive);
        let guard = RangeGuard { ranges: self.clone(), id };
        loop {
            let mut changed = std::pin::pin!(self.changed.notified());
            changed.as_mut().enable();
            if self.requests.lock().is_free(id, &range, exclusive) {
                return guard;
            }
            changed.await;
        }
    }
}

impl Drop for RangeGuard {
    fn drop(&mut self) {
        self.ranges.requests.lock().queue.retain(|request| request.id != self.id);
        self.ranges.changed.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use std::{
        future::Future,
        pin::pin,
        task::{Context, Poll, Waker},
    };

    use super::*;

    #[test]
    fn conflicting_ranges_wait_in_order_and_others_do_not() {
        let ranges = Arc::new(Ranges::default());
        let first = ranges.try_lock(0..10, true).unwrap();
        assert!(ranges.try_lock(5..6, false).is_none());
        let apart = ranges.try_lock(10..20, true).unwrap();
        let mut cx = Context::from_waker(Waker::noop());
        let mut whole = pin!(ranges.lock(WHOLE, true));
        assert!(whole.as_mut().poll(&mut cx).is_pending());
        // A later request does not overtake the one that waits.
        let mut later = pin!(ranges.lock(30..40, false));
        assert!(later.as_mut().poll(&mut cx).is_pending());
        drop((first, apart));
        let Poll::Ready(held) = whole.as_mut().poll(&mut cx) else { panic!("the range must be free") };
        assert!(later.as_mut().poll(&mut cx).is_pending());
        drop(held);
        let Poll::Ready(shared) = later.as_mut().poll(&mut cx) else { panic!("the range must be free") };
        assert!(ranges.try_lock(30..40, false).is_some());
        assert!(ranges.try_lock(30..40, true).is_none());
        drop(shared);
    }

    #[test]
    fn dropped_request_does_not_block_others() {
        let ranges = Arc::new(Ranges::default());
        let held = ranges.try_lock(0..10, true).unwrap();
        {
            let mut waiting = Box::pin(ranges.lock(0..20, true));
            assert!(waiting.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        }
        assert!(ranges.try_lock(10..20, true).is_some());
        drop(held);
    }
}
