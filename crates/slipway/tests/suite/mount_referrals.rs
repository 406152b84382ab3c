//! Tests of `slipway mount` with a server that refers to another one: programs use the other server through the name.

use std::{
    fs::{self, File},
    io,
    os::unix::fs::{FileExt, MetadataExt, PermissionsExt},
    path::{Path, PathBuf},
    process::Stdio,
    thread,
    time::{Duration, Instant},
};

use crate::common::{
    PATIENCE, Server,
    mounted::{Mounted, World, can_mount, mount_saying, pattern},
    port::Port,
};
use rustix::{
    fs::{FlockOperation, XattrFlags, flock},
    io::Errno,
    process::Signal,
};

/// A mount of a server that has `/here`, and refers to another server for the rest: `/away` is a directory there,
/// `/here/inside` is memory, and `/twin` is `/here` of that server, which is the same directory with the same file
/// handles. No server has `/nowhere`.
struct Worlds {
    world: World,
    other: Server,
    /// The directory that the other server exports as `/away`.
    away: PathBuf,
    /// The file with the standard error of the mount.
    said: PathBuf,
    /// The port of a server for `/nowhere`.
    nowhere: Port,
    _ports: [Port; 2],
}

impl Worlds {
    fn new(test: &str, query: &str) -> Option<Self> {
        if !can_mount(test) {
            return None;
        }
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().canonicalize().unwrap();
        let [at, served, away] = ["mnt", "served", "away"].map(|name| path.join(name));
        for dir in [&at, &served, &away, &served.join("inside")] {
            fs::create_dir(dir).unwrap();
        }
        let [port, other_port, nowhere] = [0; 3].map(|_| Port::take());
        let here = export("/here", &served);
        // Both servers have the same handle key.
        serve(directory.path(), "first", &port, &here).stop();
        let states = ["first", "other"].map(|name| directory.path().join(name).join("state"));
        copy_state(&states[0], &states[1]);
        let text = format!("{here}{}{MEMORY}", export("/away", &away));
        let other = serve(directory.path(), "other", &other_port, &text);
        let referrals = [
            ("/away", place(&other_port, "/away")),
            ("/here/inside", place(&other_port, "/memory")),
            ("/twin", place(&other_port, "/here")),
            ("/nowhere", place(&nowhere, "/away")),
        ];
        let referrals = referrals.map(|(name, at)| format!("[[referral]]\nname = '{name}'\nlocations = ['{at}']\n"));
        let server = serve(directory.path(), "first", &port, &format!("{here}{}", referrals.concat()));
        let said = directory.path().join("said");
        let log = Stdio::from(File::create(&said).unwrap());
        let mount = mount_saying(&format!("nfs://{}/?{query}", port.address()), &at, log);
        let world = World { at, served, mount, server, directory };
        Some(Self { world, other, away, said, nowhere, _ports: [port, other_port] })
    }

    fn at(&self, path: &str) -> PathBuf {
        self.world.at.join(path)
    }

    fn said(&self) -> String {
        fs::read_to_string(&self.said).unwrap()
    }

    /// Mounts the other server's directory directly.
    fn directly(&self) -> Mounted {
        self.world.mounted("direct", &format!("nfs://127.0.0.1:{}/away?vers=4.2", self.other.port("tcp")))
    }

    fn end(self) {
        self.world.end();
        self.other.stop();
    }
}

/// Copies the files of a state directory to a new one.
fn copy_state(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    fs::set_permissions(to, fs::Permissions::from_mode(0o700)).unwrap();
    let is_file = |entry: &fs::DirEntry| entry.file_type().unwrap().is_file();
    for entry in fs::read_dir(from).unwrap().map(Result::unwrap).filter(is_file) {
        fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
    }
}

fn export(name: &str, path: &Path) -> String {
    format!("[[export]]\nname = '{name}'\npath = '{}'\nsquash = 'none'\n", path.display())
}

/// Starts a server with this configuration, and a state directory of this name.
fn serve(directory: &Path, name: &str, port: &Port, text: &str) -> Server {
    let directory = directory.join(name);
    fs::create_dir_all(&directory).unwrap();
    let config = directory.join("slipway.toml");
    let head = format!(
        "[server]\nstate_dir = '{}/state'\nworkers = 1\n[[listen]]\ntransport = 'tcp'\naddress = '{}'\n",
        directory.display(),
        port.address()
    );
    fs::write(&config, head + text).unwrap();
    Server::start(&["--config", config.to_str().unwrap()])
}

/// Returns a location in the form of RFC 8881 §11.16: an address with its port.
fn place(port: &Port, path: &str) -> String {
    let [high, low] = port.number().to_be_bytes();
    format!("127.0.0.1.{high}.{low}:{path}")
}

