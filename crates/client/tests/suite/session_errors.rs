//! Errors that a server of NFSv4.1 returns for the operations of sessions. The tests run in virtual time against a scripted
//! server that records all requests.

use std::{sync::Arc, time::Duration};

use crate::common::{
    recorder::{Record, Recorded},
    scripted::{CONTENT, Script, Scripted},
    sim,
};
use client::{LockRange, Mount, Result};
use nfs::v4::{callback::*, *};
use simnet::Network;
use tokio::time::Instant;

/// Connects to a server that `prepare` has changed.
fn connected(prepare: impl FnOnce(&mut Script), test: impl AsyncFnOnce(Arc<Scripted>, Record, Result<Mount>)) {
    over(prepare, async |_, scripted, record, mount| test(scripted, record, mount).await);
}

/// Connects to a server that `prepare` has changed, over a network that the test controls.
fn over(prepare: impl FnOnce(&mut Script), test: impl AsyncFnOnce(Network, Arc<Scripted>, Record, Result<Mount>)) {
    sim::simulate(|network| async move {
        let (services, (scripted, record)) = sim::recorded();
        prepare(&mut scripted.script.lock());
        let _process = sim::start(&network, services);
        let url = format!("nfs://{}/?proto=tcp&vers=4.1&uid=0&gid=0", sim::SERVER).parse().unwrap();
        let mount = Mount::connect(&url, &sim::switch(&network, 1)).await;
        test(network, scripted, record, mount).await;
    });
}

fn simulated(test: impl AsyncFnOnce(Arc<Scripted>, Record, Mount)) {
    connected(|_| {}, async |scripted, record, mount| test(scripted, record, mount.unwrap()).await);
}

/// The client sends requests of up to eight operations.
#[test]
fn session_that_is_too_small_is_an_error() {
    for (slots, operations, expected) in [
        (1, 8, None),
        (0, 8, Some("a session of 0 slots of 8 operations")),
        (8, 7, Some("a session of 8 slots of 7 operations")),
    ] {
        connected(
            |script| script.grants = Some((slots, operations)),
            async |_, _, mount| match (mount, expected) {
                (Ok(mount), None) => drop(mount.stat("file").await.unwrap()),
                (Err(error), Some(expected)) => assert!(error.to_string().contains(expected), "{error}"),
                (mount, _) => panic!("{slots} slots of {operations} operations: {mount:?}"),
            },
        );
    }
}

/// RFC 8881 §18.51.3: a client that repeats RECLAIM_COMPLETE after a lost reply gets this error.
#[test]
fn completed_reclaim_is_no_error() {
    connected(
        |script| {
            let forever = Instant::now() + HOUR;
            script.refuse = Some((Opnum4::ReclaimComplete, Nfsstat4::CompleteAlready, forever));
        },
        async |scripted, _, mount| {
            mount.unwrap().stat("file").await.unwrap();
            assert_eq!(scripted.script.lock().refused, 1);
        },
    );
}

#[test]
fn refused_session_ends_the_operation() {
    simulated(async |scripted, _, mount| {
        scripted.forget_session();
        scripted.refuse(Opnum4::CreateSession, Nfsstat4::NoSpc, HOUR);
        let error = mount.stat("file").await.unwrap_err();
        assert!(error.to_string().contains("CREATE_SESSION"), "{error}");
        assert_eq!(scripted.script.lock().refused, 1, "the error is final");
    });
}

/// A restarted server can return the same client ID. It says that the client was not confirmed, so it has no state of the client.
#[test]
fn state_is_reclaimed_although_the_client_id_is_the_same() {
    simulated(async |scripted, record, mount| {
        let file = mount.open("file").await.unwrap();
        assert_eq!(file.read_bytes(0, 4).await.unwrap(), &CONTENT[..4]);
        scripted.restart_with_same_ids();
        assert_eq!(file.read_bytes(4, 4).await.unwrap(), &CONTENT[4..8]);
        assert_eq!(scripted.script.lock().clients, 1, "the client ID must be the same");
        //= rfc8881-8.4.2-1
        assert!(record.position(|request| request.reclaims()).is_some());
    });
}

