//! The callback addresses of NFSv4.0 clients, and their reachability: RFC 7530 §3.3.3, §10.2.1 and §16.33.
//!
//! A client tells its callback address, which is probed by CB_NULL once the client is confirmed. The client gets no
//! delegations before it has answered, or after its last callback has failed. Then each RENEW has the address probed again.

use std::{hash::Hash, net::SocketAddr};

use nfs::v4::{Clientid4, Nfsstat4, Verifier4};
use rpc::security::Principal;

use crate::v4::state::{Event, State, client::Reach, ids};

/// The callback address of a client of 4.0.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listener40 {
    /// The network address.
    pub address: SocketAddr,
    /// The callback program.
    pub program: u32,
    /// The number that the client assigned to its callbacks.
    pub ident: u32,
    /// The verifier that confirmed this address. Another verifier means another address.
    pub confirm: Verifier4,
    /// The principal of the client and the protection of callbacks, if they have RPCSEC_GSS.
    pub principal: Option<Principal>,
}

impl<R: Clone, F: Clone + Eq + Hash> State<R, F> {
    /// Returns the callback address of a confirmed client of 4.0.
    pub fn listener40(&self, client: Clientid4) -> Option<Listener40> {
        let client = self.clients.find(client).filter(|client| client.confirmed)?;
        let legacy = client.legacy.as_ref()?;
        let principal = match (&client.principal, legacy.flavor) {
            (ids::Principal::Gss(name), Some(pseudo_flavor)) => Some(Principal { name: name.clone(), pseudo_flavor }),
            _ => None,
        };
        Some(Listener40 {
            principal,
            address: legacy.address?,
            program: legacy.callback.cb_program,
            ident: legacy.callback_ident,
            confirm: legacy.confirm,
        })
    }

    /// Returns the pseudo flavour of the callbacks to a client of 4.0, if they have RPCSEC_GSS.
    pub fn callback_flavor40(&self, client: Clientid4) -> Option<u32> {
        self.clients.find(client)?.legacy.as_ref()?.flavor
    }

    /// Queues a probe of a callback address that the client has confirmed, unless its state is known or being probed.
    pub(in crate::v4::state) fn probe_listener(&mut self, client: Clientid4) {
        let legacy = self.clients.find_mut(client).and_then(|client| client.legacy.as_mut());
        if let Some(legacy) = legacy.filter(|legacy| legacy.address.is_some() && legacy.reach == Reach::Unknown) {
            legacy.reach = Reach::Probing;
            self.events.push_back(Event::NewListener(client));
        }
    }

    /// Notes the result of a probe. Returns `true` if the address has changed in the meantime and must be probed again.
    pub fn listener_probed(&mut self, id: Clientid4, listener: &Listener40, answers: bool) -> bool {
        let Some(client) = self.clients.find_mut(id) else { return false };
        let Some(legacy) = &mut client.legacy else { return false };
        if legacy.confirm != listener.confirm {
            return true;
        }
        legacy.reach = if answers { Reach::Reached } else { Reach::Unknown };
        client.callbacks_fail = !answers;
        false
    }

    /// Executes RENEW, which has already renewed the lease (§16.28). If the client cannot be called back, its address is
    /// probed again.
    ///
    /// # Errors
    /// CB_PATH_DOWN if the client has delegations and its last callback failed.
    pub fn renew40(&mut self, id: Clientid4) -> Result<(), Nfsstat4> {
        let client = self.clients.find_mut(id);
        let fails = client.as_ref().is_some_and(|client| client.callbacks_fail);
        let legacy = client.and_then(|client| client.legacy.as_mut());
        if let Some(legacy) = legacy.filter(|legacy| fails && legacy.reach == Reach::Reached) {
            legacy.reach = Reach::Unknown;
        }
        self.probe_listener(id);
        let holds = || self.stateids.of_client(id).iter().any(|other| self.stateids.delegation(other).is_some());
        if fails && holds() { Err(Nfsstat4::CbPathDown) } else { Ok(()) }
    }

    /// Returns `true` for a client of 4.0.
    pub(in crate::v4::state) fn is_legacy(&self, client: Clientid4) -> bool {
        self.clients.find(client).is_some_and(|client| client.legacy.is_some())
    }
}
