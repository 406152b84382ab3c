//! The backchannel, seen from the side that calls: which session, connection and slot a callback goes by, and what its
//! outcome means for them (RFC 8881 §2.10.6.3, §20.9).
//!
//! A slot has one request at a time. One whose fate is unknown is sent again as it was, by any connection of the session;
//! if that cannot be done, the slot is lost with its sequence, and a session that has lost all its slots says so to the
//! client (`SEQ4_STATUS_BACKCHANNEL_FAULT`), which makes another.

use std::hash::Hash;

use nfs::v4::*;

use super::{
    State,
    client::Reach,
    session::{ConnectionId, Session, authentication},
};

/// The slots of a session's backchannel.
#[derive(Clone, Debug)]
pub struct BackSlots {
    slots: Vec<BackSlot>,
    /// Above this the client wants none used.
    target: u32,
}

#[derive(Clone, Copy, Debug)]
struct BackSlot {
    /// Of the next request.
    sequence: u32,
    stage: Stage,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Free,
    Busy,
    Lost,
}

/// The right to send one callback, which must be given back by [`State::end_callback`].
#[derive(Debug, PartialEq, Eq)]
#[must_use = "a slot that is never given back is lost"]
pub struct BackTicket {
    /// The slot.
    pub slot: Slotid4,
    /// Its sequence.
    pub sequence: Sequenceid4,
    /// The highest slot in use.
    pub highest: Slotid4,
}

/// What became of a callback, as far as its slot is concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BackOutcome {
    /// CB_SEQUENCE succeeded. The client wants no slot above this used.
    Executed(Slotid4),
    /// CB_SEQUENCE failed, or nothing was sent: the sequence has not been used.
    NotBegun,
    /// It may have been executed or not, and cannot be sent again.
    Unknown,
}

/// How a callback goes.
#[derive(Debug)]
pub struct BackCall {
    /// The session.
    pub session: Sessionid4,
    /// Its slot.
    pub ticket: BackTicket,
    /// The connections that it can go by.
    pub connections: Vec<ConnectionId>,
    /// The client's program.
    pub program: u32,
    /// How it is authenticated.
    pub security: CallbackSecParms4,
    /// The minor version.
    pub minorversion: u32,
    /// Most bytes of the call.
    pub request_max: u32,
}

/// Why a client cannot be called now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoPath {
    /// All slots are in use.
    Busy,
    /// No session has a connection for callbacks, or a slot that is not lost.
    Down,
    /// The client is gone.
    Gone,
}

impl BackSlots {
    /// As many as the client has, up to a bound of ours.
    pub(super) fn new(maxrequests: u32) -> Self {
        let count = maxrequests.clamp(1, SLOTS_MAX);
        let slots = vec![BackSlot { sequence: 1, stage: Stage::Free }; count as usize];
        Self { slots, target: count - 1 }
    }

    fn take(&mut self) -> Option<BackTicket> {
        let usable = self.slots.iter().take(self.target as usize + 1);
        let at = usable.enumerate().find(|(_, slot)| slot.stage == Stage::Free)?.0;
        self.slots[at].stage = Stage::Busy;
        let highest = self.slots.iter().rposition(|slot| slot.stage == Stage::Busy).expect("one has just been taken");
        let sequence = Sequenceid4(self.slots[at].sequence);
        Some(BackTicket { slot: Slotid4(at as u32), sequence, highest: Slotid4(highest as u32) })
    }

    fn give_back(&mut self, ticket: &BackTicket, outcome: BackOutcome) {
        let slot = &mut self.slots[ticket.slot.0 as usize];
        assert!(slot.stage == Stage::Busy && slot.sequence == ticket.sequence.0, "a ticket is used once");
        slot.stage = Stage::Free;
        match outcome {
            BackOutcome::Executed(target) => {
                slot.sequence = slot.sequence.wrapping_add(1);
                self.target = target.0.min(self.slots.len() as u32 - 1);
            }
            BackOutcome::NotBegun => {}
            BackOutcome::Unknown => slot.stage = Stage::Lost,
        }
    }

    /// Whether no slot will ever be free again.
    pub(super) fn is_lost(&self) -> bool {
        self.slots.iter().all(|slot| slot.stage == Stage::Lost)
    }
}

