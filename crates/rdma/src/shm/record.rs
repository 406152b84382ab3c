//! The records in a ring: a head word, argument words, and bytes.
//!
//! | record | arguments | bytes |
//! |---|---|---|
//! | Send | region to invalidate, or 0 | the next bytes of the message |
//! | Write | STag, tagged offset | the next bytes to be placed |
//! | ReadRequest | STag, tagged offset, length | |
//! | ReadResponse | | the next bytes of the response to the oldest request |
//! | Terminate | number of the rejected read, or 0 | a description of the error |
//! | Close | | |
//!
//! The head word contains, from its lowest bit: the length in bytes (32 bits), the kind (8 bits), flags (8 bits), and
//! zeros. A message longer than [`FRAGMENT_MAX`] takes several records, the last of which is flagged. The peer can
//! change its words at any time, so [`Record::take`] loads each word once and validates the loaded value.

use super::ring::{Consumer, Corrupt, Producer, Words};
use crate::Stag;

/// A record without its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Record {
    /// A part of a Send.
    Send { last: bool, solicited: bool, invalidate: Option<Stag> },
    /// A part of an RDMA Write.
    Write { stag: Stag, offset: u64 },
    /// An RDMA Read.
    ReadRequest { stag: Stag, offset: u64, len: u32 },
    /// A part of the response to an RDMA Read.
    ReadResponse { last: bool },
    /// The sender of this record closes the connection because the receiver violated the protocol.
    Terminate { refused: u64 },
    /// The sender of this record sends nothing more.
    Close,
}

/// A record that has arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Arrived {
    pub(crate) record: Record,
    /// The number of its bytes.
    pub(crate) len: usize,
    /// The number of words before the bytes.
    pub(crate) ahead: usize,
}

impl Arrived {
    /// Returns the number of words of the record.
    pub(crate) fn words(&self) -> usize {
        self.ahead + self.len.div_ceil(8)
    }
}

impl Record {
    /// Returns the number of words of the record with `len` bytes.
    pub(crate) fn words(&self, len: usize) -> usize {
        1 + argument_count(self.kind()) + len.div_ceil(8)
    }

    /// Appends the record. The caller has checked that there is room, and appends `len` bytes next.
    pub(crate) fn put<W: Words>(&self, len: usize, ring: &mut Producer<W>) {
        debug_assert!(len <= FRAGMENT_MAX);
        let flags = match *self {
            Record::Send { last, solicited, .. } => flag(last, LAST) | flag(solicited, SOLICITED),
            Record::ReadResponse { last } => flag(last, LAST),
            _ => 0,
        };
        ring.push(len as u64 | self.kind() << 32 | flags << 40);
        match *self {
            Record::Send { invalidate, .. } => ring.push(invalidate.map_or(0, |stag| stag.0.into())),
            Record::Write { stag, offset } => [stag.0.into(), offset].into_iter().for_each(|word| ring.push(word)),
            Record::ReadRequest { stag, offset, len } => {
                [stag.0.into(), offset, len.into()].into_iter().for_each(|word| ring.push(word));
            }
            Record::Terminate { refused } => ring.push(refused),
            Record::ReadResponse { .. } | Record::Close => {}
        }
    }

    /// Returns the next record if one has arrived. It stays in the ring until [`Consumer::advance`] is called with its
    /// words.
    ///
    /// # Errors
    /// The words are not a valid record, or the record is incomplete: a producer publishes only complete records.
    pub(crate) fn take<W: Words>(ring: &mut Consumer<W>) -> Result<Option<Arrived>, Corrupt> {
        let available = ring.available()?;
        if available == 0 {
            return Ok(None);
        }
        let head = ring.word(0);
        let (len, kind, flags) = (head as u32 as usize, head >> 32 & 0xff, head >> 40);
        let ahead = 1 + argument_count(kind);
        if kind > CLOSE || flags > (LAST | SOLICITED) || len > FRAGMENT_MAX || ahead + len.div_ceil(8) > available {
            return Err(Corrupt);
        }
        let stag = |word: u64| u32::try_from(word).map(Stag).map_err(|_| Corrupt);
        let last = flags & LAST != 0;
        let record = match kind {
            SEND => {
                let invalidate = Some(stag(ring.word(1))?).filter(|stag| stag.0 != 0);
                Record::Send { last, solicited: flags & SOLICITED != 0, invalidate }
            }
            WRITE => Record::Write { stag: stag(ring.word(1))?, offset: ring.word(2) },
            READ_REQUEST => Record::ReadRequest {
                stag: stag(ring.word(1))?,
                offset: ring.word(2),
                len: u32::try_from(ring.word(3)).map_err(|_| Corrupt)?,
            },
            READ_RESPONSE => Record::ReadResponse { last },
            TERMINATE => Record::Terminate { refused: ring.word(1) },
            _ => Record::Close,
        };
        Ok(Some(Arrived { record, len, ahead }))
    }

