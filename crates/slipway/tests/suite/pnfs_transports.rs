//! Layouts of both types end to end: a metadata server and data servers in processes of their own, and a client that uses the data
//! servers over TCP, RDMA and shared memory.

use std::{
    fs::{self, File, OpenOptions},
    io::{BufRead, BufReader},
    os::unix::fs::FileExt,
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use bytes::Bytes;
use client::{Mount, blocking::Runtime};
use rustix::{
    fs::{FallocateFlags, fallocate},
    process::Signal,
};
use serde_json::Value;

use crate::{
    common::{
        Server, listen,
        mounted::{Mounted, can_mount, mount},
        ok,
        port::Port,
        wait,
    },
    pnfs::contents,
};

/// A metadata server whose files have two stripes, and two data servers that keep their objects in memory. So no process needs root.
struct Cluster {
    dir: tempfile::TempDir,
    metadata: Server,
    data: [DataServer; 2],
    _ports: [Port; 2],
}

/// A data server that logs all operations, and the lines that it has said. A thread reads them, so that the server does not wait.
struct DataServer(Server, mpsc::Receiver<String>);

/// The traffic of a data server by NFSv4, which only clients use.
#[derive(Debug)]
struct Traffic {
    /// The bytes of all calls and replies.
    bytes: u64,
    /// The transport of each READ and WRITE.
    transports: Vec<String>,
}

/// The transports of the metadata server and of both data servers. Each data server also listens on TCP for the metadata server.
struct Shape {
    layouts: &'static str,
    metadata: &'static str,
    data: [&'static [&'static str]; 2],
}

impl Cluster {
    fn start(shape: &Shape) -> Self {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("export")).unwrap();
        let data = [(); 2].map(|()| DataServer::start());
        let server = |(at, DataServer(server, _)): (usize, &DataServer)| {
            let address = |transport: &&str| {
                format!("{{ transport = '{transport}', address = '127.0.0.1:{}' }}", server.port(transport))
            };
            let addresses: Vec<_> = shape.data[at].iter().map(address).collect();
            let (id, url, addresses) = (at + 1, server.url("tcp", ""), addresses.join(", "));
            format!("[[pnfs.server]]\nid = {id}\nurl = '{url}'\nversion = '4.1'\naddress = [{addresses}]\n")
        };
        let servers: String = data.iter().enumerate().map(server).collect();
        let ports = [Port::take(), Port::take()];
        let text = format!(
            "[server]\nstate_dir = '{0}/state'\n\
             [[export]]\npath = '{0}/export'\nsquash = 'none'\nbackend = 'pnfs'\noptions = {{ cluster = 'two' }}\n\
             [[pnfs]]\nname = 'two'\nlayouts = '{1}'\nmirrors = 1\nstripes = 2\nstripe_unit = '64 KiB'\n{servers}",
            dir.path().display(),
            shape.layouts
        );
        let config = dir.path().join("slipway.toml");
        fs::write(&config, text).unwrap();
        let mut args = vec!["--config".to_owned(), config.to_str().unwrap().to_owned()];
        // A client without RDMA or shared memory needs the port of TCP.
        args.extend(["tcp", shape.metadata].iter().zip(&ports).flat_map(|(name, port)| listen(name, port)));
        if shape.metadata == "tcp" {
            args.truncate(4);
        }
        Self { dir, metadata: Server::start(&args), data, _ports: ports }
    }

    fn at(&self, name: &str) -> String {
        self.dir.path().join(name).to_str().unwrap().to_owned()
    }

    fn url(&self, shape: &Shape, name: &str) -> String {
        format!("{}&vers=4.1", self.metadata.url(shape.metadata, name))
    }

    /// Ends all servers. Returns the bytes of all calls and replies of the metadata server, and the traffic of each data server.
    fn traffic(self) -> (u64, [Traffic; 2]) {
        let Self { mut metadata, data, .. } = self;
        let said = log_of(&mut metadata);
        (bytes(&end(metadata, said), &["3", "4"]), data.map(DataServer::traffic))
    }
}

impl DataServer {
    fn start() -> Self {
        let mut server = Server::everywhere(&["-vv", "--data-server", "--memory", "256M", "--squash", "none"]);
        let said = log_of(&mut server);
        Self(server, said)
    }

