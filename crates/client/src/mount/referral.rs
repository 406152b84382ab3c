//! [`Referred`]: the mounts of other servers to which a server has referred.
//!
//! Read RFC 8881 §11 first (RFC 7530 §8 for NFSv4.0). A name can stand for a file system on another server. The server
//! then lists locations of it, and the first location that can be mounted is used. It is mounted at the first access,
//! with the options of the URL, and stays mounted until the referring mount is dropped. The other server can refer to
//! further servers; the number of referrals in a chain is limited.

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

/// A function that mounts the tree of a URL, one referral further.
pub(crate) type Dial = Box<dyn Fn(NfsUrl) -> BoxFuture<'static, Result<Mount>> + Send + Sync>;

/// The mounts of the servers that a server has referred to.
pub(crate) struct Referred {
    dial: Dial,
    /// The number of referrals that have led to this mount.
    hops: u32,
    mounts: Mutex<HashMap<Location, Arc<Site>>>,
}

/// A location to which the server has referred.
#[derive(Debug, Default)]
struct Site {
    mount: OnceLock<Mount>,
    /// The number of failed attempts to mount it.
    failures: AtomicU64,
    /// The last failure. It is locked during an attempt.
    failure: tokio::sync::Mutex<Option<Failure>>,
}

/// The failure of an attempt.
#[derive(Debug)]
struct Failure {
    error: Error,
    /// The time before which no other attempt is made.
    until: Instant,
}

impl Referred {
    /// Makes the table of a mount to which `hops` referrals have led.
    pub fn new(dial: Dial, hops: u32) -> Self {
        Self { dial, hops, mounts: Mutex::default() }
    }

    /// Removes and returns all mounts.
    pub fn take(&self) -> Vec<Mount> {
        self.mounts.lock().drain().filter_map(|(_, site)| site.mount.get().cloned()).collect()
    }

    /// Returns the mount of a location, and makes it if there is none.
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
    /// Returns the mount of the location. If there is none, `attempt` makes it. Callers that arrive during an attempt
    /// wait for it and share its failure. Later callers attempt again, but not before as much time has passed as the
    /// failed attempt took, up to [`PAUSE_MAX`]: the kernel serializes programs that look up the same name, and each
    /// would wait as long as the first.
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
    /// Returns the root of the file system to which a name of this server refers.
    pub(crate) async fn follow(&self, dir: &Handle, name: &[u8]) -> Result<Object> {
        let v4 = self.v4().expect("only NFSv4 returns MOVED");
        let mut places = v4.locations(dir, name).await?;
        let referred = self.referred();
        if referred.hops >= HOPS_MAX {
            return Err(Error::new(ErrorKind::Path("too many referrals from server to server"), "LOOKUP"));
        }
        // Prefer locations that are already mounted to the server's order of preference.
        places.sort_by_key(|place| !referred.is_mounted(place));
        let mut failures = Vec::new();
        for place in &places {
            let found = async { referred.mount(self.url(), place).await?.resolve("").await };
            // The location can contain another referral.
            match Box::pin(found).await {
                Ok(object) => return Ok(object),
                Err(error) => failures.push(format!("{place}: {error}")),
            }
        }
        let why = if failures.is_empty() { "the server lists no location".to_owned() } else { failures.join("; ") };
        Err(Error::new(ErrorKind::Referral(why), "LOOKUP"))
    }
}

/// Converts a location to a URL. RFC 8881 §11.16: the server is a name; an address, optionally followed by the port as
/// two bytes in decimal; or empty for the server that sent the location.
pub(crate) fn url_of(place: &Location, from: &NfsUrl) -> Result<NfsUrl> {
    let wrong = || {
        Error::new(
            ErrorKind::Protocol(format!("invalid server name '{}' in a location", place.server.escape_ascii())),
            "LOOKUP",
        )
    };
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

/// Maximum number of referrals in a chain. A longer chain is taken for a loop.
const HOPS_MAX: u32 = 8;
/// Maximum time for which a failure is shared with later callers.
const PAUSE_MAX: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use tokio::time::sleep;

    use super::*;

    #[test]
    fn location_server_is_name_address_or_empty() {
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
    async fn callers_waiting_for_an_attempt_share_its_failure() {
        let (site, attempts) = (Site::default(), AtomicU64::new(0));
        let attempt = || async {
            let number = attempts.fetch_add(1, AcqRel);
            // The first attempt takes no time.
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
        // After a short failure the next caller attempts at once; after a failure of a minute, after `PAUSE_MAX`.
        for number in [1, 1, 2] {
            sleep(PAUSE_MAX * 2 / 3).await;
            let error = site.mount(attempt()).await.unwrap_err().to_string();
            assert!(error.contains(&format!("attempt {number}")), "{error}");
        }
    }
}
