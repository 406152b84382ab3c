//! Executes COMPOUND: its operations in order, and each request exactly once (RFC 8881 §2.10.6, §16.2).
//!
//! Each operation is decoded just before it is executed, and its result is encoded at once. An operation first runs on
//! the worker. If it would have to wait for storage, *that operation* has changed nothing. The whole compound then
//! moves to a thread of the export that the operation needs, and continues there with that operation; earlier
//! operations are not repeated. It moves again when a later operation needs another export, so that no thread of one
//! export waits for another export.
//!
//! If an operation of the file system is pending, the compound stays on its thread. It awaits the completion and runs
//! the NFS operation again, which finds the results of completed calls in the
//! [`Journal`](crate::call::journal::Journal). Then it continues with the next operation.
//!
//! On error the compound ends with the operation's status. The slot is always released, whatever the outcome of its
//! request: an error in the server never costs the client a slot.

mod waiting;

use std::{hash::BuildHasher, sync::Arc, time::Instant};

use buf::Rope;
use bytes::Bytes;
use nfs::v4::{
    Argop4, BadOperation, MINOR_VERSIONS, Nfsstat4, OpResult, Opnum4, Res4, Resop4, SequenceArgs, SequenceRes,
    Sessionid4,
    compound::{CompoundHead, ResultsWriter, Tag},
};
use rpc::{AcceptError, Answering, Call, Identity, REPLY_HEADER_LEN};
use xdr::{Decode, Decoder, Encoder, Message, PlacedPayload};

use self::waiting::Waiting;
use super::{
    audit,
    cursor::{ClientShard, Cursor, InSession},
    ops,
    service::{CHANNEL, CachedReply, Context, Shared4},
    state::{
        ids::{Principal, ReferringCall},
        owner::Kept,
        session::Connection,
        shard::Request,
        slot::{Begun, Fingerprint, REPLY_SMALL, Ticket},
    },
    v40::{self, Entry, SequencedOp},
};
use crate::{
    call::{error::WouldBlock, thread::Thread},
    clock,
    export::sec::Sec,
    handle::FileId,
};

/// Returns `true` if a retransmitted call may be executed again. From version 4.1 on, the session detects
/// retransmissions. In 4.0, only a compound that changes nothing is idempotent.
pub(super) fn is_idempotent(mut arguments: Decoder<'_>) -> bool {
    if CompoundHead::minorversion(arguments.clone()).is_ok_and(|minor| minor > 0) {
        return true;
    }
    let Ok(head) = CompoundHead::decode(&mut arguments) else { return true };
    let operations = Incoming { decoder: arguments, minor: head.minorversion, left: head.operations.0 };
    operations.into_iter().flatten().all(|operation| !ops::changes(operation.opnum()))
}

/// Executes COMPOUND.
pub(super) fn run<'a>(shared: &'a Arc<Shared4>, mut call: Call<'a>) -> Answering<'a> {
    let len = call.arguments.message_len();
    let whole = call.arguments.clone();
    let Ok(head) = CompoundHead::decode(&mut call.arguments) else {
        return Answering::Ready(Err(AcceptError::GarbageArgs));
    };
    let thread = Thread::worker();
    let context = Context::of_call(shared, &call, &thread);
    let mut compound = Compound::begin(call.encoder(), &head, &call, &context);
    let mut operations = Incoming { decoder: call.arguments, minor: head.minorversion, left: head.operations.0 };
    match compound.begin_session(shared, &context, &mut operations, (whole, len, call.arrived)) {
        Start::Continue => {}
        Start::End => return Answering::Ready(Ok(compound.finish())),
        Start::Replay(kept) => return Answering::Ready(Ok(compound.replay(&kept))),
    }
    while let Some(operation) = operations.next() {
        compound.cursor.operations_left = operations.left;
        thread.reset();
        let Err(WouldBlock) = compound.step(&context, &operation, || operations.clone()) else {
            if compound.status == Nfsstat4::Ok { continue } else { break }
        };
        if let Some(slot) = &mut compound.slot {
            slot.now = None;
        }
        let rest = std::iter::once(operation).chain(operations).collect();
        return Answering::Pending(Box::pin(waiting::wait(
            Waiting::new(compound, rest, context.detach(), &thread),
            len,
        )));
    }
    Answering::Ready(Ok(compound.finish()))
}

