//! Exports: the trees that are served, their names, the clients that may use them, and the identity with which callers
//! act.
//!
//! The rules of an export are checked for every call, not only for MNT. So a host that the export does not admit cannot
//! use a file handle from another host.

pub(crate) mod policy;
pub(crate) mod referral;

use std::{fmt, net::IpAddr, str::FromStr, sync::Arc};

use bytes::Bytes;
use rpc::Identity;
use serde::Deserialize;
use vfs::{Cred, Handle, Vfs};

use self::referral::Referral;
use crate::{
    handle::ExportId,
    identity::squash::{NOBODY, Squash},
};

/// An exported tree.
pub struct Export {
    id: ExportId,
    name: Bytes,
    vfs: Arc<dyn Vfs>,
    root: Handle,
    options: ExportOptions,
}

/// The clients that may use an export, and their rights.
#[derive(Clone, Debug)]
pub struct ExportOptions {
    /// The hosts that may use the export.
    pub clients: Vec<Client>,
    /// The access that clients get: reading and writing, or only reading.
    pub access: Access,
    /// The users that are replaced by the anonymous user.
    pub squash: Squash,
    /// The user ID of squashed callers, and of callers without credentials.
    pub anon_uid: u32,
    /// The group ID of squashed callers, and of callers without credentials.
    pub anon_gid: u32,
    /// The names of the transports over which clients may use the export; `None` for all.
    pub transports: Option<Vec<String>>,
    /// `true` if callers may use ports from 1024 on. This is the default: a privileged port proves little today, and
    /// clients in user space cannot use one.
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

/// The access that clients get to an export.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
pub enum Access {
    /// Clients can read and write.
    #[default]
    #[serde(rename = "rw")]
    ReadWrite,
    /// Clients can only read.
    #[serde(rename = "ro")]
    ReadOnly,
}

impl Export {
    /// Exports `vfs` under `name`, the path that clients mount. `id` is part of file handles. Use [`ExportId::of`] if
    /// the exported objects outlive the process, otherwise [`ExportId::unique`].
    ///
    /// # Errors
    /// Returns an error if the name is not an absolute path without `.` and `..`.
    pub fn new(name: &str, id: ExportId, vfs: Arc<dyn Vfs>, options: ExportOptions) -> Result<Self, ExportError> {
        Ok(Self { id, name: normalise(name)?, root: vfs.root(), vfs, options })
    }

    /// Returns the ID that file handles contain.
    pub fn id(&self) -> ExportId {
        self.id
    }

    /// Returns the path that clients mount.
    pub fn name(&self) -> &Bytes {
        &self.name
    }

    /// Returns the tree.
    pub fn vfs(&self) -> &Arc<dyn Vfs> {
        &self.vfs
    }

    /// Returns the handle of the root directory.
    pub fn root(&self) -> &Handle {
        &self.root
    }

    /// Returns the clients that may use the export, and their rights.
    pub fn options(&self) -> &ExportOptions {
        &self.options
    }

    /// Returns the identity with which a caller acts.
    pub fn identity(&self, caller: &Identity) -> Cred {
        let options = &self.options;
        options.squash.identity(caller, (options.anon_uid, options.anon_gid))
    }
}

impl fmt::Debug for Export {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.name.escape_ascii();
        write!(f, "Export {{ name: \"{name}\", id: {:?}, options: {:?} }}", self.id, self.options)
    }
}

/// All exports and referrals of a server.
#[derive(Debug, Default)]
pub struct Exports {
    exports: Vec<Export>,
    referrals: Vec<Referral>,
}

impl Exports {
    /// Creates an empty set of exports.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds an export.
    ///
    /// # Errors
    /// Returns an error if the name or ID is taken.
    pub fn add(&mut self, export: Export) -> Result<(), ExportError> {
        self.check_free(export.name())?;
        if let Some(other) = self.exports.iter().find(|other| other.id == export.id) {
            return Err(ExportError::Taken(String::from_utf8_lossy(&other.name).into_owned()));
        }
        self.exports.push(export);
        Ok(())
    }

    /// Adds a referral: a name that stands for a file system of another server.
    ///
    /// # Errors
    /// Returns an error if the name is taken or is below another referral.
    pub fn refer(&mut self, referral: Referral) -> Result<(), ExportError> {
        self.check_free(referral.name())?;
        self.referrals.push(referral);
        Ok(())
    }

    /// Returns the referrals.
    pub fn referrals(&self) -> impl Iterator<Item = &Referral> {
        self.referrals.iter()
    }

