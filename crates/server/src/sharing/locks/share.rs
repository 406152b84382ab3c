//! Share reservations: what an open file is opened for, and what others may not open it for meanwhile (RFC 8881
//! §9.7; for NLM, `fsh4_access` and `fsh4_mode`).

/// What an open is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Share {
    /// Reads.
    pub read: bool,
    /// Writes.
    pub write: bool,
    /// Nobody else may read.
    pub deny_read: bool,
    /// Nobody else may write.
    pub deny_write: bool,
}

impl Share {
    /// Whether two owners cannot have these at the same time.
    pub fn conflicts(self, other: Share) -> bool {
        let refuses = |a: Share, b: Share| (a.deny_read && b.read) || (a.deny_write && b.write);
        refuses(self, other) || refuses(other, self)
    }
}

/// What is done with a file by those who have it open, or have locked any of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Usage {
    /// It is read, or others are kept from writing it.
    pub reads: bool,
    /// It is written, or others are kept from reading it.
    pub writes: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_conflict_where_one_denies_what_the_other_does() {
        let all = (0..16u8).map(|bits| Share {
            read: bits & 1 != 0,
            write: bits & 2 != 0,
            deny_read: bits & 4 != 0,
            deny_write: bits & 8 != 0,
        });
        for (a, bits_a) in all.clone().zip(0u8..) {
            for (b, bits_b) in all.clone().zip(0u8..) {
                // Access bits of each against deny bits of the other.
                let expected = (bits_a & 3) & (bits_b >> 2) != 0 || (bits_b & 3) & (bits_a >> 2) != 0;
                assert_eq!(a.conflicts(b), expected, "{a:?} {b:?}");
            }
        }
    }
}
