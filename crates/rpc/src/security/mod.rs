//! Security flavours: who calls, what proves it, and how bodies are protected on their way.
//!
//! Read RFC 5531 §8 and, for the mechanism that this seam is cut for, RFC 2203 §5.
//!
//! A *flavour* belongs to one number in the credential. AUTH_NONE and AUTH_SYS are built in: they prove nothing, need no
//! verifier and protect no body, so their calls take no dynamic call and no copy. Every other flavour is a
//! [`ServerFlavor`] on the serving side, added by [`ServerBuilder::flavor`](crate::ServerBuilder::flavor), and a
//! [`ClientFlavor`] on the calling side, chosen by [`Credential::Flavor`].
//!
//! What belongs to a call and what belongs to a *transmission* of it are different things. A call is executed once, by one
//! [`Identity`]; it may be sent several times, and so may its reply. Each transmission has its own sequence number, verifier
//! and wrapped body. So caches keep results ([`Executed`]), and the message is made for each transmission.
//!
//! **No payload may be placed** where bodies are wrapped (RFC 8166 §8.2.2): the checksum or the cipher covers all of it, so no
//! transport may take a payload out of the stream. Messages with a wrapped body have no payloads, and the plans of their
//! replies offer none ([`ReplyPlan::without_placement`](crate::ReplyPlan)): a transport cannot place what it does not know of.
//!
//! On error: a caller that cannot be authenticated is denied, or gets no answer, as its flavour says. A body that does not
//! verify is answered with GARBAGE_ARGS on the serving side and retransmitted by the client. Results that cannot be wrapped
//! are not sent at all.

mod client;
mod protected;
mod server;

use bytes::Bytes;

pub(crate) use client::encode_start;
pub use client::{Channel, ClientFlavor, ControlReply, Credential, NotReady, Transmission};
pub(crate) use protected::{Genuine, ProtectedCall};
pub use server::{Accepted, Authentication, Claim, ConnectionIdentity, Protection, ServerFlavor, Verdict};
pub(crate) use server::{Flavors, Reply, unwrap_arguments};

use crate::{AcceptError, AcceptStat, AuthSys};

/// Who calls, as services see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Identity {
    /// AUTH_NONE.
    None,
    /// AUTH_SYS: numbers that the caller claims.
    Sys(AuthSys),
    /// A name that a flavour has established.
    Principal(Principal),
}

/// A caller that a flavour knows by name.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Principal {
    /// Its name in the flavour's own form, such as `user@REALM`.
    pub name: Bytes,
    /// The number that stands for flavour, mechanism and protection together (RFC 7530 §3.2.1.1: "pseudo flavor"), such as
    /// 390004 for Kerberos 5 with integrity.
    pub pseudo_flavor: u32,
}

/// A body that is not what its sender has protected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tampered;

/// The outcome of executing a call. Each transmission of its reply is made from it.
#[derive(Clone, Debug)]
pub enum Executed {
    /// The results, behind [`REPLY_HEADER_LEN`](crate::REPLY_HEADER_LEN) bytes for the header: see
    /// [`Service::call`](crate::Service::call).
    Results(xdr::Message),
    /// The call was accepted, but not executed.
    Failed(AcceptStat),
}

impl Executed {
    /// The outcome of a service's work; none if its caller gets no reply.
    pub(crate) fn of(result: Result<xdr::Message, AcceptError>) -> Option<Self> {
        match result {
            Ok(results) => Some(Executed::Results(results)),
            Err(AcceptError::GarbageArgs) => Some(Executed::Failed(AcceptStat::GarbageArgs)),
            Err(AcceptError::SystemErr) => Some(Executed::Failed(AcceptStat::SystemErr)),
            Err(AcceptError::Drop) => None,
        }
    }

    /// Bytes that a cache keeps for it.
    pub(crate) fn len(&self) -> usize {
        match self {
            Executed::Results(message) => message.len(),
            Executed::Failed(_) => crate::REPLY_HEADER_LEN,
        }
    }
}
