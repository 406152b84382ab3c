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
    super::{
        opens::{OpenFile, Opens},
        protocol::V4,
    },
    held::{DataFileId, IoError, Unstable},
    io::{Direct, TRIES, Target, failure, target},
    report::Counted,
    segment::DataFile,
    usage::Direction,
};
use crate::{
    call::Deadline,
    model::{Error, ErrorKind, Handle, Result, StableHow, Verifier, Written},
};

/// Data files with the verifiers that WRITE or COMMIT has returned.
type Verifiers = Vec<(DataFileId, Verifier)>;

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
                held.wrote(end, unstable, segment.needs_commit(), || opens.layouts.change_shown(handle))
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

    /// Takes note of data that have passed through the metadata server. Other data of the file can be at data servers, and all have one
    /// verifier, which the result has.
    pub(in crate::v4) fn wrote_through_server(&self, handle: &Handle, written: Written) -> Written {
        let opens = &self.server.opens;
        if !opens.layouts.is_active() || self.server.moves.any() {
            return written;
        }
        let (is_unstable, of_server) =
            (written.committed == StableHow::Unstable, || opens.layouts.of_server(handle, written.verf));
        let wrote = |file: Arc<OpenFile>| {
            // Locked first: a write to data servers changes what follows from the verifier.
            let mut held = file.layouts.held.lock();
            held.wrote_through_server(of_server(), is_unstable)
        };
        let verf = opens.known(handle).map_or_else(|| of_server().shown, wrote);
        Written { verf, ..written }
    }

    /// Makes all written data durable, at the data servers and at the metadata server.
    ///
    /// # Errors
    /// COMMIT at the metadata server failed.
    pub(in crate::v4) async fn commit_both_ways(&self, handle: &Handle) -> Result<Verifier> {
        let opens = &self.server.opens;
        let known = opens.known(handle);
        let before = known.as_ref().map(|file| file.layouts.held.lock().unstable()).unwrap_or_default();
        if before.is_at_data_servers()
            && let Some(verifier) = self.commit_directly(handle, &before).await
        {
            return Ok(verifier);
        }
        let verifier = self.commit_at_server(handle).await?;
        let of_server = || opens.layouts.of_server(handle, verifier);
        // If data at data servers may be lost, this verifier makes the caller write again.
        let Some(file) = known.filter(|_| !before.is_at_data_servers()) else { return Ok(of_server().shown) };
        let mut held = file.layouts.held.lock();
        let server = of_server();
        Ok(held.committed(&[], Some(server), &before).unwrap_or(server.shown))
    }

    /// Makes data durable of which a part is at data servers. Returns `None` if that part may be lost.
    async fn commit_directly(&self, handle: &Handle, before: &Unstable) -> Option<Verifier> {
        let opens = &self.server.opens;
        let direct = self.direct(handle, Layoutiomode4::Rw, &(0..1)).await?;
        match commit_all(opens, &direct, &before.files, &self.deadline()).await {
            Ok(verifiers) => {
                let server = match before.server {
                    Some(_) => Some(self.commit_at_server(handle).await.ok()?),
                    None => None,
                };
                let verifier = {
                    let mut held = direct.file.0.layouts.held.lock();
                    let server = server.map(|verifier| opens.layouts.of_server(handle, verifier));
                    held.committed(&verifiers, server, before)?
                };
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
) -> std::result::Result<Verifiers, Vec<IoError>> {
    let segment = &direct.layout.segment;
    let mirrors = segment.mirrors[segment.written(range.start)].iter();
    // Collected first: without the number of futures, `join_all` gives each a task of its own.
    let pieces: Vec<_> = mirrors.flat_map(|mirror| mirror.pieces(range.clone())).collect();
    let writes = pieces.into_iter().map(|(piece, data_file)| {
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
) -> std::result::Result<Verifiers, Vec<IoError>> {
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
