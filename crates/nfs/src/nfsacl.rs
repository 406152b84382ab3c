//! NFS_ACL, version 3: POSIX access control lists beside NFSv3, as Solaris and Linux have them. No RFC defines it;
//! Linux does, in `fs/nfs_common/nfsacl.c` and `include/uapi/linux/nfsacl.h`. Nothing of it may be placed directly by
//! RDMA (RFC 8267 §4.2).

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
    /// Set them: [`SetAclArgs`] to [`SetAclRes`].
    SetAcl = 2,
}

impl AclProc3 {
    /// The procedure of this number.
    pub fn from_number(number: u32) -> Option<Self> {
        [AclProc3::Null, AclProc3::GetAcl, AclProc3::SetAcl].get(number as usize).copied()
    }

    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            AclProc3::Null => "NULL",
            AclProc3::GetAcl => "GETACL",
            AclProc3::SetAcl => "SETACL",
        }
    }
}

/// The access control list is wanted, or there.
pub const NFS_ACL: u32 = 0x1;
/// Its number of entries is.
pub const NFS_ACLCNT: u32 = 0x2;
/// The default access control list of a directory is.
pub const NFS_DFACL: u32 = 0x4;
/// Its number of entries is.
pub const NFS_DFACLCNT: u32 = 0x8;

/// Entry of the owner.
pub const ACL_USER_OBJ: u32 = 0x01;
/// Entry of a user.
pub const ACL_USER: u32 = 0x02;
/// Entry of the owning group.
pub const ACL_GROUP_OBJ: u32 = 0x04;
/// Entry of a group.
pub const ACL_GROUP: u32 = 0x08;
/// The mask.
pub const ACL_MASK: u32 = 0x10;
/// Entry of all others.
pub const ACL_OTHER: u32 = 0x20;
/// In entries of a default access control list, beside one of those before.
pub const ACL_DEFAULT: u32 = 0x1000;

/// Most entries of a list.
pub const ENTRIES_MAX: usize = 1024;

/// An entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub struct AclEntry {
    /// One of the `ACL_` kinds.
    pub kind: u32,
    /// User or group; of no meaning in entries of others.
    pub id: u32,
    /// Read 4, write 2, execute 1.
    pub perm: u32,
}

/// An access control list.
#[derive(Clone, Debug, Default, PartialEq, Eq, Encode, Decode)]
pub struct Acl {
    /// How many entries there are, also when they do not follow.
    pub count: u32,
    /// The entries.
    pub entries: Array<AclEntry, ENTRIES_MAX>,
}

/// Both lists of an object (`secattr`).
#[derive(Clone, Debug, Default, PartialEq, Eq, Encode, Decode)]
pub struct SecAttr {
    /// What is there: [`NFS_ACL`], [`NFS_ACLCNT`], [`NFS_DFACL`], [`NFS_DFACLCNT`].
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
    /// What is wanted.
    pub mask: u32,
}

/// A successful GETACL.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct GetAclOk {
    /// The object's attributes.
    pub attr: PostOpAttr,
    /// Its lists.
    pub acl: SecAttr,
}

/// GETACL results.
pub type GetAclRes = Res3<GetAclOk, PostOpAttr>;

/// SETACL arguments.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct SetAclArgs {
    /// The object.
    pub fh: NfsFh3,
    /// Its lists.
    pub acl: SecAttr,
}

/// SETACL results: the object's attributes, also of a failure.
pub type SetAclRes = Res3<PostOpAttr, PostOpAttr>;

#[cfg(test)]
mod tests {
    use xdr::{DecodeErrorKind, Message};

    use super::*;

    #[test]
    fn lists_come_with_their_counts() {
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
    fn a_list_of_too_many_entries_is_refused() {
        let mut words = vec![0u32, 1025];
        words.extend([1; 3 * 1025]);
        let bytes: bytes::Bytes = words.iter().flat_map(|word| word.to_be_bytes()).collect();
        let error = Message::from(bytes).decode::<Acl>().unwrap_err();
        assert_eq!(error.kind, DecodeErrorKind::TooLong { len: 1025, max: 1024 });
    }
}
