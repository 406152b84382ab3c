//! What only version 4 has, of one way to reach an export: locks, attributes, holes, copies, delegations, and sessions over several
//! connections. The export is an ext4 of Linux's.

use std::time::Duration;

use bytes::Bytes;
use client::{Mount, SetXattr};
use nfs::v4::{
    DataContent4,
    acl::{ACE4_READ_DATA, ACE4_WRITE_DATA, Acetype4, Nfsace4},
};

use crate::{data, exclusive, mount, shared, v4};

/// By the URL of an export, and a further address of its server, as in the URL's `addr`, by the other transport.
pub async fn all(url: &str, also: &str) {
    locks_of_two_clients_exclude_each_other(url).await;
    files_are_what_they_were_made(url).await;
    acls_are_kept(url).await;
    delegations_are_given_and_recalled(url).await;
    several_connections_carry_a_mount(url).await;
    let minor = {
        let mount = mount(url).await;
        let minor = v4(&mount).minor_version();
        mount.unmount().await.unwrap();
        minor
    };
    if minor >= 1 {
        transports_are_mixed_in_one_session(url, also).await;
    }
    if minor >= 2 {
        extended_attributes_are_kept(url).await;
        holes_are_found_made_and_filled(url).await;
        the_server_copies(url).await;
    }
}

async fn locks_of_two_clients_exclude_each_other(url: &str) {
    let (one, other) = (mount(url).await, mount(url).await);
    one.write("locked", &b"0123456789"[..]).await.unwrap();
    let file = one.open("locked").await.unwrap().handle().clone();
    assert_eq!(v4(&one).lock(&file, b"a", exclusive(0, 10)).await.unwrap(), None);
    // Version 4.0 opens what it locks by the name that it has found it by.
    assert_eq!(*other.open("locked").await.unwrap().handle(), file);
    let in_the_way = v4(&other).lock(&file, b"a", shared(5, 1)).await.unwrap().expect("it is locked");
    assert!(in_the_way.exclusive && in_the_way.offset == 0 && in_the_way.length == 10, "{in_the_way:?}");
    assert_eq!(v4(&other).lock(&file, b"a", exclusive(10, u64::MAX)).await.unwrap(), None, "another range");
    assert!(v4(&one).test_lock(&file, b"b", shared(0, 1)).await.unwrap().is_some(), "another owner of one client");
    v4(&one).unlock(&file, b"a", 0, 5).await.unwrap();
    assert_eq!(v4(&other).test_lock(&file, b"a", exclusive(0, 5)).await.unwrap(), None);
    assert!(v4(&other).test_lock(&file, b"a", exclusive(5, 1)).await.unwrap().is_some());
    let waiting = {
        let (other, file) = (other.clone(), file.clone());
        tokio::spawn(async move { v4(&other).lock_wait(&file, b"a", exclusive(5, 5)).await })
    };
    v4(&one).unlock(&file, b"a", 5, 5).await.unwrap();
    waiting.await.unwrap().unwrap();
    one.unmount().await.unwrap();
    other.unmount().await.unwrap();
}

/// They are POSIX ACLs there, and users are numbers: what one may do more is kept, and is what he can do.
async fn acls_are_kept(url: &str) {
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
    // The next run's is to begin with its mode alone.
    mount.remove("with-acl").await.unwrap();
    mount.unmount().await.unwrap();
}

async fn extended_attributes_are_kept(url: &str) {
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

async fn holes_are_found_made_and_filled(url: &str) {
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
    // A delegation that is left behind is in the next run's way for as long as a lease.
    drop(file);
    mount.unmount().await.unwrap();
}

async fn the_server_copies(url: &str) {
    let mount = mount(url).await;
    let content = data(3 << 20, 5);
    mount.write("original", content.clone()).await.unwrap();
    let (from, to) = (mount.open("original").await.unwrap(), mount.create("copied", 0o644).await.unwrap());
    let (mut copied, whole) = (0, content.len() as u64);
    while copied < whole {
        let (bytes, _) = v4(&mount).copy((from.handle(), copied), (to.handle(), copied), whole - copied).await.unwrap();
        assert!(bytes > 0, "a copy that goes on");
        copied += bytes;
    }
    assert_eq!(mount.read("copied").await.unwrap(), content);
    // ext4 cannot share data between files.
    let cloned = v4(&mount).clone_range((from.handle(), 0), (to.handle(), 0), 0).await.unwrap_err();
    assert!(cloned.status().is_some(), "{cloned}");
    drop((from, to));
    mount.unmount().await.unwrap();
}

async fn files_are_what_they_were_made(url: &str) {
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

/// The server gives delegations to clients since 4.1, which can be called back on their own connections. Another client that writes
/// has it recalled; with or without, nobody reads stale data.
async fn delegations_are_given_and_recalled(url: &str) {
    let writer = mount(url).await;
    let (mut delegated, mut can) = (false, true);
    // Linux's server gives none while somebody writes, nor, for a while, of what looks like a file whose delegation was recalled lately,
    // and it keeps what was written open for some seconds.
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
        assert!(!v4(&reader).is_delegated(file.handle()), "somebody else writes");
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
    assert_eq!(delegated, can, "the server delegates files to whom it can call back");
    writer.unmount().await.unwrap();
}

async fn several_connections_carry_a_mount(url: &str) {
    let mount = mount(&format!("{url}&nconnect=4")).await;
    assert_eq!(v4(&mount).connections(), 4);
    carries_data(mount, "by-four", 7).await;
}

async fn transports_are_mixed_in_one_session(url: &str, also: &str) {
    let mount = mount(&format!("{url}&addr={also}")).await;
    assert_eq!(v4(&mount).connections(), 2);
    carries_data(mount, "by-both", 11).await;
}

async fn carries_data(mount: Mount, file: &str, seed: u32) {
    let data = data(3_000_000, seed);
    mount.write(file, data.clone()).await.unwrap();
    assert_eq!(mount.read(file).await.unwrap(), data);
    mount.unmount().await.unwrap();
}

const DELEGATION_TRIES: u64 = 120;
