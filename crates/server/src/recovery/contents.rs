//! [`Contents`]: all state that survives a restart, and its representation in the tables of the database.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use redb::{Database, Key, ReadableDatabase, ReadableTable, TableDefinition, TableError, Value, WriteTransaction};

use super::{RecordChange, V4Clients};

/// All state that survives a restart.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Contents {
    pub(super) nsm_state: Option<u32>,
    /// `true` if clients may have held state before the restart, but the records of them are lost.
    pub(super) clients_unknown: bool,
    pub(super) hosts: BTreeMap<Bytes, u32>,
    pub(super) monitors: BTreeMap<Bytes, [u8; 16]>,
    pub(super) v4: V4Clients,
    pub(super) handle_databases: BTreeSet<String>,
}

/// A change of [`Contents`].
#[derive(Clone, Debug)]
pub(super) enum Change {
    NsmState(u32),
    ClientsUnknown(bool),
    AddHost(Bytes, u32),
    RemoveHost(Bytes),
    AddMonitor(Bytes, [u8; 16]),
    RemoveMonitor(Bytes),
    V4(RecordChange),
    AddHandleDatabase(String),
}

impl Contents {
    /// Reads all tables of a database.
    pub(super) fn read(database: &Database) -> Result<Self, redb::Error> {
        let transaction = database.begin_read()?;
        let mut contents = Self::default();
        rows(&transaction, NSM, |key, value| match key {
            STATE => contents.nsm_state = Some(value),
            CLIENTS_UNKNOWN => contents.clients_unknown = value != 0,
            _ => {}
        })?;
        let bytes = Bytes::copy_from_slice;
        rows(&transaction, NSM_HOSTS, |key, state| {
            contents.hosts.insert(bytes(key), state);
        })?;
        rows(&transaction, NSM_MONITORS, |key, private| {
            contents.monitors.insert(bytes(key), *private);
        })?;
        rows(&transaction, V4_CLIENTS, |owner, ()| {
            contents.v4.reclaiming.insert(bytes(owner));
        })?;
        rows(&transaction, V4_FORFEITED, |owner, ()| {
            contents.v4.forfeited.insert(bytes(owner));
        })?;
        rows(&transaction, HANDLE_DATABASES, |name, ()| {
            contents.handle_databases.insert(name.to_owned());
        })?;
        Ok(contents)
    }

    /// Applies a change.
    pub(super) fn apply(&mut self, change: &Change) {
        match change.clone() {
            Change::NsmState(state) => self.nsm_state = Some(state),
            Change::ClientsUnknown(unknown) => self.clients_unknown = unknown,
            Change::AddHost(key, state) => {
                self.hosts.insert(key, state);
            }
            Change::RemoveHost(key) => {
                self.hosts.remove(&key);
            }
            Change::AddMonitor(key, private) => {
                self.monitors.insert(key, private);
            }
            Change::RemoveMonitor(key) => {
                self.monitors.remove(&key);
            }
            Change::V4(change) => self.v4.apply(change),
            Change::AddHandleDatabase(name) => {
                self.handle_databases.insert(name);
            }
        }
    }

    /// Returns the changes that produce this from an empty [`Contents`].
    pub(super) fn changes(&self) -> Vec<Change> {
        let Self { nsm_state, clients_unknown, hosts, monitors, v4, handle_databases } = self;
        let mut changes: Vec<_> = nsm_state.iter().copied().map(Change::NsmState).collect();
        changes.push(Change::ClientsUnknown(*clients_unknown));
        changes.extend(hosts.iter().map(|(key, state)| Change::AddHost(key.clone(), *state)));
        changes.extend(monitors.iter().map(|(key, private)| Change::AddMonitor(key.clone(), *private)));
        changes.extend(v4.reclaiming.iter().map(|owner| Change::V4(RecordChange::Add(owner.clone()))));
        changes.extend(v4.forfeited.iter().map(|owner| Change::V4(RecordChange::Forfeit(owner.clone()))));
        changes.extend(handle_databases.iter().cloned().map(Change::AddHandleDatabase));
        changes
    }
}

impl V4Clients {
    fn apply(&mut self, change: RecordChange) {
        self.reclaiming.remove(change.owner());
        self.forfeited.remove(change.owner());
        match change {
            RecordChange::Add(owner) => self.reclaiming.insert(owner),
            RecordChange::Forfeit(owner) => self.forfeited.insert(owner),
            RecordChange::Remove(_) | RecordChange::Retire(_) => false,
        };
    }
}

/// Calls a function for each row of a table. A database that has never been written has no tables.
fn rows<K: Key + 'static, V: Value + 'static>(
    transaction: &redb::ReadTransaction,
    table: TableDefinition<'_, K, V>,
    mut each: impl FnMut(K::SelfType<'_>, V::SelfType<'_>),
) -> Result<(), redb::Error> {
    let table = match transaction.open_table(table) {
        Err(TableError::TableDoesNotExist(_)) => return Ok(()),
        opened => opened?,
    };
    for row in table.iter()? {
        let (key, value) = row?;
        each(key.value(), value.value());
    }
    Ok(())
}

/// Applies changes in a transaction.
pub(super) fn store(transaction: &WriteTransaction, changes: &[Change]) -> Result<(), redb::Error> {
    let mut nsm = transaction.open_table(NSM)?;
    let mut hosts = transaction.open_table(NSM_HOSTS)?;
    let mut monitors = transaction.open_table(NSM_MONITORS)?;
    let mut clients = transaction.open_table(V4_CLIENTS)?;
    let mut forfeited = transaction.open_table(V4_FORFEITED)?;
    let mut handle_databases = transaction.open_table(HANDLE_DATABASES)?;
    for change in changes {
        match change {
            Change::NsmState(state) => drop(nsm.insert(STATE, state)?),
            Change::ClientsUnknown(unknown) => drop(nsm.insert(CLIENTS_UNKNOWN, u32::from(*unknown))?),
            Change::AddHost(key, state) => drop(hosts.insert(&key[..], state)?),
            Change::RemoveHost(key) => drop(hosts.remove(&key[..])?),
            Change::AddMonitor(key, private) => drop(monitors.insert(&key[..], private)?),
            Change::RemoveMonitor(key) => drop(monitors.remove(&key[..])?),
            Change::V4(change) => {
                let owner = change.owner();
                clients.remove(&owner[..])?;
                forfeited.remove(&owner[..])?;
                match change {
                    RecordChange::Add(_) => drop(clients.insert(&owner[..], ())?),
                    RecordChange::Forfeit(_) => drop(forfeited.insert(&owner[..], ())?),
                    RecordChange::Remove(_) | RecordChange::Retire(_) => {}
                }
            }
            Change::AddHandleDatabase(name) => drop(handle_databases.insert(name.as_str(), ())?),
        }
    }
    Ok(())
}

const STATE: &str = "state";
const CLIENTS_UNKNOWN: &str = "clients_unknown";
const NSM: TableDefinition<'_, &str, u32> = TableDefinition::new("nsm");
const NSM_HOSTS: TableDefinition<'_, &[u8], u32> = TableDefinition::new("nsm_hosts");
const NSM_MONITORS: TableDefinition<'_, &[u8], &[u8; 16]> = TableDefinition::new("nsm_monitors");
const V4_CLIENTS: TableDefinition<'_, &[u8], ()> = TableDefinition::new("v4_clients");
const V4_FORFEITED: TableDefinition<'_, &[u8], ()> = TableDefinition::new("v4_forfeited");
const HANDLE_DATABASES: TableDefinition<'_, &str, ()> = TableDefinition::new("handle_databases");
