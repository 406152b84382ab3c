//! A server in a process of its own: `slipway serve`, started from this executable, for `demo` and `bench`.
//!
//! A process of its own makes its CPU time its own. It ends with its standard input, so that it never outlives us.

use std::{
    collections::BTreeMap,
    env,
    ffi::OsString,
    io::{BufRead, BufReader},
    process::{Child, Command, Stdio},
    time::Duration,
};

use client::{MountOptions, NfsUrl};
use serde::{Deserialize, Serialize};

use crate::{
    exit::{Exit, Failure},
    process,
};

/// What a server says, as one line of JSON, when it is ready (`serve --json`).
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Ready {
    /// Its process.
    pub pid: u32,
    /// Where it listens.
    pub listen: Vec<ReadyListen>,
    /// What it exports.
    pub exports: Vec<String>,
    /// As whom files are touched: `callers`, or one user of this name or number for everybody.
    pub identity: String,
}

/// One address that a server listens at.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ReadyListen {
    /// The transport's name.
    pub transport: String,
    /// The address, with the port that was chosen if it was 0.
    pub address: std::net::SocketAddr,
}

/// A transport with its options: what a server listens with, and its client connects with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listen {
    /// The transport's name.
    pub transport: String,
    /// Its options.
    pub options: BTreeMap<String, String>,
}

/// A running server.
pub struct Server {
    child: Child,
    /// What it said, where it listens in the order of `listen`.
    ready: Ready,
    listen: Vec<Listen>,
}

impl Server {
    /// Starts a server that listens on free ports of 127.0.0.1, one for each of `listen`, and serves what `arguments`
    /// say.
    ///
    /// # Errors
    /// It did not start; what it said is on standard error.
    pub fn start(listen: &[Listen], arguments: &[OsString]) -> Result<Self, Failure> {
        let failed = |what: &dyn std::fmt::Display| Failure::failed(format!("cannot start a server: {what}"));
        let mut command = Command::new(env::current_exe().map_err(|error| failed(&error))?);
        command.args(["serve", "--json", "--until-eof", "--rpcbind", "off"]).args(arguments);
        for Listen { transport, options } in listen {
            command.arg("--listen").arg(format!("{transport}://127.0.0.1:0{}", query(options)));
        }
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().map_err(|error| failed(&error))?;
        let mut line = String::new();
        let stdout = child.stdout.take().expect("it is piped");
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

    /// The URL of its first export, by the listener at this place in the order it was started with.
    ///
    /// # Panics
    /// If there is no such listener.
    pub fn url(&self, listener: usize) -> NfsUrl {
        let Listen { transport, options } = &self.listen[listener];
        let address = self.ready.listen[listener].address;
        // MOUNT is on the same connection: that is where it is looked for first.
        NfsUrl {
            host: address.ip().to_string(),
            port: Some(address.port()),
            path: self.ready.exports[0].clone().into(),
            options: MountOptions { proto: transport.clone(), transport: options.clone(), ..MountOptions::default() },
        }
    }

    /// Its process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// CPU time that it has used.
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
