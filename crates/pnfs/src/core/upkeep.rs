//! Work in the background: removal of objects, and repair of copies.

use std::{future::Future, sync::Arc, time::Duration};

use futures_util::future::join_all;
use tokio::time::{Instant, sleep_until};
use vfs::{Caller, Cred, Handle, Result, VfsError, layout::LayoutModes};

use super::{Core, Pnfs};
use crate::{
    files::{File, Place},
    index::{DIRTY, OWNERS, TRUNCATING, UNHEALTHY},
    record::{CopyState, Object, ServerId},
    servers::ServerError,
    services::Service,
};

/// The use of an object in the queue of removals.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Usage {
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
    /// that may differ, and makes stale copies again. Work that fails is left for the next round. This needs a runtime of tokio.
    pub async fn upkeep(&self) {
        let core = &self.0;
        let Some(until) = core.holders.former() else { return core.round().await };
        let ended = async {
            sleep_until(until).await;
            core.holders.end_former();
            std::future::pending::<()>().await;
        };
        tokio::select! { biased; () = ended => {}, () = core.round() => {} }
    }
}

impl Core {
    /// Executes one round of the upkeep.
    async fn round(self: &Arc<Self>) {
        let core = self;
        core.services.await_earlier().await;
        core.probe().await;
        core.undo_moves().await;
        core.scan_part().await;
        core.remove_objects().await;
        if core.scan.is_due() {
            // What is not known is not repaired, and files may be used meanwhile.
            core.wake.notify_one();
            return;
        }
        let mut work: Vec<_> = core.work.lock().iter().map(|(file, work)| (file.clone(), *work)).collect();
        // Another operation may have done the work of a file whose copies may differ.
        let unequal: Vec<_> = core.unequal.lock().iter().cloned().collect();
        let unequal = unequal.into_iter().filter(|file| !core.has_work(file, u8::MAX));
        work.extend(unequal.map(|file| (file, 0)));
        work.sort_unstable_by(|one, other| one.0.as_bytes().cmp(other.0.as_bytes()));
        for (handle, work) in work {
            if let Err(error) = core.repair(&handle, work).await {
                tracing::debug!(file = ?handle, %error, "copies cannot be repaired now");
            }
        }
        core.empty_servers().await;
        core.remove_devices().await;
        // Resilvering and moves have left the former objects.
        core.remove_objects().await;
        if let Err(error) = core.run(|core| core.store_unsure().and_then(|()| core.index.sync())).await {
            tracing::debug!(%error, "the end of work is not durable yet");
        }
    }

    /// Probes the data servers that have failed, and from time to time the others, too: one that hangs causes no error here while only clients
    /// use it. If it does not answer twice, clients get another layout.
    async fn probe(self: &Arc<Self>) {
        let failing: Vec<ServerId> = self.failing.lock().all();
        let mut servers = failing.clone();
        if self.is_probe_due() {
            servers.extend(self.services.configured().into_iter().filter(|server| !failing.contains(server)));
        }
        servers.retain(|server| self.services.of(*server) != Service::Lost);
        let probe = |server| async move { (server, self.servers.probe(server).await != Err(ServerError::Unreachable)) };
        for (server, answered) in join_all(servers.into_iter().map(probe)).await {
            self.note_server(server, answered);
            if !answered && failing.contains(&server) {
                self.recall_from(server).await;
            }
        }
    }

    /// Reports whether it is time to probe all data servers.
    fn is_probe_due(&self) -> bool {
        let (now, mut probed) = (Instant::now(), self.probed.lock());
        let due = probed.is_none_or(|last| now - last >= PROBE_INTERVAL);
        if due {
            *probed = Some(now);
        }
        due
    }

