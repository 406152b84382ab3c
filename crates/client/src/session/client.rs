//! [`Client4`]: the client of one server. It sends requests and recovers when the server has lost the client or its
//! session.
//!
//! Read RFC 8881 §2.10.13 and §8.4.2 (recovery) first. The first request that finds the client or session lost
//! registers the client again, while all others wait; then the [`StateHolder`](super::link::StateHolder) reclaims the
//! client's state. Requests whose replies were lost are sent again.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use nfs::v4::*;
use parking_lot::Mutex;
use tokio::time::Instant;
use xdr::Opaque;

use super::{
    backchannel::{Backchannel, REFERRING_WAIT},
    compound::Compound,
    identity,
    link::ServerLink,
    requests::Session,
    trunk::{BACKGROUND, Trunk},
    v40::Client40,
};
use crate::{
    call::{Backoff, Deadline},
    model::{Error, Handle, Result},
};

/// The client of one server.
#[derive(Debug)]
pub(crate) struct Client4 {
    pub link: Arc<ServerLink>,
    pub owner: ClientOwner4,
    backchannel: Arc<Backchannel>,
    state: Mutex<ClientState>,
    /// Held during recovery, so that only one task recovers at a time.
    pub recovering: tokio::sync::Mutex<()>,
}

/// The registration of the client at the server, through which requests are sent.
#[derive(Clone, Debug)]
pub(crate) enum ClientState {
    /// A session, from NFSv4.1 on.
    Session(Arc<Session>),
    /// A client of NFSv4.0.
    V40(Arc<Client40>),
}

impl ClientState {
    fn is(&self, other: &ClientState) -> bool {
        match (self, other) {
            (ClientState::Session(one), ClientState::Session(other)) => Arc::ptr_eq(one, other),
            (ClientState::V40(one), ClientState::V40(other)) => Arc::ptr_eq(one, other),
            _ => false,
        }
    }
}

impl Client4 {
    /// Registers the client over the first connection and creates a session. From NFSv4.1 on, also returns the result
    /// of EXCHANGE_ID. If `known` is the client owner that another server knows, the client keeps it, and has state to
    /// reclaim.
    ///
    /// # Errors
    /// The server does not support this minor version, or refuses the client.
    pub async fn establish(
        trunk: Trunk,
        minor: u32,
        (backchannel, known): (Arc<Backchannel>, Option<ClientOwner4>),
        deadline: &Deadline,
    ) -> Result<(Arc<Self>, Option<ExchangeIdOk>)> {
        let is_known = known.is_some();
        let owner = known.unwrap_or_else(identity::client_owner);
        let first = trunk.first().clone();
        let (state, exchanged) = if minor == 0 {
            (ClientState::V40(Client40::register(&first, owner.clone(), is_known, deadline).await?), None)
        } else {
            let exchanged = identity::exchange_id(&first, minor, &owner, deadline).await?;
            let client = (exchanged.clientid, exchanged.sequenceid);
            let session = Session::create(&first, minor, client, &backchannel, deadline).await?;
            (ClientState::Session(session), Some(exchanged))
        };
        let client = Arc::new(Self {
            link: Arc::new(ServerLink::new(trunk, minor)),
            owner,
            backchannel,
            state: Mutex::new(state),
            recovering: tokio::sync::Mutex::default(),
        });
        Ok((client, exchanged))
    }

    /// Returns the minor version.
    pub fn minor(&self) -> u32 {
        self.link.minor
    }

    /// Returns the session; `None` for NFSv4.0.
    pub fn session(&self) -> Option<Arc<Session>> {
        match &*self.state.lock() {
            ClientState::Session(session) => Some(session.clone()),
            ClientState::V40(_) => None,
        }
    }

    /// Returns the owner of opens or locks with this name.
    pub fn state_owner(&self, name: &[u8]) -> StateOwner4 {
        // The client ID stays zero: a server with sessions takes it from the session (RFC 8881 §18.16.3), and for
        // NFSv4.0 `Client40` sets its own when it sends the request.
        StateOwner4 { clientid: Clientid4(0), owner: Opaque(Bytes::copy_from_slice(name)) }
    }

