//! No secret is in a log at any level, and a server without Kerberos does not open its library.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use rustix::process::Signal;
use tempfile::TempDir;

use crate::{
    common::{Server, command, listen, port::Port, stderr, until},
    tls::pki::Pki,
};

/// A secret, in the forms in which a log could have it.
struct Secret {
    name: &'static str,
    /// Parts of each form, so short that a part of the secret is found, too.
    parts: Vec<String>,
}

impl Secret {
    fn of_bytes(name: &'static str, bytes: &[u8]) -> Self {
        let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        let list = |bytes: &[u8]| bytes.iter().map(u8::to_string).collect::<Vec<_>>().join(",");
        let parts = bytes.windows(PART).flat_map(|part| {
            let debug = format!("{:?}", bytes::Bytes::copy_from_slice(part));
            let spaced = part.iter().map(|byte| format!("{byte:02X}")).collect::<String>();
            let part_of_number: [u8; PART] = part.try_into().unwrap();
            let numbers =
                [u64::from_le_bytes(part_of_number), u64::from_be_bytes(part_of_number)].map(|part| part.to_string());
            let text = [debug[2..debug.len() - 1].to_owned(), part.escape_ascii().to_string()];
            [hex(part), spaced, list(part)].into_iter().chain(numbers).chain(text)
        });
        Self { name, parts: parts.collect() }
    }

    /// A private key of Ed25519 in a PEM file, which is the last 32 bytes of the first 48 (RFC 8410 §7).
    fn of_pem(name: &'static str, path: &Path) -> Self {
        let pem = fs::read_to_string(path).unwrap();
        let der = rcgen::KeyPair::from_pem(&pem).unwrap().serialize_der();
        let mut secret = Self::of_bytes(name, &der[16..48]);
        let body: Vec<char> = pem.lines().filter(|line| !line.starts_with('-')).flat_map(str::chars).collect();
        // Four characters for three bytes.
        secret.parts.extend(body[22..64].windows(2 * PART).map(|part| part.iter().collect()));
        secret
    }

    /// Fails if a part of this is in the log, with or without white space between the bytes.
    fn check(&self, source: &str, log: &str, without_space: &str) {
        for part in &self.parts {
            assert!(
                !log.contains(part) && !without_space.contains(part),
                "{} is in the log of {source}: {part}",
                self.name
            );
        }
    }
}

/// The number of successive bytes of a secret that a log must not have.
const PART: usize = 8;

/// A place for the files of servers and their logs.
struct Place(TempDir);

