//! Delegations and restarts of version 4, through the service: a client over TCP that is called back, and what others get
//! meanwhile.

use crate::common::remote;
use std::{sync::Arc, task::Poll, time::Duration};

use crate::common::remote::Served;
use crate::common::v4::*;
use crate::common::*;
use nfs::{
    nlm::{Lock, LockArgs, Nlm4Stats, NlmProc4, Res},
    v3::{Nfsstat3, Read, ReadArgs},
    v4::{attr::Attr4, *},
};
use rpc::Identity;
use server::NfsServer;
use tempfile::TempDir;
use testkit::deferred::{Deferred, Pace};
use tokio::runtime::Runtime;
use xdr::Message;

/// What another protocol gets: it is read on a thread of its own, as its caller would.
async fn read_by_v3(rig: &Rig, handle: &NfsFh4) -> Nfsstat3 {
    let (rig, file) = (rig.clone(), handle.0.clone());
    let args = move || ReadArgs { file: file.clone().into(), offset: 0, count: 10 };
    let read = move || rig.call::<Read>(args()).into_result().map_or_else(|(status, _)| status, |_| Nfsstat3::Ok);
    tokio::task::spawn_blocking(read).await.unwrap()
}

async fn lock_by_nlm(rig: &Rig, nfs: &NfsServer, handle: &NfsFh4) -> Nlm4Stats {
    let (rig, nlm, fh) = (rig.clone(), Arc::new(nfs.nlm4()), handle.0.clone());
    let ask = move || {
        let lock = Lock { caller_name: "mars".into(), fh: fh.into(), oh: "oh".into(), svid: 1, offset: 0, len: 0 };
        let (cookie, exclusive) = ("c".into(), true);
        let args = LockArgs { cookie, block: false, exclusive, lock, reclaim: false, state: 1 };
        let reply = rig.raw(&*nlm, NlmProc4::NmLock as u32, &Message::encode(&args)).expect("accepted");
        results::<Res>(&reply).status
    };
    tokio::task::spawn_blocking(ask).await.unwrap()
}

