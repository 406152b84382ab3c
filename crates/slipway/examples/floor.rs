//! A server with the least work that a process needs for each call: the user-space floor of `cargo xtask compare --knfsd`.
//!
//! ```sh
//! floor 127.0.0.1:4049 127.0.0.1:5049 FILE DIRECTORY
//! ```
//!
//! It stands between a client and a complete NFS server. It forwards every call until it has the server's reply to a call
//! of the same kind on the same connection, and from then on answers such calls itself: with that reply, in which it changes the XID and the
//! slot. Nothing is checked, allocated or locked. One thread waits with `epoll_wait`, receives all calls that have
//! arrived, makes the system calls that the operation needs, and sends all replies at once. READ and WRITE use FILE at the
//! offset of the call, and CREATE and REMOVE use DIRECTORY.
//!
//! The answered kinds are GETATTR, READ, WRITE, CREATE and REMOVE of version 3, and the READ and WRITE of Linux's client of
//! version 4.1 and 4.2. The server does not see the answered requests of a slot, so the sequence IDs of the others are
//! changed on the way.

use std::{
    collections::HashMap,
    env, fs, io,
    net::{TcpListener, TcpStream},
    os::fd::{AsFd, BorrowedFd},
};

use rustix::{
    buffer::spare_capacity,
    event::epoll::{self, CreateFlags, EventData, EventFlags},
    fs::{AtFlags, Mode, OFlags, openat, unlinkat},
    io::{pread, pwrite},
    net::{RecvFlags, SendFlags, recv, send},
};

/// The files that the operations use.
struct Files {
    file: fs::File,
    len: u64,
    directory: fs::File,
}