impl Place {
    fn at(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn text(&self, name: &str) -> String {
        self.at(name).to_str().unwrap().to_owned()
    }

    /// Starts a server that logs everything to a file.
    fn serve(&self, log: &str, args: &[&str]) -> Server {
        let mut command = Command::new("sh");
        let script = "log=$1; shift; exec \"$@\" 2> \"$log\"";
        command.args(["-c", script, "sh", &self.text(log), env!("CARGO_BIN_EXE_slipway")]);
        command
            .args(["serve", "--json", "--rpcbind", "off"])
            .args(args)
            .env("RUST_LOG", "trace")
            .env_remove("NOTIFY_SOCKET");
        Server::spawn(command)
    }

    /// Runs a command that logs everything to a file, and must succeed.
    fn run(&self, log: &str, args: &[&str]) {
        let file = fs::File::options().create(true).append(true).open(self.at(log)).unwrap();
        let status =
            command(args).env("RUST_LOG", "trace").envs(self.realm()).stdout(Stdio::null()).stderr(file).status();
        assert!(status.unwrap().success(), "{args:?}: {}", fs::read_to_string(self.at(log)).unwrap());
    }

    /// Starts a data server.
    fn serve_data(&self, port: &Port) -> Server {
        let [flag, address] = listen("tcp", port);
        let [key, state, data] = ["cluster.key", "data-state", "data"].map(|name| self.text(name));
        let args = ["--data-server", "--squash", "none", "--cluster-key", &key, "--state-dir", &state, &data];
        self.serve("data-server.log", &[&args[..], &[&flag, &address]].concat())
    }

    /// Fails if a log has a part of a secret.
    fn check(&self, source: &str, secrets: &[Secret]) {
        let log = String::from_utf8_lossy(&fs::read(self.at(source)).unwrap()).into_owned();
        // Not every program has events of the level trace.
        let is_detailed = ["TRACE", "DEBUG"].iter().any(|level| log.contains(level));
        assert!(!log.is_empty() && (is_detailed || source != "server.log"), "{source}: {log}");
        let without_space: String = log.split_whitespace().collect();
        secrets.iter().for_each(|secret| secret.check(source, &log, &without_space));
    }

    /// Writes the key of a cluster.
    fn cluster_key(&self) -> Vec<u8> {
        let key: Vec<u8> = (0..32).map(|at| at * 5 + 0x51).collect();
        let hex: String = key.iter().map(|byte| format!("{byte:02x}")).collect();
        vfs::private::replace(&self.at("cluster.key"), hex.as_bytes()).unwrap();
        key
    }
}

#[test]
fn no_secret_is_in_a_log_at_any_level() {
    let place = Place(tempfile::tempdir().unwrap());
    let mut pki = Pki::new(place.0.path(), "test");
    let (ca, own, client) = (pki.ca("test"), pki.issue("server", &["localhost"]), pki.issue("client", &["client"]));
    let cluster = place.cluster_key();
    for directory in ["export", "data"] {
        fs::create_dir(place.at(directory)).unwrap();
    }
    let port = Port::take();
    let (key, data) = (place.text("cluster.key"), place.text("data"));
    let data_server = place.serve_data(&port);
    let dir = place.0.path().display();
    let config = format!(
        "[server]\nstate_dir = '{dir}/state'\n[audit]\nfile = '{dir}/audit.json'\nreads = true\n\
         [tls]\ncertificate = '{}'\nkey = '{}'\nclient_ca = '{ca}'\n\
         [[listen]]\ntransport = 'tcp'\naddress = '127.0.0.1:0'\n\
         [[export]]\npath = '{dir}/export'\nname = '/export'\nsquash = 'none'\nxprtsec = ['mtls']\nbackend = 'pnfs'\n\
         options = {{ cluster = 'c' }}\n[[pnfs]]\nname = 'c'\nmirrors = 1\nkey_file = '{key}'\n\
         [[pnfs.server]]\nid = 1\nkind = 'slipway'\nurl = 'nfs://{}{data}?mountport={}'\n",
        own.cert(),
        own.key(),
        port.address(),
        port.address().port(),
    );
    fs::write(place.at("slipway.toml"), config).unwrap();
    let config = place.text("slipway.toml");
    let server = place.serve("server.log", &["--config", &config]);

    fs::write(place.at("file"), vec![7; 3_000_000]).unwrap();
    for vers in ["3", "4.2"] {
        let url = format!(
            "nfs://localhost:{}/export/file-{vers}?vers={vers}&xprtsec=mtls&tls_ca={ca}&tls_cert={}&tls_key={}",
            server.port("tcp"),
            client.cert(),
            client.key()
        );
        place.run("client.log", &["cp", "-q", &place.text("file"), &url]);
        place.run("client.log", &["cat", &url]);
        place.run("client.log", &["rm", &url]);
    }
    // It reads all files again.
    server.signal(Signal::HUP);
    until("the reload must be logged", || {
        fs::read_to_string(place.at("server.log")).unwrap().contains("certificates were read again")
    });
    command(&["doctor", "--config", &config])
        .env("RUST_LOG", "trace")
        .stdout(fs::File::create(place.at("doctor.out")).unwrap())
        .stderr(fs::File::create(place.at("doctor.log")).unwrap())
        .status()
        .unwrap();
    server.stop();
    data_server.stop();

    let secrets = [
        Secret::of_pem("the server's private key", &own.key),
        Secret::of_pem("the client's private key", &client.key),
        Secret::of_bytes("the key of the cluster", &cluster),
        Secret::of_bytes("the key of file handles", &fs::read(place.at("state/handle.key")).unwrap()),
        Secret::of_bytes(
            "the key of a data server's file handles",
            &fs::read(place.at("data-state/handle.key")).unwrap(),
        ),
    ];
    let logs = ["server.log", "data-server.log", "client.log", "doctor.log", "doctor.out", "audit.json"];
    logs.iter().for_each(|source| place.check(source, &secrets));
}

/// A realm of Kerberos with the user alice, the key of `nfs/localhost` and a ticket.
struct Realm {
    kdc: std::process::Child,
    _port: Port,
}

impl Realm {
    /// Starts a key distribution centre whose files are in this place. Returns `None` if its programs are missing.
    fn start(place: &Place) -> Option<Self> {
        let (port, dir) = (Port::take(), place.0.path().display());
        let address = port.address();
        let krb5 = format!(
            "[libdefaults]\ndefault_realm = TEST\nrdns = false\ndns_lookup_kdc = false\ndns_canonicalize_hostname = false\n\
             udp_preference_limit = 1\n[realms]\nTEST = {{\nkdc = {address}\n}}\n[domain_realm]\nlocalhost = TEST\n"
        );
        let kdc = format!(
            "[kdcdefaults]\nkdc_listen = \nkdc_tcp_listen = {address}\n[realms]\nTEST = {{\ndatabase_name = {dir}/principal\n\
             key_stash_file = {dir}/stash\n}}\n"
        );
        fs::write(place.at("krb5.conf"), krb5).unwrap();
        fs::write(place.at("kdc.conf"), kdc).unwrap();
        let made = place.in_realm(
            "kdb5_util create -s -P master -r TEST && kadmin.local -q 'addprinc -pw alice alice' && \
             kadmin.local -q 'addprinc -randkey nfs/localhost' && kadmin.local -q \"ktadd -k $PLACE/keytab nfs/localhost\"",
        );
        if !made.status.success() || !place.at("keytab").exists() {
            return None;
        }
        let kdc = place.program("exec krb5kdc -n").stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let realm = Self { kdc, _port: port };
        until("the key distribution centre must answer", || {
            place.in_realm("echo alice | kinit alice").status.success()
        });
        Some(realm)
    }
}

impl Drop for Realm {
    fn drop(&mut self) {
        let _ = self.kdc.kill();
        let _ = self.kdc.wait();
    }
}

impl Place {
    /// Returns a script in the realm, not started.
    fn program(&self, script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", &format!("PATH=$PATH:/usr/sbin:/sbin; {script}")]).env("PLACE", self.0.path());
        command.envs(self.realm());
        command
    }

