//! [`Names`]: the names of users and groups in the form that NFSv4 sends (RFC 8881 §5.9), mapped to the host's user and
//! group IDs.
//!
//! If no domain is configured, numbers are sent in decimal to callers by AUTH_SYS, as Linux's client and server do by
//! default, and `name@domain` to principals, with the domain of this host. A principal's client need not have the same
//! numbers, and Linux's client sends names if it uses Kerberos. If a domain is configured, `name@domain` is sent to all
//! callers, and a number for a user without a name. Both forms are accepted,
//! and names without a domain. The host may need a network to look up a name, so the look-up runs only on a thread that
//! may block. Results are cached, including that a name does not exist.

use std::{
    hash::Hash,
    time::{Duration, Instant},
};

use bytes::Bytes;
use entropy::HashMap;
use parking_lot::Mutex;
use rpc::{
    Identity,
    users::{Host, System, Who, default_domain, is_name, number},
};
use xdr::{Encode, Encoder};

/// The reason why a user or group has no name or number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NameError {
    /// The host must be asked, and the thread must not block.
    WouldBlock,
    /// The name is empty or not UTF-8.
    Invalid,
    /// No user or group has this name.
    Unknown,
}

/// A name as NFSv4 sends it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Name {
    /// A number, which is sent in decimal.
    Number(u32),
    Text(Bytes),
}

/// The names of users and groups.
pub(crate) struct Names {
    domain: String,
    /// `true` if names are sent to all callers, otherwise only to principals.
    to_all: bool,
    host: Box<dyn Host>,
    names: Mutex<Cache<(Who, u32), Option<Bytes>>>,
    ids: Mutex<Cache<(Who, String), Option<u32>>>,
}

/// Cached results with the time at which they were looked up.
type Cache<K, V> = HashMap<K, (Instant, V)>;

impl Names {
    /// Creates the mapping of this host. With a domain, names are sent; without one, numbers.
    pub(crate) fn new(domain: Option<String>) -> Self {
        Self::of(domain, Box::new(System))
    }

    fn of(domain: Option<String>, host: Box<dyn Host>) -> Self {
        let to_all = domain.is_some();
        let domain = domain.unwrap_or_else(default_domain);
        Self { domain, to_all, host, names: Mutex::default(), ids: Mutex::default() }
    }

    /// Returns `true` if names are sent to a caller, so that the host must be asked.
    pub(crate) fn are_told(&self, caller: &Identity) -> bool {
        self.to_all || matches!(caller, Identity::Principal(_))
    }

    /// Returns the name of a user or group, in the form that is sent to `caller`.
    ///
    /// # Errors
    /// Returns [`NameError::WouldBlock`] if the name is not cached and `may_block` is `false`.
    pub(crate) fn name(&self, who: Who, id: u32, caller: &Identity, may_block: bool) -> Result<Name, NameError> {
        if !self.are_told(caller) {
            return Ok(Name::Number(id));
        }
        let domain = &self.domain;
        let ask = || self.host.name(who, id).filter(|name| is_name(name)).map(|name| format!("{name}@{domain}").into());
        let name = cached(&self.names, (who, id), may_block, ask)?;
        Ok(name.map_or(Name::Number(id), Name::Text))
    }

    /// Returns the ID of the user or group with this name, or with this number in decimal.
    ///
    /// # Errors
    /// Returns a [`NameError`]. A name in another domain is `Unknown`.
    pub(crate) fn id(&self, who: Who, text: &[u8], may_block: bool) -> Result<u32, NameError> {
        let text = std::str::from_utf8(text).ok().filter(|text| !text.is_empty()).ok_or(NameError::Invalid)?;
        if text.bytes().all(|byte| byte.is_ascii_digit()) {
            return number(text).ok_or(NameError::Unknown);
        }
        let name = match text.rsplit_once('@') {
            None => text,
            Some((name, domain)) if domain.eq_ignore_ascii_case(&self.domain) => name,
            Some(_) => return Err(NameError::Unknown),
        };
        if !is_name(name) {
            return Err(NameError::Unknown);
        }
        let ask = || self.host.id(who, name).filter(|&id| id != u32::MAX);
        let id = cached(&self.ids, (who, name.to_owned()), may_block, ask)?;
        id.ok_or(NameError::Unknown)
    }
}

impl Encode for Name {
    fn encode(&self, out: &mut Encoder) {
        let mut id = match self {
            Name::Number(id) => *id,
            Name::Text(text) => return out.opaque(text),
        };
        let len = id.checked_ilog10().unwrap_or(0) as usize + 1;
        // The length, up to ten digits, and the padding are appended at once.
        let mut item = [0; 16];
        item[3] = len as u8;
        for digit in item[4..4 + len].iter_mut().rev() {
            *digit = b'0' + (id % 10) as u8;
            id /= 10;
        }
        out.raw(&item[..4 + len.next_multiple_of(4)]);
    }
}

/// Returns the cached value for `key`, or calls `ask` and caches its result if the thread may block. No lock is held
/// during `ask`.
fn cached<K: Eq + Hash, V: Clone>(
    cache: &Mutex<Cache<K, V>>,
    key: K,
    may_block: bool,
    ask: impl FnOnce() -> V,
) -> Result<V, NameError> {
    let now = Instant::now();
    if let Some((at, value)) = cache.lock().get(&key)
        && now.duration_since(*at) < CACHE_TIME
    {
        return Ok(value.clone());
    }
    if !may_block {
        return Err(NameError::WouldBlock);
    }
    let value = ask();
    let mut cache = cache.lock();
    if cache.len() >= CACHE_MAX {
        cache.retain(|_, (at, _)| now.duration_since(*at) < CACHE_TIME);
        if cache.len() >= CACHE_MAX {
            cache.clear();
        }
    }
    cache.insert(key, (now, value.clone()));
    Ok(value)
}

