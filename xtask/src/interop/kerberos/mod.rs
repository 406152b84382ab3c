//! Kerberos 5 with MIT's key distribution centre: our client against our server with each flavour, version and
//! transport, their errors, and a Linux kernel as client and as server ([`linux`], [`state`]).
//!
//! The realm is in the directory of the suite. No configuration of the machine is changed, and no daemon is used.

mod checksums;
mod locks;

use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use super::Bench;
use super::capture::capture;
use super::lab::{Guest, text};
use super::realm::{Cache, REALM, Realm, in_realm};
use super::server::{Server, Setup};
use crate::report::{Outcome, Report};
use crate::shell::{self, Daemon};

/// Runs our client against our server.
pub fn run(bench: &Bench, report: &mut Report) -> Result<(), String> {
    if !shell::is_root() {
        report.record("interop: kerberos", Outcome::Skipped("the server must be root to write as its callers".into()));
        return Ok(());
    }
    let directory = bench.fresh("kerberos")?;
    let realm = Realm::start(&bench.ports, &directory.join("realm"))?;
    let suite = Suite::start(bench, &directory, &realm)?;
    let cells = cells(&["tcp", "rdma", "shm"]);
    for cell in bench.rotation.pick("kerberos", &cells, CELLS, report) {
        let Cell { transport, version, flavor } = cell;
        report.step(&format!("interop: kerberos: {transport}: version {version} with {flavor}"), || {
            outcome(suite.copies(cell))
        });
    }
    for (name, check) in CHECKS {
        report.step(&format!("interop: kerberos: {name}"), || outcome(check(&suite)));
    }
    report.step("interop: kerberos: the server computes the checksums of all contexts", || {
        outcome(computes_checksums(&suite))
    });
    suite.server.stop()
}

/// Runs Linux's client against our server, and our client against Linux's server: in one guest, and with all cells in several, because the
/// content suite takes minutes for each cell.
pub fn linux(bench: &Bench, report: &mut Report) -> Result<(), String> {
    // The kernel has no shared memory.
    let cells = cells(&["tcp", "rdma"]);
    let picked = words(&bench.rotation.pick("kerberos-linux", &cells, CELLS_OF_GUEST, report));
    let mut content = Vec::new();
    for flavor in FLAVORS {
        let of_flavor: Vec<_> = cells.iter().filter(|cell| cell.flavor == flavor).collect();
        content.extend(bench.rotation.pick("kerberos-linux", &of_flavor, 1, report).into_iter().copied());
    }
    let adapter: Vec<_> = cells.iter().filter(|cell| cell.transport == "rdma").collect();
    let adapter = bench.rotation.pick("kerberos-linux", &adapter, CELLS_OF_ADAPTER, report);
    let adapter = adapter.iter().map(|cell| format!("{}:{}", cell.version, cell.flavor)).collect::<Vec<_>>();
    for (number, content) in content.chunks(CONTENT_OF_GUEST).enumerate() {
        let name = if number == 0 { "kerberos-linux".to_owned() } else { format!("kerberos-linux-{}", number + 1) };
        let of_first = |cells: &str| if number == 0 { cells.to_owned() } else { String::new() };
        let guest = Guest::new(bench, bench.fresh(&name)?.join("guest"))?;
        guest.environment(&[
            ("SLIPWAY", text(&bench.slipway)),
            ("KERNEL_CLIENT", of_first(&picked)),
            ("OUR_CLIENT", of_first(&picked)),
            ("CONTENT", words(content)),
            ("ADAPTER", of_first(&adapter.join(" "))),
        ])?;
        let ended = guest.run("kerberos.sh");
        guest.results(&name, ended, report)?;
    }
    Ok(())
}

/// Runs two Linux clients that hold state at our server, in one guest.
pub fn state(bench: &Bench, report: &mut Report) -> Result<(), String> {
    let guest = Guest::new(bench, bench.fresh("kerberos-state")?.join("guest"))?;
    let cells = cells(&["tcp", "rdma"]);
    // NFSv3 locks by NLM, whose calls Linux makes with AUTH_SYS.
    let mut locks = Vec::new();
    for of_nlm in [true, false] {
        let cells: Vec<_> = cells.iter().filter(|cell| (cell.version == "3") == of_nlm).collect();
        let count = if of_nlm { 1 } else { CELLS_OF_LOCKS };
        locks.extend(bench.rotation.pick("kerberos-state", &cells, count, report).into_iter().copied());
    }
    let ends = bench.rotation.pick("kerberos-state", &ENDS, 1, report).into_iter().copied().collect::<Vec<_>>();
    guest.environment(&[("SLIPWAY", text(&bench.slipway)), ("LOCKS", words(&locks)), ("ENDS", ends.join(" "))])?;
    let ended = guest.run("kerberos_state.sh");
    guest.results("kerberos-state", ended, report)
}

