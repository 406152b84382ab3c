//! What of clients is remembered over a restart, and what they may reclaim after one (RFC 8881 §8.4.2, §8.4.2.1, §18.51).
//!
//! A client is remembered from its first OPEN on, before that is answered, or from RECLAIM_COMPLETE on, if it has something then;
//! until it is gone or has lost anything. What it has lost somebody else may have got, so it is forgotten before that is
//! answered, and remembered again when it has taken note: one that has not, and in another life reclaims all that it believes to
//! have, would get what it has lost (§8.4.2.1). That it may hold more, and believes to, is not forgotten: after a restart nobody
//! else may get anything before its lease is over. Where and how is for the caller of [`State::plan_open`] and
//! [`State::poll_record`].
//!
//! Grace lasts for those that are remembered, so two kinds of clients are not, outside of grace:
//!
//! - One that has held nothing for a quarter of a lease. Its next OPEN stores it again, before it is answered. A client that opens
//!   single files costs no more than two writes in that time.
//! - One that was silent for a lease. It knows that others may have what it held, so after a restart they may. As long as nobody
//!   wants it, it is still the client's: when the client speaks again it is stored again, and answered only then.

use std::{hash::Hash, time::Instant};

use bytes::Bytes;
use nfs::v4::{Clientid4, Nfsstat4};

use crate::{
    recovery::{RecordChange, V4Clients},
    v4::state::{
        State,
        client::Client,
        record::{Record, Stored},
    },
};

impl<R: Clone, F: Clone + Eq + Hash> State<R, F> {
    /// Begins the time in which what was held before a restart can be reclaimed, by those of these clients that may.
    pub fn begin_grace(&mut self, clients: V4Clients) {
        self.before = Some(clients);
    }

    /// Ends it, and says how many are crossed out: those that have not said that all is reclaimed can reclaim nothing in another
    /// life, as others may get now what they have not reclaimed (RFC 8881 §8.4.2.1). Version 4.0 has no way to say so: of its
    /// clients those are remembered that have come.
    pub fn end_grace(&mut self) -> usize {
        let V4Clients { reclaiming, forfeited } = self.before.take().unwrap_or_default();
        let mut crossed_out = 0;
        for owner in reclaiming.into_iter().chain(forfeited) {
            let id = self.clients.confirmed(&owner);
            let holds = id.is_some_and(|id| self.stateids.count(id) > 0);
            let change = match id.and_then(|id| self.clients.find_mut(id)) {
                Some(client) if client.record == Record::Forfeited => continue,
                Some(client) if client.record.is_kept() && client.legacy.is_some() => continue,
                Some(client) if client.record.is_kept() && holds => {
                    client.record = Record::Late;
                    RecordChange::Forfeit(owner)
                }
                Some(client) => {
                    client.record = Record::None;
                    RecordChange::Remove(owner)
                }
                None => RecordChange::Remove(owner),
            };
            self.records.push_back(change);
            crossed_out += 1;
        }
        crossed_out
    }

    /// Whether it is that time.
    pub fn in_grace(&self) -> bool {
        self.before.is_some()
    }

    /// Whether nobody has anything to reclaim any more, nor believes to have what he cannot reclaim, so that it may end.
    pub fn may_end_grace(&self) -> bool {
        self.before.as_ref().is_some_and(|before| before.reclaiming.is_empty() && before.forfeited.is_empty())
    }

    /// Whether a client may reclaim.
    pub fn may_reclaim(&self, id: Clientid4) -> bool {
        let client = self.clients.find(id).filter(|client| client.confirmed && !client.reclaim_complete);
        client.is_some_and(|client| self.could_reclaim(&client.owner.ownerid.0))
    }

    fn could_reclaim(&self, owner: &Bytes) -> bool {
        self.before.as_ref().is_some_and(|before| before.reclaiming.contains(owner))
    }

