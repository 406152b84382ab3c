//! The processors of the two sides of an attack.
//!
//! Real attackers have their own machines. Here they share one with the server, so each side gets one half of the
//! processors, and the good clients run on that of the server: in the attackers' half, the kernel's work for a flood of
//! packets would delay them by milliseconds. Their latency then depends on the server, and not on the attackers' load.

use std::io;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// The processors of each side. If there is only one processor, both sides use it.
pub struct Processors {
    server: CpuSet,
    attackers: CpuSet,
}

impl Processors {
    /// Divides the processors of this process.
    ///
    /// # Errors
    /// The processors cannot be read.
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

    /// Runs `go` on the processors of the attackers.
    ///
    /// # Errors
    /// The errors of [`as_server`](Self::as_server).
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
