//! Encodes and decodes generated operations of NFSv4. A decoded value equals the original, and no prefix of its
//! encoding can be decoded.
//!
//! The tests have no code for individual types. Random bytes are repaired where their decoder reports an error, until
//! it accepts them. So this also tests that errors report the kind and the position of a problem.

use std::fmt::Debug;

use bytes::Bytes;
use nfs::{
    nfsacl, nlm, nsm,
    v4::{
        attr::*,
        callback::*,
        compound::*,
        layout::{files, flex},
        *,
    },
};
use proptest::{collection::vec, prelude::*};
use xdr::{Decode, DecodeError, DecodeErrorKind, Decoder, Encode, Message};

/// An endless source of bytes: the given ones, repeated and changed each time.
struct Entropy<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl Entropy<'_> {
    fn byte(&mut self) -> u8 {
        let round = (self.at / self.bytes.len()) as u8;
        let byte = self.bytes[self.at % self.bytes.len()];
        self.at += 1;
        byte.wrapping_mul(round.wrapping_mul(2) | 1).wrapping_add(round)
    }

    fn word(&mut self) -> u32 {
        u32::from_be_bytes(std::array::from_fn(|_| self.byte()))
    }

    /// Returns a discriminant: a small number, or a status.
    fn discriminant(&mut self) -> u32 {
        match self.byte() % 4 {
            0 | 1 => u32::from(self.byte() % 4),
            2 => u32::from(self.byte() % 80),
            _ => 10_000 + u32::from(self.byte() % 100),
        }
    }

    /// Returns a length. It is usually short, and sometimes long enough for every kind of padding.
    fn length(&mut self, max: u32) -> u32 {
        u32::from(self.byte() % 8).min(max)
    }
}

/// Returns a value of `T` whose encoding begins with `prefix`, and its encoding.
fn repair<T: Decode>(prefix: &[u8], entropy: &mut Entropy<'_>) -> (T, Bytes) {
    repair_by(prefix, entropy, |bytes| Message::from(bytes).decode())
}

fn repair_by<T>(
    prefix: &[u8],
    entropy: &mut Entropy<'_>,
    decode: impl Fn(Bytes) -> Result<T, DecodeError>,
) -> (T, Bytes) {
    let mut bytes = prefix.to_vec();
    for _ in 0..REPAIRS_MAX {
        match decode(bytes.clone().into()) {
            Ok(value) => return (value, bytes.into()),
            Err(error) => repair_at(&mut bytes, error, entropy),
        }
        assert!(bytes.starts_with(prefix), "the decoder must accept the prefix");
    }
    panic!("{bytes:x?} cannot be repaired");
}

/// Returns a value of one attribute.
fn repair_attribute(attribute: Attr4, purpose: Purpose, entropy: &mut Entropy<'_>) -> (Attrs, Fattr4) {
    let fattr = |bytes: Bytes| Fattr4 { attrmask: [attribute as u32].into_iter().collect(), attr_vals: bytes.into() };
    let (attrs, bytes) = repair_by(&[], entropy, |bytes| {
        fattr(bytes).to_attrs(2, purpose).map_err(|error| match error.kind {
            AttrErrorKind::Malformed(error) => error,
            other => panic!("{attribute:?}: {other:?}"),
        })
    });
    (attrs, fattr(bytes))
}

fn repair_at(bytes: &mut Vec<u8>, DecodeError { kind, offset }: DecodeError, entropy: &mut Entropy<'_>) {
    let is_long = bytes.len() > BYTES_MAX;
    let mut put = |offset: usize, word: u32| bytes[offset..offset + 4].copy_from_slice(&word.to_be_bytes());
    match kind {
        DecodeErrorKind::TrailingBytes => bytes.truncate(offset),
        // The missing bytes are megabytes of opaque data, whose length is before them.
        DecodeErrorKind::Truncated if is_long => put(offset - 4, 0),
        DecodeErrorKind::Truncated => (0..32).for_each(|_| bytes.push(entropy.byte())),
        DecodeErrorKind::TooLong { max: 0, .. } => {
            put(offset, 0);
            // With more bytes, more items may fit.
            (0..16).for_each(|_| bytes.push(entropy.byte()));
        }
        DecodeErrorKind::TooLong { max, .. } => put(offset, entropy.length(max)),
        DecodeErrorKind::BadDiscriminant(_) => put(offset, entropy.discriminant()),
        DecodeErrorKind::BadPadding => {
            let len = u32::from_be_bytes(bytes[offset - 4..offset].try_into().unwrap()) as usize;
            let end = offset + len.next_multiple_of(4);
            bytes[offset + len..end].fill(0);
        }
        other => panic!("{other:?}"),
    }
}

/// Checks a value whose encoding begins with `prefix`: it round-trips with its payloads beside the stream and in it,
/// and only as a whole.
fn check<T: Encode + Decode + PartialEq + Debug>(prefix: &[u8], entropy: &mut Entropy<'_>) -> T {
    check_but(prefix, entropy, 0)
}

