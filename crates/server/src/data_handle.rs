//! [`DataHandle`]: a file handle of NFSv4 with which a client of a files layout uses an object of a data server.
//!
//! Read RFC 8881 §13.6 and §13.9.1 first. A client of a files layout calls a data server as its own user, and with a stateid of the
//! metadata server, which a data server does not know. So the handle says as which user a client with a layout acts, as the layout
//! itself does in flexible files (RFC 8435 §2.2): the metadata server makes the handle from that of the object, and a fence, which
//! gives the object to other users, is in force for both types of layouts.
//!
//! | bytes | contents |
//! |---|---|
//! | 0 | version of this layout: 2. No [sealed handle](crate::HandleKey) has this version |
//! | 1–4 | the user, big-endian |
//! | 5–8 | the group, big-endian |
//! | 9–end | the handle that the data server has made for the object |
//!
//! **Security.** The handle proves no more than AUTH_SYS does: who knows the handle of an object and its users can use it, and
//! could do so by AUTH_SYS. Only users of pNFS are accepted, so nobody can act as a person or as root. The export decides about the
//! host, the transport and the security flavour as for each other handle.

use bytes::{BufMut, Bytes, BytesMut};
use vfs::{Cred, VfsError};

/// A file handle for a client of a files layout.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DataHandle {
    /// The user as which the client acts: one of [`DataHandle::USERS`].
    pub uid: u32,
    /// The group as which the client acts: one of [`DataHandle::USERS`].
    pub gid: u32,
    /// The handle of the object, as its data server has made it.
    pub object: Bytes,
}

impl DataHandle {
    /// The users and groups of objects. No person and no system has these numbers.
    pub const USERS: std::ops::Range<u32> = 1 << 30..1 << 31;

    /// Returns the bytes of the handle.
    pub fn encode(&self) -> Bytes {
        let mut bytes = BytesMut::with_capacity(HEADER_LEN + self.object.len());
        bytes.put_u8(VERSION);
        bytes.put_u32(self.uid);
        bytes.put_u32(self.gid);
        bytes.put_slice(&self.object);
        bytes.freeze()
    }

    /// Divides a handle into the user as which its client acts, and the handle of the object. Returns `None` if it is of another
    /// kind.
    ///
    /// # Errors
    /// Returns `BadHandle` if the user or the group is none of pNFS.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Option<(Cred, &[u8])>, VfsError> {
        let Some((&VERSION, rest)) = bytes.split_first() else { return Ok(None) };
        let ([a, b, c, d, e, f, g, h], object) = rest.split_first_chunk().ok_or(VfsError::BadHandle)?;
        let (uid, gid) = (u32::from_be_bytes([*a, *b, *c, *d]), u32::from_be_bytes([*e, *f, *g, *h]));
        if !Self::USERS.contains(&uid) || !Self::USERS.contains(&gid) {
            return Err(VfsError::BadHandle);
        }
        Ok(Some((Cred { uid, gid, groups: Default::default() }, object)))
    }
}

const VERSION: u8 = 2;
const HEADER_LEN: usize = 9;
const _: () = assert!(HEADER_LEN + crate::handle::SEALED_MAX <= nfs::v4::FHSIZE4);

#[cfg(test)]
mod tests {
    use super::*;

    const USER: u32 = DataHandle::USERS.start;

    #[test]
    fn handle_has_its_user_and_the_handle_of_the_object() {
        let object = Bytes::from_static(b"object");
        let bytes = DataHandle { uid: USER + 1, gid: USER + 2, object: object.clone() }.encode();
        let (cred, found) = DataHandle::decode(&bytes).unwrap().unwrap();
        assert_eq!((cred.uid, cred.gid, cred.groups.len(), found), (USER + 1, USER + 2, 0, &object[..]));
    }

    #[test]
    fn nobody_acts_as_a_person_or_as_root() {
        for (uid, gid) in [(0, USER), (USER, 0), (USER - 1, USER), (USER, 1 << 31), (u32::MAX, USER)] {
            let bytes = DataHandle { uid, gid, object: Bytes::from_static(b"object") }.encode();
            assert_eq!(DataHandle::decode(&bytes), Err(VfsError::BadHandle), "{uid} {gid}");
        }
    }

    #[test]
    fn other_handles_are_not_of_this_kind() {
        assert_eq!(DataHandle::decode(b""), Ok(None));
        assert_eq!(DataHandle::decode(&[1; 40]), Ok(None), "a sealed handle");
        for len in 1..HEADER_LEN {
            let handle = [&[VERSION][..], &[0x40; 8]].concat();
            assert_eq!(DataHandle::decode(&handle[..len]), Err(VfsError::BadHandle), "{len} bytes");
        }
    }
}
