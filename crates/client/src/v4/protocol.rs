//! [`V4`]: NFSv4 on one server, with operations by file handle.

use std::{sync::Arc, time::Duration};

use nfs::v4::{Argop4, EXCHGID4_FLAG_USE_PNFS_DS, EXCHGID4_FLAG_USE_PNFS_MDS, Resop4, Stateid4};

use super::{
    layout::{device::DataDialer, table::DataWays},
    server::Server,
};
use crate::{
    call::{Deadline, Program},
    model::{Caller, Handle, Result},
    session::compound::{Compound, Results},
};

/// NFSv4.0, 4.1 or 4.2 on one server, with operations by file handle. It is cheap to clone and can be used from any
/// task.
///
/// A call fails when the server has been silent until the deadline. Dropping the future cancels the call.
#[derive(Clone, Debug)]
pub struct V4 {
    pub(super) server: Arc<Server>,
    pub(super) timeout: Duration,
    /// The user as whom operations are executed; `None` for the user of the mount.
    pub(super) caller: Option<Caller>,
    /// The stateid of READ and WRITE. If it is `None`, they open files first.
    pub(super) stateid: Option<Stateid4>,
}

impl V4 {
    /// Returns the same protocol with another deadline: the time that the server may be silent during a call.
    pub fn with_deadline(&self, timeout: Duration) -> Self {
        Self { timeout, ..self.clone() }
    }

    /// Returns the same protocol for a caller, or for the user of the mount. Each caller has its own opens.
    pub fn with_caller(&self, caller: Option<&Caller>) -> Self {
        Self { caller: caller.cloned(), ..self.clone() }
    }

    /// Returns the same protocol with this stateid in READ and WRITE. It opens no file. At a data server, that is the anonymous stateid
    /// (RFC 8435 §2.2), or that of an open at the metadata server (RFC 8881 §13.9.1).
    pub fn with_stateid(self, stateid: Stateid4) -> Self {
        Self { stateid: Some(stateid), ..self }
    }

    /// Returns the minor version.
    pub fn minor_version(&self) -> u32 {
        self.server.client.minor()
    }

    /// Returns the maximum number of outstanding requests that the server allows now. NFSv4.0 has no maximum.
    pub fn slots(&self) -> u32 {
        self.server.client.session().map_or(u32::MAX, |session| session.slots())
    }

    /// Returns the number of connections, including those that are lost at the moment.
    pub fn connections(&self) -> usize {
        self.server.client.link.trunk.all().len()
    }

    /// Returns how many reads and writes went directly to data servers, and through the server. After a migration, those at
    /// the new server are not counted.
    pub fn data_ways(&self) -> DataWays {
        self.server.opens.layouts.ways()
    }

    /// Reports whether the server tells its clients that it is a data server of pNFS (RFC 8881 §13.1).
    pub fn is_data_server(&self) -> bool {
        self.server.has_role(EXCHGID4_FLAG_USE_PNFS_DS)
    }

    /// Returns the owner of the server, by which clients recognise it at other addresses (RFC 8881 §2.10.4). NFSv4.0 has none.
    pub fn server_owner(&self) -> Option<&[u8]> {
        self.server.owner.as_deref()
    }

    /// Executes any operations in one request of this session, and returns their results, which have at most `results_max` bytes. They are executed
    /// again if the reply is lost. This library does not know the state that they make: it neither ends nor reclaims it.
    ///
    /// # Errors
    /// The status of the first operation that fails, and the errors of any call.
    pub async fn compound(&self, operations: Vec<Argop4>, results_max: usize) -> Result<Vec<Resop4>> {
        let mut compound = Compound::new("COMPOUND").by(self.caller.as_ref());
        compound.ops = operations;
        compound.reply_max += results_max;
        self.run(&compound).await.map(Results::rest)
    }

    /// Reports whether the server tells its clients that it is a metadata server of pNFS.
    pub(crate) fn is_metadata_server(&self) -> bool {
        self.server.has_role(EXCHGID4_FLAG_USE_PNFS_MDS)
    }

    /// Uses layouts of flexible files from now on, if the server grants them.
    pub(crate) fn use_layouts(&self, dialer: Arc<dyn DataDialer>) {
        self.server.opens.layouts.activate(dialer);
    }

    /// Returns the RPC program that sends the calls.
    pub(crate) fn program(&self) -> &Program {
        self.server.client.link.trunk.first()
    }

    /// Returns the program that sends calls about a file, as the caller. `None` if the file has moved to another server.
    pub(crate) fn program_at(&self, file: &Handle) -> Option<Program> {
        let is_here = !self.place_now(file).is_elsewhere();
        is_here.then(|| self.program().with_caller(self.caller.as_ref()).with_deadline(self.timeout))
    }

    /// Ends the client at the server, at its data servers, and at the servers to which file systems have moved.
    ///
    /// # Errors
    /// The server does not answer. It then removes the client when the lease expires.
    pub(crate) async fn disconnect(&self) -> Result<()> {
        for moved in self.server.moves.take() {
            if let Err(error) = Box::pin(moved.disconnect()).await {
                tracing::debug!(%error, "ending the client at a server to which a file system has moved failed");
            }
        }
        let disconnected = self.server.disconnect(&Deadline::strict(self.timeout)).await;
        // No layout is left, so no data server is in use.
        self.server.opens.layouts.disconnect().await;
        disconnected
    }

    /// Tells the protocol that a user of a file has finished. The file is closed at once if it is idle.
    pub(crate) fn close_if_idle(&self, file: &Handle) {
        let at = self.place_now(file);
        at.v4.server.opens.close_if_idle(&at.handle);
    }

    /// Returns the deadline of an operation that begins now.
    pub(super) fn deadline(&self) -> Deadline {
        Deadline::after(self.timeout)
    }

    /// Executes a request at this server.
    pub(super) async fn run(&self, compound: &Compound) -> Result<Results> {
        self.server.client.run(compound, &self.deadline()).await
    }
}
