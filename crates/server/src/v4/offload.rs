//! Copies that go on behind their reply: what COPY begins, OFFLOAD_STATUS and OFFLOAD_CANCEL ask about, and CB_OFFLOAD ends.
//!
//! Read RFC 7862 §4.8 (names of copies), §15.2, §15.8, §15.9 and §16.1. A copy is its client's, not that of a connection or
//! session: it goes on while the client has a lease. Its name is good until the client has confirmed that it knows the end, cancels
//! it, or is gone. Here the copies are listed; `copy` makes them.

pub(super) mod copy;

use std::sync::{
    Arc, OnceLock,
    atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
};

use entropy::HashMap;
use nfs::v4::{Clientid4, Nfsstat4, OffloadStatusOk, Stateid4};
use parking_lot::Mutex;
use tokio::sync::Semaphore;

use crate::handle::{ExportId, FileId};

/// The copies whose clients do not know yet how they ended.
#[derive(Default)]
pub(crate) struct Offloads {
    by_name: Mutex<HashMap<Stateid4, Arc<Offload>>>,
    /// For copying a piece, by export.
    pieces: Mutex<HashMap<ExportId, Arc<Semaphore>>>,
}

/// A copy, as far as its client can ask about it.
struct Offload {
    client: Clientid4,
    name: Stateid4,
    /// What is written.
    file: FileId,
    copied: AtomicU64,
    ended: OnceLock<Nfsstat4>,
    cancelled: AtomicBool,
    /// Held while a piece is copied.
    copying: Mutex<()>,
}

impl Offloads {
    /// A copy of a client's that has been begun and goes on, or has ended.
    fn find(&self, client: Clientid4, file: &FileId, name: &Stateid4) -> Result<Arc<Offload>, Nfsstat4> {
        let found = self.by_name.lock().get(name).cloned();
        found.filter(|offload| offload.client == client && offload.file == *file).ok_or(Nfsstat4::BadStateid)
    }

    /// OFFLOAD_STATUS (§15.9).
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
        // In this order: what has ended has copied all that it will.
        let complete = offload.ended.get().copied();
        Ok(OffloadStatusOk { count: offload.copied.load(SeqCst), complete })
    }

    /// OFFLOAD_CANCEL (§15.8). What has been copied stays.
    ///
    /// # Errors
    /// BAD_STATEID; DELAY while a piece is still being copied: the client may write there as soon as this succeeds.
    pub(super) fn cancel(&self, client: Clientid4, file: &FileId, name: &Stateid4) -> Result<(), Nfsstat4> {
        let offload = self.find(client, file, name)?;
        offload.cancelled.store(true, SeqCst);
        if offload.copying.try_lock().is_none() {
            return Err(Nfsstat4::Delay);
        }
        self.by_name.lock().remove(name);
        Ok(())
    }

    /// A client is gone, or has lost what it had.
    pub(super) fn cancel_all(&self, client: Clientid4) {
        self.by_name.lock().retain(|_, offload| {
            let stays = offload.client != client;
            offload.cancelled.fetch_or(!stays, SeqCst);
            stays
        });
    }

    /// Adds one, unless there are too many.
    fn add(&self, client: Clientid4, file: FileId) -> Option<Arc<Offload>> {
        let mut by_name = self.by_name.lock();
        let own = by_name.values().filter(|offload| offload.client == client).count();
        if by_name.len() >= OFFLOADS_MAX || own >= CLIENT_OFFLOADS_MAX {
            return None;
        }
        let name = Stateid4 { seqid: 1, other: entropy::random() };
        let (copied, ended, cancelled, copying) = Default::default();
        let offload = Arc::new(Offload { client, name, file, copied, ended, cancelled, copying });
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

/// Threads of an export that copy.
const PIECES_MAX: usize = 4;
const OFFLOADS_MAX: usize = 256;
const CLIENT_OFFLOADS_MAX: usize = 16;
