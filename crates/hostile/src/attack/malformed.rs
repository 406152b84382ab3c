//! Messages that are nearly well-formed, at every layer. The server can answer or close the connection, and must not
//! panic.

use std::{
    io::{self, ErrorKind, Read, Write},
    net::{Ipv4Addr, SocketAddr, TcpStream},
};

use super::{ADMITTED, Stop};
use crate::{
    random::Random,
    server::{RPCBIND, Target},
    wire::{Xdr, iwarp, rpc, shm as socket, v3, v4},
};

/// A connection that is opened again when the server has closed it.
struct Line {
    connect: fn(Ipv4Addr, SocketAddr) -> io::Result<TcpStream>,
    remote: SocketAddr,
    stream: Option<TcpStream>,
    /// The number of messages sent on this connection.
    number: u32,
    sent: u64,
    closed: u64,
}

impl Line {
    fn new(connect: fn(Ipv4Addr, SocketAddr) -> io::Result<TcpStream>, remote: SocketAddr) -> Self {
        Self { connect, remote, stream: None, number: 0, sent: 0, closed: 0 }
    }

    /// Sends the message that `message` returns for this position in the connection, and discards received bytes.
    fn send(&mut self, message: impl FnOnce(u32) -> Vec<u8>) -> io::Result<()> {
        let stream = match &mut self.stream {
            Some(stream) => stream,
            none => {
                self.number = 0;
                none.insert((self.connect)(ADMITTED, self.remote)?)
            }
        };
        self.number += 1;
        self.sent += 1;
        let ended = stream.write_all(&message(self.number)).is_err() || is_ended(stream)?;
        // After a message with a wrong length, the server waits for the rest of it.
        if ended || self.number >= MESSAGES {
            self.closed += u64::from(ended);
            self.stream = None;
        }
        Ok(())
    }

    fn told(&self) -> String {
        format!("{} messages, {} connections closed by the server", self.sent, self.closed)
    }
}

/// Discards the received bytes without waiting. Returns `true` if the connection has ended.
fn is_ended(stream: &mut TcpStream) -> io::Result<bool> {
    stream.set_nonblocking(true)?;
    let mut room = [0; 64 << 10];
    let read = stream.read(&mut room);
    stream.set_nonblocking(false)?;
    Ok(match read {
        Ok(read) => read == 0,
        Err(error) => error.kind() != ErrorKind::WouldBlock,
    })
}

/// Attacks the programs other than NFSv4. It uses its own file, and no file of the good clients.
pub fn rpc(target: &Target, stop: &Stop) -> io::Result<String> {
    let mut random = Random::new(target.seed);
    let (directory, file) = handles(target, "/posix")?;
    let mut lines = vec![(Line::new(rpc::connect, target.tcp), v3::every_procedure(&directory, &file))];
    if let Some(locks) = target.locks {
        lines.push((Line::new(rpc::connect, locks), v3::locking(&file)));
        lines.push((Line::new(rpc::connect, RPCBIND), v3::rpcbind()));
    }
    while !stop.is_now() {
        for (line, calls) in &mut lines {
            let call = random.of(calls).0.clone();
            line.send(|_| changed(&mut random, call))?;
        }
    }
    Ok(lines.iter().map(|(line, _)| line.told()).collect::<Vec<_>>().join("; "))
}

/// Attacks NFSv4 in every minor version.
pub fn v4(target: &Target, stop: &Stop) -> io::Result<String> {
    let mut random = Random::new(target.seed);
    let (directory, file) = handles(target, "/posix")?;
    let mut stream = rpc::connect(ADMITTED, target.tcp)?;
    let mut session = v4::session(&mut stream, b"malformed")?;
    let mut sequences = vec![0; session.slots as usize];
    let operations = [v4::operations(&directory), v4::operations(&file)].concat();
    let mut line = Line::new(rpc::connect, target.tcp);
    while !stop.is_now() {
        if line.number % 100 == 50 {
            // A mutated request may have destroyed the session.
            if let Ok(again) = v4::session(&mut stream, b"malformed") {
                (sequences, session) = (vec![0; again.slots as usize], again);
            }
        }
        line.send(|xid| {
            let count = random.below(8) as u32 + 1;
            let mut call = if random.below(2) == 0 {
                let slot = random.below(session.slots as usize);
                sequences[slot] += 1;
                v4::sequence(xid, b"", &session, slot as u32, sequences[slot], count + 3)
            } else {
                v4::compound(xid, random.below(4) as u32, b"", count + 2)
            };
            // Set a current and a saved filehandle.
            call = call.u32(22).opaque(if random.below(2) == 0 { &directory } else { &file }).u32(32);
            for _ in 0..count {
                call = call.fixed(&random.of(&operations).0);
            }
            changed(&mut random, call.0)
        })?;
    }
    Ok(line.told())
}

