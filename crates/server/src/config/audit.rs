//! `[audit]` of the configuration file.

use std::path::PathBuf;

use serde::{Deserialize, Deserializer, de};

use super::size::ByteSize;
use crate::audit::{AuditOptions, OnFull};

/// The `[audit]` table.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AuditConfig {
    /// `file`: the absolute path of the file.
    #[serde(deserialize_with = "file")]
    pub file: PathBuf,
    /// `reads`: whether files that are opened for reading are recorded too.
    #[serde(default)]
    pub reads: bool,
    /// `queue`: the maximum bytes of records that wait for the file. The default is 8 MiB.
    #[serde(default, deserialize_with = "queue")]
    pub queue: Option<usize>,
    /// `on_full`: the reaction to a full queue.
    #[serde(default)]
    pub on_full: OnFull,
}

impl AuditConfig {
    /// Returns the options of the audit log.
    pub(super) fn options(&self) -> AuditOptions {
        let queue = self.queue.unwrap_or(QUEUE_DEFAULT);
        AuditOptions { file: self.file.clone(), reads: self.reads, queue, on_full: self.on_full }
    }
}

fn file<'de, D: Deserializer<'de>>(deserializer: D) -> Result<PathBuf, D::Error> {
    let path = PathBuf::deserialize(deserializer)?;
    if path.is_absolute() {
        return Ok(path);
    }
    Err(de::Error::custom(format!("file = '{}': it must be an absolute path", path.display())))
}

fn queue<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<usize>, D::Error> {
    let ByteSize(bytes) = ByteSize::deserialize(deserializer)?;
    match usize::try_from(bytes).ok().filter(|bytes| *bytes >= QUEUE_MIN) {
        Some(bytes) => Ok(Some(bytes)),
        None => Err(de::Error::custom(format!("queue = {bytes}: it must be at least 64 KiB"))),
    }
}

const QUEUE_DEFAULT: usize = 8 << 20;
/// The longest record fits.
const QUEUE_MIN: usize = 64 << 10;
