//! Amplification: what a forged source address could be sent.

use std::{
    io,
    net::{Ipv4Addr, UdpSocket},
    time::Duration,
};

use super::{ADMITTED, Stop, UNADMITTED};
use crate::{
    server::{RPCBIND, Target},
    wire::{
        Xdr,
        rpc::{anonymous_call, call, connect},
        v3::{self, MOUNT, NFS},
        v4,
    },
};

/// The most bytes for each byte that was sent, by calls with short arguments and long results.
pub fn amplified(target: &Target, _stop: &Stop) -> io::Result<String> {
    let (_stream, file) = v3::file(connect(ADMITTED, target.tcp)?, "/memory", "amplified", 64 << 10)?;
    let calls = |xid: u32| -> Vec<(&'static str, Xdr)> {
        vec![
            ("NULL", anonymous_call(xid, NFS, 3, 0)),
            ("EXPORT", anonymous_call(xid, MOUNT, 3, 5)),
            ("DUMP", anonymous_call(xid, MOUNT, 3, 2)),
            ("READ", v3::read(xid, &file, 0, 64 << 10)),
            ("READ of 4 KiB", v3::read(xid, &file, 0, 4 << 10)),
            ("READDIRPLUS", call(xid, NFS, 3, 17).opaque(&file).u64(0).u64(0).u32(60_000).u32(60_000)),
            ("a wrong program", anonymous_call(xid, 7, 7, 7)),
            ("DUMP of rpcbind", anonymous_call(xid, 100_000, 4, 4)),
            ("COMPOUND", v4::compound(xid, 0, b"", 2).u32(24).u32(10)),
        ]
    };
    let mut found = Vec::new();
    for (host, most) in [(UNADMITTED, UNADMITTED_MOST), (ADMITTED, ADMITTED_MOST)] {
        let (ratio, what) = worst(host, target, &calls(100))?;
        if ratio > most {
            return Err(io::Error::other(format!("{what} by {host} is answered with {ratio} times as many bytes")));
        }
        found.push(format!("{host}: {what} {ratio}×"));
    }
    Ok(found.join(", "))
}

/// The call with the longest answer for its length, in times of that, rounded up.
fn worst(host: Ipv4Addr, target: &Target, calls: &[(&'static str, Xdr)]) -> io::Result<(usize, &'static str)> {
    let mut worst = (0, "nothing");
    for (what, call) in calls {
        let rpcbind = target.locks.is_some() && what.contains("rpcbind");
        // A port of its own for each: the server knows none of them.
        let socket = UdpSocket::bind((host, 0))?;
        socket.set_read_timeout(Some(Duration::from_millis(200)))?;
        socket.send_to(&call.0, if rpcbind { RPCBIND } else { target.tcp })?;
        let (mut received, mut room) = (0, vec![0; 1 << 16]);
        while let Ok(len) = socket.recv(&mut room) {
            received += len;
        }
        worst = worst.max((received.div_ceil(call.0.len()), *what));
    }
    Ok(worst)
}

const UNADMITTED_MOST: usize = 3;
const ADMITTED_MOST: usize = 16;
