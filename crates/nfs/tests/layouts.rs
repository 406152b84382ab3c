//! Bodies of layouts that another codec has encoded, which was generated from the XDR of the RFCs, and those that Linux has sent.

use std::collections::HashMap;

use bytes::Bytes;
use nfs::v4::{
    compound::*,
    layout::{BadBody, decode_body, encode_body, files::*, flex::*},
    *,
};
use xdr::{Decode, Encode, Message, Opaque};

/// Returns the bytes of the vector `name`.
fn vector(name: &str) -> Bytes {
    let lines = include_str!("layout_vectors.txt").lines().filter_map(|line| line.split_once(' '));
    let vectors: HashMap<&str, &str> = lines.collect();
    bytes(vectors[name])
}

fn bytes(hex: &str) -> Bytes {
    (0..hex.len()).step_by(2).map(|i| u8::from_str_radix(&hex[i..i + 2], 16).unwrap()).collect()
}

/// Decodes the vector `name`, and encodes it to the same bytes.
fn again<T: Decode + Encode>(name: &str) -> T {
    body_again(&Opaque(vector(name)))
}

/// Decodes a body, and encodes it to the same bytes.
fn body_again<T: Decode + Encode>(body: &Opaque<BODY_BOUND>) -> T {
    let value: T = decode_body(body).unwrap();
    assert_eq!(encode_body(&value), *body);
    value
}

const DEVICE: Deviceid4 = Deviceid4([0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15]);

fn stateid() -> Stateid4 {
    Stateid4 { seqid: 7, other: [20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31] }
}

fn addresses() -> Vec<Netaddr4> {
    let address = |netid: &str, addr: &str| Netaddr4 { netid: netid.into(), addr: addr.into() };
    vec![address("rdma", "192.0.2.1.78.72"), address("tcp", "192.0.2.1.8.1")]
}

#[test]
fn layout_of_files_matches_the_vector() {
    let layout: FileLayout4 = again("FileLayout4");
    assert_eq!(layout.deviceid, DEVICE);
    assert!(layout.util.is_dense() && layout.util.commits_through_mds());
    assert_eq!(layout.util.stripe_unit(), 0x10000);
    assert_eq!((layout.first_stripe_index, layout.pattern_offset), (2, 4096));
    assert_eq!(layout.fh_list, ["one".into(), "twotwo".into()]);
    let device: FileLayoutDsAddr4 = again("FileLayoutDsAddr4");
    assert_eq!(device.stripe_indices, [0, 1, 0]);
    assert_eq!(device.multipath_ds_list, [addresses(), addresses()[1..].to_vec()]);
    let hint: FileLayoutHint4 = again("FileLayoutHint4");
    assert_eq!(hint.care, NFLH4_CARE_DENSE | NFLH4_CARE_STRIPE_UNIT_SIZE | NFLH4_CARE_STRIPE_COUNT);
    assert_eq!((hint.util.stripe_unit(), hint.stripe_count), (0x10000, 4));
}

#[test]
fn layout_of_flexible_files_matches_the_vector() {
    let device: FfDeviceAddr4 = again("FfDeviceAddr4");
    assert_eq!(device.netaddrs, addresses());
    let [first, second] = device.versions[..] else { panic!("{device:?}") };
    assert_eq!((first.version, first.minorversion, first.tightly_coupled), (4, 2, true));
    assert_eq!((second.version, second.rsize, second.wsize), (3, 65536, 32768));
    let layout: FfLayout4 = again("FfLayout4");
    assert_eq!((layout.stripe_unit, layout.stats_collect_hint), (1 << 20, 60));
    assert_eq!(layout.flags, FF_FLAGS_NO_IO_THRU_MDS | FF_FLAGS_NO_READ_IO);
    let [mirror, empty] = &layout.mirrors[..] else { panic!("{layout:?}") };
    assert_eq!(empty.data_servers, []);
    let [file] = &mirror.data_servers[..] else { panic!("{mirror:?}") };
    assert_eq!((file.deviceid, file.efficiency, file.stateid), (DEVICE, 9, stateid()));
    assert_eq!(file.fh_vers, ["fh1".into(), "fh22".into()]);
    assert_eq!((&file.user[..], &file.group[..]), (&b"1066"[..], &b"1815"[..]));
    let hint: FfLayoutHint4 = again("FfLayoutHint4");
    assert_eq!(hint.mirrors, Some(3));
}

#[test]
fn reports_of_flexible_files_match_the_vector() {
    let update: FfLayoutUpdate4 = again("FfLayoutUpdate4");
    assert_eq!((&update.addr, &update.fhandle[..], update.local), (&addresses()[0], &b"handle"[..], true));
    assert_eq!((update.read.ops_requested, update.write.bytes_not_delivered), (100, 204));
    assert_eq!(update.read.aggregate_completion_time, Nfstime4 { seconds: 107, nseconds: 8 });
    assert_eq!(update.duration, Nfstime4 { seconds: 60, nseconds: 5 });
    let report: FfLayoutReturn4 = again("FfLayoutReturn4");
    let [error] = &report.ioerr_report[..] else { panic!("{report:?}") };
    assert_eq!((error.offset, error.length, error.stateid), (1, 2, stateid()));
    assert_eq!(error.errors, [DeviceError4 { deviceid: DEVICE, status: Nfsstat4::Io, opnum: Opnum4::Write }]);
    let [statistics] = &report.iostats_report[..] else { panic!("{report:?}") };
    assert_eq!((statistics.offset, statistics.length, statistics.deviceid), (3, 4, DEVICE));
    assert_eq!((statistics.read, statistics.write), (IoInfo4 { count: 5, bytes: 6 }, IoInfo4 { count: 7, bytes: 8 }));
    assert_eq!(statistics.layoutupdate, update);
}

