//! A process of the metadata server: the layer, and what `server` adds to it: who holds which layout, recalls, leases and fences.

use std::{
    collections::{BTreeMap, BTreeSet},
    future::Future,
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use entropy::HashMap;
use parking_lot::Mutex;
use pnfs::{
    Earlier, Index, Options, Pnfs, Record, Stripes, objects::handle::HANDLE_LEN, record::Object, stripes::Piece,
};
use tokio::{
    sync::Notify,
    task::JoinSet,
    time::{Instant, sleep, timeout},
};
use vfs::{Caller, CompletionSlot, Cred, Handle, Layouts, Result, SetAttr, Time, Vfs, VfsError, layout::*};

use crate::{
    Broken, LEASE, MIRRORS, Setup,
    disk::Disk,
    faults::{Fault, Faults},
    stores::{Link, Pass, Stores, object_of},
};

/// A process of the metadata server.
pub struct Mds {
    pub number: u64,
    pub pnfs: Pnfs,
    pub dead: Arc<AtomicBool>,
    /// Notified when the process ends because of its disk.
    pub ended: Arc<Notify>,
    stores: Stores,
    disk: Arc<Disk>,
    tasks: Mutex<Option<JoinSet<()>>>,
    desk: Mutex<Desk>,
    changed: Notify,
    events: Arc<Events>,
    setup: Setup,
    faults: Faults,
}

/// An instance of a client: its number, and the number of its start.
pub type ClientId = (usize, u64);

/// A copy in a layout: the object, and that by which its data server knows the client.
pub type Copy = (Object, Pass);

/// A layout: the copies of each mirror, one for each stripe.
#[derive(Clone, Debug)]
pub struct Grant {
    pub holder: u64,
    stripes: Stripes,
    pub mirrors: Vec<Vec<Copy>>,
}

/// A range of a file in one copy.
pub struct Place {
    pub copy: Copy,
    pub range: Range<usize>,
}

impl Grant {
    /// Returns where a range is in one mirror.
    pub fn places_in(&self, mirror: usize, range: Range<usize>) -> impl Iterator<Item = Place> {
        let pieces = self.stripes.pieces(range.start as u64..range.end as u64);
        pieces.map(move |Piece { stripe, range }| Place {
            copy: self.mirrors[mirror][stripe],
            range: range.start as usize..range.end as usize,
        })
    }

    /// Returns where a range is in all mirrors.
    pub fn places(&self, range: Range<usize>) -> Vec<Place> {
        (0..self.mirrors.len()).flat_map(|mirror| self.places_in(mirror, range.clone())).collect()
    }
}

#[derive(Default)]
struct Desk {
    next: u64,
    holds: BTreeMap<u64, Hold>,
    /// Fences, truncations and commits in progress.
    fencing: HashMap<Handle, usize>,
    truncating: HashMap<Handle, usize>,
    committing: HashMap<Handle, usize>,
    renewed: BTreeMap<ClientId, Instant>,
    /// The holders that were revoked.
    revoked: BTreeSet<u64>,
    /// The callbacks that clients have not taken yet.
    callbacks: BTreeSet<(ClientId, Vec<u8>)>,
}

/// The layouts of a client on a file.
struct Hold {
    client: ClientId,
    file: Handle,
    modes: LayoutModes,
    copies: Vec<Copy>,
    recalled: LayoutModes,
    since: Option<Instant>,
}

#[derive(Default)]
struct Events {
    queue: Mutex<Vec<LayoutEvent>>,
    added: Notify,
}

impl LayoutEvents for Events {
    fn notify(&self, event: LayoutEvent) {
        self.queue.lock().push(event);
        self.added.notify_one();
    }
}

/// Counts something about a file until it is dropped.
struct Counted<'a>(&'a Mds, Handle, fn(&mut Desk) -> &mut HashMap<Handle, usize>);

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        let mut desk = self.0.desk.lock();
        let count = (self.2)(&mut desk).get_mut(&self.1).expect("the count must exist");
        *count -= 1;
        drop(desk);
        self.0.changed.notify_waiters();
    }
}

