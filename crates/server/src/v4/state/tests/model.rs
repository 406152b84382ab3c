//! Random sequences of all operations, by few clients and with tiny limits. After each operation all tables agree, and
//! a failed operation has changed nothing.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::{
    super::{
        owner::Caller,
        record::Record,
        slot::Ticket,
        transitions::{
            delegation::DelegationRequest,
            v40::{Entered, Subject},
        },
    },
    *,
};
use crate::sharing::conflict::Access;

/// An operation. Numbers select among the existing objects, by their remainder.
#[derive(Clone, Debug)]
enum Op {
    Exchange { name: u8, verifier: u8, by: u8, host: u8, update: bool },
    Create { client: u8, sequence: u8, by: u8, host: u8, small: bool },
    SetClientid { name: u8, verifier: u8, by: u8, host: u8 },
    Confirm { which: u8, by: u8 },
    Sequence { session: u8, sequence: u8, connection: u8 },
    Finish { which: u8 },
    DestroySession { session: u8, by: u8, connection: u8 },
    DestroyClientid { client: u8, by: u8 },
    Bind { session: u8, by: u8, connection: u8 },
    Disconnect { connection: u8 },
    ReclaimComplete { client: u8 },
    Store { client: u8, written: bool },
    Open { client: u8, owner: u8, file: u8, access: u8, deny: u8, reclaim: bool, step: Step },
    Close { stateid: u8 },
    Lock { stateid: u8, owner: u8, write: bool },
    Free { stateid: u8 },
    Io { stateid: u8, write: bool },
    Delegate { client: u8, file: u8, write: bool },
    Recall { file: u8, write: bool },
    Return { stateid: u8 },
    Enter { client: u8 },
    OpenOwner { client: u8, owner: u8, sequence: u8 },
    Evict { client: u8 },
    RevokeAll { client: u8 },
    Expire,
    EndGrace,
    Pass { quarters: u8 },
}

/// The variant of an OPEN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// The file is not found, and the plan is dropped.
    Dropped,
    /// The OPEN claims a delegation, if the stateid is one.
    Delegated,
    /// A delegation may be granted.
    Delegates,
    /// A delegation may be granted after the file is truncated.
    Truncates,
    Plain,
}

fn step() -> impl Strategy<Value = Step> {
    prop::sample::select(vec![
        Step::Dropped,
        Step::Delegated,
        Step::Delegates,
        Step::Truncates,
        Step::Plain,
        Step::Plain,
    ])
}

fn ops() -> impl Strategy<Value = Op> {
    let n = || any::<u8>();
    prop_oneof![
        5 => (0..5u8, 0..2u8, 0..2u8, 0..3u8, prop::bool::weighted(0.1))
            .prop_map(|(name, verifier, by, host, update)| Op::Exchange { name, verifier, by, host, update }),
        5 => (n(), 0..3u8, 0..2u8, 0..4u8, prop::bool::weighted(0.1))
            .prop_map(|(client, sequence, by, host, small)| Op::Create { client, sequence, by, host, small }),
        3 => (0..5u8, 0..2u8, 0..2u8, 0..3u8)
            .prop_map(|(name, verifier, by, host)| Op::SetClientid { name, verifier, by, host }),
        3 => (n(), 0..2u8).prop_map(|(which, by)| Op::Confirm { which, by }),
        12 => (n(), 1..3u8, 0..4u8).prop_map(|(session, sequence, connection)| Op::Sequence { session, sequence, connection }),
        8 => n().prop_map(|which| Op::Finish { which }),
        1 => (n(), 0..2u8, 0..4u8).prop_map(|(session, by, connection)| Op::DestroySession { session, by, connection }),
        1 => (n(), 0..2u8).prop_map(|(client, by)| Op::DestroyClientid { client, by }),
        1 => (n(), 0..2u8, 0..4u8).prop_map(|(session, by, connection)| Op::Bind { session, by, connection }),
        1 => (0..4u8).prop_map(|connection| Op::Disconnect { connection }),
        2 => n().prop_map(|client| Op::ReclaimComplete { client }),
        2 => (n(), any::<bool>()).prop_map(|(client, written)| Op::Store { client, written }),
        6 => (n(), n(), 0..3u8, 1..4u8, 0..4u8, any::<bool>(), step())
            .prop_map(|(client, owner, file, access, deny, reclaim, step)| {
                Op::Open { client, owner, file, access, deny, reclaim, step }
            }),
        2 => n().prop_map(|stateid| Op::Close { stateid }),
        3 => (n(), 0..2u8, any::<bool>()).prop_map(|(stateid, owner, write)| Op::Lock { stateid, owner, write }),
        2 => n().prop_map(|stateid| Op::Free { stateid }),
        6 => (n(), any::<bool>()).prop_map(|(stateid, write)| Op::Io { stateid, write }),
        2 => (n(), 0..3u8, any::<bool>()).prop_map(|(client, file, write)| Op::Delegate { client, file, write }),
        2 => (0..3u8, any::<bool>()).prop_map(|(file, write)| Op::Recall { file, write }),
        1 => n().prop_map(|stateid| Op::Return { stateid }),
        2 => n().prop_map(|client| Op::Enter { client }),
        2 => (n(), 0..3u8, 0..3u8).prop_map(|(client, owner, sequence)| Op::OpenOwner { client, owner, sequence }),
        1 => n().prop_map(|client| Op::Evict { client }),
        1 => n().prop_map(|client| Op::RevokeAll { client }),
        3 => Just(Op::Expire),
        1 => Just(Op::EndGrace),
        5 => (1..6u8).prop_map(|quarters| Op::Pass { quarters }),
    ]
}

