//! [`Server`]: one server of a mount, with its open files and the file systems that have moved away from it.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use bytes::Bytes;
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
    /// Set while state that has moved to this server from another one is not yet reclaimed.
    pub is_arriving: AtomicBool,
    /// Set while a task handles the status flags of the server.
    pub handling_flags: AtomicBool,
    /// The roles of the server in pNFS: flags of EXCHANGE_ID. NFSv4.0 has none.
    roles: u32,
    /// The name by which clients know the server (`so_major_id`, RFC 8881 §2.10.4). NFSv4.0 has none.
    pub owner: Option<Bytes>,
}

impl Server {
    /// Registers the client over the first connection and creates a session. From NFSv4.1 on, also returns the result
    /// of EXCHANGE_ID. If `known` is the client owner that another server knows, the client keeps it and has state to
    /// reclaim; call [`complete_arrival`](Self::complete_arrival) when all of it is reclaimed.
    ///
    /// # Errors
    /// The server does not support this minor version, or refuses the client.
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
            is_arriving: AtomicBool::new(is_known),
            handling_flags: AtomicBool::new(false),
            roles: exchanged.as_ref().map_or(0, |exchanged| exchanged.flags & EXCHGID4_FLAG_MASK_PNFS),
            owner: exchanged.as_ref().map(|exchanged| Bytes::copy_from_slice(&exchanged.server_owner.major_id)),
        });
        let holder: std::sync::Weak<Self> = Arc::downgrade(&server);
        server.client.link.set_holder(holder);
        server.callbacks.serve(&server);
        // RFC 8881 §18.51.3: RECLAIM_COMPLETE comes before the first open, even if the client has no state to reclaim.
        if !is_known {
            //= rfc8881-18.51.3-1
            server.client.reclaim_complete(None, deadline).await?;
        }
        Ok((server, exchanged))
    }

    /// Reports whether the server has a role in pNFS: `EXCHGID4_FLAG_USE_PNFS_MDS` or `EXCHGID4_FLAG_USE_PNFS_DS`
    /// (RFC 8881 §13.1).
    pub fn has_role(&self, role: u32) -> bool {
        self.roles & role != 0
    }

    /// Completes the reclaim of a file system that has moved here, and of the whole server if the client `is_new`
    /// there.
    pub async fn complete_arrival(&self, root: &Handle, is_new: bool, deadline: &Deadline) {
        self.is_arriving.store(false, Relaxed);
        // RFC 8881 §18.51.3: once for each client, and for each file system that has moved from another server.
        for of in [is_new.then_some(None), Some(Some(root))].into_iter().flatten() {
            if let Err(error) = self.client.reclaim_complete(of, deadline).await {
                tracing::debug!(%error, "RECLAIM_COMPLETE failed");
            }
        }
    }

    /// Starts the task that renews the lease if no other request does so, and closes idle files. It ends when the
    /// server is dropped.
    pub fn start_housekeeping(self: &Arc<Self>) {
        let weak = Arc::downgrade(self);
        self.client.link.runtime.spawn(async move {
            loop {
                tokio::time::sleep(HOUSEKEEPING).await;
                let Some(server) = weak.upgrade() else { return };
                let link = &server.client.link;
                let deadline = &Deadline::strict(link.lease());
                server.opens.close_idle(deadline).await;
                if link.since_renewed() >= link.lease() / 3 {
                    // RFC 8881 §8.3: a compound with only SEQUENCE renews the lease.
                    let renew = match link.minor {
                        0 => Compound::new("RENEW").op(Argop4::Renew(ClientIdArgs { clientid: Clientid4(0) }), 0),
                        _ => Compound::new("SEQUENCE"),
                    };
                    if let Err(error) = server.client.run(&renew, deadline).await {
                        tracing::debug!(%error, "renewing the lease failed");
                    }
                }
            }
        });
    }

    /// Closes all files, returns all delegations, and ends the client at the server.
    ///
    /// # Errors
    /// The server does not answer. It then removes the client when the lease expires.
    pub async fn disconnect(&self, deadline: &Deadline) -> Result<()> {
        self.opens.close_all(deadline).await;
        match self.client.destroy(deadline).await {
            // Files of file systems that have moved cannot be closed at this server.
            Err(error) if error.status4() == Some(Nfsstat4::ClientidBusy) && self.moves.any() => Ok(()),
            result => result,
        }
    }
}

const HOUSEKEEPING: Duration = Duration::from_secs(1);
