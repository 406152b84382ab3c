//! [`DataServer`]: a connection to a data server, by the version of NFS that the metadata server names.
//!
//! Read RFC 8435 §2.2 and §5.1 first. The implementation for NFSv4 is in `session.rs`.

use std::sync::Arc;

use buf::{Region, Rope};
use nfs::v4::Stateid4;
use rpc::BoxFuture;

use crate::{
    model::{Caller, Handle, Operations, ReadInfo, Result, StableHow, Verifier, Written},
    v3::V3,
};

/// A connection to a data server.
pub(crate) trait DataServer: Send + Sync {
    /// Returns the same connection for a user, or for that of the mount. By NFSv4, READ and WRITE have this stateid.
    fn with_access(&self, caller: Option<&Caller>, stateid: Stateid4) -> Arc<dyn DataServer>;

    /// Returns the maximum bytes of a READ and of a WRITE that the connection permits.
    fn transfer_max(&self) -> (usize, usize);

    /// Reads from a data file into a region.
    fn read_into<'a>(
        &'a self,
        file: &'a Handle,
        offset: u64,
        region: Region,
    ) -> BoxFuture<'a, (Result<ReadInfo>, Region)>;

    /// Writes to a data file.
    fn write<'a>(
        &'a self,
        file: &'a Handle,
        offset: u64,
        data: Rope,
        stable: StableHow,
    ) -> BoxFuture<'a, Result<Written>>;

    /// Makes writes to a data file durable that returned the same verifier.
    fn commit<'a>(&'a self, file: &'a Handle) -> BoxFuture<'a, Result<Verifier>>;

    /// Ends the client at the data server. If the data server does not answer, it removes the client later.
    fn disconnect(&self) -> BoxFuture<'_, ()>;
}

impl DataServer for V3 {
    fn with_access(&self, caller: Option<&Caller>, _: Stateid4) -> Arc<dyn DataServer> {
        Arc::new(V3::with_caller(self, caller))
    }

    fn transfer_max(&self) -> (usize, usize) {
        (usize::MAX, usize::MAX)
    }

    fn read_into<'a>(
        &'a self,
        file: &'a Handle,
        offset: u64,
        region: Region,
    ) -> BoxFuture<'a, (Result<ReadInfo>, Region)> {
        Box::pin(Operations::read_into(self, file, offset, region))
    }

    fn write<'a>(
        &'a self,
        file: &'a Handle,
        offset: u64,
        data: Rope,
        stable: StableHow,
    ) -> BoxFuture<'a, Result<Written>> {
        Box::pin(Operations::write(self, file, offset, data, stable))
    }

    fn commit<'a>(&'a self, file: &'a Handle) -> BoxFuture<'a, Result<Verifier>> {
        Box::pin(Operations::commit(self, file))
    }

    fn disconnect(&self) -> BoxFuture<'_, ()> {
        // The server has no state of this client.
        Box::pin(async {})
    }
}
