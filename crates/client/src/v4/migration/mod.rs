//! [`Moves`]: file systems that move to other servers while they are used.
//!
//! Read RFC 8881 §11.10 and §11.11 first (RFC 7530 §8, RFC 7931 for NFSv4.0). The former server answers requests with
//! `NFS4ERR_MOVED`, or reports that some file system has moved (`SEQ4_STATUS_LEASE_MOVED`, `NFS4ERR_LEASE_MOVED`).
//! `fs_locations` has the new location. The [`Dialer`] mounts that location with the same client owner, so that the
//! client may reclaim its state. Handles differ at the new server: an object that was found before is looked up again
//! by its path, and must have the same fileid. An open file is opened there, as a reclaim if that server is in its
//! grace period, and its locks are reclaimed. Locks that cannot be reclaimed are lost.
//!
//! Callers continue to use their handles. An object that is first found at the new server gets a handle that begins
//! with a tag, which identifies the server. The tag is not sent, and the table has no entry for such a handle.
//!
//! **Bounds.** For each moved file system, the table has room for all objects that can have been known. More objects
//! are found only if the former server continues to list objects of a file system that it does not have. Then the least
//! recently used entries are evicted, and looked up again when they are used. Objects that are open or locked are not
//! evicted.
//!
//! **Errors.** All requests wait for the same attempt to find the new location, and share its failure. The next request
//! starts another attempt.

