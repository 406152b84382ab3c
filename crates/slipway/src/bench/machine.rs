//! [`Machine`]: a description of the measuring machine, because figures depend on it.

use std::fs;

use serde::Serialize;

use crate::process;

/// The known properties of the machine.
#[derive(Clone, Debug, Serialize)]
pub struct Machine {
    /// The processor's name.
    pub cpu: String,
    /// The number of processors on which threads can run.
    pub cores: usize,
    /// `true` in a virtual machine.
    pub virtual_machine: bool,
    /// Bytes of memory.
    pub memory: u64,
    /// The operating system and its release.
    pub kernel: String,
    /// Transparent huge pages: always, madvise or never.
    pub huge_pages: String,
    /// The default congestion control of sockets.
    pub congestion_control: String,
    /// The version of Slipway.
    pub version: &'static str,
    /// `true` for an optimized build.
    pub optimized: bool,
}

impl Machine {
    /// Returns the description of this machine.
    pub fn this() -> Self {
        let cpuinfo = read("/proc/cpuinfo");
        let uname = rustix::system::uname();
        let text = |text: &std::ffi::CStr| text.to_string_lossy().into_owned();
        let huge = read("/sys/kernel/mm/transparent_hugepage/enabled");
        Self {
            cpu: field(&cpuinfo, "model name").unwrap_or(&text(uname.machine())).to_owned(),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            virtual_machine: field(&cpuinfo, "flags").is_some_and(|flags| flags.contains(" hypervisor")),
            memory: memory("MemTotal"),
            kernel: format!("{} {}", text(uname.sysname()), text(uname.release())),
            huge_pages: huge.split(['[', ']']).nth(1).unwrap_or("unknown").to_owned(),
            congestion_control: process::congestion_control(),
            version: env!("CARGO_PKG_VERSION"),
            optimized: !cfg!(debug_assertions),
        }
    }
}

/// Returns the available memory in bytes.
pub fn memory_available() -> u64 {
    memory("MemAvailable")
}

fn memory(name: &str) -> u64 {
    let text = read("/proc/meminfo");
    let kib = field(&text, name).and_then(|value| value.trim_end_matches(" kB").parse::<u64>().ok());
    kib.unwrap_or(0) << 10
}

/// Returns the value of the first `name : value`.
fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let mut pairs = text.lines().filter_map(|line| line.split_once(':'));
    pairs.find(|(key, _)| key.trim() == name).map(|(_, value)| value.trim())
}

fn read(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_match_by_their_whole_name() {
        let text = "model\t\t: 7\nmodel name\t: Some CPU @ 2 GHz\nflags : a b\n";
        assert_eq!(field(text, "model name"), Some("Some CPU @ 2 GHz"));
        assert_eq!(field(text, "name"), None);
    }

    #[test]
    fn this_machine_is_described() {
        let machine = Machine::this();
        assert!(!machine.cpu.is_empty() && machine.cores > 0 && machine.kernel.contains(' '));
        assert!(machine.memory >= memory_available() && memory_available() > 0);
    }
}
