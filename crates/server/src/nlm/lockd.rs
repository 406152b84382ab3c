//! [`Lockd`]: the state behind NLM and NSM.
//!
//! One mutex holds the lock table, the hosts, and the requests that wait. It is never held while waiting for storage or a
//! peer. What is to be told to others is queued for `callbacks.rs`.

use std::{
    collections::{HashMap, HashSet},
    io,
    net::{IpAddr, SocketAddr},
    sync::{
        Arc, OnceLock,
        atomic::{AtomicI32, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use bytes::Bytes;
use nfs::{
    nlm::{self, Nlm4Stats, NlmProc4},
    nsm,
};
use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use xdr::Message;

use super::hosts::{Host, HostId, Hosts};
use crate::{
    call::error::WouldBlock,
    clock,
    handle::ExportId,
    recovery::{Monitor, MonitoredHost, Recovery},
    sharing::locks::{
        Grant, Holder, LockClient, LockError, LockKind, LockTable, Locked, Notice, Owner, Range, Request, Share,
        WaiterId,
    },
};

/// A file, as the lock table knows it.
pub(crate) type LockFile = (ExportId, vfs::Handle);

/// The state behind NLM and NSM.
pub(crate) struct Lockd {
    inner: Mutex<Inner>,
    recovery: Recovery,
    /// Held while which hosts are remembered is being changed, before `inner`.
    storing: Mutex<()>,
    /// Our NSM state number.
    state: AtomicI32,
    /// Our name for ourselves.
    name: Bytes,
    grace: Duration,
    outgoing: mpsc::UnboundedSender<Outgoing>,
    queued: Mutex<Option<mpsc::UnboundedReceiver<Outgoing>>>,
    /// Owners of other protocols that may ask again for a lock, if somebody tells them.
    notices: OnceLock<mpsc::UnboundedSender<Notice<LockFile>>>,
    /// Results of `_MSG` procedures on their way.
    responses: Arc<Semaphore>,
}

#[derive(Default)]
struct Inner {
    table: LockTable<LockFile>,
    hosts: Hosts,
    /// Requests that wait.
    blocked: HashMap<WaiterId, Blocked>,
    /// Requests that are granted, and whose hosts have not yet confirmed that they know.
    granted: HashMap<WaiterId, Granted>,
}

/// How a host is told that its request is granted.
#[derive(Clone, Debug)]
struct Blocked {
    host: HostId,
    fh: Bytes,
    offset: u64,
    len: u64,
}

#[derive(Debug)]
struct Granted {
    blocked: Blocked,
    grant: Grant<LockFile>,
}

/// What we say without having been asked.
pub(crate) enum Outgoing {
    /// A request that waited is granted.
    Granted(WaiterId),
    /// The result of a `_MSG` procedure.
    Response { to: Destination, procedure: NlmProc4, results: Bytes, _permit: OwnedSemaphorePermit },
    /// A host is told that we have restarted.
    Restarted(Destination),
    /// A program on this host is told that another host has.
    News { my_id: nsm::MyId, status: nsm::Status },
}

/// A host that is to be called.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Destination {
    pub(crate) address: std::net::IpAddr,
    pub(crate) lossy: bool,
}

/// Who calls.
#[derive(Clone, Copy)]
pub(crate) struct From<'a> {
    pub(crate) peer: SocketAddr,
    pub(crate) lossy: bool,
    /// Its name for itself.
    pub(crate) name: &'a [u8],
}

/// Whether a host can have locks.
enum Known {
    Host(HostId),
    /// There are too many.
    Full,
    /// It cannot be remembered now.
    NotStored,
}

/// A LOCK.
pub(crate) struct Ask<'a> {
    pub(crate) file: LockFile,
    pub(crate) lock: &'a nlm::Lock,
    pub(crate) range: Range,
    pub(crate) kind: LockKind,
    pub(crate) wait: bool,
    pub(crate) reclaim: bool,
    /// The host's NSM state number, unless it cannot be monitored.
    pub(crate) monitor: Option<i32>,
    pub(crate) may_block: bool,
}

