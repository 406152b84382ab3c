//! How a connection ends: by our wish, by the peer's, because a work request has failed, or the adapter.
//!
//! The adapter is stopped first, then everything comes home, and only then is the end told. Before that a queue pair that takes its
//! receives from a shared queue stays in the error state until what it had begun to fill has come back (see
//! [`super::super::receives`]).

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
    /// What is queued is still sent; then the peer is told, and closes too.
    Closing {
        told: bool,
        timer: Pin<Box<Sleep>>,
    },
    /// The queue pair has failed, and the connection manager may say why.
    Failing {
        error: QpError,
        timer: Pin<Box<Sleep>>,
    },
    /// What it may hold of a shared receive queue is to come back.
    Draining {
        error: QpError,
        timer: Pin<Box<Sleep>>,
    },
    Ended(QpError),
}

impl VerbsQp {
    /// A work request has not completed well: the queue pair is of no more use.
    pub(super) fn failed(&mut self, wc: &ibv_wc, receive: bool) {
        if !matches!(self.phase, Phase::Open | Phase::Closing { told: false, .. }) {
            return;
        }
        let Some(queues) = &self.queues else { return };
        let text = queues.device.pd.library.status_text(wc.status);
        tracing::debug!(peer = %self.peer, status = text, vendor = wc.vendor_err, receive, "work failed");
        match meaning(wc.status, receive, text) {
            Some(error) => self.end(error),
            None => {
                // An adapter that flushes when the peer closes may do so before the connection manager tells.
                let timer = Box::pin(sleep_until(Instant::now() + FAILING));
                let error = QpError::Protocol("the adapter has stopped the connection".into());
                self.phase = Phase::Failing { error, timer };
            }
        }
    }

    /// A call to the adapter has failed.
    pub(super) fn broken(&mut self, error: &io::Error) {
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
                // Into the error state.
                queues.id.disconnect();
                Phase::Draining { error, timer: Box::pin(sleep_until(Instant::now() + DRAINING)) }
            }
            _ => Phase::Ended(error),
        };
    }

    /// Goes on with an end that has begun.
    pub(super) fn poll_end(&mut self, cx: &mut Context<'_>) {
        let idle = self.queued.is_empty() && self.posted.is_empty();
        match &mut self.phase {
            Phase::Open | Phase::Ended(_) => {}
            Phase::Closing { told, timer } => {
                if idle && !*told {
                    *told = true;
                    self.queues.as_ref().expect("until the end").id.disconnect();
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
                let told = self.queues.as_ref().is_none_or(|queues| queues.is_drained(Some(cx.waker())));
                // Not every device tells: Linux's rxe does not.
                if self.drained || told || timer.as_mut().poll(cx).is_ready() {
                    self.phase = Phase::Ended(error.clone());
                }
            }
        }
    }

    /// Stops the adapter, and brings everything home.
    pub(super) fn stop(&mut self, completions: &mut Vec<Completion>) {
        let _ = self.reap(completions); // what has completed has completed
        self.events = None;
        if let Some(queues) = self.queues.take() {
            queues.id.disconnect();
            self.spare.clear();
            // Windows refer to the queue pair; registrations made for regions are done with, too.
            self.regions.values_mut().for_each(|region| region.exposure = None);
            drop(queues);
        }
        self.begun = None;
        let posted = std::mem::take(&mut self.posted);
        for Posted { request, status, .. } in posted {
            let status = if status == Status::Ok { Status::Flushed } else { status };
            self.hand_home(request, status, completions);
        }
        for request in std::mem::take(&mut self.queued) {
            self.hand_home(request, Status::Flushed, completions);
        }
        self.recvs.flush(completions);
    }
}

/// Nobody polled it to its end: what it holds of a shared receive queue comes back all the same.
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
        let _ = self.reap(&mut Vec::new()); // what came with the adapter's word
    }
}

impl From<Fault> for QpError {
    fn from(fault: Fault) -> Self {
        match fault {
            Fault::Request(what) => QpError::Protocol(what.into()),
            Fault::Device(what) => {
                tracing::error!(what, "an adapter fails");
                QpError::Io(io::ErrorKind::NetworkDown)
            }
        }
    }
}

/// How long the connection manager may take to tell why the adapter has stopped.
const FAILING: Duration = Duration::from_millis(500);
/// How long an adapter that does not tell has to give back what it holds of a shared receive queue.
const DRAINING: Duration = Duration::from_secs(1);
/// The same when nobody polls the queue pair any more: so often, after so long each time.
const DROPPING: (u32, Duration) = (100, Duration::from_millis(1));
