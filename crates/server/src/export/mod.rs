//! Exports: which tree is served under which name, to whom, and as whom.
//!
//! Every call is checked against its export, not only MNT: a handle that was seen on another host is of no use.

pub(crate) mod referral;

use std::{
    fmt,
    net::{IpAddr, SocketAddr},
    str::FromStr,
    sync::Arc,
};

use bytes::Bytes;
use rpc::Identity;
use serde::Deserialize;
use smallvec::SmallVec;
use vfs::{Cred, Handle, Vfs};

use crate::{export::referral::Referral, handle::ExportId};

/// One exported tree.
pub struct Export {
    id: ExportId,
    name: Bytes,
    vfs: Arc<dyn Vfs>,
    root: Handle,
    options: ExportOptions,
}

/// To whom a tree is exported, and how.
#[derive(Clone, Debug)]
pub struct ExportOptions {
    /// Hosts that may use it.
    pub clients: Vec<Client>,
    /// Whether it can be changed.
    pub access: Access,
    /// Which users lose their identity.
    pub squash: Squash,
    /// The user that they become, and that callers without credentials are.
    pub anon_uid: u32,
    /// The group that they become.
    pub anon_gid: u32,
    /// Names of the transports it is reached by; `None` for all.
    pub transports: Option<Vec<String>>,
    /// Whether callers may use ports from 1024 on. That only root can have a lower one means little today, and
    /// clients in user space have none: so it is allowed unless you say otherwise.
    pub insecure: bool,
}

impl Default for ExportOptions {
    fn default() -> Self {
        Self {
            clients: vec![Client::any()],
            access: Access::ReadWrite,
            squash: Squash::Root,
            anon_uid: NOBODY,
            anon_gid: NOBODY,
            transports: None,
            insecure: true,
        }
    }
}

/// Whether an export can be changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
pub enum Access {
    /// Reading and writing.
    #[default]
    #[serde(rename = "rw")]
    ReadWrite,
    /// Reading only.
    #[serde(rename = "ro")]
    ReadOnly,
}

/// Which callers act as the anonymous user.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Squash {
    /// User and group 0.
    #[default]
    Root,
    /// Everybody.
    All,
    /// Nobody: a client's root is root here.
    None,
}

impl Export {
    /// Exports `vfs` under `name`, the path that clients mount. The `id` goes into file handles:
    /// [`ExportId::of`] what is exported if that outlives the process, else [`ExportId::unique`].
    ///
    /// # Errors
    /// The name is not an absolute path without `.` and `..`.
    pub fn new(name: &str, id: ExportId, vfs: Arc<dyn Vfs>, options: ExportOptions) -> Result<Self, ExportError> {
        Ok(Self { id, name: normalise(name)?, root: vfs.root(), vfs, options })
    }

    /// Its number in file handles.
    pub fn id(&self) -> ExportId {
        self.id
    }

    /// The path that clients mount.
    pub fn name(&self) -> &Bytes {
        &self.name
    }

    /// The tree.
    pub fn vfs(&self) -> &Arc<dyn Vfs> {
        &self.vfs
    }

    /// Its root directory.
    pub fn root(&self) -> &Handle {
        &self.root
    }

    /// To whom it is exported, and how.
    pub fn options(&self) -> &ExportOptions {
        &self.options
    }

    /// Whether a caller at this address and port may use it over this transport.
    pub fn admits(&self, peer: SocketAddr, transport: &str) -> bool {
        let transports = &self.options.transports;
        self.admits_host(peer) && transports.as_ref().is_none_or(|names| names.iter().any(|name| name == transport))
    }

    /// Whether a caller at this address and port may use it over some transport. This is what MNT asks: a client that
    /// will use RDMA gets its first handle over TCP or UDP.
    pub fn admits_host(&self, peer: SocketAddr) -> bool {
        let options = &self.options;
        (options.insecure || peer.port() < PORT_PRIVILEGED)
            && options.clients.iter().any(|client| client.matches(peer.ip()))
    }

    /// As whom a caller acts.
    pub fn identity(&self, caller: &Identity) -> Cred {
        let options = &self.options;
        let anonymous = || Cred { uid: options.anon_uid, gid: options.anon_gid, groups: SmallVec::new() };
        let sys = match caller {
            Identity::Sys(sys) => sys,
            // Names are not mapped to users.
            Identity::None | Identity::Principal(_) => return anonymous(),
        };
        match options.squash {
            // Its own `clone` takes them one by one.
            Squash::None => Cred { uid: sys.uid, gid: sys.gid, groups: SmallVec::from_slice(&sys.gids) },
            Squash::All => anonymous(),
            Squash::Root => {
                let keep = |id: u32, anonymous: u32| if id == 0 { anonymous } else { id };
                let groups = sys.gids.iter().map(|&gid| keep(gid, options.anon_gid)).collect();
                Cred { uid: keep(sys.uid, options.anon_uid), gid: keep(sys.gid, options.anon_gid), groups }
            }
        }
    }
}

