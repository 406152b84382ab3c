//! Attacks on the TCP transport: the memory that a connection makes the server hold, and the number of connections.

use std::{
    io::{self, ErrorKind, Read, Write},
    net::{Ipv4Addr, SocketAddr, TcpStream},
    thread,
    time::{Duration, Instant},
};

use socket2::SockRef;

use super::{ADMITTED, Stop, UNADMITTED};
use crate::{
    server::{CONNECTIONS, Target},
    wire::{
        rpc::{connect, marker, record},
        v3,
    },
};

/// Non-blocking connections, and the number of bytes that each has sent.
pub struct Flood {
    connections: Vec<Sender>,
    refused: usize,
}

struct Sender {
    stream: TcpStream,
    sent: u64,
    ended: bool,
}

impl Flood {
    /// Opens `count` connections from these hosts in turn.
    pub fn connect(hosts: &[Ipv4Addr], remote: SocketAddr, count: usize) -> io::Result<Self> {
        let mut flood = Self { connections: Vec::new(), refused: 0 };
        for number in 0..count {
            match connect(hosts[number % hosts.len()], remote) {
                Ok(stream) => {
                    stream.set_nonblocking(true)?;
                    flood.connections.push(Sender { stream, sent: 0, ended: false });
                }
                Err(_) => flood.refused += 1,
            }
        }
        Ok(flood)
    }

    /// Sends `bytes` on every connection, repeatedly if `again`, until the server accepts no more on any of them, or
    /// until the end.
    pub fn send(&mut self, bytes: &[u8], most: u64, stop: &Stop) {
        let mut progress = Instant::now();
        while !stop.is_now() && progress.elapsed() < STALLED {
            let mut moved = false;
            for sender in self.connections.iter_mut().filter(|sender| !sender.ended && sender.sent < most) {
                let at = (sender.sent % bytes.len() as u64) as usize;
                let left = (most - sender.sent).min((bytes.len() - at) as u64) as usize;
                match sender.stream.write(&bytes[at..at + left]) {
                    Ok(sent) => {
                        sender.sent += sent as u64;
                        moved |= sent > 0;
                    }
                    Err(error) => sender.ended |= error.kind() != ErrorKind::WouldBlock,
                }
            }
            if moved {
                progress = Instant::now();
            } else {
                thread::sleep(Duration::from_millis(5));
            }
        }
    }

    /// Returns the number of open connections, and discards received bytes if `reads`.
    pub fn living(&mut self, reads: bool) -> usize {
        let mut room = [0; 4096];
        for sender in &mut self.connections {
            loop {
                let seen = if reads { sender.stream.read(&mut room) } else { sender.stream.peek(&mut room) };
                match seen {
                    Ok(0) => sender.ended = true,
                    Ok(_) if reads => continue,
                    Ok(_) => {}
                    Err(error) => sender.ended |= error.kind() != ErrorKind::WouldBlock,
                }
                break;
            }
        }
        self.connections.iter().filter(|sender| !sender.ended).count()
    }

    fn told(&mut self) -> String {
        let sent: u64 = self.connections.iter().map(|sender| sender.sent).sum();
        let made = self.connections.len();
        let (living, refused) = (self.living(false), self.refused);
        format!("{made} connections, {living} living, {refused} refused, {} MiB sent", sent >> 20)
    }
}

/// Sends records without their last word.
pub fn half_sent(target: &Target, stop: &Stop) -> io::Result<String> {
    send_halves(ADMITTED, target, stop)
}

/// Does the same from a host that no export admits.
pub fn half_sent_by_others(target: &Target, stop: &Stop) -> io::Result<String> {
    send_halves(UNADMITTED, target, stop)
}

fn send_halves(host: Ipv4Addr, target: &Target, stop: &Stop) -> io::Result<String> {
    let mut record = marker(RECORD).to_vec();
    record.extend(v3::write(1, &[0; 32], 0, 0).0);
    record.resize(4 + RECORD - 4, 0);
    let mut flood = Flood::connect(&[host], target.tcp, 400)?;
    flood.send(&record, record.len() as u64, stop);
    stop.wait();
    Ok(flood.told())
}

