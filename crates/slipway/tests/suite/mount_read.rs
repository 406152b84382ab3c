//! Tests of `slipway mount`: the requests of long reads.

use std::{
    fs::{self, File, OpenOptions},
    io::Read,
    os::unix::fs::OpenOptionsExt,
    path::Path,
};

use rustix::process::Signal;

use crate::common::{
    lines,
    mounted::{World, pattern},
    ok, until,
};

#[test]
fn parts_of_a_long_read_are_sent_at_once() {
    let Some(world) = World::new("parts_of_a_long_read_are_sent_at_once", "tcp", "&timeo=3600s") else { return };
    let data = pattern(2 << 20);
    fs::write(world.served.join("file"), &data).unwrap();
    let mut file = OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(world.at.join("file")).unwrap();
    world.server.pause();
    let read = std::thread::spawn(move || {
        let mut read = vec![0; 1 << 20];
        file.read_exact(&mut read).unwrap();
        read
    });
    until("four parts of 256 KiB must wait", || operations(&world.at) == Some(4));
    world.server.signal(Signal::CONT);
    assert!(read.join().unwrap() == data[..1 << 20]);
    world.end();
}

#[test]
fn parts_of_the_read_ahead_are_sent_at_once() {
    let Some(world) = World::new("parts_of_the_read_ahead_are_sent_at_once", "tcp", "&timeo=3600s") else { return };
    let data = pattern(2 << 20);
    fs::write(world.served.join("file"), &data).unwrap();
    let mut file = File::open(world.at.join("file")).unwrap();
    world.server.pause();
    let read = std::thread::spawn(move || {
        let mut read = vec![0; 1 << 20];
        file.read_exact(&mut read).unwrap();
        read
    });
    until("two parts of 256 KiB must wait", || operations(&world.at) == Some(2));
    world.server.signal(Signal::CONT);
    assert!(read.join().unwrap() == data[..1 << 20]);
    world.end();
}

#[test]
fn a_long_read_without_a_page_cache_is_not_divided() {
    let test = "a_long_read_without_a_page_cache_is_not_divided";
    let Some(world) = World::new(test, "tcp", "") else { return };
    let data = pattern(1 << 20);
    fs::write(world.served.join("file"), &data).unwrap();
    let (counted, mounted) = world.counted_with("direct", "", &["--direct-io"]);
    let (mut file, mut read) = (File::open(mounted.at.join("file")).unwrap(), vec![0; 1 << 20]);
    let before = counted.calls();
    file.read_exact(&mut read).unwrap();
    // A request has at most 256 pages, and memory that does not start at the start of a page has one more.
    let calls = counted.calls() - before;
    assert!(calls <= 2, "{calls} calls");
    assert!(read == data);
    drop(file);
    mounted.end();
    world.end();
}

/// Returns the number of operations of a mount that wait for the server.
fn operations(at: &Path) -> Option<u64> {
    let status = ok(&["mount", &format!("--status={}", at.display()), "--json"]);
    lines(&status).remove(0)["waits"][0]["operations"].as_u64()
}
