//! Messages captured from Linux. This crate decodes them and encodes them identically.

use bytes::Bytes;
use nfs::v3::*;
use xdr::{Decode, Encode, Message};

/// Decodes a value and returns its encoding in one piece.
fn again<T: Decode + Encode>(bytes: &Bytes) -> Bytes {
    let value: T = Message::from(bytes.clone()).decode().unwrap();
    Message::encode(&value).to_rope().to_bytes().unwrap()
}

fn both<P: Procedure3>(side: &str, bytes: &Bytes) -> Bytes {
    match side {
        "args" => again::<P::Args>(bytes),
        "res" => again::<P::Res>(bytes),
        other => panic!("{other}"),
    }
}

#[test]
fn encoding_matches_linux() {
    let mut procedures = std::collections::BTreeSet::new();
    for line in include_str!("linux.txt").lines().filter(|line| !line.starts_with('#')) {
        let [name, side, hex] = line.split(' ').collect::<Vec<_>>()[..] else { panic!("{line}") };
        let bytes = (0..hex.len()).step_by(2).map(|i| u8::from_str_radix(&hex[i..i + 2], 16).unwrap());
        let bytes = bytes.collect::<Bytes>();
        macro_rules! procedure {
            ($($procedure:ident)*) => {
                match name {
                    $(stringify!($procedure) => both::<$procedure>(side, &bytes),)*
                    other => panic!("{other}"),
                }
            };
        }
        let encoded = procedure!(GetAttr SetAttr Lookup Access ReadLink Read Write Create MkDir SymLink MkNod Remove
            RmDir Rename Link ReadDir ReadDirPlus FsStat FsInfo PathConf Commit);
        assert_eq!(encoded, bytes, "{line}");
        procedures.insert(name);
    }
    assert!(procedures.len() >= 18, "{procedures:?}");
}
