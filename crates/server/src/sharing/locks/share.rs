//! Share reservations: the access for which a file is opened, and the access that the open denies to others (RFC 8881
//! §9.7; for NLM, `fsh4_access` and `fsh4_mode`).

/// The access and deny modes of an open.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Share {
    /// The owner reads.
    pub read: bool,
    /// The owner writes.
    pub write: bool,
    /// Others must not read.
    pub deny_read: bool,
    /// Others must not write.
    pub deny_write: bool,
}

impl Share {
    /// Returns `true` if two owners cannot hold these shares at the same time.
    pub fn conflicts(self, other: Share) -> bool {
        let refuses = |a: Share, b: Share| (a.deny_read && b.read) || (a.deny_write && b.write);
        refuses(self, other) || refuses(other, self)
    }
}

/// The use of a file by the owners that have it open or hold locks on it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Usage {
    /// An owner reads the file, or denies writes to others.
    pub reads: bool,
    /// An owner writes the file, or denies reads to others.
    pub writes: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_conflict_if_one_denies_access_of_the_other() {
        let all = (0..16u8).map(|bits| Share {
            read: bits & 1 != 0,
            write: bits & 2 != 0,
            deny_read: bits & 4 != 0,
            deny_write: bits & 8 != 0,
        });
        for (a, bits_a) in all.clone().zip(0u8..) {
            for (b, bits_b) in all.clone().zip(0u8..) {
                // Compare the access bits of each with the deny bits of the other.
                let expected = (bits_a & 3) & (bits_b >> 2) != 0 || (bits_b & 3) & (bits_a >> 2) != 0;
                assert_eq!(a.conflicts(b), expected, "{a:?} {b:?}");
            }
        }
    }
}
