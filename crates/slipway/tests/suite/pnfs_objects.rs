//! Data servers of kind `slipway`: the metadata server computes the handles of their objects.

use std::{fs, path::PathBuf};

use buf::Rope;
use bytes::Bytes;
use client::{Caller, Handle, Mount, Protocol, SetAttr, StableHow, Status, Version};
use nfs::v4::Stateid4;
use pnfs::objects::{
    self, Objects,
    handle::{ClusterKey, ObjectHandle, Right},
};
use rpc::AuthSys;
use rustix::process::Signal;
use server::{AdoptedHandle, HandleKey};

use crate::{
    common::{Server, fails, lines, listen, ok, port::Port, run, until, wait},
    pnfs::{Calls, check, contents, cp, write_in_place},
};

/// Data servers with a key, and the configuration of a metadata server for them.
pub struct Cluster {
    dir: tempfile::TempDir,
    ports: Vec<Port>,
    data: Vec<Option<Server>>,
}

impl Cluster {
    pub fn new(servers: usize) -> Self {
        let ports = (0..servers).map(|_| Port::take()).collect();
        let mut cluster = Self { dir: tempfile::tempdir().unwrap(), ports, data: Vec::new() };
        write_key(&cluster.at("cluster.key"), "0a");
        fs::create_dir(cluster.at("export")).unwrap();
        cluster.data = (0..servers).map(|server| Some(cluster.start_data_server(server))).collect();
        cluster
    }

