//! [`Index`]: the database of the layer. It has the reverse index from data servers to files, the queue of objects to
//! remove, and the files with work to do after a crash.
//!
//! All of it is hints about the records in the files' attributes, which decide. An entry is written durably before the record that
//! it describes, and the end of work may get lost, so after a crash there can be entries too many, and never too few. The first objects of a
//! file are one entry at first, because those of one file are in as many parts of the reverse index.
//!
//! The states of data servers are no hints: an administrator has set them, and they are only here.

mod servers;

pub(crate) use self::servers::Move;

use std::{io, path::Path};

use entropy::HashMap;
use parking_lot::Mutex;
use redb::{ReadableTable, ReadableTableMetadata, StorageBackend, TableDefinition, TableHandle};
use vfs::{Handle, VfsError};

use crate::{
    database::{ChangeError, Database},
    record::{Object, ServerId},
};

/// The database.
pub struct Index {
    database: Database,
    /// New files whose records name the objects in [`NEW`], which are not in [`OBJECTS`] yet. [`settle`](Index::settle) moves the objects of
    /// many files at once: those of one file are in as many parts of the table.
    stored: Mutex<Vec<Handle>>,
}

/// Work to do for a file, as a set of bits.
pub type Work = u8;

/// Copies may differ, because writes to them may have been interrupted.
pub const DIRTY: Work = 1;
/// Objects may be longer than the file.
pub const TRUNCATING: Work = 2;
/// Copies are stale.
pub const UNHEALTHY: Work = 4;
/// Clients may have layouts to write, so copies may differ, and the file may be longer than its attributes say.
pub const LAYOUTS: Work = 8;
/// Objects may not have the users of the record: its epochs were raised, and the data servers are told after that.
pub const OWNERS: Work = 16;

impl Index {
    /// Opens the database in a file, and creates it if necessary. If the process ends while the file is created, the next one creates
    /// it again. Only one process at a time can have it open.
    ///
    /// # Errors
    /// Returns an error if the file cannot be used.
    pub fn open(path: &Path) -> io::Result<Self> {
        Database::open(path, create_tables).map(Self::of)
    }

    /// Opens the database on this storage.
    ///
    /// # Errors
    /// Returns an error if the storage fails or its contents are damaged.
    pub fn with_backend(backend: impl StorageBackend) -> io::Result<Self> {
        Database::with_backend(backend, create_tables).map(Self::of)
    }

    fn of(database: Database) -> Self {
        Self { database, stored: Mutex::default() }
    }

    /// Records that the object will belong to a file, and adds it to the queue of removals: it is removed unless the record of the file
    /// names it then.
    ///
    /// # Errors
    /// Returns `Io`.
    pub fn add(&self, object: Object, file: &Handle) -> Result<(), VfsError> {
        self.database.change(|tables| {
            tables.open_table(OBJECTS)?.insert(key(object), file.as_bytes())?;
            tables.open_table(REMOVALS)?.insert(key(object), ())?;
            Ok(())
        })
    }

    /// Records that a file gets these objects, its first ones, and sets the work to do for it. If the process ends before
    /// [`end_new`](Self::end_new), the next one adds the objects to the queue of removals.
    ///
    /// # Errors
    /// Returns `Io`.
    pub fn begin_new(&self, objects: &[Object], file: &Handle, work: Work) -> Result<(), VfsError> {
        self.database.change(|tables| {
            let objects: Vec<_> = objects.iter().map(|object| key(*object)).collect();
            tables.open_table(NEW)?.insert(file.as_bytes(), objects)?;
            set_work(&mut tables.open_table(WORK)?, file, work)
        })
    }

    /// Ends what [`begin_new`](Self::begin_new) has begun. The objects are added to the queue of removals unless the record of the file is
    /// known to name them (`used`).
    ///
    /// # Errors
    /// Returns `Io`.
    pub fn end_new(&self, file: &Handle, used: bool) -> Result<(), VfsError> {
        if !used {
            return self.database.change_later(|tables| move_new(tables, NEW, [file], true));
        }
        let mut stored = self.stored.lock();
        stored.push(file.clone());
        if stored.len() < STORED_MAX { Ok(()) } else { self.settle_these(&mut stored) }
    }

    /// Moves the objects of all new files to the reverse index. Everything that reads that table, or removes from it, does this first.
    ///
    /// # Errors
    /// Returns `Io`.
    fn settle(&self) -> Result<(), VfsError> {
        self.settle_these(&mut self.stored.lock())
    }

    /// The list is locked until its objects are in the index, so that no reader misses them.
    fn settle_these(&self, stored: &mut Vec<Handle>) -> Result<(), VfsError> {
        if !stored.is_empty() {
            self.database.change_later(|tables| move_new(tables, NEW, &*stored, false))?;
            stored.clear();
        }
        Ok(())
    }

