//! A client: it reads and writes by the metadata server and, with layouts, at the data servers, and checks what it sees.

use std::{future::Future, ops::Range, sync::Arc, time::Duration};

use buf::{Pool, Rope};
use entropy::HashMap;
use futures_util::future::join_all;
use parking_lot::Mutex;
use pnfs::{ServerError, record::Object};
use tokio::time::{Instant, sleep, timeout};
use vfs::{
    CreateMode, Handle, Name, Report, SetAttr, Stability, Vfs, VfsError,
    layout::{DataError, DataFailure, DataOperation, LayoutDeviceId, LayoutMode, LayoutRange},
};

use crate::{
    CELL, CELLS, LEASE, Lost, World, chance,
    mds::{ClientId, Copy, Mds},
    oracle::{Model, WriteId},
    stores::Denied,
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
    /// Whether the client does not answer recalls, and uses its layouts for ever.
    rogue: bool,
    done: bool,
}

#[derive(Clone)]
struct Layout {
    mode: LayoutMode,
    copies: Vec<Copy>,
    /// The process that granted it.
    mds: u64,
    /// The number of the layout. Writes belong to one.
    serial: u64,
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
        // Many programs close their files before they end.
        if chance(0.5) {
            let files: Vec<_> = self.state.lock().dirty.keys().cloned().collect();
            for file in files {
                self.fsync(&file).await;
            }
        }
        self.state.lock().done = true;
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
            97..98 if self.world.has_faults() => self.state.lock().rogue = true,
            98 if self.world.has_faults() => self.restart(),
            _ => {}
        }
    }

    /// The client ends, and another one starts.
    fn restart(&self) {
        let mut state = self.state.lock();
        state.instance += 1;
        state.layouts.clear();
        state.dirty.clear();
        state.rogue = false;
        self.world.log(format!("client {} restarts", self.number));
    }

    async fn step_as_rogue(&self, what: u32) {
        if what < 5 {
            return self.restart();
        }
        let layouts: Vec<_> = self.state.lock().layouts.clone().into_iter().collect();
        for (file, layout) in layouts {
            // This write never ends for the oracle.
            let (_, value) = self.begin(&file, 0..2);
            for copy in layout.copies {
                let _ = self.world.stores.client_write(self.number, copy, 0, bytes(value, 2), false).await;
            }
        }
    }

    /// Renews the lease.
    async fn renew(self: Arc<Self>) {
        while !self.state.lock().done {
            let (began, id) = (Instant::now(), self.id());
            if !self.state.lock().rogue {
                let renewed = self.call(move |mds| async move { mds.renew(id) });
                if let Ok(Ok(((), number))) = timeout(LEASE, renewed).await {
                    let mut state = self.state.lock();
                    state.lease = began + LEASE;
                    state.layouts.retain(|_, layout| layout.mds == number);
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
                self.return_layouts(&file).await;
            }
        }
    }

    /// Sends an operation to the metadata server. A client that sees another process has lost its layouts.
    async fn call<T, F>(&self, operation: impl FnOnce(Arc<Mds>) -> F) -> Result<(T, u64), Lost>
    where
        T: Send + 'static,
        F: Future<Output = T> + Send + 'static,
    {
        let (result, number) = self.world.rpc(self.number, operation).await?;
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
        let created = self.call(move |mds| async move {
            let (root, mode) = (mds.pnfs.root(), CreateMode::Unchecked(SetAttr::default()));
            let name = Name::new(name.as_bytes())?;
            mds.run(|pnfs, caller| pnfs.create(caller, &root, name, &mode)).await
        });
        created.await.ok()?.0.ok().map(|created| created.handle)
    }

    async fn remove(&self, name: &'static str) {
        self.world.may_remove(name);
        let removed = self.call(move |mds| async move {
            let (root, name) = (mds.pnfs.root(), Name::new(name.as_bytes())?);
            mds.run(|pnfs, caller| pnfs.remove(caller, &root, name)).await
        });
        let removed = removed.await.map(|(removed, _)| removed.map(drop));
        self.world.log(format!("client {} removes {name}: {removed:?}", self.number));
    }

    async fn rename(&self, name: &'static str) {
        let to = if name == "one" { "two" } else { "one" };
        self.world.may_remove(to);
        let renamed = self.call(move |mds| async move {
            let root = mds.pnfs.root();
            let (from, to) = (Name::new(name.as_bytes())?, Name::new(to.as_bytes())?);
            mds.run(|pnfs, caller| pnfs.rename(caller, &root, from, &root, to)).await
        });
        let renamed = renamed.await.map(|(renamed, _)| renamed.map(drop));
        self.world.log(format!("client {} renames {name}: {renamed:?}", self.number));
    }

    async fn write_by_mds(&self, file: &Handle, cells: Range<usize>) {
        let (write, value) = self.begin(file, cells.clone());
        let stability = if chance(0.5) { Stability::Unstable } else { Stability::FileSync };
        self.send_write(file, (write, cells, value), stability).await;
    }

    /// Executes a write by the metadata server until it answers. Errors of a repeated write are tried again.
    async fn send_write(
        &self,
        file: &Handle,
        (write, cells, value): (WriteId, Range<usize>, u32),
        stability: Stability,
    ) {
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
        let durable = stability == Stability::FileSync;
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

    /// Returns a layout. A layout to write can be used for reading.
    async fn layout(&self, file: &Handle, mode: LayoutMode) -> Option<Layout> {
        let usable = |layout: &&Layout| layout.mode == LayoutMode::Write || layout.mode == mode;
        let known = self.state.lock().layouts.get(file).filter(usable).cloned();
        if known.is_some() {
            return known;
        }
        let (of, id) = (file.clone(), self.id());
        let granted = self.call(move |mds| {
            let of = of.clone();
            async move { mds.grant(id, &of, mode).await }
        });
        let (granted, mds) = granted.await.ok()?;
        self.world.log(format!("client {} asks for a layout {mode:?}: {granted:?}", self.number));
        let copies = granted.ok()?;
        let mut state = self.state.lock();
        state.layouts.retain(|_, layout| layout.mds == mds);
        let serial = state.layouts.get(file).map_or_else(|| self.world.tick(), |layout| layout.serial);
        let layout = Layout { mode, copies, mds, serial };
        state.layouts.insert(file.clone(), layout.clone());
        Some(layout)
    }

    fn has_lease(&self) -> bool {
        Instant::now() < self.state.lock().lease
    }

    /// Writes with a layout, or by the metadata server if there is none.
    async fn write_directly(&self, file: &Handle, cells: Range<usize>) {
        let io = self.io.lock().await;
        let Some(layout) = self.layout(file, LayoutMode::Write).await.filter(|_| self.has_lease()) else {
            drop(io);
            return self.write_by_mds(file, cells).await;
        };
        let (write, value) = self.begin(file, cells.clone());
        let (stable, dies) = (chance(0.3), self.world.has_faults() && chance(0.04));
        let mut copies = layout.copies.clone();
        if dies {
            copies.truncate(1);
        }
        let (offset, data) = (cells.start * CELL, bytes(value, cells.len()));
        let stores = &self.world.stores;
        let sent = copies.iter().map(|copy| stores.client_write(self.number, *copy, offset, data.clone(), stable));
        let results = join_all(sent).await;
        self.world.log(format!("client {} has written {value} directly: {results:?}", self.number));
        if dies {
            self.model(file, |model, now| model.fail(write, now));
            self.restart();
            return;
        }
        let failures = failures(DataOperation::Write, &copies, &results);
        if failures.is_empty() {
            self.model(file, |model, now| {
                model.acknowledge(write, now);
                if stable {
                    model.make_durable(write, now);
                }
            });
            let verifier = |result: &Result<u64, Denied>| result.ok().filter(|_| !stable);
            let how = How::Direct(layout.serial, copies.into_iter().zip(results.iter().map(verifier)).collect());
            let dirty = Dirty { write, cells, value, how };
            self.state.lock().dirty.entry(file.clone()).or_default().push(dirty);
            drop(io);
            if chance(0.5) {
                self.fsync(file).await;
            }
            return;
        }
        drop(io);
        self.report(file, failures).await;
        self.return_layouts(file).await;
        self.send_write(file, (write, cells, value), Stability::FileSync).await;
    }

    async fn report(&self, file: &Handle, failures: Vec<DataFailure>) {
        let (of, id) = (file.clone(), self.id());
        let reported = self.call(move |mds| {
            let (of, failures) = (of.clone(), failures.clone());
            async move { mds.report(id, &of, &failures).await }
        });
        let _ = reported.await;
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

    /// Makes the direct writes durable. Returns those that must be repeated by the metadata server.
    async fn flush(&self, file: &Handle) -> Vec<Dirty> {
        let direct = {
            let mut state = self.state.lock();
            let Some(dirty) = state.dirty.get_mut(file) else { return Vec::new() };
            let (direct, rest) =
                std::mem::take(dirty).into_iter().partition(|dirty| matches!(dirty.how, How::Direct(..)));
            *dirty = rest;
            let direct: Vec<Dirty> = direct;
            direct
        };
        let serial = self.state.lock().layouts.get(file).map(|layout| layout.serial);
        let is_held = |dirty: &Dirty| matches!(dirty.how, How::Direct(of, _) if Some(of) == serial);
        // Without its layout, the client does not know what has happened to the file since.
        if direct.is_empty() || !self.has_lease() || !direct.iter().all(is_held) {
            return direct;
        }
        let writes = || {
            direct.iter().flat_map(|dirty| match &dirty.how {
                How::Direct(_, writes) => writes.clone(),
                How::Proxied(_) => Vec::new(),
            })
        };
        let mut copies: Vec<Copy> = writes().filter(|(_, verifier)| verifier.is_some()).map(|(copy, _)| copy).collect();
        copies.sort_unstable();
        copies.dedup();
        let stores = &self.world.stores;
        let results = join_all(copies.iter().map(|copy| stores.client_commit(self.number, *copy))).await;
        let failures = failures(DataOperation::Commit, &copies, &results);
        let kept = |(copy, verifier): (Copy, Option<u64>)| {
            let now = copies.iter().position(|of| *of == copy).and_then(|at| results[at].ok());
            verifier.is_none_or(|verifier| now == Some(verifier))
        };
        if !failures.is_empty() {
            self.report(file, failures).await;
            return direct;
        }
        if !writes().all(kept) {
            return direct;
        }
        let size = direct.iter().map(|dirty| dirty.cells.end).max().unwrap_or(0);
        let (of, id, own_time) = (file.clone(), self.id(), chance(0.5));
        let committed = self.call(move |mds| {
            let of = of.clone();
            async move { mds.commit_layout(id, &of, (size * CELL) as u64, own_time).await }
        });
        match committed.await {
            Ok((Ok(()), _)) => {
                self.made_durable(file, &direct);
                Vec::new()
            }
            _ => direct,
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

    async fn truncate(&self, file: &Handle, size: usize) {
        self.fsync(file).await;
        let write = self.model(file, |model, now| model.begin_truncation(size, now));
        self.world.log(format!("client {} truncates {file:?} to {size}", self.number));
        let done = loop {
            let (of, id) = (file.clone(), self.id());
            let done = self.call(move |mds| {
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
        let (size, mtime) = (attr.size as usize, (attr.mtime.seconds, attr.mtime.nanoseconds));
        self.check(file, "attributes", |model, to| {
            model.check_size(size / CELL, (from, to))?;
            model.check_times(attr.change, mtime, (from, to))
        });
        Some(size)
    }

    /// Checks a file when nothing fails: it can be read, and has the right size and contents.
    pub async fn check_whole(&self, file: &Handle) {
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

    async fn read_directly(&self, file: &Handle) {
        let _io = self.io.lock().await;
        let Some(size) = self.look(file).await else { return };
        let from = self.world.tick();
        let Some(layout) = self.layout(file, LayoutMode::Read).await.filter(|_| self.has_lease()) else { return };
        let copy = layout.copies[entropy::random_range(0..layout.copies.len())];
        let read = self.world.stores.client_read(self.number, copy, 0, size).await;
        // A reply after the end of the lease does not count.
        let Some(data) = read.ok().filter(|_| self.has_lease()) else { return };
        self.world.log(format!("client {} has read {:?} from {copy:?}", self.number, cells(&data)));
        self.check(file, "a direct read", |model, to| model.check(0, &cells(&data)?, (from, to)));
    }
}

/// Returns the errors to report. A data server that denies access has not failed.
fn failures<T>(operation: DataOperation, copies: &[Copy], results: &[Result<T, Denied>]) -> Vec<DataFailure> {
    let failure = |((Object { server, .. }, _), result): (&Copy, &Result<T, Denied>)| {
        let error = match result {
            Ok(_) => return None,
            Err(Denied::Access) => DataError::Denied,
            Err(Denied::Failed(ServerError::NoSpace)) => DataError::NoSpace,
            Err(Denied::Failed(ServerError::Missing)) => DataError::Stale,
            Err(Denied::Failed(_)) => DataError::Unreachable,
        };
        let device = LayoutDeviceId([server.0 as u8; 16]);
        Some(DataFailure { range: LayoutRange::ALL, device, operation, error })
    };
    copies.iter().zip(results).filter_map(failure).collect()
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
        let value = u32::from_be_bytes([cell[0], cell[1], cell[2], cell[3]]);
        let whole = cell.len() == CELL && cell.chunks(4).all(|part| part == value.to_be_bytes());
        if whole { Ok(value) } else { Err(format!("a cell has parts of several writes: {cell:?}")) }
    };
    data.chunks(CELL).map(value).collect()
}
