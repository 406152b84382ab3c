//! [`Users`]: the user of this host, with its groups, as which a caller acts.
//!
//! AUTH_SYS carries at most 16 groups, and a principal carries none. If the configuration asks for it (`manage_gids`), the
//! groups of AUTH_SYS callers come from the host's name service, and those of principals always do. A look-up may need a
//! network, so it runs only on a thread that may block, and a call on another thread moves to one. Results are cached,
//! including that a user is unknown.
//!
//! The cache is bounded in entries and in groups. When a result is older than its time to live, one call looks it up again
//! and others use the old result meanwhile, for at most another time to live. If the name service fails, the old result is
//! used for that time too. Without one, the call fails with `Delay`, and the client retries it: to continue with other groups
//! than the user's would grant or refuse access by chance.

use std::{
    hash::Hash,
    io,
    sync::{Arc, OnceLock},
    time::{Duration, Instant},
};

use bytes::Bytes;
use entropy::HashMap;
use parking_lot::Mutex;
use rpc::{Identity, security::Principal};
use vfs::VfsError;

use super::principals::{IdentityOptions, LocalUser, Mapping, PrincipalNames, UnknownUid};

/// A user of this host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct User {
    /// The user ID.
    pub uid: u32,
    /// The primary group.
    pub gid: u32,
    /// All groups, in any order.
    pub groups: Arc<[u32]>,
}

/// A source of users and their groups, such as the host's name service switch. Its methods can block for a long time.
pub trait UserDatabase: Send + Sync + 'static {
    /// Returns the user with this ID, or `None` if there is none.
    ///
    /// # Errors
    /// The source is not available at the moment.
    fn by_uid(&self, uid: u32) -> io::Result<Option<User>>;

    /// Returns the user with this name, or `None` if there is none.
    ///
    /// # Errors
    /// The source is not available at the moment.
    fn by_name(&self, name: &str) -> io::Result<Option<User>>;
}

/// The users as which callers act.
pub(crate) struct Users {
    options: IdentityOptions,
    database: OnceLock<Arc<dyn UserDatabase>>,
    names: OnceLock<Arc<dyn PrincipalNames>>,
    cache: Mutex<Cache>,
}

/// The identity of a caller after the look-up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Resolved {
    /// The caller acts with the numbers that it claims.
    AsClaimed,
    /// The caller acts with the user and group that it claims, and with these groups.
    Groups(Arc<[u32]>),
    /// The caller acts as this user.
    User(User),
    /// The caller is no user of this host.
    Anonymous,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Key {
    Uid(u32),
    Principal(Bytes),
}

#[derive(Default)]
struct Cache {
    entries: HashMap<Key, Entry>,
    /// The number of groups in all entries.
    groups: usize,
}

struct Entry {
    at: Instant,
    /// The time at which a call began to look it up again.
    refreshing: Option<Instant>,
    user: Option<User>,
}

impl Users {
    /// Creates the users with this configuration, from the host's name service.
    pub(crate) fn new(options: IdentityOptions) -> Self {
        Self { options, database: OnceLock::new(), names: OnceLock::new(), cache: Mutex::default() }
    }

    /// Sets the source of users, instead of the host's name service. Returns `false` if it was set or used before.
    pub(crate) fn set_database(&self, database: Arc<dyn UserDatabase>) -> bool {
        self.database.set(database).is_ok()
    }

    /// Sets the names that a security mechanism has for principals. Returns `false` if they were set before.
    pub(crate) fn set_names(&self, names: Arc<dyn PrincipalNames>) -> bool {
        self.names.set(names).is_ok()
    }

    /// Returns the user as which a caller acts, before it is squashed. Calls `now` only if a result can be cached.
    ///
    /// # Errors
    /// Returns `WouldBlock` if the user must be looked up and `may_block` is `false`, and `Delay` if that fails.
    pub(crate) fn resolve(
        &self,
        caller: &Identity,
        now: impl FnOnce() -> Instant,
        may_block: bool,
    ) -> Result<Resolved, VfsError> {
        match caller {
            Identity::None => Ok(Resolved::Anonymous),
            Identity::Sys(_) if !self.options.manage_gids => Ok(Resolved::AsClaimed),
            Identity::Sys(sys) => {
                let user = self.cached(Key::Uid(sys.uid), now(), may_block, || self.database().by_uid(sys.uid))?;
                Ok(match (user, self.options.unknown_uid) {
                    (Some(user), _) => Resolved::Groups(user.groups),
                    (None, UnknownUid::Keep) => Resolved::AsClaimed,
                    (None, UnknownUid::Drop) => Resolved::Groups(Arc::new([])),
                })
            }
            Identity::Principal(principal) => self.principal(principal, now, may_block),
        }
    }