    pub fn at(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn start_data_server(&self, server: usize) -> Server {
        self.start_with_key(server, "cluster.key")
    }

    fn start_with_key(&self, server: usize, key: &str) -> Server {
        let (data, state, key) = (self.at(&format!("data{server}")), self.at(&format!("state{server}")), self.at(key));
        fs::create_dir_all(&data).unwrap();
        let [flag, address] = listen("tcp", &self.ports[server]);
        let [data, state, key] = [&data, &state, &key].map(|path| path.to_str().unwrap());
        let options = ["--data-server", "--squash", "none", "--cluster-key", key, "--state-dir", state];
        Server::start(&[&options[..], &[data, &flag, &address]].concat())
    }

    /// Writes the configuration of a metadata server that tells clients this version.
    pub fn config(&self, options: &str, version: &str) -> String {
        let dir = self.dir.path().display();
        let server = |at: usize| {
            let (id, address) = (at + 1, self.ports[at].address());
            let url = format!("nfs://{address}{dir}/data{at}?mountport={}", address.port());
            format!("[[pnfs.server]]\nid = {id}\nkind = 'slipway'\nversion = '{version}'\nurl = '{url}'\n")
        };
        let servers: String = (0..self.ports.len()).map(server).collect();
        let text = format!(
            "[server]\nstate_dir = '{dir}/state'\n[[listen]]\ntransport = 'tcp'\naddress = '127.0.0.1:0'\n\
             [[export]]\npath = '{dir}/export'\nsquash = 'none'\nbackend = 'pnfs'\noptions = {{ cluster = 'c' }}\n\
             [[pnfs]]\nname = 'c'\nkey_file = '{dir}/cluster.key'\ntimeout_s = 2\n{options}\n{servers}"
        );
        let path = self.at("slipway.toml");
        fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    }

    pub fn objects(&self, server: usize) -> Vec<Vec<u8>> {
        objects_in(&self.at(&format!("data{server}")))
    }
}

/// Returns the contents of all objects in the directory of a data server. One can be removed meanwhile.
fn objects_in(directory: &std::path::Path) -> Vec<Vec<u8>> {
    let entries = fs::read_dir(directory).unwrap().map(Result::unwrap);
    let objects = entries.filter(|entry| !entry.file_name().to_str().unwrap().starts_with('.'));
    objects.filter_map(|entry| fs::read(entry.path()).ok()).collect()
}

fn write_key(path: &std::path::Path, byte: &str) {
    vfs::private::replace(path, byte.repeat(32).as_bytes()).unwrap();
}

/// Files are written and read directly by every version, and by the metadata server. A data server that was away is repaired.
#[test]
fn files_are_used_directly_and_heal_without_root() {
    for (options, version) in [("", "3"), ("", "4.2"), ("layouts = 'files'\nmirrors = 1\nstripes = 2", "4.1")] {
        let mut cluster = Cluster::new(2);
        let config = cluster.config(options, version);
        let mut server = Server::start(&["--config", &config]);
        let (source, back) = (cluster.at("source"), cluster.at("back"));
        let bytes = contents(7, 5_000_001);
        fs::write(&source, &bytes).unwrap();
        let url = format!("{}&vers=4.2", server.url("tcp", "/file"));
        let copy = |from: &str, to: &str| {
            let done: serde_json::Value = serde_json::from_str(&ok(&["cp", "--json", "-q", from, to])).unwrap();
            done["direct_bytes"].as_u64().unwrap()
        };
        assert!(copy(source.to_str().unwrap(), &url) >= bytes.len() as u64, "{version}: {options}");
        assert_eq!(copy(&url, back.to_str().unwrap()), bytes.len() as u64, "{version}: {options}");
        assert!(fs::read(&back).unwrap() == bytes);
        check(&server, "/file", &bytes, &back);
        if options.is_empty() {
            assert!((0..2).all(|server| cluster.objects(server) == [&bytes[..]]), "{version}");
            cluster.data[1].take().unwrap().stop();
            let second = contents(8, 5_000_001);
            fs::write(&source, &second).unwrap();
            cp(source.to_str().unwrap(), &server.url("tcp", "/file"));
            cluster.data[1] = Some(cluster.start_data_server(1));
            until("the copy must be made again", || cluster.objects(1) == [&second[..]]);
            check(&server, "/file", &second, &back);
        }
        // Objects of new files stay in the queue of removals until the next round. This one removes those of another file.
        copy(source.to_str().unwrap(), &format!("{}&vers=4.2", server.url("tcp", "/other")));
        ok(&["rm", &server.url("tcp", "/other")]);
        until("the objects must be removed", || (0..2).all(|server| cluster.objects(server).len() == 1));
        // A program removes the file, without the server, which has it open until its end.
        let state = cluster.at("state");
        let orphans = |more: &str| {
            let more = (!more.is_empty()).then_some(more);
            let args = ["ds", "orphans", "--json", "--state-dir", state.to_str().unwrap()].into_iter().chain(more);
            lines(&ok(&args.collect::<Vec<_>>()))
        };
        assert_eq!(orphans("--remove"), Vec::<serde_json::Value>::new());
        fs::remove_file(cluster.at("export/file")).unwrap();
        server.stop();
        server = Server::start(&["--config", &config]);
        assert_eq!((orphans("").len(), orphans("--remove").len()), (2, 2), "{version}: {options}");
        until("the objects must be removed", || (0..2).all(|server| cluster.objects(server).is_empty()));
        let found = run(&["doctor", "--config", &config]);
        let text = String::from_utf8(found.stdout).unwrap();
        let good = text.lines().filter(|line| line.contains("the rights are as they must be")).count();
        assert_eq!(good, 2, "{text}");
        server.stop();
    }
}

/// Makes files and writes this many bytes to each. Returns the calls that the data servers have got.
fn calls_of_new_files(servers: usize, options: &str, len: usize) -> Vec<Calls> {
    let cluster = Cluster::new(servers);
    let config = cluster.config(&format!("mirrors = {servers}\n{options}"), "3");
    let server = Server::start(&["--config", &config]);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let url = format!("{}&vers=4.2", server.url("tcp", "")).parse().unwrap();
        let mount = Mount::connect(&url, &transports::for_client()).await.unwrap();
        for number in 0..FILES {
            let file = mount.create(&format!("f{number}"), 0o644).await.unwrap();
            if len > 0 {
                file.write_at(0, Bytes::from(vec![7; len])).await.unwrap();
            }
        }
        mount.unmount().await.unwrap();
    });
    server.stop();
    let calls = cluster.data.into_iter().flatten().map(Calls::of).collect::<Vec<_>>();
    for procedure in ["CREATE", "LOOKUP", "SETATTR", "COMMIT"] {
        assert!(calls.iter().all(|calls| calls.count("3", procedure) == 0), "{procedure}");
    }
    calls
}

/// A new file on data servers needs no call to them, whatever their number, and its first WRITE is one call for each copy: by the
/// client with a layout, and by the metadata server without.
#[test]
fn creation_needs_no_call_to_data_servers() {
    let proxied = "threshold = 0\nlayouts = 'none'";
    for servers in [1, 4] {
        for (options, len, written) in [("threshold = 0", 0, 0), ("", 100_000, FILES), (proxied, 10_000, FILES)] {
            for calls in calls_of_new_files(servers, options, len) {
                assert_eq!(calls.count("3", "WRITE"), written, "{servers} data servers, {options}");
                // The metadata server looks at the size when a client returns its layout, and else at the root directory only.
                let looks = if options.is_empty() { FILES } else { 0 };
                assert!(calls.count("3", "GETATTR") < looks + FILES, "{servers} data servers, {options}");
            }
        }
    }
}