/// Returns cells as the scripts of guests read them.
fn words(cells: &[&Cell]) -> String {
    let word = |cell: &&Cell| format!("{}:{}:{}", cell.transport, cell.version, cell.flavor);
    cells.iter().map(word).collect::<Vec<_>>().join(" ")
}

#[derive(Debug)]
struct Cell {
    transport: &'static str,
    version: &'static str,
    flavor: &'static str,
}

/// Returns all cells of these transports. Neighbours differ in flavour, version and transport.
fn cells(transports: &[&'static str]) -> Vec<Cell> {
    let all = transports.len() * VERSIONS.len() * FLAVORS.len();
    let cell = |number: usize| Cell {
        transport: transports[number / 12 % transports.len()],
        version: VERSIONS[number % VERSIONS.len()],
        flavor: FLAVORS[number % FLAVORS.len()],
    };
    // 12 versions and flavours are all pairs, because 3 and 4 have no common factor; and 7 has none with the count.
    (0..all).map(|number| cell(number * 7 % all)).collect()
}

const VERSIONS: [&str; 4] = ["3", "4.0", "4.1", "4.2"];
const FLAVORS: [&str; 3] = ["krb5", "krb5i", "krb5p"];
/// The number of cells of one run: of our own client and server, and of each direction in the guest, which is slow.
const CELLS: usize = 12;
const CELLS_OF_GUEST: usize = 3;
const CELLS_OF_ADAPTER: usize = 2;
/// The number of cells with the content suite that a guest has time for.
const CONTENT_OF_GUEST: usize = 4;
/// The exports of `kerberos_state.sh` on which the ticket of a user with state ends: one with all flavours, and one with krb5p only. A
/// commit runs one.
const ENDS: [&str; 2] = ["EXPORT", "PRIVATE"];
/// The number of cells of one run in which two clients lock by NFSv4.
const CELLS_OF_LOCKS: usize = 3;

type Check = fn(&Suite) -> Result<(), String>;

const CHECKS: [(&str, Check); 13] = [
    ("checksums are those of the library, for each encryption type", checksums::equal_those_of_the_library),
    ("locks over NFSv3 conflict and are granted, with each flavour", locks::conflict_and_are_granted),
    ("only krb5p hides the data", only_privacy_hides_data),
    ("a user without a ticket is told to get one", no_ticket),
    ("an expired ticket is refused", expired_ticket),
    ("a service without a principal is named", no_principal),
    ("a ticket for another service of the keytab is refused", wrong_service),
    ("a keytab without a key of NFS is refused at the start", keytab_without_key),
    ("a server without Kerberos is named", no_kerberos),
    ("users of a mount have their own tickets and files, and nothing without a ticket", several_users),
    ("an expired ticket harms no other user of the mount, and a new one is used", expired_ticket_of_a_user),
    ("a destroyed ticket ends with its context, and a new one is used", destroyed_ticket_of_a_user),
    ("a new key is used without a restart", new_key),
];

/// The users whose principals are alice and bob: daemon and bin, because a principal whose user is unknown is anonymous.
const ALICE: u32 = 1;
const BOB: u32 = 2;
/// A user of this machine without a principal: sys.
const CAROL: u32 = 3;
/// The lifetime of a ticket that expires during a test: long enough for the first calls.
const LIFETIME: &str = "15s";

/// Serves a directory that everybody can write in, with the key of a service, and directories that accept one flavour each.
fn serve(bench: &Bench, directory: &Path, realm: &Realm, service: &str) -> Result<Server, String> {
    let failed = |error: std::io::Error| error.to_string();
    let export = directory.join("export");
    std::fs::create_dir_all(&export).map_err(failed)?;
    std::fs::set_permissions(&export, std::fs::Permissions::from_mode(0o1777)).map_err(failed)?;
    let mut exports = format!(
        "[kerberos]\nkeytab = \"{}/server.keytab\"\nservice = \"{service}\"\n\n\
         [identity]\nprincipals = {{ \"alice@{REALM}\" = {ALICE}, \"bob@{REALM}\" = {BOB} }}\n\n\
         [[listen]]\ntransport = \"shm\"\naddress = \"127.0.0.1:TCP\"\n\n\
         [[export]]\nname = \"/export\"\npath = \"{}\"\nsec = [\"sys\", \"krb5\", \"krb5i\", \"krb5p\"]\n",
        realm.directory.display(),
        export.display()
    );
    for flavor in FLAVORS {
        let only = directory.join("only").join(flavor);
        std::fs::create_dir_all(&only).map_err(failed)?;
        let path = only.display();
        exports += &format!("[[export]]\nname = \"/only-{flavor}\"\npath = \"{path}\"\nsec = [\"{flavor}\"]\n");
    }
    let environment = [("KRB5_CONFIG", realm.directory.join("krb5.conf")), ("RUST_LOG", "info,gss=debug".into())];
    Server::start_as(bench, directory, &Setup { exports: &exports, environment: &environment, ..Setup::default() })
}

/// A server with Kerberos, and what its clients need.
struct Suite<'a> {
    bench: &'a Bench,
    realm: &'a Realm,
    server: Server,
    directory: PathBuf,
    /// A cache with a valid ticket.
    alice: String,
    /// A file whose content is recognisable, of more than two WRITEs of 1 MiB.
    sample: PathBuf,
}

