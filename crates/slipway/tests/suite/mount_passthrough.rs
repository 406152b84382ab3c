//! Tests of `slipway mount --passthrough`: the kernel reads files itself that a server on this host passes. The server's counters tell
//! whether it was asked for data.

use std::{
    collections::BTreeMap,
    fs::{self, File, OpenOptions},
    io::{Read, Write},
    net::Shutdown,
    os::unix::{
        fs::{FileExt, OpenOptionsExt, PermissionsExt},
        net::UnixStream,
        process::CommandExt,
    },
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
};

use rustix::process::Signal;

use crate::common::{
    Server, command, lines,
    mounted::{Mounted, can_mount, is_mounted, mount_with, pattern},
    until, wait,
};

/// A directory that a server passes files of, and a mount of it with `--passthrough`.
struct World {
    mounted: Option<Mounted>,
    at: PathBuf,
    served: PathBuf,
    server: Server,
    directory: tempfile::TempDir,
    query: String,
}

impl World {
    /// Mounts with further parts of a query. Returns `None`, and prints the reason, if this machine cannot do this.
    fn new(test: &str, query: &str, args: &[&str]) -> Option<Self> {
        if !can_mount(test) || !has_passthrough(test) {
            return None;
        }
        let directory = tempfile::tempdir().unwrap();
        fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let (served, state, at) =
            (directory.path().join("served"), directory.path().join("state"), directory.path().join("mnt"));
        fs::create_dir(&served).unwrap();
        fs::create_dir(&at).unwrap();
        let server = serving(&["--passthrough"], &state, &served);
        let query = format!("&{query}");
        let url = [&server.url("shm", ""), &query[..]].concat();
        let mounted = Mounted::of(mount_with(&[&["--passthrough"], args].concat(), &url, &at), at.clone());
        Some(Self { mounted: Some(mounted), at, served, server, directory, query })
    }

    /// Mounts the same directory without the option, as another machine would.
    fn another(&self) -> Mounted {
        let at = self.directory.path().join("another");
        fs::create_dir(&at).unwrap();
        let url = [&self.server.url("tcp", ""), &self.query[..]].concat();
        Mounted::of(mount_with(&["--attributes", "0"], &url, &at), at)
    }

    /// Makes a file at the server.
    fn file(&self, name: &str, len: usize) -> Vec<u8> {
        let data = pattern(len);
        fs::write(self.served.join(name), &data).unwrap();
        data
    }

    /// Opens a file for reading, so that it is passed. That is not so at once after it was open for writing, because the kernel reports
    /// a close later.
    fn open_passed(&self, name: &str) -> File {
        let (mut opened, before) = (None, self.counts().0);
        until("the file must be passed", || {
            opened = None;
            opened = Some(File::open(self.at.join(name)).unwrap());
            self.counts().0 > before
        });
        opened.unwrap()
    }

    /// Returns the numbers of calls of PASS, and of the server's READs. The operations of NFSv4 are not counted, so for these versions
    /// the second number is that of bytes of replies in units of 64 KiB.
    fn counts(&self) -> (u64, u64) {
        let all = counters(&self.directory.path().join("state"));
        let calls = |name: &str| all.iter().filter(|(key, _)| key.1 == name).map(|(_, value)| value.0).sum();
        let bytes: u64 = all.values().map(|value| value.1).sum();
        (calls("PASS"), bytes >> 16)
    }

    fn end(mut self) {
        self.mounted.take().unwrap().end();
        self.server.signal(Signal::TERM);
        assert!(wait(&mut self.server.child).success());
    }
}

fn serving(args: &[&str], state: &Path, served: &Path) -> Server {
    let (state, served) = (state.to_str().unwrap(), served.to_str().unwrap());
    Server::everywhere(&[args, &["--squash", "none", "--state-dir", state, served]].concat())
}

/// Returns `true` if this kernel has FUSE_PASSTHROUGH, as `slipway doctor` finds.
fn has_passthrough(test: &str) -> bool {
    let output = command(&["doctor", "--json"]).output().unwrap();
    let found: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let found = found.as_array().unwrap();
    let check =
        found.iter().find(|finding| finding["check"] == "FUSE passthrough").expect("doctor must have the check");
    let has = check["state"] == "ok";
    if !has {
        eprintln!("SKIPPED {test}: {check}");
    }
    has
}

