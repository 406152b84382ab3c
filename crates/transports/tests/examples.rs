//! Runs the examples.

#[path = "../examples/embed_server.rs"]
mod embed_server;
#[allow(dead_code, reason = "its main has arguments")]
#[path = "../examples/read_into_buffer.rs"]
mod read_into_buffer;
#[path = "../examples/rpc_service.rs"]
mod rpc_service;

#[test]
fn embed_server_runs() {
    embed_server::main().unwrap();
}

#[tokio::test]
async fn read_into_buffer_reads_a_file() {
    let (address, _workers) = embed_server::serve().await.unwrap();
    let url = format!("nfs://{address}/notes");
    // The blocking client can be called from asynchronous code here, because the server runs on threads of its own.
    assert_eq!(&read_into_buffer::read(&url, "note", 100).unwrap()[..], b"hello");
    assert_eq!(&read_into_buffer::read(&url, "note", 3).unwrap()[..], b"hel");
    assert!(read_into_buffer::read(&url, "none", 3).is_err());
}

#[test]
fn rpc_service_runs_over_all_transports() {
    rpc_service::main().unwrap();
}
