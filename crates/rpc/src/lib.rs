//! ONC RPC version 2, RFC 5531, over interchangeable transports.
//!
//! - [`Transport`] and [`Listener`]: a connection, and where connections come from. RPC knows
//!   nothing else of the network; [`Switch`] finds a transport by name. Here are [`TcpKind`] and
//!   [`UdpKind`]; the crate `rpcrdma` has RDMA.
//! - [`Service`]: an RPC program on the serving side; [`Server`] and [`Workers`] serve any number of them.
//! - [`Client`]: calls on the other side, through lost connections, until their deadlines.
//! - [`security`]: flavours, which authenticate callers and protect bodies.
//! - Calls go both ways: a service calls back by [`Reverse`], and [`ClientOptions::callbacks`] answers.
//!
//! # How to write your own RPC program
//!
//! 1. Choose a program number from `0x20000000` up (RFC 5531 §13.1 leaves these to everyone), and write arguments and
//!    results as types that derive `Encode` and `Decode`. Make an item a [`Payload`](xdr::Payload) if it is large:
//!    it is then not copied, and placed directly where the transport can do that.
//! 2. Implement [`Service`]. Say of each procedure whether it is idempotent: those that are not are
//!    executed once, however often a caller has to send them.
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
//! `examples/keyvalue.rs` of the crate `rpcrdma` is a program with large payloads, run over tcp, udp and rdma from the
//! same code.
//!
//! What a call or its reply refers to lies in memory of the transport, which is shared by several messages: copy what
//! is kept for long.

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
mod pending;
mod programs;
pub mod record;
mod reverse;
pub mod rpcbind;
pub mod security;
mod server;
mod service;
mod tcp;
mod transport;
mod turns;
mod udp;
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
pub use reverse::{Reverse, ReverseTarget};
pub use security::{Credential, Executed, Identity};
pub use server::{Drain, Limits, Server, ServerBuilder};
pub use service::*;
pub use tcp::{TcpKind, TcpOptions, TcpTransport};
pub use transport::*;
pub use udp::{UdpKind, UdpOptions, UdpTransport};
pub use workers::{WorkerOptions, Workers};