/// Returns the calls and the bytes of replies of each procedure, by program and name.
fn counters(state: &Path) -> BTreeMap<(u64, String), (u64, u64)> {
    let mut socket = UnixStream::connect(state.join("admin.sock")).unwrap();
    socket.write_all(br#"{"counters":{}}"#).unwrap();
    socket.shutdown(Shutdown::Write).unwrap();
    let mut text = String::new();
    socket.read_to_string(&mut text).unwrap();
    let mut all = BTreeMap::new();
    for record in lines(&text).iter().filter(|record| record["procedure"].is_string()) {
        let key = (record["program"].as_u64().unwrap(), record["procedure"].as_str().unwrap().to_owned());
        let entry: &mut (u64, u64) = all.entry(key).or_default();
        entry.0 += record["calls"].as_u64().unwrap();
        entry.1 += record["reply_bytes"].as_u64().unwrap();
    }
    all
}

#[test]
fn a_large_file_is_read_without_the_server() {
    for version in ["3", "4.0", "4.1", "4.2"] {
        let test = "a_large_file_is_read_without_the_server";
        let Some(world) = World::new(test, &format!("vers={version}"), &[]) else { return };
        let data = world.file("file", 4 << 20);
        let before = world.counts();
        assert!(fs::read(world.at.join("file")).unwrap() == data, "{version}");
        // O_DIRECT reads the same file.
        let direct = OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(world.at.join("file")).unwrap();
        let pool = buf::Pool::default();
        let mut page = pool.take(8192);
        assert_eq!(direct.read_at(&mut page, 4096).unwrap(), 8192);
        assert!(page[..] == data[4096..12_288], "{version}");
        drop(direct);
        let after = world.counts();
        // The kernel may report the first close after the second open, which then uses the file that is passed already.
        assert!((1..=2).contains(&(after.0 - before.0)), "{version}");
        assert_eq!(after.1 - before.1, 0, "{version}: no data");
        world.end();
    }
}

#[test]
fn a_small_file_costs_no_further_call() {
    let Some(world) = World::new("a_small_file_costs_no_further_call", "vers=4.2", &[]) else { return };
    let data = world.file("file", 256 << 10);
    let before = world.counts();
    assert!(fs::read(world.at.join("file")).unwrap() == data);
    assert_eq!(world.counts().0, before.0);
    // The server counts what it has sent after it has sent it.
    until("the server must have sent the data", || world.counts().1 - before.1 >= 4);
    world.end();
}

#[test]
fn readers_see_writes_of_others_at_once() {
    for version in ["3", "4.2"] {
        let test = "readers_see_writes_of_others_at_once";
        let Some(world) = World::new(test, &format!("vers={version}"), &[]) else { return };
        world.file("file", 1 << 20);
        let before = world.counts();
        let reader = File::open(world.at.join("file")).unwrap();
        let read = |len: usize, at: u64| {
            let mut bytes = vec![0; len];
            reader.read_exact_at(&mut bytes, at).unwrap();
            String::from_utf8(bytes).unwrap()
        };
        {
            // A program at the server, a program on another machine, and programs on this mount: through an open that exists already, and
            // through a further one.
            let local = OpenOptions::new().write(true).open(world.served.join("file")).unwrap();
            local.write_all_at(b"local", 10).unwrap();
            assert_eq!(read(5, 10), "local", "{version}");
            let other = world.another();
            let remote = OpenOptions::new().write(true).open(other.at.join("file")).unwrap();
            remote.write_all_at(b"other", 20).unwrap();
            remote.sync_all().unwrap();
            assert_eq!(read(5, 20), "other", "{version}");
            drop(remote);
            other.end();
            let here = OpenOptions::new().read(true).write(true).open(world.at.join("file")).unwrap();
            here.write_all_at(b"here!", 30).unwrap();
            assert_eq!(read(5, 30), "here!", "{version}: without fsync");
            let mut back = [0; 5];
            here.read_exact_at(&mut back, 30).unwrap();
            assert_eq!(&back, b"here!", "{version}");
            here.set_len(2 << 20).unwrap();
            assert_eq!((reader.metadata().unwrap().len(), read(1, (2 << 20) - 1)), (2 << 20, "\0".to_owned()));
        }
        let text = fs::read(world.served.join("file")).unwrap();
        assert_eq!((&text[10..15], &text[20..25], &text[30..35]), (&b"local"[..], &b"other"[..], &b"here!"[..]));
        assert_eq!(world.counts().0 - before.0, 1, "{version}: the file was passed once");
        drop(reader);
        world.end();
    }
}

#[test]
fn shared_maps_of_readers_and_writers_are_the_same_memory() {
    for version in ["3", "4.2"] {
        let test = "shared_maps_of_readers_and_writers_are_the_same_memory";
        let Some(world) = World::new(test, &format!("vers={version}"), &[]) else { return };
        world.file("file", 1 << 20);
        let (at, before) = (world.at.join("file"), world.counts());
        let done = Command::new("python3").args(["-c", MAPS]).args([&at, &world.served.join("file")]).output();
        let Ok(done) = done else { return eprintln!("SKIPPED {test}: needs python3") };
        assert!(done.status.success(), "{version}: {}", String::from_utf8_lossy(&done.stderr));
        assert_eq!(world.counts().0 - before.0, 1, "{version}");
        world.end();
    }
}

/// Maps a file that is open for reading and passed, and the same file open for writing.
const MAPS: &str = "
import mmap, os, sys, time
path, served = sys.argv[1:]
at_server = lambda: open(served, 'rb').read()
before = os.stat(path)
reader = open(path, 'rb', buffering=0)
seen = mmap.mmap(reader.fileno(), 0, prot=mmap.PROT_READ)
writer = open(path, 'r+b', buffering=0)
changed = mmap.mmap(writer.fileno(), 0)
changed[100:101] = b'!'
assert seen[100:101] == b'!' and at_server()[100:101] == b'!'
os.pwrite(writer.fileno(), b'+', 101)
assert seen[101:102] == changed[101:102] == b'+', 'write(2) must be seen in maps'
assert os.pread(reader.fileno(), 2, 100) == os.pread(writer.fileno(), 2, 100) == b'!+'
# The map stays when all opens are closed. The next open uses the kernel's page cache, and its pages are current.
writer.close()
reader.close()
changed[102:103] = b'?'
assert at_server()[100:103] == b'!+?'
again = open(path, 'r+b', buffering=0)
assert again.read(103)[100:] == b'!+?'
again.close()
changed.close()
seen.close()
after = os.stat(path)
assert after.st_mtime_ns > before.st_mtime_ns, 'the time of the change must be seen'
assert after.st_mtime_ns == os.stat(served).st_mtime_ns
";

#[test]
fn sendfile_from_a_passed_file_returns_no_old_data() {
    for version in ["3", "4.2"] {
        let test = "sendfile_from_a_passed_file_returns_no_old_data";
        let Some(world) = World::new(test, &format!("vers={version}"), &[]) else { return };
        world.file("file", 1 << 20);
        let (at, copy) = (world.at.join("file"), world.directory.path().join("copy"));
        let done =
            Command::new("python3").args(["-c", SENDFILE]).args([&at, &world.served.join("file"), &copy]).output();
        let Ok(done) = done else { return eprintln!("SKIPPED {test}: needs python3") };
        assert!(done.status.success(), "{version}: {}", String::from_utf8_lossy(&done.stderr));
        world.end();
    }
}

/// Sends parts of a passed file from opens for reading and for writing, between changes through a memory map, which the kernel's page
/// cache of the mount would not have.
const SENDFILE: &str = "
import errno, mmap, os, sys
path, served, copy = sys.argv[1:]
def sent(file):
    out = os.open(copy, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
    try:
        at = 0
        while at < 8192:
            at += os.sendfile(out, file, at, 8192 - at)
        return os.pread(out, 1, 100)
    finally:
        os.close(out)
reader, writer = os.open(path, os.O_RDONLY), os.open(path, os.O_RDWR)
at_server = os.open(served, os.O_RDWR)
changed = mmap.mmap(writer, 0)
def by_map(byte):
    changed[100:101] = byte
def by_write(byte):
    os.pwrite(writer, byte, 100)
def at_the_server(byte):
    os.pwrite(at_server, byte, 100)
for number, change in enumerate([by_map, by_write, at_the_server, by_map]):
    byte = bytes([number])
    for file in [reader, writer]:
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_WILLNEED)
    change(byte)
    assert sent(reader) == byte, change
    assert os.pread(writer, 1, 100) == byte, change
    try:
        assert sent(writer) == byte, change
    except OSError as error:
        # Without old data: Linux reads through its page cache of the mount.
        assert error.errno == errno.EINVAL, error
";

#[test]
fn the_first_open_decides_the_way_of_all() {
    let Some(world) = World::new("the_first_open_decides_the_way_of_all", "vers=4.2", &[]) else { return };
    let data = world.file("file", 1 << 20);
    let (path, before) = (world.at.join("file"), world.counts());
    // The file is open for writing first: everything is cached.
    let writer = OpenOptions::new().read(true).write(true).open(&path).unwrap();
    assert!(fs::read(&path).unwrap() == data);
    assert_eq!(world.counts().0, before.0);
    writer.write_all_at(b"x", 0).unwrap();
    drop(writer);
    // For reading first: it is passed, also to an open with other flags, and to one that creates.
    let first = world.open_passed("file");
    let readers: Vec<_> = (0..3).map(|_| File::open(&path).unwrap()).collect();
    let append = OpenOptions::new().append(true).create(true).open(&path).unwrap();
    (&append).write_all(b"end").unwrap();
    let mut end = [0; 4];
    readers[1].read_exact_at(&mut end, (1 << 20) - 1).unwrap();
    assert_eq!(end[1..], *b"end");
    drop((first, readers, append));
    // An executed file is passed as well.
    let program = fs::read("/bin/true").unwrap();
    fs::write(world.served.join("true"), [&program[..], &vec![0; 512 << 10]].concat()).unwrap();
    fs::set_permissions(world.served.join("true"), fs::Permissions::from_mode(0o755)).unwrap();
    assert!(Command::new(world.at.join("true")).status().unwrap().success());
    assert!(world.counts().0 >= before.0 + 2);
    world.end();
}

#[test]
fn a_write_clears_set_user_id_bits_although_the_file_is_passed() {
    let test = "a_write_clears_set_user_id_bits_although_the_file_is_passed";
    let Some(world) = World::new(test, "vers=4.2", &["--allow-other"]) else { return };
    world.file("file", 1 << 20);
    let (served, path) = (world.served.join("file"), world.at.join("file"));
    std::os::unix::fs::chown(&served, Some(USER), Some(USER)).unwrap();
    fs::set_permissions(&served, fs::Permissions::from_mode(0o4755)).unwrap();
    let reader = File::open(&path).unwrap();
    let wrote = as_user(&format!("printf x | dd of={} conv=notrunc status=none", path.display()));
    assert!(wrote.status.success(), "{wrote:?}");
    assert_eq!(fs::metadata(&served).unwrap().permissions().mode() & 0o7777, 0o755);
    drop(reader);
    world.end();
}

#[test]
fn files_stay_readable_when_they_are_removed_replaced_or_truncated() {
    for version in ["3", "4.2"] {
        let test = "files_stay_readable_when_they_are_removed_replaced_or_truncated";
        let Some(world) = World::new(test, &format!("vers={version}"), &["--attributes", "0"]) else { return };
        let data = world.file("file", 1 << 20);
        let (path, served) = (world.at.join("file"), world.served.join("file"));
        let is_whole = |file: &File| {
            let mut bytes = vec![0; 1 << 20];
            file.read_exact_at(&mut bytes, 0).is_ok() && bytes == data
        };
        // Removed here, and removed and replaced at the server.
        let removed = File::open(&path).unwrap();
        fs::remove_file(&path).unwrap();
        assert!(is_whole(&removed) && !path.exists(), "{version}");
        drop(removed);
        until("the hidden name must be removed", || fs::read_dir(&world.served).unwrap().count() == 0);
        world.file("file", 1 << 20);
        let replaced = File::open(&path).unwrap();
        fs::write(world.served.join("new"), vec![b'n'; 1 << 20]).unwrap();
        fs::rename(world.served.join("new"), &served).unwrap();
        assert!(is_whole(&replaced), "{version}");
        assert!(fs::read(&path).unwrap() == vec![b'n'; 1 << 20], "{version}");
        // Renamed here while it is open.
        let renamed = File::open(&path).unwrap();
        fs::rename(&path, world.at.join("other")).unwrap();
        fs::rename(world.at.join("other"), &path).unwrap();
        drop(renamed);
        // Truncated elsewhere.
        let truncated = File::open(&path).unwrap();
        fs::write(&served, b"short").unwrap();
        let mut bytes = [0; 10];
        assert_eq!(truncated.read_at(&mut bytes, 0).unwrap(), 5, "{version}");
        drop((replaced, truncated));
        assert_eq!(fs::read(&path).unwrap(), b"short", "{version}");
        world.end();
    }
}

#[test]
fn passed_files_outlive_a_restart_of_the_server() {
    let test = "passed_files_outlive_a_restart_of_the_server";
    let Some(mut world) = World::new(test, "vers=4.2", &[]) else { return };
    let data = world.file("file", 1 << 20);
    let reader = File::open(world.at.join("file")).unwrap();
    world.server.signal(Signal::KILL);
    world.server.child.wait().unwrap();
    let mut bytes = vec![0; 1 << 20];
    reader.read_exact_at(&mut bytes, 0).unwrap();
    assert!(bytes == data, "while there is no server");
    let (state, ports) = (world.directory.path().join("state"), std::mem::take(&mut world.server.ports));
    let listen = |transport: &str| format!("{transport}://127.0.0.1:{}", world.server.port(transport));
    let (tcp, shm) = (listen("tcp"), listen("shm"));
    let args = ["--passthrough", "--squash", "none", "--state-dir", state.to_str().unwrap(), "--grace", "1"];
    let more = ["--listen", &tcp, "--listen", &shm, world.served.to_str().unwrap()];
    world.server = Server::start(&[&args[..], &more[..]].concat());
    world.server.ports = ports;
    drop(reader);
    drop(world.open_passed("file"));
    assert!(fs::read(world.at.join("file")).unwrap() == data);
    assert_eq!(world.counts().1, 0, "the new server has sent no data");
    world.end();
}

#[test]
fn only_callers_that_may_read_a_file_get_it() {
    let test = "only_callers_that_may_read_a_file_get_it";
    let Some(world) = World::new(test, "vers=4.2", &["--allow-other"]) else { return };
    let data = world.file("private", 1 << 20);
    world.file("public", 1 << 20);
    fs::set_permissions(world.served.join("private"), fs::Permissions::from_mode(0o600)).unwrap();
    let (private, public) = (world.at.join("private"), world.at.join("public"));
    let before = world.counts();
    assert!(!as_user(&format!("cat {}", private.display())).status.success());
    assert_eq!(world.counts().0, before.0, "who cannot open a file does not ask");
    let reader = File::open(&private).unwrap();
    assert!(!as_user(&format!("cat {}", private.display())).status.success(), "although the file is passed to root");
    assert!(as_user(&format!("cat {}", public.display())).stdout == data);
    drop(reader);
    world.end();
}

#[test]
fn a_server_that_passes_nothing_is_named_and_read_by_calls() {
    let test = "a_server_that_passes_nothing_is_named_and_read_by_calls";
    if !can_mount(test) || !has_passthrough(test) {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let (served, state) = (directory.path().join("served"), directory.path().join("state"));
    fs::create_dir(&served).unwrap();
    fs::write(served.join("file"), pattern(1 << 20)).unwrap();
    let plain = serving(&[], &state, &served);
    let (other, passing_state) = (directory.path().join("other"), directory.path().join("state2"));
    fs::create_dir(&other).unwrap();
    fs::write(other.join("file"), pattern(1 << 20)).unwrap();
    let passing = serving(&["--passthrough"], &passing_state, &other);
    let cases = [
        ("shm", plain.url("shm", ""), "no export of the server has passthrough = true"),
        ("tcp", passing.url("tcp", ""), "the transport is not shm"),
    ];
    for (name, url, reason) in cases {
        let at = directory.path().join(name);
        fs::create_dir(&at).unwrap();
        let log = directory.path().join(format!("{name}.log"));
        let said = Stdio::from(File::create(&log).unwrap());
        let mut mount = command(&["mount", "--passthrough", &url, at.to_str().unwrap()]);
        let mount = mount.stdout(Stdio::null()).stderr(said).spawn().unwrap();
        let mounted = Mounted::of(mount, at.clone());
        until("the mount must exist", || is_mounted(&at));
        assert!(fs::read(at.join("file")).unwrap() == pattern(1 << 20));
        mounted.end();
        let said = fs::read_to_string(&log).unwrap();
        assert!(said.contains("--passthrough has no effect") && said.contains(reason), "{said}");
    }
}

/// Runs a script as an ordinary user.
fn as_user(script: &str) -> Output {
    Command::new("sh").args(["-c", script]).uid(USER).gid(USER).output().unwrap()
}

const USER: u32 = 4321;
