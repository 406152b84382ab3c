//! [`Bitmap4`]: sets of attributes, operations, hints and notifications.

use std::iter;

use xdr::{Decode, DecodeError, Decoder, Encode, Encoder};

/// A set of numbers (RFC 8881 §3.3.7, `bitmap4`): bit `n` is bit `n % 32` of word `n / 32`.
///
/// On the wire it may end with words of zero; it is kept and written without them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Bitmap4 {
    /// Bits 0 to 127: all that have a meaning.
    low: u128,
    /// The words of the bits above, without zeros at the end.
    high: Box<[u32]>,
}

impl Bitmap4 {
    /// The empty set.
    pub fn new() -> Self {
        Self::default()
    }

    /// Whether `bit` is in the set.
    pub fn contains(&self, bit: u32) -> bool {
        match bit.checked_sub(u128::BITS) {
            None => self.low >> bit & 1 != 0,
            Some(above) => self.high.get(word(above)).is_some_and(|&word| word & mask(above) != 0),
        }
    }

    /// Puts `bit` in.
    ///
    /// # Panics
    /// If it is above any that fits.
    pub fn insert(&mut self, bit: u32) {
        let Some(above) = bit.checked_sub(u128::BITS) else {
            self.low |= 1 << bit;
            return;
        };
        assert!(word(bit) < WORDS_MAX, "bit {bit} in a bitmap");
        let mut high = std::mem::take(&mut self.high).into_vec();
        high.resize(high.len().max(word(above) + 1), 0);
        high[word(above)] |= mask(above);
        self.high = high.into();
    }

    /// Takes `bit` out.
    pub fn remove(&mut self, bit: u32) {
        let Some(above) = bit.checked_sub(u128::BITS) else {
            self.low &= !(1 << bit);
            return;
        };
        if let Some(word) = self.high.get_mut(word(above)) {
            *word &= !mask(above);
            self.high = trimmed(std::mem::take(&mut self.high).into_vec());
        }
    }

    /// Whether nothing is in it.
    pub fn is_empty(&self) -> bool {
        self.low == 0 && self.high.is_empty()
    }

    /// The numbers in the set, ascending.
    #[inline]
    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        let (mut rest, mut first, mut above) = (self.low, 0, self.high.iter().zip(4..));
        iter::from_fn(move || {
            while rest == 0 {
                let (&word, index) = above.next()?;
                (rest, first) = (word.into(), index * 32);
            }
            let bit = first + rest.trailing_zeros();
            rest &= rest - 1;
            Some(bit)
        })
    }

    /// Whether anything is in both.
    pub fn intersects(&self, other: &Self) -> bool {
        self.low & other.low != 0 || self.high.iter().zip(&other.high).any(|(a, b)| a & b != 0)
    }

    /// Whether all of this one is in the other.
    pub fn is_subset(&self, other: &Self) -> bool {
        let above = |at| other.high.get(at).copied().unwrap_or(0);
        self.low & !other.low == 0 && self.high.iter().enumerate().all(|(at, word)| word & !above(at) == 0)
    }

    /// What is in both.
    #[must_use]
    pub fn intersection(&self, other: &Self) -> Self {
        Self { low: self.low & other.low, high: self.combined(other, |a, b| a & b) }
    }

    /// What is in this one and not in the other.
    #[must_use]
    pub fn difference(&self, other: &Self) -> Self {
        Self { low: self.low & !other.low, high: self.combined(other, |a, b| a & !b) }
    }

    /// What is in either.
    #[must_use]
    pub fn union(&self, other: &Self) -> Self {
        Self { low: self.low | other.low, high: self.combined(other, |a, b| a | b) }
    }

    /// The upper words of both, combined one by one.
    fn combined(&self, other: &Self, combine: impl Fn(u32, u32) -> u32) -> Box<[u32]> {
        let len = self.high.len().max(other.high.len());
        let word = |words: &[u32], at| words.get(at).copied().unwrap_or(0);
        trimmed((0..len).map(|at| combine(word(&self.high, at), word(&other.high, at))).collect())
    }
}

impl FromIterator<u32> for Bitmap4 {
    fn from_iter<I: IntoIterator<Item = u32>>(bits: I) -> Self {
        let mut bitmap = Self::new();
        bits.into_iter().for_each(|bit| bitmap.insert(bit));
        bitmap
    }
}

impl Encode for Bitmap4 {
    fn encode(&self, encoder: &mut Encoder) {
        let low = if self.high.is_empty() { u128::BITS - self.low.leading_zeros() } else { u128::BITS }.div_ceil(32);
        encoder.length(low as usize + self.high.len());
        (0..low).for_each(|at| encoder.u32((self.low >> (32 * at)) as u32));
        self.high.iter().for_each(|&word| encoder.u32(word));
    }
}

