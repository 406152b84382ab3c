//! The exit codes of commands, and the failure that ends a command early.

use std::{fmt, process::ExitCode};

/// The exit codes, as `slipway --help` documents them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Exit {
    /// Everything was done.
    Ok = 0,
    /// Some of it failed, or a server rejected it; standard error has the reasons.
    Failed = 1,
    /// The command line or a configuration file is wrong; nothing was done. (This is also clap's code.)
    Usage = 2,
    /// No server answers, or the server cannot listen on an address.
    Unreachable = 3,
    /// SIGINT ended the command, which has cleaned up. (Shells report the same code for a process that SIGINT killed.)
    Interrupted = 130,
    /// SIGTERM ended the command, which has cleaned up.
    Terminated = 143,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        ExitCode::from(exit as u8)
    }
}

/// An error that ends a command. The message says what is wrong, where, and if possible what to do.
#[derive(Debug)]
pub struct Failure {
    /// The exit code.
    pub exit: Exit,
    /// The message for the user.
    pub message: String,
}

impl Failure {
    /// Returns a failure for a wrong command line or configuration.
    pub fn usage(message: impl fmt::Display) -> Self {
        Self { exit: Exit::Usage, message: message.to_string() }
    }

    /// Returns a failure for an operation that did not work.
    pub fn failed(message: impl fmt::Display) -> Self {
        Self { exit: Exit::Failed, message: message.to_string() }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

/// The result of a command.
pub type Outcome = Result<Exit, Failure>;
