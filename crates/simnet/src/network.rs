//! [`Network`]: delays, faults, listeners and the record of a simulated network, whatever travels over it.

use std::{
    any::{Any, TypeId},
    collections::BTreeMap,
    io,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    ops::RangeInclusive,
    sync::{Arc, Weak},
    time::Duration,
};

use parking_lot::Mutex;
use rand::{Rng, SeedableRng, rngs::StdRng};
use tokio::{sync::mpsc, time::Instant};

use crate::{Event, Trace, run, trace::digest};

/// How a [`Network`] behaves.
#[derive(Clone, Debug)]
pub struct NetworkOptions {
    /// Its delays and faults follow from this.
    pub seed: u64,
    /// How long a message takes. Each takes its own time from this range, but none overtakes another of its connection.
    /// tokio's timers count whole milliseconds, so finer differences make no difference.
    pub latency: RangeInclusive<Duration>,
    /// Probability that a connection is cut at a message, before or after its delivery; 0 to 1.
    pub cut_probability: f64,
}

impl Default for NetworkOptions {
    fn default() -> Self {
        Self { seed: 0, latency: Duration::from_millis(1)..=Duration::from_millis(10), cut_probability: 0.0 }
    }
}

/// When a connection is cut, relative to the delivery of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    /// The message is lost.
    Before,
    /// The message arrives, and nothing after it.
    After,
}

/// The network, as one of its hosts sees it. Clones are the same network.
#[derive(Clone)]
pub struct Network {
    shared: Arc<Shared>,
    host: IpAddr,
}

/// A connection of two hosts, for the faults that end it.
pub trait Connection: Send + Sync {
    /// Whether one of its ends has this address.
    fn has_end_at(&self, local: SocketAddr) -> bool;

    /// Whether neither end is over.
    fn is_open(&self) -> bool;

    /// Ends it at both ends at once. What is under way is lost.
    fn cut(&self);
}

struct Shared {
    seed: u64,
    /// Whether everything else is random by the seed as well.
    is_simulated: bool,
    latency: RangeInclusive<Duration>,
    began: Instant,
    state: Mutex<State>,
}

struct State {
    rng: StdRng,
    /// By what is listened for: the sender of an `mpsc` of that type.
    listeners: BTreeMap<(TypeId, SocketAddr), Box<dyn Any + Send>>,
    connections: Vec<Weak<dyn Connection>>,
    next_port: u16,
    trace: Trace,
    cuts: BTreeMap<u64, Cut>,
    cut_probability: f64,
    stalled_until: Option<Instant>,
    refusing: bool,
}

impl Network {
    /// A new network.
    pub fn new(options: NetworkOptions) -> Self {
        let NetworkOptions { seed, latency, cut_probability } = options;
        let state = State {
            rng: StdRng::seed_from_u64(seed),
            listeners: BTreeMap::new(),
            connections: Vec::new(),
            next_port: 32768,
            trace: Trace::default(),
            cuts: BTreeMap::new(),
            cut_probability,
            stalled_until: None,
            refusing: false,
        };
        let is_simulated = entropy::is_simulated();
        let shared = Shared { seed, is_simulated, latency, began: Instant::now(), state: Mutex::new(state) };
        Self { shared: Arc::new(shared), host: IpAddr::V4(Ipv4Addr::LOCALHOST) }
    }

    /// The same network, for a host whose connections come from `ip`.
    pub fn host(&self, ip: IpAddr) -> Self {
        Self { host: ip, ..self.clone() }
    }

    /// What has arrived so far.
    pub fn trace(&self) -> Trace {
        self.shared.state.lock().trace.clone()
    }

    /// Messages that have come to their delivery so far, of all connections: the numbers that
    /// [`cut_at`](Self::cut_at) counts.
    pub fn messages(&self) -> u64 {
        self.shared.state.lock().trace.events.len() as u64
    }

    /// Cuts the connection that carries the message of number `message` (the first is 0).
    pub fn cut_at(&self, message: u64, cut: Cut) {
        self.shared.state.lock().cuts.insert(message, cut);
    }

    /// Changes [`NetworkOptions::cut_probability`].
    pub fn set_cut_probability(&self, probability: f64) {
        self.shared.state.lock().cut_probability = probability;
    }

    /// Cuts every connection now.
    pub fn cut_all(&self) {
        self.live().iter().for_each(|connection| connection.cut());
    }

    /// The end at `local` (a listener's address, or a host's own of a connection) is gone from now on: it
    /// listens no more, and its connections are lost.
    pub fn crash(&self, local: SocketAddr) {
        self.shared.state.lock().listeners.retain(|&(_, at), _| at != local);
        let live = self.live();
        live.iter().filter(|connection| connection.has_end_at(local)).for_each(|connection| connection.cut());
    }

    /// Nothing arrives anywhere for the next `duration`.
    pub fn stall(&self, duration: Duration) {
        self.shared.state.lock().stalled_until = Some(Instant::now() + duration);
    }

    /// Whether new connections are refused.
    pub fn set_refusing(&self, refusing: bool) {
        self.shared.state.lock().refusing = refusing;
    }

