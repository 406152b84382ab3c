//! The client waits for a server that asks to retry later; only a silent server makes an operation time out. The tests
//! run in virtual time over the simulated network.

use std::{
    future::Future,
    sync::{Arc, atomic::Ordering::SeqCst},
    time::Duration,
};

use client::{ErrorKind, LockRange, Mount};
use nfs::v4::{Nfsstat4, Opnum4};
use rpc::Service;
use simnet::Log;
use tokio::{task::JoinSet, time::Instant};
use tracing::Level;

use crate::common::{
    self,
    faulty::Faulty,
    scripted::{CONTENT, Scripted},
    sim,
};

const DEADLINE: Duration = Duration::from_secs(60);
/// A time longer than the deadline, as a grace period can be.
const LONG: Duration = Duration::from_secs(95);
/// The longest pause between two attempts, and the time that a message takes.
const SLACK: Duration = Duration::from_secs(6);

/// Runs a test in virtual time with a mount of these services. Returns its result and the number of warnings.
fn run<S, T, F: Future<Output = T>>(
    url: &str,
    serve: impl FnOnce() -> (Vec<Arc<dyn Service>>, S),
    test: impl FnOnce(S, Mount) -> F,
) -> (T, usize) {
    let warnings = Log::collect(Level::WARN, "");
    let result = sim::run(&format!("{url}&proto=rdma&timeo=60s"), serve, test);
    (result, warnings.lines().len())
}

fn run_scripted<T, F: Future<Output = T>>(test: impl FnOnce(Arc<Scripted>, Mount) -> F) -> (T, usize) {
    run("/?vers=4.1", sim::scripted, test)
}

/// Refuses an operation for a time, and checks that reading and locking a file take that time and succeed. Returns the
/// number of warnings.
fn refused(opnum: Opnum4, status: Nfsstat4, time: Duration) -> usize {
    let ((), warnings) = run_scripted(|scripted, mount| async move {
        let file = mount.open("file").await.unwrap();
        let began = Instant::now();
        scripted.script.lock().refuse = Some((opnum, status, began + time));
        assert_eq!(file.read_bytes(0, 100).await.unwrap(), CONTENT);
        let range = LockRange { offset: 0, length: 10, exclusive: false };
        assert_eq!(mount.v4().unwrap().lock(file.handle(), b"me", range).await.unwrap(), None);
        let took = began.elapsed();
        assert!(took >= time && took < time + SLACK, "{took:?}");
        // SEQUENCE is also sent to renew the lease.
        let (asked, most) = (scripted.script.lock().refused, 10 + time.as_millis() / 2500);
        assert!(opnum == Opnum4::Sequence || u128::from(asked) <= most, "{asked} attempts");
    });
    warnings
}

#[test]
fn open_waits_for_a_grace_period_longer_than_the_deadline() {
    assert_eq!(refused(Opnum4::Open, Nfsstat4::Grace, LONG), 1, "one warning");
}

#[test]
fn every_operation_waits_for_a_busy_server() {
    for opnum in [Opnum4::Read, Opnum4::Open, Opnum4::Lock, Opnum4::Sequence] {
        assert_eq!(refused(opnum, Nfsstat4::Delay, LONG), 1, "{opnum:?}: one warning");
    }
    assert_eq!(refused(Opnum4::Lock, Nfsstat4::Grace, LONG), 1);
}

#[test]
fn operation_waits_for_hours() {
    assert_eq!(refused(Opnum4::Read, Nfsstat4::Delay, Duration::from_secs(3 * 3600)), 1, "one warning");
}

#[test]
fn short_delay_causes_no_warning() {
    assert_eq!(refused(Opnum4::Open, Nfsstat4::Delay, Duration::from_millis(500)), 0);
}

