//! Servers that restart while clients have opens and locks: state that is reclaimed, and state that is lost.

use std::{sync::Arc, time::Duration};

use crate::common::{
    Server, memory,
    recorder::{Record, Recorded},
    recovery,
    sim::{self, for_each_simulated},
};
use client::{LockRange, Mount};
use nfs::v4::{Argop4, Opnum4};
use server::{BlockingOptions, Export, ExportId, ExportOptions, HandleKey, NfsServer, Squash, config::Settings};
use simnet::Network;
use tempfile::TempDir;
use tokio::task::JoinSet;
use vfs::Vfs;

for_each_simulated! {
    [
        locks_survive_a_restart
        lost_locks_are_reported
    ]
    v3_tcp = "vers=3"
    v3_rdma = "vers=3&proto=rdma"
    v4_0_locks = "vers=4.0"
    v4_1_locks = "vers=4.1"
    v4_2_locks = "vers=4.2"
}

for_each_simulated! {
    [
        lost_locks_are_not_reclaimed_after_the_next_restart
        client_recovers_if_it_finds_the_restart_after_the_grace_period
    ]
    v4_0 = "vers=4.0"
    v4_1 = "vers=4.1"
    v4_2 = "vers=4.2"
}

for_each_simulated! {
    [locks_survive_three_restarts]
    three_times_v3_tcp = "vers=3"
    three_times_v3_rdma = "vers=3&proto=rdma"
    three_times_v4_0_tcp = "vers=4.0"
    three_times_v4_0_rdma = "vers=4.0&proto=rdma"
    three_times_v4_1_tcp = "vers=4.1"
    three_times_v4_1_rdma = "vers=4.1&proto=rdma"
    three_times_v4_2_tcp = "vers=4.2"
    three_times_v4_2_rdma = "vers=4.2&proto=rdma"
}

/// The parts of a server that survive a restart of its process.
pub struct Machine {
    pub network: Network,
    vfs: Arc<dyn Vfs>,
    key: HandleKey,
    pub state: TempDir,
    process: JoinSet<()>,
    record: Record,
}

impl Machine {
    pub fn start(network: Network) -> Self {
        let state = tempfile::tempdir().unwrap();
        let (vfs, key) = (Arc::new(memory()), HandleKey::random());
        let record = Record::default();
        let mut machine = Self { network, vfs, key, state, process: JoinSet::new(), record };
        machine.boot();
        machine
    }

    pub async fn restart(&mut self) {
        self.process.shutdown().await;
        self.boot();
    }

    fn boot(&mut self) {
        let options = ExportOptions { squash: Squash::None, ..ExportOptions::default() };
        let export = Export::new("/m", ExportId::of(&[b"m"]), self.vfs.clone(), options).unwrap();
        let recovery = recovery(self.state.path());
        // In virtual time, no task may wait for another thread.
        let blocking = BlockingOptions { threads: 0, ..BlockingOptions::default() };
        let settings = Settings { blocking, grace: GRACE, ..Settings::default() };
        let nfs = NfsServer::recovering(export, self.key.clone(), recovery, settings).unwrap();
        self.process = sim::start(&self.network, self.record.wrap(nfs.services()));
        self.process.spawn(nfs.upkeep());
    }

    pub async fn mount(&self, query: &str) -> Mount {
        self.mount_of(1, query).await
    }

    /// Mounts for the host with this number.
    pub async fn mount_of(&self, number: u8, query: &str) -> Mount {
        Server { address: sim::SERVER, switch: sim::switch(&self.network, number) }.mount(query).await
    }
}

async fn locks_survive_a_restart(network: Network, vers: &str) {
    let mut machine = Machine::start(network);
    let (one, other) = (machine.mount(vers).await, machine.mount(vers).await);
    // The server refuses an OPEN before RECLAIM_COMPLETE.
    //= rfc8881-18.51.3-1
    one.write("f", &b"0123456789"[..]).await.unwrap();
    let (mine, theirs) = (one.open("f").await.unwrap(), other.open("f").await.unwrap());
    let (mine, theirs) = (mine.handle(), theirs.handle());
    let (one, other) = (one.protocol(), other.protocol());
    let range = |offset| LockRange { offset, length: 5, exclusive: true };
    assert_eq!(one.lock(mine, b"a", range(0)).await.unwrap(), None);
    assert_eq!(other.lock(theirs, b"a", range(5)).await.unwrap(), None);
    machine.restart().await;
    // The first operation of any kind detects the restart and succeeds.
    one.unlock(mine, b"a", 0, 1).await.unwrap();
    other.unlock(theirs, b"a", 5, 1).await.unwrap();
    let conflict =
        one.lock(mine, b"a", range(5)).await.unwrap().expect("the other client must have reclaimed its lock");
    assert_eq!((conflict.offset, conflict.length), (6, 4));
    let conflict = other.test_lock(theirs, b"a", range(0)).await.unwrap().expect("the lock must have been reclaimed");
    assert_eq!((conflict.offset, conflict.length), (1, 4));
    one.unlock(mine, b"a", 0, 5).await.unwrap();
    assert_eq!(other.lock(theirs, b"a", range(0)).await.unwrap(), None);
}

