//! What tests of several crates share.
//!
//! [`deferred`] is a back end whose operations complete when a test says so; [`device`] is memory of which nobody can see the bytes.
//! [`pcap`], [`capture`] and [`exchange`] read what real peers have put on the wire; [`fuzz`] holds the bodies of
//! the fuzz targets; [`flavor`] is a security flavour for tests; [`port`] has ports that nobody else gets; [`proxy`] cuts TCP
//! connections in the middle of a message; [`world`] is a server and its clients in virtual time.

pub mod capture;
pub mod deferred;
pub mod device;
pub mod exchange;
pub mod flavor;
pub mod fuzz;
pub mod paper;
pub mod pcap;
pub mod port;
pub mod process;
pub mod proxy;
pub mod world;
