//! The client over RPC-over-RDMA, on iWARP in user space and in shared memory.

use crate::common;
use std::sync::Arc;

use crate::common::{Server, for_each, memory, nfs_server, pattern, registering, switch};
use client::{FileKind, LockRange, Mount, MountClient};
use rpc::RawOptions;

/// Returns a mount by a transport and of a version. Both ends register memory in `way`, or in the default way if it is
/// empty.
async fn mount((proto, way, vers): (&str, &str, &str)) -> (Server, Mount) {
    let kind = switch().find(proto).unwrap();
    let (kind, query) = match way {
        "" => (kind, String::new()),
        way => (registering(&*kind, way), format!("&registration={way}")),
    };
    let server = Server::serving(&*kind, nfs_server(Arc::new(memory())).services()).await;
    let mount = server.mount(&format!("proto={proto}&vers={vers}{query}")).await;
    (server, mount)
}

for_each! {
    [data_of_any_size_are_transferred long_replies_are_received_in_a_reply_chunk]
    rdma = ("rdma", "", "3")
    shm = ("shm", "", "3")
    rdma_4_0 = ("rdma", "", "4.0")
    rdma_4_2 = ("rdma", "", "4.2")
    shm_4_0 = ("shm", "", "4.0")
    shm_4_2 = ("shm", "", "4.2")
    rdma_per_io = ("rdma", "per-io", "3")
    rdma_fast = ("rdma", "fast", "3")
    rdma_cache = ("rdma", "cache", "3")
    rdma_pool = ("rdma", "pool", "3")
    shm_per_io = ("shm", "per-io", "3")
    shm_fast = ("shm", "fast", "3")
    shm_cache = ("shm", "cache", "3")
    shm_pool = ("shm", "pool", "3")
}

async fn data_of_any_size_are_transferred(how: (&str, &str, &str)) {
    let (_server, mount) = mount(how).await;
    assert_eq!((mount.read_size(), mount.write_size()), (1 << 20, 1 << 20));
    for len in [0, 1, 3, 100, 1000, 4095, 4096, 5001, 70_000, (1 << 20) + 1, 9_999_999] {
        let data = pattern(len);
        mount.write("f", data.clone()).await.unwrap();
        assert_eq!(mount.read("f").await.unwrap(), data, "{len} bytes");
        let file = mount.open("f").await.unwrap();
        let buffer = mount.pool().take(len + 7);
        let at = buffer.as_ptr();
        let (read, buffer) = file.read_at(0, buffer).await;
        assert_eq!((read.unwrap(), buffer.as_ptr()), (len, at), "{len} bytes");
        assert_eq!(&buffer[..len], &data[..]);
    }
}

async fn long_replies_are_received_in_a_reply_chunk(how: (&str, &str, &str)) {
    let (_server, mount) = mount(how).await;
    let text = "t/".repeat(2000);
    mount.symlink(&text, "long").await.unwrap();
    assert_eq!(mount.readlink("long").await.unwrap(), text);
    let name = "n".repeat(255);
    for i in 0..700 {
        mount.mkdir(format!("{i:03}{}", &name[3..]), 0o755).await.unwrap();
    }
    let listed = mount.read_dir("").await.unwrap().collect().await.unwrap();
    assert_eq!(listed.len(), 701);
    assert_eq!(mount.read_dir("").await.unwrap().names_only().collect().await.unwrap().len(), 701);
    let longest = mount.resolve(format!("699{}", &name[3..])).await.unwrap();
    assert_eq!(longest.attr.kind, FileKind::Dir);
}

for_each! {
    [state_of_a_client_does_not_occupy_receives]
    held_4_0 = "vers=4.0"
    held_4_1 = "vers=4.1"
}

async fn state_of_a_client_does_not_occupy_receives(query: &str) {
    let few = RawOptions::from([("recv_memory".to_owned(), "256k".to_owned())]);
    let kind = switch().find("rdma").unwrap().with_options(&few).unwrap();
    let server = Server::serving(&*kind, nfs_server(Arc::new(memory())).services()).await;
    let mount = server.mount(&format!("proto=rdma&{query}")).await;
    // More files than there are receives (of 4 KiB). Each file is open and locked.
    for number in 0..100 {
        let file = mount.create(number.to_string(), 0o644).await.unwrap();
        let whole = LockRange { offset: 0, length: u64::MAX, exclusive: true };
        assert_eq!(mount.v4().unwrap().lock(file.handle(), b"owner", whole).await.unwrap(), None);
    }
    let other = server.mount(&format!("proto=rdma&{query}")).await;
    assert_eq!(other.read_dir("").await.unwrap().collect().await.unwrap().len(), 100);
}

/// The server is like Linux's, which does not serve MOUNT on RDMA.
#[tokio::test]
async fn mount_is_found_on_tcp_when_rdma_has_none() {
    let programs = nfs_server(Arc::new(memory()));
    let kind = switch().find("rdma").unwrap();
    let nfs = Server::serving(&*kind, vec![Arc::new(programs.nfs3())]).await;
    let mountd = Server::serving(&*common::tcp(), vec![Arc::new(programs.mount3())]).await;
    let mount = nfs.mount(&format!("proto=rdma&mountport={}", mountd.address.port())).await;
    mount.write("f", &b"by rdma"[..]).await.unwrap();
    assert_eq!(mount.read("f").await.unwrap(), "by rdma");
    let exports = MountClient::connect(mount.url(), &nfs.switch).await.unwrap().exports().await.unwrap();
    assert_eq!(exports.len(), 1);
}
