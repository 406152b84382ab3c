//! Conversion of requests into work requests, with the keys of their memory.
//!
//! Bytes that belong to no pool are copied if they are few, and otherwise registered for the one request. With
//! [`Registration::PerIo`](crate::registration::Registration::PerIo) all buffers of RDMA Reads and Writes are
//! registered this way. A file range in a rope is read into memory. A Send with too many pieces is copied into one
//! buffer; an RDMA Write with too many pieces, or longer than the port's longest message, is split into several.

use std::{collections::VecDeque, ffi::c_int, io, sync::Arc};

use buf::{Buffer, Piece, Rope};
use smallvec::SmallVec;

use super::{
    device::Device,
    ffi::{IBV_ACCESS_LOCAL_WRITE, IBV_ACCESS_REMOTE_WRITE, ibv_bind_mw, ibv_sge},
    memory::{Keys, Local, Mr, SlabMr},
    queue::{Operation, Pieces, Queues},
};
use crate::{RemoteSegment, Stag, WorkRequest};

/// An entry of the send queue.
pub(super) enum Request {
    /// A request as it was posted.
    User(WorkRequest),
    /// A request to bind the window of this region.
    Bind(Stag, ibv_bind_mw),
    /// A request that makes the peer's adapter answer.
    Probe,
}

/// The work requests of one request, and the objects they require until it has completed.
#[derive(Default)]
pub(super) struct Plan {
    pub(super) wrs: VecDeque<(Operation, Pieces)>,
    pub(super) holds: Holds,
}

/// An object that was made for one request and is dropped when it completes.
#[expect(dead_code, reason = "held for their drop")]
pub(super) enum Hold {
    Registered(Mr),
    /// A permanent or cached registration, which is held so that it is not dropped.
    Kept(Arc<SlabMr>),
    Copied(Buffer),
}

pub(super) type Holds = SmallVec<[Hold; 2]>;

impl Plan {
    /// Creates a plan of one work request without local memory.
    pub(super) fn single(operation: Operation) -> Self {
        Self { wrs: VecDeque::from([(operation, Pieces::new())]), holds: Holds::new() }
    }

    /// Creates a plan that only the peer's adapter can complete, and that has no other effect: a transfer of zero
    /// bytes, whose key is not checked (InfiniBand C9-88; the ready-to-receive messages of RFC 6581 §9.2 are of this
    /// kind). InfiniBand and RoCE adapters acknowledge an RDMA Write; iWARP adapters answer only an RDMA Read.
    ///
    /// # Errors
    /// Returns an error if there is no key even for an empty buffer.
    pub(super) fn probe(queues: &Queues, keys: &mut Keys, reads: bool) -> io::Result<Self> {
        let (rkey, remote) = (0, 0);
        if !(queues.device.caps.iwarp && reads) {
            return Ok(Self::single(Operation::Write { rkey, remote }));
        }
        let mut holds = Holds::new();
        let into = sink(&queues.device, keys, &Buffer::zeroed(0), IBV_ACCESS_LOCAL_WRITE, false, &mut holds)?;
        Ok(Self { wrs: VecDeque::from([(Operation::Read { rkey, remote }, Pieces::from_slice(&[into]))]), holds })
    }

