//! MOUNT version 3, RFC 1813 appendix I.

use xdr::{Decode, Encode, List, Opaque};

use crate::v3::NfsFh3;

/// The version number.
pub const VERSION: u32 = 3;

/// The procedures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum MountProc3 {
    /// Do nothing.
    Null = 0,
    /// Get the handle of an export's root.
    Mnt = 1,
    /// List the mounts of all clients.
    Dump = 2,
    /// Remove one mount of the caller from the list.
    Umnt = 3,
    /// Remove all mounts of the caller from the list.
    UmntAll = 4,
    /// List the exports.
    Export = 5,
}

impl MountProc3 {
    /// Returns the procedure with this number.
    pub fn from_number(number: u32) -> Option<Self> {
        use MountProc3::*;
        [Null, Mnt, Dump, Umnt, UmntAll, Export].get(number as usize).copied()
    }

    /// Returns the name in RFC 1813.
    pub fn name(self) -> &'static str {
        match self {
            MountProc3::Null => "NULL",
            MountProc3::Mnt => "MNT",
            MountProc3::Dump => "DUMP",
            MountProc3::Umnt => "UMNT",
            MountProc3::UmntAll => "UMNTALL",
            MountProc3::Export => "EXPORT",
        }
    }
}

/// A path on the server.
pub type Dirpath = Opaque<1024>;
/// A host or group name.
pub type Name = Opaque<255>;

/// Status codes (appendix I, `mountstat3`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
#[allow(missing_docs)] // The names say it.
#[repr(u32)]
pub enum Mountstat3 {
    Ok = 0,
    Perm = 1,
    NoEnt = 2,
    Io = 5,
    Acces = 13,
    NotDir = 20,
    Inval = 22,
    NameTooLong = 63,
    NotSupp = 10004,
    ServerFault = 10006,
}

/// A successful MNT.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct MountOk {
    /// The export's root.
    pub fhandle: NfsFh3,
    /// The RPC authentication flavours that the export accepts.
    pub auth_flavors: Vec<u32>,
}

/// MNT results.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
#[xdr(tag = Mountstat3)]
pub enum MountRes {
    /// The mount succeeded.
    #[xdr(Mountstat3::Ok)]
    Ok(MountOk),
    /// The mount failed.
    #[xdr(default)]
    Fail(Mountstat3),
}

/// A mount in the list of DUMP.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct MountEntry {
    /// The host.
    pub hostname: Name,
    /// The mounted directory.
    pub directory: Dirpath,
}

/// An export in the list of EXPORT.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct ExportEntry {
    /// The path.
    pub dir: Dirpath,
    /// The hosts or groups that may mount the export. An empty list means everybody.
    pub groups: List<Name>,
}

#[cfg(test)]
mod tests {
    use xdr::Message;

    use super::*;

    #[test]
    fn export_lists_are_nested() {
        let exports = List(vec![
            ExportEntry { dir: "/a".into(), groups: List(vec!["h1".into(), "h2".into()]) },
            ExportEntry { dir: "/b".into(), groups: List::default() },
        ]);
        let message = Message::encode(&exports);
        assert_eq!(message.decode::<List<ExportEntry>>().unwrap(), exports);
    }
}
