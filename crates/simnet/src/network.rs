//! [`Network`]: the delays, faults, listeners and trace of a simulated network.

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

/// The options of a [`Network`].
#[derive(Clone, Debug)]
pub struct NetworkOptions {
    /// The seed of the delays and faults.
    pub seed: u64,
    /// The range from which the latency of each message is drawn. Messages of one connection do not overtake each other.
    /// tokio's timers count whole milliseconds, so finer latencies are rounded.
    pub latency: RangeInclusive<Duration>,
    /// The probability that a connection is cut at a message, before or after its delivery; 0 to 1.
    pub cut_probability: f64,
}

impl Default for NetworkOptions {
    fn default() -> Self {
        Self { seed: 0, latency: Duration::from_millis(1)..=Duration::from_millis(10), cut_probability: 0.0 }
    }
}

/// The point at which a connection is cut, relative to the delivery of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    /// The message is lost.
    Before,
    /// The message arrives. All later messages are lost.
    After,
}

/// A simulated network, from the view of one of its hosts. Clones share the network.
#[derive(Clone)]
pub struct Network {
    shared: Arc<Shared>,
    host: IpAddr,
}

/// A connection between two hosts that the network can cut.
pub trait Connection: Send + Sync {
    /// Returns `true` if one of its ends has this address.
    fn has_end_at(&self, local: SocketAddr) -> bool;

    /// Returns `true` if both ends are open.
    fn is_open(&self) -> bool;

    /// Closes both ends at once. Data in transit are lost.
    fn cut(&self);
}

struct Shared {
    seed: u64,
    /// `true` if the network was created in a simulation, so that all other random values follow from its seed, too.
    is_simulated: bool,
    latency: RangeInclusive<Duration>,
    began: Instant,
    state: Mutex<State>,
}

struct State {
    rng: StdRng,
    /// The listeners, by the type of their requests and their address. Each is the sender of an `mpsc` of that type.
    listeners: BTreeMap<(TypeId, SocketAddr), Box<dyn Any + Send>>,
    connections: Vec<Weak<dyn Connection>>,
    next_port: u16,
    next_reserved_port: u16,
    trace: Trace,
    cuts: BTreeMap<u64, Cut>,
    cut_probability: f64,
    stalled_until: Option<Instant>,
    refusing: bool,
    concealing: bool,
}

impl Network {
    /// Creates a network.
    pub fn new(options: NetworkOptions) -> Self {
        let NetworkOptions { seed, latency, cut_probability } = options;
        let state = State {
            rng: StdRng::seed_from_u64(seed),
            listeners: BTreeMap::new(),
            connections: Vec::new(),
            next_port: 32768,
            next_reserved_port: *RESERVED.end(),
            trace: Trace::default(),
            cuts: BTreeMap::new(),
            cut_probability,
            stalled_until: None,
            refusing: false,
            concealing: false,
        };
        let is_simulated = entropy::is_simulated();
        let shared = Shared { seed, is_simulated, latency, began: Instant::now(), state: Mutex::new(state) };
        Self { shared: Arc::new(shared), host: IpAddr::V4(Ipv4Addr::LOCALHOST) }
    }

    /// Returns the same network from the view of the host whose connections come from `ip`.
    pub fn host(&self, ip: IpAddr) -> Self {
        Self { host: ip, ..self.clone() }
    }

    /// Returns the messages that have arrived so far.
    pub fn trace(&self) -> Trace {
        self.shared.state.lock().trace.clone()
    }

    /// Returns the number of messages of all connections that have been delivered or lost by a cut so far.
    /// [`cut_at`](Self::cut_at) counts the same messages.
    pub fn messages(&self) -> u64 {
        self.shared.state.lock().trace.events.len() as u64
    }

    /// Records only the lengths of messages from now on. The keys of TLS do not follow from the seed, so the bytes of encrypted
    /// messages differ in each run.
    pub fn conceal(&self) {
        self.shared.state.lock().concealing = true;
    }

    /// Cuts the connection that carries the message with the number `message` (the first is 0).
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

    /// Closes the listeners at `local` and cuts the connections that have an end at this address.
    pub fn crash(&self, local: SocketAddr) {
        self.shared.state.lock().listeners.retain(|&(_, at), _| at != local);
        let live = self.live();
        live.iter().filter(|connection| connection.has_end_at(local)).for_each(|connection| connection.cut());
    }

    /// Delays messages that are sent from now on, so that none of them arrives in the next `duration`.
    pub fn stall(&self, duration: Duration) {
        self.shared.state.lock().stalled_until = Some(Instant::now() + duration);
    }