    fn principal(
        &self,
        principal: &Principal,
        now: impl FnOnce() -> Instant,
        may_block: bool,
    ) -> Result<Resolved, VfsError> {
        let local = match self.options.map(&principal.name) {
            Mapping::User(user) => Some(user),
            Mapping::Root => return Ok(Resolved::User(User { uid: 0, gid: 0, groups: Arc::new([]) })),
            Mapping::Anonymous => return Ok(Resolved::Anonymous),
            Mapping::ByMechanism if self.names.get().is_none() => return Ok(Resolved::Anonymous),
            Mapping::ByMechanism => None,
        };
        let key = Key::Principal(Bytes::copy_from_slice(&principal.name));
        let user = self.cached(key, now(), may_block, || match local {
            Some(LocalUser::Uid(uid)) => self.database().by_uid(*uid),
            Some(LocalUser::Name(name)) => self.database().by_name(name),
            None => match self.names.get().and_then(|names| names.local_name(principal)) {
                Some(name) => self.database().by_name(&name),
                None => Ok(None),
            },
        })?;
        Ok(user.map_or(Resolved::Anonymous, Resolved::User))
    }

    fn database(&self) -> &dyn UserDatabase {
        &**self.database.get_or_init(|| Arc::new(super::system::System))
    }

    /// Returns the cached user of `key`, or calls `ask` and caches its result if the thread may block. No lock is held
    /// during `ask`.
    fn cached(
        &self,
        key: Key,
        now: Instant,
        may_block: bool,
        ask: impl FnOnce() -> io::Result<Option<User>>,
    ) -> Result<Option<User>, VfsError> {
        let ttl = self.options.cache;
        if let Some(found) = self.cache.lock().find(&key, (now, ttl), may_block) {
            return Ok(found);
        }
        if !may_block {
            return Err(VfsError::WouldBlock);
        }
        match ask() {
            Ok(mut user) => {
                if let Some(user) = user.as_mut().filter(|user| user.groups.len() > USER_GROUPS_MAX) {
                    tracing::warn!(
                        uid = user.uid,
                        groups = user.groups.len(),
                        "a user has too many groups; the rest is ignored"
                    );
                    user.groups = user.groups[..USER_GROUPS_MAX].into();
                }
                self.cache.lock().insert(key, now, user.clone(), ttl);
                Ok(user)
            }
            Err(error) => {
                tracing::warn!(%error, ?key, "the name service cannot look up a user");
                let stale = self.cache.lock().stale(&key, now, ttl);
                stale.ok_or(VfsError::Delay)
            }
        }
    }
}

impl Cache {
    /// Returns a user that is fresh, or that another call is looking up again. The first call that finds an old entry and
    /// may look it up gets `None`.
    fn find(&mut self, key: &Key, (now, ttl): (Instant, Duration), may_block: bool) -> Option<Option<User>> {
        let entry = self.entries.get_mut(key)?;
        let age = now.saturating_duration_since(entry.at);
        if age < ttl {
            return Some(entry.user.clone());
        }
        let refreshing = entry.refreshing.is_some_and(|since| now.saturating_duration_since(since) < REFRESH_MAX);
        if refreshing && age < 2 * ttl {
            return Some(entry.user.clone());
        }
        if may_block {
            entry.refreshing = Some(now);
        }
        None
    }

    /// Returns a user that is at most one time to live too old.
    fn stale(&self, key: &Key, now: Instant, ttl: Duration) -> Option<Option<User>> {
        let entry = self.entries.get(key)?;
        (now.saturating_duration_since(entry.at) < 2 * ttl).then(|| entry.user.clone())
    }

    fn insert(&mut self, key: Key, now: Instant, user: Option<User>, ttl: Duration) {
        self.remove(&key);
        let groups = count(user.as_ref());
        let is_full = |cache: &Self| cache.entries.len() >= ENTRIES_MAX || cache.groups + groups > GROUPS_MAX;
        if is_full(self) {
            // A caller can claim any uid, so entries of users that do not exist are evicted first.
            self.retain(|entry| entry.user.is_some() && now.saturating_duration_since(entry.at) < ttl);
        }
        if is_full(self) {
            self.retain(|_| false);
        }
        self.groups += groups;
        self.entries.insert(key, Entry { at: now, refreshing: None, user });
    }

