//! READ, WRITE and COMMIT.

use crate::common::*;
use bytes::Bytes;
use nfs::v3::*;
use xdr::{Encode, Encoder, Message};

fn read(rig: &Rig, file: &NfsFh3, offset: u64, count: u32) -> ReadRes {
    rig.call::<Read>(ReadArgs { file: file.clone(), offset, count })
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len as u32).map(|i| (i % 251) as u8).collect()
}

#[simnet::test]
async fn every_range_reads_as_it_was_written() {
    let rig = Rig::new();
    let content = pattern(10_000);
    let file = rig.file(&rig.root(), "f", &content);
    for offset in [0, 1, 4095, 4096, 9_999, 10_000, 10_001, 1 << 40, i64::MAX as u64, u64::MAX] {
        for count in [0, 1, 4096, 20_000, u32::MAX] {
            let ok = read(&rig, &file, offset, count).into_result().unwrap();
            let start = offset.min(10_000) as usize;
            let end = (start + count as usize).min(10_000);
            assert_eq!(ok.data, Bytes::copy_from_slice(&content[start..end]).into(), "{count} at {offset}");
            assert_eq!(ok.count as usize, end - start);
            assert_eq!(ok.eof, end == 10_000, "{count} at {offset}");
            assert_eq!(ok.file_attributes.unwrap().size, 10_000);
        }
    }
}

#[simnet::test]
async fn transfers_are_limited_as_fsinfo_says() {
    let rig = Rig::new();
    let content = pattern((1 << 20) + 5000);
    let root = rig.root();
    let file = rig.file(&root, "f", b"");
    let ok = rig.call::<Write>(write_args(&file, 0, &content)).into_result().unwrap();
    assert_eq!((ok.count, rig.attr(&file).size), (1 << 20, 1 << 20));
    rig.call::<Write>(write_args(&file, 1 << 20, &content[1 << 20..])).into_result().unwrap();

    let ok = read(&rig, &file, 0, u32::MAX).into_result().unwrap();
    assert_eq!((ok.count, ok.eof), (1 << 20, false));
    let ok = read(&rig.over("udp", 65507), &file, 0, u32::MAX).into_result().unwrap();
    assert_eq!((ok.count, ok.eof), (61440, false));
    assert_eq!(ok.data.0.to_bytes().unwrap(), content[..61440]);
}

#[simnet::test]
async fn read_data_is_a_payload_beside_the_stream() {
    let rig = Rig::new();
    let file = rig.file(&rig.root(), "f", &pattern(8192));
    let args = Message::encode(&ReadArgs { file, offset: 0, count: 8192 });
    let reply = rig.raw(&*rig.nfs, Proc3::Read as u32, &args).unwrap();
    let [payload] = &reply.payloads[..] else { panic!("there must be one payload") };
    // Header, status, attributes, count, eof, and length of the data.
    assert_eq!(payload.position, Some(24 + 4 + 88 + 4 + 4 + 4));
    assert_eq!((payload.data.len(), reply.stream.len()), (8192, 128));
}

#[simnet::test]
async fn writes_return_attributes_before_and_after() {
    let rig = Rig::new();
    let file = rig.file(&rig.root(), "f", b"0123456789");
    let before = rig.attr(&file);
    let ok = rig.call::<Write>(write_args(&file, 5, b"abcdefgh")).into_result().unwrap();
    let was = ok.file_wcc.before.unwrap();
    assert_eq!((was.size, was.mtime, was.ctime), (10, before.mtime, before.ctime));
    assert_eq!(ok.file_wcc.after, Some(rig.attr(&file)));
    assert_eq!((ok.count, ok.committed), (8, StableHow::FileSync));
    assert_eq!(rig.attr(&file).size, 13);

    let commit = rig.call::<Commit>(CommitArgs { file: file.clone(), offset: 0, count: 0 }).into_result().unwrap();
    assert_eq!(commit.verf, ok.verf, "no write may have been lost");
    assert_eq!(commit.file_wcc.after, Some(rig.attr(&file)));
    for (offset, count) in [(u64::MAX, 1), (i64::MAX as u64, 9), (3, u32::MAX)] {
        rig.call::<Commit>(CommitArgs { file: file.clone(), offset, count }).into_result().unwrap();
    }

    let empty = rig.call::<Write>(write_args(&file, 100, b"")).into_result().unwrap();
    assert_eq!((empty.count, rig.attr(&file).size), (0, 13));
}

#[simnet::test]
async fn payload_in_several_pieces_is_written_completely() {
    let rig = Rig::new();
    let file = rig.file(&rig.root(), "f", b"");
    let pieces = [Bytes::from_static(b"abc"), Bytes::from_static(b"defgh"), Bytes::from_static(b"i")];
    let data = xdr::Payload(pieces.into_iter().collect());
    let args = WriteArgs { file: file.clone(), offset: 2, count: 9, stable: StableHow::Unstable, data };
    assert_eq!(rig.call::<Write>(args).into_result().unwrap().count, 9);
    assert_eq!(read(&rig, &file, 0, 100).into_result().unwrap().data, Bytes::from_static(b"\0\0abcdefghi").into());
}