/// A state, and the identifiers that its clients know.
struct Model {
    world: World,
    clients: Vec<Clientid4>,
    confirms: Vec<SetClientIdConfirmArgs>,
    sessions: Vec<Sessionid4>,
    begun: Vec<(Sessionid4, Ticket)>,
    stateids: Vec<(Clientid4, char, Stateid4)>,
    /// The owners in the recovery database, with or without permission to reclaim.
    stored: BTreeSet<Bytes>,
}

fn pick<T: Clone>(from: &[T], number: u8) -> Option<T> {
    (!from.is_empty()).then(|| from[usize::from(number) % from.len()].clone())
}

fn by(number: u8) -> &'static Principal {
    if number == 0 { &OWNER } else { &OTHER }
}

/// Returns `false` for DELAY. After it the state may have changed: the record of a client that is back after its lease
/// is being stored.
fn is_unchanged_after(status: &Nfsstat4) -> bool {
    *status != Nfsstat4::Delay
}

fn connection(number: u8) -> Connection {
    Connection { id: ConnectionId(u64::from(number)), duplex: number != 3, tls: Xprtsec::None }
}

fn origin(principal: &Principal, host: u8) -> Origin<'_> {
    // Three hosts. No export admits the third.
    let peer = Ipv4Addr::new(192, 0, 2, host).into();
    Origin { principal, has_integrity: true, callback_flavor: None, peer, admitted: host < 2, tls: Xprtsec::None }
}

fn caller() -> Caller {
    Caller { principal: OWNER, sec: None, tls: Xprtsec::None }
}

fn file(number: u8) -> char {
    char::from(b'f' + number)
}

const NAMES: [&str; 5] = ["a", "b", "c", "d", "e"];

impl Model {
    fn new(grace: bool) -> Self {
        let mut world = World::with(|options| options.clients_max = 4);
        let mut stored = BTreeSet::new();
        if grace {
            world.begin_grace(&["a", "b"], &["c"]);
            stored.extend(["a", "b", "c"].map(Bytes::from));
        }
        let (clients, confirms, sessions) = (Vec::new(), Vec::new(), Vec::new());
        Self { world, clients, confirms, sessions, begun: Vec::new(), stateids: Vec::new(), stored }
    }

