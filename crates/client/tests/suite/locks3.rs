//! Locks over NFSv3, which the server's lock manager holds (NLM): between clients, over lost connections and restarts, and without a lock
//! manager. `restart.rs` has what all versions have in common.

use std::{
    future::pending,
    net::SocketAddr,
    ops::RangeInclusive,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering::SeqCst},
    },
    time::Duration,
};

use client::{ErrorKind, Handle, LockRange, Mount, Protocol, Status};
use nfs::nlm::{
    Holder, LockArgs, NLM_PROGRAM, Nlm4Stats, NlmProc4, Res, TestArgs, TestReply, TestRes, UnlockArgs, VERSION,
};
use parking_lot::Mutex;
use rpc::{
    Answering, Call, Procedure, Service,
    rpcbind::{self, Binding, Netid, Registry, Rpcbind},
};
use server::{
    BlockingOptions, Export, ExportId, ExportOptions, HandleKey, NfsServer, Squash, config::Settings,
    recovery::Recovery,
};
use simnet::Network;
use tokio::{
    task::JoinSet,
    time::{Instant, sleep, timeout},
};

use xdr::Decode;

use crate::{
    common::{
        Server, memory,
        sim::{self, SERVER, simulate},
    },
    restart::{GRACE, Machine},
};

const fn exclusive(offset: u64, length: u64) -> LockRange {
    LockRange { offset, length, exclusive: true }
}

const fn shared(offset: u64, length: u64) -> LockRange {
    LockRange { exclusive: false, ..exclusive(offset, length) }
}

const ALL: LockRange = exclusive(0, u64::MAX);

/// Two mounts of different hosts, and a file.
struct Two {
    a: Mount,
    b: Mount,
    file: Handle,
}

impl Two {
    async fn new(machine: &Machine, one: &str, another: &str) -> Self {
        let (a, b) = (machine.mount_of(1, one).await, machine.mount_of(2, another).await);
        a.write("f", &b"0123456789"[..]).await.unwrap();
        let file = a.resolve("f").await.unwrap().handle;
        Self { a, b, file }
    }

    /// Returns the locks of the first mount, those of the second one, and the file.
    fn parts(&self) -> (&Protocol, &Protocol, &Handle) {
        (self.a.protocol(), self.b.protocol(), &self.file)
    }
}

fn with_two(test: impl AsyncFnOnce(&mut Machine, &Two)) {
    simulate(|network| async move {
        let mut machine = Machine::start(network);
        let two = Two::new(&machine, "vers=3", "vers=3").await;
        test(&mut machine, &two).await;
    });
}

#[test]
fn locks_exclude_other_owners_by_range() {
    with_two(async |_machine, two| {
        let (a, b, file) = two.parts();
        assert_eq!(a.lock(file, b"p", exclusive(10, 10)).await.unwrap(), None);
        assert_eq!(b.lock(file, b"p", shared(19, u64::MAX)).await.unwrap(), Some(exclusive(10, 10)));
        assert_eq!(
            a.lock(file, b"q", shared(0, 11)).await.unwrap(),
            Some(exclusive(10, 10)),
            "another owner of the mount"
        );
        assert_eq!(b.test_lock(file, b"p", shared(15, 1)).await.unwrap(), Some(exclusive(10, 10)));
        assert_eq!(a.test_lock(file, b"p", exclusive(15, 1)).await.unwrap(), None, "its own lock");
        assert_eq!(b.lock(file, b"p", exclusive(20, u64::MAX)).await.unwrap(), None);
        assert_eq!(a.test_lock(file, b"p", shared(1 << 40, 1)).await.unwrap(), Some(exclusive(20, u64::MAX)));
        a.unlock(file, b"p", 12, 2).await.unwrap();
        assert_eq!(b.lock(file, b"p", exclusive(12, 2)).await.unwrap(), None);
        assert_eq!(b.lock(file, b"p", exclusive(11, 1)).await.unwrap(), Some(exclusive(10, 2)));
        assert_eq!(a.lock(file, b"p", shared(10, 2)).await.unwrap(), None, "the same owner changes the kind");
        assert_eq!(b.lock(file, b"p", shared(10, 1)).await.unwrap(), None);
        for (locks, owner) in [(a, b"p"), (b, b"p")] {
            locks.release_locks(file, owner).await.unwrap();
        }
        assert_eq!(a.lock(file, b"q", ALL).await.unwrap(), None);
        assert!(a.lock(file, b"q", exclusive(0, 0)).await.is_err(), "no bytes");
        assert_eq!(a.lock(file, b"q", exclusive(1 << 63, 1)).await.unwrap_err().status(), Some(Status::InvalidRange));
    });
}