/// Checks a value like [`check`], but the last `unread` bytes of its encoding may be arbitrary.
fn check_but<T: Encode + Decode + PartialEq + Debug>(prefix: &[u8], entropy: &mut Entropy<'_>, unread: usize) -> T {
    let (value, sent) = repair::<T>(prefix, entropy);
    let message = Message::encode(&value);
    assert_eq!(message.decode::<T>().as_ref(), Ok(&value), "with payloads beside the stream");
    let flat = message.to_rope().to_bytes().unwrap();
    assert_eq!(flat.len(), message.len());
    // The generated bytes may have had zero words at the end of a bitmap.
    let read = flat.len() - unread;
    assert!(flat.len() < sent.len() || flat.len() == sent.len() && flat[..read] == sent[..read], "{value:?}");
    assert_eq!(
        Message::from(flat.clone()).decode::<T>().as_ref(),
        Ok(&value),
        "with payloads in the stream, as over TCP"
    );
    for len in 0..flat.len() {
        assert!(
            Message::from(flat.slice(..len)).decode::<T>().is_err(),
            "the first {len} of {} bytes of {value:?}",
            flat.len()
        );
    }
    let longer = Bytes::from([&flat[..], &[0; 4]].concat());
    assert!(Message::from(longer).decode::<T>().is_err(), "trailing bytes after {value:?}");
    value
}

