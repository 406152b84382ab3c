//! A state with clients, for the tests of the operations.

mod bounds;
mod delegation;
mod holds;
mod layout;
mod lock;
mod model;
mod open;
mod protection;
mod recall;
mod recover;
mod reduce;
mod session;
mod shard;
mod upkeep;
mod v40;

use std::{
    net::{IpAddr, Ipv4Addr},
    sync::Arc,
};

use rpc::Xprtsec;

use super::{
    client::Origin,
    slot::{Begun, Fingerprint},
    transitions::{
        lock::LockFailure,
        open::{Claim, OpenRequest, OpenTarget, Opened},
    },
    *,
};
use crate::sharing::locks::{Limits, LockTable};

const LEASE: Duration = Duration::from_secs(90);
const OWNER: Principal = Principal::Sys { uid: 0, gid: 0 };
const OTHER: Principal = Principal::Sys { uid: 1, gid: 1 };
const TCP: Connection = Connection { id: ConnectionId(1), duplex: true, tls: Xprtsec::None };

struct World {
    state: State<&'static str, char>,
    locks: LockTable<char>,
    now: Instant,
    /// The address from which clients introduce themselves.
    peer: IpAddr,
    /// The protection of the connections over which they do so.
    tls: Xprtsec,
}

/// Each test also checks that the tables of its state agree at the end.
impl Drop for World {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.state.check();
        }
    }
}

/// The principal `OWNER`, on this host.
fn local() -> Origin<'static> {
    Origin {
        principal: &OWNER,
        has_integrity: true,
        callback_flavor: None,
        peer: Ipv4Addr::LOCALHOST.into(),
        admitted: true,
        tls: Xprtsec::None,
    }
}

fn channel() -> ChannelAttrs4 {
    ChannelAttrs4 {
        headerpadsize: 64,
        maxrequestsize: 1 << 20,
        maxresponsesize: 1 << 20,
        maxresponsesize_cached: 8 << 10,
        maxoperations: 16,
        maxrequests: 64,
        rdma_ird: None,
    }
}

fn exchange(name: &str, verifier: u8, flags: u32) -> ExchangeIdArgs {
    ExchangeIdArgs {
        clientowner: ClientOwner4 { verifier: [verifier; 8], ownerid: name.into() },
        flags,
        state_protect: StateProtect4A::None,
        client_impl_id: None,
    }
}

fn create(clientid: Clientid4, sequence: u32) -> CreateSessionArgs {
    CreateSessionArgs {
        clientid,
        sequence: Sequenceid4(sequence),
        flags: CREATE_SESSION4_FLAG_CONN_BACK_CHAN,
        fore_chan_attrs: channel(),
        back_chan_attrs: ChannelAttrs4 { maxoperations: 2, maxrequests: 1, ..channel() },
        cb_program: 0x4000_0000,
        sec_parms: Default::default(),
    }
}

fn bind(sessid: Sessionid4, dir: ChannelDirFromClient4) -> BindConnToSessionArgs {
    BindConnToSessionArgs { sessid, dir, use_conn_in_rdma_mode: false }
}

/// Returns an OPEN to read, by a server that cannot recall delegations.
fn opening(client: Clientid4, owner: Bytes) -> OpenRequest {
    OpenRequest {
        client,
        owner,
        access: OPEN4_SHARE_ACCESS_READ,
        deny: OPEN4_SHARE_DENY_NONE,
        want: 0,
        claim: Claim::New,
        can_recall: false,
        call: None,
    }
}

impl World {
    fn new() -> Self {
        Self::with(|_| {})
    }

    /// Creates a world with changed options.
    fn with(change: impl FnOnce(&mut StateOptions)) -> Self {
        let limits = ChannelLimits {
            request_max: 256 << 10,
            response_max: 256 << 10,
            response_cached_max: 4 << 10,
            operations_max: 50,
            slots_max: 8,
        };
        let mut options = StateOptions {
            server_owner: ServerOwner4 { minor_id: 0, major_id: "server".into() },
            server_scope: Bytes::from_static(b"scope"),
            implementation: None,
            flags: EXCHGID4_FLAG_USE_NON_PNFS,
            lease: LEASE,
            channel: limits,
            clients_max: 8,
            client_sessions_max: 3,
            sessions_max: 32,
            replies_max: 4 << 20,
            client_stateids_max: 100,
            stateids_max: 240,
            owners_max: 64,
            delegations_max: 8,
            layouts_max: 8,
            slots_max: 16,
        };
        change(&mut options);
        Self {
            state: State::new(options, 7, [1; 32]),
            locks: LockTable::new(Limits::default()),
            now: Instant::now(),
            peer: Ipv4Addr::LOCALHOST.into(),
            tls: Xprtsec::None,
        }
    }

