//! RPC with TLS between the commands, and with a client on another TLS library.

#[path = "../../../testkit/src/pki.rs"]
#[allow(dead_code)] // Each test program uses a part.
pub mod pki;

use std::{
    fs,
    io::{self, BufRead, BufReader, Read, Write},
    net::{Shutdown, TcpListener, TcpStream},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
};

use pki::Pki;
use tempfile::TempDir;

use crate::common::{Server, fails, ok, run, stderr, wait};

/// A server of `/open`, `/tls` and `/mtls` with a certificate for `localhost`.
struct Place {
    dir: TempDir,
    pki: Pki,
    ca: String,
    server: Server,
}

impl Place {
    fn new() -> Self {
        Self::with("")
    }

    /// Starts the server with further keys of `[tls]`.
    fn with(keys: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let mut pki = Pki::new(dir.path(), "test");
        let (ca, own) = (pki.ca("test"), pki.issue("server", &["localhost"]));
        let export = |name: &str, xprtsec: &str| {
            format!(
                "[[export]]\nname = '/{name}'\nbackend = 'memory'\nsize = '256 MiB'\nsquash = 'none'\nxprtsec = [{xprtsec}]\n"
            )
        };
        let config = format!(
            "[tls]\ncertificate = '{}'\nkey = '{}'\nclient_ca = '{ca}'\n{keys}\n\
             [[listen]]\ntransport = 'tcp'\naddress = '127.0.0.1:0'\n{}{}{}",
            own.cert(),
            own.key(),
            export("open", "'none', 'tls'"),
            export("tls", "'tls'"),
            export("mtls", "'mtls'"),
        );
        let path = dir.path().join("slipway.toml");
        fs::write(&path, config).unwrap();
        let state = dir.path().join("state");
        let args = ["--config", path.to_str().unwrap(), "--state-dir", state.to_str().unwrap()];
        let server = Server::start(&args);
        Self { dir, pki, ca, server }
    }

    fn url(&self, host: &str, path: &str, query: &str) -> String {
        format!("nfs://{host}:{}{path}?uid=0&gid=0&{query}", self.server.port("tcp"))
    }

    /// Returns a URL of a file over TLS.
    fn tls(&self, path: &str, more: &str) -> String {
        self.url("localhost", path, &format!("xprtsec=tls&tls_ca={}&{more}", self.ca))
    }

    fn file(&self, name: &str, len: usize) -> (PathBuf, Vec<u8>) {
        let content: Vec<u8> = (0..len).map(|at| (at * 7 % 253) as u8).collect();
        let path = self.dir.path().join(name);
        fs::write(&path, &content).unwrap();
        (path, content)
    }
}

#[test]
fn files_pass_over_tls_in_every_version() {
    let place = Place::new();
    let (local, content) = place.file("local", 5_000_003);
    for vers in ["3", "4.0", "4.1", "4.2"] {
        let url = place.tls(&format!("/tls/file-{vers}"), &format!("vers={vers}"));
        ok(&["cp", "--quiet", local.to_str().unwrap(), &url]);
        let read = run(&["cat", &url]);
        assert!(read.status.success() && read.stdout == content, "{vers}: {}", stderr(&read));
    }
    let both = place.tls("/tls/file-4.1", "vers=4.1&nconnect=3");
    assert!(run(&["cat", &both]).stdout == content);
    place.server.stop();
}

