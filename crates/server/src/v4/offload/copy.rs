//! Executes asynchronous copies: one piece at a time, on threads of the export, at most `PIECES_MAX` threads of an
//! export at a time.
//!
//! On error the copy ends, and CB_OFFLOAD tells the client how many bytes were copied.

use std::{
    sync::{
        Arc,
        atomic::Ordering::{Relaxed, SeqCst},
    },
    time::Duration,
};

use nfs::v4::{
    Clientid4, CopyOk, CopyRequirements4, Nfsstat4, StableHow4, Verifier4, WriteResponse4,
    callback::{CbArgop4, CbOffloadArgs, OffloadInfo4},
};
use tokio::time::sleep;
use vfs::Handle;

use super::Offload;
use crate::{
    blocking::Outcome,
    call::thread::Thread,
    clock,
    export::policy::Purpose,
    handle::ExportId,
    sharing::marks::Changing,
    v4::{
        service::{Context, Detached, Shared4},
        state::{ids::ReferringCall, transitions::back::CallbackSubject},
        status::{nfsstat4, refusal},
        task::BackgroundTask,
    },
};

/// A copy to be executed.
struct Copying {
    offload: Arc<Offload>,
    detached: Detached,
    ranges: Ranges,
    verifier: Verifier4,
    _changing: Option<Changing>,
}

/// The source and destination ranges of a copy. Both files are in one export.
#[derive(Clone)]
pub(in crate::v4) struct Ranges {
    pub(in crate::v4) export: ExportId,
    pub(in crate::v4) from: (Handle, u64),
    pub(in crate::v4) to: (Handle, u64),
    pub(in crate::v4) len: u64,
}

impl Context<'_> {
    /// Starts an asynchronous copy by the request `begun_by`, if it is large and the client has a callback path.
    /// `changing` marks the destination as being changed.
    ///
    /// # Errors
    /// Returns `changing` if the copy must be synchronous.
    pub(in crate::v4) fn begin_copy(
        &self,
        (client, begun_by): (Clientid4, Option<ReferringCall>),
        ranges: Ranges,
        verifier: Verifier4,
        changing: Option<Changing>,
    ) -> Result<CopyOk, Option<Changing>> {
        let v4 = self.shared;
        if ranges.len < OFFLOAD_MIN || !v4.runs_tasks() || !self.shared.with_state(|state| state.can_be_called(client))
        {
            return Err(changing);
        }
        let Some(offload) = v4.offloads.add(client, begun_by, (ranges.export, ranges.to.0.clone())) else {
            return Err(changing);
        };
        let response = WriteResponse4 {
            callback_id: Some(offload.name),
            count: 0,
            committed: StableHow4::Unstable,
            writeverf: verifier,
        };
        let detached = self.detach();
        let copying = Copying { offload, detached, ranges, verifier, _changing: changing };
        v4.run_in_background(BackgroundTask::Copy(Box::pin(run(v4.clone(), copying))));
        Ok(CopyOk { response, requirements: CopyRequirements4 { consecutive: true, synchronous: false } })
    }
}

/// Executes a copy, and sends CB_OFFLOAD.
async fn run(shared: Arc<Shared4>, copying: Copying) {
    let (offload, verifier) = (copying.offload.clone(), copying.verifier);
    let status = copy(&shared, copying).await;
    let _ = offload.ended.set(status);
    let count = offload.copied.load(Relaxed);
    tracing::debug!(client = offload.client.0, ?status, count, "an asynchronous copy has ended");
    let committed = StableHow4::Unstable;
    let offload_info = match status {
        Nfsstat4::Ok => OffloadInfo4::Ok(WriteResponse4 { callback_id: None, count, committed, writeverf: verifier }),
        status => OffloadInfo4::Fail(status, count),
    };
    let fh = shared.callback_fh(&offload.file);
    let operation = CbArgop4::Offload(CbOffloadArgs { fh, stateid: offload.name, offload_info });
    let is_known = || shared.offloads.is_known(&offload.name) && offload.has_lease(&shared);
    let about = CallbackSubject { created_by: offload.begun_by, ..CallbackSubject::default() };
    shared.call_until_acknowledged(offload.client, (about, &operation), is_known).await;
    shared.offloads.by_name.lock().remove(&offload.name);
}

/// Executes a copy and returns its final status. A cancelled copy returns OK, at whatever position it stopped.
async fn copy(shared: &Arc<Shared4>, copying: Copying) -> Nfsstat4 {
    let (offload, export) = (copying.offload.clone(), copying.ranges.export);
    let (pool, pieces) = (shared.core.pools.of(Some(export)), shared.offloads.pieces_of(export));
    let source = copying.detached.host();
    let mut state = (copying, Ok(true));
    while offload.has_lease(shared) {
        let Ok(_permit) = pieces.acquire().await else { return Nfsstat4::ServerFault };
        state = match pool.run(source, 0, state, |(copying, copied)| *copied = copying.piece()).await {
            Outcome::Done(state) => state,
            // The client was told that the copy is in progress, so wait for a free thread.
            Outcome::Refused(state) => {
                sleep(REFUSED_PAUSE).await;
                state
            }
            Outcome::Panicked => {
                tracing::error!("an asynchronous copy panicked");
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
    /// Returns `true` if the lease of its client has not expired.
    fn has_lease(&self, shared: &Shared4) -> bool {
        let now = clock::now();
        shared.with_state(|state| !state.clients().is_expired(self.client, now))
    }
}

impl Copying {
    /// Copies the next piece. Returns `true` if there is more.
    fn piece(&self) -> Result<bool, Nfsstat4> {
        let _copying = self.offload.copying.lock();
        if self.offload.cancelled.load(SeqCst) {
            return Ok(false);
        }
        let Ranges { export, from, to, len } = &self.ranges;
        let thread = Thread::of_pool(Some(*export));
        let cx = self.detached.context(&thread);
        let file =
            cx.object_of(cx.export(*export, Purpose::Files).map_err(refusal)?, to.0.clone()).map_err(nfsstat4)?;
        let done = self.offload.copied.load(Relaxed);
        let (from, to) = ((&from.0, from.1 + done), (&to.0, to.1 + done));
        let copied = file.vfs().copy(&file.caller(), from, to, (len - done).min(PIECE));
        let copied = copied.map_err(nfsstat4)?;
        let done = done + copied;
        self.offload.copied.store(done, SeqCst);
        // The source may have been truncated.
        Ok(copied > 0 && done < *len)
    }
}

/// The minimum bytes of an asynchronous copy.
const OFFLOAD_MIN: u64 = 16 << 20;
/// The bytes of one piece.
const PIECE: u64 = 8 << 20;
/// The pause after an export had no room for the next piece.
const REFUSED_PAUSE: Duration = Duration::from_millis(100);
