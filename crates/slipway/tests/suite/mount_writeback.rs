//! Tests of `slipway mount --writeback`: the kernel keeps written data, and what other clients must see is kept.

use std::{
    fs::{self, File, OpenOptions},
    io::{ErrorKind, Read, Write},
    os::unix::fs::{FileExt, MetadataExt, PermissionsExt, chown},
    path::Path,
    process::Command,
};

use rustix::{
    fs::{AtFlags, CWD, FlockOperation, SeekFrom, Timespec, Timestamps, UTIME_OMIT, flock, seek, utimensat},
    process::Pid,
};

use crate::common::{
    Server,
    mounted::{Mounted, World, can_mount, mount_with, pattern},
};

const VERSIONS: [&str; 3] = ["&vers=3", "&vers=4.0", "&vers=4.2"];
/// Attributes and names are cached for longer than a test takes, so only an open asks the server.
const CACHING: [&str; 3] = ["--writeback", "--attributes", "3600"];
/// Nothing is cached for a time.
const ASKING: [&str; 3] = ["--writeback", "--attributes", "0"];

/// Returns the number of read system calls of a process; each message of FUSE needs one.
fn reads_of(pid: Pid) -> u64 {
    let text = fs::read_to_string(format!("/proc/{}/io", pid.as_raw_pid())).unwrap();
    text.lines().find_map(|line| line.strip_prefix("syscr: ")).unwrap().parse().unwrap()
}

fn open(path: &Path) -> File {
    OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path).unwrap()
}

#[test]
fn small_writes_need_few_messages() {
    const WRITES: u64 = 2048;
    let Some(world) = World::new("small_writes_need_few_messages", "tcp", "") else { return };
    for version in VERSIONS {
        for (args, few) in [(&CACHING[..], true), (&[], false)] {
            let mounted = world.with_arguments("few", version, args);
            let (name, data) = (format!("file-{few}-{version}"), pattern(4096 * WRITES as usize));
            let file = File::create_new(mounted.at.join(&name)).unwrap();
            let before = reads_of(mounted.pid());
            for (number, piece) in data.chunks(4096).enumerate() {
                file.write_all_at(piece, number as u64 * 4096).unwrap();
            }
            drop(file);
            let reads = reads_of(mounted.pid()) - before;
            assert_eq!(reads < WRITES / 2, few, "{reads} reads for {WRITES} writes, {version}");
            // Closed data are on stable storage.
            assert!(fs::read(world.served.join(&name)).unwrap() == data);
            let at = mounted.at.clone();
            mounted.end();
            fs::remove_dir(at).unwrap();
        }
    }
    world.end();
}

/// The kernel ignores the size and times of a file that it knows, so a file that another machine has changed must get another number.
#[test]
fn an_open_sees_what_another_machine_has_closed() {
    for query in VERSIONS {
        let Some(world) = World::new("an_open_sees_what_another_machine_has_closed", "tcp", query) else { return };
        let (caching, asking) =
            (world.with_arguments("caching", query, &CACHING), world.with_arguments("asking", query, &ASKING));
        let sides = [&caching.at, &asking.at, &world.at];
        let mut expected = pattern(5000);
        fs::write(world.at.join("file"), &expected).unwrap();
        let number = world.at.join("file").metadata().unwrap().ino();
        for turn in 0..36usize {
            let writer = sides[turn % 3].join("file");
            match turn / 3 % 4 {
                0 => {
                    expected.extend(pattern(3000 + turn));
                    OpenOptions::new().append(true).open(&writer).unwrap().write_all(&pattern(3000 + turn)).unwrap();
                }
                1 => {
                    expected.resize(1000 + turn, 0);
                    OpenOptions::new().write(true).open(&writer).unwrap().set_len(1000 + turn as u64).unwrap();
                }
                2 => {
                    let at = expected.len() - 300;
                    expected[at..at + 7].copy_from_slice(b"changed");
                    OpenOptions::new().write(true).open(&writer).unwrap().write_all_at(b"changed", at as u64).unwrap();
                }
                _ => {
                    expected = pattern(4000 + 10 * turn);
                    fs::write(&writer, &expected).unwrap();
                }
            }
            assert!(fs::read(world.served.join("file")).unwrap() == expected, "turn {turn}, {query}");
            for side in sides {
                let mut file = File::open(side.join("file")).unwrap();
                let mut found = Vec::new();
                file.read_to_end(&mut found).unwrap();
                let meta = file.metadata().unwrap();
                assert_eq!((found.len(), meta.len()), (expected.len(), expected.len() as u64), "turn {turn}, {query}");
                assert!(found == expected && meta.ino() == number, "turn {turn}, {query}");
            }
            let seen = asking.at.join("file").metadata().unwrap();
            let served = world.served.join("file").metadata().unwrap();
            assert_eq!((seen.len(), seen.ino()), (served.len(), number), "turn {turn}, {query}");
            let times = |meta: &fs::Metadata| (meta.mtime(), meta.mtime_nsec());
            assert_eq!(times(&seen), times(&served), "turn {turn}, {query}");
        }
        // A second name has the same number, and its file the same data.
        fs::hard_link(caching.at.join("file"), caching.at.join("second")).unwrap();
        fs::write(world.at.join("second"), "through the second name").unwrap();
        for name in ["file", "second", "file"] {
            assert_eq!(fs::read(caching.at.join(name)).unwrap(), b"through the second name");
            assert_eq!(caching.at.join(name).metadata().unwrap().ino(), number);
        }
        caching.end();
        asking.end();
        world.end();
    }
}

