//! NLM and NSM, called directly: granting and losing locks, and restarts.

use crate::common;
use std::{sync::Arc, time::Duration};

use nfs::{nlm::*, nsm, v3::NfsFh3, v4};
use server::{NfsServer, Nlm4, Nsm1};
use xdr::{Decode, Encode, Message};

use crate::common::{
    Rig,
    machine::{Machine, background_work},
    results, server_of,
    v4::{Client4, Open, putfh},
};

/// A host that locks.
#[derive(Clone)]
struct Host {
    rig: Rig,
    nlm: Arc<Nlm4>,
    nsm: Arc<Nsm1>,
    name: &'static str,
}

impl Host {
    fn new(server: &NfsServer, peer: &str, name: &'static str) -> Self {
        let rig = Rig::calling(server).from(peer);
        Self { rig, nlm: Arc::new(server.nlm4()), nsm: Arc::new(server.nsm1()), name }
    }

    fn nlm<R: Decode>(&self, procedure: NlmProc4, args: impl Encode) -> R {
        results(&self.rig.raw(&*self.nlm, procedure as u32, &Message::encode(&args)).expect("call must be accepted"))
    }

    fn nsm<R: Decode>(&self, procedure: nsm::SmProc, args: impl Encode) -> R {
        results(&self.rig.raw(&*self.nsm, procedure as u32, &Message::encode(&args)).expect("call must be accepted"))
    }

    fn of(&self, file: &NfsFh3, svid: u32, offset: u64, len: u64) -> Lock {
        let oh = format!("{svid}@{}", self.name);
        let fh = file.0.clone().into();
        Lock { caller_name: self.name.into(), fh, oh: oh.as_str().into(), svid, offset, len }
    }

    fn args(&self, lock: Lock, exclusive: bool) -> LockArgs {
        LockArgs { cookie: "c".into(), block: false, exclusive, lock, reclaim: false, state: 3 }
    }

    fn lock(&self, args: LockArgs) -> Nlm4Stats {
        self.nlm::<Res>(NlmProc4::Lock, args).status
    }

    fn unlock(&self, lock: Lock) -> Nlm4Stats {
        self.nlm::<Res>(NlmProc4::Unlock, UnlockArgs { cookie: "c".into(), lock }).status
    }

    fn test(&self, lock: Lock, exclusive: bool) -> TestReply {
        self.nlm::<TestRes>(NlmProc4::Test, TestArgs { cookie: "c".into(), exclusive, lock }).reply
    }
}

fn server() -> NfsServer {
    let options = server::ExportOptions { squash: server::Squash::None, ..Default::default() };
    let export = server::Export::new("/m", server::ExportId::unique(), common::memory(), options).unwrap();
    server_of(export)
}

fn hosts() -> (Host, Host, NfsFh3) {
    let server = server();
    common::calls_back(&server);
    let (a, b) = (Host::new(&server, "192.0.2.1:700", "venus"), Host::new(&server, "192.0.2.2:700", "mars"));
    let file = a.rig.file(&a.rig.root(), "f", b"data");
    (a, b, file)
}

#[simnet::test]
async fn locks_of_two_hosts_conflict_and_test_returns_the_holder() {
    let (a, b, file) = hosts();
    assert_eq!(a.lock(a.args(a.of(&file, 7, 10, 10), true)), Nlm4Stats::Granted);
    assert_eq!(b.lock(b.args(b.of(&file, 7, 0, 0), false)), Nlm4Stats::Denied);
    assert_eq!(a.lock(a.args(a.of(&file, 8, 19, 1), false)), Nlm4Stats::Denied, "another process of the same host");
    assert_eq!(b.lock(b.args(b.of(&file, 7, 20, 0), true)), Nlm4Stats::Granted);
    let holder = Holder { exclusive: true, svid: 7, oh: "7@venus".into(), offset: 10, len: 10 };
    assert_eq!(b.test(b.of(&file, 9, 0, 0), false), TestReply::Denied(holder));
    let holder = Holder { exclusive: true, svid: 7, oh: "7@mars".into(), offset: 20, len: 0 };
    assert_eq!(a.test(a.of(&file, 9, 25, 1), false), TestReply::Denied(holder), "length 0 extends to the end");
    assert_eq!(a.test(a.of(&file, 7, 0, 20), true), TestReply::Granted);
    assert_eq!(a.unlock(a.of(&file, 7, 12, 2)), Nlm4Stats::Granted);
    assert_eq!(b.lock(b.args(b.of(&file, 7, 12, 2), true)), Nlm4Stats::Granted);
    assert_eq!(b.lock(b.args(b.of(&file, 7, 14, 2), true)), Nlm4Stats::Denied);
}