#[test]
fn versions_see_locks_of_each_other() {
    simulate(|network| async move {
        let machine = Machine::start(network);
        let two = Two::new(&machine, "vers=3", "vers=4.1").await;
        let (a, b, file) = two.parts();
        assert_eq!(a.lock(file, b"p", exclusive(0, 5)).await.unwrap(), None);
        assert_eq!(b.lock(file, b"p", exclusive(0, 5)).await.unwrap(), Some(exclusive(0, 5)));
        assert_eq!(b.lock(file, b"p", exclusive(5, 5)).await.unwrap(), None);
        assert_eq!(a.test_lock(file, b"p", ALL).await.unwrap(), Some(exclusive(5, 5)));
    });
}

#[test]
fn waiting_owner_gets_the_lock_soon_after_its_release() {
    with_two(async |_machine, two| {
        let (a, b, file) = two.parts();
        // An owner of another machine asks again within a second, one of the same mount at once.
        for (waiter, bound) in [(b, Duration::from_millis(1100)), (a, Duration::from_millis(50))] {
            assert_eq!(a.lock(file, b"p", ALL).await.unwrap(), None);
            let release = async {
                sleep(Duration::from_secs(30)).await;
                a.unlock(file, b"p", 0, u64::MAX).await.unwrap();
                Instant::now()
            };
            let (got, released) = tokio::join!(
                async {
                    waiter.lock_until(file, b"w", exclusive(3, 3), pending()).await.unwrap();
                    Instant::now()
                },
                release
            );
            assert!(got.duration_since(released) <= bound, "{:?}", got.duration_since(released));
            assert_eq!(a.lock(file, b"p", ALL).await.unwrap(), Some(exclusive(3, 3)));
            waiter.release_locks(file, b"w").await.unwrap();
        }
    });
}

#[test]
fn owner_that_gives_up_gets_no_lock() {
    with_two(async |_machine, two| {
        let (a, b, file) = two.parts();
        assert_eq!(a.lock(file, b"p", ALL).await.unwrap(), None);
        let error = b.lock_until(file, b"p", ALL, sleep(Duration::from_secs(5))).await.unwrap_err();
        assert_eq!(error.status(), Some(Status::LockDenied));
        let hurried = b.with_deadline(Duration::from_secs(3));
        assert_eq!(hurried.lock_wait(file, b"p", ALL).await.unwrap_err().status(), Some(Status::LockDenied));
        // The future of this one is dropped.
        timeout(Duration::from_secs(3), b.lock_until(file, b"p", ALL, pending())).await.unwrap_err();
        a.unlock(file, b"p", 0, u64::MAX).await.unwrap();
        sleep(Duration::from_secs(60)).await;
        assert_eq!(a.test_lock(file, b"q", ALL).await.unwrap(), None);
    });
}

