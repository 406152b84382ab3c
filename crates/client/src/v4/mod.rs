//! [`V4`]: NFSv4 on one server: 4.0 (RFC 7530), 4.1 (RFC 8881) and 4.2 (RFC 7862).
//!
//! The session core ([`crate::session`]) sends requests, recovers, and keeps the lease. This module has the operations
//! on files and the state of files:
//!
//! - [`opens`] holds the open files, [`opening`] opens them, and [`closing`] closes them. [`delegation`] holds delegations,
//!   [`lock_state`] locks.
//! - [`names`] holds the names of objects. NFSv4.0 opens files by name, and after a migration, objects are found by
//!   name.
//! - [`protocol`] is [`V4`] itself, and [`server`] the parts of one server. [`status_flags`] and [`callbacks`] handle
//!   status flags and callbacks of the server.
//! - [`layout`] moves data directly between this client and data servers (pNFS).
//! - [`offload`] and [`offloads`] wait for copies that the server completes after its reply.
//! - [`locations`] asks for the [`location`] of a file system that is absent from the server. [`migration`] continues
//!   there with the state that [`handover`] transfers. [`links`] maps the handles, and [`place`] is the server that has
//!   an object now.
//! - [`request`] is one request of an operation, and [`router`] directs it to the server that has the object. The loop
//!   of [`crate::session::drive`] executes it.
//! - [`operations`] are those of every version; [`delegated`], [`extended`], [`joined`] and [`lock`] are those that only NFSv4 has.
//!
//! Errors: a status of the server is an [`ErrorKind::Status`](crate::ErrorKind::Status). This module recovers from
//! errors of sessions and state, so callers do not see them.

pub(crate) mod attr;
pub(crate) mod callbacks;
mod closing;
pub(crate) mod connect;
mod delegated;
mod delegation;
mod extended;
mod handover;
mod joined;
pub(crate) mod layout;
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
mod owners;
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
    layout::table::{DataCount, DataWays},
    owners::map_owner_names,
    protocol::V4,
};