impl Lockd {
    /// Starts a new life: with grace, if hosts may have held locks in the one before.
    ///
    /// # Errors
    /// The storage fails.
    pub(crate) fn start(recovery: Recovery, grace: Duration) -> io::Result<Self> {
        let (outgoing, queued) = mpsc::unbounded_channel();
        let state = AtomicI32::new(recovery.next_nsm_state()?);
        let name = Bytes::copy_from_slice(rustix::system::uname().nodename().to_bytes());
        let known = recovery.hosts();
        let mut inner = Inner::default();
        for MonitoredHost { address, name, state } in known {
            let Some(id) = inner.hosts.intern(address, &name, |_, _| false) else { break };
            let host = inner.hosts.get_mut(id).expect("it has just been made");
            (host.state, host.monitored, host.may_reclaim) = (state, true, true);
        }
        let responses = Arc::new(Semaphore::new(RESPONSES_MAX));
        let (queued, notices) = (Mutex::new(Some(queued)), OnceLock::new());
        let (inner, storing) = (Mutex::new(inner), Mutex::new(()));
        let lockd = Self { inner, recovery, storing, state, name, grace, outgoing, queued, notices, responses };
        lockd.recover();
        if lockd.recovery.clients_unknown() {
            // RFC 8881 §8.4.3: no claim can be verified, so none is accepted, and nothing else given before all leases are over.
            tracing::warn!(
                grace_s = lockd.grace.as_secs(),
                "the recovery database was reset: nobody can reclaim locks, and no new ones can be had for a time"
            );
            lockd.begin_grace();
        }
        Ok(lockd)
    }

    /// Tells the hosts that may have held locks that they may reclaim them now, and lets nothing else through for a time.
    fn recover(&self) {
        let mut inner = self.inner.lock();
        // Once for each address, however many names its programs lock by.
        let told: HashSet<Destination> =
            inner.hosts.iter().filter(|(_, host)| host.may_reclaim).map(|(_, host)| host.into()).collect();
        if told.is_empty() {
            return;
        }
        tracing::info!(
            hosts = told.len(),
            grace_s = self.grace.as_secs(),
            "locks can be reclaimed, and nothing else locked"
        );
        inner.table.begin_grace(clock::now() + self.grace);
        told.into_iter().for_each(|host| self.say(Outgoing::Restarted(host)));
    }

    /// Who reclaimed nothing in grace has no claim any more; when that is stored, everybody can have what is free. Waits for
    /// storage.
    pub(crate) fn end_grace(&self) {
        let _storing = self.storing.lock();
        let gone: Vec<Host> = {
            let Inner { table, hosts, .. } = &mut *self.inner.lock();
            let without_locks = |id: &HostId| !table.has_client(LockClient::Nlm(*id));
            let late: Vec<HostId> = hosts.iter().filter(|(_, host)| host.may_reclaim).map(|(id, _)| id).collect();
            late.iter().for_each(|&id| hosts.get_mut(id).expect("it is there").may_reclaim = false);
            late.into_iter().filter(without_locks).filter_map(|id| hosts.remove(id)).collect()
        };
        self.recovery.end_grace(gone.iter().map(|host| (host.address, &host.name[..])));
        self.inner.lock().table.end_grace();
    }

    /// Whether grace has had its time.
    pub(crate) fn is_grace_over(&self, now: Instant) -> bool {
        self.inner.lock().table.is_grace_over(now)
    }

    /// Begins grace on behalf of another protocol.
    pub(crate) fn begin_grace(&self) {
        self.inner.lock().table.begin_grace(clock::now() + self.grace);
    }

    /// Whether there are hosts that may reclaim, or may be some that are not known.
    pub(crate) fn awaits_reclaims(&self) -> bool {
        self.recovery.clients_unknown() || self.inner.lock().hosts.iter().any(|(_, host)| host.may_reclaim)
    }

    /// The hosts that hold or want something, or may reclaim it.
    pub(crate) fn holders(&self) -> Vec<u32> {
        let Inner { table, hosts, .. } = &*self.inner.lock();
        let holds = |id, host: &Host| host.may_reclaim || table.has_client(LockClient::Nlm(id));
        hosts.iter().filter(|(id, host)| holds(*id, host)).map(|(id, _)| id).collect()
    }

    /// Where a host is, its name for itself, and whether it can reclaim.
    pub(crate) fn host(&self, id: HostId) -> Option<(IpAddr, Bytes, bool)> {
        let inner = self.inner.lock();
        inner.hosts.get(id).map(|host| (host.address, host.name.clone(), host.monitored))
    }

    /// Takes from a host all that it has, now and after a restart; false if there is none. Waits for storage.
    pub(crate) fn evict(&self, id: HostId) -> bool {
        let _storing = self.storing.lock();
        let Some((address, name, _)) = self.host(id) else { return false };
        self.recovery.remove_host(address, &name);
        let mut inner = self.inner.lock();
        inner.release(id);
        if let Some(host) = inner.hosts.get_mut(id) {
            (host.monitored, host.may_reclaim) = (false, false);
        }
        self.tell_granted(&mut inner);
        true
    }

