//! The phases of an attack, and the verdict.

use std::{
    fmt::Write,
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread,
    time::Duration,
};

use crate::{
    Options,
    attack::{Attack, Stop},
    good::{CLIENTS, Good, Operations},
    processors::Processors,
    server::{CONNECTIONS, Server, Usage},
};

/// The bounds of the server's resources and of the good clients' latency, for every attack.
#[derive(Clone, Debug)]
pub struct Bounds {
    /// Maximum resident memory, in MiB.
    pub memory_mib: u64,
    /// Maximum time of a single operation.
    pub stall: Duration,
    /// A latency that is always accepted, so that scheduling on a busy machine does not decide.
    pub latency_floor: Duration,
    /// The number of runs of an attack before too long latencies alone make it fail.
    pub runs: usize,
}

impl Default for Bounds {
    fn default() -> Self {
        Self { memory_mib: 512, stall: Duration::from_secs(3), latency_floor: Duration::from_millis(100), runs: 3 }
    }
}

/// The result of one attack.
pub struct Verdict {
    name: &'static str,
    /// The attack's report of what it has done.
    did: String,
    /// For each client, the latency before and during the attack, in microseconds, and the number of operations during
    /// it.
    clients: Vec<(&'static str, u64, u64, usize)>,
    most: Usage,
    after: Usage,
    /// Latencies of the clients that are too long.
    slow: Vec<String>,
    /// The other faults that were found.
    faults: Vec<String>,
}

/// Attacks a server that has clients, and returns the verdict. Other load on this machine can also delay the clients. So the
/// attack is repeated with a new server if too long latencies are the only fault: harm by the attack is there in each run.
pub fn run(attack: &Attack, options: &Options, processors: &Processors) -> Verdict {
    let mut verdict = run_once(attack, options, processors);
    for run in 1..options.bounds.runs {
        if !verdict.faults.is_empty() || verdict.slow.is_empty() {
            break;
        }
        eprintln!("== {}: repeated after run {run}: {}", attack.name, verdict.slow.join("; "));
        verdict = run_once(attack, options, processors);
    }
    verdict
}

fn run_once(attack: &Attack, options: &Options, processors: &Processors) -> Verdict {
    let mut verdict = Verdict {
        name: attack.name,
        did: String::new(),
        clients: Vec::new(),
        most: Usage::default(),
        after: Usage::default(),
        slow: Vec::new(),
        faults: Vec::new(),
    };
    if let Err(error) = phases(attack, options, processors, &mut verdict) {
        verdict.faults.push(error.to_string());
    }
    verdict
}

fn phases(attack: &Attack, options: &Options, processors: &Processors, verdict: &mut Verdict) -> io::Result<()> {
    let mut server = processors.as_server(|| Server::start(options, attack))?;
    let good = processors.as_server(|| Good::start(&server.target))?;
    absent(&good.wait(20, PATIENCE), "before the attack")?;
    good.take();
    thread::sleep(IDLE);
    let idle = good.take();

    let stop = Arc::new(Stop::after(options.duration));
    let finished = AtomicBool::new(false);
    let did = thread::scope(|scope| {
        let watcher = scope.spawn(|| watch(&server, &finished));
        let did = processors.as_attacker(|| (attack.run)(&server.target, &stop));
        finished.store(true, Relaxed);
        verdict.most = watcher.join().expect("watcher must not panic");
        did
    });
    // Operations that began during the attack count as attacked, however late they end.
    let behind = good.wait(20, PATIENCE);
    let attacked = good.take();
    match did {
        Ok(did) => verdict.did = did,
        Err(error) => verdict.faults.push(error.to_string()),
    }
    thread::sleep(SETTLE);
    verdict.after = server.usage();
    verdict.most = verdict.most.max(verdict.after);
    if !server.is_running() {
        verdict.faults.push("the server has ended".into());
    } else if let Err(error) = absent(&behind, "after the attack") {
        verdict.faults.push(error.to_string());
    }
    if let (Some(panic), ..) = server.log() {
        verdict.faults.push(panic);
    }
    for who in CLIENTS {
        verdict.compare(who, &idle.of(who), &attacked.of(who), &options.bounds);
    }
    let memory_mib =
        if attack.unadmitted { options.bounds.memory_mib.min(UNADMITTED_MIB) } else { options.bounds.memory_mib };
    verdict.measure(memory_mib, server.log().1);
    Ok(())
}

fn absent(behind: &[&str], when: &str) -> io::Result<()> {
    if behind.is_empty() {
        return Ok(());
    }
    Err(io::Error::other(format!("good clients do not continue {when}: {}", behind.join(", "))))
}

/// Returns the peak usage of the server until the attack ends.
fn watch(server: &Server, finished: &AtomicBool) -> Usage {
    let mut most = Usage::default();
    while !finished.load(Relaxed) {
        most = most.max(server.usage());
        thread::sleep(Duration::from_millis(50));
    }
    most
}

impl Usage {
    fn max(self, other: Self) -> Self {
        Self {
            resident: self.resident.max(other.resident),
            peak: self.peak.max(other.peak),
            threads: self.threads.max(other.threads),
            descriptors: self.descriptors.max(other.descriptors),
            maps: self.maps.max(other.maps),
        }
    }
}

impl Verdict {
    /// Returns `true` if a fault was found.
    pub fn failed(&self) -> bool {
        self.all_faults().next().is_some()
    }

