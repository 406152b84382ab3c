//! Limits of READ, WRITE and COMMIT in every version of NFS: most bytes in one operation, and the range of a file.
//!
//! Offsets have 64 bits on the wire and 63 in the file system. No file reaches an offset that needs the 64th.

use std::borrow::Cow;

use buf::Rope;

use super::{context::TransportLimits, object::Object};

/// The largest offset that the file systems below can name.
pub(crate) const OFFSET_MAX: u64 = i64::MAX as u64;

/// Most bytes of data in one READ or WRITE: 1 MiB, or what fits a message of the transport beside its headers.
pub(crate) fn transfer_max(transport: &TransportLimits) -> u32 {
    let room = transport.message_max.saturating_sub(HEADERS_MAX).min(TRANSFER_MAX);
    (if room >= PAGE { room / PAGE * PAGE } else { room.max(MINIMUM) }) as u32
}

/// Most bytes of a directory in one reply.
pub(crate) fn directory_max(transport: &TransportLimits) -> u32 {
    transfer_max(transport).min(DIRECTORY_MAX)
}

/// Offset and bytes of what a READ is answered with: fewer than it asks for if those are too many for one reply (RFC 1813
/// §3.3.6, RFC 8881 §18.22.3).
pub(crate) fn read_range(transport: &TransportLimits, offset: u64, count: u32) -> (u64, usize) {
    let offset = offset.min(OFFSET_MAX);
    let count = count.min(transfer_max(transport));
    (offset, u64::from(count).min(OFFSET_MAX - offset) as usize)
}

/// What a WRITE writes of its data: the first bytes, if all are too many, which it says (RFC 1813 §3.3.7, RFC 8881
/// §18.32.3). `None` if no file of this file system can be that large.
pub(crate) fn write_part<'a>(
    transport: &TransportLimits,
    file: &Object<'_>,
    offset: u64,
    data: &'a Rope,
) -> Option<Cow<'a, Rope>> {
    let max = transfer_max(transport) as usize;
    let part = if data.len() > max { Cow::Owned(data.slice(0, max)) } else { Cow::Borrowed(data) };
    let end = offset.checked_add(part.len() as u64)?;
    (end <= file.vfs().caps().file_size_max.min(OFFSET_MAX)).then_some(part)
}

/// Offset and bytes of what a COMMIT is about; 0 bytes are all from there on. Of a range that no file has it is the whole
/// file, which is always right.
pub(crate) fn commit_range(offset: u64, count: u32) -> (u64, u64) {
    match offset.checked_add(count.into()) {
        Some(end) if end <= OFFSET_MAX => (offset, count.into()),
        _ => (0, 0),
    }
}

const TRANSFER_MAX: usize = 1 << 20;
const DIRECTORY_MAX: u32 = 256 << 10;
/// More than the RPC header with the longest credentials and what else is in a WRITE call or READ reply.
const HEADERS_MAX: usize = 1024;
const PAGE: usize = 4096;
const MINIMUM: usize = 512;

#[cfg(test)]
mod tests {
    use super::*;

    fn limits(message_max: usize) -> TransportLimits {
        TransportLimits { name: "any", message_max, file_ranges: false, lossy: false }
    }

    #[test]
    fn transfers_fit_their_transport() {
        let max = |message_max| transfer_max(&limits(message_max));
        assert_eq!(max(usize::MAX), 1 << 20);
        assert_eq!(max((1 << 20) + 4096), 1 << 20);
        assert_eq!(max(1 << 20), (1 << 20) - 4096);
        assert_eq!(max(65507), 15 * 4096);
        assert_eq!(max(4096), 3072);
        assert_eq!(max(0), 512);
    }

    #[test]
    fn ranges_end_where_files_do() {
        let read = |offset, count| read_range(&limits(1 << 20), offset, count);
        assert_eq!(read(7, 100), (7, 100));
        assert_eq!(read(0, u32::MAX), (0, (1 << 20) - 4096));
        assert_eq!(read(OFFSET_MAX - 1, 100), (OFFSET_MAX - 1, 1));
        assert_eq!(read(u64::MAX, 100), (OFFSET_MAX, 0));
        assert_eq!(commit_range(7, 100), (7, 100));
        assert_eq!(commit_range(OFFSET_MAX, 1), (0, 0));
        assert_eq!(commit_range(u64::MAX, 1), (0, 0));
    }
}