    fn traffic(self) -> Traffic {
        let Self(server, said) = self;
        let lines = end(server, said);
        let moves_data =
            |line: &&String| ["READ", "WRITE"].iter().any(|name| line.contains(&format!("operation=\"{name}\"")));
        let transport = |line: &String| line.split("transport=\"").nth(1)?.split('"').next().map(str::to_owned);
        let transports = lines.iter().filter(moves_data).map(|line| transport(line).expect("a transport")).collect();
        Traffic { bytes: bytes(&lines, &["4"]), transports }
    }
}

/// Returns the lines that a server says from now on.
fn log_of(server: &mut Server) -> mpsc::Receiver<String> {
    let log = BufReader::new(server.child.stderr.take().unwrap());
    let (lines, said) = mpsc::channel();
    thread::spawn(move || log.lines().map_while(Result::ok).try_for_each(|line| lines.send(line)));
    said
}

/// Ends a server after it has said its counters. Returns all that it has said.
fn end(mut server: Server, said: mpsc::Receiver<String>) -> Vec<String> {
    server.signal(Signal::USR1);
    let mut lines: Vec<_> = said.iter().take_while(|line| !line.starts_with("recovery database")).collect();
    server.signal(Signal::TERM);
    assert!(wait(&mut server.child).success());
    lines.extend(said);
    lines
}

/// Returns the bytes of all calls and replies of these versions of NFS, from the counters that a server has said.
fn bytes(lines: &[String], versions: &[&str]) -> u64 {
    let rows = lines.iter().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let of_nfs = rows.filter(|row| row.len() == 10 && row[0] == "100003" && versions.contains(&row[1]));
    of_nfs.map(|row| row[8].parse::<u64>().unwrap() + row[9].parse::<u64>().unwrap()).sum()
}

/// Copies by `slipway cp`, and returns the bytes that passed directly between it and data servers.
fn direct(from: &str, to: &str) -> usize {
    let done: Value = serde_json::from_str(&ok(&["cp", "--json", "-q", from, to])).unwrap();
    done["direct_bytes"].as_u64().unwrap() as usize
}

/// Writes and reads a file. Checks that all data passed directly, over these transports of the data servers.
fn moves_data_directly(shape: &Shape, transports: [&str; 2]) {
    let cluster = Cluster::start(shape);
    let what = format!("{} by {} with {:?}", shape.layouts, shape.metadata, shape.data);
    let bytes = contents(7, LEN);
    fs::write(cluster.at("source"), &bytes).unwrap();
    let url = cluster.url(shape, "/file");
    // A writer that is slow can have to write some data again.
    let written = direct(&cluster.at("source"), &url);
    assert!(written >= LEN, "{what}: {written} bytes written");
    assert_eq!(direct(&url, &cluster.at("back")), LEN, "{what}");
    assert!(fs::read(cluster.at("back")).unwrap() == bytes, "{what}: the content");
    // Reads within one stripe, over the edge of two, and at the end of the file, into the buffers of a program.
    let runtime = Runtime::start().unwrap();
    let mount = runtime.connect(&cluster.url(shape, "").parse().unwrap(), &transports::for_client()).unwrap();
    let file = mount.open("/file").unwrap();
    for range in [UNIT..2 * UNIT, 3 * UNIT - 100..3 * UNIT + 4000, UNIT - 1..4 * UNIT + 1, LEN - 70_000..LEN] {
        let mut buffer = vec![0; range.len()];
        let read = file.read_at(&mut buffer, range.start as u64).unwrap();
        assert!(read == range.len() && buffer == bytes[range.clone()], "{what}: {range:?}");
    }
    drop(file);
    mount.unmount().unwrap();
    for (traffic, transport) in check_traffic(cluster, &what).iter().zip(transports) {
        let used = &traffic.transports;
        // Half of the units are here, and were written and read.
        assert!(used.len() >= LEN / UNIT, "{what}: {} operations", used.len());
        assert!(used.iter().all(|used| used == transport), "{what}: {transport} must be used: {used:?}");
    }
}

