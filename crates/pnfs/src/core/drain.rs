//! Data servers out of service: the copies on a draining one are moved, and those on a lost one are marked as stale.
//!
//! A copy is moved as a new one is made by resilvering: one more copy is added to the record, which receives all writes. When it
//! is complete, it takes the place of the former one in a single change of the record. A move that is interrupted is undone,
//! and begins again with a new object.

use std::{
    sync::{Arc, atomic::AtomicU64},
    time::Duration,
};

use entropy::HashMap;
use parking_lot::Mutex;
use tokio::time::Instant;
use vfs::{Caller, Cred, Handle, Result, VfsError, layout::LayoutModes};

use super::Core;
use crate::{
    files::{File, Place},
    index::{Move, TRUNCATING},
    ranges::WHOLE,
    record::{COPIES_MAX, Copy, CopyState, OBJECTS_MAX, Object, Record, ServerId},
    services::Service,
};

/// The work on data servers out of service.
#[derive(Default)]
pub struct Drains {
    passes: Mutex<HashMap<ServerId, Passes>>,
    /// Moves in progress: the new object, and the one that it replaces.
    moving: Mutex<HashMap<Object, Object>>,
    /// The bytes that were copied to new copies since the start.
    pub copied: AtomicU64,
    /// The file whose copy is being made, and the bytes of it that have been copied.
    pub current: Mutex<Option<(Handle, u64)>>,
}

/// The passes over the objects of a data server.
#[derive(Clone, Default)]
pub struct Passes {
    now: Pass,
    /// The last complete one, if there is one since the state of the data server was set.
    pub last: Option<Pass>,
}

/// One pass over the objects of a data server.
#[derive(Clone, Default)]
pub struct Pass {
    after: Option<u128>,
    /// The number of objects that could not be moved.
    pub failed: u64,
    /// The error of the last one.
    pub error: Option<VfsError>,
    /// The number of files whose last copy in sync is here, on a lost data server.
    pub lost: u64,
    /// Some of these files.
    pub files: Vec<Handle>,
}

impl Drains {
    /// Begins again with the objects of a data server, whose state was set.
    pub fn restart(&self, server: ServerId) {
        self.passes.lock().remove(&server);
    }

    /// Returns the passes over the objects of a data server.
    pub fn of(&self, server: ServerId) -> Passes {
        self.passes.lock().get(&server).cloned().unwrap_or_default()
    }

    /// Puts a complete copy in the place of the one that it replaces, in a record that is not stored yet. Returns `true` if it
    /// replaces one.
    pub fn replace(&self, next: &mut Record, complete: Object) -> bool {
        let index = |object: Object| next.copies.iter().position(|copy| copy.object == object);
        let former = self.moving.lock().get(&complete).copied();
        let (Some(former), Some(complete)) = (former.and_then(index), index(complete)) else { return false };
        next.copies[former] = next.copies[complete];
        remove_row(next, complete);
        true
    }
}

impl Core {
    /// Undoes moves that were interrupted: by the end of an earlier process, or because their record could not be changed.
    pub async fn undo_moves(self: &Arc<Self>) {
        let Ok(moves) = self.run(|core| core.index.moves()).await else { return };
        for Move { object, former, file } in moves {
            let file = self.files.get(&file);
            // Not a move in progress.
            let Ok(_one) = file.repairing.try_lock() else { continue };
            if let Err(error) = self.undo_move(&file, object, former).await {
                tracing::debug!(?object, %error, "the move of a copy cannot be undone now");
            }
        }
    }