#[test]
fn exports_and_certificates_are_enforced_with_clear_errors() {
    let mut place = Place::new();
    for vers in ["3", "4.1"] {
        let vers = format!("vers={vers}");
        ok(&["ls", &place.url("localhost", "/open", &vers)]);
        ok(&["ls", &place.tls("/open", &vers)]);
        for refused in [place.url("localhost", "/tls", &vers), place.tls("/mtls", &vers)] {
            let output = run(&["ls", &refused]);
            assert!(!output.status.success(), "{refused} must be refused");
        }
    }
    let error = |url: String| {
        let output = run(&["ls", &url]);
        assert!(!output.status.success(), "{url} must be refused");
        stderr(&output).to_owned()
    };
    let by_address = error(place.url("127.0.0.1", "/tls", &format!("xprtsec=tls&tls_ca={}", place.ca)));
    assert!(by_address.contains("the peer's certificate is for another name"), "{by_address}");
    let mut other = Pki::new(place.dir.path(), "other");
    let unknown = error(place.url("localhost", "/tls", &format!("xprtsec=tls&tls_ca={}", other.ca("other"))));
    assert!(unknown.contains("is from an unknown issuer"), "{unknown}");
    let over_udp = error(place.tls("/tls", "proto=udp"));
    assert!(over_udp.contains("xprtsec is for proto=tcp; TLS does not protect 'udp'"), "{over_udp}");

    let mutual = |cert: &str, key: &str| format!("xprtsec=mtls&tls_ca={}&tls_cert={cert}&tls_key={key}", place.ca);
    let foreign = other.issue("foreign", &["client"]);
    let refused = error(place.url("localhost", "/mtls", &mutual(foreign.cert(), foreign.key())));
    assert!(refused.contains("it does not know the issuer of our certificate"), "{refused}");
    let own = place.pki.issue("client", &["client"]);
    let mutual = format!("xprtsec=mtls&tls_ca={}&tls_cert={}&tls_key={}", place.ca, own.cert(), own.key());
    for vers in ["3", "4.0", "4.1", "4.2"] {
        ok(&["ls", &place.url("localhost", "/mtls", &format!("{mutual}&vers={vers}"))]);
    }
    place.server.stop();
}

#[test]
fn sighup_reads_certificates_again() {
    let mut place = Place::new();
    ok(&["ls", &place.tls("/tls", "")]);
    let other = place.pki.issue("other", &["other.example.com"]);
    for (from, to) in [(&other.cert, "server.pem"), (&other.key, "server.key")] {
        fs::copy(from, place.dir.path().join(to)).unwrap();
    }
    place.server.signal(rustix::process::Signal::HUP);
    let end = std::time::Instant::now() + crate::common::PATIENCE;
    loop {
        let output = run(&["ls", &place.tls("/tls", "")]);
        if stderr(&output).contains("other.example.com") {
            break;
        }
        assert!(output.status.success() && std::time::Instant::now() < end, "{}", stderr(&output));
    }
    place.server.stop();
}

#[test]
fn unusable_certificates_are_named_at_the_start() {
    let dir = tempfile::tempdir().unwrap();
    let own = Pki::new(dir.path(), "test").issue("server", &["localhost"]);
    let listen = |key: &str| format!("tcp://127.0.0.1:0?tls_cert={}&tls_key={key}", own.cert());
    let serve = |listen: &str| fails(2, &["serve", "--memory", "1M", "--rpcbind", "off", "--listen", listen]);
    let alone = serve(&format!("tcp://127.0.0.1:0?tls_key={}", own.key()));
    assert!(alone.contains("option 'tls_key': needs tls_cert and tls_key"), "{alone}");
    let missing = serve(&listen("/none.key"));
    assert!(missing.contains("option 'tls_key': /none.key: No such file"), "{missing}");
    let config = dir.path().join("slipway.toml");
    fs::write(&config, "[tls]\ncertificate = '/c'\nkey = '/k'\nca = '/ca'\n[[export]]\npath = '/tmp'").unwrap();
    let unknown = fails(2, &["serve", "--config", config.to_str().unwrap()]);
    assert!(unknown.contains("slipway.toml:4:1: unknown field `ca`"), "{unknown}");
}

#[test]
fn options_of_tls_without_xprtsec_never_connect_in_clear() {
    let place = Place::new();
    for option in ["tls_ca", "tls_crl", "tls_cert", "tls_key"] {
        let url = place.url("localhost", "/open", &format!("{option}={}", place.ca));
        let refused = fails(2, &["ls", &url]);
        assert!(refused.contains(&format!("option '{option}' needs xprtsec=tls or xprtsec=mtls")), "{refused}");
    }
    let url = place.url("localhost", "/open", "");
    let directory = place.dir.path().to_str().unwrap();
    for options in [&["--tls-ca", &place.ca[..]][..], &["-o", "tls_alpn=optional"]] {
        let refused = fails(2, &[&["mount", &url, directory], options].concat());
        assert!(refused.contains("needs xprtsec=tls or xprtsec=mtls"), "{refused}");
    }
    place.server.stop();
}

