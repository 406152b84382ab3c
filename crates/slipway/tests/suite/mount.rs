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
    mounted::{World, mount, mount_with, pattern},
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
fn memory_is_shared_past_the_page_cache() {
    let test = "memory_is_shared_past_the_page_cache";
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

/// A program that reads a file which the server must be asked for.
fn reader(path: &Path) -> std::process::Child {
    let mut child = Command::new("cat").arg(path).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    waits(&mut child);
    child
}

/// Returns when the process waits for the mount.
fn waits(child: &mut std::process::Child) {
    let at = format!("/proc/{}/wchan", child.id());
    let end = std::time::Instant::now() + common::PATIENCE;
    while !fs::read_to_string(&at).is_ok_and(|at| at.contains("request_wait_answer")) {
        assert_eq!(child.try_wait().unwrap(), None, "it has ended without waiting");
        assert!(std::time::Instant::now() < end, "it waits");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn who_waits_for_a_server_that_is_away_can_be_interrupted() {
    for query in ["", "&vers=4.0", "&vers=4.2"] {
        let Some(world) = World::new("who_waits_for_a_server_that_is_away_can_be_interrupted", "tcp", query) else {
            return;
        };
        let data = pattern(3 << 20);
        fs::write(world.served.join("file"), &data).unwrap();
        world.server.signal(Signal::STOP);
        for signal in [Signal::INT, Signal::TERM, Signal::QUIT, Signal::KILL] {
            let mut reads = reader(&world.at.join("file"));
            rustix::process::kill_process(rustix::process::Pid::from_child(&reads), signal).unwrap();
            // The server does not come back before: only the signal can have ended it.
            assert!(!wait(&mut reads).success(), "{signal:?}, {query}");
        }
        // A signal that is handled interrupts nothing, and a fatal one after it does.
        let script = "trap : USR1; read line < \"$0\"; echo \"$line\"";
        let mut reads =
            Command::new("sh").args(["-c", script]).arg(world.at.join("line")).stdout(Stdio::piped()).spawn().unwrap();
        waits(&mut reads);
        let pid = rustix::process::Pid::from_child(&reads);
        rustix::process::kill_process(pid, Signal::USR1).unwrap();
        rustix::process::kill_process(pid, Signal::KILL).unwrap();
        assert!(!wait(&mut reads).success());
        world.server.signal(Signal::CONT);
        assert!(fs::read(world.at.join("file")).unwrap() == data, "the mount goes on");
        fs::write(world.at.join("new"), &data).unwrap();
        assert!(fs::read(world.served.join("new")).unwrap() == data);
        world.end();
    }
}

#[test]
fn it_ends_within_a_second_while_the_server_is_away() {
    for query in ["", "&vers=4.2"] {
        let Some(mut world) = World::new("it_ends_within_a_second_while_the_server_is_away", "tcp", query) else {
            return;
        };
        fs::write(world.served.join("file"), pattern(3 << 20)).unwrap();
        world.server.signal(Signal::STOP);
        let mut reads = reader(&world.at.join("file"));
        let told = std::time::Instant::now();
        world.terminate();
        // A second on an idle machine; without giving up what waits, the server's return would be waited for.
        assert!(told.elapsed() < common::PATIENCE / 2);
        assert!(!wait(&mut reads).success(), "it is told that the mount has ended");
        world.server.signal(Signal::CONT);

        world.mount = mount(&[&world.server.url("tcp", ""), query].concat(), &world.at);
        world.server.signal(Signal::STOP);
        let mut reads = reader(&world.at.join("file"));
        let mut forced = Command::new("umount").arg("-f").arg(&world.at).stderr(Stdio::null()).spawn().unwrap();
        // In use until its reader has heard of it, which a second try may find.
        wait(&mut forced);
        assert!(!wait(&mut reads).success());
        let _ = Command::new("umount").arg(&world.at).stderr(Stdio::null()).status();
        assert!(wait(&mut world.mount).success(), "forced unmount ends it");
        assert!(!crate::common::mounted::is_mounted(&world.at));
        world.server.signal(Signal::CONT);
        world.server.signal(Signal::TERM);
    }
}

#[test]
fn a_mount_that_was_detached_ends_when_told_to() {
    let Some(mut world) = World::new("a_mount_that_was_detached_ends_when_told_to", "tcp", "&vers=4.2") else { return };
    let open = File::create(world.at.join("open")).unwrap();
    assert!(Command::new("umount").arg("-l").arg(&world.at).status().unwrap().success());
    (&open).write_all(b"still there").unwrap();
    open.sync_all().unwrap();
    assert_eq!(fs::read(world.served.join("open")).unwrap(), b"still there");
    // What is mounted there in the meantime is another's.
    assert!(Command::new("mount").args(["-t", "tmpfs", "none"]).arg(&world.at).status().unwrap().success());
    rustix::process::kill_process(rustix::process::Pid::from_child(&world.mount), Signal::TERM).unwrap();
    assert!(wait(&mut world.mount).success());
    assert!(crate::common::mounted::is_mounted(&world.at), "the other mount is left");
    assert!(Command::new("umount").arg(&world.at).status().unwrap().success());
}

#[test]
fn what_waits_for_a_server_is_done_when_it_is_back() {
    for query in ["", "&vers=4.2"] {
        let test = "what_waits_for_a_server_is_done_when_it_is_back";
        // The deadline of a soft mount is over long before.
        let Some(mut world) = World::new(test, "tcp", &format!("{query}&timeo=200ms")) else { return };
        let data = pattern(3 << 20);
        fs::write(world.served.join("file"), &data).unwrap();
        let open = File::create(world.at.join("written")).unwrap();
        world.server.signal(Signal::STOP);
        let soft = Soft::new(&world, query);
        std::thread::scope(|scope| {
            let reads = scope.spawn(|| fs::read(world.at.join("file")));
            let writes = scope.spawn(|| open.write_all_at(&data, 0).and_then(|()| open.sync_all()));
            // Meanwhile operations of soft mounts fail, each in its way.
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

/// Two soft mounts of a world's server, made while it is there.
struct Soft(Vec<(rustix::io::Errno, tempfile::TempDir, std::process::Child)>);

impl Soft {
    fn new(world: &World, query: &str) -> Self {
        world.server.signal(Signal::CONT);
        let mount = |(flag, errno)| {
            let at = tempfile::tempdir().unwrap();
            let url = [&world.server.url("tcp", ""), query, "&timeo=200ms"].concat();
            let child = mount_with(&[flag, "--retrans", "1", "--attributes", "0"], &url, at.path());
            (errno, at, child)
        };
        let soft = [("--soft", rustix::io::Errno::IO), ("--softerr", rustix::io::Errno::TIMEDOUT)].map(mount);
        world.server.signal(Signal::STOP);
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
fn who_is_killed_with_a_file_open_does_not_wait_for_a_server_that_is_away() {
    for query in ["", "&vers=4.2"] {
        let test = "who_is_killed_with_a_file_open_does_not_wait_for_a_server_that_is_away";
        let Some(world) = World::new(test, "tcp", query) else { return };
        let file = world.at.join("file");
        let mut writes = Command::new("sh");
        writes.args(["-c", "exec 3>\"$0\"; echo data >&3; echo written; read end"]).arg(&file);
        let mut writes = writes.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(writes.stdout.take().unwrap()).read_line(&mut line).unwrap();
        world.server.signal(Signal::STOP);
        // Its exit flushes the file, which no signal interrupts any more.
        writes.kill().unwrap();
        assert!(!wait(&mut writes).success());
        world.server.signal(Signal::CONT);
        assert_eq!(fs::read(&file).unwrap(), b"data\n", "{query}");
        world.end();
    }
}
