//! `slipway doctor` with the data servers of a pNFS metadata server that clients use by NFSv4.

use std::{fs, path::Path};

use serde_json::Value;

use crate::common::{Server, listen, port::Port, run, stderr};

/// Returns what `slipway doctor` finds wrong about data servers: the number of the data server, and the text.
fn wrong(config: &Path) -> Vec<(String, String)> {
    let output = run(&["doctor", "--json", "--config", config.to_str().unwrap()]);
    let all: Vec<Value> = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{}", stderr(&output)));
    let text = |finding: &Value, key: &str| finding[key].as_str().unwrap().to_owned();
    let of_servers = all.iter().filter(|finding| finding["state"] == "bad");
    let number = |finding: &Value| Some(text(finding, "check").strip_prefix("data server two/")?.to_owned());
    of_servers.filter_map(|finding| Some((number(finding)?, text(finding, "found")))).collect()
}

/// Writes the configuration of a metadata server with these data servers, and returns its path.
fn configure<const N: usize>(dir: &Path, port: &Port, layouts: &str, urls: [String; N]) -> std::path::PathBuf {
    let server = |(at, url): (usize, String)| {
        let id = at + 1;
        format!("[[pnfs.server]]\nid = {id}\nurl = '{url}'\nversion = '4.1'\n")
    };
    let servers: String = urls.into_iter().enumerate().map(server).collect();
    let text = format!(
        "[server]\nstate_dir = '{0}/state'\n[[listen]]\ntransport = 'tcp'\naddress = '{1}'\n\
         [[export]]\npath = '{0}/export'\nsquash = 'none'\nbackend = 'pnfs'\noptions = {{ cluster = 'two' }}\n\
         [[pnfs]]\nname = 'two'\nlayouts = '{layouts}'\nmirrors = 1\ntimeout_s = 2\n{servers}",
        dir.display(),
        port.address()
    );
    let path = dir.join("slipway.toml");
    fs::write(&path, text).unwrap();
    path
}

/// Starts a data server that keeps its objects in memory.
fn data_server(state: &Path, port: &Port, options: &[&str]) -> Server {
    let [flag, address] = listen("tcp", port);
    let args = ["--data-server", "--memory", "64M", "--state-dir", state.to_str().unwrap(), &flag, &address];
    Server::start(&[&args, options].concat())
}

/// Copies the files of a state directory.
fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in from.read_dir().unwrap().map(Result::unwrap).filter(|entry| entry.file_type().unwrap().is_file()) {
        fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
    }
}

#[test]
fn objects_are_used_by_the_version_of_clients() {
    let (dir, ports) = (tempfile::tempdir().unwrap(), [(); 3].map(|()| Port::take()));
    fs::create_dir(dir.path().join("export")).unwrap();
    let none = ["--squash", "none"];
    let servers = [0, 1].map(|at| data_server(&dir.path().join(format!("state{at}")), &ports[at], &none));
    for layouts in ["files", "flexible"] {
        let config = configure(dir.path(), &ports[2], layouts, [0, 1].map(|at| servers[at].url("tcp", "")));
        assert_eq!(wrong(&config), [], "{layouts}");
    }
    // The second one maps all users.
    let [first, second] = servers;
    let url = second.url("tcp", "");
    second.stop();
    let second = data_server(&dir.path().join("state1"), &ports[1], &["--squash", "all"]);
    let found = wrong(&configure(dir.path(), &ports[2], "files", [first.url("tcp", ""), url]));
    assert!(!found.is_empty() && found.iter().all(|(number, _)| number == "2"), "{found:?}");
    second.stop();
    first.stop();
}

#[test]
fn servers_that_clients_take_for_one_are_named() {
    let (dir, ports) = (tempfile::tempdir().unwrap(), [(); 3].map(|()| Port::take()));
    let at = |name: &str| dir.path().join(name);
    for name in ["export", "data1", "data2"] {
        fs::create_dir(at(name)).unwrap();
    }
    let start = |number: usize| {
        let [flag, address] = listen("tcp", &ports[number]);
        let [state, data] = ["state", "data"].map(|name| at(&format!("{name}{number}")).to_str().unwrap().to_owned());
        Server::start(&["--data-server", "--squash", "none", "--state-dir", &state, &flag, &address, &data])
    };
    start(1).stop();
    copy(&at("state1"), &at("state2"));
    let servers = [1, 2].map(start);
    // Without root, the objects must belong to the user of the data servers, and other findings are expected.
    let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    let [one, two] = servers.each_ref().map(|server| format!("{}&uid={uid}&gid={gid}", server.url("tcp", "")));
    let wrong = |config: &Path| -> Vec<_> {
        let is_clash = |why: &str| why.contains("for one server") || why.contains("the same directory");
        wrong(config).into_iter().filter(|(_, why)| is_clash(why)).collect()
    };
    let config = configure(dir.path(), &ports[0], "files", [one.clone(), two]);
    let found = wrong(&config);
    assert!(matches!(&found[..], [(two, why)] if two == "2" && why.contains("data server two/1")), "{found:?}");
    // The metadata server has another copy of the state directory.
    let both = |found: Vec<(String, String)>| {
        let [(first, why), (second, _)] = &found[..] else { panic!("{found:?}") };
        assert_eq!((first.as_str(), second.as_str()), ("1", "2"));
        assert!(why.contains("it and the metadata server for one server"), "{why}");
    };
    copy(&at("state1"), &at("state"));
    both(wrong(&config));
    // It runs, with a state directory that the configuration does not name, and listens by one transport.
    fs::rename(at("state"), at("other")).unwrap();
    let text = fs::read_to_string(&config).unwrap();
    let socket = format!("socket = '{}'", at("socket").display());
    for (transport, option) in [("tcp", ""), ("rdma", "provider = 'iwarp'"), ("shm", &socket)] {
        let listen = format!("transport = '{transport}'\noptions = {{ {option} }}\n");
        fs::write(&config, text.replace("transport = 'tcp'\n", &listen)).unwrap();
        let [path, state] = [&config, &at("other")].map(|path| path.to_str().unwrap().to_owned());
        assert_eq!(wrong(&config).len(), 1, "it does not run");
        let metadata = Server::start(&["--config", &path, "--state-dir", &state]);
        both(wrong(&config));
        metadata.stop();
    }
    // Both are the same data server.
    let found = wrong(&configure(dir.path(), &ports[0], "files", [one.clone(), one.replace("127.0.0.1", "localhost")]));
    let text: Vec<_> =
        found.iter().map(|(number, why)| (number.as_str(), why.contains("the same directory as"))).collect();
    assert_eq!(text, [("2", true), ("2", false)], "{found:?}");
}