    fn in_realm(&self, script: &str) -> std::process::Output {
        self.program(script).output().unwrap()
    }

    fn realm(&self) -> [(&'static str, String); 3] {
        let files = [("KRB5_CONFIG", "krb5.conf"), ("KRB5_KDC_PROFILE", "kdc.conf"), ("KRB5CCNAME", "cache")];
        files.map(|(name, file)| (name, self.text(file)))
    }
}

/// Returns the session keys of the tickets in a cache (version 4 of MIT's format).
fn session_keys(mut cache: &[u8]) -> Vec<Vec<u8>> {
    fn take<'a>(from: &mut &'a [u8], len: usize) -> &'a [u8] {
        from.split_off(..len).expect("the cache must be whole")
    }
    fn number(from: &mut &[u8]) -> usize {
        u32::from_be_bytes(*take(from, 4).first_chunk().unwrap()) as usize
    }
    fn block<'a>(from: &mut &'a [u8]) -> &'a [u8] {
        let len = number(from);
        take(from, len)
    }
    fn principal(from: &mut &[u8]) {
        number(from);
        for _ in 0..=number(from) {
            block(from);
        }
    }
    assert_eq!(take(&mut cache, 2), [5, 4], "the version of the cache");
    let header = u16::from_be_bytes(*take(&mut cache, 2).first_chunk().unwrap());
    take(&mut cache, header.into());
    principal(&mut cache);
    let mut keys = Vec::new();
    while !cache.is_empty() {
        principal(&mut cache);
        principal(&mut cache);
        take(&mut cache, 2);
        keys.push(block(&mut cache).to_vec());
        // Times and flags, then the addresses and the authorization data.
        take(&mut cache, 4 * 4 + 1 + 4);
        for _ in 0..2 {
            for _ in 0..number(&mut cache) {
                take(&mut cache, 2);
                block(&mut cache);
            }
        }
        block(&mut cache);
        block(&mut cache);
    }
    keys
}

