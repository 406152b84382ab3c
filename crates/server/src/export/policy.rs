//! The decision whether a caller may use an export. MNT, every procedure of NFSv3 and NFS_ACL, every operation of
//! NFSv4, and NLM use only [`Export::decide`].

use std::net::SocketAddr;

use vfs::VfsError;

use super::Export;

/// The properties of a caller that the rules of exports use.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Requester {
    pub(crate) peer: SocketAddr,
    /// The name of the transport that delivered the call.
    pub(crate) transport: &'static str,
}

/// The purpose for which a caller uses an export.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// Operations on files.
    Files,
    /// MNT and NLM. They use TCP or UDP even if NFS uses another transport, so the export's `transports` do not apply.
    Auxiliary,
}

impl Export {
    /// Decides whether a caller may use the export for `purpose`.
    ///
    /// # Errors
    /// Returns `Access` if the host, the port or the transport is not admitted.
    pub(crate) fn decide(&self, requester: &Requester, purpose: Purpose) -> Result<(), VfsError> {
        let Requester { peer, transport } = *requester;
        let options = self.options();
        let host = options.clients.iter().any(|client| client.matches(peer.ip()));
        let port = options.insecure || peer.port() < PORT_PRIVILEGED;
        let transport = match (purpose, &options.transports) {
            (Purpose::Auxiliary, _) | (_, None) => true,
            (Purpose::Files, Some(names)) => names.iter().any(|name| name == transport),
        };
        if host && port && transport { Ok(()) } else { Err(VfsError::Access) }
    }
}

/// Ports below this one are privileged.
const PORT_PRIVILEGED: u16 = 1024;
