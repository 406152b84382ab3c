//! [`Staged`]: data of a file that programs have written and that are not sent yet, and attributes that they have set afterwards.
//!
//! As with the kernel's own NFS client, write(2) only copies the data. Consecutive data are gathered into blocks of the
//! mount's write size. A task of the file sends full blocks at once, and the last block after [`LINGER`], or when
//! somebody calls [`settle`](Staged::settle): a close, an fsync, and each operation whose result depends on the data or attributes.
//! So a program that closes or unlocks a file, or asks for its size, knows that the server has the data.
//!
//! **Attributes** are sent after the data, those of several changes together. The last block of a small file and its attributes are one
//! request ([`Unstable::write_and_set`](super::unstable::Unstable::write_and_set)). Some changes wait for their result; those of a
//! [`NewFile`](super::new_file::NewFile) do not.
//!
//! **Order.** Blocks are sent concurrently, so they must not overlap: a write over staged data first waits until these
//! are sent. So does a write after a change of attributes, because it changes the times. **Errors** of sending belong to no
//! request. They are kept for the next write, fsync and close of the file, and the data of that block are dropped.
//! **Memory**: [`Room`] bounds the staged bytes of all files.

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
use client::{Attr, Mount, SetAttr, SetTime};
use futures_util::{StreamExt, stream::FuturesUnordered};
use parking_lot::Mutex;
use rustix::io::Errno;
use tokio::sync::{Notify, oneshot};

use super::{
    convert::errno,
    nodes::Node,
    tree::{Answer, attr_of},
};

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

/// The staged data and attributes of one file.
#[derive(Debug)]
pub struct Staged {
    room: Arc<Room>,
    state: Mutex<State>,
    /// Notified when something has been sent, and when the task of the file has more to send.
    changed: Notify,
}

#[derive(Debug, Default)]
struct State {
    queue: VecDeque<Block>,
    /// The ranges of the blocks that are being sent.
    sending: Vec<Range<u64>>,
    /// The number of bytes of the blocks in `queue` and in `sending`.
    bytes: usize,
    /// The changes of attributes after the data, all by one user.
    settings: Vec<Setting>,
    /// Set while changes of attributes are being sent.
    is_setting: bool,
    /// Set while the task of the file runs.
    is_running: bool,
    /// The number of tasks that wait until everything is sent, and those of them that want the data on stable storage.
    waiting: usize,
    durable: usize,
    /// Set when the last block, or a change of attributes, has been staged for long enough.
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

/// A change of attributes.
#[derive(Debug)]
struct Setting {
    /// The mount of the user that makes it, and the user's number.
    mount: Mount,
    caller: u64,
    set: SetAttr,
    /// Gets the attributes after the change, if its caller waits for them.
    done: Option<oneshot::Sender<Answer<Attr>>>,
}

/// Something to send.
enum Sending {
    /// A block; to stable storage with `durable`, because no COMMIT would cover other data as well.
    Block { block: Block, durable: bool },
    /// Changes of attributes, with the last block if one request can do both.
    Settings { block: Option<Block>, settings: Vec<Setting> },
}

/// The result of sending something.
struct Sent {
    /// The range of the block.
    range: Option<Range<u64>>,
    /// Set for changes of attributes.
    is_setting: bool,
    result: Answer<()>,
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

