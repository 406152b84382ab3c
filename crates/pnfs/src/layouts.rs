//! [`Layouts`] for [`Pnfs`]. `core/layouts.rs` executes the operations, which are all pending.

use std::sync::Arc;

use vfs::{
    Caller, Change, Handle, Layouts, Result, VfsError,
    layout::{
        DataFailure, DataUsage, Layout, LayoutCaps, LayoutCommit, LayoutDevice, LayoutDeviceId, LayoutEvents,
        LayoutHolder, LayoutKind, LayoutModes, LayoutRequest,
    },
};

use crate::{core::Pnfs, servers::ServerError};

impl Layouts for Pnfs {
    fn caps(&self) -> &LayoutCaps {
        &self.0.holders.caps
    }

    fn subscribe(&self, events: Arc<dyn LayoutEvents>) {
        self.0.holders.subscribe(events);
    }

    fn grant(&self, caller: &Caller<'_>, file: &Handle, request: &LayoutRequest) -> Result<Layout> {
        caller.complete(|| self.0.clone().grant(file.clone(), request.clone()))
    }

    fn device(&self, caller: &Caller<'_>, id: LayoutDeviceId, kind: LayoutKind) -> Result<LayoutDevice> {
        let device = self.0.servers.device(id);
        caller.complete(|| async move {
            match device.await {
                Ok(device) if device.kind() == kind => Ok(device),
                Ok(_) | Err(ServerError::Missing) => Err(VfsError::NotFound),
                Err(error) => Err(error.into()),
            }
        })
    }

    fn commit(
        &self,
        caller: &Caller<'_>,
        file: &Handle,
        holder: Option<LayoutHolder>,
        commit: &LayoutCommit,
    ) -> Result<Change> {
        caller.complete(|| {
            let (core, file) = (self.0.clone(), file.clone());
            let committed = core.clone().commit_layout(file.clone(), holder, *commit);
            async move { committed.await.map(|change| core.with_space_after(false, &file, change)) }
        })
    }

    fn report(
        &self,
        caller: &Caller<'_>,
        file: &Handle,
        holder: Option<LayoutHolder>,
        failures: &[DataFailure],
    ) -> Result<()> {
        caller.complete(|| self.0.clone().report(file.clone(), holder, failures.to_vec()))
    }

    fn count(&self, file: &Handle, _: LayoutHolder, usage: &DataUsage) {
        let server = self.0.servers.server_of(usage.device);
        let DataUsage { reads, read_bytes, writes, write_bytes, .. } = usage;
        tracing::debug!(?file, ?server, reads, read_bytes, writes, write_bytes, "a client used a data server");
    }

    fn release(&self, caller: &Caller<'_>, file: &Handle, holder: LayoutHolder, modes: LayoutModes) -> Result<()> {
        caller.complete(|| self.0.clone().release(file.clone(), holder, modes))
    }

    fn fence(&self, caller: &Caller<'_>, file: &Handle, holder: LayoutHolder, modes: LayoutModes) -> Result<()> {
        caller.complete(|| self.0.clone().fence(file.clone(), holder, modes))
    }
}
