//! [`Bitmap4`]: sets of attributes, operations, hints and notifications.

use std::iter;

use xdr::{Decode, DecodeError, Decoder, Encode, Encoder};

/// A set of numbers (RFC 8881 §3.3.7, `bitmap4`): bit `n` is bit `n % 32` of word `n / 32`.
///
/// On the wire, it may end with zero words. It is stored and encoded without them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Bitmap4 {
    /// The first words. They contain all numbers that the RFCs define.
    low: [u32; LOW_WORDS],
    /// The words behind them, without zeros at the end.
    high: Box<[u32]>,
}

impl Bitmap4 {
    /// Creates an empty set.
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns `true` if `bit` is in the set.
    #[inline]
    pub fn contains(&self, bit: u32) -> bool {
        self.word(word(bit)) & mask(bit) != 0
    }

    /// Adds `bit`.
    ///
    /// # Panics
    /// Panics if `bit` is larger than all bits that can have a meaning.
    pub fn insert(&mut self, bit: u32) {
        assert!(word(bit) < WORDS_MAX, "bit {bit} is out of range");
        if let Some(word) = self.low.get_mut(word(bit)) {
            *word |= mask(bit);
            return;
        }
        let (mut high, at) = (std::mem::take(&mut self.high).into_vec(), word(bit) - LOW_WORDS);
        high.resize(high.len().max(at + 1), 0);
        high[at] |= mask(bit);
        self.high = high.into();
    }

    /// Removes `bit`.
    pub fn remove(&mut self, bit: u32) {
        if let Some(word) = self.low.iter_mut().chain(&mut self.high).nth(word(bit)) {
            *word &= !mask(bit);
            self.high = trimmed(std::mem::take(&mut self.high).into_vec());
        }
    }

    /// Returns `true` if the set is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the numbers in the set in ascending order.
    #[inline]
    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        let (mut words, mut rest, mut first) = (self.low.iter().chain(&self.high).zip(0..), 0, 0);
        iter::from_fn(move || {
            while rest == 0 {
                let (&word, index) = words.next()?;
                (rest, first) = (word, index * 32);
            }
            let bit = first + rest.trailing_zeros();
            rest &= rest - 1;
            Some(bit)
        })
    }

    /// Returns `true` if the sets have a common number.
    #[inline]
    pub fn intersects(&self, other: &Self) -> bool {
        let any = |a: &[u32], b: &[u32]| a.iter().zip(b).any(|(a, b)| a & b != 0);
        any(&self.low, &other.low) || any(&self.high, &other.high)
    }

    /// Returns `true` if all bits of `self` are in `other`.
    pub fn is_subset(&self, other: &Self) -> bool {
        (0..self.len()).all(|at| self.word(at) & !other.word(at) == 0)
    }

    /// Returns the numbers that are in both sets.
    #[must_use]
    pub fn intersection(&self, other: &Self) -> Self {
        self.combined(other, |a, b| a & b)
    }

    /// Returns the numbers that are in this set and not in the other.
    #[must_use]
    pub fn difference(&self, other: &Self) -> Self {
        self.combined(other, |a, b| a & !b)
    }

    /// Returns the numbers that are in either set.
    #[must_use]
    pub fn union(&self, other: &Self) -> Self {
        self.combined(other, |a, b| a | b)
    }

    /// Combines each word of `self` with the word of `other` at the same index.
    fn combined(&self, other: &Self, combine: impl Fn(u32, u32) -> u32) -> Self {
        let combined = |at| combine(self.word(at), other.word(at));
        let len = LOW_WORDS + self.high.len().max(other.high.len());
        let low = std::array::from_fn(combined);
        Self { low, high: trimmed((LOW_WORDS..len).map(combined).collect()) }
    }

    /// Returns the word at this index, or zero if it is not stored.
    #[inline]
    fn word(&self, at: usize) -> u32 {
        self.low.get(at).or_else(|| self.high.get(at - LOW_WORDS)).copied().unwrap_or(0)
    }

    /// Returns the number of words up to the last one that is not zero.
    #[inline]
    fn len(&self) -> usize {
        match self.high.len() {
            0 => self.low.iter().rposition(|&word| word != 0).map_or(0, |last| last + 1),
            above => LOW_WORDS + above,
        }
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
        let len = self.len();
        encoder.length(len);
        self.low.iter().chain(&self.high).take(len).for_each(|&word| encoder.u32(word));
    }
}

impl Decode for Bitmap4 {
    fn decode(decoder: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        let len = decoder.length(WORDS_MAX)?;
        let mut bitmap = Self::new();
        for word in bitmap.low.iter_mut().take(len) {
            *word = decoder.u32()?;
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

/// The number of words that are stored in place: those of bits 0 to 127.
const LOW_WORDS: usize = 4;
/// Maximum number of words. The RFCs define fewer than 100 bits of any bitmap, so this leaves room for future ones.
const WORDS_MAX: usize = 64;

#[cfg(test)]
mod tests {
    use xdr::{DecodeErrorKind, Message};

    use super::*;

    #[test]
    fn bits_are_counted_from_the_least_significant_bit_of_the_first_word() {
        let bitmap: Bitmap4 = [0, 33, 82].into_iter().collect();
        assert_eq!(Message::encode(&bitmap).stream[..], [0, 0, 0, 3, 0, 0, 0, 1, 0, 0, 0, 2, 0, 4, 0, 0]);
        assert_eq!(bitmap.iter().collect::<Vec<_>>(), [0, 33, 82]);
        assert!(bitmap.contains(82) && !bitmap.contains(81) && !bitmap.contains(5000));
    }

    #[test]
    fn trailing_zero_words_are_ignored() {
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
    fn unknown_bits_are_kept() {
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
    fn bitmap_with_too_many_words_is_rejected() {
        let error = Message::from(bytes::Bytes::from_static(&[0, 0, 0, 65])).decode::<Bitmap4>().unwrap_err();
        assert_eq!(error.kind, DecodeErrorKind::TooLong { len: 65, max: 64 });
    }
}
