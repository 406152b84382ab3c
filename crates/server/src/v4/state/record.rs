//! How far a client is remembered over a restart. [`recover`](super::transitions::recover) says why and when.

/// Whether a client is remembered over a restart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Record {
    None,
    /// It is being written.
    Pending,
    Written,
    /// It has lost something and not taken note, and is not to be remembered before it has.
    Forfeited,
    /// It had not said that it had reclaimed all when grace ended.
    Late,
}

impl Record {
    /// Whether it is remembered, or soon will be.
    pub(super) fn is_kept(self) -> bool {
        matches!(self, Self::Pending | Self::Written)
    }
}

/// How far the record of a client is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stored {
    /// As it is; or it will be before anybody hears of what it follows from.
    AsIs,
    /// Not at all: the client was silent for a lease.
    Lapsed,
    /// It is being stored, as the client is back.
    Returning,
}