    /// Checks that a new export has a name of its own and is not below a referral.
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

    /// Returns the export with this ID.
    pub fn find(&self, id: ExportId) -> Option<&Export> {
        self.exports.iter().find(|export| export.id == id)
    }

    /// Returns the export that contains `path`, and the components of `path` below it. If several exports contain the
    /// path, returns the one with the longest name.
    pub fn resolve<'p>(&self, path: &'p [u8]) -> Option<(&Export, impl Iterator<Item = &'p [u8]> + use<'p>)> {
        let depth = |export: &Export| components(&export.name).count();
        let holds = |export: &&Export| {
            let mut parts = components(path);
            components(&export.name).all(|name| parts.next() == Some(name))
        };
        let export = self.exports.iter().filter(holds).max_by_key(|export| depth(export))?;
        Some((export, components(path).skip(depth(export))))
    }

    /// Returns `true` if any export or referral admits the host at this address, whatever its transport and port. Other
    /// hosts get only a small share of the server's memory, connections and clients.
    pub fn admit(&self, address: IpAddr) -> bool {
        let matches = |clients: &[Client]| clients.iter().any(|client| client.matches(address));
        self.exports.iter().any(|export| matches(&export.options.clients))
            || self.referrals.iter().any(|referral| matches(referral.clients()))
    }

    /// Returns all exports.
    pub fn iter(&self) -> impl Iterator<Item = &Export> {
        self.exports.iter()
    }
}

impl From<Export> for Exports {
    fn from(export: Export) -> Self {
        Self { exports: vec![export], referrals: Vec::new() }
    }
}

/// The reason why an export or referral is invalid.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ExportError {
    /// The name is not an absolute path, or is too long for the MOUNT protocol.
    BadName(String),
    /// Another export has this name or the same ID, or the path is below a referral.
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

/// A set of hosts that may use an export: all hosts, or those with some addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Client {
    text: String,
    nets: Option<Vec<Net>>,
}

/// The addresses that have their first `bits` bits in common with `address`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Net {
    address: IpAddr,
    bits: u32,
}

impl Client {
    /// Returns the set of all hosts.
    pub fn any() -> Self {
        Self { text: "*".to_owned(), nets: None }
    }

    /// Returns `true` if this is the set of all hosts.
    pub fn is_any(&self) -> bool {
        self.nets.is_none()
    }

    /// Returns the text from which this was parsed.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Returns `true` if the host of this address is in the set. An IPv4 address mapped into IPv6 counts as the IPv4
    /// address.
    pub fn matches(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        self.nets.as_ref().is_none_or(|nets| nets.iter().any(|net| net.holds(address)))
    }
}

/// Parses `*`, an address, a network such as `10.0.0.0/8`, or a host name. A host name is looked up once, while it is
/// parsed.
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

/// Returns the components of a path without empty components and `.`.
pub(crate) fn components(path: &[u8]) -> impl Iterator<Item = &[u8]> {
    path.split(|&byte| byte == b'/').filter(|part| !matches!(*part, b"" | b"."))
}

/// Returns the name of an export without repeated or trailing slashes.
///
/// # Errors
/// Returns an error if the name is not an absolute path without `.` and `..`, or is too long.
pub(crate) fn normalise(name: &str) -> Result<Bytes, ExportError> {
    let dotted = name.split('/').any(|part| matches!(part, "." | ".."));
    if !name.starts_with('/') || dotted || name.len() > NAME_MAX || name.contains('\0') {
        return Err(ExportError::BadName(name.to_owned()));
    }
    let parts: Vec<_> = components(name.as_bytes()).collect();
    Ok([b"/", parts.join(&b'/').as_slice()].concat().into())
}

/// Maximum bytes of a path in the MOUNT protocol (RFC 1813 appendix I).
pub(crate) const NAME_MAX: usize = 1024;
const CLIENT_MAX: usize = 255;

#[cfg(test)]
mod tests {
    use super::*;

    fn client(text: &str) -> Client {
        text.parse().unwrap()
    }

    #[test]
    fn clients_match_by_prefix_in_their_address_family() {
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
    fn invalid_clients_are_rejected_with_a_reason() {
        let long = "h".repeat(256);
        for text in ["", &long, "*.example.com", "10.0.0.0/33", "10.0.0.0/x", "host/8", "@group", "fd00::/129"] {
            let error = text.parse::<Client>().unwrap_err();
            assert!(error.starts_with(&format!("'{text}'")), "{error}");
        }
    }
}
