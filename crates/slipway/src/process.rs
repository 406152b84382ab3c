//! CPU time of processes, and the host's default congestion control.

use std::{fs, time::Duration};

use rustix::time::{ClockId, clock_gettime};

/// Returns the CPU time that all threads of this process have used.
pub fn cpu_time() -> Duration {
    clock_gettime(ClockId::ProcessCPUTime).try_into().unwrap_or_default()
}

/// Returns the CPU time that all threads of another process have used, including threads that have ended. Returns
/// `None` if there is no such process. The kernel counts it in clock ticks, usually of 10 ms.
pub fn cpu_time_of(pid: u32) -> Option<Duration> {
    // proc(5): the name in parentheses can contain any character; utime and stime are the 12th and 13th fields after
    // it.
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace().skip(11);
    let ticks = fields.next()?.parse::<u64>().ok()? + fields.next()?.parse::<u64>().ok()?;
    Some(Duration::from_secs(ticks) / rustix::param::clock_ticks_per_second() as u32)
}

/// Returns the default congestion control of sockets, or an empty string if it cannot be read.
pub fn congestion_control() -> String {
    fs::read_to_string("/proc/sys/net/ipv4/tcp_congestion_control").unwrap_or_default().trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_time_grows_with_work() {
        let before = cpu_time();
        let mut x = 1u64;
        while cpu_time() - before < Duration::from_millis(30) {
            x = std::hint::black_box(x.wrapping_mul(3));
        }
        assert!(cpu_time_of(std::process::id()).unwrap() >= Duration::from_millis(10));
        assert_eq!(cpu_time_of(u32::MAX), None);
        assert_eq!(cpu_time_of(1 << 22), None, "Linux must have no process with this number");
    }
}
