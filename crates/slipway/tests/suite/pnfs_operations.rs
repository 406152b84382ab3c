//! `slipway ds`, `layout` and `resilver` with a metadata server and data servers in processes of their own.

use std::{
    collections::BTreeSet,
    fs,
    io::{BufRead, BufReader, Read},
    os::unix::fs::MetadataExt,
    process::Stdio,
};

use serde_json::Value;

use crate::{
    common::{Server, command, fails, lines, ok, port::Port, run, stderr, until, wait},
    pnfs::{Cluster, SERVERS, check, contents, cp, write_in_place},
};

impl Cluster {
    fn state(&self) -> String {
        self.at("state").to_str().unwrap().to_owned()
    }

    fn ask(&self, args: &[&str]) -> String {
        ok(&[args, &["--state-dir", &self.state()]].concat())
    }

    fn refused(&self, args: &[&str]) -> String {
        fails(1, &[args, &["--state-dir", &self.state()]].concat())
    }

    /// Returns the record of a data server, counted from 0.
    fn listed(&self, server: usize) -> Value {
        lines(&self.ask(&["ds", "list", "--json"])).remove(server)
    }

    fn layout(&self, name: &str) -> Value {
        let path = self.at("export").join(name);
        lines(&self.ask(&["layout", "show", "--json", path.to_str().unwrap()])).remove(0)
    }

    /// Copies bytes to a new file, and returns the data servers of its copies.
    fn put(&self, server: &Server, name: &str, bytes: &[u8]) -> Vec<usize> {
        let source = self.at("source");
        fs::write(&source, bytes).unwrap();
        cp(source.to_str().unwrap(), &server.url("tcp", &format!("/{name}")));
        self.servers_of(name)
    }

    fn servers_of(&self, name: &str) -> Vec<usize> {
        let layout = self.layout(name);
        let copies = layout["data"]["copies"].as_array().unwrap();
        copies.iter().map(|copy| copy["server"].as_u64().unwrap() as usize - 1).collect()
    }

    fn stop_data_server(&mut self, server: usize) {
        self.data[server].take().unwrap().stop();
    }

    fn restart_data_server(&mut self, server: usize) {
        self.data[server] = Some(self.start_data_server(server));
    }
}

fn id(server: usize) -> String {
    (server + 1).to_string()
}

fn third(copies: &[usize]) -> usize {
    (0..SERVERS).find(|server| !copies.contains(server)).unwrap()
}

/// A drain begins while the only other data server is away, and the metadata server is killed meanwhile.
#[test]
fn drain_continues_after_a_restart_and_keeps_all_writes() {
    let mut cluster = Cluster::new();
    let mut server = cluster.start();
    let mut first = contents(1, 3_000_001);
    let copies = cluster.put(&server, "file", &first);
    let (from, to) = (copies[0], third(&copies));
    assert_eq!(cluster.listed(from)["state"], "in_service");
    assert_eq!((&cluster.listed(from)["objects"], &cluster.listed(from)["id"]), (&1.into(), &(from + 1).into()));
    assert!(cluster.ask(&["resilver"]).contains("nothing is left"));
    assert!(cluster.ask(&["resilver", "--watch"]).contains("nothing is left"));

    cluster.stop_data_server(to);
    assert!(cluster.ask(&["ds", "drain", &id(from)]).starts_with("1 copies are being moved"));
    until("the move must fail", || cluster.listed(from)["unmovable"] == 1);
    assert_eq!(cluster.listed(from)["state"], "draining");
    let left = run(&["resilver", "--json", "--state-dir", &cluster.state()]);
    assert_eq!(left.status.code(), Some(1), "{}", stderr(&left));
    let left = lines(&String::from_utf8(left.stdout).unwrap()).remove(0);
    assert_eq!((&left["moves"], &left["bytes"]), (&1.into(), &first.len().into()));
    let refused = cluster.refused(&["ds", "drain", &id(copies[1])]);
    assert!(refused.contains("new files need 2"), "{refused}");

    server.child.kill().unwrap();
    server.child.wait().unwrap();
    server = cluster.start();
    assert_eq!(cluster.listed(from)["state"], "draining", "the state must be durable");
    cluster.restart_data_server(to);
    // The file is written while the copy is moved.
    for round in 0..20 {
        let (at, data) = (round * 140_000, contents(round as u64 + 2, 50_000));
        first[at..at + data.len()].copy_from_slice(&data);
        write_in_place(&server, "/file", at as u64, &data);
    }
    assert!(cluster.ask(&["resilver", "--watch"]).contains("nothing is left"));
    let drained = cluster.listed(from);
    assert_eq!((&drained["state"], &drained["objects"]), (&"drained".into(), &0.into()));
    assert!(!cluster.servers_of("file").contains(&from));
    check(&server, "/file", &first, &cluster.at("back"));
    until("the former object must be removed", || cluster.objects(from).is_empty());
    let mut moved = [copies[1], to];
    moved.sort_unstable();
    assert_eq!(cluster.with_copy(&first), moved);
    // New files use the others, and the table says so.
    assert!(!cluster.put(&server, "another", &first).contains(&from));
    assert!(cluster.ask(&["ds", "list"]).lines().nth(from + 1).unwrap().contains("drained"));
    cluster.ask(&["ds", "undrain", &id(from)]);
    assert_eq!(cluster.listed(from)["state"], "in_service");
    server.stop();
}

