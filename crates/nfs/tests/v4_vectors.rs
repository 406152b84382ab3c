//! Vectors from another codec, which was generated from the XDR of the RFCs. This crate decodes them and encodes them
//! identically.

use std::collections::BTreeMap;

use bytes::Bytes;
use nfs::v4::{attr::*, callback::*, compound::*, *};
use xdr::{Decode, Encode, Message};

fn again<T: Decode + Encode>(bytes: &Bytes) -> T {
    let value: T = Message::from(bytes.clone()).decode().unwrap();
    assert_eq!(Message::encode(&value).to_rope().to_bytes().unwrap(), bytes);
    value
}

#[test]
fn every_operation_callback_and_attribute_matches_the_vectors() {
    let mut seen = BTreeMap::<&str, Vec<u32>>::new();
    for line in include_str!("v4_vectors.txt").lines().filter(|line| !line.starts_with('#')) {
        let (name, hex) = line.split_once(' ').expect("a line must have a name and bytes");
        let bytes = (0..hex.len()).step_by(2).map(|i| u8::from_str_radix(&hex[i..i + 2], 16).unwrap());
        let bytes = bytes.collect::<Bytes>();
        let number = match name {
            "CompoundArgs" => again::<CompoundArgs>(&bytes).argarray.last().unwrap().opnum() as u32,
            "CompoundRes" => again::<CompoundRes>(&bytes).resarray[0].opnum() as u32,
            "CbCompoundArgs" => again::<CbCompoundArgs>(&bytes).argarray[0].opnum() as u32,
            "CbCompoundRes" => again::<CbCompoundRes>(&bytes).resarray[0].opnum() as u32,
            "Fattr4" => {
                let sent: Fattr4 = again(&bytes);
                let number = sent.attrmask.iter().next().unwrap();
                let set_only = Attr4::from_number(number).unwrap().access() == Access::Set;
                let attrs = sent.to_attrs(2, if set_only { Purpose::Set } else { Purpose::Get }).unwrap();
                assert_eq!(Fattr4::from(&attrs), sent);
                number
            }
            other => panic!("{other}"),
        };
        seen.entry(name).or_default().push(number);
    }
    let numbers = |all: &[Opnum4]| all.iter().map(|&opnum| opnum as u32).collect::<Vec<_>>();
    let callbacks = CbOpnum4::ALL.iter().map(|&opnum| opnum as u32).collect::<Vec<_>>();
    assert_eq!(seen["CompoundArgs"], numbers(Opnum4::ALL));
    assert_eq!(seen["CompoundRes"], numbers(Opnum4::ALL));
    assert_eq!(seen["CbCompoundArgs"], callbacks);
    assert_eq!(seen["CbCompoundRes"], callbacks);
    assert_eq!(seen["Fattr4"], Attr4::ALL.iter().map(|&attribute| attribute as u32).collect::<Vec<_>>());
}
