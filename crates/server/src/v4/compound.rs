//! COMPOUND: its operations, one after the other, exactly once (RFC 8881 §2.10.6, §16.2).
//!
//! An operation is read when it is about to be executed, and its result written at once. It first runs in place. If it
//! has to wait for storage, *it* has changed nothing, and the compound moves as a whole to a thread of the export that it needs and
//! goes on with that operation there: what was done before is not done again. It moves on in the same way when a later
//! operation needs another export, so that no export's threads wait for another export.
//!
//! If an operation of the file system is pending, the compound moves nowhere: it awaits the completion and runs the operation
//! again, which finds in the [`Journal`](crate::call::journal::Journal) what it has done before. Then it goes on with the next one.
//!
//! On error the compound ends with the operation's status. A slot is finished however its request ends, so that no
//! failure of ours costs the client a slot.

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
    cursor::{ClientShard, Cursor, InSession},
    ops,
    service::{CHANNEL, Context, Shared4},
    state::{
        ids::Principal,
        owner::Kept,
        session::Connection,
        shard::Request,
        slot::{Begun, Fingerprint, REPLY_SMALL, Ticket},
    },
    v40::{self, Entry, InTurn},
};
use crate::{
    call::{error::WouldBlock, thread::Thread},
    clock,
    handle::FileId,
};

/// Whether a compound need not be remembered but by its session: in 4.0, which has none, only if it changes nothing.
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
    match compound.begin_session(shared, &context, &mut operations, (whole, len)) {
        Opening::Go => {}
        Opening::End => return Answering::Ready(Ok(compound.finish())),
        Opening::Replay(kept) => return Answering::Ready(Ok(compound.replay(&kept))),
    }
    while let Some(operation) = operations.next() {
        compound.cursor.behind = operations.left;
        thread.reset();
        let Err(WouldBlock) = compound.step(&context, &operation) else {
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

/// Operations that are still to be read.
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
            // Where the next would begin is not known.
            self.left = 0;
        }
        Some(operation)
    }
}

/// A compound that is being executed.
struct Compound {
    cursor: Cursor,
    out: Encoder,
    /// Most bytes of the reply, of the kind that `too_big` is about.
    limit: usize,
    results: ResultsWriter,
    status: Nfsstat4,
    slot: Option<Slot>,
    /// In 4.0, the turn of the operation that is being executed.
    turn: Option<InTurn>,
}

/// How a compound begins.
enum Opening {
    Go,
    End,
    Replay(Message),
}

/// The slot of a request that is being executed. It is finished at the latest when this is dropped.
struct Slot {
    shared: Arc<Shared4>,
    shard: Option<ClientShard>,
    session: Sessionid4,
    ticket: Option<Ticket>,
    keep: bool,
    /// The time, unless the request has waited.
    now: Option<Instant>,
}

impl Compound {
    fn begin(mut out: Encoder, head: &CompoundHead, call: &Call<'_>, cx: &Context<'_>) -> Self {
        let results = ResultsWriter::begin(&mut out, &head.tag);
        let cursor = Cursor {
            minor: head.minorversion,
            principal: principal(cx.identity),
            // Calls go both ways by whatever keeps a connection.
            connection: Connection { id: call.connection, duplex: !call.transport.caps().lossy },
            current: None,
            saved: None,
            session: None,
            client: None,
            room: 0,
            // 4.0 has no other name for it (RFC 7530 §13.1).
            too_big: if head.minorversion > 0 { Nfsstat4::RepTooBig } else { Nfsstat4::Resource },
            behind: 0,
            cb_getattr: None,
            cb_getattr_result: None,
        };
        let limit = cx.transport.message_max;
        Self { cursor, out, limit, results, status: Nfsstat4::Ok, slot: None, turn: None }
    }