/// The metadata server is killed while a command waits for a repair.
#[test]
fn watch_continues_after_a_restart() {
    let mut cluster = Cluster::new();
    let mut server = cluster.start();
    let copies = cluster.put(&server, "file", &contents(1, 3_000_001));
    cluster.stop_data_server(copies[0]);
    write_in_place(&server, "/file", 0, &contents(2, 50_000));

    let mut watch = command(&["resilver", "--watch", "--json", "--state-dir", &cluster.state()]);
    let mut watch = watch.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut output = BufReader::new(watch.stdout.take().unwrap()).lines();
    let mut errors = BufReader::new(watch.stderr.take().unwrap()).lines();
    output.next().unwrap().unwrap();
    server.child.kill().unwrap();
    server.child.wait().unwrap();
    let waiting = errors.next().unwrap().unwrap();
    assert!(waiting.ends_with("; waiting for the server"), "{waiting}");
    server = cluster.start();
    cluster.restart_data_server(copies[0]);
    assert!(wait(&mut watch).success());
    let last: Value = serde_json::from_str(&output.last().unwrap().unwrap()).unwrap();
    assert_eq!((&last["copies"], &last["files"]), (&0.into(), &0.into()), "{last}");
    server.stop();
}

/// A data server is away when the command begins, and its copy is made again when it is back.
#[test]
fn watched_repair_is_printed_as_lines_of_json() {
    let mut cluster = Cluster::new();
    let server = cluster.start();
    let mut bytes = contents(1, 3_000_001);
    let copies = cluster.put(&server, "file", &bytes);
    cluster.stop_data_server(copies[0]);
    let data = contents(2, 50_000);
    bytes[70_000..][..data.len()].copy_from_slice(&data);
    write_in_place(&server, "/file", 70_000, &data);

    let mut watch = command(&["resilver", "--watch", "--json", "--state-dir", &cluster.state()]);
    let mut watch = watch.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut output = BufReader::new(watch.stdout.take().unwrap()).lines();
    let mut records: Vec<Value> = vec![serde_json::from_str(&output.next().unwrap().unwrap()).unwrap()];
    cluster.restart_data_server(copies[0]);
    records.extend(output.map(|line| serde_json::from_str::<Value>(&line.unwrap()).unwrap()));
    assert!(wait(&mut watch).success());
    let mut said = String::new();
    watch.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    assert_eq!(said, "", "a repair is no error");

    let of = |record: &Value, fields: &[&str]| fields.iter().map(|field| record[field].clone()).collect::<Vec<_>>();
    let left = ["files", "copies", "moves", "compared", "unexamined", "lost", "bytes"];
    let (first, last) = (&records[0], records.last().unwrap());
    assert_eq!(of(first, &left), [1, 1, 0, 0, 0, 0, bytes.len()], "{first}");
    assert_eq!(of(last, &left), [0; 7], "{last}");
    assert_eq!(of(first, &["cluster", "copied", "scanning"]), [Value::from("three"), 0.into(), false.into()]);
    assert!(last["copied"].as_u64().unwrap() >= bytes.len() as u64, "{last}");
    assert!(records.windows(2).all(|two| two[0] != two[1]), "a line means that something has changed: {records:?}");
    let table = include_str!("../../../../docs/pnfs.md").split("| field of `resilver --json` |").nth(1).unwrap();
    let rows = table.lines().skip(2).take_while(|line| line.starts_with('|'));
    let documented: BTreeSet<_> =
        rows.flat_map(|row| row.split('|').nth(1).unwrap().split('`').skip(1).step_by(2)).collect();
    for record in &records {
        let fields: BTreeSet<_> = record.as_object().unwrap().keys().map(String::as_str).collect();
        assert_eq!(fields, documented);
    }
    assert_eq!(cluster.with_copy(&bytes).len(), 2);
    server.stop();
}

