//! State that must survive a restart of the server, in one embedded database in the state directory: `recovery.redb`.
//!
//! All of this state is in memory, and the database is a copy of it. A change that gives a client something takes
//! effect only after it is on stable storage. So the server never loses a promise that it has made, whenever it ends.
//! The calls wait for storage; make them on threads that may block. Each protocol has its own tables:
//!
//! | table | key | value |
//! |---|---|---|
//! | `nsm` | `"state"` | the NSM state number of this server, u32 |
//! | `nsm` | `"clients_unknown"` | 1 after a reset, until the grace period has ended |
//! | `nsm_hosts` | 16 bytes of an IPv6 address (IPv4 mapped), then a host's name | its NSM state number, u32 |
//! | `nsm_monitors` | a `mon_id` in XDR | its 16 private bytes |
//! | `v4_clients` | the name of an NFSv4 client owner (`co_ownerid`) that may reclaim | nothing |
//! | `v4_forfeited` | the name of a client owner that may not reclaim, and may hold state | nothing |
//! | `handle_databases` | the name of a handle database in the state directory | nothing |
//!
//! # Deferred changes
//!
//! The record of a client that ended and held nothing is removed [later](Recovery::defer_v4_clients), with the next
//! change or by the server's periodic task. If the server crashes before, the next grace period waits for this client,
//! too. Nothing else is affected.
//!
//! # When storage fails
//!
//! An error, such as a full disk, closes the database. The next change, or the server's periodic task, writes a new
//! database from memory, at most once in [`RETRY_INTERVAL`]. Until that succeeds:
//!
//! - A change that can be refused, such as the first record of a client, is refused and has no effect.
//! - A change that has already happened, such as the loss of a client's locks, is applied in memory, and
//!   [`is_behind`](Recovery::is_behind) returns `true` until it is stored. Meanwhile no other client can get what the
//!   client has lost: if the server ended, the client could reclaim it after the restart.

mod contents;
pub mod state_dir;
mod storage;

use std::{
    collections::BTreeSet,
    io,
    net::{IpAddr, Ipv6Addr},
    ops::Bound::{Included, Unbounded},
    sync::atomic::{
        AtomicBool, AtomicU64,
        Ordering::{Acquire, Relaxed, Release},
    },
    time::{Duration, Instant, UNIX_EPOCH},
};

use bytes::Bytes;
use parking_lot::{Mutex, RwLock};
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

/// The state that survives a restart, and the database that stores it.
pub struct Recovery {
    /// The storage of the database; `None` if the state does not outlive the process.
    storage: Option<Box<dyn Databases>>,
    /// Locked while a change is stored. A thread must hold this lock to change `contents`.
    stored: Mutex<Stored>,
    /// Locked after `stored`, and never for writing while waiting for storage, so readers do not wait for it.
    contents: RwLock<Contents>,
    /// Changes that have happened and are stored later. Taken after `stored`, and never held while waiting for storage.
    deferred: Mutex<Vec<Change>>,
    /// `true` if memory has a change that is not stored.
    behind: AtomicBool,
    failures: AtomicU64,
    refusals: AtomicU64,
}

#[derive(Default)]
struct Stored {
    /// The open database; `None` if it has failed and must be rewritten.
    database: Option<Database>,
    /// The time of the last attempt to rewrite it.
    tried: Option<Instant>,
}

/// The state of the storage, and counters of its failures.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StorageReport {
    /// `true` if the storage does not work now.
    pub is_failing: bool,
    /// The number of failed attempts to write.
    pub failures: u64,
    /// The number of requests of clients that were refused because of failures.
    pub refusals: u64,
}

/// A host that may hold locks, and is notified when this server has restarted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MonitoredHost {
    /// The address of the host.
    pub address: IpAddr,
    /// The name of the host (`caller_name`).
    pub name: Bytes,
    /// The NSM state number of the host when it was added.
    pub state: i32,
}

/// A program on this host that monitors restarts of another host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Monitor {
    /// The monitored host and the program: a `mon_id` in XDR.
    pub mon_id: Bytes,
    /// Private data that the program gets back in a notice.
    pub private: [u8; 16],
}