impl Mds {
    /// Starts a process. Returns `None` if another one has the lock, or if it ends at once.
    pub fn start(number: u64, disk: &Arc<Disk>, stores: &Stores, setup: Setup, faults: &Faults) -> Option<Arc<Self>> {
        if !disk.lock() && setup.broken != Broken::LockIgnored {
            return None;
        }
        let started = Self::locked(number, disk, stores, setup, faults);
        if started.is_none() {
            disk.unlock();
        }
        started
    }

    fn locked(number: u64, disk: &Arc<Disk>, stores: &Stores, setup: Setup, faults: &Faults) -> Option<Arc<Self>> {
        stores.starts(setup.cluster, number);
        let mounted = disk.mount();
        let (dead, ended) = (mounted.dead.clone(), mounted.ended.clone());
        let index = Index::with_backend(mounted.clone()).ok()?;
        let link = Link { stores: stores.clone(), process: (setup.cluster, number), dead: dead.clone() };
        let options = Options {
            mirrors: MIRRORS,
            stripes: setup.stripes,
            threshold: 4 * crate::CELL as u64,
            layouts: Some(LayoutKind::Flexible),
            earlier: Earlier { layouts: LEASE, requests: Duration::from_secs(1) },
        };
        let pnfs = Pnfs::new(Arc::new(mounted), Arc::new(link), index, options).ok()?;
        let events = Arc::new(Events::default());
        pnfs.subscribe(events.clone());
        let (disk, stores) = (disk.clone(), stores.clone());
        let (desk, changed) = (Mutex::default(), Notify::new());
        let tasks = Mutex::new(Some(JoinSet::new()));
        let faults = faults.clone();
        let mds =
            Arc::new(Self { number, pnfs, dead, ended, stores, disk, tasks, desk, changed, events, setup, faults });
        let (upkeep, watch) = (mds.clone(), mds.clone());
        mds.spawn(async move {
            loop {
                upkeep.pnfs.upkeep().await;
                let _ = timeout(Duration::from_secs(5), upkeep.pnfs.woken()).await;
                sleep(Duration::from_millis(200)).await;
            }
        });
        let rebalance = mds.clone();
        mds.spawn(async move {
            loop {
                rebalance.pnfs.rebalance().await;
                rebalance.pnfs.rebalance_ordered().await;
            }
        });
        mds.spawn(async move { watch.watch().await });
        Some(mds)
    }

    /// Ends the process without warning.
    pub fn end(&self) {
        self.dead.store(true, Relaxed);
        drop(self.tasks.lock().take());
    }

