//! [`Writer`]: writes a file in order, with write-behind.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use buf::{Buffer, Piece, Rope};
use futures_util::{StreamExt, stream::FuturesUnordered};
use rpc::BoxFuture;
use tokio::io::AsyncWrite;

use super::{
    File,
    write_behind::{Action, Block, WriteBehind},
};
use crate::model::{Error, ErrorKind, Result, Verifier, Written};

/// Writes a file in order without waiting for each WRITE.
///
/// The writer collects data into WRITEs of the mount's write size and keeps them until the server has committed them.
/// If the server restarts before that, the writer sends the lost data again. It keeps at most
/// [`write_behind`](crate::MountOptions::write_behind) bytes; [`write`](Self::write) waits for room.
///
/// The error of an earlier write is returned by a later call, at the latest by [`flush`](Self::flush) or
/// [`close`](Self::close). All calls after that return the same error. **Close a writer**: dropping it discards data
/// that are not yet durable.
///
/// ```no_run
/// # async fn example(file: client::File) -> client::Result<()> {
/// let mut writer = file.writer();
/// writer.write(bytes::Bytes::from_static(b"hello")).await?;
/// writer.close().await?; // now it is on stable storage
/// # Ok(()) }
/// ```
pub struct Writer {
    file: Arc<File>,
    behind: WriteBehind,
    running: FuturesUnordered<BoxFuture<'static, Done>>,
    /// Collected data that are not yet a block: less than one write size, unless there is no room for more blocks.
    gathered: Rope,
    /// Small writes are copied together into this buffer. It follows `gathered`.
    small: Option<Buffer>,
    /// Set if the last call was `skip`, so that the file must be extended.
    ends_in_hole: bool,
    error: Option<Error>,
}

enum Done {
    Written(Block, Result<Written>),
    Committed(Result<Verifier>),
}

impl Writer {
    pub(crate) fn new(file: File, start: u64) -> Self {
        let behind = WriteBehind::new(start, file.mount().options().write_behind);
        let (file, running) = (Arc::new(file), FuturesUnordered::new());
        Self { file, behind, running, gathered: Rope::new(), small: None, ends_in_hole: false, error: None }
    }

    /// Returns the offset of the next byte.
    pub fn position(&self) -> u64 {
        self.behind.position() + self.pending() as u64
    }

    /// Appends `data`. Large pieces are not copied.
    ///
    /// The writer owns the data as soon as this is called: dropping the future only stops waiting for room.
    ///
    /// # Errors
    /// An earlier write failed.
    pub async fn write(&mut self, data: impl Into<Rope>) -> Result<()> {
        self.gather(data.into());
        std::future::poll_fn(|cx| self.poll_room(cx)).await
    }

    /// Leaves a hole of `len` bytes. The hole reads as zeros and needs no storage if the server supports it. The file
    /// must have no data there yet.
    pub fn skip(&mut self, len: u64) {
        if len > 0 {
            self.flush_small();
            if !self.gathered.is_empty() {
                // This may exceed the limit. The next write waits until there is room again.
                self.behind.push(std::mem::take(&mut self.gathered));
            }
            self.behind.skip(len);
            self.ends_in_hole = true;
        }
    }

    /// Waits until all data are on stable storage.
    ///
    /// # Errors
    /// A WRITE or COMMIT failed.
    pub async fn flush(&mut self) -> Result<()> {
        std::future::poll_fn(|cx| self.poll_flush_all(cx)).await
    }

    /// Flushes, and sets the size of the file if it ends in a hole.
    ///
    /// # Errors
    /// The errors of [`flush`](Self::flush).
    pub async fn close(mut self) -> Result<()> {
        self.flush().await?;
        if self.ends_in_hole { self.file.set_len(self.position()).await } else { Ok(()) }
    }

    fn pending(&self) -> usize {
        self.gathered.len() + self.small.as_ref().map_or(0, |small| small.len())
    }

    fn gather(&mut self, data: Rope) {
        if data.is_empty() {
            return;
        }
        self.ends_in_hole = false;
        if data.len() > SMALL_MAX {
            self.flush_small();
            self.gathered.append(data);
            return;
        }
        for piece in data.pieces() {
            match piece {
                Piece::Memory(bytes) => self.copy_in(bytes),
                Piece::File(_) | Piece::Peer(_) | Piece::Device(_) => {
                    self.flush_small();
                    self.gathered.push(piece.clone());
                }
            }
        }
    }

