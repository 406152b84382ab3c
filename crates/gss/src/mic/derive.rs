//! The keys of checksums, which are derived from the key of a context (RFC 3961 §5, RFC 3962 §6, RFC 8009 §3).
//!
//! Each key of a context has several uses, and each use has a key of its own. AES and HMAC are those of AWS-LC.

use aws_lc_rs::{
    cipher::{AES_128, AES_256, EncryptingKey, UnboundCipherKey},
    hmac,
};
use zeroize::Zeroizing;

use super::Enctype;

/// Returns the key of checksums for one use (`Kc`), or `None` if the context's key has a wrong length.
pub(super) fn checksum_key(enctype: Enctype, base: &[u8], usage: u32) -> Option<hmac::Key> {
    if base.len() != enctype.key_len() {
        return None;
    }
    // RFC 3961 §5.3: the key of checksums has the usage followed by 0x99. RFC 8009 §5 has the same constant.
    let [a, b, c, d] = usage.to_be_bytes();
    let constant = [a, b, c, d, 0x99];
    let (algorithm, key) = match enctype {
        Enctype::Aes128CtsHmacSha1 | Enctype::Aes256CtsHmacSha1 => {
            (hmac::HMAC_SHA1_FOR_LEGACY_USE_ONLY, dk(base, &constant)?)
        }
        Enctype::Aes128CtsHmacSha256 => (hmac::HMAC_SHA256, kdf_hmac_sha2(hmac::HMAC_SHA256, base, &constant, 16)),
        Enctype::Aes256CtsHmacSha384 => (hmac::HMAC_SHA384, kdf_hmac_sha2(hmac::HMAC_SHA384, base, &constant, 24)),
    };
    Some(hmac::Key::new(algorithm, &key))
}

/// Derives a key as long as `base`: `DK` (RFC 3961 §5.1) for AES, whose keys are any bits (RFC 3962 §6).
fn dk(base: &[u8], constant: &[u8]) -> Option<Zeroizing<Vec<u8>>> {
    let algorithm = if base.len() == 16 { &AES_128 } else { &AES_256 };
    // The cipher of one block is CBC-CTS with an initial state of zeros.
    let cipher = EncryptingKey::ecb(UnboundCipherKey::new(algorithm, base).ok()?).ok()?;
    let mut block = Zeroizing::new(n_fold::<AES_BLOCK>(constant));
    let mut derived = Zeroizing::new(Vec::with_capacity(base.len().next_multiple_of(AES_BLOCK)));
    while derived.len() < base.len() {
        cipher.encrypt(&mut block[..]).ok()?;
        derived.extend_from_slice(&block[..]);
    }
    derived.truncate(base.len());
    Some(derived)
}

/// Derives a key of `len` bytes: `KDF-HMAC-SHA2` (RFC 8009 §3), without a context.
fn kdf_hmac_sha2(algorithm: hmac::Algorithm, base: &[u8], label: &[u8], len: usize) -> Zeroizing<Vec<u8>> {
    let bits = (8 * len as u32).to_be_bytes();
    let input = [&1u32.to_be_bytes()[..], label, &[0], &bits].concat();
    let mut derived = Zeroizing::new(vec![0; algorithm.tag_len()]);
    hmac::sign_to_buffer(&hmac::Key::new(algorithm, base), &input, &mut derived)
        .expect("the buffer must be large enough");
    derived.truncate(len);
    derived
}

/// Stretches or folds `input`, which is not empty, to `N` bytes (RFC 3961 §5.1, `n-fold`).
///
/// Copies of the input follow each other up to the least common multiple of both lengths, each rotated to the right by 13 more
/// bits. The parts of `N` bytes of this are added as numbers in ones' complement.
fn n_fold<const N: usize>(input: &[u8]) -> [u8; N] {
    let bits = 8 * input.len();
    let rotated = |at: usize| {
        let (copy, byte) = (at / input.len(), at % input.len());
        let from = (8 * byte + bits - 13 * copy % bits) % bits;
        let pair = [input[from / 8], input[(from / 8 + 1) % input.len()]];
        (u16::from_be_bytes(pair) << (from % 8) >> 8) as u8
    };
    let mut sums = [0usize; N];
    (0..lcm(N, input.len())).for_each(|at| sums[at % N] += usize::from(rotated(at)));
    // The carry of the first byte is added to the last one, until there is none.
    let mut carry = 0;
    loop {
        for sum in sums.iter_mut().rev() {
            let total = *sum + carry;
            (*sum, carry) = (total & 0xff, total >> 8);
        }
        if carry == 0 {
            return sums.map(|sum| sum as u8);
        }
    }
}

fn lcm(a: usize, b: usize) -> usize {
    let (mut high, mut low) = (a, b);
    while low != 0 {
        (high, low) = (low, high % low);
    }
    a / high * b
}

