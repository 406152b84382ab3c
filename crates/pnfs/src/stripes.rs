//! [`Stripes`]: which bytes of a file are in which stripe (RFC 8435 §6).
//!
//! A file is divided into units, which belong to its stripes in turn. Each stripe of a copy is one object. Flexible files have
//! only sparse packing: a byte has the same offset in its object as in the file, and an object has holes where other stripes
//! have their bytes.

use std::ops::Range;

use crate::record::ServerId;

/// The distribution of a file over stripes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stripes {
    unit: u64,
    count: usize,
}

/// A range of a file that is in one stripe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// The stripe.
    pub stripe: usize,
    /// The range, which is not empty.
    pub range: Range<u64>,
}

/// A byte behind the end of an object, and the stripe of the object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct End {
    /// The stripe.
    pub stripe: usize,
    /// The offset, which no byte of this stripe has.
    pub offset: u64,
}

/// Maximum number of stripes of a file.
pub const STRIPES_MAX: usize = 16;

impl Stripes {
    /// The whole file in one stripe.
    pub const ONE: Self = Self { unit: u64::MAX, count: 1 };

    /// Distributes units of `unit` bytes over `count` stripes. Returns `None` if `unit` is 0, or if `count` is not from 1 to
    /// [`STRIPES_MAX`].
    pub fn new(unit: u64, count: usize) -> Option<Self> {
        match count {
            1 if unit > 0 => Some(Self::ONE),
            2..=STRIPES_MAX if unit > 0 => Some(Self { unit, count }),
            _ => None,
        }
    }

    /// Returns the number of stripes.
    pub fn count(self) -> usize {
        self.count
    }

    /// Returns the number of bytes of a unit, or 0 if there is one stripe.
    pub fn unit(self) -> u64 {
        if self.count == 1 { 0 } else { self.unit }
    }

    /// Divides a range of a file into pieces, in order.
    pub fn pieces(self, range: Range<u64>) -> impl Iterator<Item = Piece> {
        let mut offset = range.start;
        std::iter::from_fn(move || {
            let rest = range.end.checked_sub(offset).filter(|rest| *rest > 0)?;
            let (number, within) = (offset / self.unit, offset % self.unit);
            let len = if self.count == 1 { rest } else { rest.min(self.unit - within) };
            let piece = Piece { stripe: (number % self.count as u64) as usize, range: offset..offset + len };
            offset += len;
            Some(piece)
        })
    }

    /// Returns the offset of the first byte of a stripe at or behind `offset`, or `u64::MAX` if there is none.
    pub fn next(self, stripe: usize, offset: u64) -> u64 {
        let (number, count) = (offset / self.unit, self.count as u64);
        let units = (stripe as u64 + count - number % count) % count;
        if units == 0 { offset } else { number.saturating_add(units).saturating_mul(self.unit) }
    }

    /// Returns the offset behind the last byte of a stripe in a file of `size` bytes, or 0 if the stripe has none.
    pub fn end(self, stripe: usize, size: u64) -> u64 {
        let Some(last) = size.checked_sub(1) else { return 0 };
        let (number, count) = (last / self.unit, self.count as u64);
        // The units between the last one of the stripe and the last one of the file.
        let units = (number % count + count - stripe as u64) % count;
        match units {
            0 => size,
            units if units > number => 0,
            units => (number - units + 1) * self.unit,
        }
    }

    /// Returns where objects must have a byte after a write of this range to a file of `size` bytes, because the write leaves a
    /// hole that is longer than these objects. A client that reads beyond the end of an object would believe that the file ends
    /// there.
    ///
    /// No client reads or writes these bytes, so they can be written at any time.
    pub fn ends(self, size: u64, range: Range<u64>) -> impl Iterator<Item = End> {
        let end = move |stripe| End { stripe, offset: self.end(stripe, range.end) };
        let is_in_hole = move |end: &End| (size + 1..=range.start).contains(&end.offset);
        (0..self.count).map(end).filter(is_in_hole)
    }

