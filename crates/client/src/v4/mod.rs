//! [`V4`]: NFS version 4 on one server: 4.0 (RFC 7530), 4.1 (RFC 8881) and 4.2 (RFC 7862).
//!
//! The session core ([`crate::session`]) makes requests, recovers and keeps the lease. Here is what it makes them for:
//!
//! - [`opens`] holds the open files, and [`opening`] opens and closes them; [`delegation`] holds delegations, and [`lock_state`] locks;
//! - [`names`] holds the names of objects: version 4.0 opens by name, and an object of a file system that has moved is found by it;
//! - [`protocol`] is [`V4`] itself, and [`server`] the parts of one server; [`status_flags`] and [`callbacks`] handle its reports;
//! - [`offload`] and [`offloads`] wait for copies that the server completes after its reply;
//! - [`locations`] asks for the [`location`] of a file system that the server does not have; [`migration`] continues there with the
//!   state of [`handover`]; [`links`] maps the handles, and [`place`] is the server that has an object now;
//! - [`request`] is one request of an operation, which [`router`] directs to the server that has the object; the loop of
//!   [`crate::session::drive`] executes it;
//! - [`operations`] are those of every version; [`delegated`], [`extended`] and [`lock`] are those that only version 4 has.
//!
//! Errors: a status of the server is [`ErrorKind::Status`](crate::ErrorKind::Status). Errors of sessions and state are recovered from
//! here, and no caller sees them.

pub(crate) mod attr;
pub(crate) mod callbacks;
pub(crate) mod connect;
mod delegated;
mod delegation;
mod extended;
mod handover;
mod links;
pub(crate) mod location;
mod locations;
mod lock;
mod lock_state;
pub(crate) mod migration;
mod names;
mod offload;
mod offloads;
mod opening;
mod opens;
mod operations;
mod place;
mod protocol;
mod request;
mod router;
mod server;
mod status_flags;
mod unreclaimed;

pub use self::{
    delegated::{DataVersion, Held},
    delegation::Watcher,
    extended::SetXattr,
    lock_state::LockRange,
    protocol::V4,
};
