//! What is asked back when there is too much of it: slots (RFC 8881 §2.10.6.1, §20.8) and delegations (§20.6).
//!
//! Each slot in use keeps a reply, and each delegation a record. From three quarters of what there may be of either on, whoever has
//! more than its share of a half is asked to make do with that: of slots by each SEQUENCE, and by CB_RECALL_SLOT, as it may
//! be silent; of delegations by CB_RECALL_ANY, which leaves to the client which of them it can spare. When less than a half
//! of all slots is in use, everybody may use again what its session was made with. As a client need not heed that, sessions are made
//! with fewer slots where there are very many.

use std::{
    collections::{BTreeMap, VecDeque},
    hash::Hash,
    time::{Duration, Instant},
};

use nfs::v4::{Clientid4, Sessionid4, Slotid4};

use super::{State, session::ChannelLimits};

/// What a client is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ask {
    /// To use no slot of a session above this.
    Slots(Sessionid4, Slotid4),
    /// To keep no more than so many delegations.
    Delegations(u32),
}

/// What there is beside the sessions and stateids.
#[derive(Debug, Default)]
pub(super) struct Load {
    asks: VecDeque<(Clientid4, Ask)>,
    /// Slots that all sessions were made with.
    pub(super) slots_granted: usize,
    /// Whether sessions have been asked to make do with fewer slots than they were made with.
    slots_asked: bool,
    /// When delegations were asked for.
    delegations_asked: Option<Instant>,
}

impl Load {
    /// Whether nobody is to be asked.
    pub(super) fn is_settled(&self) -> bool {
        self.asks.is_empty()
    }
}

impl<R: Clone, F: Clone + Eq + Hash> State<R, F> {
    /// Asks for what there is too much of. To be called now and then.
    pub fn relieve(&mut self, now: Instant) {
        self.relieve_slots();
        let full = self.stateids.delegations_count() > self.options.delegations_max / 4 * 3;
        let asked = self.load.delegations_asked.is_some_and(|asked| now < asked + ASK_EVERY);
        if full && !asked {
            self.load.delegations_asked = Some(now);
            self.relieve_delegations(now);
        }
    }

    /// The next thing that a client is to be asked for.
    pub fn poll_ask(&mut self) -> Option<(Clientid4, Ask)> {
        self.load.asks.pop_front()
    }

    /// How many sessions a client may have now, and the limits of another one.
    pub(super) fn room_for_sessions(&self) -> (usize, ChannelLimits) {
        let options = &self.options;
        let half = options.sessions_max / 2;
        let sessions =
            if self.sessions.len() < half { options.client_sessions_max } else { half / options.clients_max };
        let all = options.channel.slots_max;
        let left = options.slots_granted_max.saturating_sub(self.load.slots_granted);
        // As many as it likes until a half of all are granted.
        let slots = left / (options.slots_granted_max / 2 / all as usize).max(1);
        let slots = u32::try_from(slots).unwrap_or(u32::MAX).clamp(SESSION_SLOTS_MIN.min(all), all);
        (sessions, ChannelLimits { slots_max: slots, ..options.channel })
    }

    fn relieve_slots(&mut self) {
        let (max, sessions) = (self.options.slots_max, self.sessions.len().max(1));
        let used: usize = self.sessions.values().map(|session| session.slots.in_use()).sum();
        if self.load.slots_asked && used < max / 2 {
            self.load.slots_asked = false;
            self.sessions.values_mut().for_each(|session| session.slots.set_target(Slotid4(u32::MAX)));
        }
        if used <= max / 4 * 3 {
            return;
        }
        self.load.slots_asked = true;
        let share = (max / 2 / sessions).max(1);
        let target = Slotid4(u32::try_from(share - 1).unwrap_or(u32::MAX));
        for (id, session) in &mut self.sessions {
            if session.slots.in_use() > share && session.slots.target_highest() > target {
                session.slots.set_target(target);
                self.load.asks.push_back((session.clientid, Ask::Slots(*id, target)));
            }
        }
    }

    fn relieve_delegations(&mut self, now: Instant) {
        let mut holders = BTreeMap::<Clientid4, Vec<_>>::new();
        self.stateids.all_delegations().for_each(|(client, other)| holders.entry(client).or_default().push(other));
        let share = (self.options.delegations_max / 2 / holders.len().max(1)).max(1);
        for (client, held) in holders.into_iter().filter(|(_, held)| held.len() > share) {
            if self.is_legacy(client) {
                // 4.0 has no such callback.
                held[share..].iter().for_each(|other| self.begin_recall(other, now));
            } else {
                self.load.asks.push_back((client, Ask::Delegations(share as u32)));
            }
        }
    }
}

/// A session has so many slots, however many there are.
const SESSION_SLOTS_MIN: u32 = 4;
/// A client has some time to give back before it is asked again.
const ASK_EVERY: Duration = Duration::from_secs(5);