/// The database in the state directory is lost while one copy is stale. The data server with the other one is drained.
#[test]
fn drain_after_the_loss_of_the_database_moves_the_only_copy() {
    let mut cluster = Cluster::new();
    let mut server = cluster.start();
    let mut bytes = contents(1, 1_000_001);
    let copies = cluster.put(&server, "file", &bytes);
    cluster.stop_data_server(copies[0]);
    let data = contents(2, 50_000);
    bytes[70_000..][..data.len()].copy_from_slice(&data);
    write_in_place(&server, "/file", 70_000, &data);
    server.child.kill().unwrap();
    server.child.wait().unwrap();
    let is_database = |path: &std::path::Path| path.file_name().unwrap().to_str().unwrap().starts_with("pnfs-");
    let state = fs::read_dir(cluster.at("state")).unwrap().map(|entry| entry.unwrap().path());
    state.filter(|path| is_database(path)).for_each(|path| fs::remove_file(path).unwrap());

    server = cluster.start();
    cluster.restart_data_server(copies[0]);
    cluster.ask(&["ds", "drain", &id(copies[1])]);
    assert!(cluster.ask(&["resilver", "--watch"]).contains("nothing is left"));
    let drained = cluster.listed(copies[1]);
    assert_eq!((&drained["state"], &drained["objects"], drained.get("scan")), (&"drained".into(), &0.into(), None));
    cluster.stop_data_server(copies[1]);
    assert!(!cluster.servers_of("file").contains(&copies[1]));
    check(&server, "/file", &bytes, &cluster.at("back"));
    server.stop();
}

