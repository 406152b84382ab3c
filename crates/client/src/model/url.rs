//! [`NfsUrl`]: a parsed URL that names the tree to mount and the options.
//!
//! `nfs://host[:port]/export/path?proto=rdma&rsize=1M&…`. The path is percent-decoded to bytes, because file names are
//! bytes. Keys of the query that this module does not know are passed to the transport, which rejects unknown ones.

use std::{fmt, str::FromStr, time::Duration};

use bytes::Bytes;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, percent_encode};
use rpc::{Alpn, Ktls, RawOptions, Xprtsec};

use super::caller::TicketSource;

/// The location of a directory or file on an NFS server, and the options of the mount.
///
/// ```
/// let url: client::NfsUrl = "nfs://[::1]:2049/srv/a%20b?proto=tcp&rsize=256K&timeo=300".parse().unwrap();
/// assert_eq!(url.host, "::1");
/// assert_eq!(url.port, Some(2049));
/// assert_eq!(&url.path[..], b"/srv/a b");
/// assert_eq!(url.options.read_size, Some(256 << 10));
/// assert_eq!(url.options.deadline.as_secs(), 30); // timeo counts tenths of a second, as in nfs(5)
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NfsUrl {
    /// The host name or address. An IPv6 address has no brackets here.
    pub host: String,
    /// The port of NFS. If it is `None`, the default or rpcbind's port is used.
    pub port: Option<u16>,
    /// The decoded path on the server. It starts with a slash.
    pub path: Bytes,
    /// The options from the query.
    pub options: MountOptions,
}

/// The options of a mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountOptions {
    /// `vers`: the version of NFS.
    pub version: Version,
    /// `nconnect`: the number of connections that NFSv4 makes to each address over each transport.
    pub nconnect: u32,
    /// `addr`: further addresses of the same server, separated by commas. Each is `host`, `host:port` or
    /// `proto@host:port`. NFSv4 uses all of them.
    pub addresses: Vec<String>,
    /// `proto`: the name of the transport in the switch. NFSv4 can use several at the same time: `tcp+rdma`.
    pub proto: String,
    /// `mountport`: the port of MOUNT. If it is `None`, the client finds the port.
    pub mount_port: Option<u16>,
    /// `mountproto`: the transport of MOUNT, if it is not the transport of NFS.
    pub mount_proto: Option<String>,
    /// `lock` and `nolock`: whether locks over NFSv3 are held by the server, through its lock manager (NLM). Without that, a mount has no
    /// locks of its own, and `slipway mount` leaves them to the kernel of this machine. NFSv4 always has locks at the server.
    pub lock: bool,
    /// `acl` and `noacl`: whether a mount has POSIX ACLs, by NFS_ACL over NFSv3, and converted to those of the protocol by `slipway mount`
    /// over NFSv4.
    pub acl: bool,
    /// `nlmport`: the TCP port of the lock manager. If it is `None`, the client finds the lock manager.
    pub nlm_port: Option<u16>,
    /// `timeo`: the time that the server may be silent while an operation waits, including retransmissions. A server
    /// that asks to retry later is not silent. A number in the URL is in tenths of a second, as in nfs(5), unless `ms`
    /// or `s` follows it.
    pub deadline: Duration,
    /// `uid`: the user to act as. The default is the user of the process.
    pub uid: Option<u32>,
    /// `gid`: the group to act as. The default is the group of the process.
    pub gid: Option<u32>,
    /// `gids`: supplementary groups, separated by commas. The default is those of the process.
    pub gids: Option<Vec<u32>>,
    /// `sec`: the security flavour of all calls.
    pub security: Security,
    /// The tickets of the users, for a mount with Kerberos.
    pub tickets: TicketSource,
    /// `rsize`: maximum bytes of a READ. The default is the server's maximum, up to 1 MiB.
    pub read_size: Option<u32>,
    /// `wsize`: maximum bytes of a WRITE. The default is the server's maximum, up to 1 MiB.
    pub write_size: Option<u32>,
    /// `readahead`: maximum bytes that a reader requests before the caller needs them.
    pub read_ahead: usize,
    /// `writebehind`: maximum bytes that a writer holds which are not on stable storage.
    pub write_behind: usize,
    /// `pnfs`: whether data move directly between this client and data servers if the server of NFSv4.1 or later offers that.
    /// Data servers are accessed with AUTH_SYS in clear, so a mount with Kerberos or TLS does not use them.
    pub pnfs: Pnfs,
    /// `dstimeo`: the time for which a read or write waits for a data server that refuses connections, before the client uses another
    /// mirror and reports the data server. A number in the URL is in tenths of a second, as that of `timeo`.
    pub data_refused: Duration,
    /// `xprtsec`, `tls_alpn`, `ktls`, `tls_ca`, `tls_crl`, `tls_cert` and `tls_key`: TLS of all connections of the mount.
    pub tls: TlsOptions,
    /// Options of the transport.
    pub transport: RawOptions,
}

