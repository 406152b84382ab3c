//! XDR decoding of a client: results of any procedure, with payloads where a transport can have placed them.

use bytes::Bytes;
use nfs::{mount, v3};
use xdr::{Decode, Encode, Message, PlacedPayload};

/// Results of NFSv3 and MOUNT. The first byte selects the type. If the second is odd, the end of the input becomes a
/// payload, with or without a position. A decoded value must be the same after encoding and decoding.
pub fn xdr(data: &[u8]) {
    let [procedure, split, rest @ ..] = data else { return };
    let message = message(*split, rest);
    match procedure % 12 {
        0 => check::<v3::GetAttrRes>(&message),
        1 => check::<v3::LookupRes>(&message),
        2 => check::<v3::ReadLinkRes>(&message),
        3 => check::<v3::ReadRes>(&message),
        4 => check::<v3::WriteRes>(&message),
        5 => check::<v3::NewObjectRes>(&message),
        6 => check::<v3::RenameRes>(&message),
        7 => check::<v3::ReadDirRes>(&message),
        8 => check::<v3::ReadDirPlusRes>(&message),
        9 => check::<v3::FsInfoRes>(&message),
        10 => check::<mount::MountRes>(&message),
        _ => check::<xdr::List<mount::ExportEntry>>(&message),
    }
}

fn message(split: u8, bytes: &[u8]) -> Message {
    let bytes = Bytes::copy_from_slice(bytes);
    let mut message = Message::from(bytes.clone());
    if split & 1 == 1 {
        let at = bytes.len() * usize::from(split >> 2) / 64;
        let position = (split & 2 == 2).then_some(at as u32);
        message.stream = bytes.slice(..at);
        message.payloads.push(PlacedPayload { position, data: bytes.slice(at..).into() });
    }
    message
}

fn check<T: Decode + Encode + PartialEq + std::fmt::Debug>(message: &Message) {
    let _ = Message::locate::<T>(&message.stream, |_| Ok(()));
    if let Ok(value) = message.decode::<T>() {
        let again = Message::encode(&value).decode::<T>().expect("encoded value must decode");
        assert_eq!(again, value);
    }
}