    /// Creates the plan of a Send, an RDMA Write or an RDMA Read. A transfer of zero bytes to or from the peer's memory
    /// requires no work request, because there is nothing to check.
    ///
    /// # Errors
    /// Returns an error if memory cannot be registered, or a file cannot be read.
    pub(super) fn transfer(request: &WorkRequest, queues: &Queues, keys: &mut Keys) -> io::Result<Self> {
        let mut plan = Self::default();
        match request {
            WorkRequest::Send { data, invalidate, solicited, .. } => {
                // siw does not accept an inline Send with Invalidate.
                let inline = fits_inline(data, queues) && !(queues.device.caps.iwarp && invalidate.is_some());
                let pieces = match inline {
                    true => data.pieces().iter().filter_map(in_memory).map(|bytes| piece(bytes, 0)).collect(),
                    false => gather(data, &queues.device, keys, &mut plan.holds, queues.limits.pieces, false)?,
                };
                let invalidate = invalidate.map(|stag| stag.0);
                plan.wrs.push_back((Operation::Send { invalidate, solicited: *solicited, inline }, pieces));
            }
            WorkRequest::Write { data, to, .. } if !data.is_empty() => {
                let each = keys.registers_each();
                let pieces = gather(data, &queues.device, keys, &mut plan.holds, usize::MAX, each)?;
                let messages = split(&pieces, queues.limits.pieces, queues.limits.message);
                plan.wrs.extend(messages.into_iter().map(|(at, pieces)| (write_to(*to, at), pieces)));
            }
            WorkRequest::Read { into, from, .. } if !into.is_empty() => {
                // RFC 5040 §5.2: on iWARP the peer's answer names the local sink, which must grant the access right for
                // this buffer only.
                let iwarp = queues.device.caps.iwarp;
                let access = IBV_ACCESS_LOCAL_WRITE | if iwarp { IBV_ACCESS_REMOTE_WRITE } else { 0 };
                let each = iwarp || keys.registers_each();
                let sink = sink(&queues.device, keys, into, access, each, &mut plan.holds)?;
                let messages = split(&[sink], 1, queues.limits.message);
                plan.wrs.extend(messages.into_iter().map(|(at, pieces)| (read_from(*from, at), pieces)));
            }
            WorkRequest::Write { .. } | WorkRequest::Read { .. } | WorkRequest::Invalidate { .. } => {}
        }
        Ok(plan)
    }
}

/// Returns the piece by which the adapter accesses a buffer that it fills. The buffer is registered individually if
/// `each` is set or if it belongs to no pool.
///
/// # Errors
/// Returns an error if the buffer cannot be registered.
pub(super) fn sink(
    device: &Device,
    keys: &mut Keys,
    buffer: &Buffer,
    access: c_int,
    each: bool,
    holds: &mut Holds,
) -> io::Result<ibv_sge> {
    if buffer.is_empty() {
        let nothing = &device.nothing;
        let local = keys.local(device, nothing)?.expect("the buffer belongs to a pool");
        return Ok(ibv_sge { length: 0, ..kept(nothing, local, holds) });
    }
    if !each && let Some(local) = keys.local(device, buffer)? {
        return Ok(kept(buffer, local, holds));
    }
    let mr = Mr::register(&device.pd, buffer.as_ptr(), buffer.len(), access)?;
    let piece = piece(buffer, mr.lkey());
    holds.push(Hold::Registered(mr));
    Ok(piece)
}

fn fits_inline(data: &Rope, queues: &Queues) -> bool {
    data.len() <= queues.limits.inline
        && data.pieces().len() <= queues.limits.pieces
        && data.pieces().iter().all(|piece| in_memory(piece).is_some())
}

fn in_memory(piece: &Piece) -> Option<&[u8]> {
    match piece {
        Piece::Memory(bytes) => Some(bytes),
        Piece::File(_) | Piece::Peer(_) | Piece::Device(_) => None,
    }
}

