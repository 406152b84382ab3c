//! Copies that fail: which operations succeed without them, and the stale marks.

use std::sync::{Arc, atomic::Ordering::Relaxed};

use entropy::HashMap;
use futures_util::future::join_all;
use vfs::{Result, VfsError, layout::LayoutModes};

use super::Core;
use crate::{
    files::{File, Place, Unstable},
    index::UNHEALTHY,
    record::{CopyState, Epochs, Object, Record},
    servers::{DataServers, ObjectAttr, Presence, ServerError, ServerFuture, WriteVerifier},
    stripes::Stripes,
};

/// The result of an operation on the copies of a file.
#[derive(Default)]
pub struct Outcome {
    /// Objects that have missed the operation.
    pub failed: Vec<Object>,
    /// The error, if every copy of a stripe that is in sync has failed.
    pub lost: Option<VfsError>,
}

/// An operation on one copy: its index in the record, and the future. A copy can have several operations.
pub type CopyWork<T> = (usize, ServerFuture<T>);

impl Core {
    /// Runs an operation on an object of a file, which it tells whether the object may be new. If the object does not exist, runs it once
    /// more: the data server may have another store than before, or the file may have lost its data meanwhile.
    pub fn on_object<T: Send + 'static>(
        self: &Arc<Self>,
        file: &Arc<File>,
        record: &Record,
        copy: usize,
        operation: impl Fn(&dyn DataServers, Object, Presence) -> ServerFuture<T> + Send + 'static,
    ) -> ServerFuture<T> {
        let (object, stripes, stripe) = (record.copies[copy].object, record.stripes, record.stripe_of(copy));
        if !self.servers.creates_on_write(object.server) {
            return operation(&*self.servers, object, Presence::Exists);
        }
        let (core, file) = (self.clone(), file.clone());
        Box::pin(async move {
            // A write to a new file must not look for its object first: that would be a call for each copy.
            let presence = match file.has_data(stripe) {
                true => Presence::Exists,
                false => core.presence(&file, stripes, stripe).await,
            };
            match operation(&*core.servers, object, presence).await {
                Err(ServerError::Missing) => {
                    let presence = core.presence(&file, stripes, stripe).await;
                    operation(&*core.servers, object, presence).await
                }
                done => done,
            }
        })
    }

    /// Returns whether the objects of a stripe of a file exist, by the size of the file.
    async fn presence(self: &Arc<Self>, file: &Arc<File>, stripes: Stripes, stripe: usize) -> Presence {
        let of = file.clone();
        match self.run(move |core| core.size_of(&of.handle)).await {
            Ok(size) if stripes.end(stripe, size) == 0 => Presence::MayBeNew,
            Ok(_) => {
                file.note_data(stripe);
                Presence::Exists
            }
            Err(_) => Presence::Exists,
        }
    }

    /// Returns whether an object of a file exists that had `size` bytes.
    pub fn presence_at(&self, file: &File, record: &Record, copy: usize, size: u64) -> Presence {
        let (server, stripe) = (record.copies[copy].object.server, record.stripe_of(copy));
        let has_data = file.has_data(stripe) || record.stripes.end(stripe, size) > 0;
        if has_data || !self.servers.creates_on_write(server) { Presence::Exists } else { Presence::MayBeNew }
    }

    /// Returns the attributes of an object of a file. The size is 0 for an object that does not exist and may be new.
    pub fn object_attr(self: &Arc<Self>, file: &Arc<File>, record: &Record, copy: usize) -> ServerFuture<ObjectAttr> {
        self.on_object(file, record, copy, |servers, object, presence| {
            unless_new(presence, servers.getattr(object), ObjectAttr::default())
        })
    }

    /// Executes operations on copies at the same time. `check` decides whether a result is a success.
    pub async fn on_copies<T>(
        &self,
        record: &Record,
        work: Vec<CopyWork<T>>,
        mut check: impl FnMut(Object, T) -> bool,
    ) -> Outcome {
        let results = join_all(work.into_iter().map(|(copy, future)| async move { (copy, future.await) })).await;
        let mut errors: HashMap<usize, ServerError> = HashMap::default();
        for (copy, result) in results {
            let object = record.copies[copy].object;
            self.note_server(object.server, result.as_ref().err() != Some(&ServerError::Unreachable));
            let error = match result {
                Ok(value) => (!check(object, value)).then_some(ServerError::Io),
                Err(error) => Some(error),
            };
            if error == Some(ServerError::NoSpace) {
                self.note_full(object.server);
            }
            errors.extend(error.map(|error| (copy, error)));
        }
        let mut outcome = Outcome::default();
        if let Some(stripe) = record.stripe_without(|copy| !errors.contains_key(&copy)) {
            outcome.lost = record.in_sync_of(stripe).find_map(|copy| errors.get(&copy)).map(|error| (*error).into());
        }
        outcome.failed = errors.into_keys().map(|copy| record.copies[copy].object).collect();
        outcome.failed.sort_unstable();
        outcome
    }

    /// Completes an operation that changes data. When this returns without an error, all copies that have missed the change are
    /// durably marked as stale, and no client has a layout with one of them.
    ///
    /// # Errors
    /// Returns an error if no copy of a stripe would be in sync. The copies of the file may then differ.
    pub async fn settle(self: &Arc<Self>, file: &Arc<File>, outcome: Outcome) -> Result<()> {
        let settled = match outcome.lost {
            Some(error) => Err(error),
            None => self.mark_stale(file, outcome.failed).await,
        };
        // Another operation or a client may have marked the copy.
        self.holders.recalled(&file.handle).await;
        settled.inspect_err(|_| self.note_unequal(&file.handle))
    }

    /// Marks copies as stale, durably. Objects that the record does not have any more are ignored.
    ///
    /// # Errors
    /// Returns `Io` if no copy of a stripe would be in sync, or if the mark cannot be stored.
    pub async fn mark_stale(self: &Arc<Self>, file: &Arc<File>, objects: Vec<Object>) -> Result<()> {
        if objects.is_empty() {
            return Ok(());
        }
        let _changing = file.changing.lock().await;
        let Place::Servers(record) = self.place(file).await? else { return Ok(()) };
        let mut next = Record::clone(&record);
        let mut readable = false;
        for copy in next.copies.iter_mut().filter(|copy| objects.contains(&copy.object)) {
            readable |= copy.state == CopyState::InSync;
            copy.state = CopyState::Stale;
        }
        if next == *record {
            return Ok(());
        }
        if next.stripe_without(|_| true).is_some() {
            return Err(VfsError::Io);
        }
        next.generation += 1;
        tracing::warn!(file = ?file.handle, ?objects, "copies are stale");
        let of = file.clone();
        let stored = self.run(move |core| {
            core.add_work(&of.handle, UNHEALTHY)?;
            core.store(&of, next)
        });
        let stored = stored.await;
        // This copy may have lost unstable writes before it was copied to others, which then lack them, too.
        let copied = self.is_unequal(&file.handle) || record.copies.iter().any(|copy| copy.state == CopyState::Copying);
        let mut writes = file.unstable.lock();
        if readable && copied && objects.iter().any(|object| writes.contains_key(object)) {
            self.change_verifier();
        }
        if stored.is_ok() {
            writes.retain(|object, _| !objects.contains(object));
        }
        drop(writes);
        // If the mark cannot be stored, the record may have it nevertheless, and later writes leave the copy out.
        if readable && record.epochs != Epochs::default() {
            self.holders.await_former(&file.handle);
        }
        if readable {
            self.holders.recall(&file.handle, LayoutModes::ALL, true);
        }
        self.wake.notify_one();
        stored.map(drop)
    }

    /// Reports whether clients need not use a copy in sync although they could: its data server has failed, and another one that has not has
    /// a copy of the same stripe.
    pub fn is_avoidable(&self, record: &Record, copy: usize) -> bool {
        let failing = self.failing.lock();
        let has_failed = |copy: usize| failing.contains(&record.copies[copy].object.server);
        has_failed(copy) && record.in_sync_of(record.stripe_of(copy)).any(|other| !has_failed(other))
    }

    /// Takes note of the verifier of a write. Returns `false` if the object has lost earlier unstable writes.
    pub fn note_write(&self, file: &File, object: Object, verifier: WriteVerifier, unstable: bool) -> bool {
        let mut writes = file.unstable.lock();
        if let Some(earlier) = writes.get(&object)
            && earlier.verifier != verifier
        {
            return false;
        }
        if unstable {
            let number = self.writes.fetch_add(1, Relaxed);
            writes.insert(object, Unstable { verifier, number });
        }
        true
    }

    /// Reacts to a failed operation on objects that may have lost unstable writes: the write verifier changes, and clients
    /// write their data again. Forgets the writes that `lost` names.
    pub fn lose_unstable(&self, file: &File, lost: impl Fn(&Object, &Unstable) -> bool) {
        let mut writes = file.unstable.lock();
        let any = !writes.is_empty();
        writes.retain(|object, last| !lost(object, last));
        drop(writes);
        if any {
            self.change_verifier();
        }
        self.note_unequal(&file.handle);
    }
}

/// Returns `new` if an object does not exist that may be new.
pub fn unless_new<T: Send + 'static>(presence: Presence, operation: ServerFuture<T>, new: T) -> ServerFuture<T> {
    Box::pin(async move {
        match operation.await {
            Err(ServerError::Missing) if presence == Presence::MayBeNew => Ok(new),
            done => done,
        }
    })
}
