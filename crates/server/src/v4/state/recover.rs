//! What of clients is remembered over a restart, and what they may reclaim after one (RFC 8881 §8.4.2, §8.4.2.1, §18.51).
//!
//! A client is remembered from its first OPEN on, before that is answered, or from RECLAIM_COMPLETE on, if it has something then;
//! until it is gone or has lost anything. What it has lost somebody else may have got, so it is forgotten before that is
//! answered, and remembered again when it has taken note: one that has not, and in another life reclaims all that it believes to
//! have, would get what it has lost (§8.4.2.1). Where and how is for whoever asks [`State::unremembered`] and
//! [`State::poll_record`].

use std::{collections::HashSet, hash::Hash};

use bytes::Bytes;
use nfs::v4::Clientid4;

use super::{State, client::Client};

/// Whether a client is remembered over a restart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Record {
    None,
    /// It is being written.
    Pending,
    Written,
    /// It has lost something and not taken note, and is not to be remembered before it has.
    Forfeited,
}

impl Record {
    /// Whether it is remembered, or soon will be.
    pub(super) fn is_kept(self) -> bool {
        matches!(self, Self::Pending | Self::Written)
    }
}

/// What is to be made of the record of an owner, on stable storage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RecordChange {
    /// It is to be remembered.
    Add(Bytes),
    /// It is to be remembered no more.
    Remove(Bytes),
}

impl<R: Clone, F: Clone + Eq + Hash> State<R, F> {
    /// Begins the time in which what was held before a restart can be reclaimed, by the clients of these owners.
    pub fn begin_grace(&mut self, owners: HashSet<Bytes>) {
        self.reclaiming = Some(owners);
    }

    /// Ends it. The owners that have not said that all is reclaimed are to be remembered no more: others may get now what
    /// these have not reclaimed, and in another life they could (RFC 8881 §8.4.2.1). Version 4.0 has no way to say so: of
    /// its clients those are remembered that have come.
    pub fn end_grace(&mut self) -> Vec<Bytes> {
        let mut late = self.reclaiming.take().unwrap_or_default();
        let remembered = self.clients.iter().filter(|(_, client)| client.record.is_kept());
        for id in remembered.map(|(id, _)| id).collect::<Vec<_>>() {
            let client = self.clients.find_mut(id).expect("it was there");
            let owner = &client.owner.ownerid.0;
            if client.minorversion == 0 {
                late.remove(owner);
            } else if late.contains(owner) {
                client.record = Record::None;
            }
        }
        late.into_iter().collect()
    }

    /// Whether it is that time.
    pub fn in_grace(&self) -> bool {
        self.reclaiming.is_some()
    }

    /// Whether nobody has anything to reclaim any more, so that it may end.
    pub fn may_end_grace(&self) -> bool {
        self.reclaiming.as_ref().is_some_and(HashSet::is_empty)
    }

    /// Whether a client may reclaim.
    pub fn may_reclaim(&self, id: Clientid4) -> bool {
        let client = self.clients.find(id).filter(|client| client.confirmed && !client.reclaim_complete);
        client.zip(self.reclaiming.as_ref()).is_some_and(|(client, names)| names.contains(&client.owner.ownerid.0))
    }

    /// Whether a client has anything.
    pub fn holds(&self, id: Clientid4) -> bool {
        self.stateids.count(id) > 0
    }

    /// The owner of a client that is to get something and is not remembered yet, and is to be now.
    pub fn unremembered(&mut self, id: Clientid4) -> Option<Bytes> {
        let client = self.clients.find_mut(id)?;
        if !matches!(client.record, Record::None | Record::Pending) {
            return None;
        }
        client.record = Record::Pending;
        Some(client.owner.ownerid.0.clone())
    }

    /// A client of this owner is remembered now; or is not, if it could not be. If it has lost something meanwhile, it is to be
    /// once more, and what was crossed out then is crossed out again: it may have been before it was written.
    pub fn remembered(&mut self, id: Clientid4, owner: &Bytes, written: bool) {
        if let Some(client) = self.clients.find_mut(id).filter(|client| client.record == Record::Pending) {
            client.record = if written { Record::Written } else { Record::None };
        } else if written && !self.is_remembered(owner) {
            self.records.push_back(RecordChange::Remove(owner.clone()));
        }
    }

    fn is_remembered(&self, owner: &Bytes) -> bool {
        let client = self.clients.confirmed(owner).and_then(|id| self.clients.find(id));
        client.is_some_and(|client| client.record.is_kept())
    }

    /// The next thing that is to be stored, in this order and before anybody hears of what it follows from.
    pub fn poll_record(&mut self) -> Option<RecordChange> {
        self.records.pop_front()
    }

    /// A client is confirmed, which may be remembered from before a restart, or from before its own.
    pub(super) fn recall_record(&mut self, id: Clientid4) {
        let Some(client) = self.clients.find_mut(id) else { return };
        let owner = &client.owner.ownerid.0;
        if self.reclaiming.as_ref().is_some_and(|names| names.contains(owner)) {
            client.record = Record::Written;
        }
    }

    /// A client has lost something that it held.
    pub(super) fn lose_record(&mut self, id: Clientid4) {
        let Some(client) = self.clients.find_mut(id) else { return };
        if std::mem::replace(&mut client.record, Record::Forfeited).is_kept() {
            self.records.push_back(RecordChange::Remove(client.owner.ownerid.0.clone()));
        }
    }

    /// A client has taken note of all that it has lost. What it has kept it can reclaim again.
    pub(super) fn regain_record(&mut self, id: Clientid4) {
        let holds = self.holds(id);
        let Some(client) = self.clients.find_mut(id).filter(|client| client.record == Record::Forfeited) else {
            return;
        };
        client.record = if holds { Record::Written } else { Record::None };
        if holds {
            self.records.push_back(RecordChange::Add(client.owner.ownerid.0.clone()));
        }
    }

    /// A client is gone.
    pub(super) fn drop_record(&mut self, client: &Client) {
        if !client.record.is_kept() {
            return;
        }
        let owner = &client.owner.ownerid.0;
        match self.clients.confirmed(owner).and_then(|id| self.clients.find_mut(id)) {
            // Its next incarnation has the same name.
            Some(next) => next.record = client.record,
            None => self.records.push_back(RecordChange::Remove(owner.clone())),
        }
    }
}
