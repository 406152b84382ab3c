//! A metadata server and data servers in processes of their own.

use std::{
    collections::HashSet,
    fs,
    io::{BufRead, BufReader, Read},
    os::unix::fs::{MetadataExt, chown},
    path::{Path, PathBuf},
    thread,
};

use client::blocking::Runtime;
use rustix::process::Signal;

use crate::common::{
    Server, command, fails, lines, listen,
    mounted::{Mounted, can_mount, mount},
    ok, output,
    port::Port,
    run, stderr, unprivileged, until, wait,
};

/// Three data servers and a metadata server whose files have two copies.
pub struct Cluster {
    pub dir: tempfile::TempDir,
    ports: Vec<Port>,
    pub data: Vec<Option<Server>>,
}

impl Cluster {
    pub fn new() -> Self {
        let ports = (0..SERVERS).map(|_| Port::take()).collect();
        let mut cluster = Self { dir: tempfile::tempdir().unwrap(), ports, data: Vec::new() };
        cluster.data = (0..SERVERS).map(|server| Some(cluster.start_data_server(server))).collect();
        fs::create_dir(cluster.at("export")).unwrap();
        cluster
    }

    pub fn at(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub fn start_data_server(&self, server: usize) -> Server {
        self.start_data_server_with(server, &["--squash", "none"])
    }

    pub fn start_data_server_with(&self, server: usize, options: &[&str]) -> Server {
        let (data, state) = (self.at(&format!("data{server}")), self.at(&format!("state{server}")));
        fs::create_dir_all(&data).unwrap();
        let [flag, address] = listen("tcp", &self.ports[server]);
        let args = ["--state-dir", state.to_str().unwrap(), data.to_str().unwrap(), &flag, &address];
        Server::start(&[options, &args].concat())
    }

    /// Returns the path of the configuration of the metadata server. Data pass through it, so the test needs no privileges.
    pub fn config(&self, more: &str) -> String {
        let dir = self.dir.path().display();
        let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        let servers: String = (0..SERVERS)
            .map(|server| {
                let (id, address) = (server + 1, self.ports[server].address());
                let query = format!("mountport={}&uid={uid}&gid={gid}", address.port());
                format!("[[pnfs.server]]\nid = {id}\nurl = 'nfs://{address}{dir}/data{server}?{query}'\n")
            })
            .collect();
        let text = format!(
            "[server]\nstate_dir = '{dir}/state'\n[[listen]]\ntransport = 'tcp'\naddress = '127.0.0.1:0'\n\
             [[export]]\npath = '{dir}/export'\nsquash = 'none'\nbackend = 'pnfs'\noptions = {{ cluster = 'three' }}\n\
             [[pnfs]]\nname = 'three'\nlayouts = 'none'\ntimeout_s = 1\n{more}\n{servers}"
        );
        let path = self.at("slipway.toml");
        fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    }

    pub fn start(&self) -> Server {
        Server::start(&["--config", &self.config("")])
    }

    /// Returns the contents of all objects of a data server. One can be removed meanwhile.
    pub fn objects(&self, server: usize) -> Vec<Vec<u8>> {
        let entries = fs::read_dir(self.at(&format!("data{server}"))).unwrap();
        entries.filter_map(|entry| fs::read(entry.unwrap().path()).ok()).collect()
    }

    /// Returns the data servers that have one object, with these contents.
    pub fn with_copy(&self, contents: &[u8]) -> Vec<usize> {
        (0..SERVERS).filter(|server| self.objects(*server) == [contents]).collect()
    }
}

/// Copies a file to a URL, or from one.
pub fn cp(from: &str, to: &str) {
    ok(&["cp", from, to]);
}

pub fn contents(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed;
    let next = |_| {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 56) as u8
    };
    (0..len).map(next).collect()
}

/// Checks the contents of a file by each version.
pub fn check(server: &Server, name: &str, expected: &[u8], scratch: &Path) {
    for version in ["3", "4.0", "4.2"] {
        let url = format!("{}&vers={version}", server.url("tcp", name));
        cp(&url, scratch.to_str().unwrap());
        assert!(fs::read(scratch).unwrap() == expected, "version {version} must read what was written");
    }
}

