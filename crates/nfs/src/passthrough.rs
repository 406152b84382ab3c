//! PASSTHROUGH, version 1: the server passes descriptors of files to clients on its host, so that the kernel of that host reads the
//! files itself. A protocol of this project, beside NFS on a connection whose transport carries descriptors; see
//! `docs/adr/0013-fuse-passthrough.md`. A descriptor travels beside the reply, which has its number.

use std::fmt;

use xdr::{Decode, Encode};

use crate::v3::NfsFh3;

/// The program number. RFC 5531 §13: numbers from 20000000 to 3fffffff are defined by users.
pub const PASSTHROUGH_PROGRAM: u32 = 0x2053_4c50;
/// The version number.
pub const VERSION: u32 = 1;

/// The procedures.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum PassProc {
    /// Do nothing.
    Null = 0,
    /// Pass a descriptor of a regular file that is open for reading: [`PassArgs`] to [`PassRes`].
    Pass = 1,
}

impl PassProc {
    /// Returns the procedure with this number.
    pub fn from_number(number: u32) -> Option<Self> {
        [PassProc::Null, PassProc::Pass].get(number as usize).copied()
    }

    /// Returns the name.
    pub const fn name(self) -> &'static str {
        match self {
            PassProc::Null => "NULL",
            PassProc::Pass => "PASS",
        }
    }
}

/// PASS arguments.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct PassArgs {
    /// The file. The handles of NFSv3 and NFSv4 are the same.
    pub file: NfsFh3,
}

/// A successful PASS.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub struct PassOk {
    /// The number of the descriptor on this connection.
    pub number: u64,
}

/// PASS results.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
#[xdr(tag = PassStat)]
pub enum PassRes {
    /// The descriptor has been sent.
    #[xdr(PassStat::Ok)]
    Ok(PassOk),
    /// The file is not passed.
    #[xdr(default)]
    Fail(PassStat),
}

/// The status of a PASS.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
#[repr(u32)]
pub enum PassStat {
    /// The file is passed.
    Ok = 0,
    /// The peer is not root on the server's host, over a transport that carries descriptors.
    Peer = 1,
    /// The export passes no files.
    Export = 2,
    /// The call or the export demands that data are protected, and a descriptor is not.
    Protection = 3,
    /// The back end of the export has no files that it could pass.
    Backend = 4,
    /// The object is not a regular file.
    NotFile = 5,
    /// The caller may not read the file.
    Access = 6,
    /// The file handle is not valid, or the object does not exist any more.
    Stale = 7,
    /// The file is in use by a client that may have changed it, or the server is busy. It can be passed later.
    Delay = 8,
    /// The file could not be opened.
    Failed = 9,
}

impl fmt::Display for PassStat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            PassStat::Ok => "OK",
            PassStat::Peer => "this process is not root on the server's host, or does not use shm",
            PassStat::Export => "the export does not have passthrough = true",
            PassStat::Protection => "the export or the security flavour demands protection of data",
            PassStat::Backend => "the export is not a directory of a local file system",
            PassStat::NotFile => "not a regular file",
            PassStat::Access => "permission denied",
            PassStat::Stale => "stale file handle",
            PassStat::Delay => "delayed; try again",
            PassStat::Failed => "the file could not be opened",
        })
    }
}

#[cfg(test)]
mod tests {
    use xdr::Message;

    use super::*;

    #[test]
    fn results_round_trip() {
        let stats = [1, 2, 3, 4, 5, 6, 7, 8, 9].map(|number| {
            let message = Message::encode(&number);
            PassRes::Fail(message.decode::<PassStat>().unwrap())
        });
        for res in stats.into_iter().chain([PassRes::Ok(PassOk { number: u64::MAX - 1 })]) {
            assert_eq!(Message::encode(&res).decode::<PassRes>().unwrap(), res);
        }
        assert!(Message::encode(&10).decode::<PassStat>().is_err());
    }
}
