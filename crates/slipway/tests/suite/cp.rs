//! Tests of `slipway cp`: temporary names, signals, and skipped or replaced files.

use std::{
    fs,
    os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink},
    path::{Path, PathBuf},
    process::{Child, Stdio},
    time::{Duration, SystemTime},
};

use rustix::process::{Pid, Signal, kill_process};

use crate::common::{Server, command, fails, finish, lines, metered::Metered, ok, run, stderr, until};

/// Returns the temporary files in a directory.
fn temporaries(dir: &Path) -> Vec<PathBuf> {
    let paths = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    paths.filter(|path| path.file_name().unwrap().to_str().unwrap().starts_with(".copy.slipway-")).collect()
}

/// A copy over an existing file that is blocked in the middle, because the server's replies do not arrive.
struct Stuck {
    child: Child,
    target: PathBuf,
    _dir: tempfile::TempDir,
    _server: Server,
}

impl Stuck {
    /// Copies to the server if `to_server`, else from it.
    fn new(to_server: bool) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let (served, local) = (dir.path().join("served"), dir.path().join("local"));
        [&served, &local].into_iter().for_each(|dir| fs::create_dir(dir).unwrap());
        let (from, to) = if to_server { (&local, &served) } else { (&served, &local) };
        fs::write(from.join("file"), vec![7; 32 << 20]).unwrap();
        let target = to.join("copy");
        fs::write(&target, "old").unwrap();
        let server = Server::dir(&served, &dir.path().join("state"));
        let metered = Metered::before(server.port("tcp"));
        let url = |path| {
            let url = server.url("tcp", path);
            url.replacen(&format!(":{}", server.port("tcp")), &format!(":{}", metered.port), 1) + "&timeo=600s"
        };
        let args = if to_server {
            [local.join("file").to_str().unwrap().to_owned(), url("/copy")]
        } else {
            [url("/file"), target.to_str().unwrap().to_owned()]
        };
        let child = command(&["cp", &args[0], &args[1]]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        // Allow a little more at a time, until some of the data have been written. The rest never arrives.
        until("data are written", || {
            metered.allow(if to_server { 100 } else { 64 << 10 });
            let some = |path: &PathBuf| path.metadata().is_ok_and(|meta| meta.len() > 0);
            temporaries(to).iter().any(some) || fs::read(&target).unwrap() != b"old"
        });
        Self { child, target, _dir: dir, _server: server }
    }

    fn temporaries(&self) -> Vec<PathBuf> {
        temporaries(self.target.parent().unwrap())
    }

    /// Sends a signal. Returns the exit code.
    fn end(&mut self, signal: Signal) -> Option<i32> {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
        crate::common::wait(&mut self.child).code()
    }
}

#[test]
fn a_killed_copy_leaves_no_partial_file_under_the_final_name() {
    for to_server in [true, false] {
        let mut stuck = Stuck::new(to_server);
        assert_eq!(stuck.end(Signal::KILL), None);
        assert_eq!(fs::read(&stuck.target).unwrap(), b"old", "to the server: {to_server}");
        assert_eq!(stuck.temporaries().len(), 1);
    }
}

#[test]
fn a_signal_ends_a_copy_with_its_code_and_removes_the_temporary_file() {
    for to_server in [true, false] {
        for (signal, code) in [(Signal::INT, 130), (Signal::TERM, 143)] {
            let mut stuck = Stuck::new(to_server);
            assert_eq!(stuck.end(signal), Some(code), "to the server: {to_server}");
            // The server may still be processing requests that it has received.
            until("the temporary file is removed", || stuck.temporaries().is_empty());
            assert_eq!(fs::read(&stuck.target).unwrap(), b"old");
        }
    }
}

#[test]
fn a_failed_copy_removes_the_temporary_file() {
    let server = Server::everywhere(&["--memory", "1M", "--squash", "none"]);
    let dir = tempfile::tempdir().unwrap();
    let large = dir.path().join("large");
    fs::write(&large, vec![1; 4 << 20]).unwrap();
    for transport in ["tcp", "rdma"] {
        let said = fails(1, &["cp", large.to_str().unwrap(), &server.url(transport, "/copy")]);
        assert!(said.contains("/copy:") && !said.contains(".slipway-"), "{said}");
        assert_eq!(ok(&["ls", "-a", &server.url(transport, "")]).matches("copy").count(), 0, "{transport}");
    }
}

