//! Sessions of NFSv4.1 against a scripted server: exactly-once requests, slots, recovery and callbacks.

use std::{sync::Arc, time::Duration};

use crate::common::{
    scripted::{CONTENT, Executed, SLOTS, Scripted},
    sim,
};
use client::{LockRange, Mount, Status};
use nfs::v4::{
    Argop4, LookupArgs, Nfsstat4, OPEN4_SHARE_ACCESS_READ, Opnum4, Res4, Resop4, SEQ4_STATUS_CB_PATH_DOWN,
    SEQ4_STATUS_CB_PATH_DOWN_SESSION, Sessionid4, Slotid4, callback::*,
};
use tokio::time::Instant;

/// Runs a test in virtual time against a scripted server, over simulated TCP.
fn simulated(query: &str, test: impl AsyncFnOnce(Arc<Scripted>, Mount)) {
    sim::run(&format!("/?proto=tcp&vers=auto{query}"), sim::scripted, |scripted, mount| async move {
        assert_eq!(mount.protocol().version(), "4.1", "the client must use 4.1, because the server has no 4.2");
        test(scripted, mount).await;
    });
}

/// The reply is lost with its connection. The same request is sent again in the same slot and is executed once.
#[test]
fn request_with_lost_reply_is_sent_again_in_its_slot() {
    simulated("", async |scripted, mount| {
        scripted.script.lock().lose = Some((Opnum4::Rename, 2));
        mount.rename("file", "other").await.unwrap();
        let renames = scripted.with(Opnum4::Rename);
        assert_eq!(renames.len(), 1, "{renames:?}");
        //= rfc8881-2.10.13.1.2-2
        assert_eq!(scripted.script.lock().replayed, 1, "the second lost reply must be the one from the slot");
    });
}

/// The server can call the client again after the client has reconnected.
#[test]
fn connection_after_a_loss_is_bound_for_callbacks() {
    simulated("", async |scripted, mount| {
        {
            let mut script = scripted.script.lock();
            script.lose = Some((Opnum4::Rename, 1));
            script.flags = SEQ4_STATUS_CB_PATH_DOWN | SEQ4_STATUS_CB_PATH_DOWN_SESSION;
        }
        mount.rename("file", "other").await.unwrap();
        while scripted.script.lock().bound == 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let type_mask = Default::default();
        let callback = CbArgop4::RecallAny(CbRecallAnyArgs { objects_to_keep: 0, type_mask });
        //= rfc8881-2.10.13.1.2-3
        assert_eq!(scripted.call_back(callback).await, Nfsstat4::Ok, "the new connection carries callbacks");
    });
}

#[test]
fn any_operations_can_be_sent_in_the_session() {
    simulated("", async |scripted, mount| {
        let lookup = |name: &str| Argop4::Lookup(LookupArgs { objname: name.into() });
        let (v4, walk) = (mount.v4().unwrap(), |name| vec![Argop4::PutRootFh, lookup(name), Argop4::GetFh]);
        let results = v4.compound(walk("file"), 200).await.unwrap();
        assert!(
            matches!(&results[..], [Resop4::PutRootFh(_), Resop4::Lookup(_), Resop4::GetFh(Res4::Ok(_))]),
            "{results:?}"
        );
        let error = v4.compound(walk("other"), 200).await.unwrap_err();
        assert_eq!((error.operation(), error.status()), ("LOOKUP", Some(Status::NotFound)));
        let sent = scripted.with(Opnum4::Lookup);
        let last = sent.last().unwrap();
        assert_eq!(last.ops, [Opnum4::PutRootFh, Opnum4::Lookup, Opnum4::GetFh], "the session adds only SEQUENCE");
    });
}

/// A request whose reply the server has not cached is executed again with the next sequence ID.
#[test]
fn request_with_uncached_reply_is_executed_again() {
    simulated("", async |scripted, mount| {
        let file = mount.open("file").await.unwrap();
        scripted.script.lock().lose = Some((Opnum4::Read, 1));
        assert_eq!(file.read_bytes(0, 100).await.unwrap(), CONTENT);
        let reads = scripted.with(Opnum4::Read);
        assert_eq!(reads.len(), 2);
        assert_eq!((reads[1].slot, reads[1].sequence), (reads[0].slot, reads[0].sequence + 1));
    });
}

