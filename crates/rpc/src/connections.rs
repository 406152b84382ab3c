//! [`Connections`]: limits the number of connections, and chooses which one to evict for a new one.
//!
//! All transports of a server share one table. It counts connections by peer: a [`Host`], or a user of this host if the
//! kernel names one. When a limit is reached, an existing connection is evicted to make room for the new one:
//!
//! - If the total limit is reached: a connection of a host that is not admitted; if there is none, a connection that
//!   has never made a call, from the peer that has the most of these, the oldest first; otherwise a connection of the
//!   peer that has the most connections, the least recently used idle one first.
//! - If the limit of one peer or of hosts that are not admitted is reached: the least recently used idle connection
//!   among these.
//!
//! So a peer that opens as many connections as it can only competes with itself. A busy connection is evicted only if
//! its peer has at least two connections more than the peer of the new connection; otherwise the new connection is
//! refused. Calls in progress on an evicted connection are executed to their end.
//!
//! Recording a use does not read the clock: the table's time is the number of connections accepted so far.

use std::{
    convert::Infallible,
    future::Future,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed},
    },
    task::{Context, Poll},
    time::{Duration, Instant},
};

use entropy::HashMap;
use parking_lot::Mutex;
use tokio::{
    sync::oneshot,
    time::{Sleep, sleep},
};

use crate::{Host, Peer, peer_log::PeerLog, turns::PeerId};

/// Limits on the connections of a server, over all of its transports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionLimits {
    /// Maximum number of connections.
    pub total: usize,
    /// Maximum number of connections of one host, and of one user on this host.
    pub per_host: usize,
    /// Maximum number of connections of all hosts together that are not admitted ([`Hosts`](crate::Hosts)).
    pub unadmitted: usize,
    /// Maximum number of connections of one host that is not admitted.
    pub per_unadmitted_host: usize,
}

impl ConnectionLimits {
    /// Limits with `total` connections; one host can have at most three quarters of them.
    pub fn total(total: usize) -> Self {
        let per_host = (total / 4 * 3).max(1);
        Self { total, per_host, unadmitted: UNADMITTED.min(total), per_unadmitted_host: PER_UNADMITTED_HOST.min(total) }
    }
}

impl Default for ConnectionLimits {
    fn default() -> Self {
        Self::total(16384)
    }
}

/// The table of connections, shared by all listeners.
#[derive(Clone)]
pub(crate) struct Connections(Arc<Inner>);

struct Inner {
    limits: ConnectionLimits,
    /// The number of connections accepted so far: the time of the table.
    now: AtomicU64,
    table: Mutex<Table>,
}

#[derive(Default)]
struct Table {
    entries: HashMap<u64, Entry>,
    /// The number of connections of each peer.
    peers: HashMap<Unit, Arc<AtomicUsize>>,
    unadmitted: usize,
    log: PeerLog<Unit>,
}

/// A peer by which connections are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Unit {
    Host(Host),
    User(u32),
}

struct Entry {
    unit: Unit,
    unadmitted: bool,
    activity: Arc<Activity>,
    /// Dropped with the entry, which tells the connection to close.
    _open: oneshot::Sender<Infallible>,
}

/// The state that a connection reports about itself.
#[derive(Default)]
struct Activity {
    /// The table's time of its last call; zero if there was none.
    used: AtomicU64,
    /// `true` while a call is in progress.
    busy: AtomicBool,
}

/// The entry of a connection in the table. Dropping it removes the entry.
pub(crate) struct Place {
    connections: Connections,
    id: u64,
    activity: Arc<Activity>,
    /// The number of connections of the same peer, including this one.
    siblings: Arc<AtomicUsize>,
    closed: oneshot::Receiver<Infallible>,
    /// The timer for the first call; `None` after that call.
    first_call: Option<Pin<Box<Sleep>>>,
}

impl Connections {
    pub fn new(limits: ConnectionLimits) -> Self {
        Self(Arc::new(Inner { limits, now: AtomicU64::new(1), table: Mutex::default() }))
    }

