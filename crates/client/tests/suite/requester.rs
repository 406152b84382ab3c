//! The client as the requester of a session, as RFC 8881 §2.10.6 requires: slots, retries, and the repair of the backchannel.
//! The tests run in virtual time against a scripted server that records all requests.

use std::{sync::Arc, time::Duration};

use crate::common::{
    recorder::{Record, Recorded},
    scripted::{SLOTS, Scripted},
    sim,
};
use client::Mount;
use nfs::v4::*;
use simnet::Network;
use tokio::{task::JoinHandle, time::Instant};

/// A scripted server with the record of its requests, and a mount.
struct Rig {
    network: Network,
    scripted: Arc<Scripted>,
    record: Record,
    mount: Mount,
}

impl Rig {
    fn run(test: impl AsyncFnOnce(Rig)) {
        sim::simulate(|network| async move {
            let (services, (scripted, record)) = sim::recorded();
            let _process = sim::start(&network, services);
            let url = format!("nfs://{}/?proto=tcp&vers=4.1&uid=0&gid=0", sim::SERVER).parse().unwrap();
            let mount = Mount::connect(&url, &sim::switch(&network, 1)).await.unwrap();
            test(Rig { network, scripted, record, mount }).await;
        });
    }

    fn hold(&self, opnum: Option<Opnum4>) {
        self.scripted.script.lock().hold = opnum;
    }

    /// Waits until the server holds this number of requests.
    async fn held(&self, count: u32) {
        sim::until(|| self.scripted.script.lock().held == count).await;
    }

    fn resume(&self) {
        self.scripted.go_on.notify_waiters();
    }

    /// Starts a RENAME that does not time out in this test.
    fn rename(&self) -> JoinHandle<()> {
        let mount = self.mount.with_deadline(HOUR);
        tokio::spawn(async move { mount.protocol().rename(mount.root(), b"a", mount.root(), b"b").await.unwrap() })
    }

    /// Returns the requests in the slot of `request` that have its sequence ID or a later one.
    fn since(&self, request: &Recorded) -> Vec<Recorded> {
        let first = *request.sequence().unwrap();
        let is = |one: &SequenceArgs| one.slotid == first.slotid && one.sequenceid.0 >= first.sequenceid.0;
        self.record.all().into_iter().filter(|one| one.sequence().is_some_and(is)).collect()
    }
}

/// The lowest slot is free while higher ones are in use.
#[test]
fn sequence_has_the_highest_outstanding_slot() {
    Rig::run(async |rig| {
        rig.hold(Some(Opnum4::GetAttr));
        let lowest = tokio::spawn({
            let mount = rig.mount.clone();
            async move { mount.stat("file").await.unwrap() }
        });
        rig.held(1).await;
        rig.hold(Some(Opnum4::Rename));
        let others = [rig.rename(), rig.rename()];
        rig.held(3).await;
        rig.resume();
        lowest.await.unwrap();
        rig.mount.stat("file").await.unwrap();
        let last = *rig.record.all().last().unwrap().sequence().unwrap();
        //= rfc8881-2.10.6.1-9
        assert_eq!((last.slotid, last.highest_slotid), (Slotid4(0), Slotid4(2)));
        rig.hold(None);
        rig.resume();
        for other in others {
            other.await.unwrap();
        }
        rig.mount.stat("file").await.unwrap();
        let last = *rig.record.all().last().unwrap().sequence().unwrap();
        assert_eq!((last.slotid, last.highest_slotid), (Slotid4(0), Slotid4(0)));
    });
}

/// The cached reply has the limits and flags at the time of the first transmission. They have changed since then.
#[test]
fn limits_and_flags_in_the_reply_to_a_retry_are_ignored() {
    Rig::run(async |rig| {
        {
            let mut script = rig.scripted.script.lock();
            (script.target, script.flags) = (1, SEQ4_STATUS_CB_PATH_DOWN);
            script.lose = Some((Opnum4::Rename, 1));
        }
        rig.rename().await.unwrap();
        assert_eq!(rig.scripted.script.lock().replayed, 1);
        //= rfc8881-2.10.6.1.1-3
        assert_eq!(rig.mount.v4().unwrap().slots(), SLOTS);
        rig.scripted.script.lock().flags = 0;
        // Virtual time: the task that repairs the backchannel would send its request at once.
        tokio::time::sleep(Duration::from_secs(5)).await;
        //= rfc8881-2.10.6.1.1-3
        assert!(rig.record.with(Opnum4::BindConnToSession).is_empty());
        rig.mount.stat("file").await.unwrap();
        assert_eq!(rig.mount.v4().unwrap().slots(), 2, "the limits of the next reply must be used");
    });
}

