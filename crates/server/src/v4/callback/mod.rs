//! [`Callbacks`]: the calls that a server makes to its clients, by the connections that they have bound to the
//! backchannels of their sessions.
//!
//! Read RFC 8881 §2.10.3.1 (backchannels), §2.10.6 (exactly once, which is the same in this direction) and §20. Which
//! session, slot and sequence a callback has is for [`state::transitions::back`](super::state::transitions::back) to say; here it is sent, again by
//! another connection if one is lost, and its outcome is told to the slot. Nothing is held while a client is waited for.
//!
//! On error the slot has been given back, and the client is noted as one that cannot be called: SEQUENCE tells it so.

mod v40;

use std::{collections::HashMap, fmt, hash::Hash, net::SocketAddr, time::Duration};

use nfs::v4::{
    CALLBACK_VERSION, CallbackSecParms4, Clientid4, Nfsstat4, Res4, Sessionid4,
    callback::{CbArgop4, CbResop4, CbSequenceArgs},
    compound::{CbCompoundArgs, CbCompoundRes},
};
use parking_lot::Mutex;
use rpc::{AuthSys, ClientError, ConnectionId, Credential, ReplyPlan, Reverse, ReverseTarget, TransportError};
use tokio::time::sleep;

use self::v40::Outgoing;
use super::state::{
    State,
    back_slots::BackOutcome,
    transitions::back::{BackCall, NoPath},
};

/// The connections that clients can be called by.
#[derive(Default)]
pub struct Callbacks {
    peers: Mutex<HashMap<ConnectionId, Reverse>>,
    /// Those of 4.0 are called otherwise.
    pub(in crate::v4) outgoing: Outgoing,
}

/// Why a client was not called.
#[derive(Debug)]
pub enum CallbackError {
    /// There is no way to it.
    NoPath(NoPath),
    /// It did not answer, or not by what was asked.
    Failed(String),
    /// CB_SEQUENCE failed.
    Sequence(Nfsstat4),
}

impl fmt::Display for CallbackError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CallbackError::NoPath(NoPath::Busy) => f.write_str("all slots of its backchannels are in use"),
            CallbackError::NoPath(NoPath::Down) => f.write_str("no connection is bound to a backchannel of its"),
            CallbackError::NoPath(NoPath::Gone) => f.write_str("it is gone"),
            CallbackError::Failed(why) => f.write_str(why),
            CallbackError::Sequence(status) => write!(f, "CB_SEQUENCE failed: {status:?}"),
        }
    }
}

impl std::error::Error for CallbackError {}

/// What one attempt to send a callback came to.
enum Sent {
    Answered(CbCompoundRes),
    /// It was not executed, for certain.
    Refused(String),
    /// It may have been executed.
    Unanswered(String),
}

impl Callbacks {
    /// A connection has begun.
    pub fn connected(&self, peer: &Reverse) {
        self.peers.lock().insert(peer.connection(), peer.clone());
    }

    /// A connection is over.
    pub fn disconnected(&self, connection: ConnectionId) {
        self.peers.lock().remove(&connection);
    }

    /// By which transport and from where a connection has come.
    pub fn peer(&self, connection: ConnectionId) -> Option<(&'static str, SocketAddr)> {
        self.peers.lock().get(&connection)?.peer()
    }

    /// Has a client execute one operation, and gives its result.
    ///
    /// # Errors
    /// See [`CallbackError`]. The operation may have been executed where it was sent.
    pub async fn call<R: Clone, F: Clone + Eq + Hash>(
        &self,
        state: &Mutex<State<R, F>>,
        client: Clientid4,
        operation: &CbArgop4,
    ) -> Result<CbResop4, CallbackError> {
        self.call_by(state, client, None, operation).await
    }

