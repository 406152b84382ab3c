//! Users and groups.

pub(crate) mod names;