#[tokio::test]
async fn a_delegation_is_given_and_recalled_for_others_of_any_protocol() {
    let served = Served::new();
    let rig = Rig::calling(&served.nfs);
    let mut a = served.client("a").await;
    let (stateid, delegation, handle) = a.open("f", OPEN4_SHARE_ACCESS_BOTH).await.unwrap();
    assert_eq!(delegation, OpenDelegation4::None, "nobody would recall it");
    a.call([putfh(&handle), close(stateid)]).await;
    tokio::spawn(served.nfs.upkeep());
    let mut b = served.client("b").await;

    // Another client of version 4.
    let (open, delegation) = loop {
        let (stateid, delegation, _) = a.open("f", OPEN4_SHARE_ACCESS_BOTH).await.unwrap();
        if let OpenDelegation4::Write(write) = delegation {
            break (stateid, write.stateid);
        }
        tokio::task::yield_now().await; // the upkeep has yet to begin
    };
    assert_eq!(b.open("f", OPEN4_SHARE_ACCESS_READ).await.unwrap_err(), Nfsstat4::Delay);
    //= rfc8881-18.16.4-12
    assert_eq!(a.recalled().await, (delegation, handle.clone()));
    assert_eq!(b.open("f", OPEN4_SHARE_ACCESS_READ).await.unwrap_err(), Nfsstat4::Delay, "until it is given back");
    let owner = |owner: &str| StateOwner4 { clientid: Clientid4(0), owner: owner.into() };
    let again = Argop4::Open(OpenArgs {
        seqid: Seqid4(0),
        share_access: OPEN4_SHARE_ACCESS_WRITE,
        share_deny: 0,
        owner: owner("another"),
        openhow: Openflag4::NoCreate,
        claim: OpenClaim4::DelegCurFh(delegation),
    });
    //= rfc8881-18.16.3-8 rfc8881-18.16.3-9 rfc8881-18.16.3-10
    assert_eq!(a.call([putfh(&handle), again]).await.0, Nfsstat4::Ok, "it tells of what it has opened itself");
    //= rfc8881-8.2.6-1
    assert_eq!(a.call([putfh(&handle), write(delegation, 0, b"last words")]).await.0, Nfsstat4::Ok);
    assert_eq!(a.give_back(&handle, delegation).await, Nfsstat4::Ok);
    assert_eq!(a.give_back(&handle, delegation).await, Nfsstat4::BadStateid);
    let (read, none, _) = b.open("f", OPEN4_SHARE_ACCESS_READ).await.unwrap();
    assert_eq!(none, OpenDelegation4::None, "the file is contended");
    b.call([putfh(&handle), close(read)]).await;
    a.call([putfh(&handle), close(open)]).await;

    // A client of version 3, which has neither opened it nor will.
    let (_, stateid, handle) = a.delegated("g").await;
    assert_eq!(read_by_v3(&rig, &handle).await, Nfsstat3::Jukebox);
    assert_eq!(a.recalled().await, (stateid, handle.clone()));
    assert_eq!(a.give_back(&handle, stateid).await, Nfsstat4::Ok);
    assert_eq!(read_by_v3(&rig, &handle).await, Nfsstat3::Ok);
    // A host that locks it by NLM: who has a delegation locks by himself.
    let (open, stateid, handle) = a.delegated("l").await;
    assert_eq!(lock_by_nlm(&rig, &served.nfs, &handle).await, Nlm4Stats::DeniedGracePeriod);
    assert_eq!(a.recalled().await, (stateid, handle.clone()));
    assert_eq!(a.give_back(&handle, stateid).await, Nfsstat4::Ok);
    assert_eq!(lock_by_nlm(&rig, &served.nfs, &handle).await, Nlm4Stats::Granted);
    a.call([putfh(&handle), close(open)]).await;
    // Who takes the file's name away asks, too; and who asks how large it is.
    let (_, stateid, handle) = a.delegated("h").await;
    assert_eq!(b.call([putfh(&handle), getattr(&[Attr4::Mode])]).await.0, Nfsstat4::Ok);
    //= rfc8881-18.7.4-1
    assert_eq!(b.call([putfh(&handle), getattr(&[Attr4::Size])]).await.0, Nfsstat4::Delay);
    let to = |newname: &str| Argop4::Rename(RenameArgs { oldname: "h".into(), newname: newname.into() });
    //= rfc8881-18.26.4-3
    assert_eq!(b.call(at("/m").into_iter().chain([Argop4::SaveFh, to("i")])).await.0, Nfsstat4::Delay);
    let link = [Argop4::SaveFh].into_iter().chain(at("/m")).chain([Argop4::Link(LinkArgs { newname: "j".into() })]);
    //= rfc8881-18.9.4-2
    assert_eq!(b.call([putfh(&handle)].into_iter().chain(link)).await.0, Nfsstat4::Delay);
    assert_eq!(b.call(at("/m").into_iter().chain([remove("h")])).await.0, Nfsstat4::Delay);
    //= rfc8881-18.25.4-2
    assert_eq!(a.recalled().await.0, stateid);
    assert_eq!(a.give_back(&handle, stateid).await, Nfsstat4::Ok);
    assert_eq!(b.call(at("/m").into_iter().chain([remove("h")])).await.0, Nfsstat4::Ok);
}

/// A change is in progress until its operation has completed.
#[tokio::test]
async fn no_delegation_is_given_while_a_change_is_pending() {
    let fs = Deferred::new(plain_memory(), Pace::Told);
    fs.0.hold(false);
    let served = Served::serving(fs.clone()).await;
    let rig = Rig::calling(&served.nfs);
    let mut a = served.client("a").await;
    let (open, delegation, handle) = a.delegated("f").await;
    assert_eq!(a.give_back(&handle, delegation).await, Nfsstat4::Ok);
    a.call([putfh(&handle), close(open)]).await;
    fs.0.hold(true);
    let args = Message::encode(&write_args(&handle.0.clone().into(), 0, b"data"));
    let mut writing = rig.paper.call(&*rig.nfs, nfs::v3::Proc3::Write as u32, (rig.peer, &rig.caller), &args);
    let polled = std::future::poll_fn(|cx| Poll::Ready(writing.as_mut().poll(cx))).await;
    assert!(polled.is_pending() && fs.0.in_flight() == 1);
    fs.0.hold(false);
    let (open, delegation, _) = a.open("f", OPEN4_SHARE_ACCESS_BOTH).await.unwrap();
    assert_eq!(delegation, OpenDelegation4::None, "the file is being changed");
    a.call([putfh(&handle), close(open)]).await;
    assert_eq!(fs.0.complete(1), 1);
    writing.await.expect("accepted");
    assert_eq!(fs.0.executed("write"), 1);
    a.delegated("f").await;
}

