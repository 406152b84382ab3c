//! The announcement of a server that is ready: mount commands for people, addresses for scripts, and the notification
//! of systemd.

use std::{
    env,
    fs::Permissions,
    io,
    io::Write as _,
    net::{IpAddr, SocketAddr},
    os::{
        linux::net::SocketAddrExt,
        unix::{
            ffi::OsStrExt,
            fs::PermissionsExt,
            net::{SocketAddr as UnixAddr, UnixDatagram},
        },
    },
    path::Path,
};

use rpc::Xprtsec;
use server::{Access, Client, Config, ExportOptions, Sec, Squash, config::ExportConfig};

use crate::{
    child::{Ready, ReadyListen},
    exit::Failure,
    output,
};

/// The exports of a server and its addresses.
pub struct Announcement<'a> {
    config: &'a Config,
    ready: Ready,
    locks: bool,
}

impl<'a> Announcement<'a> {
    /// Creates an announcement of the exports.
    pub fn new(config: &'a Config) -> Self {
        let uid = rustix::process::geteuid();
        let identity = if uid.is_root() { "callers".to_owned() } else { uid.as_raw().to_string() };
        let exports = config.export.iter().map(|export| export.name.clone()).collect();
        Self { config, ready: Ready { pid: std::process::id(), listen: Vec::new(), exports, identity }, locks: false }
    }

    /// Adds an address.
    pub fn listens(&mut self, transport: &str, address: SocketAddr) {
        self.ready.listen.push(ReadyListen { transport: transport.to_owned(), address });
    }

    /// Sets whether clients can find the lock manager of NFSv3.
    pub fn locks(&mut self, locks: bool) {
        self.locks = locks;
    }

    /// Prints the announcement.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn publish(&self, json: bool, file: Option<&Path>) -> Result<(), Failure> {
        let line = format!("{}\n", serde_json::to_string(&self.ready).expect("announcement must be valid JSON"));
        if let Some(path) = file {
            replace(path, &line).map_err(|error| Failure::usage(format!("{}: {error}", path.display())))?;
        }
        let text = if json { line } else { self.text() };
        // The server continues if standard output is closed.
        let _ = io::stdout().write_all(text.as_bytes()).and_then(|()| io::stdout().flush());
        notify("READY=1");
        Ok(())
    }

    fn text(&self) -> String {
        let mut text = match self.ready.identity.as_str() {
            "callers" => "Serving as root: each operation runs with its caller's user and groups.\n".to_owned(),
            uid => format!("Serving as user {uid}: every operation runs as this user.\n"),
        };
        for export in &self.config.export {
            text.push_str(&format!("  {}\n", describe(export)));
        }
        for referral in &self.config.referral {
            let places: Vec<_> = referral.locations().iter().map(ToString::to_string).collect();
            text.push_str(&format!("  {}: refers to {}\n", output::name(referral.name()), places.join(", ")));
        }
        text.push_str("Listening:\n");
        for listen in &self.ready.listen {
            text.push_str(&format!("  {}://{}\n", listen.transport, listen.address));
        }
        let commands: Vec<_> = self.ready.listen.iter().filter_map(|listen| self.mount_command(listen)).collect();
        if !commands.is_empty() {
            text.push_str(&format!("Mount it on Linux, as root:\n  {}\n", commands.join("\n  ")));
        }
        if !self.locks {
            text.push_str(
                "Clients cannot lock files by NFSv3 (nolock), as they could not find NLM: no rpcbind has it. Start rpcbind, \
                 or serve as root with --rpcbind builtin.\n",
            );
        }
        if let Some(url) = self.url() {
            text.push_str(&format!("Or access it without mounting:\n  slipway ls '{url}'\n"));
        }
        text
    }

    /// Returns the URL of the first export.
    fn url(&self) -> Option<String> {
        let demands = self.demands();
        let listen = self.ready.listen.iter().find(|listen| demands.admit(&listen.transport))?;
        let transport = (listen.transport != "tcp").then(|| format!("proto={}", listen.transport));
        let query: Vec<_> = transport.into_iter().chain(demands.options(&listen.transport)).collect();
        let query = if query.is_empty() { String::new() } else { format!("?{}", query.join("&")) };
        let (place, port) = (host(listen.address.ip()), listen.address.port());
        Some(format!("nfs://{place}:{port}{}{query}", self.ready.exports[0]))
    }

    /// Returns what the first export demands of clients.
    fn demands(&self) -> Demands {
        self.config.export.first().map_or_else(Demands::default, |export| Demands::of(&export.options))
    }

    /// Returns the command with which Linux mounts the first export. Its client supports MOUNT only over tcp and udp,
    /// so without one of them it cannot mount.
    fn mount_command(&self, listen: &ReadyListen) -> Option<String> {
        let ReadyListen { transport, address } = listen;
        let demands = self.demands();
        if !demands.admit(transport) {
            return None;
        }
        let options = demands.options(transport);
        if !options.is_empty() {
            let (port, place, export) = (address.port(), host(address.ip()), &self.ready.exports[0]);
            let options = options.join(",");
            let command =
                || format!("mount -t nfs -o vers=4.2,proto={transport},port={port},{options} {place}:{export} /mnt");
            // Linux has version 4 over these transports only.
            return ["tcp", "rdma"].contains(&transport.as_str()).then(command);
        }
        let mount = match transport.as_str() {
            // Linux does not support this transport.
            "shm" => return None,
            "rdma" => self.ready.listen.iter().find(|other| ["tcp", "udp"].contains(&other.transport.as_str()))?,
            _ => listen,
        };
        Some(format!(
            "mount -t nfs -o vers=3,proto={transport},port={},mountproto={},mountport={}{} {}:{} /mnt",
            address.port(),
            mount.transport,
            mount.address.port(),
            if self.locks { "" } else { ",nolock" },
            host(address.ip()),
            self.ready.exports[0],
        ))
    }
}

