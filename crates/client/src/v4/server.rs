//! [`Server`]: one server of a mount, with what is open there and what has moved away from there.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use nfs::v4::*;

use super::{callbacks::Callbacks, migration::Moves, opens::Opens};
use crate::{
    call::Deadline,
    model::{Handle, Result},
    session::{backchannel::Backchannel, client::Client4, compound::Compound, trunk::Trunk},
};

/// One server of a mount. All users of the mount share it.
#[derive(Debug)]
pub(crate) struct Server {
    pub client: Arc<Client4>,
    pub opens: Arc<Opens>,
    pub moves: Moves,
    pub callbacks: Arc<Callbacks>,
    /// State that has moved here from another server is yet to be reclaimed.
    pub arriving: AtomicBool,
    /// A task handles the status flags of the server.
    pub handling_flags: AtomicBool,
}

impl Server {
    /// Introduces the client by the first connection, and makes a session. From version 4.1 on, returns the answer of EXCHANGE_ID
    /// too. A client that was `known` at another server keeps that name and has state to reclaim; when all of it is reclaimed,
    /// [`arrived`](Self::arrived) says so.
    ///
    /// # Errors
    /// The server does not speak this minor version, or refuses.
    pub async fn establish(
        trunk: Trunk,
        minor: u32,
        callbacks: (Arc<Callbacks>, Arc<Backchannel>),
        known: Option<ClientOwner4>,
        deadline: &Deadline,
    ) -> Result<(Arc<Self>, Option<ExchangeIdOk>)> {
        let (callbacks, backchannel) = callbacks;
        let is_known = known.is_some();
        let (client, exchanged) = Client4::establish(trunk, minor, (backchannel, known), deadline).await?;
        let server = Arc::new(Self {
            opens: Arc::new(Opens::new(client.clone())),
            client,
            moves: Moves::default(),
            callbacks,
            arriving: AtomicBool::new(is_known),
            handling_flags: AtomicBool::new(false),
        });
        let holder: std::sync::Weak<Self> = Arc::downgrade(&server);
        server.client.link.set_holder(holder);
        server.callbacks.serve(&server);
        // RFC 8881 §18.51.3: before the first open, also of a client that has nothing to reclaim.
        if !is_known {
            //= rfc8881-18.51.3-1
            server.client.reclaim_complete(None, deadline).await?;
        }
        Ok((server, exchanged))
    }

    /// Completes the reclaim of a file system that has moved here; and of the server's if the client `is_new` there.
    pub async fn arrived(&self, root: &Handle, is_new: bool, deadline: &Deadline) {
        self.arriving.store(false, Relaxed);
        // RFC 8881 §18.51.3: of all once for each client, of a file system whenever it has come from another server.
        for of in [is_new.then_some(None), Some(Some(root))].into_iter().flatten() {
            //= rfc8881-18.51.3-2
            if let Err(error) = self.client.reclaim_complete(of, deadline).await {
                tracing::debug!(%error, "the server does not take the end of reclaiming");
            }
        }
    }

    /// Starts the task that renews the lease while no other request does, and closes idle files. It ends when the server is dropped.
    pub fn keep(self: &Arc<Self>) {
        let weak = Arc::downgrade(self);
        self.client.link.runtime.spawn(async move {
            loop {
                tokio::time::sleep(HOUSEKEEPING).await;
                let Some(server) = weak.upgrade() else { return };
                let link = &server.client.link;
                let deadline = &Deadline::strict(link.lease());
                server.opens.close_idle(deadline).await;
                if link.since_renewed() >= link.lease() / 3 {
                    // RFC 8881 §8.3: SEQUENCE alone renews.
                    let renew = match link.minor {
                        0 => Compound::new("RENEW").op(Argop4::Renew(ClientIdArgs { clientid: Clientid4(0) }), 0),
                        _ => Compound::new("SEQUENCE"),
                    };
                    if let Err(error) = server.client.run(&renew, deadline).await {
                        tracing::debug!(%error, "the lease is not renewed");
                    }
                }
            }
        });
    }

    /// Closes all files, returns all delegations, and ends the client at the server.
    ///
    /// # Errors
    /// The server cannot be told; it forgets by itself when the lease has expired.
    pub async fn leave(&self, deadline: &Deadline) -> Result<()> {
        self.opens.close_all(deadline).await;
        match self.client.destroy(deadline).await {
            // Files of file systems that have moved cannot be closed here.
            Err(error) if error.status4() == Some(Nfsstat4::ClientidBusy) && self.moves.any() => Ok(()),
            result => result,
        }
    }
}

const HOUSEKEEPING: Duration = Duration::from_secs(1);
