//! Tests of the server process: signals, readiness, configuration, and kills while a client writes.

use crate::common;
use std::{
    fs,
    io::{BufRead, BufReader},
    net::TcpListener,
    os::unix::net::UnixDatagram,
    path::Path,
    process::Stdio,
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use crate::common::{PATIENCE, Server, command, fails, finish, listen, metered::Metered, ok, port::Port, run, stderr};
use rustix::process::Signal;

#[test]
fn sigusr1_prints_counters_and_sigterm_ends_the_server() {
    let mut server = Server::memory();
    ok(&["ls", &server.url("tcp", "")]);
    server.signal(Signal::USR1);
    let mut lines = BufReader::new(server.child.stderr.take().unwrap()).lines();
    let title = lines.next().unwrap().unwrap();
    assert!(title.contains("procedure") && title.contains("calls"), "{title}");
    assert!(lines.by_ref().any(|line| line.unwrap().contains("READDIRPLUS")));
    server.signal(Signal::TERM);
    assert!(common::wait(&mut server.child).success());
}

/// A peer can cause a log line with each of its calls.
#[tokio::test]
async fn a_peer_cannot_fill_the_log() {
    for (args, limited) in [(["-v", "--memory", "16M"], true), (["-vv", "--memory", "16M"], false)] {
        let mut server = Server::everywhere(&args);
        let mut switch = rpc::Switch::new();
        switch.register(std::sync::Arc::new(rpc::TcpKind::default()));
        let mountd = client::MountClient::connect(&server.url("tcp", "").parse().unwrap(), &switch).await.unwrap();
        let log = BufReader::new(server.child.stderr.take().unwrap());
        let (lines, said) = mpsc::channel();
        thread::spawn(move || log.lines().map_while(Result::ok).try_for_each(|line| lines.send(line)));
        let is_call = |line: &str| line.contains("/nowhere") && line.contains("INFO");
        let is_notice = |line: &str| line.contains("further lines like the next one will be suppressed");
        let mut calls = 0;
        let mut call = async || {
            mountd.mnt(b"/nowhere").await.unwrap_err();
            calls += 1;
            calls
        };
        let (mut written, mut notice) = (0, false);
        if limited {
            // The limit applies to a time, in which a busy machine can make few calls.
            while !notice {
                assert!(call().await < 100_000, "the log is not limited");
                for line in said.try_iter() {
                    written += usize::from(is_call(&line));
                    notice |= is_notice(&line);
                }
            }
            assert!(written >= 49, "the notice comes after {written} lines");
            continue;
        }
        while call().await < 200 {}
        server.signal(Signal::TERM);
        assert!(common::wait(&mut server.child).success());
        let said: Vec<String> = said.iter().collect();
        let count = |is: &dyn Fn(&str) -> bool| said.iter().filter(|line| is(line)).count();
        assert_eq!((count(&is_call), count(&is_notice)), (200, 0), "{said:?}");
    }
}

#[test]
fn sigint_ends_the_server_with_connected_clients() {
    let dir = tempfile::tempdir().unwrap();
    let big = dir.path().join("big");
    fs::write(&big, vec![7; 32 << 20]).unwrap();
    let mut server = Server::memory();
    ok(&["cp", big.to_str().unwrap(), &server.url("tcp", "/big")]);
    // The client stops reading, and stays connected.
    let mut cat = command(&["cat", &server.url("tcp", "/big")]).stdout(Stdio::piped()).spawn().unwrap();
    let mut one = [0];
    std::io::Read::read_exact(cat.stdout.as_mut().unwrap(), &mut one).unwrap();
    server.signal(Signal::INT);
    assert!(common::wait(&mut server.child).success());
    cat.kill().unwrap();
    cat.wait().unwrap();
}

#[test]
fn sighup_ends_the_server_unless_it_is_ignored() {
    let mut server = Server::memory();
    ok(&["ls", &server.url("tcp", "")]);
    server.signal(Signal::HUP);
    assert!(common::wait(&mut server.child).success(), "the server must drain, and not be killed");

    let mut child = std::process::Command::new("nohup")
        .arg(env!("CARGO_BIN_EXE_slipway"))
        .args(["serve", "--memory", "1M", "--rpcbind", "off", "--listen", "tcp://127.0.0.1:0", "--json"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    let signal = |signal| rustix::process::kill_process(rustix::process::Pid::from_child(&child), signal).unwrap();
    signal(Signal::HUP);
    signal(Signal::USR1);
    let mut errors = BufReader::new(child.stderr.take().unwrap()).lines();
    assert!(errors.any(|line| line.unwrap().contains("procedure")), "under nohup the server must continue");
    rustix::process::kill_process(rustix::process::Pid::from_child(&child), Signal::TERM).unwrap();
    assert!(common::wait(&mut child).success());
}

#[test]
fn the_server_announces_that_it_is_ready() {
    let dir = tempfile::tempdir().unwrap();
    let (file, socket) = (dir.path().join("ready.json"), dir.path().join("notify"));
    let notify = UnixDatagram::bind(&socket).unwrap();
    notify.set_read_timeout(Some(PATIENCE)).unwrap();
    let args = ["serve", "--memory", "1M", "--rpcbind", "off", "--listen", "tcp://127.0.0.1:0", "--ready-file"];
    let child = command(&args)
        .arg(&file)
        .env("NOTIFY_SOCKET", &socket)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let notified = |expected: &str| {
        let mut text = [0; 100];
        let len = notify.recv(&mut text).unwrap();
        assert_eq!(std::str::from_utf8(&text[..len]).unwrap(), expected);
    };
    notified("READY=1");
    let ready: serde_json::Value = serde_json::from_str(&fs::read_to_string(&file).unwrap()).unwrap();
    assert_eq!((ready["pid"].as_u64(), &ready["exports"][0]), (Some(child.id().into()), &"/memory".into()));
    rustix::process::kill_process(rustix::process::Pid::from_child(&child), Signal::TERM).unwrap();
    notified("STOPPING=1");
    let output = finish(child);
    assert!(output.status.success() && !file.exists(), "{}", stderr(&output));
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("mount -t nfs -o vers=3,proto=tcp,port=") && text.contains(":/memory /mnt"), "{text}");
    assert!(text.contains("Serving as"), "{text}");
}

#[test]
fn printed_urls_are_usable() {
    for transport in common::TRANSPORTS {
        let listen = format!("{transport}://127.0.0.1:0");
        let args = ["serve", "--memory", "1M", "--squash", "none", "--rpcbind", "off", "--listen", &listen];
        let mut server = command(&args).stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(server.stdout.take().unwrap()).lines().map(Result::unwrap);
        let line = lines.find(|line| line.contains("slipway ls")).unwrap();
        let url = line.split('\'').nth(1).unwrap();
        ok(&["mkdir", "-p", &url.replace("/memory", "/memory/new")]);
        assert_eq!(ok(&["ls", url]), "new\n");
        rustix::process::kill_process(rustix::process::Pid::from_child(&server), Signal::TERM).unwrap();
        assert!(common::wait(&mut server).success());
    }
}

#[test]
fn a_server_serves_the_exports_of_its_configuration() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("data")).unwrap();
    fs::write(dir.path().join("data/file"), "from the file system").unwrap();
    let config = dir.path().join("slipway.toml");
    let text = format!(
        "[server]\nstate_dir = '{0}/state'\nworkers = 1\nrpcbind = 'off'\n\n[[listen]]\ntransport = 'tcp'\n\
         address = '127.0.0.1:0'\noptions = {{ congestion = 'reno' }}\n\n[[listen]]\ntransport = 'rdma'\n\
         address = '127.0.0.1:0'\n\n[[export]]\npath = '{0}/data'\naccess = 'ro'\n\n[[export]]\nname = '/scratch'\n\
         backend = 'memory'\nsize = '8 MiB'\nsquash = 'none'\n",
        dir.path().display()
    );
    fs::write(&config, text).unwrap();
    let server = Server::start(&["--config", config.to_str().unwrap()]);
    assert_eq!(ok(&["cat", &server.url("rdma", "/file")]), "from the file system");
    let port = server.port("tcp");
    let scratch = format!("nfs://127.0.0.1:{port}/scratch/new?mountport={port}");
    ok(&["mkdir", &scratch]);
    assert!(fails(1, &["mkdir", &server.url("tcp", "/new")]).contains("read-only"));
    server.stop();
}