#[simnet::test]
async fn objects_that_cannot_be_locked_have_distinct_errors() {
    let (a, _, file) = hosts();
    let root = a.rig.root();
    assert_eq!(a.lock(a.args(a.of(&root, 1, 0, 0), false)), Nlm4Stats::Failed, "a directory");
    assert_eq!(a.lock(a.args(a.of(&file, 1, 1 << 63, 1), false)), Nlm4Stats::FBig);
    assert_eq!(a.lock(a.args(a.of(&file, 1, i64::MAX as u64, 2), false)), Nlm4Stats::FBig);
    assert_eq!(a.lock(a.args(a.of(&file, 1, i64::MAX as u64, 1), false)), Nlm4Stats::Granted);
    assert_eq!(a.lock(a.args(a.of(&"forged".into(), 1, 0, 0), false)), Nlm4Stats::StaleFh);
    a.rig.set_mode(&file, 0o640);
    let other = Host { rig: a.rig.as_user(1000, 1000), ..a.clone() };
    assert_eq!(
        other.lock(other.args(other.of(&file, 2, 0, 1), false)),
        Nlm4Stats::Denied,
        "a caller that may not read"
    );
    a.rig.set_mode(&file, 0o644);
    assert_eq!(other.lock(other.args(other.of(&file, 2, 0, 1), true)), Nlm4Stats::Granted, "a caller that may read");
    assert_eq!(
        a.nlm::<Res>(NlmProc4::Granted, TestArgs { cookie: "c".into(), exclusive: true, lock: a.of(&file, 1, 0, 0) })
            .status,
        Nlm4Stats::Denied
    );
}

#[simnet::test]
async fn test_by_a_caller_without_rights_fails() {
    let (a, _, file) = hosts();
    assert_eq!(a.lock(a.args(a.of(&file, 1, 0, 0), true)), Nlm4Stats::Granted);
    a.rig.set_mode(&file, 0o600);
    let other = Host { rig: a.rig.as_user(1000, 1000), ..a.clone() };
    let lock = other.of(&file, 2, 0, 1);
    assert_eq!(other.test(lock.clone(), false), TestReply::Failed, "the caller must not learn the holder of the lock");
    other.nlm::<()>(NlmProc4::TestMsg, TestArgs { cookie: "c".into(), exclusive: true, lock });
    let holder = Holder { exclusive: true, svid: 1, oh: "1@venus".into(), offset: 0, len: 0 };
    assert_eq!(a.test(a.of(&file, 2, 0, 1), false), TestReply::Denied(holder));
}

#[simnet::test]
async fn holder_name_longer_than_a_netobj_is_truncated() {
    let server = server();
    let mut holder = Client4::new(&server, "venus", 1);
    let (open_stateid, handle) = holder.open("/m", "f", Open::default()).unwrap();
    let lock_owner =
        v4::StateOwner4 { clientid: v4::Clientid4(0), owner: "o".repeat(v4::OPAQUE_LIMIT).as_str().into() };
    let (open_seqid, lock_seqid) = (v4::Seqid4(0), v4::Seqid4(0));
    let locker = v4::Locker4::New { open_seqid, open_stateid, lock_seqid, lock_owner };
    let (locktype, reclaim, offset, length) = (v4::NfsLockType4::Write, false, 0, v4::LENGTH_TO_EOF);
    let args = v4::LockArgs { locktype, reclaim, offset, length, locker };
    assert_eq!(holder.status([putfh(&handle), v4::Argop4::Lock(args)]), v4::Nfsstat4::Ok);
    let mars = Host::new(&server, "192.0.2.2:700", "mars");
    let TestReply::Denied(named) = mars.test(mars.of(&handle.0.clone().into(), 1, 0, 0), true) else {
        panic!("the whole file must be locked")
    };
    assert_eq!(named.oh.len(), NETOBJ_MAX);
}

