//! [`Client4`]: a client with its server: how requests are made, and what happens when the server has forgotten the client.
//!
//! Read RFC 8881 §2.10.13 and §8.4.2 (recovery) first. The first request that finds the server to have forgotten the client introduces
//! it again, while the others wait, and the holder of the state reclaims it. Requests whose answers were lost are sent
//! again.

use std::sync::Arc;

use bytes::Bytes;
use nfs::v4::*;
use parking_lot::Mutex;
use tokio::time::Instant;
use xdr::Opaque;

use super::{
    backchannel::Backchannel,
    compound::Compound,
    identity,
    link::ServerLink,
    requests::Session,
    trunk::{BACKGROUND, Trunk},
    v40::Client40,
};
use crate::{
    call::{Backoff, Deadline},
    model::{Handle, Result},
};

/// A client with its server.
#[derive(Debug)]
pub(crate) struct Client4 {
    pub link: Arc<ServerLink>,
    pub owner: ClientOwner4,
    backchannel: Arc<Backchannel>,
    state: Mutex<ClientState>,
    /// Only one task recovers at a time.
    pub recovering: tokio::sync::Mutex<()>,
}

/// The name by which the server knows the client, and the way in which requests are made.
#[derive(Clone, Debug)]
pub(crate) enum ClientState {
    /// From version 4.1 on.
    Session(Arc<Session>),
    /// Version 4.0.
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
    /// Introduces the client by the first connection, and makes a session. From version 4.1 on, returns the answer of EXCHANGE_ID
    /// too. A client that was `known` at another server keeps that name, and has state to reclaim.
    ///
    /// # Errors
    /// The server does not speak this minor version, or refuses.
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
            (ClientState::V40(Client40::introduce(&first, owner.clone(), is_known, deadline).await?), None)
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

    /// The minor version.
    pub fn minor(&self) -> u32 {
        self.link.minor
    }

    /// The session, if the version has one.
    pub fn session(&self) -> Option<Arc<Session>> {
        match &*self.state.lock() {
            ClientState::Session(session) => Some(session.clone()),
            ClientState::V40(_) => None,
        }
    }

    /// An owner of opens or locks.
    pub fn state_owner(&self, name: &[u8]) -> StateOwner4 {
        // Version 4.0 puts its own there when it sends; RFC 8881 §18.16.3: with a session, the server knows.
        StateOwner4 { clientid: Clientid4(0), owner: Opaque(Bytes::copy_from_slice(name)) }
    }

    /// A stateid as it is used with data: RFC 8881 §8.2.2: a seqid of zero is the most recent state, whatever changes it
    /// meanwhile. Version 4.0 does not have this rule.
    pub fn latest(&self, stateid: Stateid4) -> Stateid4 {
        if self.minor() == 0 { stateid } else { Stateid4 { seqid: 0, ..stateid } }
    }

    /// The session, or the client of version 4.0, by which requests are made now.
    pub fn state(&self) -> ClientState {
        self.state.lock().clone()
    }

    /// Introduces this client again, unless somebody has since it was `lost`.
    ///
    /// # Errors
    /// The server does not want this client any more.
    pub async fn recover(&self, lost: &ClientState, deadline: &Deadline) -> Result<()> {
        let began = Instant::now();
        let _one = self.recovering.lock().await;
        if !self.state.lock().is(lost) {
            deadline.excuse(began.elapsed());
            return Ok(());
        }
        tracing::info!(server = %self.link.trunk.first().server(), "the server has forgotten this client or its session");
        let forgotten = match lost {
            ClientState::Session(dead) => self.another_session(dead, deadline).await?,
            ClientState::V40(dead) => {
                let client = dead.again(self.link.trunk.first(), deadline).await?;
                *self.state.lock() = ClientState::V40(client);
                true
            }
        };
        if forgotten && let Some(holder) = self.link.holder() {
            // Not by this request's deadline: others need what is reclaimed too. It goes by the new session, whose own
            // loss in the meantime the next request finds.
            holder.reclaim(&Deadline::after(BACKGROUND)).await;
        }
        deadline.excuse(began.elapsed());
        Ok(())
    }

    /// Makes a session in the place of a dead one; returns whether the server has forgotten the client as well.
    async fn another_session(&self, dead: &Session, deadline: &Deadline) -> Result<bool> {
        let program = self.link.trunk.first();
        let mut client = (dead.clientid, dead.next);
        let mut confirmed = true;
        let mut backoff = Backoff::new();
        let session = loop {
            let error = match Session::create(program, self.minor(), client, &self.backchannel, deadline).await {
                Ok(session) => break session,
                Err(error) => error,
            };
            match error.status4() {
                Some(Nfsstat4::StaleClientid | Nfsstat4::SeqMisordered | Nfsstat4::Expired) => {
                    let ok = identity::exchange_id(program, self.minor(), &self.owner, deadline).await?;
                    client = (ok.clientid, ok.sequenceid);
                    confirmed &= ok.flags & EXCHGID4_FLAG_CONFIRMED_R != 0;
                }
                _ if backoff.later(self.link.trunk.first(), &error, deadline).await => {}
                _ => return Err(error),
            }
        };
        *self.state.lock() = ClientState::Session(session.clone());
        dead.over();
        // RFC 8881 §2.10.3.1: by SEQUENCE a connection is bound to the fore channel only.
        session.bind_all(&self.link, deadline).await;
        // A record that was confirmed before is this client's: its state is there still.
        Ok(!confirmed || session.clientid != dead.clientid)
    }

    /// RECLAIM_COMPLETE, of everything or of the file system of this root.
    ///
    /// # Errors
    /// The server refuses it.
    pub async fn reclaim_complete(self: &Arc<Self>, root: Option<&Handle>, deadline: &Deadline) -> Result<()> {
        if self.minor() == 0 {
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

    /// Ends the session and the client.
    ///
    /// # Errors
    /// The server cannot be told, or the client still has state there (`CLIENTID_BUSY`); it forgets by itself when the lease has expired.
    pub async fn destroy(&self, deadline: &Deadline) -> Result<()> {
        let Some(session) = self.session() else { return Ok(()) };
        session.over();
        let program = self.link.trunk.first();
        identity::destroy_session(program, self.minor(), session.id, deadline).await?;
        identity::destroy_clientid(program, self.minor(), session.clientid, deadline).await
    }
}
