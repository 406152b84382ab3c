//! Tests of the codec: the layouts of RFC 4506, round trips, and invalid bytes.

use buf::{Piece, Rope};
use bytes::Bytes;
use proptest::{collection::vec, prelude::*};
use xdr::{Decode, DecodeErrorKind, Decoder, Encode, Encoder, List, Message, Opaque, Payload, PlacedPayload, Text};

#[derive(Clone, Debug, PartialEq, Encode, Decode)]
enum Colour {
    Red = 1,
    Blue = 7,
}

#[derive(Clone, Debug, PartialEq, Encode, Decode)]
enum Arm {
    #[xdr(0)]
    Nothing,
    #[xdr(3)]
    Pair(u32, Text<9>),
    #[xdr(default)]
    Other(u32, bool),
}

#[derive(Clone, Debug, PartialEq, Encode, Decode)]
struct Everything {
    small: u32,
    negative: i64,
    flag: bool,
    colour: Colour,
    arm: Arm,
    fixed: [u8; 5],
    name: Opaque<40>,
    numbers: Vec<u64>,
    list: List<Opaque<8>>,
    maybe: Option<Box<Text<20>>>,
    first: Payload<5000>,
    last: Payload<5000>,
}

fn bytes_of(value: &impl Encode) -> Bytes {
    Message::encode(value).to_rope().to_bytes().unwrap()
}

fn kind_of<T: Decode + std::fmt::Debug>(bytes: &'static [u8]) -> (DecodeErrorKind, usize) {
    let error = Message::from(Bytes::from_static(bytes)).decode::<T>().unwrap_err();
    (error.kind, error.offset)
}

#[test]
fn layouts_match_the_rfc() {
    assert_eq!(&bytes_of(&0x0102_0304_u32)[..], [1, 2, 3, 4]);
    assert_eq!(&bytes_of(&-2_i32)[..], [0xff, 0xff, 0xff, 0xfe]);
    assert_eq!(&bytes_of(&-2_i64)[..], [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xfe]);
    assert_eq!(&bytes_of(&true)[..], [0, 0, 0, 1]);
    assert_eq!(&bytes_of(&Opaque::<9>::from("abcde"))[..], [0, 0, 0, 5, b'a', b'b', b'c', b'd', b'e', 0, 0, 0]);
    assert_eq!(&bytes_of(&[7_u8; 3])[..], [7, 7, 7, 0]);
    assert_eq!(&bytes_of(&vec![1_u32, 2])[..], [0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0, 2]);
    assert_eq!(&bytes_of(&List(vec![9_u32]))[..], [0, 0, 0, 1, 0, 0, 0, 9, 0, 0, 0, 0]);
    assert_eq!(&bytes_of(&Colour::Blue)[..], [0, 0, 0, 7]);
    assert_eq!(&bytes_of(&Arm::Pair(2, "x".into()))[..], [0, 0, 0, 3, 0, 0, 0, 2, 0, 0, 0, 1, b'x', 0, 0, 0]);
    assert_eq!(&bytes_of(&Arm::Other(8, true))[..], [0, 0, 0, 8, 0, 0, 0, 1]);
}

#[test]
fn invalid_bytes_are_rejected_with_their_offset() {
    assert_eq!(kind_of::<u32>(&[0, 0, 1]), (DecodeErrorKind::Truncated, 0));
    assert_eq!(kind_of::<u32>(&[0; 8]), (DecodeErrorKind::TrailingBytes, 4));
    assert_eq!(kind_of::<bool>(&[0, 0, 0, 2]), (DecodeErrorKind::BadDiscriminant(2), 0));
    assert_eq!(kind_of::<Colour>(&[0, 0, 0, 2]), (DecodeErrorKind::BadDiscriminant(2), 0));
    let long = DecodeErrorKind::TooLong { len: 3, max: 2 };
    assert_eq!(kind_of::<Opaque<2>>(&[0, 0, 0, 3, 1, 2, 3, 0]), (long, 0));
    assert_eq!(kind_of::<Opaque<8>>(&[0, 0, 0, 3, 1, 2, 3, 9]), (DecodeErrorKind::BadPadding, 4));
    assert_eq!(kind_of::<Text<8>>(&[0, 0, 0, 1, 0xff, 0, 0, 0]).0, DecodeErrorKind::BadUtf8);
    // A count that exceeds the size of the message is rejected.
    let counted = DecodeErrorKind::TooLong { len: u32::MAX, max: 1 };
    assert_eq!(kind_of::<Vec<u64>>(&[0xff, 0xff, 0xff, 0xff, 0, 0, 0, 1]), (counted, 0));
    assert_eq!(kind_of::<Opaque<{ usize::MAX }>>(&[0xff; 4]), (DecodeErrorKind::Truncated, 4));
}

