//! [`Journal`]: executes each file system operation of a call once, although the call is run several times.
//!
//! A procedure of NFSv3, or an operation of a COMPOUND, is a plain function that calls several operations of the file
//! system. If one of these is pending ([`vfs::pending`]), the function returns, its worker awaits the completion, and
//! the function runs again from its start. The journal makes that safe:
//!
//! - It keeps the result of each executed operation, and later runs get the result from it. So an operation has its
//!   effect once, and all runs of the function take the same branches.
//! - While an operation is pending, no other operation is executed. The run is void, whatever it returns.
//! - Checks and effects outside of the file system that precede an operation (recalls of delegations, shares) are
//!   executed once as well: [`Journal::once`].
//!
//! The key of a result consists of the operation and its arguments. If state of the server has changed between two
//! runs, so that the function takes another branch, it never gets the result of another operation. The effect of an
//! operation that the function no longer calls is not undone.
//!
//! Only exports whose back end completes operations later ([`FsCaps::completes_later`](vfs::FsCaps::completes_later))
//! use a journal. For all others, nothing is kept and nothing is allocated.
//!
//! When the call is dropped, its permits are returned. The effects of its operations are not undone.

use std::{
    any::Any,
    fmt,
    hash::{BuildHasher, Hash},
    sync::Arc,
};

use foldhash::quality::FixedState;
use parking_lot::Mutex;
use smallvec::SmallVec;
use vfs::{
    Caller, CompletionSlot, Vfs, VfsError,
    interpose::{Interpose, Operation},
};

use crate::{
    blocking::{InFlight, Permit, Source},
    handle::ExportId,
};

/// The results of the operations of one call.
pub(crate) struct Journal {
    source: Source,
    /// The future or the completion of the pending operation.
    slot: CompletionSlot,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    kept: Vec<Kept>,
    /// The operation whose future or completion is in the slot.
    current: Option<u64>,
    /// `true` if that operation was pending in this run.
    pending: bool,
    permits: SmallVec<[(ExportId, Permit); 1]>,
}

struct Kept {
    key: u64,
    /// `true` if this run has already used the result.
    used: bool,
    result: Box<dyn Any + Send>,
}

impl Journal {
    /// Creates an empty journal for a call of `source`.
    pub(crate) fn new(source: Source) -> Self {
        Self { source, slot: CompletionSlot::default(), state: Mutex::default() }
    }

    /// Returns `true` if an operation is pending. The results of the run are then void.
    pub(crate) fn is_pending(&self) -> bool {
        self.state.lock().pending
    }

    /// Begins another run: all kept results can be used again.
    pub(crate) fn rewind(&self) {
        let mut state = self.state.lock();
        state.pending = false;
        state.kept.iter_mut().for_each(|kept| kept.used = false);
    }

    /// Removes all results when the function has run to its end. The call continues with another function.
    pub(crate) fn clear(&self) {
        let mut state = self.state.lock();
        let kept = std::mem::take(&mut state.kept);
        state.current = None;
        drop(state);
        self.slot.clear();
        drop(kept);
    }

    /// Awaits the pending operation, if there is one.
    pub(crate) async fn complete(&self) {
        if let Some(future) = self.slot.take_future() {
            let completion = future.await;
            self.slot.complete(completion);
        }
    }

