//! RDMA verbs with one interface for several providers.
//!
//! Read RFC 5040 §1.2 and §3 for the model. This crate does not depend on RPC.
//!
//! A [`Provider`] opens connections; a [`QueuePair`] is one end of a connection. Work is posted as [`WorkRequest`]s.
//! Each request has exactly one [`Completion`]; completions arrive in the order in which requests were posted to their
//! queue. **A buffer moves into its work request and is returned in the completion**, flushed or not. While a region is
//! registered, its memory belongs to the queue pair, so a peer can never write to memory that the application can
//! access.
//!
//! Only the owner of a queue pair calls it (`&mut self`); a provider can use threads of its own. A software provider
//! makes progress only in [`QueuePair::poll_completions`].
//!
//! **Providers** are features: `iwarp`, `verbs` and `shm` are enabled by default; `sim`, the simulated fabric, is for
//! tests.
//!
//! On error: `poll_completions` returns a fault of the connection after every posted request has completed with
//! [`Status::Flushed`]. Later posts complete as flushed, too.

#![cfg_attr(
    not(all(feature = "iwarp", feature = "verbs", feature = "shm")),
    allow(dead_code, reason = "each provider uses a part of the shared modules")
)]

mod handshake;
pub mod hook;
#[cfg(feature = "iwarp")]
pub mod iwarp;
mod memory;
mod provider;
mod receives;
mod regions;
pub mod registration;
#[cfg(feature = "shm")]
mod shares;
#[cfg(feature = "shm")]
pub mod shm;
#[cfg(feature = "sim")]
pub mod sim;
#[cfg(feature = "verbs")]
pub mod verbs;
mod work;

pub use memory::{Access, Memory, Registered, RemoteSegment, Stag};
pub use provider::{
    BoxFuture, ConnectRequest, Connected, Descriptors, Listener, PeerUser, Provider, ProviderCaps, QpCaps, QpError,
    QpOptions, QueuePair,
};
pub use receives::{ReceiveAccount, ReceiveSource, ReceiveSourceOptions, ReceiveStats};
pub use work::{Completion, CompletionKind, PostError, Status, WorkId, WorkRequest};
