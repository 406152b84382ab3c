//! Identities: the credentials with which a caller acts ([`squash`]), and the names of users and groups ([`names`]).

pub(crate) mod names;
pub(crate) mod squash;
