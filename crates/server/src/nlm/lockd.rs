//! [`Lockd`]: the state behind NLM and NSM.
//!
//! One mutex holds the hosts and the requests that wait. It is taken before the mutex of the lock table, and is never
//! held while waiting for storage or a peer. Calls to hosts are queued for `callbacks.rs`.

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
    notices::Notices,
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
    /// Held while the set of hosts in the recovery database changes. Taken before `inner`.
    storing: Mutex<()>,
    /// The NSM state number of this server.
    state: AtomicI32,
    /// The name of this host.
    name: Bytes,
    outgoing: mpsc::UnboundedSender<Outgoing>,
    /// The queue of outgoing calls, until the task that makes them takes it.
    queued: Mutex<Option<mpsc::UnboundedReceiver<Outgoing>>>,
    /// Results of `_MSG` procedures that are being sent.
    responses: Arc<Responses>,
    pub(super) notices: Notices,
}

#[derive(Default)]
struct Inner {
    hosts: Hosts,
    /// Requests that wait for a lock.
    blocked: HashMap<WaiterId, Blocked>,
    /// Granted requests for which the host has not yet confirmed GRANTED.
    granted: HashMap<WaiterId, Granted>,
}

/// The data that GRANTED needs about a waiting request.
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

/// A call of the server to another host.
pub(crate) enum Outgoing {
    /// GRANTED for a request that waited.
    Granted(WaiterId),
    /// The result of a `_MSG` procedure.
    Response { to: Destination, procedure: NlmProc4, results: Bytes, _permit: Permit },
    /// NOTIFY about a restart of this server.
    Restarted(Destination),
}

/// A host to call.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Destination {
    pub(crate) address: std::net::IpAddr,
    pub(crate) lossy: bool,
}

/// The origin of a call: the host that locks.
#[derive(Clone, Copy)]
pub(crate) struct CallOrigin<'a> {
    pub(crate) peer: SocketAddr,
    pub(crate) lossy: bool,
    /// The name of the host (`caller_name`).
    pub(crate) name: &'a [u8],
}

/// The outcome of looking up a host that requests a lock.
enum HostLookup {
    Host(HostId),
    /// There are too many hosts.
    Full,
    /// The host cannot be stored in the recovery database now.
    NotStored,
}

/// The arguments of LOCK or NM_LOCK.
pub(crate) struct LockRequest<'a> {
    pub(crate) file: FileId,
    pub(crate) lock: &'a nlm::Lock,
    pub(crate) range: Range,
    pub(crate) kind: LockKind,
    pub(crate) wait: bool,
    pub(crate) reclaim: bool,
    /// The host's NSM state number; `None` for a host that cannot be monitored.
    pub(crate) monitor: Option<i32>,
    pub(crate) may_block: bool,
}

impl Lockd {
    /// Starts the service, with a grace period if hosts may have held locks before.
    ///
    /// # Errors
    /// Returns an error if the storage fails.
    pub(crate) fn start(core: Arc<Core>) -> io::Result<Arc<Self>> {
        let (outgoing, queued) = mpsc::unbounded_channel();
        let state = AtomicI32::new(core.recovery.next_nsm_state()?);
        let name = Bytes::copy_from_slice(rustix::system::uname().nodename().to_bytes());
        let mut inner = Inner::default();
        for MonitoredHost { address, name, state } in core.recovery.hosts() {
            let Some(id) = inner.hosts.intern(address, &name, |_, _| false) else { break };
            let host = inner.hosts.get_mut(id).expect("host must have just been added");
            (host.state, host.monitored, host.may_reclaim) = (state, true, true);
        }
        let (responses, notices) = Default::default();
        let (inner, storing, queued) = (Mutex::new(inner), Mutex::new(()), Mutex::new(Some(queued)));
        let lockd = Self { core, inner, storing, state, name, outgoing, queued, responses, notices };
        lockd.recover();
        Ok(Arc::new(lockd))
    }