impl Decode for Bitmap4 {
    fn decode(decoder: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        let len = decoder.length(WORDS_MAX)?;
        let mut bitmap = Self::new();
        for at in 0..len.min(LOW_WORDS) {
            bitmap.low |= u128::from(decoder.u32()?) << (32 * at);
        }
        if len > LOW_WORDS {
            bitmap.high = trimmed((LOW_WORDS..len).map(|_| decoder.u32()).collect::<Result<_, _>>()?);
        }
        Ok(bitmap)
    }
}

fn trimmed(mut words: Vec<u32>) -> Box<[u32]> {
    while words.last() == Some(&0) {
        words.pop();
    }
    words.into()
}

fn word(bit: u32) -> usize {
    (bit / 32) as usize
}

fn mask(bit: u32) -> u32 {
    1 << (bit % 32)
}

/// The words of bits 0 to 127.
const LOW_WORDS: usize = 4;
/// The RFCs define fewer than 100 bits of any bitmap; the rest is room for what we do not know.
const WORDS_MAX: usize = 64;

#[cfg(test)]
mod tests {
    use xdr::{DecodeErrorKind, Message};

    use super::*;

    #[test]
    fn bits_are_counted_from_the_least_of_the_first_word() {
        let bitmap: Bitmap4 = [0, 33, 82].into_iter().collect();
        assert_eq!(Message::encode(&bitmap).stream[..], [0, 0, 0, 3, 0, 0, 0, 1, 0, 0, 0, 2, 0, 4, 0, 0]);
        assert_eq!(bitmap.iter().collect::<Vec<_>>(), [0, 33, 82]);
        assert!(bitmap.contains(82) && !bitmap.contains(81) && !bitmap.contains(5000));
    }

    #[test]
    fn words_of_zero_at_the_end_mean_nothing() {
        let long = bytes::Bytes::from_static(&[0, 0, 0, 3, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0]);
        let bitmap: Bitmap4 = Message::from(long).decode().unwrap();
        assert_eq!(bitmap, [0].into_iter().collect());
        assert_eq!(Message::encode(&bitmap).len(), 8);
        let mut emptied = bitmap.clone();
        emptied.remove(0);
        emptied.remove(70);
        assert!(emptied.is_empty());
    }

    #[test]
    fn sets_are_combined() {
        let of = |bits: &[u32]| bits.iter().copied().collect::<Bitmap4>();
        let (a, b) = (of(&[1, 40, 80]), of(&[1, 41]));
        assert_eq!(a.intersection(&b), of(&[1]));
        assert!(of(&[1, 80]).is_subset(&a) && a.is_subset(&a) && Bitmap4::new().is_subset(&b));
        assert!(!a.is_subset(&b) && !b.is_subset(&a) && !of(&[200]).is_subset(&a));
        assert!(a.intersects(&b) && !a.intersects(&of(&[41, 90])) && !a.intersects(&Bitmap4::new()));
        assert_eq!(a.union(&b), of(&[1, 40, 41, 80]));
        assert_eq!(b.union(&a), a.union(&b));
        assert_eq!(a.difference(&b), of(&[40, 80]));
        assert_eq!(b.difference(&a), of(&[41]));
    }

    #[test]
    fn numbers_without_a_meaning_are_kept() {
        let of = |bits: &[u32]| bits.iter().copied().collect::<Bitmap4>();
        let (a, b) = (of(&[5, 127, 128, 2047]), of(&[128, 200]));
        assert_eq!(a.iter().collect::<Vec<_>>(), [5, 127, 128, 2047]);
        assert_eq!(Message::encode(&a).len(), 4 + 64 * 4);
        assert_eq!(Message::encode(&a).decode(), Ok(a.clone()));
        assert_eq!(Message::encode(&b).decode(), Ok(b.clone()));
        assert_eq!((a.intersection(&b), a.difference(&b)), (of(&[128]), of(&[5, 127, 2047])));
        assert_eq!(a.union(&b), of(&[5, 127, 128, 200, 2047]));
        assert!(a.contains(2047) && !a.contains(2046) && a.intersects(&b) && of(&[128]).is_subset(&b));
        let mut emptied = b.clone();
        [128, 200].into_iter().for_each(|bit| emptied.remove(bit));
        assert!(emptied.is_empty() && emptied == Bitmap4::new());
    }

    #[test]
    fn a_bitmap_of_more_words_than_ever_is_refused() {
        let error = Message::from(bytes::Bytes::from_static(&[0, 0, 0, 65])).decode::<Bitmap4>().unwrap_err();
        assert_eq!(error.kind, DecodeErrorKind::TooLong { len: 65, max: 64 });
    }
}
