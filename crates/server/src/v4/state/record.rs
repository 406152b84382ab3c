//! The recovery record of a client. [`recover`](super::transitions::recover) says when it is written and why.

/// The recovery record of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Record {
    None,
    /// The record is being written.
    Pending,
    Written,
    /// State of the client was revoked and the client has not acknowledged that. It must not be stored before that.
    Forfeited,
    /// The grace period ended before the client completed its reclaims.
    Late,
}

impl Record {
    /// Returns `true` if the client is stored or is being stored.
    pub(super) fn is_kept(self) -> bool {
        matches!(self, Self::Pending | Self::Written)
    }
}

/// The state of a recovery record in storage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stored {
    /// The stored record is current, or will be before any reply depends on it.
    Current,
    /// The record was removed because the client sent no request for a lease time.
    Lapsed,
    /// The record is being stored again, because the client is back.
    Restoring,
}
