//! The state that clients of all protocols hold for files, and the rules of its conflicts: byte-range locks and share
//! reservations ([`locks`]), and recallable delegations ([`conflict`], [`marks`]). [`service`] is the lock table of a
//! running server, and [`grace`] ends the grace period after a restart.

pub(crate) mod conflict;
pub(crate) mod grace;
pub mod locks;
pub mod marks;
pub(crate) mod service;
