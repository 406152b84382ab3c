//! [`Record`]: one line of the answer to an administrator.

use serde::{Deserialize, Serialize};

use super::ClientName;

/// One line of an answer, in JSON. The records of a client's state follow the record of the client.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Record {
    /// A client.
    Client(ClientRecord),
    /// A session of a client.
    Session {
        /// The client.
        client: ClientName,
        /// The session ID, in hexadecimal digits.
        session: String,
        /// The number of slots.
        slots: u32,
        /// The connections that are bound to the session.
        connections: Vec<ConnectionRecord>,
    },
    /// An open file; for a host that locks by NLM, a DOS share.
    Open {
        /// The client that has opened the file.
        client: ClientName,
        /// The file.
        #[serde(flatten)]
        file: FileRecord,
        /// The open-owner. Characters that are not printable are escaped.
        owner: String,
        /// `true` if the file is open for reading.
        read: bool,
        /// `true` if the file is open for writing.
        write: bool,
        /// `true` if the open denies reading to others.
        deny_read: bool,
        /// `true` if the open denies writing to others.
        deny_write: bool,
    },
    /// A byte-range lock, or a request that waits for one.
    Lock {
        /// The client that holds or requests the lock.
        client: ClientName,
        /// The file.
        #[serde(flatten)]
        file: FileRecord,
        /// The lock owner. Characters that are not printable are escaped.
        owner: String,
        /// `true` if no other owner can lock the range.
        exclusive: bool,
        /// The offset of the first byte.
        start: u64,
        /// The number of bytes; `None` if the range extends to the end of the file.
        length: Option<u64>,
        /// `true` if the client waits for the lock and does not hold it.
        waiting: bool,
    },
    /// A delegation.
    Delegation {
        /// The client that holds the delegation.
        client: ClientName,
        /// The file.
        #[serde(flatten)]
        file: FileRecord,
        /// `true` for a write delegation, `false` for a read delegation.
        write: bool,
        /// `true` while the delegation is being recalled.
        recalled: bool,
    },
    /// The layouts of a file.
    Layout {
        /// The client that holds the layouts.
        client: ClientName,
        /// The file.
        #[serde(flatten)]
        file: FileRecord,
        /// `true` if the client has a layout for reading.
        read: bool,
        /// `true` if the client has a layout for reading and writing.
        write: bool,
        /// `true` while a layout is being recalled.
        recalled: bool,
    },
    /// The request failed, or the answer is incomplete. This is the last record.
    Error {
        /// The reason, for a person.
        message: String,
    },
    /// The request succeeded. This is the last record.
    End,
}

/// A client.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClientRecord {
    /// The name by which requests refer to the client.
    pub client: ClientName,
    /// The protocol: `4.0`, `4.1`, `4.2` or `nlm4`.
    pub protocol: String,
    /// The client owner (NFSv4) or host name (NLM) that the client sent. Characters that are not printable are escaped.
    pub name: String,
    /// The software of the client, as the client reports it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub implementation: Option<String>,
    /// The address of the client, if it is known without a session.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    /// `true` if the client ID has been confirmed. A client that has not been confirmed holds no state.
    pub confirmed: bool,
    /// Seconds since the lease was renewed. NLM has no leases.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub silent_s: Option<u64>,
    /// `true` if the lease has expired. The client keeps its state until another client needs it.
    pub expired: bool,
    /// `true` if the client can reclaim its state after a restart of the server.
    pub stored: bool,
}

/// A connection of a session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConnectionRecord {
    /// The name of the transport.
    pub transport: String,
    /// The address of the client.
    pub address: String,
    /// `true` if the connection carries callbacks.
    pub callbacks: bool,
}

/// A file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileRecord {
    /// The name of the export.
    pub export: String,
    /// The file number in the export, which is the inode number if the export is a directory of this host. `None` if
    /// the file is gone or its export does not answer.
    pub fileid: Option<u64>,
}