    /// Executes a part of the work on data servers out of service.
    pub async fn empty_servers(self: &Arc<Self>) {
        // The index does not have all objects yet.
        if self.scan.is_running() {
            return;
        }
        for (server, service) in self.services.out_of_service() {
            let Passes { now: mut pass, .. } = self.drains.of(server);
            let after = pass.after;
            let Ok(batch) = self.run(move |core| core.index.objects_on(server, after, BATCH)).await else { continue };
            for (object, handle) in &batch {
                pass.after = Some(object.id);
                if self.services.of(server) != service {
                    break;
                }
                if let Err(error) = self.take_from(*object, handle, service, &mut pass).await {
                    tracing::debug!(file = ?handle, ?object, %error, "a copy cannot be moved now");
                    pass.failed += 1;
                    pass.error = Some(error);
                }
            }
            if self.services.of(server) != service {
                continue;
            }
            let mut passes = self.drains.passes.lock();
            let passes = passes.entry(server).or_default();
            if batch.len() < BATCH {
                log_pass(server, service, &pass, passes.last.as_ref());
                *passes = Passes { now: Pass::default(), last: Some(pass) };
            } else {
                passes.now = pass;
                self.wake.notify_one();
            }
        }
    }

    /// Ends the use of one object of a data server.
    async fn take_from(
        self: &Arc<Self>,
        object: Object,
        handle: &Handle,
        service: Service,
        pass: &mut Pass,
    ) -> Result<()> {
        let file = self.files.get(handle);
        let of = handle.clone();
        match self.run(move |core| core.size_of(&of)).await {
            Err(VfsError::Stale | VfsError::NotFound | VfsError::BadHandle) => {
                return self.run(move |core| core.index.disuse(object)).await;
            }
            exists => exists?,
        };
        let Some(record) = self.record_with(&file, object).await? else {
            // The data of the file may be on their way to the object (spill).
            let _whole = file.ranges.lock(WHOLE, false).await;
            let _changing = file.changing.lock().await;
            return match self.record_with(&file, object).await? {
                None => self.run(move |core| core.index.disuse(object)).await,
                Some(_) => Err(VfsError::Delay),
            };
        };
        if service == Service::Draining {
            let _one = file.repairing.try_lock().map_err(|_| VfsError::Delay)?;
            return self.move_copy(&file, object, None).await.map(drop);
        }
        let is_other = |copy: usize| record.copies[copy].object != object;
        if record.stripe_without(is_other).is_some() {
            pass.lost += 1;
            if pass.files.len() < FILES_MAX {
                pass.files.push(handle.clone());
            }
            // A client that still reaches the data server would write what nobody can read here.
            self.holders.recall(handle, LayoutModes::ALL, true);
            return Ok(());
        }
        self.mark_stale(&file, vec![object]).await
    }

    /// Returns the record of a file if it has a copy with this object.
    async fn record_with(self: &Arc<Self>, file: &Arc<File>, object: Object) -> Result<Option<Arc<Record>>> {
        Ok(match self.place(file).await? {
            Place::Servers(record) if record.copies.iter().any(|copy| copy.object == object) => Some(record),
            _ => None,
        })
    }

    /// Moves a copy to another data server: to this one for a rebalancing, which limits the rate, and else to any. The caller holds the
    /// lock on repairs. Returns `false` if the copy is stale, and left to resilvering.
    ///
    /// # Errors
    /// Returns `NoSpace` if every other data server has a copy, `Delay` if the copies may differ, and the errors of the data servers
    /// and of the inner file system.
    pub async fn move_copy(self: &Arc<Self>, file: &Arc<File>, former: Object, to: Option<ServerId>) -> Result<bool> {
        if self.is_unequal(&file.handle) || self.has_work(&file.handle, TRUNCATING) {
            return Err(VfsError::Delay);
        }
        // Clients may read the former object until they have returned their layouts.
        let _pinned = self.pin(vec![former]);
        let Some((copy, object)) = self.begin_move(file, former, to).await? else { return Ok(false) };
        let filled = self.fill_copy(file, copy, object, to.is_some()).await;
        self.drains.moving.lock().remove(&object);
        self.holders.recalled(&file.handle).await;
        if let Err(error) = filled {
            if error == VfsError::NoSpace {
                self.note_full(object.server);
            }
            self.undo_move(file, object, former).await?;
            return Err(error);
        }
        file.unstable.lock().remove(&former);
        self.run(move |core| core.index.end_move(object)).await?;
        tracing::info!(file = ?file.handle, from = former.server.0, to = object.server.0, "a copy was moved");
        Ok(true)
    }

