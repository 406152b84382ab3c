//! Tests that the client reads into and writes from device memory, over every transport and version.
//!
//! The simulated network accesses device memory as an adapter does. Other transports bounce through host memory.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use buf::{Buffer, Pool, PoolOptions, Region};
use bytes::Bytes;
use client::{ErrorKind, Mount, NfsUrl};
use rdma::{
    Completion, CompletionKind,
    hook::{Hook, Hooked, QpId, Verdict},
    iwarp::{Iwarp, IwarpOptions},
    shm::{Shm, ShmOptions},
    sim::{NetworkOptions, Sim},
};
use rpc::{Switch, TcpKind, TransportKind, UdpKind};
use rpcrdma::{Options, RdmaKind};
use server::{Export, ExportId, ExportOptions, HandleKey, NfsServer, Squash};
use testkit::{device::Device, process::process};
use vfs::memory::{Memory, MemoryOptions};

/// The transports, and their names in URLs.
const TRANSPORTS: [(&str, &str); 5] =
    [("tcp", "tcp"), ("udp", "udp"), ("iwarp", "rdma"), ("shm", "shm"), ("sim", "rdma")];

/// Counts registered regions and pieces of device memory.
#[derive(Default)]
struct Registered(AtomicUsize);

impl Hook for Registered {
    fn completed(&self, _: QpId, completion: &Completion) -> Verdict {
        let memory = match &completion.kind {
            CompletionKind::Receive { invalidated: Some((_, memory)), .. } => Some(memory),
            CompletionKind::Invalidate(memory) => memory.as_ref(),
            _ => None,
        };
        if memory.is_some_and(|memory| memory.as_host().is_none()) {
            self.0.fetch_add(1, SeqCst);
        }
        Verdict::Pass
    }
}

fn kind(transport: &str, hook: Arc<Registered>) -> Arc<dyn TransportKind> {
    let rdma = |provider| RdmaKind::new(provider, Options::default());
    match transport {
        "tcp" => Arc::new(TcpKind::default()),
        "udp" => Arc::new(UdpKind::default()),
        "iwarp" => Arc::new(rdma(Arc::new(Hooked::new(Iwarp::new(IwarpOptions::default()), hook)))),
        "sim" => Arc::new(rdma(Arc::new(Hooked::new(Sim::new(NetworkOptions::default()), hook)))),
        _ => {
            let directory = std::env::temp_dir().join(format!("slipway-regions-{}", std::process::id()));
            let provider = Shm::new(ShmOptions { directory: Some(directory), ..ShmOptions::default() });
            let pool = Pool::new(PoolOptions { shared: true, ..PoolOptions::default() });
            Arc::new(rdma(Arc::new(Hooked::new(provider, hook))).with_pool(pool).named("shm"))
        }
    }
}

/// Runs a test with a mount of an empty file system: over the simulated network in a simulation. Returns the number of
/// registrations of device memory.
fn with_mount(transport: &str, proto: &str, version: &str, test: impl AsyncFn(&Mount)) -> usize {
    let registered = Arc::new(Registered::default());
    let run = async {
        let options = ExportOptions { squash: Squash::None, ..ExportOptions::default() };
        let vfs = Arc::new(Memory::new(MemoryOptions::default()));
        let export = Export::new("/m", ExportId::unique(), vfs, options).unwrap();
        let kind = kind(transport, registered.clone());
        let services = NfsServer::new(export, HandleKey::random()).services();
        let (address, _process) = process(&*kind, "127.0.0.1:0".parse().unwrap(), services);
        let mut switch = Switch::new();
        switch.register(kind);
        let url = format!("nfs://{address}/m?proto={proto}&vers={version}&uid=0&gid=0");
        let mount = Mount::connect(&url.parse::<NfsUrl>().unwrap(), &switch).await.unwrap();
        test(&mount).await;
    };
    if transport == "sim" {
        simnet::simulate(0, || run);
    } else {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async { tokio::time::timeout(Duration::from_secs(3600), run).await.unwrap() });
    }
    registered.0.load(SeqCst)
}

fn pattern(len: usize) -> Bytes {
    (0..len as u64).map(|at| (at.wrapping_mul(2_654_435_761) >> 7) as u8).collect::<Vec<_>>().into()
}

#[test]
fn device_data_are_copied_once() {
    for (transport, proto) in TRANSPORTS {
        for version in ["3", "4.0", "4.2"] {
            if (transport, version) == ("udp", "4.0") || (transport, version) == ("udp", "4.2") {
                continue; // RFC 8881 §2.9.1: not over UDP
            }
            let registered = with_mount(transport, proto, version, async |mount| {
                // The last length is more than one READ and more than one WRITE.
                for len in [1, 700, 70_000, mount.read_size() + 5] {
                    let case = format!("{len} bytes over {transport} by {version}");
                    let data = pattern(len);
                    let source = Device::new(data.to_vec());
                    let file = mount.create("f", 0o644).await.unwrap();
                    file.set_len(0).await.unwrap();
                    file.write_at(0, source.range()).await.unwrap();
                    assert_eq!(mount.read("f").await.unwrap(), data, "{case}");
                    assert_eq!(source.copied(), (0, len), "{case}");

                    let target = Device::new(vec![0; len + 7]);
                    let (read, region) = file.read_at(0, Region::from(target.range())).await;
                    assert_eq!(read.unwrap(), len, "{case}");
                    assert_eq!((region.len(), region.as_host().is_none()), (len + 7, true), "{case}");
                    assert!(target.content() == [&data[..], &[0; 7]].concat(), "{case}");
                    assert_eq!(target.copied(), (len, 0), "{case}");
                }
            });
            assert_eq!(registered > 0, transport == "sim", "over {transport}");
        }
    }
}

#[test]
fn a_region_of_host_memory_is_filled_in_place() {
    for (transport, proto) in TRANSPORTS {
        with_mount(transport, proto, "3", async |mount| {
            mount.write("f", pattern(8000)).await.unwrap();
            let file = mount.open("f").await.unwrap();
            let buffer = mount.pool().take(8000);
            let at = buffer.as_ptr();
            let (read, region) = file.read_at(0, Region::from(buffer)).await;
            assert_eq!(read.unwrap(), 8000);
            let buffer = Buffer::try_from(region).unwrap();
            assert!(buffer.as_ptr() == at && buffer[..] == pattern(8000)[..], "over {transport}");
        });
    }
}

#[test]
fn a_device_failure_affects_only_its_caller() {
    for (transport, proto) in TRANSPORTS.into_iter().filter(|(transport, _)| *transport != "sim") {
        with_mount(transport, proto, "3", async |mount| {
            for len in [700, 70_000.min(mount.read_size()), mount.read_size() + 5] {
                mount.write("f", pattern(len)).await.unwrap();
                let file = mount.open("f").await.unwrap();
                let broken = Device::new(vec![0; len]);
                broken.break_down();
                let (read, region) = file.read_at(0, Region::from(broken.range())).await;
                let error = read.unwrap_err();
                assert!(matches!(error.kind(), ErrorKind::Device(_)), "{error}");
                assert_eq!(region.len(), len);
                let error = file.write_at(0, broken.range()).await.unwrap_err();
                assert!(error.to_string().contains("the device has failed"), "{error}");
                assert_eq!(mount.read("f").await.unwrap(), pattern(len), "over {transport}");
            }
        });
    }
}
