//! The two ways in which a procedure or operation can fail.

/// The call cannot continue in this run. Either it has to block on a thread that must not, and it runs again on a
/// thread that may. Or an operation is pending ([`Journal::is_pending`](super::journal::Journal::is_pending)), and the
/// call runs again when that has completed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WouldBlock;

/// The failure of a procedure or operation; `S` is its protocol's status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault<S> {
    /// The procedure or operation cannot continue in this run.
    WouldBlock,
    /// The procedure or operation failed with this status for the client.
    Status(S),
}