/// Returns the operation, the path and the result of each record of an audit log.
fn audited(file: &Path) -> Vec<(String, String, String)> {
    let text = |value: &serde_json::Value| value.as_str().unwrap_or_default().to_owned();
    let record = |line: &str| {
        let record: serde_json::Value = serde_json::from_str(line).unwrap();
        assert!(record["client"].as_str().unwrap().starts_with("127.0.0.1:") && record["uid"].is_u64(), "{line}");
        (text(&record["operation"]), text(&record["path"]), text(&record["result"]))
    };
    fs::read_to_string(file).unwrap().lines().map(record).collect()
}

#[test]
fn changes_are_audited_and_sighup_reopens_the_file() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("data")).unwrap();
    let (log, old) = (dir.path().join("audit.json"), dir.path().join("audit.json.1"));
    let config = dir.path().join("slipway.toml");
    let text = format!(
        "[server]\nstate_dir = '{0}/state'\nworkers = 1\nrpcbind = 'off'\n\n[identity]\nmanage_gids = true\n\n[audit]\n\
         file = '{0}/audit.json'\n\n[[listen]]\ntransport = 'tcp'\naddress = '127.0.0.1:0'\n\n[[export]]\n\
         path = '{0}/data'\nsquash = 'none'\n",
        dir.path().display()
    );
    fs::write(&config, text).unwrap();
    let server = Server::start(&["--config", config.to_str().unwrap()]);
    let has = |records: &[(String, String, String)], operation: &str, path: &str| {
        let count = records.iter().filter(|record| (&record.0[..], &record.1[..]) == (operation, path)).count();
        assert_eq!(count, 1, "{operation} of {path} must be recorded once: {records:?}");
    };
    let url = |version: &str, path: &str| {
        let url = server.url("tcp", path);
        format!("{url}{}vers={version}", if url.contains('?') { '&' } else { '?' })
    };
    ok(&["mkdir", &url("3", "/dir")]);
    ok(&["mkdir", &url("4.2", "/dir/in")]);
    fs::rename(&log, &old).unwrap();
    server.signal(Signal::HUP);
    // The server has opened the file again when it exists.
    let deadline = Instant::now() + PATIENCE;
    while !log.exists() {
        assert!(Instant::now() < deadline, "SIGHUP must reopen the audit log");
        thread::sleep(Duration::from_millis(10));
    }
    ok(&["rm", "-r", &url("4.2", "/dir/in")]);
    ok(&["rm", "-r", &url("3", "/dir")]);
    server.stop();
    let (old, new) = (audited(&old), audited(&log));
    has(&old, "MKDIR", "/dir");
    has(&old, "CREATE", "/dir/in");
    has(&new, "REMOVE", "/dir/in");
    has(&new, "RMDIR", "/dir");
}

