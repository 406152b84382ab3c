//! Checks of locks, and of the operations that only NFSv4 has: attributes, holes, copies, delegations, and sessions over
//! several connections. The export is an ext4 of Linux's server.

use std::time::Duration;

use bytes::Bytes;
use client::{Mount, SetXattr};
use nfs::v4::{
    DataContent4,
    acl::{ACE4_READ_DATA, ACE4_WRITE_DATA, Acetype4, Nfsace4},
};

use crate::{data, exclusive, mount, shared, v4};

/// Runs all checks through the URL of an export. `also` is a further address of its server, as in the URL's `addr`, by
/// the other transport.
pub async fn all(url: &str, also: &str) {
    check_locks_conflict(url).await;
    check_file_types_and_attributes(url).await;
    check_acls(url).await;
    check_delegations(url).await;
    check_several_connections(url).await;
    let minor = {
        let mount = mount(url).await;
        let minor = v4(&mount).minor_version();
        mount.unmount().await.unwrap();
        minor
    };
    if minor >= 1 {
        check_mixed_transports(url, also).await;
    }
    if minor >= 2 {
        check_extended_attributes(url).await;
        check_holes(url).await;
        check_copy(url).await;
    }
}

/// Checks that locks of two clients conflict, and that an unlock removes the conflict.
pub async fn check_locks_conflict(url: &str) {
    let (one, other) = (mount(url).await, mount(url).await);
    one.write("locked", &b"0123456789"[..]).await.unwrap();
    let file = one.open("locked").await.unwrap().handle().clone();
    assert_eq!(one.protocol().lock(&file, b"a", exclusive(0, 10)).await.unwrap(), None);
    // NFSv4.0 opens the file to lock by the name under which it was found.
    assert_eq!(*other.open("locked").await.unwrap().handle(), file);
    let conflict = other.protocol().lock(&file, b"a", shared(5, 1)).await.unwrap().expect("the bytes must be locked");
    assert!(conflict.exclusive && conflict.offset == 0 && conflict.length == 10, "{conflict:?}");
    assert_eq!(other.protocol().lock(&file, b"a", exclusive(10, u64::MAX)).await.unwrap(), None, "another range");
    assert!(
        one.protocol().test_lock(&file, b"b", shared(0, 1)).await.unwrap().is_some(),
        "another owner of one client"
    );
    one.protocol().unlock(&file, b"a", 0, 5).await.unwrap();
    assert_eq!(other.protocol().test_lock(&file, b"a", exclusive(0, 5)).await.unwrap(), None);
    assert!(other.protocol().test_lock(&file, b"a", exclusive(5, 1)).await.unwrap().is_some());
    let waiting = {
        let (other, file) = (other.clone(), file.clone());
        tokio::spawn(async move { other.protocol().lock_wait(&file, b"a", exclusive(5, 5)).await })
    };
    one.protocol().unlock(&file, b"a", 5, 5).await.unwrap();
    waiting.await.unwrap().unwrap();
    one.unmount().await.unwrap();
    other.unmount().await.unwrap();
}

