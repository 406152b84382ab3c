//! The data of a READ's reply: in the caller's region, or piece by piece as it was received.

use std::io;

use buf::{Region, Rope, SharedRegion};
use bytes::Bytes;
use smallvec::SmallVec;

use crate::model::{Error, ErrorKind, Result};

/// Data as they were received: mostly one piece.
pub(crate) type Pieces = SmallVec<[Bytes; 1]>;

/// The data of a READ piece by piece, as it was received.
pub(crate) fn pieces(data: Rope) -> Result<Pieces> {
    let pieces = data.into_iter().map(|piece| piece.into_memory().map_err(|_| unreadable("READ")));
    pieces.collect()
}

/// The sink with the data in its first bytes, wherever the transport has put them: what it could not place is copied. The error
/// is that of a device.
pub(crate) fn settle(data: Rope, sink: SharedRegion, wanted: usize) -> (Result<()>, Region) {
    let is_placed = data.is_empty() || sink.holds(&data);
    if is_placed {
        drop(data);
        return (Ok(()), reclaim(sink, wanted));
    }
    let mut region = reclaim(sink, wanted);
    let copied = copy(data, &mut region).map_err(|error| inaccessible(&error));
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

/// The error of a region of a device that fails.
pub(crate) fn inaccessible(error: &io::Error) -> Error {
    Error::new(ErrorKind::Device(error.to_string()), "READ")
}

/// The caller's region, as long as it was.
pub(crate) fn reclaim(sink: SharedRegion, wanted: usize) -> Region {
    // If the transport holds on to it for another moment, its bytes are worth a copy.
    let mut region = sink.into_region_or_copy();
    region.set_len(wanted);
    region
}

pub(crate) fn unreadable(operation: &'static str) -> Error {
    Error::new(ErrorKind::Protocol("its data cannot be read".to_owned()), operation)
}
