//! [`Drc`]: the duplicate request cache.
//!
//! A caller that gets no answer sends its call again, on the same connection or on a new one. A call of a procedure
//! that must not be executed twice is looked up in this cache first. While the first copy is executed, later copies
//! wait for its reply; after that they get the cached reply.
//!
//! The cache keeps results, not messages: each transmission of a reply has its own verifier, and can have its own
//! wrapped body ([`security`](crate::security)).
//!
//! The key of a call has the caller, the caller's address (without the port, which changes when the caller reconnects), the XID, and a
//! checksum of program, version, procedure, the arguments and their length. So the same XID with other arguments is another call, and
//! nobody gets the reply to another caller's call. A named principal is identified by its name and its protection, because its credential
//! differs in each transmission. So a reply to an encrypted call is not repeated in clear.
//!
//! The cache belongs to the server, so it survives connections. It is bounded in entries, bytes and age; the least
//! recently used entry is evicted first. Calls in progress are never evicted.

use std::{
    collections::{VecDeque, hash_map},
    hash::{BuildHasher, Hash, Hasher},
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use entropy::{FastState, HashMap, RandomState};
use parking_lot::Mutex;
use tokio::{sync::oneshot, time::Instant};

use crate::{CallHeader, Executed, Identity, Xid, Xprtsec};

/// Limits of a [`Drc`].
#[derive(Clone, Debug)]
pub struct DrcOptions {
    /// Maximum number of calls in the cache.
    pub entries_max: usize,
    /// Maximum bytes of cached replies.
    pub bytes_max: usize,
    /// Maximum bytes of one cached reply. A longer reply is not cached.
    pub reply_max: usize,
    /// Maximum age of a cached reply.
    pub age_max: Duration,
}

impl Default for DrcOptions {
    fn default() -> Self {
        Self { entries_max: 32 << 10, bytes_max: 32 << 20, reply_max: 64 << 10, age_max: Duration::from_secs(180) }
    }
}

/// A duplicate request cache. It can be used from any thread.
#[derive(Debug)]
pub struct Drc {
    options: DrcOptions,
    /// The hash function of the names of principals.
    names: RandomState,
    /// The hash function of the checksums.
    checksums: FastState,
    shards: [Mutex<Shard>; SHARDS],
}

/// The key that distinguishes calls. The checksum is fast and not cryptographic, so it does not separate users: a call whose checksum
/// was made equal to another one's can only get a reply to the same user of the same host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DrcKey {
    address: u128,
    /// The user ID of AUTH_SYS, [`NOBODY`], or a hash of the principal with a secret key.
    caller: u64,
    /// Selects the shard, and is the hash within it.
    checksum: u64,
    xid: Xid,
    tls: Xprtsec,
}

impl Hash for DrcKey {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        hasher.write_u64(self.checksum);
    }
}

/// The decision about a call.
#[derive(Debug)]
pub enum Admission {
    /// Execute the call, and pass the outcome to the [`Execution`].
    Execute(Execution),
    /// The call has been executed with this outcome.
    Replay(Executed),
    /// The call is being executed. The receiver gets the outcome, or nothing if the call is dropped.
    Wait(oneshot::Receiver<Executed>),
    /// The call is being executed, and the maximum number of copies wait already. Drop this copy.
    Drop,
}

/// The right to execute a call once. If it is dropped without an outcome, the cache forgets the call.
#[derive(Debug)]
pub struct Execution {
    drc: Arc<Drc>,
    key: DrcKey,
    finished: bool,
}

#[derive(Debug, Default)]
struct Shard {
    entries: HashMap<DrcKey, Entry, FastState>,
    /// The cached replies, least recently used first. An element whose serial differs from its entry's is stale.
    order: VecDeque<Use>,
    serial: u64,
    bytes: usize,
}

#[derive(Debug)]
enum Entry {
    InProgress(Vec<oneshot::Sender<Executed>>),
    Done { executed: Executed, cost: usize, serial: u64, since: Instant },
}