/// The server maps ACLs to POSIX ACLs, and users are numbers. An added entry must be stored and must grant access.
async fn check_acls(url: &str) {
    let mount = mount(url).await;
    mount.write("with-acl", &b"for some"[..]).await.unwrap();
    mount.chmod("with-acl", 0o600).await.unwrap();
    let file = mount.resolve("with-acl").await.unwrap().handle;
    let before = v4(&mount).acl(&file).await.unwrap();
    let of = |acl: &[Nfsace4], who: &str| -> u32 {
        let allowed = acl.iter().filter(|ace| ace.acetype == Acetype4::ACCESS_ALLOWED && ace.who.0 == who.as_bytes());
        allowed.fold(0, |mask, ace| mask | ace.access_mask)
    };
    assert_eq!(of(&before, "OWNER@") & (ACE4_READ_DATA | ACE4_WRITE_DATA), ACE4_READ_DATA | ACE4_WRITE_DATA);
    assert_eq!(of(&before, "4711"), 0);
    let stranger = crate::mount(&url.replace("uid=0&gid=0", "uid=4711&gid=4711")).await;
    assert_eq!(stranger.read("with-acl").await.unwrap_err().status(), Some(client::Status::AccessDenied));
    let reader =
        Nfsace4 { acetype: Acetype4::ACCESS_ALLOWED, flag: 0, access_mask: ACE4_READ_DATA, who: "4711".into() };
    v4(&mount).set_acl(&file, [vec![reader], before].concat()).await.unwrap();
    let after = v4(&mount).acl(&file).await.unwrap();
    assert_eq!(of(&after, "4711") & (ACE4_READ_DATA | ACE4_WRITE_DATA), ACE4_READ_DATA, "{after:?}");
    assert_eq!(stranger.read("with-acl").await.unwrap(), "for some");
    let refused = stranger.write("with-acl", &b"by a stranger"[..]).await.unwrap_err();
    assert_eq!(refused.status(), Some(client::Status::AccessDenied));
    stranger.unmount().await.unwrap();
    // Remove the file, so that the next run creates it without an ACL.
    mount.remove("with-acl").await.unwrap();
    mount.unmount().await.unwrap();
}

async fn check_extended_attributes(url: &str) {
    let mount = mount(url).await;
    mount.write("with-xattrs", &b"x"[..]).await.unwrap();
    let file = mount.resolve("with-xattrs").await.unwrap().handle;
    let value = Bytes::from_static(b"some value");
    v4(&mount).set_xattr(&file, b"colour", value.clone(), SetXattr::Create).await.unwrap();
    assert_eq!(v4(&mount).xattr(&file, b"colour").await.unwrap(), value);
    assert_eq!(v4(&mount).xattrs(&file).await.unwrap(), ["colour"]);
    let again = v4(&mount).set_xattr(&file, b"colour", value, SetXattr::Create).await.unwrap_err();
    assert_eq!(again.status(), Some(client::Status::AlreadyExists));
    v4(&mount).remove_xattr(&file, b"colour").await.unwrap();
    assert_eq!(v4(&mount).xattr(&file, b"colour").await.unwrap_err().status(), Some(client::Status::NoAttribute));
    mount.unmount().await.unwrap();
}

async fn check_holes(url: &str) {
    let mount = mount(url).await;
    let file = mount.create("sparse", 0o644).await.unwrap();
    let block = Bytes::from(vec![7u8; 1 << 20]);
    file.write_at(0, block.clone()).await.unwrap();
    file.write_at(4 << 20, block).await.unwrap();
    let seek = async |offset, what| v4(&mount).seek(file.handle(), offset, what).await.unwrap();
    assert_eq!(seek(0, DataContent4::Hole).await, Some(1 << 20));
    assert_eq!(seek(1 << 20, DataContent4::Data).await, Some(4 << 20));
    v4(&mount).deallocate(file.handle(), 0, 1 << 20).await.unwrap();
    assert_eq!(seek(0, DataContent4::Data).await, Some(4 << 20));
    assert!(file.read_bytes(0, 4096).await.unwrap().iter().all(|&byte| byte == 0));
    v4(&mount).allocate(file.handle(), 1 << 20, 1 << 20).await.unwrap();
    assert!(file.stat().await.unwrap().used >= 2 << 20);
    // A delegation that is not returned would delay the next run for as long as a lease.
    drop(file);
    mount.unmount().await.unwrap();
}

