//! The configuration file, in TOML. Unknown keys are errors, and each error has its line and column.
//!
//! ```
//! let config = server::Config::parse(
//!     r#"
//!     [server]
//!     state_dir = "/var/lib/slipway"
//!
//!     [[listen]]
//!     transport = "tcp"
//!     address = "[::]:2049"
//!
//!     [[export]]
//!     path = "/srv/data"
//!     clients = ["10.0.0.0/8", "fd00::/8"]
//!     access = "ro"
//!
//!     [[export]]
//!     name = "/scratch"
//!     backend = "memory"
//!     size = "512 MiB"
//!     "#,
//! )
//! .unwrap();
//! assert_eq!(config.export[1].name, "/scratch");
//!
//! let error = server::Config::parse("[[export]]\npath = '/a'\nclient = '*'\n").unwrap_err();
//! assert_eq!((error.line, error.column), (3, 1));
//! assert!(error.message.contains("unknown field `client`"));
//! ```

mod audit;
pub(crate) mod backend;
mod identity;
mod pnfs;
mod size;
mod tls;

pub use audit::AuditConfig;
pub use backend::{BackendConfig, BackendKind, BackendSettings, Backends, DirectoryKind, Opening, Tree};
pub use identity::IdentityConfig;
pub use pnfs::{
    DataAddressConfig, DataKindConfig, DataServerConfig, DataTransportConfig, DataVersionConfig, LayoutsMode,
    PnfsConfig,
};
pub use size::ByteSize;
pub use tls::TlsConfig;

use std::{
    collections::BTreeMap,
    fmt,
    io::{self, Read},
    net::SocketAddr,
    num::NonZeroUsize,
    ops::RangeInclusive,
    path::{Path, PathBuf},
    time::Duration,
};

use serde::{Deserialize, Deserializer, de};

use crate::{
    audit::AuditOptions,
    blocking::BlockingOptions,
    export::{Access, ExportOptions, client::Client, referral::Referral, sec::SecFlavors, xprtsec::Protections},
    identity::{principals::IdentityOptions, squash::Squash},
    recovery::state_dir::OnLoss,
};

/// The contents of a configuration file.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// `[server]`: the settings of the process.
    pub server: ServerConfig,
    /// `[kerberos]`: the key with which the server authenticates callers. Without it, the server rejects Kerberos.
    pub kerberos: Option<KerberosConfig>,
    /// `[identity]`: the rules by which callers become users of this host.
    pub identity: IdentityConfig,
    /// `[audit]`: the audit log.
    pub audit: Option<AuditConfig>,
    /// `[[listen]]`: the addresses on which the server listens.
    pub listen: Vec<ListenConfig>,
    /// `[tls]`: TLS of every listener of the transport "tcp" that has no `tls` of its own.
    pub tls: Option<TlsConfig>,
    /// `[[export]]`: the trees that the server exports.
    pub export: Vec<ExportConfig>,
    /// `[[pnfs]]`: the groups of data servers for exports with `backend = "pnfs"`.
    pub pnfs: Vec<PnfsConfig>,
    /// `[[referral]]`: the file systems on other servers to which this server refers clients.
    pub referral: Vec<Referral>,
}

/// The `[server]` table.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ServerConfig {
    /// `state_dir`: the directory for state that survives a restart, such as the handle key.
    pub state_dir: Option<PathBuf>,
    /// `workers`: the number of threads that serve connections. The default is one for each core.
    pub workers: Option<NonZeroUsize>,
    /// `connections`: the maximum number of open connections.
    pub connections: Option<NonZeroUsize>,
    /// `connections_per_host`: the maximum number of connections from one host, or from one user of this host. The
    /// default is three quarters of `connections`.
    pub connections_per_host: Option<NonZeroUsize>,
    /// `limit`: the maximum bytes of calls and replies together in one second. The default is no limit.
    pub limit: Option<ByteSize>,
    /// `rpcbind`: the way in which clients learn the ports.
    pub rpcbind: RpcbindMode,
    /// `nlm_port`: the port of NLM and NSM, by which NFSv3 clients lock files. The default is any free port.
    pub nlm_port: Option<u16>,
    /// `grace_s`: the length of the grace period in seconds. The default is `lease_s` if that is given.
    pub grace_s: Option<u64>,
    /// `lease_s`: the length of a lease of NFSv4 in seconds. The default is `grace_s` if that is given.
    pub lease_s: Option<u64>,
    /// `blocking_threads`: the maximum number of threads that wait for the storage of one export, from 1 to 1024.
    pub blocking_threads: Option<usize>,
    /// `blocking_queue`: the maximum number of calls that wait for such a thread of one export, at least 1.
    pub blocking_queue: Option<usize>,
    /// `idmap_domain`: the domain of the names that NFSv4 sends for users and groups. Without it, NFSv4 sends numbers.
    pub idmap_domain: Option<String>,
    /// `log`: the filter of the log in the syntax of `tracing`, such as `"info,server=debug"`.
    pub log: Option<String>,
    /// `log_format`: `"text"` or `"json"`.
    pub log_format: LogFormat,
    /// `seccomp`: the filter of system calls.
    pub seccomp: SeccompMode,
    /// `data_server`: `true` if clients of NFSv4.1 and 4.2 may use this server as a data server of pNFS.
    pub data_server: bool,
}

