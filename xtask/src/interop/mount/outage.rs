//! Outages of the server under programs on a mount with the default options.

use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use super::Place;
use super::postgres::Postgres;
use crate::interop::lab::text;
use crate::interop::rotation::Rotation;
use crate::shell::{self, Daemon};

/// The server is killed under tar, PostgreSQL and a program that writes and syncs lines. While it is away, signals end
/// programs. All others must succeed afterwards, and all data must be at the server.
pub fn restart(place: &mut Place) -> Result<(), String> {
    let tree = place.at.join("tree");
    std::fs::create_dir(&tree).map_err(|error| error.to_string())?;
    prepare_signals(place)?;
    let mut postgres = Postgres::start(place)?;
    let go_on = place.logs.join("continue");
    let mut tar = Command::new("bash");
    tar.args(["-c", UNPACK, "unpack"]).arg(&place.bench.fixture.archive).arg(&tree).arg(&go_on);
    let mut writer = Command::new("bash");
    writer.args(["-c", WRITER, "writer"]).arg(place.at.join("lines")).arg(place.logs.join("stop"));
    let mut tar = Daemon::start(&mut tar, &place.logs.join("tar.log"))?;
    let mut writer = Daemon::start(&mut writer, &place.logs.join("writer.log"))?;
    let served = place.served.join("lines");
    let lines = || std::fs::read_to_string(&served).unwrap_or_default().lines().count();
    let unpacked = place.served.join("tree");
    let has_begun = || unpacked.read_dir().is_ok_and(|mut entries| entries.next().is_some());
    if !shell::wait_until(PATIENCE, || lines() > 20 && postgres.committed() > 20 && has_begun()) {
        return Err("tar, PostgreSQL or the writer has not begun".into());
    }
    place.server.kill()?;
    std::fs::write(&go_on, "").map_err(|error| error.to_string())?;
    let (since, at_kill) = (Instant::now(), (lines(), postgres.committed()));
    let mut programs = Vec::new();
    let signals = while_away(place, &mut programs);
    thread::sleep(outage(place).saturating_sub(since.elapsed()));
    let late = (lines(), postgres.committed());
    let all_wait = tar.is_running() && writer.is_running() && postgres.is_running();
    place.server.start_again()?;
    // A program that could not be ended waits for the server, so it is dropped afterwards.
    drop(programs);
    signals?;
    if !all_wait || late.0 > at_kill.0 + 1 || late.1 > at_kill.1 + 1 {
        return Err("tar, PostgreSQL or the writer has not waited for the server".into());
    }
    if !shell::wait_until(PATIENCE, || lines() > late.0 + 20 && postgres.committed() > late.1 + 20) {
        return Err("the writer or PostgreSQL does not continue".into());
    }
    std::fs::write(place.logs.join("stop"), "").map_err(|error| error.to_string())?;
    writer.wait(PATIENCE).map_err(|why| format!("the writer {why}"))?;
    tar.wait(3 * PATIENCE).map_err(|why| format!("tar {why}"))?;
    postgres.stop()?;
    place.bench.fixture.verify(&place.served.join("tree"))?;
    let written = std::fs::read_to_string(&served).map_err(|error| error.to_string())?;
    let said = std::fs::read_to_string(place.logs.join("writer.log")).map_err(|error| error.to_string())?;
    if written == said { Ok(()) } else { Err("the lines at the server are not those that were written".into()) }
}

/// PostgreSQL is killed, then our server, and PostgreSQL while our server is away. It must recover, and have all rows that it had
/// committed.
pub fn postgres(place: &mut Place) -> Result<(), String> {
    let mut postgres = Postgres::start(place)?;
    for servers_too in [false, true] {
        let before = postgres.committed();
        if !shell::wait_until(PATIENCE, || postgres.committed() > before + 50) {
            return Err("PostgreSQL does not commit".into());
        }
        if servers_too {
            place.server.kill()?;
        }
        let killed = postgres.kill();
        if servers_too {
            place.server.start_again()?;
        }
        killed?;
        postgres.recover()?;
        if !servers_too {
            postgres.continue_writing()?;
        }
    }
    Ok(())
}

/// Unpacks an archive. Its end comes when the third argument exists, so that tar has not ended before.
const UNPACK: &str = r#"
set -euo pipefail
exec 3> >(tar -xf - -C "$2"); tar=$!
head -c 4M "$1" >&3
until test -e "$3"; do sleep 0.1; done
tail -c +$((4 * 1024 * 1024 + 1)) "$1" >&3
exec 3>&-
wait $tar
"#;

