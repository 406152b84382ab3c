//! Amplification: the bytes that a forged source address could receive.

use std::{io, net::UdpSocket, time::Instant};

use super::Stop;
use crate::{
    server::{FOREIGN, RPCBIND, Target},
    wire::{
        rpc::{anonymous_call, call},
        v3::{MOUNT, NFS},
        v4,
    },
};

/// Sends calls with short arguments and long results from a host that no export admits and that is not the server's
/// own. The server limits the rate of the reply bytes beyond three times the calls.
pub fn amplified(target: &Target, stop: &Stop) -> io::Result<String> {
    let Some(foreign) = target.foreign else { return Ok(format!("not run: {FOREIGN} is not an address of this host")) };
    let socket = UdpSocket::bind((FOREIGN_PEER, 0))?;
    socket.set_nonblocking(true)?;
    let rpcbind = target.locks.map(|_| (foreign.ip(), RPCBIND.port()).into());
    let calls = [
        (Some(foreign), anonymous_call(1, NFS, 3, 0)),
        (Some(foreign), anonymous_call(2, MOUNT, 3, 5)),
        (Some(foreign), anonymous_call(3, MOUNT, 3, 2)),
        (Some(foreign), anonymous_call(4, 7, 7, 7)),
        (Some(foreign), call(5, NFS, 3, 17).opaque(&[7; 32]).u64(0).u64(0).u32(60_000).u32(60_000)),
        (Some(foreign), v4::compound(6, 0, b"", 2).u32(24).u32(10)),
        (rpcbind, anonymous_call(7, 100_000, 4, 4)),
        (rpcbind, anonymous_call(8, 100_000, 2, 4)),
    ];
    let (begun, mut room) = (Instant::now(), vec![0; 1 << 16]);
    let (mut sent, mut received) = (0, 0);
    while !stop.is_now() {
        for (to, call) in &calls {
            let Some(to) = to else { continue };
            sent += socket.send_to(&call.0, to).unwrap_or(0);
        }
        std::thread::sleep(std::time::Duration::from_millis(2));
        while let Ok(len) = socket.recv(&mut room) {
            received += len;
        }
    }
    let most = 3 * sent + BURST + RATE * begun.elapsed().as_secs() as usize;
    let told = format!("{} KiB of calls, {} KiB of replies", sent >> 10, received >> 10);
    if received == 0 {
        return Err(io::Error::other("no call was answered"));
    }
    if received > most { Err(io::Error::other(format!("{told}; the bound is {} KiB", most >> 10))) } else { Ok(told) }
}

/// Another address of the network for documentation (RFC 5737), from which the calls come.
const FOREIGN_PEER: &str = "198.51.100.7";
/// Maximum bytes per second and in a burst, with room for packets in flight.
const RATE: usize = 2 << 10;
const BURST: usize = 16 << 10;
