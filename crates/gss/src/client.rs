//! [`GssClient`]: RPCSEC_GSS on the client side (RFC 2203 §5.2, §5.3.2), for one user and one connection.
//!
//! Each connection has its own context. Its transmissions then arrive in the order of their sequence numbers, as far as
//! the transport keeps it. With a context for several connections, the calls of a fast one would move the server's
//! window past those of a slow one, and the server drops these without a reply.
//!
//! The library can wait for a key distribution centre, so a negotiation runs on a thread that may block. A call that is
//! given up meanwhile does not stop that thread, but no second negotiation begins before it ends.
//!
//! When the last user of a context drops it, the server is told (§5.4), so that its table has room. Nobody waits for the reply.
//! If the message is lost, the server keeps the context until it expires or is evicted.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use bytes::Bytes;
use parking_lot::Mutex;
use rpc::{
    AuthStat, BoxFuture, ClientError, OpaqueAuth, RejectStat,
    security::{Channel, ClientFlavor, LastMessage, NotReady, Place, Tampered, Transmission},
};
use tokio::{sync::Semaphore, task::spawn_blocking, time::Instant};
use xdr::{Encode, Encoder, Message};

use crate::{
    mechanism::{Context, Established, GssError, Initiator, Negotiation, Step, StepFailed, major},
    wire::{self, Control, GssCredential, InitArgument, InitResult, MAXSEQ, RPCSEC_GSS, Service},
};

/// The flavour RPCSEC_GSS of one user on one connection.
#[derive(Debug)]
pub struct GssClient {
    initiator: Arc<dyn Initiator>,
    service: Service,
    current: Mutex<Option<Arc<ClientContext>>>,
    /// Held during a negotiation.
    negotiating: Arc<tokio::sync::Mutex<()>>,
    /// The maximum length that replies gain.
    growth: AtomicUsize,
    /// The number of contexts so far.
    made: AtomicU64,
}

/// A context that the server knows.
struct ClientContext {
    context: Box<dyn Context>,
    number: u64,
    handle: Bytes,
    expires: Option<Instant>,
    next_sequence: AtomicU32,
    /// A permit for each call that can be outstanding.
    window: Arc<Semaphore>,
    service: Service,
    /// The latest connection; `None` if the server does not know the context any more.
    last_message: Mutex<Option<LastMessage>>,
}

impl std::fmt::Debug for ClientContext {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "context {}", self.number)
    }
}

impl ClientContext {
    /// Returns the next sequence number, or `None` if the context has expired.
    fn next(&self) -> Option<u32> {
        let next = |sequence| (sequence < MAXSEQ).then_some(sequence + 1);
        match self.expires {
            Some(at) if at <= Instant::now() => None,
            _ => self.next_sequence.fetch_update(Relaxed, Relaxed, next).ok(),
        }
    }

    /// Notes the connection of the next transmissions.
    fn note_connection(&self, channel: Channel<'_>) {
        let mut last_message = self.last_message.lock();
        if last_message.as_ref().is_some_and(|last| !last.is_over(channel)) {
            *last_message = Some(channel.last_message());
        }
    }
}

impl Drop for ClientContext {
    /// Destroys the context at the server (RFC 2203 §5.4). The message has no body to wrap.
    fn drop(&mut self) {
        let Some(last_message) = self.last_message.get_mut().take() else { return };
        // An expired context has no sequence number. The server has forgotten it.
        let Some(sequence) = self.next() else { return };
        let (service, handle) = (self.service, self.handle.clone());
        let credential = GssCredential { control: Control::Destroy, sequence, service, handle }.to_opaque();
        last_message.send(&credential, |signed| {
            let body = self.context.mic(signed).ok()?;
            Some(OpaqueAuth { flavor: RPCSEC_GSS, body })
        });
    }
}

