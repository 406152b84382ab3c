//! What is posted to a queue pair and what comes back.

use buf::{Buffer, Rope};

use crate::{Memory, RemoteSegment, Stag};

/// The poster's name for a work request; it comes back in the completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct WorkId(pub u64);

/// One request to the send queue. They start in the order posted; a Send arrives after every RDMA
/// Write posted before it (RFC 5040 §5.5). An RDMA Read may be overtaken by later requests.
#[derive(Debug)]
pub enum WorkRequest {
    /// Send: the peer receives `data` in the next buffer it posted.
    Send {
        /// Comes back in the completion.
        id: WorkId,
        /// The message.
        data: Rope,
        /// Send with Invalidate: the peer's region that its adapter shall invalidate (RFC 5040 §5.3).
        invalidate: Option<Stag>,
        /// Ask the peer for an event (Send with Solicited Event).
        solicited: bool,
    },
    /// RDMA Write: `data` is placed in the peer's memory.
    Write {
        /// Comes back in the completion.
        id: WorkId,
        /// The bytes.
        data: Rope,
        /// Where they go.
        to: RemoteSegment,
    },
    /// RDMA Read: the peer's memory is placed in `into`, as many bytes as it shows.
    Read {
        /// Comes back in the completion.
        id: WorkId,
        /// Filled whole; comes back in the completion.
        into: Buffer,
        /// Where the bytes come from.
        from: RemoteSegment,
    },
    /// Ends the registration of one of our own regions; its memory comes back in the completion.
    Invalidate {
        /// Comes back in the completion.
        id: WorkId,
        /// The region.
        stag: Stag,
    },
}

impl WorkRequest {
    /// The poster's name for it.
    pub fn id(&self) -> WorkId {
        match self {
            WorkRequest::Send { id, .. }
            | WorkRequest::Write { id, .. }
            | WorkRequest::Read { id, .. }
            | WorkRequest::Invalidate { id, .. } => *id,
        }
    }

    /// Its completion when the connection has ended; `remove` takes a region's memory out.
    pub(crate) fn flushed(self, remove: impl FnOnce(Stag) -> Option<Memory>) -> Completion {
        let id = self.id();
        let kind = match self {
            WorkRequest::Send { .. } => CompletionKind::Send,
            WorkRequest::Write { .. } => CompletionKind::Write,
            WorkRequest::Read { into, .. } => CompletionKind::Read(into),
            WorkRequest::Invalidate { stag, .. } => CompletionKind::Invalidate(remove(stag)),
        };
        Completion { id, status: Status::Flushed, kind }
    }
}

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// As asked.
    Ok,
    /// The connection ended first; whether the peer saw any of it is not known.
    Flushed,
    /// The peer refused it (bad steering tag, bounds or rights); the connection is ending.
    RemoteAccess,
    /// It was wrong on this side: no such region.
    LocalAccess,
}

/// One request that has ended.
#[derive(Debug)]
pub struct Completion {
    /// The name its poster gave it.
    pub id: WorkId,
    /// How it ended.
    pub status: Status,
    /// What it was, and the memory that comes home.
    pub kind: CompletionKind,
}

/// What has ended.
#[derive(Debug)]
pub enum CompletionKind {
    /// A Send; its bytes have been handed over.
    Send,
    /// An RDMA Write; its bytes have been handed over.
    Write,
    /// An RDMA Read, with the filled buffer.
    Read(Buffer),
    /// A receive: a message from the peer, unless flushed.
    Receive {
        /// The posted buffer, showing the bytes received.
        buffer: Buffer,
        /// The region of ours that the message invalidated on its way (Send with Invalidate).
        invalidated: Option<(Stag, Memory)>,
        /// Whether the peer asked for an event.
        solicited: bool,
    },
    /// A local invalidation, with the region's memory; nothing if there was no such region.
    Invalidate(Option<Memory>),
}

/// A request that could not be posted.
#[derive(Debug)]
pub enum PostError {
    /// Too many requests of this kind are outstanding; the request comes back.
    QueueFull(WorkRequest),
}