use std::{
    fmt,
    sync::{
        Arc, OnceLock, Weak,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};

use bytes::Bytes;
use entropy::HashMap;
use futures_util::future::{self, FutureExt};
use nfs::v4::ClientOwner4;
use parking_lot::Mutex;
use rpc::BoxFuture;
use tokio::{sync::OwnedMutexGuard, time::timeout_at};

use super::{
    attr,
    delegation::Watcher,
    links::{Link, Links},
    location::{AbsentFs, Location},
    names::{Id, KNOWN_MAX},
    protocol::V4,
    server::Server,
    unreclaimed::Unreclaimed,
};
use crate::{
    call::Deadline,
    model::{Attr, Error, ErrorKind, Handle, Node, Operations, Result, Status},
    session::compound::Compound,
};

/// The file systems that have moved away from a server.
#[derive(Default)]
pub(crate) struct Moves {
    /// The dialer, and the number of moves that have led to this server.
    dialer: OnceLock<(Arc<dyn Dialer>, u32)>,
    /// Set if at least one file system has moved.
    anything: AtomicBool,
    table: Mutex<Table>,
    /// The attempts to find file systems, by fsid.
    attempts: Mutex<HashMap<u64, Attempt>>,
    looking: AtomicBool,
}

/// Connects to the servers to which file systems move. The module that makes mounts implements it.
pub(crate) trait Dialer: Send + Sync {
    /// Mounts a location over NFSv4, as the client with this identity.
    fn dial<'a>(&'a self, place: &'a Location, identity: MigrationIdentity) -> BoxFuture<'a, Result<Dialed>>;
}

/// A connection to a server to which a file system has moved.
pub(crate) struct Dialed {
    pub v4: V4,
    /// A number that no other mount of the process has.
    pub number: u64,
    /// The root of the file system.
    pub root: Handle,
    /// Maximum bytes of a READ.
    pub read_size: usize,
    /// Maximum bytes of a WRITE.
    pub write_size: usize,
}

/// The identity with which the client continues at another server.
#[derive(Clone, Debug)]
pub(crate) struct MigrationIdentity {
    /// The client owner at the former server.
    pub owner: ClientOwner4,
    /// The number of moves that have led to the new server.
    pub moves: u32,
}

/// An attempt to find a file system, which all requests for it share.
type Attempt = future::Shared<BoxFuture<'static, Result<Arc<Moved>>>>;

#[derive(Default)]
struct Table {
    /// The servers by the names in their locations. A server can be here twice if two file systems have moved to it at
    /// the same time.
    servers: Vec<(Bytes, Arc<Peer>)>,
    moved: HashMap<u64, Arc<Moved>>,
    links: Links,
}

/// A server to which a file system has moved.
pub(crate) struct Peer {
    v4: V4,
    pub number: u64,
    pub read_size: usize,
    pub write_size: usize,
    pub tag: [u8; TAG],
    /// Serializes the relocation of objects to this server.
    relocating: tokio::sync::Mutex<()>,
}

/// An object that was found at its new server.
struct Relocated {
    there: Handle,
    /// Excludes opens, closes and changes of locks at the former server until the table has the object.
    _changes: Option<OwnedMutexGuard<()>>,
}

/// A file system that has moved.
pub(crate) struct Moved {
    peer: Arc<Peer>,
    /// The root of the file system at the new server.
    root: Handle,
    /// The path of the root at the former server.
    path: Vec<Bytes>,
}

impl Peer {
    pub fn v4(&self) -> &V4 {
        &self.v4
    }
}

impl Table {
    fn peer(&self, is: impl Fn(&Peer) -> bool) -> Option<Arc<Peer>> {
        self.servers.iter().map(|(_, peer)| peer).find(|peer| is(peer)).cloned()
    }
}

impl Moves {
    /// Sets the dialer and the number of moves that have led to this server. It can be set once.
    pub fn set_dialer(&self, dialer: Arc<dyn Dialer>, moves: u32) {
        assert!(self.dialer.set((dialer, moves)).is_ok(), "the dialer of a server must be set only once");
    }

    /// Clears the table, and returns the servers to which file systems have moved.
    pub fn take(&self) -> Vec<V4> {
        let mut table = self.table.lock();
        (table.moved, table.links) = Default::default();
        table.servers.drain(..).map(|(_, peer)| peer.v4.clone()).collect()
    }

    /// Returns `true` if any file system has moved.
    pub fn any(&self) -> bool {
        self.anything.load(Relaxed)
    }

    /// Returns the server to which an object has moved and its handle there, if the table has them.
    pub fn known(&self, handle: &Handle) -> Option<(Arc<Peer>, Handle)> {
        let mut table = self.table.lock();
        if let Some((server, there)) = table.links.remote(handle) {
            return Some((table.peer(|peer| peer.number == server)?, there));
        }
        Some((table.peer(|peer| handle.starts_with(&peer.tag))?, handle.0.slice(TAG..).into()))
    }

    pub fn moved(&self, fsid: u64) -> Option<Arc<Moved>> {
        self.table.lock().moved.get(&fsid).cloned()
    }

    /// Adds an object: its handle here, and its server and handle there.
    pub fn link(&self, here: &Handle, peer: &Arc<Peer>, there: &Handle) {
        let mut idle = {
            let mut table = self.table.lock();
            let most = KNOWN_MAX * table.moved.len().max(1);
            table.links.insert(here, (peer.number, there), most)
        };
        if idle.is_empty() {
            return;
        }
        // The table is not locked here, because a task that holds the lock of a file may wait for the table.
        let before = idle.len();
        idle.retain(|(_, link)| !self.is_open(link));
        self.table.lock().links.forget(&idle, before - idle.len());
    }

    fn is_open(&self, link: &Link) -> bool {
        let peer = self.table.lock().peer(|peer| peer.number == link.server);
        peer.is_some_and(|peer| {
            let at = peer.v4().place_now(&link.handle);
            at.v4.server.opens.known(&at.handle).is_some()
        })
    }

    /// Returns the handle by which callers know an object of another server.
    pub fn name(&self, peer: &Peer, there: &Handle) -> Handle {
        let here = self.table.lock().links.local(peer.number, there);
        here.unwrap_or_else(|| Bytes::from([&peer.tag[..], there].concat()).into())
    }
}

impl V4 {
    /// Finds an object that may have moved at its new server. Returns `true` if it has moved.
    ///
    /// # Errors
    /// The object has moved and cannot be found.
    pub(super) async fn moved(&self, object: &Handle, deadline: &Deadline) -> Result<bool> {
        let Some(gone) = self.absent_fs(object, deadline).await? else { return Ok(false) };
        let moved = timeout_at(deadline.at(), self.attempt(gone))
            .await
            .map_err(|_| self.program().timeout_error("fs_locations"))??;
        self.relocate_one(&moved, object).await?;
        Ok(true)
    }

    /// Returns the attempt to find a file system: the outstanding one, or a new one.
    fn attempt(&self, gone: AbsentFs) -> Attempt {
        let fsid = gone.fsid;
        let mut attempts = self.server.moves.attempts.lock();
        if let Some(attempt) = attempts.get(&fsid) {
            return attempt.clone();
        }
        let v4 = self.with_deadline(self.program().timeout()).with_caller(None);
        let attempt: BoxFuture<'static, _> = Box::pin(async move {
            let found = match v4.server.moves.moved(fsid) {
                Some(moved) => Ok(moved),
                None => v4.migrate(&gone).await,
            };
            v4.server.moves.attempts.lock().remove(&fsid);
            found
        });
        let attempt = attempt.shared();
        attempts.insert(fsid, attempt.clone());
        // The task continues even if no request waits any more.
        self.server.client.link.runtime.spawn(attempt.clone());
        attempt
    }

    async fn migrate(&self, gone: &AbsentFs) -> Result<Arc<Moved>> {
        tracing::info!(server = %self.program().server(), fsid = gone.fsid, "a file system has moved");
        let mut failures = Vec::new();
        for place in &gone.places {
            match self.migrate_to(gone, place).await {
                Ok(moved) => return Ok(moved),
                Err(error) => failures.push(format!("{place}: {error}")),
            }
        }
        let why = if failures.is_empty() { "the server lists no location".to_owned() } else { failures.join("; ") };
        Err(Error::new(ErrorKind::Referral(why), "fs_locations").on(self.program().server()))
    }

    /// Continues with a file system at a new location.
    async fn migrate_to(&self, gone: &AbsentFs, place: &Location) -> Result<Arc<Moved>> {
        let moves = &self.server.moves;
        let known = moves.table.lock().servers.iter().find(|(server, _)| *server == place.server).cloned();
        let is_new = known.is_none();
        let (peer, root) = match known {
            Some((_, peer)) => {
                let names: Vec<_> = names_of(&place.path).collect();
                let root = peer.v4().root(&names).await?;
                if root.names < names.len() {
                    return Err(Error::refused(Status::NotFound, "LOOKUP"));
                }
                (peer, root.handle)
            }
            None => self.mount_there(place).await?,
        };
        let moved = Arc::new(Moved { peer: peer.clone(), root, path: gone.root.clone() });
        if is_new {
            moves.table.lock().servers.push((place.server.clone(), peer.clone()));
        }
        let mut unreclaimed = Unreclaimed::default();
        let mut relocated = Vec::new();
        let _one = peer.relocating.lock().await;
        for file in self.server.opens.all().into_iter().filter(|file| self.fsid(&file.handle) == Some(gone.fsid)) {
            match self.relocate(&moved, &file.handle, (true, &mut unreclaimed)).await {
                Ok(found) => relocated.extend(found.map(|found| (file, found))),
                Err(error) => unreclaimed.file(error),
            }
        }
        unreclaimed.report(peer.v4().program().server());
        //= rfc8881-18.51.3-2
        peer.v4().server.complete_arrival(&moved.root, is_new, &self.deadline()).await;
        // Requests go to the new server only now, because they could open files and lock bytes there.
        for (file, found) in relocated {
            moves.link(&file.handle, &peer, &found.there);
        }
        moves.table.lock().moved.insert(gone.fsid, moved.clone());
        moves.anything.store(true, Relaxed);
        Ok(moved)
    }

    /// Mounts the location to which a file system has moved.
    async fn mount_there(&self, place: &Location) -> Result<(Arc<Peer>, Handle)> {
        let Some((dialer, moves)) = self.server.moves.dialer.get() else {
            // A layout names the data server of an object, and the metadata server makes another layout when that has changed.
            return Err(Error::new(ErrorKind::Moved("data servers are not followed".to_owned()), "fs_locations"));
        };
        if *moves >= MOVES_MAX {
            return Err(Error::new(ErrorKind::Path("too many moves from server to server"), "fs_locations"));
        }
        let identity = MigrationIdentity { owner: self.server.client.owner.clone(), moves: moves + 1 };
        let Dialed { v4, number, root, read_size, write_size } = dialer.dial(place, identity).await?;
        let (tag, relocating) = (entropy::random(), tokio::sync::Mutex::default());
        let peer = Arc::new(Peer { v4, number, read_size, write_size, tag, relocating });
        if let Some(watcher) = self.server.opens.delegations.watcher() {
            let (from, to) = (Arc::downgrade(&self.server), Arc::downgrade(&peer));
            peer.v4.watch(Arc::new(ForwardingWatcher { from, peer: to, watcher }));
        }
        Ok((peer, root))
    }

    pub(super) async fn relocate_one(&self, moved: &Moved, object: &Handle) -> Result<()> {
        let (peer, moves) = (&moved.peer, &self.server.moves);
        let mut unreclaimed = Unreclaimed::default();
        let _one = peer.relocating.lock().await;
        // All state of the file system that could be reclaimed has been reclaimed.
        let relocated = self.relocate(moved, object, (false, &mut unreclaimed)).await;
        unreclaimed.report(peer.v4().program().server());
        if let Some(found) = relocated? {
            moves.link(object, peer, &found.there);
            moves.anything.store(true, Relaxed);
        }
        Ok(())
    }

    /// Finds an object at its new server, unless the table has it already. If the server allows this client to reclaim
    /// state, reclaims the open and the locks of the object there. Otherwise they are lost.
    async fn relocate(
        &self,
        moved: &Moved,
        object: &Handle,
        (may_reclaim, unreclaimed): (bool, &mut Unreclaimed),
    ) -> Result<Option<Relocated>> {
        let peer = &moved.peer;
        if self.server.moves.known(object).is_some() {
            return Ok(None);
        }
        let there = self.find_by_path(moved, object).await?;
        let Some(file) = self.server.opens.known(object) else {
            return Ok(Some(Relocated { there, _changes: None }));
        };
        // The outstanding requests to the former server have ended when the lock is granted.
        let changes = file.lock_changes().await;
        let mut held = file.take_held(&self.server.opens);
        let at = peer.v4().place_now(&there);
        // If the file system has moved further, RECLAIM_COMPLETE was sent when that was found.
        //= rfc8881-18.51.3-3
        if !may_reclaim || at.is_elsewhere() {
            held.lose(unreclaimed);
        }
        let (opens, deadline) = (&at.v4.server.opens, &self.deadline());
        opens.file(&at.handle).0.reclaim_held(opens, held, deadline, unreclaimed).await;
        Ok(Some(Relocated { there, _changes: Some(changes) }))
    }

    /// Returns the handle of the object at the new server that has the same path and the same fileid.
    async fn find_by_path(&self, moved: &Moved, object: &Handle) -> Result<Handle> {
        let (path_to, id) = {
            let names = self.server.opens.names.lock();
            let id = names.id(object);
            // Other clients may have renamed the directories above. At the new server, file systems may be nested in
            // another way.
            let near = |dir: &Handle| {
                let (peer, there) = self.server.moves.known(dir)?;
                let same = names.id(dir).is_none_or(|of| id.is_some_and(|id| id.fsid == of.fsid));
                (same && Arc::ptr_eq(&peer, &moved.peer)).then_some(there)
            };
            (names.path_to(object, near), id)
        };
        let not_found =
            |why: String| Error::new(ErrorKind::Moved(why), "LOOKUP").on(moved.peer.v4().program().server());
        let Some((near, path)) = path_to else {
            return Err(not_found("the path of the object is unknown".into()));
        };
        let above = if near.is_some() { "" } else { "/" };
        let show = |path: &[Bytes]| format!("{above}{}", path.join(&b'/').escape_ascii());
        let (start, names) = match near {
            Some(near) => (near, &path[..]),
            None => match path.strip_prefix(&moved.path[..]) {
                Some(names) => (moved.root.clone(), names),
                None => return Err(not_found(format!("{} is not in {}", show(&path), show(&moved.path)))),
            },
        };
        let Some(Id { fileid, .. }) = id else {
            return Err(not_found(format!("{} has no fileid to compare", show(&path))));
        };
        let v4 = moved.peer.v4();
        let mut at = Node { handle: start, attr: None };
        for name in names {
            let found = lookup_boxed(v4, &at.handle, name).await;
            at = found.map_err(|error| not_found(format!("{} is not found: {error}", show(&path))))?;
        }
        let attr = match at.attr {
            Some(attr) => attr,
            None => getattr_boxed(v4, &at.handle).await?,
        };
        if attr.fileid != fileid {
            let other = format!("{} is another file there: its fileid is {}, not {fileid}", show(&path), attr.fileid);
            return Err(not_found(other));
        }
        Ok(at.handle)
    }
}