/// Linux's server omits results for which there is no room. The client then sends several smaller requests.
#[test]
fn undecodable_reply_is_followed_by_smaller_requests() {
    simulated("", async |scripted, mount| {
        scripted.script.lock().cut_short = true;
        assert_eq!(mount.read("file").await.unwrap(), CONTENT);
        let in_one = scripted.with(Opnum4::Open).into_iter().filter(|one| one.ops.contains(&Opnum4::Read)).count();
        assert_eq!(in_one, 2, "one attempt by name and one by handle");
        let reads = scripted.with(Opnum4::Read).into_iter().filter(|one| !one.ops.contains(&Opnum4::Open)).count();
        assert_eq!(reads, 1);
        let closes = scripted.with(Opnum4::Close).into_iter().filter(|one| !one.ops.contains(&Opnum4::Read)).count();
        assert!(closes >= 2, "files that may still be open must be closed");
    });
}

/// One of several connections is lost, and the caller does not notice.
#[test]
fn another_connection_continues() {
    simulated("&nconnect=3", async |scripted, mount| {
        assert_eq!(mount.v4().unwrap().connections(), 3);
        scripted.script.lock().lose = Some((Opnum4::Rename, 1));
        mount.rename("file", "other").await.unwrap();
        assert_eq!((scripted.with(Opnum4::Rename).len(), scripted.script.lock().replayed), (1, 1));
    });
}

