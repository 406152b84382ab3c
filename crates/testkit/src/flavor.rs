//! A security flavour for tests, with the structure of RPCSEC_GSS: contexts that are negotiated in two rounds, sequence
//! numbers, a verifier for each transmission, and bodies that are authenticated, or wrapped for integrity or privacy.
//!
//! It protects nothing: its checksum and its cipher are those of a hash table. It shows how a real mechanism fits in,
//! and tests can inject faults.

use std::{
    collections::{BTreeSet, HashMap},
    hash::{DefaultHasher, Hash, Hasher},
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering::SeqCst},
    },
};

use bytes::Bytes;
use parking_lot::Mutex;
use rpc::{
    AuthStat, BoxFuture, ClientError, Identity, OpaqueAuth,
    security::{
        Accepted, Authentication, Channel, Claim, ClientFlavor, NotReady, Principal, Protection, ServerFlavor,
        Tampered, Transmission, Verdict,
    },
};
use xdr::{Decode, DecodeError, Decoder, Encode, Encoder, Message};

/// The number of the flavour in credentials.
pub const FLAVOR: u32 = 0x7e57_0001;
/// The sequence number at which a context expires.
pub const MAX_SEQUENCE: u32 = 0x8000_0000;

/// The protection of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Encode, Decode)]
pub enum Level {
    /// The header is authenticated. Bodies are in clear text, and payloads are placed.
    #[xdr(1)]
    Header,
    /// Bodies have a checksum.
    #[xdr(2)]
    Integrity,
    /// Bodies are encrypted.
    #[xdr(3)]
    Privacy,
}

impl Level {
    /// Returns the number of Kerberos 5 with the same protection, so that exports can allow this flavour.
    fn pseudo_flavor(self) -> u32 {
        match self {
            Level::Header => 390_003,
            Level::Integrity => 390_004,
            Level::Privacy => 390_005,
        }
    }
}

/// The body of a credential.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
struct Ticket {
    control: Control,
    context: u32,
    sequence: u32,
    level: Level,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
enum Control {
    #[xdr(0)]
    Data,
    #[xdr(1)]
    Begin,
    #[xdr(2)]
    Prove,
}

/// The results of [`Control::Begin`].
#[derive(Clone, Copy, Debug, Encode, Decode)]
struct Begun {
    id: u32,
    challenge: u64,
}

/// The key of a context.
#[derive(Clone, Copy, Debug)]
struct Key(u64);

impl Key {
    fn session(secret: u64, challenge: u64) -> Self {
        Key(checksum(secret, "session", &challenge.to_be_bytes()))
    }

    fn verifier(self, what: &str, of: &[u8]) -> OpaqueAuth {
        let sum = checksum(self.0, what, of).to_be_bytes();
        OpaqueAuth { flavor: FLAVOR, body: Bytes::copy_from_slice(&sum) }
    }

    /// Appends a wrapped body: its length, the sequence number, its bytes, and their checksum.
    fn wrap(self, ticket: Ticket, body: &[u8], out: &mut Encoder) {
        let mut data = [&ticket.sequence.to_be_bytes()[..], body].concat();
        if ticket.level == Level::Privacy {
            self.encrypt(ticket.sequence, &mut data);
        }
        out.opaque(&data);
        out.u64(checksum(self.0, "body", &data));
    }

    fn unwrap(self, ticket: Ticket, body: Bytes) -> Result<Bytes, Tampered> {
        let message = Message::from(body);
        let mut decoder = Decoder::new(&message);
        let mut read = || -> Result<_, DecodeError> {
            let read = (decoder.opaque(usize::MAX)?, decoder.u64()?);
            decoder.finish()?;
            Ok(read)
        };
        let (data, sum) = read().map_err(|_| Tampered)?;
        if checksum(self.0, "body", &data) != sum {
            return Err(Tampered);
        }
        let mut data = data.to_vec();
        if ticket.level == Level::Privacy {
            self.encrypt(ticket.sequence, &mut data);
        }
        match data.strip_prefix(&ticket.sequence.to_be_bytes()) {
            Some(body) => Ok(Bytes::copy_from_slice(body)),
            None => Err(Tampered),
        }
    }

