//! [`LockRange`], and lists of the ranges that an owner has locked.

/// A range of bytes to lock, or a locked one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LockRange {
    /// The first byte.
    pub offset: u64,
    /// The number of bytes; [`u64::MAX`] means up to the end of the file, wherever that is.
    pub length: u64,
    /// Set if the lock is exclusive; otherwise it is shared.
    pub exclusive: bool,
}

/// Removes bytes from ranges: (offset, length, whether the lock is exclusive).
pub(crate) fn cut(ranges: &mut Vec<(u64, u64, bool)>, offset: u64, length: u64) {
    let end = offset.saturating_add(length);
    let mut left = Vec::new();
    for (at, len, exclusive) in ranges.drain(..) {
        let stop = at.saturating_add(len);
        if at < offset.min(stop) {
            left.push((at, offset.min(stop) - at, exclusive));
        }
        if stop > end.max(at) {
            let from = end.max(at);
            // A range up to the end of the file remains one.
            left.push((from, if stop == u64::MAX { u64::MAX } else { stop - from }, exclusive));
        }
    }
    *ranges = left;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cut_removes_unlocked_bytes_from_ranges() {
        let after = |offset, length| {
            let mut ranges = vec![(10, 10, true), (100, u64::MAX, false)];
            cut(&mut ranges, offset, length);
            ranges
        };
        assert_eq!(after(0, 10), [(10, 10, true), (100, u64::MAX, false)]);
        assert_eq!(after(12, 3), [(10, 2, true), (15, 5, true), (100, u64::MAX, false)]);
        assert_eq!(after(0, u64::MAX), []);
        assert_eq!(after(15, 100), [(10, 5, true), (115, u64::MAX, false)]);
    }
}
