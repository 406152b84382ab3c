//! State that must survive a restart of the server, in one embedded database in the state directory: `recovery.redb`.
//!
//! Memory has all of it, and the database is a copy. A change that gives a client something is made only when it is on stable
//! storage, so no promise is forgotten, whenever the server ends. Calls wait for storage; run them where that is allowed. Each
//! protocol has tables of its own:
//!
//! | table | key | value |
//! |---|---|---|
//! | `nsm` | `"state"` | our NSM state number, u32 |
//! | `nsm` | `"clients_unknown"` | 1 after a reset, until grace has ended |
//! | `nsm_hosts` | 16 bytes of an IPv6 address (IPv4 mapped), then a host's name | its NSM state number, u32 |
//! | `nsm_monitors` | a `mon_id` in XDR | its 16 private bytes |
//! | `v4_clients` | the name of an NFSv4 client owner (`co_ownerid`) that may reclaim | nothing |
//! | `v4_forfeited` | the name of one that may not, and may hold something | nothing |
//! | `handle_databases` | the name of a handle database in the state directory | nothing |
//!
//! # What nobody waits for
//!
//! The record of a client that ended and held nothing is removed [later](Recovery::defer_v4_clients), with the next change or by the
//! server's periodic task. If the server crashes before, the next grace period lasts for this client, too, and nothing is lost.
//!
//! # When storage fails
//!
//! An error, such as a full disk, closes the database. The next change writes a new one from memory, no more often than once in
//! [`RETRY_INTERVAL`]; the server's periodic task does so as well. Meanwhile
//!
//! - a change that may be refused, such as a client's first record, is refused, and nothing has changed;
//! - a change that has happened already, such as that a client has lost its locks, is made in memory, and
//!   [`is_behind`](Recovery::is_behind) until it is stored. What the client had nobody else may get before that: the server could end, and
//!   in its next life the client could reclaim it.

mod contents;
pub mod state_dir;
mod storage;

use std::{
    collections::BTreeSet,
    io,
    net::{IpAddr, Ipv6Addr},
    sync::atomic::{
        AtomicBool, AtomicU64,
        Ordering::{Acquire, Relaxed, Release},
    },
    time::{Duration, Instant, UNIX_EPOCH},
};

use bytes::Bytes;
use parking_lot::Mutex;
use redb::Database;

pub use self::storage::{Storage, StorageBackend};
use self::{
    contents::{Change, Contents},
    storage::{Databases, Files},
};
use crate::{
    clock,
    recovery::state_dir::{OnLoss, StateDir, Unusable},
};

/// The database.
pub struct Recovery {
    /// None: it ends with the process.
    storage: Option<Box<dyn Databases>>,
    kept: Mutex<Kept>,
    /// Changes that have happened, and are stored later. Taken after `kept`, and never held while waiting for storage.
    deferred: Mutex<Vec<Change>>,
    /// Whether memory has a change that is not stored.
    behind: AtomicBool,
    failures: AtomicU64,
    refusals: AtomicU64,
}

struct Kept {
    contents: Contents,
    /// None: it has failed, and is to be written anew.
    database: Option<Database>,
    /// When that was tried last.
    tried: Option<Instant>,
}

/// How storage has worked so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StorageReport {
    /// It does not work now.
    pub is_failing: bool,
    /// Attempts to write that failed.
    pub failures: u64,
    /// Requests of clients that were refused because of that.
    pub refusals: u64,
}

/// A host that may hold locks, and so is told when we have restarted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MonitoredHost {
    /// Where it is.
    pub address: IpAddr,
    /// Its name for itself.
    pub name: Bytes,
    /// Its NSM state number when it first locked.
    pub state: i32,
}

/// A program on this host that wants to know when another host has restarted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Monitor {
    /// Who is monitored for whom: a `mon_id` in XDR.
    pub mon_id: Bytes,
    /// What the program is told.
    pub private: [u8; 16],
}

/// NFSv4 client owners of the life before that may hold something.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct V4Clients {
    /// They may reclaim it.
    pub reclaiming: BTreeSet<Bytes>,
    /// They may not, for they have lost something. What they have kept is theirs until they hear of the restart, or their leases
    /// are over.
    pub forfeited: BTreeSet<Bytes>,
}