#[test]
fn programs_of_this_machine_share_a_file() {
    for query in VERSIONS {
        let Some(world) = World::new("programs_of_this_machine_share_a_file", "tcp", query) else { return };
        let mounted = world.with_arguments("mounted", query, &ASKING);
        let path = mounted.at.join("file");
        let append = || OpenOptions::new().append(true).create(true).open(&path).unwrap();
        let (mut one, mut two) = (append(), append());
        let mut expected = Vec::new();
        for turn in 0..60usize {
            let piece = pattern(turn * 37);
            if turn % 2 == 0 {
                one.write_all(&piece).unwrap()
            } else {
                two.write_all(&piece).unwrap()
            }
            expected.extend(piece);
            assert_eq!(path.metadata().unwrap().len(), expected.len() as u64);
        }
        assert!(fs::read(&path).unwrap() == expected);
        let file = open(&path);
        // Within a page, over the end, and beyond it.
        let len = expected.len();
        for (at, piece) in [(5000, &b"within"[..]), (len - 3, b"over the end"), (3 << 20, b"beyond")] {
            file.write_all_at(piece, at as u64).unwrap();
            expected.resize(expected.len().max(at + piece.len()), 0);
            expected[at..at + piece.len()].copy_from_slice(piece);
        }
        assert_eq!(seek(&file, SeekFrom::Data(5000)).unwrap(), 5000, "the kernel must have written what is sought");
        if map_and_change(&path) {
            expected[7] = b'm';
        }
        file.set_len(2 << 20).unwrap();
        file.set_len(4 << 20).unwrap();
        file.write_all_at(b"last", 2 << 20).unwrap();
        expected.truncate(2 << 20);
        expected.resize(4 << 20, 0);
        expected[2 << 20..(2 << 20) + 4].copy_from_slice(b"last");
        assert!(fs::read(&path).unwrap() == expected);
        drop((one, two, file));
        assert!(fs::read(world.served.join("file")).unwrap() == expected, "{query}");
        mounted.end();
        world.end();
    }
}

/// Changes a byte through a memory map. Returns `false` if this machine has no program that can.
fn map_and_change(path: &Path) -> bool {
    let script = "import mmap, sys; file = open(sys.argv[1], 'r+b'); map = mmap.mmap(file.fileno(), 0); map[7:8] = b'm'; map.close()";
    let done = Command::new("python3").args(["-c", script]).arg(path).status();
    let can = done.is_ok();
    match done {
        Ok(status) => assert!(status.success()),
        Err(_) => eprintln!("SKIPPED the memory map: needs python3"),
    }
    can
}

