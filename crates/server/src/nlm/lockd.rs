//! [`Lockd`]: the state behind NLM and NSM.
//!
//! One mutex holds the hosts and the requests that wait. It is taken before that of the lock table, and never held while
//! waiting for storage or a peer. Calls to hosts are queued for `callbacks.rs`.

use std::{
    io,
    net::{IpAddr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicI32, Ordering::Relaxed},
    },
};

use bytes::Bytes;
use entropy::{HashMap, HashSet};
use nfs::{
    nlm::{self, Nlm4Stats, NlmProc4},
    nsm,
};
use parking_lot::Mutex;
use tokio::sync::mpsc;
use xdr::Message;

use super::{
    hosts::{Host, HostId, Hosts},
    news::News,
    responses::{Permit, Responses},
};
use crate::{
    call::{
        core::{Core, ServiceState},
        error::WouldBlock,
    },
    handle::FileId,
    recovery::{Monitor, MonitoredHost},
    sharing::{
        grace::Reclaim,
        locks::{
            Grant, Holder, LockClient, LockError, LockKind, LockTable, Locked, Owner, Range, Request, Share, WaiterId,
        },
    },
};

/// The state behind NLM and NSM.
pub(crate) struct Lockd {
    core: Arc<Core>,
    inner: Mutex<Inner>,
    /// Held while which hosts are remembered is being changed, before `inner`.
    storing: Mutex<()>,
    /// Our NSM state number.
    state: AtomicI32,
    /// Our name for ourselves.
    name: Bytes,
    outgoing: mpsc::UnboundedSender<Outgoing>,
    queued: Mutex<Option<mpsc::UnboundedReceiver<Outgoing>>>,
    /// Results of `_MSG` procedures on their way.
    responses: Arc<Responses>,
    pub(super) news: News,
}

#[derive(Default)]
struct Inner {
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
    grant: Grant<FileId>,
}

/// What we say without having been asked.
pub(crate) enum Outgoing {
    /// A request that waited is granted.
    Granted(WaiterId),
    /// The result of a `_MSG` procedure.
    Response { to: Destination, procedure: NlmProc4, results: Bytes, _permit: Permit },
    /// A host is told that we have restarted.
    Restarted(Destination),
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
    pub(crate) file: FileId,
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
    /// Starts the service: with grace, if hosts may have held locks before.
    ///
    /// # Errors
    /// The storage fails.
    pub(crate) fn start(core: Arc<Core>) -> io::Result<Arc<Self>> {
        let (outgoing, queued) = mpsc::unbounded_channel();
        let state = AtomicI32::new(core.recovery.next_nsm_state()?);
        let name = Bytes::copy_from_slice(rustix::system::uname().nodename().to_bytes());
        let mut inner = Inner::default();
        for MonitoredHost { address, name, state } in core.recovery.hosts() {
            let Some(id) = inner.hosts.intern(address, &name, |_, _| false) else { break };
            let host = inner.hosts.get_mut(id).expect("it has just been made");
            (host.state, host.monitored, host.may_reclaim) = (state, true, true);
        }
        let (responses, news) = Default::default();
        let (inner, storing, queued) = (Mutex::new(inner), Mutex::new(()), Mutex::new(Some(queued)));
        let lockd = Self { core, inner, storing, state, name, outgoing, queued, responses, news };
        lockd.recover();
        Ok(Arc::new(lockd))
    }

    /// Begins grace and notifies the hosts that may reclaim locks, if there are any.
    fn recover(&self) {
        let inner = self.inner.lock();
        // Once for each address, however many names its programs lock by.
        let hosts: HashSet<Destination> =
            inner.hosts.iter().filter(|(_, host)| host.may_reclaim).map(|(_, host)| host.into()).collect();
        if hosts.is_empty() {
            return;
        }
        tracing::info!(
            hosts = hosts.len(),
            grace_s = self.core.locks.grace().as_secs(),
            "locks can be reclaimed, and nothing else locked"
        );
        drop(inner);
        self.core.locks.begin_grace();
        hosts.into_iter().for_each(|host| self.say(Outgoing::Restarted(host)));
    }

