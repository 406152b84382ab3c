//! Sessions of NFSv4.1: requests exactly once, slots, recovery and callbacks, against a server that does what it is told.

use std::{sync::Arc, time::Duration};

use crate::common::{
    scripted::{CONTENT, SLOTS, Scripted},
    sim,
};
use client::{LockRange, Mount};
use nfs::v4::{Nfsstat4, Opnum4, Slotid4, callback::*};

/// Runs a test in virtual time against a server that does what it is told, over simulated TCP.
fn simulated(query: &str, test: impl AsyncFnOnce(Arc<Scripted>, Mount)) {
    sim::run(&format!("/?proto=tcp&vers=auto{query}"), sim::scripted, |scripted, mount| async move {
        assert_eq!(mount.protocol().version(), "4.1", "the server has no 4.2");
        test(scripted, mount).await;
    });
}

/// A reply is lost with its connection: the same request goes again in the same place, and is executed once.
#[test]
fn a_lost_reply_is_asked_for_again_in_the_same_slot() {
    simulated("", async |scripted, mount| {
        scripted.script.lock().lose = Some((Opnum4::Rename, 2));
        mount.rename("file", "other").await.unwrap();
        let renames = scripted.with(Opnum4::Rename);
        assert_eq!(renames.len(), 1, "{renames:?}");
        assert_eq!(scripted.script.lock().replayed, 1, "the second loss is of the reply from the slot");
    });
}

/// What the server has not kept, and harms nobody, is done again in the next place.
#[test]
fn what_was_not_kept_is_done_again() {
    simulated("", async |scripted, mount| {
        let file = mount.open("file").await.unwrap();
        scripted.script.lock().lose = Some((Opnum4::Read, 1));
        assert_eq!(file.read_bytes(0, 100).await.unwrap(), CONTENT);
        let reads = scripted.with(Opnum4::Read);
        assert_eq!(reads.len(), 2);
        assert_eq!((reads[1].slot, reads[1].sequence), (reads[0].slot, reads[0].sequence + 1));
    });
}

/// Linux's server leaves out results for which there is no room: what was asked for in one request is asked for in several.
#[test]
fn an_answer_that_cannot_be_read_is_had_in_pieces() {
    simulated("", async |scripted, mount| {
        scripted.script.lock().cut_short = true;
        assert_eq!(mount.read("file").await.unwrap(), CONTENT);
        let in_one = scripted.with(Opnum4::Open).into_iter().filter(|one| one.ops.contains(&Opnum4::Read)).count();
        assert_eq!(in_one, 2, "once by its name and once by its handle");
        let alone = scripted.with(Opnum4::Read).into_iter().filter(|one| !one.ops.contains(&Opnum4::Open)).count();
        assert_eq!(alone, 1);
        let closes = scripted.with(Opnum4::Close).into_iter().filter(|one| !one.ops.contains(&Opnum4::Read)).count();
        assert!(closes >= 2, "what may have stayed open is closed");
    });
}

/// One connection of several dies: nobody notices.
#[test]
fn another_connection_takes_over() {
    simulated("&nconnect=3", async |scripted, mount| {
        assert_eq!(mount.v4().unwrap().connections(), 3);
        scripted.script.lock().lose = Some((Opnum4::Rename, 1));
        mount.rename("file", "other").await.unwrap();
        assert_eq!((scripted.with(Opnum4::Rename).len(), scripted.script.lock().replayed), (1, 1));
    });
}

/// A call that is given up leaves a slot in doubt: SEQUENCE is sent in its place before the slot is used again.
#[test]
fn a_slot_in_doubt_is_resolved() {
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
                assert_eq!(scripted.script.lock().sessions, 1, "the session has gone on");
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    });
}

/// The server's target bounds what is under way, down and up again.
#[test]
fn no_more_is_under_way_than_the_server_wants() {
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
        // Whatever else would come has had its chance.
        tokio::time::sleep(Duration::from_millis(50)).await;
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

/// Who calls again as soon as it is answered does not keep the slot from those who wait for it.
#[test]
fn slots_go_to_whoever_has_waited_longest() {
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
        assert!(more <= 4, "{more} requests, this one and those that were under way");
        busy.abort();
    });
}

