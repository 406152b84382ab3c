//! A TCP relay that forwards only a limited number of reply bytes.

use std::{
    io::{self, Read, Write},
    net::{TcpListener, TcpStream},
    sync::{Arc, Condvar, Mutex},
    thread,
};

/// The relay, which runs until the process ends.
pub struct Metered {
    pub port: u16,
    left: Arc<(Mutex<u64>, Condvar)>,
}

impl Metered {
    /// Listens for connections that are relayed to this port of the same machine. No reply bytes are allowed yet.
    pub fn before(port: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let relay = Self { port: listener.local_addr().unwrap().port(), left: Arc::default() };
        let left = relay.left.clone();
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let server = TcpStream::connect(("127.0.0.1", port)).unwrap();
                let (mut forth, mut to) = (client.try_clone().unwrap(), server.try_clone().unwrap());
                thread::spawn(move || io::copy(&mut forth, &mut to));
                let left = left.clone();
                thread::spawn(move || pass(server, client, &left));
            }
        });
        relay
    }

    /// Allows this many more reply bytes, over all connections together.
    pub fn allow(&self, bytes: u64) {
        let mut left = self.left.0.lock().unwrap();
        *left = left.saturating_add(bytes);
        self.left.1.notify_all();
    }
}

fn pass(mut from: TcpStream, mut to: TcpStream, left: &(Mutex<u64>, Condvar)) -> io::Result<()> {
    let mut buffer = vec![0; 64 << 10];
    loop {
        let len = from.read(&mut buffer)?;
        if len == 0 {
            return to.shutdown(std::net::Shutdown::Write);
        }
        let mut left_now = left.1.wait_while(left.0.lock().unwrap(), |left| *left < len as u64).unwrap();
        *left_now -= len as u64;
        drop(left_now);
        to.write_all(&buffer[..len])?;
    }
}
