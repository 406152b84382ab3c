//! [`V4`]: NFS version 4 on one server: 4.0 (RFC 7530), 4.1 (RFC 8881) and 4.2 (RFC 7862).
//!
//! - [`shared`] makes requests, recovers and keeps the lease; [`session`] executes compounds exactly once, [`slots`] is its
//!   arithmetic, [`trunk`] its connections, and [`identity`] how client and server introduce themselves;
//! - [`zero`] executes compounds of version 4.0, without sessions, and [`names`] is how that finds what it opens, and what has moved is found again;
//! - [`opens`] is what is open, [`delegation`] what is delegated, and [`lock`] what is locked; [`callback`] is what the server calls;
//! - [`offload`] is the copies that the server goes on with behind its reply;
//! - [`referral`] asks where a file system is that the server does not have, and [`moved`] goes on there with
//!   what [`handover`] takes along, and [`links`] are what has been found there again;
//! - [`operations`] are those of every version, [`anywhere`] finds where to do them, and [`extended`] those that only this one has.
//!
//! Errors: a status that every version has is [`ErrorKind::Nfs`](crate::ErrorKind::Nfs), another is
//! [`ErrorKind::Nfs4`](crate::ErrorKind::Nfs4). What concerns sessions and state is recovered from here and not seen above.

pub(crate) mod anywhere;
pub(crate) mod attr;
pub(crate) mod callback;
pub(crate) mod compound;
pub(crate) mod connect;
mod delegation;
mod extended;
mod handover;
mod identity;
mod links;
mod lock;
pub(crate) mod moved;
mod names;
mod offload;
mod opens;
mod operations;
pub(crate) mod referral;
mod session;
mod shared;
mod slots;
mod trunk;
mod unreclaimed;
mod zero;

use std::{future::Future, sync::Arc, time::Duration};

use nfs::v4::{Nfsstat4, Stateid4};

use self::{
    compound::{Compound, Results, failure},
    shared::Shared,
};
pub use self::{
    delegation::{DataVersion, Held, Watcher},
    extended::SetXattr,
    lock::LockRange,
};
use crate::{Handle, Result, deadline::Deadline, program::Program};

/// NFS version 4.0, 4.1 or 4.2 on one server, by file handles. Cheap to clone; usable from any task.
///
/// Every call ends when the server has been silent until the deadline, and dropping its future gives it up.
#[derive(Clone, Debug)]
pub struct V4 {
    shared: Arc<Shared>,
    timeout: Duration,
}

impl V4 {
    /// The same, but each call ends when the server has been silent for so long.
    pub fn with_deadline(&self, timeout: Duration) -> Self {
        Self { shared: self.shared.clone(), timeout }
    }

    /// The minor version.
    pub fn minor_version(&self) -> u32 {
        self.shared.minor
    }

    /// How many requests can be under way at a time, as the server would have it now. Version 4.0 has no bound.
    pub fn slots(&self) -> u32 {
        self.shared.session().map_or(u32::MAX, |session| session.slots())
    }

    /// How many connections there are, whether they are there now or not.
    pub fn connections(&self) -> usize {
        self.shared.trunk.all().len()
    }

    /// How calls are made; what is below NFS.
    pub(crate) fn program(&self) -> &Program {
        self.shared.trunk.first()
    }

    /// Takes leave of the server.
    ///
    /// # Errors
    /// The server cannot be told; it forgets by itself when the lease has expired.
    pub(crate) async fn leave(&self) -> Result<()> {
        self.shared.leave(&Deadline::strict(self.timeout)).await
    }

    /// Whoever used a file is done with it: it need not stay open for a moment.
    pub(crate) fn done(&self, file: &Handle) {
        let at = self.place_now(file);
        at.v4.shared.opens.done(&at.v4.shared, &at.handle);
    }

    fn deadline(&self) -> Deadline {
        Deadline::after(self.timeout)
    }

    async fn run(&self, compound: &Compound) -> Result<Results> {
        self.shared.run(compound, &self.deadline()).await
    }

    /// Runs an operation with the stateid of an open file; again where the server has lost that.
    async fn with_stateid<T, F: Future<Output = Result<T>> + Send>(
        &self,
        handle: &Handle,
        access: u32,
        operation: impl Fn(Stateid4) -> F,
    ) -> Result<T> {
        let file = self.shared.opens.file(handle);
        for _ in 0..STATE_TRIES {
            let stateid = file.0.stateid(&self.shared, access, &self.deadline()).await?;
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
