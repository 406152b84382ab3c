//! [`Moves`]: file systems that move to other servers while they are used.
//!
//! Read RFC 8881 §11.10 and §11.11 first (RFC 7530 §8, RFC 7931 for version 4.0). A server answers a request there with `NFS4ERR_MOVED`,
//! or reports that some file system has moved (`SEQ4_STATUS_LEASE_MOVED`, `NFS4ERR_LEASE_MOVED`); `fs_locations` has its
//! new location. The [`Dialer`] mounts that by the same client name, so that the client may reclaim its state. Handles differ
//! there: an object that was found before is found again by its path, and must have the same fileid. A file that was open
//! is opened there, as a reclaim while that server is in grace, and its locks with it; locks that cannot be reclaimed are lost.
//!
//! Callers continue with the handles that they have. Objects that are found there later get handles of which the first bytes, a tag,
//! name the server. The tag is not sent, and nothing is stored for such a handle.
//!
//! **Bounds.** For each file system that has moved, the table holds as many found objects as can have been known of it: more are
//! found only if the former server continues to list objects of a file system that it does not have. The least recently used are
//! evicted then, and found again when they are used; objects that are open or locked are not evicted.
//!
//! **Errors.** Requests wait for one attempt to find the new place, and share its failure; the next request starts another attempt.

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
use tokio::time::timeout_at;

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
    /// At least one has.
    anything: AtomicBool,
    table: Mutex<Table>,
    /// The attempts to find file systems, by fsid.
    attempts: Mutex<HashMap<u64, Attempt>>,
    looking: AtomicBool,
}

/// Connects to the servers to which file systems move. What makes mounts implements it.
pub(crate) trait Dialer: Send + Sync {
    /// Mounts a place by version 4, as a client that is known by this identity.
    fn dial<'a>(&'a self, place: &'a Location, identity: MigrationIdentity) -> BoxFuture<'a, Result<Dialed>>;
}

/// A server to which a file system has moved, connected.
pub(crate) struct Dialed {
    pub v4: V4,
    /// A number that no other mount of the process has.
    pub number: u64,
    /// The root of the file system.
    pub root: Handle,
    /// Bytes of the largest READ.
    pub read_size: usize,
    /// Bytes of the largest WRITE.
    pub write_size: usize,
}

/// The identity by which the client continues at another server.
#[derive(Clone, Debug)]
pub(crate) struct MigrationIdentity {
    /// The client's name at the server before.
    pub owner: ClientOwner4,
    /// Moves that have led to the new server.
    pub moves: u32,
}

/// An attempt to find a file system, which all requests for it share.
type Attempt = future::Shared<BoxFuture<'static, Result<Arc<Moved>>>>;

#[derive(Default)]
struct Table {
    /// By places; two, if two file systems have moved to one at a time.
    servers: Vec<(Bytes, Arc<Peer>)>,
    moved: HashMap<u64, Arc<Moved>>,
    links: Links,
}

/// A server to which something has moved.
pub(crate) struct Peer {
    v4: V4,
    pub number: u64,
    pub read_size: usize,
    pub write_size: usize,
    pub tag: [u8; TAG],
    /// One file at a time is found and handed over.
    bringing: tokio::sync::Mutex<()>,
}

/// A file system that has moved.
pub(crate) struct Moved {
    peer: Arc<Peer>,
    /// Its root there.
    root: Handle,
    /// The path of its root here.
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
    /// Sets the dialer, once, with the number of moves that have led to this server.
    pub fn set_dialer(&self, dialer: Arc<dyn Dialer>, moves: u32) {
        assert!(self.dialer.set((dialer, moves)).is_ok(), "a server has one dialer");
    }

    /// Forgets all that has moved, and returns the servers to which it has.
    pub fn take(&self) -> Vec<V4> {
        let mut table = self.table.lock();
        (table.moved, table.links) = Default::default();
        table.servers.drain(..).map(|(_, peer)| peer.v4.clone()).collect()
    }

    /// Whether anything has moved.
    pub fn any(&self) -> bool {
        self.anything.load(Relaxed)
    }

    /// The object of a handle at the server that it has moved to, as far as that is known.
    pub fn known(&self, handle: &Handle) -> Option<(Arc<Peer>, Handle)> {
        let mut table = self.table.lock();
        if let Some((server, there)) = table.links.there(handle) {
            return Some((table.peer(|peer| peer.number == server)?, there));
        }
        Some((table.peer(|peer| handle.starts_with(&peer.tag))?, handle.0.slice(TAG..).into()))
    }

    pub fn moved(&self, fsid: u64) -> Option<Arc<Moved>> {
        self.table.lock().moved.get(&fsid).cloned()
    }

