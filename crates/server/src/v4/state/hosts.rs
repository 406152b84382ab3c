//! [`Hosts`]: how much of the client table and of the reply cache each host has.
//!
//! A host has clients, ranked by how little is lost with each, and bytes of the reply cache beyond what every session is granted.
//! Hosts that no export admits are one, with a small share: addresses cost them nothing.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use nfs::v4::Clientid4;
use rpc::Host;

/// Who shares what there is for clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Share {
    /// All hosts that no export admits.
    Strangers,
    /// A host that may use an export.
    Host(Host),
}

/// How little a client has done, and so how little is lost with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Rank {
    /// It has not confirmed itself.
    Unconfirmed,
    /// It has never called by what it has made.
    Idle,
    /// Anything else.
    InUse,
}

/// A client in the order of its share: by rank, and then by age.
pub(super) type Position = (Rank, u64, Clientid4);

/// All shares that have clients.
#[derive(Debug, Default)]
pub(super) struct Hosts {
    shares: BTreeMap<Share, Members>,
    by_count: BTreeSet<(usize, Share)>,
    /// Bytes of the reply cache that all were granted.
    granted: usize,
}

#[derive(Debug, Default)]
struct Members {
    clients: BTreeSet<Position>,
    granted: usize,
}

impl Share {
    pub(super) fn of(peer: IpAddr, admitted: bool) -> Self {
        if admitted { Self::Host(Host::of(peer)) } else { Self::Strangers }
    }
}

impl Hosts {
    pub(super) fn insert(&mut self, share: Share, client: Position) {
        self.change(share, |members| _ = members.clients.insert(client));
    }

    pub(super) fn remove(&mut self, share: Share, client: Position) {
        self.change(share, |members| _ = members.clients.remove(&client));
    }

    /// Grants a client of a share so many bytes of the reply cache.
    pub(super) fn grant(&mut self, share: Share, bytes: usize) {
        self.granted += bytes;
        self.change(share, |members| members.granted += bytes);
    }

    /// Takes them back.
    pub(super) fn revoke(&mut self, share: Share, bytes: usize) {
        self.granted -= bytes;
        self.change(share, |members| members.granted -= bytes);
    }

    /// Bytes of the reply cache that all were granted, and that one share was.
    pub(super) fn granted(&self, share: Share) -> (usize, usize) {
        (self.granted, self.shares.get(&share).map_or(0, |members| members.granted))
    }

    /// How many clients a share has.
    pub(super) fn count(&self, share: Share) -> usize {
        self.shares.get(&share).map_or(0, |members| members.clients.len())
    }

    /// The share with the most clients but for one, and how many.
    pub(super) fn heaviest(&self, but: Share) -> Option<(usize, Share)> {
        self.by_count.iter().rev().find(|(_, share)| *share != but).copied()
    }

    /// The clients of a share that have a rank, the oldest first.
    pub(super) fn ranked(&self, share: Share, rank: Rank) -> impl Iterator<Item = Clientid4> {
        self.range(share, (rank, 0), (rank, u64::MAX))
    }

    /// Those in use: from a place on that `random` decides, and then those before it.
    pub(super) fn in_use(&self, share: Share, random: u64) -> impl Iterator<Item = Clientid4> {
        let members = self.shares.get(&share).map(|members| &members.clients);
        let ends = members.and_then(|clients| Some((clients.first()?.1, clients.last()?.1)));
        let (first, last) = ends.unwrap_or_default();
        let (first, last) = (first.min(last), first.max(last));
        let from = first + random % (last - first + 1);
        let behind = self.range(share, (Rank::InUse, from), (Rank::InUse, u64::MAX));
        behind.chain(self.range(share, (Rank::InUse, 0), (Rank::InUse, from)))
    }

    fn range(&self, share: Share, from: (Rank, u64), to: (Rank, u64)) -> impl Iterator<Item = Clientid4> {
        let members = self.shares.get(&share).into_iter();
        let range = (from.0, from.1, Clientid4(0))..(to.0, to.1, Clientid4(0));
        members.flat_map(move |members| members.clients.range(range.clone())).map(|(_, _, id)| *id)
    }

    fn change(&mut self, share: Share, change: impl FnOnce(&mut Members)) {
        let members = self.shares.entry(share).or_default();
        let before = members.clients.len();
        change(members);
        let after = members.clients.len();
        if before != after {
            self.by_count.remove(&(before, share));
            self.by_count.insert((after, share));
        }
        if after == 0 {
            self.by_count.remove(&(after, share));
            if members.granted == 0 {
                self.shares.remove(&share);
            }
        }
    }

    /// Checks that it agrees with the clients, which are those, with what each has been granted.
    #[cfg(test)]
    pub(super) fn check(&self, clients: impl Iterator<Item = (Share, Position, usize)>) {
        let mut recount = BTreeMap::<Share, Members>::new();
        for (share, position, granted) in clients {
            let members = recount.entry(share).or_default();
            assert!(members.clients.insert(position), "two of one position");
            members.granted += granted;
        }
        let all = |shares: &BTreeMap<Share, Members>| format!("{shares:?}");
        assert_eq!(all(&self.shares), all(&recount));
        assert_eq!(self.granted, recount.values().map(|members| members.granted).sum::<usize>());
        let counts = recount.iter().map(|(share, members)| (members.clients.len(), *share));
        assert_eq!(self.by_count, counts.collect::<BTreeSet<_>>());
    }
}