/// The `[kerberos]` table.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct KerberosConfig {
    /// `keytab`: the file with the server's key. The default is that of the Kerberos library, `/etc/krb5.keytab`.
    pub keytab: Option<PathBuf>,
    /// `service`: the service whose key is used: `nfs` with any host name in the keytab, `nfs@host`, or a principal
    /// such as `nfs/host@REALM`.
    pub service: String,
}

impl Default for KerberosConfig {
    fn default() -> Self {
        Self { keytab: None, service: "nfs".to_owned() }
    }
}

/// Settings that apply to all clients and exports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The length of the grace period after a restart.
    pub grace: Duration,
    /// The length of a lease: the time for which a silent NFSv4 client keeps its state.
    pub lease: Duration,
    /// The domain of the names that NFSv4 sends for users and groups. If it is `None`, NFSv4 sends numbers.
    pub idmap_domain: Option<String>,
    /// The reaction to a file of the state directory that is damaged or missing.
    pub on_loss: OnLoss,
    /// Bounds of the threads that wait for storage, and of the calls that wait for such a thread.
    pub blocking: BlockingOptions,
    /// The rules by which callers become users of this host.
    pub identity: IdentityOptions,
    /// The audit log.
    pub audit: Option<AuditOptions>,
    /// `true` if this server is a data server of pNFS for NFSv4.1 clients: it tells them so by EXCHANGE_ID.
    pub data_server: bool,
    /// The maximum number of files with layouts, counted for each client and each kind of layout. Clients are asked to return some before it is
    /// reached.
    pub layouts_max: usize,
}

impl Default for Settings {
    /// Returns a grace period and a lease of 90 seconds each, in which a client can notice a restart and reclaim its
    /// state, and no domain.
    fn default() -> Self {
        let time = Duration::from_secs(TIME_DEFAULT_S);
        let (blocking, on_loss) = (BlockingOptions::default(), OnLoss::default());
        Self {
            grace: time,
            lease: time,
            idmap_domain: None,
            blocking,
            on_loss,
            identity: IdentityOptions::default(),
            audit: None,
            data_server: false,
            layouts_max: LAYOUTS_MAX,
        }
    }
}

impl ServerConfig {
    /// Returns the settings that apply to all clients and exports.
    ///
    /// # Errors
    /// Returns a message for the user if `idmap_domain` is not a domain, if the lease is too short or too long, or if
    /// the lease is longer than the grace period. A client that calls only once in a lease would otherwise notice the
    /// restart too late to reclaim its state (RFC 8881 §8.4.2.1).
    pub fn settings(&self) -> Result<Settings, String> {
        let lease = self.lease_s.or(self.grace_s).unwrap_or(TIME_DEFAULT_S);
        let grace = self.grace_s.unwrap_or(lease);
        if !LEASE_S.contains(&lease) {
            return Err(format!("lease_s = {lease}: it must be from {} to {}", LEASE_S.start(), LEASE_S.end()));
        }
        if grace < lease {
            return Err(format!(
                "grace_s = {grace}, lease_s = {lease}: the grace period must be at least as long as a lease"
            ));
        }
        let idmap_domain = self.idmap_domain.clone();
        if let Some(domain) = idmap_domain.as_deref().filter(|domain| !rpc::users::is_domain(domain)) {
            return Err(format!("idmap_domain = '{domain}': not a domain, such as example.com"));
        }
        let (grace, lease) = (Duration::from_secs(grace), Duration::from_secs(lease));
        let (blocking, data_server) = (self.blocking()?, self.data_server);
        Ok(Settings { grace, lease, idmap_domain, blocking, data_server, ..Settings::default() })
    }