/// What is to be made of the record of an NFSv4 client owner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RecordChange {
    /// It may reclaim what it holds after a restart (RFC 8881 §8.4.2.1).
    Add(Bytes),
    /// It may not, and what it holds is not to be given to others after a restart while it may believe that it does.
    Forfeit(Bytes),
    /// It holds nothing any more.
    Remove(Bytes),
    /// It ended, or is unused, and held nothing: no reply and no other client depends on when this is stored.
    Retire(Bytes),
}

impl RecordChange {
    /// The client owner (`co_ownerid`).
    pub fn owner(&self) -> &Bytes {
        let (Self::Add(owner) | Self::Forfeit(owner) | Self::Remove(owner) | Self::Retire(owner)) = self;
        owner
    }
}

impl Recovery {
    /// Opens the database in a state directory. If there is none, one is created; but not where `was_used` says that there was
    /// one. If it is lost and that is accepted, a new one takes its place, which knows that it does not know the clients.
    ///
    /// # Errors
    /// It is damaged or missing, or cannot be read or written.
    pub fn open(state_dir: &StateDir, was_used: bool, on_loss: OnLoss) -> io::Result<Self> {
        let path = state_dir.file(FILE);
        let files = Files::at(path.clone());
        let opened = match Databases::open(&files) {
            Ok(None) if was_used => Err(Unusable::lost(&path, "it is missing, and the state directory was in use")),
            opened => opened.map_err(|error| Unusable::io(&path, error)),
        };
        let (database, contents) = match opened {
            Ok(Some((database, contents))) => (Some(database), contents),
            Ok(None) => (None, Contents::default()),
            Err(unusable) => {
                unusable.accept(on_loss)?;
                (None, Contents { clients_unknown: true, ..Contents::default() })
            }
        };
        Self::with(files, database, contents).map_err(|error| Unusable::io(&path, error).into())
    }

    /// As [`open`](Self::open), on storage of any other kind.
    ///
    /// # Errors
    /// The storage fails, or what is there is no such database.
    pub fn on(storage: impl Storage) -> io::Result<Self> {
        let (database, contents) =
            Databases::open(&storage)?.map_or_else(Default::default, |(database, contents)| (Some(database), contents));
        Self::with(storage, database, contents)
    }

    /// A database that ends with the process: for a server whose file handles do so, too.
    pub fn in_memory() -> Self {
        Self::new(None, None, Contents::default())
    }

    fn with(storage: impl Storage, database: Option<Database>, mut contents: Contents) -> io::Result<Self> {
        let mut database = database;
        if contents.clients_unknown {
            // Nobody has got anything since, so nobody of these has a claim that can be verified.
            contents = Contents { hosts: Default::default(), v4: V4Clients::default(), ..contents };
            database.take().into_iter().for_each(storage::discard);
        }
        let database = match database {
            Some(database) => database,
            None => Databases::replace(&storage, &contents)?,
        };
        Ok(Self::new(Some(Box::new(storage)), Some(database), contents))
    }

    fn new(storage: Option<Box<dyn Databases>>, database: Option<Database>, contents: Contents) -> Self {
        let kept = Mutex::new(Kept { contents, database, tried: None });
        let (deferred, failures, refusals) = Default::default();
        Self { storage, kept, deferred, behind: AtomicBool::new(false), failures, refusals }
    }

    /// Whether it survives the process.
    pub fn is_persistent(&self) -> bool {
        self.storage.is_some()
    }

    /// Whether a server has run with it before.
    pub fn was_used(&self) -> bool {
        self.kept.lock().contents.nsm_state.is_some()
    }

    /// Whether what a client has lost may still be stored as its own. Nobody may get anything then.
    pub fn is_behind(&self) -> bool {
        self.behind.load(Acquire)
    }

    /// Counts a request that is refused because of [`is_behind`](Self::is_behind).
    pub(crate) fn count_refusal(&self) {
        self.refusals.fetch_add(1, Relaxed);
    }

    /// How storage has worked so far.
    pub fn report(&self) -> StorageReport {
        StorageReport {
            is_failing: self.is_persistent() && self.kept.lock().database.is_none(),
            failures: self.failures.load(Relaxed),
            refusals: self.refusals.load(Relaxed),
        }
    }

    /// Stores what was deferred, and writes the database anew if it has failed and it is time; whether it can be used now.
    pub fn maintain(&self) -> bool {
        let Some(storage) = &self.storage else { return true };
        let kept = &mut *self.kept.lock();
        let deferred = self.take_deferred(kept);
        if !deferred.is_empty() {
            return self.store(kept, &deferred).is_ok();
        }
        self.reopen(kept, storage.as_ref()).is_ok()
    }