/// TLS of the connections of a mount (RFC 9289).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TlsOptions {
    /// `xprtsec`: the protection of the connections. The client never uses less.
    pub xprtsec: Xprtsec,
    /// `tls_alpn`: whether a server must select the application protocol "sunrpc". The default is that it must.
    pub alpn: Option<Alpn>,
    /// `ktls`: whether the kernel encrypts what is sent. The default is that it does if it can.
    pub ktls: Option<Ktls>,
    /// `tls_ca`: the file of the issuers that may sign the server's certificate. The default is the file of the system.
    pub ca: Option<String>,
    /// `tls_crl`: the file of the lists of revoked certificates.
    pub crl: Option<String>,
    /// `tls_cert`: the file of the client's certificate, for `xprtsec=mtls`.
    pub cert: Option<String>,
    /// `tls_key`: the file of the client's private key.
    pub key: Option<String>,
}

impl TlsOptions {
    /// Adds TLS to the options of a transport, for connections to the server `name` that are first used for the program
    /// and version `program`. Adds nothing without TLS.
    pub(crate) fn add_to(&self, raw: &mut RawOptions, name: &str, (program, version): (u32, u32)) {
        let level = match self.xprtsec {
            Xprtsec::None => return,
            Xprtsec::Tls => "tls",
            Xprtsec::Mtls => "mtls",
        };
        let mut add = |key: &str, value: &str| drop(raw.insert(key.to_owned(), value.to_owned()));
        add("xprtsec", level);
        add("tls_name", name);
        add("tls_program", &format!("{program}.{version}"));
        if let Some(alpn) = self.alpn {
            add("tls_alpn", alpn.name());
        }
        if let Some(ktls) = self.ktls {
            add("ktls", ktls.name());
        }
        self.files().into_iter().filter_map(|(key, file)| Some((key, file?))).for_each(|(key, file)| add(key, file));
    }

    /// Checks that no option of TLS is given without TLS. The connections would be in clear, which the user does not expect.
    ///
    /// # Errors
    /// A text that names the option.
    pub fn check(&self) -> Result<(), String> {
        let words = [("tls_alpn", self.alpn.map(Alpn::name)), ("ktls", self.ktls.map(Ktls::name))];
        let given = self.files().into_iter().chain(words).find(|(_, value)| value.is_some());
        match given {
            Some((option, _)) if self.xprtsec == Xprtsec::None => Err(format!(
                "option '{option}' needs xprtsec=tls or xprtsec=mtls; without that, connections are in clear"
            )),
            _ => Ok(()),
        }
    }

    fn files(&self) -> [(&'static str, Option<&str>); 4] {
        [("tls_ca", &self.ca), ("tls_crl", &self.crl), ("tls_cert", &self.cert), ("tls_key", &self.key)]
            .map(|(option, file)| (option, file.as_deref()))
    }
}

impl Default for MountOptions {
    fn default() -> Self {
        Self {
            version: Version::V3,
            nconnect: 1,
            addresses: Vec::new(),
            proto: "tcp".to_owned(),
            mount_port: None,
            mount_proto: None,
            lock: true,
            acl: true,
            nlm_port: None,
            deadline: Duration::from_secs(60),
            uid: None,
            gid: None,
            gids: None,
            security: Security::Sys,
            tickets: TicketSource::default(),
            read_size: None,
            write_size: None,
            read_ahead: 8 << 20,
            write_behind: 16 << 20,
            pnfs: Pnfs::Auto,
            data_refused: Duration::from_secs(1),
            tls: TlsOptions::default(),
            transport: RawOptions::new(),
        }
    }
}

/// The security flavour of a mount. Kerberos authenticates the user by the tickets of the process: see `kinit`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Security {
    /// `sys`: AUTH_SYS, which proves nothing.
    Sys,
    /// `krb5`, `krb5i`, `krb5p`: Kerberos 5 with this protection of bodies.
    Kerberos(gss::Service),
}

