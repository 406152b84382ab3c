//! [`Table`]: the contexts of a server, of all connections. It is bounded, and does no I/O.
//!
//! A context is **unproved** until its first call with a correct verifier. The token that begins a context of Kerberos
//! can be sniffed and replayed for some minutes, so an established context does not show that its host knows the key. An
//! unproved context ends after a minute. It counts for its host, and can be evicted only by other unproved contexts.
//!
//! A proved context counts for its principal. A principal with too many loses the one that was not used for the longest
//! time. If all principals together have too many, the one with the longest tokens, or with the most contexts, loses one.
//! So neither a replay nor a user can evict a context that another user has proved, unless that user has more of them.
//! The client of an evicted context negotiates another one.
//!
//! Negotiations that need another token are separate. A host can have only some of them.
//!
//! The library can need some time to delete a context. So functions return what they have removed, as [`Removed`], and
//! the caller drops it after it has released its lock of the table.

use std::{
    collections::BTreeSet,
    sync::{
        Arc,
        atomic::{
            AtomicBool, AtomicU64,
            Ordering::{Acquire, Relaxed, Release},
        },
    },
    time::Duration,
};

use bytes::Bytes;
use entropy::HashMap;
use parking_lot::Mutex;
use rpc::Host;
use tokio::time::Instant;

use crate::{
    mechanism::{Context, Negotiation},
    server::GssLimits,
    shares::{ShareLimits, Shares},
    window::Window,
};

/// The random name of a context. Nobody can guess it, and every verifier covers it.
pub(crate) type Handle = [u8; 16];

/// An established context of a server.
pub(crate) struct ServerContext {
    pub context: Box<dyn Context>,
    pub principal: Bytes,
    pub window: Mutex<Window>,
    pub expires: Option<Instant>,
    /// The host that has negotiated it.
    pub host: Host,
    /// The length of the client's tokens, which the library keeps.
    pub tokens: usize,
    pub handle: Handle,
    /// The number of the insertion.
    pub serial: u64,
    /// `true` after the first call with a correct verifier. Only [`Table::prove`] sets it.
    proved: AtomicBool,
    /// When it ends if it stays unproved.
    unproved_until: Instant,
    /// The number of the last use, from [`Table::uses`].
    used: AtomicU64,
}

/// The properties of a [`ServerContext`] that is added.
pub(crate) struct NewContext {
    pub context: Box<dyn Context>,
    pub principal: Bytes,
    pub expires: Option<Instant>,
    pub host: Host,
    pub tokens: usize,
}

impl ServerContext {
    pub fn is_proved(&self) -> bool {
        self.proved.load(Acquire)
    }

    /// Records a call with a correct verifier. `uses` is [`Table::uses`].
    pub fn note_use(&self, uses: &AtomicU64) {
        self.used.store(uses.fetch_add(1, Relaxed), Relaxed);
    }

    /// Returns the number of the last use.
    pub fn last_use(&self) -> u64 {
        self.used.load(Relaxed)
    }

    /// Returns the time at which the context ends, if it does.
    fn end(&self) -> Option<Instant> {
        match self.is_proved() {
            true => self.expires,
            false => Some(self.expires.map_or(self.unproved_until, |at| at.min(self.unproved_until))),
        }
    }
}

/// A negotiation that waits for another token.
struct HalfOpen {
    /// The lock is never contended; it makes the table usable by all threads.
    negotiation: Mutex<Box<dyn Negotiation>>,
    host: Host,
    since: Instant,
    tokens: usize,
}

/// Removed contexts and negotiations, for the caller to drop without a lock.
#[derive(Default)]
#[must_use = "it must be dropped without the lock of the table"]
pub(crate) struct Removed {
    contexts: Vec<Arc<ServerContext>>,
    negotiations: Vec<HalfOpen>,
}

impl Removed {
    pub fn len(&self) -> usize {
        self.contexts.len() + self.negotiations.len()
    }
}

pub(crate) struct Table {
    limits: GssLimits,
    contexts: HashMap<Handle, Arc<ServerContext>>,
    unproved: Shares<Host>,
    proved: Shares<Bytes>,
    /// The contexts by the time at which they end.
    ends: BTreeSet<(Instant, Handle)>,
    half_open: HashMap<Handle, HalfOpen>,
    uses: Arc<AtomicU64>,
    inserted: u64,
}