    /// The same, by one session of the client's if it is that which the operation is about.
    ///
    /// # Errors
    /// The same.
    pub async fn call_by<R: Clone, F: Clone + Eq + Hash>(
        &self,
        state: &Mutex<State<R, F>>,
        client: Clientid4,
        session: Option<Sessionid4>,
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
            let result = match begin(state, client, session).await {
                Ok(call) => self.call_in_slot(state, call, operation).await,
                Err(error) => Err(CallbackError::NoPath(error)),
            };
            match result {
                // §20.9.3: the client is not ready for it, as while it recovers.
                Err(CallbackError::Sequence(Nfsstat4::Delay)) if tries < DELAYS_MAX => {
                    tries += 1;
                    sleep(PAUSE * tries).await;
                }
                result => break result,
            }
        };
        let fails = matches!(&result, Err(error) if !matches!(error, CallbackError::NoPath(NoPath::Busy)));
        state.lock().note_callback(client, fails);
        result
    }

    async fn call_in_slot<R: Clone, F: Clone + Eq + Hash>(
        &self,
        state: &Mutex<State<R, F>>,
        call: BackCall,
        operation: &CbArgop4,
    ) -> Result<CbResop4, CallbackError> {
        // A slot is given back also if nobody waits for this any more: then nobody knows what became of it.
        let mut slot = Slot { state, call, outcome: BackOutcome::Unknown };
        let args = compound(&slot.call, operation);
        //= rfc8881-18.36.3-17 rfc8881-18.36.3-18
        let target = ReverseTarget::new(slot.call.program, CALLBACK_VERSION, &credential(&slot.call.security));
        match self.send(state, &slot.call, &target, &args).await {
            Sent::Answered(results) => {
                let (outcome, result) = judge(results);
                slot.outcome = outcome;
                result
            }
            Sent::Refused(why) => {
                slot.outcome = BackOutcome::NotBegun;
                Err(CallbackError::Failed(why))
            }
            Sent::Unanswered(why) => Err(CallbackError::Failed(why)),
        }
    }

    /// Sends a callback by one connection after the other, always as the same request of its slot.
    async fn send<R: Clone, F: Clone + Eq + Hash>(
        &self,
        state: &Mutex<State<R, F>>,
        call: &BackCall,
        target: &ReverseTarget,
        args: &CbCompoundArgs,
    ) -> Sent {
        let mut tried = Vec::new();
        let mut connections = call.connections.clone();
        let mut last = Sent::Refused("its connections are gone".to_owned());
        //= rfc8881-18.46.3-9
        while let Some(connection) = connections.into_iter().find(|connection| !tried.contains(connection)) {
            tried.push(connection);
            let peer = self.peers.lock().get(&connection).cloned();
            if let Some(peer) = peer {
                match (attempt(&peer, target, args).await, &last) {
                    (Sent::Answered(results), _) => return Sent::Answered(results),
                    // What was sent once may have been executed, whatever became of it later.
                    (Sent::Refused(_), Sent::Unanswered(_)) => {}
                    (sent, _) => last = sent,
                }
            }
            // There may be others by now.
            connections = state.lock().callback_connections(call.session);
        }
        last
    }
}

/// Takes a slot, and waits for one for a while; ever longer, as there can be many that wait.
async fn begin<R: Clone, F: Clone + Eq + Hash>(
    state: &Mutex<State<R, F>>,
    client: Clientid4,
    session: Option<Sessionid4>,
) -> Result<BackCall, NoPath> {
    for tries in 0..BUSY_MAX {
        let begun = state.lock().begin_callback(client, session);
        match begun {
            Err(NoPath::Busy) => sleep(PAUSE * (1 << tries)).await,
            begun => return begun,
        }
    }
    Err(NoPath::Busy)
}

/// A slot that is in use.
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

async fn attempt(peer: &Reverse, target: &ReverseTarget, args: &CbCompoundArgs) -> Sent {
    let plan = ReplyPlan { inline_max: REPLY_MAX, ..ReplyPlan::default() };
    match peer.call::<CbCompoundRes>(target, nfs::v4::PROC_COMPOUND, args, (plan, PATIENCE)).await {
        Ok(answer) => Sent::Answered(answer.results),
        Err(failed) => {
            let why = failed.error.to_string();
            match failed.error {
                ClientError::Denied(_)
                | ClientError::NotExecuted(_)
                | ClientError::Transport(TransportError::TooLong { .. } | TransportError::Refused(_)) => {
                    Sent::Refused(why)
                }
                _ => Sent::Unanswered(why),
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
        // Whatever is asked of clients may be asked twice.
        cachethis: false,
        referring_call_lists: Default::default(),
    };
    let argarray = vec![CbArgop4::Sequence(sequence), operation.clone()];
    CbCompoundArgs { tag: "".into(), minorversion: call.minorversion, callback_ident: 0, argarray }
}

/// What the results say of the slot, and of the operation.
fn judge(results: CbCompoundRes) -> (BackOutcome, Result<CbResop4, CallbackError>) {
    let mut resarray = results.resarray.into_iter();
    let target = match resarray.next() {
        Some(CbResop4::Sequence(Res4::Ok(ok))) => ok.target_highest_slotid,
        Some(CbResop4::Sequence(Res4::Fail(status))) => {
            // These say that the client counts otherwise than we do; any other, that it has not begun.
            let lost = matches!(status, Nfsstat4::SeqMisordered | Nfsstat4::SeqFalseRetry | Nfsstat4::BadSlot);
            let outcome = if lost { BackOutcome::Unknown } else { BackOutcome::NotBegun };
            return (outcome, Err(CallbackError::Sequence(status)));
        }
        _ => return (BackOutcome::NotBegun, Err(CallbackError::Sequence(results.status))),
    };
    let done = BackOutcome::Executed(target);
    match resarray.next() {
        Some(result) => {
            tracing::debug!(?result, "a client was called");
            (done, Ok(result))
        }
        None => (done, Err(CallbackError::Failed("it answered less than it was asked".to_owned()))),
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

/// How long a client may take for a callback.
const PATIENCE: Duration = Duration::from_secs(15);
/// Between looks for a free slot, and attempts at a client that is not ready.
const PAUSE: Duration = Duration::from_millis(50);
const BUSY_MAX: u32 = 7;
const DELAYS_MAX: u32 = 10;
/// Most bytes of a reply: CB_GETATTR's, with room.
pub(super) const REPLY_MAX: usize = 512;
