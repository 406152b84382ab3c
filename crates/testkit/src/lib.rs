//! Code that tests of several crates share.
//!
//! [`deferred`] is a back end whose operations complete when a test asks for it. [`device`] is opaque device memory. [`disk`] is
//! a disk that crashes. [`pcap`], [`capture`] and [`exchange`] read captures of real peers. [`fuzz`] has the bodies of the
//! fuzz targets. [`flavor`] is a security flavour for tests, and [`toy`] a mechanism of RPCSEC_GSS. [`pki`] issues
//! certificates. [`port`] reserves ports. [`proxy`] cuts TCP connections in the middle of a message. [`world`] is a server
//! and its clients in virtual time.

pub mod capture;
pub mod deferred;
pub mod device;
pub mod disk;
pub mod exchange;
pub mod flavor;
pub mod fuzz;
pub mod paper;
pub mod pcap;
pub mod pki;
pub mod port;
pub mod process;
pub mod proxy;
pub mod toy;
pub mod world;
