//! What processes cost, and what the host gives them: CPU seconds, congestion control.

use std::{fs, time::Duration};

use nix::{time::ClockId, unistd::Pid};

/// CPU time that this process has used, all threads together.
pub fn cpu_time() -> Duration {
    ClockId::CLOCK_PROCESS_CPUTIME_ID.now().map(Duration::from).unwrap_or_default()
}

/// CPU time that another process has used, all its threads together; `None` if it is not there.
pub fn cpu_time_of(pid: u32) -> Option<Duration> {
    let clock = ClockId::pid_cpu_clock_id(Pid::from_raw(pid.try_into().ok()?)).ok()?;
    Some(clock.now().ok()?.into())
}

/// The congestion control that sockets get which ask for none; empty if it cannot be found out.
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