type Operation = Result<Argop4, BadOperation<Opnum4>>;

/// The operations that are not yet decoded.
#[derive(Clone)]
struct Incoming<'a> {
    decoder: Decoder<'a>,
    minor: u32,
    left: u32,
}

impl Iterator for Incoming<'_> {
    type Item = Operation;

    fn next(&mut self) -> Option<Operation> {
        self.left = self.left.checked_sub(1)?;
        let operation = Argop4::decode_next(&mut self.decoder, self.minor);
        if operation.is_err() {
            // After a decoding error, the position of the next operation is unknown.
            self.left = 0;
        }
        Some(operation)
    }
}

/// A compound that is being executed.
struct Compound {
    cursor: Cursor,
    out: Encoder,
    /// The maximum bytes of the reply. A longer reply fails with the cursor's `too_big`.
    limit: usize,
    results: ResultsWriter,
    status: Nfsstat4,
    slot: Option<Slot>,
    /// In 4.0, the sequenced operation in progress.
    sequenced_op: Option<SequencedOp>,
}

/// The outcome of the first operation of a compound.
enum Start {
    Continue,
    End,
    Replay(Arc<Message>),
}

/// The slot of a request that is being executed. Dropping this value releases the slot if it is still in use.
struct Slot {
    shared: Arc<Shared4>,
    shard: Option<ClientShard>,
    session: Sessionid4,
    ticket: Option<Ticket>,
    keep: bool,
    /// The time at which the request arrived, unless it has waited since.
    now: Option<Instant>,
}

impl Compound {
    fn begin(mut out: Encoder, head: &CompoundHead, call: &Call<'_>, cx: &Context<'_>) -> Self {
        let results = ResultsWriter::begin(&mut out, &head.tag);
        let cursor = Cursor {
            minor: head.minorversion,
            principal: principal(cx.identity),
            // A transport that is not lossy keeps a connection, which carries calls in both directions.
            connection: Connection {
                id: call.connection,
                duplex: !call.transport.caps().lossy,
                tls: call.transport.tls().level(),
            },
            current: None,
            saved: None,
            session: None,
            client: None,
            room: 0,
            // 4.0 has no other status for this (RFC 7530 §13.1).
            too_big: if head.minorversion > 0 { Nfsstat4::RepTooBig } else { Nfsstat4::Resource },
            created: false,
            operations_left: 0,
            wrong_sec: false,
            cb_getattr: None,
            cb_getattr_result: None,
        };
        let limit = cx.transport.message_max;
        Self { cursor, out, limit, results, status: Nfsstat4::Ok, slot: None, sequenced_op: None }
    }

