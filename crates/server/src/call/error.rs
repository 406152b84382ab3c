//! The two ways in which a procedure or operation does not succeed.

/// The call cannot go on in this run. Either the thread must not wait and has to, and the call runs again on one that may; or an
/// operation is pending ([`Journal::is_pending`](super::journal::Journal::is_pending)), and the call runs again when that has
/// completed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WouldBlock;

/// The failure of a procedure or operation; `S` is its protocol's status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault<S> {
    /// It cannot go on in this run.
    WouldBlock,
    /// The client gets this status.
    Status(S),
}
