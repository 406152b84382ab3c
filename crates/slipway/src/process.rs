//! CPU time of processes, and the host's default congestion control.

use std::{fs, time::Duration};

use rustix::time::{ClockId, clock_gettime};

/// CPU time that this process has used, all threads together.
pub fn cpu_time() -> Duration {
    clock_gettime(ClockId::ProcessCPUTime).try_into().unwrap_or_default()
}

/// CPU time that another process has used, all its threads together, also ended ones; `None` if there is no such process. The
/// kernel counts it in clock ticks, of 10 ms usually.
pub fn cpu_time_of(pid: u32) -> Option<Duration> {
    // proc(5): the name, in parentheses, may contain anything; utime and stime are the 12th and 13th fields after it.
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace().skip(11);
    let ticks = fields.next()?.parse::<u64>().ok()? + fields.next()?.parse::<u64>().ok()?;
    Some(Duration::from_secs(ticks) / rustix::param::clock_ticks_per_second() as u32)
}

/// The congestion control of sockets that select none; empty if it cannot be found out.
pub fn congestion_control() -> String {
    fs::read_to_string("/proc/sys/net/ipv4/tcp_congestion_control").unwrap_or_default().trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_costs_time() {
        let before = cpu_time();
        let mut x = 1u64;
        while cpu_time() - before < Duration::from_millis(30) {
            x = std::hint::black_box(x.wrapping_mul(3));
        }
        assert!(cpu_time_of(std::process::id()).unwrap() >= Duration::from_millis(10));
        assert_eq!(cpu_time_of(u32::MAX), None);
        assert_eq!(cpu_time_of(1 << 22), None, "Linux has no process of this number");
    }
}
