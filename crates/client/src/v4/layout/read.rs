//! READ from data servers.
//!
//! One mirror is read, and the next one if it fails. The pieces of several stripes are read at the same time.
//!
//! **Buffers.** The data are received into one region, that of the caller if there is one. If they are in several stripes, the region is
//! divided, and each data server places its bytes in its part. The parts return with the READs, also with those that fail, and are joined before
//! another mirror or the metadata server is read. If the caller gives up, the READs that are outstanding keep their parts allocated.
//!
//! **The end of the file** is known to the metadata server only: a data file can be shorter than the file, because bytes that
//! were never written need not exist there (RFC 8435 §6, RFC 8881 §13.4.4). So the end of a data file is compared with the
//! size of the file, and missing bytes before that are zeros.

use std::{ops::Range, sync::Arc};

use buf::Region;
use futures_util::future::join_all;
use nfs::v4::{Layoutiomode4, Opnum4, layout::stripe::Piece};

use super::{
    super::{opens::Opens, protocol::V4},
    held::IoError,
    io::{Direct, TRIES, Target, failure, target},
    report::Counted,
    segment::{DataFile, Mirror},
    usage::Direction,
};
use crate::{
    call::{Deadline, payload},
    model::{Error, ErrorKind, Handle, Operations, ReadData, ReadInfo, Result},
};

/// The data of a READ: the first `len` bytes of a region.
struct Placed {
    info: ReadInfo,
    /// The size of the file, if it is known.
    size: Option<u64>,
}

/// The reason why a mirror, or a piece of it, was not read.
enum Failed<T> {
    /// Its data servers: the reports.
    Servers(T),
    /// The device memory of the caller.
    Memory(Error),
}

impl V4 {
    /// Reads from data servers. Returns `None` if the data must be read through the metadata server.
    pub(in crate::v4) async fn read_directly(
        &self,
        file: &Handle,
        offset: u64,
        count: u32,
    ) -> Option<Result<ReadData>> {
        let mut region = None;
        let read = self.read_layouts(file, offset, count as usize, &mut region).await?;
        Some(read.map(|Placed { info, size }| {
            let mut region = region.expect("a READ must return its region");
            region.set_len(info.len);
            ReadData { data: region.into(), eof: info.eof, size }
        }))
    }

    /// Reads from data servers into a region. Returns the region if the data must be read through the metadata server.
    pub(in crate::v4) async fn read_directly_into(
        &self,
        file: &Handle,
        offset: u64,
        region: Region,
    ) -> std::result::Result<(Result<ReadInfo>, Region), Region> {
        let count = region.len();
        let mut region = Some(region);
        let read = self.read_layouts(file, offset, count, &mut region).await;
        let region = region.expect("a READ must return its region");
        match read {
            Some(read) => Ok((read.map(|placed| placed.info), region)),
            None => Err(region),
        }
    }

    /// Reads by layouts into a region. If there is none, it takes one from the pool, but only if there is a layout. Returns `None` if
    /// the data must be read through the metadata server.
    async fn read_layouts(
        &self,
        file: &Handle,
        offset: u64,
        count: usize,
        region: &mut Option<Region>,
    ) -> Option<Result<Placed>> {
        let range = offset..offset.checked_add(count as u64).filter(|_| count > 0)?;
        for attempt in 0..TRIES {
            let direct = self.direct(file, Layoutiomode4::Read, &range).await?;
            let memory = region.take().unwrap_or_else(|| self.program().pool().take(count).into());
            let (read, memory) = self.read_mirrors(file, &direct, &range, memory).await;
            *region = Some(memory);
            match read {
                Ok(placed) => {
                    self.server.opens.layouts.count_read(true, placed.info.len);
                    return Some(Ok(placed));
                }
                Err(Failed::Memory(error)) => return Some(Err(error)),
                Err(Failed::Servers(errors)) => direct.fail(&self.server.opens, errors, attempt).await,
            }
        }
        None
    }

    /// Reads a range into a region from the first mirror that does not fail.
    async fn read_mirrors(
        &self,
        file: &Handle,
        direct: &Direct,
        range: &Range<u64>,
        mut region: Region,
    ) -> (std::result::Result<Placed, Failed<Vec<IoError>>>, Region) {
        let (opens, segment, deadline) = (&self.server.opens, &direct.layout.segment, self.deadline());
        let mut errors = Vec::new();
        for mirror in segment.order(range.start, |mirror| is_available(opens, mirror)) {
            let read;
            (read, region) = read_mirror((opens, direct), &segment.mirrors[mirror], range, region, &deadline).await;
            match read {
                Ok(read) => {
                    opens.report_errors(&direct.file.0, errors);
                    let placed = self.find_end(file, direct, range, &read, &mut region).await;
                    return (placed, region);
                }
                Err(Failed::Servers(failed)) => errors.extend(failed),
                Err(Failed::Memory(error)) => return (Err(Failed::Memory(error)), region),
            }
        }
        (Err(Failed::Servers(errors)), region)
    }

