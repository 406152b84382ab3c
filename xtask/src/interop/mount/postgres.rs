//! PostgreSQL with its data on the mount. A client commits one row after the other, and says each that is committed.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use super::Place;
use super::outage::PATIENCE;
use crate::interop::lab::text;
use crate::shell::{self, Daemon};

/// A server of PostgreSQL and its client.
pub struct Postgres {
    /// The directory with PostgreSQL's programs.
    bin: PathBuf,
    /// Its data on the mount, and the same directory at our server.
    data: PathBuf,
    served: PathBuf,
    /// The directory of its socket, whose path must be short. Nobody listens on a port.
    socket: PathBuf,
    logs: PathBuf,
    /// `None` while it does not run.
    server: Option<Daemon>,
    client: Option<Daemon>,
    /// The number of starts.
    starts: u32,
}

impl Postgres {
    /// Starts the server with a new database, and a client that writes until [`stop`](Self::stop). The database is created at our
    /// server, which takes less time.
    pub fn start(place: &Place) -> Result<Self, String> {
        let (data, served) = (place.at.join("data"), place.served.join("data"));
        let socket = place.mount.at.with_extension("socket");
        for directory in [&served, &socket] {
            std::fs::create_dir(directory).map_err(|error| format!("{}: {error}", directory.display()))?;
            shell::run(Command::new("chown").arg(USER).arg(directory))?;
        }
        let logs = place.logs.clone();
        let mut postgres = Self { bin: programs()?, data, served, socket, logs, server: None, client: None, starts: 0 };
        let made = postgres.as_user("initdb", &["--no-sync", "--data-checksums", "--auth=trust", "-D"]);
        shell::capture({ made }.arg(&postgres.served))?;
        postgres.launch()?;
        postgres.write()?;
        Ok(postgres)
    }

    /// Starts the server again, and the client with an empty table.
    pub fn continue_writing(&mut self) -> Result<(), String> {
        self.launch()?;
        self.write()
    }

    fn write(&mut self) -> Result<(), String> {
        self.query("DROP TABLE IF EXISTS t; CREATE TABLE t (number bigint PRIMARY KEY)")?;
        let mut client = Command::new("bash");
        client.args(["-c", CLIENT, "client"]).arg(logs_file(&self.logs, "stop")).args(self.psql());
        self.client = Some(Daemon::start(&mut client, &logs_file(&self.logs, "committed"))?);
        Ok(())
    }

    /// Returns the number of rows that the client knows to be committed.
    pub fn committed(&self) -> usize {
        let said = std::fs::read_to_string(logs_file(&self.logs, "committed")).unwrap_or_default();
        said.lines().filter(|line| !line.is_empty() && line.bytes().all(|byte| byte.is_ascii_digit())).count()
    }

    /// Returns `true` if the server and the client run.
    pub fn is_running(&mut self) -> bool {
        [&mut self.server, &mut self.client].into_iter().all(|daemon| daemon.as_mut().is_some_and(Daemon::is_running))
    }

    /// Ends the client, which must succeed, and checks the database.
    pub fn stop(&mut self) -> Result<(), String> {
        std::fs::write(logs_file(&self.logs, "stop"), "").map_err(|error| error.to_string())?;
        let client = self.client.take();
        client.ok_or("there is no client")?.wait(PATIENCE).map_err(|why| format!("the client of PostgreSQL {why}"))?;
        let found = self.check()?;
        if found == self.committed() {
            Ok(())
        } else {
            Err(format!("the client has committed {} rows, and {found} are there", self.committed()))
        }
    }

    /// Kills all processes of the server, which must end although they wait for the mount.
    pub fn kill(&mut self) -> Result<(), String> {
        let mut server = self.server.take().ok_or("PostgreSQL does not run")?;
        let children = shell::output("pgrep", ["-P", &server.id().to_string()])?;
        let children: Vec<&str> = children.split_whitespace().collect();
        shell::run(Command::new("kill").arg("-KILL").arg(server.id().to_string()).args(&children))?;
        server.kill()?;
        let left = || children.iter().filter(|id| Path::new("/proc").join(id).join("exe").exists()).count();
        let ended = shell::wait_until(KILLED_MAX, || left() == 0);
        // The client loses its connection.
        if let Some(mut client) = self.client.take() {
            shell::wait_until(PATIENCE, || !client.is_running());
        }
        if ended {
            Ok(())
        } else {
            Err(format!("{} processes of PostgreSQL did not end within 10 s of SIGKILL", left()))
        }
    }