impl Security {
    /// All flavours with their names.
    const ALL: [(&str, Self); 4] = [
        ("sys", Self::Sys),
        ("krb5", Self::Kerberos(gss::Service::None)),
        ("krb5i", Self::Kerberos(gss::Service::Integrity)),
        ("krb5p", Self::Kerberos(gss::Service::Privacy)),
    ];

    /// Returns the name of a flavour in a list of flavours; its number, if it is another one.
    pub(crate) fn name_of(number: u32) -> String {
        let known = Self::ALL.into_iter().find(|(_, security)| security.number() == number);
        known.map_or_else(|| number.to_string(), |(name, _)| name.to_owned())
    }

    /// Returns the number of the flavour in lists of flavours.
    pub(crate) fn number(self) -> u32 {
        match self {
            Security::Sys => 1,
            Security::Kerberos(service) => gss::pseudo_flavor(service),
        }
    }
}

/// The use of data servers (pNFS).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Pnfs {
    /// Data of large files move directly between this client and data servers if the server offers that.
    #[default]
    Auto,
    /// All data pass through the server of the mount.
    Off,
}

/// The version of NFS to use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    /// The newest version that the server supports.
    Auto,
    /// NFSv3.
    V3,
    /// NFSv4.0.
    V4_0,
    /// NFSv4.1.
    V4_1,
    /// NFSv4.2.
    V4_2,
}

impl Version {
    /// Returns the minor versions of NFSv4 that may be used, the newest first.
    pub(crate) fn minors(self) -> &'static [u32] {
        match self {
            Version::Auto => &[2, 1, 0],
            Version::V3 => &[],
            Version::V4_0 => &[0],
            Version::V4_1 => &[1],
            Version::V4_2 => &[2],
        }
    }
}

/// The error of an invalid URL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UrlError {
    /// The URL.
    pub url: String,
    /// The problem, and what is allowed instead.
    pub problem: String,
}

impl fmt::Display for UrlError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "'{}': {}", self.url, self.problem)
    }
}

impl std::error::Error for UrlError {}

impl FromStr for NfsUrl {
    type Err = UrlError;

    fn from_str(text: &str) -> Result<Self, UrlError> {
        parse(text).map_err(|problem| UrlError { url: text.to_owned(), problem })
    }
}

impl NfsUrl {
    /// Returns `host` or `host:port`, with an IPv6 address in brackets.
    pub fn authority(&self) -> String {
        let host = if self.host.contains(':') { format!("[{}]", self.host) } else { self.host.clone() };
        self.port.map_or_else(|| host.clone(), |port| format!("{host}:{port}"))
    }

    /// Returns the URL with another path, which consists of bytes without percent-encoding.
    pub fn with_path(&self, path: impl Into<Bytes>) -> Self {
        Self { path: path.into(), ..self.clone() }
    }
}

/// Writes the URL without its options.
impl fmt::Display for NfsUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "nfs://{}{}", self.authority(), percent_encode(&self.path, ENCODED))
    }
}

