//! [`Callbacks`]: sends callbacks to clients, over the connections that they have bound to the backchannels of their
//! sessions.
//!
//! Read RFC 8881 §2.10.3.1 (backchannels), §2.10.6 (exactly-once semantics, which also apply in this direction) and
//! §20. [`state::transitions::back`](super::state::transitions::back) assigns session, slot and sequence ID of a
//! callback. This module sends the callback, sends it again over another connection if one is lost, and reports the
//! outcome to the slot. No lock is held while it waits for a client.
//!
//! On error the slot is released, and the state records that the client cannot be called: SEQUENCE reports that to the
//! client.

mod v40;

use std::{fmt, hash::Hash, net::SocketAddr, time::Duration};

use entropy::HashMap;
use nfs::v4::{
    CALLBACK_VERSION, CallbackSecParms4, Clientid4, Nfsstat4, Res4,
    callback::{CbArgop4, CbResop4, CbSequenceArgs, ReferringCall4, ReferringCallList4},
    compound::{CbCompoundArgs, CbCompoundRes},
};
use parking_lot::Mutex;
use rpc::{AuthSys, ClientError, ConnectionId, Credential, ReplyPlan, Reverse, ReverseTarget, TransportError};
use tokio::time::sleep;
use xdr::Array;

pub use self::v40::CallbackFlavors;
use self::v40::Outgoing;
use super::state::{
    State,
    back_slots::BackOutcome,
    ids::ReferringCall,
    transitions::back::{BackCall, CallbackSubject, NoPath},
};

/// The connections for callbacks.
#[derive(Default)]
pub struct Callbacks {
    peers: Mutex<HashMap<ConnectionId, Reverse>>,
    /// The connections to clients of 4.0, which have no backchannels.
    pub(in crate::v4) outgoing: Outgoing,
}

/// The reason for which a callback failed.
#[derive(Debug)]
pub enum CallbackError {
    /// No connection to the client is available.
    NoPath(NoPath),
    /// The client did not answer, or the answer was invalid.
    Failed(String),
    /// CB_SEQUENCE failed.
    Sequence(Nfsstat4),
}

impl fmt::Display for CallbackError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CallbackError::NoPath(NoPath::Busy) => f.write_str("all backchannel slots of the client are in use"),
            CallbackError::NoPath(NoPath::Down) => f.write_str("no connection is bound to a backchannel of the client"),
            CallbackError::NoPath(NoPath::Gone) => f.write_str("the client no longer exists"),
            CallbackError::Failed(why) => f.write_str(why),
            CallbackError::Sequence(status) => write!(f, "CB_SEQUENCE failed: {status:?}"),
        }
    }
}

impl std::error::Error for CallbackError {}

/// The outcome of one attempt to send a callback.
enum SendOutcome {
    Answered(CbCompoundRes),
    /// The callback was certainly not executed.
    Refused(String),
    /// The callback may have been executed.
    Unanswered(String),
}

impl Callbacks {
    /// Registers a new connection.
    pub fn connected(&self, peer: &Reverse) {
        self.peers.lock().insert(peer.connection(), peer.clone());
    }

    /// Removes a connection that is closed.
    pub fn disconnected(&self, connection: ConnectionId) {
        self.peers.lock().remove(&connection);
    }

    /// Returns the transport and the peer address of a connection.
    pub fn peer(&self, connection: ConnectionId) -> Option<(&'static str, SocketAddr)> {
        self.peers.lock().get(&connection)?.peer()
    }

    /// Sends one operation to a client and returns its result.
    ///
    /// # Errors
    /// See [`CallbackError`]. The client may have executed the operation although this fails.
    pub async fn call<R: Clone, F: Clone + Eq + Hash>(
        &self,
        state: &Mutex<State<R, F>>,
        client: Clientid4,
        operation: &CbArgop4,
    ) -> Result<CbResop4, CallbackError> {
        self.call_about(state, client, CallbackSubject::default(), operation).await
    }

