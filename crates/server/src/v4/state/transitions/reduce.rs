//! What is asked back when there is too much of it: slots (RFC 8881 §2.10.6.1, §20.8) and delegations (§20.6).
//!
//! Each slot in use keeps a reply, and each delegation a record. From three quarters of what there may be of either on, whoever has
//! more than its share of a half is asked to make do with that: of slots by each SEQUENCE, and by CB_RECALL_SLOT, as it may
//! be silent; of delegations by CB_RECALL_ANY, which leaves to the client which of them it can spare. When less than a half
//! of all slots is in use, everybody may use again what its session was made with.
//!
//! A client need not do that, so the bytes of the reply cache are bounded by what sessions are granted when they are made: slots times
//! the largest reply that is cached (RFC 8881 §18.36.3 has the server lower both). What was granted is kept. A half of the cache is
//! divided among as many sessions as there can be, and each has that. Of the other half a host has no more than a quarter of what the
//! others have left, and a new session no more than a part of what its host can still have.

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
    /// Asks for what there is too much of. To be called now and then.
    pub fn relieve(&mut self, now: Instant) {
        self.relieve_slots();
        let full = self.stateids.recallable_count(RecallableKind::Delegation) > self.options.delegations_max / 4 * 3;
        let asked = self.load.delegations_asked.is_some_and(|asked| now < asked + ASK_EVERY);
        if full && !asked {
            self.load.delegations_asked = Some(now);
            self.relieve_delegations(now);
        }
    }

    /// The next thing that a client is to be asked for.
    pub fn poll_reduction(&mut self) -> Option<(Clientid4, Reduction)> {
        self.load.reductions.pop_front()
    }

    /// How many sessions a client may have now.
    pub(in crate::v4::state) fn sessions_max(&self, client: &Client<R, F>) -> usize {
        let options = &self.options;
        let half = options.sessions_max / 2;
        match client.group {
            Group::Strangers => 1,
            Group::Host(_) if self.clients.sessions_count() < half => options.client_sessions_max,
            Group::Host(_) => half / options.clients_max,
        }
    }

    /// The limits of another session of a client, and the bytes of the reply cache that it is granted beyond what every session is.
    pub(in crate::v4::state) fn grant(&self, client: &Client<R, F>, wanted: &ChannelAttrs4) -> (ChannelLimits, usize) {
        let channel = self.options.channel;
        let floor = self.options.replies_max / 2 / self.options.sessions_max;
        let cached = wanted.maxresponsesize_cached.min(channel.response_cached_max) as usize;
        let slots = wanted.maxrequests.min(channel.slots_max) as usize;
        let extra = (slots * charge(cached)).saturating_sub(floor).min(self.extra(client.group));
        let room = floor + extra;
        // Rather some slots of smaller replies than very few.
        let cached = if room < slots.min(SLOTS_SMALL) * charge(cached) { cached.min(floor) } else { cached };
        let slots = (room / charge(cached)).clamp(1, slots.max(1));
        let granted = (slots * charge(cached)).saturating_sub(floor);
        let limits = ChannelLimits { slots_max: slots as u32, response_cached_max: cached as u32, ..channel };
        (limits, granted)
    }

    /// Most bytes beyond what every session is granted that a new one of a group can have.
    fn extra(&self, group: Group) -> usize {
        if group == Group::Strangers {
            return 0;
        }
        let all = self.options.replies_max / 2;
        let (granted, own) = self.clients.hosts().granted(group);
        let most = all.saturating_sub(granted - own) / HOST_PART;
        most.saturating_sub(own) / SESSION_PART
    }

    fn relieve_slots(&mut self) {
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

    fn relieve_delegations(&mut self, now: Instant) {
        let mut holders = BTreeMap::<Clientid4, Vec<_>>::new();
        let all = self.stateids.all_recallables(RecallableKind::Delegation);
        all.for_each(|(client, other)| holders.entry(client).or_default().push(other));
        let share = (self.options.delegations_max / 2 / holders.len().max(1)).max(1);
        for (client, held) in holders.into_iter().filter(|(_, held)| held.len() > share) {
            if self.is_legacy(client) {
                // 4.0 has no such callback.
                held[share..].iter().for_each(|other| self.begin_recall(other, now));
            } else {
                self.load.reductions.push_back((client, Reduction::Delegations(share as u32)));
            }
        }
    }
}

/// What a slot is charged for a reply of so many bytes: small ones are kept unasked.
fn charge(cached: usize) -> usize {
    cached.max(REPLY_SMALL)
}

/// With fewer slots than this a session rather has smaller replies.
const SLOTS_SMALL: usize = 4;
/// A host is granted this part of what the others leave.
pub(in crate::v4::state) const HOST_PART: usize = 4;
/// A session is granted this part of what its host can still have.
const SESSION_PART: usize = 16;
/// A client has some time to give back before it is asked again.
const ASK_EVERY: Duration = Duration::from_secs(5);