/// RFC 8881 §8.2.2: a seqid of zero is the most recent state.
#[test]
fn read_names_the_most_recent_state() {
    simulated(async |_, record, mount| {
        mount.open("file").await.unwrap().read_bytes(0, 4).await.unwrap();
        mount.open("file").await.unwrap().read_bytes(4, 4).await.unwrap();
        let of_read = |op: &Argop4| if let Argop4::Read(args) = op { Some(args.stateid) } else { None };
        let reads = record.with(Opnum4::Read);
        let stateids: Vec<_> = reads.iter().flat_map(|one| one.args.argarray.iter().filter_map(of_read)).collect();
        let of_open = Stateid4 { seqid: 0, other: [1; 12] };
        assert_eq!(stateids.last(), Some(&of_open), "{stateids:?}");
    });
}

/// The connection is bound, and the request is sent again until the server accepts it.
#[test]
fn request_over_an_unbound_connection_is_sent_again() {
    simulated(async |scripted, record, mount| {
        scripted.refuse(Opnum4::Sequence, Nfsstat4::ConnNotBoundToSession, Duration::from_secs(2));
        mount.stat("file").await.unwrap();
        assert!(scripted.script.lock().refused > 1);
        assert!(!record.with(Opnum4::BindConnToSession).is_empty());
        scripted.refuse(Opnum4::Sequence, Nfsstat4::ConnNotBoundToSession, HOUR);
        let error = mount.with_deadline(Duration::from_secs(10)).stat("file").await.unwrap_err();
        assert!(error.to_string().contains("no answer within"), "{error}");
    });
}

/// The server has another request in the slot than the one that is sent (RFC 8881 §2.10.6.1.3.1).
#[test]
fn request_that_the_server_takes_for_another_is_sent_in_the_next_sequence() {
    simulated(async |scripted, record, mount| {
        let before = record.len();
        scripted.refuse(Opnum4::Sequence, Nfsstat4::SeqFalseRetry, HOUR);
        let accept = async {
            sim::until(|| scripted.script.lock().refused > 0).await;
            scripted.script.lock().refuse = None;
        };
        let (stat, ()) = tokio::join!(mount.stat("file"), accept);
        stat.unwrap();
        let sent: Vec<_> = record.all()[before..].iter().filter_map(|one| one.sequence().copied()).collect();
        assert_eq!(sent[0].slotid, sent[1].slotid);
        assert_eq!(sent[0].sequenceid.0 + 1, sent[1].sequenceid.0);
    });
}

/// The server has executed the request, so its sequence ID is used. The client asks with SEQUENCE alone whether it is.
#[test]
fn sequence_of_an_undecodable_reply_is_not_used_for_another_request() {
    simulated(async |scripted, record, mount| {
        scripted.script.lock().cut_short = true;
        assert_eq!(mount.read("file").await.unwrap(), CONTENT);
        let undecodable = record.with(Opnum4::Read).remove(0);
        let same = |one: &SequenceArgs| {
            let first = undecodable.sequence().unwrap();
            (one.slotid, one.sequenceid) == (first.slotid, first.sequenceid)
        };
        sim::until(|| record.all().iter().filter(|one| one.sequence().is_some_and(same)).count() == 2).await;
        let again = record.all().into_iter().rfind(|one| one.sequence().is_some_and(same)).unwrap();
        //= rfc8881-2.10.6.2-4
        assert_eq!(again.opnums(), [Opnum4::Sequence]);
    });
}

