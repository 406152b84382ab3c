//! [`Shared`]: a client with its server, as all users of a mount share it: how requests are made, what happens when the
//! server has forgotten the client, and how the lease is kept.
//!
//! Read RFC 8881 §2.10.13 and §8.4.2 (recovery) first. Whoever finds out first that the server has forgotten introduces the
//! client again, with the others waiting, and what was open and locked is reclaimed. Requests whose answers were lost are
//! sent anew.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering::Relaxed},
    },
    time::Duration,
};

use buf::{Buffer, SharedBuffer};
use bytes::Bytes;
use nfs::v4::{compound::*, *};
use parking_lot::Mutex;
use tokio::time::Instant;
use xdr::Opaque;

use super::{
    callback::Backchannel,
    compound::{Compound, Results, failure},
    identity,
    moved::Moves,
    opens::Opens,
    session::Session,
    trunk::{BACKGROUND, Trunk},
    zero::Zero,
};
use crate::{Error, ErrorKind, Handle, Result, backoff::Backoff, deadline::Deadline};

/// This client with its server: what all users of a mount share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub trunk: Trunk,
    pub minor: u32,
    pub client: ClientOwner4,
    pub runtime: tokio::runtime::Handle,
    pub opens: Opens,
    pub moves: Moves,
    /// What has moved here from another server is yet to be reclaimed.
    pub arriving: AtomicBool,
    pub backchannel: Arc<Backchannel>,
    standing: Mutex<Standing>,
    /// Only one recovers at a time.
    pub recovering: tokio::sync::Mutex<()>,
    /// The server's wishes are being looked after.
    pub heeding: AtomicBool,
    /// Seconds.
    lease: AtomicU32,
    /// When the server last said that the client is there.
    renewed: Mutex<Instant>,
}

/// What the server knows this client by, and how requests are made.
#[derive(Clone, Debug)]
enum Standing {
    /// From version 4.1 on.
    Session(Arc<Session>),
    /// Version 4.0.
    Zero(Arc<Zero>),
}

/// What has come of a request.
pub(crate) enum Sent {
    /// Results, or why there are none and will not be; and the caller's buffer, unless a transport still had it at the
    /// deadline.
    Answered(Result<CompoundRes>, Option<SharedBuffer>),
    /// The server has forgotten this client, or its session: it is to be sent anew after recovery.
    Lost(Option<Buffer>),
    /// The same, but it is about state that is no more: after recovery, this is the answer.
    Outdated(CompoundRes, Option<SharedBuffer>),
}

impl Standing {
    async fn send(&self, shared: &Arc<Shared>, compound: &Compound, sink: Option<Buffer>, deadline: &Deadline) -> Sent {
        match self {
            Standing::Session(session) => session.send(shared, compound, sink, deadline).await,
            Standing::Zero(zero) => zero.send(shared, compound, sink, deadline).await,
        }
    }

    fn is(&self, other: &Standing) -> bool {
        match (self, other) {
            (Standing::Session(one), Standing::Session(other)) => Arc::ptr_eq(one, other),
            (Standing::Zero(one), Standing::Zero(other)) => Arc::ptr_eq(one, other),
            _ => false,
        }
    }
}

impl Shared {
    /// Introduces the client by the first connection, and makes a session. Returns what the server says of itself, too, from
    /// version 4.1 on. An heir has a name already, and something to reclaim: all but [`arrived`](Self::arrived).
    ///
    /// # Errors
    /// The server does not speak this minor version, or refuses.
    pub async fn establish(
        trunk: Trunk,
        minor: u32,
        (backchannel, heir): (Arc<Backchannel>, Option<ClientOwner4>),
        deadline: &Deadline,
    ) -> Result<(Arc<Self>, Option<ExchangeIdOk>)> {
        let is_heir = heir.is_some();
        let owner = heir.unwrap_or_else(identity::client_owner);
        let first = trunk.first().clone();
        let (standing, exchanged) = if minor == 0 {
            (Standing::Zero(Zero::introduce(&first, owner.clone(), is_heir, deadline).await?), None)
        } else {
            let exchanged = identity::exchange_id(&first, minor, &owner, deadline).await?;
            let client = (exchanged.clientid, exchanged.sequenceid);
            let session = Session::create(&first, minor, client, &backchannel, deadline).await?;
            (Standing::Session(session), Some(exchanged))
        };
        let shared = Arc::new(Self {
            trunk,
            minor,
            client: owner,
            runtime: tokio::runtime::Handle::current(),
            opens: Opens::default(),
            moves: Moves::default(),
            arriving: AtomicBool::new(is_heir),
            backchannel,
            standing: Mutex::new(standing),
            recovering: tokio::sync::Mutex::default(),
            heeding: AtomicBool::new(false),
            lease: AtomicU32::new(LEASE_UNKNOWN),
            renewed: Mutex::new(Instant::now()),
        });
        shared.backchannel.serve(&shared);
        // RFC 8881 §18.51.3: before the first open, also of a client that has nothing to reclaim.
        if !is_heir {
            shared.reclaim_complete(None, deadline).await?;
        }
        Ok((shared, exchanged))
    }

