//! Operations that complete later.
//!
//! A back end that waits for something other than this machine's storage (another server, a ring of the kernel) does not
//! occupy a thread while it waits. The protocol between it and its caller:
//!
//! 1. The caller lends a [`CompletionSlot`] in [`Caller::completion`].
//! 2. The operation starts its work, leaves a future in the slot, and returns [`VfsError::Pending`]. It may have had its
//!    effect already, and has it exactly once.
//! 3. The caller awaits the future on any thread ([`CompletionSlot::take_future`]), puts its output back
//!    ([`CompletionSlot::complete`]), and calls the same operation with the same arguments and the same slot again.
//! 4. The operation finds its completion in the slot and returns its result. It may return `Pending` again if it has
//!    several stages.
//!
//! A future that is dropped does not undo the effect. A caller without a slot gets no `Pending`: the operation
//! blocks if it may, and else returns [`VfsError::WouldBlock`] without an effect. [`Caller::complete`] does all of this for a
//! back end that has a future of its result.
//!
//! An operation that needs no waiting touches none of this.

use std::{
    any::Any,
    fmt,
    future::Future,
    pin::{Pin, pin},
    sync::Arc,
    task::{Context, Poll, Wake, Waker},
    thread::{self, Thread},
};

use parking_lot::Mutex;

use crate::{
    Caller, FsCaps, Result, Vfs, VfsError,
    interpose::{Interpose, Interposed, Operation},
};

/// What a future of a back end yields, and the same operation finds when it is called again. Opaque to the caller.
pub type Completion = Box<dyn Any + Send>;

/// A future of a completion. It is polled on any thread, and must not need a runtime.
pub type CompletionFuture = Pin<Box<dyn Future<Output = Completion> + Send>>;

/// Where one operation leaves its future, and finds its completion.
///
/// ```
/// use std::task::{Context, Poll, Waker};
/// use vfs::{Caller, CompletionSlot, Cred, VfsError};
///
/// fn operation(caller: &Caller<'_>) -> vfs::Result<u32> {
///     caller.complete(|| async { Ok(7) })
/// }
///
/// let (slot, root) = (CompletionSlot::default(), Cred::root());
/// let caller = Caller { completion: Some(&slot), ..Caller::nonblocking(&root) };
/// assert_eq!(operation(&caller), Err(VfsError::Pending));
/// let mut future = slot.take_future().unwrap();
/// let Poll::Ready(completion) = future.as_mut().poll(&mut Context::from_waker(Waker::noop())) else { panic!() };
/// slot.complete(completion);
/// assert_eq!(operation(&caller), Ok(7));
/// ```
#[derive(Default)]
pub struct CompletionSlot(Mutex<State>);

#[derive(Default)]
enum State {
    #[default]
    Empty,
    Waiting(CompletionFuture),
    Completed(Completion),
}

impl CompletionSlot {
    /// Leaves a future here, for a back end that then returns [`VfsError::Pending`].
    pub fn leave(&self, future: CompletionFuture) {
        *self.0.lock() = State::Waiting(future);
    }

    /// Takes the completion out, for the back end.
    ///
    /// # Panics
    /// If there is one and it is not a `T`: the caller has mixed up two operations.
    pub fn take<T: 'static>(&self) -> Option<T> {
        let mut state = self.0.lock();
        match std::mem::take(&mut *state) {
            State::Completed(completion) => {
                let completion = completion.downcast::<T>();
                Some(*completion.unwrap_or_else(|_| panic!("a completion of another operation")))
            }
            other => {
                *state = other;
                None
            }
        }
    }

    /// Takes the future out, for the caller of an operation that is pending.
    pub fn take_future(&self) -> Option<CompletionFuture> {
        let mut state = self.0.lock();
        match std::mem::take(&mut *state) {
            State::Waiting(future) => Some(future),
            other => {
                *state = other;
                None
            }
        }
    }

    /// Puts the output of the future here; the same operation is to be called next.
    pub fn complete(&self, completion: Completion) {
        *self.0.lock() = State::Completed(completion);
    }

    /// Drops what is here: the operation will not be called again. Its effect stays.
    pub fn clear(&self) {
        let state = std::mem::take(&mut *self.0.lock());
        // A back end's destructor does not run under the lock.
        drop(state);
    }
}

impl fmt::Debug for CompletionSlot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match *self.0.lock() {
            State::Empty => "CompletionSlot(empty)",
            State::Waiting(_) => "CompletionSlot(waiting)",
            State::Completed(_) => "CompletionSlot(completed)",
        })
    }
}

impl Caller<'_> {
    /// The result of an operation that completes later. `start` begins it, and is called once.
    ///
    /// # Errors
    /// `Pending` where the caller has lent a slot; `WouldBlock` where it has not and must not wait. Else those of the future.
    pub fn complete<T, F>(&self, start: impl FnOnce() -> F) -> Result<T>
    where
        T: Send + 'static,
        F: Future<Output = Result<T>> + Send + 'static,
    {
        let Some(slot) = self.completion else {
            return if self.may_block { block_on(start()) } else { Err(VfsError::WouldBlock) };
        };
        if let Some(result) = slot.take::<Result<T>>() {
            return result;
        }
        let future = start();
        slot.leave(Box::pin(async move { Box::new(future.await) as Completion }));
        Err(VfsError::Pending)
    }
}

