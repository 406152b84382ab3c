//! The backchannel, on the side that calls: selects session, connections and slot of a callback, and handles its
//! outcome (RFC 8881 §2.10.6.3, §20.9).
//!
//! A slot has at most one request. If the outcome of a request is unknown, the same request is sent again over any
//! connection of the session. If that is impossible, the slot is lost, because its sequence ID is unknown. If all slots
//! of a session are lost, SEQUENCE reports that to the client (`SEQ4_STATUS_BACKCHANNEL_FAULT`), which creates another
//! session.

use std::hash::Hash;

use nfs::v4::*;
use smallvec::SmallVec;

use crate::v4::state::{
    State,
    back_slots::{BackOutcome, BackTicket},
    client::Reach,
    ids::{ReferringCall, client_of},
    session::{ConnectionId, Session, authentication},
};

/// The subject of a callback.
#[derive(Clone, Copy, Debug, Default)]
pub struct CallbackSubject {
    /// The session whose backchannel must carry the callback, if the callback is about one session.
    pub session: Option<Sessionid4>,
    /// The recallable state to which the callback refers.
    pub state: Option<Stateid4>,
    /// The request that created other state to which the callback refers.
    pub created_by: Option<ReferringCall>,
}

/// A callback to be sent.
#[derive(Debug)]
pub struct BackCall {
    /// The session.
    pub session: Sessionid4,
    /// Its slot.
    pub ticket: BackTicket,
    /// The connections over which it can be sent.
    pub connections: Vec<ConnectionId>,
    /// The client's program.
    pub program: u32,
    /// The credentials.
    pub security: CallbackSecParms4,
    /// The minor version.
    pub minorversion: u32,
    /// The maximum bytes of the call.
    pub request_max: u32,
    /// The request that created the state to which the callback refers, if the client may not have received its reply.
    pub referring: Option<ReferringCall>,
}

/// The reason for which a client cannot be called now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoPath {
    /// All slots are in use.
    Busy,
    /// No session has a connection for callbacks, or a slot that is not lost.
    Down,
    /// The client was removed.
    Gone,
}

impl<R: Clone, F: Clone + Eq + Hash> State<R, F> {
    /// Returns `true` if there is a callback path to a client and the last callback did not fail.
    pub fn can_be_called(&self, client: Clientid4) -> bool {
        let client = self.clients.find(client).filter(|client| !client.callbacks_fail);
        client.is_some_and(|client| match &client.legacy {
            Some(legacy) => legacy.reach == Reach::Reached,
            None => client.sessions().any(|session| client.may_call_over(session) && session.has_callback_path()),
        })
    }

    /// Acquires a slot for a callback to a client.
    ///
    /// # Errors
    /// See [`NoPath`].
    pub fn begin_callback(&mut self, client: Clientid4, about: &CallbackSubject) -> Result<BackCall, NoPath> {
        let (by, referring) = (about.session, self.referring_call(about));
        let found = self.clients.find(client).ok_or(NoPath::Gone)?;
        let admitted = |session: &&Session| by.map_or_else(|| found.may_call_over(session), |by| session.id == by);
        let paths = found.sessions().filter(admitted).filter(|session| session.has_callback_path());
        let paths: SmallVec<[Sessionid4; 4]> = paths.map(|session| session.id).collect();
        let minorversion = found.minorversion;
        let mut error = NoPath::Down;
        for id in paths {
            let session = self.session_mut(id).expect("it was found above");
            let Some(security) = session.cb_sec.clone() else { continue };
            let Some(ticket) = session.back_slots.acquire() else {
                error = NoPath::Busy;
                continue;
            };
            return Ok(BackCall {
                session: session.id,
                ticket,
                connections: session.backchannel().collect(),
                program: session.cb_program,
                security,
                minorversion,
                request_max: session.back.maxrequestsize,
                referring,
            });
        }
        Err(error)
    }

    /// Returns the request that created the state to which a callback refers. Returns `None` if the client has shown that
    /// it has received the reply: the callback can then no longer arrive before the reply (§2.10.6.3).
    fn referring_call(&self, about: &CallbackSubject) -> Option<ReferringCall> {
        let granted_by = || self.stateids.recallable(&about.state?.other)?.granted_by;
        let call = about.created_by.or_else(granted_by)?;
        let client = self.clients.find(client_of(&call.session))?;
        //= rfc8881-2.10.6.3-1
        client.shard.may_be_outstanding(&call).then_some(call)
    }

    /// Returns the connections over which a session's callback can be sent again.
    pub fn callback_connections(&self, session: Sessionid4) -> Vec<ConnectionId> {
        self.session(session).map(|session| session.backchannel().collect()).unwrap_or_default()
    }

    /// Releases a slot. Its session may have been destroyed.
    pub fn end_callback(&mut self, session: Sessionid4, ticket: &BackTicket, outcome: BackOutcome) {
        if let Some(session) = self.session_mut(session) {
            session.back_slots.release(ticket, outcome);
        }
    }

    /// Notes the outcome of the last callback to a client. The flags of SEQUENCE report a failure.
    pub fn note_callback(&mut self, client: Clientid4, fails: bool) {
        if let Some(client) = self.clients.find_mut(client) {
            client.callbacks_fail = fails;
        }
    }

    /// Executes BACKCHANNEL_CTL (§18.33), for the compound's session.
    ///
    /// # Errors
    /// BADSESSION; INVAL if no credentials are offered.
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
