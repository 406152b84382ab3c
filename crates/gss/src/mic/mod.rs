//! MIC tokens of Kerberos 5 (RFC 4121 §4.2.6.1), which are made and verified without MIT's library. It is pure.
//!
//! Read RFC 4121 §4.2 first. The library needs 1.5 µs for the token of a few bytes, and every call needs four
//! (`docs/adr/0015-mic-tokens.md`). [`kerberos`](crate::kerberos) gets the key of an established context from the library.
//! `derive.rs` has the keys that are derived from it, and `token.rs` the format.
//!
//! **Sequence numbers.** Each token has the next number of a counter. The receiver does not check it, because a context of RPCSEC_GSS has neither
//! detection of replays nor of sequence (RFC 2203 §5.2.2): calls have numbers of their own, which tokens cover. Contexts that have it must not
//! use this module.
//!
//! **Expiry** is checked by the callers, which know the time at which a context ends: neither the library nor this module checks it for a token.
//!
//! Buffers: messages are only read. On error: a token that is not valid here may still be one that the library accepts, so the
//! caller asks it.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use aws_lc_rs::{constant_time::verify_slices_are_equal, hmac};
use bytes::Bytes;

mod derive;
mod token;

pub use token::{ACCEPTOR_SUBKEY, HEADER_LEN, MicToken, SENT_BY_ACCEPTOR};

/// The encryption type of a key, if its checksums are known here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Enctype {
    /// `aes128-cts-hmac-sha1-96` (RFC 3962).
    Aes128CtsHmacSha1 = 17,
    /// `aes256-cts-hmac-sha1-96` (RFC 3962).
    Aes256CtsHmacSha1 = 18,
    /// `aes128-cts-hmac-sha256-128` (RFC 8009).
    Aes128CtsHmacSha256 = 19,
    /// `aes256-cts-hmac-sha384-192` (RFC 8009).
    Aes256CtsHmacSha384 = 20,
}

impl Enctype {
    /// All of them.
    pub const ALL: [Self; 4] =
        [Self::Aes128CtsHmacSha1, Self::Aes256CtsHmacSha1, Self::Aes128CtsHmacSha256, Self::Aes256CtsHmacSha384];

    /// Returns the encryption type of a number (IANA, "Kerberos Encryption Type Numbers"), if it is known here.
    pub fn from_number(number: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|enctype| *enctype as u8 == number)
    }

    /// Returns the length of keys in bytes.
    pub const fn key_len(self) -> usize {
        match self {
            Self::Aes128CtsHmacSha1 | Self::Aes128CtsHmacSha256 => 16,
            Self::Aes256CtsHmacSha1 | Self::Aes256CtsHmacSha384 => 32,
        }
    }

    /// Returns the length of checksums in bytes.
    pub const fn checksum_len(self) -> usize {
        match self {
            // RFC 3962 §6: 96 bits.
            Self::Aes128CtsHmacSha1 | Self::Aes256CtsHmacSha1 => 12,
            // RFC 8009 §6.
            Self::Aes128CtsHmacSha256 => 16,
            Self::Aes256CtsHmacSha384 => 24,
        }
    }
}

/// An end of a context.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The client's.
    Initiator,
    /// The server's.
    Acceptor,
}

impl Side {
    const fn peer(self) -> Self {
        match self {
            Self::Initiator => Self::Acceptor,
            Self::Acceptor => Self::Initiator,
        }
    }

    /// Returns the key usage of the tokens of this side (RFC 4121 §2).
    const fn usage(self) -> u32 {
        match self {
            // KG-USAGE-ACCEPTOR-SIGN and KG-USAGE-INITIATOR-SIGN.
            Self::Acceptor => 23,
            Self::Initiator => 25,
        }
    }
}

/// The keys of a context for MIC tokens in both directions. AWS-LC overwrites a key when it is dropped;
/// copies that were made on the stack when it was moved or used may remain.
pub struct MicKeys {
    enctype: Enctype,
    own: Direction,
    peer: Direction,
    next_sequence: AtomicU64,
}

/// The key and the flags of tokens in one direction.
struct Direction {
    key: hmac::Key,
    flags: u8,
}

impl Direction {
    fn new(enctype: Enctype, key: &[u8], sender: Side, acceptor_subkey: bool) -> Option<Self> {
        let sent_by = if sender == Side::Acceptor { SENT_BY_ACCEPTOR } else { 0 };
        let flags = sent_by | if acceptor_subkey { ACCEPTOR_SUBKEY } else { 0 };
        Some(Self { key: derive::checksum_key(enctype, key, sender.usage())?, flags })
    }

    /// Computes the checksum of the message and of the token's header, before it is truncated (RFC 4121 §4.2.4).
    fn tag(&self, message: &[u8], header: &[u8; HEADER_LEN]) -> hmac::Tag {
        let mut context = hmac::Context::with_key(&self.key);
        context.update(message);
        context.update(header);
        context.sign()
    }
}

impl MicKeys {
    /// Derives the keys of one side from the key of the context: the subkey of the acceptor if `acceptor_subkey`, else that of
    /// the initiator or of the ticket. The first token has the number `next_sequence`. Returns `None` if the key has a wrong length.
    pub fn new(enctype: Enctype, key: &[u8], side: Side, acceptor_subkey: bool, next_sequence: u64) -> Option<Self> {
        let direction = |sender| Direction::new(enctype, key, sender, acceptor_subkey);
        let (own, peer) = (direction(side)?, direction(side.peer())?);
        Some(Self { enctype, own, peer, next_sequence: AtomicU64::new(next_sequence) })
    }