    /// Adds objects to the queue of removals. An object is removed only if no file has it.
    ///
    /// # Errors
    /// Returns `Io`.
    pub fn enqueue_removals(&self, objects: &[Object]) -> Result<(), VfsError> {
        self.database.change(|tables| {
            let mut table = tables.open_table(REMOVALS)?;
            for object in objects {
                table.insert(key(*object), ())?;
            }
            Ok(())
        })
    }

    /// Returns the objects to remove from these data servers, each with the file to which it belongs.
    ///
    /// # Errors
    /// Returns `Io`.
    pub fn removals(&self, servers: &[ServerId]) -> Result<Vec<(Object, Option<Handle>)>, VfsError> {
        self.settle()?;
        self.database.read(|transaction| {
            let (removals, objects) = (transaction.open_table(REMOVALS)?, transaction.open_table(OBJECTS)?);
            let mut all = Vec::new();
            for server in servers {
                for entry in removals.range((server.0, 0)..=(server.0, u128::MAX))? {
                    let key = entry?.0.value();
                    all.push((object(key), objects.get(key)?.map(|file| Handle::new(file.value()))));
                }
            }
            Ok(all)
        })
    }

    /// Returns the number of objects in the queue of removals.
    ///
    /// # Errors
    /// Returns `Io`.
    pub fn count_removals(&self) -> Result<u64, VfsError> {
        self.database.read(|transaction| Ok(transaction.open_table(REMOVALS)?.len()?))
    }

    /// Removes objects from the queue of removals: `used` because files have them, and `removed` from the reverse index, too. This is durable
    /// after the next durable change, or [`sync`](Self::sync).
    ///
    /// # Errors
    /// Returns `Io`.
    pub fn end_removals(&self, used: &[Object], removed: &[Object]) -> Result<(), VfsError> {
        self.settle()?;
        self.database.change_later(|tables| {
            let (mut files, mut removals) = (tables.open_table(OBJECTS)?, tables.open_table(REMOVALS)?);
            for object in used.iter().chain(removed) {
                removals.remove(key(*object))?;
            }
            for object in removed {
                files.remove(key(*object))?;
            }
            Ok(())
        })
    }

    /// Sets the work to do for files, durably. 0 removes a file.
    ///
    /// # Errors
    /// Returns `Io`.
    pub fn set_work<'a>(&self, files: impl IntoIterator<Item = (&'a Handle, Work)>) -> Result<(), VfsError> {
        self.database.change(|tables| {
            let mut table = tables.open_table(WORK)?;
            files.into_iter().try_for_each(|(file, work)| set_work(&mut table, file, work))
        })
    }

    /// Sets the work that is left for a file after some was done. 0 removes the file. This is durable after the next durable change, or
    /// [`sync`](Self::sync).
    ///
    /// # Errors
    /// Returns `Io`.
    pub fn end_work(&self, file: &Handle, left: Work) -> Result<(), VfsError> {
        self.database.change_later(|tables| set_work(&mut tables.open_table(WORK)?, file, left))
    }

    /// Makes all changes durable.
    ///
    /// # Errors
    /// Returns `Io`.
    pub fn sync(&self) -> Result<(), VfsError> {
        self.settle()?;
        self.database.sync()
    }

    /// Records that files have these objects, as far as the index does not know it.
    ///
    /// # Errors
    /// Returns `Io`.
    pub fn note(&self, objects: &[(Object, Handle)]) -> Result<(), VfsError> {
        self.database.change(|tables| {
            let mut table = tables.open_table(OBJECTS)?;
            for (object, file) in objects {
                if table.get(key(*object))?.is_none() {
                    table.insert(key(*object), file.as_bytes())?;
                }
            }
            Ok(())
        })
    }

    /// Reports whether the index has the objects of all files. One that was made for a tree that had files already has not, until all
    /// records were read.
    ///
    /// # Errors
    /// Returns `Io`.
    pub fn is_complete(&self) -> Result<bool, VfsError> {
        self.database.read(|transaction| Ok(transaction.open_table(COMPLETE)?.get(())?.is_some()))
    }

    /// Stores durably that the index has the objects of all files.
    ///
    /// # Errors
    /// Returns `Io`.
    pub fn set_complete(&self) -> Result<(), VfsError> {
        self.database.change(|tables| {
            tables.open_table(COMPLETE)?.insert((), ())?;
            Ok(())
        })
    }

    /// Reports whether an earlier process has left no work: no files to repair, and no objects to remove or to move. An index that is not
    /// [complete](Self::is_complete) does not know that.
    ///
    /// # Errors
    /// Returns `Io`.
    pub fn is_idle(&self) -> Result<bool, VfsError> {
        self.database.read(|transaction| {
            let idle = transaction.open_table(WORK)?.is_empty()? && transaction.open_table(REMOVALS)?.is_empty()?;
            Ok(idle && !servers::has_moves(transaction)?)
        })
    }

    /// Returns the work to do for all files.
    ///
    /// # Errors
    /// Returns `Io`.
    pub fn work(&self) -> Result<HashMap<Handle, Work>, VfsError> {
        self.database.read(|transaction| {
            let table = transaction.open_table(WORK)?;
            let entries =
                table.iter()?.map(|entry| entry.map(|(file, work)| (Handle::new(file.value()), work.value())));
            Ok(entries.collect::<Result<_, _>>()?)
        })
    }
}

