//! [`Staged`]: data of a file that programs have written and that are not sent yet.
//!
//! As with the kernel's own NFS client, write(2) only copies the data. Consecutive data are gathered into blocks of the
//! mount's write size. A task of the file sends full blocks at once, and the last block after [`LINGER`], or when
//! somebody calls [`settle`](Staged::settle): a close, an fsync, and each operation whose result depends on the data.
//! So a program that closes or unlocks a file, or asks for its size, knows that the server has the data.
//!
//! **Order.** Blocks are sent concurrently, so they must not overlap: a write over staged data first waits until these
//! are sent. **Errors** of sending belong to no request. They are kept for the next write, fsync and close of the file,
//! and the data of that block are dropped. **Memory**: [`Room`] bounds the staged bytes of all files.

use std::{
    collections::VecDeque,
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use buf::Buffer;
use bytes::Bytes;
use client::Mount;
use futures_util::{StreamExt, stream::FuturesUnordered};
use parking_lot::Mutex;
use rustix::io::Errno;
use tokio::sync::Notify;

use super::{nodes::Node, tree::Answer};

/// The number of staged bytes of all files of a tree, and a logical clock.
#[derive(Debug, Default)]
pub struct Room {
    /// The number of staged bytes.
    bytes: AtomicUsize,
    /// A logical clock, which advances when a file has changed at the server.
    clock: AtomicU64,
}

impl Room {
    /// Returns the current time of the logical clock, for [`Staged::is_settled`].
    pub fn now(&self) -> u64 {
        self.clock.load(Relaxed)
    }
}

/// The staged data of one file.
#[derive(Debug)]
pub struct Staged {
    room: Arc<Room>,
    state: Mutex<State>,
    /// Notified when a block has been sent, and when the task of the file has more to send.
    changed: Notify,
}

#[derive(Debug, Default)]
struct State {
    queue: VecDeque<Block>,
    /// The ranges of the blocks that are being sent.
    sending: Vec<Range<u64>>,
    /// The number of bytes of the blocks in `queue` and in `sending`.
    bytes: usize,
    /// Set while the task of the file runs.
    is_running: bool,
    /// The number of tasks that wait until all data are sent, and those of them that want the data on stable storage.
    waiting: usize,
    durable: usize,
    /// Set when the last block has been staged for long enough.
    is_due: bool,
    /// The first error of sending that was not reported by a write or fsync.
    failed: Option<Errno>,
    /// The time of the last change of the file at the server by this mount.
    changed_at: u64,
}

/// Consecutive data.
#[derive(Debug)]
struct Block {
    /// The mount of the user that has written it, and the user's number.
    mount: Mount,
    caller: u64,
    offset: u64,
    data: Data,
}

#[derive(Debug)]
enum Data {
    /// Data that are sent as they were received.
    Whole(Bytes),
    /// A buffer with room for more data, and the number of bytes in it.
    Growing(Buffer, usize),
}

/// A block to send.
struct Sending {
    block: Block,
    /// It is to be written to stable storage, because no COMMIT would cover other data as well.
    durable: bool,
}

impl Block {
    fn len(&self) -> usize {
        match &self.data {
            Data::Whole(data) => data.len(),
            Data::Growing(_, len) => *len,
        }
    }

    fn range(&self) -> Range<u64> {
        self.offset..self.offset.saturating_add(self.len() as u64)
    }

    /// Returns `true` if nothing can be appended.
    fn is_full(&self) -> bool {
        match &self.data {
            Data::Whole(_) => true,
            Data::Growing(_, len) => *len >= self.mount.write_size(),
        }
    }

    /// Appends data at `offset`. Returns `false` if they do not follow, do not fit, or are another user's.
    fn append(&mut self, caller: u64, offset: u64, more: &[u8]) -> bool {
        if self.range().end != offset || self.caller != caller {
            return false;
        }
        let Data::Growing(buffer, len) = &mut self.data else { return false };
        let end = *len + more.len();
        if end > self.mount.write_size() {
            return false;
        }
        if end > buffer.len() {
            let mut larger = self.mount.pool().take(self.mount.write_size());
            larger[..*len].copy_from_slice(&buffer[..*len]);
            *buffer = larger;
        }
        buffer[*len..end].copy_from_slice(more);
        *len = end;
        true
    }

    fn into_data(self) -> Bytes {
        match self.data {
            Data::Whole(data) => data,
            Data::Growing(mut buffer, len) => {
                buffer.set_len(len);
                buffer.freeze()
            }
        }
    }
}

impl Staged {
    /// Makes one of a file without data.
    pub fn new(room: Arc<Room>) -> Self {
        Self { room, state: Mutex::default(), changed: Notify::new() }
    }

    /// Stages data. Returns `false` if they must be written after the staged data, or if there is no room: call
    /// [`settle`](Self::settle) and try again.
    ///
    /// # Errors
    /// Earlier data could not be written. The error is reported once.
    pub fn put(node: &Arc<Node>, (mount, caller): (&Mount, u64), offset: u64, data: &Bytes) -> Answer<bool> {
        let staged = &node.staged;
        let mut state = staged.state.lock();
        if let Some(error) = state.failed.take() {
            return Err(error);
        }
        let has_room = state.bytes + data.len() <= mount.options().write_behind.max(data.len())
            && staged.room.bytes.load(Relaxed) + data.len() <= ROOM_MAX;
        let range = offset..offset.saturating_add(data.len() as u64);
        if !has_room || state.overlaps(&range) {
            return Ok(false);
        }
        let appended = state.queue.back_mut().is_some_and(|last| last.append(caller, offset, data));
        if !appended {
            // Data after a full block are most likely followed by as many.
            let follows = state.sending.iter().any(|sending| sending.end == offset)
                || state.queue.back().is_some_and(|last| last.range().end == offset);
            state.queue.push_back(block((mount, caller), offset, data, follows));
        }
        state.bytes += data.len();
        staged.room.bytes.fetch_add(data.len(), Relaxed);
        let must_start = !std::mem::replace(&mut state.is_running, true);
        let has_more = state.is_next_ready();
        drop(state);
        if must_start {
            tokio::spawn(send_all(node.clone()));
        } else if has_more {
            staged.changed.notify_waiters();
        }
        Ok(true)
    }

    /// Returns `true` if there are no staged data.
    pub fn is_empty(&self) -> bool {
        self.state.lock().bytes == 0
    }

    /// Returns `true` if attributes that were requested at `since` include all data that were written before.
    pub fn is_settled(&self, since: u64) -> bool {
        let state = self.state.lock();
        state.bytes == 0 && state.changed_at <= since
    }

    /// Records that this mount has changed the file at the server.
    pub fn changed(&self) {
        self.state.lock().changed_at = self.room.clock.fetch_add(1, Relaxed) + 1;
    }

    /// Waits until all data are sent. With `durable`, a caller that sends a COMMIT afterwards says so: a single block
    /// is then written to stable storage at once, and needs no COMMIT.
    pub async fn settle(&self, durable: bool) {
        if self.is_empty() {
            return;
        }
        let _waiting = Waiting::new(self, durable);
        self.changed.notify_waiters();
        loop {
            let mut changed = std::pin::pin!(self.changed.notified());
            changed.as_mut().enable();
            if self.is_empty() {
                return;
            }
            changed.await;
        }
    }

    /// Returns the error of earlier data, which stays for others that close the file.
    pub fn failure(&self) -> Answer<()> {
        self.state.lock().failed.map_or(Ok(()), Err)
    }

    /// Returns and clears the error of earlier data.
    pub fn take_failure(&self) -> Answer<()> {
        self.state.lock().failed.take().map_or(Ok(()), Err)
    }

    /// Takes the next block to send.
    fn next(&self, node: &Node) -> Option<Sending> {
        let mut state = self.state.lock();
        if !state.is_next_ready() || state.sending.len() >= SENDING_MAX {
            return None;
        }
        let block = state.queue.pop_front()?;
        state.is_due &= !state.queue.is_empty();
        let is_only = state.queue.is_empty() && state.sending.is_empty();
        let durable =
            is_only && state.durable > 0 && block.len() <= block.mount.write_size() && node.unstable.is_empty();
        state.sending.push(block.range());
        Some(Sending { block, durable })
    }

    /// Takes the only block of a file if it is `caller`'s and fits in one WRITE, because the caller of this function sends it together with
    /// another operation.
    pub fn take_only(node: &Arc<Node>, caller: u64) -> Option<Taken> {
        let mut state = node.staged.state.lock();
        let is_only = state.queue.len() == 1 && state.sending.is_empty() && node.unstable.is_empty();
        let can = |block: &mut Block| is_only && block.caller == caller && block.len() <= block.mount.write_size();
        let block = state.queue.pop_front_if(can)?;
        let range = block.range();
        state.sending.push(range.clone());
        Some(Taken { node: node.clone(), range, data: block.into_data(), result: Err(Errno::INTR) })
    }

    /// Records that a block has been sent.
    fn sent(&self, range: &Range<u64>, result: Answer<()>) {
        let mut state = self.state.lock();
        let len = (range.end - range.start) as usize;
        state.sending.retain(|sending| sending != range);
        state.bytes -= len;
        self.room.bytes.fetch_sub(len, Relaxed);
        if let Err(error) = result {
            tracing::warn!(%error, len, "data that a program has written are lost");
            state.failed.get_or_insert(error);
        }
        state.changed_at = self.room.clock.fetch_add(1, Relaxed) + 1;
        drop(state);
        self.changed.notify_waiters();
    }

    /// Returns `true`, once, if there is nothing to send and the task ends.
    fn ends(&self) -> bool {
        let mut state = self.state.lock();
        state.is_running = !(state.queue.is_empty() && state.sending.is_empty());
        !state.is_running
    }
}

impl State {
    /// Returns `true` if the first block is not waiting for more data.
    fn is_next_ready(&self) -> bool {
        match self.queue.front() {
            Some(first) => self.queue.len() > 1 || first.is_full() || self.waiting > 0 || self.is_due,
            None => false,
        }
    }

    fn overlaps(&self, range: &Range<u64>) -> bool {
        let queued = self.queue.iter().map(Block::range);
        self.sending.iter().cloned().chain(queued).any(|other| range.start < other.end && other.start < range.end)
    }
}

/// A block that was taken to be sent. When it is dropped, its result is recorded.
pub struct Taken {
    node: Arc<Node>,
    range: Range<u64>,
    pub data: Bytes,
    /// The result of sending it.
    pub result: Answer<()>,
}

impl Taken {
    pub fn offset(&self) -> u64 {
        self.range.start
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        self.node.staged.sent(&self.range, self.result);
    }
}

/// Counts a task that waits until all data are sent.
struct Waiting<'a>(&'a Staged, bool);

