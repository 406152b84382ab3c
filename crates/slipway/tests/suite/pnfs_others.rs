//! Clients that use no layouts beside one that does: their writes, and locks by each version.

use std::{fs, os::unix::fs::FileExt};

use client::{LockRange, Mount, Protocol};
use serde_json::Value;

use crate::{
    common::{
        Server, lines,
        mounted::{Mounted, can_mount, mount},
        ok,
    },
    pnfs::contents,
    pnfs_objects::Cluster,
};

/// Returns the layouts of a file that clients hold.
fn layouts(cluster: &Cluster, name: &str) -> Vec<Value> {
    let (file, state) = (cluster.at("export").join(name), cluster.at("state"));
    let show = ["layout", "show", "--json", file.to_str().unwrap(), "--state-dir", state.to_str().unwrap()];
    lines(&ok(&show)).remove(0)["holders"].as_array().unwrap().clone()
}

/// `slipway mount` by NFSv3, by 4.0, and by 4.1 and 4.2 without layouts writes to all copies. A client with a layout reads what was written.
#[test]
fn mounts_without_layouts_write_to_all_copies() {
    if !can_mount("mounts_without_layouts_write_to_all_copies") {
        return;
    }
    for query in ["&vers=3", "&vers=4.0", "&vers=4.1&pnfs=off", "&vers=4.2&pnfs=off"] {
        let cluster = Cluster::new(2);
        let server = Server::start(&["--config", &cluster.config("", "3")]);
        let at = cluster.at("mnt");
        fs::create_dir(&at).unwrap();
        let mounted = Mounted::of(mount(&[&server.url("tcp", ""), query].concat(), &at), at.clone());
        let mut bytes = contents(3, 3_000_001);
        fs::write(at.join("file"), &bytes).unwrap();
        let file = fs::OpenOptions::new().read(true).write(true).open(at.join("file")).unwrap();
        for (offset, len) in [(0, 5000), (1_234_567, 700_000), (2_999_000, 90_000)] {
            let data = contents(offset as u64 + 4, len);
            file.write_all_at(&data, offset as u64).unwrap();
            bytes.resize(bytes.len().max(offset + len), 0);
            bytes[offset..offset + len].copy_from_slice(&data);
        }
        file.sync_all().unwrap();
        assert!(
            (0..2).all(|server| cluster.objects(server) == [&bytes[..]]),
            "{query}: both copies must have the data"
        );
        assert_eq!(layouts(&cluster, "file"), Vec::<Value>::new(), "{query}");

        let (url, back) = (format!("{}&vers=4.2", server.url("tcp", "/file")), cluster.at("back"));
        let done: Value = serde_json::from_str(&ok(&["cp", "--json", "-q", &url, back.to_str().unwrap()])).unwrap();
        assert_eq!(done["direct_bytes"], bytes.len(), "{query}: read by a layout");
        assert!(fs::read(&back).unwrap() == bytes, "{query}");
        drop(file);
        mounted.end();
        server.stop();
    }
}

const fn exclusive(offset: u64, length: u64) -> LockRange {
    LockRange { offset, length, exclusive: true }
}

/// Three mounts of a file: by NFSv3, whose locks NLM has, by 4.0, and by 4.2 with a layout to write.
#[tokio::test]
async fn locks_of_each_version_exclude_each_other_beside_a_layout() {
    let cluster = Cluster::new(2);
    let server = Server::start(&["--config", &cluster.config("", "3")]);
    let switch = transports::for_client();
    let mount = async |version: &str| {
        let url = format!("{}&vers={version}", server.url("tcp", ""));
        Mount::connect(&url.parse().unwrap(), &switch).await.unwrap()
    };
    let direct = mount("4.2").await;
    let file = direct.create("file", 0o666).await.unwrap();
    file.write_at(0, bytes::Bytes::from(contents(1, 1_000_000))).await.unwrap();

    let (by_nlm, legacy) = (mount("3").await, mount("4.0").await);
    let (of_nlm, of_legacy) = (by_nlm.open("file").await.unwrap(), legacy.open("file").await.unwrap());
    let owners: [(&str, &Protocol, _); 3] = [
        ("3", by_nlm.protocol(), of_nlm.handle()),
        ("4.0", legacy.protocol(), of_legacy.handle()),
        ("4.2", direct.protocol(), file.handle()),
    ];
    // It returned a delegation when the others opened the file.
    file.write_at(1_000_000, bytes::Bytes::from(vec![7; 500_000])).await.unwrap();
    let held = layouts(&cluster, "file");
    assert_eq!(held.len(), 1);
    for (holder, protocol, handle) in owners {
        let range = exclusive(100, 50);
        assert_eq!(protocol.lock(handle, b"holder", range).await.unwrap(), None, "{holder}");
        for (other, theirs, their_handle) in owners.into_iter().filter(|(version, ..)| *version != holder) {
            let what = format!("{holder} has the lock, {other} wants it");
            let shared = LockRange { exclusive: false, ..exclusive(0, 101) };
            for wanted in [range, exclusive(149, u64::MAX), shared] {
                assert_eq!(theirs.lock(their_handle, b"other", wanted).await.unwrap(), Some(range), "{what}");
                assert_eq!(theirs.test_lock(their_handle, b"other", wanted).await.unwrap(), Some(range), "{what}");
            }
            for free in [exclusive(0, 100), exclusive(150, u64::MAX)] {
                assert_eq!(theirs.lock(their_handle, b"other", free).await.unwrap(), None, "{what}");
                theirs.unlock(their_handle, b"other", free.offset, free.length).await.unwrap();
            }
            // It waits for the release.
            let unlock = async {
                protocol.unlock(handle, b"holder", range.offset, range.length).await.unwrap();
            };
            let (waited, ()) = tokio::join!(theirs.lock_wait(their_handle, b"other", range), unlock);
            waited.unwrap_or_else(|error| panic!("{what}: {error}"));
            assert_eq!(protocol.lock(handle, b"holder", range).await.unwrap(), Some(range), "{what}");
            theirs.unlock(their_handle, b"other", range.offset, range.length).await.unwrap();
            assert_eq!(protocol.lock(handle, b"holder", range).await.unwrap(), None, "{what}");
        }
        protocol.unlock(handle, b"holder", range.offset, range.length).await.unwrap();
    }
    assert_eq!(layouts(&cluster, "file"), held, "a lock recalls no layout");
    drop((file, of_nlm, of_legacy));
    for mount in [direct, by_nlm, legacy] {
        mount.unmount().await.unwrap();
    }
    server.stop();
}
