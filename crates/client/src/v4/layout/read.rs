//! READ from data servers.
//!
//! One mirror is read, and the next one if it fails. The pieces of several stripes are read at the same time. Data of one stripe
//! are received directly into the caller's region.
//!
//! **The end of the file** is known to the metadata server only: a data file can be shorter than the file, because bytes that
//! were never written need not exist there (RFC 8435 §6, RFC 8881 §13.4.4). So the end of a data file is compared with the
//! size of the file, and missing bytes before that are zeros.

use std::{ops::Range, sync::Arc};

use buf::{Piece as Memory, Region, Rope};
use bytes::Bytes;
use futures_util::future::join_all;
use nfs::v4::{Layoutiomode4, Opnum4};

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

/// The data of one piece.
struct Part {
    range: Range<u64>,
    data: Rope,
    /// Set if the data file ends behind the data.
    eof: bool,
}

impl V4 {
    /// Reads from data servers. Returns `None` if the data must be read through the metadata server.
    pub(in crate::v4) async fn read_directly(&self, file: &Handle, offset: u64, count: u32) -> Option<ReadData> {
        let range = offset..offset.checked_add(count.into()).filter(|_| count > 0)?;
        for attempt in 0..TRIES {
            let direct = self.direct(file, Layoutiomode4::Read, &range).await?;
            match self.read_mirrors(file, &direct, &range).await {
                Ok(data) => {
                    self.server.opens.layouts.count_read(true, data.data.len());
                    return Some(data);
                }
                Err(errors) => direct.fail(&self.server.opens, errors, attempt).await,
            }
        }
        None
    }

    /// Reads from data servers into a region. Returns the region if the data must be read through the metadata server.
    pub(in crate::v4) async fn read_directly_into(
        &self,
        file: &Handle,
        offset: u64,
        mut region: Region,
    ) -> std::result::Result<(Result<ReadInfo>, Region), Region> {
        let count = region.len() as u64;
        let Some(range) = offset.checked_add(count).filter(|_| count > 0).map(|end| offset..end) else {
            return Err(region);
        };
        for attempt in 0..TRIES {
            let Some(direct) = self.direct(file, Layoutiomode4::Read, &range).await else { return Err(region) };
            let placed;
            (placed, region) = self.read_placed(file, &direct, &range, region).await;
            match placed {
                Ok(Some(info)) => {
                    self.server.opens.layouts.count_read(true, info.len);
                    return Ok((Ok(info), region));
                }
                // Several stripes, or the device memory has failed.
                Ok(None) => match self.read_mirrors(file, &direct, &range).await {
                    Ok(read) => {
                        let info = ReadInfo { len: read.data.len(), eof: read.eof };
                        self.server.opens.layouts.count_read(true, info.len);
                        let (copied, region) = payload::place_in_sink(read.data, region.into(), range_len(&range));
                        return Ok((copied.map(|()| info), region));
                    }
                    Err(errors) => direct.fail(&self.server.opens, errors, attempt).await,
                },
                Err(errors) => direct.fail(&self.server.opens, errors, attempt).await,
            }
        }
        Err(region)
    }

    /// Reads a range of one data file into the region. Returns `None` if the range is in several data files, or more than one READ
    /// is needed.
    async fn read_placed(
        &self,
        file: &Handle,
        direct: &Direct,
        range: &Range<u64>,
        mut region: Region,
    ) -> (std::result::Result<Option<ReadInfo>, Vec<IoError>>, Region) {
        let (opens, segment, deadline) = (&self.server.opens, &direct.layout.segment, self.deadline());
        let mut errors = Vec::new();
        for mirror in segment.order(range.start, |mirror| is_available(opens, mirror)) {
            let mut pieces = segment.mirrors[mirror].pieces(range.clone());
            let (Some((piece, data_file)), None) = (pieces.next(), pieces.next()) else { return (Ok(None), region) };
            let failed = |error: &Error| failure(opens, data_file, Opnum4::Read, range.clone(), error);
            let at = match target(opens, data_file, &direct.access, &deadline).await {
                Ok(at) => at,
                Err(error) => {
                    errors.push(failed(&error));
                    continue;
                }
            };
            if piece.len > at.read_max as u64 {
                return (Ok(None), region);
            }
            let counted = Counted::new((opens, &direct.file.0), &at.id, Direction::Read, range_len(range));
            let read;
            (read, region) = at.server.read_into(&at.handle, piece.data_offset, region).await;
            if let Ok(info) = &read {
                counted.done(info.len);
            }
            match read {
                Ok(info) if !info.eof => {
                    opens.report_errors(&direct.file.0, errors);
                    return (Ok(Some(info)), region);
                }
                Ok(info) => match self.fill_to_end(file, range, info.len, &mut region).await {
                    Ok(info) => {
                        opens.report_errors(&direct.file.0, errors);
                        return (Ok(Some(info)), region);
                    }
                    // The request through the server reports the error.
                    Err(_) => return (Ok(None), region),
                },
                Err(error) if matches!(error.kind(), ErrorKind::Device(_)) => return (Ok(None), region),
                Err(error) => errors.push(failed(&error)),
            }
        }
        (Err(errors), region)
    }

