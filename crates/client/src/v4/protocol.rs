//! [`V4`]: NFS version 4 on one server, by file handles.

use std::{sync::Arc, time::Duration};

use super::server::Server;
use crate::{
    call::{Deadline, Program},
    model::{Handle, Result},
    session::compound::{Compound, Results},
};

/// NFS version 4.0, 4.1 or 4.2 on one server, by file handles. Cheap to clone; usable from any task.
///
/// Every call ends when the server has been silent until the deadline, and dropping its future gives it up.
#[derive(Clone, Debug)]
pub struct V4 {
    pub(super) server: Arc<Server>,
    pub(super) timeout: Duration,
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

    /// A user of a file has finished: the file is closed at once if it is idle.
    pub(crate) fn done(&self, file: &Handle) {
        let at = self.place_now(file);
        at.v4.server.opens.done(&at.handle);
    }

    /// The deadline of an operation that begins now.
    pub(super) fn deadline(&self) -> Deadline {
        Deadline::after(self.timeout)
    }

    /// Executes a request at this server.
    pub(super) async fn run(&self, compound: &Compound) -> Result<Results> {
        self.server.client.run(compound, &self.deadline()).await
    }
}
