//! Logs on standard error by `tracing`, so that standard output has only the result of a command.

mod limit;

use std::{
    env,
    io::{IsTerminal, stderr},
};

use clap::ValueEnum;
use tracing_subscriber::{EnvFilter, filter::LevelFilter};

use self::limit::Limited;
use crate::{cli::LogArgs, exit::Failure};

/// The format of log lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// Text for people.
    Text,
    /// One JSON object on each line.
    Json,
}

/// Starts logging. The filter is the first of these that is set: RUST_LOG, `-v`, the filter of a configuration file.
///
/// # Errors
/// The filter is invalid.
pub fn start(log: &LogArgs) -> Result<(), Failure> {
    let level = match log.verbose {
        0 => "warn",
        1 => "info",
        2 => "debug",
        _ => "trace",
    };
    let filter = match (env::var("RUST_LOG"), &log.filter) {
        (Ok(filter), _) if !filter.is_empty() => filter,
        (_, Some(filter)) if log.verbose == 0 => filter.clone(),
        _ => level.to_owned(),
    };
    let filter =
        EnvFilter::try_new(&filter).map_err(|error| Failure::usage(format!("log filter '{filter}': {error}")))?;
    let debugs = filter.max_level_hint().is_none_or(|most| most >= LevelFilter::DEBUG);
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(stderr);
    match (log.log_format, debugs) {
        (Some(LogFormat::Json), true) => builder.json().init(),
        (Some(LogFormat::Json), false) => builder.json().map_event_format(Limited::new).init(),
        (Some(LogFormat::Text) | None, true) => builder.with_ansi(stderr().is_terminal()).init(),
        (Some(LogFormat::Text) | None, false) => {
            builder.with_ansi(stderr().is_terminal()).map_event_format(Limited::new).init();
        }
    }
    Ok(())
}