/// The answers of the server arrive after the callers have given up.
#[test]
fn late_lock_is_unlocked_again() {
    with_two(async |machine, two| {
        let (a, b, file) = two.parts();
        let hurried = a.with_deadline(Duration::from_secs(1));
        assert_eq!(a.lock(file, b"p", exclusive(0, 5)).await.unwrap(), None);
        machine.network.stall(Duration::from_secs(10));
        let late = hurried.lock(file, b"p", exclusive(0, 10)).await.unwrap_err();
        assert!(matches!(late.kind(), ErrorKind::Timeout { .. }), "{late}");
        // The next operation of the owner waits for the outcome of this one.
        assert_eq!(a.lock(file, b"p", exclusive(20, 5)).await.unwrap(), None);
        sleep(Duration::from_secs(1)).await;
        assert_eq!(b.lock(file, b"p", exclusive(5, 15)).await.unwrap(), None, "bytes 5 to 9 must be unlocked again");
        assert_eq!(
            b.lock(file, b"p", exclusive(4, 1)).await.unwrap(),
            Some(exclusive(0, 5)),
            "the older lock must stay"
        );
        assert_eq!(b.lock(file, b"p", exclusive(20, 1)).await.unwrap(), Some(exclusive(20, 5)));
        // An unlock is completed even if its caller gives up.
        machine.network.stall(Duration::from_secs(10));
        hurried.unlock(file, b"p", 20, 5).await.unwrap_err();
        sleep(Duration::from_secs(15)).await;
        assert_eq!(b.lock(file, b"p", exclusive(20, 5)).await.unwrap(), None);
    });
}

#[test]
fn locks_end_with_the_mount() {
    simulate(|network| async move {
        let machine = Machine::start(network);
        for unmounts in [true, false] {
            let two = Two::new(&machine, "vers=3", "vers=3").await;
            let file = two.file.clone();
            for owner in [b"p", b"q"] {
                let offset = u64::from(owner[0]);
                assert_eq!(two.a.protocol().lock(&file, owner, exclusive(offset, 1)).await.unwrap(), None);
            }
            match unmounts {
                true => two.a.unmount().await.unwrap(),
                false => drop(two.a),
            }
            sleep(Duration::from_secs(1)).await;
            assert_eq!(two.b.protocol().lock(&file, b"p", ALL).await.unwrap(), None, "unmounts: {unmounts}");
            two.b.unmount().await.unwrap();
        }
    });
}

#[test]
fn locks_survive_lost_connections() {
    with_two(async |machine, two| {
        let (a, b, file) = two.parts();
        assert_eq!(a.lock(file, b"p", exclusive(0, 5)).await.unwrap(), None);
        // With shared locks of several owners, TEST may return another one.
        assert_eq!(a.lock(file, b"p", shared(5, 5)).await.unwrap(), None);
        assert_eq!(b.lock(file, b"p", shared(5, 5)).await.unwrap(), None);
        for _ in 0..5 {
            machine.network.cut_all();
            sleep(Duration::from_secs(20)).await;
            assert_eq!(b.lock(file, b"q", exclusive(4, 1)).await.unwrap(), Some(exclusive(0, 5)));
        }
        a.unlock(file, b"p", 0, u64::MAX).await.unwrap();
        b.unlock(file, b"p", 0, u64::MAX).await.unwrap();
        assert_eq!(b.lock(file, b"q", ALL).await.unwrap(), None);
    });
}

/// Owners of two hosts take the same lock in turns while connections are lost.
#[test]
fn exclusion_holds_while_connections_are_lost() {
    with_two(async |machine, two| {
        machine.network.set_cut_probability(0.02);
        let (inside, rounds) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU32::new(0)));
        let mut work = JoinSet::new();
        for (mount, owner) in [(&two.a, b"p"), (&two.a, b"q"), (&two.b, b"p"), (&two.b, b"q")] {
            let (locks, file) = (mount.protocol().with_deadline(Duration::from_secs(36_000)), two.file.clone());
            let (inside, rounds) = (inside.clone(), rounds.clone());
            work.spawn(async move {
                for _ in 0..25 {
                    locks.lock_until(&file, owner, exclusive(7, 1), pending()).await.unwrap();
                    assert!(!inside.swap(true, SeqCst), "two owners must not have the lock");
                    sleep(Duration::from_millis(20)).await;
                    inside.store(false, SeqCst);
                    rounds.fetch_add(1, SeqCst);
                    locks.unlock(&file, owner, 7, 1).await.unwrap();
                }
            });
        }
        work.join_all().await;
        machine.network.set_cut_probability(0.0);
        assert_eq!(rounds.load(SeqCst), 100);
        assert_eq!(two.a.protocol().lock(&two.file, b"last", ALL).await.unwrap(), None);
    });
}

