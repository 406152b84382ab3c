//! The identifiers by which the parts of the state refer to each other.

use bytes::Bytes;
use nfs::v4::{Clientid4, Sequenceid4, Sessionid4, Slotid4};

/// The identity that sends a request, as far as the ownership of state is concerned.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Principal {
    /// AUTH_NONE.
    None,
    /// AUTH_SYS.
    Sys {
        /// The user ID.
        uid: u32,
        /// The group ID.
        gid: u32,
    },
    /// RPCSEC_GSS. The protection of the call is no part of it: see [`Client::refuses`](super::client::Client::refuses).
    Gss(Bytes),
}

impl Principal {
    /// Returns `true` if the caller has proved that it is this principal.
    pub fn is_proved(&self) -> bool {
        matches!(self, Self::Gss(_))
    }

    /// Returns `true` if both are the same user. The group of AUTH_SYS can change.
    pub fn is_same_user(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Sys { uid, .. }, Self::Sys { uid: other, .. }) => uid == other,
            (one, other) => one == other,
        }
    }
}

/// A request that created state to which a callback refers (RFC 8881 §2.10.6.3). The three values identify a request of
/// a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReferringCall {
    /// The session.
    pub session: Sessionid4,
    /// Its slot.
    pub slot: Slotid4,
    /// The sequence ID in the slot.
    pub sequence: Sequenceid4,
}

/// The part of a stateid that never changes.
pub type Other = [u8; 12];

/// Returns the client of a session. A session ID begins with the client ID.
pub(in crate::v4) fn client_of(Sessionid4(id): &Sessionid4) -> Clientid4 {
    let [a, b, c, d, e, f, g, h, ..] = *id;
    Clientid4(u64::from_be_bytes([a, b, c, d, e, f, g, h]))
}
