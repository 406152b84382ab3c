//! Access control lists (RFC 7530 §6, RFC 8881 §6).

use xdr::{Decode, Encode};

use super::types::Utf8str;

/// The type of an entry (`acetype4`). Other types can be defined.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Encode, Decode)]
pub struct Acetype4(pub u32);

impl Acetype4 {
    /// The entry grants access.
    pub const ACCESS_ALLOWED: Self = Self(0);
    /// The entry denies access.
    pub const ACCESS_DENIED: Self = Self(1);
    /// Access is logged.
    pub const SYSTEM_AUDIT: Self = Self(2);
    /// Access raises an alarm.
    pub const SYSTEM_ALARM: Self = Self(3);
}

/// An entry of an access control list.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Nfsace4 {
    /// The type of the entry.
    pub acetype: Acetype4,
    /// The `ACE4_…` flags for inheritance, and the flag for a group in `who`.
    pub flag: u32,
    /// The `ACE4_…` rights.
    pub access_mask: u32,
    /// `user@domain`, a number, or `OWNER@`, `GROUP@`, `EVERYONE@` and the like.
    pub who: Utf8str,
}

/// An access control list with flags: the type of dacl and sacl (RFC 8881 §6.2.2).
#[derive(Clone, Debug, Default, PartialEq, Eq, Encode, Decode)]
pub struct Nfsacl41 {
    /// The `ACL4_…` flags.
    pub flag: u32,
    /// The entries.
    pub aces: Vec<Nfsace4>,
}

macro_rules! bits {
    ($($(#[$doc:meta])* $name:ident = $value:literal;)*) => {
        $($(#[$doc])* pub const $name: u32 = $value;)*
    };
}

bits! {
    /// aclsupport: ALLOW entries are supported.
    ACL4_SUPPORT_ALLOW_ACL = 0x1;
    /// aclsupport: DENY entries are supported.
    ACL4_SUPPORT_DENY_ACL = 0x2;
    /// aclsupport: AUDIT entries are supported.
    ACL4_SUPPORT_AUDIT_ACL = 0x4;
    /// aclsupport: ALARM entries are supported.
    ACL4_SUPPORT_ALARM_ACL = 0x8;

    /// New files inherit this entry.
    ACE4_FILE_INHERIT_ACE = 0x01;
    /// New directories inherit this entry.
    ACE4_DIRECTORY_INHERIT_ACE = 0x02;
    /// Inherited copies of this entry are not inherited further.
    ACE4_NO_PROPAGATE_INHERIT_ACE = 0x04;
    /// The entry has no effect on this object, and is only inherited.
    ACE4_INHERIT_ONLY_ACE = 0x08;
    /// Audit or alarm when access succeeds.
    ACE4_SUCCESSFUL_ACCESS_ACE_FLAG = 0x10;
    /// Audit or alarm when access fails.
    ACE4_FAILED_ACCESS_ACE_FLAG = 0x20;
    /// `who` is a group.
    ACE4_IDENTIFIER_GROUP = 0x40;
    /// The entry was inherited.
    ACE4_INHERITED_ACE = 0x80;

    /// The right to read data.
    ACE4_READ_DATA = 0x0000_0001;
    /// The right to list a directory.
    ACE4_LIST_DIRECTORY = 0x0000_0001;
    /// The right to write data.
    ACE4_WRITE_DATA = 0x0000_0002;
    /// The right to create a file in a directory.
    ACE4_ADD_FILE = 0x0000_0002;
    /// The right to append data.
    ACE4_APPEND_DATA = 0x0000_0004;
    /// The right to create a directory in a directory.
    ACE4_ADD_SUBDIRECTORY = 0x0000_0004;
    /// The right to read named attributes.
    ACE4_READ_NAMED_ATTRS = 0x0000_0008;
    /// The right to write named attributes.
    ACE4_WRITE_NAMED_ATTRS = 0x0000_0010;
    /// The right to execute, or search a directory.
    ACE4_EXECUTE = 0x0000_0020;
    /// The right to delete entries of a directory.
    ACE4_DELETE_CHILD = 0x0000_0040;
    /// The right to read attributes.
    ACE4_READ_ATTRIBUTES = 0x0000_0080;
    /// The right to change times and other attributes.
    ACE4_WRITE_ATTRIBUTES = 0x0000_0100;
    /// The right to set the retention times.
    ACE4_WRITE_RETENTION = 0x0000_0200;
    /// The right to set a retention hold.
    ACE4_WRITE_RETENTION_HOLD = 0x0000_0400;
    /// The right to delete the object.
    ACE4_DELETE = 0x0001_0000;
    /// The right to read the access control list.
    ACE4_READ_ACL = 0x0002_0000;
    /// The right to write the access control list and mode.
    ACE4_WRITE_ACL = 0x0004_0000;
    /// The right to change owner and group.
    ACE4_WRITE_OWNER = 0x0008_0000;
    /// The right to use locally with synchronous access.
    ACE4_SYNCHRONIZE = 0x0010_0000;
    /// All rights for reading.
    ACE4_GENERIC_READ = 0x0012_0081;
    /// All rights for writing.
    ACE4_GENERIC_WRITE = 0x0016_0106;
    /// All rights for executing.
    ACE4_GENERIC_EXECUTE = 0x0012_00a0;

    /// The list has been inherited and is kept up to date.
    ACL4_AUTO_INHERIT = 0x1;
    /// The list is not changed by inheritance.
    ACL4_PROTECTED = 0x2;
    /// The list was created by default.
    ACL4_DEFAULTED = 0x4;
}
