//! Tests of a client that calls and never reads replies: its cost for the server, and that others are not affected.

use std::{
    fs,
    io::{ErrorKind, Write},
    net::TcpStream,
    sync::Arc,
};

use crate::common::{Server, mounted::pattern, ok};
use bytes::{Buf, Bytes};
use client::Mount;
use nfs::v3::{Proc3, ReadArgs, ReadDirPlusArgs};
use rpc::{CallHeader, OpaqueAuth, Xid};
use xdr::{Encode, Encoder};

/// Returns a call without credentials, as a record.
fn record(xid: u32, procedure: Proc3, arguments: &impl Encode) -> Vec<u8> {
    let (credential, verifier) = (OpaqueAuth::NONE, OpaqueAuth::NONE);
    let (program, version, procedure) = (nfs::NFS_PROGRAM, 3, procedure as u32);
    let mut encoder = Encoder::default();
    CallHeader { xid: Xid(xid), program, version, procedure, credential, verifier }.encode(&mut encoder);
    arguments.encode(&mut encoder);
    let message = encoder.finish().stream;
    [&(0x8000_0000 | message.len() as u32).to_be_bytes()[..], &message].concat()
}

/// A connection that sends calls and reads nothing.
struct Unread {
    /// `None` after the server has closed the connection.
    stream: Option<TcpStream>,
    /// The calls that have not been sent.
    calls: Bytes,
}

impl Unread {
    /// Sends calls until the buffers of the connection are full. Returns the number of bytes that it has sent.
    fn send(&mut self) -> usize {
        let before = self.calls.len();
        while let Some(stream) = self.stream.as_mut().filter(|_| !self.calls.is_empty()) {
            match stream.write(&self.calls) {
                Ok(len) => self.calls.advance(len),
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(_) => self.stream = None,
            }
        }
        before - self.calls.len()
    }
}

/// Returns the resident bytes of a server.
fn resident(server: &Server) -> u64 {
    let text = fs::read_to_string(format!("/proc/{}/smaps_rollup", server.child.id())).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix("Rss:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
}

#[tokio::test]
async fn a_client_that_never_reads_costs_little_and_delays_no_one() {
    let directory = tempfile::tempdir().unwrap();
    let served = directory.path().join("served");
    fs::create_dir_all(served.join("many")).unwrap();
    (0..1000).for_each(|number| drop(fs::File::create(served.join(format!("many/name-{number:04}"))).unwrap()));
    let content = pattern(1 << 20);
    fs::write(served.join("file"), &content).unwrap();
    let server = Server::dir(&served, &directory.path().join("state"));
    let mut switch = rpc::Switch::new();
    switch.register(Arc::new(rpc::TcpKind::new(Default::default(), buf::Pool::default())));
    let mount = Mount::connect(&server.url("tcp", "").parse().unwrap(), &switch).await.unwrap();
    let [many, file] = [mount.resolve("many").await.unwrap(), mount.resolve("file").await.unwrap()];
    let [many, file] = [many, file].map(|object| xdr::Opaque(object.handle.0));

    let before = resident(&server);
    let list = ReadDirPlusArgs { dir: many, cookie: 0, cookieverf: [0; 8], dircount: 1 << 20, maxcount: 1 << 20 };
    let read = ReadArgs { file, offset: 0, count: 1 << 20 };
    let calls = (0..CALLS).flat_map(|xid| match xid % 2 {
        0 => record(xid, Proc3::ReadDirPlus, &list),
        _ => record(xid, Proc3::Read, &read),
    });
    let calls = Bytes::from_iter(calls);
    let mut streams = Vec::new();
    for _ in 0..CONNECTIONS {
        let stream = TcpStream::connect(("127.0.0.1", server.port("tcp"))).unwrap();
        stream.set_nonblocking(true).unwrap();
        streams.push(Unread { stream: Some(stream), calls: calls.clone() });
    }
    // The server reads no further calls if it has read none while it has answered a call of another client.
    while streams.iter_mut().map(Unread::send).sum::<usize>() > 0 {
        ok(&["ls", &server.url("tcp", "")]);
    }
    assert!(
        streams.iter().all(|unread| !unread.calls.is_empty()),
        "the server must stop reading, or close the connection"
    );
    for transport in ["tcp", "rdma", "tcp", "rdma"] {
        assert!(ok(&["ls", &server.url(transport, "")]).contains("file"));
        let back = directory.path().join("back");
        ok(&["cp", &server.url(transport, "/file"), back.to_str().unwrap()]);
        assert!(fs::read(back).unwrap() == content);
        let more = resident(&server).saturating_sub(before);
        assert!(more < CONNECTIONS * HELD_MAX, "{} MiB", more >> 20);
    }
    drop(streams);
    server.stop();
}

const CONNECTIONS: u64 = 4;
/// The calls of each connection. They are more bytes than the buffers of the connection hold, and their replies would be gigabytes.
const CALLS: u32 = 400_000;
/// The maximum memory of a connection: unsent replies, and buffered calls.
const HELD_MAX: u64 = 16 << 20;
