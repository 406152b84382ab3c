//! The attacks. Each returns a report of what it has done, or the fault that it has found.

mod clients;
mod hung;
mod kill;
mod malformed;
mod monitor;
mod rdma;
mod shm;
mod state;
mod tcp;
mod udp;

use std::{
    io,
    net::Ipv4Addr,
    thread,
    time::{Duration, Instant},
};

use crate::server::Target;

/// One attack.
pub struct Attack {
    /// The name on the command line.
    pub name: &'static str,
    /// A short description.
    pub what: &'static str,
    /// `true` if no export admits the attackers' hosts. The server then has to use less memory.
    pub unadmitted: bool,
    /// `true` if the server has another export, whose file system can be stopped.
    pub hung_export: bool,
    /// Attacks until `Stop` or until the attack is complete.
    pub run: fn(&Target, &Stop) -> io::Result<String>,
}

impl Attack {
    const fn new(name: &'static str, what: &'static str, run: fn(&Target, &Stop) -> io::Result<String>) -> Self {
        Self { name, what, unadmitted: false, hung_export: false, run }
    }

    const fn unadmitted(self) -> Self {
        Self { unadmitted: true, ..self }
    }

    const fn hung_export(self) -> Self {
        Self { hung_export: true, ..self }
    }
}

/// The time at which an attack has to end.
pub struct Stop(Instant);

impl Stop {
    /// Returns a stop after `duration`.
    pub fn after(duration: Duration) -> Self {
        Self(Instant::now() + duration)
    }

    /// Returns `true` if the attack has to end.
    pub fn is_now(&self) -> bool {
        Instant::now() >= self.0
    }

    /// Waits until the attack has to end.
    pub fn wait(&self) {
        thread::sleep(self.0.saturating_duration_since(Instant::now()));
    }
}

/// All attacks, in the order in which they run.
pub const ALL: [Attack; 24] = [
    Attack::new("half-sent", "400 connections send 2 MiB less a word of a record of 2 MiB", tcp::half_sent),
    Attack::new("half-sent-others", "a host that no export admits does the same", tcp::half_sent_by_others)
        .unadmitted(),
    Attack::new("unread", "200 connections pipeline READs of 1000 bytes and read no reply", tcp::unread),
    Attack::new("pipelined", "100 connections pipeline WRITEs of 1 MiB and read no reply", tcp::pipelined),
    Attack::new("pipelined-others", "a host that no export admits does the same", tcp::pipelined_by_others)
        .unadmitted(),
    Attack::new("slow", "500 connections send a byte per second", tcp::slow),
    Attack::new("idle", "one host makes more connections than the server takes, and sends nothing", tcp::idle),
    Attack::new("reset", "connections are made and reset at once", tcp::reset),
    Attack::new(
        "small-writes",
        "100 connections each have 64 WRITEs of 512 bytes with FILE_SYNC outstanding",
        tcp::small_writes,
    ),
    Attack::new("hung-export", "160 WRITEs to an export whose file system has stopped", hung::writes).hung_export(),
    Attack::new(
        "malformed-rpc",
        "mutated calls of every procedure of NFSv3, MOUNT, NFS_ACL, NLM, NSM and rpcbind, and their headers",
        malformed::rpc,
    ),
    Attack::new(
        "malformed-v4",
        "compounds of random and mutated operations, with and without a session",
        malformed::v4,
    ),
    Attack::new("malformed-rdma", "mutated MPA start frames, DDP segments and RPC-over-RDMA headers", malformed::rdma),
    Attack::new("malformed-shm", "mutated packets of shared memory", malformed::shm),
    Attack::new(
        "half-open-rdma",
        "300 iWARP connections stop in the middle of a start frame or a segment",
        rdma::half_open,
    ),
    Attack::new(
        "unread-rdma",
        "100 iWARP connections call, offer chunks that are never answered, and read nothing",
        rdma::unread,
    ),
    Attack::new("slabs", "20 shm connections each pass 4,000 slabs", shm::slabs),
    Attack::new("idle-shm", "one user makes more shm connections than the server takes, and says hello", shm::idle),
    Attack::new(
        "clients",
        "two admitted hosts and one that is not make 20,000 clients of NFSv4.1 each",
        clients::flood,
    ),
    Attack::new(
        "reply-caches",
        "an unadmitted host fills the reply caches of as many slots as it is given",
        state::reply_caches,
    )
    .unadmitted(),
    Attack::new("stolen-ids", "another client destroys clients and sessions by ids near its own", state::stolen),
    Attack::new(
        "restarts",
        "100 programs that do not exist monitor a host, which repeatedly reports that it has restarted",
        monitor::restarts,
    ),
    Attack::new("amplified", "small calls over UDP ask for long replies", udp::amplified),
    Attack::new("killed", "clients of every transport are killed while they work", kill::clients),
];

/// A host that the exports admit.
const ADMITTED: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);
/// Another host that the exports admit.
const ALSO_ADMITTED: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 3);
/// A host that no export admits.
const UNADMITTED: Ipv4Addr = Ipv4Addr::new(127, 0, 1, 1);
