//! Work requests, which are posted to a queue pair, and their completions.

use buf::{Buffer, Rope};

use crate::{Memory, RemoteSegment, Stag};

/// The ID of a work request, chosen by the caller and returned in the completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct WorkId(pub u64);

/// A request to the send queue. Requests start in the order in which they were posted. A Send arrives after every RDMA
/// Write that was posted before it (RFC 5040 §5.5). Later requests can overtake an RDMA Read.
#[derive(Debug)]
pub enum WorkRequest {
    /// Send: the peer receives `data` in the next buffer that it posted.
    Send {
        /// The ID.
        id: WorkId,
        /// The message.
        data: Rope,
        /// The peer's region that its adapter invalidates (Send with Invalidate, RFC 5040 §5.3).
        invalidate: Option<Stag>,
        /// Requests an event at the peer (Send with Solicited Event).
        solicited: bool,
    },
    /// RDMA Write: writes `data` to the peer's memory.
    Write {
        /// The ID.
        id: WorkId,
        /// The bytes.
        data: Rope,
        /// The destination.
        to: RemoteSegment,
    },
    /// RDMA Read: reads the peer's memory into `into`, as many bytes as are visible in it.
    Read {
        /// The ID.
        id: WorkId,
        /// The buffer, which is filled completely and returned in the completion.
        into: Buffer,
        /// The source.
        from: RemoteSegment,
    },
    /// Invalidates one of this side's regions. Its memory is returned in the completion.
    Invalidate {
        /// The ID.
        id: WorkId,
        /// The region.
        stag: Stag,
    },
}

impl WorkRequest {
    /// Returns the ID.
    pub fn id(&self) -> WorkId {
        match self {
            WorkRequest::Send { id, .. }
            | WorkRequest::Write { id, .. }
            | WorkRequest::Read { id, .. }
            | WorkRequest::Invalidate { id, .. } => *id,
        }
    }

    /// Returns the flushed completion of the request after the connection has ended. `remove` removes a region and
    /// returns its memory.
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

/// The outcome of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// The request succeeded.
    Ok,
    /// The connection ended first. The peer can have seen some of the data.
    Flushed,
    /// The peer rejected the request (invalid STag, bounds or rights), and the connection ends.
    RemoteAccess,
    /// The request is invalid on this side: there is no such region.
    LocalAccess,
}

/// The completion of a request.
#[derive(Debug)]
pub struct Completion {
    /// The ID of the request.
    pub id: WorkId,
    /// The outcome.
    pub status: Status,
    /// The kind of request, with the memory that is returned.
    pub kind: CompletionKind,
}

/// The kind of a completed request.
#[derive(Debug)]
pub enum CompletionKind {
    /// A Send. Its data have been handed to the network.
    Send,
    /// An RDMA Write. Its data have been handed to the network.
    Write,
    /// An RDMA Read, with its filled buffer.
    Read(Buffer),
    /// A receive: a message from the peer, unless the receive was flushed.
    Receive {
        /// The posted buffer, whose visible bytes are the message.
        buffer: Buffer,
        /// The region of this side that the message invalidated (Send with Invalidate).
        invalidated: Option<(Stag, Memory)>,
        /// `true` if the peer requested an event.
        solicited: bool,
    },
    /// A local invalidation, with the memory of the region; `None` if there was no such region.
    Invalidate(Option<Memory>),
}

/// The reason why a request could not be posted.
#[derive(Debug)]
pub enum PostError {
    /// Too many requests of this kind are outstanding. Returns the request.
    QueueFull(WorkRequest),
}