    fn encrypt(self, sequence: u32, data: &mut [u8]) {
        for (at, chunk) in data.chunks_mut(8).enumerate() {
            let pad = (self.0 ^ u64::from(sequence)).wrapping_mul(at as u64 | 1).to_be_bytes();
            chunk.iter_mut().zip(pad).for_each(|(byte, pad)| *byte ^= pad ^ 0x5a);
        }
    }
}

fn checksum(key: u64, what: &str, of: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    (key, what, of).hash(&mut hasher);
    hasher.finish()
}

/// The server side, with one user.
#[derive(Debug)]
pub struct TestServer {
    user: &'static str,
    secret: u64,
    contexts: Mutex<HashMap<u32, Arc<Context>>>,
    /// The number of the last context.
    made: AtomicU32,
    /// The number of following replies that are changed in transit.
    pub tampers: Arc<AtomicU32>,
    /// The number of following replies with a forged verifier.
    pub forges: Arc<AtomicU32>,
    /// The number of following replies that cannot be wrapped.
    pub fails: Arc<AtomicU32>,
}

#[derive(Debug)]
struct Context {
    key: Key,
    challenge: u64,
    established: Mutex<bool>,
    seen: Mutex<BTreeSet<u32>>,
}

impl TestServer {
    /// Creates a server that knows `user` by this secret.
    pub fn new(user: &'static str, secret: u64) -> Arc<Self> {
        Arc::new(Self {
            user,
            secret,
            contexts: Mutex::default(),
            made: AtomicU32::new(0),
            tampers: Arc::default(),
            forges: Arc::default(),
            fails: Arc::default(),
        })
    }

    /// Returns the number of contexts so far.
    pub fn contexts_made(&self) -> u32 {
        self.made.load(SeqCst)
    }

    /// Drops all contexts, as a restart does.
    pub fn forget(&self) {
        self.contexts.lock().clear();
    }

    fn begin(&self, arguments: &Message) -> Result<Verdict, DecodeError> {
        let user: Bytes = Decoder::new(arguments).opaque(64)?;
        if user != self.user {
            return Ok(Verdict::Denied(AuthStat::GssCredProblem));
        }
        let id = self.made.fetch_add(1, SeqCst) + 1;
        let challenge = checksum(self.secret, "challenge", &id.to_be_bytes());
        let key = Key::session(self.secret, challenge);
        let context = Context { key, challenge, established: Mutex::new(false), seen: Mutex::default() };
        self.contexts.lock().insert(id, Arc::new(context));
        let results = Message::encode(&Begun { id, challenge }).stream;
        Ok(Verdict::Answered { verifier: OpaqueAuth::NONE, results })
    }

    fn prove(&self, id: u32, arguments: &Message) -> Result<Verdict, DecodeError> {
        let proof = Decoder::new(arguments).u64()?;
        let Some(context) = self.contexts.lock().get(&id).cloned() else {
            return Ok(Verdict::Denied(AuthStat::GssCredProblem));
        };
        if proof != checksum(self.secret, "proof", &context.challenge.to_be_bytes()) {
            return Ok(Verdict::Denied(AuthStat::GssCredProblem));
        }
        *context.established.lock() = true;
        Ok(Verdict::Answered { verifier: context.key.verifier("made", &id.to_be_bytes()), results: Bytes::new() })
    }

