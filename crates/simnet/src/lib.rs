//! A simulated network in virtual time, and simulations that can be repeated exactly.
//!
//! [`simulate`] runs a future, and the attribute [`test`](macro@test) a test, on one thread with tokio's paused clock. All random values in it follow from a seed
//! (crate `entropy`). [`Network`] connects the hosts of a simulation: it draws delays and faults from its seed, and
//! records every message that arrives in its [`Trace`]. It implements neither TCP nor RDMA: it carries the [`Stream`]s of this
//! crate, which the transport "tcp" of `rpc` uses, and the queue pairs of `rdma::sim`.
//!
//! Two runs with the same seed have the same trace. [`assert_replays`] tests this in one process. `cargo xtask sim --replay`
//! tests it for all simulations of the test suite.
//!
//! Bytes in transit belong to the connection, like those in the buffers of a socket. They are dropped on error.

mod log;
mod network;
mod run;
mod stream;
mod trace;

pub use entropy::is_simulated;
pub use log::Log;
pub use network::{Connection, Cut, Listening, Network, NetworkOptions};
pub use run::{assert_replays, seeds, simulate};
pub use simnet_macros::test;
pub use stream::{Stream, StreamListener};
pub use trace::{Event, Trace};
