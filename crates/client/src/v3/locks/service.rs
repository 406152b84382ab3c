//! [`LockService`]: the lock manager of a server, and calls to it.
//!
//! The port of a lock manager can be another one after each restart of the server. If it is the port that rpcbind has returned, and the
//! server refuses connections to it, rpcbind is asked again.

use std::fmt;

use nfs::nlm::{NETOBJ_MAX, NlmProc4};
use parking_lot::Mutex;
use rpc::{BoxFuture, ReplyPlan};
use xdr::{Decode, Encode};

use crate::{
    call::{Backoff, Deadline, Program},
    model::{Caller, Error, ErrorKind, Result},
};

/// Connects to the lock manager of a server.
pub(crate) trait LockDialer: Send + Sync {
    /// Finds the lock manager and connects to it. A call over a connection whose port can change fails when the server refuses
    /// connections for a while.
    ///
    /// # Errors
    /// `LockManager` if there is none that the client can use, or the server does not answer.
    fn dial(&self) -> BoxFuture<'_, Result<Program>>;
}

/// The lock manager of a server.
pub(super) struct LockService {
    dialer: Box<dyn LockDialer>,
    found: Mutex<Option<Found>>,
    /// Held while the lock manager is looked for.
    dialing: tokio::sync::Mutex<()>,
}

/// A lock manager that was found.
#[derive(Clone)]
struct Found {
    program: Program,
    /// The number of times that it has been looked for.
    dials: u64,
}

/// A connection to the lock manager. A server that has restarted has another one. Later connections compare as greater.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Connection {
    dials: u64,
    generation: u64,
}

impl LockService {
    pub fn new(dialer: Box<dyn LockDialer>) -> Self {
        Self { dialer, found: Mutex::default(), dialing: tokio::sync::Mutex::default() }
    }

    /// Finds the lock manager, unless it is known, and waits until it is connected.
    ///
    /// # Errors
    /// There is no lock manager that the client can use, or the server does not answer.
    pub async fn connected(&self) -> Result<Connection> {
        let found = self.found().await?;
        Ok(found.connection())
    }

    /// Waits until a connection is lost.
    pub async fn lost(&self, connection: Connection) {
        let found = self.found.lock().clone();
        if let Some(found) = found.filter(|found| found.dials == connection.dials) {
            found.program.lost(connection.generation).await;
        }
    }

    /// Calls a procedure with the credential of a caller, until the server has answered. Returns the results, and a connection that was
    /// current before the server has executed the call.
    ///
    /// There is no deadline: a call that may have been executed must be answered before the next one of the same owner. The same call
    /// is sent again over later connections, so the server recognises it.
    ///
    /// # Errors
    /// There is no lock manager that the client can use, or it rejects the call.
    pub async fn call<A, R>(&self, procedure: NlmProc4, args: &A, caller: Option<&Caller>) -> Result<(R, Connection)>
    where
        A: Encode,
        R: Decode,
    {
        let mut backoff = Backoff::new();
        loop {
            match self.attempt(procedure, args, caller).await {
                Err(error) if error.is_unanswered() || self.is_restarting(&error) => {
                    tracing::debug!(%error, "calling the lock manager failed; retrying");
                    backoff.pause().await;
                }
                result => return result,
            }
        }
    }

    async fn attempt<A, R>(&self, procedure: NlmProc4, args: &A, caller: Option<&Caller>) -> Result<(R, Connection)>
    where
        A: Encode,
        R: Decode,
    {
        let found = self.found().await?;
        let (connection, program) = (found.connection(), found.program.with_caller(caller));
        let plan = ReplyPlan { inline_max: RESULTS_MAX, ..ReplyPlan::default() };
        let (number, deadline) = (procedure as u32, Deadline::after(ANSWER_MAX));
        let results = program.call(number, procedure.name(), args, plan, &deadline).await.0?;
        Ok((results, connection))
    }

    /// Reports whether the lock manager was there before, so that a server which lacks it is probably starting.
    fn is_restarting(&self, error: &Error) -> bool {
        matches!(error.kind(), ErrorKind::LockManager(_)) && self.found.lock().is_some()
    }

    async fn found(&self) -> Result<Found> {
        let before = self.found.lock().clone();
        if let Some(found) = &before
            && found.program.connected().await
        {
            return Ok(found.clone());
        }
        let _dialing = self.dialing.lock().await;
        let dials = before.map_or(0, |found| found.dials);
        let now = self.found.lock().clone();
        if let Some(found) = now.filter(|found| found.dials > dials) {
            return Ok(found);
        }
        let found = Found { program: self.dialer.dial().await?, dials: dials + 1 };
        *self.found.lock() = Some(found.clone());
        Ok(found)
    }
}

impl Connection {
    #[cfg(test)]
    pub fn first() -> Self {
        Self { dials: 1, generation: 1 }
    }
}

impl Found {
    fn connection(&self) -> Connection {
        Connection { dials: self.dials, generation: self.program.generation() }
    }
}

impl fmt::Debug for LockService {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.found.lock().as_ref().map(|found| &found.program))
    }
}

/// The maximum bytes of a reply: its header, a cookie, and the holder of a lock.
const RESULTS_MAX: usize = 512 + 2 * NETOBJ_MAX;
/// The maximum time of one transmission to a server that does not answer.
const ANSWER_MAX: std::time::Duration = std::time::Duration::from_secs(24 * 3600);