    /// Returns an error if a move of a copy of this file could not be undone yet: its former object must stay in the record.
    ///
    /// # Errors
    /// Returns `Delay` then, and `Io`.
    pub async fn await_undo(self: &Arc<Self>, file: &Arc<File>) -> Result<()> {
        let of = file.clone();
        let is_moving = self.run(move |core| core.index.is_moving(&of.handle)).await?;
        if is_moving { Err(VfsError::Delay) } else { Ok(()) }
    }

    /// Adds a copy to a record, which replaces another one when it is complete. Returns its index and its object, or `None` if
    /// resilvering replaces the other copy.
    async fn begin_move(
        self: &Arc<Self>,
        file: &Arc<File>,
        former: Object,
        to: Option<ServerId>,
    ) -> Result<Option<(usize, Object)>> {
        self.await_undo(file).await?;
        let changing = file.changing.lock().await;
        let Place::Servers(record) = self.place(file).await? else { return Ok(None) };
        let in_sync = |copy: &Copy| copy.object == former && copy.state == CopyState::InSync;
        let Some(moved) = record.copies.iter().position(in_sync) else { return Ok(None) };
        let stripes = record.stripes.count();
        if record.copies.len() == COPIES_MAX * stripes || record.copies.len() + stripes > OBJECTS_MAX {
            if to.is_some() {
                return Err(VfsError::NotSupported);
            }
            // There is no place for one more, and enough others are left meanwhile.
            drop(changing);
            self.mark_stale(file, vec![former]).await?;
            return Ok(None);
        }
        let server = match to {
            Some(to)
                if record.copies_of(record.stripe_of(moved)).any(|copy| record.copies[copy].object.server == to) =>
            {
                return Err(VfsError::Delay);
            }
            Some(to) if self.services.of(to) != Service::Active => return Err(VfsError::Delay),
            Some(to) => to,
            None => self.server_for(&record, moved)?,
        };
        let new = |state| Copy { object: Object::new(server), state };
        let mut next = Record::clone(&record);
        next.generation += 1;
        // A record has objects for all stripes of a copy. The others are never made.
        next.copies.extend((0..stripes).map(|_| new(CopyState::Stale)));
        let copy = record.copies.len() + record.stripe_of(moved);
        next.copies[copy].state = CopyState::Copying;
        let object = next.copies[copy].object;
        self.servers.probe(server).await?;
        let of = file.clone();
        self.run(move |core| core.index.begin_move(object, former, &of.handle)).await?;
        let created = self.servers.create(object, record.epochs).await;
        let of = file.clone();
        let stored = self.run(move |core| {
            created?;
            core.store(&of, next)?;
            core.enqueue_if_removed(&of.handle, object)
        });
        let stored = stored.await;
        drop(changing);
        if let Err(error) = stored {
            self.undo_move(file, object, former).await?;
            return Err(error);
        }
        self.drains.moving.lock().insert(object, former);
        Ok(Some((copy, object)))
    }

    /// Removes the copy that a move has added from the record, unless the move is complete.
    async fn undo_move(self: &Arc<Self>, file: &Arc<File>, object: Object, former: Object) -> Result<()> {
        let _changing = file.changing.lock().await;
        let place = match self.place(file).await {
            Err(VfsError::Stale | VfsError::NotFound | VfsError::BadHandle) => Place::Inner,
            place => place?,
        };
        let of = file.clone();
        self.run(move |core| {
            // The record has the former object until the new one replaces it. The new one can be stale after that.
            if let Place::Servers(record) = place
                && let Some(copy) = record.copies.iter().position(|copy| copy.object == object)
                && record.copies.iter().any(|copy| copy.object == former)
            {
                let mut next = Record::clone(&record);
                next.generation += 1;
                remove_row(&mut next, copy);
                core.store(&of, next)?;
            }
            core.index.end_move(object)
        })
        .await
    }

