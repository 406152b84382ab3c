//! The requests of `slipway ds`, `layout` and `resilver` to a running server, and the records of its answers. Each is one line of
//! JSON. The last record of an answer is one of [`server::admin::Record`]: its end, or an error.

use std::{fmt, num::NonZeroU32, str::FromStr};

use serde::{Deserialize, Serialize};

/// A request of an administrator.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Request {
    /// List the data servers. The answer is [`DataServerRecord`]s.
    DataServers {},
    /// Set the state of a data server. The answer has no records.
    SetService {
        /// The name of the cluster. It can be left out if there is only one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        cluster: Option<String>,
        /// The data server.
        server: ServerRef,
        /// The state.
        service: Service,
    },
    /// Show where the data of a file are. The answer is a [`LayoutRecord`].
    Layout {
        /// The absolute path of the file in the file system of this host.
        path: String,
    },
    /// Read the configuration file again, and use the data servers that were added to it. The answer is an [`AddedRecord`] for each.
    AddServers {},
    /// Show what a rebalancing would do. The answer is a [`PlanRecord`].
    PlanRebalance {
        /// The name of the cluster. It can be left out if there is only one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        cluster: Option<String>,
    },
    /// Order a rebalancing, or end it. The answer has no records.
    Rebalance {
        /// The name of the cluster. It can be left out if there is only one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        cluster: Option<String>,
        /// Maximum bytes to copy in a second, or 0 without a maximum. `None` ends the rebalancing.
        rate: Option<u64>,
    },
    /// Show the rebalancing of each cluster. The answer is a [`RebalanceRecord`] for each.
    Rebalances {},
    /// Show what is left to repair. The answer is a [`RepairRecord`] for each cluster.
    Repairs {},
    /// Search for objects that no file has. The answer is an [`OrphanRecord`] for each, and can take long.
    Orphans {
        /// The name of the cluster. If it is left out, the data servers of all clusters are searched.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        cluster: Option<String>,
        /// Remove these objects.
        remove: bool,
    },
}

/// The number or the name of a data server, as an administrator gives it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum ServerRef {
    /// The number.
    Id(NonZeroU32),
    /// The name.
    Name(String),
}

impl ServerRef {
    /// Reports whether a data server with this number and this name is meant.
    pub fn is(&self, id: u32, name: Option<&str>) -> bool {
        match self {
            Self::Id(wanted) => wanted.get() == id,
            Self::Name(wanted) => Some(wanted.as_str()) == name,
        }
    }
}

impl FromStr for ServerRef {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.chars().all(|c| c.is_ascii_digit()) {
            true => text.parse().map(Self::Id).map_err(|error| error.to_string()),
            false => Ok(Self::Name(text.to_owned())),
        }
    }
}

impl fmt::Display for ServerRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Id(id) => id.fmt(f),
            Self::Name(name) => write!(f, "'{name}'"),
        }
    }
}

/// Returns the text that stands for a data server: its number, and its name if it has one.
pub fn label(id: u32, name: Option<&str>) -> String {
    name.map_or_else(|| id.to_string(), |name| format!("{id} ({name})"))
}

/// A state that an administrator can set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Service {
    /// In service.
    Active,
    /// Its copies are moved to other data servers.
    Draining,
    /// It is gone for ever.
    Lost,
}

/// A data server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DataServerRecord {
    /// The name of the cluster.
    pub cluster: String,
    /// The number of the data server.
    pub id: u32,
    /// The name of the data server, if it has one.
    pub name: Option<String>,
    /// The URL in the configuration. `None` if the configuration does not have the data server.
    pub url: Option<String>,
    /// The state.
    pub state: DataServerState,
    /// The seconds since its last operation failed, if the last one did.
    pub failing_s: Option<u64>,
    /// The number of its objects that files use. On a lost data server, those that were not replaced yet.
    pub objects: u64,
    /// The number of its copies that are stale, or are being made.
    pub stale: u64,
    /// For a lost data server: `true` if all its objects were examined.
    pub examined: bool,
    /// The number of copies that cannot be moved now.
    pub unmovable: u64,
    /// The reason for the last of them.
    pub reason: Option<String>,
    /// The number of files whose last copy in sync was on it, if it is lost.
    pub lost: u64,
    /// Some of these files.
    pub lost_files: Vec<LostFile>,
    /// The scan of the layouts of all files, until its end. The numbers above are too small then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scan: Option<ScanRecord>,
}

/// A scan of the layouts of all files, because the database in the state directory was lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScanRecord {
    /// The number of files with data on data servers that were found so far.
    pub files: u64,
    /// The number of files and directories that could not be read in the last attempt.
    pub unreadable: u64,
}

/// The state of a data server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DataServerState {
    /// It is in service, and has answered last.
    InService,
    /// Its last operation failed.
    Failing,
    /// Its copies are being moved.
    Draining,
    /// It has no copies any more.
    Drained,
    /// It is gone for ever.
    Lost,
}

/// A file that has lost its last copy in sync.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LostFile {
    /// The directory of the export.
    pub directory: String,
    /// The inode number.
    pub fileid: u64,
}

/// The places of a file's data.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LayoutRecord {
    /// The name of the export.
    pub export: String,
    /// The inode number.
    pub fileid: u64,
    /// The size in bytes.
    pub size: u64,
    /// The layout of the data. `None` if they are on the metadata server.
    pub data: Option<DataRecord>,
    /// The number of layouts that clients hold.
    pub layouts: usize,
}