impl Drop for Index {
    fn drop(&mut self) {
        // If this fails, the next process moves them.
        let _ = self.settle();
    }
}

fn create_tables(tables: &redb::WriteTransaction) -> Result<(), ChangeError> {
    let existing: Vec<String> = tables.list_tables()?.map(|table| table.name().to_owned()).collect();
    let exists = |name: &str| existing.iter().any(|existing| existing == name);
    // The index of an earlier version is complete if it says so, or if it is from before that was said.
    if tables.open_table(FORMER_COMPLETE)?.remove(())?.is_some()
        || exists(OBJECTS.name()) && !exists(FORMER_COMPLETE.name())
    {
        tables.open_table(COMPLETE)?.insert((), ())?;
    }
    tables.open_table(COMPLETE)?;
    tables.open_table(OBJECTS)?;
    tables.open_table(WORK)?;
    tables.open_table(REMOVALS)?;
    // An earlier process has ended while files got their first objects.
    for table in [NEW, FORMER_NEW] {
        let new = tables.open_table(table)?;
        let files =
            new.iter()?.map(|file| file.map(|(file, _)| Handle::new(file.value()))).collect::<Result<Vec<_>, _>>()?;
        drop(new);
        move_new(tables, table, &files, true)?;
    }
    servers::create_tables(tables)
}

/// Moves the objects of new files from this table to the reverse index, and adds them to the queue of removals, too, if `remove`.
fn move_new<'a>(
    tables: &redb::WriteTransaction,
    table: NewTable,
    files: impl IntoIterator<Item = &'a Handle>,
    remove: bool,
) -> Result<(), ChangeError> {
    let mut new = tables.open_table(table)?;
    let mut entries = Vec::new();
    for file in files {
        let objects = new.remove(file.as_bytes())?;
        entries.extend(objects.iter().flat_map(|objects| objects.value()).map(|key| (key, file)));
    }
    // Neighbours in the table are inserted together.
    entries.sort_unstable_by_key(|(key, _)| *key);
    let (mut objects, mut removals) = (tables.open_table(OBJECTS)?, tables.open_table(REMOVALS)?);
    for (key, file) in entries {
        objects.insert(key, file.as_bytes())?;
        if remove {
            removals.insert(key, ())?;
        }
    }
    Ok(())
}

fn set_work(table: &mut WorkTable<'_>, file: &Handle, work: Work) -> Result<(), ChangeError> {
    match work {
        0 => drop(table.remove(file.as_bytes())?),
        _ => drop(table.insert(file.as_bytes(), work)?),
    }
    Ok(())
}

/// The table of the work, opened for changes.
type WorkTable<'a> = redb::Table<'a, &'static [u8], u8>;

/// File → (data server, object) of its first objects.
type NewTable = TableDefinition<'static, &'static [u8], Vec<(u32, u128)>>;

fn key(object: Object) -> (u32, u128) {
    (object.server.0, object.id)
}

fn object((server, id): (u32, u128)) -> Object {
    Object { server: ServerId(server), id }
}

/// (data server, object) → file.
const OBJECTS: TableDefinition<'_, (u32, u128), &[u8]> = TableDefinition::new("objects");
/// (data server, object).
const REMOVALS: TableDefinition<'_, (u32, u128), ()> = TableDefinition::new("removals");
/// File → (data server, object) of its first objects, as long as they are not in [`OBJECTS`].
const NEW: NewTable = TableDefinition::new("first objects");
/// [`NEW`] of earlier versions. They take the objects in it to be in [`OBJECTS`], too, and would remove those that are not.
const FORMER_NEW: NewTable = TableDefinition::new("new objects");
/// Has an entry if [`OBJECTS`] and [`NEW`] have the objects of all files.
const COMPLETE: TableDefinition<'_, (), ()> = TableDefinition::new("all objects");
/// [`COMPLETE`] of earlier versions, which do not know [`NEW`]. It is empty, so that they read all records if they open this database.
const FORMER_COMPLETE: TableDefinition<'_, (), ()> = TableDefinition::new("complete");
/// The number of new files whose objects are moved to [`OBJECTS`] at the latest.
const STORED_MAX: usize = 1024;
/// File → work.
const WORK: TableDefinition<'_, &[u8], u8> = TableDefinition::new("work");
