//! [`Held`]: keeps a file after its last name was removed.

use std::fmt;

/// A hold of a file, as a back end implements it. Dropping it ends the hold, and must not wait: see [`Held`].
pub trait Hold: Send + Sync + 'static {
    /// Reports whether the last name of the file was removed, so that the file exists only because it is held.
    fn is_removed(&self) -> bool;
}

/// A hold of a file by [`Vfs::hold`](crate::Vfs::hold). It ends when this is dropped. That does not wait: a back end that
/// then removes a large file does so on another thread.
///
/// The default value holds nothing.
#[derive(Default)]
#[must_use = "the hold ends when this is dropped"]
pub struct Held(Option<Box<dyn Hold>>);

impl Held {
    /// Wraps the hold of a back end.
    pub fn new(hold: impl Hold) -> Self {
        Self(Some(Box::new(hold)))
    }

    /// Reports whether the file exists only because it is held. Returns `false` if the back end does not know this.
    pub fn is_removed(&self) -> bool {
        self.0.as_ref().is_some_and(|hold| hold.is_removed())
    }
}

impl fmt::Debug for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "Held" } else { "Held(nothing)" })
    }
}
