//! Rebalancing: copies are moved from data servers that have many bytes to those that have few, for example after one was added.
//!
//! An administrator orders it. The order is durable, so it continues after a restart. It weighs the objects of all data servers in
//! service, and moves copies as a drain does, until a pass over the objects has moved none. It runs at the same time as the upkeep: a
//! file is in the hands of one of them. A move ends early if the copies of its file must be made equal.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering::Relaxed},
};

use entropy::{HashMap, HashSet};
use parking_lot::Mutex;
use tokio::{
    sync::Notify,
    time::{Duration, Instant, sleep, sleep_until},
};
use vfs::{Handle, Result, VfsError};

use super::{Core, Pnfs};
use crate::{
    balance::Balance,
    files::{File, Place},
    index::TRUNCATING,
    record::{CopyState, Object, Record, ServerId},
    servers::ServerError,
};

/// The rebalancing of a tree.
#[derive(Default)]
pub struct Rebalancing {
    state: Mutex<RebalanceStatus>,
    /// The time until which no more bytes are copied.
    pause_until: Mutex<Option<Instant>>,
    /// The number of orders. It changes while the state is locked.
    orders: AtomicU64,
    ordered: Notify,
}

/// A rebalancing: the last one, or that in progress.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RebalanceStatus {
    /// Maximum bytes that are copied in a second, or 0 without a maximum. `None` if no rebalancing is in progress.
    pub ordered: Option<u64>,
    /// The number of copies that were moved since the order, or since the start of the process.
    pub copies: u64,
    /// The bytes of these copies.
    pub bytes: u64,
    /// The bytes that are still to be moved, about.
    pub left: u64,
    /// The number of copies that could not be moved in the last pass, and the last reason.
    pub failed: Option<(u64, VfsError)>,
}

/// The moves that a rebalancing would make.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RebalancePlan {
    /// The data servers that take part, with their bytes before and after it.
    pub servers: Vec<(ServerId, u64, u64)>,
    /// The number of copies to move.
    pub copies: u64,
    /// The bytes of these copies.
    pub bytes: u64,
}

/// One pass over the objects.
#[derive(Default)]
struct Pass {
    balance: Balance,
    moved: u64,
    failed: Option<(u64, VfsError)>,
}

impl Pass {
    fn fail(&mut self, error: VfsError) {
        let count = self.failed.map_or(0, |(count, _)| count);
        self.failed = Some((count + 1, error));
    }
}

impl Pnfs {
    /// Orders a rebalancing, durably, that copies at most `rate` bytes in a second. 0 is no maximum. `None` ends the present one.
    ///
    /// # Errors
    /// Returns `Io`.
    pub fn order_rebalance(&self, rate: Option<u64>) -> Result<()> {
        let core = &self.0;
        let mut state = core.rebalancing.state.lock();
        core.index.set_rebalance(rate)?;
        core.rebalancing.orders.fetch_add(1, Relaxed);
        match rate {
            Some(_) => *state = RebalanceStatus { ordered: rate, ..RebalanceStatus::default() },
            None => state.ordered = None,
        }
        drop(state);
        core.rebalancing.ordered.notify_one();
        Ok(())
    }

    /// Returns the rebalancing in progress, or the last one of this process.
    pub fn rebalance_status(&self) -> RebalanceStatus {
        self.0.rebalancing.state.lock().clone()
    }

    /// Returns what a rebalancing would do now. This waits for the inner file system and the database.
    ///
    /// # Errors
    /// Returns `Delay` while the index is not complete, and the errors of the inner file system and of the index.
    pub fn plan_rebalance(&self) -> Result<RebalancePlan> {
        let core = &self.0;
        if core.scan.is_running() {
            return Err(VfsError::Delay);
        }
        let mut balance = core.participants(&HashSet::default());
        for server in balance.servers() {
            let mut after = None;
            while core.weigh(&mut balance, server, &mut after)? {}
        }
        let before = balance.clone();
        let mut plan = RebalancePlan::default();
        let mut places: HashMap<Object, ServerId> = HashMap::default();
        for source in balance.sources() {
            let mut after = None;
            while balance.is_source(source) {
                let batch = core.index.objects_on(source, after, BATCH)?;
                for (object, handle) in &batch {
                    after = Some(object.id);
                    let Some((record, copy, cost)) =
                        core.movable(*object, handle)?.filter(|_| balance.is_source(source))
                    else {
                        continue;
                    };
                    let place = |object: Object| places.get(&object).copied().unwrap_or(object.server);
                    let Some(to) = balance.target(&record, copy, cost, place) else { continue };
                    balance.moved(source, to, cost);
                    places.insert(*object, to);
                    plan.copies += 1;
                    plan.bytes += cost;
                }
                if batch.len() < BATCH {
                    break;
                }
            }
        }
        let row = |server: ServerId| (server, before.load(server), balance.load(server));
        plan.servers = balance.servers().into_iter().map(row).collect();
        Ok(plan)
    }