/// A use of a cached reply: its execution, or a replay.
#[derive(Debug)]
struct Use {
    key: DrcKey,
    serial: u64,
    /// The time of the execution.
    since: Instant,
}

impl Drc {
    /// Creates an empty cache.
    pub fn new(options: DrcOptions) -> Arc<Self> {
        let (names, checksums) = Default::default();
        Arc::new(Self { options, names, checksums, shards: Default::default() })
    }

    /// Returns the key of a call. `call` is the stream of its message, and `arguments` are its unwrapped arguments in a
    /// stream; `len` is their length with payloads. A connection with another protection than `tls` does not get the reply.
    pub fn key(
        &self,
        header: &CallHeader,
        (caller, peer, tls): (&Identity, SocketAddr, Xprtsec),
        (call, arguments): (&[u8], &[u8]),
        len: usize,
    ) -> DrcKey {
        let covered = arguments.len().min(CHECKSUM_BYTES);
        let mut checksum = self.checksums.build_hasher();
        // The arguments follow the header, which has the procedure: one piece is hashed faster than several.
        let with_header = || &call[..call.len() - arguments.len() + covered];
        let (caller, bytes) = match caller {
            Identity::None => (NOBODY, with_header()),
            Identity::Sys(user) => (user.uid.into(), with_header()),
            Identity::Principal(principal) => {
                (header.program, header.version, header.procedure).hash(&mut checksum);
                (self.names.hash_one(principal) | PRINCIPAL, &arguments[..covered])
            }
        };
        checksum.write(bytes);
        checksum.write_usize(len);
        // The port changes when the caller reconnects.
        let address = match peer.ip().to_canonical() {
            IpAddr::V4(address) => address.to_ipv6_mapped().to_bits(),
            IpAddr::V6(address) => address.to_bits(),
        };
        DrcKey { address, caller, checksum: checksum.finish(), xid: header.xid, tls }
    }

    /// Decides about a call that arrives at `now`.
    pub fn admit(self: &Arc<Self>, key: DrcKey, now: Instant) -> Admission {
        let mut shard = self.shard(&key).lock();
        let shard = &mut *shard;
        shard.expire(now, self.options.age_max);
        let entry = match shard.entries.entry(key) {
            hash_map::Entry::Vacant(entry) => {
                entry.insert(Entry::InProgress(Vec::new()));
                return Admission::Execute(Execution { drc: self.clone(), key, finished: false });
            }
            hash_map::Entry::Occupied(entry) => entry.into_mut(),
        };
        match entry {
            Entry::InProgress(waiters) if waiters.len() < WAITERS_MAX => {
                let (sender, receiver) = oneshot::channel();
                waiters.push(sender);
                Admission::Wait(receiver)
            }
            Entry::InProgress(_) => Admission::Drop,
            Entry::Done { executed, serial, since, .. } => {
                let executed = executed.clone();
                shard.serial += 1;
                *serial = shard.serial;
                shard.order.push_back(Use { key, serial: *serial, since: *since });
                shard.compact();
                Admission::Replay(executed)
            }
        }
    }

    /// Returns the number of calls that are cached or in progress.
    pub fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().entries.len()).sum()
    }

    /// Returns `true` if no call is cached or in progress.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn shard(&self, key: &DrcKey) -> &Mutex<Shard> {
        &self.shards[(key.checksum % SHARDS as u64) as usize]
    }

    fn finish(&self, key: &DrcKey, executed: Option<(&Executed, Instant)>) {
        let mut shard = self.shard(key).lock();
        // Most calls keep their entry, so it is looked up once and not removed first.
        let kept = executed.filter(|(executed, _)| executed.len() <= self.options.reply_max);
        let entry = match kept {
            Some((executed, since)) => shard.keep(*key, (executed.clone(), since), executed.len() + ENTRY_COST),
            None => shard.entries.remove(key),
        };
        let Some(Entry::InProgress(waiters)) = entry else { unreachable!("an execution must have an entry") };
        shard.shrink(self.options.entries_max / SHARDS, self.options.bytes_max / SHARDS);
        drop(shard);
        let Some((executed, _)) = executed else { return };
        for waiter in waiters {
            let _ = waiter.send(executed.clone());
        }
    }
}

