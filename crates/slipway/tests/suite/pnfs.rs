//! A metadata server and data servers in processes of their own.

use std::{
    collections::HashSet,
    fs,
    path::{Path, PathBuf},
    thread,
};

use client::blocking::Runtime;

use crate::common::{Server, fails, listen, ok, port::Port, run, stderr, until};

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

/// The data of a large file pass directly between `slipway cp` and the data servers, and those of a small file do not. The data
/// servers keep their objects in memory, so that no process needs root to give them to the users of layouts.
#[test]
fn cp_moves_large_files_directly_between_itself_and_data_servers() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    fs::create_dir(at("export")).unwrap();
    let ports: Vec<_> = (0..2).map(|_| Port::take()).collect();
    let data: Vec<_> = ports
        .iter()
        .map(|port| {
            let [flag, address] = listen("tcp", port);
            Server::start(&["--memory", "256M", "--squash", "none", &flag, &address])
        })
        .collect();
    let servers: String = (1..)
        .zip(&data)
        .map(|(id, server)| format!("[[pnfs.server]]\nid = {id}\nurl = '{}'\n", server.url("tcp", "")))
        .collect();
    let text = format!(
        "[server]\nstate_dir = '{0}/state'\n[[listen]]\ntransport = 'tcp'\naddress = '127.0.0.1:0'\n\
         [[export]]\npath = '{0}/export'\nsquash = 'none'\nbackend = 'pnfs'\noptions = {{ cluster = 'two' }}\n\
         [[pnfs]]\nname = 'two'\n{servers}",
        dir.path().display()
    );
    fs::write(at("slipway.toml"), text).unwrap();
    let server = Server::start(&["--config", &at("slipway.toml")]);
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
}

/// A data server is killed under load, and comes back without its objects. Its copies are made again, and all bytes are right. If
/// one is not, the demo fails.
#[test]
fn demo_kills_a_data_server_and_verifies_every_byte() {
    let room = tempfile::tempdir().unwrap();
    let demo = |more: &[&str]| {
        let dir = room.path().to_str().unwrap();
        let args = ["demo", "pnfs", "--size", "4M", "--files", "4", "--seconds", "1", "--dir", dir];
        run(&[&args, more].concat())
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
/// The stripe unit in bytes.
const STRIPE_UNIT: usize = 64 << 10;
