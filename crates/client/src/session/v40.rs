//! [`Client40`]: requests of NFSv4.0, which has no sessions. The client has a client ID, and its owners number their
//! operations.
//!
//! Read RFC 7530 §9.1 first. An owner of opens or locks executes its operations one after the other, each with the next
//! seqid. The server recognizes a retransmission by its seqid and returns the cached reply (§9.1.7). Therefore such an
//! operation is sent until it is answered, in a task of its own, in case the caller drops the future. All other
//! requests rely on the server's duplicate request cache: after the connection was lost, they are sent again with the
//! same XID (§3.1.1), so each uses the same connection from beginning to end.
//!
//! One owner opens all files of a user of the mount. The client gives no callback address, so the server grants no delegations
//! (§10.2).

use std::{
    borrow::Cow,
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};

use buf::{Region, SharedRegion};
use bytes::Bytes;
use entropy::HashMap;
use nfs::v4::{compound::*, *};
use parking_lot::Mutex;
use rpc::ReplyPlan;
use tokio::{sync::OwnedMutexGuard, time::timeout_at};
use xdr::Opaque;

use super::{
    compound::{Compound, Counter, Outcome, Request},
    identity,
    link::ServerLink,
    trunk::BACKGROUND,
};
use crate::{
    call::{Deadline, Program},
    model::{Caller, ErrorKind, Result},
};

/// A client of NFSv4.0 that SETCLIENTID_CONFIRM has confirmed.
#[derive(Debug)]
pub(crate) struct Client40 {
    clientid: Clientid4,
    /// The name and verifier that the server knows.
    owner: ClientOwner4,
    /// `owner` is the client owner at another server, from which a file system has moved. It may be in use at this
    /// server too.
    inherited: bool,
    /// The prefix of the owners of opens. Each registration has another one, because the server may still have the
    /// seqids of the former.
    opener: Bytes,
    /// The seqids of the owners of opens.
    openers: Openers,
    /// Set when the server has dropped the client's state or has another seqid. The next registration uses a new
    /// verifier.
    is_lost: AtomicBool,
}

/// The seqids of the owners of opens: one owner for each caller, and one for the user of the mount.
#[derive(Debug, Default)]
struct Openers(Mutex<HashMap<u64, (Option<Caller>, Counter)>>);

impl Openers {
    /// Returns the seqid of a caller's owner.
    fn of(&self, caller: Option<&Caller>) -> Counter {
        let mut openers = self.0.lock();
        if openers.len() >= OPENERS_MIN && openers.len().is_power_of_two() {
            // Files that are open, and operations in progress, have the caller too. No other caller gets its number.
            openers.retain(|_, (caller, _)| caller.as_ref().is_none_or(|caller| !caller.is_last()));
        }
        let new = || (caller.cloned(), Counter::default());
        openers.entry(caller.map_or(0, Caller::number)).or_insert_with(new).1.clone()
    }
}

/// The locked seqids of the owners of an operation.
struct Seqids {
    opener: Option<OwnedMutexGuard<u32>>,
    locker: Option<OwnedMutexGuard<u32>>,
}

impl Client40 {
    /// Registers a client.
    ///
    /// # Errors
    /// The server does not support NFSv4.0, or refuses the client.
    pub async fn register(
        program: &Program,
        owner: ClientOwner4,
        inherited: bool,
        deadline: &Deadline,
    ) -> Result<Arc<Self>> {
        let clientid = identity::set_clientid(program, &owner, deadline).await?;
        let opener = Bytes::copy_from_slice(&entropy::random::<[u8; 8]>());
        Ok(Arc::new(Self {
            clientid,
            owner,
            inherited,
            opener,
            openers: Openers::default(),
            is_lost: AtomicBool::new(false),
        }))
    }

    /// Registers the client again, with the same verifier, so that it can reclaim its state; if its state is lost, with
    /// another one.
    ///
    /// # Errors
    /// The server refuses this client.
    pub async fn register_again(&self, program: &Program, deadline: &Deadline) -> Result<Arc<Self>> {
        let (mut owner, mut inherited) = (self.owner.clone(), self.inherited);
        if self.is_lost.load(Relaxed) {
            owner.verifier = entropy::random();
            if inherited {
                // The new verifier must not make the server drop the state of the other client with this name.
                owner.ownerid = Opaque([&owner.ownerid[..], b"/", &owner.verifier].concat().into());
                inherited = false;
            }
        }
        Self::register(program, owner, inherited, deadline).await
    }