/// Writes to a file that exists, and makes the data durable.
pub fn write_in_place(server: &Server, name: &str, offset: u64, data: &[u8]) {
    let runtime = Runtime::start().unwrap();
    let mount = runtime.connect(&server.url("tcp", "").parse().unwrap(), &transports::for_client()).unwrap();
    let file = mount.open(name).unwrap();
    file.write_at(offset, bytes::Bytes::copy_from_slice(data)).unwrap();
    mount.unmount().unwrap();
}

#[test]
fn mirrors_heal_after_a_data_server_was_away() {
    let mut cluster = Cluster::new();
    let server = cluster.start();
    let (source, back) = (cluster.at("source"), cluster.at("back"));
    let first = contents(1, 3_000_001);
    fs::write(&source, &first).unwrap();
    cp(source.to_str().unwrap(), &server.url("tcp", "/file"));
    check(&server, "/file", &first, &back);
    let copies = cluster.with_copy(&first);
    assert_eq!(copies.len(), 2, "there must be two copies");

    // A data server is away. A file is written in place, so that its objects stay the same.
    cluster.data[copies[0]].take().unwrap().stop();
    let mut second = first.clone();
    second[70_000..1_070_000].copy_from_slice(&contents(2, 1_000_000));
    write_in_place(&server, "/file", 70_000, &second[70_000..1_070_000]);
    check(&server, "/file", &second, &back);
    assert!(cluster.objects(copies[1]) == [&second[..]], "the other copy must have the new data");
    assert!(cluster.objects(copies[0]) == [&first[..]]);
    // New files use the other data servers.
    cp(source.to_str().unwrap(), &server.url("tcp", "/other"));
    assert_eq!((0..SERVERS).filter(|server| cluster.objects(*server).contains(&first)).count(), 3);
    ok(&["rm", &server.url("tcp", "/other")]);

    // It returns, and is healed.
    cluster.data[copies[0]] = Some(cluster.start_data_server(copies[0]));
    until("the copy must be made again", || cluster.with_copy(&second) == copies);
    cluster.data[copies[1]].take().unwrap().stop();
    check(&server, "/file", &second, &back);

    // Objects of removed files are removed, from the data server that is away when it returns.
    ok(&["rm", &server.url("tcp", "/file")]);
    until("the object must be removed", || cluster.objects(copies[0]).is_empty());
    cluster.data[copies[1]] = Some(cluster.start_data_server(copies[1]));
    until("the object must be removed later", || cluster.objects(copies[1]).is_empty());
    server.stop();
}

#[test]
fn objects_of_a_removed_file_stay_until_it_is_closed() {
    if !can_mount("objects_of_a_removed_file_stay_until_it_is_closed") {
        return;
    }
    let cluster = Cluster::new();
    let server = cluster.start();
    let source = cluster.at("source");
    let copy = |contents: &[u8], name: &str| {
        fs::write(&source, contents).unwrap();
        cp(source.to_str().unwrap(), &server.url("tcp", name));
    };
    let (first, second) = (contents(5, 1_000_001), contents(6, 1_000_001));
    copy(&first, "/file");
    let at = cluster.at("mnt");
    fs::create_dir(&at).unwrap();
    let mounted = Mounted::of(mount(&format!("{}&vers=4.2", server.url("tcp", "")), &at), at);
    let mut file = fs::File::open(mounted.at.join("file")).unwrap();
    ok(&["rm", &server.url("tcp", "/file")]);

    // When the objects of another file are removed, those of this one were in the queue before.
    copy(&second, "/other");
    ok(&["rm", &server.url("tcp", "/other")]);
    let has_second = |server: usize| cluster.objects(server).contains(&second);
    until("the objects of the other file must be removed", || (0..SERVERS).all(|server| !has_second(server)));
    assert_eq!(cluster.with_copy(&first).len(), 2);
    let mut read = Vec::new();
    file.read_to_end(&mut read).unwrap();
    assert!(read == first);

    drop(file);
    until("the objects must be removed after the last close", || {
        (0..SERVERS).all(|server| cluster.objects(server).is_empty())
    });
    mounted.end();
    server.stop();
}

