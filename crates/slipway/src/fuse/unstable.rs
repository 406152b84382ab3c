//! [`Unstable`]: written data of a file that may not be on stable storage.
//!
//! WRITEs are UNSTABLE. Their data are kept until a COMMIT returns the same verifier. Another verifier means that the
//! server has restarted and may have lost the data (RFC 1813 §3.3.21). Then all data are written again, one piece after
//! the other in the original order, because pieces can overlap.

use std::collections::VecDeque;

use bytes::Bytes;
use client::{Attr, Handle, Mount, SetAttr, StableHow, Verifier};
use parking_lot::Mutex;
use rustix::io::Errno;
use tokio::sync::RwLock;

use super::convert::errno;

/// The unstable data of one file.
#[derive(Default)]
pub struct Unstable {
    /// Writes lock it shared and a COMMIT exclusively, so that data that are written again cannot overwrite newer data.
    order: RwLock<()>,
    kept: Mutex<Kept>,
}

#[derive(Default)]
struct Kept {
    pieces: Vec<Piece>,
    bytes: usize,
}

struct Piece {
    /// The mount of the user that has written it.
    mount: Mount,
    offset: u64,
    data: Bytes,
    verf: Verifier,
}

impl Unstable {
    /// Writes all of `data`; to stable storage if `durable`, which then needs no COMMIT. If more unstable data are kept
    /// than the mount's write-behind allows, commits all of it.
    ///
    /// # Errors
    /// A WRITE or COMMIT failed.
    pub async fn write(
        &self,
        mount: &Mount,
        file: &Handle,
        offset: u64,
        data: Bytes,
        durable: bool,
    ) -> std::result::Result<(), Errno> {
        {
            let _shared = self.order.read().await;
            let stable = if durable { StableHow::FileSync } else { StableHow::Unstable };
            self.send(mount, file, (offset, data), stable).await?;
        }
        let full = self.kept.lock().bytes > mount.options().write_behind;
        if full { self.commit(file).await } else { Ok(()) }
    }

    /// Writes all of `data` to stable storage and sets attributes in one request. Returns `None` if that is not possible.
    ///
    /// # Errors
    /// Those of both operations.
    pub async fn write_and_set(
        &self,
        mount: &Mount,
        file: &Handle,
        (offset, data): (u64, Bytes),
        set: &SetAttr,
    ) -> client::Result<Option<Attr>> {
        let Some(v4) = mount.v4() else { return Ok(None) };
        let _shared = self.order.read().await;
        if self.is_empty() { v4.write_and_set(file, offset, data.into(), set).await } else { Ok(None) }
    }

    /// Returns `true` if all written data are on stable storage.
    pub fn is_empty(&self) -> bool {
        self.kept.lock().pieces.is_empty()
    }

    /// Commits all written data.
    ///
    /// # Errors
    /// A WRITE or COMMIT failed. Uncommitted data are still kept for another attempt.
    pub async fn commit(&self, file: &Handle) -> std::result::Result<(), Errno> {
        let _alone = self.order.write().await;
        for _ in 0..RESTARTS_MAX {
            // A user that may not write the file may close it.
            let Some(mount) = self.kept.lock().pieces.first().map(|piece| piece.mount.clone()) else { return Ok(()) };
            let verf = mount.protocol().commit(file).await.map_err(|error| errno(&error))?;
            let Kept { pieces, .. } = std::mem::take(&mut *self.kept.lock());
            if pieces.iter().all(|piece| piece.verf == verf) {
                return Ok(());
            }
            tracing::warn!(
                bytes = pieces.iter().map(|p| p.data.len()).sum::<usize>(),
                "the server has restarted; data were written again"
            );
            let mut again = Again { kept: &self.kept, pieces: pieces.into() };
            while let Some(piece) = again.pieces.front() {
                self.send(&piece.mount, file, (piece.offset, piece.data.clone()), StableHow::Unstable).await?;
                again.pieces.pop_front();
            }
        }
        Err(Errno::IO)
    }

    async fn send(
        &self,
        mount: &Mount,
        file: &Handle,
        (offset, data): (u64, Bytes),
        stable: StableHow,
    ) -> std::result::Result<(), Errno> {
        let mut done = 0;
        while done < data.len() {
            let at = offset + done as u64;
            let part = data.slice(done..data.len().min(done + mount.write_size()));
            let written = mount.protocol().write(file, at, part.clone().into(), stable).await;
            let written = written.map_err(|error| errno(&error))?;
            let len = (written.count as usize).min(part.len());
            if len == 0 {
                return Err(Errno::IO);
            }
            let mut kept = self.kept.lock();
            // Durable data need not be kept, unless older data could be written over them again.
            if written.committed == StableHow::Unstable || !kept.pieces.is_empty() {
                kept.push(Piece { mount: mount.clone(), offset: at, data: part.slice(..len), verf: written.verf });
            }
            done += len;
        }
        Ok(())
    }
}

/// The data to be written again. If it is dropped early, after an error or because the caller has given up, the
/// remaining data are kept for another attempt.
struct Again<'a> {
    kept: &'a Mutex<Kept>,
    pieces: VecDeque<Piece>,
}

impl Drop for Again<'_> {
    fn drop(&mut self) {
        let mut kept = self.kept.lock();
        self.pieces.drain(..).for_each(|piece| kept.push(piece));
    }
}

impl Kept {
    fn push(&mut self, piece: Piece) {
        self.bytes += piece.data.len();
        self.pieces.push(piece);
    }
}

/// The maximum number of restarts of the server during one fsync.
const RESTARTS_MAX: u32 = 8;
