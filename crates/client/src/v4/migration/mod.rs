//! [`Moves`]: file systems that move to other servers while they are used.
//!
//! Read RFC 8881 §11.10 and §11.11 first (RFC 7530 §8, RFC 7931 of version 4.0). The server says so when something there is asked for
//! (`NFS4ERR_MOVED`), or that it has happened somewhere (`SEQ4_STATUS_LEASE_MOVED`, `NFS4ERR_LEASE_MOVED`), and `fs_locations` says
//! where it is now. That place is mounted by the same client name, so that it may reclaim what it had. Handles are not the same
//! there: what was found before is found again by its path, and must have the fileid that it had. What was open is opened there, as
//! a reclaim while that server is in grace, and locks with it; those that cannot be reclaimed are lost.
//!
//! Whoever is above goes on with the handles it has. What is found there after that gets handles of which the first bytes, a tag,
//! say of which server they are: they are never sent with it, and nothing is kept of them.
//!
//! **What is kept.** For each file system that has moved, as many objects that are found again as can have been known of it: more are
//! found only if the former server goes on to show objects of what it has said is not there. Those used least are forgotten
//! then, and found again as before when they are used; what is open or locked is not.
//!
//! **Errors.** Requests wait for one attempt to find the new place, and share its failure; the next one tries again.