impl<'a> Suite<'a> {
    fn start(bench: &'a Bench, directory: &Path, realm: &'a Realm) -> Result<Self, String> {
        let failed = |error: std::io::Error| error.to_string();
        let sample = directory.join("sample");
        let mut content = std::fs::read(&bench.fixture.random).map_err(failed)?;
        content.truncate(2_500_001);
        content[1_000_000..][..SECRET.len()].copy_from_slice(SECRET);
        std::fs::write(&sample, content).map_err(failed)?;
        let server = serve(bench, directory, realm, "nfs")?;
        let alice = realm.ticket("alice", &[])?;
        Ok(Self { bench, realm, server, directory: directory.to_owned(), alice, sample })
    }

    fn url(&self, cell: &Cell, path: &str) -> String {
        let Cell { transport, version, flavor } = cell;
        let (tcp, rdma) = (self.server.tcp, self.server.rdma);
        let port = if *transport == "rdma" { rdma } else { tcp };
        let mount = if *version == "3" { format!("&mountport={tcp}&mountproto=tcp") } else { String::new() };
        format!("nfs://localhost:{port}/export/{path}?proto={transport}&vers={version}&sec={flavor}{mount}")
    }

    /// Runs a command of our client with the tickets of a cache. The error has its message.
    fn slipway(&self, cache: &str, arguments: &[&str]) -> Result<String, String> {
        let mut command = in_realm("timeout", &self.realm.directory);
        command.env("KRB5CCNAME", cache).arg("120").arg(&self.bench.slipway).args(arguments);
        shell::capture(&mut command)
    }

    /// Copies a file to the server and back.
    fn copies(&self, cell: &Cell) -> Result<(), String> {
        let Cell { transport, version, flavor } = cell;
        let name = format!("{transport}-{version}-{flavor}");
        let (url, back) = (self.url(cell, &name), self.directory.join(format!("back-{name}")));
        self.slipway(&self.alice, &["cp", &text(&self.sample), &url])?;
        same(&self.sample, &self.directory.join("export").join(&name))?;
        self.slipway(&self.alice, &["cp", &url, &text(&back)])?;
        same(&self.sample, &back)
    }

    /// Lists the export, which must fail with a message that has all of these words.
    fn fails(&self, cache: &str, url: &str, words: &[&str]) -> Result<(), String> {
        match self.slipway(cache, &["ls", url]) {
            Ok(listing) => Err(format!("the server has accepted it: {listing}")),
            Err(why) => match words.iter().find(|word| !why.contains(**word)) {
                None => Ok(()),
                Some(word) => Err(format!("the message lacks '{word}': {why}")),
            },
        }
    }
}