#[test]
fn request_is_sent_again_only_after_its_connection_is_lost() {
    Rig::run(async |rig| {
        rig.hold(Some(Opnum4::Rename));
        let rename = rig.rename();
        rig.held(1).await;
        tokio::time::sleep(HOUR / 2).await;
        //= rfc8881-2.10.6.2-1 rfc8881-2.9.2-1
        assert_eq!(rig.record.with(Opnum4::Rename).len(), 1);
        rig.hold(None);
        let lost = Instant::now();
        rig.network.cut_all();
        rename.await.unwrap();
        let sent = rig.record.with(Opnum4::Rename);
        assert!(sent[1].at > lost && sent[1].connection != sent[0].connection, "{sent:?}");
        assert_eq!(sent[1].args, sent[0].args, "a retry must be the same request");
    });
}

/// The caller gives up while the server executes its request.
#[test]
fn slot_is_not_used_before_the_reply_to_a_cancelled_request() {
    Rig::run(async |rig| {
        rig.hold(Some(Opnum4::Rename));
        let rename = rig.rename();
        rig.held(1).await;
        rename.abort();
        assert!(rename.await.unwrap_err().is_cancelled());
        let given_up = rig.record.with(Opnum4::Rename).remove(0);
        for _ in 0..20 {
            tokio::time::sleep(Duration::from_secs(2)).await;
            rig.mount.stat("file").await.unwrap();
        }
        //= rfc8881-2.10.6.2-4 rfc8881-2.10.6.2-1 rfc8881-2.9.2-6
        assert_eq!(rig.since(&given_up).len(), 1);
        rig.hold(None);
        rig.resume();
        sim::until(|| rig.scripted.script.lock().held == 0).await;
        tokio::time::sleep(Duration::from_secs(1)).await;
        rig.mount.stat("file").await.unwrap();
        let used = rig.since(&given_up);
        assert_eq!(used.len(), 2, "the lowest slot must be used again");
        assert_eq!(used[1].sequence().unwrap().sequenceid.0, given_up.sequence().unwrap().sequenceid.0 + 1);
    });
}

/// A deadline that passes gives a request up, too.
#[test]
fn slot_is_not_used_before_the_reply_to_a_request_that_timed_out() {
    Rig::run(async |rig| {
        rig.hold(Some(Opnum4::Rename));
        rig.mount.with_deadline(Duration::from_secs(10)).rename("file", "other").await.unwrap_err();
        let given_up = rig.record.with(Opnum4::Rename).remove(0);
        tokio::time::sleep(Duration::from_secs(50)).await;
        //= rfc8881-2.10.6.2-4
        assert_eq!(rig.since(&given_up).len(), 1);
    });
}

/// The reply to a cancelled request cannot arrive any more. The client has to find out whether the server has executed it.
#[test]
fn slot_of_a_cancelled_request_is_resolved_after_its_connection_is_lost() {
    Rig::run(async |rig| {
        rig.hold(Some(Opnum4::Rename));
        let rename = rig.rename();
        rig.held(1).await;
        rename.abort();
        assert!(rename.await.unwrap_err().is_cancelled());
        let given_up = rig.record.with(Opnum4::Rename).remove(0);
        rig.network.cut_all();
        sim::until(|| rig.since(&given_up).len() == 2).await;
        let resolving = rig.since(&given_up).remove(1);
        assert_eq!(resolving.opnums(), [Opnum4::Sequence]);
        assert_eq!(resolving.sequence().unwrap().sequenceid, given_up.sequence().unwrap().sequenceid);
    });
}

/// The server has dropped the request, as RPCSEC_GSS allows, so there is no reply. The client closes the connection, and the slot
/// becomes free.
#[test]
fn slot_of_a_dropped_request_is_resolved_over_a_new_connection() {
    Rig::run(async |rig| {
        rig.scripted.script.lock().drop = Some(Opnum4::Rename);
        let rename = rig.rename();
        sim::until(|| rig.record.with(Opnum4::Rename).len() == 1).await;
        rename.abort();
        assert!(rename.await.unwrap_err().is_cancelled());
        let given_up = rig.record.with(Opnum4::Rename).remove(0);
        sim::until(|| rig.since(&given_up).len() == 2).await;
        let resolving = rig.since(&given_up).remove(1);
        assert_eq!(resolving.opnums(), [Opnum4::Sequence]);
        assert_eq!(resolving.sequence().unwrap().sequenceid, given_up.sequence().unwrap().sequenceid);
        let waited = resolving.at - given_up.at;
        assert!((Duration::from_secs(60)..Duration::from_secs(65)).contains(&waited), "{waited:?}");
        //= rfc8881-2.10.6.2-1
        assert_ne!(resolving.connection, given_up.connection);
        // Virtual time: the answer arrives within some milliseconds.
        tokio::time::sleep(Duration::from_secs(1)).await;
        rig.mount.stat("file").await.unwrap();
        let used = rig.since(&given_up);
        assert_eq!(used.len(), 3, "the lowest slot must be used again");
        assert_eq!(used[2].sequence().unwrap().sequenceid.0, given_up.sequence().unwrap().sequenceid.0 + 1);
    });
}

