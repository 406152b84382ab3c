//! NFS version 3, MOUNT (RFC 1813), NLM version 4, NSM and NFS_ACL: the calls of attacks, and one well-formed call of
//! every procedure.

use std::{io, net::TcpStream};

use super::{
    Reader, Xdr,
    rpc::{call, exchange},
};

/// The program number of NFS.
pub const NFS: u32 = 100_003;
/// The program number of MOUNT.
pub const MOUNT: u32 = 100_005;

/// Returns the handle of an export's root.
///
/// # Errors
/// The server does not give it to this host.
pub fn mount(stream: &mut TcpStream, export: &str) -> io::Result<Vec<u8>> {
    let results = exchange(stream, &call(1, MOUNT, 3, 1).opaque(export.as_bytes()))?;
    let mut reader = Reader(&results);
    match (reader.u32(), reader.opaque()) {
        (Some(0), Some(handle)) => Ok(handle.to_vec()),
        (status, _) => Err(io::Error::other(format!("MNT {export}: {status:?}"))),
    }
}

/// Creates a file (UNCHECKED) that only its owner can read. Returns its handle.
///
/// # Errors
/// The server refuses.
pub fn create(stream: &mut TcpStream, directory: &[u8], name: &str) -> io::Result<Vec<u8>> {
    let results = exchange(stream, &attributes(create_call(2, directory, name)))?;
    let mut reader = Reader(&results);
    match (reader.u32(), reader.u32(), reader.opaque()) {
        (Some(0), Some(1), Some(handle)) => Ok(handle.to_vec()),
        (status, ..) => Err(io::Error::other(format!("CREATE {name}: {status:?}"))),
    }
}

fn create_call(xid: u32, directory: &[u8], name: &str) -> Xdr {
    call(xid, NFS, 3, 8).opaque(directory).opaque(name.as_bytes()).u32(0)
}

/// Appends a `sattr3` that sets a mode.
fn attributes(xdr: Xdr) -> Xdr {
    xdr.u32(1).u32(0o600).u32(0).u32(0).u32(0).u32(0).u32(0)
}

/// Encodes a READ.
pub fn read(xid: u32, file: &[u8], offset: u64, count: u32) -> Xdr {
    call(xid, NFS, 3, 6).opaque(file).u64(offset).u32(count)
}

/// Encodes a WRITE of zeros with FILE_SYNC.
pub fn write(xid: u32, file: &[u8], offset: u64, len: usize) -> Xdr {
    call(xid, NFS, 3, 7).opaque(file).u64(offset).u32(len as u32).u32(2).opaque(&vec![0; len])
}

/// Creates a file of `len` bytes in the export. Returns the connection and the handle.
///
/// # Errors
/// The server refuses.
pub fn file(mut stream: TcpStream, export: &str, name: &str, len: usize) -> io::Result<(TcpStream, Vec<u8>)> {
    let root = mount(&mut stream, export)?;
    let file = create(&mut stream, &root, name)?;
    for offset in (0..len).step_by(64 << 10) {
        exchange(&mut stream, &write(3, &file, offset as u64, (64 << 10).min(len - offset)))?;
    }
    Ok((stream, file))
}