/// NFSv4 client owners that may have held state before the restart.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct V4Clients {
    /// Client owners that may reclaim their state.
    pub reclaiming: BTreeSet<Bytes>,
    /// Client owners that may not reclaim, because they have lost state. The state that they still hold stays reserved
    /// until they notice the restart or their leases expire.
    pub forfeited: BTreeSet<Bytes>,
}

/// A change of the record of an NFSv4 client owner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RecordChange {
    /// The client owner may reclaim its state after a restart (RFC 8881 §8.4.2.1).
    Add(Bytes),
    /// The client owner may not reclaim. After a restart, its state must not be granted to others while the client may
    /// still assume that it holds it.
    Forfeit(Bytes),
    /// The client owner holds no state any more.
    Remove(Bytes),
    /// The client owner ended or was unused, and held no state. No reply and no other client depends on the time at
    /// which this is stored.
    Retire(Bytes),
}

impl RecordChange {
    /// Returns the client owner (`co_ownerid`).
    pub fn owner(&self) -> &Bytes {
        let (Self::Add(owner) | Self::Forfeit(owner) | Self::Remove(owner) | Self::Retire(owner)) = self;
        owner
    }
}

impl Recovery {
    /// Opens the database in a state directory. If there is none, creates one, unless `was_used` says that there was
    /// one before. If the database is lost and `on_loss` accepts that, creates a new one that records that the clients
    /// are unknown.
    ///
    /// # Errors
    /// Returns an error if the database is damaged or missing, or cannot be read or written.
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

    /// Opens the database like [`open`](Self::open), on any other storage.
    ///
    /// # Errors
    /// Returns an error if the storage fails or contains something that is not such a database.
    pub fn on(storage: impl Storage) -> io::Result<Self> {
        let (database, contents) =
            Databases::open(&storage)?.map_or_else(Default::default, |(database, contents)| (Some(database), contents));
        Self::with(storage, database, contents)
    }

    /// Creates state that does not outlive the process, for a server whose file handles do not, either.
    pub fn in_memory() -> Self {
        Self::new(None, None, Contents::default())
    }