use std::{
    collections::HashMap,
    fmt,
    future::Future,
    sync::{
        Arc, OnceLock, Weak,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};

use bytes::Bytes;
use futures_util::future::{self, FutureExt};
use nfs::{
    v3::Nfsstat3,
    v4::{ClientOwner4, FHSIZE4, Nfsstat4},
};
use parking_lot::Mutex;
use rpc::{BoxFuture, Switch};
use tokio::time::timeout_at;

use super::{
    V4, Watcher,
    anywhere::Anywhere,
    attr,
    compound::{Compound, failure},
    links::{Link, Links},
    names::{Id, KNOWN_MAX},
    referral::{Gone, Location},
    shared::Shared,
    unreclaimed::Unreclaimed,
};
use crate::{
    Attr, Error, ErrorKind, Handle, Mount, NfsUrl, Node, Result, Verifier, connect, deadline::Deadline,
    protocol::Operations, referral,
};

/// What has moved away from a server.
#[derive(Default)]
pub(crate) struct Moves {
    origin: OnceLock<Origin>,
    /// Anything has.
    anything: AtomicBool,
    table: Mutex<Table>,
    /// By file system, those that are being looked for.
    attempts: Mutex<HashMap<u64, Attempt>>,
    looking: AtomicBool,
}

/// How the server was mounted.
pub(crate) struct Origin {
    pub url: NfsUrl,
    pub switch: Switch,
    /// Referrals that have led to it.
    pub hops: u32,
    /// Moves that have.
    pub moves: u32,
}

/// Who mounts the place that something has moved to.
#[derive(Clone, Debug)]
pub(crate) struct Heir {
    /// The client as the server before knew it.
    pub owner: ClientOwner4,
    /// Moves that have led there.
    pub moves: u32,
}

/// Looking for a file system, for all who wait for that.
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
    mount: Mount,
    tag: [u8; TAG],
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

/// Where an object is now.
#[derive(Clone)]
pub(crate) struct Place {
    pub v4: V4,
    pub handle: Handle,
    /// How it was come to, from server to server.
    way: Vec<Step>,
}

#[derive(Clone)]
struct Step {
    from: Arc<Shared>,
    /// The object there.
    handle: Handle,
    peer: Arc<Peer>,
}

impl Peer {
    fn v4(&self) -> &V4 {
        self.mount.v4().expect("it was mounted by version 4")
    }

    fn number(&self) -> u64 {
        self.mount.number()
    }
}

impl Table {
    fn peer(&self, is: impl Fn(&Peer) -> bool) -> Option<Arc<Peer>> {
        self.servers.iter().map(|(_, peer)| peer).find(|peer| is(peer)).cloned()
    }
}

impl Moves {
    /// It was mounted so.
    pub fn mounted(&self, origin: Origin) {
        assert!(self.origin.set(origin).is_ok(), "a mount is mounted once");
    }

    /// Forgets all that has moved, and where.
    pub fn take(&self) -> Vec<Mount> {
        let mut table = self.table.lock();
        (table.moved, table.links) = Default::default();
        table.servers.drain(..).map(|(_, peer)| peer.mount.clone()).collect()
    }

    /// Whether anything has moved.
    pub fn any(&self) -> bool {
        self.anything.load(Relaxed)
    }

    /// The object of a handle at the server that it has moved to, as far as that is known.
    fn known(&self, handle: &Handle) -> Option<(Arc<Peer>, Handle)> {
        let mut table = self.table.lock();
        if let Some((server, there)) = table.links.there(handle) {
            return Some((table.peer(|peer| peer.number() == server)?, there));
        }
        Some((table.peer(|peer| handle.starts_with(&peer.tag))?, handle.0.slice(TAG..).into()))
    }

    fn moved(&self, fsid: u64) -> Option<Arc<Moved>> {
        self.table.lock().moved.get(&fsid).cloned()
    }

    /// An object of this server is that one there.
    fn link(&self, here: &Handle, peer: &Arc<Peer>, there: &Handle) {
        let mut idle = {
            let mut table = self.table.lock();
            let most = KNOWN_MAX * table.moved.len().max(1);
            table.links.insert(here, (peer.number(), there), most)
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
        let peer = self.table.lock().peer(|peer| peer.number() == link.server);
        peer.is_some_and(|peer| {
            let at = peer.v4().place_now(&link.handle);
            at.v4.shared.opens.known(&at.handle).is_some()
        })
    }

    /// What this server's users call an object of another.
    fn name(&self, peer: &Peer, there: &Handle) -> Handle {
        let here = self.table.lock().links.here(peer.number(), there);
        here.unwrap_or_else(|| Bytes::from([&peer.tag[..], there].concat()).into())
    }
}

impl Place {
    /// A number that no other server's place has.
    pub fn number(&self) -> u64 {
        self.way.last().map_or(0, |step| step.peer.number())
    }

    /// What the caller calls an object that was found there; with a directory's entry, an object is called as it was before.
    pub fn name(&self, mut there: Handle, entry: Option<(&[u8], Option<&Attr>)>) -> Handle {
        for step in self.way.iter().rev() {
            if let Some((name, Some(attr))) = entry {
                step.recognize(&there, name, attr);
            }
            there = step.from.moves.name(&step.peer, &there);
        }
        there
    }

    /// The same, of what was found or made under a name.
    pub fn node(&self, name: &[u8], node: Node) -> Node {
        if self.way.is_empty() {
            return node;
        }
        Node { handle: self.name(node.handle, Some((name, node.attr.as_ref()))), attr: node.attr }
    }

    /// Bytes of a READ of so many.
    pub fn read_size(&self, count: u32) -> u32 {
        self.way.last().map_or(count, |step| count.min(step.peer.mount.read_size() as u32))
    }

    /// Bytes of a WRITE of so many.
    pub fn write_size(&self, len: usize) -> usize {
        self.way.last().map_or(len, |step| len.min(step.peer.mount.write_size()))
    }

    /// A verifier of one server is none of another's.
    pub fn verifier(&self, mut verf: Verifier) -> Verifier {
        for step in &self.way {
            verf.iter_mut().zip(step.peer.tag).for_each(|(byte, tag)| *byte ^= tag);
        }
        verf
    }
}

impl Step {
    /// An object was found there that may have been found here before under the same name.
    fn recognize(&self, there: &Handle, name: &[u8], attr: &Attr) {
        let before = {
            let names = self.from.opens.names.lock();
            let before = names.at(&self.handle, name);
            before.filter(|before| attr.fileid != 0 && names.id(before).is_some_and(|id| id.fileid == attr.fileid))
        };
        // What is open is handed over first.
        let open = |before: &Handle| self.from.opens.known(before).is_some();
        if let Some(before) = before.filter(|before| !open(before) && self.from.moves.known(before).is_none()) {
            self.from.moves.link(&before, &self.peer, there);
        }
    }
}

impl V4 {
    /// Does something where an object is, wherever that is by now.
    pub(crate) async fn on<T, F: Future<Output = Result<T>> + Send>(
        &self,
        object: &Handle,
        operation: impl Fn(Place) -> F,
    ) -> Result<T> {
        self.on_both("", object, object, |at, _| operation(at)).await
    }

    /// The same, where two objects are.
    ///
    /// # Errors
    /// XDEV: they are on different servers; and those of the operation.
    pub(crate) async fn on_both<T, F: Future<Output = Result<T>> + Send>(
        &self,
        name: &'static str,
        one: &Handle,
        other: &Handle,
        operation: impl Fn(Place, Handle) -> F,
    ) -> Result<T> {
        let deadline = &self.deadline();
        let mut moves = 0;
        loop {
            let at = self.place(one).await?;
            let apart = if std::ptr::eq(one, other) { None } else { Some(self.place(other).await?) };
            let there = apart.as_ref().unwrap_or(&at);
            if !Arc::ptr_eq(&at.v4.shared, &there.v4.shared) {
                return Err(failure(Nfsstat4::XDev, name).on(self.program().server()));
            }
            let error = match operation(at.clone(), there.handle.clone()).await {
                Err(error) if error.status4() == Some(Nfsstat4::Moved) && moves < MOVES_MAX => error,
                result => return result,
            };
            moves += 1;
            // If neither is gone, what has moved is something else: a name stands for another server's file system.
            let gone = Box::pin(at.v4.moved(&at.handle, deadline)).await?
                || (there.handle != at.handle && Box::pin(at.v4.moved(&there.handle, deadline)).await?);
            if !gone {
                return Err(error);
            }
        }
    }

    /// Where an object is.
    ///
    /// # Errors
    /// It has moved, and is not found again.
    pub(crate) async fn place(&self, object: &Handle) -> Result<Place> {
        let mut place = self.place_now(object);
        loop {
            let fsid = place.v4.shared.moves.any().then(|| place.v4.fsid(&place.handle)).flatten();
            let Some(moved) = fsid.and_then(|fsid| place.v4.shared.moves.moved(fsid)) else { break };
            // What is rare is not to make every operation's future larger.
            Box::pin(place.v4.bring_one(&moved, &place.handle)).await?;
            place = self.place_now(object);
        }
        if place.handle.len() > FHSIZE4 {
            return Err(failure(Nfsstat4::BadHandle, "PUTFH"));
        }
        Ok(place)
    }

    fn fsid(&self, object: &Handle) -> Option<u64> {
        self.shared.opens.names.lock().id(object).map(|id| id.fsid)
    }

    /// Where it is as far as that is known.
    pub(crate) fn place_now(&self, object: &Handle) -> Place {
        let mut place = Place { v4: self.clone(), handle: object.clone(), way: Vec::new() };
        while place.v4.shared.moves.any() {
            let Some((peer, there)) = place.v4.shared.moves.known(&place.handle) else { break };
            let v4 = peer.v4().with_deadline(self.timeout);
            let from = std::mem::replace(&mut place.v4, v4).shared;
            let handle = std::mem::replace(&mut place.handle, there);
            place.way.push(Step { from, handle, peer });
        }
        place
    }

    /// An object was renamed, wherever it is: it would not be found by its former name where it was before.
    pub(crate) fn renamed_anywhere(&self, from: (&Handle, &[u8]), to: (&Handle, &[u8])) {
        let (from_dir, to_dir) = (self.place_now(from.0), self.place_now(to.0));
        for (left, entered) in from_dir.way.iter().zip(&to_dir.way) {
            left.from.opens.names.lock().renamed((&left.handle, from.1), (&entered.handle, to.1));
        }
    }

    /// An object of this server may have moved: finds it where it is now. Returns whether it has.
    ///
    /// # Errors
    /// It has, and cannot be found.
    async fn moved(&self, object: &Handle, deadline: &Deadline) -> Result<bool> {
        let Some(gone) = self.gone(object, deadline).await? else { return Ok(false) };
        let moved =
            timeout_at(deadline.at(), self.attempt(gone)).await.map_err(|_| self.program().late("fs_locations"))??;
        self.bring_one(&moved, object).await?;
        Ok(true)
    }

    /// The attempt to find where a file system has gone: the one that is being made, or another.
    fn attempt(&self, gone: Gone) -> Attempt {
        let fsid = gone.fsid;
        let mut attempts = self.shared.moves.attempts.lock();
        if let Some(attempt) = attempts.get(&fsid) {
            return attempt.clone();
        }
        let v4 = self.with_deadline(self.program().timeout());
        let attempt: BoxFuture<'static, _> = Box::pin(async move {
            let found = match v4.shared.moves.moved(fsid) {
                Some(moved) => Ok(moved),
                None => v4.migrate(&gone).await,
            };
            v4.shared.moves.attempts.lock().remove(&fsid);
            found
        });
        let attempt = attempt.shared();
        attempts.insert(fsid, attempt.clone());
        // It goes on though nobody waits any more.
        self.shared.runtime.spawn(attempt.clone());
        attempt
    }

    async fn migrate(&self, gone: &Gone) -> Result<Arc<Moved>> {
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

    /// Goes on with a file system at its new place.
    async fn settle(&self, gone: &Gone, place: &Location) -> Result<Arc<Moved>> {
        let moves = &self.shared.moves;
        let known = moves.table.lock().servers.iter().find(|(server, _)| *server == place.server).cloned();
        let is_new = known.is_none();
        let (peer, root) = match known {
            Some((_, peer)) => {
                let names: Vec<_> = names_of(&place.path).collect();
                let root = peer.v4().root(&names).await?;
                if root.names < names.len() {
                    return Err(Error::new(ErrorKind::Nfs(Nfsstat3::NoEnt), "LOOKUP"));
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
        for file in self.shared.opens.all() {
            if self.fsid(&file.handle) == Some(gone.fsid)
                && let Err(error) = self.bring(&moved, &file.handle, &mut unreclaimed).await
            {
                unreclaimed.file(error);
            }
        }
        unreclaimed.report(peer.v4().program().server());
        peer.v4().shared.arrived(&moved.root, is_new, &self.deadline()).await;
        moves.table.lock().moved.insert(gone.fsid, moved.clone());
        moves.anything.store(true, Relaxed);
        Ok(moved)
    }

    /// Mounts the place that something has moved to.
    async fn mount_there(&self, place: &Location) -> Result<(Arc<Peer>, Handle)> {
        let origin = self.shared.moves.origin.get().expect("it is mounted");
        if origin.moves >= MOVES_MAX {
            return Err(Error::new(ErrorKind::Path("too many moves from server to server"), "fs_locations"));
        }
        let url = referral::url_of(place, &origin.url)?;
        let heir = Heir { owner: self.shared.client.clone(), moves: origin.moves + 1 };
        let mount = connect::mount_as(&url, &origin.switch, origin.hops, Some(heir)).await?;
        let Some(v4) = mount.v4().filter(|_| mount.start().is_empty()) else {
            let problem = "its root is not there, or not by version 4";
            return Err(Error::new(ErrorKind::Protocol(problem.to_owned()), "LOOKUP"));
        };
        let peer =
            Arc::new(Peer { mount: mount.clone(), tag: rand::random(), bringing: tokio::sync::Mutex::default() });
        if let Some(watcher) = self.shared.opens.delegations.watcher() {
            let (from, peer) = (Arc::downgrade(&self.shared), Arc::downgrade(&peer));
            v4.watch(Arc::new(Elsewhere { from, peer, watcher }));
        }
        Ok((peer, mount.root().clone()))
    }

    async fn bring_one(&self, moved: &Moved, object: &Handle) -> Result<()> {
        let mut unreclaimed = Unreclaimed::default();
        let brought = self.bring(moved, object, &mut unreclaimed).await;
        unreclaimed.report(moved.peer.v4().program().server());
        brought
    }

    /// Finds an object where its file system is now, and what is held there goes with it.
    async fn bring(&self, moved: &Moved, object: &Handle, unreclaimed: &mut Unreclaimed) -> Result<()> {
        let (peer, moves) = (&moved.peer, &self.shared.moves);
        let _one = peer.bringing.lock().await;
        if moves.known(object).is_some() {
            return Ok(());
        }
        let there = self.find_again(moved, object).await?;
        if let Some(file) = self.shared.opens.known(object) {
            // What is being asked of the former server has come to its end then.
            let _alone = file.changing().await;
            let left = file.leave(&self.shared);
            let at = peer.v4().place_now(&there);
            at.v4.shared.opens.file(&at.handle).0.arrive(&at.v4.shared, left, &self.deadline(), unreclaimed).await;
        }
        moves.link(object, peer, &there);
        moves.anything.store(true, Relaxed);
        Ok(())
    }

    /// The object there that has the path and the number that this one has had.
    async fn find_again(&self, moved: &Moved, object: &Handle) -> Result<Handle> {
        let (way, id) = {
            let names = self.shared.opens.names.lock();
            let id = names.id(object);
            // Others may have renamed what is above that since; and elsewhere file systems need not be below each other as they are here.
            let near = |dir: &Handle| {
                let (peer, there) = self.shared.moves.known(dir)?;
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

impl Shared {
    /// The server has said that something has moved away, and not what.
    pub fn look_for_moves(self: &Arc<Self>) -> BoxFuture<'static, ()> {
        let shared = self.clone();
        Box::pin(async move {
            if shared.moves.looking.swap(true, Relaxed) {
                return;
            }
            let v4 = V4 { timeout: shared.trunk.first().timeout(), shared };
            let file_systems = v4.shared.opens.names.lock().file_systems();
            for (fsid, object) in file_systems {
                if v4.shared.moves.moved(fsid).is_some() {
                    continue;
                }
                // RFC 8881 §18.46.3: the server stops when it has said MOVED, and then where, of all of them.
                let probe = Compound::on("GETATTR", &object).get_attr(attr::WANTED);
                if let Err(error) = v4.shared.ask(&probe, &v4.deadline()).await {
                    tracing::debug!(%error, "whether a file system is there is not known");
                }
                if let Err(error) = v4.moved(&object, &v4.deadline()).await {
                    tracing::warn!(%error, "a file system that has moved is not found");
                }
            }
            v4.shared.moves.looking.store(false, Relaxed);
        })
    }
}

/// Tells of delegations of the server to which something has moved, by the handles that are known.
#[derive(Debug)]
struct Elsewhere {
    from: Weak<Shared>,
    peer: Weak<Peer>,
    watcher: Arc<dyn Watcher>,
}

impl Watcher for Elsewhere {
    fn ends(&self, file: Handle) -> BoxFuture<'static, ()> {
        match (self.from.upgrade(), self.peer.upgrade()) {
            (Some(from), Some(peer)) => self.watcher.ends(from.moves.name(&peer, &file)),
            _ => Box::pin(async {}),
        }
    }
}

/// LOOKUP of a server from which it can have moved on.
fn look_up<'a>(v4: &'a V4, dir: &'a Handle, name: &'a [u8]) -> BoxFuture<'a, Result<Node>> {
    Box::pin(async move { Anywhere(v4).lookup(dir, name).await })
}

fn look_at<'a>(v4: &'a V4, object: &'a Handle) -> BoxFuture<'a, Result<Attr>> {
    Box::pin(async move { Anywhere(v4).getattr(object).await })
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
        f.debug_struct("Peer").field("url", self.mount.url()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;

const TAG: usize = 16;
/// Moves of one file system; more of them are taken for a circle.
const MOVES_MAX: u32 = 32;
