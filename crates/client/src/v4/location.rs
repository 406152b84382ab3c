//! [`Location`]: the server and path of a file system; and [`AbsentFs`]: a file system that a server does not have any
//! more.

use std::fmt;

use bytes::Bytes;

/// The location of a file system.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Location {
    /// The server as the referring server names it: a name, an address, or empty for itself.
    pub server: Bytes,
    /// The path of the file system's root there.
    pub path: Bytes,
}

/// A file system that the server does not have any more.
#[derive(Clone, Debug)]
pub(crate) struct AbsentFs {
    pub fsid: u64,
    /// The path of its root at the former server.
    pub root: Vec<Bytes>,
    /// The present locations.
    pub places: Vec<Location>,
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.server.escape_ascii(), self.path.escape_ascii())
    }
}
