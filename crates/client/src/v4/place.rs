//! [`Place`]: the server that has an object now, which can be another than the one of its handle after a migration.

use std::sync::Arc;

use nfs::v4::{FHSIZE4, Nfsstat4};

use super::{migration::Peer, protocol::V4, server::Server};
use crate::{
    model::{Attr, Handle, Node, Result, Verifier},
    session::compound::failure,
};

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
    from: Arc<Server>,
    /// The object there.
    handle: Handle,
    peer: Arc<Peer>,
}

impl Place {
    /// Whether the object is at another server than the one of its handle.
    pub fn is_elsewhere(&self) -> bool {
        !self.way.is_empty()
    }

    /// A number that no other server's place has.
    pub fn number(&self) -> u64 {
        self.way.last().map_or(0, |step| step.peer.number)
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
        self.way.last().map_or(count, |step| count.min(step.peer.read_size as u32))
    }

    /// Bytes of a WRITE of so many.
    pub fn write_size(&self, len: usize) -> usize {
        self.way.last().map_or(len, |step| len.min(step.peer.write_size))
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
    /// Where an object is.
    ///
    /// # Errors
    /// It has moved, and is not found again.
    pub(crate) async fn place(&self, object: &Handle) -> Result<Place> {
        let mut place = self.place_now(object);
        loop {
            let fsid = place.v4.server.moves.any().then(|| place.v4.fsid(&place.handle)).flatten();
            let Some(moved) = fsid.and_then(|fsid| place.v4.server.moves.moved(fsid)) else { break };
            // What is rare is not to make every operation's future larger.
            Box::pin(place.v4.bring_one(&moved, &place.handle)).await?;
            place = self.place_now(object);
        }
        if place.handle.len() > FHSIZE4 {
            return Err(failure(Nfsstat4::BadHandle, "PUTFH"));
        }
        Ok(place)
    }

    pub(super) fn fsid(&self, object: &Handle) -> Option<u64> {
        self.server.opens.names.lock().id(object).map(|id| id.fsid)
    }

    /// Where it is as far as that is known.
    pub(crate) fn place_now(&self, object: &Handle) -> Place {
        let mut place = Place { v4: self.clone(), handle: object.clone(), way: Vec::new() };
        while place.v4.server.moves.any() {
            let Some((peer, there)) = place.v4.server.moves.known(&place.handle) else { break };
            let v4 = peer.v4().with_deadline(self.timeout);
            let from = std::mem::replace(&mut place.v4, v4).server;
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
}
