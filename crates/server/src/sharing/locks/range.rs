//! [`Range`]: bytes of a file; [`Ranges`]: what one owner has locked of one file.

use smallvec::SmallVec;

/// Whether others may lock the same bytes, shared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LockKind {
    /// A read lock: others may have it, too.
    Shared,
    /// A write lock: nobody else has any.
    Exclusive,
}

impl LockKind {
    /// Whether two owners cannot have these on the same byte.
    pub fn conflicts(self, other: LockKind) -> bool {
        self == LockKind::Exclusive || other == LockKind::Exclusive
    }
}

/// Bytes of a file, at least one; those up to the last possible one are "to the end, wherever that will be".
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Range {
    first: u64,
    last: u64,
}

impl Range {
    /// `length` bytes from `first`. `None` if there are none, or they lie beyond 64 bits.
    pub fn new(first: u64, length: u64) -> Option<Self> {
        let last = first.checked_add(length.checked_sub(1)?)?;
        Some(Self { first, last })
    }

    /// All from `first` to the end.
    pub fn to_end(first: u64) -> Self {
        Self { first, last: u64::MAX }
    }

    /// The first byte.
    pub fn first(self) -> u64 {
        self.first
    }

    /// The number of bytes; `None` if it goes to the end.
    pub fn length(self) -> Option<u64> {
        (self.last != u64::MAX).then(|| self.last - self.first + 1)
    }

    /// Whether they have a byte in common.
    pub fn overlaps(self, other: Range) -> bool {
        self.first <= other.last && other.first <= self.last
    }
}

/// What one owner has locked of one file: ranges in order that neither overlap nor, being of one kind, touch.
#[derive(Clone, Debug, Default)]
pub(super) struct Ranges(SmallVec<[(Range, LockKind); 1]>);

impl Ranges {
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (Range, LockKind)> {
        self.0.iter().copied()
    }

    /// The first that keeps another owner from locking `range`.
    pub(super) fn conflict(&self, range: Range, kind: LockKind) -> Option<(Range, LockKind)> {
        let mut overlapping = self.0[self.at(range.first)..].iter().take_while(|(held, _)| held.first <= range.last);
        overlapping.find(|(_, held)| held.conflicts(kind)).copied()
    }

    /// How many more there would be after [`set`](Self::set), at most.
    pub(super) fn growth(&self, range: Range, to: Option<LockKind>) -> usize {
        let around = self.0.get(self.at(range.first));
        let splits = around.is_some_and(|(held, _)| held.first < range.first && held.last > range.last);
        usize::from(splits) + usize::from(to.is_some())
    }

    /// Makes `range` locked as `to` says, or not at all: whatever it was before.
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
        // Neighbours that may now touch one of the same kind.
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

    /// The place of the first range that ends at `byte` or later.
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
    fn a_range_has_a_byte_and_an_end() {
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
        assert_eq!(held(&ranges), [(10, Some(15), Shared)], "what touches is one");
        ranges.set(range(12, 2), Some(Exclusive));
        assert_eq!(held(&ranges), [(10, Some(2), Shared), (12, Some(2), Exclusive), (14, Some(11), Shared)]);
        ranges.set(range(12, 2), Some(Shared));
        assert_eq!(held(&ranges), [(10, Some(15), Shared)], "a downgrade makes it one again");
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
    fn growth_is_never_less_than_what_happens() {
        let mut ranges = Ranges::default();
        ranges.set(range(0, 100), Some(Shared));
        for (range, to) in [(range(50, 1), None), (range(10, 5), Some(Exclusive)), (range(0, 3), Some(Shared))] {
            let (before, growth) = (ranges.len(), ranges.growth(range, to));
            ranges.set(range, to);
            assert!(ranges.len() <= before + growth);
        }
    }
}
