//! Conformance suites: tests of an interface's contract that any implementation can run.
//!
//! - [`backend`]: file system back ends ([`vfs::Vfs`](https://docs.rs/slipway-vfs)), feature `backend`;
//! - [`provider`]: RDMA providers (`rdma::Provider`), feature `provider`.
//!
//! Each suite is a macro. For each implementation that it is given, it expands to a module of named `#[test]`
//! functions, so that test runners can list, filter and time the cases individually.
//!
//! A case that needs something that is missing on this machine or for this user prints `SKIPPED WHAT: WHY` to standard
//! error and passes.

#[cfg(feature = "backend")]
pub mod backend;
#[cfg(feature = "provider")]
pub mod provider;