    /// Executes a check or an effect once in all runs. If it fails, the next run executes it again.
    pub(crate) fn once<T: Clone + Send + 'static, E>(
        &self,
        key: impl Hash,
        run: impl FnOnce() -> Result<T, E>,
    ) -> Result<T, E> {
        let key = KEYS.hash_one(key);
        if let Some(kept) = self.state.lock().find(key) {
            return Ok(kept);
        }
        let value = run()?;
        self.state.lock().keep(key, value.clone());
        Ok(value)
    }

    /// Keeps a value until the function has run to its end. Does nothing if there is already a value for `key`.
    pub(crate) fn hold<T: Send + 'static>(&self, key: impl Hash, value: T) {
        let key = KEYS.hash_one(key);
        let mut state = self.state.lock();
        if !state.kept.iter().any(|kept| kept.key == key) {
            state.keep(key, value);
        }
    }

    /// Drops a value that was passed to [`hold`](Self::hold).
    pub(crate) fn release(&self, key: impl Hash) {
        let key = KEYS.hash_one(key);
        let mut state = self.state.lock();
        if let Some(at) = state.kept.iter().position(|kept| kept.key == key) {
            drop(state.kept.remove(at));
        }
    }

    /// Returns the result of an earlier run, or `None` if the operation must be executed.
    ///
    /// # Errors
    /// Returns `WouldBlock` while another operation is pending, and `Delay` if there is no permit for this call.
    fn enter<T: Clone + 'static>(
        &self,
        key: u64,
        (export, limit): (ExportId, &Arc<InFlight>),
    ) -> vfs::Result<Option<vfs::Result<T>>> {
        let mut state = self.state.lock();
        if state.pending {
            return Err(VfsError::WouldBlock);
        }
        if let Some(result) = state.find(key) {
            return Ok(Some(result));
        }
        if !state.permits.iter().any(|(of, _)| *of == export) {
            let permit = limit.admit(self.source).ok_or(VfsError::Delay)?;
            state.permits.push((export, permit));
        }
        if state.current.is_some_and(|current| current != key) {
            state.current = None;
            drop(state);
            // The slot holds the completion of an operation that this run did not call.
            self.slot.clear();
        }
        Ok(None)
    }

    /// Keeps the result of an operation, unless the operation must be executed again.
    fn leave<T: Clone + Send + 'static>(&self, key: u64, result: vfs::Result<T>) -> vfs::Result<T> {
        let mut state = self.state.lock();
        match result {
            Err(VfsError::Pending) => {
                (state.current, state.pending) = (Some(key), true);
                Err(VfsError::WouldBlock)
            }
            Err(VfsError::WouldBlock) => Err(VfsError::WouldBlock),
            result => {
                state.current = None;
                state.keep(key, result.clone());
                result
            }
        }
    }
}

impl State {
    fn find<T: Clone + 'static>(&mut self, key: u64) -> Option<T> {
        let found = |kept: &&mut Kept| kept.key == key && !kept.used && kept.result.is::<T>();
        let kept = self.kept.iter_mut().find(found)?;
        kept.used = true;
        kept.result.downcast_ref::<T>().cloned()
    }

    fn keep<T: Send + 'static>(&mut self, key: u64, value: T) {
        self.kept.push(Kept { key, used: true, result: Box::new(value) });
    }
}

impl fmt::Debug for Journal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.state.lock();
        f.debug_struct("Journal").field("kept", &state.kept.len()).field("pending", &state.pending).finish()
    }
}

/// The back end of an export behind a journal. A pending operation fails with [`WouldBlock`](VfsError::WouldBlock), and
/// [`Journal::is_pending`] returns `true`.
pub(crate) struct Journaled {
    pub(crate) vfs: Arc<dyn Vfs>,
    pub(crate) export: ExportId,
    pub(crate) limit: Arc<InFlight>,
    pub(crate) journal: Arc<Journal>,
}

impl Interpose for Journaled {
    fn inner(&self) -> &dyn Vfs {
        &*self.vfs
    }

    fn operation<T: Clone + Send + 'static>(
        &self,
        caller: &Caller<'_>,
        operation: Operation,
        run: &mut dyn FnMut(&Caller<'_>) -> vfs::Result<T>,
    ) -> vfs::Result<T> {
        let journal = &*self.journal;
        let key = KEYS.hash_one((self.export, operation.key));
        if let Some(result) = journal.enter(key, (self.export, &self.limit))? {
            return result;
        }
        let result = run(&Caller { completion: Some(&journal.slot), ..*caller });
        journal.leave(key, result)
    }
}

const KEYS: FixedState = FixedState::with_seed(1);

#[cfg(test)]
mod tests {
    use std::task::{Context, Poll, Waker};

    use testkit::deferred::{Deferred, DeferredFs, Pace};
    use vfs::{
        Cred, Name, SetAttr,
        interpose::Interposed,
        memory::{Memory, MemoryOptions},
    };

    use super::*;

    struct World {
        fs: Arc<DeferredFs>,
        limit: Arc<InFlight>,
        journal: Arc<Journal>,
    }

    impl World {
        fn new() -> Self {
            let fs = Deferred::new(Arc::new(Memory::new(MemoryOptions::default())), Pace::Manual);
            let (limit, journal) = (Arc::new(InFlight::new(2)), Arc::new(Journal::new(Source::Server)));
            Self { fs, limit, journal }
        }

        fn vfs(&self) -> Interposed<Journaled> {
            let (limit, journal) = (self.limit.clone(), self.journal.clone());
            Interposed(Journaled { vfs: self.fs.clone(), export: ExportId::of(&[b"m"]), limit, journal })
        }