impl Execution {
    /// Records that the call was executed by `now`. `None` means that there is no reply, and a copy of the call is to
    /// be executed.
    pub fn finish(mut self, executed: Option<&Executed>, now: Instant) {
        self.finished = true;
        self.drc.finish(&self.key, executed.map(|executed| (executed, now)));
    }
}

impl Drop for Execution {
    fn drop(&mut self) {
        if !self.finished {
            self.drc.finish(&self.key, None);
        }
    }
}

impl Shard {
    /// Caches the reply of a call in progress. Returns its former entry.
    fn keep(&mut self, key: DrcKey, (executed, since): (Executed, Instant), cost: usize) -> Option<Entry> {
        self.serial += 1;
        self.bytes += cost;
        self.order.push_back(Use { key, serial: self.serial, since });
        self.entries.insert(key, Entry::Done { executed, cost, serial: self.serial, since })
    }

    /// Evicts the least recently used reply.
    fn pop(&mut self) {
        let Some(Use { key, serial, .. }) = self.order.pop_front() else { return };
        if let hash_map::Entry::Occupied(entry) = self.entries.entry(key)
            && let Entry::Done { cost, serial: current, .. } = entry.get()
            && *current == serial
        {
            self.bytes -= cost;
            entry.remove();
        }
    }

    fn shrink(&mut self, entries_max: usize, bytes_max: usize) {
        while !self.order.is_empty() && (self.entries.len() > entries_max || self.bytes > bytes_max) {
            self.pop();
        }
    }

    /// Evicts replies that are too old. If the reply has been used since, the element of the order is stale, and the
    /// last one evicts it.
    fn expire(&mut self, now: Instant, age_max: Duration) {
        while self.order.front().is_some_and(|front| now.duration_since(front.since) > age_max) {
            self.pop();
        }
    }

    /// Removes stale elements from the order when there are too many. Each replay leaves one.
    fn compact(&mut self) {
        if self.order.len() > 2 * self.entries.len() + 16 {
            let mut order = std::mem::take(&mut self.order);
            order.retain(|used| self.is_current(&used.key, used.serial));
            self.order = order;
        }
    }

    fn is_current(&self, key: &DrcKey, serial: u64) -> bool {
        matches!(self.entries.get(key), Some(Entry::Done { serial: current, .. }) if *current == serial)
    }
}

