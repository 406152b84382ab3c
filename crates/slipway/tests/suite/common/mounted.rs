//! `slipway mount` of a server that the test starts.

use std::{
    fs,
    io::{BufRead, BufReader},
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use rustix::process::{Pid, Signal, kill_process};

use super::{Server, command, counted::Counted, wait};

/// A mounted tree and its server.
pub struct World {
    /// The mount point.
    pub at: PathBuf,
    /// The served directory.
    pub served: PathBuf,
    pub mount: Child,
    pub server: Server,
    pub directory: tempfile::TempDir,
}

impl World {
    /// Mounts a directory over this transport, with further parts of a query. Returns `None`, and prints the reason, if
    /// this machine or user cannot mount.
    pub fn new(test: &str, transport: &str, query: &str) -> Option<Self> {
        if !can_mount(test) {
            return None;
        }
        let directory = tempfile::tempdir().unwrap();
        let (at, served) = (directory.path().join("mnt"), directory.path().join("served"));
        fs::create_dir(&at).unwrap();
        fs::create_dir(&served).unwrap();
        let server = Server::dir(&served, &directory.path().join("state"));
        let mount = mount(&[&server.url(transport, ""), query].concat(), &at);
        Some(Self { at, served, mount, server, directory })
    }

    /// Ends the mount by SIGTERM, which must work.
    pub fn end(mut self) {
        self.terminate();
        self.server.signal(Signal::TERM);
    }

    /// Mounts the same directory at another mount point, which stands for another machine.
    pub fn another(&self, transport: &str, query: &str) -> Mounted {
        self.mounted("another", &[&self.server.url(transport, ""), query].concat())
    }

    /// Does the same over TCP through a relay that counts calls.
    pub fn counted(&self, query: &str) -> (Counted, Mounted) {
        self.counted_with("counted", query, &UNCACHED)
    }

    /// Does the same at this mount point with these arguments.
    pub fn counted_with(&self, name: &str, query: &str, args: &[&str]) -> (Counted, Mounted) {
        let port = self.server.port("tcp");
        let counted = Counted::before(port);
        let url = self.server.url("tcp", "").replacen(&format!(":{port}"), &format!(":{}", counted.port), 1);
        let at = self.directory.path().join(name);
        fs::create_dir(&at).unwrap();
        (counted, Mounted { child: mount_with(args, &[&url, query].concat(), &at), at })
    }

    /// Mounts the served directory over TCP at a further mount point, with these arguments.
    pub fn with_arguments(&self, name: &str, query: &str, args: &[&str]) -> Mounted {
        let at = self.directory.path().join(name);
        fs::create_dir(&at).unwrap();
        let url = [&self.server.url("tcp", ""), query].concat();
        Mounted { child: mount_with(args, &url, &at), at }
    }

    /// Mounts a URL at a further mount point.
    pub fn mounted(&self, name: &str, url: &str) -> Mounted {
        let at = self.directory.path().join(name);
        fs::create_dir(&at).unwrap();
        Mounted { child: mount(url, &at), at }
    }

    /// Mounts the served directory for all users over TCP. All users may create files there.
    pub fn for_all_users(&self, version: &str, args: &[&str]) -> Mounted {
        for (directory, mode) in [(self.directory.path(), 0o755), (&*self.served, 0o1777)] {
            fs::set_permissions(directory, fs::Permissions::from_mode(mode)).unwrap();
        }
        let at = self.directory.path().join("shared");
        fs::create_dir(&at).unwrap();
        let url = [&self.server.url("tcp", ""), "&vers=", version].concat();
        Mounted { child: mount_with(&[&["--allow-other"], args].concat(), &url, &at), at }
    }

    /// Kills the server, and starts another with the data on stable storage and with these arguments. Over TCP.
    pub fn restart(&mut self, args: &[&str]) {
        let (state, port) = (self.directory.path().join("state"), self.server.port("tcp"));
        self.server.signal(Signal::KILL);
        self.server.child.wait().unwrap();
        let listen = format!("tcp://127.0.0.1:{port}");
        let (state, served) = (state.to_str().unwrap(), self.served.to_str().unwrap());
        let ports = std::mem::take(&mut self.server.ports);
        let own = ["--squash", "none", "--state-dir", state, "--listen", &listen, served];
        self.server = Server::start(&[args, &own].concat());
        self.server.ports = ports;
    }

    pub fn terminate(&mut self) {
        kill_process(Pid::from_child(&self.mount), Signal::TERM).unwrap();
        assert!(wait(&mut self.mount).success());
        assert!(!is_mounted(&self.at), "the mount must have ended");
    }
}

impl Drop for World {
    fn drop(&mut self) {
        undo(&mut self.mount, &self.at);
    }
}

/// A further mount, which ends when it is dropped.
pub struct Mounted {
    pub at: PathBuf,
    child: Child,
}

impl Mounted {
    /// Takes a mount, which then also ends if the test fails.
    pub fn of(child: Child, at: PathBuf) -> Self {
        Self { at, child }
    }

    /// Returns the process of the mount.
    pub fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    /// Ends the mount by SIGTERM, which must work.
    pub fn terminate(mut self) {
        kill_process(self.pid(), Signal::TERM).unwrap();
        assert!(wait(&mut self.child).success());
    }

    /// Unmounts, which must end the process without an error.
    pub fn end(mut self) {
        assert!(Command::new("umount").arg(&self.at).status().unwrap().success());
        assert!(wait(&mut self.child).success());
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        undo(&mut self.child, &self.at);
    }
}

fn undo(child: &mut Child, at: &Path) {
    let _ = child.kill();
    let _ = child.wait();
    if is_mounted(at) {
        let _ = Command::new("umount").arg("-l").arg(at).status();
    }
}

/// Returns `true` if this machine and user can mount. Prints the reason if not.
pub fn can_mount(test: &str) -> bool {
    let can = rustix::process::geteuid().is_root() && Path::new("/dev/fuse").exists();
    if !can {
        eprintln!("SKIPPED {test}: needs root and /dev/fuse");
    }
    can
}

pub fn mount(url: &str, at: &Path) -> Child {
    mount_saying(url, at, Stdio::inherit())
}

/// Mounts with these arguments.
pub fn mount_with(args: &[&str], url: &str, at: &Path) -> Child {
    start(command(&[&["mount", url, at.to_str().unwrap()], args].concat()), Stdio::inherit())
}

/// Mounts with standard error redirected to `said`.
pub fn mount_saying(url: &str, at: &Path, said: Stdio) -> Child {
    start(command(&[&["mount", url, at.to_str().unwrap()], &UNCACHED[..]].concat()), said)
}

fn start(mut mount: Command, said: Stdio) -> Child {
    let mut mount = mount.stdout(Stdio::piped()).stderr(said).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(mount.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert!(line.contains("is mounted at"), "{line}");
    mount
}

/// Attributes are not cached.
const UNCACHED: [&str; 2] = ["--attributes", "0"];
/// Attributes are cached for longer than a test takes.
pub const CACHED: [&str; 2] = ["--attributes", "3600"];

pub fn is_mounted(at: &Path) -> bool {
    fs::read_to_string("/proc/self/mounts").unwrap().contains(&format!(" {} ", at.display()))
}

pub fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 7 % 251) as u8).collect()
}