/// A data server is added while the server runs. The metadata server is killed during the rebalancing, and files are written.
#[test]
fn added_data_server_gets_copies_by_a_rebalancing() {
    let cluster = Cluster::new();
    let path = cluster.config("");
    let whole = fs::read_to_string(&path).unwrap();
    let (two, third) = whole.split_at(whole.find("[[pnfs.server]]\nid = 3").unwrap());
    fs::write(&path, two).unwrap();
    let mut server = Server::start(&["--config", &path]);
    let mut files: Vec<_> = (0..6).map(|number| contents(number, 400_000)).collect();
    let name = |number: usize| format!("/file{number}");
    for (number, bytes) in files.iter().enumerate() {
        assert!(!cluster.put(&server, &name(number)[1..], bytes).contains(&2));
    }
    assert!(cluster.ask(&["ds", "add"]).contains("no data server that is not in use"));
    fs::write(&path, format!("{two}{third}")).unwrap();
    assert!(cluster.ask(&["ds", "add"]).starts_with("data server 3 of cluster three is in service: nfs://"));
    assert_eq!(cluster.ask(&["ds", "add", "--json"]), "");
    assert_eq!((&cluster.listed(2)["state"], &cluster.listed(2)["objects"]), (&"in_service".into(), &0.into()));

    let plan = lines(&cluster.ask(&["ds", "rebalance", "--dry-run", "--json"])).remove(0);
    assert_eq!((&plan["copies"], plan["servers"].as_array().unwrap().len()), (&4.into(), 3));
    assert!(cluster.ask(&["ds", "rebalance", "--dry-run"]).contains("three: 4 copies with 1.5"));
    assert!(cluster.objects(2).is_empty(), "a plan moves nothing");
    assert!(cluster.ask(&["ds", "rebalance", "--rate", "100K"]).contains("is in progress"));
    assert!(cluster.ask(&["ds", "rebalance", "--stop"]).contains("has ended"));
    assert!(cluster.ask(&["ds", "rebalance", "--rate", "400K"]).contains("is in progress"));
    until("a copy must be moved", || !cluster.objects(2).is_empty());
    server.child.kill().unwrap();
    server.child.wait().unwrap();
    server = Server::start(&["--config", &path]);
    let status = || lines(&cluster.ask(&["ds", "rebalance", "--status", "--json"])).remove(0);
    assert_eq!(status()["running"], true, "the order must be durable");
    for (number, bytes) in files.iter_mut().enumerate() {
        let data = contents(number as u64 + 100, 50_000);
        bytes[number * 50_000..][..data.len()].copy_from_slice(&data);
        write_in_place(&server, &name(number), number as u64 * 50_000, &data);
    }
    assert!(cluster.ask(&["ds", "rebalance", "--status", "--watch"]).contains("has ended"));
    assert_eq!((&status()["running"], &status()["failed"]), (&false.into(), &0.into()));
    assert!(cluster.ask(&["resilver", "--watch"]).contains("nothing is left"));
    for (number, bytes) in files.iter().enumerate() {
        check(&server, &name(number), bytes, &cluster.at("back"));
        let copies = cluster.servers_of(&name(number)[1..]);
        assert!(copies.len() == 2 && copies[0] != copies[1], "{copies:?}");
        assert!(copies.iter().all(|copy| cluster.objects(*copy).contains(bytes)), "both copies must have the bytes");
    }
    until("the former objects must be removed", || {
        (0..SERVERS).all(|server| cluster.listed(server)["objects"] == 4 && cluster.objects(server).len() == 4)
    });
    // A file that cannot be read leaves everything as it is.
    fs::write(&path, "[[pnfs").unwrap();
    assert!(fails(1, &["ds", "add", "--state-dir", &cluster.state()]).contains("slipway.toml"));
    server.stop();
}

#[test]
fn lost_data_server_is_replaced_and_files_without_a_copy_are_named() {
    let mut cluster = Cluster::new();
    let server = cluster.start();
    let first = contents(1, 1_000_001);
    let copies = cluster.put(&server, "file", &first);
    cluster.stop_data_server(copies[0]);
    let gone = cluster.at(&format!("data{}", copies[0]));
    fs::remove_dir_all(&gone).unwrap();
    assert!(cluster.ask(&["ds", "lost", &id(copies[0])]).contains("No file has lost its last copy"));
    assert!(cluster.ask(&["resilver", "--watch"]).contains("nothing is left"));
    let replaced = cluster.servers_of("file");
    assert!(!replaced.contains(&copies[0]));
    check(&server, "/file", &first, &cluster.at("back"));
    assert_eq!(cluster.listed(copies[0])["state"], "lost");

    // One of the two others is away during a write, and the last one is lost.
    cluster.stop_data_server(replaced[1]);
    let mut second = first.clone();
    second[..70_000].copy_from_slice(&contents(9, 70_000));
    write_in_place(&server, "/file", 0, &second[..70_000]);
    let said = cluster.refused(&["ds", "lost", &id(replaced[0])]);
    let inode = fs::metadata(cluster.at("export/file")).unwrap().ino();
    assert!(said.contains(&format!("-inum {inode}")) && said.contains("1 files have lost their last copy"), "{said}");
    let lost = cluster.listed(replaced[0]);
    assert_eq!((&lost["lost"], &lost["lost_files"][0]["fileid"]), (&1.into(), &inode.into()));
    assert!(cluster.refused(&["resilver", "--watch"]).contains("1 files have lost their last copy"));
    assert!(cluster.refused(&["ds", "drain", &id(replaced[0])]).contains("it is lost"));
    let layout = cluster.layout("file");
    let states: Vec<_> = layout["data"]["copies"].as_array().unwrap().iter().map(|copy| &copy["state"]).collect();
    assert_eq!(states, ["in_sync", "stale"], "the last copy must be kept");

    // The decision was wrong.
    cluster.ask(&["ds", "undrain", &id(replaced[0])]);
    cluster.restart_data_server(replaced[1]);
    cluster.ask(&["resilver", "--watch"]);
    check(&server, "/file", &second, &cluster.at("back"));
    assert!(replaced.iter().all(|server| cluster.objects(*server) == [&second[..]]));
    server.stop();
}

