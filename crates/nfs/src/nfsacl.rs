//! NFS_ACL, version 3: POSIX access control lists for NFSv3, as in Solaris and Linux. No RFC defines this protocol. Its
//! definition is Linux, `fs/nfs_common/nfsacl.c` and `include/uapi/linux/nfsacl.h`. No part of it may be placed
//! directly by RDMA (RFC 8267 §4.2).

use xdr::{Array, Decode, Encode};

use crate::v3::{NfsFh3, PostOpAttr, Res3};

/// The program number.
pub const NFSACL_PROGRAM: u32 = 100_227;
/// The version number.
pub const VERSION: u32 = 3;

/// The procedures.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum AclProc3 {
    /// Do nothing.
    Null = 0,
    /// Get access control lists: [`GetAclArgs`] to [`GetAclRes`].
    GetAcl = 1,
    /// Set access control lists: [`SetAclArgs`] to [`SetAclRes`].
    SetAcl = 2,
}

impl AclProc3 {
    /// Returns the procedure with this number.
    pub fn from_number(number: u32) -> Option<Self> {
        [AclProc3::Null, AclProc3::GetAcl, AclProc3::SetAcl].get(number as usize).copied()
    }

    /// Returns the name.
    pub const fn name(self) -> &'static str {
        match self {
            AclProc3::Null => "NULL",
            AclProc3::GetAcl => "GETACL",
            AclProc3::SetAcl => "SETACL",
        }
    }
}

/// Mask bit for the access control list.
pub const NFS_ACL: u32 = 0x1;
/// Mask bit for the number of entries in the access control list.
pub const NFS_ACLCNT: u32 = 0x2;
/// Mask bit for the default access control list of a directory.
pub const NFS_DFACL: u32 = 0x4;
/// Mask bit for the number of entries in the default access control list.
pub const NFS_DFACLCNT: u32 = 0x8;

/// The entry for the owner.
pub const ACL_USER_OBJ: u32 = 0x01;
/// An entry for a user.
pub const ACL_USER: u32 = 0x02;
/// The entry for the owning group.
pub const ACL_GROUP_OBJ: u32 = 0x04;
/// An entry for a group.
pub const ACL_GROUP: u32 = 0x08;
/// The mask entry.
pub const ACL_MASK: u32 = 0x10;
/// The entry for all other users.
pub const ACL_OTHER: u32 = 0x20;
/// Flag of an entry in a default access control list, in addition to its kind.
pub const ACL_DEFAULT: u32 = 0x1000;

/// Maximum number of entries in a list.
pub const ENTRIES_MAX: usize = 1024;

/// An entry of an access control list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub struct AclEntry {
    /// The kind: one of the `ACL_` constants.
    pub kind: u32,
    /// The user or group ID. It has no meaning in entries of other kinds.
    pub id: u32,
    /// The permissions: read is 4, write is 2, execute is 1.
    pub perm: u32,
}

/// An access control list.
#[derive(Clone, Debug, Default, PartialEq, Eq, Encode, Decode)]
pub struct Acl {
    /// The number of entries, even if the entries are omitted.
    pub count: u32,
    /// The entries.
    pub entries: Array<AclEntry, ENTRIES_MAX>,
}

/// Both lists of an object (`secattr`).
#[derive(Clone, Debug, Default, PartialEq, Eq, Encode, Decode)]
pub struct SecAttr {
    /// The parts that are present: [`NFS_ACL`], [`NFS_ACLCNT`], [`NFS_DFACL`], [`NFS_DFACLCNT`].
    pub mask: u32,
    /// The access control list.
    pub acl: Acl,
    /// The default access control list.
    pub default_acl: Acl,
}

/// GETACL arguments.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct GetAclArgs {
    /// The object.
    pub fh: NfsFh3,
    /// The requested parts.
    pub mask: u32,
}

/// A successful GETACL.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct GetAclOk {
    /// The object's attributes.
    pub attr: PostOpAttr,
    /// The access control lists.
    pub acl: SecAttr,
}

/// GETACL results.
pub type GetAclRes = Res3<GetAclOk, PostOpAttr>;

/// SETACL arguments.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct SetAclArgs {
    /// The object.
    pub fh: NfsFh3,
    /// The access control lists.
    pub acl: SecAttr,
}

/// SETACL results: the object's attributes, even if the operation failed.
pub type SetAclRes = Res3<PostOpAttr, PostOpAttr>;

#[cfg(test)]
mod tests {
    use xdr::{DecodeErrorKind, Message};

    use super::*;

    #[test]
    fn lists_have_counts() {
        let entries = |kinds: &[u32]| Array(kinds.iter().map(|&kind| AclEntry { kind, id: 7, perm: 5 }).collect());
        let acl = SecAttr {
            mask: NFS_ACL | NFS_ACLCNT,
            acl: Acl { count: 2, entries: entries(&[ACL_USER_OBJ, ACL_OTHER]) },
            default_acl: Acl::default(),
        };
        let args = SetAclArgs { fh: "fh".into(), acl };
        let message = Message::encode(&args);
        let words = [2, 0x66680000, 3, 2, 2, 1, 7, 5, 0x20, 7, 5, 0, 0];
        let expected: Vec<u8> = words.iter().flat_map(|word: &u32| word.to_be_bytes()).collect();
        assert_eq!(message.stream[..], expected);
        assert_eq!(message.decode::<SetAclArgs>(), Ok(args));
        for len in 0..expected.len() {
            assert!(Message::from(message.stream.slice(..len)).decode::<SetAclArgs>().is_err());
        }
    }

    #[test]
    fn list_with_too_many_entries_is_rejected() {
        let mut words = vec![0u32, 1025];
        words.extend([1; 3 * 1025]);
        let bytes: bytes::Bytes = words.iter().flat_map(|word| word.to_be_bytes()).collect();
        let error = Message::from(bytes).decode::<Acl>().unwrap_err();
        assert_eq!(error.kind, DecodeErrorKind::TooLong { len: 1025, max: 1024 });
    }
}
