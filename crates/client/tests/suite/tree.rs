//! Operations on paths, against a server in the same process.

use crate::common;
use std::sync::Arc;

use crate::common::{Server, for_each_version};
use client::{
    CreateHow, ErrorKind, FileKind, Mount, MountClient, NfsUrl, OpenOptions, SetAttr, SetTime, Special, Status, Time,
};
use nfs::v3::{ACCESS3_MODIFY, ACCESS3_READ};
use rpc::{AcceptStat, CallOptions, Client, ClientError, ClientOptions, ReplyPlan};

for_each_version! {
    files_are_created_written_read_and_removed
    exclusive_creation_is_exclusive
    attributes_are_set
    directories_are_created_listed_and_removed
    links_are_created_and_followed_within_the_mount
    file_system_limits_are_returned
    url_can_name_an_object_below_the_export
    calls_use_the_user_of_the_url
}

async fn mount(query: &str) -> (Server, Mount) {
    let server = Server::memory().await;
    let mount = server.mount(query).await;
    (server, mount)
}

fn status(result: client::Result<impl std::fmt::Debug>) -> Status {
    let error = result.expect_err("the operation must fail");
    error.status().unwrap_or_else(|| panic!("{error}"))
}

async fn files_are_created_written_read_and_removed(vers: &str) {
    let (_server, mount) = mount(vers).await;
    mount.protocol().null().await.unwrap();
    assert_eq!(status(mount.open("f").await), Status::NotFound);
    mount.write("f", &b"hello"[..]).await.unwrap();
    assert_eq!(mount.read("/f").await.unwrap(), "hello");
    mount.write("f", &b"bye"[..]).await.unwrap();
    assert_eq!(mount.read("f").await.unwrap(), "bye", "creating must truncate the file");
    mount.open_with("f", OpenOptions { create: Some(0o600), ..Default::default() }).await.unwrap();
    assert_eq!(mount.read("f").await.unwrap(), "bye", "opening must not truncate the file");
    mount.remove("f").await.unwrap();
    let error = mount.open("f").await.unwrap_err();
    assert!(error.is_not_found());
    assert_eq!(error.operation(), "LOOKUP");
    let text = error.to_string();
    assert!(text.starts_with("f: no such file or directory (LOOKUP on 127.0.0.1:"), "{text}");
    assert_eq!(std::io::Error::from(error).kind(), std::io::ErrorKind::NotFound);
}

async fn exclusive_creation_is_exclusive(vers: &str) {
    let (_server, mount) = mount(vers).await;
    let exclusive = OpenOptions { create: Some(0o640), exclusive: true, truncate: false };
    let file = mount.open_with("f", exclusive).await.unwrap();
    assert_eq!(file.stat().await.unwrap().mode & 0o777, 0o640);
    assert_eq!(status(mount.open_with("f", exclusive).await), Status::AlreadyExists);
}

async fn attributes_are_set(vers: &str) {
    let (_server, mount) = mount(vers).await;
    mount.write("f", &b"hello"[..]).await.unwrap();
    mount.chmod("f", 0o751).await.unwrap();
    mount.chown("f", Some(7), Some(8)).await.unwrap();
    mount.truncate("f", 1 << 33).await.unwrap();
    let time = Time { seconds: 12, nseconds: 34_000_000 };
    mount.set_times("f", SetTime::DontChange, SetTime::ToClientTime(time)).await.unwrap();
    let attr = mount.stat("f").await.unwrap();
    assert_eq!((attr.kind, attr.mode & 0o7777, attr.uid, attr.gid), (FileKind::Reg, 0o751, 7, 8));
    assert_eq!((attr.size, attr.mtime), (1 << 33, time));
    let rights = mount.access("f", ACCESS3_READ | ACCESS3_MODIFY).await.unwrap();
    assert_eq!(rights, ACCESS3_READ | ACCESS3_MODIFY);
}

async fn directories_are_created_listed_and_removed(vers: &str) {
    let (_server, mount) = mount(vers).await;
    mount.mkdir("d", 0o755).await.unwrap();
    assert_eq!(status(mount.mkdir("d", 0o755).await), Status::AlreadyExists);
    let mut expected = Vec::new();
    for i in 0..3000 {
        let name = format!("file-with-a-rather-long-name-{i:04}");
        let (_, dir, _) = mount.parent(b"d/x").await.unwrap();
        mount.protocol().create(&dir, name.as_bytes(), CreateHow::Guarded(SetAttr::default())).await.unwrap();
        expected.push(name);
    }
    let mut listed = mount.read_dir("d").await.unwrap().collect().await.unwrap();
    listed.sort_by(|a, b| a.name.cmp(&b.name));
    assert!(listed.iter().map(|entry| &entry.name[..]).eq(expected.iter().map(String::as_bytes)));
    assert!(listed.iter().all(|entry| entry.attr.is_some() && entry.handle.is_some()));
    let mut names = mount.read_dir("d").await.unwrap().names_only().collect().await.unwrap();
    names.sort_by(|a, b| a.name.cmp(&b.name));
    assert!(
        names
            .iter()
            .map(|entry| (&entry.name, entry.fileid))
            .eq(listed.iter().map(|entry| (&entry.name, entry.fileid)))
    );
    assert_eq!(status(mount.rmdir("d").await), Status::NotEmpty);
    for name in expected {
        mount.remove(format!("d/{name}")).await.unwrap();
    }
    assert!(mount.read_dir("d").await.unwrap().next().await.unwrap().is_none());
    mount.rmdir("d").await.unwrap();
    assert_eq!(status(mount.stat("d").await), Status::NotFound);
}

