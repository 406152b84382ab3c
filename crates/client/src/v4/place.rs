//! [`Place`]: the server that has an object now. After a migration, it is not the server that issued the handle.

use std::sync::Arc;

use nfs::v4::{FHSIZE4, Nfsstat4};

use super::{migration::Peer, protocol::V4, server::Server};
use crate::{
    model::{Attr, Handle, Node, Result, Verifier},
    session::compound::failure,
};

/// The server and handle of an object now.
#[derive(Clone)]
pub(crate) struct Place {
    pub v4: V4,
    pub handle: Handle,
    /// The moves from the server that issued the handle to the present one.
    steps: Vec<Step>,
}

#[derive(Clone)]
struct Step {
    from: Arc<Server>,
    /// The handle of the object at `from`.
    handle: Handle,
    peer: Arc<Peer>,
}

impl Place {
    /// Returns `true` if the object has moved from the server that issued its handle.
    pub fn is_elsewhere(&self) -> bool {
        !self.steps.is_empty()
    }

    /// Returns the number of the server, which no other server of the mount has.
    pub fn number(&self) -> u64 {
        self.steps.last().map_or(0, |step| step.peer.number)
    }

    /// Returns the handle by which callers know an object of the server. With the entry of a directory, it is the same
    /// handle as before the move.
    pub fn name(&self, mut there: Handle, entry: Option<(&[u8], Option<&Attr>)>) -> Handle {
        for step in self.steps.iter().rev() {
            if let Some((name, Some(attr))) = entry {
                step.recognize(&there, name, attr);
            }
            there = step.from.moves.name(&step.peer, &there);
        }
        there
    }

    /// Returns an object that was found or created under a name, with the handle by which callers know it.
    pub fn node(&self, name: &[u8], node: Node) -> Node {
        if self.steps.is_empty() {
            return node;
        }
        Node { handle: self.name(node.handle, Some((name, node.attr.as_ref()))), attr: node.attr }
    }

    /// Returns the number of bytes that a READ of `count` bytes may request at this server.
    pub fn read_size(&self, count: u32) -> u32 {
        self.steps.last().map_or(count, |step| count.min(step.peer.read_size as u32))
    }

    /// Returns the number of bytes that a WRITE of `len` bytes may send to this server.
    pub fn write_size(&self, len: usize) -> usize {
        self.steps.last().map_or(len, |step| len.min(step.peer.write_size))
    }

    /// Converts a verifier of this server so that it differs from the verifiers of all other servers.
    pub fn verifier(&self, mut verf: Verifier) -> Verifier {
        for step in &self.steps {
            verf.iter_mut().zip(step.peer.tag).for_each(|(byte, tag)| *byte ^= tag);
        }
        verf
    }
}

impl Step {
    /// Links an object that was found at the new server to the handle under which it was found before by the same name.
    fn recognize(&self, there: &Handle, name: &[u8], attr: &Attr) {
        let before = {
            let names = self.from.opens.names.lock();
            let before = names.object_at(&self.handle, name);
            before.filter(|before| attr.fileid != 0 && names.id(before).is_some_and(|id| id.fileid == attr.fileid))
        };
        // An open file is linked only after its state was handed over.
        let open = |before: &Handle| self.from.opens.known(before).is_some();
        if let Some(before) = before.filter(|before| !open(before) && self.from.moves.known(before).is_none()) {
            self.from.moves.link(&before, &self.peer, there);
        }
    }
}

impl V4 {
    /// Returns the server and handle of an object now.
    ///
    /// # Errors
    /// The object has moved and cannot be found.
    pub(crate) async fn place(&self, object: &Handle) -> Result<Place> {
        let mut place = self.place_now(object);
        loop {
            let fsid = place.v4.server.moves.any().then(|| place.v4.fsid(&place.handle)).flatten();
            let Some(moved) = fsid.and_then(|fsid| place.v4.server.moves.moved(fsid)) else { break };
            // Boxed, so that this rare case does not enlarge the future of every operation.
            Box::pin(place.v4.relocate_one(&moved, &place.handle)).await?;
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

    /// Returns the server and handle of an object, as far as the table of moves has them.
    pub(crate) fn place_now(&self, object: &Handle) -> Place {
        let mut place = Place { v4: self.clone(), handle: object.clone(), steps: Vec::new() };
        while place.v4.server.moves.any() {
            let Some((peer, there)) = place.v4.server.moves.known(&place.handle) else { break };
            let v4 = V4 { server: peer.v4().server.clone(), ..self.clone() };
            let from = std::mem::replace(&mut place.v4, v4).server;
            let handle = std::mem::replace(&mut place.handle, there);
            place.steps.push(Step { from, handle, peer });
        }
        place
    }

    /// Changes the name of a renamed object at all its former servers too, so that it is not looked for under its
    /// former name.
    pub(crate) fn rename_at_former_servers(&self, from: (&Handle, &[u8]), to: (&Handle, &[u8])) {
        let (from_dir, to_dir) = (self.place_now(from.0), self.place_now(to.0));
        for (left, entered) in from_dir.steps.iter().zip(&to_dir.steps) {
            left.from.opens.names.lock().renamed((&left.handle, from.1), (&entered.handle, to.1));
        }
    }
}
