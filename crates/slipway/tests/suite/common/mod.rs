//! Runs the command, and servers in separate processes.

#![allow(dead_code)] // Each test file uses a part of this module.

pub mod counted;
pub mod metered;
pub mod mounted;
#[path = "../../../../testkit/src/port.rs"]
pub mod port;

use std::{
    ffi::OsStr,
    io::{BufRead, BufReader, Read},
    path::Path,
    process::{Child, Command, Output, Stdio},
    thread,
    time::{Duration, Instant},
};

use port::Port;
use serde_json::Value;

/// Longer than any operation that does not hang.
pub const PATIENCE: Duration = Duration::from_secs(600);

pub const TRANSPORTS: [&str; 4] = ["tcp", "udp", "rdma", "shm"];

/// Returns the command with these arguments, not started.
pub fn command(args: &[impl AsRef<OsStr>]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_slipway"));
    command.args(args).env_remove("RUST_LOG").env_remove("NOTIFY_SOCKET").stdin(Stdio::null());
    command
}

/// Returns the command as an ordinary user and group without any capability. Only root can start it.
pub fn unprivileged(user: u32, args: &[impl AsRef<OsStr>]) -> Command {
    let mut command = Command::new("setpriv");
    let user = user.to_string();
    command.args(["--no-new-privs", "--reuid", &user, "--regid", &user, "--clear-groups", "--bounding-set", "-all"]);
    command.arg(env!("CARGO_BIN_EXE_slipway")).args(args);
    command.env_remove("RUST_LOG").env_remove("NOTIFY_SOCKET").stdin(Stdio::null());
    command
}

/// Runs the command to its end.
pub fn run(args: &[impl AsRef<OsStr>]) -> Output {
    output(command(args))
}

/// Runs a command to its end.
pub fn output(mut command: Command) -> Output {
    finish(command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap())
}

/// Waits for the end of a process with piped output.
pub fn finish(mut child: Child) -> Output {
    let (mut stdout, mut stderr) = (child.stdout.take().unwrap(), child.stderr.take().unwrap());
    let read = |source: &mut dyn Read| {
        let mut all = Vec::new();
        source.read_to_end(&mut all).unwrap();
        all
    };
    thread::scope(|scope| {
        let stdout = scope.spawn(move || read(&mut stdout));
        let stderr = scope.spawn(move || read(&mut stderr));
        let status = wait(&mut child);
        Output { status, stdout: stdout.join().unwrap(), stderr: stderr.join().unwrap() }
    })
}

/// Stops a child process by SIGSTOP, and waits until all its threads have stopped. After the signal alone, they can go on for a while.
pub fn pause(child: &Child) {
    let pid = rustix::process::Pid::from_child(child);
    rustix::process::kill_process(pid, rustix::process::Signal::STOP).unwrap();
    let (_, status) = rustix::process::waitpid(Some(pid), rustix::process::WaitOptions::UNTRACED).unwrap().unwrap();
    assert!(status.stopped(), "{status:?}");
}

/// Waits for the end of a process; kills it and fails if it does not come.
pub fn wait(child: &mut Child) -> std::process::ExitStatus {
    let end = Instant::now() + PATIENCE;
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return status;
        }
        if Instant::now() > end {
            child.kill().unwrap();
            panic!("the command did not end within {PATIENCE:?}");
        }
        thread::sleep(Duration::from_millis(5));
    }
}

/// Waits until the condition is true.
pub fn until(what: &str, mut so: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !so() {
        assert!(Instant::now() < end, "{what}");
        thread::sleep(Duration::from_millis(2));
    }
}

/// Runs the command, which must succeed. Returns its output.
pub fn ok(args: &[impl AsRef<OsStr>]) -> String {
    let output = run(args);
    assert!(output.status.success(), "{}: {}", output.status, stderr(&output));
    String::from_utf8(output.stdout).unwrap()
}

/// Runs the command, which must exit with `code`. Returns its standard error.
pub fn fails(code: i32, args: &[impl AsRef<OsStr>]) -> String {
    let output = run(args);
    assert_eq!(output.status.code(), Some(code), "{}", stderr(&output));
    stderr(&output).to_owned()
}

pub fn stderr(output: &Output) -> &str {
    std::str::from_utf8(&output.stderr).unwrap()
}

/// Parses lines of JSON.
pub fn lines(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// A running `slipway serve`.
pub struct Server {
    pub child: Child,
    pub ready: Value,
    /// Its ports in the order of [`TRANSPORTS`], which no other process uses when it has ended.
    pub ports: Vec<Port>,
}

impl Server {
    /// Starts a server, which must become ready.
    pub fn start(args: &[impl AsRef<OsStr>]) -> Self {
        let mut command = command(&["serve", "--json", "--rpcbind", "off"]);
        command.args(args);
        Self::spawn(command)
    }

    /// Starts a server by a command that ends as `serve --json`. It must become ready.
    pub fn spawn(mut command: Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        match serde_json::from_str(&line) {
            Ok(ready) => Self { child, ready, ports: Vec::new() },
            Err(_) => {
                let output = finish(child);
                panic!("the server ended with {} and printed: {line}{}", output.status, stderr(&output));
            }
        }
    }

    /// Serves memory on a port of every transport.
    pub fn memory() -> Self {
        Self::everywhere(&["--memory", "512M", "--squash", "none"])
    }

    /// Serves a directory on a port of every transport.
    pub fn dir(dir: &Path, state: &Path) -> Self {
        let (dir, state) = (dir.to_str().unwrap(), state.to_str().unwrap());
        Self::everywhere(&["--squash", "none", "--state-dir", state, dir])
    }

    /// Starts a server with its own port on every transport.
    pub fn everywhere(args: &[&str]) -> Self {
        let ports = TRANSPORTS.map(|_| Port::take());
        let listen = TRANSPORTS.iter().zip(&ports).map(|(transport, port)| listen(transport, port));
        let args: Vec<String> = args.iter().map(|arg| (*arg).to_owned()).chain(listen.flatten()).collect();
        let mut server = Self::start(&args);
        server.ports = ports.into();
        server
    }

    pub fn port(&self, transport: &str) -> u16 {
        let listen = self.ready["listen"].as_array().unwrap();
        let listen = listen.iter().find(|listen| listen["transport"] == transport).unwrap();
        listen["address"].as_str().unwrap().rsplit_once(':').unwrap().1.parse().unwrap()
    }

    /// Returns the URL of a path below the first export.
    pub fn url(&self, transport: &str, path: &str) -> String {
        let port = self.port(transport);
        let export = self.ready["exports"][0].as_str().unwrap();
        format!("nfs://127.0.0.1:{port}{export}{path}?proto={transport}&mountport={port}&mountproto={transport}")
    }

    pub fn signal(&self, signal: rustix::process::Signal) {
        rustix::process::kill_process(rustix::process::Pid::from_child(&self.child), signal).unwrap();
    }

    /// Stops the server by SIGSTOP. `signal(Signal::CONT)` continues it.
    pub fn pause(&self) {
        pause(&self.child);
    }

    /// Ends the server by SIGTERM, which must work. Returns its standard error.
    pub fn stop(mut self) -> String {
        self.signal(rustix::process::Signal::TERM);
        let status = wait(&mut self.child);
        let mut said = String::new();
        self.child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
        assert!(status.success(), "{status}: {said}");
        said
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns the arguments with which a server listens on the port.
pub fn listen(transport: &str, port: &Port) -> [String; 2] {
    ["--listen".to_owned(), format!("{transport}://{}", port.address())]
}
