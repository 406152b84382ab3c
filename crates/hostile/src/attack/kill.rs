//! Clients that are killed.

use std::{
    io,
    process::{Command, Stdio},
    thread,
    time::Duration,
};

use super::Stop;
use crate::{random::Random, server::Target};

/// Starts the program of the good clients repeatedly, and kills it at a random time while it uses every transport.
pub fn clients(target: &Target, stop: &Stop) -> io::Result<String> {
    let mut random = Random::new(target.seed);
    let mut killed = 0;
    while !stop.is_now() {
        let mut child = Command::new(&target.load)
            .arg(&target.directory)
            .args(target.urls())
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        thread::sleep(Duration::from_millis(50 + random.below(250) as u64));
        child.kill()?;
        child.wait()?;
        killed += 1;
    }
    Ok(format!("{killed} processes with four clients each"))
}
