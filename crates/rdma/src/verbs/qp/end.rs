//! The end of a connection: after a local disconnect, a disconnect by the peer, a failed work request, or a failure of
//! the adapter.
//!
//! The adapter is stopped first, then all buffers are returned, and only then is the end reported. Before that, a queue
//! pair that takes its receives from a shared queue stays in the error state until the receives that it had begun to
//! fill have been released (see [`super::super::receives`]).

use std::{future::Future, io, pin::Pin, task::Context, time::Duration};

use tokio::time::{Instant, Sleep, sleep_until};

use super::{
    super::{
        faults::Fault,
        ffi::ibv_wc,
        queue::{Queues, meaning},
    },
    Posted, VerbsQp,
};
use crate::{Completion, QpError, Status};

pub(super) enum Phase {
    Open,
    /// Queued requests are still sent; then the peer is notified, and closes as well.
    Closing {
        disconnected: bool,
        timer: Pin<Box<Sleep>>,
    },
    /// The queue pair has failed, and the connection manager may still report the reason.
    Failing {
        error: QpError,
        timer: Pin<Box<Sleep>>,
    },
    /// Receives of a shared receive queue that the queue pair may hold are awaited.
    Draining {
        error: QpError,
        timer: Pin<Box<Sleep>>,
    },
    Ended(QpError),
}

impl VerbsQp {
    /// A work request has failed: the queue pair can no longer be used.
    pub(super) fn failed(&mut self, wc: &ibv_wc, receive: bool) {
        if !matches!(self.phase, Phase::Open | Phase::Closing { disconnected: false, .. }) {
            return;
        }
        let Some(queues) = &self.queues else { return };
        let text = queues.device.pd.library.status_text(wc.status);
        tracing::debug!(peer = %self.peer, status = text, vendor = wc.vendor_err, receive, "work failed");
        match meaning(wc.status, receive, text) {
            Some(error) => self.end(error),
            None => {
                // An adapter that flushes requests when the peer closes may do so before the connection manager reports
                // it.
                let timer = Box::pin(sleep_until(Instant::now() + FAILING));
                let error = QpError::Protocol("the adapter has stopped the connection".into());
                self.phase = Phase::Failing { error, timer };
            }
        }
    }

    /// Ends the connection because a call to the adapter has failed.
    pub(super) fn fail(&mut self, error: &io::Error) {
        if !matches!(self.phase, Phase::Ended(_) | Phase::Draining { .. }) {
            tracing::error!(peer = %self.peer, %error, "ending the connection");
            self.end(QpError::Io(error.kind()));
        }
    }

    pub(super) fn end(&mut self, error: QpError) {
        if matches!(self.phase, Phase::Ended(_) | Phase::Draining { .. }) {
            return;
        }
        tracing::debug!(peer = %self.peer, %error, "connection ended");
        self.phase = match &self.queues {
            Some(queues) if queues.shares() => {
                // The disconnect moves the queue pair into the error state.
                queues.id.disconnect();
                Phase::Draining { error, timer: Box::pin(sleep_until(Instant::now() + DRAINING)) }
            }
            _ => Phase::Ended(error),
        };
    }

    /// Continues an end that has begun.
    pub(super) fn poll_end(&mut self, cx: &mut Context<'_>) {
        let idle = self.queued.is_empty() && self.posted.is_empty();
        match &mut self.phase {
            Phase::Open | Phase::Ended(_) => {}
            Phase::Closing { disconnected, timer } => {
                if idle && !*disconnected {
                    *disconnected = true;
                    self.queues.as_ref().expect("present until the end").id.disconnect();
                }
                if timer.as_mut().poll(cx).is_ready() {
                    self.end(QpError::Disconnected);
                }
            }
            Phase::Failing { error, timer } => {
                let error = error.clone();
                let fault = self.queues.as_ref().and_then(Queues::take_fault);
                if let Some(fault) = fault {
                    self.end(fault.into());
                } else if timer.as_mut().poll(cx).is_ready() {
                    self.end(error);
                }
            }
            Phase::Draining { error, timer } => {
                let drained = self.queues.as_ref().is_none_or(|queues| queues.is_drained(Some(cx.waker())));
                // Not every device reports it: rxe of Linux does not.
                if self.drained || drained || timer.as_mut().poll(cx).is_ready() {
                    self.phase = Phase::Ended(error.clone());
                }
            }
        }
    }

    /// Stops the adapter and returns all buffers.
    pub(super) fn stop(&mut self, completions: &mut Vec<Completion>) {
        let _ = self.reap(completions); // requests that have completed are returned as such
        self.events = None;
        if let Some(queues) = self.queues.take() {
            queues.id.disconnect();
            self.spare.clear();
            // Windows refer to the queue pair; the registrations made for regions are no longer required, either.
            self.regions.values_mut().for_each(|region| region.exposure = None);
            drop(queues);
        }
        self.begun = None;
        let posted = std::mem::take(&mut self.posted);
        for Posted { request, status, .. } in posted {
            let status = if status == Status::Ok { Status::Flushed } else { status };
            self.return_request(request, status, completions);
        }
        for request in std::mem::take(&mut self.queued) {
            self.return_request(request, Status::Flushed, completions);
        }
        self.recvs.flush(completions);
    }
}

/// A queue pair that was not polled to its end still releases its receives of a shared receive queue.
impl Drop for VerbsQp {
    fn drop(&mut self) {
        let Some(queues) = &self.queues else { return };
        if !queues.shares() {
            return;
        }
        queues.id.disconnect();
        let (tries, each) = DROPPING;
        for _ in 0..tries {
            let reaped = self.reap(&mut Vec::new());
            if reaped.is_err() || self.drained || self.queues().is_drained(None) {
                break;
            }
            std::thread::sleep(each);
        }
        let _ = self.reap(&mut Vec::new()); // completions that arrived with the adapter's report
    }
}

impl From<Fault> for QpError {
    fn from(fault: Fault) -> Self {
        match fault {
            Fault::Request(what) => QpError::Protocol(what.into()),
            Fault::Device(what) => {
                tracing::error!(what, "an adapter has failed");
                QpError::Io(io::ErrorKind::NetworkDown)
            }
        }
    }
}

/// The time that the connection manager has to report why the adapter has stopped.
const FAILING: Duration = Duration::from_millis(500);
/// The time that an adapter which does not report it has to release the receives of a shared receive queue.
const DRAINING: Duration = Duration::from_secs(1);
/// The same for a queue pair that is no longer polled: the number of attempts, and the time between them.
const DROPPING: (u32, Duration) = (100, Duration::from_millis(1));