    /// The session, if the version has one.
    pub fn session(&self) -> Option<Arc<Session>> {
        match &*self.standing.lock() {
            Standing::Session(session) => Some(session.clone()),
            Standing::Zero(_) => None,
        }
    }

    /// An owner of opens or locks.
    pub fn owner(&self, name: &[u8]) -> StateOwner4 {
        // Version 4.0 puts its own there when it sends; RFC 8881 §18.16.3: with a session, the server knows.
        StateOwner4 { clientid: Clientid4(0), owner: Opaque(Bytes::copy_from_slice(name)) }
    }

    /// A stateid as it is used with data: RFC 8881 §8.2.2: a seqid of zero is the most recent state, whatever others do to it
    /// meanwhile. Version 4.0 knows nothing of that.
    pub fn latest(&self, stateid: Stateid4) -> Stateid4 {
        if self.minor == 0 { stateid } else { Stateid4 { seqid: 0, ..stateid } }
    }

    /// For how long the server keeps the state of a client that is silent.
    pub fn lease(&self) -> Duration {
        Duration::from_secs(self.lease.load(Relaxed).max(1).into())
    }

    pub fn set_lease(&self, seconds: u32) {
        self.lease.store(seconds, Relaxed);
    }

    /// How long what the server has promised holds at least: until the lease, which began when a request was sent that has been
    /// answered, could end. `None` if it may have.
    pub fn lease_left(&self) -> Option<Duration> {
        let lease = self.lease();
        // A quarter for the way there and back.
        (lease - lease / 4).checked_sub(self.renewed.lock().elapsed())
    }

    /// The server has just answered for the client: its lease begins anew.
    pub fn renewed(&self) {
        *self.renewed.lock() = Instant::now();
    }

    /// Executes a compound; asks again while the server says "later". Results are those of success.
    ///
    /// # Errors
    /// That of the operation that failed, or what can fail with any call.
    pub async fn run(self: &Arc<Self>, compound: &Compound, deadline: &Deadline) -> Result<Results> {
        let mut backoff = Backoff::new();
        loop {
            match self.run_once(compound, None, deadline).await.0 {
                Err(error) if backoff.later(self.trunk.first(), &error, deadline).await => {}
                result => return result,
            }
        }
    }

    /// Executes a compound with the caller's buffer for its data. The buffer comes back with the results, or beside the
    /// error unless a transport still had it at the deadline.
    pub async fn run_once(
        self: &Arc<Self>,
        compound: &Compound,
        sink: Option<Buffer>,
        deadline: &Deadline,
    ) -> (Result<Results>, Option<SharedBuffer>) {
        match self.execute(compound, sink, deadline).await {
            (Ok(res), sink) if res.status == Nfsstat4::Ok => {
                (Ok(Results::new(res.resarray.into_iter(), compound.name, sink)), None)
            }
            (Ok(res), sink) => (Err(self.failed(compound, &res)), sink),
            (Err(error), sink) => (Err(error), sink),
        }
    }