    /// Applies an operation. Returns its error if that must have left the state unchanged.
    fn apply(&mut self, op: &Op) -> Option<Nfsstat4> {
        match op {
            Op::Exchange { .. } | Op::SetClientid { .. } | Op::Confirm { .. } | Op::DestroyClientid { .. } => {
                self.introduce(op)
            }
            Op::Create { .. }
            | Op::Sequence { .. }
            | Op::Finish { .. }
            | Op::DestroySession { .. }
            | Op::Bind { .. }
            | Op::Disconnect { .. } => self.session(op),
            Op::Open { .. }
            | Op::Close { .. }
            | Op::Lock { .. }
            | Op::Free { .. }
            | Op::Io { .. }
            | Op::Delegate { .. }
            | Op::Recall { .. }
            | Op::Return { .. } => self.file(op),
            _ => self.other(op),
        }
    }

    fn introduce(&mut self, op: &Op) -> Option<Nfsstat4> {
        let World { state, now, .. } = &mut self.world;
        match *op {
            Op::Exchange { name, verifier, by: principal, host, update } => {
                let flags = if update { EXCHGID4_FLAG_UPD_CONFIRMED_REC_A } else { 0 };
                let args = exchange(NAMES[usize::from(name)], verifier, flags);
                let made = state.exchange_id(*now, 1 + u32::from(host % 2), &args, origin(by(principal), host));
                made.map(|made| self.clients.push(made.clientid)).err()
            }
            Op::SetClientid { name, verifier, by: principal, host } => {
                let args = SetClientIdArgs {
                    client: NfsClientId4 { verifier: [verifier; 8], id: NAMES[usize::from(name)].into() },
                    callback: CbClient4 { cb_program: 1, cb_location: Netaddr4::default() },
                    callback_ident: 1,
                };
                let made = state.set_clientid(*now, &args, origin(by(principal), host));
                let note = |SetClientIdOk { clientid, setclientid_confirm }| {
                    self.clients.push(clientid);
                    self.confirms.push(SetClientIdConfirmArgs { clientid, setclientid_confirm });
                };
                made.map(note).err()
            }
            Op::Confirm { which, by: principal } => {
                let args = pick(&self.confirms, which)?;
                state.set_clientid_confirm(*now, &args, (by(principal), Xprtsec::None)).err().filter(is_unchanged_after)
            }
            Op::DestroyClientid { client, by: principal } => {
                let id = pick(&self.clients, client)?;
                state.destroy_clientid(*now, id, None, by(principal)).err()
            }
            _ => unreachable!("another function applies this operation"),
        }
    }

    fn session(&mut self, op: &Op) -> Option<Nfsstat4> {
        let World { state, now, .. } = &mut self.world;
        match *op {
            Op::Create { client, sequence, by: principal, host, small } => {
                let id = pick(&self.clients, client)?;
                let next = state.clients().find(id).map_or(1, |client| client.next_sequence().0);
                let mut args = create(id, next.wrapping_add(u32::from(sequence)).wrapping_sub(1));
                if small {
                    args.fore_chan_attrs.maxrequestsize = 1;
                }
                let made = state.create_session(*now, &args, by(principal), connection(host));
                made.map(|made| self.sessions.push(made.sessionid)).err().filter(|status| {
                    // These errors are cached for a retry (§18.36.4).
                    !matches!(status, Nfsstat4::NoSpc | Nfsstat4::TooSmall) && is_unchanged_after(status)
                })
            }
            Op::Sequence { session, sequence, connection } => {
                let id = pick(&self.sessions, session)?;
                match self.world.sequence(id, u32::from(sequence), u64::from(connection)) {
                    Ok(Sequenced { begun: Begun::Execute(ticket), .. }) => self.begun.push((id, ticket)),
                    Ok(_) => {}
                    Err(status) => return Some(status).filter(is_unchanged_after),
                }
                None
            }
            Op::Finish { which } => {
                if !self.begun.is_empty() {
                    let (session, ticket) = self.begun.swap_remove(usize::from(which) % self.begun.len());
                    self.world.finish(session, ticket);
                }
                None
            }
            Op::DestroySession { session, by: principal, connection: number } => {
                let id = pick(&self.sessions, session)?;
                state.destroy_session(id, false, by(principal), connection(number).id).err()
            }
            Op::Bind { session, by: principal, connection: number } => {
                let args = bind(pick(&self.sessions, session)?, ChannelDirFromClient4::ForeOrBoth);
                state.bind_conn_to_session(&args, by(principal), connection(number)).err()
            }
            Op::Disconnect { connection: number } => {
                state.disconnect(connection(number).id);
                None
            }
            _ => unreachable!("another function applies this operation"),
        }
    }