#[test]
fn exports_that_no_connection_can_use_are_named_at_the_start() {
    let dir = tempfile::tempdir().unwrap();
    let own = Pki::new(dir.path(), "test").issue("server", &["localhost"]);
    let config = dir.path().join("slipway.toml");
    let files = format!("certificate = '{}'\nkey = '{}'", own.cert(), own.key());
    let export = |keys: &str| format!("[[export]]\nname = '/e'\nbackend = 'memory'\nsize = '1 MiB'\n{keys}\n");
    let in_clear = "[[listen]]\ntransport = 'tcp'\naddress = '127.0.0.1:0'\n";
    let cases = [
        (
            in_clear.to_owned(),
            export("xprtsec = ['tls']"),
            "no listener of tcp offers TLS: the configuration needs [tls]",
        ),
        (String::new(), export("xprtsec = ['tls', 'mtls']"), "the configuration needs [tls]"),
        (
            in_clear.to_owned(),
            export("clients = ['10.0.0.0/8', { host = '*', xprtsec = ['mtls'] }]"),
            "the configuration needs [tls]",
        ),
        (format!("[tls]\n{files}\n"), export("xprtsec = ['mtls']"), "asks clients for a certificate (client_ca)"),
        (format!("[tls]\n{files}\nrequired = 'tls'\n"), export("xprtsec = ['none']"), "or is in clear"),
    ];
    for (listeners, export, expected) in cases {
        fs::write(&config, format!("{listeners}{export}")).unwrap();
        let refused = fails(2, &["serve", "--config", config.to_str().unwrap()]);
        assert!(
            refused.contains("export '/e': xprtsec admits no connection") && refused.contains(expected),
            "{refused}"
        );
    }
    // Over another transport that it names, the export can be used.
    fs::write(
        &config,
        format!(
            "{in_clear}[[listen]]\ntransport = 'shm'\naddress = '127.0.0.1:0'\n{}",
            export("xprtsec = ['tls']\ntransports = ['shm']")
        ),
    )
    .unwrap();
    let state = dir.path().join("state");
    Server::start(&["--config", config.to_str().unwrap(), "--state-dir", state.to_str().unwrap()]).stop();
}

#[test]
fn client_on_openssl_uses_the_server() {
    let python = Command::new("python3").args(["-c", "import ssl"]).output();
    if !python.is_ok_and(|output| output.status.success()) {
        return eprintln!("skipped: python3 with ssl is not installed");
    }
    let place = Place::new();
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../interop/tls/peer.py");
    let (port, ca) = (place.server.port("tcp").to_string(), &place.ca);
    let output = Command::new("python3").args([script, &port, ca, "/tls"]).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{text}{}", stderr(&output));
    assert_eq!(text.lines().filter(|line| line.starts_with("ok: ")).count(), 4, "{text}");
    place.server.stop();
}

/// `openssl s_client` in a session with a server, behind a relay that has made the probe.
struct Openssl {
    child: Child,
    /// The lines of the program about the connection.
    said: BufReader<std::process::ChildStderr>,
    messages: PathBuf,
}

impl Openssl {
    fn connect(place: &Place, messages: &str) -> Self {
        let messages = place.dir.path().join(messages);
        let relay = relay_behind_the_probe(place.server.port("tcp"));
        let mut child = Command::new("openssl")
            .args([
                "s_client",
                "-brief",
                "-tls1_3",
                "-alpn",
                "sunrpc",
                "-servername",
                "localhost",
                "-verify_return_error",
            ])
            .args(["-connect", &format!("127.0.0.1:{relay}"), "-CAfile", &place.ca, "-msg", "-msgfile"])
            .arg(&messages)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let said = BufReader::new(child.stderr.take().unwrap());
        let mut client = Self { child, said, messages };
        client.await_line("CONNECTION ESTABLISHED");
        client
    }

