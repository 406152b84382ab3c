//! [`Connections`]: how many connections there are, and which one gives way to a new one.
//!
//! All transports of a server share one table. It counts by peer: a [`Host`], or a user of this host where the kernel names
//! one. When a limit is reached, the new connection takes the place of another:
//!
//! - at the total: of a host that is not served in full; else of one that has never called, from the peer with the most of
//!   these, the oldest first; else of the peer with the most connections, the least recently used idle one first;
//! - at the limit of one peer, or of hosts not served in full: of the least recently used idle one among those.
//!
//! So a peer that opens all connections only competes with itself. A busy connection gives way only if its peer has at
//! least two connections more than the new one's; otherwise the new connection is refused. Calls in progress on a closed
//! connection run to their end.
//!
//! Use is recorded without reading a clock: the table's time is the number of connections accepted so far.

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

use entropy::{HashMap, HashSet};
use parking_lot::Mutex;
use tokio::{
    sync::oneshot,
    time::{Sleep, sleep},
};

use crate::{Host, Peer, turns::PeerId};

/// Bounds of the connections of a server, over all of its transports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionLimits {
    /// Most connections.
    pub total: usize,
    /// Most connections of one host, and of one user on this host.
    pub per_host: usize,
    /// Most connections of all hosts that are not served in full ([`Hosts`](crate::Hosts)).
    pub strangers: usize,
    /// Most connections of one host that is not served in full.
    pub per_stranger: usize,
}

impl ConnectionLimits {
    /// So many connections in total; at most three quarters of them from one host.
    pub fn total(total: usize) -> Self {
        let per_host = (total / 4 * 3).max(1);
        Self { total, per_host, strangers: STRANGERS.min(total), per_stranger: PER_STRANGER.min(total) }
    }
}

impl Default for ConnectionLimits {
    fn default() -> Self {
        Self::total(16384)
    }
}

/// The table, shared by all who accept.
#[derive(Clone)]
pub(crate) struct Connections(Arc<Inner>);

struct Inner {
    limits: ConnectionLimits,
    /// Connections accepted so far: the time of the table.
    now: AtomicU64,
    table: Mutex<Table>,
}

#[derive(Default)]
struct Table {
    entries: HashMap<u64, Entry>,
    /// Connections of each peer.
    peers: HashMap<Unit, Arc<AtomicUsize>>,
    strangers: usize,
    log: Log,
}

/// The unit that connections are counted by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Unit {
    Host(Host),
    User(u32),
}

struct Entry {
    unit: Unit,
    stranger: bool,
    activity: Arc<Activity>,
    /// Dropped with the entry, which tells the connection to close.
    _open: oneshot::Sender<Infallible>,
}

/// What a connection tells about itself.
#[derive(Default)]
struct Activity {
    /// When it was last called; zero if never.
    used: AtomicU64,
    /// Whether a call is in progress.
    busy: AtomicBool,
}

/// The place of a connection in the table. It is free again when this is dropped.
pub(crate) struct Place {
    connections: Connections,
    id: u64,
    activity: Arc<Activity>,
    /// Connections of the same peer, this one among them.
    siblings: Arc<AtomicUsize>,
    closed: oneshot::Receiver<Infallible>,
    /// Until the first call.
    first_call: Option<Pin<Box<Sleep>>>,
}

impl Connections {
    pub fn new(limits: ConnectionLimits) -> Self {
        Self(Arc::new(Inner { limits, now: AtomicU64::new(1), table: Mutex::default() }))
    }

    /// A place for a connection of `peer`, which is served in full or not. Another connection may be closed for it. `None`
    /// if there is none.
    pub fn place(&self, peer: Peer, admitted: bool) -> Option<Place> {
        let unit = peer.user.map_or_else(|| Unit::Host(Host::of(peer.address)), Unit::User);
        let id = self.0.now.fetch_add(1, Relaxed);
        let mut table = self.0.table.lock();
        while let Some(scope) = self.0.limits.reached(&table, unit, !admitted) {
            let Some(victim) = table.victim(unit, scope) else {
                table.log.write(unit, "a connection was refused: its host or user has too many, and all are in use");
                return None;
            };
            let evicted = table.remove(victim).expect("a victim is in the table");
            table.log.write(evicted.unit, "connections are closed to make room for others");
        }
        let (open, closed) = oneshot::channel();
        let activity = Arc::<Activity>::default();
        let siblings = table.peers.entry(unit).or_default().clone();
        siblings.fetch_add(1, Relaxed);
        table.strangers += usize::from(!admitted);
        table.entries.insert(id, Entry { unit, stranger: !admitted, activity: activity.clone(), _open: open });
        Some(Place { connections: self.clone(), id, activity, siblings, closed, first_call: None })
    }

    /// Connections now.
    #[cfg(test)]
    fn len(&self) -> usize {
        self.0.table.lock().entries.len()
    }
}

/// The connections among which one gives way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scope {
    All,
    Strangers,
    Own,
}