#[test]
fn a_replaced_file_keeps_its_mode_and_its_other_names_keep_the_old_data() {
    let dir = tempfile::tempdir().unwrap();
    let (served, local) = (dir.path().join("served"), dir.path().join("local"));
    [&served, &local].into_iter().for_each(|dir| fs::create_dir(dir).unwrap());
    let server = Server::dir(&served, &dir.path().join("state"));
    let source = dir.path().join("source");
    fs::write(&source, "new").unwrap();
    for vers in ["3", "4.2"] {
        let url = |path| server.url("tcp", path).replace("?proto", &format!("?vers={vers}&proto"));
        for at in [&served, &local] {
            let copy = at.join("copy");
            fs::write(at.join("other"), "old").unwrap();
            fs::set_permissions(at.join("other"), fs::Permissions::from_mode(0o604)).unwrap();
            let _ = fs::remove_file(&copy);
            fs::hard_link(at.join("other"), &copy).unwrap();
            if at == &served {
                ok(&["cp", source.to_str().unwrap(), &url("/copy")]);
            } else {
                ok(&["cp", &url("/copy"), copy.to_str().unwrap()]);
            }
            assert_eq!(fs::read(&copy).unwrap(), b"new");
            assert_eq!(fs::read(at.join("other")).unwrap(), b"old");
            let meta = copy.metadata().unwrap();
            assert_eq!((meta.mode() & 0o7777, meta.nlink()), (0o604, 1), "{vers}");
            assert!(temporaries(at).is_empty());
        }
        // A version 4.2 server makes the copy.
        ok(&["cp", &url("/copy"), &url("/other")]);
        assert_eq!(fs::read(served.join("other")).unwrap(), b"new");
    }
    // The target of a local link is replaced, and the link stays.
    symlink("copy", local.join("link")).unwrap();
    fs::write(served.join("copy"), "newer").unwrap();
    ok(&["cp", &server.url("tcp", "/copy"), local.join("link").to_str().unwrap()]);
    assert_eq!(fs::read_link(local.join("link")).unwrap(), Path::new("copy"));
    assert_eq!(fs::read(local.join("copy")).unwrap(), b"newer");
}

#[test]
fn special_files_are_written_in_place() {
    let dir = tempfile::tempdir().unwrap();
    let (source, pipe) = (dir.path().join("source"), dir.path().join("pipe"));
    let file = fs::File::create(&source).unwrap();
    file.write_all_at(b"middle", 1 << 20).unwrap();
    file.set_len(2 << 20).unwrap();
    let content = fs::read(&source).unwrap();
    let server = Server::memory();
    ok(&["cp", source.to_str().unwrap(), &server.url("tcp", "/file")]);
    let output = run(&["cp", &server.url("tcp", "/file"), "/dev/stdout"]);
    assert!(output.status.success() && output.stdout == content, "{}", stderr(&output));
    rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
    let copy = command(&["cp", source.to_str().unwrap(), pipe.to_str().unwrap()])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    assert!(fs::read(&pipe).unwrap() == content);
    let output = finish(copy);
    assert!(output.status.success(), "{}", stderr(&output));
}

#[test]
fn update_skips_files_of_the_same_size_that_are_not_older() {
    let dir = tempfile::tempdir().unwrap();
    let source = dir.path().join("source");
    fs::create_dir(&source).unwrap();
    fs::write(source.join("a"), "one").unwrap();
    fs::write(source.join("b"), "two").unwrap();
    let server = Server::memory();
    let (url, back) = (server.url("tcp", "/copy"), dir.path().join("back"));
    let (source, back) = (source.to_str().unwrap(), back.to_str().unwrap());
    ok(&["mkdir", &url]);
    fs::create_dir(back).unwrap();
    // Copies in both directions, by name: files copied, files skipped, and bytes.
    let copy = |expected: [u64; 3]| {
        let there = ["a", "b"].map(|name| format!("{source}/{name}"));
        let here = ["a", "b"].map(|name| server.url("tcp", &format!("/copy/{name}")));
        for (from, to) in [(there, &url[..]), (here, back)] {
            let done = &lines(&ok(&["cp", "-pu", "--json", &from[0], &from[1], to]))[0];
            assert_eq!(["files", "skipped", "bytes"].map(|key| done[key].as_u64().unwrap()), expected, "to {to}");
        }
    };
    copy([2, 0, 6]);
    copy([0, 2, 0]);
    // A newer file of the same size.
    let a = Path::new(source).join("a");
    let later = SystemTime::now() + Duration::from_secs(100);
    fs::write(&a, "ONE").unwrap();
    fs::File::options().write(true).open(&a).unwrap().set_modified(later).unwrap();
    copy([1, 1, 3]);
    assert_eq!(fs::read_to_string(Path::new(back).join("a")).unwrap(), "ONE");
    // An older file of another size.
    fs::write(&a, "longer").unwrap();
    fs::File::options().write(true).open(&a).unwrap().set_modified(SystemTime::UNIX_EPOCH).unwrap();
    copy([1, 1, 6]);
    assert_eq!(fs::read_to_string(Path::new(back).join("a")).unwrap(), "longer");
}
