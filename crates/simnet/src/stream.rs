//! [`Stream`]: a byte stream between two hosts of a [`Network`], with the behaviour of a non-blocking TCP socket.
//!
//! Bytes arrive in order, in segments, each with its own latency. A write takes as many bytes as the window has room for, and
//! a read returns the bytes that have arrived. Some reads and writes, which the seed selects, transfer fewer bytes. A cut
//! resets both ends, and the bytes in transit are lost. If a stream with unread bytes is dropped, the peer is reset;
//! otherwise the peer reads the end of the stream.

use std::{
    collections::VecDeque,
    future::Future,
    io::{self, IoSlice, IoSliceMut, Read},
    net::{Shutdown, SocketAddr},
    pin::Pin,
    sync::{Arc, Weak},
    task::{Context, Poll, Waker},
};

use parking_lot::Mutex;
use rand::Rng;
use tokio::time::{Instant, Sleep, sleep_until};

use crate::{Connection, Cut, Listening, Network};

/// One end of a byte stream.
pub struct Stream {
    network: Network,
    link: Arc<Link>,
    side: usize,
    /// Fires when the next segment arrives.
    timer: Mutex<Option<Pin<Box<Sleep>>>>,
}

/// A listener for streams.
pub struct StreamListener(Listening<Stream>);

struct Link {
    addresses: [SocketAddr; 2],
    ends: Mutex<[End; 2]>,
}

/// The state of one end, with the bytes that it has not read.
#[derive(Default)]
struct End {
    /// The segments in transit to this end.
    under_way: VecDeque<Segment>,
    arrived: VecDeque<u8>,
    /// The number of bytes in `under_way` and `arrived`.
    unread: usize,
    /// `true` after the end of the stream has arrived, or after this end has shut down reading.
    is_at_end: bool,
    /// `true` after this end has shut down writing.
    is_shut: bool,
    is_reset: bool,
    is_dropped: bool,
    reader: Option<Waker>,
    writer: Option<Waker>,
}

struct Segment {
    due: Instant,
    /// The bytes. An empty segment is the end of the stream.
    bytes: Vec<u8>,
}

impl Stream {
    /// Connects from the host of `network` to `remote`.
    ///
    /// # Errors
    /// Returns `ConnectionRefused` if there is no listener at `remote`, or if the network refuses connections.
    pub async fn connect(network: &Network, remote: SocketAddr) -> io::Result<Self> {
        Self::connect_from(network, network.take_address(), remote).await
    }

    /// Connects like [`connect`](Self::connect), from the address `local`.
    ///
    /// # Errors
    /// Like [`connect`](Self::connect).
    pub async fn connect_from(network: &Network, local: SocketAddr, remote: SocketAddr) -> io::Result<Self> {
        sleep_until(network.arrival(None)).await;
        let link = Arc::new(Link { addresses: [local, remote], ends: Mutex::default() });
        let known: Weak<Link> = Arc::downgrade(&link);
        network.connected(known);
        let [client, server] =
            [0, 1].map(|side| Self { network: network.clone(), link: link.clone(), side, timer: Mutex::default() });
        network.request(remote, server)?;
        sleep_until(network.arrival(None)).await;
        Ok(client)
    }

    /// Returns the address of the peer.
    pub fn peer_addr(&self) -> SocketAddr {
        self.link.addresses[1 - self.side]
    }

    /// Waits until a read does not fail with `WouldBlock`.
    pub fn poll_readable(&self, cx: &mut Context<'_>) -> Poll<()> {
        loop {
            let mut ends = self.link.ends.lock();
            self.take_in(&mut ends);
            let end = &mut ends[self.side];
            if !end.arrived.is_empty() || end.is_at_end || end.is_reset {
                return Poll::Ready(());
            }
            end.reader = Some(cx.waker().clone());
            let Some(next) = end.under_way.front().map(|segment| segment.due) else { return Poll::Pending };
            drop(ends);
            let mut timer = self.timer.lock();
            let timer = timer.get_or_insert_with(|| Box::pin(sleep_until(next)));
            if timer.deadline() != next {
                timer.as_mut().reset(next);
            }
            if timer.as_mut().poll(cx).is_pending() {
                return Poll::Pending;
            }
        }
    }

    /// Waits until a write does not fail with `WouldBlock`.
    pub fn poll_writable(&self, cx: &mut Context<'_>) -> Poll<()> {
        let mut ends = self.link.ends.lock();
        if ends[self.side].is_reset || ends[1 - self.side].room() > 0 {
            return Poll::Ready(());
        }
        ends[self.side].writer = Some(cx.waker().clone());
        Poll::Pending
    }

    /// Reads bytes that have arrived. Returns 0 at the end of the stream.
    ///
    /// # Errors
    /// Returns `WouldBlock` if no bytes have arrived, or `ConnectionReset` if the connection is lost.
    pub fn read_vectored(&self, slices: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        let mut ends = self.link.ends.lock();
        self.take_in(&mut ends);
        let end = &mut ends[self.side];
        if end.is_reset {
            return Err(io::ErrorKind::ConnectionReset.into());
        }
        if end.arrived.is_empty() {
            return if end.is_at_end { Ok(0) } else { Err(io::ErrorKind::WouldBlock.into()) };
        }
        let wanted = slices.iter().map(|slice| slice.len()).sum::<usize>();
        let len = self.part_of(wanted.min(end.arrived.len()));
        let mut left = len;
        for slice in slices {
            let room = slice.len().min(left);
            end.arrived.read_exact(&mut slice[..room]).expect("the bytes have arrived");
            left -= room;
        }
        end.unread -= len;
        ends[1 - self.side].wake_writer();
        Ok(len)
    }

