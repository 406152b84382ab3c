//! Long-lived state: locks of clients that are idle for several leases, and opens, locks and data over a restart of the
//! server.

use std::{
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering::Relaxed},
    },
    time::Duration,
};

use client::{File, Mount};
use tokio::task::JoinHandle;

use crate::{data, exclusive, mount};

/// Takes a lock through each URL, creates DIR/holding, and is idle until DIR/enough exists. Then checks that the
/// clients still hold their locks.
pub async fn idle(dir: &Path, urls: &[&str]) {
    let mut holders = Vec::new();
    for (at, url) in urls.iter().enumerate() {
        holders.push(Holder::new(url, &format!("idle-{at}")).await);
    }
    signal(dir, "holding");
    wait_for_signal(dir, "enough").await;
    for holder in holders {
        holder.check_lock().await;
    }
}

/// Writes and reads through each URL, and holds a lock. Creates DIR/restart when all clients run, and waits for
/// DIR/restarted, which means that the server was restarted. Then checks that all clients continue and no data are lost.
pub async fn restart(dir: &Path, urls: &[&str]) {
    let (mut holders, mut loads) = (Vec::new(), Vec::new());
    for (at, url) in urls.iter().enumerate() {
        loads.push(Load::start(mount(url).await, format!("loaded-{at}")).await);
        holders.push(Holder::new(url, &format!("kept-{at}")).await);
    }
    for load in &loads {
        load.wait_for_progress().await;
    }
    signal(dir, "restart");
    wait_for_signal(dir, "restarted").await;
    for load in &loads {
        load.wait_for_progress().await;
    }
    for holder in holders {
        holder.check_lock().await;
    }
    for load in loads {
        load.end().await;
    }
}

/// A client that holds a lock.
struct Holder {
    url: String,
    name: String,
    mount: Mount,
    file: File,
}

impl Holder {
    async fn new(url: &str, name: &str) -> Self {
        let mount = mount(url).await;
        mount.write(name, &b"0123456789"[..]).await.unwrap();
        let file = mount.open(name).await.unwrap();
        assert_eq!(mount.protocol().lock(file.handle(), b"holder", exclusive(2, 6)).await.unwrap(), None);
        Self { url: url.to_owned(), name: name.to_owned(), mount, file }
    }

    /// Checks that the lock conflicts with that of another client, and that unlocking it removes the conflict.
    async fn check_lock(self) {
        let Self { url, name, mount: own, file } = self;
        let other = mount(&url).await;
        let seen = other.open(&name).await.unwrap();
        let conflict = other.protocol().lock(seen.handle(), b"other", exclusive(0, 10)).await.unwrap();
        let conflict = conflict.unwrap_or_else(|| panic!("{url}: the lock is lost"));
        assert_eq!((conflict.offset, conflict.length), (2, 6), "{url}");
        assert_eq!(file.read_bytes(0, 10).await.unwrap(), "0123456789");
        own.protocol().unlock(file.handle(), b"holder", 2, 6).await.unwrap_or_else(|error| panic!("{url}: {error}"));
        assert_eq!(other.protocol().lock(seen.handle(), b"other", exclusive(0, 10)).await.unwrap(), None);
        drop((file, seen));
        own.unmount().await.unwrap();
        other.unmount().await.unwrap();
    }
}

/// A client that writes and reads a file continuously.
struct Load {
    rounds: Arc<AtomicU32>,
    enough: Arc<AtomicBool>,
    task: JoinHandle<()>,
}

impl Load {
    async fn start(mount: Mount, name: String) -> Self {
        let file = mount.create(&name, 0o644).await.unwrap();
        let (rounds, enough) = (Arc::<AtomicU32>::default(), Arc::<AtomicBool>::default());
        let (counted, ends) = (rounds.clone(), enough.clone());
        let task = tokio::spawn(async move {
            let mut round = 0;
            while !ends.load(Relaxed) {
                let offset = u64::from(round % BLOCKS) * u64::from(BLOCK);
                let at = || format!("{name}, round {round}");
                file.write_at(offset, data(BLOCK, round)).await.unwrap_or_else(|error| panic!("{}: {error}", at()));
                let read = file.read_bytes(offset, BLOCK as usize).await;
                assert!(read.unwrap_or_else(|error| panic!("{}: {error}", at())) == data(BLOCK, round), "{}", at());
                round += 1;
                counted.store(round, Relaxed);
            }
            for block in 0..BLOCKS.min(round) {
                let last = (round - 1 - block) / BLOCKS * BLOCKS + block;
                let read = file.read_bytes(u64::from(block) * u64::from(BLOCK), BLOCK as usize).await.unwrap();
                assert!(read == data(BLOCK, last), "{name}: block {block} must be that of round {last}");
            }
            drop(file);
            mount.unmount().await.unwrap();
        });
        Self { rounds, enough, task }
    }

    /// Waits until the client has completed some more rounds.
    async fn wait_for_progress(&self) {
        let before = self.rounds.load(Relaxed);
        while self.rounds.load(Relaxed) < before + BLOCKS {
            assert!(!self.task.is_finished(), "a client has ended");
            tokio::time::sleep(POLL).await;
        }
    }

    async fn end(self) {
        self.enough.store(true, Relaxed);
        self.task.await.unwrap();
    }
}

/// Creates a file as a signal for the calling script.
fn signal(dir: &Path, what: &str) {
    std::fs::write(dir.join(what), "").unwrap_or_else(|error| panic!("{what}: {error}"));
}

/// Waits until the script creates a file.
async fn wait_for_signal(dir: &Path, what: &str) {
    while !dir.join(what).exists() {
        tokio::time::sleep(POLL).await;
    }
}

/// Bytes of each write.
const BLOCK: u32 = 64 << 10;
/// The number of blocks in a file.
const BLOCKS: u32 = 8;
const POLL: Duration = Duration::from_millis(200);