    fn blocking(&self) -> Result<BlockingOptions, String> {
        let default = BlockingOptions::default();
        let threads = self.blocking_threads.unwrap_or(default.threads);
        let queue = self.blocking_queue.unwrap_or(default.queue);
        if !BLOCKING_THREADS.contains(&threads) {
            let (least, most) = (BLOCKING_THREADS.start(), BLOCKING_THREADS.end());
            return Err(format!("blocking_threads = {threads}: it must be from {least} to {most}"));
        }
        if queue == 0 {
            return Err("blocking_queue = 0: it must be at least 1".to_owned());
        }
        Ok(BlockingOptions { threads, queue, ..default })
    }
}

/// The way in which clients learn the ports of the programs (RFC 1833).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RpcbindMode {
    /// Register with the host's rpcbind, if there is one and no other server has registered the same programs there.
    /// Otherwise, continue without it.
    #[default]
    Auto,
    /// Do not register. Clients need mount options for the ports (`port=`, `mountport=`).
    Off,
    /// Serve rpcbind on port 111.
    Builtin,
}

/// The filter of system calls (seccomp(2)) that the process installs when it has started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SeccompMode {
    /// Install the filter. If the kernel has none, continue without it.
    #[default]
    Auto,
    /// Install the filter, or do not start.
    On,
    /// Allow all calls, and let the kernel log those that the filter would reject.
    Log,
    /// No filter.
    Off,
}

/// The format of the log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// Text for people.
    #[default]
    Text,
    /// One JSON object per line.
    Json,
}

/// A `[[listen]]` table.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ListenConfig {
    /// `transport`: the name of the transport, such as `"tcp"` or `"rdma"`.
    pub transport: String,
    /// `address`: the address and port, such as `"[::]:2049"`.
    pub address: SocketAddr,
    /// `options`: options specific to the transport; a table of strings, numbers and booleans.
    #[serde(default, deserialize_with = "options")]
    pub options: BTreeMap<String, String>,
    /// `tls`: TLS of this listener, in place of `[tls]`.
    #[serde(default)]
    pub tls: Option<TlsConfig>,
}

impl ListenConfig {
    /// Adds TLS to the options of the transport: that of this listener, or else `common` if the transport is "tcp".
    ///
    /// # Errors
    /// Returns a message for the user if TLS is given for a transport that it does not protect, or if a path is not UTF-8.
    pub fn add_tls(&mut self, common: Option<&TlsConfig>) -> Result<(), String> {
        let tcp = self.transport == "tcp";
        if self.tls.is_some() && !tcp {
            return Err(format!("tls of the listener {}://{}: TLS is for tcp", self.transport, self.address));
        }
        if let Some(tls) = self.tls.take().or_else(|| common.filter(|_| tcp).cloned()) {
            self.options.extend(tls.into_options()?);
        }
        Ok(())
    }
}

/// An `[[export]]` table.
#[derive(Clone, Debug, Deserialize)]
#[serde(try_from = "RawExport")]
pub struct ExportConfig {
    /// `name`: the path that clients mount. The default is `path`.
    pub name: String,
    /// `backend`, and the settings that it reads.
    pub backend: BackendConfig,
    /// The clients that may use the export, and their rights.
    pub options: ExportOptions,
}

impl ExportConfig {
    /// Configures an export of the directory at `path` under the same name.
    ///
    /// # Errors
    /// Returns an error if `path` does not exist or is not UTF-8.
    pub fn directory(path: &Path, options: ExportOptions) -> io::Result<Self> {
        let failed = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", path.display()));
        let path = path.canonicalize().map_err(failed)?;
        let not_utf8 =
            || failed(io::Error::new(io::ErrorKind::InvalidInput, "is not UTF-8: set `name` to a name that is"));
        let name = path.to_str().ok_or_else(not_utf8)?.to_owned();
        Ok(Self { name, backend: BackendConfig::directory(path), options })
    }
}

/// The keys of `[[export]]` in the file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawExport {
    path: Option<PathBuf>,
    name: Option<String>,
    backend: Option<backend::Kind>,
    size: Option<ByteSize>,
    #[serde(default, deserialize_with = "options")]
    options: BTreeMap<String, String>,
    clients: Option<Vec<Client>>,
    #[serde(default)]
    sec: SecFlavors,
    #[serde(default)]
    access: Access,
    #[serde(default)]
    squash: Squash,
    anonuid: Option<u32>,
    anongid: Option<u32>,
    transports: Option<Vec<String>>,
    xprtsec: Option<Protections>,
    insecure: Option<bool>,
    #[serde(default)]
    passthrough: bool,
}