/// The part of an operation that its system calls need.
enum Work<'a> {
    GetAttr,
    Read { offset: u64 },
    Write { offset: u64, data: &'a [u8] },
    Create { name: &'a [u8] },
    Remove { name: &'a [u8] },
}

/// A call that can be answered with a learned reply.
struct Operation<'a> {
    /// The version, the procedure or operation, the file handle, and the length of the data of a READ.
    kind: (u32, u32, &'a [u8], usize),
    work: Work<'a>,
}

type Kind = (u32, u32, Vec<u8>, usize);

/// A slot of NFSv4.1 in a request or a reply.
#[derive(Clone, Copy)]
struct Slot {
    session: [u8; 16],
    number: u32,
    sequence: u32,
    /// The position of the sequence ID in the record. The number of the slot follows it.
    at: usize,
}

/// A forwarded call.
struct Forwarded {
    kind: Option<Kind>,
    sequence: Option<u32>,
    data_len: usize,
}

/// A connection of a client with its connection to the server.
struct Connection {
    client: TcpStream,
    server: TcpStream,
    calls: Stage,
    replies: Stage,
    forwarded: HashMap<u32, Forwarded>,
    /// The replies without the data of a READ. There are few kinds, so they are searched one by one.
    learned: Vec<(Kind, Vec<u8>)>,
}

/// The state that all connections share.
struct Floor {
    files: Files,
    /// The last sequence ID that the server has seen in each slot.
    slots: HashMap<([u8; 16], u32), u32>,
    out: Out,
}

/// The replies of one turn.
struct Out {
    bytes: Vec<u8>,
    len: usize,
}

/// Received bytes.
struct Stage {
    bytes: Vec<u8>,
    start: usize,
}

fn main() -> io::Result<()> {
    let arguments: Vec<_> = env::args().skip(1).collect();
    let [listen, server, file, directory] = &arguments[..] else {
        return Err(io::Error::other("usage: floor LISTEN SERVER FILE DIRECTORY"));
    };
    let file = fs::File::options().read(true).write(true).open(file)?;
    let files = Files { len: file.metadata()?.len(), file, directory: fs::File::open(directory)? };
    let out = Out { bytes: vec![0; OUT_MAX], len: 0 };
    let mut floor = Floor { files, slots: HashMap::new(), out };
    let listener = TcpListener::bind(listen)?;
    let epoll = epoll::create(CreateFlags::CLOEXEC)?;
    let watch = |fd: BorrowedFd<'_>, number| epoll::add(&epoll, fd, EventData::new_u64(number), EventFlags::IN);
    watch(listener.as_fd(), LISTENER)?;
    let mut connections: Vec<Option<Connection>> = Vec::new();
    let mut events = Vec::with_capacity(64);
    loop {
        events.clear();
        epoll::wait(&epoll, spare_capacity(&mut events), None)?;
        for event in &events {
            let number = event.data.u64();
            if number == LISTENER {
                let connection = Connection::accept(&listener, server)?;
                let next = 2 * connections.len() as u64;
                watch(connection.client.as_fd(), next)?;
                watch(connection.server.as_fd(), next + 1)?;
                connections.push(Some(connection));
                continue;
            }
            let slot = &mut connections[number as usize / 2];
            let Some(connection) = slot else { continue };
            let served = if number % 2 == 0 { floor.calls(connection) } else { floor.replies(connection) };
            if !served.unwrap_or(false) {
                *slot = None;
            }
        }
    }
}

impl Connection {
    fn accept(listener: &TcpListener, server: &str) -> io::Result<Self> {
        let (client, server) = (listener.accept()?.0, TcpStream::connect(server)?);
        client.set_nodelay(true)?;
        server.set_nodelay(true)?;
        let (calls, replies) = (Stage::new(), Stage::new());
        Ok(Self { client, server, calls, replies, forwarded: HashMap::new(), learned: Vec::new() })
    }
}

impl Floor {
    /// Handles the records that have arrived from a client. Returns `false` if the connection is closed.
    fn calls(&mut self, connection: &mut Connection) -> io::Result<bool> {
        if !connection.calls.receive(&connection.client)? {
            return Ok(false);
        }
        while let Some(record) = connection.calls.next() {
            let (slot, operation) = parse(record).unwrap_or_default();
            if let Some(operation) = &operation
                && self.answer(record, slot, operation, (&connection.client, &connection.learned))?
            {
                continue;
            }
            let mut record = record.to_vec();
            let mut forwarded = Forwarded { kind: None, sequence: None, data_len: 0 };
            if let Some(Operation { kind: (version, number, handle, data_len), .. }) = operation {
                forwarded.kind = Some((version, number, handle.to_vec(), data_len));
                forwarded.data_len = data_len;
            }
            if let Some(slot) = slot {
                let sequence = self.slots.entry((slot.session, slot.number)).or_default();
                *sequence += 1;
                record[slot.at..slot.at + 4].copy_from_slice(&sequence.to_be_bytes());
                forwarded.sequence = Some(slot.sequence);
            }
            connection.forwarded.insert(word(&record, 4), forwarded);
            send_all(&connection.server, &record)?;
        }
        self.out.send(&connection.client)?;
        Ok(true)
    }

    /// Handles the records that have arrived from the server. Returns `false` if the connection is closed.
    fn replies(&mut self, connection: &mut Connection) -> io::Result<bool> {
        if !connection.replies.receive(&connection.server)? {
            return Ok(false);
        }
        while let Some(record) = connection.replies.next() {
            let is_reply = word(record, 8) == 1;
            let forwarded = if is_reply { connection.forwarded.remove(&word(record, 4)) } else { None };
            let mut record = record.to_vec();
            if let Some(Forwarded { kind, sequence, data_len }) = forwarded {
                if let (Some(sequence), Some(at)) = (sequence, sequence_in_reply(&record)) {
                    record[at..at + 4].copy_from_slice(&sequence.to_be_bytes());
                }
                // A READ at the end of a file returns less, and is not learned.
                let head = record.len().saturating_sub(data_len);
                let is_whole = head > HEADER && (data_len == 0 || word(&record, head - 4) as usize == data_len);
                if let Some(kind) = kind
                    && is_whole
                    && word(&record, HEADER) == 0
                {
                    connection.learned.retain(|(other, _)| *other != kind);
                    connection.learned.push((kind, record[..head].to_vec()));
                }
            }
            send_all(&connection.client, &record)?;
        }
        Ok(true)
    }

    /// Appends the reply to a call, if one is learned. Returns `false` if the call must be forwarded.
    fn answer(
        &mut self,
        call: &[u8],
        slot: Option<Slot>,
        operation: &Operation<'_>,
        (client, learned): (&TcpStream, &[(Kind, Vec<u8>)]),
    ) -> io::Result<bool> {
        let (version, number, handle, data_len) = operation.kind;
        let is_kind = |kind: &Kind| (kind.0, kind.1, &kind.2[..], kind.3) == (version, number, handle, data_len);
        let Some((_, reply)) = learned.iter().find(|(kind, _)| is_kind(kind)) else { return Ok(false) };
        if self.out.len + reply.len() + data_len > OUT_MAX {
            self.out.send(client)?;
        }
        let Files { file, len, directory } = &self.files;
        let (head, data) = self.out.room(reply.len(), data_len);
        match operation.work {
            Work::GetAttr => {}
            Work::Read { offset } => drop(pread(file, data, offset % len)?),
            Work::Write { offset, data } => drop(pwrite(file, data, offset % len)?),
            Work::Create { name } => {
                let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY;
                if openat(directory, name, flags, Mode::from(0o644)).is_err() {
                    return Ok(false);
                }
            }
            Work::Remove { name } => {
                // The server has created the files before it was known how to answer.
                if unlinkat(directory, name, AtFlags::empty()).is_err() {
                    return Ok(false);
                }
            }
        }
        head.copy_from_slice(reply);
        head[4..8].copy_from_slice(&call[4..8]);
        if let (Some(slot), Some(at)) = (slot, sequence_in_reply(reply)) {
            head[at..at + 8].copy_from_slice(&call[slot.at..slot.at + 8]);
        }
        self.out.len += reply.len() + data_len;
        Ok(true)
    }
}

impl Out {
    /// Returns the memory for a reply and its data.
    fn room(&mut self, head: usize, data: usize) -> (&mut [u8], &mut [u8]) {
        self.bytes[self.len..][..head + data].split_at_mut(head)
    }

    fn send(&mut self, to: &TcpStream) -> io::Result<()> {
        send_all(to, &self.bytes[..self.len])?;
        self.len = 0;
        Ok(())
    }
}

impl Stage {
    fn new() -> Self {
        Self { bytes: Vec::with_capacity(STAGE_MAX), start: 0 }
    }

    /// Receives what has arrived. Returns `false` if the peer has closed the connection.
    fn receive(&mut self, from: &TcpStream) -> io::Result<bool> {
        if self.start > 0 {
            self.bytes.drain(..self.start);
            self.start = 0;
        }
        match recv(from, spare_capacity(&mut self.bytes), RecvFlags::DONTWAIT) {
            Ok((received, _)) => Ok(received > 0),
            Err(rustix::io::Errno::AGAIN) => Ok(true),
            Err(error) => Err(error.into()),
        }
    }

    /// Returns the next whole record, with its mark.
    fn next(&mut self) -> Option<&[u8]> {
        let rest = &self.bytes[self.start..];
        let len = 4 + (u32::from_be_bytes(*rest.first_chunk()?) & !LAST_FRAGMENT) as usize;
        let record = rest.get(..len)?;
        self.start += len;
        Some(record)
    }
}

/// Reads XDR without checks of its meaning.
#[derive(Clone, Copy)]
struct Words<'a> {
    record: &'a [u8],
    at: usize,
}

impl<'a> Words<'a> {
    fn bytes(&mut self, len: usize) -> Option<&'a [u8]> {
        let bytes = self.record.get(self.at..)?.get(..len)?;
        self.at += len.next_multiple_of(4);
        Some(bytes)
    }

    fn u32(&mut self) -> Option<u32> {
        Some(u32::from_be_bytes(*self.bytes(4)?.first_chunk()?))
    }

    fn u64(&mut self) -> Option<u64> {
        Some(u64::from_be_bytes(*self.bytes(8)?.first_chunk()?))
    }

    fn opaque(&mut self) -> Option<&'a [u8]> {
        let len = self.u32()? as usize;
        self.bytes(len)
    }
}