    /// A client has said that it has reclaimed all: it knows what it has. If grace had ended before, it is remembered from now on.
    pub(in crate::v4::state) fn has_reclaimed(&mut self, id: Clientid4) {
        let Some(client) = self.clients.find(id) else { return };
        let (owner, record) = (client.owner.ownerid.0.clone(), client.record);
        let forfeited = self.before.as_mut().is_some_and(|before| {
            before.reclaiming.remove(&owner);
            before.forfeited.remove(&owner)
        });
        if record == Record::Late || (record == Record::None && forfeited) {
            self.rewrite_record(id);
        }
    }

    /// The owner of a client that is to get something and is not remembered yet, and is to be now.
    pub(in crate::v4::state) fn unstored_owner(&mut self, id: Clientid4, now: Instant) -> Option<Bytes> {
        let client = self.clients.record_mut(id)?;
        client.wanted_at = client.wanted_at.max(now);
        if !matches!(client.record, Record::None | Record::Pending) {
            return None;
        }
        client.record = Record::Pending;
        Some(client.owner.ownerid.0.clone())
    }

    /// A client of this owner is remembered now; or is not, if it could not be. If it has lost something meanwhile, it is to be
    /// once more, and what was crossed out then is crossed out again: it may have been before it was written.
    pub fn client_stored(&mut self, id: Clientid4, owner: &Bytes, written: bool) {
        if let Some(client) = self.clients.record_mut(id).filter(|client| client.record == Record::Pending) {
            client.record = if written { Record::Written } else { Record::None };
        } else if written {
            match self.record_of(owner) {
                Record::Pending | Record::Written => {}
                Record::Forfeited | Record::Late => self.records.push_back(RecordChange::Forfeit(owner.clone())),
                Record::None => self.records.push_back(RecordChange::Remove(owner.clone())),
            }
        }
    }

    fn record_of(&self, owner: &Bytes) -> Record {
        let client = self.clients.confirmed(owner).and_then(|id| self.clients.find(id));
        client.map_or(Record::None, |client| client.record)
    }

    /// The next thing that is to be stored, in this order and before anybody hears of what it follows from.
    pub fn poll_record(&mut self) -> Option<RecordChange> {
        self.records.pop_front()
    }

    /// A client is confirmed, which may be remembered from before a restart, or from before its own.
    pub(in crate::v4::state) fn recall_record(&mut self, id: Clientid4) {
        let Some(client) = self.clients.find(id) else { return };
        let is_remembered = self.could_reclaim(&client.owner.ownerid.0);
        if let Some(client) = self.clients.find_mut(id).filter(|_| is_remembered) {
            client.record = Record::Written;
        }
    }

    /// A client has lost something that it held, and may hold more.
    pub(in crate::v4::state) fn lose_record(&mut self, id: Clientid4) {
        let Some(client) = self.clients.find_mut(id).filter(|client| client.confirmed) else { return };
        let record = std::mem::replace(&mut client.record, Record::Forfeited);
        if !matches!(record, Record::Forfeited | Record::Late) && client.stored != Stored::Lapsed {
            self.records.push_back(RecordChange::Forfeit(client.owner.ownerid.0.clone()));
        }
    }

    /// A client has taken note of all that it has lost. What it has kept it can reclaim again.
    pub(in crate::v4::state) fn regain_record(&mut self, id: Clientid4) {
        let Some(client) = self.clients.find_mut(id).filter(|client| client.record == Record::Forfeited) else {
            return;
        };
        let knows = client.legacy.is_some() || client.reclaim_complete || self.before.is_some();
        match knows {
            true => self.rewrite_record(id),
            false => client.record = Record::Late,
        }
    }

    /// A client knows what it holds: if it is anything it is to be remembered, and else to be forgotten.
    fn rewrite_record(&mut self, id: Clientid4) {
        let holds = self.stateids.count(id) > 0;
        let Some(client) = self.clients.find_mut(id) else { return };
        let owner = client.owner.ownerid.0.clone();
        let (record, change) = match holds {
            true => (Record::Written, RecordChange::Add(owner)),
            false => (Record::None, RecordChange::Remove(owner)),
        };
        (client.record, client.stored) = (record, Stored::AsIs);
        self.records.push_back(change);
    }

