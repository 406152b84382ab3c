//! Delegations and restarts of version 4: a client over TCP that is called back, and the results of other clients in
//! the meantime.

use std::{sync::atomic::Ordering::SeqCst, task::Poll, time::Duration};

use crate::common::machine::{Machine, background_work};
use crate::common::remote::{self, Served};
use crate::common::v4::*;
use crate::common::*;
use nfs::{
    nlm::{Lock, LockArgs, Nlm4Stats, NlmProc4, Res},
    v3::{Nfsstat3, Read, ReadArgs},
    v4::{
        attr::Attr4,
        callback::{CbOpnum4, ReferringCall4, ReferringCallList4},
        *,
    },
};
use server::NfsServer;
use testkit::deferred::{Deferred, Pace};
use tokio::time::sleep;
use xdr::{Array, Message};

fn read_by_v3(rig: &Rig, handle: &NfsFh4) -> Nfsstat3 {
    let args = ReadArgs { file: handle.0.clone().into(), offset: 0, count: 10 };
    rig.call::<Read>(args).into_result().map_or_else(|(status, _)| status, |_| Nfsstat3::Ok)
}

fn lock_by_nlm(rig: &Rig, nfs: &NfsServer, handle: &NfsFh4) -> Nlm4Stats {
    let fh = handle.0.clone().into();
    let lock = Lock { caller_name: "mars".into(), fh, oh: "oh".into(), svid: 1, offset: 0, len: 0 };
    let args = LockArgs { cookie: "c".into(), block: false, exclusive: true, lock, reclaim: false, state: 1 };
    let reply = rig.raw(&nfs.nlm4(), NlmProc4::NmLock as u32, &Message::encode(&args));
    results::<Res>(&reply.expect("the call must be accepted")).status
}