impl GssClient {
    /// Creates the flavour for the user and the service of `initiator`.
    pub fn new(initiator: Arc<dyn Initiator>, service: Service) -> Arc<Self> {
        Arc::new(Self {
            initiator,
            service,
            current: Mutex::default(),
            negotiating: Arc::default(),
            growth: AtomicUsize::new(GROWTH_DEFAULT),
            made: AtomicU64::new(0),
        })
    }

    /// Negotiates a context over the connection.
    async fn negotiate(
        &self,
        channel: Channel<'_>,
        guard: tokio::sync::OwnedMutexGuard<()>,
    ) -> Result<(), ClientError> {
        let initiator = self.initiator.clone();
        let first = move || {
            let mut negotiation = initiator.begin()?;
            let step = negotiation.step(&[])?;
            Ok((negotiation, step))
        };
        let (mut guard, (mut negotiation, mut step)) = self.run(guard, first).await?;
        let (mut control, mut handle) = (Control::Init, Bytes::new());
        for _ in 0..ROUNDS_MAX {
            let credential = GssCredential { control, sequence: 0, service: self.service, handle: handle.clone() };
            let argument = Message::encode(&InitArgument(step.token.clone())).stream;
            let reply = channel.call(&credential.to_opaque(), |_| OpaqueAuth::NONE, &argument).await;
            let reply = reply.map_err(|error| self.not_negotiated(error))?;
            let result: InitResult = Message::from(reply.results).decode().map_err(ClientError::Decode)?;
            if major::is_error(result.major) {
                // The token says more than the status.
                let reason = match result.token.is_empty() {
                    true => None,
                    false => {
                        let token = result.token.clone();
                        let last = move || negotiation.step(&token).map(|step| (negotiation, step));
                        self.run(guard, last).await.err()
                    }
                };
                return Err(self.refused(&result, reason));
            }
            handle = result.handle.clone();
            let is_last = result.major & major::CONTINUE_NEEDED == 0;
            let mut established = step.established.take();
            if established.is_none() {
                let token = result.token.clone();
                let next = move || negotiation.step(&token).map(|step| (negotiation, step));
                let outcome = self.run(guard, next).await?;
                (guard, (negotiation, step)) = outcome;
                established = step.established.take();
            }
            match established {
                Some(established) if is_last => {
                    return self.adopt(established, handle, &result, &reply.verifier, channel);
                }
                Some(established) => step.established = Some(established),
                None if is_last => {
                    let problem = "the server has completed a negotiation that is not complete";
                    return Err(ClientError::Security(problem.to_owned()));
                }
                None => {}
            }
            control = Control::ContinueInit;
        }
        Err(ClientError::Security(format!("a negotiation of more than {ROUNDS_MAX} rounds")))
    }

    /// Runs a step where it may block. The guard is held until it ends, even if this future is dropped.
    async fn run(
        &self,
        guard: tokio::sync::OwnedMutexGuard<()>,
        work: impl FnOnce() -> Result<(Box<dyn Negotiation>, Step), StepFailed> + Send + 'static,
    ) -> Result<(tokio::sync::OwnedMutexGuard<()>, (Box<dyn Negotiation>, Step)), ClientError> {
        let work = move || (guard, work());
        let (guard, outcome) = match self.initiator.blocks() {
            false => work(),
            true => {
                spawn_blocking(work).await.map_err(|error| ClientError::Security(format!("negotiation: {error}")))?
            }
        };
        let outcome = outcome.map_err(|failed| ClientError::Security(failed.error.to_string()))?;
        Ok((guard, outcome))
    }

