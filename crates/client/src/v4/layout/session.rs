//! [`DataSession`]: the session with a data server of NFSv4.1 or 4.2.
//!
//! Read RFC 8435 §2.2 and §5.1, and RFC 8881 §13.9.1 first: at a loosely coupled data server of flexible files, the client uses the
//! anonymous stateid, and with a files layout that of its open at the metadata server. So it opens no file there, and a restart of
//! the data server costs it only its session, which the session core makes again.

use std::sync::Arc;

use buf::{Region, Rope};
use nfs::v4::Stateid4;
use rpc::BoxFuture;

use super::{super::protocol::V4, data_server::DataServer};
use crate::model::{Caller, Handle, Operations, ReadInfo, Result, StableHow, Verifier, Written};

/// A session with a data server.
pub(crate) struct DataSession(V4);

impl DataSession {
    pub fn new(v4: V4) -> Self {
        Self(v4.with_stateid(Stateid4::ANONYMOUS))
    }
}

impl DataServer for DataSession {
    fn with_access(&self, caller: Option<&Caller>, stateid: Stateid4) -> Arc<dyn DataServer> {
        Arc::new(Self(self.0.with_caller(caller).with_stateid(stateid)))
    }

    fn transfer_max(&self) -> (usize, usize) {
        self.0.transfer_max()
    }

    fn read_into<'a>(
        &'a self,
        file: &'a Handle,
        offset: u64,
        region: Region,
    ) -> BoxFuture<'a, (Result<ReadInfo>, Region)> {
        Box::pin(Operations::read_into(&self.0, file, offset, region))
    }

    fn write<'a>(
        &'a self,
        file: &'a Handle,
        offset: u64,
        data: Rope,
        stable: StableHow,
    ) -> BoxFuture<'a, Result<Written>> {
        Box::pin(Operations::write(&self.0, file, offset, data, stable))
    }

    fn commit<'a>(&'a self, file: &'a Handle) -> BoxFuture<'a, Result<Verifier>> {
        Box::pin(Operations::commit(&self.0, file))
    }

    fn disconnect(&self) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            if let Err(error) = self.0.disconnect().await {
                tracing::debug!(%error, "ending the client at a data server failed");
            }
        })
    }
}