const FILES: u64 = 20;

/// Connects to a data server, and returns the mount and a function that computes handles with its own key.
async fn attacker(
    cluster: &Cluster,
    version: Version,
) -> (Mount, Mount, impl Fn(&ClusterKey, &ObjectHandle) -> Handle) {
    let mut url: client::NfsUrl = cluster.data[0].as_ref().unwrap().url("tcp", "").parse().unwrap();
    url.options.version = Version::V3;
    (url.options.uid, url.options.gid) = (Some(0), Some(0));
    let root = Mount::connect(&url, &transports::for_client()).await.unwrap();
    (url.options.uid, url.options.gid) = (Some(1000), Some(1000));
    url.options.version = version;
    let user = Mount::connect(&url, &transports::for_client()).await.unwrap();
    let directory = root.root().clone();
    let seal = move |key: &ClusterKey, handle: &ObjectHandle| {
        let (export, root) = HandleKey::parts(&directory).unwrap();
        let store = Objects::store_of(root).unwrap();
        Handle::from(AdoptedHandle { export, object: &key.seal(store, handle) }.encode())
    };
    (root, user, seal)
}

async fn write(protocol: &Protocol, handle: &Handle) -> Option<Status> {
    let data = Rope::from(Bytes::from_static(b"attack"));
    protocol.write(handle, 0, data, StableHow::FileSync).await.err().map(|error| error.status().expect("no answer"))
}

async fn read(protocol: &Protocol, handle: &Handle) -> Option<Status> {
    protocol.read(handle, 0, 100).await.err().map(|error| error.status().expect("no answer"))
}

/// A client sends handles that it has made, changed or kept.
#[test]
fn hostile_clients_are_refused_by_every_version() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let mut cluster = Cluster::new(1);
    for (object, version) in [(1, Version::V3), (2, Version::V4_1), (3, Version::V4_2)] {
        runtime.block_on(async {
            let (root, user, seal) = attacker(&cluster, version).await;
            let caller = Caller::new(AuthSys { uid: 1000, gid: 1000, ..AuthSys::of_process() });
            let protocol = match user.v4() {
                Some(v4) => Protocol::V4(v4.clone().with_stateid(Stateid4::ANONYMOUS)),
                None => user.protocol().clone(),
            }
            .with_caller(Some(&caller));
            let (key, mds) = (ClusterKey::new(&[10; 32]), root.protocol());
            let of =
                |right, epoch, object| ObjectHandle { right, create_until: objects::create_until(), epoch, object };
            let (writer, reader) = (of(Right::Write, 1, object), of(Right::Read, 1, object));
            assert_eq!(write(&protocol, &seal(&key, &writer)).await, None);
            assert_eq!(read(&protocol, &seal(&key, &reader)).await, None);
            // A handle to read, of another cluster, and changed.
            assert_eq!(write(&protocol, &seal(&key, &reader)).await, Some(Status::AccessDenied));
            let other = ClusterKey::new(&[11; 32]);
            assert_eq!(write(&protocol, &seal(&other, &writer)).await, Some(Status::StaleHandle));
            let genuine = seal(&key, &reader);
            for at in 8..genuine.len() {
                let mut forged = genuine.to_vec();
                forged[at] ^= 3;
                let forged = Handle::from(Bytes::from(forged));
                assert_eq!(read(&protocol, &forged).await, Some(Status::StaleHandle), "byte {at}");
                assert_eq!(write(&protocol, &forged).await, Some(Status::StaleHandle), "byte {at}");
            }
            // The handle of another export of this server, or of none.
            let mut elsewhere = genuine.to_vec();
            elsewhere[5] ^= 1;
            assert_eq!(read(&protocol, &Handle::from(Bytes::from(elsewhere))).await, Some(Status::StaleHandle));
            // The handles of the metadata server, from a host whose root is squashed or that is not root.
            for handle in [ObjectHandle::control(object, true), ObjectHandle::store()] {
                assert_eq!(write(&protocol, &seal(&key, &handle)).await, Some(Status::AccessDenied));
                assert_eq!(read(&protocol, &seal(&key, &handle)).await, Some(Status::AccessDenied));
            }
            if version == Version::V3 {
                let removed = protocol.remove(&seal(&key, &ObjectHandle::store()), objects::name(1).as_bytes()).await;
                assert_eq!(removed.unwrap_err().status(), Some(Status::AccessDenied));
                let listed = mds.remove(root.root(), objects::name(1).as_bytes()).await;
                assert_eq!(listed.unwrap_err().status(), Some(Status::AccessDenied), "the root directory itself");
            }
            // A fence, and an earlier one that is repeated.
            for epoch in [2, 1] {
                let set = SetAttr { uid: Some(epoch), gid: Some(epoch), ..SetAttr::default() };
                mds.setattr(&seal(&key, &ObjectHandle::control(object, true)), set).await.unwrap();
                assert_eq!(write(&protocol, &seal(&key, &writer)).await, Some(Status::AccessDenied), "{epoch}");
                assert_eq!(read(&protocol, &seal(&key, &reader)).await, Some(Status::AccessDenied), "{epoch}");
            }
            assert_eq!(write(&protocol, &seal(&key, &of(Right::Write, 2, object))).await, None);
        });
        // The fence is in force after a restart.
        let mut killed = cluster.data[0].take().unwrap();
        killed.signal(Signal::KILL);
        wait(&mut killed.child);
        cluster.data[0] = Some(cluster.start_data_server(0));
        runtime.block_on(async {
            let (root, _, seal) = attacker(&cluster, Version::V3).await;
            let handle = ObjectHandle { right: Right::Write, create_until: None, epoch: 1, object };
            let handle = seal(&ClusterKey::new(&[10; 32]), &handle);
            assert_eq!(write(root.protocol(), &handle).await, Some(Status::AccessDenied));
        });
    }
}

