//! [`Backchannel`]: the callback program, which the server calls over the connections that this client has made.
//!
//! Read RFC 8881 §2.10.6 (the same slots, in the other direction) and §20 first. The backchannel decodes a callback and
//! finds its slot; a [`CallbackHandler`] executes the operations. A callback that cannot be decoded gets an error
//! reply. The slots bound the memory that a server can use here.

use std::{fmt, ops::RangeInclusive, sync::Arc};

use nfs::v4::{callback::*, compound::*, *};
use parking_lot::Mutex;
use rpc::{Answering, Call, Procedure, Service};
use xdr::Decode;

/// Executes the operations of callbacks.
pub(crate) trait CallbackHandler: Send + Sync {
    /// Executes an operation that is not CB_SEQUENCE.
    fn execute(&self, operation: CbArgop4) -> CbResop4;
}

/// Answers callbacks, each exactly once.
pub(crate) struct Backchannel {
    handler: Arc<dyn CallbackHandler>,
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    session: Sessionid4,
    slots: Vec<Slot>,
}

/// The last request of a slot.
#[derive(Clone, Debug, Default)]
struct Slot {
    sequence: u32,
    /// Its results; `None` while it is being executed.
    reply: Option<CbCompoundRes>,
}

/// The callback program as a service of RPC.
pub(crate) struct CallbackService(pub Arc<Backchannel>);

impl Service for CallbackService {
    fn program(&self) -> u32 {
        CALLBACK_PROGRAM
    }

    fn versions(&self) -> RangeInclusive<u32> {
        CALLBACK_VERSION..=CALLBACK_VERSION
    }

    fn procedure(&self, _version: u32, procedure: u32) -> Option<Procedure> {
        // The slots detect retransmissions exactly, so the duplicate request cache is not needed.
        match procedure {
            PROC_NULL => Some(Procedure { name: "CB_NULL", idempotent: true }),
            PROC_COMPOUND => Some(Procedure { name: "CB_COMPOUND", idempotent: true }),
            _ => None,
        }
    }

    fn call<'a>(&'a self, mut call: Call<'a>) -> Answering<'a> {
        Answering::Pending(Box::pin(async move {
            if call.procedure == PROC_NULL {
                return Ok(call.reply(&()));
            }
            let head = CbCompoundHead::decode(&mut call.arguments)?;
            let mut ops = Vec::new();
            let mut bad = None;
            for _ in 0..head.operations.0.min(OPERATIONS_MAX) {
                match CbArgop4::decode_next(&mut call.arguments, head.minorversion) {
                    Ok(op) => ops.push(op),
                    Err(error) => {
                        bad = Some(error);
                        break;
                    }
                }
            }
            Ok(call.reply(&self.0.answer(head.tag, ops, bad)))
        }))
    }
}

impl Backchannel {
    /// Makes a backchannel without a session.
    pub fn new(handler: Arc<dyn CallbackHandler>) -> Self {
        Self { handler, inner: Mutex::default() }
    }

    /// Sets the session whose callbacks are executed from now on, and its number of slots.
    pub fn session(&self, session: Sessionid4, slots: u32) {
        let mut inner = self.inner.lock();
        inner.session = session;
        inner.slots = vec![Slot::default(); slots.clamp(1, BACK_SLOTS) as usize];
    }

    fn answer(&self, tag: Tag, ops: Vec<CbArgop4>, bad: Option<BadOperation<CbOpnum4>>) -> CbCompoundRes {
        let fail =
            |result: CbResop4| CbCompoundRes { status: result.status(), tag: tag.clone(), resarray: vec![result] };
        // RFC 8881 §20.9.3: CB_SEQUENCE must be the first operation.
        let mut ops = ops.into_iter();
        let args = match ops.next() {
            Some(CbArgop4::Sequence(args)) => args,
            Some(other) => return fail(CbResop4::failure(other.opnum(), Nfsstat4::OpNotInSession)),
            None => {
                return bad.map_or_else(
                    || CbCompoundRes { status: Nfsstat4::Ok, tag: tag.clone(), resarray: Vec::new() },
                    |bad| fail(bad.into()),
                );
            }
        };
        let (slot, ok) = match self.inner.lock().begin(&args) {
            Ok(Begun::Execute(ok)) => (args.slotid.0 as usize, ok),
            Ok(Begun::Replay(reply)) => return CbCompoundRes { tag, ..*reply },
            Err(status) => return fail(CbResop4::failure(CbOpnum4::Sequence, status)),
        };
        let mut results = vec![CbResop4::Sequence(Res4::Ok(ok))];
        for op in ops {
            let result = match op {
                // RFC 8881 §20.9.3: CB_SEQUENCE is allowed only as the first operation.
                CbArgop4::Sequence(_) => CbResop4::failure(CbOpnum4::Sequence, Nfsstat4::SequencePos),
                op => self.handler.execute(op),
            };
            let status = result.status();
            results.push(result);
            if status != Nfsstat4::Ok {
                break;
            }
        }
        if let Some(bad) = bad.filter(|_| results.last().is_some_and(|last| last.status() == Nfsstat4::Ok)) {
            results.push(bad.into());
        }
        let status = results.last().map_or(Nfsstat4::Ok, CbResop4::status);
        let reply = CbCompoundRes { status, tag, resarray: results };
        if let Some(slot) = self.inner.lock().slots.get_mut(slot) {
            slot.reply = Some(reply.clone());
        }
        reply
    }
}

enum Begun {
    Execute(CbSequenceOk),
    Replay(Box<CbCompoundRes>),
}

impl fmt::Debug for Backchannel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Backchannel").field("inner", &self.inner).finish_non_exhaustive()
    }
}

impl Inner {
    /// Starts a callback in its slot, or finds the cached reply (RFC 8881 §2.10.6.1.3, §20.9.3).
    fn begin(&mut self, args: &CbSequenceArgs) -> Result<Begun, Nfsstat4> {
        if args.sessionid != self.session {
            return Err(Nfsstat4::BadSession);
        }
        let highest = Slotid4(self.slots.len().saturating_sub(1) as u32);
        let slot = self.slots.get_mut(args.slotid.0 as usize).ok_or(Nfsstat4::BadSlot)?;
        if args.sequenceid.0 == slot.sequence && slot.sequence != 0 {
            return slot.reply.clone().map(|reply| Begun::Replay(Box::new(reply))).ok_or(Nfsstat4::Delay);
        }
        if args.sequenceid.0 != slot.sequence.wrapping_add(1) {
            return Err(Nfsstat4::SeqMisordered);
        }
        *slot = Slot { sequence: args.sequenceid.0, reply: None };
        Ok(Begun::Execute(CbSequenceOk {
            sessionid: args.sessionid,
            sequenceid: args.sequenceid,
            slotid: args.slotid,
            highest_slotid: highest,
            target_highest_slotid: highest,
        }))
    }
}

/// The program number of callbacks, from the transient range (RFC 5531 §8.3).
pub(crate) const CALLBACK_PROGRAM: u32 = 0x4000_0000;
/// Maximum operations of one callback that are decoded: the limit of the session's backchannel.
const OPERATIONS_MAX: u32 = 8;
/// Maximum number of callbacks that can be outstanding.
pub(crate) const BACK_SLOTS: u32 = 8;
