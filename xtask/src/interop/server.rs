//! Our server on this machine's loopback, for programs that are not ours.

use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use super::Bench;
use crate::shell::{self, Daemon};

/// A running `slipway serve`.
pub struct Server {
    daemon: Daemon,
    /// The port of NFS and MOUNT over TCP and UDP.
    pub tcp: u16,
    /// The port of NFS over RDMA.
    pub rdma: u16,
    /// The reason for which the server is not rpcbind, if it is not.
    pub no_rpcbind: Option<String>,
}

impl Server {
    /// Serves what `exports` (TOML) says, over all transports; state and logs are kept in `directory`.
    pub fn start(bench: &Bench, directory: &Path, exports: &str) -> Result<Self, String> {
        let (tcp, rdma) = (bench.ports.take(), bench.ports.take());
        let no_rpcbind = rpcbind_obstacle();
        let rpcbind = if no_rpcbind.is_none() { "builtin" } else { "off" };
        let mut text = format!("[server]\nstate_dir = \"{}/state\"\nrpcbind = \"{rpcbind}\"\n\n", directory.display());
        for (transport, port) in [("tcp", tcp), ("udp", tcp), ("rdma", rdma)] {
            text += &format!("[[listen]]\ntransport = \"{transport}\"\naddress = \"127.0.0.1:{port}\"\n\n");
        }
        let configuration = directory.join("slipway.toml");
        std::fs::write(&configuration, text + exports).map_err(|error| error.to_string())?;
        let mut command = Command::new(&bench.slipway);
        command.args(["-v", "serve", "--config"]).arg(&configuration).env("RUST_BACKTRACE", "1");
        let log = directory.join("serve.log");
        let mut daemon = Daemon::start(&mut command, &log)?;
        let up = shell::wait_until(Duration::from_secs(20), || {
            !daemon.is_running() || (is_listening(tcp) && is_listening(rdma))
        });
        if !up || !daemon.is_running() {
            let said = std::fs::read_to_string(&log).unwrap_or_default();
            return Err(format!("slipway serve does not come up: {}", said.lines().last().unwrap_or_default()));
        }
        Ok(Self { daemon, tcp, rdma, no_rpcbind })
    }

    /// Ends it by SIGTERM: `Err` unless it drains and exits cleanly.
    pub fn stop(mut self) -> Result<(), String> {
        if !self.daemon.is_running() {
            return Err("slipway serve ended by itself".into());
        }
        self.daemon.terminate().map_err(|why| format!("slipway serve: {why}"))
    }
}

/// Returns `true` if a socket listens at `port`, according to the kernel's table. The server gets no connection.
fn is_listening(port: u16) -> bool {
    let tables = ["/proc/net/tcp", "/proc/net/tcp6"].map(|table| std::fs::read_to_string(table).unwrap_or_default());
    let address = format!(":{port:04X} ");
    tables.iter().flat_map(|table| table.lines()).any(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        words.len() > 3 && words[3] == "0A" && format!("{} ", words[1]).ends_with(&address)
    })
}

/// Returns the reason for which a server cannot be this machine's rpcbind during a test.
fn rpcbind_obstacle() -> Option<String> {
    let rpcbind = SocketAddr::from((Ipv4Addr::LOCALHOST, 111));
    if !shell::is_root() {
        Some("only root can listen at port 111".into())
    } else if TcpStream::connect_timeout(&rpcbind, Duration::from_secs(1)).is_ok() {
        Some("a running rpcbind has port 111".into())
    } else {
        None
    }
}
