//! [`File`]: reads and writes a regular file.

use std::{
    io,
    sync::atomic::{AtomicBool, Ordering::Relaxed},
};

use buf::{Region, Rope};
use bytes::{Bytes, BytesMut};
use futures_util::{StreamExt, future::join_all, stream};

use super::{Mount, Reader, Writer};
use crate::{
    call::payload,
    model::{Attr, Error, Handle, Result, SetAttr, Verifier},
};

/// A file of a [`Mount`]. It consists of a handle, is cheap to clone, and needs no close. NFSv3 has no open files on
/// the server. In NFSv4, the mount opens and closes the file when that is needed.
#[derive(Clone, Debug)]
pub struct File {
    mount: Mount,
    handle: Handle,
    path: Bytes,
}

impl File {
    /// Makes the file with this handle. `path` is only for messages.
    pub fn new(mount: Mount, handle: Handle, path: impl Into<Bytes>) -> Self {
        Self { mount, handle, path: path.into() }
    }

    /// Returns the mount of the file.
    pub fn mount(&self) -> &Mount {
        &self.mount
    }

    /// Returns the handle.
    pub fn handle(&self) -> &Handle {
        &self.handle
    }

    /// Returns the path by which the file was opened.
    pub fn path(&self) -> &Bytes {
        &self.path
    }

    /// Returns the attributes.
    ///
    /// # Errors
    /// GETATTR failed.
    pub async fn stat(&self) -> Result<Attr> {
        self.mount.protocol().getattr(&self.handle).await.map_err(|error| self.annotate(error))
    }

    /// Truncates the file to `len` bytes, or extends it by a hole.
    ///
    /// # Errors
    /// SETATTR failed.
    pub async fn set_len(&self, len: u64) -> Result<()> {
        self.set_attr(SetAttr { size: Some(len), ..SetAttr::default() }).await
    }

    /// Sets attributes.
    ///
    /// # Errors
    /// SETATTR failed.
    pub async fn set_attr(&self, set: SetAttr) -> Result<()> {
        let result = self.mount.protocol().setattr(&self.handle, set).await;
        result.map(drop).map_err(|error| self.annotate(error))
    }

    /// Reads into all visible bytes of `into`: a [`Buffer`](buf::Buffer), or a [`Region`] of any kind of memory. Reads
    /// fewer bytes only at the end of the file. Returns memory of the same visible length in every case. It is the
    /// caller's memory, unless the transport still holds that at the deadline; then it is host memory.
    ///
    /// The transport places the data directly into the memory if it can. If the memory is larger than [`Mount::read_size`], several
    /// READs run at the same time, each into its part of the memory.
    ///
    /// # Errors
    /// A READ failed. The content of the memory is then unspecified.
    pub async fn read_at<R>(&self, offset: u64, into: R) -> (Result<usize>, R)
    where
        R: Into<Region> + TryFrom<Region>,
    {
        let (result, region) = self.read_region(offset, into.into()).await;
        (result, returned(region))
    }

    async fn read_region(&self, offset: u64, region: Region) -> (Result<usize>, Region) {
        let block = self.mount.read_size();
        if region.len() <= block {
            return self.read_block(offset, region).await;
        }
        let (whole, last) = (region.len() / block, region.len() % block);
        let lens = std::iter::repeat_n(block, whole).chain((last > 0).then_some(last));
        let (parts, division) = region.divide(lens);
        let (read, parts) = self.read_blocks(offset, parts).await;
        let (joined, region) = division.join(parts);
        (read.and_then(|len| joined.map(|()| len).map_err(|error| self.device_error(&error))), region)
    }

    /// Reads consecutive bytes into blocks of at most one READ, as many at the same time as the read-ahead permits. After
    /// the end of the file or an error, no other READ is sent.
    async fn read_blocks(&self, offset: u64, blocks: Vec<Region>) -> (Result<usize>, Vec<Region>) {
        let at_once = (self.mount.options().read_ahead / self.mount.read_size()).max(1);
        let (ended, mut at) = (&AtomicBool::new(false), offset);
        let reads = blocks.into_iter().map(|block| {
            let start = at;
            at = at.saturating_add(block.len() as u64);
            async move {
                if ended.load(Relaxed) {
                    return (Ok(0), block);
                }
                let (read, block) = self.read_block(start, block).await;
                ended.fetch_or(read.as_ref().map_or(true, |len| *len < block.len()), Relaxed);
                (read, block)
            }
        });
        total(stream::iter(reads).buffered(at_once).collect().await)
    }

    /// Reads into a region of at most one READ.
    async fn read_block(&self, offset: u64, region: Region) -> (Result<usize>, Region) {
        let wanted = region.len();
        if wanted == 0 {
            return (Ok(0), region);
        }
        match self.mount.protocol().read_into(&self.handle, offset, region).await {
            (Err(error), region) => (Err(self.annotate(error)), region),
            (Ok(info), region) if info.len == wanted || info.eof => (Ok(info.len), region),
            (Ok(info), region) => self.read_rest(offset, region, info.len).await,
        }
    }

