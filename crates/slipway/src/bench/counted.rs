//! [`Counted`]: a fresh server in a process of its own, whose memory is counted.
//!
//! What it has resident is user space alone, without the kernel's socket buffers.

use std::{fs, time::Duration};

use client::NfsUrl;
use serde::Serialize;

use crate::{
    child::{Listen, Server},
    descriptors,
    exit::{Exit, Failure, Outcome},
    output,
};

/// A server that listens by one transport, and leaves idle connections alone.
pub struct Counted {
    server: Server,
    /// Its export.
    pub url: NfsUrl,
}

impl Counted {
    /// Starts one with a file system of `room` bytes in memory. `more` are options of its transport, and `arguments` go on
    /// with what it is told.
    ///
    /// # Errors
    /// It did not start.
    pub fn start(
        transport: &str,
        more: &[(&str, &str)],
        connections: usize,
        room: u64,
        arguments: &[&str],
    ) -> Result<Self, Failure> {
        let options = [("idle", "off")].iter().chain(more);
        let options = options.map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        let listen = Listen { transport: transport.to_owned(), options };
        let (room, most) = (room.to_string(), (connections + SPARE_CONNECTIONS).to_string());
        let arguments =
            [&["--memory", &room, "--connections", &most, "--connections-per-host", &most], arguments].concat();
        let server = Server::start(&[listen], &arguments.into_iter().map(Into::into).collect::<Vec<_>>())?;
        let mut url = server.url(0);
        if transport == "tcp" {
            // There are fewer reserved ports than connections.
            url.options.transport.insert("resvport".to_owned(), "off".to_owned());
        }
        Ok(Self { server, url })
    }

    /// Bytes that are in memory, once it has finished with the last call.
    ///
    /// # Errors
    /// It is gone, or the system does not say.
    pub async fn resident(&self) -> Result<u64, Failure> {
        tokio::time::sleep(SETTLE).await;
        told("smaps_rollup", "Rss:", self.server.pid())
    }

    /// The most bytes that ever were.
    ///
    /// # Errors
    /// As [`resident`](Self::resident).
    pub fn peak(&self) -> Result<u64, Failure> {
        told("status", "VmHWM:", self.server.pid())
    }
}

/// Measures each transport by `measure`, with up to so many connections at a time, and prints what was found: as JSON, or by `text`.
///
/// # Errors
/// The system does not allow so many connections, or what `measure` says.
pub fn each<T: Serialize>(
    transports: &[String],
    connections: usize,
    json: bool,
    text: impl FnOnce(&[T]) -> String,
    measure: impl Fn(&str) -> Result<T, Failure>,
) -> Outcome {
    // The server gives connections three quarters of its descriptors.
    descriptors::raise((connections + SPARE_CONNECTIONS).div_ceil(3) as u64 * 4 + SPARE_DESCRIPTORS)
        .map_err(|problem| Failure::usage(format!("{connections} connections: {problem}")))?;
    let found = transports.iter().map(|transport| measure(transport)).collect::<Result<Vec<_>, _>>()?;
    match json {
        true => output::json(&found),
        false => output::print(&text(&found)),
    }
    Ok(Exit::Ok)
}

/// What a file of a process in `/proc` says after `name`, in bytes.
fn told(file: &str, name: &str, pid: u32) -> Result<u64, Failure> {
    let path = format!("/proc/{pid}/{file}");
    let text = fs::read_to_string(&path).map_err(|error| Failure::failed(format!("{path}: {error}")))?;
    bytes(&text, name).ok_or_else(|| Failure::failed(format!("{path}: no {name}")))
}

fn bytes(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok().map(|kib| kib * 1024)
}

/// Connections that are made at once.
pub const AT_ONCE: usize = 64;
/// For the server to have finished with the last call.
const SETTLE: Duration = Duration::from_millis(300);
/// Connections that are not counted.
const SPARE_CONNECTIONS: usize = 16;
/// Descriptors that are not connections.
const SPARE_DESCRIPTORS: u64 = 200;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_of_a_process_are_found() {
        let smaps = "5581d000-7ffc ---p 00000000 00:00 0 [rollup]\nRss:                1234 kB\nPss: 9 kB\n";
        assert_eq!(bytes(smaps, "Rss:"), Some(1234 * 1024));
        assert_eq!(bytes("Pss: 9 kB", "Rss:"), None);
        let own = |file, name| told(file, name, std::process::id()).unwrap();
        assert!(own("smaps_rollup", "Rss:") > 1 << 20);
        assert!(own("status", "VmHWM:") > 1 << 20);
    }
}
