//! [`Hosts`]: the admitted hosts.

use std::{fmt, net::IpAddr, sync::Arc};

/// The set of admitted hosts: those that can use at least one export. All other hosts get few connections, short
/// messages and little memory.
///
/// ```
/// use rpc::Hosts;
///
/// let hosts = Hosts::admitted_by(|address| address.is_loopback());
/// assert!(hosts.admit("127.0.0.1".parse().unwrap()) && !hosts.admit("192.0.2.1".parse().unwrap()));
/// ```
#[derive(Clone, Default)]
pub struct Hosts(Option<Arc<Admits>>);

type Admits = dyn Fn(IpAddr) -> bool + Send + Sync;

impl Hosts {
    /// Admits every host.
    pub fn all() -> Self {
        Self(None)
    }

    /// Admits the hosts for whose address `admits` returns `true`. It is called once for each connection, and for each
    /// datagram.
    pub fn admitted_by(admits: impl Fn(IpAddr) -> bool + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(admits)))
    }

    /// Returns `true` if the host with this address is admitted.
    pub fn admit(&self, address: IpAddr) -> bool {
        self.0.as_ref().is_none_or(|admits| admits(address))
    }
}

impl fmt::Debug for Hosts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_none() { "Hosts(all)" } else { "Hosts(some)" })
    }
}