    /// Attempts a request. If the connection is lost, the RPC layer reconnects and sends the request again with the
    /// same XID.
    pub async fn attempt(
        self: &Arc<Self>,
        link: &Arc<ServerLink>,
        compound: &Compound,
        sink: Option<Region>,
        deadline: &Deadline,
    ) -> (Outcome, Option<SharedRegion>) {
        let (result, sink) = match compound.ops.iter().position(has_seqid) {
            Some(at) => {
                let sent = timeout_at(deadline.at(), self.send_in_turn(link, compound, at)).await;
                (
                    sent.unwrap_or_else(|_| Err(link.trunk.first().timeout_error(compound.name))),
                    sink.map(SharedRegion::from),
                )
            }
            None => {
                let plan = ReplyPlan { sink, ..compound.plan() };
                let ops = self.with_clientid(&compound.ops);
                let request = Request { minor: 0, first: None, ops: &ops };
                link.trunk
                    .call_until_answered((&request, compound.caller.as_ref()), plan, compound.name, deadline)
                    .await
            }
        };
        match result {
            Ok(res) => (self.classify(link, compound, res, deadline), sink),
            Err(error) => (Outcome::Failed(error), sink),
        }
    }

    /// Classifies a reply by its effect on the client's registration.
    fn classify(&self, link: &ServerLink, compound: &Compound, res: CompoundRes, deadline: &Deadline) -> Outcome {
        match res.status {
            // RFC 7530 §16.28: the server renews the lease with either status.
            Nfsstat4::Ok | Nfsstat4::CbPathDown if matches!(compound.ops[..], [Argop4::Renew(_)]) => {
                link.renewed(deadline.start());
            }
            // §9.6.2: the server has restarted.
            Nfsstat4::StaleClientid | Nfsstat4::StaleStateid => return lost(res),
            // §9.6.3: the lease has expired.
            Nfsstat4::Expired | Nfsstat4::BadSeqid => {
                self.is_lost.store(true, Relaxed);
                return lost(res);
            }
            _ => {}
        }
        Outcome::Answered(res)
    }

    /// Returns the operations with the client ID set. Few operations have one, and none of these carries file data.
    fn with_clientid<'a>(&self, ops: &'a [Argop4]) -> Cow<'a, [Argop4]> {
        if !ops.iter().any(names_client) {
            return Cow::Borrowed(ops);
        }
        let mut owned = ops.to_vec();
        owned.iter_mut().for_each(|operation| self.set_clientid(operation));
        Cow::Owned(owned)
    }

    /// Sets the client ID of an operation that has one.
    fn set_clientid(&self, operation: &mut Argop4) {
        match operation {
            Argop4::Open(args) => {
                let owner = [&self.opener[..], &args.owner.owner[..]].concat();
                args.owner = StateOwner4 { clientid: self.clientid, owner: Opaque(owner.into()) };
                // Only NFSv4.1 has flags for the client's wish for a delegation.
                args.share_access &= OPEN4_SHARE_ACCESS_BOTH;
            }
            Argop4::Lock(LockArgs { locker: Locker4::New { lock_owner, .. }, .. }) => {
                lock_owner.clientid = self.clientid;
            }
            Argop4::LockT(args) => args.owner.clientid = self.clientid,
            Argop4::ReleaseLockOwner(args) => args.lock_owner.clientid = self.clientid,
            Argop4::Renew(args) => args.clientid = self.clientid,
            _ => {}
        }
    }

    /// Locks the seqids of the owners of the operation at `at`, and sends the compound.
    async fn send_in_turn(
        self: &Arc<Self>,
        link: &Arc<ServerLink>,
        compound: &Compound,
        at: usize,
    ) -> Result<CompoundRes> {
        let mut ops = self.with_clientid(&compound.ops).into_owned();
        let locker = match &compound.locker {
            Some(counter) => Some(counter.clone().lock_owned().await),
            None => None,
        };
        let opener = match has_open_seqid(&ops[at]) {
            true => Some(self.openers.of(compound.caller.as_ref()).lock_owned().await),
            false => None,
        };
        let mut seqids = Seqids { opener, locker };
        let timed_out = link.trunk.first().timeout_error(compound.name);
        let (trunk, mount, compound) = (link.trunk.clone(), Arc::downgrade(link), compound.clone());
        let task = link.runtime.spawn(async move {
            let send = async |ops: &[Argop4]| loop {
                let (plan, request) = (compound.plan(), Request { minor: 0, first: None, ops });
                let by = (&request, compound.caller.as_ref());
                match trunk.call_until_answered(by, plan, compound.name, &Deadline::after(BACKGROUND)).await.0 {
                    Err(error) if matches!(error.kind(), ErrorKind::Timeout { .. }) && is_in_use(&mount) => {}
                    result => return result,
                }
            };
            seqids.set_seqid(&mut ops[at]);
            let mut res = seqids.count_reply(send(&ops).await, at)?;
            if let Some(mut confirm) = open_confirm(&ops, &res) {
                seqids.set_seqid(&mut confirm[1]);
                let confirmed = seqids.count_reply(send(&confirm).await, 1)?;
                match (confirmed.resarray.last(), res.resarray.get_mut(at)) {
                    (Some(Resop4::OpenConfirm(Res4::Ok(stateid))), Some(Resop4::Open(Res4::Ok(ok)))) => {
                        ok.stateid = *stateid;
                    }
                    _ => res = confirmed,
                }
            }
            Ok(res)
        });
        // The task fails only if its runtime shuts down.
        task.await.unwrap_or_else(|_| Err(timed_out))
    }
}

