//! [`Owners`]: the users and groups that an NFSv4 server names (RFC 8881 §5.9).
//!
//! A server names the owners of files by numbers, or as `alice@example.com`, for example if the caller uses Kerberos. A name in the domain of this
//! host is looked up in its user and group databases. A user without a number here is nobody.
//!
//! The look-up can take long, so it runs on a thread of its own, and results are cached. A reply waits for an answer for [`PATIENCE`] at most,
//! and after it has waited in vain, others do not wait for a while. Until there is an answer, the owner is nobody.

use std::{
    collections::VecDeque,
    sync::{Arc, OnceLock},
    thread,
    time::{Duration, Instant},
};

use entropy::HashMap;
use parking_lot::{Condvar, Mutex};
use rpc::users::{self, Host, Who};

/// The names that servers use, and the numbers of this host.
struct Owners {
    domain: String,
    host: Box<dyn Host>,
    state: Mutex<State>,
    answered: Condvar,
}

#[derive(Default)]
struct State {
    known: [HashMap<String, Known>; 2],
    asked: VecDeque<(Who, String)>,
    /// `true` if a thread answers.
    is_answering: bool,
    /// The time until which nobody waits.
    slow_until: Option<Instant>,
}

#[derive(Clone, Copy)]
struct Known {
    id: Option<u32>,
    at: Instant,
}

static OWNERS: OnceLock<Arc<Owners>> = OnceLock::new();

/// From now on, all mounts of this process map the names of owners to the users and groups of this host. This reads its name service switch in a
/// thread. Before, an owner whom a server names is nobody.
pub fn map_owner_names() {
    OWNERS.get_or_init(|| Owners::new(users::default_domain(), Box::new(users::System)));
}

/// Returns the user or group ID of an owner, as the server has sent it: a decimal number or a name; nobody if it has no number here.
pub(crate) fn id(who: Who, text: &[u8]) -> u32 {
    let digit = |&byte: &u8| char::from(byte).to_digit(10);
    let number = text.iter().try_fold(0u32, |number, byte| number.checked_mul(10)?.checked_add(digit(byte)?));
    match number {
        Some(number) if !text.is_empty() => number,
        _ => OWNERS.get().and_then(|owners| owners.id(who, text)).unwrap_or(NOBODY),
    }
}

impl Owners {
    fn new(domain: String, host: Box<dyn Host>) -> Arc<Self> {
        Arc::new(Self { domain, host, state: Mutex::default(), answered: Condvar::new() })
    }

    /// Returns the ID of a user or group of this host's domain.
    fn id(self: &Arc<Self>, who: Who, text: &[u8]) -> Option<u32> {
        let (name, domain) = std::str::from_utf8(text).ok()?.rsplit_once('@')?;
        if !domain.eq_ignore_ascii_case(&self.domain) || !users::is_name(name) {
            return None;
        }
        let mut state = self.state.lock();
        let now = Instant::now();
        if let Some(Known { id, at }) = state.known[who as usize].get(name).copied() {
            if now.duration_since(at) >= CACHE_TIME {
                self.ask(&mut state, who, name);
            }
            return id;
        }
        if !self.ask(&mut state, who, name) {
            return None;
        }
        let until = now + PATIENCE;
        while state.slow_until.is_none_or(|until| until <= now) {
            if self.answered.wait_until(&mut state, until).timed_out() {
                state.slow_until = Some(Instant::now() + SLOW_TIME);
            }
            if let Some(known) = state.known[who as usize].get(name) {
                return known.id;
            }
        }
        None
    }

    /// Asks for a name. Returns `false` if too many are asked for already.
    fn ask(self: &Arc<Self>, state: &mut State, who: Who, name: &str) -> bool {
        let is_asked = state.asked.iter().any(|asked| asked.0 == who && asked.1 == name);
        if !is_asked {
            if state.asked.len() >= ASKED_MAX {
                return false;
            }
            state.asked.push_back((who, name.to_owned()));
        }
        if !state.is_answering {
            let owners = self.clone();
            let answering = thread::Builder::new().name("owners".to_owned()).spawn(move || owners.answer());
            // Without a thread, a later question tries again.
            state.is_answering = answering.is_ok();
        }
        state.is_answering
    }