/// The client finds the restart after the grace period. Nobody else has had the lock, but somebody could have.
#[test]
fn lock_is_lost_if_the_restart_is_found_too_late() {
    with_two(async |machine, two| {
        let (a, b, file) = two.parts();
        let patient = a.with_deadline(Duration::from_secs(600));
        assert_eq!(patient.lock(file, b"p", exclusive(0, 5)).await.unwrap(), None);
        assert_eq!(patient.lock(file, b"q", exclusive(5, 5)).await.unwrap(), None);
        machine.network.stall(3 * GRACE);
        machine.restart().await;
        sleep(4 * GRACE).await;
        for operation in ["lock", "unlock"] {
            let error = match operation {
                "lock" => patient.lock(file, b"p", exclusive(0, 5)).await.unwrap_err(),
                _ => patient.unlock(file, b"p", 0, 5).await.unwrap_err(),
            };
            assert!(error.to_string().contains("lost the locks"), "{operation}: {error}");
        }
        assert_eq!(b.lock(file, b"p", ALL).await.unwrap(), None, "the server must have no lock of the owner");
        // After a close, the owner begins anew.
        patient.release_locks(file, b"p").await.unwrap();
        assert_eq!(patient.lock(file, b"p", exclusive(0, 5)).await.unwrap(), Some(ALL));
        b.release_locks(file, b"p").await.unwrap();
        assert_eq!(patient.lock(file, b"p", exclusive(0, 5)).await.unwrap(), None);
    });
}

/// A program that does nothing keeps its lock over a restart.
#[test]
fn idle_client_reclaims_its_locks() {
    with_two(async |machine, two| {
        let (a, b, file) = two.parts();
        assert_eq!(a.lock(file, b"p", exclusive(0, 5)).await.unwrap(), None);
        sleep(Duration::from_secs(3600)).await;
        machine.restart().await;
        sleep(2 * GRACE).await;
        assert_eq!(b.lock(file, b"p", ALL).await.unwrap(), Some(exclusive(0, 5)));
    });
}

/// Returns the services of a server. In virtual time, no task may wait for another thread.
fn services() -> Vec<Arc<dyn Service>> {
    let options = ExportOptions { squash: Squash::None, ..ExportOptions::default() };
    let export = Export::new("/m", ExportId::unique(), Arc::new(memory()), options).unwrap();
    let blocking = BlockingOptions { threads: 0, ..BlockingOptions::default() };
    let settings = Settings { blocking, ..Settings::default() };
    NfsServer::recovering(export, HandleKey::random(), Recovery::in_memory(), settings).unwrap().services()
}

fn without_nlm(network: &Network) -> (JoinSet<()>, Vec<Arc<dyn Service>>) {
    let all = services();
    let (nlm, others): (Vec<_>, Vec<_>) = all.into_iter().partition(|service| service.program() == NLM_PROGRAM);
    assert_eq!(nlm.len(), 1);
    (sim::start(network, others), nlm)
}