    /// Writes as many bytes as the window has room for, or fewer.
    ///
    /// # Errors
    /// Returns `WouldBlock` if the window is full, `ConnectionReset` if the connection is lost, or `BrokenPipe` after a
    /// shutdown of writing.
    pub fn write_vectored(&self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        let mut ends = self.link.ends.lock();
        if ends[self.side].is_reset {
            return Err(io::ErrorKind::ConnectionReset.into());
        }
        if ends[self.side].is_shut {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        let wanted = slices.iter().map(|slice| slice.len()).sum::<usize>();
        if ends[1 - self.side].is_dropped {
            // As in TCP, data for a closed socket cause a reset.
            ends[self.side].reset();
            return Ok(wanted);
        }
        let len = wanted.min(ends[1 - self.side].room());
        if len == 0 && wanted > 0 {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let len = self.part_of(len);
        let mut bytes = Vec::with_capacity(len);
        for slice in slices {
            bytes.extend_from_slice(&slice[..slice.len().min(len - bytes.len())]);
        }
        ends[1 - self.side].unread += len;
        self.send(&mut ends, bytes);
        Ok(len)
    }

    /// Shuts down writing, reading or both.
    pub fn shutdown(&self, how: Shutdown) {
        let mut ends = self.link.ends.lock();
        if how != Shutdown::Read && !ends[self.side].is_shut {
            ends[self.side].is_shut = true;
            self.send(&mut ends, Vec::new());
        }
        if how != Shutdown::Write {
            ends[self.side].is_at_end = true;
            ends[self.side].wake_reader();
        }
    }

    fn send(&self, ends: &mut [End; 2], bytes: Vec<u8>) {
        let peer = &mut ends[1 - self.side];
        let due = self.network.arrival(peer.under_way.back().map(|segment| segment.due));
        peer.under_way.push_back(Segment { due, bytes });
        peer.wake_reader();
    }

    /// Delivers the segments that have arrived by now.
    fn take_in(&self, ends: &mut [End; 2]) {
        let now = Instant::now();
        let way = (self.peer_addr(), self.link.addresses[self.side]);
        while !ends[self.side].is_reset && ends[self.side].under_way.front().is_some_and(|segment| segment.due <= now) {
            let end = &mut ends[self.side];
            let bytes = end.under_way.pop_front().expect("segment was just checked").bytes;
            if bytes.is_empty() {
                end.is_at_end = true;
                continue;
            }
            let cut = self.network.deliver(way, "segment", &[&bytes]);
            if cut != Some(Cut::Before) {
                end.arrived.extend(bytes);
            }
            if cut.is_some() {
                ends.iter_mut().for_each(End::reset);
            }
        }
    }

    /// Returns `len`, or in one of [`PARTIAL`] calls a smaller number of bytes, at least 1.
    fn part_of(&self, len: usize) -> usize {
        self.network.choose(|rng| if len > 1 && rng.random_ratio(1, PARTIAL) { rng.random_range(1..len) } else { len })
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        let mut ends = self.link.ends.lock();
        if ends[self.side].unread > 0 {
            ends[1 - self.side].reset();
        } else if !ends[self.side].is_shut && !ends[self.side].is_reset {
            self.send(&mut ends, Vec::new());
        }
        ends[self.side] = End { is_dropped: true, is_shut: true, ..End::default() };
        ends[1 - self.side].wake_writer();
    }
}

impl End {
    /// Returns the number of bytes that the peer can send now. A dropped end accepts and discards any number.
    fn room(&self) -> usize {
        if self.is_dropped { usize::MAX } else { WINDOW - self.unread }
    }

    fn reset(&mut self) {
        if self.is_dropped {
            return;
        }
        self.is_reset = true;
        self.under_way.clear();
        self.arrived.clear();
        self.unread = 0;
        self.wake_reader();
        self.wake_writer();
    }

    fn wake_reader(&mut self) {
        self.reader.take().into_iter().for_each(Waker::wake);
    }

    fn wake_writer(&mut self) {
        self.writer.take().into_iter().for_each(Waker::wake);
    }
}

impl Connection for Link {
    fn has_end_at(&self, local: SocketAddr) -> bool {
        self.addresses.contains(&local)
    }

    fn is_open(&self) -> bool {
        self.ends.lock().iter().all(|end| !end.is_dropped && !end.is_reset)
    }

    fn cut(&self) {
        self.ends.lock().iter_mut().for_each(End::reset);
    }
}

impl StreamListener {
    /// Listens at this address. If the port is 0, the network chooses one.
    ///
    /// # Errors
    /// Returns `AddrInUse` if there is a listener for streams at this address.
    pub fn bind(network: &Network, local: SocketAddr) -> io::Result<Self> {
        network.listen(local).map(Self)
    }

    /// Returns the address of the listener.
    pub fn local_addr(&self) -> SocketAddr {
        self.0.local_addr()
    }

    /// Waits for the next stream.
    ///
    /// # Errors
    /// Returns `ConnectionAborted` if the host has crashed.
    pub async fn accept(&mut self) -> io::Result<Stream> {
        self.0.accept().await
    }
}

/// Maximum bytes in transit or unread in one direction.
const WINDOW: usize = 64 << 10;
/// On average, one of this number of reads and writes transfers fewer bytes than it could.
const PARTIAL: u32 = 8;
