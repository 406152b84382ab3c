//! What clients of all protocols hold on files, and the rules by which they conflict: byte-range locks and share
//! reservations ([`locks`]), and recallable delegations ([`conflict`], [`marks`]). [`service`] is the lock table of a running
//! server; [`grace`] ends the grace period after a restart.

pub(crate) mod conflict;
pub(crate) mod grace;
pub mod locks;
pub mod marks;
pub(crate) mod service;