#[test]
fn server_without_lock_manager_is_reported() {
    simulate(|network| async move {
        let _server = without_nlm(&network).0;
        let server = Server { address: SERVER, switch: sim::switch(&network, 1) };
        let mount = server.mount("vers=3").await;
        mount.write("f", &b"data"[..]).await.unwrap();
        let file = mount.resolve("f").await.unwrap().handle;
        let locks = mount.protocol();
        for error in [locks.find_lock_manager().await.unwrap_err(), locks.lock(&file, b"p", ALL).await.unwrap_err()] {
            assert!(matches!(error.kind(), ErrorKind::LockManager(_)), "{error}");
            assert!(
                error.to_string().contains("has no lock manager") && error.to_string().contains("rpcbind"),
                "{error}"
            );
        }
        let without = server.mount("vers=3&nolock").await;
        assert!(!without.protocol().has_locks() && locks.has_locks());
        let error = without.protocol().lock(&file, b"p", ALL).await.unwrap_err();
        assert!(error.to_string().contains("nolock"), "{error}");
    });
}

/// The lock manager has a port of its own, which rpcbind tells. After a restart, it has another one.
#[test]
fn lock_manager_is_found_by_rpcbind_also_after_a_restart() {
    simulate(|network| async move {
        let (_server, nlm) = without_nlm(&network);
        let registry = Registry::default();
        let set = |address: SocketAddr| {
            let netid = Netid::new("tcp", address);
            registry.unset(NLM_PROGRAM, VERSION, None);
            assert!(registry.set(Binding { program: NLM_PROGRAM, version: VERSION, netid, address }));
        };
        let at = |port| SocketAddr::new(SERVER.ip(), port);
        let _rpcbind = sim::start_at(&network, at(rpcbind::PORT), vec![Arc::new(Rpcbind::new(registry.clone()))]);
        set(at(4045));
        let first = sim::start_at(&network, at(4045), nlm.clone());
        let server = Server { address: SERVER, switch: sim::switch(&network, 1) };
        let mount = server.mount("vers=3&timeo=600s").await;
        mount.write("f", &b"data"[..]).await.unwrap();
        let file = mount.resolve("f").await.unwrap().handle;
        assert_eq!(mount.protocol().lock(&file, b"p", exclusive(0, 5)).await.unwrap(), None);
        drop(first);
        network.crash(at(4045));
        let _second = sim::start_at(&network, at(4046), nlm);
        set(at(4046));
        assert_eq!(mount.protocol().lock(&file, b"p", exclusive(5, 5)).await.unwrap(), None);
        // A port in the URL is used without rpcbind.
        let fixed = server.mount("vers=3&nlmport=4046").await;
        assert_eq!(fixed.protocol().lock(&file, b"q", ALL).await.unwrap(), Some(exclusive(0, 10)));
        let nothing = server.mount("vers=3&nlmport=4045&timeo=2s").await;
        nothing.protocol().find_lock_manager().await.unwrap_err();
    });
}

/// A lock manager that behaves as Linux's: TEST does not tell the owner, and UNLOCK waits for the end of the grace period. It has one lock.
#[derive(Default)]
struct Lockd(Mutex<Script>);

#[derive(Default)]
struct Script {
    /// The `svid` of the owner of the lock.
    holder: Option<u32>,
    in_grace: bool,
    /// The grace period begins after so many more answers to TEST. Linux's server listens shortly before it begins.
    tests_before_grace: u32,
    /// The holder releases the lock after the next answer to TEST.
    releases_after_test: bool,
    /// The calls, with `reclaim` of LOCK and the answers.
    calls: Vec<(NlmProc4, bool, Nlm4Stats)>,
}

impl Script {
    fn lock(&mut self, args: &LockArgs) -> Nlm4Stats {
        if args.reclaim != self.in_grace {
            return Nlm4Stats::DeniedGracePeriod;
        }
        match *self.holder.get_or_insert(args.lock.svid) == args.lock.svid {
            true => Nlm4Stats::Granted,
            false => Nlm4Stats::Denied,
        }
    }

