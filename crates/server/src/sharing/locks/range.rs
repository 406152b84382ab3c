//! [`Range`]: a range of bytes in a file. [`Ranges`]: the ranges of one file that one owner has locked.

use smallvec::SmallVec;

/// The kind of a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LockKind {
    /// A read lock: others may hold read locks on the same bytes.
    Shared,
    /// A write lock: nobody else may hold a lock on the same bytes.
    Exclusive,
}

impl LockKind {
    /// Returns `true` if two owners cannot hold these locks on the same byte.
    pub fn conflicts(self, other: LockKind) -> bool {
        self == LockKind::Exclusive || other == LockKind::Exclusive
    }
}

/// A range of at least one byte in a file. A range that includes byte `u64::MAX` extends to the end of the file,
/// wherever that is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Range {
    first: u64,
    last: u64,
}

impl Range {
    /// Creates a range of `length` bytes from `first`. Returns `None` if `length` is 0, or if the range extends beyond
    /// 64 bits.
    pub fn new(first: u64, length: u64) -> Option<Self> {
        let last = first.checked_add(length.checked_sub(1)?)?;
        Some(Self { first, last })
    }

    /// Creates a range from `first` to the end of the file.
    pub fn to_end(first: u64) -> Self {
        Self { first, last: u64::MAX }
    }

    /// Returns the offset of the first byte.
    pub fn first(self) -> u64 {
        self.first
    }

    /// Returns the number of bytes; `None` if the range extends to the end of the file.
    pub fn length(self) -> Option<u64> {
        (self.last != u64::MAX).then(|| self.last - self.first + 1)
    }

    /// Returns `true` if the ranges have a byte in common.
    pub fn overlaps(self, other: Range) -> bool {
        self.first <= other.last && other.first <= self.last
    }
}

/// The ranges of one file that one owner has locked, in order. They do not overlap, and ranges of the same kind are not
/// adjacent.
#[derive(Clone, Debug, Default)]
pub(super) struct Ranges(SmallVec<[(Range, LockKind); 1]>);

impl Ranges {
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (Range, LockKind)> {
        self.0.iter().copied()
    }

    /// Returns the first range that conflicts with another owner's lock on `range`.
    pub(super) fn conflict(&self, range: Range, kind: LockKind) -> Option<(Range, LockKind)> {
        let mut overlapping = self.0[self.at(range.first)..].iter().take_while(|(held, _)| held.first <= range.last);
        overlapping.find(|(_, held)| held.conflicts(kind)).copied()
    }

    /// Returns an upper bound of the number of ranges that [`set`](Self::set) would add.
    pub(super) fn growth(&self, range: Range, to: Option<LockKind>) -> usize {
        let around = self.0.get(self.at(range.first));
        let splits = around.is_some_and(|(held, _)| held.first < range.first && held.last > range.last);
        usize::from(splits) + usize::from(to.is_some())
    }

    /// Sets the lock on `range`: `to` is the new kind, or `None` to unlock it. Replaces all previous locks in the
    /// range.
    pub(super) fn set(&mut self, range: Range, to: Option<LockKind>) {
        let begin = self.at(range.first);
        let end = begin + self.0[begin..].iter().take_while(|(held, _)| held.first <= range.last).count();
        let mut pieces = SmallVec::<[(Range, LockKind); 3]>::new();
        if let Some(&(held, kind)) = self.0[begin..end].first()
            && held.first < range.first
        {
            pieces.push((Range { last: range.first - 1, ..held }, kind));
        }
        pieces.extend(to.map(|kind| (range, kind)));
        if let Some(&(held, kind)) = self.0[begin..end].last()
            && held.last > range.last
        {
            pieces.push((Range { first: range.last + 1, ..held }, kind));
        }
        // Include the neighbours, which may now be adjacent to a range of the same kind.
        let begin_with = begin.saturating_sub(1);
        let end_with = (end + 1).min(self.0.len());
        let before = self.0[begin_with..begin].iter().copied();
        let after = self.0[end..end_with].iter().copied();
        let mut merged = SmallVec::<[(Range, LockKind); 5]>::new();
        for (piece, kind) in before.chain(pieces).chain(after).collect::<SmallVec<[_; 5]>>() {
            match merged.last_mut() {
                Some((held, like)) if *like == kind && held.last + 1 == piece.first => held.last = piece.last,
                _ => merged.push((piece, kind)),
            }
        }
        self.0.drain(begin_with..end_with);
        self.0.insert_many(begin_with, merged);
    }

    /// Returns the index of the first range that ends at `byte` or later.
    fn at(&self, byte: u64) -> usize {
        self.0.partition_point(|(held, _)| held.last < byte)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use LockKind::{Exclusive, Shared};

    fn range(first: u64, length: u64) -> Range {
        Range::new(first, length).unwrap()
    }

    fn held(ranges: &Ranges) -> Vec<(u64, Option<u64>, LockKind)> {
        ranges.0.iter().map(|(range, kind)| (range.first(), range.length(), *kind)).collect()
    }

    #[test]
    fn range_is_not_empty_and_can_extend_to_the_end() {
        assert_eq!(Range::new(5, 0), None);
        assert_eq!(Range::new(u64::MAX, 2), None);
        assert_eq!(Range::new(0, u64::MAX).unwrap().length(), Some(u64::MAX));
        assert_eq!(Range::new(1, u64::MAX), Some(Range::to_end(1)));
        assert!(range(5, 1).overlaps(Range::to_end(5)) && !range(4, 1).overlaps(Range::to_end(5)));
    }

    #[test]
    fn ranges_split_merge_upgrade_and_downgrade() {
        let mut ranges = Ranges::default();
        ranges.set(range(10, 10), Some(Shared));
        ranges.set(range(20, 5), Some(Shared));
        assert_eq!(held(&ranges), [(10, Some(15), Shared)], "adjacent ranges must be merged");
        ranges.set(range(12, 2), Some(Exclusive));
        assert_eq!(held(&ranges), [(10, Some(2), Shared), (12, Some(2), Exclusive), (14, Some(11), Shared)]);
        ranges.set(range(12, 2), Some(Shared));
        assert_eq!(held(&ranges), [(10, Some(15), Shared)], "a downgrade must merge the ranges again");
        ranges.set(range(15, 3), None);
        assert_eq!(held(&ranges), [(10, Some(5), Shared), (18, Some(7), Shared)]);
        ranges.set(Range::to_end(0), Some(Exclusive));
        assert_eq!(held(&ranges), [(0, None, Exclusive)]);
        ranges.set(range(0, 1), None);
        ranges.set(range(u64::MAX, 1), None);
        assert_eq!(held(&ranges), [(1, Some(u64::MAX - 1), Exclusive)]);
        ranges.set(Range::to_end(0), None);
        assert_eq!(ranges.len(), 0);
    }

    #[test]
    fn growth_is_an_upper_bound() {
        let mut ranges = Ranges::default();
        ranges.set(range(0, 100), Some(Shared));
        for (range, to) in [(range(50, 1), None), (range(10, 5), Some(Exclusive)), (range(0, 3), Some(Shared))] {
            let (before, growth) = (ranges.len(), ranges.growth(range, to));
            ranges.set(range, to);
            assert!(ranges.len() <= before + growth);
        }
    }
}