/// GNU tar archives a file that takes no storage as one hole.
#[test]
fn file_on_data_servers_takes_space_by_each_version() {
    let cluster = Cluster::new();
    let server = cluster.start();
    let (source, len) = (cluster.at("source"), 3_000_001);
    fs::write(&source, contents(1, len)).unwrap();
    cp(source.to_str().unwrap(), &server.url("tcp", "/file"));
    let inner = fs::metadata(cluster.at("export/file")).unwrap();
    assert!(inner.blocks() * 512 < inner.len(), "the data must be on data servers");
    for version in ["3", "4.0", "4.2"] {
        let url = format!("{}&vers={version}", server.url("tcp", "/file"));
        let stat = &lines(&ok(&["stat", "--json", &url]))[0];
        assert_eq!((&stat["size"], &stat["used"]), (&len.into(), &len.into()), "version {version}");
    }
    server.stop();
}

/// Checks that each unit of a file is on two data servers, and that each data server has two objects with units of one stripe.
fn is_striped(cluster: &Cluster, contents: &[u8]) -> bool {
    let mut copies = vec![0; contents.len().div_ceil(STRIPE_UNIT)];
    for server in 0..SERVERS {
        let objects = cluster.objects(server);
        let mut stripes = HashSet::new();
        for object in &objects {
            for (at, (unit, found)) in contents.chunks(STRIPE_UNIT).zip(object.chunks(STRIPE_UNIT)).enumerate() {
                if unit == found {
                    copies[at] += 1;
                    stripes.insert(at % SERVERS);
                } else if found.iter().any(|byte| *byte != 0) {
                    return false;
                }
            }
        }
        if (objects.len(), stripes.len()) != (2, 2) {
            return false;
        }
    }
    copies.iter().all(|copies| *copies == 2)
}

#[test]
fn striped_files_survive_a_data_server_and_heal() {
    let mut cluster = Cluster::new();
    let config = cluster.config("stripes = 3\nstripe_unit = '64 KiB'");
    let server = Server::start(&["--config", &config]);
    let (source, back) = (cluster.at("source"), cluster.at("back"));
    let first = contents(3, 1_000_001);
    fs::write(&source, &first).unwrap();
    cp(source.to_str().unwrap(), &server.url("tcp", "/file"));
    check(&server, "/file", &first, &back);
    assert!(is_striped(&cluster, &first));

    cluster.data[0].take().unwrap().stop();
    check(&server, "/file", &first, &back);
    let mut second = first.clone();
    second[100_000..900_000].copy_from_slice(&contents(4, 800_000));
    write_in_place(&server, "/file", 100_000, &second[100_000..900_000]);
    check(&server, "/file", &second, &back);
    cluster.data[0] = Some(cluster.start_data_server(0));
    until("the copies must be made again", || is_striped(&cluster, &second));
    cluster.data[1].take().unwrap().stop();
    check(&server, "/file", &second, &back);

    ok(&["rm", &server.url("tcp", "/file")]);
    until("the objects must be removed", || [0, 2].iter().all(|server| cluster.objects(*server).is_empty()));
    server.stop();
}

/// Two data servers that keep their objects in memory, so that no process needs root to give them to the users of layouts.
struct InMemory {
    dir: tempfile::TempDir,
    data: Vec<Server>,
    _ports: Vec<Port>,
}

impl InMemory {
    /// Starts the data servers with their options.
    fn new(options: [&[&str]; 2]) -> Self {
        let ports = [Port::take(), Port::take()];
        let start = |(options, port): (&[&str], &Port)| {
            let [flag, address] = listen("tcp", port);
            Server::start(&[&["--memory", "256M", "--squash", "none", &flag, &address], options].concat())
        };
        let data = options.into_iter().zip(&ports).map(start).collect();
        let memory = Self { dir: tempfile::tempdir().unwrap(), data, _ports: ports.into() };
        fs::create_dir(memory.at("export")).unwrap();
        memory
    }

