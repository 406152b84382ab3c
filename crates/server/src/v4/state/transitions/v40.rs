//! The operations that NFSv4.0 has instead of sessions: SETCLIENTID, SETCLIENTID_CONFIRM, RENEW, OPEN_CONFIRM,
//! RELEASE_LOCKOWNER. Also finds the client of each operation and checks its sequence ID.
//!
//! Read RFC 7530 §9.1, §16.18, §16.28, §16.33–16.34, §16.37. Opens, locks and leases are those of the later versions.
//!
//! An error leaves the state unchanged, except that a lease may have been renewed.
//!
//! Client IDs, owners and stateids are no secrets. So a caller with less protection than the one that introduced a client or
//! created an owner must not renew the lease, advance the sequence, or use the state. A client whose principal is proved
//! also calls as users of AUTH_SYS (a Linux client with a keytab does, for mounts with `sec=sys`). These have their own owners,
//! and renew the lease only by operations on their own state.

use std::{hash::Hash, time::Instant};

use bytes::Bytes;
use entropy::HashSet;
use nfs::v4::*;
use rand::RngCore;
use rpc::Xprtsec;

use super::lock;
use crate::{
    sharing::locks::LockTable,
    v4::state::{
        State,
        client::{EvictionContext, Origin},
        ids::{Other, Principal},
        owner::{Caller, Kept, OwnerKind, OwnerName, SeqidCheck},
        stateid::Kind,
    },
};