impl Seqids {
    /// Sets the seqid of an operation.
    fn set_seqid(&self, operation: &mut Argop4) {
        let number =
            |owner: &Option<OwnedMutexGuard<u32>>| Seqid4(**owner.as_ref().expect("the owner's seqid must be locked"));
        match operation {
            Argop4::Open(args) => args.seqid = number(&self.opener),
            Argop4::OpenConfirm(args) => args.seqid = number(&self.opener),
            Argop4::Close(args) => args.seqid = number(&self.opener),
            Argop4::Lock(LockArgs { locker: Locker4::New { open_seqid, lock_seqid, .. }, .. }) => {
                (*open_seqid, *lock_seqid) = (number(&self.opener), number(&self.locker));
            }
            Argop4::Lock(LockArgs { locker: Locker4::Exist { lock_seqid, .. }, .. }) => {
                *lock_seqid = number(&self.locker);
            }
            Argop4::LockU(args) => args.seqid = number(&self.locker),
            _ => unreachable!("the operation must have a seqid"),
        }
    }

    /// Increments the seqids if the server has counted the operation at `at`.
    fn count_reply(&mut self, result: Result<CompoundRes>, at: usize) -> Result<CompoundRes> {
        use Nfsstat4 as S;
        // RFC 7530 §9.1.7: the server counts failed operations too, except for these errors. It does not count
        // operations that it has not reached.
        let counts = |result: &Resop4| {
            !matches!(
                result.status(),
                S::StaleClientid
                    | S::StaleStateid
                    | S::BadStateid
                    | S::BadSeqid
                    | S::BadXdr
                    | S::Resource
                    | S::NoFileHandle
                    | S::Moved
            )
        };
        let counted = match &result {
            Ok(res) => res.resarray.get(at).is_some_and(counts),
            // A reply that cannot be decoded is a reply: the server has counted the operation.
            Err(error) => matches!(error.kind(), ErrorKind::Protocol(_)),
        };
        if counted {
            [&mut self.opener, &mut self.locker]
                .into_iter()
                .flatten()
                .for_each(|seqid| **seqid = seqid.wrapping_add(1));
        }
        result
    }
}

/// Returns the outcome of a request after the server has lost the client. If the failed operation names only the
/// client, the request can be sent again: no operation before it in its compound can have changed anything. If it names
/// a stateid, the operation needs another stateid first.
fn lost(res: CompoundRes) -> Outcome {
    match res.resarray.last().map(Resop4::opnum) {
        Some(Opnum4::Open | Opnum4::LockT | Opnum4::Renew | Opnum4::ReleaseLockOwner) => Outcome::Lost,
        _ => Outcome::Outdated(res),
    }
}

/// Returns `true` if an operation names the client, by the client ID or by its owner.
fn names_client(operation: &Argop4) -> bool {
    matches!(
        operation,
        Argop4::Open(_)
            | Argop4::Lock(LockArgs { locker: Locker4::New { .. }, .. })
            | Argop4::LockT(_)
            | Argop4::ReleaseLockOwner(_)
            | Argop4::Renew(_)
    )
}