/// Sends start frames, segments with invalid queues, numbers and offsets, and headers of RPC-over-RDMA.
pub fn rdma(target: &Target, stop: &Stop) -> io::Result<String> {
    let mut random = Random::new(target.seed);
    let (directory, file) = handles(target, "/memory")?;
    let calls = v3::every_procedure(&directory, &file);
    let mut started = Line::new(iwarp::connect, target.rdma);
    let mut raw = Line::new(rpc::connect, target.rdma);
    while !stop.is_now() {
        if random.below(8) == 0 {
            raw.stream = None;
            raw.send(|_| {
                let mut frame = iwarp::start_frame(&[0xf6, 0xab, 0x0e, 0x18, 1, 0, 255, 255]);
                random.mutate(&mut frame, 0);
                frame
            })?;
            continue;
        }
        let call = random.of(&calls).clone();
        started.send(|number| segment(&mut random, number, &call))?;
    }
    Ok(format!("{}; start frames: {}", started.told(), raw.told()))
}

fn segment(random: &mut Random, number: u32, call: &Xdr) -> Vec<u8> {
    let position = random.below(call.0.len() + 8) as u32;
    let mut message = match random.below(2) {
        0 => iwarp::inline(number, call),
        _ => iwarp::with_read_chunk(number, position, random.next() as u32, call),
    };
    if random.below(4) > 0 {
        random.mutate(&mut message, 0);
    }
    let wild = |random: &mut Random| random.next() as u32 >> random.below(32);
    match random.below(8) {
        0 => {
            let (queue, of_queue, offset) = (wild(random), wild(random), wild(random));
            let header = iwarp::untagged(random.below(2) == 0, random.below(16) as u8, queue, of_queue, offset);
            iwarp::fpdu(&[header.0, message].concat())
        }
        1 => {
            let offset = random.next() >> random.below(64);
            let header = iwarp::tagged(random.below(2) == 0, random.below(16) as u8, wild(random), offset);
            iwarp::fpdu(&[header.0, message].concat())
        }
        2 => {
            let mut sent = iwarp::send(number, &message);
            random.mutate(&mut sent, 0);
            sent
        }
        _ => iwarp::send(number, &message),
    }
}

/// Sends packets that the handshake does not expect.
pub fn shm(target: &Target, stop: &Stop) -> io::Result<String> {
    let mut random = Random::new(target.seed);
    let memory = socket::memory(8192)?;
    let (mut connections, mut packets) = (0, 0);
    while !stop.is_now() {
        let Ok(connected) = socket::connect(&target.socket()) else { continue };
        connections += 1;
        if random.below(4) > 0 && socket::greet(&connected).is_err() {
            continue;
        }
        for number in 0..20 {
            let mut packet =
                random.of(&[b"SLIPSHM1\x01\x04\0\x04\0".to_vec(), b"\x05".to_vec(), b"\x06\0\0\0\0".to_vec()]).clone();
            let sent = match random.below(4) {
                0 => socket::pass(&connected, number, random.next() >> random.below(64), &memory),
                1 => socket::pass(&connected, random.below(3) as u32, 8192, &memory),
                _ => {
                    random.mutate(&mut packet, 0);
                    socket::say(&connected, &packet)
                }
            };
            packets += 1;
            if sent.is_err() {
                break;
            }
        }
    }
    Ok(format!("{connections} connections, {packets} packets"))
}

fn handles(target: &Target, export: &str) -> io::Result<(Vec<u8>, Vec<u8>)> {
    let (mut stream, file) = v3::file(rpc::connect(ADMITTED, target.tcp)?, export, "malformed", 4096)?;
    Ok((v3::mount(&mut stream, export)?, file))
}

/// Returns a record with a call of root or another user. Three in four calls are mutated, or the record is. One in
/// eight has a random header.
fn changed(random: &mut Random, mut call: Vec<u8>) -> Vec<u8> {
    rpc::by_user(&mut call, *random.of(&[0, 1000]));
    if random.below(4) == 0 {
        return rpc::record(&call);
    }
    let spared = if random.below(8) == 0 { 0 } else { rpc::HEADER };
    random.mutate(&mut call, spared);
    let mut record = rpc::record(&call);
    if random.below(16) == 0 {
        random.mutate(&mut record, 0);
    }
    record
}

/// Maximum number of messages on one connection.
const MESSAGES: u32 = 200;
