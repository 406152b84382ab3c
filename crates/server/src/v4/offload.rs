//! Asynchronous copies: COPY starts them, OFFLOAD_STATUS and OFFLOAD_CANCEL refer to them, and CB_OFFLOAD reports their
//! end.
//!
//! Read RFC 7862 §4.8 (copy stateids), §15.2, §15.8, §15.9 and §16.1. A copy belongs to its client, not to a connection
//! or session. It continues as long as the client has a lease. Its stateid is valid until the client acknowledges
//! CB_OFFLOAD, cancels the copy, or is removed. This file has the table of copies; `copy` executes them.

pub(super) mod copy;

use std::sync::{
    Arc, OnceLock,
    atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
};

use entropy::HashMap;
use nfs::v4::{Clientid4, Nfsstat4, OffloadStatusOk, Stateid4};
use parking_lot::Mutex;
use tokio::sync::Semaphore;

use super::state::ids::ReferringCall;
use crate::handle::{ExportId, FileId};

/// The asynchronous copies whose end the client has not yet acknowledged.
#[derive(Default)]
pub(crate) struct Offloads {
    by_name: Mutex<HashMap<Stateid4, Arc<Offload>>>,
    /// Limits the pieces that are copied at a time, for each export.
    pieces: Mutex<HashMap<ExportId, Arc<Semaphore>>>,
}

/// An asynchronous copy, with the state that its client can query.
struct Offload {
    client: Clientid4,
    /// The request that began the copy.
    begun_by: Option<ReferringCall>,
    name: Stateid4,
    /// The destination.
    file: FileId,
    copied: AtomicU64,
    ended: OnceLock<Nfsstat4>,
    cancelled: AtomicBool,
    /// Locked while a piece is copied.
    copying: Mutex<()>,
}

impl Offloads {
    /// Returns a copy of a client, in progress or ended.
    fn find(&self, client: Clientid4, file: &FileId, name: &Stateid4) -> Result<Arc<Offload>, Nfsstat4> {
        let found = self.by_name.lock().get(name).cloned();
        found.filter(|offload| offload.client == client && offload.file == *file).ok_or(Nfsstat4::BadStateid)
    }

    /// Executes OFFLOAD_STATUS (§15.9).
    ///
    /// # Errors
    /// BAD_STATEID.
    pub(super) fn status(
        &self,
        client: Clientid4,
        file: &FileId,
        name: &Stateid4,
    ) -> Result<OffloadStatusOk, Nfsstat4> {
        let offload = self.find(client, file, name)?;
        // Load `ended` before `copied`: after the end, `copied` does not change.
        let complete = offload.ended.get().copied();
        Ok(OffloadStatusOk { count: offload.copied.load(SeqCst), complete })
    }

    /// Executes OFFLOAD_CANCEL (§15.8). Data that was copied stays.
    ///
    /// # Errors
    /// BAD_STATEID. DELAY while a piece is being copied, because the client may write to the range as soon as this
    /// succeeds.
    pub(super) fn cancel(&self, client: Clientid4, file: &FileId, name: &Stateid4) -> Result<(), Nfsstat4> {
        let offload = self.find(client, file, name)?;
        offload.cancelled.store(true, SeqCst);
        if offload.copying.try_lock().is_none() {
            return Err(Nfsstat4::Delay);
        }
        self.by_name.lock().remove(name);
        Ok(())
    }

    /// Cancels all copies of a client that was removed or whose state was revoked.
    pub(super) fn cancel_all(&self, client: Clientid4) {
        self.by_name.lock().retain(|_, offload| {
            let stays = offload.client != client;
            offload.cancelled.fetch_or(!stays, SeqCst);
            stays
        });
    }

    /// Adds a copy. Returns `None` if there are too many.
    fn add(&self, client: Clientid4, begun_by: Option<ReferringCall>, file: FileId) -> Option<Arc<Offload>> {
        let mut by_name = self.by_name.lock();
        let own = by_name.values().filter(|offload| offload.client == client).count();
        if by_name.len() >= OFFLOADS_MAX || own >= CLIENT_OFFLOADS_MAX {
            return None;
        }
        let name = Stateid4 { seqid: 1, other: entropy::random() };
        let (copied, ended, cancelled, copying) = Default::default();
        let offload = Arc::new(Offload { client, begun_by, name, file, copied, ended, cancelled, copying });
        by_name.insert(name, offload.clone());
        Some(offload)
    }

    fn pieces_of(&self, export: ExportId) -> Arc<Semaphore> {
        self.pieces.lock().entry(export).or_insert_with(|| Arc::new(Semaphore::new(PIECES_MAX))).clone()
    }

    fn is_known(&self, name: &Stateid4) -> bool {
        self.by_name.lock().contains_key(name)
    }
}

/// The maximum number of pieces of one export that are copied at a time, each on a thread.
const PIECES_MAX: usize = 4;
const OFFLOADS_MAX: usize = 256;
const CLIENT_OFFLOADS_MAX: usize = 16;