#[test]
fn nesting_is_bounded() {
    #[derive(Debug, Encode, Decode)]
    struct Chain(Option<Box<Chain>>);
    let deep: Vec<u8> = [[0, 0, 0, 1]; 100_000].concat();
    let error = Message::from(Bytes::from(deep)).decode::<Chain>().unwrap_err();
    assert_eq!(error.kind, DecodeErrorKind::TooDeep);
}

#[test]
fn payloads_are_found_by_position_or_by_order() {
    let stream = Bytes::from_static(&[0, 0, 0, 3, 0, 0, 0, 2]);
    let payload = |position, data: &'static [u8]| PlacedPayload { position, data: Bytes::from_static(data).into() };
    let decode = |payloads: Vec<PlacedPayload>| {
        let message = Message { stream: stream.clone(), payloads };
        let both = message.decode::<Pair>().map(|Pair(a, b)| (a.0.to_bytes().unwrap(), b.0.to_bytes().unwrap()));
        both.map_err(|error| error.kind)
    };
    #[derive(Debug, Decode)]
    struct Pair(Payload<9>, Payload<9>);
    let expected = Ok((Bytes::from_static(b"abc"), Bytes::from_static(b"de")));
    assert_eq!(decode(vec![payload(Some(4), b"abc"), payload(Some(12), b"de")]), expected);
    assert_eq!(decode(vec![payload(None, b"abc"), payload(None, b"de")]), expected);
    assert_eq!(decode(vec![payload(Some(4), b"abc"), payload(None, b"de")]), expected);
    for bad in [
        vec![payload(Some(4), b"ab"), payload(Some(12), b"de")],
        vec![payload(Some(4), b"abc"), payload(Some(8), b"de")],
        vec![payload(None, b"abc"), payload(None, b"de"), payload(None, b"f")],
    ] {
        //= rfc8166-6.1-3 rfc8166-6.1-4 rfc8166-6.1-2
        assert_eq!(decode(bad), Err(DecodeErrorKind::MisplacedPayload));
    }
    assert_eq!(decode(vec![payload(Some(4), b"abc")]), Err(DecodeErrorKind::Truncated));
}

#[test]
fn empty_payload_keeps_its_place() {
    let mut encoder = Encoder::default();
    for data in [&b"abcde"[..], b"", b"", b"fg"] {
        encoder.payload(Bytes::from_static(data).into());
    }
    let message = encoder.finish();
    let positions: Vec<_> = message.payloads.iter().map(|payload| payload.position).collect();
    assert_eq!(positions, [Some(4), Some(16), Some(20), Some(24)]);
    assert_eq!(message.to_rope().to_bytes().unwrap().len(), message.len());
    let inline = Message::from(message.to_rope().to_bytes().unwrap());
    for message in [message, inline] {
        let mut decoder = Decoder::new(&message);
        let lens = [(); 4].map(|()| decoder.payload(10).unwrap().len());
        assert_eq!((lens, decoder.finish()), ([5, 0, 0, 2], Ok(())));
    }
}

#[test]
fn unused_payload_means_inline_item() {
    let stream = Bytes::from_static(&[0, 0, 0, 3, 1, 2, 3, 0]);
    let unused = PlacedPayload { position: None, data: Rope::new() };
    let message = Message { stream, payloads: vec![unused] };
    assert_eq!(message.decode::<Payload<9>>().unwrap().0.to_bytes().unwrap(), [1, 2, 3][..]);
}

