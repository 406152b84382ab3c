//! `slipway mount` of one of our servers on this machine.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use super::lab::text;
use crate::shell::{self, Daemon};

/// Returns the reason why this machine or user cannot mount, if any.
pub fn obstacle() -> Option<String> {
    let can = shell::is_root() && Path::new("/dev/fuse").exists();
    (!can).then(|| "slipway mount needs root and /dev/fuse here".to_owned())
}

/// A mount, which ends when this is dropped.
pub struct Mounted {
    daemon: Daemon,
    /// The mount point.
    pub at: PathBuf,
}

impl Mounted {
    /// Mounts `url` at the new directory `at`. Its output is in `log`.
    pub fn start(slipway: &Path, url: &str, at: &Path, options: &[&str], log: &Path) -> Result<Self, String> {
        std::fs::create_dir(at).map_err(|error| format!("{}: {error}", at.display()))?;
        let mut command = Command::new(slipway);
        command.args(["-v", "mount", url]).arg(at).args(options).env("RUST_BACKTRACE", "1");
        let mut daemon = Daemon::start(&mut command, log)?;
        shell::wait_until(Duration::from_secs(20), || is_mounted(at) || !daemon.is_running());
        if !is_mounted(at) {
            let said = std::fs::read_to_string(log).unwrap_or_default();
            return Err(format!("{url} cannot be mounted: {}", said.lines().last().unwrap_or_default()));
        }
        Ok(Self { daemon, at: at.to_owned() })
    }

    /// Ends the mount by SIGTERM. Returns an error if the process fails, or leaves the mount.
    pub fn end(mut self) -> Result<(), String> {
        if !self.daemon.is_running() {
            return Err("slipway mount ended by itself".into());
        }
        self.daemon.terminate().map_err(|why| format!("slipway mount: {why}"))?;
        if is_mounted(&self.at) { Err(format!("{} is still a mount", self.at.display())) } else { Ok(()) }
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if is_mounted(&self.at) && self.daemon.terminate().is_err() && is_mounted(&self.at) {
            let _ = shell::capture(Command::new("umount").arg("-l").arg(&self.at));
        }
    }
}

fn is_mounted(at: &Path) -> bool {
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    mounts.lines().any(|line| line.split(' ').nth(1) == Some(&text(at)))
}
