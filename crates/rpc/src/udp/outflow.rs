//! [`Outflow`]: bounds what a server sends to hosts that may never have asked.
//!
//! The source address of a datagram can be forged, so a server that answers at length floods a third party. A reply of up to
//! three times the length of its call is always sent, which is the bound of QUIC before an address is validated (RFC 9000 §8.1).
//! What a reply has beyond that is taken from a token bucket of its host, and for hosts that are not served in full from one
//! bucket of all of these, too. Nobody forges the loopback address, which has no bound.
//!
//! Pure: it is told the time.

use std::net::IpAddr;

use entropy::HashMap;
use tokio::time::Instant;

use crate::Host;

/// Bounds replies to each host.
pub(super) struct Outflow {
    admitted: Rate,
    hosts: HashMap<Host, Bucket>,
    strangers: Bucket,
    /// Whether nobody can forge the loopback address; false in tests, which have no other.
    pub trusts_loopback: bool,
}

/// How fast a bucket fills, and how much it holds.
#[derive(Clone, Copy)]
struct Rate {
    bytes_per_s: usize,
    burst: usize,
}

struct Bucket {
    rate: Rate,
    bytes: usize,
    filled: Instant,
}

/// What to do with a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Send,
    /// Not now; the caller will ask again.
    Drop,
    /// It is too long for this host at any time.
    TooLong,
}

impl Outflow {
    /// To hosts that are served in full, so many bytes a second beyond three times those of their calls.
    pub fn new(bytes_per_s: usize, now: Instant) -> Self {
        let admitted = Rate { bytes_per_s, burst: (bytes_per_s / 4).max(BURST_MIN) };
        Self { admitted, hosts: HashMap::default(), strangers: Bucket::new(STRANGERS, now), trusts_loopback: true }
    }

    /// Judges a reply of `reply` bytes to a call of `call` bytes.
    pub fn judge(&mut self, to: IpAddr, admitted: bool, (call, reply): (usize, usize), now: Instant) -> Verdict {
        let beyond = reply.saturating_sub(FACTOR * call);
        if beyond == 0 || (self.trusts_loopback && to.to_canonical().is_loopback()) {
            return Verdict::Send;
        }
        let rate = if admitted { self.admitted } else { STRANGER };
        if beyond > rate.burst {
            return Verdict::TooLong;
        }
        let host = Host::of(to);
        if self.hosts.len() >= HOSTS_MAX && !self.hosts.contains_key(&host) {
            // A full bucket is as good as none.
            self.hosts.retain(|_, bucket| !bucket.is_full(now));
            if self.hosts.len() >= HOSTS_MAX {
                return Verdict::Drop;
            }
        }
        let bucket = self.hosts.entry(host).or_insert_with(|| Bucket::new(rate, now));
        let all = (!admitted).then_some(&mut self.strangers);
        if !bucket.has(beyond, now) || all.as_ref().is_some_and(|all| !all.has(beyond, now)) {
            return Verdict::Drop;
        }
        bucket.take(beyond, now);
        if let Some(all) = all {
            all.take(beyond, now);
        }
        Verdict::Send
    }
}

impl Bucket {
    fn new(rate: Rate, now: Instant) -> Self {
        Self { rate, bytes: rate.burst, filled: now }
    }

    fn level(&self, now: Instant) -> usize {
        let earned = now.duration_since(self.filled).as_secs_f64() * self.rate.bytes_per_s as f64;
        self.bytes.saturating_add(earned as usize).min(self.rate.burst)
    }

    fn has(&self, bytes: usize, now: Instant) -> bool {
        self.level(now) >= bytes
    }

    fn is_full(&self, now: Instant) -> bool {
        self.has(self.rate.burst, now)
    }

    fn take(&mut self, bytes: usize, now: Instant) {
        self.bytes = self.level(now) - bytes;
        self.filled = now;
    }
}

/// RFC 9000 §8.1.
const FACTOR: usize = 3;
/// A datagram always fits.
const BURST_MIN: usize = 64 << 10;
const STRANGER: Rate = Rate { bytes_per_s: 1 << 10, burst: 4 << 10 };
const STRANGERS: Rate = Rate { bytes_per_s: 64 << 10, burst: 64 << 10 };
const HOSTS_MAX: usize = 4096;

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const CALL: usize = 128;

    fn address(at: u32) -> IpAddr {
        IpAddr::from(std::net::Ipv4Addr::from(0x0a00_0000 + at))
    }

    /// Bytes sent to `hosts` hosts in ten seconds, in replies of `reply` bytes as often as they go, and the calls for them.
    fn sent(admitted: bool, hosts: u32, reply: usize) -> (usize, usize) {
        let start = Instant::now();
        let mut outflow = Outflow::new(1 << 20, start);
        let (mut sent, mut calls) = (0, 0);
        for tenth in 0..100 {
            let now = start + Duration::from_millis(100 * tenth);
            for host in 0..hosts {
                for _ in 0..20 {
                    calls += 1;
                    if outflow.judge(address(host), admitted, (CALL, reply), now) == Verdict::Send {
                        sent += reply;
                    }
                }
            }
        }
        (sent, calls)
    }

    #[test]
    fn short_replies_are_always_sent() {
        let (bytes, calls) = sent(false, 10, 3 * CALL);
        assert_eq!(bytes, calls * 3 * CALL);
    }

    #[test]
    fn long_replies_to_a_stranger_and_to_all_strangers_are_bounded() {
        let (bytes, _) = sent(false, 1, 2048);
        assert!((8 << 10..=(4 << 10) + 10 * (1 << 10) + 8 * 3 * CALL).contains(&bytes), "{bytes}");
        let (bytes, _) = sent(false, 500, 2048);
        assert!(bytes <= 2048 * ((64 << 10) * 11 / (2048 - 3 * CALL)), "{bytes}");
    }

    #[test]
    fn an_admitted_host_gets_its_rate_and_the_loopback_address_everything() {
        let (bytes, _) = sent(true, 1, 32 << 10);
        assert!((9 << 20..=(11 << 20)).contains(&bytes), "{bytes}");
        let now = Instant::now();
        let mut outflow = Outflow::new(1, now);
        assert_eq!(outflow.judge(address(1), false, (CALL, 5000), now), Verdict::TooLong);
        for _ in 0..1000 {
            assert_eq!(outflow.judge([127, 0, 0, 1].into(), false, (CALL, 60_000), now), Verdict::Send);
        }
    }

    #[test]
    fn the_table_of_hosts_is_bounded() {
        let now = Instant::now();
        let mut outflow = Outflow::new(1 << 20, now);
        for host in 0..3 * HOSTS_MAX as u32 {
            outflow.judge(address(host), true, (CALL, 1000), now);
        }
        assert_eq!(outflow.hosts.len(), HOSTS_MAX);
        let later = now + Duration::from_secs(60);
        assert_eq!(outflow.judge(address(1 << 20), true, (CALL, 1000), later), Verdict::Send);
        assert_eq!(outflow.hosts.len(), 1);
    }
}
