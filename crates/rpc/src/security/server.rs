//! The server side: [`ServerFlavor`], and the protection of replies.

use std::net::SocketAddr;

use bytes::Bytes;
use xdr::{Decoder, Encode, Encoder, Message};

use super::{Executed, Identity, Tampered};
use crate::{
    AcceptStat, AuthStat, BoxFuture, CallHeader, ConnectionId, ConnectionTls, Hosts, OpaqueAuth, PeerUser,
    REPLY_HEADER_LEN, ReplyBody, ReplyHeader, Xid,
    auth::{AUTH_NONE, AUTH_SYS},
    tls::AUTH_TLS,
};

/// A security flavour on the server side.
pub trait ServerFlavor: Send + Sync + 'static {
    /// Returns the number of the flavour in credentials.
    fn flavor(&self) -> u32;

    /// Decides about one transmission of a call. Procedure 0 also carries the flavour's own exchanges, to which it
    /// replies with [`Verdict::Answered`].
    fn authenticate<'a>(&'a self, claim: Claim<'a>) -> Authentication<'a>;
}

/// A call to be authenticated.
#[derive(Clone, Debug)]
pub struct Claim<'a> {
    /// The header: program, procedure, credential and verifier.
    pub header: &'a CallHeader,
    /// The bytes of the message from the XID to the end of the credential, which verifiers cover (RFC 2203 §5.3.1).
    pub signed: &'a [u8],
    /// A decoder at the start of the arguments, which can be wrapped.
    pub arguments: Decoder<'a>,
    /// The address of the caller.
    pub peer: SocketAddr,
    /// The connection on which the call arrived.
    pub connection: ConnectionIdentity<'a>,
    /// The hosts that the server admits.
    pub(crate) hosts: &'a Hosts,
}

impl Claim<'_> {
    /// Returns `true` if the server admits the host of the caller: see [`ServerBuilder::hosts`](crate::ServerBuilder::hosts).
    pub fn is_admitted(&self) -> bool {
        self.hosts.admit(self.peer.ip())
    }
}

/// The properties of a connection, independent of the calls on it.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct ConnectionIdentity<'a> {
    /// The ID of the connection.
    pub id: ConnectionId,
    /// The name of the transport.
    pub transport: &'static str,
    /// The user at the other end, if the kernel reports it.
    pub user: Option<&'a PeerUser>,
    /// The protection of the connection by TLS.
    pub tls: &'a ConnectionTls,
    /// `true` if the listener of the connection offers TLS.
    pub(crate) offers_tls: bool,
}

impl<'a> ConnectionIdentity<'a> {
    pub(crate) fn new(id: ConnectionId, transport: &'a dyn crate::Transport) -> Self {
        let (tls, offers_tls) = (transport.tls(), transport.offers_tls());
        Self { id, transport: transport.caps().name, user: transport.peer_user(), tls, offers_tls }
    }
}

/// A [`Verdict`] that is available now or later.
pub enum Authentication<'a> {
    /// The verdict is available.
    Ready(Verdict),
    /// The verdict is available later: the future waits for a library that runs on another thread.
    Pending(BoxFuture<'a, Verdict>),
}

/// The decision about a transmission.
pub enum Verdict {
    /// Execute the call.
    Accepted(Accepted),
    /// The call was an exchange of the flavour. Send a reply with this verifier and these results.
    Answered {
        /// The verifier of the reply.
        verifier: OpaqueAuth,
        /// The results, as XDR.
        results: Bytes,
    },
    /// Reject the caller.
    Denied(AuthStat),
    /// Send no reply. RFC 2203 §5.3.3.1 requires this for a replayed sequence number.
    Dropped,
}

/// The identity and protection of an authenticated caller.
pub struct Accepted {
    /// The identity of the caller.
    pub caller: Identity,
    /// The protection of the call's body and of its reply; `None` for AUTH_NONE and AUTH_SYS.
    pub protection: Option<Box<dyn Protection>>,
}

/// The protection of one transmission of a call and of its reply.
pub trait Protection: Send + Sync {
    /// Computes the verifier of the reply. It is called once.
    ///
    /// # Errors
    /// The verifier cannot be computed; nothing is sent.
    fn verifier(&self) -> Result<OpaqueAuth, Tampered>;

    /// Returns `true` if arguments and results are wrapped. Then no payload can be placed.
    fn wraps(&self) -> bool {
        false
    }

