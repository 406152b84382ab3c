//! The introduction of clients: EXCHANGE_ID and CREATE_SESSION (RFC 8881 §18.35, §18.36), and what they share with
//! NFSv4.0.
//!
//! [`Clients`](crate::v4::state::client::Clients) plans an introduction without changing anything. This file executes
//! the plan, which cannot fail.

use std::{hash::Hash, time::Instant};

use nfs::v4::*;
use rand::RngCore;

use crate::v4::state::{
    Event, State,
    client::{Created, EvictionContext, Origin, Plan, PlanAction},
    ids::Principal,
    session::{Connection, Session},
};

impl<R: Clone, F: Clone + Eq + Hash> State<R, F> {
    /// Executes EXCHANGE_ID (§18.35).
    ///
    /// # Errors
    /// INVAL for undefined flags, or state protection without RPCSEC_GSS; ENCR_ALG_UNSUPP for SP4_SSV; those of the
    /// cases of §18.35.4; DELAY if there are too many clients.
    pub fn exchange_id(
        &mut self,
        now: Instant,
        minorversion: u32,
        args: &ExchangeIdArgs,
        origin: Origin<'_>,
    ) -> Result<ExchangeIdOk, Nfsstat4> {
        let fence = if minorversion >= 2 { EXCHGID4_FLAG_SUPP_FENCE_OPS } else { 0 };
        if args.flags & !(FLAGS_A | fence) != 0 {
            return Err(Nfsstat4::Inval);
        }
        let protect = self.protect(&args.state_protect, origin.principal)?;
        let random = self.rng.next_u64();
        let holds = |id| self.stateids.count(id) > 0;
        let context = EvictionContext { now, holds: &holds, random };
        let plan = self.clients.plan_exchange(minorversion, args, protect, origin, &context)?;
        let clientid = self.execute_plan(plan);
        let client = self.clients.find_mut(clientid).ok_or(Nfsstat4::ServerFault)?;
        client.minorversion = minorversion;
        //= rfc8881-18.35.3-9 rfc8881-18.35.3-10
        let confirmed = if client.confirmed { EXCHGID4_FLAG_CONFIRMED_R } else { 0 };
        Ok(ExchangeIdOk {
            clientid,
            sequenceid: client.next_sequence(),
            flags: self.options.flags | confirmed,
            state_protect: client.protect.clone(),
            //= rfc8881-2.10.5-6
            server_owner: self.options.server_owner.clone(),
            server_scope: self.options.server_scope.clone().into(),
            server_impl_id: self.options.implementation.clone(),
        })
    }

    /// Executes a plan and returns its client.
    pub(in crate::v4::state) fn execute_plan(&mut self, plan: Plan<R, F>) -> Clientid4 {
        for ended in plan.ended {
            self.end_client(ended);
        }
        match plan.action {
            PlanAction::Add(client) => {
                let id = self.new_clientid();
                self.clients.add(id, *client);
                id
            }
            PlanAction::Keep(id) => id,
            PlanAction::Implementation(id, implementation) => {
                self.clients.find_mut(id).into_iter().for_each(|client| client.implementation = implementation.clone());
                id
            }
            PlanAction::Callback(id, legacy) => {
                self.clients.find_mut(id).into_iter().for_each(|client| client.set_update((*legacy).clone()));
                id
            }
        }
    }