    /// What survives a restart.
    pub(crate) fn recovery(&self) -> &Recovery {
        &self.recovery
    }

    /// Whether only what was held before can be had, by any protocol. When it ends is for [`upkeep`](crate::v4::upkeep) to say.
    pub(crate) fn in_grace(&self) -> bool {
        self.inner.lock().table.in_grace()
    }

    /// Asks or changes the lock table on behalf of another protocol.
    pub(crate) fn with_table<T>(&self, go: impl FnOnce(&mut LockTable<LockFile>) -> T) -> T {
        let mut inner = self.inner.lock();
        let result = go(&mut inner.table);
        self.tell_granted(&mut inner);
        result
    }

    /// Those of other protocols that may ask again for a lock; for the one that tells them.
    pub(crate) fn take_notices(&self) -> Option<mpsc::UnboundedReceiver<Notice<LockFile>>> {
        let (notices, noticed) = mpsc::unbounded_channel();
        self.notices.set(notices).ok().map(|()| noticed)
    }

    /// What is to be said; for the one that says it.
    pub(crate) fn take_queue(&self) -> Option<mpsc::UnboundedReceiver<Outgoing>> {
        self.queued.lock().take()
    }

    /// Our name for ourselves, and our NSM state number.
    pub(crate) fn identity(&self) -> (&Bytes, i32) {
        (&self.name, self.state.load(Relaxed))
    }

    /// LOCK and NM_LOCK.
    ///
    /// # Errors
    /// It would have to wait for storage, and must not.
    pub(crate) fn lock(&self, from: From<'_>, ask: &Ask<'_>) -> Result<Nlm4Stats, WouldBlock> {
        if ask.reclaim != self.in_grace() {
            return Ok(Nlm4Stats::DeniedGracePeriod);
        }
        let host = match self.known_host(from, ask)? {
            Known::Host(host) => host,
            Known::Full => return Ok(Nlm4Stats::DeniedNoLocks),
            Known::NotStored => return Ok(Nlm4Stats::DeniedGracePeriod),
        };
        let mut inner = self.inner.lock();
        if self.must_wait() {
            return Ok(Nlm4Stats::DeniedGracePeriod);
        }
        if ask.reclaim && !inner.hosts.get(host).is_some_and(|host| host.may_reclaim) {
            return Ok(Nlm4Stats::Denied);
        }
        if ask.monitor.is_some() && !inner.hosts.get(host).is_some_and(|host| host.monitored) {
            // It has been evicted meanwhile, and is not remembered any more.
            return Ok(Nlm4Stats::DeniedNoLocks);
        }
        let owner = lock_owner(host, ask.lock);
        let Ask { range, kind, wait, reclaim, .. } = *ask;
        let locked = inner.table.lock(&ask.file, &owner, &Request { range, kind, wait, reclaim });
        let status = match locked {
            Ok(Locked::Granted) => {
                // It may have asked again before GRANTED reached it.
                inner.forget_granted(&ask.file, &owner, |granted| granted == range);
                Nlm4Stats::Granted
            }
            Ok(Locked::Waiting(id)) => {
                let nlm::Lock { offset, len, .. } = *ask.lock;
                let fh = Bytes::copy_from_slice(&ask.lock.fh);
                inner.blocked.insert(id, Blocked { host, fh, offset, len });
                Nlm4Stats::Blocked
            }
            Err(LockError::Denied(_)) => Nlm4Stats::Denied,
            Err(LockError::Deadlock) => Nlm4Stats::Deadlck,
            Err(LockError::Grace | LockError::NoGrace) => Nlm4Stats::DeniedGracePeriod,
            Err(LockError::Full) => Nlm4Stats::DeniedNoLocks,
        };
        self.tell_granted(&mut inner);
        Ok(status)
    }

    /// Whether nobody may get anything, as what others have lost is not stored. The client asks again, as in grace.
    fn must_wait(&self) -> bool {
        let behind = self.recovery.is_behind();
        if behind {
            self.recovery.count_refusal();
        }
        behind
    }

