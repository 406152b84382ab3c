//! [`Record`]: where the data of one file are. It is stored in an extended attribute of the file.
//!
//! | bytes | field |
//! |---|---|
//! | 2 | version, 1 |
//! | 8 | generation |
//! | 4 | epoch of writers |
//! | 4 | epoch of readers |
//! | 2 | number of copies |
//! | 21 for each copy | data server (4), object (16), state (1) |
//! | 4 | CRC-32C of all bytes before it |
//!
//! Integers are big-endian. A record has at most [`COPIES_MAX`] copies, so it fits into one block of a file system.

use std::fmt;

use sha2::{Digest, Sha256};

/// The layout of one file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// A number that increases with every change of the record.
    pub generation: u64,
    /// The users as whom clients access the objects.
    pub epochs: Epochs,
    /// The copies. Each has all bytes of the file.
    pub copies: Vec<Copy>,
}

/// The number of times that clients were fenced. Each time, the users of the objects change. 0 if no client could access the
/// objects yet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Epochs {
    /// For layouts to write.
    pub writers: u32,
    /// For layouts to read.
    pub readers: u32,
}

/// A copy of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Copy {
    /// The object that has the data.
    pub object: Object,
    /// The state.
    pub state: CopyState,
}

/// An object on a data server. A byte has the same offset in the object as in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Object {
    /// The data server.
    pub server: ServerId,
    /// The identifier, which no other object has, and which clients do not learn.
    pub id: u128,
}

/// The number of a data server. The configuration assigns it, and it is never used for another data server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ServerId(pub u32);

/// The users of an object (RFC 8435 §2.2.1): a client with a layout to write acts as the owner, one with a layout to read as a
/// member of the group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owners {
    /// The user that can read and write.
    pub owner: u32,
    /// The group that can read.
    pub group: u32,
}

/// The state of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyState {
    /// The copy has all writes that were acknowledged.
    InSync,
    /// The copy has missed a write, or its object does not exist yet. It is never read.
    Stale,
    /// The copy receives all writes, and older data are being copied to it. It is not read.
    Copying,
}

/// The reason why bytes are not a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordError {
    /// The bytes end too early, or too late.
    Length {
        /// The number of bytes.
        bytes: usize,
        /// The number of bytes that a record with this header has.
        expected: usize,
    },
    /// The version is not 1.
    Version(u16),
    /// The checksum does not match.
    Checksum,
    /// The number of copies is 0 or more than [`COPIES_MAX`].
    Copies(usize),
    /// A copy has an unknown state.
    State {
        /// The index of the copy.
        copy: usize,
        /// The state.
        state: u8,
    },
    /// No copy is in sync.
    Lost,
}

/// Maximum number of copies of a file. Linux's client writes to no more (fs/nfs/flexfilelayout).
pub const COPIES_MAX: usize = 16;

impl Epochs {
    /// Returns the users of an object, or `None` if clients cannot access it. They follow from its identifier, so only this
    /// server can compute those of the next epoch.
    pub fn owners(self, object: Object) -> Option<Owners> {
        let user = |kind: &[u8], epoch: u32| {
            let digest =
                Sha256::new_with_prefix(kind).chain_update(object.id.to_be_bytes()).chain_update(epoch.to_be_bytes());
            let digest: [u8; 32] = digest.finalize().into();
            USERS_MIN | number(&digest[..4]) as u32 & (USERS_MIN - 1)
        };
        let owners = || Owners { owner: user(b"writers", self.writers), group: user(b"readers", self.readers) };
        (self != Self::default()).then(owners)
    }
}

impl Record {
    /// Returns the indices of the copies that can be read.
    pub fn in_sync(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.copies.len()).filter(|copy| self.copies[*copy].state == CopyState::InSync)
    }

    /// Returns the indices of the copies that receive writes.
    pub fn written(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.copies.len()).filter(|copy| self.copies[*copy].state != CopyState::Stale)
    }

    /// Returns `true` if all copies are in sync.
    pub fn is_healthy(&self) -> bool {
        self.copies.iter().all(|copy| copy.state == CopyState::InSync)
    }

    /// Encodes the record.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(HEADER + self.copies.len() * COPY + CRC);
        bytes.extend(VERSION.to_be_bytes());
        bytes.extend(self.generation.to_be_bytes());
        bytes.extend(self.epochs.writers.to_be_bytes());
        bytes.extend(self.epochs.readers.to_be_bytes());
        bytes.extend((self.copies.len() as u16).to_be_bytes());
        for copy in &self.copies {
            bytes.extend(copy.object.server.0.to_be_bytes());
            bytes.extend(copy.object.id.to_be_bytes());
            bytes.push(copy.state as u8);
        }
        bytes.extend(crc32c::crc32c(&bytes).to_be_bytes());
        bytes
    }

    /// Decodes a record.
    ///
    /// # Errors
    /// Returns the first thing that is wrong. The length is checked against the header before anything is allocated.
    pub fn decode(bytes: &[u8]) -> Result<Self, RecordError> {
        let wrong = |expected| RecordError::Length { bytes: bytes.len(), expected };
        let (header, rest) = bytes.split_first_chunk::<HEADER>().ok_or(wrong(HEADER + COPY + CRC))?;
        let version = number(&header[..2]) as u16;
        if version != VERSION {
            return Err(RecordError::Version(version));
        }
        let epochs = Epochs { writers: number(&header[10..14]) as u32, readers: number(&header[14..18]) as u32 };
        let count = number(&header[18..]) as usize;
        if !(1..=COPIES_MAX).contains(&count) {
            return Err(RecordError::Copies(count));
        }
        if rest.len() != count * COPY + CRC {
            return Err(wrong(HEADER + count * COPY + CRC));
        }
        let (body, crc) = bytes.split_at(bytes.len() - CRC);
        if u128::from(crc32c::crc32c(body)) != number(crc) {
            return Err(RecordError::Checksum);
        }
        let copies = rest[..count * COPY].chunks_exact(COPY).enumerate();
        let copies = copies.map(|(at, bytes)| decode_copy(at, bytes)).collect::<Result<Vec<_>, _>>()?;
        let record = Self { generation: number(&header[2..10]) as u64, epochs, copies };
        if record.in_sync().next().is_none() { Err(RecordError::Lost) } else { Ok(record) }
    }
}

