//! A simulated fabric inside one process, with a seed, on tokio's clock.
//!
//! Two ends in the same process exchange messages that take a random time and arrive in order, as RFC 5040 §5.5
//! requires. With a paused clock (`tokio::time::pause`, a current-thread runtime) a run depends only on its seed. With
//! a running clock it is an ordinary, slow network.
//!
//! Faults are requested by methods of [`Sim`]: [`cut_at`](Sim::cut_at) cuts a connection at a given message,
//! [`cut_all`](Sim::cut_all) cuts all connections, [`crash`](Sim::crash) removes one end, and [`stall`](Sim::stall)
//! delays the whole fabric. [`SimOptions::cut_probability`] cuts at random.
//!
//! Buffers belong to the queue pair while they are posted or registered, and are returned on every error.

mod connect;
mod link;
#[cfg(test)]
mod tests;

use std::{
    collections::BTreeMap,
    io,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    ops::RangeInclusive,
    sync::{Arc, Weak},
    time::Duration,
};

use buf::Buffer;
use parking_lot::Mutex;
use rand::{Rng, SeedableRng, rngs::StdRng};
use tokio::{sync::mpsc, time::Instant};

use self::{
    connect::{SimListener, SimRequest},
    link::Link,
};
use crate::{BoxFuture, Connected, Listener, Provider, ProviderCaps, QpError, QpOptions, WorkId};

/// The options of a [`Sim`].
#[derive(Clone, Debug)]
pub struct SimOptions {
    /// The seed of all random decisions.
    pub seed: u64,
    /// The latency of a message. Each message has its own latency in this range, but none overtakes another. tokio's
    /// timers count whole milliseconds, so smaller differences have no effect.
    pub latency: RangeInclusive<Duration>,
    /// The probability, from 0 to 1, that a connection is cut at a message, before or after its delivery.
    pub cut_probability: f64,
    /// Maximum bytes of private data.
    pub private_data_max: usize,
    /// Maximum number of regions of one queue pair.
    pub regions_max: usize,
}

impl Default for SimOptions {
    fn default() -> Self {
        Self {
            seed: 0,
            latency: Duration::from_millis(1)..=Duration::from_millis(10),
            cut_probability: 0.0,
            private_data_max: 196,
            regions_max: 4096,
        }
    }
}

/// The time of a cut relative to the delivery of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    /// The message is lost.
    Before,
    /// The message arrives, but nothing after it.
    After,
}

/// The kind of a message on the fabric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MessageKind {
    /// A Send.
    Send,
    /// An RDMA Write.
    Write,
    /// A request for an RDMA Read.
    ReadRequest,
    /// The response to an RDMA Read.
    ReadResponse,
}

/// The fabric, with a provider on it. Clones share the same fabric.
#[derive(Clone)]
pub struct Sim {
    fabric: Arc<Mutex<Fabric>>,
    options: Arc<SimOptions>,
    /// The address from which this provider's connections come.
    host: IpAddr,
}

struct Fabric {
    rng: StdRng,
    listeners: BTreeMap<SocketAddr, mpsc::UnboundedSender<SimRequest>>,
    links: Vec<Weak<Mutex<Link>>>,
    next_port: u16,
    messages: u64,
    cuts: BTreeMap<u64, Cut>,
    cut_probability: f64,
    stalled_until: Option<Instant>,
    refusing: bool,
}

impl Sim {
    /// Creates a fabric.
    pub fn new(options: SimOptions) -> Self {
        let fabric = Fabric {
            rng: StdRng::seed_from_u64(options.seed),
            listeners: BTreeMap::new(),
            links: Vec::new(),
            next_port: 32768,
            messages: 0,
            cuts: BTreeMap::new(),
            cut_probability: options.cut_probability,
            stalled_until: None,
            refusing: false,
        };
        let host = IpAddr::V4(Ipv4Addr::LOCALHOST);
        Self { fabric: Arc::new(Mutex::new(fabric)), options: Arc::new(options), host }
    }

    /// Returns a provider on the same fabric, for a host whose connections come from `ip`.
    pub fn host(&self, ip: IpAddr) -> Self {
        Self { host: ip, ..self.clone() }
    }