    fn data(&self, claim: &Claim<'_>, ticket: Ticket) -> Verdict {
        let context = self.contexts.lock().get(&ticket.context).cloned();
        let Some(context) = context.filter(|context| *context.established.lock()) else {
            return Verdict::Denied(AuthStat::GssCredProblem);
        };
        if claim.header.verifier != context.key.verifier("call", claim.signed) {
            return Verdict::Denied(AuthStat::GssCredProblem);
        }
        if ticket.sequence >= MAX_SEQUENCE {
            return Verdict::Denied(AuthStat::GssCtxProblem);
        }
        if !context.seen.lock().insert(ticket.sequence) {
            return Verdict::Dropped;
        }
        let name = Bytes::from_static(self.user.as_bytes());
        let caller = Identity::Principal(Principal { name, pseudo_flavor: ticket.level.pseudo_flavor() });
        let key = context.key;
        let (tampers, forges, fails) = (self.tampers.clone(), self.forges.clone(), self.fails.clone());
        let reply = ProtectedReply { key, ticket, tampers, forges, fails };
        Verdict::Accepted(Accepted { caller, protection: Some(Box::new(reply)) })
    }
}

impl ServerFlavor for TestServer {
    fn flavor(&self) -> u32 {
        FLAVOR
    }

    fn authenticate<'a>(&'a self, claim: Claim<'a>) -> Authentication<'a> {
        let Ok(ticket) = Message::from(claim.header.credential.body.clone()).decode::<Ticket>() else {
            return Authentication::Ready(Verdict::Denied(AuthStat::BadCred));
        };
        if ticket.control == Control::Data {
            return Authentication::Ready(self.data(&claim, ticket));
        }
        let arguments = Message::from(claim.arguments.clone().take_rest());
        // A real library might have to read a file here.
        Authentication::Pending(Box::pin(async move {
            tokio::task::yield_now().await;
            let verdict = match ticket.control {
                Control::Begin => self.begin(&arguments),
                _ => self.prove(ticket.context, &arguments),
            };
            verdict.unwrap_or(Verdict::Denied(AuthStat::BadCred))
        }))
    }
}

struct ProtectedReply {
    key: Key,
    ticket: Ticket,
    tampers: Arc<AtomicU32>,
    forges: Arc<AtomicU32>,
    fails: Arc<AtomicU32>,
}

impl Protection for ProtectedReply {
    fn verifier(&self) -> Result<OpaqueAuth, Tampered> {
        let what = if take_one(&self.forges) { "forged" } else { "reply" };
        Ok(self.key.verifier(what, &self.ticket.sequence.to_be_bytes()))
    }

    fn wraps(&self) -> bool {
        self.ticket.level != Level::Header
    }

    fn unwrap(&self, arguments: Bytes) -> Result<Bytes, Tampered> {
        self.key.unwrap(self.ticket, arguments)
    }

    fn wrap(&self, results: Bytes, reply: &mut Encoder) -> Result<(), Tampered> {
        if take_one(&self.fails) {
            return Err(Tampered);
        }
        wrap(self.key, self.ticket, &results, reply, &self.tampers);
        Ok(())
    }
}

/// The client side of one user.
#[derive(Debug)]
pub struct TestClient {
    user: &'static str,
    secret: u64,
    level: Level,
    context: Mutex<Option<(u32, Key)>>,
    refreshing: tokio::sync::Mutex<()>,
    /// The sequence number of the next transmission.
    pub sequence: AtomicU32,
    /// The number of following calls that are changed in transit.
    pub tampers: Arc<AtomicU32>,
    /// The number of following calls with a forged verifier.
    pub forges: AtomicU32,
}

impl TestClient {
    /// Creates a client for this user with this secret.
    pub fn new(user: &'static str, secret: u64, level: Level) -> Arc<Self> {
        Arc::new(Self {
            user,
            secret,
            level,
            context: Mutex::default(),
            refreshing: tokio::sync::Mutex::default(),
            sequence: AtomicU32::new(1),
            tampers: Arc::default(),
            forges: AtomicU32::new(0),
        })
    }