    /// Like [`call`](Self::call), for an operation with a subject.
    ///
    /// # Errors
    /// Those of [`call`](Self::call).
    pub async fn call_about<R: Clone, F: Clone + Eq + Hash>(
        &self,
        state: &Mutex<State<R, F>>,
        client: Clientid4,
        about: CallbackSubject,
        operation: &CbArgop4,
    ) -> Result<CbResop4, CallbackError> {
        let listener = state.lock().listener40(client);
        if let Some(listener) = listener {
            let result = self.outgoing.call(client, &listener, operation).await;
            state.lock().note_callback(client, result.is_err());
            return result;
        }
        let mut tries = 0;
        let result = loop {
            let result = match begin(state, client, &about).await {
                Ok(call) => self.call_in_slot(state, call, operation).await,
                Err(error) => Err(CallbackError::NoPath(error)),
            };
            match result {
                // §20.9.3: the client is not ready for callbacks, for example while it recovers, or has not received
                // the reply to the referring call.
                Err(CallbackError::Sequence(Nfsstat4::Delay)) if tries < DELAYS_MAX => {
                    tries += 1;
                    sleep(PAUSE * tries).await;
                }
                result => break result,
            }
        };
        // A client that answers DELAY can be called.
        let works = |error: &CallbackError| {
            matches!(error, CallbackError::NoPath(NoPath::Busy) | CallbackError::Sequence(Nfsstat4::Delay))
        };
        let fails = result.as_ref().is_err_and(|error| !works(error));
        state.lock().note_callback(client, fails);
        result
    }

    async fn call_in_slot<R: Clone, F: Clone + Eq + Hash>(
        &self,
        state: &Mutex<State<R, F>>,
        call: BackCall,
        operation: &CbArgop4,
    ) -> Result<CbResop4, CallbackError> {
        // If this future is dropped, the slot is released too. The outcome is then unknown.
        let mut slot = Slot { state, call, outcome: BackOutcome::Unknown };
        let args = compound(&slot.call, operation);
        //= rfc8881-18.36.3-17 rfc8881-18.36.3-18
        let target = ReverseTarget::new(slot.call.program, CALLBACK_VERSION, &credential(&slot.call.security));
        match self.send(state, &slot.call, &target, &args).await {
            SendOutcome::Answered(results) => {
                let (outcome, result) = outcome_of(results);
                slot.outcome = outcome;
                result
            }
            SendOutcome::Refused(why) => {
                slot.outcome = BackOutcome::NotBegun;
                Err(CallbackError::Failed(why))
            }
            SendOutcome::Unanswered(why) => Err(CallbackError::Failed(why)),
        }
    }

    /// Sends a callback over one connection after the other until one succeeds, always as the same request of its slot.
    async fn send<R: Clone, F: Clone + Eq + Hash>(
        &self,
        state: &Mutex<State<R, F>>,
        call: &BackCall,
        target: &ReverseTarget,
        args: &CbCompoundArgs,
    ) -> SendOutcome {
        let mut tried = Vec::new();
        let mut connections = call.connections.clone();
        let mut last = SendOutcome::Refused("all connections of the backchannel are closed".to_owned());
        //= rfc8881-18.46.3-9 rfc8881-2.10.13.2.4-1
        while let Some(connection) = connections.into_iter().find(|connection| !tried.contains(connection)) {
            tried.push(connection);
            let peer = self.peers.lock().get(&connection).cloned();
            if let Some(peer) = peer {
                match (attempt(&peer, target, args).await, &last) {
                    (SendOutcome::Answered(results), _) => return SendOutcome::Answered(results),
                    // An attempt without an answer may have been executed, whatever the outcome of later attempts.
                    (SendOutcome::Refused(_), SendOutcome::Unanswered(_)) => {}
                    (sent, _) => last = sent,
                }
            }
            // Other connections may have been bound by now.
            connections = state.lock().callback_connections(call.session);
        }
        last
    }
}

/// Acquires a slot. Waits if all are in use, with exponential backoff, because many calls may wait.
async fn begin<R: Clone, F: Clone + Eq + Hash>(
    state: &Mutex<State<R, F>>,
    client: Clientid4,
    about: &CallbackSubject,
) -> Result<BackCall, NoPath> {
    for tries in 0..BUSY_MAX {
        let begun = state.lock().begin_callback(client, about);
        match begun {
            Err(NoPath::Busy) => sleep(PAUSE * (1 << tries)).await,
            begun => return begun,
        }
    }
    Err(NoPath::Busy)
}

/// A slot in use. Dropping it releases the slot with `outcome`.
struct Slot<'a, R: Clone, F: Clone + Eq + Hash> {
    state: &'a Mutex<State<R, F>>,
    call: BackCall,
    outcome: BackOutcome,
}