/// Captures the same file with each flavour over TCP.
fn only_privacy_hides_data(suite: &Suite) -> Result<(), String> {
    for (flavor, hides) in [("krb5", false), ("krb5i", false), ("krb5p", true)] {
        let file = suite.directory.join(format!("{flavor}.pcap"));
        let url = suite.url(&Cell { transport: "tcp", version: "4.2", flavor }, &format!("captured-{flavor}"));
        capture(&file, suite.server.tcp, || {
            suite.slipway(&suite.alice, &["cp", &text(&suite.sample), &url]).map(drop)
        })?;
        let bytes = std::fs::read(&file).map_err(|error| error.to_string())?;
        let is_there = |wanted: &[u8]| bytes.windows(wanted.len()).any(|part| part == wanted);
        if is_there(SECRET) == hides || is_there(b"captured-krb5") == hides {
            return Err(format!("{flavor}: the data or the name are {}", if hides { "visible" } else { "hidden" }));
        }
    }
    Ok(())
}

fn no_ticket(suite: &Suite) -> Result<(), String> {
    let url = suite.url(&Cell { transport: "tcp", version: "4.1", flavor: "krb5i" }, "");
    suite.fails("FILE:/nonexistent", &url, &["nfs@localhost", "/nonexistent", "kinit"])
}

fn expired_ticket(suite: &Suite) -> Result<(), String> {
    let url = suite.url(&Cell { transport: "rdma", version: "3", flavor: "krb5" }, "");
    let cache = suite.realm.ticket("expired", &["-l", "3s"])?;
    std::thread::sleep(Duration::from_secs(4));
    suite.fails(&cache, &url, &["nfs@localhost", "expired", "kinit"])
}

fn no_principal(suite: &Suite) -> Result<(), String> {
    let url = suite.url(&Cell { transport: "tcp", version: "4.2", flavor: "krb5" }, "");
    let url = url.replace("localhost", "127.0.0.1");
    suite.fails(&suite.alice, &url, &["nfs/127.0.0.1@SLIPWAY.TEST", "alice@SLIPWAY.TEST"])
}

/// A server that is configured for one service, with a keytab that has the key of another one, too.
fn wrong_service(suite: &Suite) -> Result<(), String> {
    let directory = suite.directory.join("other");
    std::fs::create_dir_all(&directory).map_err(|error| error.to_string())?;
    let server = serve(suite.bench, &directory, suite.realm, "nfs@other")?;
    let other = Suite { server, directory, alice: suite.alice.clone(), sample: suite.sample.clone(), ..*suite };
    let url = other.url(&Cell { transport: "tcp", version: "4.2", flavor: "krb5i" }, "");
    other.fails(&suite.alice, &url, &["the server refuses a context"])?;
    other.server.stop()
}

fn keytab_without_key(suite: &Suite) -> Result<(), String> {
    let keytab = suite.realm.directory.join("host.keytab");
    let mut command = in_realm("timeout", &suite.realm.directory);
    command.arg("20").arg(&suite.bench.slipway).args(["serve", "--memory", "1M", "--listen", "tcp://127.0.0.1:0"]);
    match shell::capture(command.args(["--rpcbind", "off", "--keytab"]).arg(&keytab)) {
        Ok(_) => Err("the server has started".into()),
        Err(why) if why.contains("no key of nfs") && why.contains("host.keytab") => Ok(()),
        Err(why) => Err(why),
    }
}

/// Another server, without `[kerberos]`.
fn no_kerberos(suite: &Suite) -> Result<(), String> {
    let directory = suite.directory.join("without");
    std::fs::create_dir_all(&directory).map_err(|error| error.to_string())?;
    let server = Server::start(suite.bench, &directory, "[[export]]\nname = \"/export\"\nbackend = \"memory\"\n")?;
    let url = format!("nfs://localhost:{}/export?vers=4.2&sec=krb5i", server.tcp);
    suite.fails(&suite.alice, &url, &["the server does not accept Kerberos"])?;
    server.stop()
}