const SHARDS: usize = 16;
/// The caller of a call with AUTH_NONE. No user of AUTH_SYS has this number.
const NOBODY: u64 = 1 << 32;
/// Distinguishes the hash of a principal from the numbers of users.
const PRINCIPAL: u64 = 1 << 63;
const WAITERS_MAX: usize = 8;
const CHECKSUM_BYTES: usize = 256;
/// Bytes of an entry without its reply.
const ENTRY_COST: usize = 256;
const _: () = assert!(size_of::<(DrcKey, Entry)>() + size_of::<Use>() <= ENTRY_COST);

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use xdr::Message;

    use super::*;
    use crate::{AuthSys, OpaqueAuth, security::Principal};

    fn key(drc: &Drc, xid: u32, port: u16, body: &[u8]) -> DrcKey {
        key_of(drc, (xid, OpaqueAuth::NONE), (&Identity::None, port, Xprtsec::None), body)
    }

    fn key_of(
        drc: &Drc,
        (xid, credential): (u32, OpaqueAuth),
        (caller, port, tls): (&Identity, u16, Xprtsec),
        body: &[u8],
    ) -> DrcKey {
        let verifier = OpaqueAuth::NONE;
        let header = CallHeader { xid: Xid(xid), program: 1, version: 1, procedure: 1, credential, verifier };
        let call = [&Message::encode(&header).stream[..], body].concat();
        drc.key(
            &header,
            (caller, ([127, 0, 0, 1], port).into(), tls),
            (&call, &call[call.len() - body.len()..]),
            body.len(),
        )
    }

    fn results(len: usize) -> Executed {
        Executed::Results(Bytes::from(vec![0; len]).into())
    }

    fn execute(drc: &Arc<Drc>, key: DrcKey, len: usize) {
        match drc.admit(key, Instant::now()) {
            Admission::Execute(execution) => execution.finish(Some(&results(len)), Instant::now()),
            other => panic!("{other:?}"),
        }
    }

    #[tokio::test]
    async fn copy_waits_for_execution_then_gets_cached_reply() {
        let drc = Drc::new(DrcOptions::default());
        let key = |port| key(&drc, 1, port, b"body");
        let Admission::Execute(execution) = drc.admit(key(700), Instant::now()) else { panic!() };
        let Admission::Wait(waiting) = drc.admit(key(701), Instant::now()) else {
            panic!("a call from another port has the same caller")
        };
        execution.finish(Some(&results(20)), Instant::now());
        assert_eq!(waiting.await.unwrap().len(), 20);
        let Admission::Replay(replayed) = drc.admit(key(702), Instant::now()) else { panic!() };
        assert_eq!(replayed.len(), 20);
    }

    #[test]
    fn calls_with_different_arguments_are_distinct() {
        let drc = Drc::new(DrcOptions::default());
        execute(&drc, key(&drc, 1, 1, b"one"), 4);
        execute(&drc, key(&drc, 1, 1, b"two"), 4);
        execute(&drc, key(&drc, 2, 1, b"one"), 4);
        let mut long = [7; 300];
        execute(&drc, key(&drc, 3, 1, &long), 4);
        execute(&drc, key(&drc, 3, 1, &long[..299]), 4);
        long[299] = 8;
        let beyond = drc.admit(key(&drc, 3, 1, &long), Instant::now());
        assert!(matches!(beyond, Admission::Replay(_)), "the checksum must cover only the first bytes");
    }

    #[test]
    fn calls_of_different_users_are_distinct() {
        let drc = Drc::new(DrcOptions::default());
        for user in [&b"one"[..], b"two"] {
            let credential = OpaqueAuth { flavor: 1, body: Bytes::from_static(user) };
            execute(&drc, key_of(&drc, (1, credential), (&Identity::None, 1, Xprtsec::None), b""), 4);
        }
        // Even if the checksum is the same.
        let user = |uid| Identity::Sys(AuthSys { uid, ..AuthSys::of_process() });
        let name = |name| Identity::Principal(Principal { name: Bytes::from_static(name), pseudo_flavor: 390_003 });
        for callers in [[user(1), user(2)], [name(b"alice"), name(b"bob")]] {
            let [one, other] =
                callers.map(|caller| key_of(&drc, (1, OpaqueAuth::NONE), (&caller, 1, Xprtsec::None), b""));
            assert_eq!(one.checksum, other.checksum);
            assert_ne!(one, other);
        }
    }

    #[test]
    fn calls_of_different_hosts_are_distinct() {
        let drc = Drc::new(DrcOptions::default());
        let (credential, verifier) = (OpaqueAuth::NONE, OpaqueAuth::NONE);
        let header = CallHeader { xid: Xid(1), program: 1, version: 1, procedure: 1, credential, verifier };
        let call = Message::encode(&header).stream;
        let key = |host: &str| {
            let peer = SocketAddr::new(host.parse().unwrap(), 700);
            drc.key(&header, (&Identity::None, peer, Xprtsec::None), (&call, b""), 0)
        };
        assert_ne!(key("192.0.2.1"), key("192.0.2.2"));
        assert_ne!(key("2001:db8::1"), key("2001:db8::2"));
        assert_eq!(key("192.0.2.1"), key("::ffff:192.0.2.1"), "one host, seen by a socket of IPv6");
    }

    #[test]
    fn calls_with_another_protection_of_the_connection_are_distinct() {
        let drc = Drc::new(DrcOptions::default());
        for tls in [Xprtsec::None, Xprtsec::Tls, Xprtsec::Mtls] {
            execute(&drc, key_of(&drc, (1, OpaqueAuth::NONE), (&Identity::None, 1, tls), b""), 4);
        }
    }

    #[test]
    fn calls_of_a_principal_with_another_protection_are_distinct() {
        let drc = Drc::new(DrcOptions::default());
        let key_with = |xid, pseudo_flavor, credential: &'static [u8], body| {
            let caller = Identity::Principal(Principal { name: Bytes::from_static(b"alice@REALM"), pseudo_flavor });
            let credential = OpaqueAuth { flavor: 6, body: Bytes::from_static(credential) };
            key_of(&drc, (xid, credential), (&caller, 1, Xprtsec::None), body)
        };
        let key = |pseudo_flavor, credential, body| key_with(1, pseudo_flavor, credential, body);
        execute(&drc, key(390_005, b"first", b"body"), 4);
        execute(&drc, key_with(2, 390_005, b"first", b"body"), 4);
        execute(&drc, key(390_003, b"first", b"body"), 4);
        execute(&drc, key(390_003, b"first", b"other"), 4);
        let again = drc.admit(key(390_005, b"second", b"body"), Instant::now());
        assert!(matches!(again, Admission::Replay(_)), "a retransmission has another credential");
    }

    #[tokio::test]
    async fn cancelled_execution_is_forgotten() {
        let drc = Drc::new(DrcOptions::default());
        let key = key(&drc, 1, 1, b"");
        let execution = drc.admit(key, Instant::now());
        let Admission::Wait(waiting) = drc.admit(key, Instant::now()) else { panic!() };
        drop(execution);
        waiting.await.expect_err("the waiting copy must get no outcome");
        assert!(drc.is_empty());
        execute(&drc, key, 4);
    }

    #[test]
    fn waiting_copies_are_bounded() {
        let drc = Drc::new(DrcOptions::default());
        let key = key(&drc, 1, 1, b"");
        let _first = drc.admit(key, Instant::now());
        let waiting: Vec<_> = (0..WAITERS_MAX).map(|_| drc.admit(key, Instant::now())).collect();
        assert!(waiting.iter().all(|admission| matches!(admission, Admission::Wait(_))));
        assert!(matches!(drc.admit(key, Instant::now()), Admission::Drop));
    }

    #[test]
    fn entries_and_bytes_are_bounded_and_recently_used_replies_stay() {
        let entries_max = 64 * SHARDS;
        let drc = Drc::new(DrcOptions { entries_max, bytes_max: SHARDS << 20, ..DrcOptions::default() });
        for xid in 0..10_000 {
            execute(&drc, key(&drc, xid, 1, b""), 100);
            let first = drc.admit(key(&drc, 0, 1, b""), Instant::now());
            assert!(matches!(first, Admission::Replay(_)), "a reply in constant use must not be evicted");
        }
        assert!(drc.len() <= entries_max);
        assert!(matches!(drc.admit(key(&drc, 9999, 1, b""), Instant::now()), Admission::Replay(_)));
        assert!(drc.shards.iter().all(|shard| shard.lock().order.len() <= 2 * 64 + 17));
        for xid in 10_000..11_000 {
            execute(&drc, key(&drc, xid, 1, b""), 60_000);
        }
        assert!(drc.shards.iter().all(|shard| shard.lock().bytes <= 1 << 20));
        execute(&drc, key(&drc, 20_000, 1, b""), 100_000);
        execute(&drc, key(&drc, 20_000, 1, b""), 100_000);
    }

    #[tokio::test(start_paused = true)]
    async fn replies_expire() {
        let drc = Drc::new(DrcOptions { age_max: Duration::from_secs(10), ..DrcOptions::default() });
        execute(&drc, key(&drc, 1, 1, b""), 4);
        tokio::time::advance(Duration::from_secs(9)).await;
        assert!(matches!(drc.admit(key(&drc, 1, 1, b""), Instant::now()), Admission::Replay(_)));
        tokio::time::advance(Duration::from_secs(2)).await;
        execute(&drc, key(&drc, 1, 1, b""), 4);
    }
}