/// The reply cannot be decoded, but the server has answered. So the slot is free.
#[test]
fn undecodable_reply_to_a_cancelled_request_frees_its_slot() {
    simulated(async |scripted, record, mount| {
        {
            let mut script = scripted.script.lock();
            (script.cut_short, script.hold) = (true, Some(Opnum4::Read));
        }
        let reader = mount.clone();
        let read = tokio::spawn(async move { reader.read("file").await });
        sim::until(|| scripted.script.lock().held == 1).await;
        read.abort();
        assert!(read.await.unwrap_err().is_cancelled());
        let given_up = *record.with(Opnum4::Read).remove(0).sequence().unwrap();
        scripted.script.lock().hold = None;
        scripted.go_on.notify_waiters();
        // Virtual time: the reply arrives within some milliseconds.
        tokio::time::sleep(Duration::from_secs(10)).await;
        mount.stat("file").await.unwrap();
        let of_slot = |one: &SequenceArgs| one.slotid == given_up.slotid && one.sequenceid.0 >= given_up.sequenceid.0;
        let sent: Vec<_> = record.all().into_iter().filter(|one| one.sequence().is_some_and(of_slot)).collect();
        assert_eq!(sent[1].sequence().unwrap().sequenceid.0, given_up.sequenceid.0 + 1);
        assert!(sent[1].has(Opnum4::GetAttr), "{sent:?}");
    });
}

/// The flag is set only in the first reply. The client asks again before it reclaims.
#[test]
fn nothing_is_reclaimed_if_the_server_does_not_ask_for_it_any_more() {
    simulated(async |scripted, record, mount| {
        let file = mount.open("file").await.unwrap();
        file.read_bytes(0, 4).await.unwrap();
        let ask = |flags| scripted.script.lock().flags = flags;
        ask(SEQ4_STATUS_RESTART_RECLAIM_NEEDED);
        mount.stat("file").await.unwrap();
        ask(0);
        let before = record.len();
        sim::until(|| record.all()[before..].iter().any(|one| one.opnums() == [Opnum4::Sequence])).await;
        tokio::time::sleep(Duration::from_secs(10)).await;
        assert!(record.position(|request| request.reclaims()).is_none());
        file.read_bytes(0, 4).await.unwrap();
        ask(SEQ4_STATUS_RESTART_RECLAIM_NEEDED);
        file.read_bytes(4, 4).await.unwrap();
        sim::until(|| record.position(|request| request.reclaims()).is_some()).await;
    });
}

/// The connection is lost while the client asks again whether the server waits for reclaims. The reply to the retry counts.
#[test]
fn nothing_is_reclaimed_if_the_server_says_so_in_the_reply_to_a_retry() {
    over(
        |_| {},
        async |network, scripted, record, mount| {
            let mount = mount.unwrap();
            let file = mount.open("file").await.unwrap();
            file.read_bytes(0, 4).await.unwrap();
            scripted.script.lock().flags = SEQ4_STATUS_RESTART_RECLAIM_NEEDED;
            mount.stat("file").await.unwrap();
            let before = record.len();
            let asked = || {
                let only = |one: &Recorded| (one.opnums() == [Opnum4::Sequence]).then(|| *one.sequence().unwrap());
                record.all()[before..].iter().filter_map(only).collect::<Vec<_>>()
            };
            {
                let mut script = scripted.script.lock();
                (script.flags, script.drop) = (0, Some(Opnum4::Sequence));
            }
            sim::until(|| asked().len() == 1).await;
            scripted.script.lock().drop = None;
            network.cut_all();
            sim::until(|| asked().len() == 2).await;
            assert_eq!(asked()[0], asked()[1], "the second request must be a retry");
            tokio::time::sleep(Duration::from_secs(10)).await;
            assert!(record.position(|request| request.reclaims()).is_none());
            file.read_bytes(4, 4).await.unwrap();
        },
    );
}

/// The session is lost again while the client recovers from the first loss.
#[test]
fn session_that_is_lost_twice_is_replaced_twice() {
    simulated(async |scripted, _, mount| {
        scripted.forget_session();
        let again = async {
            sim::until(|| scripted.script.lock().sessions == 2).await;
            scripted.forget_session();
        };
        let (stat, ()) = tokio::join!(mount.stat("file"), again);
        stat.unwrap();
        assert_eq!(scripted.script.lock().sessions, 3);
    });
}

