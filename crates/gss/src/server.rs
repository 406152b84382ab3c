//! [`GssServer`]: RPCSEC_GSS on the server side (RFC 2203 §5.2, §5.3.3).
//!
//! The table of contexts belongs to the process, not to a connection: a client can negotiate a context over one
//! connection and use it over another, of another transport. Linux negotiates over TCP what it uses over RDMA.
//!
//! A transmission is checked in this order: the context exists, the verifier is correct, the sequence number is allowed
//! and new. Nothing of the state changes before the verifier has been checked. The first transmission with a correct
//! verifier proves a context: a token that was replayed makes only contexts that are never proved.
//!
//! Hosts that the server does not admit cannot negotiate: their tokens are denied before they are decoded.

use std::{
    sync::{Arc, atomic::AtomicU64},
    time::Duration,
};

use bytes::Bytes;
use parking_lot::{Mutex, RwLock};
use rpc::{
    AuthStat, Host, Identity, OpaqueAuth,
    security::{Accepted, Authentication, Claim, Principal, Protection, ServerFlavor, Tampered, Verdict},
};
use tokio::{task::spawn_blocking, time::Instant};
use xdr::{Decode, Encoder, Message};

use crate::{
    mechanism::{Acceptor, Established, GssError, Negotiation, Step, StepFailed, major},
    queue::Queue,
    table::{NewContext, Removed, ServerContext, Table},
    window::WINDOW,
    wire::{self, Control, GssCredential, InitArgument, InitResult, MAXSEQ, RPCSEC_GSS, Service, pseudo_flavor},
};

/// Limits of a [`GssServer`].
#[derive(Clone, Copy, Debug)]
pub struct GssLimits {
    /// Maximum number of proved contexts. Beyond it, the principal with the longest tokens or the most contexts loses
    /// one. There can be a quarter as many unproved ones in addition.
    pub contexts_max: usize,
    /// Maximum number of proved contexts of one principal. Beyond it, the principal loses one.
    pub contexts_per_principal: usize,
    /// Maximum number of unproved contexts of one host. Beyond it, the host loses the oldest one.
    pub unproved_per_host: usize,
    /// Maximum length of the tokens of all contexts in bytes, because the library keeps them. Unproved contexts have a
    /// quarter of it.
    pub tokens_max: usize,
    /// Maximum number of negotiations that wait for another token.
    pub half_open_max: usize,
    /// Maximum number of such negotiations of one host.
    pub half_open_per_host: usize,
    /// Maximum number of threads that negotiate.
    pub threads: usize,
    /// Maximum number of these threads that work for one host.
    pub threads_per_host: usize,
    /// Maximum number of calls of one host that wait for a thread or use one. Further calls are dropped.
    pub waiting_per_host: usize,
}

impl Default for GssLimits {
    fn default() -> Self {
        Self {
            contexts_max: 16 << 10,
            contexts_per_principal: 1024,
            unproved_per_host: 256,
            tokens_max: 64 << 20,
            half_open_max: 256,
            half_open_per_host: 16,
            threads: 4,
            threads_per_host: 2,
            waiting_per_host: 256,
        }
    }
}

/// The flavour RPCSEC_GSS of a server.
///
/// ```
/// # fn run(nfs: impl rpc::Service) -> Result<(), gss::mechanism::GssError> {
/// use gss::{GssServer, kerberos::KerberosAcceptor};
///
/// let acceptor = KerberosAcceptor::open("nfs@server.example.com", Some("/etc/krb5.keytab".into()))?;
/// let server = rpc::Server::builder().service(nfs).flavor(GssServer::new(acceptor, Default::default())).build();
/// # Ok(()) }
/// ```
pub struct GssServer {
    acceptor: Arc<dyn Acceptor>,
    table: RwLock<Table>,
    /// The number of uses of all contexts.
    uses: Arc<AtomicU64>,
    queue: Queue,
    /// The time of the last warning about a failed negotiation.
    warned: Mutex<Option<Instant>>,
}

impl GssServer {
    /// Creates the flavour with the keys of `acceptor`.
    pub fn new(acceptor: impl Acceptor, limits: GssLimits) -> Arc<Self> {
        let table = Table::new(limits);
        Arc::new(Self {
            acceptor: Arc::new(acceptor),
            uses: table.uses(),
            table: RwLock::new(table),
            queue: Queue::new(limits),
            warned: Mutex::default(),
        })
    }

    /// Returns the name of the local user who belongs to an authenticated principal, by the rules of the mechanism's
    /// configuration. This can block: call it on a thread that may.
    pub fn local_name(&self, principal: &[u8]) -> Option<String> {
        self.acceptor.local_name(principal)
    }

    /// Returns the number of established contexts.
    pub fn contexts(&self) -> usize {
        self.table.read().len()
    }

