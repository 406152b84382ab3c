//! Conformance suites: the promises of an interface as tests that any implementation can run.
//!
//! - [`backend`]: file system back ends ([`vfs::Vfs`](https://docs.rs/slipway-vfs)), feature `backend`;
//! - [`provider`]: RDMA providers (`rdma::Provider`), feature `provider`.
//!
//! Each suite is one macro. It expands to a module of named `#[test]` functions for each implementation that it is given, so that
//! test runners list, filter and time the cases one by one.
//!
//! A case that needs something that this machine or user does not have prints `SKIPPED WHAT: WHY` to standard error and passes.

#[cfg(feature = "backend")]
pub mod backend;
#[cfg(feature = "provider")]
pub mod provider;
