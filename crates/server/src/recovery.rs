//! What must survive a restart of the server, in one embedded database in the state directory: `recovery.redb`.
//!
//! Every change is a transaction, on stable storage when the call returns: what a client was promised is not forgotten,
//! whenever the server ends. Calls wait for storage; run them where that is allowed. Each protocol has tables of its own
//! here:
//!
//! | table | key | value |
//! |---|---|---|
//! | `nsm` | `"state"` | our NSM state number, u32 |
//! | `nsm_hosts` | 16 bytes of an IPv6 address (IPv4 mapped), then a host's name | its NSM state number, u32 |
//! | `nsm_monitors` | a `mon_id` in XDR | its 16 private bytes |
//! | `v4_clients` | the name of an NFSv4 client owner (`co_ownerid`) that may reclaim | nothing |
//! | `v4_forfeited` | the name of one that may not, and may hold something | nothing |

use std::{
    collections::BTreeSet,
    io,
    net::{IpAddr, Ipv6Addr},
    path::Path,
    sync::atomic::{
        AtomicBool,
        Ordering::{Acquire, Release},
    },
    time::{SystemTime, UNIX_EPOCH},
};

use bytes::Bytes;
pub use redb::StorageBackend;
use redb::{Database, ReadableDatabase, ReadableTable, TableDefinition, backends::InMemoryBackend};

/// The database.
pub struct Recovery {
    database: Database,
    persistent: bool,
    failed: AtomicBool,
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
}

impl Recovery {
    /// Opens the database in the state directory, or makes it.
    ///
    /// # Errors
    /// It cannot be read or written, or another server has it.
    pub fn open(state_dir: &Path) -> io::Result<Self> {
        let path = state_dir.join(FILE);
        let located = |error: redb::DatabaseError| io::Error::other(format!("{}: {error}", path.display()));
        let database = Database::create(&path).map_err(located)?;
        Self::with(database, true)
    }

    /// As [`open`](Self::open), on storage of any other kind.
    ///
    /// # Errors
    /// The storage fails, or what is there is no such database.
    pub fn on(storage: impl StorageBackend) -> io::Result<Self> {
        Self::with(Database::builder().create_with_backend(storage).map_err(io::Error::other)?, true)
    }

    /// A database that ends with the process: for a server whose file handles do so, too.
    pub fn in_memory() -> Self {
        let database = Database::builder().create_with_backend(InMemoryBackend::new()).expect("memory takes it");
        Self::with(database, false).expect("memory takes it")
    }

    fn with(database: Database, persistent: bool) -> io::Result<Self> {
        let recovery = Self { database, persistent, failed: AtomicBool::new(false) };
        recovery.write(|transaction| {
            transaction.open_table(NSM)?;
            transaction.open_table(NSM_HOSTS)?;
            transaction.open_table(NSM_MONITORS)?;
            transaction.open_table(V4_CLIENTS)?;
            transaction.open_table(V4_FORFEITED)?;
            Ok(())
        })?;
        Ok(recovery)
    }

    /// Whether it survives the process.
    pub fn is_persistent(&self) -> bool {
        self.persistent
    }

    /// Whether a change was ever not stored. Then none will be until the database is opened again, and who should have been
    /// forgotten could reclaim: nobody must get anything any more.
    pub fn has_failed(&self) -> bool {
        self.failed.load(Acquire)
    }

