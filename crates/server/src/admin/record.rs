//! [`Record`]: what an administrator is told, as it stands in a line of JSON.

use serde::{Deserialize, Serialize};

use super::ClientName;

/// One line of an answer. What belongs to a client follows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Record {
    /// A client.
    Client(ClientRecord),
    /// A session of it.
    Session {
        /// Whose.
        client: ClientName,
        /// Its ID, in hexadecimal digits.
        session: String,
        /// How many slots it has.
        slots: u32,
        /// The connections that are bound to it.
        connections: Vec<ConnectionRecord>,
    },
    /// A file that is open; for a host that locks by NLM, a DOS share.
    Open {
        /// By whom.
        client: ClientName,
        /// Which.
        #[serde(flatten)]
        file: FileRecord,
        /// By which of its owners; what is not printable is escaped.
        owner: String,
        /// To read.
        read: bool,
        /// To write.
        write: bool,
        /// Nobody else may read.
        deny_read: bool,
        /// Nobody else may write.
        deny_write: bool,
    },
    /// Bytes that are locked, or that somebody waits for.
    Lock {
        /// By whom.
        client: ClientName,
        /// Of which file.
        #[serde(flatten)]
        file: FileRecord,
        /// By which of its owners; what is not printable is escaped.
        owner: String,
        /// Whether nobody else may have them.
        exclusive: bool,
        /// The first.
        start: u64,
        /// How many; to the end if it is not given.
        length: Option<u64>,
        /// Whether it is waited for, and not had.
        waiting: bool,
    },
    /// A delegation.
    Delegation {
        /// To whom.
        client: ClientName,
        /// Of which file.
        #[serde(flatten)]
        file: FileRecord,
        /// To write, or else to read.
        write: bool,
        /// Whether it is being recalled.
        recalled: bool,
    },
    /// It is not all, or was not done.
    Error {
        /// Why, for a person.
        message: String,
    },
    /// That is all; what was asked for was done.
    End,
}

/// A client.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClientRecord {
    /// Its name here.
    pub client: ClientName,
    /// The protocol: `4.0`, `4.1`, `4.2` or `nlm4`.
    pub protocol: String,
    /// Its name for itself; what is not printable is escaped.
    pub name: String,
    /// What software it says it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub implementation: Option<String>,
    /// Where it is, as far as it is known without a session.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    /// Whether it has ever been confirmed: until then it has nothing.
    pub confirmed: bool,
    /// Seconds since its lease was renewed; NLM has no leases.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub silent_s: Option<u64>,
    /// Whether its lease has expired: it keeps what it has until somebody wants it.
    pub expired: bool,
    /// Whether it can reclaim what it holds after a restart of the server.
    pub remembered: bool,
}

/// A connection of a session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConnectionRecord {
    /// By which transport.
    pub transport: String,
    /// From where.
    pub address: String,
    /// Whether callbacks go by it.
    pub callbacks: bool,
}

/// A file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileRecord {
    /// The export's name.
    pub export: String,
    /// The file's number in it: for a directory of this host its inode number. Not given if the file is gone.
    pub fileid: Option<u64>,
}
