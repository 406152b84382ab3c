//! The world: a server whose machine crashes and restarts, and a network that delays, duplicates and loses messages.
//!
//! Time is tokio's paused clock, in whole milliseconds. Only the server's own work happens at whole seconds of its run.
//! Calls are executed one after the other, each to its end. So everything is determined by the seed.

use std::{
    collections::{HashMap, HashSet},
    future::Future,
    net::SocketAddr,
    pin::pin,
    sync::{Arc, Weak},
    task::{Context, Poll, Wake, Waker},
    thread::Thread,
    time::Duration,
};

use bytes::Bytes;
use gss::{Service as Protection, pseudo_flavor};
use nfs::v4::{Argop4, PROC_COMPOUND, Res4, Resop4, Sequenceid4, Sessionid4, Slotid4, compound::*};
use parking_lot::Mutex;
use rand::{Rng, SeedableRng, rngs::StdRng};
use rpc::{AuthSys, ConnectionId, Identity, Service, security::Principal};
use server::{
    BlockingOptions, Export, ExportId, ExportOptions, HandleKey, Machines, Nfs4, NfsServer, Sec, SecFlavors, Squash,
    config::Settings, recovery::Recovery,
};
use testkit::{
    disk::Disk,
    paper::{Paper, results},
};
use tokio::{
    sync::mpsc::UnboundedSender,
    task::AbortHandle,
    time::{Instant, sleep},
};
use vfs::Vfs;
use xdr::Message;

use super::judge::{Entry, Judge, Moment};

/// The faults and their frequency.
#[derive(Clone, Debug, Default)]
pub struct Faults {
    /// The probability that a message is lost with its connection.
    pub cut: f64,
    /// The number of a message that is lost, and whether it is the call or the reply.
    pub cut_at: Option<(u64, Lost)>,
    /// The probability that a call is duplicated.
    pub double: f64,
    /// The probability that a message is delayed by seconds.
    pub late: f64,
    /// The number of crashes of the server's machine.
    pub crashes: u32,
    /// The number of times that the server's disk is full for a while.
    pub full: u32,
    /// The write or sync of the server's disk at which the machine crashes.
    pub crash_at_write: Option<u64>,
    /// The number of times that a client cannot be reached for a while.
    pub partitions: u32,
    /// The number of times that a client forgets everything and restarts.
    pub reboots: u32,
    /// `true` if the clients call with krb5i, which the export demands, instead of AUTH_SYS.
    pub kerberos: bool,
    /// The defect of the server.
    pub broken: Option<Broken>,
}

/// The message of a request that is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lost {
    Call,
    Reply,
}

/// A defect of a server that the checker must detect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Broken {
    /// The server caches no replies, and executes every request.
    NoReplyCache,
    /// The server does not store clients, so none can reclaim after a restart.
    NoStableStorage,
    /// The server continues as if a full disk had stored its writes.
    IgnoresFullDisk,
}

/// The world.
pub struct World {
    /// The faults.
    pub faults: Faults,
    /// The checker.
    pub judge: Mutex<Judge>,
    /// The server's disk.
    pub disk: Disk,
    /// The server's file system, which survives crashes.
    pub vfs: Arc<dyn Vfs>,
    rng: Mutex<StdRng>,
    /// The record of executed calls and their replies.
    record: simnet::Network,
    key: HandleKey,
    began: Instant,
    life: Mutex<Option<Life>>,
    network: Mutex<Network>,
    paper: Paper,
    /// A reference to itself, for background tasks.
    this: Weak<World>,
}

struct Life {
    nfs: Arc<Nfs4>,
    upkeep: AbortHandle,
}

#[derive(Default)]
struct Network {
    /// The open connections, and their clients.
    connections: HashMap<ConnectionId, usize>,
    /// The clients that cannot be reached.
    unreachable: HashSet<usize>,
    last: u64,
    messages: u64,
    requests: u64,
    /// For a server without a reply cache, the last sequence ID of each slot.
    sequences: HashMap<(Sessionid4, Slotid4), u32>,
}

impl World {
    /// Creates a world in which the server has just started its first run.
    pub fn new(seed: u64, faults: Faults, vfs: Arc<dyn Vfs>, judge: Judge) -> Arc<Self> {
        let disk = Disk::default();
        if faults.broken == Some(Broken::IgnoresFullDisk) {
            disk.lie();
        }
        let world = Arc::new_cyclic(|this| Self {
            judge: Mutex::new(judge),
            disk,
            vfs,
            rng: Mutex::new(StdRng::seed_from_u64(seed)),
            record: simnet::Network::new(simnet::NetworkOptions { seed, ..Default::default() }),
            key: HandleKey::random(),
            began: Instant::now(),
            life: Mutex::new(None),
            network: Mutex::default(),
            paper: Paper::new("tcp", 1 << 20),
            this: this.clone(),
            faults,
        });
        world.begin_life();
        world
    }