    /// Runs a task until the process ends.
    pub fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        if let Some(tasks) = &mut *self.tasks.lock() {
            tasks.spawn(task);
        }
    }

    /// Executes an operation of the layer to its end.
    pub async fn run<T>(&self, operation: impl Fn(&Pnfs, &Caller<'_>) -> Result<T>) -> Result<T> {
        let (slot, root) = (CompletionSlot::default(), Cred::root());
        loop {
            match operation(&self.pnfs, &Caller { completion: Some(&slot), ..Caller::nonblocking(&root) }) {
                Err(VfsError::Pending) => {
                    let future = slot.take_future().expect("a pending operation must leave a future");
                    slot.complete(future.await);
                }
                done => return done,
            }
        }
    }

    fn count(&self, file: &Handle, what: fn(&mut Desk) -> &mut HashMap<Handle, usize>) -> Counted<'_> {
        *what(&mut self.desk.lock()).entry(file.clone()).or_default() += 1;
        Counted(self, file.clone(), what)
    }

    /// Renews the lease of a client. Returns the holders that were revoked: the status flags of SEQUENCE tell a client that some were
    /// (RFC 8881 §18.46.3).
    pub fn renew(&self, client: ClientId) -> BTreeSet<u64> {
        let mut desk = self.desk.lock();
        desk.renewed.insert(client, Instant::now());
        desk.revoked.clone()
    }

    /// Returns the files of which a client must return layouts.
    pub fn callbacks(&self, client: ClientId) -> Vec<Handle> {
        let mut desk = self.desk.lock();
        let mine: Vec<_> = desk.callbacks.iter().filter(|(of, _)| *of == client).cloned().collect();
        mine.iter().for_each(|callback| _ = desk.callbacks.remove(callback));
        mine.into_iter().map(|(_, file)| Handle::new(&file)).collect()
    }

    /// Grants a layout.
    pub async fn grant(&self, client: ClientId, file: &Handle, mode: LayoutMode) -> Result<Grant> {
        let (holder, new) = {
            let mut desk = self.desk.lock();
            let known = desk.holds.iter().find(|(_, hold)| hold.client == client && hold.file == *file);
            let known = known.map(|(holder, _)| *holder);
            let holder = known.unwrap_or_else(|| {
                desk.next += 1;
                desk.next
            });
            let hold = desk.holds.entry(holder).or_insert_with(|| Hold {
                client,
                file: file.clone(),
                modes: LayoutModes::NONE,
                copies: Vec::new(),
                recalled: LayoutModes::NONE,
                since: None,
            });
            let new = LayoutModes::from(mode).without(hold.modes);
            hold.modes = union(hold.modes, mode.into());
            (holder, new)
        };
        let busy = {
            let desk = self.desk.lock();
            let is = |map: &HashMap<Handle, usize>| map.get(file).is_some_and(|count| *count > 0);
            mode == LayoutMode::Write && (is(&desk.truncating) || is(&desk.fencing))
        };
        let request = LayoutRequest {
            holder: LayoutHolder(holder),
            kind: LayoutKind::Flexible,
            mode,
            range: LayoutRange::ALL,
            transport: DataTransport::Tcp,
            with_open: false,
            striped_copies: true,
        };
        let granted = match busy {
            true => Err(VfsError::Delay),
            false => self.run(|pnfs, caller| pnfs.grant(caller, file, &request)).await,
        };
        let grant = granted.and_then(|layout| match layout {
            Layout::Flexible(layout) => Ok(grant_of(holder, &layout)),
            Layout::Files(_) => Err(VfsError::Io),
        });
        let kept = {
            let mut desk = self.desk.lock();
            let hold = desk.holds.get_mut(&holder).filter(|hold| !hold.modes.intersect(mode.into()).is_empty());
            match (hold, &grant) {
                (Some(hold), Ok(grant)) => {
                    hold.copies.extend(grant.mirrors.iter().flatten());
                    true
                }
                (Some(hold), Err(_)) => {
                    hold.modes = hold.modes.without(new);
                    if hold.modes.is_empty() {
                        desk.holds.remove(&holder);
                    }
                    false
                }
                (None, _) => false,
            }
        };
        if !kept {
            self.changed.notify_waiters();
            let ended = if grant.is_ok() { mode.into() } else { new };
            let _ = self.run(|pnfs, caller| pnfs.release(caller, file, LayoutHolder(holder), ended)).await;
            return Err(grant.err().unwrap_or(VfsError::Delay));
        }
        grant
    }

    fn holder(&self, client: ClientId, file: &Handle) -> Option<(u64, LayoutModes)> {
        let desk = self.desk.lock();
        let found = desk.holds.iter().find(|(_, hold)| hold.client == client && hold.file == *file);
        found.map(|(holder, hold)| (*holder, hold.modes))
    }

    /// Reports whether a client has a layout to write.
    pub fn is_written(&self, file: &Handle) -> bool {
        let desk = self.desk.lock();
        desk.holds.values().any(|hold| hold.file == *file && hold.modes.write)
            || desk.fencing.get(file).is_some_and(|count| *count > 0)
    }

    /// Ends the layouts of a client on a file, which it does not use any more.
    pub async fn return_layouts(&self, client: ClientId, file: &Handle) -> Result<()> {
        let Some((holder, modes)) = self.holder(client, file) else { return Ok(()) };
        self.desk.lock().holds.remove(&holder);
        let done = self.run(|pnfs, caller| pnfs.release(caller, file, LayoutHolder(holder), modes)).await;
        self.changed.notify_waiters();
        done
    }

    /// LAYOUTCOMMIT.
    pub async fn commit_layout(&self, client: ClientId, file: &Handle, size: u64, own_time: bool) -> Result<()> {
        let _committing = self.count(file, |desk| &mut desk.committing);
        let (holder, modes) = self.holder(client, file).ok_or(VfsError::Stale)?;
        if !modes.write {
            return Err(VfsError::Stale);
        }
        let now = Time::now();
        // The server ignores a time that is not later than that of the file.
        let before = self.run(|pnfs, caller| pnfs.getattr(caller, file)).await?;
        let mtime = Some(now).filter(|now| own_time && *now > before.mtime);
        sleep(Duration::from_millis(entropy::random_range(0..3))).await;
        let commit = LayoutCommit { range: LayoutRange::ALL, size: Some(size), mtime };
        let holder = Some(LayoutHolder(holder));
        self.run(|pnfs, caller| Layouts::commit(pnfs, caller, file, holder, &commit)).await.map(drop)
    }

    /// LAYOUTERROR.
    pub async fn report(&self, client: ClientId, file: &Handle, failures: &[DataFailure]) -> Result<()> {
        let Some((holder, _)) = self.holder(client, file) else { return Err(VfsError::Stale) };
        self.run(|pnfs, caller| pnfs.report(caller, file, Some(LayoutHolder(holder)), failures)).await
    }

    /// Sets the size of a file, after the other clients have returned their layouts to write.
    pub async fn truncate(&self, client: ClientId, file: &Handle, size: u64) -> Result<()> {
        let _truncating = self.count(file, |desk| &mut desk.truncating);
        loop {
            let mut changed = std::pin::pin!(self.changed.notified());
            changed.as_mut().enable();
            let free = {
                let mut desk = self.desk.lock();
                let others = desk.holds.values_mut();
                let others = others.filter(|hold| hold.file == *file && hold.modes.write && hold.client != client);
                let none = others.map(|hold| hold.recall(LayoutModes::WRITE)).count() == 0;
                let is = |map: &HashMap<Handle, usize>| map.get(file).is_some_and(|count| *count > 0);
                none && !is(&desk.fencing) && !is(&desk.committing)
            };
            if free {
                break;
            }
            self.events.added.notify_one();
            changed.await;
        }
        let set = SetAttr { size: Some(size), ..SetAttr::default() };
        self.run(|pnfs, caller| pnfs.setattr(caller, file, &set, None)).await.map(drop)
    }

    /// Recalls and revokes layouts.
    async fn watch(self: Arc<Self>) {
        loop {
            for event in std::mem::take(&mut *self.events.queue.lock()) {
                let LayoutEvent::Recall { file, modes, .. } = event else { continue };
                let mut desk = self.desk.lock();
                let holds = desk.holds.values_mut();
                holds.filter(|hold| hold.file == file).for_each(|hold| hold.recall(modes));
            }
            self.call_back();
            let _ = timeout(Duration::from_secs(1), self.events.added.notified()).await;
        }
    }

    fn call_back(self: &Arc<Self>) {
        let (now, mut revoked, mut late) = (Instant::now(), Vec::new(), Vec::new());
        let mut desk = self.desk.lock();
        let Desk { holds, renewed, callbacks, .. } = &mut *desk;
        for (holder, hold) in holds.iter() {
            let ignored = hold.since.is_some_and(|since| now > since + LEASE);
            let expired = renewed.get(&hold.client).is_none_or(|renewed| now > *renewed + LEASE);
            if ignored || expired || self.setup.broken == Broken::RecallSkipped && hold.since.is_some() {
                revoked.push(*holder);
            } else if hold.since.is_some() && !self.faults.occurs(Fault::RecallLost, 0.2) {
                let callback = (hold.client, hold.file.as_bytes().to_vec());
                if self.faults.occurs(Fault::RecallLate, 0.1) {
                    late.push(callback);
                } else {
                    callbacks.insert(callback);
                }
            }
        }
        let revoked: Vec<_> = revoked.into_iter().filter_map(|holder| Some((holder, holds.remove(&holder)?))).collect();
        for (holder, hold) in &revoked {
            desk.revoked.insert(*holder);
            *desk.fencing.entry(hold.file.clone()).or_default() += 1;
        }
        drop(desk);
        for callback in late {
            let (mds, time) = (self.clone(), Duration::from_millis(entropy::random_range(0..20_000)));
            self.spawn(async move {
                sleep(time).await;
                mds.desk.lock().callbacks.insert(callback);
            });
        }
        for (holder, hold) in revoked {
            let mds = self.clone();
            self.spawn(async move { mds.fence(holder, hold).await });
        }
    }

    /// Fences a holder, and tries until that succeeds.
    async fn fence(&self, holder: u64, hold: Hold) {
        let (file, id) = (&hold.file, LayoutHolder(holder));
        if self.setup.broken == Broken::RecallSkipped {
            let _ = self.run(|pnfs, caller| pnfs.release(caller, file, id, hold.modes)).await;
        }
        while self.run(|pnfs, caller| pnfs.fence(caller, file, id, hold.modes)).await.is_err() {
            sleep(Duration::from_secs(1)).await;
        }
        let record = self.disk.record(file).and_then(|record| Record::decode(&record).ok());
        if let Some(record) = record.filter(|_| hold.modes.write) {
            let in_sync: Vec<_> = record.in_sync().map(|copy| record.copies[copy].object).collect();
            let copies = hold.copies.iter().filter(|(object, _)| in_sync.contains(object));
            copies.for_each(|(object, pass)| self.stores.fence(*object, *pass));
        }
        *self.desk.lock().fencing.get_mut(file).expect("the fence must be counted") -= 1;
        self.changed.notify_waiters();
    }
}