    /// Unwraps the arguments.
    ///
    /// # Errors
    /// The arguments differ from what the caller has wrapped; the call is answered with GARBAGE_ARGS (RFC 2203
    /// §5.3.3.4.2).
    fn unwrap(&self, arguments: Bytes) -> Result<Bytes, Tampered> {
        Ok(arguments)
    }

    /// Appends the results, in the form that is sent, to the reply's header.
    ///
    /// # Errors
    /// The results cannot be wrapped; nothing is sent.
    fn wrap(&self, results: Bytes, reply: &mut Encoder) -> Result<(), Tampered> {
        reply.raw(&results);
        Ok(())
    }
}

/// The flavours of a server, including AUTH_NONE and AUTH_SYS.
#[derive(Default)]
pub(crate) struct Flavors(Vec<std::sync::Arc<dyn ServerFlavor>>);

impl Flavors {
    /// # Panics
    /// If a flavour has the number of another.
    pub fn new(flavors: Vec<std::sync::Arc<dyn ServerFlavor>>) -> Self {
        let mut numbers: Vec<u32> =
            flavors.iter().map(|flavor| flavor.flavor()).chain([AUTH_NONE, AUTH_SYS, AUTH_TLS]).collect();
        numbers.sort_unstable();
        assert!(
            numbers.windows(2).all(|pair| pair[0] != pair[1]),
            "two flavours must not have the same number: {numbers:?}"
        );
        Self(flavors)
    }

    /// Decides about a transmission.
    // This is inlined because AUTH_NONE and AUTH_SYS use only the credential of the claim.
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
            // RFC 9289 §4.1: the transport answers the probe. All other uses of AUTH_TLS are malformed.
            None if claim.header.credential.flavor == AUTH_TLS && claim.connection.offers_tls => {
                Authentication::Ready(Verdict::Denied(AuthStat::BadCred))
            }
            None => Authentication::Ready(Verdict::Denied(AuthStat::RejectedCred)),
        }
    }
}

/// Unwraps the arguments of a call with a wrapped body.
///
/// # Errors
/// The body cannot be verified, or a part of it was removed from the stream.
pub(crate) fn unwrap_arguments(
    protection: &dyn Protection,
    message: &Message,
    arguments: &Decoder<'_>,
) -> Result<Message, Tampered> {
    // RFC 8166 §8.2.2: no part of a wrapped body can be reduced.
    if !message.payloads.is_empty() {
        return Err(Tampered);
    }
    let body = message.stream.slice(message.stream.len() - arguments.remaining()..);
    protection.unwrap(body).map(Message::from)
}

/// The maker of the transmissions of a reply.
pub(crate) struct Reply<'a> {
    pub xid: Xid,
    pub protection: Option<&'a dyn Protection>,
    /// Maximum length of a message of the transport in bytes.
    pub message_max: usize,
}

impl Reply<'_> {
    /// Creates the message of one transmission. Returns `None` if nothing can be sent.
    #[inline]
    pub fn transmission(&self, executed: Executed) -> Option<Message> {
        let Some(protection) = self.protection else {
            return Some(match executed {
                // The message has the correct header: see `Call::encoder`.
                Executed::Results(message) => message,
                Executed::Failed(stat) => ReplyHeader { xid: self.xid, body: ReplyBody::accepted(stat) }.to_message(),
            });
        };
        let protected = self.protect(protection, executed);
        if protected.is_err() {
            tracing::error!(xid = self.xid.0, "a reply could not be protected and was not sent");
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
            // File ranges are read here.
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
        // Without this check, the transport would send its own error reply, which has no verifier.
        if message.len() > self.message_max {
            return Ok(self.header(verifier, AcceptStat::SystemErr, 0).finish());
        }
        Ok(message)
    }

    /// Encodes the header, with room for a body of `len` bytes and what wrapping adds.
    fn header(&self, verifier: OpaqueAuth, stat: AcceptStat, len: usize) -> Encoder {
        let mut encoder = Encoder::with_capacity(512 + len);
        ReplyHeader { xid: self.xid, body: ReplyBody::Accepted { verifier, stat } }.encode(&mut encoder);
        encoder
    }
}

/// Copies the bytes of a message from `start` on, payloads included, into one piece.
///
/// # Errors
/// A file range cannot be read.
pub(super) fn gather(message: &Message, start: usize) -> Result<Bytes, Tampered> {
    if message.payloads.is_empty() {
        return Ok(message.stream.slice(start..));
    }
    let whole = message.to_rope();
    whole.slice(start, whole.len() - start).to_bytes().map_err(|error| {
        tracing::error!(%error, "a file range of a message could not be read");
        Tampered
    })
}
