//! A provider on a simulated network ([`simnet`]), on tokio's clock.
//!
//! Two ends in the same process exchange messages that take a random time, in order, as RFC 5040
//! §5.5 has them. With the clock paused (`tokio::time::pause`, a current-thread runtime) a run is a
//! function of its seed; with the clock running it is an ordinary, slow network.
//!
//! Faults are commanded on the [`Network`]: [`cut_at`](Network::cut_at) a given message, cut at random
//! ([`NetworkOptions::cut_probability`]), [`cut_all`](Network::cut_all), [`crash`](Network::crash) one end,
//! [`stall`](Network::stall) the whole network.
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

/// A provider on a simulated network, as one of its hosts has it. Clones have the same network.
#[derive(Clone)]
pub struct Sim {
    network: Network,
    /// Longest private data, in bytes.
    private_data_max: usize,
    /// Regions that one queue pair can have.
    regions_max: usize,
}

impl Sim {
    /// On a network of its own.
    pub fn new(options: NetworkOptions) -> Self {
        Self::on(Network::new(options))
    }

    /// On this network, for the host of this view of it.
    pub fn on(network: Network) -> Self {
        Self { network, private_data_max: 196, regions_max: 4096 }
    }

    /// With private data of `bytes` at most.
    pub fn with_private_data_max(self, bytes: usize) -> Self {
        Self { private_data_max: bytes, ..self }
    }

    /// On the same network, for a host whose connections come from `ip`.
    pub fn host(&self, ip: IpAddr) -> Self {
        Self { network: self.network.host(ip), ..self.clone() }
    }

    /// The network.
    pub fn network(&self) -> &Network {
        &self.network
    }

    /// A tagged offset for a new region: any value that a peer must be able to bear.
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
