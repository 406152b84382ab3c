//! [`Record`]: where the data of one file are. It is stored in an extended attribute of the file.
//!
//! | bytes | field |
//! |---|---|
//! | 2 | version: 1 if the file has one stripe, else 2 |
//! | 8 | generation |
//! | 4 | epoch of writers |
//! | 4 | epoch of readers |
//! | 2 | number of copies of each stripe |
//! | 8 | stripe unit, only in version 2 |
//! | 2 | number of stripes, only in version 2 |
//! | 21 for each object | data server (4), object (16), state (1) |
//! | 4 | CRC-32C of all bytes before it |
//!
//! Integers are big-endian. The objects of the first copy are first, one for each stripe. A record has at most [`OBJECTS_MAX`]
//! objects, so it fits into one block of a file system.

use std::fmt;

use sha2::{Digest, Sha256};
use vfs::Time;

use crate::stripes::Stripes;

/// The layout of one file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// A number that increases with every change of the record.
    pub generation: u64,
    /// The users as whom clients access the objects.
    pub epochs: Epochs,
    /// The stripes.
    pub stripes: Stripes,
    /// The copies of all stripes. Copy `n` of stripe `s` has the index `n * stripes.count() + s`.
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

/// A copy of one stripe. Each stripe has its own copies in sync.
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

impl Object {
    /// Returns a new object. Its identifier begins with the time in milliseconds, so that objects of the same time are neighbours in the
    /// index. The other 80 bits are random.
    pub fn new(server: ServerId) -> Self {
        let millis = u128::from(Time::now().as_nanoseconds() / 1_000_000);
        Self { server, id: millis << 80 | entropy::random::<u128>() >> 48 }
    }
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
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
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
    /// The version is neither 1 nor 2.
    Version(u16),
    /// The checksum does not match.
    Checksum,
    /// The number of copies of a stripe is 0 or more than [`COPIES_MAX`].
    Copies(usize),
    /// There can be no such stripes.
    Stripes {
        /// The stripe unit in bytes.
        unit: u64,
        /// The number of stripes.
        count: usize,
    },
    /// The number of objects is more than [`OBJECTS_MAX`].
    Objects(usize),
    /// A copy has an unknown state.
    State {
        /// The index of the copy.
        copy: usize,
        /// The state.
        state: u8,
    },
    /// No copy of a stripe is in sync.
    Lost,
}