const AES_BLOCK: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;

    fn hex(text: &str) -> Vec<u8> {
        let digits: Vec<u8> = text.bytes().filter(u8::is_ascii_hexdigit).collect();
        let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).expect("digits"), 16).expect("digits");
        digits.chunks(2).map(byte).collect()
    }

    /// The vectors of RFC 3961 A.1.
    #[test]
    fn n_fold_has_the_values_of_the_rfc() {
        assert_eq!(n_fold::<8>(b"012345")[..], hex("be072631276b1955"));
        assert_eq!(n_fold::<7>(b"password")[..], hex("78a07b6caf85fa"));
        assert_eq!(n_fold::<8>(b"Rough Consensus, and Running Code")[..], hex("bb6ed30870b7f0e0"));
        assert_eq!(n_fold::<21>(b"password")[..], hex("59e4a8ca7c0385c3c37b3f6d2000247cb6e6bd5b3e"));
        let massachvsetts = b"MASSACHVSETTS INSTITVTE OF TECHNOLOGY";
        assert_eq!(n_fold::<24>(massachvsetts)[..], hex("db3b0d8f0b061e603282b308a50841229ad798fab9540c1b"));
        assert_eq!(n_fold::<21>(b"Q")[..], hex("518a54a2 15a8452a 518a54a2 15a8452a 518a54a2 15"));
        assert_eq!(n_fold::<21>(b"ba")[..], hex("fb25d531 ae897449 9f52fd92 ea9857c4 ba24cf29 7e"));
        assert_eq!(n_fold::<8>(b"kerberos")[..], hex("6b657262 65726f73"));
        assert_eq!(n_fold::<16>(b"kerberos")[..], hex("6b657262 65726f73 7b9b5b2b 93132b93"));
        assert_eq!(n_fold::<21>(b"kerberos")[..], hex("8372c236 344e5f15 50cd0747 e15d62ca 7a5a3bce a4"));
        let long = "6b657262 65726f73 7b9b5b2b 93132b93 5c9bdcda d95c9899 c4cae4de e6d6cae4";
        assert_eq!(n_fold::<32>(b"kerberos")[..], hex(long));
    }

    /// The last step of string-to-key (RFC 3962 §4) is `DK` with "kerberos"; the vectors are those of appendix B.
    #[test]
    fn dk_has_the_values_of_the_rfc() {
        for (base, derived) in [
            ("cdedb5281bb2f801565a1122b2563515", "42263c6e89f4fc28b8df68ee09799f15"),
            (
                "cdedb5281bb2f801565a1122b25635150ad1f7a04bb9f3a333ecc0e2e1f70837",
                "fe697b52bc0d3ce14432ba036a92e65bbb52280990a2fa27883998d72af30161",
            ),
        ] {
            assert_eq!(dk(&hex(base), b"kerberos").expect("the key has a valid length")[..], hex(derived));
        }
    }

    /// The vectors of RFC 8009 appendix A, "Sample results for key derivation".
    #[test]
    fn kdf_has_the_values_of_the_rfc() {
        let base = hex("3705D96080C17728A0E800EAB6E0D23C");
        let derived = kdf_hmac_sha2(hmac::HMAC_SHA256, &base, &[0, 0, 0, 2, 0x99], 16);
        assert_eq!(derived[..], hex("B31A018A48F54776F403E9A396325DC3"));
        let base = hex("6D404D37FAF79F9DF0D33568D320669800EB4836472EA8A026D16B7182460C52");
        let derived = kdf_hmac_sha2(hmac::HMAC_SHA384, &base, &[0, 0, 0, 2, 0x99], 24);
        assert_eq!(derived[..], hex("EF5718BE86CC84963D8BBB5031E9F5C4BA41F28FAF69E73D"));
    }

    /// The last two are those of RFC 8009 appendix A, "Sample checksums". RFC 3962 has none: the values are those of MIT's library.
    #[test]
    fn checksums_have_the_values_of_the_rfc_and_of_the_library() {
        let counted: Vec<u8> = (0..=0x14).collect();
        for (enctype, usage, base, message, checksum) in [
            (
                Enctype::Aes128CtsHmacSha1,
                3,
                "9062430C8CDA3388922E6D6A509F5B7A",
                &b"eight nine ten eleven twelve thirteen"[..],
                "01A4B088D45628F6946614E3",
            ),
            (
                Enctype::Aes256CtsHmacSha1,
                4,
                "B1AE4CD8462AFF1677053CC9279AAC30B796FB81CE21474DD3DDBCFEA4EC76D7",
                b"fourteen",
                "E08739E3279E2903EC8E3836",
            ),
            (
                Enctype::Aes128CtsHmacSha256,
                2,
                "3705D96080C17728A0E800EAB6E0D23C",
                &counted,
                "D78367186643D67B411CBA9139FC1DEE",
            ),
            (
                Enctype::Aes256CtsHmacSha384,
                2,
                "6D404D37FAF79F9DF0D33568D320669800EB4836472EA8A026D16B7182460C52",
                &counted,
                "45EE791567EEFCA37F4AC1E0222DE80D43C3BFA06699672A",
            ),
        ] {
            let key = checksum_key(enctype, &hex(base), usage).expect("the key has a valid length");
            let tag = hmac::sign(&key, message);
            assert_eq!(tag.as_ref()[..enctype.checksum_len()], hex(checksum), "{enctype:?}");
            assert!(checksum_key(enctype, &hex(base)[1..], usage).is_none(), "a short key");
            assert!(checksum_key(enctype, &[&hex(base)[..], &[0]].concat(), usage).is_none(), "a long key");
        }
    }
}