    /// Waits until a rebalancing is ordered, or one of an earlier process is to be continued.
    pub async fn rebalance_ordered(&self) {
        while self.rebalance_status().ordered.is_none() {
            self.0.rebalancing.ordered.notified().await;
        }
    }

    /// Executes the rebalancing that is ordered, if there is one, until its end. It can run at the same time as
    /// [`upkeep`](Self::upkeep). This needs a runtime of tokio if the rate is limited, or if copies cannot be moved now.
    pub async fn rebalance(&self) {
        let core = &self.0;
        // Those that are full are left out.
        let mut full = HashSet::default();
        let mut idle = 0;
        while self.rebalance_status().ordered.is_some() {
            if core.scan.is_running() {
                sleep(RETRY).await;
                continue;
            }
            let order = core.rebalancing.orders.load(Relaxed);
            let pass = match core.pass(&mut full).await {
                Ok(pass) => pass,
                Err(error) => {
                    tracing::warn!(%error, "copies cannot be weighed");
                    Pass { failed: Some((1, error)), ..Pass::default() }
                }
            };
            core.rebalancing.state.lock().failed = pass.failed;
            if self.rebalance_status().ordered.is_none() {
                return;
            }
            idle = if pass.moved > 0 { 0 } else { idle + 1 };
            if idle > 0 && (pass.failed.is_none() || idle == IDLE_MAX) {
                tracing::info!(failed = ?pass.failed, "the rebalancing has ended");
                let _ = core.run(move |core| core.end_rebalance(order)).await;
            } else if idle > 0 {
                sleep(RETRY).await;
            }
        }
    }
}

impl Rebalancing {
    /// Continues the rebalancing of an earlier process.
    pub fn continued(ordered: Option<u64>) -> Self {
        Self { state: Mutex::new(RebalanceStatus { ordered, ..RebalanceStatus::default() }), ..Self::default() }
    }
}

impl Core {
    /// Returns the data servers that get new objects and answer.
    fn participants(&self, without: &HashSet<ServerId>) -> Balance {
        let failing = self.failing.lock();
        let takes_part = |server: &ServerId| !failing.contains(server) && !without.contains(server);
        Balance::new(self.services.active().into_iter().filter(takes_part))
    }

    /// Adds some objects of a data server to the balance. Returns `false` at the end.
    fn weigh(&self, balance: &mut Balance, server: ServerId, after: &mut Option<u128>) -> Result<bool> {
        let batch = self.index.objects_on(server, *after, BATCH)?;
        for (object, handle) in &batch {
            *after = Some(object.id);
            if let Some((.., cost)) = self.movable(*object, handle)? {
                balance.add(server, cost);
            }
        }
        Ok(batch.len() == BATCH)
    }

    /// Returns the record of a file, the index of its copy in sync with this object, and the load of that. `None` if it has no such copy.
    fn movable(&self, object: Object, handle: &Handle) -> Result<Option<(Arc<Record>, usize, u64)>> {
        let removed = |error: &VfsError| matches!(error, VfsError::Stale | VfsError::NotFound | VfsError::BadHandle);
        let size = match self.size_of(handle) {
            Err(error) if removed(&error) => return Ok(None),
            size => size?,
        };
        let record = match self.place_now(&self.files.get(handle), true) {
            Ok(Place::Servers(record)) => record,
            Ok(Place::Inner) => return Ok(None),
            Err(error) if removed(&error) => return Ok(None),
            Err(error) => return Err(error),
        };
        let is_here = |copy: &usize| {
            let copy = record.copies[*copy];
            copy.object == object && copy.state == CopyState::InSync
        };
        let copy = (0..record.copies.len()).find(is_here);
        Ok(copy.map(|copy| (record.clone(), copy, Balance::cost(&record, size))))
    }