type Parsed<'a> = (Option<Slot>, Option<Operation<'a>>);

/// Returns the slot of a call, and its operation if it is one of those that can be answered.
fn parse(record: &[u8]) -> Option<Parsed<'_>> {
    let mut words = Words { record, at: 8 };
    let (direction, _rpc, program) = (words.u32()?, words.u32()?, words.u32()?);
    let (version, procedure) = (words.u32()?, words.u32()?);
    // Credential and verifier.
    for _ in 0..2 {
        words.u32()?;
        words.opaque()?;
    }
    match (direction, program, version, procedure) {
        (0, NFS, 3, _) => Some((None, parse3(words, procedure))),
        (0, NFS, 4, 1) => parse4(words),
        _ => None,
    }
}

fn parse3(mut words: Words<'_>, procedure: u32) -> Option<Operation<'_>> {
    let handle = words.opaque()?;
    let mut data_len = 0;
    let work = match procedure {
        1 => Work::GetAttr,
        6 => {
            let offset = words.u64()?;
            data_len = words.u32()? as usize;
            Work::Read { offset }
        }
        7 => {
            let offset = words.u64()?;
            // The count and the stability.
            words.bytes(8)?;
            Work::Write { offset, data: words.opaque()? }
        }
        8 => Work::Create { name: words.opaque()? },
        12 => Work::Remove { name: words.opaque()? },
        _ => return None,
    };
    Some(Operation { kind: (3, procedure, handle, data_len), work })
}

fn parse4(mut words: Words<'_>) -> Option<Parsed<'_>> {
    words.opaque()?;
    let (_minor, count) = (words.u32()?, words.u32()?);
    if words.u32()? != SEQUENCE {
        return None;
    }
    let session = *words.bytes(16)?.first_chunk()?;
    let at = words.at;
    let slot = Slot { session, sequence: words.u32()?, number: words.u32()?, at };
    // The highest slot, and whether to cache the reply.
    words.bytes(8)?;
    Some((Some(slot), operation4(words, count)))
}

fn operation4(mut words: Words<'_>, count: u32) -> Option<Operation<'_>> {
    if words.u32()? != PUTFH {
        return None;
    }
    let handle = words.opaque()?;
    let operation = words.u32()?;
    let mut data_len = 0;
    // The stateid follows.
    let work = match (operation, count) {
        (READ, 3) => {
            words.bytes(16)?;
            let offset = words.u64()?;
            data_len = words.u32()? as usize;
            Work::Read { offset }
        }
        (WRITE, 4) => {
            words.bytes(16)?;
            let (offset, _stable) = (words.u64()?, words.u32()?);
            Work::Write { offset, data: words.opaque()? }
        }
        _ => return None,
    };
    Some(Operation { kind: (4, operation, handle, data_len), work })
}

/// Returns the position of the sequence ID in a reply of NFSv4.1, if the reply begins with a result of SEQUENCE.
fn sequence_in_reply(record: &[u8]) -> Option<usize> {
    let mut words = Words { record, at: HEADER + 4 };
    words.opaque()?;
    let (_count, operation, status) = (words.u32()?, words.u32()?, words.u32()?);
    (operation == SEQUENCE && status == 0 && words.record.len() > words.at + 24).then_some(words.at + 16)
}

fn word(record: &[u8], at: usize) -> u32 {
    record.get(at..).and_then(|rest| rest.first_chunk()).map_or(0, |bytes| u32::from_be_bytes(*bytes))
}

fn send_all(to: &TcpStream, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        bytes = &bytes[send(to, bytes, SendFlags::NOSIGNAL)?..];
    }
    Ok(())
}

const LISTENER: u64 = u64::MAX;
const LAST_FRAGMENT: u32 = 1 << 31;
const NFS: u32 = 100_003;
const PUTFH: u32 = 22;
const READ: u32 = 25;
const WRITE: u32 = 38;
const SEQUENCE: u32 = 53;
/// Length of the record mark and the header of a successful reply with the AUTH_NONE verifier, in bytes.
const HEADER: usize = 28;
const STAGE_MAX: usize = 4 << 20;
const OUT_MAX: usize = 4 << 20;
