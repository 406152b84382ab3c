//! Events that a device reports asynchronously, of queue pairs, of completion queues, and of the device itself.
//!
//! See ibv_get_async_event(3). For each device in use a thread waits for events and wakes the queue pairs concerned: a
//! queue pair that the adapter has stopped, queue pairs whose completions are lost, or all of them if the device has
//! failed. Events identify their object by address, so the record of a queue pair is removed when it is destroyed.

#![expect(unsafe_code, reason = "calls of C")]

use std::{
    collections::BTreeMap,
    io,
    os::fd::{BorrowedFd, OwnedFd},
    ptr::NonNull,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    task::Waker,
    thread,
};

use parking_lot::Mutex;
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};

use super::{
    domain::{Pd, unblock},
    ffi::*,
};

/// The receiver of a device's events.
pub(super) struct Faults {
    shared: Arc<Shared>,
    stop: OwnedFd,
    thread: Option<thread::JoinHandle<()>>,
}

/// A fault that has been reported for a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// The peer or the local side has violated a rule.
    Request(&'static str),
    /// The adapter has failed, or has lost completions.
    Device(&'static str),
}

struct Shared {
    pd: Arc<Pd>,
    /// By the address of the queue pair.
    watched: Mutex<BTreeMap<usize, Watched>>,
    /// The device has failed or has been removed.
    failed: AtomicBool,
}

struct Watched {
    cq: usize,
    /// Zero if the queue pair has its own receives.
    srq: usize,
    /// The queue pair no longer uses any receive of a shared queue.
    drained: bool,
    fault: Option<Fault>,
    waker: Option<Waker>,
}

impl Faults {
    /// Creates the receiver and its thread.
    ///
    /// # Errors
    /// Returns an error if the system cannot provide a descriptor or a thread.
    pub(super) fn watch(pd: &Arc<Pd>, name: &str) -> io::Result<Self> {
        // SAFETY: the descriptor belongs to the context, which stays open as long as the domain.
        unblock(unsafe { BorrowedFd::borrow_raw(pd.async_fd()) })?;
        let shared = Arc::new(Shared { pd: pd.clone(), watched: Mutex::default(), failed: AtomicBool::new(false) });
        let stop = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let (receiver, stopped) = (shared.clone(), stop.try_clone()?);
        let thread = thread::Builder::new().name(format!("events-of-{name}")).spawn(move || receiver.run(&stopped))?;
        Ok(Self { shared, stop, thread: Some(thread) })
    }

    /// Adds a queue pair whose events are recorded from now on.
    pub(super) fn add(&self, qp: NonNull<ibv_qp>, cq: NonNull<ibv_cq>, srq: *const ibv_srq) {
        let (cq, srq) = (cq.as_ptr() as usize, srq as usize);
        let watched = Watched { cq, srq, drained: false, fault: None, waker: None };
        self.shared.watched.lock().insert(qp.as_ptr() as usize, watched);
    }

    /// Removes a queue pair that has been destroyed.
    pub(super) fn remove(&self, qp: NonNull<ibv_qp>) {
        self.shared.watched.lock().remove(&(qp.as_ptr() as usize));
    }

    /// Takes the fault that has been reported for a queue pair, if any. `waker` is woken when another is reported.
    pub(super) fn take(&self, qp: NonNull<ibv_qp>, waker: Option<&Waker>) -> Option<Fault> {
        let mut watched = self.shared.watched.lock();
        if waker.is_none() {
            // The events that have arrived are read here, instead of waiting for the thread.
            self.shared.drain(&mut watched);
        }
        let watched = watched.get_mut(&(qp.as_ptr() as usize))?;
        if let Some(waker) = waker {
            watched.waker = Some(waker.clone());
        }
        watched.fault.take()
    }

    /// Returns whether the device has failed.
    pub(super) fn has_failed(&self) -> bool {
        self.shared.failed.load(Relaxed)
    }

    /// Returns whether a queue pair in the error state no longer uses any receive of a shared queue. If it still does,
    /// `waker` is woken later.
    pub(super) fn is_drained(&self, qp: NonNull<ibv_qp>, waker: Option<&Waker>) -> bool {
        let mut watched = self.shared.watched.lock();
        self.shared.drain(&mut watched);
        watched.get_mut(&(qp.as_ptr() as usize)).is_none_or(|watched| {
            watched.waker = waker.cloned();
            watched.drained
        })
    }
}

impl Drop for Faults {
    fn drop(&mut self) {
        let _ = rustix::io::write(&self.stop, &1u64.to_ne_bytes());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn run(&self, stopped: &OwnedFd) {
        loop {
            // SAFETY: open as long as the domain, which `self` holds.
            let events = unsafe { BorrowedFd::borrow_raw(self.pd.async_fd()) };
            let mut fds = [PollFd::new(&events, PollFlags::IN), PollFd::new(stopped, PollFlags::IN)];
            match poll(&mut fds, None) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return tracing::error!(%error, "can no longer receive the events of an adapter"),
            }
            if !fds[1].revents().is_empty() {
                return;
            }
            // The descriptor of a device that was removed stays in this state.
            let removed = fds[0].revents().intersects(PollFlags::ERR | PollFlags::HUP | PollFlags::NVAL);
            let mut watched = self.watched.lock();
            self.drain(&mut watched);
            if removed {
                return self.report_to_all(&mut watched, Fault::Device("the device has been removed"));
            }
        }
    }

    fn drain(&self, watched: &mut BTreeMap<usize, Watched>) {
        let functions = &self.pd.library.functions;
        let mut event = ibv_async_event { element: std::ptr::null_mut(), event_type: 0 };
        // SAFETY: an open context, whose descriptor is nonblocking.
        while unsafe { (functions.ibv_get_async_event)(self.pd.context().as_ptr(), &mut event) } == 0 {
            let fault = meaning(event.event_type);
            tracing::debug!(event = event.event_type, ?fault, "asynchronous event");
            let element = event.element as usize;
            // SAFETY: the event was just read, and is acknowledged once.
            unsafe { (functions.ibv_ack_async_event)(&mut event) };
            if event.event_type == IBV_EVENT_QP_LAST_WQE_REACHED
                && let Some(watched) = watched.get_mut(&element)
            {
                watched.drained = true;
                watched.waker.take().into_iter().for_each(Waker::wake);
            }
            let Some(fault) = fault else { continue };
            match event.event_type {
                IBV_EVENT_DEVICE_FATAL => self.report_to_all(watched, fault),
                IBV_EVENT_CQ_ERR | IBV_EVENT_SRQ_ERR => {
                    watched
                        .values_mut()
                        .filter(|watched| watched.cq == element || watched.srq == element)
                        .for_each(|watched| watched.report(fault));
                }
                _ => watched.get_mut(&element).into_iter().for_each(|watched| watched.report(fault)),
            }
        }
    }

    /// Records that the device has failed, and reports it to all queue pairs.
    fn report_to_all(&self, watched: &mut BTreeMap<usize, Watched>, fault: Fault) {
        self.failed.store(true, Relaxed);
        watched.values_mut().for_each(|watched| watched.report(fault));
    }
}

impl Watched {
    fn report(&mut self, fault: Fault) {
        self.fault = Some(fault);
        self.waker.take().into_iter().for_each(Waker::wake);
    }
}

/// Returns the fault that an event reports for a queue pair. Events of ports and paths are reported by the connection
/// manager.
fn meaning(event: std::ffi::c_int) -> Option<Fault> {
    match event {
        IBV_EVENT_QP_FATAL => Some(Fault::Request("fatal error of the queue pair")),
        IBV_EVENT_QP_REQ_ERR => Some(Fault::Request("invalid request")),
        IBV_EVENT_QP_ACCESS_ERR => Some(Fault::Request("access to memory without the right to it")),
        IBV_EVENT_CQ_ERR => Some(Fault::Device("a completion queue has overrun")),
        IBV_EVENT_SRQ_ERR => Some(Fault::Device("a shared receive queue has failed")),
        IBV_EVENT_DEVICE_FATAL => Some(Fault::Device("the device has failed")),
        _ => None,
    }
}
