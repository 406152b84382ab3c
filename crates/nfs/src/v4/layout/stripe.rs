//! The arithmetic of stripes: which byte of a file is where in which data file (RFC 8881 §13.4.4, RFC 8435 §6).
//!
//! A file is divided into stripe units, which are distributed over its data files in turn. With *sparse* packing, a byte
//! has the same offset in its data file as in the file, and the rest of the data file is a hole. With *dense* packing,
//! the units of a data file follow each other. Flexible files have sparse packing only.

use std::ops::Range;

/// The packing of data files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Packing {
    /// A byte has the same offset in its data file as in the file.
    Sparse,
    /// The stripe units of a data file follow each other.
    Dense,
}

/// The distribution of a file over its data files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Striping {
    unit: u64,
    count: u32,
    packing: Packing,
    first: u32,
    pattern_offset: u64,
}

/// A range of a file that is in one stripe unit, or in the only data file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Piece {
    /// The index of the stripe.
    pub stripe: u32,
    /// The offset in the file.
    pub offset: u64,
    /// The offset in the data file.
    pub data_offset: u64,
    /// The number of bytes.
    pub len: u64,
}

impl Striping {
    /// Distributes units of `unit` bytes over `count` data files. Returns `None` if either is 0 but for a `unit` of 0 with
    /// one data file, which has the whole file.
    pub fn new(unit: u64, count: u32, packing: Packing) -> Option<Self> {
        let unit = match (unit, count) {
            (0, 1) => u64::MAX,
            (0, _) | (_, 0) => return None,
            (unit, _) => unit,
        };
        Some(Self { unit, count, packing, first: 0, pattern_offset: 0 })
    }

    /// Starts the pattern at `pattern_offset` with stripe `first` (`nfl_pattern_offset`, `nfl_first_stripe_index`).
    /// Returns `None` if there is no such stripe.
    pub fn with_pattern(self, first: u32, pattern_offset: u64) -> Option<Self> {
        (first < self.count).then_some(Self { first, pattern_offset, ..self })
    }

    /// Returns the number of stripes.
    pub fn count(&self) -> u32 {
        self.count
    }

    /// Divides a range of the file into pieces, in order. Bytes before the start of the pattern belong to no stripe and
    /// are left out.
    pub fn pieces(&self, range: Range<u64>) -> impl Iterator<Item = Piece> + use<> {
        let striping = *self;
        let mut offset = range.start.max(self.pattern_offset);
        std::iter::from_fn(move || {
            let piece = (offset < range.end).then(|| striping.piece(offset, range.end))?;
            offset += piece.len;
            Some(piece)
        })
    }

    /// Returns the piece that starts at `offset`, which is within the pattern, and ends before `end`.
    fn piece(&self, offset: u64, end: u64) -> Piece {
        let relative = offset - self.pattern_offset;
        let (number, within) = (relative / self.unit, relative % self.unit);
        let count = u64::from(self.count);
        let stripe = ((number % count + u64::from(self.first)) % count) as u32;
        let data_offset = match self.packing {
            Packing::Sparse => offset,
            Packing::Dense => number / count * self.unit + within,
        };
        let len = match self.count {
            1 => end - offset,
            _ => (self.unit - within).min(end - offset),
        };
        Piece { stripe, offset, data_offset, len }
    }

    /// Returns the size of the data file of `stripe` if the file has `size` bytes. A sparse data file has the size of the
    /// file even if the last bytes are in another one: a client that reads a shorter one would see the end of the file
    /// too early.
    ///
    /// # Panics
    /// If there is no such stripe.
    pub fn data_size(&self, stripe: u32, size: u64) -> u64 {
        assert!(stripe < self.count, "stripe {stripe} of {}", self.count);
        if self.packing == Packing::Sparse {
            return size;
        }
        let relative = size.saturating_sub(self.pattern_offset);
        let (units, within) = (relative / self.unit, relative % self.unit);
        let count = u64::from(self.count);
        let turn = (u64::from(stripe) + count - u64::from(self.first)) % count;
        let whole = units / count + u64::from(units % count > turn);
        whole * self.unit + if units % count == turn { within } else { 0 }
    }