    /// Decides about a transmission in an established context.
    fn data(&self, claim: &Claim<'_>, credential: &GssCredential) -> Verdict {
        let Some(context) = self.table.read().find(&credential.handle, Instant::now()) else {
            return Verdict::Denied(AuthStat::GssCredProblem);
        };
        let OpaqueAuth { flavor, body } = &claim.header.verifier;
        if *flavor != RPCSEC_GSS {
            return Verdict::Denied(AuthStat::BadVerf);
        }
        // RFC 2203 §5.3.3.4.2: a failed verification of the header.
        if let Err(error) = context.context.verify(claim.signed, body) {
            tracing::debug!(peer = %claim.peer, %error, "the verifier of a call is wrong");
            return Verdict::Denied(AuthStat::GssCredProblem);
        }
        context.note_use(&self.uses);
        if !context.is_proved() {
            let removed = self.table.write().prove(&context);
            self.discard(removed);
        }
        if credential.sequence >= MAXSEQ {
            return Verdict::Denied(AuthStat::GssCtxProblem);
        }
        if !context.window.lock().admit(credential.sequence) {
            tracing::debug!(peer = %claim.peer, sequence = credential.sequence, "dropping a replayed transmission");
            return Verdict::Dropped;
        }
        let protection = ProtectedReply { context, service: credential.service, sequence: credential.sequence };
        if credential.control == Control::Destroy {
            return self.destroy(claim, credential, &protection);
        }
        let name = protection.context.principal.clone();
        let caller = Identity::Principal(Principal { name, pseudo_flavor: pseudo_flavor(credential.service) });
        Verdict::Accepted(Accepted { caller, protection: Some(Box::new(protection)) })
    }

    /// Removes a context (RFC 2203 §5.4).
    fn destroy(&self, claim: &Claim<'_>, credential: &GssCredential, reply: &ProtectedReply) -> Verdict {
        if claim.header.procedure != NULL {
            return Verdict::Denied(AuthStat::BadCred);
        }
        // The lock is released before the context is dropped.
        let removed = self.table.write().remove(&credential.handle);
        drop(removed);
        match reply.verifier() {
            Ok(verifier) => Verdict::Answered { verifier, results: Bytes::new() },
            Err(Tampered) => Verdict::Dropped,
        }
    }

    /// Processes a token of a client.
    async fn negotiate(&self, credential: GssCredential, token: Bytes, host: Host) -> Verdict {
        let Some(turn) = self.queue.turn(host).await else {
            tracing::debug!(%host, "dropping a negotiation: too many of this host wait");
            return Verdict::Dropped;
        };
        let (begun, tokens) = match credential.control {
            Control::ContinueInit => match self.table.write().resume(&credential.handle, host, Instant::now()) {
                Some((negotiation, tokens)) => (Some(negotiation), tokens),
                None => return Verdict::Denied(AuthStat::GssCredProblem),
            },
            _ => (None, 0),
        };
        let tokens = tokens + token.len();
        let acceptor = self.acceptor.clone();
        // A connection that closes drops this future, but the thread continues, so it keeps the turn.
        let work = move || {
            let _turn = turn;
            step(&*acceptor, begun, &token)
        };
        let outcome = match self.acceptor.blocks() {
            false => work(),
            true => match spawn_blocking(work).await {
                Ok(outcome) => outcome,
                Err(error) => {
                    tracing::error!(%host, %error, "a negotiation failed");
                    return Verdict::Dropped;
                }
            },
        };
        self.answer(outcome, host, tokens)
    }

    /// Returns the reply to a token. `tokens` is the length of all tokens of the negotiation.
    fn answer(&self, outcome: Result<(Box<dyn Negotiation>, Step), StepFailed>, host: Host, tokens: usize) -> Verdict {
        let now = Instant::now();
        let answered =
            |verifier, result: &InitResult| Verdict::Answered { verifier, results: Message::encode(result).stream };
        let (negotiation, Step { token, established }) = match outcome {
            Ok(outcome) => outcome,
            Err(StepFailed { error, token }) => {
                self.warn(&error, host, now);
                // RFC 2203 §5.2.3.2: the handle is empty, and there is no key for a verifier.
                let GssError { major, minor, .. } = error;
                return answered(OpaqueAuth::NONE, &InitResult { major, minor, token, ..InitResult::default() });
            }
        };
        let result = InitResult { window: WINDOW, token, ..InitResult::default() };
        let Some(Established { context, peer, lifetime }) = established else {
            let (handle, removed) = self.table.write().suspend(negotiation, host, tokens, now);
            self.discard(removed);
            let handle = Bytes::copy_from_slice(&handle);
            return answered(OpaqueAuth::NONE, &InitResult { handle, major: major::CONTINUE_NEEDED, ..result });
        };
        // RFC 2203 §5.2.3.1: the verifier is the checksum of the window's length.
        let Ok(mic) = context.mic(&WINDOW.to_be_bytes()).map_err(|error| self.warn(&error, host, now)) else {
            return Verdict::Dropped;
        };
        tracing::debug!(%host, principal = %peer.escape_ascii(), ?lifetime, "a context is established");
        let expires = lifetime.and_then(|lifetime| now.checked_add(lifetime));
        let new = NewContext { context, principal: peer, expires, host, tokens };
        let (handle, removed) = self.table.write().insert(new, now);
        self.discard(removed);
        let handle = Bytes::copy_from_slice(&handle);
        answered(OpaqueAuth { flavor: RPCSEC_GSS, body: mic }, &InitResult { handle, ..result })
    }