    /// The hosts that hold or want something, or may reclaim it.
    pub(crate) fn holders(&self) -> Vec<u32> {
        self.with(|inner, table| {
            let holds = |id, host: &Host| host.may_reclaim || table.has_client(LockClient::Nlm(id));
            inner.hosts.iter().filter(|(id, host)| holds(*id, host)).map(|(id, _)| id).collect()
        })
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
        self.core.recovery.remove_host(address, &name);
        self.with(|inner, table| {
            inner.release(table, id);
            if let Some(host) = inner.hosts.get_mut(id) {
                (host.monitored, host.may_reclaim) = (false, false);
            }
        });
        true
    }

    /// Reads or changes the hosts and requests together with the lock table, and takes the grants that result.
    fn with<T>(&self, go: impl FnOnce(&mut Inner, &mut LockTable<FileId>) -> T) -> T {
        let mut inner = self.inner.lock();
        self.core.locks.with_table(|table| {
            // First those of other protocols' changes: a request that is granted must not be taken for one that waits.
            self.take_grants(&mut inner, table);
            let result = go(&mut inner, table);
            self.take_grants(&mut inner, table);
            result
        })
    }

    /// Takes the grants of waiting requests that changes by other protocols have made.
    pub(crate) fn collect_grants(&self) {
        self.with(|_, _| ());
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
        if ask.reclaim != self.core.locks.in_grace() {
            return Ok(Nlm4Stats::DeniedGracePeriod);
        }
        let host = match self.known_host(from, ask)? {
            Known::Host(host) => host,
            Known::Full => return Ok(Nlm4Stats::DeniedNoLocks),
            Known::NotStored => return Ok(Nlm4Stats::DeniedGracePeriod),
        };
        Ok(self.with(|inner, table| self.lock_of(inner, table, host, ask)))
    }

    fn lock_of(&self, inner: &mut Inner, table: &mut LockTable<FileId>, host: HostId, ask: &Ask<'_>) -> Nlm4Stats {
        if self.must_wait() {
            return Nlm4Stats::DeniedGracePeriod;
        }
        if ask.reclaim && !inner.hosts.get(host).is_some_and(|host| host.may_reclaim) {
            return Nlm4Stats::Denied;
        }
        if ask.monitor.is_some() && !inner.hosts.get(host).is_some_and(|host| host.monitored) {
            // It has been evicted meanwhile, and is not remembered any more.
            return Nlm4Stats::DeniedNoLocks;
        }
        let owner = lock_owner(host, ask.lock);
        let Ask { range, kind, wait, reclaim, .. } = *ask;
        match table.lock(&ask.file, &owner, &Request { range, kind, wait, reclaim }) {
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
        }
    }

    /// Whether nobody may get anything, as what others have lost is not stored. The client asks again, as in grace.
    fn must_wait(&self) -> bool {
        let behind = self.core.recovery.is_behind();
        if behind {
            self.core.recovery.count_refusal();
        }
        behind
    }