        /// Completes the pending operation and begins another run.
        fn next_run(&self) {
            assert!(self.journal.is_pending());
            assert_eq!(self.fs.0.complete(1), 1);
            let mut completing = std::pin::pin!(self.journal.complete());
            let polled = completing.as_mut().poll(&mut Context::from_waker(Waker::noop()));
            assert_eq!(polled, Poll::Ready(()));
            self.journal.rewind();
        }
    }

    const WOULD_BLOCK: VfsError = VfsError::WouldBlock;

    #[test]
    fn no_operation_executes_while_another_is_pending() {
        let (world, cred) = (World::new(), Cred::root());
        let (fs, caller) = (world.vfs(), Caller::nonblocking(&cred));
        let (root, name) = (fs.root(), Name::new(b"d").unwrap());
        let mkdir = || fs.mkdir(&caller, &root, name, &SetAttr::default());
        assert_eq!(fs.getattr(&caller, &root).unwrap_err(), WOULD_BLOCK);
        // Code that ignores the error continues.
        assert_eq!(mkdir().unwrap_err(), WOULD_BLOCK);
        assert_eq!(world.fs.0.executed("mkdir"), 0);
        world.next_run();
        fs.getattr(&caller, &root).unwrap();
        assert_eq!(mkdir().unwrap_err(), WOULD_BLOCK);
        world.next_run();
        let before = fs.getattr(&caller, &root).unwrap();
        mkdir().unwrap();
        assert_eq!(before.nlink, 2, "the result of the first run");
        assert_eq!(["getattr", "mkdir"].map(|operation| world.fs.0.executed(operation)), [1, 1]);
    }

    #[test]
    fn run_that_branches_differently_gets_no_result_of_another_operation() {
        let (world, cred) = (World::new(), Cred::root());
        let (fs, caller) = (world.vfs(), Caller::nonblocking(&cred));
        let root = fs.root();
        let mkdir = |name: &[u8]| fs.mkdir(&caller, &root, Name::new(name).unwrap(), &SetAttr::default());
        assert_eq!(mkdir(b"a").unwrap_err(), WOULD_BLOCK);
        world.next_run();
        assert_eq!(mkdir(b"b").unwrap_err(), WOULD_BLOCK);
        world.next_run();
        let made = mkdir(b"b").unwrap();
        let tree = world.fs.0.tree();
        let found = |name: &[u8]| tree.lookup(&caller, &root, Name::new(name).unwrap()).unwrap().0;
        assert_eq!(made.handle, found(b"b"));
        assert_ne!(made.handle, found(b"a"), "the effect must not be undone");
    }

    #[test]
    fn equal_operations_get_their_results_in_order() {
        let (world, cred) = (World::new(), Cred::root());
        let (fs, caller) = (world.vfs(), Caller::nonblocking(&cred));
        let root = fs.root();
        world.fs.0.hold(false);
        let first = fs.getattr(&caller, &root).unwrap().nlink;
        fs.mkdir(&caller, &root, Name::new(b"d").unwrap(), &SetAttr::default()).unwrap();
        let second = fs.getattr(&caller, &root).unwrap().nlink;
        assert_ne!(first, second);
        world.journal.rewind();
        assert_eq!([(); 2].map(|()| fs.getattr(&caller, &root).unwrap().nlink), [first, second]);
        assert_eq!(world.fs.0.executed("getattr"), 2);
        world.journal.clear();
        assert_eq!(fs.getattr(&caller, &root).unwrap().nlink, second);
        assert_eq!(world.fs.0.executed("getattr"), 3, "the next operation of the compound must execute anew");
    }

    #[test]
    fn held_values_and_permits_are_dropped_with_function_and_call() {
        let (world, cred) = (World::new(), Cred::root());
        let held = Arc::new(());
        (0..3).for_each(|_| world.journal.hold("change", held.clone()));
        assert_eq!(Arc::strong_count(&held), 2, "one value for each key");
        world.journal.rewind();
        assert_eq!(Arc::strong_count(&held), 2);
        world.journal.clear();
        assert_eq!(Arc::strong_count(&held), 1);
        let fs = world.vfs();
        assert_eq!(fs.getattr(&Caller::nonblocking(&cred), &fs.root()).unwrap_err(), WOULD_BLOCK);
        assert!(world.limit.admit(Source::Server).is_none(), "one host must get half of two permits");
        let limit = world.limit.clone();
        drop((fs, world));
        assert!(limit.admit(Source::Server).is_some());
    }
}