    fn kind(&self) -> u64 {
        match self {
            Record::Send { .. } => SEND,
            Record::Write { .. } => WRITE,
            Record::ReadRequest { .. } => READ_REQUEST,
            Record::ReadResponse { .. } => READ_RESPONSE,
            Record::Terminate { .. } => TERMINATE,
            Record::Close => CLOSE,
        }
    }
}

fn argument_count(kind: u64) -> usize {
    match kind {
        SEND | TERMINATE => 1,
        WRITE => 2,
        READ_REQUEST => 3,
        _ => 0,
    }
}

fn flag(set: bool, bit: u64) -> u64 {
    if set { bit } else { 0 }
}

/// Maximum bytes of one record: an eighth of a ring.
pub(crate) const FRAGMENT_MAX: usize = 8 << 10;

const SEND: u64 = 0;
const WRITE: u64 = 1;
const READ_REQUEST: u64 = 2;
const READ_RESPONSE: u64 = 3;
const TERMINATE: u64 = 4;
const CLOSE: u64 = 5;
const LAST: u64 = 1;
const SOLICITED: u64 = 2;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shm::memory::Control;

    #[test]
    fn every_record_round_trips() {
        let records = [
            Record::Send { last: true, solicited: false, invalidate: None },
            Record::Send { last: false, solicited: true, invalidate: Some(Stag(0xffff_ff01)) },
            Record::Write { stag: Stag(7), offset: u64::MAX },
            Record::ReadRequest { stag: Stag(0), offset: 1 << 40, len: u32::MAX },
            Record::ReadResponse { last: true },
            Record::Terminate { refused: 3 },
            Record::Close,
        ];
        let control = Control::create().unwrap();
        let (mut tx, mut rx) = (control.tx(true), control.rx(false));
        for (at, record) in records.into_iter().enumerate() {
            let bytes = vec![at as u8; at * 11];
            assert!(tx.has_room(record.words(bytes.len())).unwrap());
            record.put(bytes.len(), &mut tx);
            tx.push_bytes(&bytes);
            tx.publish();
            let arrived = Record::take(&mut rx).unwrap().unwrap();
            assert_eq!((arrived.record, arrived.len), (record, bytes.len()));
            let mut got = vec![0; arrived.len];
            rx.copy_to(arrived.ahead, &mut got);
            assert_eq!(got, bytes);
            rx.advance(arrived.words());
            assert_eq!(Record::take(&mut rx), Ok(None));
        }
    }

    #[test]
    fn invalid_records_are_rejected() {
        let bad: &[&[u64]] = &[
            &[6 << 32],
            &[0xff << 32],
            &[4 << 40 | READ_RESPONSE << 32],
            &[1 << 63],
            &[(FRAGMENT_MAX as u64 + 1) | (READ_RESPONSE << 32), 0, 0],
            &[9 | READ_RESPONSE << 32, 0],
            &[SEND << 32],
            &[SEND << 32, 1 << 32],
            &[WRITE << 32, 1],
            &[READ_REQUEST << 32, 1, 0, 1 << 32],
        ];
        for words in bad {
            let control = Control::create().unwrap();
            let (mut tx, mut rx) = (control.tx(true), control.rx(false));
            words.iter().for_each(|&word| tx.push(word));
            tx.publish();
            assert_eq!(Record::take(&mut rx), Err(Corrupt), "{words:x?}");
        }
    }
}
