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

/// A running server.
pub struct Server {
    child: Child,
    ready: Ready,
}

impl Server {
    /// Starts a server that listens on a free port of 127.0.0.1 with each of `transports`, with `options` for them,
    /// and serves what `arguments` say.
    ///
    /// # Errors
    /// It did not start; what it said is on standard error.
    pub fn start(
        transports: &[String],
        options: &BTreeMap<String, String>,
        arguments: &[OsString],
    ) -> Result<Self, Failure> {
        let failed = |what: &dyn std::fmt::Display| Failure::failed(format!("cannot start a server: {what}"));
        let query = query(options);
        let mut command = Command::new(env::current_exe().map_err(|error| failed(&error))?);
        command.args(["serve", "--json", "--until-eof", "--rpcbind", "off"]).args(arguments);
        for transport in transports {
            command.arg("--listen").arg(format!("{transport}://127.0.0.1:0{query}"));
        }
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().map_err(|error| failed(&error))?;
        let mut line = String::new();
        let stdout = child.stdout.take().expect("it is piped");
        let read = BufReader::new(stdout).read_line(&mut line);
        match (read, serde_json::from_str(&line)) {
            (Ok(_), Ok(ready)) => Ok(Self { child, ready }),
            _ => {
                let _ = child.kill();
                let status = child.wait().map_err(|error| failed(&error))?;
                Err(Failure { exit: Exit::Unreachable, message: format!("the server did not start ({status})") })
            }
        }
    }

    /// The URL of a path below its first export, over a transport with these options.
    pub fn url(&self, transport: &str, path: &str, options: &BTreeMap<String, String>) -> String {
        let listen = self.ready.listen.iter().find(|listen| listen.transport == transport);
        let listen = listen.expect("it was started with this transport");
        let query = query(options).replacen('?', "&", 1);
        let export = self.ready.exports[0].trim_end_matches('/');
        // MOUNT is on the same connection: that is where it is looked for first.
        format!("nfs://{}{export}{path}?proto={transport}{query}", listen.address)
    }

    /// CPU time that it has used.
    pub fn cpu_time(&self) -> Duration {
        process::cpu_time_of(self.child.id()).unwrap_or_default()
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