/// Appends and syncs a line until the second argument exists. Says each line that has been synced.
const WRITER: &str = r#"
set -euo pipefail
number=0
until test -e "$2"; do
    number=$((number + 1))
    echo "$number" | dd of="$1" oflag=append conv=notrunc,fsync status=none
    echo "$number"
done
"#;

/// While the server does not answer, SIGINT and SIGKILL end programs that read, write, create and list, and the status
/// names the server. Afterwards the mount works.
pub fn signals(place: &mut Place) -> Result<(), String> {
    prepare_signals(place)?;
    place.server.signal("STOP")?;
    let mut programs = Vec::new();
    let result = while_away(place, &mut programs);
    // A program that could not be ended waits for the server, so it is dropped afterwards.
    place.server.signal("CONT")?;
    drop(programs);
    result?;
    let after = "cmp read/file \"$1\" && echo after >create/after && rm -r read write create list";
    place.script(after, &[&text(&place.served.join("file"))]).map(drop)
}

/// Makes the directories of the programs that signals end.
fn prepare_signals(place: &Place) -> Result<(), String> {
    std::fs::write(place.served.join("file"), vec![7; 8 << 20]).map_err(|error| error.to_string())?;
    // The client has no data of the file to read. It can take a second until it sees a name that was made at the server.
    let made = "mkdir read write create list && cp /bin/true write/file && until ln file read/file; do sleep 0.1; done";
    place.script(made, &[]).map(drop)
}

/// Starts programs that wait for the server, and ends them by signals.
fn while_away(place: &Place, started: &mut Vec<Daemon>) -> Result<(), String> {
    let at = |path: &str| text(&place.at.join(path));
    // In one directory, the kernel makes all others wait for the program that creates a file.
    let programs: [&[&str]; 4] = [
        &["cat", &at("read/file")],
        &["cp", "/bin/cat", &at("write/file")],
        &["touch", &at("create/file")],
        &["ls", "-l", &at("list")],
    ];
    for signal in ["INT", "KILL"] {
        for (number, program) in programs.into_iter().enumerate() {
            // A job of a script may have been started with SIGINT ignored.
            let mut command = Command::new("env");
            command.arg("--default-signal=INT").args(program);
            started.push(Daemon::start(&mut command, &place.logs.join(format!("{signal}-{number}.log")))?);
        }
        names_the_server(place, started.len())?;
        for (program, words) in started.iter_mut().zip(programs) {
            if !program.is_running() {
                return Err(format!("{words:?} has not waited for the server"));
            }
            program.signal(signal)?;
            shell::wait_until(PATIENCE, || !program.is_running());
            if program.is_running() {
                let state = std::fs::read_to_string(format!("/proc/{}/stat", program.id())).unwrap_or_default();
                return Err(format!("SIG{signal} does not end {words:?}: {state}"));
            }
        }
        started.clear();
    }
    Ok(())
}

/// Waits until the status of the mount has so many operations that wait for this server.
fn names_the_server(place: &Place, operations: usize) -> Result<(), String> {
    let status = format!("--status={}", place.mount.at.display());
    let mut said = String::new();
    let waits = shell::wait_until(PATIENCE, || {
        said =
            shell::capture(Command::new(&place.bench.slipway).args(["mount", &status, "--json"])).unwrap_or_default();
        let found: Option<serde_json::Value> = serde_json::from_str(&said).ok();
        let waits = found.as_ref().map(|status| &status["waits"][0]);
        waits.is_some_and(|waits| {
            waits["server"].as_str().is_some_and(|server| server.starts_with("127.0.0.1:"))
                && waits["operations"].as_u64() >= Some(operations as u64)
        })
    });
    if waits { Ok(()) } else { Err(format!("the status does not name {operations} operations that wait: {said}")) }
}

/// Returns the length of the outage, which is longer than every timeout of the client. A commit has a mount with shorter
/// timeouts ([`TIMEO`]).
fn outage(place: &Place) -> Duration {
    Duration::from_secs(if place.bench.rotation == Rotation::All { 300 } else { 20 })
}

/// The option of the mount whose server is away, except with `--all`. The default is 60 seconds.
pub const TIMEO: &str = "&timeo=5s";
/// Longer than anything takes that does not hang.
pub const PATIENCE: Duration = Duration::from_secs(120);