#[test]
fn encoder_patches_and_truncates() {
    let mut encoder = Encoder::default();
    encoder.u32(0);
    let end = encoder.stream_len();
    encoder.opaque(b"not this");
    encoder.truncate(end);
    encoder.raw(&[0, 0, 0, 5]);
    encoder.patch_u32(0, 9);
    let message = encoder.finish();
    assert_eq!(message.stream, [0, 0, 0, 9, 0, 0, 0, 5][..]);
    let mut decoder = Decoder::new(&message);
    assert_eq!((decoder.u32(), decoder.position()), (Ok(9), 4));
    assert_eq!(decoder.take_rest(), [0, 0, 0, 5][..]);
}

fn payload() -> impl Strategy<Value = Payload<5000>> {
    vec(vec(any::<u8>(), 0..1500), 0..3).prop_map(|parts| {
        let parts: Rope = parts.into_iter().map(Bytes::from).collect();
        parts.into()
    })
}

prop_compose! {
    fn everything()(
        small: u32, negative: i64, flag: bool, blue: bool, fixed: [u8; 5], numbers in vec(any::<u64>(), 0..5),
        arm in prop_oneof![
            Just(Arm::Nothing),
            (any::<u32>(), "[a-zé]{0,4}").prop_map(|(n, text)| Arm::Pair(n, Text(text))),
            (4..9_u32, any::<bool>()).prop_map(|(n, flag)| Arm::Other(n, flag)),
        ],
        name in vec(any::<u8>(), 0..=40), list in vec(vec(any::<u8>(), 0..=8), 0..4),
        maybe in proptest::option::of("[a-z]{0,20}"), first in payload(), last in payload(),
    ) -> Everything {
        Everything {
            small, negative, flag, colour: if blue { Colour::Blue } else { Colour::Red }, arm, fixed, numbers, first, last,
            name: Opaque(name.into()),
            list: List(list.into_iter().map(|item| Opaque(item.into())).collect()),
            maybe: maybe.map(|text| Box::new(Text(text))),
        }
    }
}

proptest! {
    #[test]
    fn decode_returns_the_encoded_value(value in everything()) {
        let message = Message::encode(&value);
        prop_assert_eq!(&message.decode::<Everything>().unwrap(), &value);
        let flat = message.to_rope().to_bytes().unwrap();
        prop_assert_eq!(flat.len(), message.len());
        prop_assert_eq!(&Message::from(flat).decode::<Everything>().unwrap(), &value);
        // Payloads share the memory of the value.
        let given: Vec<_> = value.first.0.pieces().iter().chain(value.last.0.pieces()).map(address).collect();
        let held: Vec<_> = message.payloads.iter().flat_map(|payload| payload.data.pieces()).map(address).collect();
        prop_assert_eq!(given, held);
    }

    #[test]
    fn truncated_message_is_rejected_and_its_payload_located(value in everything(), cut in any::<proptest::sample::Index>()) {
        let message = Message::encode(&value);
        let flat = message.to_rope().to_bytes().unwrap();
        let cut = flat.slice(..cut.index(flat.len()));
        let error = Message::from(cut.clone()).decode::<Everything>().unwrap_err();
        prop_assert!(error.offset <= cut.len());
        let located = Message::locate::<Everything>(&cut, |_| Ok(()));
        let reached = message.payloads.iter().find(|payload| {
            let start = payload.position.unwrap() as usize;
            (start..start + payload.data.len().next_multiple_of(4)).contains(&cut.len())
        });
        prop_assert_eq!(
            located.map(|located| (located.position, located.len)),
            reached.map(|payload| (payload.position.unwrap() as usize, payload.data.len()))
        );
    }

    #[test]
    fn arbitrary_bytes_never_panic(bytes in vec(any::<u8>(), 0..300)) {
        let _ = Message::from(Bytes::from(bytes)).decode::<Everything>();
    }
}

fn address(piece: &Piece) -> *const u8 {
    match piece {
        Piece::Memory(bytes) => bytes.as_ptr(),
        other => unreachable!("{other:?}"),
    }
}
