//! [`Names`]: the names of users and groups, in the form that NFSv4 sends (RFC 8881 §5.9), and the host's names for them.
//!
//! Numbers are sent in decimal, as Linux's client and server do by default with AUTH_SYS; or `name@domain`, if a domain is
//! configured, and a number for a user without a name. Either form is accepted, and a bare name. The host may need a network
//! to find a name, so it is asked only on a thread that may wait. Its answer is cached, also that there is no such name.

use std::{
    hash::Hash,
    time::{Duration, Instant},
};

use bytes::Bytes;
use entropy::HashMap;
use parking_lot::Mutex;
use smallvec::SmallVec;

/// The reason why a user or group has no name or number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NameError {
    /// The host would have to be asked, and the thread must not wait.
    WouldBlock,
    /// The name is empty, or not UTF-8.
    Invalid,
    /// No user or group has this name.
    Unknown,
}

/// A user or a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Who {
    User,
    Group,
}

/// A name as it is sent; that of a number needs no memory of its own.
pub(crate) type Name = SmallVec<[u8; 32]>;

/// The names of users and groups.
pub(crate) struct Names {
    domain: Option<String>,
    host: Box<dyn Host>,
    names: Mutex<Known<(Who, u32), Option<Bytes>>>,
    ids: Mutex<Known<(Who, String), Option<u32>>>,
}

/// Who knows them. It may take long.
trait Host: Send + Sync {
    fn name(&self, who: Who, id: u32) -> Option<String>;
    fn id(&self, who: Who, name: &str) -> Option<u32>;
}

/// What has been asked lately.
type Known<K, V> = HashMap<K, (Instant, V)>;

impl Names {
    /// Those of this host, in a domain if names shall go out.
    pub(crate) fn new(domain: Option<String>) -> Self {
        Self::of(domain, Box::new(System))
    }

    fn of(domain: Option<String>, host: Box<dyn Host>) -> Self {
        Self { domain, host, names: Mutex::default(), ids: Mutex::default() }
    }

    /// Whether names go out, so that the host has to be asked.
    pub(crate) fn are_told(&self) -> bool {
        self.domain.is_some()
    }

    /// The name of a user or group.
    ///
    /// # Errors
    /// [`NameError::WouldBlock`].
    pub(crate) fn name(&self, who: Who, id: u32, may_block: bool) -> Result<Name, NameError> {
        let Some(domain) = &self.domain else { return Ok(decimal(id)) };
        let ask = || self.host.name(who, id).filter(|name| is_name(name)).map(|name| format!("{name}@{domain}").into());
        let name = known(&self.names, (who, id), may_block, ask)?;
        Ok(name.map_or_else(|| decimal(id), |name| Name::from_slice(&name)))
    }

    /// The user or group with a name, or with a number in decimal.
    ///
    /// # Errors
    /// [`NameError`]. A name in another domain is unknown.
    pub(crate) fn id(&self, who: Who, text: &[u8], may_block: bool) -> Result<u32, NameError> {
        let text = std::str::from_utf8(text).ok().filter(|text| !text.is_empty()).ok_or(NameError::Invalid)?;
        if text.bytes().all(|byte| byte.is_ascii_digit()) {
            return number(text).ok_or(NameError::Unknown);
        }
        let name = match (text.rsplit_once('@'), &self.domain) {
            (None, _) => text,
            (Some((name, domain)), Some(ours)) if domain.eq_ignore_ascii_case(ours) => name,
            (Some(_), _) => return Err(NameError::Unknown),
        };
        if !is_name(name) {
            return Err(NameError::Unknown);
        }
        let ask = || self.host.id(who, name).filter(|&id| id != u32::MAX);
        let id = known(&self.ids, (who, name.to_owned()), may_block, ask)?;
        id.ok_or(NameError::Unknown)
    }
}

/// A number in decimal.
fn decimal(mut id: u32) -> Name {
    let mut digits = [0; 10];
    let mut first = digits.len();
    loop {
        first -= 1;
        digits[first] = b'0' + (id % 10) as u8;
        id /= 10;
        if id == 0 {
            return Name::from_slice(&digits[first..]);
        }
    }
}

/// The number that a text is, in the form in which numbers are sent; no other form is a number.
pub(crate) fn number(text: &str) -> Option<u32> {
    let plain = text.bytes().all(|byte| byte.is_ascii_digit()) && (text == "0" || !text.starts_with('0'));
    // The systems below take the largest number for "leave it".
    text.parse().ok().filter(|&id| plain && id != u32::MAX)
}

/// Whether something can be a name: not what means something else in this protocol, or would be strange to ask for.
fn is_name(text: &str) -> bool {
    let strange = |c: char| c.is_control() || matches!(c, '@' | ':' | '/');
    !text.is_empty() && text.len() <= NAME_MAX && !text.contains(strange) && !text.bytes().all(|b| b.is_ascii_digit())
}

