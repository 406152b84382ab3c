//! What only version 4 has, tried on a server that nobody here wrote: `cargo xtask interop --only knfsd` runs this with the URL
//! of an export in SLIPWAY_NFS4_URL, once for each version and transport. It panics where something is not as it should be.

use std::{sync::Arc, time::Duration};

use buf::Pool;
use bytes::Bytes;
use client::{ErrorKind, LockRange, Mount, NfsUrl, SetXattr, V4};
use nfs::v4::{DataContent4, Nfsstat4};
use rdma::iwarp::{Iwarp, IwarpOptions};
use rpc::{Switch, TcpKind, TcpOptions};
use rpcrdma::RdmaKind;

#[tokio::main]
async fn main() {
    locks_of_two_clients_exclude_each_other().await;
    extended_attributes_are_kept().await;
    holes_are_found_made_and_filled().await;
    files_are_what_they_were_made().await;
    what_another_client_writes_is_seen().await;
    several_connections_carry_one_session().await;
    transports_are_mixed_in_one_session().await;
}

fn switch() -> Switch {
    let mut switch = Switch::new();
    switch.register(Arc::new(TcpKind::new(TcpOptions::default(), Pool::default())));
    switch.register(Arc::new(RdmaKind::new(Arc::new(Iwarp::new(IwarpOptions::default())), Default::default())));
    switch
}

async fn mount(more: &str) -> Mount {
    let url = std::env::var("SLIPWAY_NFS4_URL").expect("SLIPWAY_NFS4_URL names an export");
    let url: NfsUrl = format!("{url}{more}").parse().expect("a URL");
    Mount::connect(&url, &switch()).await.unwrap_or_else(|error| panic!("mounting: {error}"))
}

fn v4(mount: &Mount) -> &V4 {
    mount.v4().expect("version 4")
}

/// Whether the server has what was tried, by what it answered.
fn had<T>(result: client::Result<T>) -> Option<T> {
    match result {
        Err(error) if matches!(error.kind(), ErrorKind::Nfs(nfs::v3::Nfsstat3::NotSupp)) => None,
        Err(error) if error.status4() == Some(Nfsstat4::OpIllegal) => None,
        result => Some(result.unwrap()),
    }
}

async fn locks_of_two_clients_exclude_each_other() {
    let (one, other) = (mount("").await, mount("").await);
    one.write("locked", &b"0123456789"[..]).await.unwrap();
    let file = one.open("locked").await.unwrap().handle().clone();
    let range = |offset, length, exclusive| LockRange { offset, length, exclusive };
    assert_eq!(v4(&one).lock(&file, b"a", range(0, 10, true)).await.unwrap(), None);
    let in_the_way = v4(&other).lock(&file, b"a", range(5, 1, false)).await.unwrap().expect("it is locked");
    assert!(in_the_way.exclusive && in_the_way.offset == 0 && in_the_way.length == 10, "{in_the_way:?}");
    assert_eq!(v4(&other).lock(&file, b"a", range(10, u64::MAX, true)).await.unwrap(), None, "another range");
    assert!(
        v4(&one).test_lock(&file, b"b", range(0, 1, false)).await.unwrap().is_some(),
        "another owner of one client"
    );
    v4(&one).unlock(&file, b"a", 0, 5).await.unwrap();
    assert_eq!(v4(&other).test_lock(&file, b"a", range(0, 5, true)).await.unwrap(), None);
    assert!(v4(&other).test_lock(&file, b"a", range(5, 1, true)).await.unwrap().is_some());
    let waiting = {
        let (other, file) = (other.clone(), file.clone());
        tokio::spawn(async move { v4(&other).lock_wait(&file, b"a", range(5, 5, true)).await })
    };
    v4(&one).unlock(&file, b"a", 5, 5).await.unwrap();
    waiting.await.unwrap().unwrap();
    one.unmount().await.unwrap();
    other.unmount().await.unwrap();
}

async fn extended_attributes_are_kept() {
    let mount = mount("").await;
    if v4(&mount).minor_version() < 2 {
        return;
    }
    mount.write("with-xattrs", &b"x"[..]).await.unwrap();
    let file = mount.resolve("with-xattrs").await.unwrap().handle;
    let value = Bytes::from_static(b"some value");
    let set = v4(&mount).set_xattr(&file, b"colour", value.clone(), SetXattr::Create).await;
    // Not every file system below a server has them.
    if had(set).is_none() {
        return println!("the server has no extended attributes there");
    }
    assert_eq!(v4(&mount).xattr(&file, b"colour").await.unwrap(), value);
    assert_eq!(v4(&mount).xattrs(&file).await.unwrap(), ["colour"]);
    let again = v4(&mount).set_xattr(&file, b"colour", value, SetXattr::Create).await.unwrap_err();
    assert_eq!(again.status(), Some(nfs::v3::Nfsstat3::Exist));
    v4(&mount).remove_xattr(&file, b"colour").await.unwrap();
    assert_eq!(v4(&mount).xattr(&file, b"colour").await.unwrap_err().status4(), Some(Nfsstat4::NoXattr));
    mount.unmount().await.unwrap();
}

