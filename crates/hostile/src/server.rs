//! The attacked server: each attack starts its own `slipway serve`, and reads its resource usage from `/proc`.

use std::{
    fs::{self, File},
    io,
    net::{Ipv4Addr, SocketAddr, TcpListener, UdpSocket},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use crate::{Options, attack::Attack, stoppable::Stoppable};

/// A running server.
pub struct Server {
    child: Child,
    log: PathBuf,
    /// The addresses of the server.
    pub target: Target,
}

/// The addresses of a server.
#[derive(Clone, Debug)]
pub struct Target {
    /// The address for TCP and UDP.
    pub tcp: SocketAddr,
    /// The address for iWARP.
    pub rdma: SocketAddr,
    /// NLM and NSM. The server is also rpcbind. `None` if port 111 is not available.
    pub locks: Option<SocketAddr>,
    /// UDP at [`FOREIGN`], if this host has that address.
    pub foreign: Option<SocketAddr>,
    /// The directory of the shm sockets. Their names contain the number of the TCP port.
    pub directory: PathBuf,
    /// The program of the good clients.
    pub load: PathBuf,
    /// The file system of the export `/hung`, if there is one.
    pub stoppable: Option<Stoppable>,
    /// The seed of all random numbers.
    pub seed: u64,
}

/// The resources that a process uses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Resident memory in KiB.
    pub resident: u64,
    /// The peak of the resident memory, in KiB.
    pub peak: u64,
    /// The number of threads.
    pub threads: u64,
    /// The number of open descriptors.
    pub descriptors: u64,
    /// The number of memory mappings.
    pub maps: u64,
}

impl Server {
    /// Starts a server for an attack, in an empty directory.
    ///
    /// # Errors
    /// The server does not start.
    pub fn start(options: &Options, attack: &Attack) -> io::Result<Self> {
        let Options { slipway, load, seed, .. } = options;
        let directory = &options.directory.join(attack.name);
        if directory.exists() {
            fs::remove_dir_all(directory)?;
        }
        fs::create_dir_all(directory.join("export"))?;
        let at = |port| SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let (tcp, rdma) = (at(free_port()?), at(free_port()?));
        let locks = if may_be_rpcbind() { Some(at(free_port()?)) } else { None };
        let foreign = SocketAddr::from((FOREIGN, tcp.port()));
        let foreign = UdpSocket::bind(foreign).is_ok().then_some(foreign);
        let stoppable = if attack.hung_export { Stoppable::start(slipway, directory)? } else { None };
        let target = Target {
            tcp,
            rdma,
            locks,
            foreign,
            directory: directory.to_owned(),
            load: load.to_owned(),
            stoppable,
            seed: *seed,
        };
        let [configuration, ready, log] = ["slipway.toml", "ready", "serve.log"].map(|name| directory.join(name));
        fs::write(&configuration, target.configuration())?;
        let output = File::create(&log)?;
        let child = Command::new(slipway)
            .args(["serve", "--config"])
            .arg(&configuration)
            .arg("--ready-file")
            .arg(&ready)
            .env("RUST_BACKTRACE", "1")
            .stdin(Stdio::null())
            .stdout(output.try_clone()?)
            .stderr(output)
            .spawn()?;
        let mut server = Self { child, log, target };
        let deadline = Instant::now() + UP_LIMIT;
        while !ready.exists() {
            if Instant::now() > deadline || !server.is_running() {
                return Err(io::Error::other(format!("the server does not come up: see {}", server.log.display())));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(server)
    }

    /// Returns `true` if the process is running.
    pub fn is_running(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Returns the current usage; all values are zero if the process has ended.
    pub fn usage(&self) -> Usage {
        let process = Path::new("/proc").join(self.child.id().to_string());
        let status = fs::read_to_string(process.join("status")).unwrap_or_default();
        let figure = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name));
            line.and_then(|rest| rest.split_whitespace().next()?.parse().ok()).unwrap_or(0)
        };
        let descriptors = fs::read_dir(process.join("fd")).map_or(0, |entries| entries.count() as u64);
        let maps = fs::read(process.join("maps")).map_or(0, |maps| maps.iter().filter(|&&byte| byte == b'\n').count());
        Usage {
            resident: figure("VmRSS:"),
            peak: figure("VmHWM:"),
            threads: figure("Threads:"),
            descriptors,
            maps: maps as u64,
        }
    }

