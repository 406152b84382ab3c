//! [`Reader`]: a file in order, read ahead.

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

/// Reads a file in order, asking for what comes next before it is wanted.
///
/// [`next`](Self::next) gives the data in the memory that the transport received it into; nothing is copied. Through
/// [`AsyncRead`] it is copied once. Requests are in flight only while the reader lives: dropping it gives them up.
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
    /// What is left of a chunk that `AsyncRead` has begun.
    chunk: Bytes,
    /// Bytes of a file that is thought to be small enough for one READ.
    small: Option<u32>,
}

impl Reader {
    pub(crate) fn new(file: File, start: u64, end: u64) -> Self {
        let ahead = ReadAhead::new(start, end, file.mount().read_size(), file.mount().options().read_ahead);
        Self { file: Arc::new(file), ahead, running: FuturesUnordered::new(), chunk: Bytes::new(), small: None }
    }

    /// Asks for the whole window at once, for a caller who is known to want it all.
    pub(crate) fn eager(mut self) -> Self {
        self.ahead.make_eager();
        self
    }

    /// For a file that is thought to have `size` bytes: if one READ can take them all, then all that reading it needs is
    /// one call, also by a protocol that opens and closes.
    pub fn expecting(mut self, size: u64) -> Self {
        if size <= self.file.mount().read_size() as u64 {
            self.small = Some((size as u32).max(1));
        }
        self
    }

    /// The next bytes, in pieces of the server's choice; `None` at the end.
    ///
    /// Dropping the future loses nothing.
    ///
    /// # Errors
    /// A READ that failed. The reader is then of no more use.
    pub async fn next(&mut self) -> Result<Option<Bytes>> {
        std::future::poll_fn(|cx| self.poll_next(cx)).await
    }

    /// As [`next`](Self::next).
    ///
    /// # Errors
    /// As `next`.
    pub fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Bytes>>> {
        if !self.chunk.is_empty() {
            return Poll::Ready(Ok(Some(std::mem::take(&mut self.chunk))));
        }
        loop {
            if let Some(data) = self.ahead.take() {
                // Taking has made room: what comes next leaves now, not when the caller comes back.
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

    /// Sends what is due and takes in what has come; returns whether anything has.
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
            if let Err(error) = self.take_in(request, answer) {
                self.ahead.fail(request, self.file.annotate(error));
            }
        }
    }

    fn take_in(&mut self, request: Request, answer: Result<ReadData>) -> Result<()> {
        let ok = answer?;
        let protocol = |problem: &str| Error::new(ErrorKind::Protocol(problem.to_owned()), "READ");
        let data = payload::pieces(ok.data)?;
        self.ahead.answer(request, Answer { data, eof: ok.eof, size: ok.size }).map_err(protocol)
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.running.clear();
        self.file.mount().protocol().done(self.file.handle());
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