    /// Adds an entry for a connection of `peer`, whose host is `admitted` or not. Can evict another connection. Returns
    /// `None` if a limit is reached and no connection can be evicted.
    pub fn place(&self, peer: Peer, admitted: bool) -> Option<Place> {
        let unit = peer.user.map_or_else(|| Unit::Host(Host::of(peer.address)), Unit::User);
        let id = self.0.now.fetch_add(1, Relaxed);
        let mut table = self.0.table.lock();
        while let Some(scope) = self.0.limits.reached(&table, unit, !admitted) {
            let Some(victim) = table.victim(unit, scope) else {
                warn(
                    &mut table.log,
                    unit,
                    "a connection was refused: its host or user has too many connections, and all are in use",
                );
                return None;
            };
            let evicted = table.remove(victim).expect("the victim must be in the table");
            warn(&mut table.log, evicted.unit, "connections are evicted to make room for others");
        }
        let (open, closed) = oneshot::channel();
        let activity = Arc::<Activity>::default();
        let siblings = table.peers.entry(unit).or_default().clone();
        siblings.fetch_add(1, Relaxed);
        table.unadmitted += usize::from(!admitted);
        table.entries.insert(id, Entry { unit, unadmitted: !admitted, activity: activity.clone(), _open: open });
        Some(Place { connections: self.clone(), id, activity, siblings, closed, first_call: None })
    }

    /// Returns the number of connections in the table.
    #[cfg(test)]
    fn len(&self) -> usize {
        self.0.table.lock().entries.len()
    }
}

/// The connections among which a victim is chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scope {
    All,
    Unadmitted,
    Own,
}

impl ConnectionLimits {
    /// Returns the scope of the limit that one more connection would exceed.
    fn reached(&self, table: &Table, unit: Unit, unadmitted: bool) -> Option<Scope> {
        let own = table.peers.get(&unit).map_or(0, |count| count.load(Relaxed));
        let own_max = if unadmitted { self.per_unadmitted_host.min(self.per_host) } else { self.per_host };
        if own >= own_max {
            return Some(Scope::Own);
        }
        if unadmitted && table.unadmitted >= self.unadmitted {
            return Some(Scope::Unadmitted);
        }
        (table.entries.len() >= self.total).then_some(Scope::All)
    }
}

impl Table {
    fn remove(&mut self, id: u64) -> Option<Entry> {
        let entry = self.entries.remove(&id)?;
        self.unadmitted -= usize::from(entry.unadmitted);
        let count = self.peers.get(&entry.unit).expect("the peer of an entry must have a count");
        if count.fetch_sub(1, Relaxed) == 1 {
            self.peers.remove(&entry.unit);
        }
        Some(entry)
    }

    /// Returns the connection to evict for a new connection of `unit`.
    fn victim(&self, unit: Unit, scope: Scope) -> Option<u64> {
        match scope {
            Scope::Own => self.least_used(|entry| entry.unit == unit, false),
            Scope::Unadmitted => self.of_heaviest(unit, |entry| entry.unadmitted),
            Scope::All => self
                .least_used(|entry| entry.unadmitted, false)
                .or_else(|| self.never_called())
                .or_else(|| self.of_heaviest(unit, |_| true)),
        }
    }

    /// Returns the oldest connection that has never made a call, of the peer that has the most of these.
    fn never_called(&self) -> Option<u64> {
        let silent = |entry: &&Entry| entry.activity.used.load(Relaxed) == 0;
        let mut counts = HashMap::<Unit, usize>::default();
        self.entries.values().filter(silent).for_each(|entry| *counts.entry(entry.unit).or_default() += 1);
        let (unit, _) = counts.into_iter().max_by_key(|&(unit, count)| (count, unit))?;
        self.least_used(|entry| entry.unit == unit && silent(&entry), false)
    }

    /// Returns the least recently used connection of the peer that has the most of these; an idle one if there is one.
    fn of_heaviest(&self, newcomer: Unit, among: impl Fn(&Entry) -> bool) -> Option<u64> {
        let mut counts: HashMap<Unit, usize> = [(newcomer, 0)].into_iter().collect();
        self.entries
            .values()
            .filter(|entry| among(entry))
            .for_each(|entry| *counts.entry(entry.unit).or_default() += 1);
        let own = counts[&newcomer];
        // If the newcomer has as many as another peer, the newcomer counts as the heaviest.
        let (heaviest, count) = counts.into_iter().max_by_key(|&(unit, count)| (count, unit == newcomer, unit))?;
        let its = |entry: &Entry| entry.unit == heaviest && among(entry);
        self.least_used(its, false).or_else(|| self.least_used(its, true).filter(|_| count >= own + 2))
    }

    fn least_used(&self, among: impl Fn(&Entry) -> bool, busy: bool) -> Option<u64> {
        let candidates =
            self.entries.iter().filter(|(_, entry)| (busy || !entry.activity.busy.load(Relaxed)) && among(entry));
        let (id, _) = candidates.min_by_key(|&(&id, entry)| (entry.activity.used.load(Relaxed), id))?;
        Some(*id)
    }
}

