//! [`SendQueue`] and [`RecvStage`]: send ropes to, and receive from, a non-blocking stream socket.
//!
//! Each system call does as much as it can. A send gathers many messages, and sends file ranges with `sendfile`. A
//! receive fills the caller's memory and, in the same call, reads a few bytes ahead. Neither blocks: on `WouldBlock`,
//! the caller waits for readiness.

use std::{
    collections::VecDeque,
    io::{self, IoSlice, IoSliceMut},
    os::fd::{AsFd, BorrowedFd},
};

use bytes::{Bytes, BytesMut};
use rustix::{
    io::Errno,
    net::{SendAncillaryBuffer, SendFlags},
};
use smallvec::SmallVec;

use crate::{FileRange, Piece, Rope};

/// A queue of pieces to send.
#[derive(Debug)]
pub struct SendQueue {
    pieces: VecDeque<Piece>,
    /// Maximum bytes of one `sendfile` or `sendmsg`.
    part_max: usize,
    len: usize,
    /// The bytes of the first piece that have left the queue. The rest of the piece keeps their memory.
    sent: usize,
    /// The system calls that have sent bytes.
    sends: u64,
}

impl Default for SendQueue {
    fn default() -> Self {
        Self { pieces: VecDeque::new(), part_max: PACED_PART, len: 0, sent: 0, sends: 0 }
    }
}

impl SendQueue {
    /// Makes an empty queue for a socket of any congestion control.
    pub fn new() -> Self {
        Self::default()
    }

    /// Makes an empty queue that sends with as few system calls as possible, for a socket that does not pace what it sends.
    pub fn unpaced() -> Self {
        Self { part_max: usize::MAX, ..Self::default() }
    }

    /// Returns the number of queued bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns `true` if the queue is empty.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the bytes of memory that the queue keeps, plus the queued bytes of files. A piece keeps all its memory
    /// until its last byte has left the queue.
    pub fn held(&self) -> usize {
        self.len + self.sent
    }

    /// Returns the number of system calls that have sent bytes of the queue. With [`ktls`](crate::ktls), each ends with
    /// a record that may be short.
    pub fn sends(&self) -> u64 {
        self.sends
    }

    /// Appends one piece.
    pub fn push(&mut self, mut piece: Piece) {
        if let Piece::Peer(bytes) = &piece {
            // Copied, so that the peer need not keep the memory for as long as the socket takes.
            let mut copy = BytesMut::zeroed(bytes.len());
            bytes.copy_to(&mut copy);
            piece = Piece::Memory(copy.freeze());
        }
        if !piece.is_empty() {
            self.len += piece.len();
            self.pieces.push_back(piece);
        }
    }

    /// Appends all pieces of `rope`.
    pub fn append(&mut self, rope: Rope) {
        rope.into_iter().for_each(|piece| self.push(piece));
    }

    /// Frees the memory of an empty queue.
    pub fn shrink_idle(&mut self) {
        if self.pieces.is_empty() && self.pieces.capacity() > REST_PIECES {
            self.pieces = VecDeque::new();
        }
    }

