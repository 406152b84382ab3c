//! `[identity]` of the configuration file.

use std::{collections::BTreeMap, time::Duration};

use serde::{Deserialize, Deserializer, de};

use crate::identity::principals::{IdentityOptions, LocalUser, Machines, UnknownUid};

/// The `[identity]` table.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct IdentityConfig {
    /// `manage_gids`: whether the groups of AUTH_SYS callers come from the host's name service.
    pub manage_gids: bool,
    /// `unknown_uid`: the groups of a caller that the name service does not know.
    pub unknown_uid: UnknownUid,
    /// `cache_s`: the seconds for which a user is cached, from 1 to 86400. The default is 300.
    #[serde(deserialize_with = "cache_s")]
    pub cache_s: Option<u64>,
    /// `machines`: the user of principals that are machines.
    pub machines: Machines,
    /// `principals`: a table of users by principal.
    #[serde(deserialize_with = "principals")]
    pub principals: BTreeMap<String, LocalUser>,
}

impl IdentityConfig {
    /// Returns the rules.
    pub(super) fn options(&self) -> IdentityOptions {
        IdentityOptions {
            manage_gids: self.manage_gids,
            unknown_uid: self.unknown_uid,
            cache: self.cache_s.map_or(IdentityOptions::default().cache, Duration::from_secs),
            principals: self.principals.clone(),
            machines: self.machines,
        }
    }
}

fn cache_s<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u64>, D::Error> {
    let seconds = i64::deserialize(deserializer)?;
    match u64::try_from(seconds).ok().filter(|seconds| (1..=CACHE_MAX_S).contains(seconds)) {
        Some(seconds) => Ok(Some(seconds)),
        None => Err(de::Error::custom(format!("cache_s = {seconds}: it must be from 1 to {CACHE_MAX_S}"))),
    }
}

fn principals<'de, D: Deserializer<'de>>(deserializer: D) -> Result<BTreeMap<String, LocalUser>, D::Error> {
    let principals = BTreeMap::<String, LocalUser>::deserialize(deserializer)?;
    for (principal, user) in &principals {
        let valid = match user {
            LocalUser::Uid(uid) => *uid != u32::MAX,
            LocalUser::Name(name) => !name.is_empty() && !name.contains(['\0', ':', '/']),
        };
        if !valid || principal.is_empty() {
            return Err(de::Error::custom(format!(
                "principals: '{principal}' must be a principal such as alice@EXAMPLE.COM, and its user a name or a user ID \
                 from 0 to 4294967294"
            )));
        }
    }
    Ok(principals)
}

const CACHE_MAX_S: u64 = 86400;