    fn test(&mut self, args: &TestArgs) -> TestReply {
        let reply = match self.holder {
            _ if self.in_grace => TestReply::DeniedGracePeriod,
            Some(holder) if holder != args.lock.svid => {
                TestReply::Denied(Holder { exclusive: true, svid: 0, oh: "".into(), offset: 0, len: 0 })
            }
            _ => TestReply::Granted,
        };
        self.in_grace |= self.tests_before_grace == 1;
        self.tests_before_grace = self.tests_before_grace.saturating_sub(1);
        if std::mem::take(&mut self.releases_after_test) {
            self.holder = None;
        }
        reply
    }

    fn unlock(&mut self, args: &UnlockArgs) -> Nlm4Stats {
        if self.in_grace {
            return Nlm4Stats::DeniedGracePeriod;
        }
        self.holder.take_if(|holder| *holder == args.lock.svid);
        Nlm4Stats::Granted
    }
}

impl Service for Lockd {
    fn program(&self) -> u32 {
        NLM_PROGRAM
    }

    fn versions(&self) -> RangeInclusive<u32> {
        VERSION..=VERSION
    }

    fn procedure(&self, _version: u32, procedure: u32) -> Option<Procedure> {
        NlmProc4::from_number(procedure).map(|procedure| Procedure { name: procedure.name(), idempotent: true })
    }

    fn call<'a>(&'a self, mut call: Call<'a>) -> Answering<'a> {
        Answering::Pending(Box::pin(async move {
            let mut script = self.0.lock();
            let (procedure, reclaim, status, reply) = match NlmProc4::from_number(call.procedure) {
                Some(NlmProc4::Lock) => {
                    let args = LockArgs::decode(&mut call.arguments)?;
                    let status = script.lock(&args);
                    (NlmProc4::Lock, args.reclaim, status, call.reply(&Res { cookie: args.cookie, status }))
                }
                Some(NlmProc4::Test) => {
                    let args = TestArgs::decode(&mut call.arguments)?;
                    let reply = script.test(&args);
                    let status = reply.status();
                    (NlmProc4::Test, false, status, call.reply(&TestRes { cookie: args.cookie, reply }))
                }
                Some(NlmProc4::Unlock) => {
                    let args = UnlockArgs::decode(&mut call.arguments)?;
                    let status = script.unlock(&args);
                    (NlmProc4::Unlock, false, status, call.reply(&Res { cookie: args.cookie, status }))
                }
                _ => return Ok(call.reply(&())),
            };
            script.calls.push((procedure, reclaim, status));
            Ok(reply)
        }))
    }
}

/// Simulates a server with this lock manager, a mount of it, and a file.
fn with_lockd(test: impl AsyncFnOnce(&Network, &Lockd, (&Protocol, &Handle))) {
    simulate(|network| async move {
        let lockd = Arc::<Lockd>::default();
        let all = services();
        let others = all.into_iter().filter(|service| service.program() != NLM_PROGRAM);
        let _server = sim::start(&network, others.chain([lockd.clone() as Arc<dyn Service>]).collect());
        let server = Server { address: SERVER, switch: sim::switch(&network, 1) };
        let mount = server.mount("vers=3").await;
        mount.write("f", &b"data"[..]).await.unwrap();
        let file = mount.resolve("f").await.unwrap().handle;
        test(&network, &lockd, (mount.protocol(), &file)).await;
    });
}

impl Lockd {
    fn calls(&self) -> Vec<(NlmProc4, bool, Nlm4Stats)> {
        std::mem::take(&mut self.0.lock().calls)
    }

    /// Restarts the lock manager, which then is as `script` says, and waits until clients have checked their locks.
    async fn restart(&self, network: &Network, script: Script) {
        *self.0.lock() = script;
        network.cut_all();
        sleep(Duration::from_secs(10)).await;
    }
}

