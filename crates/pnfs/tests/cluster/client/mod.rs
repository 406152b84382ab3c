//! A client: it reads and writes by the metadata server and, with layouts, at the data servers, and checks what it sees.

mod direct;

use std::{future::Future, ops::Range, sync::Arc, time::Duration};

use buf::{Pool, Rope};
use entropy::HashMap;
use futures_util::future::join;
use parking_lot::Mutex;
use tokio::time::{Instant, sleep, timeout};
use vfs::{CreateMode, Handle, Name, Report, SetAttr, Stability, Time, Vfs, VfsError, layout::LayoutMode};

use crate::{
    CELL, CELLS, LEASE, Lost, World, chance,
    faults::{Fault, Part},
    mds::{ClientId, Copy, Grant, Mds},
    oracle::{Model, WriteId},
    session::Repetition,
};

/// A client.
pub struct Client {
    number: usize,
    world: Arc<World>,
    state: Mutex<State>,
    /// Held while the client uses a layout.
    io: tokio::sync::Mutex<()>,
}

struct State {
    /// The number of starts of this client.
    instance: u64,
    /// The time until which the client may use layouts.
    lease: Instant,
    layouts: HashMap<Handle, Layout>,
    dirty: HashMap<Handle, Vec<Dirty>>,
    /// `true` if the client does not answer recalls, and uses its layouts for ever.
    rogue: bool,
    done: bool,
}

#[derive(Clone)]
struct Layout {
    mode: LayoutMode,
    grant: Grant,
    /// The process that granted it.
    mds: u64,
    /// The number of the layout. Writes belong to one.
    serial: u64,
    granted: Time,
}

/// A write that is not durable, or whose size is not.
#[derive(Clone)]
struct Dirty {
    write: WriteId,
    cells: Range<usize>,
    value: u32,
    how: How,
}

#[derive(Clone)]
enum How {
    Proxied([u8; 8]),
    /// The number of the layout, and the verifiers of unstable writes.
    Direct(u64, Vec<(Copy, Option<u64>)>),
}

impl Client {
    pub fn new(number: usize, world: &Arc<World>) -> Arc<Self> {
        let (layouts, dirty) = Default::default();
        let state = State { instance: 0, lease: Instant::now(), layouts, dirty, rogue: false, done: false };
        let client = Self { number, world: world.clone(), state: Mutex::new(state), io: Default::default() };
        Arc::new(client)
    }

    fn id(&self) -> ClientId {
        (self.number, self.state.lock().instance)
    }

    /// Works until the work is done.
    pub async fn run(self: Arc<Self>) {
        tokio::spawn(self.clone().renew());
        tokio::spawn(self.clone().answer());
        for _ in 0..entropy::random_range(6..20) {
            if self.world.has_failed() {
                break;
            }
            sleep(Duration::from_millis(entropy::random_range(0..3000))).await;
            self.step().await;
        }
        // Many programs close their files before they end. A client that does not answer recalls does not return its layouts either: it would
        // have to report the writes that it has sent to some copies only.
        if chance(0.5) && !self.state.lock().rogue {
            let files: Vec<_> = self.state.lock().dirty.keys().cloned().collect();
            for file in files {
                self.fsync(&file).await;
            }
        }
        self.abandon();
        self.state.lock().done = true;
    }

    /// Notes that the client may end without committing its writes.
    fn abandon(&self) {
        let dirty = self.state.lock().dirty.clone();
        for (file, writes) in dirty {
            let direct = writes.iter().filter(|dirty| matches!(dirty.how, How::Direct(..)));
            direct.for_each(|dirty| self.model(&file, |model, _| model.abandon(dirty.write)));
        }
    }

    /// Executes one operation.
    async fn step(&self) {
        let name = ["one", "two"][entropy::random_range(0..2)];
        let what = entropy::random_range(0..100);
        if self.state.lock().rogue {
            return self.step_as_rogue(what).await;
        }
        if what < 3 {
            return self.remove(name).await;
        }
        if what < 5 {
            return self.rename(name).await;
        }
        let Some(file) = self.open(name).await else { return };
        let first = entropy::random_range(0..CELLS - 1);
        let cells = first..(first + entropy::random_range(1..7)).min(CELLS);
        match what {
            5..20 => self.write_by_mds(&file, cells).await,
            20..45 => self.write_directly(&file, cells).await,
            45..58 => drop(self.read_by_mds(&file).await),
            58..72 => self.read_directly(&file).await,
            72..80 => self.fsync(&file).await,
            80..88 => self.truncate(&file, entropy::random_range(0..CELLS)).await,
            88..92 => self.return_layouts(&file).await,
            92..97 => drop(self.look(&file).await),
            97..98 if self.world.has_faults() => {
                self.world.count(Part::ClientSilent);
                self.state.lock().rogue = true;
            }
            98 if self.world.has_faults() => {
                self.world.count(Part::ClientEnded);
                self.restart();
            }
            _ => {}
        }
    }

