//! WRITE and COMMIT to data servers.
//!
//! Read RFC 8435 §8.2 first. A write is acknowledged when all mirrors have it. Unstable data are made durable by COMMIT at each data
//! server, and then LAYOUTCOMMIT tells the metadata server. A synchronous write does both before it is acknowledged.
//!
//! The caller keeps its data until COMMIT returns the verifier of their WRITE. If a data server or the layout is lost, it gets
//! another verifier and writes them again.

use std::{ops::Range, sync::Arc};

use buf::Rope;
use futures_util::future::join_all;
use nfs::v4::{Layoutiomode4, Opnum4, layout::stripe::Piece};

use super::{
    super::{opens::Opens, protocol::V4},
    held::{DataFileId, IoError},
    io::{Direct, TRIES, Target, failure, target},
    report::Counted,
    segment::DataFile,
    usage::Direction,
};
use crate::{
    call::Deadline,
    model::{Error, ErrorKind, Handle, Result, StableHow, Verifier, Written},
};

/// The data files that a WRITE has reached and that have not made it durable, with their verifiers.
type Unstable = Vec<(DataFileId, Verifier)>;

impl V4 {
    /// Writes to data servers. Returns `None` if the data must be written through the metadata server.
    pub(in crate::v4) async fn write_directly(
        &self,
        handle: &Handle,
        offset: u64,
        data: &Rope,
        stable: StableHow,
    ) -> Option<Written> {
        let end = offset.checked_add(data.len() as u64).filter(|_| !data.is_empty())?;
        let (range, opens) = (offset..end, &self.server.opens);
        for attempt in 0..TRIES {
            let direct = self.direct(handle, Layoutiomode4::Rw, &range).await?;
            let writing = direct.file.0.writing(opens, end);
            let unstable = match write_mirrors(opens, &direct, &range, data, stable, &self.deadline()).await {
                Ok(unstable) => unstable,
                Err(errors) => {
                    direct.fail(opens, errors, attempt).await;
                    continue;
                }
            };
            let segment = &direct.layout.segment;
            let verf = {
                let mut held = direct.file.0.layouts.held.lock();
                if !held.holds(segment) {
                    // The layout was lost meanwhile, and other clients may write now.
                    continue;
                }
                held.wrote(end, unstable, segment.needs_commit())
            };
            if stable != StableHow::Unstable && opens.commit_layout(&direct.file.0, &self.deadline()).await.is_err() {
                continue;
            }
            writing.done();
            opens.layouts.count_write(true, data.len());
            return Some(Written { count: data.len() as u32, committed: stable, verf });
        }
        None
    }

    /// Makes all data durable that were written to data servers. Returns `None` if there are none.
    pub(in crate::v4) async fn commit_directly(&self, handle: &Handle) -> Option<Verifier> {
        let opens = &self.server.opens;
        if !opens.layouts.is_active() || self.server.moves.any() {
            return None;
        }
        let known = opens.known(handle)?;
        let unstable = {
            let held = known.layouts.held.lock();
            let unstable = held.unstable();
            if unstable.is_empty() && held.uncommitted().is_none() {
                return None;
            }
            unstable
        };
        let direct = self.direct(handle, Layoutiomode4::Rw, &(0..1)).await?;
        match commit_all(opens, &direct, &unstable, &self.deadline()).await {
            Ok(verifiers) => {
                let verifier = direct.file.0.layouts.held.lock().committed(&verifiers, &unstable)?;
                // If this fails, the layout is lost, and the verifier of the server makes the caller write again.
                opens.commit_layout(&direct.file.0, &self.deadline()).await.ok()?;
                Some(verifier)
            }
            Err(errors) => {
                direct.fail(opens, errors, 0).await;
                None
            }
        }
    }
}