async fn links_are_created_and_followed_within_the_mount(vers: &str) {
    let (_server, mount) = mount(vers).await;
    mount.mkdir("a", 0o755).await.unwrap();
    mount.mkdir("a/b", 0o755).await.unwrap();
    mount.write("a/b/f", &b"deep"[..]).await.unwrap();
    mount.symlink("b/f", "a/short").await.unwrap();
    mount.symlink("/a/b", "a/absolute").await.unwrap();
    mount.symlink("../../../../a", "a/b/out").await.unwrap();
    mount.symlink("loop", "loop").await.unwrap();
    assert_eq!(mount.readlink("a/short").await.unwrap(), "b/f");
    assert_eq!(mount.read("a/short").await.unwrap(), "deep");
    assert_eq!(mount.read("a/absolute/out/absolute/f").await.unwrap(), "deep");
    assert_eq!(mount.stat_link("a/short").await.unwrap().kind, FileKind::Lnk);
    let error = mount.stat("loop/x").await.unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Path(_)), "{error}");
    mount.symlink("new", "a/dangling").await.unwrap();
    mount.write("a/dangling", &b"through"[..]).await.unwrap();
    assert_eq!(mount.read("a/new").await.unwrap(), "through");
    mount.link("a/b/f", "hard").await.unwrap();
    assert_eq!(mount.stat("hard").await.unwrap().nlink, 2);
    mount.rename("hard", "a/b/g").await.unwrap();
    assert_eq!(status(mount.stat("hard").await), Status::NotFound);
    assert_eq!(mount.read("a/b/g").await.unwrap(), "deep");
    mount.mknod("pipe", Special::Fifo, SetAttr::default()).await.unwrap();
    assert_eq!(mount.stat("pipe").await.unwrap().kind, FileKind::Fifo);
}

async fn file_system_limits_are_returned(vers: &str) {
    let (_server, mount) = mount(vers).await;
    assert_eq!((mount.read_size(), mount.write_size()), (1 << 20, 1 << 20));
    let space = mount.statfs("").await.unwrap();
    assert!(space.fbytes > 0 && space.fbytes <= space.tbytes);
    assert_eq!(mount.pathconf("/").await.unwrap().name_max, 255);
    let error = mount.stat("x".repeat(5000)).await.unwrap_err();
    assert_eq!(error.status(), Some(Status::NameTooLong));
}

async fn url_can_name_an_object_below_the_export(vers: &str) {
    let (server, mount) = mount(vers).await;
    mount.mkdir("dir", 0o755).await.unwrap();
    mount.write("dir/f", &b"content"[..]).await.unwrap();
    let dir = server.mount_path("/dir", vers).await.unwrap();
    assert_eq!(dir.read("f").await.unwrap(), "content");
    let file = server.mount_path("/dir/f", vers).await.unwrap();
    assert_eq!(file.read("").await.unwrap(), "content");
    let new = server.mount_path("/dir/new/one", vers).await.unwrap();
    assert_eq!(status(new.stat("").await), Status::NotFound);
    mount.mkdir("dir/new", 0o755).await.unwrap();
    new.write("", &b"made"[..]).await.unwrap();
    assert_eq!(mount.read("dir/new/one").await.unwrap(), "made");
}

#[tokio::test]
async fn mounts_are_listed_until_unmounted() {
    let (server, mount) = mount("").await;
    let url: NfsUrl = format!("nfs://{}", server.address).parse().unwrap();
    let mountd = MountClient::connect(&url, &server.switch).await.unwrap();
    let exports = mountd.exports().await.unwrap();
    assert_eq!(exports.iter().map(|export| &export.dir[..]).collect::<Vec<_>>(), [b"/m"]);
    let mounts = mountd.mounts().await.unwrap();
    assert_eq!(mounts.iter().map(|mount| &mount.directory[..]).collect::<Vec<_>>(), [b"/m"]);
    mount.unmount().await.unwrap();
    assert!(mountd.mounts().await.unwrap().is_empty());
    let error = mountd.mnt(b"/elsewhere").await.unwrap_err();
    assert!(error.is_not_found() || matches!(error.kind(), ErrorKind::Status(_)), "{error}");
}

