//! Simulations of a cluster: a metadata server, four data servers and three clients. Messages, writes to disks and processes fail,
//! and an oracle checks the invariants that `docs/simulation.md` lists.
//!
//! Each run is determined by its seed. A failed run prints all its events. Repeat it with `SLIPWAY_SEED=N`; `SLIPWAY_SEEDS=N` makes
//! N runs.

mod client;
mod disk;
mod faults;
mod kinds;
mod mds;
mod oracle;
mod session;
mod stores;

use std::{
    collections::{BTreeMap, BTreeSet},
    future::Future,
    ops::Range,
    sync::{
        Arc, OnceLock, Weak,
        atomic::{AtomicU32, AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use parking_lot::Mutex;
use pnfs::{Record, ServerId, Service, Stripes, record::Object, stripes::Piece};
use tokio::{
    sync::{Notify, oneshot},
    task::JoinSet,
    time::{Instant, sleep, timeout},
};
use vfs::Handle;

use client::{Client, cells};
use disk::Disk;
use faults::{Counts, FAULTS, Fault, Faults, Part};
use kinds::Kinds;
use mds::Mds;
use oracle::Model;
use session::{Delivery, Repetition, Slot};
use stores::{Party, STORES, Stores};

/// A fault of the program, in place of a part of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Broken {
    Nothing,
    /// A record becomes durable with the next change of the file only: a copy is marked stale after the grant.
    RecordLate,
    /// A synchronization of the disk of the metadata server that fails counts as a success.
    SyncErrorHidden,
    /// Data servers do not lock out clients.
    FenceIgnored,
    /// The index loses its last changes.
    IndexLost,
    /// COMMIT makes nothing durable.
    CommitSkipped,
    /// A COMMIT at a data server that fails counts as a success.
    CommitErrorHidden,
    /// A failed write to a copy counts as a success.
    FailureHidden,
    /// Layouts end without asking their clients.
    RecallSkipped,
    /// The objects of a file are removed although its removal has failed.
    RemovedEarly,
    /// A process of the metadata server starts although another one has the lock.
    LockIgnored,
    /// Data servers of kind `slipway` forget which objects were removed.
    RemovalForgotten,
    /// A request that is sent again is executed again.
    RepliesNotCached,
}

/// The events of a run.
type Log = Arc<Mutex<Vec<String>>>;
/// The first violation of an invariant in a run.
type Violation = Arc<Mutex<Option<String>>>;

/// The properties in which clusters differ.
#[derive(Clone, Copy)]
struct Setup {
    broken: Broken,
    /// The stripes of new files.
    stripes: Stripes,
    /// The number of the world.
    cluster: usize,
    /// The hosts on which the metadata server can run. With two, the second one takes over at once.
    hosts: u32,
}

/// Everything but the clients: a metadata server, with data servers that can also be those of another one.
struct World {
    /// 0, or 1 for the other metadata server.
    number: usize,
    stores: Stores,
    disk: Arc<Disk>,
    setup: Setup,
    kinds: Kinds,
    /// The processes of the metadata server that clients reach: at most one, if they obey the lock.
    mds: Mutex<Vec<Arc<Mds>>>,
    models: Mutex<BTreeMap<Vec<u8>, Model>>,
    /// The clients that do not reach the metadata server.
    cut: Mutex<BTreeSet<usize>>,
    /// The cells that clients are writing. Programs that write the same bytes at the same time without locks are not simulated: copies
    /// can get such writes in different orders.
    writing: Mutex<Vec<(Vec<u8>, Range<usize>)>>,
    written: Notify,
    /// The data servers that are drained at the end.
    draining: Mutex<BTreeSet<u32>>,
    /// The worlds with the same data servers, this one included.
    all: OnceLock<Vec<Weak<World>>>,
    faults: Faults,
    /// The number of processes of the metadata server that have started.
    processes: AtomicU64,
    ticks: AtomicU64,
    values: AtomicU32,
    log: Log,
    violation: Violation,
    began: Instant,
}

/// Cells that a client is writing.
struct Writing(Arc<World>, (Vec<u8>, Range<usize>));

impl Drop for Writing {
    fn drop(&mut self) {
        self.0.writing.lock().retain(|other| *other != self.1);
        self.0.written.notify_waiters();
    }
}

/// The metadata server has ended before it answered.
#[derive(Debug)]
struct Lost;

/// Returns `true` with this probability.
fn chance(share: f64) -> bool {
    entropy::random_range(0.0..1.0) < share
}

impl World {
    /// Makes the metadata servers with the same data servers: one, or two that do not know each other.
    fn all(broken: Broken, kinds: Kinds) -> Vec<Arc<Self>> {
        let faults = Faults::default();
        let (stores, log, violation) = (Stores::new(broken, kinds, &faults), Arc::default(), Arc::default());
        let count = if chance(0.15) { 2 } else { 1 };
        let new = |number| Self::new(number, (broken, kinds), &stores, &faults, (&log, &violation));
        let worlds: Vec<_> = (0..count).map(new).collect();
        faults.begin();
        let all: Vec<_> = worlds.iter().map(Arc::downgrade).collect();
        worlds.iter().for_each(|world| world.all.set(all.clone()).expect("the worlds must be set once"));
        stores.on_loss(move || all.iter().filter_map(Weak::upgrade).for_each(|world| world.lose_unstable()));
        worlds
    }

    fn new(
        number: usize,
        (broken, kinds): (Broken, Kinds),
        stores: &Stores,
        faults: &Faults,
        (log, violation): (&Log, &Violation),
    ) -> Arc<Self> {
        let striped = Stripes::new(2 * CELL as u64, 2).expect("the stripes must be possible");
        let stripes = if chance(0.3) { striped } else { Stripes::ONE };
        let hosts = if chance(0.3) { 2 } else { 1 };
        Arc::new(Self {
            number,
            stores: stores.clone(),
            disk: Disk::new(broken, faults),
            setup: Setup { broken, stripes, hosts, cluster: number },
            kinds,
            writing: Mutex::default(),
            written: Notify::new(),
            draining: Mutex::default(),
            mds: Mutex::default(),
            models: Mutex::default(),
            cut: Mutex::default(),
            all: OnceLock::new(),
            faults: faults.clone(),
            processes: AtomicU64::new(0),
            ticks: AtomicU64::new(1),
            // No value of one world is one of the other.
            values: AtomicU32::new(1 + (number as u32) * 1_000_000),
            log: log.clone(),
            violation: violation.clone(),
            began: Instant::now(),
        })
    }

    /// Returns the worlds with the same data servers, this one included.
    fn worlds(&self) -> impl Iterator<Item = Arc<Self>> {
        self.all.get().into_iter().flatten().filter_map(Weak::upgrade)
    }

    fn tick(&self) -> u64 {
        self.ticks.fetch_add(1, Relaxed)
    }

    fn value(&self) -> u32 {
        self.values.fetch_add(1, Relaxed)
    }

    fn log(&self, event: String) {
        let (at, tick) = (self.began.elapsed().as_secs_f64(), self.tick());
        self.log.lock().push(format!("{at:10.4} {} {tick:5} {event}", self.number));
    }

    fn fail(&self, violation: String) {
        self.log(violation.clone());
        self.violation.lock().get_or_insert(violation);
    }

    fn has_failed(&self) -> bool {
        if let Some(violation) = self.stores.violation() {
            self.violation.lock().get_or_insert(violation);
        }
        self.violation.lock().is_some()
    }

    fn has_faults(&self) -> bool {
        self.faults.are_active()
    }

    fn is_cut(&self, client: usize) -> bool {
        self.cut.lock().contains(&client)
    }

    fn mds(&self) -> Option<Arc<Mds>> {
        let living: Vec<_> = self.mds.lock().iter().filter(|mds| !mds.dead.load(Relaxed)).cloned().collect();
        match &living[..] {
            [] => None,
            [only] => Some(only.clone()),
            several => Some(several[entropy::random_range(0..several.len())].clone()),
        }
    }

    /// Waits until no other client writes these cells, and keeps others from doing so until the result is dropped.
    async fn lock(self: &Arc<Self>, file: &Handle, cells: &Range<usize>) -> Writing {
        let own = (file.as_bytes().to_vec(), cells.clone());
        loop {
            let mut written = std::pin::pin!(self.written.notified());
            written.as_mut().enable();
            {
                let mut writing = self.writing.lock();
                let conflicts = |other: &(Vec<u8>, Range<usize>)| {
                    other.0 == own.0 && other.1.start < own.1.end && own.1.start < other.1.end
                };
                if !writing.iter().any(conflicts) {
                    writing.push(own.clone());
                    return Writing(self.clone(), own);
                }
            }
            written.await;
        }
    }

    /// Calls the oracle for a file, with the time.
    fn model<T>(&self, file: &Handle, run: impl FnOnce(&mut Model, u64) -> T) -> T {
        let now = self.tick();
        run(self.models.lock().entry(file.as_bytes().to_vec()).or_default(), now)
    }

    /// Sends an operation to the metadata server in a slot of the client's session, and returns the result and the number of the process.
    async fn rpc<T, F>(
        &self,
        client: usize,
        repetition: Repetition,
        operation: impl Fn(Arc<Mds>) -> F + Send + Sync + 'static,
    ) -> Result<(T, u64), Lost>
    where
        T: Send + 'static,
        F: Future<Output = T> + Send + 'static,
    {
        let mds = loop {
            match self.mds().filter(|_| !self.is_cut(client)) {
                Some(mds) => break mds,
                None => sleep(Duration::from_millis(500)).await,
            }
        };
        let slot = Slot::new(mds.clone(), operation);
        loop {
            let delivery = Delivery::draw(&self.faults);
            let (sender, reply) = oneshot::channel();
            mds.spawn(slot.clone().execute(delivery.delay, self.setup.broken, sender));
            let result = match delivery.repeated_after {
                None => Some(reply.await),
                // The connection is cut, and the client sends the request again (RFC 8881 §2.9.2).
                Some(time) => {
                    sleep(time).await;
                    None
                }
            };
            while self.is_cut(client) {
                sleep(Duration::from_millis(500)).await;
            }
            match result {
                Some(result) => return result.map(|result| (result, mds.number)).map_err(|_| Lost),
                // The session has ended with the process.
                None if mds.dead.load(Relaxed) => return Err(Lost),
                None => {}
            }
            if repetition == Repetition::Harmless && slot.forget(&self.faults) {
                self.log(format!("client {client} makes a new request of one without a cached reply"));
            }
        }
    }

    /// Runs processes of the metadata server on one host, one after the other. If there is another host, this one waits for the lock.
    async fn serve(self: Arc<Self>) {
        loop {
            let number = self.processes.fetch_add(1, Relaxed) + 1;
            let Some(mds) = Mds::start(number, &self.disk, &self.stores, self.setup, &self.faults) else {
                sleep(Duration::from_millis(if self.setup.hosts > 1 { entropy::random_range(10..300) } else { 1000 }))
                    .await;
                continue;
            };
            self.log(format!("metadata server {number} starts"));
            self.mds.lock().push(mds.clone());
            mds.ended.notified().await;
            self.mds.lock().retain(|now| !Arc::ptr_eq(now, &mds));
            mds.end();
            let power = chance(0.5);
            if power {
                self.count(Part::PowerLost);
                self.disk.fail_power();
                self.models.lock().values_mut().for_each(|model| model.lose(true));
            } else {
                self.lose_unstable();
            }
            self.log(format!("metadata server {number} has ended; power failure: {power}"));
            self.disk.unlock();
            drop(mds);
            sleep(Duration::from_millis(entropy::random_range(1000..20_000))).await;
        }
    }

    /// Restarts a data server.
    fn restart_store(&self, server: u32) {
        self.stores.restart(server);
        self.worlds().for_each(|world| world.lose_unstable());
    }

    /// Notes that data may be lost that are not durable.
    fn lose_unstable(&self) {
        self.models.lock().values_mut().for_each(|model| model.lose(false));
    }

    /// Lets parts of the cluster fail.
    async fn trouble(self: Arc<Self>) {
        let mut lasting = JoinSet::new();
        loop {
            sleep(Duration::from_millis(entropy::random_range(500..12_000))).await;
            if !self.has_faults() {
                return;
            }
            let (server, client) = (entropy::random_range(1..=STORES), entropy::random_range(0..CLIENTS));
            let what = entropy::random_range(0..142);
            let time = Duration::from_millis(entropy::random_range(500..40_000));
            self.log(format!("trouble {what} of data server {server}, client {client} for {time:?}"));
            let worlds: Vec<_> = self.worlds().collect();
            let world = worlds[entropy::random_range(0..worlds.len())].clone();
            lasting.spawn(async move { world.fault(what, server, client, time).await });
        }
    }

    fn count(&self, part: Part) {
        self.faults.count(Fault::Part(part));
    }

    async fn fault(&self, what: u32, server: u32, client: usize, time: Duration) {
        let change = |part, change: fn(&mut stores::Store, bool)| {
            self.count(part);
            let stores = self.stores.clone();
            async move {
                stores.change(server, |store| change(store, true));
                sleep(time).await;
                stores.change(server, |store| change(store, false));
            }
        };
        match what {
            0..15 => {
                self.restart_store(server);
                change(Part::ServerDown, |store, down| store.down = down).await;
                self.restart_store(server);
            }
            15..28 => change(Part::ServerHung, |store, hung| store.hung = hung).await,
            28..36 => change(Part::ServerSlow, |store, slow| store.slow = slow).await,
            36..42 => change(Part::ServerFull, |store, full| store.full = full).await,
            42..60 => {
                let (party, part) = match what < 51 {
                    true => (Party::Mds, Part::ServerCutFromMds),
                    false => (Party::Client(client), Part::ServerCutFromClient),
                };
                self.count(part);
                self.stores.change(server, |store| _ = store.cut.insert(party));
                sleep(time).await;
                self.stores.change(server, |store| _ = store.cut.remove(&party));
            }
            60..75 => {
                self.count(Part::ClientCut);
                self.cut.lock().insert(client);
                sleep(time * 2).await;
                self.cut.lock().remove(&client);
            }
            75..90 => {
                self.count(Part::MdsEnded);
                self.mds().into_iter().for_each(|mds| mds.ended.notify_one());
            }
            90..96 => {
                self.count(Part::ServerRestarted);
                self.restart_store(server);
            }
            96..108 => {
                self.faults.count(Fault::Drained);
                self.set_service(server, Service::Draining);
                sleep(time * 3).await;
                if self.has_faults() {
                    self.set_service(server, Service::Active);
                }
            }
            108..120 => self.order_rebalance(time),
            120..130 => change(Part::ServerSick, |store, sick| store.sick = sick).await,
            130..138 => {
                self.count(Part::DiskSick);
                self.disk.sick.store(true, Relaxed);
                sleep(time).await;
                self.disk.sick.store(false, Relaxed);
            }
            _ => {
                self.count(Part::AllServersRestarted);
                (1..=STORES).for_each(|server| self.restart_store(server));
            }
        }
    }

    /// Orders a rebalancing, as an administrator. Some of them copy a few bytes in a second.
    fn order_rebalance(&self, time: Duration) {
        if let Some(mds) = self.mds() {
            self.faults.count(Fault::Rebalanced);
            let rate = [0, 10, 100][time.as_millis() as usize % 3];
            let ordered = mds.pnfs.order_rebalance(Some(rate));
            self.log(format!("rebalancing with the rate {rate}: {ordered:?}"));
        }
    }

    /// Sets the state of a data server, as an administrator. Returns `false` if the metadata server does not do it.
    fn set_service(&self, server: u32, service: Service) -> bool {
        let Some(mds) = self.mds() else { return false };
        let set = mds.pnfs.set_service(ServerId(server), service);
        self.log(format!("data server {server} is {service:?}: {set:?}"));
        set.is_ok()
    }

    /// Drains some data servers for the end of the run, and returns the others to service.
    async fn end_drains(&self) {
        let draining: BTreeSet<u32> = (1..=STORES).filter(|_| chance(0.2)).take(STORES as usize - MIRRORS).collect();
        for (drained, service) in [(false, Service::Active), (true, Service::Draining)] {
            for server in (1..=STORES).filter(|server| draining.contains(server) == drained) {
                while !self.set_service(server, service) {
                    sleep(Duration::from_secs(1)).await;
                }
            }
        }
        *self.draining.lock() = draining;
    }

    /// Checks the files when nothing fails any more and all work is done. Returns their objects.
    ///
    /// # Errors
    /// Returns what is wrong.
    fn check_files(&self) -> Result<BTreeSet<Object>, String> {
        let mut expected = BTreeSet::<Object>::new();
        for name in ["one", "two"] {
            let Some(file) = self.disk.find(name) else { continue };
            let Some(record) = self.disk.record(&file) else { continue };
            let record = Record::decode(&record).map_err(|error| format!("{name}: {error}"))?;
            let size = self.disk.size(&file);
            // An object without data may not exist yet on a data server of kind `slipway`.
            let must_exist = |copy: usize| {
                let server = record.copies[copy].object.server.0;
                !self.kinds.is_slipway(server) || record.stripes.end(record.stripe_of(copy), size) > 0
            };
            let gone = |copy: usize| must_exist(copy) && self.stores.content(record.copies[copy].object).is_none();
            if record.in_sync().any(gone) {
                return Err(format!("invariant 6: an object of {name} does not exist"));
            }
            if !record.is_healthy() {
                return Err(format!("{name} is not healthy: {record:?}"));
            }
            if record.copies.len() != MIRRORS * record.stripes.count() {
                return Err(format!("{name} has another number of copies: {record:?}"));
            }
            let drained = |copy: &pnfs::record::Copy| self.draining.lock().contains(&copy.object.server.0);
            if record.copies.iter().any(drained) {
                return Err(format!("{name} has a copy on a data server that is drained: {record:?}"));
            }
            expected.extend(record.copies.iter().map(|copy| copy.object));
            self.check_copies(&record, size).map_err(|problem| format!("{name}: {problem}"))?;
            let is_volatile = |copy: &pnfs::record::Copy| {
                self.stores.content(copy.object).is_some_and(|(now, durable)| now != durable)
            };
            let is_written = self.mds().is_some_and(|mds| mds.is_written(&file));
            if !is_written && record.copies.iter().any(is_volatile) {
                return Err(format!("invariant 4: a copy of {name} is not durable: {record:?}"));
            }
        }
        Ok(expected)
    }

    /// Checks the cluster when nothing fails any more and all work is done.
    ///
    /// # Errors
    /// Returns what is wrong.
    fn check_at_rest(&self) -> Result<(), String> {
        let mut expected = BTreeSet::new();
        for world in self.worlds() {
            expected.append(&mut world.check_files()?);
        }
        let found = self.stores.objects();
        let more: Vec<_> = found.difference(&expected).collect();
        if more.is_empty() { Ok(()) } else { Err(format!("invariant 6: objects of no file: {more:?}")) }
    }

    /// Checks that the copies of each stripe are equal.
    fn check_copies(&self, record: &Record, size: u64) -> Result<(), String> {
        let content = |copy: &pnfs::record::Copy| self.stores.content(copy.object).unwrap_or_default();
        let contents: Vec<_> = record.copies.iter().map(|copy| content(copy).0).collect();
        let differ = |what: &str| {
            let durable =
                |copy: &pnfs::record::Copy| self.stores.content(copy.object).map(|(_, durable)| cells(&durable));
            let shown: Vec<_> = contents.iter().map(|now| cells(now)).collect();
            let durable: Vec<_> = record.copies.iter().map(durable).collect();
            format!("invariant 4: the {what} differ: {record:?}, size {size}, {shown:?}, durable {durable:?}")
        };
        if record.stripes.count() == 1 {
            return if contents.iter().all(|now| *now == contents[0]) { Ok(()) } else { Err(differ("copies")) };
        }
        // An object has no byte behind the file, and clients do not find its end before the last byte of its stripe.
        let ends = |copy: usize| record.stripes.end(record.stripe_of(copy), size)..=size;
        if (0..contents.len()).any(|copy| !ends(copy).contains(&(contents[copy].len() as u64))) {
            return Err(differ("lengths"));
        }
        for Piece { stripe, range } in record.stripes.pieces(0..size) {
            let byte = |copy: usize, at: u64| contents[copy].get(at as usize).copied().unwrap_or(0);
            let differs = |copy: usize| range.clone().any(|at| byte(copy, at) != byte(stripe, at));
            if record.copies_of(stripe).any(differs) {
                return Err(differ("stripes"));
            }
        }
        Ok(())
    }
}

/// Executes one run. Returns how many faults there were.
///
/// # Errors
/// Returns the violation of an invariant, and the events.
fn run(seed: u64, broken: Broken, kinds: Kinds) -> Result<Counts, String> {
    simnet::simulate(seed, || async {
        let worlds = World::all(broken, kinds);
        let mut tasks = JoinSet::new();
        for world in &worlds {
            (0..world.setup.hosts).for_each(|_| _ = tasks.spawn(world.clone().serve()));
        }
        tasks.spawn(worlds[0].clone().trouble());
        let work = async {
            let mut clients = JoinSet::new();
            for world in &worlds {
                (0..CLIENTS).for_each(|number| _ = clients.spawn(Client::new(number, world).run()));
            }
            while clients.join_next().await.is_some() {}
            end(&worlds).await;
        };
        if timeout(HANG, work).await.is_err() {
            worlds[0].fail("the work does not end".to_owned());
        }
        tasks.shutdown().await;
        let log = worlds[0].log.lock().join("\n");
        match worlds[0].has_failed() {
            true => Err(format!("{log}\n{}", worlds[0].violation.lock().clone().unwrap_or_default())),
            false => Ok(worlds[0].faults.counts()),
        }
    })
}

/// Ends all faults, waits until all work is done, and checks everything.
async fn end(worlds: &[Arc<World>]) {
    worlds[0].faults.end();
    worlds[0].stores.heal();
    for world in worlds {
        world.log("all faults end".to_owned());
        world.cut.lock().clear();
    }
    for world in worlds {
        world.end_drains().await;
        if chance(0.3) {
            world.mds().into_iter().for_each(|mds| mds.ended.notify_one());
        }
    }
    let world = &worlds[0];
    for _ in 0..60 {
        if world.has_failed() {
            return;
        }
        sleep(Duration::from_secs(10)).await;
        if world.check_at_rest().is_ok() {
            break;
        }
    }
    if let Err(problem) = world.check_at_rest() {
        return world.fail(format!("at rest: {problem}"));
    }
    for world in worlds {
        let reader = Client::new(CLIENTS, world);
        for name in ["one", "two"] {
            if let Some(file) = world.disk.find(name) {
                reader.check_whole(&file).await;
            }
        }
    }
}

/// The number of copies of a file.
const MIRRORS: usize = 2;
/// The number of clients.
const CLIENTS: usize = 3;
/// The number of bytes that one write changes as a unit.
const CELL: usize = 64;
/// Maximum number of cells of a file.
const CELLS: usize = 16;
const LEASE: Duration = Duration::from_secs(30);
/// The time after which a run hangs.
const HANG: Duration = Duration::from_secs(4 * 3600);

#[test]
fn invariants_hold() {
    let (mut violations, mut counts) = (Vec::new(), Counts::new());
    for seed in simnet::seeds(SEEDS) {
        match run(seed, Broken::Nothing, Kinds::of(seed)) {
            Ok(faults) => faults.into_iter().for_each(|(fault, count)| *counts.entry(fault).or_default() += count),
            Err(violation) => violations.push((seed, violation)),
        }
    }
    if let Some((first, violation)) = violations.first() {
        let seeds: Vec<_> = violations.iter().map(|(seed, _)| seed).collect();
        panic!("seed {first}:\n{violation}\nthe seeds of all violations: {seeds:?}");
    }
    println!("{counts:?}");
    let missing: Vec<_> = FAULTS.into_iter().filter(|fault| !counts.contains_key(fault)).collect();
    // A few seeds do not have all kinds.
    assert!(missing.is_empty() || simnet::seeds(SEEDS).count() < 100, "these faults have not occurred: {missing:?}");
}

/// Each of these seeds has found a fault. The faults are in the changelog, and `docs/simulation.md` names them.
#[test]
fn seeds_that_found_faults() {
    for (seed, fault) in FOUND {
        if let Err(violation) = run(seed, Broken::Nothing, Kinds::Nfs3) {
            panic!("seed {seed}, which has found \"{fault}\":\n{violation}");
        }
    }
}

/// Checks that one of the first seeds finds a fault, and which invariant it violates.
fn assert_found(broken: Broken, kinds: Kinds, violated: &str) {
    let mut found = (0..FOUND_WITHIN).filter_map(|seed| run(seed, broken, kinds).err());
    let violation = found.find(|violation| violation.lines().any(|line| line.contains(violated)));
    assert!(violation.is_some(), "{broken:?} must be found");
}

#[test]
fn stale_mark_after_the_grant_is_found() {
    assert_found(Broken::RecordLate, Kinds::Nfs3, " has the value ");
}

#[test]
fn change_that_is_acknowledged_without_being_durable_is_found() {
    assert_found(Broken::SyncErrorHidden, Kinds::Nfs3, " cells during ");
}

#[test]
fn fence_without_effect_is_found() {
    assert_found(Broken::FenceIgnored, Kinds::Nfs3, "invariant 3");
    assert_found(Broken::FenceIgnored, Kinds::Slipway, "invariant 3");
}

#[test]
fn index_that_loses_its_last_writes_is_found() {
    assert_found(Broken::IndexLost, Kinds::Nfs3, "invariant 6: objects of no file");
}

#[test]
fn commit_without_effect_is_found() {
    assert_found(Broken::CommitSkipped, Kinds::Nfs3, " has the value ");
}

#[test]
fn commit_that_fails_without_a_mark_is_found() {
    assert_found(Broken::CommitErrorHidden, Kinds::Nfs3, " has the value ");
}

#[test]
fn write_that_a_copy_misses_without_a_mark_is_found() {
    assert_found(Broken::FailureHidden, Kinds::Nfs3, " has the value ");
}

#[test]
fn layouts_that_end_without_a_recall_are_found() {
    assert_found(Broken::RecallSkipped, Kinds::Nfs3, "invariant 3");
}

#[test]
fn object_that_a_late_client_creates_again_is_found() {
    assert_found(Broken::RemovalForgotten, Kinds::Slipway, "invariant 6: objects of no file");
}

#[test]
fn object_removed_early_is_found() {
    assert_found(Broken::RemovedEarly, Kinds::Nfs3, "invariant 6: an object of");
}

#[test]
fn request_that_is_executed_twice_is_found() {
    assert_found(Broken::RepliesNotCached, Kinds::Nfs3, " has the value ");
}

#[test]
fn two_processes_at_the_same_time_are_found() {
    assert_found(Broken::LockIgnored, Kinds::Nfs3, "invariant 7");
}

/// Two runs with one seed have the same events.
#[test]
fn runs_replay() {
    for seed in simnet::seeds(3) {
        let run = || run(seed, Broken::FailureHidden, Kinds::of(seed));
        assert_eq!(run(), run(), "seed {seed}");
    }
}

/// The number of seeds in ordinary test runs.
const SEEDS: u64 = 3000;
/// The number of seeds within which each broken build is found.
const FOUND_WITHIN: u64 = 2000;
/// Seeds, and the faults that they have found.
const FOUND: [(u64, &str); 13] = [
    (0, "a data server loses writes that nobody commits, and is not left out"),
    (8, "an object that was created before a crash is never removed"),
    (18, "the new copy of a removed file is never removed"),
    (38, "the end of a layout gives a file its size of before a truncation"),
    (67, "a copy is made from one that has lost writes, and COMMIT succeeds"),
    (162, "a copy that has lost writes is copied during a write"),
    (230, "a write that was lost while it was in progress has the new verifier"),
    (455, "a client reads a stale copy with a layout of the former process"),
    (815, "a record that replaces a moved copy is used before it is durable"),
    (996, "the upkeep forgets a truncation that has failed"),
    (1142, "copies stay different after a client has ended"),
    (2599, "a write that fails while copies are made equal leaves an object that is longer than the file"),
    (2543, "the upkeep cuts an object after it has granted a layout"),
];