    /// The number of a host that is remembered durably if it can be monitored.
    fn known_host(&self, from: From<'_>, ask: &Ask<'_>) -> Result<Known, WouldBlock> {
        let storing = ask.may_block.then(|| self.storing.lock());
        let (id, record, forgotten) = {
            let mut inner = self.inner.lock();
            let Some(id) = inner.intern(from) else { return Ok(Known::Full) };
            let host = inner.hosts.get_mut(id).expect("it has just been found");
            host.lossy = from.lossy;
            let Some(state) = ask.monitor.filter(|_| !host.monitored) else { return Ok(Known::Host(id)) };
            if storing.is_none() {
                return Err(WouldBlock);
            }
            host.state = state;
            let record = MonitoredHost { address: host.address, name: host.name.clone(), state };
            (id, record, inner.hosts.take_forgotten())
        };
        let forgotten = forgotten.iter().map(|(address, name)| (*address, &name[..]));
        if let Err(error) = self.recovery.add_host(&record, forgotten) {
            tracing::debug!(%error, "a host gets no locks because it could not be remembered");
            return Ok(Known::NotStored);
        }
        let mut inner = self.inner.lock();
        let host = inner.hosts.get_mut(id).filter(|host| (host.address, &host.name) == (record.address, &record.name));
        // It may have made room for another meanwhile.
        Ok(host.map_or(Known::Full, |host| {
            host.monitored = true;
            Known::Host(id)
        }))
    }

    /// TEST: what is in the way.
    pub(crate) fn test(
        &self,
        from: From<'_>,
        lock: &nlm::Lock,
        file: &LockFile,
        range: Range,
        kind: LockKind,
    ) -> Option<Holder> {
        let inner = self.inner.lock();
        // Nobody has the number 0.
        let host = inner.hosts.find(from.peer.ip(), from.name).unwrap_or(0);
        inner.table.test(file, &lock_owner(host, lock), range, kind)
    }

    /// CANCEL: whether there was something to cancel.
    pub(crate) fn cancel(
        &self,
        from: From<'_>,
        lock: &nlm::Lock,
        file: &LockFile,
        range: Range,
        kind: LockKind,
    ) -> bool {
        let mut inner = self.inner.lock();
        let Some(host) = inner.hosts.find(from.peer.ip(), from.name) else { return false };
        let owner = lock_owner(host, lock);
        let cancelled = match inner.table.cancel(file, &owner, range, kind) {
            Some(id) => inner.blocked.remove(&id).is_some(),
            // GRANTED is on its way, to one who no longer wants it.
            None => {
                inner.forget_granted(file, &owner, |granted| granted == range)
                    && inner.table.unlock(file, &owner, range).is_ok()
            }
        };
        self.tell_granted(&mut inner);
        cancelled
    }

    /// UNLOCK.
    pub(crate) fn unlock(&self, from: From<'_>, lock: &nlm::Lock, file: &LockFile, range: Range) -> Nlm4Stats {
        let mut inner = self.inner.lock();
        let Some(host) = inner.hosts.find(from.peer.ip(), from.name) else { return Nlm4Stats::Granted };
        let owner = lock_owner(host, lock);
        let unlocked = inner.table.unlock(file, &owner, range);
        if unlocked.is_ok() {
            inner.forget_granted(file, &owner, |granted| granted.overlaps(range));
        }
        self.tell_granted(&mut inner);
        if unlocked.is_ok() { Nlm4Stats::Granted } else { Nlm4Stats::DeniedNoLocks }
    }

    /// SHARE.
    pub(crate) fn share(&self, from: From<'_>, oh: &[u8], file: &LockFile, share: Share, reclaim: bool) -> Nlm4Stats {
        let mut inner = self.inner.lock();
        if self.must_wait() {
            return Nlm4Stats::DeniedGracePeriod;
        }
        let Some(host) = inner.intern(from) else { return Nlm4Stats::DeniedNoLocks };
        match inner.table.share(file, &share_owner(host, oh), share, reclaim) {
            Ok(()) => Nlm4Stats::Granted,
            Err(LockError::Denied(_) | LockError::Deadlock) => Nlm4Stats::Denied,
            Err(LockError::Grace | LockError::NoGrace) => Nlm4Stats::DeniedGracePeriod,
            Err(LockError::Full) => Nlm4Stats::DeniedNoLocks,
        }
    }

    /// UNSHARE.
    pub(crate) fn unshare(&self, from: From<'_>, oh: &[u8], file: &LockFile) {
        let mut inner = self.inner.lock();
        if let Some(host) = inner.hosts.find(from.peer.ip(), from.name) {
            inner.table.unshare(file, &share_owner(host, oh));
        }
    }

