//! [`Index`]: the database of the layer. It has the reverse index from data servers to files, the queue of objects to
//! remove, and the files with work to do after a crash.
//!
//! All of it is hints about the records in the files' attributes, which decide. An entry is written before the record that
//! it describes, so after a crash there can be entries too many, and never too few.
//!
//! The states of data servers are no hints: an administrator has set them, and they are only here.

mod servers;

pub(crate) use self::servers::Move;

use std::{fs, io, path::Path};

use entropy::HashMap;
use redb::{Builder, Database, ReadableDatabase, ReadableTable, StorageBackend, TableDefinition};
use vfs::{Handle, VfsError};

use crate::record::{Object, ServerId};

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
        let failed = |error: redb::DatabaseError| io::Error::other(error.to_string());
        if !path.try_exists()? {
            let new = path.with_extension("new");
            match fs::remove_file(&new) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
            drop(Self::with_tables(Builder::new().create(&new).map_err(failed)?)?);
            fs::rename(&new, path)?;
            if let Some(dir) = path.parent().filter(|dir| !dir.as_os_str().is_empty()) {
                fs::File::open(dir)?.sync_all()?;
            }
        }
        Builder::new().open(path).map_err(failed).and_then(Self::with_tables)
    }

    /// Opens the database on this storage.
    ///
    /// # Errors
    /// Returns an error if the storage fails or its contents are damaged.
    pub fn with_backend(backend: impl StorageBackend) -> io::Result<Self> {
        let database = Builder::new().create_with_backend(backend);
        database.map_err(|error| io::Error::other(error.to_string())).and_then(Self::with_tables)
    }

    fn with_tables(database: Database) -> io::Result<Self> {
        let index = Self(database);
        // Tables that do not exist are created, and those that exist must have the right types.
        let opened = index.change(|tables| {
            tables.open_table(OBJECTS)?;
            tables.open_table(REMOVALS)?;
            tables.open_table(WORK)?;
            servers::create_tables(tables)
        });
        opened.map_err(|_| io::Error::other("the database cannot be read"))?;
        Ok(index)
    }

    /// Records that the objects will belong to a file, and adds them to the queue of removals: they are removed unless the record of
    /// the file names them then.
    ///
    /// # Errors
    /// Returns `Io`.
    pub fn add(&self, objects: &[Object], file: &Handle) -> Result<(), VfsError> {
        self.change(|tables| {
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
        self.change(|tables| {
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
        self.read(|transaction| {
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

    /// Removes objects from the queue of removals: `used` because files have them, and `removed` from the reverse index, too.
    ///
    /// # Errors
    /// Returns `Io`.
    pub fn end_removals(&self, used: &[Object], removed: &[Object]) -> Result<(), VfsError> {
        self.change(|tables| {
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
        self.change(|tables| {
            let mut table = tables.open_table(WORK)?;
            match work {
                0 => drop(table.remove(file.as_bytes())?),
                _ => drop(table.insert(file.as_bytes(), work)?),
            }
            Ok(())
        })
    }

    /// Returns the work to do for all files.
    ///
    /// # Errors
    /// Returns `Io`.
    pub fn work(&self) -> Result<HashMap<Handle, Work>, VfsError> {
        self.read(|transaction| {
            let table = transaction.open_table(WORK)?;
            let entries =
                table.iter()?.map(|entry| entry.map(|(file, work)| (Handle::new(file.value()), work.value())));
            Ok(entries.collect::<Result<_, _>>()?)
        })
    }

    fn change(&self, run: impl FnOnce(&redb::WriteTransaction) -> Result<(), ChangeError>) -> Result<(), VfsError> {
        let changed = || {
            let transaction = self.0.begin_write().map_err(redb::Error::from)?;
            run(&transaction).map_err(|error| error.0)?;
            transaction.commit().map_err(redb::Error::from)
        };
        changed().map_err(failed)
    }

    fn read<T>(&self, run: impl FnOnce(&redb::ReadTransaction) -> Result<T, ChangeError>) -> Result<T, VfsError> {
        let transaction = self.0.begin_read().map_err(|error| failed(error.into()))?;
        run(&transaction).map_err(|error| failed(error.0))
    }
}

/// An error of a table or of the storage.
struct ChangeError(redb::Error);

impl From<redb::TableError> for ChangeError {
    fn from(error: redb::TableError) -> Self {
        Self(error.into())
    }
}

impl From<redb::StorageError> for ChangeError {
    fn from(error: redb::StorageError) -> Self {
        Self(error.into())
    }
}

fn failed(error: redb::Error) -> VfsError {
    tracing::error!(%error, "the database of data servers failed");
    VfsError::Io
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
/// File → work.
const WORK: TableDefinition<'_, &[u8], u8> = TableDefinition::new("work");
