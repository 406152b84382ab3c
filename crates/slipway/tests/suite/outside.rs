//! Nothing outside of an export can be opened: by names, by symbolic links, over mounts inside of the export, or by file handles that this
//! server has not made for it.

use std::{
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::Command,
};

use client::{File, Handle, Mount, Status};

use crate::common::Server;

/// A directory that is exported, and a secret beside it.
struct Place {
    dir: tempfile::TempDir,
}

impl Place {
    fn new() -> Self {
        let place = Self { dir: tempfile::tempdir().unwrap() };
        fs::create_dir_all(place.at("served/sub")).unwrap();
        fs::create_dir(place.at("other")).unwrap();
        for name in ["served/inside", "served/sub/deep", "other/secret", "secret"] {
            fs::write(place.at(name), name).unwrap();
        }
        place
    }

    fn at(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Serves `dir` under the same name, with the file handles of `state`.
    fn serve(&self, dir: &Path, state: &str) -> Server {
        let state = self.at(state);
        let (dir, state) = (dir.to_str().unwrap(), state.to_str().unwrap());
        Server::start(&[
            "--name",
            "/data",
            "--squash",
            "none",
            "--state-dir",
            state,
            "--listen",
            "tcp://127.0.0.1:0",
            dir,
        ])
    }
}

/// Mounts the export, and runs `check` with it.
pub fn mounted<T>(server: &Server, version: &str, check: impl AsyncFnOnce(&Mount) -> T) -> T {
    let url = format!("{}&vers={version}&uid=0&gid=0", server.url("tcp", "")).parse().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let mount = Mount::connect(&url, &transports::for_client()).await.unwrap();
        let result = check(&mount).await;
        mount.unmount().await.unwrap();
        result
    })
}

/// Returns the content of a file, by its handle.
async fn read(mount: &Mount, handle: &Handle) -> client::Result<Vec<u8>> {
    let file = File::new(mount.clone(), handle.clone(), "handle");
    file.stat().await?;
    Ok(file.read_bytes(0, 64).await?.to_vec())
}

#[test]
fn names_and_links_do_not_leave_the_export() {
    let place = Place::new();
    let outside = place.at("secret");
    symlink(&outside, place.at("served/absolute")).unwrap();
    symlink("../secret", place.at("served/relative")).unwrap();
    symlink("../other", place.at("served/directory")).unwrap();
    let server = place.serve(&place.at("served"), "state");
    for version in VERSIONS {
        mounted(&server, version, async |mount| {
            let root = mount.root();
            let inside = mount.lookup(root, b"inside").await.unwrap();
            assert_eq!(read(mount, &inside.handle).await.unwrap(), b"served/inside");
            for name in ["../secret", "sub/../../secret", "/etc/passwd", "sub/deep", "", "/"] {
                assert!(mount.lookup(root, name.as_bytes()).await.is_err(), "{version}: {name:?}");
            }
            // In version 4, `..` is no name (RFC 8881 §18.13.3). In version 3, that of the root is the root.
            let root_id = mount.stat("").await.unwrap().fileid;
            let sub = mount.lookup(root, b"sub").await.unwrap();
            for dir in [root, &sub.handle] {
                match mount.lookup(dir, b"..").await {
                    Ok(parent) => assert_eq!((version, parent.attr.fileid), ("3", root_id)),
                    Err(error) => assert_ne!(version, "3", "{error}"),
                }
            }
            for name in [&b"absolute"[..], b"relative", b"directory"] {
                let link = mount.lookup(root, name).await.unwrap();
                assert!(read(mount, &link.handle).await.is_err(), "{version}");
                assert!(mount.lookup(&link.handle, b"secret").await.is_err(), "{version}");
            }
        });
    }
    server.stop();
}

