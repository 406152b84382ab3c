//! A READ of a striped file is received directly into the caller's memory, from each data server into its part. Over the sockets and the shared
//! memory of the system, because providers of RDMA place data there as in use.

use std::{
    io,
    net::{Shutdown, SocketAddr},
    ops::Range,
    sync::{Arc, atomic::Ordering::SeqCst},
    task::{Context, Poll},
    time::Duration,
};

use crate::common::{
    cluster::{Cluster, Form, MIRRORED},
    device::Device,
    faulty::Reads,
    iwarp,
    net::Net,
    pattern, shm,
    work::{ways, written},
};
use buf::{Pool, Received, RecvStage, Region, SendQueue};
use client::{ErrorKind, Mount};
use nfs::v4::layout::stripe::Packing;
use parking_lot::Mutex;
use rdma::{
    Completion, CompletionKind,
    hook::{Hook, QpId, Verdict},
};
use rpc::{Sockets, Stream, StreamNetwork, TcpKind, TcpOptions, TransportKind};
use tokio::sync::Semaphore;

/// The addresses of the memory in which a transport has placed data by itself.
#[derive(Clone, Debug, Default)]
struct Placed(Arc<Mutex<Vec<Range<usize>>>>);

impl Placed {
    fn add(&self, bytes: &[u8]) {
        let start = bytes.as_ptr() as usize;
        self.0.lock().push(start..start + bytes.len());
    }

    /// Removes all addresses, and returns the number of bytes that are in this memory.
    fn take_within(&self, memory: &[u8]) -> usize {
        let of = memory.as_ptr_range();
        let placed = std::mem::take(&mut *self.0.lock());
        let within = |range: &Range<usize>| of.start as usize <= range.start && range.end <= of.end as usize;
        placed.into_iter().filter(within).map(|range| range.len()).sum()
    }
}

impl Hook for Placed {
    fn completed(&self, _: QpId, completion: &Completion) -> Verdict {
        let memory = match &completion.kind {
            CompletionKind::Receive { invalidated: Some((_, memory)), .. } => Some(memory),
            CompletionKind::Invalidate(memory) => memory.as_ref(),
            _ => None,
        };
        if let Some(bytes) = memory.and_then(|memory| memory.as_host()) {
            self.add(bytes);
        }
        Verdict::Pass
    }
}

/// The sockets of the system. It notes the memory into which they receive bytes that are not staged.
#[derive(Clone, Debug)]
struct Watched(Sockets, Placed);

struct WatchedStream(<Sockets as StreamNetwork>::Stream, Placed);

impl StreamNetwork for Watched {
    type Stream = WatchedStream;
    type Accepted = <Sockets as StreamNetwork>::Accepted;
    type Listener = <Sockets as StreamNetwork>::Listener;

    async fn connect(&self, remote: SocketAddr, options: &TcpOptions) -> io::Result<WatchedStream> {
        Ok(WatchedStream(self.0.connect(remote, options).await?, self.1.clone()))
    }

    fn listen(&self, local: SocketAddr, options: &TcpOptions) -> io::Result<Self::Listener> {
        self.0.listen(local, options)
    }

    fn open(&self, accepted: Self::Accepted, options: &TcpOptions) -> io::Result<WatchedStream> {
        Ok(WatchedStream(self.0.open(accepted, options)?, self.1.clone()))
    }
}

impl Stream for WatchedStream {
    const SPIN_MAX: Duration = Duration::ZERO;

    fn peer_addr(&self) -> io::Result<SocketAddr> {
        Stream::peer_addr(&self.0)
    }

    fn poll_read_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Stream::poll_read_ready(&self.0, cx)
    }

    fn poll_write_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Stream::poll_write_ready(&self.0, cx)
    }

    fn try_receive(&self, stage: &mut RecvStage, direct: &mut [u8], ahead: usize) -> io::Result<Received> {
        let received = Stream::try_receive(&self.0, stage, direct, ahead)?;
        self.1.add(&direct[..received.direct]);
        Ok(received)
    }

    fn try_send(&self, queue: &mut SendQueue) -> io::Result<()> {
        Stream::try_send(&self.0, queue)
    }

    fn shutdown(&self, how: Shutdown) {
        Stream::shutdown(&self.0, how);
    }
}

