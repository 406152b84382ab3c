//! [`Referred`]: the mounts of other servers that a server has referred to.
//!
//! Read RFC 8881 §11 first (RFC 7530 §8 of version 4.0). A name can stand for a file system that another server has: then
//! the first of the places that it names and that can be mounted takes its place. It is mounted when somebody first comes
//! there, with the options of the URL, and stays until the mount that led there is no more. A server that was referred to
//! can refer on; that this has an end is seen to here.

use std::{
    fmt,
    net::IpAddr,
    sync::{
        Arc, OnceLock,
        atomic::{
            AtomicU64,
            Ordering::{AcqRel, Acquire},
        },
    },
    time::Duration,
};

use entropy::HashMap;
use parking_lot::Mutex;
use rpc::{BoxFuture, rpcbind::from_universal};
use tokio::time::{Instant, timeout};

use super::{Mount, Object};
use crate::{
    model::{Error, ErrorKind, Handle, NfsUrl, Result},
    v4::location::Location,
};

/// Mounts what a URL names, one referral further.
pub(crate) type Dial = Box<dyn Fn(NfsUrl) -> BoxFuture<'static, Result<Mount>> + Send + Sync>;

/// The mounts of the servers that a server has referred to.
pub(crate) struct Referred {
    dial: Dial,
    /// Referrals that have led here.
    hops: u32,
    mounts: Mutex<HashMap<Location, Arc<Site>>>,
}

/// A place that has been referred to.
#[derive(Debug, Default)]
struct Site {
    mount: OnceLock<Mount>,
    /// Attempts to mount it that have failed.
    failures: AtomicU64,
    /// The last failure. It is locked while an attempt is made.
    failure: tokio::sync::Mutex<Option<Failure>>,
}

/// Why an attempt has failed.
#[derive(Debug)]
struct Failure {
    error: Error,
    /// Until then nobody makes another.
    until: Instant,
}

impl Referred {
    /// Of a mount to which this number of referrals has led.
    pub fn new(dial: Dial, hops: u32) -> Self {
        Self { dial, hops, mounts: Mutex::default() }
    }

    /// Forgets all of them.
    pub fn take(&self) -> Vec<Mount> {
        self.mounts.lock().drain().filter_map(|(_, site)| site.mount.get().cloned()).collect()
    }

    /// The mount of a place, made now if there is none.
    async fn mount(&self, from: &NfsUrl, place: &Location) -> Result<Mount> {
        let url = url_of(place, from)?;
        let site = self.mounts.lock().entry(place.clone()).or_default().clone();
        let deadline = url.options.deadline;
        let made = async {
            let made = timeout(deadline, (self.dial)(url)).await;
            made.unwrap_or_else(|_| Err(Error::new(ErrorKind::Timeout { after: deadline, last: None }, "connect")))
        };
        site.mount(made).await
    }

    fn is_mounted(&self, place: &Location) -> bool {
        self.mounts.lock().get(place).is_some_and(|site| site.mount.get().is_some())
    }
}

impl Site {
    /// The mount of it, made by `attempt` if there is none. A caller that comes while an attempt is made waits for it, and shares its
    /// failure; a later one makes another. One that has taken long is shared for as long again, up to [`PAUSE_MAX`]: the kernel lets
    /// the programs that look up a name through one after the other, and each would wait as long.
    async fn mount(&self, attempt: impl Future<Output = Result<Mount>>) -> Result<Mount> {
        let before = self.failures.load(Acquire);
        let mut failure = self.failure.lock().await;
        if let Some(mount) = self.mount.get() {
            return Ok(mount.clone());
        }
        let begun = Instant::now();
        if let Some(Failure { error, until }) = failure.as_ref()
            && (self.failures.load(Acquire) != before || begun < *until)
        {
            return Err(error.clone());
        }
        match attempt.await {
            Ok(mount) => Ok(self.mount.get_or_init(|| mount).clone()),
            Err(error) => {
                let now = Instant::now();
                *failure = Some(Failure { error: error.clone(), until: now + (now - begun).min(PAUSE_MAX) });
                self.failures.fetch_add(1, AcqRel);
                Err(error)
            }
        }
    }
}