#[tokio::test]
async fn mount_can_be_at_another_port_and_transport() {
    let programs = common::nfs_server(Arc::new(common::memory()));
    let nfs = Server::serving(&*common::tcp(), vec![Arc::new(programs.nfs3())]).await;
    let mountd = Server::serving(&*common::udp(), vec![Arc::new(programs.mount3())]).await;
    let query = format!("mountproto=udp&mountport={}", mountd.address.port());
    let mount = nfs.mount(&query).await;
    mount.write("f", &b"x"[..]).await.unwrap();
    let client = MountClient::connect(mount.url(), &nfs.switch).await.unwrap();
    assert_eq!(client.mounts().await.unwrap().len(), 1);
    mount.unmount().await.unwrap();
    assert!(client.mounts().await.unwrap().is_empty());
}

#[tokio::test]
async fn udp_transfers_data_in_small_messages() {
    let programs = common::nfs_server(Arc::new(common::memory()));
    let server = Server::serving(&*common::udp(), programs.services()).await;
    let mount = server.mount("proto=udp").await;
    assert!((32 << 10..64 << 10).contains(&mount.read_size()), "{} bytes", mount.read_size());
    let data = common::pattern(300_000);
    mount.write("f", data.clone()).await.unwrap();
    assert_eq!(mount.read("f").await.unwrap(), data);
    let (read, buffer) = mount.open("f").await.unwrap().read_at(7, buf::Buffer::zeroed(1000)).await;
    assert_eq!((read.unwrap(), &buffer[..]), (1000, &data[7..1007]));
    for i in 0..500 {
        mount.symlink("nowhere", format!("a-link-with-a-long-name-{i}")).await.unwrap();
    }
    assert_eq!(mount.read_dir("").await.unwrap().collect().await.unwrap().len(), 501);
}

#[tokio::test]
async fn nfsv4_is_not_served_over_udp() {
    let programs = common::nfs_server(Arc::new(common::memory()));
    let server = Server::serving(&*common::udp(), programs.services()).await;
    for version in ["4.0", "4.1", "4.2"] {
        let error = server.mount_path("", &format!("proto=udp&vers={version}")).await.unwrap_err();
        //= rfc8881-2.9.1-3 rfc8881-2.9.1-4
        assert!(error.to_string().contains("NFSv4 is not used over udp"), "{error}");
    }
    let client = Client::connect(common::udp(), server.address, ClientOptions::new(nfs::NFS_PROGRAM, 4)).await.unwrap();
    let refused = client.call::<()>(0, &(), ReplyPlan::default(), CallOptions::default()).await.map(drop).unwrap_err();
    //= rfc8881-2.9.1-3 rfc8881-2.9.1-4
    assert!(
        matches!(refused.error, ClientError::NotExecuted(AcceptStat::ProgMismatch { low: 3, high: 3 })),
        "{refused:?}"
    );
}

#[tokio::test]
async fn mount_errors_explain_the_problem() {
    let server = Server::memory().await;
    let connect = async |url: String| {
        let url: NfsUrl = url.parse().unwrap();
        Mount::connect(&url, &server.switch).await.unwrap_err()
    };
    let error = connect(format!("nfs://{}/elsewhere", server.address)).await;
    assert!(matches!(error.kind(), ErrorKind::Status(_)), "{error}");
    assert!(error.to_string().starts_with("/elsewhere: "), "{error}");
    let error = connect(format!("nfs://{}/m?proto=pigeon", server.address)).await;
    assert!(error.to_string().contains("no transport 'pigeon'; available: rdma, shm, tcp, udp"), "{error}");
    let error = connect(format!("nfs://{}/m?rszie=4096", server.address)).await;
    assert!(error.to_string().contains("rszie") && error.to_string().contains("rsize"), "{error}");
    let error = connect("nfs://no-such-host.invalid/m".to_owned()).await;
    assert!(matches!(error.kind(), ErrorKind::Resolve(_)), "{error}");
}

async fn calls_use_the_user_of_the_url(vers: &str) {
    let server = Server::memory().await;
    server.mount(vers).await.mkdir("open", 0o777).await.unwrap();
    let user = server.mount(&format!("{vers}&uid=1000&gid=100&gids=7")).await;
    user.write("open/mine", &b"x"[..]).await.unwrap();
    let attr = user.stat("open/mine").await.unwrap();
    assert_eq!((attr.uid, attr.gid), (1000, 100));
    assert_eq!(status(user.mkdir("theirs", 0o755).await), Status::AccessDenied);
}
