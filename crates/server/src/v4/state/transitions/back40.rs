//! Where clients of NFSv4.0 are called, and whether that works: RFC 7530 §3.3.3, §10.2.1 and §16.33.
//!
//! A client says where it listens, and is tried there by CB_NULL once it is confirmed. Until it has answered, and whenever it
//! could not be called the last time, it gets no delegations.

use std::{hash::Hash, net::SocketAddr};

use nfs::v4::{Clientid4, Nfsstat4, Verifier4};

use crate::v4::state::{Event, State, client::Reach};

/// How a client of 4.0 is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Listener40 {
    /// Where it listens.
    pub address: SocketAddr,
    /// Its program.
    pub program: u32,
    /// The number that it gave itself for this.
    pub ident: u32,
    /// What it has confirmed this by: another one is another place.
    pub confirm: Verifier4,
}

impl<R: Clone, F: Clone + Eq + Hash> State<R, F> {
    /// Where a confirmed client of 4.0 is called.
    pub fn listener40(&self, client: Clientid4) -> Option<Listener40> {
        let legacy = self.clients.find(client).filter(|client| client.confirmed)?.legacy.as_ref()?;
        Some(Listener40 {
            address: legacy.address?,
            program: legacy.callback.cb_program,
            ident: legacy.callback_ident,
            confirm: legacy.confirm,
        })
    }

    /// A client has confirmed where it listens: it is to be tried.
    pub(in crate::v4::state) fn try_listener(&mut self, client: Clientid4) {
        let legacy = self.clients.find_mut(client).and_then(|client| client.legacy.as_mut());
        if let Some(legacy) = legacy.filter(|legacy| legacy.address.is_some() && legacy.reach == Reach::Unknown) {
            legacy.reach = Reach::Trying;
            self.events.push_back(Event::Listens(client));
        }
    }

    /// A client has been tried: whether it has to be again, as it listens elsewhere by now.
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

    /// What RENEW says beside that the lease is renewed (§16.28).
    ///
    /// # Errors
    /// CB_PATH_DOWN if the client has delegations and cannot be called.
    pub fn check_path40(&self, id: Clientid4) -> Result<(), Nfsstat4> {
        let fails = self.clients.find(id).is_some_and(|client| client.callbacks_fail);
        let holds = || self.stateids.of_client(id).iter().any(|other| self.stateids.delegation(other).is_some());
        if fails && holds() { Err(Nfsstat4::CbPathDown) } else { Ok(()) }
    }

    /// Whether a client speaks 4.0.
    pub(in crate::v4::state) fn is_legacy(&self, client: Clientid4) -> bool {
        self.clients.find(client).is_some_and(|client| client.legacy.is_some())
    }
}