#[simnet::test]
async fn request_waits_until_it_is_cancelled_and_deadlock_is_refused() {
    let (a, b, file) = hosts();
    let other = a.rig.file(&a.rig.root(), "g", b"data");
    let block =
        |host: &Host, file: &NfsFh3| host.lock(LockArgs { block: true, ..host.args(host.of(file, 1, 0, 0), true) });
    assert_eq!((block(&a, &file), block(&b, &other)), (Nlm4Stats::Granted, Nlm4Stats::Granted));
    assert_eq!(block(&b, &file), Nlm4Stats::Blocked);
    assert_eq!(block(&b, &file), Nlm4Stats::Blocked, "a repeated request");
    assert_eq!(block(&a, &other), Nlm4Stats::Deadlck);
    let cancel = |exclusive| {
        let args = CancelArgs { cookie: "c".into(), block: true, exclusive, lock: b.of(&file, 1, 0, 0) };
        b.nlm::<Res>(NlmProc4::Cancel, args).status
    };
    assert_eq!((cancel(false), cancel(true), cancel(true)), (Nlm4Stats::Denied, Nlm4Stats::Granted, Nlm4Stats::Denied));
    assert_eq!(a.unlock(a.of(&file, 1, 0, 0)), Nlm4Stats::Granted);
    assert_eq!(
        a.lock(a.args(a.of(&file, 2, 0, 0), true)),
        Nlm4Stats::Granted,
        "the cancelled request must not get the lock"
    );
    // The request is granted, and cancelled before the host has confirmed GRANTED.
    assert_eq!(block(&b, &file), Nlm4Stats::Blocked);
    a.unlock(a.of(&file, 2, 0, 0));
    assert_eq!(a.lock(a.args(a.of(&file, 2, 0, 0), true)), Nlm4Stats::Denied);
    assert_eq!(cancel(true), Nlm4Stats::Granted);
    assert_eq!(a.lock(a.args(a.of(&file, 2, 0, 0), true)), Nlm4Stats::Granted);
}

#[simnet::test]
async fn shares_deny_access_to_others() {
    let (a, b, file) = hosts();
    let share = |host: &Host, procedure, mode, access| {
        let (caller_name, fh) = (host.name.into(), file.0.clone().into());
        let share = Share { caller_name, fh, oh: "dos".into(), mode, access };
        host.nlm::<ShareRes>(procedure, ShareArgs { cookie: "c".into(), share, reclaim: false }).status
    };
    use {ShareAccess as Access, ShareMode as Mode};
    assert_eq!(share(&a, NlmProc4::Share, Mode::DenyWrite, Access::Read), Nlm4Stats::Granted);
    assert_eq!(share(&b, NlmProc4::Share, Mode::DenyNone, Access::ReadWrite), Nlm4Stats::Denied);
    assert_eq!(share(&b, NlmProc4::Share, Mode::DenyNone, Access::Read), Nlm4Stats::Granted);
    assert_eq!(share(&a, NlmProc4::Unshare, Mode::DenyWrite, Access::Read), Nlm4Stats::Granted);
    assert_eq!(share(&b, NlmProc4::Share, Mode::DenyNone, Access::ReadWrite), Nlm4Stats::Granted);
}

#[simnet::test]
async fn restart_or_free_all_releases_the_locks_of_a_host() {
    let (a, b, file) = hosts();
    let lock = |host: &Host, svid| host.lock(host.args(host.of(&file, svid, 0, 0), true));
    let notify = |host: &Host, name: &str, state| {
        host.nsm::<()>(nsm::SmProc::Notify, nsm::StatChge { mon_name: name.into(), state });
    };
    assert_eq!(lock(&a, 1), Nlm4Stats::Granted);
    notify(&b, "pluto", 5);
    notify(&a, "venus", 3);
    assert_eq!(lock(&b, 1), Nlm4Stats::Denied, "state 3 is the one in which the host locked");
    notify(&a, "venus.example.com", 5);
    assert_eq!(lock(&b, 1), Nlm4Stats::Granted);
    assert_eq!(lock(&a, 1), Nlm4Stats::Denied);
    b.nlm::<()>(NlmProc4::FreeAll, FreeAllArgs { name: b.name.into(), state: 3 });
    assert_eq!(lock(&a, 1), Nlm4Stats::Granted);
    notify(&a, "venus", 5);
    assert_eq!(lock(&b, 1), Nlm4Stats::Denied, "the repeated notice must not release new locks");
}