fn parse(text: &str) -> Result<NfsUrl, String> {
    let url = url::Url::parse(text).map_err(|error| format!("not a URL ({error}); expected {SHAPE}"))?;
    if url.scheme() != "nfs" {
        return Err(format!("scheme '{}'; expected {SHAPE}", url.scheme()));
    }
    if url.fragment().is_some() {
        return Err("write '#' in a path as %23".to_owned());
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err("NFS has no user name or password; write ?uid=…&gid=… to act as a user".to_owned());
    }
    let host = match url.host() {
        Some(url::Host::Ipv6(address)) => address.to_string(),
        Some(host) if !host.to_string().is_empty() => host.to_string(),
        _ => return Err(format!("no host; expected {SHAPE}")),
    };
    let mut path: Vec<u8> = percent_decode_str(url.path()).collect();
    if path.is_empty() {
        path.push(b'/');
    }
    if path.contains(&0) {
        return Err("a path must not contain zero bytes".to_owned());
    }
    let mut options = MountOptions::default();
    let mut seen = Vec::new();
    for (key, value) in url.query_pairs() {
        if seen.contains(&key) {
            return Err(format!("option '{key}' is given twice"));
        }
        options.set(&key, &value).map_err(|problem| format!("option '{key}={value}': {problem}"))?;
        seen.push(key);
    }
    for (one, other) in [("lock", "nolock"), ("acl", "noacl")] {
        if [one, other].iter().all(|key| seen.iter().any(|seen| seen == key)) {
            return Err(format!("options '{one}' and '{other}' exclude each other"));
        }
    }
    if let Security::Kerberos(_) = options.security
        && let Some(key) = ["uid", "gid", "gids"].into_iter().find(|key| seen.iter().any(|seen| seen == key))
    {
        return Err(format!("option '{key}' has no effect with Kerberos: the server learns the user from the ticket"));
    }
    Ok(NfsUrl { host, port: url.port(), path: path.into(), options })
}

impl MountOptions {
    /// The keys of the query that are not options of the transport.
    pub const KEYS: &[&str] = &[
        "proto",
        "vers",
        "nconnect",
        "addr",
        "mountport",
        "mountproto",
        "lock",
        "nolock",
        "acl",
        "noacl",
        "nlmport",
        "timeo",
        "uid",
        "gid",
        "gids",
        "sec",
        "rsize",
        "wsize",
        "readahead",
        "writebehind",
        "pnfs",
        "dstimeo",
        "xprtsec",
        "tls_alpn",
        "ktls",
        "tls_ca",
        "tls_crl",
        "tls_cert",
        "tls_key",
    ];

    /// Sets the option that a key of the query names. A key that is not in [`KEYS`](Self::KEYS) is an option of the
    /// transport.
    ///
    /// # Errors
    /// A text that describes the problem with the value, and the allowed values.
    pub fn set(&mut self, key: &str, value: &str) -> Result<(), String> {
        match key {
            // In the query of a URL, `+` stands for a space.
            "proto" => self.proto = name(value)?.replace(' ', "+"),
            "vers" => {
                self.version = match value {
                    "3" => Version::V3,
                    "4.0" => Version::V4_0,
                    "4.1" => Version::V4_1,
                    "4" | "4.2" => Version::V4_2,
                    "auto" => Version::Auto,
                    _ => return Err("allowed: 3, 4.0, 4.1, 4.2, auto".to_owned()),
                }
            }
            "nconnect" => self.nconnect = size(value, 1, NCONNECT_MAX)? as u32,
            "addr" => self.addresses = addresses(value)?,
            "mountport" => self.mount_port = Some(number(value)?),
            "mountproto" => self.mount_proto = Some(name(value)?),
            "lock" => self.lock = flag(value, true)?,
            "nolock" => self.lock = flag(value, false)?,
            "acl" => self.acl = flag(value, true)?,
            "noacl" => self.acl = flag(value, false)?,
            "nlmport" => self.nlm_port = Some(number(value)?),
            "timeo" => self.deadline = duration(value)?,
            "uid" => self.uid = Some(number(value)?),
            "gid" => self.gid = Some(number(value)?),
            "gids" => self.gids = Some(groups(value)?),
            "sec" => self.security = security(value)?,
            "rsize" => self.read_size = Some(size(value, 512, nfs::v3::DATA_BOUND)? as u32),
            "wsize" => self.write_size = Some(size(value, 512, nfs::v3::DATA_BOUND)? as u32),
            "readahead" => self.read_ahead = size(value, 0, WINDOW_MAX)?,
            "writebehind" => self.write_behind = size(value, 0, WINDOW_MAX)?,
            "pnfs" => {
                self.pnfs = match value {
                    "auto" => Pnfs::Auto,
                    "off" => Pnfs::Off,
                    _ => return Err("allowed: auto, off".to_owned()),
                }
            }
            "dstimeo" => self.data_refused = duration(value)?,
            "xprtsec" => self.tls.xprtsec = Xprtsec::parse(value)?,
            "tls_alpn" => self.tls.alpn = Some(Alpn::parse(value)?),
            "ktls" => self.tls.ktls = Some(Ktls::parse(value)?),
            "tls_ca" => self.tls.ca = Some(file(value)?),
            "tls_crl" => self.tls.crl = Some(file(value)?),
            "tls_cert" => self.tls.cert = Some(file(value)?),
            "tls_key" => self.tls.key = Some(file(value)?),
            _ => {
                self.transport.insert(key.to_owned(), value.to_owned());
            }
        }
        Ok(())
    }
}