impl Table {
    pub fn new(limits: GssLimits) -> Self {
        let GssLimits { contexts_max, contexts_per_principal, unproved_per_host, tokens_max, .. } = limits;
        let unproved_tokens = tokens_max / UNPROVED_PART;
        let unproved_max = (contexts_max / UNPROVED_PART).max(1);
        let unproved = ShareLimits { all: unproved_max, each: unproved_per_host, tokens: unproved_tokens };
        let proved =
            ShareLimits { all: contexts_max, each: contexts_per_principal, tokens: tokens_max - unproved_tokens };
        Self {
            limits,
            contexts: HashMap::default(),
            unproved: Shares::new(unproved),
            proved: Shares::new(proved),
            ends: BTreeSet::new(),
            half_open: HashMap::default(),
            uses: Arc::default(),
            inserted: 0,
        }
    }

    /// Returns the number of uses of all contexts.
    pub fn uses(&self) -> Arc<AtomicU64> {
        self.uses.clone()
    }

    /// Returns the context of this name, unless it has ended. This changes nothing: the caller may be unauthenticated.
    pub fn find(&self, handle: &[u8], now: Instant) -> Option<Arc<ServerContext>> {
        self.contexts.get(handle).filter(|context| context.end().is_none_or(|at| now < at)).cloned()
    }

    /// Adds an established context, which is unproved.
    pub fn insert(&mut self, new: NewContext, now: Instant) -> (Handle, Removed) {
        let mut removed = self.remove_ended(now);
        let NewContext { context, principal, expires, host, tokens } = new;
        let handle = new_handle();
        self.inserted += 1;
        let context = ServerContext {
            context,
            principal,
            window: Mutex::default(),
            expires,
            host,
            tokens,
            handle,
            serial: self.inserted,
            proved: AtomicBool::new(false),
            unproved_until: now + UNPROVED_TIME,
            used: AtomicU64::default(),
        };
        context.note_use(&self.uses);
        let context = Arc::new(context);
        self.note_end(&context, true);
        self.contexts.insert(handle, context.clone());
        self.unproved.add(&host, context);
        while let Some(victim) =
            self.unproved.excess(&host).and_then(|share| share.oldest()).map(|victim| victim.handle)
        {
            tracing::debug!(%host, "evicting a context that was not used");
            removed.contexts.extend(self.remove(&victim));
        }
        (handle, removed)
    }

    /// Records that the peer has the key of a context: the verifier of a call was correct. The context can have been
    /// removed meanwhile.
    pub fn prove(&mut self, context: &ServerContext) -> Removed {
        let mut removed = Removed::default();
        let Some(context) = self.contexts.get(&context.handle).filter(|context| !context.is_proved()).cloned() else {
            return removed;
        };
        self.unproved.remove(&context.host, &context);
        self.note_end(&context, false);
        context.proved.store(true, Release);
        self.note_end(&context, true);
        let principal = &context.principal;
        self.proved.add(principal, context.clone());
        while let Some(victim) =
            self.proved.excess(principal).and_then(|share| share.least_used()).map(|victim| victim.handle)
        {
            tracing::debug!(for_principal = %principal.escape_ascii(), "evicting a context");
            removed.contexts.extend(self.remove(&victim));
        }
        removed
    }

    /// Removes a context.
    pub fn remove(&mut self, handle: &[u8]) -> Option<Arc<ServerContext>> {
        let context = self.contexts.remove(handle)?;
        self.note_end(&context, false);
        match context.is_proved() {
            true => self.proved.remove(&context.principal, &context),
            false => self.unproved.remove(&context.host, &context),
        }
        Some(context)
    }