/// The session is lost again when the client has replaced it and reclaims its state.
#[test]
fn session_that_is_lost_before_the_reclaim_is_replaced_at_once() {
    simulated(async |scripted, record, mount| {
        let file = mount.open("file").await.unwrap();
        file.read_bytes(0, 4).await.unwrap();
        scripted.restart();
        let begun = Instant::now();
        let again = async {
            sim::until(|| scripted.script.lock().sessions == 2).await;
            scripted.forget_session();
        };
        let (read, ()) = tokio::join!(file.read_bytes(4, 4), again);
        assert_eq!(read.unwrap(), &CONTENT[4..8]);
        assert_eq!(scripted.script.lock().sessions, 3);
        assert!(record.position(|request| request.reclaims()).is_some());
        assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
    });
}

/// A request that was given up when it had just been given the only slot.
#[test]
fn slot_of_a_cancelled_waiter_becomes_free() {
    simulated(async |scripted, _, mount| {
        scripted.script.lock().target = 0;
        mount.stat("file").await.unwrap();
        scripted.script.lock().hold = Some(Opnum4::Rename);
        let waiter = mount.clone();
        let resume = async {
            sim::until(|| scripted.script.lock().held == 1).await;
            let waiting = tokio::spawn(async move { waiter.stat("file").await });
            tokio::time::sleep(Duration::from_millis(10)).await;
            scripted.script.lock().hold = None;
            scripted.go_on.notify_waiters();
            [waiting]
        };
        let rename = mount.rename("file", "other");
        let mut rename = std::pin::pin!(rename);
        let [waiting] = tokio::select! {
            biased;
            waiting = resume => waiting,
            renamed = &mut rename => panic!("{renamed:?}"),
        };
        // The reply gives the slot to the waiting task, which does not run before it is cancelled.
        rename.await.unwrap();
        waiting.abort();
        assert!(waiting.await.unwrap_err().is_cancelled());
        mount.with_deadline(Duration::from_secs(10)).stat("file").await.unwrap();
    });
}

#[test]
fn error_names_the_operation_that_failed() {
    simulated(async |_, _, mount| {
        let error = mount.stat("missing").await.unwrap_err();
        assert!(error.to_string().contains("LOOKUP"), "{error}");
    });
}

#[test]
fn lease_of_the_server_is_used() {
    connected(
        |script| (script.lease, script.delegate) = (Some(400), OPEN4_SHARE_ACCESS_READ),
        async |_, _, mount| {
            let mount = mount.unwrap();
            let file = mount.open("file").await.unwrap();
            file.read_bytes(0, 4).await.unwrap();
            file.stat().await.unwrap();
            let valid = mount.v4().unwrap().attributes_valid_for(file.handle()).expect("the attributes must be cached");
            assert!((Duration::from_secs(200)..Duration::from_secs(300)).contains(&valid), "{valid:?}");
        },
    );
}

/// Attributes of a delegated file are cached for as long as the lease is certainly valid.
#[test]
fn attributes_are_valid_for_the_rest_of_the_lease() {
    simulated(async |scripted, _, mount| {
        scripted.script.lock().delegate = OPEN4_SHARE_ACCESS_READ;
        let file = mount.open("file").await.unwrap();
        file.read_bytes(0, 4).await.unwrap();
        file.stat().await.unwrap();
        let v4 = mount.v4().unwrap();
        let valid = v4.attributes_valid_for(file.handle()).expect("the attributes must be cached");
        assert!(valid > Duration::from_secs(1), "{valid:?}");
        tokio::time::advance(Duration::from_millis(500)).await;
        assert_eq!(v4.attributes_valid_for(file.handle()), Some(valid - Duration::from_millis(500)));
    });
}

