//! [`Unreclaimed`]: what a server did not give back after a restart or a move, told in one line of the log.

use crate::model::Error;

/// Files and locks that could not be reclaimed, and why the first could not.
#[derive(Debug, Default)]
pub(crate) struct Unreclaimed {
    files: usize,
    locks: usize,
    first: Option<Error>,
}

impl Unreclaimed {
    /// A file could not be reclaimed. It is opened again when it is used.
    pub fn file(&mut self, error: Error) {
        tracing::debug!(%error, "a file could not be reclaimed");
        self.files += 1;
        self.first.get_or_insert(error);
    }

    /// A lock could not be reclaimed, for this reason if the server gave one. It is lost.
    pub fn lock(&mut self, error: Option<Error>) {
        tracing::debug!(error = error.as_ref().map(tracing::field::display), "a lock could not be reclaimed");
        self.locks += 1;
        self.first = self.first.take().or(error);
    }

    /// Writes the line, if there is anything to tell.
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
            "not everything could be reclaimed: files are opened again when they are used, locks are lost"
        );
    }
}
