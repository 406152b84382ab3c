//! The administrator's interface to a running server: it lists the clients and the state that they hold, and evicts a
//! client.
//!
//! A request is one line of JSON ([`Request`]) of fewer than [`REQUEST_MAX`] bytes. The answer is lines of JSON
//! ([`Record`]), the last of which is [`Record::End`] or [`Record::Error`]. The caller of [`Admin::serve`] provides the
//! streams and decides who may send requests. [`Admin::serve`] waits for storage. A listing waits at most two seconds
//! for each export.
//!
//! The listing reads clients one after the other and page by page, and holds no lock for longer than one page. So each
//! page is consistent in itself, but the whole listing is not a snapshot of one moment.

mod listing;
mod record;

use std::{
    fmt,
    io::{self, BufRead, Read, Write},
    str::FromStr,
    sync::Arc,
    thread::sleep,
    time::{Duration, Instant},
};

use entropy::HashSet;
use nfs::v4::Clientid4;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

pub use self::record::{ClientRecord, ConnectionRecord, FileRecord, Record};
use crate::{
    call::core::ServiceState,
    handle::ExportId,
    nlm::lockd::Lockd,
    sharing::locks::LockClient,
    v4::{service::Shared4, state::transitions::evict::Evicted},
};

/// A request of an administrator.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Request {
    /// List the clients, and the state that each holds.
    List {
        /// Lists only this client.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        client: Option<ClientName>,
    },
    /// Evict a client: revoke all of its state.
    Evict {
        /// The client to evict.
        client: ClientName,
    },
}

/// The name of a client for administrators: the 16 hexadecimal digits of its client ID, or `nlm` and a number for a
/// host that locks by NLM.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ClientName(
    /// The client.
    pub LockClient,
);

impl fmt::Display for ClientName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            LockClient::V4(id) => write!(f, "{id:016x}"),
            LockClient::Nlm(id) => write!(f, "nlm{id}"),
        }
    }
}

impl FromStr for ClientName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let client = match text.strip_prefix("nlm") {
            Some(number) => number.parse().ok().map(LockClient::Nlm),
            None if text.len() == 16 => u64::from_str_radix(text, 16).ok().map(LockClient::V4),
            None => None,
        };
        client.map(Self).ok_or("a client is named by 16 hexadecimal digits, or by nlm and a number".to_owned())
    }
}

impl TryFrom<String> for ClientName {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<ClientName> for String {
    fn from(name: ClientName) -> Self {
        name.to_string()
    }
}

/// Answers requests of administrators.
pub struct Admin {
    lockd: Arc<Lockd>,
    v4: Arc<Shared4>,
    /// The exports that have timed out during the last listing, which does not wait for them again.
    silent: Mutex<HashSet<ExportId>>,
}

impl Admin {
    pub(crate) fn new(lockd: Arc<Lockd>, v4: Arc<Shared4>) -> Self {
        Self { lockd, v4, silent: Mutex::default() }
    }

    /// Reads one request and answers it.
    ///
    /// # Errors
    /// Returns an error if `input` cannot be read or `output` cannot be written. An error in the request is reported in
    /// a [`Record::Error`].
    pub fn serve(&self, input: impl Read, output: &mut impl Write) -> io::Result<()> {
        let mut line = Vec::new();
        io::BufReader::new(input.take(REQUEST_MAX as u64)).read_until(b'\n', &mut line)?;
        let mut emit = |record: &Record| write(record, output);
        let end = match parse(&line) {
            Ok(Request::List { client }) => self.list(client, &mut emit)?,
            Ok(Request::Evict { client }) => self.evict(client),
            Err(message) => Some(message),
        };
        emit(&end.map_or(Record::End, |message| Record::Error { message }))?;
        output.flush()
    }

    /// Answers a request with an error message, without reading it.
    ///
    /// # Errors
    /// Returns an error if `output` cannot be written.
    pub fn refuse(why: &str, output: &mut impl Write) -> io::Result<()> {
        write(&Record::Error { message: why.to_owned() }, output)?;
        output.flush()
    }

    /// Evicts a client. Returns an error message if that fails.
    fn evict(&self, ClientName(client): ClientName) -> Option<String> {
        let failed = match client {
            LockClient::V4(id) => self.evict_v4(Clientid4(id)),
            LockClient::Nlm(id) => (!self.lockd.evict(id)).then(|| unknown(client)),
        };
        let unstored = || self.v4.core().recovery.is_behind().then(|| UNSTORED.to_owned());
        failed.or_else(unstored)
    }

    fn evict_v4(&self, id: Clientid4) -> Option<String> {
        let until = Instant::now() + EVICT_MAX;
        loop {
            match self.v4.with_state(|state| state.evict(id)) {
                Evicted::Gone => return None,
                Evicted::Unknown => return Some(unknown(LockClient::V4(id.0))),
                Evicted::Busy if Instant::now() < until => sleep(PAUSE),
                Evicted::Busy => {
                    return Some(
                        "requests of the client are still being executed, and it can start no others: try again"
                            .to_owned(),
                    );
                }
            }
        }
    }
}

fn write(record: &Record, output: &mut impl Write) -> io::Result<()> {
    let mut line = serde_json::to_vec(record).expect("record must be serializable");
    line.push(b'\n');
    output.write_all(&line)
}

fn unknown(client: LockClient) -> String {
    format!("there is no client {}", ClientName(client))
}

/// # Errors
/// Returns a message for the administrator if the line is not a valid request.
fn parse(line: &[u8]) -> Result<Request, String> {
    if line.len() >= REQUEST_MAX {
        return Err(format!("a request must be shorter than {REQUEST_MAX} bytes"));
    }
    serde_json::from_slice(line).map_err(|error| format!("invalid request: {error}"))
}

/// The name of the administration socket in the state directory.
pub const SOCKET: &str = "admin.sock";
/// Exclusive bound of the length of a request, in bytes.
pub const REQUEST_MAX: usize = 1024;
const UNSTORED: &str = "the client has been evicted, but the recovery database cannot be written now: if the server \
                        ends before that is stored, the client can reclaim its state";
/// Maximum time to wait for requests of the client that are being executed.
const EVICT_MAX: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(10);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn client_names_round_trip() {
        for client in
            [LockClient::V4(0), LockClient::V4(0x65a1_b2c3_0000_0001), LockClient::Nlm(1), LockClient::Nlm(u32::MAX)]
        {
            let name = ClientName(client);
            assert_eq!(name.to_string().parse(), Ok(name));
            let request = Request::Evict { client: name };
            assert_eq!(parse(&serde_json::to_vec(&request).unwrap()), Ok(request));
        }
        for text in ["", "1", "nlm", "nlm-1", "nlm4294967296", "zzzzzzzzzzzzzzzz", "0x00000000000001"] {
            assert!(text.parse::<ClientName>().is_err(), "{text}");
        }
    }

    #[test]
    fn malformed_or_too_long_requests_are_rejected() {
        assert_eq!(parse(b"{\"list\":{}}\n"), Ok(Request::List { client: None }));
        for bad in
            [&b""[..], b"\n", b"list", b"{\"list\":{\"all\":true}}", b"{\"evict\":{}}", b"{\"list\":{}} {}", b"\xff"]
        {
            assert!(parse(bad).is_err(), "{}", bad.escape_ascii());
        }
        let long = [b"{\"list\":{}}".to_vec(), vec![b' '; REQUEST_MAX]].concat();
        assert!(parse(&long).unwrap_err().contains("shorter"));
    }
}
