//! How memory becomes reachable for an adapter or a peer: ways of registration, and a cache for those that keep it.
//!
//! Registering memory costs: pages are pinned and told to an adapter, or a descriptor is passed and mapped. Between "for
//! each RPC anew" and "once and for all" there are several ways, which the literature has measured against each other. They
//! differ in what is *registered* and how long; they must not differ in what a peer may *touch*: whatever lies beneath, a
//! region ([`QueuePair::register`](crate::QueuePair::register)) has exactly its bytes and its one right, and ends when it is
//! invalidated. `docs/registration.md` compares them.
//!
//! Each provider says by [`Provider::registrations`](crate::Provider::registrations) which ways make a difference to it.

mod cache;

use std::{fmt, str::FromStr};

pub use cache::{Cache, CacheBounds, CacheStats};

/// A way of registration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Registration {
    /// Each region is registered for itself, and its registration undone when it is invalidated.
    PerIo,
    /// What is costly beneath is prepared once; a region is opened in it and closed again by a cheaper operation: a
    /// memory window, a mapping of a descriptor that is known.
    Fast,
    /// Registrations of memory are kept for the next region in it, the least recently used given up first.
    Cache,
    /// Memory comes from a pool that is registered as a whole and for good.
    Pool,
}

/// Which way, and its bounds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RegistrationOptions {
    /// The way; the provider's own choice if not given: the fastest that lets a peer touch no more than an RPC's bytes.
    pub way: Option<Registration>,
    /// What a [`Registration::Cache`] may hold, on each queue pair or device, as the provider keeps them.
    pub cache: CacheBounds,
}

impl Registration {
    /// All of them, the slowest first.
    pub const ALL: [Self; 4] = [Self::PerIo, Self::Fast, Self::Cache, Self::Pool];

    /// As users write it.
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
        Self::ALL.into_iter().find(|way| way.name() == name).ok_or_else(|| format!("'{name}' is none of {names}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_way_is_read_as_it_is_written() {
        for way in Registration::ALL {
            assert_eq!(way.to_string().parse(), Ok(way));
        }
        assert!("frwr".parse::<Registration>().unwrap_err().contains("per-io, fast, cache, pool"));
    }
}
