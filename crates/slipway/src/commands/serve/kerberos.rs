//! Kerberos: the flavour RPCSEC_GSS, if the configuration has `[kerberos]`.

use std::sync::Arc;

use gss::{GssLimits, GssServer, kerberos::KerberosAcceptor};
use rpc::security::Principal;
use server::{PrincipalNames, config::KerberosConfig};

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