fn name(value: &str) -> Result<String, String> {
    if value.is_empty() { Err("the name of a transport is missing".to_owned()) } else { Ok(value.to_owned()) }
}

/// Returns what an option without a value means.
fn flag(value: &str, meaning: bool) -> Result<bool, String> {
    if value.is_empty() { Ok(meaning) } else { Err("the option has no value".to_owned()) }
}

fn file(value: &str) -> Result<String, String> {
    if value.is_empty() { Err("the path of a file is missing".to_owned()) } else { Ok(value.to_owned()) }
}

fn number<T: FromStr>(value: &str) -> Result<T, String> {
    let bits = 8 * size_of::<T>() as u32;
    value.parse().map_err(|_| format!("expected a number from 0 to {}", u64::MAX >> (64 - bits)))
}

fn addresses(value: &str) -> Result<Vec<String>, String> {
    let all: Vec<String> = value.split(',').filter(|address| !address.is_empty()).map(str::to_owned).collect();
    if all.len() > ADDRESSES_MAX { Err(format!("at most {ADDRESSES_MAX} addresses")) } else { Ok(all) }
}

fn groups(value: &str) -> Result<Vec<u32>, String> {
    let gids = value.split(',').filter(|gid| !gid.is_empty()).map(number).collect::<Result<Vec<u32>, _>>()?;
    // RFC 5531 appendix A: gids<16>.
    if gids.len() > 16 { Err("AUTH_SYS carries at most 16 groups".to_owned()) } else { Ok(gids) }
}

fn security(value: &str) -> Result<Security, String> {
    let known = Security::ALL.into_iter().find(|(name, _)| *name == value);
    known.map(|(_, security)| security).ok_or_else(|| {
        let names = Security::ALL.map(|(name, _)| name).join(", ");
        format!("allowed: {names}")
    })
}

fn size(value: &str, min: usize, max: usize) -> Result<usize, String> {
    let digits = value.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let shift = match value[digits.len()..].to_ascii_lowercase().as_str() {
        "" => Some(0),
        "k" | "kib" => Some(10),
        "m" | "mib" => Some(20),
        "g" | "gib" => Some(30),
        _ => None,
    };
    let bytes = shift.and_then(|shift| digits.parse::<usize>().ok()?.checked_mul(1 << shift));
    bytes
        .filter(|bytes| (min..=max).contains(bytes))
        .ok_or_else(|| format!("expected a number of bytes from {min} to {max}, optionally with the suffix K, M or G"))
}

fn duration(value: &str) -> Result<Duration, String> {
    let digits = value.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit_ms = match &value[digits.len()..] {
        "" => Some(100),
        "ms" => Some(1),
        "s" => Some(1000),
        _ => None,
    };
    let ms = unit_ms.and_then(|unit_ms: u64| digits.parse::<u64>().ok()?.checked_mul(unit_ms));
    ms.filter(|ms| (1..=TIMEO_MAX_MS).contains(ms))
        .map(Duration::from_millis)
        .ok_or_else(|| "expected tenths of a second, or a number with the suffix 'ms' or 's', up to a day".to_owned())
}