    /// Writes to a non-blocking stream socket until the queue is empty.
    ///
    /// # Errors
    /// `WouldBlock` if the socket accepts no more bytes now (accepted bytes have left the queue), device memory that
    /// cannot be read, or an error of the socket.
    pub fn write_to(&mut self, socket: impl AsFd) -> io::Result<()> {
        let socket = socket.as_fd();
        while let Some(front) = self.pieces.front() {
            let sent = match front {
                Piece::Memory(_) => self.send_memory(socket),
                Piece::Peer(_) => unreachable!("memory of a peer must be copied when it is queued"),
                Piece::Device(_) => {
                    self.copy_front()?;
                    continue;
                }
                Piece::File(range) => match send_file(socket, range, self.part_max) {
                    Ok(0) => {
                        self.zero_front();
                        continue;
                    }
                    sent => sent,
                },
            };
            match sent {
                Ok(sent) => {
                    self.sends += 1;
                    self.consume(sent);
                }
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Writes with `writev` until the queue is empty, for a stream that is not a socket. File ranges are read into
    /// memory.
    ///
    /// # Errors
    /// The errors of `writev` (accepted bytes have left the queue), or a file or device memory cannot be read.
    pub fn write_by(&mut self, mut writev: impl FnMut(&[IoSlice<'_>]) -> io::Result<usize>) -> io::Result<()> {
        while let Some(front) = self.pieces.front() {
            if !matches!(front, Piece::Memory(_)) {
                self.copy_front()?;
                continue;
            }
            let sent = writev(&self.memory())?;
            self.sends += 1;
            self.consume(sent);
        }
        Ok(())
    }

    /// Returns the first bytes of the queue as pieces of memory: `max` bytes, or all of them, or as many as fit into
    /// a gather list. File ranges and device memory among them are read into memory.
    ///
    /// # Errors
    /// A file or device memory cannot be read.
    pub fn front(&mut self, max: usize) -> io::Result<SmallVec<[&[u8]; FRONT_INLINE]>> {
        let (mut at, mut found) = (0, 0);
        while found < max && at < self.pieces.len().min(GATHER_MAX) {
            if !matches!(self.pieces[at], Piece::Memory(_)) {
                let now = self.pieces[at].len().min(READ_PART);
                let part = self.pieces[at].split_to(now).into_memory()?;
                if self.pieces[at].is_empty() {
                    self.pieces.remove(at);
                }
                self.pieces.insert(at, Piece::Memory(part));
            }
            found += self.pieces[at].len();
            at += 1;
        }
        let mut room = max;
        let slices = self.pieces.iter().take(at).map(|piece| {
            let Piece::Memory(bytes) = piece else { unreachable!("the pieces were read into memory") };
            let now = &bytes[..bytes.len().min(room)];
            room -= now.len();
            now
        });
        Ok(slices.collect())
    }

    /// Drops the first `len` bytes of the queue.
    ///
    /// # Panics
    /// If the queue has fewer bytes.
    pub fn consume(&mut self, mut len: usize) {
        self.len -= len;
        while len > 0 {
            let front = self.pieces.front_mut().expect("only queued bytes can be dropped");
            if len < front.len() {
                let gone = front.split_to(len);
                self.sent += if matches!(gone, Piece::Memory(_)) { len } else { 0 };
                return;
            }
            len -= front.len();
            self.pieces.pop_front();
            self.sent = 0;
        }
    }

    fn send_memory(&self, socket: BorrowedFd<'_>) -> rustix::io::Result<usize> {
        let slices = self.memory();
        let more = if slices.len() < self.pieces.len() { SendFlags::MORE } else { SendFlags::empty() };
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT | more;
        rustix::net::sendmsg(socket, &slices, &mut SendAncillaryBuffer::default(), flags)
    }

    /// Returns the pieces of memory at the front, as many as one system call accepts.
    fn memory(&self) -> SmallVec<[IoSlice<'_>; GATHER_MAX]> {
        let mut room = self.part_max;
        self.pieces
            .iter()
            .map_while(|piece| match piece {
                Piece::Memory(bytes) if room > 0 => {
                    let now = &bytes[..bytes.len().min(room)];
                    room -= now.len();
                    Some(IoSlice::new(now))
                }
                Piece::Memory(_) | Piece::File(_) | Piece::Peer(_) | Piece::Device(_) => None,
            })
            .take(GATHER_MAX)
            .collect()
    }

    /// Replaces the device memory at the front by a copy, because a socket cannot send it.
    fn copy_front(&mut self) -> io::Result<()> {
        let front = self.pieces.front_mut().expect("the queue must not be empty");
        *front = Piece::Memory(front.clone().into_memory()?);
        Ok(())
    }

    /// Replaces the file range at the front, whose file has shrunk, by zeros.
    fn zero_front(&mut self) {
        let Some(Piece::File(FileRange { len: mut missing, .. })) = self.pieces.pop_front() else { unreachable!() };
        while missing > 0 {
            let zeros = Bytes::from_static(&ZEROS).slice(..missing.min(ZEROS.len()));
            missing -= zeros.len();
            self.pieces.push_front(Piece::Memory(zeros));
        }
    }
}

fn send_file(socket: BorrowedFd<'_>, range: &FileRange, part_max: usize) -> rustix::io::Result<usize> {
    let mut offset = range.offset;
    rustix::fs::sendfile(socket, range.fd(), Some(&mut offset), range.len.min(part_max))
}

/// The result of one [`RecvStage::receive`]. If it has no bytes at all, the peer has closed its side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Received {
    /// The number of bytes in the caller's memory.
    pub direct: usize,
    /// The number of staged bytes.
    pub staged: usize,
    /// Set if fewer bytes arrived than there was room for, so that the socket is empty now.
    pub short: bool,
}

/// The layout of the caller's memory in the stream: pieces, with bytes to be staged between them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spread {
    /// The length of the first piece.
    pub first: usize,
    /// The length of every further piece. The last one can be shorter.
    pub piece: usize,
    /// The number of bytes between two pieces.
    pub gap: usize,
}

impl Spread {
    /// The layout of one piece.
    pub const WHOLE: Self = Self { first: usize::MAX, piece: usize::MAX, gap: 0 };
}

/// A small buffer in front of a stream socket. Headers are parsed in it; bulk data bypass it.
///
/// It has memory only while it holds bytes: the stages of a thread share one spare block.
#[derive(Debug)]
pub struct RecvStage {
    memory: Vec<u8>,
    capacity: usize,
    start: usize,
    end: usize,
}

impl RecvStage {
    /// Makes a stage of `capacity` bytes, the maximum length of a header that can be parsed in one piece.
    pub fn new(capacity: usize) -> Self {
        Self { memory: Vec::new(), capacity, start: 0, end: 0 }
    }

    /// Returns the staged bytes that are not yet consumed.
    pub fn bytes(&self) -> &[u8] {
        &self.memory[self.start..self.end]
    }

    /// Drops the first `len` staged bytes.
    ///
    /// # Panics
    /// If fewer bytes are staged.
    pub fn consume(&mut self, len: usize) {
        assert!(len <= self.end - self.start);
        self.start += len;
        if self.start == self.end {
            self.let_go();
        }
    }

    /// Reduces the memory to the staged bytes, because the next ones may take long to arrive.
    pub fn shrink_idle(&mut self) {
        let bytes = self.bytes().to_vec();
        self.let_go();
        self.end = bytes.len();
        self.memory = bytes;
    }

    /// Moves staged bytes to the start of `into`. Returns their number.
    pub fn take_into(&mut self, into: &mut [u8]) -> usize {
        let len = into.len().min(self.bytes().len());
        into[..len].copy_from_slice(&self.bytes()[..len]);
        self.consume(len);
        len
    }

    /// Appends bytes from another source to the staged bytes. If necessary, the stage grows until it is empty again.
    pub fn put(&mut self, bytes: &[u8]) {
        self.make_room(bytes.len());
        if self.memory.len() - self.end < bytes.len() {
            self.memory.resize(self.end + bytes.len(), 0);
        }
        self.memory[self.end..][..bytes.len()].copy_from_slice(bytes);
        self.end += bytes.len();
    }

    /// Receives once: first into `direct`, then up to `ahead` bytes into the stage.
    ///
    /// # Errors
    /// `WouldBlock` if no bytes are available, or an error of the socket.
    ///
    /// # Panics
    /// If `direct` is not empty while bytes that precede it are still staged.
    pub fn receive(&mut self, socket: impl AsFd, direct: &mut [u8], ahead: usize) -> io::Result<Received> {
        self.receive_spread(direct, Spread::WHOLE, ahead, |slices| read_vectored(&socket, slices))
    }

    /// Receives once with `readv`: into the pieces of `direct`; into the stage the bytes between the pieces, and up to
    /// `ahead` bytes after the last piece.
    ///
    /// # Errors
    /// The errors of `readv`.
    ///
    /// # Panics
    /// If `direct` is not empty while bytes that precede it are still staged.
    pub fn receive_spread(
        &mut self,
        direct: &mut [u8],
        spread: Spread,
        ahead: usize,
        readv: impl FnOnce(&mut [IoSliceMut<'_>]) -> io::Result<usize>,
    ) -> io::Result<Received> {
        assert!(
            direct.is_empty() || self.bytes().is_empty(),
            "staged bytes must be consumed before direct ones are received"
        );
        let gaps = direct.len().saturating_sub(spread.first).div_ceil(spread.piece);
        let wanted = direct.len();
        self.make_room(gaps * spread.gap + ahead);
        let room = (self.end + gaps * spread.gap + ahead).min(self.memory.len());
        let stage = &mut self.memory[self.end..room];
        let total = wanted + stage.len();
        assert!(total > 0, "there must be memory to receive into");
        let outcome = readv(&mut interleave(direct, stage, spread));
        let received = *outcome.as_ref().unwrap_or(&0);
        let direct = direct_part(received, wanted, spread);
        let staged = received - direct;
        self.end += staged;
        if self.bytes().is_empty() {
            self.let_go();
        }
        outcome?;
        Ok(Received { direct, staged, short: received < total })
    }

    fn make_room(&mut self, len: usize) {
        if len > 0 && self.memory.len() < self.capacity {
            let mut block = SPARE.take();
            block.resize(self.capacity, 0);
            block[..self.end - self.start].copy_from_slice(&self.memory[self.start..self.end]);
            (self.start, self.end) = (0, self.end - self.start);
            self.memory = block;
        }
        if self.start > 0 && self.memory.len() - self.end < len {
            self.memory.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
    }
}

impl RecvStage {
    /// Releases the memory, which holds no more bytes, for the next stage of this thread.
    fn let_go(&mut self) {
        (self.start, self.end) = (0, 0);
        let block = std::mem::take(&mut self.memory);
        // A block that had to grow is not kept, so that it does not stay large forever.
        if block.len() == self.capacity {
            SPARE.set(block);
        }
    }
}

thread_local! {
    static SPARE: std::cell::Cell<Vec<u8>> = const { std::cell::Cell::new(Vec::new()) };
}

/// Reads once from a stream socket into these slices.
///
/// # Errors
/// `WouldBlock` if no bytes are available, or an error of the socket.
pub fn read_vectored(socket: impl AsFd, slices: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
    loop {
        match rustix::io::readv(&socket, slices) {
            Err(Errno::INTR) => {}
            received => return Ok(received?),
        }
    }
}

type Slices<'a> = SmallVec<[IoSliceMut<'a>; 2 * PIECES_INLINE]>;

/// Returns the pieces of `direct`, each followed by its part of `stage`.
fn interleave<'a>(mut direct: &'a mut [u8], mut stage: &'a mut [u8], spread: Spread) -> Slices<'a> {
    let mut slices = Slices::new();
    let mut piece = spread.first;
    while direct.len() > piece {
        let (now, later) = direct.split_at_mut(piece);
        let (gap, rest) = stage.split_at_mut(spread.gap);
        slices.extend([IoSliceMut::new(now), IoSliceMut::new(gap)]);
        (direct, stage, piece) = (later, rest, spread.piece);
    }
    slices.extend([IoSliceMut::new(direct), IoSliceMut::new(stage)]);
    slices
}

/// Returns how many of `received` bytes are in the caller's memory of `wanted` bytes.
fn direct_part(received: usize, wanted: usize, spread: Spread) -> usize {
    let (mut direct, mut left, mut piece) = (0, received, spread.first);
    loop {
        let now = left.min(piece.min(wanted - direct));
        direct += now;
        left = (left - now).saturating_sub(spread.gap);
        if left == 0 || direct == wanted {
            return direct;
        }
        piece = spread.piece;
    }
}

/// Maximum bytes of one `sendfile` or `sendmsg` if the socket may pace what it sends. With 64 KiB and more, bbr is slower:
/// READs from a file by two thirds, from memory by a third. The likely cause is that the kernel then makes segments which bbr
/// must pace one by one. Measured in `docs/performance/transports.md`.
const PACED_PART: usize = 60 << 10;
const PIECES_INLINE: usize = 8;
/// Capacity of the queue, in pieces, that is too small to be freed.
const REST_PIECES: usize = 4;
const GATHER_MAX: usize = 64;
const FRONT_INLINE: usize = 8;
/// Maximum bytes of a file range that [`SendQueue::front`] reads at a time, so that they stay in the cache.
const READ_PART: usize = 64 << 10;
static ZEROS: [u8; 4096] = [0; 4096];

#[cfg(test)]
mod tests {
    use std::{fs::File, os::unix::net::UnixStream, sync::Arc};

    use super::*;

    fn pair() -> (UnixStream, UnixStream) {
        let (a, b) = UnixStream::pair().unwrap();
        a.set_nonblocking(true).unwrap();
        b.set_nonblocking(true).unwrap();
        (a, b)
    }

    fn unnamed_file(test: &str, content: &[u8]) -> Arc<File> {
        let path = std::env::temp_dir().join(format!("slipway-stream-{test}-{}", std::process::id()));
        std::fs::write(&path, content).unwrap();
        let file = File::open(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        Arc::new(file)
    }

    #[test]
    fn memory_and_files_arrive_in_order_through_a_full_socket() {
        let content: Vec<u8> = (0..300_000u32).map(|i| (i % 251) as u8).collect();
        let file = unnamed_file("ordered", &content);
        let mut queue = SendQueue::new();
        let mut expected = Vec::new();
        for i in 0..200usize {
            queue.push(Piece::Memory(Bytes::from(vec![i as u8; 1000])));
            expected.extend(vec![i as u8; 1000]);
        }
        queue.push(Piece::File(FileRange { file: file.clone(), offset: 1000, len: 200_000 }));
        expected.extend(&content[1000..201_000]);
        queue.push(Piece::File(FileRange { file, offset: 299_990, len: 9000 }));
        expected.extend(&content[299_990..]);
        expected.extend(vec![0; 8990]);
        queue.push(Piece::Memory(Bytes::from_static(b"end")));
        expected.extend(b"end");
        assert_eq!(queue.len(), expected.len());

        let (tx, rx) = pair();
        let mut stage = RecvStage::new(512);
        let mut got: Vec<u8> = Vec::new();
        while got.len() < expected.len() {
            match queue.write_to(&tx) {
                Ok(()) => assert!(queue.is_empty()),
                Err(error) => assert_eq!(error.kind(), io::ErrorKind::WouldBlock),
            }
            let mut direct = [0; 700];
            match stage.receive(&rx, &mut direct, 300) {
                Ok(Received { direct: n, staged, .. }) => {
                    assert!(n > 0);
                    got.extend(&direct[..n]);
                    got.extend(stage.bytes());
                    stage.consume(staged);
                }
                Err(error) => assert_eq!(error.kind(), io::ErrorKind::WouldBlock),
            }
        }
        assert_eq!(got, expected);
        assert!(queue.sends() > (expected.len() / PACED_PART) as u64, "each system call sends a part at most");
    }

    #[test]
    fn unpaced_queue_sends_a_file_range_with_one_call() {
        let len = PACED_PART + 4096;
        let file = unnamed_file("unpaced", &vec![7; len]);
        for (mut queue, sends) in [(SendQueue::unpaced(), 1), (SendQueue::new(), 2)] {
            queue.push(Piece::File(FileRange { file: file.clone(), offset: 0, len }));
            let (tx, _rx) = pair();
            queue.write_to(&tx).unwrap();
            assert_eq!(queue.sends(), sends);
        }
    }

    #[test]
    fn piece_keeps_its_memory_until_its_last_byte_is_sent() {
        let mut queue = SendQueue::new();
        queue.push(Piece::Memory(Bytes::from_static(b"first")));
        queue.push(Piece::Memory(Bytes::from_static(b"second")));
        queue.consume(2);
        queue.consume(2);
        assert_eq!((queue.len(), queue.held()), (7, 11));
        queue.consume(2);
        assert_eq!((queue.len(), queue.held()), (5, 6));
        queue.consume(5);
        assert_eq!((queue.len(), queue.held()), (0, 0));
    }

    #[test]
    fn front_of_a_queue_is_memory_in_order() {
        let mut file = tempfile();
        let content: Vec<u8> = (0..200_000u32).map(|i| (i % 251) as u8).collect();
        io::Write::write_all(&mut file, &content).unwrap();
        let mut queue = SendQueue::new();
        queue.push(Piece::Memory(Bytes::from_static(b"head")));
        queue.push(Piece::File(FileRange { file: Arc::new(file), offset: 100, len: 199_000 }));
        queue.push(Piece::Memory(Bytes::from_static(b"tail")));
        let expected = [b"head", &content[100..199_100], b"tail"].concat();
        let mut got = Vec::new();
        while !queue.is_empty() {
            let front = queue.front(16_384).unwrap().concat();
            assert_eq!(front.len(), 16_384.min(expected.len() - got.len()), "the front must be as long as possible");
            queue.consume(front.len().min(10_000));
            got.extend_from_slice(&front[..front.len().min(10_000)]);
        }
        assert_eq!(got, expected);
    }

    fn tempfile() -> File {
        let path = std::env::temp_dir().join(format!("slipway-front-{}", std::process::id()));
        let file = File::options().read(true).write(true).create(true).truncate(true).open(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        file
    }

    #[test]
    fn stage_keeps_unconsumed_bytes_and_makes_room() {
        let (tx, rx) = pair();
        let mut stage = RecvStage::new(8);
        rustix::io::write(&tx, b"abcdefgh").unwrap();
        assert_eq!(stage.receive(&rx, &mut [], 6).unwrap(), Received { direct: 0, staged: 6, short: false });
        stage.consume(4);
        assert_eq!(stage.receive(&rx, &mut [], 6).unwrap().staged, 2);
        assert_eq!(stage.bytes(), b"efgh");
        let mut into = [0; 3];
        assert_eq!(stage.take_into(&mut into), 3);
        assert_eq!((&into, stage.bytes()), (b"efg", &b"h"[..]));
        drop(tx);
        assert_eq!(stage.receive(&rx, &mut [], 4).unwrap(), Received { direct: 0, staged: 0, short: true });
    }

    #[test]
    fn spread_receive_fills_pieces_and_stages_the_gaps() {
        let stream: Vec<u8> = (0..60).collect();
        let spread = Spread { first: 5, piece: 10, gap: 3 };
        // 5 direct, 3 staged, 10 direct, 3 staged, 7 direct, 4 staged.
        let is_direct = |at: usize| matches!(at, 0..5 | 8..18 | 21..28);
        for len in 1..=32 {
            let mut stage = RecvStage::new(64);
            let mut direct = [0; 22];
            let got = stage
                .receive_spread(&mut direct, spread, 4, |slices| io::Read::read_vectored(&mut &stream[..len], slices))
                .unwrap();
            let (placed, staged): (Vec<usize>, Vec<usize>) = (0..len).partition(|&at| is_direct(at));
            assert_eq!(got, Received { direct: placed.len(), staged: staged.len(), short: len < 32 });
            assert!(direct.iter().zip(&placed).all(|(&byte, &at)| byte as usize == at));
            assert!(stage.bytes().iter().zip(&staged).all(|(&byte, &at)| byte as usize == at));
        }
    }

    #[test]
    fn put_appends_to_staged_bytes() {
        let mut stage = RecvStage::new(4);
        stage.put(b"abc");
        stage.consume(2);
        stage.put(b"def");
        assert_eq!(stage.bytes(), b"cdef");
        stage.put(b"ghijk");
        assert_eq!(stage.bytes(), b"cdefghijk");
        stage.consume(9);
        assert_eq!(stage.memory.len(), 0, "the grown memory must be freed");
    }

    #[test]
    fn stage_has_memory_only_while_it_holds_bytes() {
        let (tx, rx) = pair();
        let mut stage = RecvStage::new(1000);
        assert!(stage.receive(&rx, &mut [], 10).is_err(), "the socket must be empty");
        assert_eq!(stage.memory.capacity(), 0);
        rustix::io::write(&tx, b"abcdef").unwrap();
        assert_eq!(stage.receive(&rx, &mut [], 900).unwrap().staged, 6);
        stage.consume(2);
        stage.shrink_idle();
        assert_eq!((stage.bytes(), stage.memory.capacity()), (&b"cdef"[..], 4));
        rustix::io::write(&tx, b"gh").unwrap();
        assert_eq!(stage.receive(&rx, &mut [], 900).unwrap().staged, 2);
        assert_eq!(stage.bytes(), b"cdefgh");
        stage.consume(6);
        assert_eq!(stage.memory.capacity(), 0);
    }
}
