//! [`Trace`]: the record of the messages of a simulated network.

use std::{fmt, hash::Hasher, net::SocketAddr, time::Duration};

use siphasher::sip::SipHasher13;

use crate::Cut;

/// A message that has arrived.
#[derive(Clone, PartialEq, Eq)]
pub struct Event {
    /// The time of arrival since the creation of the network.
    pub at: Duration,
    /// The address of the sender.
    pub from: SocketAddr,
    /// The address of the receiver.
    pub to: SocketAddr,
    /// The kind of message, for example "segment" or "Send".
    pub kind: &'static str,
    /// A hash of the bytes.
    pub digest: u64,
    /// The cut, if the connection was cut at this message.
    pub cut: Option<Cut>,
}

impl fmt::Debug for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { at, from, to, kind, digest, cut } = self;
        write!(f, "{at:?} {from} -> {to} {kind} {digest:016x}")?;
        cut.map_or(Ok(()), |cut| write!(f, " cut {cut:?}"))
    }
}

/// All messages of a network in the order of their arrival.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Trace {
    /// The messages.
    pub events: Vec<Event>,
}

impl Trace {
    /// Returns a hash of all messages.
    pub fn digest(&self) -> u64 {
        let all: Vec<_> = self.events.iter().map(|event| format!("{event:?}")).collect();
        digest([all.join("\n").as_bytes()])
    }

    /// Returns the number of the first message that differs from another trace, and the message in both. A message is `None`
    /// if its trace ends before.
    pub fn first_difference<'a>(&'a self, other: &'a Self) -> Option<(usize, Option<&'a Event>, Option<&'a Event>)> {
        let len = self.events.len().max(other.events.len());
        let at = |trace: &'a Self, number| trace.events.get(number);
        let number = (0..len).find(|&number| at(self, number) != at(other, number))?;
        Some((number, at(self, number), at(other, number)))
    }
}

/// Returns a hash of the pieces. It is the same in every process.
pub(crate) fn digest<'a>(pieces: impl IntoIterator<Item = &'a [u8]>) -> u64 {
    let mut hasher = SipHasher13::new();
    pieces.into_iter().for_each(|piece| hasher.write(piece));
    hasher.finish()
}
