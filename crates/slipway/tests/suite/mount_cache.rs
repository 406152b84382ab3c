//! Tests of `slipway mount` over NFSv4: delegated files are cached, and the cache is never stale.

use std::{
    fs::{self, File, OpenOptions},
    io::{Read, Seek, Write},
    os::unix::fs::{FileExt, MetadataExt, PermissionsExt},
    path::Path,
    sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
    thread,
};

use crate::common::{
    mounted::{CACHED, World, mount_with, pattern},
    wait,
};

/// Uses all files of a directory as programs do.
fn use_all(at: &Path, files: usize, size: usize) {
    for number in 0..files {
        let path = at.join(format!("file-{number}"));
        assert_eq!(path.metadata().unwrap().len(), size as u64);
        let mut file = File::open(&path).unwrap();
        let mut data = Vec::new();
        file.read_to_end(&mut data).unwrap();
        assert!(data == pattern(size) && file.metadata().unwrap().mode() & 0o777 == 0o644);
    }
}

#[test]
fn delegated_files_are_used_without_calls() {
    const FILES: usize = 16;
    const TIMES: usize = 3;
    let Some(world) = World::new("delegated_files_are_used_without_calls", "tcp", "") else { return };
    for number in 0..FILES {
        let path = world.served.join(format!("file-{number}"));
        fs::write(&path, pattern(10_000)).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
    }
    for (version, delegates) in [("4.0", false), ("4.1", true), ("4.2", true)] {
        let (counted, mounted) = world.counted(&format!("&vers={version}"));
        // The first pass gets the delegations, and the second looks the names up while the files are delegated.
        (0..2).for_each(|_| use_all(&mounted.at, FILES, 10_000));
        let before = counted.calls();
        (0..TIMES).for_each(|_| use_all(&mounted.at, FILES, 10_000));
        let calls = counted.calls() - before;
        match delegates {
            // The client renews its lease in any case.
            true => assert!(calls < FILES as u64 / 2, "{calls} calls over {version}"),
            false => assert!(calls >= (FILES * TIMES) as u64, "{calls} calls over {version} are not enough"),
        }
        let at = mounted.at.clone();
        drop(mounted);
        fs::remove_dir(at).unwrap();
    }
    world.end();
}

#[test]
fn changes_of_another_machine_are_seen_at_once() {
    let Some(world) = World::new("changes_of_another_machine_are_seen_at_once", "tcp", "&vers=4.2") else { return };
    let other = world.another("rdma", "&vers=4.1");
    for (number, (mine, theirs)) in
        [(&world.at, &other.at), (&other.at, &world.at)].into_iter().cycle().take(12).enumerate()
    {
        let (name, data) = (format!("file-{number}"), pattern(100_000 + number));
        let (mine, theirs) = (mine.join(&name), theirs.join(&name));
        fs::write(&theirs, &data).unwrap();
        // To the server, the file was closed there long ago.
        let mut open = File::open(&mine).unwrap();
        for _ in 0..3 {
            assert!(fs::read(&mine).unwrap() == data);
        }
        let mut read = Vec::new();
        open.read_to_end(&mut read).unwrap();
        assert!(read == data);
        match number % 6 {
            // Overwritten in place, so the size is the same.
            0 | 1 => {
                OpenOptions::new().write(true).open(&theirs).unwrap().write_all_at(b"other", 50_000).unwrap();
                let expected = [&data[..50_000], b"other", &data[50_005..]].concat();
                assert!(fs::read(&mine).unwrap() == expected);
                // An open file shows the change, too: its pages were dropped with the delegation.
                open.rewind().unwrap();
                let mut read = Vec::new();
                open.read_to_end(&mut read).unwrap();
                assert!(read == expected);
            }
            2 | 3 => {
                fs::set_permissions(&theirs, fs::Permissions::from_mode(0o600)).unwrap();
                OpenOptions::new().write(true).open(&theirs).unwrap().set_len(7).unwrap();
                let meta = mine.metadata().unwrap();
                assert_eq!((meta.len(), meta.mode() & 0o777), (7, 0o600));
                assert_eq!(fs::read(&mine).unwrap(), &data[..7]);
            }
            _ => {
                fs::write(theirs.with_extension("new"), "new").unwrap();
                fs::rename(theirs.with_extension("new"), &theirs).unwrap();
                assert_eq!(fs::read(&mine).unwrap(), b"new");
                fs::remove_file(&theirs).unwrap();
                assert!(!mine.exists());
            }
        }
    }
    drop(other);
    world.end();
}