    /// Sets whether the network refuses new connections.
    pub fn set_refusing(&self, refusing: bool) {
        self.shared.state.lock().refusing = refusing;
    }

    /// Returns the number of connections of which both ends are open.
    pub fn connections(&self) -> usize {
        self.live().iter().filter(|connection| connection.is_open()).count()
    }

    fn live(&self) -> Vec<Arc<dyn Connection>> {
        self.shared.state.lock().connections.iter().filter_map(Weak::upgrade).collect()
    }
}

/// Methods for the implementations of connections.
impl Network {
    /// Returns the address of this host with the next port, for a new connection.
    pub fn take_address(&self) -> SocketAddr {
        SocketAddr::new(self.host, self.shared.state.lock().take_port())
    }

    /// Returns the address of this host with the next port below 1024, which on a real host only root can use.
    pub fn take_reserved_address(&self) -> SocketAddr {
        let mut state = self.shared.state.lock();
        let port = state.next_reserved_port;
        state.next_reserved_port = if port == *RESERVED.start() { *RESERVED.end() } else { port - 1 };
        SocketAddr::new(self.host, port)
    }

    /// Draws the latency of the next message.
    pub fn latency(&self) -> Duration {
        self.shared.state.lock().rng.random_range(self.shared.latency.clone())
    }

    /// Draws the arrival time of a message that is sent now. It is not before `after`, the arrival of an earlier message.
    pub fn arrival(&self, after: Option<Instant>) -> Instant {
        let due = Instant::now() + self.latency();
        let due = self.shared.state.lock().stalled_until.map_or(due, |until| due.max(until));
        after.map_or(due, |after| due.max(after))
    }

    /// Makes a random choice that follows from the seed.
    pub fn choose<T>(&self, choose: impl FnOnce(&mut StdRng) -> T) -> T {
        choose(&mut self.shared.state.lock().rng)
    }

    /// Records the arrival of a message, whose bytes are `pieces`. Returns the cut if the connection is cut at this message.
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
        let digest = match state.concealing {
            true => pieces.iter().map(|piece| piece.len() as u64).sum(),
            false => digest(pieces.iter().copied()),
        };
        state.trace.events.push(Event { at: self.shared.began.elapsed(), from, to, kind, digest, cut });
        cut
    }

    /// Adds a connection, so that the network can cut it.
    pub fn connected(&self, connection: Weak<dyn Connection>) {
        let mut state = self.shared.state.lock();
        state.connections.retain(|connection| connection.strong_count() > 0);
        state.connections.push(connection);
    }

    /// Listens at this address for the requests of type `T` that are sent with [`request`](Self::request). If the port is 0,
    /// the network chooses one.
    ///
    /// # Errors
    /// Returns `AddrInUse` if there is a listener for the same type at this address.
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

    /// Sends a request to the listener for its type at `remote`.
    ///
    /// # Errors
    /// Returns `ConnectionRefused` if there is no such listener, or if the network refuses connections.
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

    /// Returns the sender of requests to a listener, or `None` if there is no listener or it has been dropped.
    fn requests<T: Send + 'static>(&self, at: SocketAddr) -> Option<&mpsc::UnboundedSender<T>> {
        let sender = self.listeners.get(&(TypeId::of::<T>(), at))?.downcast_ref::<mpsc::UnboundedSender<T>>();
        sender.filter(|sender| !sender.is_closed())
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        if self.is_simulated {
            let trace = &self.state.get_mut().trace;
            run::report(self.seed, format_args!("messages {} trace {:016x}", trace.events.len(), trace.digest()));
        }
    }
}

/// A listener for requests. It receives them until it is dropped or its host crashes.
pub struct Listening<T: Send + 'static> {
    network: Network,
    local: SocketAddr,
    requests: mpsc::UnboundedReceiver<T>,
}

impl<T: Send + 'static> Listening<T> {
    /// Returns the address of the listener.
    pub fn local_addr(&self) -> SocketAddr {
        self.local
    }

    /// Waits for the next request.
    ///
    /// # Errors
    /// Returns `ConnectionAborted` if the host has crashed.
    pub async fn accept(&mut self) -> io::Result<T> {
        self.requests.recv().await.ok_or(io::ErrorKind::ConnectionAborted.into())
    }
}

impl<T: Send + 'static> Drop for Listening<T> {
    fn drop(&mut self) {
        self.requests.close();
        let mut state = self.network.shared.state.lock();
        // After a crash, another listener may have taken the address.
        if state.requests::<T>(self.local).is_none() {
            state.listeners.remove(&(TypeId::of::<T>(), self.local));
        }
    }
}

/// The ports below 1024 that connections use. More than this number of connections share ports.
const RESERVED: RangeInclusive<u16> = 512..=1023;
