//! The cases of the suite. Each is a function that [`backend_suite!`](crate::backend_suite) expands to a test.

pub mod acls;
pub mod attributes;
pub mod data;
pub mod holding;
pub mod listing;
pub mod making;
pub mod pending;
pub mod permissions;
pub mod ranges;
pub mod removing;
pub mod renaming;
pub mod xattrs;
