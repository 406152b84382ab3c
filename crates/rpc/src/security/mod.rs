//! Security flavours: the identity of callers, its proof, and the protection of bodies.
//!
//! Read RFC 5531 §8 and RFC 2203 §5; this interface is designed for the latter's mechanism.
//!
//! A *flavour* belongs to one number in the credential. AUTH_NONE and AUTH_SYS are built in. They prove nothing, need
//! no verifier and protect no body, so their calls need no dynamic dispatch and no copy. Every other flavour is a
//! [`ServerFlavor`] on the server side, added by [`ServerBuilder::flavor`](crate::ServerBuilder::flavor), and a
//! [`ClientFlavor`] on the client side, chosen by [`Credential::Flavor`].
//!
//! A call differs from its *transmissions*. A call is executed once, for one [`Identity`]. It can be sent several
//! times, and so can its reply. Each transmission has its own sequence number, verifier and wrapped body. Therefore
//! caches keep results ([`Executed`]), and the message is made for each transmission.
//!
//! **No payload can be placed** if bodies are wrapped (RFC 8166 §8.2.2): the checksum or the cipher covers the whole
//! body, so no transport can remove a payload from the stream. Messages with a wrapped body have no payloads, and the
//! plans of their replies offer no sink ([`ReplyPlan::without_placement`](crate::ReplyPlan)): a transport cannot place
//! a payload that it does not know of.
//!
//! On error: a caller that cannot be authenticated is denied, or gets no answer, as its flavour decides. If a body
//! cannot be verified, the server answers with GARBAGE_ARGS and the client retransmits. Results that cannot be wrapped
//! are not sent.

mod client;
mod protected;
mod server;

use bytes::Bytes;

pub(crate) use client::encode_start;
pub use client::{Channel, ClientFlavor, ControlReply, Credential, LastMessage, NotReady, Place, Transmission};
pub(crate) use protected::{ProtectedCall, VerifiedReply};
pub use server::{Accepted, Authentication, Claim, ConnectionIdentity, Protection, ServerFlavor, Verdict};
pub(crate) use server::{Flavors, Reply, unwrap_arguments};

use crate::{AcceptError, AcceptStat, AuthSys};

/// The identity of the caller, as services see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Identity {
    /// AUTH_NONE.
    None,
    /// AUTH_SYS: the numbers that the caller claims.
    Sys(AuthSys),
    /// A name that a flavour has authenticated.
    Principal(Principal),
}

/// A caller whose name a flavour has authenticated.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Principal {
    /// The name in the flavour's own form, such as `user@REALM`.
    pub name: Bytes,
    /// The number for flavour, mechanism and protection together (RFC 7530 §3.2.1.1: "pseudo flavor"), such as 390004
    /// for Kerberos 5 with integrity.
    pub pseudo_flavor: u32,
}

/// The error that a body differs from what its sender has protected, or cannot be protected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tampered;

/// The outcome of a call. Each transmission of its reply is made from it.
#[derive(Clone, Debug)]
pub enum Executed {
    /// The results, behind [`REPLY_HEADER_LEN`](crate::REPLY_HEADER_LEN) bytes for the header: see
    /// [`Service::call`](crate::Service::call).
    Results(xdr::Message),
    /// The call was accepted but not executed.
    Failed(AcceptStat),
}

impl Executed {
    /// Converts the result of a service. Returns `None` if the caller gets no reply.
    pub(crate) fn of(result: Result<xdr::Message, AcceptError>) -> Option<Self> {
        match result {
            Ok(results) => Some(Executed::Results(results)),
            Err(AcceptError::GarbageArgs) => Some(Executed::Failed(AcceptStat::GarbageArgs)),
            Err(AcceptError::SystemErr) => Some(Executed::Failed(AcceptStat::SystemErr)),
            Err(AcceptError::Drop) => None,
        }
    }

    /// Returns the bytes that a cache keeps for this outcome.
    pub(crate) fn len(&self) -> usize {
        match self {
            Executed::Results(message) => message.len(),
            Executed::Failed(_) => crate::REPLY_HEADER_LEN,
        }
    }
}
