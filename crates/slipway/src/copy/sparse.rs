//! Finds zeros in data that were received over a protocol without holes (NFSv3).

use std::ops::Range;

/// A part of a block: data to be written, or zeros to be skipped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Run {
    /// Data: some byte in each granule is not zero.
    Data(Range<usize>),
    /// A hole: all bytes are zero.
    Hole(Range<usize>),
}

/// Splits a block at `offset` of its file into runs. Only zeros that fill an aligned granule, or its part within the
/// block, count as holes. Smaller holes save little storage, and cost one write each.
pub fn runs(block: &[u8], offset: u64) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::new();
    let mut at = 0;
    while at < block.len() {
        let room = GRANULE - ((offset + at as u64) % GRANULE as u64) as usize;
        let end = block.len().min(at + room);
        let granule = &block[at..end];
        let hole = *granule == ZEROS[..granule.len()];
        match (runs.last_mut(), hole) {
            (Some(Run::Hole(last)), true) | (Some(Run::Data(last)), false) => last.end = end,
            (_, true) => runs.push(Run::Hole(at..end)),
            (_, false) => runs.push(Run::Data(at..end)),
        }
        at = end;
    }
    runs
}

const GRANULE: usize = 16 << 10;
const ZEROS: [u8; GRANULE] = [0; GRANULE];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_aligned_granules_of_zeros_are_holes() {
        assert_eq!(runs(&[], 0), []);
        assert_eq!(runs(&[0; 100], 0), [Run::Hole(0..100)]);
        let mut block = vec![0; 4 * GRANULE];
        assert_eq!(runs(&block, 100), [Run::Hole(0..4 * GRANULE)]);
        block[2 * GRANULE + 5] = 1;
        assert_eq!(
            runs(&block, 1 << 40),
            [Run::Hole(0..2 * GRANULE), Run::Data(2 * GRANULE..3 * GRANULE), Run::Hole(3 * GRANULE..4 * GRANULE)]
        );
        // The block begins and ends in the middle of a granule.
        assert_eq!(
            runs(&block, 100),
            [
                Run::Hole(0..2 * GRANULE - 100),
                Run::Data(2 * GRANULE - 100..3 * GRANULE - 100),
                Run::Hole(3 * GRANULE - 100..4 * GRANULE)
            ]
        );
    }
}
