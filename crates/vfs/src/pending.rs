//! Operations that complete later.
//!
//! A back end that waits for something other than this machine's storage (another server, an io_uring) does not occupy
//! a thread while it waits. The back end and its caller use this protocol:
//!
//! 1. The caller provides a [`CompletionSlot`] in [`Caller::completion`].
//! 2. The operation starts its work, leaves a future in the slot, and returns [`VfsError::Pending`]. It may already
//!    have had its effect, and has it exactly once.
//! 3. The caller awaits the future on any thread ([`CompletionSlot::take_future`]), puts its output back
//!    ([`CompletionSlot::complete`]), and calls the same operation again with the same arguments and the same slot.
//! 4. The operation takes its completion from the slot and returns its result. If it has several stages, it can return
//!    `Pending` again.
//!
//! Dropping a future does not undo the effect. If the caller has no slot, the operation does not return `Pending`: it
//! blocks if it may, and otherwise returns [`VfsError::WouldBlock`] without an effect. [`Caller::complete`] implements
//! all of this for a back end that has a future of its result.
//!
//! An operation that need not wait ignores the slot.

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

/// The output of a back end's future, which the same operation takes when it is called again. It is opaque to the
/// caller.
pub type Completion = Box<dyn Any + Send>;

/// The future of a completion. It can be polled on any thread, and must not need a runtime.
pub type CompletionFuture = Pin<Box<dyn Future<Output = Completion> + Send>>;

/// The slot for the future and the completion of one operation.
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
    /// Stores a future. The back end calls this before it returns [`VfsError::Pending`].
    pub fn leave(&self, future: CompletionFuture) {
        *self.0.lock() = State::Waiting(future);
    }

    /// Takes the completion. The back end calls this.
    ///
    /// # Panics
    /// Panics if the completion is not a `T`, because the caller has then confused two operations.
    pub fn take<T: 'static>(&self) -> Option<T> {
        let mut state = self.0.lock();
        match std::mem::take(&mut *state) {
            State::Completed(completion) => {
                let completion = completion.downcast::<T>();
                Some(*completion.unwrap_or_else(|_| panic!("completion belongs to another operation")))
            }
            other => {
                *state = other;
                None
            }
        }
    }

    /// Takes the future. The caller of a pending operation calls this.
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

    /// Stores the output of the future. The caller must call the same operation next.
    pub fn complete(&self, completion: Completion) {
        *self.0.lock() = State::Completed(completion);
    }

    /// Drops the contents, because the operation will not be called again. Its effect is not undone.
    pub fn clear(&self) {
        let state = std::mem::take(&mut *self.0.lock());
        // The destructor of a back end must not run under the lock.
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
    /// Returns the result of an operation that completes later. `start` begins the operation, and is called once.
    ///
    /// # Errors
    /// Returns `Pending` if the caller has a slot, and `WouldBlock` if it has none and must not block. Otherwise
    /// returns the errors of the future.
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

/// Calls an operation until it is no longer pending, and blocks this thread until each completion.
///
/// # Errors
/// Returns the errors of the operation.
pub fn drive<T>(caller: &Caller<'_>, mut operation: impl FnMut(&Caller<'_>) -> Result<T>) -> Result<T> {
    let slot = CompletionSlot::default();
    let caller = Caller { completion: Some(&slot), ..*caller };
    loop {
        match operation(&caller) {
            Err(VfsError::Pending) => {}
            done => return done,
        }
        let future = slot.take_future().expect("pending operation must leave a future");
        slot.complete(block_on(future));
    }
}

/// A back end whose operations are never pending: each blocks the calling thread until its completion.
///
/// Programs that call a back end from synchronous code, and the conformance suite, wrap a back end whose operations
/// complete later in this layer.
#[derive(Clone)]
pub struct Driven {
    inner: Arc<dyn Vfs>,
    caps: FsCaps,
}

impl Driven {
    /// Creates the layer over `inner`.
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

/// Blocks this thread until a future is ready.
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
            // The second poll completes the future, on whatever thread it happens.
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
    fn pending_operation_starts_once_and_next_call_gets_its_result() {
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
        assert_eq!(
            (operation(), starts.get()),
            (Err(VfsError::Pending), 2),
            "the next call must start another operation"
        );
    }

    #[test]
    fn caller_without_slot_blocks_or_starts_nothing() {
        let cred = Cred::root();
        assert_eq!(Caller::blocking(&cred).complete(|| later(7)), Ok(7));
        let refused = Caller::nonblocking(&cred).complete(|| {
            panic!("the operation must not start");
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