/// A program removes a file in the directory of the export, without the server. Its objects are found, and removed when an administrator
/// wants that.
#[test]
fn orphans_are_found_and_removed() {
    let mut cluster = Cluster::new();
    let server = cluster.start();
    let (kept, gone) = (contents(1, 200_000), contents(2, 300_000));
    cluster.put(&server, "kept", &kept);
    let mut copies = cluster.put(&server, "gone", &gone);
    copies.sort_unstable();
    // Objects of new files stay in the queue of removals until the next round. This one removes those of another file.
    cluster.put(&server, "other", &contents(3, 100_000));
    ok(&["rm", &server.url("tcp", "/other")]);
    until("the objects must be removed", || (0..SERVERS).map(|at| cluster.objects(at).len()).sum::<usize>() == 4);
    let search = |args: &[&str]| lines(&cluster.ask(&[&["ds", "orphans", "--json"], args].concat()));
    assert_eq!(search(&[]), Vec::<Value>::new());
    assert!(cluster.ask(&["ds", "orphans", "--remove"]).contains("No object was found"));
    fs::remove_file(cluster.at("export/gone")).unwrap();
    // The server can have the file open for a while, so that its objects are still used.
    server.stop();
    let server = cluster.start();
    let found = search(&["--cluster", "three"]);
    let mut servers: Vec<_> = found.iter().map(|one| one["server"].as_u64().unwrap() as usize - 1).collect();
    servers.sort_unstable();
    assert_eq!(servers, copies);
    for one in &found {
        assert_eq!((&one["bytes"], &one["removed"]), (&300_000.into(), &false.into()));
        let directory = cluster.at(&format!("data{}", one["server"].as_u64().unwrap() - 1));
        assert!(fs::read(directory.join(one["object"].as_str().unwrap())).unwrap() == gone);
    }
    let text = cluster.ask(&["ds", "orphans"]);
    assert!(text.contains("2 objects with 586 KiB; `slipway ds orphans --remove` removes them"), "{text}");

    // The objects of another export would be taken for orphans.
    let other = cluster.at("state/pnfs-0123456789abcdef.redb");
    fs::write(&other, "").unwrap();
    assert!(
        cluster.refused(&["ds", "orphans", "--remove"]).contains("pnfs-0123456789abcdef.redb: this is the database")
    );
    fs::remove_file(&other).unwrap();
    assert!(cluster.refused(&["ds", "orphans", "--cluster", "four"]).contains("no export has the cluster 'four'"));

    // A data server that is away is named, and the others are searched.
    cluster.stop_data_server(copies[0]);
    let said = run(&["ds", "orphans", "--remove", "--json", "--state-dir", &cluster.state()]);
    assert!(stderr(&said).contains(&format!("data server {} of cluster 'three' was not examined", copies[0] + 1)));
    let removed = lines(&String::from_utf8(said.stdout).unwrap());
    assert_eq!((said.status.code(), removed.len(), &removed[0]["removed"]), (Some(1), 1, &true.into()));
    until("the object must be removed", || !cluster.objects(copies[1]).contains(&gone));
    cluster.restart_data_server(copies[0]);
    until("the data server must be used again", || cluster.listed(copies[0])["state"] == "in_service");
    assert!(cluster.ask(&["ds", "orphans", "--remove"]).contains("1 objects with 293 KiB are being removed"));
    until("the object must be removed", || !cluster.objects(copies[0]).contains(&gone));
    assert!(cluster.ask(&["ds", "orphans"]).contains("No object was found"));
    check(&server, "/kept", &kept, &cluster.at("back"));
    assert_eq!(cluster.servers_of("kept").len(), 2);
    server.stop();
}