    fn with(storage: impl Storage, database: Option<Database>, mut contents: Contents) -> io::Result<Self> {
        let mut database = database;
        if contents.clients_unknown {
            // No client has been granted anything since the reset, so no claim of these clients can be verified.
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
        let stored = Mutex::new(Stored { database, tried: None });
        let (deferred, behind, failures, refusals) = Default::default();
        Self { storage, stored, contents: RwLock::new(contents), deferred, behind, failures, refusals }
    }

    /// Returns `true` if the state outlives the process.
    pub fn is_persistent(&self) -> bool {
        self.storage.is_some()
    }

    /// Returns `true` if a server has used this state before.
    pub fn was_used(&self) -> bool {
        self.contents.read().nsm_state.is_some()
    }

    /// Returns `true` if the loss of a client's state is not stored yet. No client can be granted state then.
    pub fn is_behind(&self) -> bool {
        self.behind.load(Acquire)
    }

    /// Counts a request that is refused because of [`is_behind`](Self::is_behind).
    pub(crate) fn count_refusal(&self) {
        self.refusals.fetch_add(1, Relaxed);
    }

    /// Returns the state of the storage and the counters of its failures.
    pub fn report(&self) -> StorageReport {
        StorageReport {
            is_failing: self.is_persistent() && self.stored.lock().database.is_none(),
            failures: self.failures.load(Relaxed),
            refusals: self.refusals.load(Relaxed),
        }
    }

    /// Stores deferred changes. Rewrites the database if it has failed and [`RETRY_INTERVAL`] has passed. Returns
    /// `true` if the storage works now.
    pub fn maintain(&self) -> bool {
        let Some(storage) = &self.storage else { return true };
        let stored = &mut *self.stored.lock();
        let deferred = self.take_deferred();
        if !deferred.is_empty() {
            return self.store(stored, &deferred).is_ok();
        }
        self.reopen(stored, storage.as_ref()).is_ok()
    }

    /// Returns `true` if clients may have held state before the restart, but the records of them are lost.
    pub(crate) fn clients_unknown(&self) -> bool {
        self.contents.read().clients_unknown
    }

    /// Records that the grace period has ended, and removes the hosts in `gone`, which have not reclaimed anything.
    pub fn end_grace<'a>(&self, gone: impl IntoIterator<Item = (IpAddr, &'a [u8])>) {
        let mut changes: Vec<_> = gone.into_iter().map(remove_host).collect();
        if self.clients_unknown() {
            changes.push(Change::ClientsUnknown(false));
        }
        self.note(changes);
    }

    /// Returns the NSM state number for a new start of the server, and stores it. It is odd, and greater than all
    /// previous ones (C702 §11.2).
    ///
    /// # Errors
    /// Returns an error if the storage fails.
    pub fn next_nsm_state(&self) -> io::Result<i32> {
        let last = self.contents.read().nsm_state;
        // Without a previous number, the time serves: it is greater than at every earlier start.
        let seconds = || entropy::system_time().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs() as u32);
        let next = (last.map_or_else(seconds, |last| last + 1) | 1) & i32::MAX as u32;
        self.write(vec![Change::NsmState(next)])?;
        Ok(next as i32)
    }

    /// Returns the hosts to notify when this server has restarted.
    pub fn hosts(&self) -> Vec<MonitoredHost> {
        let host = |(key, state): (&Bytes, &u32)| {
            host_of(key).map(|(address, name)| MonitoredHost { address, name, state: *state as i32 })
        };
        self.contents.read().hosts.iter().filter_map(host).collect()
    }

    /// Stores a host, and removes others that hold nothing.
    ///
    /// # Errors
    /// Returns an error if the storage fails. The host must not get locks then.
    pub fn add_host<'a>(
        &self,
        host: &MonitoredHost,
        forgotten: impl IntoIterator<Item = (IpAddr, &'a [u8])>,
    ) -> io::Result<()> {
        let mut changes: Vec<_> = forgotten.into_iter().map(remove_host).collect();
        changes.push(Change::AddHost(host_key(host.address, &host.name), host.state as u32));
        self.write(changes)
    }

    /// Removes a host that has lost its locks.
    pub fn remove_host(&self, address: IpAddr, name: &[u8]) {
        self.note(vec![remove_host((address, name))]);
    }

    /// Returns the monitors whose `mon_id` begins with `prefix`. The XDR of a `mon_id` begins with the name of the monitored host.
    pub fn monitors(&self, prefix: &[u8]) -> Vec<Monitor> {
        let contents = self.contents.read();
        let range = contents.monitors.range::<[u8], _>((Included(prefix), Unbounded));
        let matching = range.take_while(|(mon_id, _)| mon_id.starts_with(prefix));
        matching.map(|(mon_id, private)| Monitor { mon_id: mon_id.clone(), private: *private }).collect()
    }

    /// Returns the number of monitors.
    pub fn monitors_len(&self) -> usize {
        self.contents.read().monitors.len()
    }

    /// Stores a monitor. It replaces one with the same `mon_id`.
    ///
    /// # Errors
    /// Returns an error if the storage fails.
    pub fn add_monitor(&self, monitor: &Monitor) -> io::Result<()> {
        self.write(vec![Change::AddMonitor(monitor.mon_id.clone(), monitor.private)])
    }

    /// Removes the monitors with these `mon_id`s.
    ///
    /// # Errors
    /// Returns an error if the storage fails.
    pub fn remove_monitors(&self, mon_ids: impl IntoIterator<Item = Bytes>) -> io::Result<()> {
        self.write(mon_ids.into_iter().map(Change::RemoveMonitor).collect())
    }

    /// Returns the NFSv4 client owners that may have held state before the restart.
    pub fn v4_clients(&self) -> V4Clients {
        self.contents.read().v4.clone()
    }

    /// Stores an NFSv4 client owner that may reclaim.
    ///
    /// # Errors
    /// Returns an error if the storage fails. The client must not get any state then.
    pub fn add_v4_client(&self, owner: Bytes) -> io::Result<()> {
        self.write(vec![Change::V4(RecordChange::Add(owner))])
    }

    /// Records changes of NFSv4 client owners that have happened, in this order and atomically. Returns `false` if they
    /// are not stored yet.
    pub fn note_v4_clients(&self, changes: impl IntoIterator<Item = RecordChange>) -> bool {
        self.note(changes.into_iter().map(Change::V4).collect())
    }

    /// Records changes of NFSv4 client owners that have happened, in this order, and stores them later. Does not wait
    /// for storage.
    pub fn defer_v4_clients(&self, changes: impl IntoIterator<Item = RecordChange>) {
        if self.is_persistent() {
            self.deferred.lock().extend(changes.into_iter().map(Change::V4));
        } else {
            self.note_v4_clients(changes);
        }
    }

    /// Returns the names of the handle databases that have been used.
    pub(crate) fn handle_databases(&self) -> Vec<String> {
        self.contents.read().handle_databases.iter().cloned().collect()
    }

    /// Stores the name of a handle database.
    ///
    /// # Errors
    /// Returns an error if the storage fails.
    pub(crate) fn add_handle_database(&self, name: String) -> io::Result<()> {
        if self.contents.read().handle_databases.contains(&name) {
            return Ok(());
        }
        self.write(vec![Change::AddHandleDatabase(name)])
    }

    /// Stores changes that have not been announced to any client, and applies them in memory only if that succeeds.
    fn write(&self, changes: Vec<Change>) -> io::Result<()> {
        if changes.is_empty() {
            return Ok(());
        }
        let stored = &mut *self.stored.lock();
        let mut all = self.take_deferred();
        all.extend_from_slice(&changes);
        match self.store(stored, &all) {
            Ok(()) => self.apply(&changes),
            Err(error) => {
                self.count_refusal();
                return Err(error);
            }
        }
        Ok(())
    }

    /// Applies changes that have already happened in memory, and tries to store them. Returns `false` if that fails.
    fn note(&self, changes: Vec<Change>) -> bool {
        if changes.is_empty() {
            return true;
        }
        let stored = &mut *self.stored.lock();
        let mut all = self.take_deferred();
        all.extend_from_slice(&changes);
        let is_stored = self.store(stored, &all).is_ok();
        self.apply(&changes);
        if !is_stored {
            self.behind.store(true, Release);
        }
        is_stored
    }

    /// Applies deferred changes in memory and returns them. The caller stores them. If that fails, the database is
    /// rewritten from memory.
    fn take_deferred(&self) -> Vec<Change> {
        let deferred = std::mem::take(&mut *self.deferred.lock());
        self.apply(&deferred);
        deferred
    }

    /// Applies changes in memory. The caller holds the lock of `stored`.
    fn apply(&self, changes: &[Change]) {
        let mut contents = self.contents.write();
        changes.iter().for_each(|change| contents.apply(change));
    }

    fn store(&self, stored: &mut Stored, changes: &[Change]) -> io::Result<()> {
        let Some(storage) = &self.storage else { return Ok(()) };
        self.reopen(stored, storage.as_ref())?;
        let database = stored.database.as_ref().expect("database must be open");
        storage::store(database, changes).inspect_err(|error| {
            self.failures.fetch_add(1, Relaxed);
            stored.database.take().into_iter().for_each(storage::discard);
            tracing::error!(
                %error,
                "cannot write the recovery database: new clients get no opens and locks until it can be written again"
            );
        })
    }

    /// Makes sure that the database can be used: one that has failed is rewritten from memory.
    fn reopen(&self, stored: &mut Stored, storage: &dyn Databases) -> io::Result<()> {
        if stored.database.is_some() {
            return Ok(());
        }
        let now = clock::now();
        if stored.tried.is_some_and(|tried| now.saturating_duration_since(tried) < RETRY_INTERVAL) {
            return Err(io::Error::other("the recovery database has failed and has not been rewritten yet"));
        }
        stored.tried = Some(now);
        let database = storage.replace(&self.contents.read()).inspect_err(|error| {
            self.failures.fetch_add(1, Relaxed);
            tracing::debug!(%error, "cannot rewrite the recovery database");
        })?;
        (stored.database, stored.tried) = (Some(database), None);
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
/// Minimum time between attempts to rewrite the database.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests;