    /// Returns the data server for an object that replaces this copy: the same one, or if that is out of service or full another one
    /// without a copy of the same stripe.
    ///
    /// # Errors
    /// Returns `NoSpace` if there is none.
    pub fn server_for(&self, record: &Record, copy: usize) -> Result<ServerId> {
        let mut servers = self.services.active();
        let former = record.copies[copy].object.server;
        let in_service = servers.contains(&former);
        if in_service && !self.is_full(former) {
            return Ok(former);
        }
        let server_of = |copy: usize| record.copies[copy].object.server;
        servers.retain(|server| record.copies_of(record.stripe_of(copy)).all(|other| server_of(other) != *server));
        // Layouts are recalled for each attempt to make a copy. There is nothing better for a copy that must be moved.
        servers.retain(|server| !in_service || !self.is_full(*server));
        if servers.is_empty() {
            return Err(VfsError::NoSpace);
        }
        let first = entropy::random_range(0..servers.len());
        servers.rotate_left(first);
        let failing = self.failing.lock();
        let objects = |server: ServerId| record.copies.iter().filter(|copy| copy.object.server == server).count();
        servers.sort_by_key(|server| (failing.contains(server), self.is_full(*server), objects(*server)));
        Ok(servers[0])
    }

    /// Takes note that a data server has no space: new copies are made elsewhere for a while, if that is possible.
    pub fn note_full(&self, server: ServerId) {
        if self.full.lock().insert(server, Instant::now()).is_none() {
            tracing::warn!(server = server.0, "a data server has no space left");
        }
    }

    /// Reports whether a data server had no space the last time, a short while ago.
    pub fn is_full(&self, server: ServerId) -> bool {
        let mut full = self.full.lock();
        full.retain(|_, since| since.elapsed() < FULL_PAUSE);
        full.contains_key(&server)
    }

    /// Reports whether all copies in sync of a stripe are on lost data servers.
    pub fn is_lost(&self, record: &Record) -> bool {
        let is_left = |copy: usize| self.services.of(record.copies[copy].object.server) != Service::Lost;
        record.stripe_without(is_left).is_some()
    }

    /// Adds a new object of a file to the queue of removals if the file has been removed: the removal may have known only the
    /// former objects.
    ///
    /// # Errors
    /// Returns `Io`.
    pub fn enqueue_if_removed(&self, file: &Handle, object: Object) -> Result<()> {
        // No operation is between adding the former objects to the queue and removing the file.
        let _removing = self.removing.write();
        match self.inner.getattr(&Caller::blocking(&Cred::root()), file) {
            Ok(attr) if attr.nlink > 0 => Ok(()),
            _ => self.index.enqueue_removals(&[object]),
        }
    }
}

/// Removes the objects of one copy of all stripes, among them this one.
fn remove_row(record: &mut Record, copy: usize) {
    let stripes = record.stripes.count();
    let first = copy - copy % stripes;
    record.copies.drain(first..first + stripes);
}

fn log_pass(server: ServerId, service: Service, pass: &Pass, last: Option<&Pass>) {
    let (server, failed, lost) = (server.0, pass.failed, pass.lost);
    // The same message is not repeated every few seconds.
    if last.is_some_and(|last| (last.failed, last.lost) == (failed, lost)) {
        return;
    }
    if lost > 0 {
        let files = &pass.files;
        tracing::error!(server, lost, ?files, "files have lost their last copy in sync with a data server");
    }
    if let Some(error) = pass.error {
        tracing::warn!(server, failed, %error, "copies cannot be moved from a data server now");
    } else {
        tracing::info!(server, ?service, "all objects of a data server out of service were examined");
    }
}

/// The time after which a data server that had no space is tried again.
const FULL_PAUSE: Duration = Duration::from_secs(60);
/// The number of objects between two looks at other work.
const BATCH: usize = 64;
/// The number of files that are named of those that have lost their last copy.
const FILES_MAX: usize = 1000;