/// To write a part of a page, the kernel reads it through the descriptor of the writer.
#[test]
fn a_file_that_may_only_be_written_is_written() {
    const WRITER: u32 = 61_001;
    for version in ["3", "4.0", "4.2"] {
        let test = "a_file_that_may_only_be_written_is_written";
        let Some(world) = World::new(test, "tcp", "") else { return };
        let mounted = world.for_all_users(version, &CACHING);
        let run = |script: &str| {
            let mut command = Command::new("setpriv");
            command.args(["--reuid", "61001", "--regid", "61001", "--clear-groups", "sh", "-ec", script]);
            let done = command.current_dir(&mounted.at).output().unwrap();
            assert!(done.status.success(), "{version}: {}", String::from_utf8_lossy(&done.stderr));
        };
        for (owner, mode) in [(WRITER, 0o200), (0, 0o622)] {
            let served = world.served.join(format!("file-{mode:o}"));
            fs::write(&served, pattern(10_000)).unwrap();
            fs::set_permissions(&served, fs::Permissions::from_mode(mode)).unwrap();
            chown(&served, Some(owner), Some(owner)).unwrap();
            let name = served.file_name().unwrap().to_str().unwrap();
            // The owner of a file can set any time, another user only the server's.
            run(&format!("printf new | dd of={name} bs=1 seek=4100 conv=notrunc; printf end >> {name}; touch {name}"));
            let expected = [&pattern(10_000)[..4100], b"new", &pattern(10_000)[4103..], b"end"].concat();
            assert!(fs::read(&served).unwrap() == expected, "{mode:o}, {version}");
        }
        run("umask 0577; printf created > created; printf ' again' >> created");
        assert_eq!(fs::read(world.served.join("created")).unwrap(), b"created again");
        mounted.end();
    }
}

/// The kernel writes its data without a caller. They are written as the user that has opened the file.
#[test]
fn data_are_written_as_the_opener() {
    let test = "data_are_written_as_the_opener";
    if !can_mount(test) {
        return;
    }
    for version in ["3", "4.2"] {
        let directory = tempfile::tempdir().unwrap();
        let [served, at, state] = ["served", "at", "state"].map(|name| directory.path().join(name));
        for path in [&served, &at] {
            fs::create_dir(path).unwrap();
        }
        for (path, mode) in [(directory.path(), 0o755), (&*served, 0o1777)] {
            fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        }
        // The server makes root a user that may not write the file.
        let (state, export) = (state.to_str().unwrap(), served.to_str().unwrap());
        let server = Server::everywhere(&["--squash", "root", "--state-dir", state, export]);
        let url = format!("{}&vers={version}", server.url("tcp", ""));
        let mounted = Mounted::of(mount_with(&[&ASKING[..], &["--allow-other"]].concat(), &url, &at), at.clone());
        let script = "umask 077; exec 3>hers; printf data >&3; sync; printf ' more' >&3; exec 3>&-; cat hers; mv hers mine; sync";
        let mut command = Command::new("setpriv");
        command.args(["--reuid", "61001", "--regid", "61001", "--clear-groups", "sh", "-ec", script]);
        let done = command.current_dir(&at).output().unwrap();
        assert!(done.status.success(), "{version}: {}", String::from_utf8_lossy(&done.stderr));
        assert_eq!(done.stdout, b"data more");
        let meta = served.join("mine").metadata().unwrap();
        assert_eq!((meta.uid(), meta.mode() & 0o777, meta.len()), (61_001, 0o600, 9), "{version}");
        mounted.end();
    }
}

#[test]
fn an_error_of_kept_data_is_reported() {
    if !can_mount("an_error_of_kept_data_is_reported") {
        return;
    }
    let server = Server::everywhere(&["--memory", "2M", "--squash", "none"]);
    let directory = tempfile::tempdir().unwrap();
    for version in ["3", "4.2"] {
        let url = format!("{}&vers={version}", server.url("tcp", ""));
        let mounted = Mounted::of(mount_with(&CACHING, &url, directory.path()), directory.path().to_owned());
        let path = directory.path().join("large");
        for by_close in [false, true] {
            let file = File::create(&path).unwrap();
            let written = pattern(8 << 20).chunks(4096).enumerate().try_for_each(|(at, piece)| {
                let done = file.write_all_at(piece, at as u64 * 4096);
                done.map_err(|error| error.kind())
            });
            let failed = match (written, by_close) {
                (Err(kind), _) => kind,
                (Ok(()), false) => file.sync_all().unwrap_err().kind(),
                (Ok(()), true) => std::io::Error::from(nix::unistd::close(file).unwrap_err()).kind(),
            };
            assert_eq!(failed, ErrorKind::StorageFull, "over {version}");
            let _ = fs::remove_file(&path);
        }
        fs::write(&path, "fits").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"fits");
        fs::remove_file(&path).unwrap();
        mounted.end();
    }
}

