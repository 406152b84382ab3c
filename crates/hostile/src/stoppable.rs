//! A file system that can be stopped: `slipway mount` of a separate server.

use std::{
    fs::{self, File},
    io,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::Arc,
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};

use crate::server::free_port;

/// A mounted file system. A clone is cheap; the file system is unmounted when the last clone is dropped.
#[derive(Clone, Debug)]
pub struct Stoppable(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    serve: Child,
    mount: Child,
    at: PathBuf,
}

impl Stoppable {
    /// Mounts a file system at `directory/hung`. Returns `None` if this host does not permit mounts.
    ///
    /// # Errors
    /// The file system's server does not start.
    pub fn start(slipway: &Path, directory: &Path) -> io::Result<Option<Self>> {
        if !rustix::process::geteuid().is_root() || !Path::new("/dev/fuse").exists() {
            return Ok(None);
        }
        let (at, port) = (directory.join("hung"), free_port()?);
        fs::create_dir_all(&at)?;
        let log = File::create(directory.join("hung.log"))?;
        let start = |arguments: &[&str]| {
            let mut command = Command::new(slipway);
            command.args(arguments).stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log.try_clone()?).spawn()
        };
        let (listen, ready) = (format!("tcp://127.0.0.1:{port}"), directory.join("hung.ready"));
        let state = directory.join("hung.state");
        let [ready_file, state_dir] = [&ready, &state].map(|path| path.to_string_lossy().into_owned());
        let serve = ["serve", "--memory", "64M", "--squash", "none", "--rpcbind", "off", "--listen", &listen];
        let serve = start(&[&serve[..], &["--state-dir", &state_dir, "--ready-file", &ready_file]].concat())?;
        wait(|| ready.exists())?;
        let url = format!("nfs://127.0.0.1:{port}/memory?mountport={port}");
        let mount = start(&["mount", &url, &at.to_string_lossy()])?;
        let stoppable = Self(Arc::new(Inner { serve, mount, at }));
        let at = stoppable.0.at.to_string_lossy().into_owned();
        wait(|| fs::read_to_string("/proc/self/mounts").is_ok_and(|mounts| mounts.contains(&at)))?;
        Ok(Some(stoppable))
    }

    /// Stops the file system's server: operations on the file system do not complete any more.
    pub fn stop(&self) -> io::Result<()> {
        let pid = Pid::from_child(&self.0.mount);
        kill_process(pid, Signal::STOP)?;
        // After the signal alone, the threads can go on for a while.
        waitpid(Some(pid), WaitOptions::UNTRACED)?;
        Ok(())
    }

    /// Continues the file system's server: outstanding operations complete.
    pub fn go_on(&self) -> io::Result<()> {
        Ok(kill_process(Pid::from_child(&self.0.mount), Signal::CONT)?)
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let _ = kill_process(Pid::from_child(&self.mount), Signal::CONT);
        let _ = rustix::mount::unmount(&self.at, rustix::mount::UnmountFlags::DETACH);
        for child in [&mut self.mount, &mut self.serve] {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn wait(ready: impl Fn() -> bool) -> io::Result<()> {
    let deadline = Instant::now() + UP_LIMIT;
    while !ready() {
        if Instant::now() > deadline {
            return Err(io::Error::other("a file system that can be stopped does not come up: see hung.log"));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

const UP_LIMIT: Duration = Duration::from_secs(30);