impl<'a> Waiting<'a> {
    fn new(staged: &'a Staged, durable: bool) -> Self {
        let mut state = staged.state.lock();
        state.waiting += 1;
        state.durable += usize::from(durable);
        Self(staged, durable)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        state.waiting -= 1;
        state.durable -= usize::from(self.1);
    }
}

fn block((mount, caller): (&Mount, u64), offset: u64, data: &Bytes, follows: bool) -> Block {
    let size = mount.write_size();
    let data = if data.len() >= size / 2 {
        Data::Whole(data.clone())
    } else {
        let room = if follows { size } else { SMALL.clamp(data.len(), size) };
        let mut buffer = mount.pool().take(room);
        buffer[..data.len()].copy_from_slice(data);
        Data::Growing(buffer, data.len())
    };
    Block { mount: mount.clone(), caller, offset, data }
}

/// Sends the staged data of a file until there are none.
async fn send_all(node: Arc<Node>) {
    let (staged, mut running) = (&node.staged, FuturesUnordered::new());
    loop {
        let mut changed = std::pin::pin!(staged.changed.notified());
        changed.as_mut().enable();
        while let Some(Sending { block, durable }) = staged.next(&node) {
            let node = &node;
            running.push(async move {
                let (range, mount) = (block.range(), block.mount.clone());
                let offset = block.offset;
                let result = node.unstable.write(&mount, node.handle(), offset, block.into_data(), durable).await;
                (range, result)
            });
        }
        if running.is_empty() {
            if staged.ends() {
                return;
            }
            tokio::select! {
                () = changed => {}
                () = tokio::time::sleep(LINGER) => staged.state.lock().is_due = true,
            }
        } else {
            tokio::select! {
                Some((range, result)) = running.next() => staged.sent(&range, result),
                () = changed => {}
            }
        }
    }
}

/// The time for which data wait for more data that follow them.
const LINGER: Duration = Duration::from_millis(200);
/// The maximum number of blocks of a file that are being sent.
const SENDING_MAX: usize = 4;
/// The maximum number of staged bytes of all files.
const ROOM_MAX: usize = 64 << 20;
/// The room of a block that does not follow another one.
const SMALL: usize = 64 << 10;