    async fn negotiate(&self, channel: Channel<'_>) -> Result<(), ClientError> {
        let ticket = |control, context| {
            let ticket = Ticket { control, context, sequence: 0, level: self.level };
            OpaqueAuth { flavor: FLAVOR, body: Message::encode(&ticket).stream }
        };
        let mut name = Encoder::default();
        name.opaque(self.user.as_bytes());
        let none = |_: &[u8]| OpaqueAuth::NONE;
        let begun = channel.call(&ticket(Control::Begin, 0), none, &name.finish().stream).await?;
        let Begun { id, challenge } = Message::from(begun.results).decode().map_err(ClientError::Decode)?;
        let key = Key::session(self.secret, challenge);
        let proof = Message::encode(&checksum(self.secret, "proof", &challenge.to_be_bytes())).stream;
        let proved = channel.call(&ticket(Control::Prove, id), none, &proof).await?;
        if proved.verifier != key.verifier("made", &id.to_be_bytes()) {
            return Err(ClientError::Security("the server does not know the secret".to_owned()));
        }
        *self.context.lock() = Some((id, key));
        Ok(())
    }
}

impl ClientFlavor for TestClient {
    fn begin(&self, encoder: &mut Encoder) -> Result<Box<dyn Transmission>, NotReady> {
        let (context, key) = self.context.lock().ok_or(NotReady)?;
        let sequence = self.sequence.fetch_add(1, SeqCst);
        let ticket = Ticket { control: Control::Data, context, sequence, level: self.level };
        OpaqueAuth { flavor: FLAVOR, body: Message::encode(&ticket).stream }.encode(encoder);
        let what = if take_one(&self.forges) { "forged" } else { "call" };
        key.verifier(what, encoder.written(0)).encode(encoder);
        Ok(Box::new(Sent { key, ticket, tampers: self.tampers.clone() }))
    }

    fn refresh<'a>(&'a self, channel: Channel<'a>) -> BoxFuture<'a, Result<(), ClientError>> {
        Box::pin(async move {
            let _one = self.refreshing.lock().await;
            if self.context.lock().is_some() {
                return Ok(()); // Another call has negotiated the context.
            }
            self.negotiate(channel).await
        })
    }

    fn wraps(&self) -> bool {
        self.level != Level::Header
    }

    fn reply_growth(&self) -> usize {
        // The verifier's body; and for wrapping the length, the sequence number, padding and the checksum.
        8 + 4 + 4 + 4 + 8
    }

    fn denied(&self, transmission: &dyn Transmission, stat: AuthStat) -> bool {
        let again = matches!(stat, AuthStat::GssCredProblem | AuthStat::GssCtxProblem);
        let mut context = self.context.lock();
        if again && context.is_some_and(|(id, _)| u64::from(id) == transmission.context()) {
            *context = None;
            self.sequence.store(1, SeqCst);
        }
        again
    }
}

struct Sent {
    key: Key,
    ticket: Ticket,
    tampers: Arc<AtomicU32>,
}

impl Transmission for Sent {
    fn context(&self) -> u64 {
        self.ticket.context.into()
    }

    fn wrap(&self, arguments: Bytes, call: &mut Encoder) -> Result<(), Tampered> {
        wrap(self.key, self.ticket, &arguments, call, &self.tampers);
        Ok(())
    }

    fn verifies(&self, verifier: &OpaqueAuth) -> bool {
        *verifier == self.key.verifier("reply", &self.ticket.sequence.to_be_bytes())
    }

    fn unwrap(&self, results: Bytes) -> Result<Bytes, Tampered> {
        self.key.unwrap(self.ticket, results)
    }
}

/// Wraps a body, and changes it if a test has asked for that.
fn wrap(key: Key, ticket: Ticket, body: &[u8], out: &mut Encoder, tampers: &AtomicU32) {
    let start = out.stream_len();
    key.wrap(ticket, body, out);
    if take_one(tampers) {
        // After the length and the sequence number: the body, or the checksum of an empty one.
        let at = start + 8;
        let word = u32::from_be_bytes(*out.written(at).first_chunk().expect("wrapped body must have a checksum"));
        out.patch_u32(at, word ^ 1);
    }
}

fn take_one(count: &AtomicU32) -> bool {
    count.fetch_update(SeqCst, SeqCst, |left| left.checked_sub(1)).is_ok()
}
