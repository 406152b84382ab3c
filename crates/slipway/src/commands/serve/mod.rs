//! `slipway serve`: serves directories, or memory, over NFS.

mod admin;
mod announce;
mod checks;
mod kerberos;
pub mod listen;
mod locking;
mod rpcbind;
mod seccomp;
mod signals;

use std::{
    io,
    net::SocketAddr,
    num::{NonZeroU64, NonZeroUsize},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use buf::Pool;
use rpc::{ConnectionLimits, Listener, Server, Switch, TransportKind, WorkerOptions, Workers};
use server::{
    Client, Config, NfsServer, Sec,
    config::{
        ByteSize, ExportConfig, ListenConfig, LogFormat, RpcbindMode, SeccompMode, ServerConfig, default_state_dir,
    },
    recovery::state_dir::OnLoss,
};

use crate::{
    cli::LogArgs,
    exit::{Exit, Failure, Outcome},
    logging,
    pnfs::{self, Clusters},
    resources,
};
use admin::{AdminSocket, Answers};
use announce::Announcement;
use checks::{check_flavors, check_protections};
use listen::ListenUrl;
use rpcbind::{Group, Place};
use signals::{Signal, Signals};

/// Serve directories, or memory, over NFS.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
By default the server listens on all addresses, with tcp on port 2049 and rdma on port 20049 (on RDMA adapters, if there are any,
and with software iWARP), and with shm (shared memory) for clients on this host. It prints the mount commands for its exports. If it
runs as root, each operation runs with the identity of its caller, and a client's root is nobody (--squash). If it runs as an
ordinary user, all operations run as that user.

SIGTERM, SIGINT and SIGHUP end the server after it has answered the calls in progress. With TLS or an audit log, SIGHUP reads the
certificates again and opens the file of the log again (for logrotate), and connections stay. Under systemd, SIGHUP never ends the
server. SIGUSR1 prints counters of all procedures, and
the state of the recovery database.

Configuration file, for several exports (unknown keys are rejected):
  [server]                      # state_dir, workers, connections, connections_per_host, limit, blocking_threads, blocking_queue,
                                # rpcbind, nlm_port, grace_s, lease_s, idmap_domain, log, log_format, seccomp, data_server
  workers = 4
  [kerberos]                    # keytab, service
  keytab = \"/etc/krb5.keytab\"
  [identity]                    # manage_gids, unknown_uid, cache_s, machines, principals
  manage_gids = true
  [audit]                       # file, reads, queue, on_full
  file = \"/var/log/slipway-audit.json\"
  [[listen]]                    # transport, address, options
  transport = \"tcp\"
  address = \"[::]:2049\"
  [tls]                         # certificate, key, client_ca, revoked, client_names, required
  certificate = \"/etc/slipway/server.pem\"
  key = \"/etc/slipway/server.key\"
  [[export]]                    # path, name, clients, sec, access, squash, anonuid, anongid, transports, xprtsec, insecure,
                                # passthrough
  path = \"/srv/data\"
  clients = [\"10.0.0.0/8\"]
  access = \"ro\"
  [[export]]
  name = \"/scratch\"
  backend = \"memory\"
  size = \"512 MiB\"
  [[referral]]                  # name, locations, clients
  name = \"/far\"
  locations = [\"nas2.example.com:/srv/data\"]

Examples:
  slipway serve /srv/data
  slipway serve --ro --clients 10.0.0.0/8 --clients fd00::/8 /srv/data
  slipway serve --memory 2G --listen tcp://127.0.0.1:0 --listen rdma://127.0.0.1:0 --json
  slipway serve --config /etc/slipway.toml")]
pub struct Args {
    /// The directory to serve
    #[arg(value_name = "DIR", required_unless_present_any = ["memory", "config"], conflicts_with_all = ["memory", "config"])]
    dir: Option<PathBuf>,
    /// Serve this much memory, whose content is lost when the server ends
    #[arg(long, value_name = "SIZE", conflicts_with = "config")]
    memory: Option<ByteSize>,
    /// Serve the exports of this TOML file
    #[arg(short, long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// The path that clients mount; by default that of DIR, or /memory for memory
    #[arg(long, value_name = "PATH", conflicts_with = "config")]
    name: Option<String>,
    /// Serve read-only
    #[arg(long, conflicts_with = "config")]
    ro: bool,
    /// Pass files as descriptors to clients that are root on this host, for `slipway mount --passthrough`; docs/security.md says what
    /// they can then do
    #[arg(long, conflicts_with_all = ["config", "memory"])]
    passthrough: bool,
    /// Map these callers to the anonymous user: root, all, or none
    #[arg(long, value_name = "WHO", value_parser = ["root", "all", "none"], conflicts_with = "config")]
    squash: Option<String>,
    /// Hosts that can use the export: an address, a network such as 10.0.0.0/8, or a name. All by default
    #[arg(long, value_name = "HOST", conflicts_with = "config")]
    clients: Vec<Client>,
    /// Security flavours that clients can use: sys, krb5, krb5i, krb5p, none; sys by default
    #[arg(long, value_name = "FLAVOUR", conflicts_with = "config")]
    sec: Vec<Sec>,
    /// An address to listen on: tcp://ADDRESS:PORT, udp://…, rdma://…, shm://…, with ?option=value; port 0 selects a
    /// free one
    #[arg(short, long, value_name = "URL")]
    listen: Vec<ListenUrl>,
    /// Threads that serve connections; one for each core by default
    #[arg(short, long, value_name = "N")]
    workers: Option<NonZeroUsize>,
    /// Maximum open connections. Beyond it, an idle connection of the host with the most is closed
    #[arg(long, value_name = "N")]
    connections: Option<NonZeroUsize>,
    /// Maximum connections of one host, or of one user of this host; by default three quarters of --connections
    #[arg(long, value_name = "N")]
    connections_per_host: Option<NonZeroUsize>,
    /// Maximum bytes of calls and replies together in one second, such as 100M; no limit by default
    #[arg(long, value_name = "RATE")]
    limit: Option<ByteSize>,
    /// The directory of the key of file handles and the recovery database, with which mounts and locks survive a
    /// restart; for one server at a time
    #[arg(long, value_name = "DIR")]
    state_dir: Option<PathBuf>,
    /// The action if a file in the state directory is damaged or missing: keep refuses to start; reset renames it and
    /// starts without it. Then no client can reclaim locks, and none gets new ones before the grace period ends
    #[arg(long, value_name = "HOW", value_parser = ["keep", "reset"], default_value = "keep")]
    recovery: String,
    /// The way in which clients learn the ports: auto registers with this host's rpcbind if one runs; builtin runs a built-in one on
    /// port 111, which needs root
    #[arg(long, value_name = "HOW", value_parser = ["auto", "off", "builtin"])]
    rpcbind: Option<String>,
    /// The filter of system calls: auto installs it if the kernel has filters; on makes it an error if it has none; log
    /// only logs what the filter would reject; off
    #[arg(long, value_name = "HOW", value_parser = ["auto", "on", "log", "off"])]
    seccomp: Option<String>,
    /// Authenticate callers by Kerberos 5, with the key of nfs/HOST in this file
    #[arg(long, value_name = "FILE")]
    keytab: Option<PathBuf>,
    /// The port of NLM and NSM, which lock files for NFSv3; any free port by default
    #[arg(long, value_name = "PORT")]
    nlm_port: Option<u16>,
    /// Seconds for which clients can reclaim their locks after a restart, and no others are granted; as --lease by
    /// default
    #[arg(long, value_name = "SECONDS")]
    grace: Option<u64>,
    /// Seconds for which an NFSv4 client can be silent without losing state, from 1 to 3600; 90 by default
    #[arg(long, value_name = "SECONDS")]
    lease: Option<u64>,
    /// Be a data server of pNFS for clients of NFSv4.1 and 4.2, too. Clients of NFSv3 need no option
    #[arg(long)]
    data_server: bool,
    /// Keep the objects of a pNFS data server of kind slipway in DIR, for the metadata server with the key in this file
    #[arg(long, value_name = "FILE", requires = "dir", conflicts_with = "config")]
    cluster_key: Option<PathBuf>,
    /// When ready, print exports and addresses as one line of JSON instead of text
    #[arg(long)]
    json: bool,
    /// When ready, write that line to this file
    #[arg(long, value_name = "FILE")]
    ready_file: Option<PathBuf>,
    /// End when standard input is closed
    #[arg(long, hide = true)]
    until_eof: bool,
}

/// Runs the server until a signal ends it.
pub fn run(args: &Args, log: &LogArgs) -> Outcome {
    let clusters: Arc<Clusters> = Arc::default();
    let config = match &args.config {
        Some(path) => {
            clusters.configured_by(std::path::absolute(path).unwrap_or_else(|_| path.clone()));
            Config::load_with(path, &pnfs::backends(clusters.clone())).map_err(Failure::usage)?
        }
        None => Config::default(),
    };
    logging::start(&LogArgs {
        filter: config.server.log.clone(),
        log_format: log.log_format.or(match config.server.log_format {
            LogFormat::Text => None,
            LogFormat::Json => Some(logging::LogFormat::Json),
        }),
        ..log.clone()
    })?;
    let config = args.complete(config)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(Failure::failed)?;
    runtime.block_on(serve(args, config, clusters))
}

impl Args {
    /// Applies the options of the command line to the configuration of the file.
    fn complete(&self, mut config: Config) -> Result<Config, Failure> {
        if self.config.is_none() {
            config.export.push(self.export()?);
        }
        if config.export.is_empty() {
            return Err(Failure::usage("the configuration has no [[export]]: there is nothing to serve"));
        }
        if !self.listen.is_empty() {
            config.listen = self.listen.iter().map(|url| url.0.clone()).collect();
        }
        config.server.connections = self.connections.or(config.server.connections);
        config.server.connections_per_host = self.connections_per_host.or(config.server.connections_per_host);
        config.server.limit = self.limit.or(config.server.limit);
        config.server.workers = self.workers.or(config.server.workers);
        match self.rpcbind.as_deref() {
            Some("auto") => config.server.rpcbind = RpcbindMode::Auto,
            Some("off") => config.server.rpcbind = RpcbindMode::Off,
            Some("builtin") => config.server.rpcbind = RpcbindMode::Builtin,
            _ => {}
        }
        match self.seccomp.as_deref() {
            Some("auto") => config.server.seccomp = SeccompMode::Auto,
            Some("on") => config.server.seccomp = SeccompMode::On,
            Some("log") => config.server.seccomp = SeccompMode::Log,
            Some("off") => config.server.seccomp = SeccompMode::Off,
            _ => {}
        }
        if let Some(keytab) = &self.keytab {
            config.kerberos.get_or_insert_default().keytab = Some(keytab.clone());
        }
        check_flavors(&config)?;
        config.server.nlm_port = self.nlm_port.or(config.server.nlm_port);
        config.server.grace_s = self.grace.or(config.server.grace_s);
        config.server.lease_s = self.lease.or(config.server.lease_s);
        config.server.data_server |= self.data_server;
        config.server.state_dir = self.state_dir.clone().or(config.server.state_dir.take());
        Ok(config)
    }

    /// Returns the one export of the command line, in the form of a configuration.
    fn export(&self) -> Result<ExportConfig, Failure> {
        let mut export = serde_json::json!({
            "access": if self.ro { "ro" } else { "rw" },
            "squash": self.squash.as_deref().unwrap_or("root"),
            "passthrough": self.passthrough,
        });
        if !self.clients.is_empty() {
            export["clients"] = self.clients.iter().map(Client::as_str).collect();
        }
        if !self.sec.is_empty() {
            export["sec"] = self.sec.iter().map(|sec| sec.name()).collect();
        }
        match (&self.dir, self.memory) {
            (Some(dir), _) => {
                let path = dir.canonicalize().map_err(|error| Failure::usage(format!("{}: {error}", dir.display())))?;
                let text = path
                    .to_str()
                    .ok_or_else(|| Failure::usage(format!("{}: is not UTF-8; use another path", path.display())))?;
                export["path"] = text.into();
                if let Some(key) = &self.cluster_key {
                    export["backend"] = "objects".into();
                    export["options"] = serde_json::json!({ pnfs::objects::KEY_FILE: key });
                }
            }
            (None, Some(ByteSize(size))) => {
                export["backend"] = "memory".into();
                export["size"] = size.to_string().into();
                export["name"] = "/memory".into();
            }
            (None, None) => unreachable!("clap must require one of them"),
        }
        if let Some(name) = &self.name {
            export["name"] = name.as_str().into();
        }
        pnfs::backends(Arc::default()).in_use(|| serde_json::from_value(export)).map_err(Failure::usage)
    }
}

/// The name of a transport, its listener, and the kind that made the listener.
type Listening = (String, Box<dyn Listener>, Arc<dyn TransportKind>);

async fn serve(args: &Args, mut config: Config, clusters: Arc<Clusters>) -> Outcome {
    add_tls(&mut config)?;
    check_protections(&config)?;
    let pool = Pool::default();
    let state_dir = config.server.state_dir.clone().unwrap_or_else(default_state_dir);
    let mut settings = config.settings().map_err(Failure::usage)?;
    settings.on_loss = if args.recovery == "reset" { OnLoss::Reset } else { OnLoss::Refuse };
    let nfs = NfsServer::open_with(&config, &state_dir, &pool, settings).map_err(Failure::usage)?;
    let gss = kerberos::flavor(config.kerberos.as_ref())?;
    if let Some(gss) = &gss {
        nfs.name_principals_by(Arc::new(kerberos::LocalNames(gss.clone())));
    }
    if let Some(key) = config.kerberos.clone() {
        nfs.authenticate_callbacks_by(Arc::new(kerberos::CallbackKey(key)));
    }
    let builder = kerberos::add(Server::builder().hosts(nfs.hosts()).rate(rate(&config.server)?), gss.as_ref());
    let server = nfs.services().into_iter().fold(builder, rpc::ServerBuilder::shared).build();

    let has_tls = config.listen.iter().any(|listen| listen.options.contains_key("tls_cert"));
    // A service manager reloads by SIGHUP (ExecReload), and must not end the server by it.
    let reloads = has_tls || config.audit.is_some() || announce::is_supervised();
    let mut signals = Signals::new(args.until_eof, reloads).map_err(Failure::failed)?;
    let switch = transports::for_server(&pool);
    let listeners = listen_all(&switch, &config.listen)?;
    let workers = Workers::new(worker_options(&config.server, &listeners)).map_err(Failure::failed)?;
    // All threads exist or inherit the filter, and no connection has been accepted.
    seccomp::install(config.server.seccomp)?;
    let mut announcement = Announcement::new(&config);
    let mut places = Vec::new();
    let mut kinds = Vec::new();
    for (transport, listener, kind) in listeners {
        kinds.push((transport.clone(), listener.local_addr(), kind));
        announcement.listens(&transport, listener.local_addr());
        places.push((transport, listener.local_addr()));
        workers.listen(server.clone(), listener);
    }
    nfs.call_back_by(switch.find("tcp").expect("tcp must be registered"));
    tokio::spawn(nfs.upkeep());
    tokio::spawn(trim(pool));
    clusters.name(&config.export);
    let _admin = administered(&nfs, clusters, server.clone());
    let locking = locking::start(&config.server, &switch, &workers, (&nfs, gss.as_ref()), &places)?;
    let published = publish(&config, (&switch, &workers), (&server, &places), locking.as_ref()).await?;
    announcement.locks(published.known == [true, true, true]);
    announcement.publish(args.json, args.ready_file.as_deref())?;

    loop {
        match signals.next().await {
            Signal::End => break,
            Signal::Reload => {
                reload(&kinds);
                nfs.reopen_audit();
            }
            Signal::Report => {
                let servers = [Some(&server), locking.as_ref().map(|locking| &locking.server)];
                signals::report(servers.into_iter().flatten(), &nfs.storage());
            }
        }
    }
    announce::notify("STOPPING=1");
    published.withdraw().await;
    let drained = tokio::select! {
        drained = workers.drain(DRAIN_MAX) => drained,
        () = signals.ended() => false,
    };
    if !drained {
        tracing::warn!("some calls were not answered before the server ended");
    }
    let lost = nfs.close();
    if lost > 0 {
        tracing::warn!(records = lost, "the audit log is incomplete");
    }
    remove(args.ready_file.as_deref());
    Ok(Exit::Ok)
}

fn worker_options(server: &ServerConfig, listeners: &[Listening]) -> WorkerOptions {
    let mut options = WorkerOptions::default();
    options.threads = server.workers.map_or(options.threads, NonZeroUsize::get);
    // Only root changes to the identity of callers, and only some transports are affected.
    let affected = listeners.iter().any(|(_, listener, _)| listener.keeps_credentials());
    options.keep_credentials = affected.then_some(vfs::posix::keep_credentials);
    resources::raise_files_to_most();
    options.connections = connection_limits(server, resources::files());
    options
}

/// Adds `[tls]` to the listeners. If there are none, the server listens only with tcp.
pub fn add_tls(config: &mut Config) -> Result<(), Failure> {
    let common = config.tls.take();
    if common.is_some() && config.listen.is_empty() {
        config.listen = listen::defaults().into_iter().filter(|listen| listen.transport == "tcp").collect();
    }
    config.listen.iter_mut().try_for_each(|listen| listen.add_tls(common.as_ref())).map_err(Failure::usage)
}

/// Reads certificates, keys and revocation lists again. A listener whose files cannot be used keeps the former ones.
fn reload(kinds: &[(String, SocketAddr, Arc<dyn TransportKind>)]) {
    for (transport, address, kind) in kinds {
        match kind.reload() {
            Ok(()) => tracing::info!(transport, %address, "certificates were read again"),
            Err(error) => {
                tracing::error!(transport, %address, error, "certificates could not be read again; the former ones stay");
            }
        }
    }
}

/// Returns the configured limits. Connections can use three quarters of the file descriptors; files and shared memory
/// need the rest.
fn connection_limits(config: &ServerConfig, descriptors: usize) -> ConnectionLimits {
    let possible = (descriptors / 4 * 3).max(1);
    let total = config.connections.map_or(ConnectionLimits::default().total, NonZeroUsize::get).min(possible);
    if let Some(wanted) = config.connections.filter(|wanted| wanted.get() > total) {
        tracing::warn!(wanted, total, descriptors, "the limit of file descriptors reduces the number of connections");
    }
    let mut limits = ConnectionLimits::total(total);
    limits.per_host = config.connections_per_host.map_or(limits.per_host, NonZeroUsize::get);
    limits
}

/// Returns the maximum bytes in one second.
fn rate(config: &ServerConfig) -> Result<Option<NonZeroU64>, Failure> {
    let none = || Failure::usage("limit: at least 1 byte per second; without a limit, leave it out");
    config.limit.map(|ByteSize(rate)| NonZeroU64::new(rate).ok_or_else(none)).transpose()
}

/// Periodically returns unused pool memory to the system.
async fn trim(pool: Pool) {
    let mut ticks = tokio::time::interval(TRIM_INTERVAL);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let pool = pool.clone();
        // Unmapping takes about a millisecond for each slab.
        let trimmed = tokio::task::spawn_blocking(move || {
            let bytes = pool.trim();
            if bytes > 0 {
                buf::trim_heap();
            }
            bytes
        });
        match trimmed.await {
            Ok(0) => {}
            Ok(bytes) => tracing::debug!(bytes, "returned memory to the system"),
            Err(error) => tracing::warn!(%error, "cannot return memory to the system"),
        }
    }
}

/// Opens the socket of administrators, if there is a state directory.
fn administered(nfs: &NfsServer, clusters: Arc<Clusters>, server: Arc<Server>) -> Option<AdminSocket> {
    let answers = Answers { admin: nfs.admin(), clusters, server };
    AdminSocket::open(nfs.state_dir()?, answers)
        .inspect_err(|error| tracing::warn!(%error, "administrators cannot connect to this server"))
        .ok()
}

/// Publishes the ports of NFS and of the lock programs.
async fn publish(
    config: &Config,
    on: (&Switch, &Workers),
    (server, places): (&Server, &[Place]),
    locking: Option<&locking::Locking>,
) -> Result<rpcbind::Published, Failure> {
    let mut groups = vec![Group { what: "files", programs: server.programs().collect(), places }];
    for (program, version) in locking.iter().flat_map(|locking| locking.server.programs()) {
        let places = &locking.expect("locking must have programs").places;
        // Another program on this host may have registered one of them: the kernel's lock manager, or rpc.statd.
        groups.push(Group { what: "locks", programs: vec![(program, version)], places });
    }
    rpcbind::publish(config.server.rpcbind, on, server.hosts(), &groups).await
}

/// Listens on `addresses`, or if there are none on the default ones, of which only the first is required.
fn listen_all(switch: &Switch, addresses: &[ListenConfig]) -> Result<Vec<Listening>, Failure> {
    if !addresses.is_empty() {
        return addresses.iter().map(|address| listen_one(switch, address)).collect();
    }
    let [first, others @ ..] = listen::defaults();
    let mut listeners = vec![listen_one(switch, &first)?];
    for other in others {
        match listen_one(switch, &other) {
            Ok(listener) => listeners.push(listener),
            Err(failure) => eprintln!("slipway serve: {failure}; continuing without it"),
        }
    }
    Ok(listeners)
}

fn listen_one(switch: &Switch, listen: &ListenConfig) -> Result<Listening, Failure> {
    let ListenConfig { transport, address, options, tls: _ } = listen;
    let kind = switch.find(transport).ok_or_else(|| {
        let names: Vec<_> = switch.names().collect();
        Failure::usage(format!("there is no transport '{transport}'; there are {}", names.join(", ")))
    })?;
    let kind = kind.with_options(options).map_err(Failure::usage)?;
    let listener = kind.listen(*address).map_err(|error| {
        let advice = match error.kind() {
            io::ErrorKind::AddrInUse => {
                ": another server uses it; stop that server, or select another port with --listen"
            }
            io::ErrorKind::PermissionDenied => ": ports below 1024 need root; select another port with --listen",
            _ => "",
        };
        let message = format!("cannot listen on {transport}://{address}: {error}{advice}");
        Failure { exit: Exit::Unreachable, message }
    })?;
    Ok((transport.clone(), listener, kind))
}

fn remove(ready_file: Option<&Path>) {
    if let Some(path) = ready_file {
        let _ = std::fs::remove_file(path);
    }
}

/// The maximum time for calls in progress when the server ends.
const DRAIN_MAX: Duration = Duration::from_secs(10);
/// Pool memory that has not been used for this time is returned to the system.
const TRIM_INTERVAL: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_use_at_most_three_quarters_of_the_descriptors() {
        let mut config = ServerConfig::default();
        assert_eq!(connection_limits(&config, usize::MAX).total, 16384);
        let limits = connection_limits(&config, 1024);
        assert_eq!((limits.total, limits.per_host), (768, 576));
        config.connections = NonZeroUsize::new(100);
        config.connections_per_host = NonZeroUsize::new(7);
        let limits = connection_limits(&config, 1024);
        assert_eq!((limits.total, limits.per_host), (100, 7));
    }
}
