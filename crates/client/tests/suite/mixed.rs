//! A session of NFSv4.1 over one connection by TCP and one by RDMA, either of which is cut repeatedly.
//!
//! The connections are real sockets, because they are cut in the middle of a record or of an iWARP frame. A simulated network
//! cuts RDMA connections only between messages; `faults.rs` has that test.

use crate::common;
use std::sync::{Arc, atomic::Ordering::Relaxed};

use crate::common::{
    Server, nfs_server, pattern,
    proxy::{self, Cutter},
};
use bytes::Bytes;
use client::{Mount, OpenOptions, StableHow};
use futures_util::future::join_all;

/// A mount by both transports. Each goes through a proxy that cuts a number of connections after less than `most` bytes
/// each.
struct Mixed {
    mount: Mount,
    tcp: Cutter,
    rdma: Cutter,
}

impl Mixed {
    async fn new([tcp_cuts, rdma_cuts]: [usize; 2], most: usize) -> Self {
        let (nfs, switch) = (nfs_server(Arc::new(common::memory())), common::switch());
        let by = async |proto: &str, cuts| {
            let kind = switch.find(proto).unwrap();
            let server = Server::serving(&*kind, nfs.services()).await;
            proxy::start(server.address, 7, cuts, most).await
        };
        let (tcp, rdma) = (by("tcp", tcp_cuts).await, by("rdma", rdma_cuts).await);
        let text = format!("nfs://{}/m?proto=tcp&vers=4.1&addr=rdma@{}&uid=0&gid=0", tcp.address, rdma.address);
        let mount = Mount::connect(&text.parse().unwrap(), &switch).await.unwrap();
        Self { mount, tcp, rdma }
    }

    fn cuts(&self) -> [usize; 2] {
        [&self.tcp, &self.rdma].map(|cutter| cutter.cuts.load(Relaxed))
    }
}

/// Creates, writes, renames, reads and removes files and checks the results, until `enough` returns `true`. Each
/// operation would fail if it were executed twice.
async fn work(mount: &Mount, number: usize, enough: impl Fn() -> bool) {
    let exclusive = OpenOptions { create: Some(0o644), exclusive: true, truncate: false };
    let data: Bytes = pattern(LEN + number);
    for round in 0.. {
        let (made, kept) = (format!("{number}-{round}"), format!("{number}-kept"));
        let file = mount.open_with(&made, exclusive).await.unwrap();
        for start in (0..data.len()).step_by(BLOCK) {
            let block = data.slice(start..data.len().min(start + BLOCK));
            mount.protocol().write(file.handle(), start as u64, block.into(), StableHow::FileSync).await.unwrap();
        }
        mount.mkdir(format!("{made}-dir"), 0o755).await.unwrap();
        mount.rename(&made, &kept).await.unwrap();
        assert!(mount.read(&kept).await.unwrap() == data, "{kept} in round {round}");
        mount.rmdir(format!("{made}-dir")).await.unwrap();
        if enough() {
            return;
        }
        mount.remove(&kept).await.unwrap();
    }
}

#[tokio::test]
async fn no_data_are_lost_when_either_connection_is_cut() {
    for cuts in [[8, 0], [0, 8], [8, 8]] {
        let mixed = Mixed::new(cuts, 250_000).await;
        let enough = || mixed.cuts().iter().zip(cuts).all(|(done, wanted)| *done >= wanted);
        join_all((0..WORKERS).map(|number| work(&mixed.mount, number, enough))).await;
        assert_eq!(mixed.mount.v4().unwrap().connections(), 2);
        let mut names: Vec<_> = mixed.mount.read_dir("").await.unwrap().collect().await.unwrap();
        names.sort_by(|a, b| a.name.cmp(&b.name));
        let expected: Vec<_> = (0..WORKERS).map(|number| Bytes::from(format!("{number}-kept"))).collect();
        assert_eq!(names.into_iter().map(|entry| entry.name).collect::<Vec<_>>(), expected);
    }
}

const WORKERS: usize = 6;
const LEN: usize = 300_000;
const BLOCK: usize = 64 << 10;
