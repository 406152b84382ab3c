//! ONC RPC version 2 (RFC 5531), over TCP with record marking (§11) and over UDP.

use std::{
    io::{self, Read, Write},
    net::{Ipv4Addr, SocketAddr, TcpStream},
    time::Duration,
};

use socket2::{Domain, Socket, Type};

use super::{Reader, Xdr};

/// Encodes the header of a call with AUTH_SYS as root. The arguments follow it.
pub fn call(xid: u32, program: u32, version: u32, procedure: u32) -> Xdr {
    let credential = Xdr::default().u32(0).opaque(b"hostile").u32(0).u32(0).u32(0);
    head(xid, program, version, procedure).u32(1).opaque(&credential.0).u32(0).u32(0)
}

/// Changes the user of a call by [`call`].
pub fn by_user(call: &mut [u8], user: u32) {
    if let Some(identity) = call.get_mut(IDENTITY..IDENTITY + 8) {
        identity[..4].copy_from_slice(&user.to_be_bytes());
        identity[4..].copy_from_slice(&user.to_be_bytes());
    }
}

/// The head of a call by AUTH_NONE.
pub fn anonymous_call(xid: u32, program: u32, version: u32, procedure: u32) -> Xdr {
    head(xid, program, version, procedure).u32(0).u32(0).u32(0).u32(0)
}

fn head(xid: u32, program: u32, version: u32, procedure: u32) -> Xdr {
    Xdr::default().u32(xid).u32(0).u32(2).u32(program).u32(version).u32(procedure)
}

/// Returns a record of one fragment.
pub fn record(message: &[u8]) -> Vec<u8> {
    let mut record = marker(message.len()).to_vec();
    record.extend(message);
    record
}

/// Encodes the record mark of a last fragment of this length.
pub fn marker(len: usize) -> [u8; 4] {
    (1 << 31 | len as u32).to_be_bytes()
}

/// Returns the results of an accepted and successful reply; `None` for any other reply.
pub fn results(reply: &[u8]) -> Option<&[u8]> {
    let mut reader = Reader(reply);
    let (_xid, kind, accepted, _flavor) = (reader.u32()?, reader.u32()?, reader.u32()?, reader.u32()?);
    reader.opaque()?;
    let status = reader.u32()?;
    (kind == 1 && accepted == 0 && status == 0).then_some(reader.0)
}

/// Connects to `remote` from this address of the loopback. Each address is a different host to the server.
pub fn connect(from: Ipv4Addr, remote: SocketAddr) -> io::Result<TcpStream> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
    socket.bind(&SocketAddr::from((from, 0)).into())?;
    socket.connect_timeout(&remote.into(), CONNECT_LIMIT)?;
    let stream = TcpStream::from(socket);
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(REPLY_LIMIT))?;
    stream.set_write_timeout(Some(REPLY_LIMIT))?;
    Ok(stream)
}

/// Sends a call and waits for its results.
///
/// # Errors
/// The connection ends, or the call fails.
pub fn exchange(stream: &mut TcpStream, call: &Xdr) -> io::Result<Vec<u8>> {
    stream.write_all(&record(&call.0))?;
    let reply = receive(stream)?;
    results(&reply).map(<[u8]>::to_vec).ok_or_else(|| io::Error::other("the call did not succeed"))
}

/// Receives one record.
///
/// # Errors
/// The connection ends, or sends no valid record.
pub fn receive(stream: &mut TcpStream) -> io::Result<Vec<u8>> {
    let mut whole = Vec::new();
    loop {
        let mut mark = [0; 4];
        stream.read_exact(&mut mark)?;
        let mark = u32::from_be_bytes(mark);
        let (last, len) = (mark >> 31 == 1, (mark & !(1 << 31)) as usize);
        if whole.len() + len > RECORD_MAX {
            return Err(io::Error::other("a reply of more than 4 MiB"));
        }
        let from = whole.len();
        whole.resize(from + len, 0);
        stream.read_exact(&mut whole[from..])?;
        if last {
            return Ok(whole);
        }
    }
}

/// The bytes of the header of a [`call`]: six words, the credential, and an empty verifier.
pub const HEADER: usize = 24 + 8 + 28 + 8;
/// The offset of the user and group in a [`call`]: behind the stamp and the machine name of the credential.
const IDENTITY: usize = 24 + 8 + 4 + 12;
const CONNECT_LIMIT: Duration = Duration::from_secs(2);
const REPLY_LIMIT: Duration = Duration::from_secs(5);
const RECORD_MAX: usize = 4 << 20;