    /// The client ends, and another one starts.
    fn restart(&self) {
        self.abandon();
        let mut state = self.state.lock();
        state.instance += 1;
        state.layouts.clear();
        state.dirty.clear();
        state.rogue = false;
        self.world.log(format!("client {} restarts", self.number));
    }

    /// Renews the lease.
    async fn renew(self: Arc<Self>) {
        while !self.state.lock().done {
            let (began, id) = (Instant::now(), self.id());
            if !self.state.lock().rogue {
                let renewed = self.call(move |mds| async move { mds.renew(id) });
                if let Ok(Ok((revoked, number))) = timeout(LEASE, renewed).await {
                    let mut state = self.state.lock();
                    state.lease = began + LEASE;
                    state.layouts.retain(|_, layout| layout.mds == number && !revoked.contains(&layout.grant.holder));
                }
            }
            sleep(LEASE / 3).await;
        }
    }

    /// Answers recalls.
    async fn answer(self: Arc<Self>) {
        while !self.state.lock().done {
            sleep(Duration::from_millis(500)).await;
            let Some(mds) = self.world.mds().filter(|_| !self.world.is_cut(self.number)) else { continue };
            let files = mds.callbacks(self.id());
            if self.state.lock().rogue {
                continue;
            }
            for file in files {
                // The metadata server sends the recall again.
                if self.world.faults.occurs(Fault::RecallDelayed, 0.1) {
                    continue;
                }
                self.return_layouts(&file).await;
            }
        }
    }