impl Server {
    /// Finds out which file systems have moved, after the server has reported that some have.
    pub fn find_moved_file_systems(self: &Arc<Self>) -> BoxFuture<'static, ()> {
        let server = self.clone();
        Box::pin(async move {
            if server.moves.looking.swap(true, Relaxed) {
                return;
            }
            let v4 = V4 { timeout: server.client.link.trunk.first().timeout(), server, caller: None, stateid: None };
            let file_systems = v4.server.opens.names.lock().file_systems();
            for (fsid, object) in file_systems {
                if v4.server.moves.moved(fsid).is_some() {
                    continue;
                }
                // RFC 8881 §18.46.3: the server resets the flag when it has returned MOVED and then the locations for
                // all of them.
                let probe = Compound::on("GETATTR", &object).get_attr(&attr::WANTED);
                if let Err(error) = v4.server.client.run_once(&probe, &v4.deadline()).await {
                    tracing::debug!(%error, "probing for a moved file system failed");
                }
                if let Err(error) = v4.moved(&object, &v4.deadline()).await {
                    tracing::warn!(%error, "finding a moved file system failed");
                }
            }
            v4.server.moves.looking.store(false, Relaxed);
        })
    }
}

/// Notifies the watcher of the ends of delegations at the new server, with the handles that callers know.
#[derive(Debug)]
struct ForwardingWatcher {
    from: Weak<Server>,
    peer: Weak<Peer>,
    watcher: Arc<dyn Watcher>,
}