    fn exchange(&mut self, args: &ExchangeIdArgs, principal: &Principal) -> Result<ExchangeIdOk, Nfsstat4> {
        let origin = Origin {
            principal,
            has_integrity: true,
            callback_flavor: None,
            peer: self.peer,
            admitted: true,
            tls: self.tls,
        };
        self.state.exchange_id(self.now, 1, args, origin)
    }

    fn create(&mut self, args: &CreateSessionArgs) -> Result<CreateSessionOk, Nfsstat4> {
        self.state.create_session(self.now, args, &OWNER, TCP)
    }

    /// Adds a confirmed client with a session.
    fn client(&mut self, name: &str, verifier: u8) -> (Clientid4, Sessionid4) {
        let id = self.exchange(&exchange(name, verifier, 0), &OWNER).unwrap().clientid;
        (id, self.create(&create(id, 1)).unwrap().sessionid)
    }

    fn sequence(
        &mut self,
        sessionid: Sessionid4,
        sequence: u32,
        connection: u64,
    ) -> Result<Sequenced<&'static str>, Nfsstat4> {
        let args = SequenceArgs {
            sessionid,
            sequenceid: Sequenceid4(sequence),
            slotid: Slotid4(0),
            highest_slotid: Slotid4(0),
            cachethis: true,
        };
        let fingerprint = Fingerprint { principal: OWNER, checksum: u64::from(sequence) };
        let request = Request { args: &args, fingerprint, len: 1000, operations: 3 };
        // Try the shard first, as the service does.
        let shard = self.state.shards().of_session(&sessionid);
        match shard.and_then(|shard| shard.sequence(self.now, &request, ConnectionId(connection))) {
            Some(sequenced) => Ok(sequenced),
            None => self.state.sequence(self.now, request, Connection { id: ConnectionId(connection), ..TCP }),
        }
    }

    /// Ends a request, as the service does.
    fn finish(&mut self, session: Sessionid4, ticket: Ticket) {
        let ended = match self.state.shards().of_session(&session) {
            Some(shard) => shard.finish(self.now, session, (ticket, "reply", false)),
            None => Err((ticket, "reply")),
        };
        if let Err((ticket, reply)) = ended {
            self.state.finish(self.now, session, ticket, reply, false);
        }
    }

    /// Checks a READ or WRITE, as the service does.
    fn io_of(&mut self, client: Clientid4, file: char, stateid: &Stateid4, write: bool) -> Result<(), Nfsstat4> {
        let shard = self.state.clients().find(client).map(|client| client.shard.clone());
        match shard.is_some_and(|shard| shard.permits_io(&file, stateid, write)) {
            true => Ok(()),
            false => self.state.check_io(&mut self.locks, client, &file, stateid, write, self.now),
        }
    }

    fn call(&mut self, sessionid: Sessionid4, sequence: u32, connection: u64) -> SequenceOk {
        let sequenced = self.sequence(sessionid, sequence, connection).unwrap();
        let Begun::Execute(ticket) = sequenced.begun else { panic!("the request is new") };
        self.finish(sessionid, ticket);
        sequenced.result
    }

    /// Adds a client that has completed its reclaims and may open files.
    fn ready(&mut self, name: &str) -> (Clientid4, Sessionid4) {
        let (id, session) = self.client(name, 1);
        self.state.reclaim_complete(id, &ReclaimCompleteArgs { one_fs: false }).unwrap();
        (id, session)
    }

    fn open(&mut self, client: Clientid4, owner: &'static str, access: u32, deny: u32) -> Result<Stateid4, Nfsstat4> {
        self.open_how(client, owner, (access, deny), false)
    }

    fn reclaim(&mut self, client: Clientid4, owner: &'static str) -> Result<Stateid4, Nfsstat4> {
        self.open_how(client, owner, (OPEN4_SHARE_ACCESS_WRITE, OPEN4_SHARE_DENY_NONE), true)
    }

    fn open_how(
        &mut self,
        client: Clientid4,
        owner: &'static str,
        (access, deny): (u32, u32),
        reclaim: bool,
    ) -> Result<Stateid4, Nfsstat4> {
        let owner = Bytes::from_static(owner.as_bytes());
        let claim = if reclaim { Claim::Reclaim(OpenDelegationType4::None) } else { Claim::New };
        let request = OpenRequest { access, deny, claim, ..opening(client, owner) };
        self.open_by(request).map(|opened| opened.stateid)
    }

    /// Executes an OPEN, as the service does. The client is not stored; tests of recovery records store it themselves.
    fn open_by(&mut self, request: OpenRequest) -> Result<Opened, Nfsstat4> {
        let client = request.client;
        let plan = self.state.plan_open(&self.locks, request, self.now)?;
        if let Some(owner) = plan.unstored_owner() {
            self.state.client_stored(client, owner, false);
        }
        let target = OpenTarget { file: &'f', change: Some(7), truncates: false };
        self.state.commit_open(&mut self.locks, &plan, target, self.now)
    }

    fn events(&mut self) -> Vec<Event> {
        std::iter::from_fn(|| self.state.poll_event()).collect()
    }
}
