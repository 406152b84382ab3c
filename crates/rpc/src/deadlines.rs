//! [`Deadlines`]: the deadlines of all calls of a client, with one timer.
//!
//! Nearly every call is answered long before its deadline, so a timer for each call would be set and cleared for
//! nothing. Instead a call stores its deadline in a table, and one task sleeps until the earliest deadline that was in
//! the table when it last checked.
//!
//! If that task is dropped because its runtime ends, all deadlines expire: no caller waits for an answer that cannot
//! arrive.

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll, Waker},
};

use parking_lot::Mutex;
use tokio::{
    sync::Notify,
    time::{Instant, sleep_until},
};

/// A table of deadlines.
#[derive(Default)]
pub(crate) struct Deadlines {
    table: Mutex<Table>,
    /// Notified when the task must wake earlier.
    earlier: Notify,
}

#[derive(Default)]
struct Table {
    entries: Vec<Entry>,
    /// The indices of unused entries.
    free: Vec<usize>,
    /// The time at which the task checks the entries next. `None` if there was no entry.
    next: Option<Instant>,
    is_over: bool,
}

struct Entry {
    /// `None` after the deadline has expired, and while the entry is unused.
    deadline: Option<Instant>,
    waker: Waker,
}

impl Deadlines {
    /// Returns the output of `call`, or `None` if its deadline expires first. [`run`](Self::run) must be polled
    /// meanwhile.
    pub fn within<'a, F: Future>(&'a self, deadline: Instant, call: Pin<&'a mut F>) -> Within<'a, F> {
        Within { deadlines: self, deadline, entry: None, call }
    }

    /// Wakes each call whose deadline expires. Never completes.
    pub async fn run(&self) {
        let _ends = EndOnDrop(self);
        loop {
            let next = self.table.lock().next;
            let Some(next) = next else {
                self.earlier.notified().await;
                continue;
            };
            tokio::select! {
                biased;
                () = sleep_until(next) => self.table.lock().pass(Instant::now()),
                () = self.earlier.notified() => {}
            }
        }
    }

    fn add(&self, deadline: Instant, waker: &Waker) -> Option<usize> {
        let mut table = self.table.lock();
        if table.is_over {
            return None;
        }
        let entry = Entry { deadline: Some(deadline), waker: waker.clone() };
        let number = match table.free.pop() {
            Some(number) => {
                table.entries[number] = entry;
                number
            }
            None => {
                table.entries.push(entry);
                table.entries.len() - 1
            }
        };
        if table.next.is_none_or(|next| deadline < next) {
            table.next = Some(deadline);
            self.earlier.notify_one();
        }
        Some(number)
    }

    /// Returns `true` if the deadline of an entry has expired. Otherwise wakes `waker` when it expires.
    fn has_passed(&self, number: usize, waker: &Waker) -> bool {
        let entry = &mut self.table.lock().entries[number];
        entry.waker.clone_from(waker);
        entry.deadline.is_none()
    }

    fn remove(&self, number: usize) {
        let mut table = self.table.lock();
        table.entries[number].deadline = None;
        table.free.push(number);
    }
}

impl Table {
    /// Wakes the calls whose deadlines have expired.
    fn pass(&mut self, now: Instant) {
        self.next = None;
        for entry in &mut self.entries {
            match entry.deadline {
                Some(deadline) if deadline <= now => {
                    entry.deadline = None;
                    entry.waker.wake_by_ref();
                }
                Some(deadline) => self.next = Some(self.next.map_or(deadline, |next| next.min(deadline))),
                None => {}
            }
        }
    }
}

/// Expires all deadlines when the task that waits for them is dropped.
struct EndOnDrop<'a>(&'a Deadlines);

impl Drop for EndOnDrop<'_> {
    fn drop(&mut self) {
        let mut table = self.0.table.lock();
        table.is_over = true;
        for entry in &mut table.entries {
            if entry.deadline.take().is_some() {
                entry.waker.wake_by_ref();
            }
        }
    }
}

/// The future of a call with a deadline.
pub(crate) struct Within<'a, F> {
    deadlines: &'a Deadlines,
    deadline: Instant,
    /// The index of the entry; made when the call is first found pending.
    entry: Option<usize>,
    call: Pin<&'a mut F>,
}

impl<F: Future> Future for Within<'_, F> {
    type Output = Option<F::Output>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        if let Poll::Ready(output) = self.call.as_mut().poll(cx) {
            return Poll::Ready(Some(output));
        }
        let has_passed = match self.entry {
            Some(entry) => self.deadlines.has_passed(entry, cx.waker()),
            None => {
                self.entry = self.deadlines.add(self.deadline, cx.waker());
                self.entry.is_none()
            }
        };
        if has_passed { Poll::Ready(None) } else { Poll::Pending }
    }
}

impl<F> Drop for Within<'_, F> {
    fn drop(&mut self) {
        if let Some(entry) = self.entry {
            self.deadlines.remove(entry);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{future::pending, pin::pin, sync::Arc, time::Duration};

    use super::*;

    async fn silent(deadlines: &Deadlines, seconds: u64) -> Duration {
        let start = Instant::now();
        let call = pin!(pending::<()>());
        assert_eq!(deadlines.within(start + Duration::from_secs(seconds), call).await, None);
        start.elapsed()
    }

    #[tokio::test(start_paused = true)]
    async fn each_call_times_out_at_its_own_deadline() {
        let deadlines = Arc::new(Deadlines::default());
        let task = tokio::spawn({
            let deadlines = deadlines.clone();
            async move { deadlines.run().await }
        });
        let answered = deadlines.within(Instant::now() + Duration::from_secs(1), pin!(async { 7 })).await;
        assert_eq!(answered, Some(7));
        let ended = tokio::join!(silent(&deadlines, 30), silent(&deadlines, 10), silent(&deadlines, 20));
        let near = |took: Duration, seconds: u64| (took.as_millis() as u64).abs_diff(seconds * 1000) < 5;
        assert!(near(ended.0, 30) && near(ended.1, 10) && near(ended.2, 20), "{ended:?}");
        assert!(near(silent(&deadlines, 5).await, 5), "deadlines must also expire after the table was empty");
        assert_eq!(deadlines.table.lock().entries.len(), 3, "unused entries must be reused");
        let last = tokio::spawn({
            let deadlines = deadlines.clone();
            async move { silent(&deadlines, 3600).await }
        });
        tokio::task::yield_now().await;
        task.abort();
        assert!(near(last.await.unwrap(), 0), "without the task, all deadlines must expire");
        assert!(near(silent(&deadlines, 3600).await, 0));
    }
}