impl fmt::Debug for Export {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.name.escape_ascii();
        write!(f, "Export {{ name: \"{name}\", id: {:?}, options: {:?} }}", self.id, self.options)
    }
}

/// All exports of a server, and what it refers to others.
#[derive(Debug, Default)]
pub struct Exports {
    exports: Vec<Export>,
    referrals: Vec<Referral>,
}

impl Exports {
    /// None.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds one.
    ///
    /// # Errors
    /// Its name or id is taken.
    pub fn add(&mut self, export: Export) -> Result<(), ExportError> {
        self.check_free(export.name())?;
        if let Some(other) = self.exports.iter().find(|other| other.id == export.id) {
            return Err(ExportError::Taken(String::from_utf8_lossy(&other.name).into_owned()));
        }
        self.exports.push(export);
        Ok(())
    }

    /// Adds a name that stands for a file system of another server.
    ///
    /// # Errors
    /// The name is taken, or there is something below it that is here.
    pub fn refer(&mut self, referral: Referral) -> Result<(), ExportError> {
        self.check_free(referral.name())?;
        self.referrals.push(referral);
        Ok(())
    }

    /// The names that stand for file systems of other servers.
    pub fn referrals(&self) -> impl Iterator<Item = &Referral> {
        self.referrals.iter()
    }

    /// Nothing is below what is on another server, and no two have one name.
    fn check_free(&self, name: &[u8]) -> Result<(), ExportError> {
        let within = |outer: &[u8], inner: &[u8]| {
            let mut parts = components(inner);
            components(outer).all(|part| parts.next() == Some(part))
        };
        let names = self.exports.iter().map(|export| (export.name(), false));
        let mut names = names.chain(self.referrals.iter().map(|referral| (referral.name(), true)));
        let taken = names.find(|(other, refers)| *other == name || *refers && within(other, name));
        match taken {
            Some((other, _)) => Err(ExportError::Taken(String::from_utf8_lossy(other).into_owned())),
            None => Ok(()),
        }
    }

    /// The export of this id.
    pub fn find(&self, id: ExportId) -> Option<&Export> {
        self.exports.iter().find(|export| export.id == id)
    }

    /// The export that holds `path`, and what of the path is left below it: the longest name wins.
    pub fn resolve<'p>(&self, path: &'p [u8]) -> Option<(&Export, impl Iterator<Item = &'p [u8]> + use<'p>)> {
        let depth = |export: &Export| components(&export.name).count();
        let holds = |export: &&Export| {
            let mut parts = components(path);
            components(&export.name).all(|name| parts.next() == Some(name))
        };
        let export = self.exports.iter().filter(holds).max_by_key(|export| depth(export))?;
        Some((export, components(path).skip(depth(export))))
    }

    /// Whether a caller at this address may use any export, or is shown any referral, whatever its transport and port.
    /// Hosts for which this is false get only a small share of the server's memory, connections and clients.
    pub fn admit(&self, address: IpAddr) -> bool {
        let matches = |clients: &[Client]| clients.iter().any(|client| client.matches(address));
        self.exports.iter().any(|export| matches(&export.options.clients))
            || self.referrals.iter().any(|referral| matches(referral.clients()))
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = &Export> {
        self.exports.iter()
    }
}

impl From<Export> for Exports {
    fn from(export: Export) -> Self {
        Self { exports: vec![export], referrals: Vec::new() }
    }
}

/// Why an export cannot be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ExportError {
    /// The name is not an absolute path, or too long for the MOUNT protocol.
    BadName(String),
    /// Another export has this name, or leads to the same place.
    Taken(String),
}

impl fmt::Display for ExportError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ExportError::BadName(name) => {
                write!(
                    f,
                    "export name '{name}': must be an absolute path without . and .., of at most {NAME_MAX} bytes"
                )
            }
            ExportError::Taken(name) => write!(f, "'{name}' is exported already"),
        }
    }
}

impl std::error::Error for ExportError {}

/// Hosts that may use an export: all of them, or those of some addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Client {
    text: String,
    nets: Option<Vec<Net>>,
}

/// Addresses with a common prefix of `bits` bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Net {
    address: IpAddr,
    bits: u32,
}

impl Client {
    /// Every host.
    pub fn any() -> Self {
        Self { text: "*".to_owned(), nets: None }
    }

    /// Whether this means every host.
    pub fn is_any(&self) -> bool {
        self.nets.is_none()
    }

    /// As it was written.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Whether the host of this address is meant. An IPv4 address mapped into IPv6 is that IPv4 address.
    pub fn matches(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        self.nets.as_ref().is_none_or(|nets| nets.iter().any(|net| net.holds(address)))
    }
}

