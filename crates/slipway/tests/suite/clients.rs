//! Tests of `slipway clients`: the list of clients, and eviction.

use crate::common;
use std::{
    fs,
    io::{Read, Write},
    os::unix::{fs::PermissionsExt, net::UnixStream, process::CommandExt},
    path::Path,
    sync::Arc,
};

use crate::common::{Server, command, fails, finish, lines, ok};
use client::{LockRange, Mount};
use serde_json::Value;

struct World {
    server: Server,
    state: String,
    dir: tempfile::TempDir,
}

impl World {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("served")).unwrap();
        fs::write(dir.path().join("served/file"), "content").unwrap();
        let state = dir.path().join("state");
        let server = Server::dir(&dir.path().join("served"), &state);
        Self { server, state: state.to_str().unwrap().to_owned(), dir }
    }

    async fn mount(&self) -> Mount {
        let mut switch = rpc::Switch::new();
        switch.register(Arc::new(rpc::TcpKind::new(Default::default(), buf::Pool::default())));
        let url = format!("{}&vers=4.2&timeo=30s", self.server.url("tcp", ""));
        Mount::connect(&url.parse().unwrap(), &switch).await.unwrap()
    }

    fn ask(&self, args: &[&str]) -> String {
        ok(&[&["clients", "--state-dir", &self.state][..], args].concat())
    }

    fn list(&self) -> Vec<Value> {
        lines(&self.ask(&["--json"]))
    }

    fn socket(&self) -> std::path::PathBuf {
        Path::new(&self.state).join("admin.sock")
    }
}

fn of<'a>(records: &'a [Value], kind: &str) -> Vec<&'a Value> {
    records.iter().filter(|record| record["type"] == kind).collect()
}

#[tokio::test]
async fn clients_are_listed_and_one_is_evicted() {
    let world = World::new();
    assert_eq!((world.ask(&[]), world.list()), (String::new(), Vec::new()));
    let (a, b) = (world.mount().await, world.mount().await);
    let file = a.open("file").await.unwrap();
    file.write_at(0, bytes::Bytes::from_static(b"changed")).await.unwrap();
    let range = LockRange { offset: 2, length: 3, exclusive: true };
    assert_eq!(a.v4().unwrap().lock(file.handle(), b"process", range).await.unwrap(), None);

    let records = world.list();
    let fileid = serde_json::json!(std::os::unix::fs::MetadataExt::ino(
        &fs::metadata(world.dir.path().join("served/file")).unwrap()
    ));
    let [lock] = of(&records, "lock")[..] else { panic!("{records:?}") };
    assert_eq!((&lock["start"], &lock["length"], &lock["exclusive"]), (&2.into(), &3.into(), &true.into()));
    assert_eq!((&lock["fileid"], &lock["export"]), (&fileid, &world.server.ready["exports"][0]));
    let holder = lock["client"].as_str().unwrap();
    assert!(of(&records, "open").iter().any(|open| open["client"] == holder && open["write"] == true), "{records:?}");
    assert_eq!((of(&records, "client").len(), of(&records, "session").len()), (2, 2));
    let connection = &of(&records, "session")[0]["connections"][0];
    assert!(connection["address"].as_str().unwrap().starts_with("127.0.0.1:"), "{connection}");
    let table = world.ask(&[]);
    assert!(table.lines().count() == 3 && table.contains(holder) && table.contains("tcp://127.0.0.1:"), "{table}");
    let details = world.ask(&[holder]);
    assert!(details.contains("exclusive 2 to 4") && details.contains("session"), "{details}");

    let theirs = b.open("file").await.unwrap();
    let in_the_way = b.v4().unwrap().lock(theirs.handle(), b"process", range).await.unwrap();
    assert_eq!(in_the_way, Some(range));
    world.ask(&["--evict", holder]);
    assert!(world.list().iter().all(|record| record["client"] != holder));
    assert_eq!(b.v4().unwrap().lock(theirs.handle(), b"process", range).await.unwrap(), None);
    assert_eq!(a.stat("file").await.unwrap().size, 7, "an evicted client must come back without its state");
    assert_eq!(a.v4().unwrap().lock(file.handle(), b"another", range).await.unwrap(), Some(range));
    assert!(fails(1, &["clients", "--state-dir", &world.state, "--evict", holder]).contains(holder));
    assert!(!world.server.stop().contains("panicked"));
}

#[test]
fn socket_is_for_the_owner_and_is_removed_with_the_server() {
    let mut world = World::new();
    let socket = world.socket();
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(&socket), mode(Path::new(&world.state))), (0o600, 0o700));
    if rustix::process::geteuid().is_root() {
        // The file permissions let another user connect, and the server still rejects it.
        let open = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        [world.dir.path(), Path::new(&world.state)].into_iter().for_each(|dir| open(dir, 0o755));
        open(&socket, 0o666);
        let binary = world.dir.path().join("slipway");
        fs::copy(env!("CARGO_BIN_EXE_slipway"), &binary).unwrap();
        open(&binary, 0o755);
        let mut other = std::process::Command::new(&binary);
        other.args(["clients", "--state-dir", &world.state]).uid(65_534).gid(65_534);
        let pipe = std::process::Stdio::piped;
        let output = finish(other.stdout(pipe()).stderr(pipe()).spawn().unwrap());
        assert_eq!((output.status.code(), output.stdout.len()), (Some(1), 0), "{output:?}");
        assert!(common::stderr(&output).contains("the server's user"), "{output:?}");
        world.ask(&[]);
    } else {
        eprintln!("SKIPPED request of another user: needs root");
    }
    // A killed server leaves the socket, and the next one replaces it.
    world.server.child.kill().unwrap();
    world.server.child.wait().unwrap();
    assert!(fails(3, &["clients", "--state-dir", &world.state]).contains("--state-dir"));
    world.server = Server::dir(&world.dir.path().join("served"), Path::new(&world.state));
    world.ask(&[]);
    let World { server, dir, .. } = world;
    server.stop();
    assert!(!socket.exists());
    drop(dir);
}

/// No input to the socket ends the server, or blocks other requests.
#[test]
fn invalid_requests_do_not_disturb_the_server() {
    let world = World::new();
    for said in [&b""[..], b"\n\n\n", b"{\"evict\":{\"client\":\"nlm0\"}}\n", &[b'{'; 1 << 16], &[0; 1 << 16]] {
        let mut stream = UnixStream::connect(world.socket()).unwrap();
        // The server may close the connection before it has read everything.
        let _ = stream.write_all(said);
        let _ = stream.shutdown(std::net::Shutdown::Write);
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
    }
    // The server waits for a silent connection only for a limited time.
    let silent = UnixStream::connect(world.socket()).unwrap();
    let asked =
        command(&["clients", "--state-dir", &world.state]).stdout(std::process::Stdio::piped()).spawn().unwrap();
    drop(silent);
    let mut asked = asked;
    assert!(common::wait(&mut asked).success());
    world.server.stop();
}
