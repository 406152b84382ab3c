//! NFSv4: compounds and callbacks, their results, and attributes; and the side protocols of NFSv3.

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
use xdr::{Decode, Decoder, Encode, Encoder, Message};

/// Messages of a peer. The first byte selects the type: a COMPOUND of minor version 0, 1 or 2, its results, a
/// CB_COMPOUND, its results, attributes, and the arguments and results of NLM, NSM and NFS_ACL.
pub fn nfs4_compound(data: &[u8]) {
    let Some((&what, rest)) = data.split_first() else { return };
    let message = Message::from(Bytes::copy_from_slice(rest));
    match what % 7 {
        minor @ 0..=2 => compound(&message, u32::from(minor)),
        3 => results(&message),
        4 => callback(&message),
        5 => attributes(&message),
        _ => beside_version_3(&message),
    }
}

/// Bodies of layouts, device addresses, hints and reports. The first byte selects the type.
pub fn nfs4_layout(data: &[u8]) {
    let Some((&what, rest)) = data.split_first() else { return };
    let message = Message::from(Bytes::copy_from_slice(rest));
    match what % 8 {
        0 => drop(decodes::<files::FileLayout4>(&message)),
        1 => drop(decodes::<files::FileLayoutDsAddr4>(&message)),
        2 => drop(decodes::<files::FileLayoutHint4>(&message)),
        3 => drop(decodes::<flex::FfDeviceAddr4>(&message)),
        4 => drop(decodes::<flex::FfLayout4>(&message)),
        5 => drop(decodes::<flex::FfLayoutReturn4>(&message)),
        6 => drop(decodes::<flex::FfLayoutUpdate4>(&message)),
        _ => drop(decodes::<flex::FfLayoutHint4>(&message)),
    }
}

/// Decodes a compound as a server does, and encodes results as if every operation failed.
fn compound(message: &Message, minor: u32) {
    let mut decoder = Decoder::new(message);
    let Ok(head) = CompoundHead::decode(&mut decoder) else { return };
    assert!(head.operations.0 as usize <= message.len() / 4, "{head:?}");
    let mut encoder = Encoder::default();
    let mut writer = ResultsWriter::begin(&mut encoder, &head.tag);
    let mut whole = true;
    for _ in 0..head.operations.0 {
        let result = match Argop4::decode_next(&mut decoder, minor) {
            Ok(operation) => {
                assert!(operation.opnum().minor_versions().contains(&minor), "{operation:?}");
                comes_back(&operation);
                attributes_of(&operation, minor);
                Resop4::failure(operation.opnum(), Nfsstat4::Delay)
            }
            Err(bad) => {
                whole = false;
                Resop4::from(bad)
            }
        };
        writer.push(&mut encoder, &result);
        if !whole {
            break;
        }
    }
    writer.finish(&mut encoder, Nfsstat4::Delay);
    let written: CompoundRes = encoder.finish().decode().expect("encoded results must decode");
    assert_eq!(written.tag, head.tag);
    if whole && decoder.finish().is_ok() {
        let args: CompoundArgs = message.decode().expect("each operation must decode");
        comes_back(&args);
    }
}

fn attributes_of(operation: &Argop4, minor: u32) {
    let (attrs, purpose) = match operation {
        Argop4::SetAttr(args) => (&args.obj_attributes, Purpose::Set),
        Argop4::Create(args) => (&args.createattrs, Purpose::Set),
        Argop4::Verify(args) | Argop4::NVerify(args) => (&args.obj_attributes, Purpose::Verify),
        Argop4::Open(args) => match &args.openhow {
            Openflag4::Create(Createhow4::Unchecked(attrs) | Createhow4::Guarded(attrs)) => (attrs, Purpose::Set),
            Openflag4::Create(Createhow4::Exclusive41 { attrs, .. }) => (attrs, Purpose::Set),
            Openflag4::Create(Createhow4::Exclusive(_)) | Openflag4::NoCreate => return,
        },
        _ => return,
    };
    mean_what_they_say(attrs, minor, purpose);
}

fn results(message: &Message) {
    if let Some(res) = decodes::<CompoundRes>(message) {
        for result in res.resarray {
            match result {
                Resop4::GetAttr(Res4::Ok(attrs)) => mean_what_they_say(&attrs, 2, Purpose::Get),
                Resop4::ReadDir(Res4::Ok(ok)) => {
                    ok.reply.entries.iter().for_each(|entry| mean_what_they_say(&entry.attrs, 2, Purpose::Get));
                }
                _ => {}
            }
        }
    }
}

fn callback(message: &Message) {
    decodes::<CbCompoundArgs>(message);
    decodes::<CbCompoundRes>(message);
    let mut decoder = Decoder::new(message);
    if let Ok(head) = CbCompoundHead::decode(&mut decoder) {
        for _ in 0..head.operations.0 {
            match CbArgop4::decode_next(&mut decoder, head.minorversion) {
                Ok(operation) => comes_back(&operation),
                Err(bad) => return drop(CbResop4::from(bad)),
            }
        }
    }
}

fn attributes(message: &Message) {
    if let Some(attrs) = decodes::<Fattr4>(message) {
        for purpose in [Purpose::Set, Purpose::Verify, Purpose::Get] {
            mean_what_they_say(&attrs, 2, purpose);
        }
    }
}

fn mean_what_they_say(sent: &Fattr4, minor: u32, purpose: Purpose) {
    match sent.to_attrs(minor, purpose) {
        Ok(attrs) => {
            assert_eq!(attrs.mask(), sent.attrmask);
            // The bitmaps of the values may have had trailing zero words.
            let again = Fattr4::from(&attrs);
            assert!(again.attr_vals.len() <= sent.attr_vals.len());
            assert_eq!(again.to_attrs(minor, purpose), Ok(attrs));
        }
        Err(error) => assert!(sent.attrmask.contains(error.attribute) || sent.attrmask.is_empty(), "{error}"),
    }
}

fn beside_version_3(message: &Message) {
    decodes::<nlm::TestArgs>(message);
    decodes::<nlm::TestRes>(message);
    decodes::<nlm::LockArgs>(message);
    decodes::<nlm::CancelArgs>(message);
    decodes::<nlm::UnlockArgs>(message);
    decodes::<nlm::Res>(message);
    decodes::<nlm::ShareArgs>(message);
    decodes::<nlm::ShareRes>(message);
    decodes::<nlm::FreeAllArgs>(message);
    decodes::<nsm::MonArgs>(message);
    decodes::<nsm::StatChge>(message);
    decodes::<nsm::Status>(message);
    decodes::<nfsacl::GetAclArgs>(message);
    decodes::<nfsacl::GetAclRes>(message);
    decodes::<nfsacl::SetAclArgs>(message);
    decodes::<nfsacl::SetAclRes>(message);
}

/// Returns the decoded value, if it is valid. It must decode to the same value after encoding, and not become longer.
fn decodes<T: Encode + Decode + PartialEq + Debug>(message: &Message) -> Option<T> {
    let value = message.decode::<T>().ok()?;
    comes_back(&value);
    assert!(Message::encode(&value).len() <= message.len());
    Some(value)
}

fn comes_back<T: Encode + Decode + PartialEq + Debug>(value: &T) {
    let again = Message::encode(value);
    assert_eq!(again.decode::<T>().as_ref(), Ok(value));
    let flat = Message::from(again.to_rope().to_bytes().expect("memory"));
    assert_eq!(flat.decode::<T>().as_ref(), Ok(value));
}
