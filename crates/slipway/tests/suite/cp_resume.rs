//! Tests of `slipway cp --resume`: interrupted copies are continued, and never with data of another source.

use std::{
    fs,
    os::unix::fs::{FileExt, MetadataExt},
    path::{Path, PathBuf},
    process::{Child, Stdio},
};

use rustix::process::{Pid, Signal, kill_process};

use crate::common::{Server, command, fails, lines, metered::Metered, mounted::pattern, ok, until, wait};

const LEN: usize = 40 << 20;
/// The data are made durable and recorded after as many bytes.
const CHECKPOINT: u64 = 16 << 20;

/// A source and a target, one of them on a server.
struct World {
    server: Server,
    to_server: bool,
    query: &'static str,
    from: PathBuf,
    to: PathBuf,
    _dir: tempfile::TempDir,
}

impl World {
    fn new(to_server: bool, query: &'static str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let (served, local) = (dir.path().join("served"), dir.path().join("local"));
        [&served, &local].into_iter().for_each(|dir| fs::create_dir(dir).unwrap());
        let server = Server::dir(&served, &dir.path().join("state"));
        let (from, to) = if to_server { (local, served) } else { (served, local) };
        Self { server, to_server, query, from, to, _dir: dir }
    }

    /// Returns the source and the target of a copy, with the server at this port.
    fn paths(&self, source: &str, target: &str, port: u16) -> [String; 2] {
        let url = |path: &str| {
            let url = self.server.url("tcp", &format!("/{path}"));
            url.replacen(&format!(":{}", self.server.port("tcp")), &format!(":{port}"), 1) + "&timeo=600s" + self.query
        };
        let local = |dir: &Path, path: &str| dir.join(path).to_str().unwrap().to_owned();
        match self.to_server {
            true => [local(&self.from, source), url(target)],
            false => [url(source), local(&self.to, target)],
        }
    }

    /// Copies until some data are recorded, and interrupts the copy by a signal. The records and the temporary files
    /// are in `dir`.
    fn interrupt(&self, args: &[&str], (source, target): (&str, &str), dir: &Path, signal: Signal) {
        let metered = Metered::before(self.server.port("tcp"));
        let paths = self.paths(source, target, metered.port);
        let args = [&["cp", "--resume"], args, &[&paths[0], &paths[1]]].concat();
        let mut child: Child = command(&args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        until("data are recorded", || {
            metered.allow(if self.to_server { 500 } else { 512 << 10 });
            remains(dir).iter().any(|path| is_record(path) && path.metadata().is_ok_and(|meta| meta.len() > 0))
        });
        if signal == Signal::INT {
            metered.allow(u64::MAX / 2);
        }
        kill_process(Pid::from_child(&child), signal).unwrap();
        wait(&mut child);
        assert_eq!(remains(dir).len(), 2, "the temporary file and the record must stay");
    }

    /// Continues the copy, which must succeed. Returns the numbers of files, skipped files and bytes.
    fn resume(&self, args: &[&str], source: &str, target: &str) -> [u64; 3] {
        let paths = self.paths(source, target, self.server.port("tcp"));
        let said = ok(&[&["cp", "--resume", "--json"], args, &[&paths[0], &paths[1]]].concat());
        let done = &lines(&said)[0];
        ["files", "skipped", "bytes"].map(|key| done[key].as_u64().unwrap())
    }
}

/// Returns what interrupted copies have left in a directory.
fn remains(dir: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(dir) else { return Vec::new() };
    let paths = entries.flatten().map(|entry| entry.path());
    paths.filter(|path| path.file_name().unwrap().to_str().unwrap().contains(".slipway-")).collect()
}

fn is_record(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "record")
}

#[test]
fn a_killed_copy_is_continued_behind_the_recorded_data() {
    for (to_server, query) in [(true, "&vers=3"), (true, "&vers=4.2"), (false, "&vers=3"), (false, "&vers=4.2")] {
        let world = World::new(to_server, query);
        fs::write(world.from.join("file"), pattern(LEN)).unwrap();
        fs::write(world.to.join("copy"), "old").unwrap();
        world.interrupt(&[], ("file", "copy"), &world.to, Signal::KILL);
        assert_eq!(fs::read(world.to.join("copy")).unwrap(), b"old");
        let [files, _, bytes] = world.resume(&[], "file", "copy");
        assert!(files == 1 && bytes <= LEN as u64 - CHECKPOINT, "{bytes} bytes, to the server: {to_server}{query}");
        assert!(fs::read(world.to.join("copy")).unwrap() == pattern(LEN));
        assert!(remains(&world.to).is_empty());
    }
}

#[test]
fn a_signal_keeps_all_that_was_copied() {
    for to_server in [true, false] {
        let world = World::new(to_server, "");
        fs::write(world.from.join("file"), pattern(LEN)).unwrap();
        world.interrupt(&[], ("file", "copy"), &world.to, Signal::INT);
        let [_, _, bytes] = world.resume(&[], "file", "copy");
        assert!(bytes <= LEN as u64 - CHECKPOINT, "{bytes} bytes");
        assert!(fs::read(world.to.join("copy")).unwrap() == pattern(LEN) && remains(&world.to).is_empty());
    }
}