#[test]
fn no_key_of_kerberos_is_in_a_log_at_any_level() {
    let place = Place(tempfile::tempdir().unwrap());
    let Some(_realm) = Realm::start(&place) else {
        return eprintln!(
            "SKIPPED no_key_of_kerberos_is_in_a_log_at_any_level: needs krb5-kdc, krb5-admin-server and krb5-user"
        );
    };
    let keytab = place.text("keytab");
    let args = ["--memory", "64M", "--squash", "none", "--listen", "tcp://127.0.0.1:0", "--keytab", &keytab];
    let server = place.serve("server.log", &[&args[..], &["--sec", "krb5,krb5i,krb5p"]].concat());
    fs::write(place.at("file"), vec![7; 300_000]).unwrap();
    let export = server.ready["exports"][0].as_str().unwrap().to_owned();
    for sec in ["krb5", "krb5i", "krb5p"] {
        for vers in ["3", "4.2"] {
            let port = server.port("tcp");
            let url =
                format!("nfs://localhost:{port}{export}/file-{sec}-{vers}?vers={vers}&sec={sec}&mountport={port}");
            place.run("client.log", &["cp", "-q", &place.text("file"), &url]);
            place.run("client.log", &["cat", &url]);
        }
    }
    server.stop();

    let listed = place.in_realm("klist -k -e -K \"$PLACE/keytab\"").stdout;
    let listed = String::from_utf8(listed).unwrap();
    let hex = listed.lines().filter_map(|line| line.rsplit_once("(0x")?.1.strip_suffix(')'));
    let of_server: Vec<Vec<u8>> = hex
        .map(|hex| (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect())
        .collect();
    let of_tickets = session_keys(&fs::read(place.at("cache")).unwrap());
    assert!(!of_server.is_empty() && of_tickets.len() >= 2, "{listed}");
    let of_server = of_server.iter().map(|key| Secret::of_bytes("a key of the server", key));
    let secrets = of_server
        .chain(of_tickets.iter().filter(|key| !key.is_empty()).map(|key| Secret::of_bytes("a session key", key)));
    let secrets: Vec<_> = secrets.collect();
    ["server.log", "client.log"].iter().for_each(|source| place.check(source, &secrets));
}

#[test]
fn a_part_of_a_secret_is_found_in_every_form() {
    let bytes: Vec<u8> = (0..32).map(|at| at * 5 + 0x51).collect();
    let secret = Secret::of_bytes("a secret", &bytes);
    let part = &bytes[10..20];
    let hex: String = part.iter().map(|byte| format!("{byte:02x} ")).collect();
    let forms = [hex, format!("{part:?}"), format!("{part:#?}"), format!("{:?}", bytes::Bytes::copy_from_slice(part))];
    for log in forms {
        let without_space: String = log.split_whitespace().collect();
        assert!(secret.parts.iter().any(|part| log.contains(part) || without_space.contains(part)), "{log}");
    }
}

/// The libraries in the memory of a process.
fn maps(server: &Server) -> String {
    fs::read_to_string(format!("/proc/{}/maps", server.child.id())).unwrap()
}

#[test]
fn server_without_kerberos_does_not_open_its_library() {
    let server = Server::start(&["--memory", "1M", "--listen", "tcp://127.0.0.1:0"]);
    assert!(maps(&server).contains("libc.so"), "the libraries of the process must be known");
    assert!(!maps(&server).contains("libgssapi"), "nothing of Kerberos must be needed");
    server.stop();

    // With Kerberos, the same look finds the library.
    let dir = tempfile::tempdir().unwrap();
    let keytab = dir.path().join("keytab");
    let script =
        format!("addent -password -p nfs/localhost@TEST -k 1 -e aes256-cts\nsecret\nwkt {}\n", keytab.display());
    let ktutil = Command::new("sh").args(["-c", &format!("printf '{script}' | ktutil")]).output().unwrap();
    if !keytab.exists() {
        return eprintln!("SKIPPED the comparison with a server that has Kerberos: needs ktutil: {}", stderr(&ktutil));
    }
    let krb5 = dir.path().join("krb5.conf");
    fs::write(&krb5, "[libdefaults]\ndefault_realm = TEST\ndns_lookup_kdc = false\n").unwrap();
    let mut command =
        command(&["serve", "--json", "--rpcbind", "off", "--memory", "1M", "--listen", "tcp://127.0.0.1:0"]);
    command.args(["--keytab", keytab.to_str().unwrap(), "--sec", "krb5"]).env("KRB5_CONFIG", &krb5);
    let server = Server::spawn(command);
    assert!(maps(&server).contains("libgssapi"));
    server.stop();
}
