//! Random numbers from a seed.

/// The generator xorshift64*.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// Returns a generator whose numbers depend on `seed` alone.
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// Returns the next number.
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// Returns a number below `end`, which must not be zero.
    pub fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }

    /// Returns one of the items.
    pub fn of<'a, T>(&mut self, these: &'a [T]) -> &'a T {
        &these[self.below(these.len())]
    }

    /// Changes some bytes or words, or the length, after the first `spared` bytes.
    pub fn mutate(&mut self, message: &mut Vec<u8>, spared: usize) {
        for _ in 0..=self.below(3) {
            if message.len() <= spared + 4 {
                return;
            }
            let at = spared + self.below(message.len() - spared - 3);
            let word = at / 4 * 4;
            match self.below(7) {
                0 => message[at] ^= 1 << self.below(8),
                1 => message[at] = self.next() as u8,
                // Lengths, counts and discriminants are words.
                2 => message[word..word + 4].copy_from_slice(&self.of(&WORDS).to_be_bytes()),
                3 => message[word..word + 4].copy_from_slice(&(self.below(64) as u32).to_be_bytes()),
                4 => message.truncate(at),
                5 => drop(message.splice(at..at, (0..self.below(64)).map(|byte| byte as u8))),
                _ => drop(message.drain(at..(at + 1 + self.below(16)).min(message.len()))),
            }
        }
    }
}

/// Boundary values of 32-bit words.
const WORDS: [u32; 10] =
    [0, 1, 0x7fff_ffff, 0x8000_0000, 0xffff_ffff, 0xffff_fffc, 0xffff_fffd, 0x0001_0000, 0x0010_0000, 0x4000_0000];