    /// Returns every call that was executed, and its reply.
    pub fn trace(&self) -> simnet::Trace {
        self.record.trace()
    }

    /// Returns the current time.
    pub fn now(&self) -> Moment {
        self.began.elapsed()
    }

    /// Makes a random choice.
    pub fn random<T>(&self, choose: impl FnOnce(&mut StdRng) -> T) -> T {
        choose(&mut self.rng.lock())
    }

    /// Passes an event to the checker.
    pub fn judge(&self, tell: impl FnOnce(&mut Judge, Moment)) {
        tell(&mut self.judge.lock(), self.now());
    }

    /// Waits for `ms` or `ms` + 1 milliseconds.
    pub async fn wait(&self, ms: u64) {
        let until = self.now().as_millis() as u64 + ms;
        let until = Duration::from_millis(until + u64::from(until.is_multiple_of(1000)));
        sleep(until - self.now()).await;
    }

    /// Returns the number of messages so far.
    pub fn messages(&self) -> u64 {
        self.network.lock().messages
    }

    /// Returns a new number for a request.
    pub fn next_request(&self) -> u64 {
        let mut network = self.network.lock();
        network.requests += 1;
        network.requests
    }

    /// Opens a connection to the server.
    pub fn connect(&self, client: usize) -> ConnectionId {
        let mut network = self.network.lock();
        network.last += 1;
        let connection = ConnectionId(network.last);
        network.connections.insert(connection, client);
        connection
    }

    /// Returns `true` if a connection is open, as its client sees it.
    pub fn is_up(&self, connection: ConnectionId) -> bool {
        self.network.lock().connections.contains_key(&connection)
    }

    /// Closes a connection.
    pub fn cut(&self, connection: ConnectionId) {
        let Some(client) = self.network.lock().connections.remove(&connection) else { return };
        self.judge(|judge, at| {
            judge.counts.cuts += 1;
            judge.note(at, Entry::Cut { client });
        });
        if let Some(life) = &*self.life.lock() {
            life.nfs.disconnected(connection);
        }
    }

    /// Disconnects a client, or lets it connect again.
    pub fn set_reachable(&self, client: usize, reachable: bool) {
        let mut network = self.network.lock();
        if reachable {
            network.unreachable.remove(&client);
        } else {
            network.unreachable.insert(client);
        }
        drop(network);
        let entry = if reachable { Entry::Reachable { client } } else { Entry::Unreachable { client } };
        self.judge(|judge, at| judge.note(at, entry));
    }

    /// Fills the server's disk, or frees space on it.
    pub fn fill_disk(&self, full: bool) {
        self.disk.set_full(full);
        self.judge(|judge, at| judge.note(at, if full { Entry::DiskFull } else { Entry::DiskHasRoom }));
    }

    /// Sends a call. Its reply, if any, goes to `replies`.
    pub fn send(&self, connection: ConnectionId, args: &Arc<CompoundArgs>, replies: &UnboundedSender<CompoundRes>) {
        let copies = 1 + u64::from(self.random(|rng| rng.random_bool(self.faults.double)));
        for _ in 0..copies {
            let world = self.this.upgrade().expect("world must exist");
            let (args, replies) = (args.clone(), replies.clone());
            tokio::spawn(async move { world.carry(connection, &args, &replies).await });
        }
    }

    async fn carry(&self, connection: ConnectionId, args: &CompoundArgs, replies: &UnboundedSender<CompoundRes>) {
        let Some(client) = self.network.lock().connections.get(&connection).copied() else { return };
        let number = {
            let mut network = self.network.lock();
            network.messages += 1;
            network.messages
        };
        self.wait(self.delay()).await;
        if self.is_lost(client, number, Lost::Call) {
            return self.cut(connection);
        }
        let Some(results) = self.execute(client, connection, args) else { return };
        if self.is_lost(client, number, Lost::Reply) {
            return self.cut(connection);
        }
        self.wait(self.delay()).await;
        if self.is_up(connection) {
            // The client may no longer wait for it.
            let _ = replies.send(results);
        }
    }

    fn delay(&self) -> u64 {
        let late = self.faults.late;
        self.random(|rng| if rng.random_bool(late) { rng.random_range(100..8000) } else { rng.random_range(1..10) })
    }

    fn is_lost(&self, client: usize, number: u64, what: Lost) -> bool {
        let cut = self.random(|rng| rng.random_bool(self.faults.cut));
        cut || self.faults.cut_at == Some((number, what)) || self.network.lock().unreachable.contains(&client)
    }

    /// Lets the server execute a call, if the server runs and its machine does not crash meanwhile.
    fn execute(&self, client: usize, connection: ConnectionId, args: &CompoundArgs) -> Option<CompoundRes> {
        if self.disk.has_crashed() {
            // The machine crashed during the server's own work.
            self.end_life();
        }
        let nfs = self.life.lock().as_ref()?.nfs.clone();
        let done = match self.faults.broken {
            Some(Broken::NoReplyCache) => self.execute_anew(&nfs, connection, args),
            _ => self.call(&nfs, connection, args),
        };
        if self.disk.has_crashed() {
            self.end_life();
            return None;
        }
        self.judge(|judge, at| judge.answered(at, client, args, &done));
        Some(done)
    }