#[test]
fn addresses_of_the_metadata_server_are_no_addresses_of_data_servers_of_nfsv4() {
    let (dir, ports) = (tempfile::tempdir().unwrap(), [(); 2].map(|()| Port::take()));
    fs::create_dir(dir.path().join("export")).unwrap();
    let [own, other] = ports.each_ref().map(|port| port.address());
    // Nothing runs there. Clients of the second data server get an address of the metadata server. The first one is the metadata server.
    let urls = [own, other].map(|address| format!("nfs://{address}/a?mountport={}", address.port()));
    let config = configure(dir.path(), &ports[0], "flexible", urls);
    let text = fs::read_to_string(&config).unwrap();
    let text = format!("{text}address = [{{ transport = 'tcp', address = '{own}' }}]\n");
    let clashes = |text: &str| {
        fs::write(&config, text).unwrap();
        let found = wrong(&config).into_iter().filter(|(_, why)| why.contains("the metadata server listens at"));
        found.collect::<Vec<_>>()
    };
    let listen = format!("\naddress = '{own}'");
    for everywhere in ["0.0.0.0", "[::]", "127.0.0.1"] {
        let found = clashes(&text.replace(&listen, &format!("\naddress = '{everywhere}:{}'", own.port())));
        let [(number, why)] = &found[..] else { panic!("{everywhere}: {found:?}") };
        assert_eq!(number, "2");
        assert!(why.contains(&format!("they get the address tcp://{own}")), "{why}");
    }
    // A client finds the metadata server there by another address only, or by NFSv3.
    assert_eq!(clashes(&text.replace(&listen, &format!("\naddress = '127.0.0.2:{}'", own.port()))), []);
    assert_eq!(clashes(&text.replace("version = '4.1'", "version = '3'")), []);
}

/// Each address for clients is tried over its transport, also while the data server does not answer the metadata server.
#[test]
fn addresses_for_clients_are_tried_over_each_transport() {
    let (dir, ports) = (tempfile::tempdir().unwrap(), [(); 3].map(|()| Port::take()));
    fs::create_dir(dir.path().join("export")).unwrap();
    let server = Server::everywhere(&["--data-server", "--memory", "64M", "--squash", "none"]);
    // Nothing runs there.
    let [silent, nobody] = [1, 2].map(|at| ports[at].address());
    let right = ["tcp", "rdma", "shm"].map(|transport| (transport, server.port(transport)));
    for (url, answers) in
        [(server.url("tcp", ""), true), (format!("nfs://{silent}/a?mountport={}", silent.port()), false)]
    {
        let config = configure(dir.path(), &ports[0], "flexible", [url]);
        let text = fs::read_to_string(&config).unwrap();
        let found = |addresses: &[(&str, u16)]| {
            let address = |(transport, port): &(&str, u16)| {
                format!("{{ transport = '{transport}', address = '127.0.0.1:{port}' }}")
            };
            let addresses: Vec<_> = addresses.iter().map(address).collect();
            fs::write(&config, format!("{text}address = [{}]\n", addresses.join(", "))).unwrap();
            let (of_addresses, others): (Vec<_>, Vec<_>) =
                wrong(&config).into_iter().map(|(_, why)| why).partition(|why| why.contains("clients get the address"));
            assert_eq!(others.is_empty(), answers, "{others:?}");
            of_addresses
        };
        assert_eq!(found(&right), [""; 0], "{answers}");
        for at in 0..right.len() {
            let mut addresses = right;
            addresses[at].1 = nobody.port();
            let (transport, port) = addresses[at];
            let reported = found(&addresses);
            let [why] = &reported[..] else { panic!("{transport}: {reported:?}") };
            assert!(why.contains(&format!("address {transport}://127.0.0.1:{port}, which does not answer")), "{why}");
        }
    }
    server.stop();
}