    /// Finds the end of the file, and fills the region with zeros up to it where data files end before. `read` has the pieces of the
    /// range in order, and what was read of each.
    async fn find_end(
        &self,
        file: &Handle,
        direct: &Direct,
        range: &Range<u64>,
        read: &[(Piece, ReadInfo)],
        region: &mut Region,
    ) -> std::result::Result<Placed, Failed<Vec<IoError>>> {
        let is_whole = |(piece, info): &(Piece, ReadInfo)| info.len as u64 == piece.len;
        let at_end = read.last().is_some_and(|(_, info)| info.eof);
        if read.iter().all(is_whole) && !at_end {
            let known = direct.file.0.layouts.held.lock().size;
            let info = ReadInfo { len: region.len(), eof: false };
            return Ok(Placed { info, size: (known >= range.end).then_some(known) });
        }
        // Without the size, the data are read through the server, which reports its error.
        let size = self.getattr(file).await.map_err(|_| Failed::Servers(Vec::new()))?.size;
        direct.file.0.layouts.held.lock().size = size;
        let end = size.clamp(range.start, range.end);
        for (piece, info) in read {
            let (from, to) = (piece.offset + info.len as u64, end.min(piece.offset + piece.len));
            if from < to {
                let zeros = vec![0; (to - from) as usize];
                let filled = region.copy_in((from - range.start) as usize, &zeros);
                filled.map_err(|error| Failed::Memory(payload::device_error(&error)))?;
            }
        }
        let info = ReadInfo { len: (end - range.start) as usize, eof: size <= range.end };
        Ok(Placed { info, size: Some(size) })
    }
}

/// Reads the pieces of a range from a mirror at the same time, each into its part of the region. Returns the pieces and what was read of each.
async fn read_mirror(
    (opens, direct): (&Arc<Opens>, &Direct),
    mirror: &Mirror,
    range: &Range<u64>,
    region: Region,
    deadline: &Deadline,
) -> (std::result::Result<Vec<(Piece, ReadInfo)>, Failed<Vec<IoError>>>, Region) {
    let pieces: Vec<_> = mirror.pieces(range.clone()).collect();
    let (parts, division) = region.divide(pieces.iter().map(|(piece, _)| piece.len as usize));
    let reads = pieces.into_iter().zip(parts).map(|((piece, data_file), part)| async move {
        let (read, part) = read_piece((opens, direct), data_file, &piece, part, deadline).await;
        (read.map(|info| (piece, info)), part)
    });
    let (results, parts): (Vec<_>, Vec<_>) = join_all(reads).await.into_iter().unzip();
    let (joined, region) = division.join(parts);
    let (mut read, mut errors, mut memory) = (Vec::new(), Vec::new(), None);
    for result in results {
        match result {
            Ok(piece) => read.push(piece),
            Err(Failed::Servers(error)) => errors.push(error),
            Err(Failed::Memory(error)) => memory = Some(error),
        }
    }
    let memory = memory.or_else(|| joined.err().map(|error| payload::device_error(&error)));
    let result = match memory {
        // Without the piece that has failed, nothing was to be copied from the device.
        _ if !errors.is_empty() => Err(Failed::Servers(errors)),
        Some(error) => Err(Failed::Memory(error)),
        None => Ok(read),
    };
    (result, region)
}

/// Reads a piece from its data file. A data server may send less than requested, and is then asked for the rest.
async fn read_piece(
    (opens, direct): (&Arc<Opens>, &Direct),
    data_file: &DataFile,
    piece: &Piece,
    mut region: Region,
    deadline: &Deadline,
) -> (std::result::Result<ReadInfo, Failed<IoError>>, Region) {
    let failed = |error: Error| match error.kind() {
        ErrorKind::Device(_) => Failed::Memory(error),
        _ => Failed::Servers(failure(opens, data_file, Opnum4::Read, piece.offset..piece.offset + piece.len, &error)),
    };
    let target = match target(opens, data_file, &direct.access, deadline).await {
        Ok(target) => target,
        Err(error) => return (Err(failed(error)), region),
    };
    let mut done = ReadInfo { len: 0, eof: false };
    while done.len < region.len() && !done.eof {
        let to = done.len.saturating_add(target.read_max).min(region.len());
        let counted = Counted::new((opens, &direct.file.0), &target.id, Direction::Read, to - done.len);
        let read;
        (read, region) = read_range(&target, piece.data_offset, region, done.len..to).await;
        match read {
            Ok(info) if info.len > 0 || info.eof => {
                counted.done(info.len);
                done = ReadInfo { len: done.len + info.len, eof: info.eof };
            }
            Ok(_) => {
                let problem = "no data, but not the end of the file".to_owned();
                return (Err(failed(Error::new(ErrorKind::Protocol(problem), "READ"))), region);
            }
            Err(error) => return (Err(failed(error)), region),
        }
    }
    (Ok(done), region)
}

/// Reads bytes of a data file into a range of a region. The first byte of the region is that at `data_offset`.
async fn read_range(
    target: &Target,
    data_offset: u64,
    region: Region,
    range: Range<usize>,
) -> (Result<ReadInfo>, Region) {
    let at = data_offset + range.start as u64;
    if range.len() == region.len() {
        return target.server.read_into(&target.handle, at, region).await;
    }
    let behind = region.len() - range.end;
    let (mut parts, division) = region.divide([range.start, range.len(), behind]);
    let part = std::mem::replace(&mut parts[1], buf::Buffer::zeroed(0).into());
    let read;
    (read, parts[1]) = target.server.read_into(&target.handle, at, part).await;
    let (joined, region) = division.join(parts);
    (read.and_then(|info| joined.map(|()| info).map_err(|error| payload::device_error(&error))), region)
}

/// Reports whether no data server of a mirror is known to have failed.
fn is_available(opens: &Opens, mirror: &Mirror) -> bool {
    let is_available = |file: &DataFile| opens.layouts.device(&file.server).is_none_or(|device| device.is_available());
    mirror.files.iter().all(is_available)
}
