//! The measurements of `slipway bench`: several ways to access the same data, side by side in one run.
//!
//! It has these parts. None depends on a later one:
//!
//! - [`point`]: the load: an operation, a block size, operations in flight, threads. [`workload`] executes the
//!   operations on the files of a [`site`], [`load`] has the threads and the clock.
//! - [`series`]: the configuration: a transport with its options and a back end, or one of the loops without NFS
//!   ([`bare`]), which show the limit of the machine.
//! - [`runner`]: measures every series at every point, in rounds, so that other load on the machine affects all of
//!   them.
//! - [`plan`]: the points of one subcommand, its charts, and the published results ([`claim`]).
//! - [`connections`] and [`sessions`] do not use these parts: they measure the memory of a [`counted`] server.
//!   [`failover`] measures a session whose connections are cut, [`pnfs`] clusters with more and more data servers, also with the I/O of [`btio`],
//!   the operations on [`layouts`] and the [`creation`] of files with them.
//! - [`report`]: medians, spreads and costs, and the series that are [`compared`] by [`pnfs`], with their aims. It is printed as [`text`], as
//!   JSON, or as a page ([`html`]).

pub mod bare;
pub mod btio;
mod certificates;
pub mod claim;
mod compared;
pub mod connections;
pub mod counted;
mod creation;
pub mod failover;
pub mod html;
mod layouts;
pub mod load;
pub mod machine;
pub mod meter;
pub mod plan;
pub mod pnfs;
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