/// Whatever changes a file of which somebody has a delegation to read waits until that is back.
#[tokio::test]
async fn all_that_changes_a_file_recalls_its_delegations() {
    let served = Served::kept_up().await;
    let mut a = served.client("a").await;
    let mut b = remote::Remote::new(&served, "b", 2).await;
    let any = Stateid4::ANONYMOUS;
    let range = || AllocateArgs { stateid: any, offset: 0, length: 4096 };
    let copy = CopyArgs {
        src_stateid: any,
        dst_stateid: any,
        src_offset: 0,
        dst_offset: 0,
        count: 1,
        consecutive: true,
        synchronous: true,
        source_server: Default::default(),
    };
    let clone = CloneArgs { src_stateid: any, dst_stateid: any, src_offset: 0, dst_offset: 0, count: 0 };
    let (option, key) = (SetxattrOption4::Either, "key");
    let changes = [
        write(any, 0, b"x"),
        set(attr::Attrs { mode: Some(0o600), ..Default::default() }),
        Argop4::SetXattr(SetXattrArgs { option, key: key.into(), value: "value".into() }),
        Argop4::RemoveXattr(XattrArgs { name: key.into() }),
        Argop4::Allocate(range()),
        Argop4::Deallocate(range()),
        Argop4::Copy(copy),
        Argop4::Clone(clone),
    ];
    let (_, _, source) = b.open("source", OPEN4_SHARE_ACCESS_BOTH).await.unwrap();
    b.ok([putfh(&source), write(any, 0, &[7; 8192])]).await;
    for (at, change) in changes.into_iter().enumerate() {
        let (_, delegation, file) = a.open(&format!("f{at}"), OPEN4_SHARE_ACCESS_READ).await.unwrap();
        let OpenDelegation4::Read(OpenReadDelegation4 { stateid, .. }) = delegation else { panic!("{delegation:?}") };
        if let Argop4::RemoveXattr(_) = change {
            // It is there because its holder has set it, which asks nobody.
            let own = SetXattrArgs { option, key: key.into(), value: "value".into() };
            a.minor = 2;
            a.ok([putfh(&file), Argop4::SetXattr(own)]).await;
            a.minor = 1;
        }
        let asked = || [putfh(&source), Argop4::SaveFh, putfh(&file), change.clone()];
        assert_eq!(b.call(asked()).await.0, Nfsstat4::Delay, "{change:?}");
        //= rfc8881-18.32.4-3
        assert_eq!(a.recalled().await, (stateid, file.clone()), "{change:?}");
        assert_eq!(a.give_back(&file, stateid).await, Nfsstat4::Ok);
        //= rfc8881-10.2-2
        assert_eq!(b.call(asked()).await.0, Nfsstat4::Ok, "{change:?}");
    }
}

/// A client that was there before the restart, with a new session.
fn back_again(server: &NfsServer, name: &str, caller: &Identity) -> Client4 {
    let mut client = Client4::stranger(server, 1);
    client.caller = caller.clone();
    let Resop4::ExchangeId(Res4::Ok(exchanged)) = client.alone(exchange_id(name)) else { panic!("EXCHANGE_ID") };
    let create = create_session(exchanged.clientid, exchanged.sequenceid, channel());
    let Resop4::CreateSession(Res4::Ok(created)) = client.alone(create) else { panic!("CREATE_SESSION") };
    (client.client, client.session) = (exchanged.clientid, created.sessionid);
    client
}

/// A server that is started again and again, and who calls.
struct Lives {
    dir: TempDir,
    state: TempDir,
    path: String,
    me: Identity,
}

impl Lives {
    fn new() -> Self {
        let (dir, state) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let path = dir.path().canonicalize().unwrap().to_str().unwrap().to_owned();
        let me = rustix::process::geteuid().as_raw();
        Self { dir, state, path, me: user(me, me) }
    }

    fn next(&self, grace: Duration) -> NfsServer {
        serve(self.dir.path(), self.state.path(), grace)
    }

    /// One in which `a` opens a file for itself alone, and `idle` nothing.
    fn opened(&self) -> NfsFh4 {
        let server = self.next(LONG);
        let mut a = back_again(&server, "a", &self.me);
        a.ok([COMPLETE]);
        let (_, handle) = a.open(&self.path, "f", alone()).unwrap();
        // One that has nothing open has nothing to reclaim.
        back_again(&server, "idle", &self.me).ok([COMPLETE]);
        handle
    }
}

fn alone() -> Open {
    Open { deny: OPEN4_SHARE_DENY_BOTH, ..Open::default() }
}

fn runtime() -> Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

/// What is answered when grace is over.
fn after_grace<T>(runtime: &Runtime, mut ask: impl FnMut() -> Result<T, Nfsstat4>) -> Result<T, Nfsstat4> {
    loop {
        match ask() {
            Err(Nfsstat4::Grace) => runtime.block_on(async { tokio::time::sleep(Duration::from_millis(20)).await }),
            answer => return answer,
        }
    }
}

