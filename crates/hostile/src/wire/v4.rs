//! NFS versions 4.0 to 4.2 (RFC 7530, RFC 8881, RFC 7862): compounds, sessions, and operations to mutate.

use std::{io, net::TcpStream};

use super::{
    Reader, Xdr,
    rpc::{call, exchange},
    v3::NFS,
};

/// A session of NFSv4.1.
#[derive(Clone, Debug)]
pub struct Session {
    /// The client ID.
    pub client: u64,
    /// The session ID.
    pub id: [u8; 16],
    /// The number of its slots.
    pub slots: u32,
}

/// Encodes a COMPOUND with `count` operations, which follow.
pub fn compound(xid: u32, minor: u32, tag: &[u8], count: u32) -> Xdr {
    call(xid, NFS, 4, 1).opaque(tag).u32(minor).u32(count)
}

/// Encodes a single EXCHANGE_ID (RFC 8881 §18.35) with SP4_NONE.
pub fn exchange_id(xid: u32, verifier: u64, owner: &[u8]) -> Xdr {
    compound(xid, 1, b"", 1).u32(EXCHANGE_ID).u64(verifier).opaque(owner).u32(0).u32(0).u32(0)
}

/// CREATE_SESSION alone (§18.36). It asks for the maximum of every limit.
pub fn create_session(xid: u32, client: u64, sequence: u32) -> Xdr {
    let channel = |xdr: Xdr| xdr.u32(0).u32(2 << 20).u32(2 << 20).u32(2 << 20).u32(1024).u32(1024).u32(0);
    let head = compound(xid, 1, b"", 1).u32(CREATE_SESSION).u64(client).u32(sequence).u32(0);
    channel(channel(head)).u32(0x4000_0000).u32(1).u32(0)
}

/// Encodes a single DESTROY_CLIENTID (§18.50).
pub fn destroy_clientid(xid: u32, client: u64) -> Xdr {
    compound(xid, 1, b"", 1).u32(57).u64(client)
}

/// Encodes a single DESTROY_SESSION (§18.37).
pub fn destroy_session(xid: u32, session: &[u8; 16]) -> Xdr {
    compound(xid, 1, b"", 1).u32(44).fixed(session)
}

/// Encodes SEQUENCE (§18.46) as the first of `count` operations; the others follow. The reply is to be cached.
pub fn sequence(xid: u32, tag: &[u8], session: &Session, slot: u32, sequence: u32, count: u32) -> Xdr {
    compound(xid, 1, tag, count).u32(53).fixed(&session.id).u32(sequence).u32(slot).u32(session.slots - 1).u32(1)
}

/// Returns the client ID and its sequence ID from the results of EXCHANGE_ID.
pub fn exchanged(results: &[u8]) -> Option<(u64, u32)> {
    let mut reader = succeeded(results)?;
    Some((reader.u64()?, reader.u32()?))
}

/// Returns the session from the results of CREATE_SESSION.
pub fn created(results: &[u8], client: u64) -> Option<Session> {
    let mut reader = succeeded(results)?;
    let id = reader.fixed(16)?.try_into().expect("length must match");
    let _sequence_and_flags = reader.u64()?;
    // Skip padding, request, response, cached response, operations. The slots follow.
    reader.fixed(20)?;
    Some(Session { client, id, slots: reader.u32()?.clamp(1, 1024) })
}

/// Returns the status of a compound.
pub fn status(results: &[u8]) -> Option<u32> {
    Reader(results).u32()
}

/// Returns the result of the only operation of a compound, if its status is OK.
fn succeeded(results: &[u8]) -> Option<Reader<'_>> {
    let mut reader = Reader(results);
    let status = reader.u32()?;
    reader.opaque()?;
    let (_count, _operation, of_operation) = (reader.u32()?, reader.u32()?, reader.u32()?);
    (status == 0 && of_operation == 0).then_some(reader)
}

/// Creates a client and its session.
///
/// # Errors
/// The server rejects either, or the connection ends.
pub fn session(stream: &mut TcpStream, owner: &[u8]) -> io::Result<Session> {
    let results = exchange(stream, &exchange_id(1, 1, owner))?;
    let (client, sequence) = exchanged(&results).ok_or_else(|| refused("EXCHANGE_ID", &results))?;
    let results = exchange(stream, &create_session(2, client, sequence))?;
    created(&results, client).ok_or_else(|| refused("CREATE_SESSION", &results))
}

fn refused(what: &str, results: &[u8]) -> io::Error {
    io::Error::other(format!("{what}: status {:?}", status(results)))
}

/// Operations with well-formed or nearly well-formed arguments: each is an operation number and its arguments.
pub fn operations(handle: &[u8]) -> Vec<Xdr> {
    let operation = |number| Xdr::default().u32(number);
    let stateid = |xdr: Xdr| xdr.u32(1).fixed(&[0; 12]);
    let bitmap = |xdr: Xdr| xdr.u32(2).u32(0xffff_ffff).u32(0xffff_ffff);
    let attributes = |xdr: Xdr| xdr.u32(2).u32(0).u32(2).opaque(&0o644u32.to_be_bytes());
    let name = b"v4";
    let mut operations = vec![
        operation(3).u32(0x3f),
        stateid(operation(4).u32(1)),
        operation(5).u64(0).u32(0),
        attributes(operation(6).u32(2).opaque(name)),
        operation(7).u64(0),
        stateid(operation(8)),
        bitmap(operation(9)),
        operation(10),
        operation(11).opaque(name),
        stateid(operation(12).u32(1).u32(0).u64(0).u64(9).u32(0)).u32(0).u64(0),
        operation(13).u32(1).u64(0).u64(9).u64(0).opaque(name),
        stateid(operation(14).u32(1).u32(0)).u64(0).u64(9),
        operation(15).opaque(name),
        operation(16),
        attributes(operation(17)),
        operation(18).u32(0).u32(3).u32(0).u64(0).opaque(name).u32(0).u32(0).opaque(name),
        operation(19).u32(1),
        stateid(operation(20)).u32(0),
        stateid(operation(21).u32(0)).u32(1).u32(0),
        operation(22).opaque(handle),
        operation(23),
        operation(24),
        stateid(operation(25)).u64(0).u32(4096),
        bitmap(operation(26).u64(0).u64(0).u32(4096).u32(8192)),
        operation(27),
        operation(28).opaque(name),
        operation(29).opaque(name).opaque(b"other"),
        operation(30).u64(0),
        operation(31),
        operation(32),
        operation(33).opaque(name),
        attributes(stateid(operation(34))),
        operation(35).u64(7).opaque(name).u32(0x4000_0000).opaque(b"tcp").opaque(b"127.0.0.1.8.1").u32(1),
        operation(36).u64(7).u64(7),
        attributes(operation(37)),
        stateid(operation(38).u32(2)).u64(0).u32(2).opaque(&[0; 64]),
        operation(39).u64(7).opaque(name),
    ];
    operations.extend((40..=75).map(|number| {
        let with_stateid = stateid(operation(number)).u64(0).u64(4096);
        Xdr::default().fixed(&with_stateid.0).u64(7).opaque(name).u32(1).u32(0)
    }));
    operations
}

const EXCHANGE_ID: u32 = 42;
const CREATE_SESSION: u32 = 43;
