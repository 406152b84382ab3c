//! The serving side: [`ServerFlavor`], and how a reply is protected.

use std::net::SocketAddr;

use bytes::Bytes;
use xdr::{Decoder, Encode, Encoder, Message};

use super::{Executed, Identity, Tampered};
use crate::{
    AcceptStat, AuthStat, BoxFuture, CallHeader, ConnectionId, OpaqueAuth, PeerUser, REPLY_HEADER_LEN, ReplyBody,
    ReplyHeader, Xid,
    auth::{AUTH_NONE, AUTH_SYS},
};

/// A security flavour on the serving side.
pub trait ServerFlavor: Send + Sync + 'static {
    /// Its number in credentials.
    fn flavor(&self) -> u32;

    /// Decides about one transmission of a call. Procedure 0 also carries the flavour's own exchanges, which it answers by
    /// [`Verdict::Answered`].
    fn authenticate<'a>(&'a self, claim: Claim<'a>) -> Authentication<'a>;
}

/// A call that is to be authenticated.
#[derive(Clone, Debug)]
pub struct Claim<'a> {
    /// Its header: program, procedure, credential and verifier.
    pub header: &'a CallHeader,
    /// The bytes of the message from its XID to the end of its credential, which verifiers cover (RFC 2203 §5.3.1).
    pub signed: &'a [u8],
    /// Stands at the arguments, which may be wrapped.
    pub arguments: Decoder<'a>,
    /// The address that it came from.
    pub peer: SocketAddr,
    /// The connection that it came by.
    pub connection: ConnectionIdentity<'a>,
}

/// What is known of a connection, apart from the calls that it carries.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct ConnectionIdentity<'a> {
    /// The connection.
    pub id: ConnectionId,
    /// Its transport's name.
    pub transport: &'static str,
    /// The user at its other end, if the kernel knows.
    pub user: Option<&'a PeerUser>,
}

impl<'a> ConnectionIdentity<'a> {
    pub(crate) fn new(id: ConnectionId, transport: &'a dyn crate::Transport) -> Self {
        Self { id, transport: transport.caps().name, user: transport.peer_user() }
    }
}

/// A [`Verdict`], now or later.
pub enum Authentication<'a> {
    /// Now.
    Ready(Verdict),
    /// Later: a library may have to wait, and does so elsewhere.
    Pending(BoxFuture<'a, Verdict>),
}

/// What becomes of a transmission.
pub enum Verdict {
    /// The call is executed.
    Accepted(Accepted),
    /// The call was the flavour's own: this is the reply, with its verifier and results.
    Answered {
        /// The verifier.
        verifier: OpaqueAuth,
        /// The results, as XDR.
        results: Bytes,
    },
    /// The caller is refused.
    Denied(AuthStat),
    /// There is no reply (RFC 2203 §5.3.3.1: so a replayed sequence number is treated).
    Dropped,
}

/// A caller that is authenticated.
pub struct Accepted {
    /// Who calls.
    pub caller: Identity,
    /// The protection of the call's body and of its reply; none for AUTH_NONE and AUTH_SYS.
    pub protection: Option<Box<dyn Protection>>,
}

/// Protects the reply to one transmission of a call.
pub trait Protection: Send + Sync {
    /// The verifier of the reply. It is asked for once.
    ///
    /// # Errors
    /// It cannot be computed: nothing is sent.
    fn verifier(&self) -> Result<OpaqueAuth, Tampered>;

    /// Whether arguments and results are wrapped. If so, no payload may be placed.
    fn wraps(&self) -> bool {
        false
    }

    /// The arguments in clear.
    ///
    /// # Errors
    /// They are not what the caller has wrapped: the call is answered with GARBAGE_ARGS (RFC 2203 §5.3.3.4.2).
    fn unwrap(&self, arguments: Bytes) -> Result<Bytes, Tampered> {
        Ok(arguments)
    }

    /// Appends the results as they are sent to the reply's header.
    ///
    /// # Errors
    /// They cannot be wrapped: nothing is sent.
    fn wrap(&self, results: Bytes, reply: &mut Encoder) -> Result<(), Tampered> {
        reply.raw(&results);
        Ok(())
    }
}

/// The flavours of a server, AUTH_NONE and AUTH_SYS among them.
#[derive(Default)]
pub(crate) struct Flavors(Vec<std::sync::Arc<dyn ServerFlavor>>);

impl Flavors {
    /// # Panics
    /// If a flavour has the number of another.
    pub fn new(flavors: Vec<std::sync::Arc<dyn ServerFlavor>>) -> Self {
        let mut numbers: Vec<u32> = flavors.iter().map(|flavor| flavor.flavor()).chain([AUTH_NONE, AUTH_SYS]).collect();
        numbers.sort_unstable();
        assert!(numbers.windows(2).all(|pair| pair[0] != pair[1]), "two flavours of one number: {numbers:?}");
        Self(flavors)
    }