impl Hold {
    fn recall(&mut self, modes: LayoutModes) {
        let modes = modes.intersect(self.modes);
        if !modes.is_empty() {
            self.recalled = union(self.recalled, modes);
            self.since.get_or_insert_with(Instant::now);
        }
    }
}

fn union(one: LayoutModes, other: LayoutModes) -> LayoutModes {
    LayoutModes { read: one.read || other.read, write: one.write || other.write }
}

fn grant_of(holder: u64, layout: &FlexibleLayout) -> Grant {
    let copy = |file: &DataFile| {
        let server = pnfs::ServerId(file.device.0[0].into());
        let (id, pass) = match file.handle[..].try_into().map(u128::from_be_bytes) {
            Ok(id) => (id, Pass::User(file.uid)),
            Err(_) => {
                let bytes: [u8; HANDLE_LEN] = file.handle[..].try_into().expect("the handle must be computed");
                (object_of(&bytes), Pass::Handle(bytes))
            }
        };
        (Object { server, id }, pass)
    };
    let mirrors: Vec<Vec<_>> =
        layout.mirrors.iter().map(|mirror| mirror.data_files.iter().map(copy).collect()).collect();
    // A layout of files with one stripe has no stripe unit.
    let stripes = Stripes::new(layout.stripe_unit.max(1), mirrors[0].len()).expect("the stripes must be possible");
    Grant { holder, stripes, mirrors }
}
