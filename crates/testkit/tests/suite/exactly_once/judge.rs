//! The checker. It receives the requests and replies of clients, and the server's replies before they enter the
//! network, and reports violations.

use std::{collections::HashSet, time::Duration};

use nfs::v4::{Argop4, LockArgs, LockRes, Res4, Resop4, compound::CompoundArgs, compound::CompoundRes};

/// A time since the start of the world.
pub type Moment = Duration;

/// An event, for the log.
#[derive(Clone, Debug)]
#[allow(dead_code, reason = "it is used only through Debug")]
pub enum Entry {
    ServerBegins { life: u64 },
    ServerEnds,
    Cut { client: usize },
    Unreachable { client: usize },
    Reachable { client: usize },
    DiskFull,
    DiskHasRoom,
    Reboots { client: usize },
    Begins { client: usize, clientid: u64 },
    Answers { client: usize, tag: u64, what: Vec<&'static str>, status: &'static str },
    Receives { client: usize, tag: u64 },
    Locked { client: usize, range: usize, reclaimed: bool },
    Unlocks { client: usize, range: usize },
    Loses { client: usize, range: usize },
}

/// A lock that a client relies on, and since when.
#[derive(Clone, Copy, Debug)]
struct Hold {
    client: usize,
    /// The server's run in which it was last known to be held.
    life: u64,
    /// The end of the lease, as far as the client knows.
    until: Moment,
    /// `true` if that time has passed at least once.
    lapsed: bool,
    /// `true` if the client knows that the server has restarted, so that it must reclaim first.
    suspended: bool,
}

impl Hold {
    /// Renews the lease after a reply. If the reply arrives too late, the client cannot know which state it still has.
    fn renew(&mut self, sent: Moment, until: Moment) {
        self.lapsed |= sent > self.until;
        if !self.lapsed {
            self.until = until;
        }
    }
}

/// The state of a range.
#[derive(Clone, Debug, Default)]
struct Range {
    hold: Option<Hold>,
    /// The client to which the server granted it last.
    given_to: Option<usize>,
    /// Its counter, as the server executed the writes.
    count: u64,
}

/// A run of the server.
#[derive(Clone, Copy, Debug)]
struct Life {
    from: Moment,
    to: Option<Moment>,
}

/// The checker.
#[derive(Debug)]
pub struct Judge {
    history: Vec<(Moment, Entry)>,
    violation: Option<String>,
    ranges: Vec<Range>,
    /// For each client, the end of the lease that it knows of.
    leases: Vec<Moment>,
    /// For each client, the last run of the server in which it has sent RECLAIM_COMPLETE.
    complete: Vec<u64>,
    lives: Vec<Life>,
    executed: HashSet<u64>,
    lease: Duration,
    /// The number of relevant events.
    pub counts: Counts,
}

/// The numbers of events.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    pub requests: u64,
    pub again: u64,
    pub cuts: u64,
    pub lives: u64,
    pub locked: u64,
    pub reclaimed: u64,
    pub refused: u64,
    /// Writes that failed because the disk was full.
    pub full: u64,
}

impl Counts {
    pub fn add(&mut self, other: &Counts) {
        let Counts { requests, again, cuts, lives, locked, reclaimed, refused, full } = other;
        self.requests += requests;
        self.again += again;
        self.cuts += cuts;
        self.lives += lives;
        self.locked += locked;
        self.reclaimed += reclaimed;
        self.refused += refused;
        self.full += full;
    }
}

impl Judge {
    pub fn new(clients: usize, ranges: usize, lease: Duration) -> Self {
        Self {
            history: Vec::new(),
            violation: None,
            ranges: vec![Range::default(); ranges],
            leases: vec![Moment::ZERO; clients],
            complete: vec![0; clients],
            lives: Vec::new(),
            executed: HashSet::new(),
            lease,
            counts: Counts::default(),
        }
    }

    /// Returns the counts, or the first violation with all preceding events.
    pub fn verdict(&self) -> Result<Counts, String> {
        let Some(violation) = &self.violation else { return Ok(self.counts) };
        let lines = self.history.iter().map(|(at, entry)| format!("{:>8} ms  {entry:?}\n", at.as_millis()));
        Err(format!("{}{violation}", lines.collect::<String>()))
    }

    pub fn has_failed(&self) -> bool {
        self.violation.is_some()
    }

    pub fn fail(&mut self, at: Moment, why: String) {
        self.violation.get_or_insert_with(|| format!("at {} ms: {why}", at.as_millis()));
    }

    pub fn note(&mut self, at: Moment, entry: Entry) {
        if self.violation.is_none() {
            self.history.push((at, entry));
        }
    }

    pub fn server_begins(&mut self, at: Moment) {
        self.lives.push(Life { from: at, to: None });
        self.counts.lives += 1;
        self.note(at, Entry::ServerBegins { life: self.lives.len() as u64 });
    }

    pub fn server_ends(&mut self, at: Moment) {
        if let Some(life) = self.lives.last_mut() {
            life.to.get_or_insert(at);
        }
        self.note(at, Entry::ServerEnds);
    }

