//! The socket of `slipway clients`.

use server::{
    Export, ExportId, ExportOptions, HandleKey, NfsServer,
    admin::{Record, Request},
};
use vfs::memory::{Memory, MemoryOptions};

/// Bytes at the admin socket of a server without clients. The answer must have only complete records, and only the last
/// one may have the result. A valid request must decode to the same value after encoding.
pub fn admin_request(data: &[u8]) {
    let memory = Memory::new(MemoryOptions { capacity: 1 << 20, ..Default::default() });
    let export = Export::new("/m", ExportId::of(&[b"fuzz"]), std::sync::Arc::new(memory), ExportOptions::default());
    let server = NfsServer::new(export.expect("name must be valid"), HandleKey::random());
    let mut answer = Vec::new();
    server.admin().serve(data, &mut answer).expect("I/O in memory must succeed");
    let lines = answer.strip_suffix(b"\n").expect("lines must be complete").split(|&byte| byte == b'\n');
    let records: Vec<Record> = lines.map(|line| serde_json::from_slice(line).expect("line must be a record")).collect();
    assert!(matches!(&records[..], [Record::End | Record::Error { .. }]), "{records:?}");
    if let Ok(request) = serde_json::from_slice::<Request>(data) {
        let again = serde_json::to_vec(&request).expect("representable");
        assert_eq!(serde_json::from_slice::<Request>(&again).expect("encoded request must decode"), request);
    }
}
