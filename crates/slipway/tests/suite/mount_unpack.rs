//! Tests of `slipway mount`: programs that unpack archives make directories with new files, write each file, and set its attributes.

use std::{
    fs::{self, File, FileTimes, OpenOptions, Permissions},
    io::{ErrorKind, Write},
    os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, chown, fchown, symlink},
    path::Path,
    time::{Duration, SystemTime},
};

use rustix::process::Signal;

use crate::common::{
    Server,
    mounted::{CACHED, Mounted, World, can_mount, mount_with, pattern},
    until,
};

/// Makes a file as tar does.
fn unpack(path: &Path, data: &[u8], (uid, gid, mode): (u32, u32, u32), number: u64) {
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path).unwrap();
    file.write_all(data).unwrap();
    set_time(&file, 1000 + number);
    fchown(&file, Some(uid), Some(gid)).unwrap();
    file.set_permissions(Permissions::from_mode(mode)).unwrap();
}

fn set_time(file: &File, seconds: u64) {
    file.set_times(FileTimes::new().set_modified(SystemTime::UNIX_EPOCH + Duration::from_secs(seconds))).unwrap();
}

#[test]
fn files_of_a_new_directory_are_not_looked_up_and_are_written_with_their_attributes() {
    const FILES: u64 = 50;
    let name = "files_of_a_new_directory_are_not_looked_up_and_are_written_with_their_attributes";
    let Some(world) = World::new(name, "tcp", "") else { return };
    // CREATE, WRITE and SETATTR over version 3. Over version 4, SETATTR is in the request of the WRITE, and several files are closed by one
    // request of 4.2. Another owner is set at once, and the mode after that.
    let (ours, another) = ((0, 0, 0o644), (1, 2, 0o640));
    let cases = [("3", ours, 3.1), ("4.0", ours, 3.1), ("4.2", ours, 2.3), ("3", another, 4.1), ("4.2", another, 3.3)];
    for (version, owner, most) in cases {
        let (counted, mounted) =
            world.counted_with(&format!("{version}-{}", owner.0), &format!("&vers={version}"), &CACHED);
        let directory = format!("new-{version}-{}", owner.0);
        fs::create_dir(mounted.at.join(&directory)).unwrap();
        let before = counted.calls();
        for number in 0..FILES {
            let path = mounted.at.join(&directory).join(number.to_string());
            unpack(&path, &pattern(100 + number as usize), owner, number);
        }
        let calls = (counted.calls() - before) as f64 / FILES as f64;
        assert!(calls <= most, "{calls} calls for each file of {owner:?} over {version}");
        for number in 0..FILES {
            let served = world.served.join(&directory).join(number.to_string());
            assert!(fs::read(&served).unwrap() == pattern(100 + number as usize));
            let stat = served.metadata().unwrap();
            let found = (stat.mtime(), (stat.uid(), stat.gid(), stat.mode() & 0o7777));
            assert_eq!(found, (1000 + number as i64, owner), "{version}: {number}");
        }
        mounted.end();
    }
    world.end();
}

#[test]
fn attributes_of_a_new_file_are_seen_by_others_here_and_are_sent_without_a_close() {
    for version in ["3", "4.2"] {
        let name = "attributes_of_a_new_file_are_seen_by_others_here_and_are_sent_without_a_close";
        let Some(world) = World::new(name, "tcp", &format!("&vers={version}")) else { return };
        let create =
            |name: &str| OpenOptions::new().write(true).create_new(true).mode(0o600).open(world.at.join(name)).unwrap();
        let mode = |path: &Path| path.metadata().unwrap().mode() & 0o7777;
        // Seen by the program itself, and by others that open the file.
        let mut seen = create("seen");
        seen.write_all(b"data").unwrap();
        set_time(&seen, 5);
        seen.set_permissions(Permissions::from_mode(0o644)).unwrap();
        let stat = seen.metadata().unwrap();
        assert_eq!((stat.len(), stat.mtime(), stat.mode() & 0o7777), (4, 5, 0o644), "{version}");
        let opened = create("opened");
        set_time(&opened, 5);
        drop(File::open(world.at.join("opened")).unwrap());
        assert_eq!(world.served.join("opened").metadata().unwrap().mtime(), 5, "{version}");
        // Sent after a while.
        let late = create("late");
        late.set_permissions(Permissions::from_mode(0o644)).unwrap();
        until("the mode must be sent", || mode(&world.served.join("late")) == 0o644);
        // A right is taken away at once.
        late.set_permissions(Permissions::from_mode(0o600)).unwrap();
        assert_eq!(mode(&world.served.join("late")), 0o600, "{version}");
        // A later write changes the time.
        let mut written = create("written");
        written.write_all(b"one").unwrap();
        set_time(&written, 5);
        written.write_all(b"two").unwrap();
        drop(written);
        let served = world.served.join("written");
        assert_eq!(fs::read(&served).unwrap(), b"onetwo", "{version}");
        assert_ne!(served.metadata().unwrap().mtime(), 5, "{version}");
        drop((seen, opened, late));
        world.end();
    }
}

