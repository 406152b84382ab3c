//! Requests to a running server on this machine, by the socket in its state directory.

use std::{
    io::{self, BufRead, BufReader, Write},
    iter,
    net::Shutdown,
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    sync::Arc,
    thread::sleep,
    time::Duration,
};

use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;
use server::{Config, admin::SOCKET, config::default_state_dir};

use crate::{
    exit::{Exit, Failure},
    progress::Progress,
};

/// The server to ask.
#[derive(Debug, clap::Args)]
pub struct ServerArgs {
    /// The server's state directory
    #[arg(long, value_name = "DIR", global = true)]
    state_dir: Option<PathBuf>,
    /// The server's configuration file, which contains the state directory
    #[arg(short, long, value_name = "FILE", conflicts_with = "state_dir", global = true)]
    config: Option<PathBuf>,
}

/// Sends a request to the socket, and returns the records of the answer. The last one is an error if the server answers with
/// one, or does not answer completely.
///
/// # Errors
/// The configuration cannot be read, or no server listens there.
pub fn ask<T: DeserializeOwned, R: Serialize>(
    server: &ServerArgs,
    request: &R,
) -> Result<impl Iterator<Item = Result<T, Failure>> + use<T, R>, Failure> {
    let backends = crate::pnfs::backends(Arc::default());
    let configured = match &server.config {
        Some(path) => Config::load_with(path, &backends).map_err(Failure::usage)?.server.state_dir,
        None => server.state_dir.clone(),
    };
    ask_at(&configured.unwrap_or_else(default_state_dir), request)
}

/// Sends a request like [`ask`] to the server with this state directory.
///
/// # Errors
/// No server listens there.
pub fn ask_at<T: DeserializeOwned, R: Serialize>(
    state_dir: &Path,
    request: &R,
) -> Result<impl Iterator<Item = Result<T, Failure>> + use<T, R>, Failure> {
    let path = state_dir.join(SOCKET);
    let unreachable = |error: io::Error| {
        let advice = match error.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => {
                ": no server runs with this state directory; select another with --state-dir"
            }
            io::ErrorKind::PermissionDenied => ": only the server's user and root can use it",
            _ => "",
        };
        Failure { exit: Exit::Unreachable, message: format!("{}: {error}{advice}", path.display()) }
    };
    let mut socket = UnixStream::connect(&path).map_err(unreachable)?;
    let line = serde_json::to_string(request).expect("requests must be valid JSON");
    let asked = socket.write_all(line.as_bytes()).and_then(|()| socket.shutdown(Shutdown::Write));
    match asked {
        // The server has answered before it received the request.
        Err(error) if !matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::NotConnected) => {
            return Err(unreachable(error));
        }
        _ => {}
    }
    let mut lines = BufReader::new(socket).lines();
    let mut ended = false;
    Ok(iter::from_fn(move || {
        let record = if ended { None } else { record(lines.next()).transpose() };
        ended = !matches!(record, Some(Ok(_)));
        record
    }))
}

/// Requests that wait for the end of work which continues after a restart of the server.
pub struct Polling<'a> {
    server: &'a ServerArgs,
    /// Messages are printed above its bar.
    progress: &'a Progress,
    /// `true` once the server has answered.
    answered: bool,
}

impl<'a> Polling<'a> {
    /// Prepares requests to a server.
    pub fn new(server: &'a ServerArgs, progress: &'a Progress) -> Self {
        Self { server, progress, answered: false }
    }

    /// Sends a request like [`ask`], and returns all records. If the server answers no longer, the request is repeated until it does.
    ///
    /// # Errors
    /// The configuration cannot be read, the server answers with an error, or it does not answer the first request.
    pub fn ask<T: DeserializeOwned, R: Serialize>(&mut self, request: &R) -> Result<Vec<T>, Failure> {
        let mut told = false;
        loop {
            let records: Result<Vec<T>, _> = ask(self.server, request).and_then(Iterator::collect);
            match records {
                Err(failure) if self.answered && failure.exit == Exit::Unreachable => {
                    if !told {
                        self.progress.say(&format!("slipway: {}; waiting for the server", failure.message));
                    }
                    told = true;
                    sleep(PAUSE);
                }
                records => {
                    self.answered |= records.is_ok();
                    return records;
                }
            }
        }
    }
}

/// The time between two requests that wait for the end of some work.
pub const PAUSE: Duration = Duration::from_millis(200);

/// Returns the record of a line, or `None` at the end of a complete answer.
fn record<T: DeserializeOwned>(line: Option<io::Result<String>>) -> Result<Option<T>, Failure> {
    let ended = |reason: String| Failure { exit: Exit::Unreachable, message: reason };
    let Some(line) = line else {
        return Err(ended("the server closed the connection before the end of its answer".to_owned()));
    };
    let other = |error: serde_json::Error| Failure::failed(format!("the server has another version: {error}"));
    let value: Value = serde_json::from_str(&line.map_err(|error| ended(error.to_string()))?).map_err(other)?;
    match value["type"].as_str() {
        Some("end") => Ok(None),
        Some("error") => Err(Failure::failed(value["message"].as_str().unwrap_or("the request failed"))),
        _ => serde_json::from_value(value).map(Some).map_err(other),
    }
}