/// Writes to all mirrors at the same time.
///
/// # Errors
/// All errors, after all data servers have answered (RFC 8435 §8.2.2).
async fn write_mirrors(
    opens: &Arc<Opens>,
    direct: &Direct,
    range: &Range<u64>,
    data: &Rope,
    stable: StableHow,
    deadline: &Deadline,
) -> std::result::Result<Unstable, Vec<IoError>> {
    let segment = &direct.layout.segment;
    let best = segment.order(range.start, |_| true)[0];
    let mirrors = segment.mirrors[segment.written(best)].iter();
    let writes = mirrors.flat_map(|mirror| mirror.pieces(range.clone())).map(|(piece, data_file)| {
        let data = data.slice((piece.offset - range.start) as usize, piece.len as usize);
        write_piece((opens, direct), data_file, piece, data, stable, deadline)
    });
    let (mut unstable, mut errors) = (Vec::new(), Vec::new());
    for written in join_all(writes).await {
        match written {
            Ok(verifier) => unstable.extend(verifier),
            Err(error) => errors.push(error),
        }
    }
    if errors.is_empty() { Ok(unstable) } else { Err(errors) }
}

/// Writes a piece to its data file. Returns its verifier if the data are not durable.
async fn write_piece(
    (opens, direct): (&Arc<Opens>, &Direct),
    data_file: &DataFile,
    piece: Piece,
    data: Rope,
    stable: StableHow,
    deadline: &Deadline,
) -> std::result::Result<Option<(DataFileId, Verifier)>, IoError> {
    let range = piece.offset..piece.offset + piece.len;
    let write = async {
        let Target { server, write_max, handle, id, .. } = target(opens, data_file, &direct.access, deadline).await?;
        // LAYOUTCOMMIT follows. A data server of a files layout can leave the metadata to it.
        let needed = if data_file.user.is_none() { stable.min(StableHow::DataSync) } else { stable };
        let (mut at, mut verifier) = (0, None);
        while at < data.len() {
            let part = data.slice(at, (data.len() - at).min(write_max));
            let len = part.len();
            let counted = Counted::new((opens, &direct.file.0), &id, Direction::Write, len);
            let written = server.write(&handle, piece.data_offset + at as u64, part, stable).await?;
            let count = written.count as usize;
            counted.done(count);
            if count == 0 || count > len || written.committed < needed {
                let problem = format!("{count} of {len} bytes were written, or less durably than requested");
                return Err(Error::new(ErrorKind::Protocol(problem), "WRITE"));
            }
            if written.committed == StableHow::Unstable {
                // If the data server restarts during this loop, the first verifier differs from that of COMMIT.
                verifier.get_or_insert(written.verf);
            }
            at += count;
        }
        Ok(verifier.map(|verifier| (id, verifier)))
    };
    let written: Result<_> = write.await;
    written.map_err(|error| failure(opens, data_file, Opnum4::Write, range, &error))
}

/// Sends COMMIT to the data servers with these data files.
///
/// # Errors
/// All errors. The data of these mirrors may be lost.
async fn commit_all(
    opens: &Arc<Opens>,
    direct: &Direct,
    unstable: &[(DataFileId, u64)],
    deadline: &Deadline,
) -> std::result::Result<Unstable, Vec<IoError>> {
    let files = direct.layout.segment.mirrors.iter().flat_map(|mirror| &mirror.files);
    let files =
        files.filter(|file| unstable.iter().any(|((server, handle), _)| *server == file.server && file.has(handle)));
    let commits = files.map(|data_file| async move {
        let commit = async {
            let Target { server, handle, id, .. } = target(opens, data_file, &direct.access, deadline).await?;
            let counted = Counted::new((opens, &direct.file.0), &id, Direction::Write, 0);
            let verifier = server.commit(&handle).await?;
            counted.done(0);
            Ok((id, verifier))
        };
        let committed: Result<_> = commit.await;
        committed.map_err(|error| failure(opens, data_file, Opnum4::Commit, 0..u64::MAX, &error))
    });
    let (mut verifiers, mut errors) = (Vec::new(), Vec::new());
    for committed in join_all(commits).await {
        match committed {
            Ok(verifier) => verifiers.push(verifier),
            Err(error) => errors.push(error),
        }
    }
    if errors.is_empty() { Ok(verifiers) } else { Err(errors) }
}
