//! The mapping of principals to users: the configuration (`[identity]`), and the hook for a mechanism ([`PrincipalNames`]).

use std::{collections::BTreeMap, time::Duration};

use rpc::security::Principal;
use serde::Deserialize;

/// The names that a security mechanism has for its principals, such as `gss_localname` of Kerberos.
pub trait PrincipalNames: Send + Sync + 'static {
    /// Returns the name of the user of this host that a principal is, or `None` if it is no user. It can block, and its
    /// result is cached. It is not called for principals that the configuration maps, nor for machines.
    fn local_name(&self, principal: &Principal) -> Option<String>;
}

/// The rules by which callers become users of this host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IdentityOptions {
    /// `true` if the groups of AUTH_SYS callers come from the name service.
    pub manage_gids: bool,
    /// The groups of a caller whose user ID the name service does not know.
    pub unknown_uid: UnknownUid,
    /// The time for which a result of the name service is cached.
    pub cache: Duration,
    /// The users of principals, by the whole name of the principal.
    pub principals: BTreeMap<String, LocalUser>,
    /// The user of principals that are machines.
    pub machines: Machines,
}

impl Default for IdentityOptions {
    fn default() -> Self {
        Self {
            manage_gids: false,
            unknown_uid: UnknownUid::default(),
            cache: Duration::from_secs(300),
            principals: BTreeMap::new(),
            machines: Machines::default(),
        }
    }
}

/// The groups of an AUTH_SYS caller whose user ID the name service does not know.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum UnknownUid {
    /// The groups that the caller claims.
    Keep,
    /// No groups.
    #[default]
    Drop,
}

/// The user of principals that are machines: `nfs/host@REALM`, `host/host@REALM`, `root/host@REALM` and `HOST$@REALM`. A
/// client uses them for its own root.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Machines {
    /// The anonymous user of the export.
    #[default]
    Anonymous,
    /// Root, whom the export's `squash` can replace.
    Root,
}

/// A user in the configuration.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(untagged, expecting = "a user must be a name or a user ID from 0 to 4294967294")]
pub enum LocalUser {
    /// A user ID.
    Uid(u32),
    /// A name.
    Name(String),
}

/// The rule that maps a principal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mapping<'a> {
    /// The configuration names the user.
    User(&'a LocalUser),
    Root,
    Anonymous,
    /// The mechanism knows the user.
    ByMechanism,
}

impl IdentityOptions {
    /// Returns the rule for a principal.
    pub(super) fn map(&self, principal: &[u8]) -> Mapping<'_> {
        let Some(name) = std::str::from_utf8(principal).ok().filter(|name| name.len() <= PRINCIPAL_MAX) else {
            return Mapping::Anonymous;
        };
        match (self.principals.get(name), self.machines) {
            (Some(user), _) => Mapping::User(user),
            (None, Machines::Anonymous) if is_machine(name) => Mapping::Anonymous,
            (None, Machines::Root) if is_machine(name) => Mapping::Root,
            (None, _) => Mapping::ByMechanism,
        }
    }
}

/// Returns `true` if a principal belongs to a machine.
fn is_machine(principal: &str) -> bool {
    let name = principal.rsplit_once('@').map_or(principal, |(name, _)| name);
    name.ends_with('$') || name.split_once('/').is_some_and(|(service, _)| ["nfs", "host", "root"].contains(&service))
}

/// The maximum bytes of a principal that can be mapped.
const PRINCIPAL_MAX: usize = 1024;