    /// Fills `region` from byte `done` on.
    async fn read_rest(&self, offset: u64, mut region: Region, mut done: usize) -> (Result<usize>, Region) {
        let end = offset.saturating_add(region.len() as u64);
        let mut reader = Reader::new(self.clone(), offset.saturating_add(done as u64), end).eager();
        loop {
            match reader.next().await {
                Err(error) => return (Err(error), region),
                Ok(None) => return (Ok(done), region),
                Ok(Some(bytes)) => {
                    if let Err(error) = region.copy_in(done, &bytes) {
                        return (Err(self.device_error(&error)), region);
                    }
                    done += bytes.len();
                }
            }
        }
    }

    /// Reads consecutive bytes into several regions at the same time, without a copy. Returns the number of bytes up to the end of the
    /// file, and the regions in their order.
    ///
    /// # Errors
    /// A READ failed. The content of the regions is then unspecified.
    pub async fn read_many_at<R>(&self, offset: u64, into: Vec<R>) -> (Result<usize>, Vec<R>)
    where
        R: Into<Region> + TryFrom<Region>,
    {
        let mut at = offset;
        let reads = join_all(into.into_iter().map(|region| {
            let (start, region) = (at, region.into());
            at = at.saturating_add(region.len() as u64);
            self.read_region(start, region)
        }));
        let (read, regions) = total(reads.await);
        (read, regions.into_iter().map(returned).collect())
    }

    /// Reads up to `len` bytes; fewer only at the end of the file. Up to [`Mount::read_size`] bytes are not copied:
    /// they are returned in the pool memory into which the transport received them.
    ///
    /// # Errors
    /// A READ failed.
    pub async fn read_bytes(&self, offset: u64, len: usize) -> Result<Bytes> {
        if len == 0 {
            return Ok(Bytes::new());
        }
        let (mut start, end) = (offset, offset.saturating_add(len as u64));
        let mut all = BytesMut::new();
        if len <= self.mount.read_size() {
            let result = self.mount.protocol().read(&self.handle, offset, len as u32).await;
            let ok = result.map_err(|error| self.annotate(error))?;
            let mut data = payload::pieces(ok.data)?;
            if data.len() == 1 && (ok.eof || data[0].len() == len) {
                return Ok(data.remove(0));
            }
            data.iter().for_each(|data| all.extend_from_slice(data));
            if ok.eof {
                return Ok(all.freeze());
            }
            start += all.len() as u64;
        }
        let mut reader = self.reader_range(start, end);
        while let Some(bytes) = reader.next().await? {
            all.extend_from_slice(&bytes);
        }
        Ok(all.freeze())
    }

    /// Writes `data` at `offset`, without a copy. All data are on stable storage when this returns.
    ///
    /// Use a [`writer`](Self::writer) or [`Protocol::write`](crate::Protocol::write) if not every write must be durable
    /// at once: these send unstable writes.
    ///
    /// # Errors
    /// A WRITE or COMMIT failed. Some of the data may have been written.
    pub async fn write_at(&self, offset: u64, data: impl Into<Rope>) -> Result<()> {
        let mut writer = self.writer_at(offset);
        writer.write(data).await?;
        writer.close().await
    }

    /// Makes all writes to the file durable that the server has acknowledged.
    ///
    /// A [`Writer`] sends COMMIT itself. A caller of [`Protocol::write`](crate::Protocol::write) must compare the
    /// verifiers.
    ///
    /// # Errors
    /// COMMIT failed.
    pub async fn commit(&self) -> Result<Verifier> {
        let result = self.mount.protocol().commit(&self.handle).await;
        result.map_err(|error| self.annotate(error))
    }

    /// Returns a reader of the whole file.
    pub fn reader(&self) -> Reader {
        self.reader_range(0, u64::MAX)
    }

    /// Returns a reader of the bytes `start .. end`, up to the end of the file.
    pub fn reader_range(&self, start: u64, end: u64) -> Reader {
        Reader::new(self.clone(), start, end)
    }

    /// Returns a writer that starts at offset 0. It does not truncate the file.
    pub fn writer(&self) -> Writer {
        self.writer_at(0)
    }

    /// Returns a writer that starts at `offset`.
    pub fn writer_at(&self, offset: u64) -> Writer {
        Writer::new(self.clone(), offset)
    }

    /// Adds the path of the file to an error.
    pub(crate) fn annotate(&self, error: Error) -> Error {
        error.at(&self.path)
    }

    fn device_error(&self, error: &io::Error) -> Error {
        self.annotate(payload::device_error(error))
    }
}

/// Returns the number of bytes up to the end of the file that consecutive READs have returned, or the first error, and the regions.
fn total(reads: Vec<(Result<usize>, Region)>) -> (Result<usize>, Vec<Region>) {
    let (mut total, mut ended) = (Ok(0), false);
    let mut regions = Vec::with_capacity(reads.len());
    for (read, region) in reads {
        match read {
            Ok(len) if !ended => {
                ended = len < region.len();
                total = total.map(|total| total + len);
            }
            Ok(_) => {}
            Err(error) => total = total.and(Err(error)),
        }
        regions.push(region);
    }
    (total, regions)
}

/// Converts a region back to the type that the caller passed. Host memory can replace a buffer only by host memory.
fn returned<R: TryFrom<Region>>(region: Region) -> R {
    R::try_from(region).unwrap_or_else(|_| unreachable!("a buffer must return as host memory"))
}
