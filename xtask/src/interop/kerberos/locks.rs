//! Locks over NFSv3 (NLM) with each flavour, of two clients with tickets of different users.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use super::{BOB, Cell, FLAVORS, Shared, Suite};
use crate::shell::{self, Daemon};

/// One client has a lock and another one waits for it. The export accepts only the flavour of the mounts, so NLM has it, too.
pub fn conflict_and_are_granted(suite: &Suite) -> Result<(), String> {
    let bob = suite.realm.ticket_of_user("bob", BOB, &[])?;
    for (flavor, transport) in FLAVORS.into_iter().zip(["tcp", "rdma", "shm"]) {
        let cell = Cell { transport, version: "3", flavor };
        locks(suite, &cell, &bob.name()).map_err(|why| format!("{cell:?}: {why}"))?;
    }
    Ok(())
}

fn locks(suite: &Suite, cell: &Cell, bob: &str) -> Result<(), String> {
    let failed = |error: std::io::Error| error.to_string();
    let (export, logs) =
        (suite.directory.join("only").join(cell.flavor), suite.directory.join(format!("locks-{}", cell.flavor)));
    std::fs::create_dir_all(&logs).map_err(failed)?;
    // Whoever locks a file exclusively must be able to write it.
    std::fs::write(export.join("file"), "").map_err(failed)?;
    std::fs::set_permissions(export.join("file"), std::fs::Permissions::from_mode(0o666)).map_err(failed)?;
    let url = suite.url(cell, "").replace("/export/", &format!("/only-{}", cell.flavor));
    let mount = |user: &str, cache: &str| Shared::at(suite, &url, &format!("locks-{}-{user}", cell.flavor), cache, &[]);
    let (first, second) = (mount("alice", &suite.alice)?, mount("bob", bob)?);

    let (held, release, granted) = (logs.join("held"), logs.join("release"), logs.join("granted"));
    let holds = "touch \"$0\" && until test -e \"$1\"; do sleep 0.1; done";
    let mut holder = flock(&first.at, holds, [&held, &release], &logs.join("holder.log"))?;
    if !shell::wait_until(PATIENCE, || held.exists() || !holder.is_running()) || !held.exists() {
        return Err(format!("no lock: {}", read(&logs.join("holder.log"))));
    }
    for at in [&second.at, &first.at] {
        let status =
            Command::new("flock").arg("--nonblock").arg(at.join("file")).arg("true").status().map_err(failed)?;
        if status.code() != Some(1) {
            return Err(format!("{}: another lock has not conflicted: {status}", at.display()));
        }
    }
    // The waiter notes whether the lock had been released when it was granted.
    let notes = "test -e \"$1\" && touch \"$0\"";
    let mut waiter = flock(&second.at, notes, [&granted, &release], &logs.join("waiter.log"))?;
    if !shell::wait_until(PATIENCE, || waits(&waiter) || !waiter.is_running()) || !waiter.is_running() {
        return Err(format!("the second client does not wait: {}", read(&logs.join("waiter.log"))));
    }
    std::fs::write(&release, "").map_err(failed)?;
    holder.wait(PATIENCE).map_err(|why| format!("the holder {why}"))?;
    waiter.wait(PATIENCE).map_err(|why| format!("the waiter {why}: {}", read(&logs.join("waiter.log"))))?;
    if !granted.exists() {
        return Err("the lock was granted while the first client had it".into());
    }
    // Nobody has the lock any more.
    shell::capture(Command::new("flock").arg("--nonblock").arg(first.at.join("file")).arg("true"))?;
    first.end()?;
    second.end()
}

/// Starts a program that locks the file of a mount exclusively, and runs a script with these arguments while it has the lock.
fn flock(at: &Path, script: &str, arguments: [&Path; 2], log: &Path) -> Result<Daemon, String> {
    let mut command = Command::new("flock");
    command.arg("--exclusive").arg(at.join("file")).args(["sh", "-c", script]).args(arguments);
    Daemon::start(&mut command, log)
}

/// Reports whether a process waits in the kernel for the answer of a mount.
fn waits(process: &Daemon) -> bool {
    let at = std::fs::read_to_string(format!("/proc/{}/wchan", process.id()));
    at.is_ok_and(|at| at.contains("request_wait_answer"))
}

fn read(log: &Path) -> String {
    std::fs::read_to_string(log).unwrap_or_default()
}

const PATIENCE: Duration = Duration::from_secs(30);