    /// Waits until the program says this.
    fn await_line(&mut self, wanted: &str) {
        let mut line = String::new();
        while !line.contains(wanted) {
            line.clear();
            assert!(self.said.read_line(&mut line).unwrap() > 0, "openssl has ended without '{wanted}'");
        }
    }

    /// Sends a KeyUpdate: `k`, or `K` to ask the server for one, too.
    fn update_key(&mut self, letter: &[u8]) {
        self.child.stdin.as_mut().unwrap().write_all(&[letter, b"\n"].concat()).unwrap();
        self.await_line("KEYUPDATE");
    }

    /// Calls NULL. Returns `false` if the connection ends without a reply.
    fn null(&mut self, xid: u32) -> bool {
        self.child.stdin.as_mut().unwrap().write_all(&null_call(xid, 0)).unwrap();
        let mut reply = [0; 28];
        match self.child.stdout.as_mut().unwrap().read_exact(&mut reply) {
            Ok(()) => assert_eq!(reply[4..12], [xid.to_be_bytes(), 1u32.to_be_bytes()].concat()),
            Err(error) => assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof, "{error}"),
        }
        reply[3] != 0
    }

    /// Ends the connection. Returns the messages of TLS, one line for each.
    fn end(mut self) -> String {
        drop(self.child.stdin.take());
        wait(&mut self.child);
        fs::read_to_string(&self.messages).unwrap()
    }
}

/// Returns the record of a call of NULL with this flavour and an empty body.
fn null_call(xid: u32, flavor: u32) -> Vec<u8> {
    let words = [1 << 31 | 40, xid, 0, 2, 100_003, 3, 0, flavor, 0, 0, 0];
    words.into_iter().flat_map(u32::to_be_bytes).collect()
}

/// Accepts one connection, makes the probe of RFC 9289 at the server, and then passes bytes in both directions. Returns the port.
fn relay_behind_the_probe(server: u16) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    thread::spawn(move || {
        let (client, _) = listener.accept().unwrap();
        let mut server = TcpStream::connect(("127.0.0.1", server)).unwrap();
        server.write_all(&null_call(1, 7)).unwrap();
        let mut answer = [0; 36];
        server.read_exact(&mut answer).unwrap();
        assert_eq!(&answer[24..32], b"STARTTLS");
        let pass = |mut from: TcpStream, mut to: TcpStream| {
            let _ = io::copy(&mut from, &mut to);
            let _ = to.shutdown(Shutdown::Write);
        };
        let (back, forth) = (server.try_clone().unwrap(), client.try_clone().unwrap());
        thread::spawn(move || pass(back, forth));
        pass(client, server);
    });
    port
}

#[test]
fn keys_are_replaced_with_a_client_on_openssl() {
    if Command::new("openssl").arg("version").output().is_err() {
        return eprintln!("SKIPPED keys_are_replaced_with_a_client_on_openssl: needs openssl");
    }
    for ktls in ["off", "auto"] {
        let place = Place::with(&format!("ktls = '{ktls}'"));
        let mut client = Openssl::connect(&place, "messages");
        assert!(client.null(1));
        client.update_key(b"k");
        assert!(client.null(2), "{ktls}: the server must use the client's new key");
        client.update_key(b"K");
        // The kernel cannot replace the key by which it encrypts.
        let by_kernel = ktls == "auto" && Path::new("/proc/net/tls_stat").exists();
        assert_eq!(client.null(3), !by_kernel, "{ktls}: the server must answer by a key of its own");
        if !by_kernel {
            assert!((4..9).all(|xid| client.null(xid)), "{ktls}: both must use the new keys");
        }
        let messages = client.end();
        let updates = |direction: &str| {
            let is_update = |line: &&str| line.starts_with(direction) && line.ends_with(", KeyUpdate");
            messages.lines().filter(is_update).count()
        };
        assert_eq!((updates(">>>"), updates("<<<")), (2, usize::from(!by_kernel)), "{ktls}: {messages}");
        // The server still has other connections.
        ok(&["ls", &place.tls("/tls", "")]);
        place.server.stop();
    }
}