/// A callback waits for the reply to the request that it refers to, and for no other.
#[test]
fn callback_waits_only_for_its_own_request() {
    simulated(async |scripted, _, mount| {
        let rename = || {
            let mount = mount.with_deadline(HOUR);
            tokio::spawn(async move { mount.protocol().rename(mount.root(), b"a", mount.root(), b"b").await.unwrap() })
        };
        scripted.script.lock().hold = Some(Opnum4::Rename);
        let referred = rename();
        sim::until(|| scripted.script.lock().held == 1).await;
        let executed = scripted.with(Opnum4::Rename).remove(0);
        let stat = |mount: Mount| async move { mount.stat("file").await.unwrap() };
        let call_back = async {
            let any = CbRecallAnyArgs { objects_to_keep: 0, type_mask: Default::default() };
            let begun = Instant::now();
            let about = Some((scripted.session(), &executed));
            (scripted.call_back_about(about, CbArgop4::RecallAny(any)).await, begun.elapsed())
        };
        let other = async {
            tokio::time::sleep(Duration::from_millis(20)).await;
            stat(mount.clone()).await
        };
        let ((status, waited), _) = tokio::join!(call_back, other);
        assert_eq!(status, Nfsstat4::Delay);
        // The callback is sent twice, and each time the client waits for half a second.
        assert!(waited >= Duration::from_secs(1), "{waited:?}");
        scripted.script.lock().hold = None;
        scripted.go_on.notify_waiters();
        referred.await.unwrap();
    });
}

#[test]
fn unmount_destroys_the_session_and_the_client() {
    simulated(async |_, record, mount| {
        mount.stat("file").await.unwrap();
        mount.unmount().await.unwrap();
        let last: Vec<_> = record.all().iter().rev().take(2).map(|one| one.opnums()).collect();
        assert_eq!(last, [[Opnum4::DestroyClientId], [Opnum4::DestroySession]]);
    });
}

/// The operations that destroy have no slot, so the server may have executed them before (RFC 8881 §2.10.6.2).
#[test]
fn unmount_succeeds_if_the_session_and_the_client_were_destroyed_before() {
    for (opnum, status, succeeds) in [
        (Opnum4::DestroySession, Nfsstat4::BadSession, true),
        (Opnum4::DestroySession, Nfsstat4::Inval, false),
        (Opnum4::DestroyClientId, Nfsstat4::StaleClientid, true),
        (Opnum4::DestroyClientId, Nfsstat4::ClientidBusy, false),
    ] {
        simulated(async |scripted, record, mount| {
            mount.stat("file").await.unwrap();
            scripted.refuse(opnum, status, HOUR);
            assert_eq!(mount.unmount().await.is_ok(), succeeds, "{opnum:?} {status:?}");
            let destroys_client = opnum == Opnum4::DestroyClientId || succeeds;
            assert_eq!(
                record.with(Opnum4::DestroyClientId).len(),
                usize::from(destroys_client),
                "{opnum:?} {status:?}"
            );
        });
    }
}

/// RFC 8881 §18.37.3: the connection must be bound to the session.
#[test]
fn unmount_binds_its_connection_to_the_session() {
    simulated(async |scripted, record, mount| {
        mount.stat("file").await.unwrap();
        let bound = record.with(Opnum4::BindConnToSession).len();
        scripted.refuse(Opnum4::DestroySession, Nfsstat4::ConnNotBoundToSession, HOUR);
        let accept = async {
            sim::until(|| scripted.script.lock().refused == 1).await;
            scripted.script.lock().refuse = None;
        };
        let (unmounted, ()) = tokio::join!(mount.unmount(), accept);
        unmounted.unwrap();
        assert_eq!(record.with(Opnum4::BindConnToSession).len(), bound + 1);
    });
}

/// The client can use a server in each role of pNFS, or in none (RFC 8881 §13.1).
#[test]
fn client_introduces_itself_for_each_role_in_pnfs() {
    simulated(async |_, record, _| {
        let request = record.with(Opnum4::ExchangeId).remove(0);
        let Argop4::ExchangeId(args) = &request.args.argarray[0] else { panic!("{request:?}") };
        let roles = EXCHGID4_FLAG_USE_PNFS_MDS | EXCHGID4_FLAG_USE_PNFS_DS;
        assert_eq!(args.flags, EXCHGID4_FLAG_USE_NON_PNFS | roles);
    });
}

#[test]
fn refused_reclaim_complete_is_an_error() {
    connected(
        |script| script.refuse = Some((Opnum4::ReclaimComplete, Nfsstat4::Inval, Instant::now() + HOUR)),
        async |scripted, _, mount| {
            let error = mount.unwrap_err();
            assert!(error.to_string().contains("RECLAIM_COMPLETE"), "{error}");
            assert_eq!(scripted.script.lock().refused, 1);
        },
    );
}