    /// An object of this server is that one there.
    pub fn link(&self, here: &Handle, peer: &Arc<Peer>, there: &Handle) {
        let mut idle = {
            let mut table = self.table.lock();
            let most = KNOWN_MAX * table.moved.len().max(1);
            table.links.insert(here, (peer.number, there), most)
        };
        if idle.is_empty() {
            return;
        }
        // Without the lock: who has a file's may be about to ask for a name of it here.
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

    /// The handle by which callers know an object of another server.
    pub fn name(&self, peer: &Peer, there: &Handle) -> Handle {
        let here = self.table.lock().links.here(peer.number, there);
        here.unwrap_or_else(|| Bytes::from([&peer.tag[..], there].concat()).into())
    }
}

impl V4 {
    /// An object of this server may have moved: finds it where it is now. Returns whether it has.
    ///
    /// # Errors
    /// It has, and cannot be found.
    pub(super) async fn moved(&self, object: &Handle, deadline: &Deadline) -> Result<bool> {
        let Some(gone) = self.gone(object, deadline).await? else { return Ok(false) };
        let moved =
            timeout_at(deadline.at(), self.attempt(gone)).await.map_err(|_| self.program().late("fs_locations"))??;
        self.bring_one(&moved, object).await?;
        Ok(true)
    }

    /// The attempt to find where a file system has gone: the one that is being made, or another.
    fn attempt(&self, gone: AbsentFs) -> Attempt {
        let fsid = gone.fsid;
        let mut attempts = self.server.moves.attempts.lock();
        if let Some(attempt) = attempts.get(&fsid) {
            return attempt.clone();
        }
        let v4 = self.with_deadline(self.program().timeout());
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
        // It continues if no request waits any more.
        self.server.client.link.runtime.spawn(attempt.clone());
        attempt
    }

    async fn migrate(&self, gone: &AbsentFs) -> Result<Arc<Moved>> {
        tracing::info!(server = %self.program().server(), fsid = gone.fsid, "a file system has moved");
        let mut failures = Vec::new();
        for place in &gone.places {
            match self.settle(gone, place).await {
                Ok(moved) => return Ok(moved),
                Err(error) => failures.push(format!("{place}: {error}")),
            }
        }
        let why = if failures.is_empty() { "it does not say where".to_owned() } else { failures.join("; ") };
        Err(Error::new(ErrorKind::Referral(why), "fs_locations").on(self.program().server()))
    }

    /// Continues with a file system at its new place.
    async fn settle(&self, gone: &AbsentFs, place: &Location) -> Result<Arc<Moved>> {
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
        for file in self.server.opens.all() {
            if self.fsid(&file.handle) == Some(gone.fsid)
                && let Err(error) = self.bring(&moved, &file.handle, &mut unreclaimed).await
            {
                unreclaimed.file(error);
            }
        }
        unreclaimed.report(peer.v4().program().server());
        peer.v4().server.arrived(&moved.root, is_new, &self.deadline()).await;
        moves.table.lock().moved.insert(gone.fsid, moved.clone());
        moves.anything.store(true, Relaxed);
        Ok(moved)
    }

    /// Mounts the place that something has moved to.
    async fn mount_there(&self, place: &Location) -> Result<(Arc<Peer>, Handle)> {
        let (dialer, moves) = self.server.moves.dialer.get().expect("a mount has a dialer");
        if *moves >= MOVES_MAX {
            return Err(Error::new(ErrorKind::Path("too many moves from server to server"), "fs_locations"));
        }
        let identity = MigrationIdentity { owner: self.server.client.owner.clone(), moves: moves + 1 };
        let Dialed { v4, number, root, read_size, write_size } = dialer.dial(place, identity).await?;
        let (tag, bringing) = (entropy::random(), tokio::sync::Mutex::default());
        let peer = Arc::new(Peer { v4, number, read_size, write_size, tag, bringing });
        if let Some(watcher) = self.server.opens.delegations.watcher() {
            let (from, to) = (Arc::downgrade(&self.server), Arc::downgrade(&peer));
            peer.v4.watch(Arc::new(ForwardingWatcher { from, peer: to, watcher }));
        }
        Ok((peer, root))
    }

    pub(super) async fn bring_one(&self, moved: &Moved, object: &Handle) -> Result<()> {
        let mut unreclaimed = Unreclaimed::default();
        let brought = self.bring(moved, object, &mut unreclaimed).await;
        unreclaimed.report(moved.peer.v4().program().server());
        brought
    }

    /// Finds an object where its file system is now, and what is held there goes with it.
    async fn bring(&self, moved: &Moved, object: &Handle, unreclaimed: &mut Unreclaimed) -> Result<()> {
        let (peer, moves) = (&moved.peer, &self.server.moves);
        let _one = peer.bringing.lock().await;
        if moves.known(object).is_some() {
            return Ok(());
        }
        let there = self.find_again(moved, object).await?;
        let file = self.server.opens.known(object);
        // Until the link is there, no request takes the file for one of this server.
        let mut _alone = None;
        if let Some(file) = file {
            // Requests to the former server have ended then.
            _alone = Some(file.changing().await);
            let held = file.take_held(&self.server.opens);
            let at = peer.v4().place_now(&there);
            let (opens, deadline) = (&at.v4.server.opens, &self.deadline());
            opens.file(&at.handle).0.reclaim_held(opens, held, deadline, unreclaimed).await;
        }
        moves.link(object, peer, &there);
        moves.anything.store(true, Relaxed);
        Ok(())
    }