/// The layout of a file's data on data servers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DataRecord {
    /// The name of the cluster.
    pub cluster: String,
    /// The number of changes of the layout.
    pub generation: u64,
    /// The number of times that clients with layouts to write were fenced, and 1.
    pub write_epoch: u32,
    /// The number of times that clients with layouts to read were fenced, and 1.
    pub read_epoch: u32,
    /// `true` if the copies may differ after a failure, and will be compared.
    pub compared: bool,
    /// The number of stripes of each copy.
    pub stripes: usize,
    /// The number of bytes of a stripe unit, or 0 if there is one stripe.
    pub stripe_unit: u64,
    /// The copies of all stripes.
    pub copies: Vec<CopyRecord>,
}

/// A copy of one stripe of a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CopyRecord {
    /// The stripe.
    pub stripe: usize,
    /// The number of the data server.
    pub server: u32,
    /// The name of the data server, if it has one.
    pub server_name: Option<String>,
    /// The URL of the data server, if the configuration has it.
    pub url: Option<String>,
    /// The name of the object.
    pub object: String,
    /// The state.
    pub state: CopyState,
}

/// The state of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CopyState {
    /// It has all data.
    InSync,
    /// It has missed a write.
    Stale,
    /// It is being made.
    Copying,
}

/// A data server that was added.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AddedRecord {
    /// The name of the cluster.
    pub cluster: String,
    /// The number of the data server.
    pub id: u32,
    /// The name of the data server, if it has one.
    pub name: Option<String>,
    /// The URL in the configuration.
    pub url: String,
}

/// The moves that a rebalancing would make.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlanRecord {
    /// The name of the cluster.
    pub cluster: String,
    /// The number of copies to move.
    pub copies: u64,
    /// Their bytes.
    pub bytes: u64,
    /// The data servers that take part.
    pub servers: Vec<PlannedServer>,
}

/// A data server of a plan.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlannedServer {
    /// The number of the data server.
    pub id: u32,
    /// The name of the data server, if it has one.
    pub name: Option<String>,
    /// The URL in the configuration.
    pub url: Option<String>,
    /// The bytes of its copies now, with 4 KiB for each copy.
    pub before: u64,
    /// Those after the rebalancing.
    pub after: u64,
}

/// The rebalancing of a cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RebalanceRecord {
    /// The name of the cluster.
    pub cluster: String,
    /// `true` until its end.
    pub running: bool,
    /// Maximum bytes that are copied in a second.
    pub rate: Option<u64>,
    /// The number of copies that were moved, since it was ordered or since the start of the server.
    pub copies: u64,
    /// Their bytes.
    pub bytes: u64,
    /// The bytes that are still to be moved, about.
    pub left: u64,
    /// The number of copies that could not be moved in the last pass over the objects.
    pub failed: u64,
    /// The reason for the last of them.
    pub reason: Option<String>,
}

/// An object that no file has.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OrphanRecord {
    /// The name of the cluster.
    pub cluster: String,
    /// The number of the data server.
    pub server: u32,
    /// The name of the data server, if it has one.
    pub server_name: Option<String>,
    /// The URL of the data server, if the configuration has it.
    pub url: Option<String>,
    /// The name of the object.
    pub object: String,
    /// Its bytes. `None` if the data server did not tell.
    pub bytes: Option<u64>,
    /// `true` if it is about to be removed.
    pub removed: bool,
}

/// The repairs that a cluster still needs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RepairRecord {
    /// The name of the cluster.
    pub cluster: String,
    /// Files with stale copies.
    pub files: u64,
    /// Stale copies to make again.
    pub copies: u64,
    /// Copies to move from draining data servers.
    pub moves: u64,
    /// Files whose copies may differ after a failure, and are compared.
    pub compared: u64,
    /// Objects on lost data servers that were not examined yet.
    pub unexamined: u64,
    /// `true` until the layouts of all files were read, if the database was lost. The other numbers are too small then.
    #[serde(default)]
    pub scanning: bool,
    /// Files that have lost their last copy in sync with a data server.
    pub lost: u64,
    /// Objects of removed files that were not removed yet, and those of new files, for a moment.
    #[serde(default)]
    pub removals: u64,
    /// The bytes to copy. `None` if the copies are too many to add them up.
    pub bytes: Option<u64>,
    /// The bytes that were copied since the start of the server.
    pub copied: u64,
}

impl RepairRecord {
    /// Reports whether nothing is left to do. Files that have lost their last copy cannot be repaired.
    pub fn is_done(&self) -> bool {
        let Self { files, moves, compared, unexamined, scanning, .. } = self;
        !scanning && [files, moves, compared, unexamined].into_iter().all(|left| *left == 0)
    }
}

impl fmt::Display for DataServerState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::InService => "in service",
            Self::Failing => "failing",
            Self::Draining => "draining",
            Self::Drained => "drained",
            Self::Lost => "lost",
        })
    }
}

impl fmt::Display for CopyState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::InSync => "in sync",
            Self::Stale => "stale",
            Self::Copying => "copying",
        })
    }
}

/// Exclusive bound of the length of a request, in bytes. A path has up to 4096 bytes, and some need several characters in JSON.
pub const REQUEST_MAX: usize = 16 << 10;
