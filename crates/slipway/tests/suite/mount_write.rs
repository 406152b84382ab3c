//! Tests of `slipway mount`: data that programs have written are gathered, and nobody sees old data because of that.

use std::{
    fs::{self, File, OpenOptions},
    io::{ErrorKind, Write},
    os::unix::fs::{FileExt, MetadataExt},
};

use crate::common::{
    Server,
    mounted::{CACHED, Mounted, World, can_mount, mount, mount_with, pattern},
    until,
};

#[test]
fn small_writes_are_gathered() {
    const LEN: usize = 3 << 20;
    let Some(world) = World::new("small_writes_are_gathered", "tcp", "") else { return };
    for version in ["3", "4.0", "4.2"] {
        let (counted, mounted) = world.counted(&format!("&vers={version}"));
        let (name, data) = (format!("file-{version}"), pattern(LEN));
        let file = File::create_new(mounted.at.join(&name)).unwrap();
        let before = counted.calls();
        for (number, piece) in data.chunks(1000).enumerate() {
            file.write_all_at(piece, number as u64 * 1000).unwrap();
        }
        drop(file);
        let calls = counted.calls() - before;
        // A block waits for more data for a limited time, so a slow machine sends more of them.
        assert!(calls < LEN as u64 / 20_000, "{calls} calls for {} writes over {version}", LEN / 1000);
        assert!(fs::read(world.served.join(&name)).unwrap() == data);
        let at = mounted.at.clone();
        mounted.end();
        fs::remove_dir(at).unwrap();
    }
    world.end();
}

#[test]
fn a_small_new_file_needs_few_calls() {
    const FILES: u64 = 50;
    let Some(world) = World::new("a_small_new_file_needs_few_calls", "tcp", "") else { return };
    // LOOKUP, CREATE or OPEN, and WRITE; version 4 closes several files by one call.
    for (version, most) in [("3", 3.1), ("4.2", 4.1)] {
        let (counted, mounted) = world.counted(&format!("&vers={version}"));
        let before = counted.calls();
        for number in 0..FILES {
            let mut file = File::create_new(mounted.at.join(format!("{version}-{number}"))).unwrap();
            file.write_all(b"one").unwrap();
            file.write_all(b" two").unwrap();
        }
        let calls = (counted.calls() - before) as f64 / FILES as f64;
        assert!(calls <= most, "{calls} calls for each file over {version}");
        assert_eq!(fs::read(world.served.join(format!("{version}-7"))).unwrap(), b"one two");
        let at = mounted.at.clone();
        mounted.end();
        fs::remove_dir(at).unwrap();
    }
    world.end();
}

#[test]
fn attributes_and_reads_include_gathered_data() {
    let Some(world) = World::new("attributes_and_reads_include_gathered_data", "tcp", "") else { return };
    for version in ["3", "4.2"] {
        let (_counted, mounted) = world.counted(&format!("&vers={version}"));
        let (path, served) = (mounted.at.join("file"), world.served.join("file"));
        let mut file = OpenOptions::new().create_new(true).read(true).write(true).open(&path).unwrap();
        let mut expected = Vec::new();
        for round in 0..40u8 {
            let piece = vec![round + 1; 700];
            file.write_all(&piece).unwrap();
            expected.extend(&piece);
            let len = expected.len() as u64;
            match round % 4 {
                0 => assert_eq!(path.metadata().unwrap().len(), len),
                1 => {
                    let entry = fs::read_dir(&mounted.at).unwrap().next().unwrap().unwrap();
                    assert_eq!(entry.metadata().unwrap().len(), len);
                }
                2 => assert!(fs::read(&path).unwrap() == expected),
                _ => {
                    // Over data that may not be sent yet.
                    file.write_all_at(b"again", len - 300).unwrap();
                    let at = expected.len() - 300;
                    expected[at..at + 5].copy_from_slice(b"again");
                }
            }
        }
        file.set_len(1000).unwrap();
        expected.truncate(1000);
        file.write_all_at(b"end", 1200).unwrap();
        expected.resize(1200, 0);
        expected.extend(b"end");
        drop(file);
        assert!(fs::read(&served).unwrap() == expected && fs::read(&path).unwrap() == expected);
        fs::remove_file(&path).unwrap();
        let at = mounted.at.clone();
        mounted.end();
        fs::remove_dir(at).unwrap();
    }
    world.end();
}

#[test]
fn data_of_an_open_file_reach_the_server() {
    let Some(mut world) = World::new("data_of_an_open_file_reach_the_server", "tcp", "&vers=4.2") else { return };
    let mut file = File::create_new(world.at.join("file")).unwrap();
    file.write_all(b"line").unwrap();
    until("the data are there", || fs::read(world.served.join("file")).unwrap() == b"line");
    // The mount ends while the file is open.
    file.write_all(b" and more").unwrap();
    world.terminate();
    assert_eq!(fs::read(world.served.join("file")).unwrap(), b"line and more");
    drop(file);
    world.server.signal(rustix::process::Signal::TERM);
}

#[test]
fn an_error_of_gathered_data_is_reported() {
    if !can_mount("an_error_of_gathered_data_is_reported") {
        return;
    }
    let server = Server::everywhere(&["--memory", "2M", "--squash", "none"]);
    let directory = tempfile::tempdir().unwrap();
    for version in ["3", "4.2"] {
        let child = mount(&format!("{}&vers={version}", server.url("tcp", "")), directory.path());
        let mounted = Mounted::of(child, directory.path().to_owned());
        let file = File::create_new(directory.path().join("large")).unwrap();
        let fails = |result: std::io::Result<()>| result.unwrap_err().kind() == ErrorKind::StorageFull;
        let write = || {
            pattern(8 << 20)
                .chunks(4096)
                .enumerate()
                .try_for_each(|(at, piece)| file.write_all_at(piece, at as u64 * 4096))
        };
        assert!(fails(write().and_then(|()| file.sync_all())), "over {version}");
        // The error was reported, and what fits can be written.
        let _ = file.sync_all();
        file.set_len(0).unwrap();
        file.write_all_at(b"fits", 0).unwrap();
        file.sync_all().unwrap();
        drop(file);
        assert_eq!(fs::read(directory.path().join("large")).unwrap(), b"fits");
        fs::remove_file(directory.path().join("large")).unwrap();
        mounted.end();
    }
}

#[test]
fn names_that_do_not_exist_are_cached_as_long_as_attributes() {
    let Some(world) = World::new("names_that_do_not_exist_are_cached_as_long_as_attributes", "tcp", "") else { return };
    let (counted, mounted) = world.counted("");
    drop(mounted);
    let at = world.directory.path().join("cached");
    fs::create_dir(&at).unwrap();
    let url = world.server.url("tcp", "").replacen(
        &format!(":{}", world.server.port("tcp")),
        &format!(":{}", counted.port),
        1,
    );
    let mounted = Mounted::of(mount_with(&CACHED, &url, &at), at.clone());
    let none = at.join("none");
    assert!(!none.exists());
    let before = counted.calls();
    (0..50).for_each(|_| assert!(!none.exists()));
    assert_eq!(counted.calls(), before);
    // This mount makes the name.
    fs::write(&none, "made").unwrap();
    assert_eq!((fs::read(&none).unwrap(), none.metadata().unwrap().size()), (b"made".to_vec(), 4));
    mounted.end();
    world.end();
}