/// Returns the pieces of `data`, at most `max`, as the adapter accesses them. With `each`, every piece is registered
/// individually.
fn gather(
    data: &Rope,
    device: &Device,
    keys: &mut Keys,
    holds: &mut Holds,
    max: usize,
    each: bool,
) -> io::Result<Pieces> {
    if data.pieces().len() > max {
        let mut together = device.staging.take(data.len());
        data.copy_to(&mut together)?;
        let piece = sink(device, keys, &together, IBV_ACCESS_LOCAL_WRITE, false, holds)?;
        holds.push(Hold::Copied(together));
        return Ok(Pieces::from_slice(&[piece]));
    }
    let mut pieces = Pieces::new();
    for part in data.pieces() {
        if let Piece::Memory(bytes) = part {
            if !each && let Some(local) = keys.local(device, bytes)? {
                pieces.push(kept(bytes, local, holds));
                continue;
            }
            if each || bytes.len() > COPY_MAX {
                let mr = Mr::register(&device.pd, bytes.as_ptr(), bytes.len(), 0)?;
                pieces.push(piece(bytes, mr.lkey()));
                holds.push(Hold::Registered(mr));
                continue;
            }
        }
        let mut copy = device.staging.take(part.len());
        part.copy_to(&mut copy)?;
        pieces.push(sink(device, keys, &copy, IBV_ACCESS_LOCAL_WRITE, false, holds)?);
        holds.push(Hold::Copied(copy));
    }
    Ok(pieces)
}

fn kept(bytes: &[u8], local: Local, holds: &mut Holds) -> ibv_sge {
    holds.extend(local.hold.map(Hold::Kept));
    piece(bytes, local.lkey)
}

fn piece(bytes: &[u8], lkey: u32) -> ibv_sge {
    ibv_sge { addr: bytes.as_ptr() as u64, length: bytes.len() as u32, lkey }
}

/// Splits a list of pieces into messages of limited numbers of pieces and bytes, each with the offset of its first
/// byte.
fn split(pieces: &[ibv_sge], pieces_max: usize, bytes_max: usize) -> Vec<(u64, Pieces)> {
    let mut messages = Vec::new();
    let (mut message, mut bytes, mut at) = (Pieces::new(), 0, 0);
    for piece in pieces {
        let mut rest = *piece;
        while rest.length > 0 {
            if message.len() == pieces_max || bytes == bytes_max {
                messages.push((at, std::mem::take(&mut message)));
                at += bytes as u64;
                bytes = 0;
            }
            let len = (rest.length as usize).min(bytes_max - bytes) as u32;
            message.push(ibv_sge { length: len, ..rest });
            (rest.addr, rest.length) = (rest.addr + u64::from(len), rest.length - len);
            bytes += len as usize;
        }
    }
    messages.push((at, message));
    messages
}

fn write_to(to: RemoteSegment, at: u64) -> Operation {
    Operation::Write { rkey: to.stag.0, remote: to.offset.wrapping_add(at) }
}

fn read_from(from: RemoteSegment, at: u64) -> Operation {
    Operation::Read { rkey: from.stag.0, remote: from.offset.wrapping_add(at) }
}

/// Bytes of no pool are copied up to this length, because a registration pins pages and takes a system call.
const COPY_MAX: usize = 16 << 10;

#[cfg(test)]
mod tests {
    use super::*;

    fn lens(messages: &[(u64, Pieces)]) -> Vec<(u64, Vec<(u64, u32)>)> {
        messages.iter().map(|(at, pieces)| (*at, pieces.iter().map(|p| (p.addr, p.length)).collect())).collect()
    }

    #[test]
    fn messages_respect_both_limits_and_contain_every_byte_in_order() {
        let piece = |addr, length| ibv_sge { addr, length, lkey: 1 };
        let pieces = [piece(1000, 5), piece(2000, 12), piece(3000, 1), piece(4000, 1)];
        let by_bytes = split(&pieces, 8, 8);
        assert_eq!(
            lens(&by_bytes),
            [(0, vec![(1000, 5), (2000, 3)]), (8, vec![(2003, 8)]), (16, vec![(2011, 1), (3000, 1), (4000, 1)])]
        );
        let by_pieces = split(&pieces, 2, 100);
        assert_eq!(lens(&by_pieces), [(0, vec![(1000, 5), (2000, 12)]), (17, vec![(3000, 1), (4000, 1)])]);
        assert_eq!(lens(&split(&[piece(7, 4)], 1, 4)), [(0, vec![(7, 4)])]);
    }
}