const LONG: Duration = Duration::from_secs(3600);
const COMPLETE: Argop4 = Argop4::ReclaimComplete(ReclaimCompleteArgs { one_fs: false });

fn reclaim(handle: &NfsFh4) -> [Argop4; 2] {
    let open = Argop4::Open(OpenArgs {
        seqid: Seqid4(0),
        share_access: OPEN4_SHARE_ACCESS_BOTH,
        share_deny: OPEN4_SHARE_DENY_BOTH,
        owner: StateOwner4 { clientid: Clientid4(0), owner: "owner".into() },
        openhow: Openflag4::NoCreate,
        claim: OpenClaim4::Previous(OpenDelegationType4::None),
    });
    [putfh(handle), open]
}

#[test]
fn after_a_restart_who_had_a_file_open_reclaims_it_and_grace_ends_when_all_have() {
    let lives = Lives::new();
    let (handle, server) = (lives.opened(), lives.next(LONG));
    let (mut b, mut idle) = (back_again(&server, "b", &lives.me), back_again(&server, "idle", &lives.me));
    for other in [&mut b, &mut idle] {
        assert_eq!(other.status(reclaim(&handle)), Nfsstat4::ReclaimBad, "it held nothing");
        other.ok([COMPLETE]);
        let wanted = Open { create: false, ..Open::default() };
        assert_eq!(other.open(&lives.path, "f", wanted).unwrap_err(), Nfsstat4::Grace);
    }
    let mut a = back_again(&server, "a", &lives.me);
    a.ok(reclaim(&handle));
    let runtime = runtime();
    runtime.spawn(server.upkeep());
    runtime.block_on(async { tokio::time::sleep(Duration::from_millis(10)).await });
    let wanted = Open { create: false, ..Open::default() };
    assert_eq!(b.open(&lives.path, "f", wanted).unwrap_err(), Nfsstat4::Grace, "a has not said that this is all");
    a.ok([COMPLETE]);
    let status = after_grace(&runtime, || b.open(&lives.path, "f", wanted)).unwrap_err();
    assert_eq!(status, Nfsstat4::ShareDenied, "an hour before its time grace is over, and a has what it had");
}

#[test]
fn who_was_reclaiming_when_grace_ended_is_remembered_with_what_it_has() {
    let lives = Lives::new();
    let handle = lives.opened();
    {
        let server = lives.next(Duration::from_secs(3));
        let mut a = back_again(&server, "a", &lives.me);
        a.ok(reclaim(&handle));
        let runtime = runtime();
        runtime.spawn(server.upkeep());
        let mut b = back_again(&server, "b", &lives.me);
        b.ok([COMPLETE]);
        after_grace(&runtime, || b.open(&lives.path, "g", alone())).unwrap();
        a.ok([COMPLETE]);
    }
    let server = lives.next(LONG);
    back_again(&server, "a", &lives.me).ok(reclaim(&handle));
}

#[test]
fn what_was_reclaimed_by_who_may_not_do_so_again_is_given_to_others_when_it_has_heard_of_it() {
    let lives = Lives::new();
    let handle = lives.opened();
    let runtime = runtime();
    {
        let server = lives.next(Duration::from_secs(3));
        back_again(&server, "a", &lives.me).ok(reclaim(&handle));
        let upkeep = runtime.spawn(server.upkeep());
        let mut b = back_again(&server, "b", &lives.me);
        b.ok([COMPLETE]);
        after_grace(&runtime, || b.open(&lives.path, "g", alone())).unwrap();
        upkeep.abort();
        let _ = runtime.block_on(upkeep);
    }
    // It ends before a has said that this is all. The next life is told of b, which comes back at once.
    let server = lives.next(LONG);
    let mut b = back_again(&server, "b", &lives.me);
    b.ok([COMPLETE]);
    runtime.spawn(server.upkeep());
    runtime.block_on(async { tokio::time::sleep(Duration::from_secs(2)).await });
    assert_eq!(b.open(&lives.path, "f", alone()).unwrap_err(), Nfsstat4::Grace, "a believes that it has it");
    let mut a = back_again(&server, "a", &lives.me);
    assert_eq!(a.status(reclaim(&handle)), Nfsstat4::ReclaimBad, "another could have had it, for a moment");
    a.ok([COMPLETE]);
    after_grace(&runtime, || b.open(&lives.path, "f", alone())).unwrap();
}
