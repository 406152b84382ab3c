//! Work in the background: removal of objects, and repair of copies.

use std::{future::Future, sync::Arc};

use tokio::time::Instant;
use vfs::{Caller, Cred, Handle, Result, VfsError};

use super::{Core, Pnfs};
use crate::{
    files::{File, Place},
    index::{DIRTY, TRUNCATING, UNHEALTHY},
    record::{CopyState, Object, ServerId},
    servers::ServerError,
    services::Service,
};

/// Whether a file uses an object in the queue of removals.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Usage {
    Used,
    Unused,
    /// That is not known, or can change.
    Unknown,
}

impl Pnfs {
    /// Waits until there may be work for [`upkeep`](Self::upkeep). A caller must not only wait for this: a data server that
    /// answers again causes no event.
    pub fn woken(&self) -> impl Future<Output = ()> + Send + use<> {
        let core = self.0.clone();
        async move { core.wake.notified().await }
    }

    /// Executes one round of the work in the background: removes objects of removed files, makes the copies of files equal
    /// that may differ, and makes stale copies again. Work that fails is left for the next round.
    pub async fn upkeep(&self) {
        let core = &self.0;
        core.probe().await;
        core.undo_moves().await;
        core.remove_objects().await;
        let mut work: Vec<_> = core.work.lock().iter().map(|(file, work)| (file.clone(), *work)).collect();
        work.sort_unstable_by(|one, other| one.0.as_bytes().cmp(other.0.as_bytes()));
        for (handle, work) in work {
            if let Err(error) = core.repair(&handle, work).await {
                tracing::debug!(file = ?handle, %error, "copies cannot be repaired now");
            }
        }
        core.empty_servers().await;
        // Resilvering and moves have left the former objects.
        core.remove_objects().await;
    }
}

impl Core {
    /// Probes the data servers that have failed.
    async fn probe(self: &Arc<Self>) {
        let failing: Vec<ServerId> = self.failing.lock().all();
        for server in failing {
            let answered = self.servers.probe(server).await != Err(ServerError::Unreachable);
            self.note_server(server, answered);
        }
    }

    /// Removes the objects of the queue that no file uses.
    async fn remove_objects(self: &Arc<Self>) {
        // Those of lost data servers stay in the queue, because the state can be changed again.
        let mut servers = self.services.configured();
        servers.retain(|server| self.services.of(*server) != Service::Lost);
        let Ok(queue) = self.run(move |core| core.index.removals(&servers)).await else { return };
        for (object, file) in queue {
            if let Err(error) = self.remove_object(object, file).await {
                tracing::debug!(?object, %error, "an object cannot be removed now");
            }
        }
    }

    async fn remove_object(self: &Arc<Self>, object: Object, file: Option<Handle>) -> Result<()> {
        let usage = self
            .run(move |core| {
                // No operation is between adding objects to the queue and removing their file.
                let _removing = core.removing.write();
                let usage = file.map_or(Usage::Unused, |file| core.usage(&file, object));
                // A file that still has the object was not removed in the end.
                if usage == Usage::Used {
                    core.index.end_removal(object, false)?;
                }
                Ok(usage)
            })
            .await?;
        if usage == Usage::Unused {
            let removed = self.servers.remove(object).await;
            self.note_server(object.server, removed != Err(ServerError::Unreachable));
            removed?;
            self.run(move |core| core.index.end_removal(object, true)).await?;
        }
        Ok(())
    }

    /// Returns whether a file uses an object.
    fn usage(&self, file: &Handle, object: Object) -> Usage {
        let root = Cred::root();
        match self.inner.getattr(&Caller::blocking(&root), file) {
            // A removed file that is still open.
            Ok(attr) if attr.nlink == 0 => return Usage::Unknown,
            Ok(_) => {}
            Err(VfsError::Stale | VfsError::NotFound | VfsError::BadHandle) => return Usage::Unused,
            Err(_) => return Usage::Unknown,
        }
        match self.place_now(&self.files.get(file), true) {
            Ok(Place::Inner) => Usage::Unused,
            Ok(Place::Servers(record)) if record.copies.iter().any(|copy| copy.object == object) => Usage::Used,
            Ok(Place::Servers(_)) => Usage::Unused,
            Err(_) => Usage::Unknown,
        }
    }

    async fn repair(self: &Arc<Self>, handle: &Handle, work: u8) -> Result<()> {
        let file = self.files.get(handle);
        let of = handle.clone();
        let exists = self.run(move |core| core.size_of(&of)).await;
        if let Err(VfsError::Stale | VfsError::NotFound | VfsError::BadHandle) = exists {
            self.unequal.lock().remove(handle);
            self.unfenced.lock().remove(handle);
            let of = handle.clone();
            return self.run(move |core| core.end_work(&of, u8::MAX)).await;
        }
        self.lock_out_former(&file).await?;
        if work & TRUNCATING != 0 || self.is_unequal(handle) {
            self.equalize(&file).await?;
        }
        if work & UNHEALTHY != 0 && self.may_resilver(&file).await? {
            self.resilver(&file).await?;
        }
        if work & DIRTY != 0 { self.end_dirty(&file).await } else { Ok(()) }
    }

    /// Reports whether stale copies of a file can be made again now: there is a copy in sync to read, and no client that has
    /// just reported one of them would report the new copy again because it is the only one that cannot reach a data server.
    async fn may_resilver(self: &Arc<Self>, file: &Arc<File>) -> Result<bool> {
        let paused = file.resilver_after.lock().is_some_and(|time| Instant::now() < time);
        let Place::Servers(record) = self.place(file).await? else { return Ok(true) };
        if self.is_lost(&record) {
            return Ok(false);
        }
        for copy in record.copies.iter().filter(|copy| paused && copy.state == CopyState::Stale) {
            let server = copy.object.server;
            if self.servers.probe(server).await == Err(ServerError::Unreachable) {
                // The client is not the only one.
                self.note_server(server, false);
                *file.resilver_after.lock() = None;
                return Ok(false);
            }
        }
        Ok(!paused)
    }
}