    /// Selects the data servers of all objects of a file with `mirrors` copies: those of the first copy are first. All stripes of
    /// a copy and all copies of a stripe are on distinct data servers, and all objects are if there are enough data servers. The
    /// first `preferred` ones are used alone if that is possible.
    ///
    /// # Panics
    /// If there are fewer data servers than stripes or mirrors.
    pub fn place(self, mirrors: usize, servers: &[ServerId], preferred: usize) -> Vec<ServerId> {
        let least = mirrors.max(self.count);
        assert!(least <= servers.len(), "{least} of {} data servers", servers.len());
        let all = mirrors * self.count;
        let used = preferred.clamp(least, servers.len()).min(all);
        // Copy `n` begins with data server `n * step`. With a step of 1, it differs from the other copies for every stripe.
        let differs = |step: usize| (1..mirrors).all(|copy| !(copy * step).is_multiple_of(used));
        let step = if differs(self.count) { self.count } else { 1 };
        (0..all).map(|at| servers[(at / self.count * step + at % self.count) % used]).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use nfs::v4::layout::stripe::{Packing, Striping};
    use proptest::prelude::*;

    use super::*;

    fn stripes() -> impl Strategy<Value = Stripes> {
        let unit = prop_oneof![1..20_u64, Just(1 << 20), Just(u64::MAX)];
        (unit, 1..=STRIPES_MAX).prop_map(|(unit, count)| Stripes::new(unit, count).unwrap())
    }

    fn offsets() -> impl Strategy<Value = u64> {
        prop_oneof![0..200_u64, any::<u32>().prop_map(u64::from), any::<u64>()]
    }

    proptest! {
        #[test]
        fn pieces_are_where_clients_of_flexible_files_look(stripes in stripes(), start in offsets(), len in 0..5000_u64) {
            let range = start..start.saturating_add(len);
            let clients = Striping::new(stripes.unit(), stripes.count() as u32, Packing::Sparse).unwrap();
            prop_assume!(range.end / stripes.unit - range.start / stripes.unit < 10_000);
            let places = clients.pieces(range.clone()).map(|piece| {
                assert_eq!(piece.data_offset, piece.offset);
                Piece { stripe: piece.stripe as usize, range: piece.offset..piece.offset + piece.len }
            });
            prop_assert_eq!(stripes.pieces(range).collect::<Vec<_>>(), places.collect::<Vec<_>>());
        }

        #[test]
        fn objects_are_on_distinct_servers_where_it_matters(
            mirrors in 1..=16_usize, stripes in 1..=STRIPES_MAX, more in 0..40_usize, preferred in 0..60_usize,
        ) {
            let count = mirrors.max(stripes) + more;
            let servers: Vec<_> = (0..count as u32).map(ServerId).collect();
            let placed = Stripes::new(1, stripes).unwrap().place(mirrors, &servers, preferred);
            prop_assert_eq!(placed.len(), mirrors * stripes);
            let distinct = |servers: &mut dyn Iterator<Item = &ServerId>| servers.collect::<HashSet<_>>().len();
            for copy in placed.chunks(stripes) {
                prop_assert_eq!(distinct(&mut copy.iter()), stripes);
            }
            for stripe in 0..stripes {
                prop_assert_eq!(distinct(&mut placed[stripe..].iter().step_by(stripes)), mirrors);
            }
            if preferred >= mirrors * stripes && count >= mirrors * stripes {
                prop_assert_eq!(distinct(&mut placed.iter()), mirrors * stripes);
            }
            if preferred >= mirrors.max(stripes) {
                prop_assert!(placed.iter().all(|server| (server.0 as usize) < preferred));
            }
        }

        #[test]
        fn after_a_write_no_object_ends_before_the_last_byte_of_its_stripe(
            stripes in stripes(), writes in prop::collection::vec((0..300_u64, 1..60_u64), 1..8),
        ) {
            let (mut size, mut objects) = (0, vec![0; stripes.count()]);
            for (start, len) in writes {
                let range = start..start + len;
                for end in stripes.ends(size, range.clone()) {
                    prop_assert_ne!(stripes.pieces(end.offset..end.offset + 1).next().unwrap().stripe, end.stripe);
                    prop_assert!(end.offset < range.end, "an object must not be longer than the file");
                    objects[end.stripe] = objects[end.stripe].max(end.offset + 1);
                }
                for piece in stripes.pieces(range.clone()) {
                    objects[piece.stripe] = objects[piece.stripe].max(piece.range.end);
                }
                size = size.max(range.end);
                for (stripe, object) in objects.iter().enumerate() {
                    prop_assert!(*object >= stripes.end(stripe, size));
                }
            }
        }

        #[test]
        fn first_and_last_bytes_of_a_stripe_are_in_it(stripes in stripes(), offset in 0..1000_u64, stripe in 0..STRIPES_MAX) {
            prop_assume!(stripe < stripes.count());
            let of = |offset: u64| stripes.pieces(offset..offset + 1).next().unwrap().stripe;
            let after = (offset..offset + 1000).find(|at| of(*at) == stripe);
            match after {
                Some(at) => prop_assert_eq!(stripes.next(stripe, offset), at),
                None => prop_assert!(stripes.next(stripe, offset) >= offset + 1000),
            }
            let before = (0..offset).rev().find(|at| of(*at) == stripe);
            prop_assert_eq!(stripes.end(stripe, offset), before.map_or(0, |at| at + 1));
        }
    }

    #[test]
    fn impossible_stripes_are_refused() {
        assert_eq!(
            (Stripes::new(0, 1), Stripes::new(0, 2), Stripes::new(5, 0), Stripes::new(5, 17)),
            (None, None, None, None)
        );
        assert_eq!(Stripes::new(5, 1), Some(Stripes::ONE));
    }
}
