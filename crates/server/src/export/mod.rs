//! Exports: the trees that are served, their names, the clients that may use them, and the identity with which callers
//! act.
//!
//! The rules of an export are checked for every call, not only for MNT. So a host that the export does not admit cannot
//! use a file handle from another host.

pub(crate) mod client;
pub(crate) mod policy;
pub(crate) mod referral;
pub(crate) mod sec;
pub(crate) mod xprtsec;

use std::{fmt, net::IpAddr, sync::Arc};

use bytes::Bytes;
use rpc::Identity;
use serde::Deserialize;
use vfs::{Cred, Handle, Vfs};

use self::{
    client::Client,
    referral::Referral,
    sec::{Sec, SecFlavors},
    xprtsec::Protections,
};
use crate::{
    handle::ExportId,
    identity::{
        squash::{NOBODY, Squash},
        users::Resolved,
    },
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
    /// The hosts that may use the export. The first entry that matches a host applies to it.
    pub clients: Vec<Client>,
    /// The security flavours with which hosts may use the export, unless their entry in `clients` has its own.
    pub sec: SecFlavors,
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
    /// The kinds of protection by TLS that connections of TCP may have: all, or those that are at least `tls` or `mtls`. If
    /// connections in clear are not among them, other transports may be used only if `transports` names them.
    pub xprtsec: Protections,
    /// `true` if callers may use ports from 1024 on. This is the default: a privileged port proves little today, and
    /// clients in user space cannot use one.
    pub insecure: bool,
    /// `true` if the server passes files that a caller may read to the process of that caller, if that is root on this host. What that
    /// process can then do is in `docs/security.md`.
    pub passthrough: bool,
}

impl Default for ExportOptions {
    fn default() -> Self {
        Self {
            clients: vec![Client::any()],
            sec: SecFlavors::default(),
            access: Access::ReadWrite,
            squash: Squash::Root,
            anon_uid: NOBODY,
            anon_gid: NOBODY,
            transports: None,
            xprtsec: Protections::default(),
            insecure: true,
            passthrough: false,
        }
    }
}

impl ExportOptions {
    /// Returns `true` if any host may use the export with this security flavour.
    pub fn allows(&self, sec: Sec) -> bool {
        let own = self.clients.iter().filter_map(Client::sec);
        own.chain([&self.sec]).any(|flavors| flavors.contains(sec))
    }

    /// Returns the kinds of protection that are demanded of the hosts of each entry of `clients`.
    pub fn protections(&self) -> impl Iterator<Item = &Protections> {
        self.clients.iter().map(|client| client.xprtsec().unwrap_or(&self.xprtsec))
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

    /// Returns the identity with which a caller of a host acts. `resolved` is the result of the look-up of the caller.
    pub(crate) fn identity(&self, host: IpAddr, caller: &Identity, resolved: &Resolved) -> Cred {
        let options = &self.options;
        let client = options.clients.iter().find(|client| client.matches(host));
        let squash = client.and_then(Client::squash).unwrap_or(options.squash);
        squash.identity(caller, resolved, (options.anon_uid, options.anon_gid))
    }

    /// Returns the identity of callers that are squashed.
    pub(crate) fn anonymous(&self) -> Cred {
        let options = &self.options;
        Squash::All.identity(&Identity::None, &Resolved::Anonymous, (options.anon_uid, options.anon_gid))
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