#[test]
fn body_of_another_type_is_rejected() {
    let body = LayoutBody4::new(Layouttype4::FLEX_FILES, &FfLayoutHint4::default());
    assert_eq!(body.decode_as(Layouttype4::FLEX_FILES), Ok(FfLayoutHint4::default()));
    let error = body.decode_as::<FfLayoutHint4>(Layouttype4::NFSV4_1_FILES).unwrap_err();
    assert_eq!(error, BadBody::Type { found: Layouttype4::FLEX_FILES, expected: Layouttype4::NFSV4_1_FILES });
    assert_eq!(error.to_string(), "layout type 4 instead of 1");
}

#[test]
fn stripe_unit_is_a_multiple_of_64_bytes() {
    assert_eq!(FileLayoutUtil4::new(0, 0), None);
    assert_eq!(FileLayoutUtil4::new(100, 0), None);
    let util = FileLayoutUtil4::new(128, FileLayoutUtil4::DENSE).unwrap();
    assert_eq!((util.0, util.stripe_unit(), util.is_dense()), (129, 128, true));
}

#[test]
fn compounds_with_layouts_match_linux() {
    let lines = include_str!("layout_linux.txt").lines().filter(|line| !line.starts_with('#'));
    let mut reports = Vec::new();
    // LAYOUTSTATS, LAYOUTERROR, LAYOUTGET, GETDEVICEINFO.
    let mut seen = [0; 4];
    for line in lines {
        let (name, hex) = line.split_once(' ').expect("a line must have a name and bytes");
        let bytes = bytes(hex);
        match name {
            "CompoundArgs" => {
                whole_again::<CompoundArgs>(&bytes).argarray.into_iter().for_each(|operation| match operation {
                    Argop4::LayoutReturn(LayoutReturnArgs {
                        layoutreturn: Layoutreturn4::File { body, .. }, ..
                    }) => {
                        reports.push(body_again::<FfLayoutReturn4>(&body));
                    }
                    Argop4::LayoutStats(statistics) => {
                        body_again::<FfLayoutUpdate4>(&statistics.layoutupdate.body);
                        seen[0] += 1;
                    }
                    Argop4::LayoutError(error) => {
                        let [error] = &error.errors[..] else { panic!("{error:?}") };
                        assert_eq!((error.status, error.opnum), (Nfsstat4::NxIo, Opnum4::Write));
                        seen[1] += 1;
                    }
                    _ => {}
                })
            }
            "CompoundRes" => whole_again::<CompoundRes>(&bytes).resarray.into_iter().for_each(|result| match result {
                Resop4::LayoutGet(LayoutGetRes::Ok(granted)) => {
                    assert_eq!(body_again::<FfLayout4>(&granted.layout[0].content.body).mirrors.len(), 1);
                    seen[2] += 1;
                }
                Resop4::GetDeviceInfo(GetDeviceInfoRes::Ok(device)) => {
                    assert_eq!(body_again::<FfDeviceAddr4>(&device.device_addr.body).versions[0].version, 3);
                    seen[3] += 1;
                }
                _ => {}
            }),
            other => panic!("{other}"),
        }
    }
    assert_eq!(seen, [1; 4]);
    // Of one copy, of three, of the two that are left after one has failed, and of three, one of which has just failed.
    assert_eq!(reports.iter().map(|report| report.iostats_report.len()).collect::<Vec<_>>(), [1, 3, 2, 3]);
    let errors: Vec<_> = reports.iter().map(|report| &report.ioerr_report[..]).collect();
    let failed =
        DeviceError4 { deviceid: reports[3].iostats_report[0].deviceid, status: Nfsstat4::NxIo, opnum: Opnum4::Write };
    // The pages that were not written. Linux names no layout.
    let failed = FfIoerr4 { offset: 0xf4000, length: 1 << 20, stateid: Stateid4::ANONYMOUS, errors: vec![failed] };
    assert_eq!(errors, [&[][..], &[], &[], &[failed]]);
    for statistics in reports.iter().flat_map(|report| &report.iostats_report) {
        assert_eq!(statistics.write.bytes, statistics.layoutupdate.write.bytes_completed);
        assert_eq!(statistics.layoutupdate.addr.netid, "tcp".into());
    }
}

/// Decodes a message, and encodes it to the same bytes.
fn whole_again<T: Decode + Encode>(bytes: &Bytes) -> T {
    let value: T = Message::from(bytes.clone()).decode().unwrap();
    assert_eq!(Message::encode(&value).to_rope().to_bytes().unwrap(), bytes);
    value
}