    /// Starts the server again, which recovers, and checks the database. All rows that the client knows must be there.
    pub fn recover(&mut self) -> Result<(), String> {
        self.launch()?;
        let (found, committed) = (self.check()?, self.committed());
        // A row can be committed without an answer.
        if found == committed || found == committed + 1 {
            Ok(())
        } else {
            Err(format!("the client has committed {committed} rows, and {found} are there"))
        }
    }

    /// Returns the number of rows, after the server has stopped and all its blocks at our server have the right checksum.
    fn check(&mut self) -> Result<usize, String> {
        let found = self.query("SELECT count(*) FROM t WHERE number <= (SELECT count(*) FROM t)")?;
        let mut server = self.server.take().ok_or("PostgreSQL does not run")?;
        server.signal("INT")?;
        server.wait(PATIENCE).map_err(|why| format!("PostgreSQL {why}"))?;
        shell::capture(self.as_user("pg_checksums", &["--check", "-D"]).arg(&self.served))?;
        for start in 1..=self.starts {
            let log = std::fs::read_to_string(self.log(start)).map_err(|error| error.to_string())?;
            // A connection of psql, which ends while the server does, is not about files.
            let mut lines = log.lines().filter(|line| !line.contains("could not send data to client"));
            let bad = lines.find(|line| ["ERROR:", "PANIC:", "could not"].iter().any(|word| line.contains(word)));
            if let Some(bad) = bad {
                return Err(format!("PostgreSQL says: {bad}"));
            }
        }
        found.trim().parse().map_err(|_| format!("PostgreSQL has counted {found:?}"))
    }

    fn launch(&mut self) -> Result<(), String> {
        self.starts += 1;
        let socket = format!("unix_socket_directories={}", self.socket.display());
        let settings = ["-c", "listen_addresses=", "-c", &socket, "-c", "shared_buffers=16MB", "-D"];
        self.server = Some(Daemon::start(self.as_user("postgres", &settings).arg(&self.data), &self.log(self.starts))?);
        let up = shell::wait_until(PATIENCE, || self.query("SELECT 1").is_ok());
        if up { Ok(()) } else { Err(format!("PostgreSQL does not come up (see {})", self.log(self.starts).display())) }
    }

    fn query(&self, query: &str) -> Result<String, String> {
        let psql = self.psql();
        shell::capture(Command::new(&psql[0]).args(&psql[1..]).args(["-c", query]))
    }

    /// Returns the command line of a client.
    fn psql(&self) -> Vec<String> {
        let words = ["-h", &text(&self.socket), "-U", USER, "-v", "ON_ERROR_STOP=1", "-Xqtd", "postgres"];
        let program = text(&self.bin.join("psql"));
        std::iter::once(program).chain(words.map(ToOwned::to_owned)).collect()
    }

    /// Returns the command that runs one of PostgreSQL's programs as its user, in the process of the command.
    fn as_user(&self, program: &str, arguments: &[&str]) -> Command {
        let mut command = Command::new("setpriv");
        command.args(["--reuid", USER, "--regid", USER, "--clear-groups"]).arg(self.bin.join(program));
        command.args(arguments).current_dir("/");
        command
    }

    fn log(&self, start: u32) -> PathBuf {
        logs_file(&self.logs, &format!("postgres-{start}.log"))
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        drop((self.client.take(), self.server.take()));
        let _ = std::fs::remove_dir_all(&self.socket);
    }
}

fn logs_file(logs: &Path, name: &str) -> PathBuf {
    logs.join(format!("postgres.{name}"))
}

/// Returns the directory with PostgreSQL's programs, which Debian does not have on PATH.
fn programs() -> Result<PathBuf, String> {
    let versions = std::fs::read_dir("/usr/lib/postgresql").map_err(|error| format!("PostgreSQL: {error}"))?;
    let found = versions.flatten().map(|version| version.path().join("bin")).find(|bin| bin.join("initdb").exists());
    found.ok_or_else(|| "PostgreSQL has no initdb".into())
}

/// Inserts a row in each transaction until the file exists, and says each that is committed.
const CLIENT: &str = r#"
set -euo pipefail
stop=$1
shift
number=0
until test -e "$stop"; do
    number=$((number + 1))
    echo "INSERT INTO t VALUES ($number) RETURNING number;"
done | "$@" -A
"#;

/// PostgreSQL does not run as root.
const USER: &str = "postgres";
/// The time in which killed processes must end.
const KILLED_MAX: Duration = Duration::from_secs(10);