    /// Begins the grace period and notifies the hosts that may reclaim locks, if there are any.
    fn recover(&self) {
        let inner = self.inner.lock();
        // Notify each address once, however many names its programs use.
        let hosts: HashSet<Destination> =
            inner.hosts.iter().filter(|(_, host)| host.may_reclaim).map(|(_, host)| host.into()).collect();
        if hosts.is_empty() {
            return;
        }
        tracing::info!(
            hosts = hosts.len(),
            grace_s = self.core.locks.grace().as_secs(),
            "grace period has begun: locks can only be reclaimed"
        );
        drop(inner);
        self.core.locks.begin_grace();
        hosts.into_iter().for_each(|host| self.send(Outgoing::Restarted(host)));
    }

    /// Returns the hosts that hold or wait for a lock or share, or may reclaim one.
    pub(crate) fn holders(&self) -> Vec<u32> {
        self.with(|inner, table| {
            let holds = |id, host: &Host| host.may_reclaim || table.has_client(LockClient::Nlm(id));
            inner.hosts.iter().filter(|(id, host)| holds(*id, host)).map(|(id, _)| id).collect()
        })
    }

    /// Returns the address and the name of a host, and whether it can reclaim its locks after a restart.
    pub(crate) fn host(&self, id: HostId) -> Option<(IpAddr, Bytes, bool)> {
        let inner = self.inner.lock();
        inner.hosts.get(id).map(|host| (host.address, host.name.clone(), host.monitored))
    }

    /// Releases all that a host holds, and removes it from the recovery database so that it cannot reclaim. Returns
    /// `false` if there is no such host. Waits for storage.
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

    /// Runs `go` on the hosts and requests together with the lock table, and takes the resulting grants.
    fn with<T>(&self, go: impl FnOnce(&mut Inner, &mut LockTable<FileId>) -> T) -> T {
        let mut inner = self.inner.lock();
        self.core.locks.with_table(|table| {
            // First take the grants that other protocols have caused: a granted request must not be treated as a
            // waiting one.
            self.take_grants(&mut inner, table);
            let result = go(&mut inner, table);
            self.take_grants(&mut inner, table);
            result
        })
    }

    /// Takes the grants of waiting requests that changes by other protocols have caused.
    pub(crate) fn collect_grants(&self) {
        self.with(|_, _| ());
    }

    /// Takes the queue of outgoing calls. Only the first caller gets it.
    pub(crate) fn take_queue(&self) -> Option<mpsc::UnboundedReceiver<Outgoing>> {
        self.queued.lock().take()
    }

    /// Returns the name of this host and its NSM state number.
    pub(crate) fn identity(&self) -> (&Bytes, i32) {
        (&self.name, self.state.load(Relaxed))
    }

    /// Executes LOCK or NM_LOCK.
    ///
    /// # Errors
    /// Returns `WouldBlock` if the call has to wait for storage and must not.
    pub(crate) fn lock(&self, from: CallOrigin<'_>, ask: &LockRequest<'_>) -> Result<Nlm4Stats, WouldBlock> {
        if ask.reclaim != self.core.locks.in_grace() {
            return Ok(Nlm4Stats::DeniedGracePeriod);
        }
        let host = match self.known_host(from, ask)? {
            HostLookup::Host(host) => host,
            HostLookup::Full => return Ok(Nlm4Stats::DeniedNoLocks),
            HostLookup::NotStored => return Ok(Nlm4Stats::DeniedGracePeriod),
        };
        Ok(self.with(|inner, table| self.lock_of(inner, table, host, ask)))
    }