impl ConnectionLimits {
    /// The limit that one more connection would exceed.
    fn reached(&self, table: &Table, unit: Unit, stranger: bool) -> Option<Scope> {
        let own = table.peers.get(&unit).map_or(0, |count| count.load(Relaxed));
        let own_max = if stranger { self.per_stranger.min(self.per_host) } else { self.per_host };
        if own >= own_max {
            return Some(Scope::Own);
        }
        if stranger && table.strangers >= self.strangers {
            return Some(Scope::Strangers);
        }
        (table.entries.len() >= self.total).then_some(Scope::All)
    }
}

impl Table {
    fn remove(&mut self, id: u64) -> Option<Entry> {
        let entry = self.entries.remove(&id)?;
        self.strangers -= usize::from(entry.stranger);
        let count = self.peers.get(&entry.unit).expect("it was counted");
        if count.fetch_sub(1, Relaxed) == 1 {
            self.peers.remove(&entry.unit);
        }
        Some(entry)
    }

    /// The connection that gives way to a new one of `unit`.
    fn victim(&self, unit: Unit, scope: Scope) -> Option<u64> {
        match scope {
            Scope::Own => self.least_used(|entry| entry.unit == unit, false),
            Scope::Strangers => self.of_heaviest(unit, |entry| entry.stranger),
            Scope::All => self
                .least_used(|entry| entry.stranger, false)
                .or_else(|| self.never_called())
                .or_else(|| self.of_heaviest(unit, |_| true)),
        }
    }

    /// The oldest connection without a call, of the peer that has the most of these.
    fn never_called(&self) -> Option<u64> {
        let silent = |entry: &&Entry| entry.activity.used.load(Relaxed) == 0;
        let mut counts = HashMap::<Unit, usize>::default();
        self.entries.values().filter(silent).for_each(|entry| *counts.entry(entry.unit).or_default() += 1);
        let (unit, _) = counts.into_iter().max_by_key(|&(unit, count)| (count, unit))?;
        self.least_used(|entry| entry.unit == unit && silent(&entry), false)
    }

    /// The least recently used connection of the peer that has the most of these; an idle one if there is one.
    fn of_heaviest(&self, newcomer: Unit, among: impl Fn(&Entry) -> bool) -> Option<u64> {
        let mut counts: HashMap<Unit, usize> = [(newcomer, 0)].into_iter().collect();
        self.entries
            .values()
            .filter(|entry| among(entry))
            .for_each(|entry| *counts.entry(entry.unit).or_default() += 1);
        let own = counts[&newcomer];
        // Of equals the newcomer itself.
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
    /// Records a call.
    pub fn called(&mut self) {
        self.first_call = None;
        self.activity.used.store(self.connections.0.now.load(Relaxed), Relaxed);
    }

    /// The peer, if it has several connections now, which then share its time.
    pub fn shared_peer(&self) -> Option<PeerId> {
        (self.siblings.load(Relaxed) > 1).then(|| PeerId(Arc::as_ptr(&self.siblings).addr()))
    }

    /// Records whether calls are in progress.
    pub fn set_busy(&self, busy: bool) {
        self.activity.busy.store(busy, Relaxed);
    }

    /// Starts the time within which the first call has to come.
    pub fn expect_call(&mut self) {
        self.first_call = Some(Box::pin(sleep(FIRST_CALL_MAX)));
    }

    /// Ready when the connection is to be closed.
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

/// Why a connection is to be closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Closed {
    /// It gave way to another.
    Evicted,
    /// Its first call has not come in time.
    Silent,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.connections.0.table.lock().remove(self.id);
    }
}

/// Writes of each peer at most one line a minute, and of all peers a bounded number.
#[derive(Default)]
struct Log {
    since: Option<Instant>,
    written: HashSet<Unit>,
    suppressed: u64,
}

impl Log {
    fn write(&mut self, unit: Unit, what: &'static str) {
        if self.is_due(unit, Instant::now()) {
            let suppressed = std::mem::take(&mut self.suppressed);
            match unit {
                Unit::Host(host) => tracing::warn!(%host, suppressed, "{what}"),
                Unit::User(user) => tracing::warn!(user, suppressed, "{what}"),
            }
        }
    }

    fn is_due(&mut self, unit: Unit, now: Instant) -> bool {
        if self.since.is_none_or(|since| now.duration_since(since) >= LOG_PERIOD) {
            self.since = Some(now);
            self.written.clear();
        }
        let due = self.written.len() < LOG_PEERS && self.written.insert(unit);
        self.suppressed += u64::from(!due);
        due
    }
}