#[test]
fn layout_shows_the_stripes() {
    let cluster = Cluster::new();
    let server = Server::start(&["--config", &cluster.config("stripes = 3\nstripe_unit = '64 KiB'")]);
    cluster.put(&server, "file", &contents(1, 200_000));
    let data = &cluster.layout("file")["data"];
    assert_eq!((&data["stripes"], &data["stripe_unit"]), (&3.into(), &65_536.into()));
    let stripes: Vec<_> =
        data["copies"].as_array().unwrap().iter().map(|copy| copy["stripe"].as_u64().unwrap()).collect();
    assert_eq!(stripes, [0, 1, 2, 0, 1, 2]);
    let path = cluster.at("export/file");
    assert!(cluster.ask(&["layout", "show", path.to_str().unwrap()]).contains("3 stripes, in units of 64.0 KiB"));
    assert!(cluster.refused(&["ds", "drain", "1"]).contains("new files need 3"));
    server.stop();
}

/// Two exports use the data servers of one table, and replace its options.
#[test]
fn exports_replace_options_of_their_table() {
    let cluster = Cluster::new();
    let path = cluster.config("");
    let export = |name: &str, options: &str| {
        fs::create_dir_all(cluster.at(name)).unwrap();
        let at = cluster.at(name).display().to_string();
        format!(
            "[[export]]\npath = '{at}'\nsquash = 'none'\nbackend = 'pnfs'\noptions = {{ cluster = 'three', {options} }}\n"
        )
    };
    let table = fs::read_to_string(&path).unwrap();
    let with = |exports: &[String]| {
        let (before, after) = table.split_at(table.find("[[pnfs]]").unwrap());
        fs::write(&path, format!("{before}{}{after}", exports.concat())).unwrap();
    };
    with(&[
        export("safe", "mirrors = 3, threshold = '1 MiB'"),
        export("wide", "mirrors = 1, stripes = 3, stripe_unit = '128 KiB', threshold = 0"),
    ]);
    let server = Server::start(&["--config", &path]);
    let put = |name: &str, len: usize| {
        let bytes = contents(len as u64, len);
        fs::write(cluster.at("source"), &bytes).unwrap();
        let port = server.port("tcp");
        let target = cluster.at(name).join(len.to_string());
        let url = format!("nfs://127.0.0.1:{port}{}?mountport={port}&mountproto=tcp", target.display());
        cp(cluster.at("source").to_str().unwrap(), &url);
        let shown = lines(&cluster.ask(&["layout", "show", "--json", target.to_str().unwrap()])).remove(0);
        let data = &shown["data"];
        let copies = data["copies"].as_array().map(Vec::len);
        copies.map(|copies| (copies, data["stripes"].as_u64().unwrap(), data["stripe_unit"].as_u64().unwrap()))
    };
    assert_eq!(put("export", 200_000), Some((2, 1, 0)), "the options of the table");
    assert_eq!(put("safe", 200_000), None, "the data must stay on the metadata server");
    assert_eq!(put("safe", 1_100_000), Some((3, 1, 0)));
    assert_eq!(put("wide", 10_000), Some((3, 3, 128 << 10)));
    // The one with three copies needs all data servers.
    let refused = cluster.refused(&["ds", "drain", "1"]);
    assert!(refused.contains("new files need 3"), "{refused}");
    assert!(cluster.ask(&["ds", "add"]).contains("no data server that is not in use"));
    server.stop();

    for (options, message) in [
        ("mirrors = 0", "mirrors = 0: it must be from 1 to 16"),
        ("copies = 2", "option 'copies': `backend = \"pnfs\"` has `cluster`"),
        ("mirrors = 4", "pnfs 'three': mirrors = 4 needs as many data servers, and there are 3"),
        ("layouts = 'files'", "pnfs 'three': mirrors = 2: layouts = \"files\" needs mirrors = 1"),
    ] {
        with(&[export("safe", options)]);
        let said = fails(2, &["serve", "--rpcbind", "off", "--config", &path]);
        assert!(said.contains(&format!("export '{}': {message}", cluster.at("safe").display())), "{said}");
    }
}

