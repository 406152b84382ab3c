//! Attacks on an export whose file system stops.

use std::io;

use super::{ADMITTED, Stop, tcp::Flood};
use crate::{
    server::Target,
    wire::{
        rpc::{connect, record},
        v3,
    },
};

/// Stops the file system, and keeps 160 writes to it outstanding.
pub fn writes(target: &Target, stop: &Stop) -> io::Result<String> {
    let Some(stoppable) = &target.stoppable else { return Ok("not run: it needs root and /dev/fuse".into()) };
    let mut stream = connect(ADMITTED, target.tcp)?;
    let root = v3::mount(&mut stream, "/hung")?;
    // Each write has its own file, because writes to one file wait for each other.
    let files = (0..160).map(|number| v3::create(&mut stream, &root, &format!("hung.{number}")));
    let files = files.collect::<io::Result<Vec<_>>>()?;
    stoppable.stop()?;
    let mut floods = Vec::new();
    for files in files.chunks(8) {
        let calls: Vec<u8> = files.iter().flat_map(|file| record(&v3::write(1, file, 0, 4096).0)).collect();
        let mut flood = Flood::connect(&[ADMITTED], target.tcp, 1)?;
        flood.send(&calls, calls.len() as u64, stop);
        floods.push(flood);
    }
    stop.wait();
    stoppable.go_on()?;
    Ok(format!("{} writes over {} connections", files.len(), floods.len()))
}