    /// Keeps a negotiation until its next token arrives. `tokens` is the length of its tokens so far.
    pub fn suspend(
        &mut self,
        negotiation: Box<dyn Negotiation>,
        host: Host,
        tokens: usize,
        now: Instant,
    ) -> (Handle, Removed) {
        let given_up = self.half_open.extract_if(|_, half| now >= half.since + HALF_OPEN_TIME);
        let mut removed = Removed { negotiations: given_up.map(|(_, half)| half).collect(), ..Removed::default() };
        let of_host = || self.half_open.iter().filter(|(_, half)| half.host == host);
        let oldest = if of_host().count() >= self.limits.half_open_per_host {
            of_host().min_by_key(|(_, half)| half.since).map(|(handle, _)| *handle)
        } else if self.half_open.len() >= self.limits.half_open_max {
            self.half_open.iter().min_by_key(|(_, half)| half.since).map(|(handle, _)| *handle)
        } else {
            None
        };
        removed.negotiations.extend(oldest.and_then(|oldest| self.half_open.remove(&oldest)));
        let handle = new_handle();
        self.half_open.insert(handle, HalfOpen { negotiation: Mutex::new(negotiation), host, since: now, tokens });
        (handle, removed)
    }

    /// Takes a negotiation, and the length of its tokens so far, out of the table. Only the host that began it can
    /// continue it.
    pub fn resume(&mut self, handle: &[u8], host: Host, now: Instant) -> Option<(Box<dyn Negotiation>, usize)> {
        self.half_open.get(handle).filter(|half| half.host == host && now < half.since + HALF_OPEN_TIME)?;
        self.half_open.remove(handle).map(|half| (half.negotiation.into_inner(), half.tokens))
    }

    /// Returns the number of established contexts.
    pub fn len(&self) -> usize {
        self.contexts.len()
    }

    /// Removes contexts that have ended: some, so that a call never pays for many.
    fn remove_ended(&mut self, now: Instant) -> Removed {
        let ended = self.ends.iter().take_while(|(at, _)| *at <= now).take(ENDED_MAX);
        let ended: Vec<Handle> = ended.map(|(_, handle)| *handle).collect();
        let contexts = ended.iter().filter_map(|handle| self.remove(handle)).collect();
        Removed { contexts, ..Removed::default() }
    }

    /// Adds a context to the index of ends, or removes it there.
    fn note_end(&mut self, context: &ServerContext, is_present: bool) {
        let Some(at) = context.end() else { return };
        match is_present {
            true => self.ends.insert((at, context.handle)),
            false => self.ends.remove(&(at, context.handle)),
        };
    }
}

fn new_handle() -> Handle {
    entropy::random()
}

