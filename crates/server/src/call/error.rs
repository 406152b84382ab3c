//! The two ways in which a procedure or operation does not succeed.

/// The thread would have to wait and must not: the call runs again where it may. Nothing has been done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WouldBlock;

/// The failure of a procedure or operation; `S` is its protocol's status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault<S> {
    /// It has to run on a thread that may wait.
    WouldBlock,
    /// The client gets this status.
    Status(S),
}
