//! Tests of `slipway mount`: ordinary programs on a server's tree through FUSE.

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
    mounted::{World, mount, mount_with, pattern},
    wait,
};
use rustix::process::Signal;

#[test]
fn programs_use_the_mount_like_any_file_system() {
    for transport in ["tcp", "rdma"] {
        let Some(world) = World::new("programs_use_the_mount_like_any_file_system", transport, "") else { return };
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
    assert_eq!(file.read_at(&mut there, 5_000_003).unwrap(), 0, "the file must end there");
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
    // The kernel sends the RELEASE only after close has returned.
    let hidden = || {
        fs::read_dir(&world.served).unwrap().flatten().any(|e| e.file_name().as_encoded_bytes().starts_with(b".nfs"))
    };
    let patience = std::time::Instant::now() + common::PATIENCE;
    while hidden() && std::time::Instant::now() < patience {
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(!hidden(), "the file must be removed when it is closed");
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
    // The mount must see changes of other programs.
    fs::write(world.served.join("other"), "made").unwrap();
    assert_eq!(fs::read_to_string(at("other")).unwrap(), "made");
    fs::remove_file(world.served.join("second")).unwrap();
    assert!(!at("second").exists() && listed(&world.at).contains(&"moved".to_owned()));
}

#[test]
fn uncommitted_data_are_written_again_after_a_restart() {
    let Some(mut world) = World::new("uncommitted_data_are_written_again_after_a_restart", "tcp", "") else {
        return;
    };
    // Start the second server now: a process that is started while the file is open would close its copy of the
    // descriptor, and each close commits.
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
    // The server loses power, and with it the data that are not on stable storage.
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
    assert!(fs::read(world.served.join("file")).unwrap() == expected, "all data must be written again in order");
    drop(file);
    world.end();
}

#[test]
fn signals_end_a_mount_in_use() {
    let test = "signals_end_a_mount_in_use";
    let Some(mut world) = World::new(test, "tcp", "") else { return };
    assert!(Command::new("umount").arg(&world.at).status().unwrap().success());
    assert!(wait(&mut world.mount).success(), "umount must end the mount");
    world.mount = mount(&world.server.url("rdma", ""), &world.at);
    let open = File::create(world.at.join("open")).unwrap();
    world.terminate();
    assert!((&open).write(b"late").is_err(), "a file that was open must fail");
    drop(open);
    world.mount = mount(&world.server.url("tcp", ""), &world.at);
    world.server.signal(Signal::KILL);
    world.terminate();
}

#[test]
fn signals_end_a_mount_that_another_namespace_has() {
    let test = "signals_end_a_mount_that_another_namespace_has";
    let Some(mut world) = World::new(test, "tcp", "") else { return };
    let mut other_namespace = Command::new("unshare");
    other_namespace.args(["--mount", "--propagation", "private", "sh", "-c", "echo ready; read end"]);
    let Ok(mut other_namespace) = other_namespace.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn() else {
        eprintln!("SKIPPED {test}: needs unshare");
        return;
    };
    let mut ready = String::new();
    BufReader::new(other_namespace.stdout.take().unwrap()).read_line(&mut ready).unwrap();
    assert_eq!(ready, "ready\n", "the process must have its own mount namespace");
    fs::write(world.at.join("file"), "written").unwrap();
    world.terminate();
    assert_eq!(fs::read(world.served.join("file")).unwrap(), b"written");
    drop(other_namespace.stdin.take());
    other_namespace.wait().unwrap();
}

#[test]
fn invalid_mounts_are_rejected() {
    let server = Server::memory();
    let url = server.url("tcp", "");
    let dir = tempfile::tempdir().unwrap();
    let (there, missing) = (dir.path().to_str().unwrap(), dir.path().join("missing"));
    assert!(fails(1, &["mount", &url, missing.to_str().unwrap()]).contains("missing"));
    assert!(fails(3, &["mount", "nfs://127.0.0.1:1/x?mountport=1&timeo=1s", there]).contains("127.0.0.1:1"));
    let file = dir.path().join("file");
    File::create(&file).unwrap();
    assert!(fails(1, &["mount", &url, file.to_str().unwrap()]).contains("not a directory"));
    for vers in ["3", "4.0", "4.2"] {
        let port = server.port("tcp");
        let other = format!("nfs://127.0.0.1:{port}/other?mountport={port}&vers={vers}");
        assert!(fails(1, &["mount", &other, there]).contains("no such"), "{vers}");
    }
    assert!(fails(2, &["mount", "server:/export", there]).contains("nfs://"));
    assert!(fails(2, &["mount", "--attributes=-1", &url, there]).contains("--attributes"));
    assert!(fails(2, &["mount", "--writeback", "-o", "sync", &url, there]).contains("--writeback"));
}

#[test]
fn options_have_the_meanings_of_the_kernels_mounts() {
    let Some(world) = World::new("options_have_the_meanings_of_the_kernels_mounts", "tcp", "") else { return };
    let sync = world.with_arguments("sync", "", &["-o", "sync"]);
    let file = File::create(sync.at.join("file")).unwrap();
    for data in [b"first", b"other"] {
        file.write_all_at(data, 0).unwrap();
        assert_eq!(fs::read(world.served.join("file")).unwrap(), data, "a write must wait for the server");
    }
    drop(file);
    sync.terminate();
    let read_only = world.with_arguments("read-only", "", &["-o", "ro"]);
    assert_eq!(fs::read(read_only.at.join("file")).unwrap(), b"other");
    assert_eq!(fs::write(read_only.at.join("new"), "").unwrap_err().kind(), ErrorKind::ReadOnlyFilesystem);
    assert_eq!(fs::remove_file(read_only.at.join("file")).unwrap_err().kind(), ErrorKind::ReadOnlyFilesystem);
    read_only.terminate();
    let last_counts = world.with_arguments("last", "", &["-o", "ro,sync,rw,async"]);
    fs::write(last_counts.at.join("new"), "").unwrap();
    last_counts.terminate();
    world.end();
}

#[test]
fn mount_says_for_what_it_waits() {
    for vers in ["3", "4.2"] {
        // The kernel accepts connections, and nobody answers.
        let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = silent.local_addr().unwrap().port();
        let dir = tempfile::tempdir().unwrap();
        let url = format!("nfs://127.0.0.1:{port}/export?mountport={port}&vers={vers}&timeo=3600s");
        let mut mount = common::command(&["mount", &url, dir.path().to_str().unwrap()]);
        let mut mount = mount.stderr(Stdio::piped()).spawn().unwrap();
        let mut said = String::new();
        BufReader::new(mount.stderr.take().unwrap()).read_line(&mut said).unwrap();
        assert!(said.contains(&format!("127.0.0.1:{port}/export: no answer yet")), "{said}");
        mount.kill().unwrap();
        mount.wait().unwrap();
    }
}

#[test]
fn both_dots_are_listed_and_times_before_1970_are_kept() {
    for query in ["", "&vers=4.0", "&vers=4.2"] {
        let Some(world) = World::new("both_dots_are_listed_and_times_before_1970_are_kept", "tcp", query) else {
            return;
        };
        fs::create_dir(world.at.join("dir")).unwrap();
        for number in 0..300 {
            File::create(world.served.join(format!("dir/{number:0100}"))).unwrap();
        }
        let dir = rustix::fs::Dir::new(File::open(world.at.join("dir")).unwrap()).unwrap();
        let listed: Vec<_> = dir.map(|entry| entry.unwrap()).collect();
        let ino = |name: &[u8]| {
            let found: Vec<_> = listed.iter().filter(|entry| entry.file_name().to_bytes() == name).collect();
            assert_eq!(found.len(), 1, "{name:?}, {query}");
            assert_eq!(found[0].file_type(), rustix::fs::FileType::Directory);
            found[0].ino()
        };
        assert_eq!(ino(b"."), world.at.join("dir").metadata().unwrap().ino());
        ino(b"..");
        assert_eq!(listed.len(), 302, "{query}");
        if query.is_empty() {
            continue; // RFC 1813 §2.5: NFSv3 has no such times.
        }
        assert_eq!(ino(b".."), world.at.metadata().unwrap().ino());
        let before = UNIX_EPOCH - Duration::new(100_000, 250);
        let (here, there) = (world.at.join("file"), world.served.join("file"));
        File::create(&here).unwrap().set_modified(before).unwrap();
        assert_eq!(here.metadata().unwrap().modified().unwrap(), before, "{query}");
        assert_eq!(there.metadata().unwrap().modified().unwrap(), before, "{query}");
        world.end();
    }
}

#[test]
fn memory_maps_are_shared_with_direct_io() {
    let test = "memory_maps_are_shared_with_direct_io";
    if Command::new("sqlite3").arg("--version").stdout(Stdio::null()).status().is_err() {
        eprintln!("SKIPPED {test}: needs sqlite3");
        return;
    }
    if !crate::common::mounted::can_mount(test) {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let (at, served) = (directory.path().join("mnt"), directory.path().join("served"));
    fs::create_dir(&at).unwrap();
    fs::create_dir(&served).unwrap();
    let server = Server::dir(&served, &directory.path().join("state"));
    for query in ["", "&vers=4.2"] {
        let url = [&server.url("tcp", ""), query].concat();
        let mut mount = mount_with(&["--direct-io", "--attributes", "0"], &url, &at);
        // SQLite's index of the write-ahead log is a memory map that its processes share.
        let database = at.join(format!("database{}", query.len()));
        let script = "PRAGMA journal_mode=WAL; CREATE TABLE t(x); INSERT INTO t VALUES(1),(2); PRAGMA wal_checkpoint; SELECT sum(x) FROM t;";
        let output = Command::new("sqlite3").arg(&database).arg(script).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let said = String::from_utf8(output.stdout).unwrap();
        assert!(said.starts_with("wal\n") && said.ends_with("3\n"), "{said}");
        rustix::process::kill_process(rustix::process::Pid::from_child(&mount), Signal::TERM).unwrap();
        assert!(wait(&mut mount).success());
    }
}

#[test]
fn written_program_runs_at_once_here_and_on_the_server() {
    for version in ["3", "4.0", "4.1", "4.2"] {
        let query = format!("&vers={version}");
        let Some(world) = World::new("written_program_runs_at_once_here_and_on_the_server", "tcp", &query) else {
            return;
        };
        for len in ["short", "long"] {
            let mut program = b"#!/bin/sh\nexit 7\n".to_vec();
            program.resize(if len == "long" { 3 << 20 } else { program.len() }, b'#');
            fs::write(world.at.join(len), program).unwrap();
            fs::set_permissions(world.at.join(len), fs::Permissions::from_mode(0o755)).unwrap();
            for place in [&world.served, &world.at] {
                // "Text file busy", if the server has the file open for writing.
                let status = Command::new(place.join(len)).status();
                assert_eq!(status.unwrap().code(), Some(7), "{}, version {version}", place.join(len).display());
            }
        }
        world.end();
    }
}

/// Starts a program that reads a file, for which the mount must ask the server.
fn reader(path: &Path) -> std::process::Child {
    // SIGINT is ignored in a job that a shell runs in the background.
    let mut child = Command::new("env")
        .args(["--default-signal=INT,QUIT", "cat"])
        .arg(path)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    waits(&mut child);
    child
}

/// Returns when the process waits for the mount.
fn waits(child: &mut std::process::Child) {
    let at = format!("/proc/{}/wchan", child.id());
    let end = std::time::Instant::now() + common::PATIENCE;
    while !fs::read_to_string(&at).is_ok_and(|at| at.contains("request_wait_answer")) {
        assert_eq!(child.try_wait().unwrap(), None, "the process must wait");
        assert!(std::time::Instant::now() < end, "the process must wait");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn programs_that_wait_for_the_server_can_be_interrupted() {
    for query in ["", "&vers=4.0", "&vers=4.2"] {
        let Some(world) = World::new("programs_that_wait_for_the_server_can_be_interrupted", "tcp", query) else {
            return;
        };
        let data = pattern(3 << 20);
        fs::write(world.served.join("file"), &data).unwrap();
        world.server.pause();
        for signal in [Signal::INT, Signal::TERM, Signal::QUIT, Signal::KILL] {
            let mut reads = reader(&world.at.join("file"));
            rustix::process::kill_process(rustix::process::Pid::from_child(&reads), signal).unwrap();
            // The server stays away, so only the signal can have ended the process.
            assert!(!wait(&mut reads).success(), "{signal:?}, {query}");
        }
        // A handled signal interrupts nothing, and a fatal one after it does.
        let script = "trap : USR1; read line < \"$0\"; echo \"$line\"";
        let mut reads =
            Command::new("sh").args(["-c", script]).arg(world.at.join("line")).stdout(Stdio::piped()).spawn().unwrap();
        waits(&mut reads);
        let pid = rustix::process::Pid::from_child(&reads);
        rustix::process::kill_process(pid, Signal::USR1).unwrap();
        rustix::process::kill_process(pid, Signal::KILL).unwrap();
        assert!(!wait(&mut reads).success());
        world.server.signal(Signal::CONT);
        assert!(fs::read(world.at.join("file")).unwrap() == data, "the mount must continue");
        fs::write(world.at.join("new"), &data).unwrap();
        assert!(fs::read(world.served.join("new")).unwrap() == data);
        world.end();
    }
}

#[test]
fn signals_end_direct_reads_and_writes_that_wait_for_the_server() {
    for query in ["&timeo=3600s", "&timeo=3600s&vers=4.2"] {
        let test = "signals_end_direct_reads_and_writes_that_wait_for_the_server";
        let Some(world) = World::new(test, "tcp", query) else { return };
        let data = pattern(3 << 20);
        fs::write(world.served.join("file"), &data).unwrap();
        let open = || {
            let mut options = OpenOptions::new();
            std::os::unix::fs::OpenOptionsExt::custom_flags(options.read(true).write(true), libc::O_DIRECT);
            options.open(world.at.join("file")).unwrap()
        };
        let open = [open(), open()];
        world.server.pause();
        let (zero, null) = (|| File::open("/dev/zero").unwrap(), Stdio::null);
        for signal in [Signal::INT, Signal::KILL] {
            let file = |number: usize| open[number].try_clone().unwrap();
            for (from, to) in [(file(0).into(), null()), (zero().into(), file(1).into())] {
                // SIGINT is ignored in a job that a shell runs in the background.
                let mut cat = Command::new("env");
                let mut cat =
                    cat.args(["--default-signal=INT", "cat"]).stdin::<Stdio>(from).stdout::<Stdio>(to).spawn().unwrap();
                let at = format!("/proc/{}/wchan", cat.id());
                common::until("the process must wait", || {
                    fs::read_to_string(&at).is_ok_and(|at| at.contains("fuse") || at.contains("request_wait_answer"))
                });
                rustix::process::kill_process(rustix::process::Pid::from_child(&cat), signal).unwrap();
                assert!(!wait(&mut cat).success(), "{signal:?}, {query}");
            }
        }
        world.server.signal(Signal::CONT);
        drop(open);
        world.end();
    }
}

#[test]
fn signals_end_the_mount_while_the_server_is_away() {
    // No call times out, so only the signal can end the mount.
    for query in ["&timeo=3600s", "&timeo=3600s&vers=4.2"] {
        let Some(mut world) = World::new("signals_end_the_mount_while_the_server_is_away", "tcp", query) else {
            return;
        };
        fs::write(world.served.join("file"), pattern(3 << 20)).unwrap();
        world.server.pause();
        let mut reads = reader(&world.at.join("file"));
        world.terminate();
        assert!(!wait(&mut reads).success(), "the read must fail when the mount has ended");
        world.server.signal(Signal::CONT);

        world.mount = mount(&[&world.server.url("tcp", ""), query].concat(), &world.at);
        world.server.pause();
        let mut reads = reader(&world.at.join("file"));
        let mut forced = Command::new("umount").arg("-f").arg(&world.at).stderr(Stdio::null()).spawn().unwrap();
        // The mount is in use until its reader has ended, so the first attempt can fail.
        wait(&mut forced);
        assert!(!wait(&mut reads).success());
        let _ = Command::new("umount").arg(&world.at).stderr(Stdio::null()).status();
        assert!(wait(&mut world.mount).success(), "a forced unmount must end the mount");
        assert!(!crate::common::mounted::is_mounted(&world.at));
        world.server.signal(Signal::CONT);
        world.server.signal(Signal::TERM);
    }
}

#[test]
fn signals_end_a_detached_mount() {
    let Some(mut world) = World::new("signals_end_a_detached_mount", "tcp", "&vers=4.2") else { return };
    let open = File::create(world.at.join("open")).unwrap();
    assert!(Command::new("umount").arg("-l").arg(&world.at).status().unwrap().success());
    (&open).write_all(b"still there").unwrap();
    open.sync_all().unwrap();
    assert_eq!(fs::read(world.served.join("open")).unwrap(), b"still there");
    // Another file system that is mounted there meanwhile must stay.
    assert!(Command::new("mount").args(["-t", "tmpfs", "none"]).arg(&world.at).status().unwrap().success());
    rustix::process::kill_process(rustix::process::Pid::from_child(&world.mount), Signal::TERM).unwrap();
    assert!(wait(&mut world.mount).success());
    assert!(crate::common::mounted::is_mounted(&world.at), "the other mount must stay");
    assert!(Command::new("umount").arg(&world.at).status().unwrap().success());
}

#[test]
fn waiting_operations_complete_when_the_server_is_back() {
    for query in ["", "&vers=4.2"] {
        let test = "waiting_operations_complete_when_the_server_is_back";
        // The deadline of a soft mount passes long before.
        let Some(mut world) = World::new(test, "tcp", &format!("{query}&timeo=200ms")) else { return };
        let data = pattern(3 << 20);
        fs::write(world.served.join("file"), &data).unwrap();
        let open = File::create(world.at.join("written")).unwrap();
        world.server.pause();
        let soft = Soft::new(&world, query);
        std::thread::scope(|scope| {
            let reads = scope.spawn(|| fs::read(world.at.join("file")));
            let writes = scope.spawn(|| open.write_all_at(&data, 0).and_then(|()| open.sync_all()));
            // Meanwhile, operations of soft mounts fail, each with its error.
            soft.fails();
            assert!(!reads.is_finished() && !writes.is_finished());
            world.server.signal(Signal::CONT);
            assert!(reads.join().unwrap().unwrap() == data);
            writes.join().unwrap().unwrap();
        });
        assert!(fs::read(world.served.join("written")).unwrap() == data);
        drop((open, soft));
        world.terminate();
    }
}

/// Two soft mounts of a world's server, which are made while it runs.
struct Soft(Vec<(rustix::io::Errno, tempfile::TempDir, std::process::Child)>);

impl Soft {
    fn new(world: &World, query: &str) -> Self {
        world.server.signal(Signal::CONT);
        let mount = |(options, errno): (&[&str], _)| {
            let at = tempfile::tempdir().unwrap();
            let url = [&world.server.url("tcp", ""), query, "&timeo=200ms"].concat();
            let child = mount_with(&[options, &["--attributes", "0"]].concat(), &url, at.path());
            (errno, at, child)
        };
        let soft: (&[&str], _) = (&["--soft", "--retrans", "1"], rustix::io::Errno::IO);
        let softerr: (&[&str], _) = (&["-o", "softerr,retrans=1"], rustix::io::Errno::TIMEDOUT);
        let soft = [soft, softerr].map(mount);
        world.server.pause();
        Self(soft.into())
    }

    fn fails(&self) {
        for (errno, at, _) in &self.0 {
            let error = fs::metadata(at.path().join("file")).unwrap_err();
            assert_eq!(error.raw_os_error(), Some(errno.raw_os_error()));
        }
    }
}

impl Drop for Soft {
    fn drop(&mut self) {
        for (_, at, child) in &mut self.0 {
            let _ = rustix::process::kill_process(rustix::process::Pid::from_child(child), Signal::KILL);
            let _ = child.wait();
            let _ = Command::new("umount").arg("-l").arg(at.path()).status();
        }
    }
}

#[test]
fn a_killed_program_with_an_open_file_does_not_wait_for_the_server() {
    for query in ["", "&vers=4.2"] {
        let test = "a_killed_program_with_an_open_file_does_not_wait_for_the_server";
        let Some(world) = World::new(test, "tcp", query) else { return };
        let file = world.at.join("file");
        let mut writes = Command::new("sh");
        writes.args(["-c", "exec 3>\"$0\"; echo data >&3; echo written; read end"]).arg(&file);
        let mut writes = writes.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(writes.stdout.take().unwrap()).read_line(&mut line).unwrap();
        world.server.pause();
        // The exit of the process flushes the file, which no signal interrupts.
        writes.kill().unwrap();
        assert!(!wait(&mut writes).success());
        world.server.signal(Signal::CONT);
        assert_eq!(fs::read(&file).unwrap(), b"data\n", "{query}");
        world.end();
    }
}
