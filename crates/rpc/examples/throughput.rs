//! Measures the cost of RPC: calls of one size over one connection, with client and server in this process.
//!
//! ```text
//! cargo run --release -p slipway-rpc --example throughput -- [BYTES [IN_FLIGHT [SECONDS [TRANSPORT [read|write]]]]]
//! ```
//!
//! Each call returns (or sends) a payload of BYTES bytes. The processor time counts both sides. The transport "tls" is TCP with
//! TLS. It also prints the rate at which one thread encrypts records of 16 KiB in place, without RPC and without a network.

#[path = "../../testkit/src/pki.rs"]
#[allow(dead_code)]
mod pki;

use std::{
    ops::RangeInclusive,
    sync::Arc,
    time::{Duration, Instant},
};

use aws_lc_rs::aead;
use buf::Buffer;
use bytes::Bytes;
use rpc::{
    Answering, Call, CallOptions, Client, ClientOptions, Procedure, ReplyHeader, ReplyPlan, Server, Service, Switch,
    TcpKind, TransportKind, UdpKind, WorkerOptions, Workers,
};
use rustix::time::{ClockId, clock_gettime};
use xdr::{Decode, Located, Message, Payload};

type Data = Payload<{ 1 << 20 }>;

/// A service that returns the same bytes to each READ, and accepts any WRITE.
struct Source(Bytes);

impl Service for Source {
    fn program(&self) -> u32 {
        PROGRAM
    }

    fn versions(&self) -> RangeInclusive<u32> {
        1..=1
    }

    fn procedure(&self, _: u32, procedure: u32) -> Option<Procedure> {
        let name = [None, Some("READ"), Some("WRITE")].get(procedure as usize).copied().flatten()?;
        Some(Procedure { name, idempotent: true })
    }

    fn call<'a>(&'a self, mut call: Call<'a>) -> Answering<'a> {
        Answering::Pending(Box::pin(async move {
            if call.procedure == WRITE {
                let data = Data::decode(&mut call.arguments)?;
                return Ok(call.reply(&(data.0.len() as u32)));
            }
            call.arguments.finish()?;
            Ok(call.reply(&Data::from(self.0.clone())))
        }))
    }
}

fn locate(prefix: &Bytes) -> Option<Located> {
    Message::locate::<Data>(prefix, |decoder| ReplyHeader::decode(decoder).map(drop))
}

async fn read_until(client: Client, size: usize, end: Instant) -> u64 {
    let mut calls = 0;
    let mut sink = Some(Buffer::zeroed(size).into());
    while Instant::now() < end {
        let plan = ReplyPlan { inline_max: 64, payload_max: size, sink, locate: Some(locate) };
        let answer = client.call::<Data>(READ, &(), plan, CallOptions::default()).await.expect("call failed");
        drop(answer.results);
        sink = answer.sink.and_then(|sink| sink.into_region().ok());
        calls += 1;
    }
    calls
}

async fn write_until(client: Client, size: usize, end: Instant) -> u64 {
    let mut calls = 0;
    let data = Data::from(Bytes::from(vec![7; size]));
    while Instant::now() < end {
        let answer = client.call::<u32>(WRITE, &data, ReplyPlan::default(), CallOptions::default()).await;
        assert_eq!(answer.expect("call failed").results as usize, size);
        calls += 1;
    }
    calls
}

/// Returns TCP with TLS, to connect and to accept.
fn tls_kinds() -> (Arc<dyn TransportKind>, Arc<dyn TransportKind>) {
    let dir = std::env::temp_dir().join(format!("slipway-throughput-{}", std::process::id()));
    std::fs::create_dir_all(&dir).expect("the temporary directory must be writable");
    let mut pki = pki::Pki::new(&dir, "test");
    let (ca, own) = (pki.ca("test"), pki.issue("server", &["127.0.0.1"]));
    let kind = |options: &[(&str, &str)]| {
        let raw = options.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        TcpKind::default().with_options(&raw).expect("options must be valid")
    };
    let client = kind(&[("xprtsec", "tls"), ("tls_ca", &ca), ("tls_name", "127.0.0.1")]);
    let kinds = (client, kind(&[("tls_cert", own.cert()), ("tls_key", own.key())]));
    let _ = std::fs::remove_dir_all(dir);
    kinds
}

