//! Servers that are silent, unreachable, slow or broken.

use crate::common;
use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use crate::common::{Server, for_each, memory, pattern, proxy};
use ::rdma::hook::FaultInjector;
use buf::Buffer;
use client::{CreateHow, ErrorKind, Mount, NfsUrl, SetAttr};
use tokio::net::TcpListener;

/// Returns a listener that never answers.
async fn silent() -> TcpListener {
    TcpListener::bind("127.0.0.1:0").await.unwrap()
}

#[tokio::test]
async fn connect_to_silent_server_times_out() {
    let listener = silent().await;
    let url: NfsUrl = format!("nfs://{}/m?timeo=300ms", listener.local_addr().unwrap()).parse().unwrap();
    let start = Instant::now();
    let error = Mount::connect(&url, &common::switch()).await.unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Timeout { .. }), "{error}");
    assert!(start.elapsed() >= Duration::from_millis(300));
    assert!(error.to_string().contains("no answer within 300ms"), "{error}");
}

#[tokio::test]
async fn calls_time_out_when_the_server_becomes_silent() {
    calls_time_out_when_the_server_becomes_silent_over("tcp").await;
}

#[tokio::test]
async fn calls_time_out_when_the_server_becomes_silent_over_rdma() {
    calls_time_out_when_the_server_becomes_silent_over("rdma").await;
}

async fn calls_time_out_when_the_server_becomes_silent_over(proto: &str) {
    let server = Server::over(proto).await;
    let (gate, address) = proxy::gate(server.address).await;
    let url: NfsUrl = format!("nfs://{address}/m?uid=0&gid=0&proto={proto}").parse().unwrap();
    let mount = Mount::connect(&url, &server.switch).await.unwrap();
    mount.write("f", pattern(2 << 20)).await.unwrap();
    let file = mount.open("f").await.unwrap();
    gate.close();
    let hurried = mount.with_deadline(Duration::from_millis(200));
    let error = hurried.stat("f").await.unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Timeout { .. }), "{error}");
    let hurried = client::File::new(hurried, file.handle().clone(), "f");
    let (result, buffer) = hurried.read_at(0, Buffer::zeroed(1 << 20)).await;
    assert!(matches!(result.unwrap_err().kind(), ErrorKind::Timeout { .. }));
    assert_eq!(buffer.len(), 1 << 20);
    let mut writer = hurried.writer();
    writer.write(pattern(1 << 20)).await.unwrap();
    assert!(matches!(writer.close().await.unwrap_err().kind(), ErrorKind::Timeout { .. }));
    // The mount works again when the server is reachable.
    gate.open();
    assert_eq!(mount.stat("f").await.unwrap().size, 2 << 20);
}

#[tokio::test]
async fn cancelled_calls_free_their_buffers() {
    cancelled_calls_free_their_buffers_over("tcp").await;
}

#[tokio::test]
async fn cancelled_calls_free_their_buffers_over_rdma() {
    cancelled_calls_free_their_buffers_over("rdma").await;
}

