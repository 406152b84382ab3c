//! A server in a separate process: `slipway serve`, started from this executable, for `demo` and `bench`.
//!
//! A separate process has its own CPU time. The server ends when its standard input is closed, so it never outlives
//! this process.

use std::{
    collections::BTreeMap,
    env,
    ffi::OsString,
    io::{BufRead, BufReader},
    os::unix::process::ExitStatusExt,
    process::{Child, Command, Stdio},
    time::Duration,
};

use client::{MountOptions, NfsUrl};
use serde::{Deserialize, Serialize};

use crate::{
    exit::{Exit, Failure},
    process,
};

/// The line of JSON that a server prints when it is ready (`serve --json`).
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Ready {
    /// The process ID.
    pub pid: u32,
    /// The addresses on which it listens.
    pub listen: Vec<ReadyListen>,
    /// The names of its exports.
    pub exports: Vec<String>,
    /// The identity that accesses files: `callers`, or the name or number of the one user for all callers.
    pub identity: String,
}

/// One address on which a server listens.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ReadyListen {
    /// The transport's name.
    pub transport: String,
    /// The address, with the port that was chosen if it was 0.
    pub address: std::net::SocketAddr,
}

/// A transport with its options, for a server that listens and for its client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listen {
    /// The transport's name.
    pub transport: String,
    /// The options of the transport.
    pub options: BTreeMap<String, String>,
    /// The port; 0 for any free one.
    pub port: u16,
}

impl Listen {
    /// Listens with this transport on a free port.
    pub fn on(transport: &str, options: BTreeMap<String, String>) -> Self {
        Self { transport: transport.to_owned(), options, port: 0 }
    }
}

/// A running server.
pub struct Server {
    child: Child,
    /// The ready line. Its listeners are in the order of `listen`.
    ready: Ready,
    listen: Vec<Listen>,
}

impl Server {
    /// Starts a server that listens on 127.0.0.1, at one address for each of `listen`, with the exports of `arguments`.
    ///
    /// # Errors
    /// The server did not start; its message is on standard error.
    pub fn start(listen: &[Listen], arguments: &[OsString]) -> Result<Self, Failure> {
        Self::start_with(listen, arguments, &[])
    }

    /// Starts a server like [`start`](Self::start), with these variables in its environment unless this process has them.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub fn start_with(
        listen: &[Listen],
        arguments: &[OsString],
        environment: &[(&str, &str)],
    ) -> Result<Self, Failure> {
        let failed = |what: &dyn std::fmt::Display| Failure::failed(format!("cannot start a server: {what}"));
        let mut command = Command::new(env::current_exe().map_err(|error| failed(&error))?);
        command.args(["serve", "--json", "--until-eof", "--rpcbind", "off"]).args(arguments);
        command.envs(environment.iter().filter(|(name, _)| env::var_os(name).is_none()).copied());
        for Listen { transport, options, port } in listen {
            command.arg("--listen").arg(format!("{transport}://127.0.0.1:{port}{}", query(options)));
        }
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().map_err(|error| failed(&error))?;
        let mut line = String::new();
        let stdout = child.stdout.take().expect("stdout must be piped");
        let read = BufReader::new(stdout).read_line(&mut line);
        match (read, serde_json::from_str(&line)) {
            (Ok(_), Ok(ready)) => Ok(Self { child, ready, listen: listen.to_vec() }),
            _ => {
                let _ = child.kill();
                let status = child.wait().map_err(|error| failed(&error))?;
                Err(Failure { exit: Exit::Unreachable, message: format!("the server did not start ({status})") })
            }
        }
    }

    /// Returns the URL of the first export through the listener with this index in `listen`.
    ///
    /// # Panics
    /// If there is no such listener.
    pub fn url(&self, listener: usize) -> NfsUrl {
        let Listen { transport, options, .. } = &self.listen[listener];
        let address = self.ready.listen[listener].address;
        // MOUNT is on the same port, which the client tries first.
        NfsUrl {
            host: address.ip().to_string(),
            port: Some(address.port()),
            path: self.ready.exports[0].clone().into(),
            options: MountOptions { proto: transport.clone(), transport: options.clone(), ..MountOptions::default() },
        }
    }

    /// Returns the port of the listener with this index in `listen`.
    ///
    /// # Panics
    /// If there is no such listener.
    pub fn port(&self, listener: usize) -> u16 {
        self.ready.listen[listener].address.port()
    }

    /// Kills the server by SIGKILL, so that it ends without any further action, and waits for its end.
    ///
    /// # Errors
    /// The server has ended before.
    pub fn kill(mut self) -> Result<(), Failure> {
        let killed = self.child.kill().and_then(|()| self.child.wait());
        let status = killed.map_err(|error| Failure::failed(format!("cannot kill a server: {error}")))?;
        let expected = status.signal() == Some(rustix::process::Signal::KILL.as_raw());
        expected.then_some(()).ok_or_else(|| Failure::failed(format!("a server has ended before ({status})")))
    }

    /// Returns the process ID of the server.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Returns the CPU time that the server has used.
    pub fn cpu_time(&self) -> Duration {
        process::cpu_time_of(self.pid()).unwrap_or_default()
    }
}

fn query(options: &BTreeMap<String, String>) -> String {
    let pairs: Vec<String> = options.iter().map(|(key, value)| format!("{key}={value}")).collect();
    if pairs.is_empty() { String::new() } else { format!("?{}", pairs.join("&")) }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        let _ = self.child.wait();
    }
}
