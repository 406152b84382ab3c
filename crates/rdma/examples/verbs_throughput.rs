//! Measures the throughput of a provider alone: concurrent requests that are answered by RDMA Write or RDMA Read, over
//! loopback.
//!
//! `cargo run --release -p slipway-rdma --example verbs_throughput -- [write|read|inline] [bytes] [in flight]
//! [seconds]`
//!
//! The server answers each small Send with one RDMA Write (or RDMA Read) of the given size and a Send, as an NFS server
//! does for READ (or WRITE).

use std::{
    future::poll_fn,
    net::SocketAddr,
    time::{Duration, Instant},
};

use buf::{Buffer, Rope};
use bytes::Bytes;
use rdma::{
    Completion, CompletionKind, Memory, Provider, QpOptions, QueuePair, RemoteSegment, Stag, WorkId, WorkRequest,
    iwarp::{Iwarp, IwarpOptions},
};

#[derive(Clone, Copy, PartialEq)]
enum Mode {
    Write,
    Read,
    Inline,
}

fn main() {
    let args: Vec<String> = std::env::args().collect();
    let mode = match args.get(1).map(String::as_str) {
        Some("read") => Mode::Read,
        Some("inline") => Mode::Inline,
        _ => Mode::Write,
    };
    let number =
        |at: usize, default| args.get(at).map_or(default, |text| text.parse().expect("the argument must be a number"));
    let (bytes, in_flight, seconds) = (number(2, 131_072), number(3, 8), number(4, 3));
    let (address_sender, address_receiver) = std::sync::mpsc::channel();
    std::thread::spawn(move || runtime().block_on(serve(address_sender, mode, bytes)));
    let at = address_receiver.recv().expect("the server must listen");
    runtime().block_on(request(at, mode, bytes, in_flight, Duration::from_secs(seconds as u64)));
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("the runtime must start")
}

fn iwarp() -> Iwarp {
    Iwarp::new(IwarpOptions { congestion: Some("cubic".into()), ..IwarpOptions::default() })
}

async fn next(qp: &mut Box<dyn QueuePair>, done: &mut Vec<Completion>) -> bool {
    done.clear();
    poll_fn(|cx| qp.poll_completions(cx, done)).await.is_ok()
}

async fn serve(address_sender: std::sync::mpsc::Sender<SocketAddr>, mode: Mode, bytes: usize) {
    let mut listener = iwarp().listen("127.0.0.1:0".parse().unwrap()).unwrap();
    address_sender.send(listener.local_addr()).unwrap();
    let request = listener.accept().await.unwrap();
    let recvs = (0..256).map(|id| (WorkId(id), Buffer::zeroed(4096))).collect();
    let mut qp = request.accept(&QpOptions::default(), b"", recvs).await.unwrap();
    let data = Bytes::from(vec![7; bytes]);
    let mut spare: Vec<Buffer> = (0..256).map(|_| Buffer::zeroed(bytes)).collect();
    let mut done = Vec::new();
    while next(&mut qp, &mut done).await {
        for completion in done.drain(..) {
            match completion.kind {
                CompletionKind::Receive { mut buffer, .. } if completion.status == rdma::Status::Ok => {
                    let stag = Stag(u32::from_be_bytes(buffer[..4].try_into().unwrap()));
                    let offset = u64::from_be_bytes(buffer[4..12].try_into().unwrap());
                    let id = WorkId(u64::from(stag.0));
                    match mode {
                        Mode::Write => {
                            let to = RemoteSegment { stag, offset };
                            qp.post(WorkRequest::Write { id, data: data.clone().into(), to }).unwrap();
                            reply(&mut qp, stag);
                        }
                        Mode::Read => {
                            let into = spare.pop().unwrap();
                            qp.post(WorkRequest::Read { id, into, from: RemoteSegment { stag, offset } }).unwrap();
                        }
                        Mode::Inline => {
                            reply(&mut qp, stag);
                        }
                    }
                    buffer.set_len(4096);
                    qp.post_recv(completion.id, buffer);
                }
                CompletionKind::Read(into) => {
                    spare.push(into);
                    reply(&mut qp, Stag(completion.id.0 as u32));
                }
                _ => {}
            }
        }
    }
}

fn reply(qp: &mut Box<dyn QueuePair>, stag: Stag) {
    let data = Rope::from(Bytes::from_static(&[1; 160]));
    qp.post(WorkRequest::Send { id: WorkId(0), data, invalidate: Some(stag), solicited: false }).unwrap();
}

async fn request(at: SocketAddr, mode: Mode, bytes: usize, in_flight: usize, duration: Duration) {
    let recvs = (0..256).map(|id| (WorkId(id), Buffer::zeroed(4096))).collect();
    let mut qp = iwarp().connect(at, &QpOptions::default(), b"", recvs).await.unwrap().qp;
    for _ in 0..in_flight {
        let memory = match mode {
            Mode::Read => Memory::Read(Bytes::from(vec![9; bytes]).into()),
            _ => Memory::Write(Buffer::zeroed(bytes).into()),
        };
        send_request(&mut qp, memory);
    }
    let (start, cpu, mut count, mut done) = (Instant::now(), cpu_seconds(), 0u64, Vec::new());
    while start.elapsed() < duration && next(&mut qp, &mut done).await {
        for completion in done.drain(..) {
            if let CompletionKind::Receive { mut buffer, invalidated: Some((_, memory)), .. } = completion.kind {
                count += 1;
                buffer.set_len(4096);
                qp.post_recv(completion.id, buffer);
                send_request(&mut qp, memory);
            }
        }
    }
    let elapsed = start.elapsed().as_secs_f64();
    let gigabytes = if mode == Mode::Inline { 0.0 } else { count as f64 * bytes as f64 / 1e9 };
    let cpu = cpu_seconds() - cpu;
    println!(
        "{:.0} requests/s, {:.2} GB/s, CPU of both ends: {:.1} us/request, {:.2} s/GB",
        count as f64 / elapsed,
        gigabytes / elapsed,
        cpu / count as f64 * 1e6,
        cpu / gigabytes,
    );
}

fn send_request(qp: &mut Box<dyn QueuePair>, memory: Memory) {
    let region = qp.register(memory).expect("registration must succeed");
    let mut call = vec![0; 180];
    call[..4].copy_from_slice(&region.stag.0.to_be_bytes());
    call[4..12].copy_from_slice(&region.offset.to_be_bytes());
    qp.post(WorkRequest::Send { id: WorkId(0), data: Bytes::from(call).into(), invalidate: None, solicited: false })
        .unwrap();
}

/// Returns the user and system time of this process, in seconds.
fn cpu_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
    (fields[11].parse::<f64>().unwrap() + fields[12].parse::<f64>().unwrap()) / 100.0
}