    /// Executes the first operation. It must be SEQUENCE, or an operation that needs no session and is the only one
    /// (§2.10.6.1.1).
    fn begin_session(
        &mut self,
        shared: &Arc<Shared4>,
        cx: &Context<'_>,
        operations: &mut Incoming<'_>,
        (whole, len, arrived): (Decoder<'_>, usize, Instant),
    ) -> Start {
        if !MINOR_VERSIONS.contains(&self.cursor.minor) {
            self.status = Nfsstat4::MinorVersMismatch;
            return Start::End;
        }
        let count = operations.left;
        if self.cursor.minor == 0 {
            if count > CHANNEL.operations_max {
                self.status = Nfsstat4::Resource;
                return Start::End;
            }
            return Start::Continue;
        }
        let Some(first) = operations.next() else { return Start::End };
        self.cursor.operations_left = count - 1;
        match &first {
            Ok(Argop4::Sequence(args)) => {
                // A call with another protection, of its connection or of itself, gets no cached reply: it may not show
                // what the reply contains.
                let sec = Sec::of(cx.identity).map_or(0, |sec| 1 + sec as u64);
                let checksum = checksum(&whole, len) & !0b1_1111 | sec << 2 | cx.transport.tls as u64;
                let fingerprint = Fingerprint { principal: self.cursor.principal.clone(), checksum };
                let request = Request { args, fingerprint, len, operations: count };
                return self.sequence(shared, request, arrived, operations);
            }
            //= rfc8881-18.33.3-1 rfc8881-18.46.3-2 rfc8881-18.46.3-3
            Ok(operation) if !needs_no_session(operation.opnum()) => self.fail(&first, Nfsstat4::OpNotInSession),
            //= rfc8881-18.35.3-1 rfc8881-18.35.3-2 rfc8881-18.36.3-1 rfc8881-18.36.3-2 rfc8881-18.50.3-3
            //= rfc8881-18.37.3-5
            Ok(_) if count > 1 => self.fail(&first, Nfsstat4::NotOnlyOp),
            _ => {
                let stepped = self.step(cx, &first, std::iter::empty);
                assert!(stepped.is_ok(), "an operation without a session must not wait");
            }
        }
        Start::End
    }

    fn sequence(
        &mut self,
        shared: &Arc<Shared4>,
        request: Request<'_>,
        now: Instant,
        operations: &mut Incoming<'_>,
    ) -> Start {
        let SequenceArgs { sessionid, sequenceid: sequence, slotid: slot, cachethis, .. } = *request.args;
        let connection = self.cursor.connection;
        let shard = shared.shards.of_session(&sessionid);
        let begin = |request| shared.with_state(|state| state.sequence(now, request, connection));
        let begun = match shard.as_ref().and_then(|shard| shard.sequence(now, &request, connection.id)) {
            Some(sequenced) => Ok(sequenced),
            // The recovery record of a client that is back after its lease is stored again before its requests are
            // executed. The first attempt stores it.
            None => match begin(request.clone()) {
                Err(Nfsstat4::Delay) => begin(request),
                begun => begun,
            },
        };
        let sequenced = match begun {
            Ok(sequenced) => sequenced,
            Err(status) => {
                self.put(Res4::Fail(status));
                return Start::End;
            }
        };
        match sequenced.begun {
            Begun::Replay(kept) => {
                return Start::Replay(kept.expect("a slot must replay only a reply that it has cached"));
            }
            Begun::Uncached => {
                self.put(Res4::Ok(sequenced.result));
                // §2.10.6.1.3: the status is that of the operation after SEQUENCE.
                if let Some(next) = operations.next() {
                    //= rfc8881-18.46.3-8 rfc8881-2.10.6.1.3-2 rfc8881-2.10.6.1.3-3
                    //= rfc8881-2.10.6.1.3-4 rfc8881-2.10.6.1.3-5
                    self.fail(&next, next.as_ref().map_or_else(|bad| bad.status, |_| Nfsstat4::RetryUncachedRep));
                }
                return Start::End;
            }
            Begun::Execute(ticket) => {
                let keep = cachethis;
                let (shared, shard) = (shared.clone(), shard.clone());
                let (ticket, now) = (Some(ticket), Some(now));
                self.slot = Some(Slot { shared, shard, session: sessionid, ticket, keep, now });
            }
        }
        self.put(Res4::Ok(sequenced.result));
        let call = ReferringCall { session: sessionid, slot, sequence };
        self.cursor.session = Some(InSession { client: sequenced.clientid, id: sessionid, call, shard });
        let channel = sequenced.channel;
        self.limit = channel.maxresponsesize as usize;
        if cachethis && channel.maxresponsesize_cached < channel.maxresponsesize {
            self.limit = channel.maxresponsesize_cached as usize;
            //= rfc8881-2.10.6.4-2 rfc8881-2.10.6.4-3
            self.cursor.too_big = Nfsstat4::RepTooBigToCache;
        }
        Start::Continue
    }

    /// Executes an operation and appends its result. `rest` returns the operations after it.
    ///
    /// # Errors
    /// `WouldBlock` if the operation must wait: nothing is appended then.
    fn step<I: Iterator<Item = Operation>>(
        &mut self,
        cx: &Context<'_>,
        operation: &Operation,
        rest: impl Fn() -> I,
    ) -> Result<(), WouldBlock> {
        let arguments = match operation {
            Ok(arguments) => arguments,
            Err(bad) => {
                self.fail(operation, bad.status);
                return Ok(());
            }
        };
        self.cursor.room = self.limit.saturating_sub(self.out.position());
        // An operation that changes something must not fail afterwards because its result does not fit.
        if ops::changes(arguments.opnum()) && self.cursor.room < ops::CHANGE_LEN_MAX {
            self.fail(operation, self.cursor.too_big);
            return Ok(());
        }
        let (start, position) = (self.out.stream_len(), self.out.position());
        if self.cursor.minor == 0 && self.sequenced_op.is_none() {
            match v40::enter(cx, &mut self.cursor, arguments) {
                Ok(Entry::Free) => {}
                Ok(Entry::Sequenced(op)) => self.sequenced_op = Some(op),
                Ok(Entry::Replay(kept)) => {
                    self.replay_one(&kept);
                    return Ok(());
                }
                Err(status) => {
                    self.fail(operation, status);
                    return Ok(());
                }
            }
        }
        // An operation with a journal may have been executed in part.
        if cx.thread.journal().is_none() && cx.delays(|| audit::action(&self.cursor, arguments)) {
            self.fail_unexecuted(operation, Nfsstat4::Delay);
            return Ok(());
        }
        // The operation can change the file handles.
        let action = if cx.core.audit.is_some() { audit::action(&self.cursor, arguments) } else { None };
        let executed = ops::execute(cx, &mut self.cursor, arguments, &mut self.out);
        if let Some(journal) = cx.thread.journal() {
            if journal.is_pending() {
                // The operation runs again: discard the result of this run.
                self.out.truncate(start);
                return Err(WouldBlock);
            }
            if executed.is_ok() {
                journal.clear();
            }
        }
        self.status = executed?;
        self.cursor.cb_getattr_result = None;
        cx.record(|| action, &self.status, std::mem::take(&mut self.cursor.created));
        tracing::debug!(operation = arguments.opnum().name(), peer = %cx.peer, transport = cx.transport.name, status = ?self.status);
        if self.out.position() - position > self.cursor.room && self.status == Nfsstat4::Ok {
            self.out.truncate(start);
            self.fail(operation, self.cursor.too_big);
        } else if std::mem::take(&mut self.cursor.wrong_sec)
            && !ops::may_follow_wrong_sec(rest().find(ops::decides_flavor).as_ref())
            && !self.only_releases(cx, rest())
        {
            //= rfc8881-18.19.3-1 rfc8881-18.29.4-4 rfc8881-2.6.3.1.1.7-1
            self.out.truncate(start);
            self.fail(operation, Nfsstat4::WrongSec);
        } else {
            self.results.push(&mut self.out, &());
        }
        if self.cursor.minor == 0 {
            self.end_v40(start, arguments.opnum());
        }
        Ok(())
    }

    /// Returns `true` if a compound whose security flavour the export does not allow may be executed nevertheless: the client has
    /// state protection, the call has its machine credential, and the remaining operations only release state (RFC 8881
    /// §2.10.8.3). Otherwise state would stay whose user's credential has expired, and a client could not return delegations.
    fn only_releases(&self, cx: &Context<'_>, rest: impl Iterator<Item = Operation>) -> bool {
        let (client, principal) = (self.cursor.client(), &self.cursor.principal);
        //= rfc8881-2.10.8.3-1
        let granted = self.cursor.session.is_some()
            && ops::session::has_integrity(cx.identity)
            && cx.shared.with_state(|state| {
                state.allowed_by_machine(client, principal).is_some_and(|allowed| ops::only_release(rest, allowed))
            });
        if granted {
            cx.only_releases();
        }
        granted
    }

    /// Finishes an operation of 4.0, whose result begins at `start`.
    fn end_v40(&mut self, start: usize, opnum: Opnum4) {
        let status = v40::status(self.status, opnum);
        if status != self.status {
            self.status = status;
            self.out.patch_u32(start + 4, status as u32);
        }
        if let Some(op) = self.sequenced_op.take() {
            op.end(status, self.out.written(start), &self.cursor);
        }
    }

    /// Appends the cached result of an operation of 4.0.
    fn replay_one(&mut self, kept: &Kept<FileId>) {
        self.out.raw(&kept.result);
        self.results.push(&mut self.out, &());
        self.status = kept.status;
    }

    /// Finishes an operation that ran and changed nothing, with `status` as its result.
    fn fail_unexecuted(&mut self, operation: &Operation, status: Nfsstat4) {
        let start = self.out.stream_len();
        self.fail(operation, status);
        if self.cursor.minor == 0
            && let Ok(arguments) = operation
        {
            self.end_v40(start, arguments.opnum());
        }
    }

    /// Appends a result that consists of a status alone.
    fn fail(&mut self, operation: &Operation, status: Nfsstat4) {
        let opnum = operation.as_ref().map_or_else(|bad| bad.opnum, Argop4::opnum);
        self.status = status;
        self.results.push(&mut self.out, &Resop4::failure(opnum, status));
    }

    fn put(&mut self, result: SequenceRes) {
        self.status = result.status();
        self.results.push(&mut self.out, &Resop4::Sequence(result));
    }

    /// Returns the cached reply, bit for bit, after the header of this reply.
    fn replay(mut self, kept: &Message) -> Message {
        self.out.truncate(REPLY_HEADER_LEN);
        self.out.raw(&kept.stream[REPLY_HEADER_LEN..]);
        Message { payloads: kept.payloads.clone(), ..self.out.finish() }
    }

    fn finish(&mut self) -> Message {
        // A reply of SEQUENCE alone, or an error before anything was executed, is cheap to cache.
        let cheap = self.results.count() <= 1 || self.results.count() == 2 && self.status != Nfsstat4::Ok;
        self.results.finish(&mut self.out, self.status);
        let message = std::mem::take(&mut self.out).finish();
        // A long tag can make any reply long.
        let cheap = cheap && message.stream.len() <= REPLY_SMALL;
        if let Some(slot) = self.slot.take() {
            slot.finish(&message, cheap);
        }
        message
    }
}

impl Slot {
    fn finish(mut self, reply: &Message, cheap: bool) {
        let cached = (self.keep || cheap).then(|| Arc::new(in_memory(reply)));
        self.end(cached, cheap);
    }