/// Maximum number of copies of a file. Linux's client writes to no more (fs/nfs/flexfilelayout).
pub const COPIES_MAX: usize = 16;
/// Maximum number of objects of a file.
pub const OBJECTS_MAX: usize = 64;

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
    /// Returns the indices of the copies of a stripe.
    pub fn copies_of(&self, stripe: usize) -> impl Iterator<Item = usize> + use<> {
        (stripe..self.copies.len()).step_by(self.stripes.count())
    }

    /// Returns the stripe of a copy.
    pub fn stripe_of(&self, copy: usize) -> usize {
        copy % self.stripes.count()
    }

    /// Returns the indices of the copies of all stripes that can be read.
    pub fn in_sync(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.copies.len()).filter(|copy| self.copies[*copy].state == CopyState::InSync)
    }

    /// Returns the indices of the copies of a stripe that can be read.
    pub fn in_sync_of(&self, stripe: usize) -> impl Iterator<Item = usize> + '_ {
        self.copies_of(stripe).filter(|copy| self.copies[*copy].state == CopyState::InSync)
    }

    /// Returns the indices of the copies of all stripes that receive writes.
    pub fn written(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.copies.len()).filter(|copy| self.copies[*copy].state != CopyState::Stale)
    }

    /// Returns the indices of the copies of a stripe that receive writes.
    pub fn written_of(&self, stripe: usize) -> impl Iterator<Item = usize> + '_ {
        self.copies_of(stripe).filter(|copy| self.copies[*copy].state != CopyState::Stale)
    }

    /// Returns a stripe that has no copy in sync among those for which `left` is `true`.
    pub fn stripe_without(&self, left: impl Fn(usize) -> bool) -> Option<usize> {
        (0..self.stripes.count()).find(|stripe| !self.in_sync_of(*stripe).any(&left))
    }

    /// Returns `true` if all copies are in sync.
    pub fn is_healthy(&self) -> bool {
        self.copies.iter().all(|copy| copy.state == CopyState::InSync)
    }

    /// Encodes the record.
    pub fn encode(&self) -> Vec<u8> {
        let stripes = self.stripes.count();
        let striped = stripes > 1;
        let mut bytes = Vec::with_capacity(HEADER + STRIPES + self.copies.len() * COPY + CRC);
        bytes.extend(if striped { VERSION_STRIPED } else { VERSION }.to_be_bytes());
        bytes.extend(self.generation.to_be_bytes());
        bytes.extend(self.epochs.writers.to_be_bytes());
        bytes.extend(self.epochs.readers.to_be_bytes());
        bytes.extend(((self.copies.len() / stripes) as u16).to_be_bytes());
        if striped {
            bytes.extend(self.stripes.unit().to_be_bytes());
            bytes.extend((stripes as u16).to_be_bytes());
        }
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
        let (stripes, rest) = match number(&header[..2]) as u16 {
            VERSION => (Stripes::ONE, rest),
            VERSION_STRIPED => decode_stripes(rest).ok_or(wrong(HEADER + STRIPES + COPY + CRC))??,
            version => return Err(RecordError::Version(version)),
        };
        let epochs = Epochs { writers: number(&header[10..14]) as u32, readers: number(&header[14..18]) as u32 };
        let mirrors = number(&header[18..]) as usize;
        if !(1..=COPIES_MAX).contains(&mirrors) {
            return Err(RecordError::Copies(mirrors));
        }
        let count = mirrors * stripes.count();
        if count > OBJECTS_MAX {
            return Err(RecordError::Objects(count));
        }
        if rest.len() != count * COPY + CRC {
            return Err(wrong(bytes.len() - rest.len() + count * COPY + CRC));
        }
        let (body, crc) = bytes.split_at(bytes.len() - CRC);
        if u128::from(crc32c::crc32c(body)) != number(crc) {
            return Err(RecordError::Checksum);
        }
        let copies = rest[..count * COPY].chunks_exact(COPY).enumerate();
        let copies = copies.map(|(at, bytes)| decode_copy(at, bytes)).collect::<Result<Vec<_>, _>>()?;
        let record = Self { generation: number(&header[2..10]) as u64, epochs, stripes, copies };
        if record.stripe_without(|_| true).is_some() { Err(RecordError::Lost) } else { Ok(record) }
    }
}

/// Decodes the stripes of a record of version 2. Returns the bytes behind them, or `None` if there are not enough.
fn decode_stripes(bytes: &[u8]) -> Option<Result<(Stripes, &[u8]), RecordError>> {
    let (stripes, rest) = bytes.split_first_chunk::<STRIPES>()?;
    let (unit, count) = (number(&stripes[..8]) as u64, number(&stripes[8..]) as usize);
    let stripes = Stripes::new(unit, count).filter(|stripes| stripes.count() > 1);
    Some(stripes.map(|stripes| (stripes, rest)).ok_or(RecordError::Stripes { unit, count }))
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
            Self::Version(version) => write!(f, "it has version {version}, and this program knows only 1 and 2"),
            Self::Checksum => f.write_str("its checksum is wrong"),
            Self::Copies(count) => write!(f, "it has {count} copies, and there must be 1 to {COPIES_MAX}"),
            Self::Stripes { unit, count } => write!(f, "it has {count} stripes of {unit} bytes, which is impossible"),
            Self::Objects(count) => write!(f, "it has {count} objects, and there can be {OBJECTS_MAX}"),
            Self::State { copy, state } => write!(f, "copy {copy} has the unknown state {state}"),
            Self::Lost => f.write_str("no copy of a stripe is in sync"),
        }
    }
}

impl std::error::Error for RecordError {}