    /// FREE_ALL: a host says that it holds nothing any more.
    pub(crate) fn free_all(&self, from: From<'_>) {
        let mut inner = self.inner.lock();
        if let Some(host) = inner.hosts.find(from.peer.ip(), from.name) {
            inner.release(host);
            self.tell_granted(&mut inner);
        }
    }

    /// SM_NOTIFY: a host says that it has restarted. Its locks are gone with it.
    pub(crate) fn restarted(&self, peer: SocketAddr, name: &[u8], state: i32) {
        let mut inner = self.inner.lock();
        for id in inner.hosts.restarted(peer, name) {
            let host = inner.hosts.get_mut(id).expect("it has been found");
            // Said twice, and perhaps after it has locked anew.
            if host.state != state {
                host.state = state;
                inner.release(id);
                tracing::info!(%peer, name = %name.escape_ascii(), "a host has restarted: its locks are released");
            }
        }
        self.tell_granted(&mut inner);
    }

    /// Who on this host wants to know that `name` has restarted is told. Waits for storage.
    pub(crate) fn pass_on(&self, name: &nsm::MonName, state: i32) {
        let monitors = self.monitors(|mon_id| mon_id.mon_name == *name);
        for (Monitor { private, .. }, mon_id) in monitors {
            let status = nsm::Status { mon_name: name.clone(), state, private };
            self.say(Outgoing::News { my_id: mon_id.my_id, status });
        }
    }

    fn monitors(&self, wanted: impl Fn(&nsm::MonId) -> bool) -> Vec<(Monitor, nsm::MonId)> {
        let all = self.recovery.monitors();
        let decoded = all.into_iter().filter_map(|monitor| {
            let mon_id = Message::from(monitor.mon_id.clone()).decode::<nsm::MonId>().ok()?;
            wanted(&mon_id).then_some((monitor, mon_id))
        });
        decoded.collect()
    }

    /// SM_MON: false if it cannot be remembered. Waits for storage.
    pub(crate) fn monitor(&self, args: &nsm::MonArgs) -> bool {
        let monitor = Monitor { mon_id: Message::encode(&args.mon_id).stream, private: args.private };
        let room = self.recovery.monitors().len() < MONITORS_MAX;
        room && self.recovery.add_monitor(&monitor).is_ok()
    }

    /// SM_UNMON and SM_UNMON_ALL. Waits for storage.
    pub(crate) fn unmonitor(&self, gone: impl Fn(&nsm::MonId) -> bool) {
        let gone: Vec<Bytes> = self.monitors(gone).into_iter().map(|(monitor, _)| monitor.mon_id).collect();
        if let Err(error) = self.recovery.remove_monitors(|key| gone.iter().any(|id| id == key)) {
            tracing::warn!(%error, "a host is still monitored");
        }
    }

    /// SM_SIMU_CRASH: all locks of hosts are gone, as after a restart, and can be reclaimed. Waits for storage.
    pub(crate) fn simulate_crash(&self) -> io::Result<()> {
        self.state.store(self.recovery.next_nsm_state()?, Relaxed);
        {
            let mut inner = self.inner.lock();
            let all: Vec<HostId> = inner.hosts.iter().map(|(id, _)| id).collect();
            for id in all {
                inner.release(id);
                let host = inner.hosts.get_mut(id).expect("it is there");
                host.may_reclaim = host.monitored;
            }
            self.tell_granted(&mut inner);
        }
        self.recover();
        Ok(())
    }

    /// Queues the result of a `_MSG` procedure; drops it, as the network may, if there are too many.
    pub(crate) fn respond(&self, from: From<'_>, procedure: NlmProc4, results: Bytes) {
        let to = Destination { address: from.peer.ip().to_canonical(), lossy: from.lossy };
        match self.responses.clone().try_acquire_owned() {
            Ok(permit) => self.say(Outgoing::Response { to, procedure, results, _permit: permit }),
            Err(_) => tracing::debug!(peer = %from.peer, "too many results of _MSG procedures: one is dropped"),
        }
    }

