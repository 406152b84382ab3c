//! `slipway mount`: ordinary programs on a server's tree, by FUSE.

use crate::common;
use std::{
    fs::{self, File, OpenOptions},
    io::{self, BufRead, BufReader, ErrorKind, Read, Seek, Write},
    os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink},
    path::Path,
    process::{Command, Stdio},
    time::{Duration, UNIX_EPOCH},
};

use crate::common::{
    Server, fails,
    mounted::{World, mount, pattern},
    wait,
};
use rustix::process::Signal;

#[test]
fn programs_use_it_as_any_file_system() {
    for transport in ["tcp", "rdma"] {
        let Some(world) = World::new("programs_use_it_as_any_file_system", transport, "") else { return };
        files(&world);
        names(&world);
        world.end();
    }
}

fn files(world: &World) {
    let (at, data) = (world.at.join("file"), pattern(5_000_003));
    fs::write(&at, &data).unwrap();
    assert_eq!(fs::read(world.served.join("file")).unwrap(), data);
    assert_eq!(fs::read(&at).unwrap(), data);
    let file = OpenOptions::new().read(true).write(true).open(&at).unwrap();
    file.write_all_at(b"middle", 3_000_000).unwrap();
    file.sync_all().unwrap();
    let mut there = [0; 6];
    file.read_exact_at(&mut there, 3_000_000).unwrap();
    assert_eq!(&there, b"middle");
    assert_eq!(file.read_at(&mut there, 5_000_003).unwrap(), 0, "the end");
    file.set_len(10).unwrap();
    file.set_len(1 << 20).unwrap();
    let meta = world.served.join("file").metadata().unwrap();
    assert_eq!((meta.len(), file.metadata().unwrap().len()), (1 << 20, 1 << 20));
    assert_eq!(fs::read(&at).unwrap()[..12], [&data[..10], &[0, 0]].concat());
    let time = UNIX_EPOCH + Duration::new(1_000_000_000, 5000);
    file.set_modified(time).unwrap();
    fs::set_permissions(&at, fs::Permissions::from_mode(0o640)).unwrap();
    std::os::unix::fs::chown(&at, Some(12), Some(34)).unwrap();
    for path in [&at, &world.served.join("file")] {
        let meta = path.metadata().unwrap();
        assert_eq!((meta.mode() & 0o7777, meta.uid(), meta.gid(), meta.modified().unwrap()), (0o640, 12, 34, time));
    }
    let statfs = rustix::fs::statvfs(&world.at).unwrap();
    assert!(statfs.f_blocks > 0 && statfs.f_files > 0);
    // A file that is removed while it is open stays until it is closed.
    let mut open = OpenOptions::new().create_new(true).read(true).write(true).open(world.at.join("open")).unwrap();
    open.write_all(&data).unwrap();
    fs::remove_file(world.at.join("open")).unwrap();
    assert!(!world.at.join("open").exists());
    open.rewind().unwrap();
    let mut again = Vec::new();
    open.read_to_end(&mut again).unwrap();
    assert_eq!(again, data);
    drop(open);
    // The kernel tells of a close only after it has returned.
    let hidden = || {
        fs::read_dir(&world.served).unwrap().flatten().any(|e| e.file_name().as_encoded_bytes().starts_with(b".nfs"))
    };
    let patience = std::time::Instant::now() + common::PATIENCE;
    while hidden() && std::time::Instant::now() < patience {
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(!hidden(), "the file goes away when it is closed");
}

fn names(world: &World) {
    let at = |name: &str| world.at.join(name);
    fs::create_dir(at("dir")).unwrap();
    let many: Vec<String> = (0..1500).map(|number| format!("entry-{number:04}")).collect();
    for name in &many {
        File::create(at("dir").join(name)).unwrap();
    }
    let listed = |dir: &Path| {
        let mut names: Vec<String> =
            fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    };
    assert_eq!(listed(&at("dir")), many);
    for entry in fs::read_dir(at("dir")).unwrap().flatten() {
        assert!(entry.file_type().unwrap().is_file() && entry.metadata().unwrap().len() == 0);
    }
    fs::rename(at("dir/entry-0000"), at("moved")).unwrap();
    fs::hard_link(at("moved"), at("second")).unwrap();
    symlink("dir/entry-0001", at("link")).unwrap();
    assert_eq!(fs::read_link(world.served.join("link")).unwrap(), Path::new("dir/entry-0001"));
    assert_eq!(fs::read_link(at("link")).unwrap(), Path::new("dir/entry-0001"));
    let (first, second) = (at("moved").metadata().unwrap(), at("second").metadata().unwrap());
    assert_eq!((first.ino(), first.nlink()), (second.ino(), 2));
    rustix::fs::mknodat(rustix::fs::CWD, at("null"), rustix::fs::FileType::CharacterDevice, 0o600.into(), 0x103)
        .unwrap();
    assert_eq!(world.served.join("null").metadata().unwrap().rdev(), 0x103);

    let kind = |result: io::Result<()>| result.unwrap_err().kind();
    assert_eq!(kind(fs::read(at("none")).map(drop)), ErrorKind::NotFound);
    assert_eq!(kind(fs::create_dir(at("dir"))), ErrorKind::AlreadyExists);
    assert_eq!(kind(File::create_new(at("moved")).map(drop)), ErrorKind::AlreadyExists);
    assert_eq!(kind(fs::remove_dir(at("dir"))), ErrorKind::DirectoryNotEmpty);
    assert_eq!(kind(fs::remove_dir(at("moved"))), ErrorKind::NotADirectory);
    assert_eq!(kind(File::create(at(&"n".repeat(256))).map(drop)), ErrorKind::InvalidFilename);
    fs::remove_dir_all(at("dir")).unwrap();
    // Somebody else's changes are seen.
    fs::write(world.served.join("elsewhere"), "made").unwrap();
    assert_eq!(fs::read_to_string(at("elsewhere")).unwrap(), "made");
    fs::remove_file(world.served.join("second")).unwrap();
    assert!(!at("second").exists() && listed(&world.at).contains(&"moved".to_owned()));
}

#[test]
fn what_was_not_committed_is_written_again_after_a_restart() {
    let Some(mut world) = World::new("what_was_not_committed_is_written_again_after_a_restart", "tcp", "") else {
        return;
    };
    // The server of afterwards waits already: a process started while the file is open would close its copy of it, and
    // each close commits.
    let (state, listen) =
        (world.directory.path().join("state"), format!("tcp://127.0.0.1:{}", world.server.port("tcp")));
    let mut next = Command::new("sh");
    next.args([
        "-c",
        "read go && exec \"$@\"",
        "sh",
        env!("CARGO_BIN_EXE_slipway"),
        "serve",
        "--json",
        "--rpcbind",
        "off",
    ]);
    next.args(["--squash", "none", "--listen", &listen, "--state-dir"]).args([&state, &world.served]);
    let mut next = next.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();

    let data = pattern(300_000);
    let file = File::create(world.at.join("file")).unwrap();
    file.write_all_at(&data, 0).unwrap();
    file.write_all_at(b"newer", 1000).unwrap();
    // The server loses power, and with it what was on no stable storage.
    world.server.signal(Signal::KILL);
    world.server.child.wait().unwrap();
    fs::write(world.served.join("file"), vec![0; 300_000]).unwrap();
    next.stdin.take().unwrap().write_all(b"go\n").unwrap();
    let mut ready = String::new();
    BufReader::new(next.stdout.as_mut().unwrap()).read_line(&mut ready).unwrap();
    let ports = std::mem::take(&mut world.server.ports);
    world.server = Server { child: next, ready: serde_json::from_str(&ready).unwrap(), ports };
    file.sync_all().unwrap();
    let mut expected = data;
    expected[1000..1005].copy_from_slice(b"newer");
    assert!(fs::read(world.served.join("file")).unwrap() == expected, "it is there again, the newer over the older");
    drop(file);
    world.end();
}

#[test]
fn it_ends_when_told_to_even_in_use() {
    let test = "it_ends_when_told_to_even_in_use";
    let Some(mut world) = World::new(test, "tcp", "") else { return };
    assert!(Command::new("umount").arg(&world.at).status().unwrap().success());
    assert!(wait(&mut world.mount).success(), "umount ends it");
    world.mount = mount(&world.server.url("rdma", ""), &world.at);
    let open = File::create(world.at.join("open")).unwrap();
    world.terminate();
    assert!((&open).write(b"late").is_err(), "a file that was open is lost to who had it");
    drop(open);
    world.mount = mount(&world.server.url("tcp", ""), &world.at);
    world.server.signal(Signal::KILL);
    world.terminate();
}

#[test]
fn it_ends_when_told_to_though_another_namespace_has_it() {
    let test = "it_ends_when_told_to_though_another_namespace_has_it";
    let Some(mut world) = World::new(test, "tcp", "") else { return };
    let mut elsewhere = Command::new("unshare");
    elsewhere.args(["--mount", "--propagation", "private", "sh", "-c", "echo ready; read end"]);
    let Ok(mut elsewhere) = elsewhere.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn() else {
        eprintln!("SKIPPED {test}: needs unshare");
        return;
    };
    let mut ready = String::new();
    BufReader::new(elsewhere.stdout.take().unwrap()).read_line(&mut ready).unwrap();
    assert_eq!(ready, "ready\n", "it has a mount namespace of its own");
    fs::write(world.at.join("file"), "written").unwrap();
    world.terminate();
    assert_eq!(fs::read(world.served.join("file")).unwrap(), b"written");
    drop(elsewhere.stdin.take());
    elsewhere.wait().unwrap();
}

#[test]
fn what_cannot_be_mounted_is_refused() {
    let server = Server::memory();
    let url = server.url("tcp", "");
    let dir = tempfile::tempdir().unwrap();
    let (there, missing) = (dir.path().to_str().unwrap(), dir.path().join("missing"));
    assert!(fails(1, &["mount", &url, missing.to_str().unwrap()]).contains("missing"));
    assert!(fails(3, &["mount", "nfs://127.0.0.1:1/x?mountport=1&timeo=1s", there]).contains("127.0.0.1:1"));
    assert!(fails(2, &["mount", "server:/export", there]).contains("nfs://"));
    assert!(fails(2, &["mount", "--attributes=-1", &url, there]).contains("--attributes"));
}
