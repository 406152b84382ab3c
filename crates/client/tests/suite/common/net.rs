//! The network of a [cluster](super::cluster): a simulated one, or a transport of the system on 127.0.0.1.

use std::{net::SocketAddr, sync::Arc};

use rpc::{Service, Switch, TransportKind};
use simnet::Network;
use tokio::task::JoinSet;
use vfs::layout::DataTransport;

use super::{process, sim};

/// A network with the transport of all servers.
#[derive(Clone)]
pub enum Net {
    /// TCP and RDMA in virtual time.
    Sim(Network),
    /// Connections of the system. The name is that of the transport in URLs.
    System(&'static str, Arc<dyn TransportKind>),
}

impl Net {
    /// Starts a server of these programs, which runs until the result is dropped. Over the system's network, it listens on `address` only
    /// if it has run there before.
    pub fn start_at(
        &self,
        address: SocketAddr,
        is_restart: bool,
        services: Vec<Arc<dyn Service>>,
    ) -> (SocketAddr, JoinSet<()>) {
        match self {
            Self::Sim(network) => (address, sim::start_at(network, address, services)),
            Self::System(_, kind) if is_restart => process::process(&**kind, address, services),
            Self::System(_, kind) => process::process(&**kind, "127.0.0.1:0".parse().unwrap(), services),
        }
    }

    /// Ends all connections of a host whose servers have been dropped.
    pub fn crash(&self, address: SocketAddr) {
        if let Self::Sim(network) = self {
            network.crash(address);
        }
    }

    /// Returns the transports of the client with this number.
    pub fn switch(&self, number: u8) -> Switch {
        match self {
            Self::Sim(network) => sim::switch(network, number),
            Self::System(_, kind) => {
                let mut switch = Switch::new();
                switch.register(kind.clone());
                switch
            }
        }
    }

    /// Returns the name of the transport in URLs.
    pub fn proto(&self) -> &'static str {
        match self {
            Self::Sim(_) => "tcp",
            Self::System(proto, _) => proto,
        }
    }

    /// Returns the transport of the addresses of data servers.
    pub fn data_transport(&self) -> DataTransport {
        match self.proto() {
            "rdma" => DataTransport::Rdma,
            "shm" => DataTransport::Shm,
            _ => DataTransport::Tcp,
        }
    }
}
