//! [`Meter`]: counts the bytes that the machine's memory has moved, if the kernel reports them.
//!
//! Linux counts them in resctrl's monitoring groups (`mbm_total_bytes`, one file for each L3 cache), if the processor
//! supports it and the file system is mounted. Most virtual machines have neither; the report then has the reason.

use std::{
    fs,
    path::{Path, PathBuf},
};

/// Reads the counters of the whole machine.
pub struct Meter {
    counters: Result<Vec<PathBuf>, String>,
}

impl Meter {
    /// Searches for the counters below `root`, which is `/` except in tests.
    pub fn find(root: &Path) -> Self {
        Self { counters: find(root) }
    }

    /// Returns the bytes so far. Only the difference of two values is meaningful.
    pub fn bytes(&self) -> Option<u64> {
        // If one counter says "Unavailable", the sum is invalid.
        let read = |path: &PathBuf| fs::read_to_string(path).ok()?.trim().parse::<u64>().ok();
        self.counters.as_ref().ok()?.iter().map(read).sum()
    }

    /// Returns the source of the count, or the reason if there is none.
    pub fn describe(&self) -> String {
        match &self.counters {
            Ok(counters) => format!("resctrl, {} caches", counters.len()),
            Err(why) => format!("unreadable: {why}"),
        }
    }
}

fn find(root: &Path) -> Result<Vec<PathBuf>, String> {
    let groups = root.join("sys/fs/resctrl/mon_data");
    let found: Vec<PathBuf> = fs::read_dir(&groups)
        .map(|entries| entries.flatten().map(|entry| entry.path().join("mbm_total_bytes")).collect())
        .unwrap_or_default();
    let found: Vec<PathBuf> = found.into_iter().filter(|path| path.exists()).collect();
    if !found.is_empty() {
        return Ok(found);
    }
    let devices = fs::read_dir(root.join("sys/bus/event_source/devices"));
    let controllers = devices.is_ok_and(|devices| {
        devices.flatten().any(|device| device.file_name().to_string_lossy().starts_with("uncore_imc"))
    });
    Err(match (root.join("sys/fs/resctrl").exists(), controllers) {
        (true, _) => {
            "resctrl is there but not mounted (mount -t resctrl resctrl /sys/fs/resctrl), or counts no bandwidth"
        }
        (false, true) => "no resctrl; the memory controllers count for perf stat -a (uncore_imc) alone",
        (false, false) => "neither resctrl nor memory controllers that count, as in most virtual machines",
    }
    .to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_of_all_caches_are_summed() {
        let root = tempfile::tempdir().unwrap();
        for (cache, bytes) in [("mon_L3_00", "1000\n"), ("mon_L3_01", "234\n")] {
            let group = root.path().join("sys/fs/resctrl/mon_data").join(cache);
            fs::create_dir_all(&group).unwrap();
            fs::write(group.join("mbm_total_bytes"), bytes).unwrap();
        }
        let meter = Meter::find(root.path());
        assert_eq!((meter.bytes(), meter.describe().as_str()), (Some(1234), "resctrl, 2 caches"));
        fs::write(root.path().join("sys/fs/resctrl/mon_data/mon_L3_01/mbm_total_bytes"), "Unavailable\n").unwrap();
        assert_eq!(meter.bytes(), None, "an incomplete sum must not be returned");
    }

    #[test]
    fn missing_counters_are_explained() {
        let root = tempfile::tempdir().unwrap();
        let meter = Meter::find(root.path());
        assert_eq!(meter.bytes(), None);
        assert!(meter.describe().contains("neither resctrl"), "{}", meter.describe());
        fs::create_dir_all(root.path().join("sys/bus/event_source/devices/uncore_imc_0")).unwrap();
        assert!(Meter::find(root.path()).describe().contains("perf stat"));
    }
}