#[test]
fn operation_times_out_if_the_server_becomes_silent_after_a_delay() {
    run_scripted(|scripted, mount| async move {
        let file = mount.open("file").await.unwrap();
        let began = Instant::now();
        {
            let mut script = scripted.script.lock();
            script.refuse = Some((Opnum4::Open, Nfsstat4::Grace, began + LONG));
            script.hold = Some(Opnum4::Read);
        }
        let error = file.read_bytes(0, 100).await.unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::Timeout { .. }), "{error}");
        let silent = began.elapsed() - LONG;
        assert!(silent >= DEADLINE - SLACK && silent < DEADLINE + 2 * SLACK, "{silent:?}");
    });
}

#[test]
fn dropping_the_future_ends_the_retries() {
    run_scripted(|scripted, mount| async move {
        let file = mount.open("file").await.unwrap();
        scripted.script.lock().refuse = Some((Opnum4::Open, Nfsstat4::Grace, Instant::now() + LONG));
        tokio::time::timeout(Duration::from_secs(10), file.read_bytes(0, 100)).await.unwrap_err();
        let asked = scripted.script.lock().refused;
        tokio::time::sleep(LONG).await;
        assert_eq!(scripted.script.lock().refused, asked, "no more attempts must be made");
        assert_eq!(file.read_bytes(0, 100).await.unwrap(), CONTENT);
    });
}

/// The recovering task waits for the server, and the other tasks wait for the recovering one.
#[test]
fn all_users_wait_for_a_recovery_longer_than_the_deadline() {
    let ((), warnings) = run_scripted(|scripted, mount| async move {
        let file = mount.open("file").await.unwrap();
        assert_eq!(file.read_bytes(0, 100).await.unwrap(), CONTENT);
        scripted.restart();
        scripted.script.lock().refuse = Some((Opnum4::ExchangeId, Nfsstat4::Delay, Instant::now() + LONG));
        let mut users = JoinSet::new();
        for _ in 0..5 {
            let file = file.clone();
            users.spawn(async move { file.read_bytes(0, 100).await });
        }
        for read in users.join_all().await {
            assert_eq!(read.unwrap(), CONTENT);
        }
    });
    assert_eq!(warnings, 1, "one warning");
}

#[test]
fn lock_wait_continues_during_a_grace_period() {
    run_scripted(|scripted, mount| async move {
        let file = mount.open("file").await.unwrap();
        scripted.script.lock().refuse = Some((Opnum4::Lock, Nfsstat4::Grace, Instant::now() + LONG));
        let range = LockRange { offset: 0, length: 10, exclusive: false };
        mount.v4().unwrap().lock_wait(file.handle(), b"me", range).await.unwrap();
    });
}

#[test]
fn unreclaimed_state_is_logged_in_one_line() {
    let ((), warnings) = run_scripted(|scripted, mount| async move {
        let file = mount.open("file").await.unwrap();
        let v4 = mount.v4().unwrap();
        for at in 0..50 {
            let range = LockRange { offset: 10 * at, length: 5, exclusive: true };
            assert_eq!(v4.lock(file.handle(), b"me", range).await.unwrap(), None);
        }
        scripted.restart();
        scripted.script.lock().refuse = Some((Opnum4::Lock, Nfsstat4::NoGrace, Instant::now() + LONG));
        assert_eq!(file.read_bytes(0, 100).await.unwrap(), CONTENT);
        assert_eq!(scripted.script.lock().refused, 50);
    });
    assert_eq!(warnings, 1);
}

#[test]
fn v3_waits_for_a_server_busy_longer_than_the_deadline() {
    let serve = || {
        let vfs = Faulty::new(common::memory(), Vec::new());
        (common::nfs_server(vfs.clone()).services(), vfs)
    };
    let ((), warnings) = run("/m?vers=3", serve, |vfs, mount| async move {
        let began = Instant::now();
        vfs.delays.store(40, SeqCst);
        mount.protocol().getattr(mount.root()).await.unwrap();
        assert_eq!(vfs.delays.load(SeqCst), 0);
        assert!(began.elapsed() > DEADLINE, "{:?}", began.elapsed());
    });
    assert_eq!(warnings, 1, "one warning");
}
