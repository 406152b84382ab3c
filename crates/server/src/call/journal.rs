//! [`Journal`]: executes each file system operation of a call once, although the call is run several times.
//!
//! A procedure of version 3, or an operation of a COMPOUND, is a plain function that calls several operations of the file
//! system. Where one of these is pending ([`vfs::pending`]), the function is left, its worker awaits the completion, and the
//! function runs again from its start. The journal makes that safe:
//!
//! - The result of each operation that has been executed is kept, and the next run gets it from here. So an operation has
//!   its effect once, and all runs of the function take the same way.
//! - Once an operation is pending, no further one is executed in this run. The run is void, whatever it returns.
//! - Checks and effects outside of the file system that come before an operation (recalls of delegations, shares) are passed
//!   once as well: [`Journal::once`].
//!
//! Results are found by a key: the operation and its arguments. If state of the server has changed between two runs, so that the
//! function takes another way, it never gets the result of another operation. The effect of the one that it no
//! longer asks for stays.
//!
//! Only exports whose back end completes operations later ([`FsCaps::completes_later`](vfs::FsCaps::completes_later)) have a
//! journal. For all others, nothing is kept and nothing is allocated.
//!
//! When the call is dropped, its permits are returned, and the effects of its operations stay.

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

/// The operations of one call.
pub(crate) struct Journal {
    source: Source,
    /// Of the operation that is pending.
    slot: CompletionSlot,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    kept: Vec<Kept>,
    /// The operation whose future or completion is in the slot.
    current: Option<u64>,
    /// That operation has been left in this run.
    pending: bool,
    permits: SmallVec<[(ExportId, Permit); 1]>,
}

struct Kept {
    key: u64,
    /// This run has asked for it.
    used: bool,
    result: Box<dyn Any + Send>,
}

impl Journal {
    /// An empty one, for a call of `source`.
    pub(crate) fn new(source: Source) -> Self {
        Self { source, slot: CompletionSlot::default(), state: Mutex::default() }
    }

    /// Whether an operation is pending. What the run has returned is then void.
    pub(crate) fn is_pending(&self) -> bool {
        self.state.lock().pending
    }

    /// Begins another run.
    pub(crate) fn rewind(&self) {
        let mut state = self.state.lock();
        state.pending = false;
        state.kept.iter_mut().for_each(|kept| kept.used = false);
    }

    /// Forgets the results: the function has run to its end. The call goes on with another one.
    pub(crate) fn clear(&self) {
        let mut state = self.state.lock();
        let kept = std::mem::take(&mut state.kept);
        state.current = None;
        drop(state);
        self.slot.clear();
        drop(kept);
    }

    /// Waits for the operation that is pending, if there is one.
    pub(crate) async fn complete(&self) {
        if let Some(future) = self.slot.take_future() {
            let completion = future.await;
            self.slot.complete(completion);
        }
    }

    /// Passes a check, or has an effect, once in all runs. It is passed again if it has failed.
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

    /// Keeps a value until the function has run to its end; one for each key.
    pub(crate) fn hold<T: Send + 'static>(&self, key: impl Hash, value: T) {
        let key = KEYS.hash_one(key);
        let mut state = self.state.lock();
        if !state.kept.iter().any(|kept| kept.key == key) {
            state.keep(key, value);
        }
    }

    /// Drops a value that is [held](Self::hold).
    pub(crate) fn release(&self, key: impl Hash) {
        let key = KEYS.hash_one(key);
        let mut state = self.state.lock();
        if let Some(at) = state.kept.iter().position(|kept| kept.key == key) {
            drop(state.kept.remove(at));
        }
    }

    /// The result that an earlier run has got; `None` if the operation is to be executed.
    ///
    /// # Errors
    /// `WouldBlock` while another operation is pending; `Delay` if there is no permit for this call.
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
            // The completion of an operation that this run does not ask for.
            self.slot.clear();
        }
        Ok(None)
    }

    /// Keeps the result of an operation, unless it is to be executed again.
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

/// The back end of an export, by way of a journal. An operation that is pending ends with
/// [`WouldBlock`](VfsError::WouldBlock), and [`Journal::is_pending`] tells why.
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

        /// Completes the operation that is pending, and begins another run.
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
    fn while_an_operation_is_pending_no_other_one_is_executed() {
        let (world, cred) = (World::new(), Cred::root());
        let (fs, caller) = (world.vfs(), Caller::nonblocking(&cred));
        let (root, name) = (fs.root(), Name::new(b"d").unwrap());
        let mkdir = || fs.mkdir(&caller, &root, name, &SetAttr::default());
        assert_eq!(fs.getattr(&caller, &root).unwrap_err(), WOULD_BLOCK);
        // Code that does not look at the error goes on.
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
    fn a_run_that_takes_another_way_gets_no_result_of_another_operation() {
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
        assert_ne!(made.handle, found(b"a"), "its effect stays");
    }

    #[test]
    fn equal_operations_have_a_result_each_in_their_order() {
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
        assert_eq!(world.fs.0.executed("getattr"), 3, "the next operation of the compound asks anew");
    }

    #[test]
    fn a_held_value_and_a_permit_end_with_what_they_are_for() {
        let (world, cred) = (World::new(), Cred::root());
        let held = Arc::new(());
        (0..3).for_each(|_| world.journal.hold("change", held.clone()));
        assert_eq!(Arc::strong_count(&held), 2, "one for each key");
        world.journal.rewind();
        assert_eq!(Arc::strong_count(&held), 2);
        world.journal.clear();
        assert_eq!(Arc::strong_count(&held), 1);
        let fs = world.vfs();
        assert_eq!(fs.getattr(&Caller::nonblocking(&cred), &fs.root()).unwrap_err(), WOULD_BLOCK);
        assert!(world.limit.admit(Source::Server).is_none(), "one host has half of two");
        let limit = world.limit.clone();
        drop((fs, world));
        assert!(limit.admit(Source::Server).is_some());
    }
}