fn names(dir: &Path) -> io::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(dir)? {
        names.push(entry?.file_name().into_string().unwrap());
    }
    names.sort();
    Ok(names)
}

fn number(result: io::Result<impl Sized>) -> Option<Errno> {
    result.err().as_ref().and_then(Errno::from_io_error)
}

fn soon(what: &str, condition: impl Fn() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < end, "{what}");
        thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn the_target_of_a_referral_is_used_like_a_local_directory() {
    for query in ["vers=4.0", "vers=4.1", "vers=4.2"] {
        let Some(worlds) = Worlds::new("the_target_of_a_referral_is_used_like_a_local_directory", query) else {
            return;
        };
        let (away, data) = (worlds.at("away"), pattern(3 << 20));
        fs::write(away.join("file"), &data).unwrap();
        assert!(fs::read(worlds.away.join("file")).unwrap() == data, "the file must be on the other server");
        fs::write(worlds.away.join("theirs"), "from there").unwrap();
        assert_eq!(fs::read_to_string(away.join("theirs")).unwrap(), "from there");
        assert!(fs::read(away.join("file")).unwrap() == data);
        assert_eq!(names(&away).unwrap(), ["file", "theirs"]);

        fs::create_dir(away.join("dir")).unwrap();
        fs::rename(away.join("file"), away.join("dir/moved")).unwrap();
        fs::hard_link(away.join("dir/moved"), away.join("linked")).unwrap();
        let linked = fs::metadata(away.join("linked")).unwrap();
        assert_eq!((linked.len(), linked.nlink()), (3 << 20, 2));
        fs::set_permissions(away.join("linked"), fs::Permissions::from_mode(0o640)).unwrap();
        assert_eq!(fs::metadata(worlds.away.join("linked")).unwrap().mode() & 0o7777, 0o640);
        // A file that is removed while it is open stays available to the program that has it open.
        let open = File::open(away.join("linked")).unwrap();
        fs::remove_file(away.join("linked")).unwrap();
        fs::remove_file(away.join("dir/moved")).unwrap();
        let mut read = [0; 100];
        open.read_exact_at(&mut read, 1 << 20).unwrap();
        assert!(read[..] == data[1 << 20..][..100]);
        drop(open);

        // `..` leads back.
        fs::write(worlds.at("here/ours"), "from here").unwrap();
        std::os::unix::fs::symlink("../here/ours", away.join("back")).unwrap();
        assert_eq!(fs::read_to_string(away.join("back")).unwrap(), "from here");
        assert_eq!(names(&away.join("../here")).unwrap(), ["inside", "ours"]);

        // `statvfs` reports the space of the other server, also within an export.
        let stat = rustix::fs::statvfs(worlds.at("here/inside")).unwrap();
        assert_eq!(stat.f_blocks * stat.f_frsize, 8 << 20);
        fs::write(worlds.at("here/inside/file"), "in memory").unwrap();
        assert_eq!(fs::read_to_string(worlds.at("here/inside/file")).unwrap(), "in memory");
        assert!(
            fs::read_dir(worlds.world.served.join("inside")).unwrap().next().is_none(),
            "the hidden directory must stay empty"
        );

        let colour = rustix::fs::setxattr(away.join("theirs"), "user.colour", b"green", XattrFlags::CREATE);
        let mut value = [0; 9];
        let found = rustix::fs::getxattr(worlds.away.join("theirs"), "user.colour", &mut value[..]);
        match query {
            "vers=4.2" => assert_eq!((colour, found), (Ok(()), Ok(5))),
            _ => assert_eq!((colour, found), (Err(Errno::OPNOTSUPP), Err(Errno::NODATA))),
        }
        worlds.end();
    }
}

#[test]
fn locks_and_changes_reach_the_other_server() {
    let Some(worlds) = Worlds::new("locks_and_changes_reach_the_other_server", "vers=4.2") else { return };
    let direct = worlds.directly();
    let (here, there) = (worlds.at("away/file"), direct.at.join("file"));
    fs::write(&here, "first").unwrap();
    let [a, b] = [&here, &there].map(|path| File::open(path).unwrap());
    flock(&a, FlockOperation::NonBlockingLockShared).unwrap();
    let write = File::options().write(true).open(&there).unwrap();
    assert_eq!(flock(&write, FlockOperation::NonBlockingLockExclusive).unwrap_err(), Errno::WOULDBLOCK);
    flock(&b, FlockOperation::NonBlockingLockShared).unwrap();
    drop((a, b, write));
    // The kernel drops cached pages of a delegated file before another client can change it.
    for name in ["one", "two", "three"] {
        let (here, there) = (worlds.at("away").join(name), direct.at.join(name));
        fs::write(worlds.away.join(name), "what was there").unwrap();
        let open = File::open(&here).unwrap();
        for _ in 0..3 {
            assert_eq!(fs::read_to_string(&here).unwrap(), "what was there");
            assert_eq!(open.metadata().unwrap().len(), 14);
        }
        File::options().write(true).open(&there).unwrap().set_len(4).unwrap();
        assert_eq!(open.metadata().unwrap().len(), 4);
        assert_eq!(fs::read_to_string(&here).unwrap(), "what");
        fs::write(&here, "something else").unwrap();
        assert_eq!(fs::read_to_string(&there).unwrap(), "something else");
    }
    drop(direct);
    worlds.end();
}

