//! RDMA adapters as a provider of "rdma".

use std::{io, sync::Arc};

use buf::Pool;
use rdma::verbs::{Devices, Verbs, VerbsOptions};
use rpcrdma::RdmaKind;

use crate::VERBS_PACKAGES;

/// The adapters of this machine, and the memory that is registered with them.
#[derive(Clone, Default)]
pub(super) struct Adapters(Devices);

impl Adapters {
    /// Returns RPC-over-RDMA on the adapters that the machine has now.
    ///
    /// # Errors
    /// `Unsupported` if there is no adapter, or the libraries are not installed.
    pub(super) fn kind(&self, rpc: &rpcrdma::Options, pool: &Pool) -> io::Result<RdmaKind> {
        let options = VerbsOptions { devices: self.0.clone(), ..VerbsOptions::default() };
        let verbs = Verbs::open(options).map_err(|why| {
            io::Error::new(io::ErrorKind::Unsupported, format!("{why} (apt install {VERBS_PACKAGES})"))
        })?;
        Ok(RdmaKind::new(Arc::new(verbs), rpc.clone()).with_pool(pool.clone()))
    }
}