    /// Sees to the first operation, which is SEQUENCE, or one of those that need none and are alone (§2.10.6.1.1).
    fn begin_session(
        &mut self,
        shared: &Arc<Shared4>,
        cx: &Context<'_>,
        operations: &mut Incoming<'_>,
        (whole, len): (Decoder<'_>, usize),
    ) -> Opening {
        if !MINOR_VERSIONS.contains(&self.cursor.minor) {
            self.status = Nfsstat4::MinorVersMismatch;
            return Opening::End;
        }
        let count = operations.left;
        if self.cursor.minor == 0 {
            if count > CHANNEL.operations_max {
                self.status = Nfsstat4::Resource;
                return Opening::End;
            }
            return Opening::Go;
        }
        let Some(first) = operations.next() else { return Opening::End };
        self.cursor.behind = count - 1;
        match &first {
            Ok(Argop4::Sequence(args)) => {
                let fingerprint =
                    Fingerprint { principal: self.cursor.principal.clone(), checksum: checksum(whole, len) };
                let request = Request { args, fingerprint, len, operations: count };
                return self.sequence(shared, request, operations);
            }
            Ok(operation) if !needs_no_session(operation.opnum()) => self.fail(&first, Nfsstat4::OpNotInSession),
            Ok(_) if count > 1 => self.fail(&first, Nfsstat4::NotOnlyOp),
            _ => {
                let stepped = self.step(cx, &first);
                assert!(stepped.is_ok(), "what needs no session waits for nothing");
            }
        }
        Opening::End
    }

    fn sequence(&mut self, shared: &Arc<Shared4>, request: Request<'_>, operations: &mut Incoming<'_>) -> Opening {
        let SequenceArgs { sessionid, cachethis, .. } = *request.args;
        let connection = self.cursor.connection.id;
        let shard = shared.shards.of_session(&sessionid);
        let now = clock::now();
        let begin = |request| shared.with_state(|state| state.sequence(now, request, connection));
        let begun = match shard.as_ref().and_then(|shard| shard.sequence(now, &request, connection)) {
            Some(sequenced) => Ok(sequenced),
            // What a client that is back had to wait for is stored by the first attempt.
            None => match begin(request.clone()) {
                Err(Nfsstat4::Delay) => begin(request),
                begun => begun,
            },
        };
        let sequenced = match begun {
            Ok(sequenced) => sequenced,
            Err(status) => {
                self.put(Res4::Fail(status));
                return Opening::End;
            }
        };
        match sequenced.begun {
            Begun::Replay(kept) => return Opening::Replay(kept),
            Begun::Uncached => {
                self.put(Res4::Ok(sequenced.result));
                // §2.10.6.1.3: the status stands where the next operation's result would be.
                if let Some(next) = operations.next() {
                    self.fail(&next, Nfsstat4::RetryUncachedRep);
                }
                return Opening::End;
            }
            Begun::Execute(ticket) => {
                let keep = cachethis;
                let (shared, shard) = (shared.clone(), shard.clone());
                let (ticket, now) = (Some(ticket), Some(now));
                self.slot = Some(Slot { shared, shard, session: sessionid, ticket, keep, now });
            }
        }
        self.put(Res4::Ok(sequenced.result));
        self.cursor.session = Some(InSession { client: sequenced.clientid, id: sessionid, shard });
        let channel = sequenced.channel;
        self.limit = channel.maxresponsesize as usize;
        if cachethis && channel.maxresponsesize_cached < channel.maxresponsesize {
            self.limit = channel.maxresponsesize_cached as usize;
            self.cursor.too_big = Nfsstat4::RepTooBigToCache;
        }
        Opening::Go
    }

    /// Executes an operation and adds its result, unless it would have to wait.
    fn step(&mut self, cx: &Context<'_>, operation: &Operation) -> Result<(), WouldBlock> {
        let arguments = match operation {
            Ok(arguments) => arguments,
            Err(bad) => {
                self.fail(operation, bad.status);
                return Ok(());
            }
        };
        self.cursor.room = self.limit.saturating_sub(self.out.position());
        // What changes something must not be found too big afterwards.
        if ops::changes(arguments.opnum()) && self.cursor.room < ops::CHANGE_LEN_MAX {
            self.fail(operation, self.cursor.too_big);
            return Ok(());
        }
        let (start, position) = (self.out.stream_len(), self.out.position());
        if self.cursor.minor == 0 && self.turn.is_none() {
            match v40::enter(cx.shared, &mut self.cursor, arguments) {
                Ok(Entry::Free) => {}
                Ok(Entry::InTurn(turn)) => self.turn = Some(turn),
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
        let executed = ops::execute(cx, &mut self.cursor, arguments, &mut self.out);
        if let Some(journal) = cx.thread.journal() {
            if journal.is_pending() {
                // The run is void, whatever it has returned.
                self.out.truncate(start);
                return Err(WouldBlock);
            }
            if executed.is_ok() {
                journal.clear();
            }
        }
        self.status = executed?;
        self.cursor.cb_getattr_result = None;
        tracing::debug!(operation = arguments.opnum().name(), peer = %cx.peer, transport = cx.transport.name, status = ?self.status);
        if self.out.position() - position > self.cursor.room && self.status == Nfsstat4::Ok {
            self.out.truncate(start);
            self.fail(operation, self.cursor.too_big);
        } else {
            self.results.push(&mut self.out, &());
        }
        if self.cursor.minor == 0 {
            self.leave(start, arguments.opnum());
        }
        Ok(())
    }

    /// Ends an operation of 4.0, whose result begins at `start`.
    fn leave(&mut self, start: usize, opnum: Opnum4) {
        let status = v40::status(self.status, opnum);
        if status != self.status {
            self.status = status;
            self.out.patch_u32(start + 4, status as u32);
        }
        if let Some(turn) = self.turn.take() {
            turn.end(status, self.out.written(start), &self.cursor);
        }
    }

    /// Adds the result that an operation of 4.0 got when it was executed.
    fn replay_one(&mut self, kept: &Kept<FileId>) {
        self.out.raw(&kept.result);
        self.results.push(&mut self.out, &());
        self.status = kept.status;
    }

    /// Ends an operation that has begun to be executed, and has changed nothing.
    fn give_up(&mut self, operation: &Operation, status: Nfsstat4) {
        let start = self.out.stream_len();
        self.fail(operation, status);
        if self.cursor.minor == 0
            && let Ok(arguments) = operation
        {
            self.leave(start, arguments.opnum());
        }
    }

    /// Adds a result that says only this.
    fn fail(&mut self, operation: &Operation, status: Nfsstat4) {
        let opnum = operation.as_ref().map_or_else(|bad| bad.opnum, Argop4::opnum);
        self.status = status;
        self.results.push(&mut self.out, &Resop4::failure(opnum, status));
    }

    fn put(&mut self, result: SequenceRes) {
        self.status = result.status();
        self.results.push(&mut self.out, &Resop4::Sequence(result));
    }

    /// The reply that was kept, bit for bit, behind the header of this one.
    fn replay(mut self, kept: &Message) -> Message {
        self.out.truncate(REPLY_HEADER_LEN);
        self.out.raw(&kept.stream[REPLY_HEADER_LEN..]);
        Message { payloads: kept.payloads.clone(), ..self.out.finish() }
    }

    fn finish(&mut self) -> Message {
        // A reply that is of SEQUENCE alone, or of an error before anything was done, costs nothing to keep.
        let cheap = self.results.count() <= 1 || self.results.count() == 2 && self.status != Nfsstat4::Ok;
        self.results.finish(&mut self.out, self.status);
        let message = std::mem::take(&mut self.out).finish();
        // A tag can make any reply long.
        let cheap = cheap && message.stream.len() <= REPLY_SMALL;
        if let Some(slot) = self.slot.take() {
            slot.finish(&message, cheap);
        }
        message
    }
}

impl Slot {
    fn finish(mut self, reply: &Message, cheap: bool) {
        let kept = if self.keep || cheap { in_memory(reply) } else { Message::default() };
        self.end(kept, cheap);
    }

    fn end(&mut self, reply: Message, cheap: bool) {
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
        self.end(out.finish(), true);
    }
}

/// A reply as it is now, whatever becomes of the files that it was read from.
fn in_memory(reply: &Message) -> Message {
    let copy = |payload: &PlacedPayload| {
        let data = payload.data.to_bytes().unwrap_or_default();
        PlacedPayload { position: payload.position, data: Rope::from(Bytes::copy_from_slice(&data)) }
    };
    // What it was written in may be twice as large.
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

/// What tells the arguments from others: their beginning, as it is where requests differ.
fn checksum(mut arguments: Decoder<'_>, len: usize) -> u64 {
    let stream = arguments.take_rest();
    // Who finds two that are alike has nobody but himself to mislead.
    CHECKSUM.hash_one((&stream[..stream.len().min(CHECKSUM_LEN)], len))
}

const CHECKSUM_LEN: usize = 1024;
const CHECKSUM: foldhash::quality::FixedState = foldhash::quality::FixedState::with_seed(0);