    /// Fills the region with zeros from byte `len` up to the end of the file.
    async fn fill_to_end(
        &self,
        file: &Handle,
        range: &Range<u64>,
        len: usize,
        region: &mut Region,
    ) -> Result<ReadInfo> {
        let size = self.getattr(file).await?.size;
        let wanted = (size.min(range.end).saturating_sub(range.start)) as usize;
        if wanted > len {
            let zeros = vec![0; wanted - len];
            region.copy_in(len, &zeros).map_err(|error| payload::device_error(&error))?;
        }
        Ok(ReadInfo { len: wanted, eof: size <= range.end })
    }

    /// Reads a range from the first mirror that does not fail.
    async fn read_mirrors(
        &self,
        file: &Handle,
        direct: &Direct,
        range: &Range<u64>,
    ) -> std::result::Result<ReadData, Vec<IoError>> {
        let (opens, segment, deadline) = (&self.server.opens, &direct.layout.segment, self.deadline());
        let mut errors = Vec::new();
        for mirror in segment.order(range.start, |mirror| is_available(opens, mirror)) {
            let pieces = segment.mirrors[mirror].pieces(range.clone());
            let reads = pieces.map(|(piece, data_file)| read_piece((opens, direct), data_file, piece, &deadline));
            let (mut parts, mut failed) = (Vec::new(), Vec::new());
            for part in join_all(reads).await {
                match part {
                    Ok(part) => parts.push(part),
                    Err(error) => failed.push(error),
                }
            }
            if failed.is_empty() {
                opens.report_errors(&direct.file.0, errors);
                return self.joined(file, direct, range, parts).await;
            }
            errors.extend(failed);
        }
        Err(errors)
    }

    /// Joins the parts of a READ, in order, and finds the end of the file.
    async fn joined(
        &self,
        file: &Handle,
        direct: &Direct,
        range: &Range<u64>,
        parts: Vec<Part>,
    ) -> std::result::Result<ReadData, Vec<IoError>> {
        let is_whole = |part: &Part| part.data.len() == range_len(&part.range);
        let at_end = parts.last().is_some_and(|part| part.eof);
        if parts.iter().all(is_whole) && !at_end {
            let data = parts.into_iter().fold(Rope::new(), |mut data, part| {
                data.append(part.data);
                data
            });
            let known = direct.file.0.layouts.held.lock().size;
            return Ok(ReadData { data, eof: false, size: (known >= range.end).then_some(known) });
        }
        // Without the size, the data are read through the server, which reports its error.
        let size = self.getattr(file).await.map_err(|_| Vec::new())?.size;
        direct.file.0.layouts.held.lock().size = size;
        let end = size.min(range.end);
        let mut data = Rope::new();
        for part in parts {
            let wanted = end.saturating_sub(part.range.start).min(part.range.end - part.range.start) as usize;
            let received = part.data.len().min(wanted);
            data.append(part.data.slice(0, received));
            if wanted > received {
                data.push(Memory::Memory(Bytes::from(vec![0; wanted - received])));
            }
        }
        Ok(ReadData { data, eof: size <= range.end, size: Some(size) })
    }
}

/// Reads a piece from its data file. A data server may send less than requested, and is then asked for the rest.
async fn read_piece(
    (opens, direct): (&Arc<Opens>, &Direct),
    data_file: &DataFile,
    piece: nfs::v4::layout::stripe::Piece,
    deadline: &Deadline,
) -> std::result::Result<Part, IoError> {
    let range = piece.offset..piece.offset + piece.len;
    let read = async {
        let Target { server, read_max, handle, id, .. } = target(opens, data_file, &direct.access, deadline).await?;
        let (mut data, mut eof) = (Rope::new(), false);
        while (data.len() as u64) < piece.len && !eof {
            let count = (piece.len - data.len() as u64).min(read_max as u64);
            let at = piece.data_offset + data.len() as u64;
            let counted = Counted::new((opens, &direct.file.0), &id, Direction::Read, count as usize);
            let read = server.read(&handle, at, count as u32).await?;
            counted.done(read.data.len());
            if read.data.is_empty() && !read.eof {
                let problem = "no data, but not the end of the file".to_owned();
                return Err(Error::new(ErrorKind::Protocol(problem), "READ"));
            }
            eof = read.eof;
            data.append(read.data);
        }
        Ok(Part { range: range.clone(), data, eof })
    };
    read.await.map_err(|error| failure(opens, data_file, Opnum4::Read, range.clone(), &error))
}

/// Reports whether no data server of a mirror is known to have failed.
fn is_available(opens: &Opens, mirror: &Mirror) -> bool {
    let is_available = |file: &DataFile| opens.layouts.device(&file.server).is_none_or(|device| device.is_available());
    mirror.files.iter().all(is_available)
}

fn range_len(range: &Range<u64>) -> usize {
    (range.end - range.start) as usize
}
