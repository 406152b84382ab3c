//! The bodies of the fuzz targets.
//!
//! `fuzz/fuzz_targets/<name>.rs` runs one under libFuzzer. The test `fuzz_corpora` replays the inputs in
//! `fuzz/corpus/<name>/` in every test run. A body must return for any input: a panic, a hang, or an allocation out of
//! proportion to the input is a bug.
//!
//! To add a target, add a function here, a line in [`TARGETS`], a file in `fuzz/fuzz_targets`, a `[[bin]]` in
//! `fuzz/Cargo.toml`, and some seeds in `fuzz/corpus/<name>`.

mod admin;
mod callback4;
mod granting;
mod gss;
mod nfs;
mod nfs4;
mod objects;
mod rpc;
mod rpcrdma;
mod service4;
mod tls;
mod xdr;

use buf::Buffer;
use bytes::Bytes;
use rdma::{
    Memory, RemoteSegment, Stag, WorkId, WorkRequest,
    iwarp::{harness::StreamHarness, mpa::Handshake, rdmap::Terminate},
    shm::harness::{self as shm, RingHarness},
};

pub use self::{
    admin::admin_request,
    callback4::nfs4_callback,
    gss::gss,
    nfs::{handle, nfs3_call},
    nfs4::{nfs4_compound, nfs4_layout},
    objects::object_handle,
    rpc::{record_marking, rpc_message},
    rpcrdma::{rpcrdma_connection, rpcrdma_header},
    service4::nfs4_service,
    tls::tls_handshake,
    xdr::xdr,
};

/// A target: its name, and the function that runs an input.
pub type Target = (&'static str, fn(&[u8]));

/// Every target.
pub const TARGETS: &[Target] = &[
    ("xdr", xdr),
    ("iwarp_mpa", iwarp_mpa),
    ("iwarp_stream", iwarp_stream),
    ("shm_peer", shm_peer),
    ("record_marking", record_marking),
    ("rpc_message", rpc_message),
    ("rpcrdma_header", rpcrdma_header),
    ("rpcrdma_connection", rpcrdma_connection),
    ("nfs3_call", nfs3_call),
    ("handle", handle),
    ("object_handle", object_handle),
    ("nfs4_compound", nfs4_compound),
    ("nfs4_layout", nfs4_layout),
    ("nfs4_service", nfs4_service),
    ("admin_request", admin_request),
    ("nfs4_callback", nfs4_callback),
    ("gss", gss),
    ("tls_handshake", tls_handshake),
];

/// The first frame of a connection, from either side. An accepted frame must encode to the same bytes.
pub fn iwarp_mpa(data: &[u8]) {
    for reply in [false, true] {
        if let Ok(Some((frame, len))) = Handshake::parse(data, reply) {
            assert_eq!(frame.encode(), data[..len], "the encoding must be canonical");
        }
    }
    if let Some(terminate) = Terminate::parse(data) {
        let mut encoded = Vec::new();
        terminate.encode(&mut encoded);
        assert_eq!(Terminate::parse(&encoded).map(|again| again.error), Some(terminate.error));
    }
}

/// The shared memory and messages that a peer controls. The first byte of the input selects one of these.
///
/// 0: words of its ring, in batches that begin with a byte which falsifies their number. The regions are those of
/// [`iwarp_stream`]. 1: words of the table of exposures, after a tag, an offset and a length to access. Others: a
/// packet on the socket.
pub fn shm_peer(data: &[u8]) {
    let Some((&kind, rest)) = data.split_first() else { return };
    match kind {
        0 => shm_ring(rest),
        1 => {
            let words: Vec<u64> = rest.as_chunks().0.iter().map(|&word| u64::from_le_bytes(word)).collect();
            if let [stag, offset, len, ref table @ ..] = words[..] {
                shm::reach(table, stag as u32, offset, &mut vec![0; len as usize & 0xffff]);
            }
        }
        _ => {
            shm::packet(rest);
        }
    }
}

fn shm_ring(data: &[u8]) {
    let mut end = RingHarness::new(4, &[100, 5000, 1]);
    let regions = [Memory::Write(Buffer::zeroed(1000).into()), Memory::Read(Bytes::from(vec![7; 1000]).into())];
    for memory in regions {
        end.register(memory).expect("table must have room");
    }
    let mut at = 0;
    for batch in data.chunks(1 + 8 * 40) {
        let words: Vec<u64> = batch[1..].as_chunks().0.iter().map(|&word| u64::from_le_bytes(word)).collect();
        let honest = (at + words.len()) as u64;
        let tail = match batch[0] {
            lie @ 1..128 => honest.wrapping_add(u64::from(lie)),
            lie @ 128.. => honest.wrapping_sub(u64::from(lie)),
            0 => honest,
        };
        // Errors are allowed: the connection would end.
        if end.feed(at, &words, tail).is_err() {
            break;
        }
        at += words.len();
    }
    end.end();
}

/// The bytes of a peer on an established stream.
///
/// The first byte of the input says how they arrive. The regions have the tags 0x101 (writable, 1000 bytes), 0x201
/// (readable, 1000 bytes) and 0x301 (writable, 70000 bytes). Responses are awaited for the tags 0x80000001 (100 bytes),
/// 0x80000002 (5000 bytes), and then 0x80000003 (1 byte).
pub fn iwarp_stream(data: &[u8]) {
    let Some((&how, stream)) = data.split_first() else { return };
    let (crc, step) = (how & 1 != 0, [1, 5, 64, 1460, usize::MAX, 17, 4096, 333][usize::from(how >> 1 & 7)]);
    let mut end = StreamHarness::new(crc, 3, 4);
    let regions = [
        Memory::Write(Buffer::zeroed(1000).into()),
        Memory::Read(Bytes::from(vec![7; 1000]).into()),
        Memory::Write(Buffer::zeroed(70_000).into()),
    ];
    for (memory, expected) in regions.into_iter().zip([0x101, 0x201, 0x301]) {
        let region = end.register(memory).expect("table must have room");
        assert_eq!(region.stag, Stag(expected));
    }
    let from = RemoteSegment { stag: Stag(1), offset: 0 };
    for (id, len) in [100, 5000, 1].into_iter().enumerate() {
        end.post(WorkRequest::Read { id: WorkId(100 + id as u64), into: Buffer::zeroed(len), from });
    }
    let data = Bytes::from_static(b"overtaken by the reads").into();
    end.post(WorkRequest::Send { id: WorkId(200), data, invalidate: None, solicited: false });
    // Errors are allowed: the stream would be terminated.
    let _ = end.feed(stream, step, how & 0x10 != 0);
    // A read request of 52 bytes gets a response of 1000 bytes and its headers; no other request causes more bytes.
    assert!(end.sent() < 2000 + stream.len() as u64 * 30, "{} bytes were sent for {}", end.sent(), stream.len());
    end.end();
}