const STRANGERS: usize = 256;
const PER_STRANGER: usize = 16;
/// How long a connection may be open before its first call.
const FIRST_CALL_MAX: Duration = Duration::from_secs(60);
const LOG_PERIOD: Duration = Duration::from_secs(60);
const LOG_PEERS: usize = 32;

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
    fn the_connections_of_a_peer_share_its_time() {
        let connections = table(100, 100);
        let alone = connections.place(host(1), true).unwrap();
        let several = [(); 2].map(|()| connections.place(host(2), true).unwrap());
        assert_eq!(alone.shared_peer(), None);
        assert_eq!(several[0].shared_peer(), several[1].shared_peer());
        assert!(several[0].shared_peer().is_some());
        let [last, other] = several;
        drop(other);
        assert_eq!(last.shared_peer(), None, "those that are closed do not count");
    }

    fn table(total: usize, per_host: usize) -> Connections {
        Connections::new(ConnectionLimits { total, per_host, strangers: 3, per_stranger: 2 })
    }

    fn is_closed(place: &mut Place) -> bool {
        matches!(place.closed.try_recv(), Err(oneshot::error::TryRecvError::Closed))
    }

    /// So many connections of `peer` that have called and are idle.
    fn idle(connections: &Connections, peer: Peer, count: usize) -> Vec<Place> {
        let called = |_| {
            let mut place = connections.place(peer, true).unwrap();
            place.called();
            place
        };
        (0..count).map(called).collect()
    }

    #[test]
    fn a_new_host_takes_the_place_of_the_heaviest_hosts_least_recently_used_connection() {
        let connections = table(10, 10);
        let mut light = idle(&connections, host(1), 3);
        let mut heavy = idle(&connections, host(2), 7);
        heavy[0].called();
        let _new = connections.place(host(3), true).unwrap();
        assert!(is_closed(&mut heavy[1]) && !is_closed(&mut heavy[0]));
        assert!(!light.iter_mut().any(is_closed));
        assert_eq!(connections.len(), 10);
        drop(heavy.remove(1));
        assert_eq!(connections.len(), 10, "the place of an evicted connection is given up once");
    }

    #[test]
    fn connections_without_a_call_give_way_first() {
        let connections = table(10, 10);
        let mut callers = idle(&connections, host(1), 6);
        let mut silent: Vec<_> = (0..4).map(|_| connections.place(host(2), true).unwrap()).collect();
        let _new = connections.place(host(3), true).unwrap();
        assert!(is_closed(&mut silent[0]) && !is_closed(&mut silent[1]));
        assert!(!callers.iter_mut().any(is_closed));
    }

    #[test]
    fn a_busy_connection_gives_way_only_to_a_peer_that_has_fewer() {
        let connections = table(4, 4);
        let mut heavy = idle(&connections, host(1), 4);
        heavy.iter().for_each(|place| place.set_busy(true));
        assert!(connections.place(host(1), true).is_none(), "it competes with itself");
        let first = connections.place(host(2), true).unwrap();
        first.set_busy(true);
        let mut first = first;
        first.called();
        assert!(is_closed(&mut heavy[0]));
        let mut second = connections.place(host(2), true).unwrap();
        second.called();
        second.set_busy(true);
        assert!(connections.place(host(2), true).is_none(), "two and two");
        second.set_busy(false);
        let _third = connections.place(host(2), true).unwrap();
        assert!(is_closed(&mut second), "its own idle one");
    }

    #[test]
    fn a_host_and_a_user_have_limits_of_their_own() {
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
    fn hosts_that_are_not_served_in_full_have_few() {
        let connections = table(5, 5);
        let mut strangers: Vec<_> = [1, 1, 2].map(|last| connections.place(host(last), false).unwrap()).into();
        strangers.push(connections.place(host(1), false).unwrap());
        assert!(is_closed(&mut strangers[0]), "at most two of each");
        strangers.push(connections.place(host(3), false).unwrap());
        assert!(is_closed(&mut strangers[1]), "at most three of all, and the heaviest gives way");
        let _admitted = idle(&connections, host(9), 5);
        assert!(strangers.iter_mut().all(is_closed), "they give way to all others");
    }

    #[tokio::test(start_paused = true)]
    async fn the_first_call_has_to_come_in_time() {
        let connections = table(5, 5);
        let (mut silent, mut calling) = (idle(&connections, host(1), 1), idle(&connections, host(1), 1));
        let (silent, calling) = (&mut silent[0], &mut calling[0]);
        silent.expect_call();
        calling.expect_call();
        calling.called();
        assert_eq!(std::future::poll_fn(|cx| silent.poll_closed(cx)).await, Closed::Silent);
        assert!(!is_closed(calling));
    }

    #[test]
    fn a_peer_is_written_of_once_a_minute_and_all_of_them_within_a_bound() {
        let mut log = Log::default();
        let now = Instant::now();
        assert!(log.is_due(Unit::User(1), now) && !log.is_due(Unit::User(1), now));
        assert_eq!((0..1000).filter(|&uid| log.is_due(Unit::User(uid), now)).count(), LOG_PEERS - 1);
        assert!(log.is_due(Unit::User(1), now + LOG_PERIOD));
    }

    proptest! {
        #[test]
        fn no_limit_is_ever_exceeded_and_a_host_without_connections_always_gets_one(
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
                    prop_assert!(table.entries.len() <= 8 && table.strangers <= 3);
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
