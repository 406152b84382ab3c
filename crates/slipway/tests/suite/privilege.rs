//! The privileges of a server: the capabilities of the shipped unit, the filter of system calls, and what cannot be reached with them.

use std::{
    collections::BTreeMap,
    fs,
    os::unix::{
        fs::{MetadataExt, PermissionsExt, chown},
        net::UnixDatagram,
    },
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use client::{Device, SetAttr, Special};
use rustix::process::Signal;
use tempfile::TempDir;

use crate::{
    common::{Server, TRANSPORTS, command, fails, ok, run, stderr, unprivileged, until},
    outside::mounted,
};

/// Reports whether this test can run, and prints its name if it cannot.
fn is_root(test: &str) -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        eprintln!("SKIPPED {test}: needs root to become other users");
    }
    root
}

/// Returns the value of a setting of the shipped unit, which must have it once.
fn unit(setting: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/systemd/slipway.service");
    let unit = fs::read_to_string(path).unwrap();
    let mut values = unit.lines().filter_map(|line| line.strip_prefix(setting)?.strip_prefix('='));
    let value = values.next().unwrap().to_owned();
    assert!(values.next().is_none(), "{setting} is set twice");
    value
}

/// Returns the fields of /proc/PID/task/TID/status of each thread.
fn threads(pid: u32) -> Vec<BTreeMap<String, String>> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let status = tasks.filter_map(|task| fs::read_to_string(task.unwrap().path().join("status")).ok());
    let fields = |text: String| {
        let pair = |line: &str| line.split_once(':').map(|(name, value)| (name.to_owned(), value.trim().to_owned()));
        text.lines().filter_map(pair).collect()
    };
    status.map(fields).collect()
}

/// An exported directory with objects of several users, and objects beside it that are not exported.
struct Place {
    dir: TempDir,
}