/// The time after which a negotiation is given up.
const HALF_OPEN_TIME: Duration = Duration::from_secs(30);
/// The time after which an unproved context ends. A client uses a context at once.
const UNPROVED_TIME: Duration = Duration::from_secs(60);
/// Unproved contexts have this part of the limits of all.
const UNPROVED_PART: usize = 4;
/// Maximum number of ended contexts that an insertion removes. It adds one, so they do not accumulate.
const ENDED_MAX: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mechanism::{GssError, Step, StepFailed};

    struct Nothing;

    impl Context for Nothing {
        fn mic(&self, _: &[u8]) -> Result<Bytes, GssError> {
            Ok(Bytes::new())
        }
        fn verify(&self, _: &[u8], _: &[u8]) -> Result<(), GssError> {
            Ok(())
        }
        fn wrap(&self, message: &[&[u8]], out: &mut Vec<u8>) -> Result<(), GssError> {
            out.extend(message.concat());
            Ok(())
        }
        fn unwrap(&self, token: &[u8]) -> Result<Bytes, GssError> {
            Ok(Bytes::copy_from_slice(token))
        }
    }

    impl Negotiation for Nothing {
        fn step(&mut self, _: &[u8]) -> Result<Step, StepFailed> {
            unreachable!("a table does not negotiate")
        }
    }

    fn new(principal: &'static str, last: u8, expires: Option<Instant>) -> NewContext {
        let principal = Bytes::from_static(principal.as_bytes());
        NewContext { context: Box::new(Nothing), principal, expires, host: host(last), tokens: 0 }
    }

    fn limits() -> GssLimits {
        GssLimits {
            contexts_max: 16,
            contexts_per_principal: 8,
            unproved_per_host: 2,
            half_open_max: 3,
            half_open_per_host: 2,
            ..GssLimits::default()
        }
    }

    fn host(last: u8) -> Host {
        Host::of([10, 0, 0, last].into())
    }

    /// Adds a context that its client uses.
    fn proved(table: &mut Table, new: NewContext, now: Instant) -> Handle {
        let (handle, removed) = table.insert(new, now);
        drop(removed);
        touch(table, &handle, now);
        handle
    }

    /// Makes a call with a correct verifier. Returns the number of removed contexts.
    fn touch(table: &mut Table, handle: &Handle, now: Instant) -> usize {
        let context = table.find(handle, now).expect("there must be such a context");
        context.note_use(&table.uses());
        table.prove(&context).len()
    }

    /// Checks that the indexes agree.
    fn check(table: &Table) {
        assert_eq!(table.len(), table.proved.len() + table.unproved.len());
        let ending = table.contexts.values().filter_map(|context| Some((context.end()?, context.handle)));
        assert_eq!(table.ends, ending.collect());
    }

    #[test]
    fn replayed_tokens_evict_only_unproved_contexts_of_their_host() {
        let now = Instant::now();
        let mut table = Table::new(limits());
        let used = proved(&mut table, new("alice", 1, None), now);
        let (fresh, _) = table.insert(new("alice", 1, None), now);
        let floods: Vec<Handle> = (0..1000).map(|_| table.insert(new("alice", 2, None), now).0).collect();
        assert!(table.find(&used, now).is_some() && table.find(&fresh, now).is_some());
        assert_eq!(table.len(), 4, "a host has two unproved contexts");
        assert!(table.find(&floods[997], now).is_none() && table.find(&floods[998], now).is_some());
        // From many hosts.
        (3..200).for_each(|last| drop(table.insert(new("alice", last, None), now)));
        assert_eq!((table.len(), table.unproved.len()), (5, 4));
        assert!(table.find(&used, now).is_some());
        check(&table);
    }

    #[test]
    fn unproved_contexts_end_after_a_minute() {
        let now = Instant::now();
        let at = |s| now + Duration::from_secs(s);
        let mut table = Table::new(limits());
        let (unproved, _) = table.insert(new("alice", 1, None), now);
        let (short, _) = table.insert(new("alice", 1, Some(at(10))), now);
        let used = proved(&mut table, new("alice", 2, None), now);
        assert!(table.find(&short, at(9)).is_some() && table.find(&short, at(10)).is_none());
        assert!(table.find(&unproved, at(59)).is_some() && table.find(&unproved, at(60)).is_none());
        assert!(table.find(&used, at(100_000)).is_some());
        assert_eq!(table.insert(new("bob", 3, None), at(60)).1.len(), 2);
        assert_eq!(table.len(), 2);
        check(&table);
    }

    #[test]
    fn a_principal_can_evict_only_its_own_contexts() {
        let now = Instant::now();
        let mut table = Table::new(limits());
        let alice = proved(&mut table, new("alice", 1, None), now);
        for _ in 0..100 {
            proved(&mut table, new("mallory", 2, None), now);
        }
        assert_eq!(table.len(), 9, "mallory has eight");
        for _ in 0..8 {
            proved(&mut table, new("bob", 3, None), now);
        }
        assert_eq!(table.len(), 16);
        assert!(table.find(&alice, now).is_some());
        check(&table);
    }

    #[test]
    fn least_recently_used_context_is_evicted() {
        let now = Instant::now();
        let mut table = Table::new(limits());
        let handles: Vec<Handle> = (0..8).map(|_| proved(&mut table, new("alice", 1, None), now)).collect();
        assert_eq!(touch(&mut table, &handles[0], now), 0);
        assert!(table.find(&handles[1], now).is_some(), "a call that is not verified is no use");
        proved(&mut table, new("alice", 1, None), now);
        assert!(table.find(&handles[0], now).is_some() && table.find(&handles[1], now).is_none());
        check(&table);
    }

    #[test]
    fn lengths_of_tokens_are_bounded() {
        let now = Instant::now();
        let mut table = Table::new(GssLimits { tokens_max: 400, unproved_per_host: 8, ..limits() });
        let alice = proved(&mut table, NewContext { tokens: 90, ..new("alice", 1, None) }, now);
        for _ in 0..10 {
            proved(&mut table, NewContext { tokens: 100, ..new("mallory", 2, None) }, now);
        }
        assert_eq!(table.len(), 3, "300 bytes are for proved contexts");
        assert!(table.find(&alice, now).is_some());
        let (fresh, _) = table.insert(NewContext { tokens: 30, ..new("alice", 1, None) }, now);
        (0..10).for_each(|_| drop(table.insert(NewContext { tokens: 40, ..new("alice", 2, None) }, now)));
        assert_eq!(table.len(), 5, "100 bytes are for unproved contexts");
        assert!(table.find(&fresh, now).is_some());
        // A context that is removed frees its bytes.
        for _ in 0..10 {
            let short = proved(&mut table, NewContext { tokens: 10, ..new("bob", 3, None) }, now);
            assert!(table.remove(&short).is_some());
            assert_eq!(table.len(), 5);
        }
        check(&table);
    }

    #[test]
    fn principal_with_the_longest_remaining_tokens_loses_a_context() {
        let now = Instant::now();
        let mut table = Table::new(GssLimits { tokens_max: 400, ..limits() });
        let of = |principal, tokens| NewContext { tokens, ..new(principal, 1, None) };
        let kept = proved(&mut table, of("alice", 40), now);
        for _ in 0..4 {
            let removed = proved(&mut table, of("alice", 50), now);
            assert!(table.remove(&removed).is_some());
        }
        let bob: Vec<Handle> = (0..2).map(|_| proved(&mut table, of("bob", 100), now)).collect();
        proved(&mut table, of("carol", 90), now);
        assert!(table.find(&kept, now).is_some(), "alice has 40 bytes");
        assert!(table.find(&bob[0], now).is_none() && table.find(&bob[1], now).is_some());
        check(&table);
    }

    #[test]
    fn contexts_expire_and_some_are_removed_at_each_insertion() {
        let now = Instant::now();
        let at = |s| now + Duration::from_secs(s);
        let limits = GssLimits { contexts_max: 1024, contexts_per_principal: 1024, ..limits() };
        let mut table = Table::new(limits);
        for _ in 0..100 {
            proved(&mut table, new("alice", 1, Some(at(10))), now);
        }
        let long = proved(&mut table, new("alice", 1, Some(at(1000))), now);
        assert_eq!(table.insert(new("bob", 1, None), at(20)).1.len(), ENDED_MAX);
        assert_eq!(table.insert(new("bob", 1, None), at(20)).1.len(), 100 - ENDED_MAX);
        assert!(table.find(&long, at(999)).is_some() && table.find(&long, at(1000)).is_none());
        assert!(table.remove(&long).is_some() && table.remove(&long).is_none());
        assert_eq!((table.len(), table.proved.len()), (2, 0));
        assert!(table.find(b"no handle", now).is_none() && table.find(&[], now).is_none());
        check(&table);
    }

    #[test]
    fn half_open_contexts_are_bounded_for_each_host_and_in_all() {
        let now = Instant::now();
        let mut table = Table::new(limits());
        let other = table.suspend(Box::new(Nothing), host(1), 0, now).0;
        let flood: Vec<Handle> = (1..100)
            .map(|ms| table.suspend(Box::new(Nothing), host(2), 0, now + Duration::from_millis(ms)).0)
            .collect();
        assert_eq!(table.half_open.len(), 3);
        assert!(table.resume(&flood[0], host(2), now).is_none(), "evicted");
        assert!(table.resume(&other, host(2), now).is_none(), "another host cannot continue it");
        assert!(table.resume(&other, host(1), now).is_some());
        assert!(table.resume(&other, host(1), now).is_none(), "it is continued once");
        for (late, is_there) in [(Duration::from_millis(1), true), (Duration::ZERO, false)] {
            let (handle, removed) = table.suspend(Box::new(Nothing), host(2), 0, now + Duration::from_secs(1));
            // The host had two at first.
            assert_eq!(removed.len(), usize::from(is_there));
            let end = now + Duration::from_secs(1) + HALF_OPEN_TIME;
            assert_eq!(table.resume(&handle, host(2), end - late).is_some(), is_there);
        }
        for number in 3..100 {
            drop(table.suspend(Box::new(Nothing), host(number), 0, now + Duration::from_secs(1)));
        }
        assert_eq!(table.half_open.len(), 3);
        let last = table.suspend(Box::new(Nothing), host(100), 0, now + Duration::from_secs(1)).0;
        assert!(table.resume(&last, host(100), now + Duration::from_secs(40)).is_none(), "given up");
    }
}