/// Calls an operation until it is no longer pending, and waits for its completions on this thread.
///
/// # Errors
/// Those of the operation.
pub fn drive<T>(caller: &Caller<'_>, mut operation: impl FnMut(&Caller<'_>) -> Result<T>) -> Result<T> {
    let slot = CompletionSlot::default();
    let caller = Caller { completion: Some(&slot), ..*caller };
    loop {
        match operation(&caller) {
            Err(VfsError::Pending) => {}
            done => return done,
        }
        let future = slot.take_future().expect("a pending operation leaves a future");
        slot.complete(block_on(future));
    }
}

/// A back end whose operations are never pending: each one waits for its completion on the thread that calls it.
///
/// Programs that call a back end from plain code, and the conformance suite, use one that completes operations later by this
/// layer.
#[derive(Clone)]
pub struct Driven {
    inner: Arc<dyn Vfs>,
    caps: FsCaps,
}

impl Driven {
    /// Drives the operations of `inner`.
    pub fn new(inner: Arc<dyn Vfs>) -> Interposed<Self> {
        let caps = FsCaps { completes_later: false, ..inner.caps().clone() };
        Interposed(Self { inner, caps })
    }
}

impl Interpose for Driven {
    fn inner(&self) -> &dyn Vfs {
        &*self.inner
    }

    fn caps(&self) -> &FsCaps {
        &self.caps
    }

    fn operation<T: Clone + Send + 'static>(
        &self,
        caller: &Caller<'_>,
        _: Operation,
        run: &mut dyn FnMut(&Caller<'_>) -> Result<T>,
    ) -> Result<T> {
        drive(caller, run)
    }
}

/// Waits for a future on this thread.
fn block_on<F: Future>(future: F) -> F::Output {
    struct Unpark(Thread);

    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }

    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut future = pin!(future);
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return output;
        }
        thread::park();
    }
}

#[cfg(test)]
mod tests {
    use std::{
        cell::Cell,
        sync::mpsc::{self, Receiver},
    };

    use super::*;
    use crate::Cred;

    /// A future that another thread completes.
    struct FromThread(Receiver<Waker>, Option<u32>);

    fn later(value: u32) -> impl Future<Output = Result<u32>> + Send {
        let (send, wakers) = mpsc::channel::<Waker>();
        thread::spawn(move || {
            // Completed by the second poll, wherever that comes from.
            send.send(Waker::noop().clone()).unwrap();
        });
        let mut from = FromThread(wakers, Some(value));
        std::future::poll_fn(move |cx| match from.1.take() {
            Some(value) if from.0.try_recv().is_ok() => Poll::Ready(Ok(value)),
            Some(value) => {
                from.1 = Some(value);
                cx.waker().wake_by_ref();
                Poll::Pending
            }
            None => panic!("polled after completion"),
        })
    }

    #[test]
    fn errors_and_results_stay_small() {
        assert_eq!(size_of::<VfsError>(), 1);
        assert_eq!(size_of::<Result<()>>(), 1);
        assert_eq!(size_of::<Caller<'_>>(), 3 * size_of::<usize>());
    }

    #[test]
    fn a_pending_operation_is_started_once_and_collected_by_the_next_call() {
        let (slot, starts, cred) = (CompletionSlot::default(), Cell::new(0), Cred::root());
        let caller = Caller { completion: Some(&slot), ..Caller::nonblocking(&cred) };
        let operation = || {
            caller.complete(|| {
                starts.set(starts.get() + 1);
                later(7)
            })
        };
        assert_eq!(operation(), Err(VfsError::Pending));
        let future = slot.take_future().unwrap();
        slot.complete(block_on(future));
        assert_eq!((operation(), starts.get()), (Ok(7), 1));
        assert_eq!((operation(), starts.get()), (Err(VfsError::Pending), 2), "the next operation is another one");
    }

    #[test]
    fn a_caller_without_a_slot_blocks_if_it_may_and_else_starts_nothing() {
        let cred = Cred::root();
        assert_eq!(Caller::blocking(&cred).complete(|| later(7)), Ok(7));
        let refused = Caller::nonblocking(&cred).complete(|| {
            panic!("it has been started");
            #[expect(unreachable_code)]
            later(7)
        });
        assert_eq!(refused, Err(VfsError::WouldBlock));
    }

    #[test]
    fn drive_waits_for_every_stage() {
        let stages = Cell::new(0);
        let result = drive(&Caller::nonblocking(&Cred::root()), |caller| {
            let slot = caller.completion.unwrap();
            match slot.take::<u32>() {
                Some(3) => Ok("done"),
                stage => {
                    stages.set(stages.get() + 1);
                    let next = stage.unwrap_or(0) + 1;
                    slot.leave(Box::pin(async move { Box::new(later(next).await.unwrap()) as Completion }));
                    Err(VfsError::Pending)
                }
            }
        });
        assert_eq!((result, stages.get()), (Ok("done"), 3));
    }
}
