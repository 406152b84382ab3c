//! [`Database`]: a small database in a file. A change is durable when it returns, unless it is one that may get lost in a crash.

use std::{
    fs, io,
    path::Path,
    sync::atomic::{AtomicBool, Ordering::Relaxed},
};

use redb::{Builder, Durability, ReadableDatabase, StorageBackend};
use vfs::VfsError;

/// A database.
pub struct Database {
    inner: redb::Database,
    /// `true` if the last change may not be durable.
    is_behind: AtomicBool,
}

/// An error of a table or of the storage.
pub struct ChangeError(redb::Error);

/// Opens all tables. Those that do not exist are created, and those that exist must have the right types.
type CreateTables = fn(&redb::WriteTransaction) -> Result<(), ChangeError>;

impl Database {
    /// Opens the database in a file, and creates it if necessary. If the process ends while the file is created, the next one creates
    /// it again. Only one process at a time can have it open.
    ///
    /// # Errors
    /// Returns an error if the file cannot be used.
    pub fn open(path: &Path, tables: CreateTables) -> io::Result<Self> {
        let failed = |error: redb::DatabaseError| io::Error::other(error.to_string());
        if !path.try_exists()? {
            let new = path.with_extension("new");
            match fs::remove_file(&new) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
            drop(Self::with_tables(Builder::new().create(&new).map_err(failed)?, tables)?);
            fs::rename(&new, path)?;
            if let Some(dir) = path.parent().filter(|dir| !dir.as_os_str().is_empty()) {
                fs::File::open(dir)?.sync_all()?;
            }
        }
        Builder::new().open(path).map_err(failed).and_then(|database| Self::with_tables(database, tables))
    }

    /// Opens the database on this storage.
    ///
    /// # Errors
    /// Returns an error if the storage fails or its contents are damaged.
    pub fn with_backend(backend: impl StorageBackend, tables: CreateTables) -> io::Result<Self> {
        let database = Builder::new().create_with_backend(backend);
        let database = database.map_err(|error| io::Error::other(error.to_string()))?;
        Self::with_tables(database, tables)
    }

    fn with_tables(database: redb::Database, tables: CreateTables) -> io::Result<Self> {
        let database = Self { inner: database, is_behind: AtomicBool::new(false) };
        database.change(tables).map_err(|_| io::Error::other("the database cannot be read"))?;
        Ok(database)
    }

    /// Changes tables, durably. Earlier changes that were not durable are so now, too.
    ///
    /// # Errors
    /// Returns `Io`.
    pub fn change(&self, run: impl FnOnce(&redb::WriteTransaction) -> Result<(), ChangeError>) -> Result<(), VfsError> {
        self.change_with(Durability::Immediate, run)
    }

    /// Changes tables. If the process ends before the next durable change, this one is lost, with those that followed it.
    ///
    /// # Errors
    /// Returns `Io`.
    pub fn change_later(
        &self,
        run: impl FnOnce(&redb::WriteTransaction) -> Result<(), ChangeError>,
    ) -> Result<(), VfsError> {
        self.change_with(Durability::None, run)
    }

    /// Makes all changes durable.
    ///
    /// # Errors
    /// Returns `Io`.
    pub fn sync(&self) -> Result<(), VfsError> {
        if self.is_behind.load(Relaxed) { self.change(|_| Ok(())) } else { Ok(()) }
    }

    fn change_with(
        &self,
        durability: Durability,
        run: impl FnOnce(&redb::WriteTransaction) -> Result<(), ChangeError>,
    ) -> Result<(), VfsError> {
        let changed = || {
            let mut transaction = self.inner.begin_write().map_err(redb::Error::from)?;
            transaction.set_durability(durability).map_err(redb::Error::from)?;
            run(&transaction).map_err(|error| error.0)?;
            // There is one transaction at a time, and this one has not ended.
            self.is_behind.store(matches!(durability, Durability::None), Relaxed);
            transaction.commit().map_err(redb::Error::from)
        };
        changed().map_err(|error| {
            self.is_behind.store(true, Relaxed);
            failed(error)
        })
    }

    /// Reads tables.
    ///
    /// # Errors
    /// Returns `Io`.
    pub fn read<T>(&self, run: impl FnOnce(&redb::ReadTransaction) -> Result<T, ChangeError>) -> Result<T, VfsError> {
        let transaction = self.inner.begin_read().map_err(|error| failed(error.into()))?;
        run(&transaction).map_err(|error| failed(error.0))
    }
}

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
    tracing::error!(%error, "a database of pNFS failed");
    VfsError::Io
}
