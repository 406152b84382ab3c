//! How a command ends: its exit codes, and the failure that ends one early.

use std::{fmt, process::ExitCode};

/// The exit codes, as `slipway --help` documents them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Exit {
    /// Everything asked for has been done.
    Ok = 0,
    /// Some of it has not, or a server has refused it; standard error says what.
    Failed = 1,
    /// The command line or a configuration file is wrong; nothing has been done. (Also clap's code.)
    Usage = 2,
    /// No server answers, or an address cannot be listened at.
    Unreachable = 3,
    /// SIGINT has ended it, and it has cleaned up. (As a shell shows a process that SIGINT has killed.)
    Interrupted = 130,
    /// SIGTERM has ended it, and it has cleaned up.
    Terminated = 143,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        ExitCode::from(exit as u8)
    }
}

/// Ends a command. The message says what is wrong, where, and where possible what to do.
#[derive(Debug)]
pub struct Failure {
    /// The exit code.
    pub exit: Exit,
    /// For a person.
    pub message: String,
}

impl Failure {
    /// The command line or the configuration is wrong.
    pub fn usage(message: impl fmt::Display) -> Self {
        Self { exit: Exit::Usage, message: message.to_string() }
    }

    /// What was asked for did not work.
    pub fn failed(message: impl fmt::Display) -> Self {
        Self { exit: Exit::Failed, message: message.to_string() }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

/// What a command comes to.
pub type Outcome = Result<Exit, Failure>;