    /// Executes a compound, whatever comes of it.
    ///
    /// # Errors
    /// It was not answered, or not in a way that makes sense.
    pub async fn execute(
        self: &Arc<Self>,
        compound: &Compound,
        mut sink: Option<Buffer>,
        deadline: &Deadline,
    ) -> (Result<CompoundRes>, Option<SharedBuffer>) {
        let mut backoff = Backoff::new();
        let mut lost_before = false;
        loop {
            let standing = self.standing.lock().clone();
            let (back, answer) = match standing.send(self, compound, sink, deadline).await {
                // RFC 7530 §13.1.5: of whatever it is, the server says it until it has been asked where that is.
                Sent::Answered(Ok(res), back) if res.status == Nfsstat4::LeaseMoved => {
                    self.runtime.spawn(self.look_for_moves());
                    if !backoff.waits(deadline).await {
                        return (Err(self.trunk.first().late(compound.name)), back);
                    }
                    sink = back.and_then(|back| back.into_buffer().ok());
                    continue;
                }
                Sent::Answered(result, sink) => return (result, sink),
                Sent::Lost(back) => (back.map(SharedBuffer::from), None),
                Sent::Outdated(res, back) => (back, Some(res)),
            };
            match (self.recover(&standing, deadline).await, answer) {
                (Err(error), _) => return (Err(error), back),
                (Ok(()), Some(res)) => return (Ok(res), back),
                (Ok(()), None) => {}
            }
            if lost_before && !backoff.waits(deadline).await {
                return (Err(self.trunk.first().late(compound.name)), back);
            }
            lost_before = true;
            sink = back.and_then(|back| back.into_buffer().ok());
        }
    }

    /// Executes a compound without recovery, for recovery's own.
    ///
    /// # Errors
    /// As of [`run`](Self::run); and whatever would have to be recovered from.
    pub async fn plain(self: &Arc<Self>, compound: &Compound, deadline: &Deadline) -> Result<Results> {
        let mut backoff = Backoff::new();
        loop {
            let res = self.ask(compound, deadline).await?;
            if res.status == Nfsstat4::Ok {
                return Ok(Results::new(res.resarray.into_iter(), compound.name, None));
            }
            let error = self.failed(compound, &res);
            if !(backoff.later(self.trunk.first(), &error, deadline).await) {
                return Err(error);
            }
        }
    }

    /// The same once, whatever comes of it.
    ///
    /// # Errors
    /// It was not answered, or the server has forgotten this client.
    pub async fn ask(self: &Arc<Self>, compound: &Compound, deadline: &Deadline) -> Result<CompoundRes> {
        let standing = self.standing.lock().clone();
        match standing.send(self, compound, None, deadline).await {
            Sent::Answered(result, _) => result,
            Sent::Outdated(res, _) => Ok(res),
            Sent::Lost(_) => Err(failure(Nfsstat4::StaleClientid, compound.name)),
        }
    }

    /// The error of a compound that has failed: of its last operation.
    fn failed(&self, compound: &Compound, res: &CompoundRes) -> Error {
        let operation = res.resarray.last().map_or(compound.name, |last| last.opnum().name());
        failure(res.status, operation).on(self.trunk.first().server())
    }

    /// Introduces this client again, unless somebody has since it was `lost`.
    ///
    /// # Errors
    /// The server does not want this client any more.
    async fn recover(self: &Arc<Self>, lost: &Standing, deadline: &Deadline) -> Result<()> {
        let began = Instant::now();
        let _one = self.recovering.lock().await;
        if !self.standing.lock().is(lost) {
            deadline.excuse(began.elapsed());
            return Ok(());
        }
        tracing::info!(server = %self.trunk.first().server(), "the server has forgotten this client or its session");
        let forgotten = match lost {
            Standing::Session(dead) => self.another_session(dead, deadline).await?,
            Standing::Zero(dead) => {
                let zero = dead.again(self.trunk.first(), deadline).await?;
                *self.standing.lock() = Standing::Zero(zero);
                true
            }
        };
        if forgotten {
            // Not by this request's deadline: others need what is reclaimed too. It goes by the new session, whose own
            // loss in the meantime the next request finds.
            Box::pin(self.reclaim(&Deadline::after(BACKGROUND))).await;
        }
        deadline.excuse(began.elapsed());
        Ok(())
    }

    /// Makes a session in the place of a dead one; returns whether the server has forgotten the client as well.
    async fn another_session(&self, dead: &Session, deadline: &Deadline) -> Result<bool> {
        let program = self.trunk.first();
        let mut client = (dead.clientid, dead.next);
        let mut confirmed = true;
        let mut backoff = Backoff::new();
        let session = loop {
            let error = match Session::create(program, self.minor, client, &self.backchannel, deadline).await {
                Ok(session) => break session,
                Err(error) => error,
            };
            match error.kind() {
                ErrorKind::Nfs4(Nfsstat4::StaleClientid | Nfsstat4::SeqMisordered | Nfsstat4::Expired) => {
                    let ok = identity::exchange_id(program, self.minor, &self.client, deadline).await?;
                    client = (ok.clientid, ok.sequenceid);
                    confirmed &= ok.flags & EXCHGID4_FLAG_CONFIRMED_R != 0;
                }
                _ if backoff.later(self.trunk.first(), &error, deadline).await => {}
                _ => return Err(error),
            }
        };
        *self.standing.lock() = Standing::Session(session.clone());
        dead.over();
        // RFC 8881 §2.10.3.1: by SEQUENCE a connection is bound to the fore channel only.
        self.bind_all(&session, deadline).await;
        // A record that was confirmed before is this client's: its state is there still.
        Ok(!confirmed || session.clientid != dead.clientid)
    }

