//! What processes cost, and what the host gives them: CPU seconds, congestion control.

use std::{fs, time::Duration};

use rustix::time::{ClockId, clock_gettime};

/// CPU time that this process has used, all threads together.
pub fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec.try_into().unwrap_or(0), time.tv_nsec.try_into().unwrap_or(0))
}

/// CPU time that another process has used, in the kernel's ticks (mostly 10 ms); `None` if it is not there.
pub fn cpu_time_of(pid: u32) -> Option<Duration> {
    ticks(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
        .map(|ticks| Duration::from_secs_f64(ticks as f64 / rustix::param::clock_ticks_per_second() as f64))
}

/// Fields 14 and 15 of proc_pid_stat(5), utime and stime. Field 2 is a name that may hold anything, in parentheses.
fn ticks(stat: &str) -> Option<u64> {
    let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace().skip(11);
    let utime: u64 = fields.next()?.parse().ok()?;
    let stime: u64 = fields.next()?.parse().ok()?;
    Some(utime + stime)
}

/// The congestion control that sockets get which ask for none; empty if it cannot be found out.
pub fn congestion_control() -> String {
    fs::read_to_string("/proc/sys/net/ipv4/tcp_congestion_control").unwrap_or_default().trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_found_behind_any_name() {
        let stat = "12 (a) b (c)) S 1 12 12 0 -1 4194560 100 0 0 0 250 50 7 8 20 0 1 0 100 1000 10";
        assert_eq!(ticks(stat), Some(300));
        assert_eq!(ticks("nonsense"), None);
    }

    #[test]
    fn work_costs_time() {
        let before = cpu_time();
        let mut x = 1u64;
        while cpu_time() - before < Duration::from_millis(30) {
            x = std::hint::black_box(x.wrapping_mul(3));
        }
        assert!(cpu_time_of(std::process::id()).unwrap() >= Duration::from_millis(10));
        assert_eq!(cpu_time_of(u32::MAX), None);
    }
}