#[test]
fn delayed_session_is_asked_for_again() {
    simulated(async |scripted, _, mount| {
        scripted.forget_session();
        scripted.refuse(Opnum4::CreateSession, Nfsstat4::Delay, Duration::from_secs(2));
        mount.stat("file").await.unwrap();
        let script = scripted.script.lock();
        assert!(script.refused > 0 && script.sessions == 2);
    });
}

/// The server has refused SEQUENCE, so it has not counted the request.
#[test]
fn slot_of_a_refused_sequence_is_used_again_with_the_same_sequence_id() {
    simulated(async |scripted, record, mount| {
        let before = record.len();
        scripted.refuse(Opnum4::Sequence, Nfsstat4::ReqTooBig, HOUR);
        mount.stat("file").await.unwrap_err();
        scripted.script.lock().refuse = None;
        mount.stat("file").await.unwrap();
        let sent: Vec<_> = record.all()[before..].iter().filter_map(|one| one.sequence().copied()).collect();
        assert_eq!(sent.len(), 2, "{sent:?}");
        assert_eq!((sent[0].slotid, sent[0].sequenceid), (sent[1].slotid, sent[1].sequenceid));
        assert_eq!(scripted.script.lock().sessions, 1);
    });
}

/// The request was given up. When the client asks whether the server has executed it, the server refuses SEQUENCE.
#[test]
fn slot_in_doubt_is_free_when_its_sequence_is_refused() {
    simulated(async |scripted, record, mount| {
        scripted.script.lock().drop = Some(Opnum4::Rename);
        mount.with_deadline(Duration::from_secs(1)).rename("file", "other").await.unwrap_err();
        let given_up = *record.with(Opnum4::Rename).remove(0).sequence().unwrap();
        scripted.refuse(Opnum4::Sequence, Nfsstat4::ReqTooBig, HOUR);
        // The client waits for a minute for the reply, before it closes the connection and asks.
        let asked = || {
            let same = |one: &SequenceArgs| (one.slotid, one.sequenceid) == (given_up.slotid, given_up.sequenceid);
            record.with(Opnum4::Sequence).iter().filter(|one| one.sequence().is_some_and(same)).count() - 1
        };
        sim::until(|| asked() > 0).await;
        scripted.script.lock().refuse = None;
        tokio::time::sleep(Duration::from_secs(10)).await;
        mount.stat("file").await.unwrap();
        assert_eq!(scripted.script.lock().sessions, 1, "the session must be kept");
    });
}

/// RFC 8881 §2.10.6.1: SEQUENCE names the highest slot with an outstanding request.
#[test]
fn request_that_has_waited_names_the_highest_slot_in_use() {
    simulated(async |scripted, record, mount| {
        scripted.script.lock().target = 1;
        mount.stat("file").await.unwrap();
        scripted.script.lock().hold = Some(Opnum4::GetAttr);
        let before = record.len();
        let waiting: Vec<_> = (0..6)
            .map(|_| {
                let mount = mount.clone();
                tokio::spawn(async move { mount.stat("file").await })
            })
            .collect();
        sim::until(|| scripted.script.lock().held == 2).await;
        scripted.script.lock().hold = None;
        scripted.go_on.notify_waiters();
        for one in waiting {
            one.await.unwrap().unwrap();
        }
        let sent: Vec<_> = record.all()[before..].iter().filter_map(|one| one.sequence().copied()).collect();
        assert!(sent.iter().filter(|one| one.slotid.0 == 1).count() > 1, "{sent:?}");
        //= rfc8881-2.10.6.1-9
        assert!(sent.iter().all(|one| one.highest_slotid.0 >= one.slotid.0), "{sent:?}");
    });
}

