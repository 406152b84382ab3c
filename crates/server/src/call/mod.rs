//! A call: its context, the transport's limits, the objects it names, and the execution of a procedure.

pub(crate) mod context;
pub(crate) mod error;
pub(crate) mod exec;
pub(crate) mod journal;
pub(crate) mod transfer;