#[test]
fn mistakes_of_configuration_are_located() {
    let dir = tempfile::tempdir().unwrap();
    let config = dir.path().join("slipway.toml");
    let said = |text: &str| {
        fs::write(&config, text).unwrap();
        fails(2, &["serve", "--config", config.to_str().unwrap()])
    };
    let place = |line: u32, column: u32| format!("slipway.toml:{line}:{column}:");
    let text = said("[[export]]\npath = '/'\n  clint = ['*']\n");
    assert!(text.contains(&place(3, 3)) && text.contains("clint"), "{text}");
    let text = said("[[export]]\npath = '/'\naccess = 'maybe'\n");
    assert!(text.contains(&place(3, 10)), "{text}");
    assert!(said("").contains("nothing to serve"));
    let export = "[[export]]\nname = '/m'\nbackend = 'memory'\n";
    let listen = |listen: &str| format!("{export}[[listen]]\naddress = '127.0.0.1:0'\n{listen}\n");
    assert!(said(&listen("transport = 'pigeon'")).contains("there are auto, rdma, shm, tcp, udp"));
    assert!(said(&listen("transport = 'tcp'\noptions = { colour = 'red' }")).contains("colour"));

    let times = said("[server]\ngrace_s = 5\nlease_s = 6\n[[export]]\nname = '/m'\nbackend = 'memory'\n");
    assert!(times.contains("lease_s = 6"), "{times}");

    assert!(fails(2, &["serve"]).contains("DIR"));
    assert!(fails(2, &["serve", "--memory", "1M", "--lease", "0"]).contains("from 1 to 3600"));
    assert!(fails(2, &["serve", "/no/such/directory"]).contains("/no/such/directory"));
    assert!(fails(2, &["serve", "--memory", "much"]).contains("size"));
    assert!(fails(2, &["serve", "--memory", "1M", "/"]).contains("cannot be used with"));
    assert!(fails(2, &["serve", "--memory", "1M", "--listen", "pigeon://1.2.3.4:5"]).contains("rdma://"));
}

