//! [`ClientVersion`]: the version of NFS by which clients use a data server.
//!
//! This server uses data servers by NFSv3. Its clients can use NFSv4.1 or 4.2, with the same file handles and the anonymous
//! stateid (RFC 8435 §2.2, §5.1). They need no OPEN. RFC 8881 §13.1: the data server tells its clients that it is one, and Linux's
//! client uses no other. The kernel's server never does so.

use client::{ErrorKind, Mount, NfsUrl, Pnfs, V4, Version};
use parking_lot::Mutex;
use rpc::{ClientError, Switch};
use server::config::DataVersionConfig;

/// The version by which clients use a data server, and whether the data server offers it.
pub struct ClientVersion {
    wanted: DataVersionConfig,
    /// `true` if the data server offers the version; `None` if that is not yet known.
    offered: Mutex<Option<bool>>,
}

impl ClientVersion {
    /// Creates the version of the configuration.
    pub fn new(wanted: DataVersionConfig) -> Self {
        Self { wanted, offered: Mutex::default() }
    }

    /// Returns the versions that clients may be told in the course of time.
    pub fn possible(&self) -> [DataVersionConfig; 2] {
        [self.wanted, DataVersionConfig::V3]
    }

    /// Returns the version for clients: that of the configuration, or NFSv3 if the data server does not offer it.
    pub fn now(&self) -> DataVersionConfig {
        self.known().unwrap_or(self.wanted)
    }

    /// Returns the version for clients, if it is known whether the data server offers that of the configuration.
    pub fn known(&self) -> Option<DataVersionConfig> {
        let offered = *self.offered.lock();
        offered.map(|offered| if offered { self.wanted } else { DataVersionConfig::V3 })
    }

    /// Asks the data server whether it offers the version, unless that is known.
    ///
    /// # Errors
    /// The data server does not answer.
    pub async fn ask_once(&self, url: &NfsUrl, switch: &Switch) -> client::Result<()> {
        let known = *self.offered.lock();
        if known.is_some() { Ok(()) } else { self.ask(url, switch).await }
    }

    /// Asks the data server whether it offers the version now.
    ///
    /// # Errors
    /// The data server does not answer.
    pub async fn ask(&self, url: &NfsUrl, switch: &Switch) -> client::Result<()> {
        let offers = offers(url, self.wanted, switch).await?;
        let before = self.offered.lock().replace(offers);
        if !offers && before != Some(false) {
            tracing::warn!(
                server = %url,
                version = name(self.wanted),
                "clients use NFSv3 at this data server (with layouts = \"files\": they get no layouts), because it does not say that it is a data server by the configured version: start \
                 slipway serve with --data-server there, or remove `version` of this [[pnfs.server]]"
            );
        }
        Ok(())
    }
}

/// Reports whether a server has a version of NFS, and, from NFSv4.1 on, tells its clients that it is a data server.
///
/// # Errors
/// The server does not answer.
pub async fn offers(url: &NfsUrl, version: DataVersionConfig, switch: &Switch) -> client::Result<bool> {
    if version == DataVersionConfig::V3 {
        return Ok(true);
    }
    let Some(v4) = connect(url, version, switch).await? else { return Ok(false) };
    let offers = v4.v4().is_some_and(V4::is_data_server);
    // The data server removes the client later if this fails.
    let _ = v4.unmount().await;
    Ok(offers)
}

/// Connects to a data server by the version of its clients. Returns `None` if it does not have the version.
///
/// # Errors
/// The server does not answer.
pub async fn connect(url: &NfsUrl, version: DataVersionConfig, switch: &Switch) -> client::Result<Option<Mount>> {
    let mut url = NfsUrl { path: "/".into(), ..url.clone() };
    url.options.pnfs = Pnfs::Off;
    url.options.version = match version {
        DataVersionConfig::V3 => Version::V3,
        DataVersionConfig::V4_1 => Version::V4_1,
        DataVersionConfig::V4_2 => Version::V4_2,
    };
    match Mount::connect(&url, switch).await {
        Ok(mount) => Ok(Some(mount)),
        // It answers, and does not have the version.
        Err(error) => match error.kind() {
            ErrorKind::Status(_) | ErrorKind::Rpc(ClientError::NotExecuted(_)) => Ok(None),
            _ => Err(error),
        },
    }
}

/// Returns the version and the minor version.
pub fn numbers(version: DataVersionConfig) -> (u32, u32) {
    match version {
        DataVersionConfig::V3 => (3, 0),
        DataVersionConfig::V4_1 => (4, 1),
        DataVersionConfig::V4_2 => (4, 2),
    }
}

/// Returns the version as the configuration has it.
pub fn name(version: DataVersionConfig) -> &'static str {
    match version {
        DataVersionConfig::V3 => "3",
        DataVersionConfig::V4_1 => "4.1",
        DataVersionConfig::V4_2 => "4.2",
    }
}