/// `*`, an address, a network such as `10.0.0.0/8`, or a host name, which is looked up now and once.
impl FromStr for Client {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let with = |nets| Ok(Self { text: text.to_owned(), nets: Some(nets) });
        let whole = |address: IpAddr| {
            let address = address.to_canonical();
            Net { address, bits: width(address) }
        };
        if text == "*" {
            return Ok(Self::any());
        }
        if let Some((address, bits)) = text.split_once('/') {
            let address = IpAddr::from_str(address).map_err(|_| format!("'{text}': no address before the '/'"))?;
            let most = width(address);
            let bits = bits.parse().ok().filter(|&bits| bits <= most);
            let bits = bits.ok_or(format!("'{text}': the prefix length is not a number from 0 to {most}"))?;
            return with(vec![Net { address, bits }]);
        }
        if let Ok(address) = IpAddr::from_str(text) {
            return with(vec![whole(address)]);
        }
        if text.is_empty() || text.len() > CLIENT_MAX || text.contains(['*', '?', '@', ' ']) {
            return Err(format!(
                "'{text}': a client is '*', an address, a network such as 10.0.0.0/8 or fd00::/8, or a host name \
                 without wildcards"
            ));
        }
        let found = std::net::ToSocketAddrs::to_socket_addrs(&(text, 0));
        let found = found.map_err(|error| format!("'{text}': cannot look up the host name: {error}"))?;
        with(found.map(|address| whole(address.ip())).collect())
    }
}

impl<'de> Deserialize<'de> for Client {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

impl Net {
    fn holds(&self, address: IpAddr) -> bool {
        let differ = |a: u128, b: u128, width: u32| (a ^ b).checked_shr(width - self.bits).unwrap_or(0) != 0;
        match (self.address, address) {
            (IpAddr::V4(net), IpAddr::V4(host)) => !differ(net.to_bits().into(), host.to_bits().into(), 32),
            (IpAddr::V6(net), IpAddr::V6(host)) => !differ(net.to_bits(), host.to_bits(), 128),
            _ => false,
        }
    }
}

fn width(address: IpAddr) -> u32 {
    if address.is_ipv4() { 32 } else { 128 }
}

/// The components of a path; empty ones and `.` do not count.
pub(crate) fn components(path: &[u8]) -> impl Iterator<Item = &[u8]> {
    path.split(|&byte| byte == b'/').filter(|part| !matches!(*part, b"" | b"."))
}

/// The name of an export, with nothing in it twice.
///
/// # Errors
/// It is not an absolute path without `.` and `..`.
pub(crate) fn normalise(name: &str) -> Result<Bytes, ExportError> {
    let dotted = name.split('/').any(|part| matches!(part, "." | ".."));
    if !name.starts_with('/') || dotted || name.len() > NAME_MAX || name.contains('\0') {
        return Err(ExportError::BadName(name.to_owned()));
    }
    let parts: Vec<_> = components(name.as_bytes()).collect();
    Ok([b"/", parts.join(&b'/').as_slice()].concat().into())
}

const NOBODY: u32 = 65534;
const PORT_PRIVILEGED: u16 = 1024;
/// The bounds of the MOUNT protocol (RFC 1813 appendix I).
pub(crate) const NAME_MAX: usize = 1024;
const CLIENT_MAX: usize = 255;

#[cfg(test)]
mod tests {
    use super::*;

    fn client(text: &str) -> Client {
        text.parse().unwrap()
    }

    #[test]
    fn clients_match_by_prefix_in_their_own_family() {
        let cases = [
            ("*", "1.2.3.4", true),
            ("10.1.2.3", "10.1.2.3", true),
            ("10.1.2.3", "10.1.2.4", false),
            ("10.0.0.0/8", "10.255.0.1", true),
            ("10.0.0.0/8", "11.0.0.1", false),
            ("10.0.0.77/8", "10.1.1.1", true),
            ("0.0.0.0/0", "200.1.1.1", true),
            ("0.0.0.0/0", "fe80::1", false),
            ("::/0", "fe80::1", true),
            ("fd00::/9", "fd7f::1", true),
            ("fd00::/9", "fd80::1", false),
            ("10.0.0.0/8", "::ffff:10.2.3.4", true),
            ("::ffff:10.2.3.4", "10.2.3.4", true),
            ("localhost", "127.0.0.1", true),
        ];
        for (rule, address, expected) in cases {
            assert_eq!(client(rule).matches(address.parse().unwrap()), expected, "{rule} and {address}");
        }
    }

    #[test]
    fn what_is_no_client_is_refused_with_a_reason() {
        let long = "h".repeat(256);
        for text in ["", &long, "*.example.com", "10.0.0.0/33", "10.0.0.0/x", "host/8", "@group", "fd00::/129"] {
            let error = text.parse::<Client>().unwrap_err();
            assert!(error.starts_with(&format!("'{text}'")), "{error}");
        }
    }
}