/// Files of a mount for all users belong to the users that create them. A user without a ticket can do nothing.
fn several_users(suite: &Suite) -> Result<(), String> {
    let _alice = suite.realm.ticket_of_user("alice", ALICE, &[])?;
    let _bob = suite.realm.ticket_of_user("bob", BOB, &[])?;
    let cells = [
        ("tcp", "3", "krb5"),
        ("shm", "3", "krb5p"),
        ("rdma", "4.0", "krb5i"),
        ("tcp", "4.1", "krb5p"),
        ("tcp", "4.2", "krb5"),
        ("shm", "4.2", "krb5"),
        ("shm", "4.2", "krb5p"),
    ];
    for (transport, version, flavor) in cells {
        let cell = Cell { transport, version, flavor };
        let shared = Shared::new(suite, &cell)?;
        for (uid, user) in [(ALICE, "alice"), (BOB, "bob")] {
            let name = format!("{user}-{transport}-{version}-{flavor}");
            shared.writes(uid, &name)?;
            let served = suite.directory.join("export").join(&name);
            let owner = std::fs::metadata(&served).map_err(|error| error.to_string())?.uid();
            if owner != uid {
                return Err(format!("{name} belongs to {owner}, not to {uid}"));
            }
        }
        let private = format!("alice-{transport}-{version}-{flavor}");
        for (uid, user) in [(BOB, "bob"), (CAROL, "a user without a ticket")] {
            shared.is_denied(uid, &private).map_err(|why| format!("{cell:?}: {user}: {why}"))?;
        }
        let unwritten = format!("carol-{transport}-{version}-{flavor}");
        match shared.writes(CAROL, &unwritten) {
            Err(why) if why.contains(DENIED) => {}
            result => return Err(format!("{cell:?}: a user without a ticket creates a file: {result:?}")),
        }
        shared.end()?;
    }
    Ok(())
}

/// The ticket of one user expires while both use a mount.
fn expired_ticket_of_a_user(suite: &Suite) -> Result<(), String> {
    ticket_ends(suite, &Cell { transport: "tcp", version: "4.2", flavor: "krb5p" }, |_| Ok(()))
}

/// One user destroys its ticket while both use a mount. The server and the client keep the security context until the ticket would have
/// expired, as the kernel's client does.
fn destroyed_ticket_of_a_user(suite: &Suite) -> Result<(), String> {
    ticket_ends(suite, &Cell { transport: "shm", version: "4.2", flavor: "krb5" }, |bob| {
        let mut command = in_realm("setpriv", &suite.realm.directory);
        command.args(["--reuid", &BOB.to_string(), "--clear-groups", "kdestroy", "-c", &bob.name()]);
        shell::capture(&mut command).map(drop)
    })
}

/// Uses a mount as two users until the ticket of one of them has ended, and then with a new ticket.
fn ticket_ends(suite: &Suite, cell: &Cell, end: impl Fn(&Cache) -> Result<(), String>) -> Result<(), String> {
    let _alice = suite.realm.ticket_of_user("alice", ALICE, &[])?;
    let bob = suite.realm.ticket_of_user("bob", BOB, &["-l", LIFETIME])?;
    let shared = Shared::new(suite, cell)?;
    let named = |name: &str| format!("{name}-{}", cell.transport);
    shared.writes(BOB, &named("early"))?;
    shared.writes(ALICE, &named("before"))?;
    end(&bob)?;
    let (mut number, mut last) = (0, Ok(()));
    let ends = shell::wait_until(Duration::from_secs(120), || {
        number += 1;
        last = shared.writes(BOB, &named(&format!("late-{number}")));
        last.is_err()
    });
    match last {
        Err(why) if ends && why.contains(DENIED) => {}
        result => return Err(format!("a user without a valid ticket creates a file: {result:?}")),
    }
    shared.writes(ALICE, &named("after"))?;
    drop(bob);
    let _bob = suite.realm.ticket_of_user("bob", BOB, &[])?;
    shared.writes(BOB, &named("again"))?;
    shared.end()
}

/// A mount on a directory that all users can search.
struct Shared {
    at: PathBuf,
    mount: Daemon,
}

impl Shared {
    fn new(suite: &Suite, cell: &Cell) -> Result<Self, String> {
        let Cell { transport, version, flavor } = cell;
        let name = format!("shared-{transport}-{version}-{flavor}");
        Self::at(suite, &suite.url(cell, ""), &name, &suite.alice, &["--allow-other"])
    }

