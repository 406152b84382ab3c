//! [`Client40`]: requests of version 4.0, which has no sessions. It has a client by its name, and owners whose operations are numbered.
//!
//! Read RFC 7530 §9.1 first. An owner of opens or locks executes its operations one after the other, each with the next number: by that
//! the server knows which it has executed, and returns its answer again (§9.1.7). So such an operation is sent until it is
//! answered, by a task of its own in case that its caller gives up. Every other request is sent again with the same XID after its
//! connection was lost, for the server's duplicate request cache (§3.1.1), so it goes by one connection from begin to end.
//!
//! All files of a mount are opened by one owner. It has no address for callbacks: the server grants no delegations (§10.2).

use std::{
    borrow::Cow,
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};

use buf::{Region, SharedRegion};
use bytes::Bytes;
use nfs::v4::{compound::*, *};
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
    model::{ErrorKind, Result},
};

/// A client of version 4.0, as SETCLIENTID_CONFIRM made it.
#[derive(Debug)]
pub(crate) struct Client40 {
    clientid: Clientid4,
    /// Of this life.
    owner: ClientOwner4,
    /// The owner's name is that of a client of another server, which may be a client of this one too.
    inherited: bool,
    /// The owner of all opens. Another with each introduction: the server may still count the former.
    opener: Bytes,
    opens: Counter,
    /// The server has dropped what this client had, or counts differently: it begins a new life.
    over: AtomicBool,
}

/// The turn of the owners of an operation.
struct Turn {
    opener: Option<OwnedMutexGuard<u32>>,
    locker: Option<OwnedMutexGuard<u32>>,
}

