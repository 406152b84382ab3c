//! [`Location`]: a place where a file system is, and [`AbsentFs`], a file system that a server does not have any more.

use std::fmt;

use bytes::Bytes;

/// A place where a file system is.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Location {
    /// As the server calls it: a name, an address, or nothing for itself.
    pub server: Bytes,
    /// The file system's root there.
    pub path: Bytes,
}

/// A file system that the server does not have any more.
#[derive(Clone, Debug)]
pub(crate) struct AbsentFs {
    pub fsid: u64,
    /// The path of its root here.
    pub root: Vec<Bytes>,
    /// Where it is now.
    pub places: Vec<Location>,
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.server.escape_ascii(), self.path.escape_ascii())
    }
}