#[test]
fn handles_of_other_objects_are_stale() {
    let place = Place::new();
    let (served, other) = (place.at("served"), place.at("other"));
    // By version 3, of which the server keeps no state that would delay the next server. Handles are the same in all versions.
    let handle_of = |server: &Server, name: &str| {
        mounted(server, "3", async |mount| mount.lookup(mount.root(), name.as_bytes()).await.unwrap().handle)
    };
    let server = place.serve(&served, "state");
    let inside = handle_of(&server, "inside");
    server.stop();
    // A well-formed handle of a file outside, by a server with another key, and by one with the same key.
    let stranger = place.serve(&other, "stranger");
    let foreign = handle_of(&stranger, "secret");
    stranger.stop();
    let sibling = place.serve(&other, "state");
    let same_key = handle_of(&sibling, "secret");
    assert_eq!(mounted(&sibling, "3", async |mount| read(mount, &same_key).await.unwrap()), b"other/secret");
    sibling.stop();
    // `server/src/handle.rs`: 8 bytes name the export, 16 authenticate, and the rest is the object.
    let spliced = |head: &Handle, mac: &Handle, object: &Handle| {
        Handle::from(bytes::Bytes::from([&head[..8], &mac[8..24], &object[24..]].concat()))
    };
    let mut forged = vec![
        foreign.clone(),
        same_key.clone(),
        spliced(&inside, &inside, &foreign),
        spliced(&inside, &foreign, &foreign),
        spliced(&inside, &same_key, &same_key),
        spliced(&same_key, &inside, &inside),
    ];
    for at in 0..inside.len() {
        let mut changed = inside.to_vec();
        changed[at] ^= 1;
        forged.push(Handle::from(bytes::Bytes::from(changed)));
    }
    let server = place.serve(&served, "state");
    for version in VERSIONS {
        mounted(&server, version, async |mount| {
            assert_eq!(mount.lookup(mount.root(), b"inside").await.unwrap().handle, inside);
            for (at, handle) in forged.iter().enumerate() {
                let error = read(mount, handle).await.expect_err("a forged handle must be rejected");
                let rejected = [Some(Status::StaleHandle), Some(Status::BadHandle)].contains(&error.status());
                assert!(rejected, "{version}, handle {at}: {error}");
            }
            assert_eq!(read(mount, &inside).await.unwrap(), b"served/inside");
        });
    }
    server.stop();
}

/// A mount inside of the export: of another file system, and of a directory of the same one.
#[test]
fn mounts_inside_of_an_export_are_not_entered() {
    let place = Place::new();
    let target = |name: &str| place.at("served").join(name);
    for name in ["bound", "tmpfs"] {
        fs::create_dir(target(name)).unwrap();
    }
    let bound = Mounted::new(&["--bind", place.at("other").to_str().unwrap()], target("bound"));
    let tmpfs = Mounted::new(&["-t", "tmpfs", "-o", "size=1m", "none"], target("tmpfs"));
    let (Some(bound), Some(tmpfs)) = (bound, tmpfs) else {
        return eprintln!("SKIPPED mounts_inside_of_an_export_are_not_entered: needs root and mount(8)");
    };
    fs::write(tmpfs.0.join("secret"), "tmpfs").unwrap();
    // A handle that the kernel can open: that of another server, for the file system that is mounted here.
    let stranger = place.serve(&tmpfs.0, "state");
    let foreign = mounted(&stranger, "3", async |mount| mount.lookup(mount.root(), b"secret").await.unwrap().handle);
    stranger.stop();
    let server = place.serve(&place.at("served"), "state");
    for version in VERSIONS {
        mounted(&server, version, async |mount| {
            for name in [&b"bound"[..], b"tmpfs"] {
                if let Ok(entry) = mount.lookup(mount.root(), name).await {
                    assert!(mount.lookup(&entry.handle, b"secret").await.is_err(), "{version}");
                }
            }
            assert!(read(mount, &foreign).await.is_err(), "{version}");
        });
    }
    server.stop();
    drop((bound, tmpfs));
}

/// A mount that ends when it is dropped.
struct Mounted(PathBuf);

impl Mounted {
    fn new(args: &[&str], at: PathBuf) -> Option<Self> {
        let output = Command::new("mount").args(args).arg(&at).output();
        output.is_ok_and(|output| output.status.success()).then_some(Self(at))
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

const VERSIONS: [&str; 4] = ["3", "4.0", "4.1", "4.2"];
