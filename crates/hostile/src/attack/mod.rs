//! The attacks. Each says what it did, or what it has found that it should not have.

mod clients;
mod kill;
mod malformed;
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
    /// A name for the command line.
    pub name: &'static str,
    /// What it does.
    pub what: &'static str,
    /// Whether all attackers are hosts that no export admits: what they can make the server hold is less.
    pub unadmitted: bool,
    /// Attacks until it is told to stop or has done all it can.
    pub run: fn(&Target, &Stop) -> io::Result<String>,
}

/// When an attack has to end.
pub struct Stop(Instant);

impl Stop {
    /// Ends after so long.
    pub fn after(duration: Duration) -> Self {
        Self(Instant::now() + duration)
    }

    /// Whether it is time.
    pub fn is_now(&self) -> bool {
        Instant::now() >= self.0
    }

    /// Waits until then.
    pub fn wait(&self) {
        thread::sleep(self.0.saturating_duration_since(Instant::now()));
    }
}

/// All attacks, in the order in which they run.
pub const ALL: [Attack; 22] = [
    Attack {
        name: "half-sent",
        what: "400 connections send 2 MiB less a word of a record of 2 MiB",
        unadmitted: false,
        run: tcp::half_sent,
    },
    Attack {
        name: "half-sent-others",
        what: "a host that no export admits does the same",
        unadmitted: true,
        run: tcp::half_sent_by_others,
    },
    Attack {
        name: "unread",
        what: "200 connections pipeline READs of 1000 bytes and read no reply",
        unadmitted: false,
        run: tcp::unread,
    },
    Attack {
        name: "pipelined",
        what: "100 connections pipeline WRITEs of 1 MiB and read no reply",
        unadmitted: false,
        run: tcp::pipelined,
    },
    Attack {
        name: "pipelined-others",
        what: "a host that no export admits does the same",
        unadmitted: true,
        run: tcp::pipelined_by_others,
    },
    Attack { name: "slow", what: "500 connections send a byte per second", unadmitted: false, run: tcp::slow },
    Attack {
        name: "idle",
        what: "one host makes more connections than the server takes, and sends nothing",
        unadmitted: false,
        run: tcp::idle,
    },
    Attack { name: "reset", what: "connections are made and reset at once", unadmitted: false, run: tcp::reset },
    Attack {
        name: "small-writes",
        what: "100 connections each have 64 WRITEs of 512 bytes with FILE_SYNC outstanding",
        unadmitted: false,
        run: tcp::small_writes,
    },
    Attack {
        name: "malformed-rpc",
        what: "mutated calls of every procedure of NFSv3, MOUNT, NFS_ACL, NLM, NSM and rpcbind, and their headers",
        unadmitted: false,
        run: malformed::rpc,
    },
    Attack {
        name: "malformed-v4",
        what: "compounds of random and mutated operations, with and without a session",
        unadmitted: false,
        run: malformed::v4,
    },
    Attack {
        name: "malformed-rdma",
        what: "mutated MPA start frames, DDP segments and RPC-over-RDMA headers",
        unadmitted: false,
        run: malformed::rdma,
    },
    Attack { name: "malformed-shm", what: "mutated packets of shared memory", unadmitted: false, run: malformed::shm },
    Attack {
        name: "half-open-rdma",
        what: "300 iWARP connections stop in the middle of a start frame or a segment",
        unadmitted: false,
        run: rdma::half_open,
    },
    Attack {
        name: "unread-rdma",
        what: "100 iWARP connections call, offer chunks that are never answered, and read nothing",
        unadmitted: false,
        run: rdma::unread,
    },
    Attack { name: "slabs", what: "20 shm connections each pass 4,000 slabs", unadmitted: false, run: shm::slabs },
    Attack {
        name: "idle-shm",
        what: "one user makes more shm connections than the server takes, and says hello",
        unadmitted: false,
        run: shm::idle,
    },
    Attack {
        name: "clients",
        what: "two admitted hosts and one that is not make 20,000 clients of NFSv4.1 each",
        unadmitted: false,
        run: clients::flood,
    },
    Attack {
        name: "reply-caches",
        what: "an unadmitted host fills the reply caches of as many slots as it is given",
        unadmitted: true,
        run: state::reply_caches,
    },
    Attack {
        name: "stolen-ids",
        what: "a stranger destroys clients and sessions by ids near its own",
        unadmitted: false,
        run: state::stolen,
    },
    Attack {
        name: "amplified",
        what: "small calls over UDP ask for long replies",
        unadmitted: false,
        run: udp::amplified,
    },
    Attack {
        name: "killed",
        what: "clients of every transport are killed while they work",
        unadmitted: false,
        run: kill::clients,
    },
];

/// A host that the exports admit.
const ADMITTED: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);
/// Another one.
const ALSO_ADMITTED: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 3);
/// A host that no export admits.
const UNADMITTED: Ipv4Addr = Ipv4Addr::new(127, 0, 1, 1);
