//! RPC calls of any program over any transport: connections, deadlines, pauses, and the data of replies.
//!
//! [`Program`] makes calls over a [`Link`], which reconnects. [`Deadline`] bounds the time that the server may be
//! silent, and [`Backoff`] limits the rate of calls to a server that asks to retry later. [`payload`] returns the
//! caller's buffer with the data in it.

mod backoff;
mod credential;
mod deadline;
pub(crate) mod payload;
mod program;

pub(crate) use self::{
    backoff::Backoff,
    deadline::Deadline,
    program::{Link, Program},
};