const SHAPE: &str = "nfs://host[:port]/export/path[?proto=tcp&…]";
const WINDOW_MAX: usize = 1 << 30;
/// Maximum of `nconnect`, as in nfs(5).
const NCONNECT_MAX: usize = 16;
const ADDRESSES_MAX: usize = 8;
const TIMEO_MAX_MS: u64 = 24 * 3600 * 1000;
/// The characters that `Display` of [`NfsUrl`] encodes: all but slashes and the unreserved characters of RFC 3986 §2.3.
const ENCODED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'/').remove(b'-').remove(b'.').remove(b'_').remove(b'~');

#[cfg(test)]
mod tests {
    use super::*;

    fn problem(text: &str) -> String {
        text.parse::<NfsUrl>().expect_err(text).problem
    }

    #[test]
    fn shortest_url_has_default_options() {
        let url: NfsUrl = "nfs://server".parse().unwrap();
        assert_eq!(
            url,
            NfsUrl {
                host: "server".into(),
                port: None,
                path: Bytes::from_static(b"/"),
                options: MountOptions::default()
            }
        );
        assert_eq!(url.options.proto, "tcp");
    }

    #[test]
    fn options_are_parsed_and_unknown_keys_are_passed_to_the_transport() {
        let url: NfsUrl =
            "nfs://10.0.0.1:20049/e?proto=rdma&vers=3&mountport=20048&mountproto=tcp&timeo=5s&uid=1&gid=2\
                           &gids=3,4&sec=sys&rsize=64k&wsize=1M&readahead=4M&writebehind=0&inline=8192&dstimeo=200ms"
                .parse()
                .unwrap();
        let options = &url.options;
        assert_eq!((url.host.as_str(), url.port), ("10.0.0.1", Some(20049)));
        assert_eq!((options.proto.as_str(), options.mount_proto.as_deref()), ("rdma", Some("tcp")));
        assert_eq!((options.mount_port, options.deadline), (Some(20048), Duration::from_secs(5)));
        assert_eq!((options.uid, options.gid, options.gids.as_deref()), (Some(1), Some(2), Some(&[3, 4][..])));
        assert_eq!(options.security, Security::Sys);
        assert_eq!((options.read_size, options.write_size), (Some(65536), Some(1 << 20)));
        assert_eq!((options.read_ahead, options.write_behind), (4 << 20, 0));
        assert_eq!(options.data_refused, Duration::from_millis(200));
        assert_eq!((options.lock, options.nlm_port), (true, None));
        let local: NfsUrl = "nfs://h/?nolock&nlmport=4045".parse().unwrap();
        assert_eq!((local.options.lock, local.options.nlm_port), (false, Some(4045)));
        assert!(options.acl && !"nfs://h/?noacl".parse::<NfsUrl>().unwrap().options.acl);
        let several: NfsUrl = "nfs://h/?proto=tcp+rdma".parse().unwrap();
        assert_eq!(several.options.proto, "tcp+rdma");
        assert_eq!(options.transport.iter().collect::<Vec<_>>(), [(&"inline".to_owned(), &"8192".to_owned())]);
    }

    #[test]
    fn tls_options_are_for_the_transport_only_with_tls() {
        let url: NfsUrl = "nfs://h/e?xprtsec=mtls&tls_ca=/ca.pem&tls_cert=/c.pem&tls_key=/c.key".parse().unwrap();
        let mut raw = RawOptions::new();
        url.options.tls.add_to(&mut raw, "h", (100_003, 4));
        let raw: Vec<_> = raw.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
        let files = [("tls_ca", "/ca.pem"), ("tls_cert", "/c.pem"), ("tls_key", "/c.key"), ("tls_name", "h")];
        assert_eq!(raw, [&files[..], &[("tls_program", "100003.4"), ("xprtsec", "mtls")]].concat());
        let mut raw = RawOptions::new();
        "nfs://h/e?xprtsec=none".parse::<NfsUrl>().unwrap().options.tls.add_to(&mut raw, "h", (100_003, 4));
        assert!(raw.is_empty());
        let optional: NfsUrl = "nfs://h/e?xprtsec=tls&tls_alpn=optional".parse().unwrap();
        optional.options.tls.add_to(&mut raw, "h", (100_003, 4));
        assert_eq!(raw.get("tls_alpn").map(String::as_str), Some("optional"));
        assert!(problem("nfs://h/?xprtsec=tls&tls_alpn=h2").contains("'h2' is neither required nor optional"));
        let without: NfsUrl = "nfs://h/e?xprtsec=tls&ktls=off".parse().unwrap();
        without.options.tls.add_to(&mut raw, "h", (100_003, 4));
        assert_eq!(raw.get("ktls").map(String::as_str), Some("off"));
        assert!(problem("nfs://h/?xprtsec=tls&ktls=on").contains("'on' is neither auto nor off"));
        for option in ["tls_ca=a", "tls_crl=a", "tls_cert=a", "tls_key=a", "tls_alpn=optional", "ktls=auto"] {
            let check = |more: &str| {
                let url: NfsUrl = format!("nfs://h/e?{option}{more}").parse().unwrap();
                url.options.tls.check()
            };
            let option = option.split('=').next().unwrap();
            assert!(check("").unwrap_err().contains(&format!("option '{option}' needs xprtsec=tls")));
            assert!(check("&xprtsec=none").is_err() && check("&xprtsec=tls").is_ok());
        }
        assert!(problem("nfs://h/?xprtsec=ssl").contains("'ssl' is none of none, tls and mtls"));
        assert!(problem("nfs://h/?tls_ca=").contains("the path of a file is missing"));
    }