    fn all_faults(&self) -> impl Iterator<Item = &str> {
        self.faults.iter().chain(&self.slow).map(String::as_str)
    }

    /// Returns `ok NAME` or `fail NAME: REASON`.
    pub fn line(&self) -> String {
        if self.failed() {
            format!("fail {}: {}", self.name, self.all_faults().collect::<Vec<_>>().join("; "))
        } else {
            format!("ok {}", self.name)
        }
    }

    fn compare(&mut self, who: &'static str, idle: &Operations, attacked: &Operations, bounds: &Bounds) {
        let (before, meanwhile) = (idle.p99(), attacked.p99());
        let most = (10 * before).max(bounds.latency_floor.as_micros() as u64);
        // A client that connects needs several round trips, and creates a file.
        let most = if who == "new" { 4 * most } else { most };
        if meanwhile > most {
            self.slow.push(format!("{who}: p99 of {} ms, idle {} ms", ms(meanwhile), ms(before)));
        }
        let longest = attacked.took.iter().max().copied().unwrap_or(0);
        if longest > bounds.stall.as_micros() as u64 {
            self.slow.push(format!("{who}: an operation took {} ms", ms(longest)));
        }
        if let Some(first) = attacked.failures.first() {
            self.faults.push(format!("{who}: {} failed, the first: {first}", attacked.failures.len()));
        }
        self.clients.push((who, before, meanwhile, attacked.took.len()));
    }

    fn measure(&mut self, memory_mib: u64, log_bytes: u64) {
        let Usage { peak, threads, descriptors, maps, .. } = self.most;
        let figures = [
            ("MiB of memory", peak >> 10, memory_mib),
            ("threads", threads, THREADS_MAX),
            ("descriptors", descriptors, DESCRIPTORS_MAX),
            ("mappings", maps, MAPS_MAX),
            ("KiB of log", log_bytes >> 10, LOG_KIB_MAX),
        ];
        for (what, figure, most) in figures {
            if figure > most {
                self.faults.push(format!("{figure} {what}, the bound is {most}"));
            }
        }
    }
}

/// Returns a table of all verdicts.
pub fn table(verdicts: &[Verdict]) -> String {
    let mut text = format!("{:<18}", "attack");
    for who in CLIENTS {
        let _ = write!(text, "{:>19}", format!("{who} p99 ms (ops)"));
    }
    let _ = writeln!(text, "{:>10}{:>8}{:>8}{:>7}{:>7}  verdict", "peak MiB", "after", "threads", "fds", "maps");
    for verdict in verdicts {
        let _ = write!(text, "{:<18}", verdict.name);
        for who in CLIENTS {
            let cell = verdict.clients.iter().find(|client| client.0 == who);
            let cell = cell.map_or_else(String::new, |&(_, idle, meanwhile, operations)| {
                format!("{}→{} ({operations})", ms(idle), ms(meanwhile))
            });
            let _ = write!(text, "{cell:>19}");
        }
        let Usage { peak, threads, descriptors, maps, .. } = verdict.most;
        let figures =
            format!("{:>10}{:>8}{threads:>8}{descriptors:>7}{maps:>7}", peak >> 10, verdict.after.resident >> 10);
        let _ = writeln!(text, "{figures}  {}  {}", if verdict.failed() { "FAILED" } else { "ok" }, verdict.did);
        for fault in verdict.all_faults() {
            let _ = writeln!(text, "{:18}- {fault}", "");
        }
    }
    text
}

fn ms(micros: u64) -> String {
    let tenths = micros / 100;
    format!("{}.{}", tenths / 10, tenths % 10)
}

/// Maximum time that the good clients may take to make progress.
const PATIENCE: Duration = Duration::from_secs(30);
const IDLE: Duration = Duration::from_secs(1);
/// The pause between the end of an attack and the measurement of the resources that remain in use.
const SETTLE: Duration = Duration::from_millis(500);
/// The maximum resident memory if all attackers are hosts that no export admits.
const UNADMITTED_MIB: u64 = 128;
const THREADS_MAX: u64 = 600;
/// The maximum number of connections and of files that are open in addition.
const DESCRIPTORS_MAX: u64 = CONNECTIONS as u64 + 1500;
/// A quarter of Linux's limit for a process (`vm.max_map_count`).
const MAPS_MAX: u64 = 16 << 10;
const LOG_KIB_MAX: u64 = 4 << 10;