/// A cancelled call leaves its slot in doubt. The client sends SEQUENCE in the slot before it uses the slot again.
#[test]
fn slot_in_doubt_is_resolved() {
    simulated("", async |scripted, mount| {
        scripted.script.lock().hold = Some(Opnum4::Rename);
        let hurried = tokio::spawn({
            let mount = mount.clone();
            async move { mount.rename("file", "other").await }
        });
        while scripted.script.lock().held == 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        hurried.abort();
        assert!(hurried.await.unwrap_err().is_cancelled());
        let given_up = scripted.with(Opnum4::Rename).remove(0);
        scripted.script.lock().hold = None;
        scripted.go_on.notify_waiters();
        loop {
            mount.stat("file").await.unwrap();
            let executed = scripted.script.lock().executed.clone();
            if executed.iter().any(|one| (one.slot, one.sequence) == (given_up.slot, given_up.sequence + 1)) {
                assert_eq!(scripted.with(Opnum4::Rename).len(), 1);
                assert_eq!(scripted.script.lock().sessions, 1, "the session must be kept");
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    });
}

/// The server's target slot bounds the outstanding requests, and can be lowered and raised.
#[test]
fn target_slot_bounds_outstanding_requests() {
    simulated("", async |scripted, mount| {
        assert_eq!(mount.v4().unwrap().slots(), SLOTS);
        scripted.script.lock().target = 1;
        mount.stat("file").await.unwrap();
        assert_eq!(mount.v4().unwrap().slots(), 2);
        scripted.script.lock().hold = Some(Opnum4::Rename);
        let tasks: Vec<_> = (0..6)
            .map(|_| {
                let mount = mount.clone();
                tokio::spawn(async move {
                    let protocol = mount.protocol();
                    protocol.rename(mount.root(), b"a", mount.root(), b"b").await
                })
            })
            .collect();
        while scripted.script.lock().held < 2 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        // Virtual time: further requests would arrive within some milliseconds.
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(scripted.script.lock().most_held, 2);
        scripted.script.lock().hold = None;
        scripted.go_on.notify_waiters();
        for task in tasks {
            task.await.unwrap().unwrap();
        }
        scripted.script.lock().target = SLOTS - 1;
        mount.stat("file").await.unwrap();
        assert_eq!(mount.v4().unwrap().slots(), SLOTS);
    });
}

/// A caller that sends the next request at once does not keep the slot from waiting callers.
#[test]
fn slots_are_granted_in_order_of_waiting() {
    simulated("", async |scripted, mount| {
        scripted.script.lock().target = 0;
        mount.stat("file").await.unwrap();
        let rename = |mount: Mount, name: &'static [u8]| async move {
            mount.protocol().rename(mount.root(), name, mount.root(), b"b").await.unwrap();
        };
        let busy = tokio::spawn({
            let mount = mount.clone();
            async move {
                loop {
                    rename(mount.clone(), b"a").await;
                }
            }
        });
        while scripted.with(Opnum4::Rename).is_empty() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let before = scripted.with(Opnum4::Rename).len();
        rename(mount.clone(), b"c").await;
        let more = scripted.with(Opnum4::Rename).len() - before;
        assert!(more <= 4, "{more} requests were sent before the waiting one");
        busy.abort();
    });
}

/// The server loses the session, then the client. Opens and locks are reclaimed, and callers do not notice.
#[test]
fn lost_session_and_client_are_recovered() {
    simulated("", async |scripted, mount| {
        let made = || {
            let script = scripted.script.lock();
            (script.sessions, script.clients)
        };
        let file = mount.open("file").await.unwrap();
        assert_eq!(file.read_bytes(0, 4).await.unwrap(), &CONTENT[..4]);
        let range = LockRange { offset: 0, length: 10, exclusive: false };
        assert_eq!(mount.v4().unwrap().lock(file.handle(), b"me", range).await.unwrap(), None);
        scripted.forget_session();
        assert_eq!(file.read_bytes(4, 4).await.unwrap(), &CONTENT[4..8]);
        assert_eq!(made(), (2, 1));
        assert!(
            scripted.script.lock().executed.iter().all(|one| !one.reclaims),
            "the client was still known, so nothing must be reclaimed"
        );
        scripted.restart();
        let refused = scripted.script.lock().stale_clients;
        assert_eq!(file.read_bytes(8, 4).await.unwrap(), &CONTENT[8..12]);
        assert_eq!(scripted.script.lock().stale_clients, refused + 1, "CREATE_SESSION must have been refused");
        //= rfc8881-8.4.2-1
        assert_eq!(made(), (3, 2));
        let reclaimed: Vec<_> = scripted.script.lock().executed.iter().filter(|one| one.reclaims).cloned().collect();
        //= rfc8881-8.4.2-1
        assert!(reclaimed[0].ops.contains(&Opnum4::Open) && reclaimed[1].ops.contains(&Opnum4::Lock), "{reclaimed:?}");
        assert_eq!(scripted.with(Opnum4::ReclaimComplete).len(), 2);
        mount.unmount().await.unwrap();
    });
}

/// A small file is looked up, opened, read and closed in one request.
#[test]
fn small_file_is_read_in_one_request() {
    simulated("", async |scripted, mount| {
        let asked = scripted.script.lock().executed.len();
        assert_eq!(mount.read("file").await.unwrap(), CONTENT);
        let requests = scripted.script.lock().executed[asked..].to_vec();
        assert_eq!(requests.len(), 1, "{requests:?}");
        assert_eq!(requests[0].ops, [Opnum4::PutFh, Opnum4::Open, Opnum4::GetFh, Opnum4::Read, Opnum4::Close]);
    });
}

/// All users of a file share one open, so a late CLOSE would also close a new open and release its locks.
#[test]
fn open_waits_for_an_outstanding_close() {
    simulated("", async |scripted, mount| {
        let file = mount.open("file").await.unwrap();
        file.read_bytes(0, 4).await.unwrap();
        scripted.script.lock().hold = Some(Opnum4::Close);
        drop(file.reader());
        while scripted.script.lock().held == 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let (v4, handle) = (mount.v4().unwrap().clone(), file.handle().clone());
        let range = LockRange { offset: 0, length: 10, exclusive: false };
        let lock = tokio::spawn(async move { v4.lock(&handle, b"me", range).await });
        // Virtual time: an OPEN would arrive within some milliseconds.
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(scripted.with(Opnum4::Open).len(), 1, "OPEN must wait for CLOSE");
        scripted.script.lock().hold = None;
        scripted.go_on.notify_waiters();
        assert_eq!(lock.await.unwrap().unwrap(), None);
        assert_eq!(scripted.with(Opnum4::Open).len(), 2);
    });
}

/// A delegation lets the client cache attributes. It is returned when it is recalled.
#[test]
fn recalled_delegation_is_returned() {
    simulated("", async |scripted, mount| {
        scripted.script.lock().delegate = OPEN4_SHARE_ACCESS_READ;
        let file = mount.open("file").await.unwrap();
        file.read_bytes(0, 4).await.unwrap();
        let asked = scripted.script.lock().executed.len();
        assert_eq!(file.stat().await.unwrap().size, CONTENT.len() as u64);
        assert_eq!(scripted.script.lock().executed.len(), asked, "the attributes must be cached");
        assert_eq!(scripted.recall().await, Nfsstat4::Ok);
        while scripted.with(Opnum4::DelegReturn).is_empty() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        file.stat().await.unwrap();
        assert!(scripted.script.lock().executed.len() > asked + 1, "the attributes must be requested again");
    });
}

/// A callback that arrives before the reply to its referring call waits for that reply.
#[test]
fn recall_waits_for_the_reply_that_granted_the_delegation() {
    simulated("", async |scripted, mount| {
        {
            let mut script = scripted.script.lock();
            (script.delegate, script.hold) = (OPEN4_SHARE_ACCESS_READ, Some(Opnum4::Open));
        }
        let open = async { mount.open("file").await.unwrap().read_bytes(0, 4).await.unwrap() };
        let call_back = async {
            while scripted.script.lock().held == 0 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            let (session, open) = (scripted.session(), scripted.with(Opnum4::Open).remove(0));
            let nothing = || {
                let type_mask = Default::default();
                CbArgop4::RecallAny(CbRecallAnyArgs { objects_to_keep: 0, type_mask })
            };
            let timed = async |about, operation| {
                let begun = Instant::now();
                (scripted.call_back_about(about, operation).await, begun.elapsed())
            };
            // The callback is sent twice, and each time the client waits for half a second.
            let (status, waited) = timed(Some((session, &open)), Scripted::recall_op()).await;
            assert_eq!(status, Nfsstat4::Delay);
            assert!((Duration::from_secs(1)..Duration::from_secs(2)).contains(&waited), "{waited:?}");
            // These requests are not outstanding.
            let earlier = Executed { sequence: open.sequence - 1, ..open.clone() };
            let unused = Executed { slot: SLOTS - 1, ..open.clone() };
            for about in [(session, &earlier), (session, &unused), (Sessionid4([77; 16]), &open)] {
                let (status, waited) = timed(Some(about), nothing()).await;
                assert_eq!(status, Nfsstat4::Ok);
                assert!(waited < Duration::from_millis(400), "{waited:?}");
            }
            let reply = async {
                tokio::time::sleep(Duration::from_millis(200)).await;
                scripted.script.lock().hold = None;
                scripted.go_on.notify_waiters();
            };
            let ((status, waited), ()) = tokio::join!(timed(Some((session, &open)), Scripted::recall_op()), reply);
            assert_eq!(status, Nfsstat4::Ok, "the reply has arrived");
            assert!((Duration::from_millis(200)..Duration::from_millis(500)).contains(&waited), "{waited:?}");
        };
        tokio::join!(open, call_back);
        while scripted.with(Opnum4::DelegReturn).is_empty() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    });
}

/// The server recalls slots and delegations. The client returns them and tells the server.
#[test]
fn recalled_slots_and_delegations_are_returned() {
    simulated("", async |scripted, mount| {
        scripted.script.lock().delegate = OPEN4_SHARE_ACCESS_READ;
        mount.open("file").await.unwrap().read_bytes(0, 4).await.unwrap();
        let type_mask = [RCA4_TYPE_MASK_RDATA_DLG].into_iter().collect();
        let keep = |objects_to_keep, type_mask| CbArgop4::RecallAny(CbRecallAnyArgs { objects_to_keep, type_mask });
        assert_eq!(scripted.call_back(keep(1, type_mask)).await, Nfsstat4::Ok);
        assert_eq!(
            scripted.call_back(keep(0, Default::default())).await,
            Nfsstat4::Ok,
            "the mask has no type that this client holds"
        );
        assert!(scripted.with(Opnum4::DelegReturn).is_empty());
        let type_mask = [RCA4_TYPE_MASK_RDATA_DLG].into_iter().collect();
        assert_eq!(scripted.call_back(keep(0, type_mask)).await, Nfsstat4::Ok);
        while scripted.with(Opnum4::DelegReturn).is_empty() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }

        assert_eq!(mount.v4().unwrap().slots(), SLOTS);
        // The slots follow from the callback, and not from the reply to a request.
        scripted.refuse(Opnum4::Sequence, Nfsstat4::Delay, Duration::from_secs(1));
        scripted.script.lock().target = 1;
        let only_sequence = || scripted.script.lock().executed.iter().filter(|one| one.ops.is_empty()).count();
        let before = only_sequence();
        let recall = CbArgop4::RecallSlot(CbRecallSlotArgs { target_highest_slotid: Slotid4(1) });
        assert_eq!(scripted.call_back(recall).await, Nfsstat4::Ok);
        assert_eq!(mount.v4().unwrap().slots(), 2);
        while only_sequence() < before + 2 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    });
}
