//! Copies trees between this machine and servers, and between servers.
//!
//! `node` is the common interface of objects, `local` and `remote` implement it. `stream` copies the data of one file
//! and keeps holes. `engine` walks trees with many files in flight.
//!
//! A regular file is written under a temporary name in its directory and renamed when it is complete. `local::Output`
//! and `staged` do this, and remove the temporary file if the copy fails. `resume` keeps it for another copy.

mod engine;
mod local;
mod meta;
mod node;
mod remote;
mod resume;
mod sparse;
mod staged;
mod stream;

pub use engine::{Copier, Options};
pub use meta::{Kind, Meta, Time};
pub use node::Node;
pub use remote::Remote;

use std::{fmt, io, path::Path};

use crate::output;

/// An error about one object: its path and the reason, for the user.
#[derive(Clone, Debug)]
pub struct Error(pub String);

impl Error {
    /// Returns an error of the local file system, with its path.
    fn local(path: &Path, error: &io::Error) -> Self {
        Self(format!("{}: {error}", output::name(path.as_os_str().as_encoded_bytes())))
    }

    /// Returns an error of the local file system, with its path and the failed operation.
    fn doing(what: &str, path: &Path, error: &io::Error) -> Self {
        Self(format!("{}: cannot {what}: {error}", output::name(path.as_os_str().as_encoded_bytes())))
    }

    /// Returns an error of a server, with its path unless the error already has one.
    fn remote(path: &[u8], error: &client::Error) -> Self {
        match error.path() {
            Some(_) => Self(error.to_string()),
            None => Self(format!("{}: {error}", output::name(path))),
        }
    }
}

impl From<client::Error> for Error {
    fn from(error: client::Error) -> Self {
        Self(error.to_string())
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The result of an operation on one object.
pub type Result<T> = std::result::Result<T, Error>;
