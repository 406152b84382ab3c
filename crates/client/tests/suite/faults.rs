//! Servers that are silent, unreachable, slow or broken, in simulations.

use std::time::Duration;

use crate::common::{
    Server, memory, nfs_server, pattern,
    sim::{self, for_each_simulated},
    work::{all_is_done_once, all_was_done_once},
};
use buf::Buffer;
use client::{ErrorKind, Mount, NfsUrl};
use simnet::{Network, NetworkOptions};
use tokio::time::Instant;

for_each_simulated! {
    [
        connect_to_silent_server_times_out
        calls_time_out_when_the_server_becomes_silent
        cancelled_calls_free_their_buffers
    ]
    tcp = "tcp"
    rdma = "rdma"
}

/// Starts a server of a memory file system.
fn serve(network: &Network) -> tokio::task::JoinSet<()> {
    sim::start(network, nfs_server(std::sync::Arc::new(memory())).services())
}

/// Mounts the server as root.
async fn mount(network: &Network, query: &str) -> Mount {
    Server { address: sim::SERVER, switch: sim::switch(network, 1) }.mount(query).await
}

fn assert_timeout(error: &client::Error) {
    assert!(matches!(error.kind(), ErrorKind::Timeout { .. }), "{error}");
}

async fn connect_to_silent_server_times_out(network: Network, proto: &str) {
    let kind = sim::switch(&network, 1).find(proto).unwrap();
    // It accepts no connection.
    let _listener = kind.listen(sim::SERVER).unwrap();
    let url: NfsUrl = format!("nfs://{}/m?timeo=300ms&proto={proto}", sim::SERVER).parse().unwrap();
    let start = Instant::now();
    let error = Mount::connect(&url, &sim::switch(&network, 2)).await.unwrap_err();
    assert_timeout(&error);
    assert!(start.elapsed() >= Duration::from_millis(300));
    assert!(error.to_string().contains("no answer within 300ms"), "{error}");
}

async fn calls_time_out_when_the_server_becomes_silent(network: Network, proto: &str) {
    let _process = serve(&network);
    let mount = mount(&network, &format!("proto={proto}")).await;
    mount.write("f", pattern(2 << 20)).await.unwrap();
    let file = mount.open("f").await.unwrap();
    network.stall(Duration::from_secs(30));
    let hurried = mount.with_deadline(Duration::from_millis(200));
    assert_timeout(&hurried.stat("f").await.unwrap_err());
    let hurried = client::File::new(hurried, file.handle().clone(), "f");
    let (result, buffer) = hurried.read_at(0, Buffer::zeroed(1 << 20)).await;
    assert_timeout(&result.unwrap_err());
    assert_eq!(buffer.len(), 1 << 20);
    let mut writer = hurried.writer();
    writer.write(pattern(1 << 20)).await.unwrap();
    assert_timeout(&writer.close().await.unwrap_err());
    // The mount works again when the server is reachable.
    assert_eq!(mount.stat("f").await.unwrap().size, 2 << 20);
}

async fn cancelled_calls_free_their_buffers(network: Network, proto: &str) {
    let _process = serve(&network);
    let mount = mount(&network, &format!("proto={proto}")).await;
    mount.write("f", pattern(4 << 20)).await.unwrap();
    let file = mount.open("f").await.unwrap();
    mount.read("f").await.unwrap();
    // RDMA always has receives posted.
    let used = |mount: &Mount| mount.pool().stats().mapped - mount.pool().stats().free;
    let before = used(&mount);
    network.stall(Duration::from_secs(30));
    let at_once = Duration::from_millis(10);
    for _ in 0..10 {
        let buffer = mount.pool().take(1 << 20);
        assert!(tokio::time::timeout(at_once, file.read_at(0, buffer)).await.is_err());
        let mut reader = file.reader();
        assert!(tokio::time::timeout(at_once, reader.next()).await.is_err());
        let mut writer = file.writer();
        writer.write(mount.pool().take(1 << 20).freeze()).await.unwrap();
        assert!(tokio::time::timeout(at_once, writer.flush()).await.is_err());
    }
    assert!(used(&mount) > before, "the calls must use buffers");
    // The replies to the cancelled calls arrive, and then all buffers must be free.
    tokio::time::sleep(Duration::from_secs(60)).await;
    mount.stat("f").await.unwrap();
    assert!(used(&mount) <= before, "buffers leak: {:?}", mount.pool().stats());
}