/// Returns `true` if an operation has a seqid.
fn has_seqid(operation: &Argop4) -> bool {
    has_open_seqid(operation) || matches!(operation, Argop4::Lock(_) | Argop4::LockU(_))
}

/// Returns `true` if an operation has a seqid of the owner of opens.
fn has_open_seqid(operation: &Argop4) -> bool {
    matches!(
        operation,
        Argop4::Open(_)
            | Argop4::OpenConfirm(_)
            | Argop4::Close(_)
            | Argop4::Lock(LockArgs { locker: Locker4::New { .. }, .. })
    )
}

/// Returns OPEN_CONFIRM of the file that a compound has opened, if the server asks for it because the owner is new (RFC
/// 7530 §16.18).
fn open_confirm(ops: &[Argop4], res: &CompoundRes) -> Option<Vec<Argop4>> {
    let opened = res.resarray.iter().find_map(|result| match result {
        Resop4::Open(Res4::Ok(ok)) if ok.rflags & OPEN4_RESULT_CONFIRM != 0 => Some(ok.stateid),
        _ => None,
    });
    let open_stateid = opened?;
    // A compound that opens a file by name also gets its handle; otherwise PUTFH has set the file's handle.
    let found = res.resarray.iter().find_map(|result| match result {
        Resop4::GetFh(Res4::Ok(object)) => Some(object.clone()),
        _ => None,
    });
    let given = ops.iter().find_map(|operation| match operation {
        Argop4::PutFh(PutFhArgs { object }) => Some(object.clone()),
        _ => None,
    });
    let object = found.or(given)?;
    let confirm = OpenConfirmArgs { open_stateid, seqid: Seqid4(0) };
    Some(vec![Argop4::PutFh(PutFhArgs { object }), Argop4::OpenConfirm(confirm)])
}

/// Returns `true` if the mount is still in use.
fn is_in_use(mount: &Weak<ServerLink>) -> bool {
    mount.strong_count() > 0
}

/// The number of owners of opens from which on unused ones are removed.
const OPENERS_MIN: usize = 64;

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use rpc::AuthSys;

    use super::*;

    #[test]
    fn open_is_confirmed_at_the_file_that_was_opened() {
        let handle = |name: &'static [u8]| Opaque(Bytes::from_static(name));
        let open_stateid = Stateid4 { seqid: 1, other: [7; 12] };
        let opened = |rflags| {
            Resop4::Open(Res4::Ok(Box::new(OpenOk {
                stateid: open_stateid,
                cinfo: ChangeInfo4::default(),
                rflags,
                attrset: Default::default(),
                delegation: OpenDelegation4::None,
            })))
        };
        let ops = [Argop4::PutFh(PutFhArgs { object: handle(b"given") })];
        let confirmed = |results: Vec<Resop4>| {
            let res = CompoundRes { status: Nfsstat4::Ok, tag: Default::default(), resarray: results };
            open_confirm(&ops, &res)
        };
        let expected = |object| {
            let confirm = OpenConfirmArgs { open_stateid, seqid: Seqid4(0) };
            Some(vec![Argop4::PutFh(PutFhArgs { object }), Argop4::OpenConfirm(confirm)])
        };
        // OPEN by a handle, as for a reclaim.
        assert_eq!(confirmed(vec![opened(OPEN4_RESULT_CONFIRM)]), expected(handle(b"given")));
        let found = vec![opened(OPEN4_RESULT_CONFIRM), Resop4::GetFh(Res4::Ok(handle(b"found")))];
        assert_eq!(confirmed(found), expected(handle(b"found")));
        assert_eq!(confirmed(vec![opened(0)]), None);
    }

    #[test]
    fn openers_of_dropped_callers_are_removed() {
        let (openers, kept) = (Openers::default(), Caller::new(AuthSys::of_process()));
        let of_kept = openers.of(Some(&kept));
        for _ in 0..4 * OPENERS_MIN {
            openers.of(Some(&Caller::new(AuthSys::of_process())));
        }
        assert!(openers.0.lock().len() <= OPENERS_MIN, "{}", openers.0.lock().len());
        assert!(Arc::ptr_eq(&of_kept, &openers.of(Some(&kept))), "a caller that is in use must keep its seqid");
    }
}
