//! Runs other programs: teed output, look-up on PATH, and children that end with this process.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Returns the directory that holds the workspace's Cargo.toml.
pub fn project_root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask lives in the project").to_path_buf()
}

/// Returns cargo's target directory.
pub fn target_dir() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| project_root().join("target"), PathBuf::from)
}

/// Returns `true` if this process runs as the superuser.
pub fn is_root() -> bool {
    output("id", ["-u"]).is_ok_and(|id| id.trim() == "0")
}

/// Returns the path of `program` on PATH or in the superuser's directories.
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

/// Runs the command to its end. The error describes the failure.
pub fn run(command: &mut Command) -> Result<(), String> {
    let status = command.status().map_err(|error| format!("{}: {error}", name(command)))?;
    if status.success() { Ok(()) } else { Err(format!("{}: {status}", line(command))) }
}

/// Runs the program to its end and returns its stdout.
pub fn output<S: AsRef<OsStr>>(program: &str, arguments: impl IntoIterator<Item = S>) -> Result<String, String> {
    capture(Command::new(program).args(arguments))
}

/// Runs the command to its end and returns its stdout. The error has the last lines of its stderr.
pub fn capture(command: &mut Command) -> Result<String, String> {
    let output = command.stdin(Stdio::null()).output().map_err(|error| format!("{}: {error}", name(command)))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let stderr = String::from_utf8_lossy(&output.stderr);
    let tail: Vec<&str> = stderr.lines().rev().take(4).collect();
    Err(format!("{}: {}: {}", line(command), output.status, tail.into_iter().rev().collect::<Vec<_>>().join(" | ")))
}

/// Runs the command to its end and prints each line of its stdout and stderr for which `show` returns `true`. Returns the whole output
/// and `true` if the command succeeded.
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
                let mut guard = kept.lock().expect("no reader panics");
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
        reader.join().expect("no reader panics");
    }
    let status = child.wait().map_err(|error| error.to_string())?;
    let kept = kept.lock().expect("no reader panics").0.clone();
    Ok((status.success(), kept))
}

/// A child process that is terminated when the value is dropped, by SIGTERM, and by SIGKILL if it does not end.
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

    /// Returns `true` if the process is running.
    pub fn is_running(&mut self) -> bool {
        matches!(self.0.try_wait(), Ok(None))
    }

    /// Waits until the process has ended. It is an error if it fails, or does not end within `limit`.
    pub fn wait(&mut self, limit: Duration) -> Result<(), String> {
        wait_until(limit, || !self.is_running());
        match self.0.try_wait() {
            Ok(Some(status)) if status.success() => Ok(()),
            Ok(Some(status)) => Err(format!("ended with {status}")),
            Ok(None) => Err(format!("did not end within {} s", limit.as_secs())),
            Err(error) => Err(error.to_string()),
        }
    }

    /// Sends SIGTERM and waits. It is an error if the process fails, or has to be killed.
    pub fn terminate(&mut self) -> Result<(), String> {
        run(Command::new("kill").args(["-TERM", &self.id().to_string()]))?;
        let deadline = Instant::now() + Duration::from_secs(20);
        while Instant::now() < deadline {
            if let Ok(Some(status)) = self.0.try_wait() {
                return if status.success() { Ok(()) } else { Err(format!("ended with {status}")) };
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Err("did not end within 20 s of SIGTERM".into())
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

/// Calls `ready` every tenth of a second until it returns `true` or `limit` has passed. Returns the last result.
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

fn name(command: &Command) -> String {
    command.get_program().to_string_lossy().into_owned()
}

fn line(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(OsStr::to_string_lossy).collect::<Vec<_>>().join(" ")
}
