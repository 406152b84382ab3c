//! What a simulated network has carried.

use std::{fmt, hash::Hasher, net::SocketAddr, time::Duration};

use siphasher::sip::SipHasher13;

use crate::Cut;

/// A message that has arrived.
#[derive(Clone, PartialEq, Eq)]
pub struct Event {
    /// When, since the network was made.
    pub at: Duration,
    /// From whom.
    pub from: SocketAddr,
    /// To whom.
    pub to: SocketAddr,
    /// What kind of message it is.
    pub kind: &'static str,
    /// Its bytes, hashed.
    pub digest: u64,
    /// Whether its connection was cut there.
    pub cut: Option<Cut>,
}

impl fmt::Debug for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { at, from, to, kind, digest, cut } = self;
        write!(f, "{at:?} {from} -> {to} {kind} {digest:016x}")?;
        cut.map_or(Ok(()), |cut| write!(f, " cut {cut:?}"))
    }
}

/// All messages of a network, in the order in which they have arrived.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Trace {
    /// The messages.
    pub events: Vec<Event>,
}

impl Trace {
    /// A hash of all.
    pub fn digest(&self) -> u64 {
        let all: Vec<_> = self.events.iter().map(|event| format!("{event:?}")).collect();
        digest([all.join("\n").as_bytes()])
    }

    /// The first message that differs in another trace, and where it is.
    pub fn first_difference<'a>(&'a self, other: &'a Self) -> Option<(usize, Option<&'a Event>, Option<&'a Event>)> {
        let len = self.events.len().max(other.events.len());
        let at = |trace: &'a Self, number| trace.events.get(number);
        let number = (0..len).find(|&number| at(self, number) != at(other, number))?;
        Some((number, at(self, number), at(other, number)))
    }
}

/// The same in each process.
pub(crate) fn digest<'a>(pieces: impl IntoIterator<Item = &'a [u8]>) -> u64 {
    let mut hasher = SipHasher13::new();
    pieces.into_iter().for_each(|piece| hasher.write(piece));
    hasher.finish()
}