    /// Mounts with the tickets of a cache. The log has the given name.
    fn at(suite: &Suite, url: &str, name: &str, cache: &str, options: &[&str]) -> Result<Self, String> {
        let at = std::env::temp_dir().join(format!("slipway-{}-{name}", std::process::id()));
        std::fs::create_dir(&at).map_err(|error| format!("{}: {error}", at.display()))?;
        let mut command = in_realm(&text(&suite.bench.slipway), &suite.realm.directory);
        command.env("KRB5CCNAME", cache).arg("mount").args(options).arg(url).arg(&at);
        let mount = Daemon::start(&mut command, &suite.directory.join(format!("{name}.log")))?;
        let mut shared = Self { at, mount };
        shell::wait_until(Duration::from_secs(20), || shared.is_mounted() || !shared.mount.is_running());
        if shared.is_mounted() { Ok(shared) } else { Err(format!("{} is not mounted", shared.at.display())) }
    }

    fn is_mounted(&self) -> bool {
        std::fs::read_to_string("/proc/self/mounts").is_ok_and(|all| all.contains(&text(&self.at)))
    }

    /// Creates a private file as a user, reads it, and waits until the mount knows the number of its owner, whom the server names.
    fn writes(&self, uid: u32, name: &str) -> Result<(), String> {
        let script = "umask 077 && echo \"$1\" > \"$0\" && cat \"$0\" && \
                      until test \"$(stat -c %u \"$0\")\" = \"$(id -u)\"; do sleep 0.1; done";
        let content = self.runs(uid, name, script)?;
        if content.trim() == name { Ok(()) } else { Err(format!("{name} has the content {content}")) }
    }

    /// Reads a file as a user, which must fail with EACCES.
    fn is_denied(&self, uid: u32, name: &str) -> Result<(), String> {
        match self.runs(uid, name, "cat \"$0\"") {
            Ok(_) => Err("can read a private file of another user".into()),
            Err(why) if why.contains(DENIED) => Ok(()),
            Err(why) => Err(why),
        }
    }

    fn runs(&self, uid: u32, name: &str, script: &str) -> Result<String, String> {
        let mut command = Command::new("setpriv");
        command.args(["--reuid", &uid.to_string(), "--clear-groups", "timeout", "60", "sh", "-c", script]);
        shell::capture(command.arg(self.at.join(name)).arg(name))
    }

    fn end(mut self) -> Result<(), String> {
        self.mount.terminate()
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        if self.mount.is_running() {
            let _ = self.mount.terminate();
        }
        let _ = std::fs::remove_dir(&self.at);
    }
}

fn new_key(suite: &Suite) -> Result<(), String> {
    let url = suite.url(&Cell { transport: "tcp", version: "4.2", flavor: "krb5i" }, "");
    let query = |query: &str| shell::capture(in_realm("kadmin.local", &suite.realm.directory).args(["-q", query]));
    query("cpw -randkey nfs/localhost")?;
    let cache = suite.realm.ticket("new-key", &[])?;
    suite.fails(&cache, &url, &["the server refuses a context"])?;
    query(&format!("ktadd -k {}/server.keytab nfs/localhost", suite.realm.directory.display()))?;
    let cache = suite.realm.ticket("new-key", &[])?;
    suite.slipway(&cache, &["ls", &url]).map(drop)
}

/// Reads the log of the server after all clients of the suite: each context has had keys, and the library had to verify no checksum.
fn computes_checksums(suite: &Suite) -> Result<(), String> {
    let log = suite.server.log()?;
    let count = |text: &str| log.lines().filter(|line| line.contains(text)).count();
    let (contexts, own) = (count("a context is established"), count("checksums of a context need no Kerberos library"));
    if contexts == 0 || own < contexts || log.contains("the Kerberos library ") {
        return Err(format!(
            "{own} of {contexts} contexts have keys, or the library verifies checksums: see the server's log"
        ));
    }
    Ok(())
}

fn same(one: &Path, other: &Path) -> Result<(), String> {
    shell::output("cmp", [one, other]).map(drop)
}

fn outcome(result: Result<(), String>) -> Outcome {
    match result {
        Ok(()) => Outcome::Passed { tests: 1 },
        Err(why) => Outcome::Failed(why),
    }
}

/// The message of EACCES.
const DENIED: &str = "Permission denied";
/// The text that a capture of unencrypted data must contain.
const SECRET: &[u8] = b"the quick brown fox and the lazy dog 0123456789";