    /// Returns a stateid as READ and WRITE use it. A seqid of zero names the most recent state, even if the state
    /// changes meanwhile (RFC 8881 §8.2.2). NFSv4.0 does not have this rule, so there the stateid is unchanged.
    pub fn latest(&self, stateid: Stateid4) -> Stateid4 {
        if self.minor() == 0 { stateid } else { Stateid4 { seqid: 0, ..stateid } }
    }

    /// Returns the session, or the client of NFSv4.0, through which requests are sent now.
    pub fn state(&self) -> ClientState {
        self.state.lock().clone()
    }

    /// Registers this client again after the registration `lost` was lost, unless another task has done so meanwhile.
    ///
    /// This runs in a task of its own. If the operation is dropped meanwhile, the other operations need the state that this
    /// reclaims all the same.
    ///
    /// # Errors
    /// The server refuses this client.
    pub async fn recover(self: &Arc<Self>, lost: &ClientState, deadline: &Deadline) -> Result<()> {
        let began = Instant::now();
        let (client, lost) = (self.clone(), lost.clone());
        let own = Deadline::after(deadline.at().saturating_duration_since(began));
        let task = self.link.runtime.spawn(async move { client.recover_alone(&lost, &own).await });
        // The task fails only if its runtime shuts down.
        let recovered = task.await.unwrap_or_else(|_| Err(self.link.trunk.first().timeout_error("CREATE_SESSION")));
        deadline.extend(began.elapsed());
        recovered
    }

    async fn recover_alone(&self, lost: &ClientState, deadline: &Deadline) -> Result<()> {
        let _one = self.recovering.lock().await;
        if !self.state.lock().is(lost) {
            return Ok(());
        }
        tracing::info!(server = %self.link.trunk.first().server(), "the server has lost this client or its session");
        let forgotten = match lost {
            ClientState::Session(dead) => self.replace_session(dead, deadline).await?,
            ClientState::V40(dead) => {
                let client = dead.register_again(self.link.trunk.first(), deadline).await?;
                *self.state.lock() = ClientState::V40(client);
                true
            }
        };
        self.reclaim_if(forgotten).await;
        Ok(())
    }

    /// Replaces a session whose backchannel has a fault (RFC 8881 §18.46.3), unless another task has done so. No request is
    /// outstanding when the session is destroyed. If the server does not destroy it in time, the new session replaces it
    /// all the same.
    ///
    /// # Errors
    /// A request was not answered in half of the lease time, or the server refuses this client.
    pub async fn replace_faulty(&self, session: &Arc<Session>, deadline: &Deadline) -> Result<()> {
        let _one = self.recovering.lock().await;
        if !self.state.lock().is(&ClientState::Session(session.clone())) {
            return Ok(());
        }
        // All other requests wait meanwhile, so nothing renews the lease.
        let limit = Deadline::strict(self.link.lease() / 2);
        if !session.drain(&limit).await {
            return Err(self.link.trunk.first().timeout_error("DESTROY_SESSION"));
        }
        if let Err(error) = self.destroy_drained(session, &limit).await {
            tracing::debug!(%error, "destroying a session with a faulty backchannel failed");
        }
        // If no session can be created now, the next request tries again.
        session.close();
        let forgotten = self.replace_session(session, deadline).await?;
        self.reclaim_if(forgotten).await;
        Ok(())
    }

    /// Destroys a session without outstanding requests, over a connection that is established. A callback can be
    /// outstanding: it waits for the replies to its referring calls, and the server has to receive its own reply. While
    /// the server refuses DESTROY_SESSION for that reason (RFC 8881 §18.37.3), it is sent again.
    ///
    /// # Errors
    /// The server does not answer, or it refuses to destroy the session.
    async fn destroy_drained(&self, session: &Session, deadline: &Deadline) -> Result<()> {
        let Some(program) = self.link.trunk.pick(deadline).await else {
            return Err(self.link.trunk.first().timeout_error("DESTROY_SESSION"));
        };
        let callbacks = Deadline::strict(CALLBACKS_MAX);
        let mut backoff = Backoff::new();
        loop {
            match identity::destroy_session(&program, self.minor(), session.id, deadline).await {
                Err(error)
                    if error.status4() == Some(Nfsstat4::BackChanBusy) && backoff.pause_before(&callbacks).await => {}
                result => return result,
            }
        }
    }