    /// Drops contexts and negotiations: many of them on another thread, because the library can need some time.
    fn discard(&self, removed: Removed) {
        if removed.len() > DISCARD_INLINE_MAX && self.acceptor.blocks() {
            drop(spawn_blocking(move || drop(removed)));
        }
    }

    /// Reports a failed negotiation: at most one in some seconds at the level of warnings, because any peer can cause
    /// them.
    fn warn(&self, error: &GssError, host: Host, now: Instant) {
        let mut warned = self.warned.lock();
        if warned.is_none_or(|at| now >= at + WARNING_PAUSE) {
            *warned = Some(now);
            tracing::warn!(%host, %error, "RPCSEC_GSS: a client got no context");
        } else {
            tracing::debug!(%host, %error, "RPCSEC_GSS: a client got no context");
        }
    }
}

impl ServerFlavor for GssServer {
    fn flavor(&self) -> u32 {
        RPCSEC_GSS
    }

    fn authenticate<'a>(&'a self, claim: Claim<'a>) -> Authentication<'a> {
        let denied = |stat| Authentication::Ready(Verdict::Denied(stat));
        let Ok(credential) = GssCredential::from_body(&claim.header.credential.body) else {
            return denied(AuthStat::BadCred);
        };
        if matches!(credential.control, Control::Data | Control::Destroy) {
            return Authentication::Ready(self.data(&claim, &credential));
        }
        let begins = credential.control == Control::Init;
        // RFC 2203 §5.2.2: NULLPROC, and an empty handle at first.
        if claim.header.procedure != NULL || begins != credential.handle.is_empty() {
            return denied(AuthStat::BadCred);
        }
        if claim.header.verifier != OpaqueAuth::NONE {
            return denied(AuthStat::BadVerf);
        }
        // A token costs the decryption of a ticket and a place in the table.
        if !claim.is_admitted() {
            tracing::debug!(peer = %claim.peer, "no context for a host that is not admitted");
            return denied(AuthStat::RejectedCred);
        }
        let mut arguments = claim.arguments.clone();
        let token = InitArgument::decode(&mut arguments).and_then(|token| arguments.finish().map(|()| token));
        match token {
            Ok(InitArgument(token)) => {
                Authentication::Pending(Box::pin(self.negotiate(credential, token, Host::of(claim.peer.ip()))))
            }
            Err(error) => {
                tracing::debug!(peer = %claim.peer, %error, "a token could not be decoded");
                denied(AuthStat::BadCred)
            }
        }
    }
}

/// Executes one step of a negotiation, which is begun if necessary.
fn step(
    acceptor: &dyn Acceptor,
    begun: Option<Box<dyn Negotiation>>,
    token: &[u8],
) -> Result<(Box<dyn Negotiation>, Step), StepFailed> {
    let mut negotiation = match begun {
        Some(negotiation) => negotiation,
        None => acceptor.begin()?,
    };
    let step = negotiation.step(token)?;
    Ok((negotiation, step))
}

/// The protection of one transmission of a call and of its reply.
struct ProtectedReply {
    context: Arc<ServerContext>,
    service: Service,
    sequence: u32,
}

impl Protection for ProtectedReply {
    fn verifier(&self) -> Result<OpaqueAuth, Tampered> {
        // RFC 2203 §5.3.3.2: the checksum of the sequence number.
        match self.context.context.mic(&self.sequence.to_be_bytes()) {
            Ok(body) => Ok(OpaqueAuth { flavor: RPCSEC_GSS, body }),
            Err(error) => {
                tracing::warn!(%error, "the verifier of a reply could not be computed");
                Err(Tampered)
            }
        }
    }

    fn wraps(&self) -> bool {
        self.service != Service::None
    }

    fn unwrap(&self, arguments: Bytes) -> Result<Bytes, Tampered> {
        wire::unwrap(&*self.context.context, self.service, self.sequence, arguments)
    }

    fn wrap(&self, results: Bytes, reply: &mut Encoder) -> Result<(), Tampered> {
        wire::wrap(&*self.context.context, self.service, self.sequence, &results, reply)
    }
}

/// The procedure that carries negotiations (RFC 2203 §5.2).
const NULL: u32 = 0;
const WARNING_PAUSE: Duration = Duration::from_secs(10);
/// Maximum number of contexts and negotiations that a worker deletes itself.
const DISCARD_INLINE_MAX: usize = 4;
