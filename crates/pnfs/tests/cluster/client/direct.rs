//! The part of a client that uses data servers directly.

use std::ops::Range;

use futures_util::future::join_all;
use pnfs::{ServerError, record::Object};
use tokio::time::Instant;
use vfs::{
    Handle, Stability, Time,
    layout::{DataError, DataFailure, DataOperation, LayoutDeviceId, LayoutMode, LayoutRange},
};

use super::{Client, Dirty, How, Layout, State, bytes, cells};
use crate::{
    CELL, chance,
    faults::Part,
    mds::{Copy, Place},
    oracle::CLOCK_DIFFERENCE,
    stores::Denied,
};

impl Client {
    pub(super) async fn step_as_rogue(&self, what: u32) {
        if what < 5 {
            return self.restart();
        }
        // A return that has begun ends first: no client writes by a layout that it has returned.
        let _io = self.io.lock().await;
        let layouts: Vec<_> = self.state.lock().layouts.clone().into_iter().collect();
        for (file, layout) in layouts {
            // This write never ends for the oracle.
            let (_, value) = self.begin(&file, 0..2);
            for place in layout.grant.places(0..2 * CELL) {
                let data = bytes(value, place.range.len() / CELL);
                let _ = self.world.stores.client_write(self.number, place.copy, place.range.start, data, false).await;
            }
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
        let grant = granted.ok()?;
        let mut state = self.state.lock();
        state.layouts.retain(|_, layout| layout.mds == mds);
        let serial = state.layouts.get(file).map_or_else(|| self.world.tick(), |layout| layout.serial);
        let layout = Layout { mode, grant, mds, serial, granted: Time::now() };
        state.layouts.insert(file.clone(), layout.clone());
        Some(layout)
    }

    fn has_lease(&self) -> bool {
        Instant::now() < self.state.lock().lease
    }

    /// Writes with a layout, or by the metadata server if there is none.
    pub(super) async fn write_directly(&self, file: &Handle, cells: Range<usize>) {
        let writing = self.world.lock(file, &cells).await;
        let io = self.io.lock().await;
        let Some(layout) = self.layout(file, LayoutMode::Write).await.filter(|_| self.has_lease()) else {
            drop((io, writing));
            return self.write_by_mds(file, cells).await;
        };
        let (write, value) = self.begin(file, cells.clone());
        let (stable, dies) = (chance(0.3), self.world.has_faults() && chance(0.04));
        let mut places: Vec<Place> = layout.grant.places(cells.start * CELL..cells.end * CELL);
        if dies {
            self.world.count(Part::ClientEndedInWrite);
            places.truncate(1);
        }
        let (stores, begun) = (&self.world.stores, Time::now());
        let sent = places.iter().map(|Place { copy, range }| {
            stores.client_write(self.number, *copy, range.start, bytes(value, range.len() / CELL), stable)
        });
        let results: Vec<_> = join_all(sent).await;
        let copies: Vec<_> = places.into_iter().map(|place| place.copy).collect();
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
                // A write that comes with the layout may be one of before, by a clock that differs.
                if begun.as_nanoseconds() > layout.granted.as_nanoseconds() + CLOCK_DIFFERENCE {
                    model.note_written(begun);
                }
                if stable {
                    model.make_durable(write, now);
                }
            });
            let verifier = |result: &Result<u64, Denied>| result.ok().filter(|_| !stable);
            let how = How::Direct(layout.serial, copies.into_iter().zip(results.iter().map(verifier)).collect());
            let dirty = Dirty { write, cells, value, how };
            self.state.lock().dirty.entry(file.clone()).or_default().push(dirty);
            drop((io, writing));
            if chance(0.5) {
                self.fsync(file).await;
            }
            return;
        }
        drop((io, writing));
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

    /// Makes the direct writes durable. Returns those that must be repeated by the metadata server.
    pub(super) async fn flush(&self, file: &Handle) -> Vec<Dirty> {
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

    pub(super) async fn read_directly(&self, file: &Handle) {
        let _io = self.io.lock().await;
        let Some(size) = self.look(file).await else { return };
        let from = self.world.tick();
        let Some(layout) = self.layout(file, LayoutMode::Read).await.filter(|_| self.has_lease()) else { return };
        let mirror = entropy::random_range(0..layout.grant.mirrors.len());
        let mut data = Vec::new();
        for Place { copy, range } in layout.grant.places_in(mirror, 0..size) {
            let read = self.world.stores.client_read(self.number, copy, range.start, range.len()).await;
            // A reply after the end of the lease or of the layout does not count.
            let held = |state: &State| state.layouts.get(file).is_some_and(|held| held.serial == layout.serial);
            let Some(read) = read.ok().filter(|_| self.has_lease() && held(&self.state.lock())) else { return };
            self.world.log(format!("client {} has read {:?} from {copy:?}", self.number, cells(&read)));
            // An object is not shorter than the last byte of its stripe, except while the file is truncated.
            data.resize(range.start, 0);
            data.extend(read);
        }
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
            Err(Denied::Failed(ServerError::Io)) => DataError::Io,
            Err(Denied::Failed(_)) => DataError::Unreachable,
        };
        let device = LayoutDeviceId([server.0 as u8; 16]);
        Some(DataFailure { range: LayoutRange::ALL, device, operation, error })
    };
    copies.iter().zip(results).filter_map(failure).collect()
}
