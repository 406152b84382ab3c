//! Tests of the state directory: for one server at a time, complete and undamaged, or rejected; and full for a while.

use crate::common;
use std::{
    fs,
    io::{BufRead, BufReader},
    os::unix::{
        fs::{PermissionsExt, symlink},
        process::CommandExt,
    },
    path::{Path, PathBuf},
    process::{ChildStderr, Command, Stdio},
    time::{Duration, Instant},
};

use crate::common::{PATIENCE, Server, command, fails, finish, ok, run, stderr};
use rustix::process::Signal;

/// A served directory, and its state directory, which has been used.
struct Place {
    dir: tempfile::TempDir,
}

impl Place {
    fn new() -> Self {
        let place = Self { dir: tempfile::tempdir().unwrap() };
        fs::create_dir(place.at("served")).unwrap();
        fs::write(place.at("served/file"), "content").unwrap();
        place.start(&[]).stop();
        place
    }

    fn at(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn state(&self, name: &str) -> PathBuf {
        self.at("state").join(name)
    }

    fn args<'a>(&'a self, more: &[&'a str]) -> Vec<String> {
        let (state, served) = (self.at("state"), self.at("served"));
        let args = ["--listen", "tcp://127.0.0.1:0", "--state-dir", state.to_str().unwrap(), served.to_str().unwrap()];
        args.iter().chain(more).map(|arg| (*arg).to_owned()).collect()
    }

    fn start(&self, more: &[&str]) -> Server {
        Server::start(&self.args(more))
    }

    /// Returns the message of a server that must not start.
    fn refused(&self, more: &[&str]) -> String {
        let args = [vec!["serve".to_owned(), "--rpcbind".to_owned(), "off".to_owned()], self.args(more)].concat();
        fails(2, &args)
    }
}

#[test]
fn a_state_directory_is_for_one_server_at_a_time() {
    let place = Place::new();
    let server = place.start(&[]);
    let said = place.refused(&[]);
    let pid = format!("process {}", server.child.id());
    assert!(said.contains("another server") && said.contains(&pid), "{said}");
    // A server with only memory exports cannot share it either, because it would replace the socket.
    let state = place.at("state");
    let memory = ["serve", "--memory", "1M", "--rpcbind", "off", "--listen", "tcp://127.0.0.1:0", "--state-dir"];
    let said = fails(2, &[&memory[..], &[state.to_str().unwrap()]].concat());
    assert!(said.contains("another server"), "{said}");
    assert_eq!(place.refused(&["--recovery", "reset"]), place.refused(&[]), "a reset must not override the lock");
    ok(&["clients", "--state-dir", state.to_str().unwrap()]);
    server.stop();
    place.start(&[]).stop();
}

#[test]
fn a_lost_state_file_is_rejected_and_reset_once() {
    type Break = fn(&Path);
    let remove: Break = |path| fs::remove_file(path).unwrap();
    let empty: Break = |path| fs::write(path, "").unwrap();
    let garble: Break = |path| fs::write(path, vec![b'x'; 5000]).unwrap();
    let directory: Break = |path| {
        fs::remove_file(path).unwrap();
        fs::create_dir(path).unwrap();
    };
    for name in ["recovery.redb", "handle.key"] {
        for (number, break_it) in [remove, empty, garble, directory].into_iter().enumerate() {
            let place = Place::new();
            break_it(&place.state(name));
            let said = place.refused(&[]);
            let path = place.state(name);
            let parts = [path.to_str().unwrap(), "slipway serve … --recovery=reset"];
            assert!(parts.iter().all(|part| said.contains(part)), "{name}, {number}: {said}");
            assert_eq!(said, place.refused(&[]), "{name}, {number}: the server must refuse to start each time");

            let server = place.start(&["--recovery", "reset"]);
            assert_eq!(ok(&["cat", &server.url("tcp", "/file")]), "content");
            let said = server.stop();
            assert!(said.contains("a state file is lost"), "{name}, {number}: {said}");
            place.start(&[]).stop();
            let said = place.start(&["--recovery", "reset"]).stop();
            assert!(!said.contains("a state file is lost"), "{name}, {number}: intact files must be kept: {said}");
        }
    }
}

#[test]
fn foreign_ownership_is_rejected_with_the_command_that_repairs_it() {
    let place = Place::new();
    let mode = |path: PathBuf, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    mode(place.at("state"), 0o777);
    let said = place.refused(&[]);
    assert!(said.contains(&format!("chmod go-w {}", place.at("state").display())), "{said}");
    mode(place.at("state"), 0o700);
    for (name, wrong) in [("handle.key", 0o640), ("recovery.redb", 0o620), ("lock", 0o602)] {
        mode(place.state(name), wrong);
        let said = place.refused(&["--recovery", "reset"]);
        assert!(said.contains(&format!("chmod 600 {}", place.state(name).display())), "{said}");
        mode(place.state(name), 0o600);
    }
    if rustix::process::geteuid().is_root() {
        for name in ["", "handle.key", "recovery.redb", "lock"] {
            std::os::unix::fs::chown(place.state(name), Some(1), None).unwrap();
            let said = place.refused(&[]);
            assert!(said.contains("chown 0 "), "{name}: {said}");
            std::os::unix::fs::chown(place.state(name), Some(0), None).unwrap();
        }
    }
    for name in ["handle.key", "recovery.redb", "lock"] {
        fs::rename(place.state(name), place.at("moved")).unwrap();
        symlink(place.at("moved"), place.state(name)).unwrap();
        let said = place.refused(&[]);
        assert!(said.contains("symbolic link"), "{name}: {said}");
        fs::rename(place.at("moved"), place.state(name)).unwrap();
    }
    place.start(&[]).stop();
}

/// A server of an ordinary user has a handle database.
#[test]
fn a_lost_handle_database_is_rejected() {
    if !rustix::process::geteuid().is_root() {
        return eprintln!("skipped: needs root to change the user");
    }
    let place = Place { dir: tempfile::tempdir().unwrap() };
    fs::create_dir(place.at("served")).unwrap();
    for dir in [place.dir.path().to_owned(), place.at("served")] {
        std::os::unix::fs::chown(dir, Some(1), Some(1)).unwrap();
    }
    let serve = |more: &[&str]| {
        let mut command = command(&["serve", "--json", "--rpcbind", "off", "--until-eof"]);
        command.args(place.args(more)).uid(1).gid(1).stdout(Stdio::piped()).stderr(Stdio::piped());
        // Standard input is empty, so a server that starts ends at once.
        finish(command.spawn().unwrap())
    };
    assert!(serve(&[]).status.success(), "{}", stderr(&serve(&[])));
    let handles = || {
        let entries = fs::read_dir(place.at("state")).unwrap().map(|entry| entry.unwrap().path());
        entries.filter(|path| path.to_str().unwrap().contains("/handles-")).collect::<Vec<_>>()
    };
    let [path] = &handles()[..] else { panic!("{:?}", handles()) };
    for break_it in [(|path| fs::remove_file(path).unwrap()) as fn(&Path), |path| fs::write(path, "none").unwrap()] {
        break_it(path);
        let refused = serve(&[]);
        let said = stderr(&refused);
        assert_eq!(refused.status.code(), Some(2), "{said}");
        assert!(said.contains(path.to_str().unwrap()) && said.contains("--recovery=reset"), "{said}");
        assert!(serve(&["--recovery", "reset"]).status.success());
        assert!(serve(&[]).status.success());
    }
}

#[test]
fn a_restart_does_not_wait_for_clients_that_have_ended() {
    let place = Place::new();
    // A grace period would be longer than the test waits.
    let options = ["--lease", "3600", "--squash", "none"];
    for _ in 0..2 {
        let server = place.start(&options);
        ok(&["cp", place.at("served/file").to_str().unwrap(), &format!("{}&vers=4.1", server.url("tcp", "/copy"))]);
        server.stop();
    }
}

#[test]
fn only_the_socket_of_a_killed_server_is_replaced() {
    let place = Place::new();
    let state = place.at("state");
    let ask = ["clients", "--state-dir", state.to_str().unwrap()];
    let mut server = place.start(&[]);
    server.child.kill().unwrap();
    server.child.wait().unwrap();
    assert!(place.state("admin.sock").exists());
    let server = place.start(&[]);
    ok(&ask);
    server.stop();
    fs::write(place.at("precious"), "precious").unwrap();
    symlink(place.at("precious"), place.state("admin.sock")).unwrap();
    let said = place.start(&[]).stop();
    assert!(said.contains("it is not a socket: remove it"), "{said}");
    assert_eq!(fs::read_to_string(place.at("precious")).unwrap(), "precious");
}

#[test]
fn ready_file_does_not_follow_links_and_is_not_writable_by_others() {
    let place = Place::new();
    let (ready, precious) = (place.at("ready"), place.at("precious"));
    fs::write(&precious, "precious").unwrap();
    symlink(&precious, &ready).unwrap();
    let server = place.start(&["--ready-file", ready.to_str().unwrap()]);
    assert_eq!(fs::read_to_string(&precious).unwrap(), "precious");
    let metadata = fs::symlink_metadata(&ready).unwrap();
    assert!(metadata.is_file() && metadata.permissions().mode() & 0o022 == 0, "{metadata:?}");
    server.stop();
}

/// A tmpfs, which is unmounted when it is dropped.
struct Tmpfs(PathBuf);

impl Tmpfs {
    fn mount(path: PathBuf) -> Option<Self> {
        fs::create_dir(&path).unwrap();
        let mounted =
            Command::new("mount").args(["-t", "tmpfs", "-o", "size=8m,mode=700", "tmpfs"]).arg(&path).output();
        mounted.is_ok_and(|output| output.status.success()).then_some(Self(path))
    }

