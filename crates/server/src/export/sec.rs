//! [`Sec`]: the security flavours that an export can require (`sec` in the configuration), and their numbers in MOUNT
//! and SECINFO.

use std::{fmt, str::FromStr};

use rpc::Identity;
use serde::{Deserialize, Deserializer, de};

/// A security flavour, with its mechanism and its protection (RFC 7530 §3.2.1: "pseudo flavor").
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Sec {
    /// AUTH_SYS: the numbers that the caller claims.
    Sys,
    /// Kerberos 5 for the identity of the caller alone.
    Krb5,
    /// Kerberos 5, with a checksum over each message.
    Krb5i,
    /// Kerberos 5, with each message encrypted.
    Krb5p,
    /// AUTH_NONE: the caller is the anonymous user.
    None,
}

impl Sec {
    /// All flavours.
    pub const ALL: [Self; 5] = [Self::Sys, Self::Krb5, Self::Krb5i, Self::Krb5p, Self::None];

    /// Returns the name in configurations.
    pub fn name(self) -> &'static str {
        match self {
            Sec::Sys => "sys",
            Sec::Krb5 => "krb5",
            Sec::Krb5i => "krb5i",
            Sec::Krb5p => "krb5p",
            Sec::None => "none",
        }
    }

    /// Returns the number in the results of MNT, and in [`rpc::security::Principal::pseudo_flavor`].
    pub fn number(self) -> u32 {
        match self {
            Sec::None => 0,
            Sec::Sys => 1,
            Sec::Krb5 => 390_003,
            Sec::Krb5i => 390_004,
            Sec::Krb5p => 390_005,
        }
    }

    /// Returns `true` if callers need RPCSEC_GSS.
    pub fn is_gss(self) -> bool {
        matches!(self, Sec::Krb5 | Sec::Krb5i | Sec::Krb5p)
    }

    /// Returns the flavour by which a caller was authenticated. Returns `None` for a flavour that no export can allow.
    pub(crate) fn of(caller: &Identity) -> Option<Self> {
        match caller {
            Identity::None => Some(Sec::None),
            Identity::Sys(_) => Some(Sec::Sys),
            Identity::Principal(principal) => {
                Self::ALL.into_iter().find(|sec| sec.is_gss() && sec.number() == principal.pseudo_flavor)
            }
        }
    }
}

impl FromStr for Sec {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::ALL.into_iter().find(|sec| sec.name() == text).ok_or_else(|| {
            let names = Self::ALL.map(Sec::name).join(", ");
            format!("sec: there is no security flavour '{text}'; there are {names}")
        })
    }
}

/// One or more security flavours, in the order in which the server prefers them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SecFlavors(Vec<Sec>);

impl SecFlavors {
    /// Creates a list.
    ///
    /// # Errors
    /// Returns a message for the user if the list is empty, or names a flavour twice.
    pub fn new(flavors: Vec<Sec>) -> Result<Self, String> {
        if flavors.is_empty() {
            let names = Sec::ALL.map(Sec::name).join(", ");
            return Err(format!(
                "sec: the list is empty, so nobody could use the export; name at least one of {names}"
            ));
        }
        match flavors.iter().enumerate().find(|(at, sec)| flavors[..*at].contains(sec)) {
            Some((_, sec)) => Err(format!("sec: '{}' is in the list twice", sec.name())),
            None => Ok(Self(flavors)),
        }
    }

    /// Returns the flavours in order.
    pub fn iter(&self) -> impl Iterator<Item = Sec> + '_ {
        self.0.iter().copied()
    }

    /// Returns `true` if the list has this flavour.
    pub fn contains(&self, sec: Sec) -> bool {
        self.0.contains(&sec)
    }
}

impl Default for SecFlavors {
    /// Returns AUTH_SYS alone.
    fn default() -> Self {
        Self(vec![Sec::Sys])
    }
}

impl From<Sec> for SecFlavors {
    fn from(sec: Sec) -> Self {
        Self(vec![sec])
    }
}

impl<'de> Deserialize<'de> for SecFlavors {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct List;
        impl<'de> de::Visitor<'de> for List {
            type Value = SecFlavors;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("sec: a list of security flavours, such as [\"krb5p\", \"krb5i\"]")
            }
            fn visit_seq<S: de::SeqAccess<'de>>(self, mut seq: S) -> Result<SecFlavors, S::Error> {
                let mut flavors = Vec::new();
                while let Some(name) = seq.next_element::<String>()? {
                    flavors.push(name.parse().map_err(de::Error::custom)?);
                }
                SecFlavors::new(flavors).map_err(de::Error::custom)
            }
        }
        deserializer.deserialize_seq(List)
    }
}