#[test]
fn changes_of_this_machine_are_seen() {
    let Some(world) = World::new("changes_of_this_machine_are_seen", "tcp", "&vers=4.2") else { return };
    let at = |name: &str| world.at.join(name);
    fs::write(at("one"), "content").unwrap();
    fs::hard_link(at("one"), at("two")).unwrap();
    for _ in 0..3 {
        assert_eq!(
            (fs::read(at("one")).unwrap(), fs::read(at("two")).unwrap()),
            (b"content".into(), b"content".into())
        );
        assert_eq!((at("one").metadata().unwrap().nlink(), at("two").metadata().unwrap().nlink()), (2, 2));
    }
    fs::remove_file(at("two")).unwrap();
    assert_eq!(at("one").metadata().unwrap().nlink(), 1);
    fs::rename(at("one"), at("three")).unwrap();
    assert!(!at("one").exists() && fs::read(at("three")).unwrap() == b"content");
    fs::write(at("one"), "another").unwrap();
    assert!(fs::read(at("one")).unwrap() == b"another" && fs::read(at("three")).unwrap() == b"content");
    let mut file = OpenOptions::new().read(true).append(true).open(at("three")).unwrap();
    for length in 8..20 {
        file.write_all(b"+").unwrap();
        assert_eq!((file.metadata().unwrap().len(), at("three").metadata().unwrap().len()), (length, length));
        assert_eq!(fs::read(at("three")).unwrap().len() as u64, length);
    }
    file.set_len(3).unwrap();
    assert_eq!(fs::read(at("three")).unwrap(), b"con");
    drop(file);
    world.end();
}

/// Checks close-to-open consistency with two machines that alternately write files, and others that read: a read
/// returns data that were closed before the open.
#[test]
fn reads_are_never_older_than_the_last_close() {
    const FILES: usize = 6;
    const TIMES: u64 = 40;
    let Some(world) = World::new("reads_are_never_older_than_the_last_close", "tcp", "&vers=4.2") else {
        return;
    };
    let other = world.another("tcp", "&vers=4.2");
    let sides = [&world.at, &other.at];
    let path = |side: usize, file: usize| sides[side].join(format!("file-{file}"));
    let closed: [AtomicU64; FILES] = Default::default();
    // Two pages, of which the second has the same value as the first.
    let write = |side: usize, file: usize, value: u64| {
        let at = OpenOptions::new().write(true).create(true).truncate(false).open(path(side, file)).unwrap();
        at.write_all_at(&value.to_be_bytes().repeat(1024), 0).unwrap();
        drop(at);
        closed[file].store(value, SeqCst);
    };
    (0..FILES).for_each(|file| write(file % 2, file, 1));
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        let looks = |side: usize| {
            let (closed, over) = (&closed, &over);
            scope.spawn(move || {
                let mut seen = 0u64;
                while !over.load(SeqCst) {
                    for (file, closed) in closed.iter().enumerate() {
                        let least = closed.load(SeqCst);
                        let data = fs::read(path(side, file)).unwrap();
                        let (words, _) = data.as_chunks::<8>();
                        let oldest = words.iter().map(|word| u64::from_be_bytes(*word)).min().unwrap();
                        assert!(oldest >= least, "{oldest} was read after {least} had been closed");
                        seen += 1;
                    }
                }
                seen
            })
        };
        let looking = [looks(0), looks(1)];
        for value in 2..TIMES {
            // Some files are written often, others rarely, and are delegated again meanwhile.
            for file in (0..FILES).filter(|file| value % (1 << file) == 0) {
                write((value as usize + file) % 2, file, value);
            }
        }
        over.store(true, SeqCst);
        for looked in looking {
            assert!(looked.join().unwrap() > 0);
        }
    });
    drop(other);
    world.end();
}

#[test]
fn an_open_sees_a_file_that_another_machine_has_replaced_or_changed() {
    for query in ["", "&vers=4.0", "&vers=4.2"] {
        let test = "an_open_sees_a_file_that_another_machine_has_replaced_or_changed";
        let Some(world) = World::new(test, "tcp", query) else { return };
        // Names and attributes are cached for longer than the test takes, so only an open revalidates them.
        let at = world.directory.path().join("caching");
        fs::create_dir(&at).unwrap();
        let url = [&world.server.url("tcp", ""), query].concat();
        let mut mount = mount_with(&CACHED, &url, &at);
        let other = world.another("tcp", query);
        let (here, there) = (at.join("file"), other.at.join("file"));
        fs::write(&there, "0").unwrap();
        for turn in 1..20 {
            let before = fs::read_to_string(&here).unwrap();
            assert_eq!(before.len(), turn, "{query}");
            let after = before + "x";
            if turn % 2 == 0 {
                fs::write(other.at.join("new"), &after).unwrap();
                fs::rename(other.at.join("new"), &there).unwrap();
            } else {
                fs::write(&there, &after).unwrap();
            }
            // Over version 4, a cached name refers to the old file while it exists; after its removal, the name is
            // looked up again.
            assert_eq!(fs::read_to_string(&here).unwrap(), after, "{turn}, {query}");
        }
        rustix::process::kill_process(rustix::process::Pid::from_child(&mount), rustix::process::Signal::TERM).unwrap();
        assert!(wait(&mut mount).success());
        drop(other);
        world.end();
    }
}
