//! A GSS-API mechanism for tests, which needs no Kerberos. It protects nothing: its checksum and cipher are those of a hash
//! table.

use std::{
    hash::{DefaultHasher, Hash, Hasher},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use bytes::Bytes;
use gss::mechanism::{
    Acceptor, Context, Established, GssError, Initiator, Negotiation, Step, StepFailed, Tickets, major,
};

/// Faults that a test injects into the mechanism of a server while it runs.
#[derive(Debug, Default)]
pub struct Faults {
    /// Nothing can be encrypted.
    pub wrap_fails: AtomicBool,
    /// The number of following contexts that are refused.
    pub refuses: AtomicU32,
    /// The number of tokens so far.
    pub tokens: AtomicU32,
    /// The length of the longest token so far.
    pub longest_token: AtomicUsize,
}

/// The server's side: it knows one secret, and accepts every user who knows it.
#[derive(Clone)]
pub struct ToyAcceptor {
    /// The secret.
    pub secret: u64,
    /// The time until a context expires at the server.
    pub lifetime: Option<Duration>,
    /// The faults that a test injects.
    pub faults: Arc<Faults>,
}

/// The client's side: the ticket of one user.
#[derive(Clone, Debug)]
pub struct ToyInitiator {
    /// The name of the user, which ends with `@TOY`.
    pub user: &'static str,
    /// The secret that the server knows.
    pub secret: u64,
    /// The number of round trips.
    pub rounds: u8,
    /// The length of each token.
    pub token_len: usize,
    /// The time until a context expires at the client.
    pub lifetime: Option<Duration>,
    /// `false` if the user has no ticket.
    pub has_ticket: Arc<AtomicBool>,
}

impl ToyInitiator {
    /// Creates a ticket, for contexts of one round trip that do not expire.
    pub fn new(user: &'static str, secret: u64) -> Self {
        Self { user, secret, rounds: 1, token_len: 0, lifetime: None, has_ticket: Arc::new(AtomicBool::new(true)) }
    }
}

fn hash(of: impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    of.hash(&mut hasher);
    hasher.finish()
}

fn failed(major: u32, text: &str) -> GssError {
    GssError::new("toy", major, text)
}

impl Acceptor for ToyAcceptor {
    fn begin(&self) -> Result<Box<dyn Negotiation>, GssError> {
        Ok(Box::new(Accepting(self.clone())))
    }

    fn local_name(&self, principal: &[u8]) -> Option<String> {
        principal.strip_suffix(b"@TOY").map(|name| String::from_utf8_lossy(name).into_owned())
    }

    fn blocks(&self) -> bool {
        false
    }
}

struct Accepting(ToyAcceptor);

impl Negotiation for Accepting {
    /// A token is: the rounds that are left, the checksum of the secret, the length of the name, the name, padding.
    fn step(&mut self, token: &[u8]) -> Result<Step, StepFailed> {
        let Self(ToyAcceptor { secret, lifetime, faults }) = self;
        faults.tokens.fetch_add(1, SeqCst);
        faults.longest_token.fetch_max(token.len(), SeqCst);
        let Some((&left, rest)) = token.split_first() else {
            return Err(failed(major::DEFECTIVE_TOKEN, "empty").into());
        };
        let (proof, rest) = rest.split_at_checked(8).ok_or_else(|| failed(major::DEFECTIVE_TOKEN, "short"))?;
        let refuses = faults.refuses.fetch_update(SeqCst, SeqCst, |left| left.checked_sub(1)).is_ok();
        if refuses || proof != hash((*secret, left)).to_be_bytes() {
            let token = Bytes::from_static(b"!another secret");
            return Err(StepFailed { error: failed(major::FAILURE, "another secret"), token });
        }
        let (&len, rest) = rest.split_first().ok_or_else(|| failed(major::DEFECTIVE_TOKEN, "no name"))?;
        let name = rest.get(..len.into()).ok_or_else(|| failed(major::DEFECTIVE_TOKEN, "short name"))?;
        let token = Bytes::from_static(b"go on");
        if left > 0 {
            return Ok(Step { token, established: None });
        }
        let context = Box::new(ToyContext { key: hash((*secret, name)), faults: Some(faults.clone()) });
        let established = Established { context, peer: Bytes::copy_from_slice(name), lifetime: *lifetime };
        Ok(Step { token, established: Some(established) })
    }
}

impl Initiator for ToyInitiator {
    fn begin(&self) -> Result<Box<dyn Negotiation>, GssError> {
        if !self.has_ticket.load(SeqCst) {
            return Err(failed(major::CREDENTIALS_EXPIRED, "ticket expired"));
        }
        Ok(Box::new(Initiating { own: self.clone(), left: self.rounds }))
    }

    fn blocks(&self) -> bool {
        false
    }
}

/// Every user of the client has this ticket, for every service.
impl Tickets for ToyInitiator {
    fn of_process(&self, _service: &str) -> Result<Arc<dyn Initiator>, GssError> {
        Ok(Arc::new(self.clone()))
    }

    fn of_user(&self, _service: &str, _uid: u32) -> Arc<dyn Initiator> {
        Arc::new(self.clone())
    }
}

struct Initiating {
    own: ToyInitiator,
    left: u8,
}

impl Negotiation for Initiating {
    fn step(&mut self, token: &[u8]) -> Result<Step, StepFailed> {
        let Self { own, left } = self;
        if let Some(reason) = token.strip_prefix(b"!") {
            return Err(failed(major::FAILURE, &String::from_utf8_lossy(reason)).into());
        }
        if *left == 0 {
            let context = Box::new(ToyContext::of(own.secret, own.user.as_bytes()));
            let established = Established { context, peer: Bytes::from_static(b"server"), lifetime: own.lifetime };
            return Ok(Step { token: Bytes::new(), established: Some(established) });
        }
        *left -= 1;
        let mut token = vec![*left];
        token.extend(hash((own.secret, *left)).to_be_bytes());
        token.push(own.user.len() as u8);
        token.extend(own.user.as_bytes());
        token.resize(token.len().max(own.token_len), 0);
        Ok(Step { token: token.into(), established: None })
    }
}

/// An established context.
pub struct ToyContext {
    key: u64,
    faults: Option<Arc<Faults>>,
}

impl ToyContext {
    /// Returns the context of a user.
    pub fn of(secret: u64, user: &[u8]) -> Self {
        Self { key: hash((secret, user)), faults: None }
    }

    fn encrypt(&self, message: &[u8]) -> Vec<u8> {
        let pad = |at: usize| (self.key.rotate_left(at as u32 % 64) >> 3) as u8;
        message.iter().enumerate().map(|(at, byte)| byte ^ pad(at)).collect()
    }
}

impl Context for ToyContext {
    fn mic(&self, message: &[u8]) -> Result<Bytes, GssError> {
        // Like a real one, its length is no multiple of four.
        Ok(Bytes::from([&hash((self.key, message)).to_be_bytes()[..], b"mic"].concat()))
    }

    fn verify(&self, message: &[u8], mic: &[u8]) -> Result<(), GssError> {
        if self.mic(message)? == mic { Ok(()) } else { Err(failed(major::BAD_SIG, "wrong checksum")) }
    }

    fn wrap(&self, message: &[&[u8]], out: &mut Vec<u8>) -> Result<(), GssError> {
        if self.faults.as_ref().is_some_and(|faults| faults.wrap_fails.load(SeqCst)) {
            return Err(failed(major::FAILURE, "cannot encrypt"));
        }
        let message = message.concat();
        out.extend(self.encrypt(&message));
        out.extend(self.mic(&message)?);
        Ok(())
    }

    fn unwrap(&self, token: &[u8]) -> Result<Bytes, GssError> {
        let at = token.len().checked_sub(11).ok_or_else(|| failed(major::DEFECTIVE_TOKEN, "short"))?;
        let message = self.encrypt(&token[..at]);
        self.verify(&message, &token[at..])?;
        Ok(message.into())
    }
}