    /// What a host is told of a request that has been granted; `None` if that is settled.
    pub(crate) fn granted(&self, id: WaiterId) -> Option<(Destination, nlm::TestArgs)> {
        let inner = self.inner.lock();
        let Granted { blocked: Blocked { host, fh, offset, len }, grant } = inner.granted.get(&id)?;
        let host = inner.hosts.get(*host)?;
        let (svid, oh) = svid_and_oh(&grant.owner);
        let (caller_name, fh) = (host.name.clone().into(), fh.clone().into());
        let lock = nlm::Lock { caller_name, fh, oh, svid, offset: *offset, len: *len };
        let cookie = Bytes::copy_from_slice(&id.0.to_be_bytes()).into();
        Some((host.into(), nlm::TestArgs { cookie, exclusive: grant.kind == LockKind::Exclusive, lock }))
    }

    /// A host has taken, or has not taken, what was granted.
    pub(crate) fn settle_granted(&self, id: WaiterId, taken: bool) {
        let mut inner = self.inner.lock();
        if let Some(Granted { grant, .. }) = inner.granted.remove(&id)
            && !taken
            && inner.table.unlock(&grant.file, &grant.owner, grant.range).is_ok()
        {
            self.tell_granted(&mut inner);
        }
    }

    fn tell_granted(&self, inner: &mut Inner) {
        if self.recovery.is_behind() {
            // Whoever had it before could reclaim it after a restart. Upkeep comes back to it.
            return;
        }
        while let Some(grant) = inner.table.poll_grant() {
            // Owners of other protocols are told by these.
            if let Some(blocked) = inner.blocked.remove(&grant.id) {
                let id = grant.id;
                inner.granted.insert(id, Granted { blocked, grant });
                self.say(Outgoing::Granted(id));
            }
        }
        while let Some(notice) = inner.table.poll_notice() {
            self.notices.get().map(|notices| notices.send(notice));
        }
    }

    fn say(&self, what: Outgoing) {
        // It fails only when the one that says it has ended, and with it the server.
        let _ = self.outgoing.send(what);
    }
}

impl Inner {
    fn intern(&mut self, from: From<'_>) -> Option<HostId> {
        let Self { hosts, table, .. } = self;
        let is_idle = |id, host: &Host| !host.may_reclaim && !table.has_client(LockClient::Nlm(id));
        hosts.intern(from.peer.ip(), from.name, is_idle)
    }

    fn release(&mut self, host: HostId) {
        self.table.release_client(LockClient::Nlm(host));
        self.blocked.retain(|_, blocked| blocked.host != host);
        self.granted.retain(|_, granted| granted.blocked.host != host);
    }

    /// Forgets that an owner is to be told of a grant; whether it was to be.
    fn forget_granted(&mut self, file: &LockFile, owner: &Owner, is: impl Fn(Range) -> bool) -> bool {
        let before = self.granted.len();
        self.granted
            .retain(|_, Granted { grant, .. }| !(is(grant.range) && *grant.owner == *owner && grant.file == *file));
        self.granted.len() < before
    }
}

impl std::convert::From<&Host> for Destination {
    fn from(host: &Host) -> Self {
        Self { address: host.address, lossy: host.lossy }
    }
}

/// The owner of a lock. Its `svid` tells processes apart, `oh` what runs on the host beside the kernel.
fn lock_owner(host: HostId, lock: &nlm::Lock) -> Owner {
    let mut opaque = smallvec::SmallVec::from_slice(&[OF_LOCKS]);
    opaque.extend_from_slice(&lock.svid.to_be_bytes());
    opaque.extend_from_slice(&lock.oh);
    Owner { client: LockClient::Nlm(host), opaque }
}

fn share_owner(host: HostId, oh: &[u8]) -> Owner {
    let mut opaque = smallvec::SmallVec::from_slice(&[OF_SHARES]);
    opaque.extend_from_slice(oh);
    Owner { client: LockClient::Nlm(host), opaque }
}

/// The name of an owner, of whatever protocol, in NLM. One that is longer than a netobj can be is cut: a client only shows it.
pub(crate) fn svid_and_oh(owner: &Owner) -> (u32, nlm::Netobj) {
    if let (LockClient::Nlm(_), Some((&OF_LOCKS, rest))) = (owner.client, owner.opaque.split_first())
        && let Some((svid, oh)) = rest.split_first_chunk()
    {
        return (u32::from_be_bytes(*svid), Bytes::copy_from_slice(oh).into());
    }
    let oh = &owner.opaque[..owner.opaque.len().min(nlm::NETOBJ_MAX)];
    (0, Bytes::copy_from_slice(oh).into())
}

const OF_LOCKS: u8 = b'L';
const OF_SHARES: u8 = b'S';
const RESPONSES_MAX: usize = 1024;
/// Hosts that programs of this host may have monitored.
const MONITORS_MAX: usize = 1024;
