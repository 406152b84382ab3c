//! [`Signal`]: a message without content that is sent once, to any number of tasks.
//!
//! The tasks are woken in the order in which they began to wait. `tokio::sync::watch` wakes them in a random order, so a
//! simulation with it could not be repeated.

use std::{
    pin::pin,
    sync::{
        Arc,
        atomic::{
            AtomicBool,
            Ordering::{Acquire, Release},
        },
    },
};

use tokio::sync::Notify;

/// A signal that is sent at most once. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Signal(Arc<State>);

#[derive(Debug, Default)]
struct State {
    sent: AtomicBool,
    waiting: Notify,
}

impl Signal {
    /// Sends the signal: all tasks that wait for it now or later continue.
    pub fn send(&self) {
        self.0.sent.store(true, Release);
        self.0.waiting.notify_waiters();
    }

    /// Reports whether the signal has been sent.
    pub fn is_sent(&self) -> bool {
        self.0.sent.load(Acquire)
    }

    /// Waits until the signal has been sent.
    pub async fn wait(&self) {
        let mut notified = pin!(self.0.waiting.notified());
        // The task waits from here on, so a signal that is sent after the check wakes it.
        notified.as_mut().enable();
        if !self.is_sent() {
            notified.await;
        }
    }
}

/// Sends a signal when it is dropped.
#[derive(Debug)]
pub(crate) struct SendOnDrop(pub(crate) Signal);

impl Drop for SendOnDrop {
    fn drop(&mut self) {
        self.0.send();
    }
}

#[cfg(test)]
mod tests {
    use parking_lot::Mutex;
    use tokio::task::{JoinSet, yield_now};

    use super::*;

    #[tokio::test]
    async fn tasks_continue_in_the_order_in_which_they_began_to_wait() {
        let (signal, order) = (Signal::default(), Arc::new(Mutex::new(Vec::new())));
        let mut tasks = JoinSet::new();
        for number in 0..100 {
            let (signal, order) = (signal.clone(), order.clone());
            tasks.spawn(async move {
                signal.wait().await;
                order.lock().push(number);
            });
            yield_now().await;
        }
        assert!(!signal.is_sent() && order.lock().is_empty());
        signal.send();
        tasks.join_all().await;
        assert_eq!(*order.lock(), (0..100).collect::<Vec<_>>());
    }

    #[tokio::test]
    async fn signal_that_has_been_sent_is_not_waited_for() {
        let signal = Signal::default();
        drop(SendOnDrop(signal.clone()));
        signal.wait().await;
        signal.wait().await;
        assert!(signal.is_sent());
    }
}