impl Place {
    /// Records that a call arrived.
    pub fn called(&mut self) {
        self.first_call = None;
        self.activity.used.store(self.connections.0.now.load(Relaxed), Relaxed);
    }

    /// Returns the peer if it has several connections, which then share its time.
    pub fn shared_peer(&self) -> Option<PeerId> {
        (self.siblings.load(Relaxed) > 1).then(|| PeerId(Arc::as_ptr(&self.siblings).addr()))
    }

    /// Records whether calls are in progress.
    pub fn set_busy(&self, busy: bool) {
        self.activity.busy.store(busy, Relaxed);
    }

    /// Starts the time limit for the first call.
    pub fn expect_call(&mut self) {
        self.first_call = Some(Box::pin(sleep(FIRST_CALL_MAX)));
    }

    /// Returns `Ready` when the connection must be closed.
    pub fn poll_closed(&mut self, cx: &mut Context<'_>) -> Poll<Closed> {
        if Pin::new(&mut self.closed).poll(cx).is_ready() {
            return Poll::Ready(Closed::Evicted);
        }
        match &mut self.first_call {
            Some(first_call) => first_call.as_mut().poll(cx).map(|()| Closed::Silent),
            None => Poll::Pending,
        }
    }
}

/// The reason why a connection must be closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Closed {
    /// The connection was evicted to make room for another.
    Evicted,
    /// The first call did not arrive in time.
    Silent,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.connections.0.table.lock().remove(self.id);
    }
}

/// Warns about the connections of a peer, unless there were such warnings recently.
fn warn(log: &mut PeerLog<Unit>, unit: Unit, what: &'static str) {
    if let Some(suppressed) = log.admit(unit, Instant::now()) {
        match unit {
            Unit::Host(host) => tracing::warn!(%host, suppressed, "{what}"),
            Unit::User(user) => tracing::warn!(user, suppressed, "{what}"),
        }
    }
}

