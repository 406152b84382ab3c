//! The execution of a call, common to all protocols: its context, the objects that it names, the limits of its
//! transport, and the thread on which it runs. This module uses [`vfs`] types, and no status or handle type of a
//! protocol.

pub(crate) mod audit;
pub(crate) mod context;
pub(crate) mod core;
pub(crate) mod error;
pub(crate) mod exec;
mod guard;
pub(crate) mod journal;
pub(crate) mod object;
pub(crate) mod thread;
pub(crate) mod transfer;