/// A data server that has lost its directory refuses the handles of before, and the copies are made again.
#[test]
fn lost_directory_is_repaired() {
    let mut cluster = Cluster::new(2);
    let server = Server::start(&["--config", &cluster.config("layouts = 'none'", "3")]);
    let (source, back) = (cluster.at("source"), cluster.at("back"));
    let bytes = contents(9, 3_000_000);
    fs::write(&source, &bytes).unwrap();
    cp(source.to_str().unwrap(), &server.url("tcp", "/file"));
    // Only the first copy is read, so only its loss is noticed.
    let (file, state) = (cluster.at("export/file"), cluster.at("state"));
    let [file, state] = [&file, &state].map(|path| path.to_str().unwrap());
    let layout = lines(&ok(&["layout", "show", "--json", file, "--state-dir", state])).remove(0);
    let lost = layout["data"]["copies"][0]["server"].as_u64().unwrap() as usize - 1;
    cluster.data[lost].take().unwrap().stop();
    fs::remove_dir_all(cluster.at(&format!("data{lost}"))).unwrap();
    cluster.data[lost] = Some(cluster.start_data_server(lost));
    until("the copy must be made again", || {
        check(&server, "/file", &bytes, &back);
        cluster.objects(lost) == [&bytes[..]]
    });
    cluster.data[lost].take().unwrap().stop();
    cluster.data[lost] = Some(cluster.start_data_server(lost));
    check(&server, "/file", &bytes, &back);
    server.stop();
}

/// A metadata server whose only data server is another directory that it exports itself.
struct Alone {
    dir: tempfile::TempDir,
    port: Port,
}

impl Alone {
    fn new() -> Self {
        let alone = Self { dir: tempfile::tempdir().unwrap(), port: Port::take() };
        ["export", "data"].into_iter().for_each(|name| fs::create_dir(alone.at(name)).unwrap());
        write_key(&alone.at("cluster.key"), "0c");
        alone
    }

