//! Our server on this machine's loopback, for independent clients.

use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use super::Bench;
use crate::shell::{self, Daemon};

/// A running `slipway serve`.
pub struct Server {
    daemon: Daemon,
    /// The command that starts it.
    command: Command,
    log: PathBuf,
    /// The port of NFS and MOUNT over TCP and UDP.
    pub tcp: u16,
    /// The port of NFS over RDMA.
    pub rdma: u16,
    /// The reason why the server cannot run the built-in rpcbind, if any.
    pub no_rpcbind: Option<String>,
}

/// The parts of a configuration in which suites differ.
#[derive(Default)]
pub struct Setup<'a> {
    /// Lines of the table `[server]` (TOML).
    pub server: &'a str,
    /// The exports and other tables (TOML). `:TCP` stands for the port of TCP.
    pub exports: &'a str,
    /// Variables of the environment.
    pub environment: &'a [(&'a str, PathBuf)],
}

impl Server {
    /// Serves `exports` (TOML) over all transports. State and logs are in `directory`.
    pub fn start(bench: &Bench, directory: &Path, exports: &str) -> Result<Self, String> {
        Self::start_as(bench, directory, &Setup { exports, ..Setup::default() })
    }

    /// Serves over all transports. State and logs are in `directory`.
    pub fn start_as(bench: &Bench, directory: &Path, setup: &Setup) -> Result<Self, String> {
        let (tcp, rdma) = (bench.ports.take(), bench.ports.take());
        let no_rpcbind = rpcbind_obstacle();
        let rpcbind = if no_rpcbind.is_none() { "builtin" } else { "off" };
        let (state, server) = (directory.join("state"), setup.server);
        let mut text = format!("[server]\nstate_dir = \"{}\"\nrpcbind = \"{rpcbind}\"\n{server}\n\n", state.display());
        for (transport, port) in [("tcp", tcp), ("udp", tcp), ("rdma", rdma)] {
            text += &format!("[[listen]]\ntransport = \"{transport}\"\naddress = \"127.0.0.1:{port}\"\n\n");
        }
        let configuration = directory.join("slipway.toml");
        text += &setup.exports.replace(":TCP", &format!(":{tcp}"));
        std::fs::write(&configuration, text).map_err(|error| error.to_string())?;
        let mut command = Command::new(&bench.slipway);
        command.args(["-v", "serve", "--config"]).arg(&configuration).env("RUST_BACKTRACE", "1");
        command.envs(setup.environment.iter().map(|(name, value)| (name, value)));
        let log = directory.join("serve.log");
        let daemon = launch(&mut command, &log, [tcp, rdma])?;
        Ok(Self { daemon, command, log, tcp, rdma, no_rpcbind })
    }

    /// Kills the server by SIGKILL.
    pub fn kill(&mut self) -> Result<(), String> {
        self.daemon.kill()
    }

    /// Starts a killed server again with its state.
    pub fn start_again(&mut self) -> Result<(), String> {
        self.daemon = launch(&mut self.command, &self.log.with_extension("again.log"), [self.tcp, self.rdma])?;
        Ok(())
    }

    /// Returns what the server has logged since its start.
    pub fn log(&self) -> Result<String, String> {
        std::fs::read_to_string(&self.log).map_err(|error| format!("{}: {error}", self.log.display()))
    }

    /// Sends a signal to the server.
    pub fn signal(&self, signal: &str) -> Result<(), String> {
        self.daemon.signal(signal)
    }

    /// Ends the server by SIGTERM. Returns an error unless it drains and exits cleanly.
    pub fn stop(mut self) -> Result<(), String> {
        if !self.daemon.is_running() {
            return Err("slipway serve ended by itself".into());
        }
        self.daemon.terminate().map_err(|why| format!("slipway serve: {why}"))
    }
}

/// Starts the server, and waits until it listens on these ports.
fn launch(command: &mut Command, log: &Path, ports: [u16; 2]) -> Result<Daemon, String> {
    let mut daemon = Daemon::start(command, log)?;
    let up = shell::wait_until(Duration::from_secs(20), || !daemon.is_running() || ports.into_iter().all(is_listening));
    if !up || !daemon.is_running() {
        let said = std::fs::read_to_string(log).unwrap_or_default();
        return Err(format!("slipway serve does not come up: {}", said.lines().last().unwrap_or_default()));
    }
    Ok(daemon)
}

/// Returns `true` if a listener is on `port`, according to the kernel's table, so that the server gets no connection.
fn is_listening(port: u16) -> bool {
    let tables = ["/proc/net/tcp", "/proc/net/tcp6"].map(|table| std::fs::read_to_string(table).unwrap_or_default());
    let address = format!(":{port:04X} ");
    tables.iter().flat_map(|table| table.lines()).any(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        words.len() > 3 && words[3] == "0A" && format!("{} ", words[1]).ends_with(&address)
    })
}

/// Returns the reason why this machine cannot run our rpcbind during a test.
fn rpcbind_obstacle() -> Option<String> {
    let rpcbind = SocketAddr::from((Ipv4Addr::LOCALHOST, 111));
    if !shell::is_root() {
        Some("only root can listen on port 111".into())
    } else if TcpStream::connect_timeout(&rpcbind, Duration::from_secs(1)).is_ok() {
        Some("a running rpcbind has port 111".into())
    } else {
        None
    }
}