impl Watcher for ForwardingWatcher {
    fn drop_cache(&self, file: Handle) -> BoxFuture<'static, ()> {
        match (self.from.upgrade(), self.peer.upgrade()) {
            (Some(from), Some(peer)) => self.watcher.drop_cache(from.moves.name(&peer, &file)),
            _ => Box::pin(async {}),
        }
    }
}

/// Sends LOOKUP to a server. Boxed, because the object can have moved further, which makes this recursive.
fn lookup_boxed<'a>(v4: &'a V4, dir: &'a Handle, name: &'a [u8]) -> BoxFuture<'a, Result<Node>> {
    Box::pin(v4.lookup(dir, name))
}

fn getattr_boxed<'a>(v4: &'a V4, object: &'a Handle) -> BoxFuture<'a, Result<Attr>> {
    Box::pin(v4.getattr(object))
}

fn names_of(path: &Bytes) -> impl Iterator<Item = Bytes> {
    path.split(|&byte| byte == b'/').filter(|name| !name.is_empty()).map(Bytes::copy_from_slice)
}

impl fmt::Debug for Moves {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let table = self.table.lock();
        f.debug_struct("Moves").field("moved", &table.moved.keys()).finish_non_exhaustive()
    }
}

impl fmt::Debug for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Peer").field("server", self.v4.program().server()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;

const TAG: usize = 16;
/// Maximum number of moves of one file system. More moves are taken for a loop.
pub(super) const MOVES_MAX: u32 = 32;
