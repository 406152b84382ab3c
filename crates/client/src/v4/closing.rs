//! CLOSE: the files that nobody uses any more are closed, several in one request.
//!
//! Read RFC 8881 §18.2 (CLOSE), §18.6 (DELEGRETURN) and §16.2 (a compound ends with its first failure) first. Files are
//! closed when they have been idle for [`IDLE_TIMEOUT`], when this client has removed them, when a user of the file asks
//! for it, and when the mount ends. A file that is idle stays in the table of [`Opens`] until then.
//!
//! One task closes the files of the [`CloseQueue`]. The files that are added while it waits for a reply make its next
//! request, so many files that are closed at the same time need few requests. NFSv4.0 has one request for each file,
//! because its server counts the operations of each owner (RFC 7530 §9.1.7).
//!
//! Errors: a CLOSE that fails is logged. The server removes the open with the client, or when the lease expires. If one
//! of several CLOSEs of a request fails, those that were not executed are sent again, each in its own request.

use std::{mem, sync::Arc, time::Duration};

use bytes::Bytes;
use futures_util::future::join_all;
use nfs::v4::{compound::CompoundRes, *};
use tokio::sync::OwnedMutexGuard;

use super::{
    lock_state,
    opens::{OpenFile, Opens, STATE_TRIES},
};
use crate::{
    call::Deadline,
    model::{Caller, Handle, Result},
    session::{
        client::Client4,
        compound::Compound,
        drive::{Next, Operation, Retry, drive},
    },
};

/// The files that the task of [`Opens::close_if_idle`] closes.
#[derive(Debug, Default)]
pub(super) struct CloseQueue {
    files: Vec<Arc<OpenFile>>,
    /// Set while the task runs.
    is_running: bool,
}

/// A file whose opens are taken from the table. Nobody opens it again before this value is dropped.
struct Released {
    file: Arc<OpenFile>,
    _changes: OwnedMutexGuard<()>,
    /// The lock owners with stateids.
    lockers: Vec<(Bytes, Stateid4)>,
}

/// One open of a file, or its delegation, or both. They are closed and returned together.
struct Part {
    handle: Handle,
    /// The caller that has opened the file.
    caller: Option<Caller>,
    open: Option<Stateid4>,
    delegation: Option<Stateid4>,
}

impl Part {
    /// Appends the operations to a request.
    fn append(&self, compound: Compound) -> Compound {
        let mut compound = compound.put_fh(&self.handle);
        if let Some(deleg_stateid) = self.delegation {
            compound = compound.op(Argop4::DelegReturn(DelegReturnArgs { deleg_stateid }), 0);
        }
        if let Some(open_stateid) = self.open {
            compound = compound.op(Argop4::Close(CloseArgs { seqid: Seqid4(0), open_stateid }), 16);
        }
        compound
    }

    /// Returns the number of operations.
    fn operations(&self) -> usize {
        1 + usize::from(self.delegation.is_some()) + usize::from(self.open.is_some())
    }
}

impl Opens {
    /// Closes the files that have been idle for [`IDLE_TIMEOUT`], and the least recently used ones if more than
    /// [`IDLE_MAX`] are idle.
    pub async fn close_idle(self: &Arc<Self>, deadline: &Deadline) {
        let mut idle: Vec<_> = {
            let files = self.files.lock();
            files.values().filter(|file| file.is_idle()).map(|file| (file.used(), file.clone())).collect()
        };
        idle.sort_by_key(|(used, _)| *used);
        let excess = idle.len().saturating_sub(IDLE_MAX);
        let is_due = |(at, (used, file)): (usize, &(tokio::time::Instant, Arc<OpenFile>))| {
            at < excess || (!file.is_delegated() && used.elapsed() >= idle_timeout(file))
        };
        let due = idle.iter().enumerate().filter(|entry| is_due(*entry)).map(|(_, (_, file))| file.clone());
        let due: Vec<_> = due.collect();
        self.close_files(&due, deadline).await;
        // A delegated file stays open, but not with its layouts: each of them can need a recall.
        let idle = idle.into_iter().filter(|(used, file)| {
            used.elapsed() >= idle_timeout(file) && file.is_idle() && file.layouts.held.lock().stateid.is_some()
        });
        let idle: Vec<_> = idle.map(|(_, file)| file).collect();
        for files in idle.chunks(TOGETHER_MAX) {
            join_all(files.iter().map(|file| self.end_layouts(file, None))).await;
        }
    }