    fn file(&mut self, op: &Op) -> Option<Nfsstat4> {
        // Long: one arm for each operation.
        let World { state, locks, now, .. } = &mut self.world;
        match *op {
            Op::Open { client, owner, file: number, access, deny, reclaim, step } => {
                let (client, file) = (pick(&self.clients, client)?, file(number));
                let claim = match pick(&self.stateids, owner) {
                    _ if reclaim => Claim::Reclaim(OpenDelegationType4::Read),
                    Some((_, _, stateid)) if step == Step::Delegated => Claim::Delegated(stateid),
                    _ => Claim::New,
                };
                let request = OpenRequest {
                    access: u32::from(access),
                    deny: u32::from(deny),
                    claim,
                    can_recall: matches!(step, Step::Delegates | Step::Truncates),
                    ..opening(client, Bytes::copy_from_slice(&[owner % 2]))
                };
                let plan = match state.plan_open(locks, request, *now) {
                    Ok(plan) => plan,
                    Err(status) => return Some(status),
                };
                if let Some(owner) = plan.unstored_owner() {
                    self.stored.insert(owner.clone());
                    state.client_stored(client, owner, true);
                }
                if step == Step::Dropped {
                    return None;
                }
                let target = OpenTarget { file: &file, change: Some(7), truncates: step == Step::Truncates };
                let Ok(opened) = state.commit_open(locks, &plan, target, *now) else { return None };
                self.stateids.push((client, file, opened.stateid));
                let delegation = match step {
                    Step::Truncates => state.delegate_open(locks, &plan, (&file, Some(8)), *now),
                    _ => opened.delegation,
                };
                match delegation {
                    OpenDelegation4::Read(read) => self.stateids.push((client, file, read.stateid)),
                    OpenDelegation4::Write(write) => self.stateids.push((client, file, write.stateid)),
                    _ => {}
                }
            }
            Op::Close { stateid } => {
                let (client, file, Stateid4 { other, .. }) = pick(&self.stateids, stateid)?;
                return state.close(locks, client, &file, &Stateid4 { seqid: 0, other }).err();
            }
            Op::Lock { stateid, owner, write } => {
                let (client, file, Stateid4 { other, .. }) = pick(&self.stateids, stateid)?;
                let lock_owner = StateOwner4 { clientid: client, owner: NAMES[usize::from(owner)].into() };
                let locktype = if write { NfsLockType4::Write } else { NfsLockType4::Read };
                let (open_stateid, zero) = (Stateid4 { seqid: 0, other }, Seqid4(0));
                let locker = Locker4::New { open_seqid: zero, open_stateid, lock_seqid: zero, lock_owner };
                let args = LockArgs { locktype, reclaim: false, offset: 0, length: 10, locker };
                if let Ok(stateid) = state.lock(locks, client, &file, &args, *now) {
                    self.stateids.push((client, file, stateid));
                }
            }
            Op::Free { stateid } => {
                let (client, _, Stateid4 { other, .. }) = pick(&self.stateids, stateid)?;
                return state.free_stateid(locks, client, &Stateid4 { seqid: 0, other }).err();
            }
            Op::Io { stateid, write } => {
                let (client, file, Stateid4 { other, .. }) = pick(&self.stateids, stateid)?;
                let _ = self.world.io_of(client, file, &Stateid4 { seqid: 0, other }, write);
            }
            Op::Delegate { client, file: number, write } => {
                let (client, file) = (pick(&self.clients, client)?, file(number));
                state.clients().find(client).filter(|client| client.confirmed)?;
                let share_access = if write { OPEN4_SHARE_ACCESS_WRITE } else { OPEN4_SHARE_ACCESS_READ };
                let request =
                    DelegationRequest { client, file: &file, share_access, change: 7, reclaim: None, call: None };
                match state.delegate(locks, &request, *now) {
                    OpenDelegation4::Read(read) => self.stateids.push((client, file, read.stateid)),
                    OpenDelegation4::Write(write) => self.stateids.push((client, file, write.stateid)),
                    _ => {}
                }
            }
            Op::Recall { file: number, write } => {
                let access = if write { Access::Write } else { Access::Read };
                let _ = state.recall(locks, &file(number), (None, access), *now);
                while state.poll_recall().is_some() {}
            }
            Op::Return { stateid } => {
                let (client, file, stateid) = pick(&self.stateids, stateid)?;
                return state.delegreturn(client, &file, &stateid).err();
            }
            _ => unreachable!("another function applies this operation"),
        }
        None
    }