    /// Returns the offset and the data.
    fn into_parts(self) -> (u64, Bytes) {
        let data = match self.data {
            Data::Whole(data) => data,
            Data::Growing(mut buffer, len) => {
                buffer.set_len(len);
                buffer.freeze()
            }
        };
        (self.offset, data)
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
        if !has_room || state.sets() || state.overlaps(&range) {
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
        staged.run(node, must_start, has_more);
        Ok(true)
    }

    /// Stages a change of attributes other than the size, of which nobody needs the result. Returns `false` if it must be sent after the
    /// staged data.
    pub fn set(node: &Arc<Node>, (mount, caller): (&Mount, u64), set: &SetAttr) -> bool {
        let mut state = node.staged.state.lock();
        if state.is_setting || state.settings.iter().any(|other| other.caller != caller) {
            return false;
        }
        state.settings.push(Setting { mount: mount.clone(), caller, set: set.clone(), done: None });
        let must_start = !std::mem::replace(&mut state.is_running, true);
        drop(state);
        node.staged.run(node, must_start, false);
        true
    }

    /// Sends a change of attributes other than the size together with all staged changes, and with the only block of data. Returns the
    /// attributes after it, or `None` if nothing can be sent together with it.
    pub async fn set_now(node: &Arc<Node>, (mount, caller): (&Mount, u64), set: &SetAttr) -> Option<Answer<Attr>> {
        let (done, attr) = oneshot::channel();
        {
            let mut state = node.staged.state.lock();
            let others = !state.settings.is_empty() && state.settings.iter().all(|other| other.caller == caller);
            if state.is_setting || !(others || state.settings.is_empty() && state.can_join(node, caller)) {
                return None;
            }
            state.settings.push(Setting { mount: mount.clone(), caller, set: set.clone(), done: Some(done) });
            let must_start = !std::mem::replace(&mut state.is_running, true);
            drop(state);
            node.staged.run(node, must_start, false);
        }
        // The data of a new file are most likely complete.
        node.staged.settle(true).await;
        Some(attr.await.unwrap_or(Err(Errno::IO)))
    }

    /// Starts the task of the file, or tells it that there is more to send.
    fn run(&self, node: &Arc<Node>, must_start: bool, has_more: bool) {
        if must_start {
            tokio::spawn(send_all(node.clone()));
        } else if has_more {
            self.changed.notify_waiters();
        }
    }

    /// Returns `true` if everything is sent.
    pub fn is_empty(&self) -> bool {
        self.state.lock().is_empty()
    }

    /// Returns `true` if attributes that were requested at `since` include everything that was written and set before.
    pub fn is_settled(&self, since: u64) -> bool {
        let state = self.state.lock();
        state.is_empty() && state.changed_at <= since
    }

    /// Records that this mount has changed the file at the server.
    pub fn changed(&self) {
        self.state.lock().changed_at = self.room.clock.fetch_add(1, Relaxed) + 1;
    }

    /// Waits until everything is sent. With `durable`, a caller that sends a COMMIT afterwards says so: a single block
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

    /// Waits until everything is sent, if attributes are staged.
    pub async fn settle_attributes(&self) {
        if self.state.lock().sets() {
            self.settle(false).await;
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

    /// Takes what to send next.
    fn next(&self, node: &Node) -> Option<Sending> {
        let mut state = self.state.lock();
        if !state.is_next_ready() || state.is_setting || state.sending.len() >= SENDING_MAX {
            return None;
        }
        if let Some(setting) = state.settings.first()
            && (state.queue.is_empty() || state.can_join(node, setting.caller))
        {
            if !state.sending.is_empty() {
                return None;
            }
            let (block, settings) = (state.queue.pop_front(), std::mem::take(&mut state.settings));
            state.sending.extend(block.as_ref().map(Block::range));
            (state.is_setting, state.is_due) = (true, false);
            return Some(Sending::Settings { block, settings });
        }
        let block = state.queue.pop_front()?;
        state.is_due &= !(state.queue.is_empty() && state.settings.is_empty());
        let is_only = state.queue.is_empty() && state.sending.is_empty();
        let durable =
            is_only && state.durable > 0 && block.len() <= block.mount.write_size() && node.unstable.is_empty();
        state.sending.push(block.range());
        Some(Sending::Block { block, durable })
    }

    /// Records that something has been sent.
    fn sent(&self, Sent { range, is_setting, result }: Sent) {
        let mut state = self.state.lock();
        if let Some(range) = range {
            let len = (range.end - range.start) as usize;
            state.sending.retain(|sending| *sending != range);
            state.bytes -= len;
            self.room.bytes.fetch_sub(len, Relaxed);
        }
        state.is_setting &= !is_setting;
        if let Err(error) = result {
            state.failed.get_or_insert(error);
        }
        state.changed_at = self.room.clock.fetch_add(1, Relaxed) + 1;
        drop(state);
        self.changed.notify_waiters();
    }

    /// Returns `true`, once, if there is nothing to send and the task ends.
    fn ends(&self) -> bool {
        let mut state = self.state.lock();
        state.is_running = !state.is_empty();
        !state.is_running
    }
}

impl State {
    fn is_empty(&self) -> bool {
        self.bytes == 0 && !self.sets()
    }

    /// Returns `true` if there are changes of attributes.
    fn sets(&self) -> bool {
        self.is_setting || !self.settings.is_empty()
    }

    /// Returns `true` if the next block, or the changes of attributes, are not waiting for more.
    fn is_next_ready(&self) -> bool {
        let is_wanted = self.waiting > 0 || self.is_due;
        match self.queue.front() {
            Some(first) => self.queue.len() > 1 || first.is_full() || is_wanted,
            None => !self.settings.is_empty() && is_wanted,
        }
    }

    /// Returns `true` if the only block of the file can be sent in one request with a change of attributes by `caller`.
    fn can_join(&self, node: &Node, caller: u64) -> bool {
        let can = |block: &Block| block.caller == caller && block.len() <= block.mount.write_size();
        self.queue.len() == 1 && self.sending.is_empty() && node.unstable.is_empty() && self.queue.iter().all(can)
    }

    fn overlaps(&self, range: &Range<u64>) -> bool {
        let queued = self.queue.iter().map(Block::range);
        self.sending.iter().cloned().chain(queued).any(|other| range.start < other.end && other.start < range.end)
    }
}

/// Counts a task that waits until everything is sent.
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

/// Sends a block, or changes of attributes.
async fn send(node: &Node, next: Sending) -> Sent {
    match next {
        Sending::Block { block, durable } => {
            let range = Some(block.range());
            let mount = block.mount.clone();
            Sent { range, is_setting: false, result: write(node, &mount, block.into_parts(), durable).await }
        }
        Sending::Settings { block, settings } => {
            let range = block.as_ref().map(Block::range);
            let block = block.map(Block::into_parts);
            Sent { range, is_setting: true, result: write_and_set(node, block, settings).await }
        }
    }
}

async fn write(node: &Node, mount: &Mount, (offset, data): (u64, Bytes), durable: bool) -> Answer<()> {
    let len = data.len();
    node.unstable.write(mount, node.handle(), offset, data, durable).await.map_err(|error| lost(error, len))
}

fn lost(error: Errno, len: usize) -> Errno {
    tracing::warn!(%error, len, "data that a program has written are lost");
    error
}

/// Sends the last block, if there is one, and changes of attributes: in one request if possible. Each change that waits for its result gets
/// it; returns the first error of the others.
async fn write_and_set(node: &Node, block: Option<(u64, Bytes)>, settings: Vec<Setting>) -> Answer<()> {
    let mount = settings[0].mount.clone();
    let all = settings.iter().fold(SetAttr::default(), |all, setting| joined(all, &setting.set));
    node.rights.invalidate();
    let mut result = Ok(());
    let mut attr = None;
    if let Some((offset, data)) = block {
        let done = node.unstable.write_and_set(&mount, node.handle(), (offset, data.clone()), &all).await;
        match done {
            Ok(Some(after)) => attr = Some(Ok(after)),
            // Each of the two operations reports its own error.
            Err(error) if error.status().is_none() => {
                result = Err(lost(errno(&error), data.len()));
                attr = Some(Err(errno(&error)));
            }
            Ok(None) | Err(_) => result = write(node, &mount, (offset, data), true).await,
        }
    }
    if attr.is_none() && settings.len() > 1 {
        attr = Some(set(node, &mount, &all).await).filter(Result::is_ok);
    }
    for setting in settings {
        let after = match &attr {
            Some(after) => after.clone(),
            None => set(node, &mount, &setting.set).await,
        };
        let failed = after.as_ref().err().copied();
        match (setting.done, failed) {
            (Some(done), _) => drop(done.send(after)),
            (None, Some(error)) => {
                tracing::warn!(%error, set = ?setting.set, "attributes that a program has set are lost");
                result = result.and(Err(error));
            }
            (None, None) => {}
        }
    }
    node.rights.invalidate();
    result
}

async fn set(node: &Node, mount: &Mount, set: &SetAttr) -> Answer<Attr> {
    let after = mount.protocol().setattr(node.handle(), set.clone()).await.map_err(|error| errno(&error))?;
    attr_of(mount, node.handle(), after).await
}

/// Returns the change that has the effect of two.
fn joined(first: SetAttr, second: &SetAttr) -> SetAttr {
    let time = |first, second| if second == SetTime::DontChange { first } else { second };
    SetAttr {
        mode: second.mode.or(first.mode),
        uid: second.uid.or(first.uid),
        gid: second.gid.or(first.gid),
        size: None,
        atime: time(first.atime, second.atime),
        mtime: time(first.mtime, second.mtime),
    }
}

/// Sends the staged data and attributes of a file until there are none.
async fn send_all(node: Arc<Node>) {
    let (staged, mut running) = (&node.staged, FuturesUnordered::new());
    loop {
        let mut changed = std::pin::pin!(staged.changed.notified());
        changed.as_mut().enable();
        while let Some(next) = staged.next(&node) {
            running.push(send(&node, next));
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
                Some(sent) = running.next() => staged.sent(sent),
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
