//! The good clients during an attack: the example `load` of `crates/client`, and the latencies of its operations.

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
    /// The latency of each operation, in microseconds.
    pub took: Vec<u64>,
    /// The errors of failed operations.
    pub failures: Vec<String>,
}

/// The operations by client: `tcp`, `rdma`, `shm`, and `new` for clients that reconnect for each operation.
type Seen = BTreeMap<String, Operations>;

/// The clients that must continue while a server is attacked.
pub const CLIENTS: [&str; 4] = ["tcp", "rdma", "shm", "new"];

impl Good {
    /// Starts the clients.
    ///
    /// Real clients have their own machines. These share processors with the server, so they run with real-time priority
    /// if the system permits it. They mostly sleep, and their latency must not include the wait for a time slice.
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
                let mut seen = into.lock().expect("lock must not be poisoned");
                let operations = seen.entry(who.to_owned()).or_default();
                match how.parse() {
                    Ok(took) => operations.took.push(took),
                    Err(_) => operations.failures.push(format!("{operation}: {how}")),
                }
            }
        });
        Ok(Self { child, seen })
    }

    /// Returns the operations since the last call.
    pub fn take(&self) -> Phase {
        Phase(std::mem::take(&mut *self.seen.lock().expect("lock must not be poisoned")))
    }

    /// Waits until each client has completed `operations` more operations. Returns the clients that did not within
    /// `limit`.
    pub fn wait(&self, operations: usize, limit: Duration) -> Vec<&'static str> {
        let done =
            |who: &str| self.seen.lock().expect("lock must not be poisoned").get(who).map_or(0, |seen| seen.took.len());
        let before = CLIENTS.map(done);
        let deadline = Instant::now() + limit;
        loop {
            let behind = CLIENTS.iter().zip(before).filter(|(who, before)| {
                // A new connection takes as long as several operations.
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

/// The operations of the clients in one phase.
#[derive(Clone, Debug, Default)]
pub struct Phase(Seen);

impl Phase {
    /// Returns the operations of one client.
    pub fn of(&self, who: &str) -> Operations {
        self.0.get(who).cloned().unwrap_or_default()
    }
}

impl Operations {
    /// Returns the 99th percentile of the latency, in microseconds.
    pub fn p99(&self) -> u64 {
        let mut took = self.took.clone();
        took.sort_unstable();
        // With few operations, this is the second longest: other load on the machine may delay a single one.
        let beyond = took.len().div_ceil(100).max(1);
        took.len().checked_sub(1 + beyond).or(took.len().checked_sub(1)).map_or(0, |at| took[at])
    }
}

#[cfg(test)]
mod tests {
    use super::Operations;

    #[test]
    fn p99_ignores_one_operation_of_a_hundred() {
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