    /// Returns the size of the file as far as the data file of `stripe`, of `data_size` bytes, shows it: the offset in the
    /// file behind its last byte, or 0 if it is empty.
    ///
    /// # Panics
    /// If there is no such stripe.
    pub fn size_from(&self, stripe: u32, data_size: u64) -> u64 {
        assert!(stripe < self.count, "stripe {stripe} of {}", self.count);
        if data_size == 0 || self.packing == Packing::Sparse {
            return data_size;
        }
        let last = data_size - 1;
        let (rows, within) = (last / self.unit, last % self.unit);
        let count = u64::from(self.count);
        let turn = (u64::from(stripe) + count - u64::from(self.first)) % count;
        let units = rows.saturating_mul(count).saturating_add(turn);
        units.saturating_mul(self.unit).saturating_add(within).saturating_add(self.pattern_offset).saturating_add(1)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    /// Small stripings of each kind.
    fn stripings() -> impl Iterator<Item = Striping> {
        let packings = [Packing::Sparse, Packing::Dense];
        packings.into_iter().flat_map(|packing| {
            (1..=4_u32).flat_map(move |count| {
                (0..count).flat_map(move |first| {
                    [0, 5].map(|start| Striping::new(4, count, packing).unwrap().with_pattern(first, start).unwrap())
                })
            })
        })
    }

    #[test]
    fn pieces_cover_a_range_once() {
        for striping in stripings() {
            for start in 0..20 {
                for end in start..40 {
                    let mut expected = start.max(striping.pattern_offset);
                    for piece in striping.pieces(start..end) {
                        assert_eq!(piece.offset, expected, "{striping:?}");
                        assert!(piece.len > 0 && piece.stripe < striping.count);
                        expected += piece.len;
                    }
                    assert_eq!(expected, end.max(start.max(striping.pattern_offset)), "{striping:?} {start}..{end}");
                }
            }
        }
    }

    #[test]
    fn no_two_bytes_share_a_place() {
        for striping in stripings() {
            let mut places = HashSet::new();
            for piece in striping.pieces(0..200) {
                for byte in 0..piece.len {
                    assert!(places.insert((piece.stripe, piece.data_offset + byte)), "{striping:?} {piece:?}");
                }
            }
        }
    }

    /// The example of RFC 8881 §13.4.4 in figures: a unit of 4 and three data files.
    #[test]
    fn units_are_distributed_in_turn() {
        let dense = Striping::new(4, 3, Packing::Dense).unwrap();
        let found: Vec<_> = dense.pieces(2..17).map(|p| (p.stripe, p.data_offset, p.len)).collect();
        assert_eq!(found, [(0, 2, 2), (1, 0, 4), (2, 0, 4), (0, 4, 4), (1, 4, 1)]);
        let sparse = Striping::new(4, 3, Packing::Sparse).unwrap().with_pattern(2, 0).unwrap();
        let found: Vec<_> = sparse.pieces(2..17).map(|p| (p.stripe, p.data_offset, p.len)).collect();
        assert_eq!(found, [(2, 2, 2), (0, 4, 4), (1, 8, 4), (2, 12, 4), (0, 16, 1)]);
    }

    #[test]
    fn dense_data_files_have_exactly_their_bytes() {
        for striping in stripings().filter(|striping| striping.packing == Packing::Dense) {
            for size in 0..60 {
                let mut sizes = vec![0; striping.count as usize];
                for piece in striping.pieces(0..size) {
                    sizes[piece.stripe as usize] = piece.data_offset + piece.len;
                }
                for (stripe, &data_size) in (0..).zip(&sizes) {
                    assert_eq!(striping.data_size(stripe, size), data_size, "{striping:?} {size}");
                }
                let shown = (0..).zip(&sizes).map(|(stripe, &data_size)| striping.size_from(stripe, data_size)).max();
                let expected = if size > striping.pattern_offset { size } else { 0 };
                assert_eq!(shown, Some(expected), "{striping:?} {size}");
            }
        }
    }

    #[test]
    fn sparse_data_files_have_the_size_of_the_file() {
        let sparse = Striping::new(4, 3, Packing::Sparse).unwrap();
        assert_eq!([0, 1, 2].map(|stripe| sparse.data_size(stripe, 5)), [5; 3]);
        assert_eq!(sparse.size_from(1, 5), 5);
    }

    #[test]
    fn one_data_file_without_a_unit_has_the_whole_file() {
        let whole = Striping::new(0, 1, Packing::Sparse).unwrap();
        let pieces: Vec<_> = whole.pieces(7..u64::MAX).collect();
        assert_eq!(pieces, [Piece { stripe: 0, offset: 7, data_offset: 7, len: u64::MAX - 7 }]);
        assert_eq!(Striping::new(0, 2, Packing::Sparse), None);
        assert_eq!(Striping::new(4, 0, Packing::Sparse), None);
        assert_eq!(whole.with_pattern(1, 0), None);
    }

    #[test]
    fn sizes_of_a_hostile_data_server_do_not_overflow() {
        let dense = Striping::new(1 << 40, 4096, Packing::Dense).unwrap();
        assert_eq!(dense.size_from(4095, u64::MAX), u64::MAX);
    }
}
