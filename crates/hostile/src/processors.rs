//! Which processors the two sides of an attack use.
//!
//! Attackers in the field have machines of their own. Here they share one with the server, so each side gets a half of the
//! processors: what good clients notice is then what the server does, and not who else runs.

use std::io;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// The processors of each side. With a single processor both have that.
pub struct Processors {
    server: CpuSet,
    attackers: CpuSet,
}

impl Processors {
    /// Divides the processors of this process.
    ///
    /// # Errors
    /// The system does not tell them.
    pub fn divide() -> io::Result<Self> {
        let all = sched_getaffinity(None)?;
        let numbers: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|&cpu| all.is_set(cpu)).collect();
        let set = |numbers: &[usize]| {
            let mut set = CpuSet::new();
            numbers.iter().for_each(|&cpu| set.set(cpu));
            set
        };
        Ok(match numbers.split_at(numbers.len() / 2) {
            ([], _) => Self { server: all, attackers: all },
            (attackers, server) => Self { server: set(server), attackers: set(attackers) },
        })
    }

    /// Runs `go` on the processors of the server; threads and processes that it starts stay there.
    ///
    /// # Errors
    /// The system does not allow it, or `go` fails.
    pub fn as_server<T>(&self, go: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        Self::on(&self.server, go)
    }

    /// Runs `go` on the processors of the attackers, which good clients share with them.
    ///
    /// # Errors
    /// As for [`as_server`](Self::as_server).
    pub fn as_attacker<T>(&self, go: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        Self::on(&self.attackers, go)
    }

    fn on<T>(processors: &CpuSet, go: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        let before = sched_getaffinity(None)?;
        sched_setaffinity(None, processors)?;
        let done = go();
        sched_setaffinity(None, &before)?;
        done
    }
}