#[simnet::test]
async fn delegation_is_recalled_for_clients_of_any_protocol() {
    let served = Served::new();
    let rig = Rig::calling(&served.nfs);
    let mut a = served.client("a").await;
    let (stateid, delegation, handle) = a.open("f", OPEN4_SHARE_ACCESS_BOTH).await.unwrap();
    assert_eq!(delegation, OpenDelegation4::None, "no background work could recall it");
    a.call([putfh(&handle), close(stateid)]).await;
    let served = served.run_background_work().await;
    let mut b = served.client("b").await;
    // Another client of version 4 conflicts.
    let (open, delegation, _) = a.delegated("f").await;
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
    assert_eq!(read_by_v3(&rig, &handle), Nfsstat3::Jukebox);
    assert_eq!(a.recalled().await, (stateid, handle.clone()));
    assert_eq!(a.return_delegation(&handle, stateid).await, Nfsstat4::Ok);
    assert_eq!(read_by_v3(&rig, &handle), Nfsstat3::Ok);
    // A lock by NLM conflicts, because a delegation holder locks locally.
    let (open, stateid, handle) = a.delegated("l").await;
    assert_eq!(lock_by_nlm(&rig, &served.nfs, &handle), Nlm4Stats::DeniedGracePeriod);
    assert_eq!(a.recalled().await, (stateid, handle.clone()));
    assert_eq!(a.return_delegation(&handle, stateid).await, Nfsstat4::Ok);
    assert_eq!(lock_by_nlm(&rig, &served.nfs, &handle), Nlm4Stats::Granted);
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
#[simnet::test]
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
#[simnet::test]
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

/// Returns a machine whose server has been stopped, and a file of it that client `a` has open exclusively. Client `idle` has
/// nothing open.
fn with_an_open() -> (Machine, NfsFh4) {
    let machine = Machine::new();
    let server = machine.start(LONG);
    let mut a = Client4::returning(&server, "a");
    a.ok([COMPLETE]);
    let (_, handle) = a.open("/m", "f", alone()).unwrap();
    // This client has nothing to reclaim.
    Client4::returning(&server, "idle").ok([COMPLETE]);
    (machine, handle)
}

fn alone() -> Open {
    Open { deny: OPEN4_SHARE_DENY_BOTH, ..Open::default() }
}

/// Returns the first answer other than GRACE.
async fn after_grace<T>(mut ask: impl FnMut() -> Result<T, Nfsstat4>) -> Result<T, Nfsstat4> {
    loop {
        match ask() {
            Err(Nfsstat4::Grace) => sleep(Duration::from_millis(100)).await,
            answer => return answer,
        }
    }
}

/// Longer than any simulation.
const LONG: Duration = Duration::from_secs(48 * 3600);
const COMPLETE: Argop4 = Argop4::ReclaimComplete(ReclaimCompleteArgs { one_fs: false });

#[simnet::test]
async fn open_is_reclaimed_after_a_restart_and_grace_ends_after_all_reclaims() {
    let (machine, handle) = with_an_open();
    let server = machine.start(LONG);
    let (mut b, mut idle) = (Client4::returning(&server, "b"), Client4::returning(&server, "idle"));
    for other in [&mut b, &mut idle] {
        assert_eq!(other.status(reclaim(&handle, alone())), Nfsstat4::ReclaimBad, "it held no state");
        other.ok([COMPLETE]);
        let wanted = Open { create: false, ..Open::default() };
        assert_eq!(other.open("/m", "f", wanted).unwrap_err(), Nfsstat4::Grace);
    }
    let mut a = Client4::returning(&server, "a");
    a.ok(reclaim(&handle, alone()));
    let _background = background_work(&server);
    // All leases last.
    sleep(Duration::from_secs(80)).await;
    let wanted = Open { create: false, ..Open::default() };
    assert_eq!(b.open("/m", "f", wanted).unwrap_err(), Nfsstat4::Grace, "a has not sent RECLAIM_COMPLETE");
    a.ok([COMPLETE]);
    let status = after_grace(|| b.open("/m", "f", wanted)).await.unwrap_err();
    assert_eq!(status, Nfsstat4::ShareDenied, "the grace period ended early, and a has reclaimed its open");
}

#[simnet::test]
async fn late_client_is_stored_with_its_state() {
    let (machine, handle) = with_an_open();
    {
        let server = machine.start(Duration::from_secs(3));
        let mut a = Client4::returning(&server, "a");
        a.ok(reclaim(&handle, alone()));
        let _background = background_work(&server);
        let mut b = Client4::returning(&server, "b");
        b.ok([COMPLETE]);
        after_grace(|| b.open("/m", "g", alone())).await.unwrap();
        a.ok([COMPLETE]);
    }
    let server = machine.start(LONG);
    Client4::returning(&server, "a").ok(reclaim(&handle, alone()));
}

#[simnet::test]
async fn late_client_that_did_not_complete_cannot_reclaim_after_the_next_restart() {
    let (machine, handle) = with_an_open();
    {
        let server = machine.start(Duration::from_secs(3));
        Client4::returning(&server, "a").ok(reclaim(&handle, alone()));
        let _background = background_work(&server);
        let mut b = Client4::returning(&server, "b");
        b.ok([COMPLETE]);
        after_grace(|| b.open("/m", "g", alone())).await.unwrap();
    }
    // The server stops before `a` has sent RECLAIM_COMPLETE. After the next start `b` returns at once.
    let server = machine.start(LONG);
    let mut b = Client4::returning(&server, "b");
    b.ok([COMPLETE]);
    let _background = background_work(&server);
    // All leases last.
    sleep(Duration::from_secs(80)).await;
    assert_eq!(
        b.open("/m", "f", alone()).unwrap_err(),
        Nfsstat4::Grace,
        "a may assume that it still has the file open"
    );
    let mut a = Client4::returning(&server, "a");
    assert_eq!(
        a.status(reclaim(&handle, alone())),
        Nfsstat4::NoGrace,
        "another client could have opened it in the meantime"
    );
    a.ok([COMPLETE]);
    after_grace(|| b.open("/m", "f", alone())).await.unwrap();
}

/// A reclaim needs the same permission as a new open.
#[simnet::test]
async fn open_cannot_be_reclaimed_by_a_user_without_permission() {
    let (machine, handle) = with_an_open();
    let server = machine.start(LONG);
    let mut a = Client4::returning(&server, "a");
    a.caller = user(1000, 1000);
    //= rfc8881-8.4.2.1.1-1
    assert_eq!(a.status(reclaim(&handle, alone())), Nfsstat4::Access, "the mode is 0644, and root owns the file");
    a.ok(reclaim(&handle, Open { access: OPEN4_SHARE_ACCESS_READ, ..Open::default() }));
    a.caller = user(0, 0);
    let mode = |mode| set(attr::Attrs { mode: Some(mode), owner: Some("1000".into()), ..Default::default() });
    a.ok([putfh(&handle), mode(0o444)]);
    a.caller = user(1000, 1000);
    a.ok(reclaim(&handle, Open { owner: "writer", ..Open::default() }));
}

/// The reply that grants a delegation and its recall can overtake each other.
#[simnet::test]
async fn recall_names_the_open_until_the_client_has_its_reply() {
    let served = Served::with_background_work().await;
    let (mut a, mut b) = (served.client("a").await, served.client("b").await);
    for (name, has_reply) in [("f", false), ("g", true)] {
        let (_, stateid, handle) = a.delegated(name).await;
        let call = ReferringCall4 { sequenceid: Sequenceid4(a.sequence), slotid: Slotid4(0) };
        if has_reply {
            a.ok([Argop4::PutRootFh]).await;
        }
        assert_eq!(b.open(name, OPEN4_SHARE_ACCESS_READ).await.unwrap_err(), Nfsstat4::Delay);
        let recall = a.back.receive(CbOpnum4::Recall).await;
        let named = ReferringCallList4 { sessionid: a.session, referring_calls: Array(vec![call]) };
        let expected = if has_reply { Vec::new() } else { vec![named] };
        //= rfc8881-2.10.6.3-1
        assert_eq!(recall.sequence.unwrap().referring_call_lists.0, expected, "{name}");
        assert_eq!(a.return_delegation(&handle, stateid).await, Nfsstat4::Ok);
    }
}

/// A client delays a callback until it has the reply to the referring call.
#[simnet::test]
async fn client_that_delays_callbacks_has_a_callback_path() {
    let served = Served::with_background_work().await;
    let (mut a, mut b) = (served.client("a").await, served.client("b").await);
    let (_, stateid, handle) = a.delegated("f").await;
    a.back.busy.store(true, SeqCst);
    assert_eq!(b.open("f", OPEN4_SHARE_ACCESS_READ).await.unwrap_err(), Nfsstat4::Delay);
    // Longer than the server repeats one callback.
    sleep(Duration::from_secs(10)).await;
    let sent = a.back.received.lock().unwrap().len();
    assert!(sent > 10, "{sent}");
    a.sequence += 1;
    let (sessionid, sequenceid) = (a.session, Sequenceid4(a.sequence));
    let (slotid, highest_slotid) = Default::default();
    let sequence = SequenceArgs { sessionid, sequenceid, slotid, highest_slotid, cachethis: false };
    let (_, results) = a.compound(vec![Argop4::Sequence(sequence)]).await;
    let [Resop4::Sequence(Res4::Ok(ok))] = &results[..] else { panic!("{results:?}") };
    assert_eq!(ok.status_flags, 0, "the client answers, so its callback path works");
    a.back.busy.store(false, SeqCst);
    a.back.received.lock().unwrap().clear();
    assert_eq!(a.recalled().await, (stateid, handle), "the recall is sent until the client accepts it");
}