/// The version of files with one stripe, which earlier programs know.
const VERSION: u16 = 1;
const VERSION_STRIPED: u16 = 2;
const HEADER: usize = 20;
const STRIPES: usize = 10;
const COPY: usize = 21;
const CRC: usize = 4;
/// The first user of objects. None of them is a user of a person or of the system.
const USERS_MIN: u32 = 1 << 30;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn record(copies: u16) -> Record {
        striped(copies, 1)
    }

    fn striped(copies: u16, stripes: u16) -> Record {
        let copies = (0..copies * stripes).map(|at| Copy {
            object: Object { server: ServerId(at.into()), id: 1 << 100 | u128::from(at) },
            state: if at < stripes { CopyState::InSync } else { CopyState::Copying },
        });
        let stripes = Stripes::new(1 << 20, stripes.into()).unwrap();
        Record { generation: 5, epochs: Epochs { writers: 3, readers: 4 }, stripes, copies: copies.collect() }
    }

    #[test]
    fn record_survives_encoding() {
        for (copies, stripes) in [(1, 1), (3, 1), (16, 1), (1, 2), (2, 3), (4, 16), (16, 4)] {
            let record = striped(copies, stripes);
            let bytes = record.encode();
            assert!(bytes.len() <= 2048, "a record must fit into an attribute of any file system");
            assert_eq!(Record::decode(&bytes), Ok(record));
        }
    }

    /// A record of a release without stripes.
    #[test]
    fn record_of_version_1_has_one_stripe() {
        let mut bytes = [[0, 1].as_slice(), &[0; 7], &[9], &[0, 0, 0, 1], &[0, 0, 0, 2], &[0, 1]].concat();
        bytes.extend([[0, 0, 0, 7].as_slice(), &[0xab; 16], &[0]].concat());
        bytes.extend(crc32c::crc32c(&bytes).to_be_bytes());
        let object = Object { server: ServerId(7), id: u128::from_be_bytes([0xab; 16]) };
        let expected = Record {
            generation: 9,
            epochs: Epochs { writers: 1, readers: 2 },
            stripes: Stripes::ONE,
            copies: vec![Copy { object, state: CopyState::InSync }],
        };
        assert_eq!(Record::decode(&bytes), Ok(expected.clone()));
        assert_eq!(expected.encode(), bytes, "an earlier release must be able to read it");
    }

    #[test]
    fn wrong_stripes_are_named() {
        let with = |at: usize, value: u8| {
            let mut bytes = striped(2, 3).encode();
            bytes[at] = value;
            Record::decode(&bytes).unwrap_err()
        };
        let (unit, count) = (HEADER + 5, HEADER + 9);
        assert_eq!(with(unit, 0), RecordError::Stripes { unit: 0, count: 3 });
        for wrong in [0, 1, 17] {
            assert_eq!(with(count, wrong), RecordError::Stripes { unit: 1 << 20, count: wrong.into() });
        }
        assert_eq!(with(count, 16), RecordError::Length { bytes: 160, expected: 706 });
        assert_eq!(Record::decode(&striped(5, 13).encode()), Err(RecordError::Objects(65)));
    }

    #[test]
    fn record_is_lost_if_one_stripe_is() {
        let mut record = striped(2, 3);
        record.copies[1].state = CopyState::Stale;
        assert_eq!(Record::decode(&record.encode()), Err(RecordError::Lost));
        record.copies[4].state = CopyState::InSync;
        assert_eq!(Record::decode(&record.encode()), Ok(record.clone()));
        assert_eq!(record.in_sync_of(1).collect::<Vec<_>>(), [4]);
        assert_eq!(record.written_of(2).collect::<Vec<_>>(), [2, 5]);
        assert_eq!(record.stripe_without(|copy| copy != 2), Some(2));
    }

    #[test]
    fn damaged_record_gives_the_exact_error() {
        damage(&record(4));
        damage(&striped(2, 2));
        let good = record(4);
        let mut bytes = good.encode();
        bytes[1] = 3;
        let error = Record::decode(&bytes).unwrap_err();
        assert_eq!(error.to_string(), "it has version 3, and this program knows only 1 and 2");
        let mut lost = good.clone();
        lost.copies[0].state = CopyState::Stale;
        assert_eq!(Record::decode(&lost.encode()), Err(RecordError::Lost));
        assert_eq!(Record::decode(&record(17).encode()), Err(RecordError::Copies(17)));
        let none = Record { copies: Vec::new(), ..good };
        let bytes = [none.encode(), vec![0; COPY]].concat();
        assert_eq!(Record::decode(&bytes), Err(RecordError::Copies(0)));
    }

    fn damage(good: &Record) {
        let bytes = good.encode();
        for len in 0..bytes.len() {
            assert!(matches!(Record::decode(&bytes[..len]), Err(RecordError::Length { .. })), "{len}");
        }
        let header = if good.stripes.count() > 1 { HEADER + STRIPES } else { HEADER };
        for at in header..bytes.len() {
            let mut bad = bytes.clone();
            bad[at] ^= 1;
            assert_eq!(Record::decode(&bad), Err(RecordError::Checksum), "{at}");
        }
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