    /// Reclaims the state of the client if the server has lost it.
    async fn reclaim_if(&self, forgotten: bool) {
        if forgotten && let Some(holder) = self.link.holder() {
            // Reclaiming does not use the deadline of a request, because other requests need the reclaimed state too. It
            // uses the new session. If that is lost meanwhile, the next request recovers again.
            holder.reclaim(&Deadline::after(BACKGROUND)).await;
        }
    }

    /// Creates a session that replaces a dead one. Returns `true` if the server has lost the client too.
    async fn replace_session(&self, dead: &Session, deadline: &Deadline) -> Result<bool> {
        let program = self.link.trunk.first();
        let mut client = (dead.clientid, dead.next_sequence);
        let mut confirmed = true;
        let session = loop {
            let error = match Session::create(program, self.minor(), client, &self.backchannel, deadline).await {
                Ok(session) => break session,
                Err(error) => error,
            };
            match error.status4() {
                //= rfc8881-8.4.2-1
                Some(Nfsstat4::StaleClientid | Nfsstat4::SeqMisordered | Nfsstat4::Expired) => {
                    let ok = identity::exchange_id(program, self.minor(), &self.owner, deadline).await?;
                    client = (ok.clientid, ok.sequenceid);
                    confirmed &= ok.flags & EXCHGID4_FLAG_CONFIRMED_R != 0;
                }
                _ => return Err(error),
            }
        };
        *self.state.lock() = ClientState::Session(session.clone());
        dead.close();
        // RFC 8881 §2.10.3.1: SEQUENCE binds a connection to the fore channel only.
        session.bind_all(&self.link, deadline).await;
        // If the client record was confirmed before and has the same client ID, the server still has its state.
        Ok(!confirmed || session.clientid != dead.clientid)
    }

    /// Sends RECLAIM_COMPLETE for all state, or for the file system with this root.
    ///
    /// # Errors
    /// The server refuses RECLAIM_COMPLETE.
    pub async fn reclaim_complete(self: &Arc<Self>, root: Option<&Handle>, deadline: &Deadline) -> Result<()> {
        if self.minor() == 0 {
            return Ok(());
        }
        let args = ReclaimCompleteArgs { one_fs: root.is_some() };
        let compound = root.map_or(Compound::new("RECLAIM_COMPLETE"), |root| Compound::on("RECLAIM_COMPLETE", root));
        let compound = compound.op(Argop4::ReclaimComplete(args), 0).once();
        match self.run_in_recovery(&compound, deadline).await {
            Err(error) if error.status4() == Some(Nfsstat4::CompleteAlready) => Ok(()),
            result => result.map(drop),
        }
    }

    /// Destroys the session and the client ID at the server.
    ///
    /// # Errors
    /// The server does not answer, or the client still has state there (`CLIENTID_BUSY`). The server then removes the
    /// client when the lease expires.
    pub async fn destroy(&self, deadline: &Deadline) -> Result<()> {
        let Some(session) = self.session() else { return Ok(()) };
        session.close();
        let (program, minor) = (self.link.trunk.first(), self.minor());
        let mut backoff = Backoff::new();
        let destroyed = loop {
            let destroyed = identity::destroy_session(program, minor, session.id, deadline).await;
            // The connection was lost and made again. RFC 8881 §18.37.3: the one that destroys a session must be bound to it.
            let is_unbound = status_of(&destroyed) == Some(Nfsstat4::ConnNotBoundToSession);
            if !is_unbound || !backoff.pause_before(deadline).await {
                break destroyed;
            }
            session.bind_all(&self.link, deadline).await;
        };
        // Neither operation has a slot, so a call that is sent again can find that it was executed before.
        if status_of(&destroyed) != Some(Nfsstat4::BadSession) {
            destroyed?;
        }
        let destroyed = identity::destroy_clientid(program, minor, session.clientid, deadline).await;
        if status_of(&destroyed) == Some(Nfsstat4::StaleClientid) { Ok(()) } else { destroyed }
    }
}

fn status_of(result: &Result<()>) -> Option<Nfsstat4> {
    result.as_ref().err().and_then(Error::status4)
}

/// Maximum time for which DESTROY_SESSION is sent again because callbacks are outstanding. With the pauses between the
/// attempts it is longer than a callback waits.
const CALLBACKS_MAX: Duration = REFERRING_WAIT.saturating_mul(4);
