//! Tests with peers of the shm provider that violate the protocol: they can end only their own connection.

mod common;

use std::{
    future::poll_fn,
    io::IoSlice,
    mem::MaybeUninit,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    task::{Context, Poll, Wake, Waker},
    time::{Duration, Instant},
};

use bytes::Bytes;
use conformance::provider::{End, Fabric, Side, pattern, shared_pool};
use rand::{Rng, SeedableRng, rngs::StdRng};
use rdma::{
    CompletionKind, Listener, Memory, QpError, QpOptions, Stag, Status,
    shm::{Bounds, Ledger, ShmOptions},
};
use rustix::{
    fs::{MemfdFlags, SealFlags},
    net::{
        AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
        SendFlags, SocketAddrUnix, SocketType,
    },
};

/// A client that does not use this implementation.
struct Raw {
    socket: OwnedFd,
    control: OwnedFd,
}

impl Raw {
    fn send(&self, bytes: &[u8], fds: &[BorrowedFd<'_>]) {
        send(&self.socket, bytes, fds);
    }

    fn slab(&self, number: u32, bytes: u64, fds: &[BorrowedFd<'_>]) {
        self.send(&[&[4][..], &number.to_le_bytes(), &bytes.to_le_bytes()].concat(), fds);
    }

    /// Writes words into the control memory.
    fn put(&self, word: usize, words: &[u64]) {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        assert_eq!(rustix::io::pwrite(&self.control, &bytes, 8 * word as u64), Ok(bytes.len()));
    }

    fn bell(&self) {
        self.send(&[5], &[]);
    }
}

fn send(socket: &OwnedFd, bytes: &[u8], fds: &[BorrowedFd<'_>]) {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() {
        assert!(ancillary.push(SendAncillaryMessage::ScmRights(fds)));
    }
    // The send fails if the server has already closed the connection, as intended.
    let _ = rustix::net::sendmsg(socket, &[IoSlice::new(bytes)], &mut ancillary, SendFlags::NOSIGNAL);
}

fn path(fabric: &Fabric, listener: &dyn Listener) -> PathBuf {
    fabric.kept::<tempfile::TempDir>().unwrap().path().join(format!("shm-{}.sock", listener.local_addr().port()))
}

fn socket(path: &PathBuf) -> OwnedFd {
    let socket = rustix::net::socket(AddressFamily::UNIX, SocketType::SEQPACKET, None).unwrap();
    rustix::net::connect(&socket, &SocketAddrUnix::new(path).unwrap()).unwrap();
    socket
}

/// Connects a raw client. Returns it with the server's end of its connection.
async fn raw(fabric: &Fabric) -> (Raw, End) {
    let mut listener = fabric.provider.listen(fabric.listen).unwrap();
    let socket = socket(&path(fabric, &*listener));
    send(&socket, b"SLIPSHM1\x01\x20\0\x20\0", &[]);
    let request = listener.accept().await.unwrap();
    let server = request.accept(&QpOptions::default(), b"", Vec::new()).await.unwrap();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut bytes = [0; 100];
    let slices = &mut [std::io::IoSliceMut::new(&mut bytes)];
    rustix::net::recvmsg(&socket, slices, &mut ancillary, RecvFlags::empty()).unwrap();
    let control = ancillary.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
        _ => None,
    });
    (Raw { socket, control: control.unwrap() }, End::new(server))
}

