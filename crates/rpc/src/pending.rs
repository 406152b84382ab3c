//! The pending calls of datagram and stream transports.
//!
//! The table owns the sink of a call, not the caller's future, so that a caller can drop its call at any time. The
//! transport takes the sink out of the table while it fills it.

use std::{
    collections::hash_map::Entry,
    future::Future,
    hash::{BuildHasherDefault, Hasher},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Waker},
};

use buf::{Buffer, SharedRegion};
use entropy::HashMap;
use parking_lot::Mutex;
use xdr::Message;

use crate::{CallError, CallsMade, Reply, ReplyPlan, TransportError, Xid, msg::peek};

/// The table of pending calls.
#[derive(Debug, Default)]
pub(crate) struct PendingCalls {
    calls: HashMap<Xid, Pending, BuildHasherDefault<XidHasher>>,
    /// The number of calls since the connection was opened.
    total: u64,
    over: Option<TransportError>,
}

#[derive(Debug)]
struct Pending {
    plan: ReplyPlan,
    waker: Waker,
    outcome: Option<Result<Reply, CallError>>,
}

impl PendingCalls {
    /// Returns the plan of a call that still waits for its reply.
    pub fn plan(&mut self, xid: Xid) -> Option<&mut ReplyPlan> {
        self.calls.get_mut(&xid).filter(|pending| pending.outcome.is_none()).map(|pending| &mut pending.plan)
    }

    /// Completes a call with its reply. Drops a reply for which no call waits. If the payload was placed, it is in
    /// `sink`.
    pub fn complete(&mut self, xid: Xid, message: Message, sink: Option<SharedRegion>) {
        let Some(pending) = self.calls.get_mut(&xid).filter(|pending| pending.outcome.is_none()) else {
            tracing::debug!(xid = xid.0, "a reply without a pending call");
            return;
        };
        let sink = sink.or_else(|| pending.plan.sink.take().map(SharedRegion::from));
        pending.outcome = Some(Ok(Reply { message, sink }));
        pending.waker.wake_by_ref();
    }

    /// Fails all calls, including later ones. `abandoned` is a sink that was being filled.
    pub fn fail_all(&mut self, error: &TransportError, mut abandoned: Option<(Xid, Buffer)>) {
        for (xid, pending) in &mut self.calls {
            if pending.outcome.is_none() {
                let filling = abandoned.take_if(|(filling, _)| filling == xid).map(|(_, sink)| sink.into());
                let sink = filling.or_else(|| pending.plan.sink.take());
                pending.outcome = Some(Err(CallError { error: error.clone(), sink }));
                pending.waker.wake_by_ref();
            }
        }
        self.over.get_or_insert_with(|| error.clone());
    }

    /// Returns `true` if a call is pending.
    pub fn any(&self) -> bool {
        !self.calls.is_empty()
    }

    /// Returns the numbers of pending and of all calls.
    pub fn made(&self) -> CallsMade {
        CallsMade { total: self.total, pending: self.calls.len() }
    }

    /// Returns the error that closed the connection, if it is closed.
    pub fn over(&self) -> Option<&TransportError> {
        self.over.as_ref()
    }
}

/// The state that a transport shares between its driver and its callers.
pub(crate) trait Shared {
    /// Returns the pending calls.
    fn pending(&mut self) -> &mut PendingCalls;

    /// Queues a call and wakes the driver.
    fn send(&mut self, message: Message) -> Result<(), TransportError>;
}

/// A transport whose calls are in a table of [`PendingCalls`].
pub(crate) trait Calling {
    type Shared: Shared;

    /// Returns the state that the driver and the callers share.
    fn shared(&self) -> &Mutex<Self::Shared>;
}

/// The future of one call: queues it, and waits for its reply.
pub(crate) struct CallFuture<T: Calling> {
    transport: Arc<T>,
    xid: Xid,
    stage: Stage,
}

enum Stage {
    New(Message, ReplyPlan),
    Waiting,
    Done,
}

impl<T: Calling> CallFuture<T> {
    /// Creates a call that is queued when the future is first polled.
    pub fn new(transport: Arc<T>, message: Message, plan: ReplyPlan) -> Self {
        let xid = peek(&message.stream).expect("a call must have an XID").0;
        Self { transport, xid, stage: Stage::New(message, plan) }
    }

    fn start(&mut self, mut message: Message, plan: ReplyPlan, cx: &Context<'_>) -> Result<(), CallError> {
        // A socket cannot send device memory. The data are copied here, so that a device that fails ends only this
        // call.
        if let Err(error) = message.payloads.iter_mut().try_for_each(|payload| payload.data.bounce()) {
            let error = TransportError::Refused(format!("cannot read the payload: {error}"));
            return Err(CallError { error, sink: plan.sink });
        }
        let mut shared = self.transport.shared().lock();
        let pending = shared.pending();
        if let Some(error) = pending.over() {
            return Err(CallError { error: error.clone(), sink: plan.sink });
        }
        match pending.calls.entry(self.xid) {
            Entry::Vacant(entry) => {
                entry.insert(Pending { plan, waker: cx.waker().clone(), outcome: None });
            }
            Entry::Occupied(_) => {
                let problem = format!("a call with XID {:#010x} is already outstanding", self.xid.0);
                return Err(CallError { error: TransportError::Refused(problem), sink: plan.sink });
            }
        }
        if let Err(error) = shared.send(message) {
            let call = shared.pending().calls.remove(&self.xid);
            return Err(CallError { error, sink: call.and_then(|call| call.plan.sink) });
        }
        shared.pending().total += 1;
        self.stage = Stage::Waiting;
        Ok(())
    }
}

impl<T: Calling> Future for CallFuture<T> {
    type Output = Result<Reply, CallError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match &self.stage {
            Stage::New(..) => {
                let Stage::New(message, plan) = std::mem::replace(&mut self.stage, Stage::Done) else { unreachable!() };
                match self.start(message, plan, cx) {
                    Ok(()) => Poll::Pending,
                    Err(error) => Poll::Ready(Err(error)),
                }
            }
            Stage::Waiting => {
                let mut shared = self.transport.shared().lock();
                let calls = &mut shared.pending().calls;
                let call = calls.get_mut(&self.xid).expect("a waiting call must be in the table");
                if let Some(outcome) = call.outcome.take() {
                    calls.remove(&self.xid);
                    drop(shared);
                    self.stage = Stage::Done;
                    return Poll::Ready(outcome);
                }
                call.waker.clone_from(cx.waker());
                Poll::Pending
            }
            Stage::Done => panic!("polled after completion"),
        }
    }
}

impl<T: Calling> Drop for CallFuture<T> {
    fn drop(&mut self) {
        if matches!(self.stage, Stage::Waiting) {
            self.transport.shared().lock().pending().calls.remove(&self.xid);
        }
    }
}

/// A hasher for XIDs. This side chooses them, mostly consecutive, so one multiplication spreads them.
#[derive(Debug, Default)]
struct XidHasher(u64);

impl Hasher for XidHasher {
    fn write(&mut self, _: &[u8]) {
        unreachable!("an XID hashes as a u32")
    }

    fn write_u32(&mut self, value: u32) {
        self.0 = u64::from(value).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }

    fn finish(&self) -> u64 {
        self.0
    }
}
