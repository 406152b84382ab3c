//! Delegations and restarts of version 4: a client over TCP that is called back, and the results of other clients in
//! the meantime.

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

/// Reads by version 3, on a separate thread.
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
        let reply =
            rig.raw(&*nlm, NlmProc4::NmLock as u32, &Message::encode(&args)).expect("the call must be accepted");
        results::<Res>(&reply).status
    };
    tokio::task::spawn_blocking(ask).await.unwrap()
}

#[tokio::test]
async fn delegation_is_recalled_for_clients_of_any_protocol() {
    let served = Served::new();
    let rig = Rig::calling(&served.nfs);
    let mut a = served.client("a").await;
    let (stateid, delegation, handle) = a.open("f", OPEN4_SHARE_ACCESS_BOTH).await.unwrap();
    assert_eq!(delegation, OpenDelegation4::None, "no background work could recall it");
    a.call([putfh(&handle), close(stateid)]).await;
    tokio::spawn(served.nfs.upkeep());
    let mut b = served.client("b").await;
    // Another client of version 4 conflicts.
    let (open, delegation) = loop {
        let (stateid, delegation, _) = a.open("f", OPEN4_SHARE_ACCESS_BOTH).await.unwrap();
        if let OpenDelegation4::Write(write) = delegation {
            break (stateid, write.stateid);
        }
        tokio::task::yield_now().await; // the background work has not begun yet
    };
    assert_eq!(b.open("f", OPEN4_SHARE_ACCESS_READ).await.unwrap_err(), Nfsstat4::Delay);
    //= rfc8881-18.16.4-12
    assert_eq!(a.recalled().await, (delegation, handle.clone()));
    assert_eq!(
        b.open("f", OPEN4_SHARE_ACCESS_READ).await.unwrap_err(),
        Nfsstat4::Delay,
        "the open fails until the delegation is returned"
    );
    let owner = |owner: &str| StateOwner4 { clientid: Clientid4(0), owner: owner.into() };
    let again = Argop4::Open(Box::new(OpenArgs {
        seqid: Seqid4(0),
        share_access: OPEN4_SHARE_ACCESS_WRITE,
        share_deny: 0,
        owner: owner("another"),
        openhow: Openflag4::NoCreate,
        claim: OpenClaim4::DelegCurFh(delegation),
    }));
    //= rfc8881-18.16.3-8 rfc8881-18.16.3-9 rfc8881-18.16.3-10
    assert_eq!(a.call([putfh(&handle), again]).await.0, Nfsstat4::Ok, "the holder claims its local open");
    //= rfc8881-8.2.6-1
    assert_eq!(a.call([putfh(&handle), write(delegation, 0, b"last words")]).await.0, Nfsstat4::Ok);
    assert_eq!(a.return_delegation(&handle, delegation).await, Nfsstat4::Ok);
    assert_eq!(a.return_delegation(&handle, delegation).await, Nfsstat4::BadStateid);
    let (read, none, _) = b.open("f", OPEN4_SHARE_ACCESS_READ).await.unwrap();
    assert_eq!(none, OpenDelegation4::None, "the file is contended");
    b.call([putfh(&handle), close(read)]).await;
    a.call([putfh(&handle), close(open)]).await;

    // A client of version 3 conflicts, without an open.
    let (_, stateid, handle) = a.delegated("g").await;
    assert_eq!(read_by_v3(&rig, &handle).await, Nfsstat3::Jukebox);
    assert_eq!(a.recalled().await, (stateid, handle.clone()));
    assert_eq!(a.return_delegation(&handle, stateid).await, Nfsstat4::Ok);
    assert_eq!(read_by_v3(&rig, &handle).await, Nfsstat3::Ok);
    // A lock by NLM conflicts, because a delegation holder locks locally.
    let (open, stateid, handle) = a.delegated("l").await;
    assert_eq!(lock_by_nlm(&rig, &served.nfs, &handle).await, Nlm4Stats::DeniedGracePeriod);
    assert_eq!(a.recalled().await, (stateid, handle.clone()));
    assert_eq!(a.return_delegation(&handle, stateid).await, Nfsstat4::Ok);
    assert_eq!(lock_by_nlm(&rig, &served.nfs, &handle).await, Nlm4Stats::Granted);
    a.call([putfh(&handle), close(open)]).await;
    // Removing the file's name conflicts, and so does reading its size.
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
    assert_eq!(a.return_delegation(&handle, stateid).await, Nfsstat4::Ok);
    assert_eq!(b.call(at("/m").into_iter().chain([remove("h")])).await.0, Nfsstat4::Ok);
}