/// What was answered lately, or is answered now, if that may take its time. Nothing is locked meanwhile.
fn known<K: Eq + Hash, V: Clone>(
    known: &Mutex<Known<K, V>>,
    key: K,
    may_block: bool,
    ask: impl FnOnce() -> V,
) -> Result<V, NameError> {
    let now = Instant::now();
    if let Some((at, value)) = known.lock().get(&key)
        && now.duration_since(*at) < KEPT
    {
        return Ok(value.clone());
    }
    if !may_block {
        return Err(NameError::WouldBlock);
    }
    let value = ask();
    let mut known = known.lock();
    if known.len() >= KNOWN_MAX {
        known.retain(|_, (at, _)| now.duration_since(*at) < KEPT);
        if known.len() >= KNOWN_MAX {
            known.clear();
        }
    }
    known.insert(key, (now, value.clone()));
    Ok(value)
}

/// This host's, by the name service switch.
struct System;

impl Host for System {
    fn name(&self, who: Who, id: u32) -> Option<String> {
        match who {
            Who::User => uzers::get_user_by_uid(id)?.name().to_str().map(str::to_owned),
            Who::Group => uzers::get_group_by_gid(id)?.name().to_str().map(str::to_owned),
        }
    }

    fn id(&self, who: Who, name: &str) -> Option<u32> {
        match who {
            Who::User => uzers::get_user_by_name(name).map(|user| user.uid()),
            Who::Group => uzers::get_group_by_name(name).map(|group| group.gid()),
        }
    }
}

const NAME_MAX: usize = 256;
/// How long an answer is good for.
const KEPT: Duration = Duration::from_secs(60);
const KNOWN_MAX: usize = 4096;

#[cfg(test)]
mod tests {
    use std::sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    };

    use super::*;

    /// `venus` is user 7 and `staff` group 7; and how often that was asked.
    #[derive(Clone, Default)]
    struct Two(Arc<AtomicUsize>);

    impl Host for Two {
        fn name(&self, who: Who, id: u32) -> Option<String> {
            self.0.fetch_add(1, Relaxed);
            (id == 7).then(|| if who == Who::User { "venus" } else { "staff" }.to_owned())
        }

        fn id(&self, who: Who, name: &str) -> Option<u32> {
            self.0.fetch_add(1, Relaxed);
            ((who, name) == (Who::User, "venus") || (who, name) == (Who::Group, "staff")).then_some(7)
        }
    }

    fn names(domain: Option<&str>) -> (Names, Two) {
        let host = Two::default();
        (Names::of(domain.map(str::to_owned), Box::new(host.clone())), host)
    }

    fn sent(name: &str) -> Name {
        Name::from_slice(name.as_bytes())
    }

    #[test]
    fn numbers_go_out_unless_there_is_a_domain() {
        let (plain, asked) = names(None);
        assert_eq!(plain.name(Who::User, 7, false), Ok(sent("7")));
        assert_eq!(plain.name(Who::User, 0, false), Ok(sent("0")));
        assert_eq!(plain.name(Who::User, 4_294_967_290, false), Ok(sent("4294967290")));
        assert_eq!(asked.0.load(Relaxed), 0);
        let (named, _) = names(Some("example.com"));
        assert_eq!(named.name(Who::User, 7, true), Ok(sent("venus@example.com")));
        assert_eq!(named.name(Who::Group, 7, true), Ok(sent("staff@example.com")));
        assert_eq!(named.name(Who::User, 8, true), Ok(sent("8")), "who has no name has a number");
    }

    #[test]
    fn the_host_is_asked_where_that_may_be_and_once() {
        let (names, asked) = names(Some("d"));
        assert_eq!(names.name(Who::User, 7, false), Err(NameError::WouldBlock));
        assert_eq!(names.id(Who::User, b"mars", false), Err(NameError::WouldBlock));
        assert_eq!(asked.0.load(Relaxed), 0);
        for _ in 0..3 {
            names.name(Who::User, 7, true).unwrap();
            assert_eq!(names.id(Who::User, b"mars", true), Err(NameError::Unknown), "also that there is none");
        }
        assert_eq!(asked.0.load(Relaxed), 2);
        assert_eq!(names.name(Who::User, 7, false), Ok(sent("venus@d")));
        for id in 0..2 * KNOWN_MAX as u32 {
            names.name(Who::User, id, true).unwrap();
        }
        assert!(names.names.lock().len() <= KNOWN_MAX);
    }

    #[test]
    fn numbers_and_names_come_in() {
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
        assert!(named.id(Who::User, &[b'x'; NAME_MAX + 1], true).is_err() && asked.0.load(Relaxed) == before);
    }
}