async fn cancelled_calls_free_their_buffers_over(proto: &str) {
    let server = Server::over(proto).await;
    let (gate, address) = proxy::gate(server.address).await;
    let url: NfsUrl = format!("nfs://{address}/m?uid=0&gid=0&proto={proto}").parse().unwrap();
    let mount = Mount::connect(&url, &server.switch).await.unwrap();
    mount.write("f", pattern(4 << 20)).await.unwrap();
    let file = mount.open("f").await.unwrap();
    mount.read("f").await.unwrap();
    // RDMA always has receives posted.
    let used = |mount: &Mount| mount.pool().stats().mapped - mount.pool().stats().free;
    let before = used(&mount);
    gate.close();
    for _ in 0..10 {
        let buffer = mount.pool().take(1 << 20);
        let read = tokio::time::timeout(Duration::from_millis(10), file.read_at(0, buffer));
        assert!(read.await.is_err());
        let mut reader = file.reader();
        assert!(tokio::time::timeout(Duration::from_millis(10), reader.next()).await.is_err());
        let mut writer = file.writer();
        writer.write(mount.pool().take(1 << 20).freeze()).await.unwrap();
        assert!(tokio::time::timeout(Duration::from_millis(10), writer.flush()).await.is_err());
    }
    gate.open();
    // Replies to the cancelled calls may still arrive. After that, all buffers must be free.
    for _ in 0..1000 {
        mount.stat("f").await.unwrap();
        if used(&mount) <= before {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("buffers leak: {:?}", mount.pool().stats());
}

for_each! {
    [callers_do_not_notice_cut_connections]
    tcp = ("tcp", "3")
    rdma = ("rdma", "3")
    tcp_4_0 = ("tcp", "4.0")
    rdma_4_0 = ("rdma", "4.0")
    tcp_4_2 = ("tcp", "4.2")
}

async fn callers_do_not_notice_cut_connections((proto, vers): (&str, &str)) {
    for seed in 0..8 {
        let server = Server::over(proto).await;
        let address = proxy::start(server.address, seed, 12, 300_000).await.address;
        let query = format!("uid=0&gid=0&proto={proto}&vers={vers}&wsize=32K&rsize=32K");
        let url: NfsUrl = format!("nfs://{address}/m?{query}").parse().unwrap();
        let mount = Mount::connect(&url, &server.switch).await.unwrap();
        all_is_done_once(&mount, &format!("seed {seed}")).await;
        all_was_done_once(&server.mount(&format!("proto={proto}")).await, &format!("seed {seed}")).await;
    }
}

for_each! {
    [callers_do_not_notice_cuts_at_any_work_request]
    iwarp_per_io = ("rdma", "per-io")
    iwarp_fast = ("rdma", "fast")
    iwarp_cache = ("rdma", "cache")
    iwarp_pool = ("rdma", "pool")
    shm_per_io = ("shm", "per-io")
    shm_fast = ("shm", "fast")
    shm_cache = ("shm", "cache")
    shm_pool = ("shm", "pool")
}

/// Both ends register memory in this way, and either of them cuts connections.
async fn callers_do_not_notice_cuts_at_any_work_request((proto, way): (&str, &str)) {
    for seed in 0..3 {
        let injector = Arc::new(FaultInjector::new(seed, 0.005));
        let kind = if proto == "shm" { common::shm(injector.clone()) } else { common::iwarp(injector.clone()) };
        let programs = common::nfs_server(Arc::new(memory()));
        let mut server = Server::serving(&*common::registering(&*kind, way), programs.services()).await;
        server.switch.register(kind);
        let query = format!("proto={proto}&registration={way}&wsize=32K&rsize=32K");
        let mount = server.mount(&query).await;
        let about = format!("seed {seed}, {proto}, {way}");
        all_is_done_once(&mount, &about).await;
        assert!(injector.cuts() > 2, "{about}: {} cuts of {}", injector.cuts(), injector.operations());
        all_was_done_once(&server.mount(&query).await, &about).await;
    }
}

/// Writes a file in the root of `mount`, and meanwhile executes operations that would fail if they were executed twice.
async fn all_is_done_once(mount: &Mount, about: &str) {
    let data = pattern(500_000);
    let mut writer = mount.create("data", 0o644).await.unwrap().writer();
    for (i, chunk) in data.chunks(20_000).enumerate() {
        writer.write(data.slice_ref(chunk)).await.unwrap();
        let (dir, from, to) = (format!("dir{i}"), format!("dir{i}/from"), format!("dir{i}/to"));
        mount.mkdir(&dir, 0o755).await.unwrap_or_else(|error| panic!("{about}: {error}"));
        let (_, handle, _) = mount.parent(from.as_bytes()).await.unwrap();
        mount.protocol().create(&handle, b"from", CreateHow::Guarded(SetAttr::default())).await.unwrap();
        mount.rename(&from, &to).await.unwrap();
        mount.link(&to, format!("link{i}")).await.unwrap();
        mount.remove(&to).await.unwrap();
        mount.rmdir(&dir).await.unwrap();
    }
    writer.close().await.unwrap();
    assert!(mount.read("data").await.unwrap() == data, "{about}");
}

/// Checks through another mount that the results of [`all_is_done_once`] exist.
async fn all_was_done_once(mount: &Mount, about: &str) {
    assert!(mount.read("data").await.unwrap() == pattern(500_000), "{about}");
    assert_eq!(mount.read_dir("").await.unwrap().collect().await.unwrap().len(), 26, "{about}");
}

#[tokio::test]
async fn writer_waits_for_slow_server_with_any_data() {
    let server = Server::memory().await;
    let (gate, address) = proxy::gate(server.address).await;
    let url: NfsUrl = format!("nfs://{address}/m?uid=0&gid=0&writebehind=64K&wsize=16K").parse().unwrap();
    let mount = Mount::connect(&url, &server.switch).await.unwrap();
    for (name, len, hole) in [("large", 50_000, 0), ("small", 100, 0), ("sparse", 4096, 4096)] {
        let file = mount.create(name, 0o644).await.unwrap();
        let (mut writer, mut expected) = (file.writer(), Vec::new());
        gate.close();
        let filled = tokio::time::timeout(Duration::from_millis(300), async {
            loop {
                expected.extend_from_slice(&pattern(len));
                writer.write(pattern(len)).await.unwrap();
                writer.skip(hole);
                expected.resize(expected.len() + hole as usize, 0);
            }
        });
        assert!(filled.await.is_err());
        assert!(expected.len() < 300_000, "{name}: {} bytes taken", expected.len());
        gate.open();
        writer.close().await.unwrap();
        assert!(mount.read(name).await.unwrap() == expected, "{name}");
    }
}

#[test]
fn types_can_be_used_from_any_task_and_runtime() {
    fn check<T: Send + Sync + 'static>() {}
    fn check_send<T: Send + 'static>() {}
    check::<Mount>();
    check::<client::File>();
    check::<client::V3>();
    check::<client::Error>();
    check_send::<client::Reader>();
    check_send::<client::Writer>();
    check_send::<client::Dir>();
    let server_runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let server = Arc::new(server_runtime.block_on(Server::memory()));
    let first = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let mount = first.block_on(server.mount(""));
    first.block_on(mount.write("f", &b"from one thread"[..])).unwrap();
    let second = std::thread::spawn({
        let mount = mount.clone();
        move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(mount.read("f")).unwrap()
        }
    });
    let read = first.block_on(async { tokio::task::spawn_blocking(move || second.join().unwrap()).await.unwrap() });
    assert_eq!(read, "from one thread");
}

#[tokio::test]
async fn futures_can_be_spawned() {
    fn check<T: Send>(_: T) {}
    let server = Server::memory().await;
    let mount = server.mount("").await;
    let file = client::File::new(mount.clone(), mount.root().clone(), "");
    check(server.mount(""));
    check(client::MountClient::connect(mount.url(), &server.switch));
    check(mount.stat(""));
    check(mount.read_dir(""));
    check(mount.clone().unmount());
    check(file.read_at(0, Buffer::zeroed(1)));
    check(file.read_many_at(0, Vec::<Buffer>::new()));
    check(file.read_bytes(0, 1));
    check(file.write_at(0, bytes::Bytes::new()));
    check(file.reader().next());
    check(file.writer().write(bytes::Bytes::new()));
    check(file.writer().close());
}
