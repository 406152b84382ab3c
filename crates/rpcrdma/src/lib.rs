//! RPC-over-RDMA version 1.
//!
//! Read RFC 8166 first, then RFC 8797 (private data) and RFC 8167 (calls in both directions).
//!
//! A message's payloads do not travel in the stream. The *requester*, who makes a call, exposes memory:
//! payloads of the call as read chunks, room for those of the reply as a write chunk, and room for a
//! reply that is too long to be sent as a reply chunk. The *responder* moves the data with RDMA Read and RDMA
//! Write, and exposes nothing; but in the Read-Read design, which both sides must ask for and which is there for comparison only.
//!
//! | file | |
//! |---|---|
//! | [`header`], [`chunk`], [`private_data`] | what is on the wire |
//! | `credits` | flow control |
//! | [`Connection`] | the protocol, without I/O: completions in, work and events out |
//! | `requester`, `outgoing` | calls that we make |
//! | `responder` | calls that we answer |
//! | `sinks` | memory for what calls have RDMA Read, shared by connections |
//! | `link` | what these two share: the queue of work, events, deadlines, the end of the connection |
//! | `fit`, `message`, `pull` | how messages are taken apart to travel, and put together again |
//! | `expose`, `fetch` | replies in the Read-Read design: the responder's side, and the requester's |
//! | [`RdmaTransport`], [`RdmaKind`] | drive a [`rdma::QueuePair`] for [`rpc`] |
//!
//! Whose the buffers are: memory that the peer can reach belongs to the queue pair until it is invalidated, so no
//! caller can see it change. On error: what RFC 8166 §4.5 says for a header or chunks that make no sense;
//! the connection ends when the peer cannot be trusted to have understood anything.

mod connection;
mod credits;
mod expose;
mod fetch;
mod fit;
mod kind;
mod link;
mod message;
mod options;
mod outgoing;
mod pull;
mod requester;
mod responder;
mod sinks;
mod table;
mod transport;

pub mod chunk;
pub mod header;
pub mod private_data;

pub use connection::Connection;
pub use kind::{RdmaKind, RdmaListener};
pub use link::{CallId, Event, Registry, Work};
pub use options::{Design, Options, Role, Settings, receives};
pub use transport::RdmaTransport;

/// The transport's name in the switch, unless [`RdmaKind::named`] says otherwise.
pub const NAME: &str = "rdma";
