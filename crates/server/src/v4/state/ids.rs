//! The names by which the files of the state refer to each other's data.

use bytes::Bytes;
use nfs::v4::{Clientid4, Sessionid4};

/// Who sends a request, as far as the owner of state is concerned.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Principal {
    /// Nobody in particular.
    None,
    /// AUTH_SYS.
    Sys {
        /// User.
        uid: u32,
        /// Group.
        gid: u32,
    },
    /// RPCSEC_GSS with integrity or privacy.
    Gss(Bytes),
}

/// The part of a stateid that never changes.
pub type Other = [u8; 12];

/// Whose session it is: its ID begins with the client's.
pub(super) fn client_of(Sessionid4(id): &Sessionid4) -> Clientid4 {
    let [a, b, c, d, e, f, g, h, ..] = *id;
    Clientid4(u64::from_be_bytes([a, b, c, d, e, f, g, h]))
}
