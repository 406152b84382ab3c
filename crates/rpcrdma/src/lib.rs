//! RPC-over-RDMA version 1.
//!
//! Read RFC 8166 first, then RFC 8797 (private data) and RFC 8167 (calls in both directions).
//!
//! A message's payloads do not travel in the stream. The *requester*, which makes a call, exposes memory: the payloads
//! of the call as read chunks, a write chunk for the payloads of the reply, and a reply chunk for a reply that is too
//! long to be sent inline. The *responder* moves the data with RDMA Read and RDMA Write, and exposes nothing. The
//! exception is the Read-Read design, which both sides must request and which exists for comparison only.
//!
//! | file | |
//! |---|---|
//! | [`header`], [`chunk`], [`private_data`] | the wire format |
//! | `credits` | flow control |
//! | [`Connection`] | the protocol without I/O: takes completions, returns work and events |
//! | `requester`, `outgoing` | calls that this side makes |
//! | `responder` | calls that this side answers |
//! | `call_memory` | the memory of calls in progress, shared by connections |
//! | `link` | the part that both share: the queues of work and events, deadlines, and the connection's state |
//! | `fit`, `message`, `pull` | dividing messages into stream and chunks, and reassembling them |
//! | `expose`, `fetch` | replies in the Read-Read design, on the responder's and the requester's side |
//! | [`RdmaTransport`], [`RdmaKind`] | the transport, which drives a [`rdma::QueuePair`] for [`rpc`] |
//!
//! Buffers: memory that the peer can access belongs to the queue pair until it is invalidated, so no caller can see it
//! change. On error: RFC 8166 §4.5 defines the reply to an invalid header or invalid chunks. The connection is closed
//! if the peer's state is uncertain.

mod call_memory;
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

/// The transport's name in the switch, unless [`RdmaKind::named`] changes it.
pub const NAME: &str = "rdma";
