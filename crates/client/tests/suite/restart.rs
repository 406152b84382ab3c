//! Servers that restart, with opens and locks held: what is reclaimed, and what is lost.

use std::{sync::Arc, time::Duration};

use crate::common::{Server, for_each, iwarp, memory, port::Port, process, recovery, switch, tcp};
use client::{LockRange, Mount};
use rdma::hook::Tracer;
use rpc::TransportKind;
use server::{Export, ExportId, ExportOptions, HandleKey, NfsServer, Squash, config::Settings};
use tempfile::TempDir;
use tokio::task::JoinSet;
use vfs::Vfs;

for_each! {
    [what_was_locked_is_locked_after_a_restart what_cannot_be_reclaimed_is_lost_and_said_so]
    v4_0 = "vers=4.0"
    v4_1 = "vers=4.1"
    v4_2 = "vers=4.2"
}

for_each! {
    [what_was_locked_is_locked_after_three_restarts]
    three_times_v4_0_tcp = "vers=4.0"
    three_times_v4_0_rdma = "vers=4.0&proto=rdma"
    three_times_v4_1_tcp = "vers=4.1"
    three_times_v4_1_rdma = "vers=4.1&proto=rdma"
    three_times_v4_2_tcp = "vers=4.2"
    three_times_v4_2_rdma = "vers=4.2&proto=rdma"
}

/// What outlives the server's process.
struct Machine {
    vfs: Arc<dyn Vfs>,
    key: HandleKey,
    state: TempDir,
    process: JoinSet<()>,
    port: Port,
    transport: Arc<dyn TransportKind>,
    grace: Duration,
}

impl Machine {
    fn start() -> Self {
        Self::serving(tcp(), GRACE)
    }

    fn serving(transport: Arc<dyn TransportKind>, grace: Duration) -> Self {
        let state = tempfile::tempdir().unwrap();
        let (vfs, key, port) = (Arc::new(memory()), HandleKey::random(), Port::take());
        let mut machine = Self { vfs, key, state, process: JoinSet::new(), port, transport, grace };
        machine.boot();
        machine
    }

    async fn restart(&mut self) {
        self.process.shutdown().await;
        self.boot();
    }

    fn boot(&mut self) {
        let options = ExportOptions { squash: Squash::None, ..ExportOptions::default() };
        let export = Export::new("/m", ExportId::of(&[b"m"]), self.vfs.clone(), options).unwrap();
        let recovery = recovery(self.state.path());
        let settings = Settings { grace: self.grace, ..Settings::default() };
        let nfs = NfsServer::recovering(export, self.key.clone(), recovery, settings).unwrap();
        self.process = process(&*self.transport, self.port.address(), nfs.services()).1;
        self.process.spawn(nfs.upkeep());
    }

    async fn mount(&self, query: &str) -> Mount {
        Server { address: self.port.address(), switch: switch() }.mount(query).await
    }
}

async fn what_was_locked_is_locked_after_a_restart(vers: &str) {
    let mut machine = Machine::start();
    let (one, other) = (machine.mount(vers).await, machine.mount(vers).await);
    // The server refuses an OPEN before RECLAIM_COMPLETE.
    //= rfc8881-18.51.3-1
    one.write("f", &b"0123456789"[..]).await.unwrap();
    let (mine, theirs) = (one.open("f").await.unwrap(), other.open("f").await.unwrap());
    let (mine, theirs) = (mine.handle(), theirs.handle());
    let (one, other) = (one.v4().unwrap(), other.v4().unwrap());
    let range = |offset| LockRange { offset, length: 5, exclusive: true };
    assert_eq!(one.lock(mine, b"a", range(0)).await.unwrap(), None);
    assert_eq!(other.lock(theirs, b"a", range(5)).await.unwrap(), None);
    machine.restart().await;
    // Whichever operation comes first finds the server restarted, and is done.
    one.unlock(mine, b"a", 0, 1).await.unwrap();
    other.unlock(theirs, b"a", 5, 1).await.unwrap();
    let in_the_way = one.lock(mine, b"a", range(5)).await.unwrap().expect("they have reclaimed as well");
    assert_eq!((in_the_way.offset, in_the_way.length), (6, 4));
    let in_the_way = other.test_lock(theirs, b"a", range(0)).await.unwrap().expect("it has been reclaimed");
    assert_eq!((in_the_way.offset, in_the_way.length), (1, 4));
    one.unlock(mine, b"a", 0, 5).await.unwrap();
    assert_eq!(other.lock(theirs, b"a", range(0)).await.unwrap(), None);
}