    /// Executes CREATE_SESSION (§18.36).
    ///
    /// The principal is compared while the client ID is not confirmed (§18.36.4, phase 3). Afterwards any principal
    /// that knows the client ID can create a session, as it can use any session whose ID it knows (SP4_NONE,
    /// §2.10.8.3), and a retry by any principal gets the cached result: whoever has seen the client ID on the network
    /// has also seen the session ID. A session of another principal has no backchannel. Its result is repeated to that
    /// principal only. Other principals get at most half of the client's sessions.
    ///
    /// # Errors
    /// STALE_CLIENTID, SEQ_MISORDERED, CLID_INUSE, WRONG_CRED, INVAL, TOOSMALL, NOSPC; or the cached result, if this is
    /// a retry of the last CREATE_SESSION.
    pub fn create_session(
        &mut self,
        now: Instant,
        args: &CreateSessionArgs,
        principal: &Principal,
        connection: Connection,
    ) -> Result<CreateSessionOk, Nfsstat4> {
        let id = self.new_sessionid(args.clientid);
        self.check_stored(args.clientid)?;
        let client = self.clients.find(args.clientid).filter(|client| !client.evicted && client.legacy.is_none());
        //= rfc8881-2.4.2-1
        let client = client.ok_or(Nfsstat4::StaleClientid)?;
        // A caller that may only claim to be the client gets a session without callbacks, like another principal.
        let is_owner = client.is_owner(principal, connection.tls);
        if !is_owner && !client.confirmed {
            // Check this before phase 2, which would advance the sequence ID.
            return Err(Nfsstat4::ClidInuse);
        }
        if !is_owner && client.protect != StateProtect4R::None {
            return Err(Nfsstat4::WrongCred);
        }
        // §18.36.4, phase 2. An error that follows from the arguments alone is computed again and not taken from the
        // cache. A retry cannot tell the difference, and a client that does not count a rejected request can send
        // corrected arguments with the same sequence ID.
        let last = &client.created;
        match (args.sequence == last.sequence, &last.result) {
            // No principal must get the session that a foreign principal created, and a weaker connection must not show the ID
            // of a session: whoever knows it can use the session.
            (true, _) if connection.tls < last.tls => return Err(Nfsstat4::SeqMisordered),
            (true, _) if last.by != client.principal && last.by != *principal => return Err(Nfsstat4::SeqMisordered),
            (true, Err(Nfsstat4::Inval | Nfsstat4::TooSmall)) => {}
            //= rfc8881-18.36.4-1 rfc8881-18.36.4-2 rfc8881-18.36.4-3
            (true, result) => return result.clone(),
            (false, _) if args.sequence != client.next_sequence() => return Err(Nfsstat4::SeqMisordered),
            (false, _) => {}
        }
        //= rfc8881-2.10.5-1 rfc8881-2.10.5-2 rfc8881-2.10.5-5
        let max = self.sessions_max(client);
        let foreign = client.sessions().filter(|session| session.is_foreign).count();
        let full = client.sessions.len() >= max || !is_owner && foreign >= max / 2;
        let (limits, granted) = self.grant(client, &args.fore_chan_attrs);
        let made = if args.flags & !SESSION_FLAGS != 0 {
            Err(Nfsstat4::Inval)
        } else {
            Session::new(id, args, (&limits, granted), (connection, is_owner))
        };
        let made = made.and_then(|session| if full { Err(Nfsstat4::NoSpc) } else { Ok(session) });
        let result = made.map(|session| self.add_session(now, args, session));
        // Phase 2: a failure advances the sequence ID too.
        if let Some(client) = self.clients.find_mut(args.clientid) {
            let (sequence, by) = (args.sequence, principal.clone());
            client.created = Created { sequence, by, tls: connection.tls, result: result.clone() };
        }
        result
    }

    /// Adds a session, and confirms its client.
    fn add_session(&mut self, now: Instant, args: &CreateSessionArgs, session: Session) -> CreateSessionOk {
        let result = CreateSessionOk {
            sessionid: session.id,
            //= rfc8881-18.36.3-3
            sequence: args.sequence,
            //= rfc8881-18.36.3-5 rfc8881-18.36.3-6 rfc8881-18.36.3-7
            flags: session.flags(),
            fore_chan_attrs: session.fore,
            back_chan_attrs: session.back,
        };
        for connection in session.connections() {
            self.by_connection.entry(connection).or_default().push(session.id);
        }
        let is_foreign = session.is_foreign;
        self.clients.add_session(args.clientid, session);
        self.confirm(args.clientid);
        if let Some(client) = self.clients.find_mut(args.clientid) {
            client.callbacks_fail &= is_foreign;
            client.shard.close().renew(now);
        }
        result
    }