    /// The object there that has the path and the number that this one has had.
    async fn find_again(&self, moved: &Moved, object: &Handle) -> Result<Handle> {
        let (way, id) = {
            let names = self.server.opens.names.lock();
            let id = names.id(object);
            // Others may have renamed what is above that since; and elsewhere file systems need not be below each other as they are here.
            let near = |dir: &Handle| {
                let (peer, there) = self.server.moves.known(dir)?;
                let same = names.id(dir).is_none_or(|of| id.is_some_and(|id| id.fsid == of.fsid));
                (same && Arc::ptr_eq(&peer, &moved.peer)).then_some(there)
            };
            (names.way(object, near), id)
        };
        let astray = |why: String| Error::new(ErrorKind::Moved(why), "LOOKUP").on(moved.peer.v4().program().server());
        let Some((near, path)) = way else {
            return Err(astray("by which path it was found is not known any more".into()));
        };
        let above = if near.is_some() { "" } else { "/" };
        let show = |path: &[Bytes]| format!("{above}{}", path.join(&b'/').escape_ascii());
        let (start, names) = match near {
            Some(near) => (near, &path[..]),
            None => match path.strip_prefix(&moved.path[..]) {
                Some(names) => (moved.root.clone(), names),
                None => return Err(astray(format!("{} is not in {}", show(&path), show(&moved.path)))),
            },
        };
        let Some(Id { fileid, .. }) = id else {
            return Err(astray(format!("{} has no fileid by which to tell whether it is the same", show(&path))));
        };
        let v4 = moved.peer.v4();
        let mut at = Node { handle: start, attr: None };
        for name in names {
            let found = look_up(v4, &at.handle, name).await;
            at = found.map_err(|error| astray(format!("{} is not found: {error}", show(&path))))?;
        }
        let attr = match at.attr {
            Some(attr) => attr,
            None => look_at(v4, &at.handle).await?,
        };
        if attr.fileid != fileid {
            let other = format!("what is at {} is another file: fileid {}, not {fileid}", show(&path), attr.fileid);
            return Err(astray(other));
        }
        Ok(at.handle)
    }
}

impl Server {
    /// The server has said that something has moved away, and not what.
    pub fn look_for_moves(self: &Arc<Self>) -> BoxFuture<'static, ()> {
        let server = self.clone();
        Box::pin(async move {
            if server.moves.looking.swap(true, Relaxed) {
                return;
            }
            let v4 = V4 { timeout: server.client.link.trunk.first().timeout(), server };
            let file_systems = v4.server.opens.names.lock().file_systems();
            for (fsid, object) in file_systems {
                if v4.server.moves.moved(fsid).is_some() {
                    continue;
                }
                // RFC 8881 §18.46.3: the server stops when it has said MOVED, and then where, of all of them.
                let probe = Compound::on("GETATTR", &object).get_attr(attr::WANTED);
                if let Err(error) = v4.server.client.ask(&probe, &v4.deadline()).await {
                    tracing::debug!(%error, "whether a file system is there is not known");
                }
                if let Err(error) = v4.moved(&object, &v4.deadline()).await {
                    tracing::warn!(%error, "a file system that has moved is not found");
                }
            }
            v4.server.moves.looking.store(false, Relaxed);
        })
    }
}

/// Forwards the ends of delegations at the server to which a file system has moved, by the handles that callers know.
#[derive(Debug)]
struct ForwardingWatcher {
    from: Weak<Server>,
    peer: Weak<Peer>,
    watcher: Arc<dyn Watcher>,
}

impl Watcher for ForwardingWatcher {
    fn ends(&self, file: Handle) -> BoxFuture<'static, ()> {
        match (self.from.upgrade(), self.peer.upgrade()) {
            (Some(from), Some(peer)) => self.watcher.ends(from.moves.name(&peer, &file)),
            _ => Box::pin(async {}),
        }
    }
}

/// LOOKUP at a server from which the object can have moved on.
fn look_up<'a>(v4: &'a V4, dir: &'a Handle, name: &'a [u8]) -> BoxFuture<'a, Result<Node>> {
    Box::pin(v4.lookup(dir, name))
}

fn look_at<'a>(v4: &'a V4, object: &'a Handle) -> BoxFuture<'a, Result<Attr>> {
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
/// Moves of one file system; more of them are taken for a loop.
pub(super) const MOVES_MAX: u32 = 32;
