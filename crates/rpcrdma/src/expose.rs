//! Replies that the caller reads from our memory: the responder's side of the Read-Read design.
//!
//! For comparison only. Read RFC 5666, which RFC 8166 replaces (its XDR: "RDMA_DONE: Client signals reply completion"; in
//! RFC 8166 §4.1.2: "Not to be used"). What does not fit inline is registered for the caller to read and told in the read
//! list of the reply; RDMA_DONE ends that.
//!
//! Why nobody does this any more: our memory is advertised, and how long a reply's memory stays out is up to the
//! caller. So a caller's credits and [`Options::exposed_max`](crate::Options::exposed_max) bound what is out at once: a
//! call keeps its credit until RDMA_DONE, and replies beyond the bytes wait for others to be done.
//!
//! Buffers: the queue pair keeps a reply's memory until its invalidation completes. On error: a caller that says
//! RDMA_DONE for what is not exposed, or none until the timeout, is disconnected. Its connection could not be kept: the
//! memory must be taken back, and a read of it afterwards ends the connection anyhow, only with less explanation.

use std::collections::VecDeque;

use rdma::{Memory, Stag, WorkRequest};
use rpc::{TransportError, Xid};
use smallvec::SmallVec;
use xdr::Message;

use crate::{
    Connection, Registry,
    chunk::{Lists, Segment},
    connection::Name,
    fit::{Inline, ReadFit, fit_exposed},
    header::{Body, Header},
    recv::Incoming,
    table::{Key, Table},
};

/// The replies of a connection that are to be read, or are being read.
#[derive(Debug)]
pub(crate) struct Exposed {
    /// Waiting for others to be done.
    waiting: VecDeque<Waiting>,
    /// Exposed, until the last of their memory has come home.
    replies: Table<Reply>,
    /// Those of them whose RDMA_DONE has not come, in the order they were exposed.
    undone: VecDeque<(Xid, Key)>,
    /// What they hold.
    bytes: usize,
}

#[derive(Debug)]
struct Waiting {
    xid: Xid,
    requested: u32,
    granted: u32,
    invalidate: Option<Stag>,
    fit: ReadFit,
}

#[derive(Debug)]
struct Reply {
    bytes: usize,
    /// Calls that it allows when it is done.
    granted: u32,
    /// Those that are registered; nothing for one that has come home.
    regions: SmallVec<[Option<Stag>; 2]>,
    is_done: bool,
}

impl Exposed {
    pub(crate) fn new() -> Self {
        Self { waiting: VecDeque::new(), replies: Table::new(), undone: VecDeque::new(), bytes: 0 }
    }

    /// Whether this reply waits for its RDMA_DONE.
    pub(crate) fn is_undone(&self, key: Key) -> bool {
        self.replies.get(key).is_some_and(|reply| !reply.is_done)
    }

    fn insert(&mut self, bytes: usize, granted: u32, regions: SmallVec<[Option<Stag>; 2]>) -> Key {
        self.bytes += bytes;
        self.replies.insert(Reply { bytes, granted, regions, is_done: false })
    }

    fn remove_if_home(&mut self, key: Key) {
        if self.replies.get(key).is_some_and(|reply| reply.is_done && reply.regions.iter().all(Option::is_none)) {
            self.bytes -= self.replies.remove(key).expect("just seen").bytes;
        }
    }
}

impl Connection {
    /// Queues a reply of which the caller is to read what does not fit inline.
    ///
    /// # Errors
    /// It cannot travel; the caller has been told.
    pub(crate) fn queue_exposed_reply(
        &mut self,
        incoming: &Incoming,
        granted: u32,
        message: Message,
    ) -> Result<(), TransportError> {
        let fit = match fit_exposed(message, &self.settings, &self.pool) {
            Ok(fit) => fit,
            Err(error) => {
                self.send_chunk_error(incoming.xid, incoming.credits);
                return Err(error);
            }
        };
        let (xid, requested) = (incoming.xid, incoming.credits);
        let invalidate = incoming.lists.handle().filter(|_| self.settings.invalidate_peer);
        self.exposed.waiting.push_back(Waiting { xid, requested, granted, invalidate, fit });
        Ok(())
    }