    /// Ends a rebalancing, unless there is a later order.
    ///
    /// # Errors
    /// Returns `Io`. Then the next process repeats the last pass.
    fn end_rebalance(&self, order: u64) -> Result<()> {
        let mut state = self.rebalancing.state.lock();
        if self.rebalancing.orders.load(Relaxed) != order {
            return Ok(());
        }
        (state.ordered, state.left) = (None, 0);
        self.index.set_rebalance(None)
    }

    /// Executes one pass over the objects of the data servers that have too many bytes.
    ///
    /// # Errors
    /// Returns the errors of the inner file system and of the index.
    async fn pass(self: &Arc<Self>, full: &mut HashSet<ServerId>) -> Result<Pass> {
        let mut pass = Pass { balance: self.participants(full), ..Pass::default() };
        for server in pass.balance.servers() {
            let (mut after, mut more) = (None, true);
            while more {
                let mut balance = std::mem::take(&mut pass.balance);
                (pass.balance, after, more) = self
                    .run(move |core| {
                        let more = core.weigh(&mut balance, server, &mut after)?;
                        Ok((balance, after, more))
                    })
                    .await?;
            }
        }
        for source in pass.balance.sources() {
            let mut after = None;
            while pass.balance.is_source(source) {
                let batch = self.run(move |core| core.index.objects_on(source, after, BATCH)).await?;
                for (object, handle) in &batch {
                    after = Some(object.id);
                    self.rebalancing.state.lock().left = pass.balance.excess();
                    if self.rebalancing.state.lock().ordered.is_none() {
                        return Ok(pass);
                    }
                    if pass.balance.is_source(source) {
                        self.rebalance_copy(&mut pass, *object, handle, full).await;
                    }
                }
                if batch.len() < BATCH {
                    break;
                }
            }
        }
        Ok(pass)
    }

    /// Moves a copy, if that makes the loads more equal.
    async fn rebalance_copy(
        self: &Arc<Self>,
        pass: &mut Pass,
        object: Object,
        handle: &Handle,
        full: &mut HashSet<ServerId>,
    ) {
        let of = handle.clone();
        let (record, copy, cost) = match self.run(move |core| core.movable(object, &of)).await {
            Ok(Some(movable)) => movable,
            Ok(None) => return,
            Err(error) => return pass.fail(error),
        };
        let Some(to) = pass.balance.target(&record, copy, cost, |object| object.server) else { return };
        let file = self.files.get(handle);
        let moved = match file.repairing.try_lock() {
            Ok(_one) => self.move_copy(&file, object, Some(to)).await,
            Err(_) => Err(VfsError::Delay),
        };
        match moved {
            Ok(true) => {
                pass.balance.moved(object.server, to, cost);
                pass.moved += 1;
                let mut state = self.rebalancing.state.lock();
                (state.copies, state.bytes) = (state.copies + 1, state.bytes + cost);
            }
            Ok(false) => {}
            Err(error) => {
                tracing::debug!(file = ?handle, ?object, %error, "a copy cannot be moved now");
                pass.fail(error);
                if error == VfsError::NoSpace {
                    full.insert(to);
                    pass.balance.remove(to);
                } else if self.servers.probe(to).await == Err(ServerError::Unreachable) {
                    self.note_server(to, false);
                    pass.balance.remove(to);
                }
            }
        }
        // The former object is removed.
        self.wake.notify_one();
    }

    /// Waits until more bytes may be copied, after these.
    ///
    /// # Errors
    /// Returns `Delay` if the move must end: the copies of the file must be made equal, or the rebalancing was ended.
    pub async fn pace(&self, file: &File, bytes: u64) -> Result<()> {
        let Some(rate) = self.rebalancing.state.lock().ordered else { return Err(VfsError::Delay) };
        if rate > 0 {
            let until = {
                let mut until = self.rebalancing.pause_until.lock();
                let now = Instant::now();
                let next =
                    until.map_or(now, |until| until.max(now)) + Duration::from_secs_f64(bytes as f64 / rate as f64);
                *until = Some(next);
                next
            };
            sleep_until(until).await;
        }
        if self.is_unequal(&file.handle) || self.has_work(&file.handle, TRUNCATING) {
            return Err(VfsError::Delay);
        }
        Ok(())
    }
}

/// The number of objects that are looked up at a time.
const BATCH: usize = 64;
/// The number of passes without a move after which a rebalancing ends although copies could not be moved.
const IDLE_MAX: u32 = 3;
/// The time between two passes if copies cannot be moved now.
const RETRY: Duration = Duration::from_secs(5);