#[test]
fn data_servers_have_names_beside_their_numbers() {
    let cluster = Cluster::new();
    let path = cluster.config("");
    let named = fs::read_to_string(&path).unwrap();
    let named = named.replace("id = 1\n", "id = 1\nname = 'rack1'\n").replace("id = 2\n", "id = 2\nname = 'rack2'\n");
    let (two, last) = named.split_at(named.find("[[pnfs.server]]\nid = 3").unwrap());
    fs::write(&path, two).unwrap();
    let server = Server::start(&["--config", &path]);
    fs::write(&path, format!("{two}{}", last.replace("id = 3\n", "id = 3\nname = 'rack3'\n"))).unwrap();
    assert!(cluster.ask(&["ds", "add"]).starts_with("data server 3 (rack3) of cluster three is in service: nfs://"));
    let names: Vec<_> = (0..SERVERS).map(|at| cluster.listed(at)["name"].clone()).collect();
    assert_eq!(names, ["rack1", "rack2", "rack3"]);
    assert!(cluster.ask(&["ds", "list"]).lines().nth(2).unwrap().contains("2 (rack2)"));

    let copies = cluster.put(&server, "file", &contents(1, 100_000));
    let layout = cluster.layout("file");
    assert_eq!(layout["data"]["copies"][0]["server_name"], format!("rack{}", copies[0] + 1));
    let file = cluster.at("export/file");
    let shown = cluster.ask(&["layout", "show", file.to_str().unwrap()]);
    assert!(shown.contains(&format!("{0} (rack{0})", copies[0] + 1)), "{shown}");
    assert!(cluster.ask(&["ds", "rebalance", "--dry-run"]).contains("3 (rack3)"));
    // Each command takes the name or the number.
    for (command, state) in [("drain", "drained"), ("undrain", "in_service"), ("lost", "lost")] {
        let spare = third(&copies);
        cluster.ask(&["ds", command, &format!("rack{}", spare + 1)]);
        assert_eq!(cluster.listed(spare)["state"], state);
        cluster.ask(&["ds", "undrain", &id(spare)]);
        // One that was lost fails until it is probed.
        until("it must be in service", || cluster.listed(spare)["state"] == "in_service");
    }
    let said = cluster.refused(&["ds", "drain", "rack9"]);
    assert!(
        said.contains("cluster 'three' has no data server 'rack9'; there are 1 (rack1), 2 (rack2), 3 (rack3)"),
        "{said}"
    );
    cluster.ask(&["ds", "drain", "rack1"]);
    let refused = cluster.refused(&["ds", "drain", "2"]);
    assert!(refused.contains("data server 2 (rack2) of cluster 'three': "), "{refused}");
    server.stop();

    fs::write(&path, named.replace("rack2", "rack1")).unwrap();
    let said = fails(2, &["serve", "--rpcbind", "off", "--config", &path]);
    assert!(said.contains("pnfs 'three': server 2: server 1 has the same name"), "{said}");
}

#[test]
fn layout_shows_where_the_data_are() {
    let cluster = Cluster::new();
    let server = cluster.start();
    let small = cluster.at("small");
    fs::write(&small, "small").unwrap();
    cp(small.to_str().unwrap(), &server.url("tcp", "/small"));
    let large = contents(1, 100_000);
    let copies = cluster.put(&server, "large", &large);
    let path = |name: &str| cluster.at("export").join(name).to_str().unwrap().to_owned();
    assert!(cluster.ask(&["layout", "show", &path("small")]).contains("on the metadata server"));
    let layout = cluster.layout("large");
    let inode = fs::metadata(path("large")).unwrap().ino();
    assert_eq!((&layout["fileid"], &layout["size"]), (&inode.into(), &100_000.into()));
    assert_eq!((&layout["export"], &layout["holders"]), (&server.ready["exports"][0], &Value::Array(Vec::new())));
    let table = cluster.ask(&["layout", "show", &path("large")]);
    for (copy, server) in layout["data"]["copies"].as_array().unwrap().iter().zip(copies) {
        let object = copy["object"].as_str().unwrap();
        let stored = fs::read(cluster.at(&format!("data{server}")).join(object)).unwrap();
        assert!(stored == large, "the object must be the one that is named");
        assert!(table.contains(object) && table.contains("in sync"), "{table}");
    }
    for (name, message) in [("missing", "missing: no such file or directory"), ("", "it is no regular file")] {
        let said = cluster.refused(&["layout", "show", &path(name)]);
        assert!(said.to_lowercase().contains(message), "{said}");
    }
    assert!(cluster.refused(&["layout", "show", small.to_str().unwrap()]).contains("it is in no export"));
    assert!(cluster.refused(&["ds", "lost", "9"]).contains("there is no such data server"));
    assert!(cluster.refused(&["ds", "lost", "1", "--cluster", "four"]).contains("no export has the cluster 'four'"));
    let clients = ok(&["clients", "--config", &cluster.config("")]);
    assert_eq!(clients, "", "the configuration of the metadata server must be readable");
    server.stop();
}

