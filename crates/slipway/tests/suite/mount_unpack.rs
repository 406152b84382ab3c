//! Tests of `slipway mount`: programs that unpack archives make directories with new files, write each file, and set its attributes.

use std::{
    fs::{self, File, FileTimes, Permissions},
    io::{ErrorKind, Write},
    os::unix::fs::{MetadataExt, PermissionsExt, fchown, symlink},
    path::Path,
    time::{Duration, SystemTime},
};

use rustix::process::Signal;

use crate::common::{
    Server,
    counted::Counted,
    mounted::{Mounted, World, can_mount, mount_with, pattern},
};

const LONG: [&str; 2] = ["--attributes", "3600"];

/// Makes a file as tar does.
fn unpack(path: &Path, data: &[u8], number: u64) {
    let mut file = File::create_new(path).unwrap();
    file.write_all(data).unwrap();
    file.set_times(FileTimes::new().set_modified(SystemTime::UNIX_EPOCH + Duration::from_secs(1000 + number))).unwrap();
    fchown(&file, Some(1), Some(2)).unwrap();
    file.set_permissions(Permissions::from_mode(0o640)).unwrap();
}

/// Mounts through a relay that counts calls.
fn counted(world: &World, version: &str) -> (Counted, Mounted) {
    let port = world.server.port("tcp");
    let counted = Counted::before(port);
    let url = world.server.url("tcp", "").replacen(&format!(":{port}"), &format!(":{}", counted.port), 1);
    let at = world.directory.path().join(version);
    fs::create_dir(&at).unwrap();
    (counted, Mounted::of(mount_with(&LONG, &format!("{url}&vers={version}"), &at), at))
}

#[test]
fn files_of_a_new_directory_are_not_looked_up_and_are_written_with_their_attributes() {
    const FILES: u64 = 50;
    let name = "files_of_a_new_directory_are_not_looked_up_and_are_written_with_their_attributes";
    let Some(world) = World::new(name, "tcp", "") else { return };
    // CREATE, WRITE and three SETATTRs over version 3. Over version 4 one SETATTR is in the request of the WRITE, and several files are
    // closed by one request.
    for (version, most) in [("3", 5.1), ("4.0", 5.1), ("4.2", 4.3)] {
        let (counted, mounted) = counted(&world, version);
        let directory = mounted.at.join(format!("new-{version}"));
        fs::create_dir(&directory).unwrap();
        let before = counted.calls();
        for number in 0..FILES {
            unpack(&directory.join(number.to_string()), &pattern(100 + number as usize), number);
        }
        let calls = (counted.calls() - before) as f64 / FILES as f64;
        assert!(calls <= most, "{calls} calls for each file over {version}");
        for number in 0..FILES {
            let served = world.served.join(format!("new-{version}/{number}"));
            assert!(fs::read(&served).unwrap() == pattern(100 + number as usize));
            let stat = served.metadata().unwrap();
            let found = (stat.mtime(), stat.uid(), stat.gid(), stat.mode() & 0o7777);
            assert_eq!(found, (1000 + number as i64, 1, 2, 0o640), "{version}: {number}");
        }
        mounted.end();
    }
    world.end();
}

#[test]
fn names_that_this_mount_makes_in_a_new_directory_are_found() {
    let Some(world) = World::new("names_that_this_mount_makes_in_a_new_directory_are_found", "tcp", "") else { return };
    for version in ["3", "4.2"] {
        let (_counted, mounted) = counted(&world, version);
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
    let full = Mounted::of(mount_with(&LONG, &format!("{}&vers=4.2", server.url("tcp", "")), &at), at.clone());
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
    let mounted = Mounted::of(mount_with(&LONG, &url, &at), at.clone());
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
