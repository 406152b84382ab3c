//! Kerberos: the flavour RPCSEC_GSS, if the configuration has `[kerberos]`.

use std::sync::Arc;

use gss::{
    GssClient, GssLimits, GssServer, Service,
    kerberos::{KerberosAcceptor, KerberosInitiator},
    pseudo_flavor,
};
use rpc::security::{ClientFlavor, Principal};
use server::{CallbackFlavors, PrincipalNames, config::KerberosConfig};

use crate::exit::Failure;

/// Creates the flavour.
///
/// # Errors
/// The Kerberos library is not installed, or the keytab has no key of the service.
pub fn flavor(config: Option<&KerberosConfig>) -> Result<Option<Arc<GssServer>>, Failure> {
    let Some(KerberosConfig { keytab, service }) = config else { return Ok(None) };
    let acceptor = KerberosAcceptor::open(service, keytab.clone())
        .map_err(|error| Failure::usage(format!("[kerberos]: {error}")))?;
    tracing::info!(service, "callers can authenticate by Kerberos");
    Ok(Some(GssServer::new(acceptor, GssLimits::default())))
}

/// Adds the flavour to a server.
pub fn add(builder: rpc::ServerBuilder, flavor: Option<&Arc<GssServer>>) -> rpc::ServerBuilder {
    match flavor {
        Some(flavor) => builder.flavor(flavor.clone()),
        None => builder,
    }
}

/// The local users of principals, by the rules of the Kerberos configuration (`auth_to_local` of krb5.conf).
pub struct LocalNames(pub Arc<GssServer>);

impl PrincipalNames for LocalNames {
    fn local_name(&self, principal: &Principal) -> Option<String> {
        self.0.local_name(&principal.name)
    }
}

/// The server's key, as its credentials for callbacks to clients of NFSv4.0 (RFC 7530 §3.3.3).
pub struct CallbackKey(pub KerberosConfig);

impl CallbackFlavors for CallbackKey {
    fn flavor(&self, principal: &Principal) -> Option<Arc<dyn ClientFlavor>> {
        let name = std::str::from_utf8(&principal.name).ok()?;
        // Users have no keys by which they could accept a context: only services, such as `host/client.example.com@REALM`.
        if !name.contains('/') {
            return None;
        }
        let all = [Service::None, Service::Integrity, Service::Privacy];
        let protection = all.into_iter().find(|service| pseudo_flavor(*service) == principal.pseudo_flavor)?;
        let KerberosConfig { keytab, service } = &self.0;
        // The library was opened at the start.
        let initiator = KerberosInitiator::of_key(name, service, keytab.clone()).ok()?;
        Some(GssClient::new(Arc::new(initiator), protection))
    }
}