fn decode_copy(at: usize, bytes: &[u8]) -> Result<Copy, RecordError> {
    let state = match bytes[20] {
        0 => CopyState::InSync,
        1 => CopyState::Stale,
        2 => CopyState::Copying,
        state => return Err(RecordError::State { copy: at, state }),
    };
    let object = Object { server: ServerId(number(&bytes[..4]) as u32), id: number(&bytes[4..20]) };
    Ok(Copy { object, state })
}

fn number(bytes: &[u8]) -> u128 {
    bytes.iter().fold(0, |number, byte| number << 8 | u128::from(*byte))
}

impl fmt::Display for RecordError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Length { bytes, expected } => write!(f, "it has {bytes} bytes instead of {expected}"),
            Self::Version(version) => write!(f, "it has version {version}, and this program knows only {VERSION}"),
            Self::Checksum => f.write_str("its checksum is wrong"),
            Self::Copies(count) => write!(f, "it has {count} copies, and there must be 1 to {COPIES_MAX}"),
            Self::State { copy, state } => write!(f, "copy {copy} has the unknown state {state}"),
            Self::Lost => f.write_str("no copy is in sync"),
        }
    }
}

impl std::error::Error for RecordError {}

const VERSION: u16 = 1;
const HEADER: usize = 20;
const COPY: usize = 21;
const CRC: usize = 4;
/// The first user of objects. None of them is a user of a person or of the system.
const USERS_MIN: u32 = 1 << 30;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn record(copies: u16) -> Record {
        let copies = (0..copies).map(|at| Copy {
            object: Object { server: ServerId(at.into()), id: 1 << 100 | u128::from(at) },
            state: if at == 0 { CopyState::InSync } else { CopyState::Copying },
        });
        Record { generation: 5, epochs: Epochs { writers: 3, readers: 4 }, copies: copies.collect() }
    }

    #[test]
    fn record_survives_encoding() {
        for copies in [1, 3, 16] {
            let record = record(copies);
            let bytes = record.encode();
            assert!(bytes.len() <= 2048, "a record must fit into an attribute of any file system");
            assert_eq!(Record::decode(&bytes), Ok(record));
        }
    }

    #[test]
    fn damaged_record_gives_the_exact_error() {
        let good = record(4);
        let bytes = good.encode();
        for len in 0..bytes.len() {
            assert!(matches!(Record::decode(&bytes[..len]), Err(RecordError::Length { .. })), "{len}");
        }
        for at in HEADER..bytes.len() {
            let mut bad = bytes.clone();
            bad[at] ^= 1;
            assert_eq!(Record::decode(&bad), Err(RecordError::Checksum), "{at}");
        }
        let mut bad = bytes.clone();
        bad[1] = 2;
        assert_eq!(Record::decode(&bad).unwrap_err().to_string(), "it has version 2, and this program knows only 1");
        let mut lost = good.clone();
        lost.copies[0].state = CopyState::Stale;
        assert_eq!(Record::decode(&lost.encode()), Err(RecordError::Lost));
        assert_eq!(Record::decode(&record(17).encode()), Err(RecordError::Copies(17)));
        let none = Record { copies: Vec::new(), ..good };
        let bytes = [none.encode(), vec![0; COPY]].concat();
        assert_eq!(Record::decode(&bytes), Err(RecordError::Copies(0)));
    }

    #[test]
    fn unknown_state_names_its_copy() {
        let mut bytes = record(2).encode();
        let len = bytes.len() - CRC;
        bytes[len - 1] = 9;
        let crc = crc32c::crc32c(&bytes[..len]);
        bytes[len..].copy_from_slice(&crc.to_be_bytes());
        assert_eq!(Record::decode(&bytes), Err(RecordError::State { copy: 1, state: 9 }));
    }

    #[test]
    fn fence_changes_the_owner_or_the_group() {
        let object = Object { server: ServerId(1), id: 77 };
        let owners = |writers, readers| Epochs { writers, readers }.owners(object).unwrap();
        let (before, writers, readers) = (owners(1, 1), owners(2, 1), owners(1, 2));
        assert_eq!(Epochs::default().owners(object), None);
        assert!(before.owner != writers.owner && before.group == writers.group);
        assert!(before.owner == readers.owner && before.group != readers.group);
        for user in [before.owner, before.group, writers.owner, readers.group] {
            assert!((1 << 30..1 << 31).contains(&user), "{user}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_decode_to_an_error_or_to_a_record_with_these_bytes(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            if let Ok(record) = Record::decode(&bytes) {
                prop_assert_eq!(record.encode(), bytes);
            }
        }
    }
}
