//! Tests of `slipway mount`: locks of programs are made at the server over every version, and attributes and copies over NFSv4.

use std::{
    fs::{self, File, OpenOptions},
    os::{
        fd::AsFd,
        unix::fs::{FileExt, MetadataExt},
    },
    path::Path,
    process::{Child, Command},
};

use crate::common::{
    PATIENCE,
    mounted::{World, pattern},
    ok,
    port::Port,
    run, until, wait,
};
use nix::{
    fcntl::{FcntlArg, fcntl},
    libc,
};
use rustix::{
    fs::{FallocateFlags, FlockOperation, SeekFrom, XattrFlags, flock},
    io::Errno,
    process::{Pid, Signal, kill_process},
};

fn open(path: &Path) -> File {
    OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path).unwrap()
}

/// Returns a lock for fcntl(2) of bytes from `start`; length 0 means to the end.
fn range(kind: i32, start: i64, len: i64) -> libc::flock {
    let (kind, whence) = (kind as libc::c_short, libc::SEEK_SET as libc::c_short);
    libc::flock { l_type: kind, l_whence: whence, l_start: start, l_len: len, l_pid: 0 }
}

/// Locks or unlocks for this process. Returns `true` on success.
fn posix(file: &File, kind: i32, start: i64, len: i64) -> bool {
    answer(fcntl(file.as_fd(), FcntlArg::F_SETLK(&range(kind, start, len))))
}

/// Does the same for the open file.
fn of_open_file(file: &File, kind: i32) -> bool {
    answer(fcntl(file.as_fd(), FcntlArg::F_OFD_SETLK(&range(kind, 0, 0))))
}

fn answer(result: nix::Result<i32>) -> bool {
    match result {
        Ok(_) => true,
        Err(nix::errno::Errno::EAGAIN | nix::errno::Errno::EACCES) => false,
        Err(error) => panic!("locking: {error}"),
    }
}

fn get(path: &Path, name: &str, room: usize) -> rustix::io::Result<Vec<u8>> {
    let mut value = vec![0; room];
    rustix::fs::getxattr(path, name, &mut value[..]).map(|len| value[..len.min(room)].to_vec())
}