    /// The NSM state number of a new life: odd, and greater than that of every one before (C702 §11.2).
    ///
    /// # Errors
    /// The storage fails.
    pub fn next_nsm_state(&self) -> io::Result<i32> {
        let mut next = 0;
        self.write(|transaction| {
            let mut table = transaction.open_table(NSM)?;
            let last = table.get(STATE)?.map(|state| state.value());
            // Where nothing is remembered, the time is greater than at every start before.
            let seconds = || SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs() as u32);
            next = (last.map_or_else(seconds, |last| last + 1) | 1) & i32::MAX as u32;
            table.insert(STATE, next)?;
            Ok(())
        })?;
        Ok(next as i32)
    }

    /// The hosts that are told when we have restarted.
    ///
    /// # Errors
    /// The storage fails.
    pub fn hosts(&self) -> io::Result<Vec<MonitoredHost>> {
        let read = || -> Result<Vec<MonitoredHost>, redb::Error> {
            let transaction = self.database.begin_read()?;
            let table = transaction.open_table(NSM_HOSTS)?;
            let entry = |entry: Result<(redb::AccessGuard<'_, &[u8]>, redb::AccessGuard<'_, u32>), _>| {
                let (key, state) = entry?;
                Ok(host_of(key.value()).map(|(address, name)| MonitoredHost {
                    address,
                    name,
                    state: state.value() as i32,
                }))
            };
            table.iter()?.map(entry).filter_map(Result::transpose).collect()
        };
        read().map_err(io::Error::other)
    }

    /// Remembers a host.
    ///
    /// # Errors
    /// The storage fails: the host must not get locks then.
    pub fn add_host(&self, host: &MonitoredHost) -> io::Result<()> {
        let key = host_key(host.address, &host.name);
        self.write(|transaction| {
            transaction.open_table(NSM_HOSTS)?.insert(&key[..], host.state as u32)?;
            Ok(())
        })
    }

    /// Forgets hosts.
    ///
    /// # Errors
    /// The storage fails.
    pub fn remove_hosts<'a>(&self, hosts: impl IntoIterator<Item = (IpAddr, &'a [u8])>) -> io::Result<()> {
        self.write(|transaction| {
            let mut table = transaction.open_table(NSM_HOSTS)?;
            for (address, name) in hosts {
                table.remove(&host_key(address, name)[..])?;
            }
            Ok(())
        })
    }

    /// Who on this host wants to know of restarts.
    ///
    /// # Errors
    /// The storage fails.
    pub fn monitors(&self) -> io::Result<Vec<Monitor>> {
        let read = || -> Result<Vec<Monitor>, redb::Error> {
            let transaction = self.database.begin_read()?;
            let table = transaction.open_table(NSM_MONITORS)?;
            let mut monitors = Vec::new();
            for entry in table.iter()? {
                let (key, private) = entry?;
                monitors.push(Monitor { mon_id: Bytes::copy_from_slice(key.value()), private: *private.value() });
            }
            Ok(monitors)
        };
        read().map_err(io::Error::other)
    }

    /// Remembers who wants to know.
    ///
    /// # Errors
    /// The storage fails.
    pub fn add_monitor(&self, monitor: &Monitor) -> io::Result<()> {
        self.write(|transaction| {
            transaction.open_table(NSM_MONITORS)?.insert(&monitor.mon_id[..], &monitor.private)?;
            Ok(())
        })
    }

    /// Forgets those of whom `gone` says so.
    ///
    /// # Errors
    /// The storage fails.
    pub fn remove_monitors(&self, gone: impl Fn(&[u8]) -> bool) -> io::Result<()> {
        self.write(|transaction| {
            transaction.open_table(NSM_MONITORS)?.retain(|key, _| !gone(key))?;
            Ok(())
        })
    }

    /// The NFSv4 clients that may have held something.
    ///
    /// # Errors
    /// The storage fails.
    pub fn v4_clients(&self) -> io::Result<V4Clients> {
        let read = || -> Result<V4Clients, redb::Error> {
            let transaction = self.database.begin_read()?;
            let owners = |table| -> Result<BTreeSet<Bytes>, redb::Error> {
                let table = transaction.open_table(table)?;
                table.iter()?.map(|entry| Ok(Bytes::copy_from_slice(entry?.0.value()))).collect()
            };
            Ok(V4Clients { reclaiming: owners(V4_CLIENTS)?, forfeited: owners(V4_FORFEITED)? })
        };
        read().map_err(io::Error::other)
    }

    /// Changes what is remembered of NFSv4 clients, in this order and all or nothing.
    ///
    /// # Errors
    /// The storage fails: the clients must not get anything then, nor anybody else what they held.
    pub fn change_v4_clients(&self, changes: &[RecordChange]) -> io::Result<()> {
        self.write(|transaction| {
            let mut clients = transaction.open_table(V4_CLIENTS)?;
            let mut forfeited = transaction.open_table(V4_FORFEITED)?;
            for change in changes {
                let (RecordChange::Add(owner) | RecordChange::Forfeit(owner) | RecordChange::Remove(owner)) = change;
                clients.remove(&owner[..])?;
                forfeited.remove(&owner[..])?;
                match change {
                    RecordChange::Add(_) => drop(clients.insert(&owner[..], ())?),
                    RecordChange::Forfeit(_) => drop(forfeited.insert(&owner[..], ())?),
                    RecordChange::Remove(_) => {}
                }
            }
            Ok(())
        })
    }

    fn write(&self, change: impl FnOnce(&redb::WriteTransaction) -> Result<(), redb::Error>) -> io::Result<()> {
        let run = || -> Result<(), redb::Error> {
            let transaction = self.database.begin_write()?;
            change(&transaction)?;
            Ok(transaction.commit()?)
        };
        run().map_err(|error| {
            self.failed.store(true, Release);
            io::Error::other(error)
        })
    }
}

fn host_key(address: IpAddr, name: &[u8]) -> Vec<u8> {
    let address = match address {
        IpAddr::V4(address) => address.to_ipv6_mapped(),
        IpAddr::V6(address) => address,
    };
    [&address.octets()[..], name].concat()
}

