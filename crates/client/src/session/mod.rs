//! The session core of version 4: requests that are executed exactly once over connections that can be lost.
//!
//! - [`compound`] is a request and its results;
//! - [`trunk`] is the connections to one server; [`link`] adds the lease and the handler of the server's notices;
//! - [`slots`] is the arithmetic of a session's slots, and [`requests`] sends requests by them; [`v40`] sends the requests of version
//!   4.0, which has no sessions;
//! - [`identity`] introduces the client to the server;
//! - [`client`] is the client with its server: it makes a new session when the server has forgotten the old one; [`drive`] is the loop
//!   that executes every operation;
//! - [`backchannel`] receives the server's callbacks.
//!
//! This folder knows no files. State that the server keeps for the client is reclaimed by a [`link::StateHolder`], which the version
//! above provides.

pub(crate) mod backchannel;
pub(crate) mod client;
pub(crate) mod compound;
pub(crate) mod drive;
pub(crate) mod identity;
pub(crate) mod link;
pub(crate) mod requests;
pub(crate) mod slots;
pub(crate) mod trunk;
pub(crate) mod v40;
