//! A TCP relay that counts the calls through it.

use std::{
    io::{self, Read, Write},
    net::{TcpListener, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    thread,
};

/// The relay, which runs until the process ends.
pub struct Counted {
    pub port: u16,
    calls: Arc<AtomicU64>,
}

impl Counted {
    /// Listens for connections that are relayed to this port of the same machine.
    pub fn before(port: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let relay = Self { port: listener.local_addr().unwrap().port(), calls: Arc::default() };
        let calls = relay.calls.clone();
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let server = TcpStream::connect(("127.0.0.1", port)).unwrap();
                // A record is written in two parts.
                server.set_nodelay(true).unwrap();
                let (mut back, mut forth) = (server.try_clone().unwrap(), client.try_clone().unwrap());
                thread::spawn(move || {
                    let _ = io::copy(&mut back, &mut forth);
                });
                let calls = calls.clone();
                thread::spawn(move || relay_records(client, server, &calls));
            }
        });
        relay
    }

    /// Returns the number of calls so far.
    pub fn calls(&self) -> u64 {
        self.calls.load(Relaxed)
    }
}

/// RFC 5531 §11: a fragment begins with four bytes of length, with a mark on the last one; a message begins with its
/// XID and its type.
fn relay_records(mut from: TcpStream, mut to: TcpStream, calls: &AtomicU64) -> io::Result<()> {
    let (mut head, mut first) = ([0; 4], true);
    loop {
        from.read_exact(&mut head)?;
        let word = u32::from_be_bytes(head);
        let mut fragment = vec![0; (word & 0x7fff_ffff) as usize];
        from.read_exact(&mut fragment)?;
        if first && fragment.get(4..8) == Some(&[0; 4]) {
            calls.fetch_add(1, Relaxed);
        }
        first = word >> 31 == 1;
        to.write_all(&head)?;
        to.write_all(&fragment)?;
    }
}