    fn end(&mut self, reply: CachedReply, cheap: bool) {
        let Some(ticket) = self.ticket.take() else { return };
        let now = self.now.unwrap_or_else(clock::now);
        let ended = match &self.shard {
            Some(shard) => shard.finish(now, self.session, (ticket, reply, cheap)),
            None => Err((ticket, reply)),
        };
        if let Err((ticket, reply)) = ended {
            self.shared.with_state(|state| state.finish(now, self.session, ticket, reply, cheap));
        }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        if self.ticket.is_none() {
            return;
        }
        let mut out = Encoder::default();
        out.raw(&[0; REPLY_HEADER_LEN]);
        ResultsWriter::begin(&mut out, &Tag::default()).finish(&mut out, Nfsstat4::ServerFault);
        self.end(Some(Arc::new(out.finish())), true);
    }
}

/// Copies a reply, so that it no longer depends on the files from which its payloads were read.
fn in_memory(reply: &Message) -> Message {
    let copy = |payload: &PlacedPayload| {
        let data = payload.data.to_bytes().unwrap_or_default();
        PlacedPayload { position: payload.position, data: Rope::from(Bytes::copy_from_slice(&data)) }
    };
    // The encoder's buffer can be twice as large as the stream, so the stream is copied too.
    Message { stream: Bytes::copy_from_slice(&reply.stream), payloads: reply.payloads.iter().map(copy).collect() }
}

fn needs_no_session(opnum: Opnum4) -> bool {
    use Opnum4::*;
    matches!(opnum, ExchangeId | CreateSession | BindConnToSession | DestroySession | DestroyClientId)
}

fn principal(caller: &Identity) -> Principal {
    match caller {
        Identity::None => Principal::None,
        Identity::Sys(sys) => Principal::Sys { uid: sys.uid, gid: sys.gid },
        Identity::Principal(principal) => Principal::Gss(principal.name.clone()),
    }
}

/// Returns a checksum of the beginning of the arguments and of their length. Different requests differ in these.
fn checksum(arguments: &Decoder<'_>, len: usize) -> u64 {
    let stream = arguments.rest();
    // A client that constructs a collision affects only its own requests.
    CHECKSUM.hash_one((&stream[..stream.len().min(CHECKSUM_LEN)], len))
}

const CHECKSUM_LEN: usize = 1024;
const CHECKSUM: foldhash::quality::FixedState = foldhash::quality::FixedState::with_seed(0);