impl TryFrom<RawExport> for ExportConfig {
    type Error = String;

    fn try_from(raw: RawExport) -> Result<Self, String> {
        let size = raw.size.map(|size| size.0);
        let settings = BackendSettings { path: raw.path, size, options: raw.options };
        let (name, backend) = BackendConfig::new(raw.backend, raw.name, settings)?;
        let default = ExportOptions::default();
        let options = ExportOptions {
            clients: raw.clients.unwrap_or(default.clients),
            sec: raw.sec,
            access: raw.access,
            squash: raw.squash,
            anon_uid: raw.anonuid.unwrap_or(default.anon_uid),
            anon_gid: raw.anongid.unwrap_or(default.anon_gid),
            transports: raw.transports,
            xprtsec: raw.xprtsec.unwrap_or(default.xprtsec),
            insecure: raw.insecure.unwrap_or(default.insecure),
            passthrough: raw.passthrough,
        };
        Ok(Self { name, backend, options })
    }
}

impl Config {
    /// Returns the settings that apply to all clients and exports.
    ///
    /// # Errors
    /// Returns the errors of [`ServerConfig::settings`].
    pub fn settings(&self) -> Result<Settings, String> {
        let audit = self.audit.as_ref().map(AuditConfig::options);
        Ok(Settings { identity: self.identity.options(), audit, ..self.server.settings()? })
    }

    /// Reads a configuration file.
    ///
    /// # Errors
    /// Returns an error if the file cannot be read, or is not a valid configuration.
    pub fn load(path: &Path) -> io::Result<Self> {
        Self::load_with(path, &Backends::standard())
    }

    /// Reads a configuration file like [`load`](Self::load), with these back ends instead of the standard ones.
    ///
    /// # Errors
    /// Returns the errors of [`load`](Self::load).
    pub fn load_with(path: &Path, backends: &Backends) -> io::Result<Self> {
        let located = |what: &dyn fmt::Display| format!("{}:{what}", path.display());
        let text = read(path).map_err(|error| io::Error::new(error.kind(), located(&format_args!(" {error}"))))?;
        Self::parse_with(&text, backends).map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, located(&error)))
    }

    /// Parses the text of a configuration file.
    ///
    /// # Errors
    /// Returns an error with its position if the text is not a valid configuration.
    pub fn parse(text: &str) -> Result<Self, ConfigError> {
        Self::parse_with(text, &Backends::standard())
    }

    /// Parses a text like [`parse`](Self::parse), with these back ends instead of the standard ones.
    ///
    /// # Errors
    /// Returns the errors of [`parse`](Self::parse).
    pub fn parse_with(text: &str, backends: &Backends) -> Result<Self, ConfigError> {
        backends.in_use(|| toml::from_str(text)).map_err(|error: toml::de::Error| {
            let at = error.span().map_or(0, |span| span.start.min(text.len()));
            let before = &text.as_bytes()[..at];
            let line_start = before.iter().rposition(|&byte| byte == b'\n').map_or(0, |newline| newline + 1);
            ConfigError {
                line: before.iter().filter(|&&byte| byte == b'\n').count() + 1,
                column: String::from_utf8_lossy(&before[line_start..]).chars().count() + 1,
                message: error.message().to_owned(),
            }
        })
    }
}

/// Reads a file of at most [`CONFIG_MAX`] bytes, which can be a pipe.
fn read(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    let file = std::fs::File::open(path)?;
    file.take(CONFIG_MAX + 1).read_to_string(&mut text)?;
    if text.len() as u64 > CONFIG_MAX {
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, format!("it is longer than {CONFIG_MAX} bytes")));
    }
    Ok(text)
}

/// An error in a configuration file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError {
    /// The line, from 1.
    pub line: usize,
    /// The column in characters, from 1.
    pub column: usize,
    /// A description of the error, with the valid values.
    pub message: String,
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.line, self.column, self.message)
    }
}

impl std::error::Error for ConfigError {}

/// Returns the default state directory: `/var/lib/slipway` for root, otherwise `slipway` in `$XDG_STATE_HOME` or
/// `~/.local/state`.
pub fn default_state_dir() -> PathBuf {
    let variable = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    if rustix::process::geteuid().is_root() {
        return PathBuf::from("/var/lib/slipway");
    }
    let state = variable("XDG_STATE_HOME").or_else(|| Some(variable("HOME")?.join(".local/state")));
    state.unwrap_or_else(std::env::temp_dir).join("slipway")
}