impl Place {
    fn new() -> Self {
        let place = Self { dir: tempfile::tempdir().unwrap() };
        fs::set_permissions(place.dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
        place.directory("served", 0, 0o755);
        place.directory("served/closed", ALICE, 0o600);
        place.directory("served/private", ALICE, 0o700);
        place.directory("served/shared", ALICE, 0o1777);
        place.file("served/secret", ALICE, 0o600);
        place.file("served/group", ALICE, 0o640);
        place.file("served/public", ALICE, 0o644);
        place.file("served/closed/inside", ALICE, 0o644);
        place.file("served/private/inside", ALICE, 0o644);
        place.file("served/shared/mine", ALICE, 0o644);
        place.file("served/roots", 0, 0o600);
        place.file("outside", ALICE, 0o644);
        place
    }

    fn at(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn directory(&self, name: &str, owner: u32, mode: u32) {
        fs::create_dir(self.at(name)).unwrap();
        self.own(name, owner, mode);
    }

    fn file(&self, name: &str, owner: u32, mode: u32) {
        fs::write(self.at(name), name).unwrap();
        self.own(name, owner, mode);
    }

    fn own(&self, name: &str, owner: u32, mode: u32) {
        chown(self.at(name), Some(owner), Some(owner)).unwrap();
        fs::set_permissions(self.at(name), fs::Permissions::from_mode(mode)).unwrap();
    }

    /// Serves the directory with the capabilities of the shipped unit, without the ones of `less`.
    fn serve(&self, squash: &str, less: &[&str]) -> Server {
        Server::spawn(self.command(squash, less))
    }

    fn command(&self, squash: &str, less: &[&str]) -> Command {
        let listen = ["tcp", "rdma", "shm"].map(|transport| format!("{transport}://127.0.0.1:0"));
        let mut command = limited(less);
        command.args(["serve", "--json", "--rpcbind", "off", "--seccomp", "on", "--squash", squash, "--state-dir"]);
        command.arg(self.at("state")).args(listen.iter().flat_map(|url| ["--listen", url])).arg(self.at("served"));
        command
    }
}

/// Returns the command with the capabilities of the shipped unit, without the ones of `less`.
fn limited(less: &[&str]) -> Command {
    let bounding = unit("CapabilityBoundingSet").to_lowercase();
    let kept = bounding.split(' ').map(|name| name.strip_prefix("cap_").unwrap());
    let kept: Vec<_> = kept.filter(|name| !less.contains(name)).map(|name| format!("+{name}")).collect();
    let set = format!("-all,{}", kept.join(","));
    let mut command = Command::new("setpriv");
    command.args(["--no-new-privs", "--bounding-set", &set, "--inh-caps", "-all", env!("CARGO_BIN_EXE_slipway")]);
    command.env_remove("RUST_LOG").env_remove("NOTIFY_SOCKET").stdin(Stdio::null());
    command
}

/// Returns the URL of a path for a user. The user's group has the same number.
fn of(server: &Server, transport: &str, path: &str, version: &str, uid: u32) -> String {
    format!("{}&vers={version}&uid={uid}&gid={uid}", server.url(transport, path))
}

/// Every caller is checked by the kernel, although the server has CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH.
#[test]
fn under_the_unit_callers_have_their_own_rights_only() {
    if !is_root("under_the_unit_callers_have_their_own_rights_only") {
        return;
    }
    let place = Place::new();
    let server = place.serve("root", &[]);
    let source = place.at("outside");
    let source = source.to_str().unwrap();
    for (transport, version) in VERSIONS {
        let cat = |path: &str, uid: u32| run(&["cat", &of(&server, transport, path, version, uid)]);
        for (path, uid, allowed) in [
            ("/secret", ALICE, true),
            ("/secret", BOB, false),
            ("/secret", 0, false), // Squashed.
            ("/group", ALICE, true),
            ("/group", BOB, false),
            ("/public", BOB, true),
            ("/private/inside", ALICE, true),
            ("/private/inside", BOB, false),
            ("/closed/inside", ALICE, false), // No search right, which its owner lacks too.
            ("/roots", ALICE, false),
            ("/roots", 0, false),
        ] {
            let output = cat(path, uid);
            let said = format!("{transport} {version} {path} as {uid}: {}", stderr(&output));
            assert_eq!(output.status.success(), allowed, "{said}");
            assert_eq!(said.contains("permission denied"), !allowed, "{said}");
            assert!(!allowed || output.stdout == format!("served{path}").as_bytes(), "{said}");
        }
        let denied = |args: &[&str]| {
            let said = fails(1, args);
            assert!(
                said.contains("permission denied") || said.contains("not permitted"),
                "{transport} {version} {args:?}: {said}"
            );
        };
        let url = |path: &str, uid: u32| of(&server, transport, path, version, uid);
        denied(&["cp", source, &url("/new", BOB)]);
        denied(&["cp", "-q", source, &url("/public", BOB)]);
        denied(&["mkdir", &url("/private/new", BOB)]);
        denied(&["rm", &url("/shared/mine", BOB)]); // Sticky.
        ok(&["cp", source, &url("/shared/new", BOB)]);
        assert_eq!(fs::metadata(place.at("served/shared/new")).unwrap().uid(), BOB);
        ok(&["rm", &url("/shared/new", BOB)]);
    }
    let caps: Vec<_> = threads(server.child.id()).iter().map(|thread| thread["CapBnd"].clone()).collect();
    // Bits of linux/capability.h: CHOWN 0, DAC_OVERRIDE 1, DAC_READ_SEARCH 2, FOWNER 3, FSETID 4, SETGID 6, SETUID 7, NET_BIND_SERVICE 10, MKNOD 27.
    assert!(caps.iter().all(|set| set == "00000000080004df"), "{caps:?}");
    server.stop();
}

/// The unit's capabilities are enough for a caller that is root here (`squash = "none"`).
#[test]
fn under_the_unit_root_can_do_what_root_may() {
    if !is_root("under_the_unit_root_can_do_what_root_may") {
        return;
    }
    let place = Place::new();
    let server = place.serve("none", &[]);
    let source = place.at("outside");
    for (transport, version) in VERSIONS {
        for path in ["/secret", "/closed/inside", "/private/inside", "/roots"] {
            assert_eq!(ok(&["cat", &of(&server, transport, path, version, 0)]), format!("served{path}"));
        }
        let new = of(&server, transport, "/private/new", version, 0);
        ok(&["cp", source.to_str().unwrap(), &new]);
        ok(&["rm", &new]);
        let copy = of(&server, transport, "/shared/copy", version, 0);
        ok(&["cp", "-p", place.at("served/secret").to_str().unwrap(), &copy]);
        let copied = fs::metadata(place.at("served/shared/copy")).unwrap();
        assert_eq!((copied.uid(), copied.mode() & 0o777), (ALICE, 0o600));
        ok(&["rm", &copy]);
    }
    assert!(makes_device(&server));
    server.stop();
}

/// Reports whether root can make a device node.
fn makes_device(server: &Server) -> bool {
    let null = Special::Chr(Device { major: 1, minor: 3 });
    mounted(server, "3", async |mount| mount.mknod("/shared/null", null, SetAttr::default()).await.is_ok())
}

/// Each capability of the unit is needed: without it, something that root may do fails.
#[test]
fn without_a_capability_the_server_refuses_or_says_so() {
    if !is_root("without_a_capability_the_server_refuses_or_says_so") {
        return;
    }
    let place = Place::new();
    for name in ["setuid", "setgid"] {
        let mut server = place.command("root", &[name]);
        let output = server.output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{name}: {}", stderr(&output));
        assert!(stderr(&output).contains("CAP_SETUID and CAP_SETGID"), "{}", stderr(&output));
    }
    let server = place.serve("none", &["dac_override", "dac_read_search"]);
    let url = of(&server, "tcp", "/secret", "3", 0);
    assert!(fails(1, &["cat", &url]).contains("permission denied"));
    assert_eq!(ok(&["cat", &of(&server, "tcp", "/secret", "3", ALICE)]), "served/secret");
    server.stop();
    let server = place.serve("none", &["chown", "mknod"]);
    assert!(!makes_device(&server));
    let source = place.at("served/secret");
    let said = run(&["cp", "-p", source.to_str().unwrap(), &of(&server, "tcp", "/shared/kept", "3", 0)]);
    assert!(fs::metadata(place.at("served/shared/kept")).is_ok_and(|kept| kept.uid() == 0), "{}", stderr(&said));
    server.stop();
}

/// The default of containers: an ordinary user without any capability, as whom all operations run.
#[test]
fn unprivileged_mode_needs_no_capability() {
    if !is_root("unprivileged_mode_needs_no_capability") {
        return;
    }
    let place = Place::new();
    chown(place.at("served"), Some(ALICE), Some(ALICE)).unwrap();
    place.directory("state", ALICE, 0o700);
    let mut command = unprivileged(ALICE, &["serve", "--json", "--rpcbind", "off", "--seccomp", "on"]);
    command.args(["--listen", "tcp://127.0.0.1:0", "--listen", "rdma://127.0.0.1:0", "--state-dir"]);
    command.arg(place.at("state")).arg(place.at("served"));
    let server = Server::spawn(command);
    let source = place.at("outside");
    for (transport, version) in [("tcp", "3"), ("tcp", "4.2"), ("rdma", "4.1")] {
        let new = of(&server, transport, "/new", version, BOB);
        ok(&["cp", source.to_str().unwrap(), &new]);
        assert_eq!(fs::metadata(place.at("served/new")).unwrap().uid(), ALICE);
        assert_eq!(ok(&["cat", &new]), "outside");
        ok(&["rm", &new]);
        assert!(fails(1, &["cat", &of(&server, transport, "/roots", version, 0)]).contains("permission denied"));
    }
    assert!(threads(server.child.id()).iter().all(|thread| thread["CapEff"] == "0000000000000000"));
    server.stop();
}

/// `slipway doctor` names each missing capability, and what is missing without it.
#[test]
fn doctor_names_missing_capabilities() {
    if !is_root("doctor_names_missing_capabilities") {
        return;
    }
    let findings = |less: &[&str]| {
        let output = limited(less).args(["doctor", "--json"]).stdin(Stdio::null()).output().unwrap();
        let all: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        let found = all.as_array().unwrap().iter().find(|finding| finding["check"] == "capabilities").unwrap().clone();
        (found["state"].as_str().unwrap().to_owned(), found["found"].as_str().unwrap().to_owned())
    };
    assert_eq!(findings(&[]).0, "ok");
    for name in unit("CapabilityBoundingSet").split(' ') {
        let (state, found) = findings(&[name.strip_prefix("CAP_").unwrap().to_lowercase().as_str()]);
        assert_ne!(state, "ok", "{name}");
        assert!(found.contains(name), "{name}: {found}");
        assert_eq!(state == "bad", ["CAP_SETUID", "CAP_SETGID"].contains(&name), "{name}");
    }
}

/// The filter is in force in every thread before the first call, and after every transport and a reload.
#[test]
fn every_thread_has_the_filter() {
    let dir = tempfile::tempdir().unwrap();
    let config = dir.path().join("slipway.toml");
    let audit = dir.path().join("audit.json");
    let listen = TRANSPORTS
        .map(|transport| format!("[[listen]]\ntransport = '{transport}'\naddress = '127.0.0.1:0'\n"))
        .concat();
    let text = format!(
        "[audit]\nfile = '{}'\n{listen}[[export]]\nname = '/memory'\nbackend = 'memory'\nsquash = 'none'\n",
        audit.display()
    );
    fs::write(&config, text).unwrap();
    let state = dir.path().join("state");
    let server = Server::start(&["--config", config.to_str().unwrap(), "--state-dir", state.to_str().unwrap()]);
    let filtered = |mode: &str, count: &str| {
        let threads = threads(server.child.id());
        assert!(threads.len() > 2, "{threads:?}");
        for thread in threads {
            let is = (thread["Seccomp"].as_str(), thread["Seccomp_filters"].as_str(), thread["NoNewPrivs"].as_str());
            assert_eq!(is, (mode, count, "1"), "{}", thread["Name"]);
        }
    };
    filtered("2", &own_filters(2));
    for transport in TRANSPORTS {
        ok(&["mkdir", &server.url(transport, &format!("/{transport}"))]);
    }
    fs::rename(&audit, dir.path().join("rotated")).unwrap();
    server.signal(Signal::HUP);
    // The server opens the file again, and answers.
    until("the audit log is there again", || audit.exists());
    ok(&["ls", &server.url("tcp", "")]);
    filtered("2", &own_filters(2));
    server.stop();
}

/// `systemctl reload` sends SIGHUP, which would end a server without a service manager.
#[test]
fn a_reload_by_systemd_does_not_end_the_server() {
    assert_eq!((unit("Type"), unit("ExecReload")), ("notify".to_owned(), "/bin/kill -HUP $MAINPID".to_owned()));
    let dir = tempfile::tempdir().unwrap();
    let manager = UnixDatagram::bind(dir.path().join("notify")).unwrap();
    let notified = || {
        let mut message = [0; 256];
        let count = manager.recv(&mut message).unwrap();
        String::from_utf8(message[..count].to_vec()).unwrap()
    };
    let mut command =
        command(&["serve", "--json", "--rpcbind", "off", "--memory", "64M", "--listen", "tcp://127.0.0.1:0"]);
    command.env("NOTIFY_SOCKET", dir.path().join("notify"));
    let server = Server::spawn(command);
    assert!(notified().contains("READY=1"));
    server.signal(Signal::HUP);
    ok(&["ls", &server.url("tcp", "")]);
    server.stop();
    assert_eq!(notified(), "STOPPING=1");
}

/// Returns the number of filters of a child of this process that installs `own`. A container gives every process one.
fn own_filters(own: u32) -> String {
    let inherited = threads(std::process::id())[0]["Seccomp_filters"].parse::<u32>().unwrap();
    (inherited + own).to_string()
}

#[test]
fn the_filter_can_be_switched_off_or_made_to_log() {
    for (mode, own) in [("off", 0), ("log", 1), ("auto", 2), ("on", 2)] {
        let server = Server::start(&["--memory", "64M", "--seccomp", mode, "--listen", "tcp://127.0.0.1:0"]);
        ok(&["ls", &server.url("tcp", "")]);
        let counts: Vec<_> =
            threads(server.child.id()).iter().map(|thread| thread["Seccomp_filters"].clone()).collect();
        assert!(counts.iter().all(|count| *count == own_filters(own)), "{mode}: {counts:?}");
        server.stop();
    }
}

const ALICE: u32 = 41_001;
const BOB: u32 = 41_002;

const VERSIONS: [(&str, &str); 5] = [("tcp", "3"), ("tcp", "4.0"), ("tcp", "4.2"), ("rdma", "4.1"), ("shm", "3")];