#[test]
fn locks_are_checked_and_reclaimed_at_a_lock_manager_like_linux() {
    use Nlm4Stats::{Denied, DeniedGracePeriod as Grace, Granted};
    use NlmProc4::{Lock, Test, Unlock};
    with_lockd(async |network, lockd, (locks, file)| {
        assert_eq!(locks.lock(file, b"p", ALL).await.unwrap(), None);
        assert_eq!(lockd.calls(), [(Lock, false, Granted)]);
        network.cut_all();
        sleep(Duration::from_secs(10)).await;
        assert_eq!(lockd.calls(), [(Test, false, Denied), (Lock, false, Granted)], "the server still has the lock");

        // The server has restarted.
        lockd.restart(network, Script { in_grace: true, ..Script::default() }).await;
        assert_eq!(lockd.calls(), [(Test, false, Grace), (Lock, true, Granted)]);
        let ends = async {
            sleep(Duration::from_secs(30)).await;
            lockd.0.lock().in_grace = false;
        };
        let (unlocked, ()) = tokio::join!(locks.unlock(file, b"p", 0, u64::MAX), ends);
        unlocked.unwrap();
        let unlocks = lockd.calls();
        assert!(unlocks.len() > 2 && unlocks.starts_with(&[(Unlock, false, Grace)]), "{unlocks:?}");
        assert_eq!(unlocks.last(), Some(&(Unlock, false, Granted)));
        assert_eq!(lockd.0.lock().holder, None);

        // It has restarted, and another client has the lock when the grace period is over.
        assert_eq!(locks.lock(file, b"p", ALL).await.unwrap(), None);
        lockd.restart(network, Script { holder: Some(7), ..Script::default() }).await;
        assert_eq!(lockd.calls(), [(Test, false, Denied), (Lock, false, Denied), (Unlock, false, Granted)]);
        let error = locks.unlock(file, b"p", 0, u64::MAX).await.unwrap_err();
        assert!(error.to_string().contains("lost the locks"), "{error}");
        assert_eq!(lockd.0.lock().holder, Some(7));
    });
}

/// The server answers before its grace period begins, so nobody has the lock for a moment.
#[test]
fn lock_is_reclaimed_if_the_grace_period_begins_after_some_answers() {
    for answers in 1..=6 {
        with_lockd(async |network, lockd, (locks, file)| {
            assert_eq!(locks.lock(file, b"p", ALL).await.unwrap(), None);
            lockd.restart(network, Script { tests_before_grace: answers, ..Script::default() }).await;
            let calls = lockd.calls();
            let is_reclaimed = calls.last() == Some(&(NlmProc4::Lock, true, Nlm4Stats::Granted));
            assert_eq!(is_reclaimed, answers <= 4, "{answers}: {calls:?}");
            lockd.0.lock().in_grace = false;
            assert_eq!(locks.unlock(file, b"p", 0, u64::MAX).await.is_ok(), is_reclaimed, "{answers}");
        });
    }
}

/// Another client gets the lock while nobody has it, and releases it again.
#[test]
fn lock_that_another_client_had_meanwhile_is_lost() {
    with_lockd(async |network, lockd, (locks, file)| {
        assert_eq!(locks.lock(file, b"p", ALL).await.unwrap(), None);
        *lockd.0.lock() = Script::default();
        network.cut_all();
        while lockd.0.lock().calls.is_empty() {
            sleep(Duration::from_millis(1)).await;
        }
        assert_eq!(lockd.calls(), [(NlmProc4::Test, false, Nlm4Stats::Granted)]);
        // LOCK of the owner would be granted after the next answer to TEST.
        *lockd.0.lock() = Script { holder: Some(7), releases_after_test: true, ..Script::default() };
        sleep(Duration::from_secs(10)).await;
        let denied_and_given_up =
            [(NlmProc4::Test, false, Nlm4Stats::Denied), (NlmProc4::Unlock, false, Nlm4Stats::Granted)];
        assert_eq!(lockd.calls(), denied_and_given_up);
        let error = locks.unlock(file, b"p", 0, u64::MAX).await.unwrap_err();
        assert!(error.to_string().contains("lost the locks"), "{error}");
    });
}