    fn remove(&mut self, key: &Key) {
        if let Some(entry) = self.entries.remove(key) {
            self.groups -= count(entry.user.as_ref());
        }
    }

    fn retain(&mut self, keep: impl Fn(&Entry) -> bool) {
        self.entries.retain(|_, entry| keep(entry));
        self.groups = self.entries.values().map(|entry| count(entry.user.as_ref())).sum();
    }
}

fn count(user: Option<&User>) -> usize {
    user.map_or(0, |user| user.groups.len())
}

/// The maximum groups of a user: as many as Linux allows (NGROUPS_MAX).
const USER_GROUPS_MAX: usize = 1 << 16;
const ENTRIES_MAX: usize = 1 << 14;
/// The maximum groups of all cached users: 4 MiB.
const GROUPS_MAX: usize = 1 << 20;
/// The time after which another call looks up an old entry, if the first one has not finished.
const REFRESH_MAX: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};

    use rpc::AuthSys;

    use super::*;
    use crate::identity::principals::Machines;

    /// A host with the user 7, `venus`, in the groups 100 to 119. Counts the look-ups.
    #[derive(Default)]
    struct Host {
        asked: AtomicUsize,
        fails: AtomicBool,
    }

    impl Host {
        fn answer(&self, known: bool) -> io::Result<Option<User>> {
            self.asked.fetch_add(1, Relaxed);
            match self.fails.load(Relaxed) {
                true => Err(io::ErrorKind::TimedOut.into()),
                false => Ok(known.then(venus)),
            }
        }
    }

    impl UserDatabase for Host {
        fn by_uid(&self, uid: u32) -> io::Result<Option<User>> {
            self.answer(uid == 7)
        }

        fn by_name(&self, name: &str) -> io::Result<Option<User>> {
            self.answer(name == "venus")
        }
    }

    /// Knows the principals of one realm.
    struct Realm;

    impl PrincipalNames for Realm {
        fn local_name(&self, principal: &Principal) -> Option<String> {
            std::str::from_utf8(&principal.name).ok()?.strip_suffix("@REALM").map(str::to_owned)
        }
    }

    fn venus() -> User {
        User { uid: 7, gid: 100, groups: (100..120).collect() }
    }

    fn users(options: IdentityOptions) -> (Users, Arc<Host>) {
        let (users, host) = (Users::new(options), Arc::new(Host::default()));
        assert!(users.set_database(host.clone()));
        (users, host)
    }

    fn managed(unknown_uid: UnknownUid) -> IdentityOptions {
        IdentityOptions { manage_gids: true, unknown_uid, ..IdentityOptions::default() }
    }

    fn sys(uid: u32) -> Identity {
        Identity::Sys(AuthSys { stamp: 0, machine: Default::default(), uid, gid: 1, gids: [5].into_iter().collect() })
    }

    fn principal(name: &str) -> Identity {
        Identity::Principal(Principal { name: Bytes::copy_from_slice(name.as_bytes()), pseudo_flavor: 390_003 })
    }

    #[test]
    fn groups_come_from_the_host_if_configured() {
        let now = Instant::now();
        let (users, host) = self::users(IdentityOptions::default());
        let never = || panic!("the time must not be read");
        assert_eq!(users.resolve(&sys(7), never, false), Ok(Resolved::AsClaimed));
        assert_eq!(host.asked.load(Relaxed), 0);
        for (unknown, expected) in
            [(UnknownUid::Keep, Resolved::AsClaimed), (UnknownUid::Drop, Resolved::Groups(Arc::new([])))]
        {
            let (users, host) = self::users(managed(unknown));
            assert_eq!(users.resolve(&sys(7), || now, false), Err(VfsError::WouldBlock));
            for _ in 0..3 {
                assert_eq!(users.resolve(&sys(7), || now, true), Ok(Resolved::Groups(venus().groups)));
                assert_eq!(users.resolve(&sys(8), || now, true), Ok(expected.clone()));
            }
            assert_eq!(users.resolve(&sys(7), || now, false), Ok(Resolved::Groups(venus().groups)));
            assert_eq!(host.asked.load(Relaxed), 2, "both results must be cached");
        }
    }

    #[test]
    fn an_old_result_is_looked_up_once_and_used_meanwhile() {
        let (users, host) = self::users(managed(UnknownUid::Drop));
        let (now, ttl) = (Instant::now(), IdentityOptions::default().cache);
        let groups = || Ok(Resolved::Groups(venus().groups));
        assert_eq!(users.resolve(&sys(7), || now, true), groups());
        let later = now + ttl;
        assert_eq!(users.resolve(&sys(7), || later, false), Err(VfsError::WouldBlock), "this call must move");
        host.fails.store(true, Relaxed);
        assert_eq!(users.resolve(&sys(7), || later, true), groups(), "a failure must not drop the groups");
        assert_eq!(users.resolve(&sys(7), || later, true), groups());
        assert_eq!(users.resolve(&sys(7), || later, false), groups());
        assert_eq!(host.asked.load(Relaxed), 2, "only one call must look it up");
        assert_eq!(users.resolve(&sys(7), || later + REFRESH_MAX, true), groups());
        assert_eq!(host.asked.load(Relaxed), 3, "another call must try again");
        assert_eq!(users.resolve(&sys(7), || later + ttl, true), Err(VfsError::Delay), "it is too old");
        host.fails.store(false, Relaxed);
        assert_eq!(users.resolve(&sys(7), || later + ttl, true), groups());
        assert_eq!(users.resolve(&sys(7), || later + ttl, false), groups());
    }

    #[test]
    fn principals_are_mapped_by_the_configuration_then_by_the_mechanism() {
        let options = IdentityOptions {
            principals: [
                ("mars@REALM".to_owned(), LocalUser::Name("venus".to_owned())),
                ("nfs/backup@REALM".to_owned(), LocalUser::Uid(7)),
                ("gone@REALM".to_owned(), LocalUser::Name("gone".to_owned())),
            ]
            .into(),
            ..IdentityOptions::default()
        };
        let now = Instant::now();
        let (users, _) = self::users(options.clone());
        assert_eq!(users.resolve(&principal("mars@REALM"), || now, false), Err(VfsError::WouldBlock));
        assert_eq!(users.resolve(&principal("mars@REALM"), || now, true), Ok(Resolved::User(venus())));
        assert_eq!(users.resolve(&principal("nfs/backup@REALM"), || now, true), Ok(Resolved::User(venus())));
        assert_eq!(users.resolve(&principal("gone@REALM"), || now, true), Ok(Resolved::Anonymous));
        assert_eq!(users.resolve(&principal("venus@REALM"), || now, true), Ok(Resolved::Anonymous), "no mechanism");
        assert!(users.set_names(Arc::new(Realm)));
        assert_eq!(users.resolve(&principal("venus@REALM"), || now, true), Ok(Resolved::User(venus())));
        assert_eq!(users.resolve(&principal("venus@OTHER"), || now, true), Ok(Resolved::Anonymous));
        let root = Resolved::User(User { uid: 0, gid: 0, groups: Arc::new([]) });
        let (rooted, _) = self::users(IdentityOptions { machines: Machines::Root, ..options });
        assert!(rooted.set_names(Arc::new(Realm)));
        for machine in ["nfs/venus@REALM", "host/venus@REALM", "root/venus@REALM", "VENUS$@REALM"] {
            assert_eq!(users.resolve(&principal(machine), || now, true), Ok(Resolved::Anonymous), "{machine}");
            assert_eq!(rooted.resolve(&principal(machine), || now, true), Ok(root.clone()), "{machine}");
        }
        assert_eq!(rooted.resolve(&principal("nfs/backup@REALM"), || now, true), Ok(Resolved::User(venus())));
        assert_eq!(rooted.resolve(&principal("root@REALM"), || now, true), Ok(Resolved::Anonymous), "not a machine");
    }

    #[test]
    fn the_cache_is_bounded() {
        let (users, _) = self::users(managed(UnknownUid::Drop));
        let now = Instant::now();
        users.resolve(&sys(7), || now, true).unwrap();
        for uid in 8..(2 * ENTRIES_MAX) as u32 {
            users.resolve(&sys(uid), || now, true).unwrap();
        }
        let cache = users.cache.lock();
        assert!(cache.entries.len() <= ENTRIES_MAX);
        assert!(cache.entries.contains_key(&Key::Uid(7)), "unknown users must not evict a known one");
        assert_eq!(cache.groups, 20);
        drop(cache);
        let big = User { groups: (0..USER_GROUPS_MAX as u32).collect(), ..venus() };
        let mut cache = Cache::default();
        for uid in 0..100 {
            cache.insert(Key::Uid(uid), now, Some(big.clone()), Duration::from_secs(1));
            assert!(cache.groups <= GROUPS_MAX && cache.groups == cache.entries.len() * USER_GROUPS_MAX);
        }
    }
}