/// Requests use all connections in turn. One that is lost is made again.
#[test]
fn requests_are_spread_over_all_connections() {
    sim::simulate(|network| async move {
        let (services, (scripted, record)) = sim::recorded();
        let _process = sim::start(&network, services);
        let url = format!("nfs://{}/?proto=tcp&vers=4.1&uid=0&gid=0&nconnect=3", sim::SERVER).parse().unwrap();
        let mount = Mount::connect(&url, &sim::switch(&network, 1)).await.unwrap();
        let used = async || {
            let before = record.len();
            for _ in 0..6 {
                mount.stat("file").await.unwrap();
            }
            let connections: Vec<_> = record.all()[before..].iter().map(|one| one.connection).collect();
            let mut distinct = connections.clone();
            distinct.sort_by_key(|connection| format!("{connection:?}"));
            distinct.dedup();
            distinct.len()
        };
        assert_eq!(used().await, 3);
        scripted.script.lock().lose = Some((Opnum4::Rename, 1));
        mount.rename("file", "other").await.unwrap();
        used().await;
        tokio::time::sleep(Duration::from_secs(10)).await;
        assert_eq!(used().await, 3, "the lost connection is made again");
    });
}

/// The request got a slot, and no connection. So the server has not seen it, and the slot is not in doubt.
#[test]
fn request_that_was_not_sent_leaves_its_slot_free() {
    sim::simulate(|network| async move {
        let (services, (_, record)) = sim::recorded();
        let _process = sim::start(&network, services);
        let url = format!("nfs://{}/?proto=tcp&vers=4.1&uid=0&gid=0", sim::SERVER).parse().unwrap();
        let mount = Mount::connect(&url, &sim::switch(&network, 1)).await.unwrap();
        mount.stat("file").await.unwrap();
        network.set_refusing(true);
        network.cut_all();
        // The first request may have been sent, as far as the client knows. The second was not.
        for _ in 0..2 {
            mount.with_deadline(Duration::from_secs(2)).stat("file").await.unwrap_err();
        }
        let before = record.len();
        network.set_refusing(false);
        tokio::time::sleep(Duration::from_secs(5)).await;
        let alone = |one: &Recorded| (one.opnums() == [Opnum4::Sequence]).then(|| one.sequence().unwrap().slotid.0);
        let asked: Vec<_> = record.all()[before..].iter().filter_map(alone).collect();
        assert_eq!(asked, [0], "only one slot is in doubt");
    });
}

/// The server asks to send LOCK later. The caller can give up meanwhile.
#[test]
fn waiting_lock_is_given_up_while_the_server_is_busy() {
    simulated(async |scripted, _, mount| {
        let file = mount.open("file").await.unwrap();
        file.read_bytes(0, 4).await.unwrap();
        scripted.refuse(Opnum4::Lock, Nfsstat4::Delay, HOUR);
        let range = LockRange { offset: 0, length: 1, exclusive: false };
        let begun = Instant::now();
        let given_up = tokio::time::sleep(Duration::from_secs(2));
        mount.v4().unwrap().lock_until(file.handle(), b"me", range, given_up).await.unwrap_err();
        assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
    });
}

/// The operation that has found the loss is given up. The others need the state all the same.
#[test]
fn recovery_continues_when_its_operation_is_dropped() {
    simulated(async |scripted, record, mount| {
        let file = mount.open("file").await.unwrap();
        let range = LockRange { offset: 0, length: 1, exclusive: false };
        assert_eq!(mount.v4().unwrap().lock(file.handle(), b"me", range).await.unwrap(), None);
        scripted.restart();
        scripted.script.lock().hold = Some(Opnum4::Open);
        let finder = mount.clone();
        let finder = tokio::spawn(async move { finder.stat("file").await });
        sim::until(|| scripted.script.lock().held == 1).await;
        finder.abort();
        assert!(finder.await.unwrap_err().is_cancelled());
        scripted.script.lock().hold = None;
        scripted.go_on.notify_waiters();
        let of_lock = |one: &Recorded| one.reclaims() && one.has(Opnum4::Lock);
        sim::until(|| record.position(of_lock).is_some()).await;
        sim::until(|| record.all().last().unwrap().has(Opnum4::ReclaimComplete)).await;
    });
}

const HOUR: Duration = Duration::from_secs(3600);