#[test]
fn attributes_that_cannot_be_set_are_reported_by_fsync_and_close() {
    if !can_mount("attributes_that_cannot_be_set_are_reported_by_fsync_and_close") {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let (served, at) = (directory.path().join("served"), directory.path().join("mnt"));
    fs::create_dir(&served).unwrap();
    fs::create_dir(&at).unwrap();
    fs::set_permissions(&served, Permissions::from_mode(0o777)).unwrap();
    let server = Server::dir(&served, &directory.path().join("state"));
    for version in ["3", "4.2"] {
        let url = format!("{}&vers={version}&uid=1&gid=1", server.url("tcp", ""));
        let mounted = Mounted::of(mount_with(&CACHED, &url, &at), at.clone());
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(at.join(version)).unwrap();
        // Somebody gives the file to another user meanwhile, whose attributes this user cannot set.
        chown(served.join(version), Some(2), None).unwrap();
        fs::set_permissions(served.join(version), Permissions::from_mode(0o666)).unwrap();
        file.write_all(b"data").unwrap();
        file.set_permissions(Permissions::from_mode(0o644)).unwrap();
        let closed = nix::unistd::close(file.try_clone().unwrap());
        assert_eq!(closed, Err(nix::errno::Errno::EPERM), "{version}");
        assert_eq!(file.sync_all().unwrap_err().kind(), ErrorKind::PermissionDenied, "{version}");
        file.sync_all().unwrap();
        drop(file);
        mounted.end();
    }
    server.signal(Signal::TERM);
}

#[test]
fn names_that_this_mount_makes_in_a_new_directory_are_found() {
    let Some(world) = World::new("names_that_this_mount_makes_in_a_new_directory_are_found", "tcp", "") else { return };
    for version in ["3", "4.2"] {
        let (_counted, mounted) = world.counted_with(version, &format!("&vers={version}"), &CACHED);
        let new = mounted.at.join(format!("names-{version}"));
        fs::create_dir(&new).unwrap();
        let names = ["created", "made", "linked", "symbolic", "renamed"].map(|name| new.join(name));
        let exist = |wanted: bool| {
            for name in &names {
                assert_eq!(name.symlink_metadata().is_ok(), wanted, "{}", name.display());
            }
        };
        exist(false);
        fs::write(mounted.at.join("other"), "other").unwrap();
        fs::write(&names[0], "created").unwrap();
        fs::create_dir(&names[1]).unwrap();
        fs::hard_link(&names[0], &names[2]).unwrap();
        symlink("nowhere", &names[3]).unwrap();
        fs::rename(mounted.at.join("other"), &names[4]).unwrap();
        exist(true);
        // A failed attempt to make a name tells that it exists.
        let again = new.join("again");
        fs::create_dir(world.served.join(format!("names-{version}/again"))).unwrap();
        assert_eq!(fs::create_dir(&again).unwrap_err().kind(), ErrorKind::AlreadyExists);
        assert!(again.metadata().unwrap().is_dir());
        mounted.end();
    }
    world.end();
}

#[test]
fn names_that_another_machine_makes_in_a_new_directory_are_found_without_caching() {
    let name = "names_that_another_machine_makes_in_a_new_directory_are_found_without_caching";
    let Some(world) = World::new(name, "tcp", "&vers=4.2") else { return };
    let (new, served) = (world.at.join("new"), world.served.join("new"));
    fs::create_dir(&new).unwrap();
    assert!(!new.join("theirs").exists());
    fs::write(served.join("theirs"), "theirs").unwrap();
    assert_eq!(fs::read(new.join("theirs")).unwrap(), b"theirs");
    world.end();
}

/// The errors of a WRITE and of a SETATTR that are in one request belong to different system calls.
#[test]
fn errors_of_data_and_of_attributes_are_those_of_their_calls() {
    if !can_mount("errors_of_data_and_of_attributes_are_those_of_their_calls") {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path().join("mnt");
    fs::create_dir(&at).unwrap();
    let server = Server::everywhere(&["--memory", "1M", "--squash", "none"]);
    let full = Mounted::of(mount_with(&CACHED, &format!("{}&vers=4.2", server.url("tcp", "")), &at), at.clone());
    let set_mode = |file: &File| file.set_permissions(Permissions::from_mode(0o600));
    // The first file leaves no room for the second.
    fs::write(at.join("first"), pattern(900_000)).unwrap();
    let mut file = File::create_new(at.join("second")).unwrap();
    file.write_all(&pattern(400_000)).unwrap();
    set_mode(&file).unwrap();
    assert_eq!(file.sync_all().unwrap_err().kind(), ErrorKind::StorageFull);
    assert_eq!(file.metadata().unwrap().mode() & 0o777, 0o600);
    drop(file);
    full.end();
    server.signal(Signal::TERM);
    let served = tempfile::tempdir().unwrap();
    fs::set_permissions(served.path(), Permissions::from_mode(0o777)).unwrap();
    let server = Server::dir(served.path(), &directory.path().join("state"));
    let url = format!("{}&vers=4.2&uid=1&gid=1", server.url("tcp", ""));
    let mounted = Mounted::of(mount_with(&CACHED, &url, &at), at.clone());
    let mut file = File::create_new(at.join("ours")).unwrap();
    file.write_all(b"data").unwrap();
    // User 1 cannot give a file away.
    assert_eq!(fchown(&file, Some(2), None).unwrap_err().kind(), ErrorKind::PermissionDenied);
    file.sync_all().unwrap();
    drop(file);
    assert_eq!(fs::read(served.path().join("ours")).unwrap(), b"data");
    mounted.end();
    server.signal(Signal::TERM);
}