    /// The number of a host that is remembered durably if it can be monitored.
    fn known_host(&self, from: From<'_>, ask: &Ask<'_>) -> Result<Known, WouldBlock> {
        let storing = ask.may_block.then(|| self.storing.lock());
        let (id, record, forgotten) = {
            let Some(id) = self.with(|inner, table| inner.intern(table, from)) else { return Ok(Known::Full) };
            let mut inner = self.inner.lock();
            // It may have made room for another meanwhile.
            let Some(host) = inner.hosts.get_mut(id) else { return Ok(Known::Full) };
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
        if let Err(error) = self.core.recovery.add_host(&record, forgotten) {
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
        file: &FileId,
        range: Range,
        kind: LockKind,
    ) -> Option<Holder> {
        self.with(|inner, table| {
            // Nobody has the number 0.
            let host = inner.hosts.find(from.peer.ip(), from.name).unwrap_or(0);
            table.test(file, &lock_owner(host, lock), range, kind)
        })
    }

    /// CANCEL: whether there was something to cancel.
    pub(crate) fn cancel(&self, from: From<'_>, lock: &nlm::Lock, file: &FileId, range: Range, kind: LockKind) -> bool {
        self.with(|inner, table| {
            let Some(host) = inner.hosts.find(from.peer.ip(), from.name) else { return false };
            let owner = lock_owner(host, lock);
            match table.cancel(file, &owner, range, kind) {
                Some(id) => inner.blocked.remove(&id).is_some(),
                // GRANTED is on its way, but the lock is no longer wanted.
                None => {
                    inner.forget_granted(file, &owner, |granted| granted == range)
                        && table.unlock(file, &owner, range).is_ok()
                }
            }
        })
    }

    /// UNLOCK.
    pub(crate) fn unlock(&self, from: From<'_>, lock: &nlm::Lock, file: &FileId, range: Range) -> Nlm4Stats {
        self.with(|inner, table| {
            let Some(host) = inner.hosts.find(from.peer.ip(), from.name) else { return Nlm4Stats::Granted };
            let owner = lock_owner(host, lock);
            if table.unlock(file, &owner, range).is_err() {
                return Nlm4Stats::DeniedNoLocks;
            }
            inner.forget_granted(file, &owner, |granted| granted.overlaps(range));
            Nlm4Stats::Granted
        })
    }

    /// SHARE.
    pub(crate) fn share(&self, from: From<'_>, oh: &[u8], file: &FileId, share: Share, reclaim: bool) -> Nlm4Stats {
        self.with(|inner, table| {
            if self.must_wait() {
                return Nlm4Stats::DeniedGracePeriod;
            }
            let Some(host) = inner.intern(table, from) else { return Nlm4Stats::DeniedNoLocks };
            match table.share(file, &share_owner(host, oh), share, reclaim) {
                Ok(()) => Nlm4Stats::Granted,
                Err(LockError::Denied(_) | LockError::Deadlock) => Nlm4Stats::Denied,
                Err(LockError::Grace | LockError::NoGrace) => Nlm4Stats::DeniedGracePeriod,
                Err(LockError::Full) => Nlm4Stats::DeniedNoLocks,
            }
        })
    }

    /// UNSHARE.
    pub(crate) fn unshare(&self, from: From<'_>, oh: &[u8], file: &FileId) {
        self.with(|inner, table| {
            if let Some(host) = inner.hosts.find(from.peer.ip(), from.name) {
                table.unshare(file, &share_owner(host, oh));
            }
        });
    }

    /// FREE_ALL: a host says that it holds nothing any more.
    pub(crate) fn free_all(&self, from: From<'_>) {
        self.with(|inner, table| {
            if let Some(host) = inner.hosts.find(from.peer.ip(), from.name) {
                inner.release(table, host);
            }
        });
    }

    /// SM_NOTIFY: a host says that it has restarted. Its locks are gone with it.
    pub(crate) fn restarted(&self, peer: SocketAddr, name: &[u8], state: i32) {
        self.with(|inner, table| {
            for id in inner.hosts.restarted(peer, name) {
                let host = inner.hosts.get_mut(id).expect("it has been found");
                // The host may notify twice, the second time after it has locked again.
                if host.state != state {
                    host.state = state;
                    inner.release(table, id);
                    tracing::info!(%peer, name = %name.escape_ascii(), "a host has restarted: its locks are released");
                }
            }
        });
    }

    /// Who on this host wants to know that `name` has restarted is told. Waits for storage.
    pub(crate) fn pass_on(&self, name: &nsm::MonName, state: i32) {
        let monitors = self.monitors(|mon_id| mon_id.mon_name == *name);
        for (Monitor { private, .. }, mon_id) in monitors {
            let status = nsm::Status { mon_name: name.clone(), state, private };
            if !self.news.push(mon_id, status) {
                tracing::debug!(name = %name.escape_ascii(), "too many restarts to pass on: one is dropped");
            }
        }
    }

    fn monitors(&self, wanted: impl Fn(&nsm::MonId) -> bool) -> Vec<(Monitor, nsm::MonId)> {
        let all = self.core.recovery.monitors();
        let decoded = all.into_iter().filter_map(|monitor| {
            let mon_id = Message::from(monitor.mon_id.clone()).decode::<nsm::MonId>().ok()?;
            wanted(&mon_id).then_some((monitor, mon_id))
        });
        decoded.collect()
    }

    /// SM_MON: false if it cannot be remembered. Waits for storage.
    pub(crate) fn monitor(&self, args: &nsm::MonArgs) -> bool {
        let monitor = Monitor { mon_id: Message::encode(&args.mon_id).stream, private: args.private };
        let room = self.core.recovery.monitors().len() < MONITORS_MAX;
        room && self.core.recovery.add_monitor(&monitor).is_ok()
    }

    /// SM_UNMON and SM_UNMON_ALL. Waits for storage.
    pub(crate) fn unmonitor(&self, gone: impl Fn(&nsm::MonId) -> bool) {
        let gone: Vec<Bytes> = self.monitors(gone).into_iter().map(|(monitor, _)| monitor.mon_id).collect();
        if let Err(error) = self.core.recovery.remove_monitors(|key| gone.iter().any(|id| id == key)) {
            tracing::warn!(%error, "a host is still monitored");
        }
    }

    /// SM_SIMU_CRASH: all locks of hosts are gone, as after a restart, and can be reclaimed. Waits for storage.
    pub(crate) fn simulate_crash(&self) -> io::Result<()> {
        self.state.store(self.core.recovery.next_nsm_state()?, Relaxed);
        self.with(|inner, table| {
            let all: Vec<HostId> = inner.hosts.iter().map(|(id, _)| id).collect();
            for id in all {
                inner.release(table, id);
                let host = inner.hosts.get_mut(id).expect("it is there");
                host.may_reclaim = host.monitored;
            }
        });
        self.recover();
        Ok(())
    }

    /// Queues the result of a `_MSG` procedure; drops it, as the network may, if too many are on their way to this host or to all.
    pub(crate) fn respond(&self, from: From<'_>, procedure: NlmProc4, results: Bytes) {
        let to = Destination { address: from.peer.ip().to_canonical(), lossy: from.lossy };
        match self.responses.begin(to.address) {
            Some(permit) => self.say(Outgoing::Response { to, procedure, results, _permit: permit }),
            None => tracing::debug!(peer = %from.peer, "too many results of _MSG procedures: one is dropped"),
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
        self.with(|inner, table| {
            if let Some(Granted { grant, .. }) = inner.granted.remove(&id)
                && !taken
            {
                let _ = table.unlock(&grant.file, &grant.owner, grant.range);
            }
        });
    }

    fn take_grants(&self, inner: &mut Inner, table: &mut LockTable<FileId>) {
        if self.core.recovery.is_behind() {
            // The client that held a lock before could reclaim it after a restart. The periodic task tries again.
            return;
        }
        while let Some(grant) = table.poll_grant() {
            // Owners of other protocols get a notice instead.
            if let Some(blocked) = inner.blocked.remove(&grant.id) {
                let id = grant.id;
                inner.granted.insert(id, Granted { blocked, grant });
                self.say(Outgoing::Granted(id));
            }
        }
    }

    fn say(&self, what: Outgoing) {
        // It fails only when the one that says it has ended, and with it the server.
        let _ = self.outgoing.send(what);
    }
}

impl ServiceState for Lockd {
    fn core(&self) -> &Core {
        &self.core
    }
}

impl Reclaim for Lockd {
    fn is_awaited(&self) -> bool {
        self.inner.lock().hosts.iter().any(|(_, host)| host.may_reclaim)
    }

    fn end_claims(&self) {
        let _storing = self.storing.lock();
        let gone: Vec<Host> = self.with(|inner, table| {
            let without_locks = |id: &HostId| !table.has_client(LockClient::Nlm(*id));
            let hosts = &mut inner.hosts;
            let late: Vec<HostId> = hosts.iter().filter(|(_, host)| host.may_reclaim).map(|(id, _)| id).collect();
            late.iter().for_each(|&id| hosts.get_mut(id).expect("it is there").may_reclaim = false);
            late.into_iter().filter(without_locks).filter_map(|id| hosts.remove(id)).collect()
        });
        self.core.recovery.end_grace(gone.iter().map(|host| (host.address, &host.name[..])));
    }
}

impl Inner {
    fn intern(&mut self, table: &LockTable<FileId>, from: From<'_>) -> Option<HostId> {
        let is_idle = |id, host: &Host| !host.may_reclaim && !table.has_client(LockClient::Nlm(id));
        self.hosts.intern(from.peer.ip(), from.name, is_idle)
    }

    fn release(&mut self, table: &mut LockTable<FileId>, host: HostId) {
        table.release_client(LockClient::Nlm(host));
        self.blocked.retain(|_, blocked| blocked.host != host);
        self.granted.retain(|_, granted| granted.blocked.host != host);
    }

    /// Forgets that an owner is to be told of a grant; whether it was to be.
    fn forget_granted(&mut self, file: &FileId, owner: &Owner, is: impl Fn(Range) -> bool) -> bool {
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
/// Hosts that programs of this host may have monitored.
const MONITORS_MAX: usize = 1024;
