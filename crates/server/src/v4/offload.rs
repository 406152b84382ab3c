//! Copies that go on behind their reply: what COPY begins, OFFLOAD_STATUS and OFFLOAD_CANCEL ask about, and CB_OFFLOAD ends.
//!
//! Read RFC 7862 §4.8 (names of copies), §15.2, §15.8, §15.9 and §16.1. A copy is its client's, not that of a connection or
//! session: it goes on while the client has a lease, a piece at a time on a thread of its export, and never on more
//! threads of an export than [`PIECES_MAX`]. Its name is good until the client has confirmed that it knows the end, cancels it, or is gone.
//!
//! On error the copy ends, and the client is told with how many bytes.

use std::{
    collections::HashMap,
    sync::{
        Arc, OnceLock,
        atomic::{
            AtomicBool, AtomicU64,
            Ordering::{Relaxed, SeqCst},
        },
    },
    time::Duration,
};

use nfs::v4::{
    Clientid4, CopyOk, CopyRequirements4, Nfsstat4, OffloadStatusOk, StableHow4, Stateid4, Verifier4, WriteResponse4,
    callback::{CbArgop4, CbOffloadArgs, OffloadInfo4},
};
use parking_lot::Mutex;
use tokio::{sync::Semaphore, time::sleep};
use vfs::Handle;

use super::upkeep::BackgroundTask;
use crate::{
    blocking::Outcome,
    call::thread::Thread,
    clock,
    export::policy::Purpose,
    handle::{ExportId, FileId},
    sharing::marks::Changing,
    v4::{Context, Detached, Shared4, status::nfsstat4},
};

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

/// A copy that is to be made.
pub(super) struct Copying {
    offload: Arc<Offload>,
    detached: Box<Detached>,
    ranges: Ranges,
    verifier: Verifier4,
    _changing: Option<Changing>,
}

/// What a copy is of: both files are of one export.
#[derive(Clone)]
pub(super) struct Ranges {
    pub(super) export: ExportId,
    pub(super) from: (Handle, u64),
    pub(super) to: (Handle, u64),
    pub(super) len: u64,
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
        let name = Stateid4 { seqid: 1, other: rand::random() };
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

impl Context<'_> {
    /// Begins a copy that goes on behind its reply, if it is large, and the client can be told of its end. `changing` says that
    /// the file is being changed.
    ///
    /// # Errors
    /// `changing`, if it has to be made before the reply.
    pub(super) fn begin_copy(
        &self,
        client: Clientid4,
        ranges: Ranges,
        verifier: Verifier4,
        changing: Option<Changing>,
    ) -> Result<CopyOk, Option<Changing>> {
        let v4 = self.shared;
        if ranges.len < OFFLOAD_MIN || !v4.is_kept_up() || !self.shared.with_state(|state| state.can_be_called(client))
        {
            return Err(changing);
        }
        let Some(offload) = v4.offloads.add(client, (ranges.export, ranges.to.0.clone())) else { return Err(changing) };
        let response = WriteResponse4 {
            callback_id: Some(offload.name),
            count: 0,
            committed: StableHow4::Unstable,
            writeverf: verifier,
        };
        let detached = Box::new(self.detach());
        let copying = Copying { offload, detached, ranges, verifier, _changing: changing };
        v4.run(BackgroundTask::Copy(Box::new(copying)));
        Ok(CopyOk { response, requirements: CopyRequirements4 { consecutive: true, synchronous: false } })
    }
}

/// Makes a copy, and tells its client.
pub(super) async fn run(shared: Arc<Shared4>, copying: Copying) {
    let (offload, verifier) = (copying.offload.clone(), copying.verifier);
    let status = copy(&shared, copying).await;
    let _ = offload.ended.set(status);
    let count = offload.copied.load(Relaxed);
    tracing::debug!(client = offload.client.0, ?status, count, "a copy has ended");
    let committed = StableHow4::Unstable;
    let offload_info = match status {
        Nfsstat4::Ok => OffloadInfo4::Ok(WriteResponse4 { callback_id: None, count, committed, writeverf: verifier }),
        status => OffloadInfo4::Fail(status, count),
    };
    let fh = shared.callback_fh(&offload.file);
    let operation = CbArgop4::Offload(CbOffloadArgs { fh, stateid: offload.name, offload_info });
    let is_known = || shared.offloads.is_known(&offload.name) && offload.has_lease(&shared);
    shared.call_until_heard(offload.client, &operation, is_known).await;
    shared.offloads.by_name.lock().remove(&offload.name);
}

/// Makes a copy: how it ended. One that was cancelled ends well, wherever it is.
async fn copy(shared: &Arc<Shared4>, copying: Copying) -> Nfsstat4 {
    let (offload, export) = (copying.offload.clone(), copying.ranges.export);
    let (pool, pieces) = (shared.core.pools.of(Some(export)), shared.offloads.pieces_of(export));
    let source = copying.detached.host();
    let mut state = (copying, Ok(true));
    while offload.has_lease(shared) {
        let Ok(_permit) = pieces.acquire().await else { return Nfsstat4::ServerFault };
        state = match pool.run(source, 0, state, |(copying, copied)| *copied = copying.piece()).await {
            Outcome::Done(state) => state,
            // The client has been told that the copy is being made.
            Outcome::Refused(state) => {
                sleep(REFUSED_PAUSE).await;
                state
            }
            Outcome::Panicked => {
                tracing::error!("a copy has panicked");
                return Nfsstat4::ServerFault;
            }
        };
        match state.1 {
            Ok(true) => {}
            Ok(false) => return Nfsstat4::Ok,
            Err(status) => return status,
        }
    }
    Nfsstat4::Expired
}

impl Offload {
    /// Whether its client has not been silent for too long.
    fn has_lease(&self, shared: &Shared4) -> bool {
        let now = clock::now();
        shared.with_state(|state| !state.clients().is_expired(self.client, now))
    }
}

impl Copying {
    /// Copies the next piece: whether there is more.
    fn piece(&self) -> Result<bool, Nfsstat4> {
        let _copying = self.offload.copying.lock();
        if self.offload.cancelled.load(SeqCst) {
            return Ok(false);
        }
        let Ranges { export, from, to, len } = &self.ranges;
        let thread = Thread::of_pool(Some(*export));
        let cx = self.detached.context(&thread);
        let file = cx.object_of(cx.export(*export, Purpose::Files).map_err(nfsstat4)?, to.0.clone());
        let done = self.offload.copied.load(Relaxed);
        let (from, to) = ((&from.0, from.1 + done), (&to.0, to.1 + done));
        let copied = file.vfs().copy(&file.caller(), from, to, (len - done).min(PIECE));
        let copied = copied.map_err(nfsstat4)?;
        let done = done + copied;
        self.offload.copied.store(done, SeqCst);
        // The source may have become shorter.
        Ok(copied > 0 && done < *len)
    }
}

/// Bytes of the smallest copy that goes on behind its reply.
const OFFLOAD_MIN: u64 = 16 << 20;
/// Bytes that are copied at a time.
const PIECE: u64 = 8 << 20;
/// Threads of an export that copy.
const PIECES_MAX: usize = 4;
/// How long a copy waits when its export has no room for its next piece.
const REFUSED_PAUSE: Duration = Duration::from_millis(100);
const OFFLOADS_MAX: usize = 256;
const CLIENT_OFFLOADS_MAX: usize = 16;
