//! A simulated network in virtual time, and runs that repeat exactly.
//!
//! [`simulate`] runs a future on one thread with tokio's paused clock, and everything random in it follows from a seed
//! (crate `entropy`). [`Network`] joins the hosts of a simulation: it draws delays and faults from its seed, and
//! records every message that arrives in its [`Trace`]. It knows neither TCP nor RDMA; what travels over it are the
//! [`Stream`]s of this crate, below the transport "tcp" of `rpc`, and the queue pairs of `rdma::sim`.
//!
//! Two runs of one seed have the same trace. [`assert_replays`] tests that in one process, and `cargo xtask sim --replay`
//! for all simulations of the test suite.
//!
//! Who owns the bytes: those under way belong to the connection, as those in a socket's buffers do. On error, they are
//! dropped.

mod network;
mod run;
mod stream;
mod trace;

pub use entropy::is_simulated;
pub use network::{Connection, Cut, Listening, Network, NetworkOptions};
pub use run::{assert_replays, seeds, simulate};
pub use stream::{Stream, StreamListener};
pub use trace::{Event, Trace};
