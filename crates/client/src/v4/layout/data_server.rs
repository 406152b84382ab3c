//! [`DataServer`]: the connection to a data server, by the version of NFS that the metadata server names.
//!
//! Read RFC 8435 §2.2 and §5.1 first: at a loosely coupled data server of NFSv4, the client uses the anonymous stateid. So it opens no
//! file there, and a restart of the data server costs it only its session, which the session core makes again.

use buf::{Region, Rope};

use super::super::protocol::V4;
use crate::{
    model::{Caller, Handle, Operations, ReadData, ReadInfo, Result, StableHow, Verifier, Written},
    v3::V3,
};

/// A connection to a data server. It is cheap to clone.
#[derive(Clone, Debug)]
pub(crate) enum DataServer {
    V3(V3),
    /// NFSv4.1 or 4.2.
    V4(V4),
}

impl DataServer {
    /// Creates the connection of a client that has a session at the data server.
    pub fn with_session(v4: V4) -> Self {
        Self::V4(v4.without_opens())
    }

    /// Returns the same connection for a user.
    pub fn with_caller(&self, caller: &Caller) -> Self {
        match self {
            Self::V3(v3) => Self::V3(v3.with_caller(Some(caller))),
            Self::V4(v4) => Self::V4(v4.with_caller(Some(caller))),
        }
    }

    /// Returns the maximum bytes of a READ and of a WRITE that the connection permits.
    pub fn transfer_max(&self) -> (usize, usize) {
        match self {
            Self::V3(_) => (usize::MAX, usize::MAX),
            Self::V4(v4) => v4.transfer_max(),
        }
    }

    pub async fn read(&self, file: &Handle, offset: u64, count: u32) -> Result<ReadData> {
        match self {
            Self::V3(v3) => Operations::read(v3, file, offset, count).await,
            Self::V4(v4) => v4.read_here(file, offset, count).await,
        }
    }

    pub async fn read_into(&self, file: &Handle, offset: u64, region: Region) -> (Result<ReadInfo>, Region) {
        match self {
            Self::V3(v3) => Operations::read_into(v3, file, offset, region).await,
            Self::V4(v4) => v4.read_into_here(file, offset, region).await,
        }
    }

    pub async fn write(&self, file: &Handle, offset: u64, data: Rope, stable: StableHow) -> Result<Written> {
        match self {
            Self::V3(v3) => Operations::write(v3, file, offset, data, stable).await,
            Self::V4(v4) => v4.write_here(file, offset, data, stable).await,
        }
    }

    pub async fn commit(&self, file: &Handle) -> Result<Verifier> {
        match self {
            Self::V3(v3) => Operations::commit(v3, file).await,
            Self::V4(v4) => v4.commit_here(file).await,
        }
    }

    /// Ends the client at the data server. If the data server does not answer, it removes the client later.
    pub async fn disconnect(&self) {
        if let Self::V4(v4) = self
            && let Err(error) = v4.disconnect().await
        {
            tracing::debug!(%error, "ending the client at a data server failed");
        }
    }
}
