//! [`Bitmap4`]: sets of attributes, operations, hints and notifications.

use smallvec::SmallVec;
use xdr::{Decode, DecodeError, Decoder, Encode, Encoder};

/// A set of numbers (RFC 8881 §3.3.7, `bitmap4`): bit `n` is bit `n % 32` of word `n / 32`.
///
/// On the wire it may end with words of zero; it is kept and written without them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Bitmap4(SmallVec<[u32; 3]>);

impl Bitmap4 {
    /// The empty set.
    pub fn new() -> Self {
        Self(SmallVec::new())
    }

    /// Whether `bit` is in the set.
    pub fn contains(&self, bit: u32) -> bool {
        self.0.get(word(bit)).is_some_and(|&word| word & mask(bit) != 0)
    }

    /// Puts `bit` in.
    ///
    /// # Panics
    /// If it is above any that has a meaning.
    pub fn insert(&mut self, bit: u32) {
        assert!(word(bit) < WORDS_MAX, "bit {bit} in a bitmap");
        if self.0.len() <= word(bit) {
            self.0.resize(word(bit) + 1, 0);
        }
        self.0[word(bit)] |= mask(bit);
    }

    /// Takes `bit` out.
    pub fn remove(&mut self, bit: u32) {
        if let Some(word) = self.0.get_mut(word(bit)) {
            *word &= !mask(bit);
            self.trim();
        }
    }

    /// Whether nothing is in it.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The numbers in the set, ascending.
    #[inline]
    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        let (mut words, mut rest, mut first) = (self.0.iter().zip(0..), 0, 0);
        std::iter::from_fn(move || {
            while rest == 0 {
                let (&word, index) = words.next()?;
                (rest, first) = (word, index * 32);
            }
            let bit = first + rest.trailing_zeros();
            rest &= rest - 1;
            Some(bit)
        })
    }

    /// Whether anything is in both.
    pub fn intersects(&self, other: &Self) -> bool {
        self.0.iter().zip(&other.0).any(|(a, b)| a & b != 0)
    }

    /// Whether all of this one is in the other.
    pub fn is_subset(&self, other: &Self) -> bool {
        self.0.iter().enumerate().all(|(at, word)| word & !other.0.get(at).copied().unwrap_or(0) == 0)
    }

    /// What is in both.
    #[must_use]
    pub fn intersection(&self, other: &Self) -> Self {
        let len = self.0.len().min(other.0.len());
        Self::combined(&self.0[..len], &other.0, |a, b| a & b)
    }

    /// What is in this one and not in the other.
    #[must_use]
    pub fn difference(&self, other: &Self) -> Self {
        Self::combined(&self.0, &other.0, |a, b| a & !b)
    }

    /// What is in either.
    #[must_use]
    pub fn union(&self, other: &Self) -> Self {
        let (long, short) = if self.0.len() < other.0.len() { (other, self) } else { (self, other) };
        Self::combined(&long.0, &short.0, |a, b| a | b)
    }

    /// The words of `long`, each combined with that of `short` where there is one.
    fn combined(long: &[u32], short: &[u32], combine: impl Fn(u32, u32) -> u32) -> Self {
        let mut words = SmallVec::from_slice(long);
        words.iter_mut().zip(short).for_each(|(word, &other)| *word = combine(*word, other));
        let mut bitmap = Self(words);
        bitmap.trim();
        bitmap
    }

    fn trim(&mut self) {
        while self.0.last() == Some(&0) {
            self.0.pop();
        }
    }
}

impl FromIterator<u32> for Bitmap4 {
    fn from_iter<I: IntoIterator<Item = u32>>(bits: I) -> Self {
        let (mut words, mut len) = ([0; WORDS_MAX], 0);
        for bit in bits {
            assert!(word(bit) < WORDS_MAX, "bit {bit} in a bitmap");
            words[word(bit)] |= mask(bit);
            len = len.max(word(bit) + 1);
        }
        Self(SmallVec::from_slice(&words[..len]))
    }
}

impl Encode for Bitmap4 {
    fn encode(&self, encoder: &mut Encoder) {
        encoder.length(self.0.len());
        self.0.iter().for_each(|&word| encoder.u32(word));
    }
}

impl Decode for Bitmap4 {
    fn decode(decoder: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        let len = decoder.length(WORDS_MAX)?;
        let mut bitmap = Self::new();
        for _ in 0..len {
            bitmap.0.push(decoder.u32()?);
        }
        bitmap.trim();
        Ok(bitmap)
    }
}

fn word(bit: u32) -> usize {
    (bit / 32) as usize
}

fn mask(bit: u32) -> u32 {
    1 << (bit % 32)
}

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
    fn a_bitmap_of_more_words_than_ever_is_refused() {
        let error = Message::from(bytes::Bytes::from_static(&[0, 0, 0, 65])).decode::<Bitmap4>().unwrap_err();
        assert_eq!(error.kind, DecodeErrorKind::TooLong { len: 65, max: 64 });
    }
}