/// The client or owner that an operation of 4.0 names.
#[derive(Clone, Copy, Debug)]
pub enum Subject<'a> {
    /// A client that renews its lease.
    Renewal(Clientid4),
    /// A client.
    Client(Clientid4),
    /// A lock-owner, without a sequence ID.
    LockOwner(&'a StateOwner4),
    /// The client that holds this stateid.
    State(&'a Stateid4),
    /// An open-owner, with the sequence ID of its OPEN.
    OpenOwner(&'a StateOwner4, Seqid4),
    /// The owner of this stateid, with the sequence ID of its operation.
    Owner(&'a Stateid4, Seqid4),
}

impl<'a> Subject<'a> {
    /// Returns the subject of an operation, if it names one.
    pub fn of(operation: &'a Argop4) -> Option<Self> {
        Some(match operation {
            Argop4::Open(args) => Self::OpenOwner(&args.owner, args.seqid),
            Argop4::OpenConfirm(args) => Self::Owner(&args.open_stateid, args.seqid),
            Argop4::Close(args) => Self::Owner(&args.open_stateid, args.seqid),
            Argop4::OpenDowngrade(args) => Self::Owner(&args.open_stateid, args.seqid),
            Argop4::LockU(args) => Self::Owner(&args.lock_stateid, args.seqid),
            Argop4::Lock(LockArgs { locker: Locker4::Exist { lock_stateid, lock_seqid }, .. }) => {
                Self::Owner(lock_stateid, *lock_seqid)
            }
            Argop4::Lock(LockArgs { locker: Locker4::New { open_stateid, open_seqid, .. }, .. }) => {
                Self::Owner(open_stateid, *open_seqid)
            }
            Argop4::Renew(args) => Self::Renewal(args.clientid),
            Argop4::LockT(args) => Self::Client(args.owner.clientid),
            Argop4::ReleaseLockOwner(args) => Self::LockOwner(&args.lock_owner),
            Argop4::Read(args) => Self::State(&args.stateid),
            Argop4::Write(args) => Self::State(&args.stateid),
            Argop4::SetAttr(args) => Self::State(&args.stateid),
            Argop4::DelegReturn(args) => Self::State(&args.deleg_stateid),
            _ => return None,
        })
    }
}

/// The decision about an operation of 4.0.
#[derive(Debug, PartialEq, Eq)]
pub enum Entered<F> {
    /// Execute it for this client; `None` if it names neither a client nor state.
    Free(Option<Clientid4>),
    /// Execute it with the sequence ID of an owner, then call [`State::leave`].
    Sequenced(OwnerName),
    /// The operation is a retry, with this cached result.
    Replay(Kept<F>),
}

impl<R: Clone, F: Clone + Eq + Hash> State<R, F> {
    /// Executes SETCLIENTID (§16.33).
    ///
    /// # Errors
    /// CLID_INUSE; DELAY if there are too many clients.
    pub fn set_clientid(
        &mut self,
        now: Instant,
        args: &SetClientIdArgs,
        origin: Origin<'_>,
    ) -> Result<SetClientIdOk, Nfsstat4> {
        let mut confirm = [0; 8];
        self.rng.fill_bytes(&mut confirm);
        let holds = |id| self.stateids.count(id) > 0;
        let context = EvictionContext { now, holds: &holds, random: u64::from_be_bytes(confirm) };
        let plan = self.clients.plan_set_clientid(args, confirm, origin, &context)?;
        Ok(SetClientIdOk { clientid: self.execute_plan(plan), setclientid_confirm: confirm })
    }

    /// Executes SETCLIENTID_CONFIRM (§16.34).
    ///
    /// # Errors
    /// STALE_CLIENTID, CLID_INUSE.
    pub fn set_clientid_confirm(
        &mut self,
        now: Instant,
        args: &SetClientIdConfirmArgs,
        by: (&Principal, Xprtsec),
    ) -> Result<(), Nfsstat4> {
        self.check_replaced(args.clientid, now)?;
        if !self.has_lost_all(args.clientid) {
            self.check_stored(args.clientid)?;
        }
        let new = self.clients.confirm_callback(args, by)?;
        if !new && self.has_lost_all(args.clientid) {
            // The confirmation acknowledges the loss.
            self.stateids.of_client(args.clientid).iter().for_each(|other| drop(self.stateids.remove(other)));
            self.owners.remove_client(args.clientid);
            self.regain_record(args.clientid);
        }
        self.confirm(args.clientid);
        self.renew(now, args.clientid);
        self.probe_listener(args.clientid);
        Ok(())
    }

    /// Checks that the confirmation of a client does not end a client of another principal with state and a valid
    /// lease, which may have been renewed since this client introduced itself (§16.34.5).
    ///
    /// # Errors
    /// CLID_INUSE.
    fn check_replaced(&self, id: Clientid4, now: Instant) -> Result<(), Nfsstat4> {
        let Some(client) = self.clients.find(id) else { return Ok(()) };
        let replaced = self.clients.confirmed(&client.owner.ownerid.0).filter(|replaced| *replaced != id);
        let foreign = replaced.filter(|id| self.clients.find(*id).is_some_and(|old| old.principal != client.principal));
        let in_use = foreign.is_some_and(|id| self.stateids.count(id) > 0 && !self.clients.is_expired(id, now));
        if in_use { Err(Nfsstat4::ClidInuse) } else { Ok(()) }
    }

    /// Begins an operation: finds its client, checks the sequence ID, and renews the client's lease (§9.5).
    ///
    /// # Errors
    /// STALE_CLIENTID, EXPIRED; those of `Stateids::resolve`; BAD_SEQID; DELAY, RESOURCE; ACCESS for a RENEW by a user who has
    /// not introduced the client and has no open file, or who is not proved if the client is.
    pub fn enter(
        &mut self,
        locks: &mut LockTable<F>,
        now: Instant,
        subject: Subject<'_>,
        by: &Caller,
    ) -> Result<Entered<F>, Nfsstat4> {
        let (owner, seqid, opens) = match subject {
            Subject::Renewal(id) => {
                if self.check_client(id, by)? || !self.may_renew(id, by) {
                    return Err(Nfsstat4::Access);
                }
                self.renew_by_use(now, id);
                return Ok(Entered::Free(Some(id)));
            }
            Subject::Client(id) => return Ok(Entered::Free(Some(self.use_client(id, by, now)?))),
            Subject::LockOwner(owner) => {
                let name = OwnerName { client: owner.clientid, kind: OwnerKind::Lock, name: owner.owner.0.clone() };
                if self.owners.refuses(&name, by.strength()) {
                    return Err(Nfsstat4::StaleClientid);
                }
                return Ok(Entered::Free(Some(self.use_client(name.client, by, now)?)));
            }
            Subject::State(stateid) => return self.by_stateid(stateid, by, now),
            Subject::OpenOwner(owner, seqid) => {
                let client = self.use_client(owner.clientid, by, now)?;
                (OwnerName { client, kind: OwnerKind::Open, name: owner.owner.detached().0 }, seqid, true)
            }
            Subject::Owner(stateid, seqid) => (self.owner_of(stateid, by)?, seqid, false),
        };
        if !self.owners.has_room(owner.client) {
            self.forget_idle_owners(owner.client);
        }
        let check = self.owners.begin(&owner, seqid, opens, by.strength())?;
        if !opens {
            self.renew_by_use(now, owner.client);
        }
        match check {
            SeqidCheck::Replay(kept) => return Ok(Entered::Replay(kept)),
            SeqidCheck::CloseUnconfirmed => self.close_all(locks, &owner),
            SeqidCheck::Execute => {}
        }
        Ok(Entered::Sequenced(owner))
    }

    /// Ends an operation for which [`enter`](Self::enter) returned [`Entered::Sequenced`].
    pub fn leave(&mut self, now: Instant, owner: &OwnerName, operation: &Argop4, kept: Kept<F>) {
        if kept.status == Nfsstat4::Ok {
            // After an OPEN, the client has state of this caller.
            self.renew(now, owner.client);
        }
        if let Argop4::Lock(LockArgs { locker: Locker4::New { lock_owner, lock_seqid, .. }, .. }) = operation
            && kept.status == Nfsstat4::Ok
        {
            // §16.10.4: the lock-owner's sequence begins or continues with this operation.
            let name = OwnerName { kind: OwnerKind::Lock, name: lock_owner.owner.detached().0, ..owner.clone() };
            self.owners.remove(&name);
            // The client may have been removed in the meantime.
            let exists = self.clients.find(owner.client).is_some();
            if exists && self.owners.begin(&name, *lock_seqid, false, kept.caller.strength()).is_ok() {
                self.owners.end(&name, kept.status, kept.clone());
            }
        }
        let (closed, opener) = (kept.status == Nfsstat4::Ok, kept.caller.principal.clone());
        self.owners.end(owner, kept.status, kept);
        if let Argop4::Open(_) = operation
            && closed
        {
            self.owners.note_opener(owner, &opener);
        }
        if let Argop4::Close(args) = operation
            && closed
        {
            self.owners.note_closed(owner, args.open_stateid.other);
        }
    }

    /// Executes OPEN_CONFIRM (§16.18).
    ///
    /// # Errors
    /// Those of `Stateids::resolve`; BAD_STATEID if the owner is already confirmed.
    pub fn open_confirm(&mut self, client: Clientid4, file: &F, stateid: &Stateid4) -> Result<Stateid4, Nfsstat4> {
        let other = self.resolve_open(client, file, stateid)?;
        let owner = self.owner_name(&other).ok_or(Nfsstat4::BadStateid)?;
        if self.owners.is_confirmed(&owner) {
            return Err(Nfsstat4::BadStateid);
        }
        self.owners.confirm(&owner);
        Ok(self.stateids.change(&other))
    }

    /// Executes RELEASE_LOCKOWNER (§16.37).
    ///
    /// # Errors
    /// LOCKS_HELD.
    pub fn release_lockowner(&mut self, locks: &LockTable<F>, client: Clientid4, name: &Bytes) -> Result<(), Nfsstat4> {
        let of_owner =
            |other: &Other| matches!(&self.stateids.entry(other).kind, Kind::Lock { owner, .. } if owner == name);
        let lock_stateids: Vec<_> = self.stateids.of_client(client).into_iter().filter(of_owner).collect();
        let holder = lock::lock_owner(client, name);
        if lock_stateids.iter().any(|other| locks.holds(&self.stateids.entry(other).file, &holder)) {
            return Err(Nfsstat4::LocksHeld);
        }
        lock_stateids.iter().for_each(|other| drop(self.stateids.remove(other)));
        self.owners.remove(&OwnerName { client, kind: OwnerKind::Lock, name: name.clone() });
        Ok(())
    }

    /// Checks that a client of 4.0 exists, that it has not lost all its state, and that a caller has the protection with which
    /// the client has introduced itself. Returns `true` if the client is proved and the caller is not: it may then use only
    /// state of its own, and does not renew the lease by the ID of the client.
    ///
    /// # Errors
    /// STALE_CLIENTID, EXPIRED; DELAY while the client's recovery record is being restored.
    fn check_client(&mut self, id: Clientid4, by: &Caller) -> Result<bool, Nfsstat4> {
        let client = self.clients.find(id).filter(|client| client.confirmed && client.legacy.is_some());
        let client = client.filter(|client| !client.evicted && !client.is_stronger_than(&by.principal, by.tls));
        let is_proved = client.ok_or(Nfsstat4::StaleClientid)?.principal.is_proved();
        if self.has_lost_all(id) {
            return Err(Nfsstat4::Expired);
        }
        self.check_stored(id)?;
        Ok(is_proved && !by.principal.is_proved())
    }

    /// Checks a client that an operation names, and renews its lease if the caller may.
    ///
    /// # Errors
    /// Those of [`check_client`](Self::check_client).
    fn use_client(&mut self, id: Clientid4, by: &Caller, now: Instant) -> Result<Clientid4, Nfsstat4> {
        if !self.check_client(id, by)? {
            self.renew_by_use(now, id);
        }
        Ok(id)
    }

    /// Reports whether the caller may renew the lease of a client by RENEW. §16.28.4: the principal must be that of
    /// SETCLIENTID_CONFIRM, or of an OPEN whose file is still open.
    fn may_renew(&self, id: Clientid4, by: &Caller) -> bool {
        let introduced = self.clients.find(id).is_some_and(|client| client.principal.is_same_user(&by.principal));
        let opened = |other: &Other| {
            matches!(self.stateids.entry(other).kind, Kind::Open { .. })
                && self.owner_name(other).is_some_and(|owner| self.owners.was_opened_by(&owner, &by.principal))
        };
        introduced || self.stateids.of_client(id).iter().any(opened)
    }

    fn renew_by_use(&mut self, now: Instant, id: Clientid4) {
        self.renew(now, id);
        self.clients.note_use(id);
    }

    /// Finds the client of a stateid, and renews its lease. An unconfirmed open cannot be used.
    fn by_stateid(&mut self, stateid: &Stateid4, by: &Caller, now: Instant) -> Result<Entered<F>, Nfsstat4> {
        if *stateid == Stateid4::ANONYMOUS || *stateid == Stateid4::READ_BYPASS {
            return Ok(Entered::Free(None));
        }
        let client = self.client_of_stateid(stateid, by)?;
        let is_usable =
            |owner: &OwnerName| self.owners.is_confirmed(owner) && !self.owners.refuses(owner, by.strength());
        if self.owner_name(&stateid.other).is_some_and(|owner| !is_usable(&owner)) {
            return Err(Nfsstat4::BadStateid);
        }
        self.renew_by_use(now, client);
        Ok(Entered::Free(Some(client)))
    }

    /// Returns the owner of an open or lock stateid.
    fn owner_of(&mut self, stateid: &Stateid4, by: &Caller) -> Result<OwnerName, Nfsstat4> {
        // A retry of CLOSE must be answered although its stateid no longer exists.
        if let Some(owner) = self.owners.closer_of(&stateid.other).cloned() {
            self.check_client(owner.client, by)?;
            return Ok(owner);
        }
        self.client_of_stateid(stateid, by)?;
        self.owner_name(&stateid.other).ok_or(Nfsstat4::BadStateid)
    }

    /// Returns the client of a stateid.
    fn client_of_stateid(&mut self, stateid: &Stateid4, by: &Caller) -> Result<Clientid4, Nfsstat4> {
        let client =
            self.stateids.client_of(&stateid.other).ok_or_else(|| self.stateids.status_of_unknown(&stateid.other))?;
        match self.check_client(client, by) {
            // The stateid belongs to a client of a later version, or of more protection.
            Err(Nfsstat4::StaleClientid) => Err(Nfsstat4::BadStateid),
            other => other.map(|_| client),
        }
    }

    /// Returns the owner of a stateid. Delegations have no owner.
    fn owner_name(&self, other: &Other) -> Option<OwnerName> {
        let entry = self.stateids.entry(other);
        let (kind, name) = match &entry.kind {
            Kind::Open(open) => (OwnerKind::Open, open.owner.clone()),
            Kind::Lock { owner, .. } => (OwnerKind::Lock, owner.clone()),
            Kind::Recallable(_) => return None,
        };
        Some(OwnerName { client: entry.client, kind, name })
    }

    fn close_all(&mut self, locks: &mut LockTable<F>, owner: &OwnerName) {
        for other in self.stateids.of_client(owner.client) {
            if self.stateids.contains(&other) && self.owner_name(&other).as_ref() == Some(owner) {
                self.close_open(locks, owner.client, &other);
            }
        }
    }

    /// Removes the owners of a client that hold no state.
    fn forget_idle_owners(&mut self, client: Clientid4) {
        let busy: HashSet<_> =
            self.stateids.of_client(client).iter().filter_map(|other| self.owner_name(other)).collect();
        self.owners.retain(client, |name| busy.contains(name));
    }
}