for_each_simulated! {
    [writer_waits_for_slow_server_with_any_data]
    slow = ""
}

async fn writer_waits_for_slow_server_with_any_data(network: Network, _: &str) {
    let _process = serve(&network);
    let mount = mount(&network, "proto=tcp&writebehind=64K&wsize=16K").await;
    for (name, len, hole) in [("large", 50_000, 0), ("small", 100, 0), ("sparse", 4096, 4096)] {
        let file = mount.create(name, 0o644).await.unwrap();
        let (mut writer, mut expected) = (file.writer(), Vec::new());
        network.stall(Duration::from_secs(30));
        let filled = tokio::time::timeout(Duration::from_secs(10), async {
            loop {
                expected.extend_from_slice(&pattern(len));
                writer.write(pattern(len)).await.unwrap();
                writer.skip(hole);
                expected.resize(expected.len() + hole as usize, 0);
            }
        });
        assert!(filled.await.is_err());
        assert!(expected.len() < 300_000, "{name}: {} bytes taken", expected.len());
        writer.close().await.unwrap();
        assert!(mount.read(name).await.unwrap() == expected, "{name}");
    }
}

macro_rules! for_each_seed {
    ($($name:ident = $query:expr)*) => {
        $(#[test]
        fn $name() {
            callers_do_not_notice_cut_connections($query);
        })*
    };
}

for_each_seed! {
    callers_do_not_notice_cut_connections_tcp_v3 = "proto=tcp&vers=3"
    callers_do_not_notice_cut_connections_rdma_v3 = "proto=rdma&vers=3"
    callers_do_not_notice_cut_connections_tcp_v4_0 = "proto=tcp&vers=4.0"
    callers_do_not_notice_cut_connections_rdma_v4_0 = "proto=rdma&vers=4.0"
    callers_do_not_notice_cut_connections_tcp_v4_2 = "proto=tcp&vers=4.2"
    callers_do_not_notice_cut_connections_rdma_v4_2 = "proto=rdma&vers=4.2"
    callers_do_not_notice_cut_connections_mixed = "proto=tcp+rdma&vers=4.1"
}

/// Connections are cut at random messages.
fn callers_do_not_notice_cut_connections(query: &str) {
    for seed in simnet::seeds(8) {
        simnet::simulate(seed, || async {
            let about = format!("seed {seed}, {query}");
            let network = Network::new(NetworkOptions { seed, ..NetworkOptions::default() });
            let _process = serve(&network);
            let mount = mount(&network, &format!("{query}&wsize=32K&rsize=32K")).await;
            network.set_cut_probability(0.02);
            all_is_done_once(&mount, &about).await;
            network.set_cut_probability(0.0);
            let cuts = network.trace().events.iter().filter(|event| event.cut.is_some()).count();
            assert!(cuts > 2, "{about}: {cuts} cuts");
            all_was_done_once(&self::mount(&network, query).await, &about).await;
        });
    }
}

#[test]
fn futures_can_be_spawned() {
    fn check<T: Send>(_: T) {}
    sim::simulate(|network| async move {
        let _process = serve(&network);
        let mount = mount(&network, "").await;
        let file = client::File::new(mount.clone(), mount.root().clone(), "");
        let switch = sim::switch(&network, 1);
        check(Mount::connect(mount.url(), &switch));
        check(client::MountClient::connect(mount.url(), &switch));
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
    });
}