    /// Decides about a transmission.
    // Inline: AUTH_NONE and AUTH_SYS need nothing of the claim but the credential.
    #[inline]
    pub fn authenticate<'a>(&'a self, claim: Claim<'a>) -> Authentication<'a> {
        let number = claim.header.credential.flavor;
        if matches!(number, AUTH_NONE | AUTH_SYS) {
            let caller = Identity::plain(&claim.header.credential, &claim.header.verifier);
            return Authentication::Ready(match (caller, claim.connection.user) {
                (Ok(caller), None) => Verdict::Accepted(Accepted { caller, protection: None }),
                (Ok(caller), Some(user)) => {
                    Verdict::Accepted(Accepted { caller: user.confine(caller), protection: None })
                }
                (Err(stat), _) => Verdict::Denied(stat),
            });
        }
        self.authenticate_by_flavor(claim)
    }

    #[inline(never)]
    fn authenticate_by_flavor<'a>(&'a self, claim: Claim<'a>) -> Authentication<'a> {
        match self.0.iter().find(|flavor| flavor.flavor() == claim.header.credential.flavor) {
            Some(flavor) => flavor.authenticate(claim),
            None => Authentication::Ready(Verdict::Denied(AuthStat::RejectedCred)),
        }
    }
}

/// The arguments of a call with a wrapped body, in clear.
///
/// # Errors
/// The body does not verify, or a part of it was taken out of the stream.
pub(crate) fn unwrap_arguments(
    protection: &dyn Protection,
    message: &Message,
    arguments: &Decoder<'_>,
) -> Result<Message, Tampered> {
    // RFC 8166 §8.2.2: nothing of a wrapped body may be reduced.
    if !message.payloads.is_empty() {
        return Err(Tampered);
    }
    let body = message.stream.slice(message.stream.len() - arguments.remaining()..);
    protection.unwrap(body).map(Message::from)
}

/// Makes the transmissions of a reply.
pub(crate) struct Reply<'a> {
    pub xid: Xid,
    pub protection: Option<&'a dyn Protection>,
    /// Longest message of the transport.
    pub message_max: usize,
}

impl Reply<'_> {
    /// The message of one transmission; none if nothing may be sent.
    #[inline]
    pub fn transmission(&self, executed: Executed) -> Option<Message> {
        let Some(protection) = self.protection else {
            return Some(match executed {
                // Its header is right: see `Call::encoder`.
                Executed::Results(message) => message,
                Executed::Failed(stat) => ReplyHeader { xid: self.xid, body: ReplyBody::accepted(stat) }.to_message(),
            });
        };
        let protected = self.protect(protection, executed);
        if protected.is_err() {
            tracing::error!(xid = self.xid.0, "a reply that cannot be protected is not sent");
        }
        protected.ok()
    }

    #[inline(never)]
    fn protect(&self, protection: &dyn Protection, executed: Executed) -> Result<Message, Tampered> {
        let verifier = protection.verifier()?;
        let results = match executed {
            Executed::Failed(stat) => return Ok(self.header(verifier, stat, 0).finish()),
            Executed::Results(message) => message,
        };
        let (mut message, body) = match protection.wraps() {
            // What would be sent from a file is read here.
            true => (Message::default(), gather(&results, REPLY_HEADER_LEN)?),
            false => {
                let body = results.stream.slice(REPLY_HEADER_LEN..);
                (Message { stream: Bytes::new(), payloads: results.payloads }, body)
            }
        };
        let mut reply = self.header(verifier.clone(), AcceptStat::Success, body.len());
        let longer = (reply.stream_len() - REPLY_HEADER_LEN) as u32;
        match protection.wraps() {
            true => protection.wrap(body, &mut reply)?,
            false => reply.raw(&body),
        }
        message.stream = reply.finish().stream;
        message.payloads.iter_mut().filter_map(|payload| payload.position.as_mut()).for_each(|at| *at += longer);
        // The transport would answer for itself, without the verifier.
        if message.len() > self.message_max {
            return Ok(self.header(verifier, AcceptStat::SystemErr, 0).finish());
        }
        Ok(message)
    }

    /// The header, with room for a body of `len` bytes and what wrapping adds.
    fn header(&self, verifier: OpaqueAuth, stat: AcceptStat, len: usize) -> Encoder {
        let mut encoder = Encoder::with_capacity(512 + len);
        ReplyHeader { xid: self.xid, body: ReplyBody::Accepted { verifier, stat } }.encode(&mut encoder);
        encoder
    }
}

/// The bytes of a message from `start` on, payloads included, in one piece.
///
/// # Errors
/// A file that cannot be read.
pub(super) fn gather(message: &Message, start: usize) -> Result<Bytes, Tampered> {
    if message.payloads.is_empty() {
        return Ok(message.stream.slice(start..));
    }
    let whole = message.to_rope();
    whole.slice(start, whole.len() - start).to_bytes().map_err(|error| {
        tracing::error!(%error, "a file of which a reply consists cannot be read");
        Tampered
    })
}