    fn at(&self, name: &str) -> String {
        self.dir.path().join(name).to_str().unwrap().to_owned()
    }

    /// Writes the configuration of a metadata server that tells clients these versions, and returns its path.
    fn config(&self, versions: [&str; 2]) -> String {
        let server = |(at, server): (usize, &Server)| {
            let (id, url, version) = (at + 1, server.url("tcp", ""), versions[at]);
            format!("[[pnfs.server]]\nid = {id}\nurl = '{url}'\nversion = '{version}'\n")
        };
        let servers: String = self.data.iter().enumerate().map(server).collect();
        let text = format!(
            "[server]\nstate_dir = '{0}/state'\n[[listen]]\ntransport = 'tcp'\naddress = '127.0.0.1:0'\n\
             [[export]]\npath = '{0}/export'\nsquash = 'none'\nbackend = 'pnfs'\noptions = {{ cluster = 'two' }}\n\
             [[pnfs]]\nname = 'two'\n{servers}",
            self.dir.path().display()
        );
        fs::write(self.at("slipway.toml"), text).unwrap();
        self.at("slipway.toml")
    }
}

/// The data of a large file pass directly between `slipway cp` and the data servers, and those of a small file do not. Clients use
/// one data server by NFSv3, and the other one by NFSv4.
#[test]
fn cp_moves_large_files_directly_between_itself_and_data_servers() {
    let memory = InMemory::new([&[], &["--data-server"]]);
    let at = |name: &str| memory.at(name);
    let server = Server::start(&["--config", &memory.config(["3", "4.2"])]);
    let direct = |from: &str, to: &str| {
        let done: serde_json::Value = serde_json::from_str(&ok(&["cp", "--json", "-q", from, to])).unwrap();
        done["direct_bytes"].as_u64().unwrap()
    };
    let len = 30_000_001;
    for (name, len, expected) in [("large", len, len as u64), ("small", 20_000, 0)] {
        let (source, back, bytes) = (at(name), at("back"), contents(3, len));
        fs::write(&source, &bytes).unwrap();
        for version in ["4.1", "4.2"] {
            let url = |more: &str| format!("{}&vers={version}{more}", server.url("tcp", &format!("/{name}{version}")));
            // A writer that is slow can have to write some data again.
            let written = direct(&source, &url(""));
            assert!(written == expected || written > expected && expected > 0, "{version}: {written} bytes written");
            assert_eq!(direct(&url(""), &back), expected, "{version}: read");
            assert!(fs::read(&back).unwrap() == bytes, "{version}: {name}");
            assert_eq!(direct(&url("&pnfs=off"), &back), 0, "pnfs=off");
            assert!(fs::read(&back).unwrap() == bytes, "{version}: {name} through the metadata server");
        }
    }
    server.stop();
    let [first, second] = memory.data.try_into().unwrap_or_else(|_| panic!("there must be two"));
    let (first, second) = (Calls::of(first), Calls::of(second));
    let written = first.count("3", "WRITE");
    assert_eq!(first.count("4", "COMPOUND"), 0);
    // The metadata server copies what it has to both of them by NFSv3, before clients get a layout.
    assert!(second.count("3", "WRITE") < written / 2, "{}", second.0);
    assert!(second.count("4", "COMPOUND") > written / 2, "{}", second.0);
}

