//! The storage of the recovery database: [`Storage`], and its implementation with files of a state directory.
//!
//! After an I/O error, redb cannot continue to use a database, and the kernel's page cache may differ from the disk. So
//! a database that has failed is never used again: a new one is written beside it and renamed over it.
//!
//! redb commits in two phases here. So a commit that was torn by a crash can be distinguished from one that was damaged
//! later. The latter is an error, and is not silently rolled back.

use std::{
    any::Any,
    fs::File,
    io,
    panic::{AssertUnwindSafe, catch_unwind},
    path::PathBuf,
};

pub use redb::StorageBackend;
use redb::{Builder, Database, backends::FileBackend};
use vfs::private;

use super::contents::{self, Change, Contents};

/// Storage for one database, which can be atomically replaced by a new one.
pub trait Storage: Send + Sync + 'static {
    /// The type of an open database file.
    type File: StorageBackend;

    /// Opens the database. Returns `None` if there is none.
    ///
    /// # Errors
    /// Returns an error if the storage fails.
    fn open(&self) -> io::Result<Option<Self::File>>;

    /// Creates a new, empty database beside the existing one.
    ///
    /// # Errors
    /// Returns an error if the storage fails.
    fn begin(&self) -> io::Result<Self::File>;

    /// Replaces the database by the one that was created last. The replacement is on stable storage when this returns.
    ///
    /// # Errors
    /// Returns an error if the storage fails. Then either of the two databases is in place.
    fn replace(&self) -> io::Result<()>;
}

/// A file, and a second file beside it while it is being replaced.
pub(super) struct Files {
    path: PathBuf,
    new: PathBuf,
}

impl Files {
    pub(super) fn at(path: PathBuf) -> Self {
        Self { new: path.with_added_extension("new"), path }
    }

    fn backend(file: File) -> io::Result<FileBackend> {
        FileBackend::new(file).map_err(io::Error::other)
    }
}

impl Storage for Files {
    type File = FileBackend;

    fn open(&self) -> io::Result<Option<FileBackend>> {
        let Some(file) = private::open(&self.path, private::OTHERS_WRITE)? else { return Ok(None) };
        // redb treats an empty file as a new database, but this server never leaves an empty file.
        if file.metadata()?.len() == 0 {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "it is empty"));
        }
        Self::backend(file).map(Some)
    }

    fn begin(&self) -> io::Result<FileBackend> {
        Self::backend(private::create(&self.new)?)
    }

    fn replace(&self) -> io::Result<()> {
        private::rename(&self.new, &self.path)
    }
}

/// A [`Storage`] with the database on top of it.
pub(super) trait Databases: Send + Sync {
    /// Opens the database, verifies every page and reads the contents. Returns `None` if there is none.
    ///
    /// # Errors
    /// Returns `InvalidData` if the database is damaged, and other errors if the storage fails.
    fn open(&self) -> io::Result<Option<(Database, Contents)>>;

    /// Writes a new database and replaces the old one with it.
    ///
    /// # Errors
    /// Returns an error if the storage fails.
    fn replace(&self, contents: &Contents) -> io::Result<Database>;
}

impl<S: Storage> Databases for S {
    fn open(&self) -> io::Result<Option<(Database, Contents)>> {
        let Some(file) = Storage::open(self)? else { return Ok(None) };
        guarded(|| {
            let database = Builder::new().set_check_integrity_on_open(true).create_with_backend(file)?;
            let contents = Contents::read(&database)?;
            Ok(Some((database, contents)))
        })
    }

    fn replace(&self, contents: &Contents) -> io::Result<Database> {
        let file = self.begin()?;
        let database = guarded(|| Ok(Builder::new().create_with_backend(file)?))?;
        store(&database, &contents.changes())?;
        Storage::replace(self)?;
        Ok(database)
    }
}

/// Applies changes atomically. They are on stable storage when this returns.
///
/// # Errors
/// Returns an error if the storage fails. It is then unknown whether the changes are stored.
pub(super) fn store(database: &Database, changes: &[Change]) -> io::Result<()> {
    guarded(|| {
        let mut transaction = database.begin_write()?;
        transaction.set_two_phase_commit(true);
        contents::store(&transaction, changes)?;
        Ok(transaction.commit()?)
    })
}

/// Closes a database that has failed.
pub(super) fn discard(database: Database) {
    // The failure has already been reported.
    let _ = guarded(|| {
        drop(database);
        Ok(())
    });
}

/// Runs a function of redb, and turns its panics over damaged data into errors.
fn guarded<T>(run: impl FnOnce() -> Result<T, redb::Error>) -> io::Result<T> {
    match catch_unwind(AssertUnwindSafe(run)) {
        Ok(done) => done.map_err(io_error),
        Err(panic) => Err(damaged(format!("it is damaged: {}", message(&*panic)))),
    }
}

fn message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("redb panicked")
}

fn io_error(error: redb::Error) -> io::Error {
    match error {
        redb::Error::Io(error) if matches!(error.kind(), io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof) => {
            damaged(format!("it is damaged: {error}"))
        }
        redb::Error::Io(error) => error,
        error @ redb::Error::DatabaseAlreadyOpen => io::Error::new(io::ErrorKind::ResourceBusy, error),
        error @ redb::Error::PreviousIo => io::Error::other(error),
        error => damaged(format!("it is damaged: {error}")),
    }
}

fn damaged(message: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, message)
}
