//! Where the recovery database is kept: [`Storage`], and the files of a state directory as one.
//!
//! After an error redb cannot go on with a database, and what the kernel's page cache shows of the file may not be on the disk.
//! So a database that has failed is never used again: a new one is written beside it, and takes its name.
//!
//! redb commits in two phases here. A commit that was torn by a crash is then told apart from one that was damaged later, which is
//! an error and not quietly undone.

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

/// Storage for one database, which can be replaced by a new one at once.
pub trait Storage: Send + Sync + 'static {
    /// An open database.
    type File: StorageBackend;

    /// Opens the database; `None` if there is none.
    ///
    /// # Errors
    /// The storage fails.
    fn open(&self) -> io::Result<Option<Self::File>>;

    /// Begins a new one, empty, beside the one that there is.
    ///
    /// # Errors
    /// The storage fails.
    fn begin(&self) -> io::Result<Self::File>;

    /// Puts the one that was begun last in the place of the other. It has the name on stable storage when this returns.
    ///
    /// # Errors
    /// The storage fails: either of them is there.
    fn replace(&self) -> io::Result<()>;
}

/// A file, and a second one beside it as long as it is being replaced.
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
        // To redb an empty file is a database that is yet to be made; here none is ever empty.
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

/// A [`Storage`] with the database on top.
pub(super) trait Databases: Send + Sync {
    /// Opens the database, every page of which is verified, and reads it; `None` if there is none.
    ///
    /// # Errors
    /// `InvalidData`: it is damaged. Others: the storage fails.
    fn open(&self) -> io::Result<Option<(Database, Contents)>>;

    /// Writes a new database, and puts it in the place of the old one.
    ///
    /// # Errors
    /// The storage fails.
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

/// Makes changes, all or none of them; they are on stable storage when this returns.
///
/// # Errors
/// The storage fails: whether they are made is not known.
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
    // It has been told what to say about that.
    let _ = guarded(|| {
        drop(database);
        Ok(())
    });
}

/// Runs a piece of redb, whose panics over damaged data are errors like the others.
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
