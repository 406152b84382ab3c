//! A provider on a simulated network ([`simnet`]), which uses tokio's clock.
//!
//! Two ends in the same process exchange messages. Each message takes a random time, and messages of one direction arrive in
//! order (RFC 5040 §5.5). With the clock paused (`tokio::time::pause`, a current-thread runtime) a run is determined by
//! its seed. With the clock running the network is an ordinary, slow network.
//!
//! The [`Network`] injects faults: it cuts a connection at a given message ([`cut_at`](Network::cut_at)) or at random
//! ([`NetworkOptions::cut_probability`]), cuts all connections ([`cut_all`](Network::cut_all)), crashes one end
//! ([`crash`](Network::crash)), or stalls ([`stall`](Network::stall)).
//!
//! Buffers belong to the queue pair while they are posted or registered. They return to their owner after every error.

mod connect;
mod link;
#[cfg(test)]
mod tests;

use std::{
    io,
    net::{IpAddr, SocketAddr},
};

use buf::Buffer;
use rand::Rng;
pub use simnet::{Cut, Network, NetworkOptions};

use self::connect::SimListener;
use crate::{BoxFuture, Connected, Listener, Provider, ProviderCaps, QpOptions, WorkId};

/// A provider on a simulated network, for one of its hosts. Clones share the network.
#[derive(Clone)]
pub struct Sim {
    network: Network,
    /// Maximum bytes of private data.
    private_data_max: usize,
    /// Maximum number of regions of one queue pair.
    regions_max: usize,
}

impl Sim {
    /// Creates a provider on a new network.
    pub fn new(options: NetworkOptions) -> Self {
        Self::on(Network::new(options))
    }

    /// Creates a provider on this network, for its host.
    pub fn on(network: Network) -> Self {
        Self { network, private_data_max: 196, regions_max: 4096 }
    }

    /// Returns the provider with a limit of `bytes` of private data.
    pub fn with_private_data_max(self, bytes: usize) -> Self {
        Self { private_data_max: bytes, ..self }
    }

    /// Returns a provider on the same network, for the host whose connections come from `ip`.
    pub fn host(&self, ip: IpAddr) -> Self {
        Self { network: self.network.host(ip), ..self.clone() }
    }

    /// Returns the network.
    pub fn network(&self) -> &Network {
        &self.network
    }

    /// Chooses the first tagged offset of a new region. It can have any value, so the values include ones near limits.
    fn region_base(&self) -> u64 {
        match self.network.choose(|rng| rng.random_range(0..4)) {
            0 => 0,
            1 => 0xffff_ffff,
            2 => 0x7fff_0000_0000_1000,
            _ => 0xffff_8880_0000_0123,
        }
    }
}

impl Provider for Sim {
    fn caps(&self) -> ProviderCaps {
        ProviderCaps {
            name: "sim",
            private_data_max: self.private_data_max,
            shared_receives: true,
            remote_invalidation: true,
            keeps_credentials: false,
        }
    }

    fn listen(&self, local: SocketAddr) -> io::Result<Box<dyn Listener>> {
        SimListener::bind(self, local).map(|listener| Box::new(listener) as Box<dyn Listener>)
    }

    fn connect<'a>(
        &'a self,
        remote: SocketAddr,
        options: &'a QpOptions,
        private_data: &'a [u8],
        recvs: Vec<(WorkId, Buffer)>,
    ) -> BoxFuture<'a, io::Result<Connected>> {
        Box::pin(connect::connect(self, remote, options, private_data, recvs))
    }
}