    /// Records a reply of the server that has not entered the network yet.
    pub fn answered(&mut self, at: Moment, client: usize, args: &CompoundArgs, results: &CompoundRes) {
        let tag = tag_of(&args.tag.0);
        let what = args.argarray.iter().map(|operation| operation.opnum().name()).collect();
        self.note(at, Entry::Answers { client, tag, what, status: results.status.name() });
        let Some(Resop4::Sequence(Res4::Ok(_))) = results.resarray.first() else { return };
        if !self.executed.insert(tag) {
            self.counts.again += 1;
            return;
        }
        self.counts.requests += 1;
        for (operation, result) in args.argarray.iter().zip(&results.resarray) {
            match (operation, result) {
                (Argop4::Lock(args), Resop4::Lock(LockRes::Ok(_))) => self.given(at, client, args),
                (Argop4::ReclaimComplete(_), Resop4::ReclaimComplete(Res4::Ok(()))) => {
                    self.complete[client] = self.lives.len() as u64;
                }
                (Argop4::Write(args), Resop4::Write(Res4::Ok(_))) => {
                    let (range, value) = (range_of(args.offset), number(&args.data.0.to_bytes().unwrap_or_default()));
                    let before = std::mem::replace(&mut self.ranges[range].count, value);
                    if value != before + 1 {
                        self.fail(at, format!("client {client} counts range {range} from {before} to {value}"));
                    }
                }
                _ => {}
            }
        }
    }

    fn given(&mut self, at: Moment, client: usize, args: &LockArgs) {
        let range = range_of(args.offset);
        let before = self.ranges[range].given_to.replace(client);
        if args.reclaim && before != Some(client) {
            self.fail(at, format!("client {client} reclaims range {range}, which {before:?} has had since"));
        }
    }

    /// Records that a client has received a reply to a request sent at `sent`, which renews its lease from that time.
    pub fn received(&mut self, at: Moment, client: usize, tag: u64, sent: Moment) {
        self.note(at, Entry::Receives { client, tag });
        let until = self.leases[client].max(sent + self.lease);
        self.leases[client] = until;
        for hold in self.holds(client).filter(|hold| !hold.suspended) {
            hold.renew(sent, until);
        }
    }

    /// Records that a client has a new client ID, and must reclaim its state.
    pub fn begins(&mut self, at: Moment, client: usize, clientid: u64) {
        self.note(at, Entry::Begins { client, clientid });
        self.holds(client).for_each(|hold| hold.suspended = true);
    }

    /// Records that a client holds a range, which it requested at `asked`. The lock was granted then or later.
    pub fn locked(&mut self, at: Moment, client: usize, range: usize, asked: Moment, reclaimed: bool) {
        self.note(at, Entry::Locked { client, range, reclaimed });
        self.counts.locked += u64::from(!reclaimed);
        self.counts.reclaimed += u64::from(reclaimed);
        let (life, until) = (self.lives.len() as u64, self.leases[client]);
        let mut own = Hold { client, life, until: asked + self.lease, lapsed: false, suspended: false };
        own.renew(until - self.lease, until);
        if own.until <= at {
            // The reply is older than a lease: it was cached and sent again. The client knows that it may be obsolete.
            return;
        }
        if let Some(hold) = self.ranges[range].hold
            && hold.client != client
            && hold.until > at
        {
            self.fail(at, format!("clients {} and {client} both have range {range}", hold.client));
        }
        self.ranges[range].hold = Some(own);
    }

    /// Records that a client is releasing a range.
    pub fn unlocks(&mut self, at: Moment, client: usize, range: usize) {
        self.note(at, Entry::Unlocks { client, range });
        self.ranges[range].hold.take_if(|hold| hold.client == client);
    }

    /// Records that a client drops all its state.
    pub fn reboots(&mut self, at: Moment, client: usize) {
        self.note(at, Entry::Reboots { client });
        for range in &mut self.ranges {
            range.hold.take_if(|hold| hold.client == client);
        }
    }

    /// Records that a client has learned that it has lost a range. `reclaiming` is `true` if a reclaim of it failed.
    pub fn loses(&mut self, at: Moment, client: usize, range: usize, reclaiming: bool) {
        self.note(at, Entry::Loses { client, range });
        self.counts.refused += u64::from(reclaiming);
        let Some(hold) = self.ranges[range].hold.take_if(|hold| hold.client == client) else { return };
        if !hold.lapsed && self.is_owed(at, &hold) {
            self.fail(at, format!("client {client} loses range {range} though it was never late"));
        }
    }

    /// Returns `true` if the server must not have taken a lock from a client: the lease was valid at the
    /// end of the run, and each later run of the server ended before its grace period did. If a client has not sent RECLAIM_COMPLETE
    /// before the end of the grace period, it cannot reclaim in the next run (RFC 8881 §8.4.2.1).
    fn is_owed(&self, at: Moment, hold: &Hold) -> bool {
        let (held, since) = self.lives.split_at(hold.life as usize);
        let Some(end) = held.last().and_then(|life| life.to) else { return hold.until > at };
        let in_grace = held.last().is_some_and(|life| end < life.from + self.lease);
        let is_stored = in_grace || self.complete[hold.client] >= hold.life;
        is_stored && hold.until > end && since.iter().all(|life| life.to.unwrap_or(at) < life.from + self.lease)
    }

    fn holds(&mut self, client: usize) -> impl Iterator<Item = &mut Hold> {
        self.ranges.iter_mut().filter_map(move |range| range.hold.as_mut().filter(|hold| hold.client == client))
    }
}

/// Returns the number of a request from its tag.
pub fn tag_of(tag: &[u8]) -> u64 {
    number(tag)
}

/// Decodes a counter.
pub fn number(bytes: &[u8]) -> u64 {
    bytes.try_into().map_or(0, u64::from_be_bytes)
}

/// The bytes of each range.
pub const RANGE_LEN: u64 = 8;

fn range_of(offset: u64) -> usize {
    (offset / RANGE_LEN) as usize
}
