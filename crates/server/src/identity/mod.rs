//! Identities: the user as whom a caller acts ([`users`], [`principals`]), the anonymous user ([`squash`]), and the names of
//! users and groups that NFSv4 sends ([`names`]).

pub(crate) mod names;
pub(crate) mod principals;
pub(crate) mod squash;
mod system;
pub(crate) mod users;
