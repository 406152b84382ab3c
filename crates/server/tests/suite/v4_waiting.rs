//! Waiting for a lock in version 4: CB_NOTIFY_LOCK tells a waiting client when to retry.

use crate::common::remote::{Remote, Served};
use crate::common::v4::*;
use crate::common::{Rig, results};
use nfs::{
    nlm::{self, Nlm4Stats, NlmProc4},
    v4::{
        callback::{CbArgop4, CbNotifyLockArgs, CbOpnum4},
        *,
    },
};
use xdr::Message;

/// A client that has a file open, to lock ranges of it.
struct Locker {
    remote: Remote,
    open: Stateid4,
    handle: NfsFh4,
}

impl Locker {
    async fn new(served: &Served, name: &str) -> Self {
        let mut remote = served.client(name).await;
        let access = OPEN4_SHARE_ACCESS_BOTH | OPEN4_SHARE_ACCESS_WANT_NO_DELEG;
        let (opened, handle) = remote.open_as("f", Open { access, ..Open::default() }).await.unwrap();
        assert_ne!(opened.rflags & OPEN4_RESULT_MAY_NOTIFY_LOCK, 0);
        Self { remote, open: opened.stateid, handle }
    }

    /// Locks a range. Returns `None` if the lock is denied.
    async fn lock(&mut self, locktype: NfsLockType4, (offset, length): (u64, u64)) -> Option<Stateid4> {
        let zero = Seqid4(0);
        let lock_owner = StateOwner4 { clientid: Clientid4(0), owner: "locker".into() };
        let locker = Locker4::New { open_seqid: zero, open_stateid: self.open, lock_seqid: zero, lock_owner };
        let args = LockArgs { locktype, reclaim: false, offset, length, locker };
        match self.remote.call([putfh(&self.handle), Argop4::Lock(args)]).await.1.pop() {
            Some(Resop4::Lock(LockRes::Ok(stateid))) => Some(stateid),
            Some(Resop4::Lock(LockRes::Denied(_))) => None,
            other => panic!("{other:?}"),
        }
    }

    async fn unlock(&mut self, held: Stateid4, (offset, length): (u64, u64)) {
        let lock_stateid = Stateid4 { seqid: 0, ..held };
        let (locktype, seqid) = (NfsLockType4::Write, Seqid4(0));
        let args = LockUArgs { locktype, seqid, lock_stateid, offset, length };
        self.remote.ok([putfh(&self.handle), Argop4::LockU(args)]).await;
    }

    async fn receives_notification(&self) {
        let told = self.remote.back.receive_operation(CbOpnum4::NotifyLock).await;
        let lock_owner = StateOwner4 { clientid: self.remote.client, owner: "locker".into() };
        assert_eq!(told, CbArgop4::NotifyLock(CbNotifyLockArgs { fh: self.handle.clone(), lock_owner }));
    }

    fn has_received_callbacks(&self) -> bool {
        !self.remote.back.received.lock().unwrap().is_empty()
    }
}

const ALL: (u64, u64) = (0, u64::MAX);

#[simnet::test]
async fn only_waiting_clients_are_notified_of_a_free_lock() {
    use NfsLockType4::*;
    let served = Served::with_background_work().await;
    let (mut a, mut b) = (Locker::new(&served, "a").await, Locker::new(&served, "b").await);
    let mut c = Locker::new(&served, "c").await;
    let held = a.lock(Write, (0, 100)).await.unwrap();
    assert!(b.lock(WriteW, (90, 20)).await.is_none() && c.lock(Write, ALL).await.is_none());
    a.unlock(held, (0, 50)).await;
    a.unlock(held, (50, 50)).await;
    b.receives_notification().await;
    let held = b.lock(WriteW, (90, 20)).await.expect("the lock must be available after the notification");
    assert!(!c.has_received_callbacks(), "a client that does not wait must not be notified");

    // A CLOSE that releases the lock notifies waiting clients too.
    assert!(c.lock(ReadW, ALL).await.is_none());
    b.remote.call([putfh(&b.handle), close(b.open)]).await;
    c.receives_notification().await;
    c.lock(ReadW, ALL).await.expect("the CLOSE must release the lock");
    assert!(!a.has_received_callbacks() && !b.has_received_callbacks() && held.seqid > 0);
}

#[simnet::test]
async fn client_is_notified_when_an_nlm_lock_is_released() {
    let served = Served::with_background_work().await;
    let mut a = Locker::new(&served, "a").await;
    let (rig, service, fh) = (Rig::calling(&served.nfs), served.nfs.nlm4(), a.handle.0.clone());
    let nlm = |procedure: NlmProc4| {
        let fh = fh.clone().into();
        let lock = nlm::Lock { caller_name: "mars".into(), fh, oh: "oh".into(), svid: 1, offset: 0, len: 0 };
        let args = match procedure {
            NlmProc4::Unlock => Message::encode(&nlm::UnlockArgs { cookie: "c".into(), lock }),
            _ => {
                let (cookie, exclusive) = ("c".into(), true);
                Message::encode(&nlm::LockArgs { cookie, block: false, exclusive, lock, reclaim: false, state: 1 })
            }
        };
        results::<nlm::Res>(&rig.raw(&service, procedure as u32, &args).expect("the call must be accepted")).status
    };
    assert_eq!(nlm(NlmProc4::NmLock), Nlm4Stats::Granted);
    assert!(a.lock(NfsLockType4::WriteW, ALL).await.is_none());
    assert_eq!(nlm(NlmProc4::Unlock), Nlm4Stats::Granted);
    a.receives_notification().await;
    a.lock(NfsLockType4::WriteW, ALL).await.expect("the NLM lock was released");
}