/// A change is in progress until its pending operation has completed.
#[tokio::test]
async fn no_delegation_is_granted_while_a_change_is_pending() {
    let fs = Deferred::new(plain_memory(), Pace::Manual);
    fs.0.hold(false);
    let served = Served::serving(fs.clone()).await;
    let rig = Rig::calling(&served.nfs);
    let mut a = served.client("a").await;
    let (open, delegation, handle) = a.delegated("f").await;
    assert_eq!(a.return_delegation(&handle, delegation).await, Nfsstat4::Ok);
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
    writing.await.expect("the call must be accepted");
    assert_eq!(fs.0.executed("write"), 1);
    a.delegated("f").await;
}

/// Every change of a file with a read delegation fails with DELAY until the delegation is returned.
#[tokio::test]
async fn each_change_of_a_file_recalls_its_delegations() {
    let served = Served::with_background_work().await;
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
            // The holder sets the attribute itself, which recalls nothing.
            let own = SetXattrArgs { option, key: key.into(), value: "value".into() };
            a.minor = 2;
            a.ok([putfh(&file), Argop4::SetXattr(own)]).await;
            a.minor = 1;
        }
        let asked = || [putfh(&source), Argop4::SaveFh, putfh(&file), change.clone()];
        assert_eq!(b.call(asked()).await.0, Nfsstat4::Delay, "{change:?}");
        //= rfc8881-18.32.4-3
        assert_eq!(a.recalled().await, (stateid, file.clone()), "{change:?}");
        assert_eq!(a.return_delegation(&file, stateid).await, Nfsstat4::Ok);
        //= rfc8881-10.2-2
        assert_eq!(b.call(asked()).await.0, Nfsstat4::Ok, "{change:?}");
    }
}

/// Returns a client of the previous server start, with a new session.
fn returning_client(server: &NfsServer, name: &str, caller: &Identity) -> Client4 {
    let mut client = Client4::stranger(server, 1);
    client.caller = caller.clone();
    let Resop4::ExchangeId(Res4::Ok(exchanged)) = client.alone(exchange_id(name)) else { panic!("EXCHANGE_ID") };
    let create = create_session(exchanged.clientid, exchanged.sequenceid, channel());
    let Resop4::CreateSession(Res4::Ok(created)) = client.alone(create) else { panic!("CREATE_SESSION") };
    (client.client, client.session) = (exchanged.clientid, created.sessionid);
    client
}

/// A server that is restarted several times, and the identity of its caller.
struct Restarts {
    dir: TempDir,
    state: TempDir,
    path: String,
    me: Identity,
}

impl Restarts {
    fn new() -> Self {
        let (dir, state) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let path = dir.path().canonicalize().unwrap().to_str().unwrap().to_owned();
        let me = rustix::process::geteuid().as_raw();
        Self { dir, state, path, me: user(me, me) }
    }

    fn next(&self, grace: Duration) -> NfsServer {
        serve(self.dir.path(), self.state.path(), grace)
    }

    /// Starts a server in which client `a` opens a file exclusively, and client `idle` opens none.
    fn opened(&self) -> NfsFh4 {
        let server = self.next(LONG);
        let mut a = returning_client(&server, "a", &self.me);
        a.ok([COMPLETE]);
        let (_, handle) = a.open(&self.path, "f", alone()).unwrap();
        // This client has nothing to reclaim.
        returning_client(&server, "idle", &self.me).ok([COMPLETE]);
        handle
    }
}

fn alone() -> Open {
    Open { deny: OPEN4_SHARE_DENY_BOTH, ..Open::default() }
}

fn runtime() -> Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