/// Returns one well-formed call of every procedure of NFS, MOUNT and NFS_ACL, on a directory and a file.
pub fn every_procedure(directory: &[u8], file: &[u8]) -> Vec<Xdr> {
    let nfs = |procedure| call(0, NFS, 3, procedure);
    let mut calls = vec![
        nfs(0),
        nfs(1).opaque(file),
        attributes(nfs(2).opaque(file)).u32(0),
        nfs(3).opaque(directory).opaque(b"name"),
        nfs(4).opaque(file).u32(0x3f),
        nfs(5).opaque(file),
        nfs(6).opaque(file).u64(0).u32(4096),
        write(0, file, 0, 512),
        attributes(create_call(0, directory, "new")),
        attributes(nfs(9).opaque(directory).opaque(b"dir")),
        attributes(nfs(10).opaque(directory).opaque(b"link")).opaque(b"target"),
        attributes(nfs(11).opaque(directory).opaque(b"fifo").u32(7)),
        nfs(12).opaque(directory).opaque(b"new"),
        nfs(13).opaque(directory).opaque(b"dir"),
        nfs(14).opaque(directory).opaque(b"link").opaque(directory).opaque(b"link2"),
        nfs(15).opaque(file).opaque(directory).opaque(b"hard"),
        nfs(16).opaque(directory).u64(0).u64(0).u32(8192),
        nfs(17).opaque(directory).u64(0).u64(0).u32(1024).u32(8192),
        nfs(18).opaque(directory),
        nfs(19).opaque(directory),
        nfs(20).opaque(directory),
        nfs(21).opaque(file).u64(0).u32(0),
    ];
    calls.extend((0..=5).map(|procedure| call(0, MOUNT, 3, procedure).opaque(b"/memory")));
    let acl = |procedure| call(0, ACL, 3, procedure).opaque(file).u32(0xf);
    calls.extend([acl(0), acl(1), acl(2).u32(1).u32(1).u32(1).u32(0).u32(6).u32(0).u32(0)]);
    calls
}

/// Returns calls of NLM version 4 (the X/Open specification XNFS) and NSM, including the asynchronous procedures.
pub fn locking(file: &[u8]) -> Vec<Xdr> {
    let lock = |xdr: Xdr| xdr.opaque(b"hostile").opaque(file).opaque(b"owner").u32(7).u64(0).u64(10);
    let nlm = |procedure| call(0, NLM, 4, procedure).opaque(b"cookie");
    let mut calls = Vec::new();
    for asynchronous in [0, 5] {
        calls.extend([
            lock(nlm(1 + asynchronous).u32(1)),
            lock(nlm(2 + asynchronous).u32(0).u32(1)).u32(0).u32(1),
            lock(nlm(3 + asynchronous).u32(0).u32(1)),
            lock(nlm(4 + asynchronous)),
            lock(nlm(5 + asynchronous).u32(1)),
        ]);
    }
    calls.extend((11..=15).map(|procedure| nlm(procedure).u32(0).u32(0)));
    let share = |procedure| nlm(procedure).opaque(b"hostile").opaque(file).opaque(b"owner").u32(1).u32(1).u32(0);
    calls.extend([
        share(20),
        share(21),
        lock(nlm(22).u32(1)).u32(0).u32(1),
        call(0, NLM, 4, 23).opaque(b"hostile").u32(3),
    ]);
    let nsm = |procedure| call(0, NSM, 1, procedure).opaque(b"hostile");
    let monitor = nsm(2).opaque(b"me").u32(NLM).u32(4).u32(16).fixed(&[0; 16]);
    calls.extend([nsm(1), monitor, nsm(3).u32(7), nsm(6).u32(8)]);
    calls
}

/// Encodes MON: `program` asks for a notification when the host `name` restarts.
pub fn monitor(xid: u32, name: &str, program: u32) -> Xdr {
    let who = call(xid, NSM, 1, 2).opaque(name.as_bytes()).opaque(b"me");
    who.u32(program).u32(1).u32(1).fixed(&[0; 16])
}

/// Encodes NOTIFY: the host `name` has restarted.
pub fn notify(xid: u32, name: &str, state: u32) -> Xdr {
    call(xid, NSM, 1, 6).opaque(name.as_bytes()).u32(state)
}

/// Returns calls of rpcbind, versions 2 to 4 (RFC 1833).
pub fn rpcbind() -> Vec<Xdr> {
    let mut calls =
        vec![call(0, RPCBIND, 2, 0), call(0, RPCBIND, 2, 3).u32(NFS).u32(3).u32(6).u32(0), call(0, RPCBIND, 2, 4)];
    let binding = |xdr: Xdr| xdr.u32(NFS).u32(3).opaque(b"tcp").opaque(b"127.0.0.1.8.1").opaque(b"root");
    for version in [3, 4] {
        calls.extend((0..=12).map(|procedure| binding(call(0, RPCBIND, version, procedure))));
    }
    calls
}

const RPCBIND: u32 = 100_000;
const ACL: u32 = 100_227;
const NLM: u32 = 100_021;
const NSM: u32 = 100_024;