#[test]
fn data_are_written_before_an_unlock_and_the_end_of_the_mount() {
    for query in &VERSIONS[1..] {
        let test = "data_are_written_before_an_unlock_and_the_end_of_the_mount";
        let Some(world) = World::new(test, "tcp", query) else { return };
        let mounted = world.with_arguments("mounted", query, &CACHING);
        let file = open(&mounted.at.join("file"));
        for turn in 0..5u64 {
            flock(&file, FlockOperation::LockExclusive).unwrap();
            file.write_all_at(&pattern(9000), turn * 9000).unwrap();
            flock(&file, FlockOperation::Unlock).unwrap();
            assert_eq!(fs::read(world.served.join("file")).unwrap().len() as u64, (turn + 1) * 9000, "{query}");
        }
        // Another machine changes the file in place, with the lock.
        let other = open(&world.at.join("file"));
        flock(&other, FlockOperation::LockExclusive).unwrap();
        other.write_all_at(b"other", 20_000).unwrap();
        flock(&other, FlockOperation::Unlock).unwrap();
        flock(&file, FlockOperation::LockExclusive).unwrap();
        let mut found = [0; 5];
        file.read_exact_at(&mut found, 20_000).unwrap();
        assert_eq!(&found, b"other", "{query}");
        file.write_all_at(b"at the end", 45_000).unwrap();
        mounted.terminate();
        assert!(fs::read(world.served.join("file")).unwrap().ends_with(b"at the end"), "{query}");
        drop((file, other));
        world.end();
    }
}

/// After a change of a name, the kernel sends the mtime that it has. It must not undo that of another machine.
#[test]
fn times_of_another_machine_are_kept() {
    for query in VERSIONS {
        let Some(world) = World::new("times_of_another_machine_are_kept", "tcp", query) else { return };
        let mounted = world.with_arguments("mounted", query, &CACHING);
        let (before, path) = (mounted.at.join("before"), mounted.at.join("file"));
        fs::write(&before, "data").unwrap();
        fs::rename(&before, &path).unwrap();
        let mtime = Timespec { tv_sec: 1_000_000, tv_nsec: 5 };
        let omitted = Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT };
        let times = Timestamps { last_access: omitted, last_modification: mtime };
        utimensat(CWD, world.served.join("file"), &times, AtFlags::empty()).unwrap();
        rustix::fs::syncfs(File::open(&mounted.at).unwrap()).unwrap();
        // Removed files have times that the kernel sends, too.
        fs::write(mounted.at.join("removed"), "data").unwrap();
        fs::remove_file(mounted.at.join("removed")).unwrap();
        rustix::fs::syncfs(File::open(&mounted.at).unwrap()).unwrap();
        let seen = |path: &Path| (path.metadata().unwrap().mtime(), path.metadata().unwrap().mtime_nsec());
        assert_eq!(seen(&world.served.join("file")), (1_000_000, 5), "{query}");
        // The times of a file do not change after its close.
        let kept = mounted.at.join("kept");
        for _ in 0..20 {
            let mut file = File::create_new(&kept).unwrap();
            file.write_all(b"data").unwrap();
            let before = file.metadata().unwrap();
            drop(file);
            assert_eq!(seen(&world.served.join("kept")), (before.mtime(), before.mtime_nsec()), "{query}");
            fs::remove_file(&kept).unwrap();
        }
        // A time that is set here is set at the server.
        let set = Timestamps { last_access: omitted, last_modification: Timespec { tv_sec: 77, tv_nsec: 0 } };
        utimensat(CWD, &path, &set, AtFlags::empty()).unwrap();
        assert_eq!((seen(&path), seen(&world.served.join("file"))), ((77, 0), (77, 0)), "{query}");
        mounted.terminate();
        world.end();
    }
}