/// A metadata server whose data servers are other exports of the same process. Clients use them by NFSv3.
#[test]
fn metadata_server_is_its_own_data_server() {
    let (dir, port) = (tempfile::tempdir().unwrap(), Port::take());
    let at = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    fs::create_dir(at("export")).unwrap();
    let address = port.address();
    let data = |id: usize| {
        let export = format!("[[export]]\nname = '/data{id}'\nbackend = 'memory'\nsize = '64 MiB'\nsquash = 'none'\n");
        let url = format!("nfs://{address}/data{id}?mountport={}", address.port());
        (export, format!("[[pnfs.server]]\nid = {id}\nurl = '{url}'\n"))
    };
    let ((one, first), (two, second)) = (data(1), data(2));
    let text = format!(
        "[server]\nstate_dir = '{0}/state'\n[[listen]]\ntransport = 'tcp'\naddress = '{address}'\n\
         [[export]]\npath = '{0}/export'\nsquash = 'none'\nbackend = 'pnfs'\noptions = {{ cluster = 'own' }}\n{one}{two}\
         [[pnfs]]\nname = 'own'\n{first}{second}",
        dir.path().display()
    );
    fs::write(at("slipway.toml"), text).unwrap();
    let server = Server::start(&["--config", &at("slipway.toml")]);
    let (len, path) = (5_000_001, format!("{}/file", at("export")));
    let bytes = contents(9, len);
    fs::write(at("source"), &bytes).unwrap();
    let url = |version: &str| format!("nfs://{address}{path}?mountport={}&vers={version}", address.port());
    let direct = |from: &str, to: &str| {
        let done: serde_json::Value = serde_json::from_str(&ok(&["cp", "--json", "-q", from, to])).unwrap();
        done["direct_bytes"].as_u64().unwrap() as usize
    };
    assert!(direct(&at("source"), &url("4.2")) >= len);
    // Those of NFSv3 are clients of the metadata server, which calls itself.
    for (version, expected) in [("4.1", len), ("4.2", len), ("3", 0), ("4.0", 0)] {
        assert_eq!(direct(&url(version), &at("back")), expected, "version {version}");
        assert!(fs::read(at("back")).unwrap() == bytes, "version {version}");
    }
    let listed = lines(&ok(&["ds", "list", "--json", "--state-dir", &at("state")]));
    assert!(listed.iter().all(|server| server["state"] == "in_service" && server["objects"] == 1), "{listed:?}");
    server.stop();
}

/// The counters of a server.
pub struct Calls(String);

impl Calls {
    pub fn of(mut server: Server) -> Self {
        server.signal(Signal::USR1);
        let lines = BufReader::new(server.child.stderr.take().unwrap()).lines().map(Result::unwrap);
        let table = lines.take_while(|line| !line.starts_with("recovery database")).collect::<Vec<_>>().join("\n");
        server.signal(Signal::TERM);
        assert!(wait(&mut server.child).success());
        Self(table)
    }

    /// Returns the number of calls of a procedure.
    pub fn count(&self, version: &str, procedure: &str) -> u64 {
        let rows = self.0.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
        let is_it = |row: &&[&str]| row.len() > 3 && row[0] == "100003" && (row[1], row[2]) == (version, procedure);
        rows.filter(|row| is_it(&&row[..])).map(|row| row[3].parse::<u64>().unwrap()).sum()
    }
}

/// A data server that does not say that it is one by NFSv4 is used by NFSv3, and `doctor` says why.
#[test]
fn clients_use_only_versions_that_a_data_server_offers() {
    let memory = InMemory::new([&[], &["--data-server"]]);
    let config = memory.config(["4.1", "4.1"]);
    let (source, bytes) = (memory.at("source"), contents(5, 40_000_000));
    fs::write(&source, &bytes).unwrap();
    let server = Server::start(&["--config", &config]);
    let url = format!("{}&vers=4.2", server.url("tcp", "/file"));
    let done: serde_json::Value = serde_json::from_str(&ok(&["cp", "--json", "-q", &source, &url])).unwrap();
    assert!(done["direct_bytes"].as_u64().unwrap() >= 40_000_000, "{done}");
    let said = server.stop();
    let warnings: Vec<_> = said.lines().filter(|line| line.contains("clients use NFSv3 at this data server")).collect();
    assert_eq!(warnings.len(), 1, "{said}");
    assert!(warnings[0].contains(&memory.data[0].port("tcp").to_string()), "{said}");

    let found = run(&["doctor", "--config", &config]);
    let text = String::from_utf8(found.stdout).unwrap();
    let roles: Vec<_> = text.lines().filter(|line| line.contains("it does not say that it is a data server")).collect();
    assert_eq!(roles.len(), 1, "{text}");
    assert!(roles[0].contains("two/1") && roles[0].contains("by version 4.1"), "{text}");
    // Both have all data, in WRITEs of at most 1 MiB. The metadata server and `doctor` asked for the role by a few requests.
    let [first, second] = memory.data.try_into().unwrap_or_else(|_| panic!("there must be two"));
    let (first, second) = (Calls::of(first), Calls::of(second));
    assert!(first.count("3", "WRITE") >= 38 && first.count("4", "COMPOUND") < 30, "{}", first.0);
    assert!(second.count("3", "WRITE") < 10 && second.count("4", "COMPOUND") >= 38, "{}", second.0);
}

