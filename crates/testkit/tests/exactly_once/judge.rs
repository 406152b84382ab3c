//! The checker. It is told what clients ask and hear, and what the server answers before the network has it, and says what
//! must not be.

use std::{collections::HashSet, time::Duration};

use nfs::v4::{Argop4, LockArgs, LockRes, Res4, Resop4, compound::CompoundArgs, compound::CompoundRes};

/// A time since the world began.
pub type Moment = Duration;

/// What has happened, for people to read.
#[derive(Clone, Debug)]
#[allow(dead_code, reason = "it is read in the form of its Debug")]
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
    Hears { client: usize, tag: u64 },
    Locked { client: usize, range: usize, reclaimed: bool },
    Unlocks { client: usize, range: usize },
    Loses { client: usize, range: usize },
}

/// Who believes to have a range locked, and since when.
#[derive(Clone, Copy, Debug)]
struct Hold {
    client: usize,
    /// The server's life in which it was last known to be held.
    life: u64,
    /// Until when, as far as the client knows.
    until: Moment,
    /// Whether that has passed at some time.
    lapsed: bool,
    /// Whether the client knows that the server has restarted, and so that it has to reclaim first.
    suspended: bool,
}

impl Hold {
    /// A request of the client has been answered. If that comes too late, the client cannot know what it still has.
    fn renew(&mut self, sent: Moment, until: Moment) {
        self.lapsed |= sent > self.until;
        if !self.lapsed {
            self.until = until;
        }
    }
}

/// What is known of a range.
#[derive(Clone, Debug, Default)]
struct Range {
    hold: Option<Hold>,
    /// To whom the server gave it last.
    given_to: Option<usize>,
    /// Its counter, as the server executed the writes.
    count: u64,
}

/// A life of the server.
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
    /// Until when each client knows to have one.
    leases: Vec<Moment>,
    /// In which life of the server each client has said last that it has reclaimed all.
    complete: Vec<u64>,
    lives: Vec<Life>,
    executed: HashSet<u64>,
    lease: Duration,
    /// How much of what the test is about has happened.
    pub counts: Counts,
}

/// How much has happened.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    pub requests: u64,
    pub again: u64,
    pub cuts: u64,
    pub lives: u64,
    pub locked: u64,
    pub reclaimed: u64,
    pub refused: u64,
    /// Writes for which the disk was full.
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

    /// The first thing that must not be, with all that came before.
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

    /// The server has answered, and nobody knows yet.
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

    /// A client has heard of a request that it sent at `sent`: it has a lease from then on.
    pub fn heard(&mut self, at: Moment, client: usize, tag: u64, sent: Moment) {
        self.note(at, Entry::Hears { client, tag });
        let until = self.leases[client].max(sent + self.lease);
        self.leases[client] = until;
        for hold in self.holds(client).filter(|hold| !hold.suspended) {
            hold.renew(sent, until);
        }
    }

    /// A client has a new name: what it had it has to reclaim.
    pub fn begins(&mut self, at: Moment, client: usize, clientid: u64) {
        self.note(at, Entry::Begins { client, clientid });
        self.holds(client).for_each(|hold| hold.suspended = true);
    }

    /// A client believes to have a range now, for which it has asked at `asked`: it was given then or later.
    pub fn locked(&mut self, at: Moment, client: usize, range: usize, asked: Moment, reclaimed: bool) {
        self.note(at, Entry::Locked { client, range, reclaimed });
        self.counts.locked += u64::from(!reclaimed);
        self.counts.reclaimed += u64::from(reclaimed);
        let (life, until) = (self.lives.len() as u64, self.leases[client]);
        let mut own = Hold { client, life, until: asked + self.lease, lapsed: false, suspended: false };
        own.renew(until - self.lease, until);
        if own.until <= at {
            // The answer is a lease old, kept by the server and sent again: it tells what was, and the client knows that.
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

    /// A client is giving a range back.
    pub fn unlocks(&mut self, at: Moment, client: usize, range: usize) {
        self.note(at, Entry::Unlocks { client, range });
        self.ranges[range].hold.take_if(|hold| hold.client == client);
    }

    /// A client gives up all that it has.
    pub fn reboots(&mut self, at: Moment, client: usize) {
        self.note(at, Entry::Reboots { client });
        for range in &mut self.ranges {
            range.hold.take_if(|hold| hold.client == client);
        }
    }

    /// A client has been told that it does not have a range any more; by `reclaiming` it if so.
    pub fn loses(&mut self, at: Moment, client: usize, range: usize, reclaiming: bool) {
        self.note(at, Entry::Loses { client, range });
        self.counts.refused += u64::from(reclaiming);
        let Some(hold) = self.ranges[range].hold.take_if(|hold| hold.client == client) else { return };
        if !hold.lapsed && self.is_owed(at, &hold) {
            self.fail(at, format!("client {client} loses range {range} though it was never late"));
        }
    }

    /// Whether a client that has a lease must have kept what it had: in all lives of the server since, each of which
    /// began in time and ended before its grace could. A client that has not said before grace ends that it has reclaimed all
    /// cannot reclaim anything in the next life (RFC 8881 §8.4.2.1).
    fn is_owed(&self, at: Moment, hold: &Hold) -> bool {
        let (held, since) = self.lives.split_at(hold.life as usize);
        let Some(end) = held.last().and_then(|life| life.to) else { return hold.until > at };
        let in_grace = held.last().is_some_and(|life| end < life.from + self.lease);
        let remembered = in_grace || self.complete[hold.client] >= hold.life;
        remembered && hold.until > end && since.iter().all(|life| life.to.unwrap_or(at) < life.from + self.lease)
    }

    fn holds(&mut self, client: usize) -> impl Iterator<Item = &mut Hold> {
        self.ranges.iter_mut().filter_map(move |range| range.hold.as_mut().filter(|hold| hold.client == client))
    }
}

/// The number of a request, from its tag.
pub fn tag_of(tag: &[u8]) -> u64 {
    number(tag)
}

/// A counter as it is written.
pub fn number(bytes: &[u8]) -> u64 {
    bytes.try_into().map_or(0, u64::from_be_bytes)
}

/// Bytes of each range.
pub const RANGE_LEN: u64 = 8;

fn range_of(offset: u64) -> usize {
    (offset / RANGE_LEN) as usize
}
