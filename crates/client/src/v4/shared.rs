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
use nfs::v4::{compound::*, *};
use parking_lot::Mutex;
use tokio::time::Instant;

use super::{
    callback::Backchannel,
    compound::{Compound, Results, failure},
    identity,
    opens::Opens,
    session::{Sent, Session},
    trunk::{BACKGROUND, Trunk},
};
use crate::{Error, ErrorKind, Result, backoff::Backoff};

/// This client with its server: what all users of a mount share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub trunk: Trunk,
    pub minor: u32,
    pub owner: ClientOwner4,
    pub runtime: tokio::runtime::Handle,
    pub opens: Opens,
    pub backchannel: Arc<Backchannel>,
    state: Mutex<Known>,
    /// Only one recovers at a time.
    pub recovering: tokio::sync::Mutex<()>,
    /// The server's wishes are being looked after.
    pub heeding: AtomicBool,
    /// Seconds.
    lease: AtomicU32,
    /// When the server last said that the client is there.
    renewed: Mutex<Instant>,
}

/// What the server knows this client by.
#[derive(Clone, Debug)]
struct Known {
    clientid: Clientid4,
    /// Of the next CREATE_SESSION.
    sequence: Sequenceid4,
    session: Arc<Session>,
}

impl Shared {
    /// Introduces the client by the first connection, and makes a session.
    ///
    /// # Errors
    /// The server does not speak this minor version, or refuses.
    pub async fn establish(
        trunk: Trunk,
        minor: u32,
        backchannel: Arc<Backchannel>,
        deadline: Instant,
    ) -> Result<(Arc<Self>, ExchangeIdOk)> {
        let owner = identity::client_owner();
        let first = trunk.first().clone();
        let exchanged = identity::exchange_id(&first, minor, &owner, deadline).await?;
        let (clientid, sequence) = (exchanged.clientid, exchanged.sequenceid);
        let made = identity::create_session(&first, minor, clientid, sequence, deadline).await?;
        let session = Session::new(&made);
        backchannel.session(made.sessionid, made.back_chan_attrs.maxrequests);
        let sequence = Sequenceid4(sequence.0.wrapping_add(1));
        let shared = Arc::new(Self {
            trunk,
            minor,
            owner,
            runtime: tokio::runtime::Handle::current(),
            opens: Opens::default(),
            backchannel,
            state: Mutex::new(Known { clientid, sequence, session }),
            recovering: tokio::sync::Mutex::default(),
            heeding: AtomicBool::new(false),
            lease: AtomicU32::new(LEASE_UNKNOWN),
            renewed: Mutex::new(Instant::now()),
        });
        shared.backchannel.serve(&shared);
        // RFC 8881 §18.51.3: before the first open, also of a client that has nothing to reclaim.
        shared.reclaim_complete(deadline).await?;
        Ok((shared, exchanged))
    }

    /// The session.
    pub fn session(&self) -> Arc<Session> {
        self.state.lock().session.clone()
    }

    /// The client's name at the server.
    pub fn clientid(&self) -> Clientid4 {
        self.state.lock().clientid
    }

    /// For how long the server keeps the state of a client that is silent.
    pub fn lease(&self) -> Duration {
        Duration::from_secs(self.lease.load(Relaxed).max(1).into())
    }

    pub fn set_lease(&self, seconds: u32) {
        self.lease.store(seconds, Relaxed);
    }

    /// The server has just answered for the client: its lease begins anew.
    pub fn renewed(&self) {
        *self.renewed.lock() = Instant::now();
    }

