//! Access control lists (RFC 7530 §6, RFC 8881 §6).

use xdr::{Decode, Encode};

use super::types::Utf8str;

/// What kind of entry it is (`acetype4`). Others can be defined.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Encode, Decode)]
pub struct Acetype4(pub u32);

impl Acetype4 {
    /// Allows.
    pub const ACCESS_ALLOWED: Self = Self(0);
    /// Denies.
    pub const ACCESS_DENIED: Self = Self(1);
    /// Is logged.
    pub const SYSTEM_AUDIT: Self = Self(2);
    /// Raises an alarm.
    pub const SYSTEM_ALARM: Self = Self(3);
}

/// An entry of an access control list.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Nfsace4 {
    /// What it does.
    pub acetype: Acetype4,
    /// The `ACE4_…` flags: how it is inherited, and whether `who` is a group.
    pub flag: u32,
    /// The `ACE4_…` rights.
    pub access_mask: u32,
    /// `user@domain`, a number, or `OWNER@`, `GROUP@`, `EVERYONE@` and the like.
    pub who: Utf8str,
}

/// An access control list with flags of its own, as dacl and sacl are (RFC 8881 §6.2.2).
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
    /// aclsupport: entries that allow.
    ACL4_SUPPORT_ALLOW_ACL = 0x1;
    /// aclsupport: entries that deny.
    ACL4_SUPPORT_DENY_ACL = 0x2;
    /// aclsupport: entries for logging.
    ACL4_SUPPORT_AUDIT_ACL = 0x4;
    /// aclsupport: entries for alarms.
    ACL4_SUPPORT_ALARM_ACL = 0x8;

    /// New files inherit this entry.
    ACE4_FILE_INHERIT_ACE = 0x01;
    /// New directories inherit it.
    ACE4_DIRECTORY_INHERIT_ACE = 0x02;
    /// What they make does not.
    ACE4_NO_PROPAGATE_INHERIT_ACE = 0x04;
    /// It is there only to be inherited.
    ACE4_INHERIT_ONLY_ACE = 0x08;
    /// Audit or alarm when access succeeds.
    ACE4_SUCCESSFUL_ACCESS_ACE_FLAG = 0x10;
    /// Audit or alarm when access fails.
    ACE4_FAILED_ACCESS_ACE_FLAG = 0x20;
    /// `who` is a group.
    ACE4_IDENTIFIER_GROUP = 0x40;
    /// It has been inherited.
    ACE4_INHERITED_ACE = 0x80;

    /// Read data.
    ACE4_READ_DATA = 0x0000_0001;
    /// List a directory.
    ACE4_LIST_DIRECTORY = 0x0000_0001;
    /// Write data.
    ACE4_WRITE_DATA = 0x0000_0002;
    /// Make a file in a directory.
    ACE4_ADD_FILE = 0x0000_0002;
    /// Append data.
    ACE4_APPEND_DATA = 0x0000_0004;
    /// Make a directory in a directory.
    ACE4_ADD_SUBDIRECTORY = 0x0000_0004;
    /// Read named attributes.
    ACE4_READ_NAMED_ATTRS = 0x0000_0008;
    /// Write named attributes.
    ACE4_WRITE_NAMED_ATTRS = 0x0000_0010;
    /// Execute, or search a directory.
    ACE4_EXECUTE = 0x0000_0020;
    /// Delete what is in a directory.
    ACE4_DELETE_CHILD = 0x0000_0040;
    /// Read attributes.
    ACE4_READ_ATTRIBUTES = 0x0000_0080;
    /// Change times and other attributes.
    ACE4_WRITE_ATTRIBUTES = 0x0000_0100;
    /// Set retention.
    ACE4_WRITE_RETENTION = 0x0000_0200;
    /// Hold by retention.
    ACE4_WRITE_RETENTION_HOLD = 0x0000_0400;
    /// Delete the object.
    ACE4_DELETE = 0x0001_0000;
    /// Read the access control list.
    ACE4_READ_ACL = 0x0002_0000;
    /// Write the access control list and mode.
    ACE4_WRITE_ACL = 0x0004_0000;
    /// Change owner and group.
    ACE4_WRITE_OWNER = 0x0008_0000;
    /// Use locally with synchronous access.
    ACE4_SYNCHRONIZE = 0x0010_0000;
    /// All that reading takes.
    ACE4_GENERIC_READ = 0x0012_0081;
    /// All that writing takes.
    ACE4_GENERIC_WRITE = 0x0016_0106;
    /// All that executing takes.
    ACE4_GENERIC_EXECUTE = 0x0012_00a0;

    /// The list has been inherited and is kept up to date.
    ACL4_AUTO_INHERIT = 0x1;
    /// The list is not changed by inheritance.
    ACL4_PROTECTED = 0x2;
    /// The list was made by default.
    ACL4_DEFAULTED = 0x4;
}
