//! [`Credentials`]: the credentials of the users of one connection.

use std::sync::Arc;

use entropy::HashMap;
use gss::{GssClient, Service, mechanism::Tickets};
use parking_lot::Mutex;
use rpc::{AuthSys, ClientError, Credential};

use crate::model::{Caller, MountOptions, Security};

/// The credentials of one connection to a host: that of the mount's user, and those of [callers](Caller).
pub(crate) struct Credentials {
    own: Credential,
    kerberos: Option<Kerberos>,
    /// With Kerberos, the flavours of callers by user ID. Each has its own context with the server.
    users: Mutex<HashMap<u32, Credential>>,
}

/// The service of a mount with Kerberos.
struct Kerberos {
    /// The name of the service.
    name: String,
    protection: Service,
    tickets: Arc<dyn Tickets>,
}

impl Credentials {
    /// Creates the credentials for one connection to a host.
    ///
    /// # Errors
    /// The security flavour is not available.
    pub fn new(options: &MountOptions, host: &str) -> Result<Self, ClientError> {
        let users = Mutex::default();
        if let Security::Kerberos(protection) = options.security {
            let (name, tickets) = (format!("nfs@{host}"), options.tickets.tickets());
            let initiator = tickets.of_process(&name);
            let initiator = initiator.map_err(|error| ClientError::Security(error.to_string()))?;
            let own = Credential::Flavor(GssClient::new(initiator, protection));
            return Ok(Self { own, kerberos: Some(Kerberos { name, protection, tickets }), users });
        }
        let own = AuthSys::of_process();
        // If the caller acts as another user, that user's groups are not known.
        let other = options.uid.is_some_and(|uid| uid != own.uid);
        let gids = match &options.gids {
            Some(gids) => gids.iter().copied().collect(),
            None if other => Default::default(),
            None => own.gids,
        };
        let (uid, gid) = (options.uid.unwrap_or(own.uid), options.gid.unwrap_or(own.gid));
        Ok(Self { own: Credential::Sys(AuthSys { uid, gid, gids, ..own }), kerberos: None, users })
    }

    /// Returns the credential of the mount's user.
    pub fn own(&self) -> &Credential {
        &self.own
    }

    /// Returns the credential of a caller, or of the mount's user.
    pub fn of(&self, caller: Option<&Caller>) -> Credential {
        let Some(caller) = caller else { return self.own.clone() };
        let Some(Kerberos { name, protection, tickets }) = &self.kerberos else {
            return Credential::Sys(caller.user().clone());
        };
        if caller.user().uid == rustix::process::geteuid().as_raw() {
            return self.own.clone();
        }
        let mut users = self.users.lock();
        // A user whose context is dropped here negotiates another one.
        if users.len() >= USERS_MAX {
            users.clear();
        }
        let uid = caller.user().uid;
        let flavor = || Credential::Flavor(GssClient::new(tickets.of_user(name, uid), *protection));
        users.entry(uid).or_insert_with(flavor).clone()
    }
}

/// The maximum number of users of one connection with contexts of Kerberos.
const USERS_MAX: usize = 1024;