    /// Closes the file soon if it is idle and not delegated. A user of the file calls this when it has finished.
    pub fn close_if_idle(self: &Arc<Self>, handle: &Handle) {
        let Some(file) = self.known(handle).filter(|file| file.is_idle() && !file.is_delegated()) else { return };
        if file.layouts.held.lock().has_unstable() {
            // Another writer of the file is not ready.
            return;
        }
        let must_start = {
            let mut queue = self.close_queue.lock();
            queue.files.push(file);
            !mem::replace(&mut queue.is_running, true)
        };
        if must_start {
            let opens = self.clone();
            self.client.link.runtime.spawn(async move { opens.close_queued().await });
        }
    }

    /// Closes the file whose name this client has removed, if it is idle: it most likely has no other name.
    pub fn removed(self: &Arc<Self>, dir: &Handle, name: &[u8]) {
        let object = self.names.lock().removed(dir, name);
        object.iter().for_each(|object| self.close_if_idle(object));
    }

    /// Closes all files.
    pub async fn close_all(self: &Arc<Self>, deadline: &Deadline) {
        let files = self.all();
        files.iter().for_each(|file| file.state.lock().locks.clear());
        self.close_files(&files, deadline).await;
    }

    /// Closes the files of the queue until it is empty.
    async fn close_queued(self: &Arc<Self>) {
        loop {
            let files = {
                let mut queue = self.close_queue.lock();
                queue.is_running = !queue.files.is_empty();
                mem::take(&mut queue.files)
            };
            if files.is_empty() {
                return;
            }
            for files in files.chunks(TOGETHER_MAX) {
                self.close_files(files, &Deadline::strict(self.client.link.lease())).await;
            }
        }
    }

    /// Closes files and returns their delegations, except those in use. A request that needs a file meanwhile opens it
    /// after the CLOSE: the server has one open for the file, so the CLOSE would also close a new open.
    async fn close_files(self: &Arc<Self>, files: &[Arc<OpenFile>], deadline: &Deadline) {
        for files in files.chunks(TOGETHER_MAX) {
            let (mut released, mut parts, mut locked) = (Vec::new(), Vec::new(), Vec::new());
            for file in files {
                self.notify_return(file).await;
                if file.is_idle() {
                    // RFC 8881 §18.43.3: a layout can be marked for return before CLOSE. The others are returned too: so
                    // their number is bounded, and no recall of a file that nobody uses is necessary.
                    self.end_layouts(file, None).await;
                }
                // Two tasks that wait for a file while they have locked others could wait for each other.
                match file.try_lock_changes() {
                    Some(changes) => released.extend(self.release(file, changes, &mut parts)),
                    None => locked.push(file),
                }
            }
            self.close_released(released, parts, deadline).await;
            for file in locked {
                let (changes, mut parts) = (file.lock_changes().await, Vec::new());
                let released = self.release(file, changes, &mut parts);
                self.close_released(released.into_iter().collect(), parts, deadline).await;
            }
        }
    }

    /// Takes the opens and the delegation of a locked file from the table. Returns `None` if the file is in use.
    fn release(&self, file: &Arc<OpenFile>, changes: OwnedMutexGuard<()>, parts: &mut Vec<Part>) -> Option<Released> {
        let (opens, delegation, lockers) = {
            let _files = self.files.lock();
            let mut state = file.state.lock();
            if !file.is_unused(&state) {
                // The file is in use again. The caches that the watcher has dropped are filled again.
                state.delegation.iter_mut().for_each(|delegation| delegation.is_returning = false);
                return None;
            }
            let lockers = state.locks.drain().filter_map(|(name, locked)| Some((name, locked.stateid?))).collect();
            (mem::take(&mut state.opens), state.delegation.take(), lockers)
        };
        // The delegation is returned with the first CLOSE.
        let mut delegation = delegation.map(|delegation| delegation.stateid);
        for open in opens {
            let (caller, open) = (open.caller, Some(self.client.latest(open.stateid)));
            parts.push(Part { handle: file.handle.clone(), caller, open, delegation: delegation.take() });
        }
        if delegation.is_some() {
            parts.push(Part { handle: file.handle.clone(), caller: None, open: None, delegation });
        }
        Some(Released { file: file.clone(), _changes: changes, lockers })
    }

    /// Closes the parts of released files, and removes the files from the table.
    async fn close_released(self: &Arc<Self>, released: Vec<Released>, mut parts: Vec<Part>, deadline: &Deadline) {
        while !parts.is_empty() {
            let rest = parts.split_off(self.together(&parts));
            for part in self.close_parts(parts, deadline).await {
                self.close_parts(vec![part], deadline).await;
            }
            parts = rest;
        }
        for Released { file, lockers, .. } in released {
            // RFC 7530 §16.37: a server of NFSv4.0 would keep the lock owners and their seqids. Later versions discard
            // them.
            for (name, stateid) in lockers.into_iter().filter(|_| self.client.minor() == 0) {
                lock_state::forget(self, &file, &name, stateid, deadline).await;
            }
            let mut files = self.files.lock();
            if file.is_idle() {
                files.remove(&file.handle);
            }
        }
    }