impl<R: Clone, F: Clone + Eq + Hash> Drop for Slot<'_, R, F> {
    fn drop(&mut self) {
        self.state.lock().end_callback(self.call.session, &self.call.ticket, self.outcome);
    }
}

async fn attempt(peer: &Reverse, target: &ReverseTarget, args: &CbCompoundArgs) -> SendOutcome {
    let plan = ReplyPlan { inline_max: REPLY_MAX, ..ReplyPlan::default() };
    match peer.call::<CbCompoundRes>(target, nfs::v4::PROC_COMPOUND, args, (plan, TIMEOUT)).await {
        Ok(answer) => SendOutcome::Answered(answer.results),
        Err(failed) => {
            let why = failed.error.to_string();
            match failed.error {
                ClientError::Denied(_)
                | ClientError::NotExecuted(_)
                | ClientError::Transport(TransportError::TooLong { .. } | TransportError::Refused(_)) => {
                    SendOutcome::Refused(why)
                }
                _ => SendOutcome::Unanswered(why),
            }
        }
    }
}

fn compound(call: &BackCall, operation: &CbArgop4) -> CbCompoundArgs {
    let sequence = CbSequenceArgs {
        sessionid: call.session,
        sequenceid: call.ticket.sequence,
        slotid: call.ticket.slot,
        highest_slotid: call.ticket.highest,
        // All callbacks are idempotent.
        cachethis: false,
        //= rfc8881-2.10.6.3-1
        referring_call_lists: Array(call.referring.iter().map(referring_list).collect()),
    };
    let argarray = vec![CbArgop4::Sequence(sequence), operation.clone()];
    CbCompoundArgs { tag: "".into(), minorversion: call.minorversion, callback_ident: 0, argarray }
}

fn referring_list(call: &ReferringCall) -> ReferringCallList4 {
    let one = ReferringCall4 { sequenceid: call.sequence, slotid: call.slot };
    ReferringCallList4 { sessionid: call.session, referring_calls: Array(vec![one]) }
}

/// Returns the outcome for the slot, and the result of the operation.
fn outcome_of(results: CbCompoundRes) -> (BackOutcome, Result<CbResop4, CallbackError>) {
    let mut resarray = results.resarray.into_iter();
    let target = match resarray.next() {
        Some(CbResop4::Sequence(Res4::Ok(ok))) => ok.target_highest_slotid,
        Some(CbResop4::Sequence(Res4::Fail(status))) => {
            // With these errors the sequence IDs of client and server differ. With any other error the client did not
            // begin.
            let lost = matches!(status, Nfsstat4::SeqMisordered | Nfsstat4::SeqFalseRetry | Nfsstat4::BadSlot);
            let outcome = if lost { BackOutcome::Unknown } else { BackOutcome::NotBegun };
            return (outcome, Err(CallbackError::Sequence(status)));
        }
        _ => return (BackOutcome::NotBegun, Err(CallbackError::Sequence(results.status))),
    };
    let done = BackOutcome::Executed(target);
    match resarray.next() {
        Some(result) => {
            tracing::debug!(?result, "a client answered a callback");
            (done, Ok(result))
        }
        None => (done, Err(CallbackError::Failed("the reply has no result for the operation".to_owned()))),
    }
}

fn credential(security: &CallbackSecParms4) -> Credential {
    match security {
        CallbackSecParms4::Sys(parms) => Credential::Sys(AuthSys {
            stamp: parms.stamp,
            machine: parms.machinename.0.clone(),
            uid: parms.uid,
            gid: parms.gid,
            gids: parms.gids.iter().copied().collect(),
        }),
        CallbackSecParms4::None | CallbackSecParms4::RpcsecGss(_) => Credential::None,
    }
}

/// The time after which a callback fails.
const TIMEOUT: Duration = Duration::from_secs(15);
/// The unit of the pauses between polls for a free slot, and between attempts at a client that is not ready.
const PAUSE: Duration = Duration::from_millis(50);
const BUSY_MAX: u32 = 7;
const DELAYS_MAX: u32 = 10;
/// The maximum bytes of a reply: that of CB_GETATTR, with a margin.
pub(super) const REPLY_MAX: usize = 512;