/// The options that clients need to use an export.
#[derive(Debug, Default, PartialEq, Eq)]
struct Demands {
    /// A security flavour, unless AUTH_SYS is enough.
    sec: Option<Sec>,
    /// A protection by TLS, over tcp.
    xprtsec: Option<&'static str>,
    /// The transports; `None` for all, or only tcp if it must be protected.
    transports: Option<Vec<String>>,
}

impl Demands {
    fn of(options: &ExportOptions) -> Self {
        let sec = if options.sec.contains(Sec::Sys) { None } else { options.sec.iter().next() };
        let levels = [(Xprtsec::None, None), (Xprtsec::Tls, Some("tls")), (Xprtsec::Mtls, Some("mtls"))];
        let xprtsec = levels.into_iter().find(|(level, _)| options.xprtsec.admit(*level)).and_then(|(_, name)| name);
        Self { sec, xprtsec, transports: options.transports.clone() }
    }

    /// Reports whether clients can use the export over this transport.
    fn admit(&self, transport: &str) -> bool {
        match &self.transports {
            Some(names) => names.iter().any(|name| name == transport),
            None => self.xprtsec.is_none() || transport == "tcp",
        }
    }

    /// Returns the options of a mount over this transport.
    fn options(&self, transport: &str) -> Vec<String> {
        let sec = self.sec.map(|sec| format!("sec={}", sec.name()));
        let xprtsec = self.xprtsec.filter(|_| transport == "tcp").map(|level| format!("xprtsec={level}"));
        sec.into_iter().chain(xprtsec).collect()
    }
}

/// Describes an export: `/srv/data: read-only, a client's root is nobody, for 10.0.0.0/8`.
fn describe(export: &ExportConfig) -> String {
    let options = &export.options;
    let access = match options.access {
        Access::ReadWrite => "read and write",
        Access::ReadOnly => "read only",
    };
    let squash = match options.squash {
        Squash::Root => "a client's root is nobody",
        Squash::All => "all users are nobody",
        Squash::None => "a client's root is root",
    };
    let clients: Vec<_> = options.clients.iter().map(Client::as_str).collect();
    let clients = if options.clients.iter().any(Client::is_any) { "all hosts".to_owned() } else { clients.join(", ") };
    let settings = &export.backend.settings;
    let what = match (export.backend.name(), &settings.path, settings.size) {
        ("posix", Some(path), _) if path.as_os_str() == export.name.as_str() => String::new(),
        ("posix", Some(path), _) => format!("directory {}, ", path.display()),
        ("memory", _, Some(size)) => format!("{} of memory, ", output::size(size)),
        (backend, ..) => format!("back end {backend}, "),
    };
    format!("{}: {what}{access}, {squash}, for {clients}", export.name)
}

/// Returns the address of this host for other hosts: its name, if it listens on every address.
fn host(address: IpAddr) -> String {
    match address.to_canonical() {
        address if address.is_unspecified() => rustix::system::uname().nodename().to_string_lossy().into_owned(),
        IpAddr::V6(address) => format!("[{address}]"),
        address => address.to_string(),
    }
}

/// Writes a file atomically.
fn replace(path: &Path, text: &str) -> io::Result<()> {
    let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
    // The temporary name is new and cannot be predicted, because other users may be able to write to the directory.
    let mut file = tempfile::Builder::new().permissions(Permissions::from_mode(0o644)).tempfile_in(dir)?;
    file.write_all(text.as_bytes())?;
    file.persist(path)?;
    Ok(())
}

/// Returns `true` if a service manager waits for notifications (sd_notify(3)).
pub fn is_supervised() -> bool {
    env::var_os(NOTIFY_SOCKET).is_some()
}

/// Notifies systemd, if it asked for that (sd_notify(3)).
pub fn notify(state: &str) {
    let Some(path) = env::var_os(NOTIFY_SOCKET) else { return };
    let notified = (|| {
        let address = match path.as_bytes() {
            [b'@', name @ ..] => UnixAddr::from_abstract_name(name)?,
            path => UnixAddr::from_pathname(Path::new(std::ffi::OsStr::from_bytes(path)))?,
        };
        UnixDatagram::unbound()?.send_to_addr(state.as_bytes(), &address)
    })();
    if let Err(error) = notified {
        tracing::warn!(%error, "cannot notify systemd");
    }
}

/// The variable in which systemd gives the address for notifications.
const NOTIFY_SOCKET: &str = "NOTIFY_SOCKET";

#[cfg(test)]
mod tests {
    use server::Protections;

    use super::*;

    #[test]
    fn demands_name_the_flavour_and_the_protection_that_clients_need() {
        let plain = Demands::of(&ExportOptions::default());
        assert_eq!(plain, Demands::default());
        assert!(plain.admit("tcp") && plain.admit("rdma"));

        let sec = Sec::Krb5p.into();
        let demands = Demands::of(&ExportOptions { sec, ..ExportOptions::default() });
        assert_eq!(demands.options("rdma"), ["sec=krb5p"]);

        let xprtsec = Protections::new(vec![Xprtsec::Mtls]).unwrap();
        let protected = ExportOptions { xprtsec, ..ExportOptions::default() };
        let demands = Demands::of(&protected);
        assert_eq!(demands.options("tcp"), ["xprtsec=mtls"]);
        assert!(demands.admit("tcp") && !demands.admit("rdma"));

        let transports = Some(vec!["rdma".to_owned()]);
        let demands = Demands::of(&ExportOptions { transports, ..protected });
        assert!(demands.admit("rdma") && !demands.admit("tcp") && demands.options("rdma").is_empty());
    }
}