    /// Connections that both ends still hold.
    pub fn connections(&self) -> usize {
        self.live().iter().filter(|connection| connection.is_open()).count()
    }

    fn live(&self) -> Vec<Arc<dyn Connection>> {
        self.shared.state.lock().connections.iter().filter_map(Weak::upgrade).collect()
    }
}

/// For what travels over a network.
impl Network {
    /// An address of this host for a new connection.
    pub fn take_address(&self) -> SocketAddr {
        SocketAddr::new(self.host, self.shared.state.lock().take_port())
    }

    /// How long the next message takes.
    pub fn latency(&self) -> Duration {
        self.shared.state.lock().rng.random_range(self.shared.latency.clone())
    }

    /// When a message that leaves now arrives, if it must not overtake one that arrives at `after`.
    pub fn arrival(&self, after: Option<Instant>) -> Instant {
        let due = Instant::now() + self.latency();
        let due = self.shared.state.lock().stalled_until.map_or(due, |until| due.max(until));
        after.map_or(due, |after| due.max(after))
    }

    /// A choice that follows from the seed.
    pub fn choose<T>(&self, choose: impl FnOnce(&mut StdRng) -> T) -> T {
        choose(&mut self.shared.state.lock().rng)
    }

    /// Records a message that arrives, and says whether its connection is cut there. The pieces are the message's bytes.
    pub fn deliver(&self, (from, to): (SocketAddr, SocketAddr), kind: &'static str, pieces: &[&[u8]]) -> Option<Cut> {
        let mut state = self.shared.state.lock();
        let number = state.trace.events.len() as u64;
        let probability = state.cut_probability;
        let cut = match state.cuts.remove(&number) {
            Some(cut) => Some(cut),
            None if probability > 0.0 && state.rng.random_bool(probability) => {
                Some(if state.rng.random() { Cut::Before } else { Cut::After })
            }
            None => None,
        };
        tracing::trace!(number, kind, ?cut, "message arrives");
        let digest = digest(pieces.iter().copied());
        state.trace.events.push(Event { at: self.shared.began.elapsed(), from, to, kind, digest, cut });
        cut
    }

    /// Makes a connection known to the faults.
    pub fn connected(&self, connection: Weak<dyn Connection>) {
        let mut state = self.shared.state.lock();
        state.connections.retain(|connection| connection.strong_count() > 0);
        state.connections.push(connection);
    }

    /// Listens at this address, at any port if it has none, for what is given to [`request`](Self::request).
    ///
    /// # Errors
    /// Somebody listens there for the same.
    pub fn listen<T: Send + 'static>(&self, mut local: SocketAddr) -> io::Result<Listening<T>> {
        let mut state = self.shared.state.lock();
        if local.port() == 0 {
            local.set_port(state.take_port());
        }
        if state.requests::<T>(local).is_some() {
            return Err(io::ErrorKind::AddrInUse.into());
        }
        let (sender, requests) = mpsc::unbounded_channel::<T>();
        state.listeners.insert((TypeId::of::<T>(), local), Box::new(sender));
        Ok(Listening { network: self.clone(), local, requests })
    }

    /// Gives a request to who listens at `remote` for such.
    ///
    /// # Errors
    /// Nobody does, or the network refuses connections.
    pub fn request<T: Send + 'static>(&self, remote: SocketAddr, request: T) -> io::Result<()> {
        let state = self.shared.state.lock();
        let sender = state.requests::<T>(remote).filter(|_| !state.refusing).cloned();
        drop(state);
        sender.and_then(|sender| sender.send(request).ok()).ok_or(io::ErrorKind::ConnectionRefused.into())
    }
}

impl State {
    fn take_port(&mut self) -> u16 {
        self.next_port = self.next_port.checked_add(1).unwrap_or(32768);
        self.next_port
    }

    /// Where requests go; absent if the listener has been dropped.
    fn requests<T: Send + 'static>(&self, at: SocketAddr) -> Option<&mpsc::UnboundedSender<T>> {
        let sender = self.listeners.get(&(TypeId::of::<T>(), at))?.downcast_ref::<mpsc::UnboundedSender<T>>();
        sender.filter(|sender| !sender.is_closed())
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        if self.is_simulated {
            run::report(self.seed, &self.state.get_mut().trace);
        }
    }
}

/// A place where requests arrive, until it is dropped or its host crashes.
pub struct Listening<T: Send + 'static> {
    network: Network,
    local: SocketAddr,
    requests: mpsc::UnboundedReceiver<T>,
}

impl<T: Send + 'static> Listening<T> {
    /// Where it is.
    pub fn local_addr(&self) -> SocketAddr {
        self.local
    }

    /// The next request.
    ///
    /// # Errors
    /// The host has crashed.
    pub async fn accept(&mut self) -> io::Result<T> {
        self.requests.recv().await.ok_or(io::ErrorKind::ConnectionAborted.into())
    }
}

impl<T: Send + 'static> Drop for Listening<T> {
    fn drop(&mut self) {
        self.requests.close();
        let mut state = self.network.shared.state.lock();
        // Somebody else may listen there since a crash.
        if state.requests::<T>(self.local).is_none() {
            state.listeners.remove(&(TypeId::of::<T>(), self.local));
        }
    }
}