impl Mount {
    /// The root of the file system that a name of this server stands for, wherever that is.
    pub(crate) async fn follow(&self, dir: &Handle, name: &[u8]) -> Result<Object> {
        let v4 = self.v4().expect("no other version says MOVED");
        let mut places = v4.locations(dir, name).await?;
        let referred = self.referred();
        if referred.hops >= HOPS_MAX {
            return Err(Error::new(ErrorKind::Path("too many referrals from server to server"), "LOOKUP"));
        }
        // What has been reached is not left for what the server would rather have.
        places.sort_by_key(|place| !referred.is_mounted(place));
        let mut failures = Vec::new();
        for place in &places {
            let found = async { referred.mount(self.url(), place).await?.resolve("").await };
            // What is there can be another referral.
            match Box::pin(found).await {
                Ok(object) => return Ok(object),
                Err(error) => failures.push(format!("{place}: {error}")),
            }
        }
        let why = if failures.is_empty() { "it does not say where".to_owned() } else { failures.join("; ") };
        Err(Error::new(ErrorKind::Referral(why), "LOOKUP"))
    }
}

/// RFC 8881 §11.16: a server is a name, or an address with or without the port behind it as two bytes in decimal, or
/// empty for the one that says it.
pub(crate) fn url_of(place: &Location, from: &NfsUrl) -> Result<NfsUrl> {
    let wrong =
        || Error::new(ErrorKind::Protocol(format!("a server called '{}'", place.server.escape_ascii())), "LOOKUP");
    let server = std::str::from_utf8(&place.server).map_err(|_| wrong())?;
    let (host, port) = match (server, server.parse::<IpAddr>(), from_universal(server)) {
        ("", ..) => (from.host.clone(), from.port),
        (_, Err(_), Some(address)) => (address.ip().to_string(), Some(address.port())),
        _ => (server.to_owned(), None),
    };
    if host.contains(['/', '?', '#', '@']) {
        return Err(wrong());
    }
    let mut options = from.options.clone();
    options.addresses.clear();
    Ok(NfsUrl { host, port, path: place.path.clone(), options })
}

impl fmt::Debug for Referred {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Referred").field("hops", &self.hops).field("mounts", &self.mounts).finish_non_exhaustive()
    }
}

/// Referrals from server to server; more of them are taken for a circle.
const HOPS_MAX: u32 = 8;
/// What could not be reached is tried again after this at the latest.
const PAUSE_MAX: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use tokio::time::sleep;

    use super::*;

    #[test]
    fn a_server_is_a_name_an_address_or_the_same() {
        let from: NfsUrl = "nfs://nas:2050/x?vers=4.2&addr=nas2&uid=7".parse().unwrap();
        for (server, host, port) in [
            ("other.example", "other.example", None),
            ("10.0.0.7", "10.0.0.7", None),
            ("10.0.0.7.8.1", "10.0.0.7", Some(2049)),
            ("2001:db8::7", "2001:db8::7", None),
            ("2001:db8::7.8.2", "2001:db8::7", Some(2050)),
            ("", "nas", Some(2050)),
        ] {
            let place = Location { server: server.into(), path: "/srv".into() };
            let url = url_of(&place, &from).unwrap();
            assert_eq!((url.host.as_str(), url.port, &url.path[..]), (host, port, &b"/srv"[..]), "{server}");
            assert_eq!((url.options.uid, url.options.addresses.len()), (Some(7), 0));
        }
        let strange = Location { server: "nas/x".into(), path: "/srv".into() };
        assert!(url_of(&strange, &from).is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn who_waits_for_an_attempt_shares_its_failure() {
        let (site, attempts) = (Site::default(), AtomicU64::new(0));
        let attempt = || async {
            let number = attempts.fetch_add(1, AcqRel);
            // The first takes no time that could be counted.
            match number {
                0 => tokio::task::yield_now().await,
                _ => sleep(Duration::from_secs(60 * number)).await,
            }
            Err(Error::new(ErrorKind::Resolve(format!("attempt {number}")), "connect"))
        };
        let (first, second) = tokio::join!(site.mount(attempt()), site.mount(attempt()));
        for shared in [first, second] {
            assert!(shared.unwrap_err().to_string().contains("attempt 0"));
        }
        // What failed soon is tried again soon, and what took a minute after a while.
        for number in [1, 1, 2] {
            sleep(PAUSE_MAX * 2 / 3).await;
            let error = site.mount(attempt()).await.unwrap_err().to_string();
            assert!(error.contains(&format!("attempt {number}")), "{error}");
        }
    }
}