/// Returns a transport that notes what it places.
fn watched(proto: &str) -> (Arc<dyn TransportKind>, Placed) {
    let placed = Placed::default();
    let kind = match proto {
        "tcp" => {
            let options = TcpOptions { reserved_port: Some(false), ..TcpOptions::default() };
            Arc::new(TcpKind::over(Watched(Sockets, placed.clone()), options, Pool::default()))
        }
        "rdma" => iwarp(Arc::new(placed.clone())),
        _ => shm(Arc::new(placed.clone())),
    };
    (kind, placed)
}

const TRANSPORTS: [&str; 3] = ["tcp", "rdma", "shm"];
const UNIT: usize = 256 << 10;
/// The last stripe unit is not complete.
const LEN: usize = 9 * UNIT + 100_003;
const STRIPED: Form = Form { mirrors: 1, stripes: 3, unit: UNIT as u64, ..MIRRORED };
const SPARSE: Form = Form { files: Some(Packing::Sparse), ..STRIPED };
const DENSE: Form = Form { stripes: 6, files: Some(Packing::Dense), ..SPARSE };

/// Runs a test with a file of [`LEN`] bytes and a client that has not used it, over a transport.
fn over(proto: &'static str, form: Form, query: &str, test: impl AsyncFnOnce(Cluster, Mount, Placed)) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let (kind, placed) = watched(proto);
        let cluster = Cluster::on(Net::System(proto, kind), 3, form).await;
        written(&cluster.mount(1, "&timeo=60s").await, "f", LEN).await;
        let mount = cluster.mount(2, &format!("&timeo=60s{query}")).await;
        test(cluster, mount, placed).await;
    });
}

/// Reads a range into memory of the pool, and checks its content and that the memory is the caller's. Returns the number of bytes that the
/// transport has placed there.
async fn read_range(mount: &Mount, placed: &Placed, range: Range<usize>) -> usize {
    let file = mount.open("f").await.unwrap();
    let mut buffer = mount.pool().take(range.len());
    buffer.fill(0xa5);
    let at = buffer.as_ptr();
    placed.take_within(&[]);
    let (read, buffer) = file.read_at(range.start as u64, buffer).await;
    let expected = &pattern(LEN)[range.start..range.end.min(LEN)];
    assert_eq!((read.unwrap(), buffer.as_ptr(), buffer.len()), (expected.len(), at, range.len()));
    assert!(buffer[..expected.len()] == *expected, "{range:?}");
    placed.take_within(&buffer)
}

#[test]
fn stripes_are_received_in_the_callers_memory() {
    for (proto, form) in TRANSPORTS.into_iter().flat_map(|proto| [STRIPED, SPARSE, DENSE].map(|form| (proto, form))) {
        over(proto, form, "", async |_cluster, mount, placed| {
            // The first replies of a connection are staged.
            read_range(&mount, &placed, 0..LEN).await;
            let ranges = [
                0..LEN,
                UNIT..2 * UNIT,
                UNIT - 50_000..UNIT + 50_000,
                100..LEN - 100,
                // Beyond the end of the file, and of several data files.
                LEN - 400_000..LEN + 1_000_000,
                UNIT - 1..UNIT + 1,
            ];
            for range in ranges {
                let read = range.end.min(LEN) - range.start;
                let in_place = read_range(&mount, &placed, range.clone()).await;
                // Over TCP, the first 4 KiB of each reply are staged with its header. Small replies have their data inline.
                let enough = if read < 1000 { 0 } else { read - read / 8 };
                assert!(in_place >= enough, "{in_place} of {read} bytes of {range:?} over {proto}");
            }
            assert_eq!(ways(&mount).server, Default::default());
        });
    }
}