const UNADMITTED: usize = 256;
const PER_UNADMITTED_HOST: usize = 16;
/// Maximum time for which a connection can be open before its first call.
const FIRST_CALL_MAX: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use proptest::prelude::*;

    use super::*;

    fn host(last: u8) -> Peer {
        Peer { address: IpAddr::from([10, 0, 0, last]), user: None }
    }

    fn user(uid: u32) -> Peer {
        Peer { address: IpAddr::from([127, 0, 0, 1]), user: Some(uid) }
    }

    #[test]
    fn connections_of_one_peer_share_its_time() {
        let connections = table(100, 100);
        let alone = connections.place(host(1), true).unwrap();
        let several = [(); 2].map(|()| connections.place(host(2), true).unwrap());
        assert_eq!(alone.shared_peer(), None);
        assert_eq!(several[0].shared_peer(), several[1].shared_peer());
        assert!(several[0].shared_peer().is_some());
        let [last, other] = several;
        drop(other);
        assert_eq!(last.shared_peer(), None, "closed connections must not count");
    }

    fn table(total: usize, per_host: usize) -> Connections {
        Connections::new(ConnectionLimits { total, per_host, unadmitted: 3, per_unadmitted_host: 2 })
    }

    fn is_closed(place: &mut Place) -> bool {
        matches!(place.closed.try_recv(), Err(oneshot::error::TryRecvError::Closed))
    }

    /// Opens `count` connections of `peer` that have made a call and are idle.
    fn idle(connections: &Connections, peer: Peer, count: usize) -> Vec<Place> {
        let called = |_| {
            let mut place = connections.place(peer, true).unwrap();
            place.called();
            place
        };
        (0..count).map(called).collect()
    }

    #[test]
    fn new_host_evicts_least_recently_used_connection_of_heaviest_host() {
        let connections = table(10, 10);
        let mut light = idle(&connections, host(1), 3);
        let mut heavy = idle(&connections, host(2), 7);
        heavy[0].called();
        let _new = connections.place(host(3), true).unwrap();
        assert!(is_closed(&mut heavy[1]) && !is_closed(&mut heavy[0]));
        assert!(!light.iter_mut().any(is_closed));
        assert_eq!(connections.len(), 10);
        drop(heavy.remove(1));
        assert_eq!(connections.len(), 10, "an evicted connection must be removed only once");
    }

    #[test]
    fn connections_without_calls_are_evicted_first() {
        let connections = table(10, 10);
        let mut callers = idle(&connections, host(1), 6);
        let mut silent: Vec<_> = (0..4).map(|_| connections.place(host(2), true).unwrap()).collect();
        let _new = connections.place(host(3), true).unwrap();
        assert!(is_closed(&mut silent[0]) && !is_closed(&mut silent[1]));
        assert!(!callers.iter_mut().any(is_closed));
    }

    #[test]
    fn busy_connection_is_evicted_only_for_peer_with_fewer_connections() {
        let connections = table(4, 4);
        let mut heavy = idle(&connections, host(1), 4);
        heavy.iter().for_each(|place| place.set_busy(true));
        assert!(connections.place(host(1), true).is_none(), "a peer must compete only with itself");
        let first = connections.place(host(2), true).unwrap();
        first.set_busy(true);
        let mut first = first;
        first.called();
        assert!(is_closed(&mut heavy[0]));
        let mut second = connections.place(host(2), true).unwrap();
        second.called();
        second.set_busy(true);
        assert!(connections.place(host(2), true).is_none(), "both peers have two connections");
        second.set_busy(false);
        let _third = connections.place(host(2), true).unwrap();
        assert!(is_closed(&mut second), "the peer's own idle connection must be evicted");
    }

    #[test]
    fn hosts_and_users_have_separate_limits() {
        let connections = table(100, 4);
        let mut of_host = idle(&connections, host(1), 4);
        let mut of_user = idle(&connections, user(1000), 4);
        let mut of_other = idle(&connections, user(1001), 4);
        let _new = connections.place(user(1000), true).unwrap();
        assert!(is_closed(&mut of_user[0]));
        assert!(![&mut of_host, &mut of_other].into_iter().flatten().any(is_closed));
        assert_eq!(connections.len(), 12);
    }

    #[test]
    fn hosts_that_are_not_admitted_have_lower_limits() {
        let connections = table(5, 5);
        let mut unadmitted: Vec<_> = [1, 1, 2].map(|last| connections.place(host(last), false).unwrap()).into();
        unadmitted.push(connections.place(host(1), false).unwrap());
        assert!(is_closed(&mut unadmitted[0]), "each such host has at most two connections");
        unadmitted.push(connections.place(host(3), false).unwrap());
        assert!(is_closed(&mut unadmitted[1]), "all such hosts have at most three; the heaviest loses one");
        let _admitted = idle(&connections, host(9), 5);
        assert!(unadmitted.iter_mut().all(is_closed), "they must be evicted for admitted hosts");
    }

    #[tokio::test(start_paused = true)]
    async fn connection_without_first_call_times_out() {
        let connections = table(5, 5);
        let (mut silent, mut calling) = (idle(&connections, host(1), 1), idle(&connections, host(1), 1));
        let (silent, calling) = (&mut silent[0], &mut calling[0]);
        silent.expect_call();
        calling.expect_call();
        calling.called();
        assert_eq!(std::future::poll_fn(|cx| silent.poll_closed(cx)).await, Closed::Silent);
        assert!(!is_closed(calling));
    }

    proptest! {
        #[test]
        fn limits_hold_and_host_without_connections_always_gets_one(
            steps in prop::collection::vec((0u8..6, any::<bool>(), any::<bool>(), 0usize..20), 1..200),
        ) {
            let connections = table(8, 5);
            let mut places: Vec<Place> = Vec::new();
            for (last, called, busy, drop_at) in steps {
                let admitted = last < 4;
                let had = places.iter_mut().any(|place| !is_closed(place) && {
                    let table = connections.0.table.lock();
                    table.entries[&place.id].unit == Unit::Host(Host::of(host(last).address))
                });
                match connections.place(host(last), admitted) {
                    Some(mut place) => {
                        if called { place.called() }
                        place.set_busy(busy);
                        places.push(place);
                    }
                    None => prop_assert!(had || !admitted),
                }
                {
                    let table = connections.0.table.lock();
                    prop_assert!(table.entries.len() <= 8 && table.unadmitted <= 3);
                    prop_assert!(table.peers.values().all(|count| (1..=5).contains(&count.load(Relaxed))));
                    prop_assert_eq!(table.peers.values().map(|count| count.load(Relaxed)).sum::<usize>(), table.entries.len());
                }
                if drop_at < places.len() {
                    places.swap_remove(drop_at);
                }
            }
            drop(places);
            prop_assert_eq!(connections.len(), 0);
            prop_assert!(connections.0.table.lock().peers.is_empty());
        }
    }
}