    fn call(&self, nfs: &Nfs4, connection: ConnectionId, args: &CompoundArgs) -> CompoundRes {
        let caller = if self.faults.kerberos {
            let name = Bytes::from_static(PRINCIPAL.as_bytes());
            Identity::Principal(Principal { name, pseudo_flavor: pseudo_flavor(Protection::Integrity) })
        } else {
            Identity::Sys(AuthSys { stamp: 0, machine: "m".into(), uid: 0, gid: 0, gids: Default::default() })
        };
        let message = Message::encode(args);
        let paper = self.paper.connection(connection);
        let reply = finish(paper.call(nfs, PROC_COMPOUND, (PEER, &caller), &message));
        let reply = reply.expect("valid call must be accepted");
        for (way, kind, message) in [((PEER, SERVER), "call", &message), ((SERVER, PEER), "reply", &reply)] {
            self.record.deliver(way, kind, &[&message.to_rope().to_bytes().expect("it is in memory")]);
        }
        results(&reply)
    }

    /// Executes a call as a server without a reply cache, which accepts every call as the next one of its slot.
    fn execute_anew(&self, nfs: &Nfs4, connection: ConnectionId, args: &CompoundArgs) -> CompoundRes {
        let mut args = args.clone();
        let Some(Argop4::Sequence(sequence)) = args.argarray.first_mut() else {
            return self.call(nfs, connection, &args);
        };
        let (slot, asked) = ((sequence.sessionid, sequence.slotid), sequence.sequenceid);
        let next = self.network.lock().sequences.get(&slot).copied().unwrap_or(0) + 1;
        sequence.sequenceid = Sequenceid4(next);
        let mut done = self.call(nfs, connection, &args);
        if let Some(Resop4::Sequence(Res4::Ok(result))) = done.resarray.first_mut() {
            self.network.lock().sequences.insert(slot, next);
            result.sequenceid = asked;
        }
        done
    }

    /// Makes the machine crash.
    pub fn end_life(&self) {
        self.disk.crash();
        let Some(life) = self.life.lock().take() else { return };
        life.upkeep.abort();
        self.network.lock().connections.clear();
        self.judge(|judge, at| judge.server_ends(at));
    }

    /// Restarts the machine, and the server at a whole second.
    pub async fn begin_life_soon(&self) {
        loop {
            let begins = (self.now().as_millis() as u64 / 1000 + 1) * 1000;
            sleep(Duration::from_millis(begins) - self.now()).await;
            self.random(|rng| self.disk.restart(rng));
            if self.faults.broken == Some(Broken::NoStableStorage) {
                self.disk.wipe();
            }
            if self.begin_life() {
                return;
            }
        }
    }

    /// Returns `false` if the machine crashes meanwhile.
    fn begin_life(&self) -> bool {
        let sec = if self.faults.kerberos { Sec::Krb5i } else { Sec::Sys };
        let sec = SecFlavors::new(vec![sec]).expect("there must be a flavour");
        let options = ExportOptions { squash: Squash::None, sec, ..ExportOptions::default() };
        let export = Export::new("/m", ExportId::of(&[b"m"]), self.vfs.clone(), options).expect("export must be valid");
        let recovery = Recovery::on(self.disk.open());
        // In virtual time, no task may wait for another thread.
        let blocking = BlockingOptions { threads: 0, ..BlockingOptions::default() };
        let mut settings = Settings { grace: LEASE, lease: LEASE, blocking, ..Settings::default() };
        settings.identity.machines = Machines::Root;
        let opened = recovery.and_then(|recovery| NfsServer::recovering(export, self.key.clone(), recovery, settings));
        let server = match opened {
            Ok(server) if !self.disk.has_crashed() => server,
            Err(error) if !self.disk.has_crashed() => {
                self.judge(|judge, at| judge.fail(at, format!("the server does not start: {error}")));
                return true;
            }
            _ => return false,
        };
        let upkeep = tokio::spawn(server.upkeep()).abort_handle();
        *self.life.lock() = Some(Life { nfs: Arc::new(server.nfs4()), upkeep });
        self.judge(|judge, at| judge.server_begins(at));
        true
    }
}

/// Polls a future to its end, without running other tasks.
fn finish<T>(future: impl Future<Output = T>) -> T {
    struct Unpark(Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(done) => return done,
            Poll::Pending => std::thread::park(),
        }
    }
}

/// The lease of the server; its grace period has the same length.
pub const LEASE: Duration = Duration::from_secs(5);
/// The principal of clients with Kerberos, a machine, which is root.
const PRINCIPAL: &str = "host/client@REALM";
const SERVER: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 2049);
const PEER: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 700);
