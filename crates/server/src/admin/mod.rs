//! What an administrator asks a running server: who its clients are, what they hold, and to be rid of one.
//!
//! One request is a line of JSON ([`Request`]), at most [`REQUEST_MAX`] bytes long; the answer is lines of JSON ([`Record`]), of
//! which the last is [`Record::End`] or [`Record::Error`]. Where the bytes come from, and who may send them, is for whoever
//! calls [`Admin::serve`]; it waits for storage, but for no export longer than two seconds in a listing.
//!
//! Clients are looked at one after the other and in pages: no lock is held for longer than a page takes, so what is told is how
//! each page was at its time, not all of it at one.

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

/// What is asked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Request {
    /// The clients, and what each holds.
    List {
        /// This one alone.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        client: Option<ClientName>,
    },
    /// An end to a client, and to all that it holds.
    Evict {
        /// Which.
        client: ClientName,
    },
}

/// A client, as people name it: the 16 hexadecimal digits of its client ID, or `nlm` and a number for a host that locks by NLM.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ClientName(
    /// By its number.
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
        client.map(Self).ok_or("a client is 16 hexadecimal digits, or nlm and a number".to_owned())
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

/// Answers administrators.
pub struct Admin {
    lockd: Arc<Lockd>,
    v4: Arc<Shared4>,
    /// The exports that have not answered the last listing in time: it does not ask them again.
    silent: Mutex<HashSet<ExportId>>,
}

impl Admin {
    pub(crate) fn new(lockd: Arc<Lockd>, v4: Arc<Shared4>) -> Self {
        Self { lockd, v4, silent: Mutex::default() }
    }

    /// Reads one request and answers it.
    ///
    /// # Errors
    /// Whoever asks cannot be read from or written to. What is wrong with the request he is told.
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

    /// Says why nothing is answered.
    ///
    /// # Errors
    /// Whoever asks cannot be written to.
    pub fn refuse(why: &str, output: &mut impl Write) -> io::Result<()> {
        write(&Record::Error { message: why.to_owned() }, output)?;
        output.flush()
    }

    /// Ends a client; or says why not.
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
                        "requests of it are still being executed; it can begin nothing more: try again".to_owned(),
                    );
                }
            }
        }
    }
}

fn write(record: &Record, output: &mut impl Write) -> io::Result<()> {
    let mut line = serde_json::to_vec(record).expect("records are representable");
    line.push(b'\n');
    output.write_all(&line)
}

fn unknown(client: LockClient) -> String {
    format!("there is no client {}", ClientName(client))
}

/// # Errors
/// What is wrong with it, for a person.
fn parse(line: &[u8]) -> Result<Request, String> {
    if line.len() >= REQUEST_MAX {
        return Err(format!("a request is shorter than {REQUEST_MAX} bytes"));
    }
    serde_json::from_slice(line).map_err(|error| format!("not a request: {error}"))
}

/// The name of the socket in the state directory at which a server is asked.
pub const SOCKET: &str = "admin.sock";
/// Most bytes of a request.
pub const REQUEST_MAX: usize = 1024;
/// How long what is being executed is waited for.
const UNSTORED: &str = "it is done, but not stored yet, as the recovery database cannot be written: if the server ends \
                        before, the client can reclaim what it had";
const EVICT_MAX: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(10);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_are_named_as_they_are_shown() {
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
    fn requests_are_what_they_say_and_no_longer_than_they_may_be() {
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
