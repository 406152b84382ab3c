//! [`Outgoing`]: calls to clients of NFSv4.0, by connections that the server makes to where they listen (RFC 7530 §3.3.3, §17).
//!
//! Each client that has been called has one connection, which its next calls go by. Connections are bounded in number and in the
//! time that they take to make, [`CONNECTING_MAX`] are made at a time, and [`HOST_CONNECTING_MAX`] of these to one host. They
//! come from an unprivileged port. There are no slots: what is asked may be asked twice.

use std::{
    net::IpAddr,
    sync::{Arc, OnceLock},
    time::Duration,
};

use entropy::HashMap;
use nfs::v4::{
    CALLBACK_VERSION, Clientid4, PROC_COMPOUND, PROC_NULL, Verifier4,
    callback::{CbArgop4, CbResop4},
    compound::{CbCompoundArgs, CbCompoundRes},
};
use parking_lot::Mutex;
use rpc::{AuthSys, CallOptions, Client, ClientOptions, Credential, ReplyPlan, TransportKind};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore, SemaphorePermit},
    time::timeout,
};

use super::{CallbackError, REPLY_MAX};
use crate::{
    callback_port::unprivileged,
    v4::state::transitions::{back::NoPath, back40::Listener40},
};

/// The connections to clients of 4.0.
pub(in crate::v4) struct Outgoing {
    /// What they are made by, if anything.
    kind: OnceLock<Arc<dyn TransportKind>>,
    clients: Mutex<HashMap<Clientid4, (Verifier4, Client)>>,
    /// For making a connection.
    connecting: Semaphore,
    /// The same for each host to which one is being made.
    hosts: Mutex<HashMap<IpAddr, Arc<Semaphore>>>,
}

impl Default for Outgoing {
    fn default() -> Self {
        let connecting = Semaphore::new(CONNECTING_MAX);
        Self { kind: OnceLock::new(), clients: Mutex::default(), connecting, hosts: Mutex::default() }
    }
}

/// Leave to make a connection to a host. It returns when this is dropped.
struct Leave<'a> {
    outgoing: &'a Outgoing,
    of_host: Option<OwnedSemaphorePermit>,
    _of_all: SemaphorePermit<'a>,
}

impl Drop for Leave<'_> {
    fn drop(&mut self) {
        self.of_host.take();
        // Only the table has those that nobody uses or waits for.
        self.outgoing.hosts.lock().retain(|_, turns| Arc::strong_count(turns) > 1);
    }
}

impl Outgoing {
    /// From now on connections are made by this, unless they are by another already.
    pub(in crate::v4) fn by(&self, kind: &Arc<dyn TransportKind>) {
        let _ = self.kind.set(unprivileged(kind));
    }

    /// CB_NULL: whether a client answers.
    pub(in crate::v4) async fn probe(&self, client: Clientid4, to: &Listener40) -> bool {
        let called = self.call_by::<()>(client, to, PROC_NULL, &()).await;
        if let Err(error) = &called {
            tracing::debug!(client = client.0, address = %to.address, %error, "a client does not answer where it says");
        }
        called.is_ok()
    }

    /// CB_COMPOUND of one operation.
    pub(in crate::v4) async fn call(
        &self,
        client: Clientid4,
        to: &Listener40,
        operation: &CbArgop4,
    ) -> Result<CbResop4, CallbackError> {
        let argarray = vec![operation.clone()];
        let args = CbCompoundArgs { tag: "".into(), minorversion: 0, callback_ident: to.ident, argarray };
        let results: CbCompoundRes = self.call_by(client, to, PROC_COMPOUND, &args).await?;
        let result = results.resarray.into_iter().next();
        result.ok_or_else(|| CallbackError::Failed(format!("it answered nothing but {:?}", results.status)))
    }

    /// A client is gone.
    pub(in crate::v4) fn forget(&self, client: Clientid4) {
        self.clients.lock().remove(&client);
    }