/// A data server is killed under load, and comes back without its objects. Its copies are made again, and all bytes are right. If
/// one is not, the demo fails. It needs no root.
#[test]
fn demo_kills_a_data_server_and_verifies_every_byte() {
    let room = tempfile::tempdir().unwrap();
    let is_root = rustix::process::geteuid().is_root();
    if is_root {
        chown(&room, Some(USER), Some(USER)).unwrap();
    }
    let demo = |more: &[&str]| {
        let dir = room.path().to_str().unwrap();
        let args = ["demo", "pnfs", "--size", "4M", "--files", "4", "--seconds", "1", "--dir", dir];
        let args = [&args, more].concat();
        output(if is_root { unprivileged(USER, &args) } else { command(&args) })
    };
    let (right, wrong) = thread::scope(|scope| {
        let wrong = scope.spawn(|| demo(&["--damage"]));
        (demo(&[]), wrong.join().unwrap())
    });
    let text = str::from_utf8(&right.stdout).unwrap();
    assert!(right.status.success(), "{text}{}", stderr(&right));
    let at = |event: &str| text.find(event).unwrap_or_else(|| panic!("no {event:?} in\n{text}"));
    let events =
        ["was killed by SIGKILL", "goes on with the other copies", "is back", "healed", "the load ends", "Every byte"];
    assert!(events.map(at).is_sorted(), "{text}");
    // Each file has two copies, and each is read from its data server.
    let copies = text.lines().filter_map(|line| line.strip_prefix("copies on data server ")?.split_whitespace().nth(1));
    assert_eq!(copies.map(|count| count.parse::<u32>().unwrap()).sum::<u32>(), 8, "{text}");
    assert_eq!(wrong.status.code(), Some(1), "{}", String::from_utf8_lossy(&wrong.stdout));
    assert!(stderr(&wrong).contains("blocks are wrong"), "{}", stderr(&wrong));
    assert_eq!(fs::read_dir(&room).unwrap().count(), 0, "the demo must remove its files");
}

#[test]
fn wrong_clusters_are_refused_with_the_reason() {
    let cluster = Cluster::new();
    let refused = |more: &str, message: &str| {
        let said = fails(2, &["serve", "--rpcbind", "off", "--config", &cluster.config(more)]);
        assert!(said.contains(message), "{said}");
    };
    refused("mirrors = 4", "pnfs 'three': mirrors = 4 needs as many data servers, and there are 3");
    refused("stripes = 4", "pnfs 'three': stripes = 4 needs as many data servers, and there are 3");
    refused("stripes = 0", "stripes = 0: it must be from 1 to 16");
    refused("stripe_unit = '1 KiB'", "stripe_unit: 1024 bytes are no multiple of 4 KiB from 64 KiB to 1 GiB");
    refused("mirrors = 0", "pnfs 'three': mirrors = 0: it must be from 1 to 16");
    refused(
        "[[pnfs.server]]\nid = 1\nurl = 'nfs://h/other'",
        "pnfs 'three': server 1: server 1 has the same id or the same url",
    );
    refused("[[pnfs.server]]\nid = 9\nurl = 'nfs://h/other?vers=4.2'", "server 9: data servers are used by NFSv3");
    refused("[[pnfs.server]]\nid = 9\nurl = 'h:/other'", "server 9: url: ");
    refused("[[pnfs]]\nname = 'three'", "the configuration has two [[pnfs]] with the name 'three'");
}

pub const SERVERS: usize = 3;
/// An ordinary user, who may have no entry in the user database.
const USER: u32 = 41_003;
/// The stripe unit in bytes.
const STRIPE_UNIT: usize = 64 << 10;
