//! [`Outflow`]: limits what a server sends to hosts that possibly did not send the call.
//!
//! The source address of a datagram can be forged, so a server that sends long replies floods a third party. A reply of
//! up to three times the length of its call is always sent; this is the limit of QUIC before an address is validated
//! (RFC 9000 §8.1). The bytes beyond that are taken from a token bucket of the host and, for hosts that are not
//! admitted, also from one bucket that all of these share. The loopback address cannot be forged and is not limited.
//!
//! This module does no I/O; the caller passes the time.

use std::net::IpAddr;

use entropy::HashMap;
use tokio::time::Instant;

use crate::Host;

/// The rate limits of replies.
pub(super) struct Outflow {
    admitted: Rate,
    hosts: HashMap<Host, Bucket>,
    unadmitted: Bucket,
    /// `true` if the loopback address is not limited. `false` in tests, which have no other address.
    pub trusts_loopback: bool,
}

/// The rate at which a bucket fills, and its capacity.
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

/// The decision about a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Send,
    /// Drop the reply now. The caller retransmits its call.
    Drop,
    /// The reply is too long for this host at any time.
    TooLong,
}

impl Outflow {
    /// Creates limits. An admitted host gets `bytes_per_s` in addition to three times the bytes of its calls.
    pub fn new(bytes_per_s: usize, now: Instant) -> Self {
        let admitted = Rate { bytes_per_s, burst: (bytes_per_s / 4).max(BURST_MIN) };
        Self {
            admitted,
            hosts: HashMap::default(),
            unadmitted: Bucket::new(ALL_UNADMITTED, now),
            trusts_loopback: true,
        }
    }

    /// Decides about a reply of `reply` bytes to a call of `call` bytes.
    pub fn judge(&mut self, to: IpAddr, admitted: bool, (call, reply): (usize, usize), now: Instant) -> Verdict {
        let beyond = reply.saturating_sub(FACTOR * call);
        if beyond == 0 || (self.trusts_loopback && to.to_canonical().is_loopback()) {
            return Verdict::Send;
        }
        let rate = if admitted { self.admitted } else { UNADMITTED_HOST };
        if beyond > rate.burst {
            return Verdict::TooLong;
        }
        let host = Host::of(to);
        if self.hosts.len() >= HOSTS_MAX && !self.hosts.contains_key(&host) {
            // A full bucket has no effect, so it can be removed.
            self.hosts.retain(|_, bucket| !bucket.is_full(now));
            if self.hosts.len() >= HOSTS_MAX {
                return Verdict::Drop;
            }
        }
        let bucket = self.hosts.entry(host).or_insert_with(|| Bucket::new(rate, now));
        let all = (!admitted).then_some(&mut self.unadmitted);
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

/// The factor of RFC 9000 §8.1.
const FACTOR: usize = 3;
/// Minimum capacity in bytes: one datagram always fits.
const BURST_MIN: usize = 64 << 10;
const UNADMITTED_HOST: Rate = Rate { bytes_per_s: 1 << 10, burst: 4 << 10 };
const ALL_UNADMITTED: Rate = Rate { bytes_per_s: 64 << 10, burst: 64 << 10 };
const HOSTS_MAX: usize = 4096;

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const CALL: usize = 128;

    fn address(at: u32) -> IpAddr {
        IpAddr::from(std::net::Ipv4Addr::from(0x0a00_0000 + at))
    }

    /// Returns the bytes sent to `hosts` hosts in ten seconds, in replies of `reply` bytes at the maximum rate, and the
    /// number of calls.
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
    fn long_replies_to_unadmitted_hosts_are_limited_per_host_and_in_total() {
        let (bytes, _) = sent(false, 1, 2048);
        assert!((8 << 10..=(4 << 10) + 10 * (1 << 10) + 8 * 3 * CALL).contains(&bytes), "{bytes}");
        let (bytes, _) = sent(false, 500, 2048);
        assert!(bytes <= 2048 * ((64 << 10) * 11 / (2048 - 3 * CALL)), "{bytes}");
    }

    #[test]
    fn admitted_host_gets_its_rate_and_loopback_is_not_limited() {
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