/// Returns the first answer other than GRACE.
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
    let open = Argop4::Open(Box::new(OpenArgs {
        seqid: Seqid4(0),
        share_access: OPEN4_SHARE_ACCESS_BOTH,
        share_deny: OPEN4_SHARE_DENY_BOTH,
        owner: StateOwner4 { clientid: Clientid4(0), owner: "owner".into() },
        openhow: Openflag4::NoCreate,
        claim: OpenClaim4::Previous(OpenDelegationType4::None),
    }));
    [putfh(handle), open]
}

#[test]
fn open_is_reclaimed_after_a_restart_and_grace_ends_after_all_reclaims() {
    let restarts = Restarts::new();
    let (handle, server) = (restarts.opened(), restarts.next(LONG));
    let (mut b, mut idle) =
        (returning_client(&server, "b", &restarts.me), returning_client(&server, "idle", &restarts.me));
    for other in [&mut b, &mut idle] {
        assert_eq!(other.status(reclaim(&handle)), Nfsstat4::ReclaimBad, "it held no state");
        other.ok([COMPLETE]);
        let wanted = Open { create: false, ..Open::default() };
        assert_eq!(other.open(&restarts.path, "f", wanted).unwrap_err(), Nfsstat4::Grace);
    }
    let mut a = returning_client(&server, "a", &restarts.me);
    a.ok(reclaim(&handle));
    let runtime = runtime();
    runtime.spawn(server.upkeep());
    runtime.block_on(async { tokio::time::sleep(Duration::from_millis(10)).await });
    let wanted = Open { create: false, ..Open::default() };
    assert_eq!(b.open(&restarts.path, "f", wanted).unwrap_err(), Nfsstat4::Grace, "a has not sent RECLAIM_COMPLETE");
    a.ok([COMPLETE]);
    let status = after_grace(&runtime, || b.open(&restarts.path, "f", wanted)).unwrap_err();
    assert_eq!(status, Nfsstat4::ShareDenied, "the grace period ended early, and a has reclaimed its open");
}

#[test]
fn late_client_is_stored_with_its_state() {
    let restarts = Restarts::new();
    let handle = restarts.opened();
    {
        let server = restarts.next(Duration::from_secs(3));
        let mut a = returning_client(&server, "a", &restarts.me);
        a.ok(reclaim(&handle));
        let runtime = runtime();
        runtime.spawn(server.upkeep());
        let mut b = returning_client(&server, "b", &restarts.me);
        b.ok([COMPLETE]);
        after_grace(&runtime, || b.open(&restarts.path, "g", alone())).unwrap();
        a.ok([COMPLETE]);
    }
    let server = restarts.next(LONG);
    returning_client(&server, "a", &restarts.me).ok(reclaim(&handle));
}

#[test]
fn late_client_that_did_not_complete_cannot_reclaim_after_the_next_restart() {
    let restarts = Restarts::new();
    let handle = restarts.opened();
    let runtime = runtime();
    {
        let server = restarts.next(Duration::from_secs(3));
        returning_client(&server, "a", &restarts.me).ok(reclaim(&handle));
        let upkeep = runtime.spawn(server.upkeep());
        let mut b = returning_client(&server, "b", &restarts.me);
        b.ok([COMPLETE]);
        after_grace(&runtime, || b.open(&restarts.path, "g", alone())).unwrap();
        upkeep.abort();
        let _ = runtime.block_on(upkeep);
    }
    // The server stops before `a` has sent RECLAIM_COMPLETE. After the next start `b` returns at once.
    let server = restarts.next(LONG);
    let mut b = returning_client(&server, "b", &restarts.me);
    b.ok([COMPLETE]);
    runtime.spawn(server.upkeep());
    runtime.block_on(async { tokio::time::sleep(Duration::from_secs(2)).await });
    assert_eq!(
        b.open(&restarts.path, "f", alone()).unwrap_err(),
        Nfsstat4::Grace,
        "a may assume that it still has the file open"
    );
    let mut a = returning_client(&server, "a", &restarts.me);
    assert_eq!(a.status(reclaim(&handle)), Nfsstat4::ReclaimBad, "another client could have opened it in the meantime");
    a.ok([COMPLETE]);
    after_grace(&runtime, || b.open(&restarts.path, "f", alone())).unwrap();
}
