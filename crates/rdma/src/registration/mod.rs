//! Registration of memory with an adapter or a peer: the methods, and a cache for methods that keep registrations.
//!
//! Registering memory is costly: pages are pinned and announced to an adapter, or a descriptor is passed and mapped.
//! Between a registration for each RPC and a permanent registration there are several methods, which the literature has
//! compared. They differ in the memory that is *registered* and for how long. They must not differ in the memory that a
//! peer can *access*: with every method, a region ([`QueuePair::register`](crate::QueuePair::register)) has exactly its
//! bytes and its one right, and ends when it is invalidated. `docs/registration.md` compares them.
//!
//! Each provider lists the methods that make a difference to it in
//! [`Provider::registrations`](crate::Provider::registrations).

mod cache;

use std::{fmt, str::FromStr};

pub use cache::{Cache, CacheBounds, CacheStats};

/// A method of registration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Registration {
    /// Each region is registered separately, and its registration is removed when it is invalidated.
    PerIo,
    /// The costly part is prepared once. A region is opened and closed by a cheaper operation on it: a memory window,
    /// or a mapping of a known descriptor.
    Fast,
    /// Registrations are kept for later regions in the same memory. The least recently used one is evicted first.
    Cache,
    /// Memory comes from a pool that is registered permanently as a whole.
    Pool,
}

/// The method and its limits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RegistrationOptions {
    /// The method. `None` chooses the provider's default: the fastest method with which a peer can access only the
    /// bytes of an RPC.
    pub way: Option<Registration>,
    /// The limits of a [`Registration::Cache`], for each queue pair or each device, depending on the provider.
    pub cache: CacheBounds,
}

impl Registration {
    /// All methods, the slowest first.
    pub const ALL: [Self; 4] = [Self::PerIo, Self::Fast, Self::Cache, Self::Pool];

    /// Returns the name for users.
    pub fn name(self) -> &'static str {
        match self {
            Registration::PerIo => "per-io",
            Registration::Fast => "fast",
            Registration::Cache => "cache",
            Registration::Pool => "pool",
        }
    }
}

impl fmt::Display for Registration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Registration {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let names = Self::ALL.map(Self::name).join(", ");
        Self::ALL.into_iter().find(|way| way.name() == name).ok_or_else(|| format!("'{name}' is not one of {names}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn method_names_round_trip() {
        for way in Registration::ALL {
            assert_eq!(way.to_string().parse(), Ok(way));
        }
        assert!("frwr".parse::<Registration>().unwrap_err().contains("per-io, fast, cache, pool"));
    }
}