#[test]
fn objects_of_two_servers_are_distinct() {
    let Some(worlds) = Worlds::new("objects_of_two_servers_are_distinct", "vers=4.2") else { return };
    fs::write(worlds.at("here/file"), "content").unwrap();
    // The same file with the same handle on both servers, and the same fileid with another handle.
    fs::hard_link(worlds.world.served.join("file"), worlds.away.join("file")).unwrap();
    let paths = ["here/file", "twin/file", "away/file"].map(|path| worlds.at(path));
    let open = paths.each_ref().map(|path| File::open(path).unwrap());
    let mut numbers = open.each_ref().map(|file| file.metadata().unwrap().ino()).to_vec();
    numbers.sort_unstable();
    numbers.dedup();
    assert_eq!(numbers.len(), 3, "{numbers:?}");
    drop(open);

    for other in ["twin", "away"] {
        let (from, to) = (worlds.at("here/file"), worlds.at(other).join("new"));
        assert_eq!(number(fs::rename(&from, &to)), Some(Errno::XDEV));
        assert_eq!(number(fs::rename(worlds.at(other).join("file"), worlds.at("here/new"))), Some(Errno::XDEV));
        assert_eq!(number(fs::hard_link(&from, &to)), Some(Errno::XDEV));
    }
    // The kernel makes the copy.
    assert_eq!(fs::copy(worlds.at("here/file"), worlds.at("away/copy")).unwrap(), 7);
    assert_eq!(fs::read_to_string(worlds.away.join("copy")).unwrap(), "content");
    worlds.end();
}

#[test]
fn an_unreachable_server_is_an_error_and_is_retried() {
    let test = "an_unreachable_server_is_an_error_and_is_retried";
    let Some(worlds) = Worlds::new(test, "vers=4.2") else { return };
    let (nowhere, dead) = (worlds.at("nowhere"), place(&worlds.nowhere, "/away"));
    let all = ["away", "here", "nowhere", "twin"];
    // The kernel asks for attributes in its first listing. The reply contains those of all other names.
    assert_eq!(names(&worlds.world.at).unwrap(), all);
    assert!(!worlds.said().contains(&dead), "no server must have been asked: {}", worlds.said());
    for entry in fs::read_dir(&worlds.world.at).unwrap() {
        assert!(entry.unwrap().file_type().unwrap().is_dir());
    }
    for _ in 0..2 {
        assert_eq!(number(fs::metadata(&nowhere)), Some(Errno::IO));
        assert_eq!(number(fs::read_dir(&nowhere)), Some(Errno::IO));
        assert!(worlds.said().contains(&dead), "{}", worlds.said());
        fs::write(worlds.at("away/file"), "content").unwrap();
        assert_eq!(fs::read_to_string(worlds.at("here/../away/file")).unwrap(), "content");
        assert_eq!(names(&worlds.world.at).unwrap(), all);
    }
    let late = tempfile::tempdir().unwrap();
    let server = serve(late.path(), "late", &worlds.nowhere, &export("/away", &worlds.away));
    // After a slow failure, the client does not retry at once.
    soon("the server is reached", || fs::read_to_string(nowhere.join("file")).is_ok_and(|text| text == "content"));
    // An open directory stays valid while other programs list its parent.
    let dir = File::open(&nowhere).unwrap();
    let numbers = || (dir.metadata().unwrap().ino(), fs::metadata(&nowhere).unwrap().ino());
    let before = numbers();
    assert_eq!(names(&worlds.world.at).unwrap(), all);
    let link = fs::read_link(format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&dir))).unwrap();
    assert_eq!(link, nowhere, "the directory must not count as removed");
    assert_eq!((numbers(), before.0), (before, before.1));
    drop(dir);
    worlds.end();
    server.signal(Signal::TERM);
}

const MEMORY: &str = "[[export]]\nname = '/memory'\nbackend = 'memory'\nsize = '8 MiB'\nsquash = 'none'\n";