    /// Reclaims what was open and locked, and says that this is all.
    pub async fn reclaim(self: &Arc<Self>, deadline: &Deadline) {
        self.opens.reclaim(self, deadline).await;
        if let Err(error) = self.reclaim_complete(None, deadline).await {
            tracing::warn!(%error, "the server does not take the end of reclaiming");
        }
    }

    /// All of a file system that has moved here is reclaimed; of the server's only if this client is new to it.
    pub async fn arrived(self: &Arc<Self>, root: &Handle, is_new: bool, deadline: &Deadline) {
        self.arriving.store(false, Relaxed);
        // RFC 8881 §18.51.3: of all once for each client, of a file system whenever it has come from another server.
        for of in [is_new.then_some(None), Some(Some(root))].into_iter().flatten() {
            if let Err(error) = self.reclaim_complete(of, deadline).await {
                tracing::debug!(%error, "the server does not take the end of reclaiming");
            }
        }
    }

    /// Of everything, or of the file system of this root.
    async fn reclaim_complete(self: &Arc<Self>, root: Option<&Handle>, deadline: &Deadline) -> Result<()> {
        if self.minor == 0 {
            return Ok(());
        }
        let args = ReclaimCompleteArgs { one_fs: root.is_some() };
        let compound = root.map_or(Compound::new("RECLAIM_COMPLETE"), |root| Compound::on("RECLAIM_COMPLETE", root));
        let compound = compound.op(Argop4::ReclaimComplete(args), 0).once();
        match self.plain(&compound, deadline).await {
            Err(error) if error.status4() == Some(Nfsstat4::CompleteAlready) => Ok(()),
            result => result.map(drop),
        }
    }

    /// Keeps the lease while nothing else does, and closes what nobody uses. Ends with the last user.
    pub fn keep(self: &Arc<Self>) {
        let weak = Arc::downgrade(self);
        self.runtime.spawn(async move {
            loop {
                tokio::time::sleep(HOUSEKEEPING).await;
                let Some(shared) = weak.upgrade() else { return };
                let deadline = &Deadline::strict(shared.lease());
                shared.opens.close_idle(&shared, deadline).await;
                if shared.renewed.lock().elapsed() >= shared.lease() / 3 {
                    // RFC 8881 §8.3: SEQUENCE alone renews.
                    let renew = match shared.minor {
                        0 => Compound::new("RENEW").op(Argop4::Renew(ClientIdArgs { clientid: Clientid4(0) }), 0),
                        _ => Compound::new("SEQUENCE"),
                    };
                    if let Err(error) = shared.run(&renew, deadline).await {
                        tracing::debug!(%error, "the lease is not renewed");
                    }
                }
            }
        });
    }

    /// Takes leave of the server: closes, returns and forgets everything.
    ///
    /// # Errors
    /// The server cannot be told; it forgets by itself when the lease has expired.
    pub async fn leave(self: &Arc<Self>, deadline: &Deadline) -> Result<()> {
        self.opens.close_all(self, deadline).await;
        let Some(session) = self.session() else { return Ok(()) };
        session.over();
        let program = self.trunk.first();
        identity::destroy_session(program, self.minor, session.id, deadline).await?;
        match identity::destroy_clientid(program, self.minor, session.clientid, deadline).await {
            // What has moved cannot be closed here.
            Err(error) if error.status4() == Some(Nfsstat4::ClientidBusy) && self.moves.any() => Ok(()),
            result => result,
        }
    }
}

impl Error {
    /// Whether the server wants to be asked again later.
    pub(crate) fn is_later(&self) -> bool {
        self.status() == Some(nfs::v3::Nfsstat3::Jukebox) || self.status4() == Some(Nfsstat4::Grace)
    }
}

/// Seconds, until the server has said.
const LEASE_UNKNOWN: u32 = 30;
const HOUSEKEEPING: Duration = Duration::from_secs(1);