    fn lock_of(
        &self,
        inner: &mut Inner,
        table: &mut LockTable<FileId>,
        host: HostId,
        ask: &LockRequest<'_>,
    ) -> Nlm4Stats {
        if self.must_wait() {
            return Nlm4Stats::DeniedGracePeriod;
        }
        if ask.reclaim && !inner.hosts.get(host).is_some_and(|host| host.may_reclaim) {
            return Nlm4Stats::Denied;
        }
        if ask.monitor.is_some() && !inner.hosts.get(host).is_some_and(|host| host.monitored) {
            // The host has been evicted meanwhile, and is no longer in the recovery database.
            return Nlm4Stats::DeniedNoLocks;
        }
        let owner = lock_owner(host, ask.lock);
        let LockRequest { range, kind, reclaim, .. } = *ask;
        // A host that waits must be called when it gets the lock.
        let wait = ask.wait && self.queued.lock().is_none();
        match table.lock(&ask.file, &owner, &Request { range, kind, wait, reclaim }) {
            Ok(Locked::Granted) => {
                // The host may have requested the lock again before GRANTED reached it.
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

    /// Returns `true` if the loss of a lock is not stored yet. No lock can be granted then, because the former holder
    /// could reclaim its lock after a restart. The client retries, as in the grace period.
    fn must_wait(&self) -> bool {
        let behind = self.core.recovery.is_behind();
        if behind {
            self.core.recovery.count_refusal();
        }
        behind
    }

    /// Returns the number of a host. If the host can be monitored, stores it in the recovery database first.
    fn known_host(&self, from: CallOrigin<'_>, ask: &LockRequest<'_>) -> Result<HostLookup, WouldBlock> {
        let storing = ask.may_block.then(|| self.storing.lock());
        let (id, record, forgotten) = {
            let Some(id) = self.with(|inner, table| inner.intern(table, from)) else { return Ok(HostLookup::Full) };
            let mut inner = self.inner.lock();
            // The host may have been removed meanwhile to make room.
            let Some(host) = inner.hosts.get_mut(id) else { return Ok(HostLookup::Full) };
            host.lossy = from.lossy;
            let Some(state) = ask.monitor.filter(|_| !host.monitored) else { return Ok(HostLookup::Host(id)) };
            if storing.is_none() {
                return Err(WouldBlock);
            }
            host.state = state;
            let record = MonitoredHost { address: host.address, name: host.name.clone(), state };
            (id, record, inner.hosts.take_forgotten())
        };
        let forgotten = forgotten.iter().map(|(address, name)| (*address, &name[..]));
        if let Err(error) = self.core.recovery.add_host(&record, forgotten) {
            tracing::debug!(%error, "host gets no locks because it cannot be stored");
            return Ok(HostLookup::NotStored);
        }
        let mut inner = self.inner.lock();
        let host = inner.hosts.get_mut(id).filter(|host| (host.address, &host.name) == (record.address, &record.name));
        // The host may have been removed meanwhile to make room.
        Ok(host.map_or(HostLookup::Full, |host| {
            host.monitored = true;
            HostLookup::Host(id)
        }))
    }

    /// Executes TEST: returns a conflicting lock, if there is one.
    pub(crate) fn test(
        &self,
        from: CallOrigin<'_>,
        lock: &nlm::Lock,
        file: &FileId,
        range: Range,
        kind: LockKind,
    ) -> Option<Holder> {
        self.with(|inner, table| {
            // No host has the number 0.
            let host = inner.hosts.find(from.peer.ip(), from.name).unwrap_or(0);
            table.test(file, &lock_owner(host, lock), range, kind)
        })
    }

    /// Executes CANCEL. Returns `true` if there was a request to cancel.
    pub(crate) fn cancel(
        &self,
        from: CallOrigin<'_>,
        lock: &nlm::Lock,
        file: &FileId,
        range: Range,
        kind: LockKind,
    ) -> bool {
        self.with(|inner, table| {
            let Some(host) = inner.hosts.find(from.peer.ip(), from.name) else { return false };
            let owner = lock_owner(host, lock);
            match table.cancel(file, &owner, range, kind) {
                Some(id) => inner.blocked.remove(&id).is_some(),
                // GRANTED is being sent, but the lock is no longer wanted.
                None => {
                    inner.forget_granted(file, &owner, |granted| granted == range)
                        && table.unlock(file, &owner, range).is_ok()
                }
            }
        })
    }

    /// Executes UNLOCK.
    pub(crate) fn unlock(&self, from: CallOrigin<'_>, lock: &nlm::Lock, file: &FileId, range: Range) -> Nlm4Stats {
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

    /// Executes SHARE.
    pub(crate) fn share(
        &self,
        from: CallOrigin<'_>,
        oh: &[u8],
        file: &FileId,
        share: Share,
        reclaim: bool,
    ) -> Nlm4Stats {
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

    /// Executes UNSHARE.
    pub(crate) fn unshare(&self, from: CallOrigin<'_>, oh: &[u8], file: &FileId) {
        self.with(|inner, table| {
            if let Some(host) = inner.hosts.find(from.peer.ip(), from.name) {
                table.unshare(file, &share_owner(host, oh));
            }
        });
    }

    /// Executes FREE_ALL: releases all that a host holds.
    pub(crate) fn free_all(&self, from: CallOrigin<'_>) {
        self.with(|inner, table| {
            if let Some(host) = inner.hosts.find(from.peer.ip(), from.name) {
                inner.release(table, host);
            }
        });
    }

    /// Handles SM_NOTIFY from a host that has restarted: releases its locks.
    pub(crate) fn restarted(&self, peer: SocketAddr, name: &[u8], state: i32) {
        self.with(|inner, table| {
            for id in inner.hosts.restarted(peer, name) {
                let host = inner.hosts.get_mut(id).expect("host must have been found");
                // The host may send NOTIFY twice, the second time after it has locked again.
                if host.state != state {
                    host.state = state;
                    inner.release(table, id);
                    tracing::info!(%peer, name = %name.escape_ascii(), "host has restarted: its locks are released");
                }
            }
        });
    }

    /// Queues notices of the restart of `name` for the programs of this host that monitor it.
    pub(crate) fn queue_notices(&self, name: &nsm::MonName, state: i32) {
        // A `mon_id` begins with the name.
        let monitors = self.core.recovery.monitors(&Message::encode(name).stream);
        for (Monitor { private, .. }, mon_id) in decoded(monitors) {
            let status = nsm::Status { mon_name: name.clone(), state, private };
            if !self.notices.push(mon_id, status) {
                tracing::debug!(name = %name.escape_ascii(), "too many notices of restarts: one is dropped");
            }
        }
    }

    /// Executes SM_MON. Returns `false` if the monitor cannot be stored.
    ///
    /// # Errors
    /// Returns `WouldBlock` if it needs storage and `may_block` is `false`.
    pub(crate) fn monitor(&self, args: &nsm::MonArgs, may_block: bool) -> Result<bool, WouldBlock> {
        let recovery = &self.core.recovery;
        let monitor = Monitor { mon_id: Message::encode(&args.mon_id).stream, private: args.private };
        if recovery.monitors(&monitor.mon_id).contains(&monitor) {
            return Ok(true);
        }
        if recovery.monitors_len() >= MONITORS_MAX {
            return Ok(false);
        }
        if !may_block {
            return Err(WouldBlock);
        }
        Ok(recovery.add_monitor(&monitor).is_ok())
    }

    /// Executes SM_UNMON and SM_UNMON_ALL.
    ///
    /// # Errors
    /// Returns `WouldBlock` if it needs storage and `may_block` is `false`.
    pub(crate) fn unmonitor(&self, gone: impl Fn(&nsm::MonId) -> bool, may_block: bool) -> Result<(), WouldBlock> {
        let matching = decoded(self.core.recovery.monitors(&[])).filter(|(_, mon_id)| gone(mon_id));
        let gone: Vec<Bytes> = matching.map(|(monitor, _)| monitor.mon_id).collect();
        if gone.is_empty() {
            return Ok(());
        }
        if !may_block {
            return Err(WouldBlock);
        }
        if let Err(error) = self.core.recovery.remove_monitors(gone) {
            tracing::warn!(%error, "cannot remove a monitor from the recovery database");
        }
        Ok(())
    }

    /// Executes SM_SIMU_CRASH: releases the locks of all hosts, which can then reclaim them, as after a restart. Waits
    /// for storage.
    pub(crate) fn simulate_crash(&self) -> io::Result<()> {
        self.state.store(self.core.recovery.next_nsm_state()?, Relaxed);
        self.with(|inner, table| {
            let all: Vec<HostId> = inner.hosts.iter().map(|(id, _)| id).collect();
            for id in all {
                inner.release(table, id);
                let host = inner.hosts.get_mut(id).expect("host must be in the table");
                host.may_reclaim = host.monitored;
            }
        });
        self.recover();
        Ok(())
    }

    /// Queues the result of a `_MSG` procedure. Drops it, as the network could, if too many are being sent to this host
    /// or to all hosts.
    pub(crate) fn respond(&self, from: CallOrigin<'_>, procedure: NlmProc4, results: Bytes) {
        let to = Destination { address: from.peer.ip().to_canonical(), lossy: from.lossy };
        match self.responses.begin(to.address) {
            Some(permit) => self.send(Outgoing::Response { to, procedure, results, _permit: permit }),
            None => tracing::debug!(peer = %from.peer, "too many results of _MSG procedures: one is dropped"),
        }
    }

    /// Returns the destination and the arguments of GRANTED for a granted request, or `None` if GRANTED is no longer
    /// needed.
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

    /// Ends the sending of GRANTED: the host has taken the lock, or it is released.
    pub(crate) fn end_granted(&self, id: WaiterId, taken: bool) {
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
            // A client that has lost a lock could reclaim it after a restart. The periodic task tries again.
            return;
        }
        while let Some(grant) = table.poll_grant() {
            // Other protocols learn of their grants by `granted`.
            if let Some(blocked) = inner.blocked.remove(&grant.id) {
                let id = grant.id;
                inner.granted.insert(id, Granted { blocked, grant });
                self.send(Outgoing::Granted(id));
            }
        }
    }

    fn send(&self, callback: Outgoing) {
        // This fails only if the receiver has ended, and the server with it.
        let _ = self.outgoing.send(callback);
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
            late.iter().for_each(|&id| hosts.get_mut(id).expect("host must be in the table").may_reclaim = false);
            late.into_iter().filter(without_locks).filter_map(|id| hosts.remove(id)).collect()
        });
        self.core.recovery.end_grace(gone.iter().map(|host| (host.address, &host.name[..])));
    }
}

impl Inner {
    fn intern(&mut self, table: &LockTable<FileId>, from: CallOrigin<'_>) -> Option<HostId> {
        let is_idle = |id, host: &Host| !host.may_reclaim && !table.has_client(LockClient::Nlm(id));
        self.hosts.intern(from.peer.ip(), from.name, is_idle)
    }

    fn release(&mut self, table: &mut LockTable<FileId>, host: HostId) {
        table.release_client(LockClient::Nlm(host));
        self.blocked.retain(|_, blocked| blocked.host != host);
        self.granted.retain(|_, granted| granted.blocked.host != host);
    }

    /// Removes a grant that has not been confirmed. Returns `true` if there was one.
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

/// Returns the monitors whose `mon_id` can be decoded, with the decoded `mon_id`.
fn decoded(monitors: Vec<Monitor>) -> impl Iterator<Item = (Monitor, nsm::MonId)> {
    monitors.into_iter().filter_map(|monitor| {
        let mon_id = Message::from(monitor.mon_id.clone()).decode().ok()?;
        Some((monitor, mon_id))
    })
}

/// Returns the owner of a lock. `svid` distinguishes processes, and `oh` distinguishes other lock owners on the host.
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

/// Returns the NLM name of an owner of any protocol. It is truncated if it is longer than a netobj can be, because a
/// client only displays it.
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
/// Maximum number of hosts that programs of this host can monitor.
const MONITORS_MAX: usize = 1024;
