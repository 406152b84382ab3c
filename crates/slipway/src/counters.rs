//! The counters of a running server, by the socket in its state directory: how many calls it has answered, and how many bytes
//! they had.

use std::{
    io::{self, Write},
    path::Path,
};

use serde::{Deserialize, Serialize};
use server::admin;

use crate::{administrator, exit::Failure};

/// The request for the counters. The answer is a [`CounterRecord`] for each procedure that was called.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum CountersRequest {
    /// List the counters.
    Counters {},
}

/// The counters of one procedure.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CounterRecord {
    /// The program number.
    pub program: u32,
    /// The program version.
    pub version: u32,
    /// The name of the procedure.
    pub procedure: String,
    /// The number of calls.
    pub calls: u64,
    /// The bytes of the calls, with their headers and data.
    pub call_bytes: u64,
    /// The bytes of the replies.
    pub reply_bytes: u64,
}

/// Answers [`CountersRequest`].
///
/// # Errors
/// Returns an error if `output` cannot be written.
pub fn answer(server: &rpc::Server, output: &mut impl Write) -> io::Result<()> {
    for stats in server.stats().into_iter().filter(|stats| stats.calls > 0) {
        let record = CounterRecord {
            program: stats.program,
            version: stats.version,
            procedure: stats.name.to_owned(),
            calls: stats.calls,
            call_bytes: stats.call_bytes,
            reply_bytes: stats.reply_bytes,
        };
        writeln!(output, "{}", serde_json::json!(record))?;
    }
    writeln!(output, "{}", serde_json::json!(admin::Record::End))?;
    output.flush()
}

/// The sum of the counters of a server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// The number of READ and WRITE calls of NFSv3.
    pub data_calls: u64,
    /// The number of other calls.
    pub other_calls: u64,
    /// The bytes of all calls.
    pub call_bytes: u64,
    /// The bytes of all replies.
    pub reply_bytes: u64,
}

impl Traffic {
    /// Asks the server with this state directory.
    ///
    /// # Errors
    /// No server answers.
    pub fn of(state_dir: &Path) -> Result<Self, Failure> {
        let mut sum = Self::default();
        for record in administrator::ask_at(state_dir, &CountersRequest::Counters {})? {
            sum.add(&record?);
        }
        Ok(sum)
    }

    fn add(&mut self, record: &CounterRecord) {
        let CounterRecord { program, version, procedure, calls, call_bytes, reply_bytes } = record;
        let is_data = (*program, *version) == (nfs::NFS_PROGRAM, 3) && matches!(&procedure[..], "READ" | "WRITE");
        *(if is_data { &mut self.data_calls } else { &mut self.other_calls }) += calls;
        self.call_bytes += call_bytes;
        self.reply_bytes += reply_bytes;
    }

    /// Returns the bytes of calls and replies.
    pub fn bytes(&self) -> u64 {
        self.call_bytes + self.reply_bytes
    }

    /// Returns the traffic since `earlier`. A server that was restarted meanwhile has counted from 0 again.
    pub fn since(&self, earlier: &Self) -> Self {
        Self {
            data_calls: self.data_calls.saturating_sub(earlier.data_calls),
            other_calls: self.other_calls.saturating_sub(earlier.other_calls),
            call_bytes: self.call_bytes.saturating_sub(earlier.call_bytes),
            reply_bytes: self.reply_bytes.saturating_sub(earlier.reply_bytes),
        }
    }
}