    /// Makes an established context the current one, if the server has proved that it knows the key.
    fn adopt(
        &self,
        Established { context, lifetime, .. }: Established,
        handle: Bytes,
        result: &InitResult,
        verifier: &OpaqueAuth,
        channel: Channel<'_>,
    ) -> Result<(), ClientError> {
        let failed = |problem: &str| Err(ClientError::Security(problem.to_owned()));
        // RFC 2203 §5.2.3.1.1: the verifier is the checksum of the window's length.
        if verifier.flavor != RPCSEC_GSS || context.verify(&result.window.to_be_bytes(), &verifier.body).is_err() {
            return failed("the server has not proved its identity: the verifier of its context is wrong");
        }
        if result.window == 0 {
            return failed("the server accepts no sequence number");
        }
        let growth = |error: GssError| ClientError::Security(error.to_string());
        let verifier = context.mic(&[0; 4]).map_err(growth)?.len();
        let body = match self.service {
            Service::None => 0,
            // The length, the sequence number, the checksum with its length and padding.
            Service::Integrity => 4 + 4 + 4 + verifier + 3,
            // The token's length and padding, and what encryption adds to the sequence number and the body.
            Service::Privacy => {
                let mut token = Vec::new();
                context.wrap(&[&[0; 4]], &mut token).map_err(growth)?;
                4 + 3 + token.len() + CIPHER_PADDING
            }
        };
        self.growth.store(verifier + 3 + body, Relaxed);
        let expires = lifetime.and_then(|lifetime| Instant::now().checked_add(lifetime.max(LIFETIME_MIN)));
        let number = self.made.fetch_add(1, Relaxed) + 1;
        let next_sequence = AtomicU32::new(FIRST_SEQUENCE);
        let (service, last_message) = (self.service, Mutex::new(Some(channel.last_message())));
        // RFC 2203 §5.2.3.1: the window is also the maximum number of outstanding calls.
        let window = Arc::new(Semaphore::new((result.window as usize).min(Semaphore::MAX_PERMITS)));
        let adopted = ClientContext { context, number, handle, expires, next_sequence, window, service, last_message };
        let replaced = self.current.lock().replace(Arc::new(adopted));
        drop(replaced);
        Ok(())
    }

    /// Explains that the server does not negotiate.
    fn not_negotiated(&self, error: ClientError) -> ClientError {
        match error {
            // The server has no such flavour.
            ClientError::Denied(RejectStat::AuthError(AuthStat::RejectedCred | AuthStat::TooWeak)) => {
                let problem = format!(
                    "{:?}: the server does not accept Kerberos, or not from this host (it denies RPCSEC_GSS)",
                    self.initiator
                );
                ClientError::Security(problem)
            }
            error => error,
        }
    }

    /// Returns the error that the server accepts no context.
    fn refused(&self, result: &InitResult, reason: Option<ClientError>) -> ClientError {
        let reason = match reason {
            Some(ClientError::Security(reason)) => format!(": {reason}"),
            _ => String::new(),
        };
        ClientError::Security(format!(
            "{:?}: the server refuses a context: {}, mechanism status {:#x}{reason}. The server's log has more; its keytab \
             must have a current key of this service",
            self.initiator,
            major::describe(result.major),
            result.minor
        ))
    }

    fn transmission(&self, context: Arc<ClientContext>, encoder: &mut Encoder) -> Option<Sent> {
        let sequence = context.next()?;
        let (service, handle) = (self.service, context.handle.clone());
        GssCredential { control: Control::Data, sequence, service, handle }.to_opaque().encode(encoder);
        match context.context.mic(encoder.written(0)) {
            Ok(body) => OpaqueAuth { flavor: RPCSEC_GSS, body }.encode(encoder),
            Err(error) => {
                tracing::debug!(%error, "the verifier of a call could not be computed");
                return None;
            }
        }
        Some(Sent { context, service, sequence })
    }
}

impl ClientFlavor for GssClient {
    fn note_connection(&self, channel: Channel<'_>) {
        if let Some(context) = &*self.current.lock() {
            context.note_connection(channel);
        }
    }