/// The server refuses the reclaim of the locks after the first restart, and would allow it after the second one.
async fn lost_locks_are_not_reclaimed_after_the_next_restart(network: Network, vers: &str) {
    let mut machine = Machine::start(network);
    let mount = machine.mount(vers).await;
    mount.write("f", &b"0123456789"[..]).await.unwrap();
    let file = mount.open("f").await.unwrap();
    let v4 = mount.v4().unwrap();
    let range = |offset| LockRange { offset, length: 5, exclusive: true };
    assert_eq!(v4.lock(file.handle(), b"lost", range(0)).await.unwrap(), None);
    machine.state = tempfile::tempdir().unwrap();
    machine.restart().await;
    assert_eq!(v4.lock(file.handle(), b"kept", range(5)).await.unwrap(), None);
    let before = machine.record.len();
    machine.restart().await;
    v4.unlock(file.handle(), b"kept", 5, 1).await.unwrap();
    let reclaims = machine.record.all().split_off(before).into_iter().filter(Recorded::reclaims);
    let locks: Vec<_> = reclaims.filter(|one| one.has(Opnum4::Lock)).flat_map(|one| one.args.argarray).collect();
    let offsets: Vec<_> =
        locks.iter().filter_map(|op| if let Argop4::Lock(lock) = op { Some(lock.offset) } else { None }).collect();
    //= rfc8881-18.51.3-3
    assert_eq!(offsets, [5], "only the lock that the client holds must be reclaimed");
    let error = v4.unlock(file.handle(), b"lost", 0, 5).await.unwrap_err();
    assert!(error.to_string().contains("lost the locks"), "{error}");
}

/// The network loses all messages while the server restarts and its grace period ends.
async fn client_recovers_if_it_finds_the_restart_after_the_grace_period(network: Network, vers: &str) {
    let mut machine = Machine::start(network);
    let mount = machine.mount(&format!("{vers}&timeo=600s")).await;
    mount.write("f", &b"0123456789"[..]).await.unwrap();
    let file = mount.open("f").await.unwrap();
    let v4 = mount.v4().unwrap();
    let range = LockRange { offset: 0, length: 5, exclusive: true };
    assert_eq!(v4.lock(file.handle(), b"a", range).await.unwrap(), None);
    let before = machine.record.len();
    machine.network.stall(3 * GRACE);
    machine.restart().await;
    assert_eq!(file.read_bytes(0, 100).await.unwrap(), "0123456789", "the file must be opened again");
    let after = machine.record.all().split_off(before);
    let refused = after.iter().find(|one| one.reclaims()).expect("the client must have tried to reclaim");
    assert!(after[0].at.elapsed() < GRACE && refused.has(Opnum4::Open), "{refused:?}");
    //= rfc8881-8.3-2
    let error = v4.unlock(file.handle(), b"a", 0, 5).await.unwrap_err();
    assert!(error.to_string().contains("lost the locks"), "{error}");
    v4.release_locks(file.handle(), b"a").await.unwrap();
    assert_eq!(v4.lock(file.handle(), b"a", range).await.unwrap(), None);
}

/// Two clients keep their locks over three restarts.
async fn locks_survive_three_restarts(network: Network, query: &str) {
    let mut machine = Machine::start(network);
    let (one, other) = (machine.mount(query).await, machine.mount(query).await);
    one.write("f", vec![b'-'; 40]).await.unwrap();
    let (mine, theirs) = (one.open("f").await.unwrap(), other.open("f").await.unwrap());
    let (one, other) = (one.protocol(), other.protocol());
    let range = |offset| LockRange { offset, length: 20, exclusive: true };
    assert_eq!(one.lock(mine.handle(), b"a", range(0)).await.unwrap(), None);
    assert_eq!(other.lock(theirs.handle(), b"a", range(20)).await.unwrap(), None);
    for restart in 1..=3 {
        mine.write_at(restart, bytes::Bytes::from_static(b"1")).await.unwrap();
        theirs.write_at(20 + restart, bytes::Bytes::from_static(b"2")).await.unwrap();
        machine.restart().await;
        // Each client detects the restart with its first operation.
        let unlocked = tokio::join!(
            one.unlock(mine.handle(), b"a", restart - 1, 1),
            other.unlock(theirs.handle(), b"a", 20 + restart - 1, 1),
        );
        assert!(matches!(unlocked, (Ok(()), Ok(()))), "restart {restart}: {unlocked:?}");
        // The server does not grant these requests before the grace period has ended.
        let conflict = one.test_lock(mine.handle(), b"a", range(20)).await.unwrap();
        assert_eq!(conflict.map(|lock| (lock.offset, lock.length)), Some((20 + restart, 20 - restart)));
        let conflict = other.test_lock(theirs.handle(), b"a", range(0)).await.unwrap();
        assert_eq!(conflict.map(|lock| (lock.offset, lock.length)), Some((restart, 20 - restart)));
        let bytes = theirs.read_bytes(0, 40).await.unwrap();
        let written = |from: usize| &bytes[from + 1..=from + restart as usize];
        assert!(
            written(0).iter().all(|&byte| byte == b'1') && written(20).iter().all(|&byte| byte == b'2'),
            "{bytes:?}"
        );
    }
}

async fn lost_locks_are_reported(network: Network, vers: &str) {
    let mut machine = Machine::start(network);
    let mount = machine.mount(vers).await;
    mount.write("f", &b"0123456789"[..]).await.unwrap();
    let file = mount.open("f").await.unwrap();
    let locks = mount.protocol();
    let range = LockRange { offset: 0, length: 5, exclusive: true };
    assert_eq!(locks.lock(file.handle(), b"a", range).await.unwrap(), None);
    machine.state = tempfile::tempdir().unwrap();
    machine.restart().await;
    assert_eq!(file.read_bytes(0, 100).await.unwrap(), "0123456789", "the file must be usable again");
    let error = locks.unlock(file.handle(), b"a", 0, 5).await.unwrap_err();
    assert!(error.to_string().contains("lost the locks"), "{error}");
    assert_eq!(locks.lock(file.handle(), b"b", range).await.unwrap(), None, "another owner must be able to lock");
}

/// Long enough for a client to detect the restart and reclaim. NFSv4.0 waits for its end.
pub const GRACE: Duration = Duration::from_secs(30);
