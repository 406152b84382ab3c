//! [`Unreclaimed`]: counts the state that could not be reclaimed after a restart or a migration, and logs one warning
//! about it.

use crate::model::Error;

/// The files and locks that could not be reclaimed, and the first error.
#[derive(Debug, Default)]
pub(crate) struct Unreclaimed {
    files: usize,
    locks: usize,
    first: Option<Error>,
}

impl Unreclaimed {
    /// Counts a file that could not be reclaimed. It is opened again when it is used.
    pub fn file(&mut self, error: Error) {
        tracing::debug!(%error, "a file could not be reclaimed");
        self.files += 1;
        self.first.get_or_insert(error);
    }

    /// Counts a lock that could not be reclaimed and is lost. `error` is the server's reason, if it gave one.
    pub fn lock(&mut self, error: Option<Error>) {
        tracing::debug!(error = error.as_ref().map(tracing::field::display), "a lock could not be reclaimed");
        self.locks += 1;
        self.first = self.first.take().or(error);
    }

    /// Logs the warning, if anything was counted.
    pub fn report(&self, server: &str) {
        let Self { files, locks, first } = self;
        if *files == 0 && *locks == 0 {
            return;
        }
        tracing::warn!(
            server,
            files,
            locks,
            error = first.as_ref().map(tracing::field::display),
            "some state could not be reclaimed: files are opened again when they are used, locks are lost"
        );
    }
}