fn host_of(key: &[u8]) -> Option<(IpAddr, Bytes)> {
    let (address, name) = key.split_first_chunk::<16>()?;
    Some((IpAddr::V6(Ipv6Addr::from(*address)).to_canonical(), Bytes::copy_from_slice(name)))
}

const FILE: &str = "recovery.redb";
const STATE: &str = "state";
const NSM: TableDefinition<'_, &str, u32> = TableDefinition::new("nsm");
const NSM_HOSTS: TableDefinition<'_, &[u8], u32> = TableDefinition::new("nsm_hosts");
const NSM_MONITORS: TableDefinition<'_, &[u8], &[u8; 16]> = TableDefinition::new("nsm_monitors");
const V4_CLIENTS: TableDefinition<'_, &[u8], ()> = TableDefinition::new("v4_clients");
const V4_FORFEITED: TableDefinition<'_, &[u8], ()> = TableDefinition::new("v4_forfeited");

#[cfg(test)]
mod tests {
    use super::{RecordChange::*, *};

    fn owner(name: &'static str) -> Bytes {
        Bytes::from_static(name.as_bytes())
    }

    fn host(address: &str, name: &str, state: i32) -> MonitoredHost {
        MonitoredHost { address: address.parse().unwrap(), name: name.to_owned().into(), state }
    }

    #[test]
    fn hosts_monitors_and_the_state_number_survive() {
        let dir = tempfile::tempdir().unwrap();
        let (a, b) = (host("10.0.0.1", "venus", 3), host("fe80::1", "", -1));
        let monitor = Monitor { mon_id: Bytes::from_static(b"mars"), private: [7; 16] };
        let first = {
            let recovery = Recovery::open(dir.path()).unwrap();
            assert!(Recovery::open(dir.path()).is_err(), "one server at a time");
            recovery.add_host(&a).unwrap();
            recovery.add_host(&b).unwrap();
            recovery.add_host(&a).unwrap();
            recovery.add_monitor(&monitor).unwrap();
            recovery.next_nsm_state().unwrap()
        };
        let recovery = Recovery::open(dir.path()).unwrap();
        assert_eq!(recovery.hosts().unwrap(), [a.clone(), b.clone()]);
        assert_eq!(recovery.monitors().unwrap(), [monitor]);
        let second = recovery.next_nsm_state().unwrap();
        assert_eq!((first % 2, second), (1, first + 2));
        recovery.remove_hosts([(a.address, &a.name[..])]).unwrap();
        assert_eq!(recovery.hosts().unwrap(), [b]);
        recovery.remove_monitors(|id| id == b"other").unwrap();
        assert_eq!(recovery.monitors().unwrap().len(), 1);
        recovery.remove_monitors(|id| id == b"mars").unwrap();
        assert_eq!(recovery.monitors().unwrap().len(), 0);
    }

    #[test]
    fn clients_of_version_4_survive_until_they_are_forgotten() {
        let dir = tempfile::tempdir().unwrap();
        {
            let recovery = Recovery::open(dir.path()).unwrap();
            assert_eq!(recovery.v4_clients().unwrap(), V4Clients::default());
            let change = |changes: &[RecordChange]| recovery.change_v4_clients(changes).unwrap();
            change(&[Add(owner("venus"))]);
            change(&[Add(owner("mars")), Forfeit(owner("venus")), Add(owner("")), Add(owner("mars"))]);
            change(&[Remove(owner("mercury")), Forfeit(owner("pluto")), Forfeit(owner("luna")), Add(owner("luna"))]);
        }
        let recovery = Recovery::open(dir.path()).unwrap();
        let clients = |reclaiming: &[&'static str], forfeited: &[&'static str]| V4Clients {
            reclaiming: reclaiming.iter().copied().map(owner).collect(),
            forfeited: forfeited.iter().copied().map(owner).collect(),
        };
        assert_eq!(recovery.v4_clients().unwrap(), clients(&["", "mars", "luna"], &["venus", "pluto"]));
        recovery.change_v4_clients(&[Remove(owner("mars")), Remove(owner("")), Remove(owner("pluto"))]).unwrap();
        assert_eq!(recovery.v4_clients().unwrap(), clients(&["luna"], &["venus"]));
    }

    #[test]
    fn in_memory_it_works_alike_and_ends() {
        let recovery = Recovery::in_memory();
        let first = recovery.next_nsm_state().unwrap();
        assert_eq!(recovery.next_nsm_state().unwrap(), first + 2);
        recovery.add_host(&host("::ffff:10.0.0.1", "x", 1)).unwrap();
        assert_eq!(recovery.hosts().unwrap(), [host("10.0.0.1", "x", 1)]);
        assert!(!recovery.is_persistent());
    }
}
