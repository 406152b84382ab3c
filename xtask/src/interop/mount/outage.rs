//! Outages of the server under programs on a mount with the default options.

use std::process::Command;
use std::thread;
use std::time::Duration;

use super::Place;
use crate::interop::lab::text;
use crate::shell::{self, Daemon};

/// The server is killed under tar and a program that writes and syncs lines, and is away for some seconds. Both must
/// succeed, and all data must be at the server.
pub fn restart(place: &mut Place) -> Result<(), String> {
    let tree = place.at.join("tree");
    std::fs::create_dir(&tree).map_err(|error| error.to_string())?;
    let mut tar = Command::new("tar");
    tar.arg("-xf").arg(&place.bench.fixture.archive).arg("-C").arg(&tree);
    let mut writer = Command::new("bash");
    writer.args(["-c", WRITER, "writer"]).arg(place.at.join("lines")).arg(place.logs.join("stop"));
    let mut tar = Daemon::start(&mut tar, &place.logs.join("tar.log"))?;
    let mut writer = Daemon::start(&mut writer, &place.logs.join("writer.log"))?;
    let lines = || std::fs::read_to_string(place.served.join("lines")).unwrap_or_default().lines().count();
    if !shell::wait_until(PATIENCE, || lines() > 20) || !tar.is_running() {
        return Err("tar or the writer has not begun, or tar has ended before the outage".into());
    }
    let mut both_wait = true;
    let (mut at_kill, mut late) = (0, 0);
    place.server.outage(|| {
        at_kill = lines();
        thread::sleep(OUTAGE);
        late = lines();
        both_wait = tar.is_running() && writer.is_running();
    })?;
    if !both_wait || late > at_kill + 1 {
        return Err("tar or the writer has not waited for the server".into());
    }
    if !shell::wait_until(PATIENCE, || lines() > late + 20) {
        return Err("the writer does not continue".into());
    }
    std::fs::write(place.logs.join("stop"), "").map_err(|error| error.to_string())?;
    writer.wait(PATIENCE).map_err(|why| format!("the writer {why}"))?;
    tar.wait(PATIENCE).map_err(|why| format!("tar {why}"))?;
    place.bench.fixture.verify(&place.served.join("tree"))?;
    let written = std::fs::read_to_string(place.served.join("lines")).map_err(|error| error.to_string())?;
    let said = std::fs::read_to_string(place.logs.join("writer.log")).map_err(|error| error.to_string())?;
    if written == said { Ok(()) } else { Err("the lines at the server are not those that were written".into()) }
}

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
    std::fs::write(place.served.join("file"), vec![7; 8 << 20]).map_err(|error| error.to_string())?;
    place.script("mkdir read write create list && cp /bin/true write/file", &[])?;
    // The client has no data of this file.
    std::fs::hard_link(place.served.join("file"), place.served.join("read/file")).map_err(|error| error.to_string())?;
    place.server.signal("STOP")?;
    let mut programs = Vec::new();
    let result = while_stopped(place, &mut programs);
    // A program that could not be ended waits for the server, so it is dropped afterwards.
    place.server.signal("CONT")?;
    drop(programs);
    result?;
    let after = "cmp read/file \"$1\" && echo after >create/after && rm -r read write create list";
    place.script(after, &[&text(&place.served.join("file"))]).map(drop)
}

/// Starts programs, and ends them by signals.
fn while_stopped(place: &Place, started: &mut Vec<Daemon>) -> Result<(), String> {
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

/// The length of the outage.
const OUTAGE: Duration = Duration::from_secs(5);
/// Longer than anything takes that does not hang.
const PATIENCE: Duration = Duration::from_secs(120);