async fn holes_are_found_made_and_filled() {
    let mount = mount("").await;
    if v4(&mount).minor_version() < 2 {
        return;
    }
    let file = mount.create("sparse", 0o644).await.unwrap();
    let block = Bytes::from(vec![7u8; 1 << 20]);
    file.write_at(0, block.clone()).await.unwrap();
    file.write_at(4 << 20, block).await.unwrap();
    let seek = async |offset, what| v4(&mount).seek(file.handle(), offset, what).await.unwrap();
    assert_eq!(seek(0, DataContent4::Hole).await, Some(1 << 20));
    assert_eq!(seek(1 << 20, DataContent4::Data).await, Some(4 << 20));
    if had(v4(&mount).deallocate(file.handle(), 0, 1 << 20).await).is_some() {
        assert_eq!(seek(0, DataContent4::Data).await, Some(4 << 20));
        assert!(file.read_bytes(0, 4096).await.unwrap().iter().all(|&byte| byte == 0));
    }
    if had(v4(&mount).allocate(file.handle(), 1 << 20, 1 << 20).await).is_some() {
        assert!(file.stat().await.unwrap().used >= 2 << 20);
    }
    // A delegation that is left behind is in the next run's way for as long as a lease.
    drop(file);
    mount.unmount().await.unwrap();
}

async fn files_are_what_they_were_made() {
    let mount = mount("").await;
    mount.mkdir("made", 0o755).await.unwrap();
    mount.symlink("made/f", "made/link").await.unwrap();
    mount.mknod("made/pipe", client::Special::Fifo, client::SetAttr::default()).await.unwrap();
    mount.write("made/f", &b"content"[..]).await.unwrap();
    mount.link("made/f", "made/g").await.unwrap();
    assert_eq!(mount.stat("made/g").await.unwrap().nlink, 2);
    assert_eq!(mount.readlink("made/link").await.unwrap(), "made/f");
    assert_eq!(mount.stat("made/pipe").await.unwrap().kind, client::FileKind::Fifo);
    mount.chmod("made/f", 0o600).await.unwrap();
    mount.truncate("made/f", 3).await.unwrap();
    let attr = mount.stat("made/f").await.unwrap();
    assert_eq!((attr.mode, attr.size), (0o600, 3));
    let not_a_dir = mount.rmdir("made/f").await.unwrap_err();
    assert_eq!(not_a_dir.status(), Some(nfs::v3::Nfsstat3::NotDir));
    let a_dir = mount.remove("made").await.unwrap_err();
    assert_eq!(a_dir.status(), Some(nfs::v3::Nfsstat3::IsDir));
    for name in ["f", "g", "link", "pipe"] {
        mount.remove(format!("made/{name}")).await.unwrap();
    }
    mount.rmdir("made").await.unwrap();
    let exclusive = client::OpenOptions { create: Some(0o640), exclusive: true, truncate: false };
    mount.open_with("exclusive", exclusive).await.unwrap();
    let second = mount.open_with("exclusive", exclusive).await.unwrap_err();
    assert_eq!(second.status(), Some(nfs::v3::Nfsstat3::Exist));
    mount.remove("exclusive").await.unwrap();
    mount.unmount().await.unwrap();
}

/// Another client that writes has the server recall a delegation, if it has given one; either way nobody reads stale data.
async fn what_another_client_writes_is_seen() {
    let (reader, writer) = (mount("").await, mount("").await);
    writer.write("shared", &b"first"[..]).await.unwrap();
    let file = reader.open("shared").await.unwrap();
    assert_eq!(file.read_bytes(0, 100).await.unwrap(), "first");
    tokio::time::timeout(Duration::from_secs(100), writer.write("shared", &b"second one"[..])).await.unwrap().unwrap();
    assert_eq!(file.stat().await.unwrap().size, 10);
    assert_eq!(file.read_bytes(0, 100).await.unwrap(), "second one");
    drop(file);
    reader.unmount().await.unwrap();
    writer.unmount().await.unwrap();
}

async fn several_connections_carry_one_session() {
    let mount = mount("&nconnect=4").await;
    assert_eq!(v4(&mount).connections(), 4);
    let data = Bytes::from((0..3_000_000u32).map(|i| (i * 7) as u8).collect::<Vec<_>>());
    mount.write("by-four", data.clone()).await.unwrap();
    assert_eq!(mount.read("by-four").await.unwrap(), data);
    mount.unmount().await.unwrap();
}

/// One session over both transports at once: SLIPWAY_NFS4_ALSO is the further address, as in the URL's `addr`.
async fn transports_are_mixed_in_one_session() {
    let Ok(also) = std::env::var("SLIPWAY_NFS4_ALSO") else { panic!("SLIPWAY_NFS4_ALSO is the other transport's end") };
    let mount = mount(&format!("&addr={also}")).await;
    assert_eq!(v4(&mount).connections(), 2);
    let data = Bytes::from((0..3_000_000u32).map(|i| (i * 11) as u8).collect::<Vec<_>>());
    mount.write("by-both", data.clone()).await.unwrap();
    assert_eq!(mount.read("by-both").await.unwrap(), data);
    mount.unmount().await.unwrap();
}