    async fn call_by<T: xdr::Decode>(
        &self,
        client: Clientid4,
        to: &Listener40,
        procedure: u32,
        args: &(impl xdr::Encode + Sync),
    ) -> Result<T, CallbackError> {
        let connection = self.connection(client, to).await?;
        let plan = ReplyPlan { inline_max: REPLY_MAX, ..ReplyPlan::default() };
        let answer =
            connection.call::<T>(procedure, args, plan, CallOptions { once: true, ..Default::default() }).await;
        answer.map(|answer| answer.results).map_err(|failed| {
            self.forget(client);
            CallbackError::Failed(failed.error.to_string())
        })
    }

    /// First one of the host's turns, then one of all: clients of one host that do not answer hold up that host alone.
    async fn leave_to_connect(&self, host: IpAddr) -> Option<Leave<'_>> {
        let turns = {
            let mut hosts = self.hosts.lock();
            hosts.entry(host).or_insert_with(|| Arc::new(Semaphore::new(HOST_CONNECTING_MAX))).clone()
        };
        let of_host = Some(turns.acquire_owned().await.ok()?);
        Some(Leave { outgoing: self, of_host, _of_all: self.connecting.acquire().await.ok()? })
    }

    /// The connection that there is, or a new one.
    async fn connection(&self, client: Clientid4, to: &Listener40) -> Result<Client, CallbackError> {
        let down = CallbackError::NoPath(NoPath::Down);
        if let Some((_, known)) = self.clients.lock().get(&client).filter(|(confirm, _)| *confirm == to.confirm) {
            return Ok(known.clone());
        }
        let Some(kind) = self.kind.get() else { return Err(down) };
        let Some(_leave) = self.leave_to_connect(to.address.ip()).await else { return Err(down) };
        // Linux denies what comes without AUTH_SYS.
        let credential = Credential::Sys(AuthSys::of_process());
        let options =
            ClientOptions { credential, deadline: PATIENCE, ..ClientOptions::new(to.program, CALLBACK_VERSION) };
        let connected = timeout(PATIENCE, Client::connect(kind.clone(), to.address, options)).await;
        let connected = connected.map_err(|_| CallbackError::Failed(format!("{} does not answer", to.address)))?;
        let new = connected.map_err(|error| CallbackError::Failed(error.to_string()))?;
        let mut clients = self.clients.lock();
        if clients.len() >= CONNECTIONS_MAX {
            // Whichever it is, it is made again when it is needed.
            let victim = clients.keys().next().copied().expect("there are many");
            clients.remove(&victim);
        }
        clients.insert(client, (to.confirm, new.clone()));
        Ok(new)
    }
}

/// How long a client may take to be connected to, and for a callback.
const PATIENCE: Duration = Duration::from_secs(10);
const CONNECTIONS_MAX: usize = 1024;
/// Connections that are being made at a time.
const CONNECTING_MAX: usize = 64;
/// The same to one host.
const HOST_CONNECTING_MAX: usize = 4;

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn one_host_takes_few_of_the_turns_to_connect() {
        let outgoing = Outgoing::default();
        let (silent, other) = (IpAddr::from([192, 0, 2, 1]), IpAddr::from([192, 0, 2, 2]));
        let mut held = Vec::new();
        for _ in 0..HOST_CONNECTING_MAX {
            held.push(outgoing.leave_to_connect(silent).await.unwrap());
        }
        let mut next = std::pin::pin!(outgoing.leave_to_connect(silent));
        assert!(timeout(Duration::ZERO, &mut next).await.is_err(), "the host has as many as it may");
        let of_other = timeout(6 * PATIENCE, outgoing.leave_to_connect(other)).await;
        drop(of_other.expect("another host need not wait"));
        held.pop();
        held.push(next.await.unwrap());
        assert_eq!(outgoing.hosts.lock().len(), 1);
        held.clear();
        assert_eq!(outgoing.hosts.lock().len(), 0, "nothing is kept of a host that is not being connected to");
    }
}