    fn place(&self) -> Option<BoxFuture<'_, Option<Place>>> {
        Some(Box::pin(async move {
            let (context, window) = {
                let current = self.current.lock();
                let current = current.as_ref()?;
                (current.number, current.window.clone())
            };
            let permit = window.acquire_owned().await.ok()?;
            Some(Place { context, permit })
        }))
    }

    fn begin(&self, encoder: &mut Encoder) -> Result<Box<dyn Transmission>, NotReady> {
        let context = self.current.lock().clone().ok_or(NotReady)?;
        let number = context.number;
        match self.transmission(context, encoder) {
            Some(sent) => Ok(Box::new(sent)),
            None => {
                drop(self.forget(number));
                Err(NotReady)
            }
        }
    }

    fn refresh<'a>(&'a self, channel: Channel<'a>) -> BoxFuture<'a, Result<(), ClientError>> {
        Box::pin(async move {
            let guard = self.negotiating.clone().lock_owned().await;
            if self.current.lock().is_some() {
                return Ok(()); // Another call has negotiated it.
            }
            self.negotiate(channel, guard).await
        })
    }

    fn denied(&self, transmission: &dyn Transmission, stat: AuthStat) -> bool {
        // The server has restarted, has evicted the context, or the context has expired.
        let again = matches!(stat, AuthStat::GssCredProblem | AuthStat::GssCtxProblem);
        if again && let Some(context) = self.forget(transmission.context()) {
            *context.last_message.lock() = None;
        }
        again
    }

    fn wraps(&self) -> bool {
        self.service != Service::None
    }

    fn reply_growth(&self) -> usize {
        self.growth.load(Relaxed)
    }
}

impl GssClient {
    /// Removes the context of this number, if it is the current one.
    fn forget(&self, number: u64) -> Option<Arc<ClientContext>> {
        self.current.lock().take_if(|context| context.number == number)
    }
}

/// One transmission of a call.
struct Sent {
    context: Arc<ClientContext>,
    service: Service,
    sequence: u32,
}

impl Transmission for Sent {
    fn context(&self) -> u64 {
        self.context.number
    }

    fn wrap(&self, arguments: Bytes, call: &mut Encoder) -> Result<(), Tampered> {
        wire::wrap(&*self.context.context, self.service, self.sequence, &arguments, call)
    }

    fn verifies(&self, verifier: &OpaqueAuth) -> bool {
        verifier.flavor == RPCSEC_GSS
            && self.context.context.verify(&self.sequence.to_be_bytes(), &verifier.body).is_ok()
    }

    fn unwrap(&self, results: Bytes) -> Result<Bytes, Tampered> {
        wire::unwrap(&*self.context.context, self.service, self.sequence, results)
    }
}

const FIRST_SEQUENCE: u32 = 1;
/// Maximum number of rounds of a negotiation. Kerberos has one.
const ROUNDS_MAX: usize = 8;
/// The growth of replies before a context is established.
const GROWTH_DEFAULT: usize = 256;
/// The padding of block ciphers.
const CIPHER_PADDING: usize = 16;
/// The time for which a new context is used at least. Otherwise a client with a ticket that expires now would
/// negotiate without end.
const LIFETIME_MIN: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;

    struct NoContext;

    impl Context for NoContext {
        fn mic(&self, _: &[u8]) -> Result<Bytes, GssError> {
            Ok(Bytes::new())
        }
        fn verify(&self, _: &[u8], _: &[u8]) -> Result<(), GssError> {
            Ok(())
        }
        fn wrap(&self, _: &[&[u8]], _: &mut Vec<u8>) -> Result<(), GssError> {
            Ok(())
        }
        fn unwrap(&self, _: &[u8]) -> Result<Bytes, GssError> {
            Ok(Bytes::new())
        }
    }

    #[test]
    fn a_context_ends_before_maxseq() {
        let next_sequence = AtomicU32::new(MAXSEQ - 2);
        let context = ClientContext {
            context: Box::new(NoContext),
            number: 1,
            handle: Bytes::new(),
            expires: None,
            next_sequence,
            window: Arc::new(Semaphore::new(1)),
            service: Service::None,
            last_message: Mutex::default(),
        };
        assert_eq!([context.next(), context.next(), context.next()], [Some(MAXSEQ - 2), Some(MAXSEQ - 1), None]);
        assert_eq!(context.next(), None);
    }
}
