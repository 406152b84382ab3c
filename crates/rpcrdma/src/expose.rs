//! Replies that the caller reads from this side's memory: the responder's side of the Read-Read design.
//!
//! For comparison only. Read RFC 5666, which RFC 8166 replaces (its XDR: "RDMA_DONE: Client signals reply completion";
//! in RFC 8166 §4.1.2: "Not to be used"). The parts of a reply that do not fit inline are registered for the caller and
//! listed in the read list of the reply. RDMA_DONE ends their exposure.
//!
//! This design was abandoned because it advertises the server's memory, and because the caller decides how long a
//! reply's memory stays exposed. So a caller's credits and [`Options::exposed_max`](crate::Options::exposed_max) limit
//! the exposed memory: a call keeps its credit until RDMA_DONE, and replies above the limit in bytes wait for others to
//! be done.
//!
//! Buffers: the queue pair keeps a reply's memory until its invalidation completes. On error: a caller that sends
//! RDMA_DONE for a reply that is not exposed, or does not send it before the timeout, is disconnected. The connection
//! cannot be kept: the memory must be invalidated, and a later read of it closes the connection anyway, with a less
//! specific error.

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

/// The replies of a connection that the caller will read, or reads now.
#[derive(Debug)]
pub(crate) struct Exposed {
    /// Replies that wait for others to be done.
    waiting: VecDeque<Waiting>,
    /// Exposed replies, until all of their memory has been invalidated.
    replies: Table<Reply>,
    /// Exposed replies without RDMA_DONE, in the order of their exposure.
    awaiting_done: VecDeque<(Xid, Key)>,
    /// Total bytes of exposed memory.
    bytes: usize,
}

/// A reply that waits for its exposure.
#[derive(Debug)]
pub(crate) struct Waiting {
    pub(crate) xid: Xid,
    /// The number of credits that the call requested.
    pub(crate) requested: u32,
    pub(crate) granted: u32,
    pub(crate) invalidate: Option<Stag>,
    pub(crate) fit: ReadFit,
}

/// The next reply.
pub(crate) enum Next {
    /// The reply must be sent. If memory was exposed for it, `exposed` is its key.
    Send { data: Rope, invalidate: Option<Stag>, bytes: usize, granted: u32, exposed: Option<Key> },
    /// No more memory can be registered, so the call must be rejected.
    Refused { xid: Xid, requested: u32 },
}

#[derive(Debug)]
struct Reply {
    bytes: usize,
    /// The number of credits that the reply grants when it is done.
    granted: u32,
    /// The registered regions; `None` for a region that has been invalidated.
    regions: SmallVec<[Option<Stag>; 2]>,
    is_done: bool,
}

impl Exposed {
    pub(crate) fn new() -> Self {
        Self { waiting: VecDeque::new(), replies: Table::new(), awaiting_done: VecDeque::new(), bytes: 0 }
    }

    /// Returns `true` if this reply waits for its RDMA_DONE.
    pub(crate) fn awaits_done(&self, key: Key) -> bool {
        self.replies.get(key).is_some_and(|reply| !reply.is_done)
    }

    /// Queues a reply whose large parts the caller will read.
    pub(crate) fn queue(&mut self, reply: Waiting) {
        self.waiting.push_back(reply);
    }

    /// Exposes the next waiting reply if there is room for it.
    pub(crate) fn next(&mut self, link: &mut Link, registry: &mut dyn Registry) -> Option<Next> {
        let next = self.waiting.front()?;
        let bytes = next.fit.reads.iter().flat_map(|(_, pieces)| pieces).map(|piece| piece.len()).sum::<usize>();
        if self.bytes > 0 && self.bytes + bytes > link.settings.options.exposed_max {
            return None;
        }
        let Waiting { xid, requested, granted, invalidate, fit } =
            self.waiting.pop_front().expect("the front element exists");
        let mut lists = Lists::default();
        let mut regions = SmallVec::new();
        for (position, piece) in fit.reads.into_iter().flat_map(|(at, pieces)| pieces.into_iter().map(move |p| (at, p)))
        {
            let Ok(region) = registry.register(Memory::Read(piece)) else {
                tracing::debug!("no more memory can be registered for replies");
                let key = self.insert(bytes, granted, regions);
                self.invalidate(link, key);
                return Some(Next::Refused { xid, requested });
            };
            regions.push(Some(region.stag));
            let segment = Segment { handle: region.stag, length: region.len, offset: region.offset };
            lists.reads.push(position, segment).expect("fit_exposed must respect the limits of a list");
        }
        let body = if fit.inline.is_some() { Body::Msg(lists) } else { Body::NoMsg(lists) };
        let header = Header { xid, credits: granted, body };
        let data = fit.inline.unwrap_or_else(Inline::none).after_header(&header);
        let bytes_sent = data.len() + bytes;
        let exposed = (!regions.is_empty()).then(|| {
            let key = self.insert(bytes, granted, regions);
            self.awaiting_done.push_back((xid, key));
            key
        });
        Some(Next::Send { data, invalidate, bytes: bytes_sent, granted, exposed })
    }

    /// Handles RDMA_DONE for the reply with this XID. Returns the number of credits that it grants, or `None` if no
    /// such reply is exposed.
    pub(crate) fn done(&mut self, link: &mut Link, xid: Xid) -> Option<u32> {
        let index = self.awaiting_done.iter().position(|&(awaiting_done, _)| awaiting_done == xid)?;
        let (_, key) = self.awaiting_done.remove(index).expect("the index was just found");
        let granted = self.replies.get(key).expect("a reply without RDMA_DONE must be in the table").granted;
        self.invalidate(link, key);
        Some(granted)
    }

    /// Handles the completed invalidation of region number `part` of a reply.
    pub(crate) fn invalidated(&mut self, key: Key, part: usize) {
        let reply =
            self.replies.get_mut(key).expect("a reply must stay in the table until all of its regions are invalidated");
        reply.regions[part].take().expect("a region must be invalidated once");
        self.remove_if_invalidated(key);
    }

    /// Handles a region that the caller invalidated by a Send. It must not be invalidated again.
    pub(crate) fn invalidated_by_peer(&mut self, stag: Stag) {
        for key in self.replies.keys() {
            let reply = self.replies.get_mut(key).expect("a listed key must be valid");
            // The invalidation of a reply that is done has been posted already.
            let found = reply.regions.iter_mut().find(|region| **region == Some(stag));
            if let Some(region) = found.filter(|_| !reply.is_done) {
                return *region = None;
            }
        }
    }

    /// Reclaims all memory after the connection was closed.
    pub(crate) fn end(&mut self, registry: &mut dyn Registry) {
        for key in self.replies.keys() {
            let reply = self.replies.remove(key).expect("a listed key must be valid");
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

    /// Posts the invalidation of a reply's memory.
    fn invalidate(&mut self, link: &mut Link, key: Key) {
        let reply = self.replies.get_mut(key).expect("a reply must be invalidated once");
        reply.is_done = true;
        for (part, &stag) in reply.regions.iter().enumerate() {
            if let Some(stag) = stag {
                link.post(WorkRequest::Invalidate { id: Name::InvalidateReply(key, part).into(), stag });
            }
        }
        self.remove_if_invalidated(key);
    }

    fn remove_if_invalidated(&mut self, key: Key) {
        if self.replies.get(key).is_some_and(|reply| reply.is_done && reply.regions.iter().all(Option::is_none)) {
            self.bytes -= self.replies.remove(key).expect("the reply was just found").bytes;
        }
    }
}