/// Two clients lose nothing, whatever the server has forgotten and remembered of them between its lives.
async fn what_was_locked_is_locked_after_three_restarts(query: &str) {
    let transport = if query.contains("rdma") { iwarp(Arc::new(Tracer)) } else { tcp() };
    let mut machine = Machine::serving(transport, SHORT_GRACE);
    let (one, other) = (machine.mount(query).await, machine.mount(query).await);
    one.write("f", vec![b'-'; 40]).await.unwrap();
    let (mine, theirs) = (one.open("f").await.unwrap(), other.open("f").await.unwrap());
    let (one, other) = (one.v4().unwrap(), other.v4().unwrap());
    let range = |offset| LockRange { offset, length: 20, exclusive: true };
    assert_eq!(one.lock(mine.handle(), b"a", range(0)).await.unwrap(), None);
    assert_eq!(other.lock(theirs.handle(), b"a", range(20)).await.unwrap(), None);
    for restart in 1..=3 {
        mine.write_at(restart, bytes::Bytes::from_static(b"1")).await.unwrap();
        theirs.write_at(20 + restart, bytes::Bytes::from_static(b"2")).await.unwrap();
        machine.restart().await;
        // Each finds the server restarted with its first operation.
        let unlocked = tokio::join!(
            one.unlock(mine.handle(), b"a", restart - 1, 1),
            other.unlock(theirs.handle(), b"a", 20 + restart - 1, 1),
        );
        assert!(matches!(unlocked, (Ok(()), Ok(()))), "restart {restart}: {unlocked:?}");
        // Neither is told before the grace period has ended.
        let in_the_way = one.test_lock(mine.handle(), b"a", range(20)).await.unwrap();
        assert_eq!(in_the_way.map(|lock| (lock.offset, lock.length)), Some((20 + restart, 20 - restart)));
        let in_the_way = other.test_lock(theirs.handle(), b"a", range(0)).await.unwrap();
        assert_eq!(in_the_way.map(|lock| (lock.offset, lock.length)), Some((restart, 20 - restart)));
        let bytes = theirs.read_bytes(0, 40).await.unwrap();
        let written = |from: usize| &bytes[from + 1..=from + restart as usize];
        assert!(
            written(0).iter().all(|&byte| byte == b'1') && written(20).iter().all(|&byte| byte == b'2'),
            "{bytes:?}"
        );
    }
}

async fn what_cannot_be_reclaimed_is_lost_and_said_so(vers: &str) {
    let mut machine = Machine::start();
    let mount = machine.mount(vers).await;
    mount.write("f", &b"0123456789"[..]).await.unwrap();
    let file = mount.open("f").await.unwrap();
    let v4 = mount.v4().unwrap();
    let range = LockRange { offset: 0, length: 5, exclusive: true };
    assert_eq!(v4.lock(file.handle(), b"a", range).await.unwrap(), None);
    machine.state = tempfile::tempdir().unwrap();
    machine.restart().await;
    assert_eq!(file.read_bytes(0, 100).await.unwrap(), "0123456789", "it is opened anew");
    let error = v4.unlock(file.handle(), b"a", 0, 5).await.unwrap_err();
    assert!(error.to_string().contains("lost locks"), "{error}");
    assert_eq!(v4.lock(file.handle(), b"b", range).await.unwrap(), None, "another owner has lost nothing");
}

/// Enough for a client to find out and reclaim; version 4.0 waits for its end.
const GRACE: Duration = Duration::from_secs(30);
/// The same where it is waited for three times.
const SHORT_GRACE: Duration = Duration::from_secs(10);