    fn other(&mut self, op: &Op) -> Option<Nfsstat4> {
        let World { state, locks, now, .. } = &mut self.world;
        match *op {
            Op::ReclaimComplete { client } => {
                let id = pick(&self.clients, client)?;
                // The operation follows SEQUENCE.
                state.clients().find(id).filter(|client| client.confirmed && client.legacy.is_none())?;
                return state.reclaim_complete(id, &ReclaimCompleteArgs { one_fs: false }).err();
            }
            Op::Store { client, written } => {
                let id = pick(&self.clients, client)?;
                state.clients().find(id).filter(|client| client.confirmed)?;
                if let Some(owner) = state.unstored_owner(id, *now) {
                    if written {
                        self.stored.insert(owner.clone());
                    }
                    state.client_stored(id, &owner, written);
                }
            }
            Op::Enter { client } => {
                let _ = state.enter(locks, *now, Subject::Renewal(pick(&self.clients, client)?), &caller());
            }
            Op::OpenOwner { client, owner, sequence } => {
                let owner =
                    StateOwner4 { clientid: pick(&self.clients, client)?, owner: NAMES[usize::from(owner)].into() };
                let subject = Subject::OpenOwner(&owner, Seqid4(u32::from(sequence)));
                if let Ok(Entered::Sequenced(name)) = state.enter(locks, *now, subject, &caller()) {
                    let kept = Kept { status: Nfsstat4::Ok, result: Bytes::new(), file: None, caller: caller() };
                    let renew = Argop4::Renew(ClientIdArgs { clientid: name.client });
                    state.leave(*now, &name, &renew, kept);
                }
            }
            Op::Evict { client } => drop(state.evict(pick(&self.clients, client)?)),
            Op::RevokeAll { client } => {
                state.revoke_all(locks, pick(&self.clients, client)?, Nfsstat4::AdminRevoked);
            }
            Op::Expire => {
                state.expire(*now);
                state.drop_unused_records(*now);
                state.reduce_load(*now);
            }
            Op::EndGrace if state.in_grace() => drop(self.world.end_grace()),
            Op::EndGrace => {}
            Op::Pass { quarters } => *now += LEASE / 4 * u32::from(quarters) + Duration::from_millis(1),
            _ => unreachable!("another function applies this operation"),
        }
        None
    }

    /// Carries out the consequences of an operation, as the service does.
    fn settle(&mut self) {
        let World { state, locks, .. } = &mut self.world;
        let changes: Vec<_> = std::iter::from_fn(|| state.poll_record()).collect();
        for change in &changes {
            self.stored.remove(change.owner());
            if matches!(change, RecordChange::Add(_) | RecordChange::Forfeit(_)) {
                self.stored.insert(change.owner().clone());
            }
        }
        state.records_stored(&changes, true);
        while state.poll_reduction().is_some() {}
        while let Some(event) = state.poll_event() {
            if let Event::Removed(client) = event {
                locks.release_client(crate::sharing::locks::LockClient::V4(client.0));
            }
        }
    }