#[simnet::test]
async fn offsets_beyond_the_maximum_file_size_are_too_big() {
    let rig = Rig::new();
    let file = rig.file(&rig.root(), "f", b"x");
    let fails = |offset| rig.call::<Write>(write_args(&file, offset, b"data")).into_result().unwrap_err();
    for offset in [i64::MAX as u64 - 3, i64::MAX as u64, 1 << 63, u64::MAX - 3, u64::MAX] {
        let (status, wcc) = fails(offset);
        assert_eq!((status, wcc.after), (Nfsstat3::FBig, Some(rig.attr(&file))), "{offset}");
    }
    assert_eq!(rig.attr(&file).size, 1);
    let past_4g = (1 << 32) + 7;
    rig.call::<Write>(write_args(&file, past_4g, b"far")).into_result().unwrap();
    assert_eq!(read(&rig, &file, past_4g, 3).into_result().unwrap().data, Bytes::from_static(b"far").into());
}

#[simnet::test]
async fn count_that_differs_from_the_data_length_is_invalid() {
    let rig = Rig::new();
    let file = rig.file(&rig.root(), "f", b"x");
    for count in [0, 3, 5, u32::MAX] {
        let args = WriteArgs { count, ..write_args(&file, 0, b"data") };
        assert_eq!(rig.call::<Write>(args).into_result().unwrap_err().0, Nfsstat3::Inval);
    }
    assert_eq!(rig.attr(&file).size, 1);
}

#[simnet::test]
async fn only_regular_files_have_data() {
    let rig = Rig::new();
    let root = rig.root();
    let fifo = MkNodArgs { what: name_in(&root, "p"), data: MkNodData3::Fifo(Default::default()) };
    let fifo = rig.call::<MkNod>(fifo).into_result().unwrap().obj.unwrap();
    let link = SymLinkArgs {
        what: name_in(&root, "l"),
        symlink_attributes: Default::default(),
        symlink_data: Bytes::from_static(b"t").into(),
    };
    let link = rig.call::<SymLink>(link).into_result().unwrap().obj.unwrap();
    for (object, status) in [(&root, Nfsstat3::IsDir), (&fifo, Nfsstat3::Inval), (&link, Nfsstat3::Inval)] {
        let attr = rig.attr(object);
        assert_eq!(read(&rig, object, 0, 1), ReadRes::Fail(status, Some(attr.clone())));
        let (found, wcc) = rig.call::<Write>(write_args(object, 0, b"x")).into_result().unwrap_err();
        assert_eq!((found, wcc.after), (status, Some(attr)));
    }
}

#[simnet::test]
async fn mode_bits_bind_others_but_not_the_owner() {
    let rig = Rig::new();
    let root = rig.root();
    let file = rig.file(&root, "f", b"secret");
    let owner = Sattr3 { uid: Some(7), mode: Some(0), ..Default::default() };
    rig.call::<SetAttr>(SetAttrArgs { object: file.clone(), new_attributes: owner, guard: None })
        .into_result()
        .unwrap();
    // RFC 1813 §4.4: the owner may have opened the file before its mode changed.
    assert!(read(&rig.as_user(7, 7), &file, 0, 6).into_result().is_ok());
    assert!(rig.as_user(7, 7).call::<Write>(write_args(&file, 0, b"S")).into_result().is_ok());
    assert_eq!(read(&rig.as_user(8, 7), &file, 0, 6).into_result().unwrap_err().0, Nfsstat3::Acces);
    let written = rig.as_user(8, 7).call::<Write>(write_args(&file, 0, b"S"));
    assert_eq!(written.into_result().unwrap_err().0, Nfsstat3::Acces);
}

#[simnet::test]
async fn malformed_arguments_are_garbage() {
    let rig = Rig::new();
    let file = rig.file(&rig.root(), "f", b"x");
    let whole = Message::encode(&ReadArgs { file, offset: 0, count: 1 }).stream;
    for procedure in 1..=21 {
        for len in 0..whole.len() {
            let cut = Message::from(whole.slice(..len));
            let reply = rig.raw(&*rig.nfs, procedure, &cut);
            // A prefix of these arguments can be valid for another procedure.
            if let Ok(reply) = reply {
                assert!(len >= 4 + 40, "procedure {procedure} took {len} bytes");
                assert!(!reply.is_empty());
            }
        }
    }
    let mut longer = Encoder::default();
    longer.raw(&whole);
    0u32.encode(&mut longer);
    let reply = rig.raw(&*rig.nfs, Proc3::Read as u32, &longer.finish());
    assert_eq!(reply.unwrap_err(), rpc::AcceptError::GarbageArgs);
}
