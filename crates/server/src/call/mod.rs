//! The execution of a call, the same for every protocol: the call's context, the objects that it names, the limits of its
//! transport, and the thread that it runs on. It speaks [`vfs`] types only, and names no protocol's status or handle type.

pub(crate) mod context;
pub(crate) mod core;
pub(crate) mod error;
pub(crate) mod exec;
mod guard;
pub(crate) mod journal;
pub(crate) mod object;
pub(crate) mod thread;
pub(crate) mod transfer;