async fn ends(end: &mut End) -> QpError {
    let polling = async {
        loop {
            if let Err(error) = poll_fn(|cx| end.qp.poll_completions(cx, &mut end.done)).await {
                return error;
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(30), polling).await.expect("the connection must end")
}

fn memfd(bytes: u64, seals: SealFlags) -> OwnedFd {
    let fd = rustix::fs::memfd_create("hostile", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
    rustix::fs::ftruncate(&fd, bytes).unwrap();
    rustix::fs::fcntl_add_seals(&fd, seals).unwrap();
    fd
}

#[tokio::test]
async fn descriptors_that_are_not_slabs_end_only_their_connection() {
    let fabric = common::shm().with_pool(shared_pool());
    let mut neighbour = fabric.pair().await;
    let (sealed, open) = (memfd(8192, SealFlags::SHRINK), memfd(8192, SealFlags::GROW));
    let (pipe, _) = rustix::pipe::pipe().unwrap();
    let cases: [(&str, u32, u64, Vec<BorrowedFd<'_>>); 8] = [
        ("not sealed", 0, 8192, vec![open.as_fd()]),
        ("8192 bytes, not 12288", 0, 12288, vec![sealed.as_fd()]),
        ("not a memfd", 0, 8192, vec![pipe.as_fd()]),
        ("without its descriptor", 0, 8192, vec![]),
        ("wrong number", 1, 8192, vec![sealed.as_fd()]),
        ("exceeds the limit", 0, u64::MAX, vec![sealed.as_fd()]),
        ("invalid packet", 0, 8192, vec![sealed.as_fd(); 2]),
        ("invalid packet", 0, 8192, vec![sealed.as_fd(); 8]),
    ];
    for (what, number, bytes, fds) in cases {
        let (raw, mut server) = raw(&fabric).await;
        raw.slab(number, bytes, &fds);
        let QpError::Protocol(problem) = ends(&mut server).await else { panic!("{what}: the error was not detected") };
        assert!(problem.contains(what), "{problem}");
    }
    let (raw, mut server) = raw(&fabric).await;
    raw.send(b"\x07nonsense", &[]);
    assert!(matches!(ends(&mut server).await, QpError::Protocol(_)));
    works(&mut neighbour).await;
}

/// Checks that a Send, an RDMA Write and an RDMA Read succeed.
async fn works(pair: &mut conformance::provider::Pair) {
    let data = pattern(1, 9000);
    let (target, source) = (pair.client.expose_for_write(9000), pair.client.expose_for_read(&data));
    let recv = pair.client.recv(10);
    let read = pair.server.read(9000, source.stag, source.offset);
    pair.server.write(data.clone(), target.stag, target.offset);
    let send = pair.server.send_invalidate(Bytes::from_static(b"well"), target.stag, false);
    pair.until(|pair| pair.client.has(&[recv]) && pair.server.has(&[send, read])).await;
    assert!(pair.server.read_result(read) == data);
    let CompletionKind::Receive { invalidated: Some((_, Memory::Write(written))), .. } = pair.client.ok(recv) else {
        panic!("the Send invalidated no region")
    };
    assert!(written.as_host().unwrap()[..] == data[..]);
}

#[tokio::test]
async fn garbage_in_the_control_memory_can_only_end_the_connection() {
    let fabric = common::shm();
    let mut neighbour = fabric.pair().await;
    let mut refused = 0;
    for seed in 0..200 {
        let mut rng = StdRng::seed_from_u64(seed);
        let (raw, mut server) = raw(&fabric).await;
        server.recv(4096);
        server.expose_for_write(1000);
        let mut word = || match rng.random_range(0..4) {
            0 => rng.random(),
            1 => rng.random_range(0..64),
            2 => rng.random_range(0..6u64) << 32 | rng.random_range(0..100u64),
            _ => 0x101,
        };
        let garbage: Vec<u64> = (0..200).map(|_| word()).collect();
        raw.put(64, &garbage);
        // The table of exposures is overwritten as well.
        raw.put((2 * 69_632) / 8, &garbage);
        raw.put(
            0,
            &[match seed % 4 {
                0 => u64::MAX,
                1 => 1 << 20,
                _ => seed % 150,
            }],
        );
        raw.bell();
        for at in 0..10 {
            server.write(pattern(2, 100), Stag(0x101 + at), 0);
            server.read(100, Stag(0x101 + at), 0);
        }
        drop(raw);
        let error = ends(&mut server).await;
        refused += usize::from(matches!(error, QpError::Protocol(_)));
        let returned = server.done.iter().filter(|done| matches!(done.kind, CompletionKind::Read(_))).count();
        assert_eq!(returned, 10, "seed {seed}: every buffer must be returned");
    }
    assert!(refused > 100, "only {refused} violations were detected");
    works(&mut neighbour).await;
}

/// The table contains a region outside the memory, so the server sends its request through the ring instead.
#[tokio::test]
async fn a_table_entry_beyond_its_slab_is_not_used() {
    let fabric = common::shm();
    for (slab, offset) in [(0u64, 8192u64), (0, u64::MAX), (0, 8092)] {
        let (raw, mut server) = raw(&fabric).await;
        raw.slab(0, 8192, &[memfd(8192, SealFlags::SHRINK).as_fd()]);
        let state = 0x101 << 32 | 1;
        raw.put((2 * 69_632) / 8, &[state, slab << 32 | 1000, offset]);
        let write = server.write(pattern(3, 1000), Stag(0x101), 0);
        drop(raw);
        ends(&mut server).await;
        // The data went into the ring, which no one read.
        assert_eq!(server.find(write).unwrap().status, Status::Ok);
    }
    let (raw, mut server) = raw(&fabric).await;
    raw.put((2 * 69_632) / 8, &[0x101 << 32 | 1, 9 << 32 | 1000, 0]);
    server.write(pattern(3, 1000), Stag(0x101), 0);
    assert!(matches!(ends(&mut server).await, QpError::Protocol(_)), "a slab that was not passed must be rejected");
}

#[tokio::test]
async fn memory_that_the_peer_accesses_is_kept_when_the_connection_ends() {
    let pool = shared_pool();
    let fabric = common::shm().with_pool(pool.clone());
    let mut pair = fabric.pair().await;
    let data = pattern(4, 5000);
    let region = pair.client.expose_for_read(&data);
    let view = pair.server.qp.view(rdma::RemoteSegment { stag: region.stag, offset: 1 }, 4999).unwrap();
    assert!(pair.server.qp.view(rdma::RemoteSegment { stag: region.stag, offset: 1 }, 5000).is_none());
    let mut copy = vec![0; 4999];
    // An invalidation waits for the view; the end of the connection does not.
    let invalidate = pair.client.invalidate(region.stag);
    let recv = pair.server.recv(10);
    pair.client.send(Bytes::from_static(b"hello"));
    pair.until(|pair| pair.server.has(&[recv])).await;
    assert!(!pair.client.has(&[invalidate]));
    pair.client.qp.disconnect();
    pair.until_ended().await;
    let CompletionKind::Invalidate(Some(returned @ Memory::Read(_))) = &pair.client.find(invalidate).unwrap().kind
    else {
        panic!("the memory was not returned")
    };
    assert_eq!(returned.as_host(), Some(&data[..]));
    let used = || pool.stats().mapped - pool.stats().free;
    drop(pair);
    view.copy_to(&mut copy);
    assert_eq!(copy, data[1..], "the memory of a view must not be reused");
    // The memory is checked many times in this interval, and stays in use while the view exists.
    tokio::time::pause();
    tokio::time::sleep(Duration::from_secs(10)).await;
    tokio::time::resume();
    assert!(used() > 0);
    drop(view);
    let deadline = Instant::now() + Duration::from_secs(120);
    while Instant::now() < deadline {
        if used() == 0 {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("the memory was not released");
}

#[tokio::test]
async fn an_invalidation_waits_for_the_peers_access() {
    let fabric = common::shm().with_pool(shared_pool());
    let mut pair = fabric.pair().await;
    let region = pair.client.expose_for_read(&pattern(5, 5000));
    let view = pair.server.qp.view(rdma::RemoteSegment { stag: region.stag, offset: 0 }, 5000).unwrap();
    let invalidate = pair.client.invalidate(region.stag);
    let recv = pair.server.recv(10);
    let send = pair.client.send(Bytes::from_static(b"hello"));
    pair.until(|pair| pair.server.has(&[recv])).await;
    assert!(!pair.client.has(&[invalidate]) && !pair.client.has(&[send]), "completions must keep their order");
    let waiting = pair.until(|pair| pair.client.has(&[invalidate, send]));
    let dropping = async {
        tokio::task::yield_now().await;
        drop(view);
    };
    tokio::join!(waiting, dropping);
    assert!(matches!(pair.client.ok(invalidate), CompletionKind::Invalidate(Some(_))));
}

#[tokio::test]
async fn started_requests_are_sent_before_completions_are_polled() {
    let fabric = common::shm();
    let mut pair = fabric.pair().await;
    let recv = pair.server.recv(10);
    let send = pair.client.send(Bytes::from_static(b"hello"));
    pair.client.qp.start();
    while !pair.server.has(&[recv]) {
        poll_fn(|cx| pair.server.qp.poll_completions(cx, &mut pair.server.done)).await.unwrap();
    }
    assert_eq!(pair.server.received(recv), b"hello");
    assert!(!pair.client.has(&[send]), "the completion must be reported only when it is polled");
    pair.until(|pair| pair.client.has(&[send])).await;
}

#[tokio::test]
async fn the_kernel_identifies_the_peers_user() {
    let fabric = common::shm();
    let mut pair = fabric.pair().await;
    for side in [Side::Client, Side::Server] {
        let user = pair.end(side).qp.peer_user().unwrap().clone();
        assert_eq!((user.uid, user.gid), (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw()));
    }
}

/// An idle queue pair must not be polled until its peer acts.
#[tokio::test]
async fn an_idle_connection_sleeps() {
    let fabric = common::shm();
    let mut pair = fabric.pair().await;
    let recvs = [pair.server.recv(10), pair.server.recv(10)];
    pair.client.send(Bytes::from_static(b"hello"));
    pair.until(|pair| pair.server.has(&recvs[..1])).await;
    // The end polls for a while, which can take long on a busy machine: each poll wakes its task. Then it sleeps: a poll wakes
    // nobody.
    let deadline = Instant::now() + Duration::from_secs(120);
    loop {
        let woken = Arc::new(Woken(AtomicBool::new(false)));
        let waker = Waker::from(woken.clone());
        let polled = pair.server.qp.poll_completions(&mut Context::from_waker(&waker), &mut pair.server.done);
        if polled.is_pending() && !woken.0.load(SeqCst) {
            break;
        }
        assert!(Instant::now() < deadline, "the idle end does not stop polling");
        tokio::task::yield_now().await;
    }
    pair.client.send(Bytes::from_static(b"again"));
    pair.until(|pair| pair.server.has(&recvs)).await;
}

struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, SeqCst);
    }
}

/// Creates a fabric whose accepting side enforces these bounds.
fn bounded(bounds: Bounds) -> Fabric {
    common::shm_as(ShmOptions { ledger: Some(Ledger::new(bounds)), ..ShmOptions::default() }, |shm| shm)
}

fn named_memfd(name: &str, bytes: u64) -> OwnedFd {
    let fd = rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
    rustix::fs::ftruncate(&fd, bytes).unwrap();
    rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK).unwrap();
    fd
}

/// Returns the number of mappings of this process of memfds with this name.
fn mappings(name: &str) -> usize {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    maps.lines().filter(|line| line.contains(&format!("memfd:{name} "))).count()
}

impl Raw {
    /// Exposes the first `len` bytes of a slab for writes by the server.
    fn expose(&self, slab: u64, len: u64) {
        self.put((2 * 69_632) / 8, &[0x101 << 32 | 1, slab << 32 | len, 0]);
    }
}

/// Posts a write of the server to the exposed memory. The server first processes all slabs sent before, and writes
/// directly if it has mapped them.
async fn write(server: &mut End, len: usize) {
    server.write(pattern(6, len), Stag(0x101), 0);
    let polled = poll_fn(|cx| Poll::Ready(server.qp.poll_completions(cx, &mut server.done))).await;
    assert!(!matches!(polled, Poll::Ready(Err(_))), "{polled:?}");
}

#[tokio::test]
async fn mappings_of_one_user_are_bounded_over_all_its_connections() {
    let fabric = bounded(Bounds { mappings: 300, descriptors: 300, memfds: 10_000, bytes: 1 << 30 });
    let mut peers = Vec::new();
    for _ in 0..32 {
        let (raw, mut server) = raw(&fabric).await;
        for number in 0..40 {
            raw.slab(number, 8192, &[named_memfd("many-slabs", 8192).as_fd()]);
        }
        raw.expose(39, 1000);
        write(&mut server, 1000).await;
        peers.push((raw, server));
    }
    let mapped = mappings("many-slabs");
    assert!(
        (60..=100).contains(&mapped),
        "{mapped} of {} slabs, although one user is limited to a third of 300",
        32 * 40
    );
    // The user's next connection works, although it may use only the ring.
    let mut pair = fabric.with_pool(shared_pool()).pair().await;
    works(&mut pair).await;
    drop(peers);
    assert_eq!(mappings("many-slabs"), 0);
}

/// A page of a hole that the server writes to is charged to the server as long as the memfd exists.
#[tokio::test]
async fn the_filling_of_holes_is_bounded_over_any_number_of_connections() {
    const SLAB: u64 = 1 << 20;
    let fabric = bounded(Bounds { mappings: 1000, descriptors: 1000, memfds: 1000, bytes: 24 * SLAB });
    let fill = async |count: usize| {
        let memfds: Vec<_> = (0..count).map(|_| named_memfd("sparse", SLAB)).collect();
        for memfd in &memfds {
            let (raw, mut server) = raw(&fabric).await;
            raw.slab(0, SLAB, &[memfd.as_fd()]);
            raw.expose(0, SLAB);
            write(&mut server, SLAB as usize).await;
        }
        memfds
    };
    let filled = |memfds: &[OwnedFd]| {
        memfds.iter().map(|fd| 512 * rustix::fs::fstat(fd).unwrap().st_blocks as u64).sum::<u64>() / SLAB
    };
    let first = fill(20).await;
    assert!((4..=8).contains(&filled(&first)), "{} MiB, although one user is limited to a third of 24", filled(&first));
    let second = fill(20).await;
    assert_eq!(filled(&second), 0, "memory that was filled before still counts");
    drop((first, second));
    let third = fill(20).await;
    assert!((4..=8).contains(&filled(&third)), "{} MiB", filled(&third));
}

#[tokio::test]
async fn a_user_with_too_many_connections_is_rejected_until_one_closes() {
    let fabric = bounded(Bounds { mappings: 20, descriptors: 20, memfds: 100, bytes: 1 << 30 });
    let mut pairs = Vec::new();
    for _ in 0..10 {
        pairs.push(fabric.pair().await);
    }
    let mut listener = fabric.provider.listen(fabric.listen).unwrap();
    let (address, options) = (listener.local_addr(), QpOptions::default());
    let connecting = fabric.connector.connect(address, &options, b"", Vec::new());
    let accepting = async {
        let accepted = listener.accept().await.unwrap().accept(&options, b"", Vec::new()).await;
        accepted.err().expect("the connection must be rejected").to_string()
    };
    let (connected, why) = tokio::join!(connecting, accepting);
    assert_eq!(connected.err().unwrap().kind(), std::io::ErrorKind::ConnectionRefused);
    assert!(why.contains("reached its limit of mappings"), "{why}");
    pairs.pop();
    works(&mut fabric.pair().await).await;
}
