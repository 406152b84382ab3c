//! RPCSEC_GSS version 1 (RFC 2203) with Kerberos 5 (RFC 4121), for both sides of `rpc`.
//!
//! Read RFC 2203 §5 first. `rpc::security` is the interface to the rest of the project, and
//! `docs/adr/0009-rpcsec-gss.md` has the decisions.
//!
//! - [`GssServer`] is the flavour of a server, with the table of contexts. [`GssClient`] is the flavour of one
//!   connection of a client.
//! - [`wire`] has the formats, and [`window`] the sequence window. Both are pure.
//! - [`mic`] makes and verifies the checksums of Kerberos. It is pure, too.
//! - [`mechanism`] is the interface to a GSS-API mechanism. [`kerberos`] implements it with MIT's library, which is
//!   opened when it is first used. A build and a process without Kerberos need nothing of it. All unsafe code is there.
//!
//! Buffers: a body that is only authenticated is not copied by this crate. A body with integrity is copied once, into
//! the message. A body with privacy is copied once, and the library encrypts or decrypts the copy in place.
//!
//! On error: a call that cannot be authenticated is denied with `RPCSEC_GSS_CREDPROBLEM`, and one that is replayed
//! gets no reply. Results that cannot be wrapped are not sent. A client that gets no context fails with an error that
//! names the service, the user and the library's message.

mod client;
pub mod kerberos;
pub mod mechanism;
pub mod mic;
mod queue;
mod server;
mod shares;
mod table;
pub mod window;
pub mod wire;

pub use client::GssClient;
pub use server::{GssLimits, GssServer};
pub use wire::{Service, pseudo_flavor};