    /// Whether clients of the life before may believe to hold something, and it is not known which.
    pub(crate) fn clients_unknown(&self) -> bool {
        self.kept.lock().contents.clients_unknown
    }

    /// Grace has ended, and these hosts have not reclaimed anything.
    pub fn end_grace<'a>(&self, gone: impl IntoIterator<Item = (IpAddr, &'a [u8])>) {
        let mut changes: Vec<_> = gone.into_iter().map(remove_host).collect();
        if self.clients_unknown() {
            changes.push(Change::ClientsUnknown(false));
        }
        self.note(changes);
    }

    /// The NSM state number of a new life: odd, and greater than that of every one before (C702 §11.2).
    ///
    /// # Errors
    /// The storage fails.
    pub fn next_nsm_state(&self) -> io::Result<i32> {
        let last = self.kept.lock().contents.nsm_state;
        // Where nothing is remembered, the time is greater than at every start before.
        let seconds = || entropy::system_time().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs() as u32);
        let next = (last.map_or_else(seconds, |last| last + 1) | 1) & i32::MAX as u32;
        self.write(vec![Change::NsmState(next)])?;
        Ok(next as i32)
    }

    /// The hosts that are told when we have restarted.
    pub fn hosts(&self) -> Vec<MonitoredHost> {
        let host = |(key, state): (&Bytes, &u32)| {
            host_of(key).map(|(address, name)| MonitoredHost { address, name, state: *state as i32 })
        };
        self.kept.lock().contents.hosts.iter().filter_map(host).collect()
    }

    /// Remembers a host, and forgets others that hold nothing.
    ///
    /// # Errors
    /// The storage fails: the host must not get locks then.
    pub fn add_host<'a>(
        &self,
        host: &MonitoredHost,
        forgotten: impl IntoIterator<Item = (IpAddr, &'a [u8])>,
    ) -> io::Result<()> {
        let mut changes: Vec<_> = forgotten.into_iter().map(remove_host).collect();
        changes.push(Change::AddHost(host_key(host.address, &host.name), host.state as u32));
        self.write(changes)
    }

    /// Forgets a host, which has lost what it held.
    pub fn remove_host(&self, address: IpAddr, name: &[u8]) {
        self.note(vec![remove_host((address, name))]);
    }

    /// Who on this host wants to know of restarts.
    pub fn monitors(&self) -> Vec<Monitor> {
        let monitor = |(mon_id, private): (&Bytes, &[u8; 16])| Monitor { mon_id: mon_id.clone(), private: *private };
        self.kept.lock().contents.monitors.iter().map(monitor).collect()
    }

    /// Remembers who wants to know.
    ///
    /// # Errors
    /// The storage fails.
    pub fn add_monitor(&self, monitor: &Monitor) -> io::Result<()> {
        self.write(vec![Change::AddMonitor(monitor.mon_id.clone(), monitor.private)])
    }

    /// Forgets those of whom `gone` says so.
    ///
    /// # Errors
    /// The storage fails.
    pub fn remove_monitors(&self, gone: impl Fn(&[u8]) -> bool) -> io::Result<()> {
        let ids = self.monitors().into_iter().map(|monitor| monitor.mon_id).filter(|id| gone(id));
        self.write(ids.map(Change::RemoveMonitor).collect())
    }

    /// The NFSv4 clients that may have held something.
    pub fn v4_clients(&self) -> V4Clients {
        self.kept.lock().contents.v4.clone()
    }

    /// Remembers an NFSv4 client that may reclaim.
    ///
    /// # Errors
    /// The storage fails: the client must not get anything then.
    pub fn add_v4_client(&self, owner: Bytes) -> io::Result<()> {
        self.write(vec![Change::V4(RecordChange::Add(owner))])
    }

    /// Notes what has become of NFSv4 clients, in this order and all or nothing; false if it is not stored yet.
    pub fn note_v4_clients(&self, changes: impl IntoIterator<Item = RecordChange>) -> bool {
        self.note(changes.into_iter().map(Change::V4).collect())
    }

    /// Notes what has become of NFSv4 clients, in this order, and stores it later. Does not wait for storage.
    pub fn defer_v4_clients(&self, changes: impl IntoIterator<Item = RecordChange>) {
        if self.is_persistent() {
            self.deferred.lock().extend(changes.into_iter().map(Change::V4));
        } else {
            self.note_v4_clients(changes);
        }
    }

    /// The handle databases that have been used.
    pub(crate) fn handle_databases(&self) -> Vec<String> {
        self.kept.lock().contents.handle_databases.iter().cloned().collect()
    }

    /// Remembers that there is a handle database.
    ///
    /// # Errors
    /// The storage fails.
    pub(crate) fn add_handle_database(&self, name: String) -> io::Result<()> {
        if self.kept.lock().contents.handle_databases.contains(&name) {
            return Ok(());
        }
        self.write(vec![Change::AddHandleDatabase(name)])
    }

    /// Makes changes that nobody has been told of yet: they are stored, or not made.
    fn write(&self, changes: Vec<Change>) -> io::Result<()> {
        if changes.is_empty() {
            return Ok(());
        }
        let kept = &mut *self.kept.lock();
        let mut all = self.take_deferred(kept);
        all.extend_from_slice(&changes);
        let stored = self.store(kept, &all);
        match &stored {
            Ok(()) => changes.iter().for_each(|change| kept.contents.apply(change)),
            Err(_) => self.count_refusal(),
        }
        stored
    }

    /// Makes changes that have happened, whether or not they can be stored now; false if not.
    fn note(&self, changes: Vec<Change>) -> bool {
        if changes.is_empty() {
            return true;
        }
        let kept = &mut *self.kept.lock();
        let mut all = self.take_deferred(kept);
        all.extend_from_slice(&changes);
        let stored = self.store(kept, &all);
        changes.iter().for_each(|change| kept.contents.apply(change));
        if stored.is_err() {
            self.behind.store(true, Release);
        }
        stored.is_ok()
    }

    /// Makes in memory what was deferred. The caller stores it; if that fails, the database is written anew from memory.
    fn take_deferred(&self, kept: &mut Kept) -> Vec<Change> {
        let deferred = std::mem::take(&mut *self.deferred.lock());
        deferred.iter().for_each(|change| kept.contents.apply(change));
        deferred
    }

    fn store(&self, kept: &mut Kept, changes: &[Change]) -> io::Result<()> {
        let Some(storage) = &self.storage else { return Ok(()) };
        self.reopen(kept, storage.as_ref())?;
        let database = kept.database.as_ref().expect("it is open");
        storage::store(database, changes).inspect_err(|error| {
            self.failures.fetch_add(1, Relaxed);
            kept.database.take().into_iter().for_each(storage::discard);
            tracing::error!(
                %error,
                "the recovery database cannot be written: new clients get no opens and locks until it can be"
            );
        })
    }

    /// Sees to it that the database can be used: one that has failed is written anew, with all that memory has.
    fn reopen(&self, kept: &mut Kept, storage: &dyn Databases) -> io::Result<()> {
        if kept.database.is_some() {
            return Ok(());
        }
        let now = clock::now();
        if kept.tried.is_some_and(|tried| now.saturating_duration_since(tried) < RETRY_INTERVAL) {
            return Err(io::Error::other("the recovery database has failed, and is not written anew yet"));
        }
        kept.tried = Some(now);
        let database = storage.replace(&kept.contents).inspect_err(|error| {
            self.failures.fetch_add(1, Relaxed);
            tracing::debug!(%error, "the recovery database cannot be written anew");
        })?;
        (kept.database, kept.tried) = (Some(database), None);
        self.behind.store(false, Release);
        tracing::info!("the recovery database can be written again");
        Ok(())
    }
}

impl Drop for Recovery {
    fn drop(&mut self) {
        self.maintain();
    }
}

fn remove_host((address, name): (IpAddr, &[u8])) -> Change {
    Change::RemoveHost(host_key(address, name))
}

fn host_key(address: IpAddr, name: &[u8]) -> Bytes {
    let address = match address {
        IpAddr::V4(address) => address.to_ipv6_mapped(),
        IpAddr::V6(address) => address,
    };
    [&address.octets()[..], name].concat().into()
}

fn host_of(key: &[u8]) -> Option<(IpAddr, Bytes)> {
    let (address, name) = key.split_first_chunk::<16>()?;
    Some((IpAddr::V6(Ipv6Addr::from(*address)).to_canonical(), Bytes::copy_from_slice(name)))
}

const FILE: &str = "recovery.redb";
/// Between attempts to write the database anew.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests;