    /// Answers all questions.
    fn answer(&self) {
        let mut state = self.state.lock();
        // A question stays in the queue while it is answered, so that it is not asked again.
        while let Some((who, name)) = state.asked.front().cloned() {
            let id = parking_lot::MutexGuard::unlocked(&mut state, || self.host.id(who, &name));
            state.asked.pop_front();
            let known = &mut state.known[who as usize];
            if known.len() >= CACHE_MAX {
                known.clear();
            }
            let id = id.filter(|&id| id != u32::MAX);
            known.insert(name, Known { id, at: Instant::now() });
            self.answered.notify_all();
        }
        state.is_answering = false;
    }
}

/// The number of nobody, a user without a number.
pub(crate) const NOBODY: u32 = 65534;
/// Maximum time for which a reply waits for an answer.
const PATIENCE: Duration = Duration::from_millis(50);
/// The time for which replies do not wait after one has waited in vain.
const SLOW_TIME: Duration = Duration::from_secs(10);
/// The time after which a known name is looked up again.
const CACHE_TIME: Duration = Duration::from_secs(60);
const CACHE_MAX: usize = 4096;
const ASKED_MAX: usize = 256;

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

    use super::*;

    /// A host with user 7, `venus`. An answer needs a permit.
    #[derive(Clone, Default)]
    struct TestHost(Arc<Permits>);

    #[derive(Default)]
    struct Permits {
        permits: Mutex<usize>,
        permitted: Condvar,
        asked: AtomicUsize,
    }

    impl Host for TestHost {
        fn name(&self, _: Who, _: u32) -> Option<String> {
            None
        }

        fn id(&self, who: Who, name: &str) -> Option<u32> {
            self.0.asked.fetch_add(1, SeqCst);
            let mut permits = self.0.permits.lock();
            self.0.permitted.wait_while(&mut permits, |permits| *permits == 0);
            *permits -= 1;
            ((who, name) == (Who::User, "venus")).then_some(7)
        }
    }

    fn owners(permits: usize) -> (Arc<Owners>, TestHost) {
        let host = TestHost::default();
        *host.0.permits.lock() = permits;
        (Owners::new("example.com".to_owned(), Box::new(host.clone())), host)
    }

    /// Waits until all questions are answered.
    fn settle(owners: &Owners) {
        let mut state = owners.state.lock();
        while !state.asked.is_empty() {
            owners.answered.wait(&mut state);
        }
    }

    #[test]
    fn names_of_the_domain_have_the_numbers_of_this_host() {
        let (owners, host) = owners(1000);
        for text in ["venus@example.com", "venus@EXAMPLE.com"] {
            owners.id(Who::User, text.as_bytes());
            settle(&owners);
            assert_eq!(owners.id(Who::User, text.as_bytes()), Some(7));
        }
        for (who, text) in [(Who::Group, "venus@example.com"), (Who::User, "mars@example.com")] {
            owners.id(who, text.as_bytes());
            settle(&owners);
            assert_eq!(owners.id(who, text.as_bytes()), None);
        }
        assert_eq!(host.0.asked.load(SeqCst), 3, "answers are cached, also that there is no such name");
        for text in
            [&b"venus@elsewhere.com"[..], b"venus", b"@example.com", b"a:b@example.com", b"\xff@example.com", b""]
        {
            assert_eq!(owners.id(Who::User, text), None);
        }
        assert_eq!(host.0.asked.load(SeqCst), 3);
        assert_eq!((id(Who::User, b"12"), id(Who::Group, b"0")), (12, 0));
        assert_eq!(id(Who::User, b"4294967296"), NOBODY);
        assert_eq!(id(Who::User, b""), NOBODY);
    }

    #[test]
    fn owner_is_nobody_until_a_slow_host_has_answered() {
        let (owners, host) = owners(0);
        assert_eq!(owners.id(Who::User, b"venus@example.com"), None);
        assert!(owners.state.lock().slow_until.is_some(), "others do not wait");
        assert_eq!(owners.id(Who::User, b"mars@example.com"), None);
        // A name that is asked for is not asked for again.
        assert_eq!(owners.id(Who::User, b"venus@example.com"), None);
        assert_eq!(owners.state.lock().asked.len(), 2);
        *host.0.permits.lock() = 2;
        host.0.permitted.notify_all();
        settle(&owners);
        assert_eq!(owners.id(Who::User, b"venus@example.com"), Some(7));
        assert_eq!(host.0.asked.load(SeqCst), 2);
    }

    #[test]
    fn names_of_a_hostile_server_are_bounded() {
        let (owners, _) = owners(0);
        for number in 0..2 * ASKED_MAX {
            owners.id(Who::User, format!("user{number}@example.com").as_bytes());
        }
        assert_eq!(owners.state.lock().asked.len(), ASKED_MAX);
    }
}