    /// Executes a compound; asks again while the server says "later". Results are those of success.
    ///
    /// # Errors
    /// That of the operation that failed, or what can fail with any call.
    pub async fn run(self: &Arc<Self>, compound: &Compound, deadline: Instant) -> Result<Results> {
        let mut backoff = Backoff::new();
        loop {
            match self.run_once(compound, None, deadline).await.0 {
                Err(error) if error.is_later() && backoff.waits(deadline).await => {}
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
        deadline: Instant,
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
        deadline: Instant,
    ) -> (Result<CompoundRes>, Option<SharedBuffer>) {
        loop {
            let session = self.session();
            match session.send(self, compound, sink, deadline).await {
                Sent::Answered(result, sink) => return (result, sink),
                Sent::Lost(back) => sink = back,
            }
            if let Err(error) = self.recover(&session, deadline).await {
                return (Err(error), sink.map(SharedBuffer::from));
            }
        }
    }

    /// Executes a compound without recovery, for recovery's own.
    ///
    /// # Errors
    /// As of [`run`](Self::run); and whatever would have to be recovered from.
    pub async fn plain(self: &Arc<Self>, compound: &Compound, deadline: Instant) -> Result<Results> {
        let session = self.session();
        let mut backoff = Backoff::new();
        loop {
            let res = match session.send(self, compound, None, deadline).await {
                Sent::Answered(result, _) => result?,
                Sent::Lost(_) => return Err(failure(Nfsstat4::BadSession, compound.name)),
            };
            if res.status == Nfsstat4::Ok {
                return Ok(Results::new(res.resarray.into_iter(), compound.name, None));
            }
            let error = self.failed(compound, &res);
            if !(error.is_later() && backoff.waits(deadline).await) {
                return Err(error);
            }
        }
    }

    /// The error of a compound that has failed: of its last operation.
    fn failed(&self, compound: &Compound, res: &CompoundRes) -> Error {
        let operation = res.resarray.last().map_or(compound.name, |last| last.opnum().name());
        failure(res.status, operation).on(self.trunk.first().server())
    }

    /// Makes another session in the place of `dead`, unless somebody has.
    ///
    /// # Errors
    /// The server does not want this client any more.
    async fn recover(self: &Arc<Self>, dead: &Arc<Session>, deadline: Instant) -> Result<()> {
        let _one = self.recovering.lock().await;
        if !Arc::ptr_eq(&self.session(), dead) {
            return Ok(());
        }
        tracing::info!(server = %self.trunk.first().server(), "the session is gone; making another");
        let renamed = self.another_session(deadline).await?;
        dead.over();
        // RFC 8881 §2.10.3.1: by SEQUENCE a connection is bound to the fore channel only.
        self.bind_all(deadline).await;
        if renamed {
            // Not by this request's deadline: others need what is reclaimed too. It goes by the new session, whose own
            // loss in the meantime the next request finds.
            Box::pin(self.reclaim(Instant::now() + BACKGROUND)).await;
        }
        Ok(())
    }

    /// Makes a session; returns whether the server has had to be told again who this client is.
    async fn another_session(&self, deadline: Instant) -> Result<bool> {
        let program = self.trunk.first();
        let mut backoff = Backoff::new();
        let mut renamed = false;
        loop {
            let Known { clientid, sequence, .. } = self.state.lock().clone();
            let error = match identity::create_session(program, self.minor, clientid, sequence, deadline).await {
                Ok(made) => {
                    let session = Session::new(&made);
                    self.backchannel.session(made.sessionid, made.back_chan_attrs.maxrequests);
                    let mut state = self.state.lock();
                    state.sequence = Sequenceid4(sequence.0.wrapping_add(1));
                    state.session = session;
                    return Ok(renamed);
                }
                Err(error) => error,
            };
            match error.kind() {
                ErrorKind::Nfs4(Nfsstat4::StaleClientid | Nfsstat4::SeqMisordered | Nfsstat4::Expired) => {
                    let ok = identity::exchange_id(program, self.minor, &self.owner, deadline).await?;
                    let mut state = self.state.lock();
                    // A confirmed record of the same name is this client's: its state is there still.
                    renamed |= state.clientid != ok.clientid;
                    (state.clientid, state.sequence) = (ok.clientid, ok.sequenceid);
                }
                _ if error.is_later() && backoff.waits(deadline).await => {}
                _ => return Err(error),
            }
        }
    }

    /// Reclaims what was open and locked, and says that this is all.
    pub async fn reclaim(self: &Arc<Self>, deadline: Instant) {
        self.opens.reclaim(self, deadline).await;
        if let Err(error) = self.reclaim_complete(deadline).await {
            tracing::warn!(%error, "the server does not take the end of reclaiming");
        }
    }

    async fn reclaim_complete(self: &Arc<Self>, deadline: Instant) -> Result<()> {
        let args = ReclaimCompleteArgs { one_fs: false };
        let compound = Compound::new("RECLAIM_COMPLETE").op(Argop4::ReclaimComplete(args), 0).once();
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
                let deadline = Instant::now() + shared.lease();
                shared.opens.close_idle(&shared, deadline).await;
                if shared.renewed.lock().elapsed() >= shared.lease() / 3 {
                    // RFC 8881 §8.3: SEQUENCE alone renews.
                    if let Err(error) = shared.run(&Compound::new("SEQUENCE"), deadline).await {
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
    pub async fn leave(self: &Arc<Self>, deadline: Instant) -> Result<()> {
        self.opens.close_all(self, deadline).await;
        let session = self.session();
        session.over();
        let program = self.trunk.first();
        identity::destroy_session(program, self.minor, session.id, deadline).await?;
        identity::destroy_clientid(program, self.minor, self.clientid(), deadline).await
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
