//! Limits of READ, WRITE and COMMIT in every version of NFS: the maximum bytes of one operation, and the range of a
//! file.
//!
//! Offsets have 64 bits on the wire and 63 bits in the file system. No file has an offset that needs the 64th bit.

use std::borrow::Cow;

use buf::Rope;

use super::{context::TransportLimits, object::Object};

/// The largest offset that back ends support.
pub(crate) const OFFSET_MAX: u64 = i64::MAX as u64;

/// Returns the maximum bytes of data in one READ or WRITE: 1 MiB, or as much as fits into a message of the transport
/// beside its headers.
pub(crate) fn transfer_max(transport: &TransportLimits) -> u32 {
    let room = transport.message_max.saturating_sub(HEADERS_MAX).min(TRANSFER_MAX);
    (if room >= PAGE { room / PAGE * PAGE } else { room.max(MINIMUM) }) as u32
}

/// Returns the maximum bytes of a directory listing in one reply.
pub(crate) fn directory_max(transport: &TransportLimits) -> u32 {
    transfer_max(transport).min(DIRECTORY_MAX)
}

/// Returns the offset and the number of bytes that a READ returns. It is less than the client asked for if that exceeds
/// one reply (RFC 1813 §3.3.6, RFC 8881 §18.22.3).
pub(crate) fn read_range(transport: &TransportLimits, offset: u64, count: u32) -> (u64, usize) {
    let offset = offset.min(OFFSET_MAX);
    let count = count.min(transfer_max(transport));
    (offset, u64::from(count).min(OFFSET_MAX - offset) as usize)
}

/// Returns the part of `data` that a WRITE writes: its first bytes if it is too long for one WRITE, which the reply
/// reports (RFC 1813 §3.3.7, RFC 8881 §18.32.3). Returns `None` if the part extends beyond the maximum file size of the
/// file system.
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

/// Returns the offset and the number of bytes that a COMMIT makes durable; 0 bytes mean all bytes from the offset on.
/// If the range is beyond the end of every file, this is the whole file, which is always correct.
pub(crate) fn commit_range(offset: u64, count: u32) -> (u64, u64) {
    match offset.checked_add(count.into()) {
        Some(end) if end <= OFFSET_MAX => (offset, count.into()),
        _ => (0, 0),
    }
}

const TRANSFER_MAX: usize = 1 << 20;
const DIRECTORY_MAX: u32 = 256 << 10;
/// An upper bound of the RPC header with the longest credentials, and of the other fields of a WRITE call or READ
/// reply.
const HEADERS_MAX: usize = 1024;
const PAGE: usize = 4096;
const MINIMUM: usize = 512;

#[cfg(test)]
mod tests {
    use super::*;

    fn limits(message_max: usize) -> TransportLimits {
        TransportLimits { name: "any", message_max, file_ranges: false, lossy: false, tls: Default::default() }
    }

    #[test]
    fn transfers_fit_into_a_message() {
        let max = |message_max| transfer_max(&limits(message_max));
        assert_eq!(max(usize::MAX), 1 << 20);
        assert_eq!(max((1 << 20) + 4096), 1 << 20);
        assert_eq!(max(1 << 20), (1 << 20) - 4096);
        assert_eq!(max(65507), 15 * 4096);
        assert_eq!(max(4096), 3072);
        assert_eq!(max(0), 512);
    }

    #[test]
    fn ranges_are_clamped_to_file_offsets() {
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