    /// Confirms a client, unless it is confirmed. Removes the client that it replaces.
    pub(in crate::v4::state) fn confirm(&mut self, id: Clientid4) {
        if self.clients.find(id).is_none_or(|client| client.confirmed) {
            return;
        }
        if let Some(replaced) = self.clients.confirm(id) {
            self.end_client(replaced);
        }
        self.events.push_back(Event::Confirmed(id));
        self.adopt_record(id);
    }

    fn protect(&self, wanted: &StateProtect4A, principal: &Principal) -> Result<StateProtect4R, Nfsstat4> {
        match wanted {
            StateProtect4A::None => Ok(StateProtect4R::None),
            // §18.35.3: this requires RPCSEC_GSS with integrity or privacy.
            StateProtect4A::MachCred(_) | StateProtect4A::Ssv(_) if !matches!(principal, Principal::Gss(_)) => {
                Err(Nfsstat4::Inval)
            }
            StateProtect4A::MachCred(ops) => Ok(StateProtect4R::MachCred(StateProtectOps4 {
                must_enforce: ops.must_enforce.intersection(&operations(MACH_CRED_ENFORCED)),
                must_allow: ops.must_allow.intersection(&operations(MACH_CRED_ALLOWED)),
            })),
            // SSV is not supported, so no offered algorithm is acceptable.
            StateProtect4A::Ssv(_) => Err(Nfsstat4::EncrAlgUnsupp),
        }
    }

    /// Generates a client ID that cannot be guessed and is not in use. An ID of an earlier server start is very
    /// unlikely to match.
    fn new_clientid(&mut self) -> Clientid4 {
        loop {
            //= rfc8881-18.35.3-3
            let id = Clientid4(self.rng.next_u64());
            if id != Clientid4(0) && self.clients.find(id).is_none() {
                return id;
            }
        }
    }

    /// Generates a session ID that cannot be guessed. It begins with the client ID.
    fn new_sessionid(&mut self, Clientid4(client): Clientid4) -> Sessionid4 {
        loop {
            let mut id = [0; 16];
            id[..8].copy_from_slice(&client.to_be_bytes());
            self.rng.fill_bytes(&mut id[8..]);
            if self.session(Sessionid4(id)).is_none() {
                return Sessionid4(id);
            }
        }
    }
}

fn operations(all: &[Opnum4]) -> Bitmap4 {
    all.iter().map(|&opnum| opnum as u32).collect()
}

/// The flags that a client may set (§18.35.3).
const FLAGS_A: u32 = EXCHGID4_FLAG_SUPP_MOVED_REFER
    | EXCHGID4_FLAG_SUPP_MOVED_MIGR
    | EXCHGID4_FLAG_BIND_PRINC_STATEID
    | EXCHGID4_FLAG_MASK_PNFS
    | EXCHGID4_FLAG_UPD_CONFIRMED_REC_A;
const SESSION_FLAGS: u32 =
    CREATE_SESSION4_FLAG_PERSIST | CREATE_SESSION4_FLAG_CONN_BACK_CHAN | CREATE_SESSION4_FLAG_CONN_RDMA;
/// The operations for which the machine credential can be required: those that create and destroy clients and sessions.
const MACH_CRED_ENFORCED: &[Opnum4] = &[
    Opnum4::BindConnToSession,
    Opnum4::ExchangeId,
    Opnum4::CreateSession,
    Opnum4::DestroySession,
    Opnum4::DestroyClientId,
];
/// The operations for which the machine credential can replace a user's credential: those that release state, when the
/// user's credential has expired. WRITE and COMMIT are not in it, as in Linux's server: Linux's client sends every WRITE
/// with the machine credential where it may, and access to the file would be checked for the machine's principal.
const MACH_CRED_ALLOWED: &[Opnum4] = &[
    Opnum4::Close,
    Opnum4::OpenDowngrade,
    Opnum4::LockU,
    Opnum4::DelegReturn,
    Opnum4::FreeStateid,
    Opnum4::TestStateid,
];
