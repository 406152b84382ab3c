//! [`Reader`]: reads a file in order, with read-ahead.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use bytes::{Buf, Bytes};
use futures_util::{StreamExt, stream::FuturesUnordered};
use rpc::BoxFuture;
use tokio::io::{AsyncRead, ReadBuf};

use super::{
    File,
    read_ahead::{Answer, ReadAhead, Request},
};
use crate::{
    call::payload,
    model::{Error, ErrorKind, ReadData, Result},
};

/// Reads a file in order and requests data before the caller needs them.
///
/// [`next`](Self::next) returns the data in the memory into which the transport received them, without a copy.
/// [`AsyncRead`] copies them once. Dropping the reader cancels its requests.
///
/// ```no_run
/// # async fn example(file: client::File) -> client::Result<()> {
/// let mut reader = file.reader();
/// while let Some(bytes) = reader.next().await? {
///     println!("{} bytes", bytes.len());
/// }
/// # Ok(()) }
/// ```
pub struct Reader {
    file: Arc<File>,
    ahead: ReadAhead<Error>,
    running: FuturesUnordered<BoxFuture<'static, (Request, Result<ReadData>)>>,
    /// The rest of a chunk of which `AsyncRead` has returned the first bytes.
    chunk: Bytes,
    /// The size of a file that is expected to need only one READ.
    small: Option<u32>,
}

impl Reader {
    pub(crate) fn new(file: File, start: u64, end: u64) -> Self {
        let ahead = ReadAhead::new(start, end, file.mount().read_size(), file.mount().options().read_ahead);
        Self { file: Arc::new(file), ahead, running: FuturesUnordered::new(), chunk: Bytes::new(), small: None }
    }

    /// Requests the whole window at once, for a caller that needs all data.
    pub(crate) fn eager(mut self) -> Self {
        self.ahead.make_eager();
        self
    }

    /// Expects the file to have `size` bytes. If one READ can return them, the file is read by one call, even in a
    /// protocol that opens and closes files.
    pub fn expecting(mut self, size: u64) -> Self {
        if size <= self.file.mount().read_size() as u64 {
            self.small = Some((size as u32).max(1));
        }
        self
    }

    /// Returns the next bytes; `None` at the end. The server chooses the size of the pieces.
    ///
    /// Dropping the future loses no data.
    ///
    /// # Errors
    /// A READ failed. The reader cannot be used any more.
    pub async fn next(&mut self) -> Result<Option<Bytes>> {
        std::future::poll_fn(|cx| self.poll_next(cx)).await
    }

    /// Polls for the next bytes like [`next`](Self::next).
    ///
    /// # Errors
    /// The errors of [`next`](Self::next).
    pub fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Bytes>>> {
        if !self.chunk.is_empty() {
            return Poll::Ready(Ok(Some(std::mem::take(&mut self.chunk))));
        }
        loop {
            if let Some(data) = self.ahead.take() {
                // Taking data has made room in the window. Send the next requests now, not when the caller returns.
                self.drive(cx);
                return Poll::Ready(data.map(Some));
            }
            if self.ahead.is_done() {
                return Poll::Ready(Ok(None));
            }
            if !self.drive(cx) {
                return Poll::Pending;
            }
        }
    }

    /// Sends the requests that are due and processes replies. Returns `true` if there were replies.
    fn drive(&mut self, cx: &mut Context<'_>) -> bool {
        let mut any = false;
        loop {
            while let Some(request) = self.ahead.next_request() {
                let file = self.file.clone();
                let small = self.small.take().filter(|_| request.offset == 0);
                self.running.push(Box::pin(async move {
                    let (protocol, handle) = (file.mount().protocol(), file.handle());
                    let answer = match small {
                        Some(size) => protocol.read_small(handle, size.min(request.len as u32)).await,
                        None => protocol.read(handle, request.offset, request.len as u32).await,
                    };
                    (request, answer)
                }));
            }
            let Poll::Ready(Some((request, answer))) = self.running.poll_next_unpin(cx) else { return any };
            any = true;
            if let Err(error) = self.process_reply(request, answer) {
                self.ahead.fail(request, self.file.annotate(error));
            }
        }
    }

    fn process_reply(&mut self, request: Request, answer: Result<ReadData>) -> Result<()> {
        let ok = answer?;
        let protocol = |problem: &str| Error::new(ErrorKind::Protocol(problem.to_owned()), "READ");
        let data = payload::pieces(ok.data)?;
        self.ahead.answer(request, Answer { data, eof: ok.eof, size: ok.size }).map_err(protocol)
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.running.clear();
        self.file.mount().protocol().close_if_idle(self.file.handle());
    }
}

impl AsyncRead for Reader {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<std::io::Result<()>> {
        if self.chunk.is_empty() {
            match ready!(self.poll_next(cx))? {
                Some(chunk) => self.chunk = chunk,
                None => return Poll::Ready(Ok(())),
            }
        }
        let len = self.chunk.len().min(into.remaining());
        into.put_slice(&self.chunk[..len]);
        self.chunk.advance(len);
        Poll::Ready(Ok(()))
    }
}
