//! The data of a reply to READ: in the caller's region, or as the pieces in which they were received.

use std::io;

use buf::{Region, Rope, SharedRegion};
use bytes::Bytes;
use smallvec::SmallVec;

use crate::model::{Error, ErrorKind, Result};

/// Data in the pieces in which they were received, which is usually one piece.
pub(crate) type Pieces = SmallVec<[Bytes; 1]>;

/// Returns the data of a READ as the pieces in which they were received.
pub(crate) fn pieces(data: Rope) -> Result<Pieces> {
    let pieces = data.into_iter().map(|piece| piece.into_memory().map_err(|_| unreadable("READ")));
    pieces.collect()
}

/// Returns the sink with the data in its first bytes. Data that the transport has not placed in the sink are copied
/// into it. The error is that of a device which fails to copy.
pub(crate) fn place_in_sink(data: Rope, sink: SharedRegion, wanted: usize) -> (Result<()>, Region) {
    let is_placed = data.is_empty() || sink.holds(&data);
    if is_placed {
        drop(data);
        return (Ok(()), into_region(sink, wanted));
    }
    let mut region = into_region(sink, wanted);
    let copied = copy(data, &mut region).map_err(|error| device_error(&error));
    (copied, region)
}

fn copy(data: Rope, region: &mut Region) -> io::Result<()> {
    let mut at = 0;
    for piece in data {
        let bytes = piece.into_memory()?;
        region.copy_in(at, &bytes)?;
        at += bytes.len();
    }
    Ok(())
}

/// Returns the error of a READ into device memory that fails.
pub(crate) fn device_error(error: &io::Error) -> Error {
    Error::new(ErrorKind::Device(error.to_string()), "READ")
}

/// Returns the caller's region with its original length of `wanted` bytes.
pub(crate) fn into_region(sink: SharedRegion, wanted: usize) -> Region {
    // If the transport still holds the region for a moment, copy its bytes instead of waiting.
    let mut region = sink.into_region_or_copy();
    region.set_len(wanted);
    region
}

pub(crate) fn unreadable(operation: &'static str) -> Error {
    Error::new(ErrorKind::Protocol("its data cannot be read".to_owned()), operation)
}