#[test]
fn an_address_in_use_exits_with_3() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    for transport in ["tcp", "rdma"] {
        let listen = format!("{transport}://{address}");
        let said = fails(3, &["serve", "--memory", "1M", "--rpcbind", "off", "--listen", &listen]);
        assert!(said.contains(&listen) && said.contains("--listen"), "{said}");
    }
}

/// Kills a server while a client writes to it, and starts it again. All acknowledged data must be there, and the client
/// must only see a pause.
///
/// The client reads its data from another server, with a limit that leaves data to write at each kill.
fn killed_under_a_writing_client(transport: &str) {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    let (served, state, source) = (at("served"), at("state"), at("source"));
    [&served, &source].into_iter().for_each(|dir| fs::create_dir(dir).unwrap());
    let content: Vec<u8> = (0..SIZE).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    fs::write(source.join("file"), &content).unwrap();
    let source = Server::dir(&source, &at("source-state"));
    let metered = Metered::before(source.port("tcp"));
    let from = source.url("tcp", "/file");
    let from = from.replacen(&format!(":{}", source.port("tcp")), &format!(":{}", metered.port), 1) + "&timeo=600s";

    let port = Port::take();
    let [listen, address] = listen(transport, &port);
    let serve =
        ["--squash", "none", "--state-dir", state.to_str().unwrap(), &listen, &address, served.to_str().unwrap()];
    let mut server = Server::start(&serve);
    let to = server.url(transport, "/copy") + "&timeo=600s";
    let mut copy = command(&["cp", &from, &to]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    metered.allow(SIZE / 3);
    for part in 1..=3 {
        metered.allow(SIZE / 5);
        assert!(grows_to(&served.join("copy"), part * SIZE / 5, &mut copy), "{transport}: {}", stderr(&finish(copy)));
        server.child.kill().unwrap();
        server.child.wait().unwrap();
        assert!(copy.try_wait().unwrap().is_none(), "the client must still be writing when the server is killed");
        server = Server::start(&serve);
    }
    metered.allow(u64::MAX);
    let output = finish(copy);
    assert!(output.status.success(), "{transport}: {}", stderr(&output));
    // Kill the server once more while no operation is in progress: acknowledged data must be stored.
    server.child.kill().unwrap();
    server.child.wait().unwrap();
    assert!(fs::read(served.join("copy")).unwrap() == content, "{transport}: every byte must be stored");
    let server = Server::start(&serve);
    let back = at("back");
    ok(&["cp", &server.url(transport, "/copy"), back.to_str().unwrap()]);
    assert!(fs::read(back).unwrap() == content, "{transport}: every byte must be readable");
}

/// Waits until the temporary file of this name has that many bytes. Returns `false` if the client ends before.
fn grows_to(path: &Path, len: u64, client: &mut std::process::Child) -> bool {
    let end = Instant::now() + PATIENCE;
    let temporary = format!(".{}.slipway-", path.file_name().unwrap().display());
    let now = || {
        let entries = fs::read_dir(path.parent().unwrap()).unwrap().map(Result::unwrap);
        let mut entries = entries.filter(|entry| entry.file_name().to_str().unwrap().starts_with(&temporary));
        entries.next().and_then(|entry| entry.metadata().ok()).map_or(0, |meta| meta.len())
    };
    while now() < len {
        if client.try_wait().unwrap().is_some() {
            return false;
        }
        assert!(Instant::now() < end, "the copy must continue");
        thread::sleep(Duration::from_micros(200));
    }
    true
}

const SIZE: u64 = 96 << 20;

#[test]
fn no_byte_is_lost_when_the_server_is_killed_over_tcp() {
    killed_under_a_writing_client("tcp");
}

/// Clients die while the server accesses their memory. It then serves the next client without an error.
#[test]
fn clients_killed_over_shm_do_not_affect_others() {
    let dir = tempfile::tempdir().unwrap();
    let (served, source) = (dir.path().join("served"), dir.path().join("source"));
    fs::create_dir(&served).unwrap();
    let content: Vec<u8> = (0..SIZE / 2).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    fs::write(&source, &content).unwrap();
    let server = Server::dir(&served, &dir.path().join("state"));
    let mut killed = 0;
    for round in 0..4u64 {
        let name = format!("copy-{round}");
        let mut copy =
            command(&["cp", source.to_str().unwrap(), &server.url("shm", &format!("/{name}"))]).spawn().unwrap();
        if grows_to(&served.join(name), (round + 1) * SIZE / 16, &mut copy) {
            copy.kill().unwrap();
            killed += 1;
        }
        copy.wait().unwrap();
    }
    assert!(killed > 0, "a client must have been killed while it wrote");
    let (url, back) = (server.url("shm", "/copy"), dir.path().join("back"));
    ok(&["cp", source.to_str().unwrap(), &url]);
    ok(&["cp", &url, back.to_str().unwrap()]);
    assert!(fs::read(back).unwrap() == content);
    server.stop();
}

/// `proto=auto` selects shared memory if the server has it, else tcp, and logs this.
#[test]
fn auto_selects_shared_memory_and_falls_back_to_tcp() {
    let chosen = |server: &Server, port: u16| {
        let url = format!("nfs://127.0.0.1:{port}{}?proto=auto", server.ready["exports"][0].as_str().unwrap());
        let output = run(&["-v", "ls", &url]);
        assert!(output.status.success(), "{}", stderr(&output));
        stderr(&output).to_owned()
    };
    let both = Server::memory();
    let said = chosen(&both, both.port("shm"));
    assert!(said.contains("connected") && said.contains("shm"), "{said}");
    let said = chosen(&both, both.port("tcp"));
    assert!(said.contains("falling back") && said.contains("nobody listens") && said.contains("tcp"), "{said}");
}

#[test]
fn no_byte_is_lost_when_the_server_is_killed_over_shm() {
    killed_under_a_writing_client("shm");
}

#[test]
fn no_byte_is_lost_when_the_server_is_killed_over_rdma() {
    killed_under_a_writing_client("rdma");
}