    /// A client is gone; `held` says whether it had anything until then.
    pub(in crate::v4::state) fn drop_record(&mut self, client: &Client<R, F>, held: bool) {
        let owner = &client.owner.ownerid.0;
        match self.clients.confirmed(owner).and_then(|id| self.clients.find_mut(id)) {
            _ if client.record == Record::None || client.stored == Stored::Lapsed => {}
            // Its next incarnation has the same name.
            Some(next) if client.record.is_kept() && client.stored == Stored::AsIs => next.record = client.record,
            // Nor does it believe to have what it could reclaim.
            _ if client.record == Record::Written && !held && self.before.is_none() => {
                self.records.push_back(RecordChange::Retire(owner.clone()));
            }
            _ => {
                if let Some(before) = &mut self.before {
                    before.reclaiming.remove(owner);
                    before.forfeited.remove(owner);
                }
                self.records.push_back(RecordChange::Remove(owner.clone()));
            }
        }
    }

    /// Forgets clients for which grace need not last. What follows waits for storage, once for all of them. To be called now and
    /// then; however often it is, it does so `FORGETS` times in a lease. Does nothing while nothing can be stored, because until
    /// the change was stored nobody could get anything.
    pub fn forget_records(&mut self, now: Instant) {
        let lease = self.options.lease;
        if self.in_grace() || !self.storage_works || self.next_forget.is_some_and(|next| now < next) {
            return;
        }
        self.next_forget = Some(now + lease / FORGETS);
        for (id, client) in self.clients.iter_mut() {
            if client.stored != Stored::AsIs || client.is_busy() || self.owners.is_busy(id) {
                continue;
            }
            let knows = client.reclaim_complete || client.legacy.is_some();
            let unused = now.saturating_duration_since(client.wanted_at) > lease / UNUSED_PART;
            let owner = client.owner.ownerid.0.clone();
            if client.record == Record::Written && knows && unused && self.stateids.count(id) == 0 {
                client.record = Record::None;
                self.records.push_back(RecordChange::Retire(owner));
            } else if !matches!(client.record, Record::None | Record::Pending) && client.unheard(now) > lease {
                client.stored = Stored::Lapsed;
                self.records.push_back(RecordChange::Remove(owner));
            }
        }
    }

    /// Whether a client that speaks again after its lease can be answered; if not, it is being stored as it was.
    ///
    /// # Errors
    /// DELAY until it is.
    pub(in crate::v4::state) fn check_stored(&mut self, id: Clientid4) -> Result<(), Nfsstat4> {
        let Some(client) = self.clients.find_mut(id).filter(|client| client.stored != Stored::AsIs) else {
            return Ok(());
        };
        if client.stored == Stored::Lapsed {
            let owner = client.owner.ownerid.0.clone();
            let change = if client.record.is_kept() { RecordChange::Add(owner) } else { RecordChange::Forfeit(owner) };
            client.stored = Stored::Returning;
            self.records.push_back(change);
        }
        Err(Nfsstat4::Delay)
    }

    /// Whether records can be stored now.
    pub fn set_storage_works(&mut self, works: bool) {
        self.storage_works = works;
    }

    /// What [`poll_record`](Self::poll_record) gave has been stored, or could not be. A client that was to be stored again is not
    /// then, and is not to be: as long as it is not, others may get what it holds.
    pub fn records_stored(&mut self, changes: &[RecordChange], stored: bool) {
        for change in changes {
            let owner = change.owner();
            let client = self.clients.confirmed(owner).and_then(|id| self.clients.find_mut(id));
            let Some(client) = client.filter(|client| client.stored == Stored::Returning) else { continue };
            client.stored = if stored { Stored::AsIs } else { Stored::Lapsed };
            if !stored {
                self.records.push_back(RecordChange::Remove(owner.clone()));
            }
        }
    }
}

/// A client that has held nothing for this part of a lease is not remembered.
const UNUSED_PART: u32 = 4;
/// How often in a lease's time clients are looked at for those that need not be remembered.
const FORGETS: u32 = 16;
