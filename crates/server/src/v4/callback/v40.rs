//! [`Outgoing`]: callbacks to clients of NFSv4.0, over connections from the server to their callback addresses (RFC
//! 7530 §3.3.3, §17).
//!
//! Each client that has been called has one connection, which later calls use too. The number of connections and the
//! time to connect are bounded. At most [`CONNECTING_MAX`] connections are being made at a time, and
//! [`HOST_CONNECTING_MAX`] of these to one host. They use an unprivileged source port. There are no slots: all
//! callbacks are idempotent.
//!
//! A client that has introduced itself by RPCSEC_GSS is called with the same flavour (§3.3.3): the server initiates a context for
//! the client's principal, which must have a key. [`CallbackFlavors`] has the server's credentials for that.

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
use rpc::{
    AuthSys, CallOptions, Client, ClientOptions, Credential, ReplyPlan, TransportKind,
    security::{ClientFlavor, Principal},
};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore, SemaphorePermit},
    time::timeout,
};

use super::{CallbackError, REPLY_MAX};
use crate::{
    callback_port::unprivileged,
    v4::state::transitions::{back::NoPath, back40::Listener40},
};

/// The credentials by which the server authenticates itself to clients of NFSv4.0 that use a flavour with principals.
pub trait CallbackFlavors: Send + Sync + 'static {
    /// Returns the flavour for calls to a principal over one connection, with the protection of its pseudo flavour. Returns `None`
    /// if the principal cannot be called, for example because only services have keys.
    fn flavor(&self, principal: &Principal) -> Option<Arc<dyn ClientFlavor>>;
}

/// The connections to clients of 4.0.
pub(in crate::v4) struct Outgoing {
    /// The transport that makes the connections, once it is set.
    kind: OnceLock<Arc<dyn TransportKind>>,
    /// The credentials for principals, once they are set.
    flavors: OnceLock<Arc<dyn CallbackFlavors>>,
    clients: Mutex<HashMap<Clientid4, (Verifier4, Client)>>,
    /// Limits the connections that are being made.
    connecting: Semaphore,
    /// The same limit for each host to which a connection is being made.
    hosts: Mutex<HashMap<IpAddr, Arc<Semaphore>>>,
}

impl Default for Outgoing {
    fn default() -> Self {
        let connecting = Semaphore::new(CONNECTING_MAX);
        let (kind, flavors) = (OnceLock::new(), OnceLock::new());
        Self { kind, flavors, clients: Mutex::default(), connecting, hosts: Mutex::default() }
    }
}

/// The permission to connect to a host. Dropping it releases the permission.
struct ConnectPermit<'a> {
    outgoing: &'a Outgoing,
    of_host: Option<OwnedSemaphorePermit>,
    _of_all: SemaphorePermit<'a>,
}

impl Drop for ConnectPermit<'_> {
    fn drop(&mut self) {
        self.of_host.take();
        // Remove the semaphores that nobody uses or waits for: only the table refers to them.
        self.outgoing.hosts.lock().retain(|_, permits| Arc::strong_count(permits) > 1);
    }
}

impl Outgoing {
    /// Sets the transport for new connections. A second call has no effect.
    pub(in crate::v4) fn set_transport(&self, kind: &Arc<dyn TransportKind>) {
        let _ = self.kind.set(unprivileged(kind));
    }

    /// Sets the credentials for principals. Only the first ones are used.
    pub(in crate::v4) fn set_flavors(&self, flavors: Arc<dyn CallbackFlavors>) {
        let _ = self.flavors.set(flavors);
    }

    /// Returns `true` if there are credentials for calls to a principal.
    pub(in crate::v4) fn can_call(&self, principal: &Principal) -> bool {
        self.flavor(principal).is_some()
    }

    fn flavor(&self, principal: &Principal) -> Option<Arc<dyn ClientFlavor>> {
        self.flavors.get()?.flavor(principal)
    }

    /// Sends CB_NULL. Returns `true` if the client answers.
    pub(in crate::v4) async fn probe(&self, client: Clientid4, to: &Listener40) -> bool {
        let called = self.call_by::<()>(client, to, PROC_NULL, &()).await;
        if let Err(error) = &called {
            tracing::debug!(client = client.0, address = %to.address, %error, "a client does not answer at its callback address");
        }
        called.is_ok()
    }

