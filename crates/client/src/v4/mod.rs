//! [`V4`]: NFS version 4 on one server: 4.0 (RFC 7530), 4.1 (RFC 8881) and 4.2 (RFC 7862).
//!
//! The session core ([`crate::session`]) makes requests, recovers and keeps the lease. Here is what it makes them for:
//!
//! - [`opens`] is what is open, [`delegation`] what is delegated, and [`lock_state`] what is locked; [`names`] is how version 4.0 finds
//!   what it opens, and how an object of a file system that has moved is found again;
//! - [`server`] joins these for one server; [`status_flags`] and [`callbacks`] handle what the server reports;
//! - [`offload`] is the copies that the server completes after its reply;
//! - [`locations`] asks where a file system is that the server does not have; [`migration`] continues there with what [`handover`]
//!   takes along, and [`links`] are the objects that have been found there again; [`place`] is the server that has an object now;
//! - [`operations`] are those of every version, [`router`] directs them to the server that has the object, and [`delegated`],
//!   [`extended`] and [`lock`] are those that only version 4 has.
//!
//! Errors: a status of the server is [`ErrorKind::Status`](crate::ErrorKind::Status). Errors of sessions and state are recovered from
//! here, and no caller sees them.

pub(crate) mod attr;
pub(crate) mod callbacks;
pub(crate) mod connect;
mod delegated;
mod delegation;
mod extended;
mod handover;
mod links;
pub(crate) mod locations;
mod lock;
mod lock_state;
pub(crate) mod migration;
mod names;
mod offload;
mod opens;
mod operations;
mod place;
pub(crate) mod router;
mod server;
mod status_flags;
mod unreclaimed;

use std::{future::Future, sync::Arc, time::Duration};

use nfs::v4::{Nfsstat4, Stateid4};

pub use self::{
    delegated::{DataVersion, Held},
    delegation::Watcher,
    extended::SetXattr,
    lock_state::LockRange,
};
pub(crate) use self::{place::Place, server::Server};
use crate::{
    call::{Deadline, Program},
    model::{Handle, Result},
    session::compound::{Compound, Results, failure},
};

/// NFS version 4.0, 4.1 or 4.2 on one server, by file handles. Cheap to clone; usable from any task.
///
/// Every call ends when the server has been silent until the deadline, and dropping its future gives it up.
#[derive(Clone, Debug)]
pub struct V4 {
    server: Arc<Server>,
    timeout: Duration,
}

impl V4 {
    /// The same, but each call ends when the server has been silent for so long.
    pub fn with_deadline(&self, timeout: Duration) -> Self {
        Self { server: self.server.clone(), timeout }
    }

    /// The minor version.
    pub fn minor_version(&self) -> u32 {
        self.server.client.minor()
    }

    /// How many requests can be under way at a time, as the server would have it now. Version 4.0 has no bound.
    pub fn slots(&self) -> u32 {
        self.server.client.session().map_or(u32::MAX, |session| session.slots())
    }

    /// How many connections there are, whether they are there now or not.
    pub fn connections(&self) -> usize {
        self.server.client.link.trunk.all().len()
    }

    /// How calls are made; what is below NFS.
    pub(crate) fn program(&self) -> &Program {
        self.server.client.link.trunk.first()
    }

    /// Ends the client at the server, and at those to which something has moved.
    ///
    /// # Errors
    /// The server cannot be told; it forgets by itself when the lease has expired.
    pub(crate) async fn leave(&self) -> Result<()> {
        for moved in self.server.moves.take() {
            if let Err(error) = Box::pin(moved.leave()).await {
                tracing::debug!(%error, "a server to which something has moved cannot be told");
            }
        }
        self.server.leave(&Deadline::strict(self.timeout)).await
    }

    /// Whoever used a file is done with it: it need not stay open for a moment.
    pub(crate) fn done(&self, file: &Handle) {
        let at = self.place_now(file);
        at.v4.server.opens.done(&at.handle);
    }

    fn deadline(&self) -> Deadline {
        Deadline::after(self.timeout)
    }

    async fn run(&self, compound: &Compound) -> Result<Results> {
        self.server.client.run(compound, &self.deadline()).await
    }

    /// Runs an operation with the stateid of an open file; again where the server has lost that.
    async fn with_stateid<T, F: Future<Output = Result<T>> + Send>(
        &self,
        handle: &Handle,
        access: u32,
        operation: impl Fn(Stateid4) -> F,
    ) -> Result<T> {
        let file = self.server.opens.file(handle);
        for _ in 0..STATE_TRIES {
            let stateid = file.0.stateid(&self.server.opens, access, &self.deadline()).await?;
            match operation(stateid).await {
                Err(error) if file.0.state_failed(&stateid, &error) => file.0.settled().await,
                result => return result,
            }
        }
        Err(failure(Nfsstat4::BadStateid, "stateid"))
    }
}

/// How often a file is opened anew for one operation before the server is taken to be broken.
const STATE_TRIES: u32 = 4;
