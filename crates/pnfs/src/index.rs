//! [`Index`]: the database of the layer. It has the reverse index from data servers to files, the queue of objects to
//! remove, and the files with work to do after a crash.
//!
//! All of it is hints about the records in the files' attributes, which decide. An entry is written before the record that
//! it describes, so after a crash there can be entries too many, and never too few.
//!
//! The states of data servers are no hints: an administrator has set them, and they are only here.

mod servers;

pub(crate) use self::servers::Move;

use std::{io, path::Path};

use entropy::HashMap;
use redb::{ReadableTable, ReadableTableMetadata, StorageBackend, TableDefinition, TableHandle};
use vfs::{Handle, VfsError};

use crate::{
    database::{ChangeError, Database},
    record::{Object, ServerId},
};

/// The database.
pub struct Index(Database);

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
        Database::open(path, create_tables).map(Self)
    }

    /// Opens the database on this storage.
    ///
    /// # Errors
    /// Returns an error if the storage fails or its contents are damaged.
    pub fn with_backend(backend: impl StorageBackend) -> io::Result<Self> {
        Database::with_backend(backend, create_tables).map(Self)
    }

    /// Records that the objects will belong to a file, and adds them to the queue of removals: they are removed unless the record of
    /// the file names them then.
    ///
    /// # Errors
    /// Returns `Io`.
    pub fn add(&self, objects: &[Object], file: &Handle) -> Result<(), VfsError> {
        self.0.change(|tables| {
            let (mut files, mut removals) = (tables.open_table(OBJECTS)?, tables.open_table(REMOVALS)?);
            for object in objects {
                files.insert(key(*object), file.as_bytes())?;
                removals.insert(key(*object), ())?;
            }
            Ok(())
        })
    }

    /// Adds objects to the queue of removals. An object is removed only if no file has it.
    ///
    /// # Errors
    /// Returns `Io`.
    pub fn enqueue_removals(&self, objects: &[Object]) -> Result<(), VfsError> {
        self.0.change(|tables| {
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
        self.0.read(|transaction| {
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
        self.0.read(|transaction| Ok(transaction.open_table(REMOVALS)?.len()?))
    }

    /// Removes objects from the queue of removals: `used` because files have them, and `removed` from the reverse index, too.
    ///
    /// # Errors
    /// Returns `Io`.
    pub fn end_removals(&self, used: &[Object], removed: &[Object]) -> Result<(), VfsError> {
        self.0.change(|tables| {
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

    /// Sets the work to do for a file. 0 removes the file.
    ///
    /// # Errors
    /// Returns `Io`.
    pub fn set_work(&self, file: &Handle, work: Work) -> Result<(), VfsError> {
        self.set_works([(file, work)])
    }

    /// Sets the work to do for several files, like [`set_work`](Self::set_work).
    ///
    /// # Errors
    /// Returns `Io`.
    pub fn set_works<'a>(&self, files: impl IntoIterator<Item = (&'a Handle, Work)>) -> Result<(), VfsError> {
        self.0.change(|tables| {
            let mut table = tables.open_table(WORK)?;
            for (file, work) in files {
                match work {
                    0 => drop(table.remove(file.as_bytes())?),
                    _ => drop(table.insert(file.as_bytes(), work)?),
                }
            }
            Ok(())
        })
    }

    /// Records that files have these objects, as far as the index does not know it.
    ///
    /// # Errors
    /// Returns `Io`.
    pub fn note(&self, objects: &[(Object, Handle)]) -> Result<(), VfsError> {
        self.0.change(|tables| {
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
        self.0.read(|transaction| Ok(transaction.open_table(COMPLETE)?.get(())?.is_some()))
    }

    /// Stores durably that the index has the objects of all files.
    ///
    /// # Errors
    /// Returns `Io`.
    pub fn set_complete(&self) -> Result<(), VfsError> {
        self.0.change(|tables| {
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
        self.0.read(|transaction| {
            let idle = transaction.open_table(WORK)?.is_empty()? && transaction.open_table(REMOVALS)?.is_empty()?;
            Ok(idle && !servers::has_moves(transaction)?)
        })
    }

    /// Returns the work to do for all files.
    ///
    /// # Errors
    /// Returns `Io`.
    pub fn work(&self) -> Result<HashMap<Handle, Work>, VfsError> {
        self.0.read(|transaction| {
            let table = transaction.open_table(WORK)?;
            let entries =
                table.iter()?.map(|entry| entry.map(|(file, work)| (Handle::new(file.value()), work.value())));
            Ok(entries.collect::<Result<_, _>>()?)
        })
    }
}

fn create_tables(tables: &redb::WriteTransaction) -> Result<(), ChangeError> {
    let existing: Vec<String> = tables.list_tables()?.map(|table| table.name().to_owned()).collect();
    let exists = |name: &str| existing.iter().any(|existing| existing == name);
    // An earlier version did not say so.
    if exists(OBJECTS.name()) && !exists(COMPLETE.name()) {
        tables.open_table(COMPLETE)?.insert((), ())?;
    }
    tables.open_table(COMPLETE)?;
    tables.open_table(OBJECTS)?;
    tables.open_table(REMOVALS)?;
    tables.open_table(WORK)?;
    servers::create_tables(tables)
}

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
/// Has an entry if the index has the objects of all files.
const COMPLETE: TableDefinition<'_, (), ()> = TableDefinition::new("complete");
/// File → work.
const WORK: TableDefinition<'_, &[u8], u8> = TableDefinition::new("work");