    /// Sends CB_COMPOUND with one operation.
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
        tracing::debug!(client = client.0, address = %to.address, ?result, "a client answered a callback");
        result.ok_or_else(|| {
            CallbackError::Failed(format!("the reply has no result, only the status {:?}", results.status))
        })
    }

    /// Closes the connection to a client that was removed.
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

    /// Acquires a permit of the host, then one of the whole server. This order makes clients of one host that do not
    /// answer delay only that host.
    async fn acquire_connect_permit(&self, host: IpAddr) -> Option<ConnectPermit<'_>> {
        let permits = {
            let mut hosts = self.hosts.lock();
            hosts.entry(host).or_insert_with(|| Arc::new(Semaphore::new(HOST_CONNECTING_MAX))).clone()
        };
        let of_host = Some(permits.acquire_owned().await.ok()?);
        Some(ConnectPermit { outgoing: self, of_host, _of_all: self.connecting.acquire().await.ok()? })
    }

    /// Returns the existing connection, or makes a new one.
    async fn connection(&self, client: Clientid4, to: &Listener40) -> Result<Client, CallbackError> {
        let down = CallbackError::NoPath(NoPath::Down);
        if let Some((_, known)) = self.clients.lock().get(&client).filter(|(confirm, _)| *confirm == to.confirm) {
            return Ok(known.clone());
        }
        let Some(kind) = self.kind.get() else { return Err(down) };
        let Some(_permit) = self.acquire_connect_permit(to.address.ip()).await else { return Err(down) };
        let credential = match &to.principal {
            Some(principal) => match self.flavor(principal) {
                Some(flavor) => Credential::Flavor(flavor),
                None => return Err(down),
            },
            // Linux clients reject callbacks without AUTH_SYS.
            None => Credential::Sys(AuthSys::of_process()),
        };
        let options =
            ClientOptions { credential, deadline: TIMEOUT, ..ClientOptions::new(to.program, CALLBACK_VERSION) };
        let connected = timeout(TIMEOUT, Client::connect(kind.clone(), to.address, options)).await;
        let connected = connected.map_err(|_| CallbackError::Failed(format!("{} does not answer", to.address)))?;
        let new = connected.map_err(|error| CallbackError::Failed(error.to_string()))?;
        let mut clients = self.clients.lock();
        if clients.len() >= CONNECTIONS_MAX {
            // Any connection can be closed: it is made again when it is needed.
            let victim = clients.keys().next().copied().expect("the table must be full");
            clients.remove(&victim);
        }
        clients.insert(client, (to.confirm, new.clone()));
        Ok(new)
    }
}

/// The timeout of connecting, and of a callback.
const TIMEOUT: Duration = Duration::from_secs(10);
const CONNECTIONS_MAX: usize = 1024;
/// The maximum number of connections that are being made at a time.
const CONNECTING_MAX: usize = 64;
/// The same for one host.
const HOST_CONNECTING_MAX: usize = 4;

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn one_host_cannot_use_all_connect_permits() {
        let outgoing = Outgoing::default();
        let (silent, other) = (IpAddr::from([192, 0, 2, 1]), IpAddr::from([192, 0, 2, 2]));
        let mut held = Vec::new();
        for _ in 0..HOST_CONNECTING_MAX {
            held.push(outgoing.acquire_connect_permit(silent).await.unwrap());
        }
        let mut next = std::pin::pin!(outgoing.acquire_connect_permit(silent));
        assert!(timeout(Duration::ZERO, &mut next).await.is_err(), "the host has reached its limit");
        let of_other = timeout(6 * TIMEOUT, outgoing.acquire_connect_permit(other)).await;
        drop(of_other.expect("another host must not wait"));
        held.pop();
        held.push(next.await.unwrap());
        assert_eq!(outgoing.hosts.lock().len(), 1);
        held.clear();
        assert_eq!(outgoing.hosts.lock().len(), 0, "a host without pending connections leaves no entry");
    }
}