    /// Checks the invariants.
    fn check(&self) {
        let World { state, now, .. } = &self.world;
        state.check();
        for (_, client) in state.clients.iter().filter(|(_, client)| client.confirmed) {
            let (stored, owner) = (client.stored == Stored::Current, &client.owner.ownerid.0);
            if !state.in_grace() && !matches!(client.record, Record::Pending) {
                let is_stored = stored && client.record != Record::None;
                assert_eq!(self.stored.contains(owner), is_stored, "{:?} {:?}", client.record, client.stored);
            }
            assert!(stored || client.time_since_request(*now) > LEASE, "the record of an active client must be stored");
        }
    }
}

impl State<&'static str, char> {
    /// Checks that each open shard answers as the state would.
    fn check_shards(&self) {
        for (id, client) in self.clients.iter() {
            let found = self.shards().of_client(id).expect("each client must have a shard");
            assert!(Arc::ptr_eq(&found, &client.shard));
            for (other, used) in client.shard.uses().all() {
                let stateid = Stateid4 { seqid: used.seqid, other };
                assert_eq!(self.stateids.resolve(id, Some(&used.file), &stateid), Ok(other));
                let access = match &self.stateids.entry(&other).kind {
                    stateid::Kind::Open(open) => open.access,
                    stateid::Kind::Lock { open, .. } => self.stateids.open(open).access,
                    stateid::Kind::Recallable(held) if held.grant.may_write() => OPEN4_SHARE_ACCESS_BOTH,
                    stateid::Kind::Recallable(_) => OPEN4_SHARE_ACCESS_READ,
                };
                let may = |wanted| access & wanted != 0;
                assert_eq!(used.may_read, may(OPEN4_SHARE_ACCESS_READ));
                assert_eq!(used.may_write, may(OPEN4_SHARE_ACCESS_WRITE));
            }
            let Some(opened) = client.shard.opened() else { continue };
            assert!(client.confirmed && !client.evicted && client.stored == Stored::Current);
            assert!(
                !self.stateids.has_revoked(id),
                "an open shard would renew the lease of a client with revoked state"
            );
            let sessions = client
                .sessions()
                .map(|session| (session.id, session.connections().collect(), self.status_flags(id, session.id)));
            assert_eq!(opened, sessions.collect::<Vec<(_, Vec<_>, _)>>());
        }
    }

    /// Returns the observable state as text.
    fn observable(&self) -> String {
        let Self { clients, by_connection, stateids, load, .. } = self;
        let owners = (&self.owners, self.grace.as_ref(), &self.records, &self.events);
        format!("{clients:?} {by_connection:?} {} {load:?} {owners:?}", stateids.total())
    }

    /// Checks that all tables agree.
    pub(super) fn check(&self) {
        self.clients.check();
        self.check_shards();
        let is_client = |id| self.clients.find(id).is_some_and(|client| client.confirmed);
        self.stateids.check(is_client);
        self.owners.check(is_client);
        let sessions = self.clients.iter().flat_map(|(_, client)| client.sessions());
        let bound = sessions.flat_map(|session| session.connections().map(|connection| (connection, session.id)));
        let bound: BTreeSet<_> = bound.collect();
        let listed = |(connection, ids): (&ConnectionId, &Vec<Sessionid4>)| {
            ids.iter().map(|id| (*connection, *id)).collect::<Vec<_>>()
        };
        let listed: Vec<_> = self.by_connection.iter().flat_map(listed).collect();
        assert_eq!(listed.len(), bound.len(), "each connection must be listed once");
        assert_eq!(listed.into_iter().collect::<BTreeSet<_>>(), bound);
        let floors = self.options.replies_max / 2;
        let granted = self.clients.hosts().granted(hosts::Group::NotAdmitted).0;
        assert!(floors + granted <= self.options.replies_max, "the reply cache must be bounded");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    #[test]
    fn random_operations_keep_the_invariants(grace: bool, ops in prop::collection::vec(ops(), 1..120)) {
        let mut model = Model::new(grace);
        for op in ops {
            let before = model.world.state.observable();
            let failed = model.apply(&op);
            if let Some(status) = failed {
                prop_assert_eq!(before, model.world.state.observable(), "{:?} failed with {:?}", op, status);
            }
            model.settle();
            model.check();
        }
    }
}
