//! What has to last: locks of clients that do nothing for several leases, and opens, locks and data over a restart of the server.

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

use crate::{data, exclusive, mount, v4};

/// Takes a lock by each URL, makes DIR/holding, and does nothing until DIR/enough is there; then the locks must be in force, and still
/// these clients' own.
pub async fn idle(dir: &Path, urls: &[&str]) {
    let mut holders = Vec::new();
    for (at, url) in urls.iter().enumerate() {
        holders.push(Holder::new(url, &format!("idle-{at}")).await);
    }
    tell(dir, "holding");
    told(dir, "enough").await;
    for holder in holders {
        holder.still_holds().await;
    }
}

/// Loads a server by each URL, by those of version 4 with a lock held, and makes DIR/restart when all are under way; the server is to be
/// another by the time that DIR/restarted is there. All go on, and nothing is lost.
pub async fn restart(dir: &Path, urls: &[&str]) {
    let (mut holders, mut loads) = (Vec::new(), Vec::new());
    for (at, url) in urls.iter().enumerate() {
        loads.push(Load::start(mount(url).await, format!("loaded-{at}")).await);
        if !url.contains("vers=3") {
            holders.push(Holder::new(url, &format!("kept-{at}")).await);
        }
    }
    for load in &loads {
        load.goes_on().await;
    }
    tell(dir, "restart");
    told(dir, "restarted").await;
    for load in &loads {
        load.goes_on().await;
    }
    for holder in holders {
        holder.still_holds().await;
    }
    for load in loads {
        load.end().await;
    }
}

/// A client with a lock.
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
        assert_eq!(v4(&mount).lock(file.handle(), b"holder", exclusive(2, 6)).await.unwrap(), None);
        Self { url: url.to_owned(), name: name.to_owned(), mount, file }
    }

    /// It is in another client's way, and goes when it is unlocked, which says that it was there.
    async fn still_holds(self) {
        let Self { url, name, mount: own, file } = self;
        let other = mount(&url).await;
        let seen = other.open(&name).await.unwrap();
        let in_the_way = v4(&other).lock(seen.handle(), b"other", exclusive(0, 10)).await.unwrap();
        let in_the_way = in_the_way.unwrap_or_else(|| panic!("{url}: the lock is not in force any more"));
        assert_eq!((in_the_way.offset, in_the_way.length), (2, 6), "{url}");
        assert_eq!(file.read_bytes(0, 10).await.unwrap(), "0123456789");
        v4(&own).unlock(file.handle(), b"holder", 2, 6).await.unwrap_or_else(|error| panic!("{url}: {error}"));
        assert_eq!(v4(&other).lock(seen.handle(), b"other", exclusive(0, 10)).await.unwrap(), None);
        drop((file, seen));
        own.unmount().await.unwrap();
        other.unmount().await.unwrap();
    }
}

/// A client that writes and reads a file all the time.
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
                assert!(read == data(BLOCK, last), "{name}: block {block} is that of round {last}");
            }
            drop(file);
            mount.unmount().await.unwrap();
        });
        Self { rounds, enough, task }
    }

    /// Waits until it has come some way from here.
    async fn goes_on(&self) {
        let before = self.rounds.load(Relaxed);
        while self.rounds.load(Relaxed) < before + BLOCKS {
            assert!(!self.task.is_finished(), "a load has ended");
            tokio::time::sleep(POLL).await;
        }
    }

    async fn end(self) {
        self.enough.store(true, Relaxed);
        self.task.await.unwrap();
    }
}

/// Makes a file that tells somebody something.
fn tell(dir: &Path, what: &str) {
    std::fs::write(dir.join(what), "").unwrap_or_else(|error| panic!("{what}: {error}"));
}

/// Waits for one.
async fn told(dir: &Path, what: &str) {
    while !dir.join(what).exists() {
        tokio::time::sleep(POLL).await;
    }
}

/// Bytes of a write.
const BLOCK: u32 = 64 << 10;
/// Of a loaded file.
const BLOCKS: u32 = 8;
const POLL: Duration = Duration::from_millis(200);