    /// Fills the file system.
    fn fill(&self) {
        let mut file = fs::File::create(self.0.join("filler")).unwrap();
        let error = std::io::copy(&mut std::io::repeat(1), &mut file).unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::StorageFull);
    }

    fn make_room(&self) {
        fs::remove_file(self.0.join("filler")).unwrap();
    }
}

impl Drop for Tmpfs {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

/// Waits until the server's report of the recovery database matches.
fn await_report(server: &Server, errors: &mut BufReader<ChildStderr>, mut is: impl FnMut(&str) -> bool) {
    let end = Instant::now() + PATIENCE;
    loop {
        server.signal(Signal::USR1);
        let mut line = String::new();
        while !line.starts_with("recovery database:") {
            line.clear();
            assert_ne!(errors.read_line(&mut line).unwrap(), 0, "the server must continue");
        }
        if is(&line) {
            return;
        }
        assert!(Instant::now() < end, "{line}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn a_full_state_directory_delays_only_new_clients() {
    let place = Place { dir: tempfile::tempdir().unwrap() };
    fs::create_dir(place.at("served")).unwrap();
    fs::write(place.at("served/file"), "content").unwrap();
    let Some(state) = Tmpfs::mount(place.at("state")) else {
        return eprintln!("skipped: a tmpfs cannot be mounted here");
    };
    let mut server = place.start(&["--squash", "none"]);
    let mut errors = BufReader::new(server.child.stderr.take().unwrap());
    let v4 = |path: &str| format!("{}&vers=4.2&timeo=600s", server.url("tcp", path));
    // Free space within the database would be enough for some clients.
    state.fill();
    let source = place.at("source");
    fs::write(&source, "new").unwrap();
    let mut copies = Vec::new();
    await_report(&server, &mut errors, |line| {
        if copies.len() < 64 {
            let name = format!("/copy-{}", copies.len());
            let copy = command(&["cp", source.to_str().unwrap(), &v4(&name)]);
            copies.push({ copy }.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap());
        }
        line.contains("cannot be written") && !line.contains(" 0 requests")
    });
    // NFSv3, and operations without an open, continue.
    assert_eq!(ok(&["cat", &server.url("tcp", "/file")]), "content");
    assert!(ok(&["ls", &v4("")]).contains("file"));
    assert!(copies.iter_mut().any(|copy| copy.try_wait().unwrap().is_none()), "a client must wait");
    state.make_room();
    for (number, copy) in copies.into_iter().enumerate() {
        let output = finish(copy);
        assert!(output.status.success(), "copy {number}: {}", stderr(&output));
    }
    await_report(&server, &mut errors, |line| line.contains("database: ok"));
    assert!(run(&["cat", &v4("/copy-0")]).status.success());
    server.signal(Signal::TERM);
    assert!(common::wait(&mut server.child).success());
}
