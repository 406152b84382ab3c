//! [`Unstable`]: what has been written to a file and is not known to be on stable storage.
//!
//! Writes are UNSTABLE, and what they wrote is kept until a COMMIT returns the verifier that they returned. If it returns
//! another, the server has restarted and may have lost it (RFC 1813 §3.3.21): then all of it is written again, one piece
//! after the other in the order of the first time, since pieces may overlap.

use std::collections::VecDeque;

use bytes::Bytes;
use client::{Handle, Mount, Result, StableHow, Verifier};
use parking_lot::Mutex;
use rustix::io::Errno;
use tokio::sync::RwLock;

use super::convert::errno;

/// Of one file.
#[derive(Default)]
pub struct Unstable {
    /// Writes share it; while a COMMIT is under way none is, so that what is written again overwrites nothing newer.
    order: RwLock<()>,
    kept: Mutex<Kept>,
}

#[derive(Default)]
struct Kept {
    pieces: Vec<Piece>,
    bytes: usize,
}

struct Piece {
    offset: u64,
    data: Bytes,
    verf: Verifier,
}

impl Unstable {
    /// Writes all of `data`. Once more is kept than the mount's write-behind, all of it is committed.
    ///
    /// # Errors
    /// A WRITE or COMMIT failed.
    pub async fn write(
        &self,
        mount: &Mount,
        file: &Handle,
        offset: u64,
        data: Bytes,
    ) -> std::result::Result<(), Errno> {
        {
            let _shared = self.order.read().await;
            self.send(mount, file, offset, data).await?;
        }
        let full = self.kept.lock().bytes > mount.options().write_behind;
        if full { self.commit(mount, file).await } else { Ok(()) }
    }

    /// Makes all that has been written durable.
    ///
    /// # Errors
    /// A WRITE or COMMIT failed; what was not committed is still kept, for another try.
    pub async fn commit(&self, mount: &Mount, file: &Handle) -> std::result::Result<(), Errno> {
        let _alone = self.order.write().await;
        for _ in 0..RESTARTS_MAX {
            if self.kept.lock().pieces.is_empty() {
                return Ok(());
            }
            let verf = self.commit_once(mount, file).await.map_err(|error| errno(&error))?;
            let Kept { pieces, .. } = std::mem::take(&mut *self.kept.lock());
            if pieces.iter().all(|piece| piece.verf == verf) {
                return Ok(());
            }
            tracing::warn!(
                bytes = pieces.iter().map(|p| p.data.len()).sum::<usize>(),
                "the server restarted: written again"
            );
            let mut again = Again { kept: &self.kept, pieces: pieces.into() };
            while let Some(piece) = again.pieces.front() {
                self.send(mount, file, piece.offset, piece.data.clone()).await?;
                again.pieces.pop_front();
            }
        }
        Err(Errno::IO)
    }

    async fn commit_once(&self, mount: &Mount, file: &Handle) -> Result<Verifier> {
        mount.protocol().commit(file).await
    }

    async fn send(&self, mount: &Mount, file: &Handle, offset: u64, data: Bytes) -> std::result::Result<(), Errno> {
        let mut done = 0;
        while done < data.len() {
            let at = offset + done as u64;
            let part = data.slice(done..data.len().min(done + mount.write_size()));
            let written = mount.protocol().write(file, at, part.clone().into(), StableHow::Unstable).await;
            let written = written.map_err(|error| errno(&error))?;
            let len = (written.count as usize).min(part.len());
            if len == 0 {
                return Err(Errno::IO);
            }
            let mut kept = self.kept.lock();
            // What is durable already need not be kept, unless something older could be written over it again.
            if written.committed == StableHow::Unstable || !kept.pieces.is_empty() {
                kept.push(Piece { offset: at, data: part.slice(..len), verf: written.verf });
            }
            done += len;
        }
        Ok(())
    }
}

/// What has to be written again. What has not been, when this is dropped, is kept for another try: after an error, or because nobody
/// waits any more.
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

/// A server that restarts more often during one fsync than this is not one to wait for.
const RESTARTS_MAX: u32 = 8;