    /// Returns the encryption type.
    pub fn enctype(&self) -> Enctype {
        self.enctype
    }

    /// Makes the token of a message.
    pub fn mic(&self, message: &[u8]) -> Bytes {
        let header = token::header(self.own.flags, self.next_sequence.fetch_add(1, Relaxed));
        let tag = self.own.tag(message, &header);
        let mut token = [0; HEADER_LEN + CHECKSUM_MAX];
        let len = HEADER_LEN + self.enctype.checksum_len();
        token[..HEADER_LEN].copy_from_slice(&header);
        token[HEADER_LEN..len].copy_from_slice(&tag.as_ref()[..self.enctype.checksum_len()]);
        Bytes::copy_from_slice(&token[..len])
    }

    /// Reports whether the peer has made this token for this message, with the key and the flags of this context. The time does
    /// not depend on the contents of the checksum.
    pub fn verifies(&self, message: &[u8], token: &[u8]) -> bool {
        let Some(MicToken { flags, header, checksum, .. }) = MicToken::parse(token) else { return false };
        // RFC 4121 §4.2.2: a token of the own side, which was reflected, or with another subkey, has other flags.
        if flags != self.peer.flags || checksum.len() != self.enctype.checksum_len() {
            return false;
        }
        let tag = self.peer.tag(message, header);
        verify_slices_are_equal(&tag.as_ref()[..self.enctype.checksum_len()], checksum).is_ok()
    }
}

/// Maximum length of a checksum in bytes.
const CHECKSUM_MAX: usize = 24;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn pair(enctype: Enctype, subkey: bool) -> (MicKeys, MicKeys) {
        let key = vec![7; enctype.key_len()];
        let of = |side, sequence| MicKeys::new(enctype, &key, side, subkey, sequence).expect("the length is valid");
        (of(Side::Initiator, 100), of(Side::Acceptor, 0))
    }

    fn enctypes() -> impl Strategy<Value = Enctype> {
        prop::sample::select(&Enctype::ALL[..])
    }

    #[test]
    fn numbers_of_enctypes_are_those_of_iana() {
        let known = (0..=u8::MAX).filter_map(|number| Some((number, Enctype::from_number(number)?)));
        let expected = [17, 18, 19, 20].into_iter().zip(Enctype::ALL);
        assert!(known.eq(expected));
    }

    #[test]
    fn tokens_have_the_flags_of_their_side_and_the_next_number() {
        for (subkey, flags) in [(false, [0, 1]), (true, [4, 5])] {
            let (client, server) = pair(Enctype::Aes256CtsHmacSha1, subkey);
            for (keys, flags, first) in [(&client, flags[0], 100), (&server, flags[1], 0)] {
                for sequence in first..first + 3 {
                    let token = keys.mic(b"message");
                    let token = MicToken::parse(&token).expect("our own tokens must parse");
                    assert_eq!((token.flags, token.sequence), (flags, sequence));
                }
            }
        }
    }

    #[test]
    fn keys_of_another_length_are_refused() {
        for enctype in Enctype::ALL {
            for len in [0, 15, 17, 24, 31, 33, 48 - enctype.key_len()] {
                assert!(MicKeys::new(enctype, &vec![0; len], Side::Acceptor, true, 0).is_none(), "{enctype:?}, {len}");
            }
        }
    }

    proptest! {
        #[test]
        fn the_peer_verifies_tokens_and_nobody_else_does(
            enctype in enctypes(),
            subkey in any::<bool>(),
            message in prop::collection::vec(any::<u8>(), 0..300),
        ) {
            let (client, server) = pair(enctype, subkey);
            let (other, _) = pair(enctype, !subkey);
            for (sender, receiver) in [(&client, &server), (&server, &client)] {
                let token = sender.mic(&message);
                prop_assert!(receiver.verifies(&message, &token));
                prop_assert!(!sender.verifies(&message, &token), "a reflected token");
                prop_assert!(!receiver.verifies(&[&message[..], &[0]].concat(), &token), "a longer message");
            }
            prop_assert!(!server.verifies(&message, &other.mic(&message)), "another subkey");
        }

        #[test]
        fn every_change_of_a_token_or_of_its_message_is_noticed(
            enctype in enctypes(),
            message in prop::collection::vec(any::<u8>(), 1..100),
            at in any::<prop::sample::Index>(),
            bit in 0u8..8,
        ) {
            let (client, server) = pair(enctype, true);
            let token = client.mic(&message);
            for byte in 0..token.len() {
                let mut changed = token.to_vec();
                changed[byte] ^= 1 << bit;
                prop_assert!(!server.verifies(&message, &changed), "byte {}", byte);
            }
            for len in 0..token.len() {
                prop_assert!(!server.verifies(&message, &token[..len]), "{} bytes", len);
            }
            prop_assert!(!server.verifies(&message, &[&token[..], &[0]].concat()), "a longer token");
            let mut other = message.clone();
            other[at.index(message.len())] ^= 1 << bit;
            prop_assert!(!server.verifies(&other, &token), "another message");
        }
    }
}