/// The server forgets the session, then the client: opens and locks are reclaimed, and nobody above notices.
#[test]
fn what_the_server_forgets_is_made_again() {
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
        assert!(scripted.script.lock().executed.iter().all(|one| !one.reclaims), "the client was still known");
        scripted.restart();
        assert_eq!(file.read_bytes(8, 4).await.unwrap(), &CONTENT[8..12]);
        assert_eq!(made(), (3, 2));
        let reclaimed: Vec<_> = scripted.script.lock().executed.iter().filter(|one| one.reclaims).cloned().collect();
        assert!(reclaimed[0].ops.contains(&Opnum4::Open) && reclaimed[1].ops.contains(&Opnum4::Lock), "{reclaimed:?}");
        assert_eq!(scripted.with(Opnum4::ReclaimComplete).len(), 2);
        mount.unmount().await.unwrap();
    });
}

/// A small file is found, opened, read and closed in one request.
#[test]
fn a_small_file_is_one_request() {
    simulated("", async |scripted, mount| {
        let asked = scripted.script.lock().executed.len();
        assert_eq!(mount.read("file").await.unwrap(), CONTENT);
        let requests = scripted.script.lock().executed[asked..].to_vec();
        assert_eq!(requests.len(), 1, "{requests:?}");
        assert_eq!(requests[0].ops, [Opnum4::PutFh, Opnum4::Open, Opnum4::GetFh, Opnum4::Read, Opnum4::Close]);
    });
}

/// The server has one open of a file for all its users here: a CLOSE that is late would be of a new one, too, and of its locks.
#[test]
fn a_file_that_is_being_closed_is_opened_when_it_is_closed() {
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
        // It has had its chance.
        tokio::time::sleep(Duration::from_millis(50)).await;
        assert_eq!(scripted.with(Opnum4::Open).len(), 1, "it waits for the CLOSE");
        scripted.script.lock().hold = None;
        scripted.go_on.notify_waiters();
        assert_eq!(lock.await.unwrap().unwrap(), None);
        assert_eq!(scripted.with(Opnum4::Open).len(), 2);
    });
}

/// A delegation answers for the server, and is given back when it is recalled.
#[test]
fn a_recalled_delegation_is_returned() {
    simulated("", async |scripted, mount| {
        scripted.script.lock().delegate = true;
        let file = mount.open("file").await.unwrap();
        file.read_bytes(0, 4).await.unwrap();
        let asked = scripted.script.lock().executed.len();
        assert_eq!(file.stat().await.unwrap().size, CONTENT.len() as u64);
        assert_eq!(scripted.script.lock().executed.len(), asked, "the attributes are delegated");
        assert_eq!(scripted.recall().await, Nfsstat4::Ok);
        while scripted.with(Opnum4::DelegReturn).is_empty() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        file.stat().await.unwrap();
        assert!(scripted.script.lock().executed.len() > asked + 1, "they are asked for again");
    });
}

/// A server that has too much asks for slots and delegations: they are given up, and it hears so.
#[test]
fn what_there_is_too_much_of_is_given_back() {
    simulated("", async |scripted, mount| {
        scripted.script.lock().delegate = true;
        mount.open("file").await.unwrap().read_bytes(0, 4).await.unwrap();
        let type_mask = [RCA4_TYPE_MASK_RDATA_DLG].into_iter().collect();
        let keep = |objects_to_keep, type_mask| CbArgop4::RecallAny(CbRecallAnyArgs { objects_to_keep, type_mask });
        assert_eq!(scripted.call_back(keep(1, type_mask)).await, Nfsstat4::Ok);
        assert_eq!(scripted.call_back(keep(0, Default::default())).await, Nfsstat4::Ok, "nothing of this client's");
        assert!(scripted.with(Opnum4::DelegReturn).is_empty());
        let type_mask = [RCA4_TYPE_MASK_RDATA_DLG].into_iter().collect();
        assert_eq!(scripted.call_back(keep(0, type_mask)).await, Nfsstat4::Ok);
        while scripted.with(Opnum4::DelegReturn).is_empty() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }

        assert_eq!(mount.v4().unwrap().slots(), SLOTS);
        scripted.script.lock().target = 1;
        let alone = || scripted.script.lock().executed.iter().filter(|one| one.ops.is_empty()).count();
        let before = alone();
        let recall = CbArgop4::RecallSlot(CbRecallSlotArgs { target_highest_slotid: Slotid4(1) });
        assert_eq!(scripted.call_back(recall).await, Nfsstat4::Ok);
        assert_eq!(mount.v4().unwrap().slots(), 2);
        while alone() < before + 2 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    });
}
