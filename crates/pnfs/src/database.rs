//! [`Database`]: a small database in a file. A change is durable when it returns, unless it is one that may get lost in a crash.
//!
//! After an error of the storage, redb refuses all operations (`PreviousIo`). So the database is closed, and the next operation opens it
//! again. That is like the end of the process, for the database only: a change that has failed may be durable nevertheless, and earlier
//! changes that were not durable are lost. Operations fail as long as it cannot be opened.

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use parking_lot::{RwLock, RwLockReadGuard, RwLockWriteGuard};
use redb::{Builder, Durability, ReadableDatabase, StorageBackend};
use tokio::time::Instant;
use vfs::VfsError;

/// A database.
pub struct Database {
    storage: Storage,
    tables: CreateTables,
    state: RwLock<State>,
    /// `true` if the last change may not be durable.
    is_behind: AtomicBool,
}

enum State {
    Open(redb::Database),
    /// The storage has failed. The time of the last attempt to open it again, if there was one.
    Closed(Option<Instant>),
}

enum Storage {
    File(PathBuf),
    Backend(Shared),
}

/// A storage that is opened again after an error.
#[derive(Clone, Debug)]
struct Shared(Arc<dyn StorageBackend>);

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
        let failed = |error: ChangeError| io::Error::other(error.0.to_string());
        if !path.try_exists()? {
            let new = path.with_extension("new");
            match fs::remove_file(&new) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
            let created = Builder::new().create(&new).map_err(ChangeError::from);
            drop(created.and_then(|database| with_tables(database, tables)).map_err(failed)?);
            fs::rename(&new, path)?;
            if let Some(dir) = path.parent().filter(|dir| !dir.as_os_str().is_empty()) {
                fs::File::open(dir)?.sync_all()?;
            }
        }
        Self::of(Storage::File(path.to_owned()), tables)
    }

    /// Opens the database on this storage.
    ///
    /// # Errors
    /// Returns an error if the storage fails or its contents are damaged.
    pub fn with_backend(backend: impl StorageBackend, tables: CreateTables) -> io::Result<Self> {
        Self::of(Storage::Backend(Shared(Arc::new(backend))), tables)
    }

    fn of(storage: Storage, tables: CreateTables) -> io::Result<Self> {
        let database = storage.open(tables).map_err(|error| io::Error::other(error.0.to_string()))?;
        Ok(Self { storage, tables, state: RwLock::new(State::Open(database)), is_behind: AtomicBool::new(false) })
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
        self.with(|database| {
            let mut transaction = database.begin_write()?;
            transaction.set_durability(durability)?;
            run(&transaction)?;
            // There is one transaction at a time, and this one has not ended.
            self.is_behind.store(matches!(durability, Durability::None), Relaxed);
            Ok(transaction.commit()?)
        })
    }

    /// Reads tables.
    ///
    /// # Errors
    /// Returns `Io`.
    pub fn read<T>(&self, run: impl FnOnce(&redb::ReadTransaction) -> Result<T, ChangeError>) -> Result<T, VfsError> {
        self.with(|database| run(&database.begin_read()?))
    }

    /// Executes an operation. If it fails, closes the database.
    fn with<T>(&self, run: impl FnOnce(&redb::Database) -> Result<T, ChangeError>) -> Result<T, VfsError> {
        let state = self.opened()?;
        let State::Open(database) = &*state else { return Err(VfsError::Io) };
        let done = run(database);
        drop(state);
        done.map_err(|error| {
            tracing::error!(error = %error.0, "a database of pNFS failed, and is opened again");
            *self.state.write() = State::Closed(None);
            VfsError::Io
        })
    }

    /// Returns the open database. Opens it again if it was closed, unless an attempt has failed a short while ago.
    fn opened(&self) -> Result<RwLockReadGuard<'_, State>, VfsError> {
        let state = self.state.read();
        if let State::Open(_) = *state {
            return Ok(state);
        }
        drop(state);
        let mut state = self.state.write();
        if let State::Closed(tried) = *state {
            if tried.is_some_and(|tried| tried.elapsed() < REOPEN_PAUSE) {
                return Err(VfsError::Io);
            }
            *state = match self.storage.open(self.tables) {
                Ok(database) => State::Open(database),
                Err(error) => {
                    tracing::error!(error = %error.0, "a database of pNFS cannot be opened again");
                    State::Closed(Some(Instant::now()))
                }
            };
            self.is_behind.store(false, Relaxed);
        }
        Ok(RwLockWriteGuard::downgrade(state))
    }
}

impl Storage {
    fn open(&self, tables: CreateTables) -> Result<redb::Database, ChangeError> {
        let database = match self {
            Self::File(path) => Builder::new().open(path),
            Self::Backend(backend) => Builder::new().create_with_backend(backend.clone()),
        };
        with_tables(database?, tables)
    }
}

/// Creates the tables durably. What was not durable is so after that, too.
fn with_tables(database: redb::Database, tables: CreateTables) -> Result<redb::Database, ChangeError> {
    let transaction = database.begin_write()?;
    tables(&transaction)?;
    transaction.commit()?;
    Ok(database)
}

impl StorageBackend for Shared {
    fn len(&self) -> io::Result<u64> {
        self.0.len()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.0.read(offset, out)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.0.set_len(len)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.0.sync_data()
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.0.write(offset, data)
    }
}

impl<E: Into<redb::Error>> From<E> for ChangeError {
    fn from(error: E) -> Self {
        Self(error.into())
    }
}

/// The minimum time between two attempts to open a database whose storage has failed: each may read all of it.
const REOPEN_PAUSE: Duration = Duration::from_secs(1);