    /// Exposes and sends the next reply that waits, if there is room for it. Whether there may be more.
    pub(crate) fn send_exposed_reply(&mut self, registry: &mut dyn Registry) -> bool {
        let Some(next) = self.exposed.waiting.front() else { return false };
        let bytes = next.fit.reads.iter().flat_map(|(_, pieces)| pieces).map(|piece| piece.len()).sum::<usize>();
        if self.exposed.bytes > 0 && self.exposed.bytes + bytes > self.settings.options.exposed_max {
            return false;
        }
        let Waiting { xid, requested, granted, invalidate, fit } = self.exposed.waiting.pop_front().expect("just seen");
        let mut lists = Lists::default();
        let mut regions = SmallVec::new();
        for (position, piece) in fit.reads.into_iter().flat_map(|(at, pieces)| pieces.into_iter().map(move |p| (at, p)))
        {
            let Ok(region) = registry.register(Memory::Read(piece)) else {
                tracing::debug!("no more memory can be registered for replies");
                let key = self.exposed.insert(bytes, granted, regions);
                self.withdraw(key);
                self.send_chunk_error(xid, requested);
                return true;
            };
            regions.push(Some(region.stag));
            let segment = Segment { handle: region.stag, length: region.len, offset: region.offset };
            lists.reads.push(position, segment).expect("fit_exposed keeps to the bounds of a list");
        }
        let body = if fit.inline.is_some() { Body::Msg(lists) } else { Body::NoMsg(lists) };
        let header = Header { xid, credits: granted, body };
        let data = fit.inline.unwrap_or_else(Inline::none).behind(&header);
        let len = data.len() + bytes;
        let exposed = if regions.is_empty() {
            self.grants.reply(granted);
            None
        } else {
            let key = self.exposed.insert(bytes, granted, regions);
            self.exposed.undone.push_back((xid, key));
            Some(key)
        };
        self.post_reply(data, invalidate, len, exposed);
        true
    }

    /// The caller says that it has read the reply with this XID.
    pub(crate) fn handle_done(&mut self, xid: Xid) {
        if !self.settings.exposes_replies() {
            return; // RFC 8166 §4.6.2: ignored.
        }
        let Some(index) = self.exposed.undone.iter().position(|&(undone, _)| undone == xid) else {
            return self.fail_protocol("RDMA_DONE for a reply that is not exposed");
        };
        let (_, key) = self.exposed.undone.remove(index).expect("just found");
        // Only now may another call come in the place of this one.
        self.grants.reply(self.exposed.replies.get(key).expect("an undone reply stands").granted);
        self.withdraw(key);
    }

    /// Memory of a reply has come home.
    pub(crate) fn handle_withdrawn(&mut self, key: Key, part: usize) {
        let reply = self.exposed.replies.get_mut(key).expect("a reply stands until all of it is home");
        reply.regions[part].take().expect("each region comes home once");
        self.exposed.remove_if_home(key);
    }

    /// The caller has invalidated one of our regions by a Send: it is not to be invalidated again.
    pub(crate) fn handle_exposed_invalidation(&mut self, stag: Stag) {
        for key in self.exposed.replies.keys() {
            let reply = self.exposed.replies.get_mut(key).expect("a key just listed");
            // Of a reply that is done, the invalidation is on its way.
            let found = reply.regions.iter_mut().find(|region| **region == Some(stag));
            if let Some(region) = found.filter(|_| !reply.is_done) {
                return *region = None;
            }
        }
    }

    /// The connection is over: all memory comes back.
    pub(crate) fn end_exposed(&mut self, registry: &mut dyn Registry) {
        for key in self.exposed.replies.keys() {
            let reply = self.exposed.replies.remove(key).expect("a key just listed");
            for stag in reply.regions.into_iter().flatten() {
                registry.reclaim(stag);
            }
        }
        self.exposed = Exposed::new();
    }

    /// Takes the memory of a reply back.
    fn withdraw(&mut self, key: Key) {
        let reply = self.exposed.replies.get_mut(key).expect("memory is taken back once");
        reply.is_done = true;
        let regions = reply.regions.clone();
        for (part, stag) in regions.into_iter().enumerate() {
            if let Some(stag) = stag {
                self.post(WorkRequest::Invalidate { id: Name::Withdraw(key, part).into(), stag });
            }
        }
        self.exposed.remove_if_home(key);
    }
}