    /// Returns the number of messages of all connections that have reached their delivery. [`cut_at`](Self::cut_at)
    /// counts the same messages.
    pub fn messages(&self) -> u64 {
        self.fabric.lock().messages
    }

    /// Cuts the connection that carries the message with number `message` (the first is 0).
    pub fn cut_at(&self, message: u64, cut: Cut) {
        self.fabric.lock().cuts.insert(message, cut);
    }

    /// Changes [`SimOptions::cut_probability`].
    pub fn set_cut_probability(&self, probability: f64) {
        self.fabric.lock().cut_probability = probability;
    }

    /// Cuts every connection now. Messages in transit are lost.
    pub fn cut_all(&self) {
        for link in self.links() {
            link.lock().cut(QpError::Io(io::ErrorKind::ConnectionReset));
        }
    }

    /// Removes the end at `local` (a listener's address, or the local address of a connection): it stops listening, and
    /// its connections are lost.
    pub fn crash(&self, local: SocketAddr) {
        self.fabric.lock().listeners.remove(&local);
        for link in self.links() {
            let mut link = link.lock();
            if link.has_end_at(local) {
                link.cut(QpError::Io(io::ErrorKind::ConnectionReset));
            }
        }
    }

    /// Delays all messages for the next `duration`.
    pub fn stall(&self, duration: Duration) {
        self.fabric.lock().stalled_until = Some(Instant::now() + duration);
    }

    /// Refuses new connections, or accepts them again.
    pub fn set_refusing(&self, refusing: bool) {
        self.fabric.lock().refusing = refusing;
    }

    /// Returns the number of connections that both ends still hold.
    pub fn connections(&self) -> usize {
        self.links().iter().filter(|link| link.lock().is_open()).count()
    }

    fn links(&self) -> Vec<Arc<Mutex<Link>>> {
        self.fabric.lock().links.iter().filter_map(Weak::upgrade).collect()
    }

    fn latency(&self) -> Duration {
        self.fabric.lock().rng.random_range(self.options.latency.clone())
    }

    /// Returns the arrival time of a message that is sent now and must not overtake one that arrives at `after`.
    fn arrival(&self, after: Option<Instant>) -> Instant {
        let mut fabric = self.fabric.lock();
        let mut due = Instant::now() + fabric.rng.random_range(self.options.latency.clone());
        if let Some(until) = fabric.stalled_until {
            due = due.max(until);
        }
        after.map_or(due, |after| due.max(after))
    }

    /// Returns a tagged offset for a new region. A peer must accept any value.
    fn region_base(&self) -> u64 {
        match self.fabric.lock().rng.random_range(0..4) {
            0 => 0,
            1 => 0xffff_ffff,
            2 => 0x7fff_0000_0000_1000,
            _ => 0xffff_8880_0000_0123,
        }
    }

    /// Counts an arriving message. Returns a cut if its connection must be cut there.
    fn count_message(&self, kind: MessageKind) -> Option<Cut> {
        let mut fabric = self.fabric.lock();
        let number = fabric.messages;
        fabric.messages += 1;
        let probability = fabric.cut_probability;
        let cut = match fabric.cuts.remove(&number) {
            Some(cut) => Some(cut),
            None if probability > 0.0 && fabric.rng.random_bool(probability) => {
                Some(if fabric.rng.random() { Cut::Before } else { Cut::After })
            }
            None => None,
        };
        tracing::trace!(number, ?kind, ?cut, "message arrives");
        cut
    }
}

impl Provider for Sim {
    fn caps(&self) -> ProviderCaps {
        let private_data_max = self.options.private_data_max;
        ProviderCaps {
            name: "sim",
            private_data_max,
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

impl Fabric {
    fn take_port(&mut self) -> u16 {
        self.next_port = self.next_port.checked_add(1).unwrap_or(32768);
        self.next_port
    }

    fn add_link(&mut self, link: &Arc<Mutex<Link>>) {
        self.links.retain(|link| link.strong_count() > 0);
        self.links.push(Arc::downgrade(link));
    }
}
