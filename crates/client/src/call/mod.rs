//! RPC calls, whatever the program and the transport: connections, deadlines, pauses, and the data of replies.
//!
//! [`Program`] makes calls over a [`Link`], which reconnects. A [`Deadline`] bounds the time for which the server may be silent,
//! and [`Backoff`] the rate of calls that the server has put off. [`payload`] returns the caller's buffer with the data in it.

mod backoff;
mod deadline;
pub(crate) mod payload;
mod program;

pub(crate) use self::{
    backoff::Backoff,
    deadline::Deadline,
    program::{Link, Program},
};