/// Ends a cluster with a file that was written and read. Checks that its data passed the metadata server by. Returns the traffic of the data
/// servers.
fn check_traffic(cluster: Cluster, what: &str) -> [Traffic; 2] {
    let (metadata, data) = cluster.traffic();
    assert!(metadata < LEN as u64 / 8, "{what}: {metadata} bytes passed through the metadata server");
    // Each data server has half of the data, give or take a unit.
    let halves = data.iter().all(|traffic| traffic.bytes >= (LEN - UNIT) as u64);
    assert!(halves, "{what}: {:?}", data.each_ref().map(|traffic| traffic.bytes));
    data
}

/// Data servers that clients can reach over one transport only.
#[test]
fn data_pass_directly_by_each_layout_over_each_transport() {
    let shape =
        |layouts, metadata: &'static str, data: &'static [&'static str]| Shape { layouts, metadata, data: [data; 2] };
    thread::scope(|scope| {
        for layouts in ["files", "flexible"] {
            for (metadata, data) in [("tcp", &["tcp"]), ("rdma", &["rdma"]), ("shm", &["shm"])] {
                scope.spawn(move || moves_data_directly(&shape(layouts, metadata, data), [data[0]; 2]));
            }
        }
    });
}

/// The client chooses the transport of each data server: its own where there is one, and another one otherwise.
#[test]
fn transport_is_chosen_for_each_data_server() {
    for layouts in ["files", "flexible"] {
        let own = Shape { layouts, metadata: "shm", data: [&["tcp", "shm"], &["rdma"]] };
        moves_data_directly(&own, ["shm", "rdma"]);
        let remote = Shape { layouts, metadata: "rdma", data: [&["shm", "tcp", "rdma"], &["shm", "tcp"]] };
        moves_data_directly(&remote, ["rdma", "tcp"]);
    }
}

/// A client over TCP may be on another host, and so gets no address of shared memory. Its data pass through the metadata server.
#[test]
fn shared_memory_is_only_for_clients_that_mount_over_it() {
    let shape = Shape { layouts: "files", metadata: "shm", data: [&["shm"], &["shm"]] };
    let cluster = Cluster::start(&shape);
    let bytes = contents(8, LEN);
    fs::write(cluster.at("source"), &bytes).unwrap();
    let by_tcp = format!("{}&vers=4.1", cluster.metadata.url("tcp", "/file"));
    assert_eq!(direct(&cluster.at("source"), &by_tcp), 0);
    assert_eq!(direct(&by_tcp, &cluster.at("back")), 0);
    assert!(fs::read(cluster.at("back")).unwrap() == bytes);
    assert_eq!(direct(&cluster.url(&shape, "/file"), &cluster.at("back")), LEN);
    assert!(fs::read(cluster.at("back")).unwrap() == bytes);
}

/// `slipway bench` measures data servers.
#[test]
fn bench_uses_layouts() {
    for layouts in ["files", "flexible"] {
        let shape = Shape { layouts, metadata: "shm", data: [&["shm"], &["shm"]] };
        let cluster = Cluster::start(&shape);
        let url = cluster.url(&shape, "");
        for operation in ["read", "write"] {
            let options = ["--seconds", "0.2", "--rounds", "1", "--file-size", "8M", "--block", "64K", "--json"];
            ok(&[&["bench", operation, "--url", &url], &options[..]].concat());
        }
        let (metadata, data) = cluster.traffic();
        assert!(data.iter().all(|traffic| traffic.bytes > metadata), "{layouts}: {metadata}");
    }
}

/// `slipway mount` writes and reads at data servers.
#[test]
fn mount_uses_layouts() {
    if !can_mount("mount_uses_layouts") {
        return;
    }
    for layouts in ["files", "flexible"] {
        let shape = Shape { layouts, metadata: "shm", data: [&["shm"], &["shm"]] };
        let cluster = Cluster::start(&shape);
        let (bytes, at) = (contents(9, LEN), cluster.dir.path().join("mnt"));
        fs::create_dir(&at).unwrap();
        let mounted = || Mounted::of(mount(&cluster.url(&shape, ""), &at), at.clone());
        let first = mounted();
        fs::write(at.join("file"), &bytes).unwrap();
        first.end();
        // Without the page cache of the first mount.
        let second = mounted();
        assert!(fs::read(at.join("file")).unwrap() == bytes, "{layouts}");
        second.end();
        check_traffic(cluster, layouts);
    }
}

/// The server recalls layouts before it reserves space, and the client waits for that with its own layout among them.
#[test]
fn client_returns_its_layout_while_it_waits_for_allocate_and_truncate() {
    let test = "client_returns_its_layout_while_it_waits_for_allocate_and_truncate";
    if !can_mount(test) {
        return;
    }
    for (layouts, transport) in [("files", "shm"), ("flexible", "shm"), ("flexible", "tcp")] {
        let shape = Shape { layouts, metadata: transport, data: [&["shm", "tcp"], &["shm", "tcp"]] };
        let cluster = Cluster::start(&shape);
        let url = format!("{}&vers=4.2", cluster.metadata.url(transport, ""));
        let mounts = ["one", "other"].map(|name| {
            let at = cluster.dir.path().join(name);
            fs::create_dir(&at).unwrap();
            Mounted::of(mount(&url, &at), at)
        });
        let paths = ["one/file", "other/file"].map(|name| cluster.dir.path().join(name));
        let mut expected = contents(10, LEN);
        let file = File::create_new(&paths[0]).unwrap();
        let write = |file: &File, bytes: &[u8], offset: usize| {
            file.write_all_at(bytes, offset as u64).unwrap();
            file.sync_all().unwrap();
        };
        write(&file, &expected, 0);
        // Another client has a layout to write, too.
        let other = OpenOptions::new().write(true).open(&paths[1]).unwrap();
        write(&other, &expected[..1 << 20], 0);

        fallocate(&file, FallocateFlags::empty(), 0, LEN as u64 + 5000).unwrap();
        expected.resize(LEN + 5000, 0);
        write(&file, b"reserved", LEN);
        expected[LEN..LEN + 8].copy_from_slice(b"reserved");
        assert!(fs::read(&paths[0]).unwrap() == expected, "{layouts}");

        write(&other, b"before", 3_000_000);
        file.set_len(3_000_003).unwrap();
        file.set_len(LEN as u64).unwrap();
        expected[3_000_000..3_000_003].copy_from_slice(b"bef");
        expected.truncate(3_000_003);
        expected.resize(LEN, 0);
        write(&file, b"after", LEN - 5);
        expected[LEN - 5..].copy_from_slice(b"after");
        drop((file, other));
        mounts.into_iter().for_each(Mounted::end);
        let by_server = format!("{}&vers=3", cluster.metadata.url(transport, "/file"));
        ok(&["cp", &by_server, &cluster.at("back")]);
        assert!(fs::read(cluster.at("back")).unwrap() == expected, "{layouts}");
    }
}

/// `--limit` holds over each transport: data take at least the time of a link of that rate.
#[test]
fn limit_of_a_data_server_is_in_force_over_each_transport() {
    const RATE: u32 = 2_000_000;
    let limit = RATE.to_string();
    let server = Server::everywhere(&["--data-server", "--memory", "64M", "--squash", "none", "--limit", &limit]);
    let data = Bytes::from(vec![7; 1 << 20]);
    let least = Duration::from_secs(data.len() as u64) / RATE;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    for transport in ["tcp", "rdma", "shm"] {
        let took = runtime.block_on(async {
            let url = server.url(transport, "").parse().unwrap();
            let mount = Mount::connect(&url, &transports::for_client()).await.unwrap();
            let file = mount.create(transport, 0o644).await.unwrap();
            let begun = Instant::now();
            file.write_at(0, data.clone()).await.unwrap();
            let written = begun.elapsed();
            assert_eq!(mount.read(transport).await.unwrap(), data, "{transport}");
            [written, begun.elapsed() - written]
        });
        // A short time before counts, too.
        assert!(took.into_iter().all(|took| took > least * 3 / 4), "{transport}: {took:?}, and not {least:?}");
    }
    server.stop();
}

/// The bytes of a file, which do not end at the end of a unit.
const LEN: usize = 8_000_001;
/// The stripe unit in bytes.
const UNIT: usize = 64 << 10;