/// Waits for an event that follows the return of close.
fn soon(what: &str, condition: impl Fn() -> bool) {
    let end = std::time::Instant::now() + PATIENCE;
    while !condition() {
        assert!(std::time::Instant::now() < end, "{what}");
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
}

#[test]
fn locks_hold_against_another_machine() {
    for query in ["&vers=3", "&vers=4.0", "&vers=4.2"] {
        let Some(world) = World::new("locks_hold_against_another_machine", "tcp", query) else { return };
        let other = world.another("rdma", query);
        let (a, b) = (open(&world.at.join("file")), open(&other.at.join("file")));

        assert!(posix(&a, libc::F_WRLCK, 10, 10));
        assert!(!posix(&b, libc::F_RDLCK, 0, 11) && !posix(&b, libc::F_WRLCK, 19, 0));
        assert!(posix(&b, libc::F_RDLCK, 0, 10) && posix(&b, libc::F_WRLCK, 20, 0));
        let mut found = range(libc::F_RDLCK, 15, 1);
        fcntl(b.as_fd(), FcntlArg::F_GETLK(&mut found)).unwrap();
        assert_eq!((i32::from(found.l_type), found.l_start, found.l_len), (libc::F_WRLCK, 10, 10));
        let mut found = range(libc::F_WRLCK, 30, 1);
        fcntl(a.as_fd(), FcntlArg::F_GETLK(&mut found)).unwrap();
        assert_eq!(
            (i32::from(found.l_type), found.l_start, found.l_len),
            (libc::F_WRLCK, 20, 0),
            "the lock must extend to the end"
        );
        assert!(posix(&a, libc::F_UNLCK, 12, 2));
        assert!(posix(&b, libc::F_WRLCK, 12, 2) && !posix(&b, libc::F_WRLCK, 11, 1), "only the middle must be free");

        // POSIX: the first close of a file releases all locks of the process on it.
        drop(open(&world.at.join("file")));
        assert!(posix(&b, libc::F_WRLCK, 0, 0));
        assert!(!posix(&a, libc::F_RDLCK, 100, 1));
        assert!(posix(&b, libc::F_UNLCK, 0, 0));
        assert!(posix(&a, libc::F_RDLCK, 100, 1) && posix(&b, libc::F_RDLCK, 100, 1), "shared");
        drop((a, b, other));
        world.end();
    }
}

/// Returns the number of descriptors of removed files below a directory that a process has.
fn removed_files(process: &Child, below: &Path) -> usize {
    let descriptors = fs::read_dir(format!("/proc/{}/fd", process.id())).unwrap();
    let targets = descriptors.filter_map(|descriptor| fs::read_link(descriptor.unwrap().path()).ok());
    targets.filter(|target| target.starts_with(below) && target.to_string_lossy().ends_with(" (deleted)")).count()
}

#[test]
fn open_file_keeps_its_data_when_another_machine_removes_it() {
    for version in ["4.0", "4.2"] {
        let query = format!("&vers={version}");
        let test = "open_file_keeps_its_data_when_another_machine_removes_it";
        let Some(world) = World::new(test, "tcp", &query) else { return };
        for (name, data) in [("removed", b"data"), ("replaced", b"also"), ("other", b"next")] {
            fs::write(world.served.join(name), data).unwrap();
        }
        let open = |name: &str| OpenOptions::new().read(true).write(true).open(world.at.join(name)).unwrap();
        let (removed, replaced) = (open("removed"), open("replaced"));
        ok(&["rm", &world.server.url("tcp", "/removed")]);
        let other = world.another("tcp", "&vers=3");
        fs::rename(other.at.join("other"), other.at.join("replaced")).unwrap();
        assert_eq!(fs::read(world.served.join("replaced")).unwrap(), b"next");
        assert!(!world.served.join("removed").exists());

        // This machine has not read the files before.
        let read = |file: &File| {
            let mut data = [0; 4];
            file.read_exact_at(&mut data, 0).unwrap();
            data
        };
        assert_eq!((&read(&removed), &read(&replaced)), (b"data", b"also"));
        removed.write_all_at(b"new ", 0).unwrap();
        removed.sync_all().unwrap();
        assert_eq!(removed.metadata().unwrap().nlink(), 0);
        assert!(removed_files(&world.server.child, &world.served) >= 2);
        drop((removed, replaced));
        until("the server must let removed files go when they are closed", || {
            removed_files(&world.server.child, &world.served) == 0
        });
        drop(other);
        world.end();
    }
}

#[test]
fn locks_of_open_files_end_with_them() {
    for (one, another) in [("&vers=4.2", "&vers=4.1"), ("&vers=3", "&vers=3"), ("&vers=3", "&vers=4.2")] {
        let Some(world) = World::new("locks_of_open_files_end_with_them", "tcp", one) else { return };
        let other = world.another("tcp", another);
        let path = world.at.join("file");
        let (a, b, c) = (open(&path), open(&path), open(&other.at.join("file")));
        // Another open file of the same process is another owner.
        flock(&a, FlockOperation::NonBlockingLockExclusive).unwrap();
        for file in [&b, &c] {
            assert_eq!(flock(file, FlockOperation::NonBlockingLockShared).unwrap_err(), Errno::WOULDBLOCK);
        }
        flock(&a, FlockOperation::Unlock).unwrap();
        flock(&b, FlockOperation::NonBlockingLockExclusive).unwrap();
        let second = b.try_clone().unwrap();
        drop(b);
        assert_eq!(
            flock(&c, FlockOperation::NonBlockingLockExclusive).unwrap_err(),
            Errno::WOULDBLOCK,
            "the file is still open"
        );
        drop(second);
        soon("unlocked with the last close", || flock(&c, FlockOperation::NonBlockingLockExclusive).is_ok());
        flock(&c, FlockOperation::Unlock).unwrap();

        let d = open(&path);
        assert!(
            of_open_file(&d, libc::F_WRLCK) && !of_open_file(&a, libc::F_RDLCK) && !of_open_file(&c, libc::F_RDLCK)
        );
        drop(d);
        soon("unlocked with the open file", || of_open_file(&c, libc::F_WRLCK));
        assert!(!of_open_file(&a, libc::F_RDLCK));
        drop((a, c, other));
        world.end();
    }
}

/// A server without NLM is not mounted unless the user wants locks of this machine.
#[test]
fn a_mount_without_lock_manager_must_say_nolock() {
    let test = "a_mount_without_lock_manager_must_say_nolock";
    let Some(world) = World::new(test, "tcp", "&vers=3&nolock") else { return };
    let other = world.another("tcp", "&vers=3");
    let path = world.at.join("file");
    let (a, b, c) = (open(&path), open(&path), open(&other.at.join("file")));
    flock(&a, FlockOperation::NonBlockingLockExclusive).unwrap();
    assert_eq!(flock(&b, FlockOperation::NonBlockingLockShared).unwrap_err(), Errno::WOULDBLOCK);
    flock(&c, FlockOperation::NonBlockingLockExclusive).expect("a lock of this machine must not be at the server");
    drop((a, b, c, other));
    // Nothing listens there.
    let nowhere = Port::take();
    let url = format!("{}&vers=3&nlmport={}", world.server.url("tcp", ""), nowhere.number());
    let refused = run(&["mount", &url, world.directory.path().to_str().unwrap()]);
    assert_eq!(refused.status.code(), Some(3), "{refused:?}");
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(said.contains("-o nolock"), "{said}");
    world.end();
}

/// Starts flock(1), which waits for a lock.
fn waiting(path: &Path) -> Child {
    let child = Command::new("flock").arg(path).args(["-c", "true"]).spawn().unwrap();
    let status = format!("/proc/{}/wchan", child.id());
    soon("the process waits", || fs::read_to_string(&status).is_ok_and(|at| at.contains("request_wait_answer")));
    child
}

#[test]
fn a_waiting_lock_is_granted_or_interrupted() {
    for query in ["&vers=3", "&vers=4.2"] {
        let Some(world) = World::new("a_waiting_lock_is_granted_or_interrupted", "tcp", query) else { return };
        let other = world.another("tcp", query);
        let a = open(&world.at.join("file"));
        flock(&a, FlockOperation::NonBlockingLockExclusive).unwrap();
        for signal in [Signal::TERM, Signal::KILL] {
            let mut waits = waiting(&other.at.join("file"));
            kill_process(Pid::from_child(&waits), signal).unwrap();
            assert!(!wait(&mut waits).success());
        }
        let mut waits = waiting(&other.at.join("file"));
        assert!(waits.try_wait().unwrap().is_none());
        flock(&a, FlockOperation::Unlock).unwrap();
        assert!(wait(&mut waits).success(), "the process must get the lock");
        soon("the lock is free", || flock(&a, FlockOperation::NonBlockingLockExclusive).is_ok());
        drop((a, other));
        world.end();
    }
}

#[test]
fn locks_survive_a_restart_of_the_server() {
    // No request ends the grace period of NFSv3, so it is short.
    for (query, args) in [("&vers=3", &["--lease", "15"][..]), ("&vers=4.2", &[])] {
        let test = "locks_survive_a_restart_of_the_server";
        let Some(mut world) = World::new(test, "tcp", query) else { return };
        let a = open(&world.at.join("file"));
        assert!(posix(&a, libc::F_WRLCK, 5, 5));
        world.restart(args);
        // This write detects the restart, and the client reclaims its state.
        a.write_all_at(b"written", 0).unwrap();
        a.sync_all().unwrap();
        let other = world.another("tcp", query);
        let b = open(&other.at.join("file"));
        assert!(!posix(&b, libc::F_WRLCK, 7, 1), "the lock must still be held");
        assert!(posix(&a, libc::F_UNLCK, 5, 5) && posix(&b, libc::F_WRLCK, 5, 5));
        drop((a, b, other));
        world.end();
    }
}

#[test]
fn extended_attributes_are_stored() {
    let Some(world) = World::new("extended_attributes_are_stored", "rdma", "&vers=4.2") else { return };
    let (here, there) = (world.at.join("file"), world.served.join("file"));
    fs::write(&here, "content").unwrap();
    rustix::fs::setxattr(&here, "user.colour", b"green", XattrFlags::CREATE).unwrap();
    rustix::fs::setxattr(&here, "user.empty", b"", XattrFlags::empty()).unwrap();
    assert_eq!(get(&there, "user.colour", 9).unwrap(), b"green");
    assert_eq!(get(&here, "user.colour", 9).unwrap(), b"green");
    assert_eq!(get(&here, "user.empty", 9).unwrap(), b"");
    assert_eq!(get(&here, "user.colour", 2).unwrap_err(), Errno::RANGE);
    let set = |name: &str, flags| rustix::fs::setxattr(&here, name, b"red", flags).unwrap_err();
    assert_eq!(set("user.colour", XattrFlags::CREATE), Errno::EXIST);
    assert_eq!(set("user.none", XattrFlags::REPLACE), Errno::NODATA);
    assert_eq!(set("trusted.none", XattrFlags::empty()), Errno::OPNOTSUPP);
    let mut names = [0u8; 100];
    let len = rustix::fs::listxattr(&here, &mut names[..]).unwrap();
    let mut names: Vec<_> = names[..len].split_inclusive(|&byte| byte == 0).collect();
    names.sort();
    assert_eq!(names, [&b"user.colour\0"[..], b"user.empty\0"]);
    rustix::fs::removexattr(&here, "user.colour").unwrap();
    assert_eq!(get(&here, "user.colour", 9).unwrap_err(), Errno::NODATA);
    assert_eq!(get(&there, "user.colour", 9).unwrap_err(), Errno::NODATA);

    let before = world.another("tcp", "");
    assert_eq!(
        get(&before.at.join("file"), "user.empty", 9).unwrap_err(),
        Errno::OPNOTSUPP,
        "version 3 must not have them"
    );
    drop(before);
    world.end();
}

#[test]
fn acls_are_those_of_the_server() {
    for (transport, vers) in [("rdma", "4.2"), ("tcp", "4.1"), ("tcp", "4.0")] {
        let options = format!("&vers={vers}");
        let Some(world) = World::new("acls_are_those_of_the_server", transport, &options) else { return };
        let here = world.at.join("file");
        fs::write(&here, "content").unwrap();
        // RFC 8881 §6.2.1: the number of entries, and for each its type, flags, access mask and principal.
        let acl = get(&here, "system.nfs4_acl", 4096).unwrap();
        let entry = [0, 0, 1, 4].map(u32::to_be_bytes).concat().into_iter().chain(*b"4711").collect::<Vec<u8>>();
        let count = u32::from_be_bytes(acl[..4].try_into().unwrap());
        assert!(count >= 3 && !acl.windows(4).any(|four| four == b"4711"), "{acl:x?}");
        let more = [&(count + 1).to_be_bytes()[..], &entry, &acl[4..]].concat();
        rustix::fs::setxattr(&here, "system.nfs4_acl", &more, XattrFlags::empty()).unwrap();
        let acl = get(&here, "system.nfs4_acl", 4096).unwrap();
        assert!(acl.windows(4).any(|four| four == b"4711"), "{acl:x?}");
        let set =
            |value: &[u8]| rustix::fs::setxattr(&here, "system.nfs4_acl", value, XattrFlags::empty()).unwrap_err();
        assert_eq!(set(&more[..more.len() - 4]), Errno::INVAL);
        assert_eq!(rustix::fs::removexattr(&here, "system.nfs4_acl").unwrap_err(), Errno::OPNOTSUPP);
        let users = if vers == "4.2" { Errno::NODATA } else { Errno::OPNOTSUPP };
        assert_eq!(get(&here, "user.none", 9).unwrap_err(), users, "{vers}");
        world.end();
    }
}

#[test]
fn holes_and_copies_are_made_by_the_server() {
    let Some(world) = World::new("holes_and_copies_are_made_by_the_server", "tcp", "&vers=4.2") else { return };
    let data = pattern(3 << 20);
    fs::write(world.at.join("file"), &data).unwrap();
    let file = open(&world.at.join("file"));
    let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    rustix::fs::fallocate(&file, hole, 1 << 20, 1 << 20).unwrap();
    let mut expected = data.clone();
    expected[1 << 20..2 << 20].fill(0);
    assert!(
        fs::read(world.served.join("file")).unwrap() == expected
            && fs::read(world.at.join("file")).unwrap() == expected
    );
    let seek = |to| rustix::fs::seek(&file, to);
    assert_eq!((seek(SeekFrom::Hole(0)), seek(SeekFrom::Data(1 << 20))), (Ok(1 << 20), Ok(2 << 20)));
    assert_eq!(seek(SeekFrom::Hole(2 << 20)), Ok(3 << 20), "the end must be a hole");
    assert_eq!(seek(SeekFrom::Data(3 << 20)), Err(Errno::NXIO));
    rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, 4 << 20).unwrap();
    assert_eq!(world.served.join("file").metadata().unwrap().size(), 4 << 20);
    assert_eq!(file.metadata().unwrap().len(), 4 << 20);

    let copy = open(&world.at.join("copy"));
    copy.write_all_at(&[1; 10], 0).unwrap();
    let (mut from, mut to) = (2 << 20, 5);
    while from < 3 << 20 {
        let left = (3 << 20) - from as usize;
        assert!(rustix::fs::copy_file_range(&file, Some(&mut from), &copy, Some(&mut to), left).unwrap() > 0);
    }
    let expected = [&[1; 5], &data[2 << 20..]].concat();
    assert!(
        fs::read(world.served.join("copy")).unwrap() == expected
            && fs::read(world.at.join("copy")).unwrap() == expected
    );
    drop((file, copy));
    world.end();
}