/// Deserializes options of a transport or back end. Numbers and booleans become strings.
fn options<'de, D: Deserializer<'de>>(deserializer: D) -> Result<BTreeMap<String, String>, D::Error> {
    let table = BTreeMap::<String, toml::Value>::deserialize(deserializer)?;
    let text = |(key, value): (String, toml::Value)| match value {
        toml::Value::String(text) => Ok((key, text)),
        toml::Value::Integer(_) | toml::Value::Float(_) | toml::Value::Boolean(_) => Ok((key, value.to_string())),
        _ => Err(de::Error::custom(format!("option '{key}': must be a string, a number or a boolean"))),
    };
    table.into_iter().map(text).collect()
}

/// Maximum bytes of a configuration file.
const CONFIG_MAX: u64 = 16 << 20;
const TIME_DEFAULT_S: u64 = 90;
/// The default of [`Settings::layouts_max`].
const LAYOUTS_MAX: usize = 1 << 18;
/// Valid leases. Clients learn the lease in seconds, and the maximum is that of Linux's server.
const LEASE_S: RangeInclusive<u64> = 1..=3600;
const BLOCKING_THREADS: RangeInclusive<usize> = 1..=1024;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        audit::OnFull,
        export::sec::Sec,
        identity::principals::{LocalUser, Machines, UnknownUid},
    };

    fn error(text: &str) -> (usize, usize, String) {
        let error = Config::parse(text).unwrap_err();
        (error.line, error.column, error.message)
    }

    #[test]
    fn lease_must_not_exceed_grace_and_each_defaults_to_the_other() {
        let times = |grace_s, lease_s| {
            let times = ServerConfig { grace_s, lease_s, ..Default::default() }.settings()?;
            Ok::<_, String>((times.grace.as_secs(), times.lease.as_secs()))
        };
        assert_eq!(times(None, None), Ok((90, 90)));
        assert_eq!(times(None, Some(5)), Ok((5, 5)));
        assert_eq!(times(Some(7), None), Ok((7, 7)));
        assert_eq!(times(Some(90), Some(1)), Ok((90, 1)));
        assert_eq!(times(Some(3600), Some(3600)), Ok((3600, 3600)));
        for (grace, lease) in [(None, Some(0)), (None, Some(3601)), (Some(5), Some(6)), (Some(0), None)] {
            assert!(times(grace, lease).is_err(), "{grace:?} {lease:?}");
        }
        for domain in ["", ".", "a b", "a@b", "example..com"] {
            let config = ServerConfig { idmap_domain: Some(domain.to_owned()), ..Default::default() };
            assert!(config.settings().unwrap_err().contains(domain), "{domain}");
        }
    }

    #[test]
    fn blocking_threads_and_queue_are_bounded() {
        let settings = |blocking_threads, blocking_queue| {
            ServerConfig { blocking_threads, blocking_queue, ..Default::default() }.settings()
        };
        assert_eq!(settings(None, None).unwrap().blocking, BlockingOptions::default());
        assert!(settings(Some(1), Some(1)).is_ok() && settings(Some(1024), None).is_ok());
        assert!(settings(Some(0), None).unwrap_err().starts_with("blocking_threads = 0"));
        assert!(settings(Some(1025), None).is_err() && settings(None, Some(0)).is_err());
    }

    #[test]
    fn every_key_has_an_effect() {
        let config = Config::parse(
            r#"
            [server]
            state_dir = "/state"
            workers = 3
            rpcbind = "builtin"
            nlm_port = 4045
            grace_s = 45
            lease_s = 30
            blocking_threads = 5
            blocking_queue = 6
            idmap_domain = "example.com"
            log = "debug"
            log_format = "json"
            data_server = true
            [[listen]]
            transport = "rdma"
            address = "127.0.0.1:20049"
            options = { provider = "iwarp", credits = 64, crc = true }
            [[export]]
            path = "/srv/a"
            name = "/a"
            clients = ["10.0.0.0/8", { host = "::1", sec = ["krb5p"] }]
            sec = ["krb5i", "none"]
            access = "ro"
            squash = "all"
            anonuid = 1000
            anongid = 100
            transports = ["tcp"]
            xprtsec = ["tls", "mtls"]
            insecure = false
            [[export]]
            name = "/m"
            backend = "memory"
            size = "64 MiB"
            [[referral]]
            name = "/far"
            locations = ["nas:/srv", "[::1]:/srv"]
            clients = ["10.0.0.0/8"]
            "#,
        )
        .unwrap();
        let far = &config.referral[0];
        assert_eq!((&far.name()[..], far.locations()[1].to_string().as_str()), (&b"/far"[..], "[::1]:/srv"));
        let server = &config.server;
        assert_eq!(server.state_dir.as_deref(), Some(Path::new("/state")));
        assert_eq!(server.workers, NonZeroUsize::new(3));
        assert_eq!((server.rpcbind, server.log_format), (RpcbindMode::Builtin, LogFormat::Json));
        assert_eq!((server.nlm_port, server.grace_s, server.lease_s), (Some(4045), Some(45), Some(30)));
        let settings = config.settings().unwrap();
        assert_eq!(settings.idmap_domain.as_deref(), Some("example.com"));
        assert_eq!(settings.blocking, BlockingOptions { threads: 5, queue: 6, ..Default::default() });
        assert!(settings.data_server);
        assert_eq!(server.log.as_deref(), Some("debug"));
        let listen = &config.listen[0];
        assert_eq!((listen.transport.as_str(), listen.address.port()), ("rdma", 20049));
        let options: Vec<_> = listen.options.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
        assert_eq!(options, [("crc", "true"), ("credits", "64"), ("provider", "iwarp")]);
        let [a, m] = &config.export[..] else { panic!("there must be two exports") };
        let path_of = |path: &str| BackendSettings { path: Some(path.into()), ..Default::default() };
        assert_eq!((a.backend.name(), m.backend.name()), ("posix", "memory"));
        assert_eq!((a.name.as_str(), &a.backend.settings), ("/a", &path_of("/srv/a")));
        let options = &a.options;
        assert_eq!((options.access, options.squash), (Access::ReadOnly, Squash::All));
        assert_eq!((options.anon_uid, options.anon_gid, options.insecure), (1000, 100, false));
        assert_eq!(options.transports.as_deref(), Some(&["tcp".to_owned()][..]));
        assert_eq!(options.xprtsec, Protections::new(vec![rpc::Xprtsec::Tls, rpc::Xprtsec::Mtls]).unwrap());
        assert_eq!(options.clients.iter().map(Client::as_str).collect::<Vec<_>>(), ["10.0.0.0/8", "::1"]);
        assert_eq!(options.sec, SecFlavors::new(vec![Sec::Krb5i, Sec::None]).unwrap());
        assert_eq!(options.clients.iter().map(Client::sec).collect::<Vec<_>>(), [None, Some(&Sec::Krb5p.into())]);
        assert_eq!(m.options.sec, Sec::Sys.into());
        let size_of = |size| BackendSettings { size: Some(size), ..Default::default() };
        assert_eq!((m.name.as_str(), &m.backend.settings), ("/m", &size_of(64 << 20)));
    }

    #[test]
    fn keys_of_kerberos_identity_and_audit_have_an_effect() {
        let config = Config::parse(
            r#"
            [kerberos]
            keytab = "/etc/nfs.keytab"
            service = "nfs@server"
            [identity]
            manage_gids = true
            unknown_uid = "keep"
            cache_s = 60
            machines = "root"
            principals = { "alice@EXAMPLE.COM" = "alice", "nfs/backup@EXAMPLE.COM" = 1001 }
            [audit]
            file = "/var/log/audit"
            reads = true
            queue = "1 MiB"
            on_full = "delay"
            "#,
        );
        let config = config.unwrap();
        let (keytab, service) = (Some("/etc/nfs.keytab".into()), "nfs@server".to_owned());
        assert_eq!(config.kerberos, Some(KerberosConfig { keytab, service }));
        let settings = config.settings().unwrap();
        let identity = &settings.identity;
        assert_eq!((identity.manage_gids, identity.unknown_uid), (true, UnknownUid::Keep));
        assert_eq!((identity.cache, identity.machines), (Duration::from_secs(60), Machines::Root));
        let (file, on_full) = (PathBuf::from("/var/log/audit"), OnFull::Delay);
        assert_eq!(settings.audit, Some(AuditOptions { file, reads: true, queue: 1 << 20, on_full }));
        let users: Vec<_> = identity.principals.values().cloned().collect();
        assert_eq!(users, [LocalUser::Name("alice".to_owned()), LocalUser::Uid(1001)]);
        let config = Config::parse("[audit]\nfile = '/a'").unwrap();
        let (queue, on_full) = (8 << 20, OnFull::Drop);
        let audit = AuditOptions { file: PathBuf::from("/a"), reads: false, queue, on_full };
        assert_eq!(config.settings().unwrap().audit, Some(audit));
    }

    #[test]
    fn registered_back_ends_replace_the_standard_ones() {
        struct Volumes;
        impl BackendKind for Volumes {
            fn check(&self, settings: &mut BackendSettings) -> Result<(), String> {
                settings.options.contains_key("volume").then_some(()).ok_or("needs `options.volume`".to_owned())
            }
            fn default_name(&self, settings: &BackendSettings) -> Option<String> {
                settings.options.get("volume").map(|volume| format!("/{volume}"))
            }
            fn open(&self, _: &BackendSettings, _: &Opening<'_>) -> io::Result<Tree> {
                Err(io::ErrorKind::Unsupported.into())
            }
        }
        let mut backends = Backends::empty();
        backends.register("volumes", Volumes);
        let parse = |text: &str| Config::parse_with(text, &backends);
        let config = parse("[[export]]\nbackend = 'volumes'\noptions = { volume = 7 }").unwrap();
        assert_eq!((config.export[0].name.as_str(), config.export[0].backend.name()), ("/7", "volumes"));
        assert_eq!(parse("[[export]]\nbackend = 'volumes'").unwrap_err().message, "needs `options.volume`");
        let error = parse("[[export]]\nbackend = 'posix'\npath = '/a'").unwrap_err();
        assert_eq!((error.line, &error.message[..]), (2, "there is no back end 'posix'; there are volumes"));
        assert!(parse("[[export]]\npath = '/a'").unwrap_err().message.contains("no back end 'posix'"));
        assert!(Config::parse("[[export]]\npath = '/a'").is_ok(), "the standard back ends must be registered again");
    }

    #[test]
    fn missing_keys_have_defaults() {
        let config = Config::parse("[[export]]\npath = '/srv'").unwrap();
        let export = &config.export[0];
        assert_eq!(export.name, "/srv");
        let options = &export.options;
        assert_eq!((options.access, options.squash), (Access::ReadWrite, Squash::Root));
        assert_eq!((options.anon_uid, options.anon_gid, options.insecure), (65534, 65534, true));
        assert!(options.clients[0].is_any() && options.transports.is_none());
        assert!(config.listen.is_empty() && config.server.workers.is_none());
        assert!(!config.settings().unwrap().data_server);
    }

    #[test]
    fn errors_have_position_and_explanation() {
        let cases = [
            ("[server]\n  threads = 3", (2, 3), "unknown field `threads`, expected one of `state_dir`"),
            (
                "[exports]\n",
                (1, 2),
                "unknown field `exports`, expected one of `server`, `kerberos`, `identity`, `audit`",
            ),
            ("[[export]]\npath = '/a'\naccess = 'rx'", (3, 10), "unknown variant `rx`, expected `rw` or `ro`"),
            ("[[export]]\npath = '/a'\nsquash = 'me'", (3, 10), "expected one of `root`, `all`, `none`"),
            (
                "[[export]]\npath = '/a'\nclients = ['10.0.0.0/40']",
                (3, 12),
                "prefix length is not a number from 0 to 32",
            ),
            ("[[export]]\npath = '/a'\nclients = '*'", (3, 11), "expected a sequence"),
            (
                "[[export]]\npath = '/a'\nsec = ['sys', 'krb6']",
                (3, 7),
                "sec: there is no security flavour 'krb6'; there are sys, krb5, krb5i, krb5p, none",
            ),
            ("[[export]]\npath = '/a'\nsec = 'sys'", (3, 7), "expected sec: a list of security flavours"),
            ("[[export]]\npath = '/a'\nsec = []", (3, 7), "sec: the list is empty"),
            ("[[export]]\npath = '/a'\nsec = ['sys', 'sys']", (3, 7), "sec: 'sys' is in the list twice"),
            ("[[export]]\npath = '/a'\nclients = [{ host = '*', sec = ['x'] }]", (3, 32), "flavour 'x'"),
            ("[[export]]\npath = '/a'\nclients = [{ sec = ['sys'] }]", (3, 12), "missing field `host`"),
            ("[[export]]\npath = '/a'\nclients = [{ host = '*', sek = ['sys'] }]", (3, 26), "unknown field `sek`"),
            ("[[export]]\npath = '/a'\nclients = [7]", (3, 12), "expected a client such as"),
            (
                "[[referral]]\nname = '/a'\nlocations = ['a:/b']\nclients = [{ host = '*', sec = ['sys'] }]",
                (1, 1),
                "clients: '*' has `sec`",
            ),
            ("[[export]]\nsquash = 'all'", (1, 1), "needs `path`"),
            ("[[export]]\npath = 'a'", (1, 1), "must be absolute"),
            ("[[export]]\npath = '/a'\nsize = 5", (1, 1), "only for `backend = \"memory\"`"),
            ("[[export]]\nbackend = 'memory'", (1, 1), "needs `name`"),
            ("[[export]]\nname = '/m'\nbackend = 'disk'", (3, 11), "no back end 'disk'; there are memory, posix"),
            ("[[export]]\npath = '/a'\noptions = { depth = 3 }", (1, 1), "option 'depth'"),
            ("[[export]]\nbackend = 'memory'\nname = '/m'\nsize = '5 x'", (4, 8), "a size is a number and a unit"),
            ("[[export]]\nbackend = 'memory'\nname = '/m'\nsize = -1", (4, 8), "not negative"),
            ("[audit]\nreads = true", (1, 1), "missing field `file`"),
            ("[audit]\nfile = 'audit'", (2, 8), "file = 'audit': it must be an absolute path"),
            ("[audit]\nfile = '/a'\non_full = 'wait'", (3, 11), "unknown variant `wait`, expected `drop` or `delay`"),
            ("[audit]\nfile = '/a'\nqueue = 5", (3, 9), "queue = 5: it must be at least 64 KiB"),
            ("[identity]\nunknown_uid = 'ask'", (2, 15), "unknown variant `ask`, expected `keep` or `drop`"),
            ("[identity]\nmachines = 'all'", (2, 12), "expected `anonymous` or `root`"),
            ("[identity]\ncache_s = 0", (2, 11), "cache_s = 0: it must be from 1 to 86400"),
            ("[identity]\nprincipals = { 'a@B' = -1 }", (2, 24), "a user must be a name or a user ID"),
            ("[identity]\nprincipals = { 'a@B' = '' }", (2, 14), "principals: 'a@B' must be a principal"),
            ("[[listen]]\ntransport = 'tcp'", (1, 1), "missing field `address`"),
            ("[[listen]]\ntransport = 'tcp'\naddress = '2049'", (3, 11), "invalid socket address"),
            ("[server]\nworkers = 0", (2, 11), "expected a nonzero"),
            ("[server]\nworkers = ", (2, 11), ""),
        ];
        for (text, place, message) in cases {
            let (line, column, found) = error(text);
            assert_eq!((line, column), place, "{text}: {found}");
            assert!(found.contains(message), "{text}: {found}");
        }
    }

    #[test]
    fn documented_example_is_valid() {
        let page = include_str!("../../../../docs/configuration.md");
        let example = page
            .split("```toml\n")
            .nth(1)
            .and_then(|rest| rest.split("```").next())
            .expect("documentation must have an example");
        // The test must not depend on a look-up of a host name.
        let config = Config::parse(&example.replace(", \"build.example.com\"", "")).unwrap();
        assert_eq!((config.listen.len(), config.export.len()), (2, 3));
        for key in [
            "path",
            "name",
            "backend",
            "size",
            "clients",
            "sec",
            "access",
            "squash",
            "transports",
            "xprtsec",
            "insecure",
            "passthrough",
        ] {
            assert!(page.contains(&format!("| `{key}` |")), "{key} is not documented");
        }
    }

    #[test]
    fn an_export_passes_files_only_if_it_says_so() {
        let passes = |line: &str| {
            let config =
                Config::parse(&format!("[[export]]\nname = \"/m\"\nbackend = \"memory\"\nsize = \"1 MiB\"\n{line}"))
                    .unwrap();
            config.export[0].options.passthrough
        };
        assert!(!passes("") && passes("passthrough = true"));
    }

    #[test]
    fn read_errors_name_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("slipway.toml");
        assert!(Config::load(&path).unwrap_err().to_string().starts_with(path.to_str().unwrap()));
        std::fs::write(&path, "[server]\nä = 1").unwrap();
        let text = Config::load(&path).unwrap_err().to_string();
        assert!(text.starts_with(&format!("{}:2:1: ", path.display())), "{text}");
    }
}
