//! [`Counted`]: a new server in a separate process, whose memory is measured.
//!
//! Resident memory is that of user space, without the kernel's socket buffers.

use std::{fs, time::Duration};

use client::NfsUrl;
use serde::Serialize;

use crate::{
    child::{Listen, Server},
    exit::{Exit, Failure, Outcome},
    output, resources,
};

/// A server with one transport that does not close idle connections.
pub struct Counted {
    server: Server,
    /// The URL of its export.
    pub url: NfsUrl,
}

impl Counted {
    /// Starts a server with a memory export of `room` bytes. `more` are options of its transport, and `arguments` are
    /// further arguments.
    ///
    /// # Errors
    /// The server did not start.
    pub fn start(
        transport: &str,
        more: &[(&str, &str)],
        connections: usize,
        room: u64,
        arguments: &[&str],
    ) -> Result<Self, Failure> {
        let options = [("idle", "off")].iter().chain(more);
        let options = options.map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        let listen = Listen::on(transport, options);
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

    /// Returns the resident bytes, after a time for the last call to finish.
    ///
    /// # Errors
    /// The process has ended, or the system does not report its memory.
    pub async fn resident(&self) -> Result<u64, Failure> {
        tokio::time::sleep(SETTLE).await;
        read_bytes("smaps_rollup", "Rss:", self.server.pid())
    }

    /// Returns the maximum of the resident bytes so far.
    ///
    /// # Errors
    /// The errors of [`resident`](Self::resident).
    pub fn peak(&self) -> Result<u64, Failure> {
        read_bytes("status", "VmHWM:", self.server.pid())
    }
}

/// Returns the resident bytes of this process.
///
/// # Errors
/// The system does not report its memory.
pub fn resident_here() -> Result<u64, Failure> {
    read_bytes("smaps_rollup", "Rss:", std::process::id())
}

/// Measures each transport by `measure`, with up to `connections` connections at a time, and prints the results as
/// JSON, or by `text`.
///
/// # Errors
/// The system does not allow that many connections, or `measure` failed.
pub fn each<T: Serialize>(
    transports: &[String],
    connections: usize,
    json: bool,
    text: impl FnOnce(&[T]) -> String,
    measure: impl Fn(&str) -> Result<T, Failure>,
) -> Outcome {
    // The server uses three quarters of its descriptors for connections.
    resources::raise_files((connections + SPARE_CONNECTIONS).div_ceil(3) as u64 * 4 + SPARE_DESCRIPTORS)
        .map_err(|problem| Failure::usage(format!("{connections} connections: {problem}")))?;
    let found = transports.iter().map(|transport| measure(transport)).collect::<Result<Vec<_>, _>>()?;
    match json {
        true => output::json(&found),
        false => output::print(&text(&found)),
    }
    Ok(Exit::Ok)
}

/// Returns the value of `name` in a file of a process in `/proc`, in bytes.
fn read_bytes(file: &str, name: &str, pid: u32) -> Result<u64, Failure> {
    let path = format!("/proc/{pid}/{file}");
    let text = fs::read_to_string(&path).map_err(|error| Failure::failed(format!("{path}: {error}")))?;
    bytes(&text, name).ok_or_else(|| Failure::failed(format!("{path}: no {name}")))
}

fn bytes(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok().map(|kib| kib * 1024)
}

/// The number of connections that are made at once.
pub const AT_ONCE: usize = 64;
/// The time for the server to finish the last call.
const SETTLE: Duration = Duration::from_millis(300);
/// Connections that are not counted.
const SPARE_CONNECTIONS: usize = 16;
/// Descriptors that are not connections.
const SPARE_DESCRIPTORS: u64 = 200;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_of_a_process_is_read() {
        let smaps = "5581d000-7ffc ---p 00000000 00:00 0 [rollup]\nRss:                1234 kB\nPss: 9 kB\n";
        assert_eq!(bytes(smaps, "Rss:"), Some(1234 * 1024));
        assert_eq!(bytes("Pss: 9 kB", "Rss:"), None);
        let own = |file, name| read_bytes(file, name, std::process::id()).unwrap();
        assert!(own("smaps_rollup", "Rss:") > 1 << 20);
        assert!(own("status", "VmHWM:") > 1 << 20);
    }
}
