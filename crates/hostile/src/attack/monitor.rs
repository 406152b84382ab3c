//! Restarts that a host reports, and that the server forwards to the programs of its own host that monitor it.

use std::io::{self, Write};

use super::{ADMITTED, Stop};
use crate::{
    server::Target,
    wire::{rpc, v3},
};

/// Monitors hosts for a program that does not exist, and then reports repeatedly that they have restarted.
pub fn restarts(target: &Target, stop: &Stop) -> io::Result<String> {
    let Some(locks) = target.locks else {
        return Ok("nothing: the server has no lock manager, as it may not listen on the port of rpcbind".to_owned());
    };
    let mut stream = rpc::connect(ADMITTED, locks)?;
    let (mut monitored, mut restarts) = (0, 0);
    while monitored < MONITORS && !stop.is_now() {
        rpc::exchange(&mut stream, &v3::monitor(monitored, "restarted", UNKNOWN + monitored))?;
        monitored += 1;
    }
    while !stop.is_now() {
        for _ in 0..PIPELINED {
            restarts += 1;
            stream.write_all(&rpc::record(&v3::notify(restarts, "restarted", restarts).0))?;
        }
        for _ in 0..PIPELINED {
            rpc::receive(&mut stream)?;
        }
    }
    Ok(format!("{monitored} hosts monitored, {restarts} restarts"))
}

const MONITORS: u32 = 100;
const PIPELINED: u32 = 32;
/// Numbers of programs that are not registered.
const UNKNOWN: u32 = 0x3000_0000;
