//! The session core of NFSv4: it executes each request exactly once, although connections can be lost.
//!
//! - [`compound`] is a request and its results.
//! - [`trunk`] holds the connections to one server; [`link`] adds the lease and the handler of the server's status
//!   flags.
//! - [`slots`] assigns the slots of a session without I/O, and [`requests`] sends requests in these slots. [`v40`]
//!   sends the requests of NFSv4.0, which has no sessions.
//! - [`identity`] registers the client with the server.
//! - [`client`] is the client of one server. It creates a new session when the server has lost the old one.
//! - [`drive`] is the loop that executes every operation.
//! - [`backchannel`] receives the server's callbacks.
//!
//! This module does not know files. A [`link::StateHolder`], which the module [`v4`](crate::v4) provides, reclaims the
//! state that the server keeps for the client.

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