fn prefix(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_be_bytes()).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn every_operation(bytes in vec(any::<u8>(), 64..200)) {
        let entropy = &mut Entropy { bytes: &bytes, at: 0 };
        for &opnum in Opnum4::ALL {
            let arguments: Argop4 = check(&prefix(&[opnum as u32]), entropy);
            assert_eq!(arguments.opnum(), opnum);
            let message = Message::encode(&arguments);
            //= rfc8166-3.4.2-1 rfc8166-6.1-1
            assert!(message.payloads.is_empty() || matches!(opnum, Opnum4::Write | Opnum4::Create), "{opnum:?}");
            let minor = *opnum.minor_versions().end();
            assert_eq!(Argop4::decode_next(&mut Decoder::new(&message), minor), Ok(arguments));

            // The padding of GETXATTR is ignored.
            let unread = if opnum == Opnum4::GetXattr { 3 } else { 0 };
            let ok: Resop4 = check_but(&prefix(&[opnum as u32, 0]), entropy, unread);
            assert_eq!((ok.opnum(), ok.status()), (opnum, Nfsstat4::Ok));
            let payloads = Message::encode(&ok).payloads;
            assert!(payloads.is_empty() || matches!(opnum, Opnum4::Read | Opnum4::ReadLink), "{opnum:?}");
            let any: Resop4 = check_but(&prefix(&[opnum as u32]), entropy, unread);
            assert_eq!(any.opnum(), opnum);
        }
        use Nfsstat4::{ClidInuse, Denied, LayoutTryLater, OffloadNoReqs, TooSmall};
        for status in [Denied, TooSmall, ClidInuse, LayoutTryLater, OffloadNoReqs] {
            for &opnum in Opnum4::ALL {
                let result: Resop4 = check(&prefix(&[opnum as u32, status as u32]), entropy);
                assert_eq!(result.status(), status);
            }
        }
    }

    #[test]
    fn every_arm_of_open(bytes in vec(any::<u8>(), 64..200)) {
        let entropy = &mut Entropy { bytes: &bytes, at: 0 };
        for arm in 0..4 {
            check::<Createhow4>(&prefix(&[arm]), entropy);
            check::<OpenDelegation4>(&prefix(&[arm]), entropy);
        }
        for arm in 0..7 {
            check::<OpenClaim4>(&prefix(&[arm]), entropy);
        }
        for arm in 0..9 {
            check::<OpenNoneDelegation4>(&prefix(&[arm]), entropy);
        }
    }

    #[test]
    fn every_layout_body(bytes in vec(any::<u8>(), 64..200)) {
        let entropy = &mut Entropy { bytes: &bytes, at: 0 };
        check::<files::FileLayout4>(&[], entropy);
        check::<files::FileLayoutDsAddr4>(&[], entropy);
        check::<files::FileLayoutHint4>(&[], entropy);
        check::<flex::FfDeviceAddr4>(&[], entropy);
        check::<flex::FfLayout4>(&[], entropy);
        check::<flex::FfLayoutReturn4>(&[], entropy);
        check::<flex::FfLayoutUpdate4>(&[], entropy);
        check::<flex::FfLayoutHint4>(&[], entropy);
    }

    #[test]
    fn every_callback(bytes in vec(any::<u8>(), 64..200)) {
        let entropy = &mut Entropy { bytes: &bytes, at: 0 };
        for &opnum in CbOpnum4::ALL {
            let arguments: CbArgop4 = check(&prefix(&[opnum as u32]), entropy);
            assert_eq!(arguments.opnum(), opnum);
            let ok: CbResop4 = check(&prefix(&[opnum as u32, 0]), entropy);
            assert_eq!((ok.opnum(), ok.status()), (opnum, Nfsstat4::Ok));
            check::<CbResop4>(&prefix(&[opnum as u32]), entropy);
        }
        check::<NotifyRename4>(&[], entropy);
        check::<NotifyVerifier4>(&[], entropy);
        check::<NotifyDeviceidChange4>(&[], entropy);
        check::<NotifyDeviceidDelete4>(&[], entropy);
    }

    #[test]
    fn whole_compounds(bytes in vec(any::<u8>(), 64..200)) {
        let entropy = &mut Entropy { bytes: &bytes, at: 0 };
        check::<CompoundHead>(&[], entropy);
        check::<CbCompoundHead>(&[], entropy);
        let args = CompoundArgs {
            tag: entropy.word().to_string().as_str().into(),
            minorversion: 2,
            argarray: (0..8).map(|i| check(&prefix(&[3 + (entropy.word() + i) % 73]), entropy)).collect(),
        };
        let message = Message::encode(&args);
        assert_eq!(message.decode::<CompoundArgs>().as_ref(), Ok(&args));
        let mut decoder = Decoder::new(&message);
        let head = CompoundHead::decode(&mut decoder).unwrap();
        assert_eq!((head.tag, head.operations), (args.tag, OperationCount(8)));
        for operation in args.argarray {
            let minor = *operation.opnum().minor_versions().end();
            assert_eq!(Argop4::decode_next(&mut decoder, minor), Ok(operation));
        }
        decoder.finish().unwrap();
    }

    #[test]
    fn every_attribute(bytes in vec(any::<u8>(), 64..200)) {
        let entropy = &mut Entropy { bytes: &bytes, at: 0 };
        let mut all = (Bitmap4::new(), Vec::new());
        for &attribute in Attr4::ALL {
            let purpose = if attribute.access() == Access::Set { Purpose::Set } else { Purpose::Get };
            let (attrs, fattr) = repair_attribute(attribute, purpose, entropy);
            assert_eq!(attrs.mask().iter().collect::<Vec<_>>(), [attribute as u32]);
            assert_eq!(Fattr4::from(&attrs).to_attrs(2, purpose).as_ref(), Ok(&attrs));
            let values = &fattr.attr_vals;
            for len in 0..values.len() {
                let cut = Fattr4 { attrmask: fattr.attrmask.clone(), attr_vals: values.slice(..len).into() };
                let error = cut.to_attrs(2, purpose).unwrap_err();
                assert_eq!((error.attribute, error.status()), (attribute as u32, Nfsstat4::BadXdr));
            }
            if purpose == Purpose::Get {
                all.0.insert(attribute as u32);
                all.1.extend(&Fattr4::from(&attrs).attr_vals[..]);
            }
        }
        let sent = Fattr4 { attrmask: all.0, attr_vals: Bytes::from(all.1).into() };
        let attrs = sent.to_attrs(2, Purpose::Get).unwrap();
        assert_eq!(Fattr4::from(&attrs), sent);
        assert_eq!(Message::encode(&attrs).stream, Message::encode(&sent).stream);
    }

    #[test]
    fn every_procedure_beside_version_3(bytes in vec(any::<u8>(), 64..200)) {
        let entropy = &mut Entropy { bytes: &bytes, at: 0 };
        macro_rules! types {
            ($($type:ty)*) => { $(check::<$type>(&[], entropy);)* };
        }
        types!(nlm::TestArgs nlm::TestRes nlm::LockArgs nlm::CancelArgs nlm::UnlockArgs nlm::Res nlm::ShareArgs
            nlm::ShareRes nlm::FreeAllArgs nsm::SmName nsm::SmStatRes nsm::SmStat nsm::MonArgs nsm::StatChge nsm::Status
            nfsacl::GetAclArgs nfsacl::GetAclRes nfsacl::SetAclArgs nfsacl::SetAclRes);
    }

    #[test]
    fn random_bytes_are_rejected_or_round_trip(bytes in vec(any::<u8>(), 0..300)) {
        fn check<T: Encode + Decode + PartialEq + Debug>(bytes: &Bytes) {
            if let Ok(value) = Message::from(bytes.clone()).decode::<T>() {
                assert_eq!(Message::encode(&value).decode::<T>(), Ok(value));
            }
        }
        let bytes = Bytes::from(bytes);
        check::<CompoundArgs>(&bytes);
        check::<CompoundRes>(&bytes);
        check::<CbCompoundArgs>(&bytes);
        check::<CbCompoundRes>(&bytes);
        check::<Fattr4>(&bytes);
    }
}

/// Maximum number of repairs. Each repair fixes a word or adds some, and no value here has that many.
const REPAIRS_MAX: usize = 20_000;
/// Maximum bytes of a value that is being repaired.
const BYTES_MAX: usize = 64 << 10;
