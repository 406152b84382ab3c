//! What is said at the socket of `slipway clients`.

use server::{
    Export, ExportId, ExportOptions, HandleKey, NfsServer,
    admin::{Record, Request},
};
use vfs::memory::{Memory, MemoryOptions};

/// Bytes at the admin socket of a server without clients: they are answered by whole records, of which the last alone says how
/// it went; and what is a request is read the same when it is written again.
pub fn admin_request(data: &[u8]) {
    let memory = Memory::new(MemoryOptions { capacity: 1 << 20, ..Default::default() });
    let export = Export::new("/m", ExportId::of(&[b"fuzz"]), std::sync::Arc::new(memory), ExportOptions::default());
    let server = NfsServer::new(export.expect("a name"), HandleKey::random());
    let mut answer = Vec::new();
    server.admin().serve(data, &mut answer).expect("memory can be read and written");
    let lines = answer.strip_suffix(b"\n").expect("whole lines").split(|&byte| byte == b'\n');
    let records: Vec<Record> = lines.map(|line| serde_json::from_slice(line).expect("a record")).collect();
    assert!(matches!(&records[..], [Record::End | Record::Error { .. }]), "{records:?}");
    if let Ok(request) = serde_json::from_slice::<Request>(data) {
        let again = serde_json::to_vec(&request).expect("representable");
        assert_eq!(serde_json::from_slice::<Request>(&again).expect("it is one"), request);
    }
}
