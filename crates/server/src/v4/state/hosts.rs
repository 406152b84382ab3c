//! [`Hosts`]: the share of the client table and of the reply cache that each host uses.
//!
//! A host has clients, ranked by how little is lost if one is evicted, and bytes of the reply cache beyond those that
//! every session gets. All hosts that no export admits are one group with a small share, because a hostile peer can use
//! many addresses.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use nfs::v4::Clientid4;
use rpc::Host;

/// The clients that have a common share of the limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Group {
    /// All hosts that no export or referral admits.
    NotAdmitted,
    /// An admitted host.
    Host(Host),
}

/// The use that a client has made of its ID. Clients of a low rank are evicted first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Rank {
    /// The client is not confirmed.
    Unconfirmed,
    /// The client is confirmed and has not sent a request by its session.
    Idle,
    /// All other clients.
    InUse,
}

/// The position of a client in its group: by rank, then by age.
pub(super) type Position = (Rank, u64, Clientid4);

/// All groups that have clients.
#[derive(Debug, Default)]
pub(super) struct Hosts {
    groups: BTreeMap<Group, Members>,
    by_count: BTreeSet<(usize, Group)>,
    /// The bytes of the reply cache that were granted to all groups.
    granted: usize,
}

#[derive(Debug, Default)]
struct Members {
    clients: BTreeSet<Position>,
    granted: usize,
}

impl Group {
    pub(super) fn of(peer: IpAddr, admitted: bool) -> Self {
        if admitted { Self::Host(Host::of(peer)) } else { Self::NotAdmitted }
    }
}

impl Hosts {
    pub(super) fn insert(&mut self, group: Group, client: Position) {
        self.change(group, |members| _ = members.clients.insert(client));
    }

    pub(super) fn remove(&mut self, group: Group, client: Position) {
        self.change(group, |members| _ = members.clients.remove(&client));
    }

    /// Grants `bytes` of the reply cache to a group.
    pub(super) fn grant(&mut self, group: Group, bytes: usize) {
        self.granted += bytes;
        self.change(group, |members| members.granted += bytes);
    }

    /// Takes back `bytes` of the reply cache from a group.
    pub(super) fn revoke(&mut self, group: Group, bytes: usize) {
        self.granted -= bytes;
        self.change(group, |members| members.granted -= bytes);
    }

    /// Returns the bytes of the reply cache that were granted to all groups, and to one group.
    pub(super) fn granted(&self, group: Group) -> (usize, usize) {
        (self.granted, self.groups.get(&group).map_or(0, |members| members.granted))
    }

    /// Returns the number of clients of a group.
    pub(super) fn count(&self, group: Group) -> usize {
        self.groups.get(&group).map_or(0, |members| members.clients.len())
    }

    /// Returns the group with the most clients, with their number. Ignores `except`.
    pub(super) fn largest_except(&self, except: Group) -> Option<(usize, Group)> {
        self.by_count.iter().rev().find(|(_, group)| *group != except).copied()
    }

    /// Returns the clients of a group with the given rank, the oldest first.
    pub(super) fn ranked(&self, group: Group, rank: Rank) -> impl Iterator<Item = Clientid4> {
        self.range(group, (rank, 0), (rank, u64::MAX))
    }

    /// Returns the clients in use, beginning at a position that `random` selects, then those before it.
    pub(super) fn in_use(&self, group: Group, random: u64) -> impl Iterator<Item = Clientid4> {
        let members = self.groups.get(&group).map(|members| &members.clients);
        let ends = members.and_then(|clients| Some((clients.first()?.1, clients.last()?.1)));
        let (first, last) = ends.unwrap_or_default();
        let (first, last) = (first.min(last), first.max(last));
        let from = first + random % (last - first + 1);
        let behind = self.range(group, (Rank::InUse, from), (Rank::InUse, u64::MAX));
        behind.chain(self.range(group, (Rank::InUse, 0), (Rank::InUse, from)))
    }

    fn range(&self, group: Group, from: (Rank, u64), to: (Rank, u64)) -> impl Iterator<Item = Clientid4> {
        let members = self.groups.get(&group).into_iter();
        let range = (from.0, from.1, Clientid4(0))..(to.0, to.1, Clientid4(0));
        members.flat_map(move |members| members.clients.range(range.clone())).map(|(_, _, id)| *id)
    }

    fn change(&mut self, group: Group, change: impl FnOnce(&mut Members)) {
        let members = self.groups.entry(group).or_default();
        let before = members.clients.len();
        change(members);
        let after = members.clients.len();
        if before != after {
            self.by_count.remove(&(before, group));
            self.by_count.insert((after, group));
        }
        if after == 0 {
            self.by_count.remove(&(after, group));
            if members.granted == 0 {
                self.groups.remove(&group);
            }
        }
    }

    /// Checks the tables against the list of all clients, with the bytes that were granted to each.
    #[cfg(test)]
    pub(super) fn check(&self, clients: impl Iterator<Item = (Group, Position, usize)>) {
        let mut recount = BTreeMap::<Group, Members>::new();
        for (group, position, granted) in clients {
            let members = recount.entry(group).or_default();
            assert!(members.clients.insert(position), "two clients must not have the same position");
            members.granted += granted;
        }
        let all = |groups: &BTreeMap<Group, Members>| format!("{groups:?}");
        assert_eq!(all(&self.groups), all(&recount));
        assert_eq!(self.granted, recount.values().map(|members| members.granted).sum::<usize>());
        let counts = recount.iter().map(|(group, members)| (members.clients.len(), *group));
        assert_eq!(self.by_count, counts.collect::<BTreeSet<_>>());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group(host: u8) -> Group {
        Group::of([192, 0, 2, host].into(), true)
    }

    #[test]
    fn granted_bytes_are_counted_for_each_group_and_in_all() {
        let mut hosts = Hosts::default();
        let client = (Rank::InUse, 1, Clientid4(1));
        hosts.insert(group(1), client);
        hosts.grant(group(1), 100);
        hosts.grant(group(2), 30);
        assert_eq!([1, 2, 3].map(|host| hosts.granted(group(host))), [(130, 100), (130, 30), (130, 0)]);
        hosts.revoke(group(1), 40);
        assert_eq!([1, 2].map(|host| hosts.granted(group(host))), [(90, 60), (90, 30)]);
        hosts.revoke(group(1), 60);
        hosts.revoke(group(2), 30);
        hosts.remove(group(1), client);
        assert!(hosts.groups.is_empty() && hosts.by_count.is_empty());
    }

    #[test]
    fn clients_in_use_begin_at_a_random_one_and_all_follow() {
        let mut hosts = Hosts::default();
        (5..10).for_each(|serial| hosts.insert(group(1), (Rank::InUse, serial, Clientid4(serial))));
        for random in 0..20 {
            let mut expected: Vec<u64> = (5..10).collect();
            expected.rotate_left(random as usize % 5);
            assert!(hosts.in_use(group(1), random).map(|id| id.0).eq(expected), "{random}");
        }
    }
}
