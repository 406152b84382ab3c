//! Runs other programs: copies their output, finds them on PATH, and ends child processes when this one ends.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Returns the directory of the workspace's Cargo.toml.
pub fn project_root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask must be a directory of the project").to_path_buf()
}

/// Returns cargo's target directory.
pub fn target_dir() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| project_root().join("target"), PathBuf::from)
}

/// Returns `true` if this process runs as root.
pub fn is_root() -> bool {
    output("id", ["-u"]).is_ok_and(|id| id.trim() == "0")
}

/// Returns the path of `program` on PATH, or in root's directories.
pub fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(["/usr/sbin", "/sbin"].map(PathBuf::from))
        .map(|directory| directory.join(program))
        .find(|candidate| candidate.is_file())
}

/// Returns the command `cargo …` of the toolchain that runs this process.
pub fn cargo<S: AsRef<OsStr>>(arguments: impl IntoIterator<Item = S>) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(arguments);
    command
}

/// Runs a command to its end. The error says how it failed.
pub fn run(command: &mut Command) -> Result<(), String> {
    let status = command.status().map_err(|error| format!("{}: {error}", name(command)))?;
    if status.success() { Ok(()) } else { Err(format!("{}: {status}", line(command))) }
}

/// Runs a command to its end, and returns its stdout.
pub fn output<S: AsRef<OsStr>>(program: &str, arguments: impl IntoIterator<Item = S>) -> Result<String, String> {
    capture(Command::new(program).args(arguments))
}

/// Runs a command to its end, and returns its stdout. The error contains the end of its stderr.
pub fn capture(command: &mut Command) -> Result<String, String> {
    let output = command.stdin(Stdio::null()).output().map_err(|error| format!("{}: {error}", name(command)))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    Err(format!("{}: {}: {}", line(command), output.status, end(&String::from_utf8_lossy(&output.stderr))))
}

/// Returns the last lines of an output as one line.
pub fn end(output: &str) -> String {
    let last: Vec<&str> = output.lines().rev().take(4).collect();
    last.into_iter().rev().collect::<Vec<_>>().join(" | ")
}

/// Runs a command to its end. Prints the lines of its stdout and stderr for which `show` returns `true`. Returns all
/// output, and `true` if the command succeeded.
pub fn tee(command: &mut Command, show: impl FnMut(&str) -> bool + Send + 'static) -> Result<(bool, String), String> {
    let mut child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| format!("{}: {error}", name(command)))?;
    let kept = Arc::new(Mutex::new((String::new(), show)));
    let pipes: [Box<dyn Read + Send>; 2] =
        [Box::new(child.stdout.take().expect("piped")), Box::new(child.stderr.take().expect("piped"))];
    let readers = pipes.map(|pipe| {
        let kept = Arc::clone(&kept);
        std::thread::spawn(move || {
            for line in BufReader::new(pipe).lines().map_while(Result::ok) {
                let mut guard = kept.lock().expect("readers must not panic");
                let (kept, show) = &mut *guard;
                kept.push_str(&line);
                kept.push('\n');
                if show(&line) {
                    eprintln!("{line}");
                }
            }
        })
    });
    for reader in readers {
        reader.join().expect("readers must not panic");
    }
    let status = child.wait().map_err(|error| error.to_string())?;
    let kept = kept.lock().expect("readers must not panic").0.clone();
    Ok((status.success(), kept))
}

/// A child process that is ended when this is dropped: by SIGTERM, and by SIGKILL if that has no effect.
#[derive(Debug)]
pub struct Daemon(Child);

impl Daemon {
    /// Starts `command` with stdin closed and both outputs in `log`.
    pub fn start(command: &mut Command, log: &Path) -> Result<Self, String> {
        let file = std::fs::File::create(log).map_err(|error| format!("{}: {error}", log.display()))?;
        let again = file.try_clone().map_err(|error| error.to_string())?;
        let child = command.stdin(Stdio::null()).stdout(file).stderr(again).spawn();
        child.map(Self).map_err(|error| format!("{}: {error}", name(command)))
    }

    /// Returns the process ID.
    pub fn id(&self) -> u32 {
        self.0.id()
    }

    /// Returns `true` if the process still runs.
    pub fn is_running(&mut self) -> bool {
        matches!(self.0.try_wait(), Ok(None))
    }

    /// Waits until the process ends by itself. Returns an error if it fails, or does not end in time.
    pub fn wait(&mut self, limit: Duration) -> Result<(), String> {
        wait_until(limit, || !self.is_running());
        match self.0.try_wait() {
            Ok(Some(status)) if status.success() => Ok(()),
            Ok(Some(status)) => Err(format!("ended with {status}")),
            Ok(None) => Err(format!("did not end within {} s", limit.as_secs())),
            Err(error) => Err(error.to_string()),
        }
    }

    /// Sends a signal, for example `STOP`.
    pub fn signal(&self, signal: &str) -> Result<(), String> {
        run(Command::new("kill").args([&format!("-{signal}"), &self.id().to_string()]))
    }

    /// Kills the process by SIGKILL. Returns an error if it does not end, because it waits in the kernel.
    pub fn kill(&mut self) -> Result<(), String> {
        self.0.kill().map_err(|error| error.to_string())?;
        match wait_until(LIMIT, || !self.is_running()) {
            true => Ok(()),
            false => Err(format!("process {} did not end within {} s of SIGKILL", self.id(), LIMIT.as_secs())),
        }
    }

    /// Sends SIGTERM and waits. Returns an error if the process fails, or had to be killed.
    pub fn terminate(&mut self) -> Result<(), String> {
        self.signal("TERM")?;
        let deadline = Instant::now() + LIMIT;
        while Instant::now() < deadline {
            if let Ok(Some(status)) = self.0.try_wait() {
                return if status.success() { Ok(()) } else { Err(format!("ended with {status}")) };
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Err(format!("did not end within {} s of SIGTERM", LIMIT.as_secs()))
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if self.is_running() {
            let _ = self.terminate();
            let _ = self.0.kill();
        }
        let _ = self.0.wait();
    }
}

/// Calls `ready` every tenth of a second until it returns `true`, or `limit` has passed.
pub fn wait_until(limit: Duration, mut ready: impl FnMut() -> bool) -> bool {
    let deadline = Instant::now() + limit;
    while Instant::now() < deadline {
        if ready() {
            return true;
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    false
}

/// The maximum time to wait for the end of a process after a signal that must end it.
const LIMIT: Duration = Duration::from_secs(20);

fn name(command: &Command) -> String {
    command.get_program().to_string_lossy().into_owned()
}

fn line(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(OsStr::to_string_lossy).collect::<Vec<_>>().join(" ")
}