#[test]
fn short_replies_are_continued_in_the_callers_memory() {
    for (proto, form) in TRANSPORTS.into_iter().flat_map(|proto| [STRIPED, SPARSE].map(|form| (proto, form))) {
        over(proto, form, "", async |cluster, mount, placed| {
            read_range(&mount, &placed, 0..LEN).await;
            *cluster.data[1].reads.lock() = Reads::Short(50_000);
            let in_place = read_range(&mount, &placed, 10..2 * UNIT + 10).await;
            // A short reply does not fill its part, so a transport of RDMA is not asked where it has placed it.
            assert!(in_place >= UNIT / 2, "{in_place} bytes over {proto}");
            assert_eq!(ways(&mount).server, Default::default());
        });
    }
}

/// Other data servers have already placed their parts when one fails.
#[test]
fn metadata_server_continues_in_the_same_memory_after_a_failure() {
    for (proto, form) in TRANSPORTS.into_iter().flat_map(|proto| [STRIPED, SPARSE].map(|form| (proto, form))) {
        over(proto, form, "", async |cluster, mount, placed| {
            read_range(&mount, &placed, 0..LEN).await;
            assert_eq!(ways(&mount).server, Default::default());
            *cluster.data[1].reads.lock() = Reads::Fail;
            let in_place = read_range(&mount, &placed, 0..3 * UNIT).await;
            assert!(in_place >= 3 * UNIT - UNIT / 2, "{in_place} bytes over {proto}");
            assert_eq!(ways(&mount).server.read_bytes, 3 * UNIT as u64);
        });
    }
}

#[test]
fn next_mirror_is_read_into_the_same_memory() {
    for proto in TRANSPORTS {
        let form = Form { mirrors: 2, stripes: 2, ..STRIPED };
        over(proto, form, "", async |cluster, mount, placed| {
            *cluster.data[1].reads.lock() = Reads::Fail;
            for at in 0..4 {
                read_range(&mount, &placed, at * UNIT..(at + 3) * UNIT).await;
            }
            assert_eq!(ways(&mount).server, Default::default());
        });
    }
}

/// The data that one data server sends late must not reach memory that has another owner by then.
#[test]
fn read_that_was_given_up_does_not_change_memory_later() {
    for proto in TRANSPORTS {
        over(proto, SPARSE, "", async |cluster, mount, placed| {
            read_range(&mount, &placed, 0..LEN).await;
            let gate = Arc::new(Semaphore::new(0));
            *cluster.data[1].reads.lock() = Reads::Wait(gate.clone());
            let file = mount.open("f").await.unwrap();
            let mut read = Box::pin(file.read_at(0, mount.pool().take(3 * UNIT)));
            let begun = async {
                while cluster.data[1].begun.load(SeqCst) == 0 {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
            };
            tokio::select! {
                biased;
                _ = &mut read => panic!("a data server has not answered"),
                () = begun => {}
            }
            drop(read);
            let mut other = mount.pool().take(3 * UNIT);
            other.fill(0x5a);
            gate.add_permits(1000);
            // The data server has answered the first READ before these.
            read_range(&mount, &placed, 0..LEN).await;
            assert!(other.iter().all(|byte| *byte == 0x5a), "over {proto}");
        });
    }
}

/// The memory of a device: no part of it is copied through host memory more than once.
#[test]
fn device_memory_is_divided_among_data_servers() {
    for proto in TRANSPORTS {
        over(proto, STRIPED, "", async |_cluster, mount, _| {
            let file = mount.open("f").await.unwrap();
            for range in [0..LEN, UNIT - 5..UNIT + 5, 10..3 * UNIT] {
                let device = Device::new(vec![0; range.len()]);
                let (read, region) = file.read_at(range.start as u64, Region::from(device.range())).await;
                assert_eq!((read.unwrap(), region.as_host().is_none()), (range.len(), true));
                assert!(device.content() == pattern(LEN)[range.clone()], "{range:?}");
                assert_eq!(device.copied(), (range.len(), 0));
                device.break_down();
                let (read, region) = file.read_at(range.start as u64, Region::from(device.range())).await;
                assert!(matches!(read.unwrap_err().kind(), ErrorKind::Device(_)));
                assert_eq!(region.len(), range.len());
            }
            assert_eq!(ways(&mount).server, Default::default());
        });
    }
}