#[test]
fn a_changed_source_or_file_is_copied_again() {
    /// Changes something after the interruption.
    type Change = fn(&World);
    let changes: [(&str, Change); 4] = [
        ("the source, with the same size and time", |world| {
            let path = world.from.join("file");
            let time = path.metadata().unwrap().modified().unwrap();
            let file = fs::File::options().write(true).open(&path).unwrap();
            file.write_all_at(b"other", 5).unwrap();
            file.set_modified(time).unwrap();
        }),
        ("the temporary file, replaced", |world| {
            let temporary = remains(&world.to).into_iter().find(|path| !is_record(path)).unwrap();
            fs::write(temporary.with_extension("new"), vec![9; LEN]).unwrap();
            fs::rename(temporary.with_extension("new"), temporary).unwrap();
        }),
        ("the temporary file, truncated", |world| {
            let temporary = remains(&world.to).into_iter().find(|path| !is_record(path)).unwrap();
            fs::File::options().write(true).open(temporary).unwrap().set_len(CHECKPOINT - 1).unwrap();
        }),
        ("the last recorded data", |world| {
            let temporary = remains(&world.to).into_iter().find(|path| !is_record(path)).unwrap();
            let file = fs::File::options().write(true).open(temporary).unwrap();
            (0..LEN as u64).step_by(32 << 10).for_each(|at| file.write_all_at(b"damaged", at).unwrap());
        }),
    ];
    for (what, change) in changes {
        let world = World::new(true, "");
        fs::write(world.from.join("file"), pattern(LEN)).unwrap();
        world.interrupt(&[], ("file", "copy"), &world.to, Signal::KILL);
        change(&world);
        assert_eq!(world.resume(&[], "file", "copy")[2], LEN as u64, "{what}");
        assert!(fs::read(world.to.join("copy")).unwrap() == fs::read(world.from.join("file")).unwrap(), "{what}");
        assert!(remains(&world.to).is_empty(), "{what}");
    }
}

#[test]
fn a_source_that_changes_during_the_copy_is_an_error() {
    let world = World::new(true, "");
    fs::write(world.from.join("file"), pattern(LEN)).unwrap();
    let metered = Metered::before(world.server.port("tcp"));
    let paths = world.paths("file", "copy", metered.port);
    let args = ["cp", "--resume", &paths[0], &paths[1]];
    let mut child = command(&args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    until("data are recorded", || {
        metered.allow(500);
        remains(&world.to).iter().any(|path| is_record(path))
    });
    fs::File::options().write(true).open(world.from.join("file")).unwrap().write_all_at(b"other", 5).unwrap();
    metered.allow(u64::MAX / 2);
    assert_eq!(wait(&mut child).code(), Some(1));
    assert!(!world.to.join("copy").exists());
    // The data that were copied are not trusted.
    assert_eq!(world.resume(&[], "file", "copy")[2], LEN as u64);
    assert!(fs::read(world.to.join("copy")).unwrap() == fs::read(world.from.join("file")).unwrap());
}

#[test]
fn holes_and_trees_are_continued() {
    for to_server in [true, false] {
        let world = World::new(to_server, "&vers=4.2");
        let tree = world.from.join("tree/sub");
        fs::create_dir_all(&tree).unwrap();
        fs::write(world.from.join("tree/small"), "small").unwrap();
        let file = fs::File::create(tree.join("large")).unwrap();
        // 34 MiB of data, a hole of 100 MiB, and some data.
        file.write_all_at(&pattern(34 << 20), 0).unwrap();
        file.write_all_at(b"behind the hole", 134 << 20).unwrap();
        file.set_len(160 << 20).unwrap();
        world.interrupt(&["-r", "-u"], ("tree", "tree"), &world.to.join("tree/sub"), Signal::KILL);
        until("the small file is complete", || {
            fs::read(world.to.join("tree/small")).is_ok_and(|data| data == b"small")
        });
        let [files, skipped, bytes] = world.resume(&["-r", "-u"], "tree", "");
        assert_eq!((files, skipped), (1, 1), "to the server: {to_server}");
        // Holes count as copied bytes.
        assert!(bytes <= (160 << 20) - CHECKPOINT, "{bytes} bytes, to the server: {to_server}");
        let copy = world.to.join("tree/sub/large");
        assert!(fs::read(&copy).unwrap() == fs::read(tree.join("large")).unwrap());
        assert!(copy.metadata().unwrap().blocks() * 512 < 60 << 20, "the hole must be kept");
        assert!(remains(&world.to.join("tree/sub")).is_empty());
    }
}

#[test]
fn a_failed_copy_keeps_the_recorded_data() {
    let server = Server::everywhere(&["--memory", "24M", "--squash", "none"]);
    let dir = tempfile::tempdir().unwrap();
    let large = dir.path().join("large");
    fs::write(&large, pattern(LEN)).unwrap();
    let (large, url) = (large.to_str().unwrap(), server.url("tcp", "/copy"));
    // There is no space: at first for all data, later for any more.
    for _ in 0..2 {
        let said = fails(1, &["cp", "--resume", large, &url]);
        assert!(said.contains("/copy:"), "{said}");
        let listed = ok(&["ls", "-a", &server.url("tcp", "")]);
        assert!(listed.contains(".record") && !listed.lines().any(|line| line.trim_end() == "copy"), "{listed}");
    }
}
