//! Requests to clients to return resources: slots (RFC 8881 §2.10.6.1, §20.8), delegations and layouts (§20.6).
//!
//! Each slot in use caches a reply, and each delegation and layout has a record. If three quarters of one limit are in use,
//! each client that has more than its equal share of half of the limit is asked to reduce to that share. For slots,
//! each SEQUENCE asks for it, and CB_RECALL_SLOT, because the client may be silent. For delegations and layouts, CB_RECALL_ANY
//! asks for it and leaves the choice to the client. When less than half of all slots is in use, all sessions may use their original
//! number again.
//!
//! A client need not comply. Therefore the bytes of the reply cache are bounded by what sessions are granted at their
//! creation: the number of slots times the largest cached reply (RFC 8881 §18.36.3 permits the server to lower both). A
//! grant stays until its session ends. Half of the cache is divided equally among the maximum number of sessions, so
//! each session has that share. Of the other half, a host gets at most a quarter of what the other hosts leave, and a
//! new session gets at most a part of what its host can still get.

use std::{
    collections::BTreeMap,
    hash::Hash,
    time::{Duration, Instant},
};

use nfs::v4::{ChannelAttrs4, Clientid4, Slotid4};

use crate::v4::state::{
    State, client::Client, hosts::Group, load::Reduction, recallable::RecallableKind, session::ChannelLimits,
    slot::REPLY_SMALL,
};

impl<R: Clone, F: Clone + Eq + Hash> State<R, F> {
    /// Asks clients to return resources, if too many are in use. Must be called periodically.
    pub fn reduce_load(&mut self, now: Instant) {
        self.reduce_slots();
        for kind in RecallableKind::ALL {
            let full = self.stateids.recallable_count(kind) > self.recallables_max(kind) / 4 * 3;
            let asked = self.load.asked.get(&kind).is_some_and(|asked| now < *asked + ASK_EVERY);
            if full && !asked {
                self.load.asked.insert(kind, now);
                self.reduce_recallables(kind, now);
            }
        }
    }

    /// Returns the next request to a client.
    pub fn poll_reduction(&mut self) -> Option<(Clientid4, Reduction)> {
        self.load.reductions.pop_front()
    }

    /// Returns the number of sessions that a client may have now.
    pub(in crate::v4::state) fn sessions_max(&self, client: &Client<R, F>) -> usize {
        let options = &self.options;
        let half = options.sessions_max / 2;
        match client.group {
            Group::NotAdmitted => 1,
            Group::Host(_) if self.clients.sessions_count() < half => options.client_sessions_max,
            Group::Host(_) => half / options.clients_max,
        }
    }

    /// Returns the limits of a new session of a client, and the bytes of the reply cache that it is granted beyond
    /// those that every session gets.
    pub(in crate::v4::state) fn grant(&self, client: &Client<R, F>, wanted: &ChannelAttrs4) -> (ChannelLimits, usize) {
        let channel = self.options.channel;
        let floor = self.options.replies_max / 2 / self.options.sessions_max;
        let cached = wanted.maxresponsesize_cached.min(channel.response_cached_max) as usize;
        let slots = wanted.maxrequests.min(channel.slots_max) as usize;
        let extra = (slots * slot_cost(cached)).saturating_sub(floor).min(self.extra_max(client.group));
        let room = floor + extra;
        // Prefer several slots with small cached replies to very few slots.
        let cached = if room < slots.min(SLOTS_SMALL) * slot_cost(cached) { cached.min(floor) } else { cached };
        let slots = (room / slot_cost(cached)).clamp(1, slots.max(1));
        let granted = (slots * slot_cost(cached)).saturating_sub(floor);
        let limits = ChannelLimits { slots_max: slots as u32, response_cached_max: cached as u32, ..channel };
        (limits, granted)
    }

    /// Returns the maximum bytes beyond those of every session that a new session of a group can get.
    fn extra_max(&self, group: Group) -> usize {
        if group == Group::NotAdmitted {
            return 0;
        }
        let all = self.options.replies_max / 2;
        let (granted, own) = self.clients.hosts().granted(group);
        let most = all.saturating_sub(granted - own) / HOST_PART;
        most.saturating_sub(own) / SESSION_PART
    }

    fn reduce_slots(&mut self) {
        let (max, count) = (self.options.slots_max, self.clients.sessions_count().max(1));
        let used_by =
            |client: &Client<R, F>| client.shard.close().all_slots().map(|(_, slots)| slots.in_use()).sum::<usize>();
        let used: usize = self.clients.iter().map(|(_, client)| used_by(client)).sum();
        if self.load.slots_asked && used < max / 2 {
            self.load.slots_asked = false;
            for (_, client) in self.clients.iter() {
                client.shard.close().all_slots().for_each(|(_, slots)| slots.set_target(Slotid4(u32::MAX)));
            }
        }
        if used <= max / 4 * 3 {
            return;
        }
        self.load.slots_asked = true;
        let share = (max / 2 / count).max(1);
        let target = Slotid4(u32::try_from(share - 1).unwrap_or(u32::MAX));
        for (id, client) in self.clients.iter() {
            for (session, slots) in client.shard.close().all_slots() {
                if slots.in_use() > share && slots.target_highest() > target {
                    slots.set_target(target);
                    self.load.reductions.push_back((id, Reduction::Slots(session, target)));
                }
            }
        }
    }

    fn reduce_recallables(&mut self, kind: RecallableKind, now: Instant) {
        let mut holders = BTreeMap::<Clientid4, Vec<_>>::new();
        let all = self.stateids.all_recallables(kind);
        all.for_each(|(client, other)| holders.entry(client).or_default().push(other));
        let share = (self.recallables_max(kind) / 2 / holders.len().max(1)).max(1);
        for (client, held) in holders.into_iter().filter(|(_, held)| held.len() > share) {
            if self.is_legacy(client) {
                // 4.0 has no CB_RECALL_ANY, and no layouts.
                held[share..].iter().for_each(|other| self.begin_recall(other, now));
            } else {
                self.load.reductions.push_back((client, Reduction::Recallables(kind, share as u32)));
            }
        }
    }
}

/// Returns the bytes that a slot uses for cached replies of at most `cached` bytes. Small replies are cached in any
/// case.
fn slot_cost(cached: usize) -> usize {
    cached.max(REPLY_SMALL)
}

/// A session with fewer slots than this gets smaller cached replies instead.
const SLOTS_SMALL: usize = 4;
/// The reciprocal of a host's part of what other hosts leave.
pub(in crate::v4::state) const HOST_PART: usize = 4;
/// The reciprocal of a session's part of what its host can still get.
const SESSION_PART: usize = 16;
/// The time between two requests for delegations, or for layouts of one kind.
const ASK_EVERY: Duration = Duration::from_secs(5);