#[test]
fn lost_backchannel_is_bound_again() {
    Rig::run(async |rig| {
        for flag in [SEQ4_STATUS_CB_PATH_DOWN_SESSION, SEQ4_STATUS_CB_PATH_DOWN] {
            let before = rig.record.with(Opnum4::BindConnToSession).len();
            rig.scripted.script.lock().flags = flag;
            rig.mount.stat("file").await.unwrap();
            //= rfc8881-2.10.6.2-3
            sim::until(|| rig.record.with(Opnum4::BindConnToSession).len() > before).await;
            let bound = rig.record.with(Opnum4::BindConnToSession).pop().unwrap();
            let Some(Argop4::BindConnToSession(args)) = bound.args.argarray.first() else { panic!("{bound:?}") };
            assert_eq!((args.sessid, args.dir), (Sessionid4([1; 16]), ChannelDirFromClient4::ForeOrBoth));
            assert_eq!(rig.scripted.script.lock().flags, 0);
            // The client pauses between two repairs.
            tokio::time::sleep(Duration::from_secs(5)).await;
        }
    });
}

/// The server holds a request when it reports the fault.
#[test]
fn session_with_a_faulty_backchannel_is_drained_and_replaced() {
    Rig::run(async |rig| {
        rig.hold(Some(Opnum4::Rename));
        let outstanding = rig.rename();
        rig.held(1).await;
        rig.scripted.script.lock().flags = SEQ4_STATUS_BACKCHANNEL_FAULT;
        rig.mount.stat("file").await.unwrap();
        tokio::task::yield_now().await;
        let before = rig.record.len();
        let later = tokio::spawn({
            let mount = rig.mount.clone();
            async move { mount.stat("file").await.unwrap() }
        });
        // Virtual time, less than half of a lease.
        tokio::time::sleep(Duration::from_secs(5)).await;
        //= rfc8881-18.46.3-10
        assert_eq!(rig.record.len(), before, "no request must be sent in the session");
        rig.hold(None);
        rig.resume();
        outstanding.await.unwrap();
        later.await.unwrap();
        let after: Vec<_> = rig.record.all().split_off(before).iter().map(|one| one.opnums()[0]).collect();
        //= rfc8881-18.46.3-10
        assert_eq!(after[..3], [Opnum4::DestroySession, Opnum4::CreateSession, Opnum4::BindConnToSession], "{after:?}");
        let destroyed = rig.record.with(Opnum4::DestroySession).remove(0);
        let Some(Argop4::DestroySession(args)) = destroyed.args.argarray.first() else { panic!("{destroyed:?}") };
        assert_eq!(args.sessionid, Sessionid4([1; 16]));
        assert_eq!(rig.record.all().last().unwrap().sequence().unwrap().sessionid, Sessionid4([2; 16]));
        assert_eq!(rig.record.with(Opnum4::ExchangeId).len(), 1, "the client ID must be kept");
    });
}

/// A callback is outstanding when the client destroys the session.
#[test]
fn session_with_outstanding_callbacks_is_destroyed_after_them() {
    Rig::run(async |rig| {
        {
            let mut script = rig.scripted.script.lock();
            let until = Instant::now() + Duration::from_millis(500);
            script.refuse = Some((Opnum4::DestroySession, Nfsstat4::BackChanBusy, until));
            script.flags = SEQ4_STATUS_BACKCHANNEL_FAULT;
        }
        rig.mount.stat("file").await.unwrap();
        sim::until(|| rig.record.with(Opnum4::CreateSession).len() == 2).await;
        let refused = rig.scripted.script.lock().refused;
        assert!(refused > 0);
        assert_eq!(rig.record.with(Opnum4::DestroySession).len() as u32, refused + 1, "the last one must succeed");
    });
}

#[test]
fn refused_end_of_a_faulty_session_is_final() {
    Rig::run(async |rig| {
        {
            let mut script = rig.scripted.script.lock();
            script.refuse = Some((Opnum4::DestroySession, Nfsstat4::Inval, Instant::now() + HOUR));
            script.flags = SEQ4_STATUS_BACKCHANNEL_FAULT;
        }
        rig.mount.stat("file").await.unwrap();
        sim::until(|| rig.record.with(Opnum4::CreateSession).len() == 2).await;
        assert_eq!(rig.record.with(Opnum4::DestroySession).len(), 1);
    });
}

/// All requests wait while the session is destroyed, so they wait for less than a lease.
#[test]
fn session_is_replaced_if_the_server_does_not_destroy_it() {
    Rig::run(async |rig| {
        {
            let mut script = rig.scripted.script.lock();
            (script.drop, script.flags) = (Some(Opnum4::DestroySession), SEQ4_STATUS_BACKCHANNEL_FAULT);
        }
        rig.mount.stat("file").await.unwrap();
        sim::until(|| rig.record.with(Opnum4::DestroySession).len() == 1).await;
        let begun = Instant::now();
        rig.mount.stat("file").await.unwrap();
        assert!(begun.elapsed() <= Duration::from_secs(16), "half of the lease and a margin: {:?}", begun.elapsed());
        assert_eq!(rig.record.all().last().unwrap().sequence().unwrap().sessionid, Sessionid4([2; 16]));
    });
}

const HOUR: Duration = Duration::from_secs(3600);
