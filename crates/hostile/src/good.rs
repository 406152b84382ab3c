//! The good clients beside an attack: the example `load` of `crates/client`, and what its operations took.

use std::{
    collections::BTreeMap,
    io::{self, BufRead, BufReader},
    path::Path,
    process::{Child, Command, Stdio},
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use crate::server::Target;

/// A running `load`.
pub struct Good {
    child: Child,
    seen: Arc<Mutex<Seen>>,
}

/// The operations of one client in one phase.
#[derive(Clone, Debug, Default)]
pub struct Operations {
    /// What each took, in microseconds.
    pub took: Vec<u64>,
    /// What the failed ones said.
    pub failures: Vec<String>,
}

/// By client: `tcp`, `rdma`, `shm`, and `new` for those that connect anew.
type Seen = BTreeMap<String, Operations>;

/// The clients that must go on while a server is attacked.
pub const CLIENTS: [&str; 4] = ["tcp", "rdma", "shm", "new"];

impl Good {
    /// Starts the clients.
    ///
    /// Clients in the field have machines of their own. These share processors with the attack, so they run with real-time priority
    /// where the system permits it: they mostly sleep, and their latency must not contain a wait for a processor that an attacker uses.
    ///
    /// # Errors
    /// The program cannot be started.
    pub fn start(target: &Target) -> io::Result<Self> {
        let mut child = with_priority(&target.load)
            .arg(&target.directory)
            .args(target.urls())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let seen = Arc::<Mutex<Seen>>::default();
        let (lines, into) = (BufReader::new(child.stdout.take().expect("piped")).lines(), seen.clone());
        std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                let mut words = line.splitn(3, ' ');
                let (Some(who), Some(operation), Some(how)) = (words.next(), words.next(), words.next()) else {
                    continue;
                };
                let mut seen = into.lock().expect("no holder panics");
                let operations = seen.entry(who.to_owned()).or_default();
                match how.parse() {
                    Ok(took) => operations.took.push(took),
                    Err(_) => operations.failures.push(format!("{operation}: {how}")),
                }
            }
        });
        Ok(Self { child, seen })
    }

    /// Takes what has been done since it was last taken.
    pub fn take(&self) -> Phase {
        Phase(std::mem::take(&mut *self.seen.lock().expect("no holder panics")))
    }

    /// Waits until each client has completed so many operations more; names those that did not within `limit`.
    pub fn wait(&self, operations: usize, limit: Duration) -> Vec<&'static str> {
        let done = |who: &str| self.seen.lock().expect("no holder panics").get(who).map_or(0, |seen| seen.took.len());
        let before = CLIENTS.map(done);
        let deadline = Instant::now() + limit;
        loop {
            let behind = CLIENTS.iter().zip(before).filter(|(who, before)| {
                // A new client takes as long as many operations.
                let wanted = if **who == "new" { operations.div_ceil(10) } else { operations };
                done(who) < before + wanted
            });
            let behind: Vec<_> = behind.map(|(who, _)| *who).collect();
            if behind.is_empty() || Instant::now() > deadline {
                return behind;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// A command that runs `program` with real-time priority, or without it if the system denies that.
fn with_priority(program: &Path) -> Command {
    const CHRT: [&str; 3] = ["chrt", "--fifo", "1"];
    let mut probe = Command::new(CHRT[0]);
    let permitted =
        probe.args(&CHRT[1..]).arg("true").stderr(Stdio::null()).status().is_ok_and(|status| status.success());
    if !permitted {
        eprintln!("no permission for real-time priority: latencies contain waits for a processor");
        return Command::new(program);
    }
    let mut command = Command::new(CHRT[0]);
    command.args(&CHRT[1..]).arg(program);
    command
}

impl Drop for Good {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What the clients did in one phase.
#[derive(Clone, Debug, Default)]
pub struct Phase(Seen);

impl Phase {
    /// The operations of one client.
    pub fn of(&self, who: &str) -> Operations {
        self.0.get(who).cloned().unwrap_or_default()
    }
}

impl Operations {
    /// The latency that 99 of 100 operations stay below, in microseconds.
    pub fn p99(&self) -> u64 {
        let mut took = self.took.clone();
        took.sort_unstable();
        // With few operations it is the longest but one: a single one may meet whatever else the machine does.
        let beyond = took.len().div_ceil(100).max(1);
        took.len().checked_sub(1 + beyond).or(took.len().checked_sub(1)).map_or(0, |at| took[at])
    }
}

#[cfg(test)]
mod tests {
    use super::Operations;

    #[test]
    fn one_operation_of_a_hundred_may_be_late() {
        let operations = |took: Vec<u64>| Operations { took, failures: Vec::new() };
        let mut took = vec![5; 99];
        took.push(1000);
        assert_eq!(operations(took.clone()).p99(), 5);
        took.push(1000);
        took.push(1000);
        assert_eq!(operations(took).p99(), 1000);
        assert_eq!(operations(vec![3]).p99(), 3);
        assert_eq!(operations(Vec::new()).p99(), 0);
    }
}