/// Sends READs and does not receive the replies. Short replies are copied, so each uses its own memory.
pub fn unread(target: &Target, stop: &Stop) -> io::Result<String> {
    let (_stream, file) = v3::file(connect(ADMITTED, target.tcp)?, "/memory", "unread", 64 << 10)?;
    let calls: Vec<u8> = (0..64).flat_map(|xid| record(&v3::read(xid, &file, 0, 1000).0)).collect();
    let mut flood = Flood::connect(&[ADMITTED], target.tcp, 200)?;
    flood.send(&calls, 8 << 20, stop);
    stop.wait();
    Ok(flood.told())
}

/// Sends WRITEs and does not receive the replies.
pub fn pipelined(target: &Target, stop: &Stop) -> io::Result<String> {
    pipeline(ADMITTED, target, stop)
}

/// Does the same from a host that no export admits.
pub fn pipelined_by_others(target: &Target, stop: &Stop) -> io::Result<String> {
    pipeline(UNADMITTED, target, stop)
}

fn pipeline(host: Ipv4Addr, target: &Target, stop: &Stop) -> io::Result<String> {
    let (_stream, file) = v3::file(connect(ADMITTED, target.tcp)?, "/posix", "pipelined", 4096)?;
    let call = record(&v3::write(1, &file, 0, 1 << 20).0);
    let mut flood = Flood::connect(&[host], target.tcp, 100)?;
    flood.send(&call, 64 << 20, stop);
    stop.wait();
    Ok(flood.told())
}

/// Sends calls byte by byte.
pub fn slow(target: &Target, stop: &Stop) -> io::Result<String> {
    let call = record(&v3::read(1, &[7; 32], 0, 4096).0);
    let mut flood = Flood::connect(&[ADMITTED, UNADMITTED], target.tcp, 500)?;
    let mut length = 0;
    while !stop.is_now() {
        length += 1;
        flood.send(&call, length, &Stop::after(Duration::from_millis(50)));
        thread::sleep(Duration::from_millis(950));
    }
    Ok(flood.told())
}

/// Opens connections and sends nothing. A third of them comes from a host that is not admitted.
pub fn idle(target: &Target, stop: &Stop) -> io::Result<String> {
    let mut flood = Flood::connect(&[ADMITTED, ADMITTED, UNADMITTED], target.tcp, CONNECTIONS + 200)?;
    stop.wait();
    Ok(flood.told())
}

/// Opens connections on both ports and resets them at once.
pub fn reset(target: &Target, stop: &Stop) -> io::Result<String> {
    let mut made = 0u64;
    while !stop.is_now() {
        for remote in [target.tcp, target.rdma] {
            if let Ok(mut stream) = connect(ADMITTED, remote) {
                if made.is_multiple_of(3) {
                    let _ = stream.write_all(&marker(RECORD));
                }
                SockRef::from(&stream).set_linger(Some(Duration::ZERO))?;
                made += 1;
            }
        }
    }
    Ok(format!("{made} connections"))
}

/// Sends stable writes, each of which costs a sync, as fast as they are answered.
pub fn small_writes(target: &Target, stop: &Stop) -> io::Result<String> {
    let (_stream, file) = v3::file(connect(ADMITTED, target.tcp)?, "/posix", "small", 4096)?;
    let calls: Vec<u8> = (0..64).flat_map(|xid| record(&v3::write(xid, &file, u64::from(xid) * 512, 512).0)).collect();
    let mut flood = Flood::connect(&[ADMITTED], target.tcp, 100)?;
    let mut rounds = 0u64;
    while !stop.is_now() {
        rounds += 1;
        // The socket buffers bound the outstanding calls: a round is sent as far as the server accepts it.
        flood.send(&calls, rounds * calls.len() as u64, &Stop::after(Duration::from_millis(20)));
        flood.living(true);
    }
    Ok(flood.told())
}

/// The length of a record, a little below the server's maximum.
const RECORD: usize = 2 << 20;
/// The server is taken to receive nothing more after this time.
const STALLED: Duration = Duration::from_millis(500);