/// Returns what `slipway doctor` finds about data servers.
fn findings(config: &str) -> Vec<Value> {
    let output = run(&["doctor", "--json", "--config", config]);
    let all: Vec<Value> = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{}", stderr(&output)));
    all.into_iter().filter(|finding| finding["check"].as_str().unwrap().starts_with("data server")).collect()
}

fn states(findings: &[Value]) -> Vec<(&str, &str)> {
    findings.iter().map(|one| (one["check"].as_str().unwrap(), one["state"].as_str().unwrap())).collect()
}

#[test]
fn doctor_names_data_servers_that_are_away_or_read_only() {
    let mut cluster = Cluster::new();
    let config = cluster.config("");
    // Few bytes can be free on the machine of the test, which is a note.
    let bad =
        |findings: &[Value]| findings.iter().filter(|finding| finding["state"] == "bad").cloned().collect::<Vec<_>>();
    assert_eq!(bad(&findings(&config)), Vec::<Value>::new());
    assert!((0..SERVERS).all(|server| cluster.objects(server).is_empty()), "the test object must be removed");
    cluster.stop_data_server(0);
    cluster.stop_data_server(1);
    cluster.data[1] = Some(cluster.start_data_server_with(1, &["--ro", "--squash", "none"]));
    let found = bad(&findings(&config));
    assert_eq!(states(&found), [("data server three/1", "bad"), ("data server three/2", "bad")]);
    assert!(found[0]["fix"].as_str().unwrap().starts_with("start it"), "{}", found[0]);
    assert!(found[1]["fix"].as_str().unwrap().contains("for writing"), "{}", found[1]);
}

#[test]
fn doctor_checks_what_clients_need() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("SKIPPED doctor_checks_what_clients_need: needs root");
        return;
    }
    let mut cluster = Cluster::new();
    for (server, squash) in [(1, "root"), (2, "all")] {
        cluster.stop_data_server(server);
        cluster.data[server] = Some(cluster.start_data_server_with(server, &["--squash", squash]));
    }
    let nobody = Port::take();
    let text = fs::read_to_string(cluster.config("")).unwrap().replace("layouts = 'none'", "");
    let first = "[[pnfs.server]]\nid = 1\n";
    let own = cluster.data[0].as_ref().unwrap().port("tcp");
    let addresses = format!(
        "address = [{{ transport = 'tcp', address = '127.0.0.1:{own}' }}, {{ transport = 'rdma', address = '{}' }}]\n",
        nobody.address()
    );
    let path = cluster.at("clients.toml");
    fs::write(&path, text.replace(first, &format!("{first}{addresses}"))).unwrap();
    let found = findings(path.to_str().unwrap());
    let bad: Vec<_> = found.iter().filter(|finding| finding["state"] == "bad").cloned().collect();
    assert_eq!(states(&bad), ["1", "2", "3"].map(|id| (format!("data server three/{id}").leak() as &str, "bad")));
    assert!(bad[0]["found"].as_str().unwrap().contains("clients get the address rdma://"), "{}", bad[0]);
    for finding in &bad[1..] {
        assert!(finding["fix"].as_str().unwrap().contains("do not squash root"), "{finding}");
    }
}

#[test]
fn servers_without_data_servers_say_so() {
    let dir = tempfile::tempdir().unwrap();
    let (state, served) = (dir.path().join("state"), dir.path().join("served"));
    fs::create_dir(&served).unwrap();
    let server = Server::dir(&served, &state);
    let state = state.to_str().unwrap();
    assert!(
        fails(1, &["ds", "drain", "1", "--state-dir", state]).contains("no export of this server has data servers")
    );
    assert_eq!(ok(&["ds", "list", "--json", "--state-dir", state]), "");
    let path = dir.path().join("file");
    let said = fails(1, &["layout", "show", path.to_str().unwrap(), "--state-dir", state]);
    assert!(said.contains("no export of this server has data servers"), "{said}");
    server.stop();
}
