//! The examples run.

#[path = "../examples/embed_server.rs"]
mod embed_server;
#[allow(dead_code, reason = "its main has arguments")]
#[path = "../examples/read_into_buffer.rs"]
mod read_into_buffer;
#[path = "../examples/rpc_service.rs"]
mod rpc_service;

#[test]
fn a_server_with_an_own_back_end_is_embedded() {
    embed_server::main().unwrap();
}

#[tokio::test]
async fn a_file_is_read_into_an_own_buffer() {
    let (address, _workers) = embed_server::serve().await.unwrap();
    let url = format!("nfs://{address}/notes");
    // The blocking client, called from asynchronous code: the server runs on threads of its own.
    assert_eq!(&read_into_buffer::read(&url, "note", 100).unwrap()[..], b"hello");
    assert_eq!(&read_into_buffer::read(&url, "note", 3).unwrap()[..], b"hel");
    assert!(read_into_buffer::read(&url, "none", 3).is_err());
}

#[test]
fn an_own_service_is_called_over_all_transports() {
    rpc_service::main().unwrap();
}
