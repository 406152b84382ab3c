//! ONC RPC version 2, RFC 5531, over interchangeable transports.
//!
//! - [`Transport`] and [`Listener`]: a connection, and a source of connections. The rest of the crate does not depend
//!   on anything else of the network; [`Switch`] finds a transport by its name. This crate has [`TcpKind`] and
//!   [`UdpKind`]; the crate `rpcrdma` has RDMA.
//! - [`Service`]: an RPC program on the server side. [`Server`] and [`Workers`] serve any number of services.
//! - [`Client`]: calls the procedures of a program. It reconnects when a connection is lost, and retries each call
//!   until its deadline.
//! - [`security`]: flavours, which authenticate callers and protect bodies.
//! - Calls can go in both directions: a service makes callbacks by [`Reverse`], and [`ClientOptions::callbacks`]
//!   answers them.
//!
//! # How to write your own RPC program
//!
//! 1. Choose a program number from `0x20000000` up (RFC 5531 §13.1 reserves these for private use), and define
//!    arguments and results as types that derive `Encode` and `Decode`. Make an item a [`Payload`](xdr::Payload) if it
//!    is large: the item is then not copied, and a transport that can place data places it directly.
//! 2. Implement [`Service`]. Say for each procedure whether it is idempotent. A call of a procedure that is not
//!    idempotent is executed once, even if the caller retransmits it.
//! 3. Serve it on any transport, and call it with a [`Client`].
//!
//! ```
//! use std::{ops::RangeInclusive, sync::Arc};
//!
//! use rpc::*;
//! use xdr::{Decode, Encode, Message};
//!
//! #[derive(Encode, Decode)]
//! struct Pair {
//!     left: u64,
//!     right: u64,
//! }
//!
//! struct Adder;
//!
//! impl Service for Adder {
//!     fn program(&self) -> u32 {
//!         0x2000_0000
//!     }
//!     fn versions(&self) -> RangeInclusive<u32> {
//!         1..=1
//!     }
//!     fn procedure(&self, _version: u32, procedure: u32) -> Option<Procedure> {
//!         (procedure == 1).then_some(Procedure { name: "ADD", idempotent: true })
//!     }
//!     fn call<'a>(&'a self, mut call: Call<'a>) -> Answering<'a> {
//!         Answering::Pending(Box::pin(async move {
//!             let Pair { left, right } = Decode::decode(&mut call.arguments)?; // else GARBAGE_ARGS
//!             call.arguments.finish()?;
//!             Ok(call.reply(&left.wrapping_add(right)))
//!         }))
//!     }
//! }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let kind: Arc<dyn TransportKind> = Arc::new(TcpKind::default());
//! let workers = Workers::new(WorkerOptions { threads: 1, ..Default::default() })?;
//! let listener = kind.listen("127.0.0.1:0".parse()?)?;
//! let address = listener.local_addr();
//! workers.listen(Server::builder().service(Adder).build(), listener);
//!
//! let client = Client::connect(kind, address, ClientOptions::new(0x2000_0000, 1)).await?;
//! let pair = Pair { left: 40, right: 2 };
//! let answer = client.call::<u64>(1, &pair, ReplyPlan::default(), CallOptions::default()).await;
//! assert_eq!(answer.map_err(ClientError::from)?.results, 42);
//! # Ok(()) }
//! ```
//!
//! `examples/keyvalue.rs` of the crate `rpcrdma` is a program with large payloads. It runs over tcp, udp and rdma from
//! the same code.
//!
//! The data of a call or a reply are in memory of the transport, which several messages share. Copy data that you keep
//! for long; otherwise that memory cannot be reused.

mod auth;
mod budget;
mod client;
mod connections;
mod counters;
mod deadlines;
mod drc;
mod host;
mod hosts;
mod idle;
mod msg;
mod options;
mod outbox;
mod peer_log;
mod pending;
mod programs;
mod rate;
pub mod record;
mod request;
mod reverse;
pub mod rpcbind;
pub mod security;
mod sent;
mod server;
mod service;
mod signal;
mod tcp;
mod tls;
mod transport;
mod turns;
mod udp;
pub mod users;
mod workers;

pub use auth::{AuthStat, AuthSys, OpaqueAuth};
pub use client::{Answer, CallFailed, CallOptions, Client, ClientError, ClientOptions, DeadlinePassed};
pub use connections::ConnectionLimits;
pub use counters::ProcedureStats;
pub use drc::{Admission, Drc, DrcKey, DrcOptions, Execution};
pub use host::Host;
pub use hosts::Hosts;
pub use idle::accepting_idle;
pub use msg::{AcceptStat, CallHeader, CallHeaderError, REPLY_HEADER_LEN, RejectStat, ReplyBody, ReplyHeader};
pub use options::OptionReader;
pub use request::EncodedCall;
pub use reverse::{Reverse, ReverseTarget};
pub use security::{Credential, Executed, Identity};
pub use sent::SentCall;
pub use server::{Drain, Limits, Server, ServerBuilder};
pub use service::*;
pub use signal::Signal;
#[cfg(feature = "sim")]
pub use tcp::sim::SimStreams;
pub use tcp::{Accept, Sockets, Stream, StreamNetwork, TcpKind, TcpOptions, TcpTransport};
pub use tls::{Alpn, ClientTls, ConnectionTls, Ktls, Required, ServerTls, TlsSurvey, Xprtsec};
pub use transport::*;
pub use udp::{UdpKind, UdpOptions, UdpTransport};
pub use workers::{WorkerOptions, Workers};
