//! The instrument under `slipway bench`: it measures several ways to the same data side by side, in one run.
//!
//! Five parts, each of which knows nothing of the ones behind it:
//!
//! - [`point`]: *what is done and how much of it at once*: an operation, a block size, operations in flight, threads.
//!   [`workload`] does the operations on the files of a [`site`], [`load`] has the threads and the clock.
//! - [`series`]: *by which way*: a transport with its options to a backend, or one of the loops without NFS ([`bare`])
//!   that tell what the machine itself can do.
//! - [`runner`]: measures every series at every point, in rounds, so that what else happens on the machine hits all alike.
//! - [`plan`]: the points of one subcommand, what is drawn of them, and what was published about it ([`claim`]).
//! - [`connections`] and [`sessions`] stand beside these: they count the memory of a [`counted`] server, not
//!   operations. [`failover`] measures a session whose connections are cut.
//! - [`report`]: medians, spreads and costs; told as [`text`], as JSON, and as a page ([`html`]).

pub mod bare;
pub mod claim;
pub mod connections;
pub mod counted;
pub mod failover;
pub mod html;
pub mod load;
pub mod machine;
pub mod meter;
pub mod plan;
pub mod point;
pub mod report;
pub mod runner;
pub mod sample;
pub mod series;
pub mod sessions;
pub mod setup;
pub mod site;
pub mod svg;
pub mod text;
pub mod workload;