/// Time for which a result is cached.
const CACHE_TIME: Duration = Duration::from_secs(60);
const CACHE_MAX: usize = 4096;

#[cfg(test)]
mod tests {
    use std::sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    };

    use rpc::security::Principal;
    use xdr::{Message, Opaque};

    use super::*;

    /// A host with user 7, `venus`, and group 7, `staff`. Counts the look-ups.
    #[derive(Clone, Default)]
    struct TestHost(Arc<AtomicUsize>);

    impl Host for TestHost {
        fn name(&self, who: Who, id: u32) -> Option<String> {
            self.0.fetch_add(1, Relaxed);
            (id == 7).then(|| if who == Who::User { "venus" } else { "staff" }.to_owned())
        }

        fn id(&self, who: Who, name: &str) -> Option<u32> {
            self.0.fetch_add(1, Relaxed);
            ((who, name) == (Who::User, "venus") || (who, name) == (Who::Group, "staff")).then_some(7)
        }
    }

    fn names(domain: Option<&str>) -> (Names, TestHost) {
        let host = TestHost::default();
        (Names::of(domain.map(str::to_owned), Box::new(host.clone())), host)
    }

    fn sent(name: &str) -> Name {
        name.parse().map_or_else(|_| Name::Text(Bytes::copy_from_slice(name.as_bytes())), Name::Number)
    }

    #[test]
    fn numbers_are_sent_unless_a_domain_is_configured() {
        let (plain, asked) = names(None);
        assert_eq!(plain.name(Who::User, 7, &Identity::None, false), Ok(sent("7")));
        assert_eq!(plain.name(Who::User, 0, &Identity::None, false), Ok(sent("0")));
        assert_eq!(plain.name(Who::User, 4_294_967_290, &Identity::None, false), Ok(sent("4294967290")));
        for (id, text) in [(0, "0"), (7, "7"), (1000, "1000"), (u32::MAX - 1, "4294967294")] {
            assert_eq!(Message::encode(&Name::Number(id)).decode(), Ok(Opaque::<10>::from(text)));
        }
        assert_eq!(asked.0.load(Relaxed), 0);
        let (named, _) = names(Some("example.com"));
        assert_eq!(named.name(Who::User, 7, &Identity::None, true), Ok(sent("venus@example.com")));
        assert_eq!(named.name(Who::Group, 7, &Identity::None, true), Ok(sent("staff@example.com")));
        assert_eq!(
            named.name(Who::User, 8, &Identity::None, true),
            Ok(sent("8")),
            "a user without a name must be sent as a number"
        );
    }

    #[test]
    fn principals_get_names_in_the_domain_of_the_host() {
        let principal = Principal { name: "venus@REALM".into(), pseudo_flavor: 390_003 };
        let (plain, _) = names(None);
        let Ok(Name::Text(text)) = plain.name(Who::User, 7, &Identity::Principal(principal), true) else { panic!() };
        assert_eq!(text, format!("venus@{}", default_domain()));
        assert_eq!(plain.id(Who::User, &text, true), Ok(7), "a client must be able to set what it got");
    }

    #[test]
    fn look_ups_block_and_are_cached() {
        let (names, asked) = names(Some("d"));
        assert_eq!(names.name(Who::User, 7, &Identity::None, false), Err(NameError::WouldBlock));
        assert_eq!(names.id(Who::User, b"mars", false), Err(NameError::WouldBlock));
        assert_eq!(asked.0.load(Relaxed), 0);
        for _ in 0..3 {
            names.name(Who::User, 7, &Identity::None, true).unwrap();
            assert_eq!(names.id(Who::User, b"mars", true), Err(NameError::Unknown), "a missing name must be cached");
        }
        assert_eq!(asked.0.load(Relaxed), 2);
        assert_eq!(names.name(Who::User, 7, &Identity::None, false), Ok(sent("venus@d")));
        for id in 0..2 * CACHE_MAX as u32 {
            names.name(Who::User, id, &Identity::None, true).unwrap();
        }
        assert!(names.names.lock().len() <= CACHE_MAX);
    }

    #[test]
    fn numbers_and_names_are_accepted() {
        let (plain, _) = names(None);
        let (named, asked) = names(Some("Example.com"));
        for names in [&plain, &named] {
            assert_eq!(names.id(Who::User, b"0", false), Ok(0));
            assert_eq!(names.id(Who::User, b"4294967294", false), Ok(u32::MAX - 1));
            assert_eq!(names.id(Who::User, b"venus", true), Ok(7));
            for bad in [&b"4294967295"[..], b"07", b"99999999999", b"staff", b"venus@elsewhere", b"@", b"a\0b", b"a:b"]
            {
                assert_eq!(names.id(Who::User, bad, true), Err(NameError::Unknown), "{}", bad.escape_ascii());
            }
            for bad in [&b""[..], b"\xff"] {
                assert_eq!(names.id(Who::User, bad, true), Err(NameError::Invalid));
            }
        }
        assert_eq!(named.id(Who::Group, b"staff@EXAMPLE.COM", true), Ok(7));
        assert_eq!(plain.id(Who::Group, b"staff@example.com", true), Err(NameError::Unknown));
        let before = asked.0.load(Relaxed);
        assert!(named.id(Who::User, &[b'x'; 257], true).is_err() && asked.0.load(Relaxed) == before);
    }
}
