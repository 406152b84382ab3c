//! What a device says by itself: asynchronous events of queue pairs, of completion queues, and of the device.
//!
//! Read ibv_get_async_event(3). A thread for each device that is in use sleeps until there is one, and wakes whom it
//! concerns: a queue pair that the adapter has stopped, one whose completions will not come any more, or all of them when
//! the device is broken. An event belongs to the address of what it is about, so whoever is destroyed takes its record along.

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

/// The events of a device.
pub(super) struct Faults {
    known: Arc<Known>,
    stop: OwnedFd,
    thread: Option<thread::JoinHandle<()>>,
}

/// What has been reported of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// The peer or we have done what is not allowed.
    Request(&'static str),
    /// The adapter is broken, or has lost completions.
    Device(&'static str),
}

struct Known {
    pd: Arc<Pd>,
    /// By the address of the queue pair.
    watched: Mutex<BTreeMap<usize, Watched>>,
    /// The device has failed, or is gone.
    broken: AtomicBool,
}

struct Watched {
    cq: usize,
    /// Zero if it has receives of its own.
    srq: usize,
    /// No receive of a shared queue is in use by it any more.
    drained: bool,
    fault: Option<Fault>,
    waker: Option<Waker>,
}

impl Faults {
    /// # Errors
    /// The system gives no descriptor or no thread.
    pub(super) fn watch(pd: &Arc<Pd>, name: &str) -> io::Result<Self> {
        // SAFETY: the descriptor is the context's, which stays open as long as the domain.
        unblock(unsafe { BorrowedFd::borrow_raw(pd.async_fd()) })?;
        let known = Arc::new(Known { pd: pd.clone(), watched: Mutex::default(), broken: AtomicBool::new(false) });
        let stop = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let (sleeper, stopped) = (known.clone(), stop.try_clone()?);
        let thread = thread::Builder::new().name(format!("events-of-{name}")).spawn(move || sleeper.sleep(&stopped))?;
        Ok(Self { known, stop, thread: Some(thread) })
    }

    /// A queue pair whose events are wanted from now on.
    pub(super) fn add(&self, qp: NonNull<ibv_qp>, cq: NonNull<ibv_cq>, srq: *const ibv_srq) {
        let (cq, srq) = (cq.as_ptr() as usize, srq as usize);
        let watched = Watched { cq, srq, drained: false, fault: None, waker: None };
        self.known.watched.lock().insert(qp.as_ptr() as usize, watched);
    }

    /// It has been destroyed.
    pub(super) fn remove(&self, qp: NonNull<ibv_qp>) {
        self.known.watched.lock().remove(&(qp.as_ptr() as usize));
    }

    /// What has been reported of it so far, if anything; then `waker` is told of what comes later.
    pub(super) fn take(&self, qp: NonNull<ibv_qp>, waker: Option<&Waker>) -> Option<Fault> {
        let mut watched = self.known.watched.lock();
        if waker.is_none() {
            // Now, not when the thread comes to it.
            self.known.drain(&mut watched);
        }
        let watched = watched.get_mut(&(qp.as_ptr() as usize))?;
        if let Some(waker) = waker {
            watched.waker = Some(waker.clone());
        }
        watched.fault.take()
    }

    /// Whether the device is of no more use.
    pub(super) fn is_broken(&self) -> bool {
        self.known.broken.load(Relaxed)
    }

    /// Whether a queue pair that is in the error state uses no receive of a shared queue any more; if not, `waker` is told.
    pub(super) fn is_drained(&self, qp: NonNull<ibv_qp>, waker: Option<&Waker>) -> bool {
        let mut watched = self.known.watched.lock();
        self.known.drain(&mut watched);
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

impl Known {
    fn sleep(&self, stopped: &OwnedFd) {
        loop {
            // SAFETY: open as long as the domain, which `self` keeps.
            let events = unsafe { BorrowedFd::borrow_raw(self.pd.async_fd()) };
            let mut fds = [PollFd::new(&events, PollFlags::IN), PollFd::new(stopped, PollFlags::IN)];
            match poll(&mut fds, None) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return tracing::error!(%error, "no more events of an adapter are heard"),
            }
            if !fds[1].revents().is_empty() {
                return;
            }
            // A device that is gone has its descriptor in this state for good.
            let broken = fds[0].revents().intersects(PollFlags::ERR | PollFlags::HUP | PollFlags::NVAL);
            let mut watched = self.watched.lock();
            self.drain(&mut watched);
            if broken {
                return self.all(&mut watched, Fault::Device("the device is gone"));
            }
        }
    }

    fn drain(&self, watched: &mut BTreeMap<usize, Watched>) {
        let functions = &self.pd.library.functions;
        let mut event = ibv_async_event { element: std::ptr::null_mut(), event_type: 0 };
        // SAFETY: an open context, whose descriptor does not block.
        while unsafe { (functions.ibv_get_async_event)(self.pd.context().as_ptr(), &mut event) } == 0 {
            let fault = meaning(event.event_type);
            tracing::debug!(event = event.event_type, ?fault, "asynchronous event");
            let element = event.element as usize;
            // SAFETY: the event was got just now, and is acknowledged once.
            unsafe { (functions.ibv_ack_async_event)(&mut event) };
            if event.event_type == IBV_EVENT_QP_LAST_WQE_REACHED
                && let Some(watched) = watched.get_mut(&element)
            {
                watched.drained = true;
                watched.waker.take().into_iter().for_each(Waker::wake);
            }
            let Some(fault) = fault else { continue };
            match event.event_type {
                IBV_EVENT_DEVICE_FATAL => self.all(watched, fault),
                IBV_EVENT_CQ_ERR | IBV_EVENT_SRQ_ERR => {
                    watched
                        .values_mut()
                        .filter(|watched| watched.cq == element || watched.srq == element)
                        .for_each(|watched| watched.tell(fault));
                }
                _ => watched.get_mut(&element).into_iter().for_each(|watched| watched.tell(fault)),
            }
        }
    }

    /// The device is of no more use.
    fn all(&self, watched: &mut BTreeMap<usize, Watched>, fault: Fault) {
        self.broken.store(true, Relaxed);
        watched.values_mut().for_each(|watched| watched.tell(fault));
    }
}

impl Watched {
    fn tell(&mut self, fault: Fault) {
        self.fault = Some(fault);
        self.waker.take().into_iter().for_each(Waker::wake);
    }
}

/// What an event says about a queue pair; of ports and paths the connection manager tells.
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