#[simnet::test]
async fn only_programs_of_this_host_can_monitor_others() {
    let server = server();
    let (far, near) = (Host::new(&server, "192.0.2.1:700", "venus"), Host::new(&server, "127.0.0.1:700", "here"));
    let my_id = nsm::MyId { my_name: "here".into(), my_prog: 100_021, my_vers: 3, my_proc: 16 };
    let mon_id = nsm::MonId { mon_name: "venus".into(), my_id: my_id.clone() };
    let args = nsm::MonArgs { mon_id: mon_id.clone(), private: [1; 16] };
    assert_eq!(far.nsm::<nsm::SmStatRes>(nsm::SmProc::Mon, args.clone()).res, nsm::SmRes::Fail);
    let here = near.nsm::<nsm::SmStatRes>(nsm::SmProc::Mon, args);
    assert_eq!((here.res, here.state % 2), (nsm::SmRes::Succ, 1));
    let state = far.nsm::<nsm::SmStatRes>(nsm::SmProc::Stat, nsm::SmName { mon_name: "x".into() }).state;
    assert_eq!(state, here.state);
    assert_eq!(near.nsm::<nsm::SmStat>(nsm::SmProc::Unmon, mon_id).state, state);
    assert_eq!(near.nsm::<nsm::SmStat>(nsm::SmProc::UnmonAll, my_id).state, state);
    far.nsm::<()>(nsm::SmProc::SimuCrash, ());
    Host { rig: near.rig.from("127.0.0.1:5000"), ..near.clone() }.nsm::<()>(nsm::SmProc::SimuCrash, ());
    let now = || far.nsm::<nsm::SmStatRes>(nsm::SmProc::Stat, nsm::SmName { mon_name: "x".into() }).state;
    assert_eq!(now(), state, "no other caller may simulate a crash");
    near.nsm::<()>(nsm::SmProc::SimuCrash, ());
    assert_eq!(now(), state + 2);
}

#[simnet::test]
async fn only_holders_of_locks_can_reclaim_after_a_restart() {
    let (machine, long) = (Machine::new(), Duration::from_secs(3600));
    let file = {
        let server = machine.start(long);
        let a = Host::new(&server, "192.0.2.1:700", "venus");
        let file = a.rig.file(&a.rig.root(), "f", b"data");
        assert_eq!(a.lock(a.args(a.of(&file, 1, 0, 0), true)), Nlm4Stats::Granted, "no host had locks before");
        let m = Host::new(&server, "192.0.2.3:700", "pluto");
        assert_eq!(
            m.nlm::<Res>(NlmProc4::NmLock, m.args(m.of(&m.rig.file(&m.rig.root(), "g", b""), 1, 0, 0), true)).status,
            Nlm4Stats::Granted
        );
        file
    };
    {
        let server = machine.start(long);
        let (a, b) = (Host::new(&server, "192.0.2.1:800", "venus"), Host::new(&server, "192.0.2.2:700", "mars"));
        let reclaim = |host: &Host| host.lock(LockArgs { reclaim: true, ..host.args(host.of(&file, 1, 0, 0), true) });
        assert_eq!(b.lock(b.args(b.of(&file, 1, 0, 0), true)), Nlm4Stats::DeniedGracePeriod);
        assert_eq!(b.test(b.of(&file, 1, 0, 0), true), TestReply::DeniedGracePeriod);
        assert_eq!(reclaim(&b), Nlm4Stats::Denied, "the host held no lock");
        let m = Host::new(&server, "192.0.2.3:700", "pluto");
        assert_eq!(reclaim(&m), Nlm4Stats::Denied, "the host used NM_LOCK");
        assert_eq!(reclaim(&a), Nlm4Stats::Granted);
        assert_eq!(a.unlock(a.of(&file, 1, 5, 1)), Nlm4Stats::Granted, "a host can unlock in the grace period");
    }
    // The host stays in the recovery database until its claims end.
    let server = machine.start(Duration::ZERO);
    let (a, b) = (Host::new(&server, "192.0.2.1:800", "venus"), Host::new(&server, "192.0.2.2:700", "mars"));
    let lock = || b.lock(b.args(b.of(&file, 1, 0, 0), true));
    assert_eq!(lock(), Nlm4Stats::DeniedGracePeriod, "the grace period lasts until it is ended");
    let _background = background_work(&server);
    while lock() == Nlm4Stats::DeniedGracePeriod {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert_eq!(lock(), Nlm4Stats::Granted);
    assert_eq!(a.lock(LockArgs { reclaim: true, ..a.args(a.of(&file, 1, 0, 0), true) }), Nlm4Stats::DeniedGracePeriod);
}
