//! The recovery records of clients, and reclaims after a restart (RFC 8881 §8.4.2, §8.4.2.1, §18.51).
//!
//! A client is stored in the recovery database before its first OPEN is answered, or at RECLAIM_COMPLETE if it holds
//! state then. It stays stored until it is removed or loses any state. Another client may be granted what it has lost.
//! Therefore its record is marked as forfeited before that grant is answered, and restored when the client has
//! acknowledged the loss. Otherwise the client could reclaim after a restart what it has lost (§8.4.2.1). A client may
//! hold more state than when it was stored. That is safe, because after a restart nobody else gets new state before the
//! grace period is over. The callers of [`State::plan_open`] and [`State::poll_record`] write the records.
//!
//! The grace period waits for all stored clients. Therefore two kinds of clients are not stored, outside of a grace
//! period:
//!
//! - A client that has held no state for a quarter of a lease time. Its next OPEN stores it again before it is
//!   answered. A client that opens single files causes at most two writes in that time.
//! - A client that has been silent for a lease time. It must assume that others got its state, so they may get it after
//!   a restart. As long as nobody else wants the state, the client keeps it: its next request stores the record again
//!   and is answered only then.

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
    /// Begins the grace period, in which these clients may reclaim the state that they held before the restart.
    /// `records_lost` says that the records of others are lost.
    pub fn begin_grace(&mut self, clients: V4Clients, records_lost: bool) {
        self.grace = Some(clients);
        self.records_lost = records_lost;
    }

    /// Ends the grace period. Returns the number of clients whose records were removed or forfeited: a client that has
    /// not completed its reclaims cannot reclaim after the next restart, because others may now get that state (RFC
    /// 8881 §8.4.2.1). Version 4.0 has no RECLAIM_COMPLETE: its clients stay stored if they have returned.
    pub fn end_grace(&mut self) -> usize {
        let V4Clients { reclaiming, forfeited } = self.grace.take().unwrap_or_default();
        let mut dropped = 0;
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
            dropped += 1;
        }
        dropped
    }

    /// Returns `true` during the grace period.
    pub fn in_grace(&self) -> bool {
        self.grace.is_some()
    }

    /// Returns `true` if the grace period can end early: no client can reclaim any more, and no client wrongly assumes
    /// that it can.
    pub fn may_end_grace(&self) -> bool {
        self.grace.as_ref().is_some_and(|before| before.reclaiming.is_empty() && before.forfeited.is_empty())
    }

    /// Returns `true` if a client may reclaim.
    pub fn may_reclaim(&self, id: Clientid4) -> bool {
        let client = self.clients.find(id).filter(|client| client.confirmed && !client.reclaim_complete);
        client.is_some_and(|client| self.could_reclaim(&client.owner.ownerid.0))
    }

    /// Returns the status of a reclaim by a client that may not reclaim. NO_GRACE means that the client may have held
    /// the state, but that others may have been granted it since (§8.4.3).
    pub(in crate::v4::state) fn reclaim_error(&self, id: Clientid4) -> Nfsstat4 {
        let Some(before) = &self.grace else { return Nfsstat4::NoGrace };
        let has_lost = self.clients.find(id).is_some_and(|client| before.forfeited.contains(&client.owner.ownerid.0));
        //= rfc8881-8.4.3-3
        if has_lost || self.records_lost { Nfsstat4::NoGrace } else { Nfsstat4::ReclaimBad }
    }

    fn could_reclaim(&self, owner: &Bytes) -> bool {
        self.grace.as_ref().is_some_and(|before| before.reclaiming.contains(owner))
    }

    /// Notes RECLAIM_COMPLETE: the client knows what it holds. If the grace period ended before that, the client is
    /// stored from now on.
    pub(in crate::v4::state) fn note_reclaimed(&mut self, id: Clientid4) {
        let Some(client) = self.clients.find(id) else { return };
        let (owner, record) = (client.owner.ownerid.0.clone(), client.record);
        let forfeited = self.grace.as_mut().is_some_and(|before| {
            before.reclaiming.remove(&owner);
            before.forfeited.remove(&owner)
        });
        if record == Record::Late || (record == Record::None && forfeited) {
            self.rewrite_record(id);
        }
    }

    /// Returns the owner of a client that is about to get state and must be stored first.
    pub(in crate::v4::state) fn unstored_owner(&mut self, id: Clientid4, now: Instant) -> Option<Bytes> {
        let client = self.clients.record_mut(id)?;
        client.last_open_at = client.last_open_at.max(now);
        if !matches!(client.record, Record::None | Record::Pending) {
            return None;
        }
        client.record = Record::Pending;
        Some(client.owner.ownerid.0.clone())
    }

    /// Notes that the record of a client was written, or could not be. If the client has lost state in the meantime,
    /// the record is removed or forfeited again, because the first change may have preceded the write.
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

    /// Returns the next change of the recovery database. Changes must be stored in this order, before any reply that
    /// depends on them.
    pub fn poll_record(&mut self) -> Option<RecordChange> {
        self.records.pop_front()
    }

    /// Takes over the stored record of a client that is being confirmed, from before the server's or the client's
    /// restart.
    pub(in crate::v4::state) fn adopt_record(&mut self, id: Clientid4) {
        let Some(client) = self.clients.find(id) else { return };
        let is_stored = self.could_reclaim(&client.owner.ownerid.0);
        if let Some(client) = self.clients.find_mut(id).filter(|_| is_stored) {
            client.record = Record::Written;
        }
    }

    /// Notes that a client has lost some of its state.
    pub(in crate::v4::state) fn forfeit_record(&mut self, id: Clientid4) {
        let Some(client) = self.clients.find_mut(id).filter(|client| client.confirmed) else { return };
        let record = std::mem::replace(&mut client.record, Record::Forfeited);
        if !matches!(record, Record::Forfeited | Record::Late) && client.stored != Stored::Lapsed {
            self.records.push_back(RecordChange::Forfeit(client.owner.ownerid.0.clone()));
        }
    }

    /// Notes that a client has acknowledged all losses. It can reclaim its remaining state again.
    pub(in crate::v4::state) fn regain_record(&mut self, id: Clientid4) {
        let Some(client) = self.clients.find_mut(id).filter(|client| client.record == Record::Forfeited) else {
            return;
        };
        let knows = client.legacy.is_some() || client.reclaim_complete || self.grace.is_some();
        match knows {
            true => self.rewrite_record(id),
            false => client.record = Record::Late,
        }
    }

    /// Stores the record of a client that holds state, and removes the record of one that holds none.
    fn rewrite_record(&mut self, id: Clientid4) {
        let holds = self.stateids.count(id) > 0;
        let Some(client) = self.clients.find_mut(id) else { return };
        let owner = client.owner.ownerid.0.clone();
        let (record, change) = match holds {
            true => (Record::Written, RecordChange::Add(owner)),
            false => (Record::None, RecordChange::Remove(owner)),
        };
        (client.record, client.stored) = (record, Stored::Current);
        self.records.push_back(change);
    }

    /// Updates the records after a client was removed. `held` is `true` if it held state.
    pub(in crate::v4::state) fn drop_record(&mut self, client: &Client<R, F>, held: bool) {
        let owner = &client.owner.ownerid.0;
        match self.clients.confirmed(owner).and_then(|id| self.clients.find_mut(id)) {
            _ if client.record == Record::None || client.stored == Stored::Lapsed => {}
            // The next incarnation has the same owner.
            Some(next) if client.record.is_kept() && client.stored == Stored::Current => next.record = client.record,
            // This client does not assume that it can reclaim.
            _ if client.record == Record::Written && !held && self.grace.is_none() => {
                self.records.push_back(RecordChange::Retire(owner.clone()));
            }
            _ => {
                if let Some(before) = &mut self.grace {
                    before.reclaiming.remove(owner);
                    before.forfeited.remove(owner);
                }
                self.records.push_back(RecordChange::Remove(owner.clone()));
            }
        }
    }

    /// Removes records for which the grace period need not wait. All changes are written to storage at once. Must be
    /// called periodically. More frequent calls are cheap: the records are checked `RECORD_CHECKS` times in a lease
    /// time. Does nothing while storage fails, because nobody could be granted state before the change is stored.
    pub fn drop_unused_records(&mut self, now: Instant) {
        let lease = self.options.lease;
        if self.in_grace() || !self.storage_works || self.next_record_check.is_some_and(|next| now < next) {
            return;
        }
        self.next_record_check = Some(now + lease / RECORD_CHECKS);
        for (id, client) in self.clients.iter_mut() {
            if client.stored != Stored::Current || client.is_busy() || self.owners.is_busy(id) {
                continue;
            }
            let knows = client.reclaim_complete || client.legacy.is_some();
            let unused = now.saturating_duration_since(client.last_open_at) > lease / UNUSED_PART;
            let owner = client.owner.ownerid.0.clone();
            if client.record == Record::Written && knows && unused && self.stateids.count(id) == 0 {
                client.record = Record::None;
                self.records.push_back(RecordChange::Retire(owner));
            } else if !matches!(client.record, Record::None | Record::Pending) && client.time_since_request(now) > lease
            {
                client.stored = Stored::Lapsed;
                self.records.push_back(RecordChange::Remove(owner));
            }
        }
    }

    /// Checks that the record of a client is stored. If it was removed because the client was silent, this queues its
    /// storage.
    ///
    /// # Errors
    /// DELAY until it is stored.
    pub(in crate::v4::state) fn check_stored(&mut self, id: Clientid4) -> Result<(), Nfsstat4> {
        let Some(client) = self.clients.find_mut(id).filter(|client| client.stored != Stored::Current) else {
            return Ok(());
        };
        if client.stored == Stored::Lapsed {
            let owner = client.owner.ownerid.0.clone();
            let change = if client.record.is_kept() { RecordChange::Add(owner) } else { RecordChange::Forfeit(owner) };
            client.stored = Stored::Restoring;
            self.records.push_back(change);
        }
        Err(Nfsstat4::Delay)
    }

    /// Sets whether the recovery database can be written.
    pub fn set_storage_works(&mut self, works: bool) {
        self.storage_works = works;
    }

    /// Notes that changes from [`poll_record`](Self::poll_record) were stored, or could not be. A client whose record
    /// could not be stored again stays without a record: others may get its state.
    pub fn records_stored(&mut self, changes: &[RecordChange], stored: bool) {
        for change in changes {
            let owner = change.owner();
            let client = self.clients.confirmed(owner).and_then(|id| self.clients.find_mut(id));
            let Some(client) = client.filter(|client| client.stored == Stored::Restoring) else { continue };
            client.stored = if stored { Stored::Current } else { Stored::Lapsed };
            if !stored {
                self.records.push_back(RecordChange::Remove(owner.clone()));
            }
        }
    }
}

/// The record of a client without state is removed after this part of a lease time.
const UNUSED_PART: u32 = 4;
/// The number of checks for unneeded records in a lease time.
const RECORD_CHECKS: u32 = 16;