    /// Returns the first panic in the log, and the number of bytes and lines of the log.
    pub fn log(&self) -> (Option<String>, u64, usize) {
        let text = fs::read(&self.log).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let panic = text.lines().position(|line| line.contains("panicked at"));
        let panic = panic.map(|at| text.lines().skip(at).take(2).collect::<Vec<_>>().join(" "));
        (panic, text.len() as u64, text.lines().count())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Target {
    /// Returns the URLs of the good clients. New clients connect by the first.
    pub fn urls(&self) -> [String; 3] {
        let (tcp, rdma) = (self.tcp.port(), self.rdma.port());
        let options = "uid=0&gid=0&timeo=10s";
        [
            format!("nfs://127.0.0.1:{tcp}/memory?proto=tcp&vers=4.1&{options}"),
            format!("nfs://127.0.0.1:{rdma}/posix?proto=rdma&vers=4.1&{options}"),
            format!("nfs://127.0.0.1:{tcp}/memory?proto=shm&vers=3&mountproto=tcp&mountport={tcp}&{options}"),
        ]
    }

    /// Returns the path of the shm socket.
    pub fn socket(&self) -> PathBuf {
        self.directory.join(format!("shm-{}.sock", self.tcp.port()))
    }

    /// The exports admit only 127.0.0.0/30.
    fn configuration(&self) -> String {
        let Self { tcp, rdma, directory, .. } = self;
        // Without rpcbind, the server has no NLM.
        let rpcbind = match self.locks {
            Some(locks) => format!("rpcbind = \"builtin\"\nnlm_port = {}", locks.port()),
            None => "rpcbind = \"off\"".to_owned(),
        };
        let (at, socket) = (directory.display(), self.socket());
        let admitted = "squash = \"none\"\nclients = [\"127.0.0.0/30\"]";
        let foreign = self.foreign.map_or_else(String::new, |foreign| {
            format!("\n[[listen]]\ntransport = \"udp\"\naddress = \"{foreign}\"\n")
        });
        let hung = if self.stoppable.is_some() {
            format!("\n[[export]]\nname = \"/hung\"\npath = \"{at}/hung\"\n{admitted}\n")
        } else {
            String::new()
        };
        format!(
            "[server]\nstate_dir = \"{at}/state\"\n{rpcbind}\nconnections = {CONNECTIONS}\nlease_s = 10\n\n\
             [[listen]]\ntransport = \"tcp\"\naddress = \"{tcp}\"\n\n\
             [[listen]]\ntransport = \"udp\"\naddress = \"{tcp}\"\n\n\
             [[listen]]\ntransport = \"rdma\"\naddress = \"{rdma}\"\noptions = {{ provider = \"iwarp\" }}\n\n\
             [[listen]]\ntransport = \"shm\"\naddress = \"{tcp}\"\noptions = {{ socket = \"{}\" }}\n\n\
             [[export]]\nname = \"/memory\"\nbackend = \"memory\"\nsize = \"128 MiB\"\n{admitted}\n\n\
             [[export]]\nname = \"/posix\"\npath = \"{at}/export\"\n{admitted}\n{hung}{foreign}",
            socket.display()
        )
    }
}

/// Returns `true` if this process can bind port 111.
fn may_be_rpcbind() -> bool {
    let at = (Ipv4Addr::UNSPECIFIED, RPCBIND.port());
    TcpListener::bind(at).is_ok() && UdpSocket::bind(at).is_ok()
}

/// Returns a port that is free on TCP and UDP.
pub fn free_port() -> io::Result<u16> {
    loop {
        let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port();
        if UdpSocket::bind((Ipv4Addr::LOCALHOST, port)).is_ok() {
            return Ok(port);
        }
    }
}

/// The server's limit of connections. The flood of connections exceeds it.
pub const CONNECTIONS: usize = 3000;
/// An address of the network for documentation (RFC 5737), which the suite adds to the loopback device of its network
/// namespace, because a server may trust peers in 127.0.0.0/8.
pub const FOREIGN: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 1);
/// The address at which the server is rpcbind.
pub const RPCBIND: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 111);
const UP_LIMIT: Duration = Duration::from_secs(30);