    /// Returns the number of parts, from the first one on, that one request can have.
    fn together(&self, parts: &[Part]) -> usize {
        let Some(session) = self.client.session() else { return 1 };
        // SEQUENCE is one of the operations.
        let mut left = (session.fore.maxoperations as usize).saturating_sub(1);
        let fits = |part: &&Part| {
            let fits = left >= part.operations();
            left = left.saturating_sub(part.operations());
            fits && part.caller == parts[0].caller
        };
        parts.iter().take(TOGETHER_MAX).take_while(fits).count().max(1)
    }

    /// Sends one request for all parts. Returns the parts that were not executed, if there were several.
    async fn close_parts(&self, parts: Vec<Part>, deadline: &Deadline) -> Vec<Part> {
        let several = parts.len() > 1;
        let mut closing = Closing { client: &self.client, parts, compound: Compound::new("CLOSE"), old: 0 };
        let (res, _) = drive(&mut closing, None, deadline).await;
        let res = res.map(|res| res.expect("a CLOSE must be sent"));
        let unexecuted = match &res {
            Ok(res) if several => closing.unexecuted(res),
            _ => Vec::new(),
        };
        if let Err(error) = res.and_then(|res| self.client.results(&closing.compound, res)) {
            tracing::debug!(%error, unexecuted = unexecuted.len(), "closing a file failed");
        }
        unexecuted
    }
}

/// CLOSE of opens of one caller, and DELEGRETURN of their files' delegations.
struct Closing<'a> {
    client: &'a Arc<Client4>,
    parts: Vec<Part>,
    compound: Compound,
    /// The number of stateids that were older than the server's.
    old: u32,
}

impl Closing<'_> {
    /// Takes the parts that the server has not executed.
    fn unexecuted(&mut self, res: &CompoundRes) -> Vec<Part> {
        // The last result is that of the failure, if there is one. The first result is that of SEQUENCE.
        let failures = usize::from(res.status != Nfsstat4::Ok);
        let mut executed = res.resarray.len().saturating_sub(failures + 1);
        for (at, part) in self.parts.iter_mut().enumerate() {
            let Some(left) = executed.checked_sub(part.operations()) else {
                // If two operations of the part have succeeded, they are PUTFH and DELEGRETURN.
                part.delegation.take_if(|_| executed == 2);
                return self.parts.split_off(at);
            };
            executed = left;
        }
        Vec::new()
    }
}

impl Operation for Closing<'_> {
    async fn prepare(&mut self, _: &Deadline) -> Result<Next> {
        let caller = self.parts[0].caller.as_ref();
        let compound = Compound::new("CLOSE").by(caller).once();
        self.compound = self.parts.iter().fold(compound, |compound, part| part.append(compound));
        Ok(Next::Send)
    }

    fn client(&self) -> &Arc<Client4> {
        self.client
    }

    fn compound(&self) -> &Compound {
        &self.compound
    }

    /// Several parts are not sent again together, because some of them may have been executed.
    fn retries_delay(&self) -> bool {
        self.parts.len() == 1
    }

    async fn recover(&mut self, res: &CompoundRes, _: &Deadline) -> Result<Retry> {
        let [part] = &mut self.parts[..] else { return Ok(Retry::No) };
        self.old += 1;
        match &mut part.open {
            // As in `State::advance`. DELEGRETURN before the CLOSE has succeeded, so it is not sent again.
            Some(open) if res.status == Nfsstat4::OldStateid && self.old < STATE_TRIES => {
                open.seqid = open.seqid.wrapping_add(1);
                part.delegation = None;
                Ok(Retry::Now)
            }
            _ => Ok(Retry::No),
        }
    }
}

/// Returns the time for which an idle file stays open. A writer that holds unstable data would have to write them again if their
/// layout ended, so it has more time for its next request.
fn idle_timeout(file: &OpenFile) -> Duration {
    if file.layouts.held.lock().has_unstable() { UNSTABLE_TIMEOUT } else { IDLE_TIMEOUT }
}

/// The time for which an idle file with unstable data at data servers stays open.
const UNSTABLE_TIMEOUT: Duration = Duration::from_secs(30);
/// The time for which an idle file stays open.
const IDLE_TIMEOUT: Duration = Duration::from_millis(1500);
/// Maximum number of idle files that stay open.
const IDLE_MAX: usize = 4096;
/// Maximum number of files that are closed together. The request is shorter than 4 KiB, also with the longest handles.
const TOGETHER_MAX: usize = 16;