impl Client40 {
    /// Introduces a client.
    ///
    /// # Errors
    /// The server does not speak version 4.0, or refuses.
    pub async fn introduce(
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
            opens: Counter::default(),
            over: AtomicBool::new(false),
        }))
    }

    /// Introduces it again: as the same that it was, which may reclaim, unless that is over.
    ///
    /// # Errors
    /// The server does not want this client any more.
    pub async fn again(&self, program: &Program, deadline: &Deadline) -> Result<Arc<Self>> {
        let (mut owner, mut inherited) = (self.owner.clone(), self.inherited);
        if self.over.load(Relaxed) {
            owner.verifier = entropy::random();
            if inherited {
                // The new life is not to end the other's.
                owner.ownerid = Opaque([&owner.ownerid[..], b"/", &owner.verifier].concat().into());
                inherited = false;
            }
        }
        Self::introduce(program, owner, inherited, deadline).await
    }

    /// Attempts a request. A connection that is lost is made again below, and the request is sent again with the same XID.
    pub async fn attempt(
        self: &Arc<Self>,
        link: &Arc<ServerLink>,
        compound: &Compound,
        sink: Option<Region>,
        deadline: &Deadline,
    ) -> (Outcome, Option<SharedRegion>) {
        let (result, sink) = match compound.ops.iter().position(is_counted) {
            Some(at) => {
                let sent = timeout_at(deadline.at(), self.send_in_turn(link, compound, at)).await;
                (sent.unwrap_or_else(|_| Err(link.trunk.first().late(compound.name))), sink.map(SharedRegion::from))
            }
            None => {
                let plan = ReplyPlan { sink, ..compound.plan() };
                let ops = self.signed(&compound.ops);
                let request = Request { minor: 0, first: None, ops: &ops };
                link.trunk.call_by_one(&request, plan, compound.name, deadline).await
            }
        };
        match result {
            Ok(res) => (self.classify(link, compound, res), sink),
            Err(error) => (Outcome::Failed(error), sink),
        }
    }

    /// Classifies an answer by what it says of the client.
    fn classify(&self, link: &ServerLink, compound: &Compound, res: CompoundRes) -> Outcome {
        match res.status {
            // RFC 7530 §16.28: with either, the lease is renewed.
            Nfsstat4::Ok | Nfsstat4::CbPathDown if matches!(compound.ops[..], [Argop4::Renew(_)]) => link.renewed(),
            // §9.6.2: the server has restarted.
            Nfsstat4::StaleClientid | Nfsstat4::StaleStateid => return lost(res),
            // §9.6.3: it has not heard of this client for too long.
            Nfsstat4::Expired | Nfsstat4::BadSeqid => {
                self.over.store(true, Relaxed);
                return lost(res);
            }
            _ => {}
        }
        Outcome::Answered(res)
    }

    /// Operations with this client's name where they have one. Few do, and none that carries data.
    fn signed<'a>(&self, ops: &'a [Argop4]) -> Cow<'a, [Argop4]> {
        if !ops.iter().any(is_signed) {
            return Cow::Borrowed(ops);
        }
        let mut signed = ops.to_vec();
        signed.iter_mut().for_each(|operation| self.sign(operation));
        Cow::Owned(signed)
    }

    /// Puts this client's name where an operation has one.
    fn sign(&self, operation: &mut Argop4) {
        match operation {
            Argop4::Open(args) => {
                args.owner = StateOwner4 { clientid: self.clientid, owner: Opaque(self.opener.clone()) };
                // What a client would like of delegations, it can say since 4.1 only.
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

    /// Sends a compound whose operation at `at` is counted, when it is the turn of its owners.
    async fn send_in_turn(
        self: &Arc<Self>,
        link: &Arc<ServerLink>,
        compound: &Compound,
        at: usize,
    ) -> Result<CompoundRes> {
        let mut ops = self.signed(&compound.ops).into_owned();
        let locker = match &compound.locker {
            Some(counter) => Some(counter.clone().lock_owned().await),
            None => None,
        };
        let opener = match opens(&ops[at]) {
            true => Some(self.opens.clone().lock_owned().await),
            false => None,
        };
        let mut turn = Turn { opener, locker };
        let late = link.trunk.first().late(compound.name);
        let (trunk, mount, compound) = (link.trunk.clone(), Arc::downgrade(link), compound.clone());
        let task = link.runtime.spawn(async move {
            let send = async |ops: &[Argop4]| loop {
                let (plan, request) = (compound.plan(), Request { minor: 0, first: None, ops });
                match trunk.call_by_one(&request, plan, compound.name, &Deadline::after(BACKGROUND)).await.0 {
                    Err(error) if matches!(error.kind(), ErrorKind::Timeout { .. }) && is_there(&mount) => {}
                    result => return result,
                }
            };
            turn.number(&mut ops[at]);
            let mut res = turn.over(send(&ops).await, at)?;
            if let Some(mut confirm) = to_confirm(&ops, &res) {
                turn.number(&mut confirm[1]);
                let confirmed = turn.over(send(&confirm).await, 1)?;
                match (confirmed.resarray.last(), res.resarray.get_mut(at)) {
                    (Some(Resop4::OpenConfirm(Res4::Ok(stateid))), Some(Resop4::Open(Res4::Ok(ok)))) => {
                        ok.stateid = *stateid;
                    }
                    _ => res = confirmed,
                }
            }
            Ok(res)
        });
        // Only with its runtime it ends before that.
        task.await.unwrap_or_else(|_| Err(late))
    }
}

impl Turn {
    /// Gives an operation its number.
    fn number(&self, operation: &mut Argop4) {
        let number = |owner: &Option<OwnedMutexGuard<u32>>| Seqid4(**owner.as_ref().expect("it is the owner's turn"));
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
            _ => unreachable!("it is not counted"),
        }
    }

    /// The operation at `at` has been answered.
    fn over(&mut self, result: Result<CompoundRes>, at: usize) -> Result<CompoundRes> {
        use Nfsstat4 as S;
        // RFC 7530 §9.1.7: failures count as well, but for these; and for what was not come to.
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
            // An answer that cannot be read is one.
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

/// The server has forgotten the client. A request that names the client alone can be sent again, and is the first of its compound that
/// could have changed anything; one that names a stateid needs another first.
fn lost(res: CompoundRes) -> Outcome {
    match res.resarray.last().map(Resop4::opnum) {
        Some(Opnum4::Open | Opnum4::LockT | Opnum4::Renew | Opnum4::ReleaseLockOwner) => Outcome::Lost,
        _ => Outcome::Outdated(res),
    }
}

/// Whether an operation has the client's name, or something in its place.
fn is_signed(operation: &Argop4) -> bool {
    matches!(
        operation,
        Argop4::Open(_)
            | Argop4::Lock(LockArgs { locker: Locker4::New { .. }, .. })
            | Argop4::LockT(_)
            | Argop4::ReleaseLockOwner(_)
            | Argop4::Renew(_)
    )
}

/// Whether an operation is counted by its owners.
fn is_counted(operation: &Argop4) -> bool {
    opens(operation) || matches!(operation, Argop4::Lock(_) | Argop4::LockU(_))
}

/// Whether the owner of opens counts it.
fn opens(operation: &Argop4) -> bool {
    matches!(
        operation,
        Argop4::Open(_)
            | Argop4::OpenConfirm(_)
            | Argop4::Close(_)
            | Argop4::Lock(LockArgs { locker: Locker4::New { .. }, .. })
    )
}

/// OPEN_CONFIRM of the file that a compound has opened, if the server wants it (RFC 7530 §16.18): its owner is new there.
fn to_confirm(ops: &[Argop4], res: &CompoundRes) -> Option<Vec<Argop4>> {
    let opened = res.resarray.iter().find_map(|result| match result {
        Resop4::Open(Res4::Ok(ok)) if ok.rflags & OPEN4_RESULT_CONFIRM != 0 => Some(ok.stateid),
        _ => None,
    });
    let open_stateid = opened?;
    // By its name a file is opened in a compound that asks for its handle, else by that.
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

/// Whether anybody still uses the mount.
fn is_there(mount: &Weak<ServerLink>) -> bool {
    mount.strong_count() > 0
}