    /// Recalls the layouts with a copy on a data server that does not answer, if their clients can use other copies. Linux's client waits
    /// without a limit for a data server whose connection is open, and does not report that. A recall ends its requests.
    async fn recall_from(self: &Arc<Self>, server: ServerId) {
        for handle in self.holders.with_devices(&self.devices_of(server)) {
            let Ok(Place::Servers(record)) = self.place(&self.files.get(&handle)).await else { continue };
            let is_there = |copy: usize| record.copies[copy].object.server == server;
            let is_avoidable = record.in_sync().any(|copy| is_there(copy) && self.is_avoidable(&record, copy));
            if is_avoidable && self.holders.recall(&handle, LayoutModes::ALL, false) {
                tracing::warn!(file = ?handle, server = server.0, "layouts are recalled: a data server does not answer");
            }
        }
    }

    /// Removes the objects of the queue that no file uses.
    async fn remove_objects(self: &Arc<Self>) {
        // Those of lost data servers stay in the queue, because the state can be changed again.
        let mut servers = self.services.configured();
        servers.retain(|server| self.services.of(*server) != Service::Lost);
        // Until the index is complete, a file may have an object that is not there.
        let complete = !self.scan.is_running();
        let Ok(mut queue) = self.run(move |core| core.index.removals(&servers)).await else { return };
        queue.retain(|(_, file)| complete || file.is_some());
        let mut removed = Vec::new();
        for part in queue.chunks(REMOVALS) {
            let part = part.to_vec();
            let Ok(unused) = self.run(move |core| core.unused_in_queue(part)).await else { return };
            let remove = |object| async move { (object, self.servers.remove(object).await) };
            for (object, result) in join_all(unused.into_iter().map(remove)).await {
                self.note_server(object.server, result != Err(ServerError::Unreachable));
                match result {
                    Ok(()) => removed.push(object),
                    Err(error) => tracing::debug!(?object, %error, "an object cannot be removed now"),
                }
            }
        }
        if !removed.is_empty() {
            // If this fails, the next round finds the objects again.
            let _ = self.run(move |core| core.index.end_removals(&[], &removed)).await;
        }
    }

    /// Returns the objects of the queue of removals that no file uses. Removes those from the queue that a file uses.
    ///
    /// # Errors
    /// Returns `Io`.
    fn unused_in_queue(&self, queue: Vec<(Object, Option<Handle>)>) -> Result<Vec<Object>> {
        // No operation is between adding objects to the queue and removing their file.
        let _removing = self.removing.write();
        let (mut used, mut unused) = (Vec::new(), Vec::new());
        for (object, file) in queue {
            if self.pinned.lock().contains(&object) {
                continue;
            }
            match file.map_or(Usage::Unused, |file| self.usage(&file, object)) {
                // A file that still has the object was not removed in the end, or the object is a new copy.
                Usage::Used => used.push(object),
                Usage::Unused => unused.push(object),
                Usage::Unknown => {}
            }
        }
        if !used.is_empty() {
            self.index.end_removals(&used, &[])?;
        }
        Ok(unused)
    }

    /// Returns whether a file uses an object.
    pub fn usage(&self, file: &Handle, object: Object) -> Usage {
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
        // A copy is being moved.
        let _one = file.repairing.try_lock().map_err(|_| VfsError::Delay)?;
        let of = handle.clone();
        let exists = self.run(move |core| core.size_of(&of)).await;
        if let Err(VfsError::Stale | VfsError::NotFound | VfsError::BadHandle) = exists {
            self.unequal.lock().remove(handle);
            self.unfenced.lock().remove(handle);
            self.unmeasured.lock().remove(handle);
            let of = handle.clone();
            return self.run(move |core| core.end_work(&of, u8::MAX)).await;
        }
        self.end_former_layouts(&file).await?;
        // A truncation that is in progress needs no recall.
        let truncating = work & TRUNCATING != 0 && !file.sizing.lock().cutting;
        if truncating || self.is_unequal(handle) {
            self.equalize(&file).await?;
        }
        if work & UNHEALTHY != 0 && self.may_resilver(&file).await? {
            self.resilver(&file).await?;
        }
        if work & OWNERS != 0 {
            self.complete_owners(&file).await?;
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

/// The minimum time between two probes of a data server that has not failed.
const PROBE_INTERVAL: Duration = Duration::from_secs(5);
/// The number of objects in the queue of removals that are examined, and removed, at a time. Files cannot be removed while they are
/// examined.
const REMOVALS: usize = 64;