async fn check_copy(url: &str) {
    let mount = mount(url).await;
    let content = data(3 << 20, 5);
    mount.write("original", content.clone()).await.unwrap();
    let (from, to) = (mount.open("original").await.unwrap(), mount.create("copied", 0o644).await.unwrap());
    let (mut copied, whole) = (0, content.len() as u64);
    while copied < whole {
        let (bytes, _) = v4(&mount).copy((from.handle(), copied), (to.handle(), copied), whole - copied).await.unwrap();
        assert!(bytes > 0, "a copy must make progress");
        copied += bytes;
    }
    assert_eq!(mount.read("copied").await.unwrap(), content);
    // ext4 cannot share data between files.
    let cloned = v4(&mount).clone_range((from.handle(), 0), (to.handle(), 0), 0).await.unwrap_err();
    assert!(cloned.status().is_some(), "{cloned}");
    drop((from, to));
    mount.unmount().await.unwrap();
}

async fn check_file_types_and_attributes(url: &str) {
    let mount = mount(url).await;
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
    assert_eq!(not_a_dir.status(), Some(client::Status::NotADirectory));
    let a_dir = mount.remove("made").await.unwrap_err();
    assert_eq!(a_dir.status(), Some(client::Status::IsADirectory));
    for name in ["f", "g", "link", "pipe"] {
        mount.remove(format!("made/{name}")).await.unwrap();
    }
    mount.rmdir("made").await.unwrap();
    let exclusive = client::OpenOptions { create: Some(0o640), exclusive: true, truncate: false };
    mount.open_with("exclusive", exclusive).await.unwrap();
    let second = mount.open_with("exclusive", exclusive).await.unwrap_err();
    assert_eq!(second.status(), Some(client::Status::AlreadyExists));
    mount.remove("exclusive").await.unwrap();
    mount.unmount().await.unwrap();
}

/// The server grants delegations to clients since 4.1, because it can call them back on their own connections. A write
/// by another client recalls the delegation. With or without a delegation, no client reads stale data.
async fn check_delegations(url: &str) {
    let writer = mount(url).await;
    let (mut delegated, mut can) = (false, true);
    // Linux's server grants no delegation while another client writes, nor, for some time, for files that look like one
    // whose delegation was recalled. It also keeps written files open for some seconds.
    for attempt in 0..DELEGATION_TRIES {
        let name = format!("shared-{attempt}");
        let made = mount(url).await;
        made.write(&name, &b"first"[..]).await.unwrap();
        made.unmount().await.unwrap();
        tokio::time::sleep(Duration::from_secs(attempt.min(5))).await;
        let reader = mount(url).await;
        let file = reader.open(&name).await.unwrap();
        assert_eq!(file.read_bytes(0, 100).await.unwrap(), "first");
        delegated = v4(&reader).is_delegated(file.handle());
        writer.write(&name, &b"second one"[..]).await.unwrap();
        assert!(
            !v4(&reader).is_delegated(file.handle()),
            "the delegation must be recalled before another client writes"
        );
        assert_eq!(file.stat().await.unwrap().size, 10);
        assert_eq!(file.read_bytes(0, 100).await.unwrap(), "second one");
        drop(file);
        can = v4(&reader).minor_version() > 0;
        reader.unmount().await.unwrap();
        writer.remove(&name).await.unwrap();
        if delegated || !can {
            break;
        }
    }
    assert_eq!(delegated, can, "the server must delegate files exactly if it can call the client back");
    writer.unmount().await.unwrap();
}

async fn check_several_connections(url: &str) {
    let mount = mount(&format!("{url}&nconnect=4")).await;
    assert_eq!(v4(&mount).connections(), 4);
    check_data(mount, "by-four", 7).await;
}

async fn check_mixed_transports(url: &str, also: &str) {
    let mount = mount(&format!("{url}&addr={also}")).await;
    assert_eq!(v4(&mount).connections(), 2);
    check_data(mount, "by-both", 11).await;
}

async fn check_data(mount: Mount, file: &str, seed: u32) {
    let data = data(3_000_000, seed);
    mount.write(file, data.clone()).await.unwrap();
    assert_eq!(mount.read(file).await.unwrap(), data);
    mount.unmount().await.unwrap();
}

const DELEGATION_TRIES: u64 = 120;