/// Returns the gigabytes that one thread encrypts in a second.
fn cipher_rate() -> f64 {
    let key = aead::UnboundKey::new(&aead::AES_256_GCM, &[7; 32]).expect("a key must be made");
    let key = aead::LessSafeKey::new(key);
    let (mut data, mut records, start) = (vec![7; 16 << 10], 0u64, Instant::now());
    while start.elapsed() < Duration::from_secs(1) {
        for _ in 0..64 {
            let nonce =
                aead::Nonce::assume_unique_for_key([&[0; 4], &records.to_be_bytes()[..]].concat().try_into().unwrap());
            let tag = key.seal_in_place_separate_tag(nonce, aead::Aad::from([0; 5]), &mut data);
            std::hint::black_box(tag.expect("data must be encrypted").as_ref());
            records += 1;
        }
    }
    (records << 14) as f64 / start.elapsed().as_secs_f64() / 1e9
}

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let argument = |at, default: u64| {
        std::env::args().nth(at).map_or(default, |text| text.parse().expect("argument is not a number"))
    };
    let (size, in_flight, seconds) = (argument(1, 0) as usize, argument(2, 16), argument(3, 3));
    let mut switch = Switch::new();
    switch.register(Arc::new(TcpKind::default()));
    switch.register(Arc::new(UdpKind::default()));
    let transport = std::env::args().nth(4).unwrap_or("tcp".into());
    let (kind, accepting) = match &transport[..] {
        "tls" => {
            println!("{:.2} GB/s encrypted by one thread", cipher_rate());
            tls_kinds()
        }
        name => {
            let kind = switch.find(name).expect("transport must be tcp, tls or udp");
            (kind.clone(), kind)
        }
    };

    let server = Server::builder().service(Source(vec![7; size].into())).build();
    let workers =
        Workers::new(WorkerOptions { threads: 1, ..WorkerOptions::default() }).expect("cannot start a thread");
    let listener = accepting.listen(([127, 0, 0, 1], 0).into()).expect("cannot listen");
    let address = listener.local_addr();
    workers.listen(server.clone(), listener);

    let client = Client::connect(kind, address, ClientOptions::new(PROGRAM, 1)).await.expect("cannot connect");
    let (start, cpu) = (Instant::now(), clock_gettime(ClockId::ProcessCPUTime));
    let end = start + Duration::from_secs(seconds);
    let write = std::env::args().nth(5).is_some_and(|what| what == "write");
    let caller = |client| match write {
        true => tokio::spawn(write_until(client, size, end)),
        false => tokio::spawn(read_until(client, size, end)),
    };
    let callers: Vec<_> = (0..in_flight).map(|_| caller(client.clone())).collect();
    let mut calls = 0;
    for caller in callers {
        calls += caller.await.expect("a caller panicked");
    }
    let (took, used) = (start.elapsed().as_secs_f64(), clock_gettime(ClockId::ProcessCPUTime));
    let used = (used.tv_sec - cpu.tv_sec) as f64 + (used.tv_nsec - cpu.tv_nsec) as f64 / 1e9;
    let bytes = calls as f64 * size as f64;
    println!("{:.0} calls/s, {:.2} GB/s", calls as f64 / took, bytes / took / 1e9);
    print!("{:.2} CPU µs per call", used / calls as f64 * 1e6);
    match size {
        0 => println!(),
        _ => println!(", {:.3} CPU s per GB", used / (bytes / 1e9)),
    }
}

const PROGRAM: u32 = 0x2000_0002;
const READ: u32 = 1;
const WRITE: u32 = 2;