    /// Sends an operation to the metadata server. A client that sees another process has lost its layouts.
    async fn call<T, F>(&self, operation: impl Fn(Arc<Mds>) -> F + Send + Sync + 'static) -> Result<(T, u64), Lost>
    where
        T: Send + 'static,
        F: Future<Output = T> + Send + 'static,
    {
        self.call_as(Repetition::Harmless, operation).await
    }

    /// Like [`call`](Self::call), for an operation that must be executed once.
    async fn call_once<T, F>(&self, operation: impl Fn(Arc<Mds>) -> F + Send + Sync + 'static) -> Result<(T, u64), Lost>
    where
        T: Send + 'static,
        F: Future<Output = T> + Send + 'static,
    {
        self.call_as(Repetition::Harmful, operation).await
    }

    async fn call_as<T, F>(
        &self,
        repetition: Repetition,
        operation: impl Fn(Arc<Mds>) -> F + Send + Sync + 'static,
    ) -> Result<(T, u64), Lost>
    where
        T: Send + 'static,
        F: Future<Output = T> + Send + 'static,
    {
        let (result, number) = self.world.rpc(self.number, repetition, operation).await?;
        self.state.lock().layouts.retain(|_, layout| layout.mds == number);
        Ok((result, number))
    }

    fn model<T>(&self, file: &Handle, run: impl FnOnce(&mut Model, u64) -> T) -> T {
        self.world.model(file, run)
    }

    fn check(&self, file: &Handle, what: &str, check: impl FnOnce(&mut Model, u64) -> Result<(), String>) {
        if let Err(violation) = self.model(file, check) {
            self.world.fail(format!("client {}, {what}: {violation}", self.number));
        }
    }

    fn begin(&self, file: &Handle, cells: Range<usize>) -> (WriteId, u32) {
        let value = self.world.value();
        let write = self.model(file, |model, now| model.begin(value, cells.clone(), now));
        self.world.log(format!("client {} writes {value} to {cells:?} of {file:?}", self.number));
        (write, value)
    }

    async fn open(&self, name: &'static str) -> Option<Handle> {
        let created = self.call_once(move |mds| async move {
            let (root, mode) = (mds.pnfs.root(), CreateMode::Unchecked(SetAttr::default()));
            let name = Name::new(name.as_bytes())?;
            mds.run(|pnfs, caller| pnfs.create(caller, &root, name, &mode)).await
        });
        created.await.ok()?.0.ok().map(|created| created.handle)
    }

    async fn remove(&self, name: &'static str) {
        let removed = self.call_once(move |mds| async move {
            let (root, name) = (mds.pnfs.root(), Name::new(name.as_bytes())?);
            mds.run(|pnfs, caller| pnfs.remove(caller, &root, name)).await
        });
        let removed = removed.await.map(|(removed, _)| removed.map(drop));
        self.world.log(format!("client {} removes {name}: {removed:?}", self.number));
    }

    async fn rename(&self, name: &'static str) {
        let to = if name == "one" { "two" } else { "one" };
        let renamed = self.call_once(move |mds| async move {
            let root = mds.pnfs.root();
            let (from, to) = (Name::new(name.as_bytes())?, Name::new(to.as_bytes())?);
            mds.run(|pnfs, caller| pnfs.rename(caller, &root, from, &root, to)).await
        });
        let renamed = renamed.await.map(|(renamed, _)| renamed.map(drop));
        self.world.log(format!("client {} renames {name}: {renamed:?}", self.number));
    }

    async fn write_by_mds(&self, file: &Handle, cells: Range<usize>) {
        let (write, value) = self.begin(file, cells.clone());
        let stable = if value.is_multiple_of(2) { Stability::DataSync } else { Stability::FileSync };
        let stability = if chance(0.5) { Stability::Unstable } else { stable };
        self.send_write(file, (write, cells, value), stability).await;
    }

    /// Executes a write by the metadata server until it answers. Errors of a repeated write are tried again.
    async fn send_write(
        &self,
        file: &Handle,
        (write, cells, value): (WriteId, Range<usize>, u32),
        stability: Stability,
    ) {
        let _writing = self.world.lock(file, &cells).await;
        let (data, offset) = (bytes(value, cells.len()), (cells.start * CELL) as u64);
        let mut attempts = 3;
        let verifier = loop {
            let (to, data) = (file.clone(), Rope::from(bytes::Bytes::from(data.clone())));
            let written = self.call(move |mds| {
                let (to, data) = (to.clone(), data.clone());
                async move {
                    // Like the server: the write may be lost while it is in progress.
                    let verifier = mds.pnfs.write_verifier();
                    let written =
                        mds.run(|pnfs, caller| pnfs.write(caller, &to, offset, &data, stability, Report::Nothing));
                    written.await.map(|_| verifier)
                }
            });
            match written.await {
                Ok((Ok(verifier), _)) => break verifier,
                Ok((Err(VfsError::Io | VfsError::NoSpace | VfsError::Delay), _)) if attempts > 0 => attempts -= 1,
                Ok((Err(_), _)) => return self.model(file, |model, now| model.fail(write, now)),
                // The process has ended: the client asks the next one.
                Err(_) => {}
            }
            sleep(Duration::from_secs(1)).await;
        };
        self.world.log(format!("client {} has written {value} {stability:?}", self.number));
        let durable = stability != Stability::Unstable;
        self.model(file, |model, now| {
            model.acknowledge(write, now);
            if durable {
                model.make_durable(write, now);
            }
            model.size(write, durable, now);
        });
        if !durable {
            let dirty = Dirty { write, cells, value, how: How::Proxied(verifier) };
            self.state.lock().dirty.entry(file.clone()).or_default().push(dirty);
        }
    }

    /// Makes all writes to a file durable.
    async fn fsync(&self, file: &Handle) {
        let repeated = {
            let _io = self.io.lock().await;
            self.flush(file).await
        };
        if !repeated.is_empty() {
            self.return_layouts(file).await;
            self.repeat(file, repeated).await;
        }
        self.commit_by_mds(file).await;
    }

    async fn repeat(&self, file: &Handle, writes: Vec<Dirty>) {
        for Dirty { write, cells, value, .. } in writes {
            self.world.log(format!("client {} repeats {value}", self.number));
            self.model(file, |model, _| model.repeat(write));
            self.send_write(file, (write, cells, value), Stability::FileSync).await;
        }
    }

    fn made_durable(&self, file: &Handle, writes: &[Dirty]) {
        self.model(file, |model, now| {
            for dirty in writes {
                model.make_durable(dirty.write, now);
                model.size(dirty.write, true, now);
            }
        });
        let values: Vec<_> = writes.iter().map(|dirty| dirty.value).collect();
        self.world.log(format!("client {} has made {values:?} durable", self.number));
    }

    async fn commit_by_mds(&self, file: &Handle) {
        let dirty = self.state.lock().dirty.get(file).cloned().unwrap_or_default();
        let dirty: Vec<_> = dirty.into_iter().filter(|dirty| matches!(dirty.how, How::Proxied(_))).collect();
        if dirty.is_empty() {
            return;
        }
        let committed = loop {
            let of = file.clone();
            let committed = self.call(move |mds| {
                let of = of.clone();
                async move {
                    let committed = mds.run(|pnfs, caller| pnfs.commit(caller, &of, 0, 0)).await;
                    committed.map(|_| mds.pnfs.write_verifier())
                }
            });
            if let Ok((committed, _)) = committed.await {
                break committed;
            }
        };
        let Ok(now) = committed else { return };
        if let Some(all) = self.state.lock().dirty.get_mut(file) {
            all.retain(|other| !dirty.iter().any(|done| done.write == other.write));
        }
        let is_kept = |dirty: &Dirty| matches!(dirty.how, How::Proxied(verifier) if verifier == now);
        let (kept, lost): (Vec<_>, Vec<_>) = dirty.into_iter().partition(is_kept);
        self.made_durable(file, &kept);
        self.repeat(file, lost).await;
    }

    /// Returns the layouts of a file.
    async fn return_layouts(&self, file: &Handle) {
        let io = self.io.lock().await;
        // Since this recall, the client has decided to ignore recalls.
        if self.state.lock().rogue {
            return;
        }
        let repeated = self.flush(file).await;
        let held = self.state.lock().layouts.remove(file);
        if held.is_some() {
            let (of, id) = (file.clone(), self.id());
            let returned = self.call(move |mds| {
                let of = of.clone();
                async move { mds.return_layouts(id, &of).await }
            });
            let returned = returned.await.map(|(returned, _)| returned);
            self.world.log(format!("client {} returns its layouts: {returned:?}", self.number));
        }
        drop(io);
        self.repeat(file, repeated).await;
    }

    /// Truncates a file. Like Linux, the client keeps its layout, and may commit earlier writes during the truncation or later.
    async fn truncate(&self, file: &Handle, size: usize) {
        let commits_before = chance(0.4);
        if commits_before {
            self.fsync(file).await;
        }
        let commits = async {
            if !commits_before && chance(0.7) {
                sleep(Duration::from_millis(entropy::random_range(0..10))).await;
                self.fsync(file).await;
            }
        };
        join(self.set_size(file, size), commits).await;
    }

    async fn set_size(&self, file: &Handle, size: usize) {
        let write = self.model(file, |model, now| model.begin_truncation(size, now));
        self.world.log(format!("client {} truncates {file:?} to {size}", self.number));
        let done = loop {
            let (of, id) = (file.clone(), self.id());
            let done = self.call_once(move |mds| {
                let of = of.clone();
                async move { mds.truncate(id, &of, (size * CELL) as u64).await }
            });
            if let Ok((done, _)) = done.await {
                break done;
            }
        };
        self.world.log(format!("client {} has truncated to {size}: {done:?}", self.number));
        self.model(file, |model, now| match done {
            Ok(()) => {
                model.make_durable(write, now);
                model.size(write, true, now);
            }
            Err(_) => model.fail(write, now),
        });
    }

    /// Reads and checks the attributes. Returns the size in bytes.
    async fn look(&self, file: &Handle) -> Option<usize> {
        let (of, from) = (file.clone(), self.world.tick());
        let attr = self.call(move |mds| {
            let of = of.clone();
            async move { mds.run(|pnfs, caller| pnfs.getattr(caller, &of)).await }
        });
        let attr = attr.await.ok()?.0.ok()?;
        let size = attr.size as usize;
        self.check(file, "attributes", |model, to| {
            model.check_size(size / CELL, (from, to))?;
            model.check_times(attr.change, attr.mtime, (from, to))
        });
        Some(size)
    }

    /// Checks a file when nothing fails: it can be read, and has the right size and contents.
    pub async fn check_whole(&self, file: &Handle) {
        let is_written = self.world.mds().iter().any(|mds| mds.is_written(file));
        self.model(file, |model, _| model.is_at_rest = !is_written);
        if self.look(file).await.is_none() || !self.read_by_mds(file).await {
            self.world.fail(format!("invariant 1: {file:?} cannot be read at the end"));
        }
    }

    async fn read_by_mds(&self, file: &Handle) -> bool {
        let (of, from) = (file.clone(), self.world.tick());
        let read = self.call(move |mds| {
            let of = of.clone();
            async move {
                let pool = Pool::default();
                mds.run(|pnfs, caller| pnfs.read(caller, &of, 0, CELLS * CELL, &pool, false)).await
            }
        });
        let Ok((Ok(read), _)) = read.await else { return false };
        let data = read.data.to_bytes().expect("the data must be memory");
        self.check(file, "a read by the metadata server", |model, to| {
            model.check(0, &cells(&data)?, (from, to))?;
            model.check_size(data.len() / CELL, (from, to))
        });
        true
    }
}

/// Returns the bytes of cells with a value.
fn bytes(value: u32, cells: usize) -> Vec<u8> {
    value.to_be_bytes().repeat(cells * CELL / 4)
}

/// Returns the values of cells.
///
/// # Errors
/// Returns an error if a cell has more than one value.
pub fn cells(data: &[u8]) -> Result<Vec<u32>, String> {
    let value = |cell: &[u8]| {
        let value = cell.first_chunk().copied().map(u32::from_be_bytes);
        let whole = |value: &u32| cell.len() == CELL && cell.chunks(4).all(|part| part == value.to_be_bytes());
        value.filter(whole).ok_or_else(|| format!("a cell has parts of several writes: {cell:?}"))
    };
    data.chunks(CELL).map(value).collect()
}