    /// Copies small data into `small`.
    fn copy_in(&mut self, mut data: &[u8]) {
        while !data.is_empty() {
            let small = self.small.get_or_insert_with(|| {
                let mut buffer = self.file.mount().pool().take(SMALL_BUFFER);
                buffer.set_len(0);
                buffer
            });
            let (at, len) = (small.len(), data.len().min(SMALL_BUFFER - small.len()));
            small.set_len(at + len);
            small[at..].copy_from_slice(&data[..len]);
            data = &data[len..];
            if small.len() == SMALL_BUFFER {
                self.flush_small();
            }
        }
    }

    /// Appends the copied small writes to the collected data.
    fn flush_small(&mut self) {
        if let Some(small) = self.small.take() {
            self.gathered.push(Piece::Memory(small.freeze()));
        }
    }

    /// Waits until the collected data are less than a block and the memory is within its limit.
    fn poll_room(&mut self, cx: &mut Context<'_>) -> Poll<Result<()>> {
        loop {
            self.check()?;
            let block = self.file.mount().write_size();
            while self.gathered.len() >= block && self.behind.has_room(block) {
                let rest = self.gathered.len() - block;
                let data = self.gathered.slice(0, block);
                self.gathered = self.gathered.slice(block, rest);
                self.behind.push(data);
            }
            let waits = self.gathered.len() >= block || self.behind.is_overfull();
            // If there is no room and no request is outstanding, only a COMMIT can make room.
            let any = self.drive(cx, waits && self.running.is_empty());
            self.check()?;
            if !waits {
                return Poll::Ready(Ok(()));
            }
            if !any {
                return Poll::Pending;
            }
        }
    }

    fn poll_flush_all(&mut self, cx: &mut Context<'_>) -> Poll<Result<()>> {
        self.flush_small();
        loop {
            ready!(self.poll_room(cx))?;
            if !self.gathered.is_empty() && self.behind.has_room(self.gathered.len()) {
                self.behind.push(std::mem::take(&mut self.gathered));
            }
            let any = self.drive(cx, true);
            self.check()?;
            if self.gathered.is_empty() && self.behind.is_clean() {
                return Poll::Ready(Ok(()));
            }
            if !any {
                return Poll::Pending;
            }
        }
    }

    fn check(&self) -> Result<()> {
        self.error.clone().map_or(Ok(()), Err)
    }

    /// Sends the requests that are due and processes replies. Returns `true` if there were replies.
    fn drive(&mut self, cx: &mut Context<'_>, flush: bool) -> bool {
        let mut any = false;
        loop {
            while let Some(action) = self.behind.next_action(flush) {
                self.running.push(perform(self.file.clone(), action));
            }
            let Poll::Ready(Some(done)) = self.running.poll_next_unpin(cx) else { return any };
            any = true;
            if let Err(error) = self.process_reply(done) {
                self.error = Some(self.file.annotate(error));
                self.running.clear();
                return true;
            }
        }
    }

    fn process_reply(&mut self, done: Done) -> Result<()> {
        match done {
            Done::Written(block, result) => self
                .behind
                .written(block, &result?)
                .map_err(|problem| Error::new(ErrorKind::Protocol(problem.to_owned()), "WRITE")),
            Done::Committed(result) => {
                let again = self.behind.committed(result?);
                if again > 0 {
                    tracing::info!(bytes = again, "the server has restarted; uncommitted data are written again");
                }
                Ok(())
            }
        }
    }
}

fn perform(file: Arc<File>, action: Action) -> BoxFuture<'static, Done> {
    match action {
        Action::Write(block) => Box::pin(async move {
            let protocol = file.mount().protocol();
            let result = protocol.write(file.handle(), block.offset, block.data.clone(), block.stable).await;
            Done::Written(block, result)
        }),
        Action::Commit => Box::pin(async move { Done::Committed(file.mount().protocol().commit(file.handle()).await) }),
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.running.clear();
        self.file.mount().protocol().close_if_idle(self.file.handle());
    }
}

impl AsyncWrite for Writer {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, data: &[u8]) -> Poll<std::io::Result<usize>> {
        // Wait for room first, because bytes that are taken must be reported as taken.
        ready!(self.poll_room(cx))?;
        let len = data.len().min(self.file.mount().write_size());
        self.ends_in_hole &= len == 0;
        self.copy_in(&data[..len]);
        if let Poll::Ready(result) = self.poll_room(cx) {
            result?;
        }
        Poll::Ready(Ok(len))
    }

    /// Waits until all data are on stable storage.
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        self.poll_flush_all(cx).map_err(Into::into)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        self.poll_flush(cx)
    }
}

/// Maximum bytes of a write that is copied. Copying it costs less than handling it as a separate piece.
const SMALL_MAX: usize = 16 << 10;
/// Bytes of the buffer into which small writes are copied.
const SMALL_BUFFER: usize = 64 << 10;
