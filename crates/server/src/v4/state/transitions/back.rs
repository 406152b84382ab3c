//! The backchannel, seen from the side that calls: which session, connection and slot a callback goes by, and what its
//! outcome means for them (RFC 8881 §2.10.6.3, §20.9).
//!
//! A slot has one request at a time. One whose fate is unknown is sent again as it was, by any connection of the session;
//! if that cannot be done, the slot is lost with its sequence, and a session that has lost all its slots says so to the
//! client (`SEQ4_STATUS_BACKCHANNEL_FAULT`), which makes another.

use std::hash::Hash;

use nfs::v4::*;

use crate::v4::state::{
    State,
    back_slots::{BackOutcome, BackTicket},
    client::Reach,
    session::{ConnectionId, Session, authentication},
};

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
