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

use buf::Rope;
use rdma::{Memory, Stag, WorkRequest};
use rpc::Xid;
use smallvec::SmallVec;

use crate::{
    Registry,
    chunk::{Lists, Segment},
    fit::{Inline, ReadFit},
    header::{Body, Header},
    link::{Link, Name},
    table::{Key, Table},
};

/// The replies of a connection that are to be read, or are being read.
#[derive(Debug)]
pub(crate) struct Exposed {
    /// Waiting for others to be done.
    waiting: VecDeque<Waiting>,
    /// Exposed, until all of their memory has been taken back.
    replies: Table<Reply>,
    /// Those of them whose RDMA_DONE has not come, in the order they were exposed.
    undone: VecDeque<(Xid, Key)>,
    /// Bytes of memory that they expose.
    bytes: usize,
}

/// A reply that waits to be exposed.
#[derive(Debug)]
pub(crate) struct Waiting {
    pub(crate) xid: Xid,
    /// Credits that the call asked for.
    pub(crate) requested: u32,
    pub(crate) granted: u32,
    pub(crate) invalidate: Option<Stag>,
    pub(crate) fit: ReadFit,
}

/// The reply that comes next.
pub(crate) enum Next {
    /// It is to be sent. Its memory has been exposed under the name `exposed`, if there is any.
    Send { data: Rope, invalidate: Option<Stag>, bytes: usize, granted: u32, exposed: Option<Key> },
    /// No more memory can be registered: its call is to be refused.
    Refused { xid: Xid, requested: u32 },
}

#[derive(Debug)]
struct Reply {
    bytes: usize,
    /// Calls that it allows when it is done.
    granted: u32,
    /// Regions that are registered; nothing for one that has been taken back.
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

    /// Queues a reply of which the caller is to read what does not fit inline.
    pub(crate) fn queue(&mut self, reply: Waiting) {
        self.waiting.push_back(reply);
    }

    /// Exposes the next reply that waits, if there is room for it.
    pub(crate) fn next(&mut self, link: &mut Link, registry: &mut dyn Registry) -> Option<Next> {
        let next = self.waiting.front()?;
        let bytes = next.fit.reads.iter().flat_map(|(_, pieces)| pieces).map(|piece| piece.len()).sum::<usize>();
        if self.bytes > 0 && self.bytes + bytes > link.settings.options.exposed_max {
            return None;
        }
        let Waiting { xid, requested, granted, invalidate, fit } = self.waiting.pop_front().expect("just seen");
        let mut lists = Lists::default();
        let mut regions = SmallVec::new();
        for (position, piece) in fit.reads.into_iter().flat_map(|(at, pieces)| pieces.into_iter().map(move |p| (at, p)))
        {
            let Ok(region) = registry.register(Memory::Read(piece)) else {
                tracing::debug!("no more memory can be registered for replies");
                let key = self.insert(bytes, granted, regions);
                self.withdraw(link, key);
                return Some(Next::Refused { xid, requested });
            };
            regions.push(Some(region.stag));
            let segment = Segment { handle: region.stag, length: region.len, offset: region.offset };
            lists.reads.push(position, segment).expect("fit_exposed keeps to the bounds of a list");
        }
        let body = if fit.inline.is_some() { Body::Msg(lists) } else { Body::NoMsg(lists) };
        let header = Header { xid, credits: granted, body };
        let data = fit.inline.unwrap_or_else(Inline::none).behind(&header);
        let bytes_sent = data.len() + bytes;
        let exposed = (!regions.is_empty()).then(|| {
            let key = self.insert(bytes, granted, regions);
            self.undone.push_back((xid, key));
            key
        });
        Some(Next::Send { data, invalidate, bytes: bytes_sent, granted, exposed })
    }

    /// The caller says that it has read the reply with this XID. Returns the credits that its end grants; nothing if no such
    /// reply is exposed.
    pub(crate) fn done(&mut self, link: &mut Link, xid: Xid) -> Option<u32> {
        let index = self.undone.iter().position(|&(undone, _)| undone == xid)?;
        let (_, key) = self.undone.remove(index).expect("just found");
        let granted = self.replies.get(key).expect("an undone reply stands").granted;
        self.withdraw(link, key);
        Some(granted)
    }

    /// Region number `part` of a reply has been invalidated.
    pub(crate) fn withdrawn(&mut self, key: Key, part: usize) {
        let reply = self.replies.get_mut(key).expect("a reply stands until all of its regions are invalidated");
        reply.regions[part].take().expect("each region is invalidated once");
        self.remove_if_withdrawn(key);
    }

    /// The caller has invalidated one of our regions by a Send: it is not to be invalidated again.
    pub(crate) fn invalidated_by_peer(&mut self, stag: Stag) {
        for key in self.replies.keys() {
            let reply = self.replies.get_mut(key).expect("a key just listed");
            // The invalidation of a reply that is done has been posted.
            let found = reply.regions.iter_mut().find(|region| **region == Some(stag));
            if let Some(region) = found.filter(|_| !reply.is_done) {
                return *region = None;
            }
        }
    }

    /// The connection is over: all memory is taken back.
    pub(crate) fn end(&mut self, registry: &mut dyn Registry) {
        for key in self.replies.keys() {
            let reply = self.replies.remove(key).expect("a key just listed");
            for stag in reply.regions.into_iter().flatten() {
                registry.reclaim(stag);
            }
        }
        *self = Self::new();
    }

    fn insert(&mut self, bytes: usize, granted: u32, regions: SmallVec<[Option<Stag>; 2]>) -> Key {
        self.bytes += bytes;
        self.replies.insert(Reply { bytes, granted, regions, is_done: false })
    }

    /// Takes the memory of a reply back.
    fn withdraw(&mut self, link: &mut Link, key: Key) {
        let reply = self.replies.get_mut(key).expect("memory is taken back once");
        reply.is_done = true;
        for (part, &stag) in reply.regions.iter().enumerate() {
            if let Some(stag) = stag {
                link.post(WorkRequest::Invalidate { id: Name::Withdraw(key, part).into(), stag });
            }
        }
        self.remove_if_withdrawn(key);
    }

    fn remove_if_withdrawn(&mut self, key: Key) {
        if self.replies.get(key).is_some_and(|reply| reply.is_done && reply.regions.iter().all(Option::is_none)) {
            self.bytes -= self.replies.remove(key).expect("just seen").bytes;
        }
    }
}