    #[test]
    fn security_flavour_is_parsed() {
        use gss::Service;
        let security = |text: &str| text.parse::<NfsUrl>().unwrap().options.security;
        assert_eq!(security("nfs://h/?sec=krb5"), Security::Kerberos(Service::None));
        assert_eq!(security("nfs://h/?sec=krb5i"), Security::Kerberos(Service::Integrity));
        assert_eq!(security("nfs://h/?sec=krb5p"), Security::Kerberos(Service::Privacy));
        assert_eq!(security("nfs://h/"), Security::Sys);
    }

    #[test]
    fn path_is_decoded_to_bytes_and_encoded_again() {
        let url: NfsUrl = "nfs://[fe80::1]:7/a%ff%20b/c+d%23%3F".parse().unwrap();
        assert_eq!(&url.path[..], b"/a\xff b/c+d#?");
        assert_eq!(url.to_string(), "nfs://[fe80::1]:7/a%FF%20b/c%2Bd%23%3F");
        assert_eq!(url.to_string().parse::<NfsUrl>().unwrap(), url);
    }

    #[test]
    fn error_names_the_problem() {
        assert!(problem("server:/export").contains("expected nfs://host"));
        assert!(problem("/local/path").contains("expected nfs://host"));
        assert!(problem("http://h/e").contains("scheme 'http'"));
        assert!(problem("nfs:///e").contains("host"));
        assert!(problem("nfs://h/a#b").contains("%23"));
        assert!(problem("nfs://me@h/a").contains("uid="));
        assert!(problem("nfs://h/a%00b").contains("zero bytes"));
        assert!(problem("nfs://h:99999/").contains("port"));
        assert!(problem("nfs://h/?vers=5").contains("allowed: 3, 4.0, 4.1"));
        assert!(problem("nfs://h/?sec=krb6").contains("sys, krb5, krb5i, krb5p"));
        assert!(problem("nfs://h/?sec=krb5&uid=1").contains("'uid' has no effect with Kerberos"));
        assert!(problem("nfs://h/?uid=-1").contains("4294967295"));
        assert!(problem("nfs://h/?mountport=65536").contains("65535"));
        assert!(problem("nfs://h/?nlmport=65536").contains("65535"));
        assert!(problem("nfs://h/?nolock=yes").contains("has no value"));
        assert!(problem("nfs://h/?lock&nolock").contains("exclude each other"));
        assert!(problem("nfs://h/?acl&noacl").contains("'acl' and 'noacl' exclude each other"));
        assert!(problem("nfs://h/?rsize=9G").contains("'rsize=9G'"));
        assert!(problem("nfs://h/?rsize=1x").contains("K, M or G"));
        assert!(problem("nfs://h/?timeo=0").contains("tenths"));
        assert!(problem("nfs://h/?proto=").contains("transport"));
        assert!(problem("nfs://h/?uid=1&uid=2").contains("twice"));
        assert!(problem("nfs://h/?gids=1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17").contains("at most 16"));
    }
}