impl Session {
    /// Whether callbacks go by it.
    fn has_path(&self) -> bool {
        self.backchannel().next().is_some() && !self.back_slots.is_lost()
    }
}

impl<R: Clone, F: Clone + Eq + Hash> State<R, F> {
    /// Whether there is a way to call a client, and the last attempt has not failed.
    pub fn can_be_called(&self, client: Clientid4) -> bool {
        let client = self.clients.find(client).filter(|client| !client.callbacks_fail);
        client.is_some_and(|client| match &client.legacy {
            Some(legacy) => legacy.reach == Reach::Reached,
            None => client.sessions().any(Session::has_path),
        })
    }

    /// Takes a slot for a callback to a client, by this session if that is not all the same.
    ///
    /// # Errors
    /// See [`NoPath`].
    pub fn begin_callback(&mut self, client: Clientid4, by: Option<Sessionid4>) -> Result<BackCall, NoPath> {
        let found = self.clients.find_mut(client).ok_or(NoPath::Gone)?;
        let mut error = NoPath::Down;
        for session in found.sessions.iter_mut().filter(|session| by.is_none_or(|by| session.id == by)) {
            if !session.has_path() {
                continue;
            }
            let Some(ticket) = session.back_slots.take() else {
                error = NoPath::Busy;
                continue;
            };
            return Ok(BackCall {
                session: session.id,
                ticket,
                connections: session.backchannel().collect(),
                program: session.cb_program,
                security: session.cb_sec.clone(),
                minorversion: found.minorversion,
                request_max: session.back.maxrequestsize,
            });
        }
        Err(error)
    }

    /// The connections by which a session's callback can be sent again.
    pub fn callback_connections(&self, session: Sessionid4) -> Vec<ConnectionId> {
        self.session(session).map(|session| session.backchannel().collect()).unwrap_or_default()
    }

    /// Gives a slot back. Its session may be gone.
    pub fn end_callback(&mut self, session: Sessionid4, ticket: &BackTicket, outcome: BackOutcome) {
        if let Some(session) = self.session_mut(session) {
            session.back_slots.give_back(ticket, outcome);
        }
    }

    /// Notes whether a client could be called. The flags of SEQUENCE tell it.
    pub fn note_callback(&mut self, client: Clientid4, fails: bool) {
        if let Some(client) = self.clients.find_mut(client) {
            client.callbacks_fail = fails;
        }
    }

    /// BACKCHANNEL_CTL (§18.33), of the compound's session.
    ///
    /// # Errors
    /// BADSESSION; INVAL where there is no way to authenticate.
    pub fn backchannel_ctl(&mut self, session: Sessionid4, args: &BackchannelCtlArgs) -> Result<(), Nfsstat4> {
        let session = self.session_mut(session).ok_or(Nfsstat4::BadSession)?;
        if args.sec_parms.is_empty() {
            return Err(Nfsstat4::Inval);
        }
        session.cb_program = args.cb_program;
        session.cb_sec = authentication(&args.sec_parms);
        Ok(())
    }
}

/// Most callbacks of one session at a time.
const SLOTS_MAX: u32 = 16;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_counts_what_was_executed_and_is_lost_with_what_nobody_knows() {
        let mut slots = BackSlots::new(2);
        let first = slots.take().unwrap();
        let second = slots.take().unwrap();
        assert_eq!(
            (first.slot, first.sequence, second.slot, second.highest),
            (Slotid4(0), Sequenceid4(1), Slotid4(1), Slotid4(1))
        );
        assert_eq!(slots.take(), None);
        slots.give_back(&first, BackOutcome::Executed(Slotid4(1)));
        let third = slots.take().unwrap();
        assert_eq!((third.slot, third.sequence), (Slotid4(0), Sequenceid4(2)));
        slots.give_back(&third, BackOutcome::NotBegun);
        let again = slots.take().unwrap();
        assert_eq!(again.sequence, Sequenceid4(2), "it was not used");
        slots.give_back(&again, BackOutcome::Unknown);
        assert!(slots.take().is_none() && !slots.is_lost());
        slots.give_back(&second, BackOutcome::Executed(Slotid4(0)));
        assert_eq!(slots.take(), None, "the client wants slot 1 no more, and slot 0 is lost");
    }
}