    fn at(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Starts the server with this kind of data server, with further settings of the data server and of the cluster.
    fn start(&self, kind: &str, server: &str, cluster: &str) -> Server {
        let (dir, address) = (self.dir.path().display(), self.port.address());
        let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        let objects = match kind {
            "slipway" => format!("backend = 'objects'\noptions = {{ key_file = '{dir}/cluster.key' }}\n"),
            _ => String::new(),
        };
        let text = format!(
            "[server]\nstate_dir = '{dir}/state'\nlease_s = 5\ngrace_s = 5\ndata_server = true\n\
             [[listen]]\ntransport = 'tcp'\naddress = '{address}'\n\
             [[export]]\npath = '{dir}/export'\nsquash = 'none'\nbackend = 'pnfs'\noptions = {{ cluster = 'own' }}\n\
             [[export]]\npath = '{dir}/data'\nsquash = 'none'\n{objects}\
             [[pnfs]]\nname = 'own'\nmirrors = 1\nkey_file = '{dir}/cluster.key'\n{cluster}\n\
             [[pnfs.server]]\nid = 1\nkind = '{kind}'\n{server}\n\
             url = 'nfs://{address}{dir}/data?mountport={}&uid={uid}&gid={gid}'\n",
            address.port()
        );
        fs::write(self.at("slipway.toml"), text).unwrap();
        Server::start(&["--config", self.at("slipway.toml").to_str().unwrap()])
    }

    fn objects(&self) -> Vec<Vec<u8>> {
        objects_in(&self.at("data"))
    }
}

/// One process is the metadata server and its only data server. Clients use it in both roles at the same address.
#[test]
fn metadata_server_is_its_own_only_data_server_over_restarts() {
    for (kind, settings, cluster) in [
        ("nfs3", "", "layouts = 'none'"),
        ("slipway", "", ""),
        ("slipway", "version = '4.1'", ""),
        ("slipway", "version = '4.2'", ""),
        ("slipway", "version = '4.1'", "layouts = 'files'"),
    ] {
        let what = format!("{kind} {settings} {cluster}");
        let alone = Alone::new();
        let mut server = alone.start(kind, settings, cluster);
        let found = run(&["doctor", "--config", alone.at("slipway.toml").to_str().unwrap()]);
        let text = String::from_utf8(found.stdout).unwrap();
        assert!(text.contains("the rights are as they must be") && !text.contains("for one server"), "{what}: {text}");
        let (source, back) = (alone.at("source"), alone.at("back"));
        let mut bytes = contents(11, 5_000_001);
        fs::write(&source, &bytes).unwrap();
        let direct = |server: &Server, to_server: bool| {
            let url = format!("{}&vers=4.2", server.url("tcp", "/file"));
            let (from, to) =
                if to_server { (source.to_str().unwrap(), &*url) } else { (&*url, back.to_str().unwrap()) };
            let done: serde_json::Value = serde_json::from_str(&ok(&["cp", "--json", "-q", from, to])).unwrap();
            done["direct_bytes"].as_u64().unwrap()
        };
        let expected = if cluster == "layouts = 'none'" { 0 } else { bytes.len() as u64 };
        let written = direct(&server, true);
        assert!(written == expected || written > expected && expected > 0, "{what}: {written} bytes written");
        for restart in 0..3 {
            // The clients of before the restart are fenced first.
            until("layouts must be granted again", || {
                let read = direct(&server, false);
                assert!(fs::read(&back).unwrap() == bytes, "{what}: after {restart} restarts");
                read == expected
            });
            cp(&format!("{}&vers=3", server.url("tcp", "/file")), back.to_str().unwrap());
            assert!(fs::read(&back).unwrap() == bytes, "{what}: by NFSv3 after {restart} restarts");
            assert!(alone.objects() == [&bytes[..]], "{what}");
            match restart {
                0 => drop(server.stop()),
                _ => drop(server),
            }
            server = alone.start(kind, settings, cluster);
            let data = contents(restart + 12, 100_000);
            bytes[300_000..400_000].copy_from_slice(&data);
            write_in_place(&server, "/file", 300_000, &data);
        }
        ok(&["rm", &server.url("tcp", "/file")]);
        until("the object must be removed", || alone.objects().is_empty());
        let said = server.stop();
        assert!(!said.contains("clients use NFSv3 at this data server"), "{what}: {said}");
    }
}

#[test]
fn doctor_and_serve_name_wrong_keys() {
    let mut cluster = Cluster::new(2);
    let config = cluster.config("", "3");
    write_key(&cluster.at("other.key"), "0b");
    cluster.data[1].take().unwrap().stop();
    cluster.data[1] = Some(cluster.start_with_key(1, "other.key"));
    let text = String::from_utf8(run(&["doctor", "--config", &config]).stdout).unwrap();
    let bad: Vec<_> = text.lines().filter(|line| line.contains("this host cannot create an object")).collect();
    assert!(bad.len() == 1 && bad[0].contains("c/2"), "{text}");
    assert!(text.contains("give both servers the same key"), "{text}");
    assert!(!text.contains("0b0b"), "a key must not be printed");
    let path = cluster.at("cluster.key");
    fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o644)).unwrap();
    let refused = fails(2, &["serve", "--config", &config]);
    assert!(refused.contains("cluster.key") && refused.contains("chmod 600"), "{refused}");
}
